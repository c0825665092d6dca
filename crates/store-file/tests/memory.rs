//! What a store keeps in memory of its objects has its limits whoever brings it there, and nobody waits for memory without end.
#![allow(clippy::unwrap_used)]
mod support;

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use frames::Bulk;
use oss::store::{BlockRange, BlockRun, ObjectStore, Promise, SizeRule, StoreIdentity, Update};
use ptlrpc::CallOptions;
use rt::Rt;
use simworld::TestWorld;
use store_file::{FileStore, FileStoreConfig, MkfsOptions, mkfs};
use types::{ClientId, Duration, Extent, FsError, ObjectId, OstIndex, Rng, WallTime};
use wire::Op;
use wire::ost::{Advice, AdviseRequest, AdvisedReply, AdvisedRequest, IoOwner, ReadRequest};

const DIR: &str = "/ost0";
/// Blocks of 64 MiB: what a store loads and lets go together.
const CHUNK: u64 = 1 << 14;

fn little() -> FileStoreConfig {
    FileStoreConfig { objects_max: 8, mapped_blocks_max: 64, ..plenty() }
}
fn plenty() -> FileStoreConfig {
    FileStoreConfig { grow_bytes: 1 << 20, db_cache_bytes: 1 << 20, reserve_bytes: 0, ..FileStoreConfig::default() }
}

async fn make(rt: &Rt, capacity_bytes: u64, objects: u32) -> Rc<FileStore> {
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    mkfs(rt, Path::new(DIR), &MkfsOptions { identity, capacity_bytes, lost_through: 0 }).await.unwrap();
    let store = open(rt, plenty()).await;
    store.create(object(1).0.seq, objects).await.unwrap();
    store
}
async fn open(rt: &Rt, config: FileStoreConfig) -> Rc<FileStore> {
    Rc::new(FileStore::open(rt.clone(), Path::new(DIR), Some(7), config, None).await.unwrap())
}
/// The store after a restart: nothing of its objects is in memory.
async fn again(rt: &Rt, store: Rc<FileStore>, config: FileStoreConfig) -> Rc<FileStore> {
    store.close().await.unwrap();
    drop(store);
    open(rt, config).await
}

fn object(oid: u32) -> ObjectId {
    ObjectId::new(OstIndex(0), oid)
}
fn put(rt: &Rt, first: u64, count: u64, byte: u8) -> Update {
    let mut bulk = Bulk::alloc(rt.frames(), count as usize * 4096).unwrap();
    (0..count as usize).for_each(|i| bulk.copy_in(i * 4096, &[byte; 4096]));
    let crcs = bulk.slices().flat_map(|s| s.chunks(4096)).map(wire::crc32c).collect();
    let size = SizeRule::AtLeast((first + count) * 4096);
    Update { puts: vec![BlockRun { first, bulk, crcs }], size, ..Update::default() }
}
fn reserve(first: u64, count: u64) -> Update {
    let size = SizeRule::AtLeast((first + count) * 4096);
    Update { reserves: vec![BlockRange { first, count }], size, ..Update::default() }
}
fn size(blocks: u64) -> Update {
    Update { size: SizeRule::Exactly(blocks * 4096), ..Update::default() }
}

#[test]
fn what_is_only_read_leaves_memory_when_the_limits_are_reached() {
    let world = TestWorld::new(1, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(&rt, 0, 200).await;
        for oid in 1..=200 {
            store.update(object(oid), put(&rt, 0, 3, oid as u8)).await.unwrap();
        }
        let store = again(&rt, store, little()).await;
        for oid in 1..=200 {
            let read = store.read(object(oid), BlockRange::new(0, 3)).await.unwrap();
            assert!(read.bulk.slices().all(|s| s.iter().all(|b| *b == oid as u8)));
            let held = store.in_memory();
            assert!(held.objects <= 8 && held.blocks <= 64, "{held:?} after object {oid}");
        }
        for oid in 1..=200 {
            assert_eq!(store.seek(object(oid), 0, false).await, Ok(Some(3)));
            let held = store.in_memory();
            assert!(held.objects <= 8 && held.blocks <= 64, "{held:?} after object {oid}");
        }
        assert!(store.in_memory().shrinks > 10, "the limits are reached and counted");
    });
}

#[test]
fn readers_of_more_than_memory_holds_do_not_take_from_each_other_what_they_load() {
    let world = TestWorld::new(2, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(&rt, 0, 40).await;
        for oid in 1..=40 {
            store.update(object(oid), put(&rt, 0, 30, oid as u8)).await.unwrap();
        }
        let store = again(&rt, store, little()).await;
        let readers = (0..16u64).map(|reader| {
            let store = store.clone();
            async move {
                let mut rng = Rng::new(reader);
                for _ in 0..40 {
                    let oid = 1 + rng.below(40) as u32;
                    let read = store.read(object(oid), BlockRange::new(0, 30)).await.unwrap();
                    assert!(read.bulk.slices().all(|s| s.iter().all(|b| *b == oid as u8)));
                }
            }
        });
        rt::sync::join_all(readers.collect()).await;
        store.read(object(1), BlockRange::new(0, 1)).await.unwrap();
        let held = store.in_memory();
        assert!(held.objects <= 8 && held.blocks <= 64, "{held:?}");
    });
}

