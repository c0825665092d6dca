//! A program on a directory of its own: names and files made, written, cut, renamed, linked and removed, each operation
//! on any of the clients, and every answer compared with what it must be.
use std::collections::BTreeMap;
use std::rc::Rc;

use client::{Client, NewNode, OpenFile};
use types::{Extent, Fid, FsError, Rng};
use wire::mdt::{Cred, NodeKind, SetBits, SetattrRequest};

mod names;

use names::read_dirs;

use super::context::Context;
use super::dropped::hasty;
use super::model::{Author, FileModel, bytes};

const O_RDWR: u32 = 2;
const O_APPEND_RDWR: u32 = 0o2002;
const O_DIRECT_RDWR: u32 = 0o40002;
const O_TRUNC_RDWR: u32 = 0o1002;
const O_DSYNC: u32 = 0o10000;
/// Names in each of the two directories.
const NAMES: u64 = 5;
/// Largest file of a program that does everything.
const FILE_BYTES_MAX: u64 = 400 << 10;
/// Changes of a file not known to be stable, before it is settled.
const PENDING_MAX: usize = 24;
/// States of the names that are remembered, before they are made stable.
const PAST_MAX: usize = 60;
/// Attempts to settle a file between faults.
const SETTLE_ATTEMPTS_MAX: u32 = 200;

type Name = (usize, u64);

/// What a program does most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Habit {
    /// A little of everything.
    Everything,
    /// It makes files long, over all of their objects, and cuts them.
    Cuts,
}

struct File {
    fid: Fid,
    model: FileModel,
}

/// A file kept open on a client.
struct Held {
    author: Author,
    open: Rc<OpenFile>,
    file: usize,
}

/// See the module's head.
pub struct Tree {
    context: Rc<Context>,
    id: usize,
    habit: Habit,
    /// Largest file.
    reach: u64,
    rng: Rng,
    dirs: [Fid; 2],
    names: BTreeMap<Name, usize>,
    /// What names stood for since the last state that is known to be stable, that one first, each with who changed it and was answered.
    past: Vec<(BTreeMap<Name, usize>, Option<Author>)>,
    /// What was written to files before they had a name, for those of which nobody knows whether they got one.
    nameless: BTreeMap<Fid, (Extent, u64, Author)>,
    /// Files that had a name in one of them and have none any more.
    gone: BTreeMap<usize, File>,
    /// [`Context::double_deaths`] that are taken into account.
    deaths: u64,
    files: BTreeMap<usize, File>,
    next_file: usize,
    held: Vec<Held>,
}

fn text(name: Name) -> Vec<u8> {
    format!("n{}", name.1).into_bytes()
}

fn cred() -> Cred {
    Cred::default()
}

/// Opens the file behind a name, which must have the expected id.
async fn open_named(c: &Rc<Client>, dir: Fid, name: &[u8], fid: Fid, flags: u32) -> Result<Rc<OpenFile>, String> {
    let entry = c.lookup(&cred(), dir, name).await.map_err(|e| format!("look-up: {e}"))?;
    if entry.attr.fid != fid {
        return Err(format!("the name stands for {}, should be {fid}", entry.attr.fid));
    }
    c.open(&cred(), fid, flags).await.map_err(|e| format!("open: {e}"))
}

async fn close(c: &Rc<Client>, file: &Rc<OpenFile>) -> Result<(), String> {
    let flushed = file.flush_errors();
    let released = c.release(file).await;
    flushed.map_err(|e| format!("flush: {e}"))?;
    released.map_err(|e| format!("close: {e}"))
}

/// Whether an error comes from an operation that finds no lack of space: what it is about was answered before.
fn promised(error: &str) -> bool {
    error.starts_with("fsync:") || error.starts_with("flush:") || error.starts_with("sync:")
}

