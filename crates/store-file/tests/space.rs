//! Full stores and full file systems: overwrites go through, nothing fails for good, space goes back.
#![allow(clippy::unwrap_used)]
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use oss::store::{BlockRange, BlockRun, ObjectStore, SizeRule, StoreIdentity, Update};
use rt::Rt;
use simworld::TestWorld;
use store_file::{FileStore, FileStoreConfig, MkfsOptions, mkfs};
use types::{Duration, FsError, ObjectId, OstIndex};

const DIR: &str = "/ost0";

fn config() -> FileStoreConfig {
    FileStoreConfig { grow_bytes: 1 << 20, db_cache_bytes: 1 << 20, reserve_bytes: 0, ..FileStoreConfig::default() }
}

async fn make(rt: &Rt, capacity_bytes: u64) -> Rc<dyn ObjectStore> {
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    mkfs(rt, Path::new(DIR), &MkfsOptions { identity, capacity_bytes, lost_through: 0 }).await.unwrap();
    let store = open(rt).await;
    store.create(object(1).0.seq, 4).await.unwrap();
    store
}

async fn open(rt: &Rt) -> Rc<dyn ObjectStore> {
    Rc::new(FileStore::open(rt.clone(), Path::new(DIR), Some(7), config(), None).await.unwrap())
}

fn object(oid: u32) -> ObjectId {
    ObjectId::new(OstIndex(0), oid)
}

fn put(rt: &Rt, first: u64, count: u64, byte: u8) -> Update {
    let mut bulk = frames::Bulk::alloc(rt.frames(), count as usize * 4096).unwrap();
    (0..count as usize).for_each(|i| bulk.copy_in(i * 4096, &[byte; 4096]));
    let crcs = bulk.slices().flat_map(|s| s.chunks(4096)).map(wire::crc32c).collect();
    let size = SizeRule::AtLeast((first + count) * 4096);
    Update { puts: vec![BlockRun { first, bulk, crcs }], size, ..Update::default() }
}

/// Writes object 1 until the store is full; its blocks.
async fn fill(rt: &Rt, store: &Rc<dyn ObjectStore>) -> u64 {
    let mut at = 0;
    for step in [64, 1] {
        while store.update(object(1), put(rt, at, step, 1)).await.is_ok() {
            at += step;
        }
    }
    store.sync().await.unwrap();
    at
}

async fn all_are(store: &Rc<dyn ObjectStore>, blocks: u64, byte: u8) {
    let read = store.read(object(1), BlockRange::new(0, blocks)).await.unwrap();
    assert!(read.bulk.slices().all(|s| s.iter().all(|b| *b == byte)));
}

#[test]
fn an_overwrite_in_a_full_store_waits_for_reads_that_hold_old_blocks_however_long_they_take() {
    let world = TestWorld::new(1, 64 << 20);
    let (rt, host) = (world.rt(), world.clone());
    world.run(async move {
        let store = make(&rt, 16 << 20).await;
        let blocks = fill(&rt, &store).await;
        let read = Rc::new(Cell::new(false));
        // A read of a slow device, under way for seconds; what comes later is fast again.
        host.host().set_disk_slowness(1_000_000);
        let (theirs, done) = (store.clone(), read.clone());
        rt.spawn(async move {
            theirs.read(object(1), BlockRange::new(0, 8)).await.unwrap();
            done.set(true);
        });
        rt.sleep(Duration::from_millis(1)).await;
        host.host().set_disk_slowness(1);
        let mut waited = false;
        for at in (0..blocks - blocks % 32).step_by(32) {
            let before = read.get();
            store.update(object(1), put(&rt, at, 32, 2)).await.unwrap();
            waited |= !before && read.get();
        }
        assert!(waited, "blocks that the read held were needed");
    });
}

#[test]
fn an_overwrite_of_more_than_what_is_free_goes_through_in_parts() {
    let world = TestWorld::new(2, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(&rt, 16 << 20).await;
        let blocks = fill(&rt, &store).await;
        assert_eq!(store.space().free, 0);
        assert_eq!(store.update(object(2), put(&rt, 0, 1, 3)).await, Err(FsError::NoSpace), "new data have no place");
        let before = store.attr(object(1)).await.unwrap();
        let after = store.update(object(1), put(&rt, 0, blocks, 2)).await.unwrap().attr;
        assert_eq!((after.size, after.blocks), (before.size, before.blocks));
        all_are(&store, blocks, 2).await;
        store.close().await.unwrap();
        let store = open(&rt).await;
        all_are(&store, blocks, 2).await;
        // Many at once, each with its own part.
        let jobs = (0..8).map(|i| {
            let (rt, store, part) = (rt.clone(), store.clone(), blocks / 8);
            async move { store.update(object(1), put(&rt, i * part, part, 4)).await.map(drop) }
        });
        assert!(rt::sync::join_all(jobs.collect()).await.into_iter().all(|r| r.is_ok()));
        all_are(&store, blocks / 8 * 8, 4).await;
    });
}

