//! What programs, faults and checks of one run share.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use client::Client;
use types::{Duration, Fid, Instant, Rng};

use super::class::FaultClass;
use super::costs::{Costs, Meter, Phase};
use super::disks::Disks;
use super::model::Author;
use super::moments::{Absence, Gap, Moments, Strand, Strike, Stutter, Wishes};
use super::nodes::{Cluster, Node, NodeId};
use super::scarred::Scars;
use super::thought::Thought;

/// Virtual time after which an operation counts as hung: longer than every outage and every time-out together.
pub(super) const HANG: Duration = Duration::from_secs(1800);
/// An evicted client knows of it so long after its new session was opened.
const LEARNS_WITHIN: Duration = Duration::from_secs(2);
/// A client's last changes are on the metadata server's stable storage after this long.
const COMMITTED_WITHIN: Duration = Duration::from_secs(3);
/// Whoever is refused for want of space is not any more, so long after there is some: what waits for objects is told so before.
const SPACE_IS_KNOWN_WITHIN: Duration = Duration::from_secs(45);
/// A create that finds no OST for half a minute answers ENOSPC; a metadata server's clock may run a little faster.
const WAITS_FOR_OBJECTS: Duration = Duration::from_secs(25);
/// How an error says that there is no space.
pub(super) const NO_SPACE: &str = "no space left on device";
/// How bytes are told of that a medium did not take, or that were given up with a session.
const LOSSES: [&str; 3] = ["input/output error", "not connected", "bad message"];
/// Programs work on as fast as before for so long when the last fault has begun: nodes come back amid work.
const WORKS_ON: Duration = Duration::from_secs(5);
/// What is still under way then (a cut, a stop, a recovery that waits for somebody) lasts a minute and more, in which nothing else goes
/// wrong: operations have pauses of up to this long, as what they could find there is found by a few of them as well.
const EASE_MS: u64 = 500;
/// A copy of a file that was begun so long ago is done, or its client was given up.
const COPY_GONE_WITHIN: Duration = Duration::from_secs(600);
/// Complaints kept.
const COMPLAINTS_MAX: usize = 20;

/// Counters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Operations carried out.
    pub operations: u64,
    /// Operations whose client died or was evicted meanwhile.
    pub lost: u64,
    /// Comparisons with the model.
    pub checks: u64,
    /// Faults.
    pub faults: u64,
    /// Processes killed and hosts without power.
    pub kills: u64,
    /// Faults by class.
    pub by_class: [u64; FaultClass::COUNT],
    /// Operations that answered that there is no space.
    pub full: u64,
    /// Longest operation in virtual nanoseconds.
    pub longest_ns: u64,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            operations: 0,
            lost: 0,
            checks: 0,
            faults: 0,
            kills: 0,
            by_class: [0; FaultClass::COUNT],
            full: 0,
            longest_ns: 0,
        }
    }
}

/// How programs do what they do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Manners {
    /// How often they sync, as a share of what they usually do.
    pub syncs: f64,
    /// They drop some of their changes amid.
    pub interrupts: bool,
    /// Share of the writes of programs on trees that go past the client's cache.
    pub direct: f64,
}

impl Default for Manners {
    fn default() -> Manners {
        Manners { syncs: 1.0, interrupts: false, direct: 0.1 }
    }
}

/// OSTs that a client gave up.
#[derive(Clone, Copy, Debug, Default)]
struct GivenUp {
    /// How many it has given up now.
    now: u32,
    /// How often it gave one up or took it back.
    times: u64,
}

