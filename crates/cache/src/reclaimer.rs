//! The policy as a mechanism holds it: changed by name or by a key while the cache is in use, recorded while it works.
//!
//! A new policy gets the frames in the order in which the old one would have given them up, so what was about to leave is
//! still about to leave, with what the old one knew of each ([`ReclaimPolicy::remembered`]). What the old policy had learned
//! (ghosts, use counts, duels) is gone. Takes one pass over the resident frames, some tens of nanoseconds each; the
//! mechanism stands still meanwhile.
use crate::record::{self, Call};
use crate::{Advice, CacheConfig, FrameId, PageAccess, ReclaimPolicy, build};
use alloc::{boxed::Box, string::String, vec::Vec};
use core::time::Duration;
use types::record::{Recordable, Recording, Tape};

/// Builds a policy by name: [`build`], or an outsider's.
pub type Registry = fn(&str, &CacheConfig) -> Result<Box<dyn ReclaimPolicy>, String>;

/// See the module's head. The calls are those of [`ReclaimPolicy`].
pub struct Reclaimer {
    registry: Registry,
    policy: Box<dyn ReclaimPolicy>,
    config: CacheConfig,
    tape: Tape,
}

impl Reclaimer {
    /// An empty policy of the registry.
    ///
    /// # Errors
    /// A sentence with the policies that exist.
    pub fn new(policy: &str, config: CacheConfig) -> Result<Reclaimer, String> {
        Reclaimer::with_registry(build, policy, config)
    }
    /// An empty policy of another registry.
    ///
    /// # Errors
    /// The registry's.
    pub fn with_registry(registry: Registry, policy: &str, config: CacheConfig) -> Result<Reclaimer, String> {
        Ok(Reclaimer { registry, policy: registry(policy, &config)?, config, tape: Tape::default() })
    }

    /// Changes the policy; `block_of` says which block a frame holds.
    ///
    /// # Errors
    /// A sentence with the policies that exist; nothing has changed then.
    ///
    /// # Panics
    /// When the old policy does not give up all its frames (a bug in it).
    pub fn switch(&mut self, policy: &str, block_of: &mut dyn FnMut(FrameId) -> u64) -> Result<(), String> {
        let fresh = (self.registry)(policy, &self.config)?;
        self.tape.write(|out| record::write_switch(out, policy));
        self.introduce(fresh, block_of);
        Ok(())
    }
    /// Changes one key of the configuration: a fresh policy of the same name takes the place of the one in use, as in
    /// [`Reclaimer::switch`]. A value that the key has already changes nothing.
    ///
    /// # Errors
    /// A sentence naming key, value and range; nothing has changed then.
    ///
    /// # Panics
    /// As [`Reclaimer::switch`].
    pub fn set(&mut self, key: &str, value: &str, block_of: &mut dyn FnMut(FrameId) -> u64) -> Result<(), String> {
        let mut config = self.config.clone();
        config.set(key, value)?;
        if config == self.config {
            return Ok(());
        }
        let fresh = (self.registry)(self.name(), &config)?;
        self.tape.write(|out| record::write_key(out, key, &config));
        self.config = config;
        self.introduce(fresh, block_of);
        Ok(())
    }
    /// Starts to record up to `bytes_max` bytes, with a fresh policy of the same name, as the replay will have one.
    ///
    /// # Errors
    /// The registry does not know the policy; nothing has changed then.
    pub fn record(&mut self, bytes_max: usize, block_of: &mut dyn FnMut(FrameId) -> u64) -> Result<(), String> {
        let fresh = (self.registry)(self.name(), &self.config)?;
        self.tape.start(record::header(self.name(), &self.config), bytes_max);
        self.introduce(fresh, block_of);
        Ok(())
    }
    /// Ends the recording and hands its log out, for [`record::replay`].
    pub fn take_record(&mut self) -> Option<Recording> {
        self.tape.take()
    }

