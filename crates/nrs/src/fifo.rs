//! First come, first served: the baseline of every experiment and what a head falls back to.
//!
//! Urgency is ignored on purpose: `deadline+fifo` is the version that knows it.
use crate::{
    NrsPolicy, NrsRequest,
    places::{NOWHERE, Places},
};
use alloc::{collections::VecDeque, vec::Vec};
use types::{Instant, RequestId};

/// How many requests ahead of the next one what is known of a request is fetched.
const FETCH_AHEAD: usize = 8;

/// The ids one behind the other; one that was cancelled stays there until its turn comes, or until most are such.
#[derive(Debug, Default)]
pub(crate) struct Fifo {
    order: VecDeque<u32>,
    /// Counts what has left `order` at its front.
    left: u32,
    /// Places are numbers in the order of arrival, modulo [`NOWHERE`].
    places: Places,
}

impl Fifo {
    fn place(&self, index: usize) -> u32 {
        ((u64::from(self.left) + index as u64) % u64::from(NOWHERE)) as u32
    }
    fn is_live(&self, index: usize, id: u32) -> bool {
        self.places.get(RequestId(id)) == Some(self.place(index))
    }
    fn pop(&mut self) -> Option<u32> {
        let id = self.order.pop_front()?;
        self.left = (self.left + 1) % NOWHERE;
        Some(id)
    }
    /// Drops what was cancelled when that is the majority.
    fn compact(&mut self) {
        if self.order.len() <= 2 * self.places.len() + 64 {
            return;
        }
        let live: VecDeque<u32> =
            self.order.iter().enumerate().filter(|(i, id)| self.is_live(*i, **id)).map(|(_, id)| *id).collect();
        self.order = live;
        for index in 0..self.order.len() {
            self.places.set(RequestId(self.order[index]), self.place(index));
        }
    }
}

impl NrsPolicy for Fifo {
    fn enqueue(&mut self, _now: Instant, req: &NrsRequest) {
        self.compact();
        self.places.insert(req.id, self.place(self.order.len()));
        self.order.push_back(req.id.0);
    }
    fn dequeue(&mut self, _now: Instant) -> Option<RequestId> {
        loop {
            let id = RequestId(*self.order.front()?);
            let live = self.is_live(0, id.0);
            self.pop();
            if let Some(soon) = self.likely_soon() {
                self.places.prefetch(soon);
            }
            if live {
                self.places.vacate(id);
                return Some(id);
            }
        }
    }
    fn promote(&mut self, _now: Instant, id: RequestId, _serve_by: Instant) -> bool {
        self.places.get(id).is_some()
    }
    fn cancel(&mut self, id: RequestId) -> bool {
        self.places.remove(id).is_some()
    }
    fn drain(&mut self, into: &mut Vec<RequestId>) {
        into.extend(self.places.take_in_order());
        self.order.clear();
    }
    fn likely_soon(&self) -> Option<RequestId> {
        self.order.get(FETCH_AHEAD).map(|id| RequestId(*id))
    }
    fn queued(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancelled_requests_do_not_pile_up_behind_one_that_is_never_served() {
        let mut fifo = Fifo { left: NOWHERE - 100, ..Fifo::default() };
        let request = |id| NrsRequest { id: RequestId(id), ..NrsRequest::default() };
        fifo.enqueue(Instant::ZERO, &request(0));
        for _ in 0..10_000 {
            fifo.enqueue(Instant::ZERO, &request(1));
            assert!(fifo.cancel(RequestId(1)) && fifo.order.len() < 100);
        }
        fifo.enqueue(Instant::ZERO, &request(2));
        assert_eq!(fifo.dequeue(Instant::ZERO), Some(RequestId(0)));
        assert_eq!(fifo.dequeue(Instant::ZERO), Some(RequestId(2)));
        assert_eq!(fifo.dequeue(Instant::ZERO), None);
    }
}
