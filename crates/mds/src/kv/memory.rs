//! The engine for tests: everything in memory, with the failures a test asks for.
//!
//! A commit is durable or not there at all. [`MemoryKv::fail_at`] makes the n-th commit fail, before or after it
//! became durable; [`MemoryKv::reopen`] gives what a restarted server would find.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use rt::LocalFuture;
use rt::sync::{Event, yield_now};

use super::rows::Rows;
use super::{Answer, KvBatch, KvError, KvLimits, KvSnapshot, MetaKv, Pairs};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Where a commit fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailPoint {
    /// Nothing of the batch is stored.
    Before,
    /// The batch is stored, but the caller is told otherwise: power went before the answer.
    After,
}

/// A store in memory.
#[derive(Default)]
pub struct MemoryKv {
    rows: RefCell<Rows>,
    commits: Cell<u64>,
    fail: Cell<Option<(u64, FailPoint)>>,
    latched: Cell<bool>,
    slow_reads: Cell<bool>,
    batch_bytes_max: Cell<Option<usize>>,
    lease: Rc<Lease>,
    held: Rc<Held>,
    me: Weak<MemoryKv>,
}

/// Whether commits wait, as on a disk that stands still.
#[derive(Default)]
struct Held {
    on: Cell<bool>,
    over: Event,
}

/// What it says when it is asked whether it is still its server's.
#[derive(Default)]
struct Lease {
    is_over: Cell<bool>,
    is_silent: Cell<bool>,
    answers: Event,
}

impl MemoryKv {
    /// An empty store.
    #[must_use]
    pub fn new() -> Rc<MemoryKv> {
        Rc::new_cyclic(|me| MemoryKv { me: me.clone(), ..MemoryKv::default() })
    }
    /// The `n`-th commit from the store's first fails (1 is the first).
    pub fn fail_at(&self, n: u64, point: FailPoint) {
        self.fail.set(Some((n, point)));
    }
    /// Every read answers `Later`, as an engine on another machine would.
    pub fn set_slow_reads(&self, on: bool) {
        self.slow_reads.set(on);
    }
    /// It says that a batch may have so many bytes.
    pub fn set_batch_bytes_max(&self, bytes: usize) {
        self.batch_bytes_max.set(Some(bytes));
    }
    /// From now on it is sure to be its server's by itself, or only when it is asked, and answers that or does not.
    pub fn set_sure(&self, by_itself: bool, when_asked: bool) {
        self.lease.is_over.set(!by_itself);
        self.lease.is_silent.set(!when_asked);
        self.lease.answers.notify();
    }
    /// Commits that begin from now on are carried out when they are held no more. A store that is reopened has nothing of them.
    pub fn hold_commits(&self, on: bool) {
        self.held.on.set(on);
        self.held.over.notify();
    }
    /// Commits done.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits.get()
    }
    /// The store as a restarted server finds it.
    #[must_use]
    pub fn reopen(&self) -> Rc<MemoryKv> {
        Rc::new_cyclic(|me| MemoryKv {
            me: me.clone(),
            rows: RefCell::new(self.rows.borrow().clone()),
            slow_reads: Cell::new(self.slow_reads.get()),
            batch_bytes_max: self.batch_bytes_max.clone(),
            ..MemoryKv::default()
        })
    }
    /// Sealed pairs, for tests that damage them.
    pub fn tamper(&self, f: impl FnOnce(&mut Map)) {
        let mut rows = self.rows.borrow_mut();
        let mut map: Map = rows.iter_from(&[]).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        f(&mut map);
        *rows = Rows::default();
        map.iter().for_each(|(k, v)| rows.insert(k, v));
    }
    fn apply(&self, batch: &KvBatch) -> Result<(), KvError> {
        let mut rows = self.rows.borrow_mut();
        batch.check_expectations(|k| Ok(rows.get(k).map(<[u8]>::to_vec)))?;
        batch.each_sealed(|k, v| {
            match v {
                Some(v) => rows.insert(k, v),
                None => rows.remove(k),
            }
            Ok(())
        })
    }
    fn commit_now(&self, batch: &KvBatch) -> Result<(), KvError> {
        if self.latched.get() {
            return Err(KvError::Latched("an injected failure".into()));
        }
        let n = self.commits.get() + 1;
        let failure = self.fail.get().filter(|(at, _)| *at == n).map(|(_, point)| point);
        if failure != Some(FailPoint::Before) {
            self.apply(batch)?;
        }
        if failure.is_some() {
            self.latched.set(true);
            return Err(KvError::Io("injected".into()));
        }
        self.commits.set(n);
        Ok(())
    }
}

