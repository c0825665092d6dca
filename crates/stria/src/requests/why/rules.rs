//! By which rule of which policy a request waited in its scheduler's queue while others went.
use nrs::{DEADLINE_PREFIX, NrsConfig};
use trace::why::Ahead;
use trace::{Record, Target};

/// Why a request waited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rule {
    /// The policy.
    pub policy: String,
    /// Of a policy with rules: the one that the request falls under, with its limits.
    pub rule: Option<String>,
    /// A sentence: what kept it back.
    pub why: String,
}

impl Rule {
    /// Of a request of `target` before which `ahead` went.
    pub fn of(target: &Target, record: &Record, ahead: &Ahead) -> Rule {
        let policy = target.setting("nrs.policy").unwrap_or("?").to_string();
        let plain = policy.strip_prefix(DEADLINE_PREFIX).unwrap_or(&policy);
        let entry = nrs::registry().iter().find(|e| e.name == plain);
        let rule = entry.filter(|e| e.facts.throttles).and_then(|_| throttled_by(target, record));
        let order = entry.map_or("its order is not known here", |e| e.summary.trim_end_matches('.'));
        let turns = ahead.passed - ahead.urgent;
        let why = match (&rule, ahead.went.requests, ahead.passed) {
            (Some(rule), 0, _) => format!("the rule {rule} held it back: nothing went before it"),
            (None, 0, _) if ahead.found.requests > 0 => {
                let window = target.setting("oss.dispatch_window").unwrap_or("?");
                let found = ahead.found.requests;
                format!("the dispatch window of {window} was full: the store had {found} requests when it came")
            }
            (None, 0, _) => "nothing stood before it".into(),
            (_, _, 0) => format!("what went before it had arrived before it ({order})"),
            _ if turns == 0 => {
                let urgent = ahead.urgent;
                format!("{urgent} that had arrived later went first by their deadlines: lock callbacks waited for them")
            }
            (Some(rule), ..) => format!("the rule {rule} held it back: {turns} that had arrived later went first"),
            (None, ..) if ahead.urgent == 0 => format!("{turns} that had arrived later went first: {order}"),
            (None, ..) => {
                let urgent = ahead.urgent;
                format!("{turns} that had arrived later went first: {order}; {urgent} more by their deadlines")
            }
        };
        Rule { policy, rule, why }
    }
}

/// The throttling rule that a request falls under: its name and limits.
fn throttled_by(target: &Target, record: &Record) -> Option<String> {
    let mut config = NrsConfig::default();
    if let Some(commands) = target.setting("nrs.tbf_rules") {
        config.set("tbf_rules", commands).ok()?;
    }
    let rule = config.tbf_rules.of(&record.request());
    let rate = rule.rate.map(|n| format!("{n} requests/s"));
    let bytes = rule.bytes_per_s.map(|n| format!("{}/s", types::format_size(n)));
    let limits: Vec<String> = rate.into_iter().chain(bytes).collect();
    Some(format!("{} ({})", rule.name, limits.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::why::Group;
    use types::ClientId;

    fn target(policy: &str, more: &str) -> Target {
        Target::from_text(&format!("target=s-OST0000\nnrs.policy={policy}\noss.dispatch_window=4\n{more}")).unwrap()
    }
    fn ahead(requests: u64, passed: u64, urgent: u64, found: u64) -> Ahead {
        let group = |requests: u64| {
            let mut group = Group::default();
            group.requests += requests;
            group
        };
        Ahead { went: group(requests), found: group(found), passed, urgent, ..Ahead::default() }
    }

    #[test]
    fn the_rule_is_the_one_that_let_others_go_first() {
        let why = |policy: &str, a: &Ahead| Rule::of(&target(policy, ""), &Record::default(), a).why;
        assert!(why("fifo", &ahead(9, 0, 0, 4)).starts_with("what went before it had arrived before it (In the order"));
        assert!(why("fifo", &ahead(0, 0, 0, 4)).starts_with("the dispatch window of 4 was full: the store had 4"));
        assert!(why("obrr", &ahead(9, 6, 0, 4)).starts_with("6 that had arrived later went first: Objects take turns"));
        assert!(why("deadline+obrr", &ahead(9, 6, 2, 4)).ends_with("(paper 001); 2 more by their deadlines"));
        assert!(why("fifo", &ahead(2, 2, 2, 4)).starts_with("2 that had arrived later went first by their deadlines"));
        assert_eq!(why("fifo", &ahead(0, 0, 0, 0)), "nothing stood before it");
        assert!(why("own", &ahead(2, 0, 0, 4)).contains("its order is not known here"));
    }

    #[test]
    fn a_throttled_request_names_its_rule() {
        let rules = "nrs.tbf_rules=start slow client={193} rate=10\n";
        let of = |client: u64| {
            let r = Record { client: ClientId(client), ..Record::default() };
            Rule::of(&target("tbf", rules), &r, &ahead(0, 0, 0, 0))
        };
        let rule = of(0xc1);
        assert_eq!((rule.policy.as_str(), rule.rule.as_deref()), ("tbf", Some("slow (10 requests/s)")), "{rule:?}");
        assert!(rule.why.starts_with("the rule slow (10 requests/s) held it back: nothing"), "{}", rule.why);
        assert!(of(0xc2).why.contains("default (10000 requests/s)"), "{}", of(0xc2).why);
    }
}
