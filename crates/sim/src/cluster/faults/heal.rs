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
        self.context.disk_fails();
        let host = self.context.cluster.node(id).host.clone();
        host.set_disk_fault(fault);
        self.fails_for(id, seconds).await;
        host.set_disk_fault(DiskFault::default());
        tracing::info!("the disk of {id} is well again");
        let mut waited = 0;
        while !self.context.cluster.is_well(id) {
            if waited == BACK_WITHIN_S {
                self.context.complain(format!("{id} does not come back, {waited} s after its disk is well again"));
                break;
            }
            self.fails_for(id, 1.0).await;
            waited += 1;
        }
        // A store may have failed unnoticed just before.
        self.fails_for(id, 2.0).await;
        self.context.disk_works();
        self.give_back(id);
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
