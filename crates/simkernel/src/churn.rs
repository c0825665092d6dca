//! Everything at once on a few files: nothing may hang, no call may fail without reason, no cell may hold what was never
//! written to it; and when all is calm every mount sees the same, also one whose client was evicted.
use std::rc::Rc;

use types::{Duration, Rng};

use crate::conn::Caller;
use crate::file::{File, Mapping};
use crate::kernel::Kernel;
use crate::pages::{Fault, PAGE};
use crate::run::{RunConfig, World};

const CELL: u64 = 8;
const PAGES_MAX: u64 = 16;
const NAMES: u64 = 2;
const HANDLES_MAX: usize = 3;

struct Handle {
    file: Rc<File>,
    mapping: Option<Mapping>,
    writes: bool,
}

/// A program, with what it has open.
pub(crate) struct Program {
    world: Rc<World>,
    mount: usize,
    caller: Rc<Caller>,
    rng: Rng,
    handles: Vec<Handle>,
    stamp: u64,
    signals: bool,
    /// Clients may be evicted.
    evicted: bool,
    maps: bool,
    direct: bool,
}

fn name(n: u64) -> Vec<u8> {
    format!("churn{n}").into_bytes()
}

/// Runs the programs of a run; gives them with what they have open.
pub(crate) async fn work(world: &Rc<World>, config: &RunConfig) -> Vec<Program> {
    let mut ends = Vec::new();
    for mount in 0..world.kernels.len() {
        for number in 0..config.programs {
            let caller = world.caller(mount, number, config.programs);
            let rng = world.context.rng(&format!("churn {mount} {number}"));
            let stamp = (mount * config.programs + number) as u64 * 1_000_000;
            let (signals, evicted) = (config.faults.signal_interval_s > 0.0, config.faults.evict());
            let (world, handles, maps, direct) = (world.clone(), Vec::new(), config.maps, config.direct);
            let mut program = Program { world, mount, caller, rng, handles, stamp, signals, evicted, maps, direct };
            let (tx, rx) = rt::sync::oneshot();
            let operations = config.operations;
            program.world.clone().context.cluster.sim.spawn(async move {
                program.run(operations).await;
                tx.send(program);
            });
            ends.push(rx);
        }
    }
    rt::sync::join_all(ends).await.into_iter().flatten().collect()
}

/// When all is calm: what programs have mapped is what the file holds, and every mount sees the same.
pub(crate) async fn calm(world: &Rc<World>, mut programs: Vec<Program>) -> Option<()> {
    world.callers.iter().for_each(|c| c.calm());
    for program in &mut programs {
        program.last_looks().await?;
    }
    compare(world).await
}

/// All mounts see the same files.
async fn compare(world: &Rc<World>) -> Option<()> {
    let caller = Caller::new(7);
    for n in 0..NAMES {
        let mut first = None;
        for mount in 0..world.kernels.len() {
            let kernel = world.kernel(mount).clone();
            let opened = async { kernel.open(&caller, &kernel.root(), &name(n), libc::O_RDONLY).await };
            let contents = match world.op(mount, "the last open", opened).await? {
                Ok(file) => {
                    let read = kernel.read(&caller, &file, 0, (PAGES_MAX + 1) * PAGE);
                    let bytes = world.must(mount, "the last read", read).await?;
                    world.must(mount, "the last close", kernel.close(&caller, &file)).await?;
                    Ok(bytes)
                }
                Err(e) => Err(e),
            };
            let same = first.get_or_insert_with(|| contents.clone()) == &contents;
            let outcome = if same { Ok(()) } else { Err(difference(mount, first.as_ref(), &contents)) };
            world.context.expect(&format!("churn{n} at the end"), outcome);
        }
    }
    let mut first = None;
    for mount in 0..world.kernels.len() {
        let kernel = world.kernel(mount).clone();
        let root = kernel.root();
        let mut names = world.must(mount, "the last listing", kernel.list(&caller, &root, false)).await?;
        names.sort_unstable();
        let same = first.get_or_insert_with(|| names.clone()) == &names;
        let outcome = if same { Ok(()) } else { Err(format!("kernel {mount} lists {names:?}, kernel 0 {first:?}")) };
        world.context.expect("names at the end", outcome);
    }
    Some(())
}

