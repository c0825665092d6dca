//! One cluster, end to end; what seeds find.
mod arena;
mod ends;
mod over;
mod repaired;
mod stalled;
mod standby;
mod urgent;

use super::*;
use client::{Client, NewFile, NewNode, OpenFile};
use frames::FramePool;
use simworld::{DiskFault, Sim, SimConfig};
use std::rc::Rc;
use types::{Duration, Fid, FsError, MIB};
use wire::mdt::{Cred, NodeKind, SetBits, SetattrRequest};

const O_CREAT_RDWR: u32 = 0o102;
const O_APPEND_RDWR: u32 = 0o2002;
const O_DIRECT: u32 = 0o40000;

fn cred() -> Cred {
    Cred::default()
}

/// Lets `work` do something with a cluster of two OSTs and two clients.
fn with_cluster(work: impl AsyncFnOnce(&Cluster, Rc<Client>, Rc<Client>) -> Result<(), FsError>) -> Cluster {
    with_frames(7, FramePool::new(256 * MIB), work)
}

fn with_frames(
    seed: u64,
    frames: FramePool,
    work: impl AsyncFnOnce(&Cluster, Rc<Client>, Rc<Client>) -> Result<(), FsError>,
) -> Cluster {
    with(seed, frames, ClusterConfig::default(), work)
}

fn with(
    seed: u64,
    frames: FramePool,
    config: ClusterConfig,
    work: impl AsyncFnOnce(&Cluster, Rc<Client>, Rc<Client>) -> Result<(), FsError>,
) -> Cluster {
    let sim = Sim::new(SimConfig::new(seed), frames);
    let cluster = Cluster::new(sim, config);
    let whole = async {
        cluster.format().await.unwrap();
        for id in cluster.nodes().map(|n| n.id).collect::<Vec<_>>() {
            cluster.start(id).await.unwrap();
        }
        work(&cluster, cluster.client(0).unwrap(), cluster.client(1).unwrap()).await
    };
    cluster.sim.run_for(whole, Duration::from_secs(600)).expect("no hang").unwrap();
    cluster
}

async fn create(c: &Rc<Client>, name: &str) -> Result<Rc<OpenFile>, FsError> {
    let new = NewFile { flags: O_CREAT_RDWR, mode: 0o644, ..NewFile::default() };
    c.create_open(&cred(), Fid::ROOT, name.as_bytes(), new).await.map(|(_, file)| file)
}

/// What a client thinks a file is: its size and its bytes.
async fn whole_file(c: &Rc<Client>, name: &str) -> Result<(u64, Vec<u8>), FsError> {
    let attr = c.lookup(&cred(), Fid::ROOT, name.as_bytes()).await?.attr;
    let file = c.open(&cred(), attr.fid, 0).await?;
    let got = c.data().read(&file, 0, 1 << 20).await?.to_vec();
    c.release(&file).await?;
    Ok((attr.size, got))
}

/// The disks of all OSTs fail every write from now on; [`repair`] ends it.
fn break_disks(cluster: &Cluster) {
    let fault = DiskFault { writes: true, times: u32::MAX, ..DiskFault::default() };
    cluster.osses().for_each(|n| n.host().set_disk_fault(fault));
}
async fn repair(cluster: &Cluster) {
    for id in cluster.osses().map(|n| n.id) {
        cluster.kill(id, false);
        cluster.start(id).await.unwrap();
    }
}

#[test]
fn a_file_written_on_one_client_is_read_on_another() {
    let run = || {
        let cluster = with_cluster(async |_, a, b| {
            let f = create(&a, "f").await?;
            let data: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
            a.data().write(&f, 10, &data).await?;
            a.data().fsync(&f, false).await?;
            let (size, got) = whole_file(&b, "f").await?;
            assert!(size == 300_010 && got[10..] == data);
            Ok(())
        });
        (cluster.sim.hash(), cluster.sim.events(), cluster.sim.now())
    };
    let (a, b) = (run(), run());
    assert_eq!(a, b);
}

