//! Bulk writes: one pass over the bytes checks the transfer and gives every page its checksum; whole pages go to the
//! store by reference, parts of pages are merged with what is there.
use std::collections::BTreeMap;

use cache::PageAccess;
use frames::{Bulk, FRAME_BYTES, FramePool, FrameRun, Segment};
use ldlm::LockMode;
use nrs::{IoOp, NrsRequest};
use ptlrpc::Request;
use types::{Duration, Extent, FsError, ObjectId, Transno};
use wire::ost::{WriteReply, WriteRequest};
use wire::{Crc, Flags, crc32c, crc32c_append};

use super::memory::MEMORY_WAIT_MAX;
use super::quota::{Wants, is_root, owner_rule};
use super::{Covering, Ost, answer_change, answers, blocks_of, joined, ranges_of};
use crate::dispatch::Permit;
use crate::grants::Used;
use crate::locks::lvb_of;
use crate::pages::{is_page_aligned, join_pages, page_crcs};
use crate::store::{
    Applied, BLOCK_BYTES, BlockRange, BlockRun, ObjectAttr, SizeRule, Space, StoreResult, TimeRule, Update,
};

const PAGE: usize = FRAME_BYTES;

/// New bytes of part of a block.
struct Part {
    block: u64,
    /// First byte within the block.
    from: usize,
    bytes: Bulk,
}

/// What a transfer's bytes are to become: whole pages, and parts of pages.
#[derive(Default)]
struct Plan {
    runs: Vec<BlockRun>,
    parts: Vec<Part>,
    crc: Crc,
}

impl Plan {
    /// Sorts the bytes of `extents` into pages and parts, and checksums them on the way.
    fn new(extents: &[Extent], bulk: &Bulk, pool: FramePool) -> Result<Plan, FsError> {
        let mut plan = Plan::default();
        let mut at = 0;
        for e in extents {
            let mut pos = e.start;
            while pos < e.end {
                let within = (pos % BLOCK_BYTES) as usize;
                let left = (e.end - pos) as usize;
                let len = if within == 0 && left >= PAGE { left / PAGE * PAGE } else { left.min(PAGE - within) };
                let bytes = bulk.slice(at, len);
                if within == 0 && len % PAGE == 0 {
                    plan.push_pages(pos / BLOCK_BYTES, bytes, pool)?;
                } else {
                    plan.crc = bytes.slices().fold(plan.crc, crc32c_append);
                    plan.parts.push(Part { block: pos / BLOCK_BYTES, from: within, bytes });
                }
                (at, pos) = (at + len, pos + len as u64);
            }
        }
        Ok(plan)
    }

    fn push_pages(&mut self, first: u64, mut bulk: Bulk, pool: FramePool) -> Result<(), FsError> {
        if !is_page_aligned(&bulk) {
            let mut copy = Bulk::alloc(pool, bulk.len()).ok_or(FsError::NoMemory)?;
            let mut at = 0;
            for s in bulk.slices() {
                copy.copy_in(at, s);
                at += s.len();
            }
            bulk = copy;
        }
        let crcs = page_crcs(&bulk);
        self.crc = join_pages(self.crc, &crcs);
        self.runs.push(BlockRun { first, bulk, crcs });
        Ok(())
    }

    /// Bytes of space that the plan may need.
    fn bytes(&self) -> u64 {
        let pages: usize = self.runs.iter().map(|r| r.crcs.len()).sum();
        // Several parts of a block lie one behind the other, and are one page in the end, as they took one page of grant.
        let parts = self.parts.chunk_by(|a, b| a.block == b.block).count();
        (pages + parts) as u64 * BLOCK_BYTES
    }
}

/// Space that a write holds between its check and its place in the store.
pub(super) struct Held<'a> {
    ost: &'a Ost,
    bytes: u64,
}
impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.ost.in_flight_bytes.set(self.ost.in_flight_bytes.get() - self.bytes);
    }
}

/// Grant that a write brings along: gone when the write was carried out, the client's again when not.
struct UsedGrant<'a> {
    ost: &'a Ost,
    request: &'a Request,
    used: Used,
}
impl UsedGrant<'_> {
    fn spend(mut self) {
        self.used = Used::default();
    }
}
impl Drop for UsedGrant<'_> {
    fn drop(&mut self) {
        // A client whose session is over has no book, or another one already.
        if self.used != Used::default() && !self.request.export.is_ended() {
            self.ost.grants.borrow_mut().give_back(self.request.client(), self.used);
        }
    }
}

