//! The runs of a scenario, side by side on the machine's cores, and what they cost.
//!
//! A run is one point with one seed, in a thread of its own: nothing of a world leaves it but its measurements, so that the
//! order of runs changes no result. What a run costs is measured with nothing beside it.
use super::{OnProgress, Point, Sample, seeds};
use crate::cluster::{self, RunConfig};
use crate::createworld::{self, CreateWorldConfig};
use crate::light::{self, LightConfig, Progress};
use crate::metrics::Metrics;
use crate::scenario::{Params, Scenario, WorldKind};
use crate::survey::{self, SurveyConfig};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

/// Stack of a thread that runs simulations, as that of the main thread.
const STACK_BYTES: usize = 8 << 20;
/// Metrics of the run itself begin with this.
const COST: &str = "run.";

/// One point with one seed.
struct Run {
    point: usize,
    params: Params,
    seed: u64,
}

/// Runs all points with all seeds.
pub(super) fn all(scenario: &Scenario, jobs: usize, progress: &mut OnProgress) -> Result<Vec<Point>, String> {
    let (points, seeds) = (scenario.points(), seeds(scenario));
    let mut runs = Vec::new();
    for (point, at) in points.iter().enumerate() {
        let mut params = scenario.params.clone();
        for (key, value) in at {
            params.set(key, value)?;
        }
        for seed in &seeds {
            params.set("seed", &seed.to_string())?;
            runs.push(Run { point, params: params.clone(), seed: *seed });
        }
    }
    let costs = scenario.expect.iter().any(|e| e.metric.starts_with(COST));
    let samples =
        if costs { alone(scenario.world, &runs, progress)? } else { beside(scenario.world, &runs, jobs, progress)? };
    let mut by_point: Vec<Vec<Sample>> = points.iter().map(|_| Vec::new()).collect();
    for (run, sample) in runs.iter().zip(samples) {
        by_point[run.point].push(sample);
    }
    let first_of = |point: usize| runs[point * seeds.len()].params.clone();
    let made =
        points.into_iter().zip(by_point).enumerate().map(|(i, (at, samples))| Point::of(at, first_of(i), samples));
    Ok(made.collect())
}

/// One run after the other, each measured, and the first seed of each point twice.
fn alone(world: WorldKind, runs: &[Run], progress: &mut OnProgress) -> Result<Vec<Sample>, String> {
    let mut samples: Vec<Sample> = Vec::new();
    for (i, run) in runs.iter().enumerate() {
        let before = Memory::fresh();
        let mut sample = sample(world, run, &mut |p| progress(i, runs.len(), p))?;
        let is_first = i == 0 || runs[i - 1].point != run.point;
        if let Some(before) = before {
            sample.metrics.push("run.peak_memory_mib", "MiB", before.peak_mib());
        }
        sample.metrics.push("run.wall_s", "s", sample.wall_s);
        let repeats = if is_first {
            let again = run_once(world, &run.params, &mut |_| {})?;
            f64::from(u8::from((again.hash, again.events) == (sample.hash, sample.events)))
        } else {
            samples[i - 1].metrics.get("run.repeats").unwrap_or(0.0)
        };
        sample.metrics.push("run.repeats", "1: the first seed gave the same state hash twice", repeats);
        samples.push(sample);
    }
    Ok(samples)
}

/// `jobs` runs at a time, in any order.
fn beside(world: WorldKind, runs: &[Run], jobs: usize, progress: &mut OnProgress) -> Result<Vec<Sample>, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = if jobs == 0 { cores } else { jobs }.min(runs.len());
    let waiting: Vec<std::sync::Mutex<Option<Run>>> = runs
        .iter()
        .map(|r| std::sync::Mutex::new(Some(Run { point: r.point, params: r.params.clone(), seed: r.seed })))
        .collect();
    let next = AtomicUsize::new(0);
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (told, waiting, next) = (told.clone(), &waiting, &next);
            let work = move || worker(world, waiting, next, &told);
            std::thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, work)
                .map_err(|e| format!("no thread for a run: {e}"))?;
        }
        drop(told);
        let mut samples: Vec<Option<Sample>> = runs.iter().map(|_| None).collect();
        for news in heard {
            match news {
                News::Progress(i, p) => progress(i, runs.len(), p),
                News::Done(i, sample) => samples[i] = Some(sample?),
            }
        }
        samples.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| "a run ended without a result".to_string())
    })
}

/// What a worker tells.
enum News {
    Progress(usize, Progress),
    Done(usize, Result<Sample, String>),
}

fn worker(world: WorldKind, waiting: &[std::sync::Mutex<Option<Run>>], next: &AtomicUsize, told: &Sender<News>) {
    loop {
        let i = next.fetch_add(1, Ordering::Relaxed);
        let Some(run) = waiting.get(i).and_then(|w| w.lock().ok()?.take()) else { return };
        // Nobody listens any more when another run was refused.
        let done = sample(world, &run, &mut |p| drop(told.send(News::Progress(i, p))));
        if told.send(News::Done(i, done)).is_err() {
            return;
        }
    }
}

