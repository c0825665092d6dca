//! Running a light world: flows are placed, what does not interact is parted, results are put together.
use super::calling::Calling;
use super::config::{Credits, LightConfig, Operation, Placement};
use super::flow::Flow;
use super::stats::Stats;
use super::world::World;
use crate::metrics::{Metrics, StateHash};
use trace::{Record, Target, Trace};
use types::Rng;

/// How far a run is; shown by a progress bar.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Events handled so far.
    pub events: u64,
    /// Virtual nanoseconds of the part that runs.
    pub virtual_ns: u64,
    /// Share of the work done, 0..=1.
    pub share: f64,
}

/// What a run gives.
#[derive(Clone, Debug, PartialEq)]
pub struct LightOutcome {
    /// Counters.
    pub stats: Stats,
    /// Named values and curves.
    pub metrics: Metrics,
    /// Events handled.
    pub events: u64,
    /// Virtual nanoseconds of the measured phase.
    pub virtual_ns: u64,
    /// Most events pending at once.
    pub pending_max: usize,
    /// Hash over the history of every OST.
    pub hash: u64,
    /// Of every OST what happened to its requests, if that was asked for ([`LightConfig::trace`]).
    pub records: Vec<Vec<Record>>,
}

const PROGRESS_EVERY: u64 = 1 << 18;

/// Runs a world to its end.
pub fn run(config: &LightConfig, progress: &mut dyn FnMut(Progress)) -> LightOutcome {
    let placed = place(config);
    let parted = config.partition && config.stripe_count == 1 && !config.shares_network();
    let mut total = Totals::default();
    if parted {
        for first in (0..config.ost_count).step_by(config.osts_per_oss as usize) {
            let flows = (first..first + config.osts_per_oss).flat_map(|o| placed.flows_of(config, o)).collect();
            let mut world = World::new(config, first, config.osts_per_oss, flows);
            let part = f64::from(config.osts_per_oss) / f64::from(config.ost_count);
            total.run(config, &mut world, f64::from(first / config.osts_per_oss) * part, part, progress);
        }
    } else {
        let flows = (0..config.ost_count).flat_map(|o| placed.flows_of(config, o)).collect();
        let mut world = World::new(config, 0, config.ost_count, flows);
        total.run(config, &mut world, 0.0, 1.0, progress);
    }
    let metrics = total.stats.metrics(0, config.ost_count / config.osts_per_oss, config.ost_count);
    LightOutcome {
        virtual_ns: total.stats.end,
        stats: total.stats,
        metrics,
        events: total.events,
        pending_max: total.pending_max,
        hash: total.hash.0,
        records: total.records,
    }
}

impl LightOutcome {
    /// What a world of `config` recorded, as a trace with what a replay has to know.
    #[must_use]
    pub fn trace(&self, config: &LightConfig) -> Trace {
        let target = |(ost, records): (usize, &Vec<Record>)| Target {
            settings: config.told(ost as u32),
            records: records.clone(),
        };
        Trace { targets: self.records.iter().enumerate().map(target).collect() }
    }
}

impl LightConfig {
    /// The settings of an OST by the names of their keys.
    fn told(&self, ost: u32) -> Vec<(String, String)> {
        let mut out: Vec<(String, String)> = Vec::new();
        let mut put = |key: &str, value: &dyn std::fmt::Display| out.push((key.to_string(), value.to_string()));
        put("target", &format!("light-OST{ost:04x}"));
        put("source", &"light");
        put("store.kind", &"simulated");
        put("ost", &ost);
        put("seed", &self.seed);
        put("disk.profile", &self.disk.name);
        self.disk.changes().iter().for_each(|(key, value)| put(&format!("disk.{key}"), value));
        put("elevator.kind", &self.elevator.kind.name());
        put("elevator.depth", &self.elevator.depth);
        put("elevator.request_bytes_max", &self.elevator.request_bytes_max);
        put("elevator.plug_requests", &self.elevator.plug_requests);
        put("elevator.plug_ms", &(self.elevator.plug_ns as f64 / 1e6));
        put("elevator.expire_ms", &(self.elevator.expire_ns as f64 / 1e6));
        put("alloc.kind", &self.alloc.name());
        put("nrs.policy", &self.nrs_policy);
        for key in nrs::keys().iter().filter(|key| key.name != "tbf_rule") {
            put(&format!("nrs.{}", key.name), &self.nrs.get(key.name).unwrap_or_default());
        }
        put("oss.dispatch_window", &self.dispatch_window);
        put("oss.allocation_us_min", &(self.allocation_ns.0 as f64 / 1e3));
        put("oss.allocation_us_max", &(self.allocation_ns.1 as f64 / 1e3));
        put("net.latency_us", &(self.latency_ns as f64 / 1e3));
        put("net.nic_mb_per_s", &(self.nic_rate / 1e6));
        out
    }
}

