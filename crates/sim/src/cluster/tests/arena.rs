//! Roles of one process share its page frames: those that their caches may take (20 MiB here), and some for bulk.
use super::*;

const FILES: usize = 4;
const PIECE: usize = 700_000;
const PIECES: u64 = 24;

fn bytes(file: usize, piece: u64) -> Vec<u8> {
    vec![(file as u8 + 1) * 16 + piece as u8; PIECE]
}

#[test]
fn writes_that_hold_all_page_frames_of_their_servers_as_well_go_on() {
    for pool in [24, 40] {
        let config = ClusterConfig {
            osts: 4,
            stripe_count: 2,
            client_cache_bytes: 8 * MIB,
            ost_cache_bytes: MIB,
            commit_interval: Duration::from_secs(2),
            ..ClusterConfig::default()
        };
        with(11, FramePool::new(pool * MIB), config, async |_, a, b| {
            let write = |i: usize| {
                let a = a.clone();
                async move {
                    let file = create(&a, &format!("f{i}")).await?;
                    for piece in 0..PIECES {
                        a.data().write(&file, piece * PIECE as u64, &bytes(i, piece)).await?;
                    }
                    a.data().fsync(&file, false).await?;
                    a.release(&file).await
                }
            };
            for done in rt::sync::join_all((0..FILES).map(write).collect()).await {
                done?;
            }
            for i in 0..FILES {
                let found = b.lookup(&cred(), Fid::ROOT, format!("f{i}").as_bytes()).await?;
                let file = b.open(&cred(), found.attr.fid, 0).await?;
                for piece in 0..PIECES {
                    let read = b.data().read(&file, piece * PIECE as u64, PIECE).await?;
                    assert!(read.to_vec() == bytes(i, piece), "piece {piece} of file {i} in {pool} MiB");
                }
                b.release(&file).await?;
            }
            Ok(())
        });
    }
}
