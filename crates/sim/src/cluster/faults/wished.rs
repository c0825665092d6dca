//! Faults that programs ask for, because they know the moment at which these matter ([`super::super::moments::Wishes`]).
use std::rc::Rc;

use types::{Duration, Rng};

use super::super::class::FaultClass;
use super::super::moments::{Absence, Gap, Leaves, Strand, Stutter};
use super::super::nodes::NodeId;
use super::{Faults, LocalFuture};

/// Times that a process stands still while a program says so, at most.
const STUTTERS_MAX: u32 = 400;

impl Faults {
    /// Carries out, until [`Faults::end_wishes`], what programs ask for.
    pub(super) fn carry_out_wishes(self: &Rc<Self>) {
        self.beside("strikes", Self::strike);
        if self.config.growth {
            self.beside("growth", Self::growth);
        }
        if self.context.stutters.is_open() {
            self.beside("stutters", Self::stutters);
        }
        if self.context.strands.is_open() {
            self.beside("strands", Self::strands);
        }
        if self.context.gaps.is_open() {
            self.beside("gaps", Self::gaps);
        }
        if self.context.absences.is_open() {
            self.beside("absences", Self::absences);
        }
    }
    /// Takes no wish any more.
    pub(super) fn end_wishes(&self) {
        self.context.strikes.open(false);
        self.context.stutters.open(false);
        self.context.strands.open(false);
        self.context.gaps.open(false);
        self.context.absences.open(false);
    }
    fn beside(self: &Rc<Self>, name: &str, work: impl AsyncFn(&Faults, Rng) + 'static) {
        let (me, own) = (self.clone(), self.context.rng(name));
        self.under_way.set(self.under_way.get() + 1);
        self.context.cluster.sim.spawn(async move {
            work(&me, own).await;
            me.under_way.set(me.under_way.get() - 1);
        });
    }
    /// Takes all of these nodes, or none.
    pub(super) fn take_all(&self, ids: &[NodeId]) -> bool {
        let free = |id: &NodeId| self.context.cluster.node(*id).host().runs() && !self.busy.borrow().contains(id);
        ids.iter().all(free) && ids.iter().all(|id| self.take(*id))
    }

    /// Carries out what programs ask for.
    async fn strike(&self, mut rng: Rng) {
        while let Some(strike) = self.context.strikes.next().await {
            let osses = self.context.cluster.ost_indices().into_iter().map(NodeId::Oss);
            let nodes: Vec<NodeId> = osses.chain([NodeId::Client(strike.client)]).collect();
            let mds_needs_it =
                !self.context.cluster.is_in_service(NodeId::Mds) || self.busy.borrow().contains(&NodeId::Mds);
            if mds_needs_it || !nodes.iter().all(|n| self.context.cluster.node(*n).host().runs()) {
                continue;
            }
            let mut all: Vec<LocalFuture<'_>> = Vec::new();
            for id in nodes.into_iter().filter(|n| self.take(*n)) {
                self.note_kill(id, true, false);
                if matches!(id, NodeId::Client(_)) {
                    self.context.client_died();
                    self.client_died.set(self.context.cluster.sim.now().0);
                }
                let mut own = Rng::new(rng.next_u64());
                all.push(Box::pin(async move {
                    self.restart(id, true, &mut own).await;
                    self.give_back(id);
                }));
            }
            rt::sync::join_all(all).await;
        }
    }

