//! Cutting a file: object by object under a lock for each, and all or none of several.
//!
//! Where one object becomes shorter and others change, too, the client takes all their locks, promises every OST its cut, has the metadata
//! server decide that it happens, and carries the cuts out. If it dies, or fails half way, OSTs that have its promise ask the
//! metadata server what was decided before anybody else gets a lock (`docs/internals/sizes.md`). The metadata server remembers
//! the decision until every OST has committed its cut.
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};

use layout::StripeIndex;
use ldlm::{DenyReason, EnqueueFlags, LockMode, LockPolicyData, ResourceId};
use rt::sync::{join_all, oneshot};
use types::{Duration, Extent, Fid, FsError, Instant, Transno, WallTime};
use wire::Op;
use wire::mdt::CutRequest;
use wire::ost::{PromiseRequest, PunchKind, REMOVED};

use super::Data;
use crate::cut_numbers::{Fate, Part};
use crate::inode::{Inode, Object, Striping, Writing};
use crate::kept_append::AppendTurn;
use crate::locks::Held;
use crate::osc::Why;

/// Longest time that locks of several OSTs are kept while one server is waited for; far below an OST's patience.
pub(super) const HOLD_MAX: Duration = Duration::from_secs(5);

/// How often a cut is begun anew: servers were away for longer than [`HOLD_MAX`], or one gave this client up.
const TRIES_MAX: u32 = 64;

/// The turn of one change of a file's size among those of this client. An OST has one promise of an object, calls of one
/// client share its locks, and answers come in any order: what came last at the OST would not be told from what was answered
/// last.
pub(crate) struct SizeTurn(Rc<Inode>);

impl SizeTurn {
    /// Waits for the changes of before. A caller that is dropped gives its place up.
    pub(crate) async fn of(inode: &Rc<Inode>) -> SizeTurn {
        inode.resizing.acquire(1).await;
        SizeTurn(inode.clone())
    }
}

impl Drop for SizeTurn {
    fn drop(&mut self) {
        self.0.resizing.add(1);
    }
}

/// A cut of several objects on its way. What was not carried out of it when it goes is taken back, or, once it may have been
/// decided, left to the OSTs.
struct Together {
    data: Rc<Data>,
    /// `None`: nothing is promised.
    number: Option<u64>,
    /// The metadata server was asked to decide, and did not say no.
    asked: Cell<bool>,
    /// Objects whose promises are not kept yet, and what they are cut to.
    open: RefCell<Vec<(Rc<Object>, u64)>>,
    /// Of all objects with promises.
    parts: RefCell<Vec<Part>>,
    /// The locks of all objects, in stripe order, until their cuts take them.
    held: RefCell<Vec<Option<Held>>>,
}

impl Together {
    fn take_lock(&self, stripe: usize) -> Option<Held> {
        self.held.borrow_mut().get_mut(stripe).and_then(Option::take)
    }
    /// Gives the locks back that no cut has taken yet.
    fn let_go(&self) {
        self.held.take();
    }
    fn is_decided(&self) -> bool {
        self.number.is_some()
    }
    fn promised(&self, object: &Rc<Object>) -> bool {
        self.open.borrow().iter().any(|(o, _)| Rc::ptr_eq(o, object))
    }
    fn kept(&self, object: &Rc<Object>) {
        self.open.borrow_mut().retain(|(o, _)| !Rc::ptr_eq(o, object));
        let mut parts = self.parts.borrow_mut();
        if let Some(part) = parts.iter_mut().find(|p| p.object == object.id) {
            part.transno = object.changed_by.get();
        }
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        let Some(number) = self.number.take() else { return };
        let (data, open, parts) = (self.data.clone(), self.open.take(), self.parts.take());
        self.held.take();
        if open.is_empty() {
            data.cut_numbers.done(number, parts);
            return;
        }
        if !self.asked.get() {
            data.rt.clone().spawn(async move {
                let withdrawn = open.iter().map(|(o, _)| data.promise(o, number, 0, true));
                // Who cannot be told asks the metadata server, which knows of no such cut.
                join_all(withdrawn.collect()).await;
                data.cut_numbers.over(number);
            });
            return;
        }
        // The OSTs ask what was decided, and do it, as soon as the locks are theirs again.
        for (object, size) in &open {
            object.forget_clean(size / 4096);
            let range = LockPolicyData::extent(Extent::from(*size));
            let held = data.osts.osc(object.ost).locks.find(object.resource(), LockMode::Pw, &range);
            held.iter().for_each(Held::call_back);
        }
        data.rt.clone().spawn(confirm(Rc::downgrade(&data), number, parts));
    }
}

