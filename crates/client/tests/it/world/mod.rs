//! What tests of clients share: a simulated cluster, its OSTs over real stores on simulated disks, and a client's usual
//! steps. Every host may lose its network or its power.
pub use std::cell::{Cell, RefCell};
use std::path::Path;
pub use std::rc::Rc;

pub use client::{Client, ClientConfig, NewFile, OpenFile};
pub use frames::{Bulk, FramePool};
pub use mds::store::CommitConfig;
use mds::{MdsConfig, MemoryKv, MetaKv, MkfsOptions};
pub use oss::OstConfig;
use oss::store::{ObjectStore, StoreIdentity};
use ptlrpc::ClusterKey;
use roles::{MdsRole, MdtStore, OssRole, OstStore};
pub use rt::{Nid, Rt};
pub use simworld::{Host, Sim, SimConfig};
use store_file::{FileStore, FileStoreConfig};
pub use types::{Duration, Extent, Fid, FsError, KIB, MIB, OstIndex, Rng};
pub use wire::mdt::Cred;

pub const O_RDWR: u32 = 2;
pub const O_CREAT: u32 = 0o100;
/// Bytes of a stripe of [`create_striped`].
pub const STRIPE: u64 = 64 * KIB;
pub const O_DIRECT: u32 = 0o40000;
const PATIENCE: Duration = Duration::from_secs(60);
const WINDOW: Duration = Duration::from_secs(10);
const OST_DIR: &str = "/ost";

fn key() -> ClusterKey {
    ClusterKey::from_text(b"the key of a cluster in tests").unwrap()
}

pub fn root() -> Cred {
    Cred { caps: 3, ..Cred::default() }
}

/// An OST's host and what runs on it.
pub struct OssNode {
    pub host: Host,
    /// Its store beside it, unless that is opened again when it failed.
    pub running: RefCell<Option<(OssRole, Option<Rc<FileStore>>)>>,
}

/// A simulated cluster.
pub struct World {
    pub sim: Sim,
    pub mds_host: Host,
    mds: RefCell<MdsRole>,
    mds_store: Rc<RefCell<Rc<MemoryKv>>>,
    mds_config: RefCell<MdsConfig>,
    mds_window: Cell<Duration>,
    mds_nid: Nid,
    pub oss: Vec<OssNode>,
    config: RefCell<OstConfig>,
    ost_bytes: u64,
    ost_commits: Cell<Duration>,
    /// Stores that failed are opened again by their servers.
    reopens: bool,
    clients: RefCell<Vec<Rc<Client>>>,
}

async fn try_open_ost(rt: &Rt, bytes: u64, commit_interval: Duration) -> Result<FileStore, String> {
    let config = FileStoreConfig {
        commit_interval,
        grow_bytes: (bytes / 16).min(64 * MIB),
        reserve_bytes: (bytes / 16).min(64 * MIB),
        db_cache_bytes: 1 << 20,
        ..FileStoreConfig::default()
    };
    FileStore::open(rt.clone(), Path::new(OST_DIR), Some(0x57a1), config, None).await.map_err(|e| e.to_string())
}

/// The metadata store as whoever opens it anew finds it.
fn reopened(store: &Rc<RefCell<Rc<MemoryKv>>>) -> MdtStore {
    let store = store.clone();
    let open: roles::OpenMdt = Rc::new(move |_| {
        let again = store.borrow().reopen();
        *store.borrow_mut() = again.clone();
        Box::pin(async move { Ok(again as Rc<dyn MetaKv>) })
    });
    MdtStore::Of { dirs: vec!["/mdt".into()], open }
}

