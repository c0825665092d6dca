//! From configuration to what the roles are told.
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use client::ClientConfig;
use cluster::{MakeOss, MountSpec, OssNode, OssPlace, OstStore, TuneOst};
use devices::{DeviceProfile, ElevatorKind};
use fuse::TransportChoice;
use fuse::mount::{MountOptions, OptionError, OutsideError};
use layout::LayoutSpec;
use mds::MdsConfig;
use oss::OstConfig;
use oss::store::{EmulatedStore, MemoryStore, NullStore, ObjectStore, StoreIdentity};
use ptlrpc::ClusterKey;
use rt::{Nid, Rt};
use store_file::FileStoreConfig;
use types::{Duration, GIB, OstIndex};

use super::dir::ClusterDir;
use super::stores::refuse_store_inside;
use super::{medium, memory};
use crate::cli::Settings;
use crate::config::{Config, parse_ids};
use crate::failure::{Failure, Outcome};

/// Longer than leaving C1 takes, shorter than leaving deeper states.
const SHALLOW_US: u32 = 2;

/// Reads `--config` and `--set`.
///
/// # Errors
/// What is wrong, with file and line or option.
pub fn load(settings: &Settings) -> Result<Config, Failure> {
    load_in(None, settings)
}

/// [`load`] for a cluster's directory: what its first start set for good holds, unless a later one can have it otherwise.
///
/// # Errors
/// As [`load`], and a setting that cannot be changed any more.
pub fn load_in(dir: Option<&ClusterDir>, settings: &Settings) -> Result<Config, Failure> {
    let mut config = Config::default();
    let kept = dir.map(ClusterDir::kept_settings).unwrap_or_default();
    for (key, value) in &kept {
        config.set(key, value).map_err(|e| Failure::usage(format!("cluster.toml: {e}")))?;
    }
    if let Some(file) = &settings.config {
        config.read(file).map_err(Failure::usage)?;
    }
    for item in &settings.set {
        let (key, value) =
            item.split_once('=').ok_or_else(|| Failure::usage(format!("--set {item}: write KEY=VALUE")))?;
        config.set(key.trim(), value.trim()).map_err(|e| Failure::usage(format!("--set: {e}")))?;
    }
    config.check().map_err(Failure::usage)?;
    if let Some((_, made)) = kept.iter().find(|(key, _)| key == "store.kind").filter(|(_, v)| *v != config.store_kind) {
        return Err(Failure::usage(format!(
            "store.kind = {}: this cluster was made with store.kind = {made}, which stays: leave the setting out, or use another directory",
            config.store_kind
        )));
    }
    Ok(config)
}

/// Where a path of a server or of what it writes lies, without links. Refuses what lies on a mount of Stria: the server would wait for the
/// mount, and the mount for the server. Nothing there is looked at.
///
/// # Errors
/// It lies there, or cannot be looked at.
pub(crate) fn refuse_inside(path: &Path) -> Result<PathBuf, Failure> {
    fuse::mount::resolve_outside(path).map_err(|e| match e {
        OutsideError::Inside { mount, .. } => Failure::with_errno(
            format!(
                "{} lies on {}, a mount of a Stria file system, which servers must not wait for: name a place on another file system of this machine",
                path.display(),
                mount.display()
            ),
            libc::EDEADLK,
        ),
        OutsideError::Io { at, source } => Failure::io("looking at", &at, &source),
    })
}

/// Whether a path lies on a mount of Stria: nothing there may be looked at.
pub(super) fn is_inside(path: &Path) -> bool {
    matches!(fuse::mount::resolve_outside(path), Err(OutsideError::Inside { .. }))
}

/// Page frames for a process with so many clients and OSTs.
///
/// # Errors
/// The process may not have so much address space.
pub fn frames(config: &Config, clients: u64, osts: u64) -> Result<frames::FramePool, Failure> {
    let bytes = frames_bytes(config, clients, osts);
    frames::FramePool::reserved(bytes).ok_or_else(|| {
        let why = format!(
            "{bytes} bytes of address space for page frames cannot be had: allow the process more ('ulimit -v', LimitAS=), or give caches less (client.cache_bytes, oss.cache_bytes)"
        );
        Failure::with_errno(why, libc::ENOMEM)
    })
}