fn difference_at(at: usize, pages: &[u8], bytes: &[u8], node: u64) -> String {
    let cell = at - at % CELL as usize;
    let of = |all: &[u8]| all[cell..all.len().min(cell + CELL as usize)].to_vec();
    let (mapped, read, size) = (of(pages), of(bytes), bytes.len());
    format!("node {node:x} has {mapped:x?} at {at} of its pages, and {read:x?} is read (of {size} bytes)")
}

type Contents = Result<Vec<u8>, i32>;

fn difference(mount: usize, first: Option<&Contents>, other: &Contents) -> String {
    match (first, other) {
        (Some(Ok(a)), Ok(b)) => {
            let at = a.iter().zip(b).position(|(x, y)| x != y);
            format!("kernel {mount} sees {} bytes, kernel 0 {}; the first that differs is {at:?}", b.len(), a.len())
        }
        (a, b) => format!("kernel {mount}: {:?}, kernel 0: {:?}", b.as_ref().err(), a.map(|a| a.as_ref().err())),
    }
}

impl Program {
    fn kernel(&self) -> Rc<Kernel> {
        self.world.kernel(self.mount).clone()
    }

    async fn run(&mut self, operations: u64) -> Option<()> {
        for _ in 0..operations {
            if self.world.failed() {
                return None;
            }
            self.step().await?;
            self.caller.calm();
            let pause = if self.rng.chance(0.05) { 2_000_000 } else { 1_000 };
            self.world.context.cluster.sim.sleep(Duration::from_micros(self.rng.below(pause))).await;
        }
        Some(())
    }

    /// Compares the pages of its mappings with what the daemon says, and closes what it has open.
    async fn last_looks(&mut self) -> Option<()> {
        let kernel = self.kernel();
        while let Some(handle) = self.handles.pop() {
            let file = handle.file.clone();
            // Reads of what is open for writing pass the pages.
            if handle.mapping.is_some() && handle.writes && !self.world.failed() {
                let mut pages = vec![0; (PAGES_MAX * PAGE) as usize];
                let mut seen = 0;
                for page in pages.chunks_exact_mut(PAGE as usize) {
                    let place = seen * PAGE;
                    let loaded = kernel.load(&self.caller, &file, place, page);
                    match self.world.op(self.mount, "the last load", loaded).await? {
                        Ok(()) => seen += 1,
                        Err(Fault::Behind) => break,
                        failed => {
                            self.on_fault("the last load", failed)?;
                            break;
                        }
                    }
                }
                // What lies behind a size that a kernel knew while others had made the file longer is of no file (docs/limits.md).
                pages.truncate(file.inode.size.get() as usize);
                let read = kernel.read(&self.caller, &file, 0, seen * PAGE);
                if let Some(bytes) = self.call("the last read of what is mapped", &[libc::EAGAIN], read).await? {
                    let differ = pages.iter().zip(&bytes).position(|(page, byte)| page != byte);
                    let differ = differ.map(|at| difference_at(at, &pages, &bytes, file.inode.nodeid));
                    let what = format!("kernel {}: what is mapped", self.mount);
                    self.world.context.expect(&what, differ.map_or(Ok(()), Err));
                }
            }
            self.close(handle).await?;
        }
        Some(())
    }

    /// Runs a call that may fail with one of `allowed`, or because of a signal.
    async fn call<T>(
        &self,
        what: &str,
        allowed: &[i32],
        work: impl Future<Output = Result<T, i32>>,
    ) -> Option<Option<T>> {
        match self.world.op(self.mount, what, work).await? {
            Ok(done) => Some(Some(done)),
            Err(libc::EINTR) if self.signals => Some(None),
            // ESTALE: a file without a name, which goes with the last of its opens.
            Err(libc::EIO | libc::ESTALE) if self.evicted => Some(None),
            Err(e) if allowed.contains(&e) => Some(None),
            Err(e) => {
                let why = std::io::Error::from_raw_os_error(e);
                self.world.context.complain(format!("kernel {}: {what}: {why}", self.mount));
                None
            }
        }
    }

