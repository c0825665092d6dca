//! A damaged database: every record but those that were hit is read again, and none that was replaced or removed comes back.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use frames::FramePool;
use mds::MkfsOptions;
use mds::config_service::ClusterMap;
use mds::kv::{Answer, KvBatch, MetaKv, unseal};
use mds::record::HorizonRow;
use mds::salvaged::Revoked;
use rt::{BlockingFile, Rt};
use types::{Rng, WallTime};

const CACHE_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn on_shard<T: Send + 'static>(work: impl AsyncFnOnce(Rt) -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        rt::real::run(FramePool::new(1 << 20), |rt| async move { tell.send(work(rt).await).unwrap() }).unwrap();
    });
    thread.join().unwrap();
    told.recv().unwrap()
}

/// A store of `records` names that were written several times, some of them removed, in `dir`. What it holds.
async fn fill(rt: Rt, dir: &Path, records: u64) -> Records {
    let options = MkfsOptions {
        fsname: "stria".into(),
        cluster: 1,
        uuid: 2,
        hash_keys: [3, 4],
        hash_mask: u64::MAX,
        root_uid: 0,
        root_gid: 0,
        root_mode: 0o755,
        now: WallTime(1),
    };
    store_redb::mkfs(rt.clone(), dir, &options).await.unwrap();
    let kv = store_redb::open(rt, dir, CACHE_BYTES).unwrap();
    let mut rng = Rng::new(7);
    for round in 0..6u64 {
        let mut batch = KvBatch::default();
        for i in 0..records {
            // All of them at first, then here and there.
            if round > 0 && rng.below(5) > 0 {
                continue;
            }
            let key = format!("record {:05} of a directory", (i * 7919) % records).into_bytes();
            let removed = round > 0 && rng.below(10) == 0;
            let value = format!("round {round} of {i}, {}", "x".repeat(rng.below(90) as usize));
            batch.changes.insert(key.into(), (!removed).then(|| value.into_bytes()));
        }
        kv.commit(Arc::new(batch)).await.unwrap();
    }
    all(&*kv).await
}

async fn all(kv: &dyn MetaKv) -> Records {
    let snapshot = kv.snapshot().await.unwrap();
    let pairs = snapshot.range(&[], &[0xff; 64], usize::MAX);
    let mds::kv::Answer::Now(pairs) = pairs else { panic!("this engine answers at once") };
    pairs
        .unwrap()
        .into_iter()
        .map(|(k, v)| (k.to_vec(), unseal(&k, v).unwrap_or_else(|_| b"damaged".to_vec())))
        .collect()
}

