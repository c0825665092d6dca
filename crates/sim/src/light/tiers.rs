//! What an OST does about advice, and its fast tier: copies of blocks on a second, faster device before its disk.
//!
//! Decides nothing itself. The advice room says where advised bytes have a place and what is fetched for that, and what
//! unadvised bytes are worth a copy; which copy leaves is the index's of the real tier (`oss::fast::index`), with its classes
//! and its policy of the cache room. Here are the devices' parts: a read's copies and copies that are written take their time
//! on the fast device, and advised bytes are read in turns of 1 MiB when no request waits for the disk.
use super::config::LightConfig;
use crate::block_cache::CacheSettings;
use crate::metrics::Metrics;
use advice::admission::{ADMISSIONS, AdmissionPolicy};
use advice::jobs::{Jobs, Piece};
use advice::{Advice, Advisor, Hint, Pressure, Step, Tier};
use devices::{Access, Device, DeviceProfile, ElevatorConfig, ElevatorKind};
use oss::fast::index::{Copied, Index, UNIT_BLOCKS, UNIT_BYTES};
use oss::store::{BLOCK_BYTES, BlockRange};
use std::collections::BTreeMap;
use types::{Extent, Instant, ObjectId, Rng};

/// Bytes of copies that are being written at most, as at a real OST; what comes then is not copied.
const WRITING_BYTES_MAX: u64 = 16 << 20;
/// Bytes that are fetched at a time.
const TURN_BYTES: u64 = 1 << 20;
/// Owner of a write of the fast device that is a copy, not a request's.
pub(super) const COPY: u32 = 1 << 31;
/// Owner of a read of the disk that fetches advised bytes.
pub(super) const FETCH: u32 = u32::MAX;

/// Tiers of an OST.
#[derive(Clone, PartialEq, Debug)]
pub struct Tiering {
    /// Bytes of the fast tier; 0: none.
    pub fast_bytes: u64,
    /// Its device.
    pub fast: DeviceProfile,
    /// What is worth a copy without advice.
    pub admission: String,
    /// Which unit of 64 KiB leaves first.
    pub reclaim: String,
    /// Before what is measured clients advise their files so.
    pub level: Hint,
    /// Of all clients the first so many do.
    pub advisers: u32,
    /// The advice room's.
    pub advice: advice::Config,
}

/// What happened, in blocks of 4 KiB where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Read, and found in the fast tier.
    pub hits: u64,
    /// Read, and not found there.
    pub misses: u64,
    /// Copied because of advice, and because they came again.
    pub copied: [u64; 2],
    /// Not copied: too much was being written, or everything in the tier mattered more.
    pub skipped: u64,
    /// Left for want of room: unadvised and advised ones.
    pub left: [u64; 2],
    /// Bytes of advice, by where they have a place: memory, fast tier, none.
    pub placed: [u64; 3],
    /// Bytes that were fetched because of advice.
    pub fetched: u64,
    /// Nanoseconds from the advice to the last of them.
    pub fetch_ns: u64,
}

