//! Every byte of a small store, flipped: fsck's reading finds it, or nobody reads it before it is written again.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use dbcheck::Whole;
use frames::Bulk;
use oss::store::{BlockRun, ObjectStore, SizeRule, StoreIdentity, Update};
use rt::{BlockingFile, Rt};
use simworld::TestWorld;
use store_file::{Checked, FileStore, FileStoreConfig, MkfsOptions, check_files, mkfs};
use types::{ClientId, ObjectId, Origin, OstIndex};

const PAGE: usize = 4096;
const CACHE_BYTES: usize = 1 << 20;
const DIR: &str = "/ost0";

/// A file in memory with one byte changed, which remembers what was read of it.
#[derive(Clone)]
struct Image {
    bytes: Arc<Vec<u8>>,
    flip: Option<usize>,
    read: Option<Arc<Mutex<Vec<bool>>>>,
}

impl Image {
    fn of(bytes: &Arc<Vec<u8>>, flip: Option<usize>) -> Image {
        Image { bytes: bytes.clone(), flip, read: None }
    }
}

impl BlockingFile for Image {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        let from = self.bytes.get(at..at + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(from);
        if let Some(flip) = self.flip.filter(|f| (at..at + into.len()).contains(f)) {
            into[flip - at] ^= 1 << (flip % 8);
        }
        if let Some(read) = &self.read {
            read.lock().unwrap()[at..at + into.len()].fill(true);
        }
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        panic!("a check writes nothing");
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        panic!("a check writes nothing");
    }
    fn sync(&self) -> io::Result<()> {
        panic!("a check writes nothing");
    }
}

/// The files of a store with objects, holes, reserved space, removed objects and a session; closed.
async fn store(rt: Rt) -> (Arc<Vec<u8>>, Arc<Vec<u8>>) {
    let store = filled(rt.clone()).await;
    store.close().await.unwrap();
    drop(store);
    (bytes_of(&rt, "data"), bytes_of(&rt, "meta.redb"))
}

fn bytes_of(rt: &Rt, name: &str) -> Arc<Vec<u8>> {
    let file = rt.open_blocking(&Path::new(DIR).join(name), false).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read(0, &mut bytes).unwrap();
    Arc::new(bytes)
}

/// The same, open.
async fn filled(rt: Rt) -> FileStore {
    let dir = Path::new(DIR);
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    mkfs(&rt, dir, &MkfsOptions { identity, capacity_bytes: 0, lost_through: 0 }).await.unwrap();
    let config = FileStoreConfig { grow_bytes: 1 << 18, db_cache_bytes: 1 << 20, ..FileStoreConfig::default() };
    let store = FileStore::open(rt.clone(), dir, Some(7), config, None).await.unwrap();
    let object = |i| ObjectId::new(OstIndex(0), i);
    store.create(ObjectId::seq_of(OstIndex(0)), 6).await.unwrap();
    store.session_open(ClientId(3), 5, Origin { machine: 3, boot: 4, host: 1, process: 2 }).await.unwrap();
    for i in 1..=3u32 {
        for first in [0, u64::from(i) * 2] {
            let mut bulk: Bulk = rt.bulk(PAGE).await;
            bulk.copy_in(0, &vec![i as u8; PAGE]);
            let crcs = bulk.slices().flat_map(|s| s.chunks_exact(PAGE)).map(wire::crc32c).collect();
            let puts = vec![BlockRun { first, bulk, crcs }];
            let size = SizeRule::AtLeast((first + 1) * PAGE as u64);
            store.update(object(i), Update { puts, size, ..Update::default() }).await.unwrap();
        }
    }
    let reserves = vec![oss::store::BlockRange { first: 40, count: 3 }];
    store.update(object(2), Update { reserves, ..Update::default() }).await.unwrap();
    store.destroy(vec![object(3), object(5)], None).await.unwrap();
    store
}

fn checked(data: &Image, meta: &Image) -> Checked {
    check_files(data, Box::new(meta.clone()), None, true, CACHE_BYTES).unwrap().0
}

