//! Full targets: who finds no space is told by write(2), and what write(2) answered is kept.
use crate::world::*;

const OST_BYTES: u64 = 32 * MIB;
const STEP: usize = 64 << 10;

fn small(seed: u64) -> World {
    let config = OstConfig { grant_initial_bytes: MIB / 2, grant_max_bytes: MIB, ..OstConfig::default() };
    World::sized(SimConfig::new(seed), 1, config, OST_BYTES)
}

/// Writes past the cache until there is no space; gives where the file ends.
async fn fill(c: &Rc<Client>, name: &str, from: u64) -> u64 {
    if from == 0 {
        c.release(&create(c, name).await).await.unwrap();
    }
    let file = open(c, name, O_RDWR | O_DIRECT).await;
    let mut at = from;
    loop {
        match c.data().write(&file, at, &pattern(at, STEP, 9)).await {
            Ok(_) => at += STEP as u64,
            Err(e) => {
                assert_eq!(e, FsError::NoSpace);
                c.release(&file).await.unwrap();
                return at;
            }
        }
    }
}

#[test]
fn what_was_written_with_grant_is_kept_when_others_of_the_same_file_find_no_space() {
    let mut refused = 0;
    for seed in 0..12 {
        let world = small(seed);
        let ((c, _), (other, _)) = (world.client(|_| {}), world.client(|_| {}));
        refused += world.run(Duration::from_secs(3600), async {
            let file = create(&c, "f").await;
            fill(&other, "filler", 0).await;
            let mut writers = Vec::new();
            for i in 0..8u64 {
                let ((tx, rx), me, fid) = (rt::sync::oneshot(), c.clone(), file.fid());
                c.rt().spawn(async move {
                    let own = me.open(&root(), fid, O_RDWR).await.unwrap();
                    // Every second page, so that pages with and without grant lie side by side.
                    let mut done = Ok(0);
                    for page in 0..24 {
                        let at = (page * 8 + i) * 4096;
                        done = done.and(me.data().write(&own, at, &pattern(at, 4096, i)).await);
                    }
                    tx.send((i, own, done));
                });
                writers.push(rx);
            }
            let (mut refused, mut kept) = (0, Vec::new());
            for writer in writers {
                let (i, own, done) = writer.await.unwrap();
                match done {
                    Ok(_) => {
                        assert_eq!(
                            c.data().fsync(&own, false).await,
                            Ok(()),
                            "seed {seed}: writer {i} was answered success"
                        );
                        kept.push(i);
                    }
                    Err(e) => {
                        assert_eq!(e, FsError::NoSpace);
                        refused += 1;
                    }
                }
                c.release(&own).await.unwrap();
            }
            let there = open(&other, "f", O_RDWR).await;
            for (i, page) in kept.into_iter().flat_map(|i| (0..24).map(move |p| (i, p))) {
                let at = (page * 8 + i) * 4096;
                let found = other.data().read(&there, at, 4096).await.unwrap().to_vec();
                assert!(
                    found == pattern(at, 4096, i),
                    "seed {seed}: page {page} of writer {i} is not what was written"
                );
            }
            refused
        });
    }
    assert!(refused > 0, "nobody found the target full");
}

#[test]
fn a_restarted_target_keeps_the_space_that_it_had_promised() {
    for seed in 0..6 {
        let world = small(seed);
        let tune = |c: &mut ClientConfig| c.dirty_age_max = Duration::from_secs(3600);
        let ((c, _), (other, _)) = (world.client(tune), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create(&c, "f").await;
            let bytes = pattern(0, 300 << 10, 3);
            c.data().write(&file, 0, &bytes).await.unwrap();
            let end = fill(&other, "filler", 0).await;
            world.lose_power(0);
            world.restart_oss(0).await;
            fill(&other, "filler", end).await;
            assert_eq!(c.data().fsync(&file, false).await, Ok(()), "seed {seed}");
            assert!(read_all(&other, &open(&other, "f", O_RDWR).await, 1 << 20).await == bytes, "seed {seed}");
        });
    }
}

