//! Programs on files that all clients share: parts of pages side by side, a log that everyone appends to, a counter
//! under a lock.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use client::{Client, FlockMode, LockCall, NewFile};
use types::{Duration, Extent, Fid, FsError, Rng};
use wire::mdt::Cred;

use super::context::Context;
use super::disks::Servers;
use super::model::{Author, FileModel, bytes};

const O_RDWR: u32 = 2;
const O_CREAT_RDWR: u32 = 0o102;
const O_APPEND_RDWR: u32 = 0o2002;

fn cred() -> Cred {
    Cred::default()
}

/// Makes a file below the root, before anything goes wrong.
///
/// # Errors
/// What a client answers.
pub async fn make(context: &Rc<Context>, name: &'static str, size: u64) -> Result<Fid, String> {
    let made = context.on(0, "create", async move |c| {
        let new = NewFile { flags: O_CREAT_RDWR, mode: 0o644, ..NewFile::default() };
        let (entry, file) = c.create_open(&cred(), Fid::ROOT, name.as_bytes(), new).await?;
        if size > 0 {
            c.data().write(&file, size - 1, &[0]).await?;
        }
        c.data().fsync(&file, false).await?;
        c.release(&file).await?;
        Ok::<_, FsError>(entry.attr.fid)
    });
    let fid = made.await.ok_or("the client died")?.map_err(|e| format!("{name}: {e}"))?;
    if context.layouts_stay.get() {
        let servers = context.on(0, "where its objects are", async move |c| servers_of(&c, fid).await);
        let servers = servers.await.ok_or("the client died")?.map_err(|e| format!("the layout of {name}: {e}"))?;
        context.disks.keep(fid, servers);
    }
    Ok(fid)
}

/// The servers that have a file's objects.
async fn servers_of(c: &Rc<Client>, fid: Fid) -> Result<Servers, FsError> {
    let stored = c.getxattr(&cred(), fid, b"lustre.lov.stored").await?;
    let (_, layout) = layout::xattr::decode_layout(&stored).map_err(|_| FsError::Corrupt)?;
    Ok(layout.objects().iter().fold(Servers::NONE, |all, o| all.and_ost(usize::from(o.ost.0))))
}

/// Reads a whole file on a client and has its bytes checked; false when the client was not there all the time or a disk failed.
pub async fn look_at(
    context: &Context,
    client: usize,
    (fid, bytes): (Fid, u64),
    what: &str,
    check: impl FnOnce(&[u8]) -> Result<(), String>,
) -> bool {
    let Some(author) = context.author(client) else { return false };
    let read = context.on(client, what, async move |c| {
        let file = c.open(&cred(), fid, 0).await?;
        let got = c.data().read(&file, 0, bytes as usize).await?.to_vec();
        c.release(&file).await.map(|()| got)
    });
    let read = read.await;
    // An error may be of any disk; what is read is right whatever fails.
    let counts = |read: &Result<Vec<u8>, FsError>| context.is_sound(author) || read.is_ok() && context.is_there(author);
    let Some(read) = read.filter(counts) else { return false };
    let outcome = read.map_err(|e: FsError| e.to_string()).and_then(|got| check(&got));
    context.expect(&format!("{what} on client{client}"), outcome);
    true
}

/// Every client writes out what it has.
pub async fn settle_everything(context: &Rc<Context>) {
    for c in 0..context.cluster.clients.len() {
        let _ = context.on(c, "sync of all", async move |c| c.sync_all().await).await;
    }
}

async fn until_calm(context: &Context) {
    while !context.calm.get() {
        context.cluster.sim.sleep(Duration::from_millis(100)).await;
    }
}

/// Blocks of a shared file, smaller than a page; each program owns every `of`-th.
pub struct Blocks {
    context: Rc<Context>,
    fid: Fid,
    id: u64,
    of: u64,
    rng: Rng,
    model: FileModel,
}

/// Bytes of one block: neither a divisor nor a multiple of a page.
const BLOCK: u64 = 1500;
/// Blocks of the shared file.
const BLOCKS: u64 = 200;
/// Bytes of the shared file.
pub const SHARED_BYTES: u64 = BLOCK * BLOCKS;