impl Tree {
    /// Makes the directories, on the first client, before anything goes wrong.
    ///
    /// # Errors
    /// What a client answers.
    pub async fn new(context: Rc<Context>, id: usize, habit: Habit) -> Result<Tree, String> {
        let config = &context.cluster.config;
        let round = config.stripe_bytes * u64::from(config.stripe_count);
        let reach = if habit == Habit::Cuts { FILE_BYTES_MAX.max(round + round / 4) } else { FILE_BYTES_MAX };
        let rng = context.rng(&format!("program {id}"));
        let made = context.on(0, "mkdir", async move |c| {
            let node = || NewNode { kind: NodeKind::Directory, mode: 0o040_755, ..NewNode::default() };
            let top = c.create(&cred(), Fid::ROOT, format!("tree{id}").as_bytes(), node()).await?.attr.fid;
            let a = c.create(&cred(), top, b"a", node()).await?.attr.fid;
            let b = c.create(&cred(), top, b"b", node()).await?.attr.fid;
            Ok::<_, FsError>([a, b])
        });
        let dirs = made.await.ok_or("the client died")?.map_err(|e| format!("mkdir: {e}"))?;
        Ok(Tree {
            context,
            id,
            habit,
            reach,
            rng,
            dirs,
            names: BTreeMap::new(),
            past: Vec::new(),
            nameless: BTreeMap::new(),
            gone: BTreeMap::new(),
            deaths: 0,
            files: BTreeMap::new(),
            next_file: 0,
            held: Vec::new(),
        })
    }

    /// Works until the run is calm or `operations` are done, then settles everything and looks at it from every client.
    pub async fn run(mut self, operations: u64) {
        let mut done = 0;
        while done < operations && !self.context.calm.get() && !self.context.failed() {
            self.one().await;
            done += 1;
            let pause = types::Duration::from_micros(self.rng.below(20_000));
            self.context.cluster.sim.sleep(pause).await;
        }
        while !self.context.calm.get() {
            self.context.cluster.sim.sleep(types::Duration::from_millis(100)).await;
        }
        self.finish().await;
    }

    async fn one(&mut self) {
        if self.deaths != self.context.double_deaths() {
            return self.relearn().await;
        }
        if self.past.len() > PAST_MAX {
            return self.list().await;
        }
        self.drop_unsound();
        if self.habit == Habit::Cuts && self.rng.chance(0.8) {
            self.lengthen_or_cut().await;
        } else {
            self.anything().await;
        }
        if let Some(id) = self.files.iter().find(|(_, f)| f.model.pending() > PENDING_MAX).map(|(id, _)| *id) {
            self.settle(id).await;
        }
    }

    async fn anything(&mut self) {
        match self.rng.below(100) {
            0..3 => self.create_nameless().await,
            3..14 => self.create().await,
            14..40 => self.write().await,
            40..46 => self.append().await,
            46..62 => self.read().await,
            62..68 => self.truncate().await,
            68..74 if self.context.syncs(&mut self.rng, 1.0) => self.sync().await,
            68..74 => self.stat().await,
            74..80 => self.rename().await,
            80..86 => self.unlink().await,
            86..89 => self.link().await,
            89..92 => self.stat().await,
            92..94 if self.context.syncs(&mut self.rng, 1.0) => self.list().await,
            94..97 => self.hold().await,
            97..99 => self.let_go().await,
            99 if self.context.syncs(&mut self.rng, 1.0) => self.sync_all().await,
            _ => {}
        }
    }

    /// A short file becomes long, a long one is cut: mostly what is on stable storage then.
    async fn lengthen_or_cut(&mut self) {
        let Some((name, id)) = self.any_file() else { return self.create().await };
        let context = self.context.clone();
        let (least, _) = self.files[&id].model.sizes(&|a| context.is_sound(a));
        let (c, author) = self.client().await;
        if least < self.reach / 2 {
            let start = self.rng.below(least + 1);
            self.write_to(name, id, Extent::new(start, self.reach), (c, author)).await;
            if self.context.syncs(&mut self.rng, 0.7) {
                self.sync_on(name, id, c, author).await;
            }
        } else {
            let size = self.rng.below(least);
            self.truncate_to(name, id, size, false).await;
        }
    }

    // ---- who, what

