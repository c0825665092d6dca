//! Claims about the client's lock cache, one test each; above all the races between messages.
#![allow(clippy::unwrap_used)] // a panic is how a test fails
use ldlm::{
    Acquire, BlockingOutcome, CacheAction, DenyReason, EnqueueFlags, EnqueueOutcome, EnqueueRequest, InodeBits,
    LockCache, LockCacheConfig, LockCookie, LockDesc, LockMode, LockPolicyData, ResourceId,
};
use types::{Duration, Extent, Fid, HandleId, Instant};

const OBJECT: ResourceId = ResourceId::extent(Fid::new(0x2_4000_0401, 7));
const INODE: ResourceId = ResourceId::inode(Fid::new(0x2_0000_0401, 7));
const LOOKUP: InodeBits = InodeBits::LOOKUP;
const UPDATE: InodeBits = InodeBits::UPDATE;

struct Client {
    cache: LockCache,
    now: Instant,
    out: Vec<CacheAction>,
}

impl Client {
    fn new() -> Client {
        Client::with(LockCacheConfig::default())
    }
    fn with(config: LockCacheConfig) -> Client {
        Client { cache: LockCache::new(config, 1), now: Instant(1), out: Vec::new() }
    }
    fn tick(&mut self) {
        self.now = self.now + Duration::from_secs(1);
        self.out.clear();
    }
    fn acquire(&mut self, resource: ResourceId, mode: LockMode, data: LockPolicyData) -> Acquire {
        self.tick();
        self.cache.acquire(self.now, resource, mode, data, EnqueueFlags::NONE)
    }
    fn ask(&mut self, resource: ResourceId, mode: LockMode, data: LockPolicyData) -> EnqueueRequest {
        match self.acquire(resource, mode, data) {
            Acquire::Enqueue(req) => req,
            other => panic!("{other:?}"),
        }
    }
    fn reply(&mut self, req: &EnqueueRequest, outcome: EnqueueOutcome) {
        self.tick();
        self.cache.on_reply(self.now, req.resource, req.cookie, outcome, &mut self.out);
    }
    fn complete(&mut self, lock: LockDesc) {
        self.tick();
        self.cache.on_granted(self.now, lock, &mut self.out);
    }
    fn blocking(&mut self, lock: &LockDesc, wanted: LockPolicyData) -> BlockingOutcome {
        self.blocking_by(lock, LockMode::Ex, wanted)
    }
    fn blocking_by(&mut self, lock: &LockDesc, mode: LockMode, wanted: LockPolicyData) -> BlockingOutcome {
        self.tick();
        self.cache.on_blocking(lock.handle, lock.cookie, lock.resource, mode, &wanted, &mut self.out)
    }
    fn release(&mut self, cookie: LockCookie) {
        self.tick();
        self.cache.release(self.now, cookie, &mut self.out);
    }
    fn flushed(&mut self, cookie: LockCookie) {
        self.tick();
        self.cache.flushed(self.now, cookie, &mut self.out);
    }
    /// A granted, unused lock.
    fn hold(&mut self, resource: ResourceId, mode: LockMode, data: LockPolicyData) -> LockDesc {
        let req = self.ask(resource, mode, data);
        let lock = grant(&req, req.cookie.0 + 100);
        self.reply(&req, EnqueueOutcome::Granted(lock));
        self.release(req.cookie);
        lock
    }
}

fn grant(req: &EnqueueRequest, handle: u64) -> LockDesc {
    LockDesc { handle: HandleId(handle), cookie: req.cookie, resource: req.resource, mode: req.mode, data: req.data }
}
fn whole() -> LockPolicyData {
    LockPolicyData::extent(Extent::ALL)
}
fn part(start: u64, end: u64) -> LockPolicyData {
    LockPolicyData::extent(Extent::new(start, end))
}
fn bits(b: InodeBits) -> LockPolicyData {
    LockPolicyData::bits(b)
}
fn cancel_of(lock: &LockDesc) -> CacheAction {
    CacheAction::SendCancel { resource: lock.resource, handle: lock.handle }
}
fn revoke_of(lock: &LockDesc) -> CacheAction {
    CacheAction::Revoke { lock: *lock, keep: InodeBits::NONE, keep_mode: None }
}