#[test]
fn space_of_removed_objects_goes_back_to_the_file_system_and_is_found_again() {
    let world = TestWorld::new(3, 64 << 20);
    let (rt, host) = (world.rt(), world.clone());
    world.host().set_disk_capacity(64 << 20);
    world.run(async move {
        let store = make(&rt, 0).await;
        let total = store.space().total;
        let empty = host.host().disk_used();
        let mut at = 0;
        while at < 8192 {
            store.update(object(1), put(&rt, at, 256, 1)).await.unwrap();
            at += 256;
        }
        store.update(object(2), put(&rt, 0, 16, 7)).await.unwrap();
        store.sync().await.unwrap();
        let full = host.host().disk_used();
        assert!(full > empty + (24 << 20), "{empty} were used before, {full} are used");
        store.destroy(vec![object(1)], None).await.unwrap();
        store.sync().await.unwrap();
        rt.sleep(Duration::from_millis(500)).await;
        let left = host.host().disk_used();
        assert!(left < empty + (12 << 20), "{empty} were used before, {left} are used afterwards");
        assert!(store.space().total <= total && store.space().total + (4 << 20) > total, "{:?}", store.space());
        store.close().await.unwrap();
        // After a restart the holes are known, and all of the space can be used.
        let store = open(&rt).await;
        assert!(store.space().total + (4 << 20) > total, "{:?}", store.space());
        let read = store.read(object(2), BlockRange::new(0, 16)).await.unwrap();
        assert!(read.bulk.slices().all(|s| s.iter().all(|b| *b == 7)));
        let free = store.space().free / 4096;
        for at in (0..free - 64).step_by(64) {
            store.update(object(3), put(&rt, at, 64, 5)).await.unwrap();
        }
        store.sync().await.unwrap();
        assert_eq!(store.verify(object(3)).await, Ok(Vec::new()));
        assert_eq!(store.failure(), None);
    });
}

#[test]
fn a_file_system_that_others_fill_costs_nothing_that_was_answered_and_the_store_goes_on_afterwards() {
    let world = TestWorld::new(4, 64 << 20);
    let (rt, host) = (world.rt(), world.clone());
    world.host().set_disk_capacity(256 << 20);
    world.run(async move {
        let store = make(&rt, 0).await;
        store.update(object(1), put(&rt, 0, 64, 1)).await.unwrap();
        store.sync().await.unwrap();
        // Nothing is left, neither for data nor for the database.
        host.host().set_disk_capacity(host.host().disk_used());
        let (mut done, mut refused) = (0, 0);
        // Every other block: as many records as can be.
        for i in 0..4000u64 {
            match store.update(object(2), put(&rt, 2 * i, 1, 2)).await {
                Ok(_) => done += 1,
                Err(FsError::NoSpace) => refused += 1,
                Err(e) => panic!("{e}"),
            }
            if i % 50 == 0 {
                store.sync().await.unwrap();
            }
            // What is there can be overwritten, and be removed.
            store.update(object(1), put(&rt, i % 64, 1, 3)).await.unwrap();
        }
        assert!(refused > 0 && done > 0, "{done} done, {refused} refused");
        store.sync().await.unwrap();
        let blocks = store.attr(object(2)).await.unwrap().blocks;
        assert_eq!(blocks, done);
        store.destroy(vec![object(1)], None).await.unwrap();
        store.sync().await.unwrap();
        assert_eq!(store.failure(), None);
        host.host().set_disk_capacity(256 << 20);
        store.update(object(3), put(&rt, 0, 64, 1)).await.unwrap();
        store.close().await.unwrap();
        let store = open(&rt).await;
        assert_eq!(store.attr(object(2)).await.unwrap().blocks, blocks);
    });
}

#[test]
fn a_range_that_was_reserved_counts_once_when_it_is_written() {
    let world = TestWorld::new(5, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(&rt, 0).await;
        let reserve = Update { reserves: vec![BlockRange::new(0, 300)], ..Update::default() };
        assert_eq!(store.update(object(1), reserve).await.unwrap().attr.blocks, 300);
        assert_eq!(store.update(object(1), put(&rt, 10, 200, 1)).await.unwrap().attr.blocks, 300);
        assert_eq!(store.update(object(1), put(&rt, 290, 20, 1)).await.unwrap().attr.blocks, 310);
        store.close().await.unwrap();
        assert_eq!(open(&rt).await.attr(object(1)).await.unwrap().blocks, 310);
    });
}

