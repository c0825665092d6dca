//! The client node: connects to a cluster and holds what all files share.
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use frames::FrameRun;
use hashbrown::HashMap;
use ldlm::{InodeBits, LockMode, LockPolicyData, ResourceId};
use ptlrpc::{AdaptiveTimeouts, Callbacks, Import, ImportConfig, SessionKey};
use readahead::Ahead;
use rt::{Nid, Rt};
use rustc_hash::FxBuildHasher;
use types::{ClientId, Duration, Extent, Fid, FsError, ObjectId, OstIndex, Transno};
use wire::Op;
use wire::connect::ConfigReply;
use wire::mdt::LockBits;
use wire::ost::StatfsReply;

use crate::ClientConfig;
use crate::ahead::within_cache;
use crate::closes::Closes;
use crate::inode::Inode;
use crate::kernel::{KernelCache, NoKernel};
use crate::limits::{Limits, is_idle};
use crate::locks::{LockOwner, Locks};
use crate::object::Object;
use crate::open::OpenFile;
use crate::osc::Osc;
use crate::pages::PageCache;
use crate::settled::{Settling, keep_settled};
use crate::stats::CallStats;

type Table<K, V> = RefCell<HashMap<K, V, FxBuildHasher>>;

/// A client of one cluster, on one shard.
pub struct Client {
    pub(crate) rt: Rt,
    pub(crate) config: ClientConfig,
    id: ClientId,
    /// What the identities of its sessions come from.
    pub(crate) sessions: SessionKey,
    map: RefCell<ConfigReply>,
    pub(crate) mdc: RefCell<Option<Rc<Import>>>,
    pub(crate) mdt_locks: Rc<Locks>,
    oscs: RefCell<Vec<Rc<Osc>>>,
    pub(crate) pages: Rc<PageCache>,
    pub(crate) calls: CallStats,
    pub(crate) offsets: crate::offsets::Offsets,
    pub(crate) zeros: FrameRun,
    pub(crate) inodes: Table<Fid, Rc<Inode>>,
    pub(crate) moments: Cell<crate::attrs::Moment>,
    objects: Table<ObjectId, Rc<Object>>,
    pub(crate) dentries: Table<(Fid, Vec<u8>), Fid>,
    pub(crate) opens: Table<u64, Rc<OpenFile>>,
    pub(crate) closes: Closes,
    pub(crate) settling: Settling,
    /// How many opens the metadata server was not told of.
    pub(crate) untold_opens: Cell<u64>,
    /// Inodes that the kernel knows and that may have lost their last name.
    pub(crate) unnamed: RefCell<BTreeSet<Fid>>,
    /// Inodes whose locks are about to be given back.
    pub(crate) given_up: RefCell<Vec<Fid>>,
    pub(crate) listed: Table<Fid, crate::listing::Listed>,
    pub(crate) flocks: crate::flock::Flocks,
    pub(crate) ahead: RefCell<Ahead>,
    /// The readahead settings that were asked for; those in use have a budget that fits the cache.
    pub(crate) ahead_wanted: RefCell<readahead::Config>,
    pub(crate) limits: Limits,
    kernel: RefCell<Rc<dyn KernelCache>>,
    trace: Rc<RefCell<trace::Ring>>,
    pub(crate) closing: Cell<bool>,
    looking_for_targets: Cell<bool>,
    losses: crate::losses::Losses,
    pub(crate) cut_numbers: crate::cuts::CutNumbers,
    timeouts: Cell<AdaptiveTimeouts>,
    pub(crate) jobs: crate::jobs::Jobs,
    pub(crate) jobs_of_mdt: crate::jobs::Told,
    pub(crate) on_settings: RefCell<Option<SettingsHook>>,
}

/// Told the cluster's permanent settings whenever they come.
pub type SettingsHook = Rc<dyn Fn(&[wire::connect::Setting])>;

