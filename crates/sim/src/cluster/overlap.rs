//! Programs that work on one file at the same time, several of them on one client: reads, writes, appends, cuts, holes, zeroes,
//! reservations, direct I/O and opens with O_TRUNC side by side; in some runs also searches for data and holes, copies from another file,
//! times that are set and caches that are dropped.
//!
//! The model is a register per cell of the file (its content) and another one (whether the file reaches so far). An
//! operation counts from its beginning, for sure from its answer on, or from when a read saw it. What a read finds
//! must be of an operation that no other one, begun after its end, had replaced before the read began.
//!
//! Holes, zeroes and reservations are dropped amid in some runs. Of one that was dropped nobody knows which objects it got to: it counts
//! from its beginning and for sure never, cell by cell, as one whose client died. The program goes on when nothing of it is under way.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use client::{Client, OpenFile};
use types::{Duration, Extent, Fid, FsError, Rng, WallTime};
use wire::mdt::{Cred, SetBits, SetattrRequest};

use super::class::FaultClass;
use super::context::Context;
use super::dropped::hasty;
use super::model::{Author, bytes};
use super::shared::make;

mod history;
use history::{Change, History};

const O_RDWR: u32 = 2;
const O_DIRECT_RDWR: u32 = 0o40002;
const O_TRUNC_RDWR: u32 = 0o1002;
const O_APPEND_WRONLY: u32 = 0o2001;
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
/// Bytes of a cell: neither a divisor nor a multiple of a page.
const CELL: u64 = 1500;
/// Cells of the file at most.
const CELLS: u64 = 100;
/// Cells of the file that is copied from.
const SOURCE_CELLS: u64 = 8;
/// Operations that begin together do so at multiples of this.
const TOGETHER: u64 = 2_000_000;
/// Operations that are remembered before the file is settled.
const HISTORY_MAX: usize = 60;
/// Attempts to settle the file.
const ATTEMPTS_MAX: u32 = 400;

/// The file that the programs share.
pub struct Overlap {
    context: Rc<Context>,
    fid: Fid,
    history: RefCell<History>,
    /// Operations under way.
    running: Cell<u32>,
    /// No operation may begin: the file is being settled.
    settling: Cell<bool>,
    /// What copies are made of, where some are.
    source: Option<Source>,
    what_else: WhatElse,
}

/// What programs do besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct WhatElse {
    /// They append.
    pub appends: bool,
    /// They look for data and holes, copy, reserve behind the end, set times and drop caches.
    pub seeks: bool,
}

/// A file of [`SOURCE_CELLS`] cells that nobody changes.
#[derive(Clone, Copy, Debug)]
struct Source {
    fid: Fid,
    stamp: u64,
}

/// One of what programs do in some runs only.
fn draw_more(x: Extent, source: Source, rng: &mut Rng) -> Doing {
    match rng.below(10) {
        0..4 => Doing::Seek(x.start, rng.chance(0.5)),
        4..7 => {
            let from = rng.below(SOURCE_CELLS - x.len().div_ceil(CELL) + 1) * CELL;
            Doing::Copy(x, source, from)
        }
        7 => Doing::ReserveBehind(x),
        8 => Doing::SetTimes,
        _ => Doing::DropCaches,
    }
}

fn cred() -> Cred {
    Cred::default()
}

/// What a program does next.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Write(Extent, u64),
    Hole(Extent),
    Zero(Extent),
    Reserve(Extent),
    Cut(u64),
    CutByOpen,
    /// So many bytes of a stamp, wherever the file ends.
    Append(u64, u64),
    Read(Extent),
    Stat,
    Sync,
    /// The next hole, or data, from a place on.
    Seek(u64, bool),
    /// Another file's bytes from a place on, of a stamp.
    Copy(Extent, Source, u64),
    /// Space also behind the end, which stays.
    ReserveBehind(Extent),
    /// Times of long ago.
    SetTimes,
    DropCaches,
    /// Locks on the range, for writes or not, before they are needed; those of the open stay narrow from then on, or not.
    Ahead(Extent, bool),
}

