//! The head: switching under load, limits, counters, record and replay.
mod support;
use nrs::record::{ReplayError, replay};
use nrs::{Head, IoOp, NrsConfig, NrsRequest, names};
use std::collections::{BTreeSet, HashMap};
use support::{config, request};
use types::{Duration, Instant, KIB, MIB, RequestId, Rng};

/// A pipeline in small: it owns the requests and drives a head with random calls.
struct Pipeline {
    head: Head,
    rng: Rng,
    now: Instant,
    requests: HashMap<RequestId, NrsRequest>,
    queued: BTreeSet<RequestId>,
    in_service: Vec<(RequestId, Instant)>,
    free: Vec<RequestId>,
}

impl Pipeline {
    fn new(name: &str, seed: u64) -> Pipeline {
        Pipeline {
            head: Head::new(name, NrsConfig::default()).expect("the name is known"),
            rng: Rng::new(seed),
            now: Instant(1_000_000),
            requests: HashMap::new(),
            queued: BTreeSet::new(),
            in_service: Vec::new(),
            free: (0..500).rev().map(RequestId).collect(),
        }
    }
    fn some_queued(&mut self) -> Option<RequestId> {
        let nth = self.rng.below(self.queued.len() as u64) as usize;
        self.queued.iter().nth(nth).copied()
    }
    fn enqueue(&mut self) {
        let Some(id) = self.free.pop() else { return };
        let op = if self.rng.chance(0.5) { IoOp::Read } else { IoOp::Write };
        let (object, offset) = (self.rng.below(9) as u32, self.rng.below(100) * 256 * KIB);
        let mut req = request(id.0, object, offset, 4096 << self.rng.below(11), op, self.now);
        req.max_service = self.rng.chance(0.05).then(|| Duration::from_millis(1 + self.rng.below(300)));
        self.head.enqueue(self.now, &req).expect("far from the limit");
        self.requests.insert(id, req);
        self.queued.insert(id);
    }
    fn dequeue(&mut self) -> Option<RequestId> {
        let id = self.head.dequeue(self.now)?;
        assert!(self.queued.remove(&id), "{id} is served but not queued");
        self.in_service.push((id, self.now));
        Some(id)
    }
    fn complete(&mut self) {
        if let Some((id, since)) = self.in_service.pop() {
            self.head.on_complete(self.now, id, self.now - since);
            self.free.push(id);
        }
    }
    fn switch(&mut self, name: &str) {
        let requests = &self.requests;
        self.head.switch(self.now, name, &mut |id| requests[&id]).expect("the name is known");
    }
    fn step(&mut self, names: &[String]) {
        self.now = self.now + Duration::from_micros(self.rng.below(4000));
        match self.rng.below(100) {
            0..=44 => self.enqueue(),
            45..=79 => {
                self.dequeue();
            }
            80..=89 => self.complete(),
            90..=92 => {
                if let Some(id) = self.some_queued() {
                    assert!(self.head.cancel(id) && self.queued.remove(&id));
                    self.free.push(id);
                }
            }
            93..=95 => {
                if let Some(id) = self.some_queued() {
                    let serve_by = self.now + Duration::from_millis(self.rng.below(50));
                    assert!(self.head.promote(self.now, id, serve_by));
                }
            }
            96 => {
                let name = &names[self.rng.below(names.len() as u64) as usize];
                self.switch(name);
            }
            97 => {
                let (key, value) = [
                    ("quantum_requests", "3"),
                    ("quantum_bytes", "512K"),
                    ("lambda", "2"),
                    ("tbf_rules", "start a uid={1-3} rate=300; start b opcode={ost_read} bytes=50M"),
                    ("tbf_rules", ""),
                    ("weights", "jobid={*} 2"),
                ][self.rng.below(6) as usize];
                self.head.set(self.now, key, value).expect("the value is right");
            }
            98 if self.rng.chance(0.2) => {
                let ids = self.head.drain();
                assert_eq!(ids.iter().copied().collect::<BTreeSet<_>>(), self.queued);
                self.free.extend(ids);
                self.queued.clear();
            }
            _ => {}
        }
        assert_eq!(self.head.queued(), self.queued.len());
    }
}