#[test]
fn a_held_lock_answers_what_it_covers_and_nothing_else() {
    let mut c = Client::new();
    let lock = c.hold(OBJECT, LockMode::Pw, part(0, 100));
    for (mode, data, hit) in [
        (LockMode::Pr, part(0, 100), true),
        (LockMode::Pw, part(99, 100), true),
        (LockMode::Pw, part(99, 101), false),
        (LockMode::Ex, part(0, 1), false),
        (LockMode::Group, LockPolicyData::group(1), false),
    ] {
        assert_eq!(c.cache.find(c.now, OBJECT, mode, &data), hit.then_some(lock.cookie), "{mode} {data:?}");
    }
    let other = ResourceId::extent(Fid::new(0x2_4000_0401, 8));
    let group = c.hold(other, LockMode::Group, LockPolicyData::group(1));
    assert_eq!(c.cache.find(c.now, other, LockMode::Group, &LockPolicyData::group(2)), None);
    assert_eq!(c.cache.find(c.now, other, LockMode::Group, &LockPolicyData::group(1)), Some(group.cookie));
    let dir = c.hold(INODE, LockMode::Pr, bits(LOOKUP | UPDATE));
    assert_eq!(c.cache.find(c.now, INODE, LockMode::Cr, &bits(LOOKUP)), Some(dir.cookie));
    assert_eq!(c.cache.find(c.now, INODE, LockMode::Pr, &bits(InodeBits::XATTR)), None);
    assert_eq!(c.cache.find(c.now, ResourceId::inode(OBJECT.fid), LockMode::Pr, &bits(LOOKUP)), None);
}

#[test]
fn many_readers_of_a_new_file_send_one_request() {
    let mut c = Client::new();
    let req = c.ask(OBJECT, LockMode::Pr, part(0, 4096));
    assert_eq!(c.acquire(OBJECT, LockMode::Pr, part(0, 4096)), Acquire::Joined(req.cookie));
    assert!(matches!(c.acquire(OBJECT, LockMode::Pr, part(0, 8192)), Acquire::Enqueue(_)), "not surely covered");
    let lock = LockDesc { data: whole(), ..grant(&req, 9) };
    c.reply(&req, EnqueueOutcome::Granted(lock));
    assert_eq!(c.out, [CacheAction::Granted(lock)]);
    assert_eq!(c.blocking(&lock, whole()), BlockingOutcome::Busy);
    c.release(req.cookie);
    assert!(c.out.is_empty(), "the other reader still uses it");
    c.release(req.cookie);
    assert_eq!(c.out, [revoke_of(&lock)]);
}

#[test]
fn a_called_back_lock_takes_no_new_users_and_goes_after_the_flush() {
    let mut c = Client::new();
    let lock = c.hold(OBJECT, LockMode::Pw, whole());
    assert!(c.cache.is_valid(lock.cookie));
    assert_eq!(c.blocking(&lock, part(0, 1)), BlockingOutcome::Revoking);
    assert_eq!(c.out, [revoke_of(&lock)]);
    assert!(!c.cache.is_valid(lock.cookie));
    assert_eq!(c.blocking(&lock, part(0, 1)), BlockingOutcome::Revoking);
    assert!(c.out.is_empty(), "one flush is enough");
    assert!(matches!(c.acquire(OBJECT, LockMode::Pr, part(0, 1)), Acquire::Enqueue(_)));
    c.flushed(lock.cookie);
    assert_eq!(c.out, [cancel_of(&lock)]);
    c.flushed(lock.cookie);
    assert!(c.out.is_empty());
}