impl Doing {
    fn change(&self) -> Option<Change> {
        Some(match *self {
            Doing::Write(x, stamp) => Change::Write(x, stamp),
            Doing::Copy(x, source, from) => Change::Copy(x, source.stamp, from),
            Doing::Hole(x) => Change::Zero(x, false),
            Doing::Zero(x) => Change::Zero(x, true),
            Doing::Reserve(x) => Change::Reach(x.end),
            Doing::Cut(size) => Change::Cut(size),
            Doing::CutByOpen => Change::Cut(0),
            Doing::Append(len, stamp) => Change::Append(len, stamp, None),
            _ => return None,
        })
    }
    /// Whether it is a fallocate(2).
    fn allocates(&self) -> bool {
        matches!(self, Doing::Hole(_) | Doing::Zero(_) | Doing::Reserve(_) | Doing::ReserveBehind(_))
    }
}

/// What an operation gave.
enum Got {
    Done,
    Bytes(Vec<u8>),
    Size(u64),
    /// Where what was looked for is; `None`: nowhere behind, or the file ends before.
    Found(Option<u64>),
    /// So many bytes.
    Some(u64),
    /// Where an append went.
    At(u64),
    /// Nothing: it was dropped.
    Dropped,
}

async fn carry_out(c: &Rc<Client>, file: &Rc<OpenFile>, doing: Doing) -> Result<Got, FsError> {
    let fid = file.fid();
    match doing {
        Doing::Write(x, stamp) => c.data().write(file, x.start, &bytes(stamp, x)).await.map(|_| Got::Done),
        Doing::Hole(x) => c.data().fallocate(file, PUNCH_HOLE | KEEP_SIZE, x.start, x.len()).await.map(|()| Got::Done),
        Doing::Zero(x) => c.data().fallocate(file, ZERO_RANGE, x.start, x.len()).await.map(|()| Got::Done),
        Doing::Reserve(x) => c.data().fallocate(file, 0, x.start, x.len()).await.map(|()| Got::Done),
        Doing::Cut(size) => {
            let request =
                SetattrRequest { valid: SetBits::SIZE | SetBits::MTIME_NOW, size, ..SetattrRequest::default() };
            c.setattr(&cred(), file.inode(), request, Some(file)).await.map(|_| Got::Done)
        }
        Doing::CutByOpen => {
            let cut = c.open(&cred(), fid, O_TRUNC_RDWR).await?;
            c.release(&cut).await.map(|()| Got::Done)
        }
        Doing::Append(len, stamp) => {
            let end = c.open(&cred(), fid, O_APPEND_WRONLY).await?;
            let written = c.data().write(&end, 0, &bytes(stamp, Extent::at(0, len))).await;
            let closed = c.release(&end).await;
            written.and_then(|at| closed.map(|()| Got::At(at)))
        }
        Doing::Read(x) => c.data().read(file, x.start, x.len() as usize).await.map(|b| Got::Bytes(b.to_vec())),
        Doing::Seek(at, hole) => match c.data().seek(file.inode(), at, hole).await {
            Err(FsError::NoDevice) => Ok(Got::Found(None)),
            found => found.map(|at| Got::Found(Some(at))),
        },
        Doing::Copy(x, source, at) => {
            let from = c.open(&cred(), source.fid, 0).await?;
            let copied = c.data().copy_range(&from, at, file, x.start, x.len()).await;
            let closed = c.release(&from).await;
            copied.and_then(|n| closed.map(|()| Got::Some(n)))
        }
        Doing::ReserveBehind(x) => c.data().fallocate(file, KEEP_SIZE, x.start, x.len()).await.map(|()| Got::Done),
        Doing::SetTimes => {
            let then = WallTime(1_000_000_000);
            let valid = SetBits::ATIME | SetBits::MTIME;
            let request = SetattrRequest { valid, atime: then, mtime: then, ..SetattrRequest::default() };
            c.setattr(&cred(), file.inode(), request, Some(file)).await.map(|_| Got::Done)
        }
        Doing::DropCaches => {
            c.drop_caches().await;
            Ok(Got::Done)
        }
        Doing::Stat => c.getattr(&cred(), fid, Some(file)).await.map(|e| Got::Size(e.attr.size)),
        Doing::Sync => c.data().fsync(file, false).await.map(|()| Got::Done),
        Doing::Ahead(x, writes) => {
            file.set_no_expand(writes);
            c.data().lock_ahead(file, writes, x).await.map(|()| Got::Done)
        }
    }
}

