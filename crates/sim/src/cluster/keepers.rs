//! Programs that hold several descriptors of a file of their own on one client and believe what fsync answers them, whatever
//! happens meanwhile: evictions, pauses, deaths of servers, failing disks.
//!
//! What holds without any condition: when fsync of a descriptor answers success, everything that the client had answered as
//! written before is durable, unless an error was reported to that very descriptor since. So an error of write-back reaches
//! every descriptor that was open when it happened.
use std::rc::Rc;

use client::OpenFile;
use types::{Duration, Extent, Fid, Rng};
use wire::mdt::Cred;

use super::context::Context;
use super::model::{byte, bytes};
use super::shared::look_at;

const O_RDWR: u32 = 2;
/// Bytes of a block: neither a divisor nor a multiple of a page.
const BLOCK: u64 = 1500;
/// Blocks of the file.
const BLOCKS: u64 = 30;
/// Bytes of the file.
pub const KEEPER_BYTES: u64 = BLOCK * BLOCKS;
/// Descriptors open at a time.
const DESCRIPTORS: usize = 2;
/// Attempts to read the file in the end.
const ATTEMPTS_MAX: u32 = 200;

/// A write of a block.
struct Write {
    stamp: u64,
    /// Descriptors whose next fsync answers for it.
    owed: [bool; DESCRIPTORS],
}

/// What a block may hold: what was promised last, and what was written since.
#[derive(Default)]
struct Block {
    promised: Option<u64>,
    writes: Vec<Write>,
}

impl Block {
    fn may_be(&self, offset: u64, value: u8) -> bool {
        let of = |stamp: Option<u64>| stamp.map_or(0, |s| byte(s, offset));
        of(self.promised) == value || self.writes.iter().any(|w| of(Some(w.stamp)) == value)
    }
    /// A sync of a descriptor answered success, when the first `n` writes were there.
    fn synced(&mut self, descriptor: usize, n: usize) {
        let last = self.writes[..n].iter().rposition(|w| w.owed[descriptor]);
        if let Some(last) = last {
            self.promised = Some(self.writes[last].stamp);
            self.writes.drain(..=last);
        }
    }
}

/// See the module's head.
pub struct Keeper {
    context: Rc<Context>,
    fid: Fid,
    id: usize,
    client: usize,
    start: u64,
    rng: Rng,
    blocks: Vec<Block>,
    open: [Option<Rc<OpenFile>>; DESCRIPTORS],
    /// Of twenty operations so many are syncs: where they are rare, an error of write-back has nobody to tell for long.
    syncs: u64,
    /// Longest pause between two operations, in microseconds.
    pause_us: u64,
}

fn cred() -> Cred {
    Cred::default()
}

