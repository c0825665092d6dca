//! What the values of the store mean: inodes, and the small records. Specified in `docs/spec/mdt-store.md`.
//!
//! Inodes are encoded by hand, for every operation reads and writes some; the rest are length-prefixed records that
//! grow by appending. Decoders take any bytes without a panic.
use std::collections::BTreeSet;

use types::{Fid, FsError, ObjectId, Origin, OstIndex, Transno, WallTime};
use wire::Bytes;
use wire::mdt::{Attr, AttrFlags};
use wire::quota::{QuotaKind, QuotaLimits};

/// Version byte of inode records.
pub const INODE_VERSION: u8 = 1;
/// Bytes of an inode record before its tail.
pub const INODE_HEAD_BYTES: usize = 140;
/// Layouts up to this size live in the inode.
pub const INLINE_LAYOUT_BYTES_MAX: usize = 264;

/// Bits of [`Inode::flags`].
#[derive(Clone, Copy, Debug)]
pub struct InodeFlags;
impl InodeFlags {
    /// Somebody had it open for writing: size, blocks and mtime may be wrong.
    pub const SIZE_UNKNOWN: u16 = 1;
    /// It has no name (any more) and goes with its last open.
    pub const ORPHAN: u16 = 2;
    /// It has xattrs besides ACL and layout.
    pub const HAS_XATTRS: u16 = 4;
    /// It has an access ACL.
    pub const HAS_ACL: u16 = 8;
    /// It has a default ACL.
    pub const HAS_DEFAULT_ACL: u16 = 16;
    /// It has a layout.
    pub const HAS_LAYOUT: u16 = 32;
    /// The layout is under a key of its own.
    pub const LAYOUT_APART: u16 = 64;
    /// A directory with a default layout.
    pub const HAS_DIR_LAYOUT: u16 = 128;
    /// Made by O_TMPFILE without O_EXCL: a link may give it a name.
    pub const LINKABLE: u16 = 256;
    /// Where the level of advice begins (three bits): what a directory gives to new files, what a file was given.
    pub const ADVICE_SHIFT: u16 = 9;
    /// The bits of the level of advice.
    pub const ADVICE: u16 = 7 << InodeFlags::ADVICE_SHIFT;
    /// Every bit that means something.
    pub const ALL: u16 = 511 | InodeFlags::ADVICE;
}

/// Type bits of a mode.
pub const S_IFMT: u32 = 0o170_000;
/// Directory.
pub const S_IFDIR: u32 = 0o040_000;
/// Regular file.
pub const S_IFREG: u32 = 0o100_000;
/// Symbolic link.
pub const S_IFLNK: u32 = 0o120_000;
/// FIFO.
pub const S_IFIFO: u32 = 0o010_000;
/// Character device.
pub const S_IFCHR: u32 = 0o020_000;
/// Block device.
pub const S_IFBLK: u32 = 0o060_000;
/// Socket.
pub const S_IFSOCK: u32 = 0o140_000;
/// Set user id on execution.
pub const S_ISUID: u32 = 0o4000;
/// Set group id on execution; on directories: group is inherited.
pub const S_ISGID: u32 = 0o2000;
/// Sticky.
pub const S_ISVTX: u32 = 0o1000;
/// Group may execute.
pub const S_IXGRP: u32 = 0o010;

/// An inode.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Inode {
    /// Its id; the key, not part of the value.
    pub fid: Fid,
    /// See [`InodeFlags`].
    pub flags: u16,
    /// Type and permissions.
    pub mode: u32,
    /// Links; of a directory 2 + its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub project: u32,
    /// Device of special files.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Access.
    pub atime: WallTime,
    /// Modification.
    pub mtime: WallTime,
    /// Change.
    pub ctime: WallTime,
    /// Birth.
    pub btime: WallTime,
    /// Grows with every change of the layout.
    pub layout_gen: u32,
    /// Directory of the first link; zero: it has none.
    pub parent: Fid,
    /// Position (cookie) of the first link in `parent`.
    pub place: u64,
    /// Entries of a directory; links that have a key of their own for others.
    pub entries: u64,
    /// Of files: the transaction with which the size was told. What is told before the store's horizon is doubtful.
    pub sized: u64,
    /// A file's layout when small; a symlink's target.
    pub tail: Vec<u8>,
}

