//! An OST over sessions, as clients see it: bytes, checksums, locks, grants.
#![allow(clippy::unwrap_used)]
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use cache::frames::Bulk;
use oss::store::{MemoryStore, StoreIdentity};
use oss::{Oss, Ost, OstConfig};
use ptlrpc::{CallOptions, Callbacks, ClusterKey, Import, ImportConfig, Server, ServerConfig};
use rt::{LocalFuture, Nid, Rt};
use simworld::TestWorld;
use types::{ClientId, Duration, Extent, FsError, HandleId, MIB, ObjectId, OstIndex, Rng, WallTime};
use wire::lock::{
    BlockingCallback, CancelRequest, CompletionCallback, EnqueueFlags, EnqueueReply, EnqueueRequest, GlimpseReply,
    LockSpec, Lvb, Mode,
};
use wire::ost::{
    AllocateRequest, AttrReply, DestroyRequest, ObjectRequest, PrecreateReply, PrecreateRequest, PunchKind,
    PunchRequest, ReadReply, ReadRequest, SeekKind, SeekReply, SeekRequest, StatfsReply, WriteReply, WriteRequest,
};
use wire::{Op, connect::ParamsReply, connect::ParamsRequest};

fn object(oid: u32) -> ObjectId {
    ObjectId::new(OstIndex(0), oid)
}
fn nid() -> Nid {
    Nid::Local("oss".into())
}

struct Node {
    world: TestWorld,
    oss: Oss,
    ost: Rc<Ost>,
}

fn node(seed: u64, capacity: u64, config: OstConfig) -> Node {
    let world = TestWorld::new(seed, 24 * MIB);
    let rt = world.rt();
    let key = ClusterKey::none();
    let server_config = ServerConfig {
        key,
        recovery_window: Duration::from_secs(30),
        client_timeout: Duration::from_secs(600),
        boot: 1,
    };
    let server = Server::new(rt.clone(), server_config);
    server.listen(&nid()).unwrap();
    let oss = Oss::new(rt.clone(), server, &config).unwrap();
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    let ost = oss.add(MemoryStore::new(&rt, identity, capacity), config).unwrap();
    Node { world, oss, ost }
}

/// A client that holds locks: it flushes nothing, cancels when called back (unless told not to), and answers glimpses.
struct Client {
    rt: Rt,
    import: Rc<Import>,
    me: Rc<Answers>,
    cookies: Cell<u64>,
}

#[derive(Default)]
struct Answers {
    import: RefCell<Option<Rc<Import>>>,
    size: Cell<u64>,
    deaf: Cell<bool>,
    granted: RefCell<Vec<CompletionCallback>>,
    blocked: RefCell<Vec<BlockingCallback>>,
    evicted: Cell<bool>,
}

impl Callbacks for Answers {
    fn on_callback(self: Rc<Self>, op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(async move {
            match op {
                Op::LockBlocking => {
                    let called: BlockingCallback = wire::decode(&body).unwrap();
                    let handle = called.handle;
                    self.blocked.borrow_mut().push(called);
                    if !self.deaf.get() {
                        let import = self.import.borrow().clone().unwrap();
                        let ask = CancelRequest { handles: vec![handle], cookies: Vec::new() };
                        import.ask::<_, ()>(Op::LockCancel, &ask).await.unwrap();
                    }
                    Ok(Vec::new())
                }
                Op::LockCompletion => {
                    self.granted.borrow_mut().push(wire::decode(&body).unwrap());
                    Ok(Vec::new())
                }
                Op::LockGlimpse => {
                    let lvb = Lvb { size: self.size.get(), mtime: WallTime(5), ..Lvb::default() };
                    Ok(wire::encode(&GlimpseReply { lvb: Some(lvb) }))
                }
                _ => Err(FsError::NotSupported),
            }
        })
    }
    fn on_evicted(&self) {
        self.evicted.set(true);
    }
}

