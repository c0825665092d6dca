//! The second implementation of [`rt::World`]: one thread, virtual time, everything drawn from a seed.
//!
//! A [`Sim`] holds hosts, a network between them and a disk in each. A host is booted into a process, whose [`rt::Rt`]
//! node code gets; the process may be killed, the host may lose its power, and is booted again over what its disk then
//! holds. One seed gives one history, to the byte: [`Sim::hash`] covers every message delivered and every sync.
//! Not here: what runs in the processes (`sim::cluster`, tests of nodes and stores), and models of device speed that
//! reproduce measurements (`sim::hw`).
mod disk;
mod exec;
mod file;
mod hash;
mod host;
mod image;
mod memory;
mod net;
mod stream;
mod testworld;
mod work;

pub use disk::DiskFault;
pub use exec::{Sim, time_here};
pub use hash::StateHash;
pub use host::Host;
pub use net::NetCounts;
pub use testworld::TestWorld;
pub use work::Work;

use types::Duration;

/// How a simulated world behaves. The defaults: a quick network, quick disks, nothing fails.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Seed of everything random.
    pub seed: u64,
    /// Shortest one-way latency of a message. Default 20 us.
    pub latency_min: Duration,
    /// Longest; uniform in between. Default 80 us.
    pub latency_max: Duration,
    /// Bytes per second of each direction of each host's NIC. Default 1.25e9 (10 Gbit/s).
    pub nic_bytes_per_s: u64,
    /// Bytes per second that the switch between all hosts carries; 0: as many as come. Default 0.
    pub switch_bytes_per_s: u64,
    /// Probability that a message has to be sent again: it comes 200 ms later (twice that the next time), and what was
    /// sent behind it on the same connection comes behind it. Default 0.
    pub loss: f64,
    /// Probability that a bit of a message's bulk arrives flipped. Default 0.
    pub corrupt: f64,
    /// Probability that a message arrives twice, the second time a little later. Default 0.
    pub duplicate: f64,
    /// Probability that a message is overtaken by the next one of its connection. Default 0.
    pub reorder: f64,
    /// Probability that the next task to run is any of those that can, instead of the one that waited longest.
    /// Default 0.
    pub shuffle: f64,
    /// Shortest time of a disk operation. Default 1 us.
    pub disk_min: Duration,
    /// Longest; uniform in between. Default 51 us.
    pub disk_max: Duration,
    /// Time of a sync besides that. Default 0.
    pub sync_time: Duration,
    /// Bytes per second that a disk moves. Default 2e9.
    pub disk_bytes_per_s: u64,
    /// Bytes that all files of a disk may have together. Default 1 TiB.
    pub disk_capacity_bytes: u64,
    /// Hosts' clocks differ by up to this much. Default 0.
    pub clock_skew_max: Duration,
    /// Hosts' clocks run faster or slower by up to so many millionths. Default 0.
    pub clock_drift_ppm_max: u64,
}

impl SimConfig {
    /// The defaults, with a seed.
    #[must_use]
    pub fn new(seed: u64) -> SimConfig {
        SimConfig {
            seed,
            latency_min: Duration::from_micros(20),
            latency_max: Duration::from_micros(80),
            nic_bytes_per_s: 1_250_000_000,
            switch_bytes_per_s: 0,
            loss: 0.0,
            corrupt: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            shuffle: 0.0,
            disk_min: Duration::from_micros(1),
            disk_max: Duration::from_micros(51),
            sync_time: Duration::ZERO,
            disk_bytes_per_s: 2_000_000_000,
            disk_capacity_bytes: 1 << 40,
            clock_skew_max: Duration::ZERO,
            clock_drift_ppm_max: 0,
        }
    }
}
