//! Two servers of one store: the earlier one, which was stopped or cut off when the later one began, wakes up.
#![allow(clippy::unwrap_used)]
use std::path::Path;
use std::rc::Rc;

use frames::Bulk;
use oss::store::{BlockRange, DeviceProfile, EmulatedStore, Fenced, ObjectStore, StoreIdentity};
use oss::{Oss, OstConfig};
use ptlrpc::{CallOptions, Callbacks, ClusterKey, Import, ImportConfig, Server, ServerConfig};
use rt::{LocalFuture, Nid, Rt};
use simworld::TestWorld;
use store_file::{FileStore, FileStoreConfig, MkfsOptions, mkfs};
use types::{ClientId, Duration, Extent, FsError, MIB, ObjectId, OstIndex};
use wire::Op;
use wire::ost::{PrecreateReply, PrecreateRequest, ReadRequest, WriteRequest};

const DIR: &str = "/ost0";

fn object() -> ObjectId {
    ObjectId::new(OstIndex(0), 1)
}
fn nid(server: u64) -> Nid {
    Nid::Local(format!("oss{server}"))
}

struct Running {
    store: Rc<FileStore>,
    _server: Rc<Server>,
    _oss: Oss,
}

/// `device`: the profile that the store is slowed down to.
async fn start(rt: &Rt, number: u64, device: Option<&str>) -> Running {
    let commit_interval = Duration::from_millis(20);
    let config =
        FileStoreConfig { grow_bytes: MIB, db_cache_bytes: 1 << 20, commit_interval, ..FileStoreConfig::default() };
    let store = Rc::new(FileStore::open(rt.clone(), Path::new(DIR), Some(7), config, None).await.unwrap());
    let config = ServerConfig {
        key: ClusterKey::none(),
        recovery_window: Duration::from_secs(30),
        client_timeout: Duration::from_secs(600),
        boot: 100 - number,
    };
    let server = Server::new(rt.clone(), config);
    let oss = Oss::new(rt.clone(), server.clone(), &OstConfig::default()).unwrap();
    let served: Rc<dyn ObjectStore> = match device {
        Some(name) => EmulatedStore::new(rt.clone(), store.clone(), DeviceProfile::named(name).unwrap()),
        None => store.clone(),
    };
    oss.add(served, OstConfig::default()).unwrap();
    server.listen(&nid(number)).unwrap();
    Running { store, _server: server, _oss: oss }
}

