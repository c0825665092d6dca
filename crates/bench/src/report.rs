//! What a benchmark found, as tables and as JSON.
pub use comfy_table::CellAlignment;
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use serde_json::{Value, json};
use types::format_size;

use crate::control::Plan;
use crate::crew::Crew;
use crate::message::RankDone;
use crate::plan::{Draft, Phase};
use crate::series::{Series, aligned};
use crate::stats::{Summary, mb_per_s};

/// Starts that lie further apart than this are pointed out, ns.
pub const SPREAD_GOAL_NS: u64 = 10_000_000;

/// What one agent did in a phase. Moments are ns after the moment at which all were to start, by the control point's clock.
#[derive(Clone, Debug)]
pub struct AgentResult {
    /// Which agent.
    pub agent: usize,
    /// When its first rank began.
    pub first_begin_ns: i64,
    /// When its last rank began.
    pub last_begin_ns: i64,
    /// When its last rank ended.
    pub end_ns: i64,
    /// Bytes moved.
    pub bytes: u64,
    /// The transfer that took longest, ns.
    pub slowest_ns: u64,
    /// Transfers whose content was wrong.
    pub wrong: u64,
    /// What was wrong first.
    pub first_wrong: Option<String>,
    /// Bytes per interval.
    pub series: Series,
}

impl AgentResult {
    /// Of its ranks, of which there is at least one; `after` tells when a moment of its clock was.
    pub fn new(agent: usize, ranks: &[RankDone], series: Series, after: impl Fn(u64) -> i64) -> AgentResult {
        let first_wrong = ranks.iter().find_map(|r| Some(format!("rank {}, {}", r.rank, r.first_wrong.as_ref()?)));
        AgentResult {
            agent,
            first_begin_ns: ranks.iter().map(|r| after(r.begin_ns)).min().unwrap_or(0),
            last_begin_ns: ranks.iter().map(|r| after(r.begin_ns)).max().unwrap_or(0),
            end_ns: ranks.iter().map(|r| after(r.end_ns)).max().unwrap_or(0),
            bytes: ranks.iter().map(|r| r.bytes).sum(),
            slowest_ns: ranks.iter().map(|r| r.slowest_ns).max().unwrap_or(0),
            wrong: ranks.iter().map(|r| r.wrong).sum(),
            first_wrong,
            series,
        }
    }
    /// Its own bandwidth, MB/s.
    #[must_use]
    pub fn mb_per_s(&self) -> f64 {
        mb_per_s(self.bytes, self.end_ns.abs_diff(self.first_begin_ns))
    }
}

/// What all agents did in a phase.
#[derive(Clone, Debug)]
pub struct PhaseResult {
    /// What was done.
    pub phase: Phase,
    /// In which repetition, from 0.
    pub repetition: u32,
    /// Each agent.
    pub agents: Vec<AgentResult>,
    /// Bound of the error of moments, ns.
    pub error_ns: u64,
    /// Length of the intervals, ns.
    pub interval_ns: u64,
}

impl PhaseResult {
    /// Bytes moved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.agents.iter().map(|a| a.bytes).sum()
    }
    /// From the first begin to the last end, ns.
    #[must_use]
    pub fn took_ns(&self) -> u64 {
        let begin = self.agents.iter().map(|a| a.first_begin_ns).min().unwrap_or(0);
        self.agents.iter().map(|a| a.end_ns).max().unwrap_or(0).abs_diff(begin)
    }
    /// Bandwidth of all together as IOR counts it, MB/s.
    #[must_use]
    pub fn mb_per_s(&self) -> f64 {
        mb_per_s(self.bytes(), self.took_ns())
    }
    /// Between the first and the last rank's begin, ns.
    #[must_use]
    pub fn spread_ns(&self) -> u64 {
        let begin = self.agents.iter().map(|a| a.first_begin_ns).min().unwrap_or(0);
        self.agents.iter().map(|a| a.last_begin_ns).max().unwrap_or(0).abs_diff(begin)
    }
    /// Bandwidths of the agents, MB/s.
    #[must_use]
    pub fn per_agent(&self) -> Summary {
        Summary::of(&self.agents.iter().map(AgentResult::mb_per_s).collect::<Vec<_>>())
    }
    /// Transfers whose content was wrong.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.agents.iter().map(|a| a.wrong).sum()
    }
}

