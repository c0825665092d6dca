//! Reading and writing files: locks, then pages, then bytes.
use std::pin::pin;
use std::rc::Rc;

use cache::PageAccess;
use cache::frames::{Bulk, FRAME_BYTES, FrameRun, Segment};
use layout::Piece;
use ldlm::{EnqueueFlags, LockMode, LockPolicyData};
use readahead::record::Call;
use readahead::{Facts, Plan};
use types::{Duration, Extent, FsError, HandleId, Instant};
use wire::Op;

use crate::client::Client;
use crate::front::KernelRead;
use crate::inode::{Inode, Striping, UNSET};
use crate::locks::Held;
use crate::object::{Object, page_range};
use crate::open::OpenFile;
use crate::osc::Osc;
use crate::size::FILE_BYTES_MAX;

const PAGE: u64 = FRAME_BYTES as u64;
/// Longest time that locks are kept from others while a further one is waited for; far below an OST's patience.
const HOLD_MAX: Duration = Duration::from_secs(5);
const O_APPEND: u32 = 0o2000;
const O_DIRECT: u32 = 0o40000;
const O_DSYNC: u32 = 0o10000;

/// A write lock in use: taken for this write, or lent by an append that holds all of them.
enum WriteLock<'a> {
    Own(Held),
    Lent(&'a Held),
}
impl WriteLock<'_> {
    fn handle(&self) -> HandleId {
        match self {
            WriteLock::Own(held) => held.handle(),
            WriteLock::Lent(held) => held.handle(),
        }
    }
}

/// The right to append to a file, among the programs of this client.
struct AppendTurn(Rc<Object>);
impl AppendTurn {
    async fn take(s: &Striping) -> Option<AppendTurn> {
        let first = s.objects.first()?;
        first.appending.acquire(1).await;
        Some(AppendTurn(first.clone()))
    }
}
impl Drop for AppendTurn {
    fn drop(&mut self) {
        self.0.appending.add(1);
    }
}

