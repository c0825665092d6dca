//! What clients ask the metadata server for: look-ups, listings, opens and their locks, without a kernel in front.
#![allow(clippy::unwrap_used)]
mod world;

use world::*;

#[test]
fn attributes_of_a_listed_directory_cost_hardly_a_request_in_whatever_order_they_are_asked_for() {
    on_a_shard(async |rt| {
        const FILES: u64 = 3000;
        let world = World::new(rt, "listing", 2, 64 * MIB).await;
        let maker = world.client().await;
        for i in 0..FILES {
            let file = create(&maker, Fid::ROOT, &format!("file{i:05}")).await;
            maker.release(&file).await.unwrap();
        }
        // As `ls -l` does where the kernel asks for attributes with the names.
        let plus = world.client().await;
        let before = asked(&plus);
        let names = list(&plus, Fid::ROOT, true).await;
        assert_eq!(names.len() as u64, FILES);
        for name in &names {
            let entry = lookup(&plus, Fid::ROOT, name).await;
            assert!(entry.name_cached && entry.attr_cached, "a kernel may keep it");
        }
        let with_attributes = asked(&plus) - before;
        // Names first, then each by name in alphabetical order, as a shell's pattern does.
        let plain = world.client().await;
        let before = asked(&plain);
        let mut names = list(&plain, Fid::ROOT, false).await;
        names.sort();
        for name in &names {
            lookup(&plain, Fid::ROOT, name).await;
        }
        let names_first = asked(&plain) - before;
        println!("{FILES} entries: {with_attributes} requests with attributes, {names_first} with names first");
        assert!(with_attributes <= 4 + FILES / 500, "{with_attributes} requests for {FILES} entries");
        assert!(names_first <= FILES / 10, "{names_first} requests for {FILES} entries");
        // What another client changes is seen all the same.
        let third = lookup(&maker, Fid::ROOT, &names[3]).await.attr.fid;
        let valid = wire::mdt::SetBits::MODE;
        let chmod = wire::mdt::SetattrRequest { valid, mode: 0o600, ..Default::default() };
        maker.setattr(&root(), &maker.meta().inode(third), chmod, None).await.unwrap();
        maker.meta().unlink(&root(), Fid::ROOT, &names[4], false).await.unwrap();
        for c in [&plus, &plain] {
            assert_eq!(lookup(c, Fid::ROOT, &names[3]).await.attr.mode & 0o777, 0o600);
            assert!(c.lookup(&root(), Fid::ROOT, &names[4]).await.unwrap().attr.fid.is_zero());
        }
    });
}

#[test]
fn a_few_look_ups_in_a_listed_directory_fetch_nothing_else() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "few", 1, 64 * MIB).await;
        let maker = world.client().await;
        for i in 0..20 {
            let file = create(&maker, Fid::ROOT, &format!("f{i}")).await;
            maker.release(&file).await.unwrap();
        }
        let c = world.client().await;
        list(&c, Fid::ROOT, false).await;
        let before = asked(&c);
        for name in [b"f3", b"f7", b"f1"] {
            lookup(&c, Fid::ROOT, name).await;
        }
        assert_eq!(asked(&c) - before, 3);
    });
}

#[test]
fn a_reader_that_becomes_a_writer_sends_its_own_lock_back_along() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "upgrade", 1, 64 * MIB).await;
        let (a, b) = (world.client().await, world.client().await);
        let file = create(&a, Fid::ROOT, "f").await;
        a.data().write(&file, 0, &[7; 100_000]).await.unwrap();
        a.data().fsync(&file, false).await.unwrap();
        let theirs = b.open(&root(), lookup(&b, Fid::ROOT, b"f").await.attr.fid, O_RDWR).await.unwrap();
        for round in 0..5u8 {
            assert_eq!(b.data().read(&theirs, 0, 100_000).await.unwrap().len(), 100_000);
            assert_eq!(a.data().read(&file, 0, 100_000).await.unwrap().len(), 100_000);
            // Both have read locks; only the other's has to be called back. A whole page needs no read of the old one.
            let sent = a.osts().all()[0].import().unwrap().counters().1;
            a.data().write(&file, 0, &[round; 4096]).await.unwrap();
            let used = a.osts().all()[0].import().unwrap().counters().1 - sent;
            assert!(used <= 1, "{used} requests for a write lock");
            assert_eq!(b.data().read(&theirs, 0, 4096).await.unwrap().to_vec(), [round; 4096]);
        }
    });
}

#[test]
fn a_first_read_brings_its_lock_along_and_what_another_client_writes_comes_back_all_the_same() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "along", 1, 64 * MIB).await;
        let (maker, c) = (world.client().await, world.client().await);
        let asked_ost = || c.osts().all()[0].import().unwrap().counters().1;
        let text = |i: u8, len: usize| vec![i; len];
        for (i, len) in [(1, 4096), (2, 10), (3, 5000)] {
            let file = create(&maker, Fid::ROOT, &format!("f{i}")).await;
            maker.data().write(&file, 0, &text(i, len)).await.unwrap();
            maker.data().fsync(&file, false).await.unwrap();
            // Written and closed long ago: the writer holds no lock.
            maker.drop_caches().await;
            let theirs = lookup(&c, Fid::ROOT, format!("f{i}").as_bytes()).await.attr.fid;
            let theirs = c.open(&root(), theirs, O_RDWR).await.unwrap();
            let before = asked_ost();
            assert_eq!(c.data().read(&theirs, 0, 128 << 10).await.unwrap().to_vec(), text(i, len));
            assert_eq!(asked_ost() - before, 1, "requests for {len} bytes");
            assert_eq!(c.data().read(&theirs, 0, 128 << 10).await.unwrap().to_vec(), text(i, len));
            assert_eq!(asked_ost() - before, 1, "the pages are held under the lock");
            // A writer in the way, with pages that are not written out: the read waits for them.
            maker.data().write(&file, 0, &text(i + 10, len + 100)).await.unwrap();
            assert_eq!(c.data().read(&theirs, 0, 128 << 10).await.unwrap().to_vec(), text(i + 10, len + 100));
        }
    });
}

