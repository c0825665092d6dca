//! How many sessions of clients the servers of a process take together. Each holds a descriptor while its client is connected: of those
//! that clients have taken nobody else gets any. A quarter of the descriptors is never theirs, so that administrators, other servers and
//! stores find some whatever clients do; and whoever has the key of all clients leaves half of them to others.
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::credential::{CLIENT_KEY, CLIENT_KEY_NAME};
use crate::export::Opener;

/// The seats of a process.
#[derive(Debug)]
pub struct Seats {
    /// Descriptors that the process may have open.
    descriptors: AtomicUsize,
    /// Sessions of clients.
    taken: AtomicUsize,
    /// Those of them whose clients have the key of all clients, or may have.
    of_client_key: AtomicUsize,
}

/// A session's seat; given up when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    of_client_key: bool,
}

impl Seats {
    /// Of a process with so many descriptors.
    #[must_use]
    pub fn of(descriptors: usize) -> Arc<Seats> {
        let (descriptors, taken, of_client_key) = (descriptors.into(), AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Seats { descriptors, taken, of_client_key })
    }
    /// Those of this process: without a bound until [`Seats::set_descriptors`] says one.
    #[must_use]
    pub fn of_process() -> Arc<Seats> {
        static SEATS: OnceLock<Arc<Seats>> = OnceLock::new();
        SEATS.get_or_init(|| Seats::of(usize::MAX)).clone()
    }
    /// Says how many descriptors the process may have open.
    pub fn set_descriptors(&self, descriptors: usize) {
        self.descriptors.store(descriptors, Ordering::Relaxed);
    }
    /// A seat for one more session, if there is one. Several threads may ask.
    pub(crate) fn take(self: &Arc<Self>, opener: Opener) -> Option<Seat> {
        // Taken first: of two that ask at the same time none is overlooked.
        let seat = self.take_anyway(opener);
        let descriptors = self.descriptors.load(Ordering::Relaxed);
        let is_full = self.taken.load(Ordering::Relaxed) > descriptors - descriptors / 4;
        let is_share_full = seat.of_client_key && self.of_client_key.load(Ordering::Relaxed) > descriptors / 2;
        (!is_full && !is_share_full).then_some(seat)
    }
    /// A seat for a session that there is already, whatever there is. Of whom nobody has come back to since the target's start may be
    /// whoever has the key of all clients.
    pub(crate) fn take_anyway(self: &Arc<Self>, opener: Opener) -> Seat {
        let of_client_key = matches!(opener, Opener::Unknown | Opener::Credential(CLIENT_KEY));
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.of_client_key.fetch_add(usize::from(of_client_key), Ordering::Relaxed);
        Seat { seats: self.clone(), of_client_key }
    }
}

impl fmt::Display for Seats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |n: &AtomicUsize| n.load(Ordering::Relaxed);
        let (taken, shared, descriptors) = (of(&self.taken), of(&self.of_client_key), of(&self.descriptors));
        write!(f, "{taken} sessions of clients, {shared} of them of {CLIENT_KEY_NAME}, for {descriptors} descriptors")
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken.fetch_sub(1, Ordering::Relaxed);
        self.seats.of_client_key.fetch_sub(usize::from(self.of_client_key), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_a_quarter_of_the_descriptors_and_those_of_the_common_key_half() {
        let seats = Seats::of(8);
        let take = |opener| seats.take(opener);
        let mut common: Vec<_> = (0..5).filter_map(|_| take(Opener::Credential(CLIENT_KEY))).collect();
        let own: Vec<_> = (0..5).filter_map(|n| take(Opener::Credential(n + 1))).collect();
        assert_eq!((common.len(), own.len()), (4, 2));
        common.pop();
        assert!(take(Opener::Credential(CLIENT_KEY)).is_some(), "it was given up at once");
        // Sessions that are there stay, whatever there is.
        let again: Vec<_> = (0..9).map(|_| seats.take_anyway(Opener::Unknown)).collect();
        assert!(take(Opener::Credential(1)).is_none());
        drop((common, own, again));
        assert_eq!(seats.to_string(), "0 sessions of clients, 0 of them of client.key, for 8 descriptors");
    }
}
