//! A client's side of one OST: its import, its locks, its grant, reads and write-out of pages.
mod owner;
mod read;
mod write;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use frames::FRAME_BYTES;
use hashbrown::HashMap;
use ldlm::LockCookie;
use ptlrpc::turns::{Rank, Turns};
use ptlrpc::{CAPABILITY_BYTES, Callbacks, Import};
use rt::sync::{Event, Semaphore};
use rt::{Nid, Rt};
use rustc_hash::FxBuildHasher;
use types::{Duration, Extent, Fid, FsError, Instant, ObjectId, OstIndex, Transno};
use wire::Op;
use wire::connect::{ConfigReply, Setting};
use wire::mdt::{Cred, EntryReply, GetattrRequest};
use wire::ost::StatfsReply;

use crate::in_use::InUse;
use crate::inode::{Inode, Object, Striping};
use crate::jobs::Jobs;
use crate::locks::{Held, LockOwner, Locks};
use crate::losses::Losses;
use crate::pages::PageCache;
use crate::sessions::Sessions;
use crate::stats::{OscStats, RpcStats};
use crate::tight::Tight;

const PAGE: u64 = FRAME_BYTES as u64;
/// Pause between two looks at a target in whose place another store answers.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// How long who asks for space waits for the first session of an OST.
const FIRST_SESSION_WITHIN: Duration = Duration::from_secs(2);
/// What the datapath room knows of an OST.
type Target = Rc<RefCell<datapath::Target<Weak<Object>>>>;
/// Rank of a request, and the cookie of the lock under which it is made, by which a lock callback promotes it; 0: none.
type Turn = (Rank, u64);

/// What pages are written out for.
#[derive(Clone, Copy)]
pub(crate) enum Why<'a> {
    /// Its caller wants it, and keeps no lock meanwhile.
    Asked,
    /// A lock is kept until it is done: once another client waits for that, it is urgent.
    Under(&'a Held),
    /// Another client waits for a lock, since then.
    CalledBack(Instant),
}

/// A place in the window of bulk RPCs; free again when it is dropped, however the RPC ends.
struct InWindow<'a> {
    window: &'a Turns<Target>,
    /// The rank that brought it there.
    rank: Rank,
}
impl Drop for InWindow<'_> {
    fn drop(&mut self) {
        self.window.add(1);
    }
}

type Table<K, V> = RefCell<HashMap<K, V, FxBuildHasher>>;

/// Told the cluster's permanent settings whenever they come.
pub type SettingsHook = Rc<dyn Fn(&[Setting])>;

/// A client's side of one OST.
pub struct Osc {
    pub(crate) rt: Rt,
    pub(crate) index: OstIndex,
    pub(crate) import: RefCell<Option<Rc<Import>>>,
    pub(crate) locks: Rc<Locks>,
    osts: Weak<Osts>,
    /// Objects of files that are known here.
    objects: Table<ObjectId, Rc<Object>>,
    /// What shows that this client may use them, where its root is a subtree.
    pub(crate) capabilities: Table<ObjectId, [u8; CAPABILITY_BYTES]>,
    pages: Rc<PageCache>,
    losses: Rc<Losses>,
    /// Files, and how many pages of each were lost with an object that the OST does not have: lost, if the file is there.
    objectless: RefCell<Vec<(Fid, u64)>>,
    jobs: Rc<Jobs>,
    /// How often its store was opened when the session began.
    epoch: Cell<u64>,
    /// Whether the cluster map has it in service.
    active_in_map: Cell<bool>,
    /// Whether this client's administrator has.
    active_here: Cell<bool>,
    /// It left the cluster, and does not come back.
    left: Cell<bool>,
    /// Of whom little is left there.
    tight: Tight,
    /// Dirty bytes, grant, the window of bulk RPCs, and which object is written out next.
    target: Target,
    /// When a page became dirty last.
    written_at: Cell<Instant>,
    /// How long nothing is written before grant goes back.
    grant_shrink_interval: Cell<Duration>,
    /// Who waits for a place in the window.
    rpcs: Turns<Target>,
    /// Grant, dirty bytes or an RPC slot changed.
    changed: Event,
    /// One request at a time waits for room, in the order in which they came.
    room_turn: Semaphore,
    stats: RpcStats,
    jobs_told: Rc<crate::jobs::Told>,
}

