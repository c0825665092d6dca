//! A window of the requests that came to a queue: what others need to serve them again, and what their service says of the disk.
//!
//! One object in `2^shift` is sampled, so that what is queued when the window begins fits; in the sample's world the disk has
//! so many times fewer requests, and all times between them are divided by as much. A request follows the latest completion of
//! its object that nobody has followed yet, as long after it as it did: whoever serves faster is asked more.
use crate::NrsRequest;
use alloc::vec::Vec;
use devices::{AllocKind, Asked, Observation, Places, Served, observations};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::{Duration, Instant, ObjectId};

/// No request.
pub(crate) const NONE: u32 = u32::MAX;
/// Completions that one window gives to the fit.
const SERVED_MAX: usize = 384;
/// What took less was answered from memory, whatever lies below.
const MEMORY_NS: u64 = 50_000;
/// A window that takes longer ends with what it has.
const SPAN: Duration = Duration::from_secs(10);

/// A sampled request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) request: NrsRequest,
    /// When it came after the window began, ns of the sample's world; what follows another does not need it.
    pub(crate) at: u64,
    /// The request whose completion it followed, or [`NONE`], ..
    pub(crate) after: u32,
    /// .. and how long after, ns of the sample's world.
    pub(crate) think: u64,
    /// How long it was in service, ns, if the disk had nothing to do with it; else 0.
    pub(crate) took: u64,
    /// It was taken out unserved.
    pub(crate) gone: bool,
}

/// A completion, for the fit.
#[derive(Clone, Copy, Debug)]
struct Seen {
    dispatched: u64,
    finished: u64,
    asked: Asked,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Window {
    began: Instant,
    shift: u32,
    salt: u64,
    entries: Vec<Entry>,
    entries_max: usize,
    /// Of `entries`, those that came after the beginning.
    fresh: usize,
    /// Completions by object that nobody has followed yet: which, and when; and the one that was followed last.
    ended: HashMap<ObjectId, Vec<(u32, Instant)>, FxBuildHasher>,
    followed: HashMap<ObjectId, (u32, Instant), FxBuildHasher>,
    seen: Vec<Seen>,
    completed: u64,
    bytes: u64,
    /// Completions that left something queued.
    with_queue: u64,
    in_service_max: u32,
}

impl Window {
    /// Begins with what is `queued`, of which `requests` tells the ranks among the arrivals, and holds `entries_max` requests at
    /// most.
    pub(crate) fn begin(
        now: Instant,
        salt: u64,
        queued: usize,
        requests: impl Iterator<Item = (u64, NrsRequest)>,
        entries_max: usize,
    ) -> Window {
        let shift = queued.div_ceil(entries_max / 2).next_power_of_two().trailing_zeros();
        let mut window = Window {
            began: now,
            shift,
            salt,
            entries: Vec::with_capacity(entries_max),
            entries_max,
            fresh: 0,
            ended: HashMap::default(),
            followed: HashMap::default(),
            seen: Vec::with_capacity(SERVED_MAX),
            completed: 0,
            bytes: 0,
            with_queue: 0,
            in_service_max: 0,
        };
        let mut sampled: Vec<_> = requests.filter(|(_, request)| window.is_sampled(request.object)).collect();
        sampled.sort_unstable_by_key(|(rank, _)| *rank);
        sampled.truncate(entries_max / 2);
        sampled.into_iter().for_each(|(_, request)| window.push(request, 0, NONE, 0));
        window
    }

    fn push(&mut self, request: NrsRequest, at: u64, after: u32, think: u64) {
        self.entries.push(Entry { request, at, after, think, took: 0, gone: false });
    }

