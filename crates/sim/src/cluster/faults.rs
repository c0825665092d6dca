//! What goes wrong, when: drawn from the seed, one fault after another, several at a time.
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use simworld::DiskFault;
use types::{Duration, Rng};

use super::class::FaultClass;
use super::context::Context;
use super::moments::LastWords;
use super::nodes::NodeId;

mod fsck;
mod given_up;
mod growth;
mod heal;
mod rot;
mod standby;
mod wished;

/// How often what goes wrong.
#[derive(Clone, Debug)]
pub struct FaultConfig {
    /// Seconds between two faults on average; 0: none.
    pub interval_s: f64,
    /// Share of faults that kill the metadata server. All shares are relative to their sum.
    pub kill_mds: f64,
    /// Share that kills an object storage server.
    pub kill_oss: f64,
    /// Share that kills a client.
    pub kill_client: f64,
    /// Share that resets the connections between two nodes.
    pub reset: f64,
    /// Share that cuts the network between two nodes.
    pub cut: f64,
    /// Share that makes a server's disk slow, or stand still.
    pub slow_disk: f64,
    /// Of these the share that makes it stand still.
    pub stalled: f64,
    /// Share that makes operations of a server's disk fail; the server is restarted then.
    pub disk_error: f64,
    /// Share that stops a process for a while, as SIGSTOP does.
    pub pause: f64,
    /// Share that makes reads of an OST's disk bring flipped bits.
    pub bit_rot: f64,
    /// Share that flips a bit of a server's database for good.
    pub page_rot: f64,
    /// Share that makes operations of a server's disk fail for a while; the server is not restarted.
    pub disk_heals: f64,
    /// Share that ends all servers and has their stores checked and repaired.
    pub fsck: f64,
    /// Share that has the database of the metadata store not answer for a while, or a standby follow the metadata server.
    pub database: f64,
    /// Share that gives an OST up for a while.
    pub give_up: f64,
    /// Share that fills the file system below a server's store for a while.
    pub full_disk: f64,
    /// Probability that a cut is one in one direction only.
    pub one_way: f64,
    /// Probability that a server dies while its connections to a node are cut or have just been reset.
    pub dies_too: f64,
    /// A client may die at the same time as the metadata server, or while that one recovers.
    pub together: bool,
    /// Probability that a kill takes the host's power, so that what was not synced is lost or torn.
    pub power: f64,
    /// Probability that a fault waits for a program's operation to begin, and meets it.
    pub amid: f64,
    /// Probability that a client that dies does so amid a cut of a striped file.
    pub amid_cuts: f64,
    /// Probability that a server that was started again dies amid its recovery.
    pub again: f64,
    /// What a client answers that stands still for moments counts.
    pub crowds: bool,
    /// OSTs come and go.
    pub growth: bool,
    /// Programs may have a client die and all OSTs lose their power.
    pub strikes: bool,
    /// Longest time until a killed node is started again.
    pub down_max_s: f64,
    /// Longest cut.
    pub cut_max_s: f64,
}

impl Default for FaultConfig {
    fn default() -> FaultConfig {
        FaultConfig {
            interval_s: 2.0,
            kill_mds: 2.0,
            kill_oss: 3.0,
            kill_client: 0.0,
            reset: 3.0,
            cut: 2.0,
            slow_disk: 1.0,
            stalled: 0.0,
            disk_error: 0.0,
            pause: 0.0,
            bit_rot: 0.0,
            page_rot: 0.0,
            disk_heals: 0.0,
            fsck: 0.0,
            database: 0.0,
            give_up: 0.0,
            full_disk: 0.0,
            one_way: 0.0,
            dies_too: 0.0,
            together: false,
            power: 0.5,
            amid: 0.0,
            amid_cuts: 0.0,
            again: 0.0,
            crowds: false,
            growth: false,
            strikes: false,
            down_max_s: 10.0,
            cut_max_s: 8.0,
        }
    }
}

/// A client's last operations are on stable storage after this long; until then its death and the metadata server's
/// together may lose them.
const COMMITTED_AFTER: Duration = Duration::from_secs(3);

type LocalFuture<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

/// How long a fault waits for the operation that it is to meet.
const MOMENT_MAX: Duration = Duration::from_secs(2);

