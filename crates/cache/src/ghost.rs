//! Ghosts: the memory of pages that have left, in order of leaving.
//!
//! Up to two queues share one pool. A ghost is a 32-bit fingerprint of its block, so a stranger is taken for a ghost
//! with probability (ghosts / 2^32): 1 in 4096 lookups at a million ghosts, which costs a misjudged page. 20 bytes a
//! ghost: a node of 16 and one bucket of 4.
use alloc::{vec, vec::Vec};
use types::prefetch::prefetch;

const NIL: u32 = u32::MAX >> 1;
const SECOND: u32 = 1 << 31;

#[derive(Clone, Copy)]
struct Node {
    newer: u32,
    older: u32,
    /// Next node of the bucket, or of the free list; upper bit: the second queue.
    chain: u32,
    print: u32,
}

#[derive(Clone, Copy)]
struct Queue {
    newest: u32,
    oldest: u32,
    len: u32,
}

/// One of the two queues of a [`Ghosts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GhostQueue {
    /// The first.
    First,
    /// The second.
    Second,
}

impl GhostQueue {
    fn other(self) -> GhostQueue {
        match self {
            GhostQueue::First => GhostQueue::Second,
            GhostQueue::Second => GhostQueue::First,
        }
    }
}

/// What was asked for and is not done yet.
#[derive(Clone, Copy)]
enum Pending {
    Push(GhostQueue, u32),
    DropOldest(GhostQueue),
}

/// Changes that wait until the memory they need has been fetched.
const PENDING_MAX: usize = 32;

/// A bounded memory of blocks that have left. A block is in at most one queue.
///
/// What leaves a cache comes in batches, and all that is known of a ghost lies somewhere else in main memory. So changes wait
/// until there are [`PENDING_MAX`] of them or somebody looks a block up, and what they need is fetched meanwhile.
pub struct Ghosts {
    nodes: Vec<Node>,
    buckets: Vec<u32>,
    free: u32,
    queues: [Queue; 2],
    pending: Vec<Pending>,
    /// Ghosts in each queue once `pending` is done, unless a block in it is a ghost already.
    lens: [u32; 2],
    /// The oldest ghost of each queue whose bucket has not been fetched.
    fetched: [u32; 2],
}