/// How long a metadata server may be silent before whoever joins is told that it is waited for.
const QUIET_WAIT: Duration = Duration::from_secs(2);

/// Memory in which a client keeps what became of its requests of late: some 30,000; it is touched as it fills.
const TRACE_BYTES: u64 = 4 << 20;

/// Why a client could not join.
#[derive(Debug)]
pub struct JoinError(pub String);
impl std::fmt::Display for JoinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for JoinError {}

impl Client {
    /// Joins the cluster whose metadata server `config` names.
    ///
    /// # Errors
    /// A sentence: no answer within `patience`, another cluster key, an unknown policy name.
    pub async fn join(rt: Rt, config: ClientConfig, patience: Duration) -> Result<Rc<Client>, JoinError> {
        let mut config = config;
        if config.client.0 == 0 {
            config.client = ClientId(rt.random());
        }
        let pages = PageCache::new(rt.frames(), config.cache_bytes, &config.cache_policy, &config.cache_keys);
        let pages = pages.map_err(JoinError)?;
        let readahead = within_cache(config.readahead.clone(), config.cache_bytes);
        let ahead = Ahead::new(&config.readahead_policy, readahead).map_err(|e| JoinError(e.to_string()))?;
        let mut zeros =
            rt.frames().alloc_run(frames::RUN_FRAMES_MAX).ok_or_else(|| JoinError("the frame pool is empty".into()))?;
        zeros.bytes_mut().expect("a fresh frame has one owner").fill(0);
        let mdt_locks =
            Locks::new(rt.clone(), ldlm::LockCacheConfig { lru_max: config.locks_max, ..Default::default() });
        let client = Rc::new(Client {
            rt: rt.clone(),
            id: config.client,
            sessions: SessionKey::new(rt.secret_bytes()),
            map: RefCell::default(),
            mdc: RefCell::new(None),
            mdt_locks,
            oscs: RefCell::default(),
            pages,
            calls: CallStats::new(rt.wall()),
            offsets: crate::offsets::Offsets::default(),
            zeros,
            inodes: RefCell::default(),
            moments: Cell::default(),
            objects: RefCell::default(),
            dentries: RefCell::default(),
            opens: RefCell::default(),
            closes: Closes::default(),
            settling: Settling::default(),
            untold_opens: Cell::new(0),
            unnamed: RefCell::default(),
            given_up: RefCell::default(),
            listed: RefCell::default(),
            flocks: crate::flock::Flocks::default(),
            ahead: RefCell::new(ahead),
            ahead_wanted: RefCell::new(config.readahead.clone()),
            limits: Limits::new(config.inodes_max),
            trace: Rc::new(RefCell::new(trace::Ring::new(TRACE_BYTES))),
            kernel: RefCell::new(Rc::new(NoKernel)),
            closing: Cell::new(false),
            looking_for_targets: Cell::new(false),
            losses: crate::losses::Losses::default(),
            cut_numbers: crate::cuts::CutNumbers::default(),
            timeouts: Cell::default(),
            jobs: crate::jobs::Jobs::default(),
            jobs_of_mdt: crate::jobs::Told::default(),
            on_settings: RefCell::new(None),
            config,
        });
        client.set_job_rule(client.config.jobs.clone());
        client.connect(patience).await?;
        let me = Rc::downgrade(&client);
        let settling = keep_settled(me.clone());
        rt.spawn(async move { keep_house(me).await });
        rt.spawn(settling);
        Ok(client)
    }

    fn import_config(&self, nid: Nid, target: &str) -> ImportConfig {
        ImportConfig {
            nid,
            target: target.into(),
            client: self.id,
            key: self.config.key.clone(),
            recoverable: true,
            ping_interval: Duration::from_secs(10),
            place: 0,
        }
    }

    /// The end of a session of this client at a target.
    fn new_import(&self, nid: Nid, target: &str, callbacks: Weak<dyn Callbacks>) -> Rc<Import> {
        let config = self.import_config(nid, target);
        let import = Import::with_key(self.rt.clone(), config, callbacks, self.sessions.at(target));
        import.trace_into(self.trace.clone(), trace::why::place_of(target));
        import
    }