impl Client {
    async fn new(rt: Rt, id: u64) -> Client {
        let me = Rc::new(Answers::default());
        let config = ImportConfig {
            nid: nid(),
            target: "stria-OST0000".into(),
            client: ClientId(id),
            key: ClusterKey::none(),
            recoverable: true,
            ping_interval: Duration::from_secs(10),
        };
        let weak: std::rc::Weak<dyn Callbacks> = Rc::downgrade(&(me.clone() as Rc<dyn Callbacks>));
        let import = Import::new(rt.clone(), config, weak);
        *me.import.borrow_mut() = Some(import.clone());
        import.ready(Duration::from_secs(5)).await.unwrap();
        Client { rt, import, me, cookies: Cell::new(1) }
    }
    async fn create(&self, count: u32) {
        let ask = PrecreateRequest { seq: object(1).0.seq, last_used: 0, count, orphans: false };
        let reply: PrecreateReply = self.import.ask(Op::OstPrecreate, &ask).await.unwrap();
        assert!(reply.last >= count);
    }
    async fn write_to(&self, object: ObjectId, pieces: &[(u64, &[u8])], grant: u64) -> Result<WriteReply, FsError> {
        let bytes: Vec<u8> = pieces.iter().flat_map(|(_, b)| b.iter().copied()).collect();
        let mut bulk = Bulk::alloc(self.rt.frames(), bytes.len()).unwrap();
        bulk.copy_in(0, &bytes);
        let extents = pieces.iter().map(|(at, b)| Extent::at(*at, b.len() as u64)).collect();
        let ask = WriteRequest { object, extents, mtime: WallTime(3), grant_used: grant, ..WriteRequest::default() };
        let reply = self.import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await?;
        reply.decode()
    }
    async fn write(&self, at: u64, bytes: &[u8]) -> Result<WriteReply, FsError> {
        self.write_to(object(1), &[(at, bytes)], 0).await
    }
    async fn read_from(&self, object: ObjectId, extents: Vec<Extent>) -> Result<(Vec<u8>, ReadReply), FsError> {
        let ask = ReadRequest { object, extents, ..ReadRequest::default() };
        let reply = self.import.call(Op::OstRead, wire::encode(&ask), Bulk::new(), CallOptions::default()).await?;
        Ok((reply.bulk.to_vec(), reply.decode()?))
    }
    async fn read(&self, at: u64, len: u64) -> Result<Vec<u8>, FsError> {
        self.read_from(object(1), vec![Extent::at(at, len)]).await.map(|(b, _)| b)
    }
    async fn punch(&self, kind: PunchKind, extent: Extent) -> Result<AttrReply, FsError> {
        let ask = PunchRequest { object: object(1), kind, extent, mtime: WallTime(4), ..PunchRequest::default() };
        self.import.ask(Op::OstPunch, &ask).await
    }
    async fn lock(&self, mode: Mode, extent: Extent, flags: u32) -> Result<EnqueueReply, FsError> {
        let cookie = self.cookies.get();
        self.cookies.set(cookie + 1);
        let lock = LockSpec { fid: object(1).0, mode, extent, ..LockSpec::default() };
        let ask = EnqueueRequest { lock, flags, cookie, cancels: Vec::new() };
        self.import.ask(Op::LockEnqueue, &ask).await
    }
}

/// Random byte ranges against an array, in one of the cache's settings.
async fn bytes_equal_an_array(rt: Rt, seed: u64) {
    let c = Client::new(rt, 1).await;
    c.create(1).await;
    let (mut rng, mut model) = (Rng::new(seed), Vec::<u8>::new());
    const MAX: u64 = 300_000;
    for step in 0..400u32 {
        let at = if rng.chance(0.3) { rng.below(70) * 4096 } else { rng.below(MAX) };
        let len = 1 + if rng.chance(0.5) { rng.below(9000) } else { rng.below(90_000) };
        let end = at + len;
        match rng.below(10) {
            0..4 => {
                let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
                let reply = c.write(at, &bytes).await.unwrap();
                model.resize(model.len().max(end as usize), 0);
                model[at as usize..end as usize].copy_from_slice(&bytes);
                assert_eq!(reply.lvb.size, model.len() as u64);
            }
            4 => {
                let pieces: Vec<(u64, Vec<u8>)> = (0..3)
                    .map(|i| (at + i * 7000, vec![(u64::from(step) + i) as u8; 1 + rng.below(6999) as usize]))
                    .collect();
                let slices: Vec<(u64, &[u8])> = pieces.iter().map(|(a, b)| (*a, &b[..])).collect();
                c.write_to(object(1), &slices, 0).await.unwrap();
                for (a, b) in &pieces {
                    model.resize(model.len().max(*a as usize + b.len()), 0);
                    model[*a as usize..*a as usize + b.len()].copy_from_slice(b);
                }
            }
            5 => {
                let reply = c.punch(PunchKind::Truncate, Extent::from(at)).await.unwrap();
                model.resize(at as usize, 0);
                assert_eq!(reply.lvb.size, at);
            }
            6 => {
                let kind = if rng.chance(0.5) { PunchKind::Hole } else { PunchKind::Zero };
                c.punch(kind, Extent::new(at, end)).await.unwrap();
                let (a, b) = ((at as usize).min(model.len()), (end as usize).min(model.len()));
                model[a..b].fill(0);
            }
            _ => {
                let second = Extent::at(end + rng.below(3) * 5000, 1 + rng.below(20_000));
                let first = Extent::new(at, end);
                let (got, reply) = c.read_from(object(1), vec![first, second]).await.unwrap();
                let part = |e: Extent| &model[(e.start as usize).min(model.len())..(e.end as usize).min(model.len())];
                assert!(got == [part(first), part(second)].concat(), "step {step}: {first} {second}");
                assert_eq!(reply.lens, [part(first).len() as u32, part(second).len() as u32]);
            }
        }
    }
    let all = c.read(0, 2 * MAX).await.unwrap();
    assert!(all == model);
}

