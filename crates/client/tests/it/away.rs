//! What goes on while an OST is away.
use crate::world::*;
use client::NewNode;
use types::{Duration, Fid, FsError};
use wire::mdt::NodeKind;

#[test]
fn a_lookup_waits_a_moment_for_a_size_and_a_stat_until_it_is_known() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let (writer, _) = world.client(|_| {});
        let (other, _) = world.client(|_| {});
        world.run(Duration::from_secs(600), async {
            // Who writes a file keeps its size to itself.
            let file = create(&writer, "f").await;
            writer.data().write(&file, 0, &[5; 300_000]).await.unwrap();
            writer.data().fsync(&file, false).await.unwrap();
            world.lose_power(0);
            let soon = Duration::from_secs(2);
            let looked = other.rt().timeout(soon, other.lookup(&root(), Fid::ROOT, b"f")).await;
            let entry = looked.expect("a directory is locked meanwhile").unwrap();
            assert_eq!(
                (entry.attr.fid, entry.attr_cached),
                (file.fid(), false),
                "seed {seed}: nobody may keep that size"
            );
            let stat = other.rt().timeout(soon, other.getattr(&root(), file.fid(), None)).await;
            assert!(stat.is_none(), "seed {seed}: a size that nobody can know: {stat:?}");
            world.restart_oss(0).await;
            assert_eq!(other.getattr(&root(), file.fid(), None).await.unwrap().attr.size, 300_000, "seed {seed}");
        });
    }
}

#[test]
fn who_has_nothing_at_servers_that_are_away_leaves_without_them() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((idle, _), (owing, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(600), async {
            let file = create(&idle, "f").await;
            idle.data().write(&file, 0, &[5; 300_000]).await.unwrap();
            idle.release(&file).await.unwrap();
            idle.sync_all().await.unwrap();
            let never = Duration::from_secs(3600);
            world.set_mds_commits(CommitConfig { interval: never, idle: never, ..CommitConfig::default() });
            let node = NewNode { kind: NodeKind::Directory, mode: 0o755, umask: 0, rdev: 0, target: Vec::new() };
            owing.create(&root(), Fid::ROOT, b"d", node).await.unwrap();
            world.kill_mds();
            world.lose_power(0);
            world.sim.sleep(Duration::from_secs(20)).await;
            let soon = Duration::from_secs(10);
            assert_eq!(idle.rt().timeout(soon, idle.leave()).await, Some(false), "seed {seed}");
            let early = owing.rt().timeout(soon, owing.leave()).await;
            assert_eq!(early, None, "seed {seed}: a directory that was answered and is not committed");
        });
    }
}

#[test]
fn df_counts_osts_that_are_being_connected_and_does_not_wait_for_one_that_is_away() {
    for seed in 0..4 {
        let world = World::new(seed, 2, OstConfig::default());
        // OSTs have joined; a client has heard of them, no more.
        world.sim.run(world.sim.sleep(Duration::from_secs(1)));
        let (new, _) = world.client_of(0);
        let whole = world.sim.run(new.statfs()).unwrap().total;
        world.sim.run(world.sim.sleep(Duration::from_secs(2)));
        assert_eq!(whole, world.sim.run(new.statfs()).unwrap().total, "seed {seed}");
        world.lose_power(1);
        let (later, _) = world.client_of(0);
        world.run(Duration::from_secs(60), async {
            let asked = world.sim.now();
            let part = later.statfs().await.unwrap().total;
            let took = world.sim.now().since(asked);
            assert_eq!((part, took < Duration::from_secs(3)), (whole / 2, true), "seed {seed}: {took:?}");
            world.kill_mds();
            world.sim.sleep(Duration::from_secs(20)).await;
            let each = later.statfs_each(false, Some(Duration::from_secs(5))).await;
            assert_eq!(each[0], (None, Err(FsError::TimedOut)), "seed {seed}: a metadata server that is away");
            assert!(each[1].1.is_ok() && each[2].1.is_err(), "seed {seed}: {each:?}");
        });
    }
}

/// Whether a client uses an OST that was taken back by the map while the client was cut off from the metadata server for so long.
fn used_after_a_cut(seconds: u64, bug: Option<&'static str>) -> bool {
    types::planted::plant(bug);
    let world = World::new(1, 2, OstConfig::default());
    let ((one, _), (two, host)) = (world.client(|_| {}), world.client(|_| {}));
    let used = world.run(Duration::from_secs(600), async {
        let set = async |active: &str| {
            let (pattern, value) = ("osp.*OST0001*.active".into(), Some(active.into()));
            let q = wire::connect::ParamsRequest { pattern, value, ..Default::default() };
            let reply: wire::connect::ParamsReply = one.sessions().mdc().ask(wire::Op::Params, &q).await.unwrap();
            assert!(reply.error.is_empty(), "{}", String::from_utf8_lossy(&reply.error));
        };
        set("0").await;
        world.sim.sleep(Duration::from_secs(1)).await;
        assert!(!two.osts().all()[1].is_active());
        world.sim.cut(&host, &world.mds_host);
        set("1").await;
        // The server's word to it is given up meanwhile.
        world.sim.sleep(Duration::from_secs(seconds)).await;
        world.sim.heal(&host, &world.mds_host);
        world.sim.sleep(Duration::from_secs(30)).await;
        two.osts().all()[1].is_active()
    });
    types::planted::plant(None);
    used
}

#[test]
fn who_was_cut_off_while_the_map_changed_hears_of_it_when_it_is_back() {
    assert!(!used_after_a_cut(20, Some("map-untold-to-the-away")), "the bug is not seen");
    assert!(used_after_a_cut(20, None));
}

#[test]
fn who_was_evicted_while_the_map_changed_hears_of_it_in_its_next_session() {
    assert!(!used_after_a_cut(200, Some("map-untold-to-the-new")), "the bug is not seen");
    assert!(used_after_a_cut(200, None));
}
