//! Operations on names, and finding out what became of one whose answer nobody has.
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use client::{Client, NewFile};
use types::{Extent, Fid, FsError};

use super::{File, Name, SETTLE_ATTEMPTS_MAX, Tree, close, cred, text};
use crate::cluster::dropped::hasty;
use crate::cluster::model::{Author, FileModel, bytes};

const O_CREAT_EXCL_RDWR: u32 = 0o302;
const O_TMPFILE_RDWR: u32 = 0o20_200_002;
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;

/// How an operation ended that may have been dropped.
fn told<T>(outcome: Option<Result<T, FsError>>) -> Result<Option<()>, String> {
    outcome.transpose().map(|o| o.map(drop)).map_err(|e| e.to_string())
}

impl Tree {
    pub(super) async fn create(&mut self) {
        let name = self.any_name();
        let (c, author) = self.client().await;
        let dir = self.dirs[name.0];
        let exists = self.names.contains_key(&name);
        let what = self.what("create", name);
        let (begun, patience) = (self.context.cluster.sim.now(), self.context.patience(&mut self.rng));
        let outcome = self.context.on(c, &what, async move |c| {
            let new = NewFile { flags: O_CREAT_EXCL_RDWR, mode: 0o644, ..NewFile::default() };
            match hasty(patience, c.create_open(&cred(), dir, &text(name), new)).await {
                None => Ok(None),
                Some(Ok((entry, file))) if exists => {
                    Err(format!("made {} ({}) over a name that is taken", entry.attr.fid, file.fid()))
                }
                Some(Ok((entry, file))) => close(&c, &file).await.map(|()| Some(Some(entry.attr.fid))),
                Some(Err(FsError::Exists)) if exists => Ok(Some(None)),
                Some(Err(e)) => Err(e.to_string()),
            }
        });
        let outcome = self.context.unless_dropped(c, outcome.await).await;
        if !matches!(&outcome, Some(Err(e)) if self.context.is_refused_for_space(c, e, begun) && !e.starts_with("flush:"))
        {
            self.judge(&what, author, &outcome);
        }
        match outcome {
            Some(Ok(Some(fid))) if self.is_sound(author) => {
                self.add(name, fid);
                self.changed_by(author);
            }
            Some(Ok(None)) => {}
            _ if exists => {}
            _ => {
                let before = self.names.clone();
                let new = self.next_file;
                let mut after = before.clone();
                after.insert(name, new);
                self.resolve(&what, author, before, after).await;
            }
        }
    }
    fn add(&mut self, name: Name, fid: Fid) -> usize {
        let id = self.next_file;
        self.next_file += 1;
        let mut names = self.names.clone();
        names.insert(name, id);
        let config = &self.context.cluster.config;
        let model = FileModel::striped(config.stripe_bytes * u64::from(config.stripe_count));
        self.files.insert(id, File { fid, model });
        let known = self.nameless.remove(&fid);
        if let (Some((extent, stamp, author)), Some(file)) = (known, self.files.get_mut(&id)) {
            file.model.write(extent, stamp, author, false);
        }
        self.change_names(names, None);
        id
    }

    /// A file gets its first bytes before it has a name.
    pub(super) async fn create_nameless(&mut self) {
        let name = self.any_name();
        if self.names.contains_key(&name) {
            return;
        }
        let (c, author) = self.client().await;
        let (dir, stamp) = (self.dirs[name.0], self.context.stamp());
        let extent = Extent::at(0, 1 + self.rng.below(20_000));
        let what = self.what(&format!("create with {extent:?}"), name);
        let begun = self.context.cluster.sim.now();
        let made = Rc::new(Cell::new(None));
        let seen = made.clone();
        let outcome = self.context.on(c, &what, async move |c| {
            let new = NewFile { flags: O_TMPFILE_RDWR, mode: 0o644, ..NewFile::default() };
            let (entry, file) = c.create_open(&cred(), dir, b"", new).await.map_err(|e| e.to_string())?;
            seen.set(Some(entry.attr.fid));
            c.data().write(&file, 0, &bytes(stamp, extent)).await.map_err(|e| format!("write: {e}"))?;
            let linked = c.link(&cred(), entry.attr.fid, dir, &text(name)).await.map_err(|e| format!("link: {e}"));
            close(&c, &file).await.and(linked.map(|e| e.attr.fid))
        });
        let outcome = outcome.await;
        if !matches!(&outcome, Some(Err(e)) if self.context.is_refused_for_space(c, e, begun) && !e.starts_with("flush:"))
        {
            self.judge(&what, author, &outcome);
        }
        if let Some(fid) = made.get() {
            self.nameless.insert(fid, (extent, stamp, author));
        }
        if let Some(Ok(fid)) = outcome
            && self.is_sound(author)
        {
            self.nameless.remove(&fid);
            let id = self.add(name, fid);
            self.files.get_mut(&id).expect("it was just added").model.write(extent, stamp, author, true);
            return self.changed_by(author);
        }
        let before = self.names.clone();
        let mut after = before.clone();
        after.insert(name, self.next_file);
        self.resolve(&what, author, before, after).await;
    }

