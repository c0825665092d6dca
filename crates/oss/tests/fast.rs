//! An OST with a fast tier: advice that memory has no room for goes there, in large reads behind everybody else's, and stays.
#![allow(clippy::unwrap_used)]
mod node;

use std::path::Path;

use node::*;
use oss::fast::{FastConfig, FastStore, FastTier};
use oss::store::{DeviceProfile, EmulatedFile, EmulatedStore, ObjectStore};
use wire::ost::{Advice, AdviseRequest, AdvisedRange, AdvisedReply, AdvisedRequest, IoOwner};

fn config() -> OstConfig {
    let advice_keys = advice::Config { project_percent_max: 100, part_bytes_min: 4096, ..advice::Config::default() };
    OstConfig { cache_bytes: 4 * MIB, advice_keys, ..OstConfig::default() }
}
fn identity() -> StoreIdentity {
    StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 }
}
/// A disk with an SSD before it.
async fn store(rt: &Rt, bytes: &Rc<dyn ObjectStore>) -> Rc<dyn ObjectStore> {
    let disk = DeviceProfile::parse("hdd", "seek_ms=8.5 mb_per_s=180 request_us=100").unwrap();
    let ssd = DeviceProfile::named("ssd").unwrap();
    let clock = rt.clone();
    let wrap = move |file| EmulatedFile::new(clock, file, ssd) as Rc<dyn rt::DiskFile>;
    let tier = FastTier::open(rt, Path::new("/fast"), &identity(), &FastConfig::new(32 * MIB), None, wrap).await;
    FastStore::new(EmulatedStore::new(rt.clone(), bytes.clone(), disk), tier.unwrap())
}
fn start(rt: &Rt, store: Rc<dyn ObjectStore>, at: &Nid) -> (Rc<Server>, Oss, Rc<Ost>) {
    let server_config = ServerConfig {
        key: ClusterKey::none(),
        recovery_window: Duration::from_secs(1),
        client_timeout: Duration::from_secs(600),
        boot: 1,
    };
    let server = Server::new(rt.clone(), server_config);
    server.listen(at).unwrap();
    let oss = Oss::new(rt.clone(), server.clone(), &config()).unwrap();
    let ost = oss.add(store, config()).unwrap();
    (server, oss, ost)
}
fn param(ost: &Ost, name: &str, line: &str) -> u64 {
    let text = String::from_utf8(ost.get_params(&format!("obdfilter.*.{name}")).remove(0).value.0).unwrap();
    let found = text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(": ")).unwrap_or_else(|| panic!("{text}"));
    found.parse().unwrap()
}

struct Rig {
    c: Client,
    ost: Rc<Ost>,
    rt: Rt,
    _alive: (Rc<Server>, Oss),
}
impl Rig {
    async fn new(rt: &Rt) -> Rig {
        let bytes: Rc<dyn ObjectStore> = MemoryStore::new(rt, identity(), 1 << 30);
        let (server, oss, ost) = start(rt, store(rt, &bytes).await, &nid());
        let c = Client::new(rt.clone(), 1).await;
        c.create(3).await;
        Rig { c, ost, rt: rt.clone(), _alive: (server, oss) }
    }
    async fn fill(&self, oid: u32, mib: u64) {
        for i in 0..mib {
            let bytes = vec![oid as u8 + i as u8; MIB as usize];
            self.c.write_to(object(oid), &[(i * MIB, &bytes)], 0).await.unwrap();
        }
    }
    async fn read_all(&self, oid: u32, mib: u64) {
        for i in 0..mib {
            let (got, _) = self.c.read_from(object(oid), vec![Extent::at(i * MIB, MIB)]).await.unwrap();
            assert!(got.iter().all(|b| *b == oid as u8 + i as u8));
        }
    }
    async fn advise(&self, oid: u32, advice: Advice) -> Result<(), FsError> {
        let (owner, since) = (IoOwner::default(), WallTime(100));
        let ask = AdviseRequest { object: object(oid), extent: Extent::ALL, advice, background: false, owner, since };
        self.c.import.ask(Op::OstAdvise, &ask).await
    }
    async fn row(&self, oid: u32) -> AdvisedRange {
        let ask = AdvisedRequest { object: object(oid) };
        let reply: AdvisedReply = self.c.import.ask(Op::OstAdvised, &ask).await.unwrap();
        reply.ranges.into_iter().next().unwrap()
    }
    async fn settled(&self, oid: u32) -> AdvisedRange {
        loop {
            let row = self.row(oid).await;
            if row.fetched == row.to_fetch {
                return row;
            }
            self.rt.sleep(Duration::from_millis(10)).await;
        }
    }
    /// Random reads of a page a second, each place once.
    async fn reads_per_s(&self, oid: u32, seed: u64) -> f64 {
        let (mut rng, since) = (Rng::new(seed), self.rt.now());
        for _ in 0..100 {
            let at = rng.below(8 * 256) * 4096;
            self.c.read_from(object(oid), vec![Extent::at(at, 4096)]).await.unwrap();
        }
        100.0 / (self.rt.now().since(since).as_nanos() as f64 / 1e9)
    }
}

