//! A store that failed comes back by itself when its medium is well again: nothing that was promised is lost, and clients go on.
use std::cell::RefCell;
use std::path::Path;

use crate::world::*;
use client::NewNode;
use oss::store::{ObjectStore, StoreIdentity};
use roles::{OssRole, OstStore};
use simworld::DiskFault;
use store_file::{FileStore, FileStoreConfig};
use wire::Op;
use wire::connect::{MapChange, MapChangeReply, MapChangeRequest};
use wire::mdt::NodeKind;

const FAILS: DiskFault = DiskFault { reads: false, writes: true, syncs: true, times: u32::MAX };
const WELL: DiskFault = DiskFault { reads: false, writes: false, syncs: false, times: 0 };

fn param(world: &World, i: usize, name: &str) -> String {
    let path = format!("obdfilter.stria-OST{i:04x}.{name}");
    let params = world.ost(i).get_params(&path);
    String::from_utf8_lossy(&params[0].value).into_owned()
}

/// Waits until a write and a sync go well, for as long as an OST may take that is tried every ten seconds.
async fn writes_again(world: &World, c: &Rc<Client>, file: &Rc<OpenFile>, bytes: &[u8], seed: u64) {
    let since = world.sim.now();
    loop {
        let wrote = c.data().write(file, 0, bytes).await.is_ok();
        if wrote && c.data().fsync(file, false).await.is_ok() {
            return;
        }
        let waited = world.sim.now().since(since);
        assert!(
            waited < Duration::from_secs(60),
            "seed {seed}: it does not come back: {}",
            param(world, 0, "store_failure")
        );
        world.sim.sleep(Duration::from_millis(500)).await;
    }
}

