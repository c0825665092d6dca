//! The client node: composes the drivers of one client, and begins and ends it.
use std::cell::RefCell;
use std::rc::{Rc, Weak};

use rt::Rt;
use types::{Duration, FsError, OstIndex};
use wire::Op;
use wire::ost::StatfsReply;

use crate::ClientConfig;
use crate::attrs::Clock;
use crate::data::Data;
use crate::flock::Flocks;
use crate::in_use::InUse;
use crate::inode::{Common, SizeKeeper};
use crate::jobs::Jobs;
use crate::kernel::Kernel;
use crate::limits::Limits;
use crate::locks::Locks;
use crate::losses::Losses;
use crate::meta::Meta;
use crate::offsets::Offsets;
use crate::osc::Osts;
use crate::pages::PageCache;
use crate::readahead::Readahead;
use crate::sessions::{JoinError, Sessions};
use crate::settled::Settling;
use crate::unsettled::Unsettled;

/// A client of one cluster, on one shard.
pub struct Client {
    pub(crate) sessions: Rc<Sessions>,
    pub(crate) osts: Rc<Osts>,
    pub(crate) common: Rc<Common>,
    pub(crate) losses: Rc<Losses>,
    pub(crate) settling: Rc<Settling>,
    pub(crate) meta: Rc<Meta>,
    pub(crate) data: Rc<Data>,
    offsets: Offsets,
}

/// A client on its way into a cluster. If it does not get there its sessions end.
struct Joining(Option<Rc<Sessions>>);
impl Drop for Joining {
    fn drop(&mut self) {
        if let Some(sessions) = &self.0 {
            sessions.abandon();
        }
    }
}

/// Whether a target has answered changes of this client that it did not commit.
fn holds(import: &Rc<ptlrpc::Import>) -> bool {
    import.last_committed() < import.last_transno()
}

/// Whether a target has answered something that may not be on its stable storage.
fn owes(import: &ptlrpc::Import) -> bool {
    import.on_fsync() == datapath::Fsync::Ask
}

/// The same of one that answers, as far as is known.
fn is_reached_and_owes(import: &ptlrpc::Import) -> bool {
    import.state() == ptlrpc::ImportState::Full && owes(import)
}

/// Between two looks of a client that leaves whether it needs the metadata server for that.
const AWAY_LOOK: Duration = Duration::from_millis(50);

impl Client {
    /// Joins the cluster whose metadata server `config` names.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// A sentence: no answer within `patience`, another cluster key, an unknown policy name.
    pub async fn join(rt: Rt, config: ClientConfig, patience: Duration) -> Result<Rc<Client>, JoinError> {
        let pages = PageCache::new(rt.frames(), config.cache_bytes, &config.cache_policy, &config.cache_keys);
        let pages = pages.map_err(JoinError)?;
        let ahead = Readahead::new(&config.readahead_policy, config.readahead.clone(), config.cache_bytes);
        let ahead = ahead.map_err(JoinError)?;
        let jobs = Jobs::new(rt.clone(), config.jobs.clone());
        let sessions = Sessions::new(rt.clone(), config.client, config.key.clone(), config.mds.clone(), jobs);
        sessions.alone().set_max(config.changes_alone_max);
        let mut joining = Joining(Some(sessions.clone()));
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
        let settling = Settling::new(sessions.clone(), osts.clone(), config.dirty_age_max);
        let target = String::from_utf8_lossy(&map.mdt_target).into_owned();
        let below = (sessions.clone(), osts.clone());
        let meta = Meta::new(&target, below.clone(), common.clone(), losses.clone(), settling.clone());
        let data = Data::new(below, meta.clone(), common.clone(), pages, config.noatime);
        let offsets = Offsets::default();
        let client = Rc::new(Client { sessions, osts, common, losses, settling, meta, data, offsets });
        let keeper: Weak<dyn SizeKeeper> = Rc::downgrade(&(client.clone() as Rc<dyn SizeKeeper>));
        *client.common.keeper.borrow_mut() = Some(keeper);
        client.sessions.mdt_ready(patience).await?;
        client.osts.take_map(map);
        // Of OSTs that joined before this session was there nobody tells it.
        if let Some(Err(e)) = rt.timeout(patience, client.osts.refresh_map()).await {
            tracing::debug!("cluster map: {e}");
        }
        rt.spawn(keep_house(Rc::downgrade(&client), rt.clone(), config.dirty_age_max / 4));
        client.settling.keep();
        joining.0 = None;
        Ok(client)
    }

