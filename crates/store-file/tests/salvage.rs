//! A damaged database: every object but those that were hit is there as it was, those that were hit are named, and
//! afterwards the store is one again.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use dbcheck::Mended;
use frames::{Bulk, FramePool};
use oss::store::{BlockRange, BlockRun, ObjectStore, Promise, SizeRule, StoreIdentity, Update};
use rt::Rt;
use store_file::{Checked, FileStore, FileStoreConfig, MkfsOptions};
use types::{ClientId, ObjectId, Origin, OstIndex, Rng, WallTime};

const PAGE: usize = 4096;
const CACHE_BYTES: usize = 1 << 20;
const OBJECTS: u32 = 120;
const RESERVED: u64 = 64;

fn on_shard<T: Send + 'static>(work: impl AsyncFnOnce(Rt) -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        rt::real::run(FramePool::new(16 << 20), |rt| async move { tell.send(work(rt).await).unwrap() }).unwrap();
    });
    thread.join().unwrap();
    told.recv().unwrap()
}

fn object(i: u32) -> ObjectId {
    ObjectId::new(OstIndex(0), i)
}

/// Which blocks an object has, and what is in them.
fn content(i: u32) -> BTreeMap<u64, u8> {
    (0..u64::from(i % 4)).map(|k| (k * (u64::from(i % 7) + 1), (i + k as u32) as u8)).collect()
}

fn config() -> FileStoreConfig {
    FileStoreConfig {
        grow_bytes: 1 << 20,
        reserve_bytes: 1 << 20,
        db_cache_bytes: CACHE_BYTES,
        ..FileStoreConfig::default()
    }
}

/// A store with objects of up to three extents, written in several commits, some of them removed again; closed.
async fn fill(rt: Rt, dir: &Path) {
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    store_file::mkfs(&rt, dir, &MkfsOptions { identity, capacity_bytes: 0, lost_through: 0 }).await.unwrap();
    let store = FileStore::open(rt.clone(), dir, Some(7), config(), None).await.unwrap();
    store.create(ObjectId::seq_of(OstIndex(0)), OBJECTS + 20).await.unwrap();
    store.session_open(ClientId(3), 5, Origin { machine: 3, boot: 4, host: 1, process: 2 }).await.unwrap();
    for i in 1..=OBJECTS {
        for (first, byte) in content(i) {
            let mut bulk: Bulk = rt.bulk(PAGE).await;
            bulk.copy_in(0, &vec![byte; PAGE]);
            let crcs = bulk.slices().flat_map(|s| s.chunks_exact(PAGE)).map(wire::crc32c).collect();
            let puts = vec![BlockRun { first, bulk, crcs }];
            let size = SizeRule::AtLeast((first + 1) * PAGE as u64);
            store.update(object(i), Update { puts, size, ..Update::default() }).await.unwrap();
        }
        if i % 10 == 0 {
            let reserves = vec![BlockRange { first: RESERVED, count: 3 }];
            store.update(object(i), Update { reserves, ..Update::default() }).await.unwrap();
            store.sync().await.unwrap();
        }
    }
    for i in (1..=OBJECTS).step_by(3) {
        store.set_advice(object(i), vec![i as u8; 40]).await.unwrap();
        store.set_promise(object(i), Some(promise(i))).await.unwrap();
    }
    store.destroy((OBJECTS + 1..OBJECTS + 20).map(object).collect(), None).await.unwrap();
    store.close().await.unwrap();
}

async fn check(rt: &Rt, dir: &Path) -> Checked {
    store_file::check(rt, dir, true, CACHE_BYTES).await.unwrap()
}

/// What `fsck --repair` does with a store, without the files above. Who is suspected, and whether a new database was made; `None` when
/// nothing can be read of the old one, which is then as it was.
async fn repaired(rt: &Rt, dir: &Path, what: &str) -> Option<(BTreeSet<ObjectId>, bool)> {
    let (mut suspects, mut salvaged) = (BTreeSet::new(), false);
    for _ in 0..4 {
        let found = check(rt, dir).await;
        if found.faults.is_empty() {
            return Some((suspects, salvaged));
        }
        if found.broken {
            if store_file::mend_database(rt, dir, CACHE_BYTES).await.unwrap() == Mended::No {
                salvaged = true;
                let before = fs::read(dir.join("meta.redb")).unwrap();
                if store_file::salvage(rt, dir, CACHE_BYTES).await.unwrap().0.records == 0 {
                    assert!(fs::read(dir.join("meta.redb")).unwrap() == before, "{what}");
                    return None;
                }
            }
            continue;
        }
        suspects.extend(found.suspects);
        assert!(found.bad_rows, "{what}: nobody repairs {:?}", found.faults);
        store_file::mend_rows(rt, dir, CACHE_BYTES).await.unwrap();
    }
    panic!("{what}: there are still faults: {:?}", check(rt, dir).await.faults);
}

