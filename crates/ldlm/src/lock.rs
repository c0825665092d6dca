//! What a lock is: resource, mode, what it covers, and its two names (the server's handle, the client's cookie).
use core::fmt;
use types::{ClientId, Extent, Fid, FsError, HandleId, Instant};

use crate::LockMode;

/// The "client" that stands for the server itself: operations that run on the server and need a lock.
/// Its locks conflict with each other, are never called back (the operation ends by itself) and never time out.
pub const LOCAL: ClientId = ClientId(0);

/// Which kind of thing a resource guards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ResourceKind {
    /// The bytes of a data object: locks carry extents.
    Extent,
    /// An inode: locks carry inode bits.
    Inode,
}

/// What locks are taken on: an object or inode, by FID. Flocks have a table of their own and are no resources here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId {
    /// The object's or inode's FID.
    pub fid: Fid,
    /// Bytes or inode bits.
    pub kind: ResourceKind,
}

impl ResourceId {
    /// The bytes of object `fid`.
    #[must_use]
    pub const fn extent(fid: Fid) -> ResourceId {
        ResourceId { fid, kind: ResourceKind::Extent }
    }
    /// The inode `fid`.
    #[must_use]
    pub const fn inode(fid: Fid) -> ResourceId {
        ResourceId { fid, kind: ResourceKind::Inode }
    }
}

impl fmt::Debug for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{}", self.kind, self.fid)
    }
}

/// The client's name of a lock: chosen by the client, grows, never reused by one client incarnation.
/// An enqueue that is sent again carries the same cookie; that makes it idempotent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct LockCookie(pub u64);

/// A set of inode bits: which aspects of an inode a lock covers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct InodeBits(pub u8);

impl InodeBits {
    /// No bit.
    pub const NONE: InodeBits = InodeBits(0);
    /// The name and its binding to this inode, and who may use it (mode, owner, group).
    pub const LOOKUP: InodeBits = InodeBits(0x01);
    /// Size, times, link count; for a directory its entries.
    pub const UPDATE: InodeBits = InodeBits(0x02);
    /// The inode may be opened by its id: it stays as long as this is held, also when its last name goes.
    pub const OPEN: InodeBits = InodeBits(0x04);
    /// The file's layout.
    pub const LAYOUT: InodeBits = InodeBits(0x08);
    /// Permission attributes and ACL, where they are cached apart from LOOKUP.
    pub const PERM: InodeBits = InodeBits(0x10);
    /// Extended attributes.
    pub const XATTR: InodeBits = InodeBits(0x20);
    /// The file's bytes as a whole: a lease that lets a kernel cache them.
    pub const DATA: InodeBits = InodeBits(0x40);
    /// Every bit there is.
    pub const ALL: InodeBits = InodeBits(0x7f);

    /// Bits of either.
    #[must_use]
    pub const fn union(self, other: InodeBits) -> InodeBits {
        InodeBits(self.0 | other.0)
    }
    /// Bits of `self` that are not in `other`.
    #[must_use]
    pub const fn minus(self, other: InodeBits) -> InodeBits {
        InodeBits(self.0 & !other.0)
    }
    /// Whether they share a bit.
    #[must_use]
    pub const fn overlaps(self, other: InodeBits) -> bool {
        self.0 & other.0 != 0
    }
    /// Whether every bit of `other` is in `self`.
    #[must_use]
    pub const fn contains(self, other: InodeBits) -> bool {
        other.0 & !self.0 == 0
    }
    /// Whether no bit is set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The set bits, one by one, as bit numbers 0..7.
    pub(crate) fn each(self) -> impl Iterator<Item = u8> {
        (0..8).filter(move |b| self.0 & (1 << b) != 0)
    }
}

impl core::ops::BitOr for InodeBits {
    type Output = InodeBits;
    fn bitor(self, other: InodeBits) -> InodeBits {
        self.union(other)
    }
}

impl fmt::Debug for InodeBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = ["LOOKUP", "UPDATE", "OPEN", "LAYOUT", "PERM", "XATTR", "DATA", "?"];
        let mut first = true;
        for bit in self.each() {
            write!(f, "{}{}", if first { "" } else { "|" }, NAMES[usize::from(bit)])?;
            first = false;
        }
        if first { f.write_str("-") } else { Ok(()) }
    }
}

/// What a lock covers on its resource.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LockPolicyData {
    /// Bytes of a data object.
    Extent {
        /// The bytes; never empty. GROUP locks always cover [`Extent::ALL`].
        extent: Extent,
        /// Group id of a GROUP lock, not 0; 0 for every other mode.
        gid: u64,
    },
    /// Aspects of an inode; never empty.
    Inodebits {
        /// The bits.
        bits: InodeBits,
    },
}