impl Osc {
    fn new(index: OstIndex, osts: &Rc<Osts>) -> Rc<Osc> {
        let (rt, config) = (osts.sessions.rt().clone(), &osts.config);
        let (now, started) = (rt.wall(), rt.now());
        let target = Rc::new(RefCell::new(datapath::Target::new(datapath::TargetLimits {
            dirty_bytes_max: config.dirty_bytes_max,
            rpcs_max: config.rpcs_in_flight_max,
            rpc_pages_max: config.rpc_pages_max,
            ..datapath::TargetLimits::DEFAULT
        })));
        let locks = Locks::new(rt.clone(), ldlm::LockCacheConfig { lru_max: config.locks_max, ..Default::default() });
        Rc::new(Osc {
            rt,
            index,
            import: RefCell::new(None),
            locks,
            osts: Rc::downgrade(osts),
            objects: RefCell::default(),
            capabilities: RefCell::default(),
            pages: osts.pages.clone(),
            losses: osts.losses.clone(),
            objectless: RefCell::default(),
            jobs: osts.sessions.jobs().clone(),
            epoch: Cell::new(0),
            active_in_map: Cell::new(true),
            active_here: Cell::new(true),
            left: Cell::new(false),
            rpcs: Turns::of(target.clone()),
            tight: Tight::default(),
            target,
            written_at: Cell::new(started),
            grant_shrink_interval: Cell::new(config.grant_shrink_interval),
            changed: Event::new(),
            room_turn: Semaphore::new(1),
            stats: RpcStats::new(now),
            jobs_told: Rc::default(),
        })
    }
    fn attach(self: &Rc<Self>, import: Rc<Import>) {
        let owner: Weak<dyn LockOwner> = Rc::downgrade(&(self.clone() as Rc<dyn LockOwner>));
        self.locks.attach(import.clone(), owner);
        if !self.is_active() {
            import.deactivate();
        }
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
    /// `Io` when the OST is deactivated, `NoTarget` when it is not in the map.
    pub fn import(&self) -> Result<Rc<Import>, FsError> {
        if !self.is_active() {
            return Err(FsError::Io);
        }
        self.import.borrow().clone().ok_or(FsError::NoTarget)
    }
    /// Its import, also while the OST is deactivated; `None` when it is not in the map.
    #[must_use]
    pub fn import_if_any(&self) -> Option<Rc<Import>> {
        self.import.borrow().clone()
    }
    /// Whether operations on its objects are tried at all. They fail with `Io` otherwise.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.active_in_map.get() && self.active_here.get()
    }
    /// Gives the OST up for this client, or takes it back. Given up: whatever waits for it fails at once, locks and pages
    /// go, unwritten data are lost and listed ([`crate::Client::losses`]).
    pub fn set_active(self: &Rc<Self>, active: bool) {
        let before = self.is_active();
        self.active_here.set(active);
        self.turned(before);
    }
    /// The same by the cluster map, for all clients.
    fn set_active_in_map(self: &Rc<Self>, active: bool) {
        let before = self.is_active();
        self.active_in_map.set(active);
        self.turned(before);
    }
    /// The OST has left the cluster; no file has objects there.
    fn leave(self: &Rc<Self>) {
        self.left.set(true);
        if types::planted!("left-and-kept") {
            return;
        }
        let Some(import) = self.import.borrow_mut().take() else { return };
        tracing::info!(ost = %self.index, "{} has left the cluster", import.target());
        self.locks.on_evicted();
        self.tell_losses();
        self.changed.notify();
        // What is under way ends with its goodbye.
        self.rt.spawn(async move {
            import.close().await;
        });
    }
    fn turned(self: &Rc<Self>, before: bool) {
        let Some(import) = self.import_if_any().filter(|_| before != self.is_active()) else { return };
        if before {
            tracing::warn!(ost = %self.index, "{} is deactivated: its files answer EIO", import.target());
            import.deactivate();
            self.locks.on_evicted();
            self.tell_losses();
            self.changed.notify();
        } else {
            tracing::warn!(ost = %self.index, "{} is active again", import.target());
            import.activate();
        }
    }
    /// Locks held at its target, and requests for locks under way.
    #[must_use]
    pub fn lock_count(&self) -> usize {
        self.locks.cache().len()
    }
    /// Write locks held at its target.
    #[must_use]
    pub fn write_lock_count(&self) -> usize {
        self.locks.cache().locks().filter(|(lock, held)| *held && lock.mode == ldlm::LockMode::Pw).count()
    }
    /// The mark of objects that were not made shorter since its store was opened.
    pub(crate) fn cut_floor(&self) -> u64 {
        wire::lock::cut_floor(self.epoch.get())
    }
    /// A place in the window of bulk RPCs.
    async fn in_window(&self, (rank, tag): Turn) -> InWindow<'_> {
        let rank = self.rpcs.acquire(rank, tag).await;
        InWindow { window: &self.rpcs, rank }
    }
    /// The turn that a request has now.
    fn turn_of(&self, why: Why<'_>) -> Turn {
        match why {
            Why::Asked => (Rank::Ordinary, 0),
            Why::CalledBack(since) => (Rank::Urgent(since), 0),
            Why::Under(held) => {
                let valid = self.locks.cache().is_valid(held.cookie);
                let leaves = !valid || self.leases_with(held.cookie).iter().any(|(_, _, leaves)| *leaves);
                (if leaves { Rank::Urgent(self.rt.now()) } else { Rank::Ordinary }, held.cookie.0)
            }
        }
    }
    /// How calls of a turn are made.
    fn options_of((rank, tag): Turn) -> ptlrpc::CallOptions {
        match rank {
            Rank::Urgent(promise) => ptlrpc::CallOptions::urgent(Some(promise)),
            Rank::Ahead => ptlrpc::CallOptions { ahead: true, tag, ..Default::default() },
            Rank::Ordinary => ptlrpc::CallOptions { tag, ..Default::default() },
        }
    }
    /// How changes under a lock are made: in no later session than the lock's, for the range may be another client's by then.
    pub(crate) fn options_of_change(&self, import: &Import, held: &Held) -> Result<ptlrpc::CallOptions, FsError> {
        held.desc().ok_or(FsError::NotConnected)?;
        Ok(ptlrpc::CallOptions { losses: Some(import.losses()), ..Osc::options_of(self.turn_of(Why::Under(held))) })
    }
    /// Another client waits for a lock: what waits under it, in the window or for a slot, no longer waits for anything else;
    /// nor does what waits under a lock that is kept as long.
    fn hasten(&self, cookie: LockCookie) {
        self.hasten_here(cookie);
        self.leases_with(cookie).iter().for_each(|(osc, lease, _)| osc.hasten_here(*lease));
    }
    fn hasten_here(&self, LockCookie(cookie): LockCookie) {
        if cookie != 0 {
            self.rpcs.promote(cookie, Rank::Urgent(self.rt.now()));
            if let Some(import) = self.import_if_any() {
                import.hasten(cookie);
            }
        }
    }
    /// The locks that a kernel's read of pages keeps together with this one until it has all its bytes (`lease`):
    /// of which OST, and whether another client waits for it.
    fn leases_with(&self, cookie: LockCookie) -> Vec<(Rc<Osc>, LockCookie, bool)> {
        let lock = self.locks.cache().get(cookie).filter(|l| l.mode.writes());
        let inode = lock.and_then(|l| self.object(&l)).and_then(|o| o.inode.borrow().upgrade());
        let striping = inode.filter(|i| i.front.is_mappable()).and_then(|i| i.striping());
        let (Some(s), Some(osts)) = (striping, self.osts.upgrade()) else { return Vec::new() };
        let mut out = Vec::new();
        for o in &s.objects {
            let osc = osts.osc(o.ost);
            // Cookies are each OST's own.
            let but = if osc.index == self.index { cookie } else { LockCookie(0) };
            let leases = osc.locks.cache().others(o.resource(), but, Extent::ALL);
            out.extend(
                leases.into_iter().filter(|(l, _)| l.mode.writes()).map(|(l, leaves)| (osc.clone(), l.cookie, leaves)),
            );
        }
        out
    }
    /// Whose I/O of an object is under way, and tells the OST what the job is called.
    pub(crate) fn owner_of(&self, object: &Object, import: &Rc<Import>) -> wire::ost::IoOwner {
        let doer = object.inode.borrow().upgrade().map(|i| i.io_owner.get()).unwrap_or_default();
        if doer.job != 0 {
            self.jobs.seen(import, &self.jobs_told);
        }
        doer.owner()
    }
    /// Traffic so far.
    #[must_use]
    pub fn stats(&self) -> OscStats {
        self.stats.totals()
    }
    /// The same as `osc.*.stats` has it: bytes and times of RPCs.
    #[must_use]
    pub fn stats_text(&self) -> String {
        self.stats.text(self.rt.wall())
    }
    /// `osc.*.latency_stats`: how long the same RPCs took.
    #[must_use]
    pub fn latency_stats_text(&self) -> String {
        self.stats.latency_text(self.rt.wall())
    }
    /// `osc.*.rpc_stats`: tables of RPCs by size, company and place.
    #[must_use]
    pub fn rpc_stats_text(&self) -> String {
        self.stats.rpc_text(self.rt.wall(), self.dirty_and_grant().0 / PAGE)
    }
    /// Shows what was counted of bulk RPCs.
    pub(crate) fn rpcs_done<T>(
        &self,
        look: impl FnOnce([(&crate::stats::Calls, &types::latency::Latency, u64); 2]) -> T,
    ) -> T {
        self.stats.each(look)
    }
    /// Counts from now on.
    pub fn reset_stats(&self) {
        self.stats.reset(self.rt.wall());
    }
    /// Dirty bytes, grant that no page took.
    #[must_use]
    pub fn dirty_and_grant(&self) -> (u64, u64) {
        let books = &self.target.borrow().books;
        (books.dirty_bytes(), books.grant_bytes())
    }
    /// Bulk RPCs in flight allowed.
    #[must_use]
    pub fn rpcs_in_flight_max(&self) -> usize {
        self.target.borrow().rpcs_max()
    }
    /// Changes the number of bulk RPCs in flight, 1..=256.
    pub fn set_rpcs_in_flight_max(&self, n: usize) {
        self.target.borrow_mut().on_rpcs_max(n);
        self.rpcs.settle();
    }
    /// Pages per RPC that the OST takes.
    #[must_use]
    pub fn rpc_pages_offered(&self) -> usize {
        self.target.borrow().rpc_pages_offered()
    }
    /// Pages per RPC: as many as are wanted, and the OST takes.
    #[must_use]
    pub fn rpc_pages_max(&self) -> usize {
        self.target.borrow().rpc_pages_max()
    }
    /// Changes the pages per RPC that are wanted, 1..=16384.
    pub fn set_rpc_pages_max(&self, n: usize) {
        self.target.borrow_mut().set_rpc_pages_max(n);
    }
    /// How long nothing is written before grant that one RPC does not need goes back.
    #[must_use]
    pub fn grant_shrink_interval(&self) -> Duration {
        self.grant_shrink_interval.get()
    }
    /// Changes [`Osc::grant_shrink_interval`].
    pub fn set_grant_shrink_interval(&self, interval: Duration) {
        self.grant_shrink_interval.set(interval);
    }
    /// Dirty bytes allowed.
    #[must_use]
    pub fn dirty_max(&self) -> u64 {
        self.target.borrow().books.dirty_bytes_max()
    }
    /// Changes the dirty bytes allowed, at least 1 MiB.
    pub fn set_dirty_max(&self, bytes: u64) {
        self.target.borrow_mut().books.set_dirty_bytes_max(bytes);
        self.changed.notify();
    }
}