    /// Clients stand still for moments as long as a program has them do so.
    async fn stutters(&self, mut rng: Rng) {
        while let Some(Stutter { clients, goes_on }) = self.context.stutters.next().await {
            let mut all: Vec<LocalFuture<'_>> = Vec::new();
            for id in clients.into_iter().map(NodeId::Client).filter(|id| self.take(*id)) {
                self.note(FaultClass::Crowd, &format!("{id} stutters in a crowd"));
                let (goes_on, mut own) = (goes_on.clone(), Rng::new(rng.next_u64()));
                all.push(Box::pin(async move {
                    let host = self.context.cluster.node(id).host();
                    self.stutters_now(id, true);
                    for _ in 0..STUTTERS_MAX {
                        self.sleep(0.002 * own.unit()).await;
                        host.stop_process();
                        self.sleep(0.003 * own.unit()).await;
                        host.continue_process();
                        if !goes_on.get() {
                            break;
                        }
                    }
                    self.stutters_now(id, false);
                    self.give_back(id);
                }));
            }
            rt::sync::join_all(all).await;
        }
    }
    /// A client stutters from now on, or no longer: in seeds with crowds what it answers meanwhile counts.
    pub(super) fn stutters_now(&self, id: NodeId, does: bool) {
        let mut all = self.context.cluster.stuttering.borrow_mut();
        match id {
            NodeId::Client(client) if does && self.config.crowds => drop(all.insert(client)),
            NodeId::Client(client) => drop(all.remove(&client)),
            _ => {}
        }
    }

    /// What a client has sent waits at OSTs whose disks stand still, the client itself until it has long been evicted; or it gives
    /// them up.
    async fn strands(&self, mut rng: Rng) {
        while let Some(Strand { client, how, over }) = self.context.strands.next().await {
            let id = NodeId::Client(client);
            if !self.take(id) {
                continue;
            }
            match how {
                Leaves::Evicted => self.left_behind(id, &mut rng).await,
                Leaves::GivenUp => self.give_all_up(client, &mut rng).await,
            }
            self.give_back(id);
            over.send(());
        }
    }
    async fn left_behind(&self, id: NodeId, rng: &mut Rng) {
        let seconds = 75.0 + 15.0 * rng.unit();
        let still = seconds + 5.0 * rng.unit();
        self.note(
            FaultClass::Strand,
            &format!("{id} is left behind for {seconds:.3} s, all OSTs' disks for {still:.3} s"),
        );
        self.context.was_away(id);
        for oss in self.context.cluster.osses() {
            oss.host().stall_disk(Duration::from_nanos((still * 1e9) as u64));
        }
        // What it has to send arrives.
        self.sleep(0.05 + 0.1 * rng.unit()).await;
        let host = self.context.cluster.node(id).host();
        host.stop_process();
        self.sleep(seconds).await;
        // Calls that it had not sent yet would go on in a session of their own, behind what others wrote meanwhile.
        self.note_kill(id, false, false);
        self.context.client_died();
        self.context.cluster.kill(id, false);
        self.sleep(still - seconds).await;
        self.start_again(id).await;
    }
    /// The OSTs are asleep when their client gives them up and takes them back: what it had sent waits in front of what others send then.
    async fn give_all_up(&self, client: usize, rng: &mut Rng) {
        let context = &self.context;
        let still = 2.0 + 8.0 * rng.unit();
        self.note(
            FaultClass::Strand,
            &format!("client{client} gives all OSTs up, whose disks stand still for {still:.3} s"),
        );
        for oss in context.cluster.osses() {
            oss.host().stall_disk(Duration::from_nanos((still * 1e9) as u64));
        }
        // What it has to send arrives.
        self.sleep(0.05 + 0.1 * rng.unit()).await;
        let set = |active| {
            let osts = context.cluster.client(client).map(|c| c.osts().all());
            osts.into_iter().flatten().for_each(|osc| osc.set_active(active));
        };
        context.gives_up(client, true);
        set(false);
        self.sleep(0.5 * rng.unit()).await;
        set(true);
        context.gives_up(client, false);
        self.sleep(still).await;
    }

