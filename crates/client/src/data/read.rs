//! Reading files: locks, then pages, then bytes.
use std::rc::Rc;

use ::readahead::Plan;
use ::readahead::record::Call;
use cache::PageAccess;
use frames::{Bulk, FRAME_BYTES, FrameRun, Segment};
use layout::Piece;
use ldlm::{EnqueueFlags, LockMode, LockPolicyData};
use smallvec::SmallVec;
use types::{Duration, Extent, FsError};

use super::Data;
use crate::front::KernelRead;
use crate::inode::FILE_BYTES_MAX;
use crate::inode::{Inode, Object, Striping, UNSET};
use crate::jobs::Doer;
use crate::locks::Held;
use crate::object::page_range;
use crate::open_file::{O_DIRECT, O_NOATIME, OpenFile};
use crate::osc::{Osc, Why};

const PAGE: u64 = FRAME_BYTES as u64;
/// How often a read begins again that finds an object's end and cannot tell whether the file ended there. Then the read ends there.
const SETTLE_MAX: u32 = 16;
/// How long no lock is asked for ahead of readers of an object after one was refused.
const NO_LOCK_AHEAD_FOR: Duration = Duration::from_secs(1);

/// How pages of a piece that nobody waits for are fetched.
fn access_ahead(piece: Piece) -> PageAccess {
    PageAccess::coarse(0, u32::try_from(piece.object.len()).unwrap_or(u32::MAX)).ahead()
}

/// Whom a read is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// A program, whose buffer takes the bytes.
    Program,
    /// A kernel that keeps the pages of the range locked until it has the answer, and no others.
    Kernel,
    /// A kernel that may have pages behind the range locked as well.
    KernelWithMore,
}

/// What was read of a piece.
struct Part {
    piece: Piece,
    bytes: Bulk,
    /// The place in the file from which on they are zeros because the object ends there; `u64::MAX`: the object is longer.
    zeros_from: u64,
}
type Parts = SmallVec<[Part; 1]>;

/// Where zeros begin that stand in parts because an object ended there.
fn first_zeros(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.zeros_from).min().unwrap_or(u64::MAX)
}

impl Part {
    fn is_short(&self) -> bool {
        self.zeros_from < u64::MAX
    }
    /// Of an object that ended at `end`.
    fn new(piece: Piece, bytes: Bulk, end: u64) -> Part {
        let within = end.saturating_sub(piece.object.start);
        let zeros_from = if end < piece.object.end { piece.file.start + within } else { u64::MAX };
        Part { piece, bytes, zeros_from }
    }
}

