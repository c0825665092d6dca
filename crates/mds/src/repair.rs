//! Putting a stopped store right: for `stria fsck --repair`, never for service.
//!
//! Decides what the store should hold, from what can be read of it: every name stands for an inode of its type, every inode
//! has a name or goes to `/lost+found`, counts and back pointers follow from the names, and no object has two owners. Then
//! writes the difference, in one commit. Data are not given up: an object with data that no file owns becomes a file in
//! `/lost+found`, owned by whom its data were charged to; a file whose content cannot be put together any more goes there,
//! empty, so that its path does not lie. What is removed are records that say nothing: damaged ones, names of nothing, and
//! what belonged to an inode that is gone.
//!
//! Guarded by: `tests/repair.rs` (random damage by seed), `crates/stria/tests/fsck.rs`.
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use layout::xattr::{Form, encode_layout};
use layout::{Layout, Pattern, StripeObject, StripeSize};
use types::{Fid, ObjectId, OstIndex, WallTime};

use crate::check::{ALL_XATTRS, Finding, Report, boot_of, flag_of, highest_objects, is_legal_name, loops_of};
use crate::dirent::{self, BUCKET_ENTRIES_MAX, Entry, NameHash};
use crate::keys;
use crate::kv::{Key, KvBatch, KvError, MetaKv, show_key};
use crate::record::{Counters, DestroyRow, HorizonRow, Inode, InodeFlags, PrecreateRow, S_IFDIR, S_IFMT, S_IFREG};
use crate::salvaged::Revoked;

/// Where things without a name go. Its FID lies outside the sequences that files get.
pub const LOST_FOUND: Fid = Fid { seq: 0x2_0000_0002, oid: 1, ver: 0 };
const LOST_FOUND_NAME: &[u8] = b"lost+found";

/// An object with data that no file owns.
#[derive(Clone, Copy, Debug)]
pub struct Stray {
    /// Where it is.
    pub ost: OstIndex,
    /// Which.
    pub object: ObjectId,
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Last change of its data.
    pub mtime: WallTime,
    /// Whom they are charged to.
    pub uid: u32,
    /// Whom they are charged to.
    pub gid: u32,
}

/// What was found out about objects, by looking at OSTs.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Objects that no file owns: each becomes a file in `/lost+found`.
    pub strays: Vec<Stray>,
    /// Objects that files own and no OST has. Those files are given up; they let go of their other objects, which the next
    /// check finds as strays.
    pub missing: BTreeSet<ObjectId>,
    /// Objects with blocks that did not match their checksums. Their files move to `/lost+found` with all that they have.
    pub damaged: BTreeSet<ObjectId>,
    /// What they know of credentials that were revoked.
    pub revoked: Revoked,
}

/// What was done, a sentence each.
pub type Done = Vec<String>;

/// Puts right what `report` found, and what `objects` says. Nothing to do: nothing is written.
///
/// # Errors
/// The store failed, or was started since it was read (`Conflict`); then nothing changed.
pub async fn repair(kv: &Rc<dyn MetaKv>, report: &Report, objects: &Objects, now: WallTime) -> Result<Done, KvError> {
    let mut r = Repair::of(report, now);
    r.records(&objects.revoked);
    r.give_up(&objects.missing);
    r.set_aside(&objects.damaged);
    r.directories();
    r.names();
    r.loops();
    r.flags();
    for stray in &objects.strays {
        r.adopt(stray);
    }
    r.place();
    r.lost_and_found();
    r.links();
    r.numbers();
    let Repair { rows, mut done, .. } = r;
    if !rows.is_empty() {
        if done.is_empty() {
            // Who hears of nothing believes that nothing more can be done.
            done.push(format!("{} record(s) agree with the others now", rows.len()));
        }
        let expect = report.boot_as_found().into_iter().collect();
        kv.commit(Arc::new(KvBatch { changes: rows, expect })).await?;
    }
    Ok(done)
}

