//! Reading everything in a store: for `stria fsck`, never for service.
//!
//! Decides whether a store agrees with itself: every name stands for an inode, every inode is reached by as many names
//! as it says, counts are right, nothing is damaged. Every record is read on its own: one that is damaged is one finding, and
//! hides no other. Reports, and lists the objects that files own so that OSTs can be checked against it. Repairs nothing.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use layout::StripeObject;
use types::{Fid, ObjectId, OstIndex};
use wire::connect::Opening;
use wire::quota::QuotaKind;

use crate::acl::Acl;
use crate::config_service::{ClusterMap, RegisterError};
use crate::dirent::{self, Entry, NameHash};
use crate::keys;
use crate::kv::{Key, KvError, KvSnapshot, MetaKv, show_key, unseal};
use crate::openings::Stable;
use crate::ops::LOV;
use crate::osts::decode_precreate;
use crate::perm::{ACL_ACCESS, ACL_DEFAULT};
use crate::quota::Id;
use crate::record::{
    ChangelogRow, Counters, CutRow, DestroyRow, GraceRow, HorizonRow, Inode, InodeFlags, OwnRow, PrecreateRow,
    QuotaRow, ReplyRow, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK, SessionRow, Superblock,
};
use crate::start::{COUNTS_SINCE, SCAN_KEYS, StartError, read_superblock, ready};

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Finding {
    /// A record cannot be read.
    Damaged(String),
    /// A name stands for an inode that does not exist.
    DanglingName {
        /// Directory.
        dir: Fid,
        /// Name.
        name: String,
        /// What it should stand for.
        fid: Fid,
    },
    /// A name is in the wrong bucket: no look-up finds it.
    MisplacedName {
        /// Directory.
        dir: Fid,
        /// Name.
        name: String,
    },
    /// A name of a directory that does not exist.
    NameWithoutDir {
        /// Directory.
        dir: Fid,
        /// Name.
        name: String,
    },
    /// A name that no file may have, or that its directory has twice.
    IllegalName {
        /// Directory.
        dir: Fid,
        /// Name.
        name: String,
    },
    /// A name says another type than the inode has.
    WrongType {
        /// Directory.
        dir: Fid,
        /// Name.
        name: String,
    },
    /// A directory has more than one name.
    DirTwice(Fid),
    /// A directory lies below itself: no path leads there.
    Detached(Fid),
    /// The root directory is missing, or is none.
    NoRoot,
    /// An inode without a name that is not an orphan.
    Unreachable(Fid),
    /// The link count is not the number of names.
    LinkCount {
        /// Inode.
        fid: Fid,
        /// What it says.
        says: u32,
        /// What was found.
        found: u32,
    },
    /// A directory's count of entries is wrong.
    EntryCount {
        /// Directory.
        fid: Fid,
        /// What it says.
        says: u64,
        /// What was found.
        found: u64,
    },
    /// Where an inode says its names are is not where they are.
    BackPointer(Fid),
    /// An orphan mark and an inode's flag disagree.
    OrphanMark(Fid),
    /// An xattr, link or layout of an inode that does not exist, or that the inode does not know of.
    Stray(String),
    /// An object belongs to two files.
    SharedObject {
        /// The object.
        object: ObjectId,
        /// One file.
        first: Fid,
        /// The other.
        second: Fid,
    },
    /// A file's layout is missing or makes no sense: where its data are is not known.
    BadLayout(Fid),
    /// What an inode says of its xattrs is not what is there.
    XattrFlags(Fid),
    /// An object of a file waits to be destroyed.
    DoomedObject {
        /// The object.
        object: ObjectId,
        /// Its file.
        fid: Fid,
    },
    /// Objects of files would be given out again: an OST's allocation state is missing or behind.
    Allocation {
        /// The OST.
        ost: OstIndex,
        /// Last one that was given out, as it says.
        says: u32,
        /// Highest one that a file has.
        found: u32,
    },
    /// The boot count is missing or behind: FIDs would be given out again.
    BootCount {
        /// What it says.
        says: u64,
        /// Boot of the newest inode or transaction.
        found: u64,
    },
    /// The count of a user's, a group's or a project's inodes is wrong.
    QuotaCount {
        /// Whose.
        kind: QuotaKind,
        /// See `kind`.
        id: u32,
        /// What it says.
        says: u64,
        /// What was found.
        found: u64,
    },
    /// The number of inodes in the counters is wrong.
    InodeCount {
        /// What they say.
        says: u64,
        /// What was found.
        found: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Damaged(key) => write!(f, "record {key} is damaged"),
            Finding::DanglingName { dir, name, fid } => {
                write!(f, "{dir}/{name} stands for {fid}, which does not exist")
            }
            Finding::MisplacedName { dir, name } => write!(f, "{dir}/{name} is filed under another name's hash"),
            Finding::NameWithoutDir { dir, name } => write!(f, "{dir}/{name}: the directory does not exist"),
            Finding::IllegalName { dir, name } => {
                write!(f, "{dir}/{name}: no file may have this name, or it is there twice")
            }
            Finding::WrongType { dir, name } => write!(f, "{dir}/{name} says another type than its inode has"),
            Finding::DirTwice(fid) => write!(f, "directory {fid} has more than one name"),
            Finding::Detached(fid) => write!(f, "directory {fid} lies below itself"),
            Finding::NoRoot => f.write_str("there is no root directory"),
            Finding::Unreachable(fid) => write!(f, "{fid} has no name"),
            Finding::LinkCount { fid, says, found } => write!(f, "{fid} has link count {says}, but {found} links"),
            Finding::EntryCount { fid, says, found } => {
                write!(f, "directory {fid} counts {says} entries, but has {found}")
            }
            Finding::BackPointer(fid) => write!(f, "{fid} does not know where its names are"),
            Finding::OrphanMark(fid) => write!(f, "{fid} is marked as an orphan in one place only"),
            Finding::Stray(key) => write!(f, "record {key} belongs to no inode"),
            Finding::SharedObject { object, first, second } => {
                write!(f, "object {object} belongs to {first} and to {second}")
            }
            Finding::BadLayout(fid) => write!(f, "{fid}: its layout is missing or damaged"),
            Finding::XattrFlags(fid) => write!(f, "{fid} says that it has other xattrs than it has"),
            Finding::DoomedObject { object, fid } => write!(f, "object {object} of {fid} waits to be destroyed"),
            Finding::Allocation { ost, says, found } => {
                write!(f, "OST{:04x} would give out object {found} again: it counts from {says}", ost.0)
            }
            Finding::BootCount { says, found } => {
                write!(f, "the boot count is {says}, but something is of boot {found}: FIDs would be given out again")
            }
            Finding::QuotaCount { kind, id, says, found } => {
                write!(f, "{says} inodes are counted for {} {id}, {found} exist", kind.name())
            }
            Finding::InodeCount { says, found } => write!(f, "{says} inodes are counted, {found} exist"),
        }
    }
}

