//! A program of several users: owners, modes, set-id bits and ACLs of directories and files change, files are written, cut and renamed,
//! and what each user may do follows at once, on every client, across deaths and recoveries. Whoever may not is told so, by the very
//! error.
//!
//! What the model knows of rights is written anew here, from POSIX 1003.1e draft 17 (section 23.1.5) and chmod(2), chown(2), open(2),
//! write(2), rename(2), unlink(2), inode(7): it shares nothing with the metadata server.
use std::collections::BTreeMap;
use std::rc::Rc;

use client::{Client, NewFile, NewNode, OpenFile};
use types::{Duration, Fid, FsError, Rng};
use wire::mdt::{Cred, NodeKind, SetBits, SetattrRequest};

use super::context::Context;
use super::known::Known;
use super::model::Author;

mod model;

use model::{Acl, Node, User};

/// Directories.
const DIRS: usize = 3;
/// Names in each.
const NAMES: u64 = 3;
const O_CREATE_NEW: u32 = 0o301;
const O_WRONLY: u32 = 1;
const O_WRONLY_TRUNC: u32 = 0o1001;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const NOT_THERE: FsError = FsError::NotFound;

/// A directory, or a name in it.
type Place = (usize, Option<u64>);
type State = BTreeMap<Place, Node>;

/// What a user tries.
#[derive(Clone, Debug)]
enum Doing {
    Mode(Place, u32),
    Owner(Place, Option<u32>, Option<u32>),
    Access(Place, Option<Acl>),
    Default(usize, Option<Acl>),
    /// With the access mode of open(2).
    Open(Place, u32),
    Create(Place, u32, u32),
    Remove(Place),
    Touch(Place),
    /// Opens a file, emptied where so said, and writes a byte.
    Write(Place, bool),
    /// What has the first name gets the second one, in the place of what had that.
    Rename(Place, Place),
}

/// What an operation is about, by number.
#[derive(Clone, Copy)]
struct At {
    /// The inode, where there is one.
    fid: Fid,
    /// The directory of its name.
    dir: Fid,
    /// The directory of a rename's second name.
    to: Fid,
}

/// See the module's head.
pub struct Rights {
    rng: Rng,
    users: Vec<User>,
    known: Known<State>,
}

fn root() -> Cred {
    Cred::default()
}
fn text(name: u64) -> Vec<u8> {
    format!("f{name}").into_bytes()
}

impl Doing {
    /// What there is after a user did it, or the error.
    fn after(&self, before: &State, by: &User, made: Fid) -> Result<State, FsError> {
        let mut after = before.clone();
        let there = |place: &Place| before.get(place).ok_or(NOT_THERE);
        let owns = |node: &Node| if by.is_root() || by.uid == node.uid { Ok(()) } else { Err(FsError::NotPermitted) };
        match self {
            Doing::Mode(place, mode) => {
                owns(there(place)?)?;
                after.get_mut(place).ok_or(NOT_THERE)?.change_mode(by, *mode);
            }
            Doing::Owner(place, uid, gid) => {
                let node = there(place)?;
                let keeps = uid.is_none_or(|u| by.uid == node.uid && u == node.uid);
                let joins = gid.is_none_or(|g| by.uid == node.uid && (by.is_in(g) || g == node.gid));
                if !(by.is_root() || keeps && joins) {
                    return Err(FsError::NotPermitted);
                }
                let node = after.get_mut(place).ok_or(NOT_THERE)?;
                if place.1.is_some() && (uid.is_some() || gid.is_some()) {
                    node.lose_set_ids(by);
                }
                (node.uid, node.gid) = (uid.unwrap_or(node.uid), gid.unwrap_or(node.gid));
            }
            Doing::Access(place, acl) => {
                owns(there(place)?)?;
                after.get_mut(place).ok_or(NOT_THERE)?.change_acl(by, acl.clone());
            }
            Doing::Default(dir, acl) => {
                owns(there(&(*dir, None))?)?;
                after.get_mut(&(*dir, None)).ok_or(NOT_THERE)?.default.clone_from(acl);
            }
            Doing::Open(place, access) => {
                let want = [4, 2, 6][*access as usize % 3];
                there(place)?.must_permit(by, want)?;
            }
            Doing::Create(place, mode, umask) => {
                let dir = there(&(place.0, None))?;
                dir.must_permit(by, 1)?;
                if before.contains_key(place) {
                    return Err(FsError::Exists);
                }
                dir.must_permit(by, 3)?;
                after.insert(*place, dir.child(by, *mode, *umask, made));
            }
            Doing::Remove(place) => {
                let dir = there(&(place.0, None))?;
                dir.must_permit(by, 1)?;
                dir.must_let_remove(by, there(place)?)?;
                after.remove(place);
            }
            Doing::Write(place, _) => {
                there(place)?.must_permit(by, 2)?;
                if !by.is_root() {
                    after.get_mut(place).ok_or(NOT_THERE)?.lose_set_ids(by);
                }
            }
            Doing::Rename(from, to) => return renamed(before, by, *from, *to),
            Doing::Touch(place) => {
                let node = there(place)?;
                if owns(node).is_err() {
                    node.must_permit(by, 2)?;
                }
            }
        }
        Ok(after)
    }

