//! Drops of pages that are under way in the kernel. Each may wait for a request that no slot has read yet: for the write-back
//! of a page, or for a read whose pages are locked and that nobody knows of. So while there is any, requests find slots
//! whatever the limits are (`docs/internals/kernel-locks.md`, "Queues").
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

/// See the module's head.
#[derive(Default)]
pub(crate) struct Drops {
    under_way: AtomicUsize,
    /// Crews that want to hear of the next one.
    crews: Mutex<Vec<Waker>>,
}

/// One of them; over when it is dropped.
pub(crate) struct UnderWay(Arc<Drops>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drops {
    /// A drop begins.
    pub fn begin(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        let crews = std::mem::take(&mut *self.crews.lock().unwrap_or_else(PoisonError::into_inner));
        crews.into_iter().for_each(Waker::wake);
        UnderWay(self.clone())
    }
    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }
    /// `waker` is woken when the next one begins.
    pub fn tell(&self, waker: &Waker) {
        let mut crews = self.crews.lock().unwrap_or_else(PoisonError::into_inner);
        if !crews.iter().any(|w| w.will_wake(waker)) {
            crews.push(waker.clone());
        }
    }
}
