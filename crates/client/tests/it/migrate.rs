//! Files get other objects while others read and write them, and servers and clients die: no byte is lost, every reader sees the file as it
//! is, and nothing is left behind.
use crate::world::*;
use client::Migrate;
use wire::mdt::{BytesReply, XattrRequest};

const LIMIT: Duration = Duration::from_secs(3600);
const LEN: u64 = 700_000;

/// A layout of `count` stripes that begins on OST `first`.
fn wish(count: u16, first: u16) -> Migrate {
    let mut spec = layout::LayoutSpec::default();
    spec.stripe_size = Some(layout::StripeSize::new(STRIPE).unwrap());
    spec.stripe_count = layout::StripeCount::Exactly(count);
    spec.index = Some(OstIndex(first));
    Migrate { layout: layout::xattr::encode_spec(&spec), ..Migrate::default() }
}

async fn migrate(c: &Rc<Client>, file: &Rc<OpenFile>, how: &Migrate) -> Result<u64, FsError> {
    c.migrate(&root(), file.inode(), how, &|| false).await
}

/// The OSTs of a file's objects as the metadata server has them, and the objects.
async fn objects(c: &Rc<Client>, file: &Rc<OpenFile>) -> Vec<(u16, types::ObjectId)> {
    let bytes = c.getxattr(&root(), file.fid(), b"lustre.lov.stored").await.unwrap();
    let (_, layout) = layout::xattr::decode_layout(&bytes).unwrap();
    layout.objects().iter().map(|o| (o.ost.0, o.object)).collect()
}

/// Waits until no OST has any of these objects.
async fn gone(world: &World, old: &[(u16, types::ObjectId)]) {
    for (ost, object) in old {
        let mut looks = 0;
        while world.ost(usize::from(*ost)).store().attr(*object).await.is_ok() {
            world.sim.sleep(Duration::from_secs(1)).await;
            looks += 1;
            assert!(looks < 300, "{object} of OST {ost} is left");
        }
    }
}

