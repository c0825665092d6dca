//! Advice on an OST: classes of cached pages, prefetches behind everybody else, refusals, and what outlives a restart.
#![allow(clippy::unwrap_used)]
mod node;

use node::*;
use oss::store::{DeviceProfile, EmulatedStore, ObjectStore};
use wire::ost::{Advice, AdviseRequest, AdvisedRange, AdvisedReply, AdvisedRequest, IoOwner};

fn config(cache_bytes: u64) -> OstConfig {
    let advice_keys = advice::Config { project_percent_max: 100, part_bytes_min: 4096, ..advice::Config::default() };
    OstConfig { cache_bytes, advice_keys, ..OstConfig::default() }
}

impl Client {
    async fn advise_as(&self, uid: u32, oid: u32, extent: Extent, advice: Advice) -> Result<(), FsError> {
        let owner = IoOwner { uid, ..IoOwner::default() };
        let since = WallTime(i64::from(uid) + 100);
        let ask = AdviseRequest { object: object(oid), extent, advice, background: false, owner, since };
        self.import.ask(Op::OstAdvise, &ask).await
    }
    async fn advise(&self, oid: u32, extent: Extent, advice: Advice) -> Result<(), FsError> {
        self.advise_as(0, oid, extent, advice).await
    }
    async fn advised(&self, oid: u32) -> Vec<AdvisedRange> {
        let reply: AdvisedReply =
            self.import.ask(Op::OstAdvised, &AdvisedRequest { object: object(oid) }).await.unwrap();
        reply.ranges
    }
    /// Waits until everything that is to be fetched of an object was.
    async fn settled(&self, oid: u32) -> AdvisedRange {
        loop {
            let mut rows = self.advised(oid).await;
            if rows.iter().all(|r| r.fetched == r.to_fetch) {
                return rows.remove(0);
            }
            self.rt.sleep(Duration::from_millis(10)).await;
        }
    }
    /// `mib` MiB of an object.
    async fn fill(&self, oid: u32, mib: u64) {
        for i in 0..mib {
            let bytes = vec![oid as u8 + i as u8; MIB as usize];
            self.write_to(object(oid), &[(i * MIB, &bytes)], 0).await.unwrap();
        }
    }
    async fn read_all(&self, oid: u32, mib: u64) {
        for i in 0..mib {
            let (got, _) = self.read_from(object(oid), vec![Extent::at(i * MIB, MIB)]).await.unwrap();
            assert!(got.iter().all(|b| *b == oid as u8 + i as u8));
        }
    }
}

fn param(ost: &Ost, name: &str, line: &str) -> u64 {
    let text = String::from_utf8(ost.get_params(&format!("obdfilter.*.{name}")).remove(0).value.0).unwrap();
    let found = text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(": ")).unwrap_or_else(|| panic!("{text}"));
    found.parse().unwrap()
}

#[test]
fn high_advice_is_fetched_and_never_leaves_because_of_unadvised_reads() {
    let n = node(1, 1 << 30, config(8 * MIB));
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(3).await;
        c.fill(1, 4).await;
        c.fill(2, 12).await;
        c.advise(1, Extent::ALL, Advice::High).await.unwrap();
        let row = c.settled(1).await;
        assert_eq!((row.ram_placed, row.ram_resident, row.fetched), (4 * MIB, 4 * MIB, 4 * MIB));
        assert_eq!((row.advice, row.error, row.refusal, row.extent), (Advice::High, 0, 0, Extent::ALL));
        // Low advice on bytes that do not all fit beside it is taken in part; unadvised reads go over everything.
        c.advise(2, Extent::at(0, 8 * MIB), Advice::Cache).await.unwrap();
        for _ in 0..3 {
            c.read_all(2, 12).await;
        }
        let row = c.advised(1).await.remove(0);
        assert_eq!((row.ram_resident, row.hits), (4 * MIB, 0));
        assert_eq!(param(&ost, "advice_stats", "reclaimed_advised_pages"), 0);
        assert!(param(&ost, "advice_stats", "reclaimed_unadvised_pages") > 1000);
        c.read_all(1, 4).await;
        assert_eq!(c.advised(1).await[0].hits, 4 * MIB / 4096);
        // Withdrawn, they leave as others do.
        c.advise(1, Extent::ALL, Advice::None).await.unwrap();
        assert!(c.advised(1).await.is_empty());
        for _ in 0..3 {
            c.read_all(2, 12).await;
        }
        c.advise(1, Extent::ALL, Advice::Cache).await.unwrap();
        assert_eq!(c.advised(1).await[0].ram_resident, 0);
    });
}

