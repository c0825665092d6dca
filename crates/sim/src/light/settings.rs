//! The worlds of single papers, as settings of the light world: what their keys mean there.
//!
//! World `cache` (paper 000) is one client with one program over several files, their caches, and disks of 9 ms; world
//! `readahead` (paper 003) one client with several readers, and OSTs that are a latency and a rate. Gaps that paper 000
//! leaves (sizes) are filled as experiments.md says; rates of paper 003 are those of its two baselines.
use super::calling::{Calling, Cost, Order};
use super::config::{Credits, LightConfig, Operation, Placement};
use super::params::{STEP_BYTES, device_from, mix, order, readahead_of};
use super::stats::Stats;
use crate::block_cache::{BlockCache, CacheSettings};
use crate::metrics::Metrics;
use crate::scenario::Params;
use devices::{AllocKind, DeviceProfile, ElevatorConfig, ElevatorKind};
use nrs::NrsConfig;

/// Rate at which a client of world `cache` copies what it has to its program.
const COPY_RATE: f64 = 4e9;

/// World `cache`.
///
/// # Errors
/// A sentence, when parameters do not go together.
pub fn cache_world(p: &Params) -> Result<LightConfig, String> {
    let cache = |bytes: &str| CacheSettings::from_params(p, p.text("cache.policy"), p.size(bytes));
    let (client_cache, ost_cache) = (cache("cache.client_bytes"), cache("cache.ost_bytes"));
    BlockCache::new(&client_cache).and(BlockCache::new(&ost_cache))?;
    let (file_bytes, stripe_bytes) = (p.size("workload.file_bytes"), p.size("workload.stripe_bytes"));
    let block_bytes = p.size("cache.block_bytes");
    let mix = mix(p, (file_bytes, "workload.file_bytes"), (stripe_bytes, "workload.stripe_bytes"))?;
    let osts = p.int("cache.ost_count") as u32;
    let calling = Calling {
        programs: 1,
        files: p.int("workload.files") as u32,
        file_bytes,
        laid_out: true,
        keeps: false,
        order: if p.text("workload.kind") == "reuse" { Order::Reuse(mix) } else { Order::Mix(mix) },
        io_bytes: 0,
        step_bytes: RPC_BYTES,
        fetches_whole: true,
        rpc_bytes: stripe_bytes.min(RPC_BYTES).max(block_bytes),
        unit_bytes: block_bytes,
        policy: "none".into(),
        readahead: readahead::Config::default(),
        cost: Cost {
            call_ns: 0,
            copy_ns_per_byte: 1e9 / COPY_RATE,
            issue_ns: 0,
            receive_ns_per_byte: 0.0,
            pool_threads: 1,
        },
    };
    let disk = DeviceProfile { passes_gaps: true, ..DeviceProfile::named("disk9ms")? };
    let own = LightConfig {
        client_cache: Some(client_cache),
        ost_cache: Some(ost_cache),
        block_bytes,
        rpcs_in_flight: p.int("client.max_rpcs_in_flight") as u32,
        latency_ns: 100_000,
        nic_rate: 110e6,
        ..alone(p, osts, disk, calling)
    };
    Ok(LightConfig { transfer_bytes: stripe_bytes, file_bytes, ..own })
}

/// Bytes of an RPC of world `cache`.
const RPC_BYTES: u64 = 1 << 20;