#[test]
fn a_cluster_that_ended_has_given_all_its_frames_back() {
    let frames = FramePool::new(64 * MIB);
    let cluster = with_frames(7, frames, async |_, a, b| {
        let f = create(&a, "f").await?;
        a.data().write(&f, 0, &[1; 300_000]).await?;
        whole_file(&b, "f").await.map(drop)
    });
    assert!(frames.free() < frames.capacity());
    drop(cluster);
    assert_eq!(frames.free(), frames.capacity());
}

#[test]
fn what_a_failing_disk_did_not_take_is_not_in_the_file_on_any_client() {
    with_cluster(async |cluster, a, b| {
        let f = create(&a, "f").await?;
        let synced = vec![7; 5000];
        a.data().write(&f, 0, &synced).await?;
        a.data().fsync(&f, false).await?;
        break_disks(cluster);
        let written = a.data().write(&f, 3000, &[9; 60_000]).await.map(|_| ());
        assert_eq!(written.and(a.data().fsync(&f, false).await), Err(FsError::Io));
        repair(cluster).await;
        for client in [&a, &b] {
            assert!(whole_file(client, "f").await? == (5000, synced.clone()));
        }
        a.data().write(&f, 5000, &[8; 10]).await?;
        assert_eq!(whole_file(&b, "f").await?.1.len(), 5010);
        Ok(())
    });
}

#[test]
fn a_replayed_write_whose_bytes_arrive_damaged_is_offered_again() {
    let config = ClusterConfig { commit_interval: Duration::from_secs(60), ..ClusterConfig::default() };
    with(7, FramePool::new(256 * MIB), config, async |cluster, a, b| {
        let f = create(&a, "f").await?;
        let data: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
        a.data().write(&f, 0, &data).await?;
        // Who reads it makes its writer write it out; nothing has been committed when the power goes.
        assert_eq!(whole_file(&b, "f").await?.1, data);
        let servers: Vec<NodeId> = cluster.osses().map(|n| n.id).collect();
        servers.iter().for_each(|id| cluster.kill(*id, true));
        cluster.sim.corrupt_next_bulk();
        for id in servers {
            cluster.start(id).await.unwrap();
        }
        assert_eq!(a.data().fsync(&f, false).await, Ok(()));
        assert_eq!(whole_file(&b, "f").await?.1, data);
        assert_eq!(cluster.sim.net_counts().corrupted, 1);
        Ok(())
    });
}

#[test]
fn a_client_that_is_evicted_while_it_joins_joins_all_the_same() {
    with_cluster(async |cluster, _, _| {
        let (joining, oss) = (NodeId::Client(1), NodeId::Oss(1));
        cluster.kill(joining, false);
        cluster.kill(oss, false);
        let joins = async { assert_eq!(cluster.start(joining).await, Ok(())) };
        let evicted = async {
            let sim = &cluster.sim;
            sim.sleep(Duration::from_secs(5)).await;
            let (host, mds) = (cluster.node(joining).host(), cluster.mds.host());
            sim.cut(host, mds);
            while cluster.evictions(1) == 0 {
                sim.sleep(Duration::from_secs(1)).await;
            }
            sim.heal(host, mds);
            sim.sleep(Duration::from_secs(60)).await;
            cluster.start(oss).await.unwrap();
        };
        let both: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = vec![Box::pin(joins), Box::pin(evicted)];
        rt::sync::join_all(both).await;
        Ok(())
    });
}

#[test]
fn a_cut_that_a_failing_disk_did_not_take_shows_on_no_client() {
    with_cluster(async |cluster, a, b| {
        let f = create(&a, "f").await?;
        let synced = vec![7; 5000];
        a.data().write(&f, 0, &synced).await?;
        a.data().fsync(&f, false).await?;
        assert_eq!(a.data().read(&f, 0, 5000).await?.to_vec(), synced);
        break_disks(cluster);
        let cut = SetattrRequest { valid: SetBits::SIZE, size: 100, ..SetattrRequest::default() };
        assert_eq!(a.setattr(&cred(), f.inode(), cut, Some(&f)).await, Err(FsError::Io));
        repair(cluster).await;
        for client in [&a, &b] {
            assert!(whole_file(client, "f").await?.1 == synced);
        }
        Ok(())
    });
}

