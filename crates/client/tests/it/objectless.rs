//! Bytes that are not written out when an OST dies, of files whose objects it does not have when it comes back: they are lost
//! where the file is there, with a name or open, and of no use to anybody where it was removed or replaced.
use crate::world::*;
use oss::store::ObjectStore;
use types::ObjectId;

/// A client that writes nothing out by itself.
fn lazy(c: &mut ClientConfig) {
    c.dirty_age_max = Duration::from_secs(100_000);
}

/// A file of 50,000 bytes that are not written out.
async fn unwritten(c: &Rc<Client>, name: &str) -> Rc<OpenFile> {
    let file = create(c, name).await;
    c.data().write(&file, 0, &[1; 50_000]).await.unwrap();
    file
}

/// The OST loses its power and comes back.
async fn dies_and_comes_back(world: &World, c: &Client) {
    world.lose_power(0);
    world.restart_oss(0).await;
    world.sim.sleep(Duration::from_secs(60)).await;
    let import = c.osts().all()[0].import().unwrap();
    assert_eq!((import.state(), import.evictions()), (ptlrpc::ImportState::Full, 0));
}

/// All objects of the OST go, behind everybody's back.
async fn loses_all_objects(world: &World) {
    let store = world.oss[0].running.borrow().as_ref().unwrap().1.clone().unwrap();
    let made = store.last_object(ObjectId::seq_of(OstIndex(0)));
    store.destroy((1..=made).map(|n| ObjectId::new(OstIndex(0), n)).collect(), None).await.unwrap();
    store.sync().await.unwrap();
}

#[test]
fn nothing_is_lost_with_files_that_were_removed_or_replaced_before_their_ost_died() {
    for seed in 0..6 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(lazy), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = unwritten(&one, "f").await;
            let fid = file.fid();
            one.release(&file).await.unwrap();
            drop(file);
            let by = if seed % 2 == 0 { &one } else { &two };
            if seed % 3 == 0 && seed % 2 == 1 {
                two.meta().unlink(&root(), Fid::ROOT, b"f", false).await.unwrap();
            } else {
                by.release(&create(by, "new").await).await.unwrap();
                by.meta().rename(&root(), (Fid::ROOT, b"new"), (Fid::ROOT, b"f"), 0).await.unwrap();
            }
            // Its object goes.
            world.sim.sleep(Duration::from_secs(10)).await;
            assert!(one.osts().unwritten_pages(fid) > 0, "seed {seed}: nothing is left to lose");
            dies_and_comes_back(&world, &one).await;
            assert_eq!(one.osts().unwritten_pages(fid), 0, "seed {seed}");
            assert_eq!(one.losses().text(), "", "seed {seed}: bytes of a file that is gone");
        });
    }
}

#[test]
fn a_file_that_is_there_has_lost_what_was_not_written_out_when_its_object_is_gone() {
    for (seed, metadata_server_dies) in [(1, false), (2, true)] {
        let world = World::new(seed, 1, OstConfig::default());
        let (one, _) = world.client(lazy);
        world.run(Duration::from_secs(3600), async {
            let file = unwritten(&one, "f").await;
            one.release(&file).await.unwrap();
            world.sim.sleep(Duration::from_secs(10)).await;
            loses_all_objects(&world).await;
            if metadata_server_dies {
                world.kill_mds();
                dies_and_comes_back(&world, &one).await;
                world.restart_mds().await;
                world.sim.sleep(Duration::from_secs(30)).await;
            } else {
                dies_and_comes_back(&world, &one).await;
            }
            assert_eq!(one.losses().text(), format!("{} 53248\n", file.fid()), "seed {seed}");
        });
    }
}

#[test]
fn what_was_not_written_out_of_a_file_that_stays_open_is_lost_with_its_object() {
    let world = World::new(1, 1, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(lazy), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        let file = unwritten(&one, "f").await;
        one.meta().unlink(&root(), Fid::ROOT, b"f", false).await.unwrap();
        let elsewhere = unwritten(&one, "g").await;
        let reader = open(&two, "g", 0).await;
        one.release(&elsewhere).await.unwrap();
        two.meta().unlink(&root(), Fid::ROOT, b"g", false).await.unwrap();
        world.sim.sleep(Duration::from_secs(10)).await;
        loses_all_objects(&world).await;
        dies_and_comes_back(&world, &one).await;
        let lost = one.losses().text();
        for fid in [file.fid(), reader.fid()] {
            assert!(lost.contains(&format!("{fid} 53248\n")), "{fid} is open: {lost}");
        }
        assert_eq!(one.data().fsync(&file, false).await, Err(FsError::Io));
    });
}
