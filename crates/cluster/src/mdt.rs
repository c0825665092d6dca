//! The store of a metadata target's directory, whichever engine it has: in a file there (redb), or in the database that a file there
//! names (`store_pg::PLACE_FILE`).
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use mds::{MdsConfig, MetaKv};
use ptlrpc::ClusterKey;
use roles::{LookMdt, MdsRole, MdtStore, OpenMdt, RoleError, start_mds_of};
use rt::{Nid, Rt};
use store_pg::{Patience, Place};
use types::Duration;

use crate::dirs::devices_of;

/// Why a metadata store cannot be used.
#[derive(Debug)]
pub enum MdtError {
    /// A server has it: a sentence.
    InUse(String),
    /// Any other reason: a sentence.
    Other(String),
}

impl fmt::Display for MdtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MdtError::InUse(why) | MdtError::Other(why) => f.write_str(why),
        }
    }
}
impl std::error::Error for MdtError {}

impl From<store_redb::OpenError> for MdtError {
    fn from(e: store_redb::OpenError) -> MdtError {
        match e {
            store_redb::OpenError::InUse(_) => MdtError::InUse(e.to_string()),
            e => MdtError::Other(e.to_string()),
        }
    }
}
impl From<store_pg::OpenError> for MdtError {
    fn from(e: store_pg::OpenError) -> MdtError {
        match e {
            store_pg::OpenError::InUse(..) => MdtError::InUse(e.to_string()),
            e => MdtError::Other(e.to_string()),
        }
    }
}
impl From<store_pg::PlaceError> for MdtError {
    fn from(e: store_pg::PlaceError) -> MdtError {
        MdtError::Other(e.to_string())
    }
}
impl From<MdtError> for RoleError {
    fn from(e: MdtError) -> RoleError {
        RoleError(e.to_string())
    }
}

fn cannot_be_made(dir: &Path) -> impl Fn(std::io::Error) -> MdtError {
    move |e| MdtError::Other(format!("{}: {e}", dir.display()))
}

/// Formats a metadata target in `dir`, whose store is in the database `place` or in a file there, for cluster `cluster`, owned by
/// `owner` (uid, gid). Gives the store's uuid: of one that an interrupted try has made in the database, its own.
///
/// # Errors
/// There is a store already, or it cannot be written.
pub async fn format_mdt(
    rt: &Rt,
    dir: &Path,
    place: Option<&Place>,
    fsname: &str,
    cluster: u64,
    owner: (u32, u32),
) -> Result<u64, MdtError> {
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
    let Some(place) = place else {
        store_redb::mkfs(rt.clone(), dir, &options).await?;
        return Ok(options.uuid);
    };
    place.write_to(dir).map_err(cannot_be_made(dir))?;
    match store_pg::mkfs(rt, place, &options).await {
        Ok(superblock) => Ok(superblock.uuid),
        Err(store_pg::OpenError::Exists(_, found)) if found.cluster == cluster => Ok(found.uuid),
        Err(e) => Err(e.into()),
    }
}

/// A store in `dir` or at `place` for records that are put there: none until it has a superblock. `identity`: cluster and uuid.
///
/// # Errors
/// There is a store already, or it cannot be made.
pub async fn empty_mdt(
    rt: &Rt,
    dir: &Path,
    place: Option<&Place>,
    fsname: &str,
    identity: (u64, u64),
) -> Result<Rc<dyn MetaKv>, MdtError> {
    let Some(place) = place else { return Ok(store_redb::open_empty(rt.clone(), dir)?) };
    place.write_to(dir).map_err(cannot_be_made(dir))?;
    let identity = store_pg::Identity { fsname: fsname.into(), cluster: identity.0, uuid: identity.1 };
    Ok(store_pg::create(rt, place, &identity).await?)
}

/// Opens the store of a metadata target's directory for a tool. `wanted`: cluster and uuid, where they are known.
///
/// # Errors
/// [`MdtError`].
pub async fn open_mdt(rt: &Rt, dir: &Path, wanted: Option<(u64, u64)>) -> Result<Rc<dyn MetaKv>, MdtError> {
    Ok(match Place::of_dir(dir)? {
        Some(place) => store_pg::open(rt, &place, wanted, store_pg::CACHE_BYTES_DEFAULT, Patience::Lease).await?,
        None => {
            // Opened unchecked, a damaged last commit would be taken for one that a crash cut, and left out.
            let (cache, most) = (store_redb::CACHE_BYTES_DEFAULT, store_redb::CHECK_BYTES_DEFAULT);
            let kv = store_redb::open_checked(rt.clone(), dir, cache, most).await?;
            // Nobody serves meanwhile: a full disk is an error.
            kv.give_up();
            kv
        }
    })
}

