//! A fast tier in front of a store: copies of blocks on a second, faster device.
//!
//! [`FastStore`] is an object store like the one it stands before; an OST sees of it only that reads are faster, and through
//! [`ObjectStore::fast`] the tier itself, for advice and statistics. Writes go through: copies of what changes are gone
//! before the store is asked to change it, and new ones are published only if nothing else changed it meanwhile. What is
//! copied is known in memory alone: after a restart, clean or not, the tier is empty, and advised bytes are copied anew.
//!
//! Code map: this file (the store) · `tier` (reads, copies, giving up) · `index` (slots, no I/O) · `changes` (whether contents are
//! current) · `device` (the file).
//! Source: paper 004's fast tier. Differs: a cache over any store, with checksums, that no restart has to repair.
mod changes;
mod device;
pub mod index;
#[cfg(test)]
mod tests;
mod tier;

pub use advice::admission::ADMISSIONS;
pub use device::{FAST_BYTES_MIN, FastError};
pub use tier::{FastConfig, FastOwner, FastTier};

use std::pin::Pin;
use std::rc::Rc;

use rt::LocalFuture;
use rt::sync::join_all;
use tier::Found;
use types::scrub::Looked;
use types::{ClientId, FsError, ObjectId, Origin, Transno, WallTime};
use wire::connect::Opening;

use crate::store::{
    Applied, BadBlock, BlockRange, BlockRun, Blocks, Charged, DiskStats, Fenced, FoundMedium, ObjectAttr, ObjectInfo,
    ObjectStore, Promise, ReplyRecord, SizeRule, Space, StoreIdentity, StoreResult, Update,
};

/// See the module's head.
#[derive(Clone)]
pub struct FastStore {
    inner: Rc<dyn ObjectStore>,
    tier: Rc<FastTier>,
}

impl FastStore {
    /// Puts a tier before a store.
    #[must_use]
    pub fn new(inner: Rc<dyn ObjectStore>, tier: Rc<FastTier>) -> Rc<FastStore> {
        Rc::new(FastStore { inner, tier })
    }

    async fn read(&self, object: ObjectId, range: BlockRange) -> StoreResult<Blocks> {
        if let Some(e) = self.inner.failure() {
            return Err(e);
        }
        let missing = self.tier.missing(object, range);
        self.tier.on_looked_up(object, range, missing);
        if missing == range {
            return self.clone().read_through(object, range).await;
        }
        let (head, tail) = (BlockRange::new(range.first, missing.first), BlockRange::new(missing.end(), range.end()));
        let [head, tail] = [head, tail].map(|side| (side, self.tier.take(object, side)));
        let parts: Vec<Pin<Box<dyn Future<Output = StoreResult<Blocks>>>>> = vec![
            Box::pin(self.clone().copies(object, head)),
            Box::pin(self.clone().read_through(object, missing)),
            Box::pin(self.clone().copies(object, tail)),
        ];
        let mut all = Blocks::default();
        for part in join_all(parts).await {
            let Blocks { bulk, crcs } = part?;
            all.bulk.append(bulk);
            all.crcs.extend(crcs);
        }
        Ok(all)
    }
    /// Copies, or what the store has where one cannot be had.
    async fn copies(self, object: ObjectId, (range, found): (BlockRange, Vec<Found>)) -> StoreResult<Blocks> {
        match self.tier.load(object, found).await {
            Some(blocks) => Ok(blocks),
            None => self.inner.read(object, range).await,
        }
    }
    async fn read_through(self, object: ObjectId, range: BlockRange) -> StoreResult<Blocks> {
        if range.is_empty() {
            return Ok(Blocks::default());
        }
        let stamp = self.tier.stamp(object, range);
        let blocks = self.inner.read(object, range).await?;
        if let Some(stamp) = stamp {
            let run = BlockRun { first: range.first, bulk: blocks.bulk.clone(), crcs: blocks.crcs.clone() };
            self.tier.consider(object, run, stamp);
        }
        Ok(blocks)
    }

    async fn update(&self, object: ObjectId, update: Update) -> StoreResult<Applied> {
        let puts = update.puts.iter().map(BlockRun::range);
        let cut = if let SizeRule::Exactly(n) = update.size {
            Some(BlockRange::new(n.div_ceil(crate::store::BLOCK_BYTES), u64::MAX))
        } else {
            None
        };
        let ranges = puts.chain(update.drops.iter().copied()).chain(cut).map(|r| (object, r)).collect::<Vec<_>>();
        if ranges.is_empty() {
            return self.inner.update(object, update).await;
        }
        // What is cut off again by the same update has no copy.
        let kept = update.puts.iter().filter(|p| cut.is_none() && self.tier.wants(object, p.range()));
        let kept: Vec<BlockRun> = kept.cloned().collect();
        let change = Changing::begin(&self.tier, &ranges);
        let applied = self.inner.update(object, update).await?;
        if change.end() {
            kept.into_iter().for_each(|run| self.tier.rewrite(object, run));
        }
        Ok(applied)
    }

