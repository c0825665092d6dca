//! Object storage messages.
use crate::lock::{EnqueueReply, EnqueueRequest, Lvb};
use crate::{byte_enum, message};
use types::{ClientId, Extent, HandleId, ObjectId, OstIndex, WallTime};

/// [`PromiseRequest::size`] of an object that goes.
pub const REMOVED: u64 = u64::MAX;

byte_enum! {
    /// What a punch does.
    PunchKind { /// Truncate: everything from the extent's start goes, the size becomes it (and may grow to it).
        #[default] Truncate = 0, /// Deallocate the range, keep the size.
        Hole = 1, /// Read as zeros, keep space.
        Zero = 2, }
}
byte_enum! {
    /// What a seek looks for.
    SeekKind { /// Data.
        #[default] Data = 0, /// A hole.
        Hole = 1, }
}
byte_enum! {
    /// Advice of paper 004.
    Advice { /// No advice: what was advised before is withdrawn.
        #[default] None = 0, /// Keep what was read, fetch nothing.
        Cache = 1, /// Fetch and keep while nothing else wants the tier.
        Low = 2, /// Fetch and keep unless the tier is hard pressed.
        Med = 3, /// Fetch, and keep at the expense of everything below.
        High = 4, /// Will be read soon: prefetch.
        WillRead = 5, /// Will not be needed: drop.
        DontNeed = 6, }
}

impl Advice {
    /// The levels, rising, with the names that commands and xattrs have for them.
    pub const LEVELS: [(Advice, &'static str); 5] = [
        (Advice::None, "none"),
        (Advice::Cache, "cache"),
        (Advice::Low, "low"),
        (Advice::Med, "med"),
        (Advice::High, "high"),
    ];
    /// The level of a name.
    #[must_use]
    pub fn level(name: &str) -> Option<Advice> {
        Advice::LEVELS.iter().find(|(_, n)| *n == name).map(|(a, _)| *a)
    }
    /// A level's name; what is no level has none.
    #[must_use]
    pub fn name(self) -> &'static str {
        Advice::LEVELS.iter().find(|(a, _)| *a == self).map_or("", |(_, n)| n)
    }
}

impl AdvisedRange {
    /// [`AdvisedRange::refusal`] of advice that does not count while another user's does.
    pub const OUTDONE: u8 = 4;
    /// Whether it does not count while another user's does.
    #[must_use]
    pub fn is_outdone(&self) -> bool {
        self.refusal == AdvisedRange::OUTDONE
    }
    /// Whether the server took it; what it refused it shows for a while.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        let refused = self.refusal != 0 && self.error == types::FsError::NoSpace.errno() as u16;
        self.is_outdone() || !refused
    }
}

