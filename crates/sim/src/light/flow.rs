//! A flow: one client's file on one OST, seen as a window of RPCs over a sequence of records.
//!
//! Decides when the next record may be sent: its application has produced it, the window is open, the OST granted it.
use devices::RegionMap;

/// State of a flow; some 110 bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    /// Where its object lies on the medium.
    pub map: RegionMap,
    /// Number of the client, across the whole run.
    pub client: u32,
    /// Number of the client in its world.
    pub home: u32,
    /// Number of the file, across the whole run.
    pub file: u32,
    /// Stripe of the file, 0 for the first.
    pub stripe: u32,
    /// The OST, across the whole run.
    pub ost: u32,
    /// Records to send in this phase.
    pub total: u32,
    /// The next record.
    pub next: u32,
    /// Records answered.
    pub done: u32,
    /// Records in flight.
    pub in_flight: u32,
    /// How many may be.
    pub limit: u32,
    /// When the application starts.
    pub start: u64,
    /// Its requests carry a mandatory deadline.
    pub urgent: bool,
}

impl Flow {
    /// Whether the window lets another record out.
    #[inline]
    pub fn may_send(&self) -> bool {
        self.in_flight < self.limit && self.next < self.total
    }
    /// Takes the next record: its number.
    #[inline]
    pub fn take(&mut self) -> u32 {
        let n = self.next;
        self.next += 1;
        self.in_flight += 1;
        n
    }
    /// Everything is answered.
    pub fn is_done(&self) -> bool {
        self.done >= self.total
    }
}