/// What a store holds and what is wrong with it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Superblock.
    pub superblock: Superblock,
    /// Every inode.
    pub inodes: BTreeMap<Fid, Inode>,
    /// Every object that a file owns, with its file.
    pub objects: BTreeMap<ObjectId, Fid>,
    /// Objects that wait to be destroyed.
    pub doomed: Vec<ObjectId>,
    /// What is wrong, in order.
    pub findings: Vec<Finding>,
    /// What a repair needs to know besides.
    pub(crate) parts: Parts,
}

/// The records of a store that have no place of their own in a [`Report`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    /// Names by directory and hash.
    pub buckets: BTreeMap<(Fid, u64), Vec<Entry>>,
    /// Second and further links: inode, directory, cookie.
    pub links: BTreeSet<(Fid, Fid, u64)>,
    pub orphans: BTreeSet<Fid>,
    pub layouts: BTreeMap<Fid, Vec<u8>>,
    pub xattrs: BTreeSet<(Fid, Vec<u8>)>,
    pub destroys: BTreeMap<Key, DestroyRow>,
    pub precreates: BTreeMap<OstIndex, PrecreateRow>,
    /// An empty one where it is missing or cannot be read.
    pub map: ClusterMap,
    pub counters: Option<Counters>,
    /// Rows of the log of owners that OSTs are to be told.
    pub owns: u64,
    /// Counts of inodes, by whom they count for.
    pub usage: BTreeMap<Id, u64>,
    pub boot: Option<u64>,
    /// Records that cannot be read.
    pub damaged: BTreeSet<Key>,
    /// The superblock cannot be read: `Report::superblock` is what the caller knows of it.
    pub no_superblock: bool,
}

