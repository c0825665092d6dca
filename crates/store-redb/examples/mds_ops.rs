//! Cost of metadata operations at the server, without network: `mds_ops DIR [FILES]`.
//!
//! Runs the whole node over redb in DIR with OSTs that answer at once, and prints wall and CPU microseconds per
//! operation (CPU includes the commit worker).
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use frames::FramePool;
use mds::osts::{Connector, OstLink, OstPort};
use mds::{Caller, ConnectorBox, Mds, MdsConfig, MkfsOptions};
use rt::{LocalFuture, Rt};
use types::{ClientId, Fid, FsError, OstIndex, Xid};
use wire::connect::{OstEntry, RegisterRequest};
use wire::mdt::*;
use wire::ost::{PrecreateReply, PrecreateRequest, StatfsReply};
use wire::{Encode, Op};

struct Port(OstIndex);
impl OstPort for Port {
    fn call(&self, op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        let statfs =
            StatfsReply { ost: self.0, total: 1 << 40, free: 1 << 39, available: 1 << 39, ..StatfsReply::default() };
        let answer = match op {
            Op::OstPrecreate => wire::decode::<PrecreateRequest>(&body)
                .map(|q| wire::encode(&PrecreateReply { first: q.last_used + 1, last: q.last_used + q.count, statfs }))
                .map_err(FsError::from),
            _ => Ok(wire::encode(&statfs)),
        };
        Box::pin(async move { answer })
    }
    fn close(&self) {}
}

fn cpu_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let main: f64 = stat.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
    let all = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks: f64 = all.split(' ').skip(13).take(2).filter_map(|n| n.parse::<f64>().ok()).sum();
    (ticks * 10_000.0).max(main / 1000.0)
}

struct Bench {
    rt: Rt,
    mds: Rc<Mds>,
    xid: u64,
    wall: Instant,
    cpu: f64,
}

fn name_of(i: u64) -> wire::Bytes {
    format!("file{i:08}").as_str().into()
}

impl Bench {
    async fn call<Q: Encode>(&mut self, op: Op, q: &Q) -> Vec<u8> {
        self.xid += 1;
        let caller =
            Caller { client: ClientId(1), replay: None, basis: 0, slot: Some(((self.xid % 8) as u16, Xid(self.xid))) };
        self.mds.serve(caller, op, &wire::encode(q)).await.expect("the operation is legal").body
    }
    fn begin(&mut self) {
        (self.wall, self.cpu) = (Instant::now(), cpu_us());
    }
    fn report(&self, name: &str, n: u64) {
        let us = self.wall.elapsed().as_secs_f64() * 1e6 / n as f64;
        let cpu = (cpu_us() - self.cpu) / n as f64;
        println!("{name:<28} {n:>9}  {us:>7.2} us/op wall  {cpu:>7.2} us/op cpu");
    }
    /// Lets the commit task run now and then, as arriving requests would.
    async fn breathe(&self, i: u64) {
        if i.is_multiple_of(64) {
            self.rt.sleep(types::Duration::from_nanos(1)).await;
        }
    }
    async fn register(&mut self) {
        for ost in 0..4 {
            let target = format!("bench-OST{ost:04x}");
            let (nid, target) = ("local:x".into(), target.as_str().into());
            let entry = OstEntry { ost: OstIndex(ost), nid, target, active: true, uuid: 10 + u64::from(ost) };
            self.call(Op::Register, &RegisterRequest { entry, cluster: 1, ..RegisterRequest::default() }).await;
        }
    }
    async fn create(&mut self, files: u64) -> Vec<Fid> {
        let mut fids = Vec::new();
        self.begin();
        for i in 0..files {
            let (parent, name) = (Fid::ROOT, name_of(i));
            let q =
                OpenRequest { parent, name, flags: 0o102, mode: 0o644, known_layout: u32::MAX, ..Default::default() };
            let r: OpenReply = wire::decode(&self.call(Op::MdtOpen, &q).await).expect("an answer to open");
            let fid = r.entry.attr.fid;
            self.call(
                Op::MdtClose,
                &CloseRequest { closes: vec![Close { handle: r.handle, fid, ..Default::default() }] },
            )
            .await;
            fids.push(fid);
            self.breathe(i).await;
        }
        self.report("create + close", files);
        self.mds.store().sync().await.expect("the disk works");
        self.report("create + close + commit", files);
        fids
    }
    async fn look(&mut self, fids: &[Fid]) {
        let files = fids.len() as u64;
        self.begin();
        for i in 0..files {
            let name = name_of(i * 7919 % files);
            self.call(Op::MdtLookup, &LookupRequest { parent: Fid::ROOT, name, ..Default::default() }).await;
        }
        self.report("lookup (store)", files);
        self.begin();
        for fid in fids {
            self.call(Op::MdtGetattr, &GetattrRequest { fid: *fid, ..Default::default() }).await;
        }
        self.report("getattr (store)", files);
    }
    async fn list(&mut self) {
        self.begin();
        let (mut cookie, mut seen) = (0, 0);
        loop {
            let q = ReaddirRequest { fid: Fid::ROOT, cookie, bytes_max: 65_536, ..Default::default() };
            let r: ReaddirReply = wire::decode(&self.call(Op::MdtReaddir, &q).await).expect("a page");
            seen += r.entries.len() as u64;
            if r.eof {
                break;
            }
            cookie = r.entries.last().map_or(0, |e| e.cookie);
        }
        self.report("readdir, per entry", seen);
    }
    async fn unlink(&mut self, files: u64) {
        self.begin();
        for i in 0..files {
            let q = UnlinkRequest { parent: Fid::ROOT, name: name_of(i), ..Default::default() };
            self.call(Op::MdtUnlink, &q).await;
            self.breathe(i).await;
        }
        self.report("unlink", files);
        self.mds.stop().await.expect("the disk works");
        self.report("unlink + commit", files);
    }
}

async fn main_on(rt: Rt, dir: PathBuf, files: u64) {
    let options = MkfsOptions {
        fsname: "bench".into(),
        cluster: 1,
        uuid: 1,
        hash_keys: [1, 2],
        hash_mask: u64::MAX,
        root_uid: 0,
        root_gid: 0,
        root_mode: 0o755,
        now: rt.wall(),
    };
    store_redb::mkfs(rt.clone(), &dir, &options).await.expect("the directory is fresh");
    let kv = store_redb::open(rt.clone(), &dir, store_redb::CACHE_BYTES_DEFAULT).expect("just formatted");
    let connector: Connector = Rc::new(|link: Rc<OstLink>| {
        link.on_session();
        Rc::new(Port(link.ost)) as Rc<dyn OstPort>
    });
    let config = MdsConfig { connector: Some(ConnectorBox(connector)), ..MdsConfig::default() };
    let mds = Mds::start(rt.clone(), config, kv).await.expect("formatted");
    let mut b = Bench { rt, mds, xid: 0, wall: Instant::now(), cpu: 0.0 };
    b.register().await;
    let fids = b.create(files).await;
    b.look(&fids).await;
    b.list().await;
    b.unlink(files).await;
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("usage: mds_ops DIR [FILES]"));
    let files = args.next().and_then(|n| n.parse().ok()).unwrap_or(50_000);
    rt::real::run(FramePool::new(1 << 20), |rt| main_on(rt, dir, files)).expect("the runtime starts");
}
