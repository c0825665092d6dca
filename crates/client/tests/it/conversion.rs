//! A write lock that only readers want becomes a read lock: what was written stays cached where it was written.
use crate::world::*;

/// RPCs of both kinds that a client sent to its OST.
fn rpcs(c: &Client) -> u64 {
    c.osts().all()[0].import().unwrap().counters().1
}

#[test]
fn a_writer_whose_file_is_read_elsewhere_goes_on_reading_it_from_its_cache() {
    const ROUNDS: u64 = 50;
    let world = World::new(21, 1, OstConfig::default());
    let [(writer, _), (reader, _)] = [world.client(|_| ()), world.client(|_| ())];
    world.run(Duration::from_secs(3600), async {
        let out = create(&writer, "f").await;
        let input = open(&reader, "f", 0).await;
        writer.data().write(&out, 0, &vec![0; 64 << 10]).await.unwrap();
        let (sent, read) = (rpcs(&writer), rpcs(&reader));
        let mut fetched = 0;
        for round in 1..=ROUNDS {
            let data = vec![round as u8; 64 << 10];
            writer.data().write(&out, 0, &data).await.unwrap();
            assert_eq!(read_all(&reader, &input, MIB).await, data);
            // The writer looks at what it wrote: nobody has changed it.
            let before = rpcs(&writer);
            assert_eq!(writer.data().read(&out, 0, 64 << 10).await.unwrap().to_vec(), data);
            fetched += rpcs(&writer) - before;
            assert_eq!(read_all(&reader, &input, MIB).await, data);
        }
        let (sent, read) = (rpcs(&writer) - sent, rpcs(&reader) - read);
        println!("RPCs a round: writer {:.2}, reader {:.2}", sent as f64 / ROUNDS as f64, read as f64 / ROUNDS as f64);
        assert_eq!(fetched, 0, "the writer asked for what it had");
        assert!(sent <= 4 * ROUNDS, "{sent} RPCs of the writer: lock, write-out, conversion");
    });
}

#[test]
fn converted_locks_hold_across_restarts_and_give_way_to_writers() {
    for seed in 0..12 {
        let world = World::new(300 + seed, 1, OstConfig::default());
        let clients = [world.client(|_| ()), world.client(|_| ()), world.client(|_| ())];
        let mut rng = Rng::new(seed);
        world.run(Duration::from_secs(36_000), async {
            let first = create(&clients[0].0, "f").await;
            let mut files = vec![first];
            for (c, _) in &clients[1..] {
                files.push(open(c, "f", O_RDWR).await);
            }
            let mut model = vec![0u8; 40_000];
            clients[0].0.data().write(&files[0], 0, &model).await.unwrap();
            for step in 0..120u32 {
                let who = rng.below(3) as usize;
                let at = rng.below(39_000) as usize;
                if rng.chance(0.4) {
                    let len = 1 + rng.below(1000) as usize;
                    model[at..at + len].fill(step as u8);
                    clients[who].0.data().write(&files[who], at as u64, &model[at..at + len]).await.unwrap();
                } else {
                    let seen = read_all(&clients[who].0, &files[who], MIB).await;
                    assert!(seen == model, "seed {seed}, step {step}: client {who} reads something old");
                }
                if step % 30 == 29 {
                    world.lose_power(0);
                    world.sim.sleep(Duration::from_millis(rng.below(500))).await;
                    world.restart_oss(0).await;
                }
            }
        });
    }
}
