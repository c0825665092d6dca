//! Clients that are evicted while files are open: what they say was kept is there, and what is lost is told.
use crate::world::*;
use wire::mdt::{SetBits, SetattrRequest};

/// Long enough for a client to have sessions again after its network is back.
const BACK: Duration = Duration::from_secs(100);
const BLOCK: u64 = 4096;

/// Waits until every server has forgotten the client.
async fn until_evicted(world: &World, c: &Client) {
    for _ in 0..400 {
        world.sim.sleep(Duration::from_secs(1)).await;
        if world.knows(c.sessions().id()) == 0 {
            return;
        }
    }
    panic!("the client was not evicted");
}

/// Waits until the client has sessions again.
async fn until_back(world: &World, c: &Client) {
    for _ in 0..400 {
        world.sim.sleep(Duration::from_secs(1)).await;
        let up = |i: &ptlrpc::Import| i.state() == ptlrpc::ImportState::Full && i.evictions() > 0;
        if up(&c.sessions().mdc()) && c.osts().all().iter().all(|o| up(&o.import().unwrap())) {
            return;
        }
    }
    panic!("the client does not come back");
}

/// Writes a file of which 10,000 bytes are durable and 50,000 more are not written out when it is closed.
async fn close_with_unwritten_bytes(c: &Rc<Client>) {
    let file = create(c, "f").await;
    c.data().write(&file, 0, &[1; 10_000]).await.unwrap();
    c.data().fsync(&file, false).await.unwrap();
    c.data().write(&file, 10_000, &[2; 50_000]).await.unwrap();
    c.release(&file).await.unwrap();
}

/// How long the file is said to be, and how many bytes can be read of it.
async fn size_and_bytes(c: &Rc<Client>) -> (u64, u64) {
    let file = open(c, "f", 0).await;
    let size = c.getattr(&root(), file.fid(), None).await.unwrap().attr.size;
    (size, read_all(c, &file, MIB).await.len() as u64)
}

#[test]
fn a_file_is_as_long_as_what_can_be_read_of_it_when_its_writer_died_after_its_close() {
    for seed in 0..6 {
        let world = World::new(seed, 2, OstConfig::default());
        let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            close_with_unwritten_bytes(&one).await;
            world.cut_off(&host, true);
            until_evicted(&world, &one).await;
            assert_eq!(size_and_bytes(&two).await, (10_000, 10_000), "seed {seed}");
        });
    }
}

#[test]
fn a_file_is_as_long_as_what_can_be_read_of_it_when_its_writer_died_long_after_its_close_with_its_ost_away() {
    for seed in 0..6 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            close_with_unwritten_bytes(&one).await;
            world.sim.cut(&host, &world.oss[0].host);
            world.sim.sleep(Duration::from_secs(300)).await;
            if seed % 2 == 1 {
                // Others tell sizes, too, and their data are out.
                let file = create(&two, "g").await;
                two.data().write(&file, 0, &[3; 1000]).await.unwrap();
                two.release(&file).await.unwrap();
                world.sim.sleep(Duration::from_secs(30)).await;
            }
            world.cut_off(&host, true);
            until_evicted(&world, &one).await;
            assert_eq!(size_and_bytes(&two).await, (10_000, 10_000), "seed {seed}");
        });
    }
}

/// Takes every lock on the file's name and attributes away from other clients: they may forget the file.
async fn rename_and_back(c: &Rc<Client>) {
    c.meta().rename(&root(), (Fid::ROOT, b"f"), (Fid::ROOT, b"g"), 0).await.unwrap();
    c.meta().rename(&root(), (Fid::ROOT, b"g"), (Fid::ROOT, b"f"), 0).await.unwrap();
}

