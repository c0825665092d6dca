//! Exclusive block ranges of objects: changes of the same block wait for each other, so that a change of part of a
//! block can read the rest, merge, and write without losing what another change did in between.
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use rt::sync::Event;
use types::ObjectId;

use crate::store::BlockRange;

#[derive(Default)]
struct Held {
    ranges: Vec<(u64, BlockRange)>,
    released: Rc<Event>,
}

#[derive(Default)]
struct Inner {
    objects: RefCell<HashMap<ObjectId, Held>>,
    next: std::cell::Cell<u64>,
}

/// A shared table of held ranges; cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct RangeGate(Rc<Inner>);

/// A held range; released on drop.
pub(crate) struct RangeGuard {
    gate: RangeGate,
    object: ObjectId,
    id: u64,
}

impl RangeGate {
    /// Waits until nobody holds a block of `range`, and takes it.
    pub async fn hold(&self, object: ObjectId, range: BlockRange) -> RangeGuard {
        loop {
            let released = match self.try_hold(object, range) {
                Ok(guard) => return guard,
                Err(released) => released,
            };
            released.wait().await;
        }
    }

    fn try_hold(&self, object: ObjectId, range: BlockRange) -> Result<RangeGuard, Rc<Event>> {
        let mut objects = self.0.objects.borrow_mut();
        let held = objects.entry(object).or_default();
        if held.ranges.iter().any(|(_, r)| r.overlaps(&range)) {
            return Err(held.released.clone());
        }
        let id = self.0.next.get();
        self.0.next.set(id + 1);
        held.ranges.push((id, range));
        Ok(RangeGuard { gate: self.clone(), object, id })
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut objects = self.gate.0.objects.borrow_mut();
        let Some(held) = objects.get_mut(&self.object) else { return };
        held.ranges.retain(|(id, _)| *id != self.id);
        held.released.notify();
        if held.ranges.is_empty() {
            objects.remove(&self.object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use simworld::TestWorld;
    use std::cell::Cell;
    use types::{Duration, OstIndex, Rng};

    #[test]
    fn overlapping_ranges_exclude_each_other_and_all_get_their_turn() {
        let world = TestWorld::new(3, 1 << 20);
        let (rt, gate) = (world.rt(), RangeGate::default());
        let cells: Rc<Vec<Cell<bool>>> = Rc::new((0..32).map(|_| Cell::new(false)).collect());
        let mut rng = Rng::new(9);
        let mut work = Vec::new();
        for _ in 0..200 {
            let (first, count) = (rng.below(28), 1 + rng.below(4));
            let pause = Duration::from_nanos(rng.below(100_000));
            let (gate, rt, cells) = (gate.clone(), rt.clone(), cells.clone());
            work.push(async move {
                rt.sleep(pause).await;
                let _held = gate.hold(ObjectId::new(OstIndex(0), 1), BlockRange { first, count }).await;
                for b in first..first + count {
                    assert!(!cells[b as usize].replace(true), "block {b} has two holders");
                }
                rt.sleep(pause).await;
                for b in first..first + count {
                    cells[b as usize].set(false);
                }
            });
        }
        world.run(rt::sync::join_all(work));
        assert!(gate.0.objects.borrow().is_empty());
    }
}
