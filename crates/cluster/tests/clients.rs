//! Clients of a cluster in one process, without a kernel in front: what they ask for, and what failures of stores become.
#![allow(clippy::unwrap_used)]
use std::rc::Rc;

use cache::frames::FramePool;
use client::{Client, ClientConfig, Hint, NewFile, OpenFile};
use cluster::{MdsRole, OssRole, join, register_ost, start_mds_on, start_oss};
use mds::{MdsConfig, MemoryKv, MetaKv, MkfsOptions};
use oss::OstConfig;
use oss::store::{MemoryStore, ObjectStore, StoreIdentity};
use ptlrpc::ClusterKey;
use rt::{Nid, Rt};
use types::{Duration, Extent, Fid, FsError, KIB, MIB, OstIndex};
use wire::mdt::Cred;

const O_RDWR: u32 = 2;
const O_CREAT: u32 = 0o100;
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster whose stores are in memory.
struct World {
    rt: Rt,
    mds_nid: Nid,
    stores: Vec<Rc<MemoryStore>>,
    _mds: MdsRole,
    oss: OssRole,
}

fn root() -> Cred {
    Cred { caps: 3, ..Cred::default() }
}

impl World {
    /// `name` keeps the addresses of tests apart.
    async fn new(rt: Rt, name: &str, osts: u16, ost_bytes: u64) -> World {
        let kv: Rc<dyn MetaKv> = MemoryKv::new();
        let (fsname, cluster, uuid) = ("stria".to_string(), 0x57a1, rt.random() | 1);
        let (hash_keys, hash_mask) = ([rt.random(), rt.random()], u64::MAX);
        let (root_uid, root_gid, root_mode, now) = (0, 0, 0o755, rt.wall());
        let options = MkfsOptions { fsname, cluster, uuid, hash_keys, hash_mask, root_uid, root_gid, root_mode, now };
        mds::mkfs::format(&kv, &options).await.unwrap();
        let (mds_nid, oss_nid) = (Nid::Local(format!("mds-{name}")), Nid::Local(format!("oss-{name}")));
        let (key, window) = (ClusterKey::none(), Duration::from_secs(5));
        let mds = start_mds_on(&rt, kv, &mds_nid, &key, window, MdsConfig::default()).await.unwrap();
        let store = |i| {
            let identity = StoreIdentity { cluster, fsname: "stria".into(), ost: OstIndex(i), uuid: 7 + u64::from(i) };
            MemoryStore::new(&rt, identity, ost_bytes)
        };
        let stores: Vec<_> = (0..osts).map(store).collect();
        let served = stores.iter().map(|s| s.clone() as Rc<dyn ObjectStore>).collect();
        let oss = start_oss(&rt, served, &oss_nid, &mds_nid, &key, window, &OstConfig::default()).unwrap();
        World { rt, mds_nid, stores, _mds: mds, oss }
    }
    async fn client(&self) -> Rc<Client> {
        join(&self.rt, ClientConfig::new(self.mds_nid.clone()), self.stores.len(), PATIENCE).await.unwrap()
    }
}

/// Runs a test on a shard.
fn on_a_shard(test: impl AsyncFnOnce(Rt)) {
    rt::real::run(FramePool::new(256 << 20), async |rt| test(rt).await).unwrap();
}

async fn create(c: &Rc<Client>, dir: Fid, name: &str) -> Rc<OpenFile> {
    let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, ..NewFile::default() };
    c.create_open(&root(), dir, name.as_bytes(), new).await.unwrap().1
}
async fn lookup(c: &Rc<Client>, dir: Fid, name: &[u8]) -> client::Entry {
    let entry = c.lookup(&root(), dir, name).await.unwrap();
    assert!(!entry.attr.fid.is_zero(), "{} is there", String::from_utf8_lossy(name));
    entry
}
/// Requests sent to the metadata server so far.
fn asked(c: &Client) -> u64 {
    c.mdc().counters().1
}
/// All names, listed page by page.
async fn list(c: &Rc<Client>, dir: Fid, plus: bool) -> Vec<Vec<u8>> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let page = c.readdir(&root(), dir, cookie, 256 << 10, plus).await.unwrap();
        names.extend(page.entries.iter().map(|e| e.name.0.clone()));
        match page.entries.last() {
            Some(last) if !page.eof => cookie = last.cookie,
            _ => return names,
        }
    }
}

