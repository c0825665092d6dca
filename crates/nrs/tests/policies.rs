//! What tells each policy from the others: rounds, rates, regions, urgency.
mod support;
use nrs::{IoOp, TbfRules, Weights};
use std::collections::BTreeMap;
use support::{Desk, config, policy, request};
use types::{ClientId, Duration, Fid, Instant, KIB, MIB, ObjectId, OstIndex, RequestId, Rng};

const MIB32: u32 = MIB as u32;

fn objects(desk: &mut Desk) -> Vec<u32> {
    desk.serve_all().iter().map(|s| s.0).collect()
}

#[test]
fn fifo_serves_in_the_order_of_arrival() {
    let mut desk = Desk::new(policy("fifo", &[]));
    let sent: Vec<RequestId> = (0..9).map(|i| desk.send(i % 3, u64::from(9 - i) * MIB, MIB32, IoOp::Read)).collect();
    assert!(desk.policy.cancel(sent[4]));
    let served: Vec<RequestId> = std::iter::from_fn(|| desk.policy.dequeue(Instant(0))).collect();
    assert_eq!(served, [&sent[..4], &sent[5..]].concat());
}

#[test]
fn crrn_gives_every_client_its_quantum_per_round_in_its_order_of_arrival() {
    let mut desk = Desk::new(policy("crrn", &[("quantum_requests", "2")]));
    for (client, count) in [(1, 5), (2, 3), (3, 1)] {
        for i in 0..count {
            desk.send(client, (9 - i) * MIB, MIB32, IoOp::Write);
        }
    }
    let served: Vec<_> = desk.serve_all().iter().map(|s| (s.0, s.1)).collect();
    assert_eq!(served, [(1, 9), (1, 8), (2, 9), (2, 8), (3, 9), (1, 7), (1, 6), (2, 7), (1, 5)]);
}

#[test]
fn a_client_that_used_its_quantum_and_went_idle_does_not_get_another_in_the_same_round() {
    let mut desk = Desk::new(policy("crrn", &[("quantum_requests", "1")]));
    for i in 0..4 {
        desk.send(1, i * MIB, MIB32, IoOp::Write);
    }
    desk.send(2, 0, MIB32, IoOp::Write);
    let mut served = Vec::new();
    while let Some((client, _, _)) = desk.serve() {
        served.push(client);
        if client == 2 && served.len() < 8 {
            // Sends again as soon as it is served: one request in flight.
            desk.send(2, 0, MIB32, IoOp::Write);
        }
    }
    assert_eq!(served, [1, 2, 1, 2, 1, 2, 1, 2]);
}

#[test]
fn orr_binds_a_request_to_its_round_when_it_arrives() {
    let mut desk = Desk::new(policy("orr", &[("quantum_requests", "3")]));
    for offset in [50, 40, 30, 20, 10] {
        desk.send(1, offset * MIB, MIB32, IoOp::Write);
    }
    for i in 0..2 {
        desk.send(2, i * MIB, MIB32, IoOp::Read);
    }
    let served: Vec<_> = desk.serve_all().iter().map(|s| (s.0, s.1)).collect();
    // 20 and 10 would sort first, but the first three to arrive fill the object's first round.
    assert_eq!(served, [(1, 30), (1, 40), (1, 50), (2, 0), (2, 1), (1, 10), (1, 20)]);
}

#[test]
fn orr_has_lustres_quantum_of_256_and_obrr_the_papers_of_8() {
    for (name, quantum) in [("orr", 256), ("obrr", 8)] {
        let mut desk = Desk::new(policy(name, &[]));
        for object in 1..=2 {
            for i in 0..300 {
                desk.send(object, i * MIB, MIB32, IoOp::Write);
            }
        }
        let first = objects(&mut desk).iter().take_while(|o| **o == 1).count();
        assert_eq!(first, quantum, "{name}");
    }
}

