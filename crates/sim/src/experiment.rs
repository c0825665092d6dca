//! Running a scenario: all points of its sweep, all its seeds, and the verdict on what it expects.
use crate::cacheworld::{self, CacheWorldConfig};
use crate::cluster::{self, RunConfig};
use crate::createworld::{self, CreateWorldConfig};
use crate::light::{self, LightConfig, Progress};
use crate::metrics::{Metrics, StateHash};
use crate::readworld::{self, ReadWorldConfig};
use crate::scenario::{Expect, Params, Scenario, WorldKind};
use crate::survey::{self, SurveyConfig};
use std::time::Instant;

/// One simulated point.
#[derive(Clone, Debug)]
pub struct Point {
    /// The swept keys and their values here.
    pub at: Vec<(String, String)>,
    /// All parameters.
    pub params: Params,
    /// Means over the seeds; curves of the first seed.
    pub metrics: Metrics,
    /// Least and greatest value over the seeds, by metric.
    pub spread: Vec<(String, f64, f64)>,
    /// Events of all seeds.
    pub events: u64,
    /// Virtual seconds of all seeds.
    pub virtual_s: f64,
    /// Wall-clock seconds of all seeds.
    pub wall_s: f64,
    /// Over the histories of all seeds.
    pub hash: u64,
}

/// What became of an expectation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Within its bounds.
    Holds,
    /// Outside.
    Misses,
    /// The metric was not measured (in this form of the scenario).
    NotMeasured,
}

impl Outcome {
    /// In one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Holds => "holds",
            Outcome::Misses => "misses",
            Outcome::NotMeasured => "not measured",
        }
    }
}

/// An expectation and what was measured.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What was expected.
    pub expect: Expect,
    /// The measured value.
    pub measured: Option<f64>,
    /// The judgement.
    pub outcome: Outcome,
}

/// A scenario that ran.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// What ran.
    pub scenario: Scenario,
    /// Its points.
    pub points: Vec<Point>,
    /// On each expectation, in the order of the file.
    pub verdicts: Vec<Verdict>,
}

/// Called with the number of the run, the number of runs, and how far it is.
pub type OnProgress<'a> = dyn FnMut(usize, usize, Progress) + 'a;

/// How a scenario is run.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Keys set on the command line: they override parameters and end the sweep over the same key.
    pub set: Vec<(String, String)>,
    /// Only this seed.
    pub seed: Option<u64>,
    /// The small form.
    pub smoke: bool,
}

/// The scenario as `overrides` change it.
///
/// # Errors
/// A sentence naming the refused key or value.
pub fn prepare(mut scenario: Scenario, overrides: &Overrides) -> Result<Scenario, String> {
    if overrides.smoke {
        for (key, value) in scenario.smoke.clone().changed() {
            apply(&mut scenario, key, value)?;
        }
        scenario.seeds.truncate(1);
        if scenario.smoke.changed().next().is_some() {
            scenario.expect.retain(|e| e.smoke);
        }
    }
    for (key, value) in &overrides.set {
        apply(&mut scenario, key, value)?;
    }
    if let Some(seed) = overrides.seed.or_else(|| explicit_seed(&overrides.set)) {
        scenario.seeds = vec![seed];
    }
    Ok(scenario)
}

fn explicit_seed(set: &[(String, String)]) -> Option<u64> {
    set.iter().rev().find(|(k, _)| k == "seed").and_then(|(_, v)| v.parse().ok())
}

fn apply(scenario: &mut Scenario, key: &str, value: &str) -> Result<(), String> {
    scenario.params.set(key, value)?;
    scenario.sweep.retain(|(k, _)| k != key);
    Ok(())
}

