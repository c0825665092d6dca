//! Clients that are quiet: what they hold is written down, so that a restarted server can go on without the missing ones.
//!
//! A client that asked for nothing for a while, and is not amid a recovery, has nothing to replay; what it may tell again is what
//! it holds: locks, opens. A service writes that into its store. Before the client's next request that would make it hold
//! more, or change something, is carried out, the record is taken back, on stable storage: whoever is on record as quiet is so.
//! After a restart, when all who are back have replayed and all who are missing are quiet, service begins: requests wait for the
//! end of the recovery only where they touch what a missing client may hold. Nobody is evicted any earlier.
//!
//! This keeps the books; what is held, and where that is written down, is the service's.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rt::Rt;
use rt::sync::Event;
use types::{ClientId, Duration, Fid, Instant};

/// Files or objects that are held, each as the checksum of its identity: two that look the same make somebody wait.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct HeldSet(Vec<u32>);

impl HeldSet {
    /// Most of one client that should be written down, 4 bytes each; who holds more is waited for.
    pub const MAX: usize = 1 << 16;

    fn short(fid: Fid) -> u32 {
        wire::crc32c(&fid.to_key())
    }
    /// Of files, or of objects by their numbers.
    pub fn new(fids: impl Iterator<Item = Fid>) -> HeldSet {
        let all: BTreeSet<u32> = fids.map(HeldSet::short).collect();
        HeldSet(all.into_iter().collect())
    }
    /// As [`HeldSet::to_bytes`] wrote it; bytes behind the last whole entry count for nothing.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> HeldSet {
        let mut list: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        list.sort_unstable();
        HeldSet(list)
    }
    /// For a store: 4 bytes an entry, little endian, ascending.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|h| h.to_le_bytes()).collect()
    }
    /// Whether it may be held.
    #[must_use]
    pub fn has(&self, fid: Fid) -> bool {
        self.0.binary_search(&HeldSet::short(fid)).is_ok()
    }
    /// Whether there is more than should be written down.
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        self.0.len() > HeldSet::MAX
    }
}

/// Who is quiet, and who of them is missing after a restart. `H` is what a client holds.
pub struct Quiet<H> {
    /// On record as such.
    quiet: RefCell<BTreeMap<ClientId, H>>,
    /// When each of the others asked last.
    asked: RefCell<BTreeMap<ClientId, Instant>>,
    /// How many wait until the store knows that a client is not quiet any more.
    leaving: RefCell<BTreeMap<ClientId, usize>>,
    watched: Cell<bool>,
    /// Nobody waits for the missing any more: the service stops.
    ended: Cell<bool>,
    /// Whom service began without; they may still come back.
    missing: RefCell<BTreeMap<ClientId, H>>,
    /// Fewer are missing.
    changed: Event,
    /// Clients that held too much to be written down.
    limit_hits: Cell<u64>,
}

impl<H> Default for Quiet<H> {
    fn default() -> Quiet<H> {
        Quiet::new(BTreeMap::new())
    }
}