/// Reads a whole store. Memory: about 350 bytes per inode.
///
/// # Errors
/// The store is not ours, or cannot be read at all.
pub async fn check(kv: &Rc<dyn MetaKv>) -> Result<Report, StartError> {
    check_or(kv, None).await
}

/// [`check`] of a store whose superblock may be damaged: then it is taken to be `known`, which is a finding.
///
/// # Errors
/// As [`check`].
pub async fn check_or(kv: &Rc<dyn MetaKv>, known: Option<Superblock>) -> Result<Report, StartError> {
    let snapshot = kv.snapshot().await?;
    let mut c = Checker::default();
    c.report.superblock = match (read_superblock(&*snapshot).await, known) {
        (Ok(sb), _) => sb,
        (
            Err(StartError::NotFormatted | StartError::Damaged { .. } | StartError::Store(KvError::Corrupt { .. })),
            Some(known),
        ) => {
            c.report.parts.no_superblock = true;
            c.damaged(keys::SUPERBLOCK);
            known
        }
        (Err(e), _) => return Err(e),
    };
    c.scan(&*snapshot).await?;
    c.layouts();
    c.marks();
    c.names();
    c.paths();
    c.xattrs();
    c.counts();
    c.report.findings.sort();
    c.report.findings.dedup();
    Ok(c.report)
}

#[derive(Default)]
struct Checker {
    report: Report,
}

impl Report {
    /// Whether the next recovery removes an object that no file owns: it was made for a create that was not committed when
    /// everything ended, or that a recovery which did not end had not seen replayed.
    #[must_use]
    pub fn is_left_over(&self, ost: OstIndex, object: ObjectId) -> bool {
        let ours = object.0.seq == ObjectId::seq_of(ost) && !self.objects.contains_key(&object);
        ours && self.parts.precreates.get(&ost).is_some_and(|row| row.is_left_over(object.0.oid))
    }

    /// Why the servers would not let a store in as an OST's: it is an older copy that nobody accepted. It has made objects up to
    /// `last_object`, and its next opening tells these `openings`.
    #[must_use]
    pub fn older_copy(&self, ost: OstIndex, openings: &[Opening], last_object: u32) -> Option<RegisterError> {
        // What a store that was put back from a backup says of that may be more than the OST ever made.
        let row = self.parts.precreates.get(&ost).filter(|row| !row.newer);
        let had = row.map(|row| Stable { object: row.ceiling.max(row.last_used), committed: row.committed });
        self.parts.map.refusal(ost, openings, last_object, had.unwrap_or_default())
    }

    /// Whether an object is one of a file without a name, which goes with its last opener: an exchange of layouts gives a nameless file the
    /// old objects, and OSTs remove those as soon as it is decided.
    #[must_use]
    pub fn is_nameless(&self, object: ObjectId) -> bool {
        self.objects.get(&object).is_some_and(|fid| self.parts.orphans.contains(fid))
    }

    /// Whether OSTs were told of every new owner of a file.
    #[must_use]
    pub fn owners_told(&self) -> bool {
        self.parts.owns == 0
    }

    /// The boot count as it was read, for a change that rests on this report; `None`: it cannot be read.
    pub(crate) fn boot_as_found(&self) -> Option<(Key, Option<Vec<u8>>)> {
        let key = keys::plain(keys::BOOT);
        let found = self.parts.boot.map(|boot| boot.to_le_bytes().to_vec());
        (!self.parts.damaged.contains(&key)).then_some((key, found))
    }

    pub(crate) fn hash(&self) -> NameHash {
        let sb = &self.superblock;
        NameHash { key0: sb.hash_key0, key1: sb.hash_key1, mask: sb.hash_mask }
    }

    /// Stored bytes of a file's layout.
    pub(crate) fn layout_of(&self, inode: &Inode) -> Option<layout::Layout> {
        let apart = inode.has(InodeFlags::LAYOUT_APART);
        let bytes = if apart { self.parts.layouts.get(&inode.fid)? } else { &inode.tail };
        let (_, layout) = layout::xattr::decode_layout(bytes).ok()?;
        let right = |o: &StripeObject| o.object.0.seq == ObjectId::seq_of(o.ost);
        (inode.is_file() && layout.objects().iter().all(right)).then_some(layout)
    }
}

