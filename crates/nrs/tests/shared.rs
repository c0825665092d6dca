//! Buckets that the heads of one server share: rates over all heads, turns among them, records of each.
mod support;
use nrs::record::replay;
use nrs::{IoOp, NrsRequest, Pipeline};
use std::collections::BTreeMap;
use support::{config, request};
use types::{Duration, Instant, KIB, MIB, RequestId, Rng};

const MS: u64 = 1_000_000;

/// What was dispatched when, by which head.
#[derive(Clone, Copy, Debug)]
struct Served {
    at: Instant,
    head: usize,
}

/// A server in small: pipelines that tell each other what they take, each with a store that takes its time.
struct Server {
    heads: Vec<Pipeline>,
    now: Instant,
    /// Whether they tell each other.
    tells: bool,
    /// Time in service, by head.
    service_ns: Vec<u64>,
    in_service: Vec<(Instant, usize, RequestId)>,
    served: BTreeMap<u64, Vec<Served>>,
    told: Vec<bool>,
}

impl Server {
    fn new(policy: &str, heads: usize, rules: &str, window: u32) -> Server {
        let config = config(&[("tbf_rules", rules)]);
        let head = |_| Pipeline::new(policy, config.clone(), window).expect("the policy exists");
        Server {
            heads: (0..heads).map(head).collect(),
            now: Instant(1_000_000_000),
            tells: true,
            service_ns: vec![MS; heads],
            in_service: Vec::new(),
            served: BTreeMap::new(),
            told: vec![false; heads],
        }
    }

    /// A request of `client`, which is its object, user and job too.
    fn send(&mut self, head: usize, client: u32, bytes: u32) {
        let req = request(0, client, self.now.0 % 64 * MIB, bytes, IoOp::Write, self.now);
        self.heads[head].on_arrival(self.now, req, |r| *r).expect("far from the limit");
    }

    /// Dispatches what may go, the head first that could go first; as an OSS does.
    fn poll(&mut self) {
        let mut order: Vec<(Option<Instant>, usize)> =
            (0..self.heads.len()).map(|h| (self.heads[h].wakeup_at().or(Some(self.now)), h)).collect();
        order.sort();
        order.into_iter().for_each(|(_, head)| self.serve(head));
        while let Some(head) = self.told.iter().position(|told| *told) {
            self.serve(head);
        }
    }

    fn serve(&mut self, head: usize) {
        self.told[head] = false;
        while let Some(id) = self.heads[head].next_dispatch(self.now) {
            let job = *self.heads[head].job(id);
            let served = Served { at: self.now, head };
            self.served.entry(job.client.0).or_default().push(served);
            self.in_service.push((self.now + Duration::from_nanos(self.service_ns[head]), head, id));
            let Some(taken) = self.heads[head].taken().filter(|_| self.tells) else { continue };
            let (before, rest) = self.heads.split_at_mut(head);
            let (me, after) = rest.split_first_mut().expect("the head is one of them");
            let (told, now) = (&mut self.told, self.now);
            me.share(now, &taken, |tell| {
                for (other, at) in before.iter_mut().zip(0..).chain(after.iter_mut().zip(head + 1..)) {
                    told[at] |= tell(other);
                }
            });
        }
    }

    fn complete(&mut self) {
        let now = self.now;
        let (done, rest): (Vec<_>, Vec<_>) = self.in_service.drain(..).partition(|s| s.0 <= now);
        self.in_service = rest;
        for (_, head, id) in done {
            self.heads[head].on_completion(now, id);
        }
    }

    /// Goes on to what comes next, `until` at most: a completion, or a time at which a head says it has something.
    /// Clocks are coarse: nobody wakes up but at a multiple of `tick_ns`.
    fn pass(&mut self, until: Instant, tick_ns: u64) {
        let wake = self.heads.iter().filter_map(Pipeline::wakeup_at);
        let next = wake.chain(self.in_service.iter().map(|s| s.0)).min().unwrap_or(until);
        assert!(next > self.now || self.in_service.iter().any(|s| s.0 <= self.now), "a head that could go on was left");
        self.now = Instant(next.0.max(self.now.0).next_multiple_of(tick_ns)).min(until);
        self.complete();
        self.poll();
    }

    /// Keeps `backlog` requests of each client queued at each head, (head, client, bytes), until `until`.
    fn run(&mut self, senders: &[(usize, u32, u32)], until: Instant, tick_ns: u64) {
        let mut sent = BTreeMap::new();
        while self.now < until {
            for (head, client, bytes) in senders {
                let served = self.served.get(&u64::from(*client));
                let gone = served.map_or(0, |all| all.iter().filter(|s| s.head == *head).count());
                let sent: &mut usize = sent.entry((*head, *client)).or_default();
                while *sent < gone + 3 {
                    self.send(*head, *client, *bytes);
                    *sent += 1;
                }
            }
            self.poll();
            self.pass(until, tick_ns);
        }
    }

