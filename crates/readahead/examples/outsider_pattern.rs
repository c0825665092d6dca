//! A pattern from outside the house: *tiles*. A program that reads a matrix by tiles reads `height` rows of `width` bytes,
//! `pitch` apart, then moves one tile to the right. The house's stride sees each tile's rows, but not the move.
//!
//! `cargo run -p stria-readahead --example outsider_pattern`
use types::{Extent, KIB, MIB};

use readahead::policy::Parallel;
use readahead::{Budget, Config, Facts, FileReadahead, PATTERNS, Pattern, Plan};

/// Rows of a tile: first row, distance of rows, rows per tile (0 until the first move was seen).
#[derive(Default)]
struct Tiles {
    origin: Extent,
    last: Extent,
    pitch: u64,
    row: u64,
    height: u64,
    moves: u32,
}

impl Pattern for Tiles {
    fn observe(&mut self, read: Extent) -> bool {
        let next_tile = read.start == self.origin.end && read.len() == self.origin.len();
        if next_tile && self.row > 1 {
            self.moves = if self.height == 0 || self.height == self.row { self.moves + 1 } else { 0 };
            self.height = self.row;
            (self.origin, self.row) = (read, 1);
        } else if self.row == 1 && read.start > self.origin.end && self.moves == 0 {
            self.pitch = read.start - self.origin.start;
            self.row = 2;
        } else if self.row > 0 && self.pitch > 0 && read.start == self.last.start + self.pitch {
            self.row += 1;
        } else {
            *self = Tiles { origin: read, row: 1, ..Tiles::default() };
        }
        self.last = read;
        self.moves >= 1
    }

    fn next(&self, after: Extent, want: u64) -> Option<Extent> {
        let width = self.origin.len();
        let below = after.start.checked_sub(self.origin.start)?;
        // Tiles lie side by side: the column says which tile, the row how far down in it.
        let (row, column) = (below / self.pitch, below % self.pitch);
        let start = if row + 1 < self.height {
            after.start + self.pitch
        } else {
            self.origin.start + (column / width + 1) * width
        };
        Some(Extent::at(start, width.min(want)))
    }
}

/// Reads a matrix of 256 rows x 1 MiB by tiles of 16 KiB x 32 rows; returns (reads, misses, fetched bytes, read bytes).
fn read_tiles(mut file: FileReadahead, config: &Config) -> (u64, u64, u64, u64) {
    let mut budget = Budget::new(config.budget_bytes_max);
    let facts = Facts { file_size: 256 * MIB, stripe_size: MIB, rpc_bytes: MIB, lock: Extent::ALL };
    let (mut plan, mut cached) = (Plan::default(), std::collections::BTreeSet::new());
    let (mut reads, mut misses) = (0, 0);
    for tile in 0..64 {
        for row in 0..32 {
            let read = Extent::at(row * MIB + tile * 16 * KIB, 16 * KIB);
            file.on_read(read, &facts, &mut budget, &mut plan);
            let mut arrived = plan.asynchronous.to_vec();
            if !(read.start / 4096..read.end / 4096).all(|p| cached.contains(&p)) {
                file.on_miss(read, &facts, &mut budget, &mut plan);
                arrived.extend(plan.sync.iter().chain(&plan.asynchronous).chain([&read]));
                misses += 1;
            }
            cached.extend(arrived.iter().flat_map(|e| e.start / 4096..e.end.div_ceil(4096)));
            reads += 1;
        }
    }
    file.close(&mut budget);
    (reads, misses, cached.len() as u64 * 4096, reads * 16 * KIB)
}

fn main() {
    let config = Config::default();
    // Ours first: the first pattern that explains a read is used.
    let tiles: Box<dyn Pattern> = Box::new(Tiles::default());
    let patterns = std::iter::once(tiles).chain(PATTERNS.iter().map(|p| (p.make)()));
    let ours = FileReadahead::with_policy(Box::new(Parallel::with(&config, patterns)), &config);
    let house = FileReadahead::new("parallel", &config).expect("a name of the registry");
    for (name, file) in [("house", house), ("house + tiles", ours)] {
        let (reads, misses, fetched, used) = read_tiles(file, &config);
        let ratio = fetched as f64 / used as f64;
        println!("{name:<14} {reads} reads, {misses:>4} misses, fetched/used {ratio:.2}");
    }
    // A pattern is checked by the room's conformance suite as part of the policy that uses it.
    for seed in 0..3 {
        let with_tiles = || Parallel::with(&config, [Box::new(Tiles::default()) as Box<dyn Pattern>]);
        readahead::conformance::check("tiles", || Box::new(with_tiles()), seed);
    }
    println!("conformance: ok");
}