/// Waits until each OST has settled its part of a cut: it gives no lock before.
pub(super) async fn confirm(data: Weak<Data>, number: u64, parts: Vec<Part>) {
    for part in parts {
        loop {
            let Some(me) = data.upgrade().filter(|c| !c.sessions.is_closing()) else { return };
            if me.has_nobody_to_ask(&part) {
                break;
            }
            let (rt, locks) = (me.rt.clone(), me.osts.osc(part.ost).locks.clone());
            drop(me);
            let range = if part.size == REMOVED { Extent::ALL } else { Extent::from(part.size) };
            let (range, resource) = (LockPolicyData::extent(range), ResourceId::extent(part.object.0));
            // It is settled, too, when the object is gone.
            if matches!(
                locks.acquire(resource, LockMode::Pr, range, EnqueueFlags::NONE).await,
                Ok(_) | Err(DenyReason::Gone)
            ) {
                break;
            }
            rt.sleep(HOLD_MAX).await;
        }
    }
    if let Some(me) = data.upgrade() {
        me.cut_numbers.over(number);
    }
}

impl Data {
    pub(crate) async fn truncate_objects(self: &Rc<Self>, inode: &Rc<Inode>, size: u64) -> Result<(), FsError> {
        loop {
            let writing = inode.begin_writing().await;
            let Some(s) = self.meta.layout_of(inode).await? else {
                let lost = inode.attr().flags & wire::mdt::AttrFlags::HAS_LAYOUT != 0;
                return if lost { Err(FsError::Io) } else { Ok(()) };
            };
            let done = self.truncate_now(inode, &s, size, writing).await;
            if self.meta.unless_moved(inode, Some(s), done).await?.is_some() {
                return Ok(());
            }
        }
    }

    async fn truncate_now(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        s: &Rc<Striping>,
        size: u64,
        writing: Writing,
    ) -> Result<(), FsError> {
        // A cut that is decided happens, whether or not anybody still waits for it.
        let (tell, told) = oneshot();
        let (me, inode, s) = (self.clone(), inode.clone(), s.clone());
        self.rt.spawn(async move {
            // An append finds the end of before or of after, and one in several pieces is not cut between them.
            let appending = match s.objects.first().filter(|_| !types::planted!("appended-amid-a-cut")) {
                Some(first) => Some(AppendTurn::take(first.appending.clone()).await),
                None => None,
            };
            let turn = SizeTurn::of(&inode).await;
            let done = me.truncate_striped(&inode, &s, size, &|| tell.is_abandoned()).await;
            drop((turn, appending, writing));
            tell.send(done);
        });
        told.await.unwrap_or(Err(FsError::NotConnected))
    }

