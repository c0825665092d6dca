//! Whether a queue goes over to another policy: what the candidates made of samples, and how often one was the better one.
//!
//! A candidate has to win several windows in a row by a margin. What was chosen and then measured as slower than what was before
//! is left again, and has to win twice as often from then on. Where the model of the disk is far from what was measured nothing is
//! decided.
use crate::shadow::Outcome;
use alloc::{format, string::String, vec, vec::Vec};

/// How far the model may be off what was measured: a factor of this, either way.
const MODEL_OFF_MAX: f64 = 1.6;
/// Windows in a row that one has to win at most.
const PATIENCE_MAX: u32 = 64;

/// What was measured of the policy in use in a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Which one that was.
    pub(crate) running: usize,
    /// Bytes per second.
    pub(crate) bytes_per_s: f64,
    /// There was nearly always something queued.
    pub(crate) saturated: bool,
}

/// What follows from a window.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Verdict {
    /// The candidate to use from now on.
    pub(crate) chosen: usize,
    /// Why.
    pub(crate) why: String,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    chosen: usize,
    margin: f64,
    patience: Vec<u32>,
    /// Windows in a row that each candidate has won.
    wins: Vec<u32>,
    /// What was in use before the last change, and how fast that was, until the change has been measured.
    before: Option<(usize, f64)>,
}

impl Judge {
    /// Of `candidates`, of which `chosen` is in use: one has to be better by the share `margin` in `patience` windows.
    pub(crate) fn new(candidates: usize, chosen: usize, margin: f64, patience: u32) -> Judge {
        Judge { chosen, margin, patience: vec![patience; candidates], wins: vec![0; candidates], before: None }
    }

    /// The candidate in use.
    pub(crate) fn chosen(&self) -> usize {
        self.chosen
    }
    /// Whether one is on its way to be chosen, or was just.
    pub(crate) fn is_close(&self) -> bool {
        self.before.is_some() || self.wins.iter().any(|n| *n > 0)
    }

    /// A window about which nothing can be said.
    pub(crate) fn on_nothing(&mut self) {
        self.wins.fill(0);
    }

    /// What the candidates made of a window.
    pub(crate) fn on_window(&mut self, names: &[String], outcomes: &[Outcome], measured: Measured) -> Verdict {
        if let Some(verdict) = self.look_back(names, measured) {
            return verdict;
        }
        let off = outcomes[measured.running].bytes_per_s / measured.bytes_per_s.max(1.0);
        if !(1.0 / MODEL_OFF_MAX..=MODEL_OFF_MAX).contains(&off) {
            self.on_nothing();
            return self.stay(format!("the model gives {off:.2} times what was measured: nothing is decided"));
        }
        for i in 0..outcomes.len() {
            let wins = i != self.chosen && self.beats(&outcomes[i], &outcomes[self.chosen]);
            self.wins[i] = if wins { self.wins[i] + 1 } else { 0 };
        }
        let ready = (0..outcomes.len()).filter(|i| self.wins[*i] >= self.patience[*i].max(1));
        let best = ready.max_by(|a, b| better(&outcomes[*a], &outcomes[*b]));
        let Some(best) = best else {
            let leader = (0..outcomes.len()).filter(|i| self.wins[*i] > 0).max_by_key(|i| self.wins[*i]);
            return self.stay(match leader {
                Some(i) => format!("{} won {} windows in a row, of {}", names[i], self.wins[i], self.patience[i]),
                None => format!("no other is better by {:.0} %", self.margin * 100.0),
            });
        };
        let (old, gain) = (self.chosen, outcomes[best].bytes_per_s / outcomes[self.chosen].bytes_per_s - 1.0);
        let why = format!(
            "{} won {} windows in a row over {}: {:+.1} % bytes/s, {} late for {}",
            names[best],
            self.wins[best],
            names[old],
            gain * 100.0,
            outcomes[best].late,
            outcomes[old].late
        );
        self.before = (measured.saturated && measured.running == old).then_some((old, measured.bytes_per_s));
        self.change_to(best);
        Verdict { chosen: best, why }
    }

