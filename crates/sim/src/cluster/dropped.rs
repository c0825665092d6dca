//! Operations that are dropped amid, as those of a program are that is killed by a signal: what was dropped may have happened or not,
//! and nobody has its answer.
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use types::{Duration, Rng};

use super::class::FaultClass;
use super::context::Context;

/// Polls after which an operation is dropped at the latest, if it lasts as long.
const POLLS_MAX: u64 = 12;
/// Share of changes of names, cuts and allocations that are dropped if they last long enough, in runs with such faults.
const SHARE: f64 = 0.15;
/// Looks at a client's books, one after the other, that have to find nothing under way.
const QUIET_LOOKS: u32 = 2;
/// Pause between two of them.
const LOOK_EVERY: Duration = Duration::from_millis(3);

/// Runs `work`, but no further than so many polls; `None`: it was dropped.
pub async fn hasty<T>(polls: u64, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut polled) = (pin!(work), 0);
    // It is dropped when the caller goes on.
    poll_fn(|cx| {
        if polled == polls {
            return Poll::Ready(None);
        }
        polled += 1;
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

/// After how many polls an operation is dropped.
pub fn polls(rng: &mut Rng) -> u64 {
    1 + rng.below(POLLS_MAX)
}

impl Context {
    /// After how many polls a program drops the change that it is about to make: most come to their end.
    pub fn patience(&self, rng: &mut Rng) -> u64 {
        if self.manners().interrupts && rng.chance(SHARE) { polls(rng) } else { u64::MAX }
    }
    /// An operation was dropped.
    pub fn note_dropped(&self) {
        self.count(|c| c.by_class[FaultClass::Interrupts.index()] += 1);
    }
    /// An operation of a client was dropped: nothing of it is under way any more when this ends, unless the client died.
    pub async fn dropped(&self, client: usize) {
        self.note_dropped();
        self.nothing_under_way(client).await;
    }
    /// What came of an operation that may have been dropped; `None`: nobody has its answer. Nothing of it is under way then, but for
    /// what a client had begun that died.
    pub async fn unless_dropped<T, E>(
        &self,
        client: usize,
        outcome: Option<Result<Option<T>, E>>,
    ) -> Option<Result<T, E>> {
        match outcome? {
            Ok(Some(done)) => Some(Ok(done)),
            Err(e) => Some(Err(e)),
            Ok(None) => {
                self.dropped(client).await;
                None
            }
        }
    }
    /// Waits until none of a client's operations is under way, or it died.
    async fn nothing_under_way(&self, client: usize) {
        let start = self.cluster.clients[client].starts.get();
        let mut quiet = 0;
        while quiet < QUIET_LOOKS && !self.failed() {
            self.cluster.sim.sleep(LOOK_EVERY).await;
            let Some(c) = self.cluster.client(client) else { return };
            if self.cluster.clients[client].starts.get() != start {
                return;
            }
            let now = c.requests_in_use();
            let is_quiet = now.of("requests") == 0 && now.of("uses of locks") == 0;
            quiet = if is_quiet { quiet + 1 } else { 0 };
        }
    }
}