#[derive(Default)]
struct Totals {
    stats: Stats,
    events: u64,
    pending_max: usize,
    hash: StateHash,
    records: Vec<Vec<Record>>,
}

impl Totals {
    fn run(
        &mut self,
        config: &LightConfig,
        world: &mut World,
        base: f64,
        part: f64,
        progress: &mut dyn FnMut(Progress),
    ) {
        let phases = phases(config);
        let rpcs = world.flows.iter().map(|f| u64::from(f.total)).sum::<u64>().max(1) * phases.len() as u64;
        for (phase, accesses, measured) in phases {
            world.begin(phase, accesses, measured);
            while world.step(PROGRESS_EVERY) {
                let share = (world.queue.popped() as f64 / (rpcs as f64 * 3.5)).min(1.0);
                let events = self.events + world.queue.popped();
                progress(Progress { events, virtual_ns: world.queue.now(), share: base + part * share });
            }
        }
        world.finish();
        let began = world.began();
        rebase(&mut world.stats, began);
        for ost in &mut world.osts {
            self.hash.fold(ost.hash.0);
            self.records.extend(ost.traced.take().map(|t| t.records));
        }
        self.stats.add(&world.stats);
        self.events += world.queue.popped();
        self.pending_max = self.pending_max.max(world.queue.pending_max());
        progress(Progress { events: self.events, virtual_ns: world.queue.now(), share: base + part });
    }
}

/// What is done one after the other, how many accesses each program of a mix makes in it, and whether they are measured.
fn phases(config: &LightConfig) -> Vec<(Operation, u32, bool)> {
    let mut phases = vec![(Operation::Write, 0, true)];
    if config.operation == Operation::Write {
        return phases;
    }
    if config.tiering.as_ref().is_some_and(|t| t.level != advice::Hint::None) {
        phases.push((Operation::Advise, 0, false));
    }
    let mix = config.calling.as_ref().and_then(Calling::mix);
    phases.extend(mix.filter(|mix| mix.warmup > 0).map(|mix| (Operation::Read, mix.warmup, false)));
    phases.push((Operation::Read, mix.map_or(0, |mix| mix.accesses), true));
    if config.calling.as_ref().is_some_and(|c| c.laid_out) {
        phases.remove(0);
    }
    phases
}

/// Times since the measured phase began, so that parts whose phases began at different times can be added.
fn rebase(stats: &mut Stats, begin: u64) {
    stats.end = stats.end.saturating_sub(begin);
    stats.bulk_end = stats.bulk_end.saturating_sub(begin);
    stats.calls.end = stats.calls.end.saturating_sub(begin);
}

/// Which clients have their first stripe where, without a table per client where a formula does.
struct Placed {
    random: Option<Vec<Vec<u32>>>,
}

fn place(config: &LightConfig) -> Placed {
    if config.placement != Placement::Random {
        return Placed { random: None };
    }
    let mut rng = Rng::named(config.seed, "placement");
    let mut of_ost = vec![Vec::new(); config.ost_count as usize];
    for client in 0..config.clients {
        of_ost[rng.below(u64::from(config.ost_count)) as usize].push(client);
    }
    Placed { random: Some(of_ost) }
}

impl Placed {
    /// The flows whose file begins on `ost`, urgent ones last.
    fn flows_of(&self, config: &LightConfig, ost: u32) -> Vec<Flow> {
        let (n, m) = (u64::from(config.clients), u64::from(config.ost_count));
        let mut flows = Vec::new();
        let o = u64::from(ost);
        match (&self.random, config.placement) {
            (Some(of_ost), _) => {
                for client in &of_ost[ost as usize] {
                    push_client(config, &mut flows, *client, ost);
                }
            }
            (None, Placement::RoundRobin) => {
                for client in (o..n).step_by(m as usize) {
                    push_client(config, &mut flows, client as u32, ost);
                }
            }
            (None, _) => {
                for client in (o * n).div_ceil(m)..((o + 1) * n).div_ceil(m) {
                    push_client(config, &mut flows, client as u32, ost);
                }
            }
        }
        if let Some(urgent) = config.urgent {
            for i in (ost..urgent.clients).step_by(config.ost_count as usize) {
                let start = u64::from(i % urgent.stagger_s.max(1)) * 1_000_000_000;
                let total = config.rpcs_per_flow(0);
                let (client, file) = (config.clients + i, config.clients * config.files_per_client() + i);
                let flow = Flow { client, file, ost, total, limit: 1, start, urgent: true, ..Flow::default() };
                flows.push(flow);
            }
        }
        flows
    }
}

