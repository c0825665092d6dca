//! What tests of an OST share: one in a world of its own, and clients with sessions.
#![allow(dead_code, unused_imports, reason = "every test binary uses its part")]
#![allow(clippy::unwrap_used)]
pub use std::cell::{Cell, RefCell};
pub use std::rc::Rc;

pub use frames::Bulk;
pub use oss::store::{MemoryStore, StoreIdentity};
pub use oss::{Oss, Ost, OstConfig};
pub use ptlrpc::{CallOptions, Callbacks, ClusterKey, Import, ImportConfig, Server, ServerConfig};
pub use rt::{LocalFuture, Nid, Rt};
pub use simworld::TestWorld;
pub use types::{ClientId, Duration, Extent, FsError, HandleId, MIB, ObjectId, OstIndex, Rng, WallTime};
pub use wire::lock::{
    BlockingCallback, CancelRequest, CompletionCallback, EnqueueFlags, EnqueueReply, EnqueueRequest, GlimpseCallback,
    GlimpseReply, LockSpec, Lvb, Mode,
};
pub use wire::ost::{
    AllocateRequest, AttrReply, DestroyRequest, PrecreateReply, PrecreateRequest, PunchKind, PunchRequest, ReadReply,
    ReadRequest, SeekKind, SeekReply, SeekRequest, StatfsReply, WriteReply, WriteRequest,
};
pub use wire::{Op, connect::ParamsReply, connect::ParamsRequest};

pub fn object(oid: u32) -> ObjectId {
    ObjectId::new(OstIndex(0), oid)
}
pub fn nid() -> Nid {
    Nid::Local("oss".into())
}

pub struct Node {
    pub world: TestWorld,
    pub oss: Oss,
    pub server: Rc<Server>,
    pub ost: Rc<Ost>,
    pub store: Rc<MemoryStore>,
}

pub fn node(seed: u64, capacity: u64, config: OstConfig) -> Node {
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
    let oss = Oss::new(rt.clone(), server.clone(), &config).unwrap();
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    let store = MemoryStore::new(&rt, identity, capacity);
    let ost = oss.add(store.clone(), config).unwrap();
    Node { world, oss, server, ost, store }
}

/// A client that holds locks: it flushes nothing, cancels when called back (unless told not to), and answers glimpses.
pub struct Client {
    pub rt: Rt,
    pub import: Rc<Import>,
    pub me: Rc<Answers>,
    pub cookies: Cell<u64>,
}

