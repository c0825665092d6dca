//! The file store against the conformance suite, power losses, damage and full disks.
#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use frames::{Bulk, FramePool};
use oss::store::conformance::{Change, Model, ModelObject, compare, fill, one_by_one, space_is_exact};
use oss::store::{
    BLOCK_BYTES, BlockRange, ObjectStore, Owner, OwnerRule, Promise, SizeRule, StoreIdentity, Update, Usages,
};
use rt::Rt;
use simworld::{DiskFault, TestWorld};
use store_file::{FileStore, FileStoreConfig, MkfsOptions, OpenError, mkfs};
use types::{ClientId, Duration, FsError, ObjectId, OstIndex, Rng, Transno};
use wire::quota::QuotaKind;

const DIR: &str = "/ost0";

fn options(capacity_bytes: u64) -> MkfsOptions {
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    MkfsOptions { identity, capacity_bytes, lost_through: 0 }
}

fn small() -> FileStoreConfig {
    FileStoreConfig { grow_bytes: 1 << 20, db_cache_bytes: 1 << 20, ..FileStoreConfig::default() }
}

async fn make(rt: Rt, capacity_bytes: u64, config: FileStoreConfig) -> Rc<dyn ObjectStore> {
    mkfs(&rt, Path::new(DIR), &options(capacity_bytes)).await.unwrap();
    open(rt, config).await
}

async fn open(rt: Rt, config: FileStoreConfig) -> Rc<dyn ObjectStore> {
    Rc::new(FileStore::open(rt, Path::new(DIR), Some(7), config, None).await.unwrap())
}

fn object(oid: u32) -> ObjectId {
    ObjectId::new(OstIndex(0), oid)
}

#[test]
fn the_file_store_does_what_the_model_does() {
    let world = TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(rt.clone(), 0, small()).await;
        one_by_one(rt, store, 5, 600).await;
    });
}

#[test]
fn a_store_that_keeps_almost_nothing_in_memory_does_the_same() {
    let world = TestWorld::new(2, 16 << 20);
    let rt = world.rt();
    let config = FileStoreConfig {
        mapped_blocks_max: 8,
        objects_max: 1,
        commit_interval: Duration::from_micros(300),
        ..small()
    };
    world.run(async move {
        let store = make(rt.clone(), 0, config).await;
        one_by_one(rt, store, 6, 400).await;
    });
}

#[test]
fn counted_space_is_there_to_the_last_block_and_comes_back() {
    let world = TestWorld::new(3, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(rt.clone(), 16 << 20, small()).await;
        space_is_exact(rt, store).await;
    });
}

#[test]
fn a_file_system_that_is_full_is_a_full_store_and_not_a_failed_one() {
    let world = TestWorld::new(3, 16 << 20);
    let rt = world.rt();
    world.host().set_disk_capacity(6 << 20);
    world.run(async move {
        let config = FileStoreConfig { reserve_bytes: 2 << 20, ..small() };
        let store = make(rt.clone(), 0, config).await;
        store.create(object(1).0.seq, 1).await.unwrap();
        let (mut rng, mut failed) = (Rng::new(1), 0);
        for step in 1..400 {
            match store.update(object(1), Change::random(&mut rng, 1, step).update(&rt)).await {
                Err(FsError::NoSpace) => failed += 1,
                other => drop(other.unwrap()),
            }
        }
        let _ = failed;
        let update = Update { size: SizeRule::Exactly(0), ..Update::default() };
        store.update(object(1), update).await.unwrap();
        store.sync().await.unwrap();
        assert_eq!(store.failure(), None);
        let free = store.space().free;
        assert!(free > 1 << 20 && free < 6 << 20, "{free}");
    });
}