    /// What is known of the requests of late, for `OstTrace` asked of the client itself.
    ///
    /// # Errors
    /// As [`trace::told::answer`].
    pub fn answer_trace(&self, ask: &wire::ost::TraceRequest) -> Result<wire::ost::TraceReply, FsError> {
        let (now, wall) = (self.rt.now().0, self.rt.wall().0);
        let client = self.id.0;
        let settings = format!("target=client-{client:016x}\nsource=client\nclock_ns={now}\nwall_ns={wall}\n");
        trace::told::answer(&self.trace.borrow(), ask, &settings)
    }

    async fn connect(self: &Rc<Self>, patience: Duration) -> Result<(), JoinError> {
        let mds = self.config.mds.clone();
        let nobody: Weak<Client> = Weak::new();
        // A session of its own, so that its end is not the end of ours.
        let visitor = ClientId(self.rt.random());
        let visit = ImportConfig { recoverable: false, client: visitor, ..self.import_config(mds.clone(), "*") };
        let scout = Import::new(self.rt.clone(), visit, nobody);
        let reason = |i: &Import, e: FsError| {
            let why = i.failure().unwrap_or_else(|| e.to_string());
            let remedy = match e {
                FsError::TimedOut => {
                    format!(
                        "; tried for {patience:?}: start the metadata server, or give the address at which it listens"
                    )
                }
                _ => String::new(),
            };
            JoinError(format!("cannot join the cluster at {mds}: {why}{remedy}"))
        };
        let mut found = scout.ready(patience.min(QUIET_WAIT)).await;
        if found == Err(FsError::TimedOut) && patience > QUIET_WAIT {
            let why = scout.failure().unwrap_or_else(|| "no answer".into());
            tracing::warn!("the metadata server at {mds} does not answer ({why}); trying for {patience:?} in all");
            found = scout.ready(patience.saturating_sub(QUIET_WAIT)).await;
        }
        found.map_err(|e| reason(&scout, e))?;
        let map: ConfigReply = scout.ask(Op::Config, &()).await.map_err(|e| reason(&scout, e))?;
        scout.close().await;
        let callbacks: Weak<dyn Callbacks> = Rc::downgrade(&(self.clone() as Rc<dyn Callbacks>));
        let target = String::from_utf8_lossy(&map.mdt_target).into_owned();
        let mdc = self.new_import(mds.clone(), &target, callbacks);
        let owner: Weak<dyn LockOwner> = Rc::downgrade(&(self.clone() as Rc<dyn LockOwner>));
        self.mdt_locks.attach(mdc.clone(), owner);
        *self.mdc.borrow_mut() = Some(mdc.clone());
        mdc.ready(patience).await.map_err(|e| reason(&mdc, e))?;
        self.take_map(map);
        Ok(())
    }

