//! Request ids in the order of a key: a short array while few, a B-tree when many. Equal keys stay in the order of arrival.
//!
//! Most objects hold no more requests than a client keeps in flight (8), and those fill two cache lines; one shared object
//! may hold all requests of a server, and then every operation is O(log n). The arrays of all queues lie in one [`Arena`],
//! so that a queue itself is 8 bytes and its owner fits into a cache line.
use crate::prefetch::prefetch;
use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Above this many entries an array into which is inserted becomes a tree, ..
const FEW_MAX: usize = 48;
/// .. above this many one that is sorted only once, ..
const APPENDED_MAX: usize = 256;
/// .. which becomes an array again at this many, so that a queue around the limit does not flip back and forth.
const MANY_MIN: usize = 16;

/// One request: where it sorts, which it is, and how many bytes it moves (so that serving it need not look it up).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Item<K> {
    pub(crate) key: K,
    pub(crate) id: u32,
    pub(crate) bytes: u32,
}

/// Arrays of `N` entries, by number.
#[derive(Debug)]
struct Pool<K, const N: usize> {
    blocks: Vec<Block<K, N>>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Block<K, const N: usize>([Item<K>; N]);

impl<K: Copy + Default, const N: usize> Pool<K, N> {
    const EMPTY: Self = Pool { blocks: Vec::new(), free: Vec::new() };

    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.blocks.push(Block([Item::default(); N]));
            u32::try_from(self.blocks.len() - 1).expect("there are fewer queues than request ids")
        })
    }
}

#[derive(Debug)]
struct Tree<K> {
    entries: BTreeMap<(K, u64), (u32, u32)>,
    /// Where each id stands in `entries`.
    keys: HashMap<u32, (K, u64), FxBuildHasher>,
    /// Grows with every insertion: keeps equal keys in the order of arrival.
    next: u64,
}

/// What the queues of one policy consist of.
#[derive(Debug)]
pub(crate) struct Arena<K> {
    small: Pool<K, 8>,
    medium: Pool<K, 16>,
    large: Pool<K, 64>,
    huge: Pool<K, APPENDED_MAX>,
    trees: Vec<Option<Box<Tree<K>>>>,
    free_trees: Vec<u32>,
}

impl<K: Ord + Copy + Default> Default for Arena<K> {
    fn default() -> Self {
        Arena {
            small: Pool::EMPTY,
            medium: Pool::EMPTY,
            large: Pool::EMPTY,
            huge: Pool::EMPTY,
            trees: Vec::new(),
            free_trees: Vec::new(),
        }
    }
}

/// Of which kind a queue is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Kind {
    /// No entries.
    #[default]
    Empty,
    Small,
    Medium,
    Large,
    Huge,
    Tree,
}

impl Kind {
    const fn room(self) -> usize {
        match self {
            Kind::Empty | Kind::Tree => 0,
            Kind::Small => 8,
            Kind::Medium => 16,
            Kind::Large => 64,
            Kind::Huge => APPENDED_MAX,
        }
    }
    /// The smallest array with room for `count` entries.
    const fn holding(count: usize) -> Kind {
        match count {
            0 => Kind::Empty,
            1..=8 => Kind::Small,
            9..=16 => Kind::Medium,
            17..=64 => Kind::Large,
            _ => Kind::Huge,
        }
    }
}

