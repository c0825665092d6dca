//! Which rank accesses what, in which order.
//!
//! A workload has IOR's shape: a file is `segments` segments, a segment one block of each of its ranks, a block a row of
//! transfers. Ranks are numbered agent by agent. Decides nothing about time, and touches no file.
//! Source: IOR 3.3's user guide. Differs: a file may belong to several ranks and not to all of them (the surveys' regions and
//! objects); `-z` deals the transfers of a shared file out by a permutation instead of drawing them.
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

use types::format_size;

use crate::pattern::WORD;
use crate::shuffle::{Shuffle, mix};

/// Most ranks of a workload.
pub const RANKS_MAX: u64 = 65_536;
/// Largest transfer in bytes: every rank has a buffer of one.
pub const TRANSFER_BYTES_MAX: u64 = 1 << 30;

/// A workload that makes sense: made by [`Draft::checked`] alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Draft", into = "Draft")]
pub struct Workload(Draft);

/// What a workload consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draft {
    /// Bytes of one read or write.
    pub transfer_bytes: u64,
    /// Bytes of a block: what a rank has in a row.
    pub block_bytes: u64,
    /// Segments: blocks of each rank.
    pub segments: u64,
    /// Agents, each one client.
    pub agents: u32,
    /// Ranks of each agent.
    pub tasks: u32,
    /// Files, dealt out to the ranks in turn; 1: all share one, as many as ranks: each has its own.
    pub files: u32,
    /// Transfers in random order.
    pub random: bool,
    /// Whoever reads, reads what the next agent wrote.
    pub reorder: bool,
    /// Writes of a rank end with fsync.
    pub fsync: bool,
    /// Names order and content.
    pub seed: u64,
}

/// What is done to the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Every rank writes.
    Write,
    /// Every rank reads.
    Read,
}

impl Phase {
    /// As the tables have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Write => "write",
            Phase::Read => "read",
        }
    }
}

impl Draft {
    /// The workload.
    ///
    /// # Errors
    /// What about it cannot be.
    pub fn checked(self) -> Result<Workload, String> {
        let (t, b) = (self.transfer_bytes, self.block_bytes);
        if t == 0 || !t.is_multiple_of(WORD) {
            return Err(format!("a transfer (-t) of {t} bytes: it has to be a multiple of {WORD}"));
        }
        if t > TRANSFER_BYTES_MAX {
            return Err(format!(
                "a transfer (-t) of {}: {} are the most",
                format_size(t),
                format_size(TRANSFER_BYTES_MAX)
            ));
        }
        if b == 0 || !b.is_multiple_of(t) {
            return Err(format!("a block (-b) of {b} bytes is not a multiple of the transfer (-t) of {t}"));
        }
        if self.segments == 0 || self.tasks == 0 || self.agents == 0 || self.files == 0 {
            return Err("there has to be at least one segment (-s), agent, task and file".into());
        }
        let ranks = u64::from(self.agents) * u64::from(self.tasks);
        if ranks > RANKS_MAX {
            return Err(format!("{ranks} ranks: {RANKS_MAX} are the most"));
        }
        if !ranks.is_multiple_of(u64::from(self.files)) {
            return Err(format!("{ranks} ranks cannot share {} files evenly", self.files));
        }
        match b.checked_mul(self.segments).and_then(|n| n.checked_mul(ranks)) {
            Some(bytes) if i64::try_from(bytes).is_ok() => Ok(Workload(self)),
            _ => Err(format!("{} segments of {ranks} blocks of {b} bytes are more than a file holds", self.segments)),
        }
    }
}

impl TryFrom<Draft> for Workload {
    type Error = String;
    fn try_from(draft: Draft) -> Result<Workload, String> {
        draft.checked()
    }
}
impl From<Workload> for Draft {
    fn from(w: Workload) -> Draft {
        w.0
    }
}
impl std::ops::Deref for Workload {
    type Target = Draft;
    fn deref(&self) -> &Draft {
        &self.0
    }
}

