//! A program of several clients: one of them asks for nothing for a while, and is then cut off from OSTs that die, with writes under the locks
//! that it holds. Others want what it may have locked as soon as the OSTs run again, whether it comes back in time or not.
//!
//! A restarted OST goes on without whoever was quiet: what that one holds has to stay its own, and what it wrote has to be found.
use std::rc::Rc;

use client::OpenFile;
use types::{Duration, Extent, Fid, FsError, Rng};
use wire::mdt::Cred;

use super::context::Context;
use super::model::{Author, FileModel, bytes};
use super::moments::Absence;

const O_RDWR: u32 = 2;
/// Bytes of a block: a page, which is written without being read.
const BLOCK: u64 = 4096;
/// Blocks of the file.
const BLOCKS: u64 = 48;
/// Bytes of the file.
pub const ABSENT_BYTES: u64 = BLOCK * BLOCKS;
/// Operations of others while it is away, at most.
const OTHERS_MAX: u32 = 60;

/// See the module's head.
pub struct Absent {
    context: Rc<Context>,
    fid: Fid,
    rng: Rng,
    model: FileModel,
}

impl Absent {
    /// Over a file of [`ABSENT_BYTES`] zeros that only it writes.
    #[must_use]
    pub fn new(context: Rc<Context>, fid: Fid) -> Absent {
        let rng = context.rng("absent");
        let mut model = FileModel::default();
        model.settle(vec![0; ABSENT_BYTES as usize]);
        Absent { context, fid, rng, model }
    }
    /// Works until nothing goes wrong any more, then looks at the file from every client.
    pub async fn run(mut self) {
        let clients = self.context.cluster.clients.len();
        while clients > 1 && self.context.absences.is_open() && !self.context.failed() {
            // Others seldom use the last one by its number.
            let client = if self.rng.chance(0.7) { clients - 1 } else { self.rng.below(clients as u64) as usize };
            self.context.leave_alone(client, true);
            self.round(client).await;
            self.context.leave_alone(client, false);
            self.context.cluster.sim.sleep(Duration::from_millis(200)).await;
        }
        while !self.context.calm.get() {
            self.context.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
        for c in 0..clients {
            for block in 0..BLOCKS {
                if !self.context.failed() {
                    self.read(c, block).await;
                }
            }
        }
    }
    async fn round(&mut self, client: usize) {
        let Some(author) = self.context.author(client) else { return };
        let Some(file) = self.open(client).await else { return };
        let some = 1 + self.rng.below(6);
        for _ in 0..some {
            self.write(author, &file).await;
        }
        if self.rng.chance(0.7) {
            self.sync(author, &file).await;
        }
        let quiet = Duration::from_millis(12_500 + self.rng.below(3000)) + self.context.cluster.config.commit_max();
        self.context.cluster.sim.sleep(quiet).await;
        let (cut, is_cut) = rt::sync::oneshot();
        let (over, ended) = rt::sync::oneshot();
        if self.is_still(author).is_some() && self.context.absences.wish(Absence { client, cut, over }) {
            if is_cut.await.is_some() {
                for _ in 0..self.rng.below(5) {
                    self.write(author, &file).await;
                }
            }
            self.others_want_it(client, ended).await;
        }
        if self.rng.chance(0.5) {
            self.sync(author, &file).await;
        }
        if self.is_still(author).is_some() {
            let _ = self.context.on(client, "absent: close", async move |c| c.release(&file).await).await;
        }
    }
    /// Others read and write what the absent one may have locked, one after the other, until it is back or given up.
    async fn others_want_it(&mut self, away: usize, ended: rt::sync::OneReceiver<()>) {
        let over = Rc::new(std::cell::Cell::new(false));
        let told = over.clone();
        self.context.cluster.sim.spawn(async move {
            ended.await;
            told.set(true);
        });
        for _ in 0..OTHERS_MAX {
            if over.get() || self.context.failed() {
                break;
            }
            let other = self.context.any_client(&mut self.rng).await;
            if other != away {
                self.other_does(other).await;
            }
            self.context.cluster.sim.sleep(Duration::from_millis(self.rng.below(400))).await;
        }
        while !over.get() {
            self.context.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
    }
    async fn other_does(&mut self, other: usize) {
        let block = self.rng.below(BLOCKS);
        if self.rng.chance(0.6) {
            return self.read(other, block).await;
        }
        let Some(author) = self.context.author(other) else { return };
        let Some(file) = self.open(other).await else { return };
        self.write(author, &file).await;
        if self.rng.chance(0.5) {
            self.sync(author, &file).await;
        }
        if self.is_still(author).is_some() {
            let _ = self.context.on(other, "absent: close", async move |c| c.release(&file).await).await;
        }
    }
    /// Who goes by the same session as when it opened the file.
    fn is_still(&self, author: Author) -> Option<Author> {
        let now = self.context.author(author.client)?;
        now.has_all_of(author).then_some(now)
    }
    async fn open(&self, client: usize) -> Option<Rc<OpenFile>> {
        let fid = self.fid;
        let opened =
            self.context.on(client, "absent: open", async move |c| c.open(&Cred::default(), fid, O_RDWR).await);
        opened.await?.ok()
    }
    async fn write(&mut self, author: Author, file: &Rc<OpenFile>) {
        let extent = Extent::at(self.rng.below(BLOCKS) * BLOCK, BLOCK);
        let stamp = self.context.stamp();
        let Some(author) = self.is_still(author) else { return };
        let (what, file) = (format!("absent: write {stamp}"), file.clone());
        let done = self
            .context
            .on(author.client, &what, async move |c| c.data().write(&file, extent.start, &bytes(stamp, extent)).await);
        let done = done.await;
        self.judge(&what, author, &done);
        self.model.write(extent, stamp, author, matches!(done, Some(Ok(_))));
    }
    async fn sync(&mut self, author: Author, file: &Rc<OpenFile>) {
        let Some(author) = self.is_still(author) else { return };
        let file = file.clone();
        let done =
            self.context.on(author.client, "absent: fsync", async move |c| c.data().fsync(&file, false).await).await;
        self.judge("absent: fsync", author, &done);
        if matches!(done, Some(Ok(()))) && self.context.is_sound(author) {
            self.model.synced(author);
        }
    }
    async fn read(&mut self, client: usize, block: u64) {
        let Some(author) = self.context.author(client) else { return };
        let (fid, extent) = (self.fid, Extent::at(block * BLOCK, BLOCK));
        let what = format!("absent: read block {block}");
        let done = self.context.on(client, &what, async move |c| {
            let file = c.open(&Cred::default(), fid, 0).await?;
            let got = c.data().read(&file, extent.start, BLOCK as usize).await.map(|b| b.to_vec());
            let _ = c.release(&file).await;
            got
        });
        let done = done.await;
        self.judge(&what, author, &done);
        if let Some(Ok(got)) = done
            && self.context.is_sound(author)
        {
            let context = self.context.clone();
            let checked = self.model.check_read(extent.start, BLOCK, &got, &|a| context.is_sound(a));
            self.context.expect(&format!("{what} on client{client}"), checked);
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
