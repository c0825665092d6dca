//! Promises of cuts: which objects clients are about to cut together with other OSTs' objects of the same file.
//!
//! A client promises the cut of each object under its write lock, lets the metadata server decide, and carries the cuts out. A
//! promise is in the store before it is answered, and goes in the commit of its cut. One whose client is gone, or has given its
//! lock back without the cut, is in doubt: nobody is given a lock on the object until the metadata server has said
//! whether the cut was decided (`ost/cuts.rs`, `docs/internals/sizes.md`). A cut that is done and not committed keeps
//! others away, too: what they wrote could come back without it, and would be cut away when it is done again.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use rt::Rt;
use rt::sync::Event;
use types::{ClientId, Duration, FsError, ObjectId, Transno};

use crate::store::{ObjectStore, Promise};

/// Promises of one target at a time; 64 bytes each, and as many of the index.
const PROMISES_MAX: usize = 1 << 16;
/// Promises of one client at a time that are open or in doubt: a mount has as many as cuts of its programs are under way, each with one
/// object here, so that this many wait in truncate(2) or open(2) at once before one comes again. Else one client would keep everybody
/// from cutting anything. Cuts that are done do not count: they end with the next commit, whatever their client does.
const PROMISES_OF_CLIENT_MAX: usize = 1 << 10;
/// Pause before a commit is asked for again that waits for space.
const COMMIT_PAUSE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Its client has the lock and is to carry it out.
    Open,
    /// Nobody knows whether it is to be carried out.
    InDoubt,
    /// It was carried out by this transaction, which may not be committed.
    Kept(Transno),
}

/// What is to be done about a promise that is in doubt.
type OnDoubt = Box<dyn Fn(ObjectId, Promise)>;

/// All promises.
#[derive(Default)]
struct Table {
    all: BTreeMap<ObjectId, (Promise, State)>,
    /// Objects of the promises that are not carried out, by client: everything that a client gives back is compared with its own.
    of_clients: BTreeMap<ClientId, BTreeSet<ObjectId>>,
    in_doubt: usize,
}

