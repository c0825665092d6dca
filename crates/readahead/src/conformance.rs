//! What readahead must keep whatever its policy or patterns do: a model and random operations.
//!
//! `conformance::check("mine", || Box::new(Mine::new()), seed)` from a test; it panics with the seed and the call, and so
//! does `conformance::check_readers`, which holds a policy to what readers that go on may expect ([`readers`]). An
//! outsider's pattern is checked inside [`crate::policy::Parallel::with`].
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use types::{Extent, KIB, MIB, PAGE_BYTES, Rng};

use crate::budget::Budget;
use crate::config::Config;
use crate::file::{Facts, FileReadahead, Hint, Plan};
use crate::policy::ReadaheadPolicy;

mod readers;
pub use readers::check_readers;

const PAGE: u64 = PAGE_BYTES as u64;
const FILES: usize = 3;
const OPS: usize = 3_000;

/// A small world, so that limits are hit often.
#[must_use]
pub fn config() -> Config {
    Config {
        budget_bytes_max: 3 * MIB,
        window_bytes_max: 2 * MIB,
        window_bytes_unforced_max: MIB,
        waste_allowance_bytes: 512 * KIB,
        whole_file_bytes_max: 256 * KIB,
        sync_bytes_max: 256 * KIB,
        ..Config::default()
    }
}

struct File {
    readahead: FileReadahead,
    twin: FileReadahead,
    facts: Facts,
    /// Pages prefetched and neither used, reclaimed nor unlocked.
    outstanding: BTreeSet<u64>,
    position: u64,
    skip: i64,
}

/// Runs 3 files with one budget through random reads, misses, truncates, lock losses, reclaims and hints. Checks after
/// every call: extents are page-aligned, within the file, the lock, one stripe and one RPC; no page is asked for while it
/// is outstanding or being read; windows, budget and waste allowance hold; a twin given the same calls answers the same.
///
/// # Panics
/// When a rule is broken.
pub fn check(name: &str, make: impl Fn() -> Box<dyn ReadaheadPolicy>, seed: u64) {
    let mut rng = Rng::named(seed, "readahead.conformance");
    let config = config();
    let (mut budget, mut twin_budget) = (Budget::new(config.budget_bytes_max), Budget::new(config.budget_bytes_max));
    let mut files: Vec<File> = (0..FILES).map(|_| open(&make, &config, &mut rng)).collect();
    for op in 0..OPS {
        let which = rng.below(FILES as u64) as usize;
        step(&mut files[which], &mut budget, &mut twin_budget, &mut rng, &|| {
            alloc::format!("{name} seed {seed} op {op}")
        });
        let held: u64 = files.iter().map(|f| f.readahead.outstanding_bytes()).sum();
        assert_eq!(held, budget.held_bytes(), "{name} seed {seed} op {op}: files and budget disagree");
        assert!(held <= config.budget_bytes_max, "{name} seed {seed} op {op}: {held} bytes over budget");
        let f = &files[which];
        assert!(f.readahead.outstanding_bytes() <= config.window_bytes_max, "{name} seed {seed} op {op}: window");
        let s = f.readahead.stats();
        let allowed = config.waste_allowance_bytes + (s.used_bytes + s.missed_bytes) * config.waste_percent_max / 100;
        assert!(s.prefetched_bytes <= allowed, "{name} seed {seed} op {op}: {s:?} exceeds the waste allowance");
        if rng.chance(0.002) {
            let old = core::mem::replace(&mut files[which], open(&make, &config, &mut rng));
            old.readahead.close(&mut budget);
            old.twin.close(&mut twin_budget);
        }
    }
    for f in files {
        f.readahead.close(&mut budget);
    }
    assert_eq!((budget.held_bytes(), budget.holders()), (0, 0), "{name} seed {seed}: closed files hold budget");
}

fn open(make: &impl Fn() -> Box<dyn ReadaheadPolicy>, config: &Config, rng: &mut Rng) -> File {
    let file_size = if rng.chance(0.3) { rng.below(300 * KIB) } else { rng.below(64 * MIB) };
    let facts = Facts {
        file_size,
        stripe_size: [0, 64 * KIB, 192 * KIB, MIB][rng.below(4) as usize],
        rpc_bytes: [64 * KIB, 256 * KIB, MIB][rng.below(3) as usize],
        lock: Extent::ALL,
    };
    File {
        readahead: FileReadahead::with_policy(make(), config),
        twin: FileReadahead::with_policy(make(), config),
        facts,
        outstanding: BTreeSet::new(),
        position: 0,
        skip: 0,
    }
}

