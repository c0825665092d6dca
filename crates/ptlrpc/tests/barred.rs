//! A client that a server does not let in for a while: what it was answered is there afterwards or told as lost, and the server keeps
//! nothing of it that it has given up.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use frames::{Bulk, FramePool};
use ptlrpc::{
    Binding, CallOptions, Callbacks, ClusterKey, Export, Import, ImportConfig, ImportState, Request, Server,
    ServerConfig, Service, SessionRecord,
};
use rt::{LocalFuture, Nid, Rt};
use simworld::{Host, Sim, SimConfig};
use types::{ClientId, Duration, FsError, Transno};
use wire::Op;

const CLIENT: ClientId = ClientId(5);

/// What a target and its store know.
#[derive(Default)]
struct Store {
    clients: RefCell<BTreeMap<ClientId, Option<Binding>>>,
    /// What the transactions of the running server are, and how many of them are on stable storage.
    applied: RefCell<Vec<u64>>,
    committed: Cell<usize>,
    /// What the client proves opens nothing.
    is_barred: Cell<bool>,
    /// That is found out while its session is opened.
    is_barred_while_opened: Cell<bool>,
    /// How long the end of a session takes.
    ends_within: Cell<Duration>,
    /// Sessions that ended, each with how many transactions there were then.
    ended: RefCell<Vec<usize>>,
}

struct Target(Rc<Store>, Rt);

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
    fn is_revoked(&self, _: u64) -> bool {
        self.0.is_barred.get()
    }
    fn handle(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        let mut applied = self.0.applied.borrow_mut();
        applied.push(request.decode().unwrap());
        let transno = Transno(applied.len() as u64);
        request.reply_transno(transno, Ok(Vec::new()));
        Box::pin(std::future::ready(()))
    }
    fn last_committed(&self, _: ClientId) -> Transno {
        Transno(self.0.committed.get() as u64)
    }
    fn sessions(&self) -> Vec<SessionRecord> {
        let record = |(client, binding): (&ClientId, &Option<Binding>)| SessionRecord {
            client: *client,
            binding: *binding,
            ..SessionRecord::default()
        };
        self.0.clients.borrow().iter().map(record).collect()
    }
    fn session_opened(self: Rc<Self>, export: Rc<Export>, _: bool) -> LocalFuture<Result<(), FsError>> {
        self.0.clients.borrow_mut().insert(export.client(), export.binding());
        if self.0.is_barred_while_opened.take() {
            self.0.is_barred.set(true);
        }
        Box::pin(std::future::ready(Ok(())))
    }
    fn session_closed(self: Rc<Self>, client: ClientId, _: bool) -> LocalFuture<()> {
        Box::pin(async move {
            self.1.sleep(self.0.ends_within.get()).await;
            self.0.clients.borrow_mut().remove(&client);
            self.0.ended.borrow_mut().push(self.0.applied.borrow().len());
        })
    }
}

/// Notes what is lost.
#[derive(Default)]
struct Told {
    lost: RefCell<Vec<u64>>,
    evictions: Cell<u32>,
}

impl Callbacks for Told {
    fn on_callback(self: Rc<Self>, _: Op, _: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(std::future::ready(Err(FsError::NotSupported)))
    }
    fn on_lost(&self, _: Op, request: &[u8]) {
        self.lost.borrow_mut().push(wire::decode(request).unwrap());
    }
    fn on_evicted(&self) {
        self.evictions.set(self.evictions.get() + 1);
    }
}

struct World {
    sim: Sim,
    host: Host,
    client_host: Host,
    nid: Nid,
    store: Rc<Store>,
    server: RefCell<Rc<Server>>,
    told: Rc<Told>,
    import: Rc<Import>,
}

fn key() -> ClusterKey {
    ClusterKey::from_text(b"0123456789abcdef").unwrap()
}

fn serve(host: &Host, nid: &Nid, store: &Rc<Store>, boot: u64) -> Rc<Server> {
    let (recovery_window, client_timeout) = (Duration::from_secs(120), Duration::from_secs(600));
    let rt = host.boot();
    let server = Server::new(rt.clone(), ServerConfig { key: key(), recovery_window, client_timeout, boot });
    server.add(Rc::new(Target(store.clone(), rt)));
    server.listen(nid).unwrap();
    server
}

/// A server and a client with a session.
fn world(seed: u64) -> World {
    let sim = Sim::new(SimConfig::new(seed), FramePool::new(16 << 20));
    let (host, client_host) = (sim.host("server"), sim.host("client"));
    let (store, nid, told): (Rc<Store>, Nid, Rc<Told>) = (Rc::default(), host.nid(7), Rc::default());
    let server = RefCell::new(serve(&host, &nid, &store, 1));
    let callbacks: Rc<dyn Callbacks> = told.clone();
    let config = ImportConfig {
        nid: nid.clone(),
        target: "target".into(),
        client: CLIENT,
        // What an administrator has is never revoked.
        key: ClusterKey::from_text(key().client_text().as_bytes()).unwrap(),
        recoverable: true,
        ping_interval: Duration::from_secs(10),
        place: 0,
    };
    let import = Import::new(client_host.boot(), config, Rc::downgrade(&callbacks));
    sim.run(import.ready(Duration::from_secs(5))).unwrap();
    World { sim, host, client_host, nid, store, server, told, import }
}