impl Client {
    /// Reads up to `len` bytes at `offset`; fewer only at the end of the file. The bytes are references to cache pages.
    ///
    /// # Errors
    /// EIO and EBADMSG from the OSTs, EBADF for an open that may not read.
    pub async fn read(self: &Rc<Self>, file: &Rc<OpenFile>, offset: u64, len: usize) -> Result<Bulk, FsError> {
        self.read_for(file, offset, len, false).await
    }
    /// The same for a kernel that keeps the pages of the range locked until it has the answer, to cache them.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub async fn read_pages(self: &Rc<Self>, file: &Rc<OpenFile>, offset: u64, len: usize) -> Result<Bulk, FsError> {
        self.read_for(file, offset, len, true).await
    }
    async fn read_for(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        offset: u64,
        len: usize,
        pages: bool,
    ) -> Result<Bulk, FsError> {
        if file.flags() & 3 == 1 {
            return Err(FsError::BadHandle);
        }
        let inode = &file.inode;
        let Some(s) = self.layout_of(inode).await? else { return Ok(Bulk::new()) };
        if offset >= FILE_BYTES_MAX || len == 0 {
            return Ok(Bulk::new());
        }
        let extent = Extent::new(offset, offset.saturating_add(len as u64).min(FILE_BYTES_MAX));
        self.note_access(inode);
        let started = self.rt.now();
        let result = self.read_locked(file, &s, extent, pages).await;
        if let Ok(bulk) = &result {
            self.calls.read(bulk.len() as u64, self.rt.now().since(started));
        }
        result
    }

    async fn read_locked(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        s: &Rc<Striping>,
        extent: Extent,
        pages: bool,
    ) -> Result<Bulk, FsError> {
        let inode = &file.inode;
        if file.flags() & O_DIRECT != 0 {
            return self.read_uncached(inode, s, extent).await;
        }
        let kernel = pages.then(|| KernelRead::begin(inode, extent));
        loop {
            let result = self.read_cached(file, s, extent, kernel.as_ref()).await;
            if !kernel.as_ref().is_some_and(KernelRead::is_outdated) {
                return result;
            }
        }
    }

    async fn read_cached(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        s: &Rc<Striping>,
        extent: Extent,
        kernel: Option<&KernelRead>,
    ) -> Result<Bulk, FsError> {
        let inode = &file.inode;
        let mut plan = Plan::default();
        self.plan(file, s, &mut plan, Call::Read(extent));
        self.prefetch(file, s, &plan);
        let mut pieces = s.layout.geometry().pieces(extent)?;
        let first = pieces.next();
        let second = pieces.next();
        let mut last = first;
        let mut bulk = match (first, second) {
            (Some(one), None) => self.read_piece(file, s, one, extent.len(), kernel).await?,
            _ => {
                let all: Vec<_> = s.layout.geometry().pieces(extent)?.collect();
                last = all.last().copied();
                let work: Vec<_> = all.into_iter().map(|p| self.read_piece(file, s, p, extent.len(), kernel)).collect();
                let mut whole = Bulk::new();
                for part in rt::sync::join_all(work).await {
                    whole.append(part?);
                }
                whole
            }
        };
        self.plan(file, s, &mut plan, Call::Progress(extent));
        self.prefetch(file, s, &plan);
        // The lock of the last piece vouches for its object as far as the read goes; of other objects' ends nothing is sure.
        let reaches = last.is_some_and(|p| s.objects[usize::from(p.stripe.0)].size() >= p.object.end);
        if !reaches {
            let size = self.file_size(inode).await?.size;
            bulk.truncate(usize::try_from(size.saturating_sub(extent.start)).unwrap_or(usize::MAX).min(bulk.len()));
        }
        Ok(bulk)
    }

    /// Tells readahead that a read has to wait: for pages nobody asked for, or for pages on their way.
    fn note_miss(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        s: &Rc<Striping>,
        object: &Object,
        pages: (u64, u64),
        extent: Extent,
    ) {
        let comes = (pages.0..pages.1).all(|p| object.is_cached(p) || object.is_loading(p));
        self.ask_ahead(file, s, if comes { Call::Blocked } else { Call::Miss(extent) });
    }

    /// Tells readahead something, and starts what it wants then.
    fn ask_ahead(self: &Rc<Self>, file: &Rc<OpenFile>, s: &Rc<Striping>, call: Call) {
        let mut plan = Plan::default();
        self.plan(file, s, &mut plan, call);
        self.prefetch(file, s, &plan);
    }

    pub(crate) fn plan(&self, file: &OpenFile, s: &Striping, plan: &mut Plan, call: Call) {
        // Before the first lock nothing is known of the objects: the metadata server's word is good enough to look ahead.
        let file_size = match file.inode.known_size() {
            0 => file.inode.attr().size,
            known => known,
        };
        let facts = Facts {
            file_size,
            stripe_size: if s.objects.len() > 1 { s.layout.geometry().stripe_size() } else { 0 },
            rpc_bytes: self.config.rpc_pages_max as u64 * PAGE,
            lock: Extent::ALL,
        };
        self.ahead.borrow_mut().call(&mut file.readahead.borrow_mut(), call, &facts, plan);
    }

    /// Starts what is to be read ahead.
    fn prefetch(self: &Rc<Self>, file: &Rc<OpenFile>, s: &Rc<Striping>, plan: &Plan) {
        for extent in plan.asynchronous.iter().chain(&plan.sync) {
            let (me, s, file, extent) = (self.clone(), s.clone(), file.clone(), *extent);
            self.rt.spawn(async move {
                let Ok(pieces) = s.layout.geometry().pieces(extent) else { return };
                for piece in pieces {
                    if let Err(e) = me.prefetch_piece(&file, &s, piece).await {
                        tracing::debug!(file = %file.fid(), "readahead: {e}");
                    }
                }
            });
        }
    }
    async fn prefetch_piece(&self, file: &OpenFile, s: &Striping, piece: Piece) -> Result<(), FsError> {
        let object = &s.objects[usize::from(piece.stripe.0)];
        let osc = self.osc(object.ost);
        let data = LockPolicyData::extent(piece.object.align_out(PAGE));
        // Without a lock at hand nothing is read ahead: the reader itself will ask for one.
        let Some(held) = osc.locks.find(object.resource(), LockMode::Pr, &data) else {
            self.plan(file, s, &mut Plan::default(), Call::LockLost(piece.file));
            return Ok(());
        };
        self.load_ahead(&osc, object, piece, &held).await
    }
    /// Fetches a piece that nobody waits for, under a lock that is held.
    pub(crate) async fn load_ahead(
        &self,
        osc: &Rc<Osc>,
        object: &Rc<Object>,
        piece: Piece,
        held: &Held,
    ) -> Result<(), FsError> {
        let (first, end) = page_range(piece.object);
        let access = PageAccess::coarse(0, u32::try_from(piece.object.len()).unwrap_or(u32::MAX)).ahead();
        let fetched = osc.load(object, first, end, held.handle(), access).await?;
        self.pages.count(&access, end - first, (end - first).saturating_sub(fetched));
        Ok(())
    }

    /// A read lock on the piece; inside a kernel's page drop the lock that is being revoked serves. With `pages`, whether
    /// the piece's pages came along with the lock.
    pub(crate) async fn lock_for_read(
        &self,
        inode: &Inode,
        osc: &Rc<Osc>,
        object: &Rc<Object>,
        extent: Extent,
        pages: Option<PageAccess>,
        kernel: Option<&KernelRead>,
    ) -> Result<(Held, bool), FsError> {
        let data = LockPolicyData::extent(extent.align_out(PAGE));
        if let Some(held) = osc.locks.find(object.resource(), LockMode::Pr, &data) {
            return Ok((held, false));
        }
        if kernel.is_some()
            && inode.is_dropping()
            && let Some(held) = osc.locks.find_revoking(object.resource(), LockMode::Pr, &data)
        {
            return Ok((held, false));
        }
        let _waiting = kernel.map(KernelRead::waiting);
        let held = match pages {
            Some(access) => osc.lock_and_load(object, data, page_range(extent), access).await,
            None => {
                let plain = EnqueueFlags::NONE;
                osc.locks.acquire(object.resource(), LockMode::Pr, data, plain).await.map(|held| (held, false))
            }
        };
        held.map_err(|e| osc.import().err().unwrap_or(e.error()))
    }

    async fn read_piece(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        s: &Rc<Striping>,
        piece: Piece,
        request: u64,
        kernel: Option<&KernelRead>,
    ) -> Result<Bulk, FsError> {
        let object = &s.objects[usize::from(piece.stripe.0)];
        let osc = self.osc(object.ost);
        let access = PageAccess::of_request(0, request, s.layout.geometry().stripe_size());
        let (held, came) = self.lock_for_read(&file.inode, &osc, object, piece.object, Some(access), kernel).await?;
        let (first, end) = page_range(piece.object);
        if came {
            let reach = end.min(object.size().div_ceil(PAGE));
            self.pages.count(&access, reach.saturating_sub(first), 0);
            self.ask_ahead(file, s, Call::Miss(piece.file));
            if let Some(bulk) = self.gather(object, piece.object, access) {
                return Ok(bulk);
            }
        }
        for attempt in 0..8 {
            let reach = end.min(object.size().div_ceil(PAGE));
            let (pages, found) = (reach.saturating_sub(first), object.cached_pages(first, reach));
            if attempt == 0 && !came {
                self.pages.count(&access, pages, found);
            }
            if found < pages {
                self.note_miss(file, s, object, (first, reach), piece.file);
                osc.load(object, first, reach, held.handle(), access).await?;
            }
            if let Some(bulk) = self.gather(object, piece.object, access) {
                return Ok(bulk);
            }
        }
        // The cache is too small to hold the piece: read past it.
        osc.flush(object, piece.object.align_out(PAGE), false).await;
        let mut bulk = osc.read_direct(object, piece.object.align_out(PAGE), held.handle()).await?;
        self.pad(&mut bulk, piece.object.align_out(PAGE).len());
        let skip = (piece.object.start % PAGE) as usize;
        Ok(bulk.slice(skip, piece.object.len() as usize))
    }

    /// The piece's bytes from cached pages, zeros behind the object's end; `None` when a page has left meanwhile.
    fn gather(&self, object: &Object, extent: Extent, access: PageAccess) -> Option<Bulk> {
        let size = object.size();
        let mut bulk = Bulk::new();
        let mut at = extent.start;
        while at < extent.end {
            let page = at / PAGE;
            let within = at % PAGE;
            let take = (PAGE - within).min(extent.end - at);
            let run = if page * PAGE >= size { self.zeros.slice(0, 1) } else { object.get(page, Some(access))? };
            bulk.push(Segment { run, offset: within as u32, len: take as u32 });
            at += take;
        }
        Some(bulk)
    }

    /// Extends a bulk with zeros.
    fn pad(&self, bulk: &mut Bulk, len: u64) {
        while (bulk.len() as u64) < len {
            let take = (len - bulk.len() as u64).min(self.zeros.len() as u64);
            let run: FrameRun = self.zeros.slice(0, (take as usize).div_ceil(FRAME_BYTES));
            bulk.push(Segment { run, offset: 0, len: take as u32 });
        }
    }

    async fn read_uncached(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        s: &Rc<Striping>,
        extent: Extent,
    ) -> Result<Bulk, FsError> {
        let size = self.file_size(inode).await?.size;
        let extent = Extent::new(extent.start.min(size), extent.end.min(size));
        let mut out = Bulk::new();
        for piece in s.layout.geometry().pieces(extent)? {
            let object = &s.objects[usize::from(piece.stripe.0)];
            let osc = self.osc(object.ost);
            let (held, _) = self.lock_for_read(inode, &osc, object, piece.object, None, None).await?;
            osc.flush(object, piece.object.align_out(PAGE), false).await;
            let mut part = osc.read_direct(object, piece.object, held.handle()).await?;
            self.pad(&mut part, piece.object.len());
            out.append(part);
        }
        Ok(out)
    }

    fn note_access(&self, inode: &Inode) {
        if self.config.noatime || inode.atime.get() != UNSET {
            return;
        }
        let a = inode.attr();
        let now = self.rt.wall();
        const DAY_NS: i64 = 86_400_000_000_000;
        if a.atime <= a.mtime || a.atime <= a.ctime || now.0 - a.atime.0 > DAY_NS {
            inode.atime.set(now);
        }
    }

    /// Writes `data` at `offset` (at the end for O_APPEND opens); gives where it went.
    ///
    /// # Errors
    /// EFBIG, ENOSPC, EDQUOT, EIO, EBADF.
    pub async fn write(self: &Rc<Self>, file: &Rc<OpenFile>, offset: u64, data: &[u8]) -> Result<u64, FsError> {
        if !file.writes() {
            return Err(FsError::BadHandle);
        }
        let inode = &file.inode;
        let s = self.layout_of(inode).await?.ok_or(FsError::Io)?;
        let _writing = inode.writing();
        let (mut appending, mut _turn) = (Vec::new(), None);
        let offset = if file.flags() & O_APPEND != 0 {
            _turn = AppendTurn::take(&s).await;
            appending = self.lock_all(&s).await?;
            inode.known_size()
        } else {
            offset
        };
        if data.is_empty() {
            return Ok(offset);
        }
        let started = self.rt.now();
        let end = offset.checked_add(data.len() as u64).filter(|e| *e <= FILE_BYTES_MAX).ok_or(FsError::FileTooBig)?;
        file.dirty.set(true);
        let mark = inode.error_mark();
        for piece in s.layout.geometry().pieces(Extent::new(offset, end))? {
            let from = (piece.file.start - offset) as usize;
            let part = &data[from..from + piece.file.len() as usize];
            // An append writes under the locks it holds: it must not wait for others meanwhile.
            let held = appending.get(usize::from(piece.stripe.0));
            if file.flags() & O_DIRECT != 0 {
                self.write_uncached(&s, piece, part, held).await?;
            } else {
                self.write_piece(&s, piece, part, held, data.len() as u64).await?;
            }
        }
        drop(appending);
        inode.mtime.set(inode.mtime.get().max(self.rt.wall()));
        if file.flags() & O_DSYNC != 0 {
            self.fsync(file, true).await?;
        } else if inode.error_mark() != mark {
            inode.error_since(&file.error_mark)?;
        }
        self.calls.wrote(data.len() as u64, self.rt.now().since(started));
        Ok(offset)
    }

    /// Whether write locks over the whole range are held: a write of it will not wait for another client.
    #[must_use]
    pub fn may_write_at_once(&self, file: &OpenFile, offset: u64, len: u64) -> bool {
        let Some(s) = file.inode.striping() else { return false };
        let Ok(mut pieces) = s.layout.geometry().pieces(Extent::at(offset, len)) else { return false };
        pieces.all(|p| {
            let object = &s.objects[usize::from(p.stripe.0)];
            let data = LockPolicyData::extent(p.object.align_out(PAGE));
            self.osc(object.ost).locks.covers(object.resource(), LockMode::Pw, &data)
        })
    }

    /// Writes pages that a kernel's mapping made dirty: past the end of the file nothing is written.
    ///
    /// # Errors
    /// As [`Client::write`]; they are also reported by the next fsync.
    pub async fn write_mapped(self: &Rc<Self>, file: &Rc<OpenFile>, offset: u64, data: &[u8]) -> Result<(), FsError> {
        let inode = &file.inode;
        let s = inode.striping().ok_or(FsError::Io)?;
        file.dirty.set(true);
        let result = async {
            let size = self.file_size(inode).await?.size;
            let end = (offset + data.len() as u64).min(size);
            if offset >= end {
                return Ok(());
            }
            for piece in s.layout.geometry().pieces(Extent::new(offset, end))? {
                let from = (piece.file.start - offset) as usize;
                self.write_piece(&s, piece, &data[from..from + piece.file.len() as usize], None, piece.file.len())
                    .await?;
            }
            Ok(())
        }
        .await;
        if let Err(e) = result {
            inode.writeback_failed(e);
        }
        result
    }

    /// Write locks over all objects, in stripe order, with true sizes: for appends.
    ///
    /// An OST evicts a client that keeps a lock from others for too long, and the next lock may have to wait for a client
    /// that is gone, just as long. So nothing is kept for longer than [`HOLD_MAX`]: then the locks are let go, the wait
    /// goes on without them, and all begins anew.
    async fn lock_all(&self, s: &Striping) -> Result<Vec<Held>, FsError> {
        let mut held: Vec<Held> = Vec::with_capacity(s.objects.len());
        let mut until = Instant::MAX;
        while held.len() < s.objects.len() {
            let o = &s.objects[held.len()];
            let all = LockPolicyData::extent(Extent::ALL);
            let osc = self.osc(o.ost);
            let mut lock = pin!(osc.locks.acquire(o.resource(), LockMode::Pw, all, EnqueueFlags::NONE));
            if held.is_empty() {
                held.push(lock.await.map_err(|e| e.error())?);
                until = self.rt.now() + HOLD_MAX;
                continue;
            }
            match self.rt.timeout(until.since(self.rt.now()), lock.as_mut()).await {
                Some(got) => held.push(got.map_err(|e| e.error())?),
                None => {
                    held.clear();
                    lock.await.map_err(|e| e.error())?;
                }
            }
        }
        Ok(held)
    }

    /// The write lock of a piece: the one at hand, one that is cached, or a new one.
    async fn lock_for_write<'a>(
        &self,
        osc: &Rc<Osc>,
        object: &Object,
        extent: Extent,
        held: Option<&'a Held>,
    ) -> Result<WriteLock<'a>, FsError> {
        if let Some(held) = held {
            return Ok(WriteLock::Lent(held));
        }
        let data = LockPolicyData::extent(extent);
        if let Some(held) = osc.locks.find(object.resource(), LockMode::Pw, &data) {
            return Ok(WriteLock::Own(held));
        }
        let held = osc.locks.acquire(object.resource(), LockMode::Pw, data, EnqueueFlags::NONE).await;
        held.map(WriteLock::Own).map_err(|e| osc.import().err().unwrap_or(e.error()))
    }

    async fn write_piece(
        &self,
        s: &Striping,
        piece: Piece,
        data: &[u8],
        held: Option<&Held>,
        request: u64,
    ) -> Result<(), FsError> {
        let object = &s.objects[usize::from(piece.stripe.0)];
        let osc = self.osc(object.ost);
        if held.is_none() {
            osc.dirty_room(piece.object.len()).await;
        }
        let lock = self.lock_for_write(&osc, object, piece.object.align_out(PAGE), held).await?;
        let access = PageAccess::of_request(0, request, s.layout.geometry().stripe_size()).written();
        let mut write_through = false;
        let mut at = piece.object.start;
        let mut rest = data;
        object.mtime.set(object.mtime.get().max(self.rt.wall()));
        while !rest.is_empty() {
            let (page, within) = (at / PAGE, (at % PAGE) as usize);
            let take = (FRAME_BYTES - within).min(rest.len());
            let valid = object.size().saturating_sub(page * PAGE).min(PAGE) as usize;
            let whole = valid == 0 || within == 0 && take >= valid;
            match object.write_page(page, within, &rest[..take], whole, access) {
                Ok(Some(newly_dirty)) => {
                    if newly_dirty && !osc.charge_page() {
                        write_through = true;
                    }
                    object.grow(at + take as u64);
                    at += take as u64;
                    rest = &rest[take..];
                }
                Ok(None) => {
                    osc.load(object, page, page + 1, lock.handle(), access).await?;
                }
                Err(FsError::NoMemory) => {
                    osc.flush(object, Extent::ALL, false).await;
                    self.pages.shrink(256);
                    self.rt.sleep(Duration::from_millis(1)).await;
                }
                Err(e) => return Err(e),
            }
        }
        osc.note_dirty(object);
        if write_through {
            osc.flush(object, piece.object, false).await;
        }
        Ok(())
    }

    async fn write_uncached(
        &self,
        s: &Striping,
        piece: Piece,
        data: &[u8],
        held: Option<&Held>,
    ) -> Result<(), FsError> {
        let object = &s.objects[usize::from(piece.stripe.0)];
        let osc = self.osc(object.ost);
        let wide = piece.object.align_out(PAGE);
        let lock = self.lock_for_write(&osc, object, wide, held).await?;
        osc.flush(object, wide, false).await;
        osc.discard(object, wide, false);
        object.mtime.set(object.mtime.get().max(self.rt.wall()));
        let mut bulk = self.rt.bulk(data.len()).await;
        bulk.copy_in(0, data);
        osc.write_direct(object, piece.object.start, bulk, lock.handle()).await
    }

    /// Everything written to the file is on stable storage afterwards; with `data_only`, only what is needed to read it
    /// back.
    ///
    /// # Errors
    /// A write-back failure since this open last reported one; EIO.
    pub async fn fsync(self: &Rc<Self>, file: &Rc<OpenFile>, data_only: bool) -> Result<(), FsError> {
        let inode = &file.inode;
        let mut result = Ok(());
        if let Some(s) = inode.striping() {
            let syncs: Vec<_> = s
                .objects
                .iter()
                .map(|o| {
                    let osc = self.osc(o.ost);
                    async move {
                        osc.flush(o, Extent::ALL, false).await;
                        osc.sync(o.id).await
                    }
                })
                .collect();
            for r in rt::sync::join_all(syncs).await {
                result = result.and(r);
            }
        }
        // A new file's name and layout are metadata that reading it back needs.
        let _ = data_only;
        let ask = wire::mdt::SyncRequest { fid: inode.fid };
        let meta: Result<(), FsError> = self.mdc().ask(Op::MdtSync, &ask).await;
        inode.error_since(&file.error_mark).and(result).and(meta)
    }

    /// Waits until everything dirty of an inode has been written out (not synced).
    pub async fn write_out(&self, inode: &Inode) {
        if let Some(s) = inode.striping() {
            let flushes: Vec<_> = s
                .objects
                .iter()
                .map(|o| {
                    let osc = self.osc(o.ost);
                    async move { osc.flush(o, Extent::ALL, false).await }
                })
                .collect();
            rt::sync::join_all(flushes).await;
        }
    }

    /// copy_file_range(2) within the cluster; gives the bytes copied (0 at the end of the source).
    ///
    /// # Errors
    /// As [`Client::read`] and [`Client::write`]; EINVAL for overlapping ranges of one file.
    pub async fn copy_range(
        self: &Rc<Self>,
        from: &Rc<OpenFile>,
        from_at: u64,
        to: &Rc<OpenFile>,
        to_at: u64,
        len: u64,
    ) -> Result<u64, FsError> {
        if from.fid() == to.fid() && Extent::at(from_at, len).overlaps(&Extent::at(to_at, len)) {
            return Err(FsError::Invalid);
        }
        let mut done = 0;
        let mut buffer = Vec::new();
        while done < len {
            let step = usize::try_from((len - done).min(1 << 20)).expect("at most 1 MiB");
            let bulk = self.read(from, from_at + done, step).await?;
            if bulk.is_empty() {
                break;
            }
            buffer.resize(bulk.len(), 0);
            bulk.copy_out(0, &mut buffer);
            self.write(to, to_at + done, &buffer).await?;
            done += buffer.len() as u64;
        }
        Ok(done)
    }
}