impl<H> Quiet<H> {
    /// As the store has it.
    #[must_use]
    pub fn new(quiet: BTreeMap<ClientId, H>) -> Quiet<H> {
        Quiet {
            quiet: RefCell::new(quiet),
            asked: RefCell::default(),
            leaving: RefCell::default(),
            watched: Cell::new(false),
            ended: Cell::new(false),
            missing: RefCell::default(),
            changed: Event::new(),
            limit_hits: Cell::new(0),
        }
    }
    /// (clients on record as quiet, clients that held too much for it so far).
    #[must_use]
    pub fn counters(&self) -> (usize, u64) {
        (self.quiet.borrow().len(), self.limit_hits.get())
    }
    /// A client held too much to be written down.
    pub fn note_limit_hit(&self) {
        self.limit_hits.set(self.limit_hits.get() + 1);
    }
    /// Whether a client is on record as quiet.
    #[must_use]
    pub fn is_on_record(&self, client: ClientId) -> bool {
        self.quiet.borrow().contains_key(&client)
    }
    /// All clients on record as quiet.
    #[must_use]
    pub fn on_record(&self) -> Vec<ClientId> {
        self.quiet.borrow().keys().copied().collect()
    }
    /// A client asks for something that may make it hold more, or changes something.
    pub fn note_asked(&self, client: ClientId, now: Instant) {
        self.asked.borrow_mut().insert(client, now);
    }
    /// Who asked for nothing in the time `idle`, and whose record nobody is taking back.
    #[must_use]
    pub fn candidates(&self, now: Instant, idle: Duration) -> Vec<ClientId> {
        let is_idle = |(client, at): &(&ClientId, &Instant)| now.since(**at) >= idle && !self.is_leaving(**client);
        self.asked.borrow().iter().filter(is_idle).map(|(c, _)| *c).collect()
    }
    /// Whether somebody is taking a client's record back.
    #[must_use]
    pub fn is_leaving(&self, client: ClientId) -> bool {
        self.leaving.borrow().contains_key(&client)
    }
    /// A client's record is about to be taken back in the store: until the answer is dropped it gets no new one, which the end of
    /// that would hide. [`Quiet::take_off_record`] says that it is done.
    pub fn leaves(&self, client: ClientId) -> Leaving<'_, H> {
        *self.leaving.borrow_mut().entry(client).or_default() += 1;
        Leaving { books: self, client }
    }
    /// A candidate is not one any more, until it asks again.
    pub fn dismiss(&self, client: ClientId) {
        self.asked.borrow_mut().remove(&client);
    }
    /// What a client holds is on record.
    pub fn put_on_record(&self, client: ClientId, held: H) {
        self.quiet.borrow_mut().insert(client, held);
    }
    /// What a client held is not on record any more, on stable storage.
    pub fn take_off_record(&self, client: ClientId) {
        self.quiet.borrow_mut().remove(&client);
    }
    /// A client is gone.
    pub fn forget(&self, client: ClientId) {
        self.take_off_record(client);
        self.dismiss(client);
        self.came_back(client);
    }
    /// Nobody waits any longer: the service stops.
    pub fn end_waits(&self) {
        self.ended.set(true);
        self.changed.notify();
    }
    /// Everybody is back or evicted.
    pub fn nobody_is_missing(&self) {
        self.missing.borrow_mut().clear();
        self.changed.notify();
    }
    /// A missing client has told everything that it holds, or will tell nothing any more.
    pub fn came_back(&self, client: ClientId) {
        if self.missing.borrow_mut().remove(&client).is_some() {
            self.changed.notify();
        }
    }
    /// Whether service began without somebody.
    #[must_use]
    pub fn is_somebody_missing(&self) -> bool {
        !self.missing.borrow().is_empty()
    }
    /// Whether what a missing client holds is such that `f`.
    pub fn any_missing(&self, f: impl FnMut(&H) -> bool) -> bool {
        self.missing.borrow().values().any(f)
    }
    /// Waits until fewer are missing, if anybody is.
    pub async fn fewer_missing(&self) {
        let changed = self.changed.wait();
        if self.is_somebody_missing() && !self.ended.get() {
            changed.await;
        }
    }
    /// Waits while what a missing client holds is such that `f`, or until the service stops.
    pub async fn wait_while_missing(&self, mut f: impl FnMut(&H) -> bool) {
        loop {
            let changed = self.changed.wait();
            if self.ended.get() || !self.any_missing(&mut f) {
                return;
            }
            changed.await;
        }
    }
}

/// See [`Quiet::leaves`].
pub struct Leaving<'a, H> {
    books: &'a Quiet<H>,
    client: ClientId,
}

impl<H> Drop for Leaving<'_, H> {
    fn drop(&mut self) {
        let mut leaving = self.books.leaving.borrow_mut();
        match leaving.get_mut(&self.client).filter(|n| **n > 1) {
            Some(n) => *n -= 1,
            None => drop(leaving.remove(&self.client)),
        }
    }
}

impl<H: Clone> Quiet<H> {
    /// What a client holds that is on record as quiet.
    pub fn held_on_record(&self, client: ClientId) -> Option<H> {
        self.quiet.borrow().get(&client).cloned()
    }
    /// Service begins without these, which are quiet; they may come back to what they hold.
    pub fn begin_without(&self, missing: &[ClientId]) {
        let quiet = self.quiet.borrow();
        *self.missing.borrow_mut() = missing.iter().filter_map(|c| Some((*c, quiet.get(c)?.clone()))).collect();
    }
}