    /// A client dies with the metadata server, and nobody but its next process says that it does not come back; then the server dies
    /// again, before another client that stood still has told it everything.
    async fn gaps(&self, mut rng: Rng) {
        while let Some(Gap { dies, late, over }) = self.context.gaps.next().await {
            let (dies, late) = (NodeId::Client(dies), NodeId::Client(late));
            if !self.context.cluster.is_in_service(NodeId::Mds) || !self.take_all(&[NodeId::Mds, dies, late]) {
                continue;
            }
            self.note(FaultClass::Gap, &format!("{dies} and mds die, while {late} stands still"));
            let cluster = &self.context.cluster;
            self.context.was_away(late);
            cluster.node(late).host().stop_process();
            for id in [dies, NodeId::Mds] {
                self.note_kill(id, false, true);
                cluster.kill(id, false);
                self.context.count(|c| c.kills += 1);
            }
            self.context.client_died();
            self.context.mds_died();
            let (mut first, mut second) = (Rng::new(rng.next_u64()), Rng::new(rng.next_u64()));
            let client = async {
                self.sleep(first.unit() * first.unit()).await;
                self.start_again(dies).await;
            };
            let server = async {
                self.sleep(second.unit() * second.unit()).await;
                self.start_again(NodeId::Mds).await;
                // The next process on the dead one's host needs a session before it can say so.
                self.sleep(4.0 * second.unit()).await;
                self.note_kill(NodeId::Mds, false, false);
                cluster.kill(NodeId::Mds, false);
                self.context.mds_died();
                self.sleep(second.unit() * second.unit()).await;
                if second.chance(0.5) {
                    cluster.node(late).host().continue_process();
                }
                self.start_again(NodeId::Mds).await;
            };
            let both: Vec<LocalFuture<'_>> = vec![Box::pin(client), Box::pin(server)];
            rt::sync::join_all(both).await;
            cluster.node(late).host().continue_process();
            [NodeId::Mds, dies, late].into_iter().for_each(|id| self.give_back(id));
            over.send(());
        }
    }
    /// A client is cut off from OSTs, which die; it is back before they give it up, mostly.
    async fn absences(&self, mut rng: Rng) {
        while let Some(Absence { client, cut, over }) = self.context.absences.next().await {
            let (cluster, id) = (&self.context.cluster, NodeId::Client(client));
            let mut osses: Vec<NodeId> =
                cluster.ost_indices().into_iter().map(NodeId::Oss).filter(|_| rng.chance(0.7)).collect();
            if osses.is_empty() {
                osses.push(self.any_oss(&mut rng));
            }
            if !self.take_all(&[&[id], osses.as_slice()].concat()) {
                continue;
            }
            self.note(FaultClass::Absent, &format!("{id} is cut off from {} OSTs, which die", osses.len()));
            self.context.was_away(id);
            let host = cluster.node(id).host();
            osses.iter().for_each(|o| cluster.sim.cut(host, cluster.node(*o).host()));
            cut.send(());
            self.sleep(0.02 + 0.3 * rng.unit()).await;
            let die = osses.iter().map(|o| self.dies_without(*o, id, Rng::new(rng.next_u64())));
            rt::sync::join_all(die.collect()).await;
            self.give_back(id);
            over.send(());
        }
    }
    /// An OST dies, once or twice, and runs again; a client that is cut off from it reaches it some time later.
    async fn dies_without(&self, oss: NodeId, client: NodeId, mut rng: Rng) {
        let cluster = &self.context.cluster;
        let window = cluster.config.recovery_window.as_nanos() as f64 / 1e9;
        let deaths = if rng.chance(0.3) { 2 } else { 1 };
        for nth in 0..deaths {
            // Between two of them others are served.
            self.sleep(f64::from(nth) * 8.0 * rng.unit()).await;
            let power = rng.chance(self.config.power);
            self.note_kill(oss, power, false);
            cluster.kill(oss, power);
            self.context.count(|c| c.kills += 1);
            self.sleep(3.0 * rng.unit() * rng.unit()).await;
            self.start_again(oss).await;
        }
        self.give_back(oss);
        let late = rng.chance(0.15);
        self.sleep(if late { window + 5.0 } else { 2.0 + 0.7 * window * rng.unit() }).await;
        cluster.sim.heal(cluster.node(client).host(), cluster.node(oss).host());
    }
    pub(super) async fn start_again(&self, id: NodeId) {
        if let Err(e) = self.context.cluster.start(id).await {
            self.context.complain(e);
        }
    }
}