#[test]
fn a_callback_before_the_reply_is_kept_until_after_the_first_use() {
    let mut c = Client::new();
    let req = c.ask(OBJECT, LockMode::Pw, whole());
    let lock = grant(&req, 9);
    assert_eq!(c.blocking(&lock, whole()), BlockingOutcome::Pending);
    assert!(c.out.is_empty());
    c.reply(&req, EnqueueOutcome::Granted(lock));
    assert_eq!(c.out, [CacheAction::Granted(lock)], "whoever waited for it may use it");
    assert_eq!(c.cache.find(c.now, OBJECT, LockMode::Pw, &whole()), None, "nobody else");
    c.release(req.cookie);
    assert_eq!(c.out, [revoke_of(&lock)]);
    c.flushed(req.cookie);
    assert_eq!(c.out, [cancel_of(&lock)]);
    assert!(c.cache.is_empty());
}

#[test]
fn a_completion_before_the_reply_grants_and_the_reply_changes_nothing() {
    let mut c = Client::new();
    let req = c.ask(OBJECT, LockMode::Pw, whole());
    let lock = grant(&req, 9);
    c.complete(lock);
    assert_eq!(c.out, [CacheAction::Granted(lock)]);
    c.reply(&req, EnqueueOutcome::Waiting(HandleId(9)));
    assert!(c.out.is_empty() && c.cache.is_valid(req.cookie));
    c.complete(lock);
    assert!(c.out.is_empty(), "nor does a repetition");
}

#[test]
fn messages_about_locks_that_are_gone_are_answered_with_a_cancel() {
    let mut c = Client::new();
    let lock = c.hold(OBJECT, LockMode::Pw, whole());
    c.blocking(&lock, whole());
    c.flushed(lock.cookie);
    assert_eq!(c.out, [cancel_of(&lock)]);
    assert_eq!(c.blocking(&lock, whole()), BlockingOutcome::Unknown, "the cancel crossed a callback");
    assert_eq!(c.out, [cancel_of(&lock)]);
    c.complete(lock);
    assert_eq!(c.out, [cancel_of(&lock)]);
    let req = EnqueueRequest::new(lock.cookie, OBJECT, LockMode::Pw, whole());
    c.reply(&req, EnqueueOutcome::Waiting(HandleId(77)));
    assert_eq!(c.out, [CacheAction::SendCancel { resource: OBJECT, handle: HandleId(77) }]);
    c.reply(&req, EnqueueOutcome::Denied(DenyReason::WouldBlock));
    assert!(c.out.is_empty());
    assert_eq!(c.cache.stats().strays, 3);
}

#[test]
fn a_read_served_under_a_leaving_lock_is_flushed_again() {
    let mut c = Client::new();
    let lock = c.hold(OBJECT, LockMode::Pr, whole());
    c.blocking(&lock, whole());
    let served = c.cache.find_revoking(c.now, OBJECT, LockMode::Pr, &part(0, 4096));
    assert_eq!(served, Some(lock.cookie));
    c.flushed(lock.cookie);
    assert!(c.out.is_empty(), "a served read holds it");
    c.release(lock.cookie);
    assert_eq!(c.out, [revoke_of(&lock)], "what the read cached goes too");
    assert_eq!(c.cache.find_revoking(c.now, OBJECT, LockMode::Pr, &part(0, 4096)), None, "it served once");
    assert_eq!(c.cache.find_leaving(c.now, OBJECT, LockMode::Pw, &part(0, 4096)), None, "it never allowed that");
    let back = c.cache.find_leaving(c.now, OBJECT, LockMode::Pr, &part(0, 4096));
    assert_eq!(back, Some(lock.cookie), "what the flush brings about is always served");
    c.release(lock.cookie);
    c.flushed(lock.cookie);
    assert_eq!(c.out, [revoke_of(&lock)]);
    c.flushed(lock.cookie);
    assert_eq!(c.out, [cancel_of(&lock)]);
    // And when the read is over before the flush is.
    let lock = c.hold(OBJECT, LockMode::Pr, whole());
    c.blocking(&lock, whole());
    c.cache.find_revoking(c.now, OBJECT, LockMode::Pr, &whole()).unwrap();
    c.release(lock.cookie);
    assert!(c.out.is_empty());
    c.flushed(lock.cookie);
    assert_eq!(c.out, [revoke_of(&lock)]);
}