struct Plain;
impl Callbacks for Plain {
    fn on_callback(self: Rc<Self>, _: Op, _: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

fn connect(rt: &Rt, client: u64, server: u64) -> (Rc<Import>, Rc<Plain>) {
    let plain = Rc::new(Plain);
    let config = ImportConfig {
        nid: nid(server),
        target: "stria-OST0000".into(),
        client: ClientId(client),
        key: ClusterKey::none(),
        recoverable: true,
        ping_interval: Duration::from_secs(100),
        place: 0,
    };
    let weak: std::rc::Weak<dyn Callbacks> = Rc::downgrade(&(plain.clone() as Rc<dyn Callbacks>));
    (Import::new(rt.clone(), config, weak), plain)
}

async fn write(rt: &Rt, import: &Import, at: u64, byte: u8) -> Result<(), FsError> {
    let mut bulk = Bulk::alloc(rt.frames(), 4096).unwrap();
    bulk.copy_in(0, &[byte; 4096]);
    let ask = WriteRequest { object: object(), extents: vec![Extent::at(at, 4096)], ..WriteRequest::default() };
    import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await.map(drop)
}

async fn content(store: &FileStore, blocks: u64) -> Vec<u8> {
    let read = store.read(object(), BlockRange::new(0, blocks)).await.unwrap();
    read.bulk.to_vec().chunks(4096).map(|page| page[0]).collect()
}

fn made() -> TestWorld {
    let world = TestWorld::new(3, 24 * MIB);
    let rt = world.rt();
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    world.run(async move {
        mkfs(&rt, Path::new(DIR), &MkfsOptions { identity, capacity_bytes: 0, lost_through: 0 }).await.unwrap();
    });
    world
}

async fn written(rt: &Rt, device: Option<&str>) -> (Running, Rc<Import>, Rc<Plain>) {
    let first = start(rt, 1, device).await;
    let (import, plain) = connect(rt, 5, 1);
    import.ready(Duration::from_secs(5)).await.unwrap();
    let make = PrecreateRequest { seq: object().0.seq, count: 1, ..PrecreateRequest::default() };
    import.ask::<_, PrecreateReply>(Op::OstPrecreate, &make).await.unwrap();
    write(rt, &import, 0, 1).await.unwrap();
    first.store.sync().await.unwrap();
    (first, import, plain)
}

#[test]
fn a_server_that_another_one_replaced_answers_nothing_and_its_clients_are_served_by_the_other() {
    is_replaced(None);
}

#[test]
fn so_does_one_whose_store_is_slowed_down_to_an_emulated_device() {
    is_replaced(Some("nvme"));
}

fn is_replaced(device: Option<&'static str>) {
    let world = made();
    let rt = world.rt();
    world.run(async move {
        let (first, import, _p) = written(&rt, device).await;
        // The first one stands still.
        rt.sleep(Duration::from_secs(5)).await;
        let second = start(&rt, 2, device).await;
        // It wakes up: a write and a read of what it has cached reach it, and neither is answered, not even with an error.
        let ask = ReadRequest { object: object(), extents: vec![Extent::at(0, 4096)], ..ReadRequest::default() };
        let (writer, reader, clock) = (import.clone(), import.clone(), rt.clone());
        let (tell, told) = rt::sync::oneshot();
        rt.spawn(async move {
            let read = reader.call(Op::OstRead, wire::encode(&ask), Bulk::new(), CallOptions::default());
            let (wrote, read) = (write(&clock, &writer, 4096, 2).await, read.await);
            tell.send((wrote, read.map(|r| r.bulk.to_vec()[0])));
        });
        rt.sleep(Duration::from_secs(5)).await;
        assert!(first.store.is_replaced() && first.store.failure().is_some());
        assert!(import.in_flight() > 0 && import.failure().unwrap().contains("replaced by a later server"));
        import.move_to(nid(2));
        assert_eq!(told.await.unwrap(), (Ok(()), Ok(1)));
        second.store.sync().await.unwrap();
        assert_eq!(content(&second.store, 2).await, [1, 2]);
        assert_eq!((first.store.boot(), second.store.boot()), (1, 2));
    });
}

#[test]
fn what_a_replaced_server_had_not_committed_is_not_written_any_more_and_its_client_replays_it() {
    let world = made();
    let rt = world.rt();
    world.run(async move {
        let (first, import, _p) = written(&rt, None).await;
        // Answered; the commit is to come.
        write(&rt, &import, 4096, 2).await.unwrap();
        let second = start(&rt, 2, None).await;
        assert_eq!(first.store.sync().await, Err(FsError::Io));
        assert!(first.store.is_replaced());
        import.move_to(nid(2));
        write(&rt, &import, 8192, 3).await.unwrap();
        assert_eq!(content(&second.store, 3).await, [1, 2, 3]);
    });
}

#[test]
fn a_client_that_has_seen_the_later_server_makes_the_earlier_one_look_at_its_store() {
    let world = made();
    let rt = world.rt();
    world.run(async move {
        let (_first, import, _p) = written(&rt, None).await;
        let _second = start(&rt, 2, None).await;
        // A client is not believed when it says that there is a later server; the store is.
        import.move_to(nid(2));
        import.deactivate();
        import.activate();
        import.ready(Duration::from_secs(60)).await.unwrap();
        import.move_to(nid(1));
        import.deactivate();
        import.activate();
        assert_eq!(import.ready(Duration::from_secs(20)).await, Err(FsError::TimedOut));
        assert!(import.failure().unwrap().contains("replaced by a later server"));
    });
}
