//! Sessions over a network that loses, doubles and reorders, with evictions at any moment: both ends have one idea of the
//! session, and nothing is carried out again whose answer its client has.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use frames::{Bulk, FramePool};
use ptlrpc::stream::{Sink, Source, ends};
use ptlrpc::{
    Callbacks, ClusterKey, Export, Import, ImportConfig, ImportState, Request, Server, ServerConfig, Service,
    SessionRecord, meant,
};
use rt::{LocalFuture, Nid, Rt};
use simworld::{Host, Sim, SimConfig};
use types::{ClientId, Duration, FsError, Rng, Transno, Xid};
use wire::connect::{AuthReply, AuthRequest, ConnectReply, ConnectRequest, Role};
use wire::{Flags, Header, Op};

const CLIENTS: u64 = 3;

fn key() -> ClusterKey {
    ClusterKey::from_text(b"0123456789abcdef").unwrap()
}

/// What everything that happened left behind.
#[derive(Default)]
struct Book {
    /// How often each value was carried out as a transaction.
    transactions: RefCell<BTreeMap<u64, u32>>,
    /// Values whose answers their clients have.
    answered: RefCell<BTreeSet<u64>>,
    /// Opens of the sessions that there are, as the server knows them.
    opens: RefCell<BTreeMap<ClientId, BTreeSet<u64>>>,
    last: Cell<u64>,
    wrong: RefCell<Vec<String>>,
}

impl Book {
    fn carried_out(&self, value: u64) {
        if self.answered.borrow().contains(&value) {
            self.wrong.borrow_mut().push(format!("{value} was carried out although its client has the answer"));
        }
    }
}

/// Transactions (`MdtSync`), opens that a session keeps (`MdtOpen`), and requests that change nothing (`MdtGetattr`).
struct Counting {
    rt: Rt,
    book: Rc<Book>,
    seen: Rc<RefCell<Vec<u64>>>,
}

impl Service for Counting {
    fn target(&self) -> String {
        "counting".into()
    }
    fn cluster(&self) -> u64 {
        7
    }
    fn uuid(&self) -> u64 {
        9
    }
    fn handle(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        Box::pin(async move {
            let value: u64 = request.decode().unwrap();
            self.book.carried_out(value);
            self.seen.borrow_mut().push(value);
            if value.is_multiple_of(3) {
                self.rt.sleep(Duration::from_millis(value % 700)).await;
            }
            match request.header.op {
                Op::MdtSync => {
                    *self.book.transactions.borrow_mut().entry(value).or_default() += 1;
                    self.book.last.set(self.book.last.get() + 1);
                    request.reply_transno(Transno(self.book.last.get()), Ok(wire::encode(&(value + 1))));
                }
                op => {
                    let evicted = request.export.is_evicted();
                    if op == Op::MdtOpen && !evicted {
                        self.book.opens.borrow_mut().entry(request.client()).or_default().insert(value);
                    }
                    request.reply(Ok(&(value + 1)));
                }
            }
        })
    }
    fn last_committed(&self, _client: ClientId) -> Transno {
        Transno(self.book.last.get())
    }
    fn sessions(&self) -> Vec<SessionRecord> {
        Vec::new()
    }
    fn session_opened(self: Rc<Self>, _export: Rc<Export>, _known: bool) -> LocalFuture<Result<(), FsError>> {
        Box::pin(async move {
            self.rt.sleep(Duration::from_millis(3)).await;
            Ok(())
        })
    }
    fn session_closed(self: Rc<Self>, client: ClientId, _evicted: bool) -> LocalFuture<()> {
        Box::pin(async move {
            // As a store does that looks for what is the client's and then removes it.
            self.rt.sleep(Duration::from_millis(40)).await;
            self.book.opens.borrow_mut().remove(&client);
        })
    }
}

/// A client that keeps what it has open, until it hears that it was evicted.
#[derive(Default)]
struct Holder {
    opens: RefCell<BTreeSet<u64>>,
}

impl Callbacks for Holder {
    fn on_callback(self: Rc<Self>, _op: Op, _body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(std::future::ready(Err(FsError::NotSupported)))
    }
    fn on_evicted(&self) {
        self.opens.borrow_mut().clear();
    }
}

struct World {
    sim: Sim,
    server_host: Host,
    hosts: Vec<Host>,
    book: Rc<Book>,
    seen: Rc<RefCell<Vec<u64>>>,
    server: Rc<Server>,
    rt: Rt,
    nid: Nid,
}

