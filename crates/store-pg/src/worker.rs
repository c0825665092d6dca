//! The thread that speaks with the database: two connections, one to read by and one to change by, which are made anew when they end.
//!
//! A commit is a transaction that raises the store's number of commits from the one that the engine knows. So whether a transaction
//! whose connection ended was carried out is never guessed: it is tried again, and either raises the number now or finds it raised. In
//! the same way a server whose epoch is not the store's any more changes nothing.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mds::kv::{KvBatch, KvError};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::choose::{connect, in_time, is_silent};
use crate::link::{Link, Records, Seen, StoreRow, Trouble, Writes, create};
use crate::memory::State;
use crate::place::Place;

/// How long a server has the store to itself after it was last heard of, by the database's clock: 3 s.
pub const LEASE: Duration = Duration::from_secs(3);
/// So much of it counts for the server: the database's clock may be faster than its own, by as much as clocks are that are looked after
/// (Linux slews by at most 0.05 %, and quartz is off by 0.01 %), many times over.
const LEASE_COUNTED: Duration = Duration::from_millis(2700);
/// After so long without a commit the lease is lengthened.
const BEAT: Duration = Duration::from_secs(1);
/// Pauses between tries of what somebody else's transaction was in the way of, and of a connection.
const AGAIN_FIRST: Duration = Duration::from_millis(2);
const AGAIN_MAX: Duration = Duration::from_millis(250);
/// A server that owes an answer for so long is asked whether it answers at all.
const OWED_MAX: Duration = Duration::from_secs(5);
/// How long the end of a lease may take when the store is closed.
const RELEASE_MAX: Duration = Duration::from_secs(1);

/// Where an answer goes.
pub(crate) type To<T> = oneshot::Sender<T>;

/// What the shard asks for.
pub(crate) enum Command {
    /// Makes the tables, for a store of this name and identity.
    Create(String, (u64, u64), To<Result<(), Trouble>>),
    /// The row of the store.
    Look(To<Result<StoreRow, Trouble>>),
    /// Takes the epoch behind the one that was seen; the last commit, or nothing if somebody else was faster.
    Take(Claim, To<Result<Option<i64>, Trouble>>),
    /// A key.
    Get(Vec<u8>, To<Result<Seen<Option<Vec<u8>>>, KvError>>),
    /// At most so many keys from the first to before the second.
    Range(Vec<u8>, Vec<u8>, i64, To<Result<Seen<Records>, KvError>>),
    /// A batch as the commit behind this one; what the given keys had before.
    Commit(i64, Arc<KvBatch>, Vec<Vec<u8>>, To<Result<Records, KvError>>),
    /// Ends the lease and the thread.
    Close,
}

/// Whom the store is to be taken for.
pub(crate) struct Claim {
    /// As they were seen.
    pub epoch: i64,
    pub commit: i64,
    pub uuid: u64,
    pub holder: String,
    pub process: String,
    /// The holder is certainly gone: its lease does not count.
    pub in_any_case: bool,
}

/// What both sides look at.
pub(crate) struct Shared {
    begun: Instant,
    /// Until when nobody else can have taken the store, ns since `begun`.
    good_until: AtomicU64,
    /// The epoch that was taken, 0: none.
    epoch: AtomicI64,
    /// The last commit that was acknowledged.
    commit: AtomicI64,
    failure: OnceLock<KvError>,
}

impl Shared {
    pub fn new() -> Shared {
        Shared {
            begun: Instant::now(),
            good_until: AtomicU64::new(0),
            epoch: AtomicI64::new(0),
            commit: AtomicI64::new(0),
            failure: OnceLock::new(),
        }
    }
    /// Whether what is known of the store in memory is so.
    pub fn is_good(&self) -> bool {
        (self.begun.elapsed().as_nanos() as u64) < self.good_until.load(SeqCst) && self.failure.get().is_none()
    }
    /// The lease was lengthened by what was sent at `sent`.
    fn renewed(&self, sent: Instant) {
        let until = sent.duration_since(self.begun) + LEASE_COUNTED;
        self.good_until.store(until.as_nanos() as u64, SeqCst);
    }
    pub fn failure(&self) -> Option<KvError> {
        self.failure.get().cloned()
    }
    /// What a commit is answered once nothing goes any more.
    pub fn refusal(&self) -> Option<KvError> {
        self.failure().map(|e| if matches!(e, KvError::Fenced(_)) { e } else { KvError::Latched(e.to_string()) })
    }
    /// Nothing goes any more; the first reason stays.
    pub fn fail(&self, why: KvError) {
        if self.failure.set(why.clone()).is_ok() {
            tracing::error!("{why}");
        }
    }
    fn fenced(&self, epoch: i64) -> KvError {
        let own = self.epoch.load(SeqCst);
        let why =
            format!("another server has taken the metadata store over (its epoch is {epoch}, this server's is {own})");
        self.fail(KvError::Fenced(why.clone()));
        KvError::Fenced(why)
    }
    /// Judges what was seen of the store: it is this server's, and has all commits.
    fn judge<T>(&self, seen: Seen<T>, commits: i64) -> Result<Seen<T>, KvError> {
        let own = self.epoch.load(SeqCst);
        if seen.epoch > own {
            return Err(self.fenced(seen.epoch));
        }
        if seen.epoch < own || seen.commit < commits {
            let why = format!(
                "the database has gone back from commit {commits} to {} (epoch {} after {own}): changes that it had acknowledged are lost (a replica that was behind, or a primary of before?)",
                seen.commit, seen.epoch
            );
            self.fail(KvError::Io(why.clone()));
            return Err(KvError::Io(why));
        }
        Ok(seen)
    }
}