fn sample(world: WorldKind, run: &Run, progress: &mut dyn FnMut(Progress)) -> Result<Sample, String> {
    let begin = Instant::now();
    let o = run_once(world, &run.params, progress)?;
    let wall_s = begin.elapsed().as_secs_f64();
    Ok(Sample { seed: run.seed, metrics: o.metrics, events: o.events, virtual_ns: o.virtual_ns, hash: o.hash, wall_s })
}

/// What one run of a world measures.
///
/// # Errors
/// A sentence, when the parameters do not go together.
pub fn measure(world: WorldKind, params: &Params) -> Result<Metrics, String> {
    run_once(world, params, &mut |_| {}).map(|o| o.metrics)
}

/// What one run of any world gives.
struct RunOutcome {
    metrics: Metrics,
    events: u64,
    virtual_ns: u64,
    hash: u64,
}

fn run_once(world: WorldKind, params: &Params, progress: &mut dyn FnMut(Progress)) -> Result<RunOutcome, String> {
    match world {
        WorldKind::Light | WorldKind::Cache | WorldKind::Readahead => {
            let config = light_config(world, params)?;
            let o = light::run(&config, progress);
            let metrics = match world {
                WorldKind::Readahead => light::readahead_metrics(&config, &o.stats),
                _ => o.metrics,
            };
            Ok(RunOutcome { metrics, events: o.events, virtual_ns: o.virtual_ns, hash: o.hash })
        }
        WorldKind::Survey => {
            let (metrics, events, virtual_ns, hash) = survey::run(&SurveyConfig::from_params(params)?);
            Ok(RunOutcome { metrics, events, virtual_ns, hash })
        }
        WorldKind::Create => {
            let (metrics, events, virtual_ns, hash) =
                createworld::run(&CreateWorldConfig::from_params(params), progress);
            Ok(RunOutcome { metrics, events, virtual_ns, hash })
        }
        WorldKind::Cluster => {
            let o = cluster::run(&RunConfig::from_params(params)?);
            let metrics = o.metrics(params.int("seed"));
            Ok(RunOutcome { metrics, events: o.events, virtual_ns: o.virtual_ns, hash: o.hash })
        }
        WorldKind::Reference | WorldKind::Recorded => Err(format!("nothing runs in world {}", world.name())),
    }
}

/// The settings of the light world that a world's keys mean.
fn light_config(world: WorldKind, params: &Params) -> Result<LightConfig, String> {
    match world {
        WorldKind::Cache => light::cache_world(params),
        WorldKind::Readahead => light::readahead_world(params),
        _ => LightConfig::from_params(params),
    }
}

/// Keys that a scenario sets or sweeps although its world has no use for them, as it is set up.
#[must_use]
pub fn without_effect(scenario: &Scenario) -> Vec<String> {
    let Some(params) = scenario.points().pop().and_then(|last| at(scenario, &last)) else { return Vec::new() };
    let mut fits = true;
    let mut unread = params.unread_by(|p| fits = is_fitting(scenario.world, p));
    if !fits {
        // What does not go together is refused when it runs.
        return Vec::new();
    }
    unread.retain(|k| k != "seed");
    unread
}

/// Whether a scenario's world takes the parameters of every point.
pub(super) fn fits(scenario: &Scenario) -> bool {
    let all = scenario.points();
    all.iter().all(|point| at(scenario, point).is_some_and(|p| is_fitting(scenario.world, &p)))
}

/// The parameters of a point.
fn at(scenario: &Scenario, point: &[(String, String)]) -> Option<Params> {
    let mut params = scenario.params.clone();
    point.iter().try_for_each(|(key, value)| params.set(key, value)).ok()?;
    Some(params)
}

fn is_fitting(world: WorldKind, p: &Params) -> bool {
    match world {
        WorldKind::Light | WorldKind::Cache | WorldKind::Readahead => light_config(world, p).is_ok(),
        WorldKind::Survey => SurveyConfig::from_params(p).is_ok(),
        WorldKind::Create => {
            let _ = CreateWorldConfig::from_params(p);
            true
        }
        WorldKind::Cluster => RunConfig::from_params(p).is_ok(),
        WorldKind::Reference | WorldKind::Recorded => true,
    }
}

/// The memory of this process when a run began.
struct Memory {
    resident_kib: f64,
}

impl Memory {
    /// Forgets the peak of before. `None` where the kernel does not let it be forgotten.
    fn fresh() -> Option<Memory> {
        std::fs::write("/proc/self/clear_refs", "5").ok()?;
        Some(Memory { resident_kib: status_kib("VmRSS:")? })
    }
    /// The most that was held since then more than at the beginning, in MiB.
    fn peak_mib(&self) -> f64 {
        status_kib("VmHWM:").map_or(0.0, |peak| (peak - self.resident_kib).max(0.0) / 1024.0)
    }
}

fn status_kib(field: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix(field))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

/// The most memory that this process has held, in MiB.
#[must_use]
pub fn peak_memory_mib() -> f64 {
    status_kib("VmHWM:").unwrap_or(0.0) / 1024.0
}
