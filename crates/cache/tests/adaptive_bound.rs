//! What `adaptive` may lose against `lru`, over many workloads, short and long, also such as are made to hurt it.
//!
//! The price of a run is the time of its misses, as the policy's configuration has them until they are measured: 10 ms a
//! fine page, 0.1 ms a coarse one.
mod simulator;

use cache::{CacheConfig, Grain, PageAccess, block_id};
use simulator::{Cache, Request};
use types::Rng;

const PAGES: u64 = 4096;
const FINE_MS: f64 = 10.0;
const COARSE_MS: f64 = 0.1;

/// Milliseconds that the misses of a request take.
fn price_of(cache: &mut Cache, r: &Request) -> f64 {
    let ms = if r.grain == Grain::Fine { FINE_MS } else { COARSE_MS };
    let request_bytes = (r.pages * 4096) as u32;
    let page = |p| PageAccess { grain: r.grain, request_bytes, ..PageAccess::fine(block_id(r.file, p)) };
    (r.first..r.first + r.pages).map(|p| if cache.access(page(p)) { 0.0 } else { ms }).sum()
}

/// Milliseconds of misses of a cache with this policy.
fn price(policy: &str, trace: &[Request]) -> f64 {
    let mut cache = Cache::new(policy, &CacheConfig::new(PAGES as u32));
    trace.iter().map(|r| price_of(&mut cache, r)).sum()
}

/// What the coarse requests of a workload read.
#[derive(Clone, Copy, Debug)]
enum Coarse {
    /// A range of so many eighths of the cache, round and round.
    Cyclic(u64),
    /// Anywhere in such a range.
    Random(u64),
    /// Always what was never read before.
    Scan,
    /// By turns a scan and a re-used range, each for 400 requests.
    Phases,
}

#[derive(Clone, Copy, Debug)]
struct Workload {
    coarse: Coarse,
    /// Pages of a coarse request.
    request: u64,
    /// Pages that fine accesses are spread over.
    hot: u64,
    /// Share of fine requests.
    fine: f64,
    /// Page accesses.
    accesses: u64,
    seed: u64,
}

impl Workload {
    fn trace(&self) -> Vec<Request> {
        let mut rng = Rng::named(self.seed, "adaptive_bound");
        let (mut trace, mut accesses, mut coarse_reads) = (Vec::new(), 0, 0);
        while accesses < self.accesses {
            let request = if rng.chance(self.fine) {
                Request { file: 1, first: rng.below(self.hot), pages: 1, grain: Grain::Fine }
            } else {
                let reused = matches!(self.coarse, Coarse::Phases) && trace.len() / 400 % 2 == 1;
                let place = match self.coarse {
                    Coarse::Cyclic(eighths) => coarse_reads % self.places(eighths),
                    Coarse::Random(eighths) => rng.below(self.places(eighths)),
                    Coarse::Phases if reused => rng.below(self.places(6)),
                    Coarse::Scan | Coarse::Phases => coarse_reads,
                };
                coarse_reads += 1;
                let file = if reused { 3 } else { 2 };
                Request { file, first: place * self.request, pages: self.request, grain: Grain::Coarse }
            };
            accesses += request.pages;
            trace.push(request);
        }
        trace
    }
    fn places(&self, eighths: u64) -> u64 {
        (PAGES / 8 * eighths / self.request).max(1)
    }
}

fn workloads() -> Vec<Workload> {
    let mut all = Vec::new();
    let mut coarse = vec![Coarse::Scan, Coarse::Phases];
    for eighths in [6, 10, 24] {
        coarse.extend([Coarse::Cyclic(eighths), Coarse::Random(eighths)]);
    }
    for coarse in coarse {
        // Down to two requests that fill the cache: a coarse request hits or misses as a whole.
        for request in [64, 512, 2048] {
            for (hot, fine) in [(PAGES / 2, 0.3), (PAGES / 4, 0.99), (1000 * PAGES, 0.9)] {
                for (accesses, seeds) in [(5_000, 1..4), (40_000, 1..2), (200_000, 1..2)] {
                    all.extend(seeds.map(|seed| Workload { coarse, request, hot, fine, accesses, seed }));
                }
            }
        }
    }
    all
}

