//! Exclusive block ranges of objects: changes of the same block wait for each other, so that a change of part of a
//! block can read the rest, merge, and write without losing what another change did in between. Whoever came first is first.
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use rt::sync::Event;
use types::{ClientId, ObjectId};

use crate::store::BlockRange;

/// A range that somebody holds, or waits for.
struct Asked {
    /// In the order in which they were asked for.
    id: u64,
    range: BlockRange,
    client: ClientId,
}

#[derive(Default)]
struct Asks {
    all: Vec<Asked>,
    released: Rc<Event>,
}

#[derive(Default)]
struct Inner {
    objects: RefCell<HashMap<ObjectId, Asks>>,
    next: std::cell::Cell<u64>,
}

/// A shared table of ranges; cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct RangeGate(Rc<Inner>);

/// A held range; released on drop.
pub(crate) struct RangeGuard {
    gate: RangeGate,
    object: ObjectId,
    id: u64,
}

impl RangeGate {
    /// Waits until nobody who came before has a block of `range`, and takes it for a client's request.
    ///
    /// Cancel: nothing is held.
    pub async fn hold(&self, client: ClientId, object: ObjectId, range: BlockRange) -> RangeGuard {
        let id = self.0.next.get();
        self.0.next.set(id + 1);
        self.0.objects.borrow_mut().entry(object).or_default().all.push(Asked { id, range, client });
        let guard = RangeGuard { gate: self.clone(), object, id };
        while let Some(released) = self.is_behind(object, id, range) {
            released.wait().await;
        }
        guard
    }

    fn is_behind(&self, object: ObjectId, id: u64, range: BlockRange) -> Option<Rc<Event>> {
        let objects = self.0.objects.borrow();
        let asks = objects.get(&object)?;
        asks.all.iter().any(|a| a.id < id && a.range.overlaps(&range)).then(|| asks.released.clone())
    }

    /// Waits until no request of a client holds or waits for a range.
    ///
    /// Cancel: nothing happened.
    pub async fn without(&self, client: ClientId) {
        loop {
            let released = {
                let objects = self.0.objects.borrow();
                objects.values().find(|asks| asks.all.iter().any(|a| a.client == client)).map(|a| a.released.clone())
            };
            let Some(released) = released else { return };
            released.wait().await;
        }
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut objects = self.gate.0.objects.borrow_mut();
        let Some(asks) = objects.get_mut(&self.object) else { return };
        asks.all.retain(|a| a.id != self.id);
        asks.released.notify();
        if asks.all.is_empty() {
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
                let _held = gate.hold(ClientId(1), ObjectId::new(OstIndex(0), 1), BlockRange { first, count }).await;
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

    #[test]
    fn a_wide_range_gets_its_turn_among_narrow_ones_that_always_overlap() {
        let world = TestWorld::new(3, 1 << 20);
        let (rt, gate) = (world.rt(), RangeGate::default());
        let object = ObjectId::new(OstIndex(0), 1);
        let over = Rc::new(Cell::new(false));
        let mut work: Vec<rt::LocalFuture<()>> = Vec::new();
        for block in 0..4 {
            let (gate, rt, over) = (gate.clone(), rt.clone(), over.clone());
            work.push(Box::pin(async move {
                // One after the other is done, so that some block is always held.
                rt.sleep(Duration::from_micros(10 * block)).await;
                for _ in 0..10_000 {
                    let _held = gate.hold(ClientId(1), object, BlockRange { first: block, count: 1 }).await;
                    if over.get() {
                        return;
                    }
                    rt.sleep(Duration::from_micros(40)).await;
                }
                panic!("the wide range never had its turn");
            }));
        }
        let (wide, ended) = (gate.clone(), over.clone());
        work.push(Box::pin(async move {
            rt.sleep(Duration::from_micros(35)).await;
            wide.hold(ClientId(2), object, BlockRange::new(0, u64::MAX)).await;
            ended.set(true);
        }));
        world.run(rt::sync::join_all(work));
    }

    #[test]
    fn a_client_is_waited_for_as_long_as_a_request_of_it_has_a_range() {
        let world = TestWorld::new(3, 1 << 20);
        let (rt, gate) = (world.rt(), RangeGate::default());
        let object = ObjectId::new(OstIndex(0), 1);
        world.run(async {
            let held = gate.hold(ClientId(1), object, BlockRange { first: 0, count: 1 }).await;
            gate.without(ClientId(2)).await;
            assert!(rt.timeout(Duration::from_secs(1), gate.without(ClientId(1))).await.is_none());
            drop(held);
            gate.without(ClientId(1)).await;
        });
    }
}
