//! A program whose file lies on media that lose bits for good: a read of a block that was hit fails or brings what was written, never
//! anything else; all other blocks can be read, whatever lies beside them; a block that is written anew is whole again.
//!
//! What is still damaged in the end a check of the stores has to name ([`Scars`]), and nothing else.
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

use types::{Duration, Extent, Fid, FsError, Rng};
use wire::mdt::Cred;

use super::class::FaultClass;
use super::context::Context;
use super::model::{byte, bytes};
use super::nodes::OST_DIR;
use super::shared::settle_everything;

const O_RDWR: u32 = 2;
/// Bytes of a block: what a store has one checksum of.
const BLOCK: u64 = 4096;
/// Blocks of the file.
const BLOCKS: u64 = 48;
/// Bytes of the file.
pub const SCARRED_BYTES: u64 = BLOCK * BLOCKS;
/// Times that a block is looked for by a sound client in the end.
const ATTEMPTS_MAX: u32 = 200;

/// A block of an OST's data file.
pub type Place = (usize, u64);

/// What media have lost for good.
#[derive(Default)]
pub struct Scars {
    /// Every block that was ever hit.
    pub hit: RefCell<BTreeSet<Place>>,
    /// Of blocks that are damaged in the end the places of which one has to be found.
    pub must: RefCell<Vec<Vec<Place>>>,
    /// Checks of all stores that are under way or wait for their turn.
    checks: Cell<u32>,
    repaired: Cell<bool>,
}

/// All stores are checked, or will be at once: nothing is hit meanwhile, for whoever checks says what must be found.
pub struct Spared<'a>(&'a Scars);
impl Drop for Spared<'_> {
    fn drop(&mut self) {
        self.0.checks.set(self.0.checks.get() - 1);
    }
}

impl Scars {
    /// Nothing is hit until this goes.
    #[must_use]
    pub fn spare(&self) -> Spared<'_> {
        self.checks.set(self.checks.get() + 1);
        Spared(self)
    }
    fn are_spared(&self) -> bool {
        self.checks.get() > 0
    }
    /// Whether blocks were hit that nobody has repaired.
    #[must_use]
    pub fn is_unrepaired(&self) -> bool {
        !self.repaired.get() && !self.hit.borrow().is_empty()
    }
    /// A repair has seen all stores.
    pub fn are_repaired(&self) {
        self.repaired.set(true);
    }
}

#[derive(Clone, Default)]
struct Block {
    /// Written and synced; 0: zeros.
    stamp: u64,
    /// Written since, perhaps.
    maybe: Vec<u64>,
    /// Where it was hit since it was written and synced last.
    hit: Vec<Place>,
}

/// See the module's head.
pub struct Scarred {
    context: Rc<Context>,
    fid: Fid,
    rng: Rng,
    blocks: Vec<Block>,
}

fn extent(block: u64) -> Extent {
    Extent::at(block * BLOCK, BLOCK)
}

