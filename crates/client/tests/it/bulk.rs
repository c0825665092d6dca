//! How much one bulk RPC takes: what the client wants, and no more than the OST says it takes.
use crate::world::*;

const LEN: usize = 8 << 20;

fn taking(bulk_bytes_max: u64) -> OstConfig {
    OstConfig { bulk_bytes_max: bulk_bytes_max as u32, ..OstConfig::default() }
}

#[test]
fn a_client_that_wants_longer_rpcs_than_its_ost_takes_writes_and_reads_all_the_same() {
    for (takes, direct) in [(MIB, 0), (4 * MIB, 0), (64 * MIB, 0), (MIB, O_DIRECT)] {
        let world = World::new(7, 1, taking(takes));
        let [(c, _), (other, _)] = [0, 1].map(|_| world.client(|c| c.rpc_pages_max = 16_384));
        world.run(Duration::from_secs(3600), async {
            c.release(&create(&c, "f").await).await.unwrap();
            let file = open(&c, "f", O_RDWR | direct).await;
            let wanted = pattern(0, LEN, 3);
            c.data().write(&file, 0, &wanted).await.unwrap();
            c.data().fsync(&file, false).await.unwrap();
            let again = open(&other, "f", O_RDWR | direct).await;
            assert!(read_all(&other, &again, LEN as u64).await == wanted, "an OST that takes {takes} bytes");
        });
    }
}

#[test]
fn what_was_written_before_an_ost_came_to_take_less_is_kept() {
    let world = World::new(8, 1, taking(8 * MIB));
    let (c, host) = world.client(|c| (c.rpc_pages_max, c.dirty_bytes_max) = (16_384, 64 * MIB));
    let (other, _) = world.client(|_| {});
    world.run(Duration::from_secs(3600), async {
        let file = create(&c, "f").await;
        // Answered and not committed: it is replayed to an OST that takes less than what it takes along.
        c.data().write(&file, 0, &pattern(0, LEN, 3)).await.unwrap();
        c.data().write_out(file.inode()).await;
        // Dirty: its RPC is made up when the OST has gone.
        world.cut_off(&host, true);
        c.data().write(&file, LEN as u64, &pattern(LEN as u64, LEN, 3)).await.unwrap();
        world.set_ost_config(taking(MIB));
        world.lose_power(0);
        world.restart_oss(0).await;
        world.cut_off(&host, false);
        c.data().fsync(&file, false).await.unwrap();
        let again = open(&other, "f", O_RDWR).await;
        assert!(read_all(&other, &again, 2 * LEN as u64).await == pattern(0, 2 * LEN, 3));
        assert!(c.osts().all()[0].rpc_pages_max() == 256, "the client heard of it");
    });
}

#[test]
fn brw_size_that_is_lowered_fails_nothing_of_a_connected_client() {
    let world = World::new(9, 1, taking(8 * MIB));
    let (c, _) = world.client(|c| c.rpc_pages_max = 2048);
    world.run(Duration::from_secs(3600), async {
        let file = create(&c, "f").await;
        c.data().write(&file, 0, &pattern(0, LEN, 3)).await.unwrap();
        world.ost(0).set_params("obdfilter.*.brw_size", "1").unwrap();
        c.data().fsync(&file, false).await.unwrap();
        let other = world.client_again(&world.sim.host("client")).await;
        let again = open(&other, "f", O_RDWR).await;
        assert!(read_all(&other, &again, LEN as u64).await == pattern(0, LEN, 3));
        assert_eq!(other.osts().all()[0].rpc_pages_max(), 256, "who connects later is told of the new size");
    });
}

/// A policy that lets go first of what is read in large pieces must not let go of a piece before it was read.
#[test]
fn a_piece_that_is_read_into_a_full_cache_is_fetched_once_whatever_the_policy() {
    const CACHE: u64 = 8 * MIB;
    for policy in cache::registry().iter().map(|p| p.name) {
        let world = World::new(10, 1, OstConfig::default());
        let [(maker, _), (c, _)] = [0, 1].map(|_| {
            world
                .client(|c| (c.cache_bytes, c.cache_policy, c.readahead_policy) = (CACHE, policy.into(), "none".into()))
        });
        world.run(Duration::from_secs(3600), async {
            let made = create(&maker, "f").await;
            let wanted = pattern(0, 4 * CACHE as usize, 3);
            maker.data().write(&made, 0, &wanted).await.unwrap();
            maker.data().fsync(&made, false).await.unwrap();
            let file = open(&c, "f", 0).await;
            // Fine accesses fill the cache.
            for page in 0..2 * CACHE / 4096 {
                c.data().read(&file, page * 4096, 4096).await.unwrap();
            }
            for at in (2 * CACHE..4 * CACHE).step_by(MIB as usize) {
                let before = asked(&world, 0, "read");
                let piece = c.data().read(&file, at, MIB as usize).await.unwrap().to_vec();
                assert!(piece == wanted[at as usize..][..MIB as usize]);
                assert_eq!(asked(&world, 0, "read") - before, 1, "{policy}: the piece at {at}");
            }
        });
    }
}