impl Inode {
    /// Type bits.
    #[must_use]
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }
    /// Directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }
    /// Regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind() == S_IFREG
    }
    /// Symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.kind() == S_IFLNK
    }
    /// Whether all of `flags` are set.
    #[must_use]
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
    /// Sets or clears `flags`.
    pub fn set(&mut self, flags: u16, on: bool) {
        self.flags = if on { self.flags | flags } else { self.flags & !flags };
    }
    /// The level of advice, as [`wire::ost::Advice`] counts; 0: none.
    #[must_use]
    pub fn advice(&self) -> u16 {
        (self.flags & InodeFlags::ADVICE) >> InodeFlags::ADVICE_SHIFT
    }
    /// Sets the level of advice, 0..=4.
    pub fn set_advice(&mut self, level: u16) {
        self.flags = self.flags & !InodeFlags::ADVICE | level << InodeFlags::ADVICE_SHIFT;
    }
    /// The size counts: it was told with transaction `transno`.
    pub fn know_size(&mut self, transno: u64) {
        self.set(InodeFlags::SIZE_UNKNOWN, false);
        self.sized = transno;
    }
    /// DT_* type for directory entries.
    #[must_use]
    pub fn dtype(&self) -> u8 {
        ((self.mode & S_IFMT) >> 12) as u8
    }
    /// What programs see.
    #[must_use]
    pub fn attr(&self) -> Attr {
        let mut flags = 0;
        if !self.has(InodeFlags::SIZE_UNKNOWN) {
            flags |= AttrFlags::SIZE_KNOWN;
        }
        if self.has(InodeFlags::HAS_LAYOUT) {
            flags |= AttrFlags::HAS_LAYOUT;
        }
        if self.flags & (InodeFlags::HAS_XATTRS | InodeFlags::HAS_DEFAULT_ACL | InodeFlags::HAS_DIR_LAYOUT) != 0 {
            flags |= AttrFlags::HAS_XATTRS;
        }
        if self.has(InodeFlags::HAS_ACL) {
            flags |= AttrFlags::HAS_ACL;
        }
        if self.has(InodeFlags::ORPHAN) {
            flags |= AttrFlags::ORPHAN;
        }
        flags |= u32::from(self.advice()) << AttrFlags::ADVICE_SHIFT;
        Attr {
            fid: self.fid,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            flags,
            project: self.project,
            layout_gen: self.layout_gen,
        }
    }

    /// The value's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(INODE_HEAD_BYTES + self.tail.len());
        b.push(INODE_VERSION);
        b.push(0);
        b.extend_from_slice(&self.flags.to_le_bytes());
        for v in [self.mode, self.nlink, self.uid, self.gid, self.project] {
            b.extend_from_slice(&v.to_le_bytes());
        }
        for v in [self.rdev, self.size, self.blocks] {
            b.extend_from_slice(&v.to_le_bytes());
        }
        for t in [self.atime, self.mtime, self.ctime, self.btime] {
            b.extend_from_slice(&t.0.to_le_bytes());
        }
        b.extend_from_slice(&self.layout_gen.to_le_bytes());
        b.extend_from_slice(&self.parent.seq.to_le_bytes());
        b.extend_from_slice(&self.parent.oid.to_le_bytes());
        b.extend_from_slice(&self.parent.ver.to_le_bytes());
        b.extend_from_slice(&self.place.to_le_bytes());
        b.extend_from_slice(&self.entries.to_le_bytes());
        b.extend_from_slice(&self.sized.to_le_bytes());
        b.extend_from_slice(&[0; 12]);
        b.extend_from_slice(&(self.tail.len() as u32).to_le_bytes());
        debug_assert_eq!(b.len(), INODE_HEAD_BYTES);
        b.extend_from_slice(&self.tail);
        b
    }

    /// Reads a value; `None` when the bytes are not an inode of this version.
    #[must_use]
    pub fn decode(fid: Fid, b: &[u8]) -> Option<Inode> {
        let (head, tail) = b.split_at_checked(INODE_HEAD_BYTES)?;
        let u16_at = |at: usize| u16::from_le_bytes(head[at..at + 2].try_into().expect("inside the head"));
        let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("inside the head"));
        let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("inside the head"));
        let time_at = |at: usize| WallTime(u64_at(at) as i64);
        let flags = u16_at(2);
        let reserved_zero = head[1] == 0 && head[124..136].iter().all(|b| *b == 0);
        if head[0] != INODE_VERSION
            || !reserved_zero
            || flags & !InodeFlags::ALL != 0
            || flags & InodeFlags::ADVICE > (wire::ost::Advice::High as u16) << InodeFlags::ADVICE_SHIFT
            || u32_at(136) as usize != tail.len()
        {
            return None;
        }
        Some(Inode {
            fid,
            flags,
            mode: u32_at(4),
            nlink: u32_at(8),
            uid: u32_at(12),
            gid: u32_at(16),
            project: u32_at(20),
            rdev: u64_at(24),
            size: u64_at(32),
            blocks: u64_at(40),
            atime: time_at(48),
            mtime: time_at(56),
            ctime: time_at(64),
            btime: time_at(72),
            layout_gen: u32_at(80),
            parent: Fid { seq: u64_at(84), oid: u32_at(92), ver: u32_at(96) },
            place: u64_at(100),
            entries: u64_at(108),
            sized: u64_at(116),
            tail: tail.to_vec(),
        })
    }
}