/// A name that stays.
struct Name {
    dir: Fid,
    name: Vec<u8>,
    fid: Fid,
    /// Where it is, if that may stay.
    at: Option<(u64, u8)>,
}

struct Repair<'a> {
    report: &'a Report,
    hash: NameHash,
    now: WallTime,
    inodes: BTreeMap<Fid, Inode>,
    names: Vec<Name>,
    /// Names by directory and hash, as they shall be.
    buckets: BTreeMap<(Fid, u64), Vec<Entry>>,
    /// Names in `/lost+found` of inodes that have none.
    saved: BTreeMap<Fid, String>,
    precreates: BTreeMap<OstIndex, PrecreateRow>,
    rows: BTreeMap<Key, Option<Vec<u8>>>,
    done: Done,
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl<'a> Repair<'a> {
    fn of(report: &'a Report, now: WallTime) -> Repair<'a> {
        Repair {
            report,
            hash: report.hash(),
            now,
            inodes: report.inodes.clone(),
            names: Vec::new(),
            buckets: BTreeMap::new(),
            saved: BTreeMap::new(),
            precreates: report.parts.precreates.clone(),
            rows: BTreeMap::new(),
            done: Vec::new(),
        }
    }

    fn did(&mut self, what: String) {
        self.done.push(what);
    }

    fn remove(&mut self, key: Key, why: &str) {
        self.did(format!("record {} {why}: it was removed", show_key(&key)));
        self.rows.insert(key, None);
    }

    /// Records that cannot be read, or belong to nothing, go.
    fn records(&mut self, revoked: &Revoked) {
        for key in &self.report.parts.damaged {
            if key[..] == *keys::CLUSTER_MAP {
                let map = wire::encode(&revoked.map_instead(self.now));
                self.rows.insert(key.clone(), Some(map));
                self.did(revoked.said_of_map());
                continue;
            }
            self.remove(key.clone(), "was damaged");
            if matches!(key.first(), Some(&(keys::REPLY | keys::SESSION))) && key.len() >= 9 {
                // Without the answer to what it asked last, a client cannot be told whether that was done.
                let session = Key::from_slice(&[&[keys::SESSION], &key[1..9]].concat());
                self.rows.insert(session, None);
                self.did(format!(
                    "the session of client {} was forgotten",
                    show_key(&key[1..9]).split(':').next_back().unwrap_or("?")
                ));
            }
        }
        let p = &self.report.parts;
        for fid in p.layouts.keys().filter(|f| !self.inodes.get(f).is_some_and(|i| i.has(InodeFlags::LAYOUT_APART))) {
            self.rows.insert(keys::layout(*fid), None);
            self.done.push(format!("the layout of {fid}, which has no use for it, was removed"));
        }
        for (fid, name) in p.xattrs.iter().filter(|(f, _)| !self.inodes.contains_key(f)) {
            self.rows.insert(keys::xattr(*fid, name), None);
            self.done.push(format!("xattr {} of {fid}, which does not exist, was removed", text(name)));
        }
        for (key, row) in &p.destroys {
            let kept: Vec<_> =
                row.objects.iter().filter(|o| !self.report.objects.contains_key(&o.object)).cloned().collect();
            if kept.len() < row.objects.len() {
                self.done.push(format!(
                    "{} object(s) of files will not be destroyed any more",
                    row.objects.len() - kept.len()
                ));
                let value = (!kept.is_empty()).then(|| wire::encode(&DestroyRow { objects: kept }));
                self.rows.insert(key.clone(), value);
            }
        }
        if p.no_superblock {
            self.rows.insert(keys::plain(keys::SUPERBLOCK), Some(wire::encode(&self.report.superblock)));
            self.done.push("the superblock was written anew".into());
        }
    }

    /// Files whose content cannot be put together: they lose their layout and their names.
    fn give_up(&mut self, missing: &BTreeSet<ObjectId>) {
        let mut lost: BTreeMap<Fid, String> = BTreeMap::new();
        for finding in &self.report.findings {
            match finding {
                Finding::BadLayout(fid) => drop(lost.insert(*fid, "its layout was lost".into())),
                Finding::SharedObject { object, first, second } => {
                    lost.insert(*second, format!("object {object} is {first}'s"));
                }
                _ => {}
            }
        }
        for object in missing {
            if let Some(fid) = self.report.objects.get(object) {
                lost.insert(*fid, format!("object {object} is lost"));
            }
        }
        for (fid, why) in lost {
            let Some(inode) = self.inodes.get_mut(&fid) else { continue };
            if inode.has(InodeFlags::LAYOUT_APART) {
                self.rows.insert(keys::layout(fid), None);
            }
            inode.set(InodeFlags::HAS_LAYOUT | InodeFlags::LAYOUT_APART, false);
            if inode.is_file() {
                (inode.size, inode.blocks, inode.tail) = (0, 0, Vec::new());
                inode.layout_gen += 1;
                self.saved.insert(fid, format!("damaged-{fid}"));
            }
            self.done.push(format!("{fid}: {why}: what is left of its data is in /lost+found"));
        }
    }

    /// Files with damaged data keep what they have, and lose their names.
    fn set_aside(&mut self, damaged: &BTreeSet<ObjectId>) {
        for object in damaged {
            let Some(fid) = self.report.objects.get(object) else { continue };
            let kept = self.inodes.get(fid).is_some_and(|i| i.has(InodeFlags::HAS_LAYOUT))
                && !types::planted!("repair-unnamed");
            if kept && self.saved.insert(*fid, format!("damaged-{fid}")).is_none() {
                self.done.push(format!(
                    "{fid}: some of its data are not what was written: it is /lost+found/damaged-{fid} now"
                ));
            }
        }
    }

    fn new_directory(&self, fid: Fid, mode: u32) -> Inode {
        let now = self.now;
        let times = Inode { atime: now, mtime: now, ctime: now, btime: now, ..Inode::default() };
        Inode { fid, mode: S_IFDIR | mode, nlink: 2, size: 4096, blocks: 8, ..times }
    }

    /// Directories that have names in them and are not there: they are made again, for root.
    fn directories(&mut self) {
        let root = self.inodes.get(&Fid::ROOT).is_some_and(Inode::is_dir);
        if !root {
            self.inodes.insert(Fid::ROOT, self.new_directory(Fid::ROOT, 0o755));
            self.did("the root directory was made again, with mode 0755 and of user 0".into());
        }
        if let Some(root) = self.inodes.get_mut(&Fid::ROOT) {
            root.set(InodeFlags::ORPHAN | InodeFlags::LINKABLE, false);
            (root.parent, root.place) = (Fid::ZERO, 0);
        }
        let dirs: BTreeSet<Fid> = self.report.parts.buckets.keys().map(|(dir, _)| *dir).collect();
        for dir in dirs {
            match self.inodes.get_mut(&dir) {
                None => {
                    self.inodes.insert(dir, self.new_directory(dir, 0o700));
                    self.did(format!("directory {dir} was made again, with mode 0700 and of user 0"));
                }
                Some(inode) if inode.is_dir() => inode.set(InodeFlags::ORPHAN | InodeFlags::LINKABLE, false),
                Some(_) => {}
            }
        }
    }

    /// Which names stay.
    fn names(&mut self) {
        let mut taken: BTreeSet<(Fid, &[u8])> = BTreeSet::new();
        let mut dropped = Vec::new();
        for ((dir, hash), bucket) in &self.report.parts.buckets {
            for e in bucket {
                let in_dir = self.inodes.get(dir).is_some_and(Inode::is_dir);
                let why = match self.inodes.get(&e.fid) {
                    None => "stood for nothing",
                    Some(_) if e.fid == Fid::ROOT => "stood for the root",
                    Some(_) if !in_dir => "was in what is no directory",
                    Some(_) if !is_legal_name(&e.name) => "was none that a file may have",
                    Some(_) if self.saved.contains_key(&e.fid) => "stood for a file whose data are lost",
                    Some(_) if !taken.insert((*dir, &e.name)) => "was there twice",
                    Some(_) => {
                        let at = (self.hash.of(&e.name) == *hash).then_some((*hash, e.slot));
                        self.names.push(Name { dir: *dir, name: e.name.clone(), fid: e.fid, at });
                        continue;
                    }
                };
                dropped.push(format!("name {dir}/{} {why}: it was removed", text(&e.name)));
            }
        }
        self.done.extend(dropped);
        // A directory keeps the name that it knows of, else the first one.
        let mut kept: BTreeMap<Fid, usize> = BTreeMap::new();
        for (i, n) in self.names.iter().enumerate() {
            let Some(dir) = self.inodes.get(&n.fid).filter(|i| i.is_dir()) else { continue };
            let known =
                n.dir == dir.parent && n.at.is_some_and(|(h, s)| h << dirent::SLOT_BITS | u64::from(s) == dir.place);
            let first = kept.entry(n.fid).or_insert(i);
            if known {
                *first = i;
            }
        }
        let mut i = 0;
        let done = &mut self.done;
        self.names.retain(|n| {
            let stays = kept.get(&n.fid).is_none_or(|first| *first == i);
            i += 1;
            if !stays {
                done.push(format!(
                    "name {}/{} was a second one of directory {}: it was removed",
                    n.dir,
                    text(&n.name),
                    n.fid
                ));
            }
            stays
        });
    }

    /// Directories that lie below themselves are cut loose.
    fn loops(&mut self) {
        let is_dir = |fid: &Fid| self.inodes.get(fid).is_some_and(Inode::is_dir);
        let parents = self.names.iter().filter(|n| is_dir(&n.fid)).map(|n| (n.fid, n.dir)).collect();
        for fid in loops_of(&parents) {
            self.names.retain(|n| n.fid != fid);
            self.did(format!("directory {fid} was below itself: it is taken out of there"));
        }
    }

    /// Flags follow from what is there.
    fn flags(&mut self) {
        let mut xattrs: BTreeMap<Fid, u16> = BTreeMap::new();
        for (fid, name) in &self.report.parts.xattrs {
            *xattrs.entry(*fid).or_default() |= flag_of(name);
        }
        let named: BTreeSet<Fid> = self.names.iter().map(|n| n.fid).collect();
        for (fid, inode) in &mut self.inodes {
            let there = xattrs.get(fid).copied().unwrap_or(0);
            if inode.has(InodeFlags::HAS_ACL) && there & InodeFlags::HAS_ACL == 0 {
                // The group bits were the mask of what is lost: nobody gets more than the owner and everybody had.
                inode.mode &= !0o070;
                self.done.push(format!("{fid}: its ACL is lost, the group's rights are taken away"));
            }
            inode.set(ALL_XATTRS, false);
            inode.set(there, true);
            if inode.has(InodeFlags::ORPHAN) && named.contains(fid) {
                inode.set(InodeFlags::ORPHAN | InodeFlags::LINKABLE, false);
            }
            if *fid == LOST_FOUND && !inode.is_dir() {
                inode.mode = S_IFDIR | inode.mode & !S_IFMT & 0o777;
                inode.tail = Vec::new();
                inode.set(InodeFlags::HAS_LAYOUT | InodeFlags::LAYOUT_APART | InodeFlags::ORPHAN, false);
            }
        }
    }

    /// The FID of the file that an object becomes: the object's own id, which no other file gets. One that was adopted before has it for
    /// life, whatever objects it was migrated to: where it stands in the way, the file gets one of `/lost+found`'s sequence.
    fn fid_for(&self, object: ObjectId) -> Option<Fid> {
        let is_given_up = |i: &Inode| !i.has(InodeFlags::HAS_LAYOUT) && self.saved.contains_key(&i.fid);
        if self.inodes.get(&object.0).is_none_or(is_given_up) {
            return Some(object.0);
        }
        let mut own = (LOST_FOUND.oid + 1..=u32::MAX).map(|oid| Fid::new(LOST_FOUND.seq, oid));
        own.find(|fid| !self.inodes.contains_key(fid))
    }

    fn adopt(&mut self, stray: &Stray) {
        let Some(fid) = self.fid_for(stray.object) else { return };
        let object = StripeObject { ost: stray.ost, object: stray.object };
        let Ok(layout) = Layout::new(StripeSize::DEFAULT, Pattern::Raid0, None, vec![object]) else { return };
        let file = Inode {
            fid,
            flags: InodeFlags::HAS_LAYOUT,
            mode: S_IFREG | 0o600,
            uid: stray.uid,
            gid: stray.gid,
            size: stray.size,
            blocks: stray.blocks,
            atime: stray.mtime,
            mtime: stray.mtime,
            ctime: self.now,
            btime: stray.mtime,
            layout_gen: u32::from(layout.generation()),
            tail: encode_layout(&layout, fid, Form::Stored),
            ..Inode::default()
        };
        self.inodes.insert(fid, file);
        let name = format!("object-{:04x}-{}", stray.ost.0, stray.object);
        self.did(format!("object {} belonged to no file: it is /lost+found/{name} now", stray.object));
        self.saved.insert(fid, name);
        self.keep_allocated(stray.ost, stray.object.0.oid);
    }

    /// Objects behind the last one given out are removed when the OST comes: this one counts as given out. Those before it are as they were:
    /// clients may replay their creates, and who nobody replays is removed then.
    fn keep_allocated(&mut self, ost: OstIndex, oid: u32) {
        let row = self.precreates.entry(ost).or_default();
        if types::planted!("adopted-given-out") {
            return;
        }
        if oid > row.last_used {
            let mut before = row.may_be_lost();
            before.retain(|id| *id < oid);
            *row = std::mem::take(row).with_unreplayed(&before);
            row.last_used = oid;
            row.ceiling = row.ceiling.max(oid);
        }
        row.keep(oid);
    }

    /// Puts names into buckets: first those that stay where they are, so that their cookies do.
    fn place(&mut self) {
        let (stay, again): (Vec<Name>, Vec<Name>) =
            std::mem::take(&mut self.names).into_iter().partition(|n| n.at.is_some());
        for n in stay {
            let Some((hash, slot)) = n.at else { continue };
            let dtype = self.inodes.get(&n.fid).map_or(0, Inode::dtype);
            self.buckets.entry((n.dir, hash)).or_default().push(Entry { slot, dtype, fid: n.fid, name: n.name });
        }
        for n in again {
            let entered = self.enter(n.dir, &n.name, n.fid);
            let what = if entered { "it can be found now" } else { "it was removed" };
            self.did(format!(
                "name {}/{} of {} was filed under another name's hash: {what}",
                n.dir,
                text(&n.name),
                n.fid
            ));
        }
    }

    /// Enters a name; where it has no place, its inode goes to `/lost+found`.
    fn enter(&mut self, dir: Fid, name: &[u8], fid: Fid) -> bool {
        let hash = self.hash.of(name);
        let bucket = self.buckets.entry((dir, hash)).or_default();
        let free = (0..BUCKET_ENTRIES_MAX as u8).find(|s| bucket.iter().all(|e| e.slot != *s));
        let taken = bucket.iter().any(|e| e.name == name);
        let (Some(slot), false) = (free, taken) else { return false };
        let dtype = self.inodes.get(&fid).map_or(0, Inode::dtype);
        bucket.push(Entry { slot, dtype, fid, name: name.to_vec() });
        bucket.sort_by_key(|e| e.slot);
        true
    }

    fn is_taken(&self, dir: Fid, name: &[u8]) -> bool {
        self.buckets.get(&(dir, self.hash.of(name))).is_some_and(|b| b.iter().any(|e| e.name == name))
    }

    /// Gives what has no name one in `/lost+found`, which is made when it is missing.
    fn lost_and_found(&mut self) {
        let named: BTreeSet<Fid> = self.buckets.values().flatten().map(|e| e.fid).collect();
        let orphan = |i: &Inode| i.has(InodeFlags::ORPHAN);
        let nameless: Vec<Fid> = self
            .inodes
            .values()
            .filter(|i| !named.contains(&i.fid) && !orphan(i) && ![Fid::ROOT, LOST_FOUND].contains(&i.fid))
            .map(|i| i.fid)
            .collect();
        if !self.inodes.contains_key(&LOST_FOUND) {
            if nameless.is_empty() {
                return;
            }
            self.inodes.insert(LOST_FOUND, self.new_directory(LOST_FOUND, 0o700));
        }
        if !named.contains(&LOST_FOUND) {
            // A file of somebody's may have the name.
            let mut name = LOST_FOUND_NAME.to_vec();
            while self.is_taken(Fid::ROOT, &name) {
                name.extend_from_slice(b".fsck");
            }
            self.enter(Fid::ROOT, &name, LOST_FOUND);
            self.did(format!("/{} was made", text(&name)));
        }
        for fid in nameless {
            let saved = self.saved.get(&fid).cloned();
            let mut name = saved.clone().unwrap_or_else(|| format!("inode-{fid}"));
            while !self.enter(LOST_FOUND, name.as_bytes(), fid) {
                name.push('_');
            }
            if saved.is_none() {
                self.did(format!("{fid} had no name: it is /lost+found/{name} now"));
            }
        }
    }

    /// Counts and back pointers, from the names.
    fn links(&mut self) {
        let mut places: BTreeMap<Fid, Vec<(Fid, u64)>> = BTreeMap::new();
        let mut counts: BTreeMap<Fid, (u64, u32)> = BTreeMap::new();
        for ((dir, hash), bucket) in &self.buckets {
            for e in bucket {
                places.entry(e.fid).or_default().push((*dir, e.cookie(*hash)));
                let count = counts.entry(*dir).or_default();
                count.0 += 1;
                count.1 += u32::from(self.inodes.get(&e.fid).is_some_and(Inode::is_dir));
            }
        }
        let mut links: BTreeSet<(Fid, Fid, u64)> = BTreeSet::new();
        for (fid, inode) in &mut self.inodes {
            let places = places.remove(fid).unwrap_or_default();
            let (entries, subdirs) = counts.get(fid).copied().unwrap_or_default();
            let first = (inode.parent, inode.place);
            let first = if places.contains(&first) { first } else { places.first().copied().unwrap_or_default() };
            (inode.parent, inode.place) = first;
            if inode.is_dir() {
                inode.entries = entries;
                inode.nlink = if inode.has(InodeFlags::ORPHAN) { 0 } else { 2 + subdirs };
            } else {
                inode.entries = places.len().saturating_sub(1) as u64;
                inode.nlink = places.len() as u32;
                links.extend(places.iter().filter(|p| **p != first).map(|(dir, cookie)| (*fid, *dir, *cookie)));
            }
        }
        for gone in self.report.parts.links.difference(&links) {
            self.rows.insert(keys::link(gone.0, gone.1, gone.2), None);
        }
        for new in links.difference(&self.report.parts.links) {
            self.rows.insert(keys::link(new.0, new.1, new.2), Some(Vec::new()));
        }
        let old = &self.report.parts.buckets;
        for (at, bucket) in &self.buckets {
            if !bucket.is_empty() && old.get(at) != Some(bucket) {
                self.rows.insert(keys::entry(at.0, at.1), Some(dirent::bucket(bucket)));
            }
        }
        for at in old.keys().filter(|at| self.buckets.get(at).is_none_or(Vec::is_empty)) {
            self.rows.insert(keys::entry(at.0, at.1), None);
        }
        for (fid, inode) in &self.inodes {
            let before = self.report.inodes.get(fid);
            if before != Some(inode) {
                self.rows.insert(keys::inode(*fid), Some(inode.encode()));
                if let Some(b) = before.filter(|b| (b.nlink, b.entries) != (inode.nlink, inode.entries)) {
                    let (links, entries) = (inode.nlink, inode.entries);
                    self.done.push(format!(
                        "{fid} has link count {links} (was {}) and {entries} entries (was {}) now",
                        b.nlink, b.entries
                    ));
                }
            }
        }
        let orphans: BTreeSet<Fid> =
            self.inodes.values().filter(|i| i.has(InodeFlags::ORPHAN)).map(|i| i.fid).collect();
        for fid in self.report.parts.orphans.symmetric_difference(&orphans) {
            let value = orphans.contains(fid).then(Vec::new);
            self.rows.insert(keys::orphan(*fid), value);
        }
    }

    /// What numbers the store gives out next.
    fn numbers(&mut self) {
        let p = &self.report.parts;
        for (ost, found) in highest_objects(self.report) {
            self.keep_allocated(ost, found);
        }
        for (ost, row) in &mut self.precreates {
            row.ceiling = row.ceiling.max(row.last_used);
            let left: Vec<u32> = row.unreplayed().collect();
            let owned = left.into_iter().filter(|id| self.report.objects.contains_key(&ObjectId::new(*ost, *id)));
            owned.for_each(|id| row.keep(id));
        }
        for (ost, row) in &self.precreates {
            let before = p.precreates.get(ost);
            if before != Some(row) {
                self.rows.insert(keys::precreate(*ost), Some(wire::encode(row)));
            }
            if before.map(|b| (b.last_used, b.ceiling)) != Some((row.last_used, row.ceiling)) {
                self.done.push(format!("OST{:04x} counts its objects up to {} as given out now", ost.0, row.last_used));
            }
        }
        let inodes = self.inodes.len() as u64;
        let old = p.counters.clone().unwrap_or_default();
        if p.counters.is_none() || old.inodes != inodes {
            self.rows.insert(keys::plain(keys::COUNTERS), Some(wire::encode(&Counters { inodes, ..old })));
            self.done.push(format!("{inodes} inodes are counted now"));
        }
        self.counts();
        if p.counters.is_none() || p.damaged.contains(&keys::plain(keys::HORIZON)) {
            // Which sizes may be believed went with that row, or may have gone with it: the next start doubts all of them.
            let all = HorizonRow { doubting: true, ..HorizonRow::default() };
            self.rows.insert(keys::plain(keys::HORIZON), Some(wire::encode(&all)));
            self.done.push("sizes of files will be asked of their OSTs anew".into());
        }
        let newest = self.inodes.keys().filter_map(|f| boot_of(*f)).max().unwrap_or(0);
        let newest = newest.max(p.counters.as_ref().map_or(0, |c| c.transno >> 40));
        if p.boot.is_none_or(|boot| boot < newest) {
            self.rows.insert(keys::plain(keys::BOOT), Some(newest.to_le_bytes().to_vec()));
            self.done.push(format!("the boot count is {newest} now"));
        }
    }

    /// Whose the inodes are. A store of before quotas is counted when it is started.
    fn counts(&mut self) {
        let (says, found) = (&self.report.parts.usage, crate::quota::count(self.inodes.values()));
        if self.report.superblock.version < crate::start::COUNTS_SINCE || *says == found {
            return;
        }
        for id in says.keys().filter(|id| !found.contains_key(id)) {
            self.rows.insert(keys::usage(*id), None);
        }
        for (id, inodes) in found.iter().filter(|(id, n)| says.get(id) != Some(n)) {
            self.rows.insert(keys::usage(*id), crate::quota::count_row(*inodes));
            let before = says.get(id).copied().unwrap_or(0);
            self.done.push(format!("{inodes} inodes are counted for {} {} now (were {before})", id.0.name(), id.1));
        }
    }
}
