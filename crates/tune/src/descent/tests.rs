//! The search against synthetic measurers: whether it finds what was planted, and nothing where there is nothing.
use types::Rng;

use super::*;
use crate::factor::Place;

/// Multiplies what each value is worth, with noise; time passes by one second a run.
struct Synthetic {
    worth: fn(usize, &str) -> f64,
    /// Half the width of the uniform noise, as a share.
    noise: f64,
    rng: Rng,
    runs: u64,
    /// The run with this number fails, and every later one with that value of the factor 0.
    fails: Option<(&'static str, u64, i32)>,
}

impl Synthetic {
    fn new(seed: u64, noise: f64, worth: fn(usize, &str) -> f64) -> Synthetic {
        Synthetic { worth, noise, rng: Rng::new(seed), runs: 0, fails: None }
    }
}

impl Measurer for Synthetic {
    fn measure(&mut self, choice: &Choice, _: u64) -> Result<f64, Failed> {
        self.runs += 1;
        if let Some((value, from, errno)) = self.fails
            && self.runs >= from
            && (value.is_empty() || choice[0] == value)
        {
            return Err(Failed::new(format!("planted failure of run {}", self.runs), errno));
        }
        let score: f64 = choice.iter().enumerate().map(|(i, v)| (self.worth)(i, v)).product();
        // The sum of three uniform draws is close enough to what machines do.
        let draw: f64 = (0..3).map(|_| self.rng.unit() - 0.5).sum();
        Ok(100.0 * score * (1.0 + self.noise * draw))
    }
    fn spent_s(&self) -> f64 {
        self.runs as f64
    }
    fn run_s(&self) -> f64 {
        1.0
    }
}

fn strings(all: &[&str]) -> Vec<String> {
    all.iter().map(|s| (*s).to_string()).collect()
}

fn factors() -> Vec<Factor> {
    vec![
        Factor::new("stripe count", Place::StripeCount, "-c", "1".into(), &strings(&["1", "2", "4", "-1"])),
        Factor::new("rpcs", Place::Mount, "r", "8".into(), &strings(&["2", "4", "8", "16", "32"])),
        Factor::new("policy", Place::Mount, "p", "lru".into(), &strings(&["lru", "arc", "fgf_lru"])),
    ]
}

/// Four stripes are worth 2.5, 32 RPCs 1.4, policies nothing.
fn planted(factor: usize, value: &str) -> f64 {
    match (factor, value) {
        (0, "2") => 1.6,
        (0, "4") => 2.5,
        (0, "-1") => 2.2,
        (1, "2") => 0.5,
        (1, "16") => 1.15,
        (1, "32") => 1.4,
        _ => 1.0,
    }
}

fn recommended(course: &Course) -> Vec<(usize, String)> {
    let one = |f: &Finding| match &f.verdict {
        Verdict::Recommended { value, .. } => Some((f.factor, value.clone())),
        _ => None,
    };
    course.findings.iter().filter_map(one).collect()
}

#[test]
fn a_planted_optimum_is_found_in_every_seed() {
    let mut within = 0;
    for seed in 0..50 {
        let course = descend(&factors(), &mut Synthetic::new(seed, 0.05, planted), 1e6);
        assert_eq!(recommended(&course), [(0, "4".to_string()), (1, "32".to_string())], "seed {seed}");
        assert_eq!(course.choice, ["4", "32", "lru"]);
        let check = course.check.as_ref().unwrap();
        let (p, m) = (check.predicted, check.measured.unwrap());
        // What was predicted is what is measured, within both intervals.
        assert!(check.holds() && m.low < p.high && p.low < m.high, "{check:?}");
        assert!(course.ended.is_none());
        // 2.5 x 1.4 = 3.5 times as much.
        within += usize::from(m.low < 2.5 && 2.5 < m.high);
    }
    assert!(within >= 44, "the 95 % interval holds what is true in {within} of 50");
}

#[test]
fn noise_alone_gives_no_recommendation_in_nearly_all_seeds() {
    for noise in [0.02, 0.1, 0.3] {
        let mut wrong = [0, 0];
        for seed in 0..400 {
            let course = descend(&factors(), &mut Synthetic::new(seed, noise, |_, _| 1.0), 1e6);
            wrong[0] += usize::from(!recommended(&course).is_empty());
            wrong[1] += usize::from(course.check.is_some_and(|c| c.holds()));
        }
        // Of 400: recommended at first, and still so after the check.
        assert!(wrong[0] <= 16 && wrong[1] <= 2, "noise {noise}: {wrong:?}");
    }
}

#[test]
fn a_gain_below_the_threshold_is_no_recommendation() {
    let small = |factor, value: &str| if factor == 0 && value == "2" { 1.02 } else { 1.0 };
    let course = descend(&factors(), &mut Synthetic::new(1, 0.001, small), 1e6);
    assert!(recommended(&course).is_empty() && course.check.is_none());
    assert!(course.findings.iter().all(|f| f.verdict == Verdict::NoDifference));
}

#[test]
fn gains_are_those_of_the_fresh_pairs_alone() {
    let course = descend(&factors(), &mut Synthetic::new(3, 0.05, planted), 1e6);
    let Test { value, gain, runs, .. } = course.findings[0].tested.clone().unwrap();
    assert_eq!((value.as_str(), runs.len() as u64, gain.unwrap().pairs as u64), ("4", 2 * PAIRS_MAX, PAIRS_MAX));
    assert!(runs.iter().all(|r| course.runs[*r].stage == Stage::Test));
    // Sides alternate.
    let firsts: Vec<bool> = runs.chunks(2).map(|pair| course.runs[pair[0]].choice[0] == "1").collect();
    assert!(firsts.chunks(2).all(|two| two == [false, true]), "{firsts:?}");
    let mean = |which: bool| {
        let scores = runs.iter().map(|r| &course.runs[*r]).filter(|r| (r.choice[0] == "4") == which);
        let logs: Vec<f64> = scores.map(|r| r.score.unwrap().ln()).collect();
        logs.iter().sum::<f64>() / logs.len() as f64
    };
    assert!(((mean(true) - mean(false)).exp() - 1.0 - gain.unwrap().mean).abs() < 1e-9);
}

#[test]
fn a_candidate_that_fails_is_told_and_not_recommended() {
    for from in [3, 15] {
        let mut m = Synthetic::new(1, 0.02, planted);
        // The best value fails from its first run on, or amid its fresh pairs.
        m.fails = Some(("4", from, libc::EIO));
        let course = descend(&factors(), &mut m, 1e6);
        let told = course.runs.iter().filter_map(|r| r.failed.as_ref()).count();
        assert_eq!(told, 1, "it is not run again");
        let finding = &course.findings[0];
        let all = format!("{finding:?}");
        assert!(all.contains("planted failure of run"), "{all}");
        assert!(course.ended.is_none());
        let chosen = recommended(&course);
        assert!(!chosen.contains(&(0, "4".into())) && chosen.contains(&(1, "32".into())), "{chosen:?}");
    }
}

#[test]
fn a_factor_of_which_every_value_fails_was_not_measured() {
    let only = [Factor::new("stripe count", Place::StripeCount, "-c", "1".into(), &strings(&["4"]))];
    let mut m = Synthetic::new(1, 0.02, planted);
    m.fails = Some(("4", 1, libc::EPERM));
    let course = descend(&only, &mut m, 1e6);
    match &course.findings[0].verdict {
        Verdict::NotMeasured { why } => assert!(why.contains("every value failed: planted failure"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_base_that_goes_on_failing_ends_the_search_with_its_reason() {
    let mut m = Synthetic::new(1, 0.02, planted);
    m.fails = Some(("1", 1, libc::ENOSPC));
    let course = descend(&factors(), &mut m, 1e6);
    assert_eq!(course.ended.as_ref().unwrap().errno, libc::ENOSPC);
    assert!(recommended(&course).is_empty() && course.findings.len() == 3);
    assert!(course.findings.iter().all(|f| matches!(f.verdict, Verdict::NotMeasured { .. })));
}

#[test]
fn an_interrupt_ends_the_search_at_once_and_keeps_what_was_found() {
    let mut m = Synthetic::new(1, 0.02, planted);
    m.fails = Some(("", 45, libc::EINTR));
    let course = descend(&factors(), &mut m, 1e6);
    assert_eq!(course.ended.as_ref().unwrap().errno, libc::EINTR);
    assert_eq!(course.runs.len(), 45);
    assert_eq!(recommended(&course), [(0, "4".to_string())]);
    assert!(course.check.is_none());
}

#[test]
fn the_budget_is_kept_and_what_it_left_out_is_told() {
    for limit in [5.0, 30.0, 45.0, 60.0, 100.0] {
        let mut m = Synthetic::new(1, 0.02, planted);
        let course = descend(&factors(), &mut m, limit);
        assert!(m.spent_s() <= limit + 1.0, "{limit}: {}", m.spent_s());
        assert_eq!(course.findings.len(), 3);
        let untold = course.findings.iter().filter(|f| {
            let left_out = f.tried.len() < factors()[f.factor].candidates.len();
            left_out && !matches!(&f.verdict, Verdict::NotMeasured { why } if why.contains("no time"))
        });
        assert_eq!(untold.count(), 0, "{limit}: {:?}", course.findings);
    }
    assert!(descend(&factors(), &mut Synthetic::new(1, 0.02, planted), 5.0).runs.is_empty());
    // Too little for all: the first factor gets it.
    let course = descend(&factors(), &mut Synthetic::new(1, 0.02, planted), 36.0);
    assert_eq!(recommended(&course), [(0, "4".to_string())], "{:?}", course.findings);
}

#[test]
fn a_plan_counts_what_a_search_takes() {
    let planned = runs_planned(&factors());
    // With that much time nothing is left out, and no more is taken.
    let course = descend(&factors(), &mut Synthetic::new(1, 0.02, planted), planned as f64 * 1.5);
    assert_eq!(recommended(&course).len(), 2, "{:?}", course.findings);
    assert!(course.findings.iter().flat_map(|f| &f.tried).all(|t| t.given_up.as_deref() != Some("no time for it")));
    assert!(course.runs.len() as f64 <= planned as f64 * 1.5 + 1.0, "{} of {planned}", course.runs.len());
}
