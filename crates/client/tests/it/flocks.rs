//! Locks of programs (fcntl and flock) across restarts of the metadata server: nobody keeps one that its program does not know of, and
//! nobody is offered one again that he had given up.
use crate::world::*;
use client::FlockMode::{Exclusive, Shared, Unlock};
use client::{FlockMode, LockCall};

const LONG: Duration = Duration::from_secs(3600);

/// A lock of a whole file.
fn call(fid: Fid, whole: bool, mode: FlockMode, owner: u64) -> LockCall {
    let extent = if whole { Extent::ALL } else { Extent::new(0, 8) };
    LockCall { fid, whole, mode, extent, owner, pid: owner as u32 }
}
/// A file that everybody has closed.
async fn made(c: &Rc<Client>) -> Fid {
    let file = create(c, "f").await;
    c.release(&file).await.unwrap();
    file.fid()
}
/// A call of a task; the receiver has its result.
fn begin(
    c: &Rc<Client>,
    call: LockCall,
    wait: bool,
    signal: impl Future<Output = ()> + 'static,
) -> rt::sync::OneReceiver<Result<(), FsError>> {
    let ((tx, rx), c) = (rt::sync::oneshot(), c.clone());
    c.rt().clone().spawn(async move { tx.send(c.flocks().set_lock(call, wait, signal).await) });
    rx
}
async fn now(c: &Rc<Client>, call: LockCall) -> Result<(), FsError> {
    c.flocks().set_lock(call, false, std::future::pending()).await
}

/// The wait for a lock is interrupted about when the metadata server is restarted. Then the lock is given back.
#[test]
fn a_wait_that_is_interrupted_around_a_restart_leaves_no_lock() {
    for seed in 0..24 {
        let world = World::new(seed, 1, OstConfig::default());
        let whole = seed % 2 == 0;
        let clients = [world.client(|_| {}).0, world.client(|_| {}).0, world.client(|_| {}).0];
        let [one, two, three] = &clients;
        world.run(LONG, async {
            let fid = made(three).await;
            now(two, call(fid, whole, Exclusive, 2)).await.unwrap();
            let (signal, signalled) = rt::sync::oneshot::<()>();
            let waits = begin(one, call(fid, whole, Exclusive, 1), true, async move { _ = signalled.await });
            world.sim.sleep(Duration::from_millis(100)).await;
            world.kill_mds();
            let mut signal = Some(signal);
            if seed < 8 {
                world.sim.sleep(Duration::from_millis(300 * seed)).await;
                signal.take().unwrap().send(());
                world.sim.sleep(Duration::from_millis(10)).await;
            }
            world.restart_mds().await;
            if let Some(signal) = signal {
                while one.sessions().mdc().state() != ptlrpc::ImportState::Full {
                    world.sim.sleep(Duration::from_micros(20)).await;
                }
                world.sim.sleep(Duration::from_micros(40 * (seed - 8))).await;
                signal.send(());
            }
            assert_eq!(waits.await, Some(Err(FsError::Interrupted)), "seed {seed}");
            world.sim.sleep(Duration::from_secs(5)).await;
            now(two, call(fid, whole, Unlock, 2)).await.unwrap();
            world.sim.sleep(Duration::from_secs(5)).await;
            assert_eq!(now(three, call(fid, whole, Exclusive, 3)).await, Ok(()), "seed {seed}: nobody has it");
        });
    }
}

