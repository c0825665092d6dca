//! Running a scenario: all points of its sweep, all its seeds on all cores, and the verdict on what it expects.
mod estimate;
mod judge;
mod readings;
mod runs;

pub use estimate::Estimate;
pub use judge::{Outcome, Verdict};
pub(crate) use judge::{change, same_value};
pub use readings::{Effect, vary};
pub use runs::{measure, peak_memory_mib, without_effect};

use crate::light::Progress;
use crate::metrics::{Metrics, StateHash};
use crate::recorded;
use crate::scenario::{Params, Scenario, WorldKind};

/// What one seed of a point gave.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The seed.
    pub seed: u64,
    /// What was measured.
    pub metrics: Metrics,
    /// Events.
    pub events: u64,
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// State hash.
    pub hash: u64,
    /// Wall-clock seconds on its core.
    pub wall_s: f64,
}

/// One simulated point.
#[derive(Clone, Debug)]
pub struct Point {
    /// The swept keys and their values here.
    pub at: Vec<(String, String)>,
    /// All parameters, with the first seed.
    pub params: Params,
    /// Means over the seeds; curves of the first seed.
    pub metrics: Metrics,
    /// Each seed, in the scenario's order.
    pub samples: Vec<Sample>,
}

impl Point {
    fn of(at: Vec<(String, String)>, params: Params, samples: Vec<Sample>) -> Point {
        let mut metrics = samples.first().map(|s| s.metrics.clone()).unwrap_or_default();
        for m in &mut metrics.values {
            let all: Vec<f64> = samples.iter().filter_map(|s| s.metrics.get(&m.name)).collect();
            m.value = Estimate::of(&all).map_or(m.value, |e| e.mean);
        }
        Point { at, params, metrics, samples }
    }
    /// A metric over the seeds.
    #[must_use]
    pub fn estimate(&self, metric: &str) -> Option<Estimate> {
        Estimate::of(&self.samples.iter().filter_map(|s| s.metrics.get(metric)).collect::<Vec<_>>())
    }
    /// Events of all seeds.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.samples.iter().map(|s| s.events).sum()
    }
    /// Virtual seconds of all seeds.
    #[must_use]
    pub fn virtual_s(&self) -> f64 {
        self.samples.iter().map(|s| s.virtual_ns).sum::<u64>() as f64 / 1e9
    }
    /// Wall-clock seconds of all seeds, each on its core.
    #[must_use]
    pub fn wall_s(&self) -> f64 {
        self.samples.iter().fold(0.0, |sum, s| sum + s.wall_s)
    }
    /// Over the histories of all seeds; with one seed its own.
    #[must_use]
    pub fn hash(&self) -> u64 {
        if let [one] = &self.samples[..] {
            return one.hash;
        }
        let mut hash = StateHash::default();
        self.samples.iter().for_each(|s| hash.fold(s.hash));
        hash.0
    }
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
    /// The same expectations under other readings of what the source leaves open, where [`vary`] was asked.
    pub readings: Vec<Effect>,
}

/// Called with the number of the run, the number of runs, and how far it is. Runs go on side by side.
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

/// Seeds of a scenario that names none.
const SEEDS: u64 = 10;