/// Changes many objects at once, remembering what each transaction made of the objects, until the power fails.
async fn work_until_power_fails(rt: Rt, store: Rc<dyn ObjectStore>, seed: u64, log: Rc<std::cell::RefCell<Log>>) {
    let tasks = (0..3u64).map(|t| {
        let (rt, store, log) = (rt.clone(), store.clone(), log.clone());
        async move {
            let mut rng = Rng::new(seed * 31 + t);
            for step in 1..40u32 {
                let mut change = Change::random(&mut rng, 1, step * 3 + t as u32);
                change.object = object(1 + t as u32);
                if step % 20 == 0 && t == 2 {
                    if let Ok(transno) = store.destroy(vec![change.object], None).await {
                        log.borrow_mut().changes.insert(transno, None);
                    }
                    return;
                }
                let owner = Owner { uid: rng.below(3) as u32, gid: rng.below(2) as u32, project: rng.below(2) as u32 };
                let owner = [OwnerRule::Keep, OwnerRule::Keep, OwnerRule::IfNone(owner), OwnerRule::Is(owner)]
                    [rng.below(4) as usize];
                let update = Update { owner, ..change.update(&rt) };
                log.borrow_mut().begun.insert(change.object, change.clone());
                let applied = match store.update(change.object, update).await {
                    Ok(applied) => applied,
                    Err(FsError::NoSpace) => {
                        log.borrow_mut().refuse(change);
                        continue;
                    }
                    Err(_) => return,
                };
                log.borrow_mut().answer(applied.transno, change);
                if rng.chance(0.2) {
                    if store.sync().await.is_err() {
                        return;
                    }
                    let mut log = log.borrow_mut();
                    log.synced = log.synced.max(applied.transno);
                }
            }
        }
    });
    rt::sync::join_all(tasks.collect()).await;
}

#[derive(Default)]
struct Log {
    /// What each transaction did; `None`: destroyed object 3.
    changes: BTreeMap<Transno, Option<Change>>,
    /// Changes of objects that were not answered yet.
    begun: BTreeMap<ObjectId, Change>,
    /// Changes that were refused for want of space, with what was answered of the object before.
    refused: Vec<(Transno, Change)>,
    synced: Transno,
}

impl Log {
    /// The objects after every transaction up to `last`.
    fn model(&self, last: Transno) -> Model {
        let mut model = Model::default();
        for oid in 1..=3 {
            model.objects.insert(object(oid), ModelObject::default());
        }
        for change in self.changes.range(..=last).map(|(_, c)| c) {
            match change {
                Some(c) => model.apply(c),
                None => drop(model.objects.remove(&object(3))),
            }
        }
        model
    }
    /// A change was carried out.
    fn answer(&mut self, transno: Transno, change: Change) {
        self.begun.remove(&change.object);
        self.changes.insert(transno, Some(change));
    }
    /// A change was refused.
    fn refuse(&mut self, change: Change) {
        self.begun.remove(&change.object);
        let of = |c: &Option<Change>| c.as_ref().is_some_and(|c| c.object == change.object);
        let after = self.changes.iter().rev().find(|(_, c)| of(c)).map_or(Transno(0), |(transno, _)| *transno);
        self.refused.push((after, change));
    }
    /// The change of an object that came behind these transactions, if it was begun.
    fn next(&self, object: ObjectId, last: Transno) -> Option<&Change> {
        let behind = self.changes.iter().filter(|(transno, _)| **transno > last);
        let mut behind = behind.filter_map(|(_, c)| c.as_ref()).filter(|c| c.object == object);
        behind.next().or_else(|| self.begun.get(&object))
    }
    /// What blocks of an object may hold of changes that were refused, after every transaction up to `last`.
    fn left_by_refused(&self, object: ObjectId, last: Transno) -> BTreeMap<u64, u32> {
        let answered = self.changes.range(..=last).filter_map(|(transno, c)| Some((*transno, false, c.as_ref()?)));
        let refused = self.refused.iter().filter(|(after, _)| *after <= last).map(|(after, c)| (*after, true, c));
        let mut all: Vec<(Transno, bool, &Change)> = answered.chain(refused).filter(|c| c.2.object == object).collect();
        all.sort_by_key(|(transno, refused, _)| (*transno, *refused));
        let mut left = BTreeMap::new();
        for (_, refused, c) in all {
            let puts = c.puts.iter().flat_map(|(r, version)| (r.first..r.end()).map(move |block| (block, *version)));
            if refused {
                left.extend(puts.filter(|_| is_overwrite(c)));
            } else {
                puts.for_each(|(block, _)| left.retain(|b, _| *b != block));
                c.drops.iter().for_each(|r| left.retain(|block, _| *block < r.first || *block >= r.end()));
                if let SizeRule::Exactly(size) = c.size {
                    left.split_off(&size.div_ceil(BLOCK_BYTES));
                }
            }
        }
        left
    }
}

