//! A client's side of one OST: its import, its locks, its grant, reads and write-out of pages.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use cache::PageAccess;
use cache::frames::{Bulk, FRAME_BYTES, FrameRun};
use ldlm::{InodeBits, LockDesc, LockMode, ResourceId};
use ptlrpc::{CallOptions, Callbacks, Import};
use rt::sync::{Event, Semaphore};
use rt::{LocalFuture, Rt};
use types::{Extent, FsError, HandleId, OstIndex, Transno};
use wire::connect::AuthReply;
use wire::lock as wl;
use wire::ost as wo;
use wire::{Flags, Op};

use crate::client::Client;
use crate::inode::Inode;
use crate::locks::{LockOwner, Locks};
use crate::object::{Object, WriteOut};

const PAGE: u64 = FRAME_BYTES as u64;

/// Counters of one OST's traffic.
#[derive(Clone, Copy, Debug, Default)]
pub struct OscStats {
    /// Bulk read RPCs.
    pub read_rpcs: u64,
    /// Bytes they brought.
    pub read_bytes: u64,
    /// Bulk write RPCs.
    pub write_rpcs: u64,
    /// Bytes they took.
    pub write_bytes: u64,
}

/// A client's side of one OST.
pub struct Osc {
    pub(crate) rt: Rt,
    pub(crate) index: OstIndex,
    pub(crate) import: RefCell<Option<Rc<Import>>>,
    pub(crate) locks: Rc<Locks>,
    client: Weak<Client>,
    active: Cell<bool>,
    grant: Cell<u64>,
    dirty: Cell<u64>,
    dirty_max: Cell<u64>,
    rpc_pages: Cell<usize>,
    rpcs: Semaphore,
    rpcs_max: Cell<usize>,
    /// Objects with dirty pages, oldest first.
    dirty_objects: RefCell<VecDeque<Weak<Object>>>,
    /// Grant, dirty bytes or an RPC slot changed.
    changed: Event,
    stats: Cell<OscStats>,
    last_unsynced: Cell<Transno>,
}

impl Osc {
    pub(crate) fn new(rt: Rt, index: OstIndex, client: Weak<Client>, config: &crate::ClientConfig) -> Rc<Osc> {
        let locks = Locks::new(rt.clone(), ldlm::LockCacheConfig { lru_max: config.locks_max, ..Default::default() });
        Rc::new(Osc {
            rt,
            index,
            import: RefCell::new(None),
            locks,
            client,
            active: Cell::new(true),
            grant: Cell::new(0),
            dirty: Cell::new(0),
            dirty_max: Cell::new(config.dirty_bytes_max),
            rpc_pages: Cell::new(config.rpc_pages_max),
            rpcs: Semaphore::new(config.rpcs_in_flight_max),
            rpcs_max: Cell::new(config.rpcs_in_flight_max),
            dirty_objects: RefCell::default(),
            changed: Event::new(),
            stats: Cell::default(),
            last_unsynced: Cell::new(Transno(0)),
        })
    }
    pub(crate) fn attach(self: &Rc<Self>, import: Rc<Import>) {
        let owner: Weak<dyn LockOwner> = Rc::downgrade(&(self.clone() as Rc<dyn LockOwner>));
        self.locks.attach(import.clone(), owner);
        *self.import.borrow_mut() = Some(import);
    }
    /// The OST's index.
    #[must_use]
    pub fn index(&self) -> OstIndex {
        self.index
    }
    /// Its import.
    ///
    /// # Errors
    /// `NoTarget` when the OST is deactivated or not in the map.
    pub fn import(&self) -> Result<Rc<Import>, FsError> {
        if !self.active.get() {
            return Err(FsError::Io);
        }
        self.import.borrow().clone().ok_or(FsError::NoTarget)
    }
    /// Traffic so far.
    #[must_use]
    pub fn stats(&self) -> OscStats {
        self.stats.get()
    }
    /// Dirty bytes, grant.
    #[must_use]
    pub fn dirty_and_grant(&self) -> (u64, u64) {
        (self.dirty.get(), self.grant.get())
    }
    /// Bulk RPCs in flight allowed.
    #[must_use]
    pub fn rpcs_in_flight_max(&self) -> usize {
        self.rpcs_max.get()
    }
    /// Changes the number of bulk RPCs in flight, 1..=256.
    pub fn set_rpcs_in_flight_max(&self, n: usize) {
        let n = n.clamp(1, 256);
        self.rpcs.add(n as isize - self.rpcs_max.replace(n) as isize);
    }
    /// Pages per RPC.
    #[must_use]
    pub fn rpc_pages_max(&self) -> usize {
        self.rpc_pages.get()
    }
    /// Changes the pages per RPC, 1..=16384.
    pub fn set_rpc_pages_max(&self, n: usize) {
        self.rpc_pages.set(n.clamp(1, 16384));
    }
    /// Dirty bytes allowed.
    #[must_use]
    pub fn dirty_max(&self) -> u64 {
        self.dirty_max.get()
    }
    /// Changes the dirty bytes allowed, at least 1 MiB.
    pub fn set_dirty_max(&self, bytes: u64) {
        self.dirty_max.set(bytes.max(1 << 20));
        self.changed.notify();
    }
    fn bump(&self, f: impl FnOnce(&mut OscStats)) {
        let mut s = self.stats.get();
        f(&mut s);
        self.stats.set(s);
    }

