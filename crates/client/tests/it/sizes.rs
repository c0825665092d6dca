//! How large a striped file is for who asks while others change it: a size that it had meanwhile.
use std::pin::{Pin, pin};

use crate::world::*;
use types::WallTime;

async fn size_of(c: &Rc<Client>, fid: Fid) -> u64 {
    c.getattr(&root(), fid, None).await.unwrap().attr.size
}

/// A file whose end lies in one object is cut so that its new end lies in the other, which becomes longer by that. One client asks
/// for the size: the second object answers before the cut, the first one after it. What is found.
fn asked_amid_a_cut(bug: Option<&'static str>) -> u64 {
    types::planted::plant(bug);
    let world = World::new(1, 2, OstConfig::default());
    let ((one, _), (two, asker)) = (world.client(|_| {}), world.client(|_| {}));
    let found = world.run(Duration::from_secs(600), async {
        let file = create_striped(&one, "f").await;
        for at in [0, 4 * STRIPE] {
            one.data().write(&file, at, &[7; 100]).await.unwrap();
        }
        one.data().fsync(&file, false).await.unwrap();
        assert_eq!(size_of(&two, file.fid()).await, 4 * STRIPE + 100);
        world.sim.cut(&asker, &world.oss[0].host);
        let mut asks = pin!(size_of(&two, file.fid()));
        assert!(two.rt().timeout(Duration::from_millis(5), asks.as_mut()).await.is_none());
        cut(&one, &file, 3 * STRIPE + 50).await.unwrap();
        world.sim.heal(&asker, &world.oss[0].host);
        asks.await
    });
    types::planted::plant(None);
    found
}

#[test]
fn who_asks_for_the_size_amid_a_cut_finds_that_of_before_or_of_after() {
    // Two whole stripes of the first object, and nothing of the second.
    assert_eq!(asked_amid_a_cut(Some("sizes-torn")), 3 * STRIPE, "the answers come apart");
    assert_eq!(asked_amid_a_cut(None), 3 * STRIPE + 50);
}

/// One client cuts a file and makes it longer again and again; others ask for its size, whenever, with messages that overtake each
/// other. What one found that the file did not have between question and answer.
fn asked_again_and_again(seed: u64, bug: Option<&'static str>) -> Option<String> {
    types::planted::plant(bug);
    let sim = SimConfig { reorder: 0.1, shuffle: 0.2, latency_max: Duration::from_millis(2), ..SimConfig::new(seed) };
    let world = World::of(sim, 3, OstConfig::default());
    let clients = [(); 4].map(|()| world.client(|_| {}).0);
    // All sizes in turn, that of the change under way last; which of them is the last that is done.
    let (sizes, done, over) = (RefCell::new(vec![0]), Cell::new(0), Cell::new(false));
    let wrong = RefCell::new(None);
    world.run(Duration::from_secs(3600), async {
        let file = create_striped(&clients[0], "f").await;
        let changes = async {
            let mut rng = Rng::new(seed);
            let mut size = 0;
            for _ in 0..150 {
                let to = 1 + rng.below(9 * STRIPE);
                sizes.borrow_mut().push(to);
                if to > size && rng.below(2) == 0 {
                    clients[0].data().write(&file, to - 1, &[7]).await.unwrap();
                } else {
                    cut(&clients[0], &file, to).await.unwrap();
                }
                size = to;
                done.set(done.get() + 1);
            }
            over.set(true);
        };
        let asks = async |(c, mut rng): (&Rc<Client>, Rng)| {
            let mut asked = 0;
            while !over.get() {
                let first = done.get();
                let found = size_of(c, file.fid()).await;
                let had = sizes.borrow()[first..].to_vec();
                // What makes a file longer makes its objects longer one by one.
                let grows_past = had.windows(2).any(|s| s[0] < found && found < s[1]);
                if !had.contains(&found) && !grows_past {
                    *wrong.borrow_mut() = Some(format!("{found} bytes are found; since then {had:?}"));
                }
                asked += 1;
                // Under locks of its own it is answered at once.
                c.rt().sleep(Duration::from_micros(rng.below(3000))).await;
            }
            assert!(asked > 50, "seed {seed}: {asked} questions only");
        };
        let askers = clients[1..].iter().zip(10..).map(|(c, n)| asks((c, Rng::new(seed * 100 + n))));
        let askers = async { _ = rt::sync::join_all(askers.collect()).await };
        let all: Vec<Pin<Box<dyn Future<Output = ()>>>> = vec![Box::pin(changes), Box::pin(askers)];
        rt::sync::join_all(all).await;
    });
    types::planted::plant(None);
    wrong.take()
}