#[test]
fn what_is_not_possible_is_refused_with_its_errno_and_what_was_placed_stays() {
    let n = node(2, 1 << 30, config(8 * MIB));
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(4).await;
        c.fill(1, 6).await;
        c.fill(2, 1).await;
        assert_eq!(c.advise(1, Extent::EMPTY, Advice::High).await, Err(FsError::Invalid));
        assert_eq!(c.advise(99, Extent::ALL, Advice::High).await, Err(FsError::NotFound));
        // 80 % of 8 MiB are for advice.
        c.advise_as(7, 1, Extent::ALL, Advice::High).await.unwrap();
        c.advise(2, Extent::ALL, Advice::Low).await.unwrap();
        assert_eq!(c.advised(2).await[0].refusal, 2, "all but its beginning found no room");
        c.fill(3, 1).await;
        // What is left is less than the smallest part.
        assert_eq!(c.advise(3, Extent::ALL, Advice::Low).await, Err(FsError::NoSpace));
        let row = c.advised(3).await.remove(0);
        assert_eq!((row.refusal, row.error, row.ram_placed), (2, FsError::NoSpace.errno() as u16, 0));
        // Another user may raise, and may not lower; root and who asked may.
        assert_eq!(c.advise_as(8, 1, Extent::at(0, MIB), Advice::None).await, Err(FsError::NotPermitted));
        assert_eq!(c.advised(1).await[0].extent, Extent::ALL);
        c.advise_as(7, 1, Extent::new(2 * MIB, 4 * MIB), Advice::None).await.unwrap();
        let rows = c.advised(1).await;
        let left: Vec<Extent> = rows.iter().map(|r| r.extent).collect();
        assert_eq!(left, [Extent::new(0, 2 * MIB), Extent::from(4 * MIB)]);
        assert_eq!(rows.iter().map(|r| (r.ram_placed, r.owner.uid)).collect::<Vec<_>>(), [(2 * MIB, 7), (2 * MIB, 7)]);
        c.advise(3, Extent::ALL, Advice::High).await.unwrap();
        // A project without any budget may advise nothing.
        ost.set_params("obdfilter.*.advice_budget", "0 0 0").unwrap();
        assert_eq!(c.advise(2, Extent::ALL, Advice::Med).await, Err(FsError::NotPermitted));
        assert!(ost.set_params("obdfilter.*.advice_budget", "x").unwrap_err().contains("WHO RAM FAST"));
        assert!(ost.set_params("obdfilter.*.advice_policy", "x").unwrap_err().contains("house"));
        assert!(ost.set_params("obdfilter.*.advice_piece_bytes", "1").is_err());
    });
}

#[test]
fn a_users_budget_holds_over_all_objects_and_takes_nothing_from_others() {
    let n = node(6, 1 << 30, config(16 * MIB));
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(3).await;
        for oid in 1..=3 {
            c.fill(oid, 2).await;
        }
        ost.set_params("obdfilter.*.advice_budget", "uid:7 3M 0").unwrap();
        ost.set_params("obdfilter.*.advice_budget", "uid:8 0 0").unwrap();
        c.advise_as(7, 1, Extent::ALL, Advice::Med).await.unwrap();
        c.advise_as(7, 2, Extent::ALL, Advice::Med).await.unwrap();
        let row = c.settled(2).await;
        assert_eq!((row.ram_placed, row.refusal), (MIB, 3), "the budget ends within it");
        assert_eq!(c.advise_as(7, 3, Extent::ALL, Advice::Med).await, Err(FsError::NoSpace));
        assert_eq!(c.advised(3).await[0].refusal, 3);
        assert_eq!(c.advise_as(8, 3, Extent::ALL, Advice::Low).await, Err(FsError::NotPermitted));
        c.advise_as(9, 3, Extent::ALL, Advice::Low).await.unwrap();
        assert_eq!(c.settled(3).await.ram_placed, 2 * MIB);
        let text = ost.get_params("obdfilter.*.advice_budget").remove(0).value.0;
        assert_eq!(String::from_utf8(text).unwrap(), "uid:7 3145728 0\nuid:8 0 0\n");
        ost.set_params("obdfilter.*.advice_budget", "uid:8 default").unwrap();
        c.advise_as(8, 1, Extent::ALL, Advice::High).await.unwrap();
        for bad in ["uid: 1 1", "uid:x 1 1", "7", "7 1", "7 1 x", "-1 default"] {
            assert!(ost.set_params("obdfilter.*.advice_budget", bad).is_err(), "{bad}");
        }
    });
}

