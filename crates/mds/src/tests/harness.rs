//! A file system in memory: one MDS, OSTs that answer at once, a client's calls as methods.
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::OnceLock;

use frames::FramePool;
use rt::LocalFuture;
use simworld::TestWorld;
use types::{ClientId, Fid, FsError, HandleId, ObjectId, OstIndex, Transno, WallTime, Xid};
use wire::connect::{OstEntry, RegisterRequest};
use wire::mdt::*;
use wire::ost::{DestroyRequest, PrecreateReply, PrecreateRequest, StatfsReply};
use wire::quota::*;
use wire::{Bytes, Decode, Encode, Op};

use crate::config::MdsConfig;
use crate::kv::{MemoryKv, MetaKv};
use crate::mds::{Caller, Mds};
use crate::mkfs::{MkfsOptions, format};
use crate::osts::OstPort;

/// Bytes that an id has on an OST, and its share there.
type TestQuotas = std::collections::BTreeMap<(OstIndex, QuotaKind, u32), (u64, u64)>;

/// What the OSTs of a test have been asked.
#[derive(Default)]
pub struct FakeOsts {
    pub destroyed: RefCell<Vec<ObjectId>>,
    pub precreates: RefCell<Vec<PrecreateRequest>>,
    pub down: RefCell<bool>,
    pub full: RefCell<bool>,
    /// They have heard of a later start of the metadata server.
    pub refusing: std::cell::Cell<bool>,
    /// They have no space to make objects.
    pub no_room: std::cell::Cell<bool>,
    /// What they were told of owners, in order.
    pub owned: RefCell<Vec<Ownership>>,
    /// Bytes that each has on each OST, and its share there.
    pub quotas: RefCell<TestQuotas>,
    pub told: std::cell::Cell<u64>,
    /// Their answers to what they are told of quotas come so late.
    pub late: RefCell<Option<(rt::Rt, types::Duration)>>,
    /// Only those of this one.
    pub late_only: std::cell::Cell<Option<OstIndex>>,
    /// Answers to what they were told of quotas that have come.
    pub taken: std::cell::Cell<u64>,
    /// They are of before there were owners.
    pub unowned: std::cell::Cell<bool>,
    /// They refuse whatever is about one of these.
    pub damaged: RefCell<Vec<ObjectId>>,
    /// They never answer what they are asked to destroy.
    pub silent: std::cell::Cell<bool>,
    /// What they have on stable storage.
    pub committed: std::cell::Cell<types::Transno>,
    /// Last object of each that exists.
    pub last: RefCell<std::collections::BTreeMap<OstIndex, u32>>,
}

impl FakeOsts {
    fn quota(&self, ost: OstIndex, q: &OstQuotaRequest) -> OstQuotaReply {
        let mut all = self.quotas.borrow_mut();
        let mut asked: Vec<(QuotaKind, u32)> = q.ask.iter().map(|id| (id.kind, id.id)).collect();
        for s in &q.set {
            let now = all.entry((ost, s.kind, s.id)).or_insert((0, UNLIMITED));
            now.1 = s.share.max(now.0);
            asked.push((s.kind, s.id));
        }
        if q.all {
            asked.extend(all.iter().filter(|(k, v)| k.0 == ost && v.1 != UNLIMITED).map(|(k, _)| (k.1, k.2)));
        }
        self.told.set(self.told.get() + 1);
        self.unowned.set(self.unowned.get() && !q.owned);
        let one = |(kind, id): (QuotaKind, u32)| {
            let (used, share) = all.get(&(ost, kind, id)).copied().unwrap_or((0, UNLIMITED));
            OstQuotaUsage { kind, id, used, share }
        };
        OstQuotaReply {
            usages: asked.into_iter().map(one).collect(),
            owned: !self.unowned.get(),
            told: self.told.get(),
        }
    }
}

