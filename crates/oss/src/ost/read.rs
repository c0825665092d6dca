//! Bulk reads: from the cache, the rest from the store, in the scheduler's order; one checksum from the pages' checksums.
use std::cell::Cell;

use cache::PageAccess;
use frames::Bulk;
use ldlm::LockMode;
use nrs::{IoOp, NrsRequest};
use ptlrpc::Request;
use rt::sync::join_all;
use types::{Extent, FsError, ObjectId};
use wire::ost::{ReadReply, ReadRequest};
use wire::{Crc, crc32c_append};

use super::{Covering, Ost, blocks_of, blocks_touched, failed, joined};
use crate::locks::lvb_of;
use crate::page_cache::push_page;
use crate::pages::join_pages;
use crate::store::{BLOCK_BYTES, BlockRange, Blocks, ObjectAttr, StoreResult};

/// Part of a range of blocks: from the cache, or to be read.
enum Piece {
    Hit(Blocks),
    Miss(BlockRange),
}

#[derive(Default)]
struct Answer {
    body: ReadReply,
    bulk: Bulk,
    crc: Crc,
}

impl Ost {
    pub(super) async fn read(&self, request: Request) {
        let ask: ReadRequest = match request.decode() {
            Ok(ask) => ask,
            Err(e) => return request.reply::<()>(Err(e)),
        };
        match self.do_read(&request, &ask).await {
            Ok(answer) => request.reply_bulk(&answer.body, answer.bulk, Some(answer.crc)),
            Err(e) => request.reply::<()>(Err(failed(e))),
        }
    }

    async fn do_read(&self, request: &Request, ask: &ReadRequest) -> Result<Answer, FsError> {
        let (extents, bytes) = joined(&ask.extents)?;
        let Some(wish) = &ask.enqueue else { return self.read_extents_of(request, ask, &extents, bytes).await };
        self.disturb(request).await?;
        let lock = self.locks.enqueue(request, &ask.owner, wish).await?;
        let hull = extents[0].hull(&extents[extents.len() - 1]);
        let mut answer = Answer::default();
        if lock.granted && self.locks.covers(request.client(), lock.handle, ask.object, LockMode::Pr, hull) {
            let ask = ReadRequest { lock: lock.handle, ..ask.clone() };
            match self.read_extents_of(request, &ask, &extents, bytes).await {
                Ok(read) => answer = read,
                // The lock is the client's all the same: it reads by itself and hears why it cannot.
                Err(e) => tracing::debug!(object = %ask.object, "a read along with its lock: {e}"),
            }
        }
        answer.body.enqueue = Some(lock);
        Ok(answer)
    }

    async fn read_extents_of(
        &self,
        request: &Request,
        ask: &ReadRequest,
        extents: &[Extent],
        bytes: u64,
    ) -> Result<Answer, FsError> {
        let hull = extents[0].hull(&extents[extents.len() - 1]);
        let object = ask.object;
        let right = Covering { object, handle: ask.lock, mode: LockMode::Pr, extent: hull };
        let (_lock, came) = self.cover(request, right).await?;
        let scheduled = Self::scheduled(request, object, IoOp::Read, hull, &ask.owner);
        let urgent = request.header.flags.has(wire::Flags::URGENT);
        let max_service = urgent.then(|| self.config.borrow().callback_timeout / 2);
        let cached = self.answers_first(ask, extents).await?;
        let permit = match cached {
            true => None,
            false => Some(self.dispatch.admit(NrsRequest { bytes: bytes as u32, max_service, ..scheduled }).await?),
        };
        permit.iter().for_each(|p| p.came(came));
        let memory = match cached {
            true => None,
            false => {
                let share = self.memory.share(&self.rt, blocks_touched(extents)).await;
                Some(share.inspect_err(|e| permit.iter().for_each(|p| p.failed(*e)))?)
            }
        };
        let started = self.rt.now();
        let asked = Cell::new(0);
        let read = self.read_extents(ask, extents, &asked).await;
        match (&permit, &read) {
            (None, _) => self.dispatch.note_past_queue(NrsRequest { bytes: bytes as u32, ..scheduled }, &came),
            (Some(permit), Ok(_)) => permit.stores(asked.get()),
            (Some(permit), Err(e)) => permit.failed(*e),
        }
        let (attr, bulk, crc) = read?;
        drop((permit, memory));
        let lens = ask.extents.iter().map(|e| clip(e, attr.size).len() as u32).collect();
        let mut stats = self.stats.borrow_mut();
        stats.on_read((ask.owner.job, self.rt.wall()), extents, bulk.len() as u64, self.rt.now().since(started));
        stats.uses.read(request.client(), bulk.len() as u64);
        Ok(Answer { body: ReadReply { lens, lvb: lvb_of(&attr), enqueue: None }, bulk, crc })
    }

    /// Whether a read need not wait for the scheduler: the cache holds all of it. What leaves the cache before it is looked
    /// up is read from the store without a turn.
    async fn answers_first(&self, ask: &ReadRequest, extents: &[Extent]) -> StoreResult<bool> {
        if !self.config.borrow().cache_first || ask.recheck {
            return Ok(false);
        }
        let (key, size) = (self.key(ask.object), self.store.attr(ask.object).await?.size);
        let cache = self.cache.borrow();
        let whole = |e: Extent| e.is_empty() || cache.holds(key, blocks_of(e));
        Ok(cache.is_on() && extents.iter().all(|e| whole(clip(e, size))))
    }

