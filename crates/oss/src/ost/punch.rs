//! Truncate, punch, zero and reserve: whole blocks go or come, the edges are rewritten.
use cache::PageAccess;
use ldlm::LockMode;
use nrs::IoOp;
use ptlrpc::Request;
use types::{Extent, FsError, ObjectId, Transno};
use wire::ost::{AllocateRequest, AttrReply, PunchKind, PunchRequest};

use super::quota::{Wants, owner_rule};
use super::{Covering, Ost, answer_change, answers, attr_body};
use crate::locks::lvb_of;
use crate::store::{
    Applied, BLOCK_BYTES, BlockRange, BlockRun, OBJECT_BYTES_MAX, ObjectAttr, Promise, SizeRule, StoreResult, TimeRule,
    Update,
};

impl Ost {
    pub(super) async fn punch(&self, request: Request) {
        let reply = match request.decode::<PunchRequest>() {
            Ok(ask) => self.do_punch(&request, &ask).await,
            Err(e) => Err(e),
        };
        answer_change(request, &reply);
    }

    async fn do_punch(&self, request: &Request, ask: &PunchRequest) -> Result<(Transno, AttrReply), FsError> {
        let object = ask.object;
        let extent = match ask.kind {
            PunchKind::Truncate => Extent::from(ask.extent.start),
            PunchKind::Hole | PunchKind::Zero => ask.extent,
        };
        if extent.is_empty() || extent.start > OBJECT_BYTES_MAX {
            return Err(if extent.is_empty() { FsError::Invalid } else { FsError::FileTooBig });
        }
        let (_lock, came) =
            self.cover(request, Covering { object, handle: ask.lock, mode: LockMode::Pw, extent }).await?;
        // Others may be asked for space and quota, which takes a while: nobody else waits behind that.
        let before = self.store.attr(object).await?.size;
        let (_space, _charge) = match ask.kind {
            PunchKind::Zero => {
                let granted = if request.is_replay() { u64::MAX } else { 0 };
                let kept = kept_by_zeros(extent, before);
                let space = self.hold_space_of(object, &[kept], kept.len(), granted).await?;
                (Some(space), Some(self.charge(request, Wants::of_zeros(ask, &[kept])).await?))
            }
            PunchKind::Truncate | PunchKind::Hole => (None, None),
        };
        let permit = self.dispatch.admit(Self::scheduled(request, object, IoOp::Punch, extent, &ask.owner)).await?;
        permit.came(came);
        let _gate = self.change(request, object, super::blocks_of(extent)).await?;
        let attr = self.store.attr(object).await?;
        let (update, puts) = match ask.kind {
            PunchKind::Truncate => self.truncate(object, &attr, extent.start).await?,
            PunchKind::Hole => self.clear(object, &attr, extent, None).await?,
            // Nobody was asked for space behind the end of before.
            PunchKind::Zero => self.clear(object, &attr, extent, Some(before.min(attr.size))).await?,
        };
        let kept =
            |p: &Promise| ask.kind == PunchKind::Truncate && p.client == request.client() && p.size == extent.start;
        let promise = self.locks.promises.open(object).filter(kept);
        let update = Update {
            keeps_promise: promise.is_some(),
            owner: owner_rule(request, ask.file.as_ref()),
            mtime: TimeRule::AtLeast(ask.mtime),
            ctime: self.rt.wall(),
            replay: request.is_replay().then_some(request.header.transno),
            answers: answers(request, attr_body),
            ..update
        };
        let shortens = ask.kind == PunchKind::Truncate && extent.start < attr.size;
        let cut = shortens.then(|| self.locks.marks.begin(object));
        let applied = self.put(object, puts, update, PageAccess::fine(0).written()).await?;
        drop(cut);
        if let Some(promise) = promise {
            self.locks.promises.kept(object, &promise, applied.transno, self.store.last_committed());
        }
        drop(permit);
        self.stats.borrow_mut().punches += 1;
        Ok(reply(&applied))
    }

    pub(super) async fn truncate(
        &self,
        object: ObjectId,
        attr: &ObjectAttr,
        size: u64,
    ) -> StoreResult<(Update, Vec<BlockRun>)> {
        let mut puts = Vec::new();
        let within = (size % BLOCK_BYTES) as usize;
        if size < attr.size && within != 0 && !types::planted!("cut-edge-kept") {
            puts.extend(self.zeroed(object, size / BLOCK_BYTES, within..BLOCK_BYTES as usize).await?);
        }
        Ok((Update { size: SizeRule::Exactly(size), ..Update::default() }, puts))
    }

