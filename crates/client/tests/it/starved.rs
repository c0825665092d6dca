//! Nobody waits for ever because others go on: what is waited for is what was there when the wait began, and who came first goes first.
use crate::world::*;

const PAGE: usize = 4096;

/// A program that goes on writing to the first page of a file until `ends` is set. Its pause is far shorter than a write RPC takes.
fn goes_on_writing(c: &Rc<Client>, file: &Rc<OpenFile>) -> (Rc<Cell<bool>>, rt::sync::OneReceiver<u64>) {
    let (ends, (tx, rx)) = (Rc::new(Cell::new(false)), rt::sync::oneshot());
    let (c, file, over) = (c.clone(), file.clone(), ends.clone());
    c.rt().clone().spawn(async move {
        let mut written = 0;
        while !over.get() {
            c.data().write(&file, 0, &[written as u8; PAGE]).await.unwrap();
            written += 1;
            c.rt().sleep(Duration::from_micros(50)).await;
        }
        tx.send(written);
    });
    (ends, rx)
}

fn beside_a_writer(step: impl AsyncFn(&Rc<Client>, &Rc<OpenFile>)) {
    for seed in 0..3 {
        let world = World::new(seed, 2, OstConfig::default());
        let (c, _) = world.client(|_| {});
        world.run(Duration::from_secs(2), async {
            let file = create_striped(&c, "f").await;
            c.data().write(&file, 0, &vec![7; 3 * MIB as usize]).await.unwrap();
            let (ends, over) = goes_on_writing(&c, &file);
            world.sim.sleep(Duration::from_millis(1)).await;
            step(&c, &file).await;
            ends.set(true);
            assert!(over.await.unwrap() > 10, "it wrote meanwhile");
        });
    }
}

#[test]
fn a_direct_read_does_not_wait_for_what_is_written_after_it_began() {
    beside_a_writer(async |c, file| {
        let direct = c.open(&root(), file.fid(), O_RDWR | O_DIRECT).await.unwrap();
        let read = c.data().read(&direct, 0, 2 * PAGE).await.unwrap().to_vec();
        assert!(read.len() == 2 * PAGE && read[PAGE..] == [7; PAGE], "what was written before it");
        assert!(read[..PAGE].iter().all(|byte| *byte == read[0]), "one of the writes");
    });
}

#[test]
fn a_cut_does_not_wait_for_what_is_written_below_the_new_end_after_it_began() {
    for size in [MIB + 100, 5 * MIB] {
        beside_a_writer(async |c, file| {
            cut(c, file, size).await.unwrap();
            assert_eq!(c.getattr(&root(), file.fid(), None).await.unwrap().attr.size, size);
        });
    }
}

#[test]
fn reserving_and_zeroing_space_do_not_wait_for_what_is_written_after_they_began() {
    for (mode, at) in [(0, 0), (1, 0), (16, PAGE as u64), (3, PAGE as u64)] {
        beside_a_writer(async |c, file| {
            c.data().fallocate(file, mode, at, MIB).await.unwrap();
            if mode & !1 != 0 {
                let zeros = c.data().read(file, at, 64 * PAGE).await.unwrap().to_vec();
                assert!(zeros.len() == 64 * PAGE && zeros.iter().all(|byte| *byte == 0));
            }
        });
    }
}

/// A task of a client; the receiver completes when it has ended.
fn spawn(c: &Rc<Client>, work: impl Future<Output = ()> + 'static) -> rt::sync::OneReceiver<()> {
    let (tx, rx) = rt::sync::oneshot();
    c.rt().spawn(async move {
        work.await;
        tx.send(());
    });
    rx
}

