//! Which late holders a server bears with: those that it keeps from answering itself.
//!
//! A client gives a lock back by requests: it writes out, closes, cancels. While one of its requests is in the server's own hands for long (its
//! disk stands still), the client cannot answer, and is not late. Decides who that is for how long; says nothing about why a request takes long.
//! Nobody is borne with beyond `callback_total_max`.
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use types::{ClientId, Duration, Instant};

use crate::namespace::{Expired, Namespace};

/// A request that is under way for so long keeps its client from answering callbacks.
pub const HELD_UP_AFTER: Duration = Duration::from_secs(5);
/// How often it is looked whether a client is still held up.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Clients that a server holds up.
#[derive(Default, Debug)]
pub struct Patience {
    held_up: BTreeSet<ClientId>,
}

impl Patience {
    /// Who is late at `now` although the server did not hold it up: to be evicted. `held_up` says of a client whether a request of it has
    /// been under way for [`HELD_UP_AFTER`]. Whoever is borne with has a callback's time from the last look on at which it was.
    pub fn late(&mut self, ns: &mut Namespace, now: Instant, held_up: impl Fn(ClientId) -> bool) -> Vec<Expired> {
        let late = ns.on_blocking_timeout(now);
        self.held_up.extend(late.iter().map(|e| e.client).filter(|client| held_up(*client)));
        self.held_up.retain(|client| {
            ns.on_held_up(now, *client);
            held_up(*client)
        });
        ns.on_blocking_timeout(now)
    }
    /// When to ask again at the latest; `None`: nothing is called back.
    #[must_use]
    pub fn next_look(&self, ns: &Namespace, now: Instant) -> Option<Instant> {
        let at = ns.next_deadline()?;
        Some(if self.held_up.is_empty() { at } else { at.min(now + LOOK_EVERY) })
    }
}
