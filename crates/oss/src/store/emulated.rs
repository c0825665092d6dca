//! Another store, or a file, behind the timing of a device that this machine does not have, in the time of the world it runs in.
//!
//! Decides when an operation is done: an allocator gives its bytes their places, and a [`devices::Device`], the very model of
//! the simulator, says how long it takes until the elevator hands them on and the disk has moved them. It keeps no bytes itself.
//! What stands in the inner store already when an object is first used lies in one piece, object behind object.
//! The device's own clock runs: what waited when a request ended begins at that end, however late this process was woken.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;

use devices::{Access, AllocKind, Allocator, Device, DeviceProfile, ElevatorConfig, ElevatorKind, RegionMap};
use frames::Bulk;
use nrs::Medium;
use rt::sync::{Event, OneSender, oneshot};
use rt::{DiskFile, LocalFuture, Rt};
use types::scrub::Looked;
use types::{ClientId, Instant, ObjectId, Origin, Transno, WallTime};
use wire::connect::Opening;

use super::{
    Applied, BLOCK_BYTES, BadBlock, BlockRange, Blocks, Charged, DiskOp, DiskRun, DiskStats, Fenced, FoundMedium,
    ObjectAttr, ObjectInfo, ObjectStore, Promise, ReplyRecord, Space, StoreIdentity, StoreResult, Update,
};

/// What of an operation the device has not done yet.
struct Waiting {
    number: u64,
    pieces: u32,
    done: OneSender<()>,
}

/// The device and what waits for it.
struct Running {
    device: Device,
    allocator: Allocator,
    places: BTreeMap<ObjectId, RegionMap>,
    /// By owner of pieces.
    waiting: Vec<Option<Waiting>>,
    free: Vec<u32>,
    /// Numbers of writes that are not done.
    writes: BTreeSet<u64>,
    operations: u64,
}

/// A store with another's bytes and a device's timing.
pub struct EmulatedStore(Rc<Emulation>);

struct Emulation {
    inner: Rc<dyn ObjectStore>,
    elevator: ElevatorKind,
    timing: Rc<Timing>,
}

/// When the requests of one device are done.
struct Timing {
    rt: Rt,
    running: RefCell<Running>,
    written: Event,
    disk: DiskStats,
}

impl EmulatedStore {
    /// Puts `profile`'s timing before `inner`, in order of arrival; neighbours that wait are merged.
    #[must_use]
    pub fn new(rt: Rt, inner: Rc<dyn ObjectStore>, profile: DeviceProfile) -> Rc<EmulatedStore> {
        EmulatedStore::behind(rt, inner, profile, ElevatorKind::Noop)
    }

    /// Puts `profile`'s timing before `inner`, in the order of an elevator.
    #[must_use]
    pub fn behind(rt: Rt, inner: Rc<dyn ObjectStore>, profile: DeviceProfile, kind: ElevatorKind) -> Rc<EmulatedStore> {
        Rc::new(EmulatedStore(Rc::new(Emulation { inner, elevator: kind, timing: Timing::new(rt, profile, kind) })))
    }

    /// Requests that did not continue where the medium was left.
    #[must_use]
    pub fn seeks(&self) -> u64 {
        self.0.timing.running.borrow().device.stats().seeks
    }
}

impl Running {
    /// Where `ranges` of an object lie: places for what is written, none for holes that are read.
    fn pieces(&mut self, op: DiskOp, object: ObjectId, ranges: &[BlockRange]) -> Vec<(u64, u64)> {
        let Running { allocator, places, .. } = self;
        let map = places.entry(object).or_default();
        let mut pieces = Vec::with_capacity(ranges.len());
        for range in ranges {
            let (start, len) = (range.first * BLOCK_BYTES, range.count * BLOCK_BYTES);
            match op {
                DiskOp::Write if len > 0 => allocator.write(map, start, len, |lba, n| pieces.push((lba, n))),
                DiskOp::Write => {}
                DiskOp::Read => map.lookup(start, len, |lba, n| pieces.push((lba, n))),
            }
        }
        pieces
    }

    fn wait(&mut self, op: DiskOp, pieces: usize, done: OneSender<()>) -> u32 {
        self.operations += 1;
        let number = self.operations;
        if op == DiskOp::Write {
            self.writes.insert(number);
        }
        let owner = self.free.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            (self.waiting.len() - 1) as u32
        });
        self.waiting[owner as usize] = Some(Waiting { number, pieces: pieces as u32, done });
        owner
    }

    /// The disk request in `slot` is complete. Whether a write is.
    fn finish(&mut self, slot: u32) -> bool {
        let Running { device, waiting, free, writes, .. } = self;
        let mut wrote = false;
        device.finish(slot, |owner| {
            let place = &mut waiting[owner as usize];
            let Some(w) = place else { return };
            w.pieces -= 1;
            if w.pieces > 0 {
                return;
            }
            if let Some(w) = place.take() {
                wrote |= writes.remove(&w.number);
                free.push(owner);
                w.done.send(());
            }
        });
        wrote
    }
}

