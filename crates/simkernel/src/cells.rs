//! Programs that work on one file at once, through mappings and calls, on all mounts.
//!
//! Every cell of 8 bytes is changed by one program, which counts it up. A read must give no less than what was published
//! before it began (what write(2) returned from, what was stored on the same mount, what was stored elsewhere and synced)
//! and no more than what was begun before it ended. A cell is counted up by a store, a write(2), or a hole of its size.
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use types::{Duration, Rng};

use crate::conn::Caller;
use crate::file::{File, Mapping};
use crate::pages::PAGE;
use crate::run::{RunConfig, World};

const CELL: u64 = 8;
const CELLS_OF_PAGE: u64 = PAGE / CELL;
/// Pages of the file with cells: they lie on both sides of a stripe's end, so that reads need locks of two objects.
const PAGES: u64 = 12;
/// The page of the first cell.
const FIRST_PAGE: u64 = 10;
/// Cells in use of each page, so that they meet often.
const CELLS_USED: u64 = 16;

/// One cell's count.
#[derive(Default)]
struct Count {
    begun: Cell<u64>,
    /// As the mount of its program must see it.
    here: Cell<u64>,
    /// As everybody must see it.
    published: Cell<u64>,
    /// Counts at which it became a hole.
    holes: RefCell<BTreeSet<u64>>,
}

impl Count {
    /// What its bytes may mean: a count, if it is one of `least..=most`.
    fn is_good(&self, cell: u64, value: u64, least: u64, most: u64) -> bool {
        if value == 0 {
            return least == 0 || self.holes.borrow().range(least..=most).next().is_some();
        }
        value >> 32 == cell && (least..=most).contains(&(value & 0xffff_ffff))
    }
}

/// How a cell is changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Store,
    Write,
    Hole,
}

struct Shared {
    counts: Vec<Count>,
    programs: u64,
    of_mount: u64,
    maps: bool,
}

impl Shared {
    /// The program that counts a cell up, and its mount.
    fn owner(&self, cell: u64) -> (u64, usize) {
        let program = cell % self.programs;
        (program, (program / self.of_mount) as usize)
    }
}

/// Where a cell lies: the used ones stand at both ends and in the middle of the page.
fn place(cell: u64) -> u64 {
    let (page, n) = (cell / CELLS_USED, cell % CELLS_USED);
    ((FIRST_PAGE + page) * CELLS_OF_PAGE + n * (CELLS_OF_PAGE / CELLS_USED)) * CELL
}

struct Program {
    world: Rc<World>,
    shared: Rc<Shared>,
    number: u64,
    mount: usize,
    caller: Rc<Caller>,
    file: Rc<File>,
    mapping: Option<Mapping>,
    /// It changes nothing.
    reads: bool,
    rng: Rng,
}

/// Runs the programs of a run.
pub async fn work(world: &Rc<World>, config: &RunConfig) {
    let all = (world.kernels.len() * config.programs) as u64;
    let counts = (0..PAGES * CELLS_USED).map(|_| Count::default()).collect();
    let shared = Rc::new(Shared { counts, programs: all, of_mount: config.programs as u64, maps: config.maps });
    let mut ends = Vec::new();
    for number in 0..all {
        let mount = (number / config.programs as u64) as usize;
        let caller = world.caller(mount, (number % config.programs as u64) as usize, config.programs);
        let kernel = world.kernel(mount).clone();
        let root = kernel.root();
        let reads = config.readers && mount + 1 == world.kernels.len();
        let flags = if reads { libc::O_RDONLY } else { libc::O_RDWR | libc::O_CREAT };
        let opened = async { kernel.open(&caller, &root, b"cells", flags).await };
        let Some(file) = world.must(mount, "open of the cells", opened).await else { return };
        let cut = async {
            if reads {
                Ok(())
            } else {
                kernel.truncate(&caller, &file.inode, Some(&file), (FIRST_PAGE + PAGES) * PAGE).await
            }
        };
        if world.must(mount, "making of the cells", cut).await.is_none() {
            return;
        }
        let rng = world.context.rng(&format!("cells of program {number}"));
        let (world, shared) = (world.clone(), shared.clone());
        let mut program = Program { world, shared, number, mount, caller, file, mapping: None, reads, rng };
        let (tx, rx) = rt::sync::oneshot();
        let operations = config.operations;
        ends.push((rx, async move {
            program.run(operations).await;
            tx.send(());
        }));
    }
    let mut waits = Vec::new();
    for (rx, task) in ends {
        world.context.cluster.sim.spawn(task);
        waits.push(rx);
    }
    rt::sync::join_all(waits).await;
}