/// A connection's place: it is made when it is needed.
#[derive(Default)]
struct Slot(tokio::sync::Mutex<Option<Rc<Link>>>);

/// See the module's head.
pub(crate) struct Worker {
    place: Place,
    shared: Arc<Shared>,
    reading: Slot,
    writing: Slot,
    /// Since when the database does not answer.
    silent: Cell<Option<Instant>>,
    /// What was taken, as it was then.
    taken: RefCell<Option<State>>,
}

/// Pauses that grow.
struct Pauses(Duration);
impl Pauses {
    fn new() -> Pauses {
        Pauses(AGAIN_FIRST)
    }
    async fn pause(&mut self) {
        sleep(self.0).await;
        self.0 = (self.0 * 2).min(AGAIN_MAX);
    }
}

/// Runs a worker on the calling thread until it is told to close, or nobody can tell it any more.
pub(crate) fn run(place: Place, shared: Arc<Shared>, mut commands: mpsc::UnboundedReceiver<Command>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => return shared.fail(KvError::Io(format!("no thread for the metadata store's database: {e}"))),
    };
    let (reading, writing, silent) = (Slot::default(), Slot::default(), Cell::new(None));
    let worker = Rc::new(Worker { place, shared, reading, writing, silent, taken: RefCell::default() });
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, async {
        let (to_writer, of_writer) = mpsc::unbounded_channel();
        let writer = spawn_local(worker.clone().write(of_writer));
        let (remembering, watching) = (spawn_local(worker.clone().remember()), spawn_local(worker.clone().watch()));
        while let Some(command) = commands.recv().await {
            match command {
                Command::Close => break,
                Command::Take(..) | Command::Commit(..) => drop(to_writer.send(command)),
                read => drop(spawn_local(worker.clone().answer(read))),
            }
        }
        writer.abort();
        remembering.abort();
        watching.abort();
        worker.remember_now();
        worker.release().await;
    });
}

impl Worker {
    /// Answers what needs no turn.
    async fn answer(self: Rc<Self>, command: Command) {
        match command {
            Command::Create(fsname, identity, to) => {
                let made = async { create(&connect(&self.place, None).await?.client, &fsname, identity).await };
                drop(to.send(made.await));
            }
            Command::Look(to) => {
                let looked = async { in_time(Link::open(&self.place, None).await?.look()).await };
                drop(to.send(looked.await));
            }
            Command::Get(key, to) => {
                let got = self.read(async |link: &Link| link.get(&key).await).await;
                drop(to.send(got));
            }
            Command::Range(from, end, limit, to) => {
                let got = self.read(async |link: &Link| link.range(&from, &end, limit).await).await;
                drop(to.send(got));
            }
            Command::Take(..) | Command::Commit(..) | Command::Close => unreachable!("they have their turn"),
        }
    }

    /// [`Shared::judge`]; when that goes wrong, what was acknowledged is remembered first.
    fn judge<T>(&self, seen: Seen<T>, commits: i64) -> Result<Seen<T>, KvError> {
        if seen.epoch != self.shared.epoch.load(SeqCst) || seen.commit < commits {
            self.remember_now();
        }
        self.shared.judge(seen, commits)
    }
    /// Epoch and commit that a server must have.
    fn last(&self) -> (i64, i64) {
        (self.shared.epoch.load(SeqCst), self.shared.commit.load(SeqCst))
    }
    /// The store as it was acknowledged last; nothing before it is taken.
    fn state(&self) -> Option<State> {
        let taken = self.taken.borrow().clone();
        taken.map(|taken| State { commit: self.shared.commit.load(SeqCst), ..taken })
    }
    fn remember_now(&self) {
        if let (Some(memory), Some(state)) = (self.place.memory(), self.state()) {
            memory.keep(&state);
        }
    }
    /// Remembers how far the store is, each second in which it moved.
    async fn remember(self: Rc<Self>) {
        let Some(memory) = self.place.memory() else { return };
        let mut kept = None;
        loop {
            sleep(BEAT).await;
            let state = self.state();
            if state == kept {
                continue;
            }
            kept = state.clone();
            let memory = memory.clone();
            drop(tokio::task::spawn_blocking(move || state.iter().for_each(|state| memory.keep(state))).await);
        }
    }

