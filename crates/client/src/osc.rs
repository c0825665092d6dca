//! A client's side of one OST: its import, its locks, its grant, reads and write-out of pages.
mod owner;
mod read;
mod write;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use frames::FRAME_BYTES;
use ldlm::LockCookie;
use ptlrpc::Import;
use ptlrpc::turns::{Rank, Turns};
use rt::Rt;
use rt::sync::Event;
use types::{Duration, Extent, FsError, Instant, OstIndex};

use crate::client::Client;
use crate::locks::{Held, LockOwner, Locks};
use crate::object::Object;
use crate::stats::{OscStats, RpcStats};

const PAGE: u64 = FRAME_BYTES as u64;
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

/// A client's side of one OST.
pub struct Osc {
    pub(crate) rt: Rt,
    pub(crate) index: OstIndex,
    pub(crate) import: RefCell<Option<Rc<Import>>>,
    pub(crate) locks: Rc<Locks>,
    client: Weak<Client>,
    /// How often its store was opened when the session began.
    epoch: Cell<u64>,
    /// Whether the cluster map has it in service.
    active_in_map: Cell<bool>,
    /// Whether this client's administrator has.
    active_here: Cell<bool>,
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
    stats: RpcStats,
    jobs_told: crate::jobs::Told,
}

impl Osc {
    pub(crate) fn new(rt: Rt, index: OstIndex, client: Weak<Client>, config: &crate::ClientConfig) -> Rc<Osc> {
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
            client,
            epoch: Cell::new(0),
            active_in_map: Cell::new(true),
            active_here: Cell::new(true),
            rpcs: Turns::of(target.clone()),
            target,
            written_at: Cell::new(started),
            grant_shrink_interval: Cell::new(config.grant_shrink_interval),
            changed: Event::new(),
            stats: RpcStats::new(now),
            jobs_told: crate::jobs::Told::default(),
        })
    }
    pub(crate) fn attach(self: &Rc<Self>, import: Rc<Import>) {
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
    /// go, unwritten data are lost and listed ([`Client::losses`]).
    pub fn set_active(self: &Rc<Self>, active: bool) {
        let before = self.is_active();
        self.active_here.set(active);
        self.turned(before);
    }
    /// The same by the cluster map, for all clients.
    pub(crate) fn set_active_in_map(self: &Rc<Self>, active: bool) {
        let before = self.is_active();
        self.active_in_map.set(active);
        self.turned(before);
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
    pub(crate) fn jobs_told(&self) -> &crate::jobs::Told {
        &self.jobs_told
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
        Ok(ptlrpc::CallOptions {
            evictions: Some(import.evictions()),
            ..Osc::options_of(self.turn_of(Why::Under(held)))
        })
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
    /// The locks that a kernel's read of pages keeps together with this one until it has all its bytes ([`Client::lease`]):
    /// of which OST, and whether another client waits for it.
    fn leases_with(&self, cookie: LockCookie) -> Vec<(Rc<Osc>, LockCookie, bool)> {
        let lock = self.locks.cache().get(cookie).filter(|l| l.mode.writes());
        let inode = lock.and_then(|l| self.object(&l)).and_then(|o| o.inode.borrow().upgrade());
        let striping = inode.filter(|i| i.is_mappable()).and_then(|i| i.striping());
        let (Some(s), Some(client)) = (striping, self.client.upgrade()) else { return Vec::new() };
        let mut out = Vec::new();
        for o in &s.objects {
            let osc = client.osc(o.ost);
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
    fn owner_of(&self, object: &Object, import: &Import) -> wire::ost::IoOwner {
        let doer = object.inode.borrow().upgrade().map(|i| i.io_owner.get()).unwrap_or_default();
        if doer.job != 0
            && let Some(client) = self.client.upgrade()
        {
            client.job_seen(import, &self.jobs_told);
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

fn page_extent(extent: Extent) -> Extent {
    extent.align_out(PAGE)
}

/// How a bulk RPC was answered, as far as trying again goes. "Come again" stays within the session.
fn judged<T>(answer: &Result<T, FsError>) -> datapath::Answer {
    match answer {
        Ok(_) => datapath::Answer::Done,
        Err(FsError::Corrupt) => datapath::Answer::Damaged,
        Err(FsError::NoSpace) => datapath::Answer::NoSpace,
        Err(FsError::NotFound) => datapath::Answer::NoObject,
        Err(_) => datapath::Answer::Failed,
    }
}