    async fn carry_out(self, c: &Rc<Client>, cred: &Cred, at: At) -> Result<Fid, FsError> {
        let At { fid, dir, to } = at;
        let set =
            async |request: SetattrRequest| c.setattr(cred, &c.meta().inode(fid), request, None).await.map(|_| fid);
        match self {
            Doing::Mode(_, mode) => {
                set(SetattrRequest { valid: SetBits::MODE, mode, ..SetattrRequest::default() }).await
            }
            Doing::Owner(_, uid, gid) => {
                let bit = |is: bool, bit: u32| if is { bit } else { 0 };
                let valid = bit(uid.is_some(), SetBits::UID) | bit(gid.is_some(), SetBits::GID);
                let (uid, gid) = (uid.unwrap_or(0), gid.unwrap_or(0));
                set(SetattrRequest { valid, uid, gid, ..SetattrRequest::default() }).await
            }
            Doing::Touch(_) => {
                set(SetattrRequest { valid: SetBits::ATIME_NOW | SetBits::MTIME_NOW, ..SetattrRequest::default() })
                    .await
            }
            Doing::Access(_, acl) => set_acl(c, cred, fid, ACCESS, acl.as_ref()).await,
            Doing::Default(_, acl) => set_acl(c, cred, fid, DEFAULT, acl.as_ref()).await,
            Doing::Open(_, access) => {
                let file = c.open(cred, fid, access).await?;
                c.release(&file).await.map(|()| fid)
            }
            Doing::Create(place, mode, umask) => {
                let new = NewFile { flags: O_CREATE_NEW, mode, umask, ..NewFile::default() };
                let (entry, file) = c.create_open(cred, dir, &text(place.1.unwrap_or(0)), new).await?;
                c.release(&file).await.map(|()| entry.attr.fid)
            }
            Doing::Remove(place) => c.meta().unlink(cred, dir, &text(place.1.unwrap_or(0)), false).await.map(|_| fid),
            Doing::Write(_, cuts) => {
                let file = c.open(cred, fid, if cuts { O_WRONLY_TRUNC } else { O_WRONLY }).await?;
                let written = write_byte(c, cred, &file).await;
                let released = c.release(&file).await;
                written.and(released).map(|()| fid)
            }
            Doing::Rename(from, into) => {
                let names = (text(from.1.unwrap_or(0)), text(into.1.unwrap_or(0)));
                c.meta().rename(cred, (dir, &names.0), (to, &names.1), 0).await.map(|()| fid)
            }
        }
    }
    fn place(&self) -> Place {
        match self {
            Doing::Mode(p, _) | Doing::Owner(p, ..) | Doing::Access(p, _) | Doing::Open(p, _) => *p,
            Doing::Create(p, ..) | Doing::Remove(p) | Doing::Touch(p) | Doing::Write(p, _) | Doing::Rename(p, _) => *p,
            Doing::Default(dir, _) => (*dir, None),
        }
    }
}