#[test]
fn bytes_through_an_ost_equal_an_array_with_every_setting_of_the_cache() {
    for (i, (read_cache, writethrough_cache)) in
        [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate()
    {
        for cache_bytes in [0, 128 << 10, 8 << 20] {
            let cache_first = i % 2 == 1;
            let config = OstConfig { read_cache, writethrough_cache, cache_bytes, cache_first, ..OstConfig::default() };
            let n = node(i as u64 + cache_bytes, 1 << 30, config);
            n.world.run(bytes_equal_an_array(n.world.rt(), i as u64 + cache_bytes));
        }
    }
}

#[test]
fn a_damaged_transfer_is_refused_and_changes_nothing() {
    let n = node(1, 1 << 30, OstConfig::default());
    let (rt, world, ost) = (n.world.rt(), n.world.clone(), n.ost.clone());
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(1).await;
        c.write(0, &[1; 10_000]).await.unwrap();
        world.damage_next_bulk();
        assert_eq!(c.write(0, &[2; 10_000]).await.unwrap_err(), FsError::Corrupt);
        assert_eq!(c.read(0, 10_000).await.unwrap(), [1; 10_000]);
        let stats = ost.get_params("obdfilter.*.stats");
        assert!(String::from_utf8_lossy(&stats[0].value).contains("bulk_checksum_errors"));
    });
    drop(n.oss);
}

#[test]
fn requests_that_are_not_sensible_are_refused() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(2).await;
        assert_eq!(c.write_to(object(9), &[(0, &[1])], 0).await.unwrap_err(), FsError::NotFound);
        assert_eq!(c.write_to(object(1), &[(10, &[1; 9]), (12, &[1])], 0).await.unwrap_err(), FsError::Invalid);
        assert_eq!(c.write(i64::MAX as u64, &[1]).await.unwrap_err(), FsError::FileTooBig);
        assert_eq!(c.read(0, 5 * MIB).await.unwrap_err(), FsError::TooBig);
        assert_eq!(c.read_from(object(1), Vec::new()).await.unwrap_err(), FsError::Invalid);
        assert_eq!(c.read(0, 0).await.unwrap_err(), FsError::Invalid);
        assert_eq!(c.punch(PunchKind::Hole, Extent::at(5, 0)).await.unwrap_err(), FsError::Invalid);
        let junk = c.import.call(Op::OstWrite, vec![255; 9], Bulk::new(), CallOptions::default()).await;
        assert_eq!(junk.unwrap_err(), FsError::Protocol);
        let wrong = PrecreateRequest { seq: 5, last_used: 0, count: 1, orphans: false };
        assert_eq!(c.import.ask::<_, PrecreateReply>(Op::OstPrecreate, &wrong).await.unwrap_err(), FsError::Invalid);
        let gone = DestroyRequest { objects: vec![object(2), object(77)] };
        c.import.ask::<_, ()>(Op::OstDestroy, &gone).await.unwrap();
        let ask = ObjectRequest { object: object(2) };
        assert_eq!(c.import.ask::<_, AttrReply>(Op::OstGetattr, &ask).await.unwrap_err(), FsError::NotFound);
    });
}