#[test]
fn bits_that_nobody_wants_stay() {
    let mut c = Client::new();
    let lock = c.hold(INODE, LockMode::Pr, bits(LOOKUP | UPDATE));
    c.blocking(&lock, bits(UPDATE));
    assert_eq!(c.out, [CacheAction::Revoke { lock, keep: LOOKUP, keep_mode: None }]);
    c.flushed(lock.cookie);
    assert_eq!(c.out, [CacheAction::SendNarrow { resource: INODE, handle: lock.handle, keep: LOOKUP }]);
    assert_eq!(c.cache.find(c.now, INODE, LockMode::Pr, &bits(UPDATE)), None);
    assert_eq!(c.cache.find(c.now, INODE, LockMode::Pr, &bits(LOOKUP)), Some(lock.cookie));
    c.release(lock.cookie);
    assert_eq!(c.blocking(&lock, bits(UPDATE)), BlockingOutcome::Answered, "a late repetition");
    assert!(c.cache.is_valid(lock.cookie));
    let again = CacheAction::SendNarrow { resource: INODE, handle: lock.handle, keep: LOOKUP };
    assert_eq!(c.out, [again], "or the server has not heard of it");
    c.out.clear();
    c.blocking(&lock, bits(LOOKUP));
    c.flushed(lock.cookie);
    assert_eq!(c.out, [cancel_of(&lock)]);
}

#[test]
fn a_restarted_server_hears_again_what_it_was_told_under_an_old_handle() {
    let mut c = Client::new();
    let lock = c.hold(INODE, LockMode::Pr, bits(LOOKUP | UPDATE));
    c.blocking(&lock, bits(UPDATE));
    assert_eq!(c.cache.for_replay()[0].data, bits(LOOKUP | UPDATE), "the server is told of it as it was");
    // The flush ends before the answer to that: what is sent now names a lock that nobody has any more.
    c.flushed(lock.cookie);
    c.out.clear();
    c.cache.on_replayed(lock.cookie, Some(HandleId(900)), &mut c.out);
    let renewed = LockDesc { handle: HandleId(900), ..lock };
    assert_eq!(c.blocking(&renewed, bits(UPDATE)), BlockingOutcome::Answered);
    assert_eq!(c.out, [CacheAction::SendNarrow { resource: INODE, handle: HandleId(900), keep: LOOKUP }]);
}

#[test]
fn a_second_callback_during_the_flush_takes_more_bits() {
    let mut c = Client::new();
    let lock = c.hold(INODE, LockMode::Pr, bits(LOOKUP | UPDATE));
    c.blocking(&lock, bits(UPDATE));
    c.blocking(&lock, bits(LOOKUP));
    c.flushed(lock.cookie);
    assert_eq!(c.out, [revoke_of(&lock)], "the flush kept LOOKUP, which is wanted now");
    c.flushed(lock.cookie);
    assert_eq!(c.out, [cancel_of(&lock)]);
}

#[test]
fn a_program_that_gives_up_withdraws_the_request() {
    let mut c = Client::new();
    let req = c.ask(OBJECT, LockMode::Pw, whole());
    c.reply(&req, EnqueueOutcome::Waiting(HandleId(9)));
    c.release(req.cookie);
    assert_eq!(c.out, [CacheAction::SendCancel { resource: OBJECT, handle: HandleId(9) }]);
    // Before the reply there is no handle yet; a grant is kept, unused.
    let req = c.ask(OBJECT, LockMode::Pw, whole());
    c.release(req.cookie);
    assert!(c.out.is_empty());
    assert!(matches!(c.acquire(OBJECT, LockMode::Pw, whole()), Acquire::Enqueue(_)), "it is not joined");
    c.reply(&req, EnqueueOutcome::Granted(grant(&req, 10)));
    assert!(c.out.is_empty() && c.cache.unused() == 1);
    let req = c.ask(INODE, LockMode::Pr, bits(LOOKUP));
    c.release(req.cookie);
    c.reply(&req, EnqueueOutcome::Waiting(HandleId(11)));
    assert_eq!(c.out, [CacheAction::SendCancel { resource: INODE, handle: HandleId(11) }]);
}