    pub(super) async fn rename(&mut self) {
        let Some((from, id)) = self.any_file() else { return };
        let to = self.any_name();
        let flags = [0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE][self.rng.below(4) as usize];
        let before = self.names.clone();
        let other = before.get(&to).copied();
        let refusal = match (flags, other) {
            (RENAME_NOREPLACE, Some(_)) => Some(FsError::Exists),
            (RENAME_EXCHANGE, None) => Some(FsError::NotFound),
            _ => None,
        };
        let (c, author) = self.client().await;
        let dirs = (self.dirs[from.0], self.dirs[to.0]);
        let how = ["", " where nothing is", " in exchange"][flags as usize];
        let what = format!("{} to {}/n{}{how}", self.what("rename", from), ["a", "b"][to.0], to.1);
        let patience = self.context.patience(&mut self.rng);
        let outcome = self.context.on(c, &what, async move |c| {
            let (cred, from, to) = (cred(), text(from), text(to));
            match hasty(patience, c.meta().rename(&cred, (dirs.0, &from), (dirs.1, &to), flags)).await {
                Some(Ok(())) if refusal.is_some() => Err(format!("was carried out, for {refusal:?}")),
                Some(Err(e)) if Some(e) == refusal => Ok(Some(())),
                done => told(done),
            }
        });
        let outcome = self.context.unless_dropped(c, outcome.await).await;
        let mut after = before.clone();
        if refusal.is_none() && other != Some(id) {
            after.remove(&from);
            after.insert(to, id);
            if let (RENAME_EXCHANGE, Some(other)) = (flags, other) {
                after.insert(from, other);
            }
        }
        self.take(&what, author, outcome, before, after).await;
    }

    pub(super) async fn unlink(&mut self) {
        let Some((name, _)) = self.any_file() else { return };
        let (c, author) = self.client().await;
        let dir = self.dirs[name.0];
        let what = self.what("unlink", name);
        let patience = self.context.patience(&mut self.rng);
        let outcome = self.context.on(c, &what, async move |c| {
            told(hasty(patience, c.meta().unlink(&cred(), dir, &text(name), false)).await)
        });
        let outcome = self.context.unless_dropped(c, outcome.await).await;
        let before = self.names.clone();
        let mut after = before.clone();
        after.remove(&name);
        self.take(&what, author, outcome, before, after).await;
    }

    pub(super) async fn link(&mut self) {
        let Some((_, id)) = self.any_file() else { return };
        let to = self.any_name();
        if self.names.contains_key(&to) {
            return;
        }
        let (c, author) = self.client().await;
        let (dir, fid) = (self.dirs[to.0], self.files[&id].fid);
        let what = self.what("link", to);
        let patience = self.context.patience(&mut self.rng);
        let outcome =
            self.context.on(c, &what, async move |c| told(hasty(patience, c.link(&cred(), fid, dir, &text(to))).await));
        let outcome = self.context.unless_dropped(c, outcome.await).await;
        let before = self.names.clone();
        let mut after = before.clone();
        after.insert(to, id);
        self.take(&what, author, outcome, before, after).await;
    }

    /// Takes in how an operation on names ended.
    async fn take(
        &mut self,
        what: &str,
        author: Author,
        outcome: Option<Result<(), String>>,
        before: BTreeMap<Name, usize>,
        after: BTreeMap<Name, usize>,
    ) {
        self.judge(what, author, &outcome);
        if matches!(outcome, Some(Ok(()))) && self.is_sound(author) {
            self.change_names(after, Some(author));
        } else {
            self.resolve(what, author, before, after).await;
        }
    }