/// What [`frames`] has, in bytes.
pub(super) fn frames_bytes(config: &Config, clients: u64, osts: u64) -> u64 {
    let server = if osts > 0 { config.oss.cache_bytes } else { 0 };
    let cached = client::PageCache::frames_max(config.client.cache_bytes);
    let caches = cached.saturating_mul(clients).saturating_add(server);
    caches.saturating_add(stores_bytes(config, osts)).saturating_add(config.sizes.frames_beyond_bytes)
}

/// What stores in the memory of a process come to hold, in bytes.
pub(super) fn stores_bytes(config: &Config, osts: u64) -> u64 {
    if config.store_kind == "memory" { capacity(config).saturating_mul(osts) } else { 0 }
}

fn capacity(config: &Config) -> u64 {
    match (config.store_capacity_bytes, config.store_kind.as_str()) {
        (0, "memory") => GIB,
        (0, _) => 16 * GIB,
        (n, _) => n,
    }
}

/// Settings of a metadata server.
///
/// # Errors
/// The default layout is not legal.
pub fn mds(config: &Config) -> Result<MdsConfig, Failure> {
    let default_layout = LayoutSpec::from_raw(config.layout_stripe_size, config.layout_stripe_count, -1);
    let default_layout = default_layout.map_err(|e| Failure::usage(format!("layout: {e}")))?;
    let place_of: mds::PlaceOf = |path| refuse_inside(path).map_err(|e| e.to_string());
    let db_cache_bytes = count(config.sizes.mdt_db_bytes);
    Ok(MdsConfig { default_layout, place_of, db_cache_bytes, ..MdsConfig::of(&config.mds) })
}

