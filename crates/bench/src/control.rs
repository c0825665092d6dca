//! The control point: what is done in which order, and what happens when something goes wrong.
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::agent::remove_all;
use crate::crew::Crew;
use crate::failure::{Failed, Outcome};
use crate::message::{Ask, Job, RankDone, Tell};
use crate::os;
use crate::plan::{Phase, Workload};
use crate::report::{AgentResult, PhaseResult, Report};
use crate::series::Series;

/// Time between telling the agents when to begin and that moment: this, and what messages and threads take.
const LEAD_NS: u64 = 100_000_000;
/// Part of it for each rank, whose thread has to be there.
const LEAD_PER_RANK_NS: u64 = 100_000;

/// A benchmark.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is done.
    pub workload: Workload,
    /// The test file.
    pub base: PathBuf,
    /// Phases of a repetition.
    pub phases: Vec<Phase>,
    /// Repetitions.
    pub repetitions: u32,
    /// Files that exist may be written to.
    pub existing: bool,
    /// Files stay.
    pub keep: bool,
    /// What is read is compared.
    pub check: bool,
    /// Length of the intervals of series, ns.
    pub interval_ns: u64,
    /// How long an agent may move nothing.
    pub stall_max: Duration,
}

/// Runs a benchmark: what was measured, and what went wrong. What agents made is gone afterwards unless it was to be kept,
/// whatever happened.
pub fn run(crew: &mut Crew, plan: &Plan) -> (Report, Outcome) {
    let mut report = Report::new(plan, crew);
    let mut made = Made::default();
    let done = phases(crew, plan, &mut report, &mut made);
    let cleaned = clean(crew, plan, &made, done.is_err());
    let outcome = match (done, cleaned) {
        (Err(failed), Err(also)) => Err(Failed::new(format!("{failed}; {also}"), failed.errno)),
        (done, cleaned) => done.and(cleaned),
    };
    (report, outcome)
}

/// What agents made.
#[derive(Default)]
struct Made {
    /// Agents that were asked to make files.
    asked: bool,
    /// Whether an agent said that all its files are new.
    all: Vec<bool>,
}

fn phases(crew: &mut Crew, plan: &Plan, report: &mut Report, made: &mut Made) -> Outcome {
    for repetition in 0..plan.repetitions {
        prepare(crew, plan, made)?;
        for phase in &plan.phases {
            let result = run_phase(crew, plan, *phase, repetition)?;
            report.phases.push(result);
        }
    }
    Ok(())
}

fn prepare(crew: &mut Crew, plan: &Plan, made: &mut Made) -> Outcome {
    crew.expect_words();
    made.asked = true;
    for agent in 0..crew.members.len() {
        let job = Job {
            workload: plan.workload.clone(),
            agent: agent as u32,
            base: plan.base.clone(),
            write: plan.phases.contains(&Phase::Write),
            existing: plan.existing,
            keep: plan.keep,
            check: plan.check,
            interval_ns: plan.interval_ns,
        };
        crew.ask(agent, &Ask::Prepare(job));
    }
    made.all = crew.gather(|tell| match tell {
        Tell::Prepared { made_all } => Some(made_all),
        _ => None,
    })?;
    Ok(())
}

fn run_phase(crew: &mut Crew, plan: &Plan, phase: Phase, repetition: u32) -> Outcome<PhaseResult> {
    crew.expect_words();
    crew.measure_clocks()?;
    let trip = crew.members.iter().map(|m| m.clock.round_trip_ns).max().unwrap_or(0);
    let lead = LEAD_NS + 4 * trip + LEAD_PER_RANK_NS * u64::from(plan.workload.ranks());
    let start_ns = os::now_ns() + lead;
    for agent in 0..crew.members.len() {
        let at_ns = crew.members[agent].clock.theirs(start_ns);
        crew.ask(agent, &Ask::Go { phase, at_ns });
    }
    crew.expect_words();
    let done = watch(crew, plan, phase)?;
    let agents = done.into_iter().enumerate().map(|(agent, (ranks, series))| {
        let clock = crew.members[agent].clock;
        // Moments count from the start, so that agents can be compared.
        let after = |ns: u64| clock.ours(ns) as i64 - start_ns as i64;
        AgentResult::new(agent, &ranks, series, after)
    });
    let agents: Vec<AgentResult> = agents.collect();
    let error_ns = crew.members.iter().map(|m| m.clock.error_ns()).max().unwrap_or(0);
    Ok(PhaseResult { phase, repetition, agents, error_ns, interval_ns: plan.interval_ns })
}

