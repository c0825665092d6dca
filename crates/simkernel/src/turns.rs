//! Programs that take turns: one operation at a time over all mounts, so that what each must see is known exactly.
//!
//! Files consist of cells of 8 bytes. A write(2), a cut or a punched hole is seen by everybody once it has returned. A
//! store through a mapping is seen on its own mount at once; others may see the former or the new value until it is
//! published (fsync, munmap, close), and never an older one than they saw. Cells are stored to by one mount each, and
//! written by all. A cut takes stores away for good, also those that the other kernel has not written yet.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use types::{Duration, Rng};

use crate::conn::Caller;
use crate::file::{File, Mapping};
use crate::names::OpenDir;
use crate::pages::{Fault, PAGE};
use crate::run::{RunConfig, World};

/// Bytes of a cell.
const CELL: u64 = 8;
/// Pages of a file at most.
const PAGES_MAX: u64 = 20;
/// Names in use.
const NAMES: u64 = 3;
/// Files that a program has open at most.
const HANDLES_MAX: usize = 4;

/// What a cell may hold: values in the order of their stores, all but the last seen by other mounts at most.
struct Cell {
    allowed: Vec<u64>,
    mount: usize,
}

/// What a file must hold.
#[derive(Default)]
struct Model {
    size: u64,
    cells: BTreeMap<u64, Cell>,
}

impl Model {
    fn written(&mut self, from: u64, to: u64, value: u64) {
        for cell in from / CELL..to / CELL {
            self.cells.insert(cell, Cell { allowed: vec![value], mount: usize::MAX });
        }
        self.size = self.size.max(to);
    }
    fn cleared(&mut self, from: u64, to: u64) {
        let gone: Vec<u64> = self.cells.range(from / CELL..to / CELL).map(|(c, _)| *c).collect();
        gone.iter().for_each(|c| drop(self.cells.remove(c)));
    }
    fn cut(&mut self, size: u64) {
        self.cells.split_off(&(size / CELL));
        self.size = size;
    }
    fn stored(&mut self, mount: usize, cell: u64, value: u64) {
        let known = self.cells.entry(cell).or_insert_with(|| Cell { allowed: vec![0], mount });
        known.mount = mount;
        known.allowed.push(value);
    }
    fn published(&mut self, mount: usize) {
        for cell in self.cells.values_mut().filter(|c| c.mount == mount) {
            cell.allowed.drain(..cell.allowed.len() - 1);
        }
    }
    fn seen(&mut self, mount: usize, cell: u64, value: u64) -> Result<(), String> {
        let Some(known) = self.cells.get_mut(&cell) else {
            return if value == 0 { Ok(()) } else { Err(format!("{value} where nothing is")) };
        };
        let oldest = if known.mount == mount { known.allowed.len() - 1 } else { 0 };
        match known.allowed[oldest..].iter().rposition(|v| *v == value) {
            Some(at) => {
                known.allowed.drain(..oldest + at);
                Ok(())
            }
            None => Err(format!("{value}, not one of {:?}", &known.allowed[oldest..])),
        }
    }
}

struct Handle {
    file: Rc<File>,
    model: Rc<RefCell<Model>>,
    mapping: Option<Mapping>,
    writes: bool,
    appends: bool,
}

struct Program {
    mount: usize,
    caller: Rc<Caller>,
    handles: Vec<Handle>,
    /// The directory, open since an earlier listing.
    dir: Option<OpenDir>,
}

struct Turns {
    world: Rc<World>,
    rng: Rng,
    stamp: u64,
    names: BTreeMap<u64, Rc<RefCell<Model>>>,
    maps: bool,
}

fn name(n: u64) -> Vec<u8> {
    format!("file{n}").into_bytes()
}

/// Runs the programs of a run.
pub async fn work(world: &Rc<World>, config: &RunConfig) {
    let rng = world.context.rng("turns");
    let mut turns = Turns { world: world.clone(), rng, stamp: 0, names: BTreeMap::new(), maps: config.maps };
    let mounts = world.kernels.len();
    let mut programs: Vec<Program> = Vec::new();
    for mount in 0..mounts {
        for p in 0..config.programs {
            let caller = world.caller(mount, p, config.programs);
            programs.push(Program { mount, caller, handles: Vec::new(), dir: None });
        }
    }
    for _ in 0..config.operations * programs.len() as u64 {
        if world.failed() {
            return;
        }
        let at = turns.rng.below(programs.len() as u64) as usize;
        turns.turn(&mut programs[at]).await;
        let pause = match turns.rng.below(20) {
            0 => turns.rng.below(40_000_000),
            1..5 => turns.rng.below(200_000),
            _ => turns.rng.below(500),
        };
        world.context.cluster.sim.sleep(Duration::from_micros(pause)).await;
    }
    for program in &mut programs {
        if let Some(dir) = program.dir.take() {
            world.kernel(program.mount).close_dir(dir);
        }
        while let Some(handle) = program.handles.pop() {
            if world.failed() {
                return;
            }
            turns.close(program.mount, &program.caller, handle).await;
        }
    }
    for program in &programs {
        if world.failed() {
            return;
        }
        turns.check_all(program).await;
    }
}

