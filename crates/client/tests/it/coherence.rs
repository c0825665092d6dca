//! What goes past the cache beside what goes through it: no old byte outlives it in the cache, and none comes back.
use std::pin::Pin;

use crate::world::*;
use client::NewNode;
use wire::mdt::{AttrFlags, NodeKind, SetBits, SetattrRequest};

const BYTES: u64 = 192 * KIB;
const KEEP_SIZE: u32 = 1;
const PUNCH: u32 = 2;
const ZERO: u32 = 16;

async fn cut(c: &Rc<Client>, file: &Rc<OpenFile>, size: u64) {
    let request = SetattrRequest { valid: SetBits::SIZE, size, ..SetattrRequest::default() };
    c.setattr(&root(), file.inode(), request, Some(file)).await.unwrap();
}

/// One change of the file beside reads of it, in the model, too.
async fn change(
    c: &Rc<Client>,
    file: &Rc<OpenFile>,
    direct: &Rc<OpenFile>,
    rng: &mut Rng,
    model: &mut [u8],
    value: u8,
) {
    let from = rng.below(BYTES - 4096);
    let extent = Extent::new(from, from + 1 + rng.below(BYTES - from));
    let range = extent.start as usize..extent.end as usize;
    match rng.below(4) {
        0 => {
            c.data().fallocate(file, PUNCH | KEEP_SIZE, extent.start, extent.len()).await.unwrap();
            model[range].fill(0);
        }
        1 => {
            c.data().fallocate(file, ZERO, extent.start, extent.len()).await.unwrap();
            model[range].fill(0);
        }
        2 => {
            cut(c, file, extent.start).await;
            cut(c, file, BYTES).await;
            model[extent.start as usize..].fill(0);
        }
        _ => {
            let wide = extent.align_out(4096);
            c.data().write(direct, wide.start, &vec![value; wide.len() as usize]).await.unwrap();
            model[wide.start as usize..wide.end as usize].fill(value);
        }
    }
}

/// Reads here and there for a while, whatever comes.
fn spawn_reader(c: &Rc<Client>, file: &Rc<OpenFile>, mut rng: Rng) -> rt::sync::OneReceiver<()> {
    let ((tx, rx), c, file) = (rt::sync::oneshot(), c.clone(), file.clone());
    c.rt().clone().spawn(async move {
        for _ in 0..6 {
            let at = rng.below(BYTES);
            c.data().read(&file, at, 1 + rng.below(64 * KIB) as usize).await.unwrap();
            c.rt().sleep(Duration::from_micros(rng.below(300))).await;
        }
        tx.send(());
    });
    rx
}

#[test]
fn reads_beside_cuts_holes_and_uncached_writes_leave_no_old_bytes_in_the_cache() {
    for seed in 0..12 {
        let world = World::new(seed, 1, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|c| c.rpc_pages_max = 8), world.client(|_| {}));
        let mut rng = Rng::new(seed);
        world.run(Duration::from_secs(3600), async {
            let file = create(&one, "f").await;
            let direct = one.open(&root(), file.fid(), O_RDWR | O_DIRECT).await.unwrap();
            let mut model = vec![1; BYTES as usize];
            one.data().write(&file, 0, &model).await.unwrap();
            for round in 0..25 {
                let mut draws = Rng::new(rng.next_u64());
                // What the cache holds varies: most of it goes, so that readers load.
                one.data().fsync(&file, false).await.unwrap();
                one.data().advise(&file, client::Hint::DontNeed, Extent::new(0, BYTES)).await.unwrap();
                let readers: Vec<_> = (0..6).map(|_| spawn_reader(&one, &file, Rng::new(rng.next_u64()))).collect();
                for _ in 0..3 {
                    one.rt().sleep(Duration::from_micros(draws.below(300))).await;
                    change(&one, &file, &direct, &mut draws, &mut model, (round % 200) as u8 + 2).await;
                }
                for reader in readers {
                    reader.await.unwrap();
                }
                // A byte here and there brings whole pages of the cache back to the target.
                for _ in 0..8 {
                    let at = rng.below(BYTES);
                    one.data().write(&file, at, &[255]).await.unwrap();
                    model[at as usize] = 255;
                }
                let mine = read_all(&one, &file, BYTES).await;
                let wrong = mine.iter().zip(&model).position(|(a, b)| a != b);
                assert_eq!((mine.len(), wrong), (model.len(), None), "seed {seed}, round {round}: in the cache");
            }
            one.data().fsync(&file, false).await.unwrap();
            let other = open(&two, "f", 0).await;
            assert!(read_all(&two, &other, BYTES).await == model, "seed {seed}: at the target");
        });
    }
}