#[test]
fn sizes_that_are_asked_for_while_a_file_is_cut_again_and_again_are_of_one_moment() {
    let torn = (0..6).filter_map(|seed| asked_again_and_again(seed, Some("sizes-torn"))).count();
    assert!(torn > 0, "this does not happen here");
    for seed in 0..6 {
        assert_eq!(asked_again_and_again(seed, None), None, "seed {seed}");
    }
}

#[test]
fn a_size_costs_one_question_per_object_and_after_a_cut_once_two() {
    let world = World::new(1, 3, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(600), async {
        let file = create_striped(&one, "f").await;
        let questions = async || {
            let asks = || (0..3).map(|i| asked(&world, i, "ldlm_enqueue")).collect::<Vec<_>>();
            let before = asks();
            let size = size_of(&two, file.fid()).await;
            (size, asks().iter().zip(before).map(|(now, before)| now - before).collect::<Vec<_>>())
        };
        one.data().write(&file, 0, &pattern(0, 6 * STRIPE as usize, 3)).await.unwrap();
        for _ in 0..2 {
            assert_eq!(questions().await, (6 * STRIPE, vec![1; 3]));
        }
        cut(&one, &file, 100).await.unwrap();
        // The writer's locks are its again.
        one.data().write(&file, 0, &pattern(0, 6 * STRIPE as usize, 3)).await.unwrap();
        assert_eq!(questions().await, (6 * STRIPE, vec![2; 3]), "what was cut meanwhile is asked a second time");
        assert_eq!(questions().await, (6 * STRIPE, vec![1; 3]));
    });
}

/// A client knows one object of a file and waits for the next one; meanwhile another client makes the file longer, over the end of the
/// first object. What the first client reads.
fn read_amid_growth(bug: Option<&'static str>, to: u64) -> Vec<u8> {
    types::planted::plant(bug);
    let world = World::new(1, 2, OstConfig::default());
    let ((one, _), (two, reader)) = (world.client(|_| {}), world.client(|_| {}));
    let found = world.run(Duration::from_secs(600), async {
        let file = create_striped(&one, "f").await;
        // The second object stays locked here, so that the reader has to ask for it.
        one.data().write(&file, STRIPE, &[7; 100]).await.unwrap();
        cut(&one, &file, 0).await.unwrap();
        one.data().write(&file, 0, &[7; 100]).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        let there = open(&two, "f", 0).await;
        assert_eq!(two.data().read(&there, 0, 1000).await.unwrap().to_vec(), [7; 100]);
        world.sim.cut(&reader, &world.oss[1].host);
        let mut reads = pin!(two.data().read(&there, 0, 2 * STRIPE as usize));
        assert!(two.rt().timeout(Duration::from_millis(5), reads.as_mut()).await.is_none());
        one.data().write(&file, 100, &vec![7; (to.min(STRIPE) - 100) as usize]).await.unwrap();
        one.data().write(&file, STRIPE, &vec![7; to.saturating_sub(STRIPE) as usize]).await.unwrap();
        world.sim.heal(&reader, &world.oss[1].host);
        reads.await.unwrap().to_vec()
    });
    types::planted::plant(None);
    found
}

#[test]
fn a_read_ends_where_the_file_ended_once_or_shows_what_was_written_behind() {
    for to in [200, STRIPE, STRIPE + 5000, 2 * STRIPE] {
        let found = read_amid_growth(None, to);
        assert!(found.len() == 100 || found.len() as u64 == to, "{} bytes of a file of 100, then {to}", found.len());
        assert!(found.iter().all(|b| *b == 7), "zeros stand where nobody wrote any, to {to}");
        let wrong = read_amid_growth(Some("grown-over-zeros"), to);
        assert!(wrong.contains(&0), "the bug is not seen, to {to}");
    }
}