impl Turns {
    async fn turn(&mut self, p: &mut Program) -> Option<()> {
        let full = p.handles.len() >= HANDLES_MAX;
        let at = self.rng.below(p.handles.len().max(1) as u64) as usize;
        let draw = self.rng.below(100);
        if p.handles.is_empty() || draw < 10 && !full {
            return self.open(p).await;
        }
        match draw {
            ..14 => {
                let handle = p.handles.swap_remove(at);
                self.close(p.mount, &p.caller, handle).await
            }
            14..18 => self.unlink(p).await,
            18..21 => self.rename(p).await,
            21..25 => self.stat(p).await,
            25..28 => self.list(p).await,
            28..40 => self.write(p, at).await,
            40..52 => self.read(p, at).await,
            52..70 if self.maps => self.store(p, at).await,
            70..78 if self.maps => self.load(p, at).await,
            52..65 => self.write(p, at).await,
            65..78 => self.read(p, at).await,
            78..86 => self.truncate(p, at).await,
            86..88 => self.punch(p, at).await,
            88..90 => self.seek(p, at).await,
            90..91 => self.allocate(p, at).await,
            91..92 => self.fail(p, at).await,
            92..97 => self.sync(p, at).await,
            _ => self.unmap(p, at).await,
        }
    }

    async fn open(&mut self, p: &mut Program) -> Option<()> {
        let n = self.rng.below(NAMES);
        let exists = self.names.contains_key(&n);
        let writes = !exists || self.rng.chance(0.7);
        let create = writes && self.rng.chance(0.5) || !exists;
        let cuts = writes && self.rng.chance(0.15);
        let mut flags = if writes { libc::O_RDWR } else { libc::O_RDONLY };
        let appends = writes && self.rng.chance(0.15);
        flags |= if create { libc::O_CREAT } else { 0 } | if cuts { libc::O_TRUNC } else { 0 };
        flags |= if appends { libc::O_APPEND } else { 0 };
        let kernel = self.world.kernel(p.mount).clone();
        let what = format!("open of file{n} with flags {flags:o}");
        let opened = async { kernel.open(&p.caller, &kernel.root(), &name(n), flags).await };
        let file = self.world.must(p.mount, &what, opened).await?;
        let model = self.names.entry(n).or_default().clone();
        if cuts {
            model.borrow_mut().cut(0);
        }
        p.handles.push(Handle { file, model, mapping: None, writes, appends });
        Some(())
    }

    async fn close(&mut self, mount: usize, caller: &Caller, handle: Handle) -> Option<()> {
        let kernel = self.world.kernel(mount).clone();
        if let Some(mapping) = handle.mapping {
            self.world.op(mount, "munmap", kernel.unmap(mapping)).await?;
        }
        self.world.must(mount, "close", kernel.close(caller, &handle.file)).await?;
        handle.model.borrow_mut().published(mount);
        Some(())
    }

    async fn unlink(&mut self, p: &Program) -> Option<()> {
        let n = self.rng.below(NAMES);
        let kernel = self.world.kernel(p.mount).clone();
        let unlinked = async { kernel.unlink(&p.caller, &kernel.root(), &name(n)).await };
        let done = self.world.op(p.mount, &format!("unlink of file{n}"), unlinked).await?;
        let expected = if self.names.remove(&n).is_some() { Ok(()) } else { Err(libc::ENOENT) };
        self.expect("unlink", done, expected);
        Some(())
    }

    async fn rename(&mut self, p: &Program) -> Option<()> {
        let (from, to) = (self.rng.below(NAMES), self.rng.below(NAMES));
        let kernel = self.world.kernel(p.mount).clone();
        let renamed = async { kernel.rename(&p.caller, &kernel.root(), &name(from), &name(to)).await };
        let done = self.world.op(p.mount, &format!("rename of file{from} to file{to}"), renamed).await?;
        let expected = match self.names.remove(&from) {
            Some(model) => {
                self.names.insert(to, model);
                Ok(())
            }
            None => Err(libc::ENOENT),
        };
        self.expect("rename", done, expected);
        Some(())
    }

