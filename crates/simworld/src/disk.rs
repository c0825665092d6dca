//! A host's disk: its files, its faults, and the switch that cuts its power.
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use types::Rng;

use crate::Work;
use crate::hash::StateHash;
use crate::image::Image;

/// Which operations of a disk fail from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFault {
    /// Reads fail.
    pub reads: bool,
    /// Writes fail.
    pub writes: bool,
    /// Syncs fail; what they should have written is lost in part.
    pub syncs: bool,
    /// So many times.
    pub times: u32,
}

/// Space is given out in pages.
const PAGE: u64 = 4096;

/// What an operation is to the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Sync,
}

/// A write under way: it may be done, undone or torn when its process dies.
struct Pending {
    file: FileId,
    offset: u64,
    bytes: Vec<u8>,
}

/// Which of a disk's files: its place is never used again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId(usize);

/// A file and the space that it takes.
#[derive(Default, Clone)]
struct Stored {
    image: Image,
    blocks: Blocks,
}

/// The blocks of a file: all up to an end, but for the holes in between.
#[derive(Default, Clone)]
struct Blocks {
    end: u64,
    /// Pages below the end that were given back.
    holes: BTreeSet<u64>,
}

impl Blocks {
    fn bytes(&self) -> u64 {
        self.end - self.holes.len() as u64 * PAGE
    }
    /// Bytes that the range still needs.
    fn missing(&self, offset: u64, end: u64) -> u64 {
        let holes = self.holes.range(offset / PAGE..end.div_ceil(PAGE)).count() as u64;
        end.saturating_sub(self.end) + holes * PAGE
    }
    fn fill(&mut self, offset: u64, end: u64) {
        self.end = self.end.max(end.next_multiple_of(PAGE));
        let there: Vec<u64> = self.holes.range(offset / PAGE..end.div_ceil(PAGE)).copied().collect();
        for page in there {
            self.holes.remove(&page);
        }
    }
    fn punch(&mut self, offset: u64, end: u64) {
        self.holes.extend(offset.div_ceil(PAGE)..end.min(self.end) / PAGE);
    }
    fn cut(&mut self, len: u64) {
        self.end = self.end.min(len.next_multiple_of(PAGE));
        drop(self.holes.split_off(&(self.end / PAGE)));
    }
}

pub(crate) struct Disk {
    files: Vec<Stored>,
    names: BTreeMap<PathBuf, FileId>,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    /// Who may use it: handles of earlier processes are dead.
    process: u64,
    pub capacity: u64,
    /// The longest file that the file system can have.
    pub file_max: u64,
    /// Bytes that others than the host's processes have on it.
    pub others: u64,
    /// Writes and syncs so far.
    pub steps: u64,
    /// The step at which the disk alone goes off.
    pub stop_at: Option<u64>,
    /// Syncs so far.
    pub syncs: u64,
    /// The sync before which the power of the host fails.
    pub stop_at_sync: Option<u64>,
    pub off: bool,
    pub fault: DiskFault,
    /// Reads of data files that bring a flipped bit from now on.
    pub rot: u32,
    /// How many times slower than usual.
    pub slow: u64,
    /// It stands still until then: what is asked of it before takes until then, and its usual time.
    pub stalled_until: u64,
    /// Nanoseconds that blocking operations took since they were last asked for.
    pub accrued_ns: u64,
    pub hash: StateHash,
    /// Calls, bytes and syncs so far.
    pub work: Work,
    rng: Rng,
    clock: Arc<AtomicU64>,
    /// Told when the host's power fails by itself.
    tripped: Arc<AtomicBool>,
}

/// A disk as its host, its files and blocking work on it share it.
#[derive(Clone)]
pub(crate) struct DiskRef(Arc<Mutex<Disk>>);

