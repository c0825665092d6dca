//! What a lock costs: nanoseconds per call at 10 to 100,000 locks on one resource, one NDJSON line each.
//!
//! `cargo run --release -p stria-ldlm --example bench`. Each figure is the median of `ROUNDS` timed rounds; min and
//! max show the spread of the machine.
use std::time::Instant as Clock;

use ldlm::{
    Acquire, EnqueueFlags, EnqueueOutcome, EnqueueRequest, InodeBits, LockCache, LockCacheConfig, LockCookie, LockDesc,
    LockMode, LockPolicyData, Namespace, NamespaceConfig, ResourceId,
};
use types::{ClientId, Extent, Fid, HandleId, Instant, Rng};

const ROUNDS: usize = 15;
const CALLS: u64 = 2000;
const OBJECT: ResourceId = ResourceId::extent(Fid::new(0x2_4000_0401, 1));
const INODE: ResourceId = ResourceId::inode(Fid::new(0x2_0000_0401, 1));

/// Runs `round` and prints its cost per call.
fn report(name: &str, locks: u64, mut round: impl FnMut() -> u64) {
    let mut ns: Vec<f64> = Vec::new();
    for _ in 0..ROUNDS {
        let start = Clock::now();
        let calls = round();
        ns.push(start.elapsed().as_nanos() as f64 / calls as f64);
    }
    ns.sort_by(f64::total_cmp);
    println!(
        "{{\"bench\":\"ldlm.{name}\",\"locks\":{locks},\"unit\":\"ns\",\"n\":{ROUNDS},\"min\":{:.0},\"median\":{:.0},\"max\":{:.0}}}",
        ns[0],
        ns[ROUNDS / 2],
        ns[ROUNDS - 1]
    );
}

/// Disjoint exact write locks, every second 4 KiB of the object.
fn filled(locks: u64) -> Namespace {
    let mut ns = Namespace::new(NamespaceConfig::default());
    let mut order: Vec<u64> = (0..locks).collect();
    Rng::new(7).shuffle(&mut order);
    for (cookie, at) in order.into_iter().enumerate() {
        let data = LockPolicyData::extent(Extent::at(at * 8192, 4096));
        let req = EnqueueRequest::new(LockCookie(cookie as u64), OBJECT, LockMode::Pw, data);
        let outcome =
            ns.enqueue(Instant(1), ClientId(1 + at % 64), &req.flags(EnqueueFlags::NO_EXPAND), &mut Vec::new());
        assert!(matches!(outcome, EnqueueOutcome::Granted(_)));
    }
    ns
}

fn enqueue_and_cancel(locks: u64) {
    let mut ns = filled(locks);
    let (mut rng, mut cookie, mut out) = (Rng::new(8), 1 << 40, Vec::new());
    report("extent_enqueue_grow_cancel", locks, || {
        for _ in 0..CALLS {
            cookie += 1;
            // A hole between two locks: found, grown to both neighbours, given back.
            let extent = Extent::at(rng.below(locks) * 8192 + 4096 + 1024, 1024);
            let req = EnqueueRequest::new(LockCookie(cookie), OBJECT, LockMode::Pw, LockPolicyData::extent(extent));
            let EnqueueOutcome::Granted(lock) = ns.enqueue(Instant(1), ClientId(99), &req, &mut out) else {
                panic!("a hole is free")
            };
            assert!(ns.cancel(Instant(1), ClientId(99), lock.handle, &mut out));
        }
        CALLS
    });
}

fn conflict_and_hand_over(locks: u64) {
    let mut ns = filled(locks);
    let (mut rng, mut cookie, mut out) = (Rng::new(9), 1 << 40, Vec::new());
    report("extent_conflict_withdraw", locks, || {
        for _ in 0..CALLS {
            cookie += 1;
            let extent = Extent::at(rng.below(locks) * 8192, 4096);
            let req = EnqueueRequest::new(LockCookie(cookie), OBJECT, LockMode::Pr, LockPolicyData::extent(extent));
            let EnqueueOutcome::Waiting(handle) = ns.enqueue(Instant(1), ClientId(99), &req, &mut out) else {
                panic!("somebody writes there")
            };
            assert!(ns.cancel(Instant(1), ClientId(99), handle, &mut out));
        }
        out.clear();
        CALLS
    });
}

fn readers_of_one_directory(locks: u64) {
    let mut ns = Namespace::new(NamespaceConfig::default());
    let mut out = Vec::new();
    let data = LockPolicyData::bits(InodeBits::LOOKUP | InodeBits::UPDATE | InodeBits::PERM);
    for client in 1..=locks {
        let req = EnqueueRequest::new(LockCookie(1), INODE, LockMode::Pr, data);
        ns.enqueue(Instant(1), ClientId(client), &req, &mut out);
    }
    let mut cookie = 1;
    report("inodebits_enqueue_cancel", locks, || {
        for _ in 0..CALLS {
            cookie += 1;
            let req = EnqueueRequest::new(LockCookie(cookie), INODE, LockMode::Pr, data);
            let EnqueueOutcome::Granted(lock) = ns.enqueue(Instant(1), ClientId(7), &req, &mut out) else {
                panic!("readers agree")
            };
            ns.cancel(Instant(1), ClientId(7), lock.handle, &mut out);
        }
        CALLS
    });
}

fn client_match(locks: u64) {
    let mut cache = LockCache::new(LockCacheConfig { lru_max: usize::MAX, ..LockCacheConfig::default() }, 1);
    let mut out = Vec::new();
    for i in 0..locks {
        let data = LockPolicyData::extent(Extent::at(i * 4096, 4096));
        let req = cache.enqueue(Instant(1), OBJECT, LockMode::Pw, data, EnqueueFlags::NONE);
        let (resource, mode, cookie) = (req.resource, req.mode, req.cookie);
        cache.on_granted(Instant(1), LockDesc { handle: HandleId(1 + i), cookie, resource, mode, data }, &mut out);
        cache.release(Instant(1), cookie, &mut out);
        out.clear();
    }
    let (mut rng, mut now) = (Rng::new(10), 1);
    report("client_match_release", locks, || {
        for _ in 0..CALLS {
            now += 1;
            let want = LockPolicyData::extent(Extent::at(rng.below(locks) * 4096 + 100, 1000));
            let Acquire::Held(cookie) = cache.acquire(Instant(now), OBJECT, LockMode::Pr, want, EnqueueFlags::NONE)
            else {
                panic!("all of it is locked")
            };
            cache.release(Instant(now), cookie, &mut out);
        }
        CALLS
    });
}

fn main() {
    for locks in [10, 1000, 100_000] {
        enqueue_and_cancel(locks);
        conflict_and_hand_over(locks);
        readers_of_one_directory(locks);
        client_match(locks);
    }
}