impl MetaKv for MemoryKv {
    fn limits(&self) -> KvLimits {
        KvLimits {
            batch_ops_max: usize::MAX,
            batch_bytes_max: self.batch_bytes_max.get().unwrap_or(usize::MAX),
            key_bytes_max: 1024,
            value_bytes_max: 1 << 20,
            snapshot_isolation: true,
        }
    }
    fn snapshot(&self) -> LocalFuture<Result<Rc<dyn KvSnapshot>, KvError>> {
        let s: Rc<dyn KvSnapshot> =
            Rc::new(MemorySnapshot { rows: self.rows.borrow().clone(), slow: self.slow_reads.get() });
        Box::pin(async move { Ok(s) })
    }
    fn commit(&self, batch: Arc<KvBatch>) -> LocalFuture<Result<(), KvError>> {
        if self.held.on.get() {
            let (held, me) = (self.held.clone(), self.me.clone());
            return Box::pin(async move {
                while held.on.get() {
                    let over = held.over.wait();
                    over.await;
                }
                me.upgrade().ok_or_else(|| KvError::Latched("it is gone".into()))?.commit_now(&batch)
            });
        }
        let result = self.commit_now(&batch);
        Box::pin(async move { result })
    }
    fn is_sure(&self) -> bool {
        !self.lease.is_over.get()
    }
    fn confirm(&self) -> LocalFuture<Result<(), KvError>> {
        let lease = self.lease.clone();
        Box::pin(async move {
            while lease.is_silent.get() {
                let answers = lease.answers.wait();
                answers.await;
            }
            Ok(())
        })
    }
    fn space(&self) -> (u64, u64) {
        (1 << 40, 1 << 40)
    }
}

struct MemorySnapshot {
    rows: Rows,
    slow: bool,
}

impl MemorySnapshot {
    fn answer<T: 'static>(&self, value: T) -> Answer<T> {
        if !self.slow {
            return Answer::Now(Ok(value));
        }
        Answer::Later(Box::pin(async move {
            yield_now().await;
            Ok(value)
        }))
    }
}

impl KvSnapshot for MemorySnapshot {
    fn get(&self, key: &[u8]) -> Answer<Option<Vec<u8>>> {
        self.answer(self.rows.get(key).map(<[u8]>::to_vec))
    }
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Answer<Pairs> {
        if from >= to {
            return self.answer(Vec::new());
        }
        let range = self.rows.iter_from(from).take_while(|(k, _)| *k < to).take(limit);
        self.answer(range.map(|(k, v)| (k.to_vec(), v.to_vec())).collect())
    }
}

#[cfg(test)]
mod tests {
    use simworld::TestWorld;

    use super::*;
    use crate::kv::conformance;

    #[test]
    fn it_does_what_every_engine_must() {
        let world = TestWorld::new(1, 1 << 20);
        world.run(async {
            for slow in [false, true] {
                let fresh = || {
                    let kv = MemoryKv::new();
                    kv.set_slow_reads(slow);
                    kv
                };
                conformance::failed_expectations_change_nothing(&*fresh()).await;
                conformance::snapshots_hold_still(&*fresh()).await;
                conformance::holds_what_its_limits_say(&*fresh()).await;
                conformance::agrees_with_a_model(&*fresh(), 1, 200).await;
            }
        });
    }
}
