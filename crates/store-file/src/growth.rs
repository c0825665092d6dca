//! Where free blocks come from and where they go: the data file grows, waits for blocks that come free, gives space back.
//!
//! A free block is *ready* when it has space on the medium: a write to it cannot fail for want of space. The file gets
//! space in steps ahead of what is written and of what is promised to writers: else whoever was promised most would leave others nothing
//! to be promised. What many removals leave beyond that is given back to the medium (punched),
//! and gets space again before it is used; which blocks are without space is known from the file itself at a start.
//! The last blocks that are ready are kept for overwrites: they need new blocks before the old ones come free.
use std::io;
use std::rc::Rc;

use oss::store::{BLOCK_BYTES, Space, StoreResult};
use types::FsError;

use crate::file_store::Inner;
use crate::space::Run;
use crate::state::Coming;

/// Most blocks that are kept for overwrites: 1 MiB. A larger overwrite is carried out in parts when nothing else is free.
const SPARE_MAX: u64 = 256;
/// The blocks kept for overwrites are at most this part of the store.
const SPARE_PART: u64 = 64;
/// The file grows by at most this part of the store at a time, and by at least [`STEP_MIN`].
const STEP_PART: u64 = 16;
/// Least growth in blocks: 1 MiB.
const STEP_MIN: u64 = 256;
/// Fewest neighbouring blocks that are given back: 1 MiB.
const PUNCH_MIN: u64 = 256;
/// Most blocks that are given back with one call: 64 MiB.
const PUNCH_MAX: u64 = 1 << 14;

/// Whether a file cannot be made longer on its file system, however much space that has.
fn is_longest(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::FileTooLarge
}