/// Runs all points and judges.
///
/// # Errors
/// A sentence, when parameters do not go together.
pub fn run(scenario: Scenario, progress: &mut OnProgress) -> Result<Experiment, String> {
    let mut points = Vec::new();
    if scenario.world != WorldKind::Reference {
        let all = scenario.points();
        let seeds = if scenario.seeds.is_empty() { vec![scenario.params.int("seed")] } else { scenario.seeds.clone() };
        let runs = all.len() * seeds.len();
        for (i, at) in all.into_iter().enumerate() {
            points.push(run_point(&scenario, at, &seeds, i * seeds.len(), runs, progress)?);
        }
    }
    let verdicts = scenario.expect.iter().map(|e| judge(&scenario, &points, e)).collect();
    Ok(Experiment { scenario, points, verdicts })
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
        WorldKind::Light => {
            let o = light::run(&LightConfig::from_params(params)?, progress);
            Ok(RunOutcome { metrics: o.metrics, events: o.events, virtual_ns: o.virtual_ns, hash: o.hash })
        }
        WorldKind::Survey => {
            let (metrics, events, virtual_ns, hash) = survey::run(&SurveyConfig::from_params(params)?);
            Ok(RunOutcome { metrics, events, virtual_ns, hash })
        }
        WorldKind::Cache => {
            let config = CacheWorldConfig::from_params(params)?;
            let (metrics, events, virtual_ns, hash) = cacheworld::run(&config, progress)?;
            Ok(RunOutcome { metrics, events, virtual_ns, hash })
        }
        WorldKind::Readahead => {
            let config = ReadWorldConfig::from_params(params)?;
            let (metrics, events, virtual_ns, hash) = readworld::run(&config, progress)?;
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
        WorldKind::Reference => Err("a reference scenario is shown by a test of its room".to_string()),
    }
}

/// Keys that a scenario sets or sweeps although its world has no use for them, as it is set up.
#[must_use]
pub fn without_effect(scenario: &Scenario) -> Vec<String> {
    let mut params = scenario.params.clone();
    for (key, value) in scenario.points().into_iter().next_back().into_iter().flatten() {
        if params.set(&key, &value).is_err() {
            return Vec::new();
        }
    }
    let mut fits = true;
    let mut unread = params.unread_by(|p| {
        fits = match scenario.world {
            WorldKind::Light => LightConfig::from_params(p).is_ok(),
            WorldKind::Survey => SurveyConfig::from_params(p).is_ok(),
            WorldKind::Cache => CacheWorldConfig::from_params(p).is_ok(),
            WorldKind::Readahead => ReadWorldConfig::from_params(p).is_ok(),
            WorldKind::Create => {
                let _ = CreateWorldConfig::from_params(p);
                true
            }
            WorldKind::Cluster => RunConfig::from_params(p).is_ok(),
            WorldKind::Reference => true,
        }
    });
    if !fits {
        // What does not go together is refused when it runs.
        return Vec::new();
    }
    unread.retain(|k| k != "seed");
    unread
}

fn run_point(
    scenario: &Scenario,
    at: Vec<(String, String)>,
    seeds: &[u64],
    before: usize,
    runs: usize,
    progress: &mut OnProgress,
) -> Result<Point, String> {
    let mut params = scenario.params.clone();
    for (key, value) in &at {
        params.set(key, value)?;
    }
    let (mut outcomes, mut hash) = (Vec::new(), StateHash::default());
    let begin = Instant::now();
    for (i, seed) in seeds.iter().enumerate() {
        params.set("seed", &seed.to_string())?;
        let mut report = |p: Progress| progress(before + i, runs, p);
        let outcome = run_once(scenario.world, &params, &mut report)?;
        hash.fold(outcome.hash);
        outcomes.push(outcome);
    }
    let wall_s = begin.elapsed().as_secs_f64();
    params.set("seed", &seeds[0].to_string())?;
    let (metrics, spread) = combine(&outcomes);
    Ok(Point {
        at,
        params,
        metrics,
        spread,
        events: outcomes.iter().map(|o| o.events).sum(),
        virtual_s: outcomes.iter().map(|o| o.virtual_ns).sum::<u64>() as f64 / 1e9,
        wall_s,
        hash: if outcomes.len() == 1 { outcomes[0].hash } else { hash.0 },
    })
}