#[test]
fn attributes_of_a_listed_directory_cost_hardly_a_request_in_whatever_order_they_are_asked_for() {
    on_a_shard(async |rt| {
        const FILES: u64 = 3000;
        let world = World::new(rt, "listing", 2, 64 * MIB).await;
        let maker = world.client().await;
        for i in 0..FILES {
            let file = create(&maker, Fid::ROOT, &format!("file{i:05}")).await;
            maker.release(&file).await.unwrap();
        }
        // As `ls -l` does where the kernel asks for attributes with the names.
        let plus = world.client().await;
        let before = asked(&plus);
        let names = list(&plus, Fid::ROOT, true).await;
        assert_eq!(names.len() as u64, FILES);
        for name in &names {
            let entry = lookup(&plus, Fid::ROOT, name).await;
            assert!(entry.name_cached && entry.attr_cached, "a kernel may keep it");
        }
        let with_attributes = asked(&plus) - before;
        // Names first, then each by name in alphabetical order, as a shell's pattern does.
        let plain = world.client().await;
        let before = asked(&plain);
        let mut names = list(&plain, Fid::ROOT, false).await;
        names.sort();
        for name in &names {
            lookup(&plain, Fid::ROOT, name).await;
        }
        let names_first = asked(&plain) - before;
        println!("{FILES} entries: {with_attributes} requests with attributes, {names_first} with names first");
        assert!(with_attributes <= 4 + FILES / 500, "{with_attributes} requests for {FILES} entries");
        assert!(names_first <= FILES / 10, "{names_first} requests for {FILES} entries");
        // What another client changes is seen all the same.
        let third = lookup(&maker, Fid::ROOT, &names[3]).await.attr.fid;
        let valid = wire::mdt::SetBits::MODE;
        let chmod = wire::mdt::SetattrRequest { valid, mode: 0o600, ..Default::default() };
        maker.setattr(&root(), &maker.inode_of(third), chmod, None).await.unwrap();
        maker.unlink(&root(), Fid::ROOT, &names[4], false).await.unwrap();
        for c in [&plus, &plain] {
            assert_eq!(lookup(c, Fid::ROOT, &names[3]).await.attr.mode & 0o777, 0o600);
            assert!(c.lookup(&root(), Fid::ROOT, &names[4]).await.unwrap().attr.fid.is_zero());
        }
    });
}

#[test]
fn a_few_look_ups_in_a_listed_directory_fetch_nothing_else() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "few", 1, 64 * MIB).await;
        let maker = world.client().await;
        for i in 0..20 {
            let file = create(&maker, Fid::ROOT, &format!("f{i}")).await;
            maker.release(&file).await.unwrap();
        }
        let c = world.client().await;
        list(&c, Fid::ROOT, false).await;
        let before = asked(&c);
        for name in [b"f3", b"f7", b"f1"] {
            lookup(&c, Fid::ROOT, name).await;
        }
        assert_eq!(asked(&c) - before, 3);
    });
}

#[test]
fn a_reader_that_becomes_a_writer_sends_its_own_lock_back_along() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "upgrade", 1, 64 * MIB).await;
        let (a, b) = (world.client().await, world.client().await);
        let file = create(&a, Fid::ROOT, "f").await;
        a.write(&file, 0, &[7; 100_000]).await.unwrap();
        a.fsync(&file, false).await.unwrap();
        let theirs = b.open(&root(), lookup(&b, Fid::ROOT, b"f").await.attr.fid, O_RDWR).await.unwrap();
        for round in 0..5u8 {
            assert_eq!(b.read(&theirs, 0, 100_000).await.unwrap().len(), 100_000);
            assert_eq!(a.read(&file, 0, 100_000).await.unwrap().len(), 100_000);
            // Both have read locks; only the other's has to be called back. A whole page needs no read of the old one.
            let sent = a.oscs()[0].import().unwrap().counters().1;
            a.write(&file, 0, &[round; 4096]).await.unwrap();
            let used = a.oscs()[0].import().unwrap().counters().1 - sent;
            assert!(used <= 1, "{used} requests for a write lock");
            assert_eq!(b.read(&theirs, 0, 4096).await.unwrap().to_vec(), [round; 4096]);
        }
    });
}

#[test]
fn a_first_read_brings_its_lock_along_and_what_another_client_writes_comes_back_all_the_same() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "along", 1, 64 * MIB).await;
        let (maker, c) = (world.client().await, world.client().await);
        let asked_ost = || c.oscs()[0].import().unwrap().counters().1;
        let text = |i: u8, len: usize| vec![i; len];
        for (i, len) in [(1, 4096), (2, 10), (3, 5000)] {
            let file = create(&maker, Fid::ROOT, &format!("f{i}")).await;
            maker.write(&file, 0, &text(i, len)).await.unwrap();
            maker.fsync(&file, false).await.unwrap();
            // Written and closed long ago: the writer holds no lock.
            maker.drop_caches().await;
            let theirs = lookup(&c, Fid::ROOT, format!("f{i}").as_bytes()).await.attr.fid;
            let theirs = c.open(&root(), theirs, O_RDWR).await.unwrap();
            let before = asked_ost();
            assert_eq!(c.read(&theirs, 0, 128 << 10).await.unwrap().to_vec(), text(i, len));
            assert_eq!(asked_ost() - before, 1, "requests for {len} bytes");
            assert_eq!(c.read(&theirs, 0, 128 << 10).await.unwrap().to_vec(), text(i, len));
            assert_eq!(asked_ost() - before, 1, "the pages are held under the lock");
            // A writer in the way, with pages that are not written out: the read waits for them.
            maker.write(&file, 0, &text(i + 10, len + 100)).await.unwrap();
            assert_eq!(c.read(&theirs, 0, 128 << 10).await.unwrap().to_vec(), text(i + 10, len + 100));
        }
    });
}

