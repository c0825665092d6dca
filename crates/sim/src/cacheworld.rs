//! Paper 000's setting: one client cache in front of OST caches in front of disks, and a mix of fine and coarse accesses.
//!
//! A closed loop of one client: the next access starts when the last has ended, so time is carried by max-plus arithmetic
//! over disks and network instead of an event queue. Policies are the cache room's, chosen by name, the same on client
//! and OSTs. Source: paper 000; the gaps it leaves (sizes) are filled as experiments.md says.
use crate::block_cache::{BlockCache, CacheSettings, push_hit_ratios};
use crate::light::Progress;
use crate::metrics::{Histogram, Metrics, StateHash};
use crate::scenario::Params;
use cache::{PageAccess, Stats, block_id, grain_of};
use devices::DeviceProfile;
use types::Rng;

/// Bytes of a cached block.
struct Sizes {
    block: u64,
    stripe: u64,
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct CacheWorldConfig {
    seed: u64,
    client: CacheSettings,
    ost: CacheSettings,
    osts: u32,
    block_bytes: u64,
    stripe_bytes: u64,
    files: u64,
    file_bytes: u64,
    hot_bytes: u64,
    fine_bytes: u64,
    coarse_bytes: u64,
    fine_share: f64,
    /// Coarse accesses begin at multiples of this.
    coarse_step: u64,
    /// Coarse accesses leave the hot range alone.
    apart: bool,
    accesses: u64,
    warmup: u64,
    reuse: bool,
    disk_seek_ns: f64,
    disk_ns_per_byte: f64,
    net_ns_per_byte: f64,
    net_latency_ns: f64,
}

impl CacheWorldConfig {
    /// The world that `params` describe.
    ///
    /// # Errors
    /// A sentence, when parameters do not go together.
    pub fn from_params(p: &Params) -> Result<CacheWorldConfig, String> {
        let cache = |bytes: &str| CacheSettings::from_params(p, p.text("cache.policy"), p.size(bytes));
        let disk = DeviceProfile::named("disk9ms")?;
        let c = CacheWorldConfig {
            seed: p.int("seed"),
            client: cache("cache.client_bytes"),
            ost: cache("cache.ost_bytes"),
            osts: p.int("cache.ost_count") as u32,
            block_bytes: p.size("cache.block_bytes"),
            stripe_bytes: p.size("workload.stripe_bytes"),
            files: p.int("workload.files"),
            file_bytes: p.size("workload.file_bytes"),
            hot_bytes: p.size("workload.hot_bytes"),
            fine_bytes: p.size("workload.fine_bytes"),
            coarse_bytes: p.size("workload.coarse_bytes"),
            fine_share: p.float("workload.fine_share"),
            coarse_step: p.size(match p.text("workload.coarse_start") {
                "record" => "workload.coarse_bytes",
                _ => "workload.stripe_bytes",
            }),
            apart: p.flag("workload.coarse_apart"),
            accesses: p.int("workload.accesses"),
            warmup: p.int("workload.warmup"),
            reuse: p.text("workload.kind") == "reuse",
            disk_seek_ns: disk.jump_read_ns,
            disk_ns_per_byte: 1e9 / disk.read_rate,
            net_ns_per_byte: 1e9 / 110e6,
            net_latency_ns: 2e5,
        };
        for (size, name) in [(c.hot_bytes, "workload.hot_bytes"), (c.coarse_bytes, "workload.coarse_bytes")] {
            if size > c.file_bytes {
                return Err(format!("{name} = {size} is larger than workload.file_bytes = {}", c.file_bytes));
            }
        }
        if c.apart && c.first_coarse() + c.coarse_bytes > c.file_bytes {
            let (hot, file) = (c.hot_bytes, c.file_bytes);
            return Err(format!(
                "workload.hot_bytes = {hot} leaves no room for coarse accesses in workload.file_bytes = {file}: set workload.coarse_apart = false"
            ));
        }
        if c.fine_bytes >= c.stripe_bytes || c.fine_bytes > c.hot_bytes {
            return Err(
                "workload.fine_bytes must be smaller than workload.stripe_bytes and fit workload.hot_bytes".into()
            );
        }
        Ok(c)
    }
    /// Where the first coarse access may begin.
    fn first_coarse(&self) -> u64 {
        if self.apart { self.hot_bytes.next_multiple_of(self.coarse_step) } else { 0 }
    }
}

struct World<'a> {
    c: &'a CacheWorldConfig,
    sizes: Sizes,
    client: BlockCache,
    osts: Vec<BlockCache>,
    /// One past the byte that each disk read last, as (file, object offset).
    heads: Vec<(u64, u64)>,
    now: f64,
    hash: StateHash,
}

