//! What an OST asks of the thing that keeps its bytes.
//!
//! A store works in whole blocks of 4 KiB with a checksum each; bytes within blocks, locks, caching and scheduling are
//! the OST's business. Every change is one [`Update`] of one object, applied at one moment and numbered with a
//! transaction; the answer comes before the commit, and [`ObjectStore::last_committed`] tells what a power loss can no
//! longer take. A store that failed a write or a sync latches: everything fails until it is opened again.

pub mod conformance;
mod disk;
mod emulated;
mod memory;
mod null;
mod usage;
mod volatile;

pub use devices::DeviceProfile;
pub use disk::{DiskIo, DiskOp, DiskRun, DiskStats};
pub use emulated::{EmulatedFile, EmulatedStore};
pub use memory::MemoryStore;
pub use null::{NullStore, pattern_page};
pub use usage::{Charged, Usages};
pub use volatile::{apply_attr, apply_size};

pub use crate::pages::{ZeroPages, crc_of_zeros};
pub use ptlrpc::ReplyRecord;

use frames::Bulk;
use nrs::Medium;
use rt::LocalFuture;
use types::scrub::Looked;
use types::{ClientId, Extent, FsError, ObjectId, Origin, OstIndex, Transno, WallTime, Xid};
use wire::Crc;
use wire::connect::Opening;

/// Bytes of one block: the unit of mapping and of checksums at rest.
pub const BLOCK_BYTES: u64 = types::PAGE_BYTES as u64;

/// Largest size of an object, in bytes: 2^63 - 1, as in POSIX.
pub const OBJECT_BYTES_MAX: u64 = i64::MAX as u64;

/// Outcome of a store operation.
pub type StoreResult<T> = Result<T, FsError>;

/// `count` blocks from block `first` of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockRange {
    /// First block.
    pub first: u64,
    /// Number of blocks.
    pub count: u64,
}

impl BlockRange {
    /// Blocks `first..end`.
    ///
    /// # Panics
    /// When `end < first`.
    #[must_use]
    pub fn new(first: u64, end: u64) -> BlockRange {
        assert!(first <= end, "a block range ends before it starts");
        BlockRange { first, count: end - first }
    }
    /// One past the last block.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.count)
    }
    /// Whether it holds no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// Whether both share a block.
    #[must_use]
    pub fn overlaps(&self, other: &BlockRange) -> bool {
        self.first < other.end() && other.first < self.end()
    }
}

/// Who a store belongs to, written when it was made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoreIdentity {
    /// Cluster id.
    pub cluster: u64,
    /// File system name, 1..=8 characters.
    pub fsname: String,
    /// Index of the OST.
    pub ost: OstIndex,
    /// Random identity of this store.
    pub uuid: u64,
}

impl StoreIdentity {
    /// The target's name, like `stria-OST0000`.
    #[must_use]
    pub fn target(&self) -> String {
        format!("{}-OST{:04x}", self.fsname, self.ost.0)
    }
}

/// Who an object's bytes are charged to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub project: u32,
}

/// An object's attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ObjectAttr {
    /// Bytes.
    pub size: u64,
    /// Blocks of [`BLOCK_BYTES`] that take space.
    pub blocks: u64,
    /// Modification.
    pub mtime: WallTime,
    /// Access.
    pub atime: WallTime,
    /// Change.
    pub ctime: WallTime,
    /// Owner; `None`: nobody has said so far.
    pub owner: Option<Owner>,
}

/// Whole blocks of data with the checksum of each.
#[derive(Clone, Debug, Default)]
pub struct BlockRun {
    /// First block in the object.
    pub first: u64,
    /// The bytes: page-aligned pieces of whole frames, `crcs.len()` blocks in all.
    pub bulk: Bulk,
    /// crc32c of each block.
    pub crcs: Vec<Crc>,
}

impl BlockRun {
    /// The blocks.
    #[must_use]
    pub fn range(&self) -> BlockRange {
        BlockRange { first: self.first, count: self.crcs.len() as u64 }
    }
}