/// One read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Offset in the file of the rank.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Workload {
    /// Ranks of all agents.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.agents * self.tasks
    }
    /// The ranks of an agent.
    #[must_use]
    pub fn ranks_of(&self, agent: u32) -> std::ops::Range<u32> {
        agent * self.tasks..(agent + 1) * self.tasks
    }
    /// Bytes that each rank moves in a phase.
    #[must_use]
    pub fn rank_bytes(&self) -> u64 {
        self.block_bytes * self.segments
    }
    /// Bytes that a phase moves.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.rank_bytes() * u64::from(self.ranks())
    }
    /// Bytes of each file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.total_bytes() / u64::from(self.files)
    }
    /// Whether all ranks share one file.
    #[must_use]
    pub fn shares_one(&self) -> bool {
        self.files == 1
    }
    /// Whose part of the files `rank` reads or writes.
    #[must_use]
    pub fn part(&self, rank: u32, phase: Phase) -> u32 {
        match phase {
            Phase::Read if self.reorder && self.agents > 1 => (rank + self.tasks) % self.ranks(),
            _ => rank,
        }
    }
    /// The file in which a part lies.
    #[must_use]
    pub fn file_of(&self, part: u32) -> u32 {
        part % self.files
    }
    /// The files that an agent makes: those of its ranks that nobody before it has.
    #[must_use]
    pub fn made_by(&self, agent: u32) -> Vec<u32> {
        self.ranks_of(agent).filter(|r| *r < self.files).collect()
    }
    /// The path of a file: that of the test file, with a number when there are several.
    #[must_use]
    pub fn path(&self, base: &Path, file: u32) -> PathBuf {
        if self.shares_one() {
            return base.into();
        }
        let mut name = base.as_os_str().to_owned();
        name.push(format!(".{file:08}"));
        name.into()
    }
    /// The accesses to a part, in order.
    pub fn accesses(&self, part: u32) -> impl Iterator<Item = Access> + use<> {
        let draft = self.0.clone();
        let per_file = u64::from(self.ranks() / self.files);
        let (file, member) = (self.file_of(part), u64::from(part / self.files));
        let (per_block, bytes) = (self.block_bytes / self.transfer_bytes, self.transfer_bytes);
        let count = per_block * self.segments;
        let shuffle = Shuffle::new(count * per_file, mix(self.seed) ^ u64::from(file));
        (0..count).map(move |i| {
            let place = if draft.random {
                shuffle.at(member * count + i)
            } else {
                (i / per_block * per_file + member) * per_block + i % per_block
            };
            Access { offset: place * bytes, bytes }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> Draft {
        Draft {
            transfer_bytes: 8,
            block_bytes: 24,
            segments: 2,
            agents: 2,
            tasks: 2,
            files: 1,
            random: false,
            reorder: false,
            fsync: false,
            seed: 1,
        }
    }

    fn offsets(w: &Workload, part: u32) -> Vec<u64> {
        w.accesses(part).map(|a| a.offset).collect()
    }

    #[test]
    fn a_shared_file_has_segments_of_one_block_per_rank() {
        let w = draft().checked().unwrap();
        assert_eq!(offsets(&w, 0), [0, 8, 16, 96, 104, 112]);
        assert_eq!(offsets(&w, 3), [72, 80, 88, 168, 176, 184]);
        assert_eq!((w.total_bytes(), w.file_bytes(), w.rank_bytes()), (192, 192, 48));
        assert_eq!(w.path(Path::new("d/f"), 0), Path::new("d/f"));
        assert_eq!((w.made_by(0), w.made_by(1)), (vec![0], vec![]));
    }

    #[test]
    fn own_files_hold_the_blocks_of_one_rank_in_a_row() {
        let w = Draft { files: 4, ..draft() }.checked().unwrap();
        assert_eq!(offsets(&w, 2), [0, 8, 16, 24, 32, 40]);
        assert_eq!((w.file_of(2), w.file_bytes()), (2, 48));
        assert_eq!(w.path(Path::new("d/f"), 2), Path::new("d/f.00000002"));
        assert_eq!((w.made_by(0), w.made_by(1)), (vec![0, 1], vec![2, 3]));
    }

    #[test]
    fn every_byte_of_every_file_belongs_to_one_rank() {
        for (files, random) in [(1, false), (2, false), (4, false), (1, true), (2, true), (4, true)] {
            let w = Draft { files, random, ..draft() }.checked().unwrap();
            let mut hits = vec![0; w.total_bytes() as usize];
            for part in 0..w.ranks() {
                for a in w.accesses(part) {
                    let begin = u64::from(w.file_of(part)) * w.file_bytes() + a.offset;
                    assert!(a.offset + a.bytes <= w.file_bytes());
                    hits[begin as usize..(begin + a.bytes) as usize].iter_mut().for_each(|h| *h += 1);
                }
            }
            assert!(hits.iter().all(|h| *h == 1), "{files} {random}");
        }
    }

    #[test]
    fn random_order_is_the_seeds_and_differs_from_the_sequential_one() {
        let with = |random, seed| Draft { random, seed, block_bytes: 800, ..draft() }.checked().unwrap();
        assert_eq!(offsets(&with(true, 1), 1), offsets(&with(true, 1), 1));
        assert_ne!(offsets(&with(true, 1), 1), offsets(&with(true, 2), 1));
        assert_ne!(offsets(&with(true, 1), 1), offsets(&with(false, 1), 1));
    }

    #[test]
    fn reordered_reads_go_to_the_next_agents_parts_and_writes_do_not() {
        let w = Draft { reorder: true, ..draft() }.checked().unwrap();
        let parts = |phase| (0..4).map(|r| w.part(r, phase)).collect::<Vec<_>>();
        assert_eq!(parts(Phase::Read), [2, 3, 0, 1]);
        assert_eq!(parts(Phase::Write), [0, 1, 2, 3]);
        let alone = Draft { reorder: true, agents: 1, ..draft() }.checked().unwrap();
        assert_eq!(alone.part(1, Phase::Read), 1, "IOR's nodes: with one there is no next");
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_option_to_change() {
        let wrong = |d: Draft| d.checked().unwrap_err();
        assert!(wrong(Draft { transfer_bytes: 12, ..draft() }).contains("-t"));
        assert!(wrong(Draft { transfer_bytes: 0, ..draft() }).contains("-t"));
        assert!(
            wrong(Draft { transfer_bytes: 2 << 30, block_bytes: 2 << 30, ..draft() }).contains("1.0G are the most")
        );
        assert!(wrong(Draft { block_bytes: 20, ..draft() }).contains("-b"));
        assert!(wrong(Draft { block_bytes: 0, ..draft() }).contains("-b"));
        assert!(wrong(Draft { segments: 0, ..draft() }).contains("-s"));
        assert!(wrong(Draft { segments: u64::MAX / 24, ..draft() }).contains("more than a file holds"));
        assert!(wrong(Draft { agents: 1 << 20, tasks: 1 << 20, ..draft() }).contains("ranks"));
        assert!(wrong(Draft { files: 3, ..draft() }).contains("evenly"));
    }

    #[test]
    fn a_workload_that_came_over_a_wire_is_checked_again() {
        let w = draft().checked().unwrap();
        let text = serde_json::to_string(&w).unwrap();
        assert_eq!(serde_json::from_str::<Workload>(&text).unwrap(), w);
        assert!(serde_json::from_str::<Workload>(&text.replace("\"segments\":2", "\"segments\":0")).is_err());
    }
}