impl World<'_> {
    /// Time until the disk's head is at the block: it passes over a short gap faster than it seeks.
    fn seek_ns(&self, ost: usize, file: u64, offset: u64) -> f64 {
        let (at_file, at) = self.heads[ost];
        if at_file == file && offset >= at {
            return ((offset - at) as f64 * self.c.disk_ns_per_byte).min(self.c.disk_seek_ns);
        }
        self.c.disk_seek_ns
    }

    /// Carries out one access and answers how long it took.
    fn access(&mut self, file: u64, start: u64, len: u64) -> f64 {
        let c = self.c;
        let template = PageAccess {
            grain: grain_of(len, self.sizes.stripe),
            request_bytes: u32::try_from(len).unwrap_or(u32::MAX),
            ..PageAccess::fine(0)
        };
        let begin = self.now;
        let mut disk_free = vec![begin; self.osts.len()];
        let (mut net_free, mut missed, mut from_disk) = (begin, 0u64, vec![0u32; self.osts.len()]);
        for block in start / self.sizes.block..(start + len).div_ceil(self.sizes.block) {
            let access = PageAccess { block: block_id(file, block), ..template };
            if self.client.access(access) {
                continue;
            }
            missed += 1;
            let at = block * self.sizes.block;
            let stripe = at / self.sizes.stripe;
            let n = self.osts.len() as u64;
            let ost = ((stripe + file) % n) as usize;
            let mut ready = begin + c.net_latency_ns;
            if !self.osts[ost].access(access) {
                let offset = stripe / n * self.sizes.stripe + at % self.sizes.stripe;
                let seek = self.seek_ns(ost, file, offset);
                self.heads[ost] = (file, offset + self.sizes.block);
                disk_free[ost] = disk_free[ost].max(ready) + seek + self.sizes.block as f64 * c.disk_ns_per_byte;
                ready = disk_free[ost];
                from_disk[ost] += 1;
            }
            net_free = net_free.max(ready) + self.sizes.block as f64 * c.net_ns_per_byte;
        }
        for (ost, blocks) in from_disk.iter().enumerate().filter(|(_, b)| **b > 0) {
            self.osts[ost].on_fetched(&template, *blocks, (disk_free[ost] - begin) as u64);
        }
        // Handing a block to the program takes what copying it takes.
        let copied = (len.div_ceil(self.sizes.block) * self.sizes.block) as f64 / 4e9 * 1e9;
        let end = if missed > 0 { net_free.max(begin + copied) } else { begin + copied };
        if missed > 0 {
            self.client.on_fetched(&template, missed as u32, (end - begin) as u64);
        }
        self.now = end;
        self.hash.event(end as u64, template.grain as u8, file as u32, (missed as u32) << 1);
        end - begin
    }
}

/// Runs the world: metrics, accesses, virtual nanoseconds, state hash.
///
/// # Errors
/// A sentence, when the policy or one of its keys does not exist.
pub fn run(c: &CacheWorldConfig, progress: &mut dyn FnMut(Progress)) -> Result<(Metrics, u64, u64, u64), String> {
    let mut w = World {
        c,
        sizes: Sizes { block: c.block_bytes, stripe: c.stripe_bytes },
        client: BlockCache::new(&c.client)?,
        osts: (0..c.osts).map(|_| BlockCache::new(&c.ost)).collect::<Result<_, _>>()?,
        heads: vec![(u64::MAX, 0); c.osts as usize],
        now: 0.0,
        hash: StateHash::default(),
    };
    let mut rng = Rng::named(c.seed, "workload");
    let (mut fine, mut coarse, mut bytes, mut began, mut round) =
        (Histogram::default(), Histogram::default(), 0, 0.0, 0u64);
    for i in 0..c.warmup + c.accesses {
        if i == c.warmup {
            (fine, coarse, bytes, began) = (Histogram::default(), Histogram::default(), 0, w.now);
            w.client.reset_stats();
            w.osts.iter_mut().for_each(BlockCache::reset_stats);
        }
        // Before coarse files are re-used, fine accesses alone fill all caches.
        let is_fine = rng.chance(c.fine_share) || (c.reuse && i < c.warmup);
        let (file, start, len) = next_access(c, is_fine, &mut round, &mut rng);
        let took = w.access(file, start, len);
        bytes += len;
        if is_fine {
            fine.record(took as u64)
        } else {
            coarse.record(took as u64)
        }
        if i % 256 == 0 {
            let share = i as f64 / (c.warmup + c.accesses) as f64;
            progress(Progress { events: i, virtual_ns: w.now as u64, share });
        }
    }
    let mut m = Metrics::default();
    m.push("bandwidth_mb_per_s", "MB/s (10^6)", bytes as f64 / (w.now - began) * 1e3);
    m.push("fine_response_mean_ms", "ms", fine.mean() / 1e6);
    m.push_times("fine", &fine);
    m.push_times("coarse", &coarse);
    let mut ost = Stats::default();
    w.osts.iter().for_each(|o| ost.add(&o.stats()));
    push_hit_ratios(&mut m, "client", &w.client.stats());
    push_hit_ratios(&mut m, "ost", &ost);
    Ok((m, c.warmup + c.accesses, w.now as u64, w.hash.0))
}