impl Osc {
    /// The object of that id, known from now on.
    fn object_of(&self, id: ObjectId) -> Rc<Object> {
        let new = || Object::new(id, usize::from(self.index.0), self.pages.clone());
        self.objects.borrow_mut().entry(id).or_insert_with(new).clone()
    }
    fn known_object(&self, id: ObjectId) -> Option<Rc<Object>> {
        self.objects.borrow().get(&id).cloned()
    }
    /// Whether an object stays, used or not.
    fn needs(&self, o: &Rc<Object>) -> bool {
        // A lock vouches for the size that is known here: it goes first.
        o.unwritten_pages() > 0
            || o.has_pages()
            || Rc::strong_count(o) > 1
            || o.inode.borrow().upgrade().is_some()
            || self.locks.knows(o.resource())
    }
    /// An object that nothing needs leaves.
    pub(crate) fn object_may_go(&self, id: ObjectId) {
        if self.objects.borrow().get(&id).is_some_and(|o| !self.needs(o)) {
            self.objects.borrow_mut().remove(&id);
        }
    }
    /// The OST has ended the session and was started again: nothing that was changed there through it is still to be committed.
    fn changes_are_over(&self) {
        self.objects.borrow().values().for_each(|o| o.changed_by.set(Transno(0)));
    }
}