/// Offsets in `read`, which are what a check of the whole store reads.
fn read_bytes(data: &Arc<Vec<u8>>, meta: &Arc<Vec<u8>>) -> [Vec<bool>; 2] {
    let watched = |bytes: &Arc<Vec<u8>>| Image {
        read: Some(Arc::new(Mutex::new(vec![false; bytes.len()]))),
        ..Image::of(bytes, None)
    };
    let (d, m) = (watched(data), watched(meta));
    let clean = checked(&d, &m);
    assert_eq!((clean.faults, clean.notes), (vec![], vec![]));
    assert!(clean.complete);
    [d, m].map(|i| i.read.unwrap().lock().unwrap().clone())
}

#[test]
fn every_flipped_byte_of_a_store_is_found_or_is_one_that_nobody_reads() {
    let world = TestWorld::new(1, 64 << 20);
    let (data, meta) = world.run(store(world.rt()));
    let [data_read, meta_read] = read_bytes(&data, &meta);
    let clean = checked(&Image::of(&data, None), &Image::of(&meta, None));
    // Data: each block that an extent maps and block 0 are read, and every flip there is found.
    let read: Vec<usize> = (0..data.len()).filter(|i| data_read[*i]).collect();
    assert_eq!(read.len() / PAGE, 1 + 2 * 2, "block 0 and two objects of two blocks");
    for at in read {
        let found = checked(&Image::of(&data, Some(at)), &Image::of(&meta, None));
        assert_eq!(found.faults.len(), 1, "byte {at} of the data file: {:?}", found.faults);
    }
    // The database: what is not found lies behind the content of its page, or in the slot of the commit before.
    let primary = 64 + 128 * usize::from(meta[9] & 1);
    let spare = 64 + 192 - primary;
    let mut missed: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for at in (0..meta.len()).filter(|i| meta_read[*i]) {
        let found = checked(&Image::of(&data, None), &Image::of(&meta, Some(at)));
        if found.faults.is_empty() {
            assert_eq!(found.objects, clean.objects, "byte {at} of the database changes what is read");
            missed.entry(at / PAGE).or_default().push(at % PAGE);
        }
    }
    for (page, at) in &missed {
        let what = format!("page {page}: {:?}..={:?}, {} bytes", at.first(), at.last(), at.len());
        if *page == 0 {
            // Flag 2 of byte 9 says that the file was not closed: the next opening verifies all of it.
            let slack = |i: &usize| *i == 9 || (spare..spare + 128).contains(i);
            assert!(at.iter().all(slack), "{what} (spare slot at {spare}): {at:?}");
        } else {
            assert!(at.len() < PAGE && at[0] + at.len() == PAGE, "not the rest of a page: {what}");
        }
    }
}

#[test]
fn a_newest_commit_that_the_medium_changed_is_named_after_a_kill_and_not_left_out() {
    let world = TestWorld::new(1, 64 << 20);
    let [named, left_out] = world.run(async {
        let rt = world.rt();
        let store = filled(rt.clone()).await;
        let (data, meta) = (bytes_of(&rt, "data"), bytes_of(&rt, "meta.redb"));
        let whole = Whole::known(&rt, &Path::new(DIR).join("meta.redb"));
        assert!(whole.is_some(), "the store writes down which commit is whole");
        let check = |meta: Image, whole: Option<&Whole>| {
            check_files(&Image::of(&data, None), Box::new(meta), whole, false, CACHE_BYTES).unwrap().0
        };
        let clean = check(Image::of(&meta, None), whole.as_ref());
        assert_eq!((&clean.faults, &clean.notes), (&vec![], &vec![]), "as it was killed");
        let [mut named, mut left_out] = [0; 2];
        for at in (0..meta.len()).step_by(PAGE / 8) {
            let found = check(Image::of(&meta, Some(at)), whole.as_ref());
            assert!(!found.faults.is_empty() || found.objects == clean.objects, "byte {at}: another commit, unseen");
            named += u32::from(found.faults.iter().any(|f| f.contains(" was whole, and is not any more")));
            let unknown = check(Image::of(&meta, Some(at)), None);
            left_out +=
                u32::from(unknown.faults.is_empty() && unknown.notes.iter().any(|n| n.contains("is not whole")));
        }
        store.abandon();
        [named, left_out]
    });
    assert!(named > 0 && left_out > 0, "{named} named, {left_out} left out without the number: the flips show nothing");
}