    /// What is in `extents`; `asked` grows by the bytes that the store is asked for.
    async fn read_extents(
        &self,
        ask: &ReadRequest,
        extents: &[Extent],
        asked: &Cell<u64>,
    ) -> StoreResult<(ObjectAttr, Bulk, Crc)> {
        let attr = self.store.attr(ask.object).await?;
        let (mut bulk, mut crc) = (Bulk::new(), 0);
        for e in extents {
            let e = clip(e, attr.size);
            if e.is_empty() {
                break;
            }
            let range = blocks_of(e);
            let blocks = self.read_counted(ask.object, range, (self.access(ask), ask.recheck), asked).await?;
            append(&mut bulk, &mut crc, blocks, e);
        }
        Ok((attr, bulk, crc))
    }

    fn access(&self, ask: &ReadRequest) -> PageAccess {
        let bytes = u64::from(ask.request_bytes).max(ask.extents.iter().map(Extent::len).sum());
        let access = PageAccess::of_request(0, bytes, types::MIB);
        PageAccess { readahead: ask.readahead, ..access }
    }

    /// Whole blocks of an object, from the cache where they are there.
    pub(super) async fn read_blocks(
        &self,
        object: ObjectId,
        range: BlockRange,
        access: PageAccess,
    ) -> StoreResult<Blocks> {
        self.read_counted(object, range, (access, false), &Cell::new(0)).await
    }

    /// [`Ost::read_blocks`]; `recheck` goes past the cache, `asked` grows by the bytes that the store is asked for.
    async fn read_counted(
        &self,
        object: ObjectId,
        range: BlockRange,
        (access, recheck): (PageAccess, bool),
        asked: &Cell<u64>,
    ) -> StoreResult<Blocks> {
        let (key, keep) = (self.key(object), self.config.borrow().read_cache);
        if recheck {
            self.cache.borrow_mut().invalidate(key, range);
        }
        if !self.cache.borrow().is_on() {
            asked.set(asked.get() + range.count * BLOCK_BYTES);
            return self.store.read(object, range).await;
        }
        let pieces = self.look_up(object, range, access);
        let missed: u64 = pieces.iter().map(|p| if let Piece::Miss(miss) = p { miss.count } else { 0 }).sum();
        asked.set(asked.get() + missed * BLOCK_BYTES);
        if self.advised.is_any() {
            let hits = pieces.iter().map(|p| if let Piece::Hit(hit) = p { hit.crcs.len() as u64 } else { 0 }).sum();
            self.advised.on_hits(object, range.first * BLOCK_BYTES, hits);
        }
        let reads = pieces.into_iter().map(|piece| async {
            match piece {
                Piece::Hit(blocks) => Ok(blocks),
                Piece::Miss(range) => {
                    let stamp = self.cache.borrow().stamp(key, range);
                    let blocks = self.store.read(object, range).await?;
                    if keep {
                        self.fill((object, range.first), &blocks, access, &stamp);
                    }
                    Ok(blocks)
                }
            }
        });
        let mut reads: Vec<_> = reads.collect();
        if reads.len() == 1 {
            return reads.swap_remove(0).await;
        }
        let mut all = Blocks::default();
        for piece in join_all(reads).await {
            let Blocks { bulk, crcs } = piece?;
            all.bulk.append(bulk);
            all.crcs.extend(crcs);
        }
        Ok(all)
    }

    fn look_up(&self, object: ObjectId, range: BlockRange, access: PageAccess) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        self.cache.borrow_mut().lookup(self.key(object), range, access, |block, page| {
            match (page, pieces.last_mut()) {
                (Some(page), Some(Piece::Hit(hit))) => {
                    push_page(&mut hit.bulk, page.run);
                    hit.crcs.push(page.crc);
                }
                (Some(page), _) => {
                    let mut hit = Blocks { bulk: Bulk::new(), crcs: vec![page.crc] };
                    push_page(&mut hit.bulk, page.run);
                    pieces.push(Piece::Hit(hit));
                }
                (None, Some(Piece::Miss(miss))) => miss.count += 1,
                (None, _) => pieces.push(Piece::Miss(BlockRange { first: block, count: 1 })),
            }
        });
        pieces
    }
}

/// `extent` cut at the object's end.
fn clip(extent: &Extent, size: u64) -> Extent {
    Extent::new(extent.start.min(size), extent.end.min(size))
}

/// Adds the bytes of `extent`, which `blocks` hold, to a bulk and its checksum.
fn append(bulk: &mut Bulk, crc: &mut Crc, blocks: Blocks, extent: Extent) {
    let skip = (extent.start % BLOCK_BYTES) as usize;
    let len = extent.len() as usize;
    if skip == 0 {
        let whole = len / BLOCK_BYTES as usize;
        *crc = join_pages(*crc, &blocks.crcs[..whole]);
        let tail = len % BLOCK_BYTES as usize;
        if tail == 0 {
            bulk.append(blocks.bulk);
            return;
        }
        let rest = blocks.bulk.slice(whole * BLOCK_BYTES as usize, tail);
        *crc = rest.slices().fold(*crc, crc32c_append);
    } else {
        *crc = blocks.bulk.slice(skip, len).slices().fold(*crc, crc32c_append);
    }
    bulk.append(blocks.bulk.slice(skip, len));
}