    async fn truncate_striped(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        s: &Striping,
        size: u64,
        is_given_up: &dyn Fn() -> bool,
    ) -> Result<(), FsError> {
        let geometry = s.layout.geometry();
        // The kernel drops its pages behind the new size after the answer, if it believed in another one. Until then it writes
        // none back, so that nothing here may wait for a drop of pages; nor does it read any anew, which would need locks.
        let _shut = inode.front.shut(Extent::ALL);
        let now = self.rt.wall();
        let sizes: Vec<u64> = (0..s.objects.len()).map(|i| geometry.object_size(StripeIndex(i as u16), size)).collect();
        // Whoever asks for the size meanwhile finds some objects as they were and others as they will be: with the object of
        // the new end first, nobody finds the file shorter than both.
        let last = if size == 0 { None } else { geometry.pieces(Extent::new(size - 1, size))?.next() };
        let first = last.map(|piece| usize::from(piece.stripe.0));
        loop {
            let together = self.decide_cut(inode.fid, s, &sizes, is_given_up).await?;
            if self.cut_objects(&s.objects, &sizes, first, now, together).await? {
                break;
            }
        }
        inode.mtime.set(inode.mtime.get().max(now));
        inode.front.was_cut(size);
        Ok(())
    }

    /// Cuts all objects, the one with the new end first. `false`: to be begun anew, for while nothing was decided an OST was
    /// away for longer than others' locks are kept.
    async fn cut_objects(
        &self,
        objects: &[Rc<Object>],
        sizes: &[u64],
        first: Option<usize>,
        now: WallTime,
        together: Option<Together>,
    ) -> Result<bool, FsError> {
        let cut = async |i: usize| {
            let (object, held) = (&objects[i], together.as_ref().and_then(|t| t.take_lock(i)));
            let promised = together.as_ref().is_some_and(|t| t.promised(object));
            self.truncate_object(object, sizes[i], now, held, promised).await?;
            together.iter().for_each(|t| t.kept(object));
            Ok::<(), FsError>(())
        };
        let mut ahead = pin!(async {
            match first {
                Some(first) => cut(first).await,
                None => Ok(()),
            }
        });
        // An OST that is away must not make others wait for the locks that are kept.
        let early = match &together {
            Some(_) => self.rt.timeout(HOLD_MAX, ahead.as_mut()).await,
            None => Some(ahead.as_mut().await),
        };
        if !together.as_ref().is_some_and(Together::is_decided) {
            let Some(done) = early else {
                together.iter().for_each(Together::let_go);
                return ahead.await.map(|()| false);
            };
            done?;
        }
        let others = (0..objects.len()).filter(|i| Some(*i) != first);
        for result in join_all(others.map(cut).collect::<Vec<_>>()).await {
            result?;
        }
        match early {
            Some(done) => done?,
            None => ahead.await?,
        }
        Ok(true)
    }

    /// Makes sure that a cut of several objects is carried out on all of them. `None`: there is one object, or a
    /// server of before does not know of such cuts; each is cut for itself.
    async fn decide_cut(
        self: &Rc<Self>,
        fid: Fid,
        s: &Striping,
        sizes: &[u64],
        is_given_up: &dyn Fn() -> bool,
    ) -> Result<Option<Together>, FsError> {
        if s.objects.len() < 2 {
            return Ok(None);
        }
        for _ in 0..TRIES_MAX {
            let held = self.locks_to_cut(s, sizes).await?;
            let together = self.begin_cut(s, sizes, held);
            let Some(number) = together.number else { return Ok(Some(together)) };
            let until = self.rt.now() + HOLD_MAX;
            match self.promise_all(&together, number).await {
                None | Some(Err(FsError::Stale)) => continue,
                Some(Err(FsError::NotSupported)) => return Ok(None),
                Some(Err(e)) => return Err(e),
                Some(Ok(())) => {}
            }
            if is_given_up() {
                return Err(FsError::Interrupted);
            }
            together.asked.set(true);
            let ask = CutRequest { fid, number, unfinished: self.unfinished_cut(number) };
            let mut decision = pin!(self.meta.mdt_call(Op::MdtCut, &ask));
            let early = self.rt.timeout(until.since(self.rt.now()), decision.as_mut()).await;
            let is_late = early.is_none();
            let answer = match early {
                Some(answer) => answer,
                None => {
                    // Who wants the locks now has the OSTs ask the same.
                    together.let_go();
                    decision.await
                }
            };
            match answer {
                Ok(_) => {
                    if is_late {
                        let held = self.locks_to_cut(s, sizes).await?;
                        *together.held.borrow_mut() = held.into_iter().map(Some).collect();
                    }
                    return Ok(Some(together));
                }
                Err(e) => {
                    together.asked.set(!matches!(e, FsError::Stale | FsError::NotSupported));
                    match e {
                        // An OST that gave us up was told that nothing was decided.
                        FsError::Stale => {}
                        FsError::NotSupported => return Ok(None),
                        e => return Err(e),
                    }
                }
            }
        }
        Err(FsError::Io)
    }

