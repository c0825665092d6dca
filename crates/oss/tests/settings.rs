//! What is set and measured on a running OST: parameters, recordings, bandwidths.
#![allow(clippy::unwrap_used)]
mod node;

use node::*;

#[test]
fn parameters_are_read_and_set_over_the_wire_while_it_runs() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        let ask = async |pattern: &str, value: Option<&str>| {
            let value = value.map(Into::into);
            let ask = ParamsRequest { pattern: pattern.into(), value, ..ParamsRequest::default() };
            let reply = c.import.ask::<_, ParamsReply>(Op::Params, &ask).await.unwrap();
            let error = String::from_utf8_lossy(&reply.error).into_owned();
            if error.is_empty() { Ok(reply.params) } else { Err(error) }
        };
        c.create(1).await;
        for policy in ["obrr", "tbf", "crrn", "fifo"] {
            let set = ask("ost.OSS.ost_io.nrs_policies", Some(policy)).await.unwrap();
            assert_eq!(&set[0].value[..], policy.as_bytes());
            c.write(0, &[1; 9000]).await.unwrap();
            assert_eq!(c.read(0, 9000).await.unwrap().len(), 9000);
        }
        // Lustre's names and spellings; a quantum belongs to the policy that is in use.
        let nrs = async |name: &str, value: &str| ask(&format!("ost.OSS.ost_io.nrs_{name}"), Some(value)).await;
        for (policy, value, quantum, set, shown) in [
            ("orr", "orr reg", "orr_quantum", "reg_quantum:16", "reg_quantum:16"),
            ("trr", "trr", "trr_quantum", "8", "reg_quantum:8"),
            ("crrn", "crrn", "crrn_quantum", "0", "reg_quantum:16"),
            ("deadline+obrr", "deadline+obrr", "obrr_quantum", "4", "reg_quantum:4"),
        ] {
            assert_eq!(&nrs("policies", value).await.unwrap()[0].value[..], policy.as_bytes());
            assert_eq!(&nrs(quantum, set).await.unwrap()[0].value[..], shown.as_bytes(), "{policy}");
            c.write(0, &[1; 9000]).await.unwrap();
        }
        let said = nrs("orr_quantum", "8").await.unwrap_err();
        assert!(said.contains("not in use"), "{said}");
        let said = nrs("policies", "orr hp").await.unwrap_err();
        assert!(said.contains("high-priority"), "{said}");
        nrs("policies", "tbf nid").await.unwrap();
        for rule in [
            "start a uid={3}&opcode={ost_write} rate=5",
            "start b jobid={dd.0} rate=7 bytes=1M",
            "start c client={9} rate=2",
        ] {
            nrs("tbf_rule", rule).await.unwrap();
        }
        let rules = nrs("tbf_rule", "change a rate=6").await.unwrap();
        let rules = String::from_utf8_lossy(&rules[0].value).into_owned();
        assert!(
            ["a uid={3}&opcode={ost_write} 6", "b jobid={dd.0} 7", "c client={9} 2", "default * 10000"]
                .iter()
                .all(|r| rules.contains(r)),
            "{rules}"
        );
        assert!(nrs("tbf_rule", "stop d").await.unwrap_err().contains("'d'"));
        nrs("policies", "fifo").await.unwrap();
        ask("ost.OSS.ost_io.dispatch_window", Some("4")).await.unwrap();
        let said = ask("ost.OSS.ost_io.dispatch_window", Some("0")).await.unwrap_err();
        assert!(said.starts_with("ost.OSS.ost_io.dispatch_window: "), "{said}");
        let said = ask("obdfilter.*.kbytesfree", Some("1")).await.unwrap_err();
        assert!(said.contains("kbytesfree: it cannot be set"), "{said}");
        ask("obdfilter.*.cache_policy", Some("fgf_lru")).await.unwrap();
        assert_eq!(c.read(0, 9000).await.unwrap(), [1; 9000]);
        for key in cache::CacheConfig::KEYS {
            let name = format!("obdfilter.*.cache_{key}");
            let now = ask(&name, None).await.unwrap().remove(0);
            assert!(now.writable, "{name}");
            ask(&name, Some(std::str::from_utf8(&now.value).unwrap())).await.unwrap();
        }
        assert_eq!(ask("obdfilter.*.num_exports", None).await.unwrap()[0].value[..], *b"1");
        assert!(ask("*.*.*", None).await.unwrap().len() > 15);
    });
}

