//! What may be set from the page: policies, by name, and nothing else. Values are those that the registries have.
use serde_json::{Value, json};

/// A policy that may be switched.
pub struct Switch {
    /// What the page calls it.
    pub id: &'static str,
    /// What people call it.
    label: &'static str,
    /// Whom a change concerns.
    scope: &'static str,
    /// The parameters that it sets.
    pub pattern: &'static str,
    /// The values with a sentence each.
    choices: fn() -> Vec<(String, String)>,
}

/// All of them, in the order of the page.
pub static SWITCHES: [Switch; 5] = [
    Switch {
        id: "nrs",
        label: "Request scheduler",
        scope: "every OST of the file system, for everybody",
        pattern: "ost.OSS.ost_io.nrs_policies",
        choices: schedulers,
    },
    Switch {
        id: "ost-cache",
        label: "Cache of the OSTs",
        scope: "every OST of the file system, for everybody",
        pattern: "obdfilter.*.cache_policy",
        choices: caches,
    },
    Switch {
        id: "allocator",
        label: "Placement of new files",
        scope: "the metadata server: new files of everybody",
        pattern: "lod.*.qos_policy",
        choices: || named(layout::POLICIES.iter().map(|e| (e.name, e.summary))),
    },
    Switch {
        id: "client-cache",
        label: "Cache of this mount",
        scope: "this mount only",
        pattern: "llite.*.cache_policy",
        choices: caches,
    },
    Switch {
        id: "readahead",
        label: "Readahead of this mount",
        scope: "this mount only",
        pattern: "llite.*.readahead_policy",
        choices: || named(readahead::POLICIES.iter().map(|e| (e.name, e.summary))),
    },
];

fn named<'a>(all: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(String, String)> {
    all.map(|(name, summary)| (name.into(), summary.into())).collect()
}

fn caches() -> Vec<(String, String)> {
    named(cache::registry().iter().map(|e| (e.name, e.summary)))
}

fn schedulers() -> Vec<(String, String)> {
    let policies = nrs::registry();
    let summary = |name: &str| match name.strip_prefix("deadline+") {
        Some(inner) => format!("{inner}, and what is due goes first."),
        None => policies.find(name).map_or_else(|e| e.to_string(), |e| e.summary.into()),
    };
    let with_summary = |name: String| {
        let summary = summary(&name);
        (name, summary)
    };
    nrs::names().into_iter().map(with_summary).collect()
}

/// The switches as the page is told them.
#[must_use]
pub fn shown() -> Value {
    let choices = |s: &Switch| {
        let all = (s.choices)().into_iter();
        all.map(|(name, summary)| json!({"name": name, "summary": summary})).collect::<Vec<_>>()
    };
    let one = |s: &Switch| json!({"id": s.id, "label": s.label, "scope": s.scope, "pattern": s.pattern, "choices": choices(s)});
    SWITCHES.iter().map(one).collect()
}

/// The pattern of the parameters that a wish sets, when it is one that may be fulfilled.
///
/// # Errors
/// What may be set instead.
pub fn checked(id: &str, value: &str) -> Result<&'static str, String> {
    let Some(switch) = SWITCHES.iter().find(|s| s.id == id) else {
        let all: Vec<&str> = SWITCHES.iter().map(|s| s.id).collect();
        return Err(format!("the page sets nothing called '{id}'; there are {}", all.join(", ")));
    };
    let names: Vec<String> = (switch.choices)().into_iter().map(|(name, _)| name).collect();
    if !names.iter().any(|n| n == value) {
        return Err(format!("'{value}' is no policy of {id}; there are {}", names.join(", ")));
    }
    Ok(switch.pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_policies_by_their_names_may_be_set() {
        assert_eq!(checked("nrs", "crrn"), Ok("ost.OSS.ost_io.nrs_policies"));
        assert_eq!(checked("nrs", "deadline+crrn"), Ok("ost.OSS.ost_io.nrs_policies"));
        assert_eq!(checked("ost-cache", "lru"), Ok("obdfilter.*.cache_policy"));
        for (id, value) in [("nrs", "crrn\n"), ("nrs", ""), ("nrs", "tbf nid"), ("readahead", "crrn"), ("nrs", "*")] {
            assert!(checked(id, value).unwrap_err().contains("is no policy of"), "{id} {value}");
        }
        for id in ["", "obdfilter.*.evict_client", "ost.OSS.ost_io.nrs_policies"] {
            assert!(checked(id, "1").unwrap_err().contains("there are nrs, ost-cache"), "{id}");
        }
        for s in shown().as_array().unwrap() {
            let choices = s["choices"].as_array().unwrap();
            assert!(choices.len() > 1 && choices.iter().all(|c| c["summary"].as_str().unwrap().ends_with('.')), "{s}");
        }
    }
}