    /// Takes a cluster map in: new OSTs get an import.
    pub(crate) fn take_map(self: &Rc<Self>, map: ConfigReply) {
        for entry in &map.osts {
            let index = usize::from(entry.ost.0);
            while self.oscs.borrow().len() <= index {
                let next = OstIndex(self.oscs.borrow().len() as u16);
                self.oscs.borrow_mut().push(Osc::new(self.rt.clone(), next, Rc::downgrade(self), &self.config));
            }
            let osc = self.oscs.borrow()[index].clone();
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
                    let import = self.new_import(nid, &target, callbacks);
                    import.expect_store(entry.uuid);
                    import.set_timeouts(self.timeouts.get());
                    osc.attach(import);
                }
                (Err(e), _) => tracing::error!(ost = %entry.ost, "cluster map: {e}"),
            }
        }
        *self.map.borrow_mut() = map;
    }

    /// Asks for the cluster map again.
    ///
    /// # Errors
    /// As the metadata server answers.
    pub async fn refresh_map(self: &Rc<Self>) -> Result<(), FsError> {
        let map: ConfigReply = self.mdc().ask(Op::Config, &()).await?;
        self.take_map(map);
        Ok(())
    }

    /// A target does not answer at its address: the map is asked for once more, in case it is served elsewhere now.
    pub(crate) fn look_for_moved_targets(self: &Rc<Self>) {
        if self.looking_for_targets.replace(true) {
            return;
        }
        let me = self.clone();
        self.rt.spawn(async move {
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
    /// Files that lost unwritten data when this client was evicted.
    #[must_use]
    pub fn losses(&self) -> &crate::losses::Losses {
        &self.losses
    }
    /// Identity in the cluster.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.id
    }
    /// The world.
    #[must_use]
    pub fn rt(&self) -> &Rt {
        &self.rt
    }
    /// The cluster map as last told.
    #[must_use]
    pub fn map(&self) -> ConfigReply {
        self.map.borrow().clone()
    }
    /// OSTs by index.
    #[must_use]
    pub fn oscs(&self) -> Vec<Rc<Osc>> {
        self.oscs.borrow().clone()
    }
    /// The import of the metadata target.
    #[must_use]
    pub fn mdc(&self) -> Rc<Import> {
        self.mdc.borrow().clone().expect("set when the client joined")
    }
    /// Puts a cache in front that must be told when something it believes is no longer true.
    pub fn set_kernel(&self, kernel: Rc<dyn KernelCache>) {
        *self.kernel.borrow_mut() = kernel;
    }
    pub(crate) fn kernel(&self) -> Rc<dyn KernelCache> {
        self.kernel.borrow().clone()
    }
    /// Page cache: (pages that reads found, that they did not, pages used, pages allowed, policy).
    #[must_use]
    pub fn cache_figures(&self) -> (u64, u64, usize, usize, &'static str) {
        let (p, s) = (&self.pages, self.pages.stats());
        let hits = s.fine_hits + s.coarse_hits;
        (hits, s.fine_lookups + s.coarse_lookups - hits, p.used_pages(), p.limit_pages(), p.policy_name())
    }
    /// Pages that reads looked up and found, by granularity.
    #[must_use]
    pub fn cache_stats(&self) -> cache::Stats {
        self.pages.stats()
    }
    /// Bounds of adaptive timeouts towards all servers.
    #[must_use]
    pub fn timeouts(&self) -> AdaptiveTimeouts {
        self.timeouts.get()
    }
    /// Sets them.
    ///
    /// # Errors
    /// A sentence: the least is more than the most.
    pub fn set_timeouts(&self, timeouts: AdaptiveTimeouts) -> Result<(), String> {
        if timeouts.min > timeouts.max {
            return Err(format!(
                "at_min would be {} s and at_max {} s: at_min is at most at_max",
                timeouts.min.as_secs(),
                timeouts.max.as_secs()
            ));
        }
        self.timeouts.set(timeouts);
        let osts = self.oscs().into_iter().filter_map(|o| o.import_if_any());
        osts.chain([self.mdc()]).for_each(|i| i.set_timeouts(timeouts));
        Ok(())
    }
    /// Changes the page cache's size, and with it how much may be read ahead.
    pub fn set_cache_bytes(&self, bytes: u64) {
        self.pages.set_limit(bytes);
        self.fit_readahead();
    }
    /// Changes the page cache's policy under load.
    ///
    /// # Errors
    /// A sentence that names the policies there are.
    pub fn set_cache_policy(&self, name: &str) -> Result<(), String> {
        self.pages.set_policy(name)
    }
    pub(crate) fn dirty_pages(&self) -> usize {
        self.oscs.borrow().iter().map(|o| o.dirty_and_grant().0 as usize / 4096).sum()
    }

    pub(crate) fn osc(&self, index: usize) -> Rc<Osc> {
        self.oscs.borrow()[index].clone()
    }
    pub(crate) fn inode(self: &Rc<Self>, fid: Fid) -> Rc<Inode> {
        let known = self.known_inode(fid);
        let inode = known.unwrap_or_else(|| {
            let inode = Inode::new(fid, Rc::downgrade(self));
            self.inodes.borrow_mut().insert(fid, inode.clone());
            self.inode_came();
            inode
        });
        self.used(&inode);
        inode
    }
    pub(crate) fn known_inode(&self, fid: Fid) -> Option<Rc<Inode>> {
        self.inodes.borrow().get(&fid).cloned()
    }
    pub(crate) fn object(&self, id: ObjectId, ost: OstIndex) -> Result<Rc<Object>, FsError> {
        let index = usize::from(ost.0);
        if self.oscs.borrow().get(index).is_none_or(|o| o.import.borrow().is_none()) {
            tracing::debug!(%id, %ost, "a layout names an OST that is not in the cluster map");
            return Err(FsError::NoTarget);
        }
        Ok(self.objects.borrow_mut().entry(id).or_insert_with(|| Object::new(id, index, self.pages.clone())).clone())
    }
    pub(crate) fn find_object(&self, id: ObjectId) -> Option<Rc<Object>> {
        self.objects.borrow().get(&id).cloned()
    }

    /// The inode of an id that the cluster gave.
    #[must_use]
    pub fn inode_of(self: &Rc<Self>, fid: Fid) -> Rc<Inode> {
        self.inode(fid)
    }
    /// Tells the kernel that its attributes of an inode are old.
    pub async fn kernel_attributes_changed(&self, fid: Fid) {
        self.kernel().drop_attributes(fid).await;
    }
    /// All metadata of an inode on stable storage.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn sync_meta(&self, fid: Fid) -> Result<(), FsError> {
        self.mdc().ask(Op::MdtSync, &wire::mdt::SyncRequest { fid }).await
    }
    /// Space of every target: (OST index, or `None` for the metadata target; its answer). `lazy`: a metadata server that
    /// is away is not waited for, either.
    pub async fn statfs_each(&self, lazy: bool) -> Vec<(Option<OstIndex>, Result<StatfsReply, FsError>)> {
        let mdc = self.mdc();
        let of_mdt = match mdc.state() {
            ptlrpc::ImportState::Full => mdc.ask(Op::MdtStatfs, &()).await,
            _ if lazy => Err(FsError::NotConnected),
            _ => mdc.ask(Op::MdtStatfs, &()).await,
        };
        let mut out = vec![(None, of_mdt)];
        let asks: Vec<_> = self
            .oscs()
            .into_iter()
            .map(|o| async move {
                let answer = match o.import() {
                    Ok(i) if i.state() == ptlrpc::ImportState::Full => i.ask(Op::OstStatfs, &()).await,
                    Ok(_) => Err(FsError::NotConnected),
                    Err(e) => Err(e),
                };
                (Some(o.index()), answer)
            })
            .collect();
        out.extend(rt::sync::join_all(asks).await);
        out
    }
    /// Space of the file system: the OSTs' bytes, the metadata target's inodes.
    ///
    /// # Errors
    /// The metadata target does not answer.
    pub async fn statfs(&self) -> Result<StatfsReply, FsError> {
        let mut sum = StatfsReply::default();
        for (ost, answer) in self.statfs_each(false).await {
            match (ost, answer) {
                (None, answer) => {
                    let m = answer?;
                    (sum.files, sum.files_free) = (m.files, m.files_free);
                }
                (Some(_), Ok(o)) => {
                    sum.total += o.total;
                    sum.free += o.free;
                    sum.available += o.available;
                }
                (Some(_), Err(_)) => {}
            }
        }
        Ok(sum)
    }

    /// Whether a lock on these bits of the inode is held.
    pub(crate) fn holds(&self, fid: Fid, bits: u64) -> bool {
        let data = LockPolicyData::bits(InodeBits(bits as u8));
        self.mdt_locks.covers(ResourceId::inode(fid), LockMode::Cr, &data)
    }
    /// Whether this client alone decides how large the file is: it made it, and nobody else writes.
    pub(crate) fn is_ours_alone(&self, inode: &Inode) -> bool {
        inode.ours_alone.get() && self.holds(inode.fid, LockBits::UPDATE)
    }
    /// Whether the cached attributes of an inode may be believed.
    pub(crate) fn attr_valid(&self, inode: &Inode) -> bool {
        !inode.is_stale() && self.holds(inode.fid, LockBits::LOOKUP | LockBits::UPDATE | LockBits::PERM)
    }

    /// Writes everything out and leaves the cluster. Whether every server has heard of it: what has not keeps this client's
    /// session for a while.
    pub async fn leave(self: &Rc<Self>) -> bool {
        self.closing.set(true);
        let _ = self.sync_reachable().await;
        let opens: Vec<_> = self.opens.borrow().values().cloned().collect();
        for file in opens {
            let _ = self.release(&file).await;
        }
        self.all_closes_told().await;
        let unwritten = self.objects.borrow().values().any(|o| o.unwritten_pages() > 0);
        let holds = |i: Rc<Import>| i.last_committed() < i.last_transno();
        let takes_along =
            unwritten || self.oscs().iter().filter_map(|o| o.import_if_any()).any(holds) || !self.all_cuts_are_over();
        let mut heard = true;
        for osc in self.oscs() {
            if let Some(import) = osc.import_if_any() {
                heard &= import.close().await;
            }
        }
        if takes_along {
            // Sizes that it told rest on that: it goes like one that dies, and the metadata server doubts them.
            self.mdc().abandon();
            return false;
        }
        self.mdc().close().await && heard
    }
    /// Stops without a word, as a crash would.
    pub fn abandon(&self) {
        self.closing.set(true);
        for osc in self.oscs() {
            if let Some(import) = osc.import_if_any() {
                import.abandon();
            }
        }
        self.mdc().abandon();
    }

    /// All dirty data of all files on stable storage, and all metadata. An OST that is away and has something of this
    /// client to commit is waited for.
    ///
    /// # Errors
    /// The first failure; every target is tried.
    pub async fn sync_all(self: &Rc<Self>) -> Result<(), FsError> {
        self.sync_targets(|import| import.on_fsync() == datapath::Fsync::Ask).await
    }
    /// As [`Client::sync_all`], without OSTs that are away: for a client that leaves whatever they have.
    ///
    /// # Errors
    /// As [`Client::sync_all`].
    pub async fn sync_reachable(self: &Rc<Self>) -> Result<(), FsError> {
        self.sync_targets(|_| false).await
    }
    /// Objects with pages that are not written out.
    pub(crate) fn unwritten_objects(&self) -> Vec<Rc<Object>> {
        self.objects.borrow().values().filter(|o| o.unwritten_pages() > 0).cloned().collect()
    }
    /// Pages of a file that are not written out; 0 of one that is not known here.
    #[must_use]
    pub fn unwritten_pages(&self, fid: Fid) -> usize {
        let of_file = |o: &&Rc<Object>| o.inode.borrow().upgrade().is_some_and(|i| i.fid == fid);
        self.objects.borrow().values().filter(of_file).map(|o| o.unwritten_pages()).sum()
    }
    /// Syncs the OSTs that can be reached, and those that `awaited` says of.
    async fn sync_targets(self: &Rc<Self>, awaited: impl Fn(&Import) -> bool) -> Result<(), FsError> {
        let flushes: Vec<_> = self
            .unwritten_objects()
            .iter()
            .map(|o| {
                let (osc, o) = (self.osc(o.ost), o.clone());
                async move { osc.flush(&o, Extent::ALL, crate::osc::Why::Asked).await }
            })
            .collect();
        rt::sync::join_all(flushes).await;
        let mut result = Ok(());
        for osc in self.oscs() {
            if osc.import().is_ok_and(|i| i.state() == ptlrpc::ImportState::Full || awaited(&i)) {
                result = result.and(osc.sync().await);
            }
        }
        let mdt: Result<(), FsError> = self.mdc().ask(Op::MdtSync, &wire::mdt::SyncRequest::default()).await;
        result.and(mdt)
    }

    /// Drops everything that is cached and clean, and gives unused locks back (for tests and measurements).
    pub async fn drop_caches(self: &Rc<Self>) {
        for osc in self.oscs() {
            osc.locks.drain().await;
        }
        self.mdt_locks.drain().await;
        self.dentries.borrow_mut().clear();
    }

    /// Forgets inodes and objects that nothing refers to.
    fn prune(&self) {
        let holds = |fid: Fid| self.holds(fid, LockBits::LOOKUP) || self.holds(fid, LockBits::UPDATE);
        let dead: Vec<Fid> = {
            let inodes = self.inodes.borrow();
            let unknown = |i: &Rc<Inode>| is_idle(i) && i.lookups.get() == 0;
            inodes.values().filter(|i| unknown(i) && !holds(i.fid)).map(|i| i.fid).collect()
        };
        for fid in dead {
            if let Some(i) = self.inodes.borrow_mut().remove(&fid) {
                self.forget_names(&i);
            }
        }
        self.objects.borrow_mut().retain(|_, o| self.needs(o));
    }
    /// Whether an object stays, used or not.
    fn needs(&self, o: &Rc<Object>) -> bool {
        // A lock vouches for the size that is known here: it goes first.
        o.unwritten_pages() > 0
            || o.has_pages()
            || Rc::strong_count(o) > 1
            || o.inode.borrow().upgrade().is_some()
            || self.osc(o.ost).locks.knows(o.resource())
    }
    /// An object that nothing needs leaves.
    pub(crate) fn object_may_go(&self, id: ObjectId) {
        if self.objects.borrow().get(&id).is_some_and(|o| !self.needs(o)) {
            self.objects.borrow_mut().remove(&id);
        }
    }
    /// An OST has ended the session: nothing that was changed there through it is still to be committed.
    pub(crate) fn changes_are_over(&self, ost: OstIndex) {
        let objects = self.objects.borrow();
        objects.values().filter(|o| self.osc(o.ost).index == ost).for_each(|o| o.changed_by.set(Transno(0)));
    }
    pub(crate) fn object_count(&self) -> usize {
        self.objects.borrow().len()
    }
    /// Names that a directory did not have may be there by now.
    pub(crate) fn forget_missing(&self, dir: Fid) {
        self.dentries.borrow_mut().retain(|(parent, _), child| *parent != dir || !child.is_zero());
    }
    pub(crate) fn forget_names(&self, inode: &Inode) {
        let mut dentries = self.dentries.borrow_mut();
        for name in inode.names.borrow_mut().drain(..) {
            if dentries.get(&name) == Some(&inode.fid) {
                dentries.remove(&name);
            }
        }
    }
}

/// Writes old data out and gives old locks back.
async fn keep_house(client: Weak<Client>) {
    let mut round = 0u64;
    loop {
        let Some(me) = client.upgrade() else { return };
        if me.closing.get() {
            return;
        }
        let rt = me.rt.clone();
        let pause = me.config.dirty_age_max / 4;
        if round.is_multiple_of(4) {
            for osc in me.oscs() {
                osc.flush_old();
                osc.shrink_when_idle();
                osc.locks.tick(0);
            }
            me.mdt_locks.tick(0);
            me.chase_unnamed();
            me.prune();
            me.keep_within_limits();
            me.rest_idle_readahead();
        }
        if me.pages.pool().free() < me.pages.pool().capacity() / 16 {
            me.pages.shrink(me.pages.limit_pages() / 8);
        }
        round += 1;
        drop(me);
        rt.sleep(pause).await;
    }
}
