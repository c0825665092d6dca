//! The dispatch window: how many requests an OST hands to its store at a time. Everything else stays with the NRS head,
//! because an NRS reorders only what it holds back.
//!
//! Source: paper 001 (service threads); the window is what a fixed number of I/O threads does, made explicit.
use nrs::{NrsPolicy, NrsRequest};
use types::{Duration, Instant, RequestId};

/// An NRS head by policy name, and a limit on what is in service.
pub struct DispatchWindow {
    head: Box<dyn NrsPolicy>,
    window: u32,
    in_service: u32,
}

impl DispatchWindow {
    /// A head with a window of `window` requests (>= 1).
    #[must_use]
    pub fn new(head: Box<dyn NrsPolicy>, window: u32) -> DispatchWindow {
        assert!(window >= 1, "a dispatch window of 0 would serve nothing");
        DispatchWindow { head, window, in_service: 0 }
    }
    /// Requests held back.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.head.queued()
    }
    /// Requests with the store.
    #[must_use]
    pub fn in_service(&self) -> u32 {
        self.in_service
    }
    /// A request arrived. Call [`DispatchWindow::next`] afterwards.
    #[inline]
    pub fn on_arrival(&mut self, now: Instant, request: &NrsRequest) {
        self.head.enqueue(now, request);
    }
    /// The request to hand to the store now; call until `None`.
    #[inline]
    pub fn next(&mut self, now: Instant) -> Option<RequestId> {
        if self.in_service >= self.window || self.head.queued() == 0 {
            return None;
        }
        let id = self.head.dequeue(now)?;
        self.in_service += 1;
        Some(id)
    }
    /// When to call [`DispatchWindow::next`] again although nothing arrives or completes: a throttling policy holds all.
    #[must_use]
    pub fn wakeup_at(&self) -> Option<Instant> {
        if self.in_service >= self.window || self.head.queued() == 0 { None } else { self.head.wakeup_at() }
    }
    /// The store is through with a request, `took` after its dispatch. Call [`DispatchWindow::next`] afterwards.
    ///
    /// # Panics
    /// When nothing is in service.
    #[inline]
    pub fn on_completion(&mut self, now: Instant, id: RequestId, took: Duration) {
        assert!(self.in_service > 0, "a completion without a dispatch");
        self.in_service -= 1;
        self.head.on_complete(now, id, took);
    }
    /// The target went down: everything held back is forgotten here and appended to `into`.
    pub fn on_failure(&mut self, into: &mut Vec<RequestId>) {
        self.head.drain(into);
    }
}
