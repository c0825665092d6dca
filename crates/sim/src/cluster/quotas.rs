//! Programs of several users, groups and projects with limits that change: they make files, write up to their limits and beyond, cut,
//! rename, remove and sync them, and root gives files to others, on any client.
//!
//! Who is refused has to be near a limit, nobody has more than its limit promises, and what was synced is there whatever is refused
//! ([`books`]). Whether what servers count is what there is, is found out when they have stopped ([`super::check`]).
use std::rc::Rc;

use client::{Client, NewFile, NewNode};
use oss::store::{Charged, Owner};
use types::{Duration, Extent, Fid, FsError, MIB, Rng};
use wire::mdt::{Cred, NodeKind, SetBits, SetattrRequest};

use super::context::Context;
use super::model::{Author, bytes};

mod books;

use books::Books;

const USERS: [u32; 2] = [2001, 2002];
const GROUPS: [u32; 2] = [2101, 2102];
const PROJECTS: [u32; 2] = [31, 32];
/// Programs that work at the same time.
const ACTORS: usize = 3;
/// Bytes of a write at most.
const WRITE_MAX: u64 = MIB;
/// Bytes of a file at most.
const FILE_MAX: u64 = 6 * MIB;
/// Files of a program at most.
const FILES_MAX: usize = 8;
/// A refusal for which there is no reason is one when it came so often.
const REFUSALS: u32 = 6;
/// Pause between two of them.
const TRIES_AGAIN: Duration = Duration::from_secs(2);
/// Writes past the cache that go through although somebody has all that it may have: so many, one after the other, are too many.
const BEYOND: u32 = 3;
const O_RDWR: u32 = 2;
const O_DIRECT: u32 = 0o40_000;
const O_CREATE_NEW: u32 = 0o302;

/// A file that only one program changes.
struct Held {
    fid: Fid,
    dir: usize,
    name: String,
    owner: Owner,
    /// Of which its bytes are made: those of a place are always the same.
    stamp: u64,
    /// What was written and answered.
    size: u64,
    /// How far anybody has tried to write.
    tried: u64,
    /// What is on stable storage.
    synced: u64,
    /// Who wrote what is not.
    by: Vec<Author>,
}

impl Held {
    fn user(&self) -> Cred {
        Cred { uid: self.owner.uid, gid: self.owner.gid, ..Cred::default() }
    }
    fn ids(&self) -> Vec<Charged> {
        self.owner.charged().collect()
    }
}

/// One of the programs.
struct Actor {
    books: Rc<Books>,
    id: usize,
    rng: Rng,
    dirs: Rc<Vec<Fid>>,
    files: Vec<Held>,
    /// [`Context::double_deaths`] that are taken into account.
    deaths: u64,
    /// Files that it changes no more: nobody knows what became of the last operation on them.
    left: Vec<Held>,
    made: u64,
}

/// The programs, and whoever sets limits.
///
/// # Errors
/// What a client answers before anything goes wrong.
pub async fn programs(context: &Rc<Context>) -> Result<Vec<rt::LocalFuture<()>>, String> {
    let books = Books::new(context.clone());
    books.begin().await?;
    let made = context.on(0, "mkdir", async move |c| {
        let node = NewNode { kind: NodeKind::Directory, mode: 0o040_777, ..NewNode::default() };
        let mut dirs = Vec::new();
        for (i, project) in [0].into_iter().chain(PROJECTS).enumerate() {
            let dir = c.create(&Cred::default(), Fid::ROOT, format!("quota{i}").as_bytes(), node.clone()).await?;
            let fid = dir.attr.fid;
            if project > 0 {
                let own = SetattrRequest { valid: SetBits::PROJECT, project, ..SetattrRequest::default() };
                c.setattr(&Cred::default(), &c.meta().inode(fid), own, None).await?;
            }
            dirs.push(fid);
        }
        c.meta().sync_meta(Fid::ROOT).await.map(|()| dirs)
    });
    let dirs = Rc::new(made.await.ok_or("the client died")?.map_err(|e: FsError| format!("quotas: mkdir: {e}"))?);
    let mut tasks: Vec<rt::LocalFuture<()>> = vec![Box::pin(books.clone().run())];
    for id in 0..ACTORS {
        let rng = context.rng(&format!("quotas {id}"));
        let (books, dirs) = (books.clone(), dirs.clone());
        let actor = Actor { books, id, rng, dirs, files: Vec::new(), deaths: 0, left: Vec::new(), made: 0 };
        tasks.push(Box::pin(actor.run()));
    }
    Ok(tasks)
}