    fn count(&self, client: u64, head: usize) -> usize {
        self.served.get(&client).map_or(0, |all| all.iter().filter(|s| s.head == head).count())
    }

    /// The first window of time in which a client had more than its rule allows.
    fn excess(&self, client: u64, request_ns: u64, depth: u64) -> Option<(Served, Served, usize)> {
        let all = self.served.get(&client)?;
        for (i, first) in all.iter().enumerate() {
            for (j, last) in all.iter().enumerate().skip(i) {
                let allowed = depth + (last.at.0 - first.at.0) / request_ns;
                if (j - i + 1) as u64 > allowed {
                    return Some((*first, *last, j - i + 1));
                }
            }
        }
        None
    }
}

fn steps(server: &mut Server, rng: &mut Rng, rules: bool, steps: u32) {
    let names = ["tbf", "deadline+tbf", "tbf", "fifo"];
    for _ in 0..steps {
        let head = rng.below(server.heads.len() as u64) as usize;
        match rng.below(100) {
            0..60 => server.send(head, 1 + rng.below(3) as u32, 4096 << rng.below(9)),
            60..63 => {
                let client = 1 + rng.below(3);
                server.heads[head].cancel(|r| r.client.0 == client);
            }
            63 if rules => {
                let name = names[rng.below(4) as usize];
                server.heads[head].switch(server.now, name, |r| *r).expect("the policy exists");
            }
            64 if rules => {
                let rules = ["start a uid={1-3} rate=300; start b opcode={ost_read} bytes=50M", ""];
                let rules = rules[rng.below(2) as usize];
                server.heads[head].set(server.now, "tbf_rules", rules).expect("the rules are right");
            }
            65 if rules => drop(server.heads[head].drain()),
            66 if rules => {
                assert!(
                    server.heads[head].record(server.now, 1 << 20, |r| *r),
                    "policies of the registry are recorded"
                );
            }
            67..90 => {
                let until = server.now + Duration::from_nanos(rng.below(4 * MS));
                server.pass(until, 1 + rng.below(2) * rng.below(MS));
            }
            _ => {}
        }
        server.poll();
    }
}

#[test]
fn in_no_window_of_time_do_the_heads_of_a_server_let_more_pass_than_one_rule_allows() {
    for seed in 1..=40 {
        let mut rng = Rng::named(seed, "shared buckets");
        let depth = 1 + rng.below(4);
        let rate = [50, 300, 1000][rng.below(3) as usize];
        let rules = format!("start a uid={{1-3}} rate={rate} depth={depth}");
        let heads = 2 + rng.below(4) as usize;
        let mut server = Server::new("tbf", heads, &rules, 1 + rng.below(8) as u32);
        server.service_ns.iter_mut().for_each(|ns| *ns = 1 + rng.below(5 * MS));
        steps(&mut server, &mut rng, false, 3000);
        for client in 1..=3 {
            assert!(server.served[&client].len() > 20, "seed {seed}");
            let excess = server.excess(client, 1_000_000_000 / rate, depth);
            assert!(excess.is_none(), "seed {seed}, rate {rate}, depth {depth}, {heads} heads: {excess:?}");
        }
    }
}

#[test]
fn heads_that_are_not_told_let_each_its_own_rate_pass() {
    let mut server = Server::new("tbf", 3, "start a uid={1} rate=100 depth=2", 4);
    server.tells = false;
    server.run(&[(0, 1, 4096), (1, 1, 4096), (2, 1, 4096)], Instant(2_000_000_000), 1);
    assert!(server.excess(1, 10 * MS, 2).is_some());
    assert!(server.served[&1].len() > 290);
}

#[test]
fn the_rate_of_a_server_is_reached_and_shared_evenly_by_its_heads_whoever_waits() {
    for (rules, bytes, per_s) in [
        ("start a uid={1} rate=100 depth=1", 4096, 100),
        ("start a uid={1} rate=100", 4096, 100),
        ("start a uid={1} rate=300 depth=2", 4096, 300),
        ("start a uid={1} bytes=100M", MIB as u32, 100),
        ("start a uid={1} bytes=100M depth=1", 4 * MIB as u32, 25),
    ] {
        for (heads, tick_ns) in [(2, 1), (3, 1), (4, MS), (3, 7 * MS)] {
            let mut server = Server::new("tbf", heads, rules, 4);
            // One is much faster than the others.
            server.service_ns[0] = 10_000;
            let senders: Vec<_> = (0..heads).map(|head| (head, 1, bytes)).collect();
            server.run(&senders, Instant(11_000_000_000), tick_ns);
            let counts: Vec<usize> = (0..heads).map(|head| server.count(1, head)).collect();
            let (sum, least, most) = (counts.iter().sum::<usize>(), counts.iter().min(), counts.iter().max());
            let (least, most) = (*least.expect("there are heads"), *most.expect("there are heads"));
            assert!(most - least <= 4, "{rules}, {heads} heads, ticks of {tick_ns} ns: {counts:?}");
            assert!(sum <= per_s * 10 + 3, "{rules}, {heads} heads, ticks of {tick_ns} ns: {counts:?}");
            if tick_ns == 1 {
                assert!(sum >= per_s * 10 - 1, "{rules}, {heads} heads: {counts:?}");
            }
        }
    }
}