impl Blocks {
    /// Program `id` of `of` on the file that [`make`] made with [`SHARED_BYTES`].
    #[must_use]
    pub fn new(context: Rc<Context>, fid: Fid, id: u64, of: u64) -> Blocks {
        let rng = context.rng(&format!("blocks {id}"));
        let mut model = FileModel::default();
        model.settle(vec![0; SHARED_BYTES as usize]);
        Blocks { context, fid, id, of, rng, model }
    }
    /// Works until the run is calm, then looks at its blocks from every client.
    pub async fn run(mut self, operations: u64) {
        let mut done = 0;
        while done < operations && !self.context.calm.get() && !self.context.failed() {
            let block = self.rng.below(BLOCKS / self.of) * self.of + self.id;
            let c = self.context.any_client(&mut self.rng).await;
            let Some(author) = self.context.author(c) else { continue };
            if self.rng.chance(0.6) && self.model.pending() < 40 {
                self.write(c, author, block).await
            } else {
                self.read(c, author, block).await
            }
            if self.model.pending() >= 30 || self.context.syncs(&mut self.rng, 0.05) {
                self.sync(c, author).await;
            }
            done += 1;
            self.context.cluster.sim.sleep(Duration::from_micros(self.rng.below(20_000))).await;
        }
        until_calm(&self.context).await;
        for c in 0..self.context.cluster.clients.len() {
            for block in (self.id..BLOCKS).step_by(self.of as usize) {
                if let Some(author) = self.context.author(c).filter(|_| !self.context.failed()) {
                    self.read(c, author, block).await;
                }
            }
        }
    }
    fn what(&self, verb: &str, block: u64) -> String {
        format!("blocks{}: {verb} block {block}", self.id)
    }
    async fn write(&mut self, c: usize, author: Author, block: u64) {
        let (fid, stamp, extent) = (self.fid, self.context.stamp(), Extent::at(block * BLOCK, BLOCK));
        let what = self.what("write", block);
        let done = self.context.on(c, &what, async move |c| {
            let file = c.open(&cred(), fid, O_RDWR).await?;
            c.data().write(&file, extent.start, &bytes(stamp, extent)).await?;
            c.release(&file).await
        });
        let done = done.await;
        self.judge(&what, author, &done);
        self.model.write(extent, stamp, author, matches!(done, Some(Ok(()))));
    }
    async fn read(&mut self, c: usize, author: Author, block: u64) {
        let (fid, extent) = (self.fid, Extent::at(block * BLOCK, BLOCK));
        let what = self.what("read", block);
        let done = self.context.on(c, &what, async move |c| {
            let file = c.open(&cred(), fid, 0).await?;
            let got = c.data().read(&file, extent.start, BLOCK as usize).await?.to_vec();
            c.release(&file).await.map(|()| got)
        });
        let done = done.await;
        self.judge(&what, author, &done);
        if let Some(Ok(got)) = done
            && self.context.is_there(author)
        {
            let context = self.context.clone();
            let checked = self.model.check_read(extent.start, BLOCK, &got, &|a| context.holds(a, fid));
            self.context.expect(&format!("{what} on client{c}"), checked);
        }
    }
    async fn sync(&mut self, c: usize, author: Author) {
        let fid = self.fid;
        let what = format!("blocks{}: fsync", self.id);
        let done = self.context.on(c, &what, async move |c| {
            let file = c.open(&cred(), fid, O_RDWR).await?;
            c.data().fsync(&file, false).await?;
            c.release(&file).await
        });
        let done = done.await;
        self.judge(&what, author, &done);
        // What a disk below had lost another sync may have told.
        if matches!(done, Some(Ok(()))) && self.context.holds(author, fid) {
            self.model.synced(author);
        }
    }
    fn judge<T>(&self, what: &str, author: Author, outcome: &Option<Result<T, FsError>>) {
        if let Some(Err(e)) = outcome
            && self.context.is_sound(author)
            && !self.context.is_full(author.client, Some(self.fid), &e.to_string())
        {
            self.context.complain(format!("{what} on client{}: {e}", author.client));
        }
    }
}

/// Bytes of a record of the log.
const RECORD: usize = 96;

/// The next piece of an append comes within this time.
const PIECE_WITHIN: Duration = Duration::from_millis(100);

