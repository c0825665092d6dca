//! The page cache: faults, read-ahead, write-back, and what drops pages.
//!
//! As Linux keeps pages of FUSE files without the write-back cache: only stores through shared mappings make pages dirty.
//! A page that is read stays locked until the answer; a page that is written back may be locked by others, but neither
//! changes nor leaves before the answer. Whoever drops pages locks each, waits for its write-back, and writes dirty ones
//! back first while it keeps the lock ("launders" them). Truncation drops dirty pages unwritten.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fuse::abi::init::ASYNC_READ;
use fuse::abi::{ReadIn, WRITE_CACHE, WriteIn, WriteOut, opcode};
use rt::sync::Event;
use types::Instant;
use zerocopy::IntoBytes;

use crate::conn::{Answer, Caller, parse};
use crate::file::File;
use crate::inode::Inode;
use crate::kernel::Kernel;
use crate::lock::{Guard, Lock};

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// One page of a file.
pub struct Page {
    pub(crate) index: u64,
    lock: Lock,
    uptodate: Cell<bool>,
    pub(crate) dirty: Cell<bool>,
    pub(crate) writeback: Cell<bool>,
    /// Mapped for writing: a store needs no fault.
    writable: Cell<bool>,
    /// It has left the page cache.
    gone: Cell<bool>,
    pub(crate) dirtied: Cell<Instant>,
    data: RefCell<Vec<u8>>,
    written: Event,
}

/// Why an access through a mapping failed: the program gets SIGBUS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Behind the size that the kernel knows.
    Behind,
    /// The page could not be read: errno.
    Io(i32),
}

impl Page {
    fn new(index: u64) -> Rc<Page> {
        Rc::new(Page {
            index,
            lock: Lock::default(),
            uptodate: Cell::new(false),
            dirty: Cell::new(false),
            writeback: Cell::new(false),
            writable: Cell::new(false),
            gone: Cell::new(false),
            dirtied: Cell::new(Instant(0)),
            data: RefCell::new(vec![0; PAGE as usize]),
            written: Event::new(),
        })
    }
    pub(crate) fn is_locked(&self) -> bool {
        self.lock.try_exclusive().is_none()
    }
    async fn wait_writeback(&self) {
        loop {
            let written = self.written.wait();
            if !self.writeback.get() {
                return;
            }
            written.await;
        }
    }
    /// Clean, write-protected, and in write-back from now on; false when it was clean. What programs stored behind the end
    /// of a file of `size` bytes becomes zeros.
    fn begin_writeback(&self, size: u64) -> bool {
        let dirty = self.dirty.replace(false);
        if dirty {
            let within = size.saturating_sub(self.index * PAGE).min(PAGE) as usize;
            self.data.borrow_mut()[within..].fill(0);
            self.writable.set(false);
            self.writeback.set(true);
        }
        dirty
    }
    fn end_writeback(&self) {
        self.writeback.set(false);
        self.written.notify();
    }
}

/// How often one fault reads its page alone at most.
const ALONE_MAX: u32 = 200;

/// Indices of the pages that a byte range touches.
fn indices(from: u64, to: u64) -> std::ops::Range<u64> {
    from / PAGE..to.div_ceil(PAGE)
}

impl Inode {
    fn pages_in(&self, range: std::ops::Range<u64>) -> Vec<Rc<Page>> {
        if range.is_empty() {
            return Vec::new();
        }
        self.pages.borrow().range(range).map(|(_, p)| p.clone()).collect()
    }
    fn remove(&self, page: &Page) {
        page.gone.set(true);
        page.dirty.set(false);
        page.writable.set(false);
        self.pages.borrow_mut().remove(&page.index);
    }
}

