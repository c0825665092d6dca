//! A program on directories: made, removed, renamed over each other and between parents, with xattrs that are set and removed,
//! each operation on any of the clients.
use std::collections::BTreeMap;
use std::rc::Rc;

use client::{Client, NewNode};
use types::{Duration, Fid, FsError, Rng};
use wire::mdt::{Cred, NodeKind};

use super::context::Context;
use super::dropped::hasty;
use super::known::Known;
use super::model::Author;

/// Names in each of the two parents.
const NAMES: u64 = 4;
const XATTR: &[u8] = b"user.stamp";
const ENODATA: FsError = FsError::NoData;

type Name = (usize, u64);
/// What a name stands for: a directory, and the stamp in its xattr.
type State = BTreeMap<Name, (Fid, Option<u64>)>;

/// See the module's head.
pub struct Dirs {
    rng: Rng,
    parents: [Fid; 2],
    known: Known<State>,
}

fn cred() -> Cred {
    Cred::default()
}
fn text(name: Name) -> Vec<u8> {
    format!("n{}", name.1).into_bytes()
}
fn node() -> NewNode {
    NewNode { kind: NodeKind::Directory, mode: 0o040_755, ..NewNode::default() }
}

/// What an operation does.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Make(Name),
    Remove(Name),
    Rename(Name, Name),
    Stamp(Name, Option<u64>),
}

async fn carry_out(c: &Rc<Client>, parents: [Fid; 2], doing: Doing, fid: Fid, had: bool) -> Result<Fid, FsError> {
    let of = |name: Name| parents[name.0];
    match doing {
        Doing::Make(n) => c.create(&cred(), of(n), &text(n), node()).await.map(|e| e.attr.fid),
        Doing::Remove(n) => c.meta().unlink(&cred(), of(n), &text(n), true).await.map(|_| fid),
        Doing::Rename(a, b) => c.meta().rename(&cred(), (of(a), &text(a)), (of(b), &text(b)), 0).await.map(|_| fid),
        Doing::Stamp(_, stamp) => {
            let value = stamp.map(|s| s.to_le_bytes());
            let set = c.setxattr(&cred(), fid, XATTR, value.as_ref().map(|v| &v[..]), 0, false).await;
            match set {
                Err(ENODATA) if stamp.is_none() && !had => Ok(fid),
                set => set.map(|()| fid),
            }
        }
    }
}

/// The state after an operation that is carried out; `None` when it must be refused.
fn after_of_doing(before: &State, doing: Doing, fid: Fid) -> Option<State> {
    let mut after = before.clone();
    match doing {
        Doing::Make(n) if after.contains_key(&n) => return None,
        Doing::Make(n) => drop(after.insert(n, (fid, None))),
        Doing::Remove(n) => drop(after.remove(&n)),
        Doing::Rename(a, b) => {
            let moved = after.remove(&a)?;
            after.insert(b, moved);
        }
        Doing::Stamp(n, stamp) => after.get_mut(&n)?.1 = stamp,
    }
    Some(after)
}

/// All names with what they stand for, as a client sees them.
async fn read_all(c: &Rc<Client>, parents: [Fid; 2]) -> Result<State, String> {
    let mut found = State::new();
    for (i, parent) in parents.into_iter().enumerate() {
        let mut cookie = 0;
        loop {
            let page =
                c.meta().readdir(&cred(), parent, cookie, 4096, false).await.map_err(|e| format!("readdir: {e}"))?;
            for e in &page.entries {
                cookie = e.cookie;
                let n = String::from_utf8_lossy(&e.name).strip_prefix('n').and_then(|n| n.parse().ok());
                let Some(n) = n else { return Err(format!("a name that nobody made: {:?}", e.name)) };
                let stamp = match c.getxattr(&cred(), e.fid, XATTR).await {
                    Ok(value) => Some(u64::from_le_bytes(value.try_into().map_err(|v| format!("xattr {v:?}"))?)),
                    Err(ENODATA) => None,
                    Err(e) => return Err(format!("getxattr of n{n}: {e}")),
                };
                if found.insert((i, n), (e.fid, stamp)).is_some() {
                    return Err(format!("the name n{n} comes twice"));
                }
            }
            if page.eof || page.entries.is_empty() {
                break;
            }
        }
    }
    Ok(found)
}

