//! What a source leaves open, read otherwise: the same expectations, measured with another value.
//!
//! Decides which keys are readings in which world; what a scenario sets or sweeps itself is its own reading and stays. A
//! figure that a reading moves is the simulator's as much as the source's.
use super::{Experiment, OnProgress, Verdict, judge, runs, seeds};
use crate::scenario::{Scenario, WorldKind};

/// Seeds of each reading: the first of the scenario's.
const SEEDS: usize = 3;

/// One other reading: in words, and the keys that make it.
struct Reading {
    name: &'static str,
    keys: &'static [(&'static str, &'static str)],
}

const LIGHT: [Reading; 4] = [
    Reading { name: "transfers wait for each other at NICs", keys: &[("net.nic_queue", "true")] },
    Reading {
        name: "every allocation takes 120 us",
        keys: &[("oss.allocation_us_min", "120"), ("oss.allocation_us_max", "120")],
    },
    Reading { name: "all clients start at once", keys: &[("client.start_skew_us", "0")] },
    Reading {
        name: "clients start in any order within 40 ms",
        keys: &[("client.start_skew_us", "0"), ("client.start_spread_s", "0.04")],
    },
];

const CACHE: [Reading; 2] = [
    Reading { name: "coarse accesses start at multiples of their size", keys: &[("workload.coarse_start", "record")] },
    Reading { name: "coarse accesses leave the hot range alone", keys: &[("workload.coarse_apart", "true")] },
];

fn of(world: WorldKind) -> &'static [Reading] {
    match world {
        WorldKind::Light => &LIGHT,
        WorldKind::Cache => &CACHE,
        _ => &[],
    }
}

/// What a reading does to what a scenario expects.
#[derive(Clone, Debug)]
pub struct Effect {
    /// In words.
    pub name: &'static str,
    /// The keys, as `--set` takes them.
    pub keys: String,
    /// On each expectation, in the order of the file; not measured where it is of the run itself.
    pub verdicts: Vec<Verdict>,
}

/// The scenario under a reading; `None` where it says itself what holds.
fn read_otherwise(scenario: &Scenario, reading: &Reading) -> Option<Scenario> {
    let mut s = scenario.clone();
    for (key, value) in reading.keys {
        let own = s.params.changed().any(|(k, _)| k == *key) || s.sweep.iter().any(|(k, _)| k == key);
        if own || s.params.text(key) == *value {
            return None;
        }
        s.params.set(key, value).ok()?;
    }
    s.seeds = seeds(scenario).into_iter().take(SEEDS).collect();
    // What a run costs is not a matter of readings, and measured with nothing beside it.
    s.expect.iter_mut().filter(|e| e.metric.starts_with("run.")).for_each(|e| e.metric = "-".into());
    runs::fits(&s).then_some(s)
}

/// Measures what `e` expects under every other reading of its world.
///
/// # Errors
/// As [`super::run`].
pub fn vary(e: &mut Experiment, jobs: usize, progress: &mut OnProgress) -> Result<(), String> {
    if e.scenario.expect.is_empty() {
        return Ok(());
    }
    for reading in of(e.scenario.world) {
        let Some(s) = read_otherwise(&e.scenario, reading) else { continue };
        let points = runs::all(&s, jobs, progress)?;
        let verdicts = s.expect.iter().map(|x| judge::judge(&s, &points, x)).collect();
        let keys: Vec<String> = reading.keys.iter().map(|(k, v)| format!("{k}={v}")).collect();
        e.readings.push(Effect { name: reading.name, keys: keys.join(" "), verdicts });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Outcome, run};
    use crate::scenario::parse;

    #[test]
    fn expectations_are_measured_under_other_readings_but_not_under_what_a_scenario_says_itself() {
        let varied = |params: &str| {
            let text = format!(
                "id='T'\ntitle='t'\nsource='s'\n[params]\nclients=16\noss_count=2\nfile_bytes='2M'\n{params}\n\
                 [[expect]]\nmetric='makespan_s'\nmax=0.001\n[[expect]]\nmetric='run.repeats'\nmin=1\n"
            );
            let mut e = run(parse("t.toml", &text).unwrap(), 0, &mut |_, _, _| {}).unwrap();
            vary(&mut e, 0, &mut |_, _, _| {}).unwrap();
            e
        };
        let e = varied("");
        assert_eq!(e.readings.len(), LIGHT.len());
        let keys: Vec<&str> = e.readings.iter().map(|r| r.keys.as_str()).collect();
        assert_eq!(keys[1], "oss.allocation_us_min=120 oss.allocation_us_max=120");
        let own = e.verdicts[0].measured.unwrap().mean;
        for r in &e.readings {
            assert_eq!(r.verdicts[1].outcome, Outcome::NotMeasured);
            let m = r.verdicts[0].measured.unwrap();
            assert!(m.seeds == 3 && m.mean != own, "{}: {} and {own}", r.name, m.mean);
        }
        assert_eq!(varied("net.nic_queue=true\nclient.start_skew_us=0").readings.len(), 1);
    }
}
