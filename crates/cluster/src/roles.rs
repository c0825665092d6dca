//! Starting and formatting roles.
use std::path::Path;
use std::rc::Rc;

use client::{Client, ClientConfig};
use fuse::mount::{Mount, MountOptions};
use fuse::{Session, SessionConfig, TransportChoice};
use mds::{Mds, MdsConfig, MetaKv};
use mount::{KernelCaching, Squash, StriaFs};
use oss::store::{ObjectStore, StoreIdentity};
use oss::{Oss, Ost, OstConfig};
use ptlrpc::{Callbacks, ClusterKey, Import, ImportConfig, Server, ServerConfig};
use rt::{LocalFuture, Nid, Rt};
use store_file::{DirLock, FileStore, FileStoreConfig};
use types::{ClientId, Duration, FsError, OstIndex};
use wire::Op;
use wire::connect::{OstEntry, RegisterRequest};

/// Why a role could not start: a sentence for the user.
#[derive(Debug)]
pub struct RoleError(pub String);
impl std::fmt::Display for RoleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for RoleError {}

/// A running metadata server.
pub struct MdsRole {
    /// The node.
    pub mds: Rc<Mds>,
    /// Its listener and sessions.
    pub server: Rc<Server>,
    /// Where clients reach it.
    pub nid: Nid,
}

/// A running object storage server.
pub struct OssRole {
    /// The node.
    pub oss: Oss,
    /// Its listener and sessions.
    pub server: Rc<Server>,
    /// Where clients reach it.
    pub nid: Nid,
}

/// Settings that both kinds of server share.
fn server_config(rt: &Rt, key: &ClusterKey, recovery_window: Duration) -> ServerConfig {
    ServerConfig { key: key.clone(), recovery_window, client_timeout: Duration::from_secs(60), boot: rt.random() }
}

/// Formats a metadata target in `dir` for cluster `cluster`, owned by `owner` (uid, gid).
///
/// # Errors
/// [`RoleError`]: the directory holds a store already, or cannot be written.
pub async fn format_mdt(rt: &Rt, dir: &Path, fsname: &str, cluster: u64, owner: (u32, u32)) -> Result<(), RoleError> {
    let options = mds::MkfsOptions {
        fsname: fsname.into(),
        cluster,
        uuid: rt.random(),
        hash_keys: [rt.random(), rt.random()],
        hash_mask: u64::MAX,
        root_uid: owner.0,
        root_gid: owner.1,
        root_mode: 0o755,
        now: rt.wall(),
    };
    store_redb::mkfs(rt.clone(), dir, &options).await.map_err(|e| RoleError(e.to_string()))?;
    Ok(())
}

/// Starts the metadata server of the store in `dir`, listening at `nid`. `key`, `nid` and address in `config` are
/// filled in here.
///
/// # Errors
/// [`RoleError`]: not formatted, in use, the address is taken.
pub async fn start_mds(
    rt: &Rt,
    dir: &Path,
    nid: &Nid,
    key: &ClusterKey,
    recovery_window: Duration,
    config: MdsConfig,
) -> Result<MdsRole, RoleError> {
    let kv =
        store_redb::open(rt.clone(), dir, store_redb::CACHE_BYTES_DEFAULT).map_err(|e| RoleError(e.to_string()))?;
    start_mds_on(rt, kv, nid, key, recovery_window, config).await
}

/// [`start_mds`] over an open store.
///
/// # Errors
/// As [`start_mds`].
pub async fn start_mds_on(
    rt: &Rt,
    kv: Rc<dyn MetaKv>,
    nid: &Nid,
    key: &ClusterKey,
    recovery_window: Duration,
    config: MdsConfig,
) -> Result<MdsRole, RoleError> {
    let server = Server::new(rt.clone(), server_config(rt, key, recovery_window));
    // The map that clients get names this address, so a port of the system's choice is bound first.
    let bound = server.listen(nid).map_err(|e| RoleError(e.to_string()))?;
    let config = MdsConfig { nid: bound.to_string(), key: key.clone(), ..config };
    let mds = Mds::start(rt.clone(), config, kv).await.map_err(|e| RoleError(format!("metadata target: {e}")))?;
    let (weak, target) = (Rc::downgrade(&server), ptlrpc::Service::target(&*mds));
    mds.set_evictor(Rc::new(move |client: ClientId| -> LocalFuture<()> {
        let (weak, target) = (weak.clone(), target.clone());
        Box::pin(async move {
            if let Some(server) = weak.upgrade() {
                server.evict(&target, client).await;
            }
        })
    }));
    server.add(mds.clone());
    Ok(MdsRole { mds, server, nid: bound })
}

