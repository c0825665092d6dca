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