async fn source(context: &Rc<Context>) -> Result<Source, String> {
    let (fid, stamp) = (make(context, "overlap source", 0).await?, context.stamp());
    let written = context.on(0, "overlap: source", async move |c| {
        let file = c.open(&cred(), fid, O_RDWR).await?;
        c.data().write(&file, 0, &bytes(stamp, Extent::at(0, SOURCE_CELLS * CELL))).await?;
        c.data().fsync(&file, false).await?;
        c.release(&file).await
    });
    written.await.ok_or("the client died")?.map_err(|e| format!("what is copied from: {e}"))?;
    Ok(Source { fid, stamp })
}

impl Overlap {
    /// Over an empty file.
    ///
    /// # Errors
    /// A sentence, when the file that is copied from cannot be made.
    pub async fn new(context: Rc<Context>, fid: Fid, what_else: WhatElse) -> Result<Rc<Overlap>, String> {
        let source = if what_else.seeks { Some(source(&context).await?) } else { None };
        Ok(Rc::new(Overlap {
            context,
            fid,
            history: RefCell::new(History::new(CELL)),
            running: Cell::new(0),
            settling: Cell::new(false),
            source,
            what_else,
        }))
    }
    fn now(&self) -> u64 {
        self.context.cluster.sim.now().0
    }
    /// One of the programs, until the run is calm.
    pub async fn run(self: Rc<Self>, id: usize, operations: u64) {
        let mut rng = self.context.rng(&format!("overlap {id}"));
        // Some programs keep the file open, others come and go: in between the metadata server answers for it.
        let closes = [0.1, 0.5, 1.0][rng.below(3) as usize];
        let mut held: Option<(Author, Rc<OpenFile>)> = None;
        let mut done = 0;
        while done < operations && !self.context.calm.get() && !self.context.failed() {
            self.enter(&mut rng).await;
            let c = if rng.chance(0.6) && self.context.author(0).is_some() {
                0
            } else {
                self.context.any_client(&mut rng).await
            };
            if let Some(author) = self.context.author(c) {
                held = held.filter(|(a, _)| *a == author);
                self.one(id, author, &mut held, &mut rng).await;
                if rng.chance(closes)
                    && let Some((author, file)) = held.take()
                {
                    self.close(id, author, file).await;
                }
            }
            self.running.set(self.running.get() - 1);
            done += 1;
            self.context.cluster.sim.sleep(Duration::from_micros(rng.below(5000))).await;
            if self.what_else.seeks && rng.chance(0.3) {
                let until = self.now().next_multiple_of(TOGETHER);
                self.context.cluster.sim.sleep(Duration::from_nanos(until - self.now())).await;
            }
            self.context.ease(&mut rng).await;
        }
    }
    /// Waits until an operation may begin; settles the file where that is due.
    async fn enter(&self, rng: &mut Rng) {
        loop {
            if !self.settling.get() {
                // A run that went wrong settles nothing any more: its programs come to their end.
                let due = self.history.borrow().len() > HISTORY_MAX && !self.context.failed();
                if !due {
                    self.running.set(self.running.get() + 1);
                    return;
                }
                self.settling.set(true);
                self.settle(rng).await;
                self.settling.set(false);
                continue;
            }
            self.context.cluster.sim.sleep(Duration::from_millis(5)).await;
        }
    }
    fn draw(&self, rng: &mut Rng) -> Doing {
        let most = CELLS >> (2 * rng.below(3));
        let start = rng.below(most);
        let cells = 1 + rng.below(8);
        let x = Extent::new(start * CELL, (start + cells).min(CELLS) * CELL);
        if let Some(source) = self.source.filter(|_| rng.chance(0.2)) {
            return draw_more(x, source, rng);
        }
        match rng.below(100) {
            0..38 => Doing::Write(x, self.context.stamp()),
            38..68 => Doing::Read(Extent::at(x.start, x.len() * 2)),
            68..73 => Doing::Hole(x),
            73..76 => Doing::Zero(x),
            76..79 => Doing::Reserve(x),
            79..86 => Doing::Cut(start * CELL),
            86..89 => Doing::CutByOpen,
            89..92 => Doing::Ahead(x, rng.chance(0.5)),
            92..95 if self.may_append(x.len()) => Doing::Append(x.len(), self.context.stamp()),
            95.. if self.context.syncs(rng, 1.0) => Doing::Sync,
            _ => Doing::Stat,
        }
    }
    /// Whether so many bytes behind the end would be read when the file is settled, and fill cells.
    fn may_append(&self, len: u64) -> bool {
        let history = self.history.borrow();
        self.what_else.appends && history.is_even() && history.most() + len <= 2 * CELLS * CELL
    }
    async fn one(&self, id: usize, author: Author, held: &mut Option<(Author, Rc<OpenFile>)>, rng: &mut Rng) {
        let (doing, fid) = (self.draw(rng), self.fid);
        let flags = if rng.chance(0.1) { O_DIRECT_RDWR } else { O_RDWR };
        let what = format!("overlap{id}: {doing:?}");
        let begin = self.now();
        let entry = doing.change().map(|change| self.history.borrow_mut().begin(change, begin, author));
        let open = held.as_ref().map(|(_, f)| f.clone());
        let polls = if doing.allocates() { self.context.patience(rng) } else { u64::MAX };
        let outcome = self.context.on(author.client, &what, async move |c| {
            let file = match open {
                Some(file) => file,
                None if matches!(doing, Doing::Stat) => {
                    return c.getattr(&cred(), fid, None).await.map(|e| (Got::Size(e.attr.size), None));
                }
                None => c.open(&cred(), fid, flags).await?,
            };
            let got = hasty(polls, carry_out(&c, &file, doing)).await.unwrap_or(Ok(Got::Dropped))?;
            Ok((got, Some(file)))
        });
        let outcome = outcome.await;
        let sound = self.context.is_sound(author);
        match outcome {
            Some(Ok((got, file))) => {
                match (entry, &got) {
                    (Some(_), Got::Dropped) => self.context.dropped(author.client).await,
                    // What is left is for the next call: which bytes these are is not known.
                    (Some(_), Got::Some(n)) if doing.change().is_none_or(|c| !c.is_whole(*n)) => {}
                    (Some(entry), Got::At(at)) => self.appended(&what, author, entry, *at),
                    (Some(entry), _) => self.history.borrow_mut().end(entry, self.now()),
                    (None, _) => {}
                }
                *held = file.map(|f| (author, f));
                if self.context.is_there(author) {
                    self.judge(&what, author, begin, doing, &got);
                }
            }
            Some(Err(e)) if sound && !self.is_excused(author, doing, &e.to_string()) => {
                self.context.complain(format!("{what} on client{}: {e}", author.client));
            }
            _ => {}
        }
    }
    /// Whether an error is one that an operation may answer; a sync has space set aside.
    fn is_excused(&self, by: Author, doing: Doing, error: &str) -> bool {
        match doing {
            Doing::Sync => self.context.is_told_late(by.client, Some(self.fid), error),
            _ => self.context.is_full(by.client, Some(self.fid), error),
        }
    }
    async fn close(&self, id: usize, author: Author, file: Rc<OpenFile>) {
        let what = format!("overlap{id}: close");
        let closed = self.context.on(author.client, &what, async move |c| c.release(&file).await);
        // Also where there is no space at all: then the client owes the end of its open.
        if let Some(Err(e)) = closed.await
            && self.context.is_sound(author)
        {
            self.context.complain(format!("{what} on client{}: {e}", author.client));
        }
    }
    fn appended(&self, what: &str, author: Author, entry: u64, at: u64) {
        let sound = |a: Author| self.context.holds(a, self.fid);
        let checked = self.history.borrow_mut().end_append(entry, at, self.now(), &sound);
        if self.context.is_there(author) {
            self.context.count(|c| c.by_class[FaultClass::Appends.index()] += 1);
            self.context.expect(&format!("{what} on client{}", author.client), checked);
        }
    }
    fn judge(&self, what: &str, author: Author, begin: u64, doing: Doing, got: &Got) {
        let (context, now) = (&self.context, self.now());
        let mut history = self.history.borrow_mut();
        // Asked for once each: no time passes meanwhile.
        let all: Vec<(Author, bool)> = history.authors().into_iter().map(|a| (a, context.holds(a, self.fid))).collect();
        let sound = |a: Author| all.iter().find(|(author, _)| *author == a).is_some_and(|(_, sound)| *sound);
        let checked = match (doing, got) {
            (Doing::Read(x), Got::Bytes(found)) => history.check_read(x, found, (begin, now), &sound),
            (Doing::Seek(at, hole), Got::Found(found)) => {
                context.count(|c| c.by_class[FaultClass::Seeks.index()] += 1);
                history.check_seek(at, hole, *found, (begin, now), &sound)
            }
            (Doing::Stat, Got::Size(size)) => history.check_size(*size, (begin, now), &sound),
            (Doing::Sync, _) => {
                // What a disk below had lost another sync may have told.
                history.synced(begin, &sound);
                return;
            }
            _ => return,
        };
        context.expect(&format!("{what} on client{} since {begin}", author.client), checked);
    }

