//! Reading everything in a store: for `stria fsck`, never for service.
//!
//! Decides whether a store agrees with itself: every name stands for an inode, every inode is reached by as many names
//! as it says, counts are right, nothing is damaged. Reports, and lists the objects that files own so that OSTs can be
//! checked against it. Repairs nothing.
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use layout::StripeObject;
use types::{Fid, ObjectId, OstIndex};

use crate::dirent::{self, NameHash};
use crate::keys;
use crate::kv::{KvError, KvSnapshot, MetaKv, Pairs, show_key};
use crate::osts::decode_precreate;
use crate::record::{Counters, DestroyRow, Inode, InodeFlags, Superblock};
use crate::start::{StartError, all, get, read_superblock};

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
    /// The last object of each OST that a file was given: what lies behind it is removed when the server starts.
    pub last_used: BTreeMap<OstIndex, u32>,
    /// What is wrong, in order.
    pub findings: Vec<Finding>,
}

/// Reads a whole store. Memory: about 250 bytes per inode.
///
/// # Errors
/// The store is not ours, or cannot be read at all.
pub async fn check(kv: &Rc<dyn MetaKv>) -> Result<Report, StartError> {
    let snapshot = kv.snapshot().await?;
    let mut c = Checker {
        report: Report { superblock: read_superblock(&*snapshot).await?, ..Report::default() },
        ..Checker::default()
    };
    let sb = &c.report.superblock;
    c.hash = Some(NameHash { key0: sb.hash_key0, key1: sb.hash_key1, mask: sb.hash_mask });
    for (key, value) in c.readable(&*snapshot, keys::INODE).await? {
        match keys::fid_of(&key).and_then(|fid| Inode::decode(fid, &value)) {
            Some(inode) => drop(c.report.inodes.insert(inode.fid, inode)),
            None => c.damaged(&key),
        }
    }
    for (key, value) in c.readable(&*snapshot, keys::ENTRY).await? {
        c.bucket(&key, &value);
    }
    let large = c.readable(&*snapshot, keys::LAYOUT).await?;
    let orphans = c.readable(&*snapshot, keys::ORPHAN).await?;
    let links = c.readable(&*snapshot, keys::LINK).await?;
    c.links(&links);
    c.marks(&orphans);
    c.names();
    c.layouts(&large);
    c.strays(&*snapshot, &large).await?;
    for (key, value) in c.readable(&*snapshot, keys::DESTROY).await? {
        match wire::decode::<DestroyRow>(&value) {
            Ok(row) => c.report.doomed.extend(row.objects.iter().map(|o| o.object)),
            Err(_) => c.damaged(&key),
        }
    }
    for (key, value) in c.readable(&*snapshot, keys::PRECREATE).await? {
        match decode_precreate(&key, &value) {
            Ok((ost, row)) => drop(c.report.last_used.insert(ost, row.last_used)),
            Err(_) => c.damaged(&key),
        }
    }
    let counters =
        get(&*snapshot, keys::COUNTERS).await?.and_then(|v| wire::decode::<Counters>(&v).ok()).unwrap_or_default();
    let found = c.report.inodes.len() as u64;
    if counters.inodes != found {
        c.report.findings.push(Finding::InodeCount { says: counters.inodes, found });
    }
    c.report.findings.sort();
    Ok(c.report)
}

#[derive(Default)]
struct Checker {
    hash: Option<NameHash>,
    report: Report,
    /// Where each inode's names are.
    places: BTreeMap<Fid, Vec<(Fid, u64)>>,
    /// Entries and subdirectories of each directory.
    counts: BTreeMap<Fid, (u64, u32)>,
    second_links: BTreeMap<Fid, Vec<(Fid, u64)>>,
}

impl Report {
    /// Whether the next start of the servers removes an object that no file owns: it was made for a create that was not
    /// committed when everything ended.
    #[must_use]
    pub fn is_left_over(&self, ost: OstIndex, object: ObjectId) -> bool {
        let ours = object.0.seq == ObjectId::seq_of(ost) && !self.objects.contains_key(&object);
        ours && self.last_used.get(&ost).is_some_and(|last| object.0.oid > *last)
    }
}

impl Checker {
    fn damaged(&mut self, key: &[u8]) {
        self.report.findings.push(Finding::Damaged(show_key(key)));
    }

    /// All pairs of a kind; a kind with a damaged value is reported, and what can be read of it is lost.
    async fn readable(&mut self, s: &dyn KvSnapshot, prefix: u8) -> Result<Pairs, KvError> {
        match all(s, prefix).await {
            Err(KvError::Corrupt { key, .. }) => {
                self.report.findings.push(Finding::Damaged(key));
                Ok(Vec::new())
            }
            other => other,
        }
    }