/// What only overwrites blocks of a nearly full store is done in parts, each a transaction of its own: the first ones may be there alone.
fn is_overwrite(change: &Change) -> bool {
    change.drops.is_empty() && change.reserves.is_empty()
}

async fn holds(store: &Rc<dyn ObjectStore>, object: ObjectId, block: u64, version: u32) -> bool {
    let mut page = vec![0; BLOCK_BYTES as usize];
    fill(object, block, version, &mut page);
    let read = store.read(object, BlockRange::new(block, block + 1)).await;
    read.unwrap().bulk.to_vec() == page
}

/// Puts into `want` what the store holds of changes that were done in part.
async fn note_parts(store: &Rc<dyn ObjectStore>, object: ObjectId, want: &mut ModelObject, log: &Log, last: Transno) {
    for (block, version) in log.left_by_refused(object, last) {
        if want.blocks.contains_key(&block) && holds(store, object, block, version).await {
            want.blocks.insert(block, Some(version));
        }
    }
    let Some(next) = log.next(object, last).filter(|next| is_overwrite(next)) else { return };
    let mut blocks = next.puts.iter().flat_map(|(r, version)| (r.first..r.end()).map(move |block| (block, *version)));
    if !blocks.clone().all(|(block, _)| want.blocks.contains_key(&block)) {
        return;
    }
    while let Some((block, version)) = blocks.next() {
        let is_last = blocks.clone().next().is_none();
        if is_last || !holds(store, object, block, version).await {
            return;
        }
        want.blocks.insert(block, Some(version));
    }
}

/// Kept counts are those of the objects that are there.
async fn counts_are_right(store: &Rc<dyn ObjectStore>, what: &str) {
    let objects = store.objects(ObjectId::default(), 100).await.unwrap();
    let found = Usages::of_objects(objects.iter().map(|o| &o.attr));
    for (kind, id) in QuotaKind::ALL.into_iter().flat_map(|kind| (0..3).map(move |id| (kind, id))) {
        assert_eq!(store.usage((kind, id)), found.of((kind, id)), "{what}: {} {id}", kind.name());
    }
}

/// One life: works, loses power after `stop` disk steps, comes back; what is there must be exactly one prefix of the
/// transactions, at least what was synced. Answers whether the power failed at all.
/// On a tight disk every free block is used again as soon as it may be.
fn one_power_loss(pool: FramePool, seed: u64, stop: u64, tight: bool) -> bool {
    let world = TestWorld::with_pool(seed, pool);
    let rt = world.rt();
    let config = move || {
        let (grow_bytes, reserve_bytes) = if tight { (65_536, 0) } else { (1 << 20, 0) };
        FileStoreConfig { commit_interval: Duration::from_micros(400), grow_bytes, reserve_bytes, ..small() }
    };
    let first = rt.clone();
    world.run(async move {
        let store = make(first, 0, config()).await;
        store.create(object(1).0.seq, 3).await.unwrap();
        store.session_open(ClientId(5), 77, types::Origin::default()).await.unwrap();
        store.close().await.unwrap();
    });
    if tight {
        world.host().set_disk_capacity(world.host().disk_used() + 256 * 4096);
    }
    let log = Rc::new(std::cell::RefCell::new(Log::default()));
    world.host().stop_disk_after(stop);
    let (rt2, log2) = (rt.clone(), log.clone());
    world.run(async move {
        let Ok(store) = FileStore::open(rt2.clone(), Path::new(DIR), Some(7), config(), None).await else { return };
        let store: Rc<dyn ObjectStore> = Rc::new(store);
        work_until_power_fails(rt2, store.clone(), seed, log2).await;
        let _ = store.close().await;
    });
    let failed = world.host().disk_is_off();
    let next = world.power_cycle(seed ^ stop);
    let rt = next.rt();
    next.run(async move {
        let store = open(rt.clone(), config()).await;
        let committed = store.last_committed();
        let log = log.take();
        assert!(
            committed >= log.synced,
            "seed {seed} stop {stop}: {committed} is committed, {} was synced",
            log.synced
        );
        let known = log.changes.keys().next_back().copied().unwrap_or_default();
        // The last transaction may have been committed before its task could note it.
        if committed > known {
            return;
        }
        let mut model = log.model(committed);
        for object in (1..=3).map(object) {
            let mut want = model.objects.remove(&object);
            if let Some(want) = want.as_mut().filter(|_| tight) {
                note_parts(&store, object, want, &log, committed).await;
            }
            compare(&store, object, want.as_ref(), &format!("seed {seed} stop {stop}")).await;
        }
        counts_are_right(&store, &format!("seed {seed} stop {stop}")).await;
        assert_eq!(store.sessions(), [(ClientId(5), 77)]);
        assert_eq!(store.last_object(object(1).0.seq), 3);
        // And it goes on.
        store.create(object(4).0.seq, 4).await.unwrap();
        let change = Change { object: object(4), ..Change::random(&mut Rng::new(9), 1, 7) };
        match store.update(object(4), change.update(&rt)).await {
            Err(FsError::NoSpace) if tight => {}
            other => drop(other.unwrap()),
        }
        store.close().await.unwrap();
    });
    failed
}

