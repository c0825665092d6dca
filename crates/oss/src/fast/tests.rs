//! The tier before a store: conformance, work of many at a time, every way in which the device can fail, and what earns a copy.
use std::cell::{Cell, RefCell};
use std::io;
use std::path::Path;
use std::rc::Rc;

use advice::Hint;
use frames::{Bulk, FRAME_BYTES};
use rt::sync::join_all;
use rt::{DiskFile, LocalFuture, Rt};
use simworld::TestWorld;
use types::{Duration, MIB, ObjectId, OstIndex, Rng};

use super::{FAST_BYTES_MIN, FastConfig, FastError, FastOwner, FastStore, FastTier};
use crate::pages::page_crcs;
use crate::store::conformance::{fill, one_by_one, space_is_exact};
use crate::store::{
    BlockRange, BlockRun, DeviceProfile, EmulatedStore, MemoryStore, ObjectStore, SizeRule, StoreIdentity, Update,
};

const DIR: &str = "/fast";

fn identity() -> StoreIdentity {
    StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 }
}
fn object(n: u32) -> ObjectId {
    ObjectId::new(OstIndex(0), n)
}

/// What goes wrong with a device.
#[derive(Default)]
struct Ills {
    /// Every so many reads brings a flipped bit; 0: none.
    rot_every: Cell<u64>,
    /// Every so many writes ends in the middle, and says nothing.
    torn_every: Cell<u64>,
    reads_fail: Cell<bool>,
    writes_fail: Cell<bool>,
    is_full: Cell<bool>,
    hangs: Cell<bool>,
    reads: Cell<u64>,
    writes: Cell<u64>,
}

/// A device that is ill.
struct Ill(Rc<dyn DiskFile>, Rc<Ills>, Rt);