impl TierStats {
    /// Metrics of what there was.
    pub(super) fn push(&self, m: &mut Metrics) {
        let mib = |bytes: u64| bytes as f64 / (1u64 << 20) as f64;
        m.push("hit_ratio.fast", "share", self.hits as f64 / (self.hits + self.misses).max(1) as f64);
        m.push("fast.copied_advised_mib", "MiB", mib(self.copied[0] * BLOCK_BYTES));
        m.push("fast.copied_inferred_mib", "MiB", mib(self.copied[1] * BLOCK_BYTES));
        m.push("fast.left_unadvised_mib", "MiB", mib(self.left[0] * BLOCK_BYTES));
        m.push("fast.left_advised_mib", "MiB", mib(self.left[1] * BLOCK_BYTES));
        m.push("fast.skipped_mib", "MiB", mib(self.skipped * BLOCK_BYTES));
        for (where_, bytes) in ["memory", "fast", "none"].into_iter().zip(self.placed) {
            m.push(format!("advised_mib.{where_}"), "MiB", mib(bytes));
        }
        if self.fetch_ns > 0 {
            let rate = self.fetched as f64 / self.fetch_ns as f64 * 1e3;
            m.push("fetch_mb_per_s", "MB/s (10^6), of the slowest OST's time", rate);
        }
    }
    /// Adds another OST's.
    pub(super) fn add(&mut self, other: &TierStats) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.skipped += other.skipped;
        self.fetched += other.fetched;
        self.fetch_ns = self.fetch_ns.max(other.fetch_ns);
        self.copied.iter_mut().zip(other.copied).for_each(|(a, b)| *a += b);
        self.left.iter_mut().zip(other.left).for_each(|(a, b)| *a += b);
        self.placed.iter_mut().zip(other.placed).for_each(|(a, b)| *a += b);
    }
}

/// A copy that is being written.
#[derive(Clone, Copy)]
struct Writing {
    slot: u32,
    copied: Copied,
    fresh: u16,
}

/// Advised bytes that are being read from the disk.
#[derive(Clone, Copy)]
struct Turn {
    piece: Piece,
    extent: Extent,
    /// Reads of the disk that are not complete.
    reads: u32,
}

/// See the module's head.
pub(super) struct Tiers {
    advisor: Advisor,
    jobs: Jobs,
    bytes: [u64; 2],
    index: Index,
    admission: Box<dyn AdmissionPolicy>,
    pub device: Device,
    writing: Vec<Writing>,
    free: Vec<u32>,
    writing_bytes: u64,
    /// Objects by what the room calls them.
    flows: BTreeMap<ObjectId, u32>,
    turn: Option<Turn>,
    /// A piece of a fetch, and from where on it is to be read.
    piece: Option<(Piece, u64)>,
    advised_at: u64,
    pub stats: TierStats,
}

/// The blocks of an extent.
fn blocks(extent: Extent) -> BlockRange {
    BlockRange::new(extent.start / BLOCK_BYTES, extent.end.div_ceil(BLOCK_BYTES))
}

fn bytes_of(range: BlockRange) -> Extent {
    Extent::new(range.first * BLOCK_BYTES, range.end() * BLOCK_BYTES)
}

impl Tiering {
    /// Checks the names of its policies.
    ///
    /// # Errors
    /// A sentence with those that exist.
    pub fn check(&self) -> Result<(), String> {
        ADMISSIONS.find(&self.admission).map_err(|e| e.to_string())?;
        Index::new(1, &self.reclaim).map(drop)
    }
}

impl Tiers {
    /// Of an OST of `config`.
    pub fn new(config: &LightConfig, tiering: &Tiering, rng: Rng) -> Tiers {
        let slots = u32::try_from(tiering.fast_bytes / UNIT_BYTES).unwrap_or(u32::MAX);
        let elevator = ElevatorConfig { kind: ElevatorKind::Noop, ..ElevatorConfig::default() };
        let entry = ADMISSIONS.find(&tiering.admission).expect("checked with the scenario");
        Tiers {
            advisor: Advisor::new(advice::POLICY_DEFAULT, tiering.advice.clone()).expect("a policy of the room"),
            jobs: Jobs::new(&tiering.advice),
            bytes: [config.ost_cache.as_ref().map_or(0, |c: &CacheSettings| c.bytes), u64::from(slots) * UNIT_BYTES],
            index: Index::new(slots, &tiering.reclaim).expect("checked with the scenario"),
            admission: (entry.make)(&tiering.advice),
            device: Device::new(tiering.fast, elevator, rng),
            writing: Vec::new(),
            free: Vec::new(),
            writing_bytes: 0,
            flows: BTreeMap::new(),
            turn: None,
            piece: None,
            advised_at: 0,
            stats: TierStats::default(),
        }
    }