/// Appends through opens of its own, one after the other, `RECORDS` in all.
async fn append_often(c: Rc<Client>, fid: Fid, mut rng: Rng) {
    const O_APPEND: u32 = 0o2000;
    let mut left = RECORDS;
    while left > 0 {
        let file = c.open(&root(), fid, O_RDWR | O_APPEND).await.unwrap();
        let now = 1 + rng.below(left.min(8));
        for _ in 0..now {
            c.data().write(&file, 0, &[7; RECORD as usize]).await.unwrap();
        }
        left -= now;
        if rng.below(2) == 0 {
            c.release(&file).await.unwrap();
        } else {
            c.release_soon(&file).await;
        }
        c.rt().sleep(Duration::from_micros(rng.below(3000))).await;
    }
}
const RECORDS: u64 = 24;
const RECORD: u64 = 61;

#[test]
fn the_size_after_the_last_of_several_closes_is_that_of_all_writes() {
    for seed in 0..200 {
        let sim = SimConfig { reorder: 0.05, shuffle: 0.2, ..SimConfig::new(seed) };
        let world = World::of(sim, 2, OstConfig::default());
        let writers = [(); 2].map(|()| world.client(|_| {}).0);
        let [other, late] = [(); 2].map(|()| world.client(|_| {}).0);
        let mut rng = Rng::new(seed);
        world.run(Duration::from_secs(3600), async {
            let file = create(&writers[0], "f").await;
            writers[0].release(&file).await.unwrap();
            let mut programs = Vec::new();
            for i in 0..4 {
                programs.push(append_often(writers[i % 2].clone(), file.fid(), Rng::new(rng.next_u64())));
            }
            rt::sync::join_all(programs).await;
            for round in 0..5 {
                // Later ones find every close at the metadata server.
                for c in [&other, &writers[0], &writers[1]] {
                    let size = c.getattr(&root(), file.fid(), None).await.unwrap().attr.size;
                    assert_eq!(size, 4 * RECORDS * RECORD, "seed {seed}, round {round}");
                }
                other.rt().sleep(Duration::from_millis(10)).await;
            }
            // A writer has brought it home alone by now.
            let attr = late.getattr(&root(), file.fid(), None).await.unwrap().attr;
            assert_eq!(attr.size, 4 * RECORDS * RECORD, "seed {seed}");
            assert!(attr.flags & AttrFlags::SIZE_KNOWN != 0, "seed {seed}: everybody has to ask");
        });
    }
}

/// Stops a client's process for moments: what came meanwhile is there all at once.
async fn stutter(host: Host, sim: &Sim, mut rng: Rng, done: &std::cell::Cell<u32>) {
    while done.get() > 0 {
        sim.sleep(Duration::from_micros(rng.below(2000))).await;
        host.stop_process();
        sim.sleep(Duration::from_micros(rng.below(3000))).await;
        host.continue_process();
    }
}