impl Ost {
    pub(super) async fn write(&self, mut request: Request) {
        let ask: WriteRequest = match request.decode() {
            Ok(ask) => ask,
            Err(e) => return request.reply::<()>(Err(e)),
        };
        let bulk = std::mem::take(&mut request.bulk);
        let reply = self.do_write(&request, &ask, bulk).await;
        answer_change(request, &reply);
    }

    async fn do_write(
        &self,
        request: &Request,
        ask: &WriteRequest,
        bulk: Bulk,
    ) -> Result<(Transno, WriteReply), FsError> {
        let started = self.rt.now();
        let client = request.client();
        // The answer to a replay reaches nobody, and what the client once paid for it was another book's.
        let grant_used = if request.is_replay() { 0 } else { ask.grant_used };
        let used = self.grants.borrow_mut().consume(client, grant_used);
        let used = UsedGrant { ost: self, request, used };
        let (extents, bytes) = joined(&ask.extents)?;
        if bytes != bulk.len() as u64 {
            return Err(FsError::Protocol);
        }
        let plan = Plan::new(&extents, &bulk, self.rt.frames())?;
        drop(bulk);
        let wrong = request.header.flags.has(Flags::BULK_CRC) && request.header.bulk_crc != plan.crc;
        if wrong && !types::planted!("checksum-ignored") {
            let (want, got) = (request.header.bulk_crc, plan.crc);
            tracing::warn!(object = %ask.object, %client, want, got, "a transfer does not match its checksum");
            self.stats.borrow_mut().bulk_checksum_errors += 1;
            return Err(FsError::Corrupt);
        }
        // The space of a replayed write was checked when it was first carried out.
        let granted = if request.is_replay() { u64::MAX } else { used.used.backed };
        let space_held = self.hold_space_of(ask.object, &extents, plan.bytes(), granted).await?;
        let charge = Wants {
            object: ask.object,
            extents: &extents,
            bytes: plan.bytes(),
            writer: &ask.owner,
            file: ask.file.as_ref(),
            // Also what a server of before had promised; what the client only says was promised by nobody.
            promised: used.used.promised() >= plan.bytes(),
        };
        let charge = self.charge(request, charge).await?;
        let hull = extents[0].hull(&extents[extents.len() - 1]);
        let object = ask.object;
        let (_lock, came) =
            self.cover(request, Covering { object, handle: ask.lock, mode: LockMode::Pw, extent: hull }).await?;
        let scheduled = Self::scheduled(request, object, IoOp::Write, hull, &ask.owner);
        let max_service = self.max_service(request, ask.max_service_ms);
        let permit = self.dispatch.admit(NrsRequest { bytes: bytes as u32, max_service, ..scheduled }).await?;
        permit.came(came);
        permit.stores(plan.bytes());
        let applied = self.apply_write(request, ask, plan, hull).await.inspect_err(|e| permit.failed(*e))?;
        tracing::trace!(%client, %object, extents = ?ask.extents, xid = %request.header.xid, %applied.transno, "write");
        drop(charge);
        // Without a commit to wait for the place is given up at once.
        let commits = Some(permit).filter(|_| ask.sync).map(Permit::then_commits);
        drop(space_held);
        if commits.is_some() {
            self.store.sync().await?;
        }
        drop(commits);
        used.spend();
        let tight = self.tight(applied.attr.owner);
        // Who may not have more is looked at with every write: what has grant is let in whatever is left. Root is not limited.
        let may_cache = tight == 0 || is_root(request, &ask.owner);
        let grant = if may_cache { self.more_grant(request, ask.grant_wanted) } else { 0 };
        let mut stats = self.stats.borrow_mut();
        stats.on_write((ask.owner.job, self.rt.wall()), &extents, bytes, self.rt.now().since(started));
        stats.uses.wrote(client, bytes);
        drop(stats);
        Ok((applied.transno, WriteReply { grant, lvb: lvb_of(&applied.attr), tight }))
    }

    fn max_service(&self, request: &Request, asked_ms: u32) -> Option<Duration> {
        if asked_ms > 0 {
            return Some(Duration::from_millis(asked_ms.into()));
        }
        request.header.flags.has(Flags::URGENT).then(|| self.config.borrow().callback_timeout / 2)
    }

