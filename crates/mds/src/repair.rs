//! Putting a stopped store right: for `stria fsck --repair`, never for service.
//!
//! Corrects counts, and gives what has no name one in `/lost+found`: inodes that no directory has, and objects with data
//! that no file owns (each becomes a file of its own, owned by whom its data were charged to). Deletes nothing. All of it
//! is one commit.
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;
use std::sync::Arc;

use layout::xattr::{Form, encode_layout};
use layout::{Layout, Pattern, StripeObject, StripeSize};
use types::{Fid, ObjectId, OstIndex, WallTime};

use crate::check::{Finding, Report};
use crate::dirent::{self, NameHash};
use crate::keys;
use crate::kv::{Key, KvBatch, KvError, KvSnapshot, MetaKv};
use crate::record::{Counters, Inode, InodeFlags, PrecreateRow, S_IFDIR, S_IFREG};
use crate::start::get;

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

/// What was done, a sentence each.
pub type Done = Vec<String>;

/// Puts right what `report` found and can be put right, and takes `strays` in. Nothing to do: nothing is written.
///
/// # Errors
/// The store failed; then nothing changed. `Corrupt` when `/lost+found` cannot be used.
pub async fn repair(kv: &Rc<dyn MetaKv>, report: &Report, strays: &[Stray], now: WallTime) -> Result<Done, KvError> {
    let snapshot = kv.snapshot().await?;
    let sb = &report.superblock;
    let mut r = Repair {
        snapshot: &*snapshot,
        hash: NameHash { key0: sb.hash_key0, key1: sb.hash_key1, mask: sb.hash_mask },
        changed: BTreeMap::new(),
        rows: BTreeMap::new(),
        done: Vec::new(),
        now,
    };
    r.counts(report);
    let nameless: Vec<Fid> = report
        .findings
        .iter()
        .filter_map(|f| if let Finding::Unreachable(fid) = f { Some(*fid) } else { None })
        .collect();
    let mut made = 0;
    if !nameless.is_empty() || !strays.is_empty() {
        made += r.lost_found(report).await?;
        for fid in nameless {
            r.name(report, fid).await?;
        }
        for stray in strays {
            r.adopt(stray).await?;
            made += 1;
        }
    }
    let wrong = report.findings.iter().any(|f| matches!(f, Finding::InodeCount { .. }));
    if made > 0 || wrong {
        r.count_inodes(report.inodes.len() as u64 + made).await?;
    }
    let Repair { changed, mut rows, done, .. } = r;
    rows.extend(changed.into_iter().map(|(fid, inode)| (keys::inode(fid), Some(inode.encode()))));
    if !rows.is_empty() {
        kv.commit(Arc::new(KvBatch { changes: rows, ..KvBatch::default() })).await?;
    }
    Ok(done)
}

struct Repair<'a> {
    snapshot: &'a dyn KvSnapshot,
    hash: NameHash,
    changed: BTreeMap<Fid, Inode>,
    rows: BTreeMap<Key, Option<Vec<u8>>>,
    done: Done,
    now: WallTime,
}