wire::message! {
    /// Identity of a store; written by mkfs, never changed.
    Superblock {
        /// [`SUPER_MAGIC`].
        magic: u64,
        /// [`FORMAT_VERSION`].
        version: u32,
        /// Cluster.
        cluster: u64,
        /// File system name.
        fsname: Bytes,
        /// This store.
        uuid: u64,
        /// Key of the name hash.
        hash_key0: u64,
        /// Key of the name hash.
        hash_key1: u64,
        /// Bits of the name hash that are used; all ones but in tests.
        hash_mask: u64,
        /// When it was made.
        made: WallTime,
    }
    /// Written with every batch.
    Counters {
        /// Last transaction in the store with all before; while replays come, the last of the boot before.
        transno: u64,
        /// Inodes.
        inodes: u64,
        /// A client did not come back to a recovery whose end is not in the store: what others replay may rest on what it did.
        gap: bool,
        /// The last boot if it committed before it answered what rested on another client's change, else an earlier one or 0:
        /// then replays of different clients are independent of each other.
        sharing: u64,
    }
    /// Which sizes are doubtful.
    HorizonRow {
        /// Those told before this transaction.
        before: u64,
        /// Sizes that clients told who are gone are being marked as unknown: a start that finds this doubts all.
        doubting: bool,
    }
    /// What was decided about a cut of a striped file.
    CutRow {
        /// Whether it is carried out.
        decided: bool,
        /// Its place among all decisions.
        order: u64,
        /// The file; zero when an OST asked first.
        fid: Fid,
    }
    /// Somebody for whom records of the changelog are kept.
    ChangelogUserRow {
        /// Its number.
        user: u32,
        /// The last record that it has taken in.
        index: u64,
        /// The number by which it asked to be registered.
        request: u64,
        /// When it last said how far it is.
        seen: WallTime,
    }
    /// Indices of the changelog that no record has, for the store was put back from a copy.
    ChangelogGapRow {
        /// The first of them.
        first: u64,
        /// The index behind the last of them.
        next: u64,
    }
    /// The changelog, beside its records.
    ChangelogRow {
        /// No record with this index or a higher one was written before this row.
        next: u64,
        /// The user who came last.
        last_user: u32,
        /// The number by which the last user that went asked to.
        last_removed: u64,
        /// Its users, as they came.
        users: Vec<ChangelogUserRow>,
        /// Gaps that some user has not come past yet, in order: one for each time that the store was put back.
        gaps: Vec<ChangelogGapRow>,
    }
    /// What one OST may let an id have, and what that has there.
    ShareRow {
        /// The OST.
        ost: OstIndex,
        /// Bytes that it has, as was heard last.
        used: u64,
        /// Bytes that it may have; 2^64-1: there is no limit.
        share: u64,
    }
    /// Limits of a user, a group or a project.
    QuotaRow {
        /// The limits.
        limits: QuotaLimits,
        /// When grace for bytes ends; 0: they are within the soft limit.
        block_expires: WallTime,
        /// The same for inodes.
        inode_expires: WallTime,
        /// Each OST's share of the bytes.
        shares: Vec<ShareRow>,
        /// Parts ([`wire::quota::QuotaParts`]) that are its own although there is no limit; those with one are in any case. In the others the
        /// default's hold, which are not repeated here.
        own: u32,
    }
    /// Seconds of grace, plus one; 0: a week.
    GraceRow {
        /// Of users, for bytes.
        user_block: u64,
        /// Of users, for inodes.
        user_inode: u64,
        /// Of groups, for bytes.
        group_block: u64,
        /// Of groups, for inodes.
        group_inode: u64,
        /// Of projects, for bytes.
        project_block: u64,
        /// Of projects, for inodes.
        project_inode: u64,
    }
    /// Objects whose OSTs are to be told whose they are.
    OwnRow {
        /// Which.
        objects: Vec<DestroyObject>,
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Project.
        project: u32,
    }
    /// A client that the store knows.
    SessionRow {
        /// Format, 1.
        version: u8,
        /// What is remembered of the client's identity; 0: nothing.
        binding: u64,
        /// Which process it was: see [`types::Origin`].
        host: u64,
        /// See `host`.
        process: u64,
        /// See `host`.
        machine: u64,
        /// See `host`.
        boot: u64,
        /// It has nothing to replay, and holds something of the following inodes only.
        quiet: bool,
        /// Checksums of their ids, 4 bytes each.
        held: Bytes,
        /// Of those that it has open for writing.
        written: Bytes,
    }
    /// A reply kept for its slot.
    ReplyRow {
        /// Request.
        xid: u64,
        /// Transaction.
        transno: u64,
        /// 0 or errno.
        status: u16,
        /// Body.
        body: Bytes,
    }
    /// Allocation state of an OST.
    PrecreateRow {
        /// Last object id given to a file.
        last_used: u32,
        /// No object above was ever given out.
        ceiling: u32,
        /// The store was put back from a copy: the OST may have objects that are newer, and keeps them.
        newer: bool,
        /// While replays come: the first object that `unreplayed` tells of.
        unreplayed_from: u32,
        /// One bit for each object from there on, the lowest one of a byte first: set if it was, or may have been, given out in a
        /// create that nobody has replayed yet. They go when the recovery is over, whichever boot that is.
        unreplayed: Bytes,
        /// The OST has said that transactions up to here are on stable storage.
        committed: Transno,
    }
    /// An object that no file has any more.
    DestroyObject {
        /// Where.
        ost: OstIndex,
        /// Which.
        object: ObjectId,
    }
    /// Objects to destroy.
    DestroyRow {
        /// Which.
        objects: Vec<DestroyObject>,
    }
}