#[test]
fn at_every_moment_misses_cost_at_most_2_percent_more_than_under_lru_and_a_third_of_a_filling_with_coarse_pages() {
    let filling = PAGES as f64 * COARSE_MS;
    let (mut gain, mut kept, mut long) = (0.0, 0.0, 0);
    let (mut broken, mut above) = (Vec::new(), 0);
    for w in workloads() {
        let mut caches = ["lru", "fgf_lru+ring", "adaptive"].map(|p| Cache::new(p, &CacheConfig::new(PAGES as u32)));
        let (mut ms, mut worst) = ([0.0; 3], f64::MIN);
        for r in w.trace() {
            for (cache, ms) in caches.iter_mut().zip(&mut ms) {
                *ms += price_of(cache, &r);
            }
            worst = worst.max(ms[2] - 1.02 * ms[0]);
        }
        above += u32::from(worst > 0.0);
        if worst > filling / 3.0 {
            broken.push(format!("{w:?}: {worst:.0} ms above 1.02 lru, a filling is {filling:.0} ms"));
        }
        assert!(ms[2] <= 1.02 * ms[0], "{w:?} at its end: adaptive {:.0} ms, lru {:.0}", ms[2], ms[0]);
        if w.accesses == 200_000 && ms[1] < 0.95 * ms[0] {
            gain += 1.0 - ms[1] / ms[0];
            kept += 1.0 - ms[2] / ms[0];
            long += 1;
        }
    }
    println!(
        "{above} workloads are above 2 % at some moment; of what fgf_lru+ring gains in {long} long ones {:.3} is kept",
        kept / gain
    );
    assert!(broken.is_empty(), "{} workloads\n{}", broken.len(), broken.join("\n"));
    assert!(kept > 0.6 * gain, "it must not be lru: of {gain} it keeps {kept}");
}

/// Files are read round and round beside fine accesses that come back by chance only, after those have filled the cache: `lru`
/// keeps the files, in requests of a 16th and of half of the cache.
#[test]
fn where_coarse_data_is_re_used_and_fine_data_is_not_it_is_lru_from_the_first_access() {
    for (request, accesses) in [(PAGES / 16, 20_000), (PAGES / 2, 60_000)] {
        for seed in 1..11 {
            let w = Workload { coarse: Coarse::Cyclic(4), request, hot: 20 * PAGES, fine: 0.9, accesses, seed };
            let mut rng = Rng::named(seed, "adaptive_bound.fill");
            let fine = |first| Request { file: 1, first, pages: 1, grain: Grain::Fine };
            let mut trace: Vec<Request> = (0..2 * PAGES).map(|_| fine(rng.below(20 * PAGES))).collect();
            trace.extend(w.trace());
            let [lru, adaptive] = ["lru", "adaptive"].map(|policy| {
                let mut cache = Cache::new(policy, &CacheConfig::new(PAGES as u32));
                let cost: Vec<f64> = trace.iter().map(|r| price_of(&mut cache, r)).collect();
                cost[2 * PAGES as usize..].iter().sum::<f64>()
            });
            assert!(adaptive <= 1.02 * lru, "{w:?}: adaptive {adaptive:.0} ms, lru {lru:.0}");
        }
    }
}

#[test]
fn until_something_has_to_leave_it_is_lru_to_the_page() {
    for w in workloads().into_iter().filter(|w| w.accesses == 5_000) {
        let mut trace = w.trace();
        let mut pages = 0;
        trace.retain(|r| {
            pages += r.pages;
            pages <= PAGES
        });
        assert_eq!(price("adaptive", &trace), price("lru", &trace), "{w:?}");
    }
}
