//! Replays of what the simulator recorded give its own figures; wrong devices show; fits find what was planted.
use super::*;
use crate::light::{self, LightConfig, Operation, Urgent};
use devices::{AllocKind, DeviceProfile, ElevatorConfig, ElevatorKind};
use nrs::IoOp;
use trace::{Figures, Flags, Record, Target, Trace};
use types::{ClientId, Fid, Instant, ObjectId, Rng};

fn small(policy: &str) -> LightConfig {
    LightConfig { nrs_policy: policy.into(), file_bytes: 4 << 20, trace: true, ..LightConfig::paper001(64, 4) }
}

fn recorded(config: &LightConfig) -> Trace {
    let trace = light::run(config, &mut |_| {}).trace(config);
    // What goes through a file is what a replay gets.
    let mut bytes = Vec::new();
    trace.write(&mut bytes).unwrap();
    trace::read(&bytes).unwrap()
}

fn none() -> Overrides {
    Overrides::default()
}

fn set(pairs: &[(&str, &str)]) -> Overrides {
    let mut asked = none();
    pairs.iter().for_each(|(key, value)| asked.set(key, value).unwrap());
    asked
}

fn value<'a>(c: &'a Comparison, name: &str) -> &'a Value {
    c.values.iter().find(|v| v.name == name).unwrap()
}

#[test]
fn what_the_simulator_recorded_is_replayed_to_the_last_nanosecond() {
    let urgent =
        Urgent { clients: 8, max_service_ns: 200_000_000, think_ns: 1_000_000, stagger_s: 1, until_ns: 300_000_000 };
    for policy in ["fifo", "obrr", "orr", "crrn", "deadline+obrr", "obrr+"] {
        for operation in [Operation::Write, Operation::Read] {
            let config = LightConfig { operation, urgent: Some(urgent), ..small(policy) };
            let trace = recorded(&config);
            let was = measured(&trace).unwrap();
            let phases = if operation == Operation::Write { 1 } else { 2 };
            assert!(was.len() >= phases * 64 * 4, "{policy}");
            for how in [Loop::Open, Loop::Closed] {
                let configs: Vec<TargetConfig> =
                    (0..).zip(&trace.targets).map(|(i, t)| TargetConfig::of(t, &none(), i).unwrap()).collect();
                let now = run(&trace, &configs, how).unwrap();
                let differ = now.records.iter().zip(&was).find(|(now, was)| now != was);
                assert_eq!(differ, None, "{policy} {operation:?} {how:?}");
            }
        }
    }
}

#[test]
fn another_policy_is_foretold_as_the_simulator_itself_has_it() {
    let (fifo, obrr) = (recorded(&small("fifo")), recorded(&small("obrr")));
    let c = compare(&fifo, &none(), &set(&[("nrs.policy", "obrr")]), Loop::Closed, 1).unwrap();
    let was = measured(&obrr).unwrap();
    let own = Figures::of(|| was.iter());
    assert!(c.values.iter().all(|v| v.error() == 0.0), "{c:?}");
    for (name, own) in [("bandwidth", own.bytes_per_s() / 1e6), ("response p50", own.response.p50 / 1e6)] {
        let (expected, range) = value(&c, name).predicted().unwrap();
        assert_eq!(range, 0.0, "{name}");
        assert!((expected / own - 1.0).abs() < 0.03, "{name}: {expected} expected, {own} simulated");
    }
    let faster = value(&c, "bandwidth").change().unwrap();
    assert!(faster > 0.1, "orr by objects pays on this disk: {faster}");
}

#[test]
fn a_wrong_device_shows_as_an_error() {
    let trace = recorded(&small("fifo"));
    for (device, least) in [("disk9ms", 1.0), ("hdd", 1.0), ("nvme", 0.5)] {
        let c = compare(&trace, &set(&[("disk.profile", device)]), &none(), Loop::Closed, 1).unwrap();
        let error = value(&c, "response p50").error();
        assert!(error.abs() > least, "{device}: {error}");
        assert!(value(&c, "response p50").asked.is_none());
    }
}

#[test]
fn seeds_give_an_interval() {
    let trace = recorded(&small("fifo"));
    let c = compare(&trace, &none(), &set(&[("oss.dispatch_window", "4")]), Loop::Open, 5).unwrap();
    let p50 = value(&c, "response p50");
    assert_eq!((p50.replayed.seeds, p50.asked.unwrap().seeds), (5, 5));
    assert!(p50.replayed.half_width > 0.0);
    assert!(p50.predicted().unwrap().1 > 0.0);
}

#[test]
fn what_cannot_be_replayed_is_refused_with_the_reason() {
    let trace = recorded(&small("fifo"));
    let refused = |trace: &Trace, asked: &Overrides| compare(trace, &none(), asked, Loop::Open, 1).unwrap_err();
    let mut asked = none();
    assert!(asked.set("nrs.policy", "obr").unwrap_err().contains("nrs.policy = 'obr'"));
    assert!(asked.set("clients", "3").unwrap_err().contains("clients has no effect on a replay"));
    assert!(asked.set("nrs.colour", "red").unwrap_err().contains("colour"));
    assert!(asked.set("bogus", "1").unwrap_err().contains("bogus"));
    assert!(asked.is_empty());
    assert!(refused(&Trace::default(), &none()).contains("nothing to replay"));
    let mut unknown = trace.clone();
    unknown.targets[1].settings.retain(|(key, _)| key != "disk.profile");
    let why = refused(&unknown, &none());
    assert!(why.contains("light-OST0001: its trace does not say what device") && why.contains("--device"), "{why}");
    let mut huge = trace.clone();
    huge.targets[0].records.iter_mut().for_each(|r| r.stored = u32::MAX);
    let why = refused(&huge, &set(&[("disk.mb_per_s", "0.001")]));
    assert!(why.contains("light-OST0000: it would take"), "{why}");
    let mut odd = trace.clone();
    odd.targets[0].settings.push(("nrs.policy".into(), "gone".into()));
    assert!(refused(&odd, &none()).contains("'gone'"));
}

