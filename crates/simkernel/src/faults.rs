//! What goes wrong beside a run's programs: deaths of servers, signals to programs, links that break.
use std::rc::Rc;

use rt::LocalFuture;
use rt::sync::OneReceiver;
use sim::cluster::NodeId;
use types::{Duration, Rng};

use crate::run::{Faults, World};

/// Begins what is to go wrong; each of the results comes when its part is over, soon after the run's end was said.
pub(crate) fn begin(world: &Rc<World>, faults: &Faults) -> Vec<OneReceiver<()>> {
    let mut all: Vec<LocalFuture<()>> = Vec::new();
    if faults.kill_interval_s > 0.0 {
        all.push(Box::pin(kill_servers(world.clone(), faults.clone())));
    }
    if faults.signal_interval_s > 0.0 {
        all.push(Box::pin(send_signals(world.clone(), faults.signal_interval_s)));
    }
    if faults.part_interval_s > 0.0 {
        all.push(Box::pin(break_links(world.clone(), faults.clone())));
    }
    let begin = |task: LocalFuture<()>| {
        let (tx, rx) = rt::sync::oneshot();
        world.context.cluster.sim.spawn(async move {
            task.await;
            tx.send(());
        });
        rx
    };
    all.into_iter().map(begin).collect()
}

fn seconds(s: f64) -> Duration {
    Duration::from_nanos((s * 1e9) as u64)
}

async fn kill_servers(world: Rc<World>, faults: Faults) {
    let context = &world.context;
    let cluster = &context.cluster;
    let mut rng = context.rng("deaths of servers");
    loop {
        cluster.sim.sleep(seconds(faults.kill_interval_s * 2.0 * rng.unit())).await;
        if context.ending.get() || context.failed() {
            return;
        }
        let at = rng.below(1 + cluster.ost_indices().len() as u64) as usize;
        let id = if at == 0 { NodeId::Mds } else { NodeId::Oss(at - 1) };
        tracing::info!("{id} is killed");
        cluster.kill(id, rng.chance(0.5));
        cluster.sim.sleep(seconds(faults.down_max_s * rng.unit())).await;
        if let Err(e) = cluster.start(id).await {
            context.complain(e);
        }
        while !cluster.is_in_service(id) && !context.failed() {
            cluster.sim.sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Cuts links, or resets their connections: of a client and a server, or of two servers.
async fn break_links(world: Rc<World>, faults: Faults) {
    let cluster = &world.context.cluster;
    let mut rng = world.context.rng("links");
    let servers: Vec<NodeId> = cluster.nodes().map(|n| n.id).filter(|id| !matches!(id, NodeId::Client(_))).collect();
    loop {
        cluster.sim.sleep(seconds(faults.part_interval_s * 2.0 * rng.unit())).await;
        if world.context.ending.get() || world.failed() {
            break;
        }
        let any = |rng: &mut Rng| servers[rng.below(servers.len() as u64) as usize];
        let client = NodeId::Client(rng.below(world.kernels.len() as u64) as usize);
        let (a, b) = (if rng.chance(0.8) { client } else { any(&mut rng) }, any(&mut rng));
        if a == b {
            continue;
        }
        let (x, y) = (cluster.node(a).host(), cluster.node(b).host());
        let time = seconds(faults.parted_max_s * rng.unit());
        tracing::info!("{a} and {b} are parted for {time:?}");
        match rng.below(4) {
            0 => drop(cluster.sim.reset(x, y)),
            1 => cluster.sim.cut_one_way(x, y),
            2 => cluster.sim.cut_one_way(y, x),
            _ => cluster.sim.cut(x, y),
        }
        cluster.sim.sleep(time).await;
        cluster.sim.heal(x, y);
    }
    if faults.evict() {
        // Clients that were away learn that they were evicted, and begin anew.
        cluster.sim.sleep(Duration::from_secs(90)).await;
    }
}

async fn send_signals(world: Rc<World>, interval_s: f64) {
    let mut rng = world.context.rng("signals");
    let sim = &world.context.cluster.sim;
    while !world.context.ending.get() && !world.failed() {
        sim.sleep(seconds(interval_s * 2.0 * rng.unit())).await;
        let at = rng.below(world.callers.len() as u64) as usize;
        world.callers[at].signal(rng.chance(0.5));
    }
}