fn promise(i: u32) -> Promise {
    Promise { client: ClientId(7), number: i.into(), size: 5 }
}

/// Opens the store and compares each object. Those that are not there, and the suspects that are there.
async fn compare(rt: &Rt, dir: &Path, suspects: &BTreeSet<ObjectId>, what: &str) -> (usize, usize) {
    let store = FileStore::open(rt.clone(), dir, Some(7), config(), None).await.unwrap();
    let (mut gone, mut there) = (0, 0);
    for i in 1..=OBJECTS {
        let Ok(attr) = store.attr(object(i)).await else {
            gone += 1;
            continue;
        };
        if suspects.contains(&object(i)) {
            there += 1;
            continue;
        }
        let content = content(i);
        let size = content.keys().next_back().map_or(0, |last| (last + 1) * PAGE as u64);
        assert_eq!(attr.size, size, "{what}: the size of object {i}");
        for (first, byte) in content {
            let got = store.read(object(i), BlockRange { first, count: 1 }).await.unwrap();
            assert!(got.bulk.to_vec().iter().all(|b| *b == byte), "{what}: block {first} of object {i}");
        }
    }
    for (object, record) in store.advice() {
        assert_eq!(record, vec![object.0.oid as u8; 40], "{what}: what is advised of {object}");
    }
    for (object, found) in store.promises() {
        assert_eq!(found, promise(object.0.oid), "{what}: the promised cut of {object}");
    }
    // What was removed stays removed, and no id is given out twice.
    assert!(store.attr(object(OBJECTS + 3)).await.is_err(), "{what}: an object came back");
    let last = store.last_object(ObjectId::seq_of(OstIndex(0)));
    assert!(last >= OBJECTS + 20, "{what}: ids come twice: {last} was the last, {gone} {there}");
    store.close().await.unwrap();
    (gone, there)
}

/// A directory in memory, where the system has one for everybody: hundreds of stores are made and repaired, and no power is lost.
fn in_memory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// A filled store, closed, and its database.
fn filled() -> (tempfile::TempDir, Vec<u8>) {
    let dir = in_memory();
    let at = dir.path().to_path_buf();
    on_shard(async move |rt| fill(rt, &at).await);
    let whole = fs::read(dir.path().join("meta.redb")).unwrap();
    (dir, whole)
}

#[test]
fn a_flipped_byte_anywhere_in_the_database_costs_two_objects_at_most() {
    let (dir, whole) = filled();
    let at = dir.path().to_path_buf();
    let (hit, saved) = on_shard(async move |rt| {
        let (mut rng, mut hit, mut saved) = (Rng::new(1), 0, 0);
        // Behind the header, each page in its head and what it holds.
        for page in 1..whole.len() / PAGE {
            for place in [0, 2, 4, 8 + rng.below(64), 80 + rng.below(700), rng.below(4096)] {
                let (place, mut bytes) = (page * PAGE + place as usize, whole.clone());
                bytes[place] ^= 1 << (place % 8);
                fs::write(at.join("meta.redb"), &bytes).unwrap();
                let what = format!("byte {place}");
                let (suspects, salvaged) = repaired(&rt, &at, &what).await.unwrap();
                let (gone, there) = compare(&rt, &at, &suspects, &what).await;
                assert!(gone + there <= 2, "{what}: {gone} objects are lost and {there} suspected");
                hit += usize::from(gone + there > 0);
                saved += usize::from(salvaged);
            }
        }
        (hit, saved)
    });
    assert!(hit > 10 && saved > hit, "{hit} flips took an object, {saved} needed a new database");
}

#[test]
fn pages_that_are_gone_cost_what_was_on_them_and_bring_nothing_back() {
    let (dir, whole) = filled();
    let at = dir.path().to_path_buf();
    let kept = on_shard(async move |rt| {
        let mut kept = 0;
        for seed in 0..40 {
            let (mut rng, mut bytes) = (Rng::new(seed), whole.clone());
            for _ in 0..2 {
                let page = 1 + rng.below((whole.len() / PAGE - 1) as u64) as usize;
                bytes[page * PAGE..][..PAGE].iter_mut().for_each(|b| *b = rng.next_u64() as u8);
            }
            fs::write(at.join("meta.redb"), &bytes).unwrap();
            let what = format!("seed {seed}");
            let Some((suspects, _)) = repaired(&rt, &at, &what).await else { continue };
            let (gone, there) = compare(&rt, &at, &suspects, &what).await;
            kept += OBJECTS as usize - gone - there;
        }
        kept
    });
    assert!(kept > 20 * OBJECTS as usize, "{kept} of 40 times {OBJECTS} objects");
}

/// The byte of every block of an object, and how many blocks it has; it is as long as these.
type Fill = (u8, u64);

