//! Sessions where something takes longer than anybody waits for at once: a link, a store's commits, an answer that never comes. And
//! what a client may leave with a server that waits.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use frames::{Bulk, FramePool};
use ptlrpc::stream::{Sink, Source, ends};
use ptlrpc::{
    Binding, CallOptions, Callbacks, ClusterKey, Export, Import, ImportConfig, Request, Server, ServerConfig, Service,
    SessionRecord, meant,
};
use rt::{LocalFuture, Nid, Rt};
use simworld::{Host, Sim, SimConfig};
use types::{ClientId, Duration, FsError, Transno, Xid};
use wire::connect::{AuthRequest, ConnectReply, ConnectRequest, Role};
use wire::{Flags, Header, Op};

const BULK_BYTES: usize = 64 << 20;
const KEEPS: ClientId = ClientId(1);
const COMES: ClientId = ClientId(2);

/// What outlives a server.
#[derive(Default)]
struct Store {
    clients: RefCell<BTreeMap<ClientId, Option<Binding>>>,
    /// How long each of its commits takes, one behind the other; zero: no time.
    commit: Cell<Duration>,
}

struct Target(Rt, Rc<Store>);

impl Service for Target {
    fn target(&self) -> String {
        "target".into()
    }
    fn cluster(&self) -> u64 {
        7
    }
    fn uuid(&self) -> u64 {
        9
    }
    fn handle(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        Box::pin(async move {
            match request.header.op {
                Op::OstRead => {
                    let bulk = self.0.bulk(BULK_BYTES).await;
                    request.reply_bulk(&(), bulk, None);
                }
                _ => request.reply(Ok(&())),
            }
        })
    }
    fn last_committed(&self, _: ClientId) -> Transno {
        Transno(0)
    }
    fn sessions(&self) -> Vec<SessionRecord> {
        let record = |(client, binding): (&ClientId, &Option<Binding>)| SessionRecord {
            client: *client,
            binding: *binding,
            ..SessionRecord::default()
        };
        self.1.clients.borrow().iter().map(record).collect()
    }
    fn session_opened(self: Rc<Self>, export: Rc<Export>, known: bool) -> LocalFuture<Result<(), FsError>> {
        Box::pin(async move {
            let takes = self.1.commit.get().as_nanos() as u64;
            if !known && takes > 0 {
                // The commit under way does not have it: the one behind it has.
                let now = self.0.now().0;
                self.0.sleep(Duration::from_nanos((now / takes + 2) * takes - now)).await;
            }
            self.1.clients.borrow_mut().insert(export.client(), export.binding());
            Ok(())
        })
    }
    fn session_closed(self: Rc<Self>, client: ClientId, _: bool) -> LocalFuture<()> {
        self.1.clients.borrow_mut().remove(&client);
        Box::pin(std::future::ready(()))
    }
}

struct Deaf;
impl Callbacks for Deaf {
    fn on_callback(self: Rc<Self>, _: Op, _: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(std::future::ready(Err(FsError::NotSupported)))
    }
}

fn key() -> ClusterKey {
    ClusterKey::from_text(b"0123456789abcdef").unwrap()
}

struct World {
    sim: Sim,
    host: Host,
    nid: Nid,
    store: Rc<Store>,
    server: RefCell<Option<Rc<Server>>>,
    callbacks: Rc<dyn Callbacks>,
}

impl World {
    fn new(config: SimConfig) -> World {
        let sim = Sim::new(config, FramePool::new(512 << 20));
        let host = sim.host("server");
        let (nid, server) = (host.nid(7), RefCell::default());
        let world = World { sim, host, nid, store: Rc::default(), server, callbacks: Rc::new(Deaf) };
        world.start(1);
        world
    }
    fn start(&self, boot: u64) {
        let rt = self.host.boot();
        let (recovery_window, client_timeout) = (Duration::from_secs(30), Duration::from_secs(60));
        let server = Server::new(rt.clone(), ServerConfig { key: key(), recovery_window, client_timeout, boot });
        server.add(Rc::new(Target(rt, self.store.clone())));
        server.listen(&self.nid).unwrap();
        *self.server.borrow_mut() = Some(server);
    }
    fn server(&self) -> Rc<Server> {
        self.server.borrow().clone().unwrap()
    }
    fn import(&self, client: ClientId) -> (Rt, Rc<Import>) {
        let rt = self.sim.host("client").boot();
        let (nid, target, ping_interval) = (self.nid.clone(), "target".into(), Duration::from_secs(10));
        let config = ImportConfig { nid, target, client, key: key(), recoverable: true, ping_interval, place: 0 };
        (rt.clone(), Import::new(rt, config, Rc::downgrade(&self.callbacks)))
    }
}