impl Program {
    async fn run(&mut self, operations: u64) -> Option<()> {
        for _ in 0..operations {
            if self.world.failed() {
                return None;
            }
            match self.rng.below(100) {
                ..5 if self.reads => self.open_again().await?,
                ..45 if self.reads => self.look().await?,
                ..45 => self.change().await?,
                45..90 => self.look().await?,
                90..95 => self.sync().await?,
                _ => self.unmap().await?,
            }
            let pause = if self.rng.chance(0.02) { 3_000_000 } else { 2_000 };
            self.world.context.cluster.sim.sleep(Duration::from_micros(self.rng.below(pause))).await;
        }
        self.unmap().await?;
        let close = self.world.kernel(self.mount).close(&self.caller, &self.file);
        self.world.must(self.mount, "close", close).await
    }

    /// Closes the file and opens it again, as a kernel keeps pages from one open to the next.
    async fn open_again(&mut self) -> Option<()> {
        self.unmap().await?;
        let kernel = self.world.kernel(self.mount).clone();
        self.world.must(self.mount, "close", kernel.close(&self.caller, &self.file)).await?;
        let root = kernel.root();
        let opened = async { kernel.open(&self.caller, &root, b"cells", libc::O_RDONLY).await };
        self.file = self.world.must(self.mount, "open of the cells", opened).await?;
        Some(())
    }

    async fn map(&mut self) -> Option<()> {
        if self.mapping.is_none() {
            let map = self.world.kernel(self.mount).map(&self.file, !self.reads);
            self.mapping = Some(self.world.must(self.mount, "mmap", map).await?);
        }
        Some(())
    }

    async fn change(&mut self) -> Option<()> {
        let own = PAGES * CELLS_USED / self.shared.programs;
        let cell = self.rng.below(own) * self.shared.programs + self.number;
        let way = match self.rng.below(100) {
            ..60 if self.shared.maps => Way::Store,
            ..90 => Way::Write,
            _ => Way::Hole,
        };
        if way == Way::Store {
            self.map().await?;
        }
        let count = &self.shared.counts[cell as usize];
        let next = count.begun.get() + 1;
        count.begun.set(next);
        let data = (cell << 32 | next).to_ne_bytes();
        let (kernel, at) = (self.world.kernel(self.mount), place(cell));
        match way {
            Way::Store => {
                let stored = kernel.store(&self.caller, &self.file, at, &data);
                let done = self.world.op(self.mount, &format!("store of {next} at {at}"), stored).await?;
                self.world.context.expect("store", done.map_err(|e| format!("{e:?}")));
            }
            Way::Write => {
                let asynchronous = self.rng.chance(0.3);
                let written = async {
                    if asynchronous {
                        let written = kernel.write_async(&self.caller, &self.file, at, Ok(&data)).await;
                        // There may be too many.
                        if written != Err(libc::EAGAIN) {
                            return written;
                        }
                    }
                    kernel.write(&self.caller, &self.file, at, &data).await
                };
                self.world.must(self.mount, &format!("write of {next} at {at}"), written).await?;
                count.published.set(next);
            }
            Way::Hole => {
                count.holes.borrow_mut().insert(next);
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let punched = kernel.fallocate(&self.caller, &self.file, mode, at, CELL);
                self.world.must(self.mount, &format!("hole {next} at {at}"), punched).await?;
                count.published.set(next);
            }
        }
        count.here.set(next);
        Some(())
    }

