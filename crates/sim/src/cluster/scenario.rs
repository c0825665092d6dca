//! A scenario's parameters as a run, and a run's report as metrics.
use simworld::SimConfig;
use types::Duration;

use super::config::ClusterConfig;
use super::faults::FaultConfig;
use super::run::{RunConfig, RunReport, WorkConfig};
use crate::metrics::Metrics;
use crate::scenario::Params;

/// Clients of full fidelity at most: each is a real one.
const CLIENTS_MAX: u64 = 200;

fn seconds(s: f64) -> Duration {
    Duration::from_nanos((s * 1e9) as u64)
}

impl RunConfig {
    /// From a scenario's parameters.
    ///
    /// # Errors
    /// A sentence: more clients than full fidelity takes.
    pub fn from_params(p: &Params) -> Result<RunConfig, String> {
        let clients = p.int("clients");
        if !(1..=CLIENTS_MAX).contains(&clients) {
            return Err(format!("clients = {clients}: world cluster runs real clients, set 1 to {CLIENTS_MAX}"));
        }
        let (osts, stripes) = (p.int("cluster.osts"), p.int("cluster.stripe_count"));
        if stripes > osts {
            return Err(format!(
                "cluster.stripe_count = {stripes} with cluster.osts = {osts}: at most one stripe each"
            ));
        }
        let latency = seconds(p.float("net.latency_us") / 1e6);
        let world = SimConfig {
            latency_min: latency,
            latency_max: latency * 3,
            nic_bytes_per_s: (p.float("net.nic_mb_per_s") * 1e6) as u64,
            switch_bytes_per_s: (p.float("net.switch_mb_per_s") * 1e6) as u64,
            loss: p.float("net.loss"),
            corrupt: p.float("net.corrupt"),
            shuffle: p.float("cluster.shuffle"),
            sync_time: seconds(p.float("cluster.sync_us") / 1e6),
            clock_skew_max: seconds(p.float("cluster.clock_skew_ms") / 1e3),
            ..SimConfig::new(p.int("seed"))
        };
        let cluster = ClusterConfig {
            clients: clients as usize,
            osts: osts as usize,
            client_cache_bytes: p.size("cluster.client_cache_bytes"),
            ost_cache_bytes: p.size("cluster.ost_cache_bytes"),
            nrs_policy: p.text("nrs.policy").into(),
            cache_policy: p.text("cache.policy").into(),
            readahead_policy: p.text("readahead.policy").into(),
            stripe_bytes: p.size("cluster.stripe_bytes"),
            stripe_count: stripes as u16,
            recovery_window: seconds(p.float("cluster.recovery_window_s")),
            ..ClusterConfig::default()
        };
        let work = WorkConfig {
            trees: p.int("work.trees") as usize,
            blocks: p.int("work.blocks") as usize,
            logs: p.int("work.logs") as usize,
            counters: p.int("work.counters") as usize,
            operations: p.int("work.operations"),
            seconds: p.float("work.seconds"),
            ..WorkConfig::default()
        };
        let share = |name: &str| p.float(&format!("faults.{name}"));
        let faults = FaultConfig {
            interval_s: share("interval_s"),
            kill_mds: share("kill_mds"),
            kill_oss: share("kill_oss"),
            kill_client: share("kill_client"),
            reset: share("reset"),
            cut: share("cut"),
            slow_disk: share("slow_disk"),
            disk_error: share("disk_error"),
            power: share("power"),
            down_max_s: share("down_max_s"),
            cut_max_s: share("cut_max_s"),
            ..FaultConfig::default()
        };
        Ok(RunConfig { world, cluster, work, faults })
    }
}

impl RunReport {
    /// As metrics. What went wrong is told on stderr.
    #[must_use]
    pub fn metrics(&self, seed: u64) -> Metrics {
        for complaint in &self.complaints {
            eprintln!("seed {seed}: {complaint}");
        }
        let mut m = Metrics::default();
        let c = &self.counts;
        m.push("complaints", "complaints", self.complaints.len() as f64);
        m.push("operations", "operations", c.operations as f64);
        m.push("operations_lost", "operations", c.lost as f64);
        m.push("checks", "comparisons", c.checks as f64);
        m.push("faults", "faults", c.faults as f64);
        m.push("kills", "processes", c.kills as f64);
        m.push("evictions", "clients", self.evictions as f64);
        m.push("operation_longest_s", "s", c.longest_ns as f64 / 1e9);
        m
    }
}