struct FakePort {
    ost: OstIndex,
    all: Rc<FakeOsts>,
}
impl OstPort for FakePort {
    fn call(&self, op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        let free = if *self.all.full.borrow() { 0 } else { 1 << 39 };
        let statfs = StatfsReply { ost: self.ost, total: 1 << 40, free, available: free, ..StatfsReply::default() };
        let result = match op {
            _ if *self.all.down.borrow() => Err(FsError::NotConnected),
            Op::OstPrecreate if self.all.refusing.get() => Err(FsError::Stale),
            Op::OstPrecreate => {
                let q: PrecreateRequest = wire::decode(&body).unwrap();
                // As an OST does: what lies behind the last used one is never used again.
                let mut lasts = self.all.last.borrow_mut();
                let exists = lasts.entry(self.ost).or_default();
                let first = q.last_used.max(if q.orphans { *exists } else { 0 }) + 1;
                if self.all.no_room.get() && first - 1 + q.count > *exists {
                    return Box::pin(std::future::ready(Err(FsError::NoSpace)));
                }
                let last = (first - 1 + q.count).max(*exists);
                *exists = last;
                self.all.precreates.borrow_mut().push(q);
                Ok(wire::encode(&PrecreateReply { last, statfs, first }))
            }
            Op::OstDestroy => {
                let q: DestroyRequest = wire::decode(&body).unwrap();
                if self.all.silent.get() {
                    return Box::pin(std::future::pending());
                }
                if q.objects.iter().any(|o| self.all.damaged.borrow().contains(o)) {
                    Err(FsError::Corrupt)
                } else {
                    self.all.destroyed.borrow_mut().extend(q.objects);
                    Ok(Vec::new())
                }
            }
            Op::OstQuota => Ok(wire::encode(&self.all.quota(self.ost, &wire::decode(&body).unwrap()))),
            Op::OstOwn => {
                let q: OwnRequest = wire::decode(&body).unwrap();
                if q.objects.iter().any(|o| self.all.damaged.borrow().contains(&o.object)) {
                    Err(FsError::Corrupt)
                } else {
                    self.all.owned.borrow_mut().extend(q.objects);
                    Ok(Vec::new())
                }
            }
            Op::OstStatfs => Ok(wire::encode(&statfs)),
            Op::OstSync => Ok(Vec::new()),
            _ => Err(FsError::NotSupported),
        };
        let slow = op == Op::OstQuota && self.all.late_only.get().is_none_or(|ost| ost == self.ost);
        let late = self.all.late.borrow().clone().filter(|_| slow);
        let all = self.all.clone();
        Box::pin(async move {
            if let Some((rt, late)) = late {
                rt.sleep(late).await;
            }
            all.taken.set(all.taken.get() + u64::from(op == Op::OstQuota));
            result
        })
    }
    fn is_in_service(&self) -> bool {
        !*self.all.down.borrow()
    }
    fn last_committed(&self) -> types::Transno {
        self.all.committed.get()
    }
    fn close(&self) {}
}

/// One host; all worlds of a process share their page frames.
fn world() -> TestWorld {
    static POOL: OnceLock<FramePool> = OnceLock::new();
    TestWorld::with_pool(7, *POOL.get_or_init(|| FramePool::new(1 << 18)))
}

/// See the module's head.
pub struct Fs {
    pub world: TestWorld,
    pub kv: Rc<MemoryKv>,
    pub mds: Rc<Mds>,
    pub osts: Rc<FakeOsts>,
    pub cred: Cred,
    pub client: ClientId,
}

pub fn user(uid: u32) -> Cred {
    Cred { uid, gid: uid, groups: [].into(), caps: 0, job: 0 }
}

pub fn options(hash_mask: u64) -> MkfsOptions {
    MkfsOptions {
        fsname: "fs".into(),
        cluster: 77,
        uuid: 5,
        hash_keys: [1, 2],
        hash_mask,
        root_uid: 0,
        root_gid: 0,
        root_mode: 0o755,
        now: WallTime(1),
    }
}

pub fn entry(ost: u16) -> OstEntry {
    let target = format!("fs-OST{ost:04x}");
    OstEntry {
        ost: OstIndex(ost),
        nid: "local:x".into(),
        target: target.as_str().into(),
        active: true,
        uuid: 100 + u64::from(ost),
    }
}

