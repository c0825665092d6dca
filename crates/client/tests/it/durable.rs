//! What an fsync covers: everything that targets were asked to change, not only what was written.
use crate::world::*;
use simworld::DiskFault;
use wire::mdt::{SetBits, SetattrRequest};

const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;

/// Runs `change` and an fsync, then client and target die at once; gives a client that comes afterwards.
fn after_power_loss(seed: u64, change: impl AsyncFnOnce(Rc<Client>, Rc<OpenFile>)) -> (World, Rc<Client>) {
    let world = World::new(seed, 1, OstConfig::default());
    let (c, host) = world.client(|_| {});
    world.run(Duration::from_secs(60), async {
        let file = create(&c, "f").await;
        c.data().write(&file, 0, &[5; 300_000]).await.unwrap();
        assert_eq!(c.data().fsync(&file, false).await, Ok(()));
        change(c.clone(), file.clone()).await;
        assert_eq!(c.data().fsync(&file, false).await, Ok(()));
    });
    world.lose_power(0);
    host.kill();
    c.abandon();
    world.start_oss(0);
    let (later, _) = world.client(|_| {});
    (world, later)
}

#[test]
fn what_fallocate_made_is_there_after_an_fsync_and_a_power_loss() {
    for seed in 0..10 {
        let (world, c) = after_power_loss(seed, async |c, file| {
            c.data().fallocate(&file, 0, 0, 2 * MIB).await.unwrap();
        });
        world.run(Duration::from_secs(600), async {
            let file = open(&c, "f", 0).await;
            let attr = c.getattr(&root(), file.fid(), None).await.unwrap().attr;
            assert_eq!((attr.size, attr.blocks >= 4096), (2 * MIB, true), "seed {seed}: {} blocks", attr.blocks);
        });
    }
}

#[test]
fn holes_and_cuts_are_there_after_an_fsync_and_a_power_loss() {
    for seed in 0..4 {
        let (world, c) = after_power_loss(seed, async |c, file| {
            c.data().fallocate(&file, 3, 8192, 100_000).await.unwrap();
            let request = SetattrRequest { valid: SetBits::SIZE, size: 200_000, ..SetattrRequest::default() };
            c.setattr(&root(), file.inode(), request, Some(&file)).await.unwrap();
        });
        world.run(Duration::from_secs(600), async {
            let file = open(&c, "f", 0).await;
            let mut want = vec![5; 200_000];
            want[8192..108_192].fill(0);
            assert!(read_all(&c, &file, MIB).await == want, "seed {seed}");
        });
    }
}

#[test]
fn a_time_that_was_set_is_there_after_an_fsync_and_a_power_loss() {
    for seed in 0..10 {
        let (world, c) = after_power_loss(seed, async |c, file| {
            let mtime = types::WallTime(5_000_000_007);
            let request = SetattrRequest { valid: SetBits::MTIME, mtime, ..SetattrRequest::default() };
            c.setattr(&root(), file.inode(), request, Some(&file)).await.unwrap();
        });
        world.run(Duration::from_secs(600), async {
            let file = open(&c, "f", O_RDWR).await;
            let told = c.osts().all()[0].import().unwrap();
            let lov = c.getxattr(&root(), file.fid(), b"lustre.lov").await.unwrap();
            let (_, layout) = layout::xattr::decode_layout(&lov).unwrap();
            let ask = wire::ost::SetattrRequest {
                object: layout.objects()[0].object,
                owner: wire::ost::IoOwner::default(),
                // Nothing is set: the answer says what is there.
                valid: 0,
                mtime: types::WallTime(1),
                atime: types::WallTime(1),
            };
            let reply: wire::ost::AttrReply = told.ask(wire::Op::OstSetattr, &ask).await.unwrap();
            assert_eq!(reply.lvb.mtime, types::WallTime(5_000_000_007), "seed {seed}");
        });
    }
}

