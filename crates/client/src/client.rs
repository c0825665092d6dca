//! The client node: composes the drivers of one client, and begins and ends it.
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use hashbrown::HashMap;
use ptlrpc::Callbacks;
use rt::Rt;
use rustc_hash::FxBuildHasher;
use types::{ClientId, Duration, Fid, FsError, OstIndex};
use wire::Op;
use wire::mdt::LockBits;
use wire::ost::StatfsReply;

use crate::ClientConfig;
use crate::attrs::Clock;
use crate::closes::Closes;
use crate::flock::Flocks;
use crate::inode::{Common, Inode, SizeKeeper};
use crate::jobs::Jobs;
use crate::kernel::Kernel;
use crate::limits::Limits;
use crate::locks::{LockOwner, Locks};
use crate::losses::Losses;
use crate::offsets::Offsets;
use crate::open::OpenFile;
use crate::osc::Osts;
use crate::pages::PageCache;
use crate::readahead::Readahead;
use crate::sessions::{JoinError, Sessions};
use crate::settled::{Settling, keep_settled};
use crate::stats::CallStats;

type Table<K, V> = RefCell<HashMap<K, V, FxBuildHasher>>;

/// A client of one cluster, on one shard.
pub struct Client {
    pub(crate) me: Weak<Client>,
    pub(crate) rt: Rt,
    pub(crate) config: ClientConfig,
    pub(crate) sessions: Rc<Sessions>,
    pub(crate) osts: Rc<Osts>,
    pub(crate) common: Rc<Common>,
    pub(crate) pages: Rc<PageCache>,
    pub(crate) ahead: Rc<Readahead>,
    pub(crate) losses: Rc<Losses>,
    pub(crate) flocks: Rc<Flocks>,
    pub(crate) calls: CallStats,
    pub(crate) offsets: Offsets,
    pub(crate) inodes: Table<Fid, Rc<Inode>>,
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
    pub(crate) cut_numbers: crate::cuts::CutNumbers,
}

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
        let ahead = Readahead::new(&config.readahead_policy, config.readahead.clone(), config.cache_bytes);
        let ahead = ahead.map_err(JoinError)?;
        let jobs = Jobs::new(rt.clone(), config.jobs.clone());
        let sessions = Sessions::new(rt.clone(), config.client, config.key.clone(), config.mds.clone(), jobs);
        let map = sessions.scout(patience).await?;
        let losses = Rc::new(Losses::default());
        let osts = Osts::new(sessions.clone(), pages.clone(), losses.clone(), config.clone());
        let lru = ldlm::LockCacheConfig { lru_max: config.locks_max, ..Default::default() };
        let common = Rc::new(Common {
            kernel: Kernel::new(rt.clone()),
            locks: Locks::new(rt.clone(), lru),
            clock: Clock::default(),
            limits: Limits::new(config.inodes_max),
            ahead: ahead.clone(),
            rpc_bytes: config.rpc_pages_max as u64 * types::PAGE_BYTES as u64,
            keeper: RefCell::new(None),
        });
        let client = Rc::new_cyclic(|me| Client {
            me: me.clone(),
            flocks: Flocks::new(sessions.clone()),
            calls: CallStats::new(rt.wall()),
            offsets: Offsets::default(),
            inodes: RefCell::default(),
            dentries: RefCell::default(),
            opens: RefCell::default(),
            closes: Closes::default(),
            settling: Settling::default(),
            untold_opens: Cell::new(0),
            unnamed: RefCell::default(),
            given_up: RefCell::default(),
            listed: RefCell::default(),
            cut_numbers: crate::cuts::CutNumbers::default(),
            rt,
            config,
            sessions,
            osts,
            common,
            pages,
            ahead,
            losses,
        });
        let callbacks: Weak<dyn Callbacks> = client.me.clone();
        let target = String::from_utf8_lossy(&map.mdt_target).into_owned();
        let mdc = client.sessions.join_mdt(&target, callbacks);
        let owner: Weak<dyn LockOwner> = client.me.clone();
        client.common.locks.attach(mdc, owner);
        let keeper: Weak<dyn SizeKeeper> = client.me.clone();
        *client.common.keeper.borrow_mut() = Some(keeper);
        client.sessions.mdt_ready(patience).await?;
        client.osts.take_map(map);
        let settling = keep_settled(client.me.clone());
        let house = keep_house(client.me.clone());
        client.rt.spawn(house);
        client.rt.spawn(settling);
        Ok(client)
    }

    /// The world.
    #[must_use]
    pub fn rt(&self) -> &Rt {
        &self.rt
    }
    /// Sessions with servers: who this client is, and whom it speaks to.
    #[must_use]
    pub fn sessions(&self) -> &Rc<Sessions> {
        &self.sessions
    }
    /// The cluster map and the OSTs.
    #[must_use]
    pub fn osts(&self) -> &Rc<Osts> {
        &self.osts
    }
    /// The kernel in front.
    #[must_use]
    pub fn kernel(&self) -> &Rc<Kernel> {
        &self.common.kernel
    }
    /// Locks of programs: fcntl and flock.
    #[must_use]
    pub fn flocks(&self) -> &Rc<Flocks> {
        &self.flocks
    }
    /// The page cache.
    #[must_use]
    pub fn pages(&self) -> &Rc<PageCache> {
        &self.pages
    }
    /// Readahead.
    #[must_use]
    pub fn readahead(&self) -> &Rc<Readahead> {
        &self.ahead
    }
    /// Files that lost unwritten data when this client was evicted, and changes that came to nothing.
    #[must_use]
    pub fn losses(&self) -> &Losses {
        &self.losses
    }
    /// Reads and writes so far.
    #[must_use]
    pub fn calls(&self) -> &CallStats {
        &self.calls
    }
    /// Where processes read and write, once that is asked for.
    #[must_use]
    pub fn offsets(&self) -> &Offsets {
        &self.offsets
    }
    /// Changes the page cache's size, and with it how much may be read ahead.
    pub fn set_cache_bytes(&self, bytes: u64) {
        self.pages.set_limit(bytes);
        self.ahead.fit(self.pages.limit_bytes());
    }

    pub(crate) fn inode(self: &Rc<Self>, fid: Fid) -> Rc<Inode> {
        let known = self.known_inode(fid);
        let inode = known.unwrap_or_else(|| {
            let inode = Inode::new(fid, &self.common);
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
    /// The inode of an id that the cluster gave.
    #[must_use]
    pub fn inode_of(self: &Rc<Self>, fid: Fid) -> Rc<Inode> {
        self.inode(fid)
    }
    /// All metadata of an inode on stable storage.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn sync_meta(&self, fid: Fid) -> Result<(), FsError> {
        self.sessions.mdc().ask(Op::MdtSync, &wire::mdt::SyncRequest { fid }).await
    }
    /// Space of every target: (OST index, or `None` for the metadata target; its answer). `lazy`: a metadata server that
    /// is away is not waited for, either.
    pub async fn statfs_each(&self, lazy: bool) -> Vec<(Option<OstIndex>, Result<StatfsReply, FsError>)> {
        let mdc = self.sessions.mdc();
        let of_mdt = match mdc.state() {
            ptlrpc::ImportState::Full => mdc.ask(Op::MdtStatfs, &()).await,
            _ if lazy => Err(FsError::NotConnected),
            _ => mdc.ask(Op::MdtStatfs, &()).await,
        };
        let mut out = vec![(None, of_mdt)];
        out.extend(self.osts.statfs().await.into_iter().map(|(ost, answer)| (Some(ost), answer)));
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

    /// Writes everything out and leaves the cluster. Whether every server has heard of it: what has not keeps this client's
    /// session for a while.
    pub async fn leave(self: &Rc<Self>) -> bool {
        self.sessions.close();
        let _ = self.sync_reachable().await;
        let opens: Vec<_> = self.opens.borrow().values().cloned().collect();
        for file in opens {
            let _ = self.release(&file).await;
        }
        self.all_closes_told().await;
        let unwritten = !self.osts.unwritten_objects().is_empty();
        let holds = |i: &Rc<ptlrpc::Import>| i.last_committed() < i.last_transno();
        let takes_along = unwritten || self.osts.imports().iter().any(holds) || !self.all_cuts_are_over();
        let mut heard = true;
        for import in self.osts.imports() {
            heard &= import.close().await;
        }
        if takes_along {
            // Sizes that it told rest on that: it goes like one that dies, and the metadata server doubts them.
            self.sessions.mdc().abandon();
            return false;
        }
        self.sessions.mdc().close().await && heard
    }
    /// Stops without a word, as a crash would.
    pub fn abandon(&self) {
        self.sessions.close();
        self.osts.imports().iter().for_each(|import| import.abandon());
        self.sessions.mdc().abandon();
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
    /// Syncs the OSTs that can be reached, and those that `awaited` says of.
    async fn sync_targets(&self, awaited: impl Fn(&ptlrpc::Import) -> bool) -> Result<(), FsError> {
        let data = self.osts.sync(awaited).await;
        let mdt: Result<(), FsError> = self.sessions.mdc().ask(Op::MdtSync, &wire::mdt::SyncRequest::default()).await;
        data.and(mdt)
    }

    /// Drops everything that is cached and clean, and gives unused locks back (for tests and measurements).
    pub async fn drop_caches(self: &Rc<Self>) {
        for osc in self.osts.all() {
            osc.locks.drain().await;
        }
        self.common.locks.drain().await;
        self.dentries.borrow_mut().clear();
    }

    /// Forgets inodes and objects that nothing refers to.
    fn prune(&self) {
        let holds = |fid: Fid| self.common.holds(fid, LockBits::LOOKUP) || self.common.holds(fid, LockBits::UPDATE);
        let dead: Vec<Fid> = {
            let inodes = self.inodes.borrow();
            let unknown = |i: &Rc<Inode>| self.is_idle(i) && !i.front.is_remembered();
            inodes.values().filter(|i| unknown(i) && !holds(i.fid)).map(|i| i.fid).collect()
        };
        for fid in dead {
            if let Some(i) = self.inodes.borrow_mut().remove(&fid) {
                self.forget_names(&i);
            }
        }
        self.osts.prune();
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
        if me.sessions.is_closing() {
            return;
        }
        let rt = me.rt.clone();
        let pause = me.config.dirty_age_max / 4;
        if round.is_multiple_of(4) {
            me.osts.keep_house();
            me.common.locks.tick(0);
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
