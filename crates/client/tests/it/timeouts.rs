//! An OST whose disk is overloaded is waited for: nothing is sent again, and nobody is evicted.
use crate::world::*;
use ptlrpc::AdaptiveTimeouts;

#[test]
fn an_ost_with_an_overloaded_disk_is_neither_asked_again_nor_left() {
    let at_min = AdaptiveTimeouts::default().min;
    let world = World::new(1, 1, OstConfig::default());
    let (c, _) = world.client(|_| {});
    world.run(Duration::from_secs(360_000), async {
        let file = create(&c, "f").await;
        c.data().write(&file, 0, &[1; 10_000]).await.unwrap();
        assert_eq!(c.data().fsync(&file, false).await, Ok(()));
        let import = c.osts().all()[0].import().unwrap();
        let before = import.counters();
        assert_eq!(import.patience(), at_min);
        // An operation of the disk takes half a minute now, and a commit has several.
        world.oss[0].host.set_disk_slowness(1_000_000);
        c.data().write(&file, 0, &[2; 10_000]).await.unwrap();
        assert_eq!(c.data().fsync(&file, false).await, Ok(()));
        world.oss[0].host.set_disk_slowness(1);
        let after = import.counters();
        assert_eq!((after.0, after.2, import.evictions()), (before.0, before.2, 0));
        assert!(import.service_time() >= at_min * 5, "{:?}: the disk was not slow", import.service_time());
        assert!(import.early_replies() > 0);
        assert_eq!(read_all(&c, &file, 10_000).await, [2; 10_000]);
    });
    assert_eq!(world.knows(c.sessions().id()), 2);
}
