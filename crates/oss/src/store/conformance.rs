//! What every store must do, checked by random operations against a naive model. Generic over stores.
use std::collections::BTreeMap;
use std::rc::Rc;

use frames::{Bulk, FRAME_BYTES};
use rt::Rt;
use types::{FsError, ObjectId, OstIndex, Rng, Transno, WallTime};

use super::{Applied, BLOCK_BYTES, BlockRange, BlockRun, ObjectAttr, ObjectStore, SizeRule, TimeRule, Update};
use crate::pages::page_crcs;

/// Blocks that the model's objects use.
const BLOCKS: u64 = 96;

/// One object as it should be.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ModelObject {
    /// First byte and version of each block that holds data; `None`: reserved.
    pub blocks: BTreeMap<u64, Option<u32>>,
    /// Bytes.
    pub size: u64,
    /// Modification time.
    pub mtime: WallTime,
}

/// All objects as they should be, by transaction.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Model {
    /// Objects that exist.
    pub objects: BTreeMap<ObjectId, ModelObject>,
}

/// Fills a block with bytes that name object, block and version.
pub fn fill(object: ObjectId, block: u64, version: u32, page: &mut [u8]) {
    let mut rng = Rng::new(u64::from(object.0.oid) << 40 ^ block << 20 ^ u64::from(version));
    for word in page.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
}

/// One random change of one object, for the store and for the model.
#[derive(Clone, Debug)]
pub struct Change {
    /// Object.
    pub object: ObjectId,
    /// Blocks that become holes.
    pub drops: Vec<BlockRange>,
    /// Blocks that get space.
    pub reserves: Vec<BlockRange>,
    /// Blocks that get data of a version.
    pub puts: Vec<(BlockRange, u32)>,
    /// Size.
    pub size: SizeRule,
    /// Modification time.
    pub mtime: TimeRule,
}

impl Change {
    /// A change from a random stream; `version` marks its data.
    #[must_use]
    pub fn random(rng: &mut Rng, objects: u32, version: u32) -> Change {
        let object = ObjectId::new(OstIndex(0), 1 + rng.below(objects.into()) as u32);
        let mut c = Change {
            object,
            drops: Vec::new(),
            reserves: Vec::new(),
            puts: Vec::new(),
            size: SizeRule::Keep,
            mtime: TimeRule::AtLeast(WallTime(version.into())),
        };
        let range = |rng: &mut Rng| {
            let first = rng.below(BLOCKS - 1);
            BlockRange::new(first, first + 1 + rng.below((BLOCKS - first - 1).clamp(1, 40)))
        };
        match rng.below(20) {
            0..13 => {
                let r = range(rng);
                c.puts.push((r, version));
                if rng.chance(0.3) && r.end() + 2 < BLOCKS {
                    c.puts.push((BlockRange::new(r.end() + 1, r.end() + 2), version));
                }
                c.size = SizeRule::AtLeast(r.end() * BLOCK_BYTES);
            }
            13..15 => c.drops.push(range(rng)),
            15..17 => c.size = SizeRule::Exactly(rng.below(BLOCKS) * BLOCK_BYTES),
            17 => c.reserves.push(range(rng)),
            18 => {
                let r = range(rng);
                c.drops.push(r);
                c.reserves.push(r);
            }
            _ => c.mtime = TimeRule::Exactly(WallTime(rng.below(1000) as i64)),
        }
        c
    }

    /// As the store takes it.
    ///
    /// # Panics
    /// When the pool has no frames.
    #[must_use]
    pub fn update(&self, rt: &Rt) -> Update {
        let run = |(r, version): &(BlockRange, u32)| {
            let mut bulk = Bulk::alloc(rt.frames(), r.count as usize * FRAME_BYTES).expect("the test's pool suffices");
            let mut page = vec![0; FRAME_BYTES];
            for i in 0..r.count {
                fill(self.object, r.first + i, *version, &mut page);
                bulk.copy_in(i as usize * FRAME_BYTES, &page);
            }
            let crcs = page_crcs(&bulk);
            BlockRun { first: r.first, bulk, crcs }
        };
        Update {
            drops: self.drops.clone(),
            reserves: self.reserves.clone(),
            puts: self.puts.iter().map(run).collect(),
            size: self.size,
            mtime: self.mtime,
            ..Update::default()
        }
    }
}

impl Model {
    /// Applies a change.
    pub fn apply(&mut self, c: &Change) {
        let Some(o) = self.objects.get_mut(&c.object) else { return };
        for d in &c.drops {
            o.blocks.retain(|b, _| *b < d.first || *b >= d.end());
        }
        for r in &c.reserves {
            (r.first..r.end()).for_each(|b| {
                o.blocks.entry(b).or_insert(None);
            });
        }
        for (r, version) in &c.puts {
            (r.first..r.end()).for_each(|b| {
                o.blocks.insert(b, Some(*version));
            });
        }
        match c.size {
            SizeRule::Keep => {}
            SizeRule::AtLeast(n) => o.size = o.size.max(n),
            SizeRule::Exactly(n) => {
                o.size = n;
                o.blocks.retain(|b, _| *b < n.div_ceil(BLOCK_BYTES));
            }
        }
        o.mtime = c.mtime.apply(o.mtime);
    }
}

