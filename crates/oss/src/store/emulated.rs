//! Another store, or a file, behind the timing of a disk that this machine does not have, in real time.
//!
//! Decides when an operation would be done: a seek when a request does not continue where its spindle stands, then
//! bytes at the spindle's bandwidth; writes into a write-back cache return at once while it has room. It does not
//! reorder (a queue behind one spindle is served in the order of arrival) and keeps no bytes itself.
//! Source: paper 001 section 5's disk (500 MB/s, 2 ms for a request that does not continue the last one).
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use frames::Bulk;
use nrs::Medium;
use rt::{DiskFile, LocalFuture, Rt};
use types::{ClientId, Duration, Instant, MIB, ObjectId, Origin, Transno};

use super::{
    Applied, BLOCK_BYTES, BadBlock, BlockRange, Blocks, DiskOp, DiskRun, DiskStats, Fenced, FoundMedium, ObjectAttr,
    ObjectInfo, ObjectStore, Promise, ReplyRecord, Space, StoreIdentity, StoreResult, Update,
};

/// Timing of a storage device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProfile {
    /// Name in configuration.
    pub name: String,
    /// Milliseconds for a request that does not start where the last one of its spindle ended. 0: no seeks.
    pub seek_ms: f64,
    /// Streaming bytes per second of one spindle.
    pub bandwidth_bytes_per_s: u64,
    /// Independent spindles; regions of an object go round them. >= 1.
    pub spindles: u32,
    /// Microseconds of every request beside its bytes.
    pub request_us: f64,
    /// Bytes that writes may be ahead of the spindles. 0: no write-back cache.
    pub write_cache_bytes: u64,
    /// Requests under way at a time; others wait. >= 1.
    pub queue_depth: u32,
}

/// Bytes that lie together on one spindle.
const REGION_BYTES: u64 = 8 * MIB;

impl DeviceProfile {
    /// A profile by name: `paper001`, `hdd`, `raid`, `ssd`, `nvme`.
    ///
    /// # Errors
    /// A sentence with the names that exist.
    pub fn named(name: &str) -> Result<DeviceProfile, String> {
        let (seek_ms, mb_per_s, spindles, request_us, cache_mib, depth) = match name {
            "paper001" => (2.0, 500, 1, 20.0, 0, 64),
            "hdd" => (8.5, 180, 1, 100.0, 0, 32),
            "raid" => (8.5, 180, 8, 100.0, 256, 64),
            "ssd" => (0.0, 530, 1, 80.0, 0, 32),
            "nvme" => (0.0, 700, 4, 15.0, 0, 256),
            _ => return Err(format!("'{name}' is not a device profile; there are: paper001, hdd, raid, ssd, nvme")),
        };
        Ok(DeviceProfile {
            name: name.into(),
            seek_ms,
            bandwidth_bytes_per_s: mb_per_s * 1_000_000,
            spindles,
            request_us,
            write_cache_bytes: cache_mib * MIB,
            queue_depth: depth,
        })
    }
}

#[derive(Clone, Default)]
struct Spindle {
    free_at: Instant,
    head: u64,
}

#[derive(Default)]
struct Device {
    spindles: Vec<Spindle>,
    /// Place of each (object, region) on its spindle.
    places: BTreeMap<(ObjectId, u64), u64>,
    next_region: u64,
    seeks: u64,
}

/// A store with another's bytes and a device's timing.
pub struct EmulatedStore(Rc<Emulation>);

struct Emulation {
    inner: Rc<dyn ObjectStore>,
    timing: Timing,
}

/// When the requests of one device would be done.
struct Timing {
    rt: Rt,
    profile: DeviceProfile,
    device: RefCell<Device>,
    slots: rt::sync::Semaphore,
    disk: DiskStats,
}

impl EmulatedStore {
    /// Puts `profile`'s timing before `inner`.
    #[must_use]
    pub fn new(rt: Rt, inner: Rc<dyn ObjectStore>, profile: DeviceProfile) -> Rc<EmulatedStore> {
        Rc::new(EmulatedStore(Rc::new(Emulation { inner, timing: Timing::new(rt, profile) })))
    }

    /// Requests that did not continue where a spindle stood.
    #[must_use]
    pub fn seeks(&self) -> u64 {
        self.0.timing.device.borrow().seeks
    }
}

impl Timing {
    fn new(rt: Rt, profile: DeviceProfile) -> Timing {
        let spindles = vec![Spindle::default(); profile.spindles.max(1) as usize];
        let slots = rt::sync::Semaphore::new(profile.queue_depth.max(1) as usize);
        let device = RefCell::new(Device { spindles, ..Device::default() });
        Timing { rt, profile, device, slots, disk: DiskStats::default() }
    }

