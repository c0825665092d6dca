//! An fsync makes durable what anybody wrote to the file, and asks no more than it has to.
use crate::world::*;

const BYTES: usize = 300_000;

/// What becomes of the bytes of a writer that dies together with the power of all OSTs, after another client's fsync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    /// Nobody has seen them: they are in the writer's cache only.
    ByNobody,
    /// The survivor read them: they were written out, and not synced.
    BySurvivor,
    /// And their writer was dead by then.
    AfterDeath,
}

/// Whether all bytes of a writer on one client are there after another one's fsync, and after the end of everything.
fn synced_by_another(seed: u64, seen: Seen, bug: Option<&'static str>) -> bool {
    types::planted::plant(bug);
    let world = World::new(seed, 2, OstConfig::default());
    let ((one, host), (two, other)) = (world.client(|_| {}), world.client(|_| {}));
    let want = pattern(0, BYTES, seed);
    world.run(Duration::from_secs(600), async {
        let file = create_striped(&one, "f").await;
        one.data().fsync(&file, false).await.unwrap();
        let theirs = open(&two, "f", O_RDWR).await;
        one.data().write(&file, 0, &want).await.unwrap();
        if seen != Seen::ByNobody {
            assert!(read_all(&two, &theirs, MIB).await == want, "seed {seed}");
        }
        if seen == Seen::AfterDeath {
            host.kill();
        }
        two.data().fsync(&theirs, false).await.unwrap();
    });
    (0..2).for_each(|i| world.lose_power(i));
    [host, other].iter().for_each(Host::kill);
    [one, two].iter().for_each(|c| c.abandon());
    (0..2).for_each(|i| world.start_oss(i));
    let (later, _) = world.client(|_| {});
    let kept = world.run(Duration::from_secs(600), async {
        let file = open(&later, "f", 0).await;
        read_all(&later, &file, MIB).await == want
    });
    types::planted::plant(None);
    kept
}

#[test]
fn what_another_client_wrote_is_there_after_an_fsync_the_writers_death_and_a_power_loss() {
    for seen in [Seen::ByNobody, Seen::BySurvivor, Seen::AfterDeath] {
        assert!(!synced_by_another(1, seen, Some("others-not-synced")), "{seen:?}: nothing is lost here");
        for seed in 0..5 {
            assert!(synced_by_another(seed, seen, None), "seed {seed}, {seen:?}");
        }
    }
}

/// How many syncs and requests for locks came to each of the OSTs.
fn questions(world: &World, osts: usize) -> Vec<u64> {
    (0..osts).map(|i| asked(world, i, "sync") + asked(world, i, "ldlm_enqueue")).collect()
}

#[test]
fn a_writer_that_is_alone_asks_each_target_that_has_something_of_its_own_once_and_others_never_again() {
    let world = World::new(1, 3, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(600), async {
        let file = create_striped(&one, "f").await;
        one.data().write(&file, 0, &[7; 100]).await.unwrap();
        let before = questions(&world, 3);
        let asked = |before: &[u64]| -> Vec<u64> {
            questions(&world, 3).iter().zip(before).map(|(now, before)| now - before).collect()
        };
        one.data().fsync(&file, false).await.unwrap();
        assert_eq!(asked(&before), [1, 0, 0], "one object was written, the others nobody knows");
        one.data().fsync(&file, false).await.unwrap();
        assert_eq!(asked(&before), [1, 0, 0]);
        one.release(&file).await.unwrap();
        // Somebody else's file: what its writer left is synced once, and then this client knows that it is alone.
        let theirs = open(&two, "f", O_RDWR).await;
        two.data().write(&theirs, 0, &[8; 100]).await.unwrap();
        let before = questions(&world, 3);
        two.data().fsync(&theirs, false).await.unwrap();
        assert_eq!(asked(&before), [1, 2, 2], "a lock and a sync where this client had nothing");
        for round in 1..4 {
            two.data().write(&theirs, 0, &[9; 100]).await.unwrap();
            two.data().fsync(&theirs, false).await.unwrap();
            assert_eq!(asked(&before), [1 + round, 2, 2]);
            two.data().fsync(&theirs, false).await.unwrap();
            assert_eq!(asked(&before), [1 + round, 2, 2], "nothing is missing");
        }
    });
}

/// The writer goes on as fast as it can; who syncs waits for what was written before, and not for that.
#[test]
fn an_fsync_comes_to_its_end_although_another_client_writes_all_the_time() {
    let world = World::new(1, 2, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(600), async {
        let (file, over) = (create_striped(&one, "f").await, Rc::new(Cell::new(false)));
        let (writer, mine, stop) = (one.clone(), file.clone(), over.clone());
        one.rt().spawn(async move {
            for n in 0u64.. {
                if stop.get() {
                    break;
                }
                writer.data().write(&mine, n % 8 * STRIPE, &[n as u8; 5000]).await.unwrap();
                writer.rt().sleep(Duration::from_micros(1)).await;
            }
        });
        let theirs = open(&two, "f", O_RDWR).await;
        for _ in 0..20 {
            let began = two.rt().now();
            two.data().fsync(&theirs, false).await.unwrap();
            let took = two.rt().now().since(began);
            assert!(took < Duration::from_secs(1), "{took:?} of simulated time");
        }
        over.set(true);
    });
}

/// Another program of the same client writes all the time, to pages that were written before and to others: what was written before an
/// fsync or a sync is waited for, and not what comes meanwhile.
#[test]
fn an_fsync_and_a_sync_come_to_their_end_although_the_same_client_writes_all_the_time() {
    let world = World::new(1, 2, OstConfig::default());
    let ((one, host), want) = (world.client(|_| {}), pattern(0, BYTES, 7));
    world.run(Duration::from_secs(3), async {
        let (file, over) = (create_striped(&one, "f").await, Rc::new(Cell::new(false)));
        one.data().write(&file, 4 * MIB, &want).await.unwrap();
        for at in [0, STRIPE, 5 * MIB, 5 * MIB + STRIPE] {
            let (writer, mine, stop) = (one.clone(), file.clone(), over.clone());
            one.rt().spawn(async move {
                for n in 0u64.. {
                    if stop.get() {
                        break;
                    }
                    writer.data().write(&mine, at + n % 16 * 4 * KIB, &[n as u8; 5000]).await.unwrap();
                    writer.rt().sleep(Duration::from_micros(10)).await;
                }
            });
        }
        for round in 0..10 {
            let began = one.rt().now();
            match round % 2 {
                0 => one.data().fsync(&file, false).await.unwrap(),
                _ => one.sync_all().await.unwrap(),
            }
            let took = one.rt().now().since(began);
            assert!(took < Duration::from_millis(200), "{took:?} of simulated time");
        }
        over.set(true);
    });
    (0..2).for_each(|i| world.lose_power(i));
    host.kill();
    one.abandon();
    (0..2).for_each(|i| world.start_oss(i));
    let (later, _) = world.client(|_| {});
    world.run(Duration::from_secs(600), async {
        let file = open(&later, "f", 0).await;
        assert!(later.data().read(&file, 4 * MIB, BYTES).await.unwrap().to_vec() == want, "what was synced is there");
    });
}