#[test]
fn a_power_loss_after_any_disk_step_leaves_exactly_the_committed_transactions() {
    let pool = FramePool::new(24 << 20);
    for seed in 1..=3 {
        let mut stop = 0;
        while one_power_loss(pool, seed, stop, seed > 1) {
            stop += if stop < 40 { 1 } else { 1 + stop / 16 };
        }
        assert!(stop > 100, "the work ended after {stop} steps");
    }
}

#[test]
fn a_flipped_bit_is_an_error_that_names_the_block_and_never_data() {
    let world = TestWorld::new(4, 16 << 20);
    let rt = world.rt();
    let first = rt.clone();
    world.run(async move {
        let store = make(first.clone(), 0, small()).await;
        store.create(object(1).0.seq, 1).await.unwrap();
        let mut rng = Rng::new(3);
        let change = loop {
            let c = Change::random(&mut rng, 1, 1);
            if c.update(&first).puts.first().is_some_and(|p| p.crcs.len() > 5) {
                break c;
            }
        };
        store.update(object(1), change.update(&first)).await.unwrap();
        store.close().await.unwrap();
    });
    world.damage(&Path::new(DIR).join("data"), |bytes| bytes[3 * 4096 + 77] ^= 4);
    world.run(async move {
        let store = open(rt.clone(), small()).await;
        let bad = store.verify(object(1)).await.unwrap();
        assert_eq!(bad.len(), 1);
        let at = bad[0].block;
        assert_eq!(store.read(object(1), BlockRange::new(at, at + 1)).await.unwrap_err(), FsError::Corrupt);
        assert!(store.read(object(1), BlockRange::new(at + 1, at + 2)).await.is_ok());
    });
}

