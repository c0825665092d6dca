//! Every policy of the registry, plain and under deadlines, against the room's model.
use nrs::{DEADLINE_PREFIX, NrsConfig, build, conformance, registry};
use proptest::prelude::*;

fn names() -> Vec<String> {
    let plain = registry().iter().map(|e| e.name.to_string());
    let wrapped = registry().iter().filter(|e| e.name != "obrr+").map(|e| format!("{DEADLINE_PREFIX}{}", e.name));
    plain.chain(wrapped).collect()
}

fn configs() -> Vec<NrsConfig> {
    let sets: [&[(&str, &str)]; 4] = [
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
