//! What another client waits for does not queue behind what this client asks for itself. Counted in RPCs, not in time.
use crate::world::*;

const READS: u64 = 3000;

/// A task of a client; the receiver completes when it has ended.
fn spawn(c: &Rc<Client>, work: impl Future<Output = ()> + 'static) -> rt::sync::OneReceiver<()> {
    let (tx, rx) = rt::sync::oneshot();
    c.rt().spawn(async move {
        work.await;
        tx.send(());
    });
    rx
}

/// How many read RPCs of a client go by while another one waits for what the first has not written out yet.
fn rpcs_that_go_first(seed: u64, flush_first: bool) -> u64 {
    let world = World::new(seed, 1, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|c| c.rpcs_in_flight_max = 4), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        let large = create(&one, "large").await;
        one.data().write(&large, 0, &vec![1; 4 << 20]).await.unwrap();
        one.data().fsync(&large, false).await.unwrap();
        let dirty = create(&one, "dirty").await;
        one.data().write(&dirty, 0, &[7; 100_000]).await.unwrap();
        let direct = one.open(&root(), large.fid(), O_RDWR | O_DIRECT).await.unwrap();
        let reads: Vec<_> = (0..READS)
            .map(|i| {
                let (c, f) = (one.clone(), direct.clone());
                spawn(&one, async move {
                    assert_eq!(c.data().read(&f, 4096 * (25 + i % 900), 4096).await.unwrap().len(), 4096)
                })
            })
            .collect();
        let rpcs = || one.osts().all()[0].stats().read_rpcs;
        world.sim.sleep(Duration::from_millis(1)).await;
        let before = rpcs();
        assert!(before < READS / 4, "{before} of {READS} reads are over already");
        let synced = flush_first.then(|| {
            let (c, f) = (one.clone(), dirty.clone());
            spawn(&one, async move { assert_eq!(c.data().fsync(&f, false).await, Ok(())) })
        });
        let file = open(&two, "dirty", 0).await;
        assert!(two.data().read(&file, 0, 100_000).await.unwrap().to_vec() == [7; 100_000]);
        let overtook = rpcs() - before;
        for work in reads.into_iter().chain(synced) {
            work.await.unwrap();
        }
        overtook
    })
}

#[test]
fn a_flush_that_another_client_waits_for_goes_before_thousands_of_reads() {
    for seed in 0..4 {
        for flush_first in [false, true] {
            let overtook = rpcs_that_go_first(seed, flush_first);
            // Four at a time, over the few round trips that a lock takes.
            assert!(overtook < 200, "seed {seed}, {flush_first}: {overtook} of {READS} reads went first");
        }
    }
}

#[test]
fn what_waits_for_its_answer_under_a_lock_is_hastened_when_another_client_wants_the_lock() {
    let world = World::new(9, 1, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|c| c.rpcs_in_flight_max = 4), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        for name in ["large", "wanted"] {
            let file = create(&one, name).await;
            one.data().write(&file, 0, &vec![1; 4 << 20]).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            one.release(&file).await.unwrap();
        }
        let flags = O_RDWR | O_DIRECT;
        let (large, wanted) = (open(&one, "large", flags).await, open(&one, "wanted", flags).await);
        let read = |f: &Rc<OpenFile>, i: u64| {
            let (c, f) = (one.clone(), f.clone());
            spawn(&one, async move { drop(c.data().read(&f, 4096 * (i % 1000), 4096).await.unwrap()) })
        };
        let mut reads: Vec<_> = (0..READS).map(|i| read(&large, i)).collect();
        // Behind all those, under the lock that the other client is going to want.
        reads.extend((0..20).map(|i| read(&wanted, i)));
        let rpcs = || one.osts().all()[0].stats().read_rpcs;
        world.sim.sleep(Duration::from_millis(1)).await;
        let before = rpcs();
        let file = open(&two, "wanted", O_RDWR).await;
        two.data().write(&file, 0, &[2; 4096]).await.unwrap();
        let overtook = rpcs() - before;
        assert!(overtook < 300, "{overtook} of {READS} reads went first");
        for work in reads {
            work.await.unwrap();
        }
    });
}

#[test]
fn a_flush_finds_a_slot_although_questions_that_nobody_answers_hold_all_others() {
    let world = World::new(5, 1, OstConfig::default());
    let ((one, _), (two, _), (away, host)) = (world.client(|_| {}), world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        let mut files = Vec::new();
        for i in 0..150 {
            let file = create(&away, &format!("f{i}")).await;
            away.data().write(&file, 0, &[1; 5000]).await.unwrap();
            files.push(file);
        }
        let dirty = create(&one, "dirty").await;
        one.data().write(&dirty, 0, &[7; 100_000]).await.unwrap();
        let fids: Vec<Fid> = files.iter().map(|f| f.fid()).collect();
        for fid in &fids {
            one.lookup(&root(), Fid::ROOT, format!("f{}", fids.iter().position(|f| f == fid).unwrap()).as_bytes())
                .await
                .unwrap();
        }
        world.cut_off(&host, true);
        // The size of each of them is known to a client that nobody reaches: more questions than slots.
        let asked = Rc::new(Cell::new(0));
        for fid in fids {
            let (c, asked) = (one.clone(), asked.clone());
            drop(spawn(&one, async move {
                drop(c.getattr(&root(), fid, None).await);
                asked.set(asked.get() + 1);
            }));
        }
        let import = one.osts().all()[0].import().unwrap();
        while import.in_flight() < 60 {
            world.sim.sleep(Duration::from_millis(1)).await;
            assert_eq!(asked.get(), 0, "{} in flight", import.in_flight());
        }
        let file = open(&two, "dirty", 0).await;
        assert!(two.data().read(&file, 0, 100_000).await.unwrap().to_vec() == [7; 100_000]);
        assert_eq!(asked.get(), 0, "they were answered first");
        world.cut_off(&host, false);
    });
}