#[test]
fn a_readers_open_of_a_file_that_a_lock_keeps_asks_nobody_and_keeps_it_whatever_happens() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "untold", 1, 64 * MIB).await;
        let (maker, c) = (world.client().await, world.client().await);
        let made = create(&maker, Fid::ROOT, "f").await;
        maker.data().write(&made, 0, &[7; 5000]).await.unwrap();
        maker.release(&made).await.unwrap();
        let fid = lookup(&c, Fid::ROOT, b"f").await.attr.fid;
        let before = asked(&c);
        let files = [c.open(&root(), fid, 0).await.unwrap(), c.open(&root(), fid, 0).await.unwrap()];
        assert_ne!(files[0].id(), files[1].id());
        assert_eq!(c.data().read(&files[0], 0, 9000).await.unwrap().to_vec(), [7; 5000]);
        c.release(&c.open(&root(), fid, 0).await.unwrap()).await.unwrap();
        let first_told = asked(&c) - before;
        assert!(first_told <= 1, "{first_told} requests: when it was read, once");
        // Whoever may not read is told so, and whoever wants to write is known to the server.
        let stranger = Cred { uid: 1000, gid: 1000, ..Cred::default() };
        let chmod = wire::mdt::SetattrRequest { valid: wire::mdt::SetBits::MODE, mode: 0o600, ..Default::default() };
        c.setattr(&root(), &c.meta().inode(fid), chmod, None).await.unwrap();
        assert_eq!(c.open(&stranger, fid, 0).await.err(), Some(FsError::Access));
        let before = asked(&c);
        let writer = c.open(&root(), fid, O_RDWR).await.unwrap();
        assert_eq!(asked(&c) - before, 1);
        c.release(&writer).await.unwrap();
        // The lock leaves: the server learns of the opens that rested on it.
        lookup(&c, Fid::ROOT, b"f").await;
        let late = c.open(&root(), fid, 0).await.unwrap();
        c.drop_caches().await;
        maker.meta().unlink(&root(), Fid::ROOT, b"f", false).await.unwrap();
        maker.drop_caches().await;
        for file in files.iter().chain([&late]) {
            assert_eq!(c.getattr(&root(), fid, Some(file)).await.unwrap().attr.nlink, 0);
            assert_eq!(c.data().read(file, 0, 9000).await.unwrap().to_vec(), [7; 5000], "it has no name any more");
            c.release(file).await.unwrap();
        }
        c.drop_caches().await;
        let gone = maker.open(&root(), fid, 0).await.err();
        assert!(matches!(gone, Some(FsError::Stale | FsError::NotFound)), "{gone:?}");
    });
}

#[test]
fn a_file_that_is_open_untold_loses_its_name_but_not_its_bytes_and_gets_no_other_layout() {
    on_a_shard(async |rt| {
        let world = World::new(rt, "untold-gone", 2, 64 * MIB).await;
        let (maker, c) = (world.client().await, world.client().await);
        let made = create(&maker, Fid::ROOT, "f").await;
        maker.release(&made).await.unwrap();
        let fid = lookup(&c, Fid::ROOT, b"f").await.attr.fid;
        let before = asked(&c);
        let file = c.open(&root(), fid, 0).await.unwrap();
        assert_eq!(asked(&c), before);
        // Nothing was written to it yet: only a reader that the server does not know of is in the way.
        let relaid = async || {
            let lov = maker.getxattr(&root(), fid, b"lustre.lov").await.unwrap();
            maker.setxattr(&root(), fid, b"lustre.lov", Some(&lov), 0, false).await.unwrap();
            maker.getxattr(&root(), fid, b"lustre.lov").await.unwrap() != lov
        };
        assert!(!relaid().await);
        c.release(&file).await.unwrap();
        c.drop_caches().await;
        assert!(relaid().await, "nobody else may have it open");
        lookup(&c, Fid::ROOT, b"f").await;
        let file = c.open(&root(), fid, 0).await.unwrap();
        let writer = maker.open(&root(), fid, O_RDWR).await.unwrap();
        maker.data().write(&writer, 0, b"bytes").await.unwrap();
        maker.release(&writer).await.unwrap();
        maker.meta().unlink(&root(), Fid::ROOT, b"f", false).await.unwrap();
        maker.drop_caches().await;
        assert_eq!(c.data().read(&file, 0, 100).await.unwrap().to_vec(), b"bytes");
        c.release(&file).await.unwrap();
        c.drop_caches().await;
        let gone = maker.open(&root(), fid, 0).await.err();
        assert!(matches!(gone, Some(FsError::Stale | FsError::NotFound)), "{gone:?}");
    });
}