#[test]
fn holes_are_found_and_reserved_space_reads_as_zeros() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(1).await;
        c.write(8192, &[1; 4096]).await.unwrap();
        let seek = async |offset, kind| {
            let ask = SeekRequest { object: object(1), offset, kind };
            c.import.ask::<_, SeekReply>(Op::OstSeek, &ask).await.unwrap().offset
        };
        assert_eq!(seek(5, SeekKind::Data).await, 8192);
        assert_eq!(seek(8200, SeekKind::Data).await, 8200);
        assert_eq!(seek(8200, SeekKind::Hole).await, 12288);
        assert_eq!(seek(3, SeekKind::Hole).await, 3);
        assert_eq!(seek(12288, SeekKind::Data).await, u64::MAX);
        let ask = AllocateRequest { object: object(1), extent: Extent::new(100, 50_000), ..AllocateRequest::default() };
        let reply: AttrReply = c.import.ask(Op::OstAllocate, &ask).await.unwrap();
        assert_eq!((reply.lvb.size, reply.lvb.blocks), (50_000, 13 * 8));
        assert_eq!(c.read(20_000, 4000).await.unwrap(), [0; 4000]);
        assert_eq!(c.read(8192, 10).await.unwrap(), [1; 10]);
    });
}

#[test]
fn reserved_space_takes_writes_when_there_is_no_other() {
    let n = node(5, 24 * MIB, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(2).await;
        let extent = Extent::new(0, 8 * MIB);
        let ask = AllocateRequest { object: object(1), extent, ..AllocateRequest::default() };
        c.import.ask::<_, AttrReply>(Op::OstAllocate, &ask).await.unwrap();
        let piece = vec![1; MIB as usize];
        let mut at = 0;
        while c.write_to(object(2), &[(at, &piece)], 0).await.is_ok() {
            at += MIB;
        }
        assert!(at > 0, "there is space besides what was reserved");
        let halves: [(u64, &[u8]); 2] = [(100, &piece[..5000]), (4 * MIB, &piece)];
        c.write_to(object(1), &halves, 0).await.expect("there is space for what was reserved");
        for i in 0..8 {
            c.write_to(object(1), &[(i * MIB, &piece)], 0).await.map(drop).unwrap_or_else(|e| {
                // Written twice: new bytes go elsewhere before the old ones are free.
                assert!(matches!(i, 0 | 4) && e == FsError::NoSpace, "{i}: {e}");
            });
        }
        let behind = c.write_to(object(1), &[(8 * MIB, &piece)], 0).await.map(drop);
        assert_eq!(behind, Err(FsError::NoSpace), "behind it");
    });
}

#[test]
fn a_conflicting_lock_is_called_back_and_its_waiter_completed() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (a, b) = (Client::new(rt.clone(), 1).await, Client::new(rt.clone(), 2).await);
        a.create(1).await;
        let held = a.lock(Mode::Pw, Extent::at(0, 4096), 0).await.unwrap();
        assert!(held.granted && held.lock.extent == Extent::ALL, "an uncontended lock grows");
        a.me.size.set(777);
        let glimpse = b.lock(Mode::Pr, Extent::ALL, EnqueueFlags::GLIMPSE).await.unwrap();
        assert_eq!((glimpse.handle, glimpse.granted), (HandleId(0), false));
        assert_eq!(glimpse.lvb.map(|l| (l.size, l.mtime)), Some((777, WallTime(5))));
        assert_eq!(b.lock(Mode::Pr, Extent::ALL, EnqueueFlags::NOWAIT).await.unwrap_err(), FsError::WouldBlock);
        let waiting = b.lock(Mode::Pr, Extent::at(0, 10), 0).await.unwrap();
        assert!(!waiting.granted && waiting.handle.0 != 0);
        while b.me.granted.borrow().is_empty() {
            rt.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(b.me.granted.borrow()[0].handle, waiting.handle);
        assert_eq!(a.me.blocked.borrow()[0].handle, held.handle);
        // A request without a lock waits for b's lock to go, too.
        a.write(0, &[3; 100]).await.unwrap();
        assert_eq!(b.me.blocked.borrow().len(), 1);
    });
}