impl Scarred {
    /// Over a file of [`SCARRED_BYTES`] zeros that only it writes.
    #[must_use]
    pub fn new(context: Rc<Context>, fid: Fid) -> Scarred {
        let rng = context.rng("scarred");
        Scarred { context, fid, rng, blocks: vec![Block::default(); BLOCKS as usize] }
    }
    /// Works until the run is calm, then looks at every block from every client.
    pub async fn run(mut self) {
        while !self.context.calm.get() && !self.context.failed() {
            match self.rng.below(4) {
                0 => self.write().await,
                1 if !self.context.ending.get() => self.hit(),
                _ => drop(self.read_some().await),
            }
            self.context.cluster.sim.sleep(Duration::from_millis(self.rng.below(400))).await;
        }
        for c in 0..self.context.cluster.clients.len() {
            for block in 0..BLOCKS {
                self.read_surely(c, block).await;
            }
        }
        // What is written and not synced might still take a damaged block's place.
        settle_everything(&self.context).await;
        let hit = self.blocks.iter().filter(|b| !b.hit.is_empty() && b.maybe.is_empty()).map(|b| b.hit.clone());
        self.context.scars.must.borrow_mut().extend(hit);
    }
    async fn write(&mut self) {
        let c = self.context.any_client(&mut self.rng).await;
        let Some(author) = self.context.author(c) else { return };
        let first = self.rng.below(BLOCKS);
        let written: Vec<(u64, u64)> =
            (first..BLOCKS.min(first + 1 + self.rng.below(6))).map(|b| (b, self.context.stamp())).collect();
        for (block, stamp) in &written {
            self.blocks[*block as usize].maybe.push(*stamp);
        }
        let (fid, sends) = (self.fid, written.clone());
        let what = format!("scarred: write and fsync of {written:?}");
        let done = self.context.on(c, &what, async move |c| {
            let file = c.open(&Cred::default(), fid, O_RDWR).await?;
            for (block, stamp) in sends {
                c.data().write(&file, extent(block).start, &bytes(stamp, extent(block))).await?;
            }
            let synced = c.data().fsync(&file, false).await;
            c.release(&file).await.and(synced)
        });
        match done.await {
            Some(Ok(())) if self.context.is_sound(author) => {
                for (block, stamp) in written {
                    self.blocks[block as usize] = Block { stamp, ..Block::default() };
                }
            }
            Some(Err(e)) if self.context.is_sound(author) && !self.context.is_full(c, Some(fid), &e.to_string()) => {
                self.context.complain(format!("scarred: write of whole blocks on client{c}: {e}"));
            }
            _ => {}
        }
    }
    /// Bits of a block flip on whatever disk has it.
    fn hit(&mut self) {
        let block = self.rng.below(BLOCKS);
        let bit = self.rng.next_u64();
        let (stamp, context) = (self.blocks[block as usize].stamp, self.context.clone());
        if stamp == 0 || context.scars.are_spared() {
            return;
        }
        let content = bytes(stamp, extent(block));
        for (i, oss) in context.cluster.ost_indices().into_iter().zip(context.cluster.osses()) {
            let places: Vec<Place> = oss
                .host()
                .rot_pages(&Path::new(OST_DIR).join("data"), &content, bit)
                .into_iter()
                .map(|p| (i, p))
                .collect();
            if !places.is_empty() {
                context.note(FaultClass::RotStays, &format!("block {block} of the scarred file rots at {places:?}"));
                context.scars.hit.borrow_mut().extend(&places);
                self.blocks[block as usize].hit.extend(places);
            }
        }
    }
    async fn read_some(&mut self) -> bool {
        let (c, block) = (self.context.any_client(&mut self.rng).await, self.rng.below(BLOCKS));
        self.read(c, block).await
    }
    async fn read_surely(&mut self, client: usize, block: u64) {
        for _ in 0..ATTEMPTS_MAX {
            if self.context.failed() || self.read(client, block).await {
                return;
            }
            self.context.cluster.sim.sleep(Duration::from_millis(500)).await;
        }
        self.context.complain(format!("scarred: block {block} could not be read on client{client}"));
    }
    /// Reads one block; whether that says something.
    async fn read(&mut self, c: usize, block: u64) -> bool {
        let Some(author) = self.context.author(c) else { return false };
        let (fid, at) = (self.fid, extent(block));
        let what = format!("scarred: read of block {block}");
        let read = self.context.on(c, &what, async move |c| {
            let file = c.open(&Cred::default(), fid, 0).await?;
            let got = c.data().read(&file, at.start, BLOCK as usize).await.map(|b| b.to_vec());
            let _ = c.release(&file).await;
            got
        });
        let read = read.await;
        if !self.context.is_sound(author) {
            return false;
        }
        let Some(read) = read else { return false };
        self.context.expect(&format!("{what} on client{c}"), self.blocks[block as usize].judge(at, read));
        true
    }
}

impl Block {
    fn judge(&self, at: Extent, read: Result<Vec<u8>, FsError>) -> Result<(), String> {
        let got = match read {
            // What was written since and not answered may have made it whole, or not.
            Err(FsError::Io | FsError::Corrupt) if !self.hit.is_empty() => return Ok(()),
            Err(e) => return Err(format!("{e}, and nothing of it was hit")),
            Ok(got) => got,
        };
        if got.len() as u64 != BLOCK {
            return Err(format!("{} bytes", got.len()));
        }
        let may = |stamp: u64, o: u64, b: u8| b == if stamp == 0 { 0 } else { byte(stamp, o) };
        let wrong = (at.start..)
            .zip(&got)
            .find(|(o, b)| !may(self.stamp, *o, **b) && !self.maybe.iter().any(|s| may(*s, *o, **b)));
        match wrong {
            None => Ok(()),
            Some((o, b)) => Err(format!(
                "byte {o} is {b}, which nobody wrote; written: {} and {:?}; hit: {:?}",
                self.stamp, self.maybe, self.hit
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_hit_while_a_check_goes_on_beside_which_another_one_was_given_up() {
        let scars = Scars::default();
        let goes_on = scars.spare();
        drop(scars.spare());
        assert!(scars.are_spared());
        drop(goes_on);
        assert!(!scars.are_spared());
    }

    #[test]
    fn a_block_that_was_hit_fails_or_is_what_was_written() {
        let whole = Block { stamp: 7, ..Block::default() };
        let hit = Block { hit: vec![(0, 3)], ..whole.clone() };
        let good = bytes(7, extent(2));
        let mut bad = good.clone();
        bad[9] ^= 1;
        assert!(whole.judge(extent(2), Ok(good.clone())).is_ok() && hit.judge(extent(2), Ok(good)).is_ok());
        assert!(whole.judge(extent(2), Err(FsError::Io)).is_err() && hit.judge(extent(2), Err(FsError::Io)).is_ok());
        assert!(whole.judge(extent(2), Ok(bad.clone())).is_err() && hit.judge(extent(2), Ok(bad)).is_err());
    }
}