#[test]
fn no_new_file_goes_to_an_ost_whose_store_has_just_failed() {
    for seed in 0..4 {
        let world = World::new(seed, 2, OstConfig::default());
        let (c, _) = world.client(|_| {});
        world.run(Duration::from_secs(3600), async {
            for i in 0..6 {
                let file = create(&c, &format!("before{i}")).await;
                c.data().write(&file, 0, b"before").await.unwrap();
                c.data().fsync(&file, false).await.unwrap();
            }
            let store = world.oss[1].running.borrow().as_ref().unwrap().1.clone().unwrap();
            store.abandon();
            let mut failed = 0;
            for i in 0..6 {
                let file = open(&c, &format!("before{i}"), O_RDWR | O_DIRECT).await;
                failed += usize::from(c.data().write(&file, 0, &[7; 4096]).await == Err(FsError::Io));
            }
            assert!(failed > 0, "seed {seed}: files of it answer EIO");
            // As long as a message takes, and nothing like the time between two questions.
            world.sim.sleep(Duration::from_millis(50)).await;
            for i in 0..20 {
                let file = create(&c, &format!("after{i}")).await;
                c.data().write(&file, 0, b"after").await.unwrap();
                assert_eq!(c.data().fsync(&file, false).await, Ok(()), "seed {seed}: after{i}");
            }
        });
    }
}

/// A new file over `count` OSTs from `first` on.
async fn create_on(c: &Rc<Client>, name: &str, first: u16, count: u16, flags: u32) -> Rc<OpenFile> {
    let mut spec = layout::LayoutSpec::default();
    spec.stripe_size = Some(layout::StripeSize::new(STEP as u64).unwrap());
    spec.stripe_count = layout::StripeCount::Exactly(count);
    spec.index = Some(OstIndex(first));
    let layout = layout::xattr::encode_spec(&spec);
    let new = NewFile { flags: flags | O_CREAT, mode: 0o644, layout: &layout, ..NewFile::default() };
    c.create_open(&root(), Fid::ROOT, name.as_bytes(), new).await.unwrap().1
}

#[test]
fn a_write_that_meets_a_full_target_half_way_tells_how_far_it_came() {
    const O_APPEND: u32 = 0o2000;
    const CALL: usize = 8 * STEP;
    for (seed, flags) in [(1, O_RDWR), (2, O_RDWR | O_DIRECT), (3, O_RDWR | O_APPEND)] {
        let config = OstConfig { grant_initial_bytes: MIB / 2, grant_max_bytes: MIB, ..OstConfig::default() };
        let world = World::sized(SimConfig::new(seed), 2, config, OST_BYTES);
        let ((c, _), (other, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create_on(&c, "f", 0, 2, flags).await;
            other.release(&create_on(&other, "filler", 1, 1, O_RDWR).await).await.unwrap();
            fill(&other, "filler", 1).await;
            let (mut at, mut short) = (0, 0);
            loop {
                let data = pattern(at, CALL, 5);
                match c.data().write_part(&file, at, &data, None).await {
                    Ok(w) => {
                        assert!(w.at == at && w.len > 0 && w.len <= CALL as u64, "{w:?} behind {at}");
                        short += u64::from(w.len < CALL as u64);
                        at += w.len;
                    }
                    Err(e) => break assert_eq!(e, FsError::NoSpace),
                }
                // What an append has written behind its count stays.
                if short > 0 && flags & O_APPEND != 0 {
                    break;
                }
            }
            assert!(short > 0, "flags {flags:o}: no write was short, {at} bytes are written");
            let told = pattern(0, at as usize, 5);
            let (here, there) = (read_all(&c, &file, 64 * MIB).await, open(&other, "f", O_RDWR).await);
            assert_eq!(c.data().fsync(&file, false).await, Ok(()));
            for (who, bytes) in [("the writer", here), ("another", read_all(&other, &there, 64 * MIB).await)] {
                assert!(bytes.starts_with(&told), "flags {flags:o}: {who} does not see what was counted");
                let more = bytes.len() - told.len();
                assert!(more == 0 || flags & O_APPEND != 0 && more < CALL, "flags {flags:o}: {more} bytes more");
            }
        });
    }
}
