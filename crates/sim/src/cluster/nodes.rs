//! The hosts of a cluster and what runs on them: real servers over real stores on simulated disks, real clients.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use client::{Client, ClientConfig, PageCache};
use layout::LayoutSpec;
use mds::{MdsConfig, MetaKv, MkfsOptions};
use oss::OstConfig;
use oss::fast::{FAST_BYTES_MIN, FastConfig, FastStore, FastTier};
use oss::store::ObjectStore;
use ptlrpc::{ClusterKey, Server, SessionKey};
use roles::{MdsRole, MdtStore, OpenMdt, OssRole, OstStore, TuneOst};
use rt::{LocalFuture, Nid, Rt};
use simworld::{Host, Sim};
use store_file::{FileStore, FileStoreConfig};
use store_redb::RedbKv;
use types::{ClientId, Duration, FsError, MIB};

use super::config::ClusterConfig;
use super::database::Database;

mod aside;
mod counted;
mod growth;
mod guests;

use aside::Aside;
pub use counted::Counted;
use growth::Members;

/// Directory of the metadata store on its host.
pub(super) const MDT_DIR: &str = "/mdt";
pub(super) const MDT_FILE: &str = "/mdt/mdt.redb";
/// Directory of an OST's store on its host.
pub(super) const OST_DIR: &str = "/ost";
/// The database of an OST's store.
pub(super) const OST_DATABASE: &str = "/ost/meta.redb";
/// The data of an OST's store.
pub(super) const OST_FILE: &str = "/ost/data";
const FAST_DIR: &str = "/fast";
pub(super) const FSNAME: &str = "sim";
pub(super) const CLUSTER_ID: u64 = 77;
const MDS_PORT: u16 = 7988;
const OSS_PORT: u16 = 7989;
/// Bytes of a client's smallest cache.
const CLIENT_CACHE_MIN: u64 = 4 * MIB;
/// What a store reads, and copies, at once.
const STORE_BYTES: u64 = MIB;
/// What a client keeps zeros in.
const ZEROS_BYTES: u64 = 256 << 10;
/// How long a client may take to join; servers may be down meanwhile.
const JOIN_PATIENCE: Duration = Duration::from_secs(600);

/// What kind of node a fault or a check is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum NodeId {
    /// The metadata server.
    Mds,
    /// An object storage server, by OST index.
    Oss(usize),
    /// A client.
    Client(usize),
    /// A client with a credential of its own.
    Guest(usize),
}

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NodeId::Mds => f.write_str("mds"),
            NodeId::Oss(i) => write!(f, "oss{i}"),
            NodeId::Client(i) => write!(f, "client{i}"),
            NodeId::Guest(i) => write!(f, "guest{i}"),
        }
    }
}

enum Running {
    Nothing,
    Mds(MdsRole),
    Oss(OssRole),
    Client(Rc<Client>),
}

/// What dead clients left for those after them.
type Left = Rc<RefCell<Vec<(ClientId, SessionKey)>>>;

/// Tells every server of the clients that died on this host, as a mount does that finds their records.
async fn tell_of_the_dead(client: Rc<Client>, left: Left) {
    while !client.sessions().is_leaving() {
        let Some((id, sessions)) = left.borrow().first().copied() else { return };
        match client.sessions().tell_gone(id, &sessions).await {
            Ok(()) => left.borrow_mut().retain(|(other, _)| *other != id),
            Err(e @ (FsError::NotPermitted | FsError::Busy)) => panic!("{id} is dead, and a server says {e}"),
            Err(_) => client.rt().sleep(Duration::from_secs(1)).await,
        }
    }
}

/// A host and what runs on it.
pub struct Node {
    /// Which.
    pub id: NodeId,
    /// Its host, or those that it may run on.
    hosts: Vec<Host>,
    /// On which of them it runs, or ran last.
    at: Cell<usize>,
    running: RefCell<Running>,
    /// Starts so far.
    pub starts: Cell<u64>,
    /// The identities under which the client joined, the latest last.
    identities: RefCell<Vec<ClientId>>,
    /// Clients that died here in this boot of the host, and of which not every server was told yet.
    left: Left,
    rt: RefCell<Option<Rt>>,
    /// The name of a server's target.
    target: String,
}

