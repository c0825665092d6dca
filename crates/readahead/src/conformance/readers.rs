//! Readers that go on: what they pass by must not hold them up.
//!
//! A model client caches whatever is fetched, for ever. Readers of every order that a pattern tolerates (with small gaps,
//! records, backward, turns, out of order) read files many times as large as the window, also one order after another in
//! one open file.
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use types::{Extent, KIB, MIB, Rng};

use super::{PAGE, config, pages_of};
use crate::budget::Budget;
use crate::file::{Facts, FileReadahead, Hint, Plan};
use crate::policy::ReadaheadPolicy;

const FILE_BYTES: u64 = 64 * MIB;
/// Parts of a file whose misses are compared: one is as large as the window.
const PARTS: usize = 32;
/// Orders in a row in one open file.
const PHASES: usize = 16;

/// An order of reads.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Reads of `len` bytes, `skip` bytes left out after each.
    Forward { len: u64, skip: u64 },
    /// The same from the end.
    Backward { len: u64, skip: u64 },
    /// `streams` forward readers with gaps take turns.
    Turns { len: u64, skip: u64, streams: u64 },
    /// Reads of `len` bytes; of every eight the second half comes first.
    Shuffled { len: u64 },
}

const ORDERS: [Order; 14] = [
    Order::Forward { len: 64 * KIB, skip: 0 },
    Order::Forward { len: 4 * KIB, skip: 4 * KIB },
    Order::Forward { len: 4 * KIB, skip: 8 * KIB },
    Order::Forward { len: 4 * KIB, skip: 32 * KIB },
    Order::Forward { len: 8 * KIB, skip: 4 * KIB },
    Order::Forward { len: 3_000, skip: 5_000 },
    Order::Forward { len: 64 * KIB, skip: 8 * KIB },
    Order::Forward { len: 64 * KIB, skip: 64 * KIB },
    Order::Forward { len: 256 * KIB, skip: 768 * KIB },
    Order::Backward { len: 64 * KIB, skip: 0 },
    Order::Backward { len: 4 * KIB, skip: 4 * KIB },
    Order::Turns { len: 16 * KIB, skip: 0, streams: 5 },
    Order::Turns { len: 4 * KIB, skip: 4 * KIB, streams: 3 },
    Order::Shuffled { len: 32 * KIB },
];

impl Order {
    /// Its reads within `place`, in their order.
    fn reads(self, place: Extent) -> Vec<Extent> {
        let every = |place: Extent, len: u64, skip: u64| {
            let count = place.len() / (len + skip);
            (0..count).map(move |i| Extent::at(place.start + i * (len + skip), len))
        };
        match self {
            Order::Forward { len, skip } => every(place, len, skip).collect(),
            Order::Backward { len, skip } => {
                let mut reads: Vec<_> = every(place, len, skip).collect();
                reads.reverse();
                reads
            }
            Order::Turns { len, skip, streams } => {
                let share = place.len() / streams;
                let count = share / (len + skip);
                let read = |i: u64, s: u64| Extent::at(place.start + s * share + i * (len + skip), len);
                (0..count).flat_map(|i| (0..streams).map(move |s| read(i, s))).collect()
            }
            Order::Shuffled { len } => {
                let mut reads: Vec<_> = every(place, len, 0).collect();
                reads.chunks_exact_mut(8).skip(1).for_each(|eight| eight.rotate_left(4));
                reads
            }
        }
    }
}

struct Reader {
    readahead: FileReadahead,
    budget: Budget,
    facts: Facts,
    cached: BTreeSet<u64>,
    misses: u64,
}

impl Reader {
    fn new(policy: Box<dyn ReadaheadPolicy>) -> Reader {
        let config = config();
        Reader {
            readahead: FileReadahead::with_policy(policy, &config),
            budget: Budget::new(config.budget_bytes_max),
            facts: Facts { file_size: FILE_BYTES, stripe_size: MIB, rpc_bytes: 256 * KIB, lock: Extent::ALL },
            cached: BTreeSet::new(),
            misses: 0,
        }
    }
    fn take(&mut self, plan: &Plan) {
        plan.sync.iter().chain(&plan.asynchronous).for_each(|e| self.cached.extend(pages_of(*e)));
    }
    fn read(&mut self, read: Extent) {
        let mut plan = Plan::default();
        self.readahead.on_read(read, &self.facts, &mut self.budget, &mut plan);
        self.take(&plan);
        if !pages_of(read).all(|p| self.cached.contains(&p)) {
            self.misses += 1;
            self.readahead.on_miss(read, &self.facts, &mut self.budget, &mut plan);
            self.cached.extend(pages_of(read));
            self.take(&plan);
        }
    }
}

/// Checks that a reader is served at the end of a file as it was before, whatever it left out on the way; and that after
/// many orders of reads in one open file, with and without the hint that it is read in order, nothing is outstanding once
/// a reader has gone on for several windows and come to the end of the file.
///
/// # Panics
/// When a rule is broken.
pub fn check_readers(name: &str, make: impl Fn() -> Box<dyn ReadaheadPolicy>, seed: u64) {
    for order in ORDERS {
        check_served_alike(name, make(), order);
    }
    let mut rng = Rng::named(seed, "readahead.conformance.readers");
    for hint in [Hint::Normal, Hint::Sequential] {
        check_returns_to_zero(&format!("{name} seed {seed} {hint:?}"), make(), hint, &mut rng);
    }
}

fn check_served_alike(name: &str, policy: Box<dyn ReadaheadPolicy>, order: Order) {
    let mut reader = Reader::new(policy);
    let reads = order.reads(Extent::new(0, FILE_BYTES));
    let mut misses = Vec::new();
    for part in reads.chunks(reads.len().div_ceil(PARTS)) {
        let before = reader.misses;
        part.iter().for_each(|read| reader.read(*read));
        misses.push(reader.misses - before);
    }
    // The first part holds the misses by which an order is recognised.
    let (early, late) = (misses[1], misses[PARTS - 1]);
    assert!(late <= early + early / 8 + 2, "{name} {order:?}: misses in the parts of the file: {misses:?}");
}

fn check_returns_to_zero(at: &str, policy: Box<dyn ReadaheadPolicy>, hint: Hint, rng: &mut Rng) {
    let mut reader = Reader::new(policy);
    reader.readahead.set_hint(hint, Extent::ALL, &mut reader.budget);
    for _ in 0..PHASES {
        let order = ORDERS[rng.below(ORDERS.len() as u64) as usize];
        let start = rng.below(FILE_BYTES / MIB / 2) * MIB;
        let reads = order.reads(Extent::at(start, 8 * MIB));
        let count = 1 + rng.below(reads.len() as u64) as usize;
        reads.iter().take(count).for_each(|read| reader.read(*read));
        // What is fetched again later must be fetched, not found.
        reader.cached.clear();
    }
    let skip = [0, 4 * KIB, 8 * KIB][rng.below(3) as usize];
    for read in (Order::Forward { len: 16 * KIB, skip }).reads(Extent::new(FILE_BYTES - 16 * MIB, FILE_BYTES)) {
        reader.read(read);
    }
    reader.read(Extent::new(FILE_BYTES - PAGE, FILE_BYTES));
    assert_eq!(reader.readahead.outstanding_bytes(), 0, "{at}: outstanding although the reader went on to the end");
    assert_eq!(reader.budget.held_bytes(), 0, "{at}: the budget still carries it");
}