    fn bucket(&mut self, key: &[u8], value: &[u8]) {
        let (Some(dir), Some(hash), true) = (keys::fid_of(key), keys::last_u64(key), dirent::is_legal(value)) else {
            return self.damaged(key);
        };
        for e in dirent::entries(value) {
            let name = String::from_utf8_lossy(e.name).into_owned();
            let cookie = hash << dirent::SLOT_BITS | u64::from(e.slot);
            self.places.entry(e.fid).or_default().push((dir, cookie));
            let count = self.counts.entry(dir).or_default();
            count.0 += 1;
            if self.hash.is_some_and(|h| h.of(e.name) != hash) {
                self.report.findings.push(Finding::MisplacedName { dir, name: name.clone() });
            }
            match self.report.inodes.get(&e.fid) {
                None => self.report.findings.push(Finding::DanglingName { dir, name: name.clone(), fid: e.fid }),
                Some(inode) if inode.is_dir() => count.1 += 1,
                Some(_) => {}
            }
            if !self.report.inodes.contains_key(&dir) {
                self.report.findings.push(Finding::NameWithoutDir { dir, name });
            }
        }
    }

    fn links(&mut self, links: &Pairs) {
        for (key, _) in links {
            let parent: Option<[u8; 16]> = key.get(17..33).and_then(|b| b.try_into().ok());
            match (keys::fid_of(key), parent, keys::last_u64(key)) {
                (Some(fid), Some(parent), Some(place)) if self.report.inodes.contains_key(&fid) => {
                    self.second_links.entry(fid).or_default().push((Fid::from_key(&parent), place));
                }
                _ => self.report.findings.push(Finding::Stray(show_key(key))),
            }
        }
    }

    fn marks(&mut self, orphans: &Pairs) {
        let marked: Vec<Fid> = orphans.iter().filter_map(|(k, _)| keys::fid_of(k)).collect();
        let flagged = |fid: &Fid| self.report.inodes.get(fid).is_some_and(|i| i.has(InodeFlags::ORPHAN));
        let mut wrong: Vec<Fid> = marked.iter().filter(|f| !flagged(f)).copied().collect();
        let all_flagged = self.report.inodes.values().filter(|i| i.has(InodeFlags::ORPHAN)).map(|i| i.fid);
        wrong.extend(all_flagged.filter(|f| !marked.contains(f)));
        self.report.findings.extend(wrong.into_iter().map(Finding::OrphanMark));
    }

    /// Names against inodes, both ways.
    fn names(&mut self) {
        let mut findings = Vec::new();
        for (fid, inode) in &self.report.inodes {
            let mut places = self.places.remove(fid).unwrap_or_default();
            let (entries, subdirs) = self.counts.get(fid).copied().unwrap_or_default();
            let orphan = inode.has(InodeFlags::ORPHAN);
            if places.is_empty() && !orphan && *fid != Fid::ROOT {
                findings.push(Finding::Unreachable(*fid));
            }
            let found = match (inode.is_dir(), orphan) {
                (true, false) => 2 + subdirs,
                _ => places.len() as u32,
            };
            if inode.nlink != found {
                findings.push(Finding::LinkCount { fid: *fid, says: inode.nlink, found });
            }
            if inode.is_dir() && inode.entries != entries {
                findings.push(Finding::EntryCount { fid: *fid, says: inode.entries, found: entries });
            }
            let mut known = self.second_links.remove(fid).unwrap_or_default();
            let seconds = known.len() as u64;
            if !inode.parent.is_zero() {
                known.push((inode.parent, inode.place));
            }
            known.sort_unstable();
            places.sort_unstable();
            if known != places || (!inode.is_dir() && inode.entries != seconds) {
                findings.push(Finding::BackPointer(*fid));
            }
        }
        self.report.findings.extend(findings);
    }

    fn layouts(&mut self, large: &Pairs) {
        let large: BTreeMap<Fid, &Vec<u8>> = large.iter().filter_map(|(k, v)| Some((keys::fid_of(k)?, v))).collect();
        let mut findings = Vec::new();
        for (fid, inode) in self.report.inodes.iter().filter(|(_, i)| i.has(InodeFlags::HAS_LAYOUT)) {
            let bytes = if inode.has(InodeFlags::LAYOUT_APART) { large.get(fid).copied() } else { Some(&inode.tail) };
            let layout = bytes.and_then(|b| layout::xattr::decode_layout(b).ok());
            let Some((_, layout)) = layout else {
                findings.push(Finding::Damaged(show_key(&keys::inode(*fid))));
                continue;
            };
            for StripeObject { object, .. } in layout.objects() {
                if let Some(first) = self.report.objects.insert(*object, *fid) {
                    findings.push(Finding::SharedObject { object: *object, first, second: *fid });
                }
            }
        }
        self.report.findings.extend(findings);
    }

    /// Xattrs and layouts against the inodes they belong to.
    async fn strays(&mut self, s: &dyn KvSnapshot, large: &Pairs) -> Result<(), KvError> {
        let xattrs = self.readable(s, keys::XATTR).await?;
        let any =
            InodeFlags::HAS_XATTRS | InodeFlags::HAS_ACL | InodeFlags::HAS_DEFAULT_ACL | InodeFlags::HAS_DIR_LAYOUT;
        for (pairs, flags) in [(&xattrs, any), (large, InodeFlags::LAYOUT_APART)] {
            for (key, _) in pairs {
                let inode = keys::fid_of(key).and_then(|f| self.report.inodes.get(&f));
                if inode.is_none_or(|i| i.flags & flags == 0) {
                    self.report.findings.push(Finding::Stray(show_key(key)));
                }
            }
        }
        Ok(())
    }
}