impl Emulation {
    /// What an object that is used for the first time has in the inner store gets its place.
    async fn find(&self, object: ObjectId) {
        if self.timing.running.borrow().places.contains_key(&object) {
            return;
        }
        let size = self.inner.attr(object).await.map_or(0, |a| a.size).next_multiple_of(BLOCK_BYTES);
        self.timing.lies(object, size);
    }
}

impl Timing {
    fn new(rt: Rt, profile: DeviceProfile, kind: ElevatorKind) -> Rc<Timing> {
        let elevator = ElevatorConfig { kind, ..ElevatorConfig::default() };
        let running = Running {
            device: Device::new(profile, elevator, rt.rng("emulated device")),
            allocator: Allocator::new(AllocKind::Mballoc),
            places: BTreeMap::new(),
            waiting: Vec::new(),
            free: Vec::new(),
            writes: BTreeSet::new(),
            operations: 0,
        };
        Rc::new(Timing { rt, running: RefCell::new(running), written: Event::new(), disk: DiskStats::default() })
    }

    /// An object of `size` bytes that has no place yet lies in one piece from now on.
    fn lies(&self, object: ObjectId, size: u64) {
        let Running { allocator, places, .. } = &mut *self.running.borrow_mut();
        let map = places.entry(object).or_default();
        if size > 0 && map.regions().is_empty() {
            allocator.write(map, 0, size, |_, _| {});
        }
    }

    /// Waits until the device has moved `ranges`.
    async fn pass(self: &Rc<Self>, op: DiskOp, object: ObjectId, ranges: &[BlockRange]) {
        let now = self.rt.now();
        let transfer = self.disk.begin(op, ranges.iter().map(|r| r.count).sum(), now);
        let pieces = self.running.borrow_mut().pieces(op, object, ranges);
        let run = |&(lba, len): &(u64, u64)| DiskRun { start: lba / BLOCK_BYTES, blocks: len / BLOCK_BYTES };
        self.disk.call(op, pieces.iter().map(run));
        if pieces.is_empty() {
            return transfer.done(now);
        }
        let (done, end) = oneshot();
        let owner = self.running.borrow_mut().wait(op, pieces.len(), done);
        for (lba, len) in pieces {
            let access = Access { lba, len, write: op == DiskOp::Write };
            let unplug = self.running.borrow_mut().device.submit(now.0, owner, access);
            if let Some(at) = unplug {
                self.clone().unplug_at(at);
            }
        }
        self.start(now.0);
        let _ = end.await;
        transfer.done(self.rt.now());
    }

    /// Hands the disk all it takes from `at` on.
    fn start(self: &Rc<Self>, at: u64) {
        loop {
            let next = self.running.borrow_mut().device.start_next(at);
            let Some((slot, done_at)) = next else { return };
            let me = self.clone();
            self.rt.spawn(async move {
                me.rt.sleep_until(Instant(done_at)).await;
                let wrote = me.running.borrow_mut().finish(slot);
                if wrote {
                    me.written.notify();
                }
                me.start(done_at);
            });
        }
    }

    fn unplug_at(self: Rc<Self>, at: u64) {
        let rt = self.rt.clone();
        rt.spawn(async move {
            self.rt.sleep_until(Instant(at)).await;
            self.running.borrow_mut().device.on_timer(at);
            self.start(at);
        });
    }