/// How often all programs of the log work as fast as they can, and for how long.
const RUSH_EVERY_NS: u64 = 3_000_000_000;
const RUSH_NS: u64 = 60_000_000;
/// How often the log's size is looked at beside one append of a rush.
const LOOKS_MAX: u32 = 20;

/// Appends while the same client asks for the size again and again: answers come when its lock is on its way out.
async fn watched<T>(c: &Rc<Client>, fid: Fid, write: impl Future<Output = Result<T, FsError>>) -> Result<T, FsError> {
    let looks = async {
        for _ in 0..LOOKS_MAX {
            let _ = c.getattr(&cred(), fid, None).await;
            c.rt().sleep(Duration::from_micros(70)).await;
        }
        std::future::pending().await
    };
    match rt::sync::race(write, looks).await {
        Ok(done) | Err(done) => done,
    }
}

/// A log that everyone appends records to.
pub struct Log {
    context: Rc<Context>,
    fid: Fid,
    /// Records appended with success: where, by whom.
    answered: RefCell<BTreeMap<u64, (u64, Author)>>,
}

impl Log {
    /// Over an empty file.
    #[must_use]
    pub fn new(context: Rc<Context>, fid: Fid) -> Rc<Log> {
        Rc::new(Log { context, fid, answered: RefCell::default() })
    }
    fn record(stamp: u64) -> Vec<u8> {
        let mut record = stamp.to_le_bytes().to_vec();
        record.extend(bytes(stamp, Extent::new(8, RECORD as u64)));
        record
    }
    /// One of those who append, until the run is calm.
    pub async fn append(self: Rc<Self>, id: u64, operations: u64) {
        let mut rng = self.context.rng(&format!("log {id}"));
        let mut done = 0;
        while done < operations && !self.context.calm.get() && !self.context.failed() {
            let c = self.context.any_client(&mut rng).await;
            let Some(author) = self.context.author(c) else { continue };
            let (fid, stamp, sync) = (self.fid, self.context.stamp(), self.context.syncs(&mut rng, 0.2));
            let what = format!("log{id}: append {stamp}");
            let rush = self.is_rush();
            let outcome = self.context.on(c, &what, async move |c| {
                let file = c.open(&cred(), fid, O_APPEND_RDWR).await?;
                let record = Log::record(stamp);
                let write = c.data().write(&file, 0, &record);
                let at = if rush { watched(&c, fid, write).await? } else { write.await? };
                if sync {
                    c.data().fsync(&file, false).await?;
                }
                c.release(&file).await.map(|()| at)
            });
            match outcome.await {
                Some(Ok(at)) => self.note_answer(at, stamp, author),
                Some(Err(e))
                    if self.context.is_sound(author)
                        && !self.context.is_full(author.client, Some(self.fid), &e.to_string()) =>
                {
                    self.context.complain(format!("{what} on client{c}: {e}"));
                }
                _ => {}
            }
            done += 1;
            let pause_us = if rush { 1000 } else { 50_000 };
            self.context.cluster.sim.sleep(Duration::from_micros(rng.below(pause_us))).await;
        }
    }
    /// Appends records through one open, one right after the other, or as pieces of one call with so many microseconds between them;
    /// where the last one ended, when all went well.
    pub async fn several(
        &self,
        c: usize,
        author: Author,
        records: u64,
        pieces_us: Option<u64>,
        soon: bool,
    ) -> Option<u64> {
        let (fid, stamps) = (self.fid, (0..records).map(|_| self.context.stamp()).collect::<Vec<_>>());
        let what = format!("crowd: append {stamps:?}");
        let outcome = self.context.on(c, &what, async move |c| {
            let file = c.open(&cred(), fid, O_APPEND_RDWR).await?;
            let (mut went, last) = (Vec::new(), stamps.len() - 1);
            for (nth, stamp) in stamps.into_iter().enumerate() {
                let record = Log::record(stamp);
                let at = match pieces_us {
                    None => c.data().write(&file, 0, &record).await?,
                    Some(pause) => {
                        let keep = (nth < last).then_some(PIECE_WITHIN);
                        let written = c.data().write_part(&file, (nth * RECORD) as u64, &record, keep).await?;
                        if written.len < RECORD as u64 {
                            return Err(FsError::NoSpace);
                        }
                        c.rt().sleep(Duration::from_micros(pause)).await;
                        written.at
                    }
                };
                went.push((at, stamp));
            }
            if soon {
                c.release_soon(&file).await;
            } else {
                c.release(&file).await?;
            }
            Ok::<_, FsError>(went)
        });
        match outcome.await {
            Some(Ok(went)) => {
                let end = went.last().map(|(at, _)| at + RECORD as u64);
                went.into_iter().for_each(|(at, stamp)| self.note_answer(at, stamp, author));
                end
            }
            Some(Err(e))
                if self.context.is_sound(author)
                    && !self.context.is_full(author.client, Some(self.fid), &e.to_string()) =>
            {
                self.context.complain(format!("{what} on client{c}: {e}"));
                None
            }
            _ => None,
        }
    }
    /// A record was answered to have gone to `at`, where none of another sound client's may be.
    fn note_answer(&self, at: u64, stamp: u64, author: Author) {
        let other = self.answered.borrow_mut().insert(at, (stamp, author));
        if let Some((before, by)) = other
            && self.context.holds(by, self.fid)
            && self.context.holds(author, self.fid)
        {
            self.context.complain(format!(
                "log: records {before} of client{} and {stamp} of client{} both went to {at}",
                by.client, author.client
            ));
        }
    }
    /// The file.
    pub fn fid(&self) -> Fid {
        self.fid
    }
    /// Whether everybody appends as fast as it goes right now.
    fn is_rush(&self) -> bool {
        self.context.cluster.sim.now().0 % RUSH_EVERY_NS < RUSH_NS
    }
    /// After all faults: what sound clients appended is there, once and whole.
    pub async fn check(&self) {
        let Some(got) = self.look(0, 0).await else { return };
        let mut seen = BTreeMap::new();
        for (i, record) in got.chunks(RECORD).enumerate() {
            let stamp = u64::from_le_bytes(record[..8].try_into().unwrap_or_default());
            if record == Log::record(stamp)
                && let Some(first) = seen.insert(stamp, i)
            {
                self.context.complain(format!("log: record {stamp} is there as number {first} and {i}"));
            }
        }
    }
    /// Reads the log from a record's offset on, and looks whether what sound clients appended there is there. `None`: it could not be
    /// read, which is complained about where that cannot be.
    pub async fn look(&self, client: usize, from: u64) -> Option<Vec<u8>> {
        let (fid, most) = (self.fid, 1 << 24);
        // What began while something was wrong may end with that when all is calm.
        let (author, was_calm) = (self.context.author(client), self.context.calm.get());
        let read = self.context.on(client, "log: read", async move |c| {
            let file = c.open(&cred(), fid, 0).await?;
            let got = c.data().read(&file, from, most).await?.to_vec();
            c.release(&file).await.map(|()| got)
        });
        let read = read.await;
        let read = read?;
        let counts = |a| self.context.is_sound(a) || read.is_ok() && self.context.is_there(a);
        if !author.is_some_and(counts) && !was_calm {
            return None;
        }
        let got = match read {
            Ok(got) => got,
            Err(e) => {
                self.context.complain(format!("log: read: {e}"));
                return None;
            }
        };
        let answered = self.answered.borrow();
        for (at, (stamp, author)) in answered.range(from..).filter(|(_, (_, a))| self.context.holds(*a, fid)) {
            let place = (at - from) as usize;
            let found = got.get(place..place + RECORD);
            let whole = if found == Some(&Log::record(*stamp)) { Ok(()) } else { Err(tell(found)) };
            self.context.expect(&format!("log: record {stamp} of client{} at {at}", author.client), whole);
        }
        Some(got)
    }
}