    /// All of an object is advised.
    pub fn advise(&mut self, now: u64, object: ObjectId, flow: u32, bytes: u64, hint: Hint) {
        self.flows.insert(object, flow);
        self.advised_at = now;
        let pressure = [Pressure::Low, self.index.pressure(Instant(now))];
        let tiers = advice::Tiers { size_bytes: self.bytes, pressure };
        let advice = Advice {
            object,
            extent: Extent::new(0, bytes),
            hint,
            wish: advice::Wish::Auto,
            project: advice::ProjectId(0),
            user: advice::UserId(0),
            owner: advice::OwnerId(0),
        };
        let mut steps = Vec::new();
        if self.advisor.advise(&advice, &tiers, &mut steps).is_err() {
            self.stats.placed[2] += bytes;
        }
        for step in steps {
            match step {
                Step::Prefetch(object, extent, tier, hint) => {
                    self.stats.placed[tier as usize] += extent.len();
                    self.jobs.push(object, extent, tier, hint);
                }
                Step::Keep(_, extent, tier, _) => self.stats.placed[tier as usize] += extent.len(),
                Step::Refused(_, extent, _) => self.stats.placed[2] += extent.len(),
                Step::Release(object, extent, tier) | Step::Drop(object, extent, tier) => {
                    self.jobs.cancel(object, extent, tier);
                }
            }
        }
    }

    /// The class that a byte of an object has in memory.
    pub fn class_in_memory(&self, object: ObjectId, at: u64) -> cache::Advice {
        cache::Advice::ALL[self.advisor.class(object, at, Tier::Ram) as usize]
    }

    /// What of a read has to come from the disk: all from the first to the last block of which there is no copy. The rest is
    /// read from the fast device, for `owner`; how many reads that are.
    pub fn read(&mut self, now: u64, owner: u32, object: ObjectId, extent: Extent) -> (Extent, u32) {
        if self.bytes[Tier::Fast as usize] == 0 {
            return (extent, 0);
        }
        let range = blocks(extent);
        let missing = self.index.missing(object, range);
        self.stats.hits += range.count - missing.count;
        self.stats.misses += missing.count;
        if missing == range {
            return (extent, 0);
        }
        let mut reads = 0;
        for side in [BlockRange::new(range.first, missing.first), BlockRange::new(missing.end(), range.end())] {
            for (slot, part, _) in self.index.take(object, side) {
                let lba = u64::from(slot) * UNIT_BYTES + part.first % UNIT_BLOCKS * BLOCK_BYTES;
                let _ = self.device.submit(now, owner, Access { lba, len: part.count * BLOCK_BYTES, write: false });
                // Nothing is read here but time: nobody can put other bytes under it.
                self.index.unpin(slot);
                reads += 1;
            }
        }
        (bytes_of(missing), reads)
    }

    /// A part of an object was read from the disk: what is worth it is copied.
    pub fn on_read(&mut self, now: u64, object: ObjectId, extent: Extent) {
        if self.bytes[Tier::Fast as usize] == 0 {
            return;
        }
        let Tiers { advisor, index, admission, .. } = self;
        let class = |part: BlockRange| advisor.class(object, part.first * BLOCK_BYTES, Tier::Fast);
        let missing = index.missing(object, blocks(extent));
        let copies = index.worth(Instant(now), (object, missing), class, &mut **admission);
        copies.into_iter().for_each(|copied| self.copy(now, object, copied));
    }

    /// A part of an object is being written: there is no copy of it any more.
    pub fn on_write(&mut self, object: ObjectId, extent: Extent) {
        self.index.invalidate(object, blocks(extent));
    }