/// Three OSTs, of which two are away while programs write to them all that they may; the cache is smaller than that. Then a program
/// writes to the third, and another client reads that file.
fn written_beside_osts_that_are_away(seed: u64) {
    let world = World::new(seed, 3, OstConfig::default());
    let ((c, host), (other, _)) = (world.client(|c| c.cache_bytes = 8 * MIB), world.client(|_| {}));
    world.run(Duration::from_secs(300), async {
        let mut files = Vec::new();
        for ost in 0..3 {
            let file = create_on(&c, &format!("f{ost}"), ost).await;
            // Its answers bring grant.
            for _ in 0..4 {
                c.data().write(&file, 0, &vec![1; MIB as usize]).await.unwrap();
                c.data().fsync(&file, false).await.unwrap();
            }
            files.push(file);
        }
        (0..2).for_each(|ost| world.sim.cut(&host, &world.oss[ost].host));
        let writers: Vec<_> = (0..2)
            .map(|ost: usize| {
                let (c, file) = (c.clone(), files[ost].clone());
                spawn(&c.clone(), async move {
                    for at in 0..64 {
                        c.data().write(&file, at * MIB, &pattern(at * MIB, MIB as usize, 3)).await.unwrap();
                    }
                })
            })
            .collect();
        world.sim.sleep(Duration::from_secs(1)).await;
        let dirty = |ost: usize| c.osts().all()[ost].dirty_and_grant().0;
        assert!(dirty(0) > MIB && dirty(1) > MIB, "{} and {} bytes wait", dirty(0), dirty(1));
        let third = spawn(&c, {
            let (c, file) = (c.clone(), files[2].clone());
            async move { c.data().write(&file, 5000, &[9; PAGE]).await.map(drop).unwrap() }
        });
        let theirs = open(&other, "f2", 0).await;
        let read = other.data().read(&theirs, 100, PAGE).await.unwrap().to_vec();
        assert!(read == [1; PAGE], "bytes that nobody wrote to");
        third.await.unwrap();
        let read = other.data().read(&theirs, 5000, PAGE).await.unwrap().to_vec();
        assert!(read == [9; PAGE]);
        assert!((0..3).all(|ost| world.ost_knows(ost, other.sessions().id())));
        assert_eq!(c.osts().all()[2].import().unwrap().evictions(), 0, "it kept no lock for long");
        (0..2).for_each(|ost| world.sim.heal(&host, &world.oss[ost].host));
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

#[test]
fn osts_that_are_away_leave_room_in_the_cache_for_writes_to_others() {
    (0..3).for_each(written_beside_osts_that_are_away);
}

#[test]
fn advice_about_a_file_whose_ost_is_away_does_not_pile_up() {
    const CALLS: u64 = 10_000;
    let world = World::new(1, 1, OstConfig::default());
    let (c, host) = world.client(|_| {});
    world.run(Duration::from_secs(60), async {
        let file = create(&c, "f").await;
        cut(&c, &file, 512 * MIB).await.unwrap();
        c.data().write(&file, 0, &[1; 4 * PAGE]).await.unwrap();
        world.sim.cut(&host, &world.oss[0].host);
        // What a task keeps: of a fetch the open, of a flush the OST's side.
        let osc = c.osts().all().remove(0);
        let kept = || Rc::strong_count(&file) + Rc::strong_count(&osc);
        let before = kept();
        for i in 1..CALLS {
            let range = Extent::at(i * 8 * PAGE as u64, PAGE as u64);
            c.data().advise(&file, client::Hint::WillNeed, range).await.unwrap();
            if i % 100 == 0 {
                world.sim.sleep(Duration::from_micros(10)).await;
            }
        }
        assert!(kept() < before + 100, "{} tasks fetch", kept() - before);
        assert!(c.in_use().of("claimed pages") < CALLS / 10, "{} pages", c.in_use().of("claimed pages"));
        let before = kept();
        for i in 1..CALLS {
            c.data().advise(&file, client::Hint::DontNeed, Extent::at(0, i * PAGE as u64)).await.unwrap();
        }
        assert!(kept() < before + 100, "{} tasks flush", kept() - before);
        world.sim.heal(&host, &world.oss[0].host);
        c.data().fsync(&file, false).await.unwrap();
    });
}

#[test]
fn a_large_write_has_its_turn_although_small_ones_go_on_where_little_may_be_dirty() {
    for seed in 0..3 {
        let world = World::new(seed, 1, OstConfig::default());
        let (c, _) = world.client(|_| {});
        world.run(Duration::from_secs(2), async {
            let (small, large) = (create(&c, "small").await, create(&c, "large").await);
            c.osts().all()[0].set_dirty_max(MIB);
            let over = Rc::new(Cell::new(false));
            let writers: Vec<_> = (0..32)
                .map(|i: u64| {
                    let (c, file, over) = (c.clone(), small.clone(), over.clone());
                    spawn(&c.clone(), async move {
                        for at in (i..1024).step_by(32).cycle().take_while(|_| !over.get()) {
                            c.data().write(&file, at * PAGE as u64, &[1; PAGE]).await.unwrap();
                            c.rt().sleep(Duration::from_micros(1)).await;
                        }
                    })
                })
                .collect();
            world.sim.sleep(Duration::from_millis(100)).await;
            c.data().write(&large, 0, &vec![2; MIB as usize]).await.unwrap();
            over.set(true);
            for writer in writers {
                writer.await.unwrap();
            }
        });
    }
}