impl Keeper {
    /// Program `id` over a file of [`KEEPER_BYTES`] zeros that only it writes.
    #[must_use]
    pub fn new(context: Rc<Context>, fid: Fid, id: usize) -> Keeper {
        let mut rng = context.rng(&format!("keeper {id}"));
        let (syncs, pause_us) = ([1, 5][rng.below(2) as usize], [50_000, 1_000_000][rng.below(2) as usize]);
        let client = id % context.cluster.clients.len();
        let blocks = (0..BLOCKS).map(|_| Block::default()).collect();
        Keeper { context, fid, id, client, start: 0, rng, blocks, open: [const { None }; DESCRIPTORS], syncs, pause_us }
    }
    /// Works until the run is calm, then looks at what became of its blocks.
    pub async fn run(mut self, operations: u64) {
        let mut done = 0;
        while done < operations && !self.context.calm.get() && !self.context.failed() {
            self.one().await;
            done += 1;
            self.context.cluster.sim.sleep(Duration::from_micros(self.rng.below(self.pause_us))).await;
            self.context.ease(&mut self.rng).await;
        }
        while !self.context.calm.get() {
            self.context.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
        // Once nothing goes wrong any more, the second sync has no error to report.
        for _ in 0..2 {
            self.look_for_death();
            self.sync(0).await;
        }
        self.look_until_seen().await;
    }
    fn what(&self, verb: &str) -> String {
        format!("keeper{}: {verb}", self.id)
    }
    async fn one(&mut self) {
        if self.context.cluster.client(self.client).is_none() {
            return self.context.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
        self.look_for_death();
        let descriptor = self.rng.below(DESCRIPTORS as u64) as usize;
        if self.open[descriptor].is_none() {
            return self.open(descriptor).await;
        }
        match self.rng.below(20) {
            0..12 => self.write(descriptor).await,
            12 => self.close(descriptor).await,
            13 | 14 => drop(self.look().await),
            n if n < 15 + self.syncs => self.sync(descriptor).await,
            _ => {}
        }
    }
    /// If its process died, its descriptors went along, and nobody owes an answer for what it had not synced.
    fn look_for_death(&mut self) {
        let start = self.context.cluster.clients[self.client].starts.get();
        if self.start != start {
            self.start = start;
            self.open = [const { None }; DESCRIPTORS];
            self.blocks.iter_mut().flat_map(|b| &mut b.writes).for_each(|w| w.owed = [false; DESCRIPTORS]);
        }
    }
    async fn open(&mut self, descriptor: usize) {
        let fid = self.fid;
        let what = self.what("open");
        let opened = self.context.on(self.client, &what, async move |c| c.open(&cred(), fid, O_RDWR).await);
        if let Some(Ok(file)) = opened.await {
            self.open[descriptor] = Some(file);
            self.blocks.iter_mut().flat_map(|b| &mut b.writes).for_each(|w| w.owed[descriptor] = false);
        }
    }
    async fn write(&mut self, descriptor: usize) {
        let Some(file) = self.open[descriptor].clone() else { return };
        let block = self.rng.below(BLOCKS);
        let (stamp, extent) = (self.context.stamp(), Extent::at(block * BLOCK, BLOCK));
        let what = self.what(&format!("write of block {block} with stamp {stamp}"));
        let done = self
            .context
            .on(self.client, &what, async move |c| c.data().write(&file, extent.start, &bytes(stamp, extent)).await);
        let answered = matches!(done.await, Some(Ok(_)));
        let owed = std::array::from_fn(|d| answered && self.open[d].is_some());
        self.blocks[block as usize].writes.push(Write { stamp, owed });
    }
    async fn sync(&mut self, descriptor: usize) {
        let Some(file) = self.open[descriptor].clone() else { return };
        let written: Vec<usize> = self.blocks.iter().map(|b| b.writes.len()).collect();
        let what = self.what(&format!("fsync of descriptor {descriptor}"));
        let synced = self.context.on(self.client, &what, async move |c| c.data().fsync(&file, false).await).await;
        tracing::debug!("{what}: {synced:?}");
        match synced {
            Some(Ok(())) => {
                for (block, n) in self.blocks.iter_mut().zip(written) {
                    block.synced(descriptor, n);
                }
            }
            _ => self.reported(descriptor),
        }
    }
    async fn close(&mut self, descriptor: usize) {
        let Some(file) = self.open[descriptor].take() else { return };
        let what = self.what("close");
        let closed = self.context.on(self.client, &what, async move |c| {
            let flushed = file.flush_errors();
            c.release(&file).await.and(flushed)
        });
        closed.await;
        self.reported(descriptor);
    }
    /// A descriptor had its error, or is gone: it answers for nothing that was written so far.
    fn reported(&mut self, descriptor: usize) {
        self.blocks.iter_mut().flat_map(|b| &mut b.writes).for_each(|w| w.owed[descriptor] = false);
    }
    /// Reads the file on another client, when there is a sound one; whether it was read.
    async fn look(&mut self) -> bool {
        let c = self.rng.below(self.context.cluster.clients.len() as u64) as usize;
        let what = self.what("read");
        look_at(&self.context, c, (self.fid, KEEPER_BYTES), &what, |got| self.check(got)).await
    }
    fn check(&self, got: &[u8]) -> Result<(), String> {
        if got.len() as u64 != KEEPER_BYTES {
            return Err(format!("{} bytes of {KEEPER_BYTES}", got.len()));
        }
        for (at, value) in got.iter().enumerate() {
            let (at, block) = (at as u64, &self.blocks[at / BLOCK as usize]);
            if !block.may_be(at, *value) {
                let since: Vec<u64> = block.writes.iter().map(|w| w.stamp).collect();
                return Err(format!(
                    "byte {at} is {value}: fsync of client{} answered success for write {:?} and is not kept; later \
                     writes: {since:?}",
                    self.client, block.promised
                ));
            }
        }
        Ok(())
    }
    async fn look_until_seen(&mut self) {
        for _ in 0..ATTEMPTS_MAX {
            if self.context.failed() || self.look().await {
                return;
            }
            self.context.cluster.sim.sleep(Duration::from_millis(500)).await;
        }
        self.context.complain(self.what("its file could not be read"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_answers_for_what_no_error_was_reported_of() {
        let mut b = Block::default();
        b.writes.push(Write { stamp: 1, owed: [true, true] });
        b.writes.push(Write { stamp: 2, owed: [false, true] });
        b.synced(0, 2);
        assert_eq!((b.promised, b.writes.len()), (Some(1), 1));
        assert!(b.may_be(7, byte(1, 7)) && b.may_be(7, byte(2, 7)) && !b.may_be(7, 0));
        b.synced(1, 1);
        assert!(!b.may_be(7, byte(1, 7)) && b.may_be(7, byte(2, 7)));
    }
}