    /// Gives a server up that owes an answer and answers nobody. One that answers others is waited for: its medium may be slow, or a
    /// synchronous replica away, and what it was asked for may be done.
    async fn watch(self: Rc<Self>) {
        let mut told = false;
        loop {
            sleep(if told { OWED_MAX } else { BEAT }).await;
            let mut longest = None;
            for slot in [&self.reading, &self.writing] {
                let link = slot.0.try_lock().ok().and_then(|place| place.clone());
                let Some((link, since)) = link.and_then(|link| Some((link.clone(), link.owes_since()?))) else {
                    continue;
                };
                if since.elapsed() < OWED_MAX {
                    continue;
                }
                if is_silent(&self.place, link.server()).await {
                    link.give_up();
                } else if link.owes_since() == Some(since) {
                    longest = longest.max(Some(since.elapsed()));
                }
            }
            if let Some(owed) = longest.filter(|_| !told) {
                tracing::warn!(
                    "the metadata store's database {} has owed an answer for {} s, and answers others: it is waited for (a slow medium, or a synchronous replica that is away?)",
                    self.place,
                    owed.as_secs()
                );
            }
            told = longest.is_some();
        }
    }

    /// A connection that is well, as soon as there is one.
    async fn link(&self, slot: &Slot) -> Rc<Link> {
        let mut pauses = Pauses::new();
        let mut place = slot.0.lock().await;
        loop {
            if let Some(link) = place.as_ref().filter(|link| !link.is_closed()) {
                return link.clone();
            }
            match Link::open(&self.place, Some(self.last())).await {
                Ok(link) => {
                    self.is_back();
                    *place = Some(link);
                }
                Err(why) => {
                    self.is_silent(&why);
                    pauses.pause().await;
                }
            }
        }
    }
    /// The connection of a slot ended, or is of no use.
    async fn lost(&self, slot: &Slot, link: &Rc<Link>, why: &Trouble) {
        self.is_silent(why);
        slot.0.lock().await.take_if(|have| Rc::ptr_eq(have, link));
    }
    fn is_silent(&self, why: &Trouble) {
        if self.silent.get().is_none() {
            self.silent.set(Some(Instant::now()));
            tracing::warn!(
                "the metadata store's database {} is lost: {why}; reads and changes wait for it",
                self.place
            );
        }
    }
    fn is_back(&self) {
        if let Some(since) = self.silent.take() {
            let ms = since.elapsed().as_millis();
            tracing::warn!("the metadata store's database answers again, after {ms} ms");
        }
    }

    /// Reads until there is an answer.
    async fn read<T>(&self, ask: impl AsyncFn(&Link) -> Result<Seen<T>, Trouble>) -> Result<Seen<T>, KvError> {
        let commits = self.shared.commit.load(SeqCst);
        let mut pauses = Pauses::new();
        loop {
            let link = self.link(&self.reading).await;
            match link.answer(ask(&link)).await {
                Ok(seen) => return self.judge(seen, commits),
                Err(Trouble::Again(_)) => pauses.pause().await,
                Err(why @ (Trouble::Lost(_) | Trouble::ReadOnly)) => self.lost(&self.reading, &link, &why).await,
                Err(why) => return Err(why.into()),
            }
        }
    }

    /// Takes the epoch, commits, and lengthens the lease, one after the other.
    async fn write(self: Rc<Self>, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut pauses = Pauses::new();
        loop {
            match timeout(BEAT, commands.recv()).await {
                Ok(None) => return,
                Ok(Some(Command::Take(claim, to))) => drop(to.send(self.take(&claim).await)),
                Ok(Some(Command::Commit(number, batch, keys, to))) => {
                    let done = self.commit(number, &batch, &keys).await;
                    if let Err(e) = &done
                        && !matches!(e, KvError::Conflict { .. })
                    {
                        self.shared.fail(e.clone());
                    }
                    drop(to.send(done));
                }
                Ok(Some(_)) => unreachable!("they need no turn"),
                Err(_) if self.shared.epoch.load(SeqCst) == 0 || self.shared.failure().is_some() => {}
                Err(_) => {
                    while commands.is_empty() && !self.renew().await {
                        pauses.pause().await;
                    }
                    pauses = Pauses::new();
                }
            }
        }
    }

