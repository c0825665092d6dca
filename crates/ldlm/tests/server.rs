//! Claims about the server's namespace, one test each.
#![allow(clippy::unwrap_used)] // a panic is how a test fails
use ldlm::{
    Action, DenyReason, EnqueueFlags, EnqueueOutcome, EnqueueRequest, InodeBits, LOCAL, LockCookie, LockDesc, LockMode,
    LockPolicyData, LockReplay, Namespace, NamespaceConfig, ResourceId,
};
use types::{ClientId, Duration, Extent, Fid, HandleId, Instant, KIB, MIB};

const OBJECT: ResourceId = ResourceId::extent(Fid::new(0x2_4000_0401, 7));
const INODE: ResourceId = ResourceId::inode(Fid::new(0x2_0000_0401, 7));

/// A namespace with a clock and a cookie counter; checks invariants after each call.
struct Server {
    ns: Namespace,
    now: Instant,
    cookie: u64,
    out: Vec<Action>,
}

impl Server {
    fn new() -> Server {
        Server::with(NamespaceConfig::default())
    }
    fn with(config: NamespaceConfig) -> Server {
        Server { ns: Namespace::new(config), now: Instant::ZERO, cookie: 0, out: Vec::new() }
    }
    fn request(&mut self, resource: ResourceId, mode: LockMode, data: LockPolicyData) -> EnqueueRequest {
        self.cookie += 1;
        EnqueueRequest::new(LockCookie(self.cookie), resource, mode, data)
    }
    fn send(&mut self, client: u64, req: &EnqueueRequest) -> EnqueueOutcome {
        self.out.clear();
        let outcome = self.ns.enqueue(self.now, ClientId(client), req, &mut self.out);
        self.ns.check_invariants().unwrap();
        outcome
    }
    fn extent(&mut self, client: u64, mode: LockMode, extent: Extent) -> EnqueueOutcome {
        let req = self.request(OBJECT, mode, LockPolicyData::extent(extent));
        self.send(client, &req)
    }
    fn bits(&mut self, client: u64, mode: LockMode, bits: InodeBits) -> EnqueueOutcome {
        let req = self.request(INODE, mode, LockPolicyData::bits(bits));
        self.send(client, &req)
    }
    fn cancel(&mut self, client: u64, handle: HandleId) -> bool {
        self.out.clear();
        let done = self.ns.cancel(self.now, ClientId(client), handle, &mut self.out);
        self.ns.check_invariants().unwrap();
        done
    }
    fn evict(&mut self, client: u64) -> ldlm::Evicted {
        self.out.clear();
        let gone = self.ns.evict(self.now, ClientId(client), &mut self.out);
        self.ns.check_invariants().unwrap();
        gone
    }
    fn called_back(&self) -> Vec<u64> {
        let blocking = |a: &Action| if let Action::SendBlocking { client, .. } = a { Some(client.0) } else { None };
        self.out.iter().filter_map(blocking).collect()
    }
    fn completed(&self) -> Vec<(u64, LockDesc)> {
        let done =
            |a: &Action| if let Action::SendCompletion { client, lock } = a { Some((client.0, *lock)) } else { None };
        self.out.iter().filter_map(done).collect()
    }
}

fn granted(outcome: EnqueueOutcome) -> LockDesc {
    let EnqueueOutcome::Granted(lock) = outcome else { panic!("{outcome:?}") };
    lock
}
fn waiting(outcome: EnqueueOutcome) -> HandleId {
    let EnqueueOutcome::Waiting(handle) = outcome else { panic!("{outcome:?}") };
    handle
}
fn bytes(lock: &LockDesc) -> Extent {
    lock.data.as_extent().unwrap()
}

#[test]
fn a_lone_client_gets_the_whole_object() {
    let mut s = Server::new();
    let lock = granted(s.extent(1, LockMode::Pw, Extent::new(MIB, MIB + 1)));
    assert_eq!(bytes(&lock), Extent::ALL);
}

