//! A file on an OST that this client cannot name: its open fails, and nothing of it stays at the metadata server.
use crate::world::*;

#[test]
fn an_open_whose_answer_cannot_be_taken_in_is_closed_at_the_metadata_server() {
    let world = World::new(1, 2, OstConfig::default());
    let fid = file_on_a_forgotten_ost(&world);
    let (two, _) = world.client_of(1);
    world.run(Duration::from_secs(600), async {
        for flags in [0, O_RDWR] {
            let opened = two.open(&root(), fid, flags).await;
            assert_eq!(opened.map(|_| ()), Err(FsError::NoTarget), "flags {flags}");
            world.sim.sleep(Duration::from_secs(1)).await;
            let id = two.sessions().id();
            assert_eq!((world.mds_opens_of(id), two.in_use().of("opens")), (0, 0), "flags {flags}");
        }
        // What it can name it can use.
        let file = create(&two, "here").await;
        two.data().write(&file, 0, &[2; 1000]).await.unwrap();
        two.release(&file).await.unwrap();
    });
}