/// How long a node that is to die is listened to.
const SILENT_WITHIN: Duration = Duration::from_secs(5);

/// A client is back at a restarted server within so many milliseconds, as a rule.
const BACK_WITHIN_MS: u32 = 1000;

/// A server at work syncs within so many seconds.
const SYNC_WITHIN_S: u32 = 3;

/// A recovery that waits for somebody who does not come back takes so many seconds, and some more.
const RECOVERS_WITHIN_S: u32 = 40;

/// Cuts above this many seconds may cost an eviction.
const CUT_SHORT_S: f64 = 8.0;

/// Draws faults until the run is calm, and waits for all of them to be over.
pub struct Faults {
    context: Rc<Context>,
    config: FaultConfig,
    /// Nodes that a fault has its hands on.
    busy: RefCell<BTreeSet<NodeId>>,
    under_way: Cell<u32>,
    client_died: Cell<u64>,
    /// Stores are being checked.
    checks: Cell<bool>,
    /// An OST is being added.
    grows: Cell<bool>,
}

impl Faults {
    /// Faults for a run.
    #[must_use]
    pub fn new(context: Rc<Context>, config: FaultConfig) -> Rc<Faults> {
        Rc::new(Faults {
            context,
            config,
            busy: RefCell::default(),
            under_way: Cell::new(0),
            client_died: Cell::new(0),
            checks: Cell::new(false),
            grows: Cell::new(false),
        })
    }

    /// Lets things go wrong until the run is ending, and says that all is calm when the last fault is over.
    pub async fn run(self: Rc<Self>) {
        let mut rng = self.context.rng("faults");
        self.context.strikes.open(self.config.strikes);
        self.carry_out_wishes();
        while !self.context.ending.get() {
            let none = self.config.interval_s <= 0.0;
            let pause = if none { 0.5 } else { self.config.interval_s * 2.0 * rng.unit() };
            self.sleep(pause).await;
            // Nobody puts an older disk in.
            if let Some(why) = self.context.cluster.refused_store() {
                self.context.complain(format!("an OST is refused: {why}"));
            }
            if none || self.context.ending.get() {
                continue;
            }
            let (me, own) = (self.clone(), Rng::new(rng.next_u64()));
            self.under_way.set(self.under_way.get() + 1);
            self.context.cluster.sim.spawn(async move {
                me.one(own).await;
                me.under_way.set(me.under_way.get() - 1);
            });
        }
        self.end_wishes();
        while self.under_way.get() > 0 {
            self.sleep(0.1).await;
        }
        self.context.all_back().await;
        if self.config.growth {
            self.osts_are_known().await;
        }
        self.context.enter(super::costs::Phase::Looks);
        self.context.calm.set(true);
    }

    async fn sleep(&self, seconds: f64) {
        self.context.cluster.sim.sleep(Duration::from_nanos((seconds * 1e9) as u64)).await;
    }