impl World {
    async fn change(&self, value: u64) -> Result<(), FsError> {
        let call = self.import.call(Op::MdtCreate, wire::encode(&value), Bulk::new(), CallOptions::default());
        call.await.map(drop)
    }
    /// The server dies with what is not committed, and is started again.
    fn restart(&self, boot: u64) {
        self.server.borrow().stop();
        self.host.kill();
        self.store.applied.borrow_mut().truncate(self.store.committed.get());
        *self.server.borrow_mut() = serve(&self.host, &self.nid, &self.store, boot);
    }
    fn break_connection(&self) {
        self.sim.cut(&self.client_host, &self.host);
        self.sim.run(self.sim.sleep(Duration::from_secs(20)));
        self.sim.heal(&self.client_host, &self.host);
    }
    fn until(&self, what: impl Fn(&Import) -> bool) {
        let comes = async {
            while !what(&self.import) {
                self.sim.sleep(Duration::from_millis(10)).await;
            }
        };
        self.sim.run_for(comes, Duration::from_secs(300)).expect("it does not come");
    }
    /// It is not let in for a while.
    fn is_barred_for_a_while(&self) {
        self.until(Import::is_out_of_service);
        assert_eq!(self.sim.run(self.change(400)), Err(FsError::Io));
        self.store.is_barred.set(false);
        self.until(|i| i.state() == ImportState::Full);
    }
}

#[test]
fn what_was_answered_and_lost_with_a_server_that_did_not_let_its_client_in_for_a_while_is_told() {
    for seed in 0..8 {
        let w = world(seed);
        assert_eq!(w.sim.run(w.change(1)), Ok(()));
        w.store.committed.set(1);
        assert_eq!(w.sim.run(w.change(2)), Ok(()));
        w.store.is_barred.set(true);
        w.restart(2);
        w.is_barred_for_a_while();
        assert_eq!(w.sim.run(w.change(3)), Ok(()));
        assert!(w.told.lost.borrow().contains(&2), "seed {seed}: {:?}", w.told.lost.borrow());
        assert_eq!((w.told.evictions.get(), w.import.evictions()), (1, 1), "once, when it was not let in");
        assert_eq!(*w.store.applied.borrow(), [1, 3], "seed {seed}");
    }
}

#[test]
fn what_was_answered_is_told_as_lost_only_when_the_server_that_has_it_is_started_again_before_it_is_committed() {
    for (commits, seed) in [false, true].into_iter().zip(0..) {
        let w = world(seed);
        assert_eq!(w.sim.run(w.change(1)), Ok(()));
        w.store.is_barred.set(true);
        w.break_connection();
        w.is_barred_for_a_while();
        assert_eq!(w.sim.run(w.change(2)), Ok(()));
        assert_eq!(*w.told.lost.borrow(), [0; 0], "the server has it");
        if commits {
            w.store.committed.set(2);
            w.sim.run(w.sim.sleep(Duration::from_secs(60)));
        }
        w.restart(2);
        w.until(|i| i.state() == ImportState::Connecting);
        assert_eq!(w.sim.run(w.change(3)), Ok(()));
        let (lost, applied): (&[u64], &[u64]) = if commits { (&[], &[1, 2, 3]) } else { (&[1], &[2, 3]) };
        assert_eq!((&w.told.lost.borrow()[..], &w.store.applied.borrow()[..]), (lost, applied));
    }
}

#[test]
fn a_server_that_did_not_let_a_client_in_ends_what_it_had_of_its_session_before_it_serves_it_again() {
    for seed in 0..8 {
        let w = world(seed);
        assert_eq!(w.sim.run(w.change(1)), Ok(()));
        w.store.is_barred.set(true);
        w.break_connection();
        w.is_barred_for_a_while();
        assert_eq!(w.told.evictions.get(), 1);
        assert_eq!(w.sim.run(w.change(2)), Ok(()));
        assert_eq!(*w.store.ended.borrow(), [1], "seed {seed}: the client has given up its locks and opens");
        assert_eq!((w.told.evictions.get(), w.server.borrow().evictions(CLIENT)), (1, 0));
    }
}

#[test]
fn a_session_whose_credential_was_revoked_while_it_was_opened_ends_though_that_takes_longer_than_a_handshake_may() {
    for seed in 0..4 {
        let w = world(seed);
        assert_eq!(w.sim.run(w.change(1)), Ok(()));
        w.break_connection();
        w.store.ends_within.set(Duration::from_secs(15));
        w.store.is_barred_while_opened.set(true);
        w.until(Import::is_out_of_service);
        w.sim.run(w.sim.sleep(Duration::from_secs(16)));
        assert_eq!((w.store.ended.borrow().len(), w.store.clients.borrow().len()), (1, 0), "seed {seed}");
        w.store.is_barred.set(false);
        w.until(|i| i.state() == ImportState::Full);
        assert_eq!(w.sim.run(w.change(2)), Ok(()));
    }
}
