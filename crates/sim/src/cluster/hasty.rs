//! Programs that are interrupted: the future of one operation is dropped somewhere on its way, and they go on with the next one.
//!
//! What was dropped may have happened or not, as if its client had died; but the client lives on, and so do all others. Whatever
//! stays in hand (a lock, an open, a turn) hangs somebody sooner or later, and a change that was not taken in shows as old bytes.
use std::rc::Rc;

use client::{Client, FlockMode, LockCall, OpenFile};
use types::{Duration, Extent, Fid, FsError, Rng};
use wire::mdt::{Cred, SetBits, SetattrRequest};

use super::context::Context;
use super::dropped::{hasty, polls};
use super::model::{Author, FileModel, bytes};

const O_RDWR: u32 = 2;
const O_DIRECT: u32 = 0o40000;
/// Bytes of a block: neither a divisor nor a multiple of a page.
const BLOCK: u64 = 3000;
const BLOCKS: u64 = 60;
/// Bytes of the file.
pub const HASTY_BYTES: u64 = BLOCK * BLOCKS;
/// Files of other programs, which are opened and looked at.
const OTHERS: [&[u8]; 4] = [b"blocks", b"log", b"overlap", b"hasty"];

fn cred() -> Cred {
    Cred::default()
}

/// See the module's head.
pub struct Hasty {
    context: Rc<Context>,
    fid: Fid,
    id: u64,
    of: u64,
    rng: Rng,
    model: FileModel,
}