    async fn one(&self, mut rng: Rng) {
        let c = &self.config;
        let shares = [
            c.kill_mds,
            c.kill_oss,
            c.kill_client,
            c.reset,
            c.cut,
            c.slow_disk,
            c.disk_error,
            c.pause,
            c.bit_rot,
            c.full_disk,
            c.page_rot,
            c.disk_heals,
            c.fsck,
            c.database,
            c.give_up,
        ];
        let mut at = rng.unit() * shares.iter().sum::<f64>();
        let kind = shares.iter().position(|s| {
            at -= s;
            at < 0.0
        });
        let met = if rng.chance(c.amid) { self.moment(&mut rng).await } else { None };
        match kind {
            Some(0) if c.together && rng.chance(0.5) => {
                let mut other = Rng::new(rng.next_u64());
                let both: Vec<LocalFuture<'_>> = vec![
                    Box::pin(self.kill_server(NodeId::Mds, &mut rng)),
                    Box::pin(self.kill_client(met, &mut other)),
                ];
                rt::sync::join_all(both).await;
            }
            Some(0) => self.kill_server(NodeId::Mds, &mut rng).await,
            Some(1) => {
                let oss = self.any_oss(&mut rng);
                self.kill_server(oss, &mut rng).await;
            }
            Some(2) => self.kill_client(met, &mut rng).await,
            Some(3) => self.reset(met, &mut rng).await,
            Some(4) => self.cut(met, &mut rng).await,
            Some(5) => self.slow_disk(&mut rng).await,
            Some(6) => self.disk_error(&mut rng).await,
            Some(7) => self.pause(&mut rng).await,
            Some(8) => self.bit_rot(&mut rng).await,
            Some(9) => self.full_disk(&mut rng).await,
            Some(10) => self.page_rot(&mut rng).await,
            Some(11) => self.disk_heals(&mut rng).await,
            Some(12) => self.fsck(&mut rng).await,
            Some(13) => self.database_fails(&mut rng).await,
            Some(14) => self.give_up(&mut rng).await,
            _ => {}
        }
    }

    /// Waits until a program's operation is under way, not for long: answers its client.
    async fn moment(&self, rng: &mut Rng) -> Option<usize> {
        let sim = &self.context.cluster.sim;
        let drawn = rt::sync::race(self.context.moments.drawn(rng), sim.sleep(MOMENT_MAX)).await;
        let (client, later) = drawn.ok().flatten()?;
        if rng.chance(0.5) {
            sim.sleep(later).await;
        }
        Some(client)
    }

    fn any_oss(&self, rng: &mut Rng) -> NodeId {
        let all = self.context.cluster.ost_indices();
        NodeId::Oss(all[rng.below(all.len() as u64) as usize])
    }
    fn any_client(&self, rng: &mut Rng) -> NodeId {
        NodeId::Client(rng.below(self.context.cluster.clients.len() as u64) as usize)
    }
    fn any_server(&self, rng: &mut Rng) -> NodeId {
        if rng.chance(0.4) { NodeId::Mds } else { self.any_oss(rng) }
    }
    fn any_pair(&self, which: Option<usize>, rng: &mut Rng) -> (NodeId, NodeId) {
        let server = self.any_server(rng);
        if let Some(client) = which {
            return (NodeId::Client(client), server);
        }
        if server != NodeId::Mds && rng.chance(0.25) {
            return (NodeId::Mds, server);
        }
        (NodeId::Client(rng.below(self.context.cluster.clients.len() as u64) as usize), server)
    }
    fn note(&self, class: FaultClass, what: &str) {
        self.context.note(class, what);
    }
    fn note_kill(&self, id: NodeId, power: bool, together: bool) {
        self.context.was_away(id);
        let class = if matches!(id, NodeId::Client(_)) { FaultClass::KillClient } else { FaultClass::KillServer };
        self.context.count(|c| {
            c.by_class[class.index()] += u64::from(power);
            c.by_class[FaultClass::Together.index()] += u64::from(together);
        });
        self.note(
            if power { FaultClass::Power } else { class },
            &format!("{id} {}", if power { "loses its power" } else { "is killed" }),
        );
    }
    /// Takes a node for a fault; false when another fault has it or it does not run.
    fn take(&self, id: NodeId) -> bool {
        self.context.cluster.node(id).host().runs() && self.busy.borrow_mut().insert(id)
    }
    fn give_back(&self, id: NodeId) {
        self.busy.borrow_mut().remove(&id);
    }
    /// The death of the metadata server and of a client must not fall together.
    fn client_died_lately(&self) -> bool {
        if self.config.together {
            return false;
        }
        let died = self.client_died.get();
        died > 0 && self.context.cluster.sim.now().0 - died < COMMITTED_AFTER.as_nanos() as u64
    }

    async fn kill_server(&self, id: NodeId, rng: &mut Rng) {
        if id == NodeId::Mds && self.client_died_lately() || !self.take(id) {
            return;
        }
        let power = rng.chance(self.config.power);
        if power && rng.chance(0.6) {
            let nth = 1 + rng.below(4);
            tracing::info!("the {nth}th sync comes too late");
            self.note_kill(id, power, false);
            self.dies_at_sync(id, nth, SYNC_WITHIN_S).await;
        } else {
            self.silence(id, rng).await;
            self.note_kill(id, power, false);
        }
        if id == NodeId::Mds {
            self.context.mds_died();
        }
        self.restart(id, power, rng).await;
        self.give_back(id);
    }

    /// Lets a node that is to die amid an operation send some messages more, and none after them. Whether it may have had a
    /// cut half done.
    async fn silence(&self, id: NodeId, rng: &mut Rng) -> bool {
        let words = match id {
            NodeId::Client(_) if rng.chance(self.config.amid_cuts) => LastWords::of_a_cut(rng),
            _ if rng.chance(self.config.amid * 0.7) => LastWords::drawn(rng),
            _ => return false,
        };
        let (messages, amid_a_cut) = (words.messages, words.is_amid_a_cut());
        let host = self.context.cluster.node(id).host();
        let silent = host.falls_silent(move |head| words.begin_with(head), messages);
        let met = rt::sync::race(silent, self.context.cluster.sim.sleep(SILENT_WITHIN)).await;
        amid_a_cut && met.is_ok()
    }

    /// Ends a node and starts it again some time later, a server perhaps several times.
    async fn restart(&self, id: NodeId, power: bool, rng: &mut Rng) {
        let cluster = &self.context.cluster;
        let (mut power, mut longest) = (power, self.config.down_max_s);
        let mut stands = None;
        loop {
            cluster.kill(id, power);
            self.context.count(|c| c.kills += 1);
            // Short outages are as likely as long ones.
            self.sleep(longest * rng.unit() * rng.unit()).await;
            if id == NodeId::Mds && cluster.has_database() && rng.chance(0.5) {
                cluster.mds.change_hosts();
            }
            if let Err(e) = cluster.start(id).await {
                self.context.complain(e);
            }
            tracing::info!("{id} runs again");
            if let Some(client) = stands.take() {
                self.sleep(8.0 * rng.unit()).await;
                cluster.node(client).host().continue_process();
                self.give_back(client);
            }
            if matches!(id, NodeId::Client(_)) || !rng.chance(self.config.again) {
                return;
            }
            stands = self.somebody_stands_still(rng).await;
            power = if stands.is_some() { false } else { self.recovers_a_while(id, rng).await };
            longest = longest.min(1.0);
            self.note_kill(id, power, false);
            if id == NodeId::Mds {
                self.context.mds_died();
            }
        }
    }

    /// A client that has told a server in its recovery some of what it has stands still, for longer than others are watched before they
    /// count as quiet, and until the server has died and runs again.
    async fn somebody_stands_still(&self, rng: &mut Rng) -> Option<NodeId> {
        let client = self.any_client(rng);
        if self.config.pause <= 0.0 || !rng.chance(0.3) || !self.take(client) {
            return None;
        }
        // Clients are back within a second, and replay for some milliseconds.
        for _ in 0..BACK_WITHIN_MS {
            if self.context.cluster.replays(client) {
                break;
            }
            self.sleep(0.001).await;
        }
        self.sleep(0.005 * rng.unit() * rng.unit()).await;
        self.note(FaultClass::Pause, &format!("{client} stands still amid a recovery"));
        self.context.was_away(client);
        self.context.cluster.node(client).host().stop_process();
        self.sleep(8.0 + 8.0 * rng.unit()).await;
        Some(client)
    }

    /// A node loses its power before its `nth` sync from now, if that comes within so many seconds.
    async fn dies_at_sync(&self, id: NodeId, nth: u64, seconds: u32) {
        let host = self.context.cluster.node(id).host();
        host.lose_power_at_sync(nth);
        for _ in 0..seconds * 20 {
            if !host.runs() {
                return;
            }
            self.sleep(0.05).await;
        }
    }

    /// The time until a server that recovers dies again; whether by its power.
    async fn recovers_a_while(&self, id: NodeId, rng: &mut Rng) -> bool {
        let host = self.context.cluster.node(id).host();
        let power = rng.chance(self.config.power);
        let most = 4 << rng.below(6);
        let nth = 1 + rng.below(most);
        if power && rng.chance(0.5) {
            // What is on stable storage before the end of a recovery says who was given up and what was replayed.
            self.dies_at_sync(id, nth, RECOVERS_WITHIN_S).await;
            return true;
        }
        // Its first messages say who may come back and answer what is replayed.
        let silent = host.falls_silent(|_| true, nth);
        let _ = rt::sync::race(silent, self.context.cluster.sim.sleep(SILENT_WITHIN)).await;
        power
    }

    async fn kill_client(&self, which: Option<usize>, rng: &mut Rng) {
        let id = which.map_or_else(|| self.any_client(rng), NodeId::Client);
        // What the metadata server lost and this client has not told again yet would be lost with both of them.
        let mds_needs_it =
            !self.context.cluster.is_in_service(NodeId::Mds) || self.busy.borrow().contains(&NodeId::Mds);
        if mds_needs_it && !self.config.together || !self.take(id) {
            return;
        }
        let power = rng.chance(self.config.power);
        self.client_died.set(self.context.cluster.sim.now().0);
        let amid_a_cut = self.silence(id, rng).await;
        self.note_kill(id, power, mds_needs_it);
        self.context.client_died();
        self.client_died.set(self.context.cluster.sim.now().0);
        // What it had half done is then known to the other servers only.
        let mut other = Rng::new(rng.next_u64());
        let mut all: Vec<LocalFuture<'_>> = vec![Box::pin(self.restart(id, power, rng))];
        let servers = match amid_a_cut && self.config.dies_too > 0.0 && other.chance(0.7) {
            true => self.who_cuts(&mut other),
            false if self.server_dies(&mut other) => vec![self.any_server(&mut other)],
            false => Vec::new(),
        };
        for server in servers {
            let mut own = Rng::new(other.next_u64());
            all.push(Box::pin(async move { self.kill_server(server, &mut own).await }));
        }
        rt::sync::join_all(all).await;
        self.give_back(id);
    }

    /// Servers that know of a cut that is half done: some of those that carry it out, or the one that decided it.
    fn who_cuts(&self, rng: &mut Rng) -> Vec<NodeId> {
        let osses = self.context.cluster.ost_indices().into_iter().map(NodeId::Oss);
        match rng.below(4) {
            // It must not die with a client where that would lose what neither has on stable storage.
            0 if self.config.together => vec![NodeId::Mds],
            1 => osses.collect(),
            _ => vec![self.any_oss(rng)],
        }
    }

    /// Whether the server dies as well: what it answered last may reach nobody, and is on stable storage or not.
    fn server_dies(&self, rng: &mut Rng) -> bool {
        rng.chance(self.config.dies_too)
    }

    async fn reset(&self, which: Option<usize>, rng: &mut Rng) {
        let (a, b) = self.any_pair(which, rng);
        let cluster = &self.context.cluster;
        let n = cluster.sim.reset(cluster.node(a).host(), cluster.node(b).host());
        self.note(FaultClass::Reset, &format!("{n} connections between {a} and {b} are reset"));
        if self.server_dies(rng) {
            self.sleep(0.03 * rng.unit()).await;
            self.kill_server(b, rng).await;
        }
    }

    async fn cut(&self, which: Option<usize>, rng: &mut Rng) {
        let (a, b) = self.any_pair(which, rng);
        let cluster = &self.context.cluster;
        let (x, y) = (cluster.node(a).host(), cluster.node(b).host());
        let time = self.config.cut_max_s * rng.unit() * rng.unit();
        [a, b].into_iter().for_each(|id| self.context.was_away(id));
        let class = if time > CUT_SHORT_S { FaultClass::LongCut } else { FaultClass::Cut };
        match (rng.chance(self.config.one_way), rng.chance(0.5)) {
            (false, _) => {
                self.note(class, &format!("{a} and {b} are cut off from each other for {time:.3} s"));
                cluster.sim.cut(x, y);
            }
            (true, turned) => {
                let (from, to) = if turned { (y, x) } else { (x, y) };
                let (f, t) = (from.name(), to.name());
                self.note(FaultClass::OneWay, &format!("nothing of {f} arrives at {t} for {time:.3} s"));
                cluster.sim.cut_one_way(from, to);
            }
        }
        if self.server_dies(rng) {
            self.sleep(time / 2.0).await;
            self.kill_server(b, rng).await;
            self.sleep(time / 2.0).await;
        } else {
            self.sleep(time).await;
        }
        cluster.sim.heal(x, y);
    }

    async fn slow_disk(&self, rng: &mut Rng) {
        let id = self.any_server(rng);
        if rng.chance(self.config.stalled) {
            let seconds = 5.0 + 115.0 * rng.unit() * rng.unit();
            self.note(FaultClass::StalledDisk, &format!("the disk of {id} stands still for {seconds:.3} s"));
            self.context.cluster.node(id).host().stall_disk(Duration::from_nanos((seconds * 1e9) as u64));
            return self.sleep(seconds).await;
        }
        let (times, seconds) = (10 + rng.below(500), 5.0 * rng.unit());
        self.note(FaultClass::SlowDisk, &format!("the disk of {id} is {times} times slower for {seconds:.3} s"));
        self.context.cluster.node(id).host().set_disk_slowness(times);
        self.sleep(seconds).await;
        self.context.cluster.node(id).host().set_disk_slowness(1);
    }

    async fn disk_error(&self, rng: &mut Rng) {
        let id = self.any_server(rng);
        if id == NodeId::Mds && self.client_died_lately() || !self.take(id) {
            return;
        }
        let kind = rng.below(3);
        let fault = DiskFault { reads: kind == 0, writes: kind == 1, syncs: kind == 2, times: 1 + rng.below(3) as u32 };
        self.note(FaultClass::DiskError, &format!("the disk of {id} fails: {fault:?}"));
        self.context.disks.fails(id);
        self.context.cluster.node(id).host().set_disk_fault(fault);
        self.sleep(5.0 * rng.unit()).await;
        if id == NodeId::Mds {
            self.context.mds_died();
        }
        self.restart(id, false, rng).await;
        self.context.disks.works(id);
        self.give_back(id);
    }

    /// A process stands still for longer than anybody waits.
    async fn pause(&self, rng: &mut Rng) {
        let id = if rng.chance(0.6) { self.any_client(rng) } else { self.any_server(rng) };
        let mut seconds = 10.0 + 80.0 * rng.unit() * rng.unit();
        if !self.take(id) {
            return;
        }
        if rng.chance(0.5) {
            return self.stutter(id, rng).await;
        }
        if matches!(id, NodeId::Client(_)) && rng.chance(self.config.stalled) {
            seconds = self.strand(rng).await;
        }
        self.note(FaultClass::Pause, &format!("{id} stands still for {seconds:.3} s"));
        self.context.was_away(id);
        let host = self.context.cluster.node(id).host();
        host.stop_process();
        self.sleep(seconds).await;
        host.continue_process();
        self.give_back(id);
    }

    /// OSTs' disks stand still for longer than a client that is stopped now takes to be evicted: what it asked for just before waits there
    /// meanwhile. The seconds for which it is to stop.
    async fn strand(&self, rng: &mut Rng) -> f64 {
        let seconds = 75.0 + 15.0 * rng.unit();
        let still = seconds + 30.0 * rng.unit();
        for oss in self.context.cluster.osses() {
            self.note(FaultClass::StalledDisk, &format!("the disk of {} stands still for {still:.3} s", oss.id));
            oss.host().stall_disk(Duration::from_nanos((still * 1e9) as u64));
        }
        self.sleep(0.1 * rng.unit()).await;
        seconds
    }

    /// A process stands still for moments, as on a host with more to do than it can: what came meanwhile is there all at once.
    async fn stutter(&self, id: NodeId, rng: &mut Rng) {
        let (rounds, most) = (100 + rng.below(900), 0.001 + 0.01 * rng.unit());
        self.note(FaultClass::Pause, &format!("{id} stands still {rounds} times, for up to {most:.4} s each"));
        let host = self.context.cluster.node(id).host();
        self.stutters_now(id, true);
        for _ in 0..rounds {
            self.sleep(most * rng.unit()).await;
            host.stop_process();
            self.sleep(most * rng.unit()).await;
            host.continue_process();
        }
        self.stutters_now(id, false);
        self.give_back(id);
    }

    /// Another program fills the file system below a server's store, and gives the space back some time later.
    async fn full_disk(&self, rng: &mut Rng) {
        let id = self.any_server(rng);
        let but = [0, 64 << 10, 1 << 20, 8 << 20][rng.below(4) as usize];
        let seconds = 1.0 + 59.0 * rng.unit() * rng.unit();
        if self.checks.get() || !self.context.disk_fills(id) {
            return;
        }
        self.note(FaultClass::FullDisk, &format!("the disk of {id} has {but} bytes left for {seconds:.3} s"));
        let host = self.context.cluster.node(id).host();
        host.fill_disk(Some(but));
        self.sleep(seconds).await;
        host.fill_disk(None);
        self.context.disk_empties(id);
    }
}
