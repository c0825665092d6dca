//! What befalls a metadata server whose store is a database: the database does not answer, or a standby follows a server that lives on.
use types::Rng;

use super::super::class::FaultClass;
use super::super::nodes::NodeId;
use super::Faults;

/// A server of before that reaches the store again, or goes on, knows within so many seconds that another one has it.
const KNOWS_WITHIN_S: u32 = 60;

impl Faults {
    /// The database does not answer for a while, or a standby follows the metadata server.
    pub(super) async fn database_fails(&self, rng: &mut Rng) {
        if self.client_died_lately() || !self.take(NodeId::Mds) {
            return;
        }
        // In some cases longer than clients and recovery windows wait.
        let seconds = if rng.chance(0.3) { 20.0 + 80.0 * rng.unit() } else { 10.0 * rng.unit() * rng.unit() };
        if rng.chance(0.4) {
            self.database_is_away(seconds).await;
        } else {
            self.take_over(seconds, rng).await;
        }
        self.give_back(NodeId::Mds);
    }

    /// Nobody reaches the database for a while. Who waits for it goes on afterwards, and nobody is given up for that.
    async fn database_is_away(&self, seconds: f64) {
        let cluster = &self.context.cluster;
        let host = cluster.mds.host();
        self.note(FaultClass::Standby, &format!("the database does not answer for {seconds:.3} s"));
        self.context.mds_died();
        cluster.cut_off_database(host, true);
        self.sleep(seconds).await;
        cluster.cut_off_database(host, false);
        // What a client answered lately is committed now only.
        self.context.mds_died();
    }

    /// The server that runs is cut off from its store or stopped; the standby takes the store over when the lease has run out. Some time
    /// later the one of before is there again, finds out, and ends: nothing that it says or does meanwhile may hurt.
    async fn take_over(&self, seconds: f64, rng: &mut Rng) {
        let cluster = &self.context.cluster;
        let Some(before) = cluster.step_aside() else { return };
        let stands_still = rng.chance(0.5);
        let what = if stands_still { "stands still" } else { "is cut off from the metadata store" };
        let name = before.name();
        self.note(FaultClass::Standby, &format!("the metadata server on {name} {what}, and the standby follows it"));
        self.context.mds_died();
        self.context.count(|c| c.kills += 1);
        if stands_still {
            before.stop_process();
        } else {
            cluster.cut_off_database(&before, true);
        }
        if let Err(e) = cluster.start(NodeId::Mds).await {
            self.context.complain(e);
        }
        tracing::info!("the standby serves");
        self.sleep(seconds).await;
        cluster.cut_off_database(&before, false);
        before.continue_process();
        tracing::info!("the metadata server of before is there again");
        for _ in 0..KNOWS_WITHIN_S * 10 {
            if cluster.aside_knows() {
                break;
            }
            self.sleep(0.1).await;
        }
        let knows = cluster.aside_knows();
        let told = || format!("it does not know it {KNOWS_WITHIN_S} s after it was there again");
        self.context.expect("a metadata server that was replaced", if knows { Ok(()) } else { Err(told()) });
        cluster.end_aside();
    }
}
