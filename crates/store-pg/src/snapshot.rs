//! The engine's state on the shard: the last commit, records in memory, and what commits changed under snapshots that live.
//!
//! A snapshot is a number of a commit and what the keys that later commits changed had then. A read is one statement, which tells with
//! its answer the commit that it saw; that one may be later than the snapshot's, never earlier. So snapshots need no transaction in the
//! database, hold none of its space, and outlive its connections.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::thread::JoinHandle;

use mds::kv::{Answer, KvBatch, KvError, KvSnapshot, Pairs};
use rt::sync::Event;
use tokio::sync::{mpsc, oneshot};

use crate::cache::{Cache, Value};
use crate::link::{Records, Seen};
use crate::worker::{Command, Shared, To};

/// A snapshot's own: what keys had, of those that were changed since.
#[derive(Default)]
pub(crate) struct Undo(RefCell<BTreeMap<Vec<u8>, Value>>);

/// See the module's head.
pub(crate) struct Engine {
    to: mpsc::UnboundedSender<Command>,
    thread: Option<JoinHandle<()>>,
    pub shared: Arc<Shared>,
    /// The last commit.
    number: Cell<i64>,
    /// It moved, or never will again.
    moved: Event,
    committing: Cell<bool>,
    cache: RefCell<Cache>,
    snapshots: RefCell<Vec<Weak<Undo>>>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.to.send(Command::Close);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Engine {
    pub fn new(
        to: mpsc::UnboundedSender<Command>,
        thread: JoinHandle<()>,
        shared: Arc<Shared>,
        cache_bytes: usize,
    ) -> Engine {
        Engine {
            to,
            thread: Some(thread),
            shared,
            number: Cell::new(0),
            moved: Event::new(),
            committing: Cell::new(false),
            cache: RefCell::new(Cache::new(cache_bytes)),
            snapshots: RefCell::default(),
        }
    }
    /// The epoch was taken at this commit.
    pub fn begin(&self, number: i64) {
        self.number.set(number);
    }

    /// What the worker answers; `None`: it has ended.
    pub async fn ask<T>(&self, command: impl FnOnce(To<T>) -> Command) -> Option<T> {
        let (to, answer) = oneshot::channel();
        self.to.send(command(to)).ok()?;
        answer.await.ok()
    }
    fn ended(&self) -> KvError {
        self.shared.failure().unwrap_or_else(|| KvError::Io("its database's thread has ended".into()))
    }

    pub fn snapshot(self: &Rc<Self>) -> Rc<dyn KvSnapshot> {
        let undo = Rc::new(Undo::default());
        let mut snapshots = self.snapshots.borrow_mut();
        snapshots.retain(|s| s.strong_count() > 0);
        snapshots.push(Rc::downgrade(&undo));
        Rc::new(Snapshot { engine: self.clone(), undo })
    }

    /// Whether the epoch is still this server's, as the database has it now.
    pub async fn confirm(&self) -> Result<(), KvError> {
        let asked = self.ask(|to| Command::Get(Vec::new(), to)).await;
        asked.unwrap_or_else(|| Err(self.ended())).map(drop)
    }

    /// Applies a batch.
    pub async fn commit(&self, batch: Arc<KvBatch>) -> Result<(), KvError> {
        if let Some(e) = self.shared.refusal() {
            return Err(e);
        }
        if self.committing.replace(true) {
            return Err(KvError::Latched("a commit before has not ended".into()));
        }
        let number = self.number.get();
        let mut before: BTreeMap<Vec<u8>, Value> = BTreeMap::new();
        let mut unknown: Vec<Vec<u8>> = batch.expect.iter().map(|(key, _)| key.to_vec()).collect();
        for key in batch.changes.keys() {
            match self.cache.borrow_mut().get(key) {
                Some(value) => drop(before.insert(key.to_vec(), value)),
                None => unknown.push(key.to_vec()),
            }
        }
        let commit = |to| Command::Commit(number, batch.clone(), unknown, to);
        let done = self.ask(commit).await.unwrap_or_else(|| Err(self.ended()));
        match done {
            Ok(found) => {
                before.extend(found.into_iter().map(|(key, value)| (key, Some(value.into()))));
                self.applied(&batch, &before);
                self.committing.set(false);
                self.moved.notify();
                Ok(())
            }
            Err(e) => {
                self.committing.set(!matches!(e, KvError::Conflict { .. }));
                self.moved.notify();
                Err(e)
            }
        }
    }

    /// The batch is the last commit; `before` has what its keys had, those that were there.
    fn applied(&self, batch: &KvBatch, before: &BTreeMap<Vec<u8>, Value>) {
        let snapshots: Vec<Rc<Undo>> = self.snapshots.borrow().iter().filter_map(Weak::upgrade).collect();
        for undo in &snapshots {
            let mut undo = undo.0.borrow_mut();
            for key in batch.changes.keys() {
                undo.entry(key.to_vec()).or_insert_with(|| before.get(&key[..]).cloned().flatten());
            }
        }
        let mut cache = self.cache.borrow_mut();
        let cached: Result<(), std::convert::Infallible> = batch.each_sealed(|key, value| {
            cache.put(key, value.map(Into::into));
            Ok(())
        });
        let Ok(()) = cached;
        self.number.set(self.number.get() + 1);
    }

    /// Waits until what a read saw is known here.
    async fn until<T>(&self, seen: Result<Seen<T>, KvError>) -> Result<T, KvError> {
        let seen = seen?;
        loop {
            let moved = self.moved.wait();
            if self.number.get() >= seen.commit {
                return Ok(seen.value);
            }
            if !self.committing.get() || self.shared.failure().is_some() {
                return Err(self.ended());
            }
            moved.await;
        }
    }
}

struct Snapshot {
    engine: Rc<Engine>,
    undo: Rc<Undo>,
}

impl Snapshot {
    /// What is known without asking: nothing, if somebody else may have the store.
    fn known(&self, key: &[u8]) -> Option<Value> {
        if !self.engine.shared.is_good() {
            return None;
        }
        let undone = self.undo.0.borrow().get(key).cloned();
        undone.or_else(|| self.engine.cache.borrow_mut().get(key))
    }
}

async fn get(engine: Rc<Engine>, undo: Rc<Undo>, key: Vec<u8>) -> Result<Option<Vec<u8>>, KvError> {
    let asked = engine.ask(|to| Command::Get(key.clone(), to)).await;
    let value: Value = engine.until(asked.unwrap_or_else(|| Err(engine.ended()))).await?.map(Into::into);
    if let Some(value) = undo.0.borrow().get(&key) {
        return Ok(value.as_deref().map(<[u8]>::to_vec));
    }
    // Nothing has changed the key since the snapshot, so the value is that of the last commit, too.
    engine.cache.borrow_mut().put(&key, value.clone());
    Ok(value.as_deref().map(<[u8]>::to_vec))
}

async fn range(
    engine: Rc<Engine>,
    undo: Rc<Undo>,
    mut from: Vec<u8>,
    to: Vec<u8>,
    limit: usize,
) -> Result<Pairs, KvError> {
    let mut pairs = Pairs::new();
    let page = i64::try_from(limit).unwrap_or(i64::MAX);
    while from < to && pairs.len() < limit {
        let asked = engine.ask(|answer| Command::Range(from.clone(), to.clone(), page, answer)).await;
        let found: Records = engine.until(asked.unwrap_or_else(|| Err(engine.ended()))).await?;
        // Keys up to here are those of this page.
        let next = found.last().filter(|_| found.len() >= limit).map(|(key, _)| {
            let mut next = key.clone();
            next.push(0);
            next
        });
        let end = next.clone().unwrap_or_else(|| to.clone());
        let undo = undo.0.borrow();
        let mut merged: BTreeMap<Vec<u8>, Vec<u8>> = found.into_iter().collect();
        for (key, value) in undo.range::<Vec<u8>, _>((Included(&from), Excluded(&end))) {
            match value {
                Some(value) => drop(merged.insert(key.clone(), value.to_vec())),
                None => drop(merged.remove(key)),
            }
        }
        pairs.extend(merged);
        from = end;
    }
    pairs.truncate(limit);
    Ok(pairs)
}

impl KvSnapshot for Snapshot {
    fn get(&self, key: &[u8]) -> Answer<Option<Vec<u8>>> {
        if let Some(value) = self.known(key) {
            return Answer::Now(Ok(value.as_deref().map(<[u8]>::to_vec)));
        }
        Answer::Later(Box::pin(get(self.engine.clone(), self.undo.clone(), key.to_vec())))
    }
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Answer<Pairs> {
        let (engine, undo) = (self.engine.clone(), self.undo.clone());
        Answer::Later(Box::pin(range(engine, undo, from.to_vec(), to.to_vec(), limit)))
    }
}
