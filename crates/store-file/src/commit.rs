//! The group commit: syncs the data, then moves the mapping in one database transaction.
//!
//! One commit at a time. It starts when the interval has passed since the first change, or at once when somebody waits.
use std::future::Future;
use std::rc::Rc;

use oss::store::StoreResult;
use types::Duration;

use crate::file_store::Inner;

/// How long a commit may take before somebody looks whether it waits for space.
const STALL_LOOK: Duration = Duration::from_millis(200);
/// How long nothing has changed when the number of the last commit is synced.
const AT_REST: Duration = Duration::from_secs(1);

impl Inner {
    /// Runs until the store is closed or fails.
    pub(crate) async fn commit_task(self: Rc<Self>) {
        while self.failure.get().is_none() {
            let (dirty, kick) = (self.dirty.wait(), self.kick.wait());
            if !self.state.borrow().changed {
                if self.closing.get() {
                    break;
                }
                self.kicked.set(false);
                match self.whole_is_settled.get() {
                    true => dirty.await,
                    false if self.rt.timeout(AT_REST, dirty).await.is_none() => self.settle_whole().await,
                    false => {}
                }
                continue;
            }
            if !self.kicked.replace(false) && !self.closing.get() {
                let _ = self.rt.timeout(self.config.commit_interval, kick).await;
                self.kicked.set(false);
            }
            self.commit().await;
        }
        self.stopped.set(true);
        self.done.notify();
    }

    async fn commit(self: &Rc<Self>) {
        let batch = self.state.borrow_mut().batch();
        self.need_of_batch.set(self.need.take());
        let Some(mut batch) = batch else { return };
        if self.still_ours().await.is_err() {
            return;
        }
        if batch.data_written
            && !types::planted!("data-not-synced")
            && let Err(e) = self.data.sync().await
        {
            self.latch("syncing data", &e);
            return;
        }
        let (db, ops, transno) = (self.db.clone(), std::mem::take(&mut batch.ops), batch.transno);
        // The database's size decides how it prepares for a crash; the data file's is a good enough measure of it.
        let meta_bytes = self.grown.get() * 4;
        let outcome =
            self.watched(self.rt.offload(move || crate::db::guarded(|| db.commit(&ops, transno, meta_bytes)))).await;
        if let Err(e) = outcome {
            self.latch("the commit", &e);
            return;
        }
        self.need_of_batch.set(0);
        self.whole_is_settled.set(types::planted!("whole-unsettled"));
        let mut state = self.state.borrow_mut();
        state.committed(&batch);
        state.shrink(self.config.objects_max, self.config.mapped_blocks_max);
        drop(state);
        self.look_at_space();
        self.freed.notify();
        self.trim_behind();
        self.done.notify();
    }

    /// The last commit is known to have been whole after a loss of power, too: what rots of it is told from what a crash cut.
    async fn settle_whole(&self) {
        self.whole_is_settled.set(true);
        let Some(whole) = self.whole.clone() else { return };
        if let Err(e) = self.rt.offload(move || whole.settle()).await {
            tracing::debug!(store = %self.dir.display(), "the number of the last commit is not synced: {e}");
        }
    }

    /// Waits for a commit of the database; meanwhile looks whether it waits for space, so that whoever waits for it gets an
    /// answer.
    async fn watched<T>(&self, commit: impl Future<Output = T>) -> T {
        let mut commit = std::pin::pin!(commit);
        let outcome = loop {
            if let Some(outcome) = self.rt.timeout(STALL_LOOK, commit.as_mut()).await {
                break outcome;
            }
            if self.room.is_waiting() && !self.stalled.replace(true) {
                tracing::error!(store = %self.dir.display(),
                    "the file system below is full: changes are refused until it has space again");
                self.done.notify();
            }
        };
        if self.stalled.replace(false) {
            tracing::warn!(store = %self.dir.display(), "the wait for space on the file system below is over");
        }
        outcome
    }

    /// Waits until everything that has changed so far is on stable storage.
    /// `NoSpace` while the commit waits for space: nothing is lost, and it is stable once there is space.
    pub(crate) async fn commit_now(&self) -> StoreResult<()> {
        self.check()?;
        let until = {
            let state = self.state.borrow();
            // Without changes, what is on its way is enough.
            if state.changed { state.commit_next } else { state.commit_next - 1 }
        };
        loop {
            let done = self.done.wait();
            if self.state.borrow().commit_done >= until {
                return Ok(());
            }
            self.check()?;
            if self.is_stalled() {
                return Err(types::FsError::NoSpace);
            }
            self.kicked.set(true);
            self.kick.notify();
            self.dirty.notify();
            done.await;
        }
    }
}