    async fn step(&mut self) -> Option<()> {
        let kernel = self.kernel();
        let root = kernel.root();
        let draw = self.rng.below(100);
        if self.handles.is_empty() || draw < 12 && self.handles.len() < HANDLES_MAX {
            return self.open().await;
        }
        let at = self.rng.below(self.handles.len() as u64) as usize;
        match draw {
            ..17 => {
                let handle = self.handles.swap_remove(at);
                return self.close(handle).await;
            }
            17..20 => {
                let name = name(self.rng.below(NAMES));
                let unlinked = kernel.unlink(&self.caller, &root, &name);
                self.call("unlink", &[libc::ENOENT], unlinked).await?;
            }
            20..22 => {
                let (from, to) = (name(self.rng.below(NAMES)), name(self.rng.below(NAMES)));
                self.call("rename", &[libc::ENOENT], kernel.rename(&self.caller, &root, &from, &to)).await?;
            }
            22..25 => {
                let name = name(self.rng.below(NAMES));
                let stat = kernel.stat(&self.caller, &root, &name);
                self.call("stat", &[libc::ENOENT, libc::ESTALE], stat).await?;
            }
            25..28 => {
                let plus = self.rng.chance(0.5);
                self.call("listing", &[], kernel.list(&self.caller, &root, plus)).await?;
            }
            _ => return self.use_file(at, draw).await,
        }
        Some(())
    }

    async fn open(&mut self) -> Option<()> {
        let kernel = self.kernel();
        let writes = self.rng.chance(0.8);
        let mut flags = if writes { libc::O_RDWR | libc::O_CREAT } else { libc::O_RDONLY };
        if writes && self.rng.chance(0.2) {
            flags |= libc::O_TRUNC;
        }
        if self.direct && self.rng.chance(0.4) {
            flags |= libc::O_DIRECT;
        }
        let n = self.rng.below(NAMES);
        let root = kernel.root();
        let name = name(n);
        let opened = async { kernel.open(&self.caller, &root, &name, flags).await };
        let what = format!("open of churn{n} with flags {flags:o}");
        if let Some(file) = self.call(&what, &[libc::ENOENT, libc::ESTALE, libc::EEXIST], opened).await? {
            self.handles.push(Handle { file, mapping: None, writes });
        }
        Some(())
    }

    async fn close(&mut self, handle: Handle) -> Option<()> {
        let kernel = self.kernel();
        if let Some(mapping) = handle.mapping {
            self.world.op(self.mount, "munmap", kernel.unmap(mapping)).await?;
        }
        self.call("close", &[], kernel.close(&self.caller, &handle.file)).await.map(drop)
    }

    async fn use_file(&mut self, at: usize, draw: u64) -> Option<()> {
        let kernel = self.kernel();
        let (file, writes) = (self.handles[at].file.clone(), self.handles[at].writes);
        let place = self.rng.below(PAGES_MAX * PAGE / CELL) * CELL;
        let len = (CELL + self.rng.below(3 * PAGE) / CELL * CELL).min(PAGES_MAX * PAGE - place);
        let node = file.inode.nodeid;
        let what = |of: &str| format!("{of} {place}+{len} (node {node:x})");
        let asynchronous = self.direct && self.rng.chance(0.4);
        // There are too many asynchronous requests.
        let full: &[i32] = if asynchronous { &[libc::EAGAIN] } else { &[] };
        match draw {
            28..40 => {
                let read = kernel.read_as(asynchronous, &self.caller, &file, place, len);
                if let Some(bytes) = self.call(&what("read"), full, read).await? {
                    self.check(&what("read"), place, &bytes);
                }
            }
            40..52 if writes => {
                let data = self.cells(place, len);
                let written = kernel.write_as(asynchronous, &self.caller, &file, place, &data);
                self.call(&what("write"), full, written).await?;
            }
            52..72 if self.maps => {
                self.map(at).await?;
                return if writes && draw < 66 {
                    self.store(&file, place, len).await
                } else {
                    self.load(&file, place, len).await
                };
            }
            72..80 if writes => {
                let cut = kernel.truncate(&self.caller, &file.inode, Some(&file), place);
                self.call(&what("ftruncate"), &[], cut).await?;
            }
            80..86 if writes => {
                let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let mode = [punch, 0, libc::FALLOC_FL_KEEP_SIZE][self.rng.below(3) as usize];
                let done = kernel.fallocate(&self.caller, &file, mode, place, len);
                self.call(&what(&format!("fallocate {mode}")), &[], done).await?;
            }
            86..90 => {
                self.call(&what("fstat"), &[], kernel.fstat(&self.caller, &file)).await?;
            }
            90..93 => {
                // From the same place of another file, where cells say the same.
                let other = self.rng.below(self.handles.len() as u64) as usize;
                let to = &self.handles[other];
                if to.writes && to.file.inode.nodeid != node {
                    let to = to.file.clone();
                    let what = format!("copy of {place}+{len} from node {node:x} to node {:x}", to.inode.nodeid);
                    self.call(&what, &[], kernel.copy_range(&self.caller, (&file, place), (&to, place), len)).await?;
                }
            }
            93..95 => {
                self.call(&what("fsync"), &[], kernel.fsync(&self.caller, &file)).await?;
            }
            _ => {
                if let Some(mapping) = self.handles[at].mapping.take() {
                    self.world.op(self.mount, "munmap", kernel.unmap(mapping)).await?;
                }
            }
        }
        Some(())
    }

