//! fallocate(2) changes a file: its time of modification moves, and stays moved when the locks are gone under which that was done. As with
//! local file systems, where the inode is marked in every mode.
use crate::world::*;
use types::WallTime;

const KEEP_SIZE: u32 = 1;
const PUNCH: u32 = 2;
const ZERO: u32 = 16;

async fn times(c: &Rc<Client>, fid: Fid) -> (WallTime, WallTime) {
    let attr = c.getattr(&root(), fid, None).await.unwrap().attr;
    (attr.mtime, attr.ctime)
}

#[test]
fn an_allocation_moves_the_times_for_everybody_and_for_good() {
    for mode in [0, KEEP_SIZE, PUNCH | KEEP_SIZE, ZERO, ZERO | KEEP_SIZE] {
        let world = World::new(u64::from(mode), 2, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(600), async {
            let file = create_striped(&one, "f").await;
            let fid = file.fid();
            one.data().write(&file, 0, &vec![1; 3 * STRIPE as usize]).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            world.sim.sleep(Duration::from_secs(10)).await;
            let began = one.rt().wall();
            one.data().fallocate(&file, mode, STRIPE / 2, 2 * STRIPE).await.unwrap();
            let told = times(&one, fid).await;
            assert!(told.0 >= began && told.1 >= began, "mode {mode}: {told:?} is before {began:?}");
            world.sim.sleep(Duration::from_secs(10)).await;
            assert_eq!(times(&two, fid).await, told, "mode {mode}: whoever asks the OSTs");
            // Its locks go.
            let other = open(&two, "f", O_RDWR).await;
            assert_eq!(read_all(&two, &other, 4 * STRIPE).await.len() as u64, 3 * STRIPE);
            two.release(&other).await.unwrap();
            one.drop_caches().await;
            assert_eq!(times(&one, fid).await, told, "mode {mode}: who did it, without locks");
            one.release(&file).await.unwrap();
            two.drop_caches().await;
            assert_eq!((times(&one, fid).await, times(&two, fid).await), (told, told), "mode {mode}: closed");
        });
    }
}

#[test]
fn a_hole_behind_the_end_changes_nothing() {
    let world = World::new(9, 2, OstConfig::default());
    let (c, _) = world.client(|_| {});
    world.run(Duration::from_secs(600), async {
        let file = create_striped(&c, "f").await;
        c.data().write(&file, 0, &[1; 1000]).await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        c.drop_caches().await;
        let before = times(&c, file.fid()).await;
        world.sim.sleep(Duration::from_secs(10)).await;
        c.data().fallocate(&file, PUNCH | KEEP_SIZE, 5 * STRIPE, STRIPE).await.unwrap();
        assert_eq!(times(&c, file.fid()).await, before);
        c.drop_caches().await;
        assert_eq!(times(&c, file.fid()).await, before);
    });
}

/// Blocks of a file of 512 bytes, as a client is told.
async fn blocks(c: &Rc<Client>, fid: Fid) -> u64 {
    c.getattr(&root(), fid, None).await.unwrap().attr.blocks
}

/// As ext4 and XFS have it: a cut frees what lies behind the end, also where the size does not change.
#[test]
fn a_cut_to_the_same_length_gives_back_what_was_reserved_behind_the_end_by_whomever() {
    for (seed, len, osts) in [(1, 0, 1), (2, 5000, 1), (3, 0, 3), (4, STRIPE + 5000, 3)] {
        let world = World::new(seed, osts, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(600), async {
            let file = create_striped(&one, "f").await;
            let fid = file.fid();
            one.data().write(&file, 0, &vec![1; len as usize]).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            let bare = blocks(&one, fid).await;
            let files = [(&one, file.clone()), (&two, open(&two, "f", O_RDWR).await)];
            for (reserves, cuts) in [(0, 0), (1, 1), (0, 1), (1, 0), (0, 0)] {
                let ((reserver, reserved), (cutter, opened)) = (&files[reserves], &files[cuts]);
                reserver.data().fallocate(reserved, KEEP_SIZE, 0, 6 * STRIPE).await.unwrap();
                assert_eq!(blocks(reserver, fid).await, 6 * STRIPE / 512, "{len}, by {reserves}");
                cut(cutter, opened, len).await.unwrap();
                for (c, _) in &files {
                    assert_eq!(blocks(c, fid).await, bare, "{len}: reserved by {reserves}, cut by {cuts}");
                }
            }
            assert_eq!(read_all(&two, &files[1].1, MIB).await, vec![1; len as usize]);
        });
    }
}

#[test]
fn a_cut_gives_back_what_is_reserved_in_objects_that_stay_as_long_as_they_are() {
    let world = World::new(5, 3, OstConfig::default());
    let (c, _) = world.client(|_| {});
    world.run(Duration::from_secs(600), async {
        let file = create_striped(&c, "f").await;
        c.data().write(&file, 0, &[1; 5001]).await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        let bare = blocks(&c, file.fid()).await;
        c.data().fallocate(&file, KEEP_SIZE, 0, 6 * STRIPE).await.unwrap();
        cut(&c, &file, 5000).await.unwrap();
        assert_eq!(blocks(&c, file.fid()).await, bare);
    });
}

#[test]
fn an_open_that_empties_an_empty_file_gives_back_what_was_reserved() {
    const O_TRUNC: u32 = 0o1000;
    let world = World::new(6, 3, OstConfig::default());
    let (c, _) = world.client(|_| {});
    world.run(Duration::from_secs(600), async {
        let file = create_striped(&c, "f").await;
        c.data().fallocate(&file, KEEP_SIZE, 0, 6 * STRIPE).await.unwrap();
        c.release(&file).await.unwrap();
        let file = open(&c, "f", O_RDWR | O_TRUNC).await;
        assert_eq!(blocks(&c, file.fid()).await, 0);
    });
}

#[test]
fn a_cut_that_changes_nothing_asks_nobody_where_nothing_can_be_reserved() {
    let world = World::new(7, 3, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(600), async {
        let punches = || (0..3).map(|i| asked(&world, i, "punch")).sum::<u64>();
        let file = create_striped(&one, "f").await;
        let len = STRIPE + 5000;
        one.data().write(&file, 0, &vec![1; len as usize]).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        cut(&one, &file, len).await.unwrap();
        assert_eq!(punches(), 0, "nobody else ever had a lock");
        one.data().fallocate(&file, KEEP_SIZE, 0, 6 * STRIPE).await.unwrap();
        cut(&one, &file, len).await.unwrap();
        assert_eq!(punches(), 3);
        cut(&one, &file, len).await.unwrap();
        assert_eq!(punches(), 3, "it was given back");
        // Another client cannot know of objects that take space, and asks once.
        let other = open(&two, "f", O_RDWR).await;
        for _ in 0..3 {
            cut(&two, &other, len).await.unwrap();
        }
        assert_eq!(punches(), 5, "the third object takes nothing");
    });
}