fn world(config: SimConfig) -> World {
    let sim = Sim::new(config, FramePool::new(64 << 20));
    let server_host = sim.host("server");
    let hosts: Vec<Host> = (0..CLIENTS).map(|i| sim.host(&format!("client {i}"))).collect();
    let (rt, nid) = (server_host.boot(), server_host.nid(7));
    let (book, seen) = (Rc::<Book>::default(), Rc::default());
    let config = ServerConfig {
        key: key(),
        recovery_window: Duration::from_secs(5),
        client_timeout: Duration::from_secs(60),
        boot: 1,
    };
    let server = Server::new(rt.clone(), config);
    server.add(Rc::new(Counting { rt: rt.clone(), book: book.clone(), seen: Rc::clone(&seen) }));
    server.listen(&nid).unwrap();
    World { sim, server_host, hosts, book, seen, server, rt, nid }
}

impl World {
    fn import(&self, of: u64, callbacks: &Rc<Holder>) -> (Rt, Rc<Import>) {
        self.import_as(of, ClientId(of + 1), callbacks)
    }
    fn import_as(&self, of: u64, client: ClientId, callbacks: &Rc<Holder>) -> (Rt, Rc<Import>) {
        let rt = self.hosts[of as usize].boot();
        let config = ImportConfig {
            nid: self.nid.clone(),
            target: "counting".into(),
            client,
            key: key(),
            recoverable: true,
            ping_interval: Duration::from_secs(2),
            place: 0,
        };
        let callbacks: Rc<dyn Callbacks> = callbacks.clone();
        (rt.clone(), Import::new(rt, config, Rc::downgrade(&callbacks)))
    }
}

/// One client's requests, several at a time, until they are all through.
async fn use_it(import: Rc<Import>, holder: Rc<Holder>, book: Rc<Book>, first: u64, count: u64) {
    for value in (first..first + count).step_by(4) {
        let one = async |value: u64| {
            let op = [Op::MdtSync, Op::MdtOpen, Op::MdtGetattr][(value % 7 % 3) as usize];
            let evictions = import.evictions();
            let answer = import.ask::<_, u64>(op, &value).await;
            match answer {
                Ok(n) => {
                    assert_eq!(n, value + 1);
                    book.answered.borrow_mut().insert(value);
                    if op == Op::MdtOpen && import.evictions() == evictions {
                        holder.opens.borrow_mut().insert(value);
                    }
                }
                Err(e) => assert_eq!((e, import.evictions() > evictions), (FsError::NotConnected, true)),
            }
        };
        rt::sync::join_all((value..value + 4).map(one).collect()).await;
    }
}

/// Runs `seed`; gives (evictions that clients heard of, duplicates that were dropped).
fn one_seed(seed: u64) -> (u64, u64) {
    let mut config = SimConfig::new(seed);
    (config.loss, config.duplicate, config.reorder, config.shuffle) = (0.02, 0.2, 0.2, 0.2);
    let world = world(config);
    let holders: Vec<Rc<Holder>> = (0..CLIENTS).map(|_| Rc::default()).collect();
    let clients: Vec<(Rt, Rc<Import>)> = (0..CLIENTS).map(|i| world.import(i, &holders[i as usize])).collect();
    let done = Rc::new(Cell::new(0u64));
    for (i, (rt, import)) in (0u64..).zip(&clients) {
        let (holder, book, done) = (holders[i as usize].clone(), world.book.clone(), done.clone());
        let import = import.clone();
        rt.spawn(async move {
            use_it(import, holder, book, i * 1_000_000, 240).await;
            done.set(done.get() + 1);
        });
    }
    let mut rng = Rng::named(seed, "faults");
    world.sim.run(async {
        for _ in 0..25 {
            world.sim.sleep(Duration::from_millis(rng.below(400))).await;
            let host = &world.hosts[rng.below(CLIENTS) as usize];
            let client = ClientId(rng.below(CLIENTS) + 1);
            match rng.below(5) {
                0 => {
                    world.sim.reset(&world.server_host, host);
                    world.sim.reset(host, &world.server_host);
                }
                1 => world.sim.cut_one_way(&world.server_host, host),
                2 => world.sim.cut_one_way(host, &world.server_host),
                3 => world.server.evict("counting", client).await,
                _ => {
                    // An answer to the handshake that does not come.
                    let its = world.hosts[(client.0 - 1) as usize].clone();
                    world.server.evict("counting", client).await;
                    world.sim.sleep(Duration::from_micros(rng.below(4_000))).await;
                    world.sim.cut_one_way(&world.server_host, &its);
                    world.sim.sleep(Duration::from_millis(rng.below(14_000))).await;
                    world.sim.heal(&world.server_host, &its);
                }
            }
            if rng.below(2) == 0 {
                world.sim.heal(&world.server_host, host);
            }
        }
        for host in &world.hosts {
            world.sim.heal(&world.server_host, host);
        }
        let limit = world.sim.now() + Duration::from_secs(600);
        while done.get() < CLIENTS && world.sim.now() < limit {
            world.sim.sleep(Duration::from_secs(1)).await;
        }
        // One more request each: whoever was evicted without hearing of it hears of it now.
        for (_, import) in &clients {
            let _ = import
                .ask::<_, u64>(Op::MdtGetattr, &u64::MAX.saturating_sub(import.nid().to_string().len() as u64))
                .await;
        }
    });
    assert_eq!(done.get(), CLIENTS, "seed {seed}: requests hang");
    let book = &world.book;
    assert_eq!(*book.wrong.borrow(), Vec::<String>::new(), "seed {seed}");
    let twice: Vec<_> = book.transactions.borrow().iter().filter(|(_, n)| **n > 1).map(|(v, _)| *v).collect();
    assert_eq!(twice, [], "seed {seed}: transactions carried out twice");
    for (i, holder) in (0u64..).zip(&holders) {
        let theirs = book.opens.borrow().get(&ClientId(i + 1)).cloned().unwrap_or_default();
        let lost: Vec<_> = holder.opens.borrow().difference(&theirs).copied().collect();
        assert_eq!(lost, [], "seed {seed}: client {i} believes in a session that is over");
    }
    let duplicates = world.server.exports("counting").iter().map(|e| e.duplicates()).sum();
    (clients.iter().map(|(_, i)| i.evictions()).sum(), duplicates)
}