/// Compares one object of a store with the model.
///
/// # Panics
/// When they differ.
pub async fn compare(store: &Rc<dyn ObjectStore>, object: ObjectId, want: Option<&ModelObject>, context: &str) {
    let attr = store.attr(object).await;
    let Some(want) = want else {
        assert_eq!(attr, Err(FsError::NotFound), "{context}: {object} should be gone");
        return;
    };
    let attr = attr.unwrap_or_else(|e| panic!("{context}: {object} is missing: {e}"));
    let ObjectAttr { size, blocks, mtime, .. } = attr;
    assert_eq!((size, mtime), (want.size, want.mtime), "{context}: {object}");
    assert_eq!(blocks, want.blocks.len() as u64, "{context}: {object} miscounts its blocks");
    let read = store.read(object, BlockRange::new(0, BLOCKS + 3)).await;
    let read = read.unwrap_or_else(|e| panic!("{context}: {object} cannot be read: {e}"));
    assert_eq!(read.bulk.len(), read.crcs.len() * FRAME_BYTES);
    assert_eq!(page_crcs(&read.bulk), read.crcs, "{context}: {object}: checksums");
    let (bytes, mut page) = (read.bulk.to_vec(), vec![0; FRAME_BYTES]);
    for block in 0..BLOCKS + 3 {
        match want.blocks.get(&block) {
            Some(Some(version)) => fill(object, block, *version, &mut page),
            _ => page.fill(0),
        }
        let got = &bytes[block as usize * FRAME_BYTES..][..FRAME_BYTES];
        assert!(got == page, "{context}: {object} block {block} is not {:?}", want.blocks.get(&block));
    }
}

/// Random changes one after the other, compared after each.
///
/// # Panics
/// When the store does what the model does not.
pub async fn one_by_one(rt: Rt, store: Rc<dyn ObjectStore>, seed: u64, steps: u32) {
    let (mut rng, mut model) = (Rng::new(seed), Model::default());
    let seq = ObjectId::seq_of(OstIndex(0));
    store.create(seq, 4).await.expect("objects can be made");
    assert_eq!(store.last_object(seq), 4);
    for oid in 1..=4 {
        model.objects.insert(ObjectId::new(OstIndex(0), oid), ModelObject::default());
    }
    let mut last = Transno(0);
    for step in 1..=steps {
        let change = Change::random(&mut rng, 5, step);
        let outcome = store.update(change.object, change.update(&rt)).await;
        if !model.objects.contains_key(&change.object) {
            assert_eq!(outcome, Err(FsError::NotFound));
            continue;
        }
        let Applied { transno, attr } = outcome.expect("there is space");
        assert!(transno > last, "transactions grow");
        last = transno;
        model.apply(&change);
        let object = &model.objects[&change.object];
        assert_eq!((attr.size, attr.blocks), (object.size, object.blocks.len() as u64), "step {step}: {change:?}");
        if step % 5 == 0 {
            compare(&store, change.object, Some(object), &format!("step {step}")).await;
            seek_agrees(&store, change.object, object, rng.below(BLOCKS)).await;
        }
        if step % 40 == 0 {
            let gone = ObjectId::new(OstIndex(0), 1 + rng.below(4) as u32);
            store.destroy(vec![gone], None).await.expect("objects can be destroyed");
            model.objects.remove(&gone);
            compare(&store, gone, None, "after destroy").await;
        }
    }
    store.sync().await.expect("a healthy store syncs");
    assert!(store.last_committed() >= last);
    let listed = store.objects(ObjectId::default(), 100).await.expect("objects can be listed");
    assert_eq!(listed.iter().map(|o| o.object).collect::<Vec<_>>(), model.objects.keys().copied().collect::<Vec<_>>());
    for (object, want) in &model.objects {
        compare(&store, *object, Some(want), "at the end").await;
        assert_eq!(store.verify(*object).await, Ok(Vec::new()));
    }
}

async fn seek_agrees(store: &Rc<dyn ObjectStore>, object: ObjectId, want: &ModelObject, from: u64) {
    let is_data = |b: &u64| matches!(want.blocks.get(b), Some(Some(_)));
    let data = (from..BLOCKS).find(is_data);
    let hole = (from..=BLOCKS).find(|b| !is_data(b));
    assert_eq!(store.seek(object, from, true).await, Ok(data), "data from {from}");
    assert_eq!(store.seek(object, from, false).await, Ok(hole), "hole from {from}");
}