#[test]
fn syncfs_waits_for_a_target_that_is_away_with_something_to_commit() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let (c, host) = world.client(|_| {});
        world.run(Duration::from_secs(600), async {
            let file = create(&c, "f").await;
            c.data().write(&file, 0, &[5; 300_000]).await.unwrap();
            // At the target, and not yet on its medium.
            c.data().write_out(file.inode()).await;
            world.lose_power(0);
            assert_eq!(
                c.rt().timeout(Duration::from_secs(20), c.sync_all()).await,
                None,
                "seed {seed}: nothing is there"
            );
            world.restart_oss(0).await;
            assert_eq!(c.sync_all().await, Ok(()));
        });
        world.lose_power(0);
        host.kill();
        c.abandon();
        world.start_oss(0);
        let (later, _) = world.client(|_| {});
        world.run(Duration::from_secs(600), async {
            let file = open(&later, "f", 0).await;
            assert!(read_all(&later, &file, MIB).await == vec![5; 300_000], "seed {seed}");
        });
    }
}

#[test]
fn what_a_failed_write_left_is_written_out_by_itself() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create(&one, "f").await;
            one.data().write(&file, 0, &[1; 8192]).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            one.release(&file).await.unwrap();
            // The first page needs nothing of the disk; the second one is to be read, and its block is damaged.
            world.lose_power(0);
            world.restart_oss(0).await;
            world.oss[0].host.set_bit_rot(1000);
            let file = open(&two, "f", O_RDWR).await;
            // There is a gap between these bytes of the second page and those that follow.
            two.data().write(&file, 8000, &[2; 100]).await.unwrap();
            assert_eq!(two.data().write(&file, 0, &[2; 4196]).await, Err(FsError::Corrupt), "seed {seed}");
            world.oss[0].host.set_bit_rot(0);
            world.sim.sleep(Duration::from_secs(30)).await;
            assert_eq!(
                two.osts().all()[0].dirty_and_grant().0,
                0,
                "seed {seed}: others wait for the room that this takes"
            );
            let file = open(&one, "f", 0).await;
            assert_eq!(read_all(&one, &file, MIB).await[..4096], [2; 4096]);
        });
    }
}

#[test]
fn a_replayed_write_that_arrives_damaged_is_offered_again_over_the_same_connection() {
    for seed in 0..8 {
        let world = World::new(seed, 1, OstConfig::default());
        let (c, _) = world.client(|c| c.rpc_pages_max = 16);
        world.run(Duration::from_secs(600), async {
            let file = create(&c, "f").await;
            c.data().fsync(&file, false).await.unwrap();
            c.data().write(&file, 0, &[7; 300_000]).await.unwrap();
            // Full RPCs are on their way and answered, and nothing of them is committed yet.
            let import = c.osts().all()[0].import().unwrap();
            while import.last_transno() <= import.last_committed() {
                world.sim.sleep(Duration::from_micros(100)).await;
            }
            world.lose_power(0);
            let connects = import.counters().0;
            world.sim.corrupt_next_bulk();
            world.restart_oss(0).await;
            assert_eq!(c.data().fsync(&file, false).await, Ok(()), "seed {seed}");
            assert_eq!(world.sim.net_counts().corrupted, 1, "seed {seed}");
            assert_eq!((import.counters().0, import.evictions()), (connects + 1, 0), "seed {seed}");
            assert!(read_all(&c, &file, MIB).await == [7; 300_000]);
        });
    }
}

#[test]
fn changes_replayed_to_a_server_whose_disk_fails_wait_for_the_one_that_follows_it() {
    for seed in 0..8 {
        let world = World::new(seed, 1, OstConfig::default());
        let (c, _) = world.client(|c| c.rpc_pages_max = 16);
        world.run(Duration::from_secs(600), async {
            let file = create(&c, "f").await;
            c.data().fsync(&file, false).await.unwrap();
            c.data().write(&file, 0, &[7; 300_000]).await.unwrap();
            // Full RPCs are answered, and nothing of them is committed yet: the client alone has them.
            let import = c.osts().all()[0].import().unwrap();
            while import.last_transno() <= import.last_committed() {
                world.sim.sleep(Duration::from_micros(100)).await;
            }
            world.lose_power(0);
            world.restart_oss(0).await;
            let host = &world.oss[0].host;
            host.set_disk_fault(DiskFault { writes: true, syncs: true, times: u32::MAX, ..DiskFault::default() });
            world.sim.sleep(Duration::from_secs(5)).await;
            world.lose_power(0);
            host.set_disk_fault(DiskFault::default());
            world.restart_oss(0).await;
            assert_eq!(c.data().fsync(&file, false).await, Ok(()), "seed {seed}");
            assert!(read_all(&c, &file, MIB).await == [7; 300_000], "seed {seed}");
        });
    }
}