/// Waits until the metadata server has no more inodes than that.
async fn nothing_is_left(world: &World, inodes: u64) {
    for _ in 0..60 {
        if world.mds_inodes() == inodes {
            return;
        }
        world.sim.sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(world.mds_inodes(), inodes, "a file that was copied to is left");
}

#[test]
fn a_file_gets_other_objects_and_whoever_had_it_open_goes_on_with_those() {
    for seed in 0..4 {
        let world = World::new(seed, 3, OstConfig::default());
        let ((one, _), (two, _), (three, _)) = (world.client(|_| {}), world.client(|_| {}), world.client(|_| {}));
        world.run(LIMIT, async {
            let file = create(&one, "f").await;
            let mut bytes = pattern(0, LEN as usize, 3);
            one.data().write(&file, 0, &bytes).await.unwrap();
            let (writer, reader) = (open(&two, "f", O_RDWR).await, open(&three, "f", 0).await);
            assert!(read_all(&three, &reader, MIB).await == bytes);
            // Nobody but its writer has this yet.
            two.data().write(&writer, 100, &[9; 50]).await.unwrap();
            bytes[100..150].fill(9);
            let (old, inodes) = (objects(&one, &file).await, world.mds_inodes());
            let before = three.getattr(&root(), reader.fid(), Some(&reader)).await.unwrap().attr;
            for (mover, count, first) in [(&one, 2, 1), (&two, 3, 2), (&three, 1, 0)] {
                let mine = open(mover, "f", 0).await;
                migrate(mover, &mine, &wish(count, first)).await.unwrap();
                let new = objects(&one, &file).await;
                assert_eq!((new.len(), new[0].0), (usize::from(count), first), "seed {seed}");
                assert!(read_all(&three, &reader, MIB).await == bytes, "seed {seed}: a reader of before");
                let at = 1000 * u64::from(count);
                two.data().write(&writer, at, &[count as u8; 10]).await.unwrap();
                one.data().write(&file, LEN - at, &[count as u8; 10]).await.unwrap();
                bytes[at as usize..][..10].fill(count as u8);
                bytes[(LEN - at) as usize..][..10].fill(count as u8);
                assert!(read_all(&three, &reader, MIB).await == bytes, "seed {seed}: what was written since");
                assert!(read_all(&one, &file, MIB).await == bytes, "seed {seed}");
                mover.release(&mine).await.unwrap();
            }
            gone(&world, &old).await;
            let after = three.getattr(&root(), reader.fid(), Some(&reader)).await.unwrap().attr;
            assert_eq!((after.size, after.mode, after.uid), (before.size, before.mode, before.uid));
            nothing_is_left(&world, inodes).await;
        });
    }
}

#[test]
fn whoever_has_a_file_open_goes_on_with_it_when_the_ost_of_before_has_left_the_cluster() {
    use wire::Op;
    use wire::connect::{MapChange, MapChangeReply, MapChangeRequest};
    let world = World::new(3, 2, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(LIMIT, async {
        let file = create_on(&one, "f", 1).await;
        let (mut bytes, inodes) = (pattern(0, 100_000, 3), world.mds_inodes());
        one.data().write(&file, 0, &bytes).await.unwrap();
        let (writer, reader) = (open(&two, "f", O_RDWR).await, open(&two, "f", 0).await);
        assert!(read_all(&two, &reader, MIB).await == bytes);
        migrate(&one, &file, &wish(1, 0)).await.unwrap();
        // The file that has the old objects goes first.
        nothing_is_left(&world, inodes).await;
        let (what, osts) = (MapChange::RemoveOst, vec![OstIndex(1)]);
        let leave = MapChangeRequest { id: 1, what, osts, ..MapChangeRequest::default() };
        let left: MapChangeReply = one.sessions().mdc().ask(Op::MapChange, &leave).await.unwrap();
        assert_eq!(left.errno, 0, "{left:?}");
        world.sim.sleep(Duration::from_secs(1)).await;
        two.data().write(&writer, 500, &[7; 100]).await.unwrap();
        bytes[500..600].fill(7);
        two.data().fsync(&writer, false).await.unwrap();
        assert!(read_all(&two, &reader, MIB).await == bytes);
        assert!(read_all(&one, &file, MIB).await == bytes);
    });
}

/// A client has cut a striped file; one of its OSTs leaves the cluster, and the client cuts other files. Decisions that the metadata
/// server remembers at the end, and whether that client leaves in order.
fn cuts_beside_an_ost_that_left() -> (u64, bool) {
    use wire::Op;
    use wire::connect::{MapChange, MapChangeReply, MapChangeRequest};
    let world = World::new(3, 3, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(LIMIT, async {
        let (file, other) = (create_striped(&one, "f").await, create_striped(&one, "other").await);
        let inodes = world.mds_inodes();
        migrate(&one, &other, &wish(2, 0)).await.unwrap();
        let (mine, others) = (open(&two, "f", O_RDWR).await, open(&two, "other", O_RDWR).await);
        let bytes = pattern(0, 6 * STRIPE as usize, 3);
        two.data().write(&mine, 0, &bytes).await.unwrap();
        cut(&two, &mine, 100).await.unwrap();
        migrate(&one, &file, &wish(2, 0)).await.unwrap();
        nothing_is_left(&world, inodes).await;
        let (what, osts) = (MapChange::RemoveOst, vec![OstIndex(2)]);
        let leave = MapChangeRequest { id: 1, what, osts, ..MapChangeRequest::default() };
        let left: MapChangeReply = one.sessions().mdc().ask(Op::MapChange, &leave).await.unwrap();
        assert_eq!(left.errno, 0, "{left:?}");
        world.sim.sleep(Duration::from_secs(1)).await;
        for _ in 0..20 {
            two.data().write(&others, 0, &bytes).await.unwrap();
            two.data().fsync(&others, false).await.unwrap();
            cut(&two, &others, 100).await.unwrap();
        }
        (world.mds_param("mdt.*.cuts").await, two.leave().await)
    })
}

#[test]
fn an_ost_that_has_left_the_cluster_asks_for_no_cut_and_whoever_made_one_leaves_in_order() {
    let (cuts, left) = cuts_beside_an_ost_that_left();
    // The last one of each client, and one that was under way beside it.
    assert!(cuts <= 4 && left, "{cuts} decisions are remembered, left in order: {left}");
    types::planted::plant(Some("gone-and-asked"));
    let (cuts, left) = cuts_beside_an_ost_that_left();
    types::planted::plant(None);
    assert!(cuts > 20 && !left, "where its word is waited for, that is found: {cuts}, {left}");
}

#[test]
fn times_holes_and_sizes_stay_as_they_were() {
    use wire::mdt::{SetBits, SetattrRequest};
    let world = World::new(7, 2, OstConfig::default());
    let (one, _) = world.client(|_| {});
    world.run(LIMIT, async {
        let file = create(&one, "f").await;
        one.data().write(&file, 3 * MIB, &[1; 5000]).await.unwrap();
        cut(&one, &file, 9 * MIB + 5).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        let mtime = types::WallTime(1_234_567_890_123_456_789);
        let request = SetattrRequest { valid: SetBits::MTIME, mtime, ..SetattrRequest::default() };
        one.setattr(&root(), file.inode(), request, None).await.unwrap();
        migrate(&one, &file, &wish(2, 1)).await.unwrap();
        let attr = one.getattr(&root(), file.fid(), Some(&file)).await.unwrap().attr;
        assert_eq!((attr.size, attr.mtime), (9 * MIB + 5, mtime));
        assert!(attr.blocks * 512 < 64 * KIB, "{} blocks: holes stay holes", attr.blocks);
        assert_eq!(one.data().seek(file.inode(), 0, false).await, Ok(3 * MIB));
        let empty = create(&one, "empty").await;
        migrate(&one, &empty, &wish(2, 0)).await.unwrap();
        assert_eq!(objects(&one, &empty).await.len(), 2);
        assert!(read_all(&one, &empty, MIB).await.is_empty());
    });
}

#[test]
fn who_gives_way_changes_nothing_of_a_file_that_is_written_and_a_dead_program_stops_the_copy() {
    let world = World::new(3, 2, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(LIMIT, async {
        let file = create(&one, "f").await;
        one.data().write(&file, 0, &pattern(0, LEN as usize, 3)).await.unwrap();
        let writer = open(&two, "f", O_RDWR).await;
        let before = objects(&one, &file).await;
        let how = Migrate { gives_way: true, bytes_per_s: 100_000, ..wish(2, 0) };
        let write = async {
            world.sim.sleep(Duration::from_secs(3)).await;
            two.data().write(&writer, 5, &[7; 5]).await.unwrap();
            two.data().fsync(&writer, false).await.unwrap();
        };
        let moved = rt::sync::join_all(vec![
            Box::pin(async { Some(migrate(&one, &file, &how).await) }) as std::pin::Pin<Box<dyn Future<Output = _>>>,
            Box::pin(async {
                write.await;
                None
            }),
        ]);
        assert_eq!(moved.await[0], Some(Err(FsError::Busy)));
        assert_eq!(objects(&one, &file).await, before);
        let stopped = one.migrate(&root(), file.inode(), &how, &|| true).await;
        assert_eq!((stopped, objects(&one, &file).await), (Err(FsError::Interrupted), before.clone()));
        let stranger = Cred { uid: 5, gid: 5, ..Cred::default() };
        let (slow, begun) = (Migrate { bytes_per_s: 1000, ..wish(2, 0) }, one.rt().now());
        let refused = one.migrate(&stranger, file.inode(), &slow, &|| false).await;
        assert_eq!((refused, objects(&one, &file).await), (Err(FsError::Access), before));
        assert!(one.rt().now().since(begun) < Duration::from_secs(1), "nothing was copied before that");
        migrate(&one, &file, &how).await.unwrap();
        assert_eq!(objects(&one, &file).await.len(), 2);
    });
}

/// A write, an append or a cut of a file, and of what it is to be.
async fn change(c: &Rc<Client>, file: &Rc<OpenFile>, rng: &mut Rng, step: u64, model: &mut Vec<u8>) {
    let data = pattern(step, 1 + rng.below(70_000) as usize, step + 5);
    let at = match rng.below(8) {
        0 => {
            let size = rng.below(LEN);
            cut(c, file, size).await.unwrap();
            return model.resize(size as usize, 0);
        }
        1 => model.len() as u64,
        _ => rng.below(LEN),
    };
    c.data().write(file, at, &data).await.unwrap();
    let end = at as usize + data.len();
    model.resize(model.len().max(end), 0);
    model[at as usize..end].copy_from_slice(&data);
}

/// One client writes blocks, appends and cuts, two others move the file to and fro, a fourth reads and advises.
#[test]
fn no_write_is_lost_beside_migrations() {
    for seed in 0..12 {
        let world = World::new(seed, 3, OstConfig::default());
        let clients: Vec<_> = (0..4).map(|_| world.client(|_| {}).0).collect();
        let moves = Cell::new(0);
        world.run(LIMIT, async {
            let file = create(&clients[0], "f").await;
            let first = pattern(0, LEN as usize, seed + 1);
            clients[0].data().write(&file, 0, &first).await.unwrap();
            let model = RefCell::new(first);
            let over = Cell::new(false);
            let write = async {
                let mut rng = Rng::new(seed);
                for step in 0..300u64 {
                    let mut expected = model.take();
                    change(&clients[0], &file, &mut rng, step, &mut expected).await;
                    *model.borrow_mut() = expected;
                    if rng.below(4) == 0 {
                        world.sim.sleep(Duration::from_millis(rng.below(30))).await;
                    }
                    // What was answered is there for everybody.
                    if step % 20 == 0 {
                        let reader = open(&clients[3], "f", 0).await;
                        let found = read_all(&clients[3], &reader, 4 * MIB).await;
                        let wanted = model.borrow().clone();
                        let differs = found.iter().zip(&wanted).position(|(a, b)| a != b);
                        let lengths = (found.len(), wanted.len());
                        assert!(found == wanted, "seed {seed}, step {step}: {differs:?} of {lengths:?}");
                        clients[3].release(&reader).await.unwrap();
                    }
                }
                over.set(true);
            };
            let shift = async |mover: &Rc<Client>, salt: u64| {
                let mut rng = Rng::new(seed * 2 + salt);
                while !over.get() {
                    let mine = open(mover, "f", 0).await;
                    let to = wish(1 + rng.below(3) as u16, rng.below(3) as u16);
                    match migrate(mover, &mine, &to).await {
                        Ok(_) => moves.set(moves.get() + 1),
                        Err(e) => assert_eq!(e, FsError::Busy, "seed {seed}"),
                    }
                    mover.release(&mine).await.unwrap();
                    world.sim.sleep(Duration::from_millis(rng.below(50))).await;
                }
            };
            // What users advise, and what they are shown of it, is about the file, whatever objects it has.
            let advise = async {
                let mine = open(&clients[3], "f", 0).await;
                while !over.get() {
                    let (advice, fid) = ((wire::ost::Advice::Low, true), mine.fid());
                    clients[3].advise_servers(&root(), mine.inode(), advice, types::Extent::ALL).await.unwrap();
                    clients[3].getxattr(&root(), fid, b"stria.advice").await.unwrap();
                    world.sim.sleep(Duration::from_millis(7)).await;
                }
                clients[3].release(&mine).await.unwrap();
            };
            let (one, two) = (shift(&clients[1], 0), shift(&clients[2], 1));
            let all: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> =
                vec![Box::pin(write), Box::pin(one), Box::pin(two), Box::pin(advise)];
            rt::sync::join_all(all).await;
            for c in &clients {
                let reader = open(c, "f", 0).await;
                assert!(read_all(c, &reader, 4 * MIB).await == *model.borrow(), "seed {seed}: at the end");
            }
        });
        assert!(moves.get() > 3, "seed {seed}: {} moves", moves.get());
        for c in &clients {
            assert!(c.osts().all().iter().all(|o| o.import().unwrap().evictions() == 0), "seed {seed}");
        }
    }
}

#[test]
fn what_servers_refused_to_one_user_no_migration_gives_them_and_what_others_outdid_goes_along() {
    use types::Extent;
    use wire::ost::Advice::{High, Low, None as Nothing};
    let world = World::new(7, 2, OstConfig::default());
    let (c, _) = world.client(|_| {});
    world.run(LIMIT, async {
        let file = create_on(&c, "f", 0).await;
        c.data().write(&file, 0, &pattern(0, LEN as usize, 3)).await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        let user = |uid| Cred { uid, gid: uid, ..Cred::default() };
        let advise =
            async |uid: u32, advice| c.advise_servers(&user(uid), file.inode(), (advice, true), Extent::ALL).await;
        let shown = async || {
            let text = c.getxattr(&root(), file.fid(), b"stria.advice").await.unwrap();
            let text = String::from_utf8(text).unwrap();
            let part =
                |l: &str| l.split(' ').filter(|w| ["high", "low"].contains(w) || w.starts_with("uid=")).collect();
            text.lines().map(part).collect::<Vec<String>>()
        };
        world.ost(0).set_params("obdfilter.*.advice_budget", "uid:1007 4096 0").unwrap();
        assert_eq!(advise(1007, High).await, Err(FsError::NoSpace));
        assert_eq!(shown().await, ["highuid=1007"], "it tells what it refused");
        migrate(&c, &file, &wish(1, 1)).await.unwrap();
        assert!(shown().await.is_empty(), "the other server knows nothing of it");
        advise(1008, Low).await.unwrap();
        advise(1009, High).await.unwrap();
        migrate(&c, &file, &wish(1, 0)).await.unwrap();
        let mut known = shown().await;
        known.sort();
        assert_eq!(known, ["highuid=1009", "lowuid=1008"]);
        assert_eq!(c.getxattr(&root(), file.fid(), b"user.stria.advice").await.unwrap(), b"high");
        advise(1009, Nothing).await.unwrap();
        assert_eq!(shown().await, ["lowuid=1008"], "it counts again");
    });
}

/// What dies amid a migration.
#[derive(Clone, Copy, Debug)]
enum Dies {
    Mover,
    Mds,
    Ost(usize),
}

#[test]
fn whoever_dies_amid_a_migration_the_file_has_all_its_bytes_and_nothing_is_left() {
    let (mut before, mut since) = (0, 0);
    for dies in [Dies::Mover, Dies::Mds, Dies::Ost(0), Dies::Ost(1)] {
        for step in 0..40u64 {
            let world = World::new(step, 2, OstConfig::default());
            let ((one, _), (mover, host)) = (world.client(|_| {}), world.client(|_| {}));
            world.run(LIMIT, async {
                let file = create(&one, "f").await;
                let mut bytes = pattern(0, 200_000, 3);
                one.data().write(&file, 0, &bytes).await.unwrap();
                one.data().fsync(&file, false).await.unwrap();
                let (old, inodes) = (objects(&one, &file).await, world.mds_inodes());
                let mine = open(&mover, "f", 0).await;
                let moving = mover.clone();
                mover.rt().spawn(async move { _ = migrate(&moving, &mine, &wish(2, 1)).await });
                world.sim.sleep(Duration::from_micros(step * 400)).await;
                if step % 2 == 0 {
                    // Perhaps it waits for the end of the migration, which is lost then or not; the write is not.
                    one.data().write(&file, 50_000, &[7; 1000]).await.unwrap();
                    bytes[50_000..51_000].fill(7);
                }
                match dies {
                    Dies::Mover => host.lose_power(),
                    Dies::Mds => {
                        world.kill_mds();
                        world.sim.sleep(Duration::from_secs(1)).await;
                        world.restart_mds().await;
                    }
                    Dies::Ost(i) => {
                        world.lose_power(i);
                        world.sim.sleep(Duration::from_secs(1)).await;
                        world.restart_oss(i).await;
                    }
                }
                one.data().write(&file, 90_000, &[8; 1000]).await.unwrap();
                bytes[90_000..91_000].fill(8);
                one.data().fsync(&file, false).await.unwrap();
                assert!(read_all(&one, &file, MIB).await == bytes, "{dies:?} {step}");
                // Long enough for a dead client to be given up.
                world.sim.sleep(Duration::from_secs(300)).await;
                assert!(read_all(&one, &file, MIB).await == bytes, "{dies:?} {step}: later");
                let now = objects(&one, &file).await;
                if now == old {
                    before += 1
                } else {
                    since += 1
                }
                if now != old {
                    gone(&world, &old).await;
                }
                nothing_is_left(&world, inodes).await;
            });
        }
    }
    assert!(before > 0 && since > 0, "died before the exchange {before} times, after it {since} times");
    println!("died before the exchange {before} times, after it {since} times");
}

/// The metadata server and the client that copied die when the exchange is made and not on stable storage yet; a third one has looked at the
/// file and writes. Whether all its bytes are there afterwards.
fn written_amid_a_lost_exchange(seed: u64) -> bool {
    let world = World::new(seed, 2, OstConfig::default());
    let ((one, _), (three, _), (mover, host)) = (world.client(|_| {}), world.client(|_| {}), world.client(|_| {}));
    world.run(LIMIT, async {
        let file = create_on(&one, "f", 0).await;
        let mut bytes = pattern(0, 200_000, 3);
        one.data().write(&file, 0, &bytes).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        let mine = open(&mover, "f", 0).await;
        world.sim.sleep(Duration::from_secs(1)).await;
        let stored = XattrRequest { cred: root(), fid: file.fid(), name: "lustre.lov.stored".into() };
        let layout = async || world.ask_mds::<_, BytesReply>(wire::Op::MdtGetxattr, &stored).await.value;
        let before = layout().await;
        let moving = mover.clone();
        mover.rt().spawn(async move { _ = migrate(&moving, &mine, &wish(1, 1)).await });
        while asked(&world, 0, "promise") == 0 {
            world.sim.sleep(Duration::from_micros(10)).await;
        }
        world.mds_holds_commits(true);
        world.sim.sleep(Duration::from_secs(1)).await;
        assert!(layout().await != before, "seed {seed}: the exchange is made");
        let (writer, f) = (one.clone(), file.clone());
        let (told, wrote) = rt::sync::oneshot();
        one.rt().spawn(async move {
            writer.getattr(&root(), f.fid(), Some(&f)).await.unwrap();
            let wrote = writer.data().write(&f, 50_000, &[7; 1000]).await;
            writer.data().write_out(f.inode()).await;
            told.send(wrote);
        });
        bytes[50_000..51_000].fill(7);
        world.sim.sleep(Duration::from_millis(500 * (seed + 1))).await;
        host.lose_power();
        world.kill_mds();
        world.sim.sleep(Duration::from_secs(1)).await;
        world.restart_mds().await;
        wrote.await.unwrap().unwrap();
        one.data().fsync(&file, false).await.unwrap();
        let found = read_all(&one, &file, MIB).await == bytes;
        // Long enough for a dead client to be given up.
        world.sim.sleep(Duration::from_secs(300)).await;
        assert!(layout().await == before, "seed {seed}: the exchange was lost");
        let later = open(&three, "f", 0).await;
        found && read_all(&three, &later, MIB).await == bytes
    })
}

#[test]
fn what_others_write_amid_an_exchange_that_is_lost_is_there_afterwards() {
    for seed in 0..6 {
        assert!(
            written_amid_a_lost_exchange(seed),
            "seed {seed}: its bytes are gone, and its fsync said that they were there"
        );
    }
}

#[test]
fn an_exchange_that_is_told_before_it_is_on_stable_storage_is_found() {
    types::planted::plant(Some("exchange-told-early"));
    let found = written_amid_a_lost_exchange(0);
    types::planted::plant(None);
    assert!(!found);
}

/// The OST that is to have the new object goes away at every moment of a migration, while others want the locks of the old one.
#[test]
fn who_waits_for_a_dead_ost_amid_a_migration_keeps_no_lock_until_it_is_evicted() {
    let mut given_up = 0;
    for step in 0..60u64 {
        let world = World::new(step, 2, OstConfig::default());
        let ((one, _), (mover, _)) = (world.client(|_| {}), world.client(|_| {}));
        given_up += world.run(LIMIT, async {
            let file = create_on(&one, "f", 0).await;
            let mut bytes = pattern(0, 200_000, 3);
            one.data().write(&file, 0, &bytes).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            let mine = open(&mover, "f", 0).await;
            let ((over, ended), moving) = (rt::sync::oneshot(), mover.clone());
            mover.rt().spawn(async move { over.send(migrate(&moving, &mine, &wish(1, 1)).await.map(drop)) });
            let (writer, f) = (one.clone(), file.clone());
            // Something is left to be copied when others are kept away, and they wait.
            one.rt().spawn(async move {
                for _ in 0..100 {
                    writer.data().write(&f, 50_000, &[7; 1000]).await.unwrap();
                    writer.data().write_out(f.inode()).await;
                    writer.rt().sleep(Duration::from_micros(200)).await;
                }
            });
            bytes[50_000..51_000].fill(7);
            world.sim.sleep(Duration::from_micros(step * 400)).await;
            world.lose_power(1);
            world.sim.sleep(Duration::from_secs(120)).await;
            let evictions = mover.osts().all()[0].import().unwrap().evictions();
            assert_eq!(evictions, 0, "{step}: it kept its lock of an OST that is there for one that is not");
            world.restart_oss(1).await;
            let moved = ended.await.unwrap();
            assert!(matches!(moved, Ok(()) | Err(FsError::Busy)), "{step}: {moved:?}");
            assert!(read_all(&one, &file, MIB).await == bytes, "{step}");
            u32::from(moved.is_err())
        });
    }
    assert!(given_up > 0, "nobody was waited for under locks");
}

/// Holes are punched at the very places that a migration is about to look for data, in a file of pieces with gaps between them.
#[test]
fn what_lies_behind_a_newly_punched_hole_is_copied() {
    const PIECES: u64 = 40;
    const PIECE: u64 = 16 << 10;
    for seed in 0..12 {
        let world = World::new(seed, 2, OstConfig::default());
        let ((one, _), (mover, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(LIMIT, async {
            let file = create_on(&one, "f", 0).await;
            let mut model = vec![0; (2 * PIECES * PIECE) as usize];
            for n in 0..PIECES {
                let (at, data) = (2 * n * PIECE, pattern(n, PIECE as usize, n + 3));
                one.data().write(&file, at, &data).await.unwrap();
                model[at as usize..][..data.len()].copy_from_slice(&data);
            }
            one.data().write(&file, (2 * PIECES - 1) * PIECE, &[5; PIECE as usize]).await.unwrap();
            model[((2 * PIECES - 1) * PIECE) as usize..].fill(5);
            one.data().fsync(&file, false).await.unwrap();
            let mine = open(&mover, "f", 0).await;
            let ((over, ended), moving) = (rt::sync::oneshot(), mover.clone());
            mover.rt().spawn(async move { over.send(migrate(&moving, &mine, &wish(2, 1)).await.map(drop)) });
            let mut rng = Rng::new(seed);
            for n in 0..PIECES {
                world.sim.sleep(Duration::from_micros(rng.below(400))).await;
                one.data().fallocate(&file, 3, 2 * n * PIECE, PIECE).await.unwrap();
                model[(2 * n * PIECE) as usize..][..PIECE as usize].fill(0);
            }
            ended.await.unwrap().unwrap();
            let found = read_all(&mover, &open(&mover, "f", 0).await, 4 * MIB).await;
            let differs = found.iter().zip(&model).position(|(a, b)| a != b);
            assert!(found == model, "seed {seed}: {differs:?} of {} and {}", found.len(), model.len());
        });
    }
}

/// A rate says how fast bytes are copied while everybody works; it is no reason to keep anybody away.
#[test]
fn nobody_is_kept_away_for_longer_because_of_a_rate() {
    let world = World::new(5, 2, OstConfig::default());
    let ((one, _), (mover, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(LIMIT, async {
        let file = create_on(&one, "f", 0).await;
        let mut bytes = pattern(0, LEN as usize, 3);
        one.data().write(&file, 0, &bytes).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        let (mine, how) = (open(&mover, "f", 0).await, Migrate { bytes_per_s: 50_000, ..wish(2, 1) });
        let ((over, ended), moving) = (rt::sync::oneshot(), mover.clone());
        mover.rt().spawn(async move { over.send(migrate(&moving, &mine, &how).await.map(drop)) });
        world.sim.sleep(Duration::from_secs(2)).await;
        // All of it is to be copied again: 14 s at that rate.
        bytes.fill(9);
        one.data().write(&file, 0, &bytes).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        let (mut longest, mut ended) = (Duration::ZERO, std::pin::pin!(ended));
        for at in 0u64.. {
            let before = one.rt().now();
            one.data().write(&file, at, &[1]).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            bytes[at as usize] = 1;
            longest = longest.max(one.rt().now().since(before));
            if let Some(moved) = one.rt().timeout(Duration::from_millis(100), ended.as_mut()).await {
                assert_eq!(moved, Some(Ok(())));
                break;
            }
        }
        assert!(longest < Duration::from_secs(3), "a write waited for {longest:?}");
        assert!(read_all(&one, &file, MIB).await == bytes);
    });
}

/// An OST is away when a migration takes its promises back: others do not wait for the locks of the others' OSTs.
#[test]
fn a_migration_that_gave_up_keeps_no_lock_for_an_ost_that_is_away() {
    let mut shown = 0;
    for step in 0..60u64 {
        let world = World::new(step, 3, OstConfig::default());
        let ((one, _), (mover, _)) = (world.client(|_| {}), world.client(|_| {}));
        shown += world.run(LIMIT, async {
            let file = create_striped(&one, "f").await;
            one.data().write(&file, 0, &pattern(0, 200_000, 3)).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            let mine = open(&mover, "f", 0).await;
            let ((over, ended), moving) = (rt::sync::oneshot(), mover.clone());
            mover.rt().spawn(async move { over.send(migrate(&moving, &mine, &wish(1, 2)).await.map(drop)) });
            world.sim.sleep(Duration::from_micros(step * 300)).await;
            world.lose_power(1);
            let reader = one.clone();
            let f = file.clone();
            one.rt().spawn(async move { _ = reader.data().read(&f, 0, 4096).await });
            world.sim.sleep(Duration::from_secs(120)).await;
            for ost in [0, 2] {
                let evictions = mover.osts().all()[ost].import().unwrap().evictions();
                assert_eq!(evictions, 0, "{step}: it kept its lock of OST {ost}");
            }
            world.restart_oss(1).await;
            let moved = ended.await.unwrap();
            assert!(matches!(moved, Ok(()) | Err(FsError::Busy)), "{step}: {moved:?}");
            u32::from(moved.is_err())
        });
    }
    assert!(shown > 0, "no migration gave up");
}