#[test]
fn appends_of_several_clients_never_land_on_each_other() {
    for seed in 0..60 {
        let sim = SimConfig { reorder: 0.05, shuffle: 0.2, ..SimConfig::new(seed) };
        let world = World::of(sim, 1, OstConfig::default());
        let writers = [(); 2].map(|()| world.client(|_| {}));
        let mut rng = Rng::new(seed);
        world.run(Duration::from_secs(3600), async {
            let file = create(&writers[0].0, "f").await;
            writers[0].0.release(&file).await.unwrap();
            let left = std::cell::Cell::new(4u32);
            let mut programs: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
            for (client, host) in &writers {
                for _ in 0..2 {
                    let appends = append_often(client.clone(), file.fid(), Rng::new(rng.next_u64()));
                    let left = &left;
                    programs.push(Box::pin(async move {
                        appends.await;
                        left.set(left.get() - 1);
                    }));
                }
                let (looks, fid, left) = (client.clone(), file.fid(), &left);
                programs.push(Box::pin(async move {
                    while left.get() > 0 {
                        looks.getattr(&root(), fid, None).await.unwrap();
                        looks.rt().sleep(Duration::from_micros(50)).await;
                    }
                }));
                programs.push(Box::pin(stutter(host.clone(), &world.sim, Rng::new(rng.next_u64()), left)));
            }
            rt::sync::join_all(programs).await;
            let reader = open(&writers[0].0, "f", 0).await;
            let size = writers[0].0.getattr(&root(), file.fid(), None).await.unwrap().attr.size;
            let bytes = read_all(&writers[0].0, &reader, MIB).await;
            let wanted = (4 * RECORDS * RECORD) as usize;
            assert_eq!(
                (size as usize, bytes.len(), bytes.iter().all(|b| *b == 7)),
                (wanted, wanted, true),
                "seed {seed}"
            );
        });
    }
}

/// What one client has written for sure, byte by byte from the begin.
#[derive(Default)]
struct Written {
    bytes: std::cell::Cell<u64>,
    /// Programs that still write.
    left: std::cell::Cell<u32>,
}

/// Makes the file longer by a page or so at a time, with pauses of up to `pause_us` between.
async fn lengthen(c: &Rc<Client>, fid: Fid, mut rng: Rng, written: &Written, pause_us: u64) {
    let file = c.open(&root(), fid, O_RDWR).await.unwrap();
    for _ in 0..40 {
        let (at, len) = (written.bytes.get(), 1 + rng.below(9000));
        c.data().write(&file, at, &vec![7; len as usize]).await.unwrap();
        written.bytes.set(at + len);
        c.rt().sleep(Duration::from_micros(rng.below(pause_us))).await;
    }
    c.release(&file).await.unwrap();
    written.left.set(written.left.get() - 1);
}

/// Reads what was written for sure, here and there.
async fn read_written(seed: u64, c: &Rc<Client>, fid: Fid, mut rng: Rng, written: &Written) {
    let file = c.open(&root(), fid, 0).await.unwrap();
    while written.left.get() > 0 {
        let sure = written.bytes.get();
        let from = sure.saturating_sub(rng.below(30_000));
        let bytes = c.data().read(&file, from, (sure - from) as usize).await.unwrap().to_vec();
        let wrong = bytes.iter().position(|b| *b != 7);
        assert_eq!((bytes.len() as u64, wrong), (sure - from, None), "seed {seed}: from {from} of {sure}");
        c.rt().sleep(Duration::from_micros(rng.below(200))).await;
    }
    c.release(&file).await.unwrap();
}

#[test]
fn a_reader_finds_what_others_have_written_beside_late_answers_about_the_size() {
    for seed in 0..60 {
        let sim = SimConfig { reorder: 0.05, shuffle: 0.2, ..SimConfig::new(seed) };
        let world = World::of(sim, 1, OstConfig::default());
        let (writer, (reader, host)) = (world.client(|_| {}).0, world.client(|_| {}));
        let mut rng = Rng::new(seed);
        world.run(Duration::from_secs(3600), async {
            let file = create(&writer, "f").await;
            let (fid, written) = (file.fid(), Written::default());
            written.left.set(1);
            let mut programs: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
            programs.push(Box::pin(lengthen(&writer, fid, Rng::new(rng.next_u64()), &written, 400)));
            for _ in 0..3 {
                programs.push(Box::pin(read_written(seed, &reader, fid, Rng::new(rng.next_u64()), &written)));
                programs.push(Box::pin(async {
                    while written.left.get() > 0 {
                        reader.getattr(&root(), fid, None).await.unwrap();
                        reader.rt().sleep(Duration::from_micros(50)).await;
                    }
                }));
            }
            programs.push(Box::pin(stutter(host, &world.sim, Rng::new(rng.next_u64()), &written.left)));
            rt::sync::join_all(programs).await;
        });
    }
}

