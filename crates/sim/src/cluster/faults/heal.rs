//! A disk that fails for a while below a server that nobody starts again.
use simworld::DiskFault;
use types::{Duration, Rng};

use super::Faults;
use crate::cluster::class::FaultClass;
use crate::cluster::nodes::NodeId;

/// A store whose disk is well is back within so many seconds: its server tries every ten, and other faults may have its disk stand
/// still for two minutes meanwhile, or be full for one.
const BACK_WITHIN_S: u32 = 300;

impl Faults {
    pub(super) async fn disk_heals(&self, rng: &mut Rng) {
        let id = self.any_server(rng);
        if id == NodeId::Mds && self.client_died_lately() || !self.take(id) {
            return;
        }
        let kind = rng.below(4);
        let times = if rng.chance(0.3) { 1 + rng.below(3) as u32 } else { u32::MAX };
        let fault = DiskFault { reads: kind == 0, writes: kind % 2 == 1, syncs: kind >= 2, times };
        let seconds = 20.0 * rng.unit() * rng.unit();
        self.note(FaultClass::DiskHeals, &format!("the disk of {id} fails for {seconds:.3} s: {fault:?}"));
        self.context.disks.fails(id);
        let host = self.context.cluster.node(id).host().clone();
        host.set_disk_fault(fault);
        self.fails_for(id, seconds).await;
        host.set_disk_fault(DiskFault::default());
        tracing::info!("the disk of {id} is well again");
        // A store may have failed unnoticed just before, and what was to fail on a disk that stands still does so when that moves.
        loop {
            self.fails_for(id, 2.0 + host.disk_stalled_for().as_nanos() as f64 / 1e9).await;
            if self.context.cluster.is_well(id) || !self.comes_back(id).await {
                break;
            }
        }
        self.context.disks.works(id);
        self.give_back(id);
    }

    /// Waits until a store that failed is back. It was complained about when not.
    async fn comes_back(&self, id: NodeId) -> bool {
        for _ in 0..BACK_WITHIN_S {
            self.fails_for(id, 1.0).await;
            if self.context.cluster.is_well(id) {
                return true;
            }
        }
        self.context.complain(format!("{id} does not come back, {BACK_WITHIN_S} s after its disk is well again"));
        false
    }

    /// What a metadata server has not committed is lost with a client that dies as long as its store has failed.
    async fn fails_for(&self, id: NodeId, seconds: f64) {
        let sim = &self.context.cluster.sim;
        let end = sim.now() + Duration::from_nanos((seconds * 1e9) as u64);
        loop {
            if id == NodeId::Mds {
                self.context.mds_died();
            }
            let left = end.since(sim.now());
            if left == Duration::ZERO {
                return;
            }
            sim.sleep(left.min(Duration::from_secs(1))).await;
        }
    }
}
