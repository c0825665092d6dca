//! Reading pages of an object into the cache, and past it.
use std::rc::Rc;

use cache::PageAccess;
use datapath::{Attempts, Next};
use frames::{Bulk, FRAME_BYTES, FrameRun};
use ldlm::{DenyReason, EnqueueFlags, LockMode, LockPolicyData};
use types::{Extent, FsError, HandleId};
use wire::Op;
use wire::lock as wl;
use wire::ost as wo;

use super::{Osc, PAGE, Turn, Why, judged};
use crate::inode::Object;
use crate::locks::{Held, Question, Sought};
use crate::object::Claimed;
use crate::stats::Direction;

/// Pages that are wanted as soon as there is a lock for them: `first..end` of an object.
struct Wanted {
    object: Rc<Object>,
    first: u64,
    end: u64,
    access: PageAccess,
}

impl Osc {
    /// Reads `extents` (whole pages) of an object into frames; one RPC.
    async fn read_rpc(
        &self,
        object: &Object,
        extent: Extent,
        right: Right,
        turn: Turn,
        access: &PageAccess,
    ) -> Result<(Bulk, wo::ReadReply), FsError> {
        let (lock, enqueue) = match right {
            Right::Lock(handle) => (handle, None),
            Right::Asked(wish) => (HandleId(0), Some(wish)),
        };
        let import = self.import()?;
        let place = self.in_window(turn).await;
        let options = Osc::options_of((place.rank, turn.1));
        let (started, flight) = (self.rt.now(), self.stats.begin(Direction::Read, extent.start / PAGE));
        let mut request = wo::ReadRequest {
            object: object.id,
            extents: vec![extent],
            lock,
            enqueue,
            owner: self.owner_of(object, &import),
            request_bytes: access.request_bytes,
            readahead: access.readahead,
            ..wo::ReadRequest::default()
        };
        let mut tries = Attempts::default();
        let answer = loop {
            let answer = import.call(Op::OstRead, wire::encode(&request), Bulk::new(), options).await;
            // A program waits for it: no pauses.
            if tries.on_answer(judged(&answer)) == Next::Over {
                break answer;
            }
            request.recheck = true;
        };
        drop((place, flight));
        let answer = answer?;
        let reply: wo::ReadReply = answer.decode()?;
        self.stats.done(Direction::Read, answer.bulk.len() as u64, self.rt.now().since(started));
        Ok((answer.bulk, reply))
    }

    /// Makes the pages `first..end` of an object present as far as the object reaches; the caller holds a lock that
    /// covers them. Gives how many of them had to be fetched. Nothing is, when the lock was lost meanwhile.
    pub(crate) async fn load(
        self: &Rc<Self>,
        object: &Rc<Object>,
        first: u64,
        end: u64,
        held: &Held,
        access: PageAccess,
    ) -> Result<u64, FsError> {
        object.settled(first, end).await;
        let end = end.min(object.size().div_ceil(PAGE));
        // Without the lock nothing may be cached.
        let lock = held.handle();
        if first >= end || lock.0 == 0 {
            return Ok(0);
        }
        let runs = object.claim_missing(first, end, self.rpc_pages_max() as u64);
        let fetched = runs.iter().map(|c| c.end - c.first).sum();
        let turn = self.turn_of(Why::Under(held));
        let work: Vec<_> = runs.into_iter().map(|c| self.load_run(object, c, lock, turn, access)).collect();
        for result in rt::sync::join_all(work).await {
            result?;
        }
        loop {
            let changed = object.changed.wait();
            if !(first..end).any(|p| object.is_loading(p)) {
                return Ok(fetched);
            }
            changed.await;
        }
    }

    async fn load_run(
        &self,
        object: &Rc<Object>,
        claimed: Claimed,
        lock: HandleId,
        turn: Turn,
        access: PageAccess,
    ) -> Result<(), FsError> {
        let claim = Claim { object, claimed };
        let extent = Extent::new(claimed.first * PAGE, claimed.end * PAGE);
        let (bulk, reply) = self.read_rpc(object, extent, Right::Lock(lock), turn, &access).await?;
        self.take_in(object, claimed, bulk, &reply, access);
        drop(claim);
        Ok(())
    }

    /// Caches what a read brought of the pages that were claimed for it.
    fn take_in(&self, object: &Rc<Object>, claimed: Claimed, bulk: Bulk, reply: &wo::ReadReply, access: PageAccess) {
        if reply.lvb.mtime > object.mtime.get() {
            object.mtime.set(reply.lvb.mtime);
        }
        let Claimed { first, end, .. } = claimed;
        let brought = bulk.len().div_ceil(FRAME_BYTES) as u64;
        for (i, frame) in frames_of(bulk, self.rt.frames()).into_iter().enumerate() {
            object.arrived(claimed, first + i as u64, frame, access);
        }
        // The object is shorter at the OST than what we know of it (its end is not written yet): a hole.
        for page in first + brought..end.min(object.size().div_ceil(PAGE)) {
            object.arrived(claimed, page, self.pages.zeros().slice(0, 1), access);
        }
    }