    fn introduce(&mut self, fresh: Box<dyn ReclaimPolicy>, block_of: &mut dyn FnMut(FrameId) -> u64) {
        let mut old = core::mem::replace(&mut self.policy, fresh);
        let resident = old.resident();
        if resident == 0 {
            return;
        }
        // Grain, advice and first use in three bytes: of large caches there are many pages.
        let known = (0..self.config.capacity_pages).map(|f| old.remembered(FrameId(f)));
        let known: Vec<_> = known.map(|a| (a.grain, a.advice, a.readahead)).collect();
        let mut frames = Vec::with_capacity(resident as usize);
        old.reclaim(resident, &mut |_| true, &mut frames);
        assert!(
            old.resident() == 0 && frames.len() == resident as usize,
            "a policy gives up every frame when all may go"
        );
        for frame in frames {
            let (grain, advice, readahead) = known[frame.0 as usize];
            let request = PageAccess::of_grain(block_of(frame), grain, self.config.stripe_bytes);
            self.insert(frame, PageAccess { advice, readahead, ..request });
        }
    }

    /// See [`ReclaimPolicy::name`].
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.policy.name()
    }
    /// What it was built from.
    #[must_use]
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }
    /// See [`ReclaimPolicy::admits`].
    #[must_use]
    pub fn admits(&mut self, access: &PageAccess) -> bool {
        let answer = self.policy.admits(access);
        self.note(|| Call::Admits(*access, answer));
        answer
    }
    /// See [`ReclaimPolicy::insert`].
    ///
    /// # Panics
    /// When the frame is resident or not below the capacity.
    #[inline]
    pub fn insert(&mut self, frame: FrameId, access: PageAccess) {
        self.note(|| Call::Insert(frame, access));
        self.policy.insert(frame, access);
    }
    /// See [`ReclaimPolicy::touch`].
    ///
    /// # Panics
    /// When the frame is not resident.
    #[inline]
    pub fn touch(&mut self, frame: FrameId, access: PageAccess) {
        self.note(|| Call::Touch(frame, access));
        self.policy.touch(frame, access);
    }
    /// See [`ReclaimPolicy::insert_batch`].
    ///
    /// # Panics
    /// As [`Reclaimer::insert`].
    pub fn insert_batch(&mut self, pages: &[(FrameId, PageAccess)]) {
        pages.iter().for_each(|&(frame, access)| self.note(|| Call::Insert(frame, access)));
        self.policy.insert_batch(pages);
    }
    /// See [`ReclaimPolicy::touch_batch`].
    ///
    /// # Panics
    /// As [`Reclaimer::touch`].
    pub fn touch_batch(&mut self, pages: &[(FrameId, PageAccess)]) {
        pages.iter().for_each(|&(frame, access)| self.note(|| Call::Touch(frame, access)));
        self.policy.touch_batch(pages);
    }
    /// See [`ReclaimPolicy::remove`].
    ///
    /// # Panics
    /// When the frame is not resident.
    #[inline]
    pub fn remove(&mut self, frame: FrameId) {
        self.note(|| Call::Remove(frame));
        self.policy.remove(frame);
    }
    /// See [`ReclaimPolicy::reclaim`].
    pub fn reclaim(&mut self, want: u32, can_evict: &mut dyn FnMut(FrameId) -> bool, victims: &mut Vec<FrameId>) {
        if !self.tape.is_recording() {
            return self.policy.reclaim(want, can_evict, victims);
        }
        let before = victims.len();
        let mut asked = Vec::new();
        let mut ask = |f: FrameId| {
            let answer = can_evict(f);
            asked.push((f, answer));
            answer
        };
        self.policy.reclaim(want, &mut ask, victims);
        self.note(|| Call::Reclaim { want, asked, victims: victims[before..].to_vec() });
    }
    /// See [`ReclaimPolicy::on_fetched`].
    pub fn on_fetched(&mut self, access: &PageAccess, pages: u32, took: Duration) {
        self.note(|| Call::Fetched(*access, pages, took));
        self.policy.on_fetched(access, pages, took);
    }
    /// Changes the advice of a resident page, which counts as inserted anew: `block` is what the frame holds.
    ///
    /// # Panics
    /// When the frame is not resident.
    pub fn readvise(&mut self, frame: FrameId, block: u64, advice: Advice) {
        let known = self.policy.remembered(frame);
        if known.advice != advice {
            let request = PageAccess::of_grain(block, known.grain, self.config.stripe_bytes);
            self.remove(frame);
            self.insert(frame, PageAccess { advice, readahead: known.readahead, ..request });
        }
    }
    /// See [`ReclaimPolicy::resident`].
    #[must_use]
    pub fn resident(&self) -> u32 {
        self.policy.resident()
    }
    /// See [`ReclaimPolicy::counters`].
    pub fn counters(&self, into: &mut Vec<(&'static str, u64)>) {
        self.policy.counters(into);
    }

    #[inline]
    fn note(&mut self, call: impl FnOnce() -> Call) {
        if self.tape.is_recording() {
            self.tape.write(|out| record::write_call(out, &call()));
        }
    }
}