#[test]
fn a_lock_that_comes_from_a_failed_store_does_not_vouch_for_a_length_of_before() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            drop(create(&one, "f").await);
            let file = open(&one, "f", O_RDWR | O_APPEND).await;
            one.data().write(&file, 0, &[1; 100_000]).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            let cut = open(&two, "f", O_RDWR | O_TRUNC).await;
            two.data().fsync(&cut, false).await.unwrap();
            two.data().write(&cut, 0, &[2; 8192]).await.unwrap();
            let fault = DiskFault { writes: true, syncs: true, times: u32::MAX, ..DiskFault::default() };
            world.oss[0].host.set_disk_fault(fault);
            // The other client is called back and cannot write out; the store that failed does not say how long the object is.
            assert_eq!(one.data().write(&file, 0, &[3; 10]).await, Err(FsError::Io), "seed {seed}");
            world.lose_power(0);
            world.oss[0].host.set_disk_fault(DiskFault::default());
            world.restart_oss(0).await;
            assert_eq!(read_all(&one, &file, MIB).await.len(), 0, "seed {seed}");
        });
    }
}

#[test]
fn a_recovery_whose_connection_broke_in_a_pause_does_not_go_on_beside_the_next_one() {
    const FILES: usize = 60;
    for seed in 0..8 {
        let world = World::new(seed, 1, OstConfig::default());
        let (c, _) = world.client(|_| {});
        world.run(Duration::from_secs(600), async {
            let mut files = Vec::new();
            for i in 0..FILES {
                let file = create(&c, &format!("f{i}")).await;
                c.data().write(&file, 0, &[i as u8; 5000]).await.unwrap();
                files.push(file);
            }
            // Every write is answered, and the last of them are not committed.
            for file in &files {
                c.data().write_out(file.inode()).await;
            }
            world.lose_power(0);
            world.restart_oss(0).await;
            let host = &world.oss[0].host;
            host.set_disk_fault(DiskFault { writes: true, syncs: true, times: u32::MAX, ..DiskFault::default() });
            world.sim.sleep(Duration::from_millis(700 + 130 * seed)).await;
            world.lose_power(0);
            host.set_disk_fault(DiskFault::default());
            world.restart_oss(0).await;
            // What is written while the earlier one would still tell the server of locks.
            for round in 0..40 {
                for (i, file) in files.iter().enumerate() {
                    c.data().write(file, 0, &[i as u8 + round; 5000]).await.unwrap();
                }
                world.sim.sleep(Duration::from_millis(50)).await;
            }
            for (i, file) in files.iter().enumerate() {
                assert_eq!(c.data().fsync(file, false).await, Ok(()), "seed {seed}, file {i}");
                assert!(read_all(&c, file, MIB).await == [i as u8 + 39; 5000], "seed {seed}, file {i}");
            }
            assert_eq!(c.osts().all()[0].import().unwrap().evictions(), 0, "seed {seed}");
        });
    }
}