    async fn look(&mut self) -> Option<()> {
        let used = PAGES * CELLS_USED;
        let first = self.rng.below(used);
        let most = if self.rng.chance(0.2) { used } else { 1 };
        let last = (first + self.rng.below(most)).min(used - 1);
        let seen = |c: &Count, mount: usize| if mount == self.mount { c.here.get() } else { c.published.get() };
        let least: Vec<u64> =
            (first..=last).map(|c| seen(&self.shared.counts[c as usize], self.shared.owner(c).1)).collect();
        let (from, to) = (place(first), place(last) + CELL);
        let mut bytes = vec![0; (to - from) as usize];
        let through_mapping = self.shared.maps && self.rng.chance(0.5);
        let what = if through_mapping { "load" } else { "read" };
        let what = format!("kernel {}: {what} of {from}..{to}", self.mount);
        if through_mapping {
            self.map().await?;
            let kernel = self.world.kernel(self.mount);
            // Cell by cell, so that none is torn: a load is at one moment.
            for cell in first..=last {
                let at = (place(cell) - from) as usize;
                let part = &mut bytes[at..at + CELL as usize];
                let done = self.world.op(self.mount, &what, kernel.load(&self.caller, &self.file, place(cell), part));
                let done = done.await?;
                self.world.context.expect(&what, done.map_err(|e| format!("{e:?}")));
            }
        } else {
            let read = self.world.kernel(self.mount).read(&self.caller, &self.file, from, to - from);
            bytes = self.world.must(self.mount, &what, read).await?;
        }
        for (cell, least) in (first..=last).zip(least) {
            let at = (place(cell) - from) as usize;
            let value =
                bytes.get(at..at + CELL as usize).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("8 bytes")));
            let (of, count) = (value >> 32, value & 0xffff_ffff);
            let most = self.shared.counts[cell as usize].begun.get();
            let good = self.shared.counts[cell as usize].is_good(cell, value, least, most);
            let outcome = if good {
                Ok(())
            } else {
                let (program, mount) = self.shared.owner(cell);
                Err(format!(
                    "byte {} (cell {cell} of program {program}, kernel {mount}) is {count} of cell {of}, not {least}..={most}",
                    place(cell)
                ))
            };
            self.world.context.expect(&what, outcome);
        }
        Some(())
    }

    /// Everything that was stored on this mount before is published afterwards.
    async fn publish(&mut self, what: &str, work: impl Future<Output = Result<(), i32>>) -> Option<()> {
        let of_mount = |c: u64| self.shared.owner(c).1 == self.mount;
        let cells: Vec<u64> = (0..PAGES * CELLS_USED).filter(|c| of_mount(*c)).collect();
        let stored: Vec<u64> = cells.iter().map(|c| self.shared.counts[*c as usize].here.get()).collect();
        self.world.must(self.mount, what, work).await?;
        for (cell, count) in cells.into_iter().zip(stored) {
            let published = &self.shared.counts[cell as usize].published;
            published.set(published.get().max(count));
        }
        Some(())
    }

    async fn sync(&mut self) -> Option<()> {
        let (kernel, caller, file) = (self.world.kernel(self.mount).clone(), self.caller.clone(), self.file.clone());
        self.publish("msync", async move { kernel.fsync(&caller, &file).await }).await
    }

    async fn unmap(&mut self) -> Option<()> {
        let Some(mapping) = self.mapping.take() else { return Some(()) };
        let kernel = self.world.kernel(self.mount).clone();
        let work = async move {
            kernel.unmap(mapping).await;
            Ok(())
        };
        self.publish("munmap", work).await
    }
}
