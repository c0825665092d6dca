//! The object storage server of a process: its OSTs on the calling shard, or on shards (threads) of their own.
//!
//! Shards share the address (`ptlrpc::Reception`), page frames, and what throttling policies tell each other; each has a
//! server, stores and a cache of its own. The calling shard accepts, asks and ends (`docs/internals/shards.md`).
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use oss::Oss;
use oss::dispatch::HeadNews;
use ptlrpc::{ClusterKey, Reception};
use roles::{OssRole, RoleError, announce, serve_oss};
use rt::real::Arrival;
use rt::{Lane, LocalFuture, Nid, Rt};
use types::FsError;

/// Starts the targets of these OSTs, which nobody can reach yet, on the calling shard.
pub type MakeOss<E> = Arc<dyn Fn(Rt, Vec<u16>) -> LocalFuture<Result<Rc<Oss>, E>> + Send + Sync>;

/// Where a server is reached, and whom it tells so.
#[derive(Clone)]
pub struct OssPlace {
    /// The address to listen at.
    pub nid: Nid,
    /// The metadata server.
    pub mds: Nid,
    /// The cluster's key.
    pub key: ClusterKey,
}

impl OssPlace {
    fn failed(&self, e: &dyn std::fmt::Display) -> RoleError {
        RoleError(format!("object storage server at {}: {e}", self.nid))
    }
}

/// What a shard is told.
enum Task {
    TakeIn(Arrival, Nid),
    News { from: usize, news: HeadNews },
    Announce(OssPlace),
    Do(Box<dyn FnOnce(&Oss) + Send>),
    End(Arc<Lane<Result<(), FsError>>>),
}

type Lanes = Arc<[Arc<Lane<Task>>]>;

/// A running object storage server.
pub struct OssNode {
    nid: Nid,
    place: Place,
    /// Servers of OSTs that came later, each at an address of its own.
    later: RefCell<Vec<Rc<OssNode>>>,
}

enum Place {
    Here(OssRole),
    Shards { shards: Rc<Shards>, reception: Rc<Reception> },
}