impl Kernel {
    /// The page behind an address of a mapping, read if it must be. `near`: pages around it that are read along.
    async fn fault(
        self: &Rc<Self>,
        caller: &Caller,
        file: &Rc<File>,
        index: u64,
        near: u64,
    ) -> Result<Rc<Page>, Fault> {
        let inode = &file.inode;
        let mut alone = 0;
        loop {
            if index * PAGE >= inode.size.get() {
                return Err(Fault::Behind);
            }
            let known = inode.pages.borrow().get(&index).cloned();
            let page = match known {
                Some(page) => page,
                None => {
                    self.read_around(caller, file, index, near).await;
                    continue;
                }
            };
            let guard = page.lock.exclusive().await;
            if page.gone.get() {
                continue;
            }
            if !page.uptodate.get() {
                // Read-ahead failed: the page is read by itself, and its error is the program's. It may be gone again before the program
                // has it, as often as others want it: no fault takes that many turns, unless it turns for good.
                alone += 1;
                if alone > ALONE_MAX {
                    self.conn.fault(format!("page {index} is read alone for the {alone}th time in one fault"));
                    return Err(Fault::Io(libc::EIO));
                }
                let seen = self.version.get();
                let arg = read_in(file, index, 1);
                let answer = self.conn.request(caller, opcode::READ, inode.nodeid, &[arg.as_bytes()]).await;
                self.on_read(inode, &[(page.clone(), guard)], seen, answer).map_err(Fault::Io)?;
                continue;
            }
            drop(guard);
            if index * PAGE >= inode.size.get() {
                return Err(Fault::Behind);
            }
            return Ok(page);
        }
    }

    /// Reads absent pages around `index`. What lies between two pages that are there is a batch: its pages are locked all
    /// before any is asked for, and unlocked as they are answered.
    async fn read_around(self: &Rc<Self>, caller: &Caller, file: &Rc<File>, index: u64, near: u64) {
        let inode = &file.inode;
        let window = self.conn.agreed.get().max_readahead / PAGE * self.config.window_factor;
        let near = if self.conn.is_congested() { 0 } else { near.min(window.saturating_sub(1)) };
        let first = index.saturating_sub(near / 2);
        let end = inode.size.get().div_ceil(PAGE).min(first + near + 1).max(index + 1);
        let mut batch: Vec<(Rc<Page>, Guard)> = Vec::new();
        for at in first..end {
            let absent = !inode.pages.borrow().contains_key(&at);
            if absent {
                let page = Page::new(at);
                let guard = page.lock.try_exclusive().expect("nobody else knows the page");
                inode.pages.borrow_mut().insert(at, page.clone());
                batch.push((page, guard));
            }
            if !batch.is_empty() && (!absent || at + 1 == end) {
                self.read_batch(caller, file, std::mem::take(&mut batch)).await;
            }
        }
    }

    /// Reads pages in requests of the agreed size: all at once in the background, or, where that was not agreed on, by the
    /// caller, one after the other.
    async fn read_batch(self: &Rc<Self>, caller: &Caller, file: &Rc<File>, mut batch: Vec<(Rc<Page>, Guard)>) {
        let agreed = self.conn.agreed.get();
        let most = (agreed.max_read / PAGE).max(1) as usize;
        while !batch.is_empty() {
            let rest = batch.split_off(most.min(batch.len()));
            let run = std::mem::replace(&mut batch, rest);
            let (me, inode, seen) = (self.clone(), file.inode.clone(), self.version.get());
            let arg = read_in(file, run[0].0.index, run.len() as u64);
            if agreed.flags & ASYNC_READ == 0 {
                let answer = self.conn.request(caller, opcode::READ, inode.nodeid, &[arg.as_bytes()]).await;
                let _ = self.on_read(&inode, &run, seen, answer);
                continue;
            }
            let keep = file.clone();
            let end = move |answer: Answer| {
                let _ = me.on_read(&inode, &run, seen, answer);
                drop(keep);
            };
            self.conn.in_background(opcode::READ, file.inode.nodeid, &[arg.as_bytes()], Box::new(end));
        }
    }

