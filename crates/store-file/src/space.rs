//! Which blocks of the data file are free, and which of them a write gets.
//!
//! An object that grows takes its blocks from a window of its own, so that streams written side by side lie apart on
//! the medium. Windows are soft: they count as free, and all of them are given back when space gets short.
//! Source: the allocator of paper 001's setting (regions by object size). Differs: windows are not kept on disk.
use std::collections::{BTreeMap, BTreeSet};

use types::ObjectId;

/// Blocks of the largest window: 8 MiB.
const WINDOW_MAX: u64 = 2048;
/// Windows that are open at a time.
const WINDOWS_MAX: usize = 1024;
/// Free pieces looked at from the cursor on before the best fit is taken.
const LOOK: usize = 8;

/// Neighbouring blocks of the data file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub start: u64,
    pub blocks: u64,
}

/// The free blocks.
#[derive(Default)]
pub(crate) struct SpaceMap {
    /// Start to length; never adjacent.
    free: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    windows: BTreeMap<ObjectId, Run>,
    free_blocks: u64,
    cursor: u64,
}

impl SpaceMap {
    /// Blocks that can be given out.
    pub fn ready(&self) -> u64 {
        self.free_blocks
    }

    fn insert(&mut self, start: u64, blocks: u64) {
        self.free.insert(start, blocks);
        self.by_size.insert((blocks, start));
    }
    fn remove(&mut self, start: u64) -> u64 {
        let blocks = self.free.remove(&start).expect("only free pieces are removed");
        self.by_size.remove(&(blocks, start));
        blocks
    }

    /// Puts blocks into the map without counting them.
    fn put_back(&mut self, run: Run) {
        let Run { mut start, mut blocks } = run;
        if blocks == 0 {
            return;
        }
        if let Some((s, len)) = self.free.range(..start).next_back().map(|(s, l)| (*s, *l)) {
            assert!(s + len <= start, "block {start} is freed twice");
            if s + len == start {
                self.remove(s);
                (start, blocks) = (s, blocks + len);
            }
        }
        if let Some((s, len)) = self.free.range(start + 1..).next().map(|(s, l)| (*s, *l)) {
            assert!(start + blocks <= s, "block {s} is freed twice");
            if start + blocks == s {
                self.remove(s);
                blocks += len;
            }
        }
        self.insert(start, blocks);
    }

    /// Blocks become free.
    pub fn free(&mut self, run: Run) {
        self.free_blocks += run.blocks;
        self.put_back(run);
    }

    /// Takes every free block out: those of windows, too.
    pub fn take_all(&mut self) -> Vec<Run> {
        self.close_windows();
        self.by_size.clear();
        self.free_blocks = 0;
        std::mem::take(&mut self.free).into_iter().map(|(start, blocks)| Run { start, blocks }).collect()
    }

    /// Takes up to `most` neighbouring free blocks out, from the largest piece, when it has at least `least`.
    pub fn take_largest(&mut self, least: u64, most: u64) -> Option<Run> {
        let (blocks, start) = *self.by_size.last()?;
        if blocks < least || most < least {
            return None;
        }
        // From its end: what comes next in the file stays in one piece.
        let take = blocks.min(most);
        let run = Run { start: start + blocks - take, blocks: take };
        self.cut(start, run);
        self.free_blocks -= take;
        Some(run)
    }

    /// Takes exactly these blocks, which must be free: at start, for what is mapped. Whether they were.
    pub fn claim(&mut self, run: Run) -> bool {
        let Some((s, len)) = self.free.range(..=run.start).next_back().map(|(s, l)| (*s, *l)) else { return false };
        if s + len < run.start + run.blocks {
            return false;
        }
        self.cut(s, run);
        self.free_blocks -= run.blocks;
        true
    }

    /// Removes `run` from the free piece that starts at `piece`.
    fn cut(&mut self, piece: u64, run: Run) {
        let len = self.remove(piece);
        if piece < run.start {
            self.insert(piece, run.start - piece);
        }
        let (end, piece_end) = (run.start + run.blocks, piece + len);
        if end < piece_end {
            self.insert(end, piece_end - end);
        }
    }

    /// Gives `want` blocks, as few pieces as can be: behind `goal` if that is free, else from the object's window.
    /// `size` is what the object will have in blocks. `None`, and nothing taken, when there are not so many.
    pub fn alloc(&mut self, object: ObjectId, goal: Option<u64>, size: u64, want: u64) -> Option<Vec<Run>> {
        if want > self.free_blocks {
            return None;
        }
        let mut runs: Vec<Run> = Vec::new();
        let mut left = want;
        while left > 0 {
            let goal = runs.last().map(|r| r.start + r.blocks).or(goal);
            let run = self.piece(object, goal, size, left);
            left -= run.blocks;
            match runs.last_mut() {
                Some(last) if last.start + last.blocks == run.start => last.blocks += run.blocks,
                _ => runs.push(run),
            }
        }
        self.free_blocks -= want;
        Some(runs)
    }