    fn is_sampled(&self, object: ObjectId) -> bool {
        let fid = object.0;
        let mixed = (fid.seq ^ u64::from(fid.oid) << 32 ^ self.salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.shift == 0 || mixed >> (64 - self.shift) == 0
    }

    /// The numbers and ids of the requests that it holds.
    pub(crate) fn held(&self) -> impl Iterator<Item = (u32, types::RequestId)> {
        self.entries.iter().zip(0..).map(|(entry, at)| (at, entry.request.id))
    }

    /// A request came; its number in the sample.
    pub(crate) fn on_arrival(&mut self, now: Instant, request: &NrsRequest) -> u32 {
        if self.entries.len() >= self.entries_max || !self.is_sampled(request.object) {
            return NONE;
        }
        let free = self.ended.get_mut(&request.object).and_then(Vec::pop);
        let parent = free.or_else(|| self.followed.get(&request.object).copied());
        if let Some(parent) = parent {
            self.followed.insert(request.object, parent);
        }
        let scaled = |since: Instant| now.0.saturating_sub(since.0) >> self.shift;
        let (at, after) = (scaled(self.began), parent.map_or(NONE, |(entry, _)| entry));
        self.push(*request, at, after, parent.map_or(0, |(_, ended)| scaled(ended)));
        self.fresh += 1;
        (self.entries.len() - 1) as u32
    }

    /// A request was served within `took`; `entry` is its number in the sample. `queued` are left, `in_service` with it were.
    pub(crate) fn on_completion(
        &mut self,
        now: Instant,
        entry: u32,
        request: &NrsRequest,
        took: Duration,
        (queued, in_service): (usize, u32),
    ) {
        let took = took.as_nanos() as u64;
        self.completed += 1;
        self.bytes += u64::from(request.bytes);
        self.with_queue += u64::from(queued > 0);
        self.in_service_max = self.in_service_max.max(in_service);
        let of_disk = request.bytes > 0 && took >= MEMORY_NS;
        if of_disk && self.seen.len() < SERVED_MAX {
            let dispatched = now.0.saturating_sub(took);
            self.seen.push(Seen { dispatched, finished: now.0, asked: asked(request) });
        }
        if let Some(own) = self.entries.get_mut(entry as usize) {
            own.took = if of_disk { 0 } else { took.max(1) };
            self.ended.entry(request.object).or_default().push((entry, now));
        }
    }

    /// A request was taken out unserved.
    pub(crate) fn on_cancel(&mut self, entry: u32) {
        if let Some(own) = self.entries.get_mut(entry as usize) {
            own.gone = true;
        }
    }

    /// A request has to be complete by `serve_by`.
    pub(crate) fn on_promotion(&mut self, entry: u32, serve_by: Instant) {
        if let Some(own) = self.entries.get_mut(entry as usize) {
            let within = serve_by.since(own.request.arrived);
            own.request.max_service = Some(own.request.max_service.map_or(within, |d| d.min(within)));
        }
    }

    /// Whether it is to end: it has what it may hold, or, of a `short` one, as much as a fit needs.
    pub(crate) fn is_full(&self, now: Instant, short: bool) -> bool {
        let enough = if short { SERVED_MAX / 3 } else { SERVED_MAX };
        let sampled = self.entries.len() >= self.entries_max || self.fresh >= self.entries_max / 2;
        let seen = self.completed >= enough as u64;
        seen && (short || sampled) || self.completed >= 2 * self.entries_max as u64 || now.since(self.began) >= SPAN
    }

    /// What its completions say of the disk.
    pub(crate) fn observations(&self) -> Vec<Observation> {
        let mut seen = self.seen.clone();
        seen.sort_by_key(|s| s.dispatched);
        let mut places = Places::new(AllocKind::default(), seen.iter().map(|s| s.asked)).amid();
        let place = |s: &Seen| {
            let mut pieces = Vec::new();
            places.pieces(&s.asked, |lba, len| pieces.push((lba, len)));
            Served { dispatched: s.dispatched, finished: s.finished, bytes: s.asked.stored, pieces }
        };
        let mut served: Vec<Served> = seen.iter().map(place).collect();
        served.sort_by_key(|s| s.finished);
        observations(&served)
    }

    /// One object in so many is sampled, as a power of two.
    pub(crate) fn shift(&self) -> u32 {
        self.shift
    }
    /// Requests in the sample.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
    /// Bytes per second of all that were served in it.
    pub(crate) fn bytes_per_s(&self, now: Instant) -> f64 {
        self.bytes as f64 * 1e9 / now.0.saturating_sub(self.began.0).max(1) as f64
    }
    /// Bytes of a request.
    pub(crate) fn mean_bytes(&self) -> f64 {
        self.bytes as f64 / self.completed.max(1) as f64
    }
    /// Whether there was nearly always something queued.
    pub(crate) fn is_saturated(&self) -> bool {
        self.completed > 0 && self.with_queue * 10 >= self.completed * 9
    }
    /// Most requests in service at a time: the dispatch window, if anything was queued.
    pub(crate) fn in_service_max(&self) -> u32 {
        self.in_service_max.max(1)
    }
    /// The sample.
    pub(crate) fn into_entries(self) -> Vec<Entry> {
        self.entries
    }
}

/// What a request asks a disk for.
pub(crate) fn asked(request: &NrsRequest) -> Asked {
    let (object, extent, write) = (request.object, request.extent, request.op.is_write());
    Asked { object, extent, stored: u64::from(request.bytes), write }
}