impl World {
    pub fn new(seed: u64, osts: u16, config: OstConfig) -> World {
        World::of(SimConfig::new(seed), osts, config)
    }
    pub fn of(sim: SimConfig, osts: u16, config: OstConfig) -> World {
        World::sized(sim, osts, config, 1 << 30)
    }
    /// With OSTs of `ost_bytes` each.
    pub fn sized(sim: SimConfig, osts: u16, config: OstConfig, ost_bytes: u64) -> World {
        World::with_mds(sim, osts, config, ost_bytes, MdsConfig::default())
    }
    /// With a metadata server of these settings.
    pub fn with_mds(sim: SimConfig, osts: u16, config: OstConfig, ost_bytes: u64, mds_config: MdsConfig) -> World {
        World::build(sim, osts, config, ost_bytes, mds_config, false)
    }
    /// Whose servers open stores again that failed.
    pub fn reopening(seed: u64, osts: u16) -> World {
        World::build(SimConfig::new(seed), osts, OstConfig::default(), 1 << 30, MdsConfig::default(), true)
    }
    fn build(
        sim: SimConfig,
        osts: u16,
        config: OstConfig,
        ost_bytes: u64,
        mds_config: MdsConfig,
        reopens: bool,
    ) -> World {
        let sim = Sim::new(sim, FramePool::new(256 << 20));
        let mds_host = sim.host("mds");
        let (rt, mds_nid) = (mds_host.boot(), mds_host.nid(7988));
        let key = self::key();
        let mds_store = Rc::new(RefCell::new(MemoryKv::new()));
        let mds = sim.run(async {
            let kv: Rc<dyn MetaKv> = mds_store.borrow().clone();
            let options = MkfsOptions {
                fsname: "stria".into(),
                cluster: 0x57a1,
                uuid: 5,
                hash_keys: [rt.random(), rt.random()],
                hash_mask: u64::MAX,
                root_uid: 0,
                root_gid: 0,
                root_mode: 0o755,
                now: rt.wall(),
            };
            mds::mkfs::format(&kv, &options).await.unwrap();
            let store = if reopens { reopened(&mds_store) } else { MdtStore::Open(kv) };
            roles::start_mds_of(&rt, store, &mds_nid, &key, WINDOW, mds_config.clone()).await.unwrap()
        });
        let oss = (0..osts).map(|i| OssNode { host: sim.host(&format!("oss{i}")), running: RefCell::new(None) });
        let oss: Vec<OssNode> = oss.collect();
        let mds = RefCell::new(mds);
        let world = World {
            sim,
            mds_host,
            mds,
            mds_store,
            mds_config: RefCell::new(mds_config),
            mds_window: Cell::new(WINDOW),
            mds_nid,
            oss,
            config: RefCell::new(config),
            ost_bytes,
            ost_commits: Cell::new(FileStoreConfig::default().commit_interval),
            reopens,
            clients: RefCell::default(),
        };
        for i in 0..usize::from(osts) {
            let host = &world.oss[i].host;
            let rt = host.boot();
            let identity =
                StoreIdentity { cluster: 0x57a1, fsname: "stria".into(), ost: OstIndex(i as u16), uuid: 7 + i as u64 };
            let options = store_file::MkfsOptions { identity, capacity_bytes: ost_bytes, lost_through: 0 };
            world.sim.run(async { store_file::mkfs(&rt, Path::new(OST_DIR), &options).await.unwrap() });
            host.kill();
            world.start_oss(i);
        }
        world
    }
    /// Boots an OST's host and starts it over what its disk holds.
    pub fn start_oss(&self, i: usize) {
        self.sim.run(self.restart_oss(i));
    }
    pub async fn restart_oss(&self, i: usize) {
        let node = &self.oss[i];
        let rt = node.host.boot();
        let (nid, key) = (node.host.nid(7989), self::key());
        if self.reopens {
            let (bytes, commits) = (self.ost_bytes, self.ost_commits.get());
            let open = move |rt: Rt| -> rt::LocalFuture<Result<Rc<dyn ObjectStore>, String>> {
                Box::pin(
                    async move { try_open_ost(&rt, bytes, commits).await.map(|s| Rc::new(s) as Rc<dyn ObjectStore>) },
                )
            };
            let store = OstStore::open(&rt, vec![OST_DIR.into()], open).await.unwrap();
            let config = self.config.borrow().clone();
            let tune: roles::TuneOst = Rc::new(|_| Ok(()));
            let oss = roles::make_oss_of(&rt, vec![store], &key, WINDOW, &config, &tune).unwrap();
            let role = roles::serve_oss(&rt, oss, &nid, &self.mds_nid, &key).unwrap();
            *node.running.borrow_mut() = Some((role, None));
            return;
        }
        let store = Rc::new(try_open_ost(&rt, self.ost_bytes, self.ost_commits.get()).await.unwrap());
        let stores: Vec<Rc<dyn ObjectStore>> = vec![store.clone()];
        let role = roles::start_oss(&rt, stores, &nid, &self.mds_nid, &key, WINDOW, &self.config.borrow()).unwrap();
        *node.running.borrow_mut() = Some((role, Some(store)));
    }
    /// OSTs that are started from now on have these settings.
    pub fn set_ost_config(&self, config: OstConfig) {
        *self.config.borrow_mut() = config;
    }
    /// OSTs that are started from now on commit so long after a change.
    pub fn set_ost_commits(&self, interval: Duration) {
        self.ost_commits.set(interval);
    }
    /// Metadata servers that are started from now on commit like this.
    pub fn set_mds_commits(&self, commit: CommitConfig) {
        self.mds_config.borrow_mut().commit = commit;
    }
    /// Metadata servers that are started from now on wait so long for their clients.
    pub fn set_mds_window(&self, window: Duration) {
        self.mds_window.set(window);
    }
    /// An OST's host loses its power.
    pub fn lose_power(&self, i: usize) {
        let node = &self.oss[i];
        node.host.lose_power();
        if let Some((role, _)) = node.running.borrow_mut().take() {
            role.server.stop();
        }
    }
    /// The metadata server dies with what it had not committed.
    pub fn kill_mds(&self) {
        self.mds.borrow().halt();
        self.mds_host.kill();
    }
    /// The store of the metadata server fails at its next commit, and takes nothing more until the server is restarted.
    pub fn mds_store_fails(&self) {
        let store = self.mds_store.borrow();
        store.fail_at(store.commits() + 1, mds::FailPoint::Before);
    }
    /// Commits of the metadata server wait, as those of a disk that stands still, until it is restarted or they wait no more.
    pub fn mds_holds_commits(&self, on: bool) {
        self.mds_store.borrow().hold_commits(on);
    }
    /// The metadata server, which is dead, has never heard of an OST when it comes back.
    pub async fn mds_forgets_ost(&self, ost: u16) {
        let store = self.mds_store.borrow().reopen();
        let (key, mut sealed) = (mds::keys::plain(mds::keys::CLUSTER_MAP), Vec::new());
        store.tamper(|rows| sealed = rows[&key[..]].clone());
        let value = &sealed[..sealed.len() - mds::kv::SEAL_BYTES];
        let mut map: mds::config_service::ClusterMap = wire::decode(value).unwrap();
        map.osts.retain(|o| o.ost.0 != ost);
        let mut batch = mds::kv::KvBatch::default();
        batch.changes.insert(key, Some(wire::encode(&map)));
        store.commit(std::sync::Arc::new(batch)).await.unwrap();
        *self.mds_store.borrow_mut() = store;
    }
    /// An administrator asks the metadata server something.
    pub async fn ask_mds<Q: wire::Encode, A: wire::Decode>(&self, op: wire::Op, ask: &Q) -> A {
        let caller = mds::Caller { client: types::ClientId(7), replay: None, basis: 0, slot: None };
        let mds = self.mds.borrow().mds().unwrap();
        wire::decode(&mds.serve(caller, op, &wire::encode(ask)).await.unwrap().body).unwrap()
    }
    /// Whole number that a parameter of the metadata server is.
    pub async fn mds_param(&self, name: &str) -> u64 {
        let ask = wire::connect::ParamsRequest { pattern: name.into(), ..Default::default() };
        let reply: wire::connect::ParamsReply = self.ask_mds(wire::Op::Params, &ask).await;
        String::from_utf8(reply.params[0].value.0.clone()).unwrap().trim().parse().unwrap()
    }
    /// The metadata server is asked by a client that made its request itself.
    pub async fn ask_mds_as<Q: wire::Encode>(&self, caller: mds::Caller, op: wire::Op, q: &Q) -> Result<(), FsError> {
        let mds = self.mds.borrow().mds().unwrap();
        mds.serve(caller, op, &wire::encode(q)).await.map(drop)
    }
    /// It comes back over what its store holds.
    pub async fn restart_mds(&self) {
        let rt = self.mds_host.boot();
        let store = self.mds_store.borrow().reopen();
        let kv: Rc<dyn MetaKv> = store.clone();
        let (key, config) = (self::key(), self.mds_config.borrow().clone());
        let role = roles::start_mds_on(&rt, kv, &self.mds_nid, &key, self.mds_window.get(), config).await.unwrap();
        *self.mds.borrow_mut() = role;
        *self.mds_store.borrow_mut() = store;
    }
    pub fn ost(&self, i: usize) -> Rc<oss::Ost> {
        self.oss[i].running.borrow().as_ref().unwrap().0.oss.osts()[0].clone()
    }
    /// A client on a host of its own.
    pub fn client(&self, tune: impl FnOnce(&mut ClientConfig)) -> (Rc<Client>, Host) {
        let host = self.sim.host("client");
        let (rt, config) = self.program_on(&host, tune);
        let client = self.sim.run(roles::join(&rt, config, self.oss.len(), PATIENCE)).unwrap();
        self.clients.borrow_mut().push(client.clone());
        (client, host)
    }
    /// A client of so many OSTs, of this world's or of a test's own.
    pub fn client_of(&self, osts: usize) -> (Rc<Client>, Host) {
        let host = self.sim.host("client");
        let (rt, config) = self.program_on(&host, |_| {});
        let client = self.sim.run(roles::join(&rt, config, osts, PATIENCE)).unwrap();
        self.clients.borrow_mut().push(client.clone());
        (client, host)
    }
    /// The cluster's secret.
    pub fn key(&self) -> ClusterKey {
        key()
    }
    /// Where the metadata server is.
    pub fn mds_nid(&self) -> &Nid {
        &self.mds_nid
    }
    /// A client in the place of the one that ran on a host.
    pub async fn client_again(&self, host: &Host) -> Rc<Client> {
        let (rt, config) = self.program_on(host, |_| {});
        let client = roles::join(&rt, config, self.oss.len(), PATIENCE).await.unwrap();
        self.clients.borrow_mut().push(client.clone());
        client
    }
    pub fn program_on(&self, host: &Host, tune: impl FnOnce(&mut ClientConfig)) -> (Rt, ClientConfig) {
        let mut config = ClientConfig { key: key(), ..ClientConfig::new(self.mds_nid.clone()) };
        config.cache_bytes = 64 * MIB;
        tune(&mut config);
        (host.boot(), config)
    }
    /// How often the metadata server was told that a client had ended and did not believe it.
    pub fn mds_disbelieved(&self) -> u64 {
        self.mds.borrow().server.disbelieved()
    }
    /// How often the metadata server's store was opened again; 0 while it is.
    pub fn mds_reopened(&self) -> u64 {
        self.mds.borrow().mds().map_or(0, |mds| mds.times_reopened())
    }
    /// Inodes that the metadata server has now.
    pub fn mds_inodes(&self) -> u64 {
        self.mds.borrow().mds().unwrap().store().inodes()
    }
    /// Opens of a client that the metadata server knows.
    pub fn mds_opens_of(&self, client: types::ClientId) -> usize {
        self.mds.borrow().mds().unwrap().opens_of(client)
    }
    /// What the stores hold, as `stria fsck` looks at it: nothing is wrong, and each object has its file. Every client has left, and
    /// the servers are stopped by it.
    pub async fn fsck(&self, what: &str) {
        self.mds.borrow().halt();
        let kv: Rc<dyn MetaKv> = self.mds_store.borrow().reopen();
        let report = mds::check::check(&kv).await.unwrap();
        assert!(report.findings.is_empty(), "{what}: the metadata store: {:?}", report.findings);
        let mut missing: std::collections::BTreeSet<_> = report.objects.keys().copied().collect();
        // Whose files' owners OSTs are still to be told.
        let told = report.owners_told();
        for node in &self.oss {
            let (role, store) = node.running.borrow_mut().take().unwrap();
            role.server.stop();
            let store = store.expect("a world whose stores are not opened again");
            let mut after = types::ObjectId::default();
            let mut counted = oss::store::Usages::default();
            loop {
                let page = store.objects(after, 1000).await.unwrap();
                let Some(last) = page.last() else { break };
                after = last.object;
                for info in &page {
                    missing.remove(&info.object);
                    counted.charge(&oss::store::ObjectAttr::default(), &info.attr);
                    let file = report.objects.get(&info.object).and_then(|fid| report.inodes.get(fid));
                    if let (Some(file), Some(owner), true) = (file, info.attr.owner, told) {
                        let of_file = (file.uid, file.gid, file.project);
                        assert_eq!((owner.uid, owner.gid, owner.project), of_file, "{what}: owner of {}", info.object);
                    }
                    let owned = report.objects.contains_key(&info.object) || report.doomed.contains(&info.object);
                    let bytes = info.attr.size + info.attr.blocks;
                    assert!(owned || bytes == 0, "{what}: {} has {bytes} bytes and no file", info.object);
                }
            }
            for who in (0..3).flat_map(|id| wire::quota::QuotaKind::ALL.map(|kind| (kind, id + 1000))) {
                assert_eq!(store.usage(who), counted.of(who), "{what}: blocks of {} {}", who.0.name(), who.1);
            }
        }
        assert!(missing.is_empty(), "{what}: objects that are on no OST: {missing:?}");
    }
    /// Whether the metadata server knows a client.
    pub fn mds_knows(&self, client: types::ClientId) -> bool {
        self.mds.borrow().server.knows("stria-MDT0000", client)
    }
    /// How many targets know a client.
    pub fn knows(&self, client: types::ClientId) -> usize {
        let mut exports = self.mds.borrow().server.exports("stria-MDT0000");
        for node in &self.oss {
            if let Some((role, _)) = &*node.running.borrow() {
                exports.extend(role.server.exports(&ptlrpc::Service::target(&*role.oss.osts()[0])));
            }
        }
        exports.iter().filter(|e| e.client() == client).count()
    }
    /// Whether an OST knows a client.
    pub fn ost_knows(&self, i: usize, client: types::ClientId) -> bool {
        let (role, target) = (self.oss[i].running.borrow(), ptlrpc::Service::target(&*self.ost(i)));
        role.as_ref().is_some_and(|(role, _)| role.server.knows(&target, client))
    }
    /// The metadata server, and no other, evicts a client.
    pub async fn mds_evicts(&self, client: types::ClientId) {
        let server = self.mds.borrow().server.clone();
        server.evict("stria-MDT0000", client).await;
    }
    /// Cuts a host off from every server, or lets it talk to them again.
    pub fn cut_off(&self, host: &Host, cut: bool) {
        for server in self.oss.iter().map(|o| &o.host).chain([&self.mds_host]) {
            if cut { self.sim.cut(host, server) } else { self.sim.heal(host, server) }
        }
    }
    /// Runs a test's steps; fails when they have not ended after `limit` of simulated time.
    pub fn run<T>(&self, limit: Duration, steps: impl Future<Output = T>) -> T {
        self.sim.run_for(steps, limit).expect("the steps do not end")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for client in self.clients.borrow().iter() {
            client.abandon();
        }
        for node in &self.oss {
            if let Some((role, _)) = node.running.borrow_mut().take() {
                role.server.stop();
            }
        }
        self.mds.borrow().halt();
    }
}