#[test]
fn what_takes_longer_on_the_wire_than_a_ping_is_waited_for_gets_through() {
    for (seed, rate) in [(1, 5_000_000), (2, 700_000)] {
        let world = World::new(SimConfig { nic_bytes_per_s: rate, ..SimConfig::new(seed) });
        let (rt, import) = world.import(COMES);
        world.sim.run(async {
            import.ready(Duration::from_secs(20)).await.unwrap();
            let bulk = rt.bulk(BULK_BYTES).await;
            let limit = Duration::from_secs(400);
            let call = |op, bulk: Bulk| rt.timeout(limit, import.call(op, Vec::new(), bulk, CallOptions::default()));
            assert!(matches!(call(Op::OstWrite, bulk).await, Some(Ok(_))), "{rate} bytes/s: the write");
            let read = call(Op::OstRead, Bulk::new()).await;
            assert_eq!(read.and_then(Result::ok).map(|r| r.bulk.len()), Some(BULK_BYTES), "{rate} bytes/s: the read");
            // Each alone, several at once.
            let all = (0..3).map(|_| call(Op::OstRead, Bulk::new())).collect();
            let all = rt::sync::join_all(all).await;
            assert!(all.iter().all(|r| matches!(r, Some(Ok(_)))), "{rate} bytes/s: reads beside each other");
        });
        let (sessions, _, resent) = import.counters();
        assert_eq!((sessions, resent, import.evictions(), world.server().evictions(COMES)), (1, 0, 0, 0));
    }
}

#[test]
fn a_server_that_dies_amid_a_long_message_is_noticed_as_soon_as_ever() {
    for op in [Op::OstWrite, Op::OstRead] {
        let world = World::new(SimConfig { nic_bytes_per_s: 1_000_000, ..SimConfig::new(3) });
        let (rt, import) = world.import(COMES);
        let noticed = world.sim.run(async {
            import.ready(Duration::from_secs(20)).await.unwrap();
            let bulk = if op == Op::OstWrite { rt.bulk(BULK_BYTES).await } else { Bulk::new() };
            let asking = import.clone();
            rt.spawn(async move { _ = asking.call(op, Vec::new(), bulk, CallOptions::default()).await });
            world.sim.sleep(Duration::from_secs(20)).await;
            assert_eq!(import.counters().0, 1);
            let since = world.sim.now();
            world.host.lose_power();
            while import.state() == ptlrpc::ImportState::Full {
                world.sim.sleep(Duration::from_millis(50)).await;
            }
            world.sim.now().since(since)
        });
        let at_min = ptlrpc::AdaptiveTimeouts::default().min;
        assert!(noticed <= at_min * 2, "{op:?}: {noticed:?}");
    }
}

#[test]
fn a_session_that_the_store_needs_longer_for_than_a_handshake_may_take_is_found_by_the_next_one() {
    for seed in 0..4 {
        let world = World::new(SimConfig::new(seed));
        world.store.commit.set(Duration::from_secs(12));
        world.sim.run(world.sim.sleep(Duration::from_millis(100 + seed * 3000)));
        let (_, import) = world.import(COMES);
        world.sim.run(async {
            assert_eq!(import.ready(Duration::from_secs(31)).await, Ok(()), "seed {seed}");
            assert_eq!(import.ask::<_, ()>(Op::MdtGetattr, &()).await, Ok(()));
        });
        assert_eq!((import.evictions(), import.counters().0), (0, 1), "seed {seed}");
    }
}

/// Whether a message is the server's last one before that which opens a session.
fn is_connect_reply(head: &rt::Head) -> bool {
    Header::from_bytes(head).is_ok_and(|h| h.op == Op::Connect && h.flags.has(Flags::REPLY))
}