/// A file in memory.
struct Bytes(Vec<u8>);
impl BlockingFile for Bytes {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let range = offset as usize..offset as usize + into.len();
        into.copy_from_slice(self.0.get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// What is salvaged of a damaged file.
fn salvaged(bytes: Vec<u8>) -> Records {
    let mut found = Records::new();
    let mut take = |key: &[u8], value: &[u8], trusted: bool| {
        let value = unseal(key, value.to_vec()).unwrap_or_else(|_| b"damaged".to_vec());
        if trusted || !found.contains_key(key) {
            found.insert(key.to_vec(), value);
        }
        Ok(())
    };
    let file = Bytes(bytes);
    for commit in dbcheck::commits(&file).unwrap() {
        let shape = dbcheck::Shape::default();
        let saved = dbcheck::salvage(&file, &commit, "mdt", shape, Some(&mds::kv::is_whole), &mut take).unwrap();
        if saved.records > 0 {
            break;
        }
    }
    found
}

/// A filled store in a directory: that, what the store holds, and its file.
fn filled(records: u64) -> (tempfile::TempDir, Records, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_path_buf();
    let held = on_shard(async move |rt| fill(rt, &at, records).await);
    let whole = fs::read(dir.path().join(store_redb::STORE_FILE)).unwrap();
    (dir, held, whole)
}

#[test]
fn a_flipped_byte_anywhere_costs_two_records_at_most_and_brings_nothing_back() {
    let (_dir, records, whole) = filled(2500);
    assert_eq!(salvaged(whole.clone()), records);
    let (mut rng, mut hit) = (Rng::new(1), 0);
    // Behind the header, each page in its head, its offsets and what it holds.
    for place in (PAGE_BYTES..whole.len()).step_by(PAGE_BYTES).flat_map(|page| {
        [0, 2, 4, 8, 9 + rng.below(64), 80 + rng.below(700), rng.below(4096), rng.below(4096)]
            .map(|at| page + at as usize)
    }) {
        let mut bytes = whole.clone();
        bytes[place] ^= 1 << (place % 8);
        let found = salvaged(bytes);
        let wrong: Vec<_> = found.iter().filter(|(k, v)| records.get(*k) != Some(v)).collect();
        assert!(wrong.is_empty(), "byte {place}: {} are not as they were, like {:?}", wrong.len(), wrong[0]);
        let lost = records.len() - found.len();
        assert!(lost <= 2, "byte {place}: {lost} records are lost");
        hit += usize::from(lost > 0);
    }
    assert!(hit > 20, "no more than {hit} flips took a record: these were not the pages of the tree");
}

#[test]
fn a_header_that_says_wrongly_where_pages_are_costs_no_record() {
    let (_dir, records, whole) = filled(500);
    // The length of a page, and of a region's head and data.
    for bit in 8 * 12..8 * 24 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(salvaged(bytes) == records, "bit {bit}");
    }
}

#[test]
fn nothing_old_comes_back_for_what_was_on_pages_that_are_gone() {
    let (_dir, records, whole) = filled(9000);
    let mut saved = 0;
    for seed in 0..40 {
        let (mut rng, mut bytes) = (Rng::new(seed), whole.clone());
        for _ in 0..10 {
            let page = 1 + rng.below((whole.len() / PAGE_BYTES - 1) as u64) as usize;
            bytes[page * PAGE_BYTES..][..PAGE_BYTES].iter_mut().for_each(|b| *b = rng.next_u64() as u8);
        }
        let found = salvaged(bytes);
        assert!(found.iter().all(|(k, v)| records.get(k) == Some(v)), "seed {seed}: something old came back");
        saved += found.len();
    }
    assert!(saved > 20 * records.len(), "{saved} of 40 times {} records", records.len());
}

#[test]
fn a_long_record_is_found_although_its_page_does_not_say_how_many_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_path_buf();
    let records = on_shard(async move |rt| {
        fill(rt.clone(), &at, 300).await;
        let kv = store_redb::open(rt, &at, CACHE_BYTES).unwrap();
        let mut batch = KvBatch::default();
        let mut rng = Rng::new(3);
        // Offsets that might be any, everywhere.
        let value = (0..1 << 17).flat_map(|_| (rng.below(1 << 19) as u32).to_le_bytes()).collect();
        batch.changes.insert(b"long"[..].into(), Some(value));
        kv.commit(Arc::new(batch)).await.unwrap();
        all(&*kv).await
    });
    let whole = fs::read(dir.path().join(store_redb::STORE_FILE)).unwrap();
    let long = &records[&b"long"[..]];
    let value = whole.windows(64).rposition(|w| w == &long[..64]).unwrap();
    // The page begins with type and number of entries, and its end was hit as well.
    for hit in [vec![value / PAGE_BYTES * PAGE_BYTES + 2], vec![value / PAGE_BYTES * PAGE_BYTES + 2, value + 1000]] {
        let mut bytes = whole.clone();
        hit.iter().for_each(|at| bytes[*at] ^= 0x55);
        let found = salvaged(bytes);
        assert!(found.iter().all(|(k, v)| records.get(k) == Some(v)));
        assert_eq!(found.contains_key(&b"long"[..]), hit.len() == 1);
    }
}

#[test]
fn a_store_is_made_of_what_was_salvaged_and_the_damaged_one_stays_beside_it() {
    let (dir, records, whole) = filled(2500);
    let store = dir.path().join(store_redb::STORE_FILE);
    for attempt in 0..2 {
        let mut bytes = whole.clone();
        let value = bytes.windows(8).rposition(|w| w == b"round 5 ").unwrap();
        bytes[value] ^= 1;
        fs::write(&store, &bytes).unwrap();
        let at = dir.path().to_path_buf();
        let (found, aside) = on_shard(async move |rt| {
            let made = store_redb::salvage(&rt, &at, CACHE_BYTES, Revoked::default()).await.unwrap();
            let kv: Rc<dyn MetaKv> = store_redb::open(rt, &at, CACHE_BYTES).unwrap();
            let mut found = all(&*kv).await;
            // Nothing tells whether there were any.
            let horizon: HorizonRow = wire::decode(&found.remove(mds::keys::HORIZON).unwrap()).unwrap();
            let map: ClusterMap = wire::decode(&found.remove(mds::keys::CLUSTER_MAP).unwrap()).unwrap();
            assert!(horizon.doubting && map.client_key_revoked.0 != 0 && made.instead.len() == 5, "{made:?}");
            assert_eq!(found.len() as u64, made.saved.records, "attempt {attempt}");
            (found, made.aside)
        });
        assert!(found.len() + 1 >= records.len() && found.iter().all(|(k, v)| records.get(k) == Some(v)));
        assert!(fs::read(aside).unwrap() == bytes);
    }
    // A file without bytes: it is said what helps, and nothing changes.
    fs::write(&store, []).unwrap();
    let at = dir.path().to_path_buf();
    let said = on_shard(async move |rt| {
        let made = store_redb::salvage(&rt, &at, CACHE_BYTES, Revoked::default()).await;
        made.map(drop).unwrap_err().to_string()
    });
    assert!(said.starts_with(&format!("{}: it has no bytes", store.display())), "{said}");
    assert!(said.contains("'stria mdt restore'") && fs::read(&store).unwrap().is_empty(), "{said}");
    // Nothing to be read: nothing changes.
    fs::write(&store, vec![0; whole.len()]).unwrap();
    let at = dir.path().to_path_buf();
    let said = on_shard(async move |rt| {
        store_redb::salvage(&rt, &at, CACHE_BYTES, Revoked::default())
            .await
            .map(|m| m.saved.records)
            .map_err(|e| e.to_string())
    });
    assert!(matches!(&said, Ok(0)) || said.as_ref().unwrap_err().contains("where pages are"), "{said:?}");
    assert!(fs::read(&store).unwrap() == vec![0; whole.len()]);
}