    async fn client(&mut self) -> (usize, Author) {
        loop {
            let c = self.context.any_client(&mut self.rng).await;
            if let Some(author) = self.context.author(c) {
                return (c, author);
            }
        }
    }
    /// An offset, small ones more often.
    fn skewed(&mut self, steps: u64) -> u64 {
        let shift = self.rng.below(steps) * 2;
        self.rng.below(self.reach >> shift)
    }
    fn any_name(&mut self) -> Name {
        (self.rng.below(2) as usize, self.rng.below(NAMES))
    }
    fn any_file(&mut self) -> Option<(Name, usize)> {
        let n = self.names.len() as u64;
        (n > 0).then(|| self.names.iter().nth(self.rng.below(n) as usize).map(|(n, f)| (*n, *f)))?
    }
    fn what(&self, verb: &str, name: Name) -> String {
        format!("tree{}: {verb} {}/n{}", self.id, ["a", "b"][name.0], name.1)
    }
    /// Whether everything that was answered to an author holds.
    fn is_sound(&self, author: Author) -> bool {
        self.context.is_sound(author) && self.deaths == self.context.double_deaths()
    }
    fn drop_unsound(&mut self) {
        let context = self.context.clone();
        self.held.retain(|h| context.is_sound(h.author));
        self.prune();
    }
    /// Forgets files without a name that nobody holds open.
    fn prune(&mut self) {
        let (names, held) = (&self.names, &self.held);
        let is_gone = |id: &usize| !names.values().any(|f| f == id) && !held.iter().any(|h| h.file == *id);
        let gone: Vec<usize> = self.files.keys().copied().filter(is_gone).collect();
        for id in gone {
            if let Some(file) = self.files.remove(&id) {
                self.gone.insert(id, file);
            }
        }
        let past = &self.past;
        self.gone.retain(|id, _| past.iter().any(|(names, _)| names.values().any(|f| f == id)));
    }
    /// Complains about a failure, unless its author was evicted meanwhile or a disk fails.
    fn judge<T>(&self, what: &str, author: Author, outcome: &Option<Result<T, String>>) {
        if let Some(Err(e)) = outcome
            && self.is_sound(author)
            && !self.context.is_told_late(author.client, None, e)
            && (promised(e) || !self.context.is_full(author.client, None, e))
        {
            self.context.complain(format!("{what} on client{}: {e}", author.client));
        }
    }
    fn check(
        &mut self,
        what: &str,
        author: Author,
        file: usize,
        outcome: impl FnOnce(&FileModel) -> Result<(), String>,
    ) {
        // What a client that was evicted and does not know it yet believes is nobody's business.
        if self.is_sound(author) {
            self.context.expect(&format!("{what} on client{}", author.client), outcome(&self.files[&file].model));
        }
    }

    // ---- data

    async fn write(&mut self) {
        let Some((name, id)) = self.any_file() else { return };
        let by = self.client().await;
        let start = self.skewed(4);
        let kind = self.rng.below(4) as usize;
        let len = 1 + self.rng.below([100, 5000, 20_000, 150_000][kind]);
        self.write_to(name, id, Extent::new(start, (start + len).min(self.reach)), by).await;
    }
    async fn write_to(&mut self, name: Name, id: usize, extent: Extent, (c, author): (usize, Author)) {
        let file = &self.files[&id];
        let (dir, fid, stamp) = (self.dirs[name.0], file.fid, self.context.stamp());
        let flags = if self.rng.chance(self.context.manners().direct) { O_DIRECT_RDWR } else { O_RDWR };
        let held = self.held.iter().find(|h| h.author == author && h.file == id).map(|h| h.open.clone());
        let synced = held.is_none() && self.context.syncs(&mut self.rng, 0.1);
        let (flags, how) = if synced { (flags | O_DSYNC, "synced ") } else { (flags, "") };
        let what = self.what(&format!("{how}write {extent:?} to"), name);
        let outcome = self.context.on(c, &what, async move |c| {
            let file = match &held {
                Some(open) => open.clone(),
                None => open_named(&c, dir, &text(name), fid, flags).await?,
            };
            let data = bytes(stamp, extent);
            c.data().write(&file, extent.start, &data).await.map_err(|e| format!("write: {e}"))?;
            if held.is_none() { close(&c, &file).await } else { Ok(()) }
        });
        let outcome = outcome.await;
        self.judge(&what, author, &outcome);
        let answered = matches!(outcome, Some(Ok(())));
        let stable = answered && synced && self.is_sound(author);
        let model = &mut self.files.get_mut(&id).expect("the file is known").model;
        model.write(extent, stamp, author, answered);
        if stable {
            model.last_is_stable();
        }
    }

