//! How what an id may still write is shared among OSTs: each may let it have so many bytes by itself, and asks for more.
//!
//! The sum of all shares is never more than the limit, but for what an OST holds already: so the limit holds although each OST
//! looks at its own figures only, and an OST that is away keeps what it had, and no more. What is left is given out in units
//! that become smaller with it; when too little is left, OSTs that do not use what they have are asked for it first.
//!
//! Source: the quota master and its slaves in Lustre (`qunit`). Differs: a share is one figure, with what is used in it.
use std::collections::BTreeMap;

use types::{MIB, OstIndex};
use wire::quota::UNLIMITED;

/// Most bytes that one question brings above what was asked for.
const UNIT_BYTES_MAX: u64 = 64 * MIB;
/// Least: what is left below is given as it is asked for.
const UNIT_BYTES_MIN: u64 = MIB;

/// One OST's part.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Share {
    /// Bytes that the id had there when that was heard last.
    pub used: u64,
    /// Bytes that it may have there; [`UNLIMITED`]: there is no limit.
    pub share: u64,
    /// The OST's number for having said so; what it said before counts no more. 0: nobody knows.
    pub told: u64,
}

impl Share {
    /// What counts against the limit.
    fn taken(&self) -> u64 {
        if self.share == UNLIMITED { self.used } else { self.share.max(self.used) }
    }
    /// Whether the OST has more than it uses.
    fn has_spare(&self) -> bool {
        self.share > self.used
    }
}

/// One id's bytes on all OSTs.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Shares(BTreeMap<OstIndex, Share>);

/// What an OST's question comes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Given {
    /// Its share from now on.
    Share(u64),
    /// These have what they do not use, and are to be asked for it first.
    Recall(Vec<OstIndex>),
}

impl Shares {
    /// Every OST that was heard of.
    pub fn iter(&self) -> impl Iterator<Item = (OstIndex, Share)> + '_ {
        self.0.iter().map(|(ost, share)| (*ost, *share))
    }
    /// One OST's part.
    pub fn of(&self, ost: OstIndex) -> Option<Share> {
        self.0.get(&ost).copied()
    }
    /// Bytes on all OSTs.
    pub fn used(&self) -> u64 {
        sum(self.0.values().map(|s| s.used))
    }
    /// An OST says what it has. False: it has said something else since.
    pub fn heard(&mut self, ost: OstIndex, told: Share) -> bool {
        let counts = self.of(ost).is_none_or(|s| told.told >= s.told) || types::planted!("share-told-late");
        if counts {
            self.0.insert(ost, told);
        }
        counts
    }
    /// There is such an OST; what it has is not known yet.
    pub fn meet(&mut self, ost: OstIndex) {
        self.0.entry(ost).or_insert(Share { share: UNLIMITED, ..Share::default() });
    }
    /// An OST has left.
    pub fn forget(&mut self, ost: OstIndex) {
        self.0.remove(&ost);
    }
    /// OSTs whose share is not what the limit asks for, and what it is to be: without a limit there are none; with one that was
    /// not before, or is too small for what was given out, each has what it uses and asks for more.
    pub fn wrong(&self, limit: Option<u64>) -> Vec<(OstIndex, u64)> {
        let Some(limit) = limit else {
            return self.iter().filter(|(_, s)| s.share != UNLIMITED).map(|(ost, _)| (ost, UNLIMITED)).collect();
        };
        let too_much = sum(self.0.values().map(Share::taken)) > limit;
        let wrong = |s: &Share| s.share == UNLIMITED || too_much && s.has_spare();
        self.iter().filter(|(_, s)| wrong(s)).map(|(ost, _)| (ost, 0)).collect()
    }
    /// An OST, which has `told`, wants `wanted` bytes besides. `recalled`: others were asked for what they do not use already.
    pub fn on_ask(&mut self, ost: OstIndex, told: Share, wanted: u64, limit: u64, recalled: bool) -> Given {
        if !self.heard(ost, told) {
            return Given::Share(told.share);
        }
        // An OST counts what it has given up until its store knows that: where the limit was lowered it does not get that back.
        let others = sum(self.iter().filter(|(o, _)| *o != ost).map(|(_, s)| s.taken()));
        let kept = told.share.min(limit.saturating_sub(others).max(told.used));
        let need = told.used.saturating_add(wanted).saturating_sub(kept);
        if need == 0 {
            return Given::Share(kept);
        }
        let taken = sum(self.0.values().map(Share::taken));
        let free = if kept < told.share { 0 } else { limit.saturating_sub(taken) };
        if free < need && !recalled {
            // Also those that had used it all: something may have been removed there since.
            let may_have = |(o, s): &(OstIndex, Share)| *o != ost && s.share != UNLIMITED && s.share > 0;
            let others: Vec<OstIndex> = self.iter().filter(may_have).map(|(o, _)| o).collect();
            if !others.is_empty() {
                return Given::Recall(others);
            }
        }
        let unit = (free / (4 * self.0.len() as u64)).clamp(UNIT_BYTES_MIN, UNIT_BYTES_MAX);
        if free == 0 {
            return Given::Share(kept);
        }
        let share = told.share.saturating_add(need.max(unit).min(free));
        self.heard(ost, Share { share, ..told });
        Given::Share(share)
    }
}