/// Formats object storage target `ost` in `dir`. `capacity_bytes` 0: all there is.
///
/// # Errors
/// [`RoleError`] as [`format_mdt`].
pub async fn format_ost(
    rt: &Rt,
    dir: &Path,
    fsname: &str,
    cluster: u64,
    ost: OstIndex,
    capacity_bytes: u64,
) -> Result<(), RoleError> {
    std::fs::create_dir_all(dir).map_err(|e| RoleError(format!("{}: {e}", dir.display())))?;
    let uuid = rt.random();
    let identity = StoreIdentity { cluster, fsname: fsname.into(), ost, uuid };
    let options = store_file::MkfsOptions { identity, capacity_bytes };
    store_file::mkfs(rt, dir, &options).await.map_err(|e| RoleError(e.to_string()))
}

/// Opens the file store of an OST directory, exclusively.
///
/// # Errors
/// [`RoleError`]: not formatted, another cluster's, a newer format, in use.
pub async fn open_ost(
    rt: &Rt,
    dir: &Path,
    cluster: u64,
    config: FileStoreConfig,
) -> Result<Rc<dyn ObjectStore>, RoleError> {
    let lock = DirLock::take(dir).map_err(|e| RoleError(e.to_string()))?;
    let store = FileStore::open(rt.clone(), dir, Some(cluster), config, Some(lock)).await;
    Ok(Rc::new(store.map_err(|e| RoleError(e.to_string()))?))
}

/// Starts an object storage server with the given stores behind one listener, and announces each to the metadata
/// server (in the background: it may not be up yet).
///
/// # Errors
/// [`RoleError`]: a policy name is unknown, the address is taken.
pub fn start_oss(
    rt: &Rt,
    stores: Vec<Rc<dyn ObjectStore>>,
    nid: &Nid,
    mds: &Nid,
    key: &ClusterKey,
    recovery_window: Duration,
    config: &OstConfig,
) -> Result<OssRole, RoleError> {
    let server = Server::new(rt.clone(), server_config(rt, key, recovery_window));
    let oss = Oss::new(rt.clone(), server.clone(), config).map_err(RoleError)?;
    for store in stores {
        oss.add(store, config.clone()).map_err(RoleError)?;
    }
    let bound = server.listen(nid).map_err(|e| RoleError(e.to_string()))?;
    for ost in oss.osts() {
        let (rt2, mds, key, nid) = (rt.clone(), mds.clone(), key.clone(), bound.clone());
        rt.spawn(async move {
            if let Err(e) = register_ost(&rt2, &ost, &mds, &key, &nid).await {
                tracing::error!(
                    target = ptlrpc::Service::target(&*ost),
                    "the metadata server refused this target: {e}"
                );
            }
        });
    }
    Ok(OssRole { oss, server, nid: bound })
}

struct Nobody;
impl Callbacks for Nobody {
    fn on_callback(self: Rc<Self>, _op: Op, _body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(std::future::ready(Err(FsError::NotSupported)))
    }
}