/// Requests of several sizes that one disk served one after the other, each when it had come, and noise on their ends.
fn planted(disk: &str, seed: u64, noise_us: u64) -> Trace {
    let mut rng = Rng::new(seed);
    let mut target = Target::from_text("target=planted\nsource=ost\nnrs.policy=fifo\noss.dispatch_window=1\n").unwrap();
    let mut at = 0;
    for number in 0..400 {
        let bytes = 4096 << rng.below(9);
        let object = ObjectId(Fid::new(0x2_4000_0401, 1 + rng.below(3) as u32));
        let offset = if rng.chance(0.5) { at } else { rng.below(1 << 20) * 4096 };
        at = offset + bytes;
        target.records.push(Record {
            number,
            client: ClientId(1 + number % 3),
            object,
            offset,
            span: bytes as u32,
            bytes: bytes as u32,
            stored: bytes as u32,
            op: trace::op_of(IoOp::Read),
            arrived: Instant(number * 1000),
            dispatched: Instant(number * 1000),
            finished: Instant(number * 1000),
            ..Record::default()
        });
    }
    let device = set(&[("disk.profile", "disk9ms")]);
    let mut config = TargetConfig::of(&target, &device, 0).unwrap();
    config.disk = DeviceProfile::parse("disk9ms", disk).unwrap();
    let one = Trace { targets: vec![target.clone()] };
    let mut records = run(&one, &[config], Loop::Open).unwrap().records;
    for r in &mut records {
        r.finished.0 += rng.below(noise_us * 1000 + 1);
    }
    Trace { targets: vec![Target { records, ..target }] }
}

#[test]
fn a_fit_finds_the_parameters_that_were_planted() {
    for (i, (seek, rate, request)) in
        [(8.5, 120.0, 150.0), (4.0, 60.0, 500.0), (12.0, 300.0, 80.0)].into_iter().enumerate()
    {
        let keys = format!("seek_ms={seek} mb_per_s={rate} request_us={request}");
        let exact = fit::fit(&planted(&keys, i as u64, 0)).unwrap();
        let near = |got: f64, want: f64, share: f64| (got / want - 1.0).abs() < share;
        assert!(near(exact.seek_ms.unwrap(), seek, 1e-3) && near(exact.mb_per_s, rate, 1e-3), "{keys}: {exact:?}");
        assert!(exact.r_squared > 0.9999 && exact.residual_p95_ms < 0.01, "{keys}: {exact:?}");
        let noisy = fit::fit(&planted(&keys, i as u64, 100)).unwrap();
        assert!(near(noisy.seek_ms.unwrap(), seek, 0.03) && near(noisy.mb_per_s, rate, 0.05), "{keys}: {noisy:?}");
        assert!(noisy.r_squared > 0.99 && noisy.residual_mean_ms > exact.residual_mean_ms, "{keys}: {noisy:?}");
        assert!(near(noisy.request_us.unwrap(), request, 0.5), "{keys}: {noisy:?}");
        // What was fitted makes a device on which the trace comes out as it was.
        let mut device = none();
        for line in noisy.keys().lines() {
            let (key, value) = line.split_once('=').unwrap();
            device.set(key, value).unwrap();
        }
        let c = compare(&planted(&keys, i as u64, 100), &device, &none(), Loop::Open, 1).unwrap();
        assert!(value(&c, "bandwidth").error().abs() < 0.03, "{keys}: {c:?}");
    }
}

#[test]
fn a_fit_that_cannot_be_made_says_why() {
    assert!(fit::fit(&Trace::default()).unwrap_err().contains("0 disk requests are too few"));
    let mut trace = planted("seek_ms=9", 3, 10);
    for r in &mut trace.targets[0].records {
        (r.stored, r.offset) = (4096, r.number * (1 << 30));
    }
    let why = fit::fit(&trace).unwrap_err();
    assert!(why.contains("requests of several sizes"), "{why}");
}

#[test]
fn requests_that_never_saw_the_queue_or_the_store_are_left_out_and_cached_ones_take_what_they_took() {
    let at = |number: u64, times: [u64; 3]| Record {
        number,
        client: ClientId(number),
        bytes: 4096,
        span: 4096,
        arrived: Instant(times[0]),
        dispatched: Instant(times[1]),
        finished: Instant(times[2]),
        ..Record::default()
    };
    let mut target = Target::from_text("target=t\ndisk.profile=hdd\noss.dispatch_window=1\nnrs.policy=fifo\n").unwrap();
    let past = Record { flags: Flags::PAST_QUEUE, ..at(2, [5, 5, 5]) };
    let gone = Record { flags: Flags::CANCELLED, ..at(3, [1, 9, 9]) };
    target.records = vec![at(0, [10, 10, 35]), at(1, [12, 35, 50]), past, gone];
    let trace = Trace { targets: vec![target] };
    let config = TargetConfig::of(&trace.targets[0], &none(), 0).unwrap();
    assert_eq!((config.elevator.kind, config.alloc), (ElevatorKind::Noop, AllocKind::Contiguous));
    assert_eq!(config.elevator, ElevatorConfig { kind: ElevatorKind::Noop, ..ElevatorConfig::default() });
    let now = run(&trace, &[config], Loop::Open).unwrap();
    assert_eq!(now.records, measured(&trace).unwrap());
    assert_eq!(now.records.iter().map(|r| r.finished.0).collect::<Vec<_>>(), [25, 40]);
}
