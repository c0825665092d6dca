//! Copies of blocks on a faster device: reads that find one are answered from there, others may leave one.
//!
//! Decides nothing about worth: advised bytes are copied by their class, which the owner tells ([`FastOwner`]), others as an
//! admission policy says ([`advice::admission`]). Every copy has its checksum in memory; one that does not match is read
//! from the store. A device that fails or does not answer is given up, for good and with one message: the store has everything.
use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::path::Path;
use std::rc::{Rc, Weak};

use advice::admission::{self, AdmissionPolicy};
use advice::{Hint, Pressure};
use frames::FRAME_BYTES;
use rt::sync::{Event, join_all};
use rt::{DirLock, DiskFile, Rt};
use types::{Duration, MIB, ObjectId};

use super::changes::{Change, Stamp};
use super::device::{Device, FastError};
use super::index::{Copied, Index, UNIT_BLOCKS, UNIT_BYTES, bits_of, part_of, units_of};
use crate::pages::page_crcs;
use crate::store::{BlockRange, BlockRun, Blocks, StoreIdentity};
use wire::Crc;

/// How long the device may take for one read or write before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a fetch waits for a change of what it is to copy to come to its end.
const CHANGES_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of copies that are being written at most; what comes then is not copied.
const WRITING_BYTES_MAX: u64 = 16 * MIB;
/// Blocks that did not match their checksums, after which the device is given up.
const BAD_BLOCKS_MAX: u64 = 64;

/// What a tier asks and tells the target that it belongs to.
pub trait FastOwner {
    /// The highest class in which some of these blocks have a place in the fast tier.
    fn class(&self, object: ObjectId, range: BlockRange) -> Hint;
    /// Blocks were read and found in the tier.
    fn on_hits(&self, object: ObjectId, range: BlockRange);
    /// There is no tier any more.
    fn on_off(&self);
}

/// Settings of a tier.
#[derive(Clone, Debug)]
pub struct FastConfig {
    /// Bytes of the device that it takes. At least [`super::FAST_BYTES_MIN`].
    pub bytes: u64,
    /// Admission policy by name. Default `second_touch`.
    pub admission: String,
    /// Which unit leaves first, by name of a cache policy. Default `lru`.
    pub reclaim: String,
}

impl FastConfig {
    /// The defaults for a tier of so many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> FastConfig {
        FastConfig { bytes, admission: admission::ADMISSION_DEFAULT.into(), reclaim: "lru".into() }
    }
}

/// What happened, in blocks where nothing else is said.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counters {
    pub hits: u64,
    pub misses: u64,
    pub copied_advised: u64,
    pub copied_inferred: u64,
    pub copied_writes: u64,
    /// Not copied: too much was being written, or everything in the tier mattered more.
    skipped: u64,
    /// Not published: a change overtook them.
    overtaken: u64,
    pub bad: u64,
}

/// Blocks that were to be copied; those without a place are in neither.
#[derive(Clone, Copy, Default)]
struct Outcome {
    copied: u64,
    /// Not published: a change overtook them.
    overtaken: u64,
}

/// A slot is given to nobody else until this goes.
struct Pin {
    index: Rc<RefCell<Index>>,
    slot: u32,
}
impl Drop for Pin {
    fn drop(&mut self) {
        self.index.borrow_mut().unpin(self.slot);
    }
}

/// Blocks in one slot that may be read.
pub(super) struct Found {
    pin: Pin,
    /// Blocks of the object.
    range: BlockRange,
    crcs: Vec<Crc>,
}