#[test]
fn a_lock_grows_to_its_neighbours_and_not_a_byte_further() {
    let mut s = Server::new();
    for (client, e) in [(1, Extent::new(0, 10)), (2, Extent::new(100, 110))] {
        let req = s.request(OBJECT, LockMode::Pw, LockPolicyData::extent(e)).flags(EnqueueFlags::NO_EXPAND);
        assert_eq!(bytes(&granted(s.send(client, &req))), e, "a request that must not grow is granted as asked");
    }
    let lock = granted(s.extent(3, LockMode::Pw, Extent::new(50, 60)));
    assert_eq!(bytes(&lock), Extent::new(10, 100));
    assert!(s.out.is_empty());
}

#[test]
fn read_locks_grow_over_each_other() {
    let mut s = Server::new();
    for client in 1..20 {
        assert_eq!(bytes(&granted(s.extent(client, LockMode::Pr, Extent::at(client * 10, 5)))), Extent::ALL);
    }
}

#[test]
fn a_grant_does_not_grow_over_a_waiting_request() {
    let mut s = Server::new();
    let first = granted(s.extent(1, LockMode::Pw, Extent::new(0, 10)));
    waiting(s.extent(2, LockMode::Pw, Extent::new(0, 10)));
    assert_eq!(s.called_back(), [1]);
    waiting(s.extent(3, LockMode::Pw, Extent::new(50, 60)));
    assert_eq!(s.called_back(), [] as [u64; 0], "a callback is sent once");
    s.cancel(1, first.handle);
    let done = s.completed();
    assert_eq!((done[0].0, bytes(&done[0].1)), (2, Extent::new(0, 50)));
    assert_eq!((done[1].0, bytes(&done[1].1)), (3, Extent::from(50)));
}

/// Two clients write every second record of a file in turns; each gives its lock back when asked.
#[test]
fn strided_writers_end_with_disjoint_locks_and_no_callbacks() {
    let mut s = Server::new();
    let mut late_callbacks = 0;
    for record in 0..200u64 {
        let client = 1 + record % 2;
        let mut outcome = s.extent(client, LockMode::Pw, Extent::at(record * 64 * KIB, 64 * KIB));
        if let EnqueueOutcome::Waiting(_) = outcome {
            let holders: Vec<(u64, HandleId)> = s
                .out
                .iter()
                .map(|a| match a {
                    Action::SendBlocking { client, lock, .. } => (client.0, lock.handle),
                    other => panic!("{other:?}"),
                })
                .collect();
            late_callbacks += if record >= 100 { holders.len() } else { 0 };
            for (holder, handle) in holders {
                s.cancel(holder, handle);
            }
            let done = s.completed();
            assert_eq!(done.len(), 1);
            outcome = EnqueueOutcome::Granted(done[0].1);
        }
        granted(outcome);
    }
    assert_eq!(late_callbacks, 0, "a hot object's locks are exact");
    assert!(s.ns.stats().callbacks < 60, "{:?}", s.ns.stats());
}

#[test]
fn width_returns_when_contention_is_over() {
    let config = NamespaceConfig { contended_conflicts: 1, hot_conflicts: 2, ..NamespaceConfig::default() };
    let mut s = Server::with(config);
    let keep = granted(s.extent(9, LockMode::Nl, Extent::new(0, 1)));
    let fight = |s: &mut Server, n: u32| {
        let mut lock = granted(s.extent(1, LockMode::Pw, Extent::new(MIB, MIB + 10)));
        for i in 0..n {
            let (old, new) = (1 + u64::from(i % 2), 2 - u64::from(i % 2));
            waiting(s.extent(new, LockMode::Pw, Extent::new(MIB, MIB + 10)));
            s.cancel(old, lock.handle);
            lock = s.completed()[0].1;
        }
        s.cancel(1 + u64::from(n % 2), lock.handle);
        bytes(&lock)
    };
    assert_eq!(fight(&mut s, 1), Extent::new(MIB, 33 * MIB + 4096), "contended: 32 MiB on, aligned out");
    assert_eq!(fight(&mut s, 1), Extent::new(MIB, MIB + 4096), "hot: the request, aligned out");
    s.now = s.now + Duration::from_secs(20);
    assert_eq!(bytes(&granted(s.extent(1, LockMode::Pw, Extent::new(MIB, MIB + 10)))), Extent::ALL);
    assert!(s.cancel(9, keep.handle));
}