#[test]
fn what_the_cache_holds_whole_waits_for_no_turn_when_it_is_to_come_first() {
    let n = node(41, 1 << 30, OstConfig::default());
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(1).await;
        c.write(0, &[5; 50_000]).await.unwrap();
        // Requests that the scheduler saw while something was read.
        let scheduled = async |at: u64, len: u64| {
            ost.set_params("ost.OSS.ost_io.nrs_record", "64K").unwrap();
            let got = c.read(at, len).await.unwrap();
            assert_eq!(got, vec![5; len.min(50_000 - at) as usize]);
            nrs::record::replay(&ost.take_nrs_record().unwrap()).unwrap().calls > 0
        };
        let first = |value: &str| ost.set_params("obdfilter.*.cache_first", value);
        assert!(scheduled(0, 9000).await, "servers let every read wait its turn");
        first("1").unwrap();
        assert!(!scheduled(0, 9000).await);
        assert!(!scheduled(40_000, 20_000).await, "and what there is behind the end of the object");
        ost.set_params("obdfilter.*.cache_bytes", "16K").unwrap();
        assert!(scheduled(0, 30_000).await, "it is in the cache no more");
        assert!(scheduled(0, 30_000).await, "nor is there room for all of it");
        assert!(scheduled(20_000, 4_000).await != scheduled(20_000, 4_000).await, "the second time it is there");
        ost.set_params("obdfilter.*.cache_bytes", "0").unwrap();
        assert!(scheduled(0, 4_000).await);
        assert!(first("perhaps").unwrap_err().contains("'perhaps'"));
    });
}

#[test]
fn what_a_server_recorded_under_load_replays_to_the_same_answers() {
    for (seed, policy) in [(21, "obrr+"), (22, "crrn"), (23, "deadline+obrr")] {
        let n = node(seed, 1 << 30, OstConfig { dispatch_window: 1, ..OstConfig::default() });
        let (rt, ost) = (n.world.rt(), n.ost.clone());
        n.world.run(async move {
            let set = |name: &str, value: &str| ost.set_params(&format!("ost.OSS.ost_io.{name}"), value);
            let set_cache = |name: &str, value: &str| ost.set_params(&format!("obdfilter.*.{name}"), value);
            set("nrs_policies", policy).unwrap();
            set_cache("cache_bytes", "400K").unwrap();
            assert!(set("nrs_record", "check").unwrap_err().contains("nothing was recorded"));
            assert!(set("nrs_record", "1K").unwrap_err().contains("4K to 1G"));
            let load = (1..=5u32).map(|i| {
                let (rt, ost) = (rt.clone(), ost.clone());
                async move {
                    let c = Client::new(rt.clone(), u64::from(i)).await;
                    c.create(i).await;
                    let mut rng = Rng::named(seed, &i.to_string());
                    for step in 0..60u64 {
                        if i == 3 && step == 20 {
                            // In the middle: some requests are queued and one is in service.
                            ost.set_params("ost.OSS.ost_io.nrs_record", "4M").unwrap();
                            ost.set_params("obdfilter.*.cache_record", "4M").unwrap();
                        }
                        if i == 3 && step == 40 {
                            ost.set_params("obdfilter.*.cache_policy", "arc").unwrap();
                        }
                        if i == 4 && step > 40 {
                            let percent = (1 + rng.below(50)).to_string();
                            ost.set_params("obdfilter.*.cache_small_queue_percent", &percent).unwrap();
                        }
                        let bytes = vec![i as u8; 1 + rng.below(60_000) as usize];
                        c.write_to(object(i), &[(rng.below(40) * 4096, &bytes)], 0).await.unwrap();
                        c.read_from(object(i), vec![Extent::at(rng.below(40) * 4096, 9000)]).await.unwrap();
                    }
                }
            });
            let load = load.map(|l| Box::pin(l) as rt::LocalFuture<()>).collect();
            rt::sync::join_all(load).await;
            for (name, calls_min) in [("ost.OSS.ost_io.nrs_record", 500), ("obdfilter.*.cache_record", 1000)] {
                ost.set_params(name, "check").unwrap();
                let said = ost.get_params(name).remove(0).value;
                let said = String::from_utf8_lossy(&said).into_owned();
                assert!(said.ends_with("the same answers"), "{policy} {name}: {said}");
                let calls: u32 = said.split(' ').next().unwrap().parse().unwrap();
                assert!(calls > calls_min, "{policy} {name}: {said}");
            }
            set_cache("cache_bypass_bytes", "64K").unwrap();
            set_cache("cache_bytes", "0").unwrap();
            set_cache("cache_duel_sample_one_in", "16").unwrap();
            let get = |name: &str| ost.get_params(&format!("obdfilter.*.{name}")).remove(0).value;
            assert_eq!(
                (&get("cache_bypass_bytes")[..], &get("cache_duel_sample_one_in")[..]),
                (&b"65536"[..], &b"16"[..])
            );
            let said = set_cache("cache_bypass_bytes", "5").unwrap_err();
            assert!(said.ends_with("bypass_bytes = '5' is out of range: 4096 to 4294967296 bytes"), "{said}");
            assert!(set_cache("cache_batch_pages", "many").unwrap_err().contains("'many' is not a whole number"));
            assert!(set_cache("cache_record", "4M").unwrap_err().contains("the cache is off"));

            set("nrs_record", "64K").unwrap();
            let mut log = ost.take_nrs_record().unwrap();
            assert!(nrs::record::replay(&log).is_ok_and(|r| r.calls == 0));
            log.truncate(log.len() - 3);
            assert!(nrs::record::replay(&log).is_err());
        });
    }
}