impl SessionRow {
    /// The row of a client's session with what is known of its process.
    #[must_use]
    pub fn new(binding: u64, origin: Origin) -> SessionRow {
        let Origin { machine, boot, host, process } = origin;
        SessionRow { version: 1, binding, host, process, machine, boot, ..SessionRow::default() }
    }
    /// Which process the client was.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin { machine: self.machine, boot: self.boot, host: self.host, process: self.process }
    }
}

impl GraceRow {
    /// A week.
    const DEFAULT_S: u64 = 7 * 24 * 3600;

    fn fields(&mut self, kind: QuotaKind) -> (&mut u64, &mut u64) {
        match kind {
            QuotaKind::User => (&mut self.user_block, &mut self.user_inode),
            QuotaKind::Group => (&mut self.group_block, &mut self.group_inode),
            QuotaKind::Project => (&mut self.project_block, &mut self.project_inode),
        }
    }
    /// Seconds of a kind: for bytes, for inodes.
    #[must_use]
    pub fn of(&self, kind: QuotaKind) -> (u64, u64) {
        let mut row = self.clone();
        let (block, inode) = row.fields(kind);
        let seconds = |stored: &u64| stored.checked_sub(1).unwrap_or(GraceRow::DEFAULT_S);
        (seconds(block), seconds(inode))
    }
    /// Sets them.
    pub fn set(&mut self, kind: QuotaKind, block_s: u64, inode_s: u64) {
        let (block, inode) = self.fields(kind);
        (*block, *inode) = (block_s.saturating_add(1), inode_s.saturating_add(1));
    }
}

/// Objects of one OST that a recovery may find lost, at most; a run of ready objects is a 64th of it.
pub const LOST_OBJECTS_MAX: u32 = 1 << 16;

impl PrecreateRow {
    /// Objects that were given out, or may have been, in creates that the store does not have: at most [`LOST_OBJECTS_MAX`] that a
    /// recovery left, and as many of the last boot. What a store that was put back does not have is not lost.
    #[must_use]
    pub fn may_be_lost(&self) -> BTreeSet<u32> {
        if self.newer {
            return BTreeSet::new();
        }
        let newest = self.ceiling.min(self.last_used.saturating_add(LOST_OBJECTS_MAX));
        self.unreplayed().chain((self.last_used..newest).map(|id| id + 1)).collect()
    }
    /// Those that a recovery left which did not come to its end.
    pub(crate) fn unreplayed(&self) -> impl Iterator<Item = u32> {
        let bytes = self.unreplayed.iter().take(LOST_OBJECTS_MAX as usize / 8).zip(0u32..);
        let set =
            bytes.flat_map(|(byte, i)| (0..8).filter(move |bit| byte >> bit & 1 != 0).map(move |bit| i * 8 + bit));
        set.filter_map(|behind| self.unreplayed_from.checked_add(behind))
    }
    /// Says which ones a recovery has left so far.
    #[must_use]
    pub fn with_unreplayed(mut self, objects: &BTreeSet<u32>) -> PrecreateRow {
        self.unreplayed_from = objects.first().copied().unwrap_or(0);
        self.unreplayed.0.clear();
        let from = self.unreplayed_from;
        for behind in objects.iter().map(|id| id - from).take_while(|b| *b < LOST_OBJECTS_MAX) {
            let byte = behind as usize / 8;
            self.unreplayed.0.resize(byte + 1, 0);
            self.unreplayed.0[byte] |= 1 << (behind % 8);
        }
        self
    }
    /// Whether the end of the recovery removes an object, if nobody replays its create until then.
    #[must_use]
    pub fn is_left_over(&self, object: u32) -> bool {
        let behind = object.wrapping_sub(self.unreplayed_from) as usize;
        let left = || self.unreplayed.get(behind / 8).is_some_and(|byte| byte >> (behind % 8) & 1 != 0);
        !self.newer && (object > self.last_used || behind < LOST_OBJECTS_MAX as usize && left())
    }
    /// A file has an object: it is not lost.
    pub fn keep(&mut self, object: u32) {
        let behind = object.wrapping_sub(self.unreplayed_from) as usize;
        if let Some(byte) = self.unreplayed.0.get_mut(behind / 8) {
            *byte &= !(1 << (behind % 8));
        }
    }
}