    /// Pages have been read, or not. What was not told is zeros: the file ends there.
    fn on_read(&self, inode: &Inode, run: &[(Rc<Page>, Guard)], seen: u64, answer: Answer) -> Result<(), i32> {
        let told = answer?;
        let from = run[0].0.index * PAGE;
        if told.len() as u64 > run.len() as u64 * PAGE {
            self.conn.fault(format!("READ of {} pages answered with {} bytes", run.len(), told.len()));
            return Err(libc::EIO);
        }
        for (i, (page, _)) in run.iter().enumerate() {
            let part = told.get(i * PAGE as usize..).unwrap_or(&[]);
            let part = &part[..part.len().min(PAGE as usize)];
            let mut data = page.data.borrow_mut();
            data.fill(0);
            data[..part.len()].copy_from_slice(part);
            page.uptodate.set(true);
        }
        let end = from + told.len() as u64;
        let short = (told.len() as u64) < run.len() as u64 * PAGE;
        if short && seen >= inode.version.get() && end < inode.size.get() && !inode.unstable.get() {
            inode.version.set(self.next_version());
            inode.size.set(end);
        }
        Ok(())
    }

    /// Loads bytes through a mapping.
    ///
    /// # Errors
    /// The program gets SIGBUS.
    pub async fn load(
        self: &Rc<Self>,
        caller: &Caller,
        file: &Rc<File>,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let near = self.near();
            let page = self.fault(caller, file, at / PAGE, near).await?;
            let within = (at % PAGE) as usize;
            let take = (PAGE as usize - within).min(out.len() - done);
            out[done..done + take].copy_from_slice(&page.data.borrow()[within..within + take]);
            done += take;
        }
        Ok(())
    }

    /// Stores bytes through a shared mapping.
    ///
    /// # Errors
    /// The program gets SIGBUS; what lies before the page that failed was stored.
    pub async fn store(
        self: &Rc<Self>,
        caller: &Caller,
        file: &Rc<File>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let near = self.near();
            let page = self.fault(caller, file, at / PAGE, near).await?;
            let within = (at % PAGE) as usize;
            let take = (PAGE as usize - within).min(data.len() - done);
            let guard = if page.writable.get() { None } else { Some(page.lock.exclusive().await) };
            if guard.is_some() && !page.gone.get() {
                page.wait_writeback().await;
                if page.index * PAGE >= file.inode.size.get() {
                    return Err(Fault::Behind);
                }
            }
            if page.gone.get() {
                continue;
            }
            page.data.borrow_mut()[within..within + take].copy_from_slice(&data[done..done + take]);
            page.writable.set(true);
            if !page.dirty.replace(true) {
                page.dirtied.set(self.rt.now());
            }
            drop(guard);
            done += take;
        }
        Ok(())
    }

    fn near(&self) -> u64 {
        let most = self.config.read_around_pages;
        self.conn.rng.borrow_mut().below(most + 1)
    }

    /// Sends what is queued for write-back while the gate is open.
    pub(crate) fn send_queued(self: &Rc<Self>, inode: &Rc<Inode>) {
        while !inode.nowrite.get() {
            let Some(run) = inode.queued.borrow_mut().pop_front() else { return };
            self.send_write(inode, run);
        }
    }

    fn send_write(self: &Rc<Self>, inode: &Rc<Inode>, run: Vec<Rc<Page>>) {
        let offset = run[0].index * PAGE;
        let mut bytes: Vec<u8> = run.iter().flat_map(|p| p.data.borrow().clone()).collect();
        // What a cut took is not written.
        bytes.truncate(usize::try_from(inode.size.get().saturating_sub(offset)).unwrap_or(usize::MAX));
        let file = inode.writers.borrow().first().cloned();
        let Some(file) = file.filter(|_| !bytes.is_empty()) else {
            if !bytes.is_empty() {
                inode.failed.set((inode.failed.get().0 + 1, libc::EIO));
            }
            run.iter().for_each(|p| p.end_writeback());
            return;
        };
        inode.writes.set(inode.writes.get() + 1);
        let size = bytes.len() as u32;
        let arg = WriteIn { fh: file.fh, offset, size, write_flags: WRITE_CACHE, ..WriteIn::default() };
        let (me, inode2) = (self.clone(), inode.clone());
        let end = move |answer: Answer| {
            let result = answer.and_then(|a| parse::<WriteOut>(&a));
            if let Err(e) = result.and_then(|o| if o.size < size { Err(libc::EIO) } else { Ok(()) }) {
                inode2.failed.set((inode2.failed.get().0 + 1, e));
            }
            inode2.writes.set(inode2.writes.get() - 1);
            run.iter().for_each(|p| p.end_writeback());
            inode2.settled.notify();
            me.send_queued(&inode2);
            drop(file);
        };
        self.conn.in_background(opcode::WRITE, inode.nodeid, &[arg.as_bytes(), &bytes], Box::new(end));
    }

    fn queue_write(self: &Rc<Self>, inode: &Rc<Inode>, run: Vec<Rc<Page>>) {
        if !run.is_empty() {
            inode.queued.borrow_mut().push_back(run);
            self.send_queued(inode);
        }
    }

    /// Begins to write dirty pages of a byte range back; with `wait` those that are in write-back already are waited for.
    pub(crate) async fn write_back(self: &Rc<Self>, inode: &Rc<Inode>, from: u64, to: u64, wait: bool) {
        let most = (self.conn.agreed.get().max_write / PAGE) as usize;
        let mut run: Vec<Rc<Page>> = Vec::new();
        for page in inode.pages_in(indices(from, to)) {
            if !page.dirty.get() {
                continue;
            }
            let _guard = page.lock.exclusive().await;
            if page.gone.get() || !page.dirty.get() || page.writeback.get() && !wait {
                continue;
            }
            page.wait_writeback().await;
            let joins = run.last().is_some_and(|l| l.index + 1 == page.index) && run.len() < most;
            if !joins {
                self.queue_write(inode, std::mem::take(&mut run));
            }
            if page.begin_writeback(inode.size.get()) {
                run.push(page.clone());
            }
        }
        self.queue_write(inode, run);
    }

    /// Writes a byte range back and waits until it is written.
    pub(crate) async fn write_and_wait(self: &Rc<Self>, inode: &Rc<Inode>, from: u64, to: u64) {
        self.write_back(inode, from, to, true).await;
        for page in inode.pages_in(indices(from, to)) {
            page.wait_writeback().await;
        }
    }

    /// Waits for all write-back that is under way.
    pub(crate) async fn sync_writes(self: &Rc<Self>, inode: &Rc<Inode>) {
        inode.stop_writes().await;
        inode.nowrite.set(false);
        self.send_queued(inode);
    }

    /// Drops pages of a byte range, dirty ones after they have been written.
    pub(crate) async fn invalidate(self: &Rc<Self>, inode: &Rc<Inode>, from: u64, to: u64) {
        for page in inode.pages_in(indices(from, to)) {
            let _guard = page.lock.exclusive().await;
            if page.gone.get() {
                continue;
            }
            page.wait_writeback().await;
            page.writable.set(false);
            if page.begin_writeback(inode.size.get()) {
                self.queue_write(inode, vec![page.clone()]);
                page.wait_writeback().await;
            }
            inode.remove(&page);
        }
    }

    /// Drops what lies behind a size, dirty or not; the rest of the last page becomes zeros.
    pub(crate) async fn truncate_pages(self: &Rc<Self>, inode: &Rc<Inode>, size: u64) {
        self.drop_range(inode, size, u64::MAX - PAGE).await;
    }

    /// Drops whole pages of a byte range unwritten, and zeros parts of pages.
    pub(crate) async fn drop_range(self: &Rc<Self>, inode: &Rc<Inode>, from: u64, to: u64) {
        for page in inode.pages_in(indices(from, to)) {
            let _guard = page.lock.exclusive().await;
            if page.gone.get() {
                continue;
            }
            page.wait_writeback().await;
            let start = page.index * PAGE;
            if start >= from && start + PAGE <= to {
                inode.remove(&page);
            } else {
                let (a, b) = (from.max(start) - start, to.min(start + PAGE) - start);
                page.data.borrow_mut()[a as usize..b as usize].fill(0);
            }
        }
    }
}

fn read_in(file: &File, index: u64, pages: u64) -> ReadIn {
    let size = u32::try_from(pages * PAGE).expect("reads are bounded");
    ReadIn { fh: file.fh, offset: index * PAGE, size, flags: file.flags, ..ReadIn::default() }
}