/// Means, and least and greatest values, over the seeds.
fn combine(outcomes: &[RunOutcome]) -> (Metrics, Vec<(String, f64, f64)>) {
    let mut metrics = outcomes[0].metrics.clone();
    let mut spread = Vec::new();
    for m in &mut metrics.values {
        let all: Vec<f64> = outcomes.iter().filter_map(|o| o.metrics.get(&m.name)).collect();
        m.value = all.iter().sum::<f64>() / all.len().max(1) as f64;
        if all.len() > 1 {
            let least = all.iter().copied().fold(f64::INFINITY, f64::min);
            let greatest = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            spread.push((m.name.clone(), least, greatest));
        }
    }
    (metrics, spread)
}

fn matches(point: &Point, conditions: &[(String, String)]) -> bool {
    conditions.iter().all(|(k, v)| same_value(point.params.text(k), v))
}

/// `1M` and `1048576` are the same value.
fn same_value(a: &str, b: &str) -> bool {
    if let (Ok(x), Ok(y)) = (a.parse::<f64>(), b.parse::<f64>()) {
        return x == y;
    }
    a == b || matches!((types::parse_size(a), types::parse_size(b)), (Ok(x), Ok(y)) if x == y)
}

/// The point that an expectation speaks of: the first that meets its conditions.
fn subject<'a>(scenario: &Scenario, points: &'a [Point], e: &Expect) -> Option<&'a Point> {
    // A condition on a key that the command line pinned to another value speaks of a point that does not exist.
    let swept = |k: &str| scenario.sweep.iter().any(|(s, _)| s == k);
    let unswept_base = e.when.is_empty() && points.iter().any(|p| !swept_away(scenario, p));
    points.iter().find(|p| {
        matches(p, &e.when) && (!unswept_base || e.when.iter().any(|(k, _)| swept(k)) || !swept_away(scenario, p))
    })
}

/// Whether a point's swept values differ from the scenario's own parameters.
fn swept_away(scenario: &Scenario, point: &Point) -> bool {
    point.at.iter().any(|(k, v)| !same_value(scenario.params.text(k), v))
}

fn value_at(point: &Point, e: &Expect) -> Option<f64> {
    match e.at {
        None => point.metrics.get(&e.metric),
        Some(x) => {
            let curve = point.metrics.curve(&e.metric)?;
            let after = curve.iter().position(|p| p.0 >= x)?;
            let (b, a) = (curve[after], curve[after.saturating_sub(1)]);
            let t = if b.0 > a.0 { (x - a.0) / (b.0 - a.0) } else { 0.0 };
            Some(a.1 + (b.1 - a.1) * t)
        }
    }
}

fn judge(scenario: &Scenario, points: &[Point], e: &Expect) -> Verdict {
    let measured = subject(scenario, points, e).and_then(|p| {
        let value = value_at(p, e)?;
        if e.relative_to.is_empty() {
            return Some(value);
        }
        let mut other = e.when.clone();
        other.retain(|(k, _)| !e.relative_to.iter().any(|(r, _)| r == k));
        other.extend(e.relative_to.clone());
        let same_elsewhere = |q: &&Point| {
            matches(q, &e.relative_to)
                && p.at
                    .iter()
                    .all(|(k, v)| e.relative_to.iter().any(|(r, _)| r == k) || same_value(q.params.text(k), v))
        };
        let base = value_at(points.iter().find(same_elsewhere)?, e)?;
        (base != 0.0).then(|| (value / base - 1.0) * 100.0)
    });
    let outcome = match measured {
        None => Outcome::NotMeasured,
        Some(v) if e.min.is_some_and(|m| v < m) || e.max.is_some_and(|m| v > m) => Outcome::Misses,
        Some(_) => Outcome::Holds,
    };
    Verdict { expect: e.clone(), measured, outcome }
}

