//! Every parameter a scenario can set, declared once: key, default, range, meaning. `--set`, TOML and sweeps go through
//! here, so all refuse the same values with the same words.
//!
//! `nrs.*` and `cache.*` keys beside the policy's name are the rooms' own tables.
use super::keys::{Kind, rows};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use types::parse_size;

/// Values by key; what is not set has its default.
#[derive(Clone, Debug, Default)]
pub struct Params {
    set: BTreeMap<String, String>,
    /// Keys that were asked for.
    read: RefCell<BTreeSet<String>>,
}

impl PartialEq for Params {
    fn eq(&self, other: &Params) -> bool {
        self.set == other.set
    }
}

impl Params {
    /// Sets `key` to the value that `text` spells.
    ///
    /// # Errors
    /// A sentence naming key, value and what would be right. Nothing has changed then.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        let text = text.trim();
        if let Some(row) = rows().find(|r| r.name == key) {
            row.kind.check(text).map_err(|why| format!("{key} = '{text}' is refused: {why}"))?;
        } else if let Some(room_key) = key.strip_prefix("nrs.") {
            nrs::NrsConfig::default().set(room_key, text).map_err(|e| format!("{key}: {e}"))?;
        } else if let Some(room_key) = key.strip_prefix("cache.") {
            cache::CacheConfig::new(64).set(room_key, text).map_err(|e| format!("{key}: {e}"))?;
        } else if let Some(room_key) = key.strip_prefix("readahead.") {
            readahead::Config::default().set(room_key, text).map_err(|e| format!("{key}: {e}"))?;
        } else if let Some(room_key) = key.strip_prefix("advice.") {
            advice::Config::default().set(room_key, text).map_err(|e| format!("{key}: {e}"))?;
        } else {
            return Err(unknown_key(key));
        }
        self.set.insert(key.to_string(), text.to_string());
        Ok(())
    }
    /// The value of `key` as text: what was set, or its default; empty for a room's key that was not set.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        if !self.read.borrow().contains(key) {
            self.read.borrow_mut().insert(key.to_string());
        }
        match self.set.get(key) {
            Some(v) => v,
            None => rows().find(|r| r.name == key).map_or("", |r| r.default),
        }
    }
    /// What was set, ascending by key.
    pub fn changed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.set.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }
    /// Every key with its value, rooms' keys only where set.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, String> {
        let mut all: BTreeMap<String, String> = rows().map(|r| (r.name.to_string(), r.default.to_string())).collect();
        all.extend(self.set.clone());
        all
    }
    /// Every key with its value as JSON: numbers as numbers, sizes in bytes.
    #[must_use]
    pub fn typed(&self) -> BTreeMap<String, serde_json::Value> {
        let typed = |key: &str, text: String| match rows().find(|r| r.name == key).map(|r| &r.kind) {
            Some(Kind::Int(..)) => self.int(key).into(),
            Some(Kind::Float(..)) => self.float(key).into(),
            Some(Kind::Size(..)) => self.size(key).into(),
            Some(Kind::Flag) => self.flag(key).into(),
            Some(_) => text.into(),
            None => serde_json::from_str(&text).ok().filter(serde_json::Value::is_number).unwrap_or(text.into()),
        };
        self.all().into_iter().map(|(k, v)| (k.clone(), typed(&k, v))).collect()
    }
    /// A whole number.
    #[must_use]
    pub fn int(&self, key: &str) -> u64 {
        self.text(key).replace('_', "").parse().unwrap_or(0)
    }
    /// A number.
    #[must_use]
    pub fn float(&self, key: &str) -> f64 {
        self.text(key).parse().unwrap_or(0.0)
    }
    /// Bytes.
    #[must_use]
    pub fn size(&self, key: &str) -> u64 {
        parse_size(self.text(key)).unwrap_or(0)
    }
    /// A flag.
    #[must_use]
    pub fn flag(&self, key: &str) -> bool {
        self.text(key) == "true"
    }
    /// The keys that start with `prefix` and were set, without it.
    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let is_rooms = move |k: &str| k.starts_with(prefix) && rows().all(|r| r.name != k);
        self.read.borrow_mut().extend(self.set.keys().filter(|k| is_rooms(k)).cloned());
        self.changed().filter_map(move |(k, v)| k.strip_prefix(prefix).map(|k| (k, v)))
    }
    /// The keys that were set and that `reader` does not ask for.
    #[must_use]
    pub fn unread_by(&self, reader: impl FnOnce(&Params)) -> Vec<String> {
        let fresh = Params { set: self.set.clone(), read: RefCell::default() };
        reader(&fresh);
        let read = fresh.read.into_inner();
        self.set.keys().filter(|k| !read.contains(*k)).cloned().collect()
    }
}