    /// Makes the file's content certain: whoever wrote it syncs it, what lost clients wrote is there or not and stays so.
    async fn settle(&self, rng: &mut Rng) {
        while self.running.get() > 0 {
            self.context.cluster.sim.sleep(Duration::from_millis(5)).await;
        }
        let set = if self.what_else.seeks { self.set_time(rng).await } else { None };
        for _ in 0..ATTEMPTS_MAX {
            if self.context.failed() {
                return;
            }
            if self.settle_once(rng).await {
                return self.check_time(rng, set).await;
            }
            self.context.cluster.sim.sleep(Duration::from_millis(500)).await;
        }
        self.context.complain("overlap: the file could not be settled");
    }
    /// Sets the file's modification time while nobody writes; what was written before may be in caches of other clients.
    async fn set_time(&self, rng: &mut Rng) -> Option<(Author, WallTime)> {
        let (fid, c) = (self.fid, self.context.any_client(rng).await);
        let author = self.context.author(c)?;
        let time = WallTime(rng.below(1 << 30) as i64 * 1_000_000_000);
        let set = self.context.on(c, "overlap: settling time", async move |c| {
            let request = SetattrRequest { valid: SetBits::MTIME, mtime: time, ..SetattrRequest::default() };
            c.setattr(&cred(), &c.meta().inode(fid), request, None).await.map(drop)
        });
        matches!(set.await, Some(Ok(()))).then_some((author, time))
    }
    /// Nobody has written since a time was set: it is what everybody is told, also who reads the file before.
    async fn check_time(&self, rng: &mut Rng, set: Option<(Author, WallTime)>) {
        let (fid, c) = (self.fid, self.context.any_client(rng).await);
        let (Some((by, time)), Some(author)) = (set, self.context.author(c)) else { return };
        let what = "overlap: look at a time";
        let found = self.context.on(c, what, async move |c| {
            let file = c.open(&cred(), fid, 0).await?;
            c.data().read(&file, 0, 2 * (CELLS * CELL) as usize).await?;
            c.release(&file).await?;
            c.getattr(&cred(), fid, None).await.map(|e| e.attr.mtime)
        });
        if let Some(Ok(found)) = found.await
            && self.context.is_sound(by)
            && self.context.is_sound(author)
        {
            let told = || Err(format!("client{} set it to {}, and it is {}", by.client, time.0, found.0));
            self.context.expect(&format!("{what} on client{c}"), if found == time { Ok(()) } else { told() });
        }
    }
    async fn settle_once(&self, rng: &mut Rng) -> bool {
        let authors = self.history.borrow().authors();
        let fid = self.fid;
        for author in authors {
            let now = self.context.author(author.client);
            if now.is_some_and(|n| n.has_all_of(author)) {
                let begin = self.now();
                let synced = self.context.on(author.client, "overlap: settling fsync", async move |c| {
                    let file = c.open(&cred(), fid, O_RDWR).await?;
                    c.data().fsync(&file, false).await?;
                    c.release(&file).await
                });
                if matches!(synced.await, Some(Ok(()))) && self.context.holds(author, fid) {
                    self.history.borrow_mut().synced(begin, &|a| self.context.holds(a, fid));
                }
            } else {
                self.context.wait_forgotten(author).await;
            }
        }
        while self.context.disks.some_fail() {
            self.context.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
        let c = self.context.any_client(rng).await;
        let Some(reader) = self.context.author(c) else { return false };
        let authors = self.history.borrow().authors();
        let before: Vec<bool> = authors.iter().map(|a| self.context.holds(*a, fid)).collect();
        let begin = self.now();
        let whole = Extent::at(0, 2 * CELLS * CELL);
        let read = self.context.on(c, "overlap: settling read", async move |c| {
            let file = c.open(&cred(), fid, 0).await?;
            c.data().read(&file, 0, whole.len() as usize).await?;
            c.sync_all().await?;
            let got = c.data().read(&file, 0, whole.len() as usize).await?.to_vec();
            c.release(&file).await.map(|()| got)
        });
        let read = read.await;
        let after: Vec<bool> = authors.iter().map(|a| self.context.holds(*a, fid)).collect();
        if !self.context.is_sound(reader) || before != after {
            return false;
        }
        match read {
            Some(Ok(got)) => {
                let mut history = self.history.borrow_mut();
                let sound = |a: Author| self.context.holds(a, fid);
                let checked = history.check_read(whole, &got, (begin, self.now()), &sound);
                self.context.expect(&format!("overlap: settling read on client{c}"), checked);
                history.settle(got);
                true
            }
            Some(Err(e)) => {
                self.context.complain(format!("overlap: settling read on client{c}: {e}"));
                true
            }
            None => false,
        }
    }
    /// After all faults: settled once more, everybody sees the same.
    pub async fn check(&self) {
        let mut rng = self.context.rng("overlap end");
        self.settle(&mut rng).await;
        let (fid, whole) = (self.fid, Extent::at(0, 2 * CELLS * CELL));
        for c in 0..self.context.cluster.clients.len() {
            if self.context.failed() {
                return;
            }
            let begin = self.now();
            let read = self.context.on(c, "overlap: final read", async move |c| {
                let file = c.open(&cred(), fid, 0).await?;
                let got = c.data().read(&file, 0, whole.len() as usize).await?.to_vec();
                c.release(&file).await.map(|()| got)
            });
            let outcome = match read.await {
                Some(Ok(got)) => self.history.borrow_mut().check_read(whole, &got, (begin, self.now()), &|_| true),
                Some(Err(e)) => Err(e.to_string()),
                None => Ok(()),
            };
            self.context.expect(&format!("overlap: final read on client{c}"), outcome);
        }
    }
}