    /// The world.
    #[must_use]
    pub fn rt(&self) -> &Rt {
        self.sessions.rt()
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
    /// Names, attributes and open files at the metadata server.
    #[must_use]
    pub fn meta(&self) -> &Rc<Meta> {
        &self.meta
    }
    /// The bytes of files.
    #[must_use]
    pub fn data(&self) -> &Rc<Data> {
        &self.data
    }
    /// The kernel in front.
    #[must_use]
    pub fn kernel(&self) -> &Rc<Kernel> {
        &self.common.kernel
    }
    /// Locks of programs: fcntl and flock.
    #[must_use]
    pub fn flocks(&self) -> &Rc<Flocks> {
        self.meta.flocks()
    }
    /// Files that lost unwritten data when this client was evicted, and changes that came to nothing.
    #[must_use]
    pub fn losses(&self) -> &Losses {
        &self.losses
    }
    /// Where processes read and write, once that is asked for.
    #[must_use]
    pub fn offsets(&self) -> &Offsets {
        &self.offsets
    }
    /// Space of every target: (OST index, or `None` for the metadata target; its answer). One that does not answer `within` a time is not
    /// waited for longer; `lazy`: a metadata server that is away is not waited for at all.
    ///
    /// Cancel: nothing happened.
    pub async fn statfs_each(
        &self,
        lazy: bool,
        within: Option<Duration>,
    ) -> Vec<(Option<OstIndex>, Result<StatfsReply, FsError>)> {
        let mdc = self.sessions.mdc();
        let of_mdt = if lazy && mdc.state() != ptlrpc::ImportState::Full {
            Err(FsError::NotConnected)
        } else {
            self.sessions.in_time(within, mdc.ask(Op::MdtStatfs, &())).await
        };
        let osts = self.osts.statfs(within).await.into_iter().map(|(ost, answer)| (Some(ost), answer));
        std::iter::once((None, of_mdt)).chain(osts).collect()
    }
    /// Space of the file system: the OSTs' bytes, the metadata target's inodes.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// The metadata target does not answer.
    pub async fn statfs(&self) -> Result<StatfsReply, FsError> {
        let mut sum = StatfsReply::default();
        for (ost, answer) in self.statfs_each(false, None).await {
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
    ///
    /// Cancel: a part may be done.
    pub async fn leave(self: &Rc<Self>) -> bool {
        self.sessions.close();
        let _ = self.osts.sync(is_reached_and_owes).await;
        let told = async {
            let mdc = self.sessions.mdc();
            if owes(&mdc) || mdc.in_flight() > 0 {
                let _ = self.sync_mdt().await;
            }
            for file in self.meta.opens() {
                let _ = self.release(&file).await;
            }
            self.meta.all_closes_told().await;
        };
        let _ = rt::sync::race(told, self.needs_no_mdt()).await;
        let unwritten = !self.osts.unwritten_objects().is_empty();
        let takes_along = unwritten || self.osts.imports().iter().any(holds) || !self.data.all_cuts_are_over();
        // All at the same time: each may be silent.
        let goodbyes = self.osts.imports().into_iter().map(|i| async move { self.goodbye(&i).await });
        let heard = rt::sync::join_all(goodbyes.collect::<Vec<_>>()).await.into_iter().all(|heard| heard);
        if takes_along {
            // Sizes that it told rest on that: it goes like one that dies, and the metadata server doubts them.
            self.sessions.mdc().abandon();
            return false;
        }
        self.goodbye(&self.sessions.mdc()).await && heard
    }
    /// Ends a session. Whether its target heard that: one that turns out to be away is not waited for.
    async fn goodbye(&self, import: &ptlrpc::Import) -> bool {
        let lost = async {
            while import.state() == ptlrpc::ImportState::Full {
                self.sessions.rt().sleep(AWAY_LOOK).await;
            }
        };
        match rt::sync::race(import.close(), lost).await {
            Ok(heard) => heard,
            Err(()) => {
                import.abandon();
                false
            }
        }
    }
    /// Completes when the metadata server is away, and nothing would be lost if it heard no more of this client: of opens for reading, too,
    /// the end of a session is the end.
    async fn needs_no_mdt(&self) {
        let mdc = self.sessions.mdc();
        let needs = || {
            let changed = || self.meta.opens().iter().any(|file| file.dirty.get());
            owes(&mdc) || self.sessions.alone().count() > 0 || changed()
        };
        while mdc.state() == ptlrpc::ImportState::Full || needs() {
            self.sessions.rt().sleep(AWAY_LOOK).await;
        }
    }
    /// What servers do not have on stable storage yet of what programs were told is done.
    #[must_use]
    pub fn unsettled(&self) -> Unsettled {
        let objects = self.osts.unwritten_objects();
        let pages: usize = objects.iter().map(|o| o.unwritten_pages()).sum();
        let imports = || self.osts.imports().into_iter().chain([self.sessions.mdc()]);
        Unsettled {
            bytes: (pages * types::PAGE_BYTES) as u64,
            objects: objects.len(),
            requests: imports().map(|i| i.in_flight()).sum(),
            uncommitted: imports().filter(holds).map(|i| i.target().to_string()).collect(),
        }
    }
    /// What operations have in hand now. While none is under way, and nothing is left to be written out, that is opens and what
    /// goes with them.
    #[must_use]
    pub fn in_use(&self) -> InUse {
        let mut out = InUse::default();
        self.meta.note_use(&mut out);
        self.osts.note_use(&mut out);
        self.data.note_use(&mut out);
        self.settling.note_use(&mut out);
        out
    }
    /// What of that are requests and locks: no file and no object is looked at for it.
    #[must_use]
    pub fn requests_in_use(&self) -> InUse {
        let mut out = InUse::default();
        self.meta.note_requests(&mut out);
        self.osts.note_requests(&mut out);
        out
    }
    /// Stops without a word, as a crash would.
    pub fn abandon(&self) {
        self.sessions.abandon();
    }

    /// All dirty data of all files on stable storage, and all metadata. An OST that is away and has something of this
    /// client to commit is waited for.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// The first failure; every target is tried.
    pub async fn sync_all(self: &Rc<Self>) -> Result<(), FsError> {
        let asked = |i: &ptlrpc::Import| i.state() == ptlrpc::ImportState::Full || owes(i);
        let data = self.osts.sync(asked).await;
        data.and(self.sync_mdt().await)
    }
    /// As [`Client::sync_all`], without OSTs that are away, and without targets that have nothing of this client to commit or to answer,
    /// which may be away without anybody knowing yet: for a client that leaves whatever they have.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// As [`Client::sync_all`].
    pub async fn sync_reachable(self: &Rc<Self>) -> Result<(), FsError> {
        let data = self.osts.sync(is_reached_and_owes).await;
        let mdc = self.sessions.mdc();
        if owes(&mdc) || mdc.in_flight() > 0 { data.and(self.sync_mdt().await) } else { data }
    }
    async fn sync_mdt(&self) -> Result<(), FsError> {
        self.sessions.mdc().ask(Op::MdtSync, &wire::mdt::SyncRequest::default()).await
    }

    /// Drops everything that is cached and clean, and gives unused locks back (for tests and measurements).
    ///
    /// Cancel: a part may be done.
    pub async fn drop_caches(self: &Rc<Self>) {
        for osc in self.osts.all() {
            osc.locks.drain().await;
        }
        self.meta.drop_caches().await;
    }
}

/// Writes old data out and gives old locks back.
async fn keep_house(client: Weak<Client>, rt: Rt, pause: Duration) {
    let mut round = 0u64;
    while let Some(me) = client.upgrade().filter(|c| !c.sessions.is_closing()) {
        if round.is_multiple_of(4) {
            me.osts.keep_house();
            me.meta.keep_house();
            me.data.rest_idle_readahead();
        }
        me.data.keep_frames_free();
        round += 1;
        drop(me);
        rt.sleep(pause).await;
    }
}