/// What is known of the last commit when the power failed some seconds after it.
fn known_after_a_power_loss(seed: u64, bug: Option<&'static str>) -> Option<u64> {
    types::planted::plant(bug);
    let world = TestWorld::new(seed, 64 << 20);
    world.run(async {
        let store = filled(world.rt()).await;
        world.rt().sleep(types::Duration::from_secs(5)).await;
        store.abandon();
    });
    types::planted::plant(None);
    let next = world.power_cycle(seed);
    let rt = next.rt();
    Whole::known(&rt, &Path::new(DIR).join("meta.redb")).and_then(|w| w.commit())
}

#[test]
fn which_commit_was_whole_is_known_after_a_power_loss_when_the_store_had_come_to_rest() {
    assert!((0..20).any(|seed| known_after_a_power_loss(seed, Some("whole-unsettled")).is_none()));
    assert!((0..20).all(|seed| known_after_a_power_loss(seed, None).is_some()));
}

/// Opens the store whose files are put into `dir` first, the database with a flipped byte, and reads all that it has.
async fn opened(rt: &Rt, files: &[Arc<Vec<u8>>; 2], flip: Option<usize>, check_bytes_max: u64) -> Result<(), String> {
    let dir = Path::new("/again");
    for (name, bytes) in ["data", "meta.redb"].into_iter().zip(files) {
        let mut bytes = bytes.to_vec();
        if let Some(at) = flip.filter(|_| name == "meta.redb") {
            bytes[at] ^= 1 << (at % 8);
        }
        let file = rt.open_blocking(&dir.join(name), true).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        file.write(0, &bytes).unwrap();
        file.sync().unwrap();
    }
    let config = FileStoreConfig { check_bytes_max, db_cache_bytes: CACHE_BYTES, ..FileStoreConfig::default() };
    let store = FileStore::open(rt.clone(), dir, Some(7), config, None).await.map_err(|e| e.to_string())?;
    let objects = store.objects(ObjectId::default(), 100).await.map_err(|e| e.to_string())?;
    for object in objects {
        store.verify(object.object).await.map_err(|e| e.to_string())?;
    }
    store.abandon();
    Ok(())
}

#[test]
fn a_damaged_database_is_refused_before_a_server_trusts_it_and_makes_none_panic() {
    let world = TestWorld::new(1, 64 << 20);
    let (data, meta) = world.run(store(world.rt()));
    let [_, meta_read] = read_bytes(&data, &meta);
    let rt = world.rt();
    let files = [data.clone(), meta.clone()];
    assert_eq!(world.run(opened(&rt, &files, None, 1 << 30)), Ok(()));
    let (mut refused, mut trusted) = (0, 0);
    for at in (0..meta.len()).filter(|i| meta_read[*i]).step_by(97) {
        let faults = checked(&Image::of(&data, None), &Image::of(&meta, Some(at))).faults;
        let found = world.run(opened(&rt, &files, Some(at), 1 << 30));
        match &found {
            Err(why) => {
                assert!(why.contains("/again is damaged: ") && why.ends_with("run 'stria fsck'"), "byte {at}: {why}")
            }
            Ok(()) => assert!(faults.iter().all(|f| !f.contains("page")), "byte {at}: {faults:?}"),
        }
        refused += u32::from(found.is_err());
        // One that is not looked at is trusted, or it is said what cannot be read.
        trusted += u32::from(world.run(opened(&rt, &files, Some(at), 0)).is_ok());
    }
    assert!(refused > 20 && trusted > 0, "{refused} refused, {trusted} trusted unseen: the flips show nothing");
}