    async fn map(&mut self, at: usize) -> Option<()> {
        if self.handles[at].mapping.is_none() {
            let (file, writes) = (self.handles[at].file.clone(), self.handles[at].writes);
            let mapping = self.world.must(self.mount, "mmap", self.kernel().map(&file, writes)).await?;
            self.handles[at].mapping = Some(mapping);
        }
        Some(())
    }

    async fn store(&mut self, file: &Rc<File>, place: u64, len: u64) -> Option<()> {
        // What is stored behind the size that the kernel knows, in the last page, is not written (docs/limits.md).
        let size = file.inode.size.get() / CELL * CELL;
        let len = if place < size.next_multiple_of(PAGE) { len.min(size.saturating_sub(place)) } else { len };
        let data = self.cells(place, len);
        let what = format!("store of {place}+{len} (node {:x})", file.inode.nodeid);
        let done = self.world.op(self.mount, &what, self.kernel().store(&self.caller, file, place, &data)).await?;
        self.on_fault(&what, done)
    }

    async fn load(&mut self, file: &Rc<File>, place: u64, len: u64) -> Option<()> {
        let mut bytes = vec![0; len as usize];
        let what = format!("load of {place}+{len} (node {:x})", file.inode.nodeid);
        let done = self.world.op(self.mount, &what, self.kernel().load(&self.caller, file, place, &mut bytes)).await?;
        if done.is_ok() {
            self.check(&what, place, &bytes);
        }
        self.on_fault(&what, done)
    }

    fn on_fault(&self, what: &str, done: Result<(), Fault>) -> Option<()> {
        match done {
            Ok(()) | Err(Fault::Behind) => Some(()),
            Err(Fault::Io(libc::EINTR)) if self.signals => Some(()),
            Err(Fault::Io(libc::EIO | libc::ESTALE)) if self.evicted => Some(()),
            Err(Fault::Io(e)) => {
                self.world.context.complain(format!("kernel {}: {what}: SIGBUS for errno {e}", self.mount));
                None
            }
        }
    }

    /// Bytes for a range: every cell says where it belongs.
    fn cells(&mut self, place: u64, len: u64) -> Vec<u8> {
        self.stamp += 1;
        (place / CELL..(place + len) / CELL).flat_map(|cell| (self.stamp << 24 | cell).to_ne_bytes()).collect()
    }

    fn check(&self, what: &str, place: u64, bytes: &[u8]) {
        for (i, cell) in bytes.chunks_exact(CELL as usize).enumerate() {
            let value = u64::from_ne_bytes(cell.try_into().expect("a cell's bytes"));
            let at = place / CELL + i as u64;
            if value != 0 && value & 0xff_ffff != at {
                let e = format!("byte {} holds {value:x}, which was written elsewhere", at * CELL);
                return self.world.context.expect(what, Err(e));
            }
        }
        self.world.context.expect(what, Ok(()));
    }
}
