//! An index of extents by overlap: a treap ordered by start that also keeps, per subtree, the largest end, the
//! smallest and largest lock number, and whether a lock is "fresh" (not called back yet).
//!
//! Decides nothing. Every question costs O(log n + answers) for n extents; memory is one node of 72 bytes each.
//! Source: interval tree (Cormen et al., chapter "Augmenting data structures"); treap (Seidel and Aragon, 1996).
//! Differs: priorities are a fixed hash of the lock number, so the shape depends on the content only.
use alloc::vec::Vec;
use types::Extent;

const NIL: u32 = u32::MAX;

/// One extent in the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub extent: Extent,
    /// Lock number: grows with age of the request; unique in one index.
    pub seq: u64,
    /// Group id of a GROUP lock, else 0.
    pub gid: u64,
    /// Not called back yet.
    pub fresh: bool,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    entry: Entry,
    left: u32,
    right: u32,
    end_max: u64,
    seq_min: u64,
    seq_max: u64,
    any_fresh: bool,
}

/// See the module's head.
#[derive(Clone, Debug)]
pub(crate) struct IntervalIndex {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
}

fn priority(seq: u64) -> u64 {
    let z = (seq ^ (seq >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl IntervalIndex {
    pub fn new() -> IntervalIndex {
        IntervalIndex { nodes: Vec::new(), free: Vec::new(), root: NIL }
    }

    pub fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.root == NIL
    }

    pub fn insert(&mut self, entry: Entry) {
        let node = Node { entry, left: NIL, right: NIL, end_max: 0, seq_min: 0, seq_max: 0, any_fresh: false };
        let n = if let Some(n) = self.free.pop() {
            self.nodes[n as usize] = node;
            n
        } else {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        };
        self.pull(n);
        self.root = self.insert_at(self.root, n);
    }

    /// Takes out the entry of lock `seq` that starts at `start`; whether it was there.
    pub fn remove(&mut self, start: u64, seq: u64) -> bool {
        let before = self.free.len();
        self.root = self.remove_at(self.root, (start, seq));
        self.free.len() != before
    }

    /// Sets the fresh mark of an entry; whether it was there.
    pub fn set_fresh(&mut self, start: u64, seq: u64, fresh: bool) -> bool {
        self.set_fresh_at(self.root, (start, seq), fresh)
    }

    /// Calls `f` for each entry that overlaps `extent`, by start, until it answers false; whether all were visited.
    pub fn visit(&self, extent: Extent, f: &mut dyn FnMut(&Entry) -> bool) -> bool {
        self.visit_at(self.root, extent, false, f)
    }

    /// Like [`IntervalIndex::visit`], fresh entries only, at the cost of the fresh ones only.
    pub fn visit_fresh(&self, extent: Extent, f: &mut dyn FnMut(&Entry) -> bool) -> bool {
        self.visit_at(self.root, extent, true, f)
    }

    /// The largest lock number below `seq_end` whose extent overlaps `extent` and that `accept` takes.
    pub fn latest(&self, extent: Extent, seq_end: u64, accept: &dyn Fn(&Entry) -> bool) -> Option<u64> {
        let mut best = None;
        self.latest_at(self.root, extent, seq_end, accept, &mut best);
        best
    }

    /// Largest end of entries that start before `offset`; 0 when there is none.
    pub fn end_before(&self, offset: u64) -> u64 {
        let (mut t, mut best) = (self.root, 0);
        while t != NIL {
            let node = &self.nodes[t as usize];
            if node.entry.extent.start < offset {
                best = best.max(node.entry.extent.end).max(self.end_max(node.left));
                t = node.right;
            } else {
                t = node.left;
            }
        }
        best
    }

    /// Smallest start at or after `offset`; `u64::MAX` when there is none.
    pub fn start_from(&self, offset: u64) -> u64 {
        let (mut t, mut best) = (self.root, u64::MAX);
        while t != NIL {
            let node = &self.nodes[t as usize];
            if node.entry.extent.start >= offset {
                best = node.entry.extent.start;
                t = node.left;
            } else {
                t = node.right;
            }
        }
        best
    }

    fn key(&self, t: u32) -> (u64, u64) {
        let e = &self.nodes[t as usize].entry;
        (e.extent.start, e.seq)
    }

    fn end_max(&self, t: u32) -> u64 {
        if t == NIL { 0 } else { self.nodes[t as usize].end_max }
    }

    /// Recomputes what a node says about its subtree.
    fn pull(&mut self, t: u32) {
        let node = &self.nodes[t as usize];
        let e = node.entry;
        let (mut end_max, mut seq_min, mut seq_max, mut any_fresh) = (e.extent.end, e.seq, e.seq, e.fresh);
        for child in [node.left, node.right] {
            if child != NIL {
                let c = &self.nodes[child as usize];
                end_max = end_max.max(c.end_max);
                seq_min = seq_min.min(c.seq_min);
                seq_max = seq_max.max(c.seq_max);
                any_fresh |= c.any_fresh;
            }
        }
        let node = &mut self.nodes[t as usize];
        (node.end_max, node.seq_min, node.seq_max, node.any_fresh) = (end_max, seq_min, seq_max, any_fresh);
    }

    fn insert_at(&mut self, t: u32, n: u32) -> u32 {
        if t == NIL {
            return n;
        }
        let (pn, pt) = (priority(self.key(n).1), priority(self.key(t).1));
        if pn > pt {
            let (l, r) = self.split(t, self.key(n));
            self.nodes[n as usize].left = l;
            self.nodes[n as usize].right = r;
            self.pull(n);
            return n;
        }
        if self.key(n) < self.key(t) {
            let l = self.insert_at(self.nodes[t as usize].left, n);
            self.nodes[t as usize].left = l;
        } else {
            let r = self.insert_at(self.nodes[t as usize].right, n);
            self.nodes[t as usize].right = r;
        }
        self.pull(t);
        t
    }

    /// Parts a subtree into keys below `key` and the rest.
    fn split(&mut self, t: u32, key: (u64, u64)) -> (u32, u32) {
        if t == NIL {
            return (NIL, NIL);
        }
        if self.key(t) < key {
            let (l, r) = self.split(self.nodes[t as usize].right, key);
            self.nodes[t as usize].right = l;
            self.pull(t);
            (t, r)
        } else {
            let (l, r) = self.split(self.nodes[t as usize].left, key);
            self.nodes[t as usize].left = r;
            self.pull(t);
            (l, t)
        }
    }

    fn merge(&mut self, l: u32, r: u32) -> u32 {
        if l == NIL || r == NIL {
            return if l == NIL { r } else { l };
        }
        if priority(self.key(l).1) > priority(self.key(r).1) {
            let m = self.merge(self.nodes[l as usize].right, r);
            self.nodes[l as usize].right = m;
            self.pull(l);
            l
        } else {
            let m = self.merge(l, self.nodes[r as usize].left);
            self.nodes[r as usize].left = m;
            self.pull(r);
            r
        }
    }

    fn remove_at(&mut self, t: u32, key: (u64, u64)) -> u32 {
        if t == NIL {
            return NIL;
        }
        let here = self.key(t);
        let (left, right) = (self.nodes[t as usize].left, self.nodes[t as usize].right);
        if here == key {
            self.free.push(t);
            return self.merge(left, right);
        }
        if key < here {
            let l = self.remove_at(left, key);
            self.nodes[t as usize].left = l;
        } else {
            let r = self.remove_at(right, key);
            self.nodes[t as usize].right = r;
        }
        self.pull(t);
        t
    }

    fn set_fresh_at(&mut self, t: u32, key: (u64, u64), fresh: bool) -> bool {
        if t == NIL {
            return false;
        }
        let here = self.key(t);
        let found = if here == key {
            self.nodes[t as usize].entry.fresh = fresh;
            true
        } else {
            let node = &self.nodes[t as usize];
            let child = if key < here { node.left } else { node.right };
            self.set_fresh_at(child, key, fresh)
        };
        self.pull(t);
        found
    }

    fn visit_at(&self, t: u32, extent: Extent, fresh_only: bool, f: &mut dyn FnMut(&Entry) -> bool) -> bool {
        if t == NIL {
            return true;
        }
        let node = &self.nodes[t as usize];
        if node.end_max <= extent.start || (fresh_only && !node.any_fresh) {
            return true;
        }
        if !self.visit_at(node.left, extent, fresh_only, f) {
            return false;
        }
        if node.entry.extent.start >= extent.end {
            return true;
        }
        let wanted = node.entry.extent.end > extent.start && (!fresh_only || node.entry.fresh);
        if wanted && !f(&node.entry) {
            return false;
        }
        self.visit_at(node.right, extent, fresh_only, f)
    }

    fn latest_at(&self, t: u32, extent: Extent, seq_end: u64, accept: &dyn Fn(&Entry) -> bool, best: &mut Option<u64>) {
        if t == NIL {
            return;
        }
        let node = &self.nodes[t as usize];
        if node.end_max <= extent.start || node.seq_min >= seq_end || best.is_some_and(|b| node.seq_max <= b) {
            return;
        }
        let e = &node.entry;
        if e.extent.start < extent.end {
            let better = e.seq < seq_end && best.is_none_or(|b| e.seq > b);
            if better && e.extent.end > extent.start && accept(e) {
                *best = Some(e.seq);
            }
            self.latest_at(node.right, extent, seq_end, accept, best);
        }
        self.latest_at(node.left, extent, seq_end, accept, best);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn naive_hits(list: &[Entry], x: Extent) -> Vec<u64> {
        let mut hits: Vec<&Entry> = list.iter().filter(|e| e.extent.overlaps(&x)).collect();
        hits.sort_by_key(|e| (e.extent.start, e.seq));
        hits.iter().map(|e| e.seq).collect()
    }

    fn compare(index: &IntervalIndex, list: &[Entry], x: Extent, cap: u64) {
        let mut got = Vec::new();
        index.visit(x, &mut |e| {
            got.push(e.seq);
            true
        });
        assert_eq!(got, naive_hits(list, x));
        let fresh: Vec<Entry> = list.iter().copied().filter(|e| e.fresh).collect();
        got.clear();
        index.visit_fresh(x, &mut |e| {
            got.push(e.seq);
            true
        });
        assert_eq!(got, naive_hits(&fresh, x));
        let latest = list.iter().filter(|e| e.extent.overlaps(&x) && e.seq < cap && e.gid == 0).map(|e| e.seq).max();
        assert_eq!(index.latest(x, cap, &|e| e.gid == 0), latest);
        let end = list.iter().filter(|e| e.extent.start < x.start).map(|e| e.extent.end).max().unwrap_or(0);
        assert_eq!(index.end_before(x.start), end);
        let start = list.iter().map(|e| e.extent.start).filter(|s| *s >= x.end).min().unwrap_or(u64::MAX);
        assert_eq!(index.start_from(x.end), start);
        assert_eq!(index.len(), list.len());
        assert_eq!(index.is_empty(), list.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_index_answers_as_a_plain_list_does(ops in prop::collection::vec((0u8..5, 0u64..200, 1u64..60, any::<u16>()), 1..300)) {
            let mut index = IntervalIndex::new();
            let mut list: Vec<Entry> = Vec::new();
            for (i, (op, start, len, r)) in ops.into_iter().enumerate() {
                let extent = Extent::at(start, len);
                let pick = |n: usize| usize::from(r) % n;
                match op {
                    1 if !list.is_empty() => {
                        let e = list.swap_remove(pick(list.len()));
                        prop_assert!(index.remove(e.extent.start, e.seq));
                        prop_assert!(!index.remove(e.extent.start, e.seq));
                    }
                    2 if !list.is_empty() => {
                        let k = pick(list.len());
                        list[k].fresh = !list[k].fresh;
                        let e = list[k];
                        prop_assert!(index.set_fresh(e.extent.start, e.seq, e.fresh));
                    }
                    _ => {
                        let e = Entry { extent, seq: i as u64, gid: u64::from(r % 4 == 0), fresh: r % 2 == 0 };
                        list.push(e);
                        index.insert(e);
                    }
                }
                compare(&index, &list, Extent::at(u64::from(r) % 260, len), u64::from(r) % 300);
            }
        }
    }
}
