//! Cutting a file: object by object under a lock for each, and all or none of several.
//!
//! Where more than one object becomes shorter, the client takes all their locks, promises every OST its cut, has the metadata
//! server decide that it happens, and carries the cuts out. If it dies, OSTs that have its promise ask the metadata server
//! what was decided before anybody else gets a lock (`docs/internals/sizes.md`).
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;

use layout::StripeIndex;
use ldlm::LockPolicyData;
use rt::sync::join_all;
use types::{Duration, Extent, Fid, FsError, Instant, WallTime};
use wire::Op;
use wire::mdt::CutRequest;
use wire::ost::{PromiseRequest, PunchKind};

use crate::client::Client;
use crate::inode::{Inode, Striping};
use crate::locks::Held;
use crate::object::Object;
use crate::osc::Why;

/// Longest time that locks of several OSTs are kept while one server is waited for; far below an OST's patience.
const HOLD_MAX: Duration = Duration::from_secs(5);

/// How often a cut is begun anew: servers were away for longer than [`HOLD_MAX`], or one gave this client up.
const TRIES_MAX: u32 = 64;

/// Numbers of cuts that are promised together.
#[derive(Default)]
pub(crate) struct CutNumbers {
    last: Cell<u64>,
    under_way: RefCell<BTreeSet<u64>>,
}

/// The number of one cut, as long as an OST may have a promise of it.
struct CutNumber {
    client: Rc<Client>,
    number: u64,
}

impl CutNumber {
    fn new(client: &Rc<Client>) -> CutNumber {
        let numbers = &client.cut_numbers;
        let number = numbers.last.get() + 1;
        numbers.last.set(number);
        numbers.under_way.borrow_mut().insert(number);
        CutNumber { client: client.clone(), number }
    }
    /// The lowest that is under way.
    fn unfinished(&self) -> u64 {
        self.client.cut_numbers.under_way.borrow().first().copied().unwrap_or(self.number)
    }
}

impl Drop for CutNumber {
    fn drop(&mut self) {
        self.client.cut_numbers.under_way.borrow_mut().remove(&self.number);
    }
}

/// A cut of several objects on its way. What was not carried out of it when it goes is taken back.
struct Together {
    number: Option<CutNumber>,
    /// Objects whose promises are not kept yet.
    open: RefCell<Vec<Rc<Object>>>,
    /// The locks of all objects, in stripe order, until their cuts take them.
    held: RefCell<Vec<Option<Held>>>,
}

impl Together {
    fn take_lock(&self, stripe: usize) -> Option<Held> {
        self.held.borrow_mut()[stripe].take()
    }
    /// Gives the locks back that no cut has taken yet.
    fn let_go(&self) {
        self.held.borrow_mut().iter_mut().for_each(|held| *held = None);
    }
    fn is_decided(&self) -> bool {
        self.number.is_some()
    }
    fn promised(&self, object: &Rc<Object>) -> bool {
        self.open.borrow().iter().any(|o| Rc::ptr_eq(o, object))
    }
    fn kept(&self, object: &Rc<Object>) {
        self.open.borrow_mut().retain(|o| !Rc::ptr_eq(o, object));
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        let (Some(number), open) = (self.number.take(), self.open.take()) else { return };
        if open.is_empty() {
            return;
        }
        let client = number.client.clone();
        client.rt.clone().spawn(async move {
            let withdrawn = open.iter().map(|o| client.promise(o, number.number, 0, true));
            // Who cannot be told has forgotten the promise, or has evicted us and asks the metadata server.
            join_all(withdrawn.collect()).await;
        });
    }
}

