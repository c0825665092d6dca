//! How large a file is, and making it another size.
//!
//! A client that holds a lock over an object's end knows; otherwise the OST is asked (glimpse), which asks the writer.
//! While nobody has the file open for writing, the metadata server's record is right and nobody is asked.
use std::rc::Rc;

use frames::Bulk;
use layout::StripeIndex;
use ldlm::{DenyReason, EnqueueFlags, LockCookie, LockMode, LockPolicyData};
use types::{Duration, Extent, FsError, WallTime};
use wire::Op;
use wire::lock::CUT_AMID;
use wire::mdt::{Attr, AttrFlags, Cred, SetBits, SetattrRequest};
use wire::ost::PunchKind;

use super::Data;
use super::cuts::SizeTurn;
use crate::goes_on::goes_on;
use crate::inode::{FILE_BYTES_MAX, Inode, Object, Striping, UNSET};
use crate::jobs::Doer;
use crate::locks::{Held, Sought};
use crate::meta::missed::Missed;
use crate::open_file::OpenFile;
use crate::osc::Why;

/// How often objects are asked for their sizes until locks are taken under which they do not change.
const UNLOCKED_ROUNDS_MAX: u32 = 4;
/// How often they are asked where no lock may be waited for.
const ROUNDS_MAX: u32 = 100;
/// Longest pause between two rounds, ms.
const PAUSE_MS_MAX: u64 = 50;

/// What is known of an object when it is asked for its size.
pub(super) struct Before {
    cuts_here: u64,
    lock: Option<LockCookie>,
    mark: u64,
}

/// What was answered then.
struct Told {
    size: u64,
    /// The lock by which it is known here.
    lock: Option<LockCookie>,
    /// The mark that came with it, or with that lock.
    mark: Option<u64>,
}

impl Before {
    /// Whether nobody else made the object shorter between the question and the answer. A server of before tells no marks.
    fn only_grew_until(&self, told: &Told) -> bool {
        let kept = self.lock.is_some() && self.lock == told.lock;
        kept || told.mark.is_some_and(|mark| mark == 0 || mark == self.mark)
    }
}

/// What the objects say of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileSize {
    pub(crate) size: u64,
    pub(crate) blocks512: u64,
    pub(crate) mtime: WallTime,
}

impl Data {
    /// Asks for an object's true size. Answers what it was at a moment since the call: what the object knows may be of an older
    /// question by now, whose answer came later.
    async fn glimpse(&self, object: &Rc<Object>) -> Result<Told, FsError> {
        let osc = self.osts.osc(object.ost);
        let as_known_here = || {
            let lock = osc.lock_of_end(object);
            Told { size: object.size(), lock, mark: lock.and_then(|lock| object.mark_under(lock)) }
        };
        if osc.size_is_exact(object) {
            return Ok(as_known_here());
        }
        let unwritten = object.unwritten_end();
        let all = LockPolicyData::extent(Extent::ALL);
        let (coming, told) = match osc.locks.seek(object.resource(), LockMode::Pr, all, EnqueueFlags::GLIMPSE) {
            Sought::Held(_) => return Ok(as_known_here()),
            Sought::Comes(coming) => (coming, None),
            Sought::Ask(coming, question) => {
                let locks = osc.locks.clone();
                (coming, Some(osc.locks.by_itself(async move { locks.ask(question).await })))
            }
        };
        match coming.end().await {
            // What is not written out, before the question or since, counts besides.
            Ok(_) | Err(DenyReason::Glimpse { .. }) => {
                let told = match told {
                    Some(told) => told.await.flatten(),
                    None => None,
                };
                let Some(lvb) = told else { return Ok(as_known_here()) };
                object.mark_told(lvb.cut);
                let here = as_known_here();
                let asked = lvb.size.max(unwritten).max(object.unwritten_end());
                Ok(Told { size: if here.lock.is_some() { here.size } else { asked }, mark: Some(lvb.cut), ..here })
            }
            Err(DenyReason::Evicted) => osc.import().map(|_| ()).and(Err(FsError::Io)),
            Err(e) => Err(e.error()),
        }
    }

