//! Clients and a metadata server over real sessions, over any engine: the server dies with what it had not committed and comes back.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread::JoinHandle;

use frames::{Bulk, FramePool};
use mds::store::CommitConfig;
use mds::{Mds, MdsConfig, MetaKv, MkfsOptions};
use ptlrpc::{CallOptions, Callbacks, ClusterKey, Import, ImportConfig, Server, ServerConfig};
use rt::{LocalFuture, Nid, Rt};
use types::{ClientId, Duration, Fid, FsError, Transno, WallTime};
use wire::connect::{ConfigReply, OstEntry, RegisterRequest};
use wire::lock::{BlockingCallback, CancelRequest};
use wire::mdt::*;
use wire::{Decode, Encode, Op};

pub fn pool() -> FramePool {
    FramePool::new(1 << 20)
}

/// Where a store is, of any engine.
pub trait Place: Clone + Send + 'static {
    /// Opens it.
    fn open(&self, rt: Rt) -> LocalFuture<Rc<dyn MetaKv>>;
}

/// What the store of a test is made with.
pub fn options() -> MkfsOptions {
    MkfsOptions {
        fsname: "fs".into(),
        cluster: 7,
        uuid: 1,
        hash_keys: [1, 2],
        hash_mask: u64::MAX,
        root_uid: 0,
        root_gid: 0,
        root_mode: 0o755,
        now: WallTime(1),
    }
}

