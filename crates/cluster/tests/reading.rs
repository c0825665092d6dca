//! What clients fetch from object storage targets, and when: readahead, hints, caches, schedulers; without a kernel in front.
#![allow(clippy::unwrap_used)]
mod world;

use world::*;

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
                    c.data().write(&file, at, &vec![step as u8; bytes as usize]).await.unwrap();
                }
                c.data().read(&file, step * 300_000, 300_000).await.unwrap();
                c.data().read(&file, at, 4096).await.unwrap();
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
                writer.data().write(&file, at, &vec![i as u8; 1 << 20]).await.unwrap();
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
                    let got = c.data().read(&file, at, 1 << 20).await.unwrap();
                    assert!(got.len() == 1 << 20 && got.slices().all(|s| s.iter().all(|b| *b == i as u8)));
                }
                c.release(&file).await.unwrap();
            }
        });
        rt::sync::join_all(load.map(|l| Box::pin(l) as rt::LocalFuture<()>).collect()).await;
        let fetched: u64 = reader.osts().all().iter().map(|o| o.stats().read_bytes).sum();
        assert_eq!(fetched, files * bytes, "what was read ahead was read before it had to go");
    });
}

#[test]
fn the_budget_of_readahead_follows_the_cache_and_comes_back_with_it() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "budget", 1, 128 * MIB).await;
        let config = ClientConfig { cache_bytes: 32 * MIB, ..ClientConfig::new(world.mds_nid.clone()) };
        let c = join(&world.rt, config, 1, PATIENCE).await.unwrap();
        let budget = || c.data().readahead().setting("max_read_ahead_mb").unwrap();
        c.data().readahead().set("max_read_ahead_mb", "6").unwrap();
        assert_eq!(budget(), 6 * MIB, "less than a quarter of the cache");
        c.data().set_cache_bytes(8 * MIB);
        assert_eq!(budget(), 2 * MIB, "a quarter of the smaller cache");
        // Other settings leave what was asked for alone.
        c.data().readahead().set("max_read_ahead_per_file_mb", "1").unwrap();
        c.data().readahead().set_policy("ondemand").unwrap();
        assert_eq!((budget(), c.data().readahead().policy()), (2 * MIB, "ondemand"));
        c.data().set_cache_bytes(16 * MIB);
        assert_eq!(budget(), 4 * MIB);
        c.data().set_cache_bytes(32 * MIB);
        assert_eq!((budget(), c.data().readahead().policy()), (6 * MIB, "ondemand"));
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
            c.data().pages().set_policy(policy).unwrap();
            c.data().readahead().set("max_read_ahead_mb", "4").unwrap();
            work(&c, policy).await;
            c.data().write(&open, 0, &vec![1; 4 << 20]).await.unwrap();
            c.data().read(&open, 0, 1 << 20).await.unwrap();
            c.data().pages().set_record("256M").unwrap();
            c.data().readahead().set_record("16M").unwrap();
            assert_eq!((c.data().pages().record().as_str(), c.data().readahead().record().as_str()), ("on", "on"));
            work(&c, policy).await;
            c.data().pages().set_key("bypass_bytes", "256K").unwrap();
            c.data().pages().set_policy("s3fifo").unwrap();
            work(&c, "between").await;
            assert!(c.data().pages().set_key("small_queue_percent", "51").unwrap_err().contains("1 to 50 %"));
            c.data().pages().set_key("small_queue_percent", "30").unwrap();
            assert_eq!(c.data().pages().key("small_queue_percent").as_deref(), Some("30"));
            c.data().readahead().set_policy("ondemand").unwrap();
            c.data().readahead().set("max_read_ahead_mb", "2").unwrap();
            work(&c, "later").await;
            c.data().read(&open, 1 << 20, 3 << 20).await.unwrap();
            c.data().readahead().set_policy("parallel").unwrap();
            c.data().pages().set_record("check").unwrap();
            c.data().readahead().set_record("check").unwrap();
            for (said, calls_min) in [(c.data().pages().record(), 10_000), (c.data().readahead().record(), 300)] {
                assert!(said.ends_with("calls replayed, the same answers"), "{policy}: {said}");
                let calls: u32 = said.split(' ').next().unwrap().parse().unwrap();
                assert!(calls > calls_min, "{policy}: {said}");
            }
        }
    });
}

