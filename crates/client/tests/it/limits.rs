//! How much a client remembers and how much it may have unwritten is limited, whatever a kernel in front does.
use std::collections::BTreeMap;

use crate::world::*;
use client::KernelCache;
use rt::LocalFuture;

const FILES: usize = 3000;
const INODES_MAX: usize = 400;
/// What passes leave in while they run: an eighth that came since the last one, and what is on its way out.
const INODES_BOUND: usize = INODES_MAX * 3 / 2;

/// A kernel that remembers every look-up until it is asked to give one up.
#[derive(Default)]
struct Remembering {
    client: RefCell<Option<Rc<Client>>>,
    lookups: RefCell<BTreeMap<Fid, u64>>,
    /// What a program has in use there.
    used: Cell<Option<Fid>>,
    deaf: Cell<bool>,
}
impl Remembering {
    fn of(client: &Rc<Client>) -> Rc<Remembering> {
        let kernel = Rc::new(Remembering::default());
        *kernel.client.borrow_mut() = Some(client.clone());
        client.kernel().set(Rc::new(Front(kernel.clone())));
        kernel
    }
    async fn look_up(&self, name: &str) -> Fid {
        let client = self.client.borrow().clone().unwrap();
        let entry = client.lookup(&root(), Fid::ROOT, name.as_bytes()).await.unwrap();
        if !entry.attr.fid.is_zero() {
            client.meta().remember(entry.attr.fid);
            *self.lookups.borrow_mut().entry(entry.attr.fid).or_default() += 1;
        }
        entry.attr.fid
    }
}
struct Front(Rc<Remembering>);
impl KernelCache for Front {
    fn drop_attributes(&self, _fid: Fid) -> LocalFuture<bool> {
        Box::pin(std::future::ready(true))
    }
    fn drop_pages(&self, _fid: Fid, _extent: Extent) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
    fn drop_names(&self) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
    fn lets_go(&self) -> bool {
        !self.0.deaf.get()
    }
    fn let_go(&self, fids: &[Fid]) {
        let client = self.0.client.borrow().clone().unwrap();
        for fid in fids.iter().filter(|f| self.0.used.get() != Some(**f)) {
            if let Some(n) = self.0.lookups.borrow_mut().remove(fid) {
                let (client, fid) = (client.clone(), *fid);
                client.rt().clone().spawn(async move { client.meta().forget(fid, n) });
            }
        }
    }
}

async fn make_files(c: &Rc<Client>, n: usize, bytes: usize) {
    for i in 0..n {
        let file = create(c, &format!("f{i}")).await;
        if bytes > 0 {
            c.data().write(&file, 0, &vec![1; bytes]).await.unwrap();
        }
        c.release(&file).await.unwrap();
    }
}

#[test]
fn a_walk_of_many_names_stays_within_the_limit_and_keeps_what_is_in_use() {
    let world = World::new(3, 1, OstConfig::default());
    let (maker, _) = world.client(|_| ());
    let (walker, _) = world.client(|c| c.inodes_max = INODES_MAX);
    world.run(Duration::from_secs(3600), async {
        make_files(&maker, FILES, 10).await;
        maker.sync_all().await.unwrap();
        let kernel = Remembering::of(&walker);
        let held = open(&walker, "f0", 0).await;
        let first = kernel.look_up("f1").await;
        kernel.used.set(Some(first));
        let mut most = 0;
        for i in 0..FILES {
            let fid = kernel.look_up(&format!("f{i}")).await;
            if i % 3 == 0 {
                let file = walker.open(&root(), fid, 0).await.unwrap();
                assert_eq!(read_all(&walker, &file, 100).await, [1; 10]);
                walker.release(&file).await.unwrap();
            }
            // Names that are not there are remembered as well.
            assert!(kernel.look_up(&format!("none{i}")).await.is_zero());
            most = most.max(walker.meta().remembered()[0]);
            let [_, names, _, objects] = walker.meta().remembered();
            assert!(names <= 2 * INODES_MAX + 1, "{names} names at {i}");
            assert!(objects <= INODES_BOUND, "{objects} objects at {i}");
        }
        assert!(most > INODES_MAX, "the limit was never reached");
        assert!(most <= INODES_BOUND, "{most} inodes");
        assert!(kernel.lookups.borrow().len() <= INODES_BOUND, "the kernel was asked");
        assert!(walker.meta().inodes_reclaimed() as usize > FILES / 2);
        assert!(kernel.lookups.borrow().contains_key(&first), "it is in use");
        assert_eq!(read_all(&walker, &held, 100).await, [1; 10], "an open file stays");
        // What left comes back when it is asked for.
        let again = open(&walker, "f2", 0).await;
        assert_eq!(read_all(&walker, &again, 100).await, [1; 10]);
        walker.release(&again).await.unwrap();
        walker.release(&held).await.unwrap();
        // A lower limit takes effect at once.
        walker.meta().set_inodes_max(50);
        world.sim.sleep(Duration::from_secs(30)).await;
        let [inodes, _, _, objects] = walker.meta().remembered();
        assert!(inodes <= 60 && objects <= 60, "{inodes} inodes, {objects} objects");
    });
}