/// What a read delivers: `crcs.len()` blocks, zeros where nothing is stored, each matching its checksum.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// The bytes, whole pages.
    pub bulk: Bulk,
    /// crc32c of each block.
    pub crcs: Vec<Crc>,
}

/// What an update does to the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SizeRule {
    /// Nothing.
    #[default]
    Keep,
    /// Grows it to at least this many bytes.
    AtLeast(u64),
    /// Sets it; blocks that lie wholly behind it go. The caller zeroes the rest of the last block.
    Exactly(u64),
}

/// What an update does to the modification time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TimeRule {
    /// Nothing.
    #[default]
    Keep,
    /// Raises it to this; an older value changes nothing.
    AtLeast(WallTime),
    /// Sets it.
    Exactly(WallTime),
}

impl TimeRule {
    /// `old` after the rule.
    #[must_use]
    pub fn apply(self, old: WallTime) -> WallTime {
        match self {
            TimeRule::Keep => old,
            TimeRule::AtLeast(t) => old.max(t),
            TimeRule::Exactly(t) => t,
        }
    }
}

/// What an update does to the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OwnerRule {
    /// Nothing.
    #[default]
    Keep,
    /// Sets it where there is none.
    IfNone(Owner),
    /// Sets it.
    Is(Owner),
}

impl OwnerRule {
    /// `old` after the rule.
    #[must_use]
    pub fn apply(self, old: Option<Owner>) -> Option<Owner> {
        match self {
            OwnerRule::Keep => old,
            OwnerRule::IfNone(owner) => old.or(Some(owner)),
            OwnerRule::Is(owner) => Some(owner),
        }
    }
}

/// The request that a change answers: what was answered is kept in the change's own commit, so that the request is never
/// carried out twice, whenever the target dies.
#[derive(Clone, Copy, Debug)]
pub struct Answers {
    /// Whose request. A client without a remembered session has no answers kept.
    pub client: ClientId,
    /// Its reply slot; a later answer takes the place of an earlier one.
    pub slot: u16,
    /// The request.
    pub xid: Xid,
    /// The answer's body, from the object as the change left it.
    pub body: fn(&ObjectAttr) -> Vec<u8>,
}

impl Answers {
    /// What is to be kept of the answer, once the change was carried out.
    #[must_use]
    pub fn record(&self, applied: &Applied) -> ReplyRecord {
        let Answers { client, slot, xid, body } = *self;
        ReplyRecord { client, slot, xid, transno: applied.transno, status: 0, body: body(&applied.attr), basis: 0 }
    }
}

/// A client's promise to cut an object, or that it goes, together with other objects of its file (`docs/internals/sizes.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    /// Whose.
    pub client: ClientId,
    /// The client's number for the cut.
    pub number: u64,
    /// The object's size after it; [`wire::ost::REMOVED`]: it goes.
    pub size: u64,
}

impl Promise {
    /// Whether the object goes.
    #[must_use]
    pub fn removes(&self) -> bool {
        self.size == wire::ost::REMOVED
    }
    /// Whether an object can be cut so: its size would be one that an object may have, or it goes.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.removes() || self.size <= OBJECT_BYTES_MAX
    }
    /// What changes of the object: who promises has a lock on that.
    #[must_use]
    pub fn range(&self) -> Extent {
        if self.removes() { Extent::ALL } else { Extent::from(self.size) }
    }
}

/// One change of one object. Applied all at one moment, in this order: drops, reserves, puts, size, times.
#[derive(Clone, Debug, Default)]
pub struct Update {
    /// Blocks that become holes.
    pub drops: Vec<BlockRange>,
    /// Blocks that get space where they are holes, and read as zeros.
    pub reserves: Vec<BlockRange>,
    /// New data; disjoint.
    pub puts: Vec<BlockRun>,
    /// Size.
    pub size: SizeRule,
    /// Modification time.
    pub mtime: TimeRule,
    /// Access time.
    pub atime: TimeRule,
    /// Change time; never goes back.
    pub ctime: WallTime,
    /// Owner.
    pub owner: OwnerRule,
    /// The transaction that this change was before a restart.
    pub replay: Option<Transno>,
    /// The request that this answers; `None`: nobody asks for the answer again.
    pub answers: Option<Answers>,
    /// It is the cut that was promised of the object: the promise goes in the same commit.
    pub keeps_promise: bool,
}