    fn more_grant(&self, request: &Request, wanted: u64) -> u64 {
        let client = request.client();
        let hears = !request.is_replay() && !request.export.is_ended() && self.grants.borrow().knows(client);
        if wanted == 0 || !hears {
            return 0;
        }
        let space = self.store.space();
        let max = self.config.borrow().grant_max_bytes;
        let available = self.available(&space);
        let more = self.grants.borrow_mut().extend(client, wanted, max, available);
        self.store.promised(self.grants.borrow().total());
        // What is free and not set aside yet will be, without what others have.
        let coming = self.available(&Space { ready: u64::MAX, ..space });
        if more == 0 && coming < wanted.min(max) && self.grants.borrow().of(client) < wanted.min(max) / 2 {
            self.note_short_of_grant();
        }
        more
    }

    /// [`Ost::hold_space`] for a write; blocks of the object that have space count as held already: the store keeps what an
    /// overwrite needs until the old blocks come free.
    pub(super) async fn hold_space_of(
        &self,
        object: ObjectId,
        extents: &[Extent],
        bytes: u64,
        granted: u64,
    ) -> Result<Held<'_>, FsError> {
        let mut wanted = bytes;
        if bytes > granted && !self.has_room(bytes) {
            wanted = wanted.saturating_sub(self.there(object, extents).await?);
        }
        self.hold_space(wanted, granted).await
    }

    /// Bytes of the blocks of these extents that have space.
    pub(super) async fn there(&self, object: ObjectId, extents: &[Extent]) -> Result<u64, FsError> {
        let mut blocks = 0u64;
        for range in ranges_of(extents) {
            blocks = blocks.saturating_add(self.store.allocated(object, range).await?);
        }
        Ok(blocks.saturating_mul(BLOCK_BYTES))
    }

    fn has_room(&self, bytes: u64) -> bool {
        let space = self.store.space();
        let held = self.reserve(&space) + self.in_flight_bytes.get() + self.grants.borrow().total();
        space.free >= held.saturating_add(bytes)
    }

    /// Sets `bytes` of space aside for a write that brings `granted` bytes of grant.
    pub(super) async fn hold_space(&self, bytes: u64, granted: u64) -> Result<Held<'_>, FsError> {
        for attempt in 0..3 {
            if bytes <= granted || bytes == 0 || self.has_room(bytes) {
                self.in_flight_bytes.set(self.in_flight_bytes.get() + bytes);
                return Ok(Held { ost: self, bytes });
            }
            match attempt {
                // What was freed and not yet committed counts from the commit on.
                0 => self.store.sync().await?,
                // What others were promised and do not need.
                1 if self.take_grants_back(0).await => {}
                _ => break,
            }
        }
        self.stats.borrow_mut().no_space += 1;
        Err(FsError::NoSpace)
    }

    async fn apply_write(
        &self,
        request: &Request,
        ask: &WriteRequest,
        plan: Plan,
        hull: Extent,
    ) -> StoreResult<Applied> {
        let object = ask.object;
        let mut puts = plan.runs;
        // Each part becomes a page, and while it does, what was there is one, too. Before the gate: nobody who holds that waits for memory.
        let _memory = match plan.parts.len() as u64 {
            0 => None,
            parts => Some(self.memory.share(&self.rt, parts + 1).await?),
        };
        let _gate = self.change(request, object, blocks_of(hull)).await?;
        if !plan.parts.is_empty() {
            let attr = self.store.attr(object).await?;
            puts.extend(self.merge(object, &attr, plan.parts).await?);
        }
        let bytes = u64::from(ask.request_bytes).max(hull.len());
        let access = PageAccess::of_request(0, bytes, types::MIB).written();
        let update = Update {
            size: SizeRule::AtLeast(hull.end),
            mtime: TimeRule::AtLeast(ask.mtime),
            ctime: self.rt.wall(),
            owner: owner_rule(request, ask.file.as_ref()),
            replay: request.is_replay().then_some(request.header.transno),
            // A restarted target begins a new book of grants, all of which is told when the session is found again.
            answers: answers(request, |attr| wire::encode(&WriteReply { grant: 0, lvb: lvb_of(attr), tight: 0 })),
            ..Update::default()
        };
        self.put(object, puts, update, access).await
    }

    /// Applies an update with new pages and brings the cache in line.
    pub(super) async fn put(
        &self,
        object: ObjectId,
        puts: Vec<BlockRun>,
        update: Update,
        access: PageAccess,
    ) -> StoreResult<Applied> {
        let (key, keep) = (self.key(object), self.config.borrow().writethrough_cache);
        let on = self.cache.borrow().is_on();
        let kept = if on { puts.clone() } else { Vec::new() };
        let drops = update.drops.clone();
        let cut = match update.size {
            SizeRule::Exactly(n) => Some(BlockRange::new(n.div_ceil(BLOCK_BYTES), u64::MAX)),
            _ => None,
        };
        let exactly = if let SizeRule::Exactly(n) = update.size { Some(n) } else { None };
        let outcome = self.update(object, Update { puts, ..update }).await;
        if outcome.is_err() {
            // An overwrite may have been carried out in part.
            kept.iter().for_each(|run| self.cache.borrow_mut().invalidate(key, run.range()));
        }
        let applied = outcome?;
        if self.advised.has(object) {
            exactly.into_iter().for_each(|n| self.advised_cut(object, n));
            self.advised_written(object, applied.attr.size);
        }
        if on {
            drops.into_iter().chain(cut).for_each(|d| self.cache.borrow_mut().invalidate(key, d));
            kept.iter().for_each(|run| self.replace(object, run, access, keep));
        }
        Ok(applied)
    }

    /// Pages that hold the parts and, around them, what was there.
    async fn merge(&self, object: ObjectId, attr: &ObjectAttr, parts: Vec<Part>) -> StoreResult<Vec<BlockRun>> {
        let mut pages: BTreeMap<u64, FrameRun> = BTreeMap::new();
        for part in parts {
            let mut page = match pages.remove(&part.block) {
                Some(page) => page,
                None => self.base_page(object, attr, &part).await?,
            };
            let bytes = page.bytes_mut().expect("a page being merged has one owner");
            part.bytes.copy_out(0, &mut bytes[part.from..part.from + part.bytes.len()]);
            pages.insert(part.block, page);
        }
        let run = |(first, run): (u64, FrameRun)| {
            let crcs = vec![crc32c(run.bytes())];
            let mut bulk = Bulk::new();
            bulk.push(Segment { run, offset: 0, len: PAGE as u32 });
            BlockRun { first, bulk, crcs }
        };
        Ok(pages.into_iter().map(run).collect())
    }

    /// A fresh page with the present contents of the block that `part` changes; zeros where all of it will change.
    async fn base_page(&self, object: ObjectId, attr: &ObjectAttr, part: &Part) -> StoreResult<FrameRun> {
        let start = part.block * BLOCK_BYTES;
        let rest_is_zero = part.from == 0 && start + part.bytes.len() as u64 >= attr.size;
        let old = if start >= attr.size || rest_is_zero {
            None
        } else {
            let range = BlockRange { first: part.block, count: 1 };
            Some(self.read_blocks(object, range, PageAccess::fine(0)).await?)
        };
        let mut page = self.fresh_page().await?;
        let bytes = page.bytes_mut().expect("a fresh page has one owner");
        match old {
            Some(blocks) => blocks.bulk.copy_out(0, bytes),
            None => bytes.fill(0),
        }
        Ok(page)
    }

    async fn fresh_page(&self) -> StoreResult<FrameRun> {
        let Some(bulk) = self.rt.timeout(MEMORY_WAIT_MAX, self.rt.bulk(PAGE)).await else {
            self.memory.refuse();
            return Err(FsError::NoMemory);
        };
        Ok(bulk.into_segments().pop().expect("a page of bulk is one segment").run)
    }

    /// Block `block` with the bytes `zero` (within the block) zeroed; `None` when it is all zeros anyway.
    pub(super) async fn zeroed(
        &self,
        object: ObjectId,
        block: u64,
        zero: std::ops::Range<usize>,
    ) -> StoreResult<Option<BlockRun>> {
        let range = BlockRange { first: block, count: 1 };
        let old = self.read_blocks(object, range, PageAccess::fine(0)).await?;
        if old.crcs[0] == crate::pages::crc_of_zeros() && old.bulk.slices().all(|s| s.iter().all(|b| *b == 0)) {
            return Ok(None);
        }
        let mut page = self.fresh_page().await?;
        let bytes = page.bytes_mut().expect("a fresh page has one owner");
        old.bulk.copy_out(0, bytes);
        bytes[zero].fill(0);
        let crcs = vec![crc32c(bytes)];
        let mut bulk = Bulk::new();
        bulk.push(Segment { run: page, offset: 0, len: PAGE as u32 });
        Ok(Some(BlockRun { first: block, bulk, crcs }))
    }
}