impl Fs {
    /// A new file system with two OSTs; the caller is root.
    pub fn new() -> Fs {
        Fs::with_hash(u64::MAX)
    }
    /// The same with other commit settings.
    pub fn with_commit(commit: crate::store::CommitConfig) -> Fs {
        Fs::build(u64::MAX, MdsConfig { commit, ..MdsConfig::default() })
    }
    /// The same with other settings.
    pub fn with_config(config: MdsConfig) -> Fs {
        Fs::build(u64::MAX, config)
    }
    /// The same with a short name hash, so that names collide.
    pub fn with_hash(mask: u64) -> Fs {
        Fs::build(mask, MdsConfig::default())
    }
    /// The same on a store that takes so many bytes in a batch.
    pub fn with_batch_bytes(commit: crate::store::CommitConfig, bytes: usize) -> Fs {
        let kv = MemoryKv::new();
        kv.set_batch_bytes_max(bytes);
        Fs::build_on(kv, u64::MAX, MdsConfig { commit, ..MdsConfig::default() })
    }
    fn build(mask: u64, config: MdsConfig) -> Fs {
        Fs::build_on(MemoryKv::new(), mask, config)
    }
    fn build_on(kv: Rc<MemoryKv>, mask: u64, config: MdsConfig) -> Fs {
        let world = world();
        let dynkv: Rc<dyn MetaKv> = kv.clone();
        world.run(format(&dynkv, &options(mask))).unwrap();
        let fs = Fs::with_osts(world, kv, Rc::new(FakeOsts::default()), config);
        for ost in 0..2 {
            let q = RegisterRequest { entry: entry(ost), cluster: 77, ..RegisterRequest::default() };
            let _: wire::connect::ConfigReply = fs.call(Op::Register, &q).unwrap();
        }
        fs.world.settle();
        fs
    }
    fn with_osts(world: TestWorld, kv: Rc<MemoryKv>, osts: Rc<FakeOsts>, config: MdsConfig) -> Fs {
        let all = osts.clone();
        let connector: crate::osts::Connector = Rc::new(move |link: Rc<crate::osts::OstLink>| {
            link.on_session();
            let port: Rc<dyn OstPort> = Rc::new(FakePort { ost: link.ost, all: all.clone() });
            port
        });
        let config = MdsConfig { connector: Some(crate::config::ConnectorBox(connector)), ..config };
        let mds = world.run(Mds::start(world.rt(), config, kv.clone())).unwrap();
        Fs { world, kv, mds, osts, cred: user(0), client: ClientId(1) }
    }
    /// Loses everything that was not committed, and starts again.
    pub fn crash(self) -> Fs {
        self.mds.halt();
        self.world.reboot();
        let kv = self.kv.reopen();
        Fs::with_osts(self.world.clone(), kv, self.osts.clone(), MdsConfig::default())
    }
    /// Starts again on another store.
    pub fn on(self, kv: Rc<MemoryKv>) -> Fs {
        self.mds.halt();
        self.world.reboot();
        let fs = Fs::with_osts(self.world.clone(), kv, self.osts.clone(), MdsConfig::default());
        fs.world.settle();
        fs
    }
    /// The same file system seen by another user.
    pub fn by(&self, cred: Cred) -> Fs {
        Fs {
            world: self.world.clone(),
            kv: self.kv.clone(),
            mds: self.mds.clone(),
            osts: self.osts.clone(),
            cred,
            client: self.client,
        }
    }
    pub fn of(&self, client: u64) -> Fs {
        Fs { client: ClientId(client), ..self.by(self.cred.clone()) }
    }
    pub fn call<Q: Encode, A: Decode>(&self, op: Op, q: &Q) -> Result<A, FsError> {
        self.call_as(None, op, q).map(|(a, _)| a)
    }
    pub fn call_as<Q: Encode, A: Decode>(&self, replay: Option<u64>, op: Op, q: &Q) -> Result<(A, u64), FsError> {
        let caller = Caller { client: self.client, replay: replay.map(Transno), basis: 0, slot: Some((3, Xid(9))) };
        let body = wire::encode(q);
        let o = self.world.run(self.mds.serve(caller, op, &body))?;
        Ok((wire::decode(&o.body).unwrap(), o.transno.0))
    }
    /// Carries a change out: its transaction, and what that rested on.
    pub fn change<Q: Encode>(&self, op: Op, q: &Q) -> (u64, u64) {
        let caller = Caller { client: self.client, replay: None, basis: 0, slot: Some((3, Xid(9))) };
        let o = self.world.run(self.mds.serve(caller, op, &wire::encode(q))).unwrap();
        (o.transno.0, o.basis)
    }
    /// Replays it where a client is missing.
    pub fn replay<Q: Encode>(&self, (transno, basis): (u64, u64), op: Op, q: &Q) -> Result<(), FsError> {
        let caller = Caller { client: self.client, replay: Some(Transno(transno)), basis, slot: Some((3, Xid(9))) };
        self.world.run(self.mds.serve(caller, op, &wire::encode(q))).map(drop)
    }
    pub fn sync(&self) {
        self.world.run(self.mds.store.sync()).unwrap();
    }

