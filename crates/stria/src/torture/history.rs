//! Whether what programs saw of blocks can have been one order of reads and writes: linearizability of registers.
//!
//! Every write stores a number that no other write stores, so a read names the write it saw. Then the question needs no
//! search: the operations on one value span a zone, and the history of a block is linearizable exactly when no two
//! forward zones overlap and no backward zone lies within a forward one.
//! Source: P. Gibbons, E. Korach, "Testing Shared Memories", SIAM J. Comput. 26 (1997), section 4 (reads mapped to writes).
use std::collections::BTreeMap;

/// The value of a block that nobody has written yet.
pub const INITIAL: u64 = 0;

/// One operation on a block; times are nanoseconds of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which block.
    pub block: u64,
    /// What was written or read.
    pub value: u64,
    /// A write (else a read).
    pub is_write: bool,
    /// When it was called.
    pub called_ns: u64,
    /// When it returned; [`u64::MAX`] for a write that never answered, or failed and may have happened.
    pub returned_ns: u64,
}

/// All operations on one value of one block.
#[derive(Clone, Copy)]
struct Zone {
    value: u64,
    first_return_ns: u64,
    last_call_ns: u64,
    /// When its write was called; `None` until the write is seen.
    written_ns: Option<u64>,
}

impl Zone {
    fn is_forward(&self) -> bool {
        self.first_return_ns < self.last_call_ns
    }
    fn low_ns(&self) -> u64 {
        self.first_return_ns.min(self.last_call_ns)
    }
    fn high_ns(&self) -> u64 {
        self.first_return_ns.max(self.last_call_ns)
    }
}

/// What contradicts every order, a sentence per block; empty when the history is linearizable.
#[must_use]
pub fn contradictions(events: &[Event]) -> Vec<String> {
    let mut blocks: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    for e in events {
        blocks.entry(e.block).or_default().push(*e);
    }
    blocks
        .into_iter()
        .filter_map(|(block, events)| judge(&events).err().map(|e| format!("block {block}: {e}")))
        .collect()
}

fn judge(events: &[Event]) -> Result<(), String> {
    let zones = zones(events)?;
    let mut forward: Vec<&Zone> = zones.iter().filter(|z| z.is_forward()).collect();
    forward.sort_by_key(|z| z.low_ns());
    for pair in forward.windows(2) {
        if pair[1].low_ns() < pair[0].high_ns() {
            return Err(format!(
                "value {:x} was seen until {} ns although {:x} was seen since {} ns",
                pair[0].value, pair[0].last_call_ns, pair[1].value, pair[1].first_return_ns
            ));
        }
    }
    for back in zones.iter().filter(|z| !z.is_forward()) {
        // Forward zones do not overlap: the last that begins before this one is the only one that can hold it.
        let at = forward.partition_point(|f| f.low_ns() < back.low_ns());
        if let Some(f) = at.checked_sub(1).and_then(|i| forward.get(i))
            && back.high_ns() < f.high_ns()
        {
            return Err(format!(
                "value {:x} was there from {} to {} ns, within the time of {:x} ({} to {} ns)",
                back.value,
                back.low_ns(),
                back.high_ns(),
                f.value,
                f.low_ns(),
                f.high_ns()
            ));
        }
    }
    Ok(())
}