/// Whether a medium has no space left.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Inner {
    /// Blocks of the file that have space, block 0 left out.
    fn backed(&self) -> u64 {
        self.grown.get() - 1 - self.state.borrow().bare_blocks
    }
    fn total(&self) -> u64 {
        self.backed() + self.growable.get() / BLOCK_BYTES
    }
    /// Blocks that stay for overwrites.
    pub fn spare(&self) -> u64 {
        SPARE_MAX.min(self.total() / SPARE_PART)
    }
    /// Blocks that the file grows by.
    fn step(&self) -> u64 {
        (self.config.grow_bytes / BLOCK_BYTES).min((self.total() / STEP_PART).max(STEP_MIN))
    }

    /// Gets `want` blocks ready: gives the file space, or waits until blocks come free, as long as any will. Nothing may
    /// be held meanwhile: what is held could be what others wait for.
    pub async fn make_room(&self, want: u64) -> StoreResult<()> {
        loop {
            self.check()?;
            if self.grow(want).await? {
                return Ok(());
            }
            let freed = self.freed.wait();
            if self.state.borrow().space.ready() >= want {
                return Ok(());
            }
            let coming = self.state.borrow().coming_free();
            match coming {
                None => return Err(FsError::NoSpace),
                Some(Coming::Commit) => self.commit_now().await?,
                Some(Coming::Others) => freed.await,
            }
        }
    }

    /// Gives the data file space until `want` blocks are ready. Whether they are.
    async fn grow(&self, want: u64) -> StoreResult<bool> {
        self.growing.acquire(1).await;
        let outcome = self.grow_alone(want).await;
        self.growing.add(1);
        outcome
    }

    async fn grow_alone(&self, want: u64) -> StoreResult<bool> {
        loop {
            let ready = self.state.borrow().space.ready();
            if ready >= want {
                return Ok(true);
            }
            self.look_at_space();
            let step = (want - ready).max(self.step()).min(self.growable.get() / BLOCK_BYTES);
            if step == 0 {
                return Ok(false);
            }
            // Gaps first.
            let gap = self.state.borrow_mut().take_bare(step);
            let run = gap.unwrap_or(Run { start: self.grown.get(), blocks: step });
            match self.data.allocate(run.start * BLOCK_BYTES, run.blocks * BLOCK_BYTES).await {
                Ok(()) => {
                    self.grown.set(self.grown.get().max(run.start + run.blocks));
                    let mut state = self.state.borrow_mut();
                    state.space.free(run);
                    // The new length must be on stable storage before a mapping relies on it.
                    state.data_written = true;
                    drop(state);
                    self.look_at_space();
                }
                Err(e) => {
                    if let Some(gap) = gap {
                        self.state.borrow_mut().add_bare(gap);
                    }
                    if is_longest(&e) {
                        tracing::warn!(store = %self.dir.display(), bytes = run.start * BLOCK_BYTES,
                            "the data file is as long as its file system lets it be: {e}");
                        self.longest.set(run.start * BLOCK_BYTES);
                    }
                    if is_full(&e) || is_longest(&e) {
                        self.growable.set(0);
                        return Ok(false);
                    }
                    return Err(self.latch("growing the data file", &e));
                }
            }
        }
    }

    /// Blocks that are promised and get space ahead of what is written: not the whole of a small store.
    fn promised_ahead(&self) -> u64 {
        self.promised.get().min(self.total() / STEP_PART)
    }

    /// So many bytes are promised to writes to come.
    pub fn promise(self: &Rc<Self>, bytes: u64) {
        self.promised.set(bytes.div_ceil(BLOCK_BYTES));
        self.grow_ahead();
    }

    /// Starts to grow the file in the background when little is ready beyond what is promised.
    pub fn grow_ahead(self: &Rc<Self>) {
        let low = self.step() + self.promised_ahead();
        if self.state.borrow().space.ready() >= low || self.growable.get() == 0 || !self.growing.try_acquire(1) {
            return;
        }
        let me = self.clone();
        self.rt.spawn(async move {
            // A failure has latched the store; whoever comes next is told.
            let _ = me.grow_alone(low + me.step()).await;
            me.growing.add(1);
        });
    }

    /// Finds out by how much the data file could grow.
    pub fn look_at_space(&self) {
        let len = (self.backed() + 1) * BLOCK_BYTES;
        let Ok((free, _)) = self.data.space() else { return };
        let cap = self.superblock.capacity_bytes;
        let reserve = if cap > 0 { self.config.reserve_bytes.min(cap / 32) } else { self.config.reserve_bytes };
        let room = free.saturating_sub(reserve) / self.config.sharers.max(1);
        let room = if cap > 0 { room.min(cap.saturating_sub(len)) } else { room };
        // Its gaps may be filled.
        let longer = self.longest.get().saturating_sub(self.grown.get() * BLOCK_BYTES);
        let room = room.min(longer.saturating_add(self.state.borrow().bare_blocks * BLOCK_BYTES));
        self.growable.set(room / BLOCK_BYTES * BLOCK_BYTES);
    }

    /// Space as it is: what others do on the file system counts when it gets short.
    pub fn space(&self) -> Space {
        if self.growable.get() < self.step() * BLOCK_BYTES {
            self.look_at_space();
        }
        let spare = self.spare() * BLOCK_BYTES;
        let state = self.state.borrow();
        let ready = state.space.ready() * BLOCK_BYTES;
        let growable = self.growable.get();
        Space {
            total: self.total() * BLOCK_BYTES,
            free: (ready + growable).saturating_sub(spare),
            ready: ready.saturating_sub(spare),
            objects: state.object_count,
            objects_free: u64::from(u32::MAX).saturating_sub(state.object_count),
        }
    }

    /// At the start: every free block of a file with holes is made one of them, and as much as is used first gets space.
    pub async fn begin_space(&self) -> io::Result<()> {
        if self.data.allocated()? < self.grown.get() * BLOCK_BYTES {
            let free = self.state.borrow_mut().space.take_all();
            for run in free {
                self.punch_at_once(run).await?;
                self.state.borrow_mut().add_bare(run);
            }
        }
        self.look_at_space();
        Ok(())
    }

    async fn punch_at_once(&self, run: Run) -> io::Result<()> {
        let done = self.data.punch(run.start * BLOCK_BYTES, run.blocks * BLOCK_BYTES).await;
        match done {
            // The blocks that have space there are not known then; they get it again before they are used.
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
            done => done,
        }
    }

    /// Starts to give space back in the background when far more is ready than is used next.
    pub fn trim_behind(self: &Rc<Self>) {
        let high = self.step() * 3 + self.spare() + self.promised_ahead();
        if self.no_trim.get() || self.state.borrow().space.ready() <= high || !self.growing.try_acquire(1) {
            return;
        }
        let me = self.clone();
        self.rt.spawn(async move {
            // The growth stands still meanwhile, and gets its turn after each: what is given back is not given out.
            while me.trim_one().await {
                me.growing.add(1);
                me.growing.acquire(1).await;
            }
            me.growing.add(1);
        });
    }

    /// Gives one run back. Whether there may be more.
    async fn trim_one(&self) -> bool {
        let keep = self.step() * 2 + self.spare() + self.promised_ahead();
        let run = {
            let mut state = self.state.borrow_mut();
            let most = state.space.ready().saturating_sub(keep).min(PUNCH_MAX);
            state.space.take_largest(PUNCH_MIN, most)
        };
        let Some(run) = run else { return false };
        // Nobody else has the run: a block that is punched is neither free nor mapped.
        match self.data.punch(run.start * BLOCK_BYTES, run.blocks * BLOCK_BYTES).await {
            Ok(()) => self.state.borrow_mut().add_bare(run),
            Err(e) => {
                tracing::warn!(store = %self.dir.display(), "space of removed files stays with the store: {e}");
                self.no_trim.set(true);
                self.state.borrow_mut().space.free(run);
            }
        }
        self.look_at_space();
        self.freed.notify();
        !self.no_trim.get()
    }
}