impl Node {
    fn new(sim: &Sim, id: NodeId) -> Rc<Node> {
        Node::on(vec![sim.host(&id.to_string())], id)
    }
    fn on(hosts: Vec<Host>, id: NodeId) -> Rc<Node> {
        let running = RefCell::new(Running::Nothing);
        let target = match id {
            NodeId::Mds => format!("{FSNAME}-MDT0000"),
            NodeId::Oss(i) => format!("{FSNAME}-OST{i:04x}"),
            NodeId::Client(_) | NodeId::Guest(_) => String::new(),
        };
        Rc::new(Node {
            id,
            target,
            hosts,
            at: Cell::new(0),
            running,
            starts: Cell::new(0),
            identities: RefCell::default(),
            left: Left::default(),
            rt: RefCell::new(None),
        })
    }
    /// The host that it runs on, or ran on last.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.hosts[self.at.get()]
    }
    /// It starts on another of its hosts next time, if it has one on which nothing runs.
    pub fn change_hosts(&self) {
        let next = (self.at.get() + 1) % self.hosts.len();
        if !self.hosts[next].runs() {
            self.at.set(next);
        }
    }
    /// Forgets what ran: the process is dead already. What knows each other in rings is told to let go.
    fn forget(&self) {
        self.rt.borrow_mut().take();
        match self.running.replace(Running::Nothing) {
            Running::Nothing => {}
            Running::Mds(role) => role.halt(),
            Running::Oss(role) => role.server.stop(),
            Running::Client(client) => client.abandon(),
        }
    }
    fn server(&self) -> Option<Rc<Server>> {
        match &*self.running.borrow() {
            Running::Mds(role) => Some(role.server.clone()),
            Running::Oss(role) => Some(role.server.clone()),
            _ => None,
        }
    }
}

/// A cluster of one metadata server, object storage servers with one target each, and clients.
pub struct Cluster {
    /// The world.
    pub sim: Sim,
    /// How it is made.
    pub config: ClusterConfig,
    /// The metadata server.
    pub mds: Rc<Node>,
    /// A metadata server that another one has followed, or is about to, while it lives.
    aside: RefCell<Option<Aside>>,
    /// Where the metadata store is, if that is not on the disk of its server.
    database: Option<Rc<Database>>,
    /// Hosts of object storage servers: those of the beginning, then those that OSTs may be added on.
    oss_hosts: Vec<Rc<Node>>,
    /// Which of them have an OST of the cluster.
    members: Members,
    /// Clients.
    pub clients: Vec<Rc<Node>>,
    /// Clients with credentials of their own; no fault is aimed at them.
    pub guests: Vec<Rc<Node>>,
    key: ClusterKey,
    /// Identity of the metadata store, once it is made.
    pub mdt_uuid: Cell<Option<u64>>,
    /// Requests that full scheduler heads sent away, of servers that run no more.
    pub refused: Cell<u64>,
    /// Clients that stand still for moments only: nobody evicts them for that, and what they answer counts.
    pub stuttering: RefCell<BTreeSet<usize>>,
    /// Evictions by servers that run no more.
    past_evictions: RefCell<BTreeMap<ClientId, u64>>,
}

/// A fast tier before a store, on the same disk with all its faults; one that fails is done without.
async fn with_fast_tier(rt: &Rt, store: Rc<FileStore>, admission: String) -> Rc<dyn ObjectStore> {
    let config = FastConfig { admission, ..FastConfig::new(FAST_BYTES_MIN) };
    let identity = store.identity();
    let tier = FastTier::open(rt, Path::new(FAST_DIR), &identity, &config, None, |file| file).await;
    let tier = tier.unwrap_or_else(|e| FastTier::without(rt, &identity, &config, e.to_string()));
    FastStore::new(store, tier)
}

