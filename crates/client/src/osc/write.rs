//! Writing dirty pages out, and everything else that changes an object.
use std::rc::{Rc, Weak};

use datapath::{Attempts, Due, Fate, Flushing, Fsync, Gone, Next, Objects, Pages, WriteOut};
use frames::{Bulk, FRAME_BYTES};
use ldlm::{DenyReason, EnqueueFlags, LockCookie, LockDesc, LockMode, LockPolicyData};
use ptlrpc::turns::Rank;
use ptlrpc::{CallOptions, Import, ImportState};
use rt::sync::{Semaphore, race};
use types::{Duration, Extent, FsError, HandleId};
use wire::Op;
use wire::ost as wo;

use super::{Osc, PAGE, Why, judged, page_extent};
use crate::inode::{Inode, Object};
use crate::locks::Held;
use crate::object::{Cached, page_range};
use crate::stats::Direction;

/// A write that the room chose: of which object, which pages, and the handle of the lock that allows it.
type Chosen = datapath::Chosen<Weak<Object>, Cached, HandleId>;

/// The objects of an OST, as the room looks at them when it chooses what is written next.
struct OfOst<'a>(&'a Osc);
impl Objects<Weak<Object>> for OfOst<'_> {
    type Page = Cached;
    type Right = HandleId;
    fn with_pages<T>(&mut self, object: &Weak<Object>, step: impl FnOnce(&mut Pages<Cached>) -> T) -> Option<T> {
        Some(object.upgrade()?.with_pages(step))
    }
    /// One RPC stays within one lock: its handle is the write's right at the server.
    fn right_to(&mut self, object: &Weak<Object>, page: u64) -> (HandleId, Extent) {
        let of_page = LockPolicyData::extent(Extent::at(page * PAGE, 1));
        let lock = object.upgrade().and_then(|o| self.0.locks.cache().peek(o.resource(), LockMode::Pw, &of_page));
        lock.map_or((HandleId(0), Extent::ALL), |l| (l.handle, l.data.as_extent().unwrap_or(Extent::ALL)))
    }
}

/// The turn of the request that waits for room.
struct RoomTurn<'a>(&'a Semaphore);
impl Drop for RoomTurn<'_> {
    fn drop(&mut self) {
        self.0.add(1);
    }
}

impl Osc {
    /// A page was written to, which was clean before or not. False when it has no grant: it must be written out at once.
    pub(crate) fn wrote_page(&self, object: &Rc<Object>, page: u64, was_clean: bool) -> bool {
        self.written_at.set(self.rt.now());
        let through = self.tight.is_so(object);
        object.with_pages(|pages| {
            let mut target = self.target.borrow_mut();
            // Now, not when the write has gone through: whatever becomes of that, the page is to be written out.
            if !types::planted!("dirty-unlisted") {
                target.on_dirty_object(Rc::downgrade(object), pages);
            }
            match through {
                true => target.on_written_through(pages, page, was_clean),
                false => target.on_written(pages, page, was_clean),
            }
        })
    }

    /// Gives back the grant that no page took, but for `keep` bytes.
    pub(super) async fn give_grant_back(&self, keep: u64) {
        let Ok(import) = self.import() else { return };
        // Without a session the book may be that of one which is over: what is taken out of it would go back out of the next one's.
        if import.state() != ImportState::Full {
            return;
        }
        let (boot, bytes) = self.target.borrow_mut().books.give_back(keep);
        if bytes == 0 {
            return;
        }
        let request = wo::ShrinkGrantRequest { boot, bytes };
        // A client that was evicted since has another book.
        let options = CallOptions { losses: Some(import.losses()), ..CallOptions::urgent(None) };
        if let Err(e) = import.call(Op::OstShrinkGrant, wire::encode(&request), Bulk::new(), options).await {
            tracing::debug!(ost = %self.index, bytes, "giving grant back: {e}");
            if e == FsError::NotSupported {
                self.target.borrow_mut().books.on_grant(bytes);
            }
        }
    }
    /// Gives back grant that was of no use for a while: all that one RPC does not need.
    pub(crate) fn shrink_when_idle(self: &Rc<Self>) {
        let idle = self.rt.now().since(self.written_at.get()) >= self.grant_shrink_interval.get();
        if !idle || self.target.borrow().books.dirty_bytes() > 0 {
            return;
        }
        let (me, keep) = (self.clone(), self.rpc_pages_max() as u64 * PAGE);
        self.rt.spawn(async move { me.give_grant_back(keep).await });
    }

