//! What a run's time goes to, by its phases: `stria sim torture --costs`.
use std::cell::RefCell;
use std::fmt::Write;

use simworld::Work;

/// Phases of a run, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Stores are made, nodes start, programs make their files.
    SetUp,
    /// Programs work while things go wrong.
    Work,
    /// Faults are over; nodes come back.
    Healing,
    /// All is calm: programs look at everything from every client.
    Looks,
    /// Clients leave, what is left behind is destroyed, servers stop.
    Leaving,
    /// The stores are checked.
    Check,
}

impl Phase {
    const ALL: [(Phase, &str); 6] = [
        (Phase::SetUp, "set-up"),
        (Phase::Work, "work"),
        (Phase::Healing, "healing"),
        (Phase::Looks, "looks"),
        (Phase::Leaving, "leaving"),
        (Phase::Check, "check"),
    ];
}

/// Processor time in nanoseconds; what a run's history does not depend on.
#[derive(Clone, Copy, Debug, Default)]
struct CpuNs(u64);
impl PartialEq for CpuNs {
    fn eq(&self, _: &CpuNs) -> bool {
        // Two runs of one seed have one history, and take what the machine makes of it.
        true
    }
}
impl Eq for CpuNs {}

impl CpuNs {
    /// That of this thread so far; 0 where the kernel does not tell.
    fn here() -> CpuNs {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        CpuNs(text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
    }
}

/// What each phase took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    phases: [(Work, CpuNs); Phase::ALL.len()],
}

impl Costs {
    /// Another run's on top.
    pub fn add(&mut self, more: &Costs) {
        for ((work, cpu), (w, c)) in self.phases.iter_mut().zip(&more.phases) {
            *work += *w;
            cpu.0 += c.0;
        }
    }
    /// A table of them.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!(
            "{:<8} {:>9} {:>8} {:>7} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7}\n",
            "phase",
            "virtual s",
            "cpu s",
            "ratio",
            "polls",
            "timers",
            "messages",
            "bulk MiB",
            "disk ops",
            "disk MiB",
            "syncs",
            "starts"
        );
        let mut sum = (Work::default(), 0);
        for ((_, name), (work, cpu)) in Phase::ALL.iter().zip(&self.phases) {
            line(&mut out, name, work, cpu.0);
            sum.0 += *work;
            sum.1 += cpu.0;
        }
        line(&mut out, "all", &sum.0, sum.1);
        out
    }
}

fn line(out: &mut String, name: &str, w: &Work, cpu_ns: u64) {
    let (virtual_s, cpu_s) = (w.virtual_ns as f64 / 1e9, cpu_ns as f64 / 1e9);
    let mib = |bytes: u64| bytes >> 20;
    let _ = writeln!(
        out,
        "{name:<8} {virtual_s:>9.1} {cpu_s:>8.3} {:>7.0} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7}",
        virtual_s / cpu_s.max(1e-9),
        w.polls,
        w.timers,
        w.messages,
        mib(w.bulk_bytes),
        w.disk_calls,
        mib(w.disk_bytes),
        w.syncs,
        w.starts
    );
}

/// Adds up what a run does.
pub struct Meter(RefCell<(Phase, Work, CpuNs, Costs)>);

impl Meter {
    /// At the beginning of a run.
    #[must_use]
    pub fn new() -> Meter {
        Meter(RefCell::new((Phase::SetUp, Work::default(), CpuNs::here(), Costs::default())))
    }
    /// Another phase begins, by when so much has been done; gives what the phases took so far.
    pub fn enter(&self, next: Phase, done: Work) -> Costs {
        let mut meter = self.0.borrow_mut();
        let (phase, before, cpu_before, costs) = &mut *meter;
        let (cpu, (work, cpu_ns)) = (CpuNs::here(), &mut costs.phases[*phase as usize]);
        *work += done - *before;
        cpu_ns.0 += cpu.0.saturating_sub(cpu_before.0);
        (*phase, *before, *cpu_before) = (next, done, cpu);
        costs.clone()
    }
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::new()
    }
}