#[test]
fn sessions_and_answers_go_when_any_record_may_be_lost_and_stay_when_none_is() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_path_buf();
    let session = mds::keys::session(types::ClientId(7));
    let of_test = session.clone();
    on_shard(async move |rt| {
        fill(rt.clone(), &at, 2500).await;
        let kv = store_redb::open(rt, &at, CACHE_BYTES).unwrap();
        let mut batch = KvBatch::default();
        batch.changes.insert(of_test, Some(b"who is connected".to_vec()));
        batch.changes.insert(mds::keys::CLUSTER_MAP.into(), Some(wire::encode(&ClusterMap::default())));
        kv.commit(Arc::new(batch)).await.unwrap();
    });
    let store = dir.path().join(store_redb::STORE_FILE);
    let whole = fs::read(&store).unwrap();
    for hit in [false, true] {
        let mut bytes = whole.clone();
        if hit {
            let value = bytes.windows(8).rposition(|w| w == b"round 5 ").unwrap();
            bytes[value] ^= 1;
        }
        fs::write(&store, &bytes).unwrap();
        let at = dir.path().to_path_buf();
        let (made, found) = on_shard(async move |rt| {
            let made = store_redb::salvage(&rt, &at, CACHE_BYTES, Revoked::default()).await.unwrap();
            let kv: Rc<dyn MetaKv> = store_redb::open(rt, &at, CACHE_BYTES).unwrap();
            (made, all(&*kv).await)
        });
        assert_eq!(found.contains_key(&session[..]), !hit, "{made:?}");
        assert_eq!(found.contains_key(mds::keys::HORIZON), hit, "{made:?}");
        let map: ClusterMap = wire::decode(&found[mds::keys::CLUSTER_MAP]).unwrap();
        assert_eq!(map, ClusterMap::default(), "it was saved");
        assert_eq!(made.saved.damaged_pages > 0, hit);
    }
}

#[test]
fn a_damaged_database_is_refused_before_a_server_trusts_it_and_makes_none_panic() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_path_buf();
    let (refused, trusted) = on_shard(async move |rt| {
        fill(rt.clone(), &at, 300).await;
        let path = at.join(store_redb::STORE_FILE);
        let whole = fs::read(&path).unwrap();
        assert!(store_redb::open_checked(rt.clone(), &at, CACHE_BYTES, 1 << 30).await.is_ok());
        let (mut refused, mut trusted) = (0, 0);
        for at_byte in (0..whole.len()).step_by(whole.len() / 150) {
            for bytes_max in [1 << 30, 0] {
                let mut bytes = whole.clone();
                bytes[at_byte] ^= 1 << (at_byte % 8);
                fs::write(&path, bytes).unwrap();
                match store_redb::open_checked(rt.clone(), &at, CACHE_BYTES, bytes_max).await {
                    Err(e) if bytes_max > 0 => {
                        let why = e.to_string();
                        assert!(why.contains("is damaged: ") && why.ends_with("run 'stria fsck'"), "{at_byte}: {why}");
                        refused += 1;
                    }
                    Err(_) => {}
                    Ok(kv) => {
                        let kv: Rc<dyn MetaKv> = kv;
                        // An error or what is there, and no panic.
                        let read =
                            kv.snapshot().await.map(|s| matches!(s.range(&[0], &[255], 10_000), Answer::Now(Ok(_))));
                        trusted += u32::from(bytes_max == 0 && read == Ok(true));
                    }
                }
            }
        }
        (refused, trusted)
    });
    assert!(refused > 20 && trusted > 20, "{refused} refused, {trusted} trusted unseen: the flips show nothing");
}

