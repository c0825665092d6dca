//! Writing files, and bringing what was written to the servers.
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

use cache::PageAccess;
use frames::FRAME_BYTES;
use layout::Piece;
use ldlm::{EnqueueFlags, LockMode, LockPolicyData};
use rt::sync::race;
use types::{Duration, Extent, FsError, HandleId};
use wire::Op;

use super::Data;
use crate::goes_on::goes_on;
use crate::inode::FILE_BYTES_MAX;
use crate::inode::{Inode, Object, Striping};
use crate::jobs::Doer;
use crate::kept_append::AppendRight;
use crate::locks::Held;
use crate::meta::missed::Missed;
use crate::object::page_range;
use crate::open_file::O_DIRECT;
use crate::open_file::{O_APPEND, OpenFile};
use crate::osc::{Osc, Why};
use crate::pages::NewFrames;
use crate::short::{Watching, Written};

const PAGE: u64 = FRAME_BYTES as u64;
/// How often a write that waits for room looks whether its OST is still there.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const O_DSYNC: u32 = 0o10000;
/// Bytes that a copy has in hand.
const COPY_STEP_BYTES: u64 = 1 << 20;

/// A write lock in use: taken for this write, or lent by an append that holds all of them.
enum WriteLock<'a> {
    Own(Held),
    Lent(&'a Held),
}
impl WriteLock<'_> {
    fn held(&self) -> &Held {
        match self {
            WriteLock::Own(held) => held,
            WriteLock::Lent(held) => held,
        }
    }
    fn handle(&self) -> HandleId {
        self.held().handle()
    }
}

/// A change of a file is over. Where its open has ended meanwhile, as when the program was killed, the size that the end told may be that
/// of before.
pub(super) fn outlives(file: &OpenFile) {
    if file.stream.released.get() && !types::planted!("outlived-open") {
        file.inode.size_is_doubtful();
    }
}

impl Data {
    /// Writes `data` at `offset` (at the end for O_APPEND opens); gives where it went.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// EFBIG, ENOSPC, EDQUOT, EIO, EBADF.
    pub async fn write(self: &Rc<Self>, file: &Rc<OpenFile>, offset: u64, data: &[u8]) -> Result<u64, FsError> {
        let written = self.write_part(file, offset, data, None).await?;
        if written.len == data.len() as u64 { Ok(written.at) } else { Err(FsError::NoSpace) }
    }

    /// [`Data::write`] of a piece of a call, perhaps short for want of space. With `keep` the call goes on behind `data`:
    /// for an append, nobody else's comes before its next piece, if that comes within this time.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// As [`Data::write`]; ENOSPC when there was no space for the first byte.
    pub async fn write_part(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        offset: u64,
        data: &[u8],
        keep: Option<Duration>,
    ) -> Result<Written, FsError> {
        if !file.writes() {
            return Err(FsError::BadHandle);
        }
        self.meta.writer_is_told(file).await?;
        loop {
            let _writing = file.inode.begin_writing().await;
            let s = self.meta.layout_of(&file.inode).await?.ok_or(FsError::Io)?;
            let done = self.write_to(file, &s, offset, data, keep).await;
            outlives(file);
            if let Some(written) = self.meta.unless_moved(&file.inode, Some(s), done).await? {
                return Ok(written);
            }
        }
    }

    async fn write_to(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        s: &Rc<Striping>,
        offset: u64,
        data: &[u8],
        keep: Option<Duration>,
    ) -> Result<Written, FsError> {
        let inode = &file.inode;
        let appends = file.flags() & O_APPEND != 0;
        let changed = if appends { Extent::ALL } else { Extent::at(offset, data.len() as u64) };
        if appends && !inode.kept_append.is_kept() {
            // Under the locks it is too late to wait for room.
            self.room_to_append(s, data.len() as u64).await;
        }
        let shut = inode.front.shut_for_change(changed).await;
        let (kernels_end, mut right) = (offset.saturating_add(data.len() as u64), None);
        let offset = if appends {
            right = Some(self.right_to_append(s, file, offset, data.len() as u64).await?);
            inode.known_size()
        } else {
            inode.kept_append.give_up();
            offset
        };
        if data.is_empty() {
            return Ok(Written { at: offset, len: 0 });
        }
        let started = self.rt.now();
        let end = offset.checked_add(data.len() as u64).filter(|e| *e <= FILE_BYTES_MAX).ok_or(FsError::FileTooBig)?;
        file.dirty.set(true);
        inode.io_owner.set(Doer::of(file.cred()));
        let (mark, extent) = (inode.error_mark(), Extent::new(offset, end));
        let watch = inode.watches.watch(extent);
        let appending = right.as_ref().map_or(&[][..], |r| &r.held);
        let through = self.write_pieces(file, s, (extent, &watch), data, appending).await?;
        inode.mtime.set(inode.mtime.get().max(self.rt.wall()));
        let len = self.settle(file, s, through, right.zip(keep), (kernels_end, &watch)).await?;
        // It may be about these bytes. About others, fsync and close have still to tell it.
        if file.flags() & O_DSYNC == 0 {
            inode.error_since(&Cell::new(mark))?;
        }
        self.calls.wrote(len, self.rt.now().since(started));
        if shut.is_none() {
            inode.front.was_written(extent).await;
        }
        Ok(Written { at: offset, len })
    }

