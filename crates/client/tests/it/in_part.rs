//! Calls that are done in part: those that fail half way, and those whose program is killed when it was just done. What was done counts,
//! and a kernel in front, which takes an error for nothing at all, hears of it.
use std::collections::BTreeMap;

use crate::cancel::amid::{When, dropped_after};
use crate::world::*;
use rt::LocalFuture;

const O_TRUNC: u32 = 0o1000;
const OST_BYTES: u64 = 32 * MIB;
/// Bytes that a copy reads at a time.
const STEP: u64 = MIB;

/// A kernel that counts how often it was told to forget the attributes of each inode.
#[derive(Clone, Default)]
struct Hears(Rc<RefCell<BTreeMap<Fid, u32>>>);

impl Hears {
    fn before(client: &Rc<Client>) -> Hears {
        let kernel = Hears::default();
        client.kernel().set(Rc::new(kernel.clone()));
        kernel
    }
    /// How often since it was asked last.
    fn told(&self, fid: Fid) -> u32 {
        self.0.borrow_mut().remove(&fid).unwrap_or(0)
    }
}

impl client::KernelCache for Hears {
    fn drop_attributes(&self, fid: Fid) -> LocalFuture<bool> {
        *self.0.borrow_mut().entry(fid).or_default() += 1;
        Box::pin(std::future::ready(true))
    }
    fn drop_pages(&self, _fid: Fid, _extent: Extent) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
    fn drop_names(&self) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
    fn lets_go(&self) -> bool {
        false
    }
    fn let_go(&self, _fids: &[Fid]) {}
}

/// A new file over `count` OSTs from `first` on, `stripe` bytes at a time.
async fn create_over(c: &Rc<Client>, name: &str, (first, count): (u16, u16), stripe: u64) -> Rc<OpenFile> {
    let mut spec = layout::LayoutSpec::default();
    spec.stripe_size = Some(layout::StripeSize::new(stripe).unwrap());
    spec.stripe_count = layout::StripeCount::Exactly(count);
    spec.index = Some(OstIndex(first));
    let layout = layout::xattr::encode_spec(&spec);
    let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, layout: &layout, ..NewFile::default() };
    c.create_open(&root(), Fid::ROOT, name.as_bytes(), new).await.unwrap().1
}

async fn size(c: &Rc<Client>, fid: Fid) -> u64 {
    c.getattr(&root(), fid, None).await.unwrap().attr.size
}

#[test]
fn a_copy_that_fails_half_way_tells_how_far_it_came() {
    let world = World::new(1, 2, OstConfig::default());
    let (c, _) = world.client(|_| {});
    let kernel = Hears::before(&c);
    world.run(Duration::from_secs(3600), async {
        let from = create_over(&c, "from", (0, 2), STEP).await;
        let to = create_over(&c, "to", (0, 1), STEP).await;
        for step in 0..4 {
            c.data().write(&from, step * STEP, &pattern(step * STEP, STEP as usize, 3)).await.unwrap();
        }
        c.data().fsync(&from, false).await.unwrap();
        c.drop_caches().await;
        // The second step is on the second OST.
        world.oss[1].running.borrow().as_ref().unwrap().1.clone().unwrap().abandon();
        kernel.told(to.fid());
        assert_eq!(c.data().copy_range(&from, 0, &to, 0, 4 * STEP).await, Ok(STEP));
        assert!(kernel.told(to.fid()) > 0, "more may have been written");
        assert!(read_all(&c, &to, 4 * STEP).await == pattern(0, STEP as usize, 3));
        let next = c.data().copy_range(&from, STEP, &to, STEP, 3 * STEP).await;
        assert_eq!(next, Err(FsError::Io), "the next call meets what is wrong");
        assert!(kernel.told(to.fid()) > 0);
    });
}

#[test]
fn the_kernel_hears_of_an_allocation_that_found_space_on_some_osts_only() {
    let config = OstConfig { grant_initial_bytes: MIB / 2, grant_max_bytes: MIB, ..OstConfig::default() };
    let world = World::sized(SimConfig::new(2), 2, config, OST_BYTES);
    let ((c, _), (other, _)) = (world.client(|_| {}), world.client(|_| {}));
    let kernel = Hears::before(&c);
    world.run(Duration::from_secs(3600), async {
        let file = create_over(&c, "f", (0, 2), STRIPE).await;
        c.data().write(&file, 0, b"bytes").await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        let filler = create_over(&other, "filler", (1, 1), STRIPE).await;
        while other.data().fallocate(&filler, 0, 0, size(&other, filler.fid()).await + MIB).await.is_ok() {}
        world.sim.sleep(Duration::from_secs(10)).await;
        let began = c.rt().wall();
        kernel.told(file.fid());
        assert_eq!(c.data().fallocate(&file, 0, 0, 16 * MIB).await, Err(FsError::NoSpace));
        assert!(kernel.told(file.fid()) > 0, "it believes the size of before");
        let attr = c.getattr(&root(), file.fid(), None).await.unwrap().attr;
        assert!(attr.size > 15 * MIB && attr.mtime >= began, "what was allocated stays: {attr:?}");
        assert_eq!(size(&other, file.fid()).await, attr.size);
    });
}

/// Opens of what is there that cut it are dropped after each of their polls: of how many the file was cut, and its kernel heard nothing.
fn unheard(flags: u32) -> (u32, u32) {
    let world = World::new(4, 1, OstConfig::default());
    let (c, _) = world.client(|_| {});
    let kernel = Hears::before(&c);
    world.run(Duration::from_secs(3600), async {
        let (mut cut, mut unheard) = (0, 0);
        for polls in 1.. {
            let name = format!("f{polls}");
            let file = create(&c, &name).await;
            let fid = file.fid();
            c.data().write(&file, 0, &[1; 300]).await.unwrap();
            c.release(&file).await.unwrap();
            assert_eq!(size(&c, fid).await, 300);
            kernel.told(fid);
            let new = NewFile { flags: flags | O_CREAT | O_TRUNC, mode: 0o644, ..NewFile::default() };
            let (cred, name) = (root(), name.into_bytes());
            let opened = dropped_after(polls, When::Asleep, c.create_open(&cred, Fid::ROOT, &name, new)).await;
            if opened.is_some() {
                break;
            }
            world.sim.sleep(Duration::from_secs(1)).await;
            if size(&c, fid).await == 0 {
                cut += 1;
                unheard += u32::from(kernel.told(fid) == 0);
            }
        }
        (cut, unheard)
    })
}

#[test]
fn the_kernel_hears_of_a_cut_whose_program_was_killed_in_the_create_that_did_it() {
    for flags in [0, O_RDWR] {
        let (cut, unheard) = unheard(flags);
        assert!(cut > 0 && unheard == 0, "flags {flags:o}: of {cut} cuts {unheard} were not told");
    }
}
