//! What changes of objects that somebody copies: ranges, each with the number of its change.
//!
//! Who copies an object asks for its version, copies, and asks what changed behind that version; under a lock that keeps everybody else
//! away the answer is complete. Only objects that were asked about are followed, and only as long as this process lives: what is not known
//! counts as changed.
use std::collections::{BTreeMap, VecDeque};

use types::{Extent, ObjectId};
use wire::ost::ChangedReply;

use crate::store::{BLOCK_BYTES, BlockRange, SizeRule, Update};

/// Objects that are followed at a time; at first 100 bytes each. The one that was asked about least lately goes first.
const FOLLOWED_MAX: usize = 4096;
/// Changes of one object that are told apart; 24 bytes each. More become one range.
const RANGES_MAX: usize = 1024;
/// Changes of all objects that are told apart, 6 MiB. While there are as many, each object that changes has one range from then on.
const RANGES_ALL_MAX: usize = 1 << 18;

struct Followed {
    /// No change up to this one is told.
    since: u64,
    ranges: VecDeque<(u64, Extent)>,
    asked: u64,
}

/// See the module's head.
pub(crate) struct Changes {
    /// The last change, or question.
    now: u64,
    followed: BTreeMap<ObjectId, Followed>,
    /// Ranges of all of them.
    ranges: usize,
}

impl Changes {
    /// Of a store that was opened for the `boot`-th time: versions of earlier openings are not known.
    pub fn new(boot: u64) -> Changes {
        Changes { now: boot << 40, followed: BTreeMap::new(), ranges: 0 }
    }

    /// What changed of an object behind a version, which is followed from now on.
    pub fn ask(&mut self, object: ObjectId, since: u64) -> ChangedReply {
        self.now += 1;
        let now = self.now;
        if self.followed.len() >= FOLLOWED_MAX && !self.followed.contains_key(&object) {
            let oldest = self.followed.iter().min_by_key(|(_, f)| f.asked).map(|(o, _)| *o);
            oldest.into_iter().for_each(|o| self.forget(o));
        }
        let new = Followed { since: now, ranges: VecDeque::new(), asked: now };
        let followed = self.followed.entry(object).or_insert(new);
        followed.asked = now;
        let extents = if since < followed.since {
            vec![Extent::ALL]
        } else {
            let mut extents = followed.ranges.iter().filter(|(n, _)| *n > since).map(|(_, e)| *e).collect();
            merge(&mut extents);
            extents
        };
        ChangedReply { version: now, extents }
    }

    /// An update was carried out.
    pub fn note(&mut self, object: ObjectId, ranges: &[Extent]) {
        let Some(followed) = self.followed.get_mut(&object) else { return };
        self.now += 1;
        self.ranges -= followed.ranges.len();
        followed.ranges.extend(ranges.iter().map(|e| (self.now, *e)));
        let left = RANGES_ALL_MAX.saturating_sub(self.ranges);
        if followed.ranges.len() > RANGES_MAX.min(left) {
            let hull = followed.ranges.iter().map(|(_, e)| *e).reduce(|a, b| a.hull(&b)).unwrap_or(Extent::EMPTY);
            followed.ranges = VecDeque::from([(self.now, hull)]);
        }
        self.ranges += followed.ranges.len();
    }

    /// An object is gone.
    pub fn forget(&mut self, object: ObjectId) {
        let gone = self.followed.remove(&object);
        self.ranges -= gone.map_or(0, |f| f.ranges.len());
    }
}

/// The bytes that an update changes, whatever is in them.
pub(crate) fn ranges_of(update: &Update) -> Vec<Extent> {
    let bytes = |r: BlockRange| Extent::new(r.first.saturating_mul(BLOCK_BYTES), r.end().saturating_mul(BLOCK_BYTES));
    let blocks = update.drops.iter().chain(&update.reserves).copied().chain(update.puts.iter().map(|p| p.range()));
    let mut ranges: Vec<Extent> = blocks.map(bytes).collect();
    match update.size {
        SizeRule::Keep => {}
        SizeRule::AtLeast(size) => ranges.push(Extent::new(size.saturating_sub(1), size)),
        SizeRule::Exactly(size) => ranges.push(Extent::from(size)),
    }
    ranges.retain(|e| !e.is_empty());
    ranges
}

