//! What can be set: a factor, where its value lives, today's value, and the values that are tried instead.
use serde::Serialize;

/// Where a factor's value lives, which says how it is set and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The layout of new files: stripe count.
    StripeCount,
    /// The layout of new files: stripe size, bytes.
    StripeSize,
    /// A parameter of this mount.
    Mount,
    /// A parameter of the servers: it acts on everybody's requests.
    Server,
    /// What the program itself does: how many processes it has.
    Processes,
    /// What the program itself does: bytes of one read or write.
    Transfer,
}

impl Place {
    /// Whether the program that does the work has to change, and not the cluster.
    #[must_use]
    pub fn is_the_programs(self) -> bool {
        matches!(self, Place::Processes | Place::Transfer)
    }
    /// Whether it is part of a layout.
    #[must_use]
    pub fn is_layout(self) -> bool {
        matches!(self, Place::StripeCount | Place::StripeSize)
    }
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Factor {
    /// As `--only` and the tables have it.
    pub name: &'static str,
    /// Where it lives.
    pub place: Place,
    /// The parameter's pattern; for layouts the option of `setstripe`; for programs a word.
    pub key: &'static str,
    /// Today's value.
    pub now: String,
    /// Values that are tried, the nearest to today's first.
    pub candidates: Vec<String>,
}

/// A value for each factor, by the factor's index.
pub type Choice = Vec<String>;

impl Factor {
    /// With the candidates that differ from today's value, in the order of their distance from it when both are numbers.
    #[must_use]
    pub fn new(name: &'static str, place: Place, key: &'static str, now: String, all: &[String]) -> Factor {
        let mut candidates: Vec<String> = all.iter().filter(|c| **c != now).cloned().collect();
        candidates.dedup();
        if let Ok(here) = now.parse::<f64>() {
            // Sizes double: near is what has a ratio near 1. -1 means all, beyond every number.
            let place_of =
                |t: &str| t.parse::<f64>().map_or(f64::INFINITY, |x| if x < 0.0 { 1e18 } else { x.max(0.5) });
            let here = place_of(&here.to_string());
            let far = |t: &String| (place_of(t) / here).ln().abs();
            candidates.sort_by(|a, b| far(a).total_cmp(&far(b)));
        }
        Factor { name, place, key, now, candidates }
    }
}

/// Today's values.
#[must_use]
pub fn today(factors: &[Factor]) -> Choice {
    factors.iter().map(|f| f.now.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_tried_from_todays_value_outwards() {
        let all: Vec<String> = ["2", "4", "8", "16", "32", "64"].map(String::from).to_vec();
        let f = Factor::new("rpcs", Place::Mount, "k", "8".into(), &all);
        assert_eq!(f.candidates, ["4", "16", "2", "32", "64"]);
        let words: Vec<String> = ["lru", "arc", "s3"].map(String::from).to_vec();
        assert_eq!(Factor::new("p", Place::Mount, "k", "arc".into(), &words).candidates, ["lru", "s3"]);
        let counts: Vec<String> = ["1", "2", "-1"].map(String::from).to_vec();
        assert_eq!(Factor::new("c", Place::StripeCount, "-c", "1".into(), &counts).candidates, ["2", "-1"]);
        assert_eq!(today(&[f]), ["8"]);
    }
}