#[test]
fn unused_locks_over_the_limit_leave_oldest_first_but_hot_ones_later() {
    let mut c = Client::with(LockCacheConfig { lru_max: 3, hot_uses: 4, ..LockCacheConfig::default() });
    let object = |i| ResourceId::extent(Fid::new(0x2_4000_0401, i));
    let hot = c.hold(object(1), LockMode::Pr, whole());
    for _ in 0..4 {
        c.cache.find(c.now, object(1), LockMode::Pr, &whole()).unwrap();
        c.release(hot.cookie);
    }
    let cold = c.hold(object(2), LockMode::Pr, whole());
    c.hold(object(3), LockMode::Pr, whole());
    c.hold(object(4), LockMode::Pr, whole());
    assert_eq!(c.out, [revoke_of(&cold)], "the hot one is older and stays");
    assert!(c.cache.is_valid(hot.cookie) && c.cache.unused() == 3);
    for i in 5..12 {
        c.hold(object(i), LockMode::Pr, whole());
    }
    assert!(!c.cache.is_valid(hot.cookie), "not for ever");
    assert!(c.cache.stats().limit_hits >= 8);
}

#[test]
fn memory_pressure_takes_unused_locks_only() {
    let mut c = Client::new();
    let object = |i| ResourceId::extent(Fid::new(0x2_4000_0401, i));
    let (a, b, used) = (
        c.hold(object(1), LockMode::Pr, whole()),
        c.hold(object(2), LockMode::Pr, whole()),
        c.hold(object(3), LockMode::Pr, whole()),
    );
    c.cache.find(c.now, object(3), LockMode::Pr, &whole()).unwrap();
    c.out.clear();
    assert_eq!(c.cache.shrink(c.now, 10, &mut c.out), 2);
    assert_eq!(c.out, [revoke_of(&a), revoke_of(&b)]);
    assert!(c.cache.is_valid(used.cookie));
}

#[test]
fn old_unused_locks_leave_with_time() {
    let mut c = Client::new();
    let lock = c.hold(OBJECT, LockMode::Pr, whole());
    c.cache.tick(c.now + Duration::from_secs(3000), &mut c.out);
    assert!(c.cache.is_valid(lock.cookie));
    c.cache.tick(c.now + Duration::from_secs(4000), &mut c.out);
    assert!(!c.cache.is_valid(lock.cookie));
}

#[test]
fn early_cancels_are_the_unused_locks_in_the_way() {
    let mut c = Client::new();
    let in_the_way = c.hold(OBJECT, LockMode::Pr, part(0, 100));
    let elsewhere = c.hold(OBJECT, LockMode::Pr, part(100, 200));
    let used = c.hold(OBJECT, LockMode::Pr, part(5, 105));
    c.cache.find(c.now, OBJECT, LockMode::Pr, &part(50, 105)).unwrap();
    let early = c.cache.early_cancels(OBJECT, LockMode::Pw, &part(0, 10));
    assert_eq!(early, [in_the_way]);
    assert_eq!(c.cache.cancelled_early(c.now, in_the_way.cookie, &mut c.out), Some(in_the_way.handle));
    assert!(!c.cache.is_valid(in_the_way.cookie), "it is forgotten");
    assert!(c.cache.is_valid(elsewhere.cookie) && c.cache.is_valid(used.cookie));
    let dir = c.hold(INODE, LockMode::Pr, bits(LOOKUP | UPDATE));
    assert!(c.cache.early_cancels(INODE, LockMode::Ex, &bits(InodeBits::XATTR)).is_empty());
    assert_eq!(c.cache.early_cancels(INODE, LockMode::Ex, &bits(UPDATE)), [dir]);
    // Used meanwhile: it goes the ordinary way.
    c.cache.find_revoking(c.now, INODE, LockMode::Pr, &bits(LOOKUP)).unwrap();
    assert_eq!(c.cache.cancelled_early(c.now, dir.cookie, &mut c.out), None);
    c.release(dir.cookie);
    assert_eq!(c.out, [revoke_of(&dir)]);
}