#[test]
fn a_writer_whose_lock_becomes_one_for_reads_finds_what_it_has_written_beside_late_answers_about_the_size() {
    for seed in 0..60 {
        let sim = SimConfig { reorder: 0.2, shuffle: 0.2, ..SimConfig::new(seed) };
        let world = World::of(sim, 1, OstConfig::default());
        let [writer, other] = [(); 2].map(|()| world.client(|_| {}).0);
        let mut rng = Rng::new(seed);
        world.run(Duration::from_secs(3600), async {
            let file = create(&writer, "f").await;
            let (fid, written) = (file.fid(), Written::default());
            written.left.set(1);
            let mut programs: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
            programs.push(Box::pin(lengthen(&writer, fid, Rng::new(rng.next_u64()), &written, 3000)));
            for c in [&writer, &other, &other] {
                programs.push(Box::pin(read_written(seed, c, fid, Rng::new(rng.next_u64()), &written)));
                programs.push(Box::pin(async {
                    while written.left.get() > 0 {
                        writer.getattr(&root(), fid, None).await.unwrap();
                        writer.rt().sleep(Duration::from_micros(50)).await;
                    }
                }));
            }
            rt::sync::join_all(programs).await;
        });
    }
}

#[test]
fn after_a_cut_the_file_is_as_long_as_that_beside_late_answers_about_the_size() {
    const LONG: u64 = 200_000;
    for seed in 0..60 {
        let sim = SimConfig { reorder: 0.05, shuffle: 0.2, ..SimConfig::new(seed) };
        let world = World::of(sim, 1, OstConfig::default());
        let ((one, host), other) = (world.client(|_| {}), world.client(|_| {}).0);
        let mut rng = Rng::new(seed);
        // Made by the client that cuts it, or by the other one.
        let maker = if seed % 2 == 0 { &one } else { &other };
        world.run(Duration::from_secs(3600), async {
            let fid = create(maker, "f").await.fid();
            let left = std::cell::Cell::new(1u32);
            let mut programs: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
            for c in [&one, &one, &one, &other] {
                let (mut rng, left) = (Rng::new(rng.next_u64()), &left);
                programs.push(Box::pin(async move {
                    let file = c.open(&root(), fid, 0).await.unwrap();
                    while left.get() > 0 {
                        c.data().read(&file, rng.below(LONG), 1 + rng.below(9000) as usize).await.unwrap();
                        c.getattr(&root(), fid, None).await.unwrap();
                        c.rt().sleep(Duration::from_micros(rng.below(200))).await;
                    }
                    c.release(&file).await.unwrap();
                }));
            }
            programs.push(Box::pin(async {
                let (mut rng, file) = (Rng::new(seed), open(&one, "f", O_RDWR).await);
                for round in 0..30 {
                    one.data().write(&file, LONG - 9, &[1; 9]).await.unwrap();
                    let size = rng.below(LONG);
                    cut(&one, &file, size).await;
                    for _ in 0..4 {
                        let now = one.getattr(&root(), fid, None).await.unwrap().attr.size;
                        assert_eq!(now, size, "seed {seed}, round {round}");
                        one.rt().sleep(Duration::from_micros(rng.below(300))).await;
                    }
                }
                one.release(&file).await.unwrap();
                left.set(0);
            }));
            programs.push(Box::pin(stutter(host, &world.sim, Rng::new(seed), &left)));
            rt::sync::join_all(programs).await;
        });
    }
}