impl Data {
    /// Reads up to `len` bytes at `offset`; fewer only at the end of the file. The bytes are references to cache pages.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// EIO and EBADMSG from the OSTs, EBADF for an open that may not read.
    pub async fn read(self: &Rc<Self>, file: &Rc<OpenFile>, offset: u64, len: usize) -> Result<Bulk, FsError> {
        self.read_for(file, offset, len, Reader::Program).await
    }
    /// The same for a kernel that keeps the pages of the range locked until it has the answer, to cache them.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// As [`Data::read`].
    pub async fn read_pages(self: &Rc<Self>, file: &Rc<OpenFile>, offset: u64, len: usize) -> Result<Bulk, FsError> {
        self.read_for(file, offset, len, Reader::Kernel).await
    }
    /// The same where pages behind the range may be locked as well, of which nobody tells: a drop of pages cannot leave them out, so
    /// this waits for no lock of others.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// As [`Data::read`]; EAGAIN where a lock is wanted that is not for the asking: the kernel unlocks the pages then, and asks again for
    /// those that a program waits for, one by one.
    pub async fn read_pages_of_more(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        offset: u64,
        len: usize,
    ) -> Result<Bulk, FsError> {
        self.read_for(file, offset, len, Reader::KernelWithMore).await
    }
    async fn read_for(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        offset: u64,
        len: usize,
        reader: Reader,
    ) -> Result<Bulk, FsError> {
        if file.flags() & 3 == 1 {
            return Err(FsError::BadHandle);
        }
        let inode = &file.inode;
        if offset >= FILE_BYTES_MAX || len == 0 {
            return Ok(Bulk::new());
        }
        let extent = Extent::new(offset, offset.saturating_add(len as u64).min(FILE_BYTES_MAX));
        self.note_access(file);
        inode.io_owner.set(Doer::of(file.cred()));
        let started = self.rt.now();
        let result = loop {
            let Some(s) = self.meta.layout_of(inode).await? else { return Ok(Bulk::new()) };
            let done = self.read_locked(file, &s, extent, reader).await;
            match self.meta.unless_moved(inode, Some(s), done).await {
                Ok(None) => {}
                Ok(Some(bulk)) => break Ok(bulk),
                Err(e) => break Err(e),
            }
        };
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
        reader: Reader,
    ) -> Result<Bulk, FsError> {
        let inode = &file.inode;
        let pages = reader != Reader::Program;
        if file.flags() & O_DIRECT != 0 && !pages {
            return self.read_uncached(inode, s, extent).await;
        }
        let more = reader == Reader::KernelWithMore && !types::planted!("more-pages-untold");
        let kernel = pages.then(|| KernelRead::begin(&inode.front, extent, more));
        loop {
            let _leases = match &kernel {
                Some(read) => self.lease(s, read).await?,
                None => Vec::new(),
            };
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
        let mut plan = Plan::default();
        self.plan(file, s, &mut plan, Call::Read(extent));
        self.prefetch(file, s, &plan);
        let (mut parts, last) = self.read_parts(file, s, extent, kernel).await?;
        self.plan(file, s, &mut plan, Call::Progress(extent));
        self.prefetch(file, s, &plan);
        let size = self.end_of_read(file, s, extent, (&mut parts, last), kernel).await?;
        let mut bulk = Bulk::new();
        parts.into_iter().for_each(|part| bulk.append(part.bytes));
        bulk.truncate(usize::try_from(size.saturating_sub(extent.start)).unwrap_or(usize::MAX).min(bulk.len()));
        Ok(bulk)
    }
    /// Where a read of these parts ends. Zeros behind an object's end are the file's only if the file reached beyond them when they were
    /// found: where it did not, or may have been cut meanwhile, the part is read again.
    async fn end_of_read(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        s: &Rc<Striping>,
        extent: Extent,
        (parts, last): (&mut Parts, Option<Piece>),
        kernel: Option<&KernelRead>,
    ) -> Result<u64, FsError> {
        let inode = &file.inode;
        for _ in 0..SETTLE_MAX {
            // The lock of the last piece vouches for its object as far as the read goes, and that for the file, as long as it is not
            // cut; of other objects' ends nothing is sure.
            let last = last.map(|p| (&s.objects[usize::from(p.stripe.0)], p.object.end));
            let reaching = last.filter(|(object, end)| object.size() >= *end).map(|(object, _)| object);
            let vouch = reaching.map_or(&s.objects[..], std::slice::from_ref);
            let before = parts.iter().any(Part::is_short).then(|| self.known_now(vouch));
            let size = match kernel {
                _ if reaching.is_some() => extent.end,
                // A revocation may wait for what a kernel reads.
                Some(_) => self.file_size_unlocked(inode).await?.size,
                None => self.file_size(inode).await?.size,
            };
            let mut is_short = false;
            for part in parts.iter_mut().filter(|part| part.zeros_from < size) {
                if types::planted!("grown-over-zeros") {
                    continue;
                }
                *part = self.read_piece(file, s, part.piece, extent.len(), kernel).await?;
                is_short |= part.zeros_from < size;
            }
            let is_sure = match before.filter(|_| is_short) {
                Some(before) => self.only_grew_since(inode, vouch, before).await?,
                None => true,
            };
            if is_sure {
                return Ok(size);
            }
        }
        Ok(first_zeros(parts))
    }
    /// The pieces of an extent, each as it is at a moment of its own, and the last of them.
    async fn read_parts(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        s: &Rc<Striping>,
        extent: Extent,
        kernel: Option<&KernelRead>,
    ) -> Result<(Parts, Option<Piece>), FsError> {
        let pieces: SmallVec<[Piece; 1]> = s.layout.geometry().pieces(extent)?.collect();
        let last = pieces.last().copied();
        if let [one] = pieces[..] {
            let part = self.read_piece(file, s, one, extent.len(), kernel).await?;
            return Ok((Parts::from_buf([part]), last));
        }
        let work: Vec<_> = pieces.into_iter().map(|p| self.read_piece(file, s, p, extent.len(), kernel)).collect();
        let parts: Result<Parts, FsError> = rt::sync::join_all(work).await.into_iter().collect();
        Ok((parts?, last))
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
        self.ask_ahead(file, s, Call::of_wait(extent, comes));
    }

    /// Tells readahead something, and starts what it wants then.
    fn ask_ahead(self: &Rc<Self>, file: &Rc<OpenFile>, s: &Rc<Striping>, call: Call) {
        let mut plan = Plan::default();
        self.plan(file, s, &mut plan, call);
        self.prefetch(file, s, &plan);
    }

    pub(crate) fn plan(&self, file: &OpenFile, s: &Striping, plan: &mut Plan, call: Call) {
        if matches!(call, Call::Read(_)) {
            file.stream.read_at.set(self.rt.now());
        }
        self.ahead.call(&file.stream, call, &file.inode.facts(s), plan);
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
        let osc = self.osts.osc(object.ost);
        let data = LockPolicyData::extent(piece.object.align_out(PAGE));
        if let Some(held) = osc.locks.find(object.resource(), LockMode::Pr, &data) {
            return self.load_ahead(&osc, object, piece, &held).await;
        }
        if !self.load_and_lock_ahead(&osc, object, piece, data).await? {
            // The reader itself will ask for a lock.
            self.plan(file, s, &mut Plan::default(), Call::LockLost(piece.file));
        }
        Ok(())
    }
    /// Fetches a piece that nobody waits for along with a lock, if there is one for the asking: nobody is called back for it.
    /// An object is asked for one lock at a time, and for none for a while after another client's stood in the way.
    async fn load_and_lock_ahead(
        &self,
        osc: &Rc<Osc>,
        object: &Rc<Object>,
        piece: Piece,
        data: LockPolicyData,
    ) -> Result<bool, FsError> {
        if osc.locks.asks(object.resource()) || self.rt.now() < object.no_lock_ahead_until.get() {
            return Ok(false);
        }
        let (pages, access) = (page_range(piece.object), access_ahead(piece));
        let Ok((held, came)) = osc.lock_and_load(object, data, pages, access, EnqueueFlags::NOWAIT).await else {
            object.no_lock_ahead_until.set(self.rt.now() + NO_LOCK_AHEAD_FOR);
            return Ok(false);
        };
        if came {
            self.pages.count(&access, pages.1 - pages.0, 0);
        } else {
            self.load_ahead(osc, object, piece, &held).await?;
        }
        Ok(true)
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
        let access = access_ahead(piece);
        let fetched = osc.load(object, first, end, held, access).await?;
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
        if kernel.is_some_and(KernelRead::is_leased)
            && let Some(held) = osc.locks.find_even_leaving(object.resource(), LockMode::Pr, &data)
        {
            return Ok((held, false));
        }
        if kernel.is_some()
            && inode.front.is_dropping()
            && let Some(held) = osc.locks.find_revoking(object.resource(), LockMode::Pr, &data)
        {
            return Ok((held, false));
        }
        let _waiting = kernel.map(KernelRead::waiting);
        let mut flags = inode.enqueue_flags();
        if kernel.is_some_and(KernelRead::has_more) {
            osc.locks.for_the_asking(object.resource())?;
            flags = EnqueueFlags::NOWAIT;
        }
        let held = match pages {
            Some(access) => osc.lock_and_load(object, data, page_range(extent), access, flags).await,
            None => osc.locks.acquire(object.resource(), LockMode::Pr, data, flags).await.map(|held| (held, false)),
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
    ) -> Result<Part, FsError> {
        let object = &s.objects[usize::from(piece.stripe.0)];
        let osc = self.osts.osc(object.ost);
        let access = PageAccess::of_request(0, request, s.layout.geometry().stripe_size());
        let (first, end) = page_range(piece.object);
        let _wanted = object.wanted(first, end);
        let (held, came) = self.lock_for_read(&file.inode, &osc, object, piece.object, Some(access), kernel).await?;
        if came {
            let reach = end.min(object.size().div_ceil(PAGE));
            self.pages.count(&access, reach.saturating_sub(first), 0);
            self.ask_ahead(file, s, Call::Miss(piece.file));
            if let Some(part) = self.gather(object, piece, access) {
                return Ok(part);
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
                osc.load(object, first, reach, &held, access).await?;
            }
            if let Some(part) = self.gather(object, piece, access) {
                return Ok(part);
            }
        }
        // The cache is too small to hold the piece: read past it.
        osc.flush(object, piece.object.align_out(PAGE), Why::Under(&held)).await;
        let pages = piece.object.align_out(PAGE);
        let mut bulk = osc.read_direct(object, pages, &held).await?;
        let end = pages.start + bulk.len() as u64;
        self.pad(&mut bulk, pages.len());
        let skip = (piece.object.start % PAGE) as usize;
        Ok(Part::new(piece, bulk.slice(skip, piece.object.len() as usize), end))
    }

    /// The piece's bytes from cached pages, zeros behind the object's end; `None` when a page has left meanwhile.
    fn gather(&self, object: &Object, piece: Piece, access: PageAccess) -> Option<Part> {
        let (size, extent) = (object.size(), piece.object);
        let mut bulk = Bulk::new();
        let mut at = extent.start;
        while at < extent.end {
            let page = at / PAGE;
            let within = at % PAGE;
            let take = (PAGE - within).min(extent.end - at);
            let run =
                if page * PAGE >= size { self.pages.zeros().slice(0, 1) } else { object.get(page, Some(access))? };
            bulk.push(Segment { run, offset: within as u32, len: take as u32 });
            at += take;
        }
        Some(Part::new(piece, bulk, size))
    }

    /// Extends a bulk with zeros.
    pub(super) fn pad(&self, bulk: &mut Bulk, len: u64) {
        while (bulk.len() as u64) < len {
            let take = (len - bulk.len() as u64).min(self.pages.zeros().len() as u64);
            let run: FrameRun = self.pages.zeros().slice(0, (take as usize).div_ceil(FRAME_BYTES));
            bulk.push(Segment { run, offset: 0, len: take as u32 });
        }
    }

    async fn read_uncached(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        s: &Rc<Striping>,
        extent: Extent,
    ) -> Result<Bulk, FsError> {
        for round in 1.. {
            let before = self.known_now(&s.objects);
            let size = self.file_size(inode).await?.size;
            let extent = Extent::new(extent.start.min(size), extent.end.min(size));
            let mut parts = Parts::new();
            for piece in s.layout.geometry().pieces(extent)? {
                parts.push(self.read_piece_uncached(inode, s, piece).await?);
            }
            let end = first_zeros(&parts);
            let mut bulk = Bulk::new();
            parts.into_iter().for_each(|part| bulk.append(part.bytes));
            if end >= extent.end
                || types::planted!("cut-over-zeros")
                || self.only_grew_since(inode, &s.objects, before).await?
            {
                return Ok(bulk);
            }
            // Where an object ends may have been the file's end for a moment.
            if round == SETTLE_MAX {
                bulk.truncate(usize::try_from(end - extent.start).unwrap_or(usize::MAX).min(bulk.len()));
                return Ok(bulk);
            }
        }
        unreachable!("the rounds have an end")
    }
    async fn read_piece_uncached(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        s: &Striping,
        piece: Piece,
    ) -> Result<Part, FsError> {
        let object = &s.objects[usize::from(piece.stripe.0)];
        let osc = self.osts.osc(object.ost);
        let (held, _) = self.lock_for_read(inode, &osc, object, piece.object, None, None).await?;
        osc.flush(object, piece.object.align_out(PAGE), Why::Under(&held)).await;
        let mut bulk = osc.read_direct(object, piece.object, &held).await?;
        let end = piece.object.start + bulk.len() as u64;
        self.pad(&mut bulk, piece.object.len());
        Ok(Part::new(piece, bulk, end))
    }

    fn note_access(&self, file: &OpenFile) {
        let inode = &file.inode;
        if self.noatime || file.flags() & O_NOATIME != 0 || inode.atime.get() != UNSET {
            return;
        }
        let a = inode.attr();
        let now = self.rt.wall();
        const DAY_NS: i64 = 86_400_000_000_000;
        if a.atime <= a.mtime || a.atime <= a.ctime || now.0 - a.atime.0 > DAY_NS {
            inode.atime.set(now);
        }
    }
}