    async fn destroy(&self, objects: Vec<ObjectId>, replay: Option<Transno>) -> StoreResult<Transno> {
        let ranges: Vec<_> = objects.iter().map(|o| (*o, BlockRange::new(0, u64::MAX))).collect();
        let _change = Changing::begin(&self.tier, &ranges);
        self.inner.destroy(objects, replay).await
    }

    /// Reads what is not in the tier yet of a range from the store, to be given to [`FastStore::keep`]; `None`: all is there.
    ///
    /// # Errors
    /// The store's, when it cannot be read.
    pub async fn fetch(&self, object: ObjectId, range: BlockRange) -> StoreResult<Option<Fetched>> {
        let missing = self.tier.missing(object, range);
        let Some(stamp) = self.tier.stamp(object, missing).filter(|_| !missing.is_empty()) else { return Ok(None) };
        let Blocks { bulk, crcs } = self.inner.read(object, missing).await?;
        Ok(Some(Fetched { object, run: BlockRun { first: missing.first, bulk, crcs }, stamp }))
    }
    /// Copies what was fetched, as far as it has a place. False: some of it was changed meanwhile, or may have been, and is to
    /// be fetched again.
    pub async fn keep(&self, fetched: Fetched) -> bool {
        self.tier.promote(fetched.object, &fetched.run, &fetched.stamp).await
    }
    /// The tier.
    #[must_use]
    pub fn tier(&self) -> &Rc<FastTier> {
        &self.tier
    }
}

/// Blocks that were read to be copied.
pub struct Fetched {
    object: ObjectId,
    run: BlockRun,
    stamp: changes::Stamp,
}

/// A change under way; ends at the latest when it is dropped.
struct Changing<'a> {
    tier: &'a FastTier,
    change: Option<changes::Change>,
}

impl<'a> Changing<'a> {
    fn begin(tier: &'a FastTier, ranges: &[(ObjectId, BlockRange)]) -> Changing<'a> {
        Changing { tier, change: Some(tier.begin(ranges)) }
    }
    /// Whether what was written is what is there.
    fn end(mut self) -> bool {
        self.change.take().is_some_and(|c| self.tier.end(&c))
    }
}
impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(change) = self.change.take() {
            self.tier.end(&change);
        }
    }
}

impl FastStore {
    /// Work on the store that outlives the call.
    fn with<T: 'static>(&self, work: impl AsyncFnOnce(FastStore) -> T + 'static) -> LocalFuture<T> {
        let me = self.clone();
        Box::pin(async move { work(me).await })
    }
}

