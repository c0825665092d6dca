//! Paper 001, claim by claim, and the properties R20 to R23 on 10^4 random schedules each.
mod support;
use nrs::{IoOp, NrsConfig};
use support::{Desk, config, policy};
use types::{Duration, Instant, KIB, MIB, RequestId, Rng};

const SCHEDULES: u64 = 10_000;

#[test]
fn reads_and_writes_of_an_object_each_leave_by_offset() {
    let mut desk = Desk::new(policy("obrr", &[("quantum_requests", "4")]));
    for (offset, op) in [(5, IoOp::Write), (3, IoOp::Read), (1, IoOp::Write), (7, IoOp::Read)] {
        desk.send(1, offset * MIB, MIB as u32, op);
    }
    let served = desk.serve_all();
    assert_eq!(served, [(1, 3, IoOp::Read), (1, 7, IoOp::Read), (1, 1, IoOp::Write), (1, 5, IoOp::Write)]);
}

#[test]
fn a_turn_starts_with_the_direction_that_did_not_have_the_last_one() {
    let mut desk = Desk::new(policy("obrr", &[("quantum_requests", "2")]));
    for i in 0..4 {
        desk.send(1, i * MIB, MIB as u32, IoOp::Read);
        desk.send(1, i * MIB, MIB as u32, IoOp::Write);
    }
    let reads: Vec<bool> = desk.serve_all().iter().map(|s| s.2 == IoOp::Read).collect();
    assert_eq!(reads, [true, true, false, false, true, true, false, false]);
}

#[test]
fn objects_take_turns_of_a_quantum_and_go_to_the_tail_with_work_left() {
    let mut desk = Desk::new(policy("obrr", &[("quantum_requests", "2")]));
    for object in 1..=3 {
        for i in 0..4 {
            desk.send(object, i * MIB, MIB as u32, IoOp::Write);
        }
    }
    let objects: Vec<u32> = desk.serve_all().iter().map(|s| s.0).collect();
    assert_eq!(objects, [1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3]);
}

#[test]
fn the_next_object_gets_its_whole_quantum_when_the_first_is_cancelled_in_its_turn() {
    let mut desk = Desk::new(policy("obrr", &[("quantum_requests", "3")]));
    let first: Vec<RequestId> = (0..3).map(|i| desk.send(1, i * MIB, MIB as u32, IoOp::Write)).collect();
    for object in 2..=3 {
        for i in 0..3 {
            desk.send(object, i * MIB, MIB as u32, IoOp::Write);
        }
    }
    assert_eq!(desk.policy.dequeue(desk.now), Some(first[0]));
    assert!(desk.policy.cancel(first[1]) && desk.policy.cancel(first[2]));
    let objects: Vec<u32> = desk.serve_all().iter().map(|s| s.0).collect();
    assert_eq!(objects, [2, 2, 2, 3, 3, 3]);
}

#[test]
fn a_quantum_may_be_counted_in_bytes() {
    let mut desk = Desk::new(policy("obrr", &[("quantum_requests", "100"), ("quantum_bytes", "1M")]));
    for i in 0..4 {
        desk.send(1, i * 512 * KIB, 512 * KIB as u32, IoOp::Write);
        desk.send(2, i * MIB, MIB as u32, IoOp::Write);
    }
    let objects: Vec<u32> = desk.serve_all().iter().map(|s| s.0).collect();
    assert_eq!(objects, [1, 1, 2, 1, 1, 2, 2, 2]);
}

#[test]
fn an_object_is_served_from_its_last_position_upwards_and_then_from_its_start() {
    let mut desk = Desk::new(policy("obrr", &[("quantum_requests", "2")]));
    for offset in [4, 5, 6] {
        desk.send(1, offset * MIB, MIB as u32, IoOp::Write);
    }
    assert_eq!(desk.serve().map(|s| s.1), Some(4));
    assert_eq!(desk.serve().map(|s| s.1), Some(5));
    desk.send(1, MIB, MIB as u32, IoOp::Write);
    desk.send(1, 9 * MIB, MIB as u32, IoOp::Write);
    let offsets: Vec<u64> = desk.serve_all().iter().map(|s| s.1).collect();
    assert_eq!(offsets, [6, 9, 1]);
}