    pub fn lookup(&self, parent: Fid, name: &str) -> Result<Attr, FsError> {
        let q = LookupRequest { cred: self.cred.clone(), parent, name: name.into(), ..LookupRequest::default() };
        self.call::<_, EntryReply>(Op::MdtLookup, &q).map(|e| e.attr)
    }
    pub fn getattr(&self, fid: Fid) -> Result<Attr, FsError> {
        let q = GetattrRequest { cred: self.cred.clone(), fid, ..GetattrRequest::default() };
        self.call::<_, EntryReply>(Op::MdtGetattr, &q).map(|e| e.attr)
    }
    pub fn mkdir_mode(&self, parent: Fid, name: &str, mode: u32) -> Result<Fid, FsError> {
        let (cred, name) = (self.cred.clone(), name.into());
        let q = CreateRequest { cred, parent, name, mode, umask: 0o022, ..CreateRequest::default() };
        self.call::<_, EntryReply>(Op::MdtCreate, &q).map(|e| e.attr.fid)
    }
    pub fn mkdir(&self, parent: Fid, name: &str) -> Result<Fid, FsError> {
        self.mkdir_mode(parent, name, 0o755)
    }
    pub fn symlink(&self, parent: Fid, name: &str, target: &str) -> Result<Fid, FsError> {
        let (cred, name, kind) = (self.cred.clone(), name.into(), NodeKind::Symlink);
        let q = CreateRequest { cred, parent, name, kind, target: target.into(), ..CreateRequest::default() };
        self.call::<_, EntryReply>(Op::MdtCreate, &q).map(|e| e.attr.fid)
    }
    pub fn open_request(&self, parent: Fid, name: &str, flags: u32, mode: u32) -> OpenRequest {
        let (cred, name) = (self.cred.clone(), name.into());
        OpenRequest { cred, parent, name, flags, mode, umask: 0o022, known_layout: u32::MAX, ..OpenRequest::default() }
    }
    pub fn open(&self, parent: Fid, name: &str, flags: u32, mode: u32) -> Result<OpenReply, FsError> {
        self.call(Op::MdtOpen, &self.open_request(parent, name, flags, mode))
    }
    /// A new empty file, closed.
    pub fn create(&self, parent: Fid, name: &str) -> Result<Fid, FsError> {
        let o = self.open(parent, name, 0o302, 0o644)?;
        self.close(o.handle, o.entry.attr.fid, 0, 0)?;
        Ok(o.entry.attr.fid)
    }
    pub fn close(&self, handle: HandleId, fid: Fid, valid: u32, size: u64) -> Result<(), FsError> {
        let (blocks, mtime) = (size.div_ceil(512), WallTime(5));
        self.end(Close { handle, fid, valid, size, blocks, mtime, ..Close::default() }).map(|_| ())
    }
    /// Ends one open; the inode's attributes.
    pub fn end(&self, close: Close) -> Result<Attr, FsError> {
        let mut ends = self.end_all(vec![close])?;
        ends.pop().unwrap()
    }
    /// Ends several opens in one request.
    pub fn end_all(&self, closes: Vec<Close>) -> Result<Vec<Result<Attr, FsError>>, FsError> {
        let reply: CloseReply = self.call(Op::MdtClose, &CloseRequest { closes })?;
        let end = |c: Closed| if c.status == 0 { Ok(c.attr) } else { Err(FsError::from_errno(c.status.into())) };
        Ok(reply.closes.into_iter().map(end).collect())
    }
    fn remove(&self, parent: Fid, name: &str, directory: bool) -> Result<(), FsError> {
        let q = UnlinkRequest { cred: self.cred.clone(), parent, name: name.into(), directory };
        self.call::<_, EntryReply>(Op::MdtUnlink, &q).map(|_| ())
    }
    pub fn unlink(&self, parent: Fid, name: &str) -> Result<(), FsError> {
        self.remove(parent, name, false)
    }
    pub fn rmdir(&self, parent: Fid, name: &str) -> Result<(), FsError> {
        self.remove(parent, name, true)
    }
    pub fn rename(&self, from: (Fid, &str), to: (Fid, &str), flags: u32) -> Result<(), FsError> {
        let (cred, from_name, to_name) = (self.cred.clone(), from.1.into(), to.1.into());
        let q = RenameRequest { cred, from: from.0, from_name, to: to.0, to_name, flags, ..RenameRequest::default() };
        self.call::<_, EntryReply>(Op::MdtRename, &q).map(|_| ())
    }
    pub fn link(&self, fid: Fid, parent: Fid, name: &str) -> Result<(), FsError> {
        let q = LinkRequest { cred: self.cred.clone(), fid, parent, name: name.into() };
        self.call::<_, EntryReply>(Op::MdtLink, &q).map(|_| ())
    }
    pub fn setattr(&self, fid: Fid, valid: u32, f: impl FnOnce(&mut SetattrRequest)) -> Result<Attr, FsError> {
        let mut q = SetattrRequest { cred: self.cred.clone(), fid, valid, ..SetattrRequest::default() };
        f(&mut q);
        self.call::<_, EntryReply>(Op::MdtSetattr, &q).map(|e| e.attr)
    }
    pub fn chmod(&self, fid: Fid, mode: u32) -> Result<Attr, FsError> {
        self.setattr(fid, SetBits::MODE, |q| q.mode = mode)
    }
    pub fn readdir_from(&self, fid: Fid, cookie: u64, bytes_max: u32) -> Result<ReaddirReply, FsError> {
        let q = ReaddirRequest { cred: self.cred.clone(), fid, cookie, bytes_max, ..ReaddirRequest::default() };
        self.call(Op::MdtReaddir, &q)
    }
    /// All names, in order of cookies.
    pub fn names(&self, fid: Fid) -> Vec<String> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let page = self.readdir_from(fid, cookie, 4096).unwrap();
            names.extend(page.entries.iter().map(|e| String::from_utf8(e.name.0.clone()).unwrap()));
            if page.eof {
                return names;
            }
            cookie = page.entries.last().expect("a page that is not the last has entries").cookie;
        }
    }
    pub fn setxattr(&self, fid: Fid, name: &str, value: Option<&[u8]>, flags: u32) -> Result<(), FsError> {
        let value = value.map(Bytes::from);
        let q = SetxattrRequest { cred: self.cred.clone(), fid, name: name.into(), value, flags, ..Default::default() };
        self.call::<_, BytesReply>(Op::MdtSetxattr, &q).map(|_| ())
    }
    pub fn getxattr(&self, fid: Fid, name: &str) -> Result<Vec<u8>, FsError> {
        let q = XattrRequest { cred: self.cred.clone(), fid, name: name.into() };
        self.call::<_, BytesReply>(Op::MdtGetxattr, &q).map(|r| r.value.0)
    }
    pub fn listxattr(&self, fid: Fid) -> Vec<String> {
        let q = XattrRequest { cred: self.cred.clone(), fid, name: Bytes::default() };
        let r: NamesReply = self.call(Op::MdtListxattr, &q).unwrap();
        r.names.into_iter().map(|n| String::from_utf8(n.0).unwrap()).collect()
    }
    pub fn quota(&self, kind: QuotaKind, id: u32) -> QuotaReply {
        self.call(Op::MdtQuota, &QuotaRequest { kind, id }).unwrap()
    }
    pub fn set_quota(&self, kind: QuotaKind, id: u32, set: u32, limits: QuotaLimits) -> SetQuotaReply {
        let q = SetQuotaRequest { kind, id, set, limits, ..SetQuotaRequest::default() };
        self.call(Op::MdtSetQuota, &q).unwrap()
    }
    /// Lets `seconds` pass.
    pub fn pass(&self, seconds: u64) {
        let rt = self.world.rt();
        self.world.run(rt.sleep(types::Duration::from_secs(seconds)));
        self.world.settle();
    }
    /// Inodes that exist.
    pub fn count(&self) -> u64 {
        self.mds.store.inodes()
    }
    pub fn path(&self, fid: Fid, link: u32) -> String {
        let r: BytesReply = self.call(Op::MdtFid2path, &Fid2pathRequest { fid, link }).unwrap();
        String::from_utf8(r.value.0).unwrap()
    }
    pub fn walk(&self, path: &str) -> Result<Fid, FsError> {
        path.split('/').try_fold(Fid::ROOT, |at, name| self.lookup(at, name).map(|a| a.fid))
    }
}
