//! fcntl and flock locks: single claims, and random calls compared with a model that looks at every byte.
#![allow(clippy::unwrap_used)] // a panic is how a test fails
use std::collections::{BTreeMap, BTreeSet};

use ldlm::{
    Action, DenyReason, FlockKind, FlockMirror, FlockMode, FlockOutcome, FlockRange, FlockRequest, LockCookie,
    Namespace, NamespaceConfig,
};
use proptest::prelude::*;
use types::{ClientId, Extent, Fid};

const FILE: Fid = Fid::new(0x2_0000_0401, 9);
const OTHER: Fid = Fid::new(0x2_0000_0401, 10);

struct Server {
    ns: Namespace,
    cookie: u64,
    out: Vec<Action>,
}

impl Server {
    fn new() -> Server {
        Server { ns: Namespace::new(NamespaceConfig::default()), cookie: 0, out: Vec::new() }
    }
    fn request(
        &mut self,
        fid: Fid,
        kind: FlockKind,
        owner: u64,
        mode: FlockMode,
        extent: Extent,
        wait: bool,
    ) -> FlockRequest {
        self.cookie += 1;
        // A kernel that unlocks names no process.
        let pid = if mode == Unlock { 0 } else { 1000 + owner as u32 };
        FlockRequest { fid, kind, owner, pid, mode, extent, wait, cookie: LockCookie(self.cookie) }
    }
    fn send(&mut self, client: u64, req: &FlockRequest) -> FlockOutcome {
        self.out.clear();
        let outcome = self.ns.flock_set(ClientId(client), req, &mut self.out);
        self.ns.check_invariants().unwrap();
        outcome
    }
    /// fcntl on FILE, not waiting.
    fn posix(&mut self, client: u64, owner: u64, mode: FlockMode, extent: Extent) -> FlockOutcome {
        let req = self.request(FILE, FlockKind::Posix, owner, mode, extent, false);
        self.send(client, &req)
    }
    fn posix_wait(&mut self, fid: Fid, client: u64, mode: FlockMode, extent: Extent) -> FlockOutcome {
        let req = self.request(fid, FlockKind::Posix, 1, mode, extent, true);
        self.send(client, &req)
    }
    fn flock(&mut self, client: u64, mode: FlockMode, wait: bool) -> FlockOutcome {
        let req = self.request(FILE, FlockKind::Flock, 1, mode, Extent::ALL, wait);
        self.send(client, &req)
    }
    fn granted(&self) -> Vec<u64> {
        let of = |a: &Action| if let Action::FlockGranted { client, .. } = a { Some(client.0) } else { None };
        self.out.iter().filter_map(of).collect()
    }
    fn ranges(&self) -> Vec<(u64, Extent, bool)> {
        self.ns.flocks().map(|r| (r.client.0, r.extent, r.exclusive)).collect()
    }
}

const BUSY: FlockOutcome = FlockOutcome::Denied(DenyReason::WouldBlock);
use FlockMode::{Exclusive, Shared, Unlock};
use FlockOutcome::{Granted, Waiting};

#[test]
fn unlocking_the_middle_splits_and_a_new_lock_joins_again() {
    let mut s = Server::new();
    assert_eq!(s.posix(1, 1, Exclusive, Extent::new(0, 100)), Granted);
    assert_eq!(s.posix(1, 1, Unlock, Extent::new(40, 60)), Granted);
    assert_eq!(s.ranges(), [(1, Extent::new(0, 40), true), (1, Extent::new(60, 100), true)]);
    assert_eq!(s.posix(2, 1, Exclusive, Extent::new(40, 60)), Granted);
    assert_eq!(s.posix(2, 1, Exclusive, Extent::new(40, 61)), BUSY);
    assert_eq!(s.posix(2, 1, Unlock, Extent::ALL), Granted);
    assert_eq!(s.posix(1, 1, Exclusive, Extent::new(40, 60)), Granted);
    assert_eq!(s.ranges(), [(1, Extent::new(0, 100), true)]);
    assert_eq!(s.posix(1, 1, Shared, Extent::new(10, 20)), Granted);
    assert_eq!(s.ranges().len(), 3, "a downgrade in the middle");
}