/// What there is after a user renamed, or the error.
fn renamed(before: &State, by: &User, from: Place, to: Place) -> Result<State, FsError> {
    let there = |place: &Place| before.get(place).ok_or(NOT_THERE);
    let dirs = (there(&(from.0, None))?, there(&(to.0, None))?);
    dirs.0.must_permit(by, 1)?;
    dirs.1.must_permit(by, 1)?;
    let node = there(&from)?;
    dirs.0.must_let_remove(by, node)?;
    match before.get(&to) {
        Some(replaced) => dirs.1.must_let_remove(by, replaced)?,
        None => dirs.1.must_permit(by, 3)?,
    }
    let mut after = before.clone();
    after.remove(&from);
    after.insert(to, node.clone());
    Ok(after)
}

/// As a mount carries out a write of a caller: what a writer may not keep goes first.
async fn write_byte(c: &Rc<Client>, cred: &Cred, file: &Rc<OpenFile>) -> Result<(), FsError> {
    let ids = cred.uid != 0;
    if c.has_privileges(file, ids) {
        c.drop_privileges(file, file.cred(), ids).await?;
    }
    c.data().write(file, 0, b"x").await.map(drop)
}

async fn set_acl(c: &Rc<Client>, cred: &Cred, fid: Fid, name: &[u8], acl: Option<&Acl>) -> Result<Fid, FsError> {
    let value = acl.map(Acl::encode);
    c.setxattr(cred, fid, name, value.as_deref(), 0, false).await.map(|()| fid)
}

/// What an inode says of itself.
async fn read_node(c: &Rc<Client>, fid: Fid) -> Result<Node, String> {
    let attr = c.getattr(&root(), fid, None).await.map_err(|e| format!("getattr: {e}"))?.attr;
    let acl = async |name: &[u8]| match c.getxattr(&root(), fid, name).await {
        Ok(value) => Acl::decode(&value).ok_or(format!("an ACL that nobody set: {value:?}")).map(Some),
        Err(FsError::NoData) => Ok(None),
        Err(e) => Err(format!("getxattr: {e}")),
    };
    let default = if attr.mode & 0o170_000 == 0o040_000 { acl(DEFAULT).await? } else { None };
    Ok(Node { fid, uid: attr.uid, gid: attr.gid, mode: attr.mode & 0o7777, acl: acl(ACCESS).await?, default })
}

/// All directories and names with what they say of themselves, as a client sees them.
async fn read_all(c: &Rc<Client>, dirs: Vec<Fid>) -> Result<State, String> {
    let mut found = State::new();
    for (i, dir) in dirs.into_iter().enumerate() {
        found.insert((i, None), read_node(c, dir).await?);
        let page = c.meta().readdir(&root(), dir, 0, 64 << 10, false).await.map_err(|e| format!("readdir: {e}"))?;
        for e in &page.entries {
            let name = String::from_utf8_lossy(&e.name).strip_prefix('f').and_then(|n| n.parse().ok());
            let Some(name) = name else { return Err(format!("a name that nobody made: {:?}", e.name)) };
            found.insert((i, Some(name)), read_node(c, e.fid).await?);
        }
    }
    Ok(found)
}