/// The cluster map, and the client's side of every OST in it.
pub struct Osts {
    sessions: Rc<Sessions>,
    config: crate::ClientConfig,
    map: RefCell<ConfigReply>,
    on_settings: RefCell<Option<SettingsHook>>,
    /// By index.
    table: RefCell<Vec<Rc<Osc>>>,
    pages: Rc<PageCache>,
    losses: Rc<Losses>,
    looking_for_targets: Cell<bool>,
    /// A map came.
    came: Event,
}

impl Osts {
    pub(crate) fn new(
        sessions: Rc<Sessions>,
        pages: Rc<PageCache>,
        losses: Rc<Losses>,
        config: crate::ClientConfig,
    ) -> Rc<Osts> {
        Rc::new(Osts {
            sessions,
            config,
            map: RefCell::default(),
            on_settings: RefCell::new(None),
            table: RefCell::default(),
            pages,
            losses,
            looking_for_targets: Cell::new(false),
            came: Event::new(),
        })
    }

    /// Takes a cluster map in: new OSTs get an import, those that left the cluster lose theirs for good, also when an answer from
    /// before comes later.
    pub(crate) fn take_map(self: &Rc<Self>, mut map: ConfigReply) {
        for osc in self.table.borrow().iter().filter(|osc| map.removed.contains(&osc.index)) {
            osc.leave();
        }
        map.osts.retain(|e| !self.has_left(e.ost));
        for entry in &map.osts {
            let index = usize::from(entry.ost.0);
            while self.table.borrow().len() <= index {
                let next = OstIndex(self.table.borrow().len() as u16);
                self.table.borrow_mut().push(Osc::new(next, self));
            }
            let osc = self.osc(index);
            let nid = String::from_utf8_lossy(&entry.nid);
            let known = osc.import.borrow().clone();
            osc.set_active_in_map(entry.active);
            match (Nid::parse(&nid), known) {
                (Ok(nid), Some(import)) => {
                    import.expect_store(entry.uuid);
                    import.move_to(nid);
                }
                (Ok(nid), None) => {
                    let target = String::from_utf8_lossy(&entry.target).into_owned();
                    let callbacks: Weak<dyn Callbacks> = Rc::downgrade(&(osc.clone() as Rc<dyn Callbacks>));
                    let import = self.sessions.import(nid, &target, callbacks);
                    import.expect_store(entry.uuid);
                    osc.attach(import);
                }
                (Err(e), _) => tracing::error!(ost = %entry.ost, "cluster map: {e}"),
            }
        }
        *self.map.borrow_mut() = map;
        self.came.notify();
    }
    /// Waits until an OST is in the map, in use and answers; false when it does not within a time.
    ///
    /// Cancel: nothing happened.
    pub async fn answers(&self, ost: OstIndex, within: Duration) -> bool {
        let rt = self.sessions.rt();
        let until = rt.now() + within;
        loop {
            let came = self.came.wait();
            let osc = self.table.borrow().get(usize::from(ost.0)).cloned();
            let import = osc.filter(|osc| osc.is_active()).and_then(|osc| osc.import_if_any());
            let left = until.since(rt.now());
            match import {
                Some(import) if import.ready(left).await.is_ok() => return true,
                _ if left == Duration::ZERO => return false,
                // Another store answers in its place, so far.
                Some(_) => rt.sleep(ASK_AGAIN.min(left)).await,
                None => drop(rt.timeout(left, came).await),
            }
        }
    }
    fn has_left(&self, ost: OstIndex) -> bool {
        self.table.borrow().get(usize::from(ost.0)).is_some_and(|osc| osc.left.get())
    }
    /// The metadata server sent a new map.
    pub(crate) fn map_came(self: &Rc<Self>, map: ConfigReply) {
        let hook = self.on_settings.borrow().clone();
        if let Some(hook) = hook {
            hook(&map.settings);
        }
        self.take_map(map);
    }
    /// Asks for the cluster map again.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// As the metadata server answers.
    pub async fn refresh_map(self: &Rc<Self>) -> Result<(), FsError> {
        let map: ConfigReply = self.sessions.mdc().ask(Op::Config, &()).await?;
        self.take_map(map);
        Ok(())
    }
    /// A target does not answer at its address: the map is asked for once more, in case it is served elsewhere now.
    fn look_for_moved_targets(self: &Rc<Self>) {
        if self.looking_for_targets.replace(true) {
            return;
        }
        let me = self.clone();
        self.sessions.rt().spawn(async move {
            if let Err(e) = me.refresh_map().await {
                tracing::debug!("cluster map: {e}");
            }
            me.looking_for_targets.set(false);
        });
    }
    /// Says who carries out permanent settings; those of the map are told at once.
    pub fn on_settings(&self, hook: SettingsHook) {
        hook(&self.map.borrow().settings);
        *self.on_settings.borrow_mut() = Some(hook);
    }
    /// The cluster map as last told.
    #[must_use]
    pub fn map(&self) -> ConfigReply {
        self.map.borrow().clone()
    }
    /// All OSTs, by index.
    #[must_use]
    pub fn all(&self) -> Vec<Rc<Osc>> {
        self.table.borrow().clone()
    }
    pub(crate) fn osc(&self, index: usize) -> Rc<Osc> {
        self.table.borrow()[index].clone()
    }
    /// Imports of all OSTs that were ever in the map.
    pub(crate) fn imports(&self) -> Vec<Rc<Import>> {
        self.table.borrow().iter().filter_map(|o| o.import_if_any()).collect()
    }