    /// Books `ranges` on the device; answers when they would be done.
    fn book(&self, op: DiskOp, object: ObjectId, ranges: &[BlockRange]) -> Instant {
        let mut done = self.rt.now();
        let mut runs = Vec::with_capacity(ranges.len());
        for range in ranges {
            let (mut at, end) = (range.first * BLOCK_BYTES, range.end() * BLOCK_BYTES);
            while at < end {
                let stop = ((at / REGION_BYTES + 1) * REGION_BYTES).min(end);
                let (free_at, run) = self.book_piece(object, at, stop - at);
                done = done.max(free_at);
                runs.push(run);
                at = stop;
            }
        }
        self.disk.call(op, runs.into_iter());
        done
    }

    /// When a piece would be done, and where it lies on all spindles put in a row.
    fn book_piece(&self, object: ObjectId, offset: u64, len: u64) -> (Instant, DiskRun) {
        let d = &mut *self.device.borrow_mut();
        let region = match d.places.get(&(object, offset / REGION_BYTES)) {
            Some(r) => *r,
            None => {
                let r = d.next_region;
                d.next_region += 1;
                d.places.insert((object, offset / REGION_BYTES), r);
                r
            }
        };
        let count = d.spindles.len() as u64;
        let spindle = &mut d.spindles[(region % count) as usize];
        let place = region / count * REGION_BYTES + offset % REGION_BYTES;
        let seeks = spindle.head != place && self.profile.seek_ms > 0.0;
        let mut ns = self.profile.request_us * 1e3 + len as f64 * 1e9 / self.profile.bandwidth_bytes_per_s as f64;
        if seeks {
            ns += self.profile.seek_ms * 1e6;
        }
        spindle.head = place + len;
        spindle.free_at = spindle.free_at.max(self.rt.now()) + Duration::from_nanos(ns as u64);
        d.seeks += u64::from(seeks);
        let run =
            DiskRun { start: (region * REGION_BYTES + offset % REGION_BYTES) / BLOCK_BYTES, blocks: len / BLOCK_BYTES };
        (d.spindles[(region % count) as usize].free_at, run)
    }

    /// When a write that is done at `done` may be answered.
    fn answer_at(&self, done: Instant) -> Instant {
        if self.profile.write_cache_bytes == 0 {
            return done;
        }
        let rate = self.profile.bandwidth_bytes_per_s * u64::from(self.profile.spindles.max(1));
        let ahead = Duration::from_secs_f64(self.profile.write_cache_bytes as f64 / rate as f64);
        let behind = done.since(self.rt.now());
        self.rt.now() + behind.saturating_sub(ahead)
    }

    /// Waits until a request booked by `book` may be answered, holding a slot of the device.
    async fn pass(&self, op: DiskOp, object: ObjectId, ranges: &[BlockRange]) {
        self.slots.acquire(1).await;
        let transfer = self.disk.begin(op, ranges.iter().map(|r| r.count).sum(), self.rt.now());
        let booked = self.book(op, object, ranges);
        self.rt.sleep_until(if op == DiskOp::Write { self.answer_at(booked) } else { booked }).await;
        transfer.done(self.rt.now());
        self.slots.add(1);
    }
}