#[test]
fn a_readers_open_of_a_file_that_a_lock_keeps_asks_nobody_and_keeps_it_whatever_happens() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "untold", 1, 64 * MIB).await;
        let (maker, c) = (world.client().await, world.client().await);
        let made = create(&maker, Fid::ROOT, "f").await;
        maker.write(&made, 0, &[7; 5000]).await.unwrap();
        maker.release(&made).await.unwrap();
        let fid = lookup(&c, Fid::ROOT, b"f").await.attr.fid;
        let before = asked(&c);
        let files = [c.open(&root(), fid, 0).await.unwrap(), c.open(&root(), fid, 0).await.unwrap()];
        assert_ne!(files[0].id(), files[1].id());
        assert_eq!(c.read(&files[0], 0, 9000).await.unwrap().to_vec(), [7; 5000]);
        c.release(&c.open(&root(), fid, 0).await.unwrap()).await.unwrap();
        let first_told = asked(&c) - before;
        assert!(first_told <= 1, "{first_told} requests: when it was read, once");
        // Whoever may not read is told so, and whoever wants to write is known to the server.
        let stranger = Cred { uid: 1000, gid: 1000, ..Cred::default() };
        let chmod = wire::mdt::SetattrRequest { valid: wire::mdt::SetBits::MODE, mode: 0o600, ..Default::default() };
        c.setattr(&root(), &c.inode_of(fid), chmod, None).await.unwrap();
        assert_eq!(c.open(&stranger, fid, 0).await.err(), Some(FsError::Access));
        let before = asked(&c);
        let writer = c.open(&root(), fid, O_RDWR).await.unwrap();
        assert_eq!(asked(&c) - before, 1);
        c.release(&writer).await.unwrap();
        // The lock leaves: the server learns of the opens that rested on it.
        lookup(&c, Fid::ROOT, b"f").await;
        let late = c.open(&root(), fid, 0).await.unwrap();
        c.drop_caches().await;
        maker.unlink(&root(), Fid::ROOT, b"f", false).await.unwrap();
        maker.drop_caches().await;
        for file in files.iter().chain([&late]) {
            assert_eq!(c.getattr(&root(), fid, Some(file)).await.unwrap().attr.nlink, 0);
            assert_eq!(c.read(file, 0, 9000).await.unwrap().to_vec(), [7; 5000], "it has no name any more");
            c.release(file).await.unwrap();
        }
        c.drop_caches().await;
        let gone = maker.open(&root(), fid, 0).await.err();
        assert!(matches!(gone, Some(FsError::Stale | FsError::NotFound)), "{gone:?}");
    });
}

#[test]
fn a_file_that_is_open_untold_loses_its_name_but_not_its_bytes_and_gets_no_other_layout() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "untold-gone", 2, 64 * MIB).await;
        let (maker, c) = (world.client().await, world.client().await);
        let made = create(&maker, Fid::ROOT, "f").await;
        maker.release(&made).await.unwrap();
        let fid = lookup(&c, Fid::ROOT, b"f").await.attr.fid;
        let before = asked(&c);
        let file = c.open(&root(), fid, 0).await.unwrap();
        assert_eq!(asked(&c), before);
        // Nothing was written to it yet: only a reader that the server does not know of is in the way.
        let relaid = async || {
            let lov = maker.getxattr(&root(), fid, b"lustre.lov").await.unwrap();
            maker.setxattr(&root(), fid, b"lustre.lov", Some(&lov), 0, false).await.unwrap();
            maker.getxattr(&root(), fid, b"lustre.lov").await.unwrap() != lov
        };
        assert!(!relaid().await);
        c.release(&file).await.unwrap();
        c.drop_caches().await;
        assert!(relaid().await, "nobody else may have it open");
        lookup(&c, Fid::ROOT, b"f").await;
        let file = c.open(&root(), fid, 0).await.unwrap();
        let writer = maker.open(&root(), fid, O_RDWR).await.unwrap();
        maker.write(&writer, 0, b"bytes").await.unwrap();
        maker.release(&writer).await.unwrap();
        maker.unlink(&root(), Fid::ROOT, b"f", false).await.unwrap();
        maker.drop_caches().await;
        assert_eq!(c.read(&file, 0, 100).await.unwrap().to_vec(), b"bytes");
        c.release(&file).await.unwrap();
        c.drop_caches().await;
        let gone = maker.open(&root(), fid, 0).await.err();
        assert!(matches!(gone, Some(FsError::Stale | FsError::NotFound)), "{gone:?}");
    });
}

/// Reads and writes of two files at a time, more than the cache holds.
async fn work(c: &Rc<Client>, dir: &str) {
    let load = (0..2u64).map(|i| {
        let (c, name) = (c.clone(), format!("{dir}{i}"));
        async move {
            let file = create(&c, Fid::ROOT, &name).await;
            let mut rng = types::Rng::named(i, &name);
            for step in 0..60u64 {
                let (at, bytes) = (rng.below(12) * MIB, 1 + rng.below(3 * MIB));
                if rng.chance(0.5) {
                    c.write(&file, at, &vec![step as u8; bytes as usize]).await.unwrap();
                }
                c.read(&file, step * 300_000, 300_000).await.unwrap();
                c.read(&file, at, 4096).await.unwrap();
            }
            c.release(&file).await.unwrap();
        }
    });
    let load = load.map(|l| Box::pin(l) as rt::LocalFuture<()>).collect();
    rt::sync::join_all(load).await;
}