#[test]
fn a_file_is_as_long_as_what_can_be_read_of_it_when_an_ost_evicted_its_writer_after_its_close() {
    for seed in 0..6 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            close_with_unwritten_bytes(&one).await;
            if seed % 2 == 1 {
                rename_and_back(&two).await;
            }
            world.sim.cut(&host, &world.oss[0].host);
            while world.knows(one.sessions().id()) > 1 {
                world.sim.sleep(Duration::from_secs(1)).await;
            }
            world.sim.heal(&host, &world.oss[0].host);
            let osc = one.osts().all()[0].import().unwrap();
            while osc.evictions() == 0 || osc.state() != ptlrpc::ImportState::Full {
                world.sim.sleep(Duration::from_secs(1)).await;
            }
            world.sim.sleep(Duration::from_secs(1)).await;
            assert_eq!(size_and_bytes(&two).await, (10_000, 10_000), "seed {seed}");
        });
    }
}

#[test]
fn a_file_is_as_long_as_what_can_be_read_of_it_when_its_ost_lost_what_it_had_answered() {
    for seed in 0..6 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, host), (two, _)) =
            (world.client(|c| c.dirty_age_max = Duration::from_millis(8)), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create(&one, "f").await;
            one.data().write(&file, 0, &[1; 10_000]).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            one.data().write(&file, 10_000, &[2; 50_000]).await.unwrap();
            one.data().write_out(file.inode()).await;
            one.release(&file).await.unwrap();
            drop(file);
            if seed % 2 == 1 {
                rename_and_back(&two).await;
                // Time to forget the file, before the OST commits.
                world.sim.sleep(Duration::from_millis(10)).await;
            }
            // The OST forgets what it answered, and does not hear of the only one who could offer it again.
            world.lose_power(0);
            world.sim.cut(&host, &world.oss[0].host);
            world.restart_oss(0).await;
            while world.knows(one.sessions().id()) > 1 {
                world.sim.sleep(Duration::from_secs(1)).await;
            }
            world.sim.heal(&host, &world.oss[0].host);
            let osc = one.osts().all()[0].import().unwrap();
            while osc.evictions() == 0 || osc.state() != ptlrpc::ImportState::Full {
                world.sim.sleep(Duration::from_secs(1)).await;
            }
            world.sim.sleep(Duration::from_secs(1)).await;
            assert_eq!(size_and_bytes(&two).await, (10_000, 10_000), "seed {seed}");
        });
    }
}

#[test]
fn what_is_written_through_an_open_file_after_an_eviction_is_there_for_everyone() {
    for seed in 0..6 {
        let world = World::new(seed, 2, OstConfig::default());
        let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create(&one, "f").await;
            one.data().write(&file, 0, &[1; 10_000]).await.unwrap();
            assert_eq!(one.data().fsync(&file, false).await, Ok(()));
            world.cut_off(&host, true);
            until_evicted(&world, &one).await;
            // Another writer comes and goes: the server's record of the size is right again.
            let other = open(&two, "f", O_RDWR).await;
            two.data().write(&other, 0, &[2; 100]).await.unwrap();
            two.data().fsync(&other, false).await.unwrap();
            two.release(&other).await.unwrap();
            let size = async |c: &Rc<Client>| c.getattr(&root(), file.fid(), None).await.unwrap().attr.size;
            assert_eq!(size(&two).await, 10_000);
            world.cut_off(&host, false);
            until_back(&world, &one).await;
            assert_eq!(one.data().write(&file, 300_000, &[3; 20_000]).await, Ok(300_000));
            assert_eq!(
                one.data().fsync(&file, false).await,
                Ok(()),
                "seed {seed}: nothing was dirty when it was evicted"
            );
            assert_eq!(size(&two).await, 320_000, "seed {seed}: while the file is open");
            assert_eq!(one.release(&file).await, Ok(()));
            assert_eq!(size(&two).await, 320_000, "seed {seed}: closed");
            let file = open(&two, "f", 0).await;
            let got = read_all(&two, &file, MIB).await;
            assert!(got[..100] == [2; 100] && got[100..10_000] == [1; 9900] && got[300_000..] == [3; 20_000]);
            assert_eq!(one.losses().text(), "");
        });
    }
}