impl ObjectStore for EmulatedStore {
    fn kind(&self) -> &'static str {
        "emulated"
    }
    fn identity(&self) -> StoreIdentity {
        self.0.inner.identity()
    }
    fn medium(&self) -> FoundMedium {
        let (medium, seeks) = if self.0.timing.profile.seek_ms > 0.0 {
            (Medium::Rotating, "seeks")
        } else {
            (Medium::Flash, "does not seek")
        };
        FoundMedium { medium, why: format!("the emulated device '{}' {seeks}", self.0.timing.profile.name) }
    }
    fn disk(&self) -> Option<&DiskStats> {
        Some(&self.0.timing.disk)
    }
    fn boot(&self) -> u64 {
        self.0.inner.boot()
    }
    fn attr(&self, object: ObjectId) -> LocalFuture<StoreResult<ObjectAttr>> {
        self.0.inner.attr(object)
    }
    fn read(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<Blocks>> {
        let me = self.0.clone();
        Box::pin(async move {
            me.timing.pass(DiskOp::Read, object, &[range]).await;
            me.inner.read(object, range).await
        })
    }
    fn update(&self, object: ObjectId, update: Update) -> LocalFuture<StoreResult<Applied>> {
        let me = self.0.clone();
        Box::pin(async move {
            let ranges: Vec<BlockRange> = update.puts.iter().map(super::BlockRun::range).collect();
            if !ranges.is_empty() {
                me.timing.pass(DiskOp::Write, object, &ranges).await;
            }
            me.inner.update(object, update).await
        })
    }
    fn create(&self, seq: u64, to: u32) -> LocalFuture<StoreResult<()>> {
        self.0.inner.create(seq, to)
    }
    fn last_object(&self, seq: u64) -> u32 {
        self.0.inner.last_object(seq)
    }
    fn destroy(&self, objects: Vec<ObjectId>, replay: Option<Transno>) -> LocalFuture<StoreResult<Transno>> {
        self.0.inner.destroy(objects, replay)
    }
    fn seek(&self, object: ObjectId, block: u64, data: bool) -> LocalFuture<StoreResult<Option<u64>>> {
        self.0.inner.seek(object, block, data)
    }
    fn reserved(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<u64>> {
        self.0.inner.reserved(object, range)
    }
    fn allocated(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<u64>> {
        self.0.inner.allocated(object, range)
    }
    fn fence(&self) -> Option<&dyn Fenced> {
        self.0.inner.fence()
    }
    fn sync(&self) -> LocalFuture<StoreResult<()>> {
        let me = self.0.clone();
        Box::pin(async move {
            let idle = |d: &Device| d.spindles.iter().map(|s| s.free_at).max();
            let until = idle(&me.timing.device.borrow()).unwrap_or_else(|| me.timing.rt.now());
            me.timing.rt.sleep_until(until).await;
            me.inner.sync().await
        })
    }
    fn last_committed(&self) -> Transno {
        self.0.inner.last_committed()
    }
    fn space(&self) -> Space {
        self.0.inner.space()
    }
    fn lost_through(&self) -> u32 {
        self.0.inner.lost_through()
    }
    fn sessions(&self) -> Vec<(ClientId, u64)> {
        self.0.inner.sessions()
    }
    fn origin_of(&self, client: ClientId) -> Origin {
        self.0.inner.origin_of(client)
    }
    fn answers_of(&self, client: ClientId) -> Vec<ReplyRecord> {
        self.0.inner.answers_of(client)
    }
    fn session_open(&self, client: ClientId, number: u64, origin: Origin) -> LocalFuture<StoreResult<()>> {
        self.0.inner.session_open(client, number, origin)
    }
    fn session_close(&self, client: ClientId) -> LocalFuture<StoreResult<()>> {
        self.0.inner.session_close(client)
    }
    fn advice(&self) -> Vec<(ObjectId, Vec<u8>)> {
        self.0.inner.advice()
    }
    fn set_advice(&self, object: ObjectId, record: Vec<u8>) -> LocalFuture<StoreResult<()>> {
        self.0.inner.set_advice(object, record)
    }
    fn promises(&self) -> Vec<(ObjectId, Promise)> {
        self.0.inner.promises()
    }
    fn set_promise(&self, object: ObjectId, promise: Option<Promise>) -> LocalFuture<StoreResult<()>> {
        self.0.inner.set_promise(object, promise)
    }
    fn objects(&self, after: ObjectId, count: usize) -> LocalFuture<StoreResult<Vec<ObjectInfo>>> {
        self.0.inner.objects(after, count)
    }
    fn verify(&self, object: ObjectId) -> LocalFuture<StoreResult<Vec<BadBlock>>> {
        self.0.inner.verify(object)
    }
    fn failure(&self) -> Option<types::FsError> {
        self.0.inner.failure()
    }
    fn close(&self) -> LocalFuture<StoreResult<()>> {
        self.0.inner.close()
    }
}

/// A file with another's bytes and a device's timing; offsets and lengths in whole blocks.
pub struct EmulatedFile(Rc<TimedFile>);

struct TimedFile {
    inner: Rc<dyn DiskFile>,
    timing: Timing,
}

impl EmulatedFile {
    /// Puts `profile`'s timing before `inner`.
    #[must_use]
    pub fn new(rt: Rt, inner: Rc<dyn DiskFile>, profile: DeviceProfile) -> Rc<EmulatedFile> {
        Rc::new(EmulatedFile(Rc::new(TimedFile { inner, timing: Timing::new(rt, profile) })))
    }
}

impl TimedFile {
    async fn pass(&self, op: DiskOp, offset: u64, bytes: usize) {
        let range = BlockRange { first: offset / BLOCK_BYTES, count: (bytes as u64).div_ceil(BLOCK_BYTES) };
        self.timing.pass(op, ObjectId::default(), &[range]).await;
    }
}

impl DiskFile for EmulatedFile {
    fn read_at(&self, offset: u64, into: Bulk) -> LocalFuture<(io::Result<usize>, Bulk)> {
        let me = self.0.clone();
        Box::pin(async move {
            me.pass(DiskOp::Read, offset, into.len()).await;
            me.inner.read_at(offset, into).await
        })
    }
    fn write_at(&self, offset: u64, from: Bulk) -> LocalFuture<io::Result<()>> {
        let me = self.0.clone();
        Box::pin(async move {
            me.pass(DiskOp::Write, offset, from.len()).await;
            me.inner.write_at(offset, from).await
        })
    }
    fn sync(&self) -> LocalFuture<io::Result<()>> {
        self.0.inner.sync()
    }
    fn allocate(&self, offset: u64, len: u64) -> LocalFuture<io::Result<()>> {
        self.0.inner.allocate(offset, len)
    }
    fn punch(&self, offset: u64, len: u64) -> LocalFuture<io::Result<()>> {
        self.0.inner.punch(offset, len)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.inner.len()
    }
    fn allocated(&self) -> io::Result<u64> {
        self.0.inner.allocated()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.inner.set_len(len)
    }
    fn space(&self) -> io::Result<(u64, u64)> {
        self.0.inner.space()
    }
}