    async fn stat(&mut self, p: &Program) -> Option<()> {
        let n = self.rng.below(NAMES);
        let kernel = self.world.kernel(p.mount).clone();
        let stat = async { kernel.stat(&p.caller, &kernel.root(), &name(n)).await };
        let done = self.world.op(p.mount, &format!("stat of file{n}"), stat).await?;
        let expected = self.names.get(&n).map(|m| m.borrow().size).ok_or(libc::ENOENT);
        self.expect(&format!("kernel {}: size of file{n}", p.mount), done.map(|(_, size)| size), expected);
        Some(())
    }

    /// Lists the directory as it is opened, or one that was opened before.
    async fn list(&mut self, p: &mut Program) -> Option<()> {
        let kernel = self.world.kernel(p.mount).clone();
        let (root, plus) = (kernel.root(), self.rng.chance(0.5));
        let dir = match p.dir.take() {
            Some(dir) => dir,
            None => self.world.must(p.mount, "opendir", kernel.open_dir(&p.caller, &root)).await?,
        };
        let listed = self.world.must(p.mount, "listing", kernel.list_again(&p.caller, &dir, plus)).await?;
        if self.rng.chance(0.7) {
            p.dir = Some(dir);
        } else {
            kernel.close_dir(dir);
        }
        let expected: BTreeSet<Vec<u8>> = self.names.keys().map(|n| name(*n)).collect();
        self.expect("names", BTreeSet::from_iter(listed), expected);
        Some(())
    }

    fn expect<T: PartialEq + std::fmt::Debug>(&self, what: &str, got: T, expected: T) {
        let outcome = if got == expected { Ok(()) } else { Err(format!("{got:?} instead of {expected:?}")) };
        self.world.context.expect(what, outcome);
    }

    /// A range of whole cells below `limit`, mostly small.
    fn range(&mut self, limit: u64) -> (u64, u64) {
        let cells = (limit / CELL).max(1);
        let from = self.rng.below(cells);
        let most = if self.rng.chance(0.3) { cells } else { 64 };
        let to = (from + 1 + self.rng.below(most)).min(cells);
        (from * CELL, to * CELL)
    }

    async fn write(&mut self, p: &Program, at: usize) -> Option<()> {
        let handle = &p.handles[at];
        if !handle.writes {
            return Some(());
        }
        let (mut from, mut to) = self.range(PAGES_MAX * PAGE);
        if p.handles[at].appends {
            // Wherever this kernel believes the end to be.
            let size = p.handles[at].model.borrow().size;
            (from, to) = (size, (size + to - from).min(PAGES_MAX * PAGE).max(size));
            if from == to {
                return Some(());
            }
        }
        self.stamp += 1;
        let data: Vec<u8> = (from / CELL..to / CELL).flat_map(|_| self.stamp.to_ne_bytes()).collect();
        let (kernel, asynchronous) = (self.world.kernel(p.mount), self.rng.chance(0.3));
        let written = kernel.write_as(asynchronous, &p.caller, &handle.file, from, &data);
        let what = format!("write of {} to {from}..{to} (node {:x})", self.stamp, handle.file.inode.nodeid);
        let count = self.world.must(p.mount, &what, written).await?;
        self.expect("bytes written", count, to - from);
        handle.model.borrow_mut().written(from, to, self.stamp);
        Some(())
    }

    async fn read(&mut self, p: &Program, at: usize) -> Option<()> {
        let (from, to) = self.range((PAGES_MAX + 1) * PAGE);
        self.read_range(p, &p.handles[at], from, to).await
    }

    async fn read_range(&mut self, p: &Program, handle: &Handle, from: u64, to: u64) -> Option<()> {
        let read = self.world.kernel(p.mount).read(&p.caller, &handle.file, from, to - from);
        let what = format!("read of {from}..{to} (node {:x})", handle.file.inode.nodeid);
        let bytes = self.world.must(p.mount, &what, read).await?;
        let size = handle.model.borrow().size;
        let expected = to.min(size).saturating_sub(from);
        self.expect(&format!("kernel {}: bytes of {what} of {size}", p.mount), bytes.len() as u64, expected);
        self.compare(p.mount, &what, handle, from, &bytes);
        Some(())
    }