/// Something that a client does to a file under a write lock.
type Step = fn(Rc<Client>, Rc<OpenFile>) -> rt::sync::OneReceiver<()>;

fn steps() -> Vec<(&'static str, Step)> {
    fn allocate(c: Rc<Client>, f: Rc<OpenFile>, mode: u32) -> rt::sync::OneReceiver<()> {
        spawn(&c.clone(), async move { c.data().fallocate(&f, mode, 8192, 40_000).await.unwrap() })
    }
    let cut: Step = |c, f| {
        let cut = wire::mdt::SetattrRequest { valid: wire::mdt::SetBits::SIZE, size: 5000, ..Default::default() };
        spawn(&c.clone(), async move { c.setattr(&root(), f.inode(), cut, Some(&f)).await.unwrap() })
    };
    let uncached: Step = |c, f| {
        spawn(&c.clone(), async move {
            let direct = c.open(&root(), f.fid(), O_RDWR | O_DIRECT).await.unwrap();
            c.data().write(&direct, 4096, &[9; 8192]).await.unwrap();
        })
    };
    vec![
        ("cut", cut),
        ("reservation", |c, f| allocate(c, f, 0)),
        ("hole", |c, f| allocate(c, f, 3)),
        ("zeros", |c, f| allocate(c, f, 16)),
        ("uncached write", uncached),
    ]
}

#[test]
fn what_changes_a_file_under_a_lock_is_hastened_when_another_client_wants_the_lock() {
    for (what, step) in steps() {
        let world = World::new(11, 1, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|c| c.rpcs_in_flight_max = 4), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let large = create(&one, "large").await;
            one.data().write(&large, 0, &vec![1; 4 << 20]).await.unwrap();
            one.data().fsync(&large, false).await.unwrap();
            let direct = one.open(&root(), large.fid(), O_RDWR | O_DIRECT).await.unwrap();
            let wanted = create(&one, "wanted").await;
            one.data().write(&wanted, 0, &[7; 100_000]).await.unwrap();
            let reads: Vec<_> = (0..READS)
                .map(|i| {
                    let (c, f) = (one.clone(), direct.clone());
                    spawn(&one, async move { drop(c.data().read(&f, 4096 * (i % 1000), 4096).await.unwrap()) })
                })
                .collect();
            let rpcs = || one.osts().all()[0].stats().read_rpcs;
            let changed = step(one.clone(), wanted.clone());
            world.sim.sleep(Duration::from_millis(2)).await;
            let before = rpcs();
            let file = open(&two, "wanted", O_RDWR).await;
            two.data().write(&file, 0, &[2; 4096]).await.unwrap();
            let overtook = rpcs() - before;
            assert!(overtook < 300, "{what}: {overtook} of {READS} reads went first");
            for work in reads.into_iter().chain([changed]) {
                work.await.unwrap();
            }
        });
    }
}

#[test]
fn what_changes_a_file_under_a_lock_finds_a_slot_when_another_client_wants_the_lock() {
    for (what, step) in steps() {
        let world = World::new(5, 1, OstConfig::default());
        let ((one, _), (two, _), (away, host)) = (world.client(|_| {}), world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let mut fids = Vec::new();
            for i in 0..150 {
                let file = create(&away, &format!("f{i}")).await;
                away.data().write(&file, 0, &[1; 5000]).await.unwrap();
                one.lookup(&root(), Fid::ROOT, format!("f{i}").as_bytes()).await.unwrap();
                fids.push(file.fid());
            }
            let wanted = create(&one, "wanted").await;
            one.data().write(&wanted, 0, &[7; 100_000]).await.unwrap();
            world.cut_off(&host, true);
            let asked = Rc::new(Cell::new(0));
            for fid in fids {
                let (c, asked) = (one.clone(), asked.clone());
                drop(spawn(&one, async move {
                    drop(c.getattr(&root(), fid, None).await);
                    asked.set(asked.get() + 1);
                }));
            }
            let import = one.osts().all()[0].import().unwrap();
            while import.in_flight() < 60 {
                world.sim.sleep(Duration::from_millis(1)).await;
            }
            let changed = step(one.clone(), wanted.clone());
            world.sim.sleep(Duration::from_millis(50)).await;
            let before = import.counters().1;
            let file = open(&two, "wanted", O_RDWR).await;
            two.data().write(&file, 0, &[2; 4096]).await.unwrap();
            let overtook = import.counters().1 - before;
            assert!(asked.get() == 0 && overtook < 20, "{what}: {overtook} requests went first");
            assert_eq!(world.knows(one.sessions().id()), 2, "{what}: evicted for the lock that it kept");
            world.cut_off(&host, false);
            changed.await.unwrap();
        });
    }
}