/// An update that was carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Its transaction.
    pub transno: Transno,
    /// The object afterwards.
    pub attr: ObjectAttr,
}

/// Space in bytes. `free` never counts what an uncommitted change will give back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// In all.
    pub total: u64,
    /// Free, whether or not the medium has already set it aside.
    pub free: u64,
    /// Free and set aside: writes of this many bytes cannot fail for lack of space. At most `free`.
    pub ready: u64,
    /// Objects that exist.
    pub objects: u64,
    /// Objects that can still be made.
    pub objects_free: u64,
}

/// One object in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectInfo {
    /// Object.
    pub object: ObjectId,
    /// Attributes.
    pub attr: ObjectAttr,
}

/// A block that does not match its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadBlock {
    /// Object.
    pub object: ObjectId,
    /// Block of the object.
    pub block: u64,
}

/// What a store's data lies on, and how that is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundMedium {
    /// The medium; [`Medium::Any`] when it is not known.
    pub medium: Medium,
    /// Half a sentence: `sda is a rotating disk`.
    pub why: String,
}

impl Default for FoundMedium {
    fn default() -> FoundMedium {
        FoundMedium { medium: Medium::Any, why: "its store was not told what it lies on".into() }
    }
}

/// A store on a medium that another server may open, too.
pub trait Fenced {
    /// Looks whether somebody else has opened the store since: then it latches, and [`Fenced::is_replaced`].
    fn still_ours(&self) -> LocalFuture<StoreResult<()>>;
    /// Whether [`Fenced::still_ours`] found nobody so lately that it need not be asked again.
    fn is_surely_ours(&self) -> bool;
    /// Whether somebody else has opened the store since. Its owner must not answer anybody any more.
    fn is_replaced(&self) -> bool;
    /// `then` is called when the store is found to be replaced, before anything fails for that.
    fn on_replaced(&self, then: Box<dyn Fn()>);
}