#[test]
fn advice_follows_growth_truncation_and_removal() {
    let n = node(3, 1 << 30, config(12 * MIB));
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(2).await;
        c.advise(1, Extent::ALL, Advice::Med).await.unwrap();
        assert_eq!(c.advised(1).await[0].ram_placed, 0, "there is nothing yet");
        c.fill(1, 6).await;
        c.fill(2, 1).await;
        let placed = c.settled(1).await;
        assert!((6 * MIB..=7 * MIB).contains(&placed.ram_placed), "{placed:?}");
        assert_eq!(placed.ram_resident, 6 * MIB);
        c.punch(PunchKind::Truncate, Extent::from(2 * MIB)).await.unwrap();
        let cut = c.advised(1).await.remove(0);
        assert_eq!((cut.ram_placed, cut.ram_resident), (2 * MIB, 2 * MIB));
        c.fill(1, 3).await;
        assert!(c.settled(1).await.ram_placed >= 3 * MIB, "what comes again is advised again");
        let destroy = DestroyRequest { objects: vec![object(1)] };
        c.import.ask::<_, ()>(Op::OstDestroy, &destroy).await.unwrap();
        assert_eq!(param(&ost, "advice_stats", "ram_placed_bytes"), 0);
        assert_eq!(param(&ost, "advice_stats", "ranges"), 0);
        assert!(ost.store().advice().is_empty(), "the store has forgotten it");
    });
}

#[test]
fn pages_that_lose_their_place_to_another_policy_leave_as_unadvised_ones_do() {
    let n = node(8, 1 << 30, config(8 * MIB));
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(2).await;
        c.fill(1, 4).await;
        c.fill(2, 12).await;
        c.advise(1, Extent::ALL, Advice::High).await.unwrap();
        assert_eq!(c.settled(1).await.ram_resident, 4 * MIB);
        ost.set_params("obdfilter.*.advice_policy", "none").unwrap();
        for _ in 0..3 {
            c.read_all(2, 12).await;
        }
        let row = c.advised(1).await.remove(0);
        assert_eq!((row.ram_placed, row.ram_resident, row.refusal), (0, 0, 1));
        ost.set_params("obdfilter.*.advice_policy", "house").unwrap();
        while c.advised(1).await[0].ram_resident < 4 * MIB {
            c.rt.sleep(Duration::from_millis(10)).await;
        }
    });
}

impl Client {
    /// Level, user, range in MiB and bytes in memory of what counts and of what others outdid, in this order.
    async fn counts(&self, oid: u32) -> (Vec<(Advice, u32, u64, u64)>, Vec<(Advice, u32)>) {
        self.settled_all(oid).await;
        let (mut counts, mut outdone) = (Vec::new(), Vec::new());
        for r in self.advised(oid).await {
            match r.is_outdone() {
                true => outdone.push((r.advice, r.owner.uid)),
                false => counts.push((r.advice, r.owner.uid, r.extent.start / MIB, r.ram_placed / MIB)),
            }
        }
        (counts, outdone)
    }
    async fn settled_all(&self, oid: u32) {
        while self.advised(oid).await.iter().any(|r| r.fetched < r.to_fetch) {
            self.rt.sleep(Duration::from_millis(10)).await;
        }
    }
}