#[test]
fn programs_that_write_all_the_time_lose_nothing_that_an_fsync_promised_and_hear_of_all_else() {
    for seed in 0..8 {
        let world = World::new(seed, 2, OstConfig::default());
        let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(7200), async {
            let file = create(&one, "f").await;
            let idle = one.open(&root(), file.fid(), O_RDWR).await.unwrap();
            let ((tx, rx), stop) = (rt::sync::oneshot(), Rc::new(Cell::new(false)));
            let (c, f, ends) = (one.clone(), file.clone(), stop.clone());
            one.rt().spawn(async move {
                let (mut rng, mut kept, mut errors) = (Rng::new(seed), vec![0u8; 256], 0);
                let mut value = 0u8;
                while !ends.get() {
                    value = value.wrapping_add(1).max(1);
                    let blocks: Vec<usize> = (0..1 + rng.below(6)).map(|_| rng.below(256) as usize).collect();
                    let mut fine = true;
                    for b in &blocks {
                        // Until an fsync has promised it, nothing is sure of it.
                        kept[*b] = 0;
                        fine &= c.data().write(&f, *b as u64 * BLOCK, &[value; BLOCK as usize]).await.is_ok();
                    }
                    fine &= c.data().fsync(&f, false).await.is_ok();
                    if fine {
                        blocks.iter().for_each(|b| kept[*b] = value);
                    } else {
                        errors += 1;
                    }
                    c.rt().sleep(Duration::from_millis(rng.below(400))).await;
                }
                tx.send((kept, errors));
            });
            world.sim.sleep(Duration::from_millis(700 + seed * 37)).await;
            world.cut_off(&host, true);
            until_evicted(&world, &one).await;
            world.cut_off(&host, false);
            world.sim.sleep(BACK).await;
            stop.set(true);
            let (kept, errors) = rx.await.unwrap();
            let lost = one.losses().text();
            assert!(errors > 0 || lost.is_empty(), "seed {seed}: nobody was told, lost: {lost}");
            if errors > 0 {
                assert!(idle.flush_errors().is_err(), "seed {seed}: every descriptor is told");
                assert_eq!(idle.flush_errors(), Ok(()), "seed {seed}: once");
            }
            one.release(&file).await.unwrap();
            let file = open(&two, "f", 0).await;
            let got = read_all(&two, &file, 256 * BLOCK).await;
            for (b, value) in kept.iter().enumerate().filter(|(_, v)| **v != 0) {
                let at = b * BLOCK as usize;
                let is = got.get(at..at + BLOCK as usize);
                assert!(is == Some(&[*value; BLOCK as usize]), "seed {seed}, block {b} is not what an fsync promised");
            }
        });
    }
}

#[test]
fn an_error_that_a_write_answers_is_told_by_fsync_as_well() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let made = create(&two, "f").await;
            two.data().write(&made, 0, &[1; 300_000]).await.unwrap();
            two.data().fsync(&made, false).await.unwrap();
            two.release(&made).await.unwrap();
            let file = open(&one, "f", O_RDWR).await;
            one.data().write(&file, 200_100, &[3; 100]).await.unwrap();
            one.data().write_out(file.inode()).await;
            one.data().write(&file, 0, &[2; 4096]).await.unwrap();
            world.cut_off(&host, true);
            until_evicted(&world, &one).await;
            // Part of a page of which another part is in the cache: it waits for the server, and hears of the eviction.
            let ((tx, rx), c, f) = (rt::sync::oneshot(), one.clone(), file.clone());
            one.rt().spawn(async move { tx.send(c.data().write(&f, 199_000, &[3; 100]).await) });
            world.cut_off(&host, false);
            until_back(&world, &one).await;
            let written = rx.await.unwrap();
            let synced = one.data().fsync(&file, false).await;
            assert!(synced.is_err(), "seed {seed}: the write answered {written:?}, fsync {synced:?}");
            assert_eq!(one.data().fsync(&file, false).await, Ok(()), "seed {seed}: once");
            assert_eq!(one.release(&file).await, Ok(()));
            assert!(one.losses().text().contains("4096"));
        });
    }
}

