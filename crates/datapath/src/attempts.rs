//! Which answers of the OST are asked for again, and how often.

use types::Duration;

/// Times a transfer is tried again whose bytes arrived damaged: a network that damages one in twenty loses one write in 10^11.
const DAMAGED_MAX: u32 = 8;
/// Of these so many follow at once, as a network damages single messages. What the OST reads to complete a page may come damaged from
/// its disk, which goes on for longer.
const AT_ONCE: u32 = 2;
/// Pause before the first try after those; it doubles with each.
const PAUSE: Duration = Duration::from_millis(20);

/// How an RPC was answered, as far as trying again goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Carried out.
    Done,
    /// Nothing was carried out, there was no room for it.
    ComeAgain,
    /// The checksum of the bulk was wrong.
    Damaged,
    /// The OST has no space for it.
    NoSpace,
    /// The OST has no such object.
    NoObject,
    /// Refused or lost for good, for another reason.
    Failed,
}

/// What to do with the RPC now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// It is over.
    Over,
    /// The same request again, where nobody waits for a verdict after this pause.
    Again(Duration),
}

/// The tries of one RPC.
#[derive(Clone, Copy, Default, Debug)]
pub struct Attempts {
    damaged: u32,
}

impl Attempts {
    /// An answer came. "Come again" says nothing about the request and is followed as often as it comes; a damaged transfer
    /// is repeated eight times.
    #[must_use]
    pub fn on_answer(&mut self, answer: Answer) -> Next {
        match answer {
            Answer::ComeAgain if types::planted!("come-again-fails") => Next::Over,
            Answer::ComeAgain => Next::Again(Duration::ZERO),
            Answer::Damaged if self.damaged < DAMAGED_MAX => {
                self.damaged += 1;
                let doubled = self.damaged.checked_sub(AT_ONCE + 1).map_or(Duration::ZERO, |n| PAUSE * (1 << n));
                Next::Again(doubled)
            }
            Answer::Damaged | Answer::Done | Answer::NoSpace | Answer::NoObject | Answer::Failed => Next::Over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_transfer_is_repeated_eight_times_and_a_full_target_asked_without_end() {
        let mut tries = Attempts::default();
        assert!((0..100).all(|_| tries.on_answer(Answer::ComeAgain) == Next::Again(Duration::ZERO)));
        for ms in [0, 0, 20, 40, 80, 160, 320, 640] {
            assert_eq!(tries.on_answer(Answer::Damaged), Next::Again(Duration::from_millis(ms)));
        }
        assert_eq!(tries.on_answer(Answer::Damaged), Next::Over);
        let over = [Answer::Done, Answer::NoSpace, Answer::NoObject, Answer::Failed];
        assert!(over.into_iter().all(|answer| tries.on_answer(answer) == Next::Over));
    }
}