#[test]
fn who_may_not_take_anothers_advice_away_cannot_do_it_by_raising_it_first_either() {
    use Advice::{High, Low, Med, None as Nothing};
    let n = node(9, 1 << 30, config(16 * MIB));
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(1).await;
        c.fill(1, 4).await;
        let (all, first, third) = (Extent::ALL, Extent::at(0, MIB), Extent::at(2 * MIB, MIB));
        c.advise_as(7, 1, all, Low).await.unwrap();
        assert_eq!(c.advise_as(8, 1, first, Nothing).await, Err(FsError::NotPermitted));
        for raised in [High, Low] {
            c.advise_as(8, 1, third, raised).await.unwrap();
            let (counts, outdone) = c.counts(1).await;
            assert_eq!(counts, [(Low, 7, 0, 2), (raised, 8, 2, 1), (Low, 7, 3, 1)], "{raised:?}");
            assert_eq!(outdone, [(Low, 7)]);
            assert_eq!(c.advise_as(9, 1, third, Nothing).await, Err(FsError::NotPermitted));
            c.advise_as(8, 1, all, Nothing).await.unwrap_err();
            c.advise_as(8, 1, third, Nothing).await.unwrap();
            let (counts, outdone) = c.counts(1).await;
            assert_eq!(counts, [(Low, 7, 0, 2), (Low, 7, 2, 1), (Low, 7, 3, 1)], "what was there before counts again");
            assert!(outdone.is_empty());
        }
        // Of several the highest counts again, of those that are left.
        c.advise_as(7, 1, all, Low).await.unwrap();
        c.advise_as(8, 1, all, Med).await.unwrap();
        c.advise_as(9, 1, first, High).await.unwrap();
        assert_eq!(c.counts(1).await.1, [(Low, 7), (Med, 8)]);
        assert_eq!(c.advise_as(9, 1, first, Low).await, Err(FsError::NotPermitted), "less than another asked for");
        c.advise_as(9, 1, first, Nothing).await.unwrap();
        assert_eq!(c.counts(1).await.0, [(Med, 8, 0, 1), (Med, 8, 1, 3)]);
        c.advise_as(8, 1, all, Nothing).await.unwrap();
        assert_eq!(c.counts(1).await, (vec![(Low, 7, 0, 4)], vec![]));
        // What others outdid may be withdrawn, too.
        c.advise_as(8, 1, all, High).await.unwrap();
        c.advise_as(7, 1, all, Nothing).await.unwrap();
        assert_eq!(c.counts(1).await, (vec![(High, 8, 0, 4)], vec![]));
        // Root clears everything.
        c.advise_as(9, 1, all, High).await.unwrap();
        c.advise(1, all, Nothing).await.unwrap();
        assert!(c.advised(1).await.is_empty());
    });
}