impl Dirs {
    /// Makes the parents before anything goes wrong.
    ///
    /// # Errors
    /// What a client answers.
    pub async fn new(context: Rc<Context>, id: usize) -> Result<Dirs, String> {
        let rng = context.rng(&format!("dirs {id}"));
        let made = context.on(0, "mkdir", async move |c| {
            let top = c.create(&cred(), Fid::ROOT, format!("dirs{id}").as_bytes(), node()).await?.attr.fid;
            let a = c.create(&cred(), top, b"a", node()).await?.attr.fid;
            let b = c.create(&cred(), top, b"b", node()).await?.attr.fid;
            c.meta().sync_meta(Fid::ROOT).await.map(|()| [a, b])
        });
        let parents = made.await.ok_or("the client died")?.map_err(|e| format!("mkdir: {e}"))?;
        Ok(Dirs { rng, parents, known: Known::new(context, format!("dirs{id}"), State::new()) })
    }
    /// Works until the run is calm, then looks at everything from every client.
    pub async fn run(mut self, operations: u64) {
        let mut done = 0;
        while done < operations && !self.known.context.calm.get() && !self.known.context.failed() {
            self.one().await;
            done += 1;
            self.known.context.cluster.sim.sleep(Duration::from_micros(self.rng.below(30_000))).await;
        }
        while !self.known.context.calm.get() {
            self.known.context.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
        self.learn("the end", None).await;
        let parents = self.parents;
        let differ = |found: &State, wanted: &State| format!("found {found:?}, should be {wanted:?}");
        self.known.look_from_everywhere(async move |c| read_all(&c, parents).await, differ).await;
    }
    fn draw(&mut self) -> Doing {
        let any = |rng: &mut Rng| (rng.below(2) as usize, rng.below(NAMES));
        let known: Vec<Name> = self.known.state.keys().copied().collect();
        let kind = self.rng.below(10);
        if known.is_empty() || kind < 3 {
            return Doing::Make(any(&mut self.rng));
        }
        let name = known[self.rng.below(known.len() as u64) as usize];
        match kind {
            3..5 => Doing::Remove(name),
            5..8 => Doing::Rename(name, any(&mut self.rng)),
            8 => Doing::Stamp(name, None),
            _ => Doing::Stamp(name, Some(self.known.context.stamp())),
        }
    }
    /// The state after an operation that is carried out; `None` when it must be refused.
    fn after(&self, doing: Doing, fid: Fid) -> Option<State> {
        after_of_doing(&self.known.state, doing, fid)
    }
    async fn one(&mut self) {
        if self.known.must_look() || self.known.context.syncs(&mut self.rng, 0.05) {
            return self.learn("looking", None).await;
        }
        let c = self.known.context.any_client(&mut self.rng).await;
        let Some(author) = self.known.context.author(c) else { return };
        let doing = self.draw();
        let (fid, had) = match doing {
            Doing::Remove(n) | Doing::Rename(n, _) | Doing::Stamp(n, _) => {
                (self.known.state[&n].0, self.known.state[&n].1.is_some())
            }
            Doing::Make(_) => (Fid::ROOT, false),
        };
        let (parents, what) = (self.parents, format!("{}: {doing:?}", self.known.name));
        let patience = self.known.context.patience(&mut self.rng);
        let done = self
            .known
            .context
            .on(c, &what, async move |c| hasty(patience, carry_out(&c, parents, doing, fid, had)).await.transpose());
        let done = self.known.context.unless_dropped(c, done.await).await;
        let refused = self.after(doing, fid).is_none();
        match done {
            Some(Err(FsError::Exists)) if refused && self.known.is_sound(author) => {}
            Some(Err(e)) if self.known.is_sound(author) && self.known.context.is_full(c, None, &e.to_string()) => {}
            Some(Ok(fid)) if !refused && self.known.is_sound(author) => {
                if let Some(after) = self.after(doing, fid) {
                    self.known.becomes(after);
                }
            }
            other => {
                // Dropped, or its client died.
                let is_unknown = other.is_none();
                if self.known.is_sound(author) && !is_unknown {
                    self.known.context.complain(format!("{what} on client{c}: {other:?}"));
                }
                self.learn(&what, Some((doing, author))).await;
            }
        }
    }

    /// Looks at everything on stable storage: it must be as it is known, but for an operation whose answer nobody has,
    /// and for what died with a client and the metadata server together.
    async fn learn(&mut self, what: &str, doubtful: Option<(Doing, Author)>) {
        let (parents, doing) = (self.parents, doubtful.map(|(doing, _)| doing));
        let read = async move |c| read_all(&c, parents).await;
        let judge = |known: &Known<State>, found: &State, died| judge(known, found, doing, died);
        self.known.look(&mut self.rng, what, doubtful.map(|(_, author)| author), read, judge).await;
    }
}

/// What is wrong with what was found.
fn judge(known: &Known<State>, found: &State, doubtful: Option<Doing>, died: bool) -> Result<(), String> {
    let made = |name: &Name| found.get(name).map_or(Fid::ROOT, |(fid, _)| *fid);
    let after_of = |before: &State| match doubtful? {
        d @ Doing::Make(n) => after_of_doing(before, d, made(&n)),
        d => after_of_doing(before, d, Fid::ROOT),
    };
    let after = after_of(&known.state);
    let mut states: Vec<&State> = [&known.state].into_iter().chain(&after).collect();
    if states.contains(&found) {
        return Ok(());
    }
    if died {
        // What came before the operation may be gone when it is carried out.
        let afters: Vec<State> = known.past.iter().filter_map(after_of).collect();
        states.extend(known.past.iter().chain(&afters));
        // Changes of others survive on their own: a name and its directory's xattr need not be of the same moment.
        let fid_of = |s: &State, n: Name| s.get(&n).map(|(fid, _)| *fid);
        let stood = |n: Name| states.iter().any(|s| fid_of(s, n) == fid_of(found, n));
        let stamped = |entry: &(Fid, Option<u64>)| states.iter().any(|s| s.values().any(|e| e == entry));
        let fits = |n: Name| stood(n) && found.get(&n).is_none_or(stamped);
        let all = (0..2).flat_map(|p| (0..NAMES).map(move |n| (p, n)));
        let wrong: Vec<Name> = all.filter(|n| !fits(*n)).collect();
        // What had a name all the time has one.
        let always = |fid: &Fid| states.iter().all(|s| s.values().any(|(f, _)| f == fid));
        let lost = known.state.values().find(|(f, _)| always(f) && !found.values().any(|(g, _)| f == g));
        return match (wrong.is_empty(), lost) {
            (true, None) => Ok(()),
            _ => Err(format!("found {found:?}: {wrong:?} never stood for that, or {lost:?} has no name")),
        };
    }
    Err(format!("found {found:?}, should be {:?} or {after:?}", known.state))
}
