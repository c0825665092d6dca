//! Targets that have no room for a request: nothing that a program wrote is lost, and no program hears of it.
use crate::world::*;

#[test]
fn every_byte_arrives_at_a_target_whose_scheduler_is_full_all_the_time() {
    let world = World::new(1, 1, OstConfig { dispatch_window: 1, ..OstConfig::default() });
    world.ost(0).set_params("ost.OSS.ost_io.nrs_queue_max", "2").unwrap();
    let tune = |c: &mut ClientConfig| (c.rpcs_in_flight_max, c.rpc_pages_max) = (32, 4);
    let (one, _) = world.client(tune);
    let (two, _) = world.client(tune);
    world.run(Duration::from_secs(600), async {
        let write = async |c: Rc<Client>, salt: u64| {
            for n in 0..4 {
                let file = create(&c, &format!("f{salt}-{n}")).await;
                for at in (0..2 * MIB).step_by(128 << 10) {
                    c.data().write(&file, at, &pattern(at, 128 << 10, salt + n)).await.unwrap();
                }
                assert_eq!(c.data().fsync(&file, false).await, Ok(()));
                c.release(&file).await.unwrap();
            }
        };
        rt::sync::join_all(vec![write(one.clone(), 10), write(two.clone(), 20)]).await;
        let refused: u64 = [&one, &two].iter().map(|c| c.osts().all()[0].import().unwrap().refusals()).sum();
        assert!(refused > 100, "{refused} refusals: the head was never full");
        // Each reads what the other wrote, many pieces at a time.
        for (c, salt) in [(&one, 20), (&two, 10)] {
            for n in 0..4 {
                let file = open(c, &format!("f{salt}-{n}"), 0).await;
                let reads = (0..16).map(|i| c.data().read(&file, i * (128 << 10), 128 << 10)).collect();
                let whole: Vec<u8> =
                    rt::sync::join_all(reads).await.into_iter().flat_map(|r| r.unwrap().to_vec()).collect();
                assert!(whole == pattern(0, 2 * MIB as usize, salt + n), "file {n} of {salt}");
                c.release(&file).await.unwrap();
            }
            assert_eq!(c.losses().text(), "");
        }
    });
}