#[test]
fn what_a_lock_callback_waits_for_is_urgent_at_the_target_and_other_write_out_is_not() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "urgent", 1, 128 * MIB).await;
        let (a, b) = (world.client().await, world.client().await);
        let ost = world.oss.oss.osts().remove(0);
        let count = |name: &str| -> u64 {
            let text = ost.get_params("ost.OSS.ost_io.req_waitqueue").remove(0).value;
            let text = String::from_utf8_lossy(&text).into_owned();
            let line = text.lines().find_map(|l| l.trim().strip_prefix(&format!("{name}: "))).unwrap();
            line.trim_end_matches(',').parse().unwrap()
        };
        ost.set_params("ost.OSS.ost_io.nrs_policies", "obrr+").unwrap();
        let f = create(&a, Fid::ROOT, "f").await;
        a.data().write(&f, 0, &[1; 100_000]).await.unwrap();
        a.data().fsync(&f, false).await.unwrap();
        assert!(count("completed") > 0 && count("urgent") == 0, "nobody waited for that");
        let g = open(&b, "f").await;
        for round in 1..=5u8 {
            a.data().write(&f, 0, &[round; 100_000]).await.unwrap();
            assert!(b.data().read(&g, 0, 100_000).await.unwrap().to_vec() == vec![round; 100_000]);
            assert_eq!(count("urgent"), u64::from(round), "one flush for one callback");
        }
        assert_eq!((count("late"), count("mandatory_fired") + count("urgent_served")), (0, 5));
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
                assert_eq!(reader.data().read(&file, 0, 300 << 10).await.unwrap().len(), 300 << 10);
            }
            if step == 1 {
                // One is not told what it does not share.
                osts[2].set_params("ost.OSS.ost_io.nrs_policies", "fifo").unwrap();
            }
        }
        let took: Vec<u64> = (0..3).map(|i| count(i, "dequeued") - before[i]).collect();
        assert!(took.iter().all(|n| *n > 8), "{took:?}");
        for (i, told_min, told_max) in [(0, took[1] + 1, took[1] + took[2] + 8), (2, 1, took[0] + took[1] - 1)] {
            let told = count(i, "told");
            assert!((told_min..=told_max).contains(&told), "{i} was told {told} times: {took:?}");
        }
        // Each of what the other took, but for what a client has under way while this looks.
        let both = [0, 1].map(|i| count(i, "told") + took[i]);
        assert!(both[0].abs_diff(both[1]) <= 8, "{both:?}");
        set("nrs_record", "check");
        for i in 0..3 {
            let said = text(i, "nrs_record");
            assert!(said.ends_with("the same answers"), "{i}: {said}");
        }
    });
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
        c.data().advise(&file, Hint::Random, Extent::ALL).await.unwrap();
        let ahead = c.data().readahead().stats().prefetched_bytes;
        let random = read_in_pieces(&c, &file, some).await;
        assert!(random >= pieces, "{random} requests for {pieces} pieces");
        assert_eq!(c.data().readahead().stats().prefetched_bytes, ahead, "nothing is read ahead");
        c.data().advise(&file, Hint::Normal, Extent::ALL).await.unwrap();
        assert!(read_in_pieces(&c, &file, Extent::new(MIB, 2 * MIB)).await < pieces / 4);

        // A first read in the middle of a file says nothing by itself.
        for (name, hint, ahead) in [("sequential", Hint::Normal, false), ("willneed", Hint::Sequential, true)] {
            let (file, before) = (open(&c, name).await, c.data().readahead().stats().prefetched_bytes);
            c.data().advise(&file, hint, Extent::ALL).await.unwrap();
            c.data().read(&file, 5 * MIB, 4096).await.unwrap();
            assert_eq!(c.data().readahead().stats().prefetched_bytes > before, ahead, "{hint:?}");
        }

        c.data().readahead().set_policy("none").unwrap();
        let file = open(&c, "willneed").await;
        c.data().advise(&file, Hint::WillNeed, all).await.unwrap();
        let requests = read_in_pieces(&c, &file, all).await;
        assert!(requests < 8, "{requests} requests for what was to be fetched whole");
        assert_eq!(c.data().readahead().stats().willneed_bytes, 8 * MIB);

        let file = open(&c, "dontneed").await;
        let requests = read_in_pieces(&c, &file, some).await;
        assert!(requests >= pieces, "{requests}");
        c.data().advise(&file, Hint::DontNeed, Extent::new(100, 4000)).await.unwrap();
        assert_eq!(read_in_pieces(&c, &file, some).await, 0, "a page that is needed in part stays");
        c.data().advise(&file, Hint::DontNeed, Extent::new(0, MIB / 2)).await.unwrap();
        assert_eq!(read_in_pieces(&c, &file, some).await, pieces / 2);
        let fid = file.fid();
        let writer = c.open(&root(), fid, O_RDWR).await.unwrap();
        c.data().write(&writer, 0, &[1; 4096]).await.unwrap();
        c.data().advise(&writer, Hint::DontNeed, Extent::ALL).await.unwrap();
        assert_eq!(c.data().read(&writer, 0, 4096).await.unwrap().len(), 4096, "what is dirty is not lost");
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
        c.data().advise(&ahead, Hint::Sequential, Extent::ALL).await.unwrap();
        c.data().advise(&other, Hint::Random, Extent::ALL).await.unwrap();
        read_in_pieces(&c, &ahead, Extent::new(0, MIB)).await;
        let held = c.data().readahead().held_bytes();
        assert!(held > 0, "something is read ahead");
        // A demand on all of the cache.
        read_in_pieces(&c, &other, Extent::new(0, 16 * MIB)).await;
        let stats = c.data().readahead().stats();
        assert!(stats.wasted_bytes > 0 && c.data().readahead().held_bytes() < held, "{stats:?}");

        // Another client's write takes the lock, and with it what was read ahead under it.
        let again = open(&c, "ahead").await;
        c.data().advise(&again, Hint::Sequential, Extent::ALL).await.unwrap();
        read_in_pieces(&c, &again, Extent::new(8 * MIB, 9 * MIB)).await;
        let held = c.data().readahead().held_bytes();
        assert!(held > 0, "something is read ahead again");
        let writer = maker.open(&root(), again.fid(), O_RDWR).await.unwrap();
        maker.data().write(&writer, 0, &vec![1; MIB as usize]).await.unwrap();
        assert_eq!(c.data().readahead().held_bytes(), 0);
    });
}