fn step(
    f: &mut File,
    budget: &mut Budget,
    twin_budget: &mut Budget,
    rng: &mut Rng,
    at: &dyn Fn() -> alloc::string::String,
) {
    match rng.below(100) {
        0..=79 => read(f, budget, twin_budget, rng, at),
        80..=84 => {
            let e = random_extent(f, rng);
            f.readahead.on_reclaimed_unused(e, budget);
            f.twin.on_reclaimed_unused(e, twin_budget);
            forget(f, e);
        }
        85..=88 => {
            let e = random_extent(f, rng);
            let lock = f.facts.lock;
            f.facts.lock = Extent::new(lock.start.max(e.end).min(lock.end), lock.end);
            let lost = Extent::new(lock.start, f.facts.lock.start);
            f.readahead.on_lock_lost(lost, budget);
            f.twin.on_lock_lost(lost, twin_budget);
            forget(f, lost);
        }
        89..=92 => f.facts.lock = Extent::ALL,
        93..=95 => {
            let e = random_extent(f, rng);
            let hint =
                [Hint::Normal, Hint::Sequential, Hint::Random, Hint::DontNeed, Hint::WillNeed][rng.below(5) as usize];
            f.readahead.set_hint(hint, e, budget);
            f.twin.set_hint(hint, e, twin_budget);
            if hint == Hint::DontNeed {
                forget(f, e);
            }
        }
        96 => {
            let (mut plan, mut again) = (Plan::default(), Plan::default());
            f.readahead.pump(&f.facts, budget, &mut plan);
            f.twin.pump(&f.facts, twin_budget, &mut again);
            assert!(plan == again, "{}: same calls, other answers", at());
            check_plan(f, &plan, Extent::EMPTY, at);
        }
        97 => {
            f.readahead.on_blocked();
            f.twin.on_blocked();
        }
        98 => f.facts.file_size = (f.facts.file_size + rng.below(4 * MIB)).min(64 * MIB),
        _ => {
            // Truncate: the client drops the pages beyond, as a lost lock does.
            let size = rng.below(f.facts.file_size + 1);
            let cut = Extent::from(size);
            f.readahead.on_lock_lost(cut, budget);
            f.twin.on_lock_lost(cut, twin_budget);
            forget(f, cut);
            f.facts.file_size = size;
        }
    }
}

/// Sequential, strided, backward or random reads; some of what is not outstanding is a miss.
fn read(
    f: &mut File,
    budget: &mut Budget,
    twin_budget: &mut Budget,
    rng: &mut Rng,
    at: &dyn Fn() -> alloc::string::String,
) {
    if rng.chance(0.05) {
        f.position = rng.below(f.facts.file_size.max(1));
        f.skip = [0, 0, 300_000, -600_000, 184_320][rng.below(5) as usize];
    }
    let largest = [4, 4096, 131_072][rng.below(3) as usize];
    let len = 1 + rng.below(largest);
    let read = Extent::at(f.position, len);
    f.position = read.end.saturating_add_signed(f.skip);
    let pages = pages_of(read);
    let (mut plan, mut again) = (Plan::default(), Plan::default());
    f.readahead.on_read(read, &f.facts, budget, &mut plan);
    f.twin.on_read(read, &f.facts, twin_budget, &mut again);
    assert!(plan == again, "{}: same calls, other answers", at());
    let hit = clip(f, read).is_none_or(|r| pages_of(r).all(|p| f.outstanding.contains(&p)));
    forget(f, read);
    check_plan(f, &plan, read, at);
    if !hit && rng.chance(0.8) {
        f.readahead.on_miss(read, &f.facts, budget, &mut plan);
        f.twin.on_miss(read, &f.facts, twin_budget, &mut again);
        assert!(plan == again, "{}: same calls, other answers", at());
        // What a miss takes over is not outstanding any more.
        pages.for_each(|p| _ = f.outstanding.remove(&p));
        check_plan(f, &plan, read, at);
    }
    if rng.chance(0.1) {
        f.readahead.on_progress(read, &f.facts, budget, &mut plan);
        f.twin.on_progress(read, &f.facts, twin_budget, &mut again);
        assert!(plan == again, "{}: same calls, other answers", at());
        check_plan(f, &plan, read, at);
    }
}

fn check_plan(f: &mut File, plan: &Plan, read: Extent, at: &dyn Fn() -> alloc::string::String) {
    for e in plan.sync.iter().chain(&plan.asynchronous) {
        let last = e.end - 1;
        assert!(!e.is_empty(), "{}: {e} is empty", at());
        assert!(e.end <= f.facts.file_size, "{}: {e} beyond the end of file {}", at(), f.facts.file_size);
        assert!(f.facts.lock.contains(e), "{}: {e} outside the lock {}", at(), f.facts.lock);
        assert!(e.start.is_multiple_of(PAGE), "{}: {e} starts within a page", at());
        assert!(e.end.is_multiple_of(PAGE) || e.end == f.facts.file_size, "{}: {e} ends within a page", at());
        assert!(e.start / f.facts.rpc_bytes == last / f.facts.rpc_bytes, "{}: {e} crosses an RPC border", at());
        let stripe = f.facts.stripe_size;
        assert!(stripe == 0 || e.start / stripe == last / stripe, "{}: {e} crosses a stripe", at());
        let reading = clip(f, read).is_some_and(|r| pages_of(r).any(|p| pages_of(*e).contains(&p)));
        assert!(!reading, "{}: {e} is being read", at());
        for p in pages_of(*e) {
            assert!(f.outstanding.insert(p), "{}: page {p} of {e} is outstanding", at());
        }
    }
}

fn clip(f: &File, e: Extent) -> Option<Extent> {
    e.intersect(&Extent::new(0, f.facts.file_size))
}
fn pages_of(e: Extent) -> core::ops::Range<u64> {
    e.start / PAGE..e.end.div_ceil(PAGE)
}
/// Pages wholly or partly in `e`; a partial last page counts as the mechanism counts it: by what is left of it.
fn forget(f: &mut File, e: Extent) {
    let Some(e) = clip(f, e) else { return };
    for p in pages_of(e) {
        f.outstanding.remove(&p);
    }
}
/// Page-aligned, as a cache reports what it drops.
fn random_extent(f: &File, rng: &mut Rng) -> Extent {
    let pages = f.facts.file_size.div_ceil(PAGE) + 1;
    let (a, b) = (rng.below(pages) * PAGE, rng.below(pages) * PAGE);
    Extent::new(a.min(b), a.max(b))
}
