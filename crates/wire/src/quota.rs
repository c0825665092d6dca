//! Quotas: how much a user, a group or a project may have. Amounts are bytes that take space, and inodes.
use crate::shape::bits;
use crate::{Bytes, byte_enum, message};
use types::{ObjectId, OstIndex, WallTime};

byte_enum! {
    /// Whose quota it is.
    QuotaKind { /// A user's.
        #[default] User = 0, /// A group's.
        Group = 1, /// A project's.
        Project = 2, }
}

impl QuotaKind {
    /// All of them.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];
    /// Its bit in [`crate::ost::WriteReply::tight`].
    #[must_use]
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            QuotaKind::User => "user",
            QuotaKind::Group => "group",
            QuotaKind::Project => "project",
        }
    }
}

/// A share of an OST that has no end: its id has no limit.
pub const UNLIMITED: u64 = u64::MAX;

/// The number that stands for all of a kind that have no limits of their own: no user, group or project has it. Its limits are the
/// default of the kind; an OST where it has a share other than [`UNLIMITED`] asks before an id that it does not know has any bytes.
pub const EVERYBODY: u32 = u32::MAX;

bits! {
    /// Bits of [`SetQuotaRequest::set`].
    QuotaBits: u32 {
        /// `limits.block_soft`.
        BLOCK_SOFT = 1,
        /// `limits.block_hard`.
        BLOCK_HARD = 2,
        /// `limits.inode_soft`.
        INODE_SOFT = 4,
        /// `limits.inode_hard`.
        INODE_HARD = 8,
        /// `block_grace_s`, of all ids of the kind.
        BLOCK_GRACE = 16,
        /// `inode_grace_s`, of all ids of the kind.
        INODE_GRACE = 32,
        /// Not a limit: the id has none of its own any more, and the default of the kind holds for it.
        TO_DEFAULT = 64,
    }
}

bits! {
    /// Parts of limits, each of which is an id's own or the default's.
    QuotaParts: u32 {
        /// Those for bytes.
        BLOCKS = 1,
        /// Those for inodes.
        INODES = 2,
    }
}

impl QuotaParts {
    /// Both.
    pub const ALL: u32 = QuotaParts::BLOCKS | QuotaParts::INODES;
}

impl QuotaLimits {
    /// These in some parts ([`QuotaParts`]), and others in the rest.
    #[must_use]
    pub fn in_parts(&self, parts: u32, others: &QuotaLimits) -> QuotaLimits {
        let of = |part: u32| if parts & part != 0 { self } else { others };
        let (blocks, inodes) = (of(QuotaParts::BLOCKS), of(QuotaParts::INODES));
        QuotaLimits {
            block_soft: blocks.block_soft,
            block_hard: blocks.block_hard,
            inode_soft: inodes.inode_soft,
            inode_hard: inodes.inode_hard,
        }
    }
    /// The parts in which there are limits.
    #[must_use]
    pub const fn parts(&self) -> u32 {
        let blocks = if self.block_soft | self.block_hard != 0 { QuotaParts::BLOCKS } else { 0 };
        let inodes = if self.inode_soft | self.inode_hard != 0 { QuotaParts::INODES } else { 0 };
        blocks | inodes
    }
}