    fn copy(&mut self, now: u64, object: ObjectId, copied: Copied) {
        let blocks = u64::from(copied.bits.count_ones());
        let is_full = self.writing_bytes + blocks * BLOCK_BYTES > WRITING_BYTES_MAX;
        let Some((slot, fresh)) =
            (!is_full).then(|| self.index.reserve((object, copied.unit), copied.bits, copied.hint)).flatten()
        else {
            self.stats.skipped += blocks;
            return;
        };
        if fresh == 0 {
            return self.index.unpin(slot);
        }
        let writing = Writing { slot, copied, fresh };
        let id = self.free.pop().unwrap_or_else(|| {
            self.writing.push(writing);
            self.writing.len() as u32 - 1
        });
        self.writing[id as usize] = writing;
        let len = u64::from(fresh.count_ones()) * BLOCK_BYTES;
        self.writing_bytes += len;
        let lba = u64::from(slot) * UNIT_BYTES + u64::from(fresh.trailing_zeros()) * BLOCK_BYTES;
        let _ = self.device.submit(now, COPY | id, Access { lba, len, write: true });
    }

    /// A copy was written: it can be read from now on.
    pub fn on_copied(&mut self, owner: u32) {
        let Writing { slot, copied, fresh } = self.writing[(owner & !COPY) as usize];
        self.free.push(owner & !COPY);
        self.writing_bytes -= u64::from(fresh.count_ones()) * BLOCK_BYTES;
        let mut left = fresh;
        while left != 0 {
            let (first, count) = (left.trailing_zeros(), (left >> left.trailing_zeros()).trailing_ones());
            let part = BlockRange { first: copied.unit * UNIT_BLOCKS + u64::from(first), count: u64::from(count) };
            self.index.publish(slot, part, &[0; UNIT_BLOCKS as usize][..count as usize]);
            left &= !oss::fast::index::bits_of(part);
        }
        self.index.unpin(slot);
        let advised = usize::from(copied.hint == Hint::None);
        self.stats.copied[advised] += u64::from(fresh.count_ones());
    }

    /// The next bytes to be fetched while nobody else wants the disk: the object's flow and the bytes.
    pub fn next_turn(&mut self) -> Option<(u32, Extent)> {
        if self.turn.is_some() {
            return None;
        }
        let (piece, at) = match self.piece.take() {
            Some(rest) => rest,
            None => {
                let piece = self.jobs.next_piece()?;
                (piece, piece.extent.start)
            }
        };
        let extent = Extent::new(at, piece.extent.end.min((at / TURN_BYTES + 1) * TURN_BYTES));
        self.turn = Some(Turn { piece, extent, reads: 0 });
        Some((self.flows[&piece.object], extent))
    }
    /// The turn takes so many reads of the disk.
    pub fn on_turn(&mut self, reads: u32) {
        if let Some(turn) = &mut self.turn {
            turn.reads = reads;
        }
    }
    /// One of them is complete. The bytes of the turn and whether they are for memory, when it was the last.
    pub fn on_fetched(&mut self, now: u64) -> Option<(ObjectId, Extent, bool)> {
        let turn = self.turn.as_mut()?;
        turn.reads -= 1;
        if turn.reads > 0 {
            return None;
        }
        let Turn { piece, extent, .. } = self.turn.take()?;
        self.stats.fetched += extent.len();
        self.stats.fetch_ns = now - self.advised_at;
        if extent.end < piece.extent.end {
            self.piece = Some((piece, extent.end));
        } else {
            self.jobs.on_done(&piece, Ok(()));
            while self.jobs.take_ended().is_some() {}
        }
        let for_memory = piece.tier == Tier::Ram;
        if !for_memory {
            self.on_read(now, piece.object, extent);
        }
        Some((piece.object, extent, for_memory))
    }

    /// Counters, with what has left.
    pub fn counted(&self) -> TierStats {
        let (unadvised, advised) = self.index.reclaimed();
        TierStats { left: [unadvised, advised], ..self.stats }
    }
    /// What reads find is counted from zero.
    pub fn reset_stats(&mut self) {
        (self.stats.hits, self.stats.misses) = (0, 0);
    }
}