#[test]
fn trr_takes_turns_among_targets_and_keeps_an_object_together() {
    let mut desk = Desk::new(policy("trr", &[("quantum_requests", "3")]));
    for i in 0..4u32 {
        for ost in 0..2u16 {
            let id = 2 * i + u32::from(ost);
            let object = ObjectId(Fid::new(ObjectId::seq_of(OstIndex(ost)), 1 + i % 2));
            let req = request(id, 0, u64::from(9 - i) * MIB, MIB32, IoOp::Write, Instant(0));
            desk.put(u32::from(ost), nrs::NrsRequest { object, id: RequestId(id), ..req });
        }
    }
    let served: Vec<_> = desk.serve_all().iter().map(|s| (s.0, s.1)).collect();
    assert_eq!(served, [(0, 7), (0, 9), (0, 8), (1, 7), (1, 9), (1, 8), (0, 6), (1, 6)]);
}

#[test]
fn an_obrr_plus_turn_ends_at_the_regions_end() {
    let mut desk = Desk::new(policy("obrr+", &[("region_bytes", "4M")]));
    for object in 1..=2 {
        for i in 2..12 {
            desk.send(object, i * MIB, MIB32, IoOp::Write);
        }
    }
    let turns = objects(&mut desk).chunk_by(|a, b| a == b).map(<[u32]>::len).collect::<Vec<_>>();
    // From 2 MiB to the region's end at 4 MiB, then whole regions.
    assert_eq!(turns, [2, 2, 4, 4, 4, 4]);
}

#[test]
fn an_obrr_plus_turn_that_ran_dry_goes_on_when_the_adjacent_request_comes_first() {
    let mut desk = Desk::new(policy("obrr+", &[]));
    desk.send(1, 0, MIB32, IoOp::Write);
    assert_eq!(desk.serve(), Some((1, 0, IoOp::Write)));
    desk.send(2, 0, MIB32, IoOp::Write);
    desk.send(1, MIB, MIB32, IoOp::Write);
    assert_eq!(desk.serve(), Some((1, 1, IoOp::Write)));
    assert_eq!(desk.serve(), Some((2, 0, IoOp::Write)));
    // Another object had its turn: now it is the tail.
    desk.send(3, 0, MIB32, IoOp::Write);
    desk.send(1, 2 * MIB, MIB32, IoOp::Write);
    assert_eq!(objects(&mut desk), [3, 1]);
}

#[test]
fn an_overdue_request_brings_its_objects_turn_next_so_that_a_wrong_table_does_not_cost_the_order() {
    // The table promises 1000 times what the store does: everything is overdue at once.
    let mut desk = Desk::new(policy("obrr+", &[("bw_mb_per_s", "500000"), ("lambda", "0.1"), ("region_bytes", "4M")]));
    for i in 0..8 {
        for object in 1..=5 {
            desk.send(object, i * MIB, MIB32, IoOp::Write);
        }
    }
    desk.now = Instant(60_000_000_000);
    let served = desk.serve_all();
    let turns = served.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).collect::<Vec<_>>();
    assert_eq!(turns, [4; 10]);
    assert!(desk.policy.counters().dynamic_fired > 0);
    // One that is behind its object's position is where the turn starts.
    let mut desk = Desk::new(policy("obrr+", &[("lambda", "1"), ("bw_mb_per_s", "1")]));
    for i in [3, 4] {
        desk.send(1, i * MIB, MIB32, IoOp::Write);
    }
    assert_eq!(desk.serve(), Some((1, 3, IoOp::Write)));
    let low = desk.send(1, 0, MIB32, IoOp::Write);
    for i in 5..8 {
        desk.send(1, i * MIB, MIB32, IoOp::Write);
    }
    desk.now = desk.policy.expiry(low).expect("it is queued");
    let offsets: Vec<u64> = desk.serve_all().iter().map(|s| s.1).collect();
    assert_eq!(offsets, [4, 0, 5, 6, 7]);
}