#[test]
fn unwritten_data_and_a_kernel_that_cannot_be_asked_keep_inodes_over_the_limit() {
    let world = World::new(4, 1, OstConfig::default());
    let (c, _) = world.client(|c| (c.inodes_max, c.dirty_age_max) = (20, Duration::from_secs(1000)));
    world.run(Duration::from_secs(3600), async {
        make_files(&c, 100, 10).await;
        assert!(c.meta().remembered()[0] >= 100, "their data would be nobody's");
        c.sync_all().await.unwrap();
        c.meta().set_inodes_max(20);
        world.sim.sleep(Duration::from_secs(1)).await;
        assert!(c.meta().remembered()[0] <= 25, "{:?}", c.meta().remembered());
        let kernel = Remembering::of(&c);
        kernel.deaf.set(true);
        for i in 0..100 {
            kernel.look_up(&format!("f{i}")).await;
        }
        assert!(c.meta().remembered()[0] >= 100, "the kernel may ask for them by id");
        kernel.deaf.set(false);
        c.meta().set_inodes_max(20);
        world.sim.sleep(Duration::from_secs(1)).await;
        assert!(c.meta().remembered()[0] <= 25 && kernel.lookups.borrow().len() <= 25, "{:?}", c.meta().remembered());
        for i in 0..100 {
            let file = open(&c, &format!("f{i}"), 0).await;
            assert_eq!(read_all(&c, &file, 100).await, [1; 10]);
            c.release(&file).await.unwrap();
        }
    });
}

#[test]
fn stores_to_mappings_dirty_no_more_than_writes_may() {
    const FILE_BYTES: u64 = 16 * MIB;
    let world = World::new(5, 1, OstConfig::default());
    let (c, _) = world.client(|c| c.dirty_bytes_max = MIB);
    world.run(Duration::from_secs(3600), async {
        let file = create(&c, "mapped").await;
        c.data().write(&file, 0, &vec![1; FILE_BYTES as usize]).await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        file.inode().front().set_kernel_pages();
        // A kernel reads pages before it stores to them: that brings the lease.
        c.data().read_pages(&file, 0, 4096).await.unwrap();
        let mut writes = Vec::new();
        for i in 0..FILE_BYTES / (128 * KIB) {
            let ((tx, rx), c, file) = (rt::sync::oneshot(), c.clone(), file.clone());
            c.rt().clone().spawn(async move {
                tx.send(c.data().write_mapped(&file, i * 128 * KIB, &vec![2; 128 << 10]).await);
            });
            writes.push(rx);
        }
        let mut most = 0;
        for write in writes {
            write.await.unwrap().unwrap();
            most = most.max(c.osts().all()[0].dirty_and_grant().0);
        }
        assert!(most > 0 && most <= MIB, "{most} dirty bytes");
        c.data().fsync(&file, false).await.unwrap();
        assert_eq!(read_all(&c, &file, FILE_BYTES).await, vec![2; FILE_BYTES as usize]);
    });
}

#[test]
fn files_that_are_not_read_any_more_leave_readahead_to_those_that_are() {
    const FILE_BYTES: u64 = 32 * MIB;
    let world = World::new(6, 1, OstConfig::default());
    let (maker, _) = world.client(|_| ());
    let (c, _) = world.client(|c| c.cache_bytes = 128 * MIB);
    world.run(Duration::from_secs(3600), async {
        for i in 0..5 {
            let file = create(&maker, &format!("f{i}")).await;
            for at in (0..FILE_BYTES).step_by(MIB as usize) {
                maker.data().write(&file, at, &vec![1; MIB as usize]).await.unwrap();
            }
            maker.release(&file).await.unwrap();
        }
        maker.sync_all().await.unwrap();
        let mut rested = Vec::new();
        for i in 0..4 {
            let file = open(&c, &format!("f{i}"), 0).await;
            for at in 0..24 {
                assert_eq!(c.data().read(&file, at * 128 * KIB, 128 << 10).await.unwrap().len(), 128 << 10);
                world.sim.sleep(Duration::from_millis(20)).await;
            }
            rested.push(file);
        }
        let held = c.data().readahead().held_bytes();
        assert!(held > 16 * MIB, "{held} bytes: nothing is held that could be missed");
        world.sim.sleep(Duration::from_secs(30)).await;
        assert_eq!(c.data().readahead().held_bytes(), 0, "nobody reads them");
        let before = c.data().readahead().stats();
        let fifth = open(&c, "f4", 0).await;
        assert_eq!(read_all(&c, &fifth, 8 * MIB).await.len() as u64, 8 * MIB);
        let after = c.data().readahead().stats();
        assert!(after.prefetched_bytes - before.prefetched_bytes > 4 * MIB, "the fifth reads ahead: {after:?}");
        // What was read ahead of the others is still in the cache.
        let rpcs = c.osts().all()[0].import().unwrap().counters().1;
        assert_eq!(c.data().read(&rested[0], 24 * 128 * KIB, 128 << 10).await.unwrap().len(), 128 << 10);
        assert!(c.osts().all()[0].import().unwrap().counters().1 <= rpcs + 4, "its pages went");
    });
}