/// The next access of the mix: file, offset, bytes.
fn next_access(c: &CacheWorldConfig, is_fine: bool, round: &mut u64, rng: &mut Rng) -> (u64, u64, u64) {
    if c.reuse {
        // Coarse files 0..files are read round and round, piece by piece; fine accesses go to a file of their own.
        if is_fine {
            return (c.files, rng.below((64 << 30) / c.fine_bytes) * c.fine_bytes, c.fine_bytes);
        }
        let pieces = c.file_bytes / c.coarse_bytes;
        let piece = *round % (c.files * pieces);
        *round += 1;
        return (piece / pieces, piece % pieces * c.coarse_bytes, c.coarse_bytes);
    }
    let file = rng.below(c.files);
    if is_fine {
        return (file, rng.below(c.hot_bytes / c.fine_bytes) * c.fine_bytes, c.fine_bytes);
    }
    let first = c.first_coarse();
    let places = (c.file_bytes - c.coarse_bytes - first) / c.coarse_step + 1;
    (file, first + rng.below(places) * c.coarse_step, c.coarse_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(set: &[(&str, &str)]) -> CacheWorldConfig {
        let mut p = Params::default();
        let base = [("workload.accesses", "400"), ("workload.fine_share", "0.9"), ("workload.file_bytes", "128M")];
        for (k, v) in base.iter().chain(set) {
            p.set(k, v).unwrap();
        }
        CacheWorldConfig::from_params(&p).unwrap()
    }

    fn measure(set: &[(&str, &str)]) -> Metrics {
        run(&config(set), &mut |_| {}).unwrap().0
    }

    #[test]
    fn the_same_seed_gives_the_same_history() {
        let c = config(&[]);
        assert_eq!(run(&c, &mut |_| {}).unwrap(), run(&c, &mut |_| {}).unwrap());
    }

    #[test]
    fn coarse_accesses_that_stay_apart_bring_no_hot_block() {
        let hot = |apart: &str| {
            let keys = [("workload.coarse_apart", apart), ("workload.accesses", "3000"), ("workload.file_bytes", "1G")];
            let all = [&keys[..], &[("workload.fine_share", "0.1"), ("workload.files", "1")]].concat();
            measure(&all).get("hit_ratio.client.fine").unwrap()
        };
        // About 290 fine accesses to 256 blocks, every other one the first to its block.
        let (apart, over) = (hot("true"), hot("false"));
        assert!(apart < 0.5 && over > apart + 0.1, "{apart} and {over}");
        let mut p = Params::default();
        [("workload.coarse_apart", "true"), ("workload.file_bytes", "72M")]
            .iter()
            .for_each(|(k, v)| p.set(k, v).unwrap());
        assert!(CacheWorldConfig::from_params(&p).unwrap_err().contains("workload.coarse_apart = false"));
    }

    #[test]
    fn what_never_fits_streams_at_the_networks_speed() {
        let m = measure(&[("workload.fine_share", "0"), ("workload.accesses", "40"), ("workload.file_bytes", "1G")]);
        let mb = m.get("bandwidth_mb_per_s").unwrap();
        assert!((100.0..=112.0).contains(&mb), "{mb}");
    }

    #[test]
    fn a_fine_miss_costs_a_seek_and_a_fine_hit_next_to_nothing() {
        let miss =
            measure(&[("workload.fine_share", "1"), ("workload.accesses", "50"), ("workload.hot_bytes", "128M")]);
        let ms = miss.get("response_time_p50_s.fine").unwrap() * 1e3;
        assert!((10.0..12.5).contains(&ms), "9 ms + 64 KiB at 60 and 110 MB/s: {ms}");
        let hit = measure(&[("workload.fine_share", "1"), ("workload.warmup", "2000"), ("workload.hot_bytes", "64K")]);
        assert!(hit.get("response_time_max_s.fine").unwrap() < 0.001);
        assert_eq!(hit.get("hit_ratio.client.fine"), Some(1.0));
    }
}
