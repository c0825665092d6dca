//! What goes on while an OST is away.
#![allow(clippy::unwrap_used)]
mod world;

use types::Fid;
use world::*;

#[test]
fn a_lookup_waits_a_moment_for_a_size_and_a_stat_until_it_is_known() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let (writer, _) = world.client(|_| {});
        let (other, _) = world.client(|_| {});
        world.run(Duration::from_secs(600), async {
            // Who writes a file keeps its size to itself.
            let file = create(&writer, "f").await;
            writer.data().write(&file, 0, &[5; 300_000]).await.unwrap();
            writer.data().fsync(&file, false).await.unwrap();
            world.lose_power(0);
            let soon = Duration::from_secs(2);
            let looked = other.rt().timeout(soon, other.lookup(&root(), Fid::ROOT, b"f")).await;
            let entry = looked.expect("a directory is locked meanwhile").unwrap();
            assert_eq!(
                (entry.attr.fid, entry.attr_cached),
                (file.fid(), false),
                "seed {seed}: nobody may keep that size"
            );
            let stat = other.rt().timeout(soon, other.getattr(&root(), file.fid(), None)).await;
            assert!(stat.is_none(), "seed {seed}: a size that nobody can know: {stat:?}");
            world.restart_oss(0).await;
            assert_eq!(other.getattr(&root(), file.fid(), None).await.unwrap().attr.size, 300_000, "seed {seed}");
        });
    }
}
