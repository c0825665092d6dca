//! A server whose store is away: whom it does not hear meanwhile it does not give up.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use frames::FramePool;
use ptlrpc::{
    Binding, Callbacks, ClusterKey, Export, Import, ImportConfig, ImportState, Request, Server, ServerConfig, Service,
    SessionRecord,
};
use rt::{LocalFuture, Nid, Rt};
use simworld::{Host, Sim, SimConfig};
use types::{ClientId, Duration, FsError, Transno};
use wire::Op;

const FIRST: ClientId = ClientId(1);
const SECOND: ClientId = ClientId(2);

/// What is there of a store.
#[derive(Default)]
struct Store {
    clients: RefCell<BTreeMap<ClientId, Option<Binding>>>,
    /// It answers nothing: no session ends.
    is_away: Cell<bool>,
    /// The server knows that.
    is_unsure: Cell<bool>,
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
    fn is_unsure(&self) -> bool {
        self.1.is_unsure.get()
    }
    fn handle(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        Box::pin(async move { request.reply(Ok(&())) })
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
    fn session_opened(self: Rc<Self>, export: Rc<Export>, _: bool) -> LocalFuture<Result<(), FsError>> {
        self.1.clients.borrow_mut().insert(export.client(), export.binding());
        Box::pin(std::future::ready(Ok(())))
    }
    fn session_closed(self: Rc<Self>, client: ClientId, _: bool) -> LocalFuture<()> {
        Box::pin(async move {
            while self.1.is_away.get() {
                self.0.sleep(Duration::from_millis(100)).await;
            }
            self.1.clients.borrow_mut().remove(&client);
        })
    }
}

struct Deaf;
impl Callbacks for Deaf {
    fn on_callback(self: Rc<Self>, _: Op, _: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(std::future::ready(Err(FsError::NotSupported)))
    }
}

struct World {
    sim: Sim,
    host: Host,
    /// Those of the first and of the second client.
    hosts: [Host; 2],
    imports: [Rc<Import>; 2],
    store: Rc<Store>,
    server: RefCell<Rc<Server>>,
    _callbacks: Rc<dyn Callbacks>,
}

fn key() -> ClusterKey {
    ClusterKey::from_text(b"0123456789abcdef").unwrap()
}

fn serve(rt: &Rt, nid: &Nid, store: &Rc<Store>, boot: u64) -> Rc<Server> {
    let (recovery_window, client_timeout) = (Duration::from_secs(6), Duration::from_secs(60));
    let server = Server::new(rt.clone(), ServerConfig { key: key(), recovery_window, client_timeout, boot });
    server.add(Rc::new(Target(rt.clone(), store.clone())));
    server.listen(nid).unwrap();
    server
}

/// A server and two clients with sessions.
fn world() -> World {
    let sim = Sim::new(SimConfig::new(1), FramePool::new(16 << 20));
    let (host, hosts) = (sim.host("server"), [sim.host("first"), sim.host("second")]);
    let (store, nid, callbacks): (Rc<Store>, Nid, Rc<dyn Callbacks>) = (Rc::default(), host.nid(7), Rc::new(Deaf));
    let server = serve(&host.boot(), &nid, &store, 1);
    let import = |host: &Host, client| {
        let (nid, target, ping_interval) = (nid.clone(), "target".into(), Duration::from_secs(10));
        let config = ImportConfig { nid, target, client, key: key(), recoverable: true, ping_interval, place: 0 };
        let import = Import::new(host.boot(), config, Rc::downgrade(&callbacks));
        sim.run(import.ready(Duration::from_secs(5))).unwrap();
        import
    };
    let imports = [import(&hosts[0], FIRST), import(&hosts[1], SECOND)];
    World { sim, host, hosts, imports, store, server: RefCell::new(server), _callbacks: callbacks }
}

impl World {
    fn pass(&self, seconds: u64) {
        self.sim.run(self.sim.sleep(Duration::from_secs(seconds)));
    }
    /// The first client's session is being ended, and does not end.
    fn first_is_evicted_within(&self, seconds: u64) -> bool {
        (0..seconds).any(|_| {
            self.pass(1);
            self.server.borrow().evictions(FIRST) > 0
        })
    }
    fn second_goes_on(&self) {
        let [_, second] = &self.imports;
        assert_eq!((self.server.borrow().evictions(SECOND), second.evictions()), (0, 0));
        assert_eq!(second.state(), ImportState::Full);
    }
}

#[test]
fn who_could_not_come_back_while_anothers_session_was_being_ended_is_waited_for() {
    let w = world();
    w.imports[0].abandon();
    w.sim.cut(&w.host, &w.hosts[1]);
    w.store.is_away.set(true);
    w.host.kill();
    *w.server.borrow_mut() = serve(&w.host.boot(), &w.host.nid(7), &w.store, 2);
    assert!(w.first_is_evicted_within(8), "the window has closed for both");
    // Just now the store has gone, and from here on the second one is refused.
    w.store.is_unsure.set(true);
    w.sim.heal(&w.host, &w.hosts[1]);
    w.pass(60);
    w.store.is_unsure.set(false);
    w.store.is_away.set(false);
    w.pass(2);
    w.second_goes_on();
    assert!(!w.server.borrow().is_recovering());
}

#[test]
fn who_is_heard_again_while_anothers_session_is_being_ended_is_not_silent() {
    let w = world();
    w.hosts.iter().for_each(|host| w.sim.cut(&w.host, host));
    w.store.is_away.set(true);
    assert!(w.first_is_evicted_within(90), "both were silent for too long");
    w.sim.heal(&w.host, &w.hosts[1]);
    w.pass(30);
    w.store.is_away.set(false);
    w.pass(20);
    w.second_goes_on();
}