/// The same while the restarted server keeps those who ask for locks of the file waiting, for a client that is missing may have one: the
/// wait is withdrawn before the server knows of it.
#[test]
fn a_wait_that_is_interrupted_before_a_restarted_server_knows_of_it_leaves_no_lock() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let clients = [world.client(|_| {}).0, world.client(|_| {}).0, world.client(|_| {}).0];
        let ([one, two, three], (missing, host)) = (&clients, world.client(|_| {}));
        world.run(LONG, async {
            let file = create(&missing, "f").await;
            let fid = file.fid();
            now(two, call(fid, true, Exclusive, 2)).await.unwrap();
            let (signal, signalled) = rt::sync::oneshot::<()>();
            let waits = begin(one, call(fid, true, Exclusive, 1), true, async move { _ = signalled.await });
            // Longer than a client must have asked for nothing, so that service begins without it.
            world.sim.sleep(Duration::from_secs(40)).await;
            world.sim.cut(&host, &world.mds_host);
            world.kill_mds();
            world.restart_mds().await;
            while one.sessions().mdc().state() != ptlrpc::ImportState::Full {
                world.sim.sleep(Duration::from_millis(1)).await;
            }
            world.sim.sleep(Duration::from_millis(50)).await;
            signal.send(());
            assert_eq!(waits.await, Some(Err(FsError::Interrupted)), "seed {seed}");
            let asks = begin(three, call(fid, false, Exclusive, 3), false, std::future::pending());
            let early = three.rt().timeout(Duration::from_secs(1), asks).await;
            assert_eq!(early, None, "seed {seed}: nobody was missing");
            world.sim.heal(&host, &world.mds_host);
            world.sim.sleep(Duration::from_secs(15)).await;
            now(two, call(fid, true, Unlock, 2)).await.unwrap();
            world.sim.sleep(Duration::from_secs(5)).await;
            assert_eq!(now(three, call(fid, true, Exclusive, 3)).await, Ok(()), "seed {seed}: nobody has it");
        });
    }
}

/// Who converts a flock has given the old one up, whether or not he gets the new one: then it is another client's, which keeps it
/// whoever comes back first. `answered`: he has heard that he is to wait, or that he does not get it.
fn converts(seed: u64, waits: bool, answered: bool) {
    let world = World::new(seed, 1, OstConfig::default());
    let ((one, host), (two, _), (three, other)) = (world.client(|_| {}), world.client(|_| {}), world.client(|_| {}));
    world.run(LONG, async {
        let fid = made(&two).await;
        let lock = |mode, owner| call(fid, true, mode, owner);
        now(&one, lock(Shared, 1)).await.unwrap();
        now(&two, lock(Shared, 2)).await.unwrap();
        let next = begin(&three, lock(Exclusive, 3), true, std::future::pending());
        world.sim.sleep(Duration::from_millis(100)).await;
        if !answered {
            world.sim.cut_one_way(&world.mds_host, &host);
        }
        let converted = begin(&one, lock(Exclusive, 1), waits, std::future::pending());
        world.sim.sleep(Duration::from_millis(100)).await;
        now(&two, lock(Unlock, 2)).await.unwrap();
        assert_eq!(next.await, Some(Ok(())), "seed {seed}");
        if !answered {
            world.sim.reset(&world.mds_host, &host);
        }
        world.kill_mds();
        if !answered {
            world.sim.heal(&world.mds_host, &host);
        }
        let late = if seed.is_multiple_of(2) { &host } else { &other };
        world.sim.cut(late, &world.mds_host);
        world.restart_mds().await;
        world.sim.sleep(Duration::from_millis(200 * seed)).await;
        world.sim.heal(late, &world.mds_host);
        world.sim.sleep(Duration::from_secs(60)).await;
        let what = format!("seed {seed}, waits: {waits}, answered: {answered}");
        assert_eq!(now(&two, lock(Shared, 4)).await, Err(FsError::WouldBlock), "{what}: the third has it");
        now(&three, lock(Unlock, 3)).await.unwrap();
        let had = if waits { Ok(()) } else { Err(FsError::WouldBlock) };
        assert_eq!(converted.await, Some(had), "{what}");
        let free = if waits { Err(FsError::WouldBlock) } else { Ok(()) };
        assert_eq!(now(&two, lock(Exclusive, 5)).await, free, "{what}");
        assert_eq!(one.flocks().ranges_lost() + three.flocks().ranges_lost(), 0, "{what}");
    });
}

#[test]
fn a_flock_that_was_given_up_for_its_conversion_is_not_replayed_over_its_next_holder() {
    for seed in 0..8 {
        for (waits, answered) in [(true, true), (false, true), (true, false), (false, false)] {
            converts(seed, waits, answered);
        }
    }
}
