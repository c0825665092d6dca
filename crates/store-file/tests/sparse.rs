//! Sparse objects of many chunks that several change at once, under limits of memory that let almost nothing stay: what each has written
//! is there, whatever the others' loads bring and let go.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use frames::Bulk;
use oss::store::{BlockRange, BlockRun, ObjectStore, SizeRule, StoreIdentity, Update};
use rt::Rt;
use simworld::TestWorld;
use store_file::{FileStore, FileStoreConfig, MkfsOptions, mkfs};
use types::{ObjectId, OstIndex, Rng};

const DIR: &str = "/ost0";
const CHUNK: u64 = 1 << 14;
/// Blocks of an object that are one worker's.
const REGION: u64 = 3000 * CHUNK;
/// Chunks that a worker uses: near each other, and farther apart than a load notes one by one.
const CHUNKS: [u64; 9] = [0, 1, 2, 7, 1023, 1024, 1025, 2100, 2999];
const WORKERS: u64 = 6;
/// They share one object, each has a region of it; the others have objects of their own.
const SHARING: u64 = 3;

async fn open(rt: &Rt) -> Rc<FileStore> {
    let config = FileStoreConfig { objects_max: 3, mapped_blocks_max: 48, ..FileStoreConfig::default() };
    let config = FileStoreConfig { grow_bytes: 1 << 20, db_cache_bytes: 1 << 18, reserve_bytes: 0, ..config };
    Rc::new(FileStore::open(rt.clone(), Path::new(DIR), Some(7), config, None).await.unwrap())
}

/// A worker, and what its blocks hold: `None` is space without data.
struct Worker {
    rt: Rt,
    rng: Rng,
    object: ObjectId,
    region: BlockRange,
    blocks: BTreeMap<u64, Option<u8>>,
}

impl Worker {
    fn new(rt: &Rt, number: u64, seed: u64) -> Worker {
        let (oid, at) = if number < SHARING { (1, number) } else { (number as u32, 0) };
        let region = BlockRange { first: at * REGION, count: REGION };
        let rng = Rng::new(seed * WORKERS + number);
        Worker { rt: rt.clone(), rng, object: ObjectId::new(OstIndex(0), oid), region, blocks: BTreeMap::new() }
    }
    fn is_alone(&self) -> bool {
        self.object.0.oid != 1
    }
    fn place(&mut self) -> u64 {
        let chunk = CHUNKS[self.rng.below(CHUNKS.len() as u64) as usize];
        let within = [0, 30, 64, CHUNK - 60][self.rng.below(4) as usize] + self.rng.below(9);
        self.region.first + chunk * CHUNK + within
    }
    fn near(&mut self) -> BlockRange {
        BlockRange { first: self.place(), count: 1 + self.rng.below(40) }
    }
    /// Any part of the region.
    fn wide(&mut self) -> BlockRange {
        let (a, b) = (self.place(), self.place());
        BlockRange::new(a.min(b), a.max(b) + 1)
    }
    fn put(&self, range: BlockRange, byte: u8) -> BlockRun {
        let mut bulk = Bulk::alloc(self.rt.frames(), range.count as usize * 4096).unwrap();
        (0..range.count as usize).for_each(|i| bulk.copy_in(i * 4096, &[byte; 4096]));
        let crcs = bulk.slices().flat_map(|s| s.chunks(4096)).map(wire::crc32c).collect();
        BlockRun { first: range.first, bulk, crcs }
    }

    async fn write(&mut self, store: &FileStore) {
        let (range, byte) = (self.near(), 1 + self.rng.below(255) as u8);
        let size = SizeRule::AtLeast(range.end() * 4096);
        let update = Update { puts: vec![self.put(range, byte)], size, ..Update::default() };
        store.update(self.object, update).await.unwrap();
        (range.first..range.end()).for_each(|b| {
            self.blocks.insert(b, Some(byte));
        });
    }
    async fn reserve(&mut self, store: &FileStore) {
        let range = self.near();
        let size = SizeRule::AtLeast(range.end() * 4096);
        store.update(self.object, Update { reserves: vec![range], size, ..Update::default() }).await.unwrap();
        (range.first..range.end()).for_each(|b| {
            self.blocks.entry(b).or_insert(None);
        });
    }
    async fn punch(&mut self, store: &FileStore, range: BlockRange) {
        store.update(self.object, Update { drops: vec![range], ..Update::default() }).await.unwrap();
        self.blocks.retain(|b, _| !(range.first..range.end()).contains(b));
    }
    /// Of a shared object the others have the end.
    async fn cut(&mut self, store: &FileStore) {
        let end = self.place();
        let size = SizeRule::Exactly(end * 4096);
        store.update(self.object, Update { size, ..Update::default() }).await.unwrap();
        self.blocks.retain(|b, _| *b < end);
    }