    async fn append(&mut self) {
        let Some((name, id)) = self.any_file() else { return };
        let (c, author) = self.client().await;
        let context = self.context.clone();
        let sound = |a: Author| context.is_sound(a);
        let (least, most) = self.files[&id].model.sizes(&sound);
        if least != most || most > self.reach {
            return;
        }
        let (dir, fid, stamp) = (self.dirs[name.0], self.files[&id].fid, self.context.stamp());
        let extent = Extent::at(most, 1 + self.rng.below(9000));
        let what = self.what(&format!("append {extent:?} to"), name);
        let outcome = self.context.on(c, &what, async move |c| {
            let file = open_named(&c, dir, &text(name), fid, O_APPEND_RDWR).await?;
            let at = c.data().write(&file, 0, &bytes(stamp, extent)).await.map_err(|e| format!("append: {e}"))?;
            Ok::<_, String>((at, close(&c, &file).await))
        });
        let outcome = outcome.await;
        // What a failing disk did not take makes the file shorter, perhaps before this came to its end.
        let at = if let Some(Ok((at, _))) = outcome { at } else { extent.start };
        let outcome = outcome.map(|o| o.and_then(|(_, closed)| closed));
        self.judge(&what, author, &outcome);
        let answered = matches!(outcome, Some(Ok(())));
        // Somebody whose bytes are at the end may have been evicted while it waited.
        let context = self.context.clone();
        let (least, most) = self.files[&id].model.sizes(&|a| context.is_sound(a));
        if answered && !(least..=most).contains(&at) && self.is_sound(author) {
            self.context.complain(format!("{what} on client{c}: went to {at}"));
        }
        self.files.get_mut(&id).expect("the file is known").model.append(at, extent, stamp, author, answered);
    }

    async fn read(&mut self) {
        let Some((name, id)) = self.any_file() else { return };
        let (c, author) = self.client().await;
        let (dir, fid) = (self.dirs[name.0], self.files[&id].fid);
        let offset = self.skewed(5);
        let len = 1 + self.rng.below(self.reach);
        let held = self.held.iter().find(|h| h.author == author).map(|h| (h.open.clone(), h.file));
        let flags = if self.rng.chance(0.1) { O_DIRECT_RDWR } else { 0 };
        let (id, held) = match held {
            Some((open, id)) => (id, Some(open)),
            None => (id, None),
        };
        let what =
            self.what(&format!("read {len} at {offset} of{}", if held.is_some() { " an open," } else { "" }), name);
        let outcome = self.context.on(c, &what, async move |c| {
            let file = match &held {
                Some(open) => open.clone(),
                None => open_named(&c, dir, &text(name), fid, flags).await?,
            };
            let got = c.data().read(&file, offset, len as usize).await.map_err(|e| format!("read: {e}"))?.to_vec();
            if held.is_none() {
                close(&c, &file).await?;
            }
            Ok(got)
        });
        let outcome = outcome.await;
        self.judge(&what, author, &outcome);
        if let Some(Ok(got)) = outcome {
            let context = self.context.clone();
            self.check(&what, author, id, |m| m.check_read(offset, len, &got, &|a| context.is_sound(a)));
        }
    }

    async fn truncate(&mut self) {
        let Some((name, id)) = self.any_file() else { return };
        let by_open = self.rng.chance(0.3);
        let size = if by_open || self.rng.chance(0.3) { 0 } else { self.rng.below(self.reach) };
        self.truncate_to(name, id, size, by_open).await;
    }
    async fn truncate_to(&mut self, name: Name, id: usize, size: u64, by_open: bool) {
        let (c, author) = self.client().await;
        let (dir, fid) = (self.dirs[name.0], self.files[&id].fid);
        let what = self.what(&format!("truncate to {size}"), name);
        let patience = self.context.patience(&mut self.rng);
        let outcome = self.context.on(c, &what, async move |c| {
            if by_open {
                let opened = hasty(patience, open_named(&c, dir, &text(name), fid, O_TRUNC_RDWR)).await;
                let Some(file) = opened.transpose()? else { return Ok(None) };
                return close(&c, &file).await.map(Some);
            }
            let request =
                SetattrRequest { valid: SetBits::SIZE | SetBits::MTIME_NOW, size, ..SetattrRequest::default() };
            let inode = c.meta().inode(fid);
            hasty(patience, c.setattr(&cred(), &inode, request, None)).await.transpose().map_err(|e| e.to_string())
        });
        let outcome = self.context.unless_dropped(c, outcome.await).await;
        self.judge(&what, author, &outcome);
        let answered = matches!(outcome, Some(Ok(())));
        self.files.get_mut(&id).expect("the file is known").model.truncate(size, author, answered);
    }