/// One run.
pub struct Context {
    /// The cluster.
    pub cluster: Cluster,
    /// What was counted.
    pub counts: Cell<Counts>,
    /// Clients that were dead, stopped or cut off at some time: servers may have had reason to evict them.
    away: RefCell<BTreeSet<usize>>,
    /// What went wrong.
    complaints: RefCell<Vec<String>>,
    /// Faults may begin no longer.
    pub ending: Cell<bool>,
    /// Since when.
    ending_since: Cell<Instant>,
    /// Everything runs and nothing goes wrong any more.
    pub calm: Cell<bool>,
    /// Disks of servers.
    pub disks: Disks,
    /// Files keep the objects that they got when they were made.
    pub layouts_stay: Cell<bool>,
    /// Servers whose file systems others have filled.
    full_disks: RefCell<BTreeSet<NodeId>>,
    /// What clients gave up.
    given_up: RefCell<BTreeMap<usize, GivenUp>>,
    /// When one of them had space again last.
    had_space: Cell<Option<Instant>>,
    stamps: Cell<u64>,
    /// When a client died last, and the metadata server.
    client_death: Cell<Option<Instant>>,
    mds_death: Cell<Option<Instant>>,
    /// Times at which a client and the metadata server died so close together that both may have lost a change.
    double_deaths: Cell<u64>,
    /// The metadata server's latest start, clients that it gave up since, and whether it has served since.
    recovery: Cell<(u64, u64, bool)>,
    /// Clients that a server does not know, or did not until lately.
    strangers: RefCell<BTreeMap<usize, Instant>>,
    /// Faults that wait for an operation to begin.
    pub moments: Moments,
    /// What media have lost for good.
    pub scars: Scars,
    /// Faults that programs ask for, by kind.
    pub strikes: Wishes<Strike>,
    /// The same.
    pub stutters: Wishes<Stutter>,
    /// The same.
    pub strands: Wishes<Strand>,
    /// The same.
    pub gaps: Wishes<Gap>,
    /// The same.
    pub absences: Wishes<Absence>,
    /// Copies of files that were made to empty OSTs: when each was begun, and its bytes.
    copies: RefCell<Vec<(Instant, u64)>>,
    /// Clients that programs leave alone.
    left_alone: RefCell<BTreeSet<usize>>,
    /// When programs do nothing, where they do so.
    thought: RefCell<Option<Thought>>,
    manners: Manners,
    meter: Meter,
    seed: u64,
}