#[test]
fn an_overdue_request_waits_for_the_end_of_the_turn_under_way_and_is_counted_once() {
    let mut desk = Desk::new(policy("obrr+", &[("lambda", "1"), ("bw_mb_per_s", "1")]));
    desk.send(1, 0, MIB32, IoOp::Write);
    let overdue = desk.send(2, 0, MIB32, IoOp::Write);
    desk.send(3, 0, MIB32, IoOp::Write);
    assert_eq!(desk.serve(), Some((1, 0, IoOp::Write)));
    // The turn of object 1 goes on, with requests that came later.
    for i in 1..8 {
        desk.send(1, i * MIB, MIB32, IoOp::Write);
    }
    desk.now = desk.policy.expiry(overdue).expect("it is queued");
    assert_eq!(objects(&mut desk), [1, 1, 1, 1, 1, 1, 1, 2, 3]);
    assert_eq!(desk.policy.counters().dynamic_fired, 1);
}

#[test]
fn urgent_requests_that_were_served_do_not_hurry_later_ones() {
    let mut desk = Desk::new(policy("deadline+fifo", &[("deadline_mode", "drain"), ("lambda", "1000")]));
    // 1000 x 1 MiB at 250 MB/s: 4.2 s of urgent work, all served.
    for i in 0..1000 {
        desk.send_urgent(i, 0, MIB32, Duration::from_secs(60));
    }
    assert_eq!(desk.serve_all().len(), 1000);
    let bulk = desk.send(1, 0, MIB32, IoOp::Write);
    let urgent = desk.send_urgent(2, 0, MIB32, Duration::from_secs(5));
    desk.now = Instant(4_000_000_000);
    assert_eq!(desk.policy.dequeue(desk.now), Some(bulk), "its deadline is a second away");
    assert_eq!(desk.policy.dequeue(desk.now), Some(urgent));
}

#[test]
fn endless_rewrites_of_one_region_do_not_hold_an_obrr_plus_turn() {
    let mut desk = Desk::new(policy("obrr+", &[("lambda", "1000")]));
    for _ in 0..8 {
        desk.send(1, 0, 4096, IoOp::Write);
    }
    desk.send(2, 0, 4096, IoOp::Write);
    let mut before = 0;
    while desk.serve() != Some((2, 0, IoOp::Write)) {
        before += 1;
        desk.send(1, 0, 4096, IoOp::Write);
        assert!(before <= 256, "the turn does not end");
    }
}

#[test]
fn urgent_requests_are_served_at_once_within_their_budget_and_later_beyond_it() {
    // 10 MB/s with a second saved up: the first ten of 1 MB go at once, then one in 100 ms.
    let mut desk = Desk::new(policy("obrr+", &[("lambda", "1000")]));
    for i in 0..4000 {
        desk.send(i, 0, MIB32, IoOp::Write);
    }
    let urgent = |desk: &mut Desk| desk.send_urgent(5000, 0, 1_000_000, Duration::from_secs(60));
    let is_served = |desk: &mut Desk, id| desk.policy.dequeue(desk.now) == Some(id);
    for _ in 0..10 {
        let id = urgent(&mut desk);
        assert!(is_served(&mut desk, id));
    }
    let beyond = urgent(&mut desk);
    assert!(!is_served(&mut desk, beyond));
    desk.now = desk.now + Duration::from_millis(101);
    assert!(is_served(&mut desk, beyond));
    assert_eq!(desk.policy.counters().urgent_served, 11);
}

/// Serves as fast as the policy lets it for `seconds`, with every sender always backlogged; requests served per sender.
fn rates(desk: &mut Desk, senders: &[u32], bytes: u32, seconds: u64) -> BTreeMap<u32, u64> {
    let mut served = BTreeMap::new();
    for sender in senders {
        for i in 0..4 {
            desk.send(*sender, i * MIB, bytes, IoOp::Write);
        }
    }
    let until = desk.now + Duration::from_secs(seconds);
    loop {
        let Some(id) = desk.policy.dequeue(desk.now) else {
            desk.now = desk.policy.wakeup_at().expect("it is throttled, not empty");
            if desk.now > until {
                return served;
            }
            continue;
        };
        let sender = desk.object_of(id);
        *served.entry(sender).or_default() += 1;
        assert!(served[&sender] < 100_000, "sender {sender} is not held to any rate");
        desk.send(sender, 0, bytes, IoOp::Write);
    }
}