#[test]
fn a_store_of_another_cluster_a_newer_format_or_none_is_refused_with_the_reason() {
    let world = TestWorld::new(5, 16 << 20);
    let rt = world.rt();
    let start = rt.clone();
    world.run(async move {
        let dir = Path::new(DIR);
        let none = FileStore::open(start.clone(), dir, None, small(), None).await.err().unwrap();
        assert!(matches!(none, OpenError::Missing(_)) && none.to_string().contains("mkfs"));
        let bad = MkfsOptions { capacity_bytes: 1 << 20, ..options(0) };
        assert!(mkfs(&start, dir, &bad).await.unwrap_err().to_string().contains("16M"));
        let mut bad = options(0);
        bad.identity.fsname = "far-too-long".into();
        assert!(mkfs(&start, dir, &bad).await.unwrap_err().to_string().contains("far-too-long"));
        let data = start.open(&dir.join("data"), rt::OpenMode { create: true, direct: false }).unwrap();
        data.allocate(0, 4096).await.unwrap();
        let unfinished = FileStore::open(start.clone(), dir, None, small(), None).await.err().unwrap();
        assert!(matches!(unfinished, OpenError::Missing(_)), "an interrupted mkfs left no store: {unfinished}");
        mkfs(&start, dir, &options(0)).await.unwrap();
        assert!(matches!(mkfs(&start, dir, &options(0)).await.unwrap_err(), OpenError::Exists(_)));
        let other = FileStore::open(start.clone(), dir, Some(8), small(), None).await.err().unwrap();
        assert!(matches!(other, OpenError::OtherCluster { found: 7, wanted: 8, .. }));
    });
    world.damage(&Path::new(DIR).join("data"), |bytes| {
        bytes[8] = 99;
        let end = store_file::format::SUPERBLOCK_BYTES - 4;
        let crc = wire::crc32c(&bytes[..end]);
        bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    });
    world.run(async move {
        let newer = FileStore::open(rt.clone(), Path::new(DIR), None, small(), None).await.err().unwrap();
        assert!(matches!(newer, OpenError::NewerFormat { found: 99, known: 1, .. }), "{newer}");
    });
}

#[test]
fn data_and_database_of_different_stores_are_refused() {
    let world = TestWorld::new(5, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        mkfs(&rt, Path::new(DIR), &options(0)).await.unwrap();
        let mut other = options(0);
        other.identity.uuid = 10;
        mkfs(&rt, Path::new("/ost1"), &other).await.unwrap();
        let data = rt.open(Path::new("/ost1/data"), rt::OpenMode { create: false, direct: false }).unwrap();
        let (read, block) = data.read_at(0, rt.bulk(4096).await).await;
        assert_eq!(read.unwrap(), 4096);
        let mine = rt.open(Path::new("/ost0/data"), rt::OpenMode { create: false, direct: false }).unwrap();
        mine.write_at(0, block).await.unwrap();
        let mixed = FileStore::open(rt.clone(), Path::new(DIR), None, small(), None).await.err().unwrap();
        assert!(matches!(mixed, OpenError::Corrupt(..)) && mixed.to_string().contains("same store"), "{mixed}");
    });
}

#[test]
fn after_a_failed_write_everything_fails_until_it_is_opened_again() {
    let world = TestWorld::new(6, 16 << 20);
    let rt = world.rt();
    let start = rt.clone();
    let outer = world.clone();
    world.run(async move {
        let store = make(start.clone(), 0, small()).await;
        store.create(object(1).0.seq, 1).await.unwrap();
        outer.host().stop_disk_after(0);
        let change = Change::random(&mut Rng::new(2), 1, 1).update(&start);
        assert!(!change.puts.is_empty());
        assert_eq!(store.update(object(1), change).await, Err(FsError::Io));
        assert_eq!(store.failure(), Some(FsError::Io));
        assert_eq!(store.sync().await, Err(FsError::Io));
        assert_eq!(store.read(object(1), BlockRange::new(0, 1)).await.unwrap_err(), FsError::Io);
        assert_eq!(store.close().await, Err(FsError::Io));
    });
    let next = world.power_cycle(1);
    let rt = next.rt();
    next.run(async move {
        let store = open(rt, small()).await;
        assert_eq!(store.attr(object(1)).await.map(|a| a.size), Ok(0));
        assert_eq!(store.boot(), 2);
    });
}

/// Writes blocks of an object one after the other, a commit each, as long as the disk takes them.
async fn write_blocks(rt: &Rt, store: &Rc<dyn ObjectStore>, blocks: std::ops::Range<u64>) -> Result<(), FsError> {
    for at in blocks {
        store.update(object(1), Update { size: SizeRule::AtLeast((at + 1) * 4096), ..block(rt, at) }).await?;
        store.sync().await?;
    }
    Ok(())
}