impl<K: Ord + Copy + Default> Arena<K> {
    fn block(&self, kind: Kind, block: u32) -> &[Item<K>] {
        match kind {
            Kind::Empty | Kind::Tree => &[],
            Kind::Small => &self.small.blocks[block as usize].0,
            Kind::Medium => &self.medium.blocks[block as usize].0,
            Kind::Large => &self.large.blocks[block as usize].0,
            Kind::Huge => &self.huge.blocks[block as usize].0,
        }
    }
    fn block_mut(&mut self, kind: Kind, block: u32) -> &mut [Item<K>] {
        match kind {
            Kind::Empty | Kind::Tree => &mut [],
            Kind::Small => &mut self.small.blocks[block as usize].0,
            Kind::Medium => &mut self.medium.blocks[block as usize].0,
            Kind::Large => &mut self.large.blocks[block as usize].0,
            Kind::Huge => &mut self.huge.blocks[block as usize].0,
        }
    }
    /// Two arrays of different kinds.
    fn two_blocks(&mut self, from: (Kind, u32), to: (Kind, u32)) -> (&[Item<K>], &mut [Item<K>]) {
        let Arena { small, medium, large, huge, .. } = self;
        let (at, to_at) = (from.1 as usize, to.1 as usize);
        match (from.0, to.0) {
            (Kind::Small, Kind::Medium) => (&small.blocks[at].0, &mut medium.blocks[to_at].0),
            (Kind::Medium, Kind::Small) => (&medium.blocks[at].0, &mut small.blocks[to_at].0),
            (Kind::Medium, Kind::Large) => (&medium.blocks[at].0, &mut large.blocks[to_at].0),
            (Kind::Large, Kind::Medium) => (&large.blocks[at].0, &mut medium.blocks[to_at].0),
            (Kind::Large, Kind::Huge) => (&large.blocks[at].0, &mut huge.blocks[to_at].0),
            (Kind::Huge, Kind::Large) => (&huge.blocks[at].0, &mut large.blocks[to_at].0),
            _ => unreachable!("an array grows and shrinks by one kind"),
        }
    }
    fn take(&mut self, kind: Kind) -> u32 {
        match kind {
            Kind::Empty => 0,
            Kind::Small => self.small.take(),
            Kind::Medium => self.medium.take(),
            Kind::Large => self.large.take(),
            Kind::Huge => self.huge.take(),
            Kind::Tree => {
                let tree = Some(Box::new(Tree { entries: BTreeMap::new(), keys: HashMap::default(), next: 0 }));
                if let Some(at) = self.free_trees.pop() {
                    self.trees[at as usize] = tree;
                    return at;
                }
                self.trees.push(tree);
                u32::try_from(self.trees.len() - 1).expect("there are fewer queues than request ids")
            }
        }
    }
    fn give_back(&mut self, kind: Kind, block: u32) {
        match kind {
            Kind::Empty => {}
            Kind::Small => self.small.free.push(block),
            Kind::Medium => self.medium.free.push(block),
            Kind::Large => self.large.free.push(block),
            Kind::Huge => self.huge.free.push(block),
            Kind::Tree => {
                self.trees[block as usize] = None;
                self.free_trees.push(block);
            }
        }
    }
    fn tree(&self, block: u32) -> &Tree<K> {
        self.trees[block as usize].as_deref().expect("the tree of a queue is there")
    }
    fn tree_mut(&mut self, block: u32) -> &mut Tree<K> {
        self.trees[block as usize].as_deref_mut().expect("the tree of a queue is there")
    }
}

/// A sorted multiset of requests, whose entries are in the arena that every call is given. An empty one holds nothing
/// there.
#[derive(Debug, Default)]
pub(crate) struct Sorted {
    block: u32,
    kind: Kind,
    /// First entry in the array, and how many there are.
    start: u16,
    len: u16,
}