impl Rights {
    /// Makes the directories before anything goes wrong.
    ///
    /// # Errors
    /// What a client answers.
    pub async fn new(context: Rc<Context>) -> Result<Rights, String> {
        let rng = context.rng("rights");
        let made = context.on(0, "mkdir", async move |c| {
            let node = |mode: u32| NewNode { kind: NodeKind::Directory, mode: 0o040_000 | mode, ..NewNode::default() };
            let top = c.create(&root(), Fid::ROOT, b"rights", node(0o755)).await?.attr.fid;
            let mut dirs = Vec::new();
            for i in 0..DIRS {
                dirs.push(c.create(&root(), top, format!("d{i}").as_bytes(), node(0o777)).await?.attr.fid);
            }
            c.meta().sync_meta(Fid::ROOT).await.map(|()| dirs)
        });
        let dirs = made.await.ok_or("the client died")?.map_err(|e| format!("mkdir: {e}"))?;
        let node = |fid| Node { fid, uid: 0, gid: 0, mode: 0o777, acl: None, default: None };
        let state = dirs.into_iter().enumerate().map(|(i, fid)| ((i, None), node(fid))).collect();
        Ok(Rights { rng, users: User::some(), known: Known::new(context, "rights", state) })
    }
    /// Works until the run is calm, then looks at everything from every client.
    pub async fn run(mut self, operations: u64) {
        let mut done = 0;
        while done < operations && !self.known.context.calm.get() && !self.known.context.failed() {
            self.one().await;
            done += 1;
            self.known.context.cluster.sim.sleep(Duration::from_micros(self.rng.below(40_000))).await;
        }
        while !self.known.context.calm.get() {
            self.known.context.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
        self.learn("the end", None).await;
        let dirs = self.dirs();
        self.known.look_from_everywhere(async move |c| read_all(&c, dirs.clone()).await, differing).await;
    }
    fn dirs(&self) -> Vec<Fid> {
        (0..DIRS).filter_map(|i| self.known.state.get(&(i, None)).map(|n| n.fid)).collect()
    }
    fn draw(&mut self) -> Doing {
        let dir = self.rng.below(DIRS as u64) as usize;
        let name = (dir, Some(self.rng.below(NAMES)));
        let known: Vec<Place> = self.known.state.keys().copied().collect();
        let any = known[self.rng.below(known.len() as u64) as usize];
        let mode = model::some_mode(&mut self.rng);
        match self.rng.below(26) {
            0..3 => Doing::Mode(any, if any.1.is_none() && self.rng.chance(0.2) { mode | 0o1000 } else { mode }),
            3 | 4 => {
                let uid =
                    self.rng.chance(0.6).then(|| self.users[self.rng.below(self.users.len() as u64) as usize].uid);
                let gid = self.rng.chance(0.6).then(|| model::some_group(&mut self.rng));
                Doing::Owner(any, uid, gid)
            }
            5 | 6 => Doing::Access(any, self.rng.chance(0.7).then(|| Acl::some(&mut self.rng))),
            7 => Doing::Default(dir, self.rng.chance(0.7).then(|| Acl::some(&mut self.rng))),
            8..13 => Doing::Open(self.some_file().unwrap_or(name), self.rng.below(3) as u32),
            13..16 => Doing::Create(name, mode, [0, 0o022, 0o077][self.rng.below(3) as usize]),
            16 | 17 => Doing::Remove(name),
            18 | 19 => Doing::Touch(any),
            20..24 => Doing::Write(self.some_file().unwrap_or(name), self.rng.chance(0.3)),
            _ => {
                let other = (self.rng.below(DIRS as u64) as usize, Some(self.rng.below(NAMES)));
                if other == name { Doing::Remove(name) } else { Doing::Rename(name, other) }
            }
        }
    }
    fn some_file(&mut self) -> Option<Place> {
        let files: Vec<Place> = self.known.state.keys().copied().filter(|p| p.1.is_some()).collect();
        (!files.is_empty()).then(|| files[self.rng.below(files.len() as u64) as usize])
    }
    async fn one(&mut self) {
        if self.known.must_look() || self.known.context.syncs(&mut self.rng, 0.03) {
            return self.learn("looking", None).await;
        }
        let c = self.known.context.any_client(&mut self.rng).await;
        let Some(author) = self.known.context.author(c) else { return };
        let doing = self.draw();
        let user = self.users[self.rng.below(self.users.len() as u64) as usize].clone();
        let place = doing.place();
        let of = |p: &Place| self.known.state.get(p).map(|n| n.fid);
        let Some(dir) = of(&(place.0, None)) else { return };
        let to = if let Doing::Rename(_, into) = &doing { of(&(into.0, None)).unwrap_or(dir) } else { dir };
        let fid = match (of(&place), &doing) {
            (Some(fid), _) => fid,
            (None, Doing::Create(..) | Doing::Remove(_) | Doing::Rename(..)) => Fid::ROOT,
            // Nothing of that name was ever known by a number.
            (None, _) => return,
        };
        let (what, begun) =
            (format!("rights: user {} tries {doing:?}", user.uid), self.known.context.cluster.sim.now());
        let (asked, cred) = (doing.clone(), user.cred());
        let done =
            self.known.context.on(c, &what, async move |c| asked.carry_out(&c, &cred, At { fid, dir, to }).await).await;
        let made = if let Some(Ok(fid)) = done { fid } else { Fid::ROOT };
        match (done, doing.after(&self.known.state, &user, made)) {
            (Some(Err(e)), Err(must)) if e == must && self.known.is_sound(author) => {
                self.known.context.count(|c| c.by_class[super::FaultClass::Rights.index()] += 1);
            }
            (Some(Err(e)), _)
                if self.known.is_sound(author) && self.known.context.is_refused_for_space(c, &e.to_string(), begun) =>
            {
                // The bits go before the bytes come for which there is no space.
                if matches!(doing, Doing::Write(..)) {
                    self.learn(&what, Some((doing, user, author))).await;
                }
            }
            (Some(Ok(_)), Ok(after)) if self.known.is_sound(author) => {
                if after != self.known.state {
                    self.known.becomes(after);
                }
            }
            (other, must) => {
                if self.known.is_sound(author) {
                    let must = must.map(drop);
                    let nodes = (self.known.state.get(&place), self.known.state.get(&(place.0, None)));
                    self.known
                        .context
                        .complain(format!("{what} on client{c}: {other:?}, should be {must:?}: {nodes:?}"));
                }
                self.learn(&what, Some((doing, user, author))).await;
            }
        }
    }

    /// Looks at everything on stable storage: it must be as it is known, but for an operation whose answer nobody has,
    /// and for what died with a client and the metadata server together.
    async fn learn(&mut self, what: &str, doubtful: Option<(Doing, User, Author)>) {
        let (dirs, author) = (self.dirs(), doubtful.as_ref().map(|(_, _, author)| *author));
        let doing = doubtful.as_ref().map(|(doing, user, _)| (doing, user));
        let read = async move |c| read_all(&c, dirs.clone()).await;
        let judge = |known: &Known<State>, found: &State, died| judge(known, found, doing, died);
        self.known.look(&mut self.rng, what, author, read, judge).await;
    }
}

/// What is wrong with what was found.
fn judge(known: &Known<State>, found: &State, doubtful: Option<(&Doing, &User)>, died: bool) -> Result<(), String> {
    let after = |before: &State| {
        let (doing, user) = doubtful?;
        let made = found.get(&doing.place()).map_or(Fid::ROOT, |n| n.fid);
        doing.after(before, user, made).ok()
    };
    let mut states: Vec<State> = [known.state.clone()].into_iter().chain(after(&known.state)).collect();
    if states.contains(found) {
        return Ok(());
    }
    if !died {
        return Err(differing(found, states.last().unwrap_or(&known.state)));
    }
    // Changes of others survive on their own: two inodes need not be of the same moment.
    states.extend(known.past.iter().cloned());
    states.extend(known.past.iter().filter_map(after));
    let all = (0..DIRS).flat_map(|d| [(d, None)].into_iter().chain((0..NAMES).map(move |n| (d, Some(n)))));
    let stood = |place: &Place| states.iter().any(|s| s.get(place) == found.get(place));
    match all.into_iter().find(|p| !stood(p)) {
        None => Ok(()),
        Some(place) => Err(format!("{place:?} never was {:?}", found.get(&place))),
    }
}

/// Where two states differ.
fn differing(found: &State, wanted: &State) -> String {
    let places = found.keys().chain(wanted.keys());
    let differ = places.into_iter().find(|p| found.get(p) != wanted.get(p));
    differ.map_or_else(String::new, |p| format!("{p:?} is {:?}, should be {:?}", found.get(p), wanted.get(p)))
}
