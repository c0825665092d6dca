//! A file gets other objects, under the hands of its readers and writers (`lfs migrate`).
//!
//! Its bytes are copied to a nameless file that has the objects it is to get, while everybody works on; what they change meanwhile the OSTs
//! say, and it is copied again, until little is left. Then this client takes the write locks of all old objects, so that nobody else has
//! anything of them, copies the rest, promises every OST that its object goes, and has the metadata server exchange the two layouts. From
//! then on whoever asks for a lock on an old object hears that it is gone, and asks for the layout. If this client dies on the way, OSTs that
//! have its promise ask the metadata server what was decided before anybody else gets a lock, as for cuts (`cuts.rs`).
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;

use frames::Bulk;
use layout::StripeIndex;
use ldlm::LockMode;
use rt::sync::join_all;
use types::{Duration, Extent, FsError, Instant};
use wire::Op;
use wire::mdt::{BytesReply, Cred, SwapRequest};
use wire::ost::{AttrReply, ChangedReply, ChangedRequest, REMOVED, SetattrRequest};

use super::Data;
use super::cuts::{HOLD_MAX, confirm};
use crate::cut_numbers::Part;
use crate::inode::{Object, Striping};
use crate::locks::Held;
use crate::open_file::OpenFile;
use crate::osc::Why;

/// Bytes that are read and written at a time.
const STEP_BYTES: u64 = 4 << 20;
/// What is left of a file when others are kept away from it, at most, unless that takes more than [`PASSES_MAX`] passes.
const REST_BYTES_MAX: u64 = 32 << 20;
/// How often what others changed is copied again before they are kept away.
const PASSES_MAX: u32 = 8;
/// A range of an object that has more stripes than this is copied with what lies between them.
const STRIPES_MAX: u64 = 1024;
/// How often a copy that waits looks whether somebody still waits for it.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How often an OST hears that its lock is in use, while others wait for it.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// How a file gets other objects.
#[derive(Clone, Debug, Default)]
pub struct Migrate {
    /// Layout wished, as `lustre.lov` set bytes; empty: the directory's default.
    pub layout: Vec<u8>,
    /// Somebody else's change meanwhile ends it with EBUSY, and nobody is ever kept away for longer than the exchange takes.
    pub gives_way: bool,
    /// Bytes a second that are copied at most while everybody works on; 0: as fast as it goes.
    pub bytes_per_s: u64,
}

/// Keeps a copy at its rate, and ends it when nobody waits for it any more.
pub(crate) struct Pace<'a> {
    data: &'a Data,
    bytes_per_s: u64,
    began: Instant,
    done: Cell<u64>,
    stopped: &'a dyn Fn() -> bool,
}

impl<'a> Pace<'a> {
    pub(crate) fn new(data: &'a Data, bytes_per_s: u64, stopped: &'a dyn Fn() -> bool) -> Pace<'a> {
        Pace { data, bytes_per_s, began: data.rt.now(), done: Cell::new(0), stopped }
    }
    /// So many bytes more were copied; in haste the rate does not count, for others are kept away.
    async fn copied(&self, bytes: u64, in_haste: bool) -> Result<(), FsError> {
        self.done.set(self.done.get() + bytes);
        let due = u128::from(self.done.get()) * 1_000_000_000 / u128::from(self.bytes_per_s.max(1));
        let is_free = in_haste && !types::planted!("paced-under-locks");
        if self.bytes_per_s > 0 && !is_free {
            let due = Duration::from_nanos(u64::try_from(due).unwrap_or(u64::MAX));
            let mut left = due.saturating_sub(self.data.rt.now().since(self.began));
            while !left.is_zero() && !(self.stopped)() {
                let part = left.min(LOOK_AGAIN);
                self.data.rt.sleep(part).await;
                left -= part;
            }
        }
        if (self.stopped)() { Err(FsError::Interrupted) } else { Ok(()) }
    }
    /// Bytes that were copied so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.done.get()
    }
}

/// What is known of the objects that are copied: a version of each, and ranges of the file to be copied yet.
struct Left {
    versions: Vec<u64>,
    ranges: Vec<Extent>,
}