    /// A cut under locks; with a number where several objects change and one of them becomes shorter.
    fn begin_cut(self: &Rc<Self>, s: &Striping, sizes: &[u64], held: Vec<Held>) -> Together {
        let objects = s.objects.iter().zip(sizes);
        // One that grows is part of it: without its new end the file is shorter than it was to be.
        let mut open: Vec<_> =
            objects.filter(|(o, size)| o.size() != **size).map(|(o, size)| (o.clone(), *size)).collect();
        let grows = open.iter().all(|(o, size)| o.size() < *size);
        if open.len() < 2 || grows || types::planted!("cut-not-promised") {
            open.clear();
        }
        Together {
            data: self.clone(),
            number: (!open.is_empty()).then(|| self.cut_numbers.begin()),
            asked: Cell::new(false),
            parts: RefCell::new(open.iter().map(|(object, size)| self.part(object, *size)).collect()),
            open: RefCell::new(open),
            held: RefCell::new(held.into_iter().map(Some).collect()),
        }
    }

    /// An object's part of what is promised now.
    pub(super) fn part(&self, object: &Object, size: u64) -> Part {
        let import = self.osts.osc(object.ost).import_if_any();
        let (evictions, store) = import.map_or((0, 0), |i| (i.evictions(), i.expected_store()));
        Part { ost: object.ost, object: object.id, size, transno: Transno(0), evictions, store }
    }

    /// Whether an OST that was promised something asks for nothing any more: it has left the cluster, or has another store, which knows
    /// of no promise.
    fn has_nobody_to_ask(&self, part: &Part) -> bool {
        let import = self.osts.osc(part.ost).import_if_any();
        // 0: any store, so it may be that one.
        let is_another = |store: u64| part.store != 0 && ![0, part.store].contains(&store);
        import.is_none_or(|i| is_another(i.expected_store())) && !types::planted!("gone-and-asked")
    }

    /// Promises every OST its part; `None`: that took too long, and the locks were let go.
    async fn promise_all(&self, together: &Together, number: u64) -> Option<Result<(), FsError>> {
        let open = together.open.borrow().clone();
        let promises: Vec<_> = open.iter().map(|(o, size)| self.promise(o, number, *size, false)).collect();
        let mut promises = pin!(join_all(promises));
        match self.rt.timeout(HOLD_MAX, promises.as_mut()).await {
            Some(answers) => Some(answers.into_iter().collect()),
            None => {
                together.let_go();
                promises.await;
                None
            }
        }
    }

    /// The lowest number of a cut of which an OST may still ask, with that of one that begins.
    pub(super) fn unfinished_cut(self: &Rc<Self>, number: u64) -> u64 {
        self.settle_cut_numbers();
        self.cut_numbers.first().unwrap_or(number)
    }

    /// Whether no OST may ask any more for a cut of this client.
    pub(crate) fn all_cuts_are_over(self: &Rc<Self>) -> bool {
        self.settle_cut_numbers();
        self.cut_numbers.first().is_none()
    }