impl Hasty {
    /// Program `id` of `of` on the file `hasty` of [`HASTY_BYTES`].
    #[must_use]
    pub fn new(context: Rc<Context>, fid: Fid, id: u64, of: u64) -> Hasty {
        let rng = context.rng(&format!("hasty {id}"));
        let mut model = FileModel::default();
        model.settle(vec![0; HASTY_BYTES as usize]);
        Hasty { context, fid, id, of, rng, model }
    }
    /// Works until no fault begins any more, then looks at its blocks from every client.
    pub async fn run(mut self) {
        while !self.context.ending.get() && !self.context.failed() {
            let c = self.context.any_client(&mut self.rng).await;
            let Some(author) = self.context.author(c) else { continue };
            match self.rng.below(10) {
                0..4 => self.write(c, author).await,
                4..6 => self.read(c, author).await,
                6 => self.sync(c, author).await,
                7 => self.lock(c, author).await,
                _ => self.look(c, author).await,
            }
            if self.model.pending() >= 30 {
                self.sync(c, author).await;
            }
            self.context.cluster.sim.sleep(Duration::from_micros(self.rng.below(40_000))).await;
        }
        while !self.context.calm.get() {
            self.context.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
        for c in 0..self.context.cluster.clients.len() {
            for block in (self.id..BLOCKS).step_by(self.of as usize) {
                if let Some(author) = self.context.author(c).filter(|_| !self.context.failed()) {
                    self.read_block(c, author, block).await;
                }
            }
        }
    }
    fn what(&self, verb: &str) -> String {
        format!("hasty{}: {verb}", self.id)
    }
    fn block(&mut self) -> u64 {
        self.rng.below(BLOCKS / self.of) * self.of + self.id
    }
    fn polls(&mut self) -> u64 {
        polls(&mut self.rng)
    }
    /// Whether the operation came to its end, or was dropped.
    fn judge(&self, what: &str, author: Author, outcome: Option<Result<bool, FsError>>) -> bool {
        match outcome {
            Some(Ok(true)) => true,
            Some(Ok(false)) => {
                self.context.note_dropped();
                false
            }
            Some(Err(e)) => {
                if self.context.is_sound(author) && !self.context.is_full(author.client, None, &e.to_string()) {
                    self.context.complain(format!("{what} on client{}: {e}", author.client));
                }
                false
            }
            None => false,
        }
    }

    async fn write(&mut self, c: usize, author: Author) {
        let (fid, stamp, block) = (self.fid, self.context.stamp(), self.block());
        let extent = Extent::at(block * BLOCK, BLOCK);
        let (polls, closing) = (self.polls(), if self.rng.chance(0.3) { self.polls() } else { u64::MAX });
        let flags = if self.rng.chance(0.3) { O_RDWR | O_DIRECT } else { O_RDWR };
        let what = self.what(&format!("write of block {block}"));
        let done = self.context.on(c, &what, async move |c| {
            let file = c.open(&cred(), fid, flags).await?;
            let written = hasty(polls, c.data().write(&file, extent.start, &bytes(stamp, extent))).await;
            let closed = hasty(closing, c.release(&file)).await;
            closed.unwrap_or(Ok(()))?;
            written.transpose().map(|w| w.is_some())
        });
        let done = done.await;
        let answered = self.judge(&what, author, done);
        self.model.write(extent, stamp, author, answered);
    }
    async fn read(&mut self, c: usize, author: Author) {
        let (fid, block, polls) = (self.fid, self.block(), self.polls());
        let what = self.what("read that is dropped");
        let done = self.context.on(c, &what, async move |c| {
            let file = c.open(&cred(), fid, 0).await?;
            let read = hasty(polls, c.data().read(&file, 0, HASTY_BYTES as usize)).await;
            c.release(&file).await?;
            read.transpose().map(|r| r.is_some())
        });
        let done = done.await;
        self.judge(&what, author, done);
        self.read_block(c, author, block).await;
    }
    async fn read_block(&mut self, c: usize, author: Author, block: u64) {
        let (fid, extent) = (self.fid, Extent::at(block * BLOCK, BLOCK));
        let what = self.what(&format!("read of block {block}"));
        let done = self.context.on(c, &what, async move |c| {
            let file = c.open(&cred(), fid, 0).await?;
            let got = c.data().read(&file, extent.start, BLOCK as usize).await?.to_vec();
            c.release(&file).await.map(|()| got)
        });
        let done = done.await;
        if let Some(Ok(got)) = &done
            && self.context.is_sound(author)
        {
            let context = self.context.clone();
            let checked = self.model.check_read(extent.start, BLOCK, got, &|a| context.is_sound(a));
            self.context.expect(&format!("{what} on client{c}"), checked);
        }
        self.judge(&what, author, done.map(|d| d.map(|_| true)));
    }
    async fn sync(&mut self, c: usize, author: Author) {
        let (fid, what) = (self.fid, self.what("fsync"));
        let polls = if self.model.pending() < 30 && self.rng.chance(0.5) { self.polls() } else { u64::MAX };
        let done = self.context.on(c, &what, async move |c| {
            let file = c.open(&cred(), fid, O_RDWR).await?;
            let synced = hasty(polls, c.data().fsync(&file, false)).await;
            c.release(&file).await?;
            synced.transpose().map(|s| s.is_some())
        });
        let done = done.await;
        if self.judge(&what, author, done) && self.context.is_sound(author) {
            self.model.synced(author);
        }
    }
    /// A lock that the other programs want, too: whoever gets it gives it back.
    async fn lock(&mut self, c: usize, author: Author) {
        let (whole, owner, polls) = (self.rng.chance(0.5), 900 + self.id, self.polls());
        let (fid, what) = (self.fid, self.what("wait for a lock"));
        let keeps = Duration::from_millis(self.rng.below(50));
        let done = self.context.on(c, &what, async move |c| {
            let call =
                LockCall { fid, whole, mode: FlockMode::Exclusive, extent: Extent::ALL, owner, pid: owner as u32 };
            let got = hasty(polls, c.flocks().set_lock(call, true, std::future::pending())).await.transpose()?;
            if got.is_some() {
                c.rt().sleep(keeps).await;
                let unlock = LockCall { mode: FlockMode::Unlock, ..call };
                c.flocks().set_lock(unlock, false, std::future::pending()).await?;
            }
            Ok(got.is_some())
        });
        let done = done.await;
        self.judge(&what, author, done);
    }
    /// Everything that changes no bytes, of files of any program.
    async fn look(&mut self, c: usize, author: Author) {
        let (name, which) = (OTHERS[self.rng.below(OTHERS.len() as u64) as usize], self.rng.below(7));
        let (fid, polls, what) = (self.fid, self.polls(), self.what(&format!("look {which}")));
        let done = self.context.on(c, &what, async move |c| looks(&c, (fid, name), which, polls).await).await;
        self.judge(&what, author, done);
    }
}

/// One of the operations that change no bytes: of a file with a name that may be there, or of one that is.
async fn looks(c: &Rc<Client>, (fid, name): (Fid, &[u8]), which: u64, polls: u64) -> Result<bool, FsError> {
    let cred = cred();
    if which < 3 {
        let Some(entry) = hasty(polls, c.lookup(&cred, Fid::ROOT, name)).await.transpose()? else { return Ok(false) };
        if entry.attr.fid.is_zero() {
            return Ok(true);
        }
        let flags = if which == 0 { O_RDWR } else { 0 };
        let opened: Option<Rc<OpenFile>> = hasty(polls, c.open(&cred, entry.attr.fid, flags)).await.transpose()?;
        let Some(file) = opened else { return Ok(false) };
        return Ok(hasty(polls, c.release(&file)).await.transpose()?.is_some());
    }
    let done = match which {
        3 => hasty(polls, c.getattr(&cred, fid, None)).await.map(|r| r.map(drop)),
        4 => hasty(polls, c.setxattr(&cred, fid, b"user.hasty", Some(name), 0, false)).await,
        5 => {
            let request = SetattrRequest { valid: SetBits::MODE, mode: 0o100_644, ..SetattrRequest::default() };
            hasty(polls, c.setattr(&cred, &c.meta().inode(fid), request, None)).await
        }
        _ => hasty(polls, c.meta().readdir(&cred, Fid::ROOT, 0, 4096, true)).await.map(|r| r.map(drop)),
    };
    Ok(done.transpose()?.is_some())
}