#[test]
fn a_head_that_waits_alone_has_the_whole_rate() {
    for rules in ["start a uid={1} rate=100 depth=1", "start a uid={1} rate=100"] {
        let mut server = Server::new("tbf", 4, rules, 4);
        // For a while another one wants, too, and then nobody does.
        server.run(&[(0, 1, 4096), (2, 1, 4096)], Instant(2_000_000_000), 1);
        assert!(!server.heads[2].cancel(|_| true).is_empty());
        let before = server.count(1, 0);
        server.run(&[(0, 1, 4096)], Instant(12_000_000_000), 1);
        assert!(server.count(1, 0) - before >= 998, "{}", server.count(1, 0) - before);
    }
}

#[test]
fn a_head_that_is_busy_with_others_is_not_starved_by_one_that_is_idle() {
    for (rules, bytes) in [
        ("start a uid={1} rate=1000 depth=1; change default rate=1000000", 4096),
        ("start a uid={1} rate=1000; change default rate=1000000", 4096),
        ("start a uid={1} bytes=400M; change default rate=1000000", 4 * MIB as u32),
    ] {
        // Head 0 serves one request in 5 ms, of 100 clients in turn; head 1 has nothing to do but for client 1.
        let mut server = Server::new("tbf", 2, rules, 1);
        server.service_ns = vec![5 * MS, 10_000];
        let others = (2..=100).map(|client| (0, client, 4096));
        let senders: Vec<_> = others.chain([(0, 1, bytes), (1, 1, bytes)]).collect();
        server.run(&senders, Instant(21_000_000_000), 1);
        let (busy, idle, fair) = (server.count(1, 0), server.count(1, 1), server.count(50, 0));
        assert!(busy * 4 >= fair, "{rules}: {busy} there, {idle} at the idle head; others had {fair} each");
        assert!(busy > 5 && idle > busy, "{rules}: {busy} and {idle}");
    }
}

#[test]
fn each_heads_record_alone_gives_the_same_answers_again() {
    for seed in 1..=30 {
        let mut rng = Rng::named(seed, "shared records");
        let mut server = Server::new("tbf", 3, "start a uid={1-3} rate=400 depth=2", 2);
        for head in 0..3 {
            assert!(server.heads[head].record(server.now, 1 << 20, |r| *r));
        }
        steps(&mut server, &mut rng, true, 2000);
        let mut calls = 0;
        for head in &mut server.heads {
            let replayed = replay(&head.take_record().expect("it was recorded")).expect("it answers as it did");
            assert!(!replayed.truncated);
            calls += replayed.calls;
        }
        assert!(calls > 50, "seed {seed}: {calls}");
    }
}

#[test]
fn a_head_whose_policy_is_new_learns_what_the_others_took() {
    let mut server = Server::new("tbf", 2, "start a uid={1} rate=10 depth=1", 4);
    server.run(&[(0, 1, 4096), (1, 1, 4096)], Instant(3_000_000_000), 1);
    // Its buckets are full, as it believes: one request goes that should not.
    server.heads[1].switch(server.now, "deadline+tbf", |r| *r).expect("the policy exists");
    let from = server.served[&1].len();
    server.run(&[(0, 1, 64 * KIB as u32), (1, 1, 64 * KIB as u32)], Instant(6_000_000_000), 1);
    let gone = server.served[&1].len() - from;
    assert!((29..=31).contains(&gone), "{gone}");
}

/// The driver must not leave a head alone whose time comes nearer by what it is told.
#[test]
fn what_heads_are_told_wakes_them_in_time() {
    let mut rng = Rng::named(5, "wake");
    let mut server = Server::new("tbf", 4, "start a uid={1-3} rate=2000 depth=1", 2);
    server.service_ns = vec![10_000, MS, 20 * MS, 3 * MS];
    steps(&mut server, &mut rng, false, 6000);
    let until = server.now + Duration::from_secs(30);
    while server.heads.iter().any(|h| h.queued() > 0) && server.now < until {
        server.pass(until, 1);
    }
    assert!(server.heads.iter().all(|h: &Pipeline<NrsRequest>| h.queued() == 0), "something was left");
}
