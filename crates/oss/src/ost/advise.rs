//! Carries out what the advice room decides: classes of cached pages, prefetches in the background, records in the store.
//!
//! Prefetches take turns of at most [`TURN_BYTES`] that no client's request wants
//! ([`crate::dispatch::Dispatcher::admit_background`]), so a request that comes meanwhile waits for one turn at most.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use advice::jobs::Piece;
use advice::{Hint, Pressure, Step, Steps, Tier, Tiers};
use cache::PageAccess;
use frames::FRAME_BYTES;
use ptlrpc::Request;
use rt::sync::{Event, OneReceiver, Semaphore, oneshot};
use types::{Duration, Extent, FsError, ObjectId};
use wire::ost::{Advice, AdviseRequest, AdvisedRange, AdvisedReply, AdvisedRequest};

use super::{Ost, answer, blocks_of};
use crate::advised::{Advised, Adviser, class_of, hint_of};
use crate::fast::{FastOwner, FastStore, FastTier, Fetched};
use crate::store::{BLOCK_BYTES, BlockRange, BlockRun, Blocks, StoreResult};

/// How often bytes are fetched that are changed meanwhile.
const FETCH_TRIES: u32 = 4;
/// Pause before bytes are fetched again for which there was no memory.
const MEMORY_PAUSE: Duration = Duration::from_secs(1);
/// Most bytes that are fetched in one turn: how long a request may have to wait for a prefetch.
const TURN_BYTES: u64 = types::MIB;

/// Wishes to fetch in the background that are carried out at a time, and those that wait behind them.
const FETCHERS_MAX: usize = 4;
const LATER_MAX: usize = 64;

/// What the driver has besides the room.
pub(crate) struct Driver {
    /// There is something to fetch.
    work: Event,
    /// The task that fetches runs.
    runs: Cell<bool>,
    /// Records are written one at a time, in the order of the changes.
    recording: Semaphore,
    /// Tasks that fetch what was asked for in the background.
    fetchers: Cell<usize>,
    /// What they fetch next.
    later: RefCell<VecDeque<AdviseRequest>>,
    /// Wishes of that kind for which there was no place.
    dropped: Cell<u64>,
}

impl Default for Driver {
    fn default() -> Driver {
        Driver {
            work: Event::default(),
            runs: Cell::default(),
            recording: Semaphore::new(1),
            fetchers: Cell::default(),
            later: RefCell::default(),
            dropped: Cell::default(),
        }
    }
}

impl Ost {
    pub(super) async fn advise(self: &Rc<Self>, request: Request) {
        let ask = match request.decode::<AdviseRequest>() {
            Ok(ask) => ask,
            Err(e) => return request.reply::<()>(Err(e)),
        };
        let Some(hint) = hint_of(ask.advice) else {
            return self.advise_now(request, ask).await;
        };
        let reply = self.take_advice(&ask, hint).await;
        answer(request, &reply);
    }

    /// Advice about now: fetch, or let go.
    async fn advise_now(self: &Rc<Self>, request: Request, ask: AdviseRequest) {
        let range = blocks_of(ask.extent);
        if ask.advice == Advice::DontNeed {
            let reply = self.store.attr(ask.object).await.map(drop);
            self.cache.borrow_mut().drop_unadvised(self.key(ask.object), range);
            return answer(request, &reply);
        }
        if ask.background {
            request.reply(Ok(&()));
            self.fetch_behind(ask);
        } else {
            let reply = self.fetch_once(&ask).await;
            answer(request, &reply);
        }
    }

    /// Fetches what was answered already, a few at a time; what comes when too many wait is dropped.
    fn fetch_behind(self: &Rc<Self>, ask: AdviseRequest) {
        let driver = &self.advice_driver;
        if driver.fetchers.get() >= FETCHERS_MAX {
            let mut later = driver.later.borrow_mut();
            match later.len() < LATER_MAX {
                true => later.push_back(ask),
                false => driver.dropped.set(driver.dropped.get() + 1),
            }
            return;
        }
        driver.fetchers.set(driver.fetchers.get() + 1);
        let me = self.clone();
        self.rt.spawn(async move {
            let mut next = Some(ask);
            while let Some(ask) = next {
                // The answer is already out; a failed prefetch changes nothing.
                let _ = me.fetch_once(&ask).await;
                next = me.advice_driver.later.borrow_mut().pop_front();
            }
            me.advice_driver.fetchers.set(me.advice_driver.fetchers.get() - 1);
        });
    }