#[test]
fn a_stream_of_readers_does_not_starve_a_writer() {
    let mut s = Server::new();
    let first = granted(s.extent(1, LockMode::Pr, Extent::new(0, 10)));
    let writer = waiting(s.extent(2, LockMode::Pw, Extent::new(0, 10)));
    for reader in 3..10 {
        waiting(s.extent(reader, LockMode::Pr, Extent::new(0, 10)));
    }
    s.cancel(1, first.handle);
    assert_eq!(s.completed().iter().map(|(c, _)| *c).collect::<Vec<_>>(), [2]);
    assert_eq!(s.called_back(), [2], "granted with others in wait: called back at once");
    s.cancel(2, writer);
    assert_eq!(s.completed().iter().map(|(c, _)| *c).collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn a_waiter_elsewhere_in_the_object_does_not_hold_up_a_request() {
    let mut s = Server::new();
    let exact = |s: &mut Server, client, e| {
        let req = s.request(OBJECT, LockMode::Pw, LockPolicyData::extent(e)).flags(EnqueueFlags::NO_EXPAND);
        s.send(client, &req)
    };
    granted(exact(&mut s, 1, Extent::new(0, 10)));
    waiting(exact(&mut s, 2, Extent::new(0, 20)));
    granted(exact(&mut s, 3, Extent::new(20, 30)));
    waiting(exact(&mut s, 3, Extent::new(15, 18)));
}

#[test]
fn nowait_and_test_change_nothing_and_call_nobody_back() {
    let mut s = Server::new();
    granted(s.extent(1, LockMode::Pw, Extent::new(0, 10)));
    let before = s.ns.len();
    for flag in [EnqueueFlags::NOWAIT, EnqueueFlags::TEST] {
        let req = s.request(OBJECT, LockMode::Pr, LockPolicyData::extent(Extent::new(0, 1))).flags(flag);
        assert_eq!(s.send(2, &req), EnqueueOutcome::Denied(DenyReason::WouldBlock));
    }
    let req = s.request(INODE, LockMode::Pr, LockPolicyData::bits(InodeBits::LOOKUP)).flags(EnqueueFlags::TEST);
    assert_eq!(granted(s.send(2, &req)).handle, HandleId(0));
    assert!(s.ns.len() == before && s.out.is_empty());
}

#[test]
fn a_glimpse_asks_each_writer_once_and_never_waits() {
    let mut s = Server::new();
    for (client, start) in [(1, 0), (1, 100), (2, 200), (3, 300)] {
        let req = s.request(OBJECT, LockMode::Pw, LockPolicyData::extent(Extent::at(start, 50)));
        granted(s.send(client, &req.flags(EnqueueFlags::NO_EXPAND)));
    }
    let wish = LockPolicyData::extent(Extent::ALL);
    let req = s.request(OBJECT, LockMode::Pr, wish).flags(EnqueueFlags::GLIMPSE);
    assert_eq!(s.send(3, &req), EnqueueOutcome::Denied(DenyReason::Glimpse { asked: 2 }));
    let asked: Vec<(u64, u64)> = s
        .out
        .iter()
        .map(|a| match a {
            Action::SendGlimpse { client, lock } => (client.0, bytes(lock).start),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(asked, [(1, 100), (2, 200)], "the highest lock of each other writer");
    s.out.clear();
    assert_eq!(s.ns.glimpse(ClientId(4), OBJECT, 220, &mut s.out), 2, "only who may write past the known size");
    let free = ResourceId::extent(Fid::new(0x2_4000_0401, 8));
    let req = s.request(free, LockMode::Pr, wish).flags(EnqueueFlags::GLIMPSE);
    granted(s.send(3, &req));
}

#[test]
fn group_locks_are_shared_within_a_group_only() {
    let mut s = Server::new();
    let group = |s: &mut Server, client, gid| {
        let req = s.request(OBJECT, LockMode::Group, LockPolicyData::group(gid));
        s.send(client, &req)
    };
    let a = granted(group(&mut s, 1, 7));
    let b = granted(group(&mut s, 2, 7));
    waiting(group(&mut s, 3, 8));
    waiting(s.extent(4, LockMode::Pr, Extent::new(0, 1)));
    waiting(group(&mut s, 5, 7));
    s.cancel(1, a.handle);
    assert!(s.completed().is_empty());
    s.cancel(2, b.handle);
    assert_eq!(s.completed().iter().map(|(c, _)| *c).collect::<Vec<_>>(), [3]);
}

#[test]
fn inode_bits_conflict_between_clients_bit_by_bit() {
    let mut s = Server::new();
    let (lookup, update) = (InodeBits::LOOKUP, InodeBits::UPDATE);
    for client in 1..=3 {
        granted(s.bits(client, LockMode::Pr, lookup | update));
    }
    granted(s.bits(4, LockMode::Ex, InodeBits::XATTR));
    waiting(s.bits(1, LockMode::Ex, update));
    assert_eq!(s.called_back(), [2, 3], "its own lock is not in its way");
}

#[test]
fn an_operation_on_behalf_of_a_client_does_not_call_that_client_back() {
    let mut s = Server::new();
    granted(s.bits(1, LockMode::Pr, InodeBits::UPDATE));
    let req = s.request(INODE, LockMode::Ex, LockPolicyData::bits(InodeBits::UPDATE)).on_behalf(ClientId(1));
    let op = granted(s.send(0, &req));
    let second = s.request(INODE, LockMode::Ex, LockPolicyData::bits(InodeBits::UPDATE)).on_behalf(ClientId(1));
    let next = waiting(s.send(0, &second));
    assert!(s.out.is_empty(), "server operations are not called back: {:?}", s.out);
    assert_eq!(s.ns.next_deadline(), None);
    s.out.clear();
    assert!(s.ns.cancel(s.now, LOCAL, op.handle, &mut s.out));
    assert_eq!(s.completed(), [(0, s.ns.granted(LOCAL, next).unwrap())]);
}

#[test]
fn what_a_client_needs_done_to_give_its_lock_back_waits_for_nobody_who_waits_for_that_lock() {
    let mut s = Server::new();
    let bits = LockPolicyData::bits;
    let held = granted(s.bits(1, LockMode::Pr, InodeBits::OPEN | InodeBits::DATA));
    let wish = s.request(INODE, LockMode::Ex, bits(InodeBits::OPEN | InodeBits::DATA)).on_behalf(ClientId(2));
    let waits = waiting(s.send(0, &wish));
    assert_eq!(s.called_back(), [1]);
    s.out.clear();
    let other = s.request(INODE, LockMode::Ex, bits(InodeBits::DATA)).on_behalf(ClientId(3));
    let other = waiting(s.send(0, &other));
    // Client 1 opens the file for writing at the server before its lock on it goes.
    let needed = s.request(INODE, LockMode::Ex, bits(InodeBits::DATA)).on_behalf(ClientId(1));
    let needed = granted(s.send(0, &needed));
    s.ns.check_invariants().unwrap();
    s.cancel(1, held.handle);
    assert!(s.completed().is_empty(), "it is still at work");
    assert!(s.ns.cancel(s.now, LOCAL, needed.handle, &mut s.out));
    s.ns.check_invariants().unwrap();
    assert_eq!(s.completed().iter().map(|(_, d)| d.handle).collect::<Vec<_>>(), [waits], "in their order");
    s.out.clear();
    // Nobody calls client 1 back any more: it has its turn.
    let later = s.request(INODE, LockMode::Ex, bits(InodeBits::DATA)).on_behalf(ClientId(1));
    waiting(s.send(0, &later));
    assert!(s.ns.cancel(s.now, LOCAL, waits, &mut s.out));
    assert_eq!(s.completed().iter().map(|(_, d)| d.handle).collect::<Vec<_>>(), [other]);
}

#[test]
fn giving_up_some_bits_lets_the_waiter_in_and_keeps_the_rest() {
    let mut s = Server::new();
    let (lookup, update) = (InodeBits::LOOKUP, InodeBits::UPDATE);
    let held = granted(s.bits(1, LockMode::Pr, lookup | update));
    waiting(s.bits(2, LockMode::Ex, update));
    waiting(s.bits(3, LockMode::Ex, lookup));
    assert!(s.called_back().is_empty(), "one callback is out already");
    s.out.clear();
    assert!(s.ns.narrow(s.now, ClientId(1), held.handle, lookup, &mut s.out));
    s.ns.check_invariants().unwrap();
    assert_eq!(s.completed().iter().map(|(c, _)| *c).collect::<Vec<_>>(), [2]);
    assert_eq!(s.called_back(), [1], "what is left is wanted too");
    s.out.clear();
    assert!(s.ns.narrow(s.now, ClientId(1), held.handle, update, &mut s.out), "nothing left: a cancel");
    assert_eq!(s.completed().iter().map(|(c, _)| *c).collect::<Vec<_>>(), [3]);
    assert!(!s.ns.narrow(s.now, ClientId(1), held.handle, lookup, &mut s.out));
}

#[test]
fn a_conversion_to_more_is_granted_only_when_nobody_objects() {
    let mut s = Server::new();
    let (a, b) = (
        granted(s.extent(1, LockMode::Pr, Extent::new(0, 10))),
        granted(s.extent(2, LockMode::Pr, Extent::new(0, 10))),
    );
    let whole = LockPolicyData::extent(Extent::ALL);
    let mut out = Vec::new();
    let up = s.ns.convert(s.now, ClientId(1), a.handle, LockMode::Pw, whole, &mut out);
    assert_eq!(up, Err(DenyReason::WouldBlock));
    assert_eq!(s.ns.granted(ClientId(1), a.handle), Some(a), "the lock is as it was");
    s.cancel(2, b.handle);
    let up = s.ns.convert(s.now, ClientId(1), a.handle, LockMode::Pw, whole, &mut out).unwrap();
    assert_eq!(up.mode, LockMode::Pw);
    let reader = waiting(s.extent(2, LockMode::Pr, Extent::new(0, 10)));
    assert_eq!(s.called_back(), [1]);
    s.out.clear();
    s.ns.convert(s.now, ClientId(1), a.handle, LockMode::Pr, whole, &mut s.out).unwrap();
    s.ns.check_invariants().unwrap();
    assert_eq!(s.completed()[0].1.handle, reader);
    assert_eq!(s.ns.next_deadline(), None, "the callback is answered");
    assert_eq!(s.ns.convert(s.now, ClientId(2), a.handle, LockMode::Pr, whole, &mut out), Err(DenyReason::Invalid));
}

#[test]
fn a_silent_holder_is_late_at_its_deadline_and_eviction_frees_everything() {
    let mut s = Server::new();
    granted(s.extent(1, LockMode::Pw, Extent::new(0, 10)));
    granted(s.bits(1, LockMode::Ex, InodeBits::UPDATE));
    waiting(s.extent(2, LockMode::Pr, Extent::new(0, 10)));
    waiting(s.bits(3, LockMode::Pr, InodeBits::UPDATE));
    waiting(s.extent(1, LockMode::Pr, Extent::new(0, 10)));
    let deadline = s.ns.next_deadline().unwrap();
    assert_eq!(deadline, Instant::ZERO + Duration::from_secs(20));
    assert!(s.ns.on_blocking_timeout(Instant(deadline.0 - 1)).is_empty());
    let late = s.ns.on_blocking_timeout(deadline);
    assert_eq!(late.iter().map(|e| e.client.0).collect::<Vec<_>>(), [1], "each client once");
    let gone = s.evict(1);
    assert_eq!((gone.granted, gone.waiting), (2, 1));
    let mut done: Vec<u64> = s.completed().iter().map(|(c, _)| *c).collect();
    done.sort_unstable();
    assert_eq!(done, [2, 3], "and nothing is sent to the one who is gone");
    assert_eq!(s.ns.locks_of(ClientId(1)).count(), 0);
    assert_eq!(s.ns.next_deadline(), None);
}

#[test]
fn work_under_a_lock_pushes_its_deadline_back_but_not_forever() {
    let mut s = Server::new();
    let lock = granted(s.extent(1, LockMode::Pw, Extent::new(0, 10)));
    waiting(s.extent(2, LockMode::Pr, Extent::new(0, 10)));
    for second in (10..2000).step_by(10) {
        s.now = Instant::ZERO + Duration::from_secs(second);
        if !s.ns.on_blocking_timeout(s.now).is_empty() {
            break;
        }
        s.ns.on_progress(s.now, ClientId(2), lock.handle);
        s.ns.on_progress(s.now, ClientId(1), lock.handle);
    }
    assert_eq!(s.now, Instant::ZERO + Duration::from_secs(600));
}

#[test]
fn an_enqueue_that_comes_again_changes_nothing() {
    let mut s = Server::new();
    let first = s.request(OBJECT, LockMode::Pw, LockPolicyData::extent(Extent::new(0, 10)));
    let lock = granted(s.send(1, &first));
    let second = s.request(OBJECT, LockMode::Pw, LockPolicyData::extent(Extent::new(0, 10)));
    let handle = waiting(s.send(2, &second));
    assert_eq!(s.send(2, &second), EnqueueOutcome::Waiting(handle));
    assert!(s.out.is_empty());
    assert_eq!(s.send(1, &first), EnqueueOutcome::Granted(lock));
    assert_eq!(s.called_back(), [1], "the callback that is out comes again with the answer");
    s.out.clear();
    s.ns.repeat_callbacks(ClientId(1), &mut s.out);
    assert_eq!(s.called_back(), [1]);
    assert_eq!((s.ns.len(), s.ns.stats().resends, s.ns.stats().callbacks), (2, 2, 1));
}

#[test]
fn nobody_cancels_the_lock_of_another() {
    let mut s = Server::new();
    let lock = granted(s.extent(1, LockMode::Pw, Extent::new(0, 10)));
    assert!(!s.cancel(2, lock.handle));
    assert!(s.cancel(1, lock.handle));
    assert!(!s.cancel(1, lock.handle), "a repetition does no harm");
}

#[test]
fn a_waiting_request_can_be_withdrawn_by_cookie() {
    let mut s = Server::new();
    let held = granted(s.extent(1, LockMode::Pr, Extent::new(0, 10)));
    let req = s.request(OBJECT, LockMode::Pw, LockPolicyData::extent(Extent::new(0, 10)));
    waiting(s.send(2, &req));
    let reader = waiting(s.extent(3, LockMode::Pr, Extent::new(0, 10)));
    s.out.clear();
    assert!(s.ns.cancel_cookie(s.now, ClientId(2), req.cookie, &mut s.out));
    assert_eq!(s.completed()[0].1.handle, reader, "whoever waited only for it goes on");
    assert!(s.ns.granted(ClientId(1), held.handle).is_some());
}

#[test]
fn early_cancels_ride_along_and_save_the_callback() {
    let mut s = Server::new();
    let own = granted(s.extent(1, LockMode::Pr, Extent::new(0, 10)));
    s.out.clear();
    assert_eq!(s.ns.cancel_batch(s.now, ClientId(1), &[own.handle, HandleId(999)], &mut s.out), 1);
    granted(s.extent(1, LockMode::Pw, Extent::new(0, 10)));
    assert_eq!(s.ns.stats().callbacks, 0);
}

#[test]
fn replayed_locks_come_back_as_they_were_and_conflicts_are_refused() {
    let mut s = Server::new();
    let replay = |cookie, mode, e| LockReplay {
        cookie: LockCookie(cookie),
        resource: OBJECT,
        mode,
        data: LockPolicyData::extent(e),
    };
    let a = replay(5, LockMode::Pw, Extent::new(0, 100));
    let handle = s.ns.replay(s.now, ClientId(1), &a).unwrap();
    assert_eq!(s.ns.replay(s.now, ClientId(1), &a), Ok(handle), "a repetition changes nothing");
    assert_eq!(bytes(&s.ns.granted(ClientId(1), handle).unwrap()), Extent::new(0, 100), "not grown");
    let refused = s.ns.replay(s.now, ClientId(2), &replay(5, LockMode::Pr, Extent::new(99, 200)));
    assert_eq!(refused.unwrap_err().unwrap().handle, handle);
    s.ns.replay(s.now, ClientId(2), &replay(5, LockMode::Pr, Extent::new(100, 200))).unwrap();
    s.ns.check_invariants().unwrap();
}

#[test]
fn full_tables_refuse_and_count() {
    let mut s = Server::with(NamespaceConfig { locks_max: 3, waiters_max: 1, ..NamespaceConfig::default() });
    granted(s.extent(1, LockMode::Pw, Extent::new(0, 10)));
    waiting(s.extent(2, LockMode::Pw, Extent::new(0, 10)));
    assert_eq!(s.extent(3, LockMode::Pw, Extent::new(0, 10)), EnqueueOutcome::Denied(DenyReason::NoLocks));
    granted(s.bits(3, LockMode::Pr, InodeBits::LOOKUP));
    assert_eq!(s.bits(4, LockMode::Pr, InodeBits::LOOKUP), EnqueueOutcome::Denied(DenyReason::NoLocks));
    assert_eq!(s.ns.stats().limit_hits, 2);
}

#[test]
fn reclaim_calls_the_oldest_locks_back() {
    let mut s = Server::new();
    for client in 1..=5 {
        granted(s.extent(client, LockMode::Pr, Extent::new(0, 10)));
    }
    s.out.clear();
    assert_eq!(s.ns.reclaim(s.now, 2, &mut s.out), 2);
    assert_eq!(s.called_back(), [1, 2]);
    s.out.clear();
    assert_eq!(s.ns.reclaim(s.now, 9, &mut s.out), 3);
    assert_eq!(s.called_back(), [3, 4, 5]);
}

#[test]
fn a_recall_asks_for_whole_locks_also_where_a_part_was_asked_for_and_whatever_is_made_of_them() {
    let mut s = Server::new();
    let kept = granted(s.bits(1, LockMode::Pr, InodeBits::ALL));
    granted(s.bits(2, LockMode::Pr, InodeBits::LOOKUP));
    s.out.clear();
    waiting(s.bits(3, LockMode::Ex, InodeBits::LAYOUT));
    assert_eq!(s.called_back(), [1]);
    s.out.clear();
    assert_eq!(s.ns.recall_all(s.now, &mut s.out), 2);
    assert_eq!(s.called_back(), [1, 2]);
    assert_eq!(s.ns.recall_all(s.now, &mut s.out), 0, "once is enough");
    // The part that was asked for first is given back: the rest stays called back.
    s.out.clear();
    assert!(s.ns.narrow(s.now, types::ClientId(1), kept.handle, InodeBits::LOOKUP, &mut s.out));
    assert!(s.ns.is_called_back(types::ClientId(1), kept.handle));
    assert_eq!(s.called_back(), [1]);
    assert_eq!(s.ns.check_invariants(), Ok(()));
    assert!(s.ns.cancel(s.now, types::ClientId(1), kept.handle, &mut s.out));
    assert!(!s.ns.is_called_back(types::ClientId(1), kept.handle));
}

#[test]
fn room_is_made_by_calling_back_the_oldest_locks_once() {
    let mut s = Server::with(NamespaceConfig { locks_max: 200, ..NamespaceConfig::default() });
    for client in 1..=200 {
        granted(s.extent(client, LockMode::Pr, Extent::new(0, 10)));
    }
    s.out.clear();
    s.ns.make_room(s.now, &mut s.out);
    assert_eq!(s.called_back(), [1, 2, 3]);
    s.out.clear();
    s.ns.make_room(s.now, &mut s.out);
    assert!(s.out.is_empty(), "those that are on their way make the room");
    s.ns.check_invariants().unwrap();
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let mut s = Server::new();
    assert_eq!(s.extent(1, LockMode::Pr, Extent::EMPTY), EnqueueOutcome::Denied(DenyReason::Invalid));
    assert_eq!(s.bits(1, LockMode::Pr, InodeBits::NONE), EnqueueOutcome::Denied(DenyReason::Invalid));
    let req = s.request(INODE, LockMode::Pr, LockPolicyData::extent(Extent::ALL));
    assert_eq!(s.send(1, &req), EnqueueOutcome::Denied(DenyReason::Invalid));
    assert!(s.ns.is_empty());
}

#[test]
fn a_hundred_thousand_readers_of_one_directory_are_called_back_once_each() {
    let mut s = Server::with(NamespaceConfig::default());
    let mut out = Vec::new();
    for client in 1..=100_000u64 {
        let req = s.request(INODE, LockMode::Pr, LockPolicyData::bits(InodeBits::LOOKUP | InodeBits::UPDATE));
        granted(s.ns.enqueue(s.now, ClientId(client), &req, &mut out));
    }
    let mut calls = 0;
    for client in [200_000, 200_001, 200_002] {
        let req = s.request(INODE, LockMode::Ex, LockPolicyData::bits(InodeBits::UPDATE));
        out.clear();
        waiting(s.ns.enqueue(s.now, ClientId(client), &req, &mut out));
        calls += out.len();
    }
    assert_eq!(calls, 100_000);
}

#[test]
fn a_lock_allows_io_on_its_own_object_within_its_bytes() {
    let mut s = Server::new();
    let req =
        s.request(OBJECT, LockMode::Pr, LockPolicyData::extent(Extent::new(0, 100))).flags(EnqueueFlags::NO_EXPAND);
    let lock = granted(s.send(1, &req));
    assert!(lock.allows_io(OBJECT, Extent::new(0, 100), false));
    assert!(!lock.allows_io(OBJECT, Extent::new(0, 100), true));
    assert!(!lock.allows_io(OBJECT, Extent::new(99, 101), false));
    assert!(!lock.allows_io(ResourceId::extent(Fid::new(0x2_4000_0401, 8)), Extent::new(0, 1), false));
}

#[test]
fn a_lock_that_allows_io_is_found_without_its_handle() {
    let mut s = Server::new();
    let exact = |s: &mut Server, client, start| {
        let data = LockPolicyData::extent(Extent::at(start, 10));
        let req = s.request(OBJECT, LockMode::Pw, data).flags(EnqueueFlags::NO_EXPAND);
        granted(s.send(client, &req))
    };
    for locks in [5, 100] {
        for i in 0..locks {
            if s.ns.allowing_io(ClientId(1), OBJECT, Extent::at(i * 20, 10), true).is_none() {
                let lock = exact(&mut s, 1, i * 20);
                assert_eq!(s.ns.allowing_io(ClientId(1), OBJECT, Extent::at(i * 20 + 1, 9), true), Some(lock));
            }
        }
        assert_eq!(s.ns.allowing_io(ClientId(1), OBJECT, Extent::at(20, 11), false), None, "across its end");
        assert_eq!(s.ns.allowing_io(ClientId(2), OBJECT, Extent::at(20, 10), false), None, "of another client");
    }
}

#[test]
fn who_is_held_up_by_the_server_is_late_a_callbacks_time_after_that_and_at_the_latest_when_anybody_is() {
    // Seconds for which the first client is held up after it was called back, and the second at which it is evicted.
    for (held_s, late_s) in [(0, 20), (19, 20), (21, 41), (100, 120), (10_000, 600)] {
        let mut s = Server::new();
        granted(s.extent(1, LockMode::Pw, Extent::new(0, 10)));
        granted(s.bits(1, LockMode::Ex, InodeBits::UPDATE));
        waiting(s.extent(2, LockMode::Pr, Extent::new(0, 10)));
        waiting(s.bits(3, LockMode::Pr, InodeBits::UPDATE));
        let mut patience = ldlm::Patience::default();
        let late = loop {
            s.now = patience.next_look(&s.ns, s.now).unwrap();
            let second = s.now.since(Instant::ZERO).as_secs();
            let late = patience.late(&mut s.ns, s.now, |c| c == ClientId(1) && second <= held_s);
            if !late.is_empty() {
                assert_eq!(late.iter().map(|e| e.client.0).collect::<Vec<_>>(), [1]);
                break second;
            }
        };
        // It is looked once a second: what ends in between is seen at the next look.
        assert!((late_s..=late_s + 2).contains(&late), "held up for {held_s} s: late at {late}, not {late_s}");
    }
}