#[test]
fn owners_of_one_client_and_of_two_stand_against_each_other_alike() {
    let mut s = Server::new();
    assert_eq!(s.posix(1, 1, Exclusive, Extent::new(0, 10)), Granted);
    assert_eq!(s.posix(1, 2, Shared, Extent::new(9, 10)), BUSY);
    assert_eq!(s.posix(2, 1, Shared, Extent::new(9, 10)), BUSY);
    assert_eq!(s.posix(2, 1, Shared, Extent::from(10)), Granted);
}

#[test]
fn getlk_names_the_first_range_in_the_way() {
    let mut s = Server::new();
    s.posix(1, 1, Exclusive, Extent::new(50, 60));
    s.posix(2, 2, Shared, Extent::new(20, 30));
    let ask = s.request(FILE, FlockKind::Posix, 3, Exclusive, Extent::ALL, false);
    let (fid, kind) = (FILE, FlockKind::Posix);
    let first = FlockRange {
        fid,
        kind,
        client: ClientId(2),
        owner: 2,
        pid: 1002,
        extent: Extent::new(20, 30),
        exclusive: false,
    };
    assert_eq!(s.ns.flock_test(ClientId(3), &ask), Some(first));
    let ask = FlockRequest { mode: Shared, ..ask };
    assert_eq!(s.ns.flock_test(ClientId(3), &ask).unwrap().client, ClientId(1));
    let ask = FlockRequest { extent: Extent::new(0, 50), ..ask };
    assert_eq!(s.ns.flock_test(ClientId(3), &ask), None);
}

#[test]
fn who_gives_a_range_back_stays_the_holder_of_the_others() {
    let mut s = Server::new();
    let mut mirror = FlockMirror::new();
    for (mode, extent) in
        [(Exclusive, Extent::new(0, 100)), (Unlock, Extent::new(40, 60)), (Unlock, Extent::from(1000))]
    {
        let req = s.request(FILE, FlockKind::Posix, 7, mode, extent, false);
        assert_eq!(s.send(1, &req), Granted);
        mirror.on_granted(&req);
    }
    let ask = s.request(FILE, FlockKind::Posix, 3, Exclusive, Extent::from(50), false);
    assert_eq!(s.ns.flock_test(ClientId(2), &ask).unwrap().pid, 1007);
    assert!(mirror.for_replay(ClientId(1)).all(|r| r.pid == 1007), "and after a restart of the server");
}

#[test]
fn a_read_lock_succeeds_while_a_writer_waits_as_on_a_local_file() {
    let mut s = Server::new();
    assert_eq!(s.posix(1, 1, Shared, Extent::new(0, 10)), Granted);
    assert_eq!(s.posix_wait(FILE, 2, Exclusive, Extent::new(0, 10)), Waiting);
    assert_eq!(s.posix(3, 1, Shared, Extent::new(0, 10)), Granted);
    s.posix(1, 1, Unlock, Extent::ALL);
    assert!(s.granted().is_empty());
    s.posix(3, 1, Unlock, Extent::ALL);
    assert_eq!(s.granted(), [2]);
}

#[test]
fn two_readers_that_both_want_to_write_are_a_deadlock() {
    let mut s = Server::new();
    for client in [1, 2] {
        s.posix(client, 1, Shared, Extent::new(0, 10));
    }
    assert_eq!(s.posix_wait(FILE, 1, Exclusive, Extent::new(0, 10)), Waiting);
    assert_eq!(s.posix_wait(FILE, 2, Exclusive, Extent::new(0, 10)), FlockOutcome::Denied(DenyReason::Deadlock));
    s.posix(2, 1, Unlock, Extent::ALL);
    assert_eq!(s.granted(), [1]);
    assert_eq!(s.ranges(), [(1, Extent::new(0, 10), true)]);
}