pub async fn create(c: &Rc<Client>, name: &str) -> Rc<OpenFile> {
    let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, ..NewFile::default() };
    c.create_open(&root(), Fid::ROOT, name.as_bytes(), new).await.unwrap().1
}
/// A file on one OST.
pub async fn create_on(c: &Rc<Client>, name: &str, ost: u16) -> Rc<OpenFile> {
    let mut spec = layout::LayoutSpec::default();
    spec.index = Some(OstIndex(ost));
    let layout = layout::xattr::encode_spec(&spec);
    let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, layout: &layout, ..NewFile::default() };
    c.create_open(&root(), Fid::ROOT, name.as_bytes(), new).await.unwrap().1
}
/// A file "there" with 1,000 bytes on the second OST, which neither runs nor is known to the metadata server any more; nor is its client.
pub fn file_on_a_forgotten_ost(world: &World) -> Fid {
    let (one, _) = world.client(|_| {});
    world.run(Duration::from_secs(600), async {
        let file = create_on(&one, "there", 1).await;
        one.data().write(&file, 0, &[1; 1000]).await.unwrap();
        one.release(&file).await.unwrap();
        assert!(one.leave().await);
        world.lose_power(1);
        world.kill_mds();
        world.mds_forgets_ost(1).await;
        world.restart_mds().await;
        file.fid()
    })
}
/// A file over all OSTs in order, [`STRIPE`] bytes at a time.
pub async fn create_striped(c: &Rc<Client>, name: &str) -> Rc<OpenFile> {
    let mut spec = layout::LayoutSpec::default();
    spec.stripe_size = Some(layout::StripeSize::new(STRIPE).unwrap());
    spec.stripe_count = layout::StripeCount::All;
    spec.index = Some(OstIndex(0));
    let layout = layout::xattr::encode_spec(&spec);
    let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, layout: &layout, ..NewFile::default() };
    c.create_open(&root(), Fid::ROOT, name.as_bytes(), new).await.unwrap().1
}

