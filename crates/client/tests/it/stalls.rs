//! Servers that stand still, as a stopped process or a paused host does: what their clients did not do in time meanwhile is
//! not held against them.
use crate::world::*;

const STILL: Duration = Duration::from_secs(90);

/// All servers stand still together while `meanwhile` happens, and until `STILL` has passed.
async fn stand_still(world: &World, meanwhile: impl AsyncFnOnce()) {
    let hosts: Vec<&Host> = world.oss.iter().map(|o| &o.host).chain([&world.mds_host]).collect();
    let end = world.sim.now() + STILL;
    hosts.iter().for_each(|h| h.stop_process());
    meanwhile().await;
    world.sim.sleep(end.since(world.sim.now())).await;
    hosts.iter().for_each(|h| h.continue_process());
}

/// Writes something that is written out under a callback only.
async fn dirty(c: &Rc<Client>) -> Rc<OpenFile> {
    let file = create(c, "f").await;
    c.data().write(&file, 0, &[7; 100_000]).await.unwrap();
    file
}

fn nobody_was_evicted(world: &World, c: &Client) {
    assert_eq!(world.knows(c.sessions().id()), 1 + world.oss.len());
    assert!(c.osts().all().iter().all(|o| o.import().unwrap().evictions() == 0) && c.sessions().mdc().evictions() == 0);
}

#[test]
fn clients_are_not_silent_while_their_servers_stand_still() {
    for seed in 0..6 {
        let world = World::new(seed, 2, OstConfig::default());
        let (c, _) = world.client(|c| c.dirty_age_max = Duration::from_secs(3600));
        world.run(Duration::from_secs(3600), async {
            let file = dirty(&c).await;
            for _ in 0..3 {
                stand_still(&world, async || ()).await;
                world.sim.sleep(Duration::from_secs(30)).await;
                nobody_was_evicted(&world, &c);
            }
            assert_eq!(c.data().fsync(&file, false).await, Ok(()));
        });
    }
}

#[test]
fn a_callback_that_a_stopped_server_sent_is_answered_when_it_goes_on() {
    for seed in 0..30 {
        let world = World::new(seed, 1, OstConfig::default());
        let tune = |c: &mut client::ClientConfig| c.dirty_age_max = Duration::from_secs(3600);
        let ((one, _), (two, _)) = (world.client(tune), world.client(tune));
        world.run(Duration::from_secs(3600), async {
            let _file = dirty(&one).await;
            let (reader, ended) = (two.clone(), rt::sync::oneshot());
            two.rt().spawn(async move {
                let file = open(&reader, "f", 0).await;
                ended.0.send(reader.data().read(&file, 0, 100_000).await.unwrap().to_vec());
            });
            // Sooner or later after that the callback goes out.
            world.sim.sleep(Duration::from_micros(200 * seed)).await;
            stand_still(&world, async || ()).await;
            assert!(ended.1.await.unwrap() == [7; 100_000]);
            nobody_was_evicted(&world, &one);
            nobody_was_evicted(&world, &two);
        });
    }
}

#[test]
fn a_recovery_window_does_not_pass_while_the_server_stands_still() {
    for seed in 0..6 {
        let world = World::new(seed, 1, OstConfig::default());
        let (c, host) = world.client(|c| c.dirty_age_max = Duration::from_secs(3600));
        world.run(Duration::from_secs(3600), async {
            let file = dirty(&c).await;
            world.cut_off(&host, true);
            world.kill_mds();
            world.lose_power(0);
            world.restart_mds().await;
            world.restart_oss(0).await;
            world.sim.sleep(Duration::from_secs(1)).await;
            stand_still(&world, async || {
                world.sim.sleep(Duration::from_secs(5)).await;
                world.cut_off(&host, false);
            })
            .await;
            assert_eq!(c.data().fsync(&file, false).await, Ok(()));
            nobody_was_evicted(&world, &c);
        });
    }
}

#[test]
fn a_flush_that_waits_in_the_osts_own_hands_is_waited_for() {
    for seed in 0..10 {
        let world = World::new(seed, 1, OstConfig::default());
        let tune = |c: &mut client::ClientConfig| c.dirty_age_max = Duration::from_secs(3600);
        let ((one, _), (two, _)) = (world.client(tune), world.client(tune));
        world.run(Duration::from_secs(3600), async {
            let _file = dirty(&one).await;
            let file = open(&two, "f", 0).await;
            // Longer than a callback has; ends at any time within one.
            world.oss[0].host.stall_disk(Duration::from_secs(40 + 17 * seed));
            assert!(read_all(&two, &file, 100_000).await == [7; 100_000]);
            nobody_was_evicted(&world, &one);
        });
    }
}

#[test]
fn an_ost_whose_disk_never_goes_on_keeps_nobody_waiting_for_ever() {
    let world = World::new(1, 1, OstConfig::default());
    let tune = |c: &mut client::ClientConfig| c.dirty_age_max = Duration::from_secs(3600);
    let ((one, _), (two, _)) = (world.client(tune), world.client(tune));
    world.run(Duration::from_secs(36_000), async {
        let _file = dirty(&one).await;
        let file = open(&two, "f", 0).await;
        world.oss[0].host.stall_disk(Duration::from_secs(3000));
        two.rt().spawn({
            let two = two.clone();
            async move { _ = two.data().read(&file, 0, 1).await }
        });
        world.sim.sleep(Duration::from_secs(700)).await;
        assert_eq!(world.knows(one.sessions().id()), 1, "the OST waits for ten minutes at most");
    });
}