fn failure() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl DiskFile for Ill {
    fn read_at(&self, offset: u64, into: Bulk) -> LocalFuture<(io::Result<usize>, Bulk)> {
        let (read, ills, rt) = (self.0.read_at(offset, into), self.1.clone(), self.2.clone());
        Box::pin(async move {
            ills.reads.set(ills.reads.get() + 1);
            while ills.hangs.get() {
                rt.sleep(Duration::from_secs(1)).await;
            }
            let (read, mut bulk) = read.await;
            if ills.reads_fail.get() {
                return (Err(failure()), bulk);
            }
            if ills.rot_every.get() > 0 && ills.reads.get().is_multiple_of(ills.rot_every.get()) {
                let mut bytes = bulk.to_vec();
                bytes[77] ^= 4;
                bulk.copy_in(0, &bytes);
            }
            (read, bulk)
        })
    }
    fn write_at(&self, offset: u64, from: Bulk) -> LocalFuture<io::Result<()>> {
        let ills = self.1.clone();
        ills.writes.set(ills.writes.get() + 1);
        if ills.is_full.get() {
            return Box::pin(async { Err(io::ErrorKind::StorageFull.into()) });
        }
        if ills.writes_fail.get() {
            return Box::pin(async { Err(failure()) });
        }
        let torn = ills.torn_every.get() > 0 && ills.writes.get().is_multiple_of(ills.torn_every.get());
        self.0.write_at(offset, if torn { from.slice(0, from.len() / 2) } else { from })
    }
    fn sync(&self) -> LocalFuture<io::Result<()>> {
        self.0.sync()
    }
    fn allocate(&self, offset: u64, len: u64) -> LocalFuture<io::Result<()>> {
        self.0.allocate(offset, len)
    }
    fn punch(&self, offset: u64, len: u64) -> LocalFuture<io::Result<()>> {
        self.0.punch(offset, len)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn allocated(&self) -> io::Result<u64> {
        self.0.allocated()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn space(&self) -> io::Result<(u64, u64)> {
        self.0.space()
    }
}

/// Gives objects classes, and remembers that it was told of the end.
#[derive(Default)]
struct Owner {
    advised: RefCell<Vec<(ObjectId, Hint)>>,
    hits: Cell<u64>,
    off: Cell<u32>,
}
impl FastOwner for Owner {
    fn class(&self, object: ObjectId, _: BlockRange) -> Hint {
        self.advised.borrow().iter().find(|(o, _)| *o == object).map_or(Hint::None, |(_, h)| *h)
    }
    fn on_hits(&self, _: ObjectId, range: BlockRange) {
        self.hits.set(self.hits.get() + range.count);
    }
    fn on_off(&self) {
        self.off.set(self.off.get() + 1);
    }
}

struct Rig {
    store: Rc<FastStore>,
    tier: Rc<FastTier>,
    ills: Rc<Ills>,
    owner: Rc<Owner>,
}

async fn rig(rt: &Rt, admission: &str, capacity: u64) -> Rig {
    let ills = Rc::new(Ills::default());
    let (wrapped, clock) = (ills.clone(), rt.clone());
    let config = FastConfig { admission: admission.into(), ..FastConfig::new(FAST_BYTES_MIN) };
    let wrap = move |file| Rc::new(Ill(file, wrapped, clock)) as Rc<dyn DiskFile>;
    let tier = FastTier::open(rt, Path::new(DIR), &identity(), &config, None, wrap).await.unwrap();
    let owner = Rc::new(Owner::default());
    let weak = Rc::downgrade(&owner);
    tier.set_owner(weak);
    // A disk before the bytes: time passes, and copies are made meanwhile.
    let disk = DeviceProfile::named("paper001").unwrap();
    let inner = EmulatedStore::new(rt.clone(), MemoryStore::new(rt, identity(), capacity), disk);
    let store = FastStore::new(inner, tier.clone());
    Rig { store, tier, ills, owner }
}

impl Rig {
    fn counter(&self, name: &str) -> u64 {
        let text = self.tier.text();
        let line =
            text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": ")).unwrap_or_else(|| panic!("{text}"));
        line.parse().unwrap()
    }
    /// Puts `blocks` of version 1 into an object.
    async fn write(&self, rt: &Rt, object: ObjectId, range: BlockRange, version: u32) {
        self.store.update(object, put(rt, object, range, version)).await.unwrap();
    }
    async fn read(&self, object: ObjectId, first: u64, count: u64) -> Vec<u8> {
        let blocks = self.store.read(object, BlockRange { first, count }).await.unwrap();
        assert_eq!(page_crcs(&blocks.bulk), blocks.crcs);
        blocks.bulk.to_vec()
    }
}

fn put(rt: &Rt, object: ObjectId, range: BlockRange, version: u32) -> Update {
    let mut bulk = Bulk::alloc(rt.frames(), range.count as usize * FRAME_BYTES).unwrap();
    let mut page = vec![0; FRAME_BYTES];
    for i in 0..range.count {
        fill(object, range.first + i, version, &mut page);
        bulk.copy_in(i as usize * FRAME_BYTES, &page);
    }
    let crcs = page_crcs(&bulk);
    Update { puts: vec![BlockRun { first: range.first, bulk, crcs }], ..Update::default() }
}
/// Lets the copies that are being made end.
async fn settle(rt: &Rt) {
    rt.sleep(Duration::from_millis(500)).await;
}