    /// Cuts that every OST has committed are over. One that an OST may have lost with the session has to be asked for.
    fn settle_cut_numbers(self: &Rc<Self>) {
        let fate = |p: &Part| match self.osts.osc(p.ost).import_if_any() {
            _ if self.has_nobody_to_ask(p) => Fate::Committed,
            Some(import) if import.evictions() != p.evictions => Fate::Unsure,
            Some(import) if p.transno <= import.last_committed() => Fate::Committed,
            _ => Fate::Answered,
        };
        for (number, parts) in self.cut_numbers.settle(fate) {
            self.rt.spawn(confirm(Rc::downgrade(self), number, parts));
        }
    }

    /// Write locks over what goes of each object, in stripe order; as [`Data::lock_all`], nothing is kept for long.
    async fn locks_to_cut(&self, s: &Striping, sizes: &[u64]) -> Result<Vec<Held>, FsError> {
        let oscs: Vec<_> = s.objects.iter().map(|o| self.osts.osc(o.ost)).collect();
        let lock = |i: usize| {
            let data = LockPolicyData::extent(Extent::from(sizes[i] - sizes[i] % 4096));
            self.lock_to_cut(&oscs[i], &s.objects[i], data)
        };
        // All at once at first, none kept while another one is waited for: then they are at hand, unless somebody wants them.
        let fetch = async |i: usize| lock(i).await.map(drop);
        for fetched in join_all((0..sizes.len()).map(fetch).collect()).await {
            fetched?;
        }
        let mut held = Vec::with_capacity(sizes.len());
        let mut until = Instant::MAX;
        while held.len() < sizes.len() {
            let mut next = pin!(lock(held.len()));
            if held.is_empty() {
                held.push(next.await?);
                until = self.rt.now() + HOLD_MAX;
                continue;
            }
            match self.rt.timeout(until.since(self.rt.now()), next.as_mut()).await {
                Some(got) => held.push(got?),
                None => {
                    held.clear();
                    next.await?;
                }
            }
        }
        Ok(held)
    }

    /// Promises the cut of an object to `size`, or takes the promise back.
    pub(super) async fn promise(
        &self,
        object: &Rc<Object>,
        number: u64,
        size: u64,
        withdrawn: bool,
    ) -> Result<(), FsError> {
        let ask = PromiseRequest { object: object.id, number, size, withdrawn };
        self.osts.osc(object.ost).import()?.ask(Op::OstPromise, &ask).await
    }

    async fn truncate_object(
        &self,
        object: &Rc<Object>,
        size: u64,
        now: WallTime,
        held: Option<Held>,
        promised: bool,
    ) -> Result<(), FsError> {
        let osc = self.osts.osc(object.ost);
        let data = LockPolicyData::extent(Extent::from(size - size % 4096));
        let held = match held {
            Some(held) => held,
            None => self.lock_to_cut(&osc, object, data).await?,
        };
        // A promise is to be kept even so: the OST would keep it later.
        if !promised
            && object.size() == size
            && object.ends_bare()
            && !object.is_unwritten(Extent::from(size))
            && object.unwritten_pages() == 0
        {
            return Ok(());
        }
        // What is being written right now must not arrive behind the punch, and what is read before it not be kept.
        let _change = object.change(Extent::from(size)).await;
        osc.flush(object, Extent::ALL, Why::Under(&held)).await;
        osc.discard(object, Extent::from(size), true);
        object.mtime.set(object.mtime.get().max(now));
        if promised && held.desc().is_none() {
            // The OST gave this client up and has done it, before it gave others the lock.
            return Err(FsError::Io);
        }
        let (cutting, reservations) = (object.cutting(), object.reservations());
        let cut = osc.punch(object, PunchKind::Truncate, Extent::from(size), &held).await;
        match cut {
            Ok(()) => {
                object.set_size(size);
                object.was_cut(reservations);
            }
            // The server may have what the cached page no longer shows.
            Err(_) => object.forget_clean(size / 4096),
        }
        drop(cutting);
        cut
    }
}