impl Left {
    fn bytes(&self) -> u64 {
        self.ranges.iter().map(Extent::len).sum()
    }
}

/// Objects that are promised to go. What is not settled of it when this is dropped is taken back, or, once it may have been decided, left
/// to the OSTs.
struct Leaving {
    data: Rc<Data>,
    number: u64,
    objects: Vec<Rc<Object>>,
    parts: Vec<Part>,
    /// The metadata server was asked, and did not say no.
    asked: Cell<bool>,
    held: RefCell<Vec<Held>>,
}

impl Leaving {
    /// Gives the locks back: OSTs that have a promise ask what was decided.
    fn let_go(&self) {
        for held in self.held.take() {
            held.call_back();
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let (data, number, objects) = (self.data.clone(), self.number, std::mem::take(&mut self.objects));
        if self.asked.get() {
            self.let_go();
            let parts = std::mem::take(&mut self.parts);
            data.rt.clone().spawn(confirm(Rc::downgrade(&data), number, parts));
            return;
        }
        let held = self.held.take();
        data.rt.clone().spawn(async move {
            let withdrawn = objects.iter().map(|o| data.promise(o, number, REMOVED, true));
            // Who cannot be told asks the metadata server, which knows of no such decision; nobody waits for that server's sake meanwhile.
            let mut withdrawn = pin!(join_all(withdrawn.collect()));
            let told = data.rt.timeout(HOLD_MAX, withdrawn.as_mut()).await;
            drop(held);
            if told.is_none() {
                withdrawn.await;
            }
            data.cut_numbers.over(number);
        });
    }
}

/// Locks of all old objects that others are kept away by, and when those who gave them last heard that they are in use.
struct Kept<'a> {
    held: &'a [Held],
    said: Cell<Instant>,
}

/// A file on its way to other objects.
struct Job<'a> {
    data: &'a Rc<Data>,
    from: &'a Rc<OpenFile>,
    to: &'a Rc<OpenFile>,
    /// The objects that it has.
    s: Rc<Striping>,
    pace: &'a Pace<'a>,
}

impl Data {
    /// Copies a file to one with other objects, and gives it those. Bytes that were copied.
    ///
    /// # Errors
    /// EBUSY when somebody else migrates the file, changed it (`how`), or servers did not answer in time: nothing has changed. EINTR when
    /// nobody waits any more; what reading, writing and servers answer.
    pub(crate) async fn migrate(
        self: &Rc<Self>,
        (from, to): (&Rc<OpenFile>, &Rc<OpenFile>),
        how: &Migrate,
        cred: &Cred,
        pace: &Pace<'_>,
    ) -> Result<u64, FsError> {
        let s = self.meta.layout_of(&from.inode).await?.ok_or(FsError::NoData)?;
        let job = Job { data: self, from, to, s, pace };
        let done = match job.copy_most(how).await {
            Ok(left) => job.finish(how, cred, left).await,
            Err(e) => Err(e),
        };
        match done {
            Ok(()) => Ok(pace.bytes()),
            // Somebody else has given it other objects.
            Err(FsError::NotFound) => Err(FsError::Busy),
            Err(e) => Err(e),
        }
    }
}