#[test]
fn a_cycle_over_files_and_clients_is_found() {
    let mut s = Server::new();
    let third = Fid::new(0x2_0000_0401, 11);
    for (client, fid) in [(1, FILE), (2, OTHER), (3, third)] {
        assert_eq!(s.posix_wait(fid, client, Exclusive, Extent::ALL), Granted);
    }
    assert_eq!(s.posix_wait(OTHER, 1, Shared, Extent::new(5, 6)), Waiting);
    assert_eq!(s.posix_wait(third, 2, Shared, Extent::new(5, 6)), Waiting);
    assert_eq!(s.posix_wait(FILE, 3, Shared, Extent::new(5, 6)), FlockOutcome::Denied(DenyReason::Deadlock));
    assert_eq!(s.posix_wait(FILE, 4, Shared, Extent::new(5, 6)), Waiting, "waiting in line is no cycle");
}

/// An owner with two threads waits twice; when one wait ends, another owner finds itself waiting in a circle.
#[test]
fn a_cycle_that_a_grant_closes_is_found_too() {
    let mut s = Server::new();
    assert_eq!(s.posix_wait(FILE, 3, Exclusive, Extent::ALL), Granted);
    assert_eq!(s.posix_wait(OTHER, 2, Exclusive, Extent::ALL), Granted);
    assert_eq!(s.posix_wait(FILE, 1, Exclusive, Extent::ALL), Waiting);
    assert_eq!(s.posix_wait(FILE, 2, Exclusive, Extent::ALL), Waiting);
    let last = s.cookie;
    assert_eq!(s.posix_wait(OTHER, 1, Exclusive, Extent::ALL), Waiting, "1 waits for 2, 2 for 3: no circle yet");
    s.posix(3, 1, Unlock, Extent::ALL);
    let (client, cookie, reason) = (ClientId(2), LockCookie(last), DenyReason::Deadlock);
    assert_eq!(s.granted(), [1]);
    assert_eq!(s.out[1], Action::FlockDenied { client, cookie, reason });
}

#[test]
fn a_signal_ends_a_wait_and_a_late_one_changes_nothing() {
    let mut s = Server::new();
    s.posix(1, 1, Exclusive, Extent::ALL);
    let req = s.request(FILE, FlockKind::Posix, 1, Exclusive, Extent::ALL, true);
    assert_eq!(s.send(2, &req), Waiting);
    assert_eq!(s.send(2, &req), Waiting, "sent again");
    assert_eq!(s.ns.flock_waiters(), 1);
    assert!(s.ns.flock_cancel_wait(ClientId(2), req.cookie));
    assert!(!s.ns.flock_cancel_wait(ClientId(2), req.cookie));
    s.posix(1, 1, Unlock, Extent::ALL);
    assert!(s.granted().is_empty() && s.ranges().is_empty());
}

#[test]
fn closing_a_descriptor_drops_all_of_its_owner_and_of_no_other() {
    let mut s = Server::new();
    s.posix(1, 1, Exclusive, Extent::new(0, 10));
    s.posix(1, 1, Exclusive, Extent::new(20, 30));
    s.posix(1, 2, Exclusive, Extent::new(40, 50));
    assert_eq!(s.posix_wait(FILE, 3, Exclusive, Extent::new(5, 25)), Waiting);
    s.out.clear();
    s.ns.flock_drop_owner(ClientId(1), FILE, FlockKind::Posix, 1, &mut s.out);
    s.ns.check_invariants().unwrap();
    assert_eq!(s.granted(), [3]);
    assert_eq!(s.ranges(), [(1, Extent::new(40, 50), true), (3, Extent::new(5, 25), true)]);
}

#[test]
fn flock_and_fcntl_do_not_see_each_other() {
    let mut s = Server::new();
    assert_eq!(s.flock(1, Exclusive, false), Granted);
    assert_eq!(s.posix(2, 1, Exclusive, Extent::ALL), Granted);
    assert_eq!(s.flock(2, Shared, false), BUSY);
}

#[test]
fn converting_a_flock_gives_up_the_old_lock_first() {
    let mut s = Server::new();
    assert_eq!(s.flock(1, Shared, false), Granted);
    assert_eq!(s.flock(2, Shared, false), Granted);
    assert_eq!(s.flock(1, Exclusive, false), BUSY);
    assert_eq!(s.ranges(), [(2, Extent::ALL, false)], "as flock(2) says, the old lock is lost");
    assert_eq!(s.flock(1, Exclusive, true), Waiting);
    assert_eq!(s.flock(2, Exclusive, true), Waiting, "no deadlock detection; 1 goes first");
    assert_eq!(s.granted(), [1]);
    s.flock(1, Unlock, false);
    assert_eq!(s.granted(), [2]);
}