#[test]
fn a_file_that_was_removed_meanwhile_takes_no_more_writes() {
    let world = World::new(3, 1, OstConfig::default());
    let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        let file = create(&one, "f").await;
        one.data().write(&file, 0, &[1; 10_000]).await.unwrap();
        assert_eq!(one.data().fsync(&file, false).await, Ok(()));
        world.cut_off(&host, true);
        until_evicted(&world, &one).await;
        two.meta().unlink(&root(), Fid::ROOT, b"f", false).await.unwrap();
        world.cut_off(&host, false);
        until_back(&world, &one).await;
        assert_eq!(one.data().write(&file, 0, &[2; 10_000]).await, Err(FsError::Io));
        assert_eq!(one.data().fsync(&file, false).await, Err(FsError::Io));
        assert_eq!(one.data().fsync(&file, false).await, Err(FsError::Io));
        assert!(one.release(&file).await.is_err());
    });
}

#[test]
fn writes_that_were_answered_and_lost_with_the_target_are_told_when_they_cannot_be_replayed() {
    for seed in 0..6 {
        let world = World::new(seed, 1, OstConfig::default());
        let (one, host) = world.client(|_| {});
        world.run(Duration::from_secs(3600), async {
            let file = create(&one, "f").await;
            one.data().write(&file, 0, &[1; 10_000]).await.unwrap();
            assert_eq!(one.data().fsync(&file, false).await, Ok(()));
            one.data().write(&file, 0, &[2; 10_000]).await.unwrap();
            one.data().write_out(file.inode()).await;
            world.lose_power(0);
            world.cut_off(&host, true);
            world.restart_oss(0).await;
            until_evicted(&world, &one).await;
            world.cut_off(&host, false);
            until_back(&world, &one).await;
            assert_eq!(one.data().fsync(&file, false).await, Err(FsError::Io), "seed {seed}");
            assert!(one.losses().text().contains("12288"), "seed {seed}: '{}'", one.losses().text());
            assert_eq!(one.data().fsync(&file, false).await, Ok(()), "seed {seed}: told once");
        });
    }
}

#[test]
fn a_name_that_was_missing_before_an_eviction_is_asked_for_again() {
    let world = World::new(9, 1, OstConfig::default());
    let ((a, host), (b, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        let there = async |name: &str| {
            let entry = a.lookup(&root(), Fid::ROOT, name.as_bytes()).await.unwrap();
            !entry.attr.fid.is_zero()
        };
        assert!(!there("n").await && !there("n").await);
        world.cut_off(&host, true);
        let made = create(&b, "n").await;
        world.cut_off(&host, false);
        until_evicted_by_mds(&a).await;
        // The directory's lock comes back with another name.
        assert!(!there("other").await);
        assert!(there("n").await, "{} is missing", made.fid());
    });
}

async fn until_evicted_by_mds(c: &Client) {
    for _ in 0..600 {
        let mdc = c.sessions().mdc();
        if mdc.evictions() > 0 && mdc.state() == ptlrpc::ImportState::Full {
            return;
        }
        c.rt().sleep(Duration::from_secs(1)).await;
    }
    panic!("the client was not evicted");
}

#[test]
fn each_open_of_a_file_is_told_once_to_a_metadata_server_that_evicted_its_client() {
    const OPENS: usize = 40;
    let world = World::new(3, 1, OstConfig::default());
    let (one, host) = world.client(|_| {});
    world.run(Duration::from_secs(3600), async {
        let mut files = vec![create(&one, "f").await];
        while files.len() < OPENS {
            files.push(open(&one, "f", O_RDWR).await);
        }
        world.sim.cut(&host, &world.mds_host);
        world.mds_evicts(one.sessions().id()).await;
        world.sim.sleep(Duration::from_secs(20)).await;
        let sent = || one.sessions().mdc().counters().1;
        let before = sent();
        world.sim.heal(&host, &world.mds_host);
        until_evicted_by_mds(&one).await;
        world.sim.sleep(BACK).await;
        let asked = sent() - before;
        assert!((OPENS as u64..4 * OPENS as u64).contains(&asked), "{asked} requests for {OPENS} opens");
        assert_eq!(one.in_use().of("untold opens"), 0);
        for file in &files {
            one.release(file).await.unwrap();
        }
    });
}

