//! A fast tier before a file store, and power that fails at any step of the disk: what is read afterwards is what was
//! committed, whatever the tier held.
#![allow(clippy::unwrap_used)]
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use frames::FramePool;
use oss::fast::{FAST_BYTES_MIN, FastConfig, FastStore, FastTier};
use oss::store::conformance::{Change, Model, ModelObject, compare};
use oss::store::{BlockRange, ObjectStore, StoreIdentity};
use rt::Rt;
use simworld::TestWorld;
use store_file::{FileStore, FileStoreConfig, MkfsOptions, mkfs};
use types::{Duration, ObjectId, OstIndex, Rng, Transno};

const DIR: &str = "/ost0";
const FAST: &str = "/fast";

fn identity() -> StoreIdentity {
    StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 }
}
fn config() -> FileStoreConfig {
    FileStoreConfig {
        commit_interval: Duration::from_micros(400),
        grow_bytes: 1 << 20,
        reserve_bytes: 0,
        db_cache_bytes: 1 << 20,
        ..FileStoreConfig::default()
    }
}
fn object(oid: u32) -> ObjectId {
    ObjectId::new(OstIndex(0), oid)
}

/// The store with its tier, which takes everything that is read.
async fn open(rt: &Rt) -> Option<Rc<FastStore>> {
    let store = FileStore::open(rt.clone(), Path::new(DIR), Some(7), config(), None).await.ok()?;
    let fast = FastConfig { admission: "always".into(), ..FastConfig::new(FAST_BYTES_MIN) };
    let tier = FastTier::open(rt, Path::new(FAST), &identity(), &fast, None, |f| f).await.ok()?;
    Some(FastStore::new(Rc::new(store), tier))
}

/// Changes and reads objects until the power fails; remembers what each transaction did.
async fn work(rt: Rt, store: Rc<FastStore>, seed: u64, log: Rc<RefCell<BTreeMap<Transno, Change>>>) {
    let tasks = (1..=2u32).map(|oid| {
        let (rt, store, log) = (rt.clone(), store.clone(), log.clone());
        async move {
            let mut rng = Rng::new(seed * 31 + u64::from(oid));
            for step in 1..30u32 {
                let change = Change { object: object(oid), ..Change::random(&mut rng, 1, step * 2 + oid) };
                let Ok(applied) = store.clone().update(change.object, change.update(&rt)).await else { return };
                log.borrow_mut().insert(applied.transno, change);
                let range = BlockRange { first: rng.below(60), count: 30 };
                let read = |store: &FastStore| ObjectStore::read(store, object(oid), range);
                for _ in 0..2 {
                    if read(&store).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
    rt::sync::join_all(tasks.collect()).await;
}

/// Answers whether the power failed, and how many blocks came from the tier after it was back.
fn one_power_loss(pool: FramePool, seed: u64, stop: u64) -> (bool, u64) {
    let world = TestWorld::with_pool(seed, pool);
    let rt = world.rt();
    let log = Rc::new(RefCell::new(BTreeMap::new()));
    let first = rt.clone();
    world.run(async move {
        let options = MkfsOptions { identity: identity(), capacity_bytes: 0, lost_through: 0 };
        mkfs(&first, Path::new(DIR), &options).await.unwrap();
        let store = open(&first).await.unwrap();
        store.create(object(1).0.seq, 2).await.unwrap();
        store.close().await.unwrap();
    });
    world.host().stop_disk_after(stop);
    let (rt2, log2) = (rt.clone(), log.clone());
    world.run(async move {
        if let Some(store) = open(&rt2).await {
            work(rt2, store.clone(), seed, log2).await;
            let _ = store.close().await;
        }
    });
    let failed = world.host().disk_is_off();
    let next = world.power_cycle(seed ^ stop);
    let rt = next.rt();
    let hits = next.run(async move {
        let store = open(&rt).await.expect("store and tier open again");
        let committed = store.last_committed();
        let log = log.take();
        // The last transaction may have been committed before its task could note it.
        if committed > log.keys().next_back().copied().unwrap_or_default() {
            return 0;
        }
        let mut model = Model::default();
        (1..=2).for_each(|oid| _ = model.objects.insert(object(oid), ModelObject::default()));
        log.range(..=committed).for_each(|(_, c)| model.apply(c));
        let store: Rc<dyn ObjectStore> = store;
        // From the store, and then from the tier.
        for round in ["first", "second"] {
            for oid in 1..=2 {
                let context = format!("seed {seed} stop {stop}: {round} read");
                compare(&store, object(oid), model.objects.get(&object(oid)), &context).await;
            }
            rt.sleep(Duration::from_secs(1)).await;
        }
        let text = store.fast().expect("it has one").tier().text();
        store.close().await.unwrap();
        text.lines().find_map(|l| l.strip_prefix("hit_blocks: ")?.parse().ok()).unwrap()
    });
    (failed, hits)
}

#[test]
fn after_a_power_loss_at_any_disk_step_the_tier_knows_nothing_that_is_not_so() {
    let pool = FramePool::new(48 << 20);
    for seed in 1..=3 {
        let (mut stop, mut all_hits) = (0, 0);
        loop {
            let (failed, hits) = one_power_loss(pool, seed, stop);
            all_hits += hits;
            if !failed {
                break;
            }
            stop += if stop < 20 { 1 } else { 1 + stop / 8 };
        }
        assert!(stop > 60 && all_hits > 100, "seed {seed}: {stop} steps, {all_hits} blocks from the tier");
    }
}