/// Bytes together; an OST says them, so that they may be any.
fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Rng;

    const A: OstIndex = OstIndex(0);
    const B: OstIndex = OstIndex(1);

    fn share(used: u64, share: u64) -> Share {
        Share { used, share, told: 0 }
    }

    #[test]
    fn what_osts_say_is_added_up_however_much_it_is() {
        let mut s = Shares::default();
        s.heard(A, share(u64::MAX - 1, u64::MAX - 1));
        s.heard(B, share(1 << 63, 1 << 63));
        assert_eq!(s.used(), u64::MAX);
        assert_eq!(s.wrong(Some(MIB)), vec![], "they use all that they have");
        let own = share(1 << 63, 1 << 63);
        assert_eq!(s.on_ask(B, own, MIB, 1 << 63, true), Given::Share(1 << 63));
    }

    #[test]
    fn what_an_ost_said_before_counts_no_more() {
        let mut s = Shares::default();
        let told = |share, told| Share { used: 1, share, told };
        assert!(s.heard(A, told(9, 5)) && !s.heard(A, told(20, 4)) && s.heard(A, told(7, 6)));
        assert_eq!(s.on_ask(A, told(20, 5), 30, MIB, false), Given::Share(20), "it has less by now, and hears of that");
        assert_eq!(s.of(A), Some(told(7, 6)));
    }

    #[test]
    fn what_an_ost_gives_up_and_still_says_it_does_not_get_back_above_the_limit() {
        let mut s = Shares::default();
        s.heard(A, share(5, 40));
        s.heard(B, share(5, 5));
        for wanted in [0, 10, 32, 100] {
            assert_eq!(s.on_ask(A, share(5, 40), wanted, 13, true), Given::Share(8), "{wanted}");
            assert_eq!(s.of(A), Some(share(5, 40)), "until it says less");
        }
        assert_eq!(s.on_ask(A, share(12, 40), 10, 13, true), Given::Share(12), "what is there stays");
        assert_eq!(s.on_ask(A, share(5, 40), 10, 45, true), Given::Share(40), "within the limit it does");
    }

    #[test]
    fn what_an_ost_gives_up_and_still_says_does_not_keep_others_from_being_asked_for_what_they_do_not_use() {
        let mut s = Shares::default();
        s.heard(A, share(10, 30));
        s.heard(B, share(0, 20));
        assert_eq!(s.on_ask(A, share(10, 30), 5, 25, false), Given::Recall(vec![B]));
        s.heard(B, share(0, 0));
        assert_eq!(s.on_ask(A, share(10, 30), 5, 25, true), Given::Share(25));
        assert_eq!(s.on_ask(A, share(10, UNLIMITED), 50, 25, true), Given::Share(25), "nor above the limit");
    }

    #[test]
    fn units_become_smaller_with_what_is_left_and_the_last_bytes_are_given_as_asked() {
        let mut s = Shares::default();
        s.heard(B, share(0, 0));
        assert_eq!(s.on_ask(A, share(0, 0), MIB, 1 << 40, false), Given::Share(UNIT_BYTES_MAX));
        let mut s = Shares::default();
        s.heard(B, share(0, 0));
        assert_eq!(s.on_ask(A, share(0, 0), MIB, 80 * MIB, false), Given::Share(10 * MIB));
        assert_eq!(s.on_ask(A, share(10 * MIB, 10 * MIB), MIB, 12 * MIB, false), Given::Share(11 * MIB));
        assert_eq!(s.on_ask(A, share(11 * MIB, 11 * MIB), 5 * MIB, 12 * MIB, false), Given::Share(12 * MIB));
        assert_eq!(
            s.on_ask(A, share(12 * MIB, 12 * MIB), 1, 12 * MIB, false),
            Given::Share(12 * MIB),
            "nothing is left"
        );
    }

    #[test]
    fn what_another_does_not_use_is_asked_for_before_anybody_is_refused() {
        let mut s = Shares::default();
        s.heard(B, share(MIB, 8 * MIB));
        assert_eq!(s.on_ask(A, share(0, 0), 5 * MIB, 10 * MIB, false), Given::Recall(vec![B]));
        s.heard(B, share(MIB, MIB));
        assert_eq!(s.on_ask(A, share(0, 0), 5 * MIB, 10 * MIB, true), Given::Share(5 * MIB));
        // One that does not answer keeps it.
        s.heard(B, share(MIB, 8 * MIB));
        assert_eq!(s.on_ask(A, share(0, 0), 5 * MIB, 10 * MIB, true), Given::Share(2 * MIB));
    }

    #[test]
    fn a_new_limit_leaves_each_ost_what_it_uses_and_none_sets_all_free() {
        let mut s = Shares::default();
        s.heard(A, share(5, UNLIMITED));
        s.heard(B, share(7, 9));
        assert_eq!(s.wrong(Some(100)), [(A, 0)]);
        assert_eq!(s.wrong(Some(10)), [(A, 0), (B, 0)], "below what is used");
        assert_eq!(s.wrong(None), [(B, UNLIMITED)]);
        assert_eq!(s.used(), 12);
    }

    #[test]
    fn whatever_osts_ask_the_shares_are_never_more_than_the_limit() {
        let mut rng = Rng::new(8);
        let (mut s, limit) = (Shares::default(), 100 * MIB);
        let mut truth: Vec<Share> = vec![Share::default(); 5];
        for _ in 0..20_000 {
            let i = rng.below(5) as usize;
            let (ost, wanted) = (OstIndex(i as u16), 1 + rng.below(9 * MIB));
            let mut recalled = false;
            let given = loop {
                match s.on_ask(ost, truth[i], wanted, limit, recalled) {
                    Given::Share(share) => break share,
                    Given::Recall(others) => {
                        for o in others {
                            let t = &mut truth[usize::from(o.0)];
                            t.share = t.used;
                            s.heard(o, *t);
                        }
                        recalled = true;
                    }
                }
            };
            truth[i].share = given;
            let free = limit - truth.iter().map(|t| t.used).sum::<u64>();
            assert!(given >= truth[i].used + wanted.min(free), "refused although there is space");
            assert!(truth.iter().map(|t| t.share).sum::<u64>() <= limit);
            truth[i].used = (truth[i].used + wanted).min(given);
            if rng.below(4) == 0 {
                let k = rng.below(5) as usize;
                truth[k].used -= rng.below(truth[k].used + 1);
            }
        }
    }
}