    async fn sync(&mut self) {
        let Some((name, id)) = self.any_file() else { return };
        let (c, author) = self.client().await;
        self.sync_on(name, id, c, author).await;
    }
    async fn sync_on(&mut self, name: Name, id: usize, c: usize, author: Author) {
        let (dir, fid) = (self.dirs[name.0], self.files[&id].fid);
        let what = self.what("fsync", name);
        let outcome = self.context.on(c, &what, async move |c| {
            let file = open_named(&c, dir, &text(name), fid, O_RDWR).await?;
            c.data().fsync(&file, false).await.map_err(|e| format!("fsync: {e}"))?;
            close(&c, &file).await
        });
        let outcome = outcome.await;
        self.judge(&what, author, &outcome);
        if matches!(outcome, Some(Ok(()))) && self.is_sound(author) {
            self.files.get_mut(&id).expect("the file is known").model.synced(author);
        }
    }
    async fn sync_all(&mut self) {
        let (c, author) = self.client().await;
        let what = format!("tree{}: sync", self.id);
        let outcome = self.context.on(c, &what, async move |c| c.sync_all().await.map_err(|e| e.to_string())).await;
        self.judge(&what, author, &outcome);
        if matches!(outcome, Some(Ok(()))) && self.is_sound(author) {
            self.files.values_mut().for_each(|f| f.model.synced(author));
        }
    }

    async fn stat(&mut self) {
        let Some((name, id)) = self.any_file() else { return };
        let (c, author) = self.client().await;
        let (dir, fid) = (self.dirs[name.0], self.files[&id].fid);
        let links = self.names.values().filter(|f| **f == id).count() as u32;
        let what = self.what("stat", name);
        let outcome = self.context.on(c, &what, async move |c| {
            let mut e = c.lookup(&cred(), dir, &text(name)).await.map_err(|e| e.to_string())?;
            if e.attr.fid != fid {
                return Err(format!("{} instead of {fid}", e.attr.fid));
            }
            if !e.attr_cached {
                // As a kernel does: a look-up does not wait for servers that know the size.
                e = c.getattr(&cred(), fid, None).await.map_err(|e| e.to_string())?;
            }
            Ok(e.attr)
        });
        let outcome = outcome.await;
        self.judge(&what, author, &outcome);
        if let Some(Ok(attr)) = outcome {
            let context = self.context.clone();
            self.check(&what, author, id, |m| {
                if attr.nlink != links {
                    return Err(format!("{} links, should be {links}", attr.nlink));
                }
                m.check_size(attr.size, &|a| context.is_sound(a))
            });
        }
    }

    // ---- open files

    async fn hold(&mut self) {
        let Some((name, id)) = self.any_file() else { return };
        if self.held.len() >= 3 {
            return self.let_go().await;
        }
        let (c, author) = self.client().await;
        let (dir, fid) = (self.dirs[name.0], self.files[&id].fid);
        let what = self.what("open", name);
        let outcome =
            self.context.on(c, &what, async move |c| open_named(&c, dir, &text(name), fid, O_RDWR).await).await;
        self.judge(&what, author, &outcome);
        if let Some(Ok(open)) = outcome
            && self.is_sound(author)
        {
            self.held.push(Held { author, open, file: id });
        }
    }
    async fn let_go(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.rng.below(self.held.len() as u64) as usize;
        let Held { author, open, file } = self.held.swap_remove(at);
        if !self.is_sound(author) {
            // Its client is another by now, or has lost it.
            return self.prune();
        }
        let what = format!("tree{}: close {}", self.id, self.files[&file].fid);
        let outcome = self.context.on(author.client, &what, async move |c| close(&c, &open).await).await;
        self.judge(&what, author, &outcome);
        self.prune();
    }

    // ---- settling