#[test]
fn a_client_that_ignores_a_callback_is_evicted_and_the_others_go_on() {
    let n = node(1, 1 << 30, OstConfig::default());
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let (a, b) = (Client::new(rt.clone(), 1).await, Client::new(rt.clone(), 2).await);
        a.create(1).await;
        a.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        a.me.deaf.set(true);
        let start = rt.now();
        b.write(0, &[1; 100]).await.unwrap();
        assert!(rt.now().since(start) >= Duration::from_secs(30));
        rt.sleep(Duration::from_secs(2)).await;
        assert!(a.me.evicted.get());
        let locks = ost.get_params("ldlm.namespaces.*.lock_count");
        assert_eq!(&locks[0].value[..], b"0");
    });
}

#[test]
fn a_read_brings_its_lock_along_and_waits_for_nobody() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (a, b) = (Client::new(rt.clone(), 1).await, Client::new(rt.clone(), 2).await);
        a.create(1).await;
        a.write(0, &[9; 5000]).await.unwrap();
        let lock = LockSpec { fid: object(1).0, mode: Mode::Pr, extent: Extent::at(0, 4096), ..LockSpec::default() };
        let enqueue = Some(EnqueueRequest { lock, cookie: 50, ..EnqueueRequest::default() });
        let ask = ReadRequest { object: object(1), extents: vec![Extent::at(0, 4096)], enqueue, ..Default::default() };
        let reply = a.import.call(Op::OstRead, wire::encode(&ask), Bulk::new(), CallOptions::default()).await.unwrap();
        let body: ReadReply = reply.decode().unwrap();
        let lock = body.enqueue.unwrap();
        assert!(lock.granted && lock.handle.0 != 0 && lock.lvb.is_some_and(|v| v.size == 5000));
        assert_eq!((body.lens, reply.bulk.to_vec()), (vec![4096], vec![9; 4096]));
        // Sent again, it gets the same lock and the bytes once more.
        let reply = a.import.call(Op::OstRead, wire::encode(&ask), Bulk::new(), CallOptions::default()).await.unwrap();
        let body: ReadReply = reply.decode().unwrap();
        assert_eq!((body.enqueue.unwrap().handle, reply.bulk.len()), (lock.handle, 4096));
        assert_eq!(&n.ost.get_params("ldlm.namespaces.*.lock_count")[0].value[..], b"1");
        // With a writer in the way it is a wish for a lock like any other, and nothing is read.
        b.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        let mut again = ask.clone();
        again.enqueue.as_mut().unwrap().cookie = 51;
        let reply =
            a.import.call(Op::OstRead, wire::encode(&again), Bulk::new(), CallOptions::default()).await.unwrap();
        let body: ReadReply = reply.decode().unwrap();
        assert!(body.enqueue.is_some_and(|e| !e.granted && e.handle.0 != 0));
        assert_eq!((body.lens.len(), reply.bulk.len(), b.me.blocked.borrow().len()), (0, 0, 1));
    });
}

#[test]
fn a_write_with_grant_never_fails_and_a_full_target_says_so_at_once() {
    let config = OstConfig { grant_initial_bytes: MIB, grant_max_bytes: 4 * MIB, ..OstConfig::default() };
    let n = node(4, 24 * MIB, config);
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let clients = [Client::new(rt.clone(), 1).await, Client::new(rt.clone(), 2).await];
        clients[0].create(2).await;
        let mut grants = clients.each_ref().map(|c| c.import.session().grant);
        assert_eq!(grants, [MIB; 2]);
        let (mut rng, mut full, mut at) = (Rng::new(3), 0, [0u64; 2]);
        while full < 10 {
            let i = rng.below(2) as usize;
            let len = 4096 * (1 + rng.below(30));
            let charge = if grants[i] >= len { len } else { 0 };
            let ask = WriteRequest {
                object: object(1 + i as u32),
                extents: vec![Extent::at(at[i], len)],
                grant_used: charge,
                grant_wanted: 2 * MIB,
                ..WriteRequest::default()
            };
            let bulk = Bulk::alloc(rt.frames(), len as usize).unwrap();
            let call = clients[i].import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default());
            match call.await {
                Ok(reply) => {
                    grants[i] = grants[i] + reply.decode::<WriteReply>().unwrap().grant - charge;
                    at[i] += len;
                }
                Err(e) => {
                    assert_eq!((e, charge), (FsError::NoSpace, 0), "a granted write failed");
                    full += 1;
                    grants[i] -= charge;
                }
            }
            let s: StatfsReply = ost.statfs();
            assert!(s.available <= s.free && s.free >= grants.iter().sum::<u64>(), "{s:?} {grants:?}");
        }
        assert!(at.iter().sum::<u64>() > 18 * MIB, "{at:?}");
        // What is punched can be written again.
        clients[0].punch(PunchKind::Truncate, Extent::from(0)).await.unwrap();
        clients[0].write(0, &[1; 40_960]).await.unwrap();
    });
}