#[test]
fn a_clients_cache_counts_fine_and_coarse_look_ups_apart() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "grains", 1, 128 * MIB).await;
        let maker = world.client().await;
        make(&maker, "f", 8 * MIB).await;
        let c = world.client().await;
        c.data().readahead().set_policy("none").unwrap();
        let file = open(&c, "f").await;
        for _ in 0..2 {
            c.data().read(&file, 0, 16 << 10).await.unwrap();
            c.data().read(&file, 4 * MIB, 4 << 20).await.unwrap();
        }
        let s = c.data().pages().stats();
        assert_eq!((s.fine_lookups, s.fine_hits, s.coarse_lookups, s.coarse_hits), (8, 4, 2048, 1024));
        assert_eq!((s.readahead_lookups, s.readahead_pages), (0, 0));
        c.data().readahead().set_policy("parallel").unwrap();
        read_in_pieces(&c, &file, Extent::new(0, 4 * MIB)).await;
        let s = c.data().pages().stats();
        assert_eq!(s.fine_lookups, 8 + 1024);
        assert!(s.readahead_pages > 0, "{s:?}");
    });
}

#[test]
fn a_policy_of_a_clients_cache_knows_a_page_by_the_same_block_whenever_it_comes() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "blocks", 1, 64 * MIB).await;
        let c = world.client().await;
        c.data().pages().set_record("1M").unwrap();
        let file = create(&c, Fid::ROOT, "f").await;
        for _ in 0..2 {
            c.data().write(&file, 0, &[1; 20_000]).await.unwrap();
            c.data().read(&file, 0, 20_000).await.unwrap();
        }
        let log = c.data().pages().take_record().unwrap();
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