#[test]
fn eviction_loses_all_locks_and_fails_all_requests() {
    let mut c = Client::new();
    let lock = c.hold(OBJECT, LockMode::Pw, whole());
    let user = c.cache.find(c.now, OBJECT, LockMode::Pw, &whole()).unwrap();
    let req = c.ask(INODE, LockMode::Pr, bits(LOOKUP));
    c.out.clear();
    c.cache.on_evicted(&mut c.out);
    let reason = DenyReason::Evicted;
    assert_eq!(c.out, [CacheAction::Lost(lock), CacheAction::Denied { cookie: req.cookie, reason }]);
    c.release(user);
    assert!(c.out.is_empty() && c.cache.is_empty() && c.cache.unused() == 0);
    c.reply(&req, EnqueueOutcome::Granted(grant(&req, 9)));
    assert_eq!(c.out.len(), 1, "a grant from before is given back");
    let again = c.ask(INODE, LockMode::Pr, bits(LOOKUP));
    assert!(again.cookie > req.cookie, "cookies are never reused");
}

#[test]
fn replay_names_held_and_leaving_locks_and_resends_the_rest() {
    let mut c = Client::new();
    let held = c.hold(OBJECT, LockMode::Pw, part(0, 10));
    let leaving = c.hold(OBJECT, LockMode::Pw, part(20, 30));
    let gone = c.hold(OBJECT, LockMode::Pw, part(40, 50));
    c.blocking(&leaving, whole());
    c.blocking(&gone, whole());
    c.flushed(gone.cookie);
    let req = c.ask(INODE, LockMode::Pr, bits(LOOKUP));
    let replay: Vec<LockCookie> = c.cache.for_replay().iter().map(|r| r.cookie).collect();
    assert_eq!(replay, [held.cookie, leaving.cookie]);
    assert_eq!(c.cache.for_resend(), [req]);
    c.out.clear();
    c.cache.on_replayed(held.cookie, Some(HandleId(900)), &mut c.out);
    c.cache.on_replayed(leaving.cookie, None, &mut c.out);
    assert_eq!(c.out, [CacheAction::Lost(leaving)]);
    c.blocking(&LockDesc { handle: HandleId(900), ..held }, whole());
    c.flushed(held.cookie);
    assert_eq!(c.out, [CacheAction::SendCancel { resource: OBJECT, handle: HandleId(900) }]);
}

#[test]
fn a_grant_that_is_not_what_was_asked_is_refused() {
    let mut c = Client::new();
    let req = c.ask(OBJECT, LockMode::Pw, part(0, 10));
    let lock = LockDesc { data: part(0, 9), ..grant(&req, 9) };
    c.reply(&req, EnqueueOutcome::Granted(lock));
    assert_eq!(c.out, [cancel_of(&lock), CacheAction::Denied { cookie: req.cookie, reason: DenyReason::Invalid }]);
}

#[test]
fn a_lock_that_comes_with_another_reply_is_held_like_any_other() {
    let mut c = Client::new();
    let cookie = c.cache.reserve();
    let lock = LockDesc { handle: HandleId(9), cookie, resource: INODE, mode: LockMode::Pr, data: bits(LOOKUP) };
    assert!(c.cache.adopt(c.now, cookie, Some(lock), &mut c.out));
    assert!(!c.cache.adopt(c.now, cookie, Some(lock), &mut c.out), "the reply came twice");
    assert!(c.out.is_empty() && c.cache.is_valid(cookie), "and does not take the lock away");
    assert_eq!(c.cache.find(c.now, INODE, LockMode::Pr, &bits(LOOKUP)), Some(cookie));
    let none = c.cache.reserve();
    assert!(!c.cache.adopt(c.now, none, None, &mut c.out));
    assert_eq!(c.blocking(&LockDesc { cookie: none, ..lock }, bits(LOOKUP)), BlockingOutcome::Unknown);
}

