//! What would be lost if a client ended as it is.
use std::fmt;

/// What servers do not have on stable storage yet of what programs were told is done.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Unsettled {
    /// Bytes that are not written out.
    pub bytes: u64,
    /// Objects to which they belong.
    pub objects: usize,
    /// Requests that are not answered.
    pub requests: usize,
    /// Targets that have answered changes and not committed them.
    pub uncommitted: Vec<String>,
}

/// As it goes into a sentence; nothing, if all is settled.
impl fmt::Display for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.objects > 0 {
            parts.push(format!("{} of {} object(s)", types::format_size(self.bytes), self.objects));
        }
        if self.requests > 0 {
            parts.push(format!("{} request(s) without an answer", self.requests));
        }
        if !self.uncommitted.is_empty() {
            parts.push(format!("changes that {} answered and did not commit", self.uncommitted.join(", ")));
        }
        f.write_str(&parts.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_lost_is_told_in_words_and_nothing_is_where_nothing_would_be() {
        assert_eq!(Unsettled::default().to_string(), "");
        let uncommitted = vec!["fs-MDT0000".to_string(), "fs-OST0001".to_string()];
        let all = Unsettled { bytes: 3 << 20, objects: 2, requests: 1, uncommitted };
        assert_eq!(
            all.to_string(),
            "3.0M of 2 object(s) and 1 request(s) without an answer and changes that fs-MDT0000, fs-OST0001 answered and did not commit"
        );
    }
}