message! {
    /// Limits of one id; 0: there is none.
    QuotaLimits {
        /// Bytes above which the time of grace runs.
        block_soft: u64,
        /// Bytes that are not exceeded.
        block_hard: u64,
        /// Inodes above which the time of grace runs.
        inode_soft: u64,
        /// Inodes that are not exceeded.
        inode_hard: u64,
    }
    /// A user, a group or a project.
    QuotaId {
        /// Which of these.
        kind: QuotaKind,
        /// Its number.
        id: u32,
    }
    /// What an id has on one OST.
    OstUsage {
        /// The OST.
        ost: OstIndex,
        /// Bytes.
        used: u64,
        /// Bytes up to which the OST lets it write by itself; 2^64-1: it has no limit.
        share: u64,
        /// The OST does not answer: this is what it said last.
        away: bool,
        /// The OST does not know yet whose all its objects are.
        counting: bool,
    }
    /// `MdtQuota` request.
    QuotaRequest {
        /// Whose.
        kind: QuotaKind,
        /// See `kind`; 2^32-1: the default's.
        id: u32,
    }
    /// `MdtQuota` reply.
    QuotaReply {
        /// Its limits.
        limits: QuotaLimits,
        /// Inodes that it has.
        inodes: u64,
        /// When the grace for bytes ends, or has ended; 0: its bytes are within the soft limit.
        block_expires: WallTime,
        /// The same for inodes.
        inode_expires: WallTime,
        /// Seconds of grace for bytes, of all ids of the kind.
        block_grace_s: u64,
        /// The same for inodes.
        inode_grace_s: u64,
        /// The server's time.
        now: WallTime,
        /// What it has on each OST.
        osts: Vec<OstUsage>,
        /// Parts ([`QuotaParts`]) in which it has no limits of its own: those of the default hold for it, if there are any.
        by_default: u32,
    }
    /// `MdtSetQuota` request.
    SetQuotaRequest {
        /// Whose.
        kind: QuotaKind,
        /// See `kind`; 2^32-1: the default's. A default without limits is none.
        id: u32,
        /// Which of the following are set ([`QuotaBits`]).
        set: u32,
        /// New limits.
        limits: QuotaLimits,
        /// Seconds.
        block_grace_s: u64,
        /// Seconds.
        inode_grace_s: u64,
    }
    /// `MdtSetQuota` reply.
    SetQuotaReply {
        /// 0, or why nothing was changed.
        errno: u16,
        /// The same in words.
        why: Bytes,
    }
    /// How much an OST may let an id have by itself.
    QuotaShare {
        /// Whose.
        kind: QuotaKind,
        /// See `kind`; 2^32-1: that of ids which the OST does not know: it asks before they have any bytes, unless there is no limit.
        id: u32,
        /// Bytes that it has in all on the OST at most; 2^64-1: there is no limit.
        share: u64,
    }
    /// `OstQuota` request, from the MDS. The answer comes when shares that became smaller are so on stable storage.
    OstQuotaRequest {
        /// New shares. A smaller one than what is used, or is being written, becomes that.
        set: Vec<QuotaShare>,
        /// What these have is wanted, besides those in `set`.
        ask: Vec<QuotaId>,
        /// What all have that have a share here is wanted.
        all: bool,
        /// Every object of a file has an owner from now on: the OST was told by `OstOwn`.
        owned: bool,
    }
    /// `OstQuota` reply.
    OstQuotaReply {
        /// What each has.
        usages: Vec<OstQuotaUsage>,
        /// Every object of a file has an owner, as far as it has space.
        owned: bool,
        /// Grows with everything that the OST says of shares: what came before counts no more.
        told: u64,
    }
    /// What an id has on the OST that answers.
    OstQuotaUsage {
        /// Whose.
        kind: QuotaKind,
        /// See `kind`.
        id: u32,
        /// Bytes that take space.
        used: u64,
        /// Its share; 2^64-1: there is none.
        share: u64,
    }
    /// `OstAskQuota` callback to the MDS: somebody wants to write more than the share allows.
    AskQuotaCallback {
        /// Whose.
        kind: QuotaKind,
        /// See `kind`.
        id: u32,
        /// Bytes that it has, those among them that are being written.
        used: u64,
        /// Its share now.
        share: u64,
        /// Bytes that are wanted besides.
        wanted: u64,
        /// As in [`OstQuotaReply`].
        told: u64,
    }
    /// Answer to `OstAskQuota`.
    AskQuotaReply {
        /// The share from now on.
        share: u64,
    }
    /// Whose an object is.
    Ownership {
        /// The object.
        object: ObjectId,
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Project.
        project: u32,
        /// Only if it has no owner yet.
        unless_owned: bool,
    }
    /// `OstOwn` request, from the MDS: whose objects are. Objects that do not exist are skipped. The answer is empty.
    OwnRequest {
        /// In this order.
        objects: Vec<Ownership>,
    }
}