#[test]
fn a_size_that_is_wrong_is_mended_also_when_the_metadata_server_cannot_take_it_at_once() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create(&one, "f").await;
            one.data().write(&file, 0, &[1; 10_000]).await.unwrap();
            one.release(&file).await.unwrap();
            one.meta().sync_meta(file.fid()).await.unwrap();
            // The bytes are lost, and the metadata server hears nothing of it.
            let fault = DiskFault { writes: true, syncs: true, times: u32::MAX, ..DiskFault::default() };
            world.oss[0].host.set_disk_fault(fault);
            world.mds_store_fails();
            let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, ..NewFile::default() };
            drop(two.create_open(&root(), Fid::ROOT, b"g", new).await);
            one.data().write_out(file.inode()).await;
            world.sim.sleep(Duration::from_secs(5)).await;
            world.lose_power(0);
            world.oss[0].host.set_disk_fault(DiskFault::default());
            world.restart_oss(0).await;
            world.kill_mds();
            world.restart_mds().await;
            world.sim.sleep(Duration::from_secs(60)).await;
            let file = open(&two, "f", 0).await;
            let size = two.getattr(&root(), file.fid(), None).await.unwrap().attr.size;
            assert_eq!(size, read_all(&two, &file, MIB).await.len() as u64, "seed {seed}");
        });
    }
}

#[test]
fn a_lock_that_was_given_up_while_the_metadata_server_failed_is_not_offered_to_the_next_one() {
    use client::FlockMode::{Exclusive, Unlock};
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let fid = create(&one, "f").await.fid();
            let call = |mode, owner: u64| {
                let extent = types::Extent::new(0, 10);
                client::LockCall { fid, whole: false, mode, extent, owner, pid: owner as u32 }
            };
            one.flocks().set_lock(call(Exclusive, 1), true, std::future::pending()).await.unwrap();
            // Long enough to be on record as quiet: whatever it asks for next takes a commit.
            world.sim.sleep(Duration::from_secs(12)).await;
            world.mds_store_fails();
            let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, ..NewFile::default() };
            let made = two.create_open(&root(), Fid::ROOT, b"g", new).await;
            assert!(made.is_err() || two.meta().sync_meta(Fid::ROOT).await.is_err(), "the store has failed");
            assert_eq!(
                one.flocks().set_lock(call(Unlock, 1), false, std::future::pending()).await,
                Ok(()),
                "seed {seed}"
            );
            world.kill_mds();
            world.restart_mds().await;
            two.flocks().set_lock(call(Exclusive, 2), true, std::future::pending()).await.unwrap();
            // What is told late takes nothing away from whoever has it by now, its owner of before among them.
            two.flocks().set_lock(call(Unlock, 2), false, std::future::pending()).await.unwrap();
            one.flocks().set_lock(call(Exclusive, 1), true, std::future::pending()).await.unwrap();
            world.sim.sleep(Duration::from_secs(5)).await;
            let other = two.flocks().set_lock(call(Exclusive, 2), false, std::future::pending()).await;
            assert_eq!(other, Err(FsError::WouldBlock), "seed {seed}");
        });
    }
}

#[test]
fn a_lock_that_is_in_use_while_its_ost_recovers_does_not_vouch_for_what_a_dead_client_had_written() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, _), (two, dies)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create(&one, "f").await;
            one.data().fsync(&file, false).await.unwrap();
            let of_two = open(&two, "f", O_RDWR).await;
            two.data().write(&of_two, 0, &[2; 100_000]).await.unwrap();
            one.data().write(&file, 0, &[1; 4096]).await.unwrap();
            dies.kill();
            world.lose_power(0);
            // It has its lock, and needs the rest of a page of the OST.
            let (c, f) = (one.clone(), file.clone());
            let (tell, told) = rt::sync::oneshot();
            one.rt().spawn(async move { tell.send(c.data().write(&f, 50_000, &[3; 10]).await) });
            world.sim.sleep(Duration::from_secs(2)).await;
            world.restart_oss(0).await;
            told.await.unwrap().unwrap();
            one.data().fsync(&file, false).await.unwrap();
            world.sim.sleep(Duration::from_secs(1)).await;
            let (three, _) = world.client(|_| {});
            let of_three = open(&three, "f", 0).await;
            let found = read_all(&three, &of_three, MIB).await.len() as u64;
            let known = one.getattr(&root(), file.fid(), Some(&file)).await.unwrap().attr.size;
            assert_eq!(known, found, "seed {seed}");
        });
    }
}