#[test]
fn a_cut_that_finds_no_free_frame_leaves_zeros_behind_it() {
    for synced in [true, false] {
        let world = World::new(8, 1, OstConfig::default());
        let (c, _) = world.client(|_| {});
        world.run(Duration::from_secs(600), async {
            let file = create(&c, "f").await;
            c.data().write(&file, 0, &[7; 8192]).await.unwrap();
            if synced {
                c.data().fsync(&file, false).await.unwrap();
            }
            // The cached page has another owner, so that it cannot be changed in place.
            let before = c.data().read(&file, 4096, 4096).await.unwrap();
            let pool = c.rt().frames();
            let taken: Vec<_> = std::iter::from_fn(|| pool.alloc_run(1)).collect();
            assert_eq!(pool.free(), 0);
            let (tx, rx) = rt::sync::oneshot();
            let (me, cut_file) = (c.clone(), file.clone());
            c.rt().spawn(async move {
                cut(&me, &cut_file, 5000).await;
                tx.send(());
            });
            world.sim.sleep(Duration::from_millis(20)).await;
            drop(taken);
            rx.await.unwrap();
            assert_eq!(before.to_vec(), [7; 4096], "who read before has what was there");
            c.data().write(&file, 8191, &[9]).await.unwrap();
            let after = c.data().read(&file, 4096, 4096).await.unwrap().to_vec();
            let kept = 5000 - 4096;
            assert!(after[..kept].iter().all(|b| *b == 7) && after[4095] == 9, "synced {synced}");
            assert!(after[kept..4095].iter().all(|b| *b == 0), "synced {synced}: bytes behind the cut come back");
        });
    }
}

#[test]
fn of_two_reservations_at_once_the_longer_one_says_how_long_the_file_is() {
    const LONG: u64 = 500_000;
    for mode in [0, ZERO] {
        for order in [[true, false], [false, true]] {
            let world = World::new(3, 1, OstConfig::default());
            let ((c, _), (other, _)) = (world.client(|_| {}), world.client(|_| {}));
            world.run(Duration::from_secs(60), async {
                let file = create(&c, "f").await;
                c.data().write(&file, 0, &[5; 12_000]).await.unwrap();
                let reserve = async |long: bool| {
                    let (c, file) = (c.clone(), file.clone());
                    let (mode, end) = if long { (mode, LONG) } else { (ZERO, 30_000) };
                    c.data().fallocate(&file, mode, end - 10_000, 10_000).await.unwrap();
                };
                rt::sync::join_all(order.map(reserve).into_iter().collect::<Vec<_>>()).await;
                for c in [&c, &other] {
                    let attr = c.getattr(&root(), file.fid(), None).await.unwrap().attr;
                    assert_eq!(attr.size, LONG, "mode {mode}, order {order:?}");
                }
                let seen = read_all(&other, &open(&other, "f", 0).await, 2 * LONG).await;
                assert!(seen.len() as u64 == LONG && seen[12_000..].iter().all(|b| *b == 0));
            });
        }
    }
}

#[test]
fn a_call_that_nobody_waits_for_any_more_costs_no_session() {
    for micros in [20, 60, 100, 150, 200, 300, 500] {
        let world = World::new(1, 1, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(600), async {
            let fid = create(&two, "f").await.fid();
            for _ in 0..20 {
                // Asks with locks to come along, and is dropped before the answer, as by a signal.
                let root = root();
                let asks = one.getattr(&root, fid, None);
                let _ = rt::sync::race(asks, world.sim.sleep(Duration::from_micros(micros))).await;
                let begun = world.sim.now();
                two.meta().rename(&root, (Fid::ROOT, b"f"), (Fid::ROOT, b"g"), 0).await.unwrap();
                two.meta().rename(&root, (Fid::ROOT, b"g"), (Fid::ROOT, b"f"), 0).await.unwrap();
                assert!(world.sim.now().since(begun) < Duration::from_secs(20), "{micros} us");
            }
            assert!(world.mds_knows(one.sessions().id()) && one.sessions().mdc().evictions() == 0, "{micros} us");
        });
    }
}