impl LockPolicyData {
    /// Bytes, for every mode but GROUP.
    #[must_use]
    pub const fn extent(extent: Extent) -> LockPolicyData {
        LockPolicyData::Extent { extent, gid: 0 }
    }
    /// The whole object, shared within group `gid` (not 0).
    #[must_use]
    pub const fn group(gid: u64) -> LockPolicyData {
        LockPolicyData::Extent { extent: Extent::ALL, gid }
    }
    /// Inode bits.
    #[must_use]
    pub const fn bits(bits: InodeBits) -> LockPolicyData {
        LockPolicyData::Inodebits { bits }
    }
    /// Whether it belongs to `kind` and is legal with `mode`.
    #[must_use]
    pub fn is_legal(&self, kind: ResourceKind, mode: LockMode) -> bool {
        match (self, kind) {
            (LockPolicyData::Extent { extent, gid }, ResourceKind::Extent) => {
                extent.start < extent.end
                    && if mode == LockMode::Group { *gid != 0 && *extent == Extent::ALL } else { *gid == 0 }
            }
            (LockPolicyData::Inodebits { bits }, ResourceKind::Inode) => {
                !bits.is_empty() && InodeBits::ALL.contains(*bits) && mode != LockMode::Group
            }
            _ => false,
        }
    }
    /// Whether everything of `other` lies in `self` (and group ids are equal).
    #[must_use]
    pub fn contains(&self, other: &LockPolicyData) -> bool {
        match (self, other) {
            (LockPolicyData::Extent { extent: a, gid: g }, LockPolicyData::Extent { extent: b, gid: h }) => {
                g == h && a.contains(b)
            }
            (LockPolicyData::Inodebits { bits: a }, LockPolicyData::Inodebits { bits: b }) => a.contains(*b),
            _ => false,
        }
    }
    /// Whether they share a byte or a bit.
    #[must_use]
    pub fn overlaps(&self, other: &LockPolicyData) -> bool {
        match (self, other) {
            (LockPolicyData::Extent { extent: a, .. }, LockPolicyData::Extent { extent: b, .. }) => a.overlaps(b),
            (LockPolicyData::Inodebits { bits: a }, LockPolicyData::Inodebits { bits: b }) => a.overlaps(*b),
            _ => false,
        }
    }
    /// The bytes of an extent lock.
    #[must_use]
    pub fn as_extent(&self) -> Option<Extent> {
        if let LockPolicyData::Extent { extent, .. } = self { Some(*extent) } else { None }
    }
    /// The bits of an inode-bit lock.
    #[must_use]
    pub fn as_bits(&self) -> Option<InodeBits> {
        if let LockPolicyData::Inodebits { bits } = self { Some(*bits) } else { None }
    }
}

/// Everything both sides know about one lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockDesc {
    /// The server's name.
    pub handle: HandleId,
    /// The client's name.
    pub cookie: LockCookie,
    /// What it is on.
    pub resource: ResourceId,
    /// How it may be used.
    pub mode: LockMode,
    /// What it covers; for a granted extent lock the grown extent.
    pub data: LockPolicyData,
}

impl LockDesc {
    /// Whether the holder may read (or write) these bytes of the object: what a server checks before a bulk request.
    #[must_use]
    pub fn allows_io(&self, resource: ResourceId, extent: Extent, write: bool) -> bool {
        let reads = !matches!(self.mode, LockMode::Nl);
        let fits = self.data.as_extent().is_some_and(|held| held.contains(&extent));
        self.resource == resource && fits && if write { self.mode.writes() } else { reads }
    }
}

/// How an enqueue wants to be treated: a set of flags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct EnqueueFlags(pub u8);

impl EnqueueFlags {
    /// Wait in the queue until granted.
    pub const NONE: EnqueueFlags = EnqueueFlags(0);
    /// Refuse with [`DenyReason::WouldBlock`] rather than wait; nobody is called back.
    pub const NOWAIT: EnqueueFlags = EnqueueFlags(1);
    /// Only tell whether it would be granted now; nothing is changed, no lock is made.
    pub const TEST: EnqueueFlags = EnqueueFlags(2);
    /// Ask for size and times: grant when free, else ask the writers (glimpse callbacks) and refuse the lock.
    pub const GLIMPSE: EnqueueFlags = EnqueueFlags(4);
    /// Do not grow the extent beyond what was asked (lock ahead).
    pub const NO_EXPAND: EnqueueFlags = EnqueueFlags(8);