impl DiskRef {
    pub fn new(seed: u64, name: &str, capacity: u64, clock: Arc<AtomicU64>, tripped: Arc<AtomicBool>) -> DiskRef {
        DiskRef(Arc::new(Mutex::new(Disk {
            files: Vec::new(),
            names: BTreeMap::new(),
            pending: BTreeMap::new(),
            next: 0,
            process: 0,
            capacity,
            file_max: u64::MAX,
            others: 0,
            steps: 0,
            stop_at: None,
            syncs: 0,
            stop_at_sync: None,
            off: false,
            fault: DiskFault::default(),
            rot: 0,
            slow: 1,
            stalled_until: 0,
            accrued_ns: 0,
            hash: StateHash::default(),
            work: Work::default(),
            rng: Rng::named(seed, &format!("disk {name}")),
            clock,
            tripped,
        })))
    }
    pub fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn io_error() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl Disk {
    /// Nanoseconds for which it stands still from now on.
    pub fn stalled_ns(&self) -> u64 {
        self.stalled_until.saturating_sub(self.clock.load(Relaxed))
    }
    fn usable(&self, process: u64) -> io::Result<()> {
        if self.off || process != self.process {
            return Err(io::Error::other("the power is off"));
        }
        Ok(())
    }
    /// Counts an operation; fails when the power is off, fails now, or a fault was asked for.
    pub fn begin(&mut self, process: u64, access: Access) -> io::Result<()> {
        self.work.disk_calls += 1;
        self.work.syncs += u64::from(access == Access::Sync);
        if access != Access::Read && !self.off && process == self.process {
            self.steps += 1;
            self.syncs += u64::from(access == Access::Sync);
            let step = self.stop_at.is_some_and(|s| self.steps > s);
            let at_sync = access == Access::Sync && self.stop_at_sync.is_some_and(|s| self.syncs > s);
            self.off |= step || at_sync;
            if at_sync {
                self.tripped.store(true, Relaxed);
            }
        }
        self.usable(process)?;
        let f = &mut self.fault;
        let hit = match access {
            Access::Read => f.reads,
            Access::Write => f.writes,
            Access::Sync => f.syncs,
        };
        if hit && f.times > 0 {
            f.times -= 1;
            return Err(io_error());
        }
        Ok(())
    }
    /// Flips a bit of what was read, where that was asked for.
    pub fn decay(&mut self, bytes: &mut [u8]) {
        if self.rot > 0 && !bytes.is_empty() {
            self.rot -= 1;
            let bit = self.rng.below(bytes.len() as u64 * 8);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }
    fn stored(&mut self, process: u64, file: FileId) -> io::Result<&mut Stored> {
        self.usable(process)?;
        self.files.get_mut(file.0).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    pub fn image(&mut self, process: u64, file: FileId) -> io::Result<&mut Image> {
        self.stored(process, file).map(|f| &mut f.image)
    }
    pub fn open(&mut self, process: u64, path: &Path, create: bool) -> io::Result<FileId> {
        self.usable(process)?;
        match self.names.get(path) {
            Some(file) => Ok(*file),
            None if create => {
                let file = FileId(self.files.len());
                self.files.push(Stored::default());
                self.names.insert(path.into(), file);
                Ok(file)
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
    /// Takes a name away, and with it the file's content and space.
    pub fn unlink(&mut self, process: u64, path: &Path) -> io::Result<()> {
        self.usable(process)?;
        if let Some(file) = self.names.remove(path) {
            self.files[file.0] = Stored::default();
        }
        Ok(())
    }
    /// One file takes the name of another, which gets a new one. Names are durable at once.
    pub fn replace(&mut self, process: u64, new: &Path, old: &Path, aside: &Path) -> io::Result<()> {
        self.usable(process)?;
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let (one, other) = (*self.names.get(new).ok_or_else(missing)?, *self.names.get(old).ok_or_else(missing)?);
        self.names.remove(new);
        self.names.insert(aside.into(), other);
        self.names.insert(old.into(), one);
        Ok(())
    }
    pub fn used(&self) -> u64 {
        self.files.iter().map(|f| f.blocks.bytes()).sum()
    }
    /// Bytes that files may still take.
    pub fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used().saturating_add(self.others))
    }
    /// Others take all that is free but so much, or give back what they have.
    pub fn fill(&mut self, but: Option<u64>) {
        self.others = 0;
        self.others = but.map_or(0, |but| self.free().saturating_sub(but));
    }
    /// Bytes of a file that take space.
    pub fn allocated(&mut self, process: u64, file: FileId) -> io::Result<u64> {
        self.stored(process, file).map(|f| f.blocks.bytes())
    }
    /// Blocks for a range of a file; its length stays as it is.
    pub fn reserve(&mut self, process: u64, file: FileId, offset: u64, len: u64) -> io::Result<()> {
        self.usable(process)?;
        if offset + len > self.file_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let free = self.free();
        let blocks = &mut self.stored(process, file)?.blocks;
        if blocks.missing(offset, offset + len) > free {
            return Err(io::ErrorKind::StorageFull.into());
        }
        blocks.fill(offset, offset + len);
        Ok(())
    }
    /// Blocks for a range of a file, which is at least so long afterwards.
    pub fn allocate(&mut self, process: u64, file: FileId, offset: u64, len: u64) -> io::Result<()> {
        self.reserve(process, file, offset, len)?;
        let image = self.image(process, file)?;
        if offset + len > image.len() {
            image.set_len(offset + len);
        }
        Ok(())
    }
    pub fn set_len(&mut self, process: u64, file: FileId, len: u64) -> io::Result<()> {
        let image = self.image(process, file)?;
        let shorter = len < image.len();
        image.set_len(len);
        if shorter {
            self.stored(process, file)?.blocks.cut(len);
        }
        Ok(())
    }
    /// The range reads as zeros, and its blocks are free.
    pub fn punch(&mut self, process: u64, file: FileId, offset: u64, len: u64) -> io::Result<()> {
        self.image(process, file)?.zero(offset, len);
        self.stored(process, file)?.blocks.punch(offset, offset + len);
        Ok(())
    }
    /// Writes; a full disk refuses.
    pub fn write(&mut self, process: u64, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.reserve(process, file, offset, bytes.len() as u64)?;
        self.work.disk_bytes += bytes.len() as u64;
        self.image(process, file)?.write(offset, bytes);
        Ok(())
    }
    pub fn sync(&mut self, process: u64, file: FileId) -> io::Result<()> {
        if let Err(e) = self.begin(process, Access::Sync) {
            let mut rng = self.rng.clone();
            if let Ok(image) = self.image(process, file) {
                image.sync_fails(&mut rng);
            }
            self.rng = rng;
            return Err(e);
        }
        let crc = self.image(process, file)?.sync();
        self.hash.fold(self.clock.load(Relaxed));
        self.hash.fold(u64::from(crc));
        Ok(())
    }

    /// A write is on its way from now until [`Disk::land`].
    pub fn submit(&mut self, file: FileId, offset: u64, bytes: Vec<u8>) -> u64 {
        self.next += 1;
        self.pending.insert(self.next, Pending { file, offset, bytes });
        self.next
    }
    pub fn land(&mut self, process: u64, id: u64) -> io::Result<()> {
        let Some(p) = self.pending.remove(&id) else { return Err(io::Error::other("the power is off")) };
        self.begin(process, Access::Write)?;
        self.write(process, p.file, p.offset, &p.bytes)
    }
    fn settle_pending(&mut self) {
        std::mem::take(&mut self.pending).into_values().for_each(|p| self.settle(&p));
    }
    fn settle(&mut self, p: &Pending) {
        let Some(Stored { image, .. }) = self.files.get_mut(p.file.0) else { return };
        match self.rng.below(3) {
            0 => {}
            1 => image.write(p.offset, &p.bytes),
            _ => image.write_torn(p.offset, &p.bytes, &mut self.rng),
        }
    }
    /// A write that nobody waits for any more ends, if it has not: it is there, in part, or not.
    pub fn settle_one(&mut self, id: u64) {
        if let Some(p) = self.pending.remove(&id) {
            self.settle(&p);
        }
    }
    /// A step of a probe, with a small file that is there for this only.
    pub fn probe(&mut self, process: u64, access: Access, bytes: u64) -> io::Result<()> {
        self.begin(process, access)?;
        if self.free() < bytes { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
    /// The process is gone, the host is not: what was written stays.
    pub fn process_ended(&mut self) {
        self.settle_pending();
        self.process = u64::MAX;
    }
    pub fn lose_power(&mut self) {
        self.settle_pending();
        for (path, file) in &self.names {
            let mut rng = Rng::named(self.rng.next_u64(), &path.to_string_lossy());
            self.files[file.0].image.lose_power(&mut rng);
        }
        self.process = u64::MAX;
        self.off = true;
    }
    /// A new process takes the disk over, with everything repaired.
    pub fn boot(&mut self, process: u64) {
        self.process = process;
        self.off = false;
        self.stop_at = None;
        self.stop_at_sync = None;
        self.fault = DiskFault::default();
        self.rot = 0;
    }
    /// The files as they are, for another world.
    pub fn take_over(&mut self, from: &Disk) {
        self.files = from.files.clone();
        self.names = from.names.clone();
        self.capacity = from.capacity;
    }
    fn named(&mut self, path: &Path) -> Option<&mut Image> {
        let file = self.names.get(path)?;
        self.files.get_mut(file.0).map(|f| &mut f.image)
    }
    pub fn rot_pages(&mut self, path: &Path, content: &[u8], bit: u64) -> Vec<u64> {
        self.named(path).map_or_else(Vec::new, |image| image.rot(content, bit))
    }
    pub fn flip(&mut self, path: &Path, bit: u64) -> bool {
        self.named(path).is_some_and(|image| image.flip(bit))
    }
    pub fn some_page(&mut self, path: &Path, nth: u64) -> Option<Vec<u8>> {
        self.named(path)?.some_page(nth)
    }
    pub fn damage(&mut self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        self.named(path).expect("the file exists").damage(change);
    }
}