    /// Puts what is written into the cache, up to where there is no space. Answers what has to be written out now.
    async fn write_pieces(
        self: &Rc<Self>,
        file: &OpenFile,
        s: &Striping,
        (to, watch): (Extent, &Watching),
        data: &[u8],
        appending: &[Held],
    ) -> Result<Vec<Piece>, FsError> {
        let mut through = Vec::new();
        for piece in s.layout.geometry().pieces(to)? {
            let from = (piece.file.start - to.start) as usize;
            let part = &data[from..from + piece.file.len() as usize];
            let direct = file.flags() & O_DIRECT != 0;
            // An append writes under the locks it holds: it must not wait for others, or for servers, meanwhile. So it
            // goes into the cache, and out of it when the locks are let go.
            let Some(held) = appending.get(usize::from(piece.stripe.0)) else {
                if direct {
                    match self.write_uncached(s, piece, part).await {
                        Err(e @ (FsError::NoSpace | FsError::Quota)) => watch.refuse(piece.file.start, e),
                        result => result?,
                    }
                } else if self.write_piece(s, piece, part, None, data.len() as u64).await? {
                    self.write_through(s, piece).await;
                }
                if watch.is_refused() {
                    break;
                }
                continue;
            };
            if self.write_piece(s, piece, part, Some(held), data.len() as u64).await? || direct {
                through.push(piece);
            }
        }
        Ok(through)
    }

    /// Writes out and syncs what must not stay in the cache; gives how many bytes found space. An append's right is given up
    /// before that, or kept for the next piece of its call as long as it may be kept.
    async fn settle(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        s: &Striping,
        through: Vec<Piece>,
        kept: Option<(AppendRight, Duration)>,
        (kernels_end, watch): (u64, &Watching),
    ) -> Result<u64, FsError> {
        let settled = || async {
            for piece in &through {
                self.write_through(s, *piece).await;
            }
            let len = watch.outcome()?;
            if file.flags() & O_DSYNC != 0 {
                self.sync_own(file).await?;
            }
            Ok(len)
        };
        if let Some((right, keep)) = kept {
            let left = right.until.since(self.rt.now());
            if let Some(result) = self.rt.timeout(left, settled()).await {
                if result.is_ok() && !watch.is_refused() {
                    self.keep_right(right, file, kernels_end, keep);
                }
                return result;
            }
        }
        settled().await
    }

    /// Whether a write of the range through this open goes into the cache and waits for nobody: locks and room are here, and its
    /// first and last page need not be loaded.
    #[must_use]
    pub fn writes_at_once(&self, file: &OpenFile, offset: u64, len: u64) -> bool {
        let inode = &file.inode;
        let Some(s) = inode.striping() else { return false };
        let waits = inode.front.may_have_pages() || inode.front.has_short_ends() || inode.is_frozen();
        if file.flags() & (O_APPEND | O_DSYNC | O_DIRECT) != 0 || waits {
            return false;
        }
        let Ok(mut pieces) = s.layout.geometry().pieces(Extent::at(offset, len)) else { return false };
        pieces.all(|p| {
            let object = &s.objects[usize::from(p.stripe.0)];
            let osc = self.osts.osc(object.ost);
            let data = LockPolicyData::extent(p.object.align_out(PAGE));
            let (first, end) = page_range(p.object);
            object.takes_within(first, p.object)
                && object.takes_within(end - 1, p.object)
                && osc.has_room(len)
                && osc.locks.covers(object.resource(), LockMode::Pw, &data)
        })
    }