#[test]
fn what_rots_below_an_open_database_is_named_and_no_record_of_it_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_path_buf();
    let named = on_shard(async move |rt| {
        let held = fill(rt.clone(), &at, 2000).await;
        let path = at.join(store_redb::STORE_FILE);
        let whole = fs::read(&path).unwrap();
        let mut named = 0;
        for byte in (PAGE_BYTES..whole.len()).step_by(whole.len() / 60) {
            fs::write(&path, &whole).unwrap();
            // With so small a cache pages are read from the medium again.
            let kv = store_redb::open_checked(rt.clone(), &at, PAGE_BYTES, 1 << 30).await.unwrap();
            let file = fs::File::options().write(true).open(&path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[whole[byte] ^ 1 << (byte % 8)], byte as u64).unwrap();
            let Ok(snapshot) = kv.snapshot().await else { continue };
            let mut is_named = false;
            for (key, value) in &held {
                let Answer::Now(got) = snapshot.get(key) else { panic!("this engine answers at once") };
                match got {
                    Ok(Some(got)) => assert!(unseal(key, got).as_ref() == Ok(value), "byte {byte}"),
                    Ok(None) => panic!("byte {byte}: a record is missing"),
                    Err(e) => is_named |= e.to_string().contains("is not what was written: run 'stria fsck'"),
                }
            }
            named += u32::from(is_named);
        }
        named
    });
    assert!(named > 5, "{named} of the flips were seen: they show nothing");
}

#[test]
fn a_commit_that_was_whole_is_never_left_out_in_silence_after_a_crash() {
    let (running, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (at, copy) = (running.path().to_path_buf(), crashed.path().to_path_buf());
    let [refused, left_out] = on_shard(async move |rt| {
        fill(rt.clone(), &at, 300).await;
        let kv = store_redb::open(rt.clone(), &at, CACHE_BYTES).unwrap();
        let last = b"the last record".to_vec();
        for n in 0..3u8 {
            let mut batch = KvBatch::default();
            batch.changes.insert(last.clone().into(), Some(vec![n; 20]));
            kv.commit(Arc::new(batch)).await.unwrap();
        }
        // As a process leaves it that is killed.
        let file = store_redb::STORE_FILE;
        let (bytes, noted) = (fs::read(at.join(file)).unwrap(), fs::read(at.join(format!("{file}.whole"))).unwrap());
        let written = all(&*kv).await.len();
        drop(kv);
        let (mut counts, mut saved) = ([0; 2], 0);
        for (knows, count) in [true, false].into_iter().zip(&mut counts) {
            for byte in (0..bytes.len()).step_by(PAGE_BYTES / 4) {
                let mut flipped = bytes.clone();
                flipped[byte] ^= 1 << (byte / PAGE_BYTES % 8);
                fs::write(copy.join(file), flipped).unwrap();
                fs::write(copy.join(format!("{file}.whole")), if knows { &noted[..] } else { b"" }).unwrap();
                match store_redb::open_checked(rt.clone(), &copy, CACHE_BYTES, 1 << 30).await {
                    Err(e) if knows && e.to_string().contains(" was whole, and is not any more") => {
                        *count += 1;
                        // It was promised: a repair gives up what was hit of it, not all that it brought.
                        let mended = store_redb::mend_database(&rt, &copy, CACHE_BYTES).await.unwrap();
                        assert_eq!(mended, dbcheck::Mended::No, "byte {byte}");
                        let made = store_redb::salvage(&rt, &copy, CACHE_BYTES, Revoked::default()).await.unwrap();
                        fs::remove_file(made.aside).unwrap();
                        let found = store_redb::examine(&rt, &copy, CACHE_BYTES).await.unwrap();
                        assert_eq!(found.faults, Vec::<String>::new(), "byte {byte}");
                        drop(found);
                        let again = store_redb::open_checked(rt.clone(), &copy, CACHE_BYTES, 1 << 30).await;
                        assert!(again.is_ok(), "byte {byte}: {}", again.as_ref().err().unwrap());
                        let there = all(&*again.unwrap()).await;
                        saved += u32::from(there.get(&last).is_some_and(|v| v.starts_with(&[2; 20])));
                        assert!(there.len() + 2 >= written, "byte {byte}: {} of {written} records", there.len());
                    }
                    Err(_) => {}
                    Ok(kv) => {
                        let there = all(&*kv).await.get(&last).is_some_and(|v| v.starts_with(&[2; 20]));
                        *count += u32::from(!knows && !there);
                        assert!(there || !knows, "byte {byte}: the last commit is gone, and nobody says so");
                    }
                }
            }
        }
        assert!(saved > 0, "no repair kept what the newest commit brought");
        counts
    });
    assert!(refused > 0 && left_out > 0, "{refused} refused, {left_out} left out: the flips show nothing");
}
