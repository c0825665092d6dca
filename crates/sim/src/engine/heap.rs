//! A 4-ary min-heap keyed (time, seq): two levels of a binary heap per cache line touched.
//!
//! Fastest store up to some 300,000 pending events; beyond that the radix heap takes over.
use super::Pending;

const ARITY: usize = 4;

/// A min-heap with four children per node.
pub struct FourAryHeap<E> {
    items: Vec<Pending<E>>,
}

impl<E> Default for FourAryHeap<E> {
    fn default() -> Self {
        FourAryHeap { items: Vec::new() }
    }
}

impl<E: Copy> FourAryHeap<E> {
    /// Items held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// The least item's time.
    #[inline]
    #[must_use]
    pub fn first_time(&self) -> Option<u64> {
        self.items.first().map(|item| item.time)
    }
    /// Adds an item.
    #[inline]
    pub fn push(&mut self, item: Pending<E>) {
        self.items.push(item);
        let mut hole = self.items.len() - 1;
        let key = item.key();
        while hole > 0 {
            let parent = (hole - 1) / ARITY;
            if self.items[parent].key() <= key {
                break;
            }
            self.items[hole] = self.items[parent];
            hole = parent;
        }
        self.items[hole] = item;
    }
    /// Takes the least item out.
    #[inline]
    pub fn pop(&mut self) -> Option<Pending<E>> {
        let last = self.items.pop()?;
        let Some(&top) = self.items.first() else { return Some(last) };
        self.sink(last);
        Some(top)
    }
    /// Everything held, in no order; the heap is empty afterwards.
    pub fn take_all(&mut self) -> Vec<Pending<E>> {
        core::mem::take(&mut self.items)
    }

    /// Puts `item` where the root was.
    #[inline]
    fn sink(&mut self, item: Pending<E>) {
        let items = &mut self.items[..];
        let key = item.key();
        let mut hole = 0;
        loop {
            let first = hole * ARITY + 1;
            if first >= items.len() {
                break;
            }
            let end = (first + ARITY).min(items.len());
            let mut least = first;
            let mut least_key = items[first].key();
            for (i, child) in items[..end].iter().enumerate().skip(first + 1) {
                let k = child.key();
                if k < least_key {
                    (least, least_key) = (i, k);
                }
            }
            if least_key >= key {
                break;
            }
            items[hole] = items[least];
            hole = least;
        }
        items[hole] = item;
    }
}