    /// Waits until a write of the range has its locks and room, holding nothing then: by the time it comes it may have to
    /// wait again.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// As [`Data::write`].
    pub async fn ready_to_write(self: &Rc<Self>, file: &OpenFile, offset: u64, len: u64) -> Result<(), FsError> {
        if file.flags() & (O_APPEND | O_DSYNC | O_DIRECT) != 0 || !file.writes() {
            return Ok(());
        }
        loop {
            let s = self.meta.layout_of(&file.inode).await?.ok_or(FsError::Io)?;
            let done = self.locks_and_room(&s, Extent::at(offset, len)).await;
            if self.meta.unless_moved(&file.inode, Some(s), done).await?.is_some() {
                return Ok(());
            }
        }
    }
    async fn locks_and_room(&self, s: &Striping, extent: Extent) -> Result<(), FsError> {
        for piece in s.layout.geometry().pieces(extent)? {
            let object = &s.objects[usize::from(piece.stripe.0)];
            let osc = self.osts.osc(object.ost);
            osc.dirty_room(piece.object.len()).await;
            self.lock_for_write(&osc, object, piece.object.align_out(PAGE), None).await?;
        }
        Ok(())
    }

    /// Writes pages that a kernel's mapping made dirty: past the end of the file nothing is written. They were stored to
    /// under the file's leases, which are held still or on their way out, and wait for this: so it takes those, and
    /// waits for nobody. Without them the bytes are lost: others may have written or cut the pages since.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// EIO when the leases were lost; what is wrong the next fsync or end of every open tells, too.
    pub async fn write_mapped(self: &Rc<Self>, file: &Rc<OpenFile>, offset: u64, data: &[u8]) -> Result<(), FsError> {
        let result = self.write_stores(file, offset, data).await;
        if let Err(e) = result {
            tracing::error!(file = %file.inode.fid, offset, "stores through a mapping are lost: {e}");
            file.inode.writeback_failed(e);
        }
        result
    }

    async fn write_stores(self: &Rc<Self>, file: &Rc<OpenFile>, offset: u64, data: &[u8]) -> Result<(), FsError> {
        let inode = &file.inode;
        let s = inode.striping().ok_or(FsError::Io)?;
        let _writing = inode.writing();
        file.dirty.set(true);
        inode.io_owner.set(Doer::of(file.cred()));
        self.meta.tell_writer_soon(file);
        // The kernel's pages were read up to the size known then; only a cut makes it less.
        let (end, size) = (offset + data.len() as u64, inode.known_size());
        inode.front.writes_back(end, size);
        let data = &data[..size.min(end).saturating_sub(offset) as usize];
        for part in inode.front.stores(offset, data) {
            for piece in s.layout.geometry().pieces(part)? {
                let from = (piece.file.start - offset) as usize;
                let part = &data[from..from + piece.file.len() as usize];
                let osc = self.osts.osc(s.objects[usize::from(piece.stripe.0)].ost);
                self.room_for_stores(inode, &osc, part.len()).await;
                self.write_mapped_piece(&s, piece, part).await?;
            }
        }
        Ok(())
    }

    /// Waits for room as every write does, so that stores dirty no more than writes may. But while the kernel drops pages a
    /// lock callback waits for this, and while the OST is away programs that are being killed would: then there is room
    /// as long as the OST has its part of the memory for pages.
    async fn room_for_stores(&self, inode: &Inode, osc: &Rc<Osc>, bytes: usize) {
        let is_there = || osc.import().is_ok_and(|i| i.state() == ptlrpc::ImportState::Full);
        let waits = || !inode.front.is_dropping() && (is_there() || !osc.has_places(bytes as u64));
        let mut room = pin!(race(osc.dirty_room(bytes as u64), inode.front.until_dropping()));
        while waits() {
            if self.rt.timeout(LOOK_AGAIN, room.as_mut()).await.is_some() {
                return;
            }
        }
    }

    async fn write_mapped_piece(self: &Rc<Self>, s: &Rc<Striping>, piece: Piece, data: &[u8]) -> Result<(), FsError> {
        let object = &s.objects[usize::from(piece.stripe.0)];
        let lock = LockPolicyData::extent(piece.object.align_out(PAGE));
        let locks = &self.osts.osc(object.ost).locks;
        let held = if types::planted!("stores-under-new-lock") {
            locks.acquire(object.resource(), LockMode::Pw, lock, EnqueueFlags::NONE).await.map_err(|e| e.error())?
        } else {
            let held = locks.find_even_leaving(object.resource(), LockMode::Pw, &lock);
            held.filter(|_| !types::planted!("stores-find-no-lock")).ok_or(FsError::Io)?
        };
        let inode = object.inode.borrow().upgrade();
        let watch = inode.map(|i| (i.watches.watch(piece.file), i));
        if self.write_piece(s, piece, data, Some(&held), piece.file.len()).await? {
            // The lock's own flush does not wait for this, and the kernel must not, either. So the next fsync tells of it.
            let (me, s) = (self.clone(), s.clone());
            self.rt.spawn(async move {
                me.write_through(&s, piece).await;
                if let Some((watch, inode)) = watch.filter(|(watch, _)| watch.is_refused()) {
                    inode.writeback_failed(watch.why());
                }
            });
        }
        Ok(())
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
        self.write_lock(osc, object, extent).await.map(WriteLock::Own)
    }
    /// The write lock of a range: one that is cached, or a new one.
    async fn write_lock(&self, osc: &Rc<Osc>, object: &Object, extent: Extent) -> Result<Held, FsError> {
        let data = LockPolicyData::extent(extent);
        if let Some(held) = osc.locks.find(object.resource(), LockMode::Pw, &data) {
            return Ok(held);
        }
        let flags = object.inode.borrow().upgrade().map_or(EnqueueFlags::NONE, |inode| inode.enqueue_flags());
        let held = osc.locks.acquire(object.resource(), LockMode::Pw, data, flags).await;
        held.map_err(|e| osc.import().err().unwrap_or(e.error()))
    }