/// Sorts ranges, and makes one of those that touch.
fn merge(extents: &mut Vec<Extent>) {
    extents.sort_by_key(|e| e.start);
    let mut merged: Vec<Extent> = Vec::with_capacity(extents.len());
    for e in extents.drain(..) {
        match merged.last_mut() {
            Some(last) if e.start <= last.end => last.end = last.end.max(e.end),
            _ => merged.push(e),
        }
    }
    *extents = merged;
}

#[cfg(test)]
mod tests {
    use types::Fid;

    use super::*;

    fn object(n: u32) -> ObjectId {
        ObjectId(Fid::new(1, n))
    }

    #[test]
    fn what_changed_behind_a_version_is_told_and_what_is_not_known_counts_as_changed() {
        let mut changes = Changes::new(2);
        let first = changes.ask(object(1), 0);
        assert_eq!(first.extents, [Extent::ALL]);
        assert_eq!(changes.ask(object(1), first.version).extents, []);
        changes.note(object(1), &[Extent::new(8, 12), Extent::new(0, 4)]);
        let second = changes.ask(object(1), first.version);
        assert_eq!(second.extents, [Extent::new(0, 4), Extent::new(8, 12)]);
        changes.note(object(1), &[Extent::new(4, 8)]);
        changes.note(object(2), &[Extent::new(4, 8)]);
        assert_eq!(changes.ask(object(1), second.version).extents, [Extent::new(4, 8)]);
        assert_eq!(changes.ask(object(1), first.version).extents, [Extent::new(0, 12)]);
        assert_eq!(changes.ask(object(2), first.version).extents, [Extent::ALL]);
        changes.forget(object(1));
        assert_eq!(changes.ask(object(1), second.version).extents, [Extent::ALL]);
        let mut later = Changes::new(3);
        later.ask(object(1), 0);
        assert_eq!(later.ask(object(1), second.version).extents, [Extent::ALL], "of an earlier opening");
    }

    #[test]
    fn many_changes_become_one_range_and_many_objects_make_room() {
        let mut changes = Changes::new(1);
        let begun = changes.ask(object(0), 0).version;
        for n in 0..=RANGES_MAX as u64 {
            changes.note(object(0), &[Extent::at(n * 100, 1)]);
        }
        let extents = changes.ask(object(0), begun).extents;
        assert_eq!(extents, [Extent::new(0, RANGES_MAX as u64 * 100 + 1)]);
        for n in 1..=FOLLOWED_MAX as u32 {
            changes.ask(object(n), 0);
        }
        assert_eq!((changes.followed.len(), changes.followed.contains_key(&object(0))), (FOLLOWED_MAX, false));
    }

    #[test]
    fn all_objects_together_have_so_many_ranges_and_what_is_told_covers_all_changes() {
        let mut changes = Changes::new(1);
        let objects: Vec<ObjectId> = (0..FOLLOWED_MAX as u32).map(object).collect();
        let begun: Vec<u64> = objects.iter().map(|o| changes.ask(*o, 0).version).collect();
        for n in 0..200 {
            objects.iter().for_each(|o| changes.note(*o, &[Extent::at(n * 100, 1)]));
        }
        let held = |c: &Changes| c.followed.values().map(|f| f.ranges.len()).sum::<usize>();
        assert_eq!(held(&changes), changes.ranges);
        assert!(changes.ranges <= RANGES_ALL_MAX + FOLLOWED_MAX, "{}", changes.ranges);
        for (object, since) in objects.iter().zip(begun) {
            let told = changes.ask(*object, since).extents;
            assert!((0..200).all(|n| told.iter().any(|e| e.start <= n * 100 && n * 100 < e.end)), "{told:?}");
        }
        objects.iter().for_each(|o| changes.forget(*o));
        assert_eq!((changes.ranges, changes.followed.len()), (0, 0));
    }

    #[test]
    fn an_update_changes_what_it_drops_puts_reserves_and_cuts() {
        let of = |update: Update| ranges_of(&update);
        let range = |first, count| BlockRange { first, count };
        assert_eq!(of(Update { drops: vec![range(1, 2)], ..Update::default() }), [Extent::new(4096, 12288)]);
        assert_eq!(of(Update { reserves: vec![range(0, 1)], ..Update::default() }), [Extent::new(0, 4096)]);
        assert_eq!(of(Update { size: SizeRule::Exactly(5), ..Update::default() }), [Extent::from(5)]);
        assert_eq!(of(Update { size: SizeRule::AtLeast(5), ..Update::default() }), [Extent::new(4, 5)]);
        assert_eq!(of(Update::default()), []);
    }
}