/// Runs `work` as a task of the process behind `rt`; `None` when that process ended first.
async fn inside<T: 'static>(rt: &Rt, work: LocalFuture<T>) -> Option<T> {
    let (tx, rx) = rt::sync::oneshot();
    rt.spawn(async move { tx.send(work.await) });
    rx.await
}

impl Cluster {
    /// Hosts without anything on them.
    #[must_use]
    pub fn new(sim: Sim, config: ClusterConfig) -> Cluster {
        let database = config.database.map(|trip_max| Database::new(&sim, trip_max));
        let mut mds_hosts = vec![sim.host("mds")];
        mds_hosts.extend(database.iter().map(|_| sim.host("mds-standby")));
        let mds = Node::on(mds_hosts, NodeId::Mds);
        let osses = |which: Range<usize>| which.map(|i| Node::new(&sim, NodeId::Oss(i))).collect::<Vec<_>>();
        let mut oss_hosts = osses(0..config.osts);
        let clients = (0..config.clients).map(|i| Node::new(&sim, NodeId::Client(i))).collect();
        let guests = (0..config.guests).map(|i| Node::new(&sim, NodeId::Guest(i))).collect();
        oss_hosts.extend(osses(config.osts..config.osts_max()));
        let members = Members::new(config.osts);
        let key = ClusterKey::from_text(b"the key of a simulated cluster").expect("it is long enough");
        Cluster {
            sim,
            config,
            mds,
            aside: RefCell::default(),
            database,
            oss_hosts,
            members,
            clients,
            guests,
            key,
            mdt_uuid: Cell::new(None),
            refused: Cell::new(0),
            stuttering: RefCell::default(),
            past_evictions: RefCell::default(),
        }
    }
    /// All nodes but guests.
    pub fn nodes(&self) -> impl Iterator<Item = &Rc<Node>> {
        std::iter::once(&self.mds).chain(self.osses()).chain(&self.clients)
    }
    /// A node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Rc<Node> {
        match id {
            NodeId::Mds => &self.mds,
            NodeId::Oss(i) => &self.oss_hosts[i],
            NodeId::Client(i) => &self.clients[i],
            NodeId::Guest(i) => &self.guests[i],
        }
    }
    /// Where the metadata server is reached, wherever it runs.
    fn mds_nid(&self) -> Nid {
        match &self.mds.hosts[..] {
            [one] => one.nid(MDS_PORT),
            several => Nid::OneOf(several.iter().map(|h| h.nid(MDS_PORT)).collect()),
        }
    }
    /// The metadata store of which no server runs, for a process on its host.
    ///
    /// # Errors
    /// A sentence.
    pub async fn mdt_store(&self, rt: &Rt) -> Result<Rc<dyn MetaKv>, String> {
        match &self.database {
            Some(database) => Ok(database.open(rt, self.mds.host()).await),
            None => Ok(open_mdt(rt, false)?),
        }
    }
    /// Whether the metadata store is on no server's disk.
    #[must_use]
    pub fn has_database(&self) -> bool {
        self.database.is_some()
    }

    /// Makes all stores.
    ///
    /// # Errors
    /// A sentence.
    pub async fn format(&self) -> Result<(), String> {
        let rt = self.mds.host().boot();
        let options = MkfsOptions {
            fsname: FSNAME.into(),
            cluster: CLUSTER_ID,
            uuid: rt.random(),
            hash_keys: [rt.random(), rt.random()],
            hash_mask: u64::MAX,
            root_uid: 0,
            root_gid: 0,
            root_mode: 0o755,
            now: rt.wall(),
        };
        self.mdt_uuid.set(Some(options.uuid));
        if let Some(database) = &self.database {
            database.format(&options).await?;
        } else {
            let kv: Rc<dyn MetaKv> = open_mdt(&rt, true)?;
            mds::mkfs::format(&kv, &options).await.map_err(|e| format!("mkfs of the metadata target: {e}"))?;
        }
        self.mds.host().kill();
        for i in self.ost_indices() {
            self.format_ost(i).await?;
        }
        Ok(())
    }

    /// Boots a node's host and starts what belongs on it.
    ///
    /// # Errors
    /// Why it does not start.
    ///
    /// # Panics
    /// When it runs already.
    pub async fn start(&self, id: NodeId) -> Result<(), String> {
        let node = self.node(id).clone();
        node.host().set_memory(self.memory_of(id));
        let rt = node.host().boot();
        // Whoever looks at the stores meanwhile has as much as there is.
        node.host().set_memory(None);
        node.starts.set(node.starts.get() + 1);
        *node.rt.borrow_mut() = Some(rt.clone());
        let identity = ClientId(rt.random() << 8 | node.starts.get());
        let started = match id {
            NodeId::Mds => inside(&rt, Box::pin(self.mds_role(rt.clone()))).await,
            NodeId::Oss(i) => inside(&rt, Box::pin(self.oss_role(rt.clone(), node.host().nid(OSS_PORT), i))).await,
            NodeId::Client(_) => {
                node.identities.borrow_mut().push(identity);
                inside(&rt, Box::pin(self.client_role(rt.clone(), identity, node.left.clone()))).await
            }
            NodeId::Guest(_) => Some(Err("it starts with a key of its own".into())),
        };
        match started {
            Some(Ok(running)) => {
                *node.running.borrow_mut() = running;
                Ok(())
            }
            Some(Err(e)) => Err(format!("{id}: {e}")),
            None => Err(format!("{id} died while it started")),
        }
    }

    /// Bytes of page frames of a process; `None`: it shares those of all.
    fn memory_of(&self, id: NodeId) -> Option<u64> {
        let (cached, least) = match id {
            NodeId::Mds => (0, STORE_BYTES),
            NodeId::Oss(_) => (self.config.ost_cache_bytes, STORE_BYTES),
            NodeId::Client(_) | NodeId::Guest(_) => (self.cached_max(), ZEROS_BYTES),
        };
        self.config.frames_beyond_caches.map(|beyond| cached + least + beyond)
    }
    /// Bytes that a client's cache holds at most: what may leave is within its limit, and what is not written yet within that of each OST.
    fn cached_max(&self) -> u64 {
        let unwritten = self.dirty_bytes_max() * self.config.osts_max() as u64;
        let limit = self.config.client_cache_bytes.max(CLIENT_CACHE_MIN);
        PageCache::frames_max(self.config.client_cache_bytes).min(limit + unwritten)
    }
    /// How often processes found no page frame.
    #[must_use]
    pub fn short_of_memory(&self) -> u64 {
        let hosts = self.nodes().flat_map(|n| &n.hosts);
        hosts.map(Host::short_of_memory).sum()
    }

    /// The commit interval of a server that starts.
    fn commit_of_start(&self, rt: &Rt, usual: Duration) -> Duration {
        if self.config.commits_vary && rt.random().is_multiple_of(2) {
            return Duration::from_millis(1).min(usual);
        }
        usual
    }

    fn mds_role(&self, rt: Rt) -> impl Future<Output = Result<Running, String>> + use<> {
        let host = self.mds.host().clone();
        let (nid, key, window) = (host.nid(MDS_PORT), self.key.clone(), self.config.recovery_window);
        let database = self.database.clone();
        let (size, count) = (self.config.stripe_bytes, i64::from(self.config.stripe_count));
        let commit = self.commit_of_start(&rt, self.config.commit_interval);
        let (alloc, reopens) = (self.config.alloc_policy.clone(), self.config.reopens);
        let spec = LayoutSpec::from_raw(size, count, -1).map_err(|e| format!("layout of new files: {e}"));
        async move {
            let store = if let Some(database) = database {
                let open: OpenMdt = Rc::new(move |rt| {
                    let (database, host) = (database.clone(), host.clone());
                    Box::pin(async move { Ok(database.open(&rt, &host).await) })
                });
                MdtStore::Of { dirs: Vec::new(), open }
            } else if reopens {
                let open: OpenMdt = Rc::new(|rt| {
                    let opened = open_mdt(&rt, false).map(|kv| kv as Rc<dyn MetaKv>).map_err(roles::RoleError);
                    Box::pin(std::future::ready(opened))
                });
                MdtStore::Of { dirs: vec![MDT_DIR.into()], open }
            } else {
                MdtStore::Open(open_mdt(&rt, false)?)
            };
            let mut config = MdsConfig { default_layout: spec?, ..MdsConfig::default() };
            config.alloc_policy = alloc;
            config.commit.idle = if commit < config.commit.idle { commit } else { config.commit.idle.max(commit / 20) };
            config.commit.interval = commit;
            let role = roles::start_mds_of(&rt, store, &nid, &key, window, config).await;
            role.map(Running::Mds).map_err(|e| e.to_string())
        }
    }

    fn oss_role(&self, rt: Rt, nid: Nid, index: usize) -> impl Future<Output = Result<Running, String>> + use<> {
        let (mds, key, window) = (self.mds_nid(), self.key.clone(), self.config.recovery_window);
        let config = OstConfig {
            cache_bytes: self.config.ost_cache_bytes,
            nrs_policy: self.config.nrs_policy.clone(),
            cache_policy: self.config.cache_policy.clone(),
            grant_initial_bytes: self.config.ost_grant_bytes,
            dispatch_window: self.config.dispatch_window,
            bulk_bytes_max: self.config.ost_bulk_bytes as u32,
            callback_timeout: self.config.callback_timeout,
            glimpse_timeout: self.config.glimpse_timeout,
            ..OstConfig::default()
        };
        let (queue_max, reopens) = (self.config.queue_max, self.config.reopens);
        let commit = self.config.ost_commit_interval.unwrap_or(self.config.commit_interval);
        let (reserve, commit) = (self.config.ost_reserve_bytes, self.commit_of_start(&rt, commit));
        let fast = self.config.fast_admission.clone().filter(|_| index.is_multiple_of(2));
        async move {
            let open = move |rt: Rt| -> LocalFuture<Result<Rc<dyn ObjectStore>, String>> {
                let fast = fast.clone();
                Box::pin(async move {
                    let store = Rc::new(open_ost(&rt, reserve, commit).await?);
                    Ok(match fast {
                        Some(admission) => with_fast_tier(&rt, store, admission).await,
                        None => store as Rc<dyn ObjectStore>,
                    })
                })
            };
            let tune: TuneOst = Rc::new(move |o| match queue_max {
                Some(requests) => o.set_params("ost.OSS.ost_io.nrs_queue_max", &requests.to_string()).map(drop),
                None => Ok(()),
            });
            if reopens {
                let store = OstStore::open(&rt, vec![OST_DIR.into()], open).await?;
                let oss =
                    roles::make_oss_of(&rt, vec![store], &key, window, &config, &tune).map_err(|e| e.to_string())?;
                let role = roles::serve_oss(&rt, oss, &nid, &mds, &key).map_err(|e| e.to_string())?;
                return Ok(Running::Oss(role));
            }
            let role = roles::start_oss(&rt, vec![open(rt.clone()).await?], &nid, &mds, &key, window, &config);
            let role = role.map_err(|e| e.to_string())?;
            role.oss.osts().iter().try_for_each(|o| tune(o))?;
            Ok(Running::Oss(role))
        }
    }

    fn client_role(
        &self,
        rt: Rt,
        identity: ClientId,
        left: Left,
    ) -> impl Future<Output = Result<Running, String>> + use<> {
        let config = ClientConfig {
            key: self.key.clone(),
            client: identity,
            cache_bytes: self.config.client_cache_bytes,
            cache_policy: self.config.cache_policy.clone(),
            readahead_policy: self.config.readahead_policy.clone(),
            dirty_bytes_max: self.dirty_bytes_max(),
            rpcs_in_flight_max: self.config.rpcs_in_flight_max,
            rpc_pages_max: self.config.rpc_pages_max,
            dirty_age_max: self.config.dirty_age_max,
            grant_shrink_interval: self.config.grant_shrink_interval,
            ..ClientConfig::new(self.mds_nid())
        };
        let osts = self.osts_to_join();
        async move {
            let client = roles::join(&rt, config, osts, JOIN_PATIENCE).await.map_err(|e| e.to_string())?;
            // Every other one finds nothing, so that the dead are waited for, too.
            if identity.0 >> 8 & 1 == 0 {
                rt.spawn(tell_of_the_dead(client.clone(), left));
            }
            Ok(Running::Client(client))
        }
    }

    /// Bytes that a client may have dirty for each OST.
    #[must_use]
    pub fn dirty_bytes_max(&self) -> u64 {
        (self.config.client_cache_bytes / 2).max(MIB)
    }

    /// The client on a node, when it runs.
    #[must_use]
    pub fn client(&self, index: usize) -> Option<Rc<Client>> {
        match &*self.clients[index].running.borrow() {
            Running::Client(c) => Some(c.clone()),
            _ => None,
        }
    }

    /// The text of a parameter of an OST that runs.
    #[must_use]
    pub fn ost_param(&self, index: usize, path: &str) -> Option<String> {
        let Running::Oss(role) = &*self.oss_hosts[index].running.borrow() else { return None };
        let param = role.oss.osts().first()?.get_params(path).into_iter().next()?;
        Some(String::from_utf8_lossy(&param.value).into_owned())
    }

    /// Bytes that an OST that runs has granted to a client.
    #[must_use]
    pub fn ost_granted(&self, index: usize, client: ClientId) -> u64 {
        let path = format!("obdfilter.{FSNAME}-OST{index:04x}.grants");
        number_behind(&self.ost_param(index, &path).unwrap_or_default(), &format!("{client}: "))
    }
    /// Runs `work` on a client as a task of its process; `None` when it does not run, or died meanwhile.
    pub fn on<T: 'static>(
        &self,
        index: usize,
        work: impl AsyncFnOnce(Rc<Client>) -> T + 'static,
    ) -> LocalFuture<Option<T>> {
        let Some(client) = self.client(index) else { return Box::pin(std::future::ready(None)) };
        let rt = client.rt().clone();
        // A hundred kinds of work: what holds them knows only what they result in.
        let work: LocalFuture<T> = Box::pin(async move { work(client).await });
        Box::pin(async move { inside(&rt, work).await })
    }

    /// Ends a node's process; with `power` its host, too.
    pub fn kill(&self, id: NodeId, power: bool) {
        let node = self.node(id);
        if let NodeId::Oss(i) = id {
            let text = self.ost_param(i, "ost.OSS.ost_io.req_waitqueue").unwrap_or_default();
            self.refused.set(self.refused.get() + number_behind(&text, "refused: "));
        }
        if power {
            node.left.borrow_mut().clear();
            node.host().lose_power();
        } else {
            if let Running::Client(client) = &*node.running.borrow() {
                node.left.borrow_mut().push((client.sessions().id(), *client.sessions().key()));
            }
            node.host().kill();
        }
        if let Some(server) = node.server() {
            self.keep_evictions_of(&server);
        }
        node.forget();
    }
    /// A server ends; the evictions that it carried out are counted still.
    fn keep_evictions_of(&self, server: &Server) {
        let mut past = self.past_evictions.borrow_mut();
        for id in self.clients.iter().chain(&self.guests).flat_map(|c| c.identities.borrow().clone()) {
            *past.entry(id).or_default() += server.evictions(id);
        }
    }

    /// How many times any server evicted the client that runs on a node, or ran there last.
    #[must_use]
    pub fn evictions(&self, index: usize) -> u64 {
        let Some(id) = self.clients[index].identities.borrow().last().copied() else { return 0 };
        let past = self.past_evictions.borrow().get(&id).copied().unwrap_or(0);
        past + self.nodes().filter_map(|n| n.server()).map(|s| s.evictions(id)).sum::<u64>()
    }

    /// How many clients the metadata server that runs has evicted since its start.
    #[must_use]
    pub fn evictions_by_mds(&self) -> u64 {
        let Some(server) = self.mds.server() else { return 0 };
        self.clients.iter().flat_map(|c| c.identities.borrow().clone()).map(|id| server.evictions(id)).sum()
    }
    /// The identities of a client's earlier processes; with `but_last` not the latest.
    #[must_use]
    pub fn identities(&self, index: usize, but_last: bool) -> Vec<ClientId> {
        let mut all = self.clients[index].identities.borrow().clone();
        if but_last {
            all.pop();
        }
        all
    }

    /// Whether a client's latest process lives, be it that it still joins.
    #[must_use]
    pub fn lives(&self, index: usize) -> bool {
        self.clients[index].rt.borrow().is_some()
    }

    /// The servers' targets; those of a server that does not run are missing.
    fn targets(&self) -> impl Iterator<Item = (Rc<Server>, &str)> {
        let servers = std::iter::once(&self.mds).chain(self.osses());
        servers.filter_map(|n| n.server().map(|s| (s, n.target.as_str())))
    }
    /// Whether a server runs and has been told everything that its last restart lost.
    #[must_use]
    pub fn is_in_service(&self, id: NodeId) -> bool {
        self.node(id).server().is_some_and(|s| !s.is_recovering())
    }
    /// Whether a server runs over a store that has not failed.
    #[must_use]
    pub fn is_well(&self, id: NodeId) -> bool {
        match &*self.node(id).running.borrow() {
            Running::Mds(role) => role.mds().is_some_and(|mds| mds.store().failure().is_none()),
            Running::Oss(role) => {
                let osts = role.oss.osts();
                !osts.is_empty() && osts.iter().all(|ost| ost.store().failure().is_none())
            }
            _ => false,
        }
    }
    /// Inodes that the metadata server has now, nameless ones that are open among them; 0 when it does not run.
    #[must_use]
    pub fn mds_inodes(&self) -> u64 {
        match &*self.mds.running.borrow() {
            Running::Mds(role) => role.mds().map_or(0, |mds| mds.store().inodes()),
            _ => 0,
        }
    }
    /// Why an OST's store is refused as an older copy, if one is.
    #[must_use]
    pub fn refused_store(&self) -> Option<String> {
        match &*self.mds.running.borrow() {
            Running::Mds(role) => role.mds()?.refused_store(),
            _ => None,
        }
    }
    /// How often the metadata server was started, or opened its store again.
    #[must_use]
    pub fn mds_starts(&self) -> u64 {
        let reopened = match &*self.mds.running.borrow() {
            Running::Mds(role) => role.mds().map_or(0, |mds| mds.times_reopened()),
            _ => 0,
        };
        self.mds.starts.get() << 32 | reopened
    }
    /// Whether all servers run and none of them knows the client.
    #[must_use]
    pub fn has_forgotten(&self, client: ClientId) -> bool {
        self.targets().count() == 1 + self.ost_indices().len() && self.targets().all(|(s, t)| !s.knows(t, client))
    }
    /// Whether a client's process stands still, or has not learned yet that a server evicted it. A client that comes back to
    /// a restarted server without anything to lose there calls nothing an eviction: it has learned once it is in service.
    #[must_use]
    pub fn believes_in_a_lost_session(&self, index: usize) -> bool {
        let Some(client) = self.client(index) else { return true };
        if self.clients[index].host().is_stopped() && !self.stuttering.borrow().contains(&index) {
            return true;
        }
        let learned: u64 = imports(&client).map(|i| i.evictions()).sum();
        learned < self.evictions(index) && !self.has_all_sessions(index)
    }
    /// Whether a client has a connection and a session at every server that it uses, as far as it knows.
    #[must_use]
    pub fn has_all_sessions(&self, index: usize) -> bool {
        self.client(index).is_some_and(|c| imports(&c).all(|i| i.state() == ptlrpc::ImportState::Full))
    }
    /// Whether a server that runs does not know the client on a node: it was evicted and has not come back yet.
    #[must_use]
    pub fn is_stranger(&self, index: usize) -> bool {
        let Some(id) = self.clients[index].identities.borrow().last().copied() else { return true };
        self.note_meetings(id);
        self.targets().any(|(s, t)| !s.knows(t, id) && self.counts_for(t, id) && !self.gives_up(index, t))
    }
    /// Whether a client does without a target, because it was told so.
    fn gives_up(&self, index: usize, target: &str) -> bool {
        let is_it = |osc: &Rc<client::Osc>| !osc.is_active() && format!("{FSNAME}-OST{:04x}", osc.index().0) == target;
        self.client(index).is_some_and(|c| c.osts().all().iter().any(is_it))
    }

    /// Whether a client tells the restarted metadata server what it has.
    #[must_use]
    pub fn replays(&self, id: NodeId) -> bool {
        let NodeId::Client(index) = id else { return false };
        self.client(index).is_some_and(|c| c.sessions().mdc().state() == ptlrpc::ImportState::Replaying)
    }

    /// Stops a node as an operator does: clients leave, servers commit everything.
    ///
    /// # Errors
    /// What its store answers.
    pub async fn stop(&self, id: NodeId) -> Result<(), String> {
        let node = self.node(id);
        let work: LocalFuture<Result<(), FsError>> = match &*node.running.borrow() {
            Running::Nothing => return Err(format!("{id} does not run")),
            Running::Mds(role) => {
                let (server, mds) = (role.server.clone(), role.mds());
                Box::pin(async move {
                    server.stop();
                    match mds {
                        Some(mds) => mds.stop().await,
                        None => Err(FsError::Io),
                    }
                })
            }
            Running::Oss(role) => {
                let (server, osts) = (role.server.clone(), role.oss.osts());
                Box::pin(async move {
                    server.stop();
                    for ost in osts {
                        ost.close().await?;
                    }
                    Ok(())
                })
            }
            Running::Client(client) => {
                let client = client.clone();
                Box::pin(async move {
                    client.leave().await;
                    Ok(())
                })
            }
        };
        let rt = node.rt.borrow().clone().ok_or_else(|| format!("{id} does not run"))?;
        let stopped = inside(&rt, Box::pin(work)).await;
        self.kill(id, false);
        match stopped {
            Some(done) => done.map_err(|e| format!("{id} stops: {e}")),
            None => Err(format!("{id} died while it stopped")),
        }
    }

    /// Ends every process.
    pub fn end(&self) {
        self.end_aside();
        let servers = std::iter::once(&self.mds).chain(&self.oss_hosts);
        for node in servers.chain(&self.clients).chain(&self.guests) {
            self.kill(node.id, false);
        }
    }
}