    /// Wishes to fetch in the background that were dropped because too many waited.
    pub(crate) fn dropped_fetches(&self) -> u64 {
        self.advice_driver.dropped.get()
    }

    /// Brings bytes into the cache that will be read once: at most half of what it holds.
    async fn fetch_once(&self, ask: &AdviseRequest) -> Result<(), FsError> {
        let size = self.store.attr(ask.object).await?.size;
        let room = self.cache.borrow().capacity_bytes() / 2;
        let end = ask.extent.end.min(size).min(ask.extent.start.saturating_add(room));
        let mut at = ask.extent.start;
        while at < end {
            let turn = Extent::new(at, end.min(at.saturating_add(TURN_BYTES)));
            self.fetch(ask.object, turn).await?;
            at = turn.end;
        }
        Ok(())
    }

    async fn take_advice(self: &Rc<Self>, ask: &AdviseRequest, hint: Hint) -> Result<(), FsError> {
        let extent = ask.extent.align_out(BLOCK_BYTES);
        if ask.extent.is_empty() {
            return Err(FsError::Invalid);
        }
        let attr = self.store.attr(ask.object).await?;
        let uid = ask.owner.uid;
        let by = Adviser { uid, outranks: uid == 0 || uid == attr.owner.unwrap_or_default().uid };
        self.advised.may(ask.object, extent, hint, by)?;
        // Whose objects were not told their project yet pay by what the client knows.
        let own = attr.owner.map_or(0, |o| o.project);
        let project = if own == 0 { ask.owner.project } else { own };
        let owner = wire::ost::IoOwner { project, ..ask.owner.clone() };
        let told = AdvisedRange { extent, advice: ask.advice, owner, since: ask.since, ..AdvisedRange::default() };
        let mut steps = Steps::new();
        self.advised.advise((ask.object, attr.size), told, by.outranks, &self.tiers(), &mut steps)?;
        self.carry_out(&steps);
        if hint == Hint::None {
            // What others had advised there before counts again, and has no place yet.
            self.advised_written(ask.object, attr.size);
        }
        let recorded = self.record_advice(ask.object).await;
        if recorded == Err(FsError::NotFound) {
            // It was removed meanwhile, and nobody will tell of that again.
            self.advised_removed(&[ask.object]);
        }
        recorded
    }

    /// What an object's advice is now goes to the store.
    async fn record_advice(&self, object: ObjectId) -> Result<(), FsError> {
        self.advice_driver.recording.acquire(1).await;
        let done = self.store.set_advice(object, self.advised.record(object)).await;
        self.advice_driver.recording.add(1);
        done
    }

    /// Size and pressure of the tiers as this target's room sees them: what others' advice holds of the memory that the
    /// targets of a process share is not there for it.
    pub(crate) fn tiers(&self) -> Tiers {
        let cache = self.cache.borrow();
        let percent = self.advised.with_advisor(|a| a.config().advised_percent_max).max(1);
        let others = cache.placed_by_others(self.identity.ost.0).saturating_mul(100) / percent;
        let frames = self.rt.frames();
        let short = frames.free() < frames.capacity() / 32;
        let pressure = if short { Pressure::High } else { cache.pressure() };
        let (fast_bytes, fast_pressure) = match self.store.fast().map(FastStore::tier) {
            Some(tier) => (tier.capacity_bytes(), tier.pressure()),
            None => (0, Pressure::Low),
        };
        Tiers {
            size_bytes: [cache.capacity_bytes().saturating_sub(others), fast_bytes],
            pressure: [pressure, fast_pressure],
        }
    }

