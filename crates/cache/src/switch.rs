//! Changing the policy while the cache is in use.
//!
//! The new policy gets the frames in the order in which the old one would have given them up, so what was about to
//! leave is still about to leave. What the old policy had learned (ghosts, use counts, duels) is gone. Takes one pass
//! over the resident frames, some tens of nanoseconds each; the mechanism holds its lock meanwhile.
use crate::{FrameId, PageAccess, ReclaimPolicy};
use alloc::vec::Vec;

/// Moves all frames from `from` to `to`, which must be empty and built for the same capacity. `access_of` says what a
/// frame holds; advice that it does not repeat is lost, and [`PageAccess::readahead`] should be true for pages that
/// still wait for their first reader.
///
/// # Panics
/// When `to` is not empty, or `from` does not give up all its frames (a bug in it).
pub fn switch_policy(
    from: &mut dyn ReclaimPolicy,
    to: &mut dyn ReclaimPolicy,
    access_of: &mut dyn FnMut(FrameId) -> PageAccess,
) {
    assert!(to.resident() == 0, "the new policy starts empty");
    let resident = from.resident();
    let mut frames = Vec::with_capacity(resident as usize);
    from.reclaim(resident, &mut |_| true, &mut frames);
    assert!(from.resident() == 0 && frames.len() == resident as usize, "a policy gives up every frame when all may go");
    for frame in frames {
        to.insert(frame, access_of(frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Advice, CacheConfig, build, registry};
    use types::Rng;

    #[test]
    fn a_switch_between_any_two_policies_loses_no_frame() {
        let config = CacheConfig::new(200);
        let access = |f: FrameId| {
            let a = if f.0.is_multiple_of(3) { PageAccess::coarse(7, 1 << 20) } else { PageAccess::fine(7) };
            a.advised(if f.0.is_multiple_of(17) { Advice::High } else { Advice::None })
        };
        for from in registry() {
            for to in registry() {
                let (mut old, mut new) = ((from.build)(&config), (to.build)(&config));
                let mut rng = Rng::new(9);
                (0..150).for_each(|f| old.insert(FrameId(f), access(FrameId(f))));
                for _ in 0..500 {
                    let f = FrameId(rng.below(150) as u32);
                    old.touch(f, access(f));
                }
                old.reclaim(20, &mut |f| f.0.is_multiple_of(2), &mut Vec::new());
                switch_policy(&mut *old, &mut *new, &mut |f| access(f));
                assert_eq!((old.resident(), new.resident()), (0, 130), "{} to {}", from.name, to.name);
                let mut left = Vec::new();
                new.reclaim(200, &mut |_| true, &mut left);
                left.sort();
                left.dedup();
                assert_eq!(left.len(), 130);
            }
        }
    }

    #[test]
    fn what_was_about_to_leave_is_still_about_to_leave() {
        let config = CacheConfig::new(8);
        let mut old = build("arc", &config).expect("registered");
        let mut new = build("lru", &config).expect("registered");
        (0..8).for_each(|f| old.insert(FrameId(f), PageAccess::fine(u64::from(f))));
        (0..3).for_each(|f| old.touch(FrameId(f), PageAccess::fine(u64::from(f))));
        switch_policy(&mut *old, &mut *new, &mut |f| PageAccess::fine(u64::from(f.0)));
        let mut victims = Vec::new();
        new.reclaim(8, &mut |_| true, &mut victims);
        assert_eq!(victims, [3, 4, 5, 6, 7, 0, 1, 2].map(FrameId).to_vec());
    }
}
