//! Clients of a cluster in one process, without a kernel in front: what failures, moves and other clients' changes become.
#![allow(clippy::unwrap_used)]
mod world;

use world::*;

#[test]
fn a_full_target_refuses_writes_keeps_what_it_took_and_takes_more_when_something_went() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "full", 1, 16 * MIB).await;
        let (c, other) = (world.client().await, world.client().await);
        let file = create(&c, Fid::ROOT, "f").await;
        let piece = vec![5; MIB as usize];
        let mut took = 0;
        let refused = loop {
            match c.data().write(&file, took, &piece).await {
                Ok(_) => took += MIB,
                Err(e) => break e,
            }
            assert!(took < 64 * MIB, "it never is full");
        };
        assert_eq!(refused, FsError::NoSpace);
        assert!(took >= 4 * MIB, "{took} bytes only");
        // What was taken is stored and sees no error; what was refused is nowhere.
        let stored = c.data().fsync(&file, false).await;
        assert_eq!(stored, Ok(()), "the refusal was told by the write");
        let fid = file.fid();
        for client in [&c, &other] {
            let size = client.getattr(&root(), fid, None).await.unwrap().attr.size;
            assert!((took..took + MIB).contains(&size), "{size} bytes, {took} taken");
            let reader = client.open(&root(), fid, 0).await.unwrap();
            for at in (0..took).step_by(piece.len()) {
                assert!(client.data().read(&reader, at, piece.len()).await.unwrap().to_vec() == piece, "at {at}");
            }
            client.release(&reader).await.unwrap();
        }
        let half = wire::mdt::SetattrRequest { valid: wire::mdt::SetBits::SIZE, size: 0, ..Default::default() };
        c.setattr(&root(), file.inode(), half, Some(&file)).await.unwrap();
        c.data().write(&file, 0, &piece).await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        c.release(&file).await.unwrap();
    });
}

#[test]
fn a_failed_write_back_reaches_every_open_descriptor_once_and_a_failed_store_never_says_yes() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "failed", 1, 64 * MIB).await;
        let c = world.client().await;
        let file = create(&c, Fid::ROOT, "f").await;
        c.data().write(&file, 0, &[1; 10_000]).await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        let second = c.open(&root(), file.fid(), O_RDWR).await.unwrap();
        c.data().write(&file, 0, &[2; 10_000]).await.unwrap();
        world.stores[0].close().await.unwrap();
        assert_eq!(c.data().fsync(&file, false).await, Err(FsError::Io));
        assert_eq!(file.flush_errors(), Ok(()), "told once by each descriptor");
        assert_eq!(second.flush_errors(), Err(FsError::Io), "the other one is told, too");
        assert_eq!(second.flush_errors(), Ok(()));
        let later = c.open(&root(), file.fid(), O_RDWR).await.unwrap();
        assert_eq!(later.flush_errors(), Ok(()), "it was not open then");
        for _ in 0..2 {
            c.data().write(&later, 0, &[3; 10_000]).await.unwrap();
            assert_eq!(c.data().fsync(&later, false).await, Err(FsError::Io), "a failed store stays failed");
            assert_eq!(c.data().write(&later, 0, &[3; 100]).await, Ok(0), "it needs nothing of its page");
            let part = c.data().write(&later, 200, &[3; 100]).await;
            assert_eq!(part, Err(FsError::Io), "what was not taken is gone, and what lies between cannot be read");
            assert_eq!(
                c.data().fsync(&later, false).await,
                Err(FsError::Io),
                "a part of a page fails like a whole one"
            );
        }
    });
}

#[test]
fn a_client_learns_of_osts_that_joined_after_it() {
    on_a_shard(async |rt| {
        let world = World::new(rt.clone(), "later", 1, 64 * MIB).await;
        let (early, none) = (world.client().await, ClusterKey::none());
        let identity = StoreIdentity { cluster: 0x57a1, fsname: "stria".into(), ost: OstIndex(1), uuid: 8 };
        let store: Rc<dyn ObjectStore> = MemoryStore::new(&rt, identity, 64 * MIB);
        let nid = Nid::Local("oss-later-second".into());
        let window = Duration::from_secs(5);
        let oss = start_oss(&rt, vec![store], &nid, &world.mds_nid, &none, window, &OstConfig::default()).unwrap();
        register_ost(&rt, &oss.oss.osts()[0], &world.mds_nid, &none, &nid).await.unwrap();
        assert!(early.osts().answers(OstIndex(1), PATIENCE).await, "it is told without asking");
        let later = join(&rt, ClientConfig::new(world.mds_nid.clone()), 2, PATIENCE).await.unwrap();
        // New files go to the first target until the metadata server has objects of the second.
        let on_the_second = async {
            for i in 0.. {
                let name = format!("f{i}");
                let file = create(&later, Fid::ROOT, &name).await;
                let lov = later.getxattr(&root(), file.fid(), b"lustre.lov").await.unwrap();
                let (_, layout) = layout::xattr::decode_layout(&lov).unwrap();
                if layout.objects()[0].ost == OstIndex(1) {
                    later.data().write(&file, 0, b"bytes").await.unwrap();
                    later.release(&file).await.unwrap();
                    return name;
                }
            }
            unreachable!("names do not end")
        };
        let name = rt.timeout(PATIENCE, on_the_second).await.expect("the second target is never used");
        let found = lookup(&early, Fid::ROOT, name.as_bytes()).await;
        let file = early.open(&root(), found.attr.fid, 0).await.unwrap();
        assert_eq!(early.data().read(&file, 0, 100).await.unwrap().to_vec(), b"bytes");
    });
}