    /// Names stand for something else; with who changed them and was answered.
    fn change_names(&mut self, after: BTreeMap<Name, usize>, by: Option<Author>) {
        let before = std::mem::replace(&mut self.names, after);
        self.past.push((before, by));
        self.prune();
    }
    /// The last change was answered to this author.
    fn changed_by(&mut self, author: Author) {
        if let Some((_, by)) = self.past.last_mut() {
            *by = Some(author);
        }
    }
    /// These names are on stable storage.
    fn stable_names(&mut self) {
        self.past.clear();
        self.prune();
    }

    /// A client and the metadata server died together: what of their last changes is there, and stays.
    pub(super) async fn relearn(&mut self) {
        for _ in 0..SETTLE_ATTEMPTS_MAX {
            let deaths = self.context.double_deaths();
            self.context.wait_dead_forgotten().await;
            let Some(found) = self.listing().await else { return };
            if deaths != self.context.double_deaths() {
                continue;
            }
            let outcome = self.judge_survivors(&found);
            let told =
                if outcome.is_err() { format!(", past {:?}, now {:?}", self.past, self.names) } else { String::new() };
            let what = format!("tree{}: after a client and the metadata server died together", self.id);
            self.context.expect(&what, outcome.map_err(|e| e + &told));
            self.take_survivors(found);
            self.deaths = deaths;
            return;
        }
    }
    fn fid_of(&self, id: usize) -> Option<Fid> {
        self.files.get(&id).or_else(|| self.gone.get(&id)).map(|f| f.fid)
    }
    fn is_known(&self, fid: Fid) -> bool {
        self.files.values().chain(self.gone.values()).any(|f| f.fid == fid)
    }
    /// What a name may stand for: what the last change made of it that was answered to who is still there, or any later one. Whoever
    /// was answered has what his change rested on on stable storage, or tells the server again of his own.
    fn may_stand_for(&self, name: &Name) -> Vec<Option<usize>> {
        let of = |state: &BTreeMap<Name, usize>| state.get(name).copied();
        let mut may = vec![of(&self.names)];
        let mut later = of(&self.names);
        for (state, by) in self.past.iter().rev() {
            let before = of(state);
            if before == later {
                continue;
            }
            if by.is_some_and(|a| self.context.author(a.client) == Some(a)) {
                break;
            }
            may.push(before);
            later = before;
        }
        may
    }
    /// Every name stands for what it may stand for, and what had a name all the time has one.
    fn judge_survivors(&self, found: &BTreeMap<Name, Fid>) -> Result<(), String> {
        let states: Vec<&BTreeMap<Name, usize>> = self.past.iter().map(|(s, _)| s).chain([&self.names]).collect();
        for name in found.keys().chain(states.iter().flat_map(|s| s.keys())) {
            let may = self.may_stand_for(name);
            let fids: Vec<Option<Fid>> = may.iter().map(|id| id.and_then(|id| self.fid_of(id))).collect();
            // A create whose answer nobody has made a file that is not known yet.
            let may_be_new = may.iter().zip(&fids).any(|(id, fid)| id.is_some() && fid.is_none());
            let is_new = found.get(name).is_some_and(|fid| !self.is_known(*fid));
            let may_be_it = may
                .iter()
                .zip(&fids)
                .any(|(id, fid)| id.is_some() == fid.is_some() && *fid == found.get(name).copied());
            if !(may_be_it || may_be_new && is_new) {
                return Err(format!("{name:?} stands for {:?}, should for one of {fids:?}", found.get(name)));
            }
        }
        let always = |id: &usize| states.iter().all(|s| s.values().any(|i| i == id));
        match self.names.values().find(|id| always(id) && !found.values().any(|f| self.fid_of(**id) == Some(*f))) {
            Some(id) => Err(format!("{:?} has no name any more", self.fid_of(*id))),
            None => Ok(()),
        }
    }
    fn take_survivors(&mut self, found: BTreeMap<Name, Fid>) {
        self.held.clear();
        let mut all = std::mem::take(&mut self.gone);
        all.append(&mut self.files);
        let id_of = |fid: &Fid| all.iter().find(|(_, f)| f.fid == *fid).map(|(id, _)| *id);
        self.names = found.iter().filter_map(|(name, fid)| id_of(fid).map(|id| (*name, id))).collect();
        self.files = all;
        for (name, fid) in found {
            if !self.names.contains_key(&name) {
                self.add(name, fid);
            }
        }
        self.stable_names();
    }