/// The boot of the server that gave out a FID, of those that files get.
pub(crate) fn boot_of(fid: Fid) -> Option<u64> {
    let count = fid.seq.checked_sub(Fid::MDT_SEQ_FIRST)?;
    (fid.seq < ObjectId::seq_of(OstIndex(0))).then_some(count >> 8)
}

/// Whether a directory may have a name.
pub(crate) fn is_legal_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|b| matches!(b, 0 | b'/'))
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn fid_at(key: &[u8], at: usize) -> Option<Fid> {
    Some(Fid::from_key(key.get(at..at + 16)?.try_into().ok()?))
}

impl Checker {
    fn damaged(&mut self, key: &[u8]) {
        self.report.findings.push(Finding::Damaged(show_key(key)));
        self.report.parts.damaged.insert(Key::from_slice(key));
    }

    fn find(&mut self, finding: Finding) {
        self.report.findings.push(finding);
    }

    /// Every record, each judged on its own.
    async fn scan(&mut self, s: &dyn KvSnapshot) -> Result<(), KvError> {
        let (mut from, to) = (Key::new(), Key::from_elem(u8::MAX, 64));
        loop {
            let page = ready(s.range(&from, &to, SCAN_KEYS)).await?;
            for (key, sealed) in &page {
                match unseal(key, sealed.clone()) {
                    Ok(value) if self.record(key, &value).is_some() => {}
                    _ => self.damaged(key),
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == SCAN_KEYS => {
                    from = Key::from_slice(last);
                    from.push(0);
                }
                _ => return Ok(()),
            }
        }
    }

    /// Takes one record in; `None`: it is none that a store may hold.
    fn record(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let (kind, rest) = key.split_first()?;
        let p = &mut self.report.parts;
        let fid = || (rest.len() == 16).then(|| fid_at(key, 1)).flatten();
        match (*kind, rest.len()) {
            (keys::INODE, _) => {
                let inode = Inode::decode(fid()?, value)?;
                let kinds = [S_IFDIR, S_IFREG, S_IFLNK, S_IFIFO, S_IFCHR, S_IFBLK, S_IFSOCK];
                if !kinds.contains(&inode.kind()) {
                    return None;
                }
                self.report.inodes.insert(inode.fid, inode);
            }
            (keys::ENTRY, 24) => {
                let hash = keys::last_u64(key).filter(|h| *h >> 56 == 0 && dirent::is_legal(value))?;
                let own =
                    |e: dirent::EntryRef<'_>| Entry { slot: e.slot, dtype: e.dtype, fid: e.fid, name: e.name.to_vec() };
                p.buckets.insert((fid_at(key, 1)?, hash), dirent::entries(value).map(own).collect());
            }
            (keys::LINK, 40) if value.is_empty() => {
                p.links.insert((fid_at(key, 1)?, fid_at(key, 17)?, keys::last_u64(key)?));
            }
            (keys::XATTR, 17..) => {
                let (fid, name) = (fid_at(key, 1)?, &key[17..]);
                if [ACL_ACCESS, ACL_DEFAULT].contains(&name) {
                    Acl::parse(value)?;
                }
                p.xattrs.insert((fid, name.to_vec()));
            }
            (keys::LAYOUT, _) => drop(p.layouts.insert(fid()?, value.to_vec())),
            (keys::ORPHAN, _) if value.is_empty() => drop(p.orphans.insert(fid()?)),
            (keys::DESTROY, 24) => {
                let row: DestroyRow = wire::decode(value).ok()?;
                self.report.doomed.extend(row.objects.iter().map(|o| o.object));
                p.destroys.insert(Key::from_slice(key), row);
            }
            (keys::PRECREATE, 2) => {
                let (ost, row) = decode_precreate(key, value).ok()?;
                p.precreates.insert(ost, row);
            }
            (keys::SESSION, 8) => return wire::decode::<SessionRow>(value).ok().filter(|r| r.version == 1).map(|_| ()),
            (keys::CHANGE, 8) => return wire::decode::<wire::changelog::ChangeRecord>(value).ok().map(|_| ()),
            (keys::USAGE, 5) => {
                let inodes = u64::from_le_bytes(value.try_into().ok()?);
                p.usage.insert(keys::quota_id(key)?, inodes);
            }
            (keys::QUOTA, 5) => return keys::quota_id(key).and(wire::decode::<QuotaRow>(value).ok()).map(|_| ()),
            (keys::OWN, 24) => {
                wire::decode::<OwnRow>(value).ok()?;
                p.owns += 1;
            }
            (keys::CUT, 16) => return wire::decode::<CutRow>(value).ok().map(|_| ()),
            (keys::REPLY, 10) => return wire::decode::<ReplyRow>(value).ok().map(|_| ()),
            _ => return self.single(key, value),
        }
        Some(())
    }

    /// The records that a store has once.
    fn single(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let p = &mut self.report.parts;
        match key {
            keys::SUPERBLOCK => {}
            keys::BOOT => p.boot = Some(u64::from_le_bytes(value.try_into().ok()?)),
            keys::COUNTERS => p.counters = Some(wire::decode(value).ok()?),
            keys::GRACE => return wire::decode::<GraceRow>(value).ok().map(|_| ()),
            keys::CHANGELOG => return wire::decode::<ChangelogRow>(value).ok().map(|_| ()),
            keys::HORIZON => return wire::decode::<HorizonRow>(value).ok().map(|_| ()),
            keys::CLUSTER_MAP => p.map = wire::decode(value).ok()?,
            _ => return None,
        }
        Some(())
    }

    fn layouts(&mut self) {
        let mut findings = Vec::new();
        for (fid, inode) in self.report.inodes.iter().filter(|(_, i)| i.flags & InodeFlags::HAS_LAYOUT != 0) {
            let Some(layout) = self.report.layout_of(inode) else {
                findings.push(Finding::BadLayout(*fid));
                continue;
            };
            for StripeObject { object, .. } in layout.objects() {
                if let Some(first) = self.report.objects.insert(*object, *fid) {
                    findings.push(Finding::SharedObject { object: *object, first, second: *fid });
                    self.report.objects.insert(*object, first);
                }
            }
        }
        let rows = self.report.parts.precreates.iter();
        let left = rows.flat_map(|(ost, row)| row.unreplayed().map(|id| ObjectId::new(*ost, id)));
        for object in self.report.doomed.iter().copied().chain(left) {
            if let Some(fid) = self.report.objects.get(&object) {
                findings.push(Finding::DoomedObject { object, fid: *fid });
            }
        }
        let apart = |fid: &Fid| self.report.inodes.get(fid).is_some_and(|i| i.has(InodeFlags::LAYOUT_APART));
        let strays = self.report.parts.layouts.keys().filter(|f| !apart(f));
        findings.extend(strays.map(|f| Finding::Stray(show_key(&keys::layout(*f)))));
        self.report.findings.extend(findings);
    }

    fn marks(&mut self) {
        let flagged = |fid: &Fid| self.report.inodes.get(fid).is_some_and(|i| i.has(InodeFlags::ORPHAN));
        let mut wrong: Vec<Fid> = self.report.parts.orphans.iter().filter(|f| !flagged(f)).copied().collect();
        let all_flagged = self.report.inodes.values().filter(|i| i.has(InodeFlags::ORPHAN)).map(|i| i.fid);
        wrong.extend(all_flagged.filter(|f| !self.report.parts.orphans.contains(f)));
        self.report.findings.extend(wrong.into_iter().map(Finding::OrphanMark));
    }

    /// Names against inodes, both ways.
    fn names(&mut self) {
        let (mut findings, hash) = (Vec::new(), self.report.hash());
        let mut places: BTreeMap<Fid, Vec<(Fid, u64)>> = BTreeMap::new();
        let mut counts: BTreeMap<Fid, (u64, u32)> = BTreeMap::new();
        for ((dir, at), bucket) in &self.report.parts.buckets {
            let there = self.report.inodes.get(dir).is_some_and(Inode::is_dir);
            for (i, e) in bucket.iter().enumerate() {
                let (dir, name) = (*dir, text(&e.name));
                places.entry(e.fid).or_default().push((dir, e.cookie(*at)));
                let count = counts.entry(dir).or_default();
                count.0 += 1;
                if hash.of(&e.name) != *at {
                    findings.push(Finding::MisplacedName { dir, name: name.clone() });
                }
                if !is_legal_name(&e.name) || bucket[..i].iter().any(|b| b.name == e.name) {
                    findings.push(Finding::IllegalName { dir, name: name.clone() });
                }
                match self.report.inodes.get(&e.fid) {
                    None => findings.push(Finding::DanglingName { dir, name: name.clone(), fid: e.fid }),
                    Some(inode) => {
                        count.1 += u32::from(inode.is_dir());
                        if e.dtype != inode.dtype() {
                            findings.push(Finding::WrongType { dir, name: name.clone() });
                        }
                    }
                }
                if !there {
                    findings.push(Finding::NameWithoutDir { dir, name });
                }
            }
        }
        let mut links: BTreeMap<Fid, Vec<(Fid, u64)>> = BTreeMap::new();
        for (fid, dir, cookie) in &self.report.parts.links {
            match self.report.inodes.contains_key(fid) {
                true => links.entry(*fid).or_default().push((*dir, *cookie)),
                false => findings.push(Finding::Stray(show_key(&keys::link(*fid, *dir, *cookie)))),
            }
        }
        for (fid, inode) in &self.report.inodes {
            let places = places.remove(fid).unwrap_or_default();
            let counts = counts.get(fid).copied().unwrap_or_default();
            of_inode(inode, places, counts, links.remove(fid).unwrap_or_default(), &mut findings);
        }
        self.report.findings.extend(findings);
    }

    /// Whether every directory that has a name is reached from the root, or from one that has none.
    fn paths(&mut self) {
        if self.report.inodes.get(&Fid::ROOT).is_none_or(|i| !i.is_dir()) {
            self.find(Finding::NoRoot);
        }
        let mut parents: BTreeMap<Fid, Fid> = BTreeMap::new();
        for ((dir, _), bucket) in &self.report.parts.buckets {
            let dirs = bucket.iter().filter(|e| self.report.inodes.get(&e.fid).is_some_and(Inode::is_dir));
            for e in dirs.filter(|e| e.fid != Fid::ROOT) {
                parents.entry(e.fid).or_insert(*dir);
            }
        }
        let loops = loops_of(&parents).into_iter().map(Finding::Detached);
        self.report.findings.extend(loops);
    }

    fn xattrs(&mut self) {
        let mut found: BTreeMap<Fid, u16> = BTreeMap::new();
        for (fid, name) in &self.report.parts.xattrs {
            *found.entry(*fid).or_default() |= flag_of(name);
        }
        let mut findings = Vec::new();
        for fid in found.keys().filter(|f| !self.report.inodes.contains_key(f)) {
            let names = self.report.parts.xattrs.range((*fid, Vec::new())..).take_while(|(f, _)| f == fid);
            findings.extend(names.map(|(fid, name)| Finding::Stray(show_key(&keys::xattr(*fid, name)))));
        }
        for (fid, inode) in &self.report.inodes {
            let there = found.get(fid).copied().unwrap_or(0);
            if inode.flags & ALL_XATTRS != there {
                findings.push(Finding::XattrFlags(*fid));
            }
        }
        self.report.findings.extend(findings);
    }

    fn counts(&mut self) {
        let p = &self.report.parts;
        let found = self.report.inodes.len() as u64;
        let says = p.counters.as_ref().map_or(0, |c| c.inodes);
        let mut findings = Vec::new();
        if says != found {
            findings.push(Finding::InodeCount { says, found });
        }
        // A store of before quotas is counted when it is started.
        if self.report.superblock.version >= COUNTS_SINCE {
            findings.extend(wrong_counts(&p.usage, &crate::quota::count(self.report.inodes.values())));
        }
        let newest = self.report.inodes.keys().filter_map(|f| boot_of(*f)).max().unwrap_or(0);
        let newest = newest.max(p.counters.as_ref().map_or(0, |c| c.transno >> 40));
        let says = p.boot.unwrap_or(0);
        if says < newest || p.boot.is_none() {
            findings.push(Finding::BootCount { says, found: newest });
        }
        for (ost, found) in highest_objects(&self.report) {
            let says = p.precreates.get(&ost).map_or(0, |row| row.last_used);
            if says < found {
                findings.push(Finding::Allocation { ost, says, found });
            }
        }
        for (ost, row) in p.precreates.iter().filter(|(_, row)| row.ceiling < row.last_used) {
            findings.push(Finding::Allocation { ost: *ost, says: row.ceiling, found: row.last_used });
        }
        self.report.findings.extend(findings);
    }
}

/// Counts that are not those that were found.
fn wrong_counts(says: &BTreeMap<Id, u64>, found: &BTreeMap<Id, u64>) -> Vec<Finding> {
    let ids: BTreeSet<&Id> = says.keys().chain(found.keys()).collect();
    let of = |counts: &BTreeMap<Id, u64>, id: &Id| counts.get(id).copied().unwrap_or(0);
    let wrong = ids.into_iter().filter(|id| of(says, id) != of(found, id));
    wrong.map(|id| Finding::QuotaCount { kind: id.0, id: id.1, says: of(says, id), found: of(found, id) }).collect()
}

/// The OST of an object whose sequence is one of an OST's.
fn ost_of(object: ObjectId) -> OstIndex {
    let each = ObjectId::seq_of(OstIndex(1)) - ObjectId::seq_of(OstIndex(0));
    OstIndex((object.0.seq.saturating_sub(ObjectId::seq_of(OstIndex(0))) / each) as u16)
}

/// The highest object id of each OST that a file has.
pub(crate) fn highest_objects(report: &Report) -> BTreeMap<OstIndex, u32> {
    let mut highest: BTreeMap<OstIndex, u32> = BTreeMap::new();
    for object in report.objects.keys() {
        let ost = ost_of(*object);
        let last = highest.entry(ost).or_default();
        *last = (*last).max(object.0.oid);
    }
    highest
}

/// Every flag that says something of xattrs.
pub(crate) const ALL_XATTRS: u16 =
    InodeFlags::HAS_XATTRS | InodeFlags::HAS_ACL | InodeFlags::HAS_DEFAULT_ACL | InodeFlags::HAS_DIR_LAYOUT;

/// The flag of an inode that has an xattr of this name.
pub(crate) fn flag_of(name: &[u8]) -> u16 {
    match name {
        ACL_ACCESS => InodeFlags::HAS_ACL,
        ACL_DEFAULT => InodeFlags::HAS_DEFAULT_ACL,
        LOV => InodeFlags::HAS_DIR_LAYOUT,
        _ => InodeFlags::HAS_XATTRS,
    }
}

/// The directory with the lowest FID of every loop in a tree of parents.
pub(crate) fn loops_of(parents: &BTreeMap<Fid, Fid>) -> Vec<Fid> {
    let (mut done, mut loops): (BTreeSet<Fid>, Vec<Fid>) = (BTreeSet::new(), Vec::new());
    for start in parents.keys() {
        let (mut path, mut on_path, mut at) = (Vec::new(), BTreeSet::new(), *start);
        while !done.contains(&at) {
            if !on_path.insert(at) {
                let from = path.iter().position(|f| *f == at).unwrap_or(0);
                loops.extend(path[from..].iter().min().copied());
                break;
            }
            path.push(at);
            let Some(parent) = parents.get(&at) else { break };
            at = *parent;
        }
        done.extend(path);
    }
    loops
}

/// What is wrong with an inode: `places` has its names, `counts` entries and subdirectories of a directory, `links` what it
/// knows of second names.
fn of_inode(
    inode: &Inode,
    mut places: Vec<(Fid, u64)>,
    counts: (u64, u32),
    links: Vec<(Fid, u64)>,
    findings: &mut Vec<Finding>,
) {
    let (fid, orphan) = (inode.fid, inode.has(InodeFlags::ORPHAN));
    if places.is_empty() && !orphan && fid != Fid::ROOT {
        findings.push(Finding::Unreachable(fid));
    }
    if inode.is_dir() && places.len() > 1 {
        findings.push(Finding::DirTwice(fid));
    }
    if orphan && !places.is_empty() {
        findings.push(Finding::OrphanMark(fid));
    }
    let found = match (inode.is_dir(), orphan) {
        (true, false) => 2 + counts.1,
        _ => places.len() as u32,
    };
    if inode.nlink != found {
        findings.push(Finding::LinkCount { fid, says: inode.nlink, found });
    }
    if inode.is_dir() && inode.entries != counts.0 {
        findings.push(Finding::EntryCount { fid, says: inode.entries, found: counts.0 });
    }
    let (mut known, seconds) = (links, inode.entries);
    let wrong = !inode.is_dir() && seconds != known.len() as u64;
    if !inode.parent.is_zero() {
        known.push((inode.parent, inode.place));
    }
    known.sort_unstable();
    places.sort_unstable();
    // The root has no place in a directory, and is never without one that counts.
    let stray_root = fid == Fid::ROOT && (inode.place != 0 || orphan || inode.has(InodeFlags::LINKABLE));
    if known != places || wrong || stray_root {
        findings.push(Finding::BackPointer(fid));
    }
}
