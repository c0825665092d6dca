//! What a client pays to read a cold file over four OSTs from front to back in calls of 128 KiB, in virtual time: real nodes
//! in the simulated world, OSTs with disks that take 2 to 6 ms, or next to nothing, for an operation. One JSON object a line.
use client::NewFile;
use frames::FramePool;
use sim::cluster::{Cluster, ClusterConfig};
use simworld::{Sim, SimConfig};
use types::{Duration, Fid, FsError, MIB};
use wire::mdt::Cred;

const O_CREAT_RDWR: u32 = 0o102;
const CALL: usize = 128 << 10;

async fn read_cold(cluster: &Cluster, bytes: u64) -> Result<Duration, FsError> {
    let (cred, new) = (Cred::default(), NewFile { flags: O_CREAT_RDWR, mode: 0o644, ..NewFile::default() });
    let (writer, reader) = (cluster.client(0).ok_or(FsError::NotFound)?, cluster.client(1).ok_or(FsError::NotFound)?);
    let (_, file) = writer.create_open(&cred, Fid::ROOT, b"f", new).await?;
    for at in (0..bytes).step_by(CALL) {
        writer.data().write(&file, at, &[7; CALL]).await?;
    }
    writer.data().fsync(&file, false).await?;
    writer.release(&file).await?;
    writer.leave().await;
    let file = reader.open(&cred, file.fid(), 0).await?;
    let begin = cluster.sim.now();
    for at in (0..bytes).step_by(CALL) {
        reader.data().read(&file, at, CALL).await?;
    }
    Ok(cluster.sim.now().since(begin))
}

fn main() {
    for (mib, stripe_bytes) in [(1, 128 << 10), (4, MIB), (8, MIB), (64, MIB), (16, 4 * MIB), (64, 4 * MIB)] {
        for disk_ms in [0, 2] {
            let few =
                ClusterConfig { ost_cache_bytes: 64 << 10, client_cache_bytes: 128 * MIB, ..ClusterConfig::default() };
            let config = ClusterConfig { osts: 4, stripe_count: 4, stripe_bytes, ..few };
            let mut world = SimConfig::new(7);
            if disk_ms > 0 {
                (world.disk_min, world.disk_max) = (Duration::from_millis(disk_ms), Duration::from_millis(3 * disk_ms));
            }
            let cluster = Cluster::new(Sim::new(world, FramePool::new(512 * MIB)), config);
            let whole = async {
                cluster.format().await?;
                for id in cluster.nodes().map(|n| n.id).collect::<Vec<_>>() {
                    cluster.start(id).await?;
                }
                read_cold(&cluster, mib * MIB).await.map_err(|e| e.to_string())
            };
            let took = cluster.sim.run_for(whole, Duration::from_secs(600)).expect("no hang").expect("nothing fails");
            let (ms, stripe) = (took.as_secs_f64() * 1e3, stripe_bytes >> 10);
            println!(
                "{{\"benchmark\":\"striped_read\",\"file_mib\":{mib},\"stripe_kib\":{stripe},\"disk_ms\":{disk_ms},\"seed\":7,\"unit\":\"virtual ms\",\"value\":{ms:.2}}}"
            );
        }
    }
}