    /// Whether one more request may dirty pages, and nobody waits for that.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.room_turn.available() > 0 && self.fits(bytes)
    }
    fn fits(&self, bytes: u64) -> bool {
        self.target.borrow().books.has_room(bytes) && self.has_places(bytes)
    }
    /// Whether the page cache has places for what one more request dirties, and would leave some to other OSTs. Nobody waits for
    /// those of an OST that is given up: its requests fail.
    pub(crate) fn has_places(&self, bytes: u64) -> bool {
        let (dirty, places_bytes) = (self.dirty_and_grant().0, self.pages.places_bytes());
        let within = |unwritten_bytes| datapath::Share { places_bytes, unwritten_bytes }.admits(dirty, bytes);
        // No more are unwritten than are cached: mostly they need not be counted.
        within(self.pages.used_pages() as u64 * PAGE)
            || within(self.osts.upgrade().map_or(0, |o| o.dirty_pages()) as u64 * PAGE)
            || self.import().is_err()
    }
    /// Fewer pages are dirty.
    fn note_fewer_dirty(&self) {
        self.changed.notify();
        self.pages.fewer_unwritten.notify();
    }
    /// Pages were dropped, and taken out of the books; gives how many of them were dirty.
    fn dropped(&self, object: &Object, gone: Gone<Cached>) -> usize {
        let dirty = gone.dropped.dirty;
        object.forget(gone);
        if dirty > 0 {
            self.note_fewer_dirty();
        }
        dirty
    }

    /// Waits until one more request may dirty pages: fewer dirty bytes than allowed, some grant if waiting can bring any, and places in the
    /// page cache. Who comes first goes first: a large request would else wait as long as small ones come.
    pub(crate) async fn dirty_room(self: &Rc<Self>, bytes: u64) {
        if self.has_room(bytes) {
            return;
        }
        self.room_turn.acquire(1).await;
        let _turn = RoomTurn(&self.room_turn);
        loop {
            let (changed, fewer_unwritten) = (self.changed.wait(), self.pages.fewer_unwritten.wait());
            if self.fits(bytes) {
                return;
            }
            if !self.has_places(bytes) {
                // What others have there is not due yet, perhaps.
                self.osts.upgrade().iter().flat_map(|o| o.all()).for_each(|osc| osc.flush_some());
            }
            self.flush_some();
            _ = race(changed, fewer_unwritten).await;
        }
    }

    /// More of the object is dirty: starts full RPCs, and others when so much is dirty that it should become less.
    pub(crate) fn note_dirty(self: &Rc<Self>, object: &Rc<Object>) {
        let key = Rc::downgrade(object);
        if types::planted!("dirty-unlisted") {
            object.with_pages(|pages| self.target.borrow_mut().on_dirty_object(key.clone(), pages));
        }
        while let Some(chosen) = self.choose(|target, objects| target.next_full(&key, objects)) {
            if !self.start_write(chosen, Rank::Ordinary) {
                break;
            }
        }
        let (dirty, max) = (self.osts.upgrade().map_or(0, |o| o.dirty_pages()), self.pages.limit_pages());
        if self.target.borrow().is_pressed(dirty, max) {
            self.flush_some();
        }
    }

    /// Starts write RPCs of the oldest dirty objects while there are places.
    fn flush_some(self: &Rc<Self>) {
        let mut round = self.target.borrow().begin_round();
        while let Some(chosen) = self.choose(|target, objects| target.next_oldest(&mut round, objects)) {
            self.start_write(chosen, Rank::Ordinary);
        }
    }

    /// Writes out everything that is dirty; called when it has become old.
    pub(crate) fn flush_old(self: &Rc<Self>) {
        self.flush_some();
    }

    /// What the room chooses.
    fn choose<T>(&self, choice: impl FnOnce(&mut datapath::Target<Weak<Object>>, &mut OfOst<'_>) -> T) -> T {
        choice(&mut self.target.borrow_mut(), &mut OfOst(self))
    }

    /// Sends what was chosen, by a task of its own. False when there is nothing to send.
    fn start_write(self: &Rc<Self>, chosen: Chosen, rank: Rank) -> bool {
        let object = chosen.key.upgrade().expect("it was there when its pages were chosen just now");
        if !chosen.gone.is_empty() {
            object.forget_cut_off(chosen.gone);
            self.note_fewer_dirty();
        }
        let Some((out, lock)) = chosen.write else { return false };
        let bulk = object.bulk_of(&out);
        // The lock under which these bytes were written is gone after an eviction, and perhaps another's now: that counts from here on.
        let losses = self.import_if_any().filter(|_| lock.0 != 0).map(|i| i.losses());
        let me = self.clone();
        self.rt.spawn(async move {
            let result = me.write_rpc(&object, &out, bulk, (lock, losses), rank).await;
            me.write_ended(&object, &out, result);
        });
        true
    }

    fn write_ended(&self, object: &Rc<Object>, out: &WriteOut, result: Result<(), FsError>) {
        let (answer, in_use) = (judged(&result), object.is_open());
        let fate = object.with_pages(|pages| self.target.borrow_mut().on_write_ended(pages, out, answer, in_use));
        object.note_written_out(out.pages.len());
        self.rpcs.settle();
        match (fate, result) {
            (Fate::Obsolete, _) => tracing::debug!(object = %object.id, "write-back of a removed object"),
            (Fate::Refused, result) => self.write_refused(object, &out.pages, result.err().unwrap_or(FsError::NoSpace)),
            (Fate::Lost, Err(e)) => self.write_failed(object, &out.pages, e),
            (Fate::Written, _) | (Fate::Lost, Ok(())) => {}
        }
        object.changed.notify();
        self.note_fewer_dirty();
    }

    /// Pages could not be written out: the file knows, and nobody reads them here any more.
    fn write_failed(&self, object: &Rc<Object>, pages: &[u64], e: FsError) {
        tracing::error!(object = %object.id, "write-back failed: {e}");
        let inode = object.inode.borrow().upgrade();
        if let Some(inode) = &inode {
            inode.writeback_failed(if e == FsError::NotFound { FsError::Io } else { e });
            self.note_loss(inode.fid, pages.len() as u64);
            // An object goes while its file is open here when the metadata server closed the file for us: by an eviction.
            if matches!(e, FsError::NotConnected | FsError::NotFound) {
                self.tell_losses();
            }
        }
        object.not_written(pages);
        if let Some(inode) = inode {
            inode.size_is_doubtful();
            self.kernel_forgets(inode);
        }
    }

    /// Pages that took no grant found no space, or their owner may not have more: those who write them are told, and nobody else.
    fn write_refused(&self, object: &Rc<Object>, pages: &[u64], why: FsError) {
        let inode = object.inode.borrow().upgrade();
        if let Some(inode) = &inode {
            inode.pages_refused(object, pages, why);
        }
        object.not_written(pages);
        if let Some(inode) = inode {
            inode.size_is_doubtful();
            self.kernel_forgets(inode);
        }
    }

    pub(super) fn kernel_forgets(&self, inode: Rc<Inode>) {
        self.rt.spawn(async move { inode.front.drop_kernel_pages().await });
    }

    async fn write_rpc(
        &self,
        object: &Object,
        out: &WriteOut,
        bulk: Bulk,
        (lock, losses): (HandleId, Option<u64>),
        rank: Rank,
    ) -> Result<(), FsError> {
        let owner = self.owner_of(object, &self.import()?);
        let request = wo::WriteRequest {
            object: object.id,
            lock,
            owner,
            mtime: object.mtime.get(),
            grant_used: out.granted as u64 * PAGE,
            grant_wanted: self.dirty_max() * 2,
            max_service_ms: if matches!(rank, Rank::Urgent(_)) { 5000 } else { 0 },
            extents: out.extents.clone(),
            file: crate::tight::owner_of(object),
            ..wo::WriteRequest::default()
        };
        self.send_write(object, &request, bulk, (rank, losses)).await
    }

    /// Sends a write, in the same session as before that many losses ([`CallOptions::losses`]).
    async fn send_write(
        &self,
        object: &Object,
        request: &wo::WriteRequest,
        bulk: Bulk,
        (rank, losses): (Rank, Option<u64>),
    ) -> Result<(), FsError> {
        let import = self.import()?;
        let bytes = bulk.len() as u64;
        let page = request.extents.first().map_or(0, |e| e.start / PAGE);
        let (started, flight) = (self.rt.now(), self.stats.begin(Direction::Write, page));
        // Write-back is bounded by its window: calls without number must not hold it up where it may become urgent yet.
        let rank = if rank == Rank::Ordinary { Rank::Ahead } else { rank };
        let options = CallOptions { losses, ..Osc::options_of((rank, 0)) };
        let under = self.lock_of_all(object);
        let mut tries = Attempts::default();
        let answer = loop {
            let answer = import.call(Op::OstWrite, wire::encode(request), bulk.clone(), options).await;
            match tries.on_answer(judged(&answer)) {
                Next::Over => break answer,
                Next::Again(Duration::ZERO) => {}
                Next::Again(pause) => self.rt.sleep(pause).await,
            }
        };
        drop(flight);
        let answer = answer?;
        object.was_changed(answer.header.transno, under);
        let reply: wo::WriteReply = answer.decode()?;
        self.target.borrow_mut().books.on_grant(reply.grant);
        self.tight.hear(request.file.as_ref(), reply.tight);
        object.blocks512.set(reply.lvb.blocks);
        self.stored(object, request.extents.last().map_or(0, |e| e.end));
        self.stats.done(Direction::Write, bytes, self.rt.now().since(started));
        Ok(())
    }

    /// The OST has carried out a write, which made the object reach to `end`; no cut of our own passed it.
    fn stored(&self, object: &Object, end: u64) {
        let last = ldlm::LockPolicyData::extent(Extent::new(end.saturating_sub(1), end));
        // A lock that is called back covers it until it goes, and may stay for reads.
        if end > 0 && self.locks.cache().peek(object.resource(), ldlm::LockMode::Cr, &last).is_some() {
            object.assured_to(end);
        } else {
            object.stored_to(end);
        }
    }

    /// Writes past the cache, for direct I/O.
    pub(crate) async fn write_direct(&self, object: &Object, at: u64, data: Bulk, held: &Held) -> Result<(), FsError> {
        let step = self.rpc_pages_max() * FRAME_BYTES;
        let mut done = 0;
        let (owner, lock) = (self.owner_of(object, &self.import()?), held.handle());
        while done < data.len() {
            let len = step.min(data.len() - done);
            let request = wo::WriteRequest {
                object: object.id,
                owner: owner.clone(),
                extents: vec![Extent::at(at + done as u64, len as u64)],
                lock,
                mtime: object.mtime.get(),
                grant_wanted: self.dirty_max() * 2,
                file: crate::tight::owner_of(object),
                ..wo::WriteRequest::default()
            };
            let losses = self.import_if_any().filter(|_| lock.0 != 0).map(|i| i.losses());
            let place = self.in_window(self.turn_of(Why::Under(held))).await;
            self.send_write(object, &request, data.slice(done, len), (place.rank, losses)).await?;
            done += len;
        }
        Ok(())
    }

    /// Writes out what is dirty in the extent now and waits until nothing of it is under way, whatever is written meanwhile: that comes after
    /// what the flush is for, or a gate keeps it away. Only for a lock that leaves it is all, until nothing is dirty. Errors are kept with
    /// the file.
    pub(crate) async fn flush(self: &Rc<Self>, object: &Rc<Object>, extent: Extent, why: Why<'_>) {
        let key = Rc::downgrade(object);
        let due = match why {
            Why::Asked | Why::Under(_) => object.with_pages(|pages| pages.due_now(extent)),
            Why::CalledBack(_) => Due::all(extent),
        };
        loop {
            let changed = object.changed.wait();
            match object.with_pages(|pages| pages.flushing(due)) {
                Flushing::Over => return,
                Flushing::UnderWay => changed.await,
                Flushing::Ready => {
                    let place = self.in_window(self.turn_of(why)).await;
                    let rank = place.rank;
                    // It is the RPC's now, or given back by the room.
                    std::mem::forget(place);
                    let chosen = self.choose(|target, objects| target.on_place(&key, due, objects));
                    if !self.start_write(chosen, rank) {
                        self.rpcs.settle();
                    }
                }
            }
        }
    }

    /// Forgets cached pages, dirty ones too; gives the number of dirty pages forgotten. Partial pages at the ends go whole,
    /// unless `zero_tail`: then the bytes from `extent.start` to its page's end are zeroed instead.
    pub(crate) fn discard(&self, object: &Rc<Object>, extent: Extent, zero_tail: bool) -> usize {
        let (mut first, end) = page_range(extent);
        if zero_tail && !extent.start.is_multiple_of(PAGE) {
            object.zero_from(extent.start);
            first += 1;
        }
        let gone = object.with_pages(|pages| self.target.borrow_mut().discard(pages, first, end));
        self.dropped(object, gone)
    }
    /// [`Osc::discard`] of what only `lock` covers, which goes: unwritten pages that another write lock covers are that
    /// one's, others stay under any lock that is not on its way out, too.
    pub(super) fn discard_under(&self, object: &Rc<Object>, lock: &LockDesc) -> usize {
        let extent = page_extent(lock.data.as_extent().unwrap_or(Extent::ALL));
        self.less_assured(object, lock);
        let others = self.locks.cache().others(lock.resource, lock.cookie, extent);
        let reach = |d: &LockDesc| d.data.as_extent().unwrap_or(Extent::EMPTY);
        let writing: Vec<Extent> = others.iter().filter(|(d, _)| d.mode.writes()).map(|(d, _)| reach(d)).collect();
        let all: Vec<Extent> = others.iter().filter(|(_, leaves)| !leaves).map(|(d, _)| reach(d)).collect();
        let gone = object.with_pages(|pages| self.target.borrow_mut().discard_uncovered(pages, extent, &writing, &all));
        self.dropped(object, gone)
    }

    /// `lock` goes: how far the object reaches for sure is what the locks that are left say.
    fn less_assured(&self, object: &Object, lock: &LockDesc) {
        let end = |d: &LockDesc| d.data.as_extent().map_or(0, |e| e.end);
        // Others reach farther: theirs is the last word anyway.
        if end(lock) >= object.assured() {
            let left = self.locks.cache().others(lock.resource, lock.cookie, Extent::ALL);
            object.lock_gone(left.iter().map(|(d, _)| end(d)).max().unwrap_or(0));
        }
    }

    /// Everything that the OST has answered so far is on its stable storage afterwards.
    pub(crate) async fn sync(&self) -> Result<(), FsError> {
        self.import()?.ask::<_, ()>(Op::OstSync, &wo::SyncRequest::default()).await
    }

    /// Everything that this client has written out of an object is on stable storage afterwards; with `everyones` also what
    /// others have written to it before: whatever a reader could have found.
    pub(crate) async fn sync_object(&self, object: &Object, everyones: bool) -> Result<(), FsError> {
        let import = self.import()?;
        let others = everyones && !self.is_ours_alone(object) && !types::planted!("others-not-synced");
        let before = if others { self.others_are_away(object).await? } else { None };
        let everyones = others && (before.is_none() || !self.others_are_synced(object, &import, before));
        if import.on_fsync() == Fsync::Done && !everyones {
            return Ok(());
        }
        import.ask::<_, ()>(Op::OstSync, &wo::SyncRequest { object: object.id, everyones }).await?;
        object.others_synced_under.set(self.lock_of_all(object).filter(|lock| Some(*lock) == before));
        Ok(())
    }

    /// A lock by which no other client writes to the object, or has bytes of it that are not written out: if there is one, or, where this
    /// client has none at all, nobody minds.
    async fn others_are_away(&self, object: &Object) -> Result<Option<LockCookie>, FsError> {
        if !self.locks.knows(object.resource()) {
            let all = LockPolicyData::extent(Extent::ALL);
            let asked = self.locks.acquire(object.resource(), LockMode::Pr, all, EnqueueFlags::NOWAIT).await;
            if asked.is_err_and(|e| e == DenyReason::Gone) {
                return Err(FsError::NotFound);
            }
        }
        Ok(self.lock_of_all(object))
    }

    /// Whether what others had written before `lock` was granted is on stable storage: that was found, or a later change is.
    fn others_are_synced(&self, object: &Object, import: &Import, lock: Option<LockCookie>) -> bool {
        let later = object.changed_under.get() == lock && object.changed_by.get() <= import.last_committed();
        if later {
            object.others_synced_under.set(lock);
        }
        object.others_synced_under.get() == lock
    }

    /// Truncates, punches or zeroes a range at the OST.
    pub(crate) async fn punch(
        &self,
        object: &Object,
        kind: wo::PunchKind,
        extent: Extent,
        held: &Held,
    ) -> Result<(), FsError> {
        let import = self.import()?;
        let (lock, mtime) = (held.handle(), object.mtime.get());
        let owner = self.owner_of(object, &import);
        let file = crate::tight::owner_of(object);
        let request = wo::PunchRequest { object: object.id, kind, extent, lock, mtime, owner, file };
        let options = self.options_of_change(&import, held)?;
        let under = self.lock_of_all(object);
        let answer = import.call(Op::OstPunch, wire::encode(&request), Bulk::new(), options).await?;
        object.was_changed(answer.header.transno, under);
        let reply: wo::AttrReply = answer.decode()?;
        object.blocks512.set(reply.lvb.blocks);
        Ok(())
    }
}
