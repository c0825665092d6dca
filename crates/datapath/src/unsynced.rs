//! What a target has answered and what of it is known to be on stable storage; what an fsync therefore asks for.
//!
//! Targets number their transactions and answer before they commit. Every answer says which transaction it tells of, and up to
//! which one all are committed. Answers arrive in any order, so both marks only ever grow within a target's life.

/// Transactions of one target, as its answers tell of them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Unsynced {
    answered: u64,
    stable: u64,
}

/// What an fsync does after everything it covers was written out and answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Fsync {
    /// Everything answered is on stable storage.
    Done,
    /// Only the target's answer to a sync says so.
    Ask,
}

impl Unsynced {
    /// The last transaction that an answer told of.
    #[must_use]
    pub const fn answered(&self) -> u64 {
        self.answered
    }
    /// Every transaction up to here is on stable storage.
    #[must_use]
    pub const fn stable(&self) -> u64 {
        self.stable
    }
    /// An answer tells of a transaction; 0: of none.
    pub fn on_answered(&mut self, transaction: u64) {
        if types::planted!("late-answer-counts-alone") {
            self.answered = transaction;
        }
        self.answered = self.answered.max(transaction);
    }
    /// Every transaction up to `stable` is on stable storage. False: that was known.
    #[must_use]
    pub fn on_committed(&mut self, stable: u64) -> bool {
        let grew = stable > self.stable;
        self.stable = self.stable.max(stable);
        grew
    }
    /// The target does not know this client any more, and says up to where its storage reaches now, which may be less than
    /// before.
    pub fn on_forgotten(&mut self, stable: u64) {
        self.stable = stable;
    }
    /// An fsync has written out all that it covers, and every write was answered.
    pub fn on_fsync(&self) -> Fsync {
        let known = self.stable >= self.answered || types::planted!("fsync-trusts-answers");
        if known { Fsync::Done } else { Fsync::Ask }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_fsync_asks_as_long_as_any_answer_is_not_known_to_be_stable() {
        let mut u = Unsynced::default();
        assert_eq!(u.on_fsync(), Fsync::Done, "nothing was changed");
        [7, 5, 0].into_iter().for_each(|t| u.on_answered(t));
        assert!(u.on_committed(6) && !u.on_committed(3) && !u.on_committed(6));
        assert_eq!((u.answered(), u.stable(), u.on_fsync()), (7, 6, Fsync::Ask));
        assert!(u.on_committed(7));
        assert_eq!(u.on_fsync(), Fsync::Done);
    }

    #[test]
    fn a_target_that_lost_what_it_had_is_asked_again() {
        let mut u = Unsynced::default();
        u.on_answered(9);
        assert!(u.on_committed(9));
        u.on_forgotten(4);
        assert_eq!((u.stable(), u.on_fsync()), (4, Fsync::Ask));
    }
}
