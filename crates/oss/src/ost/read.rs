//! Bulk reads: from the cache, the rest from the store; one checksum from the pages' checksums.
use cache::PageAccess;
use cache::frames::Bulk;
use ldlm::LockMode;
use nrs::{IoOp, NrsRequest};
use ptlrpc::Request;
use rt::sync::join_all;
use types::{Extent, FsError, ObjectId};
use wire::lock::{CancelRequest, EnqueueFlags, EnqueueReply};
use wire::ost::{ReadReply, ReadRequest};
use wire::{Crc, crc32c_append};

use super::{Covering, Ost, blocks_of, joined};
use crate::locks::lvb_of;
use crate::page_cache::push_page;
use crate::pages::join_pages;
use crate::store::{BLOCK_BYTES, BlockRange, Blocks, ObjectAttr, StoreResult};

/// Part of a range of blocks: from the cache, or to be read.
enum Piece {
    Hit(Blocks),
    Miss(BlockRange),
}

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
            Err(e) => request.reply::<()>(Err(e)),
        }
    }

    async fn do_read(&self, request: &Request, ask: &ReadRequest) -> Result<Answer, FsError> {
        let (extents, bytes) = joined(&ask.extents, u64::from(self.config.borrow().bulk_bytes_max))?;
        let enqueue = self.enqueue_along(request, ask).await;
        let handle = enqueue.as_ref().map(|e| e.handle).filter(|h| h.0 != 0);
        let outcome = self.read_locked(request, ask, &extents, bytes, enqueue).await;
        if let (Err(_), Some(handle)) = (&outcome, handle) {
            // The client will not learn of the lock.
            let gone = CancelRequest { handles: vec![handle], cookies: Vec::new() };
            self.locks.cancel(request.client(), &gone);
        }
        outcome
    }

    async fn read_locked(
        &self,
        request: &Request,
        ask: &ReadRequest,
        extents: &[Extent],
        bytes: u64,
        enqueue: Option<EnqueueReply>,
    ) -> Result<Answer, FsError> {
        let hull = extents[0].hull(&extents[extents.len() - 1]);
        let object = ask.object;
        let locked = enqueue.as_ref().is_some_and(|e| e.granted && e.lock.extent.contains(&hull));
        let _lock = if locked {
            None
        } else {
            self.cover(request, Covering { object, handle: ask.lock, mode: LockMode::Pr, extent: hull }).await?
        };
        let scheduled = Self::scheduled(request, object, IoOp::Read, hull, &ask.owner);
        let urgent = request.header.flags.has(wire::Flags::URGENT);
        let max_service = urgent.then(|| self.config.borrow().callback_timeout / 2);
        let permit = self.dispatch.admit(NrsRequest { bytes: bytes as u32, max_service, ..scheduled }).await?;
        let started = self.rt.now();
        let attr = self.store.attr(object).await?;
        let (bulk, crc) = self.read_extents(ask, extents, &attr).await?;
        drop(permit);
        let lens = ask.extents.iter().map(|e| clip(e, attr.size).len() as u32).collect();
        let mut stats = self.stats.borrow_mut();
        stats.on_read(ask.owner.job, request.client(), bulk.len() as u64, self.rt.now().since(started));
        Ok(Answer { body: ReadReply { lens, lvb: lvb_of(&attr), enqueue }, bulk, crc })
    }

    /// The lock that comes along with a read: granted at once or not at all.
    async fn enqueue_along(&self, request: &Request, ask: &ReadRequest) -> Option<EnqueueReply> {
        let mut wish = ask.enqueue.clone()?;
        wish.flags |= EnqueueFlags::NOWAIT;
        let denied = EnqueueReply { lock: wish.lock.clone(), ..EnqueueReply::default() };
        Some(self.locks.enqueue(request.client(), &wish).await.unwrap_or(denied))
    }

    async fn read_extents(&self, ask: &ReadRequest, extents: &[Extent], attr: &ObjectAttr) -> StoreResult<(Bulk, Crc)> {
        let (mut bulk, mut crc) = (Bulk::new(), 0);
        for e in extents {
            let e = clip(e, attr.size);
            if e.is_empty() {
                break;
            }
            let range = blocks_of(e);
            let blocks = self.read_blocks(ask.object, range, self.access(ask), ask.recheck).await?;
            append(&mut bulk, &mut crc, blocks, e);
        }
        Ok((bulk, crc))
    }

    fn access(&self, ask: &ReadRequest) -> PageAccess {
        let bytes = u64::from(ask.request_bytes).max(ask.extents.iter().map(Extent::len).sum());
        let access = PageAccess::of_request(0, bytes, types::MIB);
        PageAccess { readahead: ask.readahead, ..access }
    }

    /// Whole blocks of an object, from the cache where they are there. `recheck` goes past the cache.
    pub(super) async fn read_blocks(
        &self,
        object: ObjectId,
        range: BlockRange,
        access: PageAccess,
        recheck: bool,
    ) -> StoreResult<Blocks> {
        let (key, keep) = (self.key(object), self.config.borrow().read_cache);
        if recheck {
            self.cache.borrow_mut().invalidate(key, range);
        }
        if !self.cache.borrow().is_on() {
            return self.store.read(object, range).await;
        }
        let pieces = self.look_up(object, range, access);
        let reads = pieces.into_iter().map(|piece| async {
            match piece {
                Piece::Hit(blocks) => Ok(blocks),
                Piece::Miss(range) => {
                    let stamp = self.cache.borrow().stamp(key, range);
                    let blocks = self.store.read(object, range).await?;
                    if keep {
                        self.cache.borrow_mut().fill(key, range.first, &blocks.bulk, &blocks.crcs, access, &stamp);
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