impl Repair<'_> {
    fn inode<'m>(changed: &'m mut BTreeMap<Fid, Inode>, report: &Report, fid: Fid) -> Option<&'m mut Inode> {
        match changed.entry(fid) {
            Entry::Occupied(e) => Some(e.into_mut()),
            Entry::Vacant(e) => Some(e.insert(report.inodes.get(&fid)?.clone())),
        }
    }

    fn counts(&mut self, report: &Report) {
        for finding in &report.findings {
            let (fid, said) = match finding {
                Finding::LinkCount { fid, found, .. } if *found > 0 => (*fid, format!("link count {found}")),
                Finding::EntryCount { fid, found, .. } => (*fid, format!("{found} entries")),
                _ => continue,
            };
            let Some(inode) = Self::inode(&mut self.changed, report, fid) else { continue };
            match finding {
                Finding::LinkCount { found, .. } => inode.nlink = *found,
                Finding::EntryCount { found, .. } => inode.entries = *found,
                _ => {}
            }
            self.done.push(format!("{fid} has {said} now"));
        }
    }

    /// The directory, made when it is missing; how many inodes that made.
    async fn lost_found(&mut self, report: &Report) -> Result<u64, KvError> {
        if let Some(inode) = report.inodes.get(&LOST_FOUND) {
            let usable = inode.is_dir() && !inode.has(InodeFlags::ORPHAN) && inode.parent == Fid::ROOT;
            let damaged =
                || KvError::Corrupt { key: "/lost+found".into(), why: "it is no directory of the root".into() };
            return if usable { Ok(0) } else { Err(damaged()) };
        }
        let times = Inode { atime: self.now, mtime: self.now, ctime: self.now, btime: self.now, ..Inode::default() };
        let directory = Inode { fid: LOST_FOUND, mode: S_IFDIR | 0o700, nlink: 2, size: 4096, blocks: 8, ..times };
        self.changed.insert(LOST_FOUND, directory);
        // A file of somebody's may have the name.
        let mut name = LOST_FOUND_NAME.to_vec();
        while self.is_taken(Fid::ROOT, &name).await? {
            name.extend_from_slice(b".fsck");
        }
        self.enter(report, Fid::ROOT, &name, LOST_FOUND).await?;
        self.done.push(format!("/{} was made", String::from_utf8_lossy(&name)));
        Ok(1)
    }

    async fn name(&mut self, report: &Report, fid: Fid) -> Result<(), KvError> {
        if Self::inode(&mut self.changed, report, fid).is_none() {
            return Ok(());
        }
        let name = format!("inode-{fid}");
        self.enter(report, LOST_FOUND, name.as_bytes(), fid).await?;
        self.done.push(format!("{fid} had no name: it is /lost+found/{name} now"));
        Ok(())
    }

    async fn adopt(&mut self, stray: &Stray) -> Result<(), KvError> {
        // The file has the object's own id: no file gets one of these sequences.
        let fid = stray.object.0;
        let object = StripeObject { ost: stray.ost, object: stray.object };
        let layout = Layout::new(StripeSize::DEFAULT, Pattern::Raid0, None, vec![object])
            .map_err(|e| KvError::Corrupt { key: format!("object {}", stray.object), why: e.to_string() })?;
        let file = Inode {
            fid,
            flags: InodeFlags::HAS_LAYOUT,
            mode: S_IFREG | 0o600,
            nlink: 1,
            uid: stray.uid,
            gid: stray.gid,
            size: stray.size,
            blocks: stray.blocks,
            atime: stray.mtime,
            mtime: stray.mtime,
            ctime: self.now,
            btime: stray.mtime,
            layout_gen: 1,
            tail: encode_layout(&layout, fid, Form::Stored),
            ..Inode::default()
        };
        self.changed.insert(fid, file);
        let name = format!("object-{:04x}-{fid}", stray.ost.0);
        self.enter(&Report::default(), LOST_FOUND, name.as_bytes(), fid).await?;
        self.keep_allocated(stray).await?;
        self.done.push(format!("object {} belonged to no file: it is /lost+found/{name} now", stray.object));
        Ok(())
    }

    /// Objects behind the last one given out are removed when the OST comes: this one counts as given out.
    async fn keep_allocated(&mut self, stray: &Stray) -> Result<(), KvError> {
        let key = keys::precreate(stray.ost);
        let bytes = match self.rows.get(&key) {
            Some(row) => row.clone(),
            None => get(self.snapshot, &key).await?,
        };
        let mut row: PrecreateRow = bytes.and_then(|b| wire::decode(&b).ok()).unwrap_or_default();
        row.last_used = row.last_used.max(stray.object.0.oid);
        row.ceiling = row.ceiling.max(row.last_used);
        self.rows.insert(key, Some(wire::encode(&row)));
        Ok(())
    }

    async fn bucket(&self, dir: Fid, name: &[u8]) -> Result<(Key, u64, Vec<u8>), KvError> {
        let hash = self.hash.of(name);
        let key = keys::entry(dir, hash);
        let bytes = match self.rows.get(&key) {
            Some(row) => row.clone(),
            None => get(self.snapshot, &key).await?,
        };
        Ok((key, hash, bytes.unwrap_or_default()))
    }

    async fn is_taken(&self, dir: Fid, name: &[u8]) -> Result<bool, KvError> {
        Ok(dirent::find(&self.bucket(dir, name).await?.2, name).is_some())
    }

    /// Gives a changed inode a name in a directory.
    async fn enter(&mut self, report: &Report, dir: Fid, name: &[u8], fid: Fid) -> Result<(), KvError> {
        let (key, hash, bucket) = self.bucket(dir, name).await?;
        let full = || KvError::Corrupt { key: crate::kv::show_key(&key), why: "the bucket is full".into() };
        let (is_dir, dtype) = self.changed.get(&fid).map_or((false, 0), |i| (i.is_dir(), i.dtype()));
        let (bucket, slot) = dirent::with(&bucket, name, fid, dtype).ok_or_else(full)?;
        self.rows.insert(key, Some(bucket));
        if let Some(inode) = self.changed.get_mut(&fid) {
            (inode.parent, inode.place) = (dir, hash << dirent::SLOT_BITS | u64::from(slot));
            inode.nlink = if is_dir { inode.nlink.max(2) } else { 1 };
        }
        let now = self.now;
        if let Some(parent) = Self::inode(&mut self.changed, report, dir) {
            parent.entries += 1;
            parent.nlink += u32::from(is_dir);
            (parent.mtime, parent.ctime) = (now, now);
        }
        Ok(())
    }

    async fn count_inodes(&mut self, inodes: u64) -> Result<(), KvError> {
        let key = keys::plain(keys::COUNTERS);
        let old = get(self.snapshot, &key).await?.and_then(|b| wire::decode::<Counters>(&b).ok()).unwrap_or_default();
        self.rows.insert(key, Some(wire::encode(&Counters { inodes, ..old })));
        self.done.push(format!("{inodes} inodes are counted now"));
        Ok(())
    }
}