#[test]
fn an_object_is_loaded_while_others_are_removed_all_the_time() {
    let world = TestWorld::new(3, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(&rt, 0, 2000).await;
        store.update(object(1), reserve(0, 4 * CHUNK)).await.unwrap();
        store.update(object(1), put(&rt, CHUNK, 8, 1)).await.unwrap();
        let store = again(&rt, store, plenty()).await;
        for oid in 2..=2000 {
            store.attr(object(oid)).await.unwrap();
        }
        let (removed, over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (theirs, counts, ends, clock) = (store.clone(), removed.clone(), over.clone(), rt.clone());
        rt.spawn(async move {
            for oid in 2..=2000 {
                if ends.get() {
                    return;
                }
                theirs.destroy(vec![object(oid)], None).await.unwrap();
                counts.set(oid);
                // Far less than what a worker needs to begin.
                clock.sleep(Duration::from_nanos(500)).await;
            }
        });
        assert_eq!(store.allocated(object(1), BlockRange::new(CHUNK, CHUNK + 8)).await, Ok(8));
        over.set(true);
        let removed = removed.get();
        assert!((3..2000).contains(&removed), "the map was there when object {removed} was removed");
    });
}

/// Far more chunks than a load notes one by one, and not all that an object has.
const WIDE: BlockRange = BlockRange { first: 0, count: 1600 * CHUNK };

#[test]
fn what_is_committed_behind_a_range_while_all_behind_its_beginning_is_read_stays() {
    let world = TestWorld::new(10, 64 << 20);
    let rt = world.rt();
    let config = FileStoreConfig { db_cache_bytes: 1 << 16, ..plenty() };
    let (made, clock, small) = (rt.clone(), rt.clone(), config.clone());
    let store = world.run(async move {
        let store = make(&made, 0, 2).await;
        // Far more rows than the database keeps in memory.
        for part in 0..40 {
            let first = |i: u64| part * 500 + 2 * i;
            let reserves = (0..200).map(|i| BlockRange { first: first(i), count: 1 }).collect();
            store.update(object(1), Update { reserves, ..Update::default() }).await.unwrap();
            store.sync().await.unwrap();
        }
        store.update(object(1), reserve(2 * CHUNK, CHUNK + 1)).await.unwrap();
        // What is read has room, but not together with what is written meanwhile.
        let store = again(&made, store, FileStoreConfig { mapped_blocks_max: 30_000, ..small }).await;
        store.attr(object(1)).await.unwrap();
        store
    });
    world.host().set_disk_slowness(1000);
    let (cut, over) = (store.clone(), Rc::new(Cell::new(false)));
    let ends = over.clone();
    rt.spawn(async move {
        cut.update(object(1), Update { drops: vec![WIDE], ..Update::default() }).await.unwrap();
        ends.set(true);
    });
    // Its rows are read, and it will take a while until they are there.
    world.run(async move { clock.sleep(Duration::from_millis(1)).await });
    world.host().set_disk_slowness(1);
    // Each before all others: what leaves memory then does not tell that there is anything behind.
    let places = [8000, 7000, 6000].map(|chunk| chunk * CHUNK);
    world.run(async move {
        for place in places {
            let reserves = vec![BlockRange { first: place + CHUNK, count: 2 * CHUNK }];
            store.update(object(1), Update { reserves, ..put(&rt, place, 60, 7) }).await.unwrap();
            store.sync().await.unwrap();
        }
        assert!(!over.get(), "the map is still on its way");
        let check = async |store: &FileStore| {
            for place in places {
                let read = store.read(object(1), BlockRange { first: place, count: 60 }).await.unwrap();
                assert!(read.bulk.slices().all(|s| s.iter().all(|b| *b == 7)), "what was written at {place} is gone");
            }
        };
        while !over.get() {
            store.sync().await.unwrap();
            rt.sleep(Duration::from_millis(100)).await;
        }
        check(&store).await;
        let store = again(&rt, store, FileStoreConfig { objects_max: 8, mapped_blocks_max: 64, ..config }).await;
        check(&store).await;
        store.destroy(vec![object(1)], None).await.unwrap();
        store.close().await.unwrap();
        let found = store_file::check(&rt, Path::new(DIR), false, 1 << 20).await.unwrap();
        assert!(found.faults.is_empty(), "{:?}", found.faults);
    });
}