#[test]
fn unwritten_bytes_of_an_open_file_whose_objects_went_with_an_eviction_count_as_lost() {
    let world = World::new(3, 1, OstConfig::default());
    let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        let file = create(&one, "f").await;
        one.data().write(&file, 0, &[1; 10_000]).await.unwrap();
        let closed = create(&one, "closed").await;
        one.data().write(&closed, 0, &[1; 10_000]).await.unwrap();
        one.release(&closed).await.unwrap();
        // The metadata server closes the file for its client, and the next one to remove the name removes the file.
        world.sim.cut(&host, &world.mds_host);
        world.mds_evicts(one.sessions().id()).await;
        for name in ["f", "closed"] {
            two.meta().unlink(&root(), Fid::ROOT, name.as_bytes(), false).await.unwrap();
        }
        world.sim.sleep(Duration::from_secs(20)).await;
        world.sim.heal(&host, &world.mds_host);
        world.sim.sleep(BACK).await;
        assert_eq!(one.losses().text(), format!("{} {}\n", file.fid(), 3 * BLOCK), "nobody can ask for the other's");
        assert_eq!(one.data().fsync(&file, false).await, Err(FsError::Io));
    });
}

#[test]
fn a_process_waits_for_the_locks_of_its_mount_that_died_unheard_and_not_for_itself() {
    let world = World::new(1, 1, OstConfig::default());
    let (one, host) = world.client(|_| {});
    world.run(Duration::from_secs(3600), async {
        let fid = create(&one, "f").await.fid();
        let (extent, owner, pid) = (Extent::new(0, 10), 7, 4711);
        let call = client::LockCall { fid, whole: false, mode: client::FlockMode::Exclusive, extent, owner, pid };
        one.flocks().set_lock(call, true, std::future::pending()).await.unwrap();
        // Nobody hears of its end.
        world.cut_off(&host, true);
        host.kill();
        world.sim.sleep(Duration::from_secs(25)).await;
        world.cut_off(&host, false);
        let again = world.client_again(&host).await;
        again.flocks().set_lock(call, true, std::future::pending()).await.unwrap();
    });
}

type Step<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), FsError>> + 'a>>;

/// A client gives a lock up, the server gives it to another one and dies before the first one hears of it; either may come back
/// first.
#[test]
fn a_lock_whose_unlock_was_not_answered_is_not_replayed_over_its_next_holder() {
    use client::FlockMode::{Exclusive, Unlock};
    for seed in 0..20 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, host), (two, other), (maker, _)) =
            (world.client(|_| {}), world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create(&maker, "f").await;
            maker.release(&file).await.unwrap();
            let fid = file.fid();
            let extent = Extent::new(0, 8);
            let call =
                |mode, owner: u64| client::LockCall { fid, whole: false, mode, extent, owner, pid: owner as u32 };
            one.flocks().set_lock(call(Exclusive, 1), true, std::future::pending()).await.unwrap();
            world.sim.cut_one_way(&world.mds_host, &host);
            let unlock = async { one.flocks().set_lock(call(Unlock, 1), false, std::future::pending()).await };
            let next = async {
                two.flocks().set_lock(call(Exclusive, 2), true, std::future::pending()).await.unwrap();
                // The answer to the first one goes with its host.
                world.sim.reset(&world.mds_host, &host);
                world.kill_mds();
                world.sim.heal(&world.mds_host, &host);
                let late = if seed % 2 == 0 { &host } else { &other };
                world.sim.cut(late, &world.mds_host);
                world.restart_mds().await;
                world.sim.sleep(Duration::from_millis(200 * seed)).await;
                world.sim.heal(late, &world.mds_host);
                Ok(())
            };
            let both: [Step<'_>; 2] = [Box::pin(unlock), Box::pin(next)];
            for done in rt::sync::join_all(both.into()).await {
                done.unwrap();
            }
            world.sim.sleep(Duration::from_secs(60)).await;
            let third = two.flocks().set_lock(call(Exclusive, 3), false, std::future::pending()).await;
            assert_eq!(third, Err(FsError::WouldBlock), "seed {seed}: owner 2 has it");
        });
    }
}