impl Context {
    /// A node dies, is stopped or cut off now.
    pub fn was_away(&self, id: NodeId) {
        if let NodeId::Client(client) = id {
            self.away.borrow_mut().insert(client);
        }
    }
    /// Whether a server may have had reason to evict a client.
    #[must_use]
    pub fn may_have_been_away(&self, client: usize) -> bool {
        self.away.borrow().contains(&client)
    }
    /// A run over a cluster.
    #[must_use]
    pub fn new(cluster: Cluster, seed: u64, manners: Manners) -> Rc<Context> {
        Rc::new(Context {
            cluster,
            counts: Cell::default(),
            away: RefCell::default(),
            complaints: RefCell::default(),
            ending: Cell::new(false),
            ending_since: Cell::new(Instant::ZERO),
            calm: Cell::new(false),
            disks: Disks::default(),
            layouts_stay: Cell::new(false),
            full_disks: RefCell::default(),
            given_up: RefCell::default(),
            had_space: Cell::new(None),
            stamps: Cell::new(0),
            client_death: Cell::new(None),
            mds_death: Cell::new(None),
            double_deaths: Cell::new(0),
            recovery: Cell::new((0, 0, false)),
            strangers: RefCell::default(),
            moments: Moments::default(),
            scars: Scars::default(),
            strikes: Wishes::default(),
            stutters: Wishes::default(),
            strands: Wishes::default(),
            gaps: Wishes::default(),
            absences: Wishes::default(),
            copies: RefCell::default(),
            left_alone: RefCell::default(),
            thought: RefCell::default(),
            manners,
            meter: Meter::new(),
            seed,
        })
    }
    /// Another phase begins; gives what those before took.
    pub fn enter(&self, phase: Phase) -> Costs {
        self.meter.enter(phase, self.cluster.sim.work())
    }
    /// The random stream of a part of the run.
    #[must_use]
    pub fn rng(&self, name: &str) -> Rng {
        Rng::named(self.seed, name)
    }
    /// Whether a program syncs now, which it usually does with probability `share`.
    pub fn syncs(&self, rng: &mut Rng, share: f64) -> bool {
        rng.chance(share * self.manners.syncs)
    }
    /// How programs do what they do.
    #[must_use]
    pub const fn manners(&self) -> Manners {
        self.manners
    }
    /// A number that stands for one write.
    pub fn stamp(&self) -> u64 {
        self.stamps.set(self.stamps.get() + 1);
        self.stamps.get()
    }
    /// A file is copied to other OSTs from now on: the copy counts for its owner, too, until it has gone.
    pub fn copy_begins(&self, bytes: u64) {
        self.copies.borrow_mut().push((self.cluster.sim.now(), bytes));
    }
    /// How many copies may be there now, and their bytes: those of a client that died are so until it is given up.
    #[must_use]
    pub fn copies(&self) -> (u64, u64) {
        let now = self.cluster.sim.now();
        let all = self.copies.borrow();
        let lately = all.iter().filter(|(begun, _)| now.since(*begun) < COPY_GONE_WITHIN);
        lately.fold((0, 0), |(n, bytes), (_, more)| (n + 1, bytes + more))
    }
    /// A client gives an OST up from now on, or has taken it back.
    pub fn gives_up(&self, client: usize, begins: bool) {
        let mut all = self.given_up.borrow_mut();
        let of = all.entry(client).or_default();
        // The OST may evict it meanwhile.
        self.was_away(NodeId::Client(client));
        of.times += 1;
        of.now = if begins { of.now + 1 } else { of.now - 1 };
    }
    /// Whether an author's client has given an OST up since, and taken all back.
    #[must_use]
    pub fn has_taken_back(&self, author: Author) -> bool {
        self.given_up.borrow().get(&author.client).is_some_and(|g| g.now == 0 && g.times > author.given_up)
    }
    /// Others fill the file system below a server's store; false when it is full already.
    pub fn disk_fills(&self, id: NodeId) -> bool {
        self.full_disks.borrow_mut().insert(id)
    }
    /// It has space again.
    pub fn disk_empties(&self, id: NodeId) {
        self.full_disks.borrow_mut().remove(&id);
        self.had_space.set(Some(self.cluster.sim.now()));
    }
    /// Whether some file system is full, or was until lately.
    #[must_use]
    pub fn is_some_disk_full(&self) -> bool {
        let lately = self.had_space.get().is_some_and(|at| self.cluster.sim.now().since(at) < SPACE_IS_KNOWN_WITHIN);
        lately || !self.full_disks.borrow().is_empty()
    }
    /// A client dies now.
    pub fn client_died(&self) {
        self.client_death.set(Some(self.cluster.sim.now()));
        self.note_double_death();
    }
    /// The metadata server dies now.
    pub fn mds_died(&self) {
        // Whom it gave up in its recovery is forgotten with it.
        let _ = self.double_deaths();
        self.mds_death.set(Some(self.cluster.sim.now()));
        self.note_double_death();
    }
    fn note_double_death(&self) {
        let (Some(a), Some(b)) = (self.client_death.get(), self.mds_death.get()) else { return };
        let recovers = !self.cluster.is_in_service(NodeId::Mds);
        let committed = COMMITTED_WITHIN + self.cluster.config.commit_max();
        if recovers || a.max(b).since(a.min(b)) < committed {
            self.double_deaths.set(self.double_deaths.get() + 1);
        }
    }
    /// How many times a client and the metadata server died so close together that answered and not synced changes of
    /// names may be gone. A client that the restarted server gave up is as good as dead.
    #[must_use]
    pub fn double_deaths(&self) -> u64 {
        let (start, given_up) = (self.cluster.mds_starts(), self.cluster.evictions_by_mds());
        let (known, mut counted, mut served) = self.recovery.get();
        if known != start {
            (counted, served) = (0, false);
        }
        if !served && given_up > counted {
            self.double_deaths.set(self.double_deaths.get() + given_up - counted);
            counted = given_up;
        }
        served |= self.cluster.is_in_service(NodeId::Mds);
        self.recovery.set((start, counted, served));
        self.double_deaths.get()
    }
    /// Starts of all servers so far; `None`: one of them does not run, or has not been told everything.
    #[must_use]
    pub fn server_starts(&self) -> Option<u64> {
        let cluster = &self.cluster;
        let starts = |n: &Rc<Node>| cluster.is_in_service(n.id).then(|| n.starts.get());
        let oss: Option<u64> = cluster.osses().map(starts).sum();
        oss.zip(starts(&cluster.mds)).map(|_| cluster.starts_of_servers())
    }
    /// Whether every change of owners that was answered is known to the servers: none is lost with a client and the metadata server, and
    /// no repair had to do without.
    #[must_use]
    pub fn owners_are_known(&self) -> bool {
        self.double_deaths.get() == 0 && self.counts.get().by_class[FaultClass::Fsck.index()] == 0
    }
    /// Whether an error says no more than that an OST has no space left, where OSTs are small, or a file system below a store.
    pub fn lacks_space(&self, error: &str) -> bool {
        let full = (self.cluster.config.is_small() || self.is_some_disk_full()) && error.ends_with(NO_SPACE);
        self.count(|c| c.full += u64::from(full));
        full
    }
    /// The same, or that it tells late of a loss ([`Context::is_told_late`]).
    pub fn is_full(&self, client: usize, of: Option<Fid>, error: &str) -> bool {
        self.lacks_space(error) || self.is_told_late(client, of, error)
    }
    /// Whether an error may be of what a client gave up of a file (without one: of any) when nobody had the file open there, bytes or a
    /// change: the next one who opens and syncs it is told, however well all is by then.
    pub fn is_told_late(&self, client: usize, of: Option<Fid>, error: &str) -> bool {
        let lost = |c: Rc<Client>| match (of, c.losses(), c.losses().changes_text()) {
            (Some(fid), bytes, changes) => bytes.may_have_lost(fid) || changes.contains(&fid.to_string()),
            (None, bytes, changes) => bytes.lost_bytes() > 0 || !changes.is_empty(),
        };
        LOSSES.iter().any(|loss| error.ends_with(loss)) && self.cluster.client(client).is_some_and(lost)
    }
    /// Something goes wrong now, on purpose.
    pub fn note(&self, class: FaultClass, what: &str) {
        tracing::info!("fault: {what}");
        self.count(|c| {
            c.faults += 1;
            c.by_class[class.index()] += 1;
        });
    }
    /// Whether an operation that may make a file says that no OST has objects for it, when it has waited for them.
    pub fn waited_for_objects(&self, error: &str, begun: Instant) -> bool {
        error.ends_with(NO_SPACE) && self.cluster.sim.now().since(begun) >= WAITS_FOR_OBJECTS
    }
    /// That, or [`Context::is_full`].
    pub fn is_refused_for_space(&self, client: usize, error: &str, begun: Instant) -> bool {
        self.waited_for_objects(error, begun) || self.is_full(client, None, error)
    }
    /// Changes the counters.
    pub fn count(&self, f: impl FnOnce(&mut Counts)) {
        let mut c = self.counts.get();
        f(&mut c);
        self.counts.set(c);
    }
    /// Something is not as it must be.
    pub fn complain(&self, text: impl Into<String>) {
        let text = format!("at {:.6} s: {}", self.cluster.sim.now().0 as f64 / 1e9, text.into());
        tracing::error!("{text}");
        let mut all = self.complaints.borrow_mut();
        if all.len() < COMPLAINTS_MAX {
            all.push(text);
        }
    }
    /// Everything that was not as it must be.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.borrow().clone()
    }
    /// Whether a run that went wrong should go on no longer.
    #[must_use]
    pub fn failed(&self) -> bool {
        !self.complaints.borrow().is_empty()
    }
    /// Whatever comes of it counts as a check.
    pub fn expect(&self, what: &str, outcome: Result<(), String>) {
        self.count(|c| c.checks += 1);
        if let Err(e) = outcome {
            self.complain(format!("{what}: {e}"));
        }
    }

    /// Who writes on a client now; `None` when it does not run, or was evicted and may not know it yet.
    #[must_use]
    pub fn author(&self, client: usize) -> Option<Author> {
        self.cluster.client(client)?;
        let now = self.cluster.sim.now();
        let mut strangers = self.strangers.borrow_mut();
        if self.cluster.is_stranger(client) || self.cluster.believes_in_a_lost_session(client) {
            strangers.insert(client, now + LEARNS_WITHIN);
        }
        if strangers.get(&client).is_some_and(|until| now < *until) {
            return None;
        }
        Some(Author {
            client,
            start: self.cluster.clients[client].starts.get(),
            evictions: self.cluster.evictions(client),
            disk_failures: self.disks.failures(),
            given_up: self.given_up.borrow().get(&client).map_or(0, |g| g.times),
        })
    }
    /// Whether an author's client has been there all the time, with all that it had.
    #[must_use]
    pub fn is_there(&self, author: Author) -> bool {
        let gives_up = self.given_up.borrow().get(&author.client).is_some_and(|g| g.now > 0);
        !gives_up && self.author(author.client).is_some_and(|now| now.has_all_of(author))
    }
    /// Whether everything that was answered to an author holds.
    #[must_use]
    pub fn is_sound(&self, author: Author) -> bool {
        self.is_there(author) && self.disks.are_well_since(author.disk_failures, None)
    }
    /// Whether all bytes of a file hold that were answered to an author: other disks than those below it may fail.
    #[must_use]
    pub fn holds(&self, author: Author, file: Fid) -> bool {
        self.is_there(author) && self.disks.are_well_since(author.disk_failures, Some(file))
    }
    /// Waits until every client has found back into a session with every server: one that was evicted while it was cut off
    /// has not learned of it yet when the cut is over, and one that still tries to connect may be evicted before it does.
    pub async fn all_back(&self) {
        for client in 0..self.cluster.clients.len() {
            let mut rounds = 0;
            let is_back = || self.author(client).is_some() && self.cluster.has_all_sessions(client);
            while !is_back() && !self.failed() {
                self.cluster.sim.sleep(Duration::from_millis(500)).await;
                rounds += 1;
                if rounds > 2 * HANG.as_secs() {
                    return self.complain(format!("{} does not find back to all servers", NodeId::Client(client)));
                }
            }
        }
    }
    /// Whether programs leave a client alone from now on, as far as they can choose.
    pub fn leave_alone(&self, client: usize, alone: bool) {
        let mut all = self.left_alone.borrow_mut();
        if alone {
            all.insert(client)
        } else {
            all.remove(&client)
        };
    }
    /// Clients that run and are not left alone.
    #[must_use]
    pub fn clients(&self) -> Vec<usize> {
        let alone = self.left_alone.borrow();
        (0..self.cluster.clients.len()).filter(|c| !alone.contains(c) && self.author(*c).is_some()).collect()
    }
    /// Programs stop to think from now on, until the run is ending.
    pub fn think(&self) {
        *self.thought.borrow_mut() = Some(Thought::drawn(self.rng("thought")));
    }
    /// Faults begin no longer from now on.
    pub fn end_begins(&self) {
        self.enter(Phase::Healing);
        self.ending_since.set(self.cluster.sim.now());
        self.ending.set(true);
    }
    /// A program takes it easy before its next operation where nothing is left but to wait for the last fault's end.
    pub async fn ease(&self, rng: &mut Rng) {
        let since = self.cluster.sim.now().since(self.ending_since.get());
        if self.ending.get() && !self.calm.get() && since >= WORKS_ON {
            self.cluster.sim.sleep(Duration::from_millis(rng.below(EASE_MS))).await;
        }
    }
    /// A client that runs, waiting for one: whoever is about to begin something, when it has thought about it.
    pub async fn any_client(&self, rng: &mut Rng) -> usize {
        let now = self.cluster.sim.now();
        let thought = self.thought.borrow().as_ref().filter(|_| !self.ending.get()).map(|t| t.before_work(now, rng));
        if let Some(time) = thought.filter(|t| *t > Duration::ZERO) {
            let ends = async {
                while !self.ending.get() {
                    self.cluster.sim.sleep(Duration::from_millis(500)).await;
                }
            };
            let _ = rt::sync::race(self.cluster.sim.sleep(time), ends).await;
        }
        self.ease(rng).await;
        loop {
            let running = self.clients();
            if !running.is_empty() {
                return running[rng.below(running.len() as u64) as usize];
            }
            self.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
    }
    /// Runs an operation on a client. `None` when the client died meanwhile, or the operation hung, which is
    /// complained about.
    pub async fn on<T: 'static>(
        &self,
        client: usize,
        what: &str,
        work: impl AsyncFnOnce(Rc<Client>) -> T + 'static,
    ) -> Option<T> {
        let begin = self.cluster.sim.now();
        self.moments.on_begin(client, what);
        let outcome = rt::sync::race(self.cluster.on(client, work), self.cluster.sim.sleep(HANG)).await;
        let took = self.cluster.sim.now().since(begin).as_nanos() as u64;
        self.count(|c| {
            c.operations += 1;
            c.longest_ns = c.longest_ns.max(took);
        });
        tracing::debug!(client, took_ms = took / 1_000_000, "{what}");
        match outcome {
            Ok(done) => {
                self.count(|c| c.lost += u64::from(done.is_none()));
                done
            }
            Err(()) => {
                self.complain(format!("{what} on client{client} hangs since {:.6} s", begin.0 as f64 / 1e9));
                None
            }
        }
    }
    /// Waits until no server knows a client of the past any more, so that nothing of it is under way.
    pub async fn wait_forgotten(&self, author: Author) {
        let now = self.cluster.clients[author.client].starts.get();
        let runs = self.cluster.client(author.client).is_some();
        if runs && now == author.start {
            return;
        }
        let identities = self.dead_identities(author.client);
        for id in identities {
            let mut rounds = 0;
            while !self.cluster.has_forgotten(id) {
                self.cluster.sim.sleep(Duration::from_millis(500)).await;
                rounds += 1;
                if rounds > 2 * HANG.as_secs() {
                    self.complain(format!("{} is still known to a server", NodeId::Client(author.client)));
                    return;
                }
            }
        }
    }
    /// Waits until no server knows any client that died.
    pub async fn wait_dead_forgotten(&self) {
        for client in 0..self.cluster.clients.len() {
            let nobody = Author { start: 0, ..Author::first(client) };
            self.wait_forgotten(nobody).await;
        }
        while !self.cluster.is_in_service(NodeId::Mds) {
            self.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
    }
    fn dead_identities(&self, client: usize) -> Vec<types::ClientId> {
        self.cluster.identities(client, self.cluster.lives(client))
    }
}