#[test]
fn a_client_follows_a_target_that_comes_back_at_another_address() {
    on_a_shard(async |rt| {
        let world = World::new(rt.clone(), "moves", 1, 64 * MIB).await;
        let (c, none) = (world.client().await, ClusterKey::none());
        let file = create(&c, Fid::ROOT, "f").await;
        c.data().write(&file, 0, b"before").await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        world.oss.server.stop();
        // Not on the target yet, and asked for again when it is back.
        c.data().write(&file, 6, b" and after").await.unwrap();
        let nid = Nid::Local("oss-moves-elsewhere".into());
        let store: Rc<dyn ObjectStore> = world.stores[0].clone();
        let window = Duration::from_secs(5);
        let oss = start_oss(&rt, vec![store], &nid, &world.mds_nid, &none, window, &OstConfig::default()).unwrap();
        register_ost(&rt, &oss.oss.osts()[0], &world.mds_nid, &none, &nid).await.unwrap();
        let synced = rt.timeout(PATIENCE, c.data().fsync(&file, false)).await;
        synced.expect("the client does not look for the target elsewhere").unwrap();
        let other = rt.timeout(PATIENCE, world.client()).await.expect("a new client goes where the target is");
        let found = lookup(&other, Fid::ROOT, b"f").await;
        let again = other.open(&root(), found.attr.fid, 0).await.unwrap();
        assert_eq!(other.data().read(&again, 0, 100).await.unwrap().to_vec(), b"before and after");
    });
}

#[test]
fn a_time_that_was_set_holds_against_what_other_clients_wrote_before() {
    on_a_shard(async |rt| {
        let world = World::new(rt.clone(), "times", 1, 64 * MIB).await;
        let (a, b) = (world.client().await, world.client().await);
        let told = wire::mdt::SetattrRequest {
            valid: wire::mdt::SetBits::MTIME,
            mtime: types::WallTime(5_000_000_007),
            ..Default::default()
        };
        let mtime = async |c: &Rc<Client>, fid| c.getattr(&root(), fid, None).await.unwrap().attr.mtime;
        // Written and closed; written and still open, with pages that nobody saw yet.
        for (name, closed) in [("closed", true), ("open", false)] {
            let file = create(&a, Fid::ROOT, name).await;
            a.data().write(&file, 0, b"by the first").await.unwrap();
            if closed {
                a.release(&file).await.unwrap();
            }
            let found = lookup(&b, Fid::ROOT, name.as_bytes()).await;
            let fid = found.attr.fid;
            let inode = b.meta().inode(fid);
            b.setattr(&root(), &inode, told.clone(), None).await.unwrap();
            assert_eq!(mtime(&b, fid).await, told.mtime, "{name}: who set it");
            if !closed {
                assert_eq!(mtime(&a, fid).await, told.mtime, "{name}: who wrote and goes on");
                // Another write of theirs moves it, and setting it again holds against that, too.
                a.data().write(&file, 5, b"anew").await.unwrap();
                assert!(mtime(&a, fid).await > told.mtime && mtime(&b, fid).await > told.mtime, "{name}: written anew");
                b.setattr(&root(), &inode, told.clone(), None).await.unwrap();
                for c in [&b, &a] {
                    assert_eq!(mtime(c, fid).await, told.mtime, "{name}: set a second time");
                }
                a.release(&file).await.unwrap();
            }
            assert_eq!(mtime(&a, fid).await, told.mtime, "{name}: who wrote");
            assert_eq!(mtime(&b, fid).await, told.mtime, "{name}: who set it, afterwards");
            // Writing anew moves it again.
            let again = b.open(&root(), fid, O_RDWR).await.unwrap();
            b.data().write(&again, 0, b"later").await.unwrap();
            b.release(&again).await.unwrap();
            assert!(mtime(&a, fid).await > told.mtime, "{name}: written after it was set");
        }
    });
}

#[test]
fn data_far_behind_a_hole_is_found_with_one_question_per_object() {
    on_a_shard(async |rt| {
        let world = World::new(rt.clone(), "seek", 2, 64 * MIB).await;
        let c = world.client().await;
        let spec = layout::LayoutSpec::from_raw(65536, 2, -1).unwrap();
        let layout = layout::xattr::encode_spec(&spec);
        let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, layout: &layout, ..NewFile::default() };
        let file = c.create_open(&root(), Fid::ROOT, b"f", new).await.unwrap().1;
        let far = (1 << 50) + 3 * 65536;
        c.data().write(&file, far, &[7; 65536]).await.unwrap();
        c.data().write(&file, 65536, &[7; 4096]).await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        let inode = file.inode().clone();
        let asked = || c.osts().all().iter().map(|o| o.import().unwrap().counters().1).sum::<u64>();
        let before = asked();
        assert_eq!(c.data().seek(&inode, 0, false).await, Ok(65536));
        assert_eq!(c.data().seek(&inode, 65536, true).await, Ok(65536 + 4096));
        assert_eq!(c.data().seek(&inode, 65536 + 4096, false).await, Ok(far));
        assert_eq!(c.data().seek(&inode, far + 10, false).await, Ok(far + 10));
        assert_eq!(c.data().seek(&inode, far, true).await, Ok(far + 65536));
        assert_eq!(c.data().seek(&inode, far + 65536, false).await, Err(FsError::NoDevice));
        assert!(asked() - before <= 4 * 5, "{} requests", asked() - before);
    });
}