#[test]
fn eviction_drops_flocks_and_wakes_their_waiters() {
    let mut s = Server::new();
    s.posix(1, 1, Exclusive, Extent::ALL);
    s.flock(1, Exclusive, false);
    assert_eq!(s.posix_wait(FILE, 2, Shared, Extent::ALL), Waiting);
    assert_eq!(s.flock(3, Shared, true), Waiting);
    s.out.clear();
    assert_eq!(s.ns.evict(types::Instant::ZERO, ClientId(1), &mut s.out).flocks, 2);
    assert_eq!(s.granted(), [2, 3]);
    s.ns.check_invariants().unwrap();
}

#[test]
fn a_range_table_that_is_full_refuses() {
    let mut s =
        Server { ns: Namespace::new(NamespaceConfig { flocks_max: 2, ..NamespaceConfig::default() }), ..Server::new() };
    assert_eq!(s.posix(1, 1, Exclusive, Extent::new(0, 1)), Granted);
    assert_eq!(s.posix(1, 1, Exclusive, Extent::new(2, 3)), Granted);
    assert_eq!(s.posix(1, 1, Exclusive, Extent::new(4, 5)), FlockOutcome::Denied(DenyReason::NoLocks));
    assert_eq!(s.posix(1, 1, Unlock, Extent::new(0, 1)), Granted);
    assert_eq!(s.ns.stats().limit_hits, 1);
    // One client does not take the others' part, by what it holds or by what it waits for, and has its own back after a restart.
    let config = || NamespaceConfig { flocks_max: 8, flocks_of_client_max: 2, ..NamespaceConfig::default() };
    let mut s = Server { ns: Namespace::new(config()), ..Server::new() };
    let full = FlockOutcome::Denied(DenyReason::NoLocks);
    let byte = |at: u64| Extent::new(at, at + 1);
    let taken: Vec<FlockOutcome> = (0..4).map(|n| s.posix(1, n, Exclusive, byte(2 * n))).collect();
    assert_eq!(taken, [Granted, Granted, full, full]);
    assert_eq!(s.posix(1, 0, Exclusive, byte(2)), BUSY, "what another owner holds is not for want of room");
    assert_eq!(s.posix_wait(FILE, 1, Exclusive, byte(0)), full, "it would hold three");
    assert_eq!((s.posix(2, 1, Exclusive, byte(4)), s.posix(2, 1, Exclusive, byte(6))), (Granted, Granted));
    let waits: Vec<FlockOutcome> = [0, 2, 0].map(|at| s.posix_wait(FILE, 3, Exclusive, byte(at))).to_vec();
    assert_eq!(waits, [Waiting, Waiting, full]);
    assert_eq!(s.posix_wait(FILE, 4, Exclusive, byte(0)), Waiting);
    let held: Vec<FlockRange> = s.ns.flocks().collect();
    let narrow = NamespaceConfig { flocks_of_client_max: 1, ..config() };
    let mut s = Server { ns: Namespace::new(narrow), ..Server::new() };
    for range in &held {
        assert_eq!(s.ns.flock_replay(range.client, range), Ok(()));
    }
    assert_eq!(s.ns.flocks().collect::<Vec<_>>(), held);
    assert_eq!(s.posix(1, 5, Exclusive, byte(9)), full);
    assert_eq!((s.posix(1, 0, Unlock, Extent::ALL), s.posix(1, 1, Unlock, Extent::ALL)), (Granted, Granted));
    assert_eq!(s.posix(1, 5, Exclusive, byte(9)), Granted);
}