#[test]
fn a_cut_that_was_answered_is_done_for_all_although_its_client_and_the_servers_lost_it() {
    with_cluster(async |cluster, a, b| {
        let f = create(&b, "f").await?;
        let synced = vec![7; 100_000];
        b.data().write(&f, 0, &synced).await?;
        b.data().fsync(&f, false).await?;
        let cut = SetattrRequest { valid: SetBits::SIZE, size: 0, ..SetattrRequest::default() };
        b.setattr(&cred(), f.inode(), cut, Some(&f)).await?;
        let append = a.open(&cred(), f.fid(), O_APPEND_RDWR).await?;
        assert_eq!(a.data().write(&append, 0, &[8; 10]).await?, 0);
        for id in cluster.osses().map(|n| n.id) {
            cluster.kill(id, true);
        }
        cluster.kill(NodeId::Client(1), true);
        for id in cluster.osses().map(|n| n.id).chain([NodeId::Client(1)]) {
            cluster.start(id).await.unwrap();
        }
        a.data().fsync(&append, false).await?;
        a.release(&append).await?;
        let content = vec![8; 10];
        for client in [&a, &cluster.client(1).unwrap()] {
            assert!(whole_file(client, "f").await?.1 == content);
        }
        Ok(())
    });
}

#[test]
fn a_sync_that_failed_costs_nothing_when_the_power_goes_later() {
    let frames = FramePool::new(256 * MIB);
    for seed in 0..5 {
        with_frames(seed, frames, async |cluster, a, _| {
            let mut made = Vec::new();
            for round in 0..4 {
                let fault = DiskFault { syncs: true, times: 1, ..DiskFault::default() };
                cluster.mds.host().set_disk_fault(fault);
                for i in 0..20 {
                    let name = format!("f{round}.{i}");
                    let Ok(file) = create(&a, &name).await else { continue };
                    let _ = a.release(&file).await;
                    made.push(name);
                }
                assert_eq!(a.meta().sync_meta(Fid::ROOT).await, Err(FsError::Io));
                cluster.kill(NodeId::Mds, false);
                cluster.start(NodeId::Mds).await.unwrap();
                a.meta().sync_meta(Fid::ROOT).await?;
                cluster.kill(NodeId::Mds, true);
                cluster.start(NodeId::Mds).await.unwrap_or_else(|e| panic!("seed {seed}, round {round}: {e}"));
            }
            for name in made {
                let there = a.lookup(&cred(), Fid::ROOT, name.as_bytes()).await?;
                assert!(!there.attr.fid.is_zero(), "seed {seed}: {name}");
            }
            Ok(())
        });
    }
}

#[test]
fn a_rename_over_a_name_that_its_client_does_not_know_takes_a_link_away() {
    with_cluster(async |_, a, b| {
        let f = create(&a, "one").await?;
        a.link(&cred(), f.fid(), Fid::ROOT, b"two").await?;
        assert_eq!(b.lookup(&cred(), Fid::ROOT, b"one").await?.attr.nlink, 2);
        create(&b, "three").await?;
        b.meta().rename(&cred(), (Fid::ROOT, b"three"), (Fid::ROOT, b"two"), 0).await?;
        for client in [&a, &b] {
            assert_eq!(client.lookup(&cred(), Fid::ROOT, b"one").await?.attr.nlink, 1);
        }
        Ok(())
    });
}

#[test]
fn a_rename_to_another_name_of_the_same_file_leaves_both() {
    with_cluster(async |_, a, _| {
        let node = NewNode { kind: NodeKind::Directory, mode: 0o040_755, ..NewNode::default() };
        // Its maker knows the directory whole: what it misses there does not exist.
        let dir = a.create(&cred(), Fid::ROOT, b"d", node).await?.attr.fid;
        let new = NewFile { flags: O_CREAT_RDWR, mode: 0o644, ..NewFile::default() };
        let (_, f) = a.create_open(&cred(), dir, b"one", new).await?;
        a.link(&cred(), f.fid(), dir, b"two").await?;
        a.meta().rename(&cred(), (dir, b"one"), (dir, b"two"), 0).await?;
        for name in [b"one", b"two"] {
            assert_eq!(a.lookup(&cred(), dir, name).await?.attr.fid, f.fid());
        }
        Ok(())
    });
}