#[test]
fn what_memory_has_no_room_for_is_read_ten_times_faster_from_the_fast_tier_and_scans_do_not_take_it_away() {
    let world = TestWorld::new(1, 96 * MIB);
    let rt = world.rt();
    world.run(async move {
        let r = Rig::new(&rt).await;
        r.fill(1, 24).await;
        r.fill(2, 48).await;
        let none = r.reads_per_s(1, 3).await;
        r.ost.set_params("obdfilter.*.cache_bytes", "4M").unwrap();
        let begun = rt.now();
        r.advise(1, Advice::High).await.unwrap();
        let row = r.settled(1).await;
        let took = rt.now().since(begun).as_nanos() as f64 / 1e9;
        assert_eq!((row.ram_placed, row.fast_placed), (0, 24 * MIB), "it fits the tier as a whole, and memory not");
        assert_eq!((row.fast_resident, row.error, row.refusal), (24 * MIB, 0, 0));
        // Three pieces one after the other, not in turn: 24 MiB at 180 MB/s, and the last copies.
        assert!(took < 1.2 * (24.0 * 1.048_576 / 180.0), "{took} s for 24 MiB");
        let fast = r.reads_per_s(1, 4).await;
        assert!(fast >= 10.0 * none, "{fast} reads/s from the tier, {none} from the disk");
        for _ in 0..3 {
            r.read_all(2, 48).await;
        }
        let row = r.row(1).await;
        assert!((row.fast_resident, row.hits >= 90) == (24 * MIB, true), "{row:?}");
        assert_eq!(param(&r.ost, "advice_stats", "fast_placed_bytes"), 24 * MIB);
        assert_eq!(param(&r.ost, "fast_stats", "copied_inferred_blocks"), 0, "a scan is not copied");
        r.fill(1, 24).await;
        r.read_all(1, 24).await;
        r.advise(1, Advice::None).await.unwrap();
        assert_eq!(param(&r.ost, "advice_stats", "fast_placed_bytes"), 0);
    });
}

#[test]
fn advice_larger_than_everything_is_placed_in_part_and_costs_nobody_anything() {
    let world = TestWorld::new(2, 96 * MIB);
    let rt = world.rt();
    world.run(async move {
        let r = Rig::new(&rt).await;
        r.fill(2, 48).await;
        let none = r.reads_per_s(2, 3).await;
        r.advise(2, Advice::Med).await.unwrap();
        let row = r.settled(2).await;
        assert!(row.ram_placed > 3 * MIB && row.fast_placed > 25 * MIB && row.refusal == 2, "{row:?}");
        assert!(row.fast_resident == row.fast_placed, "{row:?}");
        let after = r.reads_per_s(2, 4).await;
        assert!(after >= 0.95 * none, "{after} reads/s, {none} before");
    });
}

#[test]
fn a_tier_that_is_switched_off_gives_its_places_back_and_everything_is_read_all_the_same() {
    let world = TestWorld::new(3, 96 * MIB);
    let rt = world.rt();
    world.run(async move {
        let r = Rig::new(&rt).await;
        r.fill(1, 8).await;
        r.advise(1, Advice::High).await.unwrap();
        assert_eq!(r.settled(1).await.fast_resident, 8 * MIB);
        r.ost.set_params("obdfilter.*.fast_enable", "0").unwrap();
        rt.sleep(Duration::from_secs(1)).await;
        let row = r.settled(1).await;
        assert!(row.fast_placed == 0 && row.fast_resident == 0 && row.ram_placed > 3 * MIB, "{row:?}");
        r.read_all(1, 8).await;
        assert!(r.ost.set_params("obdfilter.*.fast_enable", "1").unwrap_err().contains("starts again"));
        assert!(r.ost.set_params("obdfilter.*.fast_admission", "x").unwrap_err().contains("second_touch"));
        r.ost.set_params("obdfilter.*.advice_fast_window_s", "5").unwrap();
    });
}

#[test]
fn what_a_change_elsewhere_seemed_to_overtake_is_copied_all_the_same() {
    let world = TestWorld::new(5, 96 * MIB);
    let rt = world.rt();
    world.run(async move {
        let r = Rig::new(&rt).await;
        r.fill(1, 24).await;
        r.c.create(6000).await;
        r.ost.set_params("obdfilter.*.cache_bytes", "4M").unwrap();
        r.advise(1, Advice::High).await.unwrap();
        // Removals raise counters that some of the file's units share with them.
        let mut next = 4;
        while r.row(1).await.fetched < r.row(1).await.to_fetch && next < 6000 {
            let objects = (next..next + 50).map(object).collect();
            r.c.import.ask::<_, ()>(Op::OstDestroy, &wire::ost::DestroyRequest { objects }).await.unwrap();
            next += 50;
        }
        let row = r.settled(1).await;
        assert!(param(&r.ost, "fast_stats", "overtaken_blocks") > 0, "the test shows nothing");
        assert_eq!((row.fast_resident, row.error), (24 * MIB, 0));
    });
}

#[test]
fn after_a_restart_the_tier_is_empty_and_what_was_advised_is_copied_anew() {
    let world = TestWorld::new(4, 96 * MIB);
    let rt = world.rt();
    world.run(async move {
        let bytes: Rc<dyn ObjectStore> = MemoryStore::new(&rt, identity(), 1 << 30);
        let first = start(&rt, store(&rt, &bytes).await, &nid());
        let c = Client::new(rt.clone(), 1).await;
        c.create(1).await;
        let r = Rig { c, ost: first.2.clone(), rt: rt.clone(), _alive: (first.0, first.1) };
        r.fill(1, 8).await;
        r.advise(1, Advice::Med).await.unwrap();
        r.settled(1).await;
        r._alive.0.stop();
        drop(r);
        let (_server, _oss, ost) = start(&rt, store(&rt, &bytes).await, &Nid::Local("again".into()));
        assert_eq!(param(&ost, "fast_stats", "resident_bytes"), 0);
        while param(&ost, "fast_stats", "resident_bytes") < 8 * MIB {
            rt.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(param(&ost, "advice_stats", "fast_placed_bytes"), 8 * MIB);
    });
}