#[test]
fn a_range_of_which_more_is_read_than_memory_holds_is_loaded_once() {
    let world = TestWorld::new(11, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(&rt, 0, 2).await;
        store.update(object(1), reserve(0, CHUNK + 1)).await.unwrap();
        for i in 1..100 {
            store.update(object(1), reserve(i * 50 * CHUNK, 1)).await.unwrap();
        }
        let store = again(&rt, store, little()).await;
        let counted = rt.timeout(Duration::from_millis(200), store.allocated(object(1), WIDE)).await;
        assert_eq!(counted.expect("it is loaded again and again"), Ok(CHUNK + 1 + 31));
        let hole = store.update(object(1), Update { drops: vec![WIDE], ..Update::default() });
        let left = rt.timeout(Duration::from_millis(200), hole).await.expect("it is loaded again and again").unwrap();
        assert_eq!(left.attr.blocks, 68);
        store.attr(object(2)).await.unwrap();
        store.sync().await.unwrap();
        let held = store.in_memory().blocks;
        assert!(held <= 64, "{held} blocks stay in memory");
    });
}

#[test]
fn a_cut_piece_by_piece_loads_what_is_cut_and_not_what_lies_before() {
    let world = TestWorld::new(4, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(&rt, 0, 2).await;
        for chunk in 0..20 {
            store.update(object(1), reserve(chunk * CHUNK, 2000)).await.unwrap();
        }
        let store = again(&rt, store, plenty()).await;
        for left in [17, 14, 11] {
            let attr = store.update(object(1), size(left * CHUNK)).await.unwrap().attr;
            assert_eq!(attr.blocks, left * 2000);
            let held = store.in_memory().blocks;
            assert!(held < 1000, "{held} blocks are in memory with {left} chunks left");
        }
        // A hole in the middle loads what it touches.
        let drops = vec![BlockRange::new(2 * CHUNK, 11 * CHUNK - 1)];
        store.update(object(1), Update { drops, ..Update::default() }).await.unwrap();
        let store = again(&rt, store, little()).await;
        assert_eq!(store.attr(object(1)).await.unwrap().blocks, 4000);
        store.destroy(vec![object(1)], None).await.unwrap();
        store.sync().await.unwrap();
        assert_eq!(store.attr(object(1)).await, Err(FsError::NotFound));
        store.close().await.unwrap();
        let found = store_file::check(&rt, Path::new(DIR), false, 1 << 20).await.unwrap();
        assert!(found.faults.is_empty(), "{:?}", found.faults);
    });
}

#[test]
fn a_seek_walks_a_long_object_without_holding_its_map() {
    let world = TestWorld::new(5, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(&rt, 0, 2).await;
        // Far apart, across many chunks, and a long stretch of data at the end.
        let starts = [5, CHUNK - 1, 30 * CHUNK, 5000 * CHUNK + 7, 1 << 45];
        for at in starts {
            store.update(object(1), put(&rt, at, 3, 1)).await.unwrap();
        }
        store.update(object(1), reserve(40 * CHUNK, 20 * CHUNK)).await.unwrap();
        let mut store = again(&rt, store, little()).await;
        for round in 0..2 {
            let mut at = 0;
            for start in starts {
                assert_eq!(store.seek(object(1), at, true).await, Ok(Some(start)), "round {round}");
                assert_eq!(store.seek(object(1), start + 1, true).await, Ok(Some(start + 1)));
                assert_eq!(store.seek(object(1), start, false).await, Ok(Some(start + 3)));
                at = start + 3;
                assert_eq!(store.seek(object(1), at, false).await, Ok(Some(at)));
            }
            assert_eq!(store.seek(object(1), at, true).await, Ok(None));
            store.attr(object(2)).await.unwrap();
            // What no commit has taken yet is found, too.
            store.update(object(2), put(&rt, 9000 * CHUNK, 1, 2)).await.unwrap();
            assert_eq!(store.seek(object(2), 0, true).await, Ok(Some(9000 * CHUNK)));
            store.update(object(2), size(0)).await.unwrap();
            assert_eq!(store.seek(object(2), 0, true).await, Ok(None));
            store = again(&rt, store, plenty()).await;
        }
        let store = again(&rt, store, plenty()).await;
        store.seek(object(1), 3, true).await.unwrap();
        assert!(store.in_memory().blocks < 1000, "{:?}", store.in_memory());
    });
}

#[test]
fn a_write_into_a_partly_reserved_range_goes_where_there_is_room_for_the_rest_of_it() {
    let world = TestWorld::new(6, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(&rt, 16 << 20, 3).await;
        store.update(object(2), reserve(0, 100)).await.unwrap();
        let mut at = 0;
        for step in [64, 1] {
            while store.update(object(1), put(&rt, at, step, 1)).await.is_ok() {
                at += step;
            }
        }
        store.sync().await.unwrap();
        // 40 blocks come free with a commit.
        let hole = Update { drops: vec![BlockRange::new(8, 48)], ..Update::default() };
        store.update(object(1), hole).await.unwrap();
        assert_eq!(store.update(object(2), put(&rt, 0, 108, 2)).await.unwrap().attr.blocks, 108);
    });
}