impl Client {
    pub(crate) async fn truncate_objects(self: &Rc<Self>, inode: &Rc<Inode>, size: u64) -> Result<(), FsError> {
        let Some(s) = self.layout_of(inode).await? else {
            return if inode.attr().flags & wire::mdt::AttrFlags::HAS_LAYOUT != 0 { Err(FsError::Io) } else { Ok(()) };
        };
        let _writing = inode.writing();
        let geometry = s.layout.geometry();
        // The kernel drops its pages behind the new size itself, after the answer. Until then it writes none back, so
        // that nothing here may wait for a drop of pages; nor does it read any
        // anew, which would need locks.
        let _shut = inode.shut(Extent::ALL);
        let now = self.rt.wall();
        let sizes: Vec<u64> = (0..s.objects.len()).map(|i| geometry.object_size(StripeIndex(i as u16), size)).collect();
        // Whoever asks for the size meanwhile finds some objects as they were and others as they will be: with the object of
        // the new end first, nobody finds the file shorter than both.
        let last = if size == 0 { None } else { geometry.pieces(Extent::new(size - 1, size))?.next() };
        let first = last.map(|piece| usize::from(piece.stripe.0));
        loop {
            let together = self.decide_cut(inode.fid, &s, &sizes).await?;
            if self.cut_objects(&s.objects, &sizes, first, now, together).await? {
                break;
            }
        }
        inode.mtime.set(inode.mtime.get().max(now));
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

    /// Makes sure that a cut that shortens several objects is carried out on all of them. `None`: there is one object, or a
    /// server of before does not know of such cuts; each is cut for itself.
    async fn decide_cut(self: &Rc<Self>, fid: Fid, s: &Striping, sizes: &[u64]) -> Result<Option<Together>, FsError> {
        if s.objects.len() < 2 {
            return Ok(None);
        }
        for _ in 0..TRIES_MAX {
            let held = self.locks_to_cut(s, sizes).await?;
            let objects = s.objects.iter().zip(sizes);
            let open: Vec<_> =
                objects.filter(|(o, size)| o.size() > **size).map(|(o, size)| (o.clone(), *size)).collect();
            let held = RefCell::new(held.into_iter().map(Some).collect());
            if open.len() < 2 || types::planted!("cut-not-promised") {
                return Ok(Some(Together { number: None, open: RefCell::default(), held }));
            }
            let number = CutNumber::new(self);
            let (n, unfinished) = (number.number, number.unfinished());
            let together = Together {
                number: Some(number),
                open: RefCell::new(open.iter().map(|(o, _)| o.clone()).collect()),
                held,
            };
            let until = self.rt.now() + HOLD_MAX;
            let ask = CutRequest { fid, number: n, unfinished };
            let promises: Vec<_> = open.iter().map(|(o, size)| self.promise(o, n, *size, false)).collect();
            let mut promises = pin!(join_all(promises));
            let Some(answers) = self.rt.timeout(HOLD_MAX, promises.as_mut()).await else {
                together.held.take();
                promises.await;
                continue;
            };
            match answers.into_iter().find_map(Result::err) {
                Some(FsError::NotSupported) => return Ok(None),
                // A lock went with its session.
                Some(FsError::Stale) => continue,
                Some(e) => return Err(e),
                None => {}
            }
            let mut decision = pin!(self.mdt_call(Op::MdtCut, &ask));
            match self.rt.timeout(until.since(self.rt.now()), decision.as_mut()).await {
                Some(Ok(_)) => return Ok(Some(together)),
                // An OST that gave us up was told that nothing was decided.
                Some(Err(FsError::Stale)) => {}
                Some(Err(FsError::NotSupported)) => return Ok(None),
                Some(Err(e)) => return Err(e),
                None => {
                    together.held.take();
                    decision.await?;
                }
            }
        }
        Err(FsError::Io)
    }

    /// Write locks over what goes of each object, in stripe order; as [`Client::lock_all`], nothing is kept for long.
    async fn locks_to_cut(&self, s: &Striping, sizes: &[u64]) -> Result<Vec<Held>, FsError> {
        let oscs: Vec<_> = s.objects.iter().map(|o| self.osc(o.ost)).collect();
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
    async fn promise(&self, object: &Rc<Object>, number: u64, size: u64, withdrawn: bool) -> Result<(), FsError> {
        let ask = PromiseRequest { object: object.id, number, size, withdrawn };
        self.osc(object.ost).import()?.ask(Op::OstPromise, &ask).await
    }

    async fn truncate_object(
        &self,
        object: &Rc<Object>,
        size: u64,
        now: WallTime,
        held: Option<Held>,
        promised: bool,
    ) -> Result<(), FsError> {
        let osc = self.osc(object.ost);
        let data = LockPolicyData::extent(Extent::from(size - size % 4096));
        let held = match held {
            Some(held) => held,
            None => self.lock_to_cut(&osc, object, data).await?,
        };
        if object.size() == size && !object.is_unwritten(Extent::from(size)) && object.unwritten_pages() == 0 {
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
        let cut = osc.punch(object, PunchKind::Truncate, Extent::from(size), &held).await;
        match cut {
            Ok(()) => object.set_size(size),
            // The server may have what the cached page no longer shows.
            Err(_) => object.forget_clean(size / 4096),
        }
        cut
    }
}