/// See the module's head.
pub struct FastTier {
    rt: Rt,
    target: String,
    device: Option<Device>,
    index: Rc<RefCell<Index>>,
    admission: RefCell<(&'static str, Box<dyn AdmissionPolicy>)>,
    owner: RefCell<Option<Weak<dyn FastOwner>>>,
    off: RefCell<Option<String>>,
    writing_bytes: Cell<u64>,
    /// A change has ended.
    changed: Event,
    counters: Cell<Counters>,
}

impl FastTier {
    /// Opens the tier of a store in a directory that exists, or makes it there. `lock`: wherever another process could have it
    /// open. `wrap` may put something before its file.
    ///
    /// # Errors
    /// [`FastError`]; and nothing else's file was changed.
    ///
    /// # Panics
    /// When the configuration names policies that do not exist.
    pub async fn open(
        rt: &Rt,
        dir: &Path,
        identity: &StoreIdentity,
        config: &FastConfig,
        lock: Option<DirLock>,
        wrap: impl FnOnce(Rc<dyn DiskFile>) -> Rc<dyn DiskFile>,
    ) -> Result<Rc<FastTier>, FastError> {
        let device = Device::open(rt, dir, identity, config.bytes, lock).await?.timed(wrap);
        Ok(FastTier::over(rt, identity, config, Some(device), None))
    }
    /// One that is off from the beginning, and why.
    #[must_use]
    pub fn without(rt: &Rt, identity: &StoreIdentity, config: &FastConfig, why: String) -> Rc<FastTier> {
        tracing::error!(target = identity.target(), "there is no fast tier: {why}; the store serves alone");
        FastTier::over(rt, identity, config, None, Some(why))
    }

    fn over(
        rt: &Rt,
        identity: &StoreIdentity,
        config: &FastConfig,
        device: Option<Device>,
        off: Option<String>,
    ) -> Rc<FastTier> {
        let entry = admission::ADMISSIONS.find(&config.admission).expect("the configuration was checked");
        let slots = device.as_ref().map_or(0, |d| d.slots);
        Rc::new(FastTier {
            rt: rt.clone(),
            target: identity.target(),
            device,
            index: Rc::new(RefCell::new(Index::new(slots, &config.reclaim).expect("the configuration was checked"))),
            admission: RefCell::new((entry.name, (entry.make)(&advice::Config::default()))),
            owner: RefCell::new(None),
            off: RefCell::new(off),
            writing_bytes: Cell::new(0),
            changed: Event::new(),
            counters: Cell::default(),
        })
    }

    /// The target that it belongs to.
    pub fn set_owner(&self, owner: Weak<dyn FastOwner>) {
        *self.owner.borrow_mut() = Some(owner);
    }
    fn owner(&self) -> Option<Rc<dyn FastOwner>> {
        self.owner.borrow().as_ref().and_then(Weak::upgrade)
    }
    fn class(&self, object: ObjectId, range: BlockRange) -> Hint {
        self.owner().map_or(Hint::None, |o| o.class(object, range))
    }
    fn count(&self, change: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }

    /// Whether it works.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.off.borrow().is_none()
    }
    /// Bytes that it can hold; 0 when it is off.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        let slots = self.device.as_ref().filter(|_| self.is_on()).map_or(0, |d| d.slots);
        u64::from(slots) * UNIT_BYTES
    }
    /// How hard pressed it is: high when advised blocks left in the last second, medium when others did.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        self.index.borrow_mut().pressure(self.rt.now())
    }
    /// Bytes of a range that are here.
    #[must_use]
    pub fn resident_in(&self, object: ObjectId, range: BlockRange) -> u64 {
        self.index.borrow().resident_in(object, range)
    }

    /// Gives it up for good.
    fn give_up(&self, why: &str) {
        if !self.is_on() {
            return;
        }
        tracing::error!(
            target = self.target,
            "the fast tier is off: {why}; the store has everything, and serves alone"
        );
        *self.off.borrow_mut() = Some(why.into());
        self.index.borrow_mut().clear();
        self.owner().into_iter().for_each(|o| o.on_off());
    }
    /// Waits for the device, but not for ever; `None`: it is given up.
    async fn patiently<T>(&self, what: &str, work: impl Future<Output = std::io::Result<T>>) -> Option<T> {
        match self.rt.timeout(PATIENCE, work).await {
            Some(Ok(done)) => return Some(done),
            Some(Err(e)) => self.give_up(&format!("its device failed to {what}: {e}")),
            // A process that stood still did not see the answer.
            None if self.rt.now().since(self.rt.awake_since()) < PATIENCE => {}
            None => self.give_up(&format!("its device did not {what} within {} s", PATIENCE.as_secs())),
        }
        None
    }

    /// What of a range is to be read from the store: all from the first to the last block that is not here, in one go, since
    /// a slow device pays for every place it is sent to.
    pub(super) fn missing(&self, object: ObjectId, range: BlockRange) -> BlockRange {
        if self.is_on() { self.index.borrow().missing(object, range) } else { range }
    }
    /// Counts and tells what a read found.
    pub(super) fn on_looked_up(&self, object: ObjectId, range: BlockRange, missing: BlockRange) {
        self.count(|c| {
            c.hits += range.count - missing.count;
            c.misses += missing.count;
        });
        if missing.count < range.count
            && let Some(owner) = self.owner()
        {
            let sides = [BlockRange::new(range.first, missing.first), BlockRange::new(missing.end(), range.end())];
            sides.into_iter().filter(|s| !s.is_empty()).for_each(|s| owner.on_hits(object, s));
        }
    }
    /// Blocks that [`FastTier::missing`] found here, in the same moment; pinned, to be given to [`FastTier::load`].
    pub(super) fn take(&self, object: ObjectId, range: BlockRange) -> Vec<Found> {
        let found = self.index.borrow_mut().take(object, range);
        let pinned = |(slot, range, crcs)| Found { pin: self.pin(slot), range, crcs };
        found.into_iter().map(pinned).collect()
    }
    fn pin(&self, slot: u32) -> Pin {
        Pin { index: self.index.clone(), slot }
    }
    /// Reads copies; `None` when one of them cannot be had, for whatever reason.
    pub(super) async fn load(&self, object: ObjectId, found: Vec<Found>) -> Option<Blocks> {
        let reads = found.into_iter().map(|f| self.load_one(object, f));
        let mut all = Blocks::default();
        for read in join_all(reads.collect()).await {
            let Blocks { bulk, crcs } = read?;
            all.bulk.append(bulk);
            all.crcs.extend(crcs);
        }
        Some(all)
    }
    async fn load_one(&self, object: ObjectId, found: Found) -> Option<Blocks> {
        let device = self.device.as_ref().filter(|_| self.is_on())?;
        let into = self.rt.bulk(found.range.count as usize * FRAME_BYTES).await;
        let read = device.read(found.pin.slot, found.range.first % UNIT_BLOCKS, into);
        let bulk = self.patiently("read", read).await?;
        if page_crcs(&bulk) == found.crcs {
            return Some(Blocks { bulk, crcs: found.crcs });
        }
        self.count(|c| c.bad += 1);
        tracing::warn!(target = self.target, %object, block = found.range.first,
            "a copy in the fast tier does not match its checksum: the store is read");
        self.index.borrow_mut().invalidate(object, found.range);
        if self.counters.get().bad >= BAD_BLOCKS_MAX {
            self.give_up(&format!("{BAD_BLOCKS_MAX} of its copies did not match their checksums"));
        }
        None
    }

    /// The state of a range before it is read from the store; `None`: what is read is not to be copied.
    pub(super) fn stamp(&self, object: ObjectId, range: BlockRange) -> Option<Stamp> {
        self.is_on().then(|| self.index.borrow().changes.stamp(object, range))
    }
    /// Blocks were read from the store: those worth it are copied, in the background.
    pub(super) fn consider(self: &Rc<Self>, object: ObjectId, run: BlockRun, stamp: Stamp) {
        let advised = self.class(object, run.range()) != Hint::None;
        let copies = self.worth(object, run.range(), advised);
        let blocks: u64 = copies.iter().map(|c| u64::from(c.bits.count_ones())).sum();
        if blocks == 0 {
            return;
        }
        let count =
            move |c: &mut Counters, n| *if advised { &mut c.copied_advised } else { &mut c.copied_inferred } += n;
        self.copy_behind(object, run, copies, stamp, count);
    }
    fn worth(&self, object: ObjectId, range: BlockRange, advised: bool) -> Vec<Copied> {
        let class = |part| if advised { self.class(object, part) } else { Hint::None };
        let admission = &mut self.admission.borrow_mut().1;
        self.index.borrow().worth(self.rt.now(), (object, range), class, &mut **admission)
    }
    fn copy_behind(
        self: &Rc<Self>,
        object: ObjectId,
        run: BlockRun,
        copies: Vec<Copied>,
        stamp: Stamp,
        count: impl FnOnce(&mut Counters, u64) + 'static,
    ) {
        let bytes = run.bulk.len() as u64;
        if self.writing_bytes.get() + bytes > WRITING_BYTES_MAX {
            return self.count(|c| c.skipped += run.crcs.len() as u64);
        }
        self.writing_bytes.set(self.writing_bytes.get() + bytes);
        let me = self.clone();
        self.rt.spawn(async move {
            let done = me.copy(object, &run, copies, &stamp).await;
            me.count(|c| count(c, done.copied));
            me.writing_bytes.set(me.writing_bytes.get() - bytes);
        });
    }
    /// Writes copies.
    async fn copy(&self, object: ObjectId, run: &BlockRun, copies: Vec<Copied>, stamp: &Stamp) -> Outcome {
        let writes = copies.into_iter().map(|c| self.copy_unit(object, run, c, stamp));
        let mut all = Outcome::default();
        for one in join_all(writes.collect()).await {
            all.copied += one.copied;
            all.overtaken += one.overtaken;
        }
        self.count(|c| c.overtaken += all.overtaken);
        all
    }
    async fn copy_unit(&self, object: ObjectId, run: &BlockRun, copy: Copied, stamp: &Stamp) -> Outcome {
        let Some(device) = self.device.as_ref().filter(|_| self.is_on()) else { return Outcome::default() };
        let current = |index: &Index| index.changes.is_current(object, copy.unit, stamp);
        let blocks = u64::from(copy.bits.count_ones());
        // What was advised when it was read may have been withdrawn since, and of that nobody would hear any more.
        let hint = self.class(object, BlockRange { first: copy.unit * UNIT_BLOCKS, count: UNIT_BLOCKS });
        let reserved = {
            let mut index = self.index.borrow_mut();
            if !current(&index) {
                return Outcome { copied: 0, overtaken: blocks };
            }
            index.reserve((object, copy.unit), copy.bits, hint)
        };
        let Some((slot, mut left)) = reserved else {
            self.count(|c| c.skipped += blocks);
            return Outcome::default();
        };
        let (_pin, mut done) = (self.pin(slot), Outcome::default());
        while left != 0 {
            let (first, count) = (left.trailing_zeros(), (left >> left.trailing_zeros()).trailing_ones());
            let part = BlockRange { first: copy.unit * UNIT_BLOCKS + u64::from(first), count: u64::from(count) };
            left &= !bits_of(part);
            let at = (part.first - run.first) as usize;
            let bulk = run.bulk.slice(at * FRAME_BYTES, count as usize * FRAME_BYTES);
            if self.patiently("write", device.write(slot, u64::from(first), bulk)).await.is_none() {
                break;
            }
            let mut index = self.index.borrow_mut();
            if !self.is_on() || !current(&index) {
                done.overtaken += u64::from((left | bits_of(part)).count_ones());
                break;
            }
            index.publish(slot, part, &run.crcs[at..at + count as usize]);
            done.copied += u64::from(count);
        }
        done
    }

    /// Copies blocks that were just read for that, and waits for it. Whether a change overtook none of them.
    pub(super) async fn promote(&self, object: ObjectId, run: &BlockRun, stamp: &Stamp) -> bool {
        let copies = units_of(run.range()).map(|unit| {
            let part = part_of(run.range(), unit);
            Copied { unit, bits: bits_of(part), hint: self.class(object, part) }
        });
        // Withdrawn meanwhile.
        let copies = copies.filter(|c| c.hint != Hint::None).collect();
        let done = self.copy(object, run, copies, stamp).await;
        self.count(|c| c.copied_advised += done.copied);
        done.overtaken == 0 || !self.is_on()
    }

    /// Waits until nothing of a range, or of what shares its counters, is changing, but not for ever: what is read amid a change is
    /// not copied.
    pub async fn unchanged(&self, object: ObjectId, range: BlockRange) {
        if !self.is_changing(object, range) {
            return;
        }
        let ended = async {
            loop {
                let change = self.changed.wait();
                if !self.is_changing(object, range) {
                    return;
                }
                change.await;
            }
        };
        let _ = self.rt.timeout(CHANGES_WITHIN, ended).await;
    }
    fn is_changing(&self, object: ObjectId, range: BlockRange) -> bool {
        self.index.borrow().changes.is_changing(object, range)
    }

    /// Ranges begin to change: their copies are gone before anything else happens.
    pub(super) fn begin(&self, ranges: &[(ObjectId, BlockRange)]) -> Change {
        let index = &mut *self.index.borrow_mut();
        let change = index.changes.begin(ranges);
        if !types::planted!("fast-copy-kept") {
            ranges.iter().for_each(|(object, range)| index.invalidate(*object, *range));
        }
        change
    }
    /// A change has ended. Whether what it wrote is what is there.
    pub(super) fn end(&self, change: &Change) -> bool {
        let whole = self.index.borrow_mut().changes.end(change);
        self.changed.notify();
        whole
    }
    /// Blocks that were written, and of which there were copies or are to be, are copied anew, in the background.
    pub(super) fn rewrite(self: &Rc<Self>, object: ObjectId, run: BlockRun) {
        let Some(stamp) = self.stamp(object, run.range()) else { return };
        let copies = units_of(run.range()).map(|unit| {
            let part = part_of(run.range(), unit);
            Copied { unit, bits: bits_of(part), hint: self.class(object, part) }
        });
        let copies = copies.collect();
        self.copy_behind(object, run, copies, stamp, |c, n| c.copied_writes += n);
    }
    /// Whether blocks that are being written are to have copies.
    pub(super) fn wants(&self, object: ObjectId, range: BlockRange) -> bool {
        self.is_on() && (self.resident_in(object, range) > 0 || self.class(object, range) != Hint::None)
    }

    /// What is here of a range has another class now.
    pub fn readvise(&self, object: ObjectId, range: BlockRange) {
        self.index.borrow_mut().readvise(object, range, |part| self.class(object, part));
    }
    /// What is here of a range and nobody advised goes.
    pub fn drop_unadvised(&self, object: ObjectId, range: BlockRange) {
        self.index.borrow_mut().drop_unadvised(object, range);
    }

    /// Names of the admission policy and of the one that says what leaves.
    #[must_use]
    pub fn policies(&self) -> (&'static str, &'static str) {
        (self.admission.borrow().0, self.index.borrow().policy_name())
    }
    /// Changes the admission policy, which forgets what it remembered.
    ///
    /// # Errors
    /// A sentence with those that exist.
    pub fn set_admission(&self, name: &str, config: &advice::Config) -> Result<(), String> {
        let entry = admission::ADMISSIONS.find(name).map_err(|e| e.to_string())?;
        *self.admission.borrow_mut() = (entry.name, (entry.make)(config));
        Ok(())
    }
    /// Changes which unit leaves first.
    ///
    /// # Errors
    /// A sentence with the policies that exist.
    pub fn set_reclaim(&self, name: &str) -> Result<(), String> {
        self.index.borrow_mut().switch(name)
    }
    /// Gives it up as an administrator wishes.
    pub fn switch_off(&self) {
        self.give_up("an administrator switched it off");
    }
    /// What happened so far.
    pub(crate) fn counters(&self) -> Counters {
        self.counters.get()
    }
    /// Bytes that it holds.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.index.borrow().resident_bytes()
    }
    /// Its state and counters.
    #[must_use]
    pub fn text(&self) -> String {
        let (index, c) = (self.index.borrow(), self.counters.get());
        let mut text = match &*self.off.borrow() {
            None => "state: on\n".to_string(),
            Some(why) => format!("state: off: {why}\n"),
        };
        let (unadvised, advised) = index.reclaimed();
        let rows = [
            ("size_bytes", self.capacity_bytes()),
            ("resident_bytes", index.resident_bytes()),
            ("hit_blocks", c.hits),
            ("missed_blocks", c.misses),
            ("copied_advised_blocks", c.copied_advised),
            ("copied_inferred_blocks", c.copied_inferred),
            ("copied_written_blocks", c.copied_writes),
            ("skipped_blocks", c.skipped),
            ("overtaken_blocks", c.overtaken),
            ("reclaimed_unadvised_blocks", unadvised),
            ("reclaimed_advised_blocks", advised),
            ("bad_copies", c.bad),
        ];
        for (name, value) in rows {
            let _ = writeln!(text, "{name}: {value}");
        }
        text
    }
}