#[test]
fn a_store_with_a_tier_does_what_the_model_does_on_a_device_with_any_ill() {
    for ill in 0..5u64 {
        let world = TestWorld::new(ill, 48 << 20);
        let rt = world.rt();
        world.run(async move {
            let r = rig(&rt, "always", 1 << 30).await;
            r.ills.rot_every.set(if ill == 1 { 7 } else { 0 });
            r.ills.torn_every.set(if ill == 2 { 5 } else { 0 });
            let (ills, clock) = (r.ills.clone(), rt.clone());
            rt.spawn(async move {
                clock.sleep(Duration::from_millis(400)).await;
                ills.reads_fail.set(ill == 3);
                ills.writes_fail.set(ill == 4);
            });
            one_by_one(rt.clone(), r.store.clone(), 5 + ill, 500).await;
            assert_eq!(r.owner.off.get(), u32::from(!r.tier.is_on()));
            match ill {
                0 => assert!(r.counter("hit_blocks") > 1000 && r.tier.is_on(), "{}", r.tier.text()),
                1 | 2 => assert!(r.counter("bad_copies") > 0, "{}", r.tier.text()),
                _ => assert!(r.tier.text().starts_with("state: off: its device failed to"), "{}", r.tier.text()),
            }
        });
    }
    let world = TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let r = rig(&rt, "always", 300 * 4096).await;
        space_is_exact(rt, r.store).await;
    });
}

/// Writers of blocks of their own, readers of everything, at the same time.
#[test]
fn no_read_is_older_than_what_was_answered_before_it_began() {
    const BLOCKS: u64 = 48;
    let mut hits = 0;
    for seed in 1..20u64 {
        let world = TestWorld::new(seed, 48 << 20);
        let rt = world.rt();
        hits += world.run(async move {
            let r = Rc::new(rig(&rt, "always", 1 << 30).await);
            r.store.create(object(1).0.seq, 1).await.unwrap();
            r.write(&rt, object(1), BlockRange::new(0, BLOCKS), 1).await;
            r.ills.rot_every.set(if seed % 3 == 0 { 30 } else { 0 });
            if seed % 2 == 0 {
                r.owner.advised.borrow_mut().push((object(1), Hint::High));
            }
            // Per block: the version that was answered, and the one that was begun.
            let versions: Rc<Vec<Cell<(u32, u32)>>> = Rc::new((0..BLOCKS).map(|_| Cell::new((1, 1))).collect());
            let tasks = (0..6u64).map(|t| {
                let (r, rt, versions) = (r.clone(), rt.clone(), versions.clone());
                let work: LocalFuture<()> = Box::pin(async move {
                    let mut rng = Rng::new(seed * 64 + t);
                    for step in 0..60u32 {
                        rt.sleep(Duration::from_micros(rng.below(3000))).await;
                        if t < 3 {
                            let first = t * 16 + rng.below(14);
                            let range = BlockRange { first, count: 1 + rng.below(t * 16 + 16 - first) };
                            let mine = || (range.first..range.end()).map(|b| &versions[b as usize]);
                            mine().for_each(|v| v.set((v.get().0, step + 2)));
                            r.write(&rt, object(1), range, step + 2).await;
                            mine().for_each(|v| v.set((step + 2, step + 2)));
                            continue;
                        }
                        let first = rng.below(BLOCKS);
                        let count = 1 + rng.below(BLOCKS - first);
                        let before: Vec<u32> = versions.iter().map(|v| v.get().0).collect();
                        let got = r.read(object(1), first, count).await;
                        for (i, page) in got.chunks(FRAME_BYTES).enumerate() {
                            let block = first + i as u64;
                            let (oldest, newest) = (before[block as usize], versions[block as usize].get().1);
                            let mut want = vec![0; FRAME_BYTES];
                            let found = (oldest..=newest).any(|v| {
                                fill(object(1), block, v, &mut want);
                                want == page
                            });
                            assert!(found, "seed {seed} step {step}: block {block} is not of {oldest}..={newest}");
                        }
                    }
                });
                work
            });
            join_all(tasks.collect()).await;
            r.counter("hit_blocks")
        });
    }
    assert!(hits > 5_000, "{hits} blocks came from the tier");
}