impl Sorted {
    pub(crate) fn is_empty(&self) -> bool {
        self.kind == Kind::Empty
    }
    fn few<'a, K: Ord + Copy + Default>(&self, arena: &'a Arena<K>) -> &'a [Item<K>] {
        &arena.block(self.kind, self.block)[usize::from(self.start)..][..usize::from(self.len)]
    }
    pub(crate) fn insert<K: Ord + Copy + Default>(&mut self, arena: &mut Arena<K>, item: Item<K>) {
        if self.kind == Kind::Tree {
            return arena.tree_mut(self.block).insert(item);
        }
        if self.len as usize >= FEW_MAX && self.kind != Kind::Huge {
            self.turn(arena, Kind::Tree);
            return arena.tree_mut(self.block).insert(item);
        }
        let Some((from, len)) = self.make_room(arena) else { return arena.tree_mut(self.block).insert(item) };
        // From the back: streams arrive in ascending order.
        let at = self.few(arena).iter().rposition(|e| e.key <= item.key).map_or(0, |i| i + 1);
        let block = arena.block_mut(self.kind, self.block);
        if at < len {
            block.copy_within(from + at..from + len, from + at + 1);
        }
        block[from + at] = item;
        self.len += 1;
    }
    /// Adds a request behind all others, whatever its key: cheaper than [`Sorted::insert`], but [`Sorted::sort`] has to be
    /// called before the queue is asked anything.
    pub(crate) fn append<K: Ord + Copy + Default>(&mut self, arena: &mut Arena<K>, item: Item<K>) {
        if self.kind != Kind::Tree
            && let Some((from, len)) = self.make_room(arena)
        {
            arena.block_mut(self.kind, self.block)[from + len] = item;
            self.len += 1;
            return;
        }
        arena.tree_mut(self.block).insert(item);
    }
    /// Brings what was appended into order.
    pub(crate) fn sort<K: Ord + Copy + Default>(&mut self, arena: &mut Arena<K>) {
        let (from, len) = (usize::from(self.start), usize::from(self.len));
        let few = &mut arena.block_mut(self.kind, self.block)[from..from + len];
        if !few.is_sorted_by_key(|e| e.key) {
            few.sort_by_key(|e| e.key);
        }
    }
    /// Makes room for one more at the end of the array; answers where that begins and how long it is, or `None` when it had
    /// to become a tree.
    fn make_room<K: Ord + Copy + Default>(&mut self, arena: &mut Arena<K>) -> Option<(usize, usize)> {
        let len = usize::from(self.len);
        if len == self.kind.room() {
            self.turn(arena, if len == APPENDED_MAX { Kind::Tree } else { Kind::holding(len + 1) });
            if self.kind == Kind::Tree {
                return None;
            }
        }
        let from = usize::from(self.start);
        if from + len == self.kind.room() {
            arena.block_mut(self.kind, self.block).copy_within(from..from + len, 0);
            self.start = 0;
        }
        Some((usize::from(self.start), len))
    }
    /// Moves the entries to where another kind of queue has them.
    fn turn<K: Ord + Copy + Default>(&mut self, arena: &mut Arena<K>, kind: Kind) {
        let mut few = Sorted { block: arena.take(kind), kind, start: 0, len: 0 };
        match (self.kind, kind) {
            (Kind::Empty, _) | (_, Kind::Empty) => {}
            (Kind::Tree, _) => {
                let items: Vec<Item<K>> = arena.tree(self.block).entries.iter().map(item_of).collect();
                arena.block_mut(kind, few.block)[..items.len()].copy_from_slice(&items);
                few.len = u16::try_from(items.len()).expect("an array is short");
            }
            (_, Kind::Tree) => {
                let items: Vec<Item<K>> = self.few(arena).to_vec();
                items.into_iter().for_each(|item| arena.tree_mut(few.block).insert(item));
            }
            _ => {
                let (from, to) = arena.two_blocks((self.kind, self.block), (kind, few.block));
                let items = &from[usize::from(self.start)..][..usize::from(self.len)];
                to[..items.len()].copy_from_slice(items);
                few.len = self.len;
            }
        }
        arena.give_back(self.kind, self.block);
        *self = few;
    }
    /// The first request at or after `from`.
    pub(crate) fn peek_from<K: Ord + Copy + Default>(&self, arena: &Arena<K>, from: K) -> Option<Item<K>> {
        match self.kind {
            Kind::Tree => arena.tree(self.block).entries.range((from, 0)..).next().map(item_of),
            _ => self.few(arena).iter().find(|e| e.key >= from).copied(),
        }
    }
    pub(crate) fn first<K: Ord + Copy + Default>(&self, arena: &Arena<K>) -> Option<Item<K>> {
        match self.kind {
            Kind::Tree => arena.tree(self.block).entries.first_key_value().map(item_of),
            _ => self.few(arena).first().copied(),
        }
    }
    pub(crate) fn last<K: Ord + Copy + Default>(&self, arena: &Arena<K>) -> Option<Item<K>> {
        match self.kind {
            Kind::Tree => arena.tree(self.block).entries.last_key_value().map(item_of),
            _ => self.few(arena).last().copied(),
        }
    }
    /// About the `nth` request, cheaply: a guess for whoever wants to fetch what belongs to it.
    pub(crate) fn about_nth<K: Ord + Copy + Default>(&self, arena: &Arena<K>, nth: usize) -> Option<Item<K>> {
        self.few(arena).get(nth).copied()
    }
    /// Fetches the place of the last request, beside which most insertions go.
    pub(crate) fn prefetch_back<K: Ord + Copy + Default>(&self, arena: &Arena<K>) {
        if let Some(last) = self.few(arena).last() {
            prefetch(last);
        }
    }
    /// Fetches the first requests.
    pub(crate) fn prefetch_front<K: Ord + Copy + Default>(&self, arena: &Arena<K>) {
        self.few(arena).iter().step_by(4).take(3).for_each(prefetch);
    }
    /// The key of request `id`, if it is here.
    pub(crate) fn key_of<K: Ord + Copy + Default>(&self, arena: &Arena<K>, id: u32) -> Option<K> {
        match self.kind {
            Kind::Tree => arena.tree(self.block).keys.get(&id).map(|full| full.0),
            _ => self.few(arena).iter().find(|e| e.id == id).map(|e| e.key),
        }
    }
    /// Takes out request `id`; answers whether it was there. O(log n).
    pub(crate) fn remove<K: Ord + Copy + Default>(&mut self, arena: &mut Arena<K>, id: u32) -> bool {
        if self.kind == Kind::Tree {
            let tree = arena.tree_mut(self.block);
            let Some(full) = tree.keys.remove(&id) else { return false };
            tree.entries.remove(&full);
            let left = tree.entries.len();
            if left <= MANY_MIN {
                self.turn(arena, Kind::holding(left));
            }
            return true;
        }
        let Some(at) = self.few(arena).iter().position(|e| e.id == id) else { return false };
        let (from, len) = (usize::from(self.start), usize::from(self.len));
        self.len -= 1;
        if at == 0 {
            self.start += 1;
        } else {
            arena.block_mut(self.kind, self.block).copy_within(from + at + 1..from + len, from + at);
        }
        if len - 1 <= self.kind.room() / 4 && self.kind != Kind::Small {
            self.turn(arena, Kind::holding(len - 1));
        } else if len == 1 {
            self.turn(arena, Kind::Empty);
        }
        true
    }
}