/// A reservation or a cut that waits for a session does not go on in the next one: its lock is another client's by then.
#[test]
fn what_waits_through_an_eviction_changes_no_object_behind_its_next_writer() {
    for cuts in [false, true] {
        let world = World::new(1, 1, OstConfig::default());
        let ((one, host), (two, _), (three, _)) = (world.client(|_| {}), world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create(&one, "f").await;
            one.data().write(&file, 0, &[1; 10_000]).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            world.sim.cut(&host, &world.oss[0].host);
            let import = one.osts().all()[0].import().unwrap();
            while import.state() == ptlrpc::ImportState::Full {
                world.sim.sleep(Duration::from_secs(1)).await;
            }
            let (tell, told) = rt::sync::oneshot();
            let (c, f) = (one.clone(), file.clone());
            one.rt().spawn(async move {
                let size = SetattrRequest { valid: SetBits::SIZE, size: 5_000, ..SetattrRequest::default() };
                tell.send(match cuts {
                    true => c.setattr(&root(), f.inode(), size, Some(&f)).await,
                    false => c.data().fallocate(&f, 0, 0, 100_000).await,
                });
            });
            while world.knows(one.sessions().id()) > 1 {
                world.sim.sleep(Duration::from_secs(1)).await;
            }
            let of_two = open(&two, "f", O_RDWR).await;
            two.data().write(&of_two, 0, &[2; 500]).await.unwrap();
            world.sim.heal(&host, &world.oss[0].host);
            let changed = told.await.unwrap();
            let known = two.getattr(&root(), of_two.fid(), Some(&of_two)).await.unwrap().attr.size;
            two.data().fsync(&of_two, false).await.unwrap();
            let size = three.getattr(&root(), of_two.fid(), None).await.unwrap().attr.size;
            assert_eq!((known, changed), (10_000, Err(FsError::NotConnected)), "cut: {cuts}");
            assert_eq!(size, known, "cut: {cuts}");
        });
    }
}

/// Waits until the client has a session with the first OST.
async fn until_connected(world: &World, c: &Client) {
    while c.osts().all()[0].import().unwrap().state() != ptlrpc::ImportState::Full {
        world.sim.sleep(Duration::from_millis(1)).await;
    }
}

/// What an fsync says, once and again, of a file with bytes that an OST had answered and not committed when this client gave the OST
/// up; of the OST it is known when it loses its power: before it is taken into use again, after that, or never.
fn given_up(dies_before: bool, dies_after: bool, bug: Option<&'static str>) -> ([Result<(), FsError>; 2], String) {
    types::planted::plant(bug);
    let world = World::new(1, 1, OstConfig::default());
    world.set_ost_commits(BACK);
    world.lose_power(0);
    world.start_oss(0);
    let (one, _) = world.client(|_| {});
    let said = world.run(Duration::from_secs(3600), async {
        let file = create(&one, "f").await;
        one.data().write(&file, 0, &[1; 10_000]).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        one.data().write(&file, 0, &[2; 10_000]).await.unwrap();
        one.data().write_out(file.inode()).await;
        let osc = one.osts().all()[0].clone();
        if dies_before {
            world.lose_power(0);
        }
        osc.set_active(false);
        assert!(one.data().fsync(&file, false).await.is_err(), "nothing waits for who was given up");
        if dies_before {
            world.restart_oss(0).await;
        }
        osc.set_active(true);
        until_connected(&world, &one).await;
        if dies_after {
            world.lose_power(0);
            world.restart_oss(0).await;
            world.sim.sleep(BACK).await;
        }
        let said = [one.data().fsync(&file, false).await, one.data().fsync(&file, false).await];
        if said[0].is_ok() && bug.is_none() {
            world.lose_power(0);
            world.restart_oss(0).await;
            world.sim.sleep(BACK).await;
            assert_eq!(read_all(&one, &file, MIB).await, [2; 10_000], "what an fsync promised");
        }
        (said, one.losses().text())
    });
    types::planted::plant(None);
    said
}