#[test]
fn parameters_are_read_and_set_over_the_wire_while_it_runs() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        let ask = async |pattern: &str, value: Option<&str>| {
            let value = value.map(Into::into);
            let ask = ParamsRequest { pattern: pattern.into(), value, ..ParamsRequest::default() };
            let reply = c.import.ask::<_, ParamsReply>(Op::Params, &ask).await.unwrap();
            let error = String::from_utf8_lossy(&reply.error).into_owned();
            if error.is_empty() { Ok(reply.params) } else { Err(error) }
        };
        c.create(1).await;
        for policy in ["obrr", "tbf", "crrn", "fifo"] {
            let set = ask("ost.OSS.ost_io.nrs_policies", Some(policy)).await.unwrap();
            assert_eq!(&set[0].value[..], policy.as_bytes());
            c.write(0, &[1; 9000]).await.unwrap();
            assert_eq!(c.read(0, 9000).await.unwrap().len(), 9000);
        }
        // Lustre's names and spellings; a quantum belongs to the policy that is in use.
        let nrs = async |name: &str, value: &str| ask(&format!("ost.OSS.ost_io.nrs_{name}"), Some(value)).await;
        for (policy, value, quantum, set, shown) in [
            ("orr", "orr reg", "orr_quantum", "reg_quantum:16", "reg_quantum:16"),
            ("trr", "trr", "trr_quantum", "8", "reg_quantum:8"),
            ("crrn", "crrn", "crrn_quantum", "0", "reg_quantum:16"),
            ("deadline+obrr", "deadline+obrr", "obrr_quantum", "4", "reg_quantum:4"),
        ] {
            assert_eq!(&nrs("policies", value).await.unwrap()[0].value[..], policy.as_bytes());
            assert_eq!(&nrs(quantum, set).await.unwrap()[0].value[..], shown.as_bytes(), "{policy}");
            c.write(0, &[1; 9000]).await.unwrap();
        }
        let said = nrs("orr_quantum", "8").await.unwrap_err();
        assert!(said.contains("not in use"), "{said}");
        let said = nrs("policies", "orr hp").await.unwrap_err();
        assert!(said.contains("high-priority"), "{said}");
        nrs("policies", "tbf nid").await.unwrap();
        for rule in [
            "start a uid={3}&opcode={ost_write} rate=5",
            "start b jobid={dd.0} rate=7 bytes=1M",
            "start c client={9} rate=2",
        ] {
            nrs("tbf_rule", rule).await.unwrap();
        }
        let rules = nrs("tbf_rule", "change a rate=6").await.unwrap();
        let rules = String::from_utf8_lossy(&rules[0].value).into_owned();
        assert!(
            ["a uid={3}&opcode={ost_write} 6", "b jobid={dd.0} 7", "c client={9} 2", "default * 10000"]
                .iter()
                .all(|r| rules.contains(r)),
            "{rules}"
        );
        assert!(nrs("tbf_rule", "stop d").await.unwrap_err().contains("'d'"));
        nrs("policies", "fifo").await.unwrap();
        ask("ost.OSS.ost_io.dispatch_window", Some("4")).await.unwrap();
        let said = ask("ost.OSS.ost_io.dispatch_window", Some("0")).await.unwrap_err();
        assert!(said.starts_with("ost.OSS.ost_io.dispatch_window: "), "{said}");
        let said = ask("obdfilter.*.kbytesfree", Some("1")).await.unwrap_err();
        assert!(said.contains("kbytesfree: it cannot be set"), "{said}");
        ask("obdfilter.*.cache_policy", Some("fgf_lru")).await.unwrap();
        assert_eq!(c.read(0, 9000).await.unwrap(), [1; 9000]);
        for key in cache::CacheConfig::KEYS {
            let name = format!("obdfilter.*.cache_{key}");
            let now = ask(&name, None).await.unwrap().remove(0);
            assert!(now.writable, "{name}");
            ask(&name, Some(std::str::from_utf8(&now.value).unwrap())).await.unwrap();
        }
        assert_eq!(ask("obdfilter.*.num_exports", None).await.unwrap()[0].value[..], *b"1");
        assert!(ask("*.*.*", None).await.unwrap().len() > 15);
    });
}