/// World `readahead`.
///
/// # Errors
/// A sentence, when a key of the room is refused.
pub fn readahead_world(p: &Params) -> Result<LightConfig, String> {
    let per_byte = |key: &str| 1e9 / (p.float(key) * 1e6);
    let ns = |key: &str| (p.float(key) * 1e3) as u64;
    let (policy, readahead) = readahead_of(p)?;
    let slots = p.int("reader.ost_slots") as u32;
    let (osts, stripe_bytes) = (p.int("reader.ost_count") as u32, p.size("workload.stripe_bytes"));
    let calling = Calling {
        programs: p.int("reader.count") as u32,
        files: 1,
        file_bytes: p.size("workload.file_bytes"),
        laid_out: true,
        keeps: true,
        order: order(p),
        io_bytes: p.size("reader.io_bytes"),
        step_bytes: STEP_BYTES,
        fetches_whole: false,
        rpc_bytes: p.size("reader.rpc_bytes"),
        unit_bytes: types::PAGE_BYTES as u64,
        policy,
        readahead,
        cost: Cost {
            call_ns: ns("reader.call_us"),
            copy_ns_per_byte: per_byte("reader.copy_mb_per_s"),
            issue_ns: ns("reader.issue_us"),
            receive_ns_per_byte: per_byte("reader.receive_mb_per_s"),
            pool_threads: p.int("reader.pool_threads") as u32,
        },
    };
    // A latency and a rate: latencies of so many requests overlap, and their bytes share the OST.
    let (latency_ns, rate) = (p.float("reader.ost_latency_us") * 1e3, p.float("reader.ost_mb_per_s") * 1e6);
    let disk = DeviceProfile {
        name: "latency",
        slots: slots.max(2),
        read_rate: rate,
        write_rate: rate,
        contiguous_ns: (latency_ns, 0.0),
        jump_read_ns: latency_ns,
        jump_write_ns: latency_ns,
        ..device_from(&Params::default())?
    };
    let own = LightConfig {
        rpcs_in_flight: RPCS_IN_FLIGHT,
        dispatch_window: slots.min(*nrs::WINDOW_RANGE.end()),
        latency_ns: ns("net.latency_us"),
        nic_rate: p.float("reader.nic_mb_per_s") * 1e6,
        ..alone(p, osts, disk, calling)
    };
    Ok(LightConfig { transfer_bytes: stripe_bytes, ..own })
}

/// RPCs that a client of world `readahead` has in flight to an OST: as many as it likes.
const RPCS_IN_FLIGHT: u32 = 1 << 30;

/// What a run of world `readahead` measured.
#[must_use]
pub fn readahead_metrics(config: &LightConfig, stats: &Stats) -> Metrics {
    let Some(c) = &config.calling else { return Metrics::default() };
    let call_ns = c.cost.call_ns as f64 + c.io_bytes as f64 * c.cost.copy_ns_per_byte;
    let cached = c.io_bytes as f64 / call_ns * 1e9 * f64::from(c.programs);
    stats.calls.readahead_metrics(cached.min(config.nic_rate))
}

/// One client whose files lie striped over all of `osts` OSTs with this device, each on an OSS of its own, which serve
/// requests as they come.
fn alone(p: &Params, osts: u32, disk: DeviceProfile, calling: Calling) -> LightConfig {
    LightConfig {
        seed: p.int("seed"),
        clients: 1,
        ost_count: osts,
        osts_per_oss: 1,
        stripe_count: osts,
        file_bytes: calling.file_bytes,
        transfer_bytes: 1 << 20,
        operation: Operation::Read,
        rpcs_in_flight: 8,
        calling: Some(calling),
        client_cache: None,
        ost_cache: None,
        tiering: None,
        cache_first: false,
        block_bytes: 1,
        credits: Credits::Constant,
        start_skew_ns: 0,
        start_spread_ns: 0,
        produce_rate: 0.0,
        placement: Placement::Block,
        urgent: None,
        nrs_policy: "fifo".into(),
        nrs: NrsConfig::default(),
        dispatch_window: 16,
        allocation_ns: (0, 0),
        latency_ns: 0,
        nic_rate: 1e9,
        nic_queue: true,
        switch_rate: 0.0,
        loss: 0.0,
        resend_ns: 1_000_000_000,
        disk,
        elevator: ElevatorConfig { kind: ElevatorKind::Noop, ..ElevatorConfig::default() },
        alloc: AllocKind::Contiguous,
        down: Vec::new(),
        timeline: false,
        partition: true,
        trace: false,
    }
}