    // ---- reading

    /// Reads `extents` (whole pages) of an object into frames; one RPC.
    async fn read_rpc(
        &self,
        object: &Object,
        extent: Extent,
        lock: HandleId,
        access: &PageAccess,
    ) -> Result<(Bulk, wo::ReadReply), FsError> {
        let import = self.import()?;
        self.rpcs.acquire(1).await;
        let mut request = wo::ReadRequest {
            object: object.id,
            extents: vec![extent],
            lock,
            request_bytes: access.request_bytes,
            readahead: access.readahead,
            ..wo::ReadRequest::default()
        };
        let mut answer = import.call(Op::OstRead, wire::encode(&request), Bulk::new(), CallOptions::default()).await;
        for _ in 0..3 {
            if !matches!(answer, Err(FsError::Corrupt)) {
                break;
            }
            request.recheck = true;
            answer = import.call(Op::OstRead, wire::encode(&request), Bulk::new(), CallOptions::default()).await;
        }
        self.rpcs.add(1);
        let answer = answer?;
        let reply: wo::ReadReply = answer.decode()?;
        self.bump(|s| {
            s.read_rpcs += 1;
            s.read_bytes += answer.bulk.len() as u64;
        });
        Ok((answer.bulk, reply))
    }

    /// Makes the pages `first..end` of an object present as far as the object reaches; the caller holds a lock that
    /// covers them. Gives how many of them had to be fetched.
    pub(crate) async fn load(
        self: &Rc<Self>,
        object: &Rc<Object>,
        first: u64,
        end: u64,
        lock: HandleId,
        access: PageAccess,
    ) -> Result<u64, FsError> {
        let end = end.min(object.size().div_ceil(PAGE));
        if first >= end {
            return Ok(0);
        }
        let runs = object.claim_missing(first, end, self.rpc_pages.get() as u64);
        let fetched = runs.iter().map(|(a, b)| b - a).sum();
        let work: Vec<_> = runs.into_iter().map(|(a, b)| self.load_run(object, a, b, lock, access)).collect();
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
        first: u64,
        end: u64,
        lock: HandleId,
        access: PageAccess,
    ) -> Result<(), FsError> {
        let claim = Claim { object, first, end };
        let (bulk, reply) = self.read_rpc(object, Extent::new(first * PAGE, end * PAGE), lock, &access).await?;
        if reply.lvb.mtime > object.mtime.get() {
            object.mtime.set(reply.lvb.mtime);
        }
        let brought = bulk.len().div_ceil(FRAME_BYTES) as u64;
        for (i, frame) in frames_of(bulk, object, self.rt.frames()).into_iter().enumerate() {
            object.arrived(first + i as u64, frame, access);
        }
        // The object is shorter at the OST than what we know of it (its end is not written yet): a hole.
        if let Some(client) = self.client.upgrade() {
            for page in first + brought..end {
                object.arrived(page, client.zeros.slice(0, 1), access);
            }
        }
        drop(claim);
        Ok(())
    }