#[test]
fn the_dynamic_deadline_of_7580_queued_mebibytes_is_47_7_s() {
    // R12-15: bw = half of 500 MB/s, lambda 1.5: 1.5 x 7580 x 2^20 / 250e6 = 47.69 s.
    let mut desk = Desk::new(policy("deadline+obrr", &[]));
    let last = (0..7580).map(|i| desk.send(i % 1000, u64::from(i / 1000) * MIB, MIB as u32, IoOp::Write)).last();
    let expiry = desk.policy.expiry(last.expect("requests were sent")).expect("it has a dynamic deadline");
    assert!((expiry.0.abs_diff(47_690_000_000)) < 10_000_000, "{expiry:?}");
}

#[test]
fn bytes_in_service_count_for_the_dynamic_deadline_until_they_are_complete() {
    let mut desk = Desk::new(policy("deadline+fifo", &[("lambda", "1"), ("bw_mb_per_s", "1")]));
    let first = desk.send(1, 0, 1_000_000, IoOp::Write);
    assert_eq!(desk.policy.dequeue(Instant(0)), Some(first));
    let second = desk.send(1, 0, 1_000_000, IoOp::Write);
    assert_eq!(desk.policy.expiry(second), Some(Instant(2_000_000_000)));
    assert_eq!(desk.policy.dequeue(Instant(0)), Some(second));
    desk.policy.on_complete(Instant(0), first, Duration::ZERO);
    desk.policy.on_complete(Instant(0), second, Duration::ZERO);
    let third = desk.send(1, 0, 1_000_000, IoOp::Write);
    assert_eq!(desk.policy.expiry(third), Some(Instant(1_000_000_000)));
}

#[test]
fn windows_of_record_sizes_have_bandwidths_of_their_own() {
    let mut desk = Desk::new(policy("deadline+fifo", &[("lambda", "1"), ("bw_mb_per_s", "1,2,4,8,16,32,64,128")]));
    let small = desk.send(1, 0, 64_000, IoOp::Write);
    assert_eq!(desk.policy.expiry(small), Some(Instant(64_000_000)));
    let large = desk.send(1, 0, 1_600_000, IoOp::Write);
    assert_eq!(desk.policy.expiry(large), Some(Instant(64_000_000 + 50_000_000)));
}

#[test]
fn an_expired_request_is_served_before_the_order_and_the_earliest_first() {
    let mut desk =
        Desk::new(policy("deadline+obrr", &[("lambda", "1"), ("bw_mb_per_s", "1"), ("quantum_requests", "9")]));
    // Object 1 has the turn and a stream that always runs ahead; object 2 waits, and so does a low offset of object 1.
    for i in 10..15 {
        desk.send(1, i * MIB, 1_000_000, IoOp::Write);
    }
    assert_eq!(desk.serve(), Some((1, 10, IoOp::Write)));
    let (other, low) = (desk.send(2, 0, 1_000_000, IoOp::Write), desk.send(1, 0, 1_000_000, IoOp::Write));
    desk.now = desk.policy.expiry(other).expect("it is queued");
    // The four of the stream are older and expired earlier.
    for _ in 0..4 {
        assert_eq!(desk.serve().map(|s| s.0), Some(1));
    }
    assert_eq!(desk.policy.dequeue(desk.now), Some(other));
    assert_eq!(desk.policy.dequeue(desk.now), Some(low));
}

#[test]
fn a_mandatory_deadline_that_has_expired_comes_before_everything() {
    let mut desk = Desk::new(policy("deadline+obrr", &[]));
    for i in 0..20 {
        desk.send(1, i * MIB, MIB as u32, IoOp::Write);
    }
    let urgent = desk.send_urgent(2, 0, MIB as u32, Duration::from_secs(5));
    desk.now = Instant(4_999_999_999);
    // By now dynamic deadlines have expired: they are older, and the urgent one is not due yet.
    assert_eq!(desk.serve().map(|s| s.0), Some(1));
    desk.now = Instant(5_000_000_000);
    assert_eq!(desk.policy.dequeue(desk.now), Some(urgent));
    assert_eq!(desk.policy.counters().mandatory_fired, 1);
}

#[test]
fn a_promoted_request_gets_the_earlier_of_its_deadlines() {
    let mut desk = Desk::new(policy("deadline+obrr", &[("lambda", "1000")]));
    for i in 0..20 {
        desk.send(1, i * MIB, MIB as u32, IoOp::Write);
    }
    let urgent = desk.send_urgent(2, 0, MIB as u32, Duration::from_secs(5));
    assert!(desk.policy.promote(desk.now, urgent, Instant(1_000_000_000)));
    assert!(desk.policy.promote(desk.now, urgent, Instant(9_000_000_000)));
    desk.now = Instant(999_999_999);
    assert_eq!(desk.serve().map(|s| s.0), Some(1));
    desk.now = Instant(1_000_000_000);
    assert_eq!(desk.policy.dequeue(desk.now), Some(urgent));
}