    /// One piece of at most `left` blocks; there are that many.
    fn piece(&mut self, object: ObjectId, goal: Option<u64>, size: u64, left: u64) -> Run {
        if let Some(window) = self.windows.get_mut(&object) {
            let take = left.min(window.blocks);
            let run = Run { start: window.start, blocks: take };
            (window.start, window.blocks) = (window.start + take, window.blocks - take);
            if window.blocks == 0 {
                self.windows.remove(&object);
            }
            return run;
        }
        if self.free.is_empty() {
            self.close_windows();
        }
        let wish = if size > left { size.next_power_of_two().clamp(left, WINDOW_MAX.max(left)) } else { left };
        let found = self.find(goal, wish);
        let take = found.blocks.min(left);
        if found.blocks > take {
            if self.windows.len() >= WINDOWS_MAX {
                self.close_windows();
            }
            self.windows.insert(object, Run { start: found.start + take, blocks: found.blocks - take });
        }
        Run { start: found.start, blocks: take }
    }

    /// Takes up to `wish` neighbouring blocks out of the map.
    fn find(&mut self, goal: Option<u64>, wish: u64) -> Run {
        if let Some(goal) = goal
            && let Some((s, len)) = self.free.range(..=goal).next_back().map(|(s, l)| (*s, *l))
            && s + len > goal
        {
            let run = Run { start: goal, blocks: wish.min(s + len - goal) };
            self.cut(s, run);
            return run;
        }
        let from_cursor = self.free.range(self.cursor..).chain(self.free.range(..self.cursor));
        let near = from_cursor.take(LOOK).find(|(_, len)| **len >= wish).map(|(s, _)| *s);
        let fit = || self.by_size.range((wish, 0)..).next().or_else(|| self.by_size.last()).map(|(_, s)| *s);
        let piece = near.or_else(fit).expect("the caller has checked that blocks are free");
        let run = Run { start: piece, blocks: wish.min(self.free[&piece]) };
        self.cut(piece, run);
        self.cursor = run.start + run.blocks;
        run
    }

    /// Gives every window back.
    pub fn close_windows(&mut self) {
        for (_, run) in std::mem::take(&mut self.windows) {
            self.put_back(run);
        }
    }

    /// Gives one object's window back.
    pub fn close_window(&mut self, object: ObjectId) {
        if let Some(run) = self.windows.remove(&object) {
            self.put_back(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{OstIndex, Rng};

    fn id(n: u64) -> ObjectId {
        ObjectId::new(OstIndex(0), n as u32 + 1)
    }

    #[test]
    fn no_block_is_given_twice_and_none_is_lost() {
        let (mut rng, mut map) = (Rng::new(4), SpaceMap::default());
        const BLOCKS: u64 = 20_000;
        map.free(Run { start: 1, blocks: BLOCKS });
        let (mut used, mut held) = (vec![false; BLOCKS as usize + 1], Vec::<Run>::new());
        for _ in 0..30_000 {
            if rng.chance(0.55) {
                let want = 1 + rng.below(64);
                let before = map.ready();
                match map.alloc(
                    id(rng.below(20)),
                    rng.chance(0.3).then(|| 1 + rng.below(BLOCKS)),
                    rng.below(4000),
                    want,
                ) {
                    Some(runs) => {
                        assert_eq!(runs.iter().map(|r| r.blocks).sum::<u64>(), want);
                        for r in runs {
                            for b in r.start..r.start + r.blocks {
                                assert!(!std::mem::replace(&mut used[b as usize], true), "block {b} given twice");
                            }
                            held.push(r);
                        }
                    }
                    None => assert!(want > before, "{before} blocks are free, {want} were refused"),
                }
            } else if !held.is_empty() {
                let r = held.swap_remove(rng.below(held.len() as u64) as usize);
                (r.start..r.start + r.blocks).for_each(|b| used[b as usize] = false);
                map.free(r);
            }
            assert_eq!(map.ready(), BLOCKS - used.iter().filter(|u| **u).count() as u64);
        }
        held.into_iter().for_each(|r| map.free(r));
        map.close_windows();
        assert_eq!(map.free, BTreeMap::from([(1, BLOCKS)]));
    }

    #[test]
    fn two_streams_written_side_by_side_lie_apart() {
        let mut map = SpaceMap::default();
        map.free(Run { start: 1, blocks: 1 << 20 });
        let (mut last, mut breaks) = ([None::<u64>; 2], 0);
        for i in 0..400u64 {
            let o = (i % 2) as usize;
            for r in map.alloc(id(o as u64), last[o], (i / 2 + 1) * 256, 256).unwrap() {
                breaks += u64::from(last[o] != Some(r.start));
                last[o] = Some(r.start + r.blocks);
            }
        }
        // Twice 200 MiB in windows of up to 8 MiB: about 50 places, not 400.
        assert!(breaks <= 60, "{breaks} breaks");
    }
}