async fn put(rt: &Rt, store: &FileStore, i: u32, (byte, count): Fill) {
    let mut bulk: Bulk = rt.bulk(PAGE * count as usize).await;
    bulk.copy_in(0, &vec![byte; PAGE * count as usize]);
    let crcs = bulk.slices().flat_map(|s| s.chunks_exact(PAGE)).map(wire::crc32c).collect();
    let (puts, size) = (vec![BlockRun { first: 0, bulk, crcs }], SizeRule::AtLeast(count * PAGE as u64));
    // A server says at which time it changes an object.
    store.update(object(i), Update { puts, size, ctime: WallTime(byte.into()), ..Update::default() }).await.unwrap();
}

/// Objects that the last commit before the kill changed, removed and made.
const CHANGED: u32 = 50;
const REMOVED: u32 = 51;
const MADE: u32 = 2 * OBJECTS;
const FILES: [&str; 4] = ["data", "meta.redb", "meta.redb.whole", "epoch"];

type Holds = BTreeMap<u32, Fill>;

/// A store that was killed, in `dir`, with nothing on its way; what its last commit but one held, and its last one. Blocks that the last one
/// freed were not used again.
async fn killed(rt: Rt, live: &Path, dir: &Path) -> [Holds; 2] {
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    store_file::mkfs(&rt, live, &MkfsOptions { identity, capacity_bytes: 0, lost_through: 0 }).await.unwrap();
    let store = FileStore::open(rt.clone(), live, Some(7), config(), None).await.unwrap();
    store.create(ObjectId::seq_of(OstIndex(0)), MADE).await.unwrap();
    let before: Holds = (1..MADE).map(|i| (i, (i as u8, 1 + u64::from(i % 3)))).collect();
    for (i, fill) in &before {
        put(&rt, &store, *i, *fill).await;
    }
    store.sync().await.unwrap();
    let mut last = before.clone();
    for (i, fill) in [(CHANGED, (251, before[&CHANGED].1)), (MADE, (252, 2))] {
        put(&rt, &store, i, fill).await;
        last.insert(i, fill);
    }
    store.destroy(vec![object(REMOVED)], None).await.unwrap();
    last.remove(&REMOVED);
    store.sync().await.unwrap();
    for name in FILES {
        fs::copy(live.join(name), dir.join(name)).unwrap();
    }
    store.close().await.unwrap();
    [before, last]
}

/// The objects that do not have what they had, or are not there.
async fn wrong(rt: &Rt, dir: &Path, holds: &Holds) -> BTreeSet<ObjectId> {
    let store = FileStore::open(rt.clone(), dir, Some(7), config(), None).await.unwrap();
    let mut wrong = BTreeSet::new();
    for (i, (byte, count)) in holds {
        let size = store.attr(object(*i)).await.map(|attr| attr.size);
        let read = store.read(object(*i), BlockRange { first: 0, count: *count }).await;
        let bytes = read.map(|blocks| blocks.bulk.to_vec());
        if size != Ok(count * PAGE as u64) || bytes != Ok(vec![*byte; PAGE * *count as usize]) {
            wrong.insert(object(*i));
        }
    }
    store.close().await.unwrap();
    wrong
}

#[test]
fn a_lost_page_of_the_newest_commit_costs_only_what_the_commit_before_does_not_have() {
    let (live, dir) = (in_memory(), in_memory());
    let (live_at, at) = (live.path().to_path_buf(), dir.path().to_path_buf());
    on_shard(async move |rt| {
        let [before, last] = killed(rt.clone(), &live_at, &at).await;
        let files = FILES.map(|name| (name, fs::read(at.join(name)).unwrap()));
        let whole = &files[1].1;
        let (mut kept, mut gone) = (0, 0);
        for page in (1..whole.len() / PAGE).filter(|page| whole[page * PAGE..][..PAGE].iter().any(|b| *b != 0)) {
            files.iter().for_each(|(name, bytes)| fs::write(at.join(name), bytes).unwrap());
            let mut bytes = whole.clone();
            bytes[page * PAGE..][..PAGE].fill(0);
            fs::write(at.join("meta.redb"), &bytes).unwrap();
            let what = format!("page {page}");
            let (suspects, salvaged) = repaired(&rt, &at, &what).await.unwrap();
            let lost = wrong(&rt, &at, &last).await;
            if suspects.is_empty() && !lost.is_empty() {
                // Where all tables are is lost: the commit before counts as it was.
                assert_eq!(wrong(&rt, &at, &before).await, BTreeSet::new(), "{what}");
                gone += 1;
                continue;
            }
            let silent: Vec<_> = lost.difference(&suspects).filter(|o| **o != object(MADE)).collect();
            assert!(silent.is_empty(), "{what}: {silent:?} have lost something in silence");
            // A leaf has so many rows of extents at most.
            assert!(lost.len() <= 85, "{what}: {} objects are lost", lost.len());
            kept += usize::from(salvaged && lost.len() + suspects.len() <= 4);
        }
        assert!(gone <= 1, "{gone} pages cost the whole commit");
        assert!(kept > 0, "of no page the commit before had all rows in another place");
    });
}