impl OssNode {
    /// Starts these OSTs on `shards` threads, at most one each; on the calling shard when that is less than two.
    ///
    /// # Errors
    /// What `make` says; the address is taken; a thread cannot be made. Nothing is left running then.
    pub async fn start<E: From<RoleError> + Send + 'static>(
        rt: &Rt,
        osts: &[u16],
        shards: usize,
        place: &OssPlace,
        make: MakeOss<E>,
    ) -> Result<OssNode, E> {
        OssNode::start_after(rt, osts, shards, place, make, std::future::ready(Ok(()))).await
    }

    /// The same, where nobody is told of the targets before `first` is done, which begins once they are there.
    ///
    /// # Errors
    /// As [`OssNode::start`], or what `first` says.
    pub async fn start_after<E: From<RoleError> + Send + 'static>(
        rt: &Rt,
        osts: &[u16],
        shards: usize,
        place: &OssPlace,
        make: MakeOss<E>,
        first: impl Future<Output = Result<(), E>>,
    ) -> Result<OssNode, E> {
        let count = shards.min(osts.len());
        if count < 2 {
            let oss = make(rt.clone(), osts.to_vec()).await?;
            if let Err(e) = first.await {
                // Why it does not start is worth more than how that ends.
                let _ = oss.close().await;
                return Err(e);
            }
            let role = serve_oss(rt, oss, &place.nid, &place.mds, &place.key).map_err(|e| place.failed(&e))?;
            return Ok(OssNode { nid: role.nid.clone(), place: Place::Here(role), later: RefCell::default() });
        }
        let (shards, started) = Shards::start(rt, osts, count, &make);
        let begun = async {
            let mut targets = BTreeMap::new();
            for (index, ready) in started.into_iter().enumerate() {
                let names = ready.pop().await.expect("a shard says how its start went")?;
                targets.extend(names.into_iter().map(|name| (name, index)));
            }
            first.await?;
            let lanes = shards.lanes.clone();
            let hand_over = Box::new(move |shard: usize, arrival, here| {
                lanes[shard].push(Task::TakeIn(arrival, here));
            });
            let listening = Reception::listen(rt, &place.key, &place.nid, targets, hand_over);
            listening.map_err(|e| E::from(place.failed(&e)))
        };
        match begun.await {
            Ok((reception, nid)) => {
                let place = OssPlace { nid: nid.clone(), ..place.clone() };
                for lane in shards.lanes.iter() {
                    lane.push(Task::Announce(place.clone()));
                }
                let place = Place::Shards { shards: Rc::new(shards), reception };
                Ok(OssNode { nid, place, later: RefCell::default() })
            }
            Err(e) => {
                // Why it does not start is worth more than how that ends.
                let _ = shards.end().await;
                Err(e)
            }
        }
    }

    /// Where clients reach it.
    #[must_use]
    pub fn nid(&self) -> &Nid {
        &self.nid
    }

    /// Threads that serve its OSTs; 0: the shard that started it.
    #[must_use]
    pub fn shards(&self) -> usize {
        match &self.place {
            Place::Here(_) => 0,
            Place::Shards { shards, .. } => shards.lanes.len(),
        }
    }

    /// Takes a server of further OSTs in: whoever asks, or closes, has it, too.
    pub fn grow(&self, node: OssNode) {
        self.later.borrow_mut().push(Rc::new(node));
    }

    /// Takes a target out: it answers nobody any more. A server that came later for it alone ends, and closes its store; of the others
    /// the store is let go with the process.
    ///
    /// # Errors
    /// The store's failure.
    pub async fn take_out(&self, target: &str) -> Result<(), FsError> {
        let name = target.to_string();
        let alone = |node: &Rc<OssNode>| match &node.place {
            Place::Here(role) => role.oss.osts().iter().all(|ost| ost.store().identity().target() == name),
            Place::Shards { .. } => false,
        };
        let ended = {
            let mut later = self.later.borrow_mut();
            later.iter().position(alone).map(|at| later.remove(at))
        };
        match ended {
            Some(node) => Box::pin(node.close()).await,
            None => {
                self.each(move |oss| oss.let_go(&name)).await;
                Ok(())
            }
        }
    }

    /// Asks every shard; those that end are silent. The calling shard is asked before this returns.
    pub fn each<T: Send + 'static>(&self, ask: impl Fn(&Oss) -> T + Clone + Send + 'static) -> LocalFuture<Vec<T>> {
        let later = self.later.borrow().clone();
        let mut all = vec![self.each_here(ask.clone())];
        all.extend(later.iter().map(|node| node.each(ask.clone())));
        Box::pin(async move {
            let mut answers = Vec::new();
            for of_node in all {
                answers.extend(of_node.await);
            }
            answers
        })
    }

    fn each_here<T: Send + 'static>(&self, ask: impl Fn(&Oss) -> T + Clone + Send + 'static) -> LocalFuture<Vec<T>> {
        match &self.place {
            Place::Here(role) => Box::pin(std::future::ready(vec![ask(&role.oss)])),
            Place::Shards { shards, .. } => {
                let answers: Vec<_> = shards.lanes.iter().map(|lane| ask_one(lane, ask.clone())).collect();
                Box::pin(async move {
                    let mut all = Vec::new();
                    for answer in answers {
                        all.extend(answer.pop().await);
                    }
                    all
                })
            }
        }
    }

    /// Waits until the metadata server will not have one of its targets, and says why.
    pub fn refusal(&self) -> LocalFuture<String> {
        match &self.place {
            Place::Here(role) => {
                let refusal = role.refusal.clone();
                Box::pin(async move { refusal.wait().await })
            }
            Place::Shards { shards, .. } => {
                let refusals = shards.refusals.clone();
                Box::pin(async move {
                    match refusals.pop().await {
                        Some(why) => why,
                        None => std::future::pending().await,
                    }
                })
            }
        }
    }

    /// Stops answering, commits everything and closes the stores.
    ///
    /// # Errors
    /// A store's failure; the others are closed nevertheless.
    pub async fn close(&self) -> Result<(), FsError> {
        let mut outcome = Ok(());
        for node in self.later.take() {
            outcome = outcome.and(Box::pin(node.close()).await);
        }
        outcome.and(match &self.place {
            Place::Here(role) => role.oss.close().await,
            Place::Shards { shards, reception } => {
                reception.stop();
                shards.end().await
            }
        })
    }
}

/// A question to a shard, which is answered once or not at all.
struct Answer<T>(Arc<Lane<T>>);
impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn ask_one<T: Send + 'static>(lane: &Lane<Task>, ask: impl FnOnce(&Oss) -> T + Send + 'static) -> Arc<Lane<T>> {
    let answered = Lane::new();
    let answer = Answer(answered.clone());
    lane.push(Task::Do(Box::new(move |oss| {
        answer.0.push(ask(oss));
    })));
    answered
}

/// OST i of the list is on shard i modulo their number.
fn parts(osts: &[u16], shards: usize) -> Vec<Vec<u16>> {
    (0..shards).map(|shard| osts.iter().copied().skip(shard).step_by(shards).collect()).collect()
}

/// How the start of a shard went: the names of its targets.
type Started<E> = Arc<Lane<Result<Vec<String>, E>>>;

/// The threads of a server.
struct Shards {
    rt: Rt,
    lanes: Lanes,
    refusals: Arc<Lane<String>>,
    threads: RefCell<Vec<JoinHandle<()>>>,
}