    /// One try. Whether one whose connection ended was carried out shows the next look.
    async fn take(&self, claim: &Claim) -> Result<Option<i64>, Trouble> {
        let link = Link::open(&self.place, Some((claim.epoch, claim.commit))).await?;
        let (sent, lease_s) = (Instant::now(), LEASE.as_secs_f64());
        let who = (&*claim.holder, &*claim.process);
        let taken = in_time(link.take((claim.epoch, claim.commit), who, lease_s, claim.in_any_case)).await?;
        if let Some(commit) = taken {
            self.shared.epoch.store(claim.epoch + 1, SeqCst);
            self.shared.commit.store(commit, SeqCst);
            self.shared.renewed(sent);
            let (uuid, process) = (claim.uuid, claim.process.clone());
            *self.taken.borrow_mut() = Some(State { uuid, epoch: claim.epoch + 1, commit, process });
            self.remember_now();
            *self.writing.0.lock().await = Some(link);
        }
        Ok(taken)
    }

    /// Lengthens the lease; false: not this time.
    async fn renew(&self) -> bool {
        let link = self.link(&self.writing).await;
        let sent = Instant::now();
        match link.answer(link.renew(self.last(), LEASE.as_secs_f64())).await {
            Ok(true) => self.shared.renewed(sent),
            Ok(false) => match link.answer(link.state()).await {
                Ok(state) => drop(self.judge(state, self.shared.commit.load(SeqCst))),
                Err(_) => return false,
            },
            Err(why) => {
                self.lost(&self.writing, &link, &why).await;
                return false;
            }
        }
        true
    }

    /// Carries a batch out as the commit behind `number`, however often that takes.
    async fn commit(&self, number: i64, batch: &KvBatch, keys: &[Vec<u8>]) -> Result<Records, KvError> {
        let writes = Writes::of(batch);
        let (mut pauses, mut sent) = (Pauses::new(), None);
        loop {
            if let Some(e) = self.shared.refusal() {
                return Err(e);
            }
            let link = self.link(&self.writing).await;
            let tried = self.try_commit(&link, number, batch, (keys, &writes), &mut sent);
            let why = match link.answer(tried).await {
                Ok(done) => return done,
                Err(why) => why,
            };
            match why {
                Trouble::Again(_) => {
                    if let Err(why) = link.answer(link.rollback()).await {
                        self.lost(&self.writing, &link, &why).await;
                    }
                    pauses.pause().await;
                }
                Trouble::Lost(_) | Trouble::ReadOnly => self.lost(&self.writing, &link, &why).await,
                why => {
                    drop(link.answer(link.rollback()).await);
                    return Err(why.into());
                }
            }
        }
    }

    /// One try. `sent` has what the keys had before, once an order to commit was sent.
    async fn try_commit(
        &self,
        link: &Rc<Link>,
        number: i64,
        batch: &KvBatch,
        (keys, writes): (&[Vec<u8>], &Writes),
        sent: &mut Option<Records>,
    ) -> Result<Result<Records, KvError>, Trouble> {
        let begun = Instant::now();
        let epoch = self.shared.epoch.load(SeqCst);
        let Some(before) = link.begin((epoch, number), LEASE.as_secs_f64(), keys, writes).await? else {
            link.rollback().await?;
            let state = link.state().await?;
            return match self.judge(state, number) {
                Err(e) => Ok(Err(e)),
                // An earlier try was carried out although its end was not heard of.
                Ok(state) if state.commit == number + 1 && sent.is_some() => {
                    self.shared.commit.store(number + 1, SeqCst);
                    Ok(Ok(sent.take().unwrap_or_default()))
                }
                Ok(state) if state.commit == number => {
                    Err(Trouble::Again("its number was taken and given back".into()))
                }
                Ok(state) => {
                    let why = format!(
                        "the database is at commit {}, this server at {number}: somebody else changes it",
                        state.commit
                    );
                    Ok(Err(KvError::Io(why)))
                }
            };
        };
        let of = |key: &[u8]| before.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
        if let Err(e) = batch.check_expectations(|k| Ok(of(k))) {
            link.rollback().await?;
            return Ok(Err(e));
        }
        *sent = Some(before);
        link.commit().await?;
        self.shared.commit.store(number + 1, SeqCst);
        self.shared.renewed(begun);
        Ok(Ok(sent.take().unwrap_or_default()))
    }

    /// Ends the lease, so that the next server need not wait for its end. Without a database it ends by itself.
    async fn release(&self) {
        let epoch = self.shared.epoch.load(SeqCst);
        if epoch == 0 || self.shared.failure().is_some() {
            return;
        }
        let released = async { Link::open(&self.place, Some(self.last())).await?.renew(self.last(), 0.0).await };
        match timeout(RELEASE_MAX, released).await {
            Ok(Ok(_)) => {}
            Ok(Err(why)) => tracing::warn!("the lease of the metadata store is left to run out: {why}"),
            Err(_) => {
                tracing::warn!("the lease of the metadata store is left to run out: its database does not answer")
            }
        }
    }
}