#[test]
fn what_the_cache_holds_whole_waits_for_no_turn_when_it_is_to_come_first() {
    let n = node(41, 1 << 30, OstConfig::default());
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(1).await;
        c.write(0, &[5; 50_000]).await.unwrap();
        // Requests that the scheduler saw while something was read.
        let scheduled = async |at: u64, len: u64| {
            ost.set_params("ost.OSS.ost_io.nrs_record", "64K").unwrap();
            let got = c.read(at, len).await.unwrap();
            assert_eq!(got, vec![5; len.min(50_000 - at) as usize]);
            nrs::record::replay(&ost.take_nrs_record().unwrap()).unwrap().calls > 0
        };
        let first = |value: &str| ost.set_params("obdfilter.*.cache_first", value);
        assert!(scheduled(0, 9000).await, "servers let every read wait its turn");
        first("1").unwrap();
        assert!(!scheduled(0, 9000).await);
        assert!(!scheduled(40_000, 20_000).await, "and what there is behind the end of the object");
        ost.set_params("obdfilter.*.cache_bytes", "16K").unwrap();
        assert!(scheduled(0, 30_000).await, "it is in the cache no more");
        assert!(scheduled(0, 30_000).await, "nor is there room for all of it");
        assert!(scheduled(20_000, 4_000).await != scheduled(20_000, 4_000).await, "the second time it is there");
        ost.set_params("obdfilter.*.cache_bytes", "0").unwrap();
        assert!(scheduled(0, 4_000).await);
        assert!(first("perhaps").unwrap_err().contains("'perhaps'"));
    });
}