/// The number behind a word of a text; 0 when there is none.
fn number_behind(text: &str, word: &str) -> u64 {
    let rest = text.split(word).nth(1).unwrap_or("");
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}

/// The metadata store of the host behind `rt`.
///
/// # Errors
/// A sentence.
pub(super) fn open_mdt(rt: &Rt, create: bool) -> Result<Rc<RedbKv>, String> {
    if !create {
        return store_redb::open_at(rt.clone(), Path::new(MDT_FILE), 1 << 20).map_err(|e| e.to_string());
    }
    let file = rt.open_blocking(Path::new(MDT_FILE), create).map_err(|e| format!("{MDT_FILE}: {e}"))?;
    RedbKv::on(rt.clone(), file, 1 << 20).map_err(|e| format!("{MDT_FILE}: {e}"))
}

/// The object store of the host behind `rt`.
///
/// # Errors
/// A sentence.
pub(super) async fn open_ost(rt: &Rt, reserve_bytes: u64, commit_interval: Duration) -> Result<FileStore, String> {
    let config = FileStoreConfig {
        commit_interval,
        grow_bytes: reserve_bytes,
        reserve_bytes,
        db_cache_bytes: 1 << 20,
        ..FileStoreConfig::default()
    };
    FileStore::open(rt.clone(), Path::new(OST_DIR), Some(CLUSTER_ID), config, None).await.map_err(|e| e.to_string())
}

/// A client's half of the sessions with the servers that it uses.
fn imports(client: &Client) -> impl Iterator<Item = Rc<ptlrpc::Import>> {
    client.osts().all().into_iter().filter_map(|o| o.import().ok()).chain([client.sessions().mdc()])
}