#[test]
fn in_drain_mode_a_mandatory_deadline_fires_early_enough_to_be_met() {
    // R16: everything stays in service for 200 ms; printed mode starts at 5 s, this one is complete by then.
    let due = |mode: &str| {
        let mut desk = Desk::new(policy("deadline+obrr", &[("deadline_mode", mode), ("lambda", "1000")]));
        for i in 0..2000 {
            desk.send(i, 0, MIB as u32, IoOp::Write);
        }
        let urgent = desk.send_urgent(2000, 0, MIB as u32, Duration::from_secs(5));
        loop {
            let id = desk.policy.dequeue(desk.now).expect("there is work for longer than 5 s");
            if id == urgent {
                return desk.now;
            }
            desk.now = desk.now + Duration::from_millis(4);
            desk.policy.on_complete(desk.now, id, Duration::from_millis(200));
        }
    };
    let printed = due("expiry").0;
    assert!((5_000_000_000..5_010_000_000).contains(&printed), "{printed}");
    let ours = due("drain").0 + 200_000_000;
    assert!((4_900_000_000..=5_000_000_000).contains(&ours), "{ours}");
}

/// R20.
#[test]
fn dynamic_deadlines_follow_the_formula_and_never_step_back() {
    for seed in 1..=SCHEDULES {
        let mut rng = Rng::named(seed, "R20");
        let lambda = 0.5 + rng.unit() * 3.0;
        let config = config(&[("lambda", &lambda.to_string()), ("bw_mb_per_s", "20,40,80,120,160,200,240,250")]);
        let mut desk = Desk::new(nrs::build("deadline+obrr", &config).expect("the name is known"));
        let (mut outstanding, mut newest) = (0.0f64, 0u64);
        let mut in_service = Vec::new();
        let cost =
            |bytes: u32| f64::from(bytes) * 1e9 / config.bw_bytes_per_s[NrsConfig::window(u64::from(bytes))] as f64;
        for _ in 0..60 {
            desk.now = desk.now + Duration::from_micros(rng.below(20_000));
            match rng.below(10) {
                0..=5 => {
                    let bytes = (4096u32 << rng.below(11)) + rng.below(4096) as u32;
                    let id = desk.send(rng.below(6) as u32, rng.below(64) * MIB, bytes, IoOp::Write);
                    outstanding += cost(bytes);
                    let formula = desk.now.0 + (outstanding * lambda) as u64;
                    let expiry = desk.policy.expiry(id).expect("it is queued").0;
                    assert!(expiry >= newest, "seed {seed}");
                    let expected = formula.max(newest);
                    assert!(expiry.abs_diff(expected) < 10_000, "seed {seed}: {expiry} is not {expected}");
                    newest = expiry;
                }
                6..=8 => in_service.extend(desk.policy.dequeue(desk.now)),
                _ => {
                    if let Some(id) = in_service.pop() {
                        desk.policy.on_complete(desk.now, id, Duration::ZERO);
                        outstanding -= cost(desk.bytes_of(id));
                    }
                }
            }
            if desk.policy.queued() == 0 {
                newest = 0;
            }
        }
    }
}

/// R21. The store is twice as fast as the table says, as paper 001 sets it, so deadlines can be met.
#[test]
fn nobody_waits_past_its_expiry_by_more_than_a_quantum_round_under_endless_adjacent_streams() {
    for seed in 1..=SCHEDULES {
        let mut rng = Rng::named(seed, "R21");
        let (bytes, service) = (MIB as u32, Duration::from_nanos(2_097_152));
        let streams = 1 + rng.below(6) as u32;
        // obrr+ has turns of a region: 8 MiB, so 8 requests.
        let (name, quantum) = if seed % 2 == 0 { ("deadline+obrr", 1 + rng.below(16) as u32) } else { ("obrr+", 8) };
        let mut desk = Desk::new(policy(name, &[("quantum_requests", &quantum.to_string())]));
        let mut next = vec![1_000u64; streams as usize + 1];
        for stream in 1..=streams {
            for _ in 0..1 + rng.below(8) {
                next[stream as usize] += 1;
                desk.send(stream, next[stream as usize] * MIB, bytes, IoOp::Write);
            }
        }
        // One request behind each stream's position, and one in an object of its own.
        let mut victims: Vec<RequestId> = Vec::new();
        let round = service * quantum * (streams + 1);
        for step in 0..120 {
            if step == 10 {
                victims = (1..=streams + 1).map(|object| desk.send(object, 0, bytes, IoOp::Write)).collect();
            }
            let waiting: Vec<_> = victims.iter().filter_map(|id| desk.policy.expiry(*id)).collect();
            assert!(waiting.iter().all(|e| desk.now <= *e + round), "seed {seed}: a request waits past its bound");
            let id = desk.policy.dequeue(desk.now).expect("streams do not end");
            victims.retain(|v| *v != id);
            desk.now = desk.now + service;
            desk.policy.on_complete(desk.now, id, service);
            let stream = desk.object_of(id);
            if stream <= streams {
                next[stream as usize] += 1;
                desk.send(stream, next[stream as usize] * MIB, bytes, IoOp::Write);
            }
        }
        // 48 + 6 requests of 2.1 ms x 1.5 x 2 expire well within 120 services.
        assert!(
            victims.is_empty() || desk.policy.expiry(victims[0]).is_some_and(|e| e + round > desk.now),
            "seed {seed}"
        );
    }
}