message! {
    /// Who does I/O, for scheduling and statistics.
    IoOwner {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Project.
        project: u32,
        /// Hash of the job id; 0: none.
        job: u64,
    }
    /// Whose a file is, as far as its client knows: an object that has no owner yet gets this one.
    FileOwner {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Project.
        project: u32,
    }
    /// `OstRead` request. Bulk of the reply: the bytes of all extents in order, zeros for holes, cut at the object's
    /// end.
    ReadRequest {
        /// Object.
        object: ObjectId,
        /// Ascending, disjoint.
        extents: Vec<Extent>,
        /// Lock that covers it, for the server's patience with callbacks; 0: the server locks (direct I/O without).
        lock: HandleId,
        /// A lock to ask for along with the read, as `LockEnqueue` would: if it is granted at once and covers the extents
        /// they are read under it (`lock` is not looked at), otherwise nothing is read.
        enqueue: Option<EnqueueRequest>,
        /// For scheduling.
        owner: IoOwner,
        /// Size of the application's request in bytes, for fine/coarse; 0: unknown.
        request_bytes: u32,
        /// This is readahead.
        readahead: bool,
        /// The last answer's checksum did not match: read from the store again and check.
        recheck: bool,
    }
    /// `OstRead` reply; bulk follows.
    ReadReply {
        /// Bytes delivered per extent; shorter than asked only at the object's end. Empty: nothing was read, the answer
        /// is about the lock only.
        lens: Vec<u32>,
        /// Object's size and times now.
        lvb: Lvb,
        /// Outcome of the lock that came along.
        enqueue: Option<EnqueueReply>,
    }
    /// `OstWrite` request; bulk: the bytes of all extents in order.
    WriteRequest {
        /// Object.
        object: ObjectId,
        /// Ascending, disjoint.
        extents: Vec<Extent>,
        /// Lock that covers it; 0: the server locks.
        lock: HandleId,
        /// For accounting and scheduling.
        owner: IoOwner,
        /// Modification time to record.
        mtime: WallTime,
        /// Grant that this write gives back: bytes charged when the pages became dirty.
        grant_used: u64,
        /// Grant that the client would like to have in all.
        grant_wanted: u64,
        /// Answer only when on stable storage.
        sync: bool,
        /// Milliseconds the client can wait at most (urgent lock-callback writes); 0: no mandatory deadline.
        max_service_ms: u32,
        /// Size of the application's request in bytes; 0: unknown.
        request_bytes: u32,
        /// Whose file it is.
        file: Option<FileOwner>,
    }
    /// `OstWrite` reply.
    WriteReply {
        /// More grant for the client.
        grant: u64,
        /// Object's size and times now.
        lvb: Lvb,
        /// Of whom little is left (bits: 1 the file's user, 2 its group, 4 its project): their further writes take no grant.
        tight: u8,
    }
    /// `OstPunch` request.
    PunchRequest {
        /// Object.
        object: ObjectId,
        /// What.
        kind: PunchKind,
        /// Where.
        extent: Extent,
        /// Lock that covers it; 0: the server locks.
        lock: HandleId,
        /// Modification time to record.
        mtime: WallTime,
        /// Owner.
        owner: IoOwner,
        /// Whose file it is.
        file: Option<FileOwner>,
    }
    /// Reply that carries an object's attributes.
    AttrReply {
        /// Attributes.
        lvb: Lvb,
    }
    /// `OstSync` request.
    SyncRequest {
        /// Object; zero: everything on the target.
        object: ObjectId,
        /// Also what other clients have written to the object and not written out: they are asked to.
        everyones: bool,
    }
    /// `OstStatfs` and `MdtStatfs` reply.
    StatfsReply {
        /// Index.
        ost: OstIndex,
        /// Bytes in all.
        total: u64,
        /// Bytes free.
        free: u64,
        /// Bytes that ordinary writes can still take (free less reserves and grants).
        available: u64,
        /// Objects or inodes that exist.
        files: u64,
        /// Objects or inodes that can still be made.
        files_free: u64,
        /// State letters as `lfs df` shows them: bit 0 D(egraded), 1 R(ead-only), 2 S (no space), 3 I (no inodes), 4 N (no create), 5 f (flash).
        state: u32,
    }
    /// `OstSetattr` request.
    SetattrRequest {
        /// Object.
        object: ObjectId,
        /// New owner.
        owner: IoOwner,
        /// Bits: 1 uid/gid/project, 2 mtime, 4 atime.
        valid: u32,
        /// Time.
        mtime: WallTime,
        /// Time.
        atime: WallTime,
    }
    /// `OstPrecreate` request, from the MDS.
    PrecreateRequest {
        /// First sequence number of the objects wanted.
        seq: u64,
        /// The last object id that the MDS knows to be in use; with `orphans`, every object behind it goes, for good.
        last_used: u32,
        /// Objects wanted behind `last_used`.
        count: u32,
        /// First contact after a restart: clean up objects nobody uses.
        orphans: bool,
        /// How often the metadata store was opened, by the server that asks; 0: not said. One of a lower number than another that asked
        /// is refused: its store is another server's.
        epoch: u64,
        /// Objects up to this one that the store never made are lost: they answer EIO. Others that were given out and that it never made
        /// show that it is an older copy, and the request is refused.
        lost: u32,
    }
    /// `OstPrecreate` reply: objects `first ..= last` exist now, unused.
    PrecreateReply {
        /// Last id that exists.
        last: u32,
        /// Space state, so that the allocator learns of full targets.
        statfs: StatfsReply,
        /// The first of them: ids between `last_used` and it are never used again, their objects are gone. 0:
        /// `last_used + 1`.
        first: u32,
    }
    /// `OstDestroy` request.
    DestroyRequest {
        /// Objects to remove; those that do not exist are not an error.
        objects: Vec<ObjectId>,
    }
    /// `OstSeek` request.
    SeekRequest {
        /// Object.
        object: ObjectId,
        /// From here.
        offset: u64,
        /// What.
        kind: SeekKind,
    }
    /// `OstSeek` reply.
    SeekReply {
        /// Offset found; for data `u64::MAX` when there is none behind.
        offset: u64,
        /// Object size.
        size: u64,
    }
    /// `OstAllocate` request.
    AllocateRequest {
        /// Object.
        object: ObjectId,
        /// Range to reserve.
        extent: Extent,
        /// Do not change the size.
        keep_size: bool,
        /// Owner.
        owner: IoOwner,
        /// The client's write lock over the range, or unless `keep_size` over all from its start; 0: any that it has, or the server takes one.
        lock: HandleId,
        /// Modification time to record.
        mtime: WallTime,
        /// Whose file it is.
        file: Option<FileOwner>,
    }
    /// `OstShrinkGrant` request. The answer is empty.
    ShrinkGrantRequest {
        /// The server's process that keeps the book, as the session told it: one that was started since has another.
        boot: u64,
        /// Bytes given back.
        bytes: u64,
    }
    /// `OstAskGrant` callback; answered when `OstShrinkGrant` was.
    AskGrantCallback {
        /// Bytes that the client may keep, besides what its dirty pages took.
        keep: u64,
    }
    /// `OstPromise` request, under a write lock over everything behind `size`. The answer is empty, and comes when
    /// the promise is on stable storage.
    PromiseRequest {
        /// Object.
        object: ObjectId,
        /// The client's number for the cut, as the MDS will know it.
        number: u64,
        /// The object's size after the cut; [`REMOVED`]: it goes.
        size: u64,
        /// The promise of this number is taken back: the MDS was not asked for it, or has refused it.
        withdrawn: bool,
    }
    /// `OstAskCut` callback to the MDS, which decides nothing under this number any more if it has not yet.
    AskCutCallback {
        /// Who promised the cut.
        client: ClientId,
        /// The client's number for it.
        number: u64,
    }
    /// Answer to `OstAskCut`.
    AskCutReply {
        /// It was decided, and is to be carried out.
        decided: bool,
    }
    /// `OstAdvise` request.
    AdviseRequest {
        /// Object.
        object: ObjectId,
        /// Range.
        extent: Extent,
        /// Advice.
        advice: Advice,
        /// Do not wait for it.
        background: bool,
        /// Who advises, and whose budget pays.
        owner: IoOwner,
        /// When, by the client's clock: what one call advised on several objects has the same.
        since: WallTime,
    }
    /// `OstAdvised` request.
    AdvisedRequest {
        /// Object.
        object: ObjectId,
    }
    /// Advice on a range of an object, and what came of it.
    AdvisedRange {
        /// Range, as it was advised; open-ended ones cover what the object grows by.
        extent: Extent,
        /// Advice.
        advice: Advice,
        /// Who gave it.
        owner: IoOwner,
        /// When.
        since: WallTime,
        /// Bytes that have a place in the server's memory.
        ram_placed: u64,
        /// Bytes that have a place in its fast tier.
        fast_placed: u64,
        /// Bytes that are in memory now.
        ram_resident: u64,
        /// Bytes that are in the fast tier now.
        fast_resident: u64,
        /// Pages of it that were read and found there.
        hits: u64,
        /// Bytes that are to be fetched in all.
        to_fetch: u64,
        /// Bytes of these that were fetched.
        fetched: u64,
        /// What the last fetch failed with, as the status of a reply; 0: it did not.
        error: u16,
        /// Why bytes have no place: 1 pressure, 2 no room, 3 budget, 4: another user asked for as much or more, and it counts again when that
        /// is withdrawn; 0: they have. With 1 to 3 and the error of ENOSPC it was refused, and nothing came of it.
        refusal: u8,
    }
    /// `OstChanged` request.
    ChangedRequest {
        /// Object.
        object: ObjectId,
        /// The version of an earlier answer; 0: from now on.
        since: u64,
    }
    /// `OstChanged` reply.
    ChangedReply {
        /// What to ask from next time.
        version: u64,
        /// Ranges that were changed behind `since`, ascending; an open end: it was cut there. All of it when that is not known (any more).
        extents: Vec<Extent>,
    }
    /// `OstTrace` request.
    TraceRequest {
        /// Records from this one on that the target ever kept, counted from 0; 2^64-1: none, only the figures.
        from: u64,
        /// The version of the records (`docs/spec/trace.md`) that is wanted; 0: of before there were several. EOPNOTSUPP where
        /// the server has another one.
        version: u16,
    }
    /// `OstTrace` reply.
    TraceReply {
        /// What is known of the target, one KEY=VALUE a line (`docs/spec/trace.md`).
        settings: crate::Bytes,
        /// Records that were ever kept.
        total: u64,
        /// Of those asked for, how many are not there any more; what comes begins behind them.
        lost: u64,
        /// Records as in a trace file, oldest first, at most 8,192; none: that was all.
        records: crate::Bytes,
        /// The version of the records; 0: 1.
        version: u16,
    }
    /// `OstAdvised` reply.
    AdvisedReply {
        /// By offset; refused advice behind.
        ranges: Vec<AdvisedRange>,
    }
}
