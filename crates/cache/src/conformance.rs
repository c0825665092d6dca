//! One model for every policy: random operations against what the mechanism relies on.
//!
//! A policy that passes can be slow, never wrong. Run it on your own policy from a test:
//! `conformance::check(&|config| Box::new(Mine::new(config)), seed, 20_000)`.
use crate::{Advice, CacheConfig, FrameId, Grain, PageAccess, ReclaimPolicy, block_id};
use alloc::{boxed::Box, vec, vec::Vec};
use core::time::Duration;
use types::Rng;

/// Builds the policy under test.
pub type Build<'a> = &'a dyn Fn(&CacheConfig) -> Box<dyn ReclaimPolicy>;

/// Runs `steps` random operations on two instances of a policy side by side, in a cache of 1 to 300 pages drawn from
/// `seed`, and then empties it. Checked after every call:
/// - `resident` counts what was inserted and not removed or reclaimed;
/// - reclaim asks only for resident frames, each at most once, and returns only frames that it was allowed to;
/// - each victim is returned once and is no longer resident; what was in `victims` before stays;
/// - reclaim returns `want` frames whenever so many may leave, otherwise all that may;
/// - both instances give the same answers, although one is told many pages at once and the other one by one.
///
/// # Panics
/// When the policy breaks one of these; the message names seed and step.
pub fn check(build: Build<'_>, seed: u64, steps: u32) {
    let mut run = Run::new(build, seed, false);
    for step in 0..steps {
        run.step = step;
        run.random_operation();
    }
    run.empty();
}

/// As [`check`], with advice: no frame of a higher level leaves while one of a lower level may.
/// A policy built on [`crate::Managed`] passes; one of your own has to order the levels itself.
///
/// # Panics
/// When the policy breaks a rule; the message names seed and step.
pub fn check_advice(build: Build<'_>, seed: u64, steps: u32) {
    let mut run = Run::new(build, seed, true);
    for step in 0..steps {
        run.step = step;
        run.random_operation();
    }
    run.empty();
}

/// A frame as the mechanism sees it.
#[derive(Clone, Copy, Default)]
struct Frame {
    block: u64,
    grain: Grain,
    advice: Advice,
    resident: bool,
    pinned: bool,
}

struct Run {
    seed: u64,
    step: u32,
    rng: Rng,
    policies: [Box<dyn ReclaimPolicy>; 2],
    frames: Vec<Frame>,
    resident: u32,
    with_advice: bool,
    /// Chances of this run, so that runs differ: of pinning, of a coarse page, of a page fetched ahead.
    pin: f64,
    coarse: f64,
    ahead: f64,
    blocks: u64,
}

impl Run {
    fn new(build: Build<'_>, seed: u64, with_advice: bool) -> Run {
        let mut rng = Rng::named(seed, "conformance");
        let capacity = [1, 2, 3, 17, 64, 300][rng.below(6) as usize];
        let config = CacheConfig::new(capacity);
        let policies = [build(&config), build(&config)];
        assert!(!policies[0].name().is_empty(), "a policy has a name");
        assert!(policies[0].metadata_bytes_per_page() <= 32, "at most 32 bytes of metadata per page");
        let (pin, coarse, ahead) = (rng.unit() * 0.3, rng.unit(), rng.unit() * 0.5);
        let blocks = 1 + rng.below(u64::from(capacity) * 4);
        let frames = vec![Frame::default(); capacity as usize];
        Run { seed, step: 0, rng, policies, frames, resident: 0, with_advice, pin, coarse, ahead, blocks }
    }

    fn at(&self) -> (u64, u32) {
        (self.seed, self.step)
    }

    fn random_operation(&mut self) {
        let frame = self.rng.below(self.frames.len() as u64) as usize;
        match self.rng.below(16) {
            0 => self.random_reclaim(),
            1 => self.frames[frame].pinned = self.rng.chance(self.pin),
            4 => self.batch(),
            2 if self.frames[frame].resident && self.rng.chance(0.5) => self.remove(frame),
            3 => {
                let access = self.access(0, Grain::Fine);
                let (pages, took) = (1 + self.rng.below(64) as u32, Duration::from_micros(self.rng.below(20_000)));
                self.policies.iter_mut().for_each(|p| p.on_fetched(&access, pages, took));
            }
            _ if self.frames[frame].resident => self.touch(frame),
            _ => self.insert(frame),
        }
        for p in &self.policies {
            assert_eq!(p.resident(), self.resident, "resident, (seed, step) {:?}", self.at());
        }
    }

    /// Up to 40 uses of resident frames, and then as many insertions, in a batch by one instance and singly by the other.
    fn batch(&mut self) {
        let many = 1 + self.rng.below(40) as usize;
        let (mut touches, mut inserts) = (Vec::new(), Vec::new());
        for _ in 0..many {
            let frame = self.rng.below(self.frames.len() as u64) as usize;
            if self.frames[frame].resident {
                touches.push((FrameId(frame as u32), self.touched(frame)));
            }
        }
        for frame in 0..self.frames.len() {
            if !self.frames[frame].resident && inserts.len() < many {
                inserts.push((FrameId(frame as u32), self.inserted(frame)));
            }
        }
        let [one, other] = &mut self.policies;
        one.touch_batch(&touches);
        one.insert_batch(&inserts);
        touches.into_iter().for_each(|(frame, access)| other.touch(frame, access));
        inserts.into_iter().for_each(|(frame, access)| other.insert(frame, access));
    }