impl Experiment {
    /// Whether nothing misses.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.verdicts.iter().all(|v| v.outcome != Outcome::Misses)
    }
    /// Whether nothing misses but what is known to.
    #[must_use]
    pub fn as_known(&self) -> bool {
        self.verdicts.iter().all(|v| v.outcome != Outcome::Misses || !v.expect.known_miss.is_empty())
    }
    /// Whether every expectation could be judged.
    #[must_use]
    pub fn all_measured(&self) -> bool {
        self.verdicts.iter().all(|v| v.outcome != Outcome::NotMeasured)
    }
    /// The point that a bare `run` is about: the scenario's own parameters, else the first.
    #[must_use]
    pub fn main_point(&self) -> Option<&Point> {
        self.points.iter().find(|p| !swept_away(&self.scenario, p)).or(self.points.first())
    }
}

/// The most memory that this process has held, in MiB.
#[must_use]
pub fn peak_memory_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib: f64 = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0.0);
    kib / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::parse;

    fn scenario(tail: &str) -> Scenario {
        let text = format!(
            "id='T'\ntitle='t'\nsource='s'\n[params]\nclients=16\noss_count=2\nfile_bytes='2M'\nnrs.policy='obrr'\n{tail}"
        );
        parse("t.toml", &text).unwrap()
    }

    fn quiet(s: Scenario) -> Experiment {
        run(s, &mut |_, _, _| {}).unwrap()
    }

    #[test]
    fn a_gain_is_measured_between_two_points_of_a_sweep() {
        let e = quiet(scenario(
            "[sweep]\nnrs.policy=['fifo','obrr']\ntransfer_size_bytes=['512K','1M']\n[[expect]]\nmetric='makespan_s'\nwhen={nrs.policy='obrr'}\nrelative_to={nrs.policy='fifo'}\nmin=-99\nmax=99\n",
        ));
        let gain = e.verdicts[0].measured.unwrap();
        let of = |p: &str| {
            e.points
                .iter()
                .find(|x| x.params.text("nrs.policy") == p)
                .and_then(|x| x.metrics.get("makespan_s"))
                .unwrap()
        };
        assert!((gain - (of("obrr") / of("fifo") - 1.0) * 100.0).abs() < 1e-9);
        assert_eq!(e.points.len(), 4);
    }

    #[test]
    fn setting_a_swept_key_pins_it() {
        let s = scenario(
            "[sweep]\nnrs.policy=['fifo','obrr']\n[[expect]]\nmetric='makespan_s'\nwhen={nrs.policy='obrr'}\nmin=0\n",
        );
        let set = Overrides { set: vec![("nrs.policy".into(), "fifo".into())], ..Overrides::default() };
        let e = quiet(prepare(s, &set).unwrap());
        assert_eq!(e.points.len(), 1);
        assert_eq!(e.verdicts[0].outcome, Outcome::NotMeasured);
    }

    #[test]
    fn values_are_compared_as_what_they_are() {
        assert!(same_value("1M", "1048576") && same_value("0.50", "0.5") && same_value("fifo", "fifo"));
        assert!(!same_value("0.9", "0.1") && !same_value("1M", "1K") && !same_value("fifo", "obrr"));
    }

    #[test]
    fn a_value_out_of_bounds_misses() {
        let e =
            quiet(scenario("[[expect]]\nmetric='makespan_s'\nmin=1000\n[[expect]]\nmetric='requests.bulk'\nmin=32\n"));
        assert_eq!(e.verdicts[0].outcome, Outcome::Misses);
        assert_eq!(e.verdicts[1].outcome, Outcome::Holds);
        assert!(!e.holds());
    }

    #[test]
    fn seeds_are_averaged_and_their_spread_is_kept() {
        let mut s = scenario("");
        s.seeds = vec![1, 2, 3];
        let e = quiet(s);
        let (name, low, high) = &e.points[0].spread[0];
        let mean = e.points[0].metrics.get(name).unwrap();
        assert!(*low < mean && mean < *high);
    }
}