/// Bytes per second of records at random places of 128 MiB, `window` at a time, measured on the device itself.
fn direct(profile: devices::DeviceProfile, record: u64, window: u32) -> f64 {
    use devices::{Access, Device, ElevatorConfig, ElevatorKind};
    let elevator = ElevatorConfig { kind: ElevatorKind::Noop, ..ElevatorConfig::default() };
    let mut device = Device::new(profile, elevator, types::Rng::new(3));
    let mut rng = types::Rng::new(4);
    let (mut ends, mut now, mut done) = (std::collections::BTreeSet::new(), 0, 0u64);
    let mut submit = |device: &mut Device, now: u64| {
        let access = Access { lba: rng.below((128 << 20) / record) * record, len: record, write: false };
        device.submit(now, 0, access);
    };
    (0..window.min((16 << 20) / record as u32).max(1)).for_each(|_| submit(&mut device, 0));
    while now < 2_000_000_000 {
        while let Some((slot, at)) = device.start_next(now) {
            ends.insert((at, slot));
        }
        let Some((at, slot)) = ends.pop_first() else { break };
        now = at;
        let mut came = 0;
        device.finish(slot, |_| came += 1);
        done += came;
        (0..came).for_each(|_| submit(&mut device, now));
    }
    (done * record) as f64 * 1e9 / now as f64
}

#[test]
fn measured_bandwidths_lie_within_5_percent_of_the_stores_at_every_record_size() {
    use oss::store::{DeviceProfile, EmulatedStore, ObjectStore};
    for (name, keys, window) in [("paper001", "", 16), ("hdd", "seek_ms=8.5", 4), ("ssd", "", 8), ("nvme", "", 16)] {
        let profile = DeviceProfile::parse(name, keys).unwrap();
        let world = TestWorld::new(5, 512 * MIB);
        let rt = world.rt();
        world.run(async move {
            let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
            let memory = MemoryStore::new(&rt, identity, 1 << 30);
            let store: Rc<dyn ObjectStore> = EmulatedStore::new(rt.clone(), memory, profile);
            for _ in 0..2 {
                let objects = store.space().objects;
                let table = oss::bandwidth::measure(&rt, &store, window).await.unwrap();
                assert_eq!(store.space().objects, objects, "nothing is left behind");
                for (i, measured) in table.into_iter().enumerate() {
                    let record = 64 << 10 << i;
                    let direct = direct(profile, record, window);
                    let off = measured as f64 / direct - 1.0;
                    assert!(off.abs() < 0.05, "{name}, {record} bytes: {measured} B/s, {direct} directly");
                }
            }
        });
    }
}

#[test]
fn an_ost_measures_its_store_when_it_is_told_to() {
    let n = node(31, 1 << 30, OstConfig::default());
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let bw = "ost.OSS.ost_io.nrs_bw_mb_per_s";
        let now = || String::from_utf8_lossy(&ost.get_params(bw)[0].value).into_owned();
        let before = now();
        assert!(ost.set_params(bw, "fast").is_err());
        ost.set_params(bw, "measure").unwrap();
        for _ in 0..60 {
            rt.sleep(Duration::from_secs(1)).await;
        }
        // Memory takes no virtual time: as fast as can be said.
        assert_eq!((before.as_str(), now().as_str()), ("250", "1000000"));
        ost.set_params(bw, "100").unwrap();
    });
}