#[test]
fn what_a_sync_that_failed_left_in_memory_is_not_built_on_after_a_restart_of_the_process() {
    for seed in 1..40 {
        let world = TestWorld::new(seed, 16 << 20);
        let (rt, outer) = (world.rt(), world.clone());
        world.run(async move {
            let store = make(rt.clone(), 0, small()).await;
            store.create(object(1).0.seq, 1).await.unwrap();
            write_blocks(&rt, &store, 0..4).await.unwrap();
            outer.host().set_disk_fault(DiskFault { syncs: true, times: 1, ..DiskFault::default() });
            // No data: it is the database's sync that fails.
            assert_eq!(store.create(object(1).0.seq, 500).await.and(store.sync().await), Err(FsError::Io));
        });
        for round in 0..2 {
            world.reboot();
            let (rt, outer) = (world.rt(), world.clone());
            world.run(async move {
                let store = open(rt.clone(), small()).await;
                write_blocks(&rt, &store, 20..22).await.unwrap();
                outer.host().set_disk_fault(DiskFault { syncs: true, times: 1, ..DiskFault::default() });
                let created = store.create(object(1).0.seq, 1000 + 500 * round).await;
                assert_eq!(created.and(store.sync().await), Err(FsError::Io));
            });
        }
        world.reboot();
        let rt = world.rt();
        world.run(async move { drop(open(rt, small()).await) });
        let next = world.power_cycle(seed);
        let rt = next.rt();
        next.run(async move {
            let store = open(rt, small()).await;
            assert!(store.attr(object(1)).await.unwrap().size >= 22 * 4096, "seed {seed}");
            assert_eq!(store.verify(object(1)).await, Ok(Vec::new()), "seed {seed}");
        });
    }
}

#[test]
fn sequential_writes_become_few_extents_and_few_records() {
    let world = TestWorld::new(7, 32 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(rt.clone(), 0, small()).await;
        store.create(object(1).0.seq, 1).await.unwrap();
        for i in 0..1024u64 {
            let put = Update { size: SizeRule::AtLeast((i + 1) * 4096), ..block(&rt, i) };
            store.update(object(1), put).await.unwrap();
        }
        store.sync().await.unwrap();
        let blocks = store.read(object(1), BlockRange::new(0, 1024)).await.unwrap();
        assert_eq!(blocks.crcs.len(), 1024);
        assert_eq!(store.verify(object(1)).await, Ok(Vec::new()));
    });
}

fn block(rt: &Rt, at: u64) -> Update {
    let mut bulk = frames::Bulk::alloc(rt.frames(), 4096).unwrap();
    bulk.copy_in(0, &[at as u8; 4096]);
    let crcs = bulk.slices().map(wire::crc32c).collect();
    Update { puts: vec![oss::store::BlockRun { first: at, bulk, crcs }], ..Update::default() }
}

#[test]
fn advice_on_an_object_outlives_the_store_and_goes_with_the_object() {
    let world = TestWorld::new(9, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(rt.clone(), 0, small()).await;
        store.create(object(1).0.seq, 3).await.unwrap();
        for (oid, record) in [(1, vec![1, 2]), (2, vec![3]), (3, vec![4])] {
            store.set_advice(object(oid), record).await.unwrap();
        }
        store.set_advice(object(2), Vec::new()).await.unwrap();
        store.set_advice(object(1), vec![5, 6, 7]).await.unwrap();
        assert_eq!(store.set_advice(object(4), vec![1]).await, Err(FsError::NotFound));
        // What was answered is on stable storage: no close.
        drop(store);
        let store = open(rt.clone(), small()).await;
        assert_eq!(store.advice(), [(object(1), vec![5, 6, 7]), (object(3), vec![4])]);
        store.destroy(vec![object(3)], None).await.unwrap();
        store.sync().await.unwrap();
        drop(store);
        let store = open(rt.clone(), small()).await;
        assert_eq!(store.advice(), [(object(1), vec![5, 6, 7])]);
    });
}