/// What became of a write.
enum Wrote {
    Done,
    Refused,
    Nothing,
}

impl Actor {
    async fn run(mut self) {
        let context = self.books.context.clone();
        while !context.calm.get() && !context.failed() {
            self.one().await;
            self.books.check();
            context.cluster.sim.sleep(Duration::from_micros(self.rng.below(60_000))).await;
        }
        while !self.books.lifted.get() && !context.failed() {
            context.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
        self.look_for_double_deaths();
        // Nobody is limited any more.
        for i in 0..self.files.len() {
            if !context.failed() {
                self.write(i).await;
                self.sync(i).await;
            }
        }
        for i in 0..self.files.len() + self.left.len() {
            if !context.failed() {
                self.read(i).await;
            }
        }
    }
    fn what(&self, verb: &str, f: &Held) -> String {
        format!("quotas {}: {verb} {} {} of {:?}", self.id, f.name, f.fid, f.owner)
    }
    async fn one(&mut self) {
        self.look_for_double_deaths();
        let n = self.files.len();
        let i = self.rng.below(n.max(1) as u64) as usize;
        let any = self.rng.below((n + self.left.len()).max(1) as u64) as usize;
        match self.rng.below(24) {
            _ if n == 0 => self.create().await,
            0..3 if n < FILES_MAX => self.create().await,
            0..12 => self.write(i).await,
            12..15 if self.books.context.syncs(&mut self.rng, 1.0) => self.sync(i).await,
            12..15 => self.write(i).await,
            15 | 16 => self.cut(i).await,
            17 | 18 => self.remove(i).await,
            19 => self.rename(i).await,
            20 | 21 if self.books.gives => self.give(i).await,
            _ => self.read(any).await,
        }
    }
    /// Whether what was answered to an author holds.
    fn is_sound(&self, author: Author) -> bool {
        self.books.context.is_sound(author) && self.deaths == self.books.context.double_deaths()
    }
    /// Files, names and owners that were not synced may have gone with a client and the metadata server.
    fn look_for_double_deaths(&mut self) {
        let deaths = self.books.context.double_deaths();
        if self.deaths != deaths {
            self.deaths = deaths;
            let all = std::mem::take(&mut self.files);
            self.left.extend(all.into_iter().filter(|f| f.synced > 0));
        }
    }
    /// What dead clients had not written out is gone.
    fn look_for_deaths(&mut self, i: usize) {
        let f = &mut self.files[i];
        if !f.by.iter().all(|a| self.books.context.is_sound(*a)) {
            f.size = f.synced;
            f.by.clear();
        }
    }
    /// Nobody knows what became of an operation.
    fn leave(&mut self, i: usize, keeps: bool) {
        let f = self.files.swap_remove(i);
        if keeps && f.synced > 0 {
            self.left.push(f);
        }
    }

    async fn create(&mut self) {
        let context = self.books.context.clone();
        let pick = |rng: &mut Rng| rng.below(2) as usize;
        let (uid, gid) = (USERS[pick(&mut self.rng)], GROUPS[pick(&mut self.rng)]);
        let dir = self.rng.below(self.dirs.len() as u64) as usize;
        let project = if dir == 0 { 0 } else { PROJECTS[dir - 1] };
        let owner = Owner { uid, gid, project };
        let (parent, name) = (self.dirs[dir], format!("q{}.{}", self.id, self.made));
        self.made += 1;
        let stamp = context.stamp();
        let held = Held { fid: Fid::ROOT, dir, name, owner, stamp, size: 0, tried: 0, synced: 0, by: Vec::new() };
        for tries in 1.. {
            let c = context.any_client(&mut self.rng).await;
            let Some(author) = context.author(c) else { return };
            let (what, begun) = (self.what("create", &held), context.cluster.sim.now());
            let (user, name) = (held.user(), held.name.clone().into_bytes());
            let done = context.on(c, &what, async move |c| {
                let new = NewFile { flags: O_CREATE_NEW, mode: 0o666, ..NewFile::default() };
                let (entry, file) = c.create_open(&user, parent, &name, new).await?;
                c.release(&file).await.map(|()| entry.attr.fid)
            });
            let done = done.await;
            if !self.is_sound(author) {
                return;
            }
            match done {
                Some(Ok(fid)) => return self.files.push(Held { fid, ..held }),
                Some(Err(FsError::Quota)) => match self.books.may_refuse_inode(&held.ids()) {
                    Ok(()) => return self.books.count_refusal(),
                    Err(why) if tries == REFUSALS => return context.complain(format!("{what} on client{c}: {why}")),
                    Err(_) => context.cluster.sim.sleep(TRIES_AGAIN).await,
                },
                Some(Err(e)) if !context.is_refused_for_space(c, &e.to_string(), begun) => {
                    return context.complain(format!("{what} on client{c}: {e}"));
                }
                _ => return,
            }
        }
    }

    async fn write(&mut self, i: usize) {
        let context = self.books.context.clone();
        let most = [64 << 10, 256 << 10, WRITE_MAX][self.rng.below(3) as usize];
        // Past the client's cache nothing was promised before it is asked for.
        let direct = self.rng.chance(0.4);
        let (mut tries, mut beyond) = (0, 0);
        loop {
            tries += 1;
            self.look_for_deaths(i);
            let f = &self.files[i];
            let at = Extent::at(f.size, most.min(FILE_MAX.saturating_sub(f.size)));
            if at.is_empty() {
                return;
            }
            let ids = f.ids();
            let c = context.any_client(&mut self.rng).await;
            let new = direct && at.start >= f.tried;
            let full = self.books.who_has_all(&ids).filter(|_| new);
            match self.write_on(c, i, at, direct).await {
                Wrote::Refused => {}
                // Somebody may have made room meanwhile, not again and again.
                Wrote::Done if full.is_some() && full == self.books.who_has_all(&ids) => {
                    beyond += 1;
                    if beyond == BEYOND {
                        let (what, who) = (self.what("write to", &self.files[i]), full);
                        return context.complain(format!("{what} on client{c}: {who:?} has all that it may have"));
                    }
                    continue;
                }
                Wrote::Done | Wrote::Nothing => return,
            }
            let Err(why) = self.books.may_refuse_bytes(&ids, at.len()) else { return self.books.count_refusal() };
            if self.books.all_answer(c, ids[0]).await != Some(true) {
                // An OST that is away has what it had.
                return;
            }
            if tries >= REFUSALS {
                return context.complain(format!("{} on client{c}: {why}", self.what("write to", &self.files[i])));
            }
            context.cluster.sim.sleep(TRIES_AGAIN).await;
        }
    }
    async fn write_on(&mut self, c: usize, i: usize, at: Extent, direct: bool) -> Wrote {
        let context = self.books.context.clone();
        let Some(author) = context.author(c) else { return Wrote::Nothing };
        let f = &mut self.files[i];
        f.by.push(author);
        f.tried = f.tried.max(at.end);
        let flags = if direct { O_RDWR | O_DIRECT } else { O_RDWR };
        let (fid, user, data) = (f.fid, f.user(), bytes(f.stamp, at));
        let what = self.what("write to", &self.files[i]);
        let done = context.on(c, &what, async move |c| {
            let file = c.open(&user, fid, flags).await?;
            let written = c.data().write(&file, at.start, &data).await;
            let released = c.release(&file).await;
            written.and(released)
        });
        let done = done.await;
        if !self.is_sound(author) {
            return Wrote::Nothing;
        }
        match done {
            Some(Ok(())) => {
                self.files[i].size = at.end;
                Wrote::Done
            }
            Some(Err(FsError::NoSpace)) if context.is_full(c, None, super::context::NO_SPACE) => Wrote::Nothing,
            // A write that is short is told as that.
            Some(Err(FsError::Quota | FsError::NoSpace)) => Wrote::Refused,
            Some(Err(e)) => {
                context.complain(format!("{what} on client{c}: {e}"));
                Wrote::Nothing
            }
            None => Wrote::Nothing,
        }
    }
    async fn sync(&mut self, i: usize) {
        let context = self.books.context.clone();
        self.look_for_deaths(i);
        let c = context.any_client(&mut self.rng).await;
        let Some(author) = context.author(c) else { return };
        let (fid, what) = (self.files[i].fid, self.what("fsync", &self.files[i]));
        let done = context.on(c, &what, async move |c| {
            let file = c.open(&Cred::default(), fid, O_RDWR).await?;
            let synced = c.data().fsync(&file, false).await;
            let released = c.release(&file).await;
            synced.and(released)
        });
        let done = done.await;
        let sound = self.is_sound(author) && self.files[i].by.iter().all(|a| context.is_sound(*a));
        match done {
            Some(Ok(())) if sound => {
                let f = &mut self.files[i];
                f.synced = f.size;
                f.by.clear();
            }
            Some(Err(e)) if sound && !context.is_full(c, Some(fid), &e.to_string()) => {
                context.complain(format!("{what} on client{c}: {e}"));
            }
            _ => self.look_for_deaths(i),
        }
    }
    /// An operation on a file's inode or name by somebody; `None`: nobody knows what became of it.
    async fn change(
        &mut self,
        i: usize,
        what: &str,
        work: impl AsyncFnOnce(Rc<Client>, Fid) -> Result<(), FsError> + 'static,
    ) -> Option<Result<(), FsError>> {
        let context = self.books.context.clone();
        let c = context.any_client(&mut self.rng).await;
        let author = context.author(c)?;
        let (fid, what) = (self.files[i].fid, self.what(what, &self.files[i]));
        let done = context.on(c, &what, async move |c| work(c, fid).await).await;
        if !self.is_sound(author) {
            return None;
        }
        match done? {
            Err(e) if e != FsError::Quota => {
                if !context.is_full(c, Some(fid), &e.to_string()) {
                    context.complain(format!("{what} on client{c}: {e}"));
                }
                None
            }
            done => Some(done),
        }
    }
    async fn cut(&mut self, i: usize) {
        self.look_for_deaths(i);
        let size = self.rng.below(self.files[i].size + 1);
        let user = self.files[i].user();
        let done = self.change(i, "truncate", async move |c, fid| {
            let file = c.open(&user, fid, O_RDWR).await?;
            let cut = SetattrRequest { valid: SetBits::SIZE | SetBits::MTIME_NOW, size, ..SetattrRequest::default() };
            let done = c.setattr(&user, file.inode(), cut, Some(&file)).await;
            let released = c.release(&file).await;
            done.and(released)
        });
        match done.await {
            Some(Ok(())) => {
                let f = &mut self.files[i];
                (f.size, f.synced) = (size, f.synced.min(size));
            }
            _ => self.leave(i, false),
        }
    }
    async fn remove(&mut self, i: usize) {
        let (dir, name, user) = (self.dirs[self.files[i].dir], self.files[i].name.clone(), self.files[i].user());
        let work =
            async move |c: Rc<Client>, _: Fid| c.meta().unlink(&user, dir, name.as_bytes(), false).await.map(drop);
        let _ = self.change(i, "unlink", work).await;
        self.leave(i, false);
    }
    /// To a directory of any project: the file keeps its own.
    async fn rename(&mut self, i: usize) {
        let f = &self.files[i];
        let to = self.rng.below(self.dirs.len() as u64) as usize;
        let (dirs, name, user) = ((self.dirs[f.dir], self.dirs[to]), f.name.clone().into_bytes(), f.user());
        if to == f.dir {
            return;
        }
        let work = async move |c: Rc<Client>, _: Fid| {
            c.meta().rename(&user, (dirs.0, &name), (dirs.1, &name), 0).await.map(drop)
        };
        match self.change(i, "rename", work).await {
            Some(Ok(())) => self.files[i].dir = to,
            _ => self.leave(i, true),
        }
    }
    /// Root gives a file to others, or its user to another group.
    async fn give(&mut self, i: usize) {
        let before = self.files[i].owner;
        let pick = |rng: &mut Rng| rng.below(2) as usize;
        let mut after = before;
        let by_user = self.rng.chance(0.3);
        after.gid = GROUPS[pick(&mut self.rng)];
        let mut valid = SetBits::GID;
        if !by_user && self.rng.chance(0.7) {
            (after.uid, valid) = (USERS[pick(&mut self.rng)], valid | SetBits::UID);
        }
        if !by_user && self.rng.chance(0.5) {
            after.project = [0, PROJECTS[0], PROJECTS[1]][self.rng.below(3) as usize];
            valid |= SetBits::PROJECT;
        }
        let (old, user): (Vec<Charged>, _) = (before.charged().collect(), self.files[i].user());
        let new: Vec<Charged> = after.charged().filter(|id| !old.contains(id)).collect();
        self.books.gives(&new, self.files[i].size + WRITE_MAX);
        let cred = if by_user { Cred { groups: GROUPS[..].into(), ..user } } else { Cred::default() };
        let own =
            SetattrRequest { valid, uid: after.uid, gid: after.gid, project: after.project, ..Default::default() };
        let work = async move |c: Rc<Client>, fid: Fid| c.setattr(&cred, &c.meta().inode(fid), own, None).await;
        match self.change(i, &format!("chown to {after:?}"), work).await {
            Some(Ok(())) => self.files[i].owner = after,
            Some(Err(_)) if by_user => self.books.count_refusal(),
            Some(Err(e)) => {
                let what = self.what("chown of", &self.files[i]);
                self.books.context.complain(format!("{what} to {after:?} by root: {e}"));
            }
            None => self.leave(i, true),
        }
    }
    /// What was synced is there.
    async fn read(&mut self, i: usize) {
        let context = self.books.context.clone();
        let f = self.files.get(i).or_else(|| self.left.get(i - self.files.len()));
        let Some(f) = f.filter(|f| f.synced > 0) else { return };
        let (fid, len, wanted) = (f.fid, f.synced, bytes(f.stamp, Extent::new(0, f.synced)));
        let what = self.what("read", f);
        let c = context.any_client(&mut self.rng).await;
        let Some(author) = context.author(c) else { return };
        let read = context.on(c, &what, async move |c| {
            let file = c.open(&Cred::default(), fid, 0).await?;
            let mut got = Vec::new();
            while (got.len() as u64) < len {
                let at = got.len() as u64;
                let piece = c.data().read(&file, at, (len - at).min(WRITE_MAX) as usize).await?.to_vec();
                if piece.is_empty() {
                    break;
                }
                got.extend(piece);
            }
            c.release(&file).await.map(|()| got)
        });
        let read = read.await;
        if !self.is_sound(author) {
            return;
        }
        let outcome = match read {
            Some(Ok(got)) => match got.iter().zip(&wanted).position(|(a, b)| a != b) {
                _ if got.len() != wanted.len() => Err(format!("{} of {len} bytes that were synced", got.len())),
                None => Ok(()),
                Some(at) => {
                    Err(format!("byte {at} of {len} that were synced is {}, should be {}", got[at], wanted[at]))
                }
            },
            Some(Err(e)) => Err(e.to_string()),
            None => Ok(()),
        };
        context.expect(&format!("{what} on client{c}"), outcome);
    }
}