#[test]
fn a_lock_called_back_before_its_reply_came_is_not_taken() {
    let mut c = Client::new();
    let cookie = c.cache.reserve();
    let lock = LockDesc { handle: HandleId(9), cookie, resource: INODE, mode: LockMode::Pr, data: bits(LOOKUP) };
    assert_eq!(c.blocking(&lock, bits(LOOKUP)), BlockingOutcome::Pending);
    assert!(c.out.is_empty());
    assert!(!c.cache.adopt(c.now, cookie, Some(lock), &mut c.out));
    assert_eq!(c.out, [cancel_of(&lock)]);
    let late = c.cache.reserve();
    c.cache.on_evicted(&mut c.out);
    c.out.clear();
    assert!(!c.cache.adopt(c.now, late, Some(LockDesc { cookie: late, ..lock }), &mut c.out));
    assert_eq!(c.out, [cancel_of(&lock)], "from before the eviction");
}

fn came_along(c: &mut Client, handle: u64, held: LockPolicyData) -> (LockDesc, bool) {
    let cookie = c.cache.reserve();
    let lock = LockDesc { handle: HandleId(handle), cookie, resource: INODE, mode: LockMode::Pr, data: held };
    let whole = c.cache.adopt(c.now, cookie, Some(lock), &mut c.out);
    (lock, whole)
}

#[test]
fn a_lock_called_back_in_part_before_its_reply_came_keeps_the_rest() {
    let mut c = Client::new();
    let cookie = c.cache.reserve();
    let both = LOOKUP.union(InodeBits::OPEN);
    let lock = LockDesc { handle: HandleId(9), cookie, resource: INODE, mode: LockMode::Pr, data: bits(both) };
    assert_eq!(c.blocking(&lock, bits(LOOKUP)), BlockingOutcome::Pending);
    assert!(!c.cache.adopt(c.now, cookie, Some(lock), &mut c.out), "what the answer says cannot be believed");
    assert_eq!(c.out, [CacheAction::SendNarrow { resource: INODE, handle: lock.handle, keep: InodeBits::OPEN }]);
    assert!(c.cache.holds(INODE, LockMode::Pr, &bits(InodeBits::OPEN)));
    assert!(!c.cache.holds(INODE, LockMode::Pr, &bits(LOOKUP)));
}

#[test]
fn a_lock_that_covers_older_ones_replaces_them_unless_they_are_in_use() {
    let mut c = Client::new();
    let (open, _) = came_along(&mut c, 1, bits(InodeBits::OPEN));
    let (other, _) = came_along(&mut c, 2, bits(InodeBits::XATTR));
    let (used, _) = came_along(&mut c, 3, bits(LOOKUP));
    assert_eq!(c.cache.find(c.now, INODE, LockMode::Pr, &bits(LOOKUP)), Some(used.cookie));
    assert!(c.out.is_empty());
    let (all, whole) = came_along(&mut c, 4, bits(LOOKUP.union(InodeBits::OPEN)));
    assert!(whole);
    assert_eq!(c.out, [cancel_of(&open)]);
    assert!([other, used, all].iter().all(|l| c.cache.is_valid(l.cookie)) && c.cache.get(open.cookie).is_none());
}

#[test]
fn what_is_given_up_is_flushed_and_goes_but_what_is_in_use_stays() {
    let mut c = Client::new();
    let (idle, _) = came_along(&mut c, 1, bits(InodeBits::OPEN));
    let (used, _) = came_along(&mut c, 2, bits(LOOKUP));
    assert_eq!(c.cache.find(c.now, INODE, LockMode::Pr, &bits(LOOKUP)), Some(used.cookie));
    c.cache.give_up(INODE, &mut c.out);
    assert_eq!(c.out, [CacheAction::Revoke { lock: idle, keep: InodeBits::NONE, keep_mode: None }]);
    assert!(c.cache.is_valid(used.cookie) && !c.cache.is_valid(idle.cookie));
}

