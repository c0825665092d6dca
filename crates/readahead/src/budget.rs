//! The budget that all open files share: max-min fair among the files that hold something.

/// Bytes prefetched and unused over all files, and how many files hold them. One per client shard.
#[derive(Clone, Debug)]
pub struct Budget {
    limit_bytes: u64,
    held_bytes: u64,
    holders: u64,
    refused: u64,
}

impl Budget {
    /// A budget of `limit_bytes`.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Budget {
        Budget { limit_bytes, held_bytes: 0, holders: 0, refused: 0 }
    }
    /// Changes the limit; what is held beyond it is not taken away, only not renewed.
    pub fn set_limit(&mut self, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
    }
    /// The limit.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }
    /// Bytes prefetched and unused.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }
    /// Files that hold some.
    #[must_use]
    pub fn holders(&self) -> u64 {
        self.holders
    }
    /// Requests cut or refused for lack of budget.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }
    /// Bytes a file that holds `have` may add now: what is free, within its equal share.
    #[must_use]
    pub fn room(&self, have: u64) -> u64 {
        let holders = self.holders + u64::from(have == 0);
        let share = self.limit_bytes / holders.max(1);
        share.saturating_sub(have).min(self.limit_bytes.saturating_sub(self.held_bytes))
    }
    pub(crate) fn note_refused(&mut self) {
        self.refused += 1;
    }
    pub(crate) fn charge(&mut self, have: u64, bytes: u64) {
        debug_assert!(bytes > 0);
        self.holders += u64::from(have == 0);
        self.held_bytes += bytes;
    }
    /// Gives back `bytes` of the `have` that a file held.
    pub(crate) fn refund(&mut self, have: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        assert!(bytes <= have && bytes <= self.held_bytes, "a file gives back more than it holds");
        self.held_bytes -= bytes;
        self.holders -= u64::from(have == bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_gets_its_share_as_others_use_what_they_hold() {
        let mut b = Budget::new(100);
        assert_eq!(b.room(0), 100);
        b.charge(0, 100);
        assert_eq!((b.room(100), b.room(0)), (0, 0));
        b.refund(100, 60);
        assert_eq!(b.room(0), 50, "the newcomer's half is free");
        b.charge(0, 50);
        assert_eq!((b.room(40), b.room(50), b.holders()), (10, 0, 2));
        b.refund(50, 50);
        assert_eq!((b.holders(), b.room(40)), (1, 60));
    }
}