impl ObjectStore for FastStore {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }
    fn identity(&self) -> StoreIdentity {
        self.inner.identity()
    }
    fn lost_through(&self) -> u32 {
        self.inner.lost_through()
    }
    fn boot(&self) -> u64 {
        self.inner.boot()
    }
    fn openings(&self) -> &[Opening] {
        self.inner.openings()
    }
    fn keep_mark(&self) -> LocalFuture<StoreResult<()>> {
        self.inner.keep_mark()
    }
    fn disown(&self, boot: u64) -> LocalFuture<StoreResult<()>> {
        self.inner.disown(boot)
    }
    fn lose(&self, seq: u64, to: u32) -> LocalFuture<StoreResult<()>> {
        self.inner.lose(seq, to)
    }
    fn attr(&self, object: ObjectId) -> LocalFuture<StoreResult<ObjectAttr>> {
        self.inner.attr(object)
    }
    fn read(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<Blocks>> {
        self.with(async move |s| s.read(object, range).await)
    }
    fn update(&self, object: ObjectId, update: Update) -> LocalFuture<StoreResult<Applied>> {
        self.with(async move |s| s.update(object, update).await)
    }
    fn create(&self, seq: u64, to: u32) -> LocalFuture<StoreResult<()>> {
        self.inner.create(seq, to)
    }
    fn last_object(&self, seq: u64) -> u32 {
        self.inner.last_object(seq)
    }
    fn destroy(&self, objects: Vec<ObjectId>, replay: Option<Transno>) -> LocalFuture<StoreResult<Transno>> {
        self.with(async move |s| s.destroy(objects, replay).await)
    }
    fn seek(&self, object: ObjectId, block: u64, data: bool) -> LocalFuture<StoreResult<Option<u64>>> {
        self.inner.seek(object, block, data)
    }
    fn reserved(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<u64>> {
        self.inner.reserved(object, range)
    }
    fn allocated(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<u64>> {
        self.inner.allocated(object, range)
    }
    fn sync(&self) -> LocalFuture<StoreResult<()>> {
        self.inner.sync()
    }
    fn last_committed(&self) -> Transno {
        self.inner.last_committed()
    }
    fn space(&self) -> Space {
        self.inner.space()
    }
    fn promised(&self, bytes: u64) {
        self.inner.promised(bytes);
    }
    fn sessions(&self) -> Vec<(ClientId, u64)> {
        self.inner.sessions()
    }
    fn session_open(&self, client: ClientId, number: u64, origin: Origin) -> LocalFuture<StoreResult<()>> {
        self.inner.session_open(client, number, origin)
    }
    fn origin_of(&self, client: ClientId) -> Origin {
        self.inner.origin_of(client)
    }
    fn answers_of(&self, client: ClientId) -> Vec<ReplyRecord> {
        self.inner.answers_of(client)
    }
    fn session_close(&self, client: ClientId) -> LocalFuture<StoreResult<()>> {
        self.inner.session_close(client)
    }
    fn look_at_pages(&self, bytes: u64) -> LocalFuture<StoreResult<Looked>> {
        self.inner.look_at_pages(bytes)
    }
    fn quiet(&self) -> Vec<(ClientId, Vec<u8>)> {
        self.inner.quiet()
    }
    fn note_quiet(&self, client: ClientId, held: Vec<u8>) -> bool {
        self.inner.note_quiet(client, held)
    }
    fn quiet_no_more(&self, client: ClientId) -> LocalFuture<StoreResult<()>> {
        self.inner.quiet_no_more(client)
    }
    fn revoked(&self) -> Vec<(u64, WallTime)> {
        self.inner.revoked()
    }
    fn revoke(&self, credentials: Vec<(u64, WallTime)>, since: WallTime) -> LocalFuture<StoreResult<()>> {
        self.inner.revoke(credentials, since)
    }
    fn advice(&self) -> Vec<(ObjectId, Vec<u8>)> {
        self.inner.advice()
    }
    fn set_advice(&self, object: ObjectId, record: Vec<u8>) -> LocalFuture<StoreResult<()>> {
        self.inner.set_advice(object, record)
    }
    fn promises(&self) -> Vec<(ObjectId, Promise)> {
        self.inner.promises()
    }
    fn set_promise(&self, object: ObjectId, promise: Option<Promise>) -> LocalFuture<StoreResult<()>> {
        self.inner.set_promise(object, promise)
    }
    fn usage(&self, who: Charged) -> u64 {
        self.inner.usage(who)
    }
    fn is_owned(&self) -> bool {
        self.inner.is_owned()
    }
    fn set_owned(&self) -> LocalFuture<StoreResult<()>> {
        self.inner.set_owned()
    }
    fn shares(&self) -> Vec<(Charged, u64)> {
        self.inner.shares()
    }
    fn set_shares(&self, shares: Vec<(Charged, Option<u64>)>) -> LocalFuture<StoreResult<()>> {
        self.inner.set_shares(shares)
    }
    fn objects(&self, after: ObjectId, count: usize) -> LocalFuture<StoreResult<Vec<ObjectInfo>>> {
        self.inner.objects(after, count)
    }
    fn verify(&self, object: ObjectId) -> LocalFuture<StoreResult<Vec<BadBlock>>> {
        self.inner.verify(object)
    }
    fn medium(&self) -> FoundMedium {
        self.inner.medium()
    }
    fn disk(&self) -> Option<&DiskStats> {
        self.inner.disk()
    }
    fn emulated(&self) -> Option<(devices::DeviceProfile, devices::ElevatorKind)> {
        self.inner.emulated()
    }
    fn fast(&self) -> Option<&FastStore> {
        Some(self)
    }
    fn fence(&self) -> Option<&dyn Fenced> {
        self.inner.fence()
    }
    fn failure(&self) -> Option<FsError> {
        self.inner.failure()
    }
    fn failure_text(&self) -> Option<String> {
        self.inner.failure_text()
    }
    fn is_damaged(&self) -> bool {
        self.inner.is_damaged()
    }
    fn close(&self) -> LocalFuture<StoreResult<()>> {
        self.inner.close()
    }
}
