//! One object storage server: several targets in one process behind one listener.
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use ptlrpc::Server;
use rt::Rt;
use types::FsError;

use crate::config::OstConfig;
use crate::dispatch::{HeadNews, Heads, TellShards};
use crate::ost::Ost;
use crate::page_cache::SharedCache;
use crate::store::ObjectStore;

/// The targets of one process. They share a page cache, and the buckets of throttling policies.
pub struct Oss {
    rt: Rt,
    server: Rc<Server>,
    cache: SharedCache,
    heads: Heads,
    osts: RefCell<Vec<Rc<Ost>>>,
    /// Targets that were taken out and are not back.
    away: RefCell<BTreeSet<String>>,
    /// Targets whose stores somebody opens again when they fail.
    kept: RefCell<BTreeSet<String>>,
    /// Targets that the cluster does not let in.
    turned_out: RefCell<BTreeSet<String>>,
    /// Tells the cluster of a target.
    announcer: RefCell<Option<Announcer>>,
}

/// Tells the cluster of a target, in the background.
pub type Announcer = Rc<dyn Fn(&Rc<Ost>)>;

impl Oss {
    /// A server without targets. `config` sizes the page cache.
    ///
    /// # Errors
    /// A sentence when the cache policy does not exist.
    pub fn new(rt: Rt, server: Rc<Server>, config: &OstConfig) -> Result<Oss, String> {
        let cache = crate::page_cache::shared(&rt, &config.cache_policy, config.cache_bytes, &config.cache_keys)?;
        let (heads, osts) = (Heads::default(), RefCell::default());
        let (away, kept, turned_out, announcer) = Default::default();
        Ok(Oss { rt, server, cache, heads, osts, away, kept, turned_out, announcer })
    }

    /// Starts a target over an open store: it answers from now on. Clients that miss a lock callback are evicted
    /// through the server.
    ///
    /// # Errors
    /// As [`Ost::new`].
    pub fn add(&self, store: Rc<dyn ObjectStore>, config: OstConfig) -> Result<Rc<Ost>, String> {
        self.add_in(&self.rt, store, config)
    }

    /// The same with tasks in the group behind `rt`, in which the store was opened.
    ///
    /// # Errors
    /// As [`Ost::new`].
    pub fn add_in(&self, rt: &Rt, store: Rc<dyn ObjectStore>, config: OstConfig) -> Result<Rc<Ost>, String> {
        let (server, target) = (Rc::downgrade(&self.server), store.identity().target());
        let evict: crate::config::EvictFn = Rc::new(move |client| {
            let (server, target) = (server.clone(), target.clone());
            Box::pin(async move {
                if let Some(server) = server.upgrade() {
                    server.evict(&target, client).await;
                }
            })
        });
        let config = OstConfig { evict: Some(evict), ..config };
        let ost = Ost::new(rt.clone(), store, config, Some(self.cache.clone()))?;
        self.heads.add(&ost.dispatch);
        self.server.add_in(rt, ost.clone());
        self.away.borrow_mut().remove(&ost.identity.target());
        self.osts.borrow_mut().push(ost.clone());
        let announcer = self.announcer.borrow().clone();
        if let Some(announce) = announcer {
            announce(&ost);
        }
        Ok(ost)
    }

    /// Tells the cluster of every target by `announcer`: of those that are here, and of each that comes.
    pub fn announce_by(&self, announcer: Announcer) {
        self.osts().iter().for_each(|ost| announcer(ost));
        *self.announcer.borrow_mut() = Some(announcer);
    }

    /// Takes a target out: it answers nobody any more, and nothing here knows it or its store. Its tasks are those of its group, which
    /// its owner ends; the other targets go on.
    pub fn take_out(&self, target: &str) {
        self.server.take_out(target);
        let is_it = |ost: &Rc<Ost>| ost.identity.target() == target;
        let index = self.osts.borrow().iter().find(|ost| is_it(ost)).map(|ost| ost.identity.ost.0);
        self.osts.borrow_mut().retain(|ost| !is_it(ost));
        if let Some(index) = index {
            self.cache.borrow_mut().drop_ost(index);
            self.away.borrow_mut().insert(target.to_string());
        }
    }
    /// Whoever asks opens the store of a target again when that has failed, as long as [`Oss::is_kept`].
    pub fn keep(&self, target: &str) {
        self.kept.borrow_mut().insert(target.to_string());
    }
    /// Whether a target's store is opened again when it has failed.
    #[must_use]
    pub fn is_kept(&self, target: &str) -> bool {
        self.kept.borrow().contains(target)
    }
    /// Takes a target out for good: nobody opens its store again here.
    pub fn let_go(&self, target: &str) {
        self.kept.borrow_mut().remove(target);
        self.take_out(target);
    }
    /// The same for a target that the cluster does not let in.
    pub fn turn_out(&self, target: &str) {
        self.let_go(target);
        self.turned_out.borrow_mut().insert(target.to_string());
    }
    /// Targets that the cluster did not let in since this was asked last.
    #[must_use]
    pub fn take_turned_out(&self) -> Vec<String> {
        self.turned_out.take().into_iter().collect()
    }
    /// Targets that were taken out and are not back, by name.
    #[must_use]
    pub fn away(&self) -> Vec<String> {
        self.away.borrow().iter().cloned().collect()
    }

    /// The targets, in the order they were added.
    #[must_use]
    pub fn osts(&self) -> Vec<Rc<Ost>> {
        self.osts.borrow().clone()
    }

    /// So many other shards of the process have targets of the same server: throttling policies share their buckets. `tell`
    /// reaches all of them; each gives it to [`Oss::on_head_news`], and sends the answer back.
    ///
    /// # Panics
    /// When that was said before.
    pub fn link(&self, shards: u32, tell: TellShards) {
        self.heads.link(shards, tell);
    }
    /// So many other shards take first from a bucket for which several wait.
    pub fn go_behind(&self, shards: u32) {
        self.heads.go_behind(shards);
    }
    /// What another shard told; the answer is for that shard.
    pub fn on_head_news(&self, news: HeadNews) -> Option<HeadNews> {
        self.heads.on_news(self.rt.now(), news)
    }

    /// Its listener and sessions.
    #[must_use]
    pub fn server(&self) -> &Rc<Server> {
        &self.server
    }

    /// Stops answering, commits everything and closes the stores.
    ///
    /// # Errors
    /// The first store's failure; the others are closed nevertheless.
    pub async fn close(&self) -> Result<(), FsError> {
        self.server.stop();
        let mut outcome = Ok(());
        for ost in self.osts() {
            outcome = outcome.and(ost.close().await);
        }
        outcome
    }
}
