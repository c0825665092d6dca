//! The metadata server hears at once that the store failed, is full, or is well again: it makes no new file where none can be written.
//!
//! It asks for an OST's state every 10 s; until then every second new file could be one that answers EIO.
use types::{Duration, Instant};
use wire::Op;

use super::Ost;

/// How long the metadata server may take to take it in. When it does not, it asks soon enough.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Space is looked at so often, while there are requests; a failure at every request.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Bits of `StatfsReply::state` that keep new files away: failed, full.
const TROUBLE: u32 = 1 << 1 | 1 << 2;

/// What was told last.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Told {
    state: u32,
    looked: Instant,
}

impl Ost {
    /// Tells it when that has changed.
    pub(super) fn tell_trouble(&self) {
        let told = self.told.get();
        let failed = u32::from(self.store.failure().is_some()) << 1;
        let now = self.rt.now();
        if failed == told.state & 1 << 1 && now.since(told.looked) < LOOK_EVERY {
            return;
        }
        let statfs = self.statfs();
        let state = statfs.state & TROUBLE;
        self.told.set(Told { state: told.state, looked: now });
        if state == told.state {
            return;
        }
        // Without a session of its it hears of the state when it has one.
        let Some(server) = self.creators.latest().and_then(|c| self.exports.borrow().get(&c).cloned()) else { return };
        self.told.set(Told { state, looked: now });
        let answer = server.callback(Op::OstStatfs, &statfs, ANSWER_MAX);
        self.rt.spawn(async move {
            if let Err(e) = answer.await {
                tracing::debug!("the metadata server was not told of the store's state: {e}");
            }
        });
    }
}