#[test]
fn readers_side_by_side_fetch_every_byte_once() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "side-by-side", 4, 256 * MIB).await;
        let (files, bytes) = (4u64, 48 * MIB);
        let writer = world.client().await;
        for i in 0..files {
            let file = create(&writer, Fid::ROOT, &i.to_string()).await;
            for at in (0..bytes).step_by(1 << 20) {
                writer.write(&file, at, &vec![i as u8; 1 << 20]).await.unwrap();
            }
            writer.release(&file).await.unwrap();
        }
        writer.sync_all().await.unwrap();
        let config = ClientConfig { cache_bytes: 8 * MIB, ..ClientConfig::new(world.mds_nid.clone()) };
        let reader = join(&world.rt, config, 4, PATIENCE).await.unwrap();
        let load = (0..files).map(|i| {
            let c = reader.clone();
            async move {
                let fid = c.lookup(&root(), Fid::ROOT, i.to_string().as_bytes()).await.unwrap().attr.fid;
                let file = c.open(&root(), fid, 0).await.unwrap();
                for at in (0..bytes).step_by(1 << 20) {
                    let got = c.read(&file, at, 1 << 20).await.unwrap();
                    assert!(got.len() == 1 << 20 && got.slices().all(|s| s.iter().all(|b| *b == i as u8)));
                }
                c.release(&file).await.unwrap();
            }
        });
        rt::sync::join_all(load.map(|l| Box::pin(l) as rt::LocalFuture<()>).collect()).await;
        let fetched: u64 = reader.oscs().iter().map(|o| o.stats().read_bytes).sum();
        assert_eq!(fetched, files * bytes, "what was read ahead was read before it had to go");
    });
}

#[test]
fn what_a_client_recorded_of_its_cache_and_readahead_under_load_replays_to_the_same_answers() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "record", 2, 128 * MIB).await;
        let config = ClientConfig { cache_bytes: 8 * MIB, ..ClientConfig::new(world.mds_nid.clone()) };
        let c = join(&world.rt, config, 2, PATIENCE).await.unwrap();
        let open = create(&c, Fid::ROOT, "open").await;
        for policy in ["adaptive", "fgf_lru+ring", "arc"] {
            c.set_cache_policy(policy).unwrap();
            c.set_readahead("max_read_ahead_mb", "4").unwrap();
            work(&c, policy).await;
            c.write(&open, 0, &vec![1; 4 << 20]).await.unwrap();
            c.read(&open, 0, 1 << 20).await.unwrap();
            c.set_cache_record("256M").unwrap();
            c.set_readahead_record("16M").unwrap();
            assert_eq!((c.cache_record().as_str(), c.readahead_record().as_str()), ("on", "on"));
            work(&c, policy).await;
            c.set_cache_key("bypass_bytes", "256K").unwrap();
            c.set_cache_policy("s3fifo").unwrap();
            work(&c, "between").await;
            assert!(c.set_cache_key("small_queue_percent", "51").unwrap_err().contains("1 to 50 %"));
            c.set_cache_key("small_queue_percent", "30").unwrap();
            assert_eq!(c.cache_key("small_queue_percent").as_deref(), Some("30"));
            c.set_readahead_policy("ondemand").unwrap();
            c.set_readahead("max_read_ahead_mb", "2").unwrap();
            work(&c, "later").await;
            c.read(&open, 1 << 20, 3 << 20).await.unwrap();
            c.set_readahead_policy("parallel").unwrap();
            c.set_cache_record("check").unwrap();
            c.set_readahead_record("check").unwrap();
            for (said, calls_min) in [(c.cache_record(), 10_000), (c.readahead_record(), 300)] {
                assert!(said.ends_with("calls replayed, the same answers"), "{policy}: {said}");
                let calls: u32 = said.split(' ').next().unwrap().parse().unwrap();
                assert!(calls > calls_min, "{policy}: {said}");
            }
        }
    });
}