impl Table {
    fn get(&self, object: ObjectId) -> Option<&(Promise, State)> {
        self.all.get(&object)
    }
    fn put(&mut self, object: ObjectId, promise: Promise, state: State) {
        self.take(object);
        self.all.insert(object, (promise, state));
        self.in_doubt += usize::from(state == State::InDoubt);
        if !matches!(state, State::Kept(_)) {
            self.of_clients.entry(promise.client).or_default().insert(object);
        }
    }
    fn take(&mut self, object: ObjectId) {
        let Some((promise, state)) = self.all.remove(&object) else { return };
        self.in_doubt -= usize::from(state == State::InDoubt);
        if let Some(own) = self.of_clients.get_mut(&promise.client) {
            own.remove(&object);
            if own.is_empty() {
                self.of_clients.remove(&promise.client);
            }
        }
    }
    /// Whether there is room for one more.
    fn takes(&self, object: ObjectId, client: ClientId) -> bool {
        let own = self.of_clients.get(&client);
        let is_own = own.is_some_and(|own| own.contains(&object));
        let fits = self.all.len() < PROMISES_MAX || self.all.contains_key(&object);
        fits && (is_own || own.is_none_or(|own| own.len() < PROMISES_OF_CLIENT_MAX))
    }
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Promises {
    entries: RefCell<Table>,
    /// Objects of which a cut was carried out, in that order, and perhaps some of which that is over.
    kept: RefCell<VecDeque<(Transno, ObjectId)>>,
    ended: Rc<Event>,
    /// Promises refused for want of room.
    limit_hits: Cell<u64>,
    on_doubt: RefCell<Option<OnDoubt>>,
}

impl Promises {
    /// Says who settles promises that are in doubt.
    pub fn on_doubt(&self, settle: OnDoubt) {
        *self.on_doubt.borrow_mut() = Some(settle);
    }
    /// A promise that the store remembers; its client may come back.
    pub fn recall(&self, object: ObjectId, promise: Promise) {
        self.entries.borrow_mut().put(object, promise, State::Open);
    }
    /// A client promises a cut, under a lock that keeps everybody else from making one for the object.
    ///
    /// # Errors
    /// `Overloaded` when there are too many, or too many of this client; `Stale` while the object is in doubt.
    pub fn make(&self, object: ObjectId, promise: Promise, committed: Transno) -> Result<(), FsError> {
        self.forget_kept(committed);
        let mut entries = self.entries.borrow_mut();
        if !entries.takes(object, promise.client) {
            self.limit_hits.set(self.limit_hits.get() + 1);
            return Err(FsError::Overloaded);
        }
        if entries.get(object).is_some_and(|(_, s)| *s == State::InDoubt) {
            return Err(FsError::Stale);
        }
        entries.put(object, promise, State::Open);
        Ok(())
    }
    /// Promises refused for want of room so far.
    pub fn limit_hits(&self) -> u64 {
        self.limit_hits.get()
    }
    /// What its client is to carry out.
    pub fn open(&self, object: ObjectId) -> Option<Promise> {
        self.entries.borrow().get(object).filter(|(_, s)| *s == State::Open).map(|(p, _)| *p)
    }
    /// Everything that clients are to carry out.
    pub fn all_open(&self) -> Vec<(ObjectId, Promise)> {
        let entries = self.entries.borrow();
        entries.all.iter().filter(|(_, (_, s))| *s == State::Open).map(|(o, (p, _))| (*o, *p)).collect()
    }
    /// What a client is to carry out.
    pub fn open_of(&self, client: ClientId) -> Vec<(ObjectId, Promise)> {
        let entries = self.entries.borrow();
        let own = entries.of_clients.get(&client).into_iter().flatten();
        let of = |o: &ObjectId| entries.get(*o).filter(|(_, s)| *s == State::Open).map(|(p, _)| (*o, *p));
        own.filter_map(of).collect()
    }
    /// A promise is over that nobody will ever carry out, or that was carried out and is committed.
    pub fn end(&self, object: ObjectId, promise: &Promise) {
        let mut entries = self.entries.borrow_mut();
        if entries.get(object).is_some_and(|(p, _)| p == promise) {
            entries.take(object);
            self.ended.notify();
        }
    }
    /// It was carried out by a transaction.
    pub fn kept(&self, object: ObjectId, promise: &Promise, transno: Transno, committed: Transno) {
        self.forget_kept(committed);
        let mut entries = self.entries.borrow_mut();
        if entries.get(object).is_some_and(|(p, s)| p == promise && *s == State::Open) {
            entries.put(object, *promise, State::Kept(transno));
            self.kept.borrow_mut().push_back((transno, object));
        }
    }
    fn forget_kept(&self, committed: Transno) {
        let (mut kept, mut entries) = (self.kept.borrow_mut(), self.entries.borrow_mut());
        while let Some((_, object)) = kept.pop_front_if(|(t, _)| *t <= committed) {
            if entries.get(object).is_some_and(|(_, s)| matches!(s, State::Kept(t) if *t <= committed)) {
                entries.take(object);
            }
        }
    }
    /// Its client is gone, or has no lock any more under which it could carry it out.
    pub fn doubt(&self, object: ObjectId, promise: &Promise) {
        let mut entries = self.entries.borrow_mut();
        if !entries.get(object).is_some_and(|(p, s)| p == promise && *s == State::Open) {
            return;
        }
        entries.put(object, *promise, State::InDoubt);
        drop(entries);
        if let Some(settle) = &*self.on_doubt.borrow() {
            settle(object, *promise);
        }
    }
    /// The client's session is over.
    pub fn on_gone(&self, client: ClientId) {
        self.open_of(client).iter().for_each(|(object, promise)| self.doubt(*object, promise));
    }
    /// Whether nobody knows if it is to be cut.
    pub fn is_in_doubt(&self, object: ObjectId) -> bool {
        self.entries.borrow().get(object).is_some_and(|(_, s)| *s == State::InDoubt)
    }
    /// Objects that are in doubt.
    pub fn in_doubt(&self) -> usize {
        self.entries.borrow().in_doubt
    }
    /// Whether others have to wait: the object is in doubt, or its cut not committed.
    pub fn is_unsettled(&self, object: ObjectId, committed: Transno) -> bool {
        self.entries.borrow().get(object).is_some_and(|(_, s)| match s {
            State::Open => false,
            State::InDoubt => true,
            State::Kept(transno) => *transno > committed,
        })
    }
    /// Waits until nobody has promised that the object goes: it is gone then, or stays.
    pub async fn not_leaving(&self, object: ObjectId) {
        loop {
            let ended = self.ended.wait();
            if !self.entries.borrow().get(object).is_some_and(|(p, _)| p.removes()) {
                return;
            }
            ended.await;
        }
    }
    /// Waits until nobody doubts how the object is, and nothing takes its cut back.
    pub async fn settled(&self, rt: &Rt, store: &dyn ObjectStore, object: ObjectId) {
        while self.is_unsettled(object, store.last_committed()) {
            if self.is_in_doubt(object) {
                self.ended.wait().await;
                continue;
            }
            match store.sync().await {
                Ok(()) => {}
                Err(FsError::NoSpace) => rt.sleep(COMMIT_PAUSE).await,
                // The store has failed: whoever waits gets nothing from it anyway.
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use types::Fid;

    use super::*;

    const NONE: Transno = Transno(0);

    #[test]
    fn a_promise_ends_once_and_only_itself() {
        let promises = Promises::default();
        let (one, other) = (ObjectId(Fid::new(1, 1)), ObjectId(Fid::new(1, 2)));
        let first = Promise { client: ClientId(7), number: 1, size: 0 };
        let second = Promise { number: 2, ..first };
        assert_eq!(promises.make(one, first, NONE), Ok(()));
        assert_eq!(promises.make(one, second, NONE), Ok(()), "a later one takes its place");
        promises.end(one, &first);
        assert_eq!(promises.open(one), Some(second));
        let of_another = Promise { client: ClientId(8), ..first };
        assert_eq!(promises.make(other, of_another, NONE), Ok(()));
        let doubted = Rc::new(RefCell::new(Vec::new()));
        let into = doubted.clone();
        promises.on_doubt(Box::new(move |o, p| into.borrow_mut().push((o, p))));
        promises.on_gone(ClientId(7));
        promises.on_gone(ClientId(7));
        assert_eq!(*doubted.borrow(), [(one, second)], "once");
        assert_eq!(promises.make(one, first, NONE), Err(FsError::Stale), "not while it is in doubt");
        promises.kept(one, &second, Transno(9), NONE);
        assert!(promises.is_in_doubt(one), "its client has nothing to say any more");
        promises.end(one, &second);
        assert_eq!((promises.open(one), promises.in_doubt()), (None, 0));
        assert_eq!(promises.all_open(), [(other, of_another)]);
    }

    #[test]
    fn a_cut_that_is_done_keeps_others_away_until_it_is_committed() {
        let promises = Promises::default();
        let object = ObjectId(Fid::new(1, 1));
        let promise = Promise { client: ClientId(7), number: 1, size: 0 };
        promises.make(object, promise, NONE).unwrap();
        assert!(!promises.is_unsettled(object, Transno(4)), "its lock keeps others away");
        promises.kept(object, &promise, Transno(5), Transno(4));
        assert!(promises.is_unsettled(object, Transno(4)) && !promises.is_unsettled(object, Transno(5)));
        promises.on_gone(ClientId(7));
        assert!(!promises.is_in_doubt(object), "it is done");
        promises.make(ObjectId(Fid::new(1, 2)), promise, Transno(5)).unwrap();
        assert_eq!(promises.entries.borrow().all.len(), 1, "what is committed is forgotten");
    }

    #[test]
    fn one_client_takes_nobody_elses_room_and_looks_at_nobody_elses_promises() {
        let promises = Promises::default();
        let object = |oid: usize| ObjectId(Fid::new(1, 1 + oid as u32));
        let (many, other) = (ClientId(7), ClientId(8));
        let of = |client| Promise { client, number: 1, size: 0 };
        let most = PROMISES_OF_CLIENT_MAX;
        (0..most).for_each(|n| promises.make(object(n), of(many), NONE).unwrap());
        assert_eq!(promises.make(object(most), of(many), NONE), Err(FsError::Overloaded));
        assert_eq!(
            promises.make(object(0), Promise { number: 2, ..of(many) }, NONE),
            Ok(()),
            "in the place of its own"
        );
        assert_eq!((promises.make(object(most), of(other), NONE), promises.limit_hits()), (Ok(()), 1));
        // What is in doubt is its own still; what is done is over with the next commit.
        promises.doubt(object(1), &of(many));
        assert_eq!((promises.in_doubt(), promises.open_of(many).len()), (1, most - 1));
        assert_eq!(promises.make(object(most + 1), of(many), NONE), Err(FsError::Overloaded));
        promises.kept(object(2), &of(many), Transno(5), NONE);
        assert_eq!(promises.make(object(most + 1), of(many), NONE), Ok(()));
        promises.end(object(1), &of(many));
        assert_eq!((promises.in_doubt(), promises.open_of(many).len()), (0, most - 1));
        // The index holds what a client has and nobody else's.
        let held = |c| promises.entries.borrow().of_clients.get(&c).map(BTreeSet::len);
        assert_eq!((held(many), held(other)), (Some(most - 1), Some(1)));
        assert_eq!(promises.open_of(other), [(object(most), of(other))]);
        promises.end(object(most), &of(other));
        assert_eq!(held(other), None);
    }
}