#[test]
fn a_target_that_starts_again_places_what_it_was_told_and_fetches_it() {
    let world = TestWorld::new(4, 64 * MIB);
    let rt = world.rt();
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    let store: Rc<dyn ObjectStore> = MemoryStore::new(&rt, identity, 1 << 30);
    let start = |store: &Rc<dyn ObjectStore>, name: &str| {
        let server_config = ServerConfig {
            key: ClusterKey::none(),
            recovery_window: Duration::from_secs(1),
            client_timeout: Duration::from_secs(600),
            boot: 1,
        };
        let server = Server::new(rt.clone(), server_config);
        server.listen(&Nid::Local(name.into())).unwrap();
        let oss = Oss::new(rt.clone(), server.clone(), &config(8 * MIB)).unwrap();
        let ost = oss.add(store.clone(), config(8 * MIB)).unwrap();
        (server, oss, ost)
    };
    let first = start(&store, "oss");
    let runs = rt.clone();
    world.run(async move {
        let c = Client::new(runs, 1).await;
        c.create(2).await;
        c.fill(1, 3).await;
        c.advise_as(4, 1, Extent::at(MIB, MIB), Advice::Low).await.unwrap();
        c.advise_as(5, 1, Extent::at(MIB, MIB), Advice::High).await.unwrap();
        c.settled(1).await;
    });
    first.0.stop();
    drop(first);
    let (_server, _oss, ost) = start(&store, "again");
    let clock = rt.clone();
    world.run(async move {
        while param(&ost, "cache_stats", "resident_bytes") < MIB {
            clock.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(param(&ost, "cache_stats", "resident_bytes"), MIB, "the advised bytes, and nothing else");
        assert_eq!(param(&ost, "advice_stats", "ram_placed_bytes"), MIB);
        let c = Client::of(clock, 2, Nid::Local("again".into())).await;
        let known = (vec![(Advice::High, 5, 1, 1)], vec![(Advice::Low, 4)]);
        assert_eq!(c.counts(1).await, known, "what others outdid is remembered as such");
        c.advise_as(5, 1, Extent::ALL, Advice::None).await.unwrap();
        assert_eq!(c.counts(1).await, (vec![(Advice::Low, 4, 1, 1)], vec![]));
    });
}

/// A disk under an OST; how long it takes to read 16 MiB at a time, and to prefetch them while nobody or somebody reads.
#[test]
fn a_prefetch_takes_what_a_sequential_read_takes_and_lets_others_pass() {
    let world = TestWorld::new(5, 96 * MIB);
    let rt = world.rt();
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    let disk = DeviceProfile::named("paper001").unwrap();
    let store = EmulatedStore::new(rt.clone(), MemoryStore::new(&rt, identity, 1 << 30), disk);
    let server_config = ServerConfig {
        key: ClusterKey::none(),
        recovery_window: Duration::from_secs(1),
        client_timeout: Duration::from_secs(600),
        boot: 1,
    };
    let server = Server::new(rt.clone(), server_config);
    server.listen(&nid()).unwrap();
    let config = OstConfig { dispatch_window: 1, ..config(48 * MIB) };
    let oss = Oss::new(rt.clone(), server.clone(), &config).unwrap();
    let ost = oss.add(store, config).unwrap();
    let clock = rt.clone();
    world.run(async move {
        let c = Client::new(clock.clone(), 1).await;
        c.create(3).await;
        c.fill(1, 16).await;
        c.fill(2, 16).await;
        let forget = || ost.set_params("obdfilter.*.cache_bytes", "48M").unwrap();
        forget();
        let begun = clock.now();
        c.read_all(1, 16).await;
        let sequential = clock.now().since(begun).as_nanos() as f64;
        forget();
        let begun = clock.now();
        c.advise(1, Extent::ALL, Advice::High).await.unwrap();
        assert!(c.settled(1).await.ram_resident == 16 * MIB);
        let prefetch = clock.now().since(begun).as_nanos() as f64;
        assert!(prefetch <= 1.2 * sequential, "{prefetch} ns against {sequential} ns of a sequential read");
        // A read that comes meanwhile waits for one turn of it, not for a piece.
        c.advise(1, Extent::ALL, Advice::None).await.unwrap();
        forget();
        c.advise(1, Extent::ALL, Advice::High).await.unwrap();
        clock.sleep(Duration::from_nanos(sequential as u64 / 4)).await;
        let begun = clock.now();
        c.read_from(object(2), vec![Extent::at(0, 4096)]).await.unwrap();
        let waited = clock.now().since(begun).as_nanos() as f64;
        // One turn of 1 MiB, the read's own seek and the way back.
        assert!(waited < sequential / 16.0 + 40e6, "{waited} ns where all of it takes {sequential} ns");
        assert!(c.advised(1).await[0].fetched < 16 * MIB, "the prefetch was under way");
        // Withdrawn, it ends.
        c.advise(1, Extent::ALL, Advice::None).await.unwrap();
        clock.sleep(Duration::from_nanos(2 * sequential as u64)).await;
        assert!(param(&ost, "cache_stats", "resident_bytes") < 16 * MIB);
    });
}

#[test]
fn of_wishes_to_fetch_in_the_background_a_few_are_carried_out_at_a_time_and_too_many_are_dropped() {
    let world = TestWorld::new(7, 96 * MIB);
    let rt = world.rt();
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    let disk = DeviceProfile::named("paper001").unwrap();
    let store = EmulatedStore::new(rt.clone(), MemoryStore::new(&rt, identity, 1 << 30), disk);
    let server_config = ServerConfig {
        key: ClusterKey::none(),
        recovery_window: Duration::from_secs(1),
        client_timeout: Duration::from_secs(600),
        boot: 1,
    };
    let server = Server::new(rt.clone(), server_config);
    server.listen(&nid()).unwrap();
    let oss = Oss::new(rt.clone(), server.clone(), &config(48 * MIB)).unwrap();
    let ost = oss.add(store, config(48 * MIB)).unwrap();
    world.run(async move {
        let c = Rc::new(Client::new(rt.clone(), 1).await);
        c.create(1).await;
        c.fill(1, 8).await;
        ost.set_params("obdfilter.*.cache_bytes", "48M").unwrap();
        let before = param(&ost, "cache_stats", "resident_bytes");
        // Blocks far apart, each a seek of the disk.
        let wishes = (0..100u64).map(|i| {
            let c = c.clone();
            async move {
                let ask = AdviseRequest {
                    object: object(1),
                    extent: Extent::at((i * 37 % 100) * 16 * 4096, 4096),
                    advice: Advice::WillRead,
                    background: true,
                    owner: IoOwner::default(),
                    since: WallTime(1),
                };
                c.import.ask::<_, ()>(Op::OstAdvise, &ask).await
            }
        });
        assert!(rt::sync::join_all(wishes.collect()).await.iter().all(Result::is_ok), "all are answered");
        let dropped = param(&ost, "advice_stats", "dropped_fetches");
        assert!((1..=32).contains(&dropped), "{dropped}");
        // All others are carried out, and what comes afterwards is, too.
        let kept = before + (100 - dropped) * 4096;
        while param(&ost, "cache_stats", "resident_bytes") < kept {
            rt.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(param(&ost, "advice_stats", "dropped_fetches"), dropped);
    });
}
