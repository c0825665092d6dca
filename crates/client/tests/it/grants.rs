//! The books: when everything is written out nothing is dirty any more, and client and target agree on the grant.
use crate::world::*;
use wire::mdt::{SetBits, SetattrRequest};

const O_TRUNC: u32 = 0o1000;
const FILE_BYTES: u64 = 2 * MIB;

/// The grant that a target has in its book for a client.
fn granted(ost: &oss::Ost, client: &Client) -> u64 {
    let text = String::from_utf8(ost.get_params("obdfilter.*.grants").remove(0).value.0).unwrap();
    let mine = format!("{}: ", client.sessions().id());
    text.lines().find_map(|l| l.strip_prefix(&mine)).map_or(0, |n| n.parse().unwrap())
}

/// One program's work on a file; errors are allowed, since targets die and transfers are damaged.
async fn work(c: Rc<Client>, name: &str, mut rng: Rng, steps: u64) {
    let file = create(&c, name).await;
    let direct = c.open(&root(), file.fid(), O_RDWR | O_DIRECT).await.unwrap();
    for _ in 0..steps {
        let at = rng.below(FILE_BYTES);
        let len = 1 + rng.below(200 * KIB);
        match rng.below(12) {
            0..5 => _ = c.data().write(&file, at, &vec![3; len as usize]).await,
            5 => _ = c.data().write(&direct, at & !4095, &vec![4; (len as usize).next_multiple_of(4096)]).await,
            6 => _ = c.data().fsync(&file, false).await,
            7 => {
                let size = rng.below(at + 1);
                let request = SetattrRequest { valid: SetBits::SIZE, size, ..SetattrRequest::default() };
                let _ = c.setattr(&root(), file.inode(), request, Some(&file)).await;
            }
            8 => _ = c.data().fallocate(&file, 3, at, len).await,
            9 => {
                if let Ok(again) = c.open(&root(), file.fid(), O_RDWR | O_TRUNC).await {
                    let _ = c.release(&again).await;
                }
            }
            10 => _ = c.data().read(&file, at, len as usize).await,
            _ => c.rt().sleep(Duration::from_micros(rng.below(20_000))).await,
        }
    }
    let _ = c.data().fsync(&file, false).await;
    let _ = (c.release(&file).await, c.release(&direct).await);
}

fn books_agree(seed: u64, faults: bool) {
    let config = OstConfig { grant_initial_bytes: MIB, grant_max_bytes: 3 * MIB, ..OstConfig::default() };
    let world = World::new(seed, 1, config);
    let tune = |c: &mut ClientConfig| (c.dirty_bytes_max, c.rpc_pages_max) = (MIB, 16);
    let clients = [world.client(tune), world.client(tune)];
    let mut rng = Rng::new(seed ^ 0x6a);
    world.run(Duration::from_secs(36_000), async {
        let mut programs = Vec::new();
        for (i, (c, _)) in clients.iter().enumerate() {
            for p in 0..3 {
                // Two programs of a client share a file, and the clients share one.
                let name = if p == 0 { "shared".to_string() } else { format!("f{i}") };
                let ((tx, rx), me, rng) = (rt::sync::oneshot(), c.clone(), Rng::new(rng.next_u64()));
                c.rt().spawn(async move {
                    work(me, &name, rng, 60).await;
                    tx.send(());
                });
                programs.push(rx);
            }
        }
        for _ in 0..if faults { 14 } else { 2 } {
            world.sim.sleep(Duration::from_millis(rng.below(40))).await;
            match if faults { rng.below(10) } else { 9 } {
                0..4 => world.sim.corrupt_next_bulk(),
                4..7 => _ = world.sim.reset(&clients[rng.below(2) as usize].1, &world.oss[0].host),
                7 => {
                    world.lose_power(0);
                    world.sim.sleep(Duration::from_millis(rng.below(2000))).await;
                    world.restart_oss(0).await;
                }
                _ => _ = world.ost(0).take_grants_back(rng.below(2) * MIB).await,
            }
        }
        for program in programs {
            program.await.unwrap();
        }
        world.sim.sleep(Duration::from_secs(60)).await;
        for (i, (c, _)) in clients.iter().enumerate() {
            let (dirty, grant) = c.osts().all()[0].dirty_and_grant();
            assert_eq!(dirty, 0, "seed {seed}, client {i}: dirty bytes although all is written out");
            assert_eq!(grant, granted(&world.ost(0), c), "seed {seed}, client {i}: grant here and at the target");
        }
    });
}

