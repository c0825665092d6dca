//! Opening and formatting stores in directories, and mounting.
use std::path::{Path, PathBuf};
use std::rc::Rc;

use client::Client;
use fuse::mount::{Mount, MountOptions};
use fuse::{Session, SessionConfig, TransportChoice};
use mount::{KernelCaching, KernelNames, ServedNatively, Squash, StriaFs};
use oss::store::{ObjectStore, StoreIdentity};
use roles::RoleError;
use rt::{LocalFuture, Rt};
use store_file::{FileStore, FileStoreConfig, lock_dir};
use types::OstIndex;

/// Where a store's medium is probed: its directory, and those of its files that are links to another device.
#[must_use]
pub fn devices_of(dir: &Path, files: &[&str]) -> Vec<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let device = |p: &Path| std::fs::metadata(p).map(|m| m.dev()).ok();
    let mut dirs = vec![dir.to_path_buf()];
    for file in files.iter().filter_map(|f| dir.join(f).canonicalize().ok()) {
        let Some(parent) = file.parent() else { continue };
        if dirs.iter().all(|d| device(d) != device(parent)) {
            dirs.push(parent.to_path_buf());
        }
    }
    dirs
}

/// The files of an OST's store, for [`devices_of`].
pub const OST_FILES: [&str; 2] = ["data", "meta.redb"];

/// Formats object storage target `ost` in `dir` as a store of its own. `capacity_bytes` 0: all there is. Gives its uuid.
///
/// # Errors
/// [`RoleError`]: the directory holds a store already, or cannot be written.
pub async fn format_ost(
    rt: &Rt,
    dir: &Path,
    fsname: &str,
    cluster: u64,
    ost: OstIndex,
    capacity_bytes: u64,
) -> Result<u64, RoleError> {
    let uuid = rt.random();
    let identity = StoreIdentity { cluster, fsname: fsname.into(), ost, uuid };
    format_ost_store(rt, dir, identity, capacity_bytes, 0).await?;
    Ok(uuid)
}

/// Formats object storage target `identity.ost` in `dir`. `capacity_bytes` 0: all there is. `lost_through`: it replaces
/// a store that is lost, whose objects had ids up to this one; 0: it replaces none.
///
/// # Errors
/// [`RoleError`]: the directory holds a store already, or cannot be written.
pub async fn format_ost_store(
    rt: &Rt,
    dir: &Path,
    identity: StoreIdentity,
    capacity_bytes: u64,
    lost_through: u32,
) -> Result<(), RoleError> {
    rt::make_private_dir(dir).map_err(|e| RoleError(format!("{}: {e}", dir.display())))?;
    let options = store_file::MkfsOptions { identity, capacity_bytes, lost_through };
    store_file::mkfs(rt, dir, &options).await.map_err(|e| RoleError(e.to_string()))
}

/// OST directories beside `dir`, itself included, on the same file system: they share its space.
fn stores_beside(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let device = |p: &Path| std::fs::metadata(p).map(|m| m.dev()).ok();
    let own = device(dir);
    let beside = dir.parent().and_then(|p| std::fs::read_dir(p).ok()).into_iter().flatten().flatten();
    let is_ost = |name: &str| name.strip_prefix("ost").is_some_and(|n| n.parse::<u16>().is_ok());
    let stores = beside.filter(|e| e.file_name().to_str().is_some_and(is_ost) && device(&e.path()) == own);
    (stores.count() as u64).max(1)
}

/// Opens the file store of an OST directory, exclusively. Where several OSTs lie side by side on one file system, each
/// counts its part of the free space as its own.
///
/// # Errors
/// Not formatted, another cluster's, a newer format, in use.
pub async fn open_ost(
    rt: &Rt,
    dir: &Path,
    cluster: u64,
    config: FileStoreConfig,
) -> Result<Rc<dyn ObjectStore>, store_file::OpenError> {
    let config = FileStoreConfig { sharers: config.sharers.max(stores_beside(dir)), ..config };
    let lock = lock_dir(rt, dir).await?;
    Ok(Rc::new(FileStore::open(rt.clone(), dir, Some(cluster), config, Some(lock)).await?))
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
    /// Whether the kernel may keep names.
    pub kernel_names: KernelNames,
    /// Where the socket of the native path is made: a directory in which its owner alone makes names. None: there is no
    /// native path.
    pub native: Option<PathBuf>,
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
fn widen_readahead(at: &Path, read_bytes: u32) {
    let entry = fuse::mount::mounts().into_iter().rev().find(|m| m.at == at);
    let Some(entry) = entry else { return };
    let knob = format!("/sys/class/bdi/0:{}/read_ahead_kb", entry.minor);
    if let Err(e) = std::fs::write(&knob, (read_bytes >> 10).to_string()) {
        tracing::debug!("{knob}: {e}");
    }
}

/// The native path, where it is wanted and can be had: a mount without it is served all the same. Where every write is to be synced,
/// the kernel says so of its own only.
fn serve_natively(fs: &Rc<StriaFs>, mount: &Mount, spec: &MountSpec) -> Option<ServedNatively> {
    if spec.options.sync {
        return None;
    }
    let (dir, connection) = (spec.native.as_ref()?, mount.connection()?.number());
    match fs.serve_natively(dir, connection) {
        Ok(served) => Some(served),
        Err(e) => {
            tracing::warn!("{}: no native path for programs: {e}", dir.display());
            None
        }
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
        options.fsname = String::from_utf8_lossy(&client.osts().map().fsname).into_owned();
    }
    let config = SessionConfig { posix_acl: true, ..SessionConfig::default() };
    let (session, mut mount) =
        fuse::mount::mount(at, &options, config, spec.transport).map_err(|e| RoleError(e.to_string()))?;
    mount.supervise(spec.options.keep_dead).map_err(|e| RoleError(e.to_string()))?;
    let fs = StriaFs::new(client.clone(), &session, spec.squash, spec.kernel_cache, spec.kernel_names);
    widen_readahead(at, session.negotiated().max_read_bytes);
    let native = serve_natively(&fs, &mount, spec);
    let mut workers = session.workers(1);
    let worker = workers.pop().ok_or_else(|| RoleError("the session has no worker".into()))?;
    let serving: LocalFuture<Result<(), RoleError>> = Box::pin(async move {
        debug_assert!(workers.is_empty());
        let served = worker.serve(fs).await.map_err(|e| RoleError(e.to_string()));
        drop(native);
        served
    });
    Ok((MountRole { client, session, mount }, serving))
}