/// Has `service` look for those who have become quiet, every `after`, as long as there are others. `note` writes down what
/// [`Quiet::candidates`] hold; `false` when the service works no longer.
pub fn watch_quiet<S: 'static, H: 'static>(
    service: &Rc<S>,
    rt: &Rt,
    after: Duration,
    books: fn(&S) -> &Quiet<H>,
    note: fn(&Rc<S>) -> bool,
) {
    if books(service).watched.replace(true) {
        return;
    }
    let (me, clock) = (Rc::downgrade(service), rt.clone());
    rt.spawn(async move {
        loop {
            clock.sleep(after).await;
            let Some(me) = me.upgrade().filter(note) else { return };
            if books(&me).asked.borrow().is_empty() {
                books(&me).watched.set(false);
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_record_says_is_held_is_what_was_written_down() {
        let fid = |n| Fid::new(7, n);
        let held = HeldSet::new([fid(3), fid(1), fid(3)].into_iter());
        assert_eq!(HeldSet::of_bytes(&held.to_bytes()), held);
        assert_eq!(held.to_bytes().len(), 8, "each once");
        assert!(held.has(fid(3)) && held.has(fid(1)) && !held.has(fid(2)));
        assert!(!HeldSet::of_bytes(&[1, 2, 3]).has(fid(1)), "no whole entry");
    }

    #[test]
    fn whoever_asks_again_is_no_candidate_and_only_who_is_on_record_is_missed() {
        let (one, other) = (ClientId(1), ClientId(2));
        let quiet: Quiet<u8> = Quiet::default();
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        quiet.note_asked(one, at(0));
        quiet.note_asked(other, at(0));
        quiet.note_asked(other, at(4));
        assert_eq!(quiet.candidates(at(5), Duration::from_secs(5)), [one]);
        quiet.dismiss(one);
        quiet.put_on_record(one, 7);
        assert!(quiet.candidates(at(5), Duration::from_secs(5)).is_empty());
        quiet.put_on_record(other, 8);
        quiet.begin_without(&[one, other, ClientId(3)]);
        assert!(quiet.any_missing(|held| *held == 7) && !quiet.any_missing(|held| *held > 8));
        quiet.came_back(one);
        assert!(!quiet.any_missing(|held| *held == 7) && quiet.is_somebody_missing() && quiet.is_on_record(one));
        quiet.forget(other);
        assert!(!quiet.is_somebody_missing());
        quiet.forget(one);
        assert_eq!(quiet.counters(), (0, 0));
    }

    #[test]
    fn who_leaves_the_record_gets_no_new_one_before_that_is_done() {
        let quiet: Quiet<u8> = Quiet::default();
        let (client, idle) = (ClientId(1), Duration::from_secs(5));
        let later = Instant::ZERO + Duration::from_secs(60);
        quiet.note_asked(client, Instant::ZERO);
        let both = [quiet.leaves(client), quiet.leaves(client)];
        for leaving in both {
            assert!(quiet.candidates(later, idle).is_empty() && quiet.is_leaving(client));
            drop(leaving);
        }
        assert_eq!(quiet.candidates(later, idle), [client]);
    }

    #[test]
    fn nobody_waits_for_the_missing_of_a_service_that_stops() {
        let world = simworld::TestWorld::new(1, 1 << 20);
        let quiet: Quiet<u8> = Quiet::new(BTreeMap::from([(ClientId(1), 7)]));
        quiet.begin_without(&[ClientId(1)]);
        world.run(rt::sync::join_all(
            vec![0, 1, 2]
                .into_iter()
                .map(async |who| match who {
                    0 => quiet.wait_while_missing(|held| *held == 7).await,
                    1 => quiet.fewer_missing().await,
                    _ => {
                        world.rt().sleep(Duration::from_secs(1)).await;
                        quiet.end_waits();
                    }
                })
                .collect(),
        ));
        world.run(quiet.wait_while_missing(|_| true));
    }
}