#[test]
fn tbf_holds_every_class_to_its_rate() {
    let rules = "start slow uid={1 2} rate=10; start fast uid={3} rate=100 depth=1; change default rate=20";
    let mut desk = Desk::new(policy("tbf", &[("tbf_rules", rules)]));
    let served = rates(&mut desk, &[1, 2, 3, 4, 5], 4096, 10);
    // rate x seconds, plus what an idle bucket saved up (depth), within one request.
    for (sender, expected) in [(1, 102), (2, 102), (3, 1000), (4, 202), (5, 202)] {
        assert!(served[&sender].abs_diff(expected) <= 1, "{served:?}");
    }
}

#[test]
fn tbf_holds_bytes_too_and_a_rule_for_a_job_has_one_bucket() {
    let mut desk = Desk::new(policy("tbf", &[("tbf_rules", "start all opcode={ost_write} bytes=10M depth=1")]));
    let served = rates(&mut desk, &[1, 2, 3], MIB32, 10);
    let sum: u64 = served.values().sum();
    // One bucket for all writes, since the rule names the operation only.
    assert!(sum.abs_diff(100) <= 1, "{served:?}");
}

#[test]
fn a_burst_of_bytes_is_paid_back() {
    let mut desk = Desk::new(policy("tbf", &[("tbf_rules", "start a uid={1} bytes=10M depth=4")]));
    let served = rates(&mut desk, &[1], MIB32, 10);
    // 10 MiB/s for 10 s, and at first 4 MiB at once.
    assert!(served[&1].abs_diff(104) <= 1, "{served:?}");
}

#[test]
fn a_tbf_bucket_saves_up_its_depth_and_no_more() {
    let mut desk = Desk::new(policy("tbf", &[("tbf_rules", "start a uid={1} rate=10 depth=5")]));
    for pause in [0, 1, 60] {
        desk.now = desk.now + Duration::from_secs(pause);
        for i in 0..20 {
            desk.send(1, i * MIB, 4096, IoOp::Read);
        }
        let burst = std::iter::from_fn(|| desk.serve()).count();
        assert_eq!(burst, 5, "after {pause} s");
        let mut left = Vec::new();
        desk.policy.drain(&mut left);
        assert_eq!(left.len(), 15);
    }
}

#[test]
fn tbf_rules_change_under_load_and_queued_requests_follow_them() {
    let mut desk = Desk::new(policy("tbf", &[("tbf_rules", "start a uid={1} rate=1 depth=1")]));
    for i in 0..100 {
        desk.send(1, i * MIB, 4096, IoOp::Read);
    }
    assert!(desk.serve().is_some() && desk.serve().is_none());
    assert_eq!(desk.policy.wakeup_at(), Some(Instant(1_000_000_000)));
    desk.policy.reconfigure(desk.now, &config(&[("tbf_rules", "start a uid={1} rate=100 depth=1")]));
    // The debt of one request is now worth 10 ms.
    assert_eq!((desk.serve(), desk.policy.wakeup_at()), (None, Some(Instant(10_000_000))));
    desk.policy.reconfigure(desk.now, &config(&[("tbf_rules", "change default rate=1000000 depth=200")]));
    assert_eq!(desk.serve_all().len(), 99);
}

#[test]
fn a_mandatory_deadline_overrides_throttling_and_a_dynamic_one_does_not() {
    let values = [("tbf_rules", "start a uid={1 2} rate=1 depth=1"), ("lambda", "0.1"), ("bw_mb_per_s", "1000")];
    let mut desk = Desk::new(policy("deadline+tbf", &values));
    for i in 0..2 {
        desk.send(1, i * MIB, 4096, IoOp::Read);
    }
    assert!(desk.serve().is_some());
    desk.now = Instant(500_000_000);
    assert!(desk.serve().is_none(), "the dynamic deadline has expired, but the rate is the rate");
    let urgent = desk.send_urgent(1, 0, 4096, Duration::from_millis(100));
    assert_eq!(desk.policy.wakeup_at(), Some(Instant(600_000_000)));
    desk.now = Instant(600_000_000);
    assert_eq!(desk.policy.dequeue(desk.now), Some(urgent));
}