/// R22, in requests.
#[test]
fn backlogged_objects_never_differ_by_more_than_one_quantum() {
    for seed in 1..=SCHEDULES {
        let mut rng = Rng::named(seed, "R22");
        let (objects, quantum) = (2 + rng.below(6) as u32, 1 + rng.below(12));
        let mut desk = Desk::new(policy("obrr", &[("quantum_requests", &quantum.to_string())]));
        for object in 0..objects {
            for _ in 0..30 {
                let op = if rng.chance(0.5) { IoOp::Read } else { IoOp::Write };
                desk.send(object, rng.below(500) * MIB, 4096 << rng.below(9), op);
            }
        }
        let mut served = vec![0u64; objects as usize];
        // Until the first of them runs dry.
        while served.iter().all(|n| *n < 30) {
            served[desk.serve().expect("all have work").0 as usize] += 1;
            let (least, most) = (served.iter().min(), served.iter().max());
            assert!(most.zip(least).is_some_and(|(m, l)| m - l <= quantum), "seed {seed}: {served:?}");
        }
    }
}

/// R22, in bytes: the deficit is carried, so the difference does not grow with the number of rounds.
#[test]
fn in_bytes_they_never_differ_by_more_than_a_quantum_and_a_request() {
    for seed in 1..=SCHEDULES / 10 {
        let mut rng = Rng::named(seed, "R22 bytes");
        let quantum = 64 * KIB * (16 + rng.below(64));
        let mut desk =
            Desk::new(policy("obrr", &[("quantum_requests", "10000"), ("quantum_bytes", &quantum.to_string())]));
        let sizes: Vec<u32> = (0..4).map(|_| 4096 + rng.below(MIB - 4096) as u32).collect();
        let mut served = [0u64; 4];
        let mut left = [0u32; 4];
        for step in 0..800 {
            for object in 0..4u32 {
                while left[object as usize] < 300 && step == 0 {
                    desk.send(object, rng.below(1 << 20) * 4096, sizes[object as usize], IoOp::Write);
                    left[object as usize] += 1;
                }
            }
            let (object, _, _) = desk.serve().expect("all have work");
            served[object as usize] += u64::from(sizes[object as usize]);
            left[object as usize] -= 1;
            if left[object as usize] == 0 {
                break;
            }
            let (least, most) = (served.iter().min(), served.iter().max());
            let bound = quantum + MIB;
            assert!(most.zip(least).is_some_and(|(m, l)| m - l <= bound), "seed {seed}: {served:?} and {bound}");
        }
    }
}

/// R23.
#[test]
fn quanta_of_8_4_2_share_the_server_4_2_1_within_5_percent() {
    for seed in 1..=SCHEDULES {
        let mut rng = Rng::named(seed, "R23");
        let weights = ("weights", "uid={1} 4; uid={2} 2");
        let mut desk = Desk::new(policy("obrr", &[("quantum_requests", "2"), weights]));
        for _ in 0..12 {
            for object in 1..=3 {
                desk.send(object, rng.below(1000) * MIB, MIB as u32, IoOp::Write);
            }
        }
        let mut served = [0u32; 4];
        for _ in 0..140 {
            let (object, _, _) = desk.serve().expect("objects stay backlogged");
            served[object as usize] += 1;
            desk.send(object, rng.below(1000) * MIB, MIB as u32, IoOp::Write);
        }
        for (object, share) in [(1, 80.0), (2, 40.0), (3, 20.0)] {
            let got = f64::from(served[object]);
            assert!((got - share).abs() <= share * 0.05, "seed {seed}: {served:?}");
        }
    }
}