    fn compare(&self, mount: usize, what: &str, handle: &Handle, from: u64, bytes: &[u8]) {
        let mut model = handle.model.borrow_mut();
        for (i, cell) in bytes.chunks_exact(CELL as usize).enumerate() {
            let value = u64::from_ne_bytes(cell.try_into().expect("a cell's bytes"));
            let at = from / CELL + i as u64;
            if let Err(e) = model.seen(mount, at, value) {
                let node = handle.file.inode.nodeid;
                let place = format!("kernel {mount}: {what} of node {node:x}: byte {}", at * CELL);
                return self.world.context.expect(&place, Err(e));
            }
        }
        self.world.context.expect(what, Ok(()));
    }

    /// Makes this kernel know the file's size, and compares it.
    async fn size(&mut self, p: &Program, handle: &Handle) -> Option<u64> {
        let stat = self.world.kernel(p.mount).fstat(&p.caller, &handle.file);
        let (size, _) = self.world.must(p.mount, "fstat", stat).await?;
        let expected = handle.model.borrow().size;
        let what = format!("kernel {}: size of node {:x}", p.mount, handle.file.inode.nodeid);
        self.expect(&what, size, expected);
        (size == expected).then_some(size)
    }

    async fn mapped(&mut self, p: &mut Program, at: usize) -> Option<()> {
        let handle = &mut p.handles[at];
        if handle.mapping.is_none() {
            let map = self.world.kernel(p.mount).map(&handle.file, handle.writes);
            handle.mapping = Some(self.world.must(p.mount, "mmap", map).await?);
        }
        Some(())
    }

    async fn store(&mut self, p: &mut Program, at: usize) -> Option<()> {
        if !p.handles[at].writes {
            return Some(());
        }
        self.mapped(p, at).await?;
        let handle = &p.handles[at];
        let size = self.size(p, handle).await?;
        let mounts = self.world.kernels.len() as u64;
        let own = size / CELL / mounts;
        if own == 0 {
            return Some(());
        }
        // One cell, or one in each page.
        let first = self.rng.below(own) * mounts + p.mount as u64;
        let every = PAGE / CELL / mounts * mounts;
        let count = if self.rng.chance(0.3) { PAGES_MAX } else { 1 };
        for cell in (0..count).map(|i| (first + i * every) % (own * mounts) / mounts * mounts + p.mount as u64) {
            self.stamp += 1;
            let what = format!("store of {} at {} (node {:x})", self.stamp, cell * CELL, handle.file.inode.nodeid);
            let kernel = self.world.kernel(p.mount);
            let data = self.stamp.to_ne_bytes();
            let stored = kernel.store(&p.caller, &handle.file, cell * CELL, &data);
            let done = self.world.op(p.mount, &what, stored).await?;
            self.expect(&format!("kernel {}: {what} of {size}", p.mount), done, Ok::<(), Fault>(()));
            handle.model.borrow_mut().stored(p.mount, cell, self.stamp);
        }
        Some(())
    }

    async fn load(&mut self, p: &mut Program, at: usize) -> Option<()> {
        self.mapped(p, at).await?;
        let handle = &p.handles[at];
        let size = self.size(p, handle).await? / CELL * CELL;
        if size == 0 {
            return Some(());
        }
        let (from, to) = self.range(size);
        let mut bytes = vec![0; (to - from) as usize];
        let what = format!("load of {from}..{to} of {size}");
        let loaded = self.world.kernel(p.mount).load(&p.caller, &handle.file, from, &mut bytes);
        let done = self.world.op(p.mount, &what, loaded).await?;
        self.expect(&format!("kernel {}: {what}", p.mount), done, Ok::<(), Fault>(()));
        self.compare(p.mount, &what, handle, from, &bytes);
        Some(())
    }

    async fn truncate(&mut self, p: &Program, at: usize) -> Option<()> {
        let handle = &p.handles[at];
        if !handle.writes {
            return Some(());
        }
        // Now and then the size that this kernel believes in, which drops no page then.
        let believed = handle.file.inode.size.get();
        let size = if self.rng.chance(0.3) { believed } else { self.rng.below(PAGES_MAX * PAGE / CELL) * CELL };
        let what = format!("ftruncate of node {:x} to {size}", handle.file.inode.nodeid);
        let cut = self.world.kernel(p.mount).truncate(&p.caller, &handle.file.inode, Some(&handle.file), size);
        self.world.must(p.mount, &what, cut).await?;
        handle.model.borrow_mut().cut(size);
        Some(())
    }

