//! Every policy of the registry, plain and under deadlines, against the room's model.
use nrs::{NrsConfig, NrsPolicy, NrsRequest, build, conformance, names};
use proptest::prelude::*;
use types::{Instant, RequestId};

fn configs() -> Vec<NrsConfig> {
    let sets: [&[(&str, &str)]; 5] = [
        &[("auto_sample", "128"), ("auto_windows", "1"), ("auto_first", "deadline+crrn")],
        &[],
        &[("quantum_requests", "1"), ("deadline_mode", "drain"), ("lambda", "0.2")],
        &[("quantum_bytes", "256K"), ("weights", "uid={2} 3"), ("region_bytes", "1M")],
        &[("tbf_rules", "start a client={1-4} rate=50; start b jobid={*}&opcode={ost_read} bytes=20M depth=1")],
    ];
    let config = |set: &[(&str, &str)]| {
        let mut config = NrsConfig::default();
        set.iter().for_each(|(key, value)| config.set(key, value).expect(value));
        config
    };
    sets.into_iter().map(config).collect()
}

#[test]
fn every_policy_conforms_under_every_configuration() {
    for name in names() {
        for config in configs() {
            let make = || build(&name, &config).expect("the name is in the registry");
            conformance::check(&make, 256, 400).unwrap_or_else(|v| panic!("{name} with {config:?}: {v}"));
        }
    }
}

fn op() -> impl Strategy<Value = conformance::Op> {
    use conformance::Op;
    prop_oneof![
        8 => (0..16u8, 0..4u8, 0..64u16, 0..=10u8, 0..4u8, prop_oneof![4 => Just(0u16), 1 => 1..50u16]).prop_map(
            |(client, object, unit, order, op, urgent_ms)| Op::Enqueue { client, object, unit, order, op, urgent_ms }
        ),
        6 => Just(Op::Dequeue),
        3 => Just(Op::Complete),
        1 => (any::<u16>(), 0..50u16).prop_map(|(nth, within_ms)| Op::Promote { nth, within_ms }),
        1 => any::<u16>().prop_map(|nth| Op::Hasten { nth }),
        1 => any::<u16>().prop_map(|nth| Op::Cancel { nth }),
        2 => (0..5000u16).prop_map(|us| Op::Pass { us }),
        1 => (0..8u8).prop_map(|variant| Op::Reconfigure { variant }),
        1 => Just(Op::Drain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn every_policy_conforms_on_schedules_that_shrink(ops in prop::collection::vec(op(), 0..200)) {
        for name in names() {
            let mut policy = build(&name, &NrsConfig::default()).expect("the name is in the registry");
            conformance::run(&mut *policy, &ops).map_err(|v| TestCaseError::fail(format!("{name}: {v}")))?;
        }
    }
}

/// A policy that breaks one rule.
struct Broken {
    inner: Box<dyn NrsPolicy>,
    fault: Fault,
    calls: u64,
    kept: Vec<RequestId>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    LosesARequest,
    ServesTwice,
    MiscountsWhenLong,
    CancelForgets,
    PromoteForgets,
    PromoteKnowsTheUnknown,
    DrainKeepsOne,
    DrainReverses,
    NothingNow,
    NotTheSameTwice,
    LastComeFirstServed,
    ReconfigureLoses,
}

/// Differs between two policies of one kind: what a default hasher or a global would do.
static BUILT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

impl NrsPolicy for Broken {
    fn enqueue(&mut self, now: Instant, req: &NrsRequest) {
        self.calls += 1;
        match self.fault {
            Fault::LosesARequest if self.calls.is_multiple_of(90) => {}
            Fault::LastComeFirstServed => self.kept.push(req.id),
            _ => self.inner.enqueue(now, req),
        }
    }
    fn dequeue(&mut self, now: Instant) -> Option<RequestId> {
        self.calls += 1;
        match self.fault {
            Fault::ServesTwice if self.calls.is_multiple_of(90) && !self.kept.is_empty() => self.kept.pop(),
            Fault::NothingNow if self.calls.is_multiple_of(50) => None,
            Fault::NotTheSameTwice if self.calls > 3 => {
                let first = self.inner.dequeue(now)?;
                if self.kept[0].0.is_multiple_of(2) || self.inner.queued() == 0 {
                    return Some(first);
                }
                let second = self.inner.dequeue(now)?;
                self.inner.enqueue(now, &NrsRequest { id: first, ..NrsRequest::default() });
                Some(second)
            }
            Fault::LastComeFirstServed => self.kept.pop(),
            _ => {
                let id = self.inner.dequeue(now)?;
                if self.fault == Fault::ServesTwice {
                    self.kept = vec![id];
                }
                Some(id)
            }
        }
    }
    fn promote(&mut self, now: Instant, id: RequestId, serve_by: Instant) -> bool {
        match self.fault {
            Fault::PromoteForgets => self.inner.cancel(id),
            Fault::PromoteKnowsTheUnknown => true,
            Fault::LastComeFirstServed => self.kept.contains(&id),
            _ => self.inner.promote(now, id, serve_by),
        }
    }
    fn cancel(&mut self, id: RequestId) -> bool {
        match self.fault {
            Fault::CancelForgets => self.inner.promote(Instant::ZERO, id, Instant::ZERO),
            Fault::LastComeFirstServed => {
                let at = self.kept.iter().position(|k| *k == id);
                at.map(|at| self.kept.remove(at)).is_some()
            }
            _ => self.inner.cancel(id),
        }
    }
    fn drain(&mut self, into: &mut Vec<RequestId>) {
        let from = into.len();
        self.inner.drain(into);
        match self.fault {
            Fault::DrainKeepsOne => drop(into.pop()),
            Fault::DrainReverses => into[from..].reverse(),
            Fault::LastComeFirstServed => into.append(&mut self.kept),
            _ => {}
        }
    }
    fn queued(&self) -> usize {
        match self.fault {
            Fault::MiscountsWhenLong if self.inner.queued() > 20 => self.inner.queued() + 1,
            Fault::LastComeFirstServed => self.kept.len(),
            _ => self.inner.queued(),
        }
    }
    fn reconfigure(&mut self, now: Instant, _config: &NrsConfig) {
        if self.fault == Fault::ReconfigureLoses {
            self.inner.dequeue(now);
        }
    }
}

#[test]
fn the_suite_finds_every_broken_rule() {
    use Fault::*;
    for fault in [
        LosesARequest,
        ServesTwice,
        MiscountsWhenLong,
        CancelForgets,
        PromoteForgets,
        PromoteKnowsTheUnknown,
        DrainKeepsOne,
        DrainReverses,
        NothingNow,
        NotTheSameTwice,
        LastComeFirstServed,
        ReconfigureLoses,
    ] {
        let make = || {
            let inner = build("fifo", &NrsConfig::default()).expect("the name is in the registry");
            let number = BUILT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) as u32;
            let kept = if fault == NotTheSameTwice { vec![RequestId(number)] } else { Vec::new() };
            Box::new(Broken { inner, fault, calls: 0, kept }) as Box<dyn NrsPolicy>
        };
        let found = conformance::check(&make, 256, 400).expect_err(&format!("{fault:?} is not found"));
        assert!(!found.what.is_empty());
    }
}
