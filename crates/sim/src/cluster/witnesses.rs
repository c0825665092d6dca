//! A program of two clients: one writes a block, another one's fsync answers for it, and then the writer dies together with the power of
//! all OSTs.
//!
//! An fsync makes durable what any client had been answered as written before, wherever it lies: in its writer's cache, in an
//! OST's memory, on its disk without a sync. To lose it after such an fsync takes exactly these deaths at that moment.
use std::rc::Rc;

use types::{Duration, Extent, Fid, Rng};
use wire::mdt::Cred;

use super::context::Context;
use super::model::{Author, byte, bytes};
use super::moments::Strike;
use super::shared::look_at;

const O_RDWR: u32 = 2;
/// Bytes of a block: some lie in two pages.
const BLOCK: u64 = 1500;
/// Blocks of the file.
const BLOCKS: u64 = 80;
/// Bytes of the file.
pub const WITNESS_BYTES: u64 = BLOCK * BLOCKS;

/// What a block may hold.
#[derive(Clone, Default)]
struct Block {
    /// An fsync has answered for it; 0: zeros.
    promised: u64,
    /// Written since.
    maybe: Vec<u64>,
}

impl Block {
    fn may_be(&self, offset: u64, value: u8) -> bool {
        let is = |stamp: u64| value == if stamp == 0 { 0 } else { byte(stamp, offset) };
        is(self.promised) || self.maybe.iter().copied().any(is)
    }
}

/// See the module's head.
pub struct Witness {
    context: Rc<Context>,
    fid: Fid,
    id: usize,
    rng: Rng,
    blocks: Vec<Block>,
}

impl Witness {
    /// Program `id` over a file of [`WITNESS_BYTES`] zeros that only it writes.
    #[must_use]
    pub fn new(context: Rc<Context>, fid: Fid, id: usize) -> Witness {
        let rng = context.rng(&format!("witness {id}"));
        Witness { context, fid, id, rng, blocks: vec![Block::default(); BLOCKS as usize] }
    }
    fn what(&self, verb: &str) -> String {
        format!("witness{}: {verb}", self.id)
    }
    /// Works until the run is calm, then looks at its blocks.
    pub async fn run(mut self, operations: u64) {
        let mut rounds = 0;
        while rounds < operations && !self.context.calm.get() && !self.context.failed() {
            self.round().await;
            rounds += 1;
            self.context.cluster.sim.sleep(Duration::from_micros(self.rng.below(1_000_000))).await;
        }
        while !self.context.calm.get() {
            self.context.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
        if !self.context.failed() && !self.look().await {
            self.context.complain(self.what("its file could not be read"));
        }
    }
    async fn round(&mut self) {
        let writer = self.context.any_client(&mut self.rng).await;
        let block = self.rng.below(BLOCKS);
        // Who loses its session from here on may lose what it writes.
        let Some(author) = self.context.author(writer) else { return };
        if !self.write(writer, block).await {
            return;
        }
        let syncs = self.context.any_client(&mut self.rng).await;
        if self.rng.chance(0.3) {
            self.look().await;
        }
        if self.sync(author, syncs, block).await && self.context.strikes.wish(Strike { client: writer }) {
            // What is struck first answers nothing for a while: whoever reads waits.
            self.context.cluster.sim.sleep(Duration::from_millis(200)).await;
            self.look().await;
        }
    }
    async fn write(&mut self, client: usize, block: u64) -> bool {
        let (stamp, extent, fid) = (self.context.stamp(), Extent::at(block * BLOCK, BLOCK), self.fid);
        let what = self.what(&format!("write of block {block} with stamp {stamp}"));
        self.blocks[block as usize].maybe.push(stamp);
        let done = self.context.on(client, &what, async move |c| {
            let file = c.open(&Cred::default(), fid, O_RDWR).await?;
            let written = c.data().write(&file, extent.start, &bytes(stamp, extent)).await;
            c.release(&file).await.and(written)
        });
        matches!(done.await, Some(Ok(_)))
    }
    /// Whether another client's fsync answers for what a client has just written to a block.
    async fn sync(&mut self, author: Author, client: usize, block: u64) -> bool {
        let Some(witness) = self.context.author(client) else { return false };
        let (fid, what) = (self.fid, self.what("fsync"));
        let synced = self.context.on(client, &what, async move |c| {
            let file = c.open(&Cred::default(), fid, O_RDWR).await?;
            let synced = c.data().fsync(&file, false).await;
            let _ = c.release(&file).await;
            synced
        });
        let holds = matches!(synced.await, Some(Ok(())));
        if !holds || !self.context.is_sound(author) || !self.context.is_sound(witness) {
            return false;
        }
        let block = &mut self.blocks[block as usize];
        block.promised = block.maybe.pop().unwrap_or(block.promised);
        // What was written before and not answered may still come.
        true
    }
    /// Reads the file on a client, when there is a sound one; whether it was read.
    async fn look(&mut self) -> bool {
        let c = self.context.any_client(&mut self.rng).await;
        let what = self.what("read");
        look_at(&self.context, c, (self.fid, WITNESS_BYTES), &what, |got| self.check(got)).await
    }
    fn check(&self, got: &[u8]) -> Result<(), String> {
        if got.len() as u64 != WITNESS_BYTES {
            return Err(format!("{} bytes of {WITNESS_BYTES}", got.len()));
        }
        for (at, value) in got.iter().enumerate() {
            let (at, block) = (at as u64, &self.blocks[at / BLOCK as usize]);
            if !block.may_be(at, *value) {
                return Err(format!(
                    "byte {at} is {value}: another client's fsync answered for write {} and it is not kept; later writes: {:?}",
                    block.promised, block.maybe
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_what_was_promised_or_was_written_since() {
        let block = Block { promised: 3, maybe: vec![5] };
        assert!(block.may_be(9, byte(3, 9)) && block.may_be(9, byte(5, 9)));
        assert!((0..BLOCK).any(|at| !block.may_be(at, byte(4, at))));
        assert!(Block::default().may_be(9, 0));
    }
}