    /// Reads past the cache, for direct I/O.
    pub(crate) async fn read_direct(
        &self,
        object: &Rc<Object>,
        extent: Extent,
        lock: HandleId,
    ) -> Result<Bulk, FsError> {
        let mut out = Bulk::new();
        let mut at = extent.start;
        let step = self.rpc_pages.get() as u64 * PAGE;
        while at < extent.end {
            let part = Extent::new(at, extent.end.min(at + step));
            let access = PageAccess::coarse(0, u32::try_from(extent.len()).unwrap_or(u32::MAX));
            let (bulk, _) = self.read_rpc(object, part, lock, &access).await?;
            let short = (bulk.len() as u64) < part.len();
            out.append(bulk);
            if short {
                break;
            }
            at = part.end;
        }
        Ok(out)
    }

    // ---- writing

    /// Charges a page that became dirty. False when there is no grant: the page must be written out at once.
    pub(crate) fn charge_page(&self) -> bool {
        self.dirty.set(self.dirty.get() + PAGE);
        if self.grant.get() < PAGE {
            return false;
        }
        self.grant.set(self.grant.get() - PAGE);
        true
    }

    /// Waits until one more request may dirty pages: fewer dirty bytes than allowed, and some grant if waiting can
    /// bring any.
    pub(crate) async fn dirty_room(self: &Rc<Self>, bytes: u64) {
        loop {
            let changed = self.changed.wait();
            let over = self.dirty.get() > 0 && self.dirty.get() + bytes > self.dirty_max.get();
            let poor = self.grant.get() < bytes && self.dirty.get() > 0;
            if !over && !poor {
                return;
            }
            self.flush_some();
            changed.await;
        }
    }

    /// Puts the object on the list of dirty ones and starts full RPCs.
    pub(crate) fn note_dirty(self: &Rc<Self>, object: &Rc<Object>) {
        if !object.listed.replace(true) {
            self.dirty_objects.borrow_mut().push_back(Rc::downgrade(object));
        }
        while object.dirty_pages() >= self.rpc_pages.get() && self.rpcs.try_acquire(1) {
            if !self.start_write(object, Extent::ALL, false) {
                self.rpcs.add(1);
                break;
            }
        }
        let pages = self.client.upgrade().map_or((0, 1), |c| (c.dirty_pages(), c.pages.limit_pages()));
        if self.dirty.get() > self.dirty_max.get() / 2 || pages.0 > pages.1 / 2 {
            self.flush_some();
        }
    }

    /// Starts write RPCs of the oldest dirty objects while slots are free.
    fn flush_some(self: &Rc<Self>) {
        let n = self.dirty_objects.borrow().len();
        for _ in 0..n {
            let Some(front) = self.dirty_objects.borrow_mut().pop_front() else { return };
            let Some(object) = front.upgrade() else { continue };
            while object.dirty_pages() > 0 {
                if !self.rpcs.try_acquire(1) {
                    self.dirty_objects.borrow_mut().push_front(front);
                    return;
                }
                if !self.start_write(&object, Extent::ALL, false) {
                    self.rpcs.add(1);
                    break;
                }
            }
            if object.dirty_pages() == 0 {
                object.listed.set(false);
            } else {
                self.dirty_objects.borrow_mut().push_back(front);
            }
        }
    }

    /// Writes out everything that is dirty; called when it has become old.
    pub(crate) fn flush_old(self: &Rc<Self>) {
        self.flush_some();
    }

    /// Starts one write RPC; the caller holds a slot, which the RPC gives back. False when nothing was ready.
    fn start_write(self: &Rc<Self>, object: &Rc<Object>, extent: Extent, urgent: bool) -> bool {
        let Some(first) = object.first_dirty(extent) else { return false };
        // One RPC stays within one lock: its handle is the write's right at the server.
        let start = ldlm::LockPolicyData::extent(Extent::at(first * PAGE, 1));
        let lock = self.locks.cache().peek(object.resource(), LockMode::Pw, &start);
        let (handle, within) =
            lock.map_or((HandleId(0), Extent::ALL), |l| (l.handle, l.data.as_extent().unwrap_or(Extent::ALL)));
        let reach = extent.intersect(&page_extent(within)).unwrap_or(Extent::EMPTY);
        let Some(out) = object.take_dirty(reach, self.rpc_pages.get()) else { return false };
        let (me, object) = (self.clone(), object.clone());
        self.rt.spawn(async move {
            let pages = out.pages.len() as u64;
            let numbers = out.pages.clone();
            let result = me.write_rpc(&object, out, handle, urgent).await;
            me.rpcs.add(1);
            me.dirty.set(me.dirty.get().saturating_sub(pages * PAGE));
            match result {
                Ok(()) => object.written(&numbers),
                Err(FsError::NotFound) => {
                    // The file was removed, perhaps by another client: nobody can ask for these bytes any more.
                    tracing::debug!(object = %object.id, "write-back of a removed object");
                    object.written(&numbers);
                }
                Err(e) => me.write_failed(&object, &numbers, e),
            }
            me.changed.notify();
        });
        true
    }