/// What a benchmark found.
#[derive(Clone, Debug)]
pub struct Report {
    workload: Draft,
    file: String,
    /// Names of the agents.
    pub agents: Vec<String>,
    /// Phases in the order in which they were.
    pub phases: Vec<PhaseResult>,
}

impl Report {
    /// Of a benchmark that begins.
    #[must_use]
    pub fn new(plan: &Plan, crew: &Crew) -> Report {
        Report {
            workload: plan.workload.clone().into(),
            file: plan.base.display().to_string(),
            agents: crew.members.iter().map(|m| m.name.clone()).collect(),
            phases: Vec::new(),
        }
    }

    /// Transfers whose content was wrong, and the first of them.
    #[must_use]
    pub fn wrong(&self) -> Option<(u64, String)> {
        let count = self.phases.iter().map(PhaseResult::wrong).sum();
        let first = self
            .phases
            .iter()
            .flat_map(|p| &p.agents)
            .find_map(|a| a.first_wrong.as_ref().map(|wrong| format!("agent {}, {wrong}", self.agents[a.agent])))?;
        Some((count, first))
    }

    /// What was done, in a line.
    #[must_use]
    pub fn title(&self) -> String {
        let w = &self.workload;
        let files = if w.files == 1 { "one shared file".into() } else { format!("{} files", w.files) };
        let order = if w.random { "random" } else { "sequential" };
        format!(
            "{} agent(s) of {} task(s), {files}, {} segment(s) of {} blocks, {order} transfers of {}, seed {}: {}",
            w.agents,
            w.tasks,
            w.segments,
            format_size(w.block_bytes),
            format_size(w.transfer_bytes),
            w.seed,
            self.file
        )
    }

    /// The tables.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.title());
        let head = ["operation", "bytes", "seconds", "MB/s", "agent min", "agent max", "start spread ms", "slowest ms"];
        let mut table = new_table(&head);
        for p in &self.phases {
            let (agents, slowest) = (p.per_agent(), p.agents.iter().map(|a| a.slowest_ns).max().unwrap_or(0));
            table.add_row([
                format!("{} {}", p.phase.name(), p.repetition),
                p.bytes().to_string(),
                format!("{:.3}", p.took_ns() as f64 / 1e9),
                format!("{:.1}", p.mb_per_s()),
                format!("{:.1}", agents.min),
                format!("{:.1}", agents.max),
                format!("{:.3} ± {:.3}", p.spread_ns() as f64 / 1e6, p.error_ns as f64 / 1e6),
                format!("{:.1}", slowest as f64 / 1e6),
            ]);
        }
        out += &format!("{table}\n");
        for phase in self.kinds() {
            let s = self.summary(phase);
            out += &format!(
                "{}: mean {:.1} MB/s, min {:.1}, max {:.1}, standard deviation {:.1}, of {} repetition(s)\n",
                phase.name(),
                s.mean,
                s.min,
                s.max,
                s.deviation,
                s.count
            );
        }
        for p in self.phases.iter().filter(|p| p.spread_ns() > SPREAD_GOAL_NS) {
            out += &format!(
                "note: in {} {} the first and the last task began {:.1} ms apart; 10 ms are the goal\n",
                p.phase.name(),
                p.repetition,
                p.spread_ns() as f64 / 1e6
            );
        }
        out
    }

    fn kinds(&self) -> Vec<Phase> {
        let there = |kind: &Phase| self.phases.iter().any(|p| p.phase == *kind);
        [Phase::Write, Phase::Read].into_iter().filter(there).collect()
    }

    fn summary(&self, phase: Phase) -> Summary {
        let figures: Vec<f64> = self.phases.iter().filter(|p| p.phase == phase).map(PhaseResult::mb_per_s).collect();
        Summary::of(&figures)
    }

    /// One JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let phase = |p: &PhaseResult| {
            let series: Vec<&Series> = p.agents.iter().map(|a| &a.series).collect();
            let agent = |a: &AgentResult| {
                json!({"agent": a.agent, "bytes": a.bytes, "mb_per_s": a.mb_per_s(), "begin_ns": a.first_begin_ns,
                    "last_begin_ns": a.last_begin_ns, "end_ns": a.end_ns, "slowest_ns": a.slowest_ns, "wrong": a.wrong})
            };
            json!({
                "operation": p.phase.name(), "repetition": p.repetition, "bytes": p.bytes(), "took_ns": p.took_ns(),
                "mb_per_s": p.mb_per_s(), "start_spread_ns": p.spread_ns(), "clock_error_ns": p.error_ns,
                "wrong": p.wrong(), "per_agent_mb_per_s": p.per_agent(),
                "agents": p.agents.iter().map(agent).collect::<Vec<_>>(),
                "interval_ns": p.interval_ns, "series": aligned(&series),
            })
        };
        let summary: serde_json::Map<String, Value> =
            self.kinds().into_iter().map(|k| (k.name().to_string(), json!(self.summary(k)))).collect();
        json!({
            "tool": "stria bench", "version": env!("CARGO_PKG_VERSION"), "file": self.file, "workload": self.workload,
            "agents": self.agents, "phases": self.phases.iter().map(phase).collect::<Vec<_>>(), "summary": summary,
        })
    }
}