#[test]
fn a_promise_outlives_the_store_and_goes_with_its_cut_in_one_commit_or_with_the_object() {
    let world = TestWorld::new(9, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(rt.clone(), 0, small()).await;
        store.create(object(1).0.seq, 4).await.unwrap();
        let promise = |number| Promise { client: ClientId(9), number, size: 5 };
        for oid in 1..=4 {
            store.set_promise(object(oid), Some(promise(oid.into()))).await.unwrap();
        }
        store.set_promise(object(2), None).await.unwrap();
        store.set_promise(object(1), Some(promise(7))).await.unwrap();
        assert_eq!(store.set_promise(object(5), Some(promise(1))).await, Err(FsError::NotFound));
        // What was answered is on stable storage: no close.
        drop(store);
        let store = open(rt.clone(), small()).await;
        assert_eq!(store.promises(), [(object(1), promise(7)), (object(3), promise(3)), (object(4), promise(4))]);
        store.destroy(vec![object(3)], None).await.unwrap();
        let size = SizeRule::Exactly(5);
        store.update(object(1), Update { size, keeps_promise: true, ..Update::default() }).await.unwrap();
        store.update(object(4), Update { size, ..Update::default() }).await.unwrap();
        store.sync().await.unwrap();
        // One whose commit is lost takes nothing of the promise along.
        store
            .update(object(4), Update { size: SizeRule::Exactly(0), keeps_promise: true, ..Update::default() })
            .await
            .unwrap();
        drop(store);
        let store = open(rt.clone(), small()).await;
        assert_eq!(store.promises(), [(object(4), promise(4))]);
        assert_eq!(store.attr(object(4)).await.unwrap().size, 5);
    });
}

#[test]
fn counts_and_shares_outlive_the_store() {
    let world = TestWorld::new(41, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let store = make(rt.clone(), 0, small()).await;
        store.create(object(1).0.seq, 2).await.unwrap();
        let of = |uid| OwnerRule::Is(Owner { uid, gid: 9, project: 0 });
        let grow = |oid: u32, owner| {
            let reserves = vec![BlockRange { first: 0, count: 4 }];
            store.update(object(oid), Update { owner, reserves, ..Update::default() })
        };
        grow(1, of(5)).await.unwrap();
        grow(2, OwnerRule::Keep).await.unwrap();
        let user = (QuotaKind::User, 5);
        let shares = vec![(user, Some(77)), ((QuotaKind::Group, 9), Some(5)), ((QuotaKind::Group, 9), None)];
        store.set_shares(shares).await.unwrap();
        assert_eq!((store.usage(user), store.usage((QuotaKind::Group, 9))), (4, 4));
        store.close().await.unwrap();
        for _ in 0..2 {
            let again = open(rt.clone(), small()).await;
            assert_eq!((again.usage(user), again.shares(), again.is_owned()), (4, vec![(user, 77)], true));
            counts_are_right(&again, "again").await;
            again.close().await.unwrap();
        }
    });
}

#[test]
fn counts_that_are_not_in_the_commit_are_found() {
    let pool = FramePool::new(24 << 20);
    types::planted::plant(Some("usage-apart"));
    let dies = |stop| {
        let life = std::panic::AssertUnwindSafe(|| one_power_loss(pool, 1, stop, false));
        std::panic::catch_unwind(life).is_err()
    };
    let found = (20..60).any(dies);
    types::planted::plant(None);
    assert!(found);
}

/// Whether a commit ends while others hold every page frame of the process.
fn commits_without_frames(bug: Option<&'static str>) -> bool {
    types::planted::plant(bug);
    let pool = FramePool::new(16 << 20);
    let world = TestWorld::with_pool(1, pool);
    let rt = world.rt();
    let committed = world.run(async move {
        let store = make(rt.clone(), 0, small()).await;
        store.create(object(1).0.seq, 1).await.unwrap();
        // In a process that is a client as well writes hold their frames until they are on stable storage.
        let held: Vec<Bulk> = std::iter::from_fn(|| Bulk::alloc(pool, 4096)).collect();
        assert!(!held.is_empty());
        let committed = rt.timeout(Duration::from_secs(60), store.create(object(1).0.seq, 2)).await;
        drop(held);
        committed.is_some_and(|done| done.is_ok())
    });
    types::planted::plant(None);
    committed
}

#[test]
fn a_commit_waits_for_no_page_frames() {
    assert!(commits_without_frames(None));
    assert!(!commits_without_frames(Some("looks-take-frames")), "the planted bug is found");
}