#[test]
fn switching_among_all_policies_under_load_loses_nothing_and_serves_nothing_twice() {
    let names = names();
    for seed in 1..=60 {
        let mut pipeline = Pipeline::new(&names[seed as usize % names.len()], seed);
        (0..1500).for_each(|_| pipeline.step(&names));
        while !pipeline.queued.is_empty() {
            if pipeline.dequeue().is_none() {
                pipeline.now = pipeline.head.wakeup_at().expect("it is throttled").max(pipeline.now);
            }
        }
        assert_eq!(pipeline.head.dequeue(pipeline.now), None);
        let counters = pipeline.head.counters();
        assert!(counters.switched > 0);
        assert!(counters.dequeued + counters.cancelled <= counters.enqueued);
        assert_eq!(pipeline.head.served().values().sum::<u64>(), counters.dequeued);
    }
}

#[test]
fn requests_are_counted_for_the_policy_that_chose_them() {
    let mut pipeline = Pipeline::new("fifo", 1);
    (0..20).for_each(|_| pipeline.enqueue());
    for (name, requests) in [("fifo", 3), ("crrn", 2), ("orr", 0), ("fifo", 1)] {
        pipeline.switch(name);
        for _ in 0..requests {
            assert!(pipeline.dequeue().is_some(), "there are more");
        }
    }
    let served: Vec<_> = pipeline.head.served().into_iter().collect();
    assert_eq!(served, [("crrn".into(), 2), ("fifo".into(), 4), ("orr".into(), 0)]);
}

#[test]
fn a_switch_moves_no_deadline_back() {
    for seed in 1..=300 {
        let mut pipeline = Pipeline::new("deadline+obrr", seed);
        for _ in 0..400 {
            pipeline.now = pipeline.now + Duration::from_micros(pipeline.rng.below(2000));
            match pipeline.rng.below(10) {
                0..=5 => pipeline.enqueue(),
                6..=7 => drop(pipeline.dequeue()),
                _ => pipeline.complete(),
            }
        }
        let before: Vec<_> = pipeline.queued.iter().map(|id| (*id, pipeline.head.expiry(*id))).collect();
        pipeline.switch("deadline+orr");
        for (id, expiry) in before {
            assert!(expiry.is_some() && pipeline.head.expiry(id) <= expiry, "seed {seed}: {id}");
        }
    }
}

#[test]
fn a_promotion_survives_switches_even_through_a_policy_without_deadlines() {
    let mut pipeline = Pipeline::new("deadline+obrr", 1);
    pipeline.head.set(pipeline.now, "lambda", "1000").expect("in range");
    (0..200).for_each(|_| pipeline.enqueue());
    // The last of the order of arrival and not urgent by itself.
    let last = (0..200).rev().map(RequestId).find(|id| pipeline.requests[id].max_service.is_none()).expect("most are");
    assert!(pipeline.head.promote(pipeline.now, last, pipeline.now + Duration::from_millis(1)));
    for name in ["fifo", "crrn", "deadline+fifo"] {
        pipeline.switch(name);
    }
    pipeline.now = pipeline.now + Duration::from_millis(1);
    assert_eq!(pipeline.dequeue(), Some(last));
}

#[test]
fn a_promotion_ends_with_its_request_and_does_not_pass_to_the_next_of_the_same_id() {
    let mut pipeline = Pipeline::new("deadline+fifo", 1);
    pipeline.head.set(pipeline.now, "lambda", "1000").expect("in range");
    let send = |head: &mut Head, id: u32| {
        head.enqueue(Instant(1_000_000), &request(id, 1, 0, 4096, IoOp::Read, Instant(1_000_000))).expect("room");
    };
    let head = &mut pipeline.head;
    for end in 0..3 {
        send(head, 7);
        assert!(head.promote(Instant(1_000_000), RequestId(7), Instant(1_000_000)));
        match end {
            0 => assert_eq!(head.dequeue(Instant(1_000_000)), Some(RequestId(7))),
            1 => assert!(head.cancel(RequestId(7))),
            _ => assert_eq!(head.drain(), [RequestId(7)]),
        }
        send(head, 1);
        send(head, 7);
        let mut again = |id: RequestId| request(id.0, 1, 0, 4096, IoOp::Read, Instant(1_000_000));
        head.switch(Instant(1_000_000), "deadline+fifo", &mut again).expect("the name is known");
        let order = [head.dequeue(Instant(1_000_000)), head.dequeue(Instant(1_000_000))];
        assert_eq!(order, [Some(RequestId(1)), Some(RequestId(7))], "case {end}");
    }
}