#[test]
fn targets_of_one_server_tell_each_other_what_a_throttled_client_took_and_each_ones_record_replays() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "throttled", 3, 128 * MIB).await;
        let osts = world.oss.oss.osts();
        let set = |name: &str, value: &str| {
            osts.iter().for_each(|o| drop(o.set_params(&format!("ost.OSS.ost_io.{name}"), value).unwrap()));
        };
        let text = |i: usize, name: &str| {
            let value = osts[i].get_params(&format!("ost.OSS.ost_io.{name}")).remove(0).value;
            String::from_utf8_lossy(&value).into_owned()
        };
        let count = |i: usize, name: &str| -> u64 {
            let text = text(i, "req_waitqueue");
            let line = text.lines().find_map(|l| l.trim().strip_prefix(&format!("{name}: "))).unwrap();
            line.trim_end_matches(',').parse().unwrap()
        };
        let c = world.client().await;
        set("nrs_policies", "tbf");
        set("nrs_tbf_rule", "start slow client={*} rate=3000 depth=1");
        set("nrs_record", "16M");
        let before: Vec<u64> = (0..3).map(|i| count(i, "dequeued")).collect();
        for step in 0..3 {
            for i in 0..12 {
                make(&c, &format!("{step}.{i}"), 300 * KIB).await;
            }
            let reader = world.client().await;
            for i in 0..12 {
                let file = open(&reader, &format!("{step}.{i}")).await;
                assert_eq!(reader.read(&file, 0, 300 << 10).await.unwrap().len(), 300 << 10);
            }
            if step == 1 {
                // One is not told what it does not share.
                osts[2].set_params("ost.OSS.ost_io.nrs_policies", "fifo").unwrap();
            }
        }
        let took: Vec<u64> = (0..3).map(|i| count(i, "dequeued") - before[i]).collect();
        assert!(took.iter().all(|n| *n > 8), "{took:?}");
        for (i, told_min, told_max) in [(0, took[1] + 1, took[1] + took[2] - 1), (2, 1, took[0] + took[1] - 1)] {
            let told = count(i, "told");
            assert!((told_min..=told_max).contains(&told), "{i} was told {told} times: {took:?}");
        }
        assert_eq!(count(0, "told") + took[0], count(1, "told") + took[1], "each of what the other took");
        set("nrs_record", "check");
        for i in 0..3 {
            let said = text(i, "nrs_record");
            assert!(said.ends_with("the same answers"), "{i}: {said}");
        }
    });
}

/// A file of `bytes` bytes that its maker has written out.
async fn make(c: &Rc<Client>, name: &str, bytes: u64) {
    let file = create(c, Fid::ROOT, name).await;
    for at in (0..bytes).step_by(MIB as usize) {
        c.write(&file, at, &vec![(at / MIB) as u8 + 1; MIB as usize]).await.unwrap();
    }
    c.fsync(&file, false).await.unwrap();
    c.release(&file).await.unwrap();
}
async fn open(c: &Rc<Client>, name: &str) -> Rc<OpenFile> {
    let fid = lookup(c, Fid::ROOT, name.as_bytes()).await.attr.fid;
    c.open(&root(), fid, 0).await.unwrap()
}
/// Reads in pieces of 16 KiB what `make` wrote; how many read RPCs that took.
async fn read_in_pieces(c: &Rc<Client>, file: &Rc<OpenFile>, extent: Extent) -> u64 {
    let before = read_rpcs(c);
    for at in (extent.start..extent.end).step_by(16 << 10) {
        let bulk = c.read(file, at, 16 << 10).await.unwrap();
        assert_eq!(bulk.len(), 16 << 10);
        assert!(bulk.slices().all(|s| s.iter().all(|b| u64::from(*b) == at / MIB + 1)), "at {at}");
    }
    read_rpcs(c) - before
}
fn read_rpcs(c: &Client) -> u64 {
    c.oscs().iter().map(|o| o.stats().read_rpcs).sum()
}

#[test]
fn what_a_program_says_about_its_reading_is_honoured() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "hints", 2, 128 * MIB).await;
        let maker = world.client().await;
        for name in ["normal", "random", "sequential", "willneed", "dontneed"] {
            make(&maker, name, 8 * MIB).await;
        }
        let c = world.client().await;
        let (all, some) = (Extent::new(0, 8 * MIB), Extent::new(0, MIB));
        let pieces = MIB / (16 * KIB);
        let normal = read_in_pieces(&c, &open(&c, "normal").await, some).await;
        assert!(normal < pieces / 4, "{normal} requests for {pieces} pieces");

        let file = open(&c, "random").await;
        c.advise(&file, Hint::Random, Extent::ALL).await.unwrap();
        let ahead = c.readahead_stats().prefetched_bytes;
        let random = read_in_pieces(&c, &file, some).await;
        assert!(random >= pieces, "{random} requests for {pieces} pieces");
        assert_eq!(c.readahead_stats().prefetched_bytes, ahead, "nothing is read ahead");
        c.advise(&file, Hint::Normal, Extent::ALL).await.unwrap();
        assert!(read_in_pieces(&c, &file, Extent::new(MIB, 2 * MIB)).await < pieces / 4);

        // A first read in the middle of a file says nothing by itself.
        for (name, hint, ahead) in [("sequential", Hint::Normal, false), ("willneed", Hint::Sequential, true)] {
            let (file, before) = (open(&c, name).await, c.readahead_stats().prefetched_bytes);
            c.advise(&file, hint, Extent::ALL).await.unwrap();
            c.read(&file, 5 * MIB, 4096).await.unwrap();
            assert_eq!(c.readahead_stats().prefetched_bytes > before, ahead, "{hint:?}");
        }

        c.set_readahead_policy("none").unwrap();
        let file = open(&c, "willneed").await;
        c.advise(&file, Hint::WillNeed, all).await.unwrap();
        let requests = read_in_pieces(&c, &file, all).await;
        assert!(requests < 8, "{requests} requests for what was to be fetched whole");
        assert_eq!(c.readahead_stats().willneed_bytes, 8 * MIB);

        let file = open(&c, "dontneed").await;
        let requests = read_in_pieces(&c, &file, some).await;
        assert!(requests >= pieces, "{requests}");
        c.advise(&file, Hint::DontNeed, Extent::new(100, 4000)).await.unwrap();
        assert_eq!(read_in_pieces(&c, &file, some).await, 0, "a page that is needed in part stays");
        c.advise(&file, Hint::DontNeed, Extent::new(0, MIB / 2)).await.unwrap();
        assert_eq!(read_in_pieces(&c, &file, some).await, pieces / 2);
        let fid = file.fid();
        let writer = c.open(&root(), fid, O_RDWR).await.unwrap();
        c.write(&writer, 0, &[1; 4096]).await.unwrap();
        c.advise(&writer, Hint::DontNeed, Extent::ALL).await.unwrap();
        assert_eq!(c.read(&writer, 0, 4096).await.unwrap().len(), 4096, "what is dirty is not lost");
        read_in_pieces(&maker, &open(&maker, "dontneed").await, some).await;
    });
}