#[test]
fn with_everything_written_out_nothing_is_dirty_and_both_sides_know_the_same_grant() {
    (0..20).for_each(|seed| books_agree(seed, false));
}

#[test]
fn damaged_transfers_lost_answers_and_restarts_leave_the_books_right() {
    (100..125).for_each(|seed| books_agree(seed, true));
}

#[test]
fn grant_that_an_idle_client_does_not_need_serves_one_that_writes() {
    const CAPACITY: u64 = 256 * MIB;
    let config = OstConfig { grant_initial_bytes: 96 * MIB, grant_max_bytes: 96 * MIB, ..OstConfig::default() };
    let world = World::sized(SimConfig::new(11), 1, config, CAPACITY);
    let tune = |c: &mut ClientConfig| (c.dirty_bytes_max, c.rpc_pages_max) = (32 * MIB, 256);
    let [(idle, _), (writer, _)] = [world.client(tune), world.client(tune)];
    world.run(Duration::from_secs(36_000), async {
        // What it has dirty keeps its grant: it must find room whatever the other one does.
        let kept = create(&idle, "kept").await;
        let promised = idle.osts().all()[0].dirty_and_grant().1;
        assert!(promised > 4 * MIB, "{promised} bytes: nobody had grant to give back");
        let file = create(&writer, "f").await;
        let mut stored = 0;
        while writer.data().write(&file, stored, &vec![5; MIB as usize]).await.is_ok()
            && writer.data().fsync(&file, false).await.is_ok()
        {
            stored += MIB;
            if stored == 8 * MIB {
                idle.data().write(&kept, 0, &vec![6; 300_000]).await.unwrap();
            }
            assert!(stored < CAPACITY);
        }
        println!("stored {stored}, promised {promised}, {:?}", world.ost(0).store().space());
        let left = granted(&world.ost(0), &idle);
        assert!(left <= 2 * MIB, "{left} of {promised} bytes stay promised when a write is refused");
        idle.data().fsync(&kept, false).await.unwrap();
        assert_eq!(read_all(&writer, &open(&writer, "kept", 0).await, MIB).await, vec![6; 300_000]);
        for c in [&idle, &writer] {
            let _ = c.sync_all().await;
            let (dirty, grant) = c.osts().all()[0].dirty_and_grant();
            assert_eq!((dirty, grant), (0, granted(&world.ost(0), c)), "grant here and at the target");
        }
    });
}

#[test]
fn a_client_that_writes_nothing_for_long_gives_grant_back_and_gets_it_again() {
    let config = OstConfig { grant_initial_bytes: 32 * MIB, grant_max_bytes: 64 * MIB, ..OstConfig::default() };
    let world = World::new(12, 1, config);
    let (c, _) = world.client(|c| (c.grant_shrink_interval, c.rpc_pages_max) = (Duration::from_secs(100), 256));
    let agreed = || {
        let grant = c.osts().all()[0].dirty_and_grant().1;
        assert_eq!(grant, granted(&world.ost(0), &c));
        grant
    };
    world.run(Duration::from_secs(3600), async {
        let file = create(&c, "f").await;
        c.data().write(&file, 0, &[1; 5000]).await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        world.sim.sleep(Duration::from_secs(60)).await;
        assert!(agreed() >= 32 * MIB - 8192, "it was not idle for long enough");
        world.sim.sleep(Duration::from_secs(60)).await;
        assert_eq!(agreed(), MIB, "one RPC's worth stays");
        for i in 0..64 {
            c.data().write(&file, i * MIB, &vec![2; MIB as usize]).await.unwrap();
        }
        c.data().fsync(&file, false).await.unwrap();
        assert!(agreed() > 16 * MIB);
    });
}