#[test]
fn a_scheduler_that_nobody_chose_follows_what_the_store_lies_on_and_one_that_chooses_begins_with_it() {
    use oss::store::{DeviceProfile, EmulatedStore};
    for (profile, chosen) in [("hdd", "obrr+"), ("raid", "obrr+"), ("ssd", "fifo"), ("nvme", "fifo")] {
        let world = TestWorld::new(6, 24 * MIB);
        let rt = world.rt();
        world.run(async move {
            let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
            let memory = MemoryStore::new(&rt, identity, 1 << 20);
            let store = EmulatedStore::new(rt.clone(), memory, DeviceProfile::named(profile).unwrap());
            let ost = |policy: &str| {
                let config = OstConfig { nrs_policy: policy.into(), ..OstConfig::default() };
                Ost::new(rt.clone(), store.clone(), config, None).unwrap()
            };
            let shows = |ost: &Ost, name: &str| {
                let found = ost.get_params(&format!("ost.OSS.ost_io.{name}"));
                String::from_utf8_lossy(&found[0].value).into_owned()
            };
            let default = types::params::Keys::get(&oss::Keys::default(), "nrs.policy").unwrap();
            let nobodys = ost(&default);
            assert_eq!((default.as_str(), shows(&nobodys, "nrs_policies").as_str()), (oss::BY_MEDIUM, chosen));
            assert_eq!(shows(&nobodys, "nrs_decisions"), "");
            let auto = ost("auto");
            assert_eq!(shows(&auto, "nrs_policies"), "auto");
            let in_use = format!("in use: {chosen}, of fifo, obrr, obrr+;");
            assert!(shows(&auto, "nrs_decisions").starts_with(&in_use), "{}", shows(&auto, "nrs_decisions"));
            let why = shows(&auto, "nrs_by_medium");
            assert!(why.starts_with(&format!("{chosen}: ")) && why.contains(&format!("'{profile}'")), "{why}");
            // Who chooses is obeyed, at the start and later, and may take it back.
            let set = ost("crrn");
            assert_eq!(shows(&set, "nrs_policies"), "crrn");
            set.set_params("ost.OSS.ost_io.nrs_policies", "orr").unwrap();
            assert_eq!(shows(&set, "nrs_policies"), "orr");
            set.set_params("ost.OSS.ost_io.nrs_policies", oss::BY_MEDIUM).unwrap();
            assert_eq!(shows(&set, "nrs_policies"), chosen);
            set.set_params("ost.OSS.ost_io.nrs_policies", "auto").unwrap();
            assert!(shows(&set, "nrs_decisions").starts_with(&in_use));
            assert!(set.set_params("ost.OSS.ost_io.nrs_by_medium", "fifo").is_err());
        });
    }
}

#[test]
fn keys_that_say_live_are_parameters_with_the_same_values() {
    use types::params::{Keys as _, Kind, Life};
    let n = node(1, 1 << 30, OstConfig::default());
    for row in oss::Keys::ROWS {
        let Life::Live(path) = row.life else { panic!("{}: all of an object server's are live", row.key) };
        if row.kind.describe() == "text" {
            continue;
        }
        let found = n.ost.get_params(path);
        assert!(!found.is_empty() && found.iter().all(|p| p.writable), "{}: {path}", row.key);
        n.ost.set_params(path, row.default).unwrap_or_else(|e| panic!("{}: its default: {e}", row.key));
        if let Kind::Bytes { max, .. } | Kind::Number { max, .. } = row.kind {
            let said = n.ost.set_params(path, &(max + 1).to_string()).unwrap_err();
            assert!(said.starts_with(&found[0].path.escape_ascii().to_string()), "{said}");
        }
    }
}

#[test]
fn a_scrub_counts_what_the_medium_does_not_give_back_and_reads_the_rest() {
    let n = node(1, 1 << 30, OstConfig::default());
    let (rt, ost, store) = (n.world.rt(), n.ost.clone(), n.store.clone());
    n.world.run(async move {
        let c = Client::new(rt.clone(), 1).await;
        c.create(2).await;
        for id in [1, 2] {
            c.write_to(object(id), &[(0, &[7; 5 * 4096])], 0).await.unwrap();
        }
        store.set_unreadable(object(1), 3);
        ost.set_params("obdfilter.*.scrub", "1000").unwrap();
        let said = loop {
            rt.sleep(Duration::from_secs(1)).await;
            let said = String::from_utf8(ost.get_params("obdfilter.*.scrub")[0].value.to_vec()).unwrap();
            if !said.starts_with("status: running") {
                break said;
            }
        };
        assert!(said.starts_with("status: complete") && said.contains("faults: 1\n"), "{said}");
        assert!(said.contains(&format!("object {}: block 3 cannot be read", object(1))), "{said}");
        assert!(said.contains("objects: 2 of 2"), "{said}");
    });
}