/// "STRIAMDT", little-endian.
pub const SUPER_MAGIC: u64 = u64::from_le_bytes(*b"STRIAMDT");
/// The store format this build reads and writes.
pub const FORMAT_VERSION: u32 = 4;

/// Reads a record of the length-prefixed kind.
///
/// # Errors
/// `Corrupt`, with a log line that names the key.
pub fn decode_row<T: wire::Decode>(key: &[u8], value: &[u8]) -> Result<T, FsError> {
    wire::decode(value).map_err(|e| {
        tracing::error!(key = crate::kv::show_key(key), "damaged record: {e}");
        FsError::Corrupt
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Inode {
        Inode {
            fid: Fid::new(0x2_0000_0401, 5),
            flags: InodeFlags::HAS_LAYOUT | InodeFlags::SIZE_UNKNOWN,
            mode: S_IFREG | 0o644,
            nlink: 1,
            uid: 1000,
            gid: 100,
            project: 7,
            rdev: 0,
            size: 0x1122_3344_5566_7788,
            blocks: 8,
            atime: WallTime(1),
            mtime: WallTime(-2),
            ctime: WallTime(3),
            btime: WallTime(4),
            layout_gen: 9,
            parent: Fid::ROOT,
            place: 0x0102_0304_0506_0780,
            entries: 0,
            sized: 0,
            tail: b"tail".to_vec(),
        }
    }

    #[test]
    fn objects_that_a_recovery_left_are_told_again_whatever_lies_between_them() {
        let row = PrecreateRow { last_used: 90_000, ceiling: 90_002, ..PrecreateRow::default() };
        let left: BTreeSet<u32> = [7, 8, 14, 15, 16, 7 + LOST_OBJECTS_MAX - 1, 7 + LOST_OBJECTS_MAX].into();
        let mut told = row.clone().with_unreplayed(&left);
        assert_eq!(told.unreplayed.len(), LOST_OBJECTS_MAX as usize / 8);
        let known = left.into_iter().take(6).chain([90_001, 90_002]);
        assert_eq!(told.may_be_lost(), known.collect::<BTreeSet<u32>>(), "the seventh is beyond the limit");
        assert!([7, 16, 90_001].iter().all(|id| told.is_left_over(*id)), "two bitmap bytes, and behind the last one");
        assert!(![6, 9, 90_000].iter().any(|id| told.is_left_over(*id)));
        told.keep(8);
        told.keep(9);
        assert!(!told.may_be_lost().contains(&8) && told.may_be_lost().len() == 7);
        assert_eq!(told.clone().with_unreplayed(&BTreeSet::new()), row);
        assert_eq!(PrecreateRow { newer: true, ..told }.may_be_lost(), BTreeSet::new());
        let unreplayed = Bytes::from(&[3][..]);
        let last = PrecreateRow { unreplayed_from: u32::MAX, unreplayed, ..PrecreateRow::default() };
        assert_eq!(last.may_be_lost(), [u32::MAX].into(), "there is none behind the last");
    }

    #[test]
    fn an_inode_with_a_wrong_version_reserved_byte_flag_or_length_is_refused() {
        let good = sample().encode();
        for (at, value) in [(0, 2), (1, 1), (3, 0x80), (124, 1), (136, 5)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(Inode::decode(Fid::ROOT, &bad), None, "byte {at}");
        }
        assert_eq!(Inode::decode(Fid::ROOT, &good[..139]), None);
    }
}