    /// Brings cache and prefetches in line with what the room decided.
    fn carry_out(&self, steps: &Steps) {
        self.classify(steps);
        self.advised.cancel_for(steps);
        self.start_fetching();
    }
    /// Gives the pages that steps are about the classes that they say.
    fn classify(&self, steps: &Steps) {
        let mut cache = self.cache.borrow_mut();
        for step in steps {
            match *step {
                Step::Prefetch(o, e, Tier::Ram, hint) | Step::Keep(o, e, Tier::Ram, hint) => {
                    cache.readvise(self.key(o), blocks_of(e), class_of(hint));
                }
                Step::Release(o, e, Tier::Ram) => cache.readvise(self.key(o), blocks_of(e), cache::Advice::None),
                Step::Drop(o, e, Tier::Ram) => {
                    cache.readvise(self.key(o), blocks_of(e), cache::Advice::None);
                    cache.drop_unadvised(self.key(o), blocks_of(e));
                }
                Step::Prefetch(o, e, Tier::Fast, _)
                | Step::Keep(o, e, Tier::Fast, _)
                | Step::Release(o, e, Tier::Fast) => {
                    self.fast_tier(|tier| tier.readvise(o, blocks_of(e)));
                }
                Step::Drop(o, e, Tier::Fast) => self.fast_tier(|tier| {
                    tier.readvise(o, blocks_of(e));
                    tier.drop_unadvised(o, blocks_of(e));
                }),
                Step::Refused(..) => {}
            }
        }
        cache.set_placed(self.identity.ost.0, self.advised.held_bytes(Tier::Ram));
    }

    /// An object of which something is advised was written: it may have grown.
    pub(super) fn advised_written(&self, object: ObjectId, size: u64) {
        let mut steps = Steps::new();
        self.advised.on_grown(object, size, &self.tiers(), &mut steps);
        if !steps.is_empty() {
            self.carry_out(&steps);
        }
    }

    /// An object was cut to `size` bytes.
    pub(super) fn advised_cut(&self, object: ObjectId, size: u64) {
        self.advised.on_cut(object, size);
        self.cache.borrow_mut().set_placed(self.identity.ost.0, self.advised.held_bytes(Tier::Ram));
    }

    /// Objects were removed.
    pub(super) fn advised_removed(&self, objects: &[ObjectId]) {
        if self.advised.is_any() {
            self.advised.on_destroyed(objects);
            self.cache.borrow_mut().set_placed(self.identity.ost.0, self.advised.held_bytes(Tier::Ram));
        }
    }

    /// Puts blocks that were read into the cache, each in its class.
    pub(super) fn fill(
        &self,
        at: (ObjectId, u64),
        blocks: &Blocks,
        access: PageAccess,
        stamp: &crate::page_cache::Stamp,
    ) {
        let (object, first) = at;
        let mut cache = self.cache.borrow_mut();
        if !self.advised.has(object) {
            return cache.fill(self.key(object), first, &blocks.bulk, &blocks.crcs, access, stamp);
        }
        let classes = self.advised.classes(object, BlockRange { first, count: blocks.crcs.len() as u64 });
        cache.fill_advised((self.key(object), first), blocks, access, stamp, &classes);
    }
    /// Puts blocks that were written into the cache, each in its class.
    pub(super) fn replace(&self, object: ObjectId, run: &BlockRun, access: PageAccess, keep: bool) {
        let mut cache = self.cache.borrow_mut();
        if !self.advised.has(object) {
            return cache.replace(self.key(object), run.first, &run.bulk, &run.crcs, access, keep);
        }
        let classes = self.advised.classes(object, run.range());
        cache.replace_advised(self.key(object), run, access, keep, &classes);
    }

    /// Has the background task run while there is something to fetch.
    fn start_fetching(&self) {
        if !self.advised.is_fetching() {
            return;
        }
        self.advice_driver.work.notify();
        let Some(me) = self.me.upgrade().filter(|_| !self.advice_driver.runs.replace(true)) else { return };
        self.rt.spawn(async move {
            loop {
                let (more, me_too) = (me.advice_driver.work.wait(), me.clone());
                while let Some(piece) = me.advised.next_piece() {
                    let worker = me_too.clone();
                    me.rt.spawn(async move {
                        let done = worker.fetch_piece(&piece).await;
                        worker.advised.on_piece(&piece, done);
                        worker.advice_driver.work.notify();
                    });
                }
                if !me.advised.is_fetching() {
                    me.advice_driver.runs.set(false);
                    return;
                }
                more.await;
            }
        });
    }

