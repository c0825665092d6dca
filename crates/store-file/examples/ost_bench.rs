//! What an OST over a file store costs: CPU seconds per GiB and per operation, in this process alone.
//!
//! `cargo run --release -p stria-store-file --example ost_bench -- DIR [MIB]`: DIR is empty and best RAM-backed.
//! Prints one NDJSON line per measurement. The client is a bare session (no cache) in the same process, over a local
//! connection by reference and over TCP on loopback; its cost is included.
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use frames::{Bulk, FramePool};
use oss::store::{BlockRange, BlockRun, ObjectStore, SizeRule, StoreIdentity, Update};
use oss::{Oss, OstConfig};
use ptlrpc::{CallOptions, Callbacks, ClusterKey, Import, ImportConfig, Server, ServerConfig};
use rt::{LocalFuture, Nid, Rt};
use store_file::{FileStore, FileStoreConfig, MkfsOptions, mkfs};
use types::{ClientId, Duration, Extent, FsError, MIB, ObjectId, OstIndex, Rng};
use wire::Op;
use wire::ost::{PrecreateReply, PrecreateRequest, ReadRequest, WriteRequest};

struct Quiet;
impl Callbacks for Quiet {
    fn on_callback(self: Rc<Self>, _: Op, _: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

fn cpu_s() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a rusage, which the call fills.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let s = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    s(usage.ru_utime) + s(usage.ru_stime)
}

/// Measures `work`, which moves `bytes` in `ops` operations.
async fn measure(name: &str, bytes: u64, ops: u64, work: impl Future<Output = ()>) {
    let (cpu, wall) = (cpu_s(), Instant::now());
    work.await;
    let (cpu, wall) = (cpu_s() - cpu, wall.elapsed().as_secs_f64());
    let gib = bytes as f64 / (1u64 << 30) as f64;
    println!(
        "{{\"name\":\"{name}\",\"bytes\":{bytes},\"ops\":{ops},\"cpu_s_per_gib\":{:.4},\"cpu_us_per_op\":{:.2},\"mib_per_s\":{:.0},\"wall_s\":{wall:.3}}}",
        cpu / gib,
        cpu * 1e6 / ops as f64,
        gib * 1024.0 / wall
    );
}

fn object(n: u32) -> ObjectId {
    ObjectId::new(OstIndex(0), n)
}

fn block_run(rt: &Rt, first: u64, len: u64) -> BlockRun {
    let bulk = Bulk::alloc(rt.frames(), len as usize).expect("the pool suffices");
    let crcs = bulk.slices().flat_map(|s| s.chunks_exact(4096)).map(wire::crc32c).collect();
    BlockRun { first, bulk, crcs }
}

async fn store_alone(rt: &Rt, store: &Rc<dyn ObjectStore>, mib: u64) {
    let bytes = mib * MIB;
    store.create(object(1).0.seq, 8).await.expect("objects can be made");
    measure("store write 1 MiB sequential", bytes, mib, async {
        for i in 0..mib {
            let size = SizeRule::AtLeast((i + 1) * MIB);
            let update = Update { puts: vec![block_run(rt, i * 256, MIB)], size, ..Update::default() };
            store.update(object(1), update).await.expect("writes succeed");
        }
        store.sync().await.expect("syncs succeed");
    })
    .await;
    measure("store read 1 MiB sequential", bytes, mib, async {
        for i in 0..mib {
            store.read(object(1), BlockRange::new(i * 256, i * 256 + 256)).await.expect("reads succeed");
        }
    })
    .await;
    let (ops, mut rng) = (20_000, Rng::new(1));
    measure("store read 4 KiB random", ops * 4096, ops, async {
        for _ in 0..ops {
            let b = rng.below(mib * 256);
            store.read(object(1), BlockRange::new(b, b + 1)).await.expect("reads succeed");
        }
    })
    .await;
    measure("store write 4 KiB random", ops * 4096, ops, async {
        for _ in 0..ops {
            let update = Update { puts: vec![block_run(rt, rng.below(mib * 256), 4096)], ..Update::default() };
            store.update(object(1), update).await.expect("writes succeed");
        }
        store.sync().await.expect("syncs succeed");
    })
    .await;
}

async fn connect(rt: &Rt, nid: Nid, id: u64) -> (Rc<Import>, Rc<dyn Callbacks>) {
    let quiet: Rc<dyn Callbacks> = Rc::new(Quiet);
    let config = ImportConfig {
        nid,
        target: "stria-OST0000".into(),
        client: ClientId(id),
        key: ClusterKey::from_text(b"the key of a measurement").expect("it is long enough"),
        recoverable: true,
        ping_interval: Duration::from_secs(10),
        place: 0,
    };
    let import = Import::new(rt.clone(), config, Rc::downgrade(&quiet));
    import.ready(Duration::from_secs(5)).await.expect("the server is there");
    (import, quiet)
}

/// `depth` readers (or writers) share the requests of one object.
async fn session(rt: &Rt, import: &Rc<Import>, name: &str, target: ObjectId, mib: u64) {
    let depth = 8u64;
    let each = |write: bool| {
        let tasks = (0..depth).map(move |t| async move {
            for i in (t..mib).step_by(depth as usize) {
                let extents = vec![Extent::at(i * MIB, MIB)];
                if write {
                    let bulk = Bulk::alloc(rt.frames(), MIB as usize).expect("the pool suffices");
                    let ask = WriteRequest { object: target, extents, ..WriteRequest::default() };
                    import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await.expect("writes");
                } else {
                    let ask = ReadRequest { object: target, extents, ..ReadRequest::default() };
                    import
                        .call(Op::OstRead, wire::encode(&ask), Bulk::new(), CallOptions::default())
                        .await
                        .expect("reads");
                }
            }
        });
        rt::sync::join_all(tasks.collect())
    };
    let bytes = mib * MIB;
    measure(&format!("{name} write 1 MiB"), bytes, mib, async {
        each(true).await;
    })
    .await;
    measure(&format!("{name} read 1 MiB"), bytes, mib, async {
        each(false).await;
    })
    .await;
    let ops = 20_000u64;
    measure(&format!("{name} read 4 KiB random"), ops * 4096, ops, async {
        let tasks = (0..depth).map(|t| async move {
            let mut rng = Rng::new(t);
            for _ in 0..ops / depth {
                let extents = vec![Extent::at(rng.below(mib * 256) * 4096, 4096)];
                let ask = ReadRequest { object: target, extents, ..ReadRequest::default() };
                import.call(Op::OstRead, wire::encode(&ask), Bulk::new(), CallOptions::default()).await.expect("reads");
            }
        });
        rt::sync::join_all(tasks.collect()).await;
    })
    .await;
}

async fn run(rt: Rt, dir: String, mib: u64) {
    let dir = Path::new(&dir);
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    mkfs(&rt, dir, &MkfsOptions { identity, capacity_bytes: 0, lost_through: 0 })
        .await
        .expect("the directory is empty");
    let store = FileStore::open(rt.clone(), dir, None, FileStoreConfig::default(), None).await.expect("it opens");
    let store: Rc<dyn ObjectStore> = Rc::new(store);
    store_alone(&rt, &store, mib).await;
    let config = ServerConfig {
        key: ClusterKey::from_text(b"the key of a measurement").expect("it is long enough"),
        recovery_window: Duration::from_secs(5),
        client_timeout: Duration::from_secs(60),
        boot: 1,
    };
    let server = Server::new(rt.clone(), config);
    let cache_bytes = if std::env::args().any(|a| a == "--no-cache") { 0 } else { 64 * MIB };
    let config = OstConfig { cache_bytes, ..OstConfig::default() };
    let oss = Oss::new(rt.clone(), server.clone(), &config).expect("the defaults are right");
    oss.add(store.clone(), config).expect("the defaults are right");
    let local = server.listen(&Nid::Local("oss".into())).expect("the name is free");
    let tcp = server.listen(&Nid::parse("127.0.0.1:0").expect("an address")).expect("a port is free");
    for (i, (name, nid)) in [("local", local), ("tcp", tcp)].into_iter().enumerate() {
        let (import, _answers) = connect(&rt, nid, 5 + i as u64).await;
        let ask = PrecreateRequest { seq: object(1).0.seq, count: 8, ..PrecreateRequest::default() };
        import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask).await.expect("objects can be made");
        session(&rt, &import, name, object(2 + i as u32), mib).await;
        import.close().await;
    }
    oss.close().await.expect("it closes");
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().expect("usage: ost_bench DIR [MIB]");
    let mib = args.next().and_then(|m| m.parse().ok()).unwrap_or(512);
    rt::real::run(FramePool::new(256 * MIB), |rt| run(rt, dir, mib)).expect("the runtime starts");
}