    /// Makes `extent` read as zeros; whole blocks lose their space, or get empty space where they lie before `keep`.
    async fn clear(
        &self,
        object: ObjectId,
        attr: &ObjectAttr,
        extent: Extent,
        keep: Option<u64>,
    ) -> StoreResult<(Update, Vec<BlockRun>)> {
        let end = if extent.end >= attr.size {
            extent.end.saturating_add(BLOCK_BYTES - 1) & !(BLOCK_BYTES - 1)
        } else {
            extent.end
        };
        let (head, tail) = ((extent.start % BLOCK_BYTES) as usize, (end % BLOCK_BYTES) as usize);
        let (first, last) = (extent.start / BLOCK_BYTES, end / BLOCK_BYTES);
        let mut puts = Vec::new();
        if first == last && end != u64::MAX {
            puts.extend(self.zeroed(object, first, head..tail).await?);
            return Ok((Update::default(), puts));
        }
        if head != 0 {
            puts.extend(self.zeroed(object, first, head..BLOCK_BYTES as usize).await?);
        }
        if tail != 0 && end != u64::MAX {
            puts.extend(self.zeroed(object, last, 0..tail).await?);
        }
        let whole = BlockRange::new(extent.start.div_ceil(BLOCK_BYTES), last);
        let drops = if whole.is_empty() { Vec::new() } else { vec![whole] };
        let within = keep.unwrap_or(0).div_ceil(BLOCK_BYTES).min(whole.end());
        let reserves = if within > whole.first { vec![BlockRange::new(whole.first, within)] } else { Vec::new() };
        Ok((Update { drops, reserves, ..Update::default() }, puts))
    }

    pub(super) async fn allocate(&self, request: Request) {
        let reply = match request.decode::<AllocateRequest>() {
            Ok(ask) => self.do_allocate(&request, &ask).await,
            Err(e) => Err(e),
        };
        answer_change(request, &reply);
    }

    async fn do_allocate(&self, request: &Request, ask: &AllocateRequest) -> Result<(Transno, AttrReply), FsError> {
        let (object, extent) = (ask.object, ask.extent);
        if extent.is_empty() || extent.end > OBJECT_BYTES_MAX {
            return Err(if extent.is_empty() { FsError::Invalid } else { FsError::FileTooBig });
        }
        let range = BlockRange::new(extent.start / BLOCK_BYTES, extent.end.div_ceil(BLOCK_BYTES));
        let reach = if ask.keep_size { extent } else { Extent::from(extent.start) };
        let asked = Covering { object, handle: ask.lock, mode: LockMode::Pw, extent: reach };
        // Clients of before hold a lock and do not say so.
        let (_lock, came) = match self.locks.covers(request.client(), ask.lock, object, LockMode::Pw, reach) {
            true if ask.lock.0 == 0 => (None, super::came(request)),
            _ => self.cover(request, asked).await?,
        };
        let wanted = range.count.saturating_mul(BLOCK_BYTES);
        // Space first: what there is no space for counts for nobody, not even while others are asked whether there is.
        // The space of one that is replayed was checked when it was first carried out.
        let granted = if request.is_replay() { u64::MAX } else { 0 };
        let held = self.hold_space_of(object, &[extent], wanted, granted).await?;
        let charge = Wants {
            object,
            extents: &[extent],
            bytes: wanted,
            writer: &ask.owner,
            file: ask.file.as_ref(),
            promised: false,
        };
        let _charge = self.charge(request, charge).await?;
        let permit = self.dispatch.admit(Self::scheduled(request, object, IoOp::Write, extent, &ask.owner)).await?;
        permit.came(came);
        let _gate = self.change(request, object, range).await?;
        let update = Update {
            reserves: vec![range],
            owner: owner_rule(request, ask.file.as_ref()),
            size: if ask.keep_size { SizeRule::Keep } else { SizeRule::AtLeast(extent.end) },
            mtime: TimeRule::AtLeast(ask.mtime),
            ctime: self.rt.wall(),
            replay: request.is_replay().then_some(request.header.transno),
            answers: answers(request, attr_body),
            ..Update::default()
        };
        let applied = self.update(object, update).await?;
        drop((permit, held));
        Ok(reply(&applied))
    }
}

/// The whole blocks of an object of this size that are to have space when `extent` reads as zeros.
fn kept_by_zeros(extent: Extent, size: u64) -> Extent {
    let end = if extent.end >= size { size.div_ceil(BLOCK_BYTES) } else { extent.end / BLOCK_BYTES };
    let first = extent.start.div_ceil(BLOCK_BYTES).min(end);
    Extent::new(first * BLOCK_BYTES, end * BLOCK_BYTES)
}

fn reply(applied: &Applied) -> (Transno, AttrReply) {
    (applied.transno, AttrReply { lvb: lvb_of(&applied.attr) })
}