impl Shards {
    fn start<E: From<RoleError> + Send + 'static>(
        rt: &Rt,
        osts: &[u16],
        count: usize,
        make: &MakeOss<E>,
    ) -> (Shards, Vec<Started<E>>) {
        let lanes: Lanes = (0..count).map(|_| Lane::new()).collect();
        let (refusals, mut threads, mut started) = (Lane::new(), Vec::new(), Vec::new());
        for (index, osts) in parts(osts, count).into_iter().enumerate() {
            let ready: Started<E> = Lane::new();
            let shard = Shard { index, lanes: lanes.clone(), refusals: refusals.clone() };
            let (make, tell, frames) = (make.clone(), ready.clone(), rt.frames());
            let run = move || {
                let told = tell.clone();
                if let Err(e) = rt::real::run(frames, |rt| shard.run(rt, osts, make, told)) {
                    tell.push(Err(E::from(RoleError(format!("no runtime for a shard: {e}")))));
                }
            };
            match std::thread::Builder::new().name(format!("oss{index}")).spawn(move || or_abort(run)) {
                Ok(thread) => threads.push(thread),
                Err(e) => {
                    ready.push(Err(E::from(RoleError(format!("no thread for a shard: {e}")))));
                }
            }
            started.push(ready);
        }
        (Shards { rt: rt.clone(), lanes, refusals, threads: RefCell::new(threads) }, started)
    }

    /// Ends all shards, and waits for that.
    async fn end(&self) -> Result<(), FsError> {
        let mut ends = Vec::new();
        for lane in self.lanes.iter() {
            let ended: Arc<Lane<Result<(), FsError>>> = Lane::new();
            // One that did not start takes nothing, and has nothing to close.
            if !lane.push(Task::End(ended.clone())) {
                ended.push(Ok(()));
            }
            ends.push(ended);
        }
        let mut outcome = Ok(());
        for ended in ends {
            outcome = outcome.and(ended.pop().await.unwrap_or(Ok(())));
        }
        let threads = self.threads.take();
        // One that panicked has ended the process.
        self.rt.offload(move || threads.into_iter().for_each(|thread| drop(thread.join()))).await;
        outcome
    }
}

/// Others answer for a server of which a part is gone: better none of it does.
fn or_abort(run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        tracing::error!("a shard of the object storage server panicked: the process ends");
        std::process::abort();
    }
}

/// One thread's part of a server.
struct Shard {
    index: usize,
    lanes: Lanes,
    refusals: Arc<Lane<String>>,
}

impl Shard {
    async fn run<E: Send>(self, rt: Rt, osts: Vec<u16>, make: MakeOss<E>, started: Started<E>) {
        let lane = self.lanes[self.index].clone();
        match make(rt.clone(), osts).await {
            Ok(oss) => {
                self.link(&oss);
                started.push(Ok(oss.osts().iter().map(|ost| ost.store().identity().target()).collect()));
                self.serve(&rt, &oss, &lane).await;
            }
            Err(e) => {
                started.push(Err(e));
            }
        }
        self.refuse(&lane);
    }

    /// What throttling policies take is told to the other shards.
    fn link(&self, oss: &Oss) {
        let (lanes, from) = (self.lanes.clone(), self.index);
        let others = lanes.len() as u32 - 1;
        oss.go_behind(from as u32);
        oss.link(
            others,
            Box::new(move |news| {
                for (_, lane) in lanes.iter().enumerate().filter(|(at, _)| *at != from) {
                    lane.push(Task::News { from, news });
                }
            }),
        );
    }

    async fn serve(&self, rt: &Rt, oss: &Rc<Oss>, lane: &Lane<Task>) {
        while let Some(task) = lane.pop().await {
            match task {
                Task::TakeIn(arrival, here) => oss.server().take_in(arrival, here),
                Task::News { from, news } => {
                    if let Some(news) = oss.on_head_news(news) {
                        self.lanes[from].push(Task::News { from: self.index, news });
                    }
                }
                Task::Announce(OssPlace { nid, mds, key }) => {
                    let (refusal, refusals) = (announce(rt, oss, &mds, &key, &nid), self.refusals.clone());
                    rt.spawn(async move {
                        refusals.push(refusal.wait().await);
                    });
                }
                Task::Do(ask) => ask(oss),
                Task::End(ended) => {
                    ended.push(oss.close().await);
                    return;
                }
            }
        }
    }

    /// From now on nothing is taken; who waits for an end has it.
    fn refuse(&self, lane: &Lane<Task>) {
        lane.close();
        while let Some(task) = lane.try_pop() {
            if let Task::End(ended) = task {
                ended.push(Ok(()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ost_is_on_one_shard_and_no_shard_is_without() {
        for (osts, shards) in [(4, 2), (5, 3), (2, 2)] {
            let all: Vec<u16> = (10..10 + osts).collect();
            let parts = parts(&all, shards);
            assert!(parts.iter().all(|part| !part.is_empty()));
            let mut found = parts.concat();
            found.sort_unstable();
            assert_eq!(found, all);
        }
    }
}