#[test]
fn a_device_that_does_not_answer_is_given_up_and_nobody_hangs() {
    let world = TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let r = rig(&rt, "always", 1 << 30).await;
        r.store.create(object(1).0.seq, 1).await.unwrap();
        r.write(&rt, object(1), BlockRange::new(0, 8), 1).await;
        let want = r.read(object(1), 0, 8).await;
        settle(&rt).await;
        assert_eq!(r.tier.resident_in(object(1), BlockRange::new(0, 8)), 8 * 4096);
        r.ills.hangs.set(true);
        assert!(r.read(object(1), 0, 8).await == want);
        assert!(r.tier.text().contains("did not read within 10 s"), "{}", r.tier.text());
        assert_eq!((r.owner.off.get(), r.tier.capacity_bytes()), (1, 0));
        r.write(&rt, object(1), BlockRange::new(0, 8), 2).await;
        assert!(r.read(object(1), 0, 8).await != want);
    });
}

#[test]
fn a_device_that_is_full_or_rots_everywhere_is_given_up() {
    let world = TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        for full in [true, false] {
            let r = rig(&rt, "always", 1 << 30).await;
            r.store.create(object(1).0.seq, 1).await.unwrap();
            r.write(&rt, object(1), BlockRange::new(0, 8), 1).await;
            r.ills.is_full.set(full);
            r.ills.rot_every.set(1);
            for _ in 0..160 {
                r.read(object(1), 0, 8).await;
                settle(&rt).await;
            }
            let text = r.tier.text();
            assert!(text.contains(if full { "failed to write" } else { "64 of its copies" }), "{text}");
        }
    });
}

#[test]
fn a_scan_displaces_nothing_and_a_second_touch_earns_a_copy() {
    let world = TestWorld::new(1, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let r = rig(&rt, "second_touch", 1 << 30).await;
        r.store.create(object(1).0.seq, 2).await.unwrap();
        for i in 0..24 {
            r.write(&rt, object(1), BlockRange { first: i * 256, count: 256 }, 1).await;
        }
        let hot = [5u64, 700, 1300];
        for _ in 0..2 {
            for b in hot {
                r.read(object(1), b, 1).await;
            }
        }
        settle(&rt).await;
        assert_eq!(r.counter("resident_bytes"), 3 * 4096);
        // 24 MiB in large reads, again and again, and once in small ones: more than the tier holds.
        for _ in 0..3 {
            for i in 0..24 {
                r.read(object(1), i * 256, 256).await;
            }
        }
        for b in 1400..6000 {
            r.read(object(1), b, 1).await;
        }
        settle(&rt).await;
        assert_eq!(r.counter("resident_bytes"), 3 * 4096, "{}", r.tier.text());
        let before = r.counter("hit_blocks");
        for b in hot {
            r.read(object(1), b, 1).await;
        }
        assert_eq!(r.counter("hit_blocks") - before, 3);
        assert!(r.tier.set_admission("often", &advice::Config::default()).unwrap_err().contains("second_touch"));
        assert!(r.tier.set_reclaim("nothing").is_err());
    });
}

#[test]
fn advised_bytes_are_copied_at_once_stay_and_are_copied_anew_when_written() {
    let world = TestWorld::new(1, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let r = rig(&rt, "always", 1 << 30).await;
        r.store.create(object(1).0.seq, 2).await.unwrap();
        for i in 0..24 {
            r.write(&rt, object(2), BlockRange { first: i * 256, count: 256 }, 1).await;
        }
        r.write(&rt, object(1), BlockRange::new(0, 512), 1).await;
        r.owner.advised.borrow_mut().push((object(1), Hint::High));
        let all = BlockRange::new(0, 512);
        let fetched = r.store.fetch(object(1), all).await.unwrap().unwrap();
        r.store.keep(fetched).await;
        assert_eq!(r.tier.resident_in(object(1), all), 2 * MIB);
        assert!(r.store.fetch(object(1), all).await.unwrap().is_none(), "all is there");
        for i in 0..24 {
            r.read(object(2), i * 256, 256).await;
            settle(&rt).await;
        }
        assert!(r.counter("reclaimed_unadvised_blocks") > 1000, "{}", r.tier.text());
        assert_eq!((r.tier.resident_in(object(1), all), r.counter("reclaimed_advised_blocks")), (2 * MIB, 0));
        let before = r.counter("hit_blocks");
        r.write(&rt, object(1), BlockRange::new(100, 200), 2).await;
        settle(&rt).await;
        assert_eq!(r.tier.resident_in(object(1), all), 2 * MIB, "what was written was copied anew");
        let mut want = vec![0; FRAME_BYTES];
        fill(object(1), 150, 2, &mut want);
        assert!(r.read(object(1), 150, 1).await == want);
        assert_eq!((r.counter("hit_blocks") - before, r.owner.hits.get() > 0), (1, true));
        // Withdrawn, it may leave as others do; removed, it is gone.
        r.owner.advised.borrow_mut().clear();
        r.tier.readvise(object(1), all);
        r.tier.drop_unadvised(object(1), BlockRange::new(0, 16));
        assert_eq!(r.tier.resident_in(object(1), all), 2 * MIB - 65_536);
        r.store.destroy(vec![object(1)], None).await.unwrap();
        assert_eq!(r.tier.resident_in(object(1), all), 0);
    });
}