    /// An object by its id, known from now on.
    ///
    /// # Errors
    /// `NoTarget`: its OST is not in the map.
    fn object(&self, id: ObjectId, ost: OstIndex) -> Result<Rc<Object>, FsError> {
        let osc = self.table.borrow().get(usize::from(ost.0)).filter(|o| o.import.borrow().is_some()).cloned();
        let Some(osc) = osc else {
            tracing::debug!(%id, %ost, "a layout names an OST that is not in the cluster map");
            return Err(FsError::NoTarget);
        };
        Ok(osc.object_of(id))
    }
    /// Takes a file's layout in, unless the same generation is known.
    ///
    /// # Errors
    /// `NoTarget`: it names an OST that is not in the map.
    pub(crate) fn take_layout(&self, inode: &Rc<Inode>, bytes: &[u8], capabilities: &[u8]) -> Result<(), FsError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (_, layout) = layout::xattr::decode_layout(bytes).map_err(|e| {
            tracing::error!(file = %inode.fid, "layout: {e}");
            FsError::from(e)
        })?;
        for (o, capability) in layout.objects().iter().zip(capabilities.as_chunks().0) {
            let osc = self.osc(self.object(o.object, o.ost)?.ost);
            osc.capabilities.borrow_mut().insert(o.object, *capability);
        }
        if inode.striping().is_some_and(|s| s.layout == layout) {
            return Ok(());
        }
        let mut objects = Vec::with_capacity(layout.objects().len());
        for (i, o) in layout.objects().iter().enumerate() {
            let object = self.object(o.object, o.ost)?;
            *object.inode.borrow_mut() = Rc::downgrade(inode);
            object.stripe.set(i as u16);
            objects.push(object);
        }
        inode.set_striping(Striping { layout, objects });
        Ok(())
    }
    /// Objects that are known here.
    #[must_use]
    pub fn object_count(&self) -> usize {
        self.table.borrow().iter().map(|o| o.objects.borrow().len()).sum()
    }
    /// Forgets objects that nothing refers to.
    pub(crate) fn prune(&self) {
        for osc in self.table.borrow().iter() {
            let mut objects = osc.objects.borrow_mut();
            objects.retain(|_, o| osc.needs(o));
            osc.capabilities.borrow_mut().retain(|id, _| objects.contains_key(id));
        }
    }
    fn objects(&self) -> Vec<Rc<Object>> {
        self.table.borrow().iter().flat_map(|osc| osc.objects.borrow().values().cloned().collect::<Vec<_>>()).collect()
    }
    /// Objects with pages that are not written out.
    pub(crate) fn unwritten_objects(&self) -> Vec<Rc<Object>> {
        self.objects().into_iter().filter(|o| o.unwritten_pages() > 0).collect()
    }
    /// Pages of a file that are not written out; 0 of one that is not known here.
    #[must_use]
    pub fn unwritten_pages(&self, fid: Fid) -> usize {
        let of_file = |o: &Rc<Object>| o.inode.borrow().upgrade().is_some_and(|i| i.fid == fid);
        self.objects().into_iter().filter(of_file).map(|o| o.unwritten_pages()).sum()
    }
    pub(crate) fn note_use(&self, into: &mut InUse) {
        self.objects().iter().for_each(|o| o.note_use(into));
        self.note_requests(into);
        for osc in self.table.borrow().iter() {
            let target = osc.target.borrow();
            into.add("dirty bytes", target.books.dirty_bytes());
            into.add("places in windows", target.places_taken());
            into.add("waits for a place", target.window.waiting() as u64);
        }
    }
    /// What is in use of locks and requests.
    pub(crate) fn note_requests(&self, into: &mut InUse) {
        for osc in self.table.borrow().iter() {
            osc.locks.note_use(into);
            if let Some(import) = osc.import_if_any() {
                import.note_use(&mut |what, n| into.add(what, n));
            }
        }
    }
    /// Pages that are dirty, of all OSTs.
    fn dirty_pages(&self) -> usize {
        self.table.borrow().iter().map(|o| (o.dirty_and_grant().0 / PAGE) as usize).sum()
    }
    /// Whether the metadata server says that a file is not there, open or with a name. To whom a subtree is shown it says so of what lies
    /// outside, too.
    async fn is_gone(&self, fid: Fid) -> bool {
        let cred = Cred { caps: 1, ..Cred::default() };
        let ask = GetattrRequest { cred, fid, ..GetattrRequest::default() };
        let answer = self.sessions.mdc().ask::<_, EntryReply>(Op::MdtGetattr, &ask).await;
        matches!(answer, Err(FsError::Stale | FsError::NotFound))
    }
    /// The file is gone for good: what was not written yet need not be.
    pub(crate) fn discard_data(&self, inode: &Inode) {
        if let Some(s) = inode.striping() {
            for o in &s.objects {
                self.osc(o.ost).discard(o, Extent::ALL, false);
            }
        }
    }
    /// Writes out what is dirty of these objects.
    pub(crate) async fn flush(&self, objects: &[Rc<Object>]) {
        let flushes = objects.iter().map(|o| {
            let osc = self.osc(o.ost);
            async move { osc.flush(o, Extent::ALL, Why::Asked).await }
        });
        rt::sync::join_all(flushes.collect()).await;
    }
    /// Writes everything dirty out, and brings it to stable storage on the OSTs that `asked` says of.
    ///
    /// # Errors
    /// The first failure; every OST is tried.
    pub(crate) async fn sync(&self, asked: impl Fn(&Import) -> bool) -> Result<(), FsError> {
        self.flush(&self.unwritten_objects()).await;
        let mut result = Ok(());
        for osc in self.all() {
            let Ok(import) = osc.import() else { continue };
            if !asked(&import) {
                continue;
            }
            let done = osc.sync().await;
            // One that was given up meanwhile has nothing to say of what was not with it.
            let owes_nothing = osc.import().is_err() && import.on_fsync() == datapath::Fsync::Done;
            if !owes_nothing {
                result = result.and(done);
            }
        }
        result
    }
    /// Space of every OST. One that is being connected for the first time is waited for, one that is away is not, and none longer than
    /// `within`.
    ///
    /// Cancel: nothing happened.
    pub async fn statfs(&self, within: Option<Duration>) -> Vec<(OstIndex, Result<StatfsReply, FsError>)> {
        let asks: Vec<_> = self
            .all()
            .into_iter()
            .filter(|o| o.import.borrow().is_some())
            .map(|o| async move {
                let import = match o.import() {
                    Ok(import) => import,
                    Err(e) => return (o.index(), Err(e)),
                };
                import.tried(FIRST_SESSION_WITHIN).await;
                let answer = match import.state() {
                    ptlrpc::ImportState::Full => self.sessions.in_time(within, import.ask(Op::OstStatfs, &())).await,
                    _ => Err(FsError::NotConnected),
                };
                (o.index(), answer)
            })
            .collect();
        rt::sync::join_all(asks).await
    }
    /// Writes old data out, and gives old grant and locks back.
    pub(crate) fn keep_house(&self) {
        for osc in self.all() {
            osc.flush_old();
            osc.shrink_when_idle();
            osc.locks.tick(0);
        }
    }
}

fn page_extent(extent: Extent) -> Extent {
    extent.align_out(PAGE)
}

/// How a bulk RPC was answered, as far as trying again goes. "Come again" stays within the session.
fn judged<T>(answer: &Result<T, FsError>) -> datapath::Answer {
    match answer {
        Ok(_) => datapath::Answer::Done,
        Err(FsError::Corrupt) => datapath::Answer::Damaged,
        Err(FsError::NoSpace | FsError::Quota) => datapath::Answer::NoSpace,
        Err(FsError::NotFound) => datapath::Answer::NoObject,
        Err(_) => datapath::Answer::Failed,
    }
}

#[cfg(test)]
mod tests;