#[test]
fn an_unlock_that_splits_is_refused_where_there_is_no_room_and_any_other_is_not() {
    let mut s =
        Server { ns: Namespace::new(NamespaceConfig { flocks_max: 2, ..NamespaceConfig::default() }), ..Server::new() };
    let full = FlockOutcome::Denied(DenyReason::NoLocks);
    assert_eq!(s.posix(1, 1, Exclusive, Extent::new(0, 9)), Granted);
    assert_eq!(s.posix(1, 1, Unlock, Extent::new(4, 5)), Granted, "there is room for two");
    assert_eq!(s.posix(1, 1, Unlock, Extent::new(1, 2)), full);
    let held = [(1, Extent::new(0, 4), true), (1, Extent::new(5, 9), true)];
    assert_eq!((s.ranges(), s.ns.stats().limit_hits), (held.to_vec(), 1));
    // What does not grow goes through: a shorter range, one of the other kind, nothing that is held.
    assert_eq!(s.posix(1, 1, Unlock, Extent::new(0, 1)), Granted);
    assert_eq!(s.posix(1, 1, Shared, Extent::new(1, 4)), Granted);
    assert_eq!(s.posix(1, 1, Shared, Extent::new(2, 3)), Granted);
    assert_eq!(s.posix(1, 1, Exclusive, Extent::new(2, 3)), full);
    assert_eq!(s.posix(2, 1, Unlock, Extent::new(2, 3)), Granted);
    assert_eq!(s.ranges(), [(1, Extent::new(1, 4), false), (1, Extent::new(5, 9), true)]);
    assert_eq!(s.posix(1, 1, Unlock, Extent::new(4, 6)), Granted);
    s.ns.flock_drop_owner(ClientId(1), FILE, FlockKind::Posix, 1, &mut s.out);
    assert_eq!(s.ranges(), []);
}

#[test]
fn all_that_was_granted_is_taken_back_in_a_replay_whatever_room_there_is() {
    let mut s =
        Server { ns: Namespace::new(NamespaceConfig { flocks_max: 2, ..NamespaceConfig::default() }), ..Server::new() };
    for at in [0, 2, 4] {
        let (client, extent) = (ClientId(1), Extent::new(at, at + 1));
        let range = FlockRange { fid: FILE, kind: FlockKind::Posix, client, owner: 1, pid: 7, extent, exclusive: true };
        assert_eq!(s.ns.flock_replay(client, &range), Ok(()));
    }
    assert_eq!(s.ranges().len(), 3);
    assert_eq!(s.posix(2, 1, Exclusive, Extent::new(4, 5)), BUSY);
    assert_eq!(s.posix(2, 1, Exclusive, Extent::new(6, 7)), FlockOutcome::Denied(DenyReason::NoLocks));
}

/// (client, owner): who.
type Who = (u64, u64);

/// Every byte by itself, every question answered by looking at everything.
#[derive(Default)]
struct Naive {
    bytes: BTreeMap<(Fid, u64, Who), bool>,
    waiting: Vec<(u64, FlockRequest)>,
}

const BYTES: u64 = 24;