#[test]
fn a_writer_tells_nobody_a_size_that_it_only_heard_of() {
    let config = ClusterConfig { clients: 3, osts: 1, stripe_count: 1, ..ClusterConfig::default() };
    with(7, FramePool::new(256 * MIB), config, async |cluster, a, b| {
        let f = create(&a, "f").await?;
        let g = b.open(&cred(), f.fid(), 2).await?;
        // Until their locks are as narrow as what they write.
        for _ in 0..40 {
            a.data().write(&f, 0, b"aaa").await?;
            b.data().write(&g, 200_000, b"bbb").await?;
        }
        b.data().write(&g, 300_000, b"bbb").await?;
        assert_eq!(a.getattr(&cred(), f.fid(), Some(&f)).await?.attr.size, 300_003);
        let cut = SetattrRequest { valid: SetBits::SIZE, size: 250_000, ..SetattrRequest::default() };
        b.setattr(&cred(), g.inode(), cut, Some(&g)).await?;
        for client in [&cluster.client(2).unwrap(), &a] {
            assert_eq!(client.lookup(&cred(), Fid::ROOT, b"f").await?.attr.size, 250_000);
        }
        Ok(())
    });
}

type Work<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), FsError>> + 'a>>;

/// `a` has all locks of a file of `size` bytes in two stripes, and nothing of it, when OST `down` goes away for longer than
/// the other's patience with whoever keeps a lock; `a` appends, and `b` writes into both stripes.
fn append_while_away(down: usize, size: usize, flags: u32) {
    let cluster = with_cluster(async |cluster, a, b| {
        let f = create(&b, "f").await?;
        b.data().write(&f, 0, &vec![1; size]).await?;
        b.data().fsync(&f, false).await?;
        let append = a.open(&cred(), f.fid(), O_APPEND_RDWR | flags).await?;
        a.data().write(&append, 0, &[]).await?;
        cluster.kill(NodeId::Oss(down), false);
        let (went_to, sim) = (std::cell::Cell::new(0), &cluster.sim);
        let appends = async { a.data().write(&append, 0, &[2; 4096]).await.map(|at| went_to.set(at)) };
        let writes = async |at| {
            sim.sleep(Duration::from_secs(1)).await;
            b.data().write(&f, at, &[3]).await.map(drop)
        };
        let back = async {
            sim.sleep(Duration::from_secs(100)).await;
            cluster.start(NodeId::Oss(down)).await.unwrap();
            Ok(())
        };
        let work: Vec<Work<'_>> =
            vec![Box::pin(appends), Box::pin(writes(10)), Box::pin(writes(65_546)), Box::pin(back)];
        rt::sync::join_all(work).await.into_iter().collect::<Result<(), _>>()?;
        a.data().fsync(&append, false).await?;
        let (_, got) = whole_file(&b, "f").await?;
        let at = went_to.get() as usize;
        assert!(at >= size && got[at..at + 4096] == [2; 4096], "{down}, {size}: appended at {at}");
        assert!(got[10] == 3 && got[65_546] == 3 && got[..size].iter().filter(|b| **b != 1).count() <= 2);
        Ok(())
    });
    let evictions = [0, 1].map(|client| cluster.evictions(client));
    assert_eq!(evictions, [0, 0], "OST {down} away, {size} bytes, flags {flags:o}");
}

#[test]
fn an_append_that_waits_for_an_ost_keeps_no_lock_from_others_meanwhile() {
    for down in 0..2 {
        // The end in the first stripe and in the second, within a page that has to be fetched.
        append_while_away(down, 100, 0);
        append_while_away(down, 65_636, 0);
    }
}

#[test]
fn a_direct_append_that_waits_for_an_ost_keeps_no_lock_from_others_meanwhile() {
    for down in 0..2 {
        append_while_away(down, 4096, O_DIRECT);
        append_while_away(down, 69_632, O_DIRECT);
    }
}