fn tell(found: Option<&[u8]>) -> String {
    match found {
        None => "the log ends before".into(),
        Some(f) => format!("record {} is there", u64::from_le_bytes(f[..8].try_into().unwrap_or_default())),
    }
}

/// A counter that is raised under a lock.
pub struct Counter {
    context: Rc<Context>,
    fid: Fid,
    holder: Cell<Option<Author>>,
    /// Raises that were answered, and those of whom nobody knows.
    raised: Cell<u64>,
    unknown: Cell<u64>,
    lost: Cell<bool>,
}

/// Adds one to the number in a file, and syncs it.
async fn raise_once(c: &Rc<Client>, fid: Fid) -> Result<(), FsError> {
    let file = c.open(&cred(), fid, O_RDWR).await?;
    let got = c.data().read(&file, 0, 8).await?.to_vec();
    let value = u64::from_le_bytes(got.try_into().map_err(|_| FsError::Io)?);
    c.data().write(&file, 0, &(value + 1).to_le_bytes()).await?;
    c.data().fsync(&file, false).await?;
    c.release(&file).await
}

impl Counter {
    /// Over a file of 8 zero bytes.
    #[must_use]
    pub fn new(context: Rc<Context>, fid: Fid) -> Rc<Counter> {
        Rc::new(Counter {
            context,
            fid,
            holder: Cell::new(None),
            raised: Cell::new(0),
            unknown: Cell::new(0),
            lost: Cell::new(false),
        })
    }
    /// One of those who raise it, until the run is calm.
    pub async fn raise(self: Rc<Self>, id: u64, operations: u64) {
        let mut rng = self.context.rng(&format!("counter {id}"));
        let mut done = 0;
        while done < operations && !self.context.calm.get() && !self.context.failed() {
            let c = self.context.any_client(&mut rng).await;
            let Some(author) = self.context.author(c) else { continue };
            self.one(id, c, author, rng.chance(0.5)).await;
            done += 1;
            self.context.cluster.sim.sleep(Duration::from_micros(rng.below(60_000))).await;
        }
    }
    async fn one(self: &Rc<Self>, id: u64, c: usize, author: Author, whole: bool) {
        let (fid, me, what) = (self.fid, self.clone(), format!("counter{id}: raise"));
        let outcome = self.context.on(c, &what, async move |c| {
            let extent = if whole { Extent::ALL } else { Extent::new(0, 8) };
            let call =
                LockCall { fid, whole: false, mode: FlockMode::Exclusive, extent, owner: 1000 + id, pid: id as u32 };
            c.flocks().set_lock(call, true, std::future::pending()).await?;
            me.enter(author);
            let raised = raise_once(&c, fid).await;
            me.holder.set(None);
            let unlock = LockCall { mode: FlockMode::Unlock, ..call };
            let unlocked = c.flocks().set_lock(unlock, false, std::future::pending()).await;
            raised.and(unlocked)
        });
        match outcome.await {
            Some(Ok(())) if self.context.is_there(author) => self.raised.set(self.raised.get() + 1),
            Some(Err(e))
                if self.context.is_sound(author)
                    && !self.context.is_full(author.client, Some(self.fid), &e.to_string()) =>
            {
                self.context.complain(format!("{what} on client{c}: {e}"));
            }
            _ => {
                self.unknown.set(self.unknown.get() + 1);
                if self.holder.get() == Some(author) {
                    self.holder.set(None);
                }
            }
        }
    }
    fn enter(&self, author: Author) {
        let other = self.holder.replace(Some(author));
        if let Some(other) = other
            && self.context.is_there(other)
            && self.context.is_there(author)
        {
            self.context.complain(format!("counter: {author:?} has the lock that {other:?} has"));
        }
        if !self.context.is_there(author) {
            self.lost.set(true);
        }
    }
    /// After all faults: it was raised once for every raise.
    pub async fn check(&self) {
        let fid = self.fid;
        let read = self.context.on(0, "counter: read", async move |c| {
            let file = c.open(&cred(), fid, 0).await?;
            let got = c.data().read(&file, 0, 100).await?.to_vec();
            c.release(&file).await.map(|()| got)
        });
        let value = match read.await {
            Some(Ok(got)) => u64::from_le_bytes(got.try_into().unwrap_or_default()),
            Some(Err(e)) => return self.context.complain(format!("counter: read: {e}")),
            None => return,
        };
        let (raised, unknown) = (self.raised.get(), self.unknown.get());
        // A holder that was evicted without knowing may write what it had read before.
        let fits =
            (raised..=raised + unknown).contains(&value) || self.lost.get() || unknown > 0 && value <= raised + unknown;
        let outcome = if fits { Ok(()) } else { Err(format!("{value}, should be {raised} to {}", raised + unknown)) };
        self.context.expect("counter", outcome);
    }
}