    /// Pages could not be written out: the file knows, and nobody reads them here any more.
    fn write_failed(&self, object: &Rc<Object>, pages: &[u64], e: FsError) {
        tracing::error!(object = %object.id, "write-back failed: {e}");
        let inode = object.inode.borrow().upgrade();
        if let Some(inode) = &inode {
            inode.writeback_failed(e);
            if e == FsError::NotConnected {
                self.note_loss(inode.fid, pages.len() as u64);
                self.tell_losses();
            }
        }
        object.not_written(pages);
        if let Some(inode) = inode {
            self.size_is_less(&inode);
            self.kernel_forgets(inode);
        }
    }

    fn kernel_forgets(&self, inode: Rc<Inode>) {
        self.rt.spawn(async move { inode.drop_kernel_pages().await });
    }

    async fn write_rpc(&self, object: &Rc<Object>, out: WriteOut, lock: HandleId, urgent: bool) -> Result<(), FsError> {
        let request = wo::WriteRequest {
            object: object.id,
            lock,
            mtime: object.mtime.get(),
            grant_used: out.pages.len() as u64 * PAGE,
            grant_wanted: self.dirty_max.get() * 2,
            max_service_ms: if urgent { 5000 } else { 0 },
            extents: out.extents,
            ..wo::WriteRequest::default()
        };
        self.send_write(object, &request, out.bulk, urgent).await
    }

    async fn send_write(
        &self,
        object: &Object,
        request: &wo::WriteRequest,
        bulk: Bulk,
        urgent: bool,
    ) -> Result<(), FsError> {
        let import = self.import()?;
        let bytes = bulk.len() as u64;
        // The lock under which these bytes were written is gone after an eviction, and perhaps another's now.
        let evictions = (request.lock.0 != 0).then(|| import.evictions());
        let flags = if urgent { Flags::URGENT } else { Flags::default() };
        let options = CallOptions { flags, evictions, ..Default::default() };
        let mut answer = Err(FsError::Corrupt);
        for _ in 0..4 {
            answer = import.call(Op::OstWrite, wire::encode(request), bulk.clone(), options).await;
            if !matches!(answer, Err(FsError::Corrupt)) {
                break;
            }
        }
        let answer = answer?;
        let reply: wo::WriteReply = answer.decode()?;
        self.grant.set(self.grant.get() + reply.grant);
        self.last_unsynced.set(self.last_unsynced.get().max(answer.header.transno));
        object.blocks512.set(reply.lvb.blocks);
        object.stored_to(request.extents.last().map_or(0, |e| e.end));
        self.bump(|s| {
            s.write_rpcs += 1;
            s.write_bytes += bytes;
        });
        Ok(())
    }

    /// Writes past the cache, for direct I/O.
    pub(crate) async fn write_direct(
        &self,
        object: &Object,
        at: u64,
        data: Bulk,
        lock: HandleId,
    ) -> Result<(), FsError> {
        let step = self.rpc_pages.get() * FRAME_BYTES;
        let mut done = 0;
        while done < data.len() {
            let len = step.min(data.len() - done);
            let request = wo::WriteRequest {
                object: object.id,
                extents: vec![Extent::at(at + done as u64, len as u64)],
                lock,
                mtime: object.mtime.get(),
                grant_wanted: self.dirty_max.get() * 2,
                ..wo::WriteRequest::default()
            };
            self.rpcs.acquire(1).await;
            let result = self.send_write(object, &request, data.slice(done, len), false).await;
            self.rpcs.add(1);
            result?;
            done += len;
        }
        Ok(())
    }