/// A table whose columns but the first hold figures.
#[must_use]
pub fn new_table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header(head);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32, begin_ns: u64, end_ns: u64) -> RankDone {
        RankDone { rank, begin_ns, end_ns, bytes: 1_000_000, ..RankDone::default() }
    }

    fn result() -> PhaseResult {
        let after = |ns: u64| ns as i64 - 1_000;
        let a = AgentResult::new(0, &[rank(0, 1_000, 501_000), rank(1, 3_000, 801_000)], Series(vec![5, 1]), after);
        let b = AgentResult::new(1, &[rank(2, 900, 400_900)], Series(vec![7]), after);
        PhaseResult { phase: Phase::Write, repetition: 0, agents: vec![a, b], error_ns: 20, interval_ns: 500_000 }
    }

    #[test]
    fn bandwidth_counts_from_the_first_begin_to_the_last_end_of_all() {
        let p = result();
        assert_eq!((p.bytes(), p.took_ns(), p.spread_ns()), (3_000_000, 800_100, 2_100));
        assert!((p.mb_per_s() - 3_000_000.0 * 1e3 / 800_100.0).abs() < 1e-9);
        let agents = p.per_agent();
        assert_eq!((agents.min, agents.max), (2500.0, 2500.0));
    }

    #[test]
    fn tables_and_json_say_the_same() {
        let workload = Draft {
            transfer_bytes: 1 << 20,
            block_bytes: 1 << 20,
            segments: 1,
            agents: 2,
            tasks: 1,
            files: 1,
            random: false,
            reorder: false,
            fsync: false,
            seed: 3,
        };
        let mut late = result();
        late.agents[0].last_begin_ns = 11_000_000;
        late.agents[1].wrong = 2;
        late.agents[1].first_wrong = Some("rank 2, at 8: x".into());
        let report =
            Report { workload, file: "f".into(), agents: vec!["a".into(), "b".into()], phases: vec![result(), late] };
        let (text, json) = (report.text(), report.json());
        assert!(text.contains("11.0 ms apart") && text.matches("apart").count() == 1, "{text}");
        assert!(text.contains("write 0") && text.contains("3000000"), "{text}");
        assert_eq!(json["phases"][0]["series"][0], json!({"agents": [5, 7], "sum": 12, "min": 5, "max": 7}));
        assert_eq!(json["phases"][0]["bytes"], 3_000_000);
        assert_eq!(json["summary"]["write"]["count"], 2);
        assert_eq!(report.wrong().unwrap(), (2, "agent b, rank 2, at 8: x".into()));
    }
}