    /// Flags of either.
    #[must_use]
    pub const fn with(self, other: EnqueueFlags) -> EnqueueFlags {
        EnqueueFlags(self.0 | other.0)
    }
    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn has(self, other: EnqueueFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One wish for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EnqueueRequest {
    /// The client's name for the lock; the same when the request is sent again.
    pub cookie: LockCookie,
    /// What to lock.
    pub resource: ResourceId,
    /// How.
    pub mode: LockMode,
    /// Which part.
    pub data: LockPolicyData,
    /// Treatment.
    pub flags: EnqueueFlags,
    /// For [`LOCAL`] inode-bit requests: the client whose operation this is; its own locks do not stand in the way
    /// (it learns what changed from the reply). Taking them back would deadlock with its kernel's inode locks.
    pub on_behalf: Option<ClientId>,
}

impl EnqueueRequest {
    /// A plain request that waits.
    #[must_use]
    pub const fn new(cookie: LockCookie, resource: ResourceId, mode: LockMode, data: LockPolicyData) -> Self {
        EnqueueRequest { cookie, resource, mode, data, flags: EnqueueFlags::NONE, on_behalf: None }
    }
    /// The same with `flags` added.
    #[must_use]
    pub const fn flags(mut self, flags: EnqueueFlags) -> Self {
        self.flags = self.flags.with(flags);
        self
    }
    /// The same on behalf of `client`.
    #[must_use]
    pub const fn on_behalf(mut self, client: ClientId) -> Self {
        self.on_behalf = Some(client);
        self
    }
}

/// Why no lock was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DenyReason {
    /// It would have to wait and asked not to.
    WouldBlock,
    /// Mode, data and resource do not fit together.
    Invalid,
    /// A table is full.
    NoLocks,
    /// A glimpse: writers were asked instead (how many; 0: nobody can know more than the server does).
    Glimpse {
        /// Glimpse callbacks sent.
        asked: u32,
    },
    /// Waiting would close a cycle of waiting owners.
    Deadlock,
    /// Its own client withdrew it.
    Cancelled,
    /// The client was evicted.
    Evicted,
    /// There is no such resource, or none any more.
    Gone,
}

impl DenyReason {
    /// What a program sees.
    #[must_use]
    pub const fn error(self) -> FsError {
        match self {
            DenyReason::WouldBlock | DenyReason::Glimpse { .. } => FsError::WouldBlock,
            DenyReason::Invalid => FsError::Invalid,
            DenyReason::NoLocks => FsError::NoLocks,
            DenyReason::Deadlock => FsError::Deadlock,
            DenyReason::Cancelled => FsError::Interrupted,
            DenyReason::Evicted => FsError::Io,
            DenyReason::Gone => FsError::NotFound,
        }
    }
}

/// The answer to an enqueue: what the reply carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EnqueueOutcome {
    /// The lock is held from now on; its extent may be larger than asked for.
    Granted(LockDesc),
    /// It waits; a completion callback follows.
    Waiting(HandleId),
    /// No lock.
    Denied(DenyReason),
}

/// A message that the server must send. Sending in order is best (a completion comes before the blocking callback of the
/// same lock), but the client copes with any order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Ask a holder to give its lock back: flush, drop, cancel.
    SendBlocking {
        /// The holder.
        client: ClientId,
        /// Its lock.
        lock: LockDesc,
        /// Mode of the lock that is wanted (what the holder would have to downgrade below).
        wanted_mode: LockMode,
        /// What is wanted.
        wanted: LockPolicyData,
        /// When the holder is evicted if nothing was heard.
        deadline: Instant,
    },
    /// Tell a waiter that it holds the lock now.
    SendCompletion {
        /// The waiter.
        client: ClientId,
        /// The lock as granted.
        lock: LockDesc,
    },
    /// Ask a writer for size and times.
    SendGlimpse {
        /// The writer.
        client: ClientId,
        /// Its lock with the highest end.
        lock: LockDesc,
    },
    /// A waiting flock request is granted.
    FlockGranted {
        /// Whose.
        client: ClientId,
        /// Which request.
        cookie: LockCookie,
    },
    /// A waiting flock request fails.
    FlockDenied {
        /// Whose.
        client: ClientId,
        /// Which request.
        cookie: LockCookie,
        /// Why.
        reason: DenyReason,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Extent;

    #[test]
    fn data_that_does_not_fit_its_resource_or_mode_is_illegal() {
        let (e, i) = (ResourceKind::Extent, ResourceKind::Inode);
        assert!(LockPolicyData::extent(Extent::new(0, 1)).is_legal(e, LockMode::Pw));
        assert!(!LockPolicyData::extent(Extent::EMPTY).is_legal(e, LockMode::Pw));
        assert!(!LockPolicyData::extent(Extent::new(0, 1)).is_legal(i, LockMode::Pw));
        assert!(!LockPolicyData::extent(Extent::ALL).is_legal(e, LockMode::Group));
        assert!(LockPolicyData::group(7).is_legal(e, LockMode::Group));
        assert!(!LockPolicyData::group(7).is_legal(e, LockMode::Pr));
        assert!(LockPolicyData::bits(InodeBits::LOOKUP).is_legal(i, LockMode::Pr));
        assert!(!LockPolicyData::bits(InodeBits::NONE).is_legal(i, LockMode::Pr));
        assert!(!LockPolicyData::bits(InodeBits(0x80)).is_legal(i, LockMode::Pr));
        assert!(!LockPolicyData::bits(InodeBits::LOOKUP).is_legal(i, LockMode::Group));
    }
}
