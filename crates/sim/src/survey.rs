//! A raw survey of one disk, as sgpdd-survey does it: threads write or read whole records, those of one region one after
//! the other from the region's start, straight to the elevator. No clients, no scheduler, no allocator.
//!
//! Source: paper 001, figure 1 (sgpdd-survey of a disk array).
use crate::engine::EventQueue;
use crate::metrics::{Histogram, Metrics, StateHash};
use crate::scenario::Params;
use devices::Device;
use devices::{Access, DeviceProfile, ElevatorConfig};
use types::Rng;

/// What is surveyed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SurveyConfig {
    /// Of every random stream.
    pub seed: u64,
    /// Regions of the medium worked on at the same time, evenly spaced.
    pub regions: u32,
    /// Threads; at least one per region.
    pub threads: u32,
    /// Bytes per record.
    pub record_bytes: u64,
    /// Bytes written or read in all.
    pub total_bytes: u64,
    /// Writes.
    pub write: bool,
    /// The medium.
    pub disk: DeviceProfile,
    /// The elevator.
    pub elevator: ElevatorConfig,
}

/// Time between a thread's records: system call and driver.
const THINK_NS: u64 = 30_000;

#[derive(Clone, Copy)]
enum Event {
    Next { thread: u32 },
    Timer,
    Disk { slot: u32 },
}

impl SurveyConfig {
    /// The survey that `params` describe.
    ///
    /// # Errors
    /// A sentence, when parameters do not go together.
    pub fn from_params(params: &Params) -> Result<SurveyConfig, String> {
        let config = SurveyConfig {
            seed: params.int("seed"),
            regions: params.int("survey.regions") as u32,
            threads: params.int("survey.threads") as u32,
            record_bytes: params.size("transfer_size_bytes"),
            total_bytes: params.size("survey.total_bytes"),
            write: params.text("operation") == "write",
            disk: crate::light::device_from(params)?,
            elevator: crate::light::elevator_from(params)?,
        };
        if config.threads < config.regions {
            let (t, r) = (config.threads, config.regions);
            return Err(format!("survey.threads = {t} is fewer than survey.regions = {r}; each region needs one"));
        }
        Ok(config)
    }
}

/// Runs the survey: metrics, events, virtual nanoseconds, state hash.
#[must_use]
pub fn run(config: &SurveyConfig) -> (Metrics, u64, u64, u64) {
    let mut store = Device::new(config.disk, config.elevator, Rng::named(config.seed, "disk"));
    let mut queue = EventQueue::new();
    let records = (config.total_bytes / config.record_bytes).max(1);
    let per_thread = records.div_ceil(u64::from(config.threads));
    let region_step = config.disk.capacity.min(1 << 42) / u64::from(config.regions);
    // The threads of a region take its records in turn.
    let mut next = vec![0u64; config.regions as usize];
    let mut done = vec![0u64; config.threads as usize];
    let mut sent_at = vec![0u64; config.threads as usize];
    let (mut times, mut hash) = (Histogram::default(), StateHash::default());
    for thread in 0..config.threads {
        queue.at(u64::from(thread) * 1000, Event::Next { thread });
    }
    let mut end = 0;
    while let Some((now, event)) = queue.pop() {
        match event {
            Event::Next { thread } => {
                let t = thread as usize;
                let region = u64::from(thread % config.regions);
                let record = &mut next[region as usize];
                let lba = (region * region_step).next_multiple_of(1 << 20) + *record * config.record_bytes;
                *record += 1;
                sent_at[t] = now;
                let access = Access { lba, len: config.record_bytes, write: config.write };
                if let Some(at) = store.submit(now, thread, access) {
                    queue.at(at, Event::Timer);
                }
            }
            Event::Timer => store.on_timer(now),
            Event::Disk { slot } => {
                end = now;
                store.finish(slot, |thread| {
                    let t = thread as usize;
                    done[t] += 1;
                    times.record(now - sent_at[t]);
                    hash.event(now, 1, thread, done[t] as u32);
                    if done[t] < per_thread {
                        queue.after(THINK_NS, Event::Next { thread });
                    }
                });
            }
        }
        while let Some((slot, at)) = store.start_next(now) {
            queue.at(at, Event::Disk { slot });
        }
    }
    let seconds = end as f64 / 1e9;
    let bytes = done.iter().sum::<u64>() * config.record_bytes;
    let mut m = Metrics::default();
    m.push("bandwidth_mib_per_s", "MiB/s", bytes as f64 / (1u64 << 20) as f64 / seconds);
    m.push("seeks_per_s", "1/s", store.stats().seeks as f64 / seconds);
    m.push_times("record", &times);
    (m, queue.popped(), end, hash.0)
}