#[test]
fn what_an_ost_lost_that_was_given_up_is_told_when_it_is_back() {
    let (said, lost) = given_up(true, false, None);
    assert_eq!(said, [Err(FsError::Io), Ok(())], "once");
    assert!(lost.contains("12288"), "'{lost}'");
    assert_eq!(given_up(true, false, Some("given-up-and-forgotten")).0, [Ok(()); 2], "the bug is not seen");
    for dies_after in [false, true] {
        let (said, lost) = given_up(false, dies_after, None);
        assert!(said[0].is_err() || lost.is_empty(), "{said:?}, '{lost}'");
    }
}

/// What an fsync says to who opens a file of which bytes were lost after its last close, and to who opens it then.
fn opened_after_a_loss(bug: Option<&'static str>) -> [Result<(), FsError>; 2] {
    types::planted::plant(bug);
    let world = World::new(1, 1, OstConfig::default());
    let (one, _) = world.client(|_| {});
    let said = world.run(Duration::from_secs(3600), async {
        close_with_unwritten_bytes(&one).await;
        let osc = one.osts().all()[0].clone();
        osc.set_active(false);
        osc.set_active(true);
        until_connected(&world, &one).await;
        let mut said = [Ok(()); 2];
        for said in &mut said {
            let file = open(&one, "f", O_RDWR).await;
            *said = one.data().fsync(&file, false).await;
            one.release(&file).await.unwrap();
        }
        said
    });
    types::planted::plant(None);
    said
}

#[test]
fn an_error_that_came_after_the_last_close_is_told_to_the_next_fsync_once() {
    assert_eq!(opened_after_a_loss(None), [Err(FsError::Io), Ok(())]);
    assert_eq!(opened_after_a_loss(Some("untold-forgotten")), [Ok(()); 2], "the bug is not seen");
}

/// What a read is answered that is begun when an OST has just been taken back that was given up.
fn read_when_taken_back(bug: Option<&'static str>) -> Result<Vec<u8>, FsError> {
    types::planted::plant(bug);
    let world = World::new(1, 1, OstConfig::default());
    let (one, _) = world.client(|_| {});
    let read = world.run(Duration::from_secs(3600), async {
        let file = create(&one, "f").await;
        one.data().write(&file, 0, &[1; 100]).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        let osc = one.osts().all()[0].clone();
        osc.set_active(false);
        world.sim.sleep(Duration::from_millis(10)).await;
        osc.set_active(true);
        one.data().read(&file, 0, 100).await.map(|b| b.to_vec())
    });
    types::planted::plant(None);
    read
}

#[test]
fn what_is_asked_of_an_ost_that_was_just_taken_back_does_not_end_with_the_session_of_before() {
    assert!(read_when_taken_back(Some("parted-and-lost")).is_err());
    assert_eq!(read_when_taken_back(None), Ok(vec![1; 100]));
}

#[test]
fn a_cut_that_an_ost_lost_with_a_session_is_told_by_the_next_sync_and_listed() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, host), _) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create(&one, "f").await;
            one.data().write(&file, 0, &[1; 10_000]).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            cut(&one, &file, 5_000).await.unwrap();
            one.release(&file).await.unwrap();
            world.lose_power(0);
            world.cut_off(&host, true);
            world.restart_oss(0).await;
            until_evicted(&world, &one).await;
            world.cut_off(&host, false);
            until_back(&world, &one).await;
            let file = open(&one, "f", 2).await;
            assert_eq!(one.data().fsync(&file, false).await, Err(FsError::Io), "seed {seed}");
            let listed = one.losses().changes_text();
            assert!(listed.contains(&format!("cut {}", file.fid())), "seed {seed}: {listed:?}");
            assert_eq!(one.data().fsync(&file, false).await, Ok(()), "seed {seed}");
        });
    }
}
