//! Whether the store is still this server's, where another one may take it over: by the engine's word, else by asking.
//!
//! Nothing is answered that is not sure (`service`). Here it is decided how long clients stay with a server that is not: its engine may have
//! been kept from saying so by a long commit, while whoever asks it is answered at once. Then everything goes on. When nothing was answered
//! for [`UNSURE_MAX`], clients look elsewhere, and no deadline counts against anybody who is refused meanwhile.
use std::cell::Cell;

use types::{Duration, Instant};

use crate::kv::KvError;
use crate::mds::Mds;

/// How long clients stay with a server that does not know whether its store is its own: no longer than a standby takes to follow it.
const UNSURE_MAX: Duration = Duration::from_secs(2);
/// How often the store is asked meanwhile.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// What is known of the store's being this server's.
#[derive(Default)]
pub(crate) struct Sureness {
    /// Since when nothing says so.
    since: Cell<Option<Instant>>,
    /// The store is being asked.
    asking: Cell<bool>,
}

impl Mds {
    /// Whether another server may have the store, for longer than a slow answer explains.
    pub(crate) fn is_unsure_of_store(&self) -> bool {
        if self.store.engine().is_sure() || types::planted!("unsure-and-kept") {
            self.sureness.since.set(None);
            return false;
        }
        let now = self.rt.now();
        let since = self.sureness.since.get().unwrap_or(now);
        self.sureness.since.set(Some(since));
        self.ask_store();
        now.since(since) >= UNSURE_MAX
    }

    /// Asks whether the store is still this server's.
    ///
    /// # Errors
    /// It is not, or has failed.
    pub(crate) async fn confirm_store(&self) -> Result<(), KvError> {
        self.store.engine().confirm().await?;
        self.sureness.since.set(None);
        Ok(())
    }

    /// Asks again and again, in the background, until the engine is sure by itself.
    fn ask_store(&self) {
        let Some(me) = self.me.borrow().upgrade() else { return };
        if self.sureness.asking.replace(true) {
            return;
        }
        self.rt.spawn(async move {
            loop {
                let next = me.rt.now() + ASK_EVERY;
                if me.stopped.get() || me.store.engine().is_sure() || me.confirm_store().await.is_err() {
                    break;
                }
                me.rt.sleep_until(next).await;
            }
            me.sureness.asking.set(false);
        });
    }
}