#[test]
fn a_promise_of_a_size_that_no_object_has_is_refused_and_the_store_opens_again() {
    let world = TestWorld::new(7, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(&rt, 0, 2).await;
        let promise = |size| Some(Promise { client: ClientId(3), number: 1, size });
        assert_eq!(store.set_promise(object(1), promise(1 << 63)).await, Err(FsError::FileTooBig));
        store.set_promise(object(1), promise(oss::store::OBJECT_BYTES_MAX)).await.unwrap();
        store.set_promise(object(2), promise(wire::ost::REMOVED)).await.unwrap();
        let store = again(&rt, store, plenty()).await;
        assert_eq!(store.promises().len(), 2);
    });
}

#[test]
fn reads_of_a_byte_in_each_of_many_blocks_end_though_they_need_more_memory_together_than_there_is() {
    const BLOCKS: u64 = 2048;
    let world = support::made(8);
    let rt = world.rt();
    world.run(async move {
        let running = support::start(&rt, 1, Duration::from_millis(100)).await;
        running.store.create(support::object().0.seq, 1).await.unwrap();
        for first in (0..2 * BLOCKS).step_by(64) {
            running.store.update(support::object(), put(&rt, first, 64, 7)).await.unwrap();
        }
        let client = support::join(&rt, ClientId(1), Rc::new(Silent)).await;
        let extents: Vec<Extent> = (0..BLOCKS).map(|i| Extent::at(2 * i * 4096 + 5, 1)).collect();
        let reads = (0..16).map(|_| {
            let (client, extents) = (client.clone(), extents.clone());
            async move {
                let ask = ReadRequest { object: support::object(), extents, ..ReadRequest::default() };
                let ask = wire::encode(&ask);
                client.call(Op::OstRead, ask, Bulk::new(), CallOptions::default()).await.map(|r| r.bulk.to_vec())
            }
        });
        let all = rt.timeout(Duration::from_secs(600), rt::sync::join_all(reads.collect())).await;
        let all = all.expect("they wait for each other's memory");
        assert!(all.iter().all(|r| r.as_ref().is_ok_and(|bytes| *bytes == [7; BLOCKS as usize])));
        // Of far more blocks none is begun.
        let extents: Vec<Extent> = (0..40_000u64).map(|i| Extent::at(2 * i * 4096, 1)).collect();
        let ask = ReadRequest { object: support::object(), extents, ..ReadRequest::default() };
        let refused = client.call(Op::OstRead, wire::encode(&ask), Bulk::new(), CallOptions::default()).await;
        assert_eq!(refused.map(|_| ()), Err(FsError::TooBig));
    });
}

#[test]
fn advised_bytes_for_which_there_is_no_memory_are_fetched_when_there_is_some() {
    let world = support::made(9);
    let rt = world.rt();
    world.run(async move {
        let running = support::start(&rt, 1, Duration::from_millis(100)).await;
        running.store.create(support::object().0.seq, 1).await.unwrap();
        running.store.update(support::object(), put(&rt, 0, 64, 7)).await.unwrap();
        let client = support::join(&rt, ClientId(1), Rc::new(Silent)).await;
        let mut taken: Vec<_> = std::iter::from_fn(|| rt.frames().alloc(1)).collect();
        // Commits need a few.
        taken.truncate(taken.len() - 8);
        let (object, extent, since) = (support::object(), Extent::ALL, WallTime(100));
        let (advice, owner) = (Advice::High, IoOwner::default());
        let ask = AdviseRequest { object, extent, advice, background: false, owner, since };
        client.ask::<_, ()>(Op::OstAdvise, &ask).await.unwrap();
        let told = async || {
            let reply: AdvisedReply = client.ask(Op::OstAdvised, &AdvisedRequest { object }).await.unwrap();
            reply.ranges[0].clone()
        };
        rt.sleep(Duration::from_secs(60)).await;
        let row = told().await;
        assert!(row.to_fetch == 64 << 12 && row.fetched == 0 && row.error == 0, "{row:?}");
        drop(taken);
        rt.sleep(Duration::from_secs(60)).await;
        let row = told().await;
        assert_eq!((row.fetched, row.ram_resident, row.error), (64 << 12, 64 << 12, 0));
    });
}

struct Silent;
impl ptlrpc::Callbacks for Silent {
    fn on_callback(self: Rc<Self>, _op: Op, _body: Vec<u8>) -> rt::LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(async { Err(FsError::NotSupported) })
    }
}