#[test]
fn a_read_under_locks_of_several_osts_is_hastened_at_all_of_them_when_one_lock_is_wanted() {
    let world = World::new(12, 2, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|c| c.rpcs_in_flight_max = 4), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        let mut spec = layout::LayoutSpec::default();
        spec.stripe_size = Some(layout::StripeSize::new(64 << 10).unwrap());
        spec.stripe_count = layout::StripeCount::All;
        let layout = layout::xattr::encode_spec(&spec);
        let striped = async |c: &Rc<Client>, name: &str, bytes: usize| {
            let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, layout: &layout, ..NewFile::default() };
            let file = c.create_open(&root(), Fid::ROOT, name.as_bytes(), new).await.unwrap().1;
            c.data().write(&file, 0, &vec![1; bytes]).await.unwrap();
            c.data().fsync(&file, false).await.unwrap();
            file
        };
        let large = striped(&one, "large", 4 << 20).await;
        let theirs = striped(&two, "mapped", 128 << 10).await;
        let direct = one.open(&root(), large.fid(), O_RDWR | O_DIRECT).await.unwrap();
        let reads: Vec<_> = (0..2 * READS)
            .map(|i| {
                let (c, f) = (one.clone(), direct.clone());
                spawn(&one, async move { drop(c.data().read(&f, (i * (64 << 10)) % (4 << 20), 4096).await.unwrap()) })
            })
            .collect();
        let mapped = open(&one, "mapped", O_RDWR).await;
        mapped.inode().front().set_kernel_pages();
        let (c, f) = (one.clone(), mapped.clone());
        let filled = spawn(&one, async move { drop(c.data().read_pages(&f, 0, 128 << 10).await.unwrap()) });
        world.sim.sleep(Duration::from_millis(5)).await;
        let rpcs = || one.osts().all().iter().map(|o| o.stats().read_rpcs).sum::<u64>();
        let before = rpcs();
        // Of the first object only.
        two.data().write(&theirs, 0, &[2; 4096]).await.unwrap();
        let overtook = rpcs() - before;
        assert!(overtook < 600, "{overtook} of {} reads went first", 2 * READS);
        for work in reads.into_iter().chain([filled]) {
            work.await.unwrap();
        }
    });
}

/// Changes wait at the metadata server for a client that nobody reaches, more than there are slots; meanwhile another client wants the
/// lock of a file that was closed just now.
#[test]
fn the_end_of_an_open_that_another_client_waits_for_finds_a_slot_although_changes_hold_all_others() {
    use wire::mdt::{SetBits, SetattrRequest};
    async fn chmod(c: Rc<Client>, fid: Fid) {
        let request = SetattrRequest { valid: SetBits::MODE, mode: 0o600, ..SetattrRequest::default() };
        c.setattr(&root(), &c.meta().inode(fid), request, None).await.unwrap();
    }
    let world = World::new(5, 1, OstConfig::default());
    let ((one, _), (two, _), (away, host)) = (world.client(|_| {}), world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        let mut fids = Vec::new();
        for i in 0..150 {
            let name = format!("f{i}");
            fids.push(create(&away, &name).await.fid());
            one.lookup(&root(), Fid::ROOT, name.as_bytes()).await.unwrap();
            away.lookup(&root(), Fid::ROOT, name.as_bytes()).await.unwrap();
        }
        let closed = create(&one, "closed").await;
        one.data().write(&closed, 0, &[1; 100]).await.unwrap();
        one.data().fsync(&closed, false).await.unwrap();
        two.lookup(&root(), Fid::ROOT, b"closed").await.unwrap();
        one.getattr(&root(), closed.fid(), None).await.unwrap();
        world.cut_off(&host, true);
        let ended = Rc::new(Cell::new(0));
        for fid in fids {
            let (c, ended) = (one.clone(), ended.clone());
            drop(spawn(&one, async move {
                chmod(c, fid).await;
                ended.set(ended.get() + 1);
            }));
        }
        while one.sessions().mdc().in_flight() < 60 {
            world.sim.sleep(Duration::from_millis(1)).await;
            assert_eq!(ended.get(), 0, "{} in flight", one.sessions().mdc().in_flight());
        }
        world.sim.sleep(Duration::from_millis(10)).await;
        let wants = spawn(&two, chmod(two.clone(), closed.fid()));
        one.release_soon(&closed).await;
        wants.await.unwrap();
        assert_eq!(ended.get(), 0, "they were answered first");
        assert_eq!(one.in_use().of("opens"), 0, "its end was told");
        world.cut_off(&host, false);
    });
}