    /// Makes a file's content certain and stable: those who wrote it sync it; what lost clients wrote is there or not,
    /// and stays so.
    async fn settle(&mut self, id: usize) {
        for _ in 0..SETTLE_ATTEMPTS_MAX {
            if self.deaths != self.context.double_deaths() {
                self.relearn().await;
            }
            let Some(name) = self.names.iter().find(|(_, f)| **f == id).map(|(n, _)| *n) else { return };
            if self.context.failed() || self.settle_once(name, id).await {
                return;
            }
            self.context.cluster.sim.sleep(types::Duration::from_millis(500)).await;
        }
        self.context.complain(format!("{}: could not be settled", self.what("settle", name_or_zero(&self.names, id))));
    }
    async fn settle_once(&mut self, name: Name, id: usize) -> bool {
        let authors = self.files[&id].model.authors();
        for author in authors {
            let now = self.context.author(author.client);
            match now {
                Some(now) if now.has_all_of(author) => {
                    self.sync_on(name, id, author.client, now).await;
                }
                _ => {}
            }
            self.settled_author(author).await;
        }
        if self.context.failed() || self.files[&id].model.pending() == 0 {
            return true;
        }
        let (c, reader) = self.client().await;
        let before: Vec<bool> = self.files[&id].model.authors().iter().map(|a| self.context.is_sound(*a)).collect();
        let (dir, fid) = (self.dirs[name.0], self.files[&id].fid);
        let len = self.reach * 2;
        let what = self.what("settle", name);
        let outcome = self.context.on(c, &what, async move |c| {
            let file = open_named(&c, dir, &text(name), fid, 0).await?;
            // The locks for reading come first: nobody has unwritten data then.
            c.data().read(&file, 0, len as usize).await.map_err(|e| format!("read: {e}"))?;
            c.sync_all().await.map_err(|e| format!("sync: {e}"))?;
            let got = c.data().read(&file, 0, len as usize).await.map_err(|e| format!("read: {e}"))?;
            close(&c, &file).await.map(|()| got.to_vec())
        });
        let outcome = outcome.await;
        self.judge(&what, reader, &outcome);
        let Some(Ok(got)) = outcome else { return false };
        let after: Vec<bool> = self.files[&id].model.authors().iter().map(|a| self.context.is_sound(*a)).collect();
        if !self.is_sound(reader) || before != after {
            return false;
        }
        let context = self.context.clone();
        self.check(&what, reader, id, |m| m.check_read(0, len, &got, &|a| context.is_sound(a)));
        // What sound clients wrote was synced above: only what is in doubt is taken over as it was found.
        self.files.get_mut(&id).expect("the file is known").model.settle(got);
        true
    }

    /// After all faults: everything is as it must be, on every client.
    async fn finish(&mut self) {
        if self.deaths != self.context.double_deaths() {
            self.relearn().await;
        }
        while !self.held.is_empty() {
            self.let_go().await;
        }
        let ids: Vec<usize> = self.files.keys().copied().collect();
        for id in ids {
            self.settle(id).await;
        }
        for c in 0..self.context.cluster.clients.len() {
            if self.context.failed() {
                return;
            }
            self.look(c).await;
        }
    }
    async fn look(&mut self, c: usize) {
        let dirs = self.dirs;
        let list = self.context.on(c, "final list", async move |c| read_dirs(&c, dirs).await).await;
        match list {
            Some(Ok(found)) => self.check_listing(&found, &format!("final list on client{c}")),
            Some(Err(e)) => self.context.complain(format!("final list on client{c}: {e}")),
            None => {}
        }
        let mut names: Vec<(Name, usize)> = self.names.clone().into_iter().collect();
        while let Some((name, id)) = names.pop() {
            self.context.all_back().await;
            let author = self.context.author(c);
            let (dir, fid) = (self.dirs[name.0], self.files[&id].fid);
            let len = self.reach * 2;
            let what = self.what("final look", name);
            let outcome = self.context.on(c, &what, async move |c| {
                let file = open_named(&c, dir, &text(name), fid, 0).await?;
                let size = c.getattr(&cred(), fid, Some(&file)).await.map_err(|e| e.to_string())?.attr.size;
                let got = c.data().read(&file, 0, len as usize).await.map_err(|e| format!("read: {e}"))?;
                close(&c, &file).await.map(|()| (size, got.to_vec()))
            });
            match outcome.await {
                Some(Ok((size, got))) => {
                    let model = &self.files[&id].model;
                    self.context.expect(&what, model.check_size(size, &|_| true));
                    self.context.expect(&what, model.check_read(0, len, &got, &|_| true));
                }
                // A server gave up a client that had been cut off from it, and that client learned of it here.
                Some(Err(_)) if author.is_none_or(|a| !self.context.is_sound(a)) => names.push((name, id)),
                Some(Err(e)) => self.context.complain(format!("{what} on client{c}: {e}")),
                None => {}
            }
        }
    }
}

fn name_or_zero(names: &BTreeMap<Name, usize>, id: usize) -> Name {
    names.iter().find(|(_, f)| **f == id).map_or((0, 0), |(n, _)| *n)
}