/// Finds what programs with O_DIRECT or without read of a file that another client cuts and writes again, all of it one byte's.
fn read_amid_cuts(seed: u64, flags: u32, bug: Option<&'static str>) -> Option<String> {
    types::planted::plant(bug);
    let sim = SimConfig { shuffle: 0.2, latency_max: Duration::from_millis(2), ..SimConfig::new(seed) };
    let world = World::of(sim, 2, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    let (over, wrong) = (Cell::new(false), RefCell::new(None));
    world.run(Duration::from_secs(3600), async {
        let file = create_striped(&one, "f").await;
        one.data().write(&file, 0, &vec![7; 3 * STRIPE as usize]).await.unwrap();
        let there = open(&two, "f", flags).await;
        let changes = async {
            let mut rng = Rng::new(seed);
            for _ in 0..40 {
                cut(&one, &file, rng.below(2) * rng.below(3 * STRIPE)).await.unwrap();
                one.data().write(&file, 0, &vec![7; 3 * STRIPE as usize]).await.unwrap();
            }
            over.set(true);
        };
        let reads = async {
            while !over.get() {
                let found = two.data().read(&there, 0, 3 * STRIPE as usize).await.unwrap().to_vec();
                if let Some(at) = found.iter().position(|b| *b != 7) {
                    *wrong.borrow_mut() = Some(format!("seed {seed}: zeros at {at} of {}", found.len()));
                }
                world.sim.sleep(Duration::from_micros(500)).await;
            }
        };
        rt::sync::join_all(vec![Box::pin(changes) as Pin<Box<dyn Future<Output = ()>>>, Box::pin(reads)]).await;
    });
    types::planted::plant(None);
    wrong.into_inner()
}

#[test]
fn a_read_beside_cuts_shows_no_zeros_that_the_file_never_had() {
    for seed in 0..6 {
        for flags in [0, O_DIRECT] {
            assert_eq!(read_amid_cuts(seed, flags, None), None, "flags {flags:o}");
        }
    }
    assert!((0..6).any(|seed| read_amid_cuts(seed, O_DIRECT, Some("cut-over-zeros")).is_some()), "the bug is not seen");
}

/// A read of a file of which one object ends before the file does, by a client that loses each lock as soon as nothing uses it.
#[test]
fn a_read_over_a_hole_goes_on_behind_it_where_no_lock_lasts() {
    let world = World::new(1, 3, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|c| c.locks_max = 0));
    world.run(Duration::from_secs(600), async {
        let file = create_striped(&one, "f").await;
        one.data().write(&file, 0, &[7; 100]).await.unwrap();
        one.data().write(&file, 2 * STRIPE, &[7; 100]).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        let mut whole = vec![0; 2 * STRIPE as usize + 100];
        whole[..100].fill(7);
        whole[2 * STRIPE as usize..].fill(7);
        for flags in [0, O_DIRECT] {
            let there = open(&two, "f", flags).await;
            let found = two.data().read(&there, 0, 4 * STRIPE as usize).await.unwrap();
            assert!(found.to_vec() == whole, "flags {flags:o}: {} of {} bytes", found.len(), whole.len());
        }
    });
}

/// A program writes behind what another client has not written out yet, and is killed: its open ends before the write does. What
/// everybody is told of the size afterwards, and what it is.
fn killed_amid_a_write(bug: Option<&'static str>) -> (u64, usize) {
    types::planted::plant(bug);
    let world = World::new(1, 1, OstConfig::default());
    let ((one, _), (two, _), (three, _)) = (world.client(|_| {}), world.client(|_| {}), world.client(|_| {}));
    let found = world.run(Duration::from_secs(600), async {
        let theirs = create(&two, "f").await;
        two.data().write(&theirs, 0, &[1; 10_000]).await.unwrap();
        two.release(&theirs).await.unwrap();
        let file = open(&one, "f", O_RDWR | O_DIRECT).await;
        world.oss[0].host.stall_disk(Duration::from_secs(5));
        let (writes, begun) = (file.clone(), one.clone());
        let write = async move { begun.data().write(&writes, 10_000, &[2; 5000]).await.map(drop) };
        let (killed, end_of) = (one.clone(), file.clone());
        let end = async move {
            killed.rt().sleep(Duration::from_millis(100)).await;
            killed.release(&end_of).await
        };
        let both: Vec<rt::LocalFuture<Result<(), FsError>>> = vec![Box::pin(write), Box::pin(end)];
        assert_eq!(rt::sync::join_all(both).await, [Ok(()), Ok(())]);
        one.sync_all().await.unwrap();
        one.rt().sleep(Duration::from_secs(5)).await;
        let size = size_of(&three, theirs.fid()).await;
        let reader = open(&three, "f", 0).await;
        (size, three.data().read(&reader, 0, 20_000).await.unwrap().len())
    });
    types::planted::plant(None);
    found
}

