//! The group commit: syncs the data, then moves the mapping in one database transaction.
//!
//! One commit at a time. It starts when the interval has passed since the first change, or at once when somebody waits.
use std::rc::Rc;

use oss::store::StoreResult;

use crate::file_store::Inner;

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
                dirty.await;
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

    async fn commit(&self) {
        let batch = self.state.borrow_mut().batch();
        let Some(mut batch) = batch else { return };
        if batch.data_written
            && let Err(e) = self.data.sync().await
        {
            self.latch("syncing data", &e);
            return;
        }
        let (db, ops, transno) = (self.db.clone(), std::mem::take(&mut batch.ops), batch.transno);
        // The database's size decides how it prepares for a crash; the data file's is a good enough measure of it.
        let meta_bytes = self.grown.get() * 4;
        let outcome = self.rt.offload(move || db.commit(&ops, transno, meta_bytes)).await;
        if let Err(e) = outcome {
            self.latch("the commit", &e);
            return;
        }
        let mut state = self.state.borrow_mut();
        state.committed(&batch);
        state.shrink(self.config.objects_max, self.config.mapped_blocks_max);
        drop(state);
        self.look_at_space();
        self.done.notify();
    }

    /// Waits until everything that has changed so far is on stable storage.
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
            self.kicked.set(true);
            self.kick.notify();
            self.dirty.notify();
            done.await;
        }
    }
}