fn zones(events: &[Event]) -> Result<Vec<Zone>, String> {
    let mut zones: BTreeMap<u64, Zone> = BTreeMap::new();
    let initial = Zone { value: INITIAL, first_return_ns: 0, last_call_ns: 0, written_ns: Some(0) };
    zones.insert(INITIAL, initial);
    for e in events {
        let fresh = Zone { value: e.value, first_return_ns: u64::MAX, last_call_ns: 0, written_ns: None };
        let zone = zones.entry(e.value).or_insert(fresh);
        zone.first_return_ns = zone.first_return_ns.min(e.returned_ns);
        zone.last_call_ns = zone.last_call_ns.max(e.called_ns);
        if e.is_write && zone.written_ns.replace(e.called_ns).is_some() {
            return Err(format!("value {:x} is written twice: the history cannot be judged", e.value));
        }
    }
    for e in events.iter().filter(|e| !e.is_write) {
        match zones[&e.value].written_ns {
            None => return Err(format!("value {:x} was read at {} ns, and nobody wrote that", e.value, e.called_ns)),
            Some(written) if e.returned_ns < written => {
                return Err(format!("value {:x} was read at {} ns, before its write", e.value, e.called_ns));
            }
            Some(_) => {}
        }
    }
    // A write that may not have happened and that nobody saw contradicts nothing.
    Ok(zones.into_values().filter(|z| z.first_return_ns != u64::MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(is_write: bool, value: u64, called_ns: u64, returned_ns: u64) -> Event {
        Event { block: 7, value, is_write, called_ns, returned_ns }
    }
    fn write(value: u64, from: u64, to: u64) -> Event {
        event(true, value, from, to)
    }
    fn read(value: u64, from: u64, to: u64) -> Event {
        event(false, value, from, to)
    }

    #[test]
    fn orders_that_exist_are_accepted() {
        assert!(contradictions(&[]).is_empty());
        assert!(
            contradictions(&[read(0, 1, 2), write(1, 3, 4), read(1, 5, 6), write(2, 7, 8), read(2, 9, 10)]).is_empty()
        );
        // Reads beside a write may see either, as long as they never go back.
        assert!(contradictions(&[write(1, 10, 50), read(0, 11, 12), read(1, 13, 14), read(1, 20, 21)]).is_empty());
        assert!(contradictions(&[write(1, 10, 50), write(2, 11, 49), read(1, 60, 61), read(1, 62, 63)]).is_empty());
        // A write without an answer may have happened at any later time, or never.
        assert!(contradictions(&[write(1, 10, u64::MAX), read(0, 100, 110), read(1, 200, 210)]).is_empty());
        assert!(contradictions(&[write(1, 10, u64::MAX), read(0, 100, 110)]).is_empty());
    }

    #[test]
    fn each_kind_of_stale_or_invented_value_is_found() {
        let found = |events: &[Event]| contradictions(events).len();
        assert_eq!(found(&[write(1, 1, 2), read(0, 3, 4)]), 1, "a write that returned is not seen");
        assert_eq!(found(&[write(1, 10, 50), read(1, 11, 12), read(0, 13, 14)]), 1, "a reader goes back");
        assert_eq!(found(&[write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)]), 1, "an old value after a newer write");
        assert_eq!(found(&[read(9, 1, 2)]), 1, "nobody wrote it");
        assert_eq!(found(&[read(1, 1, 2), write(1, 3, 4)]), 1, "before it was written");
        assert_eq!(
            found(&[write(1, 1, 100), write(2, 1, 100), read(1, 110, 111), read(2, 112, 113), read(1, 114, 115)]),
            1,
            "two values take turns"
        );
        assert_eq!(found(&[write(1, 1, 2), write(1, 3, 4)]), 1, "one value twice");
        // Two blocks are judged apart.
        let other = |e: Event| Event { block: 8, ..e };
        assert_eq!(found(&[write(1, 1, 2), read(0, 3, 4), other(write(1, 1, 2)), other(read(0, 3, 4))]), 2);
        assert_eq!(found(&[write(1, 1, 2), other(read(0, 3, 4)), read(1, 3, 4)]), 0);
    }

    #[test]
    fn it_agrees_with_a_search_over_all_orders() {
        let mut rng = types::Rng::new(11);
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..4000 {
            let mut events = Vec::new();
            let writes = 1 + rng.below(3);
            for value in 1..=writes {
                let from = rng.below(20);
                events.push(write(value, 2 * from + 1, 2 * (from + 1 + rng.below(8)) + 2));
            }
            for _ in 0..rng.below(4) {
                let from = rng.below(24);
                events.push(read(rng.below(writes + 1), 2 * from + 1, 2 * (from + 1 + rng.below(6)) + 2));
            }
            let expected = exists(INITIAL, &events);
            assert_eq!(contradictions(&events).is_empty(), expected, "{events:?}");
            if expected { accepted += 1 } else { refused += 1 }
        }
        assert!(accepted > 500 && refused > 500, "{accepted} {refused}");
    }

    /// Whether some order of these operations, each at one moment between call and return, explains every read.
    fn exists(value: u64, left: &[Event]) -> bool {
        if left.is_empty() {
            return true;
        }
        let limit = left.iter().map(|e| e.returned_ns).min().unwrap();
        (0..left.len()).any(|i| {
            let e = left[i];
            if e.called_ns > limit || !e.is_write && e.value != value {
                return false;
            }
            let mut rest = left.to_vec();
            rest.remove(i);
            exists(if e.is_write { e.value } else { value }, &rest)
        })
    }
}
