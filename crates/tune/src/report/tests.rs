//! Tables, commands and JSON of results that are made up.
use std::path::PathBuf;

use super::*;
use crate::descent::{Check, Measurer, Run, Stage, descend};
use crate::run::{Options, Simulated};
use crate::simulated::{Device, Setting};
use crate::workload::defaults;

/// Gives what is planted, to the last digit but one.
struct Planted(u64);
impl Measurer for Planted {
    fn measure(&mut self, choice: &crate::factor::Choice, _: u64) -> bench::Outcome<f64> {
        self.0 += 1;
        let worth = |v: &String| match v.as_str() {
            "-1" | "obrr" => 2.0,
            "32" => 1.25,
            _ => 1.0,
        };
        Ok(choice.iter().map(worth).product::<f64>() * (1.0 + (self.0 % 3) as f64 * 1e-4))
    }
    fn spent_s(&self) -> f64 {
        self.0 as f64
    }
    fn run_s(&self) -> f64 {
        1.0
    }
}

fn strings(all: &[&str]) -> Vec<String> {
    all.iter().map(|s| (*s).to_string()).collect()
}

fn found(servers: bool) -> Found {
    let factors = vec![
        Factor::new("stripe_count", Place::StripeCount, "-c", "1".into(), &strings(&["2", "-1"])),
        Factor::new("stripe_size", Place::StripeSize, "-S", "4194304".into(), &strings(&["1048576"])),
        Factor::new("rpcs_in_flight", Place::Mount, "osc.*.max_rpcs_in_flight", "8".into(), &strings(&["16", "32"])),
        Factor::new("processes", Place::Processes, "processes", "4".into(), &strings(&["32"])),
    ];
    let course = descend(&factors, &mut Planted(0), 1e6);
    let server = vec![Factor::new(
        "nrs_policy",
        Place::Server,
        "ost.OSS.ost_io.nrs_policies",
        "fifo".into(),
        &strings(&["obrr"]),
    )];
    let simulated = Simulated {
        setting: Setting {
            clients: 64,
            osts: 4,
            stripes: 4,
            rpc_bytes: 1 << 20,
            rpcs_in_flight: 32,
            device: Device::declared("hdd").unwrap(),
        },
        course: descend(&server, &mut Planted(0), 1e6),
        factors: server,
        check: None,
    };
    let options = Options {
        mount: PathBuf::from("/m n"),
        dir: PathBuf::from("/m n/d"),
        workloads: defaults(),
        limit_s: 60.0,
        size: None,
        device: None,
        clients: 64,
        servers,
        only: Vec::new(),
        journal: PathBuf::from("/j"),
    };
    Found {
        options,
        factors,
        course,
        details: Vec::new(),
        bytes: vec![1 << 24; 2],
        simulated: Some(simulated),
        notes: vec!["a note".into()],
        has_layout: false,
    }
}

#[test]
fn tables_show_each_recommendation_with_error_bar_runs_and_the_way_back() {
    let text = found(false).text();
    for part in [
        "all OSTs (-1)",
        "12 pairs: runs ",
        "12 simulated pairs: runs ",
        "stria setstripe -c -1 -S 4194304 '/m n/d'",
        "stria setstripe -d '/m n/d'",
        "stria set_param --at '/m n' 'osc.*.max_rpcs_in_flight=32'",
        "stria set_param --at '/m n' 'osc.*.max_rpcs_in_flight=8'",
        "stria set_param --at '/m n' ost.OSS.ost_io.nrs_policies=obrr",
        "# start the program with 32 processes",
        "no difference found",
        "predicted +212",
        "64 clients like this one, 4 OSTs on 'hdd'",
        "simulated +100.0 % (+100.0 to +100.0); not tried on the cluster",
        "note: a note",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn json_holds_every_run_and_the_same_recommendations() {
    let f = found(false);
    let json = f.json();
    assert_eq!(json["runs"].as_array().unwrap().len(), f.course.runs.len());
    let values: Vec<&str> =
        json["recommended"].as_array().unwrap().iter().map(|r| r["value"].as_str().unwrap()).collect();
    assert_eq!(values, ["-1", "32", "32", "obrr"]);
    assert_eq!(json["check_holds"], true);
    assert_eq!(json["findings"][1]["verdict"]["is"], "no_difference");
    assert_eq!(json["simulated"]["findings"][0]["verdict"]["value"], "obrr");
    assert!(json["simulated"]["runs"].as_array().is_some_and(|r| !r.is_empty()));
}

#[test]
fn what_is_not_checked_or_not_the_clusters_is_not_applied() {
    let mut f = found(false);
    let not: Vec<bool> = f.recommendations().iter().map(|r| f.why_not(r).is_some()).collect();
    assert_eq!(not, [false, false, true, true], "processes are the program's, servers are not allowed");
    f.options.servers = true;
    assert!(f.why_not(&f.recommendations()[3]).unwrap().contains("not measured on the cluster"));
    let loss = Gain { mean: -0.2, low: -0.3, high: -0.1, pairs: 3 };
    let predicted = f.course.check.as_ref().unwrap().predicted;
    let on_cluster = |f: &mut Found, g: Gain| {
        f.simulated.as_mut().unwrap().check = Some(Check { predicted, measured: Some(g), runs: vec![1, 2] });
    };
    on_cluster(&mut f, predicted);
    assert!(f.why_not(&f.recommendations()[3]).is_none());
    on_cluster(&mut f, loss);
    assert!(f.why_not(&f.recommendations()[3]).unwrap().contains("on the cluster it was worse: -20.0 %"));
    assert!(
        f.text().contains("measured by this mount alone -20.0 % (-30.0 to -10.0) (3 pairs: runs 1-2)"),
        "{}",
        f.text()
    );
    f.course.check = Some(Check { predicted, measured: Some(loss), runs: vec![0] });
    assert!(f.why_not(&f.recommendations()[0]).unwrap().contains("not surely better"));
    assert!(f.text().contains("so keep today's settings"));
    f.course.check = Some(Check { predicted, measured: None, runs: vec![] });
    assert!(f.why_not(&f.recommendations()[0]).is_some() && f.text().contains("no time to measure"));
}

#[test]
fn nothing_found_and_failed_runs_are_told() {
    let mut f = found(false);
    f.simulated = None;
    f.course = Course::default();
    f.course.choice = f.factors.iter().map(|x| x.now.clone()).collect();
    f.course.runs.push(Run {
        stage: Stage::Screen,
        factor: Some("stripe_count"),
        choice: f.course.choice.clone(),
        round: 0,
        score: None,
        failed: Some("No space left".into()),
    });
    let text = f.text();
    assert!(text.contains("nothing is recommended") && text.contains("run 0 failed: No space left"), "{text}");
    assert!(!text.contains("to set it") && !text.contains("ended early"), "{text}");
    f.course.ended = Some(bench::Failed::new("interrupted", libc::EINTR));
    assert!(f.text().contains("the search ended early: interrupted"), "{}", f.text());
}

#[test]
fn numbers_are_shown_as_ranges_and_words_quoted_for_shells() {
    assert_eq!(ranges(&[9, 3, 4, 5, 7]), "3-5,7,9");
    assert_eq!(ranges(&[]), "");
    assert_eq!((quoted("/a/b"), quoted("a b"), quoted("it's")), ("/a/b".into(), "'a b'".into(), "'it'\\''s'".into()));
    assert_eq!(shown(Place::StripeSize, "1048576"), "1.0M");
}