    /// Finds out whether an operation was carried out whose answer nobody has.
    async fn resolve(
        &mut self,
        what: &str,
        author: Author,
        before: BTreeMap<Name, usize>,
        after: BTreeMap<Name, usize>,
    ) {
        if self.context.failed() {
            return;
        }
        self.settled_author(author).await;
        let Some(found) = self.listing().await else { return };
        if self.deaths != self.context.double_deaths() {
            // Whatever became of it is one of the states that may have survived.
            self.past.extend([(before, None), (after, None)]);
            return;
        }
        let known: BTreeMap<usize, Fid> = self.files.iter().map(|(id, f)| (*id, f.fid)).collect();
        let fits = |state: &BTreeMap<Name, usize>| {
            state.len() == found.len()
                && state.iter().all(|(n, id)| match (known.get(id), found.get(n)) {
                    (Some(fid), Some(seen)) => fid == seen,
                    (None, Some(seen)) => !known.values().any(|f| f == seen),
                    _ => false,
                })
        };
        let chosen = [&before, &after].into_iter().find(|s| fits(s)).cloned();
        self.context.count(|c| c.checks += 1);
        let Some(state) = chosen else {
            let told = format!("found {found:?}, known {known:?}, before {before:?}, after {after:?}");
            self.context.complain(format!("{what}: neither done nor not done: {told}"));
            return;
        };
        let new: Vec<(Name, usize)> =
            state.iter().filter(|(_, id)| !known.contains_key(id)).map(|(n, i)| (*n, *i)).collect();
        self.names = state;
        for (name, _) in new {
            self.names.remove(&name);
            self.add(name, found[&name]);
        }
        self.stable_names();
    }

    /// Nothing that an author began is under way any more.
    pub(super) async fn settled_author(&self, author: Author) {
        if !self.is_sound(author) {
            self.context.wait_forgotten(author).await;
        }
        while self.context.disks.some_fail() {
            self.context.cluster.sim.sleep(types::Duration::from_millis(100)).await;
        }
    }

    /// All names, as a sound client sees them after everything is committed.
    pub(super) async fn listing(&mut self) -> Option<BTreeMap<Name, Fid>> {
        for _ in 0..SETTLE_ATTEMPTS_MAX {
            let (c, author) = self.client().await;
            let dirs = self.dirs;
            let what = format!("tree{}: list", self.id);
            let outcome = self.context.on(c, &what, async move |c| {
                c.meta().sync_meta(Fid::ROOT).await.map_err(|e| format!("sync: {e}"))?;
                read_dirs(&c, dirs).await
            });
            let outcome = outcome.await;
            self.judge(&what, author, &outcome);
            match outcome {
                Some(Ok(found)) if self.context.is_sound(author) => return Some(found),
                _ if self.context.failed() => return None,
                _ => self.context.cluster.sim.sleep(types::Duration::from_millis(500)).await,
            }
        }
        self.context.complain(format!("tree{}: its directories could not be read", self.id));
        None
    }
    pub(super) async fn list(&mut self) {
        let Some(found) = self.listing().await else { return };
        if self.deaths == self.context.double_deaths() {
            self.check_listing(&found, "list");
            self.stable_names();
        }
    }
    pub(super) fn check_listing(&self, found: &BTreeMap<Name, Fid>, what: &str) {
        let want: BTreeMap<Name, Fid> = self.names.iter().map(|(n, id)| (*n, self.files[id].fid)).collect();
        let outcome = if *found == want { Ok(()) } else { Err(format!("found {found:?}, should be {want:?}")) };
        self.context.expect(&format!("tree{}: {what}", self.id), outcome);
    }
}

pub(super) async fn read_dirs(c: &Rc<Client>, dirs: [Fid; 2]) -> Result<BTreeMap<Name, Fid>, String> {
    let mut found = BTreeMap::new();
    for (i, dir) in dirs.into_iter().enumerate() {
        let mut cookie = 0;
        loop {
            let page =
                c.meta().readdir(&cred(), dir, cookie, 4096, false).await.map_err(|e| format!("readdir: {e}"))?;
            for e in &page.entries {
                cookie = e.cookie;
                let n = String::from_utf8_lossy(&e.name).strip_prefix('n').and_then(|n| n.parse().ok());
                let Some(n) = n else { return Err(format!("a name that nobody made: {:?}", e.name)) };
                if found.insert((i, n), e.fid).is_some() {
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
