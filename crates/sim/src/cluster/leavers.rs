//! Programs that write to a file once and never come back to it: what is left of a write, be it one that failed, goes to the
//! OSTs by its age.
//!
//! Each write covers a page whole and a part of the next one, which has to be read first. Where that read fails the write
//! fails, and the whole page is dirty. Nothing else writes it out: nobody syncs the file, and nobody asks for its locks.
use std::rc::Rc;

use client::NewFile;
use types::{Duration, Fid, FsError, Rng};
use wire::mdt::Cred;

use super::context::Context;
use super::model::Author;

const O_RDWR: u32 = 2;
const O_CREAT_RDWR: u32 = 0o102;
/// Files, each written once.
const FILES: u64 = 50;
/// Bytes of a file before, and of the write.
const BYTES: (usize, usize) = (8192, 4196);
/// Time that write-out has besides the age of what is dirty.
const GRACE: Duration = Duration::from_secs(20);

/// See the module's head.
pub struct Leaver {
    context: Rc<Context>,
    id: usize,
    rng: Rng,
    files: Vec<Fid>,
    /// Files with a write that failed, and on whose client.
    left: Vec<(Fid, Author)>,
}

impl Leaver {
    /// Makes its files, before anything goes wrong.
    ///
    /// # Errors
    /// What a client answers.
    pub async fn new(context: Rc<Context>, id: usize) -> Result<Leaver, String> {
        let made = context.on(0, "leaver: files", async move |c| {
            let mut files = Vec::new();
            for n in 0..FILES {
                let new = NewFile { flags: O_CREAT_RDWR, mode: 0o644, ..NewFile::default() };
                let name = format!("left{id}.{n}");
                let (entry, file) = c.create_open(&Cred::default(), Fid::ROOT, name.as_bytes(), new).await?;
                c.data().write(&file, 0, &[1; BYTES.0]).await?;
                c.release(&file).await?;
                files.push(entry.attr.fid);
            }
            c.sync_all().await?;
            // Whoever writes later reads first.
            c.drop_caches().await;
            Ok::<_, FsError>(files)
        });
        let files = made.await.ok_or("the client died")?.map_err(|e| format!("files that are left: {e}"))?;
        let rng = context.rng(&format!("leaver {id}"));
        Ok(Leaver { context, id, rng, files, left: Vec::new() })
    }
    /// Writes to one file after the other until the run is calm, then looks at what was left.
    pub async fn run(mut self) {
        while !self.context.calm.get() && !self.context.failed() {
            if let Some(fid) = self.files.pop() {
                self.write(fid).await;
            }
            self.context.cluster.sim.sleep(Duration::from_micros(self.rng.below(1_500_000))).await;
        }
        if !self.left.is_empty() && !self.context.failed() {
            self.check().await;
        }
    }
    async fn write(&mut self, fid: Fid) {
        let c = self.context.any_client(&mut self.rng).await;
        let Some(author) = self.context.author(c) else { return };
        let what = format!("leaver{}: write", self.id);
        let done = self.context.on(c, &what, async move |c| {
            let file = c.open(&Cred::default(), fid, O_RDWR).await?;
            let written = c.data().write(&file, 0, &[2; BYTES.1]).await;
            // The write's own error comes again.
            let _ = c.release(&file).await;
            written
        });
        if let Some(Err(e)) = done.await {
            if self.context.is_sound(author) && !self.context.is_full(c, Some(fid), &e.to_string()) {
                self.context.complain(format!("{what} on client{c}: {e}"));
            }
            self.left.push((fid, author));
        }
    }
    /// What an eviction or a death took is gone, too.
    async fn check(&self) {
        let age = self.context.cluster.config.dirty_age_max;
        self.context.cluster.sim.sleep(age + age + GRACE).await;
        for (fid, author) in &self.left {
            let same = self.context.author(author.client).is_some_and(|now| now.start == author.start);
            let Some(client) = self.context.cluster.client(author.client).filter(|_| same) else { continue };
            let pages = client.osts().unwritten_pages(*fid);
            let told =
                format!("leaver{}: {pages} pages of {fid} on client{} are not written out", self.id, author.client);
            self.context.expect("age", if pages == 0 { Ok(()) } else { Err(told) });
        }
    }
}