#[test]
fn a_write_that_outlives_its_open_is_in_the_size() {
    assert_eq!(killed_amid_a_write(None), (15_000, 15_000));
    assert_eq!(killed_amid_a_write(Some("outlived-open")).0, 10_000, "the planted bug shows");
}

/// One client makes a file longer whose end another one was told before; where that one finds data and the next hole then.
fn sought_after_growth(bug: Option<&'static str>) -> (Result<u64, FsError>, Result<u64, FsError>) {
    types::planted::plant(bug);
    let world = World::new(1, 2, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    let found = world.run(Duration::from_secs(600), async {
        let file = create_striped(&one, "f").await;
        one.data().write(&file, 0, &[7; 8192]).await.unwrap();
        one.release(&file).await.unwrap();
        let reader = open(&two, "f", 0).await;
        assert_eq!(size_of(&two, reader.fid()).await, 8192);
        let again = open(&one, "f", O_RDWR).await;
        one.data().write(&again, 8192, &[8; 8192]).await.unwrap();
        one.release(&again).await.unwrap();
        // Nothing is on its way any more.
        world.sim.sleep(Duration::from_secs(1)).await;
        let data = two.data().seek(reader.inode(), 8192, false).await;
        (data, two.data().seek(reader.inode(), 0, true).await)
    });
    types::planted::plant(None);
    found
}

#[test]
fn data_is_found_behind_the_end_that_a_client_was_told_before_others_wrote() {
    let wrong = sought_after_growth(Some("sought-by-old-size"));
    assert_eq!(wrong, (Err(FsError::NoDevice), Ok(8192)));
    assert_eq!(sought_after_growth(None), (Ok(8192), Ok(16384)));
}

#[test]
fn data_are_found_in_a_file_that_was_listed_and_never_looked_up() {
    let world = World::new(1, 2, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(600), async {
        let file = create_striped(&one, "f").await;
        one.data().write(&file, 0, &[7; 8192]).await.unwrap();
        one.release(&file).await.unwrap();
        world.sim.sleep(Duration::from_secs(1)).await;
        two.meta().readdir(&root(), Fid::ROOT, 0, 1 << 16, true).await.unwrap();
        let reader = two.open(&root(), file.fid(), 0).await.unwrap();
        assert_eq!(two.data().seek(reader.inode(), 0, false).await, Ok(0));
        assert_eq!(two.data().seek(reader.inode(), 0, true).await, Ok(8192));
    });
}

/// A program cuts a file that another one of the same client appends to; the OST is away when both begin. The size in the end.
fn appended_beside_a_cut(striped: bool, bug: Option<&'static str>) -> u64 {
    const O_APPEND: u32 = 0o2000;
    types::planted::plant(bug);
    let world = World::new(1, 2, OstConfig::default());
    let (c, host) = world.client(|_| {});
    let size = world.run(Duration::from_secs(600), async {
        let file = if striped { create_striped(&c, "f").await } else { create_on(&c, "f", 0).await };
        c.data().write(&file, 0, &[7; 2 * STRIPE as usize]).await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        let log = open(&c, "f", O_RDWR | O_APPEND).await;
        world.sim.cut(&host, &world.oss[0].host);
        let mut cutting = pin!(cut(&c, &file, 0));
        assert!(c.rt().timeout(Duration::from_millis(5), cutting.as_mut()).await.is_none());
        let mut appending = pin!(c.data().write(&log, 0, &[8]));
        let _ = c.rt().timeout(Duration::from_millis(5), appending.as_mut()).await;
        world.sim.heal(&host, &world.oss[0].host);
        cutting.await.unwrap();
        // One that did not wait has been answered.
        let _ = c.rt().timeout(Duration::from_secs(30), appending.as_mut()).await;
        c.data().fsync(&file, false).await.unwrap();
        size_of(&c, file.fid()).await
    });
    types::planted::plant(None);
    size
}

#[test]
fn an_append_beside_a_cut_of_the_same_client_goes_to_the_end_of_before_or_of_after() {
    assert_eq!(appended_beside_a_cut(false, Some("appended-amid-a-cut")), 2 * STRIPE + 1);
    for striped in [false, true] {
        let size = appended_beside_a_cut(striped, None);
        assert!(size <= 1, "{size}");
    }
}

/// A client that was told attributes sets a time of the file while another one has it open and has written to it, and `reads` it then.
/// What both find.
fn time_set_beside_a_writer(listed: bool, reads: bool, bug: Option<&'static str>) -> [WallTime; 2] {
    use wire::mdt::{SetBits, SetattrRequest};
    types::planted::plant(bug);
    let world = World::new(1, 2, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    let found = world.run(Duration::from_secs(600), async {
        one.release(&create_striped(&one, "f").await).await.unwrap();
        world.sim.sleep(Duration::from_secs(5)).await;
        let fid = if listed {
            let entries = two.meta().readdir(&root(), Fid::ROOT, 0, 1 << 16, true).await.unwrap().entries;
            entries.iter().find(|e| &e.name[..] == b"f").unwrap().fid
        } else {
            two.lookup(&root(), Fid::ROOT, b"f").await.unwrap().attr.fid
        };
        let reader = two.open(&root(), fid, 0).await.unwrap();
        size_of(&two, fid).await;
        let writer = open(&one, "f", O_RDWR).await;
        one.data().write(&writer, 0, &[7; 100]).await.unwrap();
        one.data().fsync(&writer, false).await.unwrap();
        world.sim.sleep(Duration::from_secs(1)).await;
        let request = SetattrRequest { valid: SetBits::MTIME, mtime: WallTime(1_000), ..SetattrRequest::default() };
        two.setattr(&root(), reader.inode(), request, None).await.unwrap();
        if reads {
            one.data().read(&writer, 0, 200).await.unwrap();
        }
        let mut found = Vec::new();
        for c in [&one, &two] {
            found.push(c.getattr(&root(), fid, None).await.unwrap().attr.mtime);
        }
        [found[0], found[1]]
    });
    types::planted::plant(None);
    found
}

/// A client sets a time of a file that another one has written and closed. What both find while somebody has it open for writing, and after
/// a close without a write.
fn time_set_before_a_writer_comes(opens: usize, bug: Option<&'static str>) -> Vec<WallTime> {
    use wire::mdt::{SetBits, SetattrRequest};
    types::planted::plant(bug);
    let world = World::new(1, 2, OstConfig::default());
    let both = [world.client(|_| {}).0, world.client(|_| {}).0];
    let found = world.run(Duration::from_secs(600), async {
        let written = create_striped(&both[0], "f").await;
        both[0].data().write(&written, 0, &[7; 3 * STRIPE as usize]).await.unwrap();
        both[0].release(&written).await.unwrap();
        world.sim.sleep(Duration::from_secs(20)).await;
        let fid = both[1].lookup(&root(), Fid::ROOT, b"f").await.unwrap().attr.fid;
        let request = SetattrRequest { valid: SetBits::MTIME, mtime: WallTime(1_000), ..SetattrRequest::default() };
        both[1].setattr(&root(), &both[1].meta().inode(fid), request, None).await.unwrap();
        let writer = open(&both[opens], "f", O_RDWR).await;
        let mut found = Vec::new();
        for c in &both {
            found.push(c.getattr(&root(), fid, None).await.unwrap().attr.mtime);
        }
        both[opens].release(&writer).await.unwrap();
        for c in &both {
            found.push(c.getattr(&root(), fid, None).await.unwrap().attr.mtime);
        }
        found
    });
    types::planted::plant(None);
    found
}

#[test]
fn a_time_that_is_set_while_nobody_writes_lasts_when_somebody_comes_to_write() {
    for opens in [0, 1] {
        let found = time_set_before_a_writer_comes(opens, Some("set-time-untold"));
        assert!(found.iter().any(|time| *time != WallTime(1_000)), "{found:?}");
        assert_eq!(time_set_before_a_writer_comes(opens, None), [WallTime(1_000); 4], "client {opens} opens it");
    }
}

#[test]
fn a_time_that_is_set_while_another_client_writes_lasts() {
    assert_ne!(time_set_beside_a_writer(false, false, Some("settled-by-old-attributes"))[1], WallTime(1_000));
    assert_ne!(time_set_beside_a_writer(false, true, Some("own-time-kept"))[0], WallTime(1_000));
    for (listed, reads) in [(false, false), (false, true), (true, false), (true, true)] {
        assert_eq!(
            time_set_beside_a_writer(listed, reads, None),
            [WallTime(1_000); 2],
            "listed {listed}, reads {reads}"
        );
    }
}