impl Kind {
    fn check(&self, text: &str) -> Result<(), String> {
        match self {
            Kind::Int(min, max) => match text.replace('_', "").parse::<u64>() {
                Ok(n) if (*min..=*max).contains(&n) => Ok(()),
                _ => Err(format!("write a whole number from {min} to {max}")),
            },
            Kind::Float(min, max) => match text.parse::<f64>() {
                Ok(x) if (*min..=*max).contains(&x) => Ok(()),
                _ => Err(format!("write a number from {min} to {max}")),
            },
            Kind::Size(min, max) => match parse_size(text)? {
                n if (*min..=*max).contains(&n) => Ok(()),
                _ => Err(format!("write a size from {} to {}", types::format_size(*min), types::format_size(*max))),
            },
            Kind::Flag => match text {
                "true" | "false" => Ok(()),
                _ => Err("write true or false".to_string()),
            },
            Kind::Choice(names) => {
                let names = names();
                if names.iter().any(|n| n == text) { Ok(()) } else { Err(format!("there are: {}", names.join(", "))) }
            }
            Kind::Checked(check) => check(text),
        }
    }
    fn range(&self) -> String {
        match self {
            Kind::Int(min, max) if *max == u64::MAX => format!("{min}.."),
            Kind::Int(min, max) => format!("{min}..={max}"),
            Kind::Float(min, max) => format!("{min}..={max}"),
            Kind::Size(min, max) => format!("{}..={}", types::format_size(*min), types::format_size(*max)),
            Kind::Flag => "true, false".to_string(),
            Kind::Choice(names) => names().join(", "),
            Kind::Checked(_) => "see text".to_string(),
        }
    }
}

fn unknown_key(key: &str) -> String {
    let close = |name: &str| {
        let tail = |s: &str| s.rsplit('.').next().unwrap_or(s).to_string();
        tail(name) == tail(key) || name.contains(key) || key.contains(name)
    };
    let mut similar: Vec<&str> = rows().map(|r| r.name).filter(|n| close(n)).collect();
    if similar.is_empty() {
        similar.extend(types::settings::nearest(key, rows().map(|r| r.name)));
    }
    if similar.is_empty() {
        format!("unknown key '{key}'; `stria sim list --keys` shows all")
    } else {
        format!("unknown key '{key}'; did you mean {}?", similar.join(" or "))
    }
}

/// The keys as a Markdown table, for the reference and for `list --keys`.
#[must_use]
pub fn keys_markdown() -> String {
    let mut out = String::from("| key | default | range | meaning |\n|---|---|---|---|\n");
    for r in rows() {
        let default = if r.default.is_empty() { "none" } else { r.default };
        out.push_str(&format!("| `{}` | {default} | {} | {} |\n", r.name, r.kind.range(), r.meaning));
    }
    for k in nrs::keys() {
        out.push_str(&format!("| `nrs.{}` | {} | {} | {} |\n", k.name, k.default, k.range, k.meaning));
    }
    let room = |out: &mut String, page: &str, prefix: &str| {
        let keys = page.split("\n## Keys\n").nth(1).unwrap_or_default().lines().filter(|l| l.starts_with("| `"));
        keys.for_each(|l| out.push_str(&format!("| `{prefix}{}\n", &l[3..])));
    };
    room(&mut out, &cache::reference_markdown(), "cache.");
    for (prefix, keys) in [("readahead", readahead::Config::KEYS), ("advice", advice::Config::KEYS)] {
        for k in keys {
            let alias =
                if k.alias_mb.is_empty() { String::new() } else { format!(" Lustre: `{}`, in MiB.", k.alias_mb) };
            out.push_str(&format!(
                "| `{prefix}.{}` | {} | {}..={} | {}{alias} |\n",
                k.key, k.default, k.min, k.max, k.meaning
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_in_its_own_range() {
        for row in rows() {
            Params::default().set(row.name, row.default).unwrap();
        }
    }

    #[test]
    fn json_has_numbers_as_numbers_and_sizes_in_bytes() {
        let mut p = Params::default();
        p.set("transfer_size_bytes", "64K").unwrap();
        p.set("nrs.quantum_requests", "8").unwrap();
        let typed = p.typed();
        assert_eq!(typed["transfer_size_bytes"], 65_536);
        assert_eq!(typed["nrs.quantum_requests"], 8);
        assert_eq!(typed["clients"], 8000);
        assert_eq!(typed["nrs.policy"], "fifo");
        assert_eq!(typed["timeline"], false);
    }

    #[test]
    fn every_key_that_can_be_set_is_listed() {
        let page = keys_markdown();
        for key in rows()
            .map(|r| r.name.to_string())
            .chain(nrs::keys().iter().map(|k| format!("nrs.{}", k.name)))
            .chain(cache::CacheConfig::KEYS.iter().map(|k| format!("cache.{k}")))
            .chain(readahead::Config::KEYS.iter().map(|k| format!("readahead.{}", k.key)))
            .chain(advice::Config::KEYS.iter().map(|k| format!("advice.{}", k.key)))
        {
            assert!(page.lines().any(|l| l.starts_with(&format!("| `{key}` |"))), "{key}");
        }
    }

    #[test]
    fn a_refusal_names_key_value_and_remedy() {
        for (key, value, part) in [
            ("clients", "0", "1 to 4000000"),
            ("clients", "many", "whole number"),
            ("client", "8", "did you mean"),
            ("clientz", "8", "did you mean clients?"),
            ("nrs.policy", "fastest", "fifo"),
            ("nrs.quantum_requests", "-1", "whole number"),
            ("disk.profile", "tape", "hdd"),
            ("disk.seek_ms", "-2", "0 to 10000"),
            ("net.loss", "0.9", "0 to 0.5"),
            ("transfer_size_bytes", "1X", "not a size"),
            ("faults.ost_down", "3:9", "OST:FROM-TO"),
            ("timeline", "yes", "true or false"),
        ] {
            let mut params = Params::default();
            let why = params.set(key, value).unwrap_err();
            assert!(why.contains(key) && why.contains(part), "{why}");
            assert_eq!(params, Params::default());
        }
    }
}