#[test]
fn who_never_heard_that_it_has_a_session_is_not_waited_for_by_all_after_a_restart() {
    for seed in 0..4 {
        let world = World::new(SimConfig::new(seed));
        let (_, keeps) = world.import(KEEPS);
        world.sim.run(keeps.ready(Duration::from_secs(20))).unwrap();
        let _silent = world.host.falls_silent(is_connect_reply, 1);
        let (rt, comes) = world.import(COMES);
        world.sim.run(async {
            while !world.store.clients.borrow().contains_key(&COMES) {
                world.sim.sleep(Duration::from_micros(1)).await;
            }
            world.host.kill();
        });
        assert_eq!(comes.counters().0, 0, "seed {seed}: its answer is lost");
        world.start(2);
        let began = world.sim.now();
        world.sim.run(async {
            rt.sleep(Duration::from_millis(10)).await;
            while world.server().is_recovering() {
                world.sim.sleep(Duration::from_millis(50)).await;
            }
        });
        let took = world.sim.now().since(began);
        assert!(took < Duration::from_secs(2), "seed {seed}: the recovery took {took:?}");
        world.sim.run(async {
            for import in [&keeps, &comes] {
                assert_eq!(import.ready(Duration::from_secs(5)).await, Ok(()), "seed {seed}");
                assert_eq!(import.ask::<_, ()>(Op::MdtGetattr, &()).await, Ok(()), "seed {seed}");
            }
        });
        for (client, import) in [(KEEPS, &keeps), (COMES, &comes)] {
            assert_eq!((world.server().evictions(client), import.evictions()), (0, 0), "seed {seed}: {client}");
        }
    }
}

/// A session by hand.
async fn by_hand(rt: &Rt, nid: &Nid, client: ClientId) -> (Rc<Sink>, Source) {
    let (sink, mut source) = ends(rt.connect(nid).await.unwrap());
    let ask = ConnectRequest {
        target: "target".into(),
        nonce: vec![1; 32].into(),
        recoverable: true,
        ..ConnectRequest::default()
    };
    sink.send(Header::request(Op::Connect, client, Xid(0)), wire::encode(&ask), Bulk::new());
    let answer: ConnectReply = wire::decode(&source.recv().await.unwrap().1).unwrap();
    let said = meant(&ask, &answer, None);
    let proof = key().proof("client", Role::Client, [&ask.nonce, &answer.nonce], &said, client).unwrap();
    let identity = wire::Bytes(vec![5; 32]);
    let auth = AuthRequest {
        proof: proof.to_vec().into(),
        identity: identity.clone(),
        next: identity,
        ..AuthRequest::default()
    };
    sink.send(Header::request(Op::Auth, client, Xid(0)), wire::encode(&auth), Bulk::new());
    assert_eq!(source.recv().await.unwrap().0.result(), Ok(()));
    (sink, source)
}

#[test]
fn requests_that_wait_for_a_recovery_hold_no_more_of_a_servers_memory_than_one_session_may_have() {
    let world = World::new(SimConfig::new(1));
    let rt = world.sim.host("client").boot();
    let (_, keeps) = world.import(KEEPS);
    world.sim.run(keeps.ready(Duration::from_secs(20))).unwrap();
    keeps.abandon();
    world.sim.run(async { drop(by_hand(&rt, &world.nid, COMES).await) });
    world.host.kill();
    world.start(2);
    world.sim.run(async {
        let (sink, mut source) = by_hand(&rt, &world.nid, COMES).await;
        let server = world.server();
        let held = || server.exports("target").iter().map(|e| e.requests_under_way()).sum::<usize>();
        let send = |xid: u64, bytes: usize| {
            let mut header = Header::request(Op::MdtGetattr, COMES, Xid(xid));
            header.slot_or_credits = xid as u16;
            sink.send(header, vec![0; bytes], Bulk::new());
        };
        // As much as any program sends at once is taken.
        (1..=64).for_each(|xid| send(xid, 512 << 10));
        world.sim.sleep(Duration::from_millis(200)).await;
        assert_eq!((held(), server.limit_breaches()), (64, 0));
        // Each as long as a message may be, all of them waiting.
        (65..=4000).for_each(|xid| send(xid, wire::BODY_BYTES_MAX as usize - 100));
        while source.recv().await.is_ok() {}
        assert_eq!(server.limit_breaches(), 1);
        assert!(held() < 64 + 32, "{} requests are held", held());
    });
}
