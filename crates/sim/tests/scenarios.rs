//! The scenario files themselves: all are well-formed, what they refer to exists, and small forms of the paper's cases
//! come out in a few seconds.
use sim::experiment::{Experiment, Outcome, Overrides, Point, prepare, run, without_effect};
use sim::scenario::{Scenario, WorldKind, find, load, scenario_files};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn scenario(id: &str) -> Scenario {
    let file = scenario_files(&root().join("sim/scenarios"))
        .into_iter()
        .find(|f| f.file_stem().is_some_and(|s| s == id))
        .unwrap_or_else(|| panic!("no scenario {id}"));
    load(&file).unwrap_or_else(|e| panic!("{e}"))
}

fn small(id: &str, set: &[(&str, &str)]) -> Experiment {
    let set = set.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let overrides = Overrides { set, seed: Some(1), smoke: false };
    judged(id, &overrides)
}

fn judged(id: &str, overrides: &Overrides) -> Experiment {
    let prepared = prepare(scenario(id), overrides).unwrap_or_else(|e| panic!("{id}: {e}"));
    run(prepared, 0, &mut |_, _, _| {}).unwrap_or_else(|e| panic!("{id}: {e}"))
}

/// Paper 001's load per OSS on four of them: 224 clients.
const FOUR_OSS: [(&str, &str); 2] = [("clients", "224"), ("oss_count", "4")];

fn metric(p: &Point, name: &str) -> f64 {
    p.metrics.get(name).unwrap_or_else(|| panic!("no metric {name}"))
}

#[test]
fn every_scenario_file_is_well_formed_and_named_like_its_id() {
    let files = scenario_files(&root().join("sim/scenarios"));
    assert!(files.len() >= 50, "{} files", files.len());
    for file in &files {
        let s = load(file).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(file.file_stem().unwrap().to_str(), Some(s.id.as_str()), "{}", file.display());
        assert!(!s.description.is_empty(), "{} has no description", s.id);
        prepare(s, &Overrides { smoke: true, ..Overrides::default() }).unwrap();
    }
}

#[test]
fn every_scenario_sets_only_what_has_an_effect_and_what_has_none_is_named() {
    for file in scenario_files(&root().join("sim/scenarios")) {
        for smoke in [false, true] {
            let s = prepare(load(&file).unwrap(), &Overrides { smoke, ..Overrides::default() }).unwrap();
            assert_eq!(without_effect(&s), [""; 0], "{}", s.id);
        }
    }
    let set = |id: &str, keys: &[&str]| {
        let set = keys.iter().map(|k| k.split_once('=').unwrap()).map(|(k, v)| (k.into(), v.into())).collect();
        without_effect(&prepare(scenario(id), &Overrides { set, ..Overrides::default() }).unwrap())
    };
    assert_eq!(
        set("R3", &["cache.policy=lru", "nrs.lambda=2", "cache.bypass_bytes=1M"]),
        ["cache.bypass_bytes", "cache.policy"]
    );
    assert_eq!(set("R41", &["nrs.policy=orr", "cache.policy=lru", "cache.bypass_bytes=1M"]), ["nrs.policy"]);
    assert_eq!(set("R54", &["readahead.policy=none", "readahead.sync_bytes_max=0", "clients=3"]), ["clients"]);
    assert_eq!(set("everything", &["reader.count=3", "nrs.policy=obrr", "clients=3"]), ["reader.count"]);
}

#[test]
fn every_expectation_speaks_of_a_point_of_its_sweep() {
    for file in scenario_files(&root().join("sim/scenarios")) {
        let s = load(&file).unwrap();
        for e in &s.expect {
            for (key, value) in e.when.iter().chain(&e.relative_to) {
                let swept = s.sweep.iter().find(|(k, _)| k == key);
                let same = |v: &String| {
                    v == value || v.parse::<f64>().ok().zip(value.parse().ok()).is_some_and(|(a, b): (f64, f64)| a == b)
                };
                assert!(swept.is_some_and(|(_, v)| v.iter().any(same)), "{}: {key} = {value} is not swept", s.id);
            }
        }
    }
}

#[test]
fn every_reference_names_a_test_that_exists() {
    for file in scenario_files(&root().join("sim/scenarios")) {
        let s = load(&file).unwrap();
        if s.world == WorldKind::Reference {
            let (path, name) = s.test.split_once("::").unwrap_or_else(|| panic!("{}: {}", s.id, s.test));
            let source = std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{}: {path}: {e}", s.id));
            assert!(source.contains(&format!("fn {name}(")), "{}: {path} has no {name}", s.id);
        }
    }
}

#[test]
fn fcfs_and_obrr_reach_the_papers_bandwidth_per_oss() {
    let per_oss = |id: &str| metric(&small(id, &FOUR_OSS).points[0], "bandwidth_mib_per_s_per_oss");
    let (fcfs, obrr) = (per_oss("R1"), per_oss("R3"));
    assert!((34_400.0 / 144.0 * 0.96..34_400.0 / 144.0 * 1.04).contains(&fcfs), "{fcfs}");
    assert!((48_600.0 / 144.0 * 0.96..48_600.0 / 144.0 * 1.06).contains(&obrr), "{obrr}");
}