fn item_of<K: Copy>((key, value): (&(K, u64), &(u32, u32))) -> Item<K> {
    Item { key: key.0, id: value.0, bytes: value.1 }
}

impl<K: Ord + Copy> Tree<K> {
    fn insert(&mut self, item: Item<K>) {
        self.keys.insert(item.id, (item.key, self.next));
        self.entries.insert((item.key, self.next), (item.id, item.bytes));
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn it_answers_as_a_stably_sorted_list_does_at_every_size() {
        let mut rng = types::Rng::new(9);
        let (mut arena, mut sorted) = (Arena::default(), Sorted::default());
        let mut model: Vec<Item<u64>> = Vec::new();
        for id in 0..30_000u32 {
            // Grows to about 200 and shrinks again, over and over, so that it crosses both limits.
            let growing = id / 300 % 2 == 0;
            if rng.chance(if growing { 0.8 } else { 0.2 }) {
                let item = Item { key: rng.below(40), id, bytes: id * 3 };
                sorted.insert(&mut arena, item);
                let at = model.iter().rposition(|e| e.key <= item.key).map_or(0, |i| i + 1);
                model.insert(at, item);
            } else if !model.is_empty() {
                let item = model.remove(rng.below(model.len() as u64) as usize);
                assert_eq!(sorted.key_of(&arena, item.id), Some(item.key));
                assert!(sorted.remove(&mut arena, item.id) && !sorted.remove(&mut arena, item.id));
                assert_eq!(sorted.key_of(&arena, item.id), None);
            }
            let from = rng.below(45);
            assert_eq!(sorted.peek_from(&arena, from), model.iter().find(|e| e.key >= from).copied());
            assert_eq!(sorted.first(&arena), model.first().copied());
            assert_eq!(sorted.last(&arena), model.last().copied());
            assert_eq!(sorted.is_empty(), model.is_empty());
        }
    }

    #[test]
    fn what_was_appended_and_sorted_comes_as_if_it_had_been_inserted() {
        let mut rng = types::Rng::new(10);
        for round in 0..300u32 {
            let (mut arena, mut appended, mut inserted) = (Arena::default(), Sorted::default(), Sorted::default());
            let count = 1 + rng.below(if round % 3 == 0 { 400 } else { 270 }) as u32;
            for id in 0..count {
                let item = Item { key: rng.below(60), id, bytes: id };
                appended.append(&mut arena, item);
                inserted.insert(&mut arena, item);
                if rng.chance(0.1) {
                    let gone = rng.below(u64::from(id) + 1) as u32;
                    assert_eq!(appended.remove(&mut arena, gone), inserted.remove(&mut arena, gone));
                }
            }
            appended.sort(&mut arena);
            while let Some(item) = inserted.first(&arena) {
                if rng.chance(0.1) {
                    let late = Item { key: rng.below(60), id: count + rng.below(1000) as u32, bytes: 0 };
                    if inserted.key_of(&arena, late.id).is_none() {
                        appended.insert(&mut arena, late);
                        inserted.insert(&mut arena, late);
                    }
                    continue;
                }
                assert_eq!(appended.first(&arena), Some(item));
                assert!(appended.remove(&mut arena, item.id) && inserted.remove(&mut arena, item.id));
            }
            assert!(appended.is_empty());
        }
    }
}