impl Naive {
    fn holders(&self, who: Who, r: &FlockRequest) -> BTreeSet<Who> {
        let against = |((fid, byte, other), exclusive): (&(Fid, u64, Who), &bool)| {
            let hit = *fid == r.fid && r.extent.contains_offset(*byte) && *other != who;
            (hit && (*exclusive || r.mode == Exclusive)).then_some(*other)
        };
        self.bytes.iter().filter_map(against).collect()
    }
    fn put(&mut self, who: Who, r: &FlockRequest) {
        for byte in r.extent.start..r.extent.end.min(BYTES) {
            match r.mode {
                Unlock => self.bytes.remove(&(r.fid, byte, who)),
                mode => self.bytes.insert((r.fid, byte, who), mode == Exclusive),
            };
        }
    }
    fn cycle(&self, who: Who, r: &FlockRequest) -> bool {
        let mut reach = self.holders(who, r);
        loop {
            let next: BTreeSet<Who> = self
                .waiting
                .iter()
                .filter(|(c, w)| reach.contains(&(*c, w.owner)))
                .flat_map(|(c, w)| self.holders((*c, w.owner), w))
                .collect();
            let before = reach.len();
            reach.extend(next);
            if reach.len() == before {
                return reach.contains(&who);
            }
        }
    }
    fn call(&mut self, client: u64, r: &FlockRequest) -> FlockOutcome {
        let who = (client, r.owner);
        if r.mode != Unlock && !self.holders(who, r).is_empty() {
            if !r.wait {
                return BUSY;
            }
            if self.cycle(who, r) {
                return FlockOutcome::Denied(DenyReason::Deadlock);
            }
            self.waiting.push((client, *r));
            return Waiting;
        }
        self.put(who, r);
        Granted
    }
    /// Grants whoever can go, oldest first; then refuses whoever waits for itself now.
    fn settle(&mut self, fid: Fid) -> (Vec<LockCookie>, Vec<LockCookie>) {
        let (mut granted, mut refused) = (Vec::new(), Vec::new());
        while let Some(i) =
            self.waiting.iter().position(|(c, w)| w.fid == fid && self.holders((*c, w.owner), w).is_empty())
        {
            let (client, w) = self.waiting.remove(i);
            self.put((client, w.owner), &w);
            granted.push(w.cookie);
        }
        if !granted.is_empty() {
            let here: Vec<(u64, FlockRequest)> = self.waiting.iter().filter(|(_, w)| w.fid == fid).copied().collect();
            for (client, w) in here {
                if self.cycle((client, w.owner), &w) {
                    self.waiting.retain(|(_, x)| x.cookie != w.cookie);
                    refused.push(w.cookie);
                }
            }
        }
        (granted, refused)
    }
    fn show(&self) -> BTreeMap<(Fid, u64, Who), bool> {
        self.bytes.clone()
    }
}

fn shown(ns: &Namespace) -> BTreeMap<(Fid, u64, Who), bool> {
    let mut map = BTreeMap::new();
    for r in ns.flocks() {
        assert_eq!(u64::from(r.pid), 1000 + r.owner, "the process that locked it: {r:?}");
        for byte in r.extent.start..r.extent.end.min(BYTES) {
            map.insert((r.fid, byte, (r.client.0, r.owner)), r.exclusive);
        }
    }
    map
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn fcntl_answers_as_a_model_of_single_bytes_does(
        calls in prop::collection::vec((1u64..4, 1u64..3, 0u64..BYTES, 1u64..10, 0u8..12, any::<bool>()), 1..120)
    ) {
        let mut s = Server::new();
        let mut naive = Naive::default();
        let mut mirrors: BTreeMap<u64, FlockMirror> = BTreeMap::new();
        let mut sent: BTreeMap<LockCookie, (u64, FlockRequest)> = BTreeMap::new();
        for (client, owner, start, len, op, file) in calls {
            let fid = if file { FILE } else { OTHER };
            if op == 11 {
                // A signal for the oldest wait of this client.
                let Some(i) = naive.waiting.iter().position(|(c, _)| *c == client) else { continue };
                let (_, w) = naive.waiting.remove(i);
                prop_assert!(s.ns.flock_cancel_wait(ClientId(client), w.cookie));
                continue;
            }
            // One thread per owner: who waits does nothing else; an unlock stands for its death.
            let waits = naive.waiting.iter().any(|(c, w)| (*c, w.owner) == (client, owner));
            if op == 10 {
                naive.waiting.retain(|(c, w)| (*c, w.owner, w.fid) != (client, owner, fid));
                naive.bytes.retain(|(f, _, who), _| (*f, *who) != (fid, (client, owner)));
                s.out.clear();
                s.ns.flock_drop_owner(ClientId(client), fid, FlockKind::Posix, owner, &mut s.out);
                mirrors.entry(client).or_default().on_closed(fid, FlockKind::Posix, owner);
            } else if waits {
                continue;
            } else {
                let mode = [Unlock, Shared, Exclusive][usize::from(op % 3)];
                // The model ends at BYTES: whatever reaches it goes to the end of the file.
                let extent = if op == 9 || start + len >= BYTES { Extent::from(start) } else { Extent::at(start, len) };
                let req = s.request(fid, FlockKind::Posix, owner, mode, extent, op > 3);
                sent.insert(req.cookie, (client, req));
                let expected = naive.call(client, &req);
                prop_assert_eq!(s.send(client, &req), expected);
                if expected == Granted {
                    mirrors.entry(client).or_default().on_granted(&req);
                }
            }
            let (granted, refused) = naive.settle(fid);
            let got: Vec<LockCookie> = s.out.iter().filter_map(|a| if let Action::FlockGranted { cookie, .. } = a { Some(*cookie) } else { None }).collect();
            let denied: Vec<LockCookie> = s.out.iter().filter_map(|a| if let Action::FlockDenied { cookie, .. } = a { Some(*cookie) } else { None }).collect();
            prop_assert_eq!(&got, &granted);
            prop_assert_eq!(denied, refused);
            for cookie in granted {
                let (client, req) = sent[&cookie];
                mirrors.entry(client).or_default().on_granted(&req);
            }
            prop_assert_eq!(shown(&s.ns), naive.show());
            prop_assert_eq!(s.ns.flock_waiters(), naive.waiting.len());
            s.ns.check_invariants().unwrap();
        }
        // A fresh server that gets the clients' mirrors replayed holds the same ranges.
        let mut fresh = Namespace::new(NamespaceConfig::default());
        for (client, mirror) in &mirrors {
            for range in mirror.for_replay(ClientId(*client)) {
                prop_assert_eq!(fresh.flock_replay(ClientId(*client), &range), Ok(()));
            }
        }
        prop_assert_eq!(fresh.flocks().collect::<Vec<_>>(), s.ns.flocks().collect::<Vec<_>>());
    }
}

