//! What tests of an OST over a file store share: the store, a server on it, a client's session.
#![allow(dead_code, clippy::unwrap_used, reason = "every test binary uses its part")]
use std::path::Path;
use std::rc::Rc;

use oss::store::StoreIdentity;
use oss::{Oss, OstConfig};
use ptlrpc::{Callbacks, ClusterKey, Import, ImportConfig, Server, ServerConfig};
use rt::{Nid, Rt};
use simworld::TestWorld;
use store_file::{FileStore, FileStoreConfig, MkfsOptions, mkfs};
use types::{ClientId, Duration, MIB, ObjectId, OstIndex};

const DIR: &str = "/ost0";
pub const TARGET: &str = "stria-OST0000";

pub fn object() -> ObjectId {
    ObjectId::new(OstIndex(0), 1)
}
pub fn nid() -> Nid {
    Nid::Local("oss".into())
}

pub struct Running {
    pub server: Rc<Server>,
    pub store: Rc<FileStore>,
    _oss: Oss,
}

/// A world with a new store.
pub fn made(seed: u64) -> TestWorld {
    let world = TestWorld::new(seed, 24 * MIB);
    let rt = world.rt();
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    world.run(async move {
        mkfs(&rt, Path::new(DIR), &MkfsOptions { identity, capacity_bytes: 0, lost_through: 0 }).await.unwrap();
    });
    world
}

/// Opens it, with commits so far apart.
pub async fn open(rt: &Rt, interval: Duration) -> Rc<FileStore> {
    let config = FileStoreConfig {
        grow_bytes: MIB,
        db_cache_bytes: 1 << 20,
        commit_interval: interval,
        ..FileStoreConfig::default()
    };
    Rc::new(FileStore::open(rt.clone(), Path::new(DIR), Some(7), config, None).await.unwrap())
}

/// Starts its server.
pub async fn start(rt: &Rt, boot: u64, interval: Duration) -> Running {
    let store = open(rt, interval).await;
    let config = ServerConfig {
        key: ClusterKey::none(),
        recovery_window: Duration::from_secs(5),
        client_timeout: Duration::from_secs(600),
        boot,
    };
    let server = Server::new(rt.clone(), config);
    let oss = Oss::new(rt.clone(), server.clone(), &OstConfig::default()).unwrap();
    oss.add(store.clone(), OstConfig::default()).unwrap();
    server.listen(&nid()).unwrap();
    Running { server, store, _oss: oss }
}

/// A session of a client.
pub async fn join(rt: &Rt, client: ClientId, callbacks: Rc<dyn Callbacks>) -> Rc<Import> {
    let (key, ping_interval) = (ClusterKey::none(), Duration::from_secs(1));
    let config =
        ImportConfig { nid: nid(), target: TARGET.into(), client, key, recoverable: true, ping_interval, place: 0 };
    let import = Import::new(rt.clone(), config, Rc::downgrade(&callbacks));
    import.ready(Duration::from_secs(5)).await.unwrap();
    import
}