#[test]
fn rules_are_tried_newest_first_unless_ranked() {
    let names = |rules: &TbfRules| rules.rules().iter().map(|r| r.name.clone()).collect::<Vec<_>>().join(" ");
    let mut rules = TbfRules::default();
    for command in ["start a uid={1} rate=1", "start b uid={2} rate=1", "start c * rate=1 rank=a"] {
        rules.apply(command).expect(command);
    }
    assert_eq!(names(&rules), "b c a default");
    rules.apply("change a rank=b rate=7").expect("a rule may move");
    assert_eq!((names(&rules), rules.rules()[0].rate), ("a b c default".to_string(), Some(7)));
    rules.apply("stop b").expect("a rule may stop");
    assert_eq!(names(&rules), "a c default");
    assert_eq!(rules.listing(), "a uid={1} 7, ref 0\nc * 1, ref 0\ndefault * 10000, ref 0\n");
    let mut again = TbfRules::default();
    again.apply_all(&rules.to_commands()).expect("its own commands are right");
    assert_eq!(again, rules);
}

#[test]
fn a_wrong_command_changes_nothing_and_says_what_is_wrong() {
    let mut rules = TbfRules::default();
    rules.apply("start a uid={1} rate=1").expect("a right command");
    let before = rules.clone();
    for (command, word) in [
        ("begin x uid={1} rate=1", "begin"),
        ("start a uid={1} rate=1", "exists"),
        ("start b uid={1}", "rate="),
        ("start b uid={1} rate=0", "rate=0"),
        ("start b uid={1} rate=x", "rate=x"),
        ("start b uid={1} bytes=0", "bytes=0"),
        ("start b uid={1} rate=1 depth=0", "depth=0"),
        ("start b uid={1} rate=1 rank=zz", "zz"),
        ("start b uid={} rate=1", "uid={}"),
        ("start b uid=1 rate=1", "uid=1"),
        ("start b gid={1} rate=1", "gid"),
        ("start b uid={9-3} rate=1", "9-3"),
        ("start b uid={x} rate=1", "x"),
        ("start b opcode={ost_setattr} rate=1", "ost_setattr"),
        ("start b jobid={dd.*} rate=1", "dd.*"),
        ("start b rate=1", "condition"),
        ("start b! * rate=1", "b!"),
        ("start", "name"),
        ("change zz rate=1", "zz"),
        ("change a uid={2}", "uid={2}"),
        ("change default rank=a", "default"),
        ("change a rank=a", "a"),
        ("stop default", "default"),
        ("stop a now", "now"),
        ("stop zz", "zz"),
    ] {
        let why = rules.apply(command).expect_err(command);
        assert!(why.contains(word), "{command}: {why}");
        assert_eq!(rules, before, "{command}");
    }
}

#[test]
fn an_expression_is_an_or_of_ands() {
    let weights = Weights::parse("uid={1 5-7}&opcode={ost_write},client={client9} 3; * 2").expect("it parses");
    let mut req = request(0, 1, 0, 4096, IoOp::Write, Instant(0));
    for (uid, client, op, weight) in [
        (1, 0, IoOp::Write, 3),
        (1, 0, IoOp::Read, 2),
        (6, 0, IoOp::Write, 3),
        (8, 0, IoOp::Write, 2),
        (8, 9, IoOp::Read, 3),
    ] {
        (req.uid, req.client, req.op) = (uid, ClientId(client), op);
        assert_eq!(weights.of(&req), weight, "{req:?}");
    }
    assert_eq!(weights.to_string(), "uid={1 5-7}&opcode={ost_write},client={client9} 3; * 2");
    for wrong in ["* 0", "* 1001", "*", "uid={1} x"] {
        assert!(Weights::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_objects_offsets_may_lie_anywhere_up_to_the_last_byte() {
    for name in ["obrr", "obrr+", "orr", "trr"] {
        let mut desk = Desk::new(policy(name, &[]));
        let mut rng = Rng::new(4);
        for offset in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 0] {
            for op in IoOp::ALL {
                desk.send(1, offset, (64 * KIB * rng.below(4)) as u32, op);
            }
        }
        assert_eq!(desk.serve_all().len(), 20, "{name}");
    }
}