/// Takes the store of a metadata target's directory as it is, although its database lacks what was seen there before. `None`: it lacks nothing.
///
/// # Errors
/// [`MdtError`]; the store is in a file.
pub async fn accept_mdt(
    rt: &Rt,
    dir: &Path,
    wanted: Option<(u64, u64)>,
) -> Result<Option<store_pg::Accepted>, MdtError> {
    let place = Place::of_dir(dir)?.ok_or_else(|| {
        MdtError::Other(format!(
            "the metadata store in {} is in a file: only one in a database is accepted",
            dir.display()
        ))
    })?;
    Ok(store_pg::accept(rt, &place, wanted).await?)
}

/// Starts the metadata server of the store in `dir`, listening at `nid`. `key`, `nid` and address in `config` are
/// filled in here. A store that fails is opened again when its medium is well.
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
    start(rt, dir, nid, key, recovery_window, config, Patience::Lease).await
}

/// The same once no other server has the store any more, however long that takes.
///
/// # Errors
/// As [`start_mds`]; the store is in a file.
pub async fn start_standby_mds(
    rt: &Rt,
    dir: &Path,
    nid: &Nid,
    key: &ClusterKey,
    recovery_window: Duration,
    config: MdsConfig,
) -> Result<MdsRole, RoleError> {
    if Place::of_dir(dir).map_err(MdtError::from)?.is_none() {
        return Err(RoleError(format!(
            "the metadata store in {} is in a file, which one server has to itself: a standby needs one in a database (docs/metadata-store.md)",
            dir.display()
        )));
    }
    start(rt, dir, nid, key, recovery_window, config, Patience::Forever).await
}

async fn start(
    rt: &Rt,
    dir: &Path,
    nid: &Nid,
    key: &ClusterKey,
    recovery_window: Duration,
    config: MdsConfig,
    patience: Patience,
) -> Result<MdsRole, RoleError> {
    let place = Place::of_dir(dir).map_err(MdtError::from)?;
    let open = opener(dir.to_path_buf(), place.clone(), &config, patience);
    let store = match place {
        Some(place) => MdtStore::InDatabase { look: looker(place, config.store), open },
        None => MdtStore::Of { dirs: devices_of(dir, &[store_redb::STORE_FILE]), open },
    };
    let started = start_mds_of(rt, store, nid, key, recovery_window, config).await;
    started.map_err(|e| RoleError(format!("{e} (store {})", dir.display())))
}

/// A cache of records (store_pg) is so many times as large as one of pages (store_redb).
const RECORDS_PART: usize = store_pg::CACHE_BYTES_DEFAULT / store_redb::CACHE_BYTES_DEFAULT;

/// What looks whether the store at `place` can be opened: a database's medium is its own to look after, but not what became of the commits
/// that it has acknowledged.
fn looker(place: Place, wanted: Option<(u64, u64)>) -> LookMdt {
    Rc::new(move |rt| {
        let place = place.clone();
        Box::pin(async move { store_pg::look(&rt, &place, wanted).await.map_err(|e| e.to_string()) })
    })
}

/// What opens the store in `dir`, or at `place`, now and again.
fn opener(dir: PathBuf, place: Option<Place>, config: &MdsConfig, patience: Patience) -> OpenMdt {
    let (wanted, check_bytes_max, cache_bytes) = (config.store, config.check_bytes_max, config.db_cache_bytes);
    Rc::new(move |rt| {
        let (dir, place) = (dir.clone(), place.clone());
        Box::pin(async move {
            let kv: Rc<dyn MetaKv> = match place {
                Some(place) => {
                    let kv =
                        store_pg::open(&rt, &place, wanted, cache_bytes.saturating_mul(RECORDS_PART), patience).await;
                    kv.map_err(MdtError::from)?
                }
                None => {
                    let kv = store_redb::open_checked(rt, &dir, cache_bytes, check_bytes_max).await;
                    kv.map_err(MdtError::from)?
                }
            };
            Ok(kv)
        })
    })
}