    /// Whether the last change turns out to have been wrong.
    fn look_back(&mut self, names: &[String], measured: Measured) -> Option<Verdict> {
        let (before, rate) = self.before.take_if(|_| measured.running == self.chosen)?;
        if !measured.saturated || measured.bytes_per_s >= rate * (1.0 - 2.0 * self.margin) {
            return None;
        }
        let wrong = self.chosen;
        self.patience[wrong] = (self.patience[wrong] * 2).min(PATIENCE_MAX);
        self.change_to(before);
        let (now, rate) = (measured.bytes_per_s / 1e6, rate / 1e6);
        let why = format!(
            "{} came to {now:.1} MB/s where {} had come to {rate:.1}: back, and it has to win {} windows from now on",
            names[wrong], names[before], self.patience[wrong]
        );
        Some(Verdict { chosen: before, why })
    }

    fn change_to(&mut self, chosen: usize) {
        self.chosen = chosen;
        self.wins.fill(0);
    }
    fn stay(&self, why: String) -> Verdict {
        Verdict { chosen: self.chosen, why }
    }

    fn beats(&self, a: &Outcome, b: &Outcome) -> bool {
        let (gain, m) = (a.bytes_per_s / b.bytes_per_s - 1.0, self.margin);
        let sooner = a.response_ns < b.response_ns * (1.0 - 4.0 * m);
        match a.late.cmp(&b.late) {
            core::cmp::Ordering::Greater => false,
            core::cmp::Ordering::Less => gain > -m,
            core::cmp::Ordering::Equal => gain >= m || gain > -m / 2.0 && sooner,
        }
    }
}

/// Fewer late, then faster.
fn better(a: &Outcome, b: &Outcome) -> core::cmp::Ordering {
    b.late.cmp(&a.late).then(a.bytes_per_s.total_cmp(&b.bytes_per_s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn names() -> Vec<String> {
        ["fifo", "obrr"].map(|n| n.to_string()).to_vec()
    }
    fn outcomes(rates: [f64; 2]) -> [Outcome; 2] {
        rates.map(|rate| Outcome { bytes_per_s: rate * 1e6, response_ns: 1e9 / rate, late: 0 })
    }
    fn measured(running: usize, rate: f64) -> Measured {
        Measured { running, bytes_per_s: rate * 1e6, saturated: true }
    }

    #[test]
    fn one_has_to_win_by_the_margin_and_in_a_row() {
        let mut judge = Judge::new(2, 0, 0.05, 3);
        let mut chosen = Vec::new();
        for rate in [130.0, 130.0, 104.0, 130.0, 130.0, 130.0] {
            chosen.push(judge.on_window(&names(), &outcomes([100.0, rate]), measured(0, 100.0)).chosen);
        }
        assert_eq!(chosen, [0, 0, 0, 0, 0, 1]);
        assert!(judge.is_close(), "what was chosen is still to be measured");
    }

    #[test]
    fn a_change_that_makes_it_slower_is_taken_back_and_harder_from_then_on() {
        let mut judge = Judge::new(2, 0, 0.05, 1);
        assert_eq!(judge.on_window(&names(), &outcomes([100.0, 140.0]), measured(0, 100.0)).chosen, 1);
        let back = judge.on_window(&names(), &outcomes([100.0, 140.0]), measured(1, 85.0));
        assert_eq!(back.chosen, 0);
        assert!(back.why.contains("85.0 MB/s where fifo had come to 100.0"), "{}", back.why);
        let next = |judge: &mut Judge| judge.on_window(&names(), &outcomes([100.0, 140.0]), measured(0, 100.0)).chosen;
        assert_eq!([next(&mut judge), next(&mut judge)], [0, 1]);
        // As fast as before is no reason.
        assert_eq!(judge.on_window(&names(), &outcomes([100.0, 140.0]), measured(1, 97.0)).chosen, 1);
        assert!(!judge.is_close());
    }

    #[test]
    fn a_model_that_is_far_off_decides_nothing() {
        let mut judge = Judge::new(2, 0, 0.05, 1);
        let verdict = judge.on_window(&names(), &outcomes([100.0, 140.0]), measured(0, 50.0));
        assert_eq!(verdict.chosen, 0);
        assert!(verdict.why.starts_with("the model gives 2.00 times"), "{}", verdict.why);
    }

    #[test]
    fn who_is_late_less_often_wins_unless_it_is_slower() {
        let mut of = outcomes([100.0, 98.0]);
        of[0].late = 3;
        let choose = |of: &[Outcome; 2]| Judge::new(2, 0, 0.05, 1).on_window(&names(), of, measured(0, 100.0)).chosen;
        assert_eq!(choose(&of), 1);
        of[1].bytes_per_s = 90e6;
        assert_eq!(choose(&of), 0);
        let mut late = outcomes([100.0, 200.0]);
        late[1].late = 1;
        assert_eq!(choose(&late), 0);
    }
}