    /// What is known of an object before it is asked for its size.
    fn known_before(&self, object: &Object) -> Before {
        let osc = self.osts.osc(object.ost);
        let mark = object.cut_mark.get().max(osc.cut_floor());
        Before { cuts_here: object.cuts_here(), lock: osc.lock_of_end(object), mark }
    }

    /// What is known of objects of a file now, for [`Data::only_grew_since`].
    pub(super) fn known_now(&self, objects: &[Rc<Object>]) -> Vec<Before> {
        objects.iter().map(|o| self.known_before(o)).collect()
    }

    /// The lengths of objects, each as it was at a moment since the call, and whether it may have become shorter since `before`.
    async fn sizes_since(&self, objects: &[Rc<Object>], before: Vec<Before>) -> Result<Vec<(Told, bool)>, FsError> {
        let glimpses: Vec<_> = objects.iter().map(|o| self.glimpse(o)).collect();
        let told = rt::sync::join_all(glimpses).await.into_iter().zip(before).zip(objects);
        told.map(|((told, before), object)| {
            let told = told?;
            let shorter = before.cuts_here != object.cuts_here() || !before.only_grew_until(&told);
            Ok((told, shorter))
        })
        .collect()
    }

    /// Whether none of these objects of a file became shorter since `before`, as far as is known.
    pub(super) async fn only_grew_since(
        &self,
        inode: &Inode,
        objects: &[Rc<Object>],
        before: Vec<Before>,
    ) -> Result<bool, FsError> {
        if inode.is_ours_alone() {
            return Ok(before.iter().zip(objects).all(|(before, object)| before.cuts_here == object.cuts_here()));
        }
        Ok(self.sizes_since(objects, before).await?.iter().all(|(_, shorter)| !shorter))
    }

    /// The lengths of a file's objects, each as it was at a moment since the call; `None` when they may be of different states of
    /// the file, because one became shorter meanwhile, as far as is known.
    async fn sizes_at_once(&self, s: &Striping) -> Result<Option<u64>, FsError> {
        let sizes = self.sizes_since(&s.objects, self.known_now(&s.objects)).await?;
        let is_one = |told: &Told| s.objects.len() < 2 && told.mark != Some(CUT_AMID);
        let at_once = sizes.iter().all(|(told, shorter)| !shorter || is_one(told));
        Ok((at_once || types::planted!("sizes-torn")).then(|| size_of(s, sizes.iter().map(|(told, _)| told.size))))
    }

    /// The file's size from its objects.
    pub(crate) async fn file_size(&self, inode: &Rc<Inode>) -> Result<FileSize, FsError> {
        self.file_size_asked(inode, true).await
    }

    /// The same for who must not wait for locks ([`crate::front`]).
    pub(crate) async fn file_size_unlocked(&self, inode: &Rc<Inode>) -> Result<FileSize, FsError> {
        self.file_size_asked(inode, false).await
    }

    async fn file_size_asked(&self, inode: &Rc<Inode>, may_lock: bool) -> Result<FileSize, FsError> {
        loop {
            let Some(s) = inode.striping() else {
                let a = inode.attr();
                return Ok(FileSize { size: a.size, blocks512: a.blocks, mtime: a.mtime });
            };
            if inode.is_ours_alone() {
                return Ok(local_size(&s));
            }
            let asked = self.size_of_objects(inode, &s, may_lock).await;
            if let Some(size) = self.meta.unless_moved(inode, Some(s), asked).await? {
                return Ok(size);
            }
        }
    }

    async fn size_of_objects(&self, inode: &Inode, s: &Striping, may_lock: bool) -> Result<FileSize, FsError> {
        for round in 0..ROUNDS_MAX {
            if let Some(size) = self.sizes_at_once(s).await? {
                return Ok(FileSize { size, ..local_size(s) });
            }
            if may_lock && round + 1 >= UNLOCKED_ROUNDS_MAX {
                let _held = self.lock_all(s, LockMode::Pr).await?;
                return Ok(local_size(s));
            }
            // The first time an object of which marks were not known yet is all that is wrong, mostly.
            let pause = Duration::from_millis(u64::from(round).min(PAUSE_MS_MAX));
            if round > 0 {
                self.rt.sleep(pause).await;
            }
        }
        tracing::warn!(file = %inode.fid, "its size is not known: objects of it became shorter each of {ROUNDS_MAX} times that they were asked");
        Err(FsError::Io)
    }