#[test]
fn table_1_comes_out_on_four_oss() {
    let e = small("R8", &FOUR_OSS);
    assert!(e.verdicts.iter().all(|v| v.outcome == Outcome::Holds), "{:?}", e.verdicts);
}

#[test]
fn the_deadline_run_is_the_papers() {
    for id in ["R12", "R13", "R14", "R15", "R16"] {
        let e = judged(id, &Overrides::default());
        assert!(e.as_known() && e.all_measured(), "{id}: {:?}", e.verdicts);
    }
}

#[test]
fn advice_and_the_fast_tier_give_what_paper_004_claims() {
    for id in ["R58a", "R58b", "R58e", "R58f"] {
        let e = judged(id, &Overrides { seed: Some(1), ..Overrides::default() });
        assert!(e.as_known() && e.all_measured(), "{id}: {:?}", e.verdicts);
    }
}

#[test]
fn the_worlds_of_papers_000_and_003_give_what_they_claim() {
    let cold = [("workload.fine_share", "0.9")];
    for (id, set) in [("R32", &cold[..]), ("R35", &cold), ("R52", &[]), ("R57w", &[])] {
        let e = small(id, set);
        assert!(
            e.verdicts.iter().filter(|v| v.measured.is_some()).all(|v| v.outcome == Outcome::Holds),
            "{id}: {:?}",
            e.verdicts
        );
        assert!(e.verdicts.iter().any(|v| v.measured.is_some()), "{id}");
    }
}

#[test]
fn beyond_the_paper_region_turns_on_an_aligned_allocator_reach_95_percent_of_the_disk() {
    let e = small("R31", &FOUR_OSS);
    let of = |policy: &str| e.points.iter().find(|p| p.params.text("nrs.policy") == policy).unwrap();
    assert!(metric(of("obrr+"), "bandwidth_mib_per_s_per_oss") > 440.0);
    assert!(metric(of("obrr+"), "response_time_p99_s.bulk") < metric(of("fifo"), "response_time_p99_s.bulk"));
}

#[test]
fn one_scenario_and_one_seed_repeat_to_the_last_bit_in_every_world() {
    for (id, set) in [
        ("R3", &FOUR_OSS[..]),
        ("R18", &[("clients", "100"), ("client.start_spread_s", "2"), ("nrs.policy", "deadline+obrr")]),
        ("faults", &[("clients", "112"), ("oss_count", "4")]),
        ("R28t", &[("survey.total_bytes", "2G"), ("survey.threads", "64")]),
        ("R41", &[("workload.accesses", "500"), ("workload.warmup", "500"), ("cache.policy", "adaptive")]),
        ("R57", &[("workload.file_bytes", "16M"), ("reader.order", "random")]),
        ("R58f", &[("file_bytes", "2M"), ("oss.fast_bytes", "24M")]),
        ("create", &[("clients", "32"), ("create.files_per_client", "20")]),
    ] {
        let (a, b) = (small(id, set), small(id, set));
        for (x, y) in a.points.iter().zip(&b.points) {
            assert_eq!((x.hash(), x.events(), &x.metrics), (y.hash(), y.events(), &y.metrics), "{id}");
        }
        let seed = Overrides {
            set: set.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            seed: Some(99),
            smoke: false,
        };
        let other = run(prepare(scenario(id), &seed).unwrap(), 0, &mut |_, _, _| {}).unwrap();
        assert_ne!(a.points[0].hash(), other.points[0].hash(), "{id}: the seed changes nothing");
    }
}

#[test]
fn one_queue_and_parted_worlds_have_one_history() {
    for policy in ["obrr", "crrn", "deadline+obrr", "obrr+"] {
        let hash = |partition| {
            let e = small(
                "R3",
                &[
                    ("clients", "48"),
                    ("oss_count", "4"),
                    ("file_bytes", "4M"),
                    ("nrs.policy", policy),
                    ("engine.partition", partition),
                ],
            );
            e.points[0].hash()
        };
        assert_eq!(hash("true"), hash("false"), "{policy}");
    }
}

#[test]
fn every_policy_of_the_scheduler_room_serves_every_request() {
    for entry in nrs::registry() {
        let e = small("R3", &[("clients", "28"), ("oss_count", "1"), ("file_bytes", "4M"), ("nrs.policy", entry.name)]);
        assert_eq!(metric(&e.points[0], "requests.bulk"), 112.0, "{}", entry.name);
    }
}

#[test]
fn an_id_finds_its_file_whatever_its_case_and_a_wrong_one_says_where_it_was_looked_for() {
    assert!(find("r3").unwrap().ends_with("paper001/R3.toml"));
    assert!(find("R999").unwrap_err().contains("scenarios"));
}