/// A metadata server on a thread of its own; dropping it kills it.
struct ServerThread {
    kill: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Commits only when asked: whatever is answered without a sync is lost with the server.
    fn start(place: &impl Place, name: &str, boot: u64) -> ServerThread {
        let kill = Arc::new(AtomicBool::new(false));
        let (ready, started) = mpsc::channel();
        let (place, nid, stop) = (place.clone(), Nid::Local(name.into()), kill.clone());
        let thread = std::thread::spawn(move || {
            rt::real::run(pool(), |rt| serve(rt, place, nid, boot, stop, ready)).unwrap();
        });
        started.recv().unwrap();
        ServerThread { kill, thread: Some(thread) }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.kill.store(true, SeqCst);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

async fn serve(rt: Rt, place: impl Place, nid: Nid, boot: u64, stop: Arc<AtomicBool>, ready: mpsc::Sender<()>) {
    let hour = Duration::from_secs(3600);
    let config =
        MdsConfig { commit: CommitConfig { interval: hour, idle: hour, keys_max: 1 << 16 }, ..MdsConfig::default() };
    let kv = place.open(rt.clone()).await;
    let mds = Mds::start(rt.clone(), config, kv).await.unwrap();
    let config = ServerConfig {
        key: ClusterKey::none(),
        recovery_window: Duration::from_secs(60),
        client_timeout: Duration::from_secs(60),
        boot,
    };
    let server = Server::new(rt.clone(), config);
    server.listen(&nid).unwrap();
    server.add(mds.clone());
    ready.send(()).unwrap();
    while !stop.load(SeqCst) {
        rt.sleep(Duration::from_millis(5)).await;
    }
    mds.halt();
    server.stop();
}

/// A client that tells its opens again and gives locks back when asked.
#[derive(Default)]
struct Client {
    import: RefCell<Option<Rc<Import>>>,
    opens: RefCell<Vec<OpenRequest>>,
    called_back: RefCell<Vec<BlockingCallback>>,
    evicted: RefCell<bool>,
}

impl Callbacks for Client {
    fn on_callback(self: Rc<Self>, op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        if op == Op::Config {
            // The cluster map, which everybody is told who comes back.
            return Box::pin(async { Ok(Vec::new()) });
        }
        assert_eq!(op, Op::LockBlocking);
        let callback: BlockingCallback = wire::decode(&body).unwrap();
        let cancel = CancelRequest { handles: vec![callback.handle], cookies: Vec::new() };
        self.called_back.borrow_mut().push(callback);
        Box::pin(async move {
            self.call::<_, ()>(Op::LockCancel, &cancel).await.unwrap();
            Ok(Vec::new())
        })
    }
    fn state_replays(&self) -> Vec<(Op, Vec<u8>)> {
        self.opens.borrow().iter().map(|q| (Op::MdtOpen, wire::encode(q))).collect()
    }
    fn on_state_replayed(&self, _: Op, _: &[u8], answer: Result<Vec<u8>, FsError>) {
        answer.unwrap();
    }
    fn on_evicted(&self) {
        *self.evicted.borrow_mut() = true;
    }
}

impl Client {
    fn join(rt: &Rt, name: &str, id: u64) -> Rc<Client> {
        let client = Rc::new(Client::default());
        let dynamic: Rc<dyn Callbacks> = client.clone();
        let config = ImportConfig {
            nid: Nid::Local(name.into()),
            target: "fs-MDT0000".into(),
            client: ClientId(id),
            key: ClusterKey::none(),
            recoverable: true,
            ping_interval: Duration::from_secs(5),
            place: 0,
        };
        *client.import.borrow_mut() = Some(Import::new(rt.clone(), config, Rc::downgrade(&dynamic)));
        client
    }
    fn import(&self) -> Rc<Import> {
        self.import.borrow().clone().unwrap()
    }
    async fn call<Q: Encode, A: Decode>(&self, op: Op, q: &Q) -> Result<(A, Transno), FsError> {
        let reply = self.import().call(op, wire::encode(q), Bulk::new(), CallOptions::default()).await?;
        Ok((reply.decode()?, reply.header.transno))
    }
    async fn mkdir(&self, parent: Fid, name: &str) -> Result<Fid, FsError> {
        let q = CreateRequest { parent, name: name.into(), mode: 0o755, ..CreateRequest::default() };
        self.call::<_, EntryReply>(Op::MdtCreate, &q).await.map(|(r, _)| r.attr.fid)
    }
    async fn lookup(&self, parent: Fid, name: &str, cookie: u64) -> Result<EntryReply, FsError> {
        let lock_bits = LockBits::LOOKUP | LockBits::UPDATE;
        let q = LookupRequest { parent, name: name.into(), lock_bits, lock_cookie: cookie, ..LookupRequest::default() };
        self.call(Op::MdtLookup, &q).await.map(|(r, _)| r)
    }
    /// Opens a directory, and tells it again after a restart.
    async fn open_dir(&self, fid: Fid) -> OpenReply {
        let mut q = OpenRequest { parent: fid, flags: 0o200_000, ..OpenRequest::default() };
        let (reply, _) = self.call::<_, OpenReply>(Op::MdtOpen, &q).await.unwrap();
        (q.fid, q.handle) = (fid, reply.handle);
        self.opens.borrow_mut().push(q);
        reply
    }
}

/// On a store that was made with [`options`].
pub fn a_server_that_lost_what_it_had_answered_gets_it_back_from_its_clients(place: &impl Place) {
    let name = "mds-sessions-replay";
    let first = ServerThread::start(place, name, 1);
    rt::real::run(pool(), |rt| async move {
        let (a, b) = (Client::join(&rt, name, 11), Client::join(&rt, name, 12));
        let d = a.mkdir(Fid::ROOT, "d").await.unwrap();
        let e = b.mkdir(d, "e").await.unwrap();
        let open = a.open_dir(e).await;
        let unlink = UnlinkRequest { parent: d, name: "e".into(), directory: true, ..UnlinkRequest::default() };
        b.call::<_, EntryReply>(Op::MdtUnlink, &unlink).await.unwrap();
        let f = a.mkdir(d, "f").await.unwrap();
        assert_eq!(a.import().last_committed(), b.import().last_committed());
        drop(first);
        let _second = ServerThread::start(place, name, 2);
        assert_eq!(b.lookup(Fid::ROOT, "d", 0).await.unwrap().attr.fid, d);
        assert_eq!(b.lookup(d, "f", 0).await.unwrap().attr.fid, f);
        assert_eq!(a.lookup(d, "e", 0).await.unwrap_err(), FsError::NotFound);
        let q = GetattrRequest { fid: e, ..GetattrRequest::default() };
        assert_eq!(a.call::<_, EntryReply>(Op::MdtGetattr, &q).await.unwrap().0.attr.nlink, 0, "open, so it lives");
        let close = Close { handle: open.handle, fid: e, ..Close::default() };
        a.call::<_, CloseReply>(Op::MdtClose, &CloseRequest { closes: vec![close] }).await.unwrap();
        assert_eq!(a.call::<_, EntryReply>(Op::MdtGetattr, &q).await.unwrap_err(), FsError::Stale);
        assert!(!*a.evicted.borrow() && !*b.evicted.borrow());
        a.import().close().await;
        b.import().close().await;
    })
    .unwrap();
}

/// On a store that was made with [`options`].
pub fn an_operation_calls_the_locks_of_other_clients_back(place: &impl Place) {
    let name = "mds-sessions-callback";
    let _server = ServerThread::start(place, name, 1);
    rt::real::run(pool(), |rt| async move {
        let (a, b) = (Client::join(&rt, name, 21), Client::join(&rt, name, 22));
        let d = a.mkdir(Fid::ROOT, "d").await.unwrap();
        let held = a.lookup(Fid::ROOT, "d", 77).await.unwrap().lock.unwrap();
        let q = SetattrRequest { fid: d, valid: SetBits::MODE, mode: 0o700, ..SetattrRequest::default() };
        let (reply, _) = b.call::<_, EntryReply>(Op::MdtSetattr, &q).await.unwrap();
        assert_eq!(reply.attr.mode & 0o777, 0o700);
        let called = a.called_back.take();
        assert_eq!((called.len(), called[0].handle, called[0].cookie), (1, held.handle, 77));
        assert_eq!(called[0].wanted.fid, d);
        a.import().close().await;
        b.import().close().await;
    })
    .unwrap();
}

/// On a store that was made with [`options`].
pub fn what_was_synced_is_there_for_a_client_that_never_met_the_first_server(place: &impl Place) {
    let name = "mds-sessions-sync";
    let first = ServerThread::start(place, name, 1);
    let d = rt::real::run(pool(), |rt| async move {
        let a = Client::join(&rt, name, 31);
        let d = a.mkdir(Fid::ROOT, "d").await.unwrap();
        a.import().close().await;
        // A target that registers is answered from stable storage; the goodbye before it is there too, so nobody is
        // waited for after the restart.
        let b = Client::join(&rt, name, 32);
        let (ost, target) = (types::OstIndex(0), "fs-OST0000".into());
        let entry = OstEntry { ost, nid: "local:nowhere".into(), target, active: true, uuid: 1 };
        let q = RegisterRequest { entry, cluster: 7, ..RegisterRequest::default() };
        b.call::<_, ConfigReply>(Op::Register, &q).await.unwrap();
        b.import().close().await;
        d
    })
    .unwrap();
    drop(first);
    let _second = ServerThread::start(place, name, 2);
    rt::real::run(pool(), |rt| async move {
        let e = Client::join(&rt, name, 34);
        assert_eq!(e.lookup(Fid::ROOT, "d", 0).await.unwrap().attr.fid, d);
        e.import().close().await;
    })
    .unwrap();
}