#[test]
fn readahead_hears_of_pages_that_leave_before_their_use() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "unused", 1, 128 * MIB).await;
        let maker = world.client().await;
        make(&maker, "ahead", 16 * MIB).await;
        make(&maker, "other", 16 * MIB).await;
        let config = ClientConfig { cache_bytes: 8 * MIB, ..ClientConfig::new(world.mds_nid.clone()) };
        let c = join(&world.rt, config, 1, PATIENCE).await.unwrap();
        let (ahead, other) = (open(&c, "ahead").await, open(&c, "other").await);
        c.advise(&ahead, Hint::Sequential, Extent::ALL).await.unwrap();
        c.advise(&other, Hint::Random, Extent::ALL).await.unwrap();
        read_in_pieces(&c, &ahead, Extent::new(0, MIB)).await;
        let held = c.readahead_held_bytes();
        assert!(held > 0, "something is read ahead");
        // A demand on all of the cache.
        read_in_pieces(&c, &other, Extent::new(0, 16 * MIB)).await;
        let stats = c.readahead_stats();
        assert!(stats.wasted_bytes > 0 && c.readahead_held_bytes() < held, "{stats:?}");

        // Another client's write takes the lock, and with it what was read ahead under it.
        let again = open(&c, "ahead").await;
        c.advise(&again, Hint::Sequential, Extent::ALL).await.unwrap();
        read_in_pieces(&c, &again, Extent::new(8 * MIB, 9 * MIB)).await;
        let held = c.readahead_held_bytes();
        assert!(held > 0, "something is read ahead again");
        let writer = maker.open(&root(), again.fid(), O_RDWR).await.unwrap();
        maker.write(&writer, 0, &vec![1; MIB as usize]).await.unwrap();
        assert_eq!(c.readahead_held_bytes(), 0);
    });
}

#[test]
fn a_clients_cache_counts_fine_and_coarse_look_ups_apart() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "grains", 1, 128 * MIB).await;
        let maker = world.client().await;
        make(&maker, "f", 8 * MIB).await;
        let c = world.client().await;
        c.set_readahead_policy("none").unwrap();
        let file = open(&c, "f").await;
        for _ in 0..2 {
            c.read(&file, 0, 16 << 10).await.unwrap();
            c.read(&file, 4 * MIB, 4 << 20).await.unwrap();
        }
        let s = c.cache_stats();
        assert_eq!((s.fine_lookups, s.fine_hits, s.coarse_lookups, s.coarse_hits), (8, 4, 2048, 1024));
        assert_eq!((s.readahead_lookups, s.readahead_pages), (0, 0));
        c.set_readahead_policy("parallel").unwrap();
        read_in_pieces(&c, &file, Extent::new(0, 4 * MIB)).await;
        let s = c.cache_stats();
        assert_eq!(s.fine_lookups, 8 + 1024);
        assert!(s.readahead_pages > 0, "{s:?}");
    });
}

#[test]
fn a_policy_of_a_clients_cache_knows_a_page_by_the_same_block_whenever_it_comes() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "blocks", 1, 64 * MIB).await;
        let c = world.client().await;
        c.set_cache_record("1M").unwrap();
        let file = create(&c, Fid::ROOT, "f").await;
        for _ in 0..2 {
            c.write(&file, 0, &[1; 20_000]).await.unwrap();
            c.read(&file, 0, 20_000).await.unwrap();
        }
        let log = c.take_cache_record().unwrap();
        let mut block_in = std::collections::BTreeMap::new();
        let (mut inserted, mut touched) = (0, 0);
        for line in log.text().lines() {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["i", frame, access] => {
                    inserted += 1;
                    block_in.insert(frame, access.split(':').next().unwrap());
                }
                ["t", frame, access] => {
                    touched += 1;
                    assert_eq!(access.split(':').next(), block_in.get(frame).copied(), "{line}");
                }
                _ => {}
            }
        }
        assert_eq!((inserted, touched), (5, 15));
        let blocks: std::collections::BTreeSet<_> = block_in.values().collect();
        assert_eq!(blocks.len(), 5, "every page has its own");
    });
}

