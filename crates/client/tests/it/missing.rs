//! An OST that was restarted goes on without clients that have not come back, where those had been quiet before.
use crate::world::*;
use oss::OstConfig;
use types::{Duration, FsError, MIB};

/// Longer than a client must have been quiet, and its record must have been committed.
const QUIET: Duration = Duration::from_secs(40);
/// Well before a recovery ends by itself.
const SOON: Duration = Duration::from_secs(6);

#[test]
fn an_ost_goes_on_without_a_quiet_client_and_keeps_for_it_what_it_may_hold() {
    for (seed, deaths) in [(0, 1), (1, 1), (2, 2), (3, 3)] {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(600), async {
            let (held, own) = (create(&one, "held").await, create(&two, "own").await);
            one.data().write(&held, 0, &[1; 100_000]).await.unwrap();
            two.data().write(&own, 0, &[2; 100_000]).await.unwrap();
            assert_eq!((one.data().fsync(&held, false).await, two.data().fsync(&own, false).await), (Ok(()), Ok(())));
            world.sim.sleep(QUIET).await;
            world.sim.cut(&host, &world.oss[0].host);
            // Under its lock, and known to nobody.
            one.data().write(&held, 0, &[3; 100_000]).await.unwrap();
            for _ in 0..deaths {
                world.lose_power(0);
                world.restart_oss(0).await;
                let work = async {
                    two.data().write(&own, 0, &[4; 100_000]).await.unwrap();
                    two.data().fsync(&own, false).await.unwrap();
                    let new = create(&two, &format!("new{}", world.sim.now().0)).await;
                    two.data().write(&new, 0, &[5; 100_000]).await.unwrap();
                    two.data().fsync(&new, false).await
                };
                let done = two.rt().timeout(SOON, work).await;
                assert_eq!(done, Some(Ok(())), "seed {seed}: the other one waits for who is missing");
            }
            let file = open(&two, "held", 0).await;
            let early = two.rt().timeout(Duration::from_secs(1), read_all(&two, &file, MIB)).await;
            assert!(early.is_none(), "seed {seed}: what the missing one may have locked was read");
            world.sim.heal(&host, &world.oss[0].host);
            assert!(read_all(&two, &file, MIB).await == [3; 100_000], "seed {seed}");
            assert_eq!(one.data().fsync(&held, false).await, Ok(()), "seed {seed}");
            assert_eq!(one.osts().all()[0].import().unwrap().evictions(), 0, "seed {seed}");
        });
    }
}

#[test]
fn who_asked_for_something_lately_is_waited_for() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(600), async {
            let (held, own) = (create(&one, "held").await, create(&two, "own").await);
            let first = create(&one, "first").await;
            one.data().write(&first, 0, &[1; 1000]).await.unwrap();
            two.data().write(&own, 0, &[2; 100_000]).await.unwrap();
            assert_eq!((one.data().fsync(&first, false).await, two.data().fsync(&own, false).await), (Ok(()), Ok(())));
            world.sim.sleep(QUIET).await;
            // A lock that no record of it has, and no commit of the store's own since.
            one.data().write(&held, 0, &[1; 100_000]).await.unwrap();
            world.sim.cut(&host, &world.oss[0].host);
            one.data().write(&held, 0, &[3; 100_000]).await.unwrap();
            world.lose_power(0);
            world.restart_oss(0).await;
            let file = open(&two, "held", O_RDWR).await;
            let overwrite = async {
                two.data().write(&file, 50_000, &[4; 10]).await.unwrap();
                two.data().fsync(&file, false).await
            };
            let early = two.rt().timeout(SOON, overwrite).await;
            assert_eq!(early, None, "seed {seed}: the OST goes on although a client may replay a write");
            world.sim.heal(&host, &world.oss[0].host);
            assert_eq!(one.data().fsync(&held, false).await, Ok::<(), FsError>(()), "seed {seed}");
            assert_eq!(one.osts().all()[0].import().unwrap().evictions(), 0, "seed {seed}");
        });
    }
}
