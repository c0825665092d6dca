//! Cuts of striped files that are to happen: clients ask for the decision when every OST has their promise, OSTs when a client
//! does not finish one that it had promised. Each cut is decided once, for whoever asks first, and the decision is in the store
//! before anybody hears of it. It is forgotten when its client says that every OST has committed the cut
//! (`docs/internals/sizes.md`).
use std::cmp::Reverse;
use std::collections::BTreeMap;

use types::{ClientId, Fid, FsError};
use wire::mdt::CutRequest;
use wire::ost::AskCutCallback;

use crate::keys;
use crate::mds::Mds;
use crate::record::CutRow;
use crate::service::Outcome;
use crate::store::Change;

/// Decisions remembered. 96 bytes each here, and as many in the store. Where there are more, the client that has the most loses its
/// oldest: one that decides without end, under whatever numbers, pushes out its own, and no OST that asks for another's is told wrong.
const DECISIONS_MAX: usize = 1 << 16;

/// A cut: its client and the client's number for it.
type Cut = (ClientId, u64);

/// What was decided.
#[derive(Default)]
pub(crate) struct Cuts {
    /// Whether each is carried out, and its place in the order.
    decided: BTreeMap<Cut, (bool, u64)>,
    /// Each client's numbers in the order of their decisions; who has none is not in it.
    of_clients: BTreeMap<ClientId, BTreeMap<u64, u64>>,
    /// The last place in the order that was given.
    last_place: u64,
    /// Decisions that were forgotten for want of room.
    limit_hits: u64,
}

impl Cuts {
    /// As the store has them.
    pub fn new(rows: impl IntoIterator<Item = (Cut, CutRow)>) -> Cuts {
        let mut cuts = Cuts::default();
        for (cut, row) in rows {
            cuts.insert(cut, row.decided, row.order);
        }
        cuts
    }
    /// What was decided about a cut, if anything was.
    pub fn decision(&self, client: ClientId, number: u64) -> Option<bool> {
        self.decided.get(&(client, number)).map(|(decided, _)| *decided)
    }
    /// What [`Cuts::decide`] would change in the store.
    pub fn changes_of(&self, client: ClientId, ask: &CutRequest) -> Vec<Change> {
        let over = |(c, _): (&Cut, &(bool, u64))| (keys::cut(c.0, c.1), None);
        let forgotten = self.decided.range((client, 0)..(client, ask.unfinished));
        let mut changes: Vec<Change> = forgotten.map(over).collect();
        if !self.decided.contains_key(&(client, ask.number)) {
            // Where some are forgotten it is full no more.
            let is_full = self.decided.len() - changes.len() >= DECISIONS_MAX;
            let out = is_full.then(|| self.next_out()).flatten();
            changes.extend(out.map(|c| (keys::cut(c.0, c.1), None)));
            let row = CutRow { decided: true, order: self.next_place(), fid: ask.fid };
            changes.push((keys::cut(client, ask.number), Some(wire::encode(&row))));
        }
        changes
    }
    fn next_place(&self) -> u64 {
        self.last_place.saturating_add(1)
    }
    /// Which decision makes room for another one: of the client that has the most the oldest, and among such clients the oldest.
    fn next_out(&self) -> Option<Cut> {
        let weight = |(client, cuts): (&ClientId, &BTreeMap<u64, u64>)| {
            let (place, number) = cuts.first_key_value()?;
            Some((cuts.len(), Reverse(*place), (*client, *number)))
        };
        self.of_clients.iter().filter_map(weight).max().map(|(_, _, cut)| cut)
    }
    /// A client has promised a cut to all OSTs that it concerns: it is to be carried out. Whether it is, and what changes in the
    /// store.
    pub fn decide(&mut self, client: ClientId, ask: &CutRequest) -> (bool, Vec<Change>) {
        let mut changes = Vec::new();
        self.forget((client, 0), (client, ask.unfinished), &mut changes);
        (self.answer((client, ask.number), true, ask.fid, &mut changes), changes)
    }
    /// Whether a cut is to be carried out, as an OST asks whose client does not finish it: if nothing was decided, it is not.
    pub fn ask(&mut self, client: ClientId, number: u64) -> (bool, Vec<Change>) {
        let mut changes = Vec::new();
        (self.answer((client, number), false, Fid::ZERO, &mut changes), changes)
    }
    /// A client left that had nothing under way.
    pub fn left(&mut self, client: ClientId) -> Vec<Change> {
        let mut changes = Vec::new();
        self.forget((client, 0), (client, u64::MAX), &mut changes);
        changes
    }
    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.decided.len()
    }

    /// Decisions that were forgotten for want of room so far.
    pub fn limit_hits(&self) -> u64 {
        self.limit_hits
    }

    fn forget(&mut self, from: Cut, to: Cut, changes: &mut Vec<Change>) {
        let over: Vec<Cut> = self.decided.range(from..to.max(from)).map(|(c, _)| *c).collect();
        over.into_iter().for_each(|c| self.remove(c, changes));
    }
    fn remove(&mut self, cut: Cut, changes: &mut Vec<Change>) {
        let Some((_, place)) = self.decided.remove(&cut) else { return };
        if let Some(cuts) = self.of_clients.get_mut(&cut.0) {
            cuts.remove(&place);
            if cuts.is_empty() {
                self.of_clients.remove(&cut.0);
            }
        }
        changes.push((keys::cut(cut.0, cut.1), None));
    }
    fn insert(&mut self, cut: Cut, decided: bool, place: u64) {
        self.decided.insert(cut, (decided, place));
        self.of_clients.entry(cut.0).or_default().insert(place, cut.1);
        self.last_place = self.last_place.max(place);
    }

    /// The decision about a cut: `wish`, if there was none.
    fn answer(&mut self, cut: Cut, wish: bool, fid: Fid, changes: &mut Vec<Change>) -> bool {
        if let Some((decided, _)) = self.decided.get(&cut) {
            return *decided;
        }
        if self.decided.len() >= DECISIONS_MAX
            && let Some(out) = self.next_out()
        {
            self.limit_hits += 1;
            self.remove(out, changes);
        }
        let place = self.next_place();
        self.insert(cut, wish, place);
        let row = CutRow { decided: wish, order: place, fid };
        changes.push((keys::cut(cut.0, cut.1), Some(wire::encode(&row))));
        wish
    }
}