#[derive(Default)]
pub struct Answers {
    pub import: RefCell<Option<Rc<Import>>>,
    pub size: Cell<u64>,
    pub deaf: Cell<bool>,
    /// Locks that it does not know any more, whose cancels the OST has not seen yet.
    pub given_up: RefCell<Vec<HandleId>>,
    pub granted: RefCell<Vec<CompletionCallback>>,
    pub blocked: RefCell<Vec<BlockingCallback>>,
    pub evicted: Cell<bool>,
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
                    let call: GlimpseCallback = wire::decode(&body).unwrap();
                    let lvb = Lvb { size: self.size.get(), mtime: WallTime(5), ..Lvb::default() };
                    let holds = !self.given_up.borrow().contains(&call.handle);
                    Ok(wire::encode(&GlimpseReply { lvb: holds.then_some(lvb) }))
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
    pub async fn new(rt: Rt, id: u64) -> Client {
        Client::of(rt, id, nid()).await
    }
    /// Of the server there.
    pub async fn of(rt: Rt, id: u64, server: Nid) -> Client {
        let me = Rc::new(Answers::default());
        let config = ImportConfig {
            nid: server,
            target: "stria-OST0000".into(),
            client: ClientId(id),
            key: ClusterKey::none(),
            recoverable: true,
            ping_interval: Duration::from_secs(10),
            place: 0,
        };
        let weak: std::rc::Weak<dyn Callbacks> = Rc::downgrade(&(me.clone() as Rc<dyn Callbacks>));
        let import = Import::new(rt.clone(), config, weak);
        *me.import.borrow_mut() = Some(import.clone());
        import.ready(Duration::from_secs(5)).await.unwrap();
        Client { rt, import, me, cookies: Cell::new(1) }
    }
    pub async fn create(&self, count: u32) {
        let ask = PrecreateRequest { seq: object(1).0.seq, count, ..PrecreateRequest::default() };
        let reply: PrecreateReply = self.import.ask(Op::OstPrecreate, &ask).await.unwrap();
        assert!(reply.last >= count);
    }
    pub async fn write_to(&self, object: ObjectId, pieces: &[(u64, &[u8])], grant: u64) -> Result<WriteReply, FsError> {
        let bytes: Vec<u8> = pieces.iter().flat_map(|(_, b)| b.iter().copied()).collect();
        let mut bulk = Bulk::alloc(self.rt.frames(), bytes.len()).unwrap();
        bulk.copy_in(0, &bytes);
        let extents = pieces.iter().map(|(at, b)| Extent::at(*at, b.len() as u64)).collect();
        let ask = WriteRequest { object, extents, mtime: WallTime(3), grant_used: grant, ..WriteRequest::default() };
        let reply = self.import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await?;
        reply.decode()
    }
    pub async fn write_under(&self, lock: HandleId, bytes: &[u8]) -> Result<WriteReply, FsError> {
        let mut bulk = Bulk::alloc(self.rt.frames(), bytes.len()).unwrap();
        bulk.copy_in(0, bytes);
        let extents = vec![Extent::at(0, bytes.len() as u64)];
        let ask = WriteRequest { object: object(1), lock, extents, mtime: WallTime(3), ..WriteRequest::default() };
        self.import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await?.decode()
    }
    pub async fn write_bulk(&self, at: u64, bulk: Bulk) -> Result<WriteReply, FsError> {
        let extents = vec![Extent::at(at, bulk.len() as u64)];
        let ask = WriteRequest { object: object(1), extents, mtime: WallTime(3), ..WriteRequest::default() };
        self.import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await?.decode()
    }
    pub async fn write_owned(&self, at: u64, bytes: Vec<u8>) -> Result<WriteReply, FsError> {
        self.write(at, &bytes).await
    }
    pub async fn write(&self, at: u64, bytes: &[u8]) -> Result<WriteReply, FsError> {
        self.write_to(object(1), &[(at, bytes)], 0).await
    }
    pub async fn read_from(&self, object: ObjectId, extents: Vec<Extent>) -> Result<(Vec<u8>, ReadReply), FsError> {
        let ask = ReadRequest { object, extents, ..ReadRequest::default() };
        let reply = self.import.call(Op::OstRead, wire::encode(&ask), Bulk::new(), CallOptions::default()).await?;
        Ok((reply.bulk.to_vec(), reply.decode()?))
    }
    pub async fn read(&self, at: u64, len: u64) -> Result<Vec<u8>, FsError> {
        self.read_from(object(1), vec![Extent::at(at, len)]).await.map(|(b, _)| b)
    }
    pub async fn punch(&self, kind: PunchKind, extent: Extent) -> Result<AttrReply, FsError> {
        let ask = PunchRequest { object: object(1), kind, extent, mtime: WallTime(4), ..PunchRequest::default() };
        self.import.ask(Op::OstPunch, &ask).await
    }
    pub async fn lock(&self, mode: Mode, extent: Extent, flags: u32) -> Result<EnqueueReply, FsError> {
        let cookie = self.cookies.get();
        self.cookies.set(cookie + 1);
        let lock = LockSpec { fid: object(1).0, mode, extent, ..LockSpec::default() };
        let ask = EnqueueRequest { lock, flags, cookie, cancels: Vec::new() };
        self.import.ask(Op::LockEnqueue, &ask).await
    }
}