#[test]
fn a_client_that_found_only_scattered_frames_reads_long_holes() {
    let frames = FramePool::new(64 * MIB);
    let mut all: Vec<_> = std::iter::from_fn(|| frames.alloc_run(1)).collect();
    let mut every_other = 0;
    all.retain(|_| {
        every_other += 1;
        every_other % 2 == 0
    });
    with_frames(7, frames, async |_, a, _| {
        let new = NewFile { flags: O_CREAT_RDWR | O_DIRECT, mode: 0o644, ..NewFile::default() };
        let (_, f) = a.create_open(&cred(), Fid::ROOT, b"f", new).await?;
        a.data().write(&f, MIB, &[1]).await?;
        let got = a.data().read(&f, 0, 2 * MIB as usize).await?.to_vec();
        assert!(got.len() as u64 == MIB + 1 && got[..MIB as usize].iter().all(|b| *b == 0));
        Ok(())
    });
}

/// Four OSTs, files over all of them, three clients.
fn striped() -> ClusterConfig {
    let caches = ClusterConfig { client_cache_bytes: 64 * MIB, ost_cache_bytes: 64 * MIB, ..ClusterConfig::default() };
    ClusterConfig { clients: 3, osts: 4, stripe_count: 4, stripe_bytes: MIB, ..caches }
}

/// OSTs from which a client has read more than `bytes`.
fn read_from(c: &Client, bytes: u64) -> usize {
    c.osts().all().iter().filter(|o| o.stats().read_bytes > bytes).count()
}

#[test]
fn readahead_crosses_to_stripes_without_a_lock_and_takes_it_only_from_nobody() {
    with(7, FramePool::new(256 * MIB), striped(), async |cluster, a, b| {
        let f = create(&a, "f").await?;
        for at in (0..8 * MIB).step_by(MIB as usize) {
            a.data().write(&f, at, &vec![7; MIB as usize]).await?;
        }
        a.data().fsync(&f, false).await?;
        let wait = async || cluster.sim.sleep(Duration::from_millis(500)).await;
        // The writer keeps its locks: a reader makes a read lock of the one it needs, readahead of none.
        let held = |c: &Client| c.osts().all().iter().filter(|o| o.write_lock_count() > 0).count();
        assert_eq!(held(&a), 4);
        let g = b.open(&cred(), f.fid(), 0).await?;
        let first_stripe = async |c: &Rc<Client>, file: &Rc<OpenFile>| {
            for at in (0..MIB).step_by(128 << 10) {
                assert!(c.data().read(file, at, 128 << 10).await.unwrap().to_vec().iter().all(|x| *x == 7));
            }
            wait().await;
        };
        first_stripe(&b, &g).await;
        assert_eq!((held(&a), read_from(&b, 0)), (3, 1), "no writer is called back by readahead");
        // What it reads is the writer's even so.
        a.data().write(&f, 2 * MIB, &[9; 100]).await?;
        assert_eq!(b.data().read(&g, 2 * MIB, 100).await?.to_vec(), [9; 100]);
        // Nobody has locks: readahead takes them along.
        a.release(&f).await?;
        a.leave().await;
        let c = cluster.client(2).unwrap();
        let h = c.open(&cred(), g.fid(), 0).await?;
        first_stripe(&c, &h).await;
        assert_eq!(read_from(&c, 0), 4);
        Ok(())
    });
}

fn config(seed: u64) -> RunConfig {
    RunConfig {
        world: SimConfig { shuffle: 0.1, loss: 0.001, sync_time: Duration::from_micros(500), ..SimConfig::new(seed) },
        cluster: ClusterConfig::default(),
        work: WorkConfig { seconds: 20.0, ..WorkConfig::default() },
        faults: FaultConfig::default(),
    }
}

#[test]
fn without_faults_every_program_sees_what_it_must() {
    let mut c = config(1);
    c.faults.interval_s = 0.0;
    let report = run(&c);
    assert_eq!(report.complaints, Vec::<String>::new(), "{report:?}");
    assert!(report.counts.operations > 1000, "{report:?}");
}