/// Announces a target to the metadata server, waiting for it as long as it takes.
///
/// # Errors
/// What the metadata server answers: another cluster's, the index is another store's.
pub async fn register_ost(rt: &Rt, ost: &Rc<Ost>, mds: &Nid, key: &ClusterKey, nid: &Nid) -> Result<(), FsError> {
    let identity = ost.store().identity().clone();
    let callbacks: Rc<dyn Callbacks> = Rc::new(Nobody);
    let config = ImportConfig {
        nid: mds.clone(),
        target: "*".into(),
        client: ClientId(rt.random()),
        key: key.clone(),
        recoverable: false,
        ping_interval: Duration::from_secs(10),
    };
    let import = Import::new(rt.clone(), config, Rc::downgrade(&callbacks));
    let entry = OstEntry {
        ost: identity.ost,
        nid: nid.to_string().as_str().into(),
        target: identity.target().as_str().into(),
        active: true,
        uuid: identity.uuid,
    };
    let request = RegisterRequest { entry, cluster: identity.cluster };
    let reply = import
        .call(Op::Register, wire::encode(&request), cache::frames::Bulk::new(), ptlrpc::CallOptions::default())
        .await;
    import.close().await;
    reply.map(|_| ())
}

/// Joins the cluster as a client, waiting until `osts` targets are in the map and connected.
///
/// # Errors
/// [`RoleError`] when that does not happen within `patience`.
pub async fn join(rt: &Rt, config: ClientConfig, osts: usize, patience: Duration) -> Result<Rc<Client>, RoleError> {
    let client = Client::join(rt.clone(), config, patience).await.map_err(|e| RoleError(e.to_string()))?;
    let deadline = rt.now() + patience;
    loop {
        let ready =
            client.oscs().iter().filter(|o| o.import().is_ok_and(|i| i.state() == ptlrpc::ImportState::Full)).count();
        if ready >= osts {
            return Ok(client);
        }
        if rt.now() >= deadline {
            return Err(RoleError(format!("{ready} of {osts} object storage targets answered within {patience:?}")));
        }
        rt.sleep(Duration::from_millis(20)).await;
        client.refresh_map().await.map_err(|e| RoleError(format!("cluster map: {e}")))?;
    }
}

/// How a client is mounted.
#[derive(Clone, Debug, Default)]
pub struct MountSpec {
    /// Kernel-side options.
    pub options: MountOptions,
    /// Transport.
    pub transport: TransportChoice,
    /// Ids to replace.
    pub squash: Squash,
    /// When the kernel may keep file pages.
    pub kernel_cache: KernelCaching,
}

/// A mounted client.
pub struct MountRole {
    /// The client.
    pub client: Rc<Client>,
    /// The kernel connection.
    pub session: Session,
    /// The mount.
    pub mount: Mount,
}

/// Lets the kernel read ahead in whole requests where it caches pages. Needs root; without it reads are 128 KiB.
fn widen_readahead(at: &Path) {
    let entry = fuse::mount::mounts().into_iter().rev().find(|m| m.at == at);
    let Some(entry) = entry else { return };
    let knob = format!("/sys/class/bdi/0:{}/read_ahead_kb", entry.minor);
    if let Err(e) = std::fs::write(&knob, "1024") {
        tracing::debug!("{knob}: {e}");
    }
}

/// Mounts `client` at `at`. The returned future serves until the file system is unmounted; poll it.
///
/// # Errors
/// [`RoleError`]: the mount point is missing, busy or no directory; no permission; no transport.
pub fn start_mount(
    client: Rc<Client>,
    at: &Path,
    spec: &MountSpec,
) -> Result<(MountRole, LocalFuture<Result<(), RoleError>>), RoleError> {
    let mut options = spec.options.clone();
    options.default_permissions = true;
    if options.fsname.is_empty() {
        options.fsname = String::from_utf8_lossy(&client.map().fsname).into_owned();
    }
    let config = SessionConfig { posix_acl: true, ..SessionConfig::default() };
    let (session, mut mount) =
        fuse::mount::mount(at, &options, config, spec.transport).map_err(|e| RoleError(e.to_string()))?;
    mount.supervise().map_err(|e| RoleError(e.to_string()))?;
    let fs = StriaFs::new(client.clone(), &session, spec.squash, spec.kernel_cache);
    widen_readahead(at);
    let mut workers = session.workers(1);
    let worker = workers.pop().ok_or_else(|| RoleError("the session has no worker".into()))?;
    let serving: LocalFuture<Result<(), RoleError>> = Box::pin(async move {
        debug_assert!(workers.is_empty());
        worker.serve(fs).await.map_err(|e| RoleError(e.to_string()))
    });
    Ok((MountRole { client, session, mount }, serving))
}