/// ftruncate(2).
pub async fn cut(c: &Rc<Client>, file: &Rc<OpenFile>, size: u64) -> Result<(), FsError> {
    use wire::mdt::{SetBits, SetattrRequest};
    let request = SetattrRequest { valid: SetBits::SIZE | SetBits::MTIME_NOW, size, ..SetattrRequest::default() };
    c.setattr(&root(), file.inode(), request, Some(file)).await
}

pub async fn open(c: &Rc<Client>, name: &str, flags: u32) -> Rc<OpenFile> {
    let entry = c.lookup(&root(), Fid::ROOT, name.as_bytes()).await.unwrap();
    assert!(!entry.attr.fid.is_zero(), "{name} is there");
    c.open(&root(), entry.attr.fid, flags).await.unwrap()
}
/// All bytes of a file up to `len`.
pub async fn read_all(c: &Rc<Client>, file: &Rc<OpenFile>, len: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while (out.len() as u64) < len {
        let step = (len - out.len() as u64).min(MIB) as usize;
        let part = c.data().read(file, out.len() as u64, step).await.unwrap();
        if part.is_empty() {
            break;
        }
        out.extend(part.to_vec());
    }
    out
}
/// Bytes that tell their place.
pub fn pattern(at: u64, len: usize, salt: u64) -> Vec<u8> {
    (at..at + len as u64).map(|i| (i / 7 + i * salt + salt) as u8 | 1).collect()
}

/// How often an OST was asked something.
pub fn asked(world: &World, ost: usize, op: &str) -> u64 {
    let text = String::from_utf8(world.ost(ost).get_params("obdfilter.*.ops").remove(0).value.0).unwrap();
    let line = text.lines().find(|l| l.split_whitespace().next() == Some(op));
    line.map_or(0, |l| l.split_whitespace().nth(1).unwrap().parse().unwrap())
}