impl Job<'_> {
    /// Copies the file while everybody works on, until little is left.
    async fn copy_most(&self, how: &Migrate) -> Result<Left, FsError> {
        let mut left = self.left(None).await?;
        let size = self.size(None).await?;
        self.copy(Extent::new(0, size), None).await?;
        for pass in 0.. {
            left = self.left(Some(left)).await?;
            if how.gives_way && !left.ranges.is_empty() {
                return Err(FsError::Busy);
            }
            if left.bytes() <= REST_BYTES_MAX || pass >= PASSES_MAX {
                break;
            }
            for range in std::mem::take(&mut left.ranges) {
                self.copy_anew(range, None).await?;
            }
        }
        Ok(left)
    }

    /// The rest, with everybody kept away.
    async fn finish(&self, how: &Migrate, cred: &Cred, left: Left) -> Result<(), FsError> {
        let (data, inode) = (self.data, &self.from.inode);
        let _frozen = inode.freeze().await.ok_or(FsError::Busy)?;
        inode.kept_append.give_up();
        let _shut = inode.front.shut(Extent::ALL);
        inode.front.drop_kernel_pages().await;
        data.write_out(inode).await;
        let held = data.lock_all(&self.s, LockMode::Pw).await?;
        let kept = Some(&Kept { held: &held, said: Cell::new(data.rt.now()) });
        let left = self.step(kept, self.left(Some(left))).await?;
        if how.gives_way && !left.ranges.is_empty() {
            return Err(FsError::Busy);
        }
        let size = inode.known_size();
        if self.step(kept, data.file_size(&self.to.inode)).await?.size != size {
            self.step(kept, data.truncate_objects(&self.to.inode, size)).await?;
        }
        for range in left.ranges {
            if !types::planted!("migrated-without-the-rest") {
                self.copy_anew(range, kept).await?;
            }
        }
        self.step(kept, self.take_over_times()).await?;
        self.step(kept, data.sync_own(self.to)).await?;
        if held.iter().any(|h| h.handle().0 == 0) {
            // An OST gave this client up.
            return Err(FsError::Busy);
        }
        self.exchange(held, cred).await?;
        // Kernel reads under way may have old bytes: they read again.
        inode.front.drop_kernel_pages().await;
        Ok(())
    }

    /// What changed of the objects behind the versions that are known, in the file's bytes; from now on what changes is told.
    async fn left(&self, before: Option<Left>) -> Result<Left, FsError> {
        let asked = self.s.objects.iter().enumerate().map(|(i, object)| {
            let since = before.as_ref().map_or(0, |b| b.versions[i]);
            let ask = ChangedRequest { object: object.id, since };
            async move { self.data.osts.osc(object.ost).import()?.ask::<_, ChangedReply>(Op::OstChanged, &ask).await }
        });
        let mut left = Left { versions: Vec::new(), ranges: Vec::new() };
        for (i, answer) in join_all(asked.collect()).await.into_iter().enumerate() {
            let reply = answer?;
            left.versions.push(reply.version);
            if before.is_some() {
                left.ranges.extend(reply.extents.into_iter().flat_map(|e| file_ranges(&self.s, i, e)));
            }
        }
        left.ranges.extend(before.map(|b| b.ranges).unwrap_or_default());
        left.ranges.sort_by_key(|e| e.start);
        left.ranges.dedup_by(|next, last| {
            let touches = next.start <= last.end;
            if touches {
                last.end = last.end.max(next.end);
            }
            touches
        });
        Ok(left)
    }

    /// Something that servers are waited for, be it under locks that are kept: then those who gave them hear that they are in use, and a
    /// server that does not answer is not waited for at others' expense. EBUSY: it did not.
    ///
    /// Cancel: as `work`.
    async fn step<T>(
        &self,
        kept: Option<&Kept<'_>>,
        work: impl Future<Output = Result<T, FsError>>,
    ) -> Result<T, FsError> {
        let Some(kept) = kept else { return work.await };
        let rt = &self.data.rt;
        if rt.now().since(kept.said.get()) >= SIGN_OF_LIFE {
            kept.said.set(rt.now());
            rt.timeout(HOLD_MAX, self.give_sign_of_life(kept.held)).await.ok_or(FsError::Busy)??;
        }
        rt.timeout(HOLD_MAX, work).await.ok_or(FsError::Busy)?
    }

    /// How long the file is; under locks that are kept nobody has to be asked.
    async fn size(&self, kept: Option<&Kept<'_>>) -> Result<u64, FsError> {
        match kept {
            Some(_) => Ok(self.from.inode.known_size()),
            None => Ok(self.data.file_size(&self.from.inode).await?.size),
        }
    }

    /// Copies what is data of a range again: what is a hole now becomes one.
    async fn copy_anew(&self, range: Extent, kept: Option<&Kept<'_>>) -> Result<(), FsError> {
        const PUNCH_AND_KEEP_SIZE: u32 = 3;
        let there = self.size(kept).await?;
        let copied = self.step(kept, self.data.file_size(&self.to.inode)).await?.size;
        if range.start < copied {
            let len = range.end.min(copied) - range.start;
            self.step(kept, self.data.fallocate(self.to, PUNCH_AND_KEEP_SIZE, range.start, len)).await?;
        }
        self.copy(Extent::new(range.start.min(there), range.end.min(there)), kept).await
    }

    /// Copies what is data of a range; with `kept`, under these locks.
    async fn copy(&self, range: Extent, kept: Option<&Kept<'_>>) -> Result<(), FsError> {
        let (mut at, mut data_to, mut buffer) = (range.start, range.start, Vec::new());
        while at < range.end {
            if at >= data_to {
                let data = self.step(kept, self.next(Extent::new(at, range.end), false, kept)).await?;
                let Some(data) = data else { break };
                let hole = self.step(kept, self.next(Extent::new(data, range.end), true, kept)).await?;
                (at, data_to) = (data, hole.unwrap_or(range.end));
                if at >= data_to && !types::planted!("migrated-up-to-a-new-hole") {
                    // Somebody has punched it meanwhile: there may be data behind it.
                    continue;
                }
            }
            let piece = Extent::new(at, data_to.min(at + STEP_BYTES));
            let bulk = match kept {
                None => self.data.read(self.from, piece.start, piece.len() as usize).await?,
                Some(Kept { held, .. }) => self.step(kept, self.read_under(piece, held)).await?,
            };
            if bulk.is_empty() {
                break;
            }
            buffer.resize(bulk.len(), 0);
            bulk.copy_out(0, &mut buffer);
            self.step(kept, self.data.write(self.to, piece.start, &buffer)).await?;
            at = piece.start + buffer.len() as u64;
            self.pace.copied(buffer.len() as u64, kept.is_some()).await?;
        }
        Ok(())
    }

    /// The next byte of a range that is data, or a hole.
    async fn next(&self, range: Extent, hole: bool, kept: Option<&Kept<'_>>) -> Result<Option<u64>, FsError> {
        if kept.is_some() {
            return self.data.seek_objects(&self.s, range, hole).await;
        }
        match self.data.seek(&self.from.inode, range.start, hole).await {
            Ok(at) => Ok((at < range.end).then_some(at)),
            // There is no data behind it, or the file has become shorter.
            Err(FsError::NoDevice) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Reads past the cache under locks that are kept, whoever waits for them.
    async fn read_under(&self, range: Extent, held: &[Held]) -> Result<Bulk, FsError> {
        let mut out = Bulk::new();
        let pieces: Vec<_> = self.s.layout.geometry().pieces(range)?.collect();
        let reads = pieces.iter().map(|piece| {
            let stripe = usize::from(piece.stripe.0);
            let (object, held) = (&self.s.objects[stripe], &held[stripe]);
            async move { self.data.osts.osc(object.ost).read_direct(object, piece.object, held).await }
        });
        for (part, piece) in join_all(reads.collect()).await.into_iter().zip(&pieces) {
            let mut part = part?;
            self.data.pad(&mut part, piece.object.len());
            out.append(part);
        }
        Ok(out)
    }

    /// Every OST hears that its lock is in use.
    async fn give_sign_of_life(&self, held: &[Held]) -> Result<(), FsError> {
        let page = Extent::new(0, types::PAGE_BYTES as u64);
        let reads = self.s.objects.iter().zip(held).map(|(object, held)| async move {
            self.data.osts.osc(object.ost).read_direct(object, page, held).await.map(drop)
        });
        join_all(reads.collect()).await.into_iter().collect()
    }

    /// The new objects were written when the old ones were.
    async fn take_over_times(&self) -> Result<(), FsError> {
        self.data.meta.renew_attr(&self.from.inode).await?;
        let mtime = self.data.sized(&self.from.inode).await?.mtime;
        let new = self.to.inode.striping().ok_or(FsError::Io)?;
        for o in &new.objects {
            let osc = self.data.osts.osc(o.ost);
            osc.flush(o, Extent::ALL, Why::Asked).await;
            let ask = SetattrRequest { object: o.id, valid: 2, mtime, ..SetattrRequest::default() };
            osc.import()?.ask::<_, AttrReply>(Op::OstSetattr, &ask).await?;
            o.mtime.set(mtime);
        }
        self.to.inode.mtime.set(mtime);
        Ok(())
    }

    /// Promises the end of the old objects, and has the metadata server exchange the layouts.
    async fn exchange(&self, held: Vec<Held>, cred: &Cred) -> Result<(), FsError> {
        let (data, s, file, other) = (self.data, &self.s, &self.from.inode, &self.to.inode);
        let new = other.striping().ok_or(FsError::Io)?;
        let number = data.cut_numbers.begin();
        let objects = s.objects.clone();
        let (asked, held) = (Cell::new(false), RefCell::new(held));
        let parts = objects.iter().map(|o| data.part(o, REMOVED)).collect();
        let leaving = Leaving { data: data.clone(), number, objects, parts, asked, held };
        let promises = s.objects.iter().map(|o| data.promise(o, number, REMOVED, false));
        let promised = data.rt.timeout(HOLD_MAX, join_all(promises.collect())).await.ok_or(FsError::Busy)?;
        promised.into_iter().collect::<Result<(), FsError>>().map_err(given_up)?;
        leaving.asked.set(true);
        let ask = SwapRequest {
            cred: cred.clone(),
            fid: file.fid,
            generation: u32::from(s.layout.generation()),
            other: other.fid,
            blocks: new.objects.iter().map(|o| o.blocks512.get()).sum(),
            number,
            unfinished: data.unfinished_cut(number),
        };
        let mut decision = pin!(data.meta.mdt_call(Op::MdtSwap, &ask));
        let answer = match data.rt.timeout(HOLD_MAX, decision.as_mut()).await {
            Some(answer) => answer,
            None => {
                // Who wants the locks now has the OSTs ask the same.
                leaving.let_go();
                decision.await
            }
        };
        match answer {
            Ok(reply) => {
                let layout = reply.decode::<BytesReply>()?.value;
                // Whatever ends with the nameless file concerns the old objects now.
                other.set_striping(Striping { layout: s.layout.clone(), objects: s.objects.clone() });
                file.changed_unseen();
                data.meta.learn_layout(file, &layout, &[]).await
            }
            Err(e) => {
                leaving.asked.set(!is_refusal(e));
                if !is_refusal(e) {
                    // Nobody knows here whose objects are whose.
                    other.set_striping(Striping { layout: new.layout.clone(), objects: Vec::new() });
                }
                Err(given_up(e))
            }
        }
    }
}

/// Answers to an exchange that say that it was not made, and will not be. No space is none: a commit that waits for space has been
/// carried out, and comes.
fn is_refusal(e: FsError) -> bool {
    matches!(e, FsError::Stale | FsError::Access | FsError::Invalid | FsError::NotSupported)
}

/// Somebody changed the layout, or took a lock away.
fn given_up(e: FsError) -> FsError {
    if e == FsError::Stale { FsError::Busy } else { e }
}

/// The bytes of the file that a range of one of its objects is, with what lies between them where there are many.
fn file_ranges(s: &Striping, stripe: usize, object: Extent) -> Vec<Extent> {
    let (geometry, stripe) = (s.layout.geometry(), StripeIndex(stripe as u16));
    let start = if object.start == 0 { 0 } else { geometry.file_offset(stripe, object.start).unwrap_or(0) };
    let few = object.len() / geometry.stripe_size().max(1) <= STRIPES_MAX;
    if let Some(pieces) = few.then(|| geometry.file_pieces(stripe, object).ok()).flatten() {
        return pieces.map(|p| p.file).collect();
    }
    let end = if object.end == u64::MAX { None } else { geometry.file_offset(stripe, object.end - 1).ok() };
    vec![Extent::new(start, end.map_or(u64::MAX, |e| e.saturating_add(1)).max(start))]
}