    async fn read(&mut self, store: &FileStore, range: BlockRange) {
        let read = store.read(self.object, range).await.unwrap();
        for (i, page) in read.bulk.slices().flat_map(|s| s.chunks(4096)).enumerate() {
            let block = range.first + i as u64;
            let byte = self.blocks.get(&block).copied().flatten().unwrap_or(0);
            assert!(page.iter().all(|b| *b == byte), "block {block} of {} holds {}, not {byte}", self.object, page[0]);
        }
    }
    async fn seek(&mut self, store: &FileStore) {
        let from = self.place();
        let data = self.blocks.range(from..).find(|(_, b)| b.is_some()).map(|(at, _)| *at);
        let found = store.seek(self.object, from, true).await.unwrap();
        match data {
            Some(at) => assert_eq!(found, Some(at), "data of {} from {from}", self.object),
            None => assert!(found.is_none_or(|at| at >= self.region.end()), "{found:?} of {}", self.object),
        }
        let hole = (from..).find(|b| self.blocks.get(b).copied().flatten().is_none());
        assert_eq!(store.seek(self.object, from, false).await, Ok(hole), "a hole of {} from {from}", self.object);
    }
    async fn count(&mut self, store: &FileStore) {
        let range = self.wide();
        let has = self.blocks.range(range.first..range.end()).count() as u64;
        assert_eq!(store.allocated(self.object, range).await, Ok(has), "{range:?} of {}", self.object);
        let reserved = self.blocks.range(range.first..range.end()).filter(|(_, b)| b.is_none()).count() as u64;
        assert_eq!(store.reserved(self.object, range).await, Ok(reserved), "{range:?} of {}", self.object);
    }

    async fn step(&mut self, store: &FileStore) {
        match self.rng.below(16) {
            0..=4 => self.write(store).await,
            5 => self.reserve(store).await,
            6 => {
                let range = self.near();
                self.punch(store, range).await;
            }
            7 => {
                let range = self.wide();
                self.punch(store, range).await;
            }
            8 if self.is_alone() => self.cut(store).await,
            8..=10 => {
                let range = self.near();
                self.read(store, range).await;
            }
            11 => self.seek(store).await,
            12..=13 => self.count(store).await,
            _ => store.sync().await.unwrap(),
        }
    }
    /// All that it has ever written, and nothing else.
    async fn look(&mut self, store: &FileStore) {
        for chunk in CHUNKS {
            for (first, count) in [(0, 130), (CHUNK - 60, 60)] {
                let range = BlockRange { first: self.region.first + chunk * CHUNK + first, count };
                self.read(store, range).await;
            }
        }
        let (all, has) = (self.region, self.blocks.len() as u64);
        assert_eq!(store.allocated(self.object, all).await, Ok(has), "{all:?} of {}", self.object);
    }
}

async fn history(rt: Rt, seed: u64) {
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    mkfs(&rt, Path::new(DIR), &MkfsOptions { identity, capacity_bytes: 0, lost_through: 0 }).await.unwrap();
    let store = open(&rt).await;
    store.create(ObjectId::seq_of(OstIndex(0)), WORKERS as u32).await.unwrap();
    let workers = (0..WORKERS).map(|number| {
        let (mut worker, store) = (Worker::new(&rt, number, seed), store.clone());
        async move {
            for _ in 0..120 {
                worker.step(&store).await;
            }
            worker
        }
    });
    let mut workers = rt::sync::join_all(workers.collect()).await;
    for worker in &mut workers {
        worker.look(&store).await;
    }
    store.close().await.unwrap();
    drop(store);
    let store = open(&rt).await;
    for worker in &mut workers {
        worker.look(&store).await;
    }
    assert!(store.in_memory().shrinks > 0, "the limits are reached");
    store.close().await.unwrap();
    let found = store_file::check(&rt, Path::new(DIR), true, 1 << 20).await.unwrap();
    assert!(found.faults.is_empty(), "{:?}", found.faults);
}

#[test]
fn what_many_write_into_sparse_objects_at_once_is_there_though_memory_keeps_almost_nothing_of_their_maps() {
    for seed in 0..12 {
        println!("seed {seed}");
        let world = TestWorld::new(seed, 64 << 20);
        let rt = world.rt();
        world.run(history(rt, seed));
    }
}