fn push_client(config: &LightConfig, flows: &mut Vec<Flow>, client: u32, first_ost: u32) {
    let mut rng = Rng::named(config.seed.wrapping_add(u64::from(client) << 24), "client");
    let spread = if config.start_spread_ns > 0 { rng.below(config.start_spread_ns) } else { 0 };
    let start = u64::from(client) * config.start_skew_ns + spread;
    let limit = match config.credits {
        Credits::Constant => config.rpcs_in_flight,
        Credits::Target(_) => config.rpcs_in_flight.min(2),
    };
    let files = config.files_per_client();
    for (file, stripe) in (0..files).flat_map(|file| (0..config.stripe_count).map(move |stripe| (file, stripe))) {
        let ost = (first_ost + file + stripe) % config.ost_count;
        let total = config.rpcs_per_flow(stripe);
        let file = client * files + file;
        flows.push(Flow { client, file, stripe, ost, total, limit, start, ..Flow::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_cache::CacheSettings;
    use crate::light::config::{Down, Urgent};
    use crate::light::{Calling, Cost, Mix, Order, Tiering};

    fn small(policy: &str) -> LightConfig {
        LightConfig { nrs_policy: policy.into(), file_bytes: 4 << 20, ..LightConfig::paper001(64, 4) }
    }

    fn quiet(config: &LightConfig) -> LightOutcome {
        run(config, &mut |_| {})
    }

    #[test]
    fn the_same_seed_gives_the_same_history_and_another_seed_another() {
        let (a, b) = (quiet(&small("fifo")), quiet(&small("fifo")));
        assert_eq!(a, b);
        assert_ne!(a.hash, quiet(&LightConfig { seed: 2, ..small("fifo") }).hash);
    }

    #[test]
    fn parting_a_world_changes_nothing_but_the_queue() {
        let down = vec![Down { ost: 2, from_ns: 5_000_000, to_ns: 300_000_000 }];
        let reads = LightConfig { operation: Operation::Read, ..small("fifo") };
        for config in [small("fifo"), reads, LightConfig { down, ..small("fifo") }] {
            let parted = quiet(&config);
            let whole = quiet(&LightConfig { partition: false, ..config });
            assert_eq!(parted.hash, whole.hash);
            assert_eq!(parted.events, whole.events);
            assert_eq!(parted.metrics, whole.metrics);
            assert!(parted.pending_max < whole.pending_max);
        }
    }

    #[test]
    fn every_byte_is_moved_once() {
        for stripe_count in [1, 2, 4] {
            let o = quiet(&LightConfig { stripe_count, ..small("fifo") });
            assert_eq!(o.stats.bytes[0], 64 * (4 << 20));
            assert_eq!(o.stats.store.bytes, 64 * (4 << 20));
        }
    }

    #[test]
    fn urgent_clients_write_beside_striped_files() {
        let urgent = Urgent {
            clients: 30,
            max_service_ns: 1_000_000_000,
            think_ns: 1_000_000,
            stagger_s: 1,
            until_ns: 500_000_000,
        };
        for (stripe_count, nic_queue) in [(1, false), (2, false), (4, true)] {
            let policy = small("deadline+obrr");
            let o = quiet(&LightConfig { stripe_count, nic_queue, urgent: Some(urgent), ..policy });
            assert_eq!(o.stats.bytes[0], 64 * (4 << 20), "{stripe_count} stripes");
            assert!(o.stats.bytes[1] >= 30 << 20, "{stripe_count} stripes: {}", o.stats.bytes[1]);
        }
    }

    #[test]
    fn a_narrow_switch_holds_all_transfers_to_its_rate() {
        for operation in [Operation::Write, Operation::Read] {
            let run = |switch_rate| quiet(&LightConfig { switch_rate, operation, ..small("fifo") });
            let (free, wide, narrow) = (run(0.0), run(1e12), run(50e6));
            let slower = wide.virtual_ns as f64 / free.virtual_ns as f64;
            assert!((1.0..1.001).contains(&slower), "a switch that is never the bottleneck: {slower}");
            let at_least = 64.0 * f64::from(4 << 20) / 50e6;
            let took = narrow.virtual_ns as f64 / 1e9;
            assert!((at_least..at_least * 1.02).contains(&took), "{took} s, not {at_least}");
            assert!(free.virtual_ns * 2 < narrow.virtual_ns);
            assert_eq!(narrow.stats.bytes[0], 64 * (4 << 20));
            assert_eq!(narrow, run(50e6));
        }
    }

    #[test]
    fn light_clients_read_through_the_readahead_room() {
        let read = |policy: &str| {
            let config = LightConfig { operation: Operation::Read, ..reading(policy, small("obrr")) };
            let o = quiet(&config);
            assert_eq!((o.stats.bytes[0], o.stats.calls.made), (64 * (4 << 20), 64 * 64), "{policy}");
            assert_eq!(o, quiet(&config), "{policy}");
            let whole = quiet(&LightConfig { partition: false, ..config });
            assert_eq!((o.hash, &o.metrics), (whole.hash, &whole.metrics), "{policy}");
            o
        };
        readahead::POLICIES.iter().for_each(|policy| drop(read(policy.name)));
        let (none, parallel) = (read("none"), read("parallel"));
        assert_eq!(none.stats.calls.waited, 64 * 4, "every record is waited for");
        assert!(parallel.stats.calls.waited < none.stats.calls.waited);
        assert!(parallel.virtual_ns < none.virtual_ns && parallel.stats.queue_max.0 > none.stats.queue_max.0);
    }

    /// Clients that read their files from front to back in calls of 64 KiB, and keep what they read.
    fn reading(policy: &str, config: LightConfig) -> LightConfig {
        let calling = Calling {
            programs: 1,
            files: 1,
            file_bytes: config.file_bytes,
            laid_out: false,
            keeps: true,
            order: Order::Sequential,
            io_bytes: 64 << 10,
            step_bytes: 4 << 20,
            fetches_whole: false,
            rpc_bytes: 1 << 20,
            unit_bytes: 1 << 20,
            policy: policy.into(),
            readahead: Default::default(),
            cost: Cost { call_ns: 0, copy_ns_per_byte: 1.0, issue_ns: 0, receive_ns_per_byte: 0.0, pool_threads: 1 },
        };
        LightConfig { calling: Some(calling), ..config }
    }

    fn settings(policy: &str, bytes: u64) -> Option<CacheSettings> {
        Some(CacheSettings { policy: policy.into(), keys: Vec::new(), bytes, block_bytes: 64 << 10 })
    }

    #[test]
    fn what_an_ost_keeps_is_answered_without_its_disk_and_gone_after_an_outage() {
        let read = LightConfig { operation: Operation::Read, ..small("fifo") };
        let (all, cached) = (64 * (4 << 20), LightConfig { ost_cache: settings("lru", 1 << 30), ..read.clone() });
        let o = quiet(&cached);
        assert_eq!((o.stats.bytes[0], o.stats.store.bytes), (all, 0));
        assert_eq!(o.metrics.get("hit_ratio.ost.coarse"), Some(1.0));
        assert!(o.virtual_ns * 2 < quiet(&read).virtual_ns);
        let down = vec![crate::light::Down { ost: 1, from_ns: 1, to_ns: 2_000_000 }];
        let o = quiet(&LightConfig { down, ..cached.clone() });
        assert_eq!((o.stats.bytes[0], o.stats.store.bytes), (all, all / 4), "one OST in four reads everything anew");
        let o = quiet(&LightConfig { ost_cache: settings("lru", 16 << 20), ..cached });
        assert!((1..=all).contains(&o.stats.store.bytes) && o.stats.bytes[0] == all);
    }

    #[test]
    fn what_an_ost_answers_before_its_queue_waits_for_nobody_and_is_counted_the_same() {
        let behind = mixed("fgf_lru", 0, 16 << 20);
        let (first, behind) = (quiet(&LightConfig { cache_first: true, ..behind.clone() }), quiet(&behind));
        let fine = |o: &LightOutcome| o.metrics.get("fine_response_mean_ms").unwrap();
        assert!(fine(&first) * 5.0 < fine(&behind), "{} and {} ms", fine(&first), fine(&behind));
        for o in [&first, &behind] {
            assert_eq!(o.stats.calls.ost_cache.fine_lookups, o.stats.calls.response[0].count());
            assert_eq!(o.stats.calls.made, 64 * 100);
        }
    }

    fn mixed(policy: &str, client: u64, ost: u64) -> LightConfig {
        let (fine_bytes, hot_bytes, coarse_bytes) = (64 << 10, 512 << 10, 2 << 20);
        let (coarse_step, coarse_first, accesses, warmup) = (coarse_bytes, 0, 100, 20);
        let mix =
            Mix { fine_share: 0.8, fine_bytes, hot_bytes, coarse_bytes, coarse_step, coarse_first, accesses, warmup };
        let mut config = LightConfig {
            operation: Operation::Read,
            client_cache: settings(policy, client).filter(|c| c.bytes > 0),
            ost_cache: settings(policy, ost).filter(|c| c.bytes > 0),
            ..reading("none", small("fifo"))
        };
        let calling = config.calling.as_mut().unwrap();
        (calling.order, calling.unit_bytes) = (Order::Mix(mix), 64 << 10);
        (calling.keeps, calling.fetches_whole, calling.step_bytes) = (false, true, 1 << 20);
        config
    }

    #[test]
    fn a_mix_through_caches_repeats_to_the_last_bit_parted_or_not_under_every_policy() {
        for policy in cache::registry() {
            for (client, ost) in [(0, 0), (1 << 20, 0), (0, 16 << 20), (1 << 20, 16 << 20)] {
                let config = mixed(policy.name, client, ost);
                let parted = quiet(&config);
                assert_eq!(parted.stats.calls.made, 64 * 100, "{}", policy.name);
                let calls = &parted.stats.calls;
                let blocks = [calls.response[0].count(), calls.response[1].count() * 32];
                assert_eq!(calls.bytes, (blocks[0] + blocks[1]) * (64 << 10), "{}", policy.name);
                let looked_up = [calls.client_cache.fine_lookups, calls.client_cache.coarse_lookups];
                assert_eq!(looked_up, if client > 0 { blocks } else { [0, 0] }, "{}", policy.name);
                assert_eq!(calls.ost_cache.fine_lookups > 0, ost > 0, "{}", policy.name);
                let whole = quiet(&LightConfig { partition: false, ..config });
                assert_eq!((parted.hash, &parted.metrics), (whole.hash, &whole.metrics), "{}", policy.name);
            }
        }
    }

    #[test]
    fn coarse_reads_wash_fine_data_out_of_caches_that_do_not_know_the_grain() {
        for (client, ost, metric) in [(1 << 20, 0, "hit_ratio.client.fine"), (0, 16 << 20, "hit_ratio.ost.fine")] {
            let ratio = |policy: &str| quiet(&mixed(policy, client, ost)).metrics.get(metric).unwrap();
            let (lru, fgf) = (ratio("lru"), ratio("fgf_lru"));
            assert!(lru < fgf - 0.05 && fgf > 0.95, "{metric}: {lru} and {fgf}");
        }
    }

    #[test]
    fn a_reader_whose_cache_is_smaller_than_its_readahead_fetches_again_and_reads_everything() {
        let config = LightConfig { operation: Operation::Read, file_bytes: 16 << 20, ..small("fifo") };
        let mut config = reading("parallel", config);
        config.calling.as_mut().unwrap().unit_bytes = 64 << 10;
        let fits = quiet(&LightConfig { client_cache: settings("lru", 16 << 20), ..config.clone() });
        assert_eq!((fits.hash, fits.stats.bytes[0]), (quiet(&config).hash, 64 * (16 << 20)));
        let small = LightConfig { client_cache: settings("lru", 3 << 20), ..config };
        let o = quiet(&small);
        assert_eq!(o.stats.calls.made, 64 * 256);
        assert!(o.stats.bytes[0] > 64 * (16 << 20), "what left before its use came again");
        assert_eq!(o, quiet(&small));
    }

    #[test]
    fn striped_files_are_read_through_the_rooms_on_all_their_osts() {
        for nic_queue in [false, true] {
            let config = LightConfig { operation: Operation::Read, stripe_count: 4, nic_queue, ..small("obrr") };
            let mut config = reading("parallel", config);
            let o = quiet(&config);
            assert_eq!((o.stats.bytes[0], o.stats.calls.made), (64 * (4 << 20), 64 * 64));
            assert_eq!(o, quiet(&config));
            let calling = config.calling.as_mut().unwrap();
            (calling.programs, calling.files, calling.laid_out) = (2, 1, true);
            let two = quiet(&config);
            assert_eq!((two.stats.bytes[0], two.stats.calls.made), (2 * 64 * (4 << 20), 2 * 64 * 64));
            assert_eq!(two.stats.calls.rates.0, 128, "every program came to its end");
        }
    }

    #[test]
    fn blocks_that_come_again_or_are_advised_are_read_from_the_fast_tier() {
        let run = |admission: &str, level, fast_bytes| {
            let tiering = Tiering {
                fast_bytes,
                fast: devices::DeviceProfile::named("ssd").unwrap(),
                admission: admission.into(),
                reclaim: "lru".into(),
                level,
                advisers: 64,
                advice: Default::default(),
            };
            let config = LightConfig { tiering: Some(tiering), ..mixed("lru", 0, 0) };
            let parted = quiet(&config);
            assert_eq!(parted, quiet(&config), "{admission}");
            let whole = quiet(&LightConfig { partition: false, ..config });
            assert_eq!((parted.hash, &parted.metrics), (whole.hash, &whole.metrics), "{admission}");
            assert_eq!(parted.stats.calls.made, 64 * 100, "{admission}");
            parted.stats
        };
        let (none, high) = (advice::Hint::None, advice::Hint::High);
        let (second, nothing) = (run("second_touch", none, 10 << 20), run("advised", none, 10 << 20));
        assert!(second.tiers.hits > 0 && second.tiers.copied[1] > 0 && nothing.tiers.hits == 0);
        assert!(second.store.bytes < nothing.store.bytes);
        // Advised: a quarter of each OST's files (64 MiB) has a place, and is fetched before it is read.
        let advised = run("advised", high, 32 << 20).tiers;
        assert_eq!(advised.placed, [0, 64 << 20, 192 << 20]);
        assert_eq!((advised.fetched, advised.copied), (64 << 20, [(64 << 20) / 4096, 0]));
        assert!(advised.hits > 0 && advised.left == [0, 0]);
    }

    #[test]
    fn the_osts_of_one_server_hold_to_one_rate_and_those_of_several_to_one_each() {
        let run = |ost_count, osts_per_oss, rules: &str, partition| {
            let mut config =
                LightConfig { ost_count, osts_per_oss, partition, nrs_policy: "tbf".into(), ..small("tbf") };
            config.nrs.set("tbf_rules", rules).unwrap();
            config.placement = Placement::RoundRobin;
            quiet(&config)
        };
        // 256 writes of one job, 50 a second at each OSS; a depth of 3 is there at once.
        let rules = "start all opcode={ost_write} rate=50";
        for (ost_count, osts_per_oss) in [(4, 1), (4, 2), (4, 4), (6, 3), (1, 1)] {
            let o = run(ost_count, osts_per_oss, rules, true);
            let most = 64_u32.div_ceil(ost_count) * 4 * osts_per_oss;
            let at_least = f64::from(256 / (ost_count / osts_per_oss) - 3) / 50.0;
            let (took, at_most) = (o.virtual_ns as f64 / 1e9, f64::from(most) / 50.0 + 0.1);
            assert!((at_least..at_most).contains(&took), "{osts_per_oss} of {ost_count}: {took} s, not {at_least}");
            assert_eq!(o.stats.bytes[0], 64 * (4 << 20));
            let whole = run(ost_count, osts_per_oss, rules, false);
            assert_eq!((o.hash, o.events, &o.metrics), (whole.hash, whole.events, &whole.metrics));
        }
        // One client each a rate that is never reached: nothing to share.
        let free = run(4, 2, "change default rate=1000000 depth=1000", true);
        assert_eq!(free.hash, run(4, 1, "change default rate=1000000 depth=1000", true).hash);
    }

    #[test]
    fn lost_messages_and_a_server_that_goes_away_lose_no_request() {
        let down = vec![crate::light::Down { ost: 1, from_ns: 50_000_000, to_ns: 900_000_000 }];
        let config = LightConfig { loss: 0.01, down, ..small("fifo") };
        let o = quiet(&config);
        assert_eq!(o.stats.bytes[0], 64 * (4 << 20));
        assert!(o.stats.resent > 10);
        assert!(o.virtual_ns > 900_000_000);
        assert_eq!(o, quiet(&config));
    }
}