/// One client changes a file and a directory, and asks for their attributes by every way at the same time.
#[test]
fn answers_about_attributes_that_come_late_show_nothing_older_than_own_changes() {
    const CHANGES: u32 = 40;
    for seed in 0..60 {
        let sim = SimConfig { reorder: 0.05, shuffle: 0.2, ..SimConfig::new(seed) };
        let world = World::of(sim, 1, OstConfig::default());
        let (c, other) = (world.client(|_| {}).0, world.client(|_| {}).0);
        world.run(Duration::from_secs(3600), async {
            let node = NewNode { kind: NodeKind::Directory, mode: 0o40755, ..NewNode::default() };
            let dir = c.create(&root(), Fid::ROOT, b"d", node).await.unwrap().attr.fid;
            let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o600, ..NewFile::default() };
            let file = c.create_open(&root(), dir, b"f", new).await.unwrap().1;
            let fid = file.fid();
            c.release(&file).await.unwrap();
            let left = Rc::new(std::cell::Cell::new(3));
            let mut programs: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
            let (me, done) = (c.clone(), left.clone());
            programs.push(Box::pin(async move {
                for i in 0..CHANGES {
                    let mode = 0o600 + i % 64;
                    let request = SetattrRequest { valid: SetBits::MODE, mode, ..SetattrRequest::default() };
                    let inode = me.meta().inode(fid);
                    me.setattr(&root(), &inode, request, None).await.unwrap();
                    let told = me.getattr(&root(), fid, None).await.unwrap().attr.mode & 0o777;
                    assert_eq!(told, mode, "seed {seed}: change {i} is not seen");
                }
                done.set(done.get() - 1);
            }));
            for (n, name) in [b"g", b"h"].iter().enumerate() {
                let (me, done) = (c.clone(), left.clone());
                programs.push(Box::pin(async move {
                    for i in 0..CHANGES {
                        me.link(&root(), fid, dir, *name).await.unwrap();
                        let links = me.getattr(&root(), fid, None).await.unwrap().attr.nlink;
                        assert!(links >= 2, "seed {seed}: link {i} of {n} is not seen");
                        me.meta().unlink(&root(), dir, *name, false).await.unwrap();
                    }
                    done.set(done.get() - 1);
                }));
            }
            for n in 0..3 {
                let (me, left) = (c.clone(), left.clone());
                let mut rng = Rng::new(seed * 3 + n);
                programs.push(Box::pin(async move {
                    while left.get() > 0 {
                        match rng.below(3) {
                            0 => _ = me.meta().readdir(&root(), dir, 0, 1 << 16, true).await.unwrap(),
                            1 => _ = me.lookup(&root(), dir, b"f").await.unwrap(),
                            _ => _ = me.getattr(&root(), fid, None).await.unwrap(),
                        }
                        me.rt().sleep(Duration::from_micros(rng.below(300))).await;
                    }
                }));
            }
            rt::sync::join_all(programs).await;
            for fid in [fid, dir] {
                let (mine, theirs) = (c.getattr(&root(), fid, None).await, other.getattr(&root(), fid, None).await);
                let facts = |e: client::Entry| (e.attr.mode, e.attr.nlink, e.attr.mtime, e.attr.ctime);
                assert_eq!(facts(mine.unwrap()), facts(theirs.unwrap()), "seed {seed}");
            }
        });
    }
}

/// A kernel that counts how often its attributes are dropped.
#[derive(Default)]
struct Believing {
    drops: Cell<u32>,
    /// How often they are dropped before it has the inode.
    in_vain: Cell<u32>,
    told: Cell<Option<u64>>,
    /// The sizes that it is told.
    sizes: RefCell<Vec<u64>>,
}

struct InFront(Rc<Believing>);