#[test]
fn a_fetch_waits_for_changes_that_are_under_way_but_not_for_ever() {
    let world = TestWorld::new(1, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let r = rig(&rt, "always", 1 << 30).await;
        let (at, unit, begun) = (object(1), BlockRange::new(0, 16), rt.now());
        let waited = || rt.now().since(begun).as_nanos() / 1_000_000_000;
        let (change, tier, clock) = (r.tier.begin(&[(at, unit)]), r.tier.clone(), rt.clone());
        rt.spawn(async move {
            clock.sleep(Duration::from_secs(2)).await;
            tier.end(&change);
        });
        r.tier.unchanged(at, unit).await;
        assert_eq!(waited(), 2);
        r.tier.unchanged(at, unit).await;
        assert_eq!(waited(), 2, "nothing changes");
        let stays = r.tier.begin(&[(at, BlockRange::new(0, u64::MAX))]);
        r.tier.unchanged(at, unit).await;
        assert_eq!(waited(), 12);
        r.tier.end(&stays);
    });
}

#[test]
fn a_copy_of_what_is_withdrawn_before_it_is_written_is_no_advised_one() {
    let world = TestWorld::new(1, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let r = rig(&rt, "advised", 1 << 30).await;
        r.store.create(object(1).0.seq, 1).await.unwrap();
        let unit = BlockRange::new(0, 16);
        r.write(&rt, object(1), unit, 1).await;
        r.owner.advised.borrow_mut().push((object(1), Hint::High));
        r.read(object(1), 0, 16).await;
        // Its copy is not begun yet.
        r.owner.advised.borrow_mut().clear();
        r.tier.readvise(object(1), unit);
        settle(&rt).await;
        assert_eq!(r.tier.resident_in(object(1), unit), 65_536);
        r.tier.drop_unadvised(object(1), unit);
        assert_eq!(r.tier.resident_in(object(1), unit), 0);
    });
}

#[test]
fn what_is_fetched_is_kept_while_other_objects_are_removed_and_written() {
    let world = TestWorld::new(1, 64 << 20);
    let rt = world.rt();
    world.run(async move {
        let r = rig(&rt, "advised", 1 << 30).await;
        r.store.create(object(1).0.seq, 200).await.unwrap();
        let all = BlockRange::new(0, 256);
        r.write(&rt, object(1), all, 1).await;
        r.owner.advised.borrow_mut().push((object(1), Hint::Med));
        let fetched = r.store.fetch(object(1), all).await.unwrap().unwrap();
        // One byte of it changes; others end, are cut, and grow.
        r.write(&rt, object(1), BlockRange::new(20, 21), 2).await;
        r.store.destroy((10..90).map(object).collect(), None).await.unwrap();
        let cut = Update { size: SizeRule::Exactly(0), ..Update::default() };
        r.store.update(object(2), cut).await.unwrap();
        r.write(&rt, object(3), all, 1).await;
        r.store.keep(fetched).await;
        assert_eq!(
            r.tier.resident_in(object(1), all),
            MIB - 65_536 + 4096,
            "all but the unit of which a block changed"
        );
        let mut want = vec![0; FRAME_BYTES];
        fill(object(1), 20, 2, &mut want);
        assert!(r.read(object(1), 20, 1).await == want);
    });
}