#[test]
fn an_ost_comes_back_by_itself_with_all_that_was_synced_while_others_go_on() {
    for seed in 0..8 {
        let world = World::reopening(seed, 2);
        let ((c, _), (other, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(600), async {
            let (synced, failing) = (create_on(&c, "synced", 0).await, create_on(&c, "failing", 0).await);
            let elsewhere = create_on(&other, "elsewhere", 1).await;
            c.data().write(&synced, 0, &[1; 300_000]).await.unwrap();
            c.data().fsync(&synced, false).await.unwrap();
            let before = world.ost(0);
            world.oss[0].host.set_disk_fault(FAILS);
            c.data().write(&failing, 0, &[2; 300_000]).await.unwrap();
            assert_eq!(c.data().fsync(&failing, false).await, Err(FsError::Io), "seed {seed}");
            world.sim.sleep(Duration::from_secs(20)).await;
            // It is there, and says what is wrong and what is done about it.
            assert!(Rc::ptr_eq(&before, &world.ost(0)), "seed {seed}: the medium is not well yet");
            let text = param(&world, 0, "store_failure");
            assert!(text.contains(" failed: ") && text.contains("tried again every "), "seed {seed}: {text}");
            assert_eq!(read_all(&c, &synced, MIB).await, [1; 300_000], "seed {seed}");
            other.data().write(&elsewhere, 0, &[3; 8192]).await.unwrap();
            other.data().fsync(&elsewhere, false).await.unwrap();
            drop(before);
            world.oss[0].host.set_disk_fault(WELL);
            writes_again(&world, &c, &failing, &[4; 300_000], seed).await;
            assert_eq!(param(&world, 0, "store_reopened"), "1", "seed {seed}");
            assert_eq!(param(&world, 0, "store_failure"), "", "seed {seed}");
            assert_eq!(param(&world, 1, "store_reopened"), "0", "seed {seed}");
            assert_eq!(read_all(&other, &open(&other, "synced", 0).await, MIB).await, [1; 300_000], "seed {seed}");
            assert_eq!(read_all(&other, &open(&other, "failing", 0).await, MIB).await, [4; 300_000], "seed {seed}");
        });
    }
}

#[test]
fn what_was_answered_and_not_committed_is_told_again_to_the_store_that_was_opened_again() {
    for seed in 0..8 {
        let world = World::reopening(seed, 1);
        let ((c, _), (other, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(600), async {
            let file = create(&c, "f").await;
            c.data().write(&file, 0, &[5; 300_000]).await.unwrap();
            // At the OST, answered, and not on its medium. Nobody asks for more before all is well again.
            c.data().write_out(file.inode()).await;
            world.oss[0].host.set_disk_fault(FAILS);
            world.sim.sleep(Duration::from_secs(15)).await;
            world.oss[0].host.set_disk_fault(WELL);
            world.sim.sleep(Duration::from_secs(30)).await;
            assert_eq!(param(&world, 0, "store_reopened"), "1", "seed {seed}");
            c.data().fsync(&file, false).await.unwrap();
            assert_eq!(read_all(&other, &open(&other, "f", 0).await, MIB).await, [5; 300_000], "seed {seed}");
        });
    }
}

#[test]
fn a_store_that_fails_again_and_again_comes_back_each_time() {
    for seed in 0..4 {
        let world = World::reopening(seed, 1);
        let (c, _) = world.client(|_| {});
        world.run(Duration::from_secs(1800), async {
            let file = create(&c, "f").await;
            for round in 1..=5_u8 {
                writes_again(&world, &c, &file, &[round; 100_000], seed).await;
                world.oss[0].host.set_disk_fault(DiskFault { syncs: true, times: 1, ..WELL });
                c.data().write(&file, 0, &[99; 100_000]).await.unwrap();
                assert_eq!(c.data().fsync(&file, false).await, Err(FsError::Io), "seed {seed} round {round}");
            }
            writes_again(&world, &c, &file, &[7; 100_000], seed).await;
            assert_eq!(param(&world, 0, "store_reopened"), "5", "seed {seed}");
        });
    }
}

#[test]
fn a_metadata_server_comes_back_by_itself_and_is_told_again_what_it_had_not_committed() {
    for seed in 0..8 {
        let world = World::reopening(seed, 1);
        let ((c, _), (other, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(600), async {
            let dir = || NewNode { kind: NodeKind::Directory, mode: 0o755, umask: 0, rdev: 0, target: Vec::new() };
            let file = create(&c, "f").await;
            c.data().write(&file, 0, &[1; 8192]).await.unwrap();
            c.create(&root(), Fid::ROOT, b"answered", dir()).await.unwrap();
            world.mds_store_fails();
            let since = world.sim.now();
            while world.mds_reopened() == 0 {
                assert!(world.sim.now().since(since) < Duration::from_secs(60), "seed {seed}: it does not come back");
                world.sim.sleep(Duration::from_millis(500)).await;
            }
            c.create(&root(), Fid::ROOT, b"later", dir()).await.unwrap();
            for name in [&b"answered"[..], b"later", b"f"] {
                other.lookup(&root(), Fid::ROOT, name).await.unwrap();
            }
            c.data().fsync(&file, false).await.unwrap();
            c.release(&file).await.unwrap();
            assert_eq!(read_all(&other, &open(&other, "f", 0).await, MIB).await, [1; 8192], "seed {seed}");
        });
    }
}

async fn make_store(rt: &Rt, dir: &str, ost: u16, uuid: u64, lost_through: u32) {
    let identity = StoreIdentity { cluster: 0x57a1, fsname: "stria".into(), ost: OstIndex(ost), uuid };
    let options = store_file::MkfsOptions { identity, capacity_bytes: 1 << 30, lost_through };
    store_file::mkfs(rt, Path::new(dir), &options).await.unwrap();
}

/// What is the first OST's: the directory of its store, and the uuid that the cluster names.
type Place = Rc<RefCell<(String, u64)>>;

/// A server with two targets on one host, whose directories are `/ost0` and `/ost1`; their databases keep so many bytes of pages.
async fn two_in_one(world: &World, host: &Host, db_cache_bytes: usize) -> OssRole {
    let place = Rc::new(RefCell::new(("/ost0".to_string(), 7)));
    two_of(world, host, db_cache_bytes, &place).await.1
}

/// The same; the first one's store is opened where `first` says.
async fn two_of(world: &World, host: &Host, db_cache_bytes: usize, first: &Place) -> (Rt, OssRole) {
    let rt = host.boot();
    let mut stores = Vec::new();
    for i in 0..2 {
        let (dir, uuid) = (format!("/ost{i}"), 7 + u64::from(i));
        make_store(&rt, &dir, i, uuid, 0).await;
        let place = if i == 0 { first.clone() } else { Rc::new(RefCell::new((dir.clone(), uuid))) };
        let named = place.clone();
        let open = move |rt: Rt| -> rt::LocalFuture<Result<Rc<dyn ObjectStore>, String>> {
            let place = place.borrow().0.clone();
            let config = FileStoreConfig { db_cache_bytes, ..FileStoreConfig::default() };
            Box::pin(async move {
                let store = FileStore::open(rt, Path::new(&place), Some(0x57a1), config, None).await;
                store.map(|s| Rc::new(s) as Rc<dyn ObjectStore>).map_err(|e| e.to_string())
            })
        };
        let opened = OstStore::open(&rt, vec![dir.into()], open).await.unwrap();
        stores.push(opened.named_by(move || Some(named.borrow().1)));
    }
    let tune: roles::TuneOst = Rc::new(|_| Ok(()));
    let (window, config) = (Duration::from_secs(10), OstConfig::default());
    let oss = roles::make_oss_of(&rt, stores, &world.key(), window, &config, &tune).unwrap();
    let role = roles::serve_oss(&rt, oss, &host.nid(7989), world.mds_nid(), &world.key()).unwrap();
    (rt, role)
}

/// A file on each of two OSTs, synced.
async fn one_on_each(c: &Rc<Client>) -> [Rc<OpenFile>; 2] {
    let files = [create_on(c, "0", 0).await, create_on(c, "1", 1).await];
    for file in &files {
        c.data().write(file, 0, &[1; 100_000]).await.unwrap();
        c.data().fsync(file, false).await.unwrap();
    }
    files
}

#[test]
fn a_target_is_taken_out_of_a_server_whose_other_target_goes_on() {
    for seed in 0..4 {
        let world = World::reopening(seed, 0);
        let host = world.sim.host("oss");
        let role = world.sim.run(two_in_one(&world, &host, 1 << 20));
        let (c, _) = world.client_of(2);
        world.run(Duration::from_secs(600), async {
            let files = one_on_each(&c).await;
            let ost = |i: usize| role.oss.osts().into_iter().find(|o| o.store().identity().ost.0 == i as u16);
            let (first, second) = (Rc::downgrade(&ost(0).unwrap()), ost(1).unwrap());
            let connects = |i: usize| c.osts().all()[i].import().unwrap().counters().0;
            let before = [connects(0), connects(1)];
            // Whoever syncs next is the first target.
            host.set_disk_fault(DiskFault { syncs: true, times: 1, ..WELL });
            c.data().write(&files[0], 0, &[2; 100_000]).await.unwrap();
            assert_eq!(c.data().fsync(&files[0], false).await, Err(FsError::Io), "seed {seed}");
            let since = world.sim.now();
            while c.data().write(&files[0], 0, &[3; 100_000]).await.is_err()
                || c.data().fsync(&files[0], false).await.is_err()
            {
                assert!(world.sim.now().since(since) < Duration::from_secs(60), "seed {seed}: it does not come back");
                c.data().write(&files[1], 0, &[4; 8192]).await.unwrap();
                c.data().fsync(&files[1], false).await.unwrap();
                world.sim.sleep(Duration::from_millis(500)).await;
            }
            assert!(first.upgrade().is_none(), "seed {seed}: somebody holds the target of before");
            assert!(Rc::ptr_eq(&second, &ost(1).unwrap()), "seed {seed}: the other one has no part in it");
            assert_eq!([connects(0), connects(1)], [before[0] + 1, before[1]], "seed {seed}");
        });
    }
}

#[test]
fn a_target_of_whose_database_pages_changed_by_themselves_stays_and_answers_eio_until_it_is_repaired() {
    for seed in 0..4 {
        let world = World::reopening(seed, 0);
        let host = world.sim.host("oss");
        // Every page is read from the medium.
        let role = world.sim.run(two_in_one(&world, &host, 0));
        let (c, _) = world.client_of(2);
        world.run(Duration::from_secs(600), async {
            let files = one_on_each(&c).await;
            let ost = |i: u16| role.oss.osts().into_iter().find(|o| o.store().identity().ost.0 == i).unwrap();
            let before = ost(0);
            host.damage(Path::new("/ost0/meta.redb"), |bytes| {
                bytes[4096..].iter_mut().step_by(4096).for_each(|byte| *byte ^= 4);
            });
            let since = world.sim.now();
            // Long enough for a target that is opened again.
            while world.sim.now().since(since) < Duration::from_secs(40) {
                let asked = world.sim.now();
                c.data().write(&files[0], 0, &[2; 100_000]).await.ok();
                assert_eq!(c.data().fsync(&files[0], false).await, Err(FsError::Io), "seed {seed}");
                let took = world.sim.now().since(asked);
                assert!(took < Duration::from_secs(5), "seed {seed}: nobody waits for what only a repair brings back");
                c.data().write(&files[1], 0, &[4; 8192]).await.unwrap();
                c.data().fsync(&files[1], false).await.unwrap();
                world.sim.sleep(Duration::from_secs(1)).await;
            }
            assert!(Rc::ptr_eq(&before, &ost(0)), "seed {seed}");
            let params = before.get_params("obdfilter.stria-OST0000.store_failure");
            let text = String::from_utf8_lossy(&params[0].value).into_owned();
            assert!(text.contains("fsck --repair"), "seed {seed}: {text}");
        });
    }
}

/// Names a store as the first OST's; what the metadata server says.
async fn replace_first(c: &Rc<Client>, id: u64, uuid: u64) -> MapChangeReply {
    let (what, osts) = (MapChange::ReplaceOst, vec![OstIndex(0)]);
    let q = MapChangeRequest { id, what, osts, uuid, ..MapChangeRequest::default() };
    c.sessions().mdc().ask(Op::MapChange, &q).await.unwrap()
}

#[test]
fn a_store_that_failed_for_good_is_replaced_while_its_server_and_the_clients_go_on() {
    for seed in 0..4 {
        let world = World::reopening(seed, 0);
        let host = world.sim.host("oss");
        let place = Rc::new(RefCell::new(("/ost0".to_string(), 7)));
        let (rt, role) = world.sim.run(two_of(&world, &host, 1 << 20, &place));
        let ((c, _), (other, _)) = (world.client_of(2), world.client_of(2));
        world.run(Duration::from_secs(600), async {
            let [lost, kept] = one_on_each(&c).await;
            assert_eq!(read_all(&other, &open(&other, "0", 0).await, MIB).await, [1; 100_000], "seed {seed}");
            assert_eq!(
                replace_first(&c, 1, 900).await.errno,
                FsError::Busy.errno() as u16,
                "seed {seed}: it is in use"
            );
            host.set_disk_fault(FAILS);
            c.data().write(&lost, 0, &[2; 50_000]).await.unwrap();
            assert_eq!(c.data().fsync(&lost, false).await, Err(FsError::Io), "seed {seed}");
            // Its server has said so to the metadata server, or does so now.
            let mut reply = replace_first(&c, 2, 900).await;
            for id in 3..40 {
                if reply.errno == 0 {
                    break;
                }
                world.sim.sleep(Duration::from_secs(1)).await;
                reply = replace_first(&c, id, 900).await;
            }
            assert_eq!(reply.errno, 0, "seed {seed}: {}", String::from_utf8_lossy(&reply.why));
            assert!(reply.lost_through > 0, "seed {seed}");
            *place.borrow_mut() = ("/new0".into(), 900);
            world.sim.sleep(Duration::from_secs(12)).await;
            assert_eq!(role.oss.osts().len(), 1, "seed {seed}: the medium of before is not waited for");
            host.set_disk_fault(WELL);
            make_store(&rt, "/new0", 0, 900, reply.lost_through).await;
            let since = world.sim.now();
            while !role.oss.osts().iter().any(|o| o.store().identity().uuid == 900) {
                assert!(world.sim.now().since(since) < Duration::from_secs(30), "seed {seed}: nobody opens it");
                world.sim.sleep(Duration::from_millis(500)).await;
            }
            for client in [&c, &other] {
                assert!(client.osts().answers(OstIndex(0), Duration::from_secs(30)).await, "seed {seed}");
                let read = match client.open(&root(), lost.fid(), 0).await {
                    Ok(file) => client.data().read(&file, 0, 100).await.map(|bytes| bytes.to_vec()),
                    Err(e) => Err(e),
                };
                assert_eq!(read, Err(FsError::Io), "seed {seed}: what was lost");
            }
            assert_eq!(read_all(&other, &open(&other, "1", 0).await, MIB).await, [1; 100_000], "seed {seed}");
            c.data().write(&kept, 0, &[5; 10]).await.unwrap();
            c.data().fsync(&kept, false).await.unwrap();
            for (client, name) in [(&c, "new"), (&other, "newer")] {
                let file = create_on(client, name, 0).await;
                client.data().write(&file, 0, &[9; 100_000]).await.unwrap();
                client.data().fsync(&file, false).await.unwrap();
            }
            assert_eq!(read_all(&c, &open(&c, "newer", 0).await, MIB).await, [9; 100_000], "seed {seed}");
            assert_eq!(read_all(&other, &open(&other, "new", 0).await, MIB).await, [9; 100_000], "seed {seed}");
        });
    }
}