    /// An asynchronous write from where no memory is: it changes nothing, however its kernel undoes it.
    async fn fail(&mut self, p: &Program, at: usize) -> Option<()> {
        let handle = &p.handles[at];
        if !handle.writes {
            return Some(());
        }
        let (from, to) = self.range(PAGES_MAX * PAGE);
        let kernel = self.world.kernel(p.mount);
        let written = kernel.write_async(&p.caller, &handle.file, from, Err(to - from));
        let what = format!("write of nothing to {from}..{to} (node {:x})", handle.file.inode.nodeid);
        let done = self.world.op(p.mount, &what, written).await?;
        self.expect(&what, done, Err(libc::EFAULT));
        Some(())
    }

    /// Looks for data or for a hole: cells that were written or stored to are data.
    async fn seek(&mut self, p: &Program, at: usize) -> Option<()> {
        let handle = &p.handles[at];
        let (from, hole) = (self.rng.below(PAGES_MAX * PAGE), self.rng.chance(0.3));
        let sought = self.world.kernel(p.mount).seek(&p.caller, &handle.file, from, hole);
        let what = format!("{} from {from} in node {:x}", if hole { "hole" } else { "data" }, handle.file.inode.nodeid);
        let found = self.world.op(p.mount, &what, sought).await?;
        let model = handle.model.borrow();
        let (size, first) = (model.size, model.cells.range(from / CELL..).next().map(|(cell, _)| cell * CELL));
        let good = match found {
            Ok(at) if hole => at == size || at >= from && at < size && !model.cells.contains_key(&(at / CELL)),
            Ok(at) => at >= from && at < size && first.is_none_or(|first| at <= first.max(from)),
            Err(libc::ENXIO) => from >= size || !hole && first.is_none(),
            Err(_) => false,
        };
        let wrong = || Err(format!("{found:?}, with cells from {first:?} on and {size} bytes"));
        self.world.context.expect(&format!("kernel {}: {what}", p.mount), if good { Ok(()) } else { wrong() });
        Some(())
    }

    async fn punch(&mut self, p: &Program, at: usize) -> Option<()> {
        let handle = &p.handles[at];
        if !handle.writes {
            return Some(());
        }
        let (from, to) = self.range(PAGES_MAX * PAGE);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let punched = self.world.kernel(p.mount).fallocate(&p.caller, &handle.file, mode, from, to - from);
        let what = format!("hole in node {:x} at {from}..{to}", handle.file.inode.nodeid);
        self.world.must(p.mount, &what, punched).await?;
        handle.model.borrow_mut().cleared(from, to);
        Some(())
    }

    async fn allocate(&mut self, p: &Program, at: usize) -> Option<()> {
        let handle = &p.handles[at];
        if !handle.writes {
            return Some(());
        }
        let (from, to) = self.range(PAGES_MAX * PAGE);
        let done = self.world.kernel(p.mount).fallocate(&p.caller, &handle.file, 0, from, to - from);
        self.world.must(p.mount, "fallocate", done).await?;
        let mut model = handle.model.borrow_mut();
        model.size = model.size.max(to);
        Some(())
    }

    async fn sync(&mut self, p: &Program, at: usize) -> Option<()> {
        let handle = &p.handles[at];
        let synced = self.world.kernel(p.mount).fsync(&p.caller, &handle.file);
        let what = format!("fsync of node {:x}", handle.file.inode.nodeid);
        self.world.must(p.mount, &what, synced).await?;
        handle.model.borrow_mut().published(p.mount);
        Some(())
    }

    async fn unmap(&mut self, p: &mut Program, at: usize) -> Option<()> {
        let handle = &mut p.handles[at];
        if let Some(mapping) = handle.mapping.take() {
            let kernel = self.world.kernel(p.mount).clone();
            self.world.op(p.mount, "munmap", kernel.unmap(mapping)).await?;
            handle.model.borrow_mut().published(p.mount);
        }
        Some(())
    }

    async fn check_all(&mut self, p: &Program) -> Option<()> {
        for n in 0..NAMES {
            let Some(model) = self.names.get(&n).cloned() else { continue };
            let kernel = self.world.kernel(p.mount).clone();
            let opened = async { kernel.open(&p.caller, &kernel.root(), &name(n), libc::O_RDONLY).await };
            let file = self.world.must(p.mount, "the last open", opened).await?;
            let handle = Handle { file, model, mapping: None, writes: false, appends: false };
            self.read_range(p, &handle, 0, (PAGES_MAX + 1) * PAGE).await?;
            self.close(p.mount, &p.caller, handle).await?;
        }
        Some(())
    }
}