#[test]
fn a_full_target_refuses_writes_keeps_what_it_took_and_takes_more_when_something_went() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "full", 1, 16 * MIB).await;
        let (c, other) = (world.client().await, world.client().await);
        let file = create(&c, Fid::ROOT, "f").await;
        let piece = vec![5; MIB as usize];
        let mut took = 0;
        let refused = loop {
            match c.write(&file, took, &piece).await {
                Ok(_) => took += MIB,
                Err(e) => break e,
            }
            assert!(took < 64 * MIB, "it never is full");
        };
        assert_eq!(refused, FsError::NoSpace);
        assert!(took >= 4 * MIB, "{took} bytes only");
        // What was taken is stored and sees no error; what was refused is nowhere.
        let stored = c.fsync(&file, false).await;
        assert_eq!(stored, Ok(()), "the refusal was told by the write");
        let fid = file.fid();
        for client in [&c, &other] {
            let size = client.getattr(&root(), fid, None).await.unwrap().attr.size;
            assert!((took..took + MIB).contains(&size), "{size} bytes, {took} taken");
            let reader = client.open(&root(), fid, 0).await.unwrap();
            for at in (0..took).step_by(piece.len()) {
                assert!(client.read(&reader, at, piece.len()).await.unwrap().to_vec() == piece, "at {at}");
            }
            client.release(&reader).await.unwrap();
        }
        let half = wire::mdt::SetattrRequest { valid: wire::mdt::SetBits::SIZE, size: 0, ..Default::default() };
        c.setattr(&root(), file.inode(), half, Some(&file)).await.unwrap();
        c.write(&file, 0, &piece).await.unwrap();
        c.fsync(&file, false).await.unwrap();
        c.release(&file).await.unwrap();
    });
}

#[test]
fn a_failed_write_back_reaches_every_open_descriptor_once_and_a_failed_store_never_says_yes() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "failed", 1, 64 * MIB).await;
        let c = world.client().await;
        let file = create(&c, Fid::ROOT, "f").await;
        c.write(&file, 0, &[1; 10_000]).await.unwrap();
        c.fsync(&file, false).await.unwrap();
        let second = c.open(&root(), file.fid(), O_RDWR).await.unwrap();
        c.write(&file, 0, &[2; 10_000]).await.unwrap();
        world.stores[0].close().await.unwrap();
        assert_eq!(c.fsync(&file, false).await, Err(FsError::Io));
        assert_eq!(c.flush_errors(&file), Ok(()), "told once by each descriptor");
        assert_eq!(c.flush_errors(&second), Err(FsError::Io), "the other one is told, too");
        assert_eq!(c.flush_errors(&second), Ok(()));
        let later = c.open(&root(), file.fid(), O_RDWR).await.unwrap();
        assert_eq!(c.flush_errors(&later), Ok(()), "it was not open then");
        for _ in 0..2 {
            c.write(&later, 0, &[3; 10_000]).await.unwrap();
            assert_eq!(c.fsync(&later, false).await, Err(FsError::Io), "a failed store stays failed");
            let part = c.write(&later, 0, &[3; 100]).await;
            assert_eq!(part, Err(FsError::Io), "what was not taken is gone, and the rest of its page cannot be read");
        }
    });
}

#[test]
fn a_client_learns_of_osts_that_joined_after_it() {
    on_a_shard(async |rt| {
        let world = World::new(rt.clone(), "later", 1, 64 * MIB).await;
        let (early, none) = (world.client().await, ClusterKey::none());
        let identity = StoreIdentity { cluster: 0x57a1, fsname: "stria".into(), ost: OstIndex(1), uuid: 8 };
        let store: Rc<dyn ObjectStore> = MemoryStore::new(&rt, identity, 64 * MIB);
        let nid = Nid::Local("oss-later-second".into());
        let window = Duration::from_secs(5);
        let oss = start_oss(&rt, vec![store], &nid, &world.mds_nid, &none, window, &OstConfig::default()).unwrap();
        register_ost(&rt, &oss.oss.osts()[0], &world.mds_nid, &none, &nid).await.unwrap();
        assert_eq!(early.oscs().len(), 1);
        let later = join(&rt, ClientConfig::new(world.mds_nid.clone()), 2, PATIENCE).await.unwrap();
        // New files go to the first target until the metadata server has objects of the second.
        let on_the_second = async {
            for i in 0.. {
                let name = format!("f{i}");
                let file = create(&later, Fid::ROOT, &name).await;
                let lov = later.getxattr(&root(), file.fid(), b"lustre.lov").await.unwrap();
                let (_, layout) = layout::xattr::decode_layout(&lov).unwrap();
                if layout.objects()[0].ost == OstIndex(1) {
                    later.write(&file, 0, b"bytes").await.unwrap();
                    later.release(&file).await.unwrap();
                    return name;
                }
            }
            unreachable!("names do not end")
        };
        let name = rt.timeout(PATIENCE, on_the_second).await.expect("the second target is never used");
        let found = lookup(&early, Fid::ROOT, name.as_bytes()).await;
        let file = early.open(&root(), found.attr.fid, 0).await.unwrap();
        assert_eq!(early.read(&file, 0, 100).await.unwrap().to_vec(), b"bytes");
    });
}

