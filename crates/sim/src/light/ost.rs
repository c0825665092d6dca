//! One OST of a light world: the pipeline that servers run, its cache, and the models behind it.
use super::config::LightConfig;
use super::tiers::Tiers;
use crate::block_cache::BlockCache;
use crate::metrics::StateHash;
use cache::{Grain, PageAccess, block_id};
use devices::Allocator;
use devices::Device;
use nrs::{BW_WINDOWS, Job, NrsConfig, NrsRequest, Pipeline};
use trace::Record;
use types::{Extent, Instant, RequestId, Rng};

/// A request at an OST.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Request {
    pub flow: u32,
    pub rpc: u32,
    pub arrived: u64,
    pub expiry: u64,
    /// When it went to the store.
    pub submitted: u64,
    pub pieces: u32,
    /// Blocks that the cache did not hold.
    pub missed: u32,
    pub epoch: u32,
}

impl Job for Request {
    fn arrived(&self) -> Instant {
        Instant(self.arrived)
    }
    /// The statistics judge deadlines from the client's side.
    fn must_finish_by(&self) -> Option<Instant> {
        None
    }
}

/// An OST.
pub(super) struct Ost {
    pub pipeline: Pipeline<Request>,
    pub store: Device,
    pub alloc: Allocator,
    pub cache: Option<BlockCache>,
    /// Where it knows advice, or has a fast tier.
    pub tiers: Option<Box<Tiers>>,
    pub rng: Rng,
    pub hash: StateHash,
    pub wake_at: u64,
    /// Bytes queued or in service, by record size.
    pub outstanding: [u64; BW_WINDOWS],
    pub expiry_newest: u64,
    pub flows_active: u32,
    pub down_until: u64,
    pub epoch: u32,
    pub traced: Option<Box<Traced>>,
}

/// What is kept of requests for a trace.
#[derive(Default)]
pub(super) struct Traced {
    /// Of requests in the pipeline, by their ids: how many had arrived before.
    numbers: Vec<u64>,
    arrived: u64,
    pub records: Vec<Record>,
}

impl Traced {
    pub fn arrived(&mut self, id: RequestId) {
        let at = id.0 as usize;
        self.numbers.resize(self.numbers.len().max(at + 1), 0);
        self.numbers[at] = self.arrived;
        self.arrived += 1;
    }
    pub fn completed(&mut self, id: RequestId, request: &NrsRequest, dispatched: Instant, now: u64) {
        let record = Record::of(self.numbers[id.0 as usize], request, dispatched, Instant(now));
        self.records.push(Record { stored: request.bytes, ..record });
    }
}

impl Ost {
    pub fn new(config: &LightConfig, ost: u32) -> Ost {
        let pipeline = Pipeline::new(&config.nrs_policy, config.nrs.clone(), config.dispatch_window)
            .expect("the policy's name was checked with the scenario");
        let stream = |name: &str| Rng::named(config.seed.wrapping_add(u64::from(ost) << 32), name);
        Ost {
            pipeline,
            store: Device::new(config.disk, config.elevator, stream("disk")),
            alloc: Allocator::new(config.alloc),
            cache: empty_cache(config),
            tiers: config.tiering.as_ref().map(|t| Box::new(Tiers::new(config, t, stream("fast")))),
            rng: stream("ost"),
            hash: StateHash::default(),
            wake_at: u64::MAX,
            outstanding: [0; BW_WINDOWS],
            expiry_newest: 0,
            flows_active: 0,
            down_until: 0,
            epoch: 0,
            traced: config.trace.then(Box::default),
        }
    }

    /// It goes down: what it kept in memory is gone.
    pub fn fail(&mut self, config: &LightConfig, until: u64) {
        self.epoch += 1;
        self.down_until = until;
        self.cache = empty_cache(config);
    }
}

fn empty_cache(config: &LightConfig) -> Option<BlockCache> {
    config.ost_cache.as_ref().map(|c| BlockCache::new(c).expect("checked with the scenario"))
}

/// A part of a client's file as an OST's cache sees it.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    file: u32,
    block_bytes: u64,
    access: PageAccess,
}

impl Blocks {
    /// Of a request for a part of `file`, made for the access that `access` is of.
    pub fn new(config: &LightConfig, file: u32, access: PageAccess) -> Blocks {
        Blocks { file, block_bytes: config.block_bytes, access }
    }
    /// The same blocks of this class.
    pub fn advised(mut self, class: cache::Advice) -> Blocks {
        self.access = self.access.advised(class);
        self
    }
    /// Of a request for a whole record.
    pub fn of_record(config: &LightConfig, file: u32, write: bool) -> Blocks {
        let request_bytes = u32::try_from(config.transfer_bytes).unwrap_or(u32::MAX);
        let access = PageAccess { grain: Grain::Coarse, request_bytes, write, ..PageAccess::fine(0) };
        Blocks::new(config, file, access)
    }
    fn of(self, extent: Extent) -> impl Iterator<Item = (u64, PageAccess)> {
        (extent.start / self.block_bytes..extent.end.div_ceil(self.block_bytes)).map(move |block| {
            let id = block_id(u64::from(self.file), block);
            (block * self.block_bytes, PageAccess { block: id, ..self.access })
        })
    }
    /// Calls `missing` for every part of `extent` that `cache` does not hold; how many blocks those are.
    pub fn look_up(self, cache: &mut BlockCache, extent: Extent, mut missing: impl FnMut(Extent)) -> u32 {
        let (mut part, mut missed): (Option<Extent>, u32) = (None, 0);
        for (at, access) in self.of(extent) {
            if cache.lookup(access) {
                part.take().into_iter().for_each(&mut missing);
            } else {
                missed += 1;
                part = Some(Extent::new(part.map_or(at, |p| p.start), at + self.block_bytes));
            }
        }
        part.into_iter().for_each(missing);
        missed
    }
    /// Whether `cache` holds all of `extent`; then it is used.
    pub fn use_whole(self, cache: &mut BlockCache, extent: Extent) -> bool {
        let whole = self.of(extent).all(|(_, access)| cache.holds(access.block));
        if whole {
            self.look_up(cache, extent, |_| ());
        }
        whole
    }
    /// `extent` was written, or read because of `missed` blocks, which took `took_ns`.
    pub fn keep(self, cache: &mut BlockCache, extent: Extent, missed: u32, took_ns: u64) {
        if missed > 0 {
            cache.on_fetched(&self.access, missed, took_ns);
        }
        self.of(extent).for_each(|(_, access)| cache.bring(access, |_| ()));
    }
}

/// The dynamic expiry that paper 001 gives a request arriving now: `e = lambda x sum(s_i / bw_i)` over everything queued
/// and in service, raised to the newest one queued. A probe beside the policy, so that a policy cannot grade itself.
pub(super) fn expiry(ost: &mut Ost, nrs: &NrsConfig, now: u64) -> u64 {
    let seconds: f64 =
        ost.outstanding.iter().zip(nrs.bw_bytes_per_s).map(|(bytes, bw)| *bytes as f64 / bw as f64).sum();
    let e = now + (nrs.lambda * seconds * 1e9) as u64;
    ost.expiry_newest = if ost.pipeline.queued() == 0 { e } else { e.max(ost.expiry_newest) };
    ost.expiry_newest
}