    /// Writes a piece into the cache. Answers whether it has to be written out now ([`Data::write_through`]): there is no
    /// grant for it.
    async fn write_piece(
        &self,
        s: &Striping,
        piece: Piece,
        data: &[u8],
        held: Option<&Held>,
        request: u64,
    ) -> Result<bool, FsError> {
        let object = &s.objects[usize::from(piece.stripe.0)];
        let osc = self.osts.osc(object.ost);
        if held.is_none() {
            osc.dirty_room(piece.object.len()).await;
        }
        let mut lock = self.lock_for_write(&osc, object, piece.object.align_out(PAGE), held).await?;
        let access = PageAccess::of_request(0, request, s.layout.geometry().stripe_size()).written();
        let (first, end) = page_range(piece.object);
        let mut frames = NewFrames::new(self.pages.pool(), (end - first) as usize);
        let mut write_through = false;
        let mut at = piece.object.start;
        let mut rest = data;
        object.mtime.set(object.mtime.get().max(self.rt.wall()));
        while !rest.is_empty() {
            object.settled(first, end).await;
            // Evicted meanwhile: the lock covers nothing any more.
            if lock.handle().0 == 0 {
                if held.is_some() {
                    return Err(FsError::Io);
                }
                lock = self.lock_for_write(&osc, object, piece.object.align_out(PAGE), held).await?;
                continue;
            }
            let (page, within) = (at / PAGE, (at % PAGE) as usize);
            let take = (FRAME_BYTES - within).min(rest.len());
            match object.write_page(page, within, &rest[..take], access, &mut frames) {
                Ok(Some(was_clean)) => {
                    // Also what another write made dirty without grant waits for its space.
                    write_through |= !osc.wrote_page(object, page, was_clean);
                    object.grow(at + take as u64);
                    at += take as u64;
                    rest = &rest[take..];
                }
                Ok(None) => {
                    osc.load(object, page, page + 1, lock.held(), access).await?;
                }
                Err(FsError::NoMemory) => {
                    osc.flush(object, Extent::ALL, Why::Under(lock.held())).await;
                    self.pages.shrink(256);
                    // The places may be those of OSTs that are away: who wants the lock does not wait for them.
                    let kept = Some(lock).filter(|lock| held.is_some() || lock.held().is_wanted_by_nobody());
                    self.rt.sleep(Duration::from_millis(1)).await;
                    lock = match kept {
                        Some(lock) => lock,
                        None => {
                            osc.dirty_room(rest.len() as u64).await;
                            self.lock_for_write(&osc, object, piece.object.align_out(PAGE), held).await?
                        }
                    };
                }
                Err(e) => return Err(e),
            }
        }
        osc.note_dirty(object);
        Ok(write_through)
    }

    async fn write_through(&self, s: &Striping, piece: Piece) {
        let object = &s.objects[usize::from(piece.stripe.0)];
        self.osts.osc(object.ost).flush(object, piece.object, Why::Asked).await;
    }

    async fn write_uncached(&self, s: &Striping, piece: Piece, data: &[u8]) -> Result<(), FsError> {
        let object = &s.objects[usize::from(piece.stripe.0)];
        let osc = self.osts.osc(object.ost);
        let wide = piece.object.align_out(PAGE);
        let held = self.write_lock(&osc, object, wide).await?;
        let change = object.change(wide).await;
        osc.flush(object, wide, Why::Under(&held)).await;
        let mut bulk = self.rt.bulk(data.len()).await;
        bulk.copy_in(0, data);
        osc.discard(object, wide, false);
        object.mtime.set(object.mtime.get().max(self.rt.wall()));
        // Until its answer nobody else writes these bytes: it must not come to the OST behind a later write.
        let (object, at) = (object.clone(), piece.object.start);
        goes_on(self.sessions.alone(), async move {
            let change = (!types::planted!("uncached-write-let-go")).then_some(change);
            let written = osc.write_direct(&object, at, bulk, &held).await;
            drop((change, held));
            written
        })
        .await
    }

