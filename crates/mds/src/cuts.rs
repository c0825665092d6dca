//! Cuts of striped files that are to happen: clients ask for the decision when every OST has their promise, OSTs when a client
//! is gone that had made one. Each cut is decided once, for whoever asks first; in memory only (`docs/internals/sizes.md`).
use std::collections::{BTreeMap, VecDeque};

use types::{ClientId, FsError};
use wire::mdt::CutRequest;

/// Decisions remembered; the oldest go first. 64 bytes each.
const DECISIONS_MAX: usize = 1 << 16;

/// A cut: its client and the client's number for it.
type Cut = (ClientId, u64);

/// What was decided.
#[derive(Default)]
pub(crate) struct Cuts {
    /// Whether it is carried out.
    decided: BTreeMap<Cut, bool>,
    /// The same cuts in the order of their decisions, and perhaps some that are forgotten.
    order: VecDeque<Cut>,
}

impl Cuts {
    /// A client has promised a cut to all OSTs that it concerns: it is to be carried out.
    ///
    /// # Errors
    /// `Stale` when an OST was told otherwise.
    pub fn decide(&mut self, client: ClientId, ask: &CutRequest) -> Result<(), FsError> {
        let over: Vec<Cut> = self.decided.range((client, 0)..(client, ask.unfinished)).map(|(c, _)| *c).collect();
        over.iter().for_each(|c| _ = self.decided.remove(c));
        if self.answer((client, ask.number), true) { Ok(()) } else { Err(FsError::Stale) }
    }
    /// Whether a cut is to be carried out, as an OST asks whose client is gone: if nothing was decided, it is not.
    pub fn ask(&mut self, client: ClientId, number: u64) -> bool {
        self.answer((client, number), false)
    }
    /// A client left that had nothing under way.
    pub fn left(&mut self, client: ClientId) {
        self.decided.retain(|(c, _), _| *c != client);
    }

    /// The decision about a cut: `wish`, if there was none.
    fn answer(&mut self, cut: Cut, wish: bool) -> bool {
        let decided = *self.decided.entry(cut).or_insert_with(|| {
            self.order.push_back(cut);
            wish
        });
        while self.order.len() > DECISIONS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.decided.remove(&oldest);
            }
        }
        // Cuts that are over leave their places at the front.
        while self.order.front().is_some_and(|c| !self.decided.contains_key(c)) {
            self.order.pop_front();
        }
        decided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(number: u64, unfinished: u64) -> CutRequest {
        CutRequest { number, unfinished, ..CutRequest::default() }
    }

    #[test]
    fn each_cut_is_decided_once() {
        let (mut cuts, one, other) = (Cuts::default(), ClientId(1), ClientId(2));
        assert_eq!(cuts.decide(one, &cut(5, 5)), Ok(()));
        assert_eq!(cuts.decide(one, &cut(5, 5)), Ok(()), "asked again");
        assert!(cuts.ask(one, 5) && cuts.ask(one, 5));
        assert!(!cuts.ask(one, 6) && !cuts.ask(other, 5));
        assert_eq!(cuts.decide(one, &cut(6, 5)), Err(FsError::Stale), "an OST was told otherwise");
        assert_eq!(cuts.decide(one, &cut(7, 7)), Ok(()));
        assert!(!cuts.ask(one, 5), "it was over: no OST has a promise of it");
        cuts.left(one);
        assert!(!cuts.ask(one, 7));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut cuts = Cuts::default();
        for number in 1..=2 * DECISIONS_MAX as u64 {
            assert!(!cuts.ask(ClientId(1), number));
        }
        assert_eq!((cuts.decided.len(), cuts.order.len()), (DECISIONS_MAX, DECISIONS_MAX));
        for number in 1..=2 * DECISIONS_MAX as u64 {
            assert_eq!(cuts.decide(ClientId(2), &cut(number, number)), Ok(()));
        }
        assert!(cuts.order.len() <= DECISIONS_MAX);
    }
}