#[test]
fn what_a_server_recorded_under_load_replays_to_the_same_answers() {
    for (seed, policy) in [(21, "obrr+"), (22, "crrn"), (23, "deadline+obrr")] {
        let n = node(seed, 1 << 30, OstConfig { dispatch_window: 1, ..OstConfig::default() });
        let (rt, ost) = (n.world.rt(), n.ost.clone());
        n.world.run(async move {
            let set = |name: &str, value: &str| ost.set_params(&format!("ost.OSS.ost_io.{name}"), value);
            let set_cache = |name: &str, value: &str| ost.set_params(&format!("obdfilter.*.{name}"), value);
            set("nrs_policies", policy).unwrap();
            set_cache("cache_bytes", "400K").unwrap();
            assert!(set("nrs_record", "check").unwrap_err().contains("nothing was recorded"));
            assert!(set("nrs_record", "1K").unwrap_err().contains("4K to 1G"));
            let load = (1..=5u32).map(|i| {
                let (rt, ost) = (rt.clone(), ost.clone());
                async move {
                    let c = Client::new(rt.clone(), u64::from(i)).await;
                    c.create(i).await;
                    let mut rng = Rng::named(seed, &i.to_string());
                    for step in 0..60u64 {
                        if i == 3 && step == 20 {
                            // In the middle: some requests are queued and one is in service.
                            ost.set_params("ost.OSS.ost_io.nrs_record", "4M").unwrap();
                            ost.set_params("obdfilter.*.cache_record", "4M").unwrap();
                        }
                        if i == 3 && step == 40 {
                            ost.set_params("obdfilter.*.cache_policy", "arc").unwrap();
                        }
                        if i == 4 && step > 40 {
                            let percent = (1 + rng.below(50)).to_string();
                            ost.set_params("obdfilter.*.cache_small_queue_percent", &percent).unwrap();
                        }
                        let bytes = vec![i as u8; 1 + rng.below(60_000) as usize];
                        c.write_to(object(i), &[(rng.below(40) * 4096, &bytes)], 0).await.unwrap();
                        c.read_from(object(i), vec![Extent::at(rng.below(40) * 4096, 9000)]).await.unwrap();
                    }
                }
            });
            let load = load.map(|l| Box::pin(l) as rt::LocalFuture<()>).collect();
            rt::sync::join_all(load).await;
            for (name, calls_min) in [("ost.OSS.ost_io.nrs_record", 500), ("obdfilter.*.cache_record", 1000)] {
                ost.set_params(name, "check").unwrap();
                let said = ost.get_params(name).remove(0).value;
                let said = String::from_utf8_lossy(&said).into_owned();
                assert!(said.ends_with("the same answers"), "{policy} {name}: {said}");
                let calls: u32 = said.split(' ').next().unwrap().parse().unwrap();
                assert!(calls > calls_min, "{policy} {name}: {said}");
            }
            set_cache("cache_bypass_bytes", "64K").unwrap();
            set_cache("cache_bytes", "0").unwrap();
            set_cache("cache_duel_sample_one_in", "16").unwrap();
            let get = |name: &str| ost.get_params(&format!("obdfilter.*.{name}")).remove(0).value;
            assert_eq!(
                (&get("cache_bypass_bytes")[..], &get("cache_duel_sample_one_in")[..]),
                (&b"65536"[..], &b"16"[..])
            );
            let said = set_cache("cache_bypass_bytes", "5").unwrap_err();
            assert!(said.ends_with("bypass_bytes = '5' is out of range: 4096 to 4294967296 bytes"), "{said}");
            assert!(set_cache("cache_batch_pages", "many").unwrap_err().contains("'many' is not a whole number"));
            assert!(set_cache("cache_record", "4M").unwrap_err().contains("the cache is off"));

            set("nrs_record", "64K").unwrap();
            let mut log = ost.take_nrs_record().unwrap();
            assert!(nrs::record::replay(&log).is_ok_and(|r| r.calls == 0));
            log.truncate(log.len() - 3);
            assert!(nrs::record::replay(&log).is_err());
        });
    }
}

#[test]
fn measured_bandwidths_lie_within_5_percent_of_the_stores_at_every_record_size() {
    use oss::store::{DeviceProfile, EmulatedStore, ObjectStore};
    for (name, window) in [("paper001", 16), ("hdd", 4), ("ssd", 8)] {
        let profile = DeviceProfile::named(name).unwrap();
        let world = TestWorld::new(5, 512 * MIB);
        let rt = world.rt();
        world.run(async move {
            let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
            let memory = MemoryStore::new(&rt, identity, 1 << 30);
            let store: Rc<dyn ObjectStore> = EmulatedStore::new(rt.clone(), memory, profile.clone());
            for _ in 0..2 {
                let objects = store.space().objects;
                let table = oss::bandwidth::measure(&rt, &store, window).await.unwrap();
                assert_eq!(store.space().objects, objects, "nothing is left behind");
                for (i, measured) in table.into_iter().enumerate() {
                    let record = (64 << 10 << i) as f64;
                    let transfer = record / profile.bandwidth_bytes_per_s as f64;
                    let each = profile.seek_ms / 1e3 + profile.request_us / 1e6 + transfer;
                    // One spindle; no record follows the last one at its place.
                    let direct = record / each;
                    let off = measured as f64 / direct - 1.0;
                    assert!(off.abs() < 0.05, "{name}, {record} bytes: {measured} B/s, {direct} directly");
                }
            }
        });
    }
}

#[test]
fn an_ost_measures_its_store_when_it_is_told_to() {
    let n = node(31, 1 << 30, OstConfig::default());
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let bw = "ost.OSS.ost_io.nrs_bw_mb_per_s";
        let now = || String::from_utf8_lossy(&ost.get_params(bw)[0].value).into_owned();
        let before = now();
        assert!(ost.set_params(bw, "fast").is_err());
        ost.set_params(bw, "measure").unwrap();
        for _ in 0..60 {
            rt.sleep(Duration::from_secs(1)).await;
        }
        // Memory takes no virtual time: as fast as can be said.
        assert_eq!((before.as_str(), now().as_str()), ("250", "1000000"));
        ost.set_params(bw, "100").unwrap();
    });
}