    /// Waits until the writes of before are on the medium.
    async fn settle(&self) {
        let last = self.running.borrow().operations;
        while self.running.borrow().writes.first().is_some_and(|n| *n <= last) {
            self.written.wait().await;
        }
        let destaged = self.running.borrow().device.destaged_at();
        self.rt.sleep_until(Instant(destaged)).await;
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
        let profile = *self.0.timing.running.borrow().device.profile();
        let (medium, seeks) =
            if profile.seeks() { (Medium::Rotating, "seeks") } else { (Medium::Flash, "does not seek") };
        FoundMedium { medium, why: format!("the emulated device '{}' {seeks}", profile.name) }
    }
    fn disk(&self) -> Option<&DiskStats> {
        Some(&self.0.timing.disk)
    }
    fn emulated(&self) -> Option<(DeviceProfile, ElevatorKind)> {
        Some((*self.0.timing.running.borrow().device.profile(), self.0.elevator))
    }
    fn boot(&self) -> u64 {
        self.0.inner.boot()
    }
    fn openings(&self) -> &[Opening] {
        self.0.inner.openings()
    }
    fn keep_mark(&self) -> LocalFuture<StoreResult<()>> {
        self.0.inner.keep_mark()
    }
    fn disown(&self, boot: u64) -> LocalFuture<StoreResult<()>> {
        self.0.inner.disown(boot)
    }
    fn lose(&self, seq: u64, to: u32) -> LocalFuture<StoreResult<()>> {
        self.0.inner.lose(seq, to)
    }
    fn attr(&self, object: ObjectId) -> LocalFuture<StoreResult<ObjectAttr>> {
        self.0.inner.attr(object)
    }
    fn read(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<Blocks>> {
        let me = self.0.clone();
        Box::pin(async move {
            me.find(object).await;
            me.timing.pass(DiskOp::Read, object, &[range]).await;
            me.inner.read(object, range).await
        })
    }
    fn update(&self, object: ObjectId, update: Update) -> LocalFuture<StoreResult<Applied>> {
        let me = self.0.clone();
        Box::pin(async move {
            let ranges: Vec<BlockRange> = update.puts.iter().map(super::BlockRun::range).collect();
            if !ranges.is_empty() {
                me.find(object).await;
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
        objects.iter().for_each(|o| drop(self.0.timing.running.borrow_mut().places.remove(o)));
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
            me.timing.settle().await;
            me.inner.sync().await
        })
    }
    fn last_committed(&self) -> Transno {
        self.0.inner.last_committed()
    }
    fn space(&self) -> Space {
        self.0.inner.space()
    }
    fn promised(&self, bytes: u64) {
        self.0.inner.promised(bytes);
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
    fn look_at_pages(&self, bytes: u64) -> LocalFuture<StoreResult<Looked>> {
        self.0.inner.look_at_pages(bytes)
    }
    fn quiet(&self) -> Vec<(ClientId, Vec<u8>)> {
        self.0.inner.quiet()
    }
    fn note_quiet(&self, client: ClientId, held: Vec<u8>) -> bool {
        self.0.inner.note_quiet(client, held)
    }
    fn quiet_no_more(&self, client: ClientId) -> LocalFuture<StoreResult<()>> {
        self.0.inner.quiet_no_more(client)
    }
    fn revoked(&self) -> Vec<(u64, WallTime)> {
        self.0.inner.revoked()
    }
    fn revoke(&self, credentials: Vec<(u64, WallTime)>, since: WallTime) -> LocalFuture<StoreResult<()>> {
        self.0.inner.revoke(credentials, since)
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
    fn usage(&self, who: Charged) -> u64 {
        self.0.inner.usage(who)
    }
    fn is_owned(&self) -> bool {
        self.0.inner.is_owned()
    }
    fn set_owned(&self) -> LocalFuture<StoreResult<()>> {
        self.0.inner.set_owned()
    }
    fn shares(&self) -> Vec<(Charged, u64)> {
        self.0.inner.shares()
    }
    fn set_shares(&self, shares: Vec<(Charged, Option<u64>)>) -> LocalFuture<StoreResult<()>> {
        self.0.inner.set_shares(shares)
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
    fn failure_text(&self) -> Option<String> {
        self.0.inner.failure_text()
    }
    fn is_damaged(&self) -> bool {
        self.0.inner.is_damaged()
    }
    fn close(&self) -> LocalFuture<StoreResult<()>> {
        self.0.inner.close()
    }
}

/// Size of the device that a file stands for: its offsets are places there.
const FILE_BYTES_MAX: u64 = 1 << 44;

/// A file with another's bytes and a device's timing; offsets and lengths in whole blocks.
pub struct EmulatedFile(Rc<TimedFile>);

struct TimedFile {
    inner: Rc<dyn DiskFile>,
    timing: Rc<Timing>,
}

impl EmulatedFile {
    /// Puts `profile`'s timing before `inner`.
    #[must_use]
    pub fn new(rt: Rt, inner: Rc<dyn DiskFile>, profile: DeviceProfile) -> Rc<EmulatedFile> {
        let timing = Timing::new(rt, profile, ElevatorKind::Noop);
        timing.lies(ObjectId::default(), FILE_BYTES_MAX);
        Rc::new(EmulatedFile(Rc::new(TimedFile { inner, timing })))
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