#[test]
fn what_is_promised_has_space_ahead_of_the_writes_and_gives_it_back_when_it_is_not_promised_any_more() {
    const MIB: u64 = 1 << 20;
    let world = TestWorld::new(5, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(&rt, 1 << 30).await;
        let settle = async || rt.sleep(Duration::from_secs(2)).await;
        settle().await;
        let before = store.space().ready;
        assert!(before < 4 * MIB, "{before}");
        store.promised(20 * MIB);
        settle().await;
        let ready = store.space().ready;
        assert!((21 * MIB..24 * MIB).contains(&ready), "{ready}");
        // Of a promise beyond a sixteenth of the store only so much.
        store.promised(1 << 29);
        settle().await;
        let ready = store.space().ready;
        assert!((64 * MIB..68 * MIB).contains(&ready), "{ready}");
        store.promised(0);
        store.update(object(1), put(&rt, 0, 1, 1)).await.unwrap();
        store.sync().await.unwrap();
        settle().await;
        let ready = store.space().ready;
        assert!(ready < 4 * MIB, "{ready}");
    });
}

#[test]
fn a_data_file_that_is_as_long_as_its_file_system_allows_is_a_full_store_that_goes_on() {
    let world = TestWorld::new(6, 64 << 20);
    let rt = world.rt();
    world.host().set_disk_capacity(1 << 30);
    world.host().set_file_max(24 << 20);
    world.run(async move {
        let store = make(&rt, 0).await;
        let blocks = fill(&rt, &store).await;
        assert!((16 << 20..24 << 20).contains(&(blocks * 4096)), "{blocks} blocks");
        assert_eq!(store.update(object(2), put(&rt, 0, 64, 3)).await, Err(FsError::NoSpace));
        assert_eq!(store.failure(), None, "an end of growth is no failure");
        store.update(object(1), put(&rt, 0, 64, 2)).await.unwrap();
        store.close().await.unwrap();
        let store = open(&rt).await;
        store.update(object(1), put(&rt, 0, blocks, 4)).await.unwrap();
        all_are(&store, blocks, 4).await;
        // What was removed is used again.
        store.destroy(vec![object(1)], None).await.unwrap();
        store.sync().await.unwrap();
        store.update(object(2), put(&rt, 0, blocks / 2, 5)).await.unwrap();
        assert_eq!((store.failure(), store.verify(object(2)).await), (None, Ok(Vec::new())));
    });
}

#[test]
fn a_range_that_has_space_already_is_reserved_in_a_full_store() {
    let world = TestWorld::new(7, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(&rt, 16 << 20).await;
        let blocks = fill(&rt, &store).await;
        let reserve = |first, end| Update { reserves: vec![BlockRange::new(first, end)], ..Update::default() };
        assert_eq!(store.update(object(1), reserve(0, blocks)).await.unwrap().attr.blocks, blocks);
        assert_eq!(store.update(object(1), reserve(0, 2 * blocks)).await, Err(FsError::NoSpace));
        // Some blocks come free with a commit: there is room for the hole, though not for all of the range.
        let hole = Update { drops: vec![BlockRange::new(8, 40)], ..Update::default() };
        store.update(object(1), hole).await.unwrap();
        assert_eq!(store.update(object(1), reserve(0, blocks)).await.unwrap().attr.blocks, blocks);
    });
}

#[test]
fn blocks_of_an_object_come_free_while_another_one_of_the_same_removal_is_looked_up() {
    let world = TestWorld::new(8, 64 << 20);
    let (rt, host) = (world.rt(), world.clone());
    world.run(async move {
        let store = make(&rt, 16 << 20).await;
        store.update(object(2), put(&rt, 0, 256, 1)).await.unwrap();
        store.update(object(3), put(&rt, 0, 256, 1)).await.unwrap();
        fill(&rt, &store).await;
        store.close().await.unwrap();
        let store = open(&rt).await;
        store.read(object(2), BlockRange::new(0, 1)).await.unwrap();
        // What is looked up takes its time.
        host.host().set_disk_slowness(1000);
        let (theirs, other) = (store.clone(), store.clone());
        let removal = async move { theirs.destroy(vec![object(2), object(1)], None).await.map(drop) };
        let data = put(&rt, 0, 256, 2);
        let overwrite = async move { other.update(object(3), data).await.map(drop) };
        let both: Vec<rt::LocalFuture<Result<(), FsError>>> = vec![Box::pin(removal), Box::pin(overwrite)];
        assert_eq!(rt::sync::join_all(both).await, [Ok(()), Ok(())]);
    });
}