#[test]
fn an_unknown_policy_is_refused_by_name_and_the_old_one_goes_on() {
    let mut pipeline = Pipeline::new("obrr", 1);
    pipeline.enqueue();
    for name in ["obr", "deadline+", "deadline+deadline+fifo", "deadline+obrr+", "deadline+auto", ""] {
        let error = pipeline.head.switch(pipeline.now, name, &mut |_| unreachable!()).expect_err("not a policy");
        let text = error.to_string();
        assert!(text.contains(&format!("'{name}'")) && text.contains("crrn"), "{text}");
    }
    assert_eq!((pipeline.head.policy_name(), pipeline.head.queued()), ("obrr", 1));
    assert!(pipeline.dequeue().is_some());
}

#[test]
fn lustres_parameters_read_and_write_the_head_under_load() {
    let mut pipeline = Pipeline::new("fifo", 1);
    (0..50).for_each(|_| pipeline.enqueue());
    pipeline.dequeue();
    let requests = pipeline.requests.clone();
    let set = |head: &mut Head, name: &str, value: &str| {
        head.set_param(Instant(2_000_000), name, value, &mut |id| requests[&id])
    };
    let head = &mut pipeline.head;
    set(head, "nrs_policies", "orr reg").expect("orr exists");
    set(head, "nrs_orr_quantum", "reg_quantum:16").expect("in range");
    assert_eq!(head.get_param("nrs_orr_quantum").as_deref(), Ok("reg_quantum:16\n"));
    let text = head.get_param("nrs_policies").expect("it is a parameter");
    assert!(text.contains("  - name: orr\n    state: started\n    fallback: no\n    queued: 49 "), "{text}");
    assert!(
        text.contains("active: 1 ") && text.contains("  - name: fifo\n    state: stopped\n    fallback: yes"),
        "{text}"
    );
    set(head, "nrs_policies", "deadline+obrr").expect("obrr exists");
    set(head, "nrs_obrr_quantum", "4").expect("in range");
    assert!(head.get_param("nrs_policies").is_ok_and(|t| t.contains("  - name: deadline+obrr\n    state: started")));
    set(head, "nrs_policies", "tbf nid").expect("tbf exists");
    set(head, "nrs_tbf_rule", "start slow uid={3} rate=5").expect("the rule is right");
    assert!(head.get_param("nrs_tbf_rule").is_ok_and(|t| t.starts_with("slow uid={3} 5, ref 0\ndefault * 10000")));
    assert_eq!(head.queued(), 49);
    for (name, value, word) in [
        ("nrs_policies", "orr hp", "high-priority"),
        ("nrs_policies", "tbf jobid", "bucket"),
        ("nrs_policies", "", "crrn"),
        ("nrs_orr_quantum", "8", "not in use"),
        ("nrs_quantum", "8", "nrs_quantum"),
        ("nrs_tbf_rule", "stop fast", "fast"),
    ] {
        let error = set(head, name, value).expect_err(value).to_string();
        assert!(error.contains(word), "{error}");
    }
    assert!(head.get_param("nrs_crrn_quantum").is_err());
}

#[test]
fn beyond_its_limit_it_refuses_and_counts() {
    let mut head = Head::new("obrr", config(&[("queue_max", "2")])).expect("the name is known");
    let send = |head: &mut Head, id| head.enqueue(Instant(1), &request(id, 1, 0, 4096, IoOp::Read, Instant(1)));
    assert!(send(&mut head, 0).is_ok() && send(&mut head, 1).is_ok());
    assert!(send(&mut head, 2).expect_err("full").to_string().contains("2 requests"));
    assert_eq!((head.queued(), head.counters().refused, head.counters().queued_max), (2, 1, 2));
    assert!(head.dequeue(Instant(1)).is_some());
    assert!(send(&mut head, 2).is_ok());
}

#[test]
#[should_panic(expected = "queued twice")]
fn the_same_id_twice_is_a_bug_of_the_caller() {
    let mut head = Head::new("obrr", NrsConfig::default()).expect("the name is known");
    let req = request(7, 1, 0, 4096, IoOp::Read, Instant(1));
    let _ = head.enqueue(Instant(1), &req);
    let _ = head.enqueue(Instant(1), &req);
}

