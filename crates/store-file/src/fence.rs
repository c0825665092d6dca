//! Whether the store is still this process's: of two that have it open the later one is right.
//!
//! `lock` keeps two processes of one host apart. Where it does not reach (a store on a medium that several hosts see, a process
//! that was stopped or cut off while another one was given its store), the file `epoch` says which opening was the last. It
//! is looked at before every commit, and before a request when the last look was some time ago, as it is for a process that
//! was stopped. Between a look and the write that follows a later opening goes unseen: a medium that can be seen by several
//! hosts needs fencing of its own.
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

use frames::Bulk;
use oss::store::{BLOCK_BYTES, StoreResult};
use rt::{BlockingFile, DiskFile, OpenMode, Rt};
use types::{Duration, Instant};
use wire::{crc32c, crc32c_append};

use crate::file_store::Inner;
use crate::format::Superblock;

/// The file that says which opening of the store was the last one; a store that nobody opened has none.
pub const EPOCH_FILE: &str = "epoch";
/// How long a look counts.
const LOOK_COUNTS: Duration = Duration::from_secs(1);
/// Between two looks for memory.
const PAGE_LOOK: Duration = Duration::from_millis(1);
/// Bytes of the record.
const RECORD_BYTES: usize = 12;

/// The file `epoch`.
pub(crate) struct Fence {
    /// `None`: it could not be written, and says nothing.
    file: Option<Rc<dyn DiskFile>>,
    seen: Cell<Instant>,
    pub replaced: Cell<bool>,
    pub then: RefCell<Option<Box<dyn Fn()>>>,
    /// Memory for looks: commits give page frames back that writes hold until they are on stable storage, so that a look must wait for none.
    page: RefCell<Option<Bulk>>,
}

fn record(superblock: &Superblock, epoch: u64) -> [u8; RECORD_BYTES] {
    let mut b = [0; RECORD_BYTES];
    b[..8].copy_from_slice(&epoch.to_le_bytes());
    let crc = crc32c_append(crc32c(&superblock.identity.uuid.to_le_bytes()), &b[..8]);
    b[8..].copy_from_slice(&crc.to_le_bytes());
    b
}

/// The opening that a file `epoch` names, if it is whole and of that store.
pub(crate) fn epoch_of(file: &dyn BlockingFile, superblock: &Superblock) -> Option<u64> {
    let mut bytes = [0; RECORD_BYTES];
    file.read(0, &mut bytes).ok()?;
    let said = bytes.first_chunk().map(|b| u64::from_le_bytes(*b))?;
    (bytes == record(superblock, said)).then_some(said)
}

impl Fence {
    /// Says that opening number `epoch` is the last one. A full file system does not keep a store from being opened.
    pub async fn take(rt: &Rt, dir: &Path, superblock: &Superblock, epoch: u64) -> Fence {
        let file = Fence::write(rt, dir, superblock, epoch).await;
        if let Err(e) = &file {
            tracing::warn!(store = %dir.display(), "the file epoch cannot be written: {e}; a later server of this store would go unseen");
        }
        Fence {
            file: file.ok(),
            seen: Cell::new(rt.now()),
            replaced: Cell::default(),
            then: RefCell::default(),
            page: RefCell::new(Some(rt.bulk(BLOCK_BYTES as usize).await)),
        }
    }

    /// Memory for a look: the page that is kept for one, or a frame, whichever there is first.
    async fn memory(&self, rt: &Rt) -> Bulk {
        loop {
            let own = if types::planted!("looks-take-frames") { None } else { self.page.take() };
            if let Some(page) = own.or_else(|| Bulk::alloc(rt.frames(), BLOCK_BYTES as usize)) {
                return page;
            }
            rt.sleep(PAGE_LOOK).await;
        }
    }

    async fn read(&self, rt: &Rt, file: &dyn DiskFile) -> std::io::Result<Vec<u8>> {
        let page = self.memory(rt).await;
        let (read, page) = file.read_at(0, page).await;
        let mut bytes = page.to_vec();
        self.page.replace(Some(page));
        bytes.truncate(read?);
        Ok(bytes)
    }

    async fn write(rt: &Rt, dir: &Path, superblock: &Superblock, epoch: u64) -> std::io::Result<Rc<dyn DiskFile>> {
        let file = rt.open(&dir.join(EPOCH_FILE), OpenMode { create: true, direct: false })?;
        let mut bulk = rt.bulk(BLOCK_BYTES as usize).await;
        let mut page = vec![0; BLOCK_BYTES as usize];
        page[..RECORD_BYTES].copy_from_slice(&record(superblock, epoch));
        bulk.copy_in(0, &page);
        file.write_at(0, bulk).await?;
        file.sync().await?;
        Ok(file)
    }
}

impl Inner {
    /// Whether a look was so lately that it counts.
    pub(crate) fn is_surely_ours(&self) -> bool {
        self.fence.file.is_none() || self.rt.now().since(self.fence.seen.get()) < LOOK_COUNTS
    }

    /// Looks whether a later opening has taken the store. What cannot be read says nothing.
    pub(crate) async fn still_ours(&self) -> StoreResult<()> {
        let Some(file) = &self.fence.file else { return Ok(()) };
        let bytes = self.fence.read(&self.rt, &**file).await.unwrap_or_default();
        let said = bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let whole = bytes.get(..RECORD_BYTES).is_some_and(|b| *b == record(&self.superblock, said));
        self.fence.seen.set(self.rt.now());
        if !whole || said <= self.boot {
            return Ok(());
        }
        if !self.fence.replaced.replace(true)
            && let Some(then) = &*self.fence.then.borrow()
        {
            then();
        }
        let why = format!("another server has opened it since (epoch {said}, this is epoch {})", self.boot);
        Err(self.latch("a look whose store it is", &why))
    }
}
