//! What is worth a copy in the fast tier although nobody advised it: inferred from reads that the tier could not answer.
//!
//! It decides for bytes without advice alone; advised ones are copied by their class. A copy costs a write of the fast
//! device, and what it displaces: so the first touch of a block never earns one, and large reads, which a slow device
//! serves well, are neither copied nor remembered. A scan, however long, therefore displaces nothing. Memory is fixed.
//!
//! Source: paper 004 leaves promotion to advice; second touches within a window are how 2Q and TinyLFU tell use from passing by.
use alloc::boxed::Box;
use alloc::vec::Vec;
use types::Instant;
use types::registry::{Entry, Registry};

use crate::config::Config;

/// Blocks of a unit at most.
pub const UNIT_BLOCKS_MAX: u32 = 64;

/// A read that the tier could not answer, or not all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missed {
    /// Which unit of the tier (a piece of an object), as a well mixed number.
    pub unit: u64,
    /// Its blocks that were read and are not there, a bit each.
    pub blocks: u64,
    /// Bytes of the whole read.
    pub read_bytes: u64,
}

/// Decides what is copied. Same calls, same answers.
pub trait AdmissionPolicy: Send {
    /// Those of the blocks that are worth a copy: a part of `missed.blocks`. Time never goes back.
    fn worth(&mut self, now: Instant, missed: Missed) -> u64;
}

/// What else is known of an admission policy.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionFacts {
    /// A scan that touches every block once gets nothing copied.
    pub resists_scans: bool,
}

/// A policy of the registry, or an outsider's; built once per tier.
pub type AdmissionEntry = Entry<dyn AdmissionPolicy, Config, AdmissionFacts>;

/// Every admission policy of the house, the default first.
pub const ADMISSIONS: Registry<dyn AdmissionPolicy, Config, AdmissionFacts> =
    Registry::new("admission policy", ENTRIES);

static ENTRIES: &[AdmissionEntry] = &[
    Entry {
        name: ADMISSION_DEFAULT,
        summary: "Blocks that are read a second time within `advice.fast_window_s`, by reads below `advice.fast_scan_bytes`. The default.",
        make: |config| Box::new(SecondTouch::new(config)),
        facts: AdmissionFacts { resists_scans: true },
    },
    Entry {
        name: "advised",
        summary: "Nothing: advised bytes alone are copied.",
        make: |_| Box::new(Nothing),
        facts: AdmissionFacts { resists_scans: true },
    },
    Entry {
        name: "always",
        summary: "Everything that is read, also by scans; for comparisons.",
        make: |_| Box::new(Everything),
        facts: AdmissionFacts { resists_scans: false },
    },
];

/// Name of the policy used when none is configured.
pub const ADMISSION_DEFAULT: &str = "second_touch";

struct Nothing;
impl AdmissionPolicy for Nothing {
    fn worth(&mut self, _: Instant, _: Missed) -> u64 {
        0
    }
}

struct Everything;
impl AdmissionPolicy for Everything {
    fn worth(&mut self, _: Instant, missed: Missed) -> u64 {
        missed.blocks
    }
}

/// Units of one bucket; the one touched longest ago makes way.
const WAYS: usize = 4;

/// A unit that was touched.
#[derive(Clone, Copy, Default)]
struct Touched {
    unit: u64,
    /// Its blocks that were touched, a bit each; 0: nobody is remembered here.
    seen: u64,
    at: Instant,
}

/// Remembers touched blocks of units in buckets; 24 bytes each.
struct SecondTouch {
    buckets: usize,
    /// Of all buckets; empty until a unit is touched: many tiers are never read, and the table takes megabytes.
    table: Vec<Touched>,
    window_ns: u64,
    scan_bytes: u64,
}

impl SecondTouch {
    fn new(config: &Config) -> SecondTouch {
        let buckets = (config.fast_remembered_max as usize / WAYS).max(1).next_power_of_two();
        SecondTouch {
            buckets,
            table: Vec::new(),
            window_ns: config.fast_window_s * 1_000_000_000,
            scan_bytes: config.fast_scan_bytes,
        }
    }
}

impl AdmissionPolicy for SecondTouch {
    fn worth(&mut self, now: Instant, missed: Missed) -> u64 {
        if missed.read_bytes >= self.scan_bytes || missed.blocks == 0 {
            return 0;
        }
        self.table.resize(self.buckets * WAYS, Touched::default());
        let bucket = missed.unit as usize % self.buckets * WAYS;
        let ways = &mut self.table[bucket..bucket + WAYS];
        let is_late = |t: &Touched| now.since(t.at).as_nanos() as u64 > self.window_ns;
        let known = ways.iter().position(|t| t.unit == missed.unit && t.seen != 0);
        if let Some(touched) = known.map(|i| &mut ways[i]) {
            let seen = if is_late(touched) { 0 } else { touched.seen };
            *touched = Touched { seen: seen | missed.blocks, at: now, ..*touched };
            return seen & missed.blocks;
        }
        if let Some(oldest) = ways.iter_mut().min_by_key(|t| (t.seen != 0, t.at)) {
            *oldest = Touched { unit: missed.unit, seen: missed.blocks, at: now };
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::check_admission;
    use alloc::string::ToString;
    use types::{KIB, MIB};

    const fn at(s: u64) -> Instant {
        Instant(s * 1_000_000_000)
    }
    fn second_touch() -> Box<dyn AdmissionPolicy> {
        (ADMISSIONS.find("second_touch").unwrap().make)(&Config::default())
    }

    #[test]
    fn every_policy_keeps_the_rules() {
        for entry in ADMISSIONS {
            (0..4).for_each(|seed| check_admission(entry, seed));
        }
        let why = ADMISSIONS.find("sometimes").unwrap_err().to_string();
        assert!(why.contains("'sometimes'") && why.contains("second_touch"), "{why}");
    }

    #[test]
    fn the_second_touch_within_the_window_earns_a_copy_of_the_blocks_touched_twice() {
        let mut p = second_touch();
        let missed = |blocks| Missed { unit: 77, blocks, read_bytes: 4 * KIB };
        assert_eq!(p.worth(at(0), missed(0b0011)), 0);
        assert_eq!(p.worth(at(5), missed(0b0110)), 0b0010);
        assert_eq!(p.worth(at(604), missed(0b0101)), 0b0101);
        // A window later nothing is remembered.
        assert_eq!(p.worth(at(1300), missed(0b1111)), 0);
        assert_eq!(p.worth(at(1301), missed(0b1000)), 0b1000);
    }

    #[test]
    fn large_reads_earn_nothing_however_often() {
        let mut p = second_touch();
        for s in 0..5 {
            assert_eq!(p.worth(at(s), Missed { unit: 1, blocks: u64::MAX, read_bytes: MIB }), 0);
        }
    }
}