fn recorded(seed: u64, steps: usize, bytes_max: usize) -> Vec<u8> {
    let names = names();
    let mut pipeline = Pipeline::new(&names[seed as usize % names.len()], seed);
    pipeline.head.set(pipeline.now, "weights", "uid={2} 3").expect("the value is right");
    pipeline.head.set(pipeline.now, "tbf_rule", "start x uid={4 5} rate=200 depth=2").expect("the rule is right");
    assert!(pipeline.head.record(bytes_max));
    (0..steps).for_each(|_| pipeline.step(&names));
    pipeline.head.take_record().expect("it recorded")
}

#[test]
fn a_recorded_log_replays_to_identical_answers_under_every_policy() {
    for seed in 0..60 {
        let log = recorded(seed, 1200, 64 * MIB as usize);
        let replayed = replay(&log).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(replayed.calls > 800 && !replayed.truncated);
    }
}

#[test]
fn a_log_that_hits_its_limit_says_so_and_still_replays() {
    let log = recorded(5, 1200, 20_000);
    assert!(log.len() <= 20_000);
    let replayed = replay(&log).expect("what was recorded is whole");
    assert!(replayed.truncated && replayed.calls > 100);
}

#[test]
fn recording_starts_only_on_an_empty_queue() {
    let mut pipeline = Pipeline::new("obrr", 1);
    pipeline.enqueue();
    assert!(!pipeline.head.record(1000));
    pipeline.dequeue();
    assert!(pipeline.head.record(1000));
}

#[test]
fn a_changed_answer_is_reported_with_its_call() {
    let mut head = Head::new("fifo", NrsConfig::default()).expect("the name is known");
    assert!(head.record(10_000));
    for id in 0..2 {
        head.enqueue(Instant(1), &request(id, 1, 0, 4096, IoOp::Read, Instant(1))).expect("far from the limit");
    }
    assert_eq!(head.dequeue(Instant(2)), Some(RequestId(0)));
    let log = head.take_record().expect("it recorded");
    // The same log with another policy name: lifo does not exist, crrn agrees, and a forged answer is found.
    let at = log.windows(4).position(|w| w == b"fifo").expect("the header names the policy");
    let mut other = log.clone();
    other[at..at + 4].copy_from_slice(b"crrn");
    assert_eq!(replay(&other).map(|r| r.calls), Ok(3));
    other[at..at + 4].copy_from_slice(b"lifo");
    assert!(matches!(replay(&other), Err(ReplayError::Config(why)) if why.contains("lifo")));
    let forged = forge_last_answer(&log);
    assert!(matches!(replay(&forged), Err(ReplayError::Differs { call: 2, .. })), "{:?}", replay(&forged));
}

/// Changes the dequeue's answer from 0 to 1 and mends the checksum. The log ends with a dequeue (1 + 8 + 4 + 4 bytes)
/// and the end mark (1 + 1 + 4 bytes).
fn forge_last_answer(log: &[u8]) -> Vec<u8> {
    let mut log = log.to_vec();
    let start = log.len() - 6 - 17;
    log[start + 9] = 1;
    let sum = log[start..start + 13].iter().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    log[start + 13..start + 17].copy_from_slice(&sum.to_le_bytes());
    log
}

#[test]
fn a_damaged_log_is_refused_and_never_panics() {
    let log = recorded(3, 300, MIB as usize);
    assert!(matches!(replay(b"no log"), Err(ReplayError::Format(_))));
    assert!(matches!(replay(&log[..log.len() - 1]), Err(ReplayError::Damaged { .. })));
    let mut newer = log.clone();
    newer[6] = 3;
    assert!(matches!(replay(&newer), Err(ReplayError::Format(why)) if why.contains('3')));
    let mut rng = Rng::new(8);
    for _ in 0..2000 {
        let mut damaged = log.clone();
        for _ in 0..1 + rng.below(3) {
            let at = rng.below(damaged.len() as u64) as usize;
            damaged[at] ^= 1 << rng.below(8);
        }
        // A flip in the header's values may make another legal configuration; a record's checksum finds all others.
        let _ = replay(&damaged);
        let body = log.len() - 1 - rng.below(log.len() as u64 / 2) as usize;
        let mut flipped = log.clone();
        flipped[body] ^= 1 << rng.below(8);
        assert!(replay(&flipped).is_err());
        let _ = replay(&log[..rng.below(log.len() as u64) as usize]);
    }
}