#[test]
fn grant_of_a_session_that_was_given_up_is_not_given_back_out_of_the_next_one() {
    let config = OstConfig { grant_initial_bytes: 32 * MIB, grant_max_bytes: 64 * MIB, ..OstConfig::default() };
    let world = World::new(14, 1, config);
    let (c, host) = world.client(|c| (c.grant_shrink_interval, c.rpc_pages_max) = (Duration::from_secs(20), 256));
    world.run(Duration::from_secs(3600), async {
        let file = create(&c, "f").await;
        c.data().write(&file, 0, &[1; 5000]).await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        let osc = c.osts().all()[0].clone();
        assert!(osc.dirty_and_grant().1 > 16 * MIB, "there is nothing to give back");
        world.cut_off(&host, true);
        osc.set_active(false);
        osc.set_active(true);
        // It counts as idle before there is another session.
        world.sim.sleep(Duration::from_secs(40)).await;
        let sessions = osc.import().unwrap().counters().0;
        world.cut_off(&host, false);
        osc.import().unwrap().ready(Duration::from_secs(60)).await.unwrap();
        assert!(osc.import().unwrap().counters().0 > sessions, "the session of before goes on");
        for _ in 0..2 {
            world.sim.sleep(Duration::from_secs(30)).await;
            assert_eq!(osc.dirty_and_grant(), (0, granted(&world.ost(0), &c)), "grant here and at the target");
        }
        assert_eq!(osc.dirty_and_grant().1, MIB, "one RPC's worth stays");
    });
}

#[test]
fn a_newcomer_is_promised_as_much_as_those_who_came_first_where_space_is_plentiful() {
    let world = World::sized(SimConfig::new(13), 1, OstConfig::default(), 16 << 30);
    let tune = |c: &mut ClientConfig| (c.dirty_bytes_max, c.rpc_pages_max) = (32 * MIB, 256);
    let first: Vec<_> = (0..3).map(|_| world.client(tune).0).collect();
    let (newcomer, _) = world.client(tune);
    world.run(Duration::from_secs(600), async {
        for (i, c) in first.iter().enumerate() {
            let file = create(c, &format!("first {i}")).await;
            for at in 0..16 {
                c.data().write(&file, at * MIB, &vec![1; MIB as usize]).await.unwrap();
            }
            c.data().fsync(&file, false).await.unwrap();
        }
        world.ost(0).take_grants_back(0).await;
        for c in &first {
            let file = open(c, "first 0", O_RDWR).await;
            for at in 0..8 {
                c.data().write(&file, at * MIB, &vec![2; MIB as usize]).await.unwrap();
            }
            c.data().fsync(&file, false).await.unwrap();
        }
        let held: Vec<u64> = first.iter().map(|c| granted(&world.ost(0), c)).collect();
        assert!(held.iter().all(|g| *g > 48 * MIB), "{held:?}");
        let file = create(&newcomer, "new").await;
        for at in 0..4 {
            newcomer.data().write(&file, at * MIB, &vec![3; MIB as usize]).await.unwrap();
            newcomer.data().fsync(&file, false).await.unwrap();
        }
        let (its, others) = (granted(&world.ost(0), &newcomer), first.iter().map(|c| granted(&world.ost(0), c)));
        assert!(its > 48 * MIB, "{its} bytes of grant after four MiB");
        assert!(others.min().unwrap() > 32 * MIB, "nobody was asked for what is not short");
    });
}
