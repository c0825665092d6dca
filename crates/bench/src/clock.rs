//! How far an agent's clock is from the control point's.
//!
//! Source: Cristian, "Probabilistic clock synchronization", 1989: of many questions the one that came back soonest says most,
//! and half its round trip bounds the error. Decides which; asking is the control point's.

/// A question about the time.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When it was asked, ns of the asker's clock.
    pub asked_ns: u64,
    /// What the other's clock showed, ns.
    pub theirs_ns: u64,
    /// When the answer was there, ns of the asker's clock.
    pub answered_ns: u64,
}

/// A clock seen from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Theirs minus ours, ns.
    pub ahead_ns: i128,
    /// Round trip of the best question, ns; half of it bounds the error.
    pub round_trip_ns: u64,
}

impl Clock {
    /// The best of some samples; `None` without any.
    #[must_use]
    pub fn of(samples: &[Sample]) -> Option<Clock> {
        let trip = |s: &Sample| s.answered_ns.saturating_sub(s.asked_ns);
        let best = samples.iter().min_by_key(|s| trip(s))?;
        let middle = i128::from(best.asked_ns) + i128::from(trip(best) / 2);
        Some(Clock { ahead_ns: i128::from(best.theirs_ns) - middle, round_trip_ns: trip(best) })
    }
    /// What their clock shows at a moment of ours.
    #[must_use]
    pub fn theirs(&self, ours_ns: u64) -> u64 {
        clamp(i128::from(ours_ns) + self.ahead_ns)
    }
    /// The moment of ours at which their clock shows this.
    #[must_use]
    pub fn ours(&self, theirs_ns: u64) -> u64 {
        clamp(i128::from(theirs_ns) - self.ahead_ns)
    }
    /// Bound of the error, ns.
    #[must_use]
    pub fn error_ns(&self) -> u64 {
        self.round_trip_ns.div_ceil(2)
    }
}

fn clamp(ns: i128) -> u64 {
    u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_question_decides() {
        let samples = [
            Sample { asked_ns: 0, theirs_ns: 9_000, answered_ns: 2_000 },
            Sample { asked_ns: 5_000, theirs_ns: 6_050, answered_ns: 5_100 },
        ];
        let clock = Clock::of(&samples).unwrap();
        assert_eq!(clock, Clock { ahead_ns: 1_000, round_trip_ns: 100 });
        assert_eq!((clock.theirs(7_000), clock.ours(8_000), clock.error_ns()), (8_000, 7_000, 50));
        assert_eq!(Clock::of(&[]), None);
    }

    #[test]
    fn the_error_is_at_most_half_the_round_trip_however_the_ways_differ() {
        let ahead = 123_456_789;
        for (there, back) in [(1, 99), (50, 50), (99, 1), (0, 100)] {
            let asked_ns = 1_000;
            let s = Sample { asked_ns, theirs_ns: asked_ns + there + ahead, answered_ns: asked_ns + there + back };
            let clock = Clock::of(&[s]).unwrap();
            assert!(clock.ahead_ns.abs_diff(i128::from(ahead)) <= u128::from(clock.error_ns()));
        }
    }

    #[test]
    fn moments_before_a_clock_began_are_its_beginning() {
        let clock = Clock { ahead_ns: -100, round_trip_ns: 0 };
        assert_eq!((clock.theirs(50), clock.ours(u64::MAX)), (0, u64::MAX));
    }
}
