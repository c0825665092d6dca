//! Opens whose answer takes a while to be taken in.
use crate::world::*;
use wire::{Flags, Header, Op};

/// Whether a message is the answer to an open.
fn is_open_reply(head: &rt::Head) -> bool {
    Header::from_bytes(head).is_ok_and(|h| h.op == Op::MdtOpen && h.flags.has(Flags::REPLY))
}

#[test]
fn a_file_that_was_opened_as_the_metadata_server_died_keeps_its_data_whoever_removes_it() {
    // Whoever comes back hears of the OST: a client that meets a file on one that it does not know has only just missed that.
    types::planted::plant(Some("map-untold-to-the-away"));
    for (seed, flags) in [(0, 0), (1, O_RDWR)] {
        let world = World::new(seed, 2, OstConfig::default());
        let fid = file_on_a_forgotten_ost(&world);
        // It has the map of before, and asks for that of now when it meets the file.
        let (two, host) = world.client_of(1);
        world.sim.cut(&host, &world.mds_host);
        world.start_oss(1);
        let (other, _) = world.client_of(2);
        // What it was told of the OST does not arrive any more.
        world.sim.reset(&host, &world.mds_host);
        world.sim.reset(&world.mds_host, &host);
        world.sim.heal(&host, &world.mds_host);
        world.run(Duration::from_secs(600), async {
            two.sessions().mdc().ready(Duration::from_secs(60)).await.unwrap();
            world.sim.sleep(Duration::from_secs(5)).await;
            assert_eq!(two.osts().all().len(), 1, "it knows the OST");
            let silent = world.mds_host.falls_silent(is_open_reply, 1);
            let opened = Rc::new(RefCell::new(None));
            let (into, opening) = (opened.clone(), two.clone());
            two.rt().spawn(async move {
                let done = opening.open(&root(), fid, flags).await;
                *into.borrow_mut() = Some(done);
            });
            silent.await;
            world.sim.sleep(Duration::from_millis(20)).await;
            assert!(opened.borrow().is_none(), "it asks for the map");
            world.kill_mds();
            world.restart_mds().await;
            while opened.borrow().is_none() {
                world.sim.sleep(Duration::from_millis(20)).await;
            }
            let file = opened.borrow_mut().take().unwrap().unwrap();
            other.meta().unlink(&root(), Fid::ROOT, b"there", false).await.unwrap();
            world.sim.sleep(Duration::from_secs(30)).await;
            assert!(read_all(&two, &file, MIB).await == [1; 1000], "flags {flags}");
            assert_eq!(world.mds_opens_of(two.sessions().id()), 1, "flags {flags}");
            two.release(&file).await.unwrap();
        });
    }
    types::planted::plant(None);
}

#[test]
fn a_nameless_file_whose_making_was_kept_and_never_answered_is_there_for_whoever_asks_again() {
    const O_TMPFILE: u32 = 0o20_200_000;
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, host), (other, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(600), async {
            one.getattr(&root(), Fid::ROOT, None).await.unwrap();
            let before = world.mds_inodes();
            // It is asked, and its answers do not arrive.
            world.sim.cut_one_way(&world.mds_host, &host);
            let opened = Rc::new(RefCell::new(None));
            let (into, opening) = (opened.clone(), one.clone());
            one.rt().spawn(async move {
                let new = NewFile { flags: O_RDWR | O_TMPFILE, mode: 0o600, ..NewFile::default() };
                let done = opening.create_open(&root(), Fid::ROOT, b"", new).await;
                *into.borrow_mut() = Some(done);
            });
            while world.mds_inodes() == before {
                world.sim.sleep(Duration::from_millis(1)).await;
            }
            other.sync_all().await.unwrap();
            assert!(opened.borrow().is_none(), "seed {seed}");
            world.kill_mds();
            world.sim.heal(&world.mds_host, &host);
            world.restart_mds().await;
            while opened.borrow().is_none() {
                world.sim.sleep(Duration::from_millis(20)).await;
            }
            let file = opened.borrow_mut().take().unwrap().unwrap().1;
            world.sim.sleep(Duration::from_secs(10)).await;
            one.data().write(&file, 0, &[1; 10_000]).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            assert!(read_all(&one, &file, MIB).await == [1; 10_000], "seed {seed}");
            assert_eq!(world.mds_opens_of(one.sessions().id()), 1, "seed {seed}");
            one.release(&file).await.unwrap();
            one.sync_all().await.unwrap();
            world.sim.sleep(Duration::from_secs(10)).await;
            assert_eq!(world.mds_inodes(), before, "seed {seed}: neither of both is left");
        });
    }
}