    fn access(&mut self, block: u64, grain: Grain) -> PageAccess {
        let request_bytes = if grain == Grain::Fine { 4096 } else { 1 << (20 + self.rng.below(6)) };
        let level = if self.with_advice && self.rng.chance(0.3) { self.rng.below(5) } else { 0 };
        PageAccess {
            block,
            request_bytes,
            grain,
            advice: Advice::ALL[level as usize],
            readahead: self.rng.chance(self.ahead),
            write: self.rng.chance(0.2),
        }
    }

    fn insert(&mut self, frame: usize) {
        let access = self.inserted(frame);
        self.policies.iter_mut().for_each(|p| p.insert(FrameId(frame as u32), access));
    }

    /// What an insertion of `frame` says; the model takes it in.
    fn inserted(&mut self, frame: usize) -> PageAccess {
        let (object, page) = (self.rng.below(3), self.rng.below(self.blocks));
        let grain = if self.rng.chance(self.coarse) { Grain::Coarse } else { Grain::Fine };
        let access = self.access(block_id(object, page), grain);
        let admitted = self.policies[0].admits(&access);
        assert_eq!(admitted, self.policies[1].admits(&access), "admits, (seed, step) {:?}", self.at());
        let pinned = self.rng.chance(self.pin);
        self.frames[frame] = Frame { block: access.block, grain, advice: access.advice, resident: true, pinned };
        self.resident += 1;
        access
    }

    fn touch(&mut self, frame: usize) {
        let access = self.touched(frame);
        self.policies.iter_mut().for_each(|p| p.touch(FrameId(frame as u32), access));
    }

    /// What a use of `frame` says; the model takes it in.
    fn touched(&mut self, frame: usize) -> PageAccess {
        let Frame { block, grain, .. } = self.frames[frame];
        let grain = if self.rng.chance(0.1) { Grain::Fine } else { grain };
        let access = self.access(block, grain);
        let f = &mut self.frames[frame];
        // A readahead pass is not a use and raises nothing.
        if !access.readahead {
            f.advice = f.advice.max(access.advice);
        }
        access
    }

    fn remove(&mut self, frame: usize) {
        self.policies.iter_mut().for_each(|p| p.remove(FrameId(frame as u32)));
        self.frames[frame] = Frame::default();
        self.resident -= 1;
    }

    fn random_reclaim(&mut self) {
        let capacity = self.frames.len() as u64;
        let want = if self.rng.chance(0.1) { self.rng.below(capacity + 3) } else { self.rng.below(1 + capacity / 4) };
        self.reclaim(want as u32);
    }

    fn reclaim(&mut self, want: u32) {
        let at = self.at();
        let mut answers: [Vec<FrameId>; 2] = [vec![FrameId(u32::MAX)], vec![FrameId(u32::MAX)]];
        for (policy, victims) in self.policies.iter_mut().zip(&mut answers) {
            let mut asked = vec![false; self.frames.len()];
            let mut may = |f: FrameId| {
                let frame = self.frames[f.0 as usize];
                assert!(frame.resident, "asked for frame {} which is not resident, (seed, step) {at:?}", f.0);
                assert!(!asked[f.0 as usize], "asked twice for frame {}, (seed, step) {at:?}", f.0);
                asked[f.0 as usize] = true;
                !frame.pinned
            };
            policy.reclaim(want, &mut may, victims);
            for v in victims.iter().skip(1) {
                assert!(asked[v.0 as usize], "frame {} left unasked, (seed, step) {at:?}", v.0);
            }
        }
        assert_eq!(answers[0], answers[1], "same calls, same answers, (seed, step) {at:?}");
        let victims = answers[0].split_off(1);
        assert_eq!(answers[0], [FrameId(u32::MAX)], "victims are appended");
        self.check_victims(want, &victims);
    }

    fn check_victims(&mut self, want: u32, victims: &[FrameId]) {
        let at = self.at();
        let evictable = self.frames.iter().filter(|f| f.resident && !f.pinned).count();
        assert_eq!(victims.len(), evictable.min(want as usize), "victims, (seed, step) {at:?}");
        let mut level = Advice::None;
        for v in victims {
            let frame = &mut self.frames[v.0 as usize];
            assert!(frame.resident, "frame {} came twice or was not resident, (seed, step) {at:?}", v.0);
            assert!(!frame.pinned, "frame {} may not leave, (seed, step) {at:?}", v.0);
            assert!(frame.advice >= level, "frame {} left after a better advised one, (seed, step) {at:?}", v.0);
            level = frame.advice;
            *frame = Frame::default();
            self.resident -= 1;
        }
        let lowest = self.frames.iter().filter(|f| f.resident && !f.pinned).map(|f| f.advice).min();
        let kept_lower = !victims.is_empty() && lowest.is_some_and(|l| l < level);
        assert!(!kept_lower, "a less advised frame stayed, (seed, step) {at:?}");
    }

    /// Everything unpinned must leave, exactly once each.
    fn empty(&mut self) {
        self.frames.iter_mut().for_each(|f| f.pinned = false);
        self.reclaim(self.frames.len() as u32 + 1);
        assert_eq!(self.resident, 0);
        assert!(self.policies.iter().all(|p| p.resident() == 0), "an emptied policy is empty, seed {}", self.seed);
    }
}