/// A [`Reclaimer`] with the blocks that its frames hold, for the parameter.
pub struct Recorded<'a> {
    /// The policy.
    pub reclaimer: &'a mut Reclaimer,
    /// Which block a frame holds.
    pub block_of: &'a mut dyn FnMut(FrameId) -> u64,
}

impl Recordable for Recorded<'_> {
    fn tape(&mut self) -> &mut Tape {
        &mut self.reclaimer.tape
    }
    fn begin(&mut self, bytes_max: usize) -> Result<(), String> {
        self.reclaimer.record(bytes_max, self.block_of)
    }
    fn replay(&self, recording: Recording) -> Result<u64, String> {
        types::record::replay_text(&recording, |text| record::replay(text, self.reclaimer.registry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Advice, Grain, registry};
    use types::Rng;

    #[test]
    fn a_switch_between_any_two_policies_loses_no_frame_and_keeps_advice() {
        let config = CacheConfig::new(200);
        let access = |f: FrameId| {
            let a = if f.0.is_multiple_of(3) { PageAccess::coarse(7, 1 << 20) } else { PageAccess::fine(7) };
            a.advised(if f.0.is_multiple_of(17) { Advice::High } else { Advice::None })
        };
        for from in registry() {
            for to in registry() {
                let mut cache = Reclaimer::new(from.name, config.clone()).unwrap();
                let mut rng = Rng::new(9);
                (0..150).for_each(|f| cache.insert(FrameId(f), access(FrameId(f))));
                for _ in 0..500 {
                    let f = FrameId(rng.below(150) as u32);
                    cache.touch(f, access(f));
                }
                cache.reclaim(20, &mut |f| f.0.is_multiple_of(2), &mut Vec::new());
                cache.switch(to.name, &mut |_| 7).unwrap();
                assert_eq!((cache.name(), cache.resident()), (to.name, 130), "from {}", from.name);
                let mut left = Vec::new();
                cache.reclaim(200, &mut |_| true, &mut left);
                let advised = left.iter().rev().take_while(|f| f.0.is_multiple_of(17)).count();
                assert_eq!(advised, 9, "what was advised leaves last: {} to {}", from.name, to.name);
                left.sort();
                left.dedup();
                assert_eq!(left.len(), 130);
            }
        }
    }

    #[test]
    fn what_was_about_to_leave_is_still_about_to_leave() {
        let mut cache = Reclaimer::new("arc", CacheConfig::new(8)).unwrap();
        (0..8).for_each(|f| cache.insert(FrameId(f), PageAccess::fine(u64::from(f))));
        (0..3).for_each(|f| cache.touch(FrameId(f), PageAccess::fine(u64::from(f))));
        assert!(cache.switch("nothing", &mut |f| u64::from(f.0)).unwrap_err().contains("'nothing'"));
        cache.switch("lru", &mut |f| u64::from(f.0)).unwrap();
        let mut victims = Vec::new();
        cache.reclaim(8, &mut |_| true, &mut victims);
        assert_eq!(victims, [3, 4, 5, 6, 7, 0, 1, 2].map(FrameId).to_vec());
    }

    #[test]
    fn a_key_takes_effect_on_a_cache_in_use_and_loses_no_frame() {
        for entry in registry() {
            let mut cache = Reclaimer::new(entry.name, CacheConfig::new(64)).unwrap();
            (0..50).for_each(|f| cache.insert(FrameId(f), PageAccess::fine(u64::from(f))));
            for key in CacheConfig::KEYS {
                let now = cache.config().get(key).unwrap();
                let why = cache.set(key, "99999999999999999999", &mut |f| u64::from(f.0)).unwrap_err();
                assert!(why.contains(key), "{why}");
                assert_eq!(cache.config().get(key), Some(now));
            }
            cache.set("bypass_bytes", "1M", &mut |f| u64::from(f.0)).unwrap();
            assert_eq!((cache.name(), cache.resident()), (entry.name, 50));
            let admits = cache.admits(&PageAccess::coarse(99, 2 << 20));
            assert_eq!(admits, entry.name != "bypass", "{}", entry.name);
            assert_eq!(cache.config().get("bypass_bytes").as_deref(), Some("1048576"));
        }
    }

    #[test]
    fn coarse_pages_and_pages_ahead_of_their_reader_stay_so_over_a_switch() {
        for name in ["lru", "fgf_lru", "fgf_lru+ring", "adaptive", "bypass"] {
            let mut cache = Reclaimer::new(name, CacheConfig::new(8)).unwrap();
            cache.insert(FrameId(0), PageAccess::coarse(0, 1 << 20).ahead());
            cache.insert(FrameId(1), PageAccess::fine(1));
            cache.switch("fgf_lru", &mut |f| u64::from(f.0)).unwrap();
            let knows = [0, 1].map(|f| cache.policy.remembered(FrameId(f))).map(|a| (a.grain, a.readahead));
            assert_eq!(knows, [(Grain::Coarse, true), (Grain::Fine, false)], "{name}");
        }
    }

    /// A cache of 500 pages under a random workload.
    fn work(cache: &mut Reclaimer, block_in: &mut [u64; 500], seed: u64) {
        let mut rng = Rng::new(seed);
        for _ in 0..4_000 {
            let block = crate::block_id(1, rng.below(900));
            let mut access =
                if block.is_multiple_of(3) { PageAccess::coarse(block, 9 << 20) } else { PageAccess::fine(block) };
            access.readahead = rng.chance(0.1);
            if let Some(f) = block_in.iter().position(|&b| b == block) {
                cache.touch(FrameId(f as u32), access);
                continue;
            }
            let mut free: Vec<FrameId> = Vec::new();
            if let Some(f) = block_in.iter().position(|&b| b == 0) {
                free.push(FrameId(f as u32));
            } else {
                cache.reclaim(1 + rng.below(16) as u32, &mut |f| f.0 % 11 != 0, &mut free);
                free.iter().for_each(|f| block_in[f.0 as usize] = 0);
            }
            if cache.admits(&access) {
                let f = free.pop().expect("reclaim freed pages");
                cache.insert(f, access);
                cache.on_fetched(&access, 1, Duration::from_micros(rng.below(9_000)));
                block_in[f.0 as usize] = block;
            }
        }
    }

    #[test]
    fn a_recording_of_a_cache_in_use_replays_through_switches_and_says_what_differs() {
        for entry in registry() {
            let mut cache = Reclaimer::new(entry.name, CacheConfig::new(500)).unwrap();
            let mut block_in = [0; 500];
            work(&mut cache, &mut block_in, 1);
            for check in [true, false] {
                let mut block_of = |f: FrameId| block_in[f.0 as usize];
                let mut recorded = Recorded { reclaimer: &mut cache, block_of: &mut block_of };
                recorded.set_record_param("16M").unwrap();
                work(&mut cache, &mut block_in, 2);
                cache.switch("sieve", &mut |f| block_in[f.0 as usize]).unwrap();
                work(&mut cache, &mut block_in, 3);
                cache.switch(entry.name, &mut |f| block_in[f.0 as usize]).unwrap();
                let share = if check { "25" } else { "20" };
                for (key, value) in
                    [("bypass_bytes", "6M"), ("coarse_ring_pages", share), ("small_queue_percent", share)]
                {
                    cache.set(key, value, &mut |f| block_in[f.0 as usize]).unwrap();
                    work(&mut cache, &mut block_in, 4);
                }
                if !check {
                    // A call that the log does not see.
                    cache.policy.reclaim(1, &mut |_| true, &mut Vec::new());
                    cache.reclaim(100, &mut |_| true, &mut Vec::new());
                    block_in = [0; 500];
                }
                let mut recorded = Recorded { reclaimer: &mut cache, block_of: &mut |_| 0 };
                recorded.set_record_param("check").unwrap();
                let said = recorded.record_param();
                assert_eq!(said.ends_with("calls replayed, the same answers"), check, "{}: {said}", entry.name);
                assert!(check || said.contains("the replay differs: line "), "{}: {said}", entry.name);
            }
        }
    }
}
