//! The bytes of files: read, written, cut and brought to servers, and how large files are. It takes locks, moves pages between
//! programs and the objects of OSTs, and asks the metadata for layouts.
mod advised;
mod append;
mod cuts;
mod lease;
mod lock_ahead;
mod migrate;
mod read;
pub(crate) mod size;
mod write;

pub use migrate::Migrate;
pub(crate) use migrate::Pace;

use std::rc::Rc;

use rt::Rt;
use rt::sync::Semaphore;

use crate::cut_numbers::CutNumbers;
use crate::in_use::InUse;
use crate::inode::Common;
use crate::meta::Meta;
use crate::osc::Osts;
use crate::pages::PageCache;
use crate::readahead::Readahead;
use crate::sessions::Sessions;
use crate::stats::CallStats;

/// See the module's head.
pub struct Data {
    rt: Rt,
    sessions: Rc<Sessions>,
    osts: Rc<Osts>,
    meta: Rc<Meta>,
    common: Rc<Common>,
    pages: Rc<PageCache>,
    ahead: Rc<Readahead>,
    calls: CallStats,
    cut_numbers: CutNumbers,
    /// Places for lock-aheads that nobody waits for.
    lock_aheads: Semaphore,
    /// Reads leave access times alone.
    noatime: bool,
}

impl Data {
    pub(crate) fn new(
        (sessions, osts): (Rc<Sessions>, Rc<Osts>),
        meta: Rc<Meta>,
        common: Rc<Common>,
        pages: Rc<PageCache>,
        noatime: bool,
    ) -> Rc<Data> {
        Rc::new(Data {
            rt: sessions.rt().clone(),
            calls: CallStats::new(sessions.rt().wall()),
            ahead: common.ahead.clone(),
            cut_numbers: CutNumbers::default(),
            lock_aheads: Semaphore::new(lock_ahead::BEHIND_MAX),
            sessions,
            osts,
            meta,
            common,
            pages,
            noatime,
        })
    }
    /// The page cache.
    #[must_use]
    pub fn pages(&self) -> &Rc<PageCache> {
        &self.pages
    }
    /// Readahead.
    #[must_use]
    pub fn readahead(&self) -> &Rc<Readahead> {
        &self.ahead
    }
    /// Reads and writes so far.
    #[must_use]
    pub fn calls(&self) -> &CallStats {
        &self.calls
    }
    pub(crate) fn note_use(&self, into: &mut InUse) {
        into.add("cuts under way", self.cut_numbers.under_way());
    }
    /// Changes the page cache's size, and with it how much may be read ahead.
    pub fn set_cache_bytes(&self, bytes: u64) {
        self.pages.set_limit(bytes);
        self.ahead.fit(self.pages.limit_bytes());
    }
    /// Keeps some of the frames of this machine free for others.
    pub(crate) fn keep_frames_free(&self) {
        if self.pages.pool().free() < self.pages.pool().capacity() / 16 {
            self.pages.shrink(self.pages.limit_pages() / 8);
            self.osts.imports().iter().for_each(|import| import.ask_committed());
        }
    }
}

#[cfg(test)]
mod tests;
