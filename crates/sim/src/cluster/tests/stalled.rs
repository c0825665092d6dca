//! Disks that stand still without an error: whom their servers wait for, and what becomes of those who are gone when they go on.
use client::{FlockMode, LockCall};

use super::*;

/// Seeds in which the metadata server gave up clients that could not give a lock back for what they had asked it, which its disk kept
/// it from answering.
#[test]
fn a_metadata_server_whose_disk_stands_still_evicts_nobody_who_waits_for_it() {
    // They are of before there was this class.
    let mut without = Without::default();
    without.add("standby").unwrap();
    let stalls = [8_000_983, 8_001_188, 8_001_378].map(|seed| {
        let report = torture::run_seed(seed, &without, None);
        assert_eq!(report.complaints, [""; 0], "seed {seed}");
        report.counts.by_class[FaultClass::StalledDisk.index()]
    });
    assert!(stalls.iter().sum::<u64>() > 0, "no disk stood still");
}

#[test]
fn a_lock_that_a_client_asked_for_and_did_not_live_to_get_is_nobodys() {
    for seed in 0..4 {
        with(seed, FramePool::new(256 * MIB), ClusterConfig::default(), async |cluster, a, _| {
            let file = create(&a, "f").await?;
            a.data().fsync(&file, false).await?;
            let fid = file.fid();
            let call = move |pid| LockCall {
                fid,
                whole: true,
                mode: FlockMode::Exclusive,
                extent: types::Extent::ALL,
                owner: u64::from(pid),
                pid,
            };
            cluster.kill(NodeId::Client(1), false);
            cluster.start(NodeId::Client(1)).await.unwrap();
            cluster.node(NodeId::Mds).host().stall_disk(Duration::from_secs(70));
            // Its first request: it waits until the session is written down.
            let short = cluster.client(1).unwrap();
            short
                .rt()
                .clone()
                .spawn(async move { _ = short.flocks().set_lock(call(2), true, std::future::pending()).await });
            cluster.sim.sleep(Duration::from_millis(500)).await;
            // The next process on its host tells the server that this one has gone.
            cluster.kill(NodeId::Client(1), false);
            cluster.start(NodeId::Client(1)).await.unwrap();
            cluster.sim.sleep(Duration::from_secs(90)).await;
            let locked = a.flocks().set_lock(call(1), true, std::future::pending());
            cluster.client(0).unwrap().rt().timeout(Duration::from_secs(100), locked).await.expect("it is free")
        });
    }
}