impl client::KernelCache for InFront {
    fn drop_attributes(&self, _fid: Fid) -> rt::LocalFuture<bool> {
        self.0.drops.set(self.0.drops.get() + 1);
        Box::pin(std::future::ready(self.0.drops.get() > self.0.in_vain.get()))
    }
    fn told(&self) -> Option<u64> {
        self.0.told.get()
    }
    fn drop_pages(&self, _fid: Fid, _extent: Extent) -> rt::LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
    fn lengthen(&self, _fid: Fid, size_bytes: u64) -> rt::LocalFuture<()> {
        self.0.sizes.borrow_mut().push(size_bytes);
        Box::pin(std::future::ready(()))
    }
    fn drop_names(&self) -> rt::LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
    fn lets_go(&self) -> bool {
        false
    }
    fn let_go(&self, _fids: &[Fid]) {}
}

#[test]
fn writes_past_a_kernel_drop_its_attributes_once_until_it_may_have_been_told_some() {
    let world = World::new(1, 1, OstConfig::default());
    let (client, _) = world.client(|_| {});
    let kernel = Rc::new(Believing::default());
    client.kernel().set(Rc::new(InFront(kernel.clone())));
    world.run(Duration::from_secs(60), async {
        let (one, two) = (create(&client, "one").await, create(&client, "two").await);
        let drops = async |file: &Rc<OpenFile>| {
            let before = kernel.drops.get();
            for i in 0..5 {
                client.write_aside(file, i * 100, b"bytes").await.unwrap();
            }
            kernel.drops.get() - before
        };
        assert_eq!(drops(&one).await, 5, "nobody knows what it was told");
        kernel.told.set(Some(7));
        assert_eq!((drops(&one).await, drops(&two).await, drops(&one).await), (1, 1, 0));
        kernel.told.set(Some(8));
        assert_eq!((drops(&one).await, drops(&one).await), (1, 0));
        kernel.told.set(None);
        assert_eq!(drops(&one).await, 5, "an answer is on its way");
        kernel.told.set(Some(8));
        assert_eq!(drops(&two).await, 1);
    });
}

#[test]
fn a_kernel_is_told_of_sizes_past_it_where_the_file_may_be_mapped_and_once() {
    let world = World::new(1, 1, OstConfig::default());
    let (client, _) = world.client(|_| {});
    let kernel = Rc::new(Believing::default());
    client.kernel().set(Rc::new(InFront(kernel.clone())));
    kernel.told.set(Some(7));
    world.run(Duration::from_secs(60), async {
        let maker = create(&client, "f").await;
        client.release(&maker).await.unwrap();
        let writer = client.open(&root(), maker.fid(), 1).await.unwrap();
        let sizes = async |ends: &[u64]| {
            for end in ends {
                client.write_aside(&writer, end - 5, b"bytes").await.unwrap();
            }
            kernel.sizes.take()
        };
        assert_eq!(sizes(&[5, 10, 5]).await, [], "nobody can have mapped it");
        let reader = client.open(&root(), maker.fid(), 0).await.unwrap();
        assert_eq!(sizes(&[5, 15, 15, 9, 20]).await, [5, 15, 20]);
        kernel.told.set(Some(8));
        assert_eq!(sizes(&[10, 9]).await, [10], "it may have been told another size");
        kernel.told.set(None);
        assert_eq!(sizes(&[10, 9]).await, [10, 9], "an answer is on its way");
        client.release(&reader).await.unwrap();
        assert_eq!(sizes(&[50]).await, []);
    });
}

