//! What runs leave behind in the memory of their process: thousands of seeds run in one.
use formats::memory::{Counting, is_counted, kept_of};
use sim::cluster::Without;
use sim::cluster::torture::run_seed;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// With arenas of the processes' own among them (3 and 12).
const SEEDS: [u64; 6] = [1, 3, 8, 11, 12, 18];
const MILLIS: u64 = 3000;

#[test]
fn a_world_that_is_over_is_dropped_whole() {
    assert!(is_counted());
    let mut without = Without::default();
    without.millis = Some(MILLIS);
    let run = |seed: u64| run_seed(seed, &without, None);
    for seed in SEEDS {
        // What is kept for the next run, and not for each: addresses of page frames.
        let first = run(seed);
        let (again, kept) = kept_of(|| run(seed) == first);
        assert!(again, "seed {seed} has another history the second time");
        assert_eq!(kept, 0, "bytes of seed {seed} are held when it is over");
    }
}