impl Mds {
    pub(crate) async fn decide_cut(&self, client: ClientId, body: &[u8]) -> Result<Outcome, FsError> {
        let q: CutRequest = wire::decode(body).map_err(FsError::from)?;
        let decision = self.cuts.borrow_mut().decide(client, &q);
        if self.stored(decision).await? { Ok(Outcome::plain(&())) } else { Err(FsError::Stale) }
    }
    /// What an OST is told of a cut.
    pub(crate) async fn ask_cut(&self, q: &AskCutCallback) -> Result<bool, FsError> {
        let decision = self.cuts.borrow_mut().ask(q.client, q.number);
        self.stored(decision).await
    }
    /// A decision, when it is on stable storage.
    async fn stored(&self, (decided, changes): (bool, Vec<Change>)) -> Result<bool, FsError> {
        if types::planted!("decision-not-stored") {
            return Ok(decided);
        }
        if !changes.is_empty() {
            self.store.apply(changes, 0, 0);
        }
        // Also for whoever asks again while the first answer waits.
        self.store.sync().await?;
        Ok(decided)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(number: u64, unfinished: u64) -> CutRequest {
        CutRequest { number, unfinished, ..CutRequest::default() }
    }

    /// What a store has after these changes.
    #[derive(Default)]
    struct Store(BTreeMap<Cut, CutRow>);
    impl Store {
        fn take(&mut self, (decided, changes): (bool, Vec<Change>)) -> bool {
            for (key, value) in changes {
                let cut = keys::cut_of(&key).unwrap();
                match value {
                    Some(row) => drop(self.0.insert(cut, wire::decode(&row).unwrap())),
                    None => assert!(self.0.remove(&cut).is_some()),
                }
            }
            decided
        }
    }

    #[test]
    fn each_cut_is_decided_once_also_over_restarts() {
        let (mut cuts, mut store, one, other) = (Cuts::default(), Store::default(), ClientId(1), ClientId(2));
        assert!(store.take(cuts.decide(one, &cut(5, 5))));
        assert!(store.take(cuts.decide(one, &cut(5, 5))), "asked again");
        assert!(store.take(cuts.ask(one, 5)) && store.take(cuts.ask(one, 5)));
        assert!(!store.take(cuts.ask(one, 6)) && !store.take(cuts.ask(other, 5)));
        let mut cuts = Cuts::new(store.0.clone());
        assert!(!store.take(cuts.decide(one, &cut(6, 5))), "an OST was told otherwise");
        assert!(store.take(cuts.decide(one, &cut(7, 6))));
        let mut cuts = Cuts::new(store.0.clone());
        assert!(!store.take(cuts.ask(one, 5)), "it was over: no OST has a promise of it");
        store.take((true, cuts.left(one)));
        assert_eq!(store.0.keys().copied().collect::<Vec<_>>(), [(other, 5)]);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_oldest_goes_first() {
        let (mut cuts, mut store) = (Cuts::default(), Store::default());
        for number in 1..=DECISIONS_MAX as u64 + 2 {
            assert!(store.take(cuts.decide(ClientId(1), &cut(number, 1))));
        }
        assert_eq!(
            (cuts.decided.len(), cuts.of_clients[&ClientId(1)].len(), store.0.len()),
            (DECISIONS_MAX, DECISIONS_MAX, DECISIONS_MAX)
        );
        let mut cuts = Cuts::new(store.0.clone());
        assert!(!cuts.ask(ClientId(1), 2).0 && cuts.ask(ClientId(1), 4).0);
        assert!(!cuts.ask(ClientId(1), 3).0, "the oldest made room for an answer");
    }

    #[test]
    fn a_client_that_decides_without_end_pushes_out_its_own_decisions_and_nobody_elses() {
        let (mut cuts, mut store, one, other) = (Cuts::default(), Store::default(), ClientId(1), ClientId(2));
        assert!(store.take(cuts.decide(one, &cut(7, 7))));
        for number in 0..2 * DECISIONS_MAX as u64 {
            assert!(store.take(cuts.decide(other, &cut(u64::MAX - number, 0))));
        }
        // Whoever has less is not in its way either, also where an exchange of layouts says what is to change.
        let third = cut(1, 1);
        let told = cuts.changes_of(ClientId(3), &third);
        let (decided, changes) = cuts.decide(ClientId(3), &third);
        assert_eq!((decided, &told), (true, &changes));
        assert!(store.take((decided, changes)));
        assert_eq!(store.0.len(), DECISIONS_MAX);
        let mut cuts = Cuts::new(store.0.clone());
        assert!(store.take(cuts.ask(one, 7)) && store.take(cuts.ask(ClientId(3), 1)));
        // Where some are over nothing else goes.
        let over = CutRequest { number: 5, unfinished: u64::MAX - 100_000, ..third };
        let told = cuts.changes_of(other, &over);
        assert_eq!(told, cuts.decide(other, &over).1);
    }
}