#[test]
fn a_kernel_that_takes_attributes_over_late_forgets_them_then_and_who_changes_them_does_not_wait_for_it() {
    let world = World::new(1, 1, OstConfig::default());
    let [maker, looker] = [(); 2].map(|()| world.client(|_| {}).0);
    let kernel = Rc::new(Believing::default());
    looker.kernel().set(Rc::new(InFront(kernel.clone())));
    world.run(Duration::from_secs(600), async {
        let node = NewNode { kind: NodeKind::Directory, mode: 0o755, ..NewNode::default() };
        let dir = maker.create(&root(), Fid::ROOT, b"dir", node).await.unwrap().attr.fid;
        let chmod = async || {
            assert!(looker.lookup(&root(), Fid::ROOT, b"dir").await.unwrap().attr_cached);
            let request = SetattrRequest { valid: SetBits::MODE, mode: 0o700, ..SetattrRequest::default() };
            maker.setattr(&root(), &maker.meta().inode(dir), request, None).await.unwrap();
        };
        looker.meta().remember(dir);
        kernel.in_vain.set(99);
        // The second lock goes while it has the inode still not.
        chmod().await;
        chmod().await;
        assert!(kernel.drops.get() < 40, "{}", kernel.drops.get());
        world.sim.sleep(Duration::from_secs(100)).await;
        assert_eq!(kernel.drops.get(), 100, "until it has it, and no longer");
        // One that never gets it: what it was told it gives up.
        kernel.in_vain.set(u32::MAX);
        chmod().await;
        world.sim.sleep(Duration::from_secs(100)).await;
        let drops = kernel.drops.get();
        assert!(drops > 200, "{drops}");
        looker.meta().forget(dir, 1);
        world.sim.sleep(Duration::from_secs(100)).await;
        assert!(kernel.drops.get() <= drops + 1);
    });
}

#[test]
fn what_a_directory_lacked_that_is_known_by_its_number_only_is_asked_for_again_when_others_made_it() {
    let world = World::of(SimConfig::new(7), 1, OstConfig::default());
    let [maker, looker] = [(); 2].map(|()| world.client(|_| {}).0);
    world.run(Duration::from_secs(60), async {
        let node = || NewNode { kind: NodeKind::Directory, mode: 0o755, ..NewNode::default() };
        let dir = maker.create(&root(), Fid::ROOT, b"dir", node()).await.unwrap().attr.fid;
        let found = async |name: &[u8]| looker.lookup(&root(), dir, name).await.map_or(Fid::ZERO, |e| e.attr.fid);
        assert!(found(b"a").await.is_zero() && found(b"b").await.is_zero());
        let made = maker.create(&root(), dir, b"b", node()).await.unwrap().attr.fid;
        // The first answer has the directory locked again.
        assert!(found(b"a").await.is_zero());
        assert_eq!(found(b"b").await, made);
    });
}

/// Records that begin and end within pages, as programs write them into one file from many places, one after the other.
#[test]
fn records_across_pages_of_a_file_that_has_bytes_ask_for_none_of_them() {
    const RECORD: u64 = 47_008;
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let [(one, _), (two, _)] = [0, 1].map(|_| world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let made = create(&two, "f").await;
            let mut wanted = pattern(0, 2 << 20, 1);
            two.data().write(&made, 0, &wanted).await.unwrap();
            two.data().fsync(&made, false).await.unwrap();
            let file = open(&one, "f", O_RDWR).await;
            // Two programs of one client, each from its place on, and one that begins in the middle of a page and leaves a gap.
            for i in 0..20 {
                for at in [i * RECORD, MIB + i * RECORD] {
                    let record = pattern(at, RECORD as usize, 2);
                    one.data().write(&file, at, &record).await.unwrap();
                    wanted[at as usize..][..record.len()].copy_from_slice(&record);
                }
            }
            let gap = 22 * RECORD as usize + 5;
            one.data().write(&file, gap as u64, &[9; 10]).await.unwrap();
            wanted[gap..gap + 10].fill(9);
            assert_eq!(asked(&world, 0, "read"), 0, "seed {seed}");
            one.data().write_out(file.inode()).await;
            assert_eq!(asked(&world, 0, "read"), 0, "seed {seed}: written out without their pages");
            let here = read_all(&one, &file, 2 << 20).await;
            assert!(here == wanted, "seed {seed}: what the writer sees");
            let there = read_all(&two, &open(&two, "f", O_RDWR).await, 2 << 20).await;
            assert!(there == wanted && asked(&world, 0, "read") > 0, "seed {seed}: what others see");
        });
    }
}