#[test]
fn a_write_lock_that_readers_want_becomes_a_read_lock_and_stays() {
    let mut c = Client::new();
    let lock = c.hold(OBJECT, LockMode::Pw, part(0, 100));
    assert_eq!(c.blocking_by(&lock, LockMode::Pr, part(10, 20)), BlockingOutcome::Revoking);
    let told = CacheAction::Revoke { lock, keep: InodeBits::NONE, keep_mode: Some(LockMode::Pr) };
    assert_eq!(std::mem::take(&mut c.out), [told]);
    assert_eq!(c.cache.find(c.now, OBJECT, LockMode::Pr, &part(0, 1)), None, "nobody uses it while it is flushed");
    c.flushed(lock.cookie);
    let sent = CacheAction::SendConvert { resource: OBJECT, handle: lock.handle, mode: LockMode::Pr };
    assert_eq!(std::mem::take(&mut c.out), [sent]);
    assert_eq!(c.cache.find(c.now, OBJECT, LockMode::Pw, &part(0, 1)), None);
    assert_eq!(c.cache.find(c.now, OBJECT, LockMode::Pr, &part(0, 100)), Some(lock.cookie));
    c.release(lock.cookie);
    // It is replayed as what it is, a late callback finds nothing in the way, and a writer takes it whole.
    assert!(c.cache.for_replay().iter().all(|l| l.mode == LockMode::Pr));
    assert_eq!(c.blocking_by(&lock, LockMode::Pr, part(10, 20)), BlockingOutcome::Answered);
    assert_eq!(c.blocking_by(&lock, LockMode::Pw, part(10, 20)), BlockingOutcome::Revoking);
    let weak = LockDesc { mode: LockMode::Pr, ..lock };
    assert_eq!(std::mem::take(&mut c.out), [revoke_of(&weak)]);
    c.flushed(lock.cookie);
    assert_eq!(c.out, [cancel_of(&lock)]);
}

#[test]
fn a_write_lock_that_a_writer_wants_as_well_goes_whole() {
    let mut c = Client::new();
    let lock = c.hold(OBJECT, LockMode::Pw, whole());
    c.blocking_by(&lock, LockMode::Pr, part(10, 20));
    c.out.clear();
    assert_eq!(c.blocking_by(&lock, LockMode::Pw, part(10, 20)), BlockingOutcome::Revoking);
    c.flushed(lock.cookie);
    assert_eq!(std::mem::take(&mut c.out), [revoke_of(&lock)], "what it covers has to be dropped after all");
    c.flushed(lock.cookie);
    assert_eq!(std::mem::take(&mut c.out), [cancel_of(&lock)]);
    // A callback that overtakes the grant counts as well: the lock is used once, then it becomes a read lock.
    let req = c.ask(OBJECT, LockMode::Pw, whole());
    let lock = grant(&req, 900);
    assert_eq!(c.blocking_by(&lock, LockMode::Pr, part(0, 1)), BlockingOutcome::Pending);
    c.complete(lock);
    c.out.clear();
    c.release(lock.cookie);
    let told = CacheAction::Revoke { lock, keep: InodeBits::NONE, keep_mode: Some(LockMode::Pr) };
    assert_eq!(std::mem::take(&mut c.out), [told]);
    c.flushed(lock.cookie);
    assert_eq!(c.cache.find(c.now, OBJECT, LockMode::Pr, &whole()), Some(lock.cookie));
    c.release(lock.cookie);
    c.out.clear();
    // One that leaves because there are too many goes whole.
    let other = c.hold(OBJECT, LockMode::Pw, whole());
    c.cache.shrink(c.now, 10, &mut c.out);
    assert!(c.out.contains(&revoke_of(&other)), "{:?}", c.out);
}
