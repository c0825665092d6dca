//! Cost of metadata operations at the server, without network: `mds_ops DIR [FILES]`.
//!
//! Runs the whole node over redb in DIR with OSTs that answer at once, and prints wall and CPU microseconds per
//! operation (CPU includes the commit worker).
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use cache::frames::FramePool;
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
                .map(|q| wire::encode(&PrecreateReply { last: q.last_used + q.count, statfs }))
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
    mds: Rc<Mds>,
    xid: u64,
}

impl Bench {
    async fn call<Q: Encode>(&mut self, op: Op, q: &Q) -> Vec<u8> {
        self.xid += 1;
        let caller = Caller { client: ClientId(1), replay: None, slot: Some(((self.xid % 8) as u16, Xid(self.xid))) };
        self.mds.serve(caller, op, &wire::encode(q)).await.expect("the operation is legal").body
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
    let mut b = Bench { mds: Mds::start(rt.clone(), config, kv).await.expect("formatted"), xid: 0 };
    for ost in 0..4 {
        let target = format!("bench-OST{ost:04x}");
        let entry = OstEntry {
            ost: OstIndex(ost),
            nid: "local:x".into(),
            target: target.as_str().into(),
            active: true,
            uuid: 10 + u64::from(ost),
        };
        b.call(Op::Register, &RegisterRequest { entry, cluster: 1 }).await;
    }
    let mut report = |name: &str, n: u64, wall: Instant, cpu: f64| {
        let us = wall.elapsed().as_secs_f64() * 1e6;
        println!(
            "{name:<28} {n:>9}  {:>7.2} us/op wall  {:>7.2} us/op cpu",
            us / n as f64,
            (cpu_us() - cpu) / n as f64
        );
    };
    let mut fids = Vec::new();
    let (wall, cpu) = (Instant::now(), cpu_us());
    for i in 0..files {
        let name = format!("file{i:08}");
        let q = OpenRequest {
            parent: Fid::ROOT,
            name: name.as_str().into(),
            flags: 0o102,
            mode: 0o644,
            known_layout: u32::MAX,
            ..Default::default()
        };
        let r: OpenReply = wire::decode(&b.call(Op::MdtOpen, &q).await).expect("an answer to open");
        let fid = r.entry.attr.fid;
        b.call(Op::MdtClose, &CloseRequest { handle: r.handle, fid, ..Default::default() }).await;
        fids.push(fid);
        if i % 64 == 0 {
            rt.sleep(types::Duration::from_nanos(1)).await;
        }
    }
    report("create + close", files, wall, cpu);
    b.mds.store().sync().await.expect("the disk works");
    report("create + close + commit", files, wall, cpu);
    let (wall, cpu) = (Instant::now(), cpu_us());
    for i in 0..files {
        let name = format!("file{:08}", i * 7919 % files);
        b.call(Op::MdtLookup, &LookupRequest { parent: Fid::ROOT, name: name.as_str().into(), ..Default::default() })
            .await;
    }
    report("lookup (store)", files, wall, cpu);
    let (wall, cpu) = (Instant::now(), cpu_us());
    for fid in &fids {
        b.call(Op::MdtGetattr, &GetattrRequest { fid: *fid, ..Default::default() }).await;
    }
    report("getattr (store)", files, wall, cpu);
    let (wall, cpu, mut cookie, mut seen) = (Instant::now(), cpu_us(), 0, 0);
    loop {
        let q = ReaddirRequest { fid: Fid::ROOT, cookie, bytes_max: 65_536, ..Default::default() };
        let r: ReaddirReply = wire::decode(&b.call(Op::MdtReaddir, &q).await).expect("a page");
        seen += r.entries.len() as u64;
        if r.eof {
            break;
        }
        cookie = r.entries.last().map_or(0, |e| e.cookie);
    }
    report("readdir, per entry", seen, wall, cpu);
    let (wall, cpu) = (Instant::now(), cpu_us());
    for i in 0..files {
        let name = format!("file{i:08}");
        b.call(Op::MdtUnlink, &UnlinkRequest { parent: Fid::ROOT, name: name.as_str().into(), ..Default::default() })
            .await;
        if i % 64 == 0 {
            rt.sleep(types::Duration::from_nanos(1)).await;
        }
    }
    report("unlink", files, wall, cpu);
    b.mds.stop().await.expect("the disk works");
    report("unlink + commit", files, wall, cpu);
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("usage: mds_ops DIR [FILES]"));
    let files = args.next().and_then(|n| n.parse().ok()).unwrap_or(50_000);
    rt::real::run(FramePool::new(1 << 20), |rt| main_on(rt, dir, files)).expect("the runtime starts");
}
