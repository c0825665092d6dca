//! Stores that are repaired between a crash of all servers and what their clients replay.
use fsck::Outcome;

use super::super::check::Down;
use super::*;

fn slow_metadata() -> ClusterConfig {
    let ost_commit_interval = Some(Duration::from_millis(10));
    ClusterConfig { commit_interval: Duration::from_secs(60), ost_commit_interval, ..ClusterConfig::default() }
}

async fn names_in(c: &Rc<Client>, dir: Fid) -> Result<Vec<String>, FsError> {
    let page = c.meta().readdir(&cred(), dir, 0, 64 << 10, false).await?;
    Ok(page.entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect())
}

/// A file of which OSTs have data and the metadata store knows nothing, when everything dies and is repaired. What is in lost+found
/// once its client has told of it again, and what a check of the stopped cluster says.
fn replayed_after_a_repair() -> (Vec<String>, Result<Outcome, fsck::FsckError>) {
    let mut out = None;
    with(7, FramePool::new(256 * MIB), slow_metadata(), async |cluster, a, b| {
        let data = [7; 200 << 10];
        let file = create(&a, "f").await?;
        let direct = a.open(&cred(), file.fid(), 2 | O_DIRECT).await?;
        a.data().write(&direct, 0, &data).await?;
        cluster.sim.sleep(Duration::from_millis(200)).await;
        for id in [NodeId::Mds, NodeId::Oss(0), NodeId::Oss(1)] {
            cluster.kill(id, false);
        }
        {
            let down = Down::of(cluster);
            assert_eq!(fsck::run(&down, true, true).await, Ok(Outcome::Corrected));
            let said = down.said();
            assert!(said.iter().any(|s| s.contains("belonged to no file")), "the test shows nothing: {said:?}");
            assert_eq!(fsck::run(&down, true, true).await, Ok(Outcome::Clean), "{:?}", down.said());
        }
        for id in [NodeId::Oss(0), NodeId::Oss(1), NodeId::Mds] {
            cluster.start(id).await.unwrap();
        }
        a.release(&direct).await?;
        a.release(&file).await?;
        a.sync_all().await?;
        let found = b.lookup(&cred(), Fid::ROOT, b"lost+found").await?;
        let names = names_in(&b, found.attr.fid).await?;
        assert_eq!(whole_file(&b, "f").await?, (data.len() as u64, data.to_vec()));
        for id in [NodeId::Client(0), NodeId::Client(1), NodeId::Mds, NodeId::Oss(0), NodeId::Oss(1)] {
            cluster.stop(id).await.unwrap();
        }
        out = Some((names, fsck::run(&Down::of(cluster), true, false).await));
        Ok(())
    });
    out.expect("it came to its end")
}

#[test]
fn a_create_that_is_replayed_after_a_repair_has_its_objects_and_nobody_else_has() {
    assert_eq!(replayed_after_a_repair(), (Vec::new(), Ok(Outcome::Clean)));
}

#[test]
fn that_two_files_had_these_objects_would_be_seen() {
    types::planted::plant(Some("adopted-kept"));
    let (names, checked) = replayed_after_a_repair();
    types::planted::plant(None);
    assert!(names.len() == 2 && checked == Ok(Outcome::Uncorrected), "{names:?} {checked:?}");
}

/// A migration, after so long of which everything dies: how many objects of nameless files a check finds gone.
fn dies_amid_a_migration(step: u64) -> bool {
    let mut out = None;
    let config = ClusterConfig { ost_commit_interval: Some(Duration::from_millis(1)), ..ClusterConfig::default() };
    with(11, FramePool::new(256 * MIB), config, async |cluster, a, _| {
        let file = create(&a, "f").await?;
        a.data().write(&file, 0, &[7; 100 << 10]).await?;
        a.data().fsync(&file, false).await?;
        let (moving, of) = (a.clone(), file.clone());
        a.rt().spawn(async move {
            let how = client::Migrate::default();
            _ = moving.migrate(&cred(), of.inode(), &how, &|| false).await;
        });
        cluster.sim.sleep(Duration::from_millis(step)).await;
        for id in [NodeId::Client(0), NodeId::Client(1), NodeId::Mds, NodeId::Oss(0), NodeId::Oss(1)] {
            cluster.kill(id, false);
        }
        let down = Down::of(cluster);
        assert_eq!(fsck::run(&down, true, false).await, Ok(Outcome::Clean), "{step} ms: {:?}", down.said());
        out = Some(down.said().iter().any(|s| s.contains("files without a name are gone")));
        Ok(())
    });
    out.expect("it came to its end")
}

#[test]
fn objects_that_an_exchange_removed_are_not_missed() {
    let seen = (0..120).filter(|step| dies_amid_a_migration(*step)).count();
    assert!(seen > 0, "the test shows nothing");
}
