//! First come, first served: the baseline of every experiment and what a head falls back to.
//!
//! Urgency is ignored on purpose: `deadline+fifo` is the version that knows it.
use crate::{NrsPolicy, NrsRequest, slots::NIL, slots::Slots};
use alloc::vec::Vec;
use types::{Instant, RequestId};

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

/// A doubly linked list through the table of ids: every operation is O(1).
#[derive(Debug)]
pub(crate) struct Fifo {
    links: Slots<Link>,
    head: u32,
    tail: u32,
}

impl Default for Fifo {
    fn default() -> Self {
        Fifo { links: Slots::default(), head: NIL, tail: NIL }
    }
}

impl Fifo {
    fn unlink(&mut self, id: RequestId) -> bool {
        let Some(Link { prev, next }) = self.links.remove(id) else { return false };
        match self.links.get_mut(RequestId(prev)) {
            Some(p) => p.next = next,
            None => self.head = next,
        }
        match self.links.get_mut(RequestId(next)) {
            Some(n) => n.prev = prev,
            None => self.tail = prev,
        }
        true
    }
}

impl NrsPolicy for Fifo {
    fn enqueue(&mut self, _now: Instant, req: &NrsRequest) {
        self.links.insert(req.id, Link { prev: self.tail, next: NIL });
        match self.links.get_mut(RequestId(self.tail)) {
            Some(t) => t.next = req.id.0,
            None => self.head = req.id.0,
        }
        self.tail = req.id.0;
    }
    fn dequeue(&mut self, _now: Instant) -> Option<RequestId> {
        let id = RequestId(self.head);
        self.unlink(id).then_some(id)
    }
    fn promote(&mut self, _now: Instant, id: RequestId, _serve_by: Instant) -> bool {
        self.links.get(id).is_some()
    }
    fn cancel(&mut self, id: RequestId) -> bool {
        self.unlink(id)
    }
    fn drain(&mut self, into: &mut Vec<RequestId>) {
        while let Some(id) = self.dequeue(Instant::ZERO) {
            into.push(id);
        }
    }
    fn queued(&self) -> usize {
        self.links.len()
    }
}
