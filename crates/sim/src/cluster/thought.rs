//! When programs do nothing: all of them at the same times, and each now and then by itself. What only time brings (locks and
//! connections that grow old, grants that are given back, clients that count as quiet) meets work then.
use types::{Duration, Instant, Rng};

/// Pauses of all programs in one run.
const COMMON: usize = 64;
/// Probability that a program thinks before an operation.
const SHARE: f64 = 0.01;

/// See the module's head.
pub struct Thought {
    /// From when to when nobody begins anything, in their order.
    common: Vec<(Instant, Instant)>,
}

/// From a second to a minute, short ones as often as long ones.
fn some_time(rng: &mut Rng) -> Duration {
    Duration::from_nanos((1e9 * 60.0_f64.powf(rng.unit())) as u64)
}

impl Thought {
    /// Draws when everybody thinks.
    #[must_use]
    pub fn drawn(mut rng: Rng) -> Thought {
        let mut at = Instant::ZERO;
        let common = (0..COMMON).map(|_| {
            let from = at + Duration::from_millis(2000 + rng.below(20_000));
            at = from + some_time(&mut rng);
            (from, at)
        });
        Thought { common: common.collect() }
    }
    /// How long a program does nothing that would begin an operation now.
    pub fn before_work(&self, now: Instant, rng: &mut Rng) -> Duration {
        let common = self.common.iter().find(|(from, to)| (*from..*to).contains(&now));
        match common {
            // Not all at the very same moment.
            Some((_, to)) => to.since(now) + Duration::from_millis(rng.below(500)),
            None if rng.chance(SHARE) => some_time(rng),
            None => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_think_for_seconds_at_the_same_time_and_work_in_between() {
        let thought = Thought::drawn(Rng::new(3));
        let mut rng = Rng::new(4);
        let (mut idle, mut busy) = (0, 0);
        for second in 0..600 {
            let now = Instant::ZERO + Duration::from_secs(second);
            let (one, other) = (thought.before_work(now, &mut rng), thought.before_work(now, &mut rng));
            let is_common = thought.common.iter().any(|(from, to)| (*from..*to).contains(&now));
            if is_common {
                assert!(one > Duration::ZERO && other > Duration::ZERO);
                idle += 1;
            } else {
                busy += u32::from(one == Duration::ZERO && other == Duration::ZERO);
            }
        }
        assert!(idle > 100 && busy > 100, "{idle} seconds of thought, {busy} of work");
    }
}