/// Fills a small store: the space counted is the space there, a full store says so and changes nothing, and what is
/// removed can be used again after a sync.
///
/// # Panics
/// When it is not so.
pub async fn space_is_exact(rt: Rt, store: Rc<dyn ObjectStore>) {
    let object = ObjectId::new(OstIndex(0), 1);
    store.create(object.0.seq, 1).await.expect("objects can be made");
    store.sync().await.expect("a healthy store syncs");
    for round in 0..3 {
        let free = store.space().free / BLOCK_BYTES;
        let mut written = 0;
        while written < free {
            let r = BlockRange::new(written, (written + 37).min(free));
            let change = Change { puts: vec![(r, round)], ..Change::random(&mut Rng::new(1), 1, 0) };
            let change = Change { size: SizeRule::Keep, drops: Vec::new(), reserves: Vec::new(), ..change };
            store.update(object, change.update(&rt)).await.expect("counted space is there");
            written = r.end();
        }
        assert_eq!(store.space().free, 0);
        let r = BlockRange::new(free, free + 1);
        let over = Change { puts: vec![(r, 9)], ..Change::random(&mut Rng::new(1), 1, 0) };
        let over = Change { size: SizeRule::Keep, drops: Vec::new(), reserves: Vec::new(), ..over };
        assert_eq!(store.update(object, over.update(&rt)).await, Err(FsError::NoSpace));
        assert_eq!(store.attr(object).await.map(|a| a.blocks), Ok(free), "a failed update changes nothing");
        let cut = Update { size: SizeRule::Exactly(0), ..Update::default() };
        store.update(object, cut).await.expect("a truncate needs no space");
        store.sync().await.expect("a healthy store syncs");
        assert_eq!(store.space().free / BLOCK_BYTES, free, "round {round}: space leaks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{DeviceProfile, EmulatedStore, MemoryStore, NullStore, StoreIdentity, pattern_page};
    use simworld::TestWorld;

    fn identity() -> StoreIdentity {
        StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 }
    }

    #[test]
    fn the_memory_store_does_what_the_model_does() {
        let world = TestWorld::new(1, 16 << 20);
        let rt = world.rt();
        world.run(one_by_one(rt.clone(), MemoryStore::new(&rt, identity(), 1 << 30), 5, 800));
        world.run(space_is_exact(rt.clone(), MemoryStore::new(&rt, identity(), 300 * 4096)));
    }

    #[test]
    fn the_emulated_store_keeps_the_bytes_and_takes_the_devices_time() {
        let world = TestWorld::new(1, 16 << 20);
        let rt = world.rt();
        let profile = DeviceProfile::named("paper001").unwrap();
        let inner = MemoryStore::new(&rt, identity(), 1 << 30);
        let store = EmulatedStore::new(rt.clone(), inner, profile);
        world.run(one_by_one(rt.clone(), store.clone(), 6, 300));
        // An object that nothing was written to before.
        let object = ObjectId::new(OstIndex(0), 1000);
        let (clock, seeks) = (rt.clone(), store.seeks());
        let took = world.run(async move {
            store.create(object.0.seq, 1000).await.unwrap();
            let start = clock.now();
            for i in 0..8u64 {
                let c = Change {
                    object,
                    puts: vec![(BlockRange::new(i * 8, i * 8 + 8), 1)],
                    ..Change::random(&mut Rng::new(1), 1, 0)
                };
                store.update(object, c.update(&clock)).await.unwrap();
            }
            (clock.now().since(start), store.seeks())
        });
        // One seek of 2 ms, seven requests of 20 +- 6 us, and 32 KiB at 500 MB/s in each of the eight.
        assert_eq!(took.1 - seeks, 1);
        let (us, mean) = (took.0.as_nanos() as u64 / 1000, 2000 + 7 * 20 + 8 * 32768 / 500);
        assert!(us.abs_diff(mean) <= 7 * 6 + 1, "{us} us");
    }

    #[test]
    fn the_null_store_answers_a_pattern_and_refuses_anything_else() {
        let world = TestWorld::new(1, 16 << 20);
        let (rt, object) = (world.rt(), ObjectId::new(OstIndex(0), 1));
        let store = NullStore::new(&rt, identity(), 1 << 40, true);
        let frames = rt.clone();
        let s = store.clone();
        world.run(async move {
            s.create(object.0.seq, 1).await.unwrap();
            let blocks = s.read(object, BlockRange::new(3, 9)).await.unwrap();
            assert_eq!(page_crcs(&blocks.bulk), blocks.crcs);
            let mut want = vec![0; FRAME_BYTES];
            pattern_page(object, 5, &mut want);
            assert_eq!(blocks.bulk.slice(2 * FRAME_BYTES, FRAME_BYTES).to_vec(), want);
            let put = BlockRun { first: 3, bulk: blocks.bulk, crcs: blocks.crcs };
            let size = SizeRule::AtLeast(9 * BLOCK_BYTES);
            let good = Update { puts: vec![put.clone()], size, ..Update::default() };
            assert_eq!(s.update(object, good).await.unwrap().attr.size, 9 * BLOCK_BYTES);
            let bad = Update { puts: vec![BlockRun { first: 4, ..put }], ..Update::default() };
            assert_eq!(s.update(object, bad).await, Err(FsError::Corrupt));
            let other = Change::random(&mut Rng::new(3), 1, 1).update(&frames);
            assert!(!other.puts.is_empty() && s.update(object, other).await.is_err());
        });
        assert_eq!(store.mismatches(), 2);
    }
}