/// The fingerprint of a block: what a policy keeps in a frame's word until the page leaves.
#[must_use]
#[inline]
pub const fn fingerprint(block: u64) -> u32 {
    (block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

impl Ghosts {
    /// Bytes per ghost of capacity.
    pub const BYTES_PER_GHOST: u32 = size_of::<Node>() as u32 + 4;

    /// Room for `capacity` ghosts (>= 1) in both queues together.
    #[must_use]
    pub fn new(capacity: u32) -> Ghosts {
        let capacity = capacity.max(1);
        let node =
            |i: u32| Node { newer: NIL, older: NIL, chain: if i + 1 < capacity { i + 1 } else { NIL }, print: 0 };
        let queue = Queue { newest: NIL, oldest: NIL, len: 0 };
        Ghosts {
            nodes: (0..capacity).map(node).collect(),
            buckets: vec![NIL; capacity as usize],
            free: 0,
            queues: [queue; 2],
            pending: Vec::with_capacity(PENDING_MAX),
            lens: [0; 2],
            fetched: [NIL; 2],
        }
    }

    /// Ghosts in one queue; one too many for each block that was pushed while it was a ghost, until the next
    /// [`Ghosts::take`] or [`Ghosts::settle`].
    #[must_use]
    pub fn len(&self, queue: GhostQueue) -> u32 {
        self.lens[queue as usize]
    }

    /// Whether both queues are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lens == [0; 2]
    }

    /// If `print` is a ghost, forgets it and says where it was.
    pub fn take(&mut self, print: u32) -> Option<GhostQueue> {
        self.settle();
        let taken = self.find_and_release(print);
        if let Some(queue) = taken {
            self.lens[queue as usize] -= 1;
        }
        taken
    }

    /// Remembers `print` as the newest of `queue`. A full pool forgets the oldest of that queue, or of the other one
    /// when that queue is empty.
    pub fn push(&mut self, queue: GhostQueue, print: u32) {
        self.foresee(print, false);
        if self.lens[0] + self.lens[1] == self.nodes.len() as u32 {
            let from = if self.len(queue) > 0 { queue } else { queue.other() };
            self.lens[from as usize] -= 1;
            self.foresee_oldest(from);
        }
        self.lens[queue as usize] += 1;
        self.wait(Pending::Push(queue, print));
    }

    /// Forgets the oldest ghost of `queue`, if there is one.
    pub fn drop_oldest(&mut self, queue: GhostQueue) {
        self.lens[queue as usize] = self.lens[queue as usize].saturating_sub(1);
        self.foresee_oldest(queue);
        self.wait(Pending::DropOldest(queue));
    }

    /// Asks the CPU to fetch what looking `print` up will need. `arrived`: for the second time.
    #[inline]
    pub fn foresee(&self, print: u32, arrived: bool) {
        let bucket = &self.buckets[self.bucket(print)];
        match self.nodes.get((*bucket & NIL) as usize).filter(|_| arrived) {
            Some(node) => prefetch(node),
            None if arrived => {}
            None => prefetch(bucket),
        }
    }

    /// The next of the oldest of `queue` will go soon.
    fn foresee_oldest(&mut self, queue: GhostQueue) {
        let at = self.fetched[queue as usize];
        let at = if at == NIL { self.queues[queue as usize].oldest } else { at };
        if let Some(node) = self.nodes.get(at as usize) {
            self.foresee(node.print, false);
            self.fetched[queue as usize] = node.newer;
        }
    }

    fn wait(&mut self, change: Pending) {
        self.pending.push(change);
        if self.pending.len() == PENDING_MAX {
            self.settle();
        }
    }

    /// Carries out what was asked for.
    pub fn settle(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        for change in &self.pending {
            if let Pending::Push(_, print) = change {
                self.foresee(*print, true);
            }
        }
        for (queue, not_fetched) in self.queues.iter().zip(self.fetched) {
            let mut at = queue.oldest;
            while at != not_fetched
                && not_fetched != NIL
                && let Some(node) = self.nodes.get(at as usize)
            {
                self.foresee(node.print, true);
                at = node.newer;
            }
        }
        let pending = core::mem::take(&mut self.pending);
        for change in &pending {
            match *change {
                Pending::Push(queue, print) => self.push_now(queue, print),
                Pending::DropOldest(queue) => self.drop_oldest_now(queue),
            }
        }
        self.pending = pending;
        self.pending.clear();
        self.lens = self.queues.map(|q| q.len);
        self.fetched = [NIL; 2];
    }

    fn find_and_release(&mut self, print: u32) -> Option<GhostQueue> {
        let mut at = self.buckets[self.bucket(print)];
        while at != NIL {
            let node = self.nodes[at as usize];
            if node.print == print {
                self.release(at);
                return Some(if node.chain & SECOND != 0 { GhostQueue::Second } else { GhostQueue::First });
            }
            at = node.chain & NIL;
        }
        None
    }

    fn push_now(&mut self, queue: GhostQueue, print: u32) {
        self.find_and_release(print);
        if self.free == NIL {
            self.drop_oldest_now(if self.queues[queue as usize].len > 0 { queue } else { queue.other() });
        }
        let at = self.free;
        self.free = self.nodes[at as usize].chain & NIL;
        let bucket = self.bucket(print);
        let mark = if queue == GhostQueue::Second { SECOND } else { 0 };
        let q = &mut self.queues[queue as usize];
        self.nodes[at as usize] = Node { newer: NIL, older: q.newest, chain: self.buckets[bucket] | mark, print };
        self.buckets[bucket] = at;
        if q.newest == NIL {
            q.oldest = at;
        } else {
            self.nodes[q.newest as usize].newer = at;
        }
        q.newest = at;
        q.len += 1;
    }

    fn drop_oldest_now(&mut self, queue: GhostQueue) {
        let oldest = self.queues[queue as usize].oldest;
        if oldest != NIL {
            self.release(oldest);
        }
    }

    fn bucket(&self, print: u32) -> usize {
        ((u64::from(print) * self.buckets.len() as u64) >> 32) as usize
    }

    fn release(&mut self, at: u32) {
        let node = self.nodes[at as usize];
        self.unchain(at, node);
        let q = &mut self.queues[usize::from(node.chain & SECOND != 0)];
        q.len -= 1;
        if node.newer == NIL {
            q.newest = node.older;
        } else {
            self.nodes[node.newer as usize].older = node.older;
        }
        if node.older == NIL {
            q.oldest = node.newer;
        } else {
            self.nodes[node.older as usize].newer = node.newer;
        }
        self.nodes[at as usize].chain = self.free;
        self.free = at;
    }

    fn unchain(&mut self, at: u32, node: Node) {
        let bucket = self.bucket(node.print);
        if self.buckets[bucket] == at {
            self.buckets[bucket] = node.chain & NIL;
            return;
        }
        let mut before = self.buckets[bucket] as usize;
        while self.nodes[before].chain & NIL != at {
            before = (self.nodes[before].chain & NIL) as usize;
        }
        let chain = &mut self.nodes[before].chain;
        *chain = (*chain & SECOND) | (node.chain & NIL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use types::Rng;

    #[test]
    fn ghosts_behave_like_two_bounded_queues() {
        let mut rng = Rng::new(3);
        let mut ghosts = Ghosts::new(50);
        let mut model: [VecDeque<u32>; 2] = Default::default();
        for _ in 0..50_000 {
            let print = (rng.below(120) as u32).wrapping_mul(0x0400_0003);
            let (q, i) = if rng.chance(0.5) { (GhostQueue::First, 0) } else { (GhostQueue::Second, 1) };
            match rng.below(5) {
                0 => {
                    let want = model.iter().position(|m| m.contains(&print));
                    model.iter_mut().for_each(|m| m.retain(|&p| p != print));
                    assert_eq!(ghosts.take(print).map(|q| q as usize), want);
                }
                1 => {
                    model[i].pop_front();
                    ghosts.drop_oldest(q);
                }
                _ => {
                    model.iter_mut().for_each(|m| m.retain(|&p| p != print));
                    if model[0].len() + model[1].len() == 50 {
                        let from = if model[i].is_empty() { 1 - i } else { i };
                        model[from].pop_front();
                    }
                    model[i].push_back(print);
                    ghosts.push(q, print);
                }
            }
            if rng.chance(0.1) {
                ghosts.settle();
            }
            if ghosts.pending.is_empty() {
                assert_eq!(ghosts.len(GhostQueue::First) as usize, model[0].len());
                assert_eq!(ghosts.len(GhostQueue::Second) as usize, model[1].len());
            }
        }
    }

    #[test]
    fn a_ghost_takes_twenty_bytes() {
        assert_eq!(Ghosts::BYTES_PER_GHOST, 20);
        assert_eq!(size_of::<Node>(), 16);
    }
}