#[test]
fn the_tier_of_a_store_that_was_replaced_is_taken_over_empty() {
    let world = TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let config = FastConfig::new(FAST_BYTES_MIN);
        for uuid in [9, 10] {
            let identity = StoreIdentity { uuid, ..identity() };
            let tier = FastTier::open(&rt, Path::new(DIR), &identity, &config, None, |f| f).await.unwrap();
            assert_eq!(tier.resident_in(object(1), BlockRange::new(0, 256)), 0);
        }
        let other = StoreIdentity { cluster: 8, ..identity() };
        let late = FastTier::open(&rt, Path::new(DIR), &other, &config, None, |f| f);
        let why = late.await.err().unwrap().to_string();
        assert!(why.contains("another store (stria-OST0000, cluster 7, uuid a)"), "the head is the new store's: {why}");
    });
}

#[test]
fn a_place_that_is_too_small_anothers_or_foreign_is_refused_and_left_alone() {
    let world = TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    let host = world.host().clone();
    world.run(async move {
        let open = async |identity: StoreIdentity, bytes| {
            let opened = FastTier::open(&rt, Path::new(DIR), &identity, &FastConfig::new(bytes), None, |f| f).await;
            opened.map(|t| t.capacity_bytes())
        };
        let why = open(identity(), MIB).await.unwrap_err();
        assert!(why.is_mistake() && why.to_string().contains("at least 16 MiB"), "{why}");
        assert_eq!(open(identity(), FAST_BYTES_MIN).await.unwrap(), FAST_BYTES_MIN - 65_536);
        for other in [StoreIdentity { cluster: 8, ..identity() }, StoreIdentity { ost: OstIndex(1), ..identity() }] {
            let why = open(other, FAST_BYTES_MIN).await.unwrap_err();
            assert!(
                why.is_mistake() && why.to_string().contains("another store (stria-OST0000, cluster 7, uuid 9)"),
                "{why}"
            );
        }
        // It may be larger or smaller the next time; a head that was damaged is made anew.
        assert_eq!(open(identity(), 2 * FAST_BYTES_MIN).await.unwrap(), 2 * FAST_BYTES_MIN - 65_536);
        host.damage(Path::new("/fast/slots"), |bytes| bytes[20] ^= 1);
        assert!(open(identity(), FAST_BYTES_MIN).await.is_ok());
        host.damage(Path::new("/fast/slots"), |bytes| bytes[8] = 9);
        assert!(open(identity(), FAST_BYTES_MIN).await.is_ok(), "a version without its checksum is damage");
        host.damage(Path::new("/fast/slots"), |bytes| bytes[0] ^= 1);
        let why = open(identity(), FAST_BYTES_MIN).await.unwrap_err();
        assert!(why.is_mistake() && why.to_string().contains("not a fast tier"), "{why}");
        host.damage(Path::new("/fast/slots"), |bytes| bytes[..4096].fill(0));
        host.set_disk_capacity(host.disk_used() + MIB);
        let why = open(identity(), 4 * FAST_BYTES_MIN).await.unwrap_err();
        assert!(matches!(why, FastError::NoSpace(_)) && !why.is_mistake(), "{why}");
        let config = FastConfig::new(FAST_BYTES_MIN);
        let tier = FastTier::without(&rt, &identity(), &config, why.to_string());
        assert!(tier.text().starts_with("state: off: its file system has no"), "{}", tier.text());
    });
}