    async fn fetch_piece(&self, piece: &Piece) -> Result<(), FsError> {
        let outcome = self.fetch_turns(piece).await;
        if let Err(e) = outcome {
            tracing::warn!(target = self.identity.target(), object = %piece.object, extent = %piece.extent,
                "advised bytes could not be fetched: {e}");
        }
        outcome
    }

    async fn fetch_turns(&self, piece: &Piece) -> Result<(), FsError> {
        let mut at = piece.extent.start;
        let mut copying = None;
        while at < piece.extent.end {
            let turn = Extent::new(at, piece.extent.end.min((at / TURN_BYTES + 1) * TURN_BYTES));
            // Withdrawn meanwhile.
            if self.advised.class(piece.object, at, piece.tier) == Hint::None {
                return Ok(());
            }
            let fetched = match piece.tier {
                Tier::Ram => self.fetch(piece.object, turn).await.map(|()| None),
                Tier::Fast => self.fetch_fast(piece.object, turn).await,
            };
            let fetched = match fetched {
                // It was removed meanwhile.
                Err(FsError::NotFound) => return Ok(()),
                // Requests come first; it may be withdrawn by then.
                Err(FsError::NoMemory) => {
                    self.rt.sleep(MEMORY_PAUSE).await;
                    continue;
                }
                done => done?,
            };
            self.await_copies(piece.object, copying.take()).await?;
            copying = Some((turn, fetched.map(|f| self.copy(f))));
            at = turn.end;
        }
        self.await_copies(piece.object, copying).await
    }

    /// Copies what was read while the next bytes are read: another piece must not come between, which would cost a disk two
    /// places for each turn.
    fn copy(&self, fetched: Fetched) -> OneReceiver<bool> {
        let (store, (done, copied)) = (self.store.clone(), oneshot());
        self.rt.spawn(async move {
            let whole = match store.fast() {
                Some(fast) => fast.keep(fetched).await,
                None => true,
            };
            done.send(whole);
        });
        copied
    }
    /// Waits for copies, and makes those again that a change overtook.
    async fn await_copies(
        &self,
        object: ObjectId,
        copying: Option<(Extent, Option<OneReceiver<bool>>)>,
    ) -> StoreResult<()> {
        let Some((turn, mut copied)) = copying else { return Ok(()) };
        for _ in 0..FETCH_TRIES {
            let Some(whole) = copied.take() else { break };
            if whole.await != Some(false) {
                break;
            }
            copied = match self.fetch_fast(object, turn).await {
                // It was removed meanwhile.
                Err(FsError::NotFound) => break,
                again => again?.map(|f| self.copy(f)),
            };
        }
        self.advised.on_fetched(object, turn);
        Ok(())
    }

    /// Reads what the cache does not have of some bytes, when nobody else wants the store.
    async fn fetch(&self, object: ObjectId, extent: Extent) -> StoreResult<()> {
        let size = self.store.attr(object).await?.size;
        let range = blocks_of(Extent::new(extent.start.min(size), extent.end.min(size)));
        let missing = |ost: &Ost| {
            let cache = ost.cache.borrow();
            cache.is_on() && cache.resident_in(ost.key(object), range) < range.count * FRAME_BYTES as u64
        };
        if range.is_empty() || !missing(self) {
            return Ok(());
        }
        let permit = self.dispatch.background_turn(object, range).await?;
        // Somebody may have read it meanwhile.
        for _ in 0..FETCH_TRIES {
            if !missing(self) {
                break;
            }
            let stamp = self.cache.borrow().stamp(self.key(object), range);
            let blocks = self.store.read(object, range).await?;
            self.fill((object, range.first), &blocks, PageAccess::fine(0).ahead(), &stamp);
            if self.cache.borrow().stamp(self.key(object), range) == stamp {
                break;
            }
            // Blocks there were changed while they were read: what was read may be old, and was not kept.
        }
        drop(permit);
        Ok(())
    }