/// Waits until all agents are done; one that fails, dies, says nothing or moves nothing ends it.
fn watch(crew: &mut Crew, plan: &Plan, phase: Phase) -> Outcome<Vec<(Vec<RankDone>, Series)>> {
    let count = crew.members.len();
    let mut done: Vec<Option<(Vec<RankDone>, Series)>> = (0..count).map(|_| None).collect();
    let mut moved = vec![(0, Instant::now()); count];
    while done.iter().any(Option::is_none) {
        let open: Vec<usize> = (0..count).filter(|i| done[*i].is_none()).collect();
        match crew.next(&open)? {
            Some((from, Tell::Done { ranks, series })) => {
                if let Some(failed) = ranks.iter().find_map(|r| r.failed.clone()) {
                    return Err(failed.by(&format!("agent {}", crew.members[from].name)));
                }
                done[from] = Some((ranks, series));
            }
            Some((from, Tell::Alive { bytes })) if bytes != moved[from].0 => moved[from] = (bytes, Instant::now()),
            _ => {}
        }
        let stalls = |i: &&usize| !plan.stall_max.is_zero() && moved[**i].1.elapsed() > plan.stall_max;
        if let Some(i) = open.iter().find(stalls).filter(|i| done[**i].is_none()) {
            let name = crew.members[*i].name.clone();
            let said = format!("{}: agent {name} moves nothing for {:?}", phase.name(), plan.stall_max);
            return Err(Failed::new(said, libc::ETIMEDOUT));
        }
    }
    Ok(done.into_iter().flatten().collect())
}

/// Has everybody remove what it made, and the living what the dead made.
fn clean(crew: &mut Crew, plan: &Plan, made: &Made, broken: bool) -> Outcome {
    if !made.asked {
        return Ok(());
    }
    let mut first = Ok(());
    crew.expect_words();
    if broken {
        crew.ask_all(&Ask::Stop);
    }
    crew.ask_all(&Ask::Clean);
    let all: Vec<usize> = (0..crew.members.len()).collect();
    let mut open: Vec<usize> = all.iter().copied().filter(|i| crew.members[*i].is_here).collect();
    while !open.is_empty() {
        match crew.next(&open) {
            Ok(Some((from, Tell::Cleaned))) => open.retain(|i| *i != from),
            Ok(_) => {}
            Err(failed) => first = first.and(Err(failed)),
        }
        open.retain(|i| crew.members[*i].is_here);
    }
    if plan.keep || !plan.phases.contains(&Phase::Write) {
        return first;
    }
    let dead: Vec<usize> = all.iter().copied().filter(|i| !crew.members[*i].is_here).collect();
    let alive = all.iter().copied().find(|i| crew.members[*i].is_here);
    for agent in dead.into_iter().filter(|a| !plan.workload.made_by(*a as u32).is_empty()) {
        let knows = made.all.get(agent) == Some(&true);
        match alive.filter(|_| knows) {
            Some(by) => {
                crew.ask(by, &Ask::CleanFor { agent: agent as u32 });
                crew.wait_for(by, |tell| matches!(tell, Tell::Cleaned).then_some(()))?;
            }
            None if knows && crew.members[agent].is_local => {
                let files = plan.workload.made_by(agent as u32);
                remove_all(files.into_iter().map(|f| plan.workload.path(&plan.base, f)).collect())?;
            }
            None => first = first.and(Err(left(plan, agent))),
        }
    }
    first
}

fn left(plan: &Plan, agent: usize) -> Failed {
    let one = plan.workload.path(&plan.base, agent as u32 * plan.workload.tasks);
    let said = format!("files that agent {agent} made, like {}, may be left", one.display());
    Failed::new(said, libc::ECONNRESET)
}
