//! The random operations: what they are and how they are drawn. Drawing does not look at any state, so that any
//! sub-sequence of a failed run is a run too.
use types::Rng;

use super::model::Names;

/// Descriptor slots.
pub const SLOTS: u8 = 6;

/// An operation. `slot` is one of [`SLOTS`] descriptors; with an empty one the operation is left out.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the fields are the arguments of the calls")]
pub enum Op {
    Open { path: Names, create: bool, excl: bool, trunc: bool, append: bool, slot: u8 },
    Close { slot: u8 },
    Write { slot: u8, off: u64, len: usize, tag: u64 },
    Read { slot: u8, off: u64, len: usize },
    Truncate { slot: u8, len: u64 },
    TruncatePath { path: Names, len: u64 },
    Punch { slot: u8, off: u64, len: u64 },
    Zero { slot: u8, off: u64, len: u64 },
    Reserve { slot: u8, off: u64, len: u64 },
    Copy { from: u8, to: u8, from_off: u64, to_off: u64, len: usize },
    MapRead { slot: u8, off: u64, len: usize },
    MapWrite { slot: u8, off: u64, len: usize, tag: u64 },
    Sync { slot: u8 },
    DataEnd { slot: u8 },
    Stat { path: Names },
    StatSlot { slot: u8 },
    Chmod { path: Names, mode: u32 },
    Mkdir { path: Names },
    Rmdir { path: Names },
    Unlink { path: Names },
    Link { old: Names, new: Names },
    Rename { old: Names, new: Names, flags: u32 },
    List { path: Names },
}

/// An operation and the mount it goes through.
#[derive(Clone, Debug)]
pub struct Step {
    /// Which of the directories.
    pub side: usize,
    /// What.
    pub op: Op,
}

fn path(rng: &mut Rng) -> Names {
    let depth = [1, 1, 1, 2, 2, 3][rng.below(6) as usize];
    (0..depth).map(|_| rng.below(5) as u8).collect()
}

fn offset(rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0 => 0,
        1..=4 => rng.below(40_000),
        5..=7 => rng.below(64) * 4096 + rng.below(3),
        8 => rng.below(300_000),
        _ => (1 << 20) * (1 + rng.below(3)) + rng.below(20_000) - 10_000,
    }
}

fn length(rng: &mut Rng) -> usize {
    match rng.below(8) {
        0..=2 => 1 + rng.below(300) as usize,
        3..=5 => 1 + rng.below(20_000) as usize,
        6 => 4096 * (1 + rng.below(16) as usize),
        _ => 1 + rng.below(200_000) as usize,
    }
}

/// Draws one.
pub fn draw(rng: &mut Rng, sides: usize) -> Step {
    let side = rng.below(sides as u64) as usize;
    let slot = rng.below(u64::from(SLOTS)) as u8;
    let op = match rng.below(100) {
        0..=11 => Op::Open {
            path: path(rng),
            create: !rng.chance(0.2),
            excl: rng.chance(0.1),
            trunc: rng.chance(0.1),
            append: rng.chance(0.2),
            slot,
        },
        12..=14 => Op::Close { slot },
        15..=31 => Op::Write { slot, off: offset(rng), len: length(rng), tag: rng.next_u64() },
        32..=48 => Op::Read { slot, off: offset(rng), len: length(rng) },
        49..=52 => Op::Truncate { slot, len: offset(rng) },
        53 => Op::TruncatePath { path: path(rng), len: offset(rng) },
        54..=55 => Op::Punch { slot, off: offset(rng), len: length(rng) as u64 },
        56 => Op::Zero { slot, off: offset(rng), len: length(rng) as u64 },
        57 => Op::Reserve { slot, off: offset(rng), len: length(rng) as u64 },
        58..=60 => {
            let to = rng.below(u64::from(SLOTS)) as u8;
            Op::Copy { from: slot, to, from_off: offset(rng), to_off: offset(rng), len: length(rng) }
        }
        61..=63 => Op::MapRead { slot, off: offset(rng), len: length(rng) },
        64..=66 => Op::MapWrite { slot, off: offset(rng), len: length(rng), tag: rng.next_u64() },
        67..=68 => Op::Sync { slot },
        69 => Op::DataEnd { slot },
        70..=74 => Op::Stat { path: path(rng) },
        75..=79 => Op::StatSlot { slot },
        80 => Op::Chmod { path: path(rng), mode: 0o600 | rng.below(0o200) as u32 },
        81..=84 => Op::Mkdir { path: path(rng) },
        85..=86 => Op::Rmdir { path: path(rng) },
        87..=89 => Op::Unlink { path: path(rng) },
        90..=91 => Op::Link { old: path(rng), new: path(rng) },
        92..=96 => {
            let flags = [0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE][rng.below(5) as usize];
            Op::Rename { old: path(rng), new: path(rng), flags }
        }
        _ => Op::List { path: if rng.chance(0.5) { Vec::new() } else { path(rng) } },
    };
    Step { side, op }
}
