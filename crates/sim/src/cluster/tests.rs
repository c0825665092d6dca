//! One cluster, end to end; what seeds find.
use super::*;
use cache::frames::FramePool;
use client::NewFile;
use simworld::{Sim, SimConfig};
use types::{Duration, Fid, MIB};
use wire::mdt::Cred;

#[test]
fn a_file_written_on_one_client_is_read_on_another() {
    let run = || {
        let sim = Sim::new(SimConfig::new(7), FramePool::new(256 * MIB));
        let cluster = Cluster::new(sim, ClusterConfig::default());
        let work = async {
            cluster.format().await?;
            cluster.start(NodeId::Mds).await?;
            for i in 0..2 {
                cluster.start(NodeId::Oss(i)).await?;
            }
            for i in 0..2 {
                cluster.start(NodeId::Client(i)).await?;
            }
            let (a, b) = (cluster.client(0).unwrap(), cluster.client(1).unwrap());
            let cred = Cred::default();
            let new = NewFile { flags: 0o102, mode: 0o644, ..NewFile::default() };
            let (_, f) = a.create_open(&cred, Fid::ROOT, b"f", new).await.map_err(|e| e.to_string())?;
            let data: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
            a.write(&f, 10, &data).await.map_err(|e| e.to_string())?;
            a.fsync(&f, false).await.map_err(|e| e.to_string())?;
            let e = b.lookup(&cred, Fid::ROOT, b"f").await.map_err(|e| e.to_string())?;
            assert_eq!(e.attr.size, 300_010);
            let g = b.open(&cred, e.attr.fid, 0).await.map_err(|e| e.to_string())?;
            let got = b.read(&g, 10, 400_000).await.map_err(|e| e.to_string())?;
            assert!(got.to_vec() == data);
            Ok::<(), String>(())
        };
        cluster.sim.run_for(work, Duration::from_secs(60)).expect("no hang").unwrap();
        (cluster.sim.hash(), cluster.sim.events(), cluster.sim.now())
    };
    let (a, b) = (run(), run());
    assert_eq!(a, b);
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
