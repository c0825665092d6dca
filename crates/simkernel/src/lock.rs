//! Sleeping locks of a kernel: first come, first served.
use std::rc::Rc;

use rt::sync::Semaphore;

/// Everything a lock has to give: more than tasks there are.
const WHOLE: usize = 1 << 20;

/// A lock that many may share or one may have, as an inode's or (exclusive only) a page's.
pub struct Lock(Rc<Semaphore>);

/// What is held of a [`Lock`], until it is dropped.
pub struct Guard(Rc<Semaphore>, usize);

impl Default for Lock {
    fn default() -> Lock {
        Lock(Rc::new(Semaphore::new(WHOLE)))
    }
}

impl Lock {
    /// Together with others that share it.
    pub async fn shared(&self) -> Guard {
        self.take(1).await
    }
    /// Alone.
    pub async fn exclusive(&self) -> Guard {
        self.take(WHOLE).await
    }
    /// Alone, if nobody has it.
    pub fn try_exclusive(&self) -> Option<Guard> {
        self.0.try_acquire(WHOLE).then(|| Guard(self.0.clone(), WHOLE))
    }
    async fn take(&self, permits: usize) -> Guard {
        self.0.acquire(permits).await;
        Guard(self.0.clone(), permits)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.add(self.1 as isize);
    }
}