/// What keeps an OST's objects. Every method may be called while others are under way.
///
/// Errors shared by all: `Io` once the store has latched, `NotFound` for an object that does not exist, `Corrupt`
/// when stored bytes do not match their checksum (object and offset are in the log), `NoSpace`.
pub trait ObjectStore {
    /// Kind of store, for parameters: `file`, `memory`, `null`, ...
    fn kind(&self) -> &'static str;
    /// Who it belongs to.
    fn identity(&self) -> StoreIdentity;
    /// Objects up to this id that do not exist may be lost, with an earlier store of this OST or for this one is an older copy of it.
    /// 0: none are.
    fn lost_through(&self) -> u32 {
        0
    }
    /// Number of this opening of the store, from 1; grows with every one.
    fn boot(&self) -> u64;
    /// Openings of the store of which the metadata server may know, ascending, this one last. None where nothing outlives the process.
    fn openings(&self) -> &[Opening] {
        &[]
    }
    /// The mark of this opening is kept from now on, for the metadata server is about to be told of it. Complete when it is on stable storage.
    fn keep_mark(&self) -> LocalFuture<StoreResult<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// The cluster takes this store for an older copy, of one that it has seen opened `boot` times: sessions are forgotten, and the next
    /// opening counts above `boot`, should the copy be taken in, for clients know higher ones than its own. Complete when that is on
    /// stable storage.
    fn disown(&self, _boot: u64) -> LocalFuture<StoreResult<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Objects of sequence `seq` that lie behind [`ObjectStore::last_object`], up to `to`, are lost, and are not made any more. Complete
    /// when that is on stable storage.
    fn lose(&self, _seq: u64, _to: u32) -> LocalFuture<StoreResult<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// An object's attributes.
    fn attr(&self, object: ObjectId) -> LocalFuture<StoreResult<ObjectAttr>>;
    /// Blocks of an object, also behind its end (zeros).
    fn read(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<Blocks>>;
    /// Changes an object. When it fails, nothing has changed.
    fn update(&self, object: ObjectId, update: Update) -> LocalFuture<StoreResult<Applied>>;
    /// Makes empty objects `last + 1 ..= to` of sequence `seq`, where `last` is what [`ObjectStore::last_object`]
    /// answers; complete when they are on stable storage.
    fn create(&self, seq: u64, to: u32) -> LocalFuture<StoreResult<()>>;
    /// Highest object id ever made in a sequence; 0: none.
    fn last_object(&self, seq: u64) -> u32;
    /// Removes objects; those that do not exist are skipped. One transaction.
    fn destroy(&self, objects: Vec<ObjectId>, replay: Option<Transno>) -> LocalFuture<StoreResult<Transno>>;
    /// First block at or behind `block` that is data (`data`) or a hole; `None` when no data follows. Reserved blocks
    /// are holes.
    fn seek(&self, object: ObjectId, block: u64, data: bool) -> LocalFuture<StoreResult<Option<u64>>>;
    /// Blocks of `range` that are reserved: what is written there needs no more space.
    fn reserved(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<u64>>;
    /// Blocks of `range` where a write goes through however full the store is: reserved ones, and those that it can
    /// overwrite.
    fn allocated(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<u64>> {
        self.reserved(object, range)
    }
    /// Everything applied before is on stable storage afterwards.
    fn sync(&self) -> LocalFuture<StoreResult<()>>;
    /// Every transaction up to here is on stable storage.
    fn last_committed(&self) -> Transno;
    /// Space now.
    fn space(&self) -> Space;
    /// So many bytes are promised to writes that are to come: a store that gives its files space ahead of writes does so ahead of these,
    /// too.
    fn promised(&self, _bytes: u64) {}
    /// Clients whose sessions are remembered, with the number that was given with each.
    fn sessions(&self) -> Vec<(ClientId, u64)>;
    /// Remembers a client, a number (0 or 1: none) and which process it is; complete when that is on stable storage.
    fn session_open(&self, client: ClientId, number: u64, origin: Origin) -> LocalFuture<StoreResult<()>>;
    /// Which process a remembered client was.
    fn origin_of(&self, _client: ClientId) -> Origin {
        Origin::default()
    }
    /// Answers that are remembered of a client's requests, as [`Update::answers`] gave them, one for each slot. None where
    /// nothing outlives the process.
    fn answers_of(&self, _client: ClientId) -> Vec<ReplyRecord> {
        Vec::new()
    }
    /// Forgets a client and its answers.
    fn session_close(&self, client: ClientId) -> LocalFuture<StoreResult<()>>;
    /// What clients held that asked for nothing for a while, as [`ObjectStore::note_quiet`] was given it and nothing took it back,
    /// when the store was opened; asked for once, when the target starts. None where nothing outlives the process.
    fn quiet(&self) -> Vec<(ClientId, Vec<u8>)> {
        Vec::new()
    }
    /// Remembers what a client holds that asked for nothing for a while: with the next commit, behind everything that was applied
    /// before. Whether it does: not of clients that are not remembered, nor while commits wait for space.
    fn note_quiet(&self, _client: ClientId, _held: Vec<u8>) -> bool {
        false
    }
    /// A client may hold more from now on. Complete when that is on stable storage.
    fn quiet_no_more(&self, _client: ClientId) -> LocalFuture<StoreResult<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// What is remembered of advice on objects, as [`ObjectStore::set_advice`] was given it; asked for once, when the target
    /// starts. None where nothing outlives the process.
    fn advice(&self) -> Vec<(ObjectId, Vec<u8>)> {
        Vec::new()
    }
    /// Remembers advice on an object until it is removed; an empty record forgets it. Complete when that is on stable
    /// storage.
    fn set_advice(&self, _object: ObjectId, _record: Vec<u8>) -> LocalFuture<StoreResult<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Promises of cuts, as [`ObjectStore::set_promise`] was given them; asked for once, when the target starts. None where
    /// nothing outlives the process.
    fn promises(&self) -> Vec<(ObjectId, Promise)> {
        Vec::new()
    }
    /// Remembers the promise to cut an object until the cut, the object's end or `None`. Complete when that is on stable
    /// storage.
    fn set_promise(&self, _object: ObjectId, _promise: Option<Promise>) -> LocalFuture<StoreResult<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Credentials that were revoked, as [`ObjectStore::revoke`] was given them, by number, with when each would have ended; asked for once,
    /// when the target starts. None where nothing outlives the process.
    fn revoked(&self) -> Vec<(u64, WallTime)> {
        Vec::new()
    }
    /// Remembers that these credentials were revoked, besides those that it knows; those of before `since` need not be known any more.
    /// Complete when that is on stable storage.
    fn revoke(&self, _credentials: Vec<(u64, WallTime)>, _since: WallTime) -> LocalFuture<StoreResult<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Blocks that take space and count for one, those of changes among them that are not committed yet. None where nothing counts.
    fn usage(&self, _who: Charged) -> u64 {
        0
    }
    /// Whether every object of a file has an owner that the store knows, as far as it has space: not in a store of before there were
    /// owners.
    fn is_owned(&self) -> bool {
        true
    }
    /// Every object of a file has one from now on. Complete when that is on stable storage.
    fn set_owned(&self) -> LocalFuture<StoreResult<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Shares, as [`ObjectStore::set_shares`] was given them; asked for once, when the target starts. None where nothing outlives the
    /// process.
    fn shares(&self) -> Vec<(Charged, u64)> {
        Vec::new()
    }
    /// Remembers how many bytes each may have here; `None`: any number. Complete when that is on stable storage.
    fn set_shares(&self, _shares: Vec<(Charged, Option<u64>)>) -> LocalFuture<StoreResult<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Up to `count` objects behind `after`, in order of id. One whose record is damaged is among them, without attributes:
    /// whoever asks for those hears of it.
    fn objects(&self, after: ObjectId, count: usize) -> LocalFuture<StoreResult<Vec<ObjectInfo>>>;
    /// Compares the next pages of its own on the medium (where objects are, not what is in them), about so many bytes of them, with
    /// their checksums, past every cache; 0: forgets how far it was. The default has none.
    fn look_at_pages(&self, _bytes: u64) -> LocalFuture<StoreResult<Looked>> {
        Box::pin(std::future::ready(Ok(Looked::nothing())))
    }
    /// Reads every block of an object and compares it with its checksum.
    fn verify(&self, object: ObjectId) -> LocalFuture<StoreResult<Vec<BadBlock>>>;
    /// What its data lies on, as far as it was told; what a scheduler is chosen by when none was.
    fn medium(&self) -> FoundMedium {
        FoundMedium::default()
    }
    /// What it asked of its medium; `None`: it has none.
    fn disk(&self) -> Option<&DiskStats> {
        None
    }
    /// The device whose timing it has, and the elevator before that; `None`: a real one's.
    fn emulated(&self) -> Option<(devices::DeviceProfile, devices::ElevatorKind)> {
        None
    }
    /// The fast tier in front of it, if there is one.
    fn fast(&self) -> Option<&crate::fast::FastStore> {
        None
    }
    /// How it finds out that another server has opened it since; `None`: it lives in this process, and nobody else can.
    fn fence(&self) -> Option<&dyn Fenced>;
    /// The failure that latched the store, if any.
    fn failure(&self) -> Option<FsError>;
    /// What failed, and how, in words; `None` as long as nothing has.
    fn failure_text(&self) -> Option<String> {
        self.failure().map(|e| e.to_string())
    }
    /// Whether it failed because its medium has changed what was written, which no opening of the store mends.
    fn is_damaged(&self) -> bool {
        false
    }
    /// Commits and ends background work; everything fails afterwards.
    fn close(&self) -> LocalFuture<StoreResult<()>>;
}