#[test]
fn evictions_and_bad_networks_leave_both_ends_with_one_session_and_nothing_carried_out_again() {
    let seeds = std::env::var("STRIA_PTLRPC_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    let (mut evictions, mut duplicates) = (0, 0);
    for seed in 0..seeds {
        let (e, d) = one_seed(seed);
        (evictions, duplicates) = (evictions + e, duplicates + d);
    }
    assert!(
        evictions > seeds && duplicates > seeds,
        "{evictions} evictions, {duplicates} duplicates: nothing was tried"
    );
}

#[test]
fn a_client_hears_of_its_eviction_although_the_answer_to_its_next_handshake_was_lost() {
    let world = world(SimConfig::new(1));
    let holder = Rc::<Holder>::default();
    let (_, import) = world.import(0, &holder);
    world.sim.run(async {
        assert_eq!(import.ask::<_, u64>(Op::MdtOpen, &8u64).await, Ok(9));
        holder.opens.borrow_mut().insert(8);
        world.server.evict("counting", ClientId(1)).await;
        // The next handshake gets as far as the session at the server.
        while world.server.exports("counting").is_empty() {
            world.sim.sleep(Duration::from_micros(10)).await;
        }
        world.sim.cut_one_way(&world.server_host, &world.hosts[0]);
        world.sim.sleep(Duration::from_secs(11)).await;
        assert_ne!(import.state(), ImportState::Full);
        world.sim.reset(&world.server_host, &world.hosts[0]);
        world.sim.heal(&world.server_host, &world.hosts[0]);
        assert_eq!(import.ask::<_, u64>(Op::MdtGetattr, &1u64).await, Ok(2));
    });
    assert_eq!(import.evictions(), 1);
    assert!(holder.opens.borrow().is_empty());
}

#[test]
fn what_an_evicted_client_left_is_gone_before_its_next_session_begins() {
    let world = world(SimConfig::new(5));
    let holder = Rc::<Holder>::default();
    let (_, import) = world.import(0, &holder);
    world.sim.run(async {
        assert_eq!(import.ask::<_, u64>(Op::MdtOpen, &8u64).await, Ok(9));
        let server = world.server.clone();
        world.sim.spawn(async move { server.evict("counting", ClientId(1)).await });
        world.sim.sleep(Duration::from_millis(1)).await;
        assert_eq!(import.ask::<_, u64>(Op::MdtOpen, &10u64).await, Ok(11));
        world.sim.sleep(Duration::from_millis(100)).await;
    });
    assert_eq!(world.book.opens.borrow().get(&ClientId(1)), Some(&BTreeSet::from([10])));
}

#[test]
fn clients_of_a_machines_earlier_boot_are_not_waited_for_once_it_runs_again() {
    for knows in [true, false] {
        let world = world(SimConfig::new(6));
        let holder = Rc::<Holder>::default();
        for host in &world.hosts {
            host.set_knows_machine(knows);
        }
        let (_, dead) = world.import(0, &holder);
        let (_, other) = world.import(1, &holder);
        world.sim.run(async {
            for import in [&dead, &other] {
                assert_eq!(import.ask::<_, u64>(Op::MdtOpen, &8u64).await, Ok(9));
            }
            // The server hears nothing of it, and has a connection that looks alive.
            world.hosts[0].lose_power();
            let (_, next) = world.import_as(0, ClientId(7), &holder);
            assert_eq!(next.ask::<_, u64>(Op::MdtOpen, &10u64).await, Ok(11));
            world.sim.sleep(Duration::from_millis(100)).await;
        });
        let opens = world.book.opens.borrow();
        assert_eq!(opens.contains_key(&ClientId(1)), !knows, "{opens:?}");
        assert!(opens.contains_key(&ClientId(2)) && opens.contains_key(&ClientId(7)), "{opens:?}");
    }
}

#[test]
fn the_last_words_of_an_earlier_boot_do_not_end_the_present_one() {
    let world = world(SimConfig::new(7));
    let holder = Rc::<Holder>::default();
    let rt = world.hosts[2].boot();
    world.hosts[0].set_knows_machine(true);
    world.sim.run(async {
        let machine = world.hosts[0].boot().origin();
        world.hosts[0].kill();
        // It has got the server's number, and its answer to that is read after its machine was started again.
        let before = Asked::connect(&world, &rt, of_boot(machine, 77)).await;
        world.sim.sleep(Duration::from_millis(50)).await;
        let (_, living) = world.import_as(0, ClientId(7), &holder);
        assert_eq!(living.ask::<_, u64>(Op::MdtOpen, &10u64).await, Ok(11));
        assert_eq!(before.unwrap().prove().await.err(), Some(FsError::Stale));
        world.sim.sleep(Duration::from_millis(100)).await;
        assert!(world.book.opens.borrow().contains_key(&ClientId(7)), "the living was evicted");
        // A later number proves that its boot lives, whatever was before.
        let after = Asked::connect(&world, &rt, of_boot(machine, 78)).await.unwrap();
        after.prove().await.unwrap();
        world.sim.sleep(Duration::from_millis(100)).await;
        assert!(!world.book.opens.borrow().contains_key(&ClientId(7)));
    });
}

fn of_boot(machine: types::Origin, boot: u64) -> ConnectRequest {
    ConnectRequest { machine: machine.machine, boot, host: boot, process: 3, ..Default::default() }
}

/// A connection by hand that has the server's number.
struct Asked {
    sink: Rc<Sink>,
    source: Source,
    ask: ConnectRequest,
    answer: ConnectReply,
}

impl Asked {
    async fn connect(world: &World, rt: &Rt, ask: ConnectRequest) -> Result<Asked, FsError> {
        let (sink, mut source) = ends(rt.connect(&world.nid).await.unwrap());
        let ask = ConnectRequest { target: "counting".into(), nonce: vec![1; 32].into(), ..ask };
        sink.send(Header::request(Op::Connect, ClientId(1), Xid(0)), wire::encode(&ask), Bulk::new());
        let (header, body) = source.recv().await.unwrap();
        header.result()?;
        let answer: ConnectReply = wire::decode(&body).unwrap();
        Ok(Asked { sink, source, ask, answer })
    }
    async fn prove(self) -> Result<ByHand, FsError> {
        let Asked { sink, mut source, ask, answer } = self;
        let prove = |side| {
            key()
                .proof(side, Role::Client, [&ask.nonce, &answer.nonce], &meant(&ask, &answer, None), ClientId(1))
                .unwrap()
        };
        assert!(ClusterKey::matches(&prove("server"), &answer.proof));
        let auth = AuthRequest {
            proof: prove("client").to_vec().into(),
            identity: vec![5; 32].into(),
            next: vec![5; 32].into(),
            ..AuthRequest::default()
        };
        sink.send(Header::request(Op::Auth, ClientId(1), Xid(0)), wire::encode(&auth), Bulk::new());
        let (header, body) = source.recv().await.unwrap();
        header.result()?;
        wire::decode::<AuthReply>(&body).unwrap();
        Ok(ByHand { sink, source })
    }
}

/// A session by hand over one connection.
struct ByHand {
    sink: Rc<Sink>,
    source: Source,
}

impl ByHand {
    async fn connect(world: &World, rt: &Rt, dialled: &str) -> Result<ByHand, FsError> {
        let ask = ConnectRequest { dialled: dialled.into(), ..Default::default() };
        Asked::connect(world, rt, ask).await?.prove().await
    }
    fn send(&self, op: Op, slot: u16, xid: u64, flags: Flags) {
        let mut header = Header::request(op, ClientId(1), Xid(xid));
        (header.slot_or_credits, header.flags) = (slot, flags);
        self.sink.send(header, wire::encode(&xid), Bulk::new());
    }
    async fn answered(&mut self, xid: u64) {
        assert_eq!(self.source.recv().await.unwrap().0.xid, Xid(xid));
    }
}

#[test]
fn what_its_client_has_gone_beyond_is_not_carried_out_again() {
    for op in [Op::MdtSync, Op::MdtGetattr] {
        let world = world(SimConfig::new(2));
        let rt = world.hosts[0].boot();
        world.sim.run(async {
            let mut hand = ByHand::connect(&world, &rt, "").await.unwrap();
            for xid in [10, 20] {
                hand.send(op, 0, xid, Flags::default());
                hand.answered(xid).await;
            }
            // Of a request that the slot went beyond, and of its last.
            hand.send(op, 0, 10, Flags::RESENT);
            if op == Op::MdtGetattr {
                hand.send(op, 0, 20, Flags::default());
            }
            hand.send(Op::MdtGetattr, 1, 40, Flags::default());
            hand.answered(40).await;
            // Over the next connection the last answer may not have come.
            let mut second = ByHand::connect(&world, &rt, "").await.unwrap();
            second.send(op, 0, 20, Flags::RESENT);
            second.answered(20).await;
            // What still comes over the first one is nobody's.
            hand.send(op, 0, 50, Flags::default());
            second.send(Op::MdtGetattr, 1, 70, Flags::default());
            second.answered(70).await;
        });
        let again: &[u64] = if op == Op::MdtSync { &[] } else { &[20] };
        let expected: Vec<u64> = [&[10, 20, 40], again, &[70]].concat();
        assert_eq!(*world.seen.borrow(), expected, "{op:?}");
        let _ = &world.rt;
    }
}

#[test]
fn a_handshake_that_was_meant_for_another_address_is_refused() {
    let world = world(SimConfig::new(3));
    let rt = world.hosts[0].boot();
    world.sim.run(async {
        let elsewhere = world.hosts[1].nid(7).to_string();
        let refused = ByHand::connect(&world, &rt, &elsewhere).await.err();
        assert_eq!(refused, Some(FsError::Access));
        assert!(ByHand::connect(&world, &rt, &world.nid.to_string()).await.is_ok());
    });
}

#[test]
fn whoever_passes_a_handshake_on_gets_no_session_out_of_it() {
    let world = world(SimConfig::new(4));
    // A stranger at the address of a server that is away passes on what comes, to where the target is served.
    let (stranger, client) = (world.hosts[1].boot(), world.hosts[0].boot());
    let (there, taken) = (world.nid.clone(), world.hosts[1].nid(7));
    let listener = stranger.listen(&taken).unwrap();
    let to = stranger.clone();
    stranger.spawn(async move {
        while let Ok(accepted) = listener.accept().await {
            let Ok(onward) = to.connect(&there).await else { return };
            let ((sink, mut source), (up, mut down)) = (ends(accepted), ends(onward));
            to.spawn(async move {
                while let Ok((header, body)) = source.recv().await {
                    up.send(header, body, Bulk::new());
                }
            });
            to.spawn(async move {
                while let Ok((header, body)) = down.recv().await {
                    sink.send(header, body, Bulk::new());
                }
            });
        }
    });
    let callbacks: Rc<dyn Callbacks> = Rc::new(Holder::default());
    let config = ImportConfig {
        nid: taken,
        target: "counting".into(),
        client: ClientId(1),
        key: key(),
        recoverable: true,
        ping_interval: Duration::from_secs(10),
        place: 0,
    };
    let import = Import::new(client, config, Rc::downgrade(&callbacks));
    assert_eq!(world.sim.run(import.ready(Duration::from_secs(20))), Err(FsError::Access));
    let why = import.failure().unwrap();
    assert!(why.contains("is not at that address"), "{why}");
    assert!(world.server.exports("counting").is_empty());
}
