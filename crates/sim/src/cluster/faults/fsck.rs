//! A check of all stores, and their repair, between a crash of all servers and their next start.
use fsck::Outcome;
use types::Rng;

use super::super::check::Down;
use super::super::class::FaultClass;
use super::super::nodes::{MDT_FILE, NodeId, OST_DATABASE, OST_FILE};
use super::Faults;

/// How long a check waits for all servers to be there.
const WAITS_S: u32 = 10;
/// Bits of the page of a database's header that are zero, whatever was committed: behind both slots.
const ZERO_BITS: std::ops::Range<u64> = 8 * 320..8 * 4096;
/// Bits of the superblock of a data file.
const SUPERBLOCK_BITS: u64 = 8 * 128;

impl Faults {
    /// All servers end; before they start again their stores are checked and repaired, as `stria fsck --repair` does. Nothing but what
    /// rotted is a fault, what rotted is put right from its copies, a second repair finds nothing to do, and what was promised holds.
    pub(super) async fn fsck(&self, rng: &mut Rng) {
        let _spared = self.context.scars.spare();
        // Blocks of data that a medium has lost stay lost, and cost a file its name: that is looked at in the end.
        let waits = self.checks.get() || self.context.is_some_disk_full() || self.context.scars.is_unrepaired();
        let taken = if waits || self.client_died_lately() { None } else { self.take_servers().await };
        let Some(servers) = taken else { return };
        self.checks.set(true);
        self.note(FaultClass::Fsck, "all servers end, and their stores are checked");
        for id in &servers {
            let power = rng.chance(self.config.power);
            self.note_kill(*id, power, false);
            if *id == NodeId::Mds {
                self.context.mds_died();
            }
            self.context.cluster.kill(*id, power);
            self.context.count(|c| c.kills += 1);
            if rng.chance(0.3) {
                self.sleep(0.1 * rng.unit()).await;
            }
        }
        self.sleep(self.config.down_max_s * rng.unit() * rng.unit()).await;
        let rotten = self.rots(rng);
        self.check_and_repair(rotten, rng).await;
        for id in &servers {
            if let Err(e) = self.context.cluster.start(*id).await {
                self.context.complain(format!("after a repair: {e}"));
            }
            self.sleep(rng.unit() * rng.unit()).await;
        }
        tracing::info!("all servers run again");
        self.checks.set(false);
        servers.into_iter().for_each(|id| self.give_back(id));
    }

    /// Takes all servers, none of which is on its way into the cluster or out of it.
    async fn take_servers(&self) -> Option<Vec<NodeId>> {
        for _ in 0..WAITS_S * 10 {
            if self.context.ending.get() {
                return None;
            }
            let servers: Vec<NodeId> =
                self.context.cluster.ost_indices().into_iter().map(NodeId::Oss).chain([NodeId::Mds]).collect();
            if !self.grows.get() && self.take_all(&servers) {
                return Some(servers);
            }
            self.sleep(0.1).await;
        }
        None
    }

    /// A bit flips, in two of five times, in what there is a copy of; whether one did.
    fn rots(&self, rng: &mut Rng) -> bool {
        let (kind, id) = (rng.below(5), self.any_server(rng));
        let (path, bit) = match (kind, id) {
            (0, NodeId::Oss(_)) => (OST_FILE, rng.below(SUPERBLOCK_BITS)),
            (0 | 1, _) => {
                let bit = ZERO_BITS.start + rng.below(ZERO_BITS.end - ZERO_BITS.start);
                if id == NodeId::Mds && self.context.cluster.has_database() {
                    return false;
                }
                (if id == NodeId::Mds { MDT_FILE } else { OST_DATABASE }, bit)
            }
            _ => return false,
        };
        tracing::info!("bit {bit} of {path} of {id} flips");
        self.context.cluster.node(id).host().flip(path.as_ref(), bit)
    }

    async fn check_and_repair(&self, rotten: bool, rng: &mut Rng) {
        let (down, data) = (Down::of(&self.context.cluster), rng.chance(0.5));
        let found = fsck::run(&down, data, false).await;
        let wanted = if rotten { Outcome::Uncorrected } else { Outcome::Clean };
        let said = down.said();
        let outcome = if found == Ok(wanted) { Ok(()) } else { Err(format!("{found:?}: {said:?}")) };
        self.context.expect(if rotten { "fsck of what rotted" } else { "fsck of what nothing befell" }, outcome);
        let mended = fsck::run(&down, data, true).await;
        let said = down.said();
        let well = matches!(mended, Ok(Outcome::Clean | Outcome::Corrected));
        self.context.expect("fsck --repair", if well { Ok(()) } else { Err(format!("{mended:?}: {said:?}")) });
        let again = fsck::run(&down, true, true).await;
        let said = down.said();
        let outcome = if again == Ok(Outcome::Clean) { Ok(()) } else { Err(format!("{again:?}: {said:?}")) };
        self.context.expect("fsck --repair for the second time", outcome);
    }
}
