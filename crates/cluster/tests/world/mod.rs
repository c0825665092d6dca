//! What tests of clients share: a cluster in one process whose stores are in memory, and a client's usual steps.
#![allow(dead_code, unused_imports, reason = "every test binary uses its part")]
pub use std::rc::Rc;

pub use client::{Client, ClientConfig, Hint, NewFile, OpenFile};
pub use cluster::{MdsRole, OssRole, join, register_ost, start_mds_on, start_oss};
pub use frames::FramePool;
pub use mds::{MdsConfig, MemoryKv, MetaKv, MkfsOptions};
pub use oss::OstConfig;
pub use oss::store::{MemoryStore, ObjectStore, StoreIdentity};
pub use ptlrpc::ClusterKey;
pub use rt::{Nid, Rt};
pub use types::{Duration, Extent, Fid, FsError, KIB, MIB, OstIndex};
pub use wire::mdt::Cred;

pub const O_RDWR: u32 = 2;
pub const O_CREAT: u32 = 0o100;
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster whose stores are in memory.
pub struct World {
    pub rt: Rt,
    pub mds_nid: Nid,
    pub stores: Vec<Rc<MemoryStore>>,
    _mds: MdsRole,
    pub oss: OssRole,
}

pub fn root() -> Cred {
    Cred { caps: 3, ..Cred::default() }
}

impl World {
    /// `name` keeps the addresses of tests apart.
    pub async fn new(rt: Rt, name: &str, osts: u16, ost_bytes: u64) -> World {
        let kv: Rc<dyn MetaKv> = MemoryKv::new();
        let (fsname, cluster, uuid) = ("stria".to_string(), 0x57a1, rt.random() | 1);
        let (hash_keys, hash_mask) = ([rt.random(), rt.random()], u64::MAX);
        let (root_uid, root_gid, root_mode, now) = (0, 0, 0o755, rt.wall());
        let options = MkfsOptions { fsname, cluster, uuid, hash_keys, hash_mask, root_uid, root_gid, root_mode, now };
        mds::mkfs::format(&kv, &options).await.unwrap();
        let (mds_nid, oss_nid) = (Nid::Local(format!("mds-{name}")), Nid::Local(format!("oss-{name}")));
        let (key, window) = (ClusterKey::none(), Duration::from_secs(5));
        let mds = start_mds_on(&rt, kv, &mds_nid, &key, window, MdsConfig::default()).await.unwrap();
        let store = |i| {
            let identity = StoreIdentity { cluster, fsname: "stria".into(), ost: OstIndex(i), uuid: 7 + u64::from(i) };
            MemoryStore::new(&rt, identity, ost_bytes)
        };
        let stores: Vec<_> = (0..osts).map(store).collect();
        let served = stores.iter().map(|s| s.clone() as Rc<dyn ObjectStore>).collect();
        let oss = start_oss(&rt, served, &oss_nid, &mds_nid, &key, window, &OstConfig::default()).unwrap();
        World { rt, mds_nid, stores, _mds: mds, oss }
    }
    pub async fn client(&self) -> Rc<Client> {
        join(&self.rt, ClientConfig::new(self.mds_nid.clone()), self.stores.len(), PATIENCE).await.unwrap()
    }
}

/// Runs a test on a shard.
pub fn on_a_shard(test: impl AsyncFnOnce(Rt)) {
    rt::real::run(FramePool::new(256 << 20), async |rt| test(rt).await).unwrap();
}

pub async fn create(c: &Rc<Client>, dir: Fid, name: &str) -> Rc<OpenFile> {
    let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, ..NewFile::default() };
    c.create_open(&root(), dir, name.as_bytes(), new).await.unwrap().1
}
pub async fn lookup(c: &Rc<Client>, dir: Fid, name: &[u8]) -> client::Entry {
    let entry = c.lookup(&root(), dir, name).await.unwrap();
    assert!(!entry.attr.fid.is_zero(), "{} is there", String::from_utf8_lossy(name));
    entry
}
/// Requests sent to the metadata server so far.
pub fn asked(c: &Client) -> u64 {
    c.sessions().mdc().counters().1
}
/// All names, listed page by page.
pub async fn list(c: &Rc<Client>, dir: Fid, plus: bool) -> Vec<Vec<u8>> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let page = c.meta().readdir(&root(), dir, cookie, 256 << 10, plus).await.unwrap();
        names.extend(page.entries.iter().map(|e| e.name.0.clone()));
        match page.entries.last() {
            Some(last) if !page.eof => cookie = last.cookie,
            _ => return names,
        }
    }
}

/// A file of `bytes` bytes that its maker has written out.
pub async fn make(c: &Rc<Client>, name: &str, bytes: u64) {
    let file = create(c, Fid::ROOT, name).await;
    for at in (0..bytes).step_by(MIB as usize) {
        c.data().write(&file, at, &vec![(at / MIB) as u8 + 1; MIB as usize]).await.unwrap();
    }
    c.data().fsync(&file, false).await.unwrap();
    c.release(&file).await.unwrap();
}
pub async fn open(c: &Rc<Client>, name: &str) -> Rc<OpenFile> {
    let fid = lookup(c, Fid::ROOT, name.as_bytes()).await.attr.fid;
    c.open(&root(), fid, 0).await.unwrap()
}
/// Reads in pieces of 16 KiB what `make` wrote; how many read RPCs that took.
pub async fn read_in_pieces(c: &Rc<Client>, file: &Rc<OpenFile>, extent: Extent) -> u64 {
    let before = read_rpcs(c);
    for at in (extent.start..extent.end).step_by(16 << 10) {
        let bulk = c.data().read(file, at, 16 << 10).await.unwrap();
        assert_eq!(bulk.len(), 16 << 10);
        assert!(bulk.slices().all(|s| s.iter().all(|b| u64::from(*b) == at / MIB + 1)), "at {at}");
    }
    read_rpcs(c) - before
}
pub fn read_rpcs(c: &Client) -> u64 {
    c.osts().all().iter().map(|o| o.stats().read_rpcs).sum()
}