#[test]
fn a_client_follows_a_target_that_comes_back_at_another_address() {
    on_a_shard(async |rt| {
        let world = World::new(rt.clone(), "moves", 1, 64 * MIB).await;
        let (c, none) = (world.client().await, ClusterKey::none());
        let file = create(&c, Fid::ROOT, "f").await;
        c.write(&file, 0, b"before").await.unwrap();
        c.fsync(&file, false).await.unwrap();
        world.oss.server.stop();
        // Not on the target yet, and asked for again when it is back.
        c.write(&file, 6, b" and after").await.unwrap();
        let nid = Nid::Local("oss-moves-elsewhere".into());
        let store: Rc<dyn ObjectStore> = world.stores[0].clone();
        let window = Duration::from_secs(5);
        let oss = start_oss(&rt, vec![store], &nid, &world.mds_nid, &none, window, &OstConfig::default()).unwrap();
        register_ost(&rt, &oss.oss.osts()[0], &world.mds_nid, &none, &nid).await.unwrap();
        let synced = rt.timeout(PATIENCE, c.fsync(&file, false)).await;
        synced.expect("the client does not look for the target elsewhere").unwrap();
        let other = rt.timeout(PATIENCE, world.client()).await.expect("a new client goes where the target is");
        let found = lookup(&other, Fid::ROOT, b"f").await;
        let again = other.open(&root(), found.attr.fid, 0).await.unwrap();
        assert_eq!(other.read(&again, 0, 100).await.unwrap().to_vec(), b"before and after");
    });
}

#[test]
fn a_time_that_was_set_holds_against_what_other_clients_wrote_before() {
    on_a_shard(async |rt| {
        let world = World::new(rt.clone(), "times", 1, 64 * MIB).await;
        let (a, b) = (world.client().await, world.client().await);
        let told = wire::mdt::SetattrRequest {
            valid: wire::mdt::SetBits::MTIME,
            mtime: types::WallTime(5_000_000_007),
            ..Default::default()
        };
        let mtime = async |c: &Rc<Client>, fid| c.getattr(&root(), fid, None).await.unwrap().attr.mtime;
        // Written and closed; written and still open, with pages that nobody saw yet.
        for (name, closed) in [("closed", true), ("open", false)] {
            let file = create(&a, Fid::ROOT, name).await;
            a.write(&file, 0, b"by the first").await.unwrap();
            if closed {
                a.release(&file).await.unwrap();
            }
            let found = lookup(&b, Fid::ROOT, name.as_bytes()).await;
            let fid = found.attr.fid;
            let inode = b.inode_of(fid);
            b.setattr(&root(), &inode, told.clone(), None).await.unwrap();
            assert_eq!(mtime(&b, fid).await, told.mtime, "{name}: who set it");
            if !closed {
                a.release(&file).await.unwrap();
            }
            assert_eq!(mtime(&a, fid).await, told.mtime, "{name}: who wrote");
            assert_eq!(mtime(&b, fid).await, told.mtime, "{name}: who set it, afterwards");
            // Writing anew moves it again.
            let again = b.open(&root(), fid, O_RDWR).await.unwrap();
            b.write(&again, 0, b"later").await.unwrap();
            b.release(&again).await.unwrap();
            assert!(mtime(&a, fid).await > told.mtime, "{name}: written after it was set");
        }
    });
}

#[test]
fn data_far_behind_a_hole_is_found_with_one_question_per_object() {
    on_a_shard(async |rt| {
        let world = World::new(rt.clone(), "seek", 2, 64 * MIB).await;
        let c = world.client().await;
        let spec = layout::LayoutSpec::from_raw(65536, 2, -1).unwrap();
        let layout = layout::xattr::encode_spec(&spec);
        let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, layout: &layout, ..NewFile::default() };
        let file = c.create_open(&root(), Fid::ROOT, b"f", new).await.unwrap().1;
        let far = (1 << 50) + 3 * 65536;
        c.write(&file, far, &[7; 65536]).await.unwrap();
        c.write(&file, 65536, &[7; 4096]).await.unwrap();
        c.fsync(&file, false).await.unwrap();
        let inode = file.inode().clone();
        let asked = || c.oscs().iter().map(|o| o.import().unwrap().counters().1).sum::<u64>();
        let before = asked();
        assert_eq!(c.seek(&inode, 0, false).await, Ok(65536));
        assert_eq!(c.seek(&inode, 65536, true).await, Ok(65536 + 4096));
        assert_eq!(c.seek(&inode, 65536 + 4096, false).await, Ok(far));
        assert_eq!(c.seek(&inode, far + 10, false).await, Ok(far + 10));
        assert_eq!(c.seek(&inode, far, true).await, Ok(far + 65536));
        assert_eq!(c.seek(&inode, far + 65536, false).await, Err(FsError::NoDevice));
        assert!(asked() - before <= 4 * 5, "{} requests", asked() - before);
    });
}
