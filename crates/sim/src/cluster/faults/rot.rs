//! Media that do not keep what was written: data that is read wrong, and pages of databases that are otherwise than they were.
use std::path::Path;

use types::Rng;

use super::super::class::FaultClass;
use super::super::nodes::{MDT_FILE, NodeId, OST_DATABASE};
use super::Faults;

/// Bits of a page of a database.
const PAGE_BITS: u64 = 8 * 4096;

/// The engine writes this one in parts, so that it could not be told from what it was; what a check says of it has tests of its own.
const HEADER_PAGE: u64 = 0;

/// A flipped bit, and the page that has it from then on.
struct Flipped {
    page: Vec<u8>,
    bit: u64,
}

impl Faults {
    /// Reads of an OST's disk bring flipped bits for a while; a checksum must find each of them.
    pub(super) async fn bit_rot(&self, rng: &mut Rng) {
        let id = self.any_oss(rng);
        if !self.take(id) {
            return;
        }
        let (reads, seconds) = (1 + rng.below(20) as u32, 5.0 * rng.unit());
        self.note(FaultClass::BitRot, &format!("{reads} reads of the disk of {id} bring a flipped bit each"));
        self.context.disks.fails(id);
        let host = self.context.cluster.node(id).host();
        host.set_bit_rot(reads);
        self.sleep(seconds).await;
        host.set_bit_rot(0);
        self.context.disks.works(id);
        self.give_back(id);
    }

    /// A bit of a server's database flips for good, while the server runs or while it is down. Whatever the server answers until it
    /// is started again is right or an error. It does not start over a page that counts and is not what was written, and says
    /// so; when that page has been put back from a copy, it does.
    pub(super) async fn page_rot(&self, rng: &mut Rng) {
        let id = self.any_server(rng);
        if id == NodeId::Mds && self.client_died_lately() || !self.take(id) {
            return;
        }
        let runs = rng.chance(0.6);
        self.note(
            FaultClass::PageRot,
            &format!(
                "a bit of the database of {id} flips, {}",
                if runs { "below the running server" } else { "while it is down" }
            ),
        );
        self.context.disks.fails(id);
        let mut flipped = None;
        if runs {
            flipped = self.flip(id, rng);
            self.sleep(8.0 * rng.unit() * rng.unit()).await;
        }
        let power = rng.chance(self.config.power);
        self.note_kill(id, power, false);
        if id == NodeId::Mds {
            self.context.mds_died();
        }
        self.context.cluster.kill(id, power);
        self.context.count(|c| c.kills += 1);
        self.sleep(self.config.down_max_s * rng.unit() * rng.unit()).await;
        if !runs {
            flipped = self.flip(id, rng);
        }
        if let Err(refused) = self.context.cluster.start(id).await {
            self.put_back(id, flipped, &refused);
            self.context.cluster.kill(id, false);
            if let Err(e) = self.context.cluster.start(id).await {
                self.context.complain(format!("{e}, although the damaged page was put back; before: {refused}"));
            }
        }
        tracing::info!("{id} runs again");
        self.context.disks.works(id);
        self.give_back(id);
    }

    /// Flips a bit of a server's database.
    fn flip(&self, id: NodeId, rng: &mut Rng) -> Option<Flipped> {
        let (nth, bit) = (rng.next_u64(), rng.below(PAGE_BITS));
        let host = self.context.cluster.node(id).host();
        let mut page = host.some_page(database(id), nth)?;
        let pages = host.rot_pages(database(id), &page, bit);
        page[(bit / 8) as usize] ^= 1 << (bit % 8);
        if pages.contains(&HEADER_PAGE) {
            let _ = host.rot_pages(database(id), &page, bit);
            return None;
        }
        Some(Flipped { page, bit })
    }

    /// Puts a page back as it was, for which a server did not start.
    fn put_back(&self, id: NodeId, flipped: Option<Flipped>, refused: &str) {
        tracing::info!("does not start: {refused}");
        let host = self.context.cluster.node(id).host();
        let there = flipped.is_some_and(|f| !host.rot_pages(database(id), &f.page, f.bit).is_empty());
        if !there {
            self.context.complain(format!("no page of its database is otherwise than it was written: {refused}"));
        }
    }
}

/// Where a server's database is on its host.
fn database(id: NodeId) -> &'static Path {
    Path::new(if id == NodeId::Mds { MDT_FILE } else { OST_DATABASE })
}