fn count(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Settings of an OST.
#[must_use]
pub fn ost(config: &Config) -> OstConfig {
    OstConfig::of(&config.oss, cache_keys(&config.oss.cache_keys))
}

/// Keys of the cache policies.
fn cache_keys(text: &str) -> cache::CacheConfig {
    crate::config::cache_config(text).expect("checked with the rest of the configuration")
}

/// Settings of OSTs that can only be set when they run.
///
/// # Errors
/// What an OST refuses.
fn tune(ost: &oss::Ost, config: &Config) -> Result<(), String> {
    let set = ost.set_params("ost.OSS.ost_io.nrs_quantum_requests", &config.oss.nrs_quantum_requests.to_string());
    set.map(drop).map_err(|e| format!("nrs.quantum_requests: {e}"))
}

/// Below this a machine has no CPU to spare for a second thread: clients, and whatever else runs, want the others.
const CPUS_FOR_SHARDS: u64 = 4;

/// Threads that serve so many OSTs on a machine with so many CPUs; 1: that of the process.
fn oss_shards(configured: u64, osts: u64, cpus: u64) -> usize {
    let fitting = if cpus < CPUS_FOR_SHARDS { 1 } else { cpus };
    let wanted = if configured == 0 { fitting } else { configured };
    usize::try_from(wanted.min(osts)).unwrap_or(usize::MAX)
}

/// Threads that move bytes for so many mounts on this machine.
pub fn movers(config: &Config, mounts: u64) -> usize {
    let wanted = movers_on(config.client_movers, cpus());
    if mounts == 0 { 0 } else { wanted }
}

fn movers_on(configured: i64, cpus: u64) -> usize {
    /// Beyond this the thread that decides is what limits a mount (docs/internals/performance.md).
    const MAX: u64 = 8;
    let fitting = if cpus < CPUS_FOR_SHARDS { 0 } else { (cpus / 2).min(MAX) };
    usize::try_from(configured).unwrap_or(usize::try_from(fitting).unwrap_or(0))
}

fn cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

/// What becomes of OSTs whose stores do not open.
pub enum Unopened {
    /// None of the OSTs is served; the failure is told by this.
    Refuse(fn(&str, Failure) -> Failure),
    /// The others are served. Which were left, and why.
    Leave(Arc<Mutex<Vec<(u16, Failure)>>>),
}

/// Starts the object storage server of these OSTs, on as many shards as are configured. `unopened` says
/// what becomes of those whose stores do not open. Nobody is told of it before `first` is done, which begins when the stores are open.
///
/// # Errors
/// A store cannot be opened, or is another one, and is not to be left out; the address is taken; a policy does not exist; what `first` says.
pub async fn start_oss(
    rt: &Rt,
    dir: &Arc<ClusterDir>,
    osts: &[u16],
    place: &OssPlace,
    config: &Config,
    unopened: Unopened,
    first: impl Future<Output = Outcome>,
) -> Result<OssNode, Failure> {
    let (key, all, shards) =
        (place.key.clone(), osts.len() as u64, oss_shards(config.oss_shards, osts.len() as u64, cpus()));
    let (dir, config, unopened) = (dir.clone(), Arc::new(config.clone()), Arc::new(unopened));
    let make: MakeOss<Failure> = Arc::new(move |rt, osts| {
        let (dir, config, key, unopened) = (dir.clone(), config.clone(), key.clone(), unopened.clone());
        let window = window(&config);
        Box::pin(async move {
            let mut told = ost(&config);
            told.cache_bytes = told.cache_bytes / all * osts.len() as u64;
            let mut stores = Vec::new();
            for i in osts {
                let (at, config) = (dir.path().to_path_buf(), config.clone());
                // The directory as it is by then: another store may have taken the place of one that failed.
                let named = {
                    let at = at.clone();
                    move || ClusterDir::open(&at).ok()?.uuid_of(&format!("ost{i}"))
                };
                let open = move |rt: Rt| -> rt::LocalFuture<Result<Rc<dyn ObjectStore>, Failure>> {
                    let (at, config) = (at.clone(), config.clone());
                    Box::pin(async move { store(&rt, &ClusterDir::open(&at)?, i, &config).await })
                };
                let opened = match refuse_store_inside(&dir.ost(i), &cluster::OST_FILES) {
                    Ok(()) => {
                        let places = cluster::devices_of(&dir.ost(i), &cluster::OST_FILES);
                        OstStore::open(&rt, places, open).await
                    }
                    Err(e) => Err(e),
                };
                match (opened, &*unopened) {
                    (Ok(opened), _) => stores.push(opened.named_by(named)),
                    (Err(e), Unopened::Refuse(say)) => return Err(say(&format!("ost{i}"), e)),
                    (Err(e), Unopened::Leave(left)) => {
                        left.lock().expect("nobody panics under it").push((i, e));
                    }
                }
            }
            let tune: TuneOst = Rc::new(move |ost| tune(ost, &config));
            Ok(cluster::make_oss_of(&rt, stores, &key, window, &told, &tune)?)
        })
    });
    OssNode::start_after(rt, osts, shards, place, make, first).await
}

/// Opens the store of an OST, with its fast tier.
///
/// # Errors
/// Missing, another one than the OST's, a newer format, in use; a fast tier that cannot be meant.
pub async fn store(rt: &Rt, dir: &ClusterDir, index: u16, config: &Config) -> Result<Rc<dyn ObjectStore>, Failure> {
    let store = slow_store(rt, dir, index, config).await?;
    super::fast::before(rt, dir, store, config).await
}

async fn slow_store(rt: &Rt, dir: &ClusterDir, index: u16, config: &Config) -> Result<Rc<dyn ObjectStore>, Failure> {
    let identity = || StoreIdentity {
        cluster: dir.cluster,
        fsname: dir.fsname.clone(),
        ost: OstIndex(index),
        uuid: dir.uuid_of(&format!("ost{index}")).unwrap_or(dir.cluster.rotate_left(16) ^ u64::from(index) ^ 1 << 63),
    };
    match config.store_kind.as_str() {
        "memory" => return Ok(MemoryStore::new(rt, identity(), capacity(config))),
        "null" => return Ok(NullStore::new(rt, identity(), capacity(config), false)),
        _ => {}
    }
    dir.check_ost(rt, index).await.map_err(|why| Failure::with_errno(why, libc::ENOENT))?;
    let at = dir.ost(index);
    let files = FileStoreConfig {
        direct: config.store_direct,
        medium: medium::of(&at),
        db_cache_bytes: count(config.sizes.ost_db_bytes),
        objects_max: count(config.sizes.ost_objects_max),
        mapped_blocks_max: count(config.sizes.ost_blocks_max),
        ..FileStoreConfig::default()
    };
    let store = cluster::open_ost(rt, &at, dir.cluster, files).await.map_err(unopened)?;
    if config.store_kind == "emulated" {
        let profile = DeviceProfile::parse(&config.store_profile, &config.store_profile_keys);
        let elevator = ElevatorKind::named(&config.store_elevator).map_err(Failure::usage)?;
        return Ok(EmulatedStore::behind(rt.clone(), store, profile.map_err(Failure::usage)?, elevator));
    }
    Ok(store)
}

/// Why the store of an OST does not open; EBUSY: another process has it.
fn unopened(e: store_file::OpenError) -> Failure {
    let errno = if matches!(e, store_file::OpenError::InUse(_)) { libc::EBUSY } else { 1 };
    Failure::with_errno(e.to_string(), errno)
}

/// How long a restarted server waits for its clients.
#[must_use]
pub fn window(config: &Config) -> Duration {
    Duration::from_secs(config.recovery_window_s)
}

/// Settings of a client.
#[must_use]
pub fn client(config: &Config, mds: &Nid, key: &ClusterKey) -> ClientConfig {
    ClientConfig {
        key: key.clone(),
        inodes_max: inodes_max(config.client.inodes_max, memory::allowed(config)),
        ..ClientConfig::of(&config.client, cache_keys(&config.client.cache_keys), mds.clone())
    }
}

/// The limit of a client's inodes where so much memory may be used.
fn inodes_max(configured: u64, memory_bytes: u64) -> usize {
    const PART: u64 = 64;
    const INODE_BYTES: u64 = 2048;
    let fitting = (memory_bytes / PART / INODE_BYTES).clamp(16_384, 1 << 20);
    usize::try_from(if configured == 0 { fitting } else { configured }).unwrap_or(usize::MAX)
}

/// How a client is mounted: configuration, then `-o`.
///
/// # Errors
/// An option that does not exist or has a wrong value.
pub fn mount(config: &Config, options: &str, fsname: &str) -> Result<MountSpec, Failure> {
    let ids = |name: &str, value: Option<&str>| -> Result<Option<(u32, u32)>, OptionError> {
        let value = value.ok_or_else(|| OptionError::NeedsValue(name.into()))?;
        parse_ids(value).map_err(|why| OptionError::BadValue { name: name.into(), value: value.into(), why })
    };
    let mut squash = mount::Squash {
        root: parse_ids(&config.mount_squash_root).map_err(Failure::usage)?,
        all: parse_ids(&config.mount_squash_all).map_err(Failure::usage)?,
    };
    let text = format!("fsname={fsname},{},{options}", config.mount_options);
    let parsed = MountOptions::parse_with(&text, |name, value| {
        match name {
            "squash_all" | "all_squash" => squash.all = ids(name, value)?,
            "squash_root" | "root_squash" => squash.root = ids(name, value)?,
            // Locks are coherent over all clients here, always.
            "flock" | "localflock" | "user_xattr" | "acl" if value.is_none() => {}
            _ => return Ok(false),
        }
        Ok(true)
    });
    let mut options = parsed.map_err(|e| Failure::usage(e.to_string()))?;
    // SAFETY: plain system call without arguments.
    if unsafe { libc::geteuid() } == 0 {
        options.allow_other = true;
    } else {
        restrict(&mut options, &text)?;
    }
    options.keep_dead = !options.auto_unmount;
    let transport = match config.mount_transport.as_str() {
        "uring" => TransportChoice::Uring,
        "dev" => TransportChoice::Dev,
        _ => TransportChoice::Auto,
    };
    let kernel_cache = match config.mount_kernel_cache.as_str() {
        "never" => mount::KernelCaching::Never,
        "reopened" => mount::KernelCaching::Reopened,
        "always" => mount::KernelCaching::Always,
        _ => mount::KernelCaching::Fitting,
    };
    let kernel_names = match config.mount_kernel_names.as_str() {
        "asked" => mount::KernelNames::Asked,
        _ => mount::KernelNames::Kept,
    };
    // Without a place for sockets the control socket says what is wrong.
    let native = crate::control::own_place().ok();
    Ok(MountSpec { options, transport, squash, kernel_cache, kernel_names, native })
}

/// Whether these mount options are there.
///
/// # Errors
/// The first that is not, or has a wrong value.
pub fn check_options(config: &Config, options: &str) -> Result<(), Failure> {
    mount(config, options, &config.fsname).map(drop)
}

/// What a user other than root mounts gives nobody the rights of others: neither setuid programs nor device files work there.
fn restrict(options: &mut MountOptions, text: &str) -> Result<(), Failure> {
    if let Some(name) = text.split(',').map(str::trim).find(|o| matches!(*o, "suid" | "dev")) {
        return Err(Failure::with_errno(
            format!("mount option '{name}' is for root: mounts of other users are nosuid and nodev"),
            libc::EPERM,
        ));
    }
    (options.no_suid, options.no_dev) = (true, true);
    Ok(())
}

/// How long waking an idle CPU of this machine may last while requests flow, in microseconds; `None`: as it likes.
pub fn wake_up_us(config: &Config) -> Option<u32> {
    match config.cpu_idle.as_str() {
        "polling" => Some(0),
        "shallow" => Some(SHALLOW_US),
        "auto" => is_virtual().then_some(0),
        _ => None,
    }
}

/// Whether an idle CPU leaves the machine.
fn is_virtual() -> bool {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpus.lines().find(|l| l.starts_with("flags")).unwrap_or_default();
    flags.split_ascii_whitespace().any(|f| f == "hypervisor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_from_options_and_name_what_is_wrong() {
        let set = |items: &[&str]| {
            load(&Settings { config: None, set: items.iter().map(ToString::to_string).collect() })
                .map_err(|e| e.to_string())
        };
        let config = set(&["client.cache_bytes=1G", "nrs.policy=obrr"]).unwrap();
        assert_eq!((client_bytes(&config), ost(&config).nrs_policy.as_str()), (1 << 30, "obrr"));
        assert!(set(&["client.cache_bytes"]).unwrap_err().contains("KEY=VALUE"));
        assert!(set(&["client.cash_bytes=1"]).unwrap_err().contains("did you mean 'client.cache_bytes'"));
        let config = set(&["oss.cache_keys=bypass_bytes=1M duel_sample_one_in=16"]).unwrap();
        let keys = ost(&config).cache_keys;
        assert_eq!((keys.bypass_bytes, keys.duel_sample_one_in), (1 << 20, 16));
        let why = set(&["client.cache_keys=bypass_bytes=1"]).unwrap_err();
        assert!(why.contains("client.cache_keys: bypass_bytes = '1' is out of range"), "{why}");
        let why = set(&["store.profile=hdd", "store.profile_keys=seek_ms=slow"]).unwrap_err();
        assert!(why.contains("store.profile_keys: seek_ms = 'slow' is not a number from 0 to 10000"), "{why}");
        assert!(set(&["oss.cache_keys=ring"]).unwrap_err().contains("'ring': write KEY=VALUE"));
    }
    fn client_bytes(config: &Config) -> u64 {
        client(config, &Nid::Local("x".into()), &ClusterKey::none()).cache_bytes
    }

    #[test]
    fn threads_are_as_many_as_configured_or_as_fit_the_machine() {
        for (configured, osts, cpus, wanted) in
            [(0, 4, 2, 1), (0, 4, 16, 4), (0, 8, 4, 4), (3, 4, 2, 3), (9, 4, 2, 4), (1, 4, 16, 1)]
        {
            assert_eq!(oss_shards(configured, osts, cpus), wanted, "{configured} for {osts} OSTs on {cpus} CPUs");
        }
        for (configured, cpus, wanted) in [(-1, 2, 0), (-1, 4, 2), (-1, 64, 8), (0, 64, 0), (3, 2, 3)] {
            assert_eq!(movers_on(configured, cpus), wanted, "{configured} on {cpus} CPUs");
        }
    }

    #[test]
    fn whatever_a_clients_cache_holds_there_are_frames_for_what_is_on_its_way() {
        let mut config = Config::default();
        for gib in [1, 8, 64] {
            config.client.cache_bytes = gib * GIB;
            // Unwritten pages stay above the cache's limit until they are written.
            let held = client::PageCache::frames_max(config.client.cache_bytes);
            assert!(held > config.client.cache_bytes);
            assert_eq!(frames_bytes(&config, 2, 0) - 2 * held, config.sizes.frames_beyond_bytes, "{gib} GiB");
            assert_eq!(frames_bytes(&config, 0, 4), config.oss.cache_bytes + config.sizes.frames_beyond_bytes);
        }
    }

    #[test]
    fn mount_options_are_read_and_refused_by_name() {
        let mut config = Config::default();
        config.mount_options = "noatime".into();
        let spec = mount(&config, "ro,squash_root=65534:65534,flock", "fs").unwrap();
        assert!(spec.options.read_only && spec.options.no_atime);
        assert_eq!(spec.options.fsname, "fs");
        assert_eq!(spec.squash.root, Some((65534, 65534)));
        let e = mount(&config, "squash_all=nobody", "fs").unwrap_err().to_string();
        assert!(e.contains("squash_all=nobody") && e.contains("UID:GID"), "{e}");
        assert!(mount(&config, "bogus", "fs").unwrap_err().to_string().contains("'bogus'"));
        let mut of_user = MountOptions::default();
        restrict(&mut of_user, "noatime").unwrap();
        assert!(of_user.no_suid && of_user.no_dev);
        assert!(restrict(&mut of_user, "ro, suid").unwrap_err().to_string().contains("'suid' is for root"));
    }
}
