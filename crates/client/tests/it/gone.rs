//! Clients that died and cannot come back: whoever knows it and was left the key of their sessions tells the servers,
//! which then wait for nothing of theirs; nobody else is believed.
use crate::world::*;
use ptlrpc::SessionKey;

/// Leaves a file with bytes that are not written out, under locks, open, and dies.
async fn dies_in_the_middle(c: &Rc<Client>, host: &Host) {
    let file = create(c, "f").await;
    c.data().write(&file, 0, &[1; 10_000]).await.unwrap();
    c.data().fsync(&file, false).await.unwrap();
    c.data().write(&file, 10_000, &[2; 50_000]).await.unwrap();
    host.kill();
}

/// Reads the file, and changes what the dead one had locked.
async fn goes_on(c: &Rc<Client>) {
    let file = open(c, "f", O_RDWR).await;
    assert_eq!(read_all(c, &file, MIB).await.len(), 10_000);
    c.data().write(&file, 0, &[3; 100]).await.unwrap();
    c.data().fsync(&file, false).await.unwrap();
    c.meta().rename(&root(), (Fid::ROOT, b"f"), (Fid::ROOT, b"g"), 0).await.unwrap();
}

/// Far less than any server waits for a client of which it does not know whether it lives.
const SOON: Duration = Duration::from_secs(3);

#[test]
fn what_a_dead_client_had_locked_is_free_as_soon_as_its_successor_tells_of_it() {
    for seed in 0..6 {
        let world = World::new(seed, 2, OstConfig::default());
        let (one, host) = world.client(|_| {});
        let (id, sessions) = (one.sessions().id(), *one.sessions().key());
        world.run(Duration::from_secs(60), dies_in_the_middle(&one, &host));
        world.run(SOON, async {
            let two = world.client_again(&host).await;
            assert_eq!(world.knows(id), 3, "servers cannot know");
            two.sessions().tell_gone(id, &sessions).await.unwrap();
            assert_eq!(world.knows(id), 0);
            goes_on(&two).await;
            assert_eq!(two.sessions().tell_gone(id, &sessions).await, Ok(()), "it may be told again");
            assert_eq!(world.knows(two.sessions().id()), 3);
        });
    }
}

#[test]
fn restarted_servers_do_not_wait_for_a_client_that_its_successor_tells_of() {
    for seed in 0..6 {
        let world = World::new(seed, 2, OstConfig::default());
        let (one, host) = world.client(|_| {});
        let (id, sessions) = (one.sessions().id(), *one.sessions().key());
        world.run(Duration::from_secs(60), async {
            dies_in_the_middle(&one, &host).await;
            world.kill_mds();
            (0..2).for_each(|i| world.lose_power(i));
            for i in 0..2 {
                world.restart_oss(i).await;
            }
            world.restart_mds().await;
        });
        world.run(SOON, async {
            let two = world.client_again(&host).await;
            assert_eq!(world.knows(id), 3, "it is waited for");
            two.sessions().tell_gone(id, &sessions).await.unwrap();
            assert_eq!(world.knows(id), 0);
            goes_on(&two).await;
        });
    }
}

#[test]
fn nobody_tells_of_the_end_of_a_client_without_its_key() {
    let world = World::new(1, 1, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(60), async {
        let file = create(&one, "f").await;
        one.data().write(&file, 0, &[7; 5000]).await.unwrap();
        for forged in [*two.sessions().key(), SessionKey::new([0; 32]), one.sessions().key().at("stria-MDT0000")] {
            assert_eq!(two.sessions().tell_gone(one.sessions().id(), &forged).await, Err(FsError::NotPermitted));
        }
        // What one server was told is no proof at another.
        let of_ost = one.sessions().key().at("stria-OST0000");
        assert_eq!(two.sessions().mdc().tell_gone(one.sessions().id(), &of_ost).await, Err(FsError::NotPermitted));
        assert_eq!(
            two.sessions().tell_gone(two.sessions().id(), two.sessions().key()).await,
            Err(FsError::NotPermitted),
            "it speaks"
        );
        let before = world.mds_disbelieved();
        assert!(before >= 5, "{before} are counted");
        one.data().fsync(&file, false).await.unwrap();
        assert_eq!((world.knows(one.sessions().id()), one.sessions().mdc().evictions()), (2, 0));
        let seen = open(&two, "f", 0).await;
        assert_eq!(read_all(&two, &seen, MIB).await, [7; 5000]);
    });
}

#[test]
fn a_client_can_be_told_of_after_it_was_evicted_and_came_back() {
    let world = World::new(1, 1, OstConfig::default());
    let (one, host) = world.client(|_| {});
    let (id, sessions) = (one.sessions().id(), *one.sessions().key());
    world.run(Duration::from_secs(600), async {
        for _ in 0..3 {
            world.mds_evicts(id).await;
            while one.sessions().mdc().state() != ptlrpc::ImportState::Full || !world.mds_knows(id) {
                world.sim.sleep(Duration::from_secs(1)).await;
            }
        }
        dies_in_the_middle(&one, &host).await;
    });
    world.run(SOON, async {
        let two = world.client_again(&host).await;
        two.sessions().tell_gone(id, &sessions).await.unwrap();
        assert_eq!(world.knows(id), 0);
        goes_on(&two).await;
    });
}