    /// Everything written to the file, on any client, is on stable storage afterwards; with `data_only`, only what is needed to read
    /// it back.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// A write-back failure since this open last reported one; EIO.
    pub async fn fsync(self: &Rc<Self>, file: &Rc<OpenFile>, data_only: bool) -> Result<(), FsError> {
        // A new file's name and layout are metadata that reading it back needs.
        let _ = data_only;
        self.sync_file(file, true).await
    }

    /// What this client wrote to the file is on stable storage afterwards: what O_DSYNC promises of each write.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// As [`Data::fsync`].
    pub async fn sync_own(self: &Rc<Self>, file: &Rc<OpenFile>) -> Result<(), FsError> {
        self.sync_file(file, false).await
    }

    /// [`Data::fsync`]; without `everyones`, [`Data::sync_own`].
    async fn sync_file(self: &Rc<Self>, file: &Rc<OpenFile>, everyones: bool) -> Result<(), FsError> {
        let inode = &file.inode;
        let mut result = self.meta.writer_is_told(file).await;
        loop {
            // What others wrote is synced, too, by who has not looked at it.
            let striping = if everyones { self.meta.layout_of(inode).await? } else { inode.striping() };
            let Some(s) = striping else { break };
            let synced = self.sync_objects(&s, everyones).await;
            match self.meta.unless_moved(inode, Some(s), synced).await {
                Ok(None) => {}
                Ok(Some(())) => break,
                Err(e) => {
                    result = result.and(Err(e));
                    break;
                }
            }
        }
        let ask = wire::mdt::SyncRequest { fid: inode.fid };
        let meta: Result<(), FsError> = self.sessions.mdc().ask(Op::MdtSync, &ask).await;
        inode.error_since(&file.error_mark).and(result).and(meta)
    }

    async fn sync_objects(&self, s: &Striping, everyones: bool) -> Result<(), FsError> {
        let sync = async |o: &Rc<Object>| {
            let osc = self.osts.osc(o.ost);
            osc.flush(o, Extent::ALL, Why::Asked).await;
            osc.sync_object(o, everyones).await
        };
        rt::sync::join_all(s.objects.iter().map(sync).collect()).await.into_iter().fold(Ok(()), Result::and)
    }

    /// Waits until everything dirty of an inode has been written out (not synced).
    ///
    /// Cancel: a part may be done.
    pub async fn write_out(&self, inode: &Inode) {
        if let Some(s) = inode.striping() {
            let flushes: Vec<_> = s
                .objects
                .iter()
                .map(|o| {
                    let osc = self.osts.osc(o.ost);
                    async move { osc.flush(o, Extent::ALL, Why::Asked).await }
                })
                .collect();
            rt::sync::join_all(flushes).await;
        }
    }

    /// copy_file_range(2) within the cluster; gives the bytes copied (0 at the end of the source). Where it ends early more may have been
    /// written than it says: the kernel asks again for all of the target then.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// As [`Data::read`] and [`Data::write`], for the first bytes: those that come later are for the next call to meet. EINVAL for
    /// overlapping ranges of one file.
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
        let ended = loop {
            if done == len {
                return Ok(done);
            }
            match self.copy_step((from, from_at + done), (to, to_at + done), len - done, &mut buffer).await {
                Ok(step) => {
                    done += step;
                    if step < buffer.len() as u64 || step == 0 {
                        break Ok(done);
                    }
                }
                Err(e) => break if done > 0 { Ok(done) } else { Err(e) },
            }
        };
        self.meta.kernel_missed(Missed::bytes(to.fid())).await;
        ended
    }

    /// Copies the first bytes of what is left by way of `buffer`; gives how many of these were written.
    async fn copy_step(
        self: &Rc<Self>,
        (from, from_at): (&Rc<OpenFile>, u64),
        (to, to_at): (&Rc<OpenFile>, u64),
        left: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<u64, FsError> {
        let step = usize::try_from(left.min(COPY_STEP_BYTES)).expect("a small number");
        let bulk = self.read(from, from_at, step).await?;
        buffer.resize(bulk.len(), 0);
        if bulk.is_empty() {
            return Ok(0);
        }
        bulk.copy_out(0, buffer);
        Ok(self.write_part(to, to_at, buffer, None).await?.len)
    }
}
