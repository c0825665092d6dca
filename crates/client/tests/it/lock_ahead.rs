//! Locks before they are needed, and locks that are no wider than what is done under them.
use crate::world::*;

/// Bytes of a piece: the clients write pieces of one file in turn.
const PIECE: u64 = 64 << 10;
const PIECES: u64 = 16;

/// Requests for locks that both OSTs have had.
fn enqueues(world: &World) -> u64 {
    asked(world, 0, "ldlm_enqueue") + asked(world, 1, "ldlm_enqueue")
}

#[test]
fn clients_that_locked_their_pieces_ahead_ask_for_nothing_while_they_write_them() {
    let world = World::new(31, 2, OstConfig::default());
    let [(a, _), (b, _), (c, _)] = [world.client(|_| ()), world.client(|_| ()), world.client(|_| ())];
    world.run(Duration::from_secs(3600), async {
        let one = create_striped(&a, "f").await;
        let other = open(&b, "f", O_RDWR).await;
        let both = [(&a, &one), (&b, &other)];
        for piece in 0..PIECES {
            let (client, file) = both[(piece % 2) as usize];
            let locked = client.data().lock_ahead(file, true, Extent::at(piece * PIECE, PIECE)).await;
            assert_eq!(locked, Ok(()), "piece {piece}");
        }
        let before = enqueues(&world);
        for piece in 0..PIECES {
            let (client, file) = both[(piece % 2) as usize];
            client.data().write(file, piece * PIECE, &pattern(piece * PIECE, PIECE as usize, 1)).await.unwrap();
        }
        assert_eq!(enqueues(&world), before, "a lock was asked for, or one grew over the other's pieces");
        let third = open(&c, "f", 0).await;
        assert!(read_all(&c, &third, 2 * MIB).await == pattern(0, (PIECES * PIECE) as usize, 1));
    });
}

#[test]
fn a_lock_ahead_takes_the_range_from_whoever_has_it_and_nothing_else() {
    let world = World::new(32, 1, OstConfig::default());
    let [(a, _), (b, _)] = [world.client(|_| ()), world.client(|_| ())];
    world.run(Duration::from_secs(3600), async {
        let one = create(&a, "f").await;
        one.set_no_expand(true);
        a.data().write(&one, 0, &[1; 4096]).await.unwrap();
        a.data().write(&one, MIB, &[1; 4096]).await.unwrap();
        let (other, reads) = (open(&b, "f", O_RDWR).await, open(&b, "f", 0).await);
        assert_eq!(b.data().lock_ahead(&other, true, Extent::new(5, 5)).await, Err(FsError::Invalid));
        assert_eq!(b.data().lock_ahead(&reads, true, Extent::ALL).await, Err(FsError::BadHandle));
        b.data().lock_ahead(&reads, false, Extent::new(0, 4096)).await.unwrap();
        // Its own read lock is not in its own way.
        b.data().lock_ahead(&other, true, Extent::new(0, 100)).await.unwrap();
        let before = asked(&world, 0, "ldlm_enqueue");
        b.data().write(&other, 0, &[2; 4096]).await.unwrap();
        a.data().write(&one, MIB, &[3; 4096]).await.unwrap();
        assert_eq!(asked(&world, 0, "ldlm_enqueue"), before);
        assert_eq!(read_all(&a, &one, MIB + 4096).await[..4096], [2; 4096]);
        assert_eq!(read_all(&b, &reads, MIB + 4096).await[MIB as usize..], [3; 4096]);
    });
}

#[test]
fn locks_of_an_open_that_wants_them_narrow_leave_the_rest_to_others() {
    for narrow in [false, true] {
        let world = World::new(33, 1, OstConfig::default());
        let [(a, _), (b, _)] = [world.client(|_| ()), world.client(|_| ())];
        world.run(Duration::from_secs(3600), async {
            let one = create(&a, "f").await;
            let other = open(&b, "f", O_RDWR).await;
            one.set_no_expand(narrow);
            a.data().write(&one, 0, &[1; 4096]).await.unwrap();
            // Whether what one client asks for right behind what the other wrote was in that one's lock.
            let meet = async |at: u64| {
                b.data().lock_ahead(&other, true, Extent::at(at + MIB, MIB)).await.unwrap();
                let before = asked(&world, 0, "ldlm_enqueue");
                a.data().write(&one, at, &[2; 4096]).await.unwrap();
                asked(&world, 0, "ldlm_enqueue") > before
            };
            assert_eq!(meet(0).await, !narrow);
            // When the wish ends locks are wide again, once the file is no longer contended for.
            one.set_no_expand(false);
            world.sim.sleep(Duration::from_secs(60)).await;
            a.data().write(&one, 8 * MIB, &[1; 4096]).await.unwrap();
            assert!(meet(8 * MIB).await);
        });
    }
}

#[test]
fn of_locks_ahead_that_nobody_waits_for_a_bounded_number_is_under_way() {
    const UNDER_WAY_MAX: u64 = 64;
    let world = World::new(34, 1, OstConfig::default());
    let (a, _) = world.client(|_| ());
    world.run(Duration::from_secs(3600), async {
        let file = create(&a, "f").await;
        // The lock of the write does for no other page.
        file.set_no_expand(true);
        a.data().write(&file, 0, &[1; 4096]).await.unwrap();
        let before = asked(&world, 0, "ldlm_enqueue");
        let wishes = async |from: u64, count: u64| {
            for page in from..from + count {
                a.data().lock_ahead_behind(file.clone(), false, Extent::at((1 << 30) + page * 8192, 4096));
            }
            world.sim.sleep(Duration::from_secs(10)).await;
            asked(&world, 0, "ldlm_enqueue") - before
        };
        assert_eq!(wishes(0, 1000).await, UNDER_WAY_MAX, "each wish became a request");
        // What has come gives its place to the next.
        assert_eq!(wishes(2000, 1).await, UNDER_WAY_MAX + 1);
    });
}