    /// Attributes with the size as far as it is known here: never less than what this client wrote or told a kernel.
    pub(crate) fn attr_as_known(&self, inode: &Inode) -> Attr {
        let mut attr = inode.attr();
        if let Some(s) = inode.striping() {
            let known = local_size(&s);
            attr.size = attr.size.max(known.size);
            attr.blocks = attr.blocks.max(known.blocks512);
            attr.mtime = attr.mtime.max(known.mtime);
        }
        attr
    }

    /// Whether the size stands in the attributes: nobody has to be asked for it.
    pub(crate) fn size_is_told(&self, inode: &Inode) -> bool {
        let attr = inode.attr();
        let unwritten = || inode.striping().is_some_and(|s| s.objects.iter().any(|o| o.unwritten_pages() > 0));
        let known = attr.flags & AttrFlags::SIZE_KNOWN != 0;
        attr.mode & 0o170_000 != 0o100_000 || known && inode.writers.get() == 0 && !unwritten()
    }

    /// Attributes with the true size and times.
    pub(crate) async fn sized(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<Attr, FsError> {
        let mut attr = inode.attr();
        let told = self.told_mtime(inode);
        if !self.size_is_told(inode) {
            if inode.striping().is_none() && attr.flags & AttrFlags::HAS_LAYOUT != 0 {
                self.meta.fetch_attr(&Cred { caps: 1, ..Cred::default() }, inode, None).await?;
                attr = inode.attr();
            }
            if let Some(s) = inode.striping() {
                let wrote = inode.mtime.get();
                let kept = |o: &Object| types::planted!("own-time-kept") && self.osts.osc(o.ost).size_is_exact(o);
                let written = s.objects.iter().all(|o| o.unwritten_pages() == 0 && !kept(o));
                let now = self.file_size(inode).await?;
                // What we wrote is with the OSTs, and the times of the objects, told by them or known under a lock that came since, know
                // of it: one that another client set later holds.
                if written && inode.mtime.get() == wrote && !inode.is_being_written() {
                    inode.mtime.set(UNSET);
                }
                let doubted = attr.flags & AttrFlags::UNSETTLED != 0 && inode.writers.get() == 0;
                if let Some(keeper) = self.common.keeper().filter(|_| doubted) {
                    keeper.settle_size(inode, Some(attr.size));
                }
                let as_told = doubted && attr.size == now.size;
                attr.size = now.size;
                attr.blocks = now.blocks512;
                if !as_told {
                    attr.mtime = attr.mtime.max(now.mtime);
                    attr.ctime = attr.ctime.max(attr.mtime.min(now.mtime));
                }
            }
        }
        Ok(self.with_own_times(inode, attr, told))
    }

    /// When a file was written last, where the server's record says so: without writers it holds the time of the last write, or one that
    /// was set since.
    fn told_mtime(&self, inode: &Inode) -> Option<WallTime> {
        let attr = inode.attr();
        let known = attr.mode & 0o170_000 == 0o100_000 && attr.flags & AttrFlags::SIZE_KNOWN != 0;
        (known && inode.writers.get() == 0).then_some(attr.mtime)
    }

    /// Attributes of an inode whose size nobody has to be asked for ([`Data::size_is_told`]).
    pub(crate) fn attr_as_told(&self, inode: &Inode) -> Attr {
        self.with_own_times(inode, inode.attr(), self.told_mtime(inode))
    }

    /// Attributes with what this client did last; `told`: [`Data::told_mtime`] of before they were asked for.
    fn with_own_times(&self, inode: &Inode, mut attr: Attr, told: Option<WallTime>) -> Attr {
        if let Some(told) = told {
            inode.mtime.set(UNSET);
            attr.mtime = told;
        }
        attr.mtime = attr.mtime.max(inode.mtime.get());
        attr.ctime = attr.ctime.max(inode.mtime.get());
        attr.atime = attr.atime.max(inode.atime.get());
        attr
    }

    /// An explicit mtime wins over the times of data written before it: write those out and set the objects' times.
    pub(crate) async fn settle_times(&self, inode: &Rc<Inode>, request: &SetattrRequest) -> Result<(), FsError> {
        let is_settled = || {
            let known = inode.attr().flags & AttrFlags::SIZE_KNOWN != 0 && inode.writers.get() == 0;
            known && inode.striping().is_none_or(|s| s.objects.iter().all(|o| o.unwritten_pages() == 0))
        };
        loop {
            let _writing = inode.begin_writing().await;
            if (inode.attr().mode == 0 || is_settled()) && !types::planted!("settled-by-old-attributes") {
                // Nothing is known of it yet, or another client may have begun to write since that was told.
                self.meta.renew_attr(inode).await?;
            }
            if inode.attr().mode & 0o170_000 != 0o100_000 || is_settled() {
                return Ok(());
            }
            let Some(s) = self.meta.layout_of(inode).await? else { return Ok(()) };
            let done = self.settle_times_of(inode, &s, request).await;
            if self.meta.unless_moved(inode, Some(s), done).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Has the objects of a file say that it was written at `mtime`, if they say a later time.
    ///
    /// # Errors
    /// What the OSTs answer.
    pub(crate) async fn renew_time(&self, inode: &Rc<Inode>, mtime: WallTime) -> Result<(), FsError> {
        if self.file_size(inode).await?.mtime <= mtime {
            return Ok(());
        }
        let request = SetattrRequest { valid: SetBits::MTIME, mtime, ..SetattrRequest::default() };
        self.settle_times(inode, &request).await
    }

    async fn settle_times_of(&self, inode: &Inode, s: &Striping, request: &SetattrRequest) -> Result<(), FsError> {
        let mtime = if request.valid & SetBits::MTIME_NOW != 0 { self.rt.wall() } else { request.mtime };
        let alone = inode.is_ours_alone();
        if !alone {
            // Others' unwritten pages would bring their times along later, and what locks of theirs cover they do not ask for.
            self.settle_data(s, LockMode::Pw).await?;
        }
        for o in &s.objects {
            let osc = self.osts.osc(o.ost);
            if alone {
                osc.flush(o, Extent::ALL, Why::Asked).await;
            }
            let ask = wire::ost::SetattrRequest { object: o.id, valid: 2, mtime, ..Default::default() };
            osc.import()?.ask::<_, wire::ost::AttrReply>(Op::OstSetattr, &ask).await?;
            o.mtime.set(mtime);
        }
        Ok(())
    }

    /// fallocate(2): `mode` bits KEEP_SIZE 1, PUNCH_HOLE 2, ZERO_RANGE 16. What it did on some objects stays when it fails on another one,
    /// the length that it gave them, too.
    ///
    /// Cancel: goes on by itself.
    ///
    /// # Errors
    /// EOPNOTSUPP for other modes, EINVAL for an empty range, EFBIG, ENOSPC.
    pub async fn fallocate(
        self: &Rc<Self>,
        file: &Rc<OpenFile>,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<(), FsError> {
        const KEEP_SIZE: u32 = 1;
        const PUNCH: u32 = 2;
        const ZERO: u32 = 16;
        if !file.writes() {
            return Err(FsError::BadHandle);
        }
        if len == 0 {
            return Err(FsError::Invalid);
        }
        if offset.checked_add(len).is_none_or(|e| e > FILE_BYTES_MAX) {
            return Err(FsError::FileTooBig);
        }
        if !matches!(mode & !KEEP_SIZE, 0 | ZERO) && mode != PUNCH | KEEP_SIZE {
            return Err(FsError::NotSupported);
        }
        let (me, file) = (self.clone(), file.clone());
        goes_on(self.sessions.alone(), async move { me.fallocate_now(&file, mode, Extent::at(offset, len)).await })
            .await
    }

    async fn fallocate_now(self: &Rc<Self>, file: &OpenFile, mode: u32, range: Extent) -> Result<(), FsError> {
        let inode = &file.inode;
        file.dirty.set(true);
        inode.io_owner.set(Doer::of(file.cred()));
        loop {
            let _writing = inode.begin_writing().await;
            let s = self.meta.layout_of(inode).await?.ok_or(FsError::NotSupported)?;
            let done = self.allocate(inode, &s, mode, range).await;
            super::write::outlives(file);
            if done.is_err() {
                // What was allocated of other objects stays, and the kernel takes an error for nothing at all.
                self.meta.kernel_missed(Missed::bytes(inode.fid)).await;
            }
            if self.meta.unless_moved(inode, Some(s), done).await?.is_some() {
                return Ok(());
            }
        }
    }

    async fn allocate(&self, inode: &Rc<Inode>, s: &Striping, mode: u32, range: Extent) -> Result<(), FsError> {
        let keep = mode & 1 != 0;
        let _shut = inode.front.shut(range);
        inode.front.drop_kernel_pages().await;
        // Not before that: where its caller was killed a cut may be under way, which waits for its turn while no page is written back.
        let _turn = if keep { None } else { Some(SizeTurn::of(inode).await) };
        for part in s.layout.geometry().objects(range)? {
            let object = &s.objects[usize::from(part.stripe.0)];
            let before = object.mtime.get();
            let done = self.allocate_object(object, part.object, mode, keep).await;
            // Zeros may have taken bytes away before there was no space for the rest.
            if done == Ok(true) || done.is_err() && object.mtime.get() != before {
                inode.mtime.set(inode.mtime.get().max(object.mtime.get()));
            }
            done?;
        }
        Ok(())
    }

    /// Whether there was anything to do: of what lies behind the end of the file there are no bytes to take.
    async fn allocate_object(
        &self,
        object: &Rc<Object>,
        extent: Extent,
        mode: u32,
        keep: bool,
    ) -> Result<bool, FsError> {
        let osc = self.osts.osc(object.ost);
        // Making the object longer is a matter of everything behind the range, too.
        let reach = if keep { extent } else { Extent::from(extent.start) };
        let wide = LockPolicyData::extent(reach.align_out(4096));
        let held = osc
            .locks
            .acquire(object.resource(), LockMode::Pw, wide, EnqueueFlags::NONE)
            .await
            .map_err(|e| e.error())?;
        let reserves = mode & !1 == 0;
        let _change = if reserves { None } else { Some(object.change(reach.align_out(4096)).await) };
        osc.flush(object, extent.align_out(4096), Why::Under(&held)).await;
        let cut = extent.intersect(&Extent::new(0, object.size())).filter(|_| !reserves);
        if keep && !reserves && cut.is_none() {
            return Ok(false);
        }
        object.mtime.set(object.mtime.get().max(self.rt.wall()));
        if reserves {
            self.reserve(object, extent, keep, &held).await?;
        } else {
            let kind = if mode & 2 != 0 { PunchKind::Hole } else { PunchKind::Zero };
            osc.discard(object, extent.align_out(4096), false);
            if let Some(cut) = cut {
                osc.punch(object, kind, cut, &held).await?;
            }
            let stored = object.stored();
            if !keep && extent.end > stored {
                // Behind the end there is nothing to zero. What is longer for unwritten bytes only may find no space.
                let rest = Extent::new(extent.start.max(stored), extent.end);
                self.reserve(object, rest, false, &held).await?;
            }
        }
        if !keep {
            object.stored_to(extent.end);
        }
        Ok(true)
    }

    /// Finds space for a range of an object, which (but with `keep`) reaches to the range's end then at least.
    async fn reserve(&self, object: &Rc<Object>, extent: Extent, keep: bool, held: &Held) -> Result<(), FsError> {
        let osc = self.osts.osc(object.ost);
        let (lock, mtime, keep_size) = (held.handle(), object.mtime.get(), keep);
        let (owner, file) = (osc.owner_of(object, &osc.import()?), crate::tight::owner_of(object));
        let ask = wire::ost::AllocateRequest { object: object.id, extent, keep_size, lock, mtime, owner, file };
        let import = osc.import()?;
        let options = osc.options_of_change(&import, held)?;
        let under = osc.lock_of_all(object);
        object.reserves();
        let answer = import.call(Op::OstAllocate, wire::encode(&ask), Bulk::new(), options).await;
        object.reserves();
        let answer = answer?;
        object.was_changed(answer.header.transno, under);
        let reply: wire::ost::AttrReply = answer.decode()?;
        object.blocks512.set(reply.lvb.blocks);
        Ok(())
    }

    /// Brings every client's unwritten data of the file to its OSTs: a read lock over each object makes others write out.
    async fn settle_data(&self, s: &Striping, mode: LockMode) -> Result<(), FsError> {
        for o in &s.objects {
            let osc = self.osts.osc(o.ost);
            osc.flush(o, Extent::ALL, Why::Asked).await;
            let all = LockPolicyData::extent(Extent::ALL);
            osc.locks.acquire(o.resource(), mode, all, EnqueueFlags::NONE).await.map_err(|e| e.error())?;
        }
        Ok(())
    }

    /// SEEK_DATA and SEEK_HOLE.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// ENXIO when `offset` is at or behind the end, or there is no data behind it.
    pub async fn seek(self: &Rc<Self>, inode: &Rc<Inode>, offset: u64, hole: bool) -> Result<u64, FsError> {
        // What programs stored to mappings here comes back: locks of this client's own call for nothing.
        if inode.front.may_have_stores() && !types::planted!("sought-beside-stores") {
            inode.front.drop_kernel_pages().await;
        }
        if !types::planted!("sought-by-old-size") {
            // Without a lock the size that was told last may be of before somebody else's writes.
            self.meta.renew_attr(inode).await?;
        }
        let size = self.sized(inode).await?.size;
        if offset >= size {
            return Err(FsError::NoDevice);
        }
        let nothing = if hole { Ok(size) } else { Err(FsError::NoDevice) };
        loop {
            // Of a file that was listed only the attributes are known.
            let Some(s) = self.meta.layout_of(inode).await? else { return nothing };
            let found = match self.settle_data(&s, LockMode::Pr).await {
                Ok(()) => self.seek_objects(&s, Extent::new(offset, size), hole).await,
                Err(e) => Err(e),
            };
            if let Some(found) = self.meta.unless_moved(inode, Some(s), found).await? {
                return found.map_or(nothing, Ok);
            }
        }
    }

    /// The first byte within a range that is data, or a hole, as the OSTs have it.
    pub(super) async fn seek_objects(&self, s: &Striping, range: Extent, hole: bool) -> Result<Option<u64>, FsError> {
        let geometry = s.layout.geometry();
        let kind = if hole { wire::ost::SeekKind::Hole } else { wire::ost::SeekKind::Data };
        // One question per object, however much of the file lies between: what is found first counts.
        let asked = geometry.stripes().zip(&s.objects).filter_map(|(stripe, object)| {
            let within = geometry.object_extent(stripe, range)?;
            let ask = wire::ost::SeekRequest { object: object.id, offset: within.start, kind };
            Some(async move {
                let import = self.osts.osc(object.ost).import()?;
                let found: wire::ost::SeekReply = import.ask(Op::OstSeek, &ask).await?;
                let at = found.offset.max(within.start);
                if at < within.end { Ok(Some(geometry.file_offset(stripe, at)?)) } else { Ok(None) }
            })
        });
        let found: Result<Vec<Option<u64>>, FsError> = rt::sync::join_all(asked.collect()).await.into_iter().collect();
        Ok(found?.into_iter().flatten().min())
    }
}

/// Space of an object as its users see it: what the OST says, and dirty pages as far as they do not lie where there is
/// space already (reserved or overwritten), which cannot be more than what the size leaves.
fn blocks_of(stored: u64, dirty_pages: u64, size: u64) -> u64 {
    stored.max((stored + dirty_pages * 8).min(size.div_ceil(4096) * 8))
}

/// The file's size from those of its objects, in stripe order.
fn size_of(s: &Striping, objects: impl Iterator<Item = u64>) -> u64 {
    let of = |(i, size): (usize, u64)| s.layout.geometry().file_size(StripeIndex(i as u16), size);
    objects.enumerate().map(|object| of(object).unwrap_or(FILE_BYTES_MAX)).max().unwrap_or(0)
}

/// The file's size from what is known of its objects.
fn local_size(s: &Striping) -> FileSize {
    let size = size_of(s, s.objects.iter().map(|o| o.size()));
    let mut out = FileSize { size, mtime: UNSET, ..FileSize::default() };
    for o in &s.objects {
        out.blocks512 += blocks_of(o.blocks512.get(), o.dirty_pages() as u64, o.size());
        out.mtime = out.mtime.max(o.mtime.get());
    }
    out
}
