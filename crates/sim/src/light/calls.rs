//! What calls of programs were like: how long they took, how many had to wait, and the metrics made of it.
use crate::block_cache::push_hit_ratios;
use crate::metrics::{Histogram, Metrics};
use cache::Grain;

/// Calls of programs that read call by call, until their bytes were consumed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calls {
    /// Calls.
    pub made: u64,
    /// Calls that had to wait.
    pub waited: u64,
    /// Times of all calls.
    pub times: Histogram,
    /// Times of fine and coarse accesses of a mix.
    pub response: [Histogram; 2],
    /// Calls after the first tenth of their files that found all (0) or waited (1).
    pub warm: [u64; 2],
    /// Bytes and nanoseconds of calls that found all (0) or waited (1), in the first and second half of a file.
    pub halves: [[(u64, u64); 2]; 2],
    /// Bytes that programs got.
    pub bytes: u64,
    /// Bytes that were fetched for them, and by how many RPCs.
    pub fetched: u64,
    /// See `fetched`.
    pub rpcs: u64,
    /// When the last call was complete.
    pub end: u64,
    /// Programs that came to their end, and when they began: the sum of their rates in bytes per nanosecond, and the least.
    pub rates: (u64, f64, f64),
    /// When the phase began.
    pub began: u64,
    /// Look-ups of the clients' caches.
    pub client_cache: cache::Stats,
    /// Look-ups of the OSTs' caches.
    pub ost_cache: cache::Stats,
}

impl Calls {
    /// A call of `bytes` bytes took `took` nanoseconds and ended at `at`.
    pub(super) fn record(
        &mut self,
        grain: Option<Grain>,
        bytes: u64,
        (took, at): (u64, u64),
        (waited, is_warm, half): (bool, bool, usize),
    ) {
        let waited = usize::from(waited);
        self.made += 1;
        self.waited += waited as u64;
        self.times.record(took);
        if let Some(grain) = grain {
            self.response[grain as usize].record(took);
        }
        self.warm[waited] += u64::from(is_warm);
        let sum = &mut self.halves[half][waited];
        *sum = (sum.0 + bytes, sum.1 + took);
        self.bytes += bytes;
        self.end = self.end.max(at);
    }
    /// A program that got `bytes` bytes has come to its end.
    pub(super) fn ended(&mut self, bytes: u64, now: u64) {
        let rate = bytes as f64 / now.saturating_sub(self.began).max(1) as f64;
        let (count, sum, least) = self.rates;
        self.rates = (count + 1, sum + rate, if count == 0 { rate } else { least.min(rate) });
    }
    /// Adds what another partition counted.
    pub(super) fn add(&mut self, other: &Calls) {
        self.made += other.made;
        self.waited += other.waited;
        self.times.add(&other.times);
        for (mine, theirs) in self.response.iter_mut().zip(&other.response) {
            mine.add(theirs);
        }
        for i in 0..2 {
            self.warm[i] += other.warm[i];
            for k in 0..2 {
                self.halves[i][k].0 += other.halves[i][k].0;
                self.halves[i][k].1 += other.halves[i][k].1;
            }
        }
        self.bytes += other.bytes;
        self.fetched += other.fetched;
        self.rpcs += other.rpcs;
        self.end = self.end.max(other.end);
        let (a, b) = (self.rates, other.rates);
        let least = if a.0 == 0 {
            b.2
        } else if b.0 == 0 {
            a.2
        } else {
            a.2.min(b.2)
        };
        self.rates = (a.0 + b.0, a.1 + b.1, least);
        self.client_cache.add(&other.client_cache);
        self.ost_cache.add(&other.ost_cache);
    }
    /// Metrics of what there was.
    pub(super) fn push(&self, m: &mut Metrics) {
        let [fine, coarse] = &self.response;
        if self.made > 0 {
            m.push("reads", "calls", self.made as f64);
            m.push("reads_per_s", "1/s", self.made as f64 / (self.end.max(1) as f64 / 1e9));
            m.push("blocked_share", "share", self.waited as f64 / self.made as f64);
        }
        if fine.count() + coarse.count() > 0 {
            m.push("bandwidth_mb_per_s", "MB/s (10^6)", self.bytes as f64 / self.end.max(1) as f64 * 1e3);
            m.push("fine_response_mean_ms", "ms", fine.mean() / 1e6);
            m.push_times("fine", fine);
            m.push_times("coarse", coarse);
        }
        for (of, stats) in [("client", &self.client_cache), ("ost", &self.ost_cache)] {
            if *stats != cache::Stats::default() {
                push_hit_ratios(m, of, stats);
            }
        }
    }
    /// Metrics of world `readahead`, whose programs can get at most `ceiling` bytes per second.
    pub(super) fn readahead_metrics(&self, ceiling: f64) -> Metrics {
        let mut m = Metrics::default();
        let speed = self.bytes as f64 / self.end.max(1) as f64 * 1e9;
        m.push("bandwidth_gb_per_s", "GB/s (10^9)", speed / 1e9);
        m.push("ceiling_gb_per_s", "GB/s (10^9)", ceiling / 1e9);
        m.push("ceiling_share", "share", speed / ceiling);
        m.push("blocked_share", "share", self.warm[1] as f64 / (self.warm[0] + self.warm[1]).max(1) as f64);
        m.push("fetched_per_used", "ratio", self.fetched as f64 / self.bytes.max(1) as f64);
        let used_pages = self.bytes.max(self.made * types::PAGE_BYTES as u64).max(1) as f64;
        m.push("fetched_per_used_pages", "ratio", self.fetched as f64 / used_pages);
        m.push("rpcs", "RPCs", self.rpcs as f64);
        let (programs, sum, least) = self.rates;
        m.push("slowest_reader_of_mean", "share", least * programs as f64 / sum.max(f64::MIN_POSITIVE));
        m.push("model_error_percent", "percent", self.model_error());
        m.push_times("read", &self.times);
        m
    }

    /// How far `1/speed = (1-m)/cache + m/noncache` with the first half's speeds misses the second half's speed, percent.
    fn model_error(&self) -> f64 {
        let [[hit, miss], [hit2, miss2]] = self.halves;
        let rate = |(bytes, ns): (u64, u64)| if bytes == 0 { 0.0 } else { ns as f64 / bytes as f64 };
        let all = (hit2.0 + miss2.0).max(1) as f64;
        let m = miss2.0 as f64 / all;
        let predicted = (1.0 - m) * rate(hit) + m * rate(miss);
        let measured = (hit2.1 + miss2.1) as f64 / all;
        if measured > 0.0 { (predicted / measured - 1.0).abs() * 100.0 } else { 0.0 }
    }
}