/// The scenario as `overrides` change it.
///
/// # Errors
/// A sentence naming the refused key or value.
pub fn prepare(mut scenario: Scenario, overrides: &Overrides) -> Result<Scenario, String> {
    if overrides.smoke {
        for (key, value) in scenario.smoke.clone().changed() {
            apply(&mut scenario, key, value)?;
        }
        scenario.seeds = vec![seeds(&scenario)[0]];
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

/// The seeds that a scenario is repeated with: those it names, else ten from its parameter `seed` on.
#[must_use]
pub fn seeds(scenario: &Scenario) -> Vec<u64> {
    if scenario.seeds.is_empty() {
        let first = scenario.params.int("seed");
        return (first..first.saturating_add(SEEDS)).collect();
    }
    scenario.seeds.clone()
}

/// Runs all points with all seeds, `jobs` at a time (0: one per core), and judges.
///
/// # Errors
/// A sentence, when parameters do not go together, or readings do not fit their file.
pub fn run(scenario: Scenario, jobs: usize, progress: &mut OnProgress) -> Result<Experiment, String> {
    let points = match scenario.world {
        WorldKind::Reference => Vec::new(),
        WorldKind::Recorded => {
            let sample =
                Sample { seed: 0, metrics: recorded::read(&scenario)?, events: 0, virtual_ns: 0, hash: 0, wall_s: 0.0 };
            vec![Point::of(Vec::new(), scenario.params.clone(), vec![sample])]
        }
        _ => runs::all(&scenario, jobs, progress)?,
    };
    let verdicts = scenario.expect.iter().map(|e| judge::judge(&scenario, &points, e)).collect();
    Ok(Experiment { scenario, points, verdicts, readings: Vec::new() })
}

impl Experiment {
    /// Whether nothing misses.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.verdicts.iter().all(|v| matches!(v.outcome, Outcome::Holds | Outcome::NotMeasured))
    }
    /// Whether nothing misses but what is known to, where it is known to.
    #[must_use]
    pub fn as_known(&self) -> bool {
        self.verdicts.iter().all(|v| !matches!(v.outcome, Outcome::Misses | Outcome::Moved))
    }
    /// Whether every expectation could be judged.
    #[must_use]
    pub fn all_measured(&self) -> bool {
        self.verdicts.iter().all(|v| v.outcome != Outcome::NotMeasured)
    }
    /// The point that a bare `run` is about: the scenario's own parameters, else the first.
    #[must_use]
    pub fn main_point(&self) -> Option<&Point> {
        self.points.iter().find(|p| !judge::swept_away(&self.scenario, p)).or(self.points.first())
    }
    /// Events of all points and seeds.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.points.iter().map(Point::events).sum()
    }
    /// Wall-clock seconds of all points and seeds, each on its core.
    #[must_use]
    pub fn wall_s(&self) -> f64 {
        self.points.iter().fold(0.0, |sum, p| sum + p.wall_s())
    }
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
        run(s, 0, &mut |_, _, _| {}).unwrap()
    }

    #[test]
    fn a_gain_is_measured_between_two_points_of_a_sweep() {
        let e = quiet(scenario(
            "[sweep]\nnrs.policy=['fifo','obrr']\ntransfer_size_bytes=['512K','1M']\n[[expect]]\nmetric='makespan_s'\nwhen={nrs.policy='obrr'}\nrelative_to={nrs.policy='fifo'}\nmin=-99\nmax=99\n",
        ));
        let gain = e.verdicts[0].measured.unwrap().mean;
        let of = |p: &str| {
            e.points
                .iter()
                .find(|x| x.params.text("nrs.policy") == p)
                .and_then(|x| x.metrics.get("makespan_s"))
                .unwrap()
        };
        // Averaged seed by seed: close to the change of the means.
        assert!((gain - (of("obrr") / of("fifo") - 1.0) * 100.0).abs() < 1.0);
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
    fn a_value_out_of_bounds_misses() {
        let e =
            quiet(scenario("[[expect]]\nmetric='makespan_s'\nmin=1000\n[[expect]]\nmetric='requests.bulk'\nmin=32\n"));
        assert_eq!(e.verdicts[0].outcome, Outcome::Misses);
        assert_eq!(e.verdicts[1].outcome, Outcome::Holds);
        assert!(!e.holds());
    }

    #[test]
    fn seeds_are_averaged_and_the_order_in_which_they_run_changes_nothing() {
        let s = scenario("");
        assert_eq!(seeds(&s).len(), 10);
        let one_by_one = run(s.clone(), 1, &mut |_, _, _| {}).unwrap();
        let side_by_side = run(s, 4, &mut |_, _, _| {}).unwrap();
        let (a, b) = (&one_by_one.points[0], &side_by_side.points[0]);
        assert_eq!((a.hash(), &a.metrics), (b.hash(), &b.metrics));
        let e = a.estimate("makespan_s").unwrap();
        assert_eq!((e.seeds, a.metrics.get("makespan_s")), (10, Some(e.mean)));
        assert!(e.least < e.mean && e.mean < e.greatest && e.half_width > 0.0, "{e:?}");
    }

    #[test]
    fn a_trend_is_judged_on_every_point_of_its_course() {
        let e = quiet(scenario(
            "[sweep]\nclients=[8, 16, 32]\n[[expect]]\nmetric='requests.bulk'\nover='clients'\ntrend='rises'\n\
             [[expect]]\nmetric='requests.bulk'\nover='clients'\ntrend='falls'\n",
        ));
        // 2 MiB in requests of 1 MiB: 16, 32, 64 requests.
        assert_eq!(e.verdicts[0].outcome, Outcome::Holds);
        assert_eq!(e.verdicts[0].measured.unwrap().mean, -16.0);
        assert_eq!((e.verdicts[1].outcome, e.verdicts[1].measured.unwrap().mean), (Outcome::Misses, 32.0));
    }

    #[test]
    fn what_a_run_costs_is_measured_where_it_is_expected() {
        let e = quiet(scenario(
            "[[expect]]\nmetric='run.repeats'\nmin=1\n[[expect]]\nmetric='run.peak_memory_mib'\nmax=4096\n\
             [[expect]]\nmetric='run.wall_s'\nmax=600\n",
        ));
        assert!(e.holds() && e.all_measured(), "{:?}", e.verdicts);
        assert_eq!(quiet(scenario("")).points[0].metrics.get("run.repeats"), None);
    }
}
