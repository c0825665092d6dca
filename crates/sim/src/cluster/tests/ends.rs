//! Ends of opens that a metadata server has no space for.
use super::*;

const FILES: usize = 200;

#[test]
fn a_close_that_a_full_metadata_server_refuses_is_told_again_until_it_is_taken() {
    with_cluster(async |cluster, a, b| {
        let before = cluster.mds_inodes();
        let mut open = Vec::new();
        for i in 0..FILES {
            let name = format!("f{i}");
            let file = create(&a, &name).await?;
            a.data().write(&file, 0, &[1; 8192]).await?;
            a.data().fsync(&file, false).await?;
            a.meta().unlink(&cred(), Fid::ROOT, name.as_bytes(), false).await?;
            open.push(file);
        }
        a.sync_all().await?;
        types::planted::plant(Some("never-room"));
        let closes = open.iter().map(|file| a.release(file)).collect();
        for closed in rt::sync::join_all(closes).await {
            closed?;
        }
        assert!(cluster.mds_inodes() > before, "nothing was refused: the test shows nothing");
        types::planted::plant(None);
        // No program does anything any more.
        let end = cluster.sim.now() + Duration::from_secs(60);
        while cluster.mds_inodes() > before {
            assert!(cluster.sim.now() < end, "{} files are open still", cluster.mds_inodes() - before);
            cluster.sim.sleep(Duration::from_millis(500)).await;
        }
        assert!(b.lookup(&cred(), Fid::ROOT, b"f0").await?.attr.fid.is_zero());
        Ok(())
    });
}

#[test]
fn a_client_that_owes_ends_of_opens_leaves_at_once() {
    with_cluster(async |_, a, _| {
        let mut open = Vec::new();
        for i in 0..FILES {
            open.push(create(&a, &format!("f{i}")).await?);
        }
        a.sync_all().await?;
        types::planted::plant(Some("never-room"));
        for file in &open {
            a.data().write(file, 0, &[1; 100]).await?;
        }
        for closed in rt::sync::join_all(open.iter().map(|file| a.release(file)).collect()).await {
            closed?;
        }
        let left = a.rt().timeout(Duration::from_secs(60), a.leave()).await;
        types::planted::plant(None);
        assert!(left.is_some(), "it waits for space that may never come");
        Ok(())
    });
}