#[test]
fn a_process_that_waits_for_itself_through_another_client_of_its_host_is_refused() {
    let mut s = Server::new();
    let call = |s: &mut Server, fid, owner, pid, mode| FlockRequest {
        pid,
        ..s.request(fid, FlockKind::Posix, owner, mode, Extent::ALL, true)
    };
    // Clients 1 and 2 are mounts of one host, 3 is on another, of 4 nothing is known.
    for (client, host) in [(1, 77), (2, 77), (3, 78), (4, 0)] {
        s.ns.flock_host(ClientId(client), host);
    }
    let (p, q) = (500, 600);
    let a = call(&mut s, FILE, 10, p, Exclusive);
    assert_eq!(s.send(1, &a), Granted);
    // The same process through the other mount, on the same file: nobody else could ever give it back.
    let again = call(&mut s, FILE, 20, p, Exclusive);
    assert_eq!(s.send(2, &again), FlockOutcome::Denied(DenyReason::Deadlock));
    // A mount that died gives its locks back with its eviction: the process waits for that.
    s.ns.flock_away(ClientId(2), |c| c == ClientId(1));
    let later = call(&mut s, FILE, 20, p, Exclusive);
    assert_eq!(s.send(2, &later), Waiting);
    assert!(s.ns.flock_cancel_wait(ClientId(2), later.cookie));
    s.ns.flock_away(ClientId(2), |_| false);
    // The same number elsewhere is another process.
    for client in [3, 4] {
        let other = call(&mut s, FILE, 20, p, Exclusive);
        assert_eq!(s.send(client, &other), Waiting);
        assert!(s.ns.flock_cancel_wait(ClientId(client), other.cookie));
    }
    // Two owners of one process at one client: open file descriptions with locks of their own.
    let own = call(&mut s, FILE, 11, p, Exclusive);
    assert_eq!(s.send(1, &own), Waiting);
    assert!(s.ns.flock_cancel_wait(ClientId(1), own.cookie));
    // Two processes that each hold through one mount and wait through the other.
    let b = call(&mut s, OTHER, 21, q, Exclusive);
    assert_eq!(s.send(2, &b), Granted);
    let p_waits = call(&mut s, OTHER, 20, p, Exclusive);
    assert_eq!(s.send(2, &p_waits), Waiting);
    let q_waits = call(&mut s, FILE, 12, q, Exclusive);
    assert_eq!(s.send(1, &q_waits), FlockOutcome::Denied(DenyReason::Deadlock));
    // When the first is gone it is no deadlock any more.
    s.out.clear();
    s.ns.evict(types::Instant::default(), ClientId(2), &mut s.out);
    s.ns.check_invariants().unwrap();
    let q_waits = call(&mut s, FILE, 12, q, Exclusive);
    assert_eq!(s.send(1, &q_waits), Waiting);
}