    /// Reads what the fast tier does not have of some bytes, when nobody else wants the store.
    async fn fetch_fast(&self, object: ObjectId, extent: Extent) -> StoreResult<Option<Fetched>> {
        let size = self.store.attr(object).await?.size;
        let range = blocks_of(Extent::new(extent.start.min(size), extent.end.min(size)));
        let Some(fast) = self.store.fast().filter(|f| f.tier().resident_in(object, range) < range.count * BLOCK_BYTES)
        else {
            return Ok(None);
        };
        fast.tier().unchanged(object, range).await;
        let permit = self.dispatch.background_turn(object, range).await?;
        let fetched = fast.fetch(object, range).await;
        drop(permit);
        fetched
    }

    fn fast_tier(&self, work: impl FnOnce(&FastTier)) {
        if let Some(fast) = self.store.fast() {
            work(fast.tier());
        }
    }
    /// Tells the fast tier whose it is.
    pub(super) fn own_fast_tier(self: &Rc<Self>) {
        let me: Weak<dyn FastOwner> = Rc::<Ost>::downgrade(self) as Weak<dyn FastOwner>;
        self.fast_tier(|tier| tier.set_owner(me));
        self.refresh_admission();
    }
    /// The admission policy of the fast tier is made anew, with the keys of now.
    pub(crate) fn refresh_admission(&self) {
        let config = self.advised.with_advisor(|a| a.config().clone());
        self.fast_tier(|tier| tier.set_admission(tier.policies().0, &config).expect("it is the one in use"));
    }

    /// Takes in what the store remembers, and asks for places for it: those advised first before others.
    pub(super) fn recall_advice(&self) {
        for (object, record) in self.store.advice() {
            if self.advised.recall(object, &record).is_err() {
                tracing::error!(target = self.identity.target(), %object, "what was advised of it is damaged, and forgotten");
            }
        }
        self.place_advice();
    }

    /// Asks for places for advice that has none.
    pub(crate) fn place_advice(&self) {
        let Some(me) = self.me.upgrade().filter(|_| self.advised.is_any()) else { return };
        self.rt.spawn(async move {
            for object in me.advised.unplaced() {
                match me.store.attr(object).await {
                    Ok(attr) => me.advised_written(object, attr.size),
                    // A store that lost objects may still know what was advised of them.
                    Err(FsError::NotFound) => me.advised_removed(&[object]),
                    Err(_) => {}
                }
            }
        });
    }

    /// The tiers or the policy have changed: everything asks for its place anew, and what finds none leaves as unadvised bytes do.
    pub(crate) fn replace_advice(&self) {
        let mut steps = Steps::new();
        self.advised.forget_places(&mut steps);
        self.classify(&steps);
        self.place_advice();
    }

    pub(super) async fn advised(&self, request: Request) {
        let reply = match request.decode::<AdvisedRequest>() {
            Ok(ask) => self.store.attr(ask.object).await.map(|_| self.show_advice(ask.object)),
            Err(e) => Err(e),
        };
        answer(request, &reply);
    }

    fn show_advice(&self, object: ObjectId) -> AdvisedReply {
        let cache = self.cache.borrow();
        let resident = |e: Extent, tier: Tier| match tier {
            Tier::Ram => cache.resident_in(self.key(object), blocks_of(e)),
            Tier::Fast => self.store.fast().map_or(0, |f| f.tier().resident_in(object, blocks_of(e))),
        };
        AdvisedReply { ranges: self.advised.show(object, resident) }
    }
}

impl FastOwner for Ost {
    fn class(&self, object: ObjectId, range: BlockRange) -> Hint {
        if self.advised.is_any() { self.advised.highest(object, range, Tier::Fast) } else { Hint::None }
    }
    fn on_hits(&self, object: ObjectId, range: BlockRange) {
        if self.advised.is_any() {
            self.advised.on_hits(object, range.first * BLOCK_BYTES, range.count);
        }
    }
    fn on_off(&self) {
        self.replace_advice();
    }
}

/// The room of a target.
///
/// # Errors
/// A sentence with the policies that exist.
pub(super) fn room(config: &crate::config::OstConfig) -> Result<Advised, String> {
    Advised::new(&config.advice_policy, &config.advice_keys)
}