    /// A read lock and the pages `first..end`, in one request where both have to be asked for and one RPC can bring
    /// the pages. Gives whether they came along; they may not have, and then the lock is there alone.
    pub(crate) async fn lock_and_load(
        self: &Rc<Self>,
        object: &Rc<Object>,
        data: LockPolicyData,
        (first, end): (u64, u64),
        access: PageAccess,
        flags: EnqueueFlags,
    ) -> Result<(Held, bool), DenyReason> {
        let (coming, question) = match self.locks.seek(object.resource(), LockMode::Pr, data, flags) {
            Sought::Held(held) => return Ok((held, false)),
            Sought::Comes(coming) => return Ok((coming.end().await?, false)),
            Sought::Ask(coming, question) => (coming, question),
        };
        let wanted = Wanted { object: object.clone(), first, end, access };
        let me = self.clone();
        let came = self.locks.by_itself(async move { me.ask_with_read(question, wanted).await });
        let held = coming.end().await?;
        Ok((held, came.await.unwrap_or(false)))
    }

    /// Asks for a lock along with the pages that are wanted, or alone where one RPC cannot bring them. Whether they came.
    async fn ask_with_read(&self, question: Question, wanted: Wanted) -> bool {
        let Wanted { object, first, end, access } = wanted;
        let locks = &self.locks;
        let (request, body) = locks.message(question).await;
        let runs = object.claim_missing(first, end, self.rpc_pages_max() as u64);
        let claims: Vec<_> = runs.iter().map(|c| Claim { object: &object, claimed: *c }).collect();
        let Some(claimed) = runs.first().copied().filter(|c| (c.first, c.end) == (first, end)) else {
            drop(claims);
            locks.send(&request, &body).await;
            return false;
        };
        let extent = Extent::new(first * PAGE, end * PAGE);
        let asked = object.moment();
        let answer = self.read_rpc(&object, extent, Right::Asked(body), self.turn_of(Why::Asked), &access).await;
        let granted = match &answer {
            Ok((_, reply)) => reply.enqueue.clone().ok_or(FsError::Protocol),
            Err(e) => Err(*e),
        };
        locks.answered(&request, asked, granted);
        // Whoever cares for the lock from now on has not run yet: what is taken in here goes with it.
        let is_held = locks.cache().get(request.cookie).is_some_and(|l| l.handle.0 != 0);
        if let Ok((bulk, reply)) = answer
            && is_held
            && !reply.lens.is_empty()
        {
            self.take_in(&object, claimed, bulk, &reply, access);
            return true;
        }
        false
    }

    /// Reads past the cache, for direct I/O.
    pub(crate) async fn read_direct(&self, object: &Rc<Object>, extent: Extent, held: &Held) -> Result<Bulk, FsError> {
        let mut out = Bulk::new();
        let mut at = extent.start;
        let step = self.rpc_pages_max() as u64 * PAGE;
        while at < extent.end {
            let part = Extent::new(at, extent.end.min(at + step));
            let access = PageAccess::coarse(0, u32::try_from(extent.len()).unwrap_or(u32::MAX));
            let turn = self.turn_of(Why::Under(held));
            let (bulk, _) = self.read_rpc(object, part, Right::Lock(held.handle()), turn, &access).await?;
            let short = (bulk.len() as u64) < part.len();
            out.append(bulk);
            if short {
                break;
            }
            at = part.end;
        }
        Ok(out)
    }
}

/// What allows a read.
enum Right {
    /// A lock of this client; 0: none, the server takes one.
    Lock(HandleId),
    /// A lock that is asked for along with the read.
    Asked(wl::EnqueueRequest),
}

/// A claim on pages that ends with the load, however it ends.
struct Claim<'a> {
    object: &'a Rc<Object>,
    claimed: Claimed,
}
impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.object.unclaim(self.claimed);
    }
}

/// One frame per page of a read's bulk; the last page's tail is zeroed. Frames are adopted, not copied, where the bulk
/// lies in whole pages.
fn frames_of(bulk: Bulk, pool: frames::FramePool) -> Vec<FrameRun> {
    let aligned =
        bulk.segments().iter().rev().skip(1).all(|s| s.offset == 0 && (s.len as usize).is_multiple_of(FRAME_BYTES))
            && bulk.segments().last().is_none_or(|s| s.offset == 0);
    if !aligned {
        let len = bulk.len();
        let Some(mut copy) = Bulk::alloc(pool, len) else { return Vec::new() };
        copy.copy_in(0, &bulk.to_vec());
        return frames_of(copy, pool);
    }
    let mut out = Vec::with_capacity(bulk.len().div_ceil(FRAME_BYTES));
    for s in bulk.into_segments() {
        let (mut run, len) = (s.run, s.len as usize);
        let used = len.div_ceil(FRAME_BYTES);
        if used < run.frames() {
            drop(run.split_off(used));
        }
        let tail = len % FRAME_BYTES;
        while run.frames() > 1 {
            let rest = run.split_off(1);
            out.push(run);
            run = rest;
        }
        if tail != 0 {
            run = zero_tail(run, tail, pool);
        }
        out.push(run);
    }
    out
}

fn zero_tail(mut run: FrameRun, from: usize, pool: frames::FramePool) -> FrameRun {
    if let Some(bytes) = run.bytes_mut() {
        bytes[from..].fill(0);
        return run;
    }
    let Some(mut fresh) = pool.alloc_run(1) else { return run };
    let bytes = fresh.bytes_mut().expect("a fresh frame has one owner");
    bytes[..from].copy_from_slice(&run.bytes()[..from]);
    bytes[from..].fill(0);
    fresh
}