    /// Writes out what is dirty in the extent and waits until nothing of it is under way. Errors are kept with the
    /// file.
    pub(crate) async fn flush(self: &Rc<Self>, object: &Rc<Object>, extent: Extent, urgent: bool) {
        loop {
            let changed = object.changed.wait();
            if !object.is_unwritten(extent) {
                return;
            }
            if object.dirty_pages() > 0 {
                self.rpcs.acquire(1).await;
                if self.start_write(object, extent, urgent) {
                    continue;
                }
                self.rpcs.add(1);
                if !object.is_unwritten(extent) {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Forgets cached pages, dirty ones too; gives the number of dirty pages forgotten.
    pub(crate) fn discard(&self, object: &Rc<Object>, extent: Extent, zero_tail: bool) -> usize {
        let lost = object.drop_pages(extent, zero_tail);
        if lost > 0 {
            let bytes = lost as u64 * PAGE;
            self.dirty.set(self.dirty.get().saturating_sub(bytes));
            self.grant.set(self.grant.get() + bytes);
            self.changed.notify();
        }
        lost
    }

    /// Everything answered so far of this object is on stable storage afterwards.
    pub(crate) async fn sync(&self, object: types::ObjectId) -> Result<(), FsError> {
        let import = self.import()?;
        if import.last_committed() >= self.last_unsynced.get() && !object.0.is_zero() {
            return Ok(());
        }
        import.ask::<_, ()>(Op::OstSync, &wo::SyncRequest { object }).await
    }

    /// Truncates, punches or zeroes a range at the OST.
    pub(crate) async fn punch(
        &self,
        object: &Object,
        kind: wo::PunchKind,
        extent: Extent,
        lock: HandleId,
    ) -> Result<(), FsError> {
        let import = self.import()?;
        let request =
            wo::PunchRequest { object: object.id, kind, extent, lock, mtime: object.mtime.get(), ..Default::default() };
        let answer = import.call(Op::OstPunch, wire::encode(&request), Bulk::new(), CallOptions::default()).await?;
        let reply: wo::AttrReply = answer.decode()?;
        self.last_unsynced.set(self.last_unsynced.get().max(answer.header.transno));
        object.blocks512.set(reply.lvb.blocks);
        Ok(())
    }

    fn object(&self, lock: &LockDesc) -> Option<Rc<Object>> {
        self.client.upgrade()?.find_object(types::ObjectId(lock.resource.fid))
    }
}

/// A claim on pages that ends with the load, however it ends.
struct Claim<'a> {
    object: &'a Rc<Object>,
    first: u64,
    end: u64,
}
impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.object.unclaim(self.first, self.end);
    }
}

/// One frame per page of a read's bulk; the last page's tail is zeroed. Frames are adopted, not copied, where the bulk
/// lies in whole pages.
fn frames_of(bulk: Bulk, _object: &Object, pool: cache::frames::FramePool) -> Vec<FrameRun> {
    let aligned =
        bulk.segments().iter().rev().skip(1).all(|s| s.offset == 0 && (s.len as usize).is_multiple_of(FRAME_BYTES))
            && bulk.segments().last().is_none_or(|s| s.offset == 0);
    if !aligned {
        let len = bulk.len();
        let Some(mut copy) = Bulk::alloc(pool, len) else { return Vec::new() };
        copy.copy_in(0, &bulk.to_vec());
        return frames_of(copy, _object, pool);
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

fn zero_tail(mut run: FrameRun, from: usize, pool: cache::frames::FramePool) -> FrameRun {
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

impl LockOwner for Osc {
    fn revoke(self: Rc<Self>, lock: LockDesc, _keep: InodeBits) -> LocalFuture<()> {
        Box::pin(async move {
            let Some(object) = self.object(&lock) else { return };
            tracing::trace!(ost = %self.index, ?lock, "revoke");
            let extent = lock.data.as_extent().unwrap_or(Extent::ALL);
            let inode = object.inode.borrow().upgrade();
            if let Some(inode) = &inode {
                inode.drop_kernel_pages().await;
            }
            if lock.mode.writes() {
                self.flush(&object, extent, true).await;
            }
            let lost = self.discard(&object, page_extent(extent), false);
            if lost > 0 {
                tracing::error!(object = %object.id, lost, "dirty pages under a revoked lock could not be written");
            }
        })
    }
    fn value_block(&self, resource: ResourceId, lvb: &wl::Lvb) {
        let Some(object) = self.client.upgrade().and_then(|c| c.find_object(types::ObjectId(resource.fid))) else {
            return;
        };
        tracing::trace!(object = %object.id, size = lvb.size, unwritten = object.unwritten_end(), "value block");
        // Under a lock over the end we know better: the answer to a question asked before we had it comes late.
        if !self.size_is_exact(&object) {
            object.told_size(lvb.size);
        }
        object.mtime.set(object.mtime.get().max(lvb.mtime));
        object.blocks512.set(lvb.blocks);
    }
    fn lost(&self, lock: LockDesc) {
        let Some(object) = self.object(&lock) else { return };
        let lost = self.discard(&object, Extent::ALL, false);
        if let Some(inode) = object.inode.borrow().upgrade() {
            if lost > 0 {
                self.note_loss(inode.fid, lost as u64);
                inode.writeback_failed(FsError::Io);
                self.size_is_less(&inode);
            }
            self.kernel_forgets(inode);
        }
        self.changed.notify();
    }
}

fn page_extent(extent: Extent) -> Extent {
    extent.align_out(PAGE)
}

impl Callbacks for Osc {
    fn on_callback(self: Rc<Self>, op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        let answer = match op {
            Op::LockBlocking => {
                wire::decode(&body).map_err(FsError::from).and_then(|c| self.locks.on_blocking(&c)).map(|()| Vec::new())
            }
            Op::LockCompletion => wire::decode(&body)
                .map_err(FsError::from)
                .and_then(|c| self.locks.on_completion(&c))
                .map(|()| Vec::new()),
            Op::LockGlimpse => wire::decode(&body).map_err(FsError::from).map(|c| wire::encode(&self.glimpsed(&c))),
            _ => Err(FsError::NotSupported),
        };
        Box::pin(std::future::ready(answer))
    }
    fn on_connected(&self, session: &AuthReply) {
        // The server counts the dirty bytes that we hold as part of the grant that it tells.
        self.grant.set(session.grant.saturating_sub(self.dirty.get()));
        self.changed.notify();
    }
    fn state_replays(&self) -> Vec<(Op, Vec<u8>)> {
        self.locks.replays()
    }
    fn on_state_replayed(&self, _op: Op, request: &[u8], answer: Result<Vec<u8>, FsError>) {
        self.locks.on_replayed(request, answer);
    }
    fn on_recovered(self: Rc<Self>) {
        self.locks.resend_waiting();
        // What we know may rest on changes of another client that died before it could tell the restarted server of them.
        self.locks.give_back_unused();
    }
    fn on_evicted(&self) {
        self.locks.on_evicted();
        self.tell_losses();
    }
}

impl Osc {
    /// Bytes that made the file longer are gone: neither this client nor its kernel knows the size by itself any more.
    fn size_is_less(&self, inode: &Inode) {
        inode.ours_alone.set(false);
        if let Some(client) = self.client.upgrade() {
            drop(client.kernel().drop_attributes(inode.fid));
        }
    }
    fn note_loss(&self, file: types::Fid, pages: u64) {
        if let Some(client) = self.client.upgrade() {
            client.losses().note(file, pages * PAGE);
        }
    }
    fn tell_losses(&self) {
        if let Some(text) = self.client.upgrade().and_then(|c| c.losses().take_message()) {
            tracing::error!(ost = %self.index, "evicted: {text}; llite.*.lost_files lists them");
        }
    }
}

impl Osc {
    /// What this client alone can know of an object: its size under a lock over its end, what it has not written out
    /// yet otherwise. What it heard of the size once may be old.
    fn glimpsed(&self, call: &wl::GlimpseCallback) -> wl::GlimpseReply {
        let lock = self.locks.cache().get(ldlm::LockCookie(call.cookie));
        let lvb = lock.and_then(|l| self.object(&l)).map(|o| {
            let (size, blocks) =
                if self.size_is_exact(&o) { (o.size(), o.blocks512.get()) } else { (o.unwritten_end(), 0) };
            let blocks = blocks + o.unwritten_pages() as u64 * (PAGE / 512);
            wl::Lvb { size, blocks, mtime: o.mtime.get(), ..wl::Lvb::default() }
        });
        wl::GlimpseReply { lvb }
    }
    /// Whether a lock over the object's end is held, so that its known size is its size.
    pub(crate) fn size_is_exact(&self, object: &Object) -> bool {
        let end = ldlm::LockPolicyData::extent(Extent::from(object.size()));
        self.locks.covers(object.resource(), LockMode::Cr, &end)
    }
}
