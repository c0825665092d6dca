//! Telling servers that another client's process has ended: who finds out how is its caller's business.
use std::rc::Rc;

use ptlrpc::{ImportState, SessionKey};
use types::{ClientId, FsError};

use crate::Client;

impl Client {
    /// What this client's sessions come from. Whoever knows it may say one day that this client's process has ended.
    #[must_use]
    pub fn sessions(&self) -> &SessionKey {
        &self.sessions
    }

    /// Tells every server of the cluster that the process of `client`, whose sessions come from `sessions`, has ended: its
    /// locks and opens go, and no recovery waits for it. Waits for servers that are away; may be said again.
    ///
    /// # Errors
    /// `NotPermitted` when a server has a session of that id and not of that key, `Busy` when it sees that the process lives, `Io`
    /// when a target is out of service, `NotConnected` when this client leaves or was evicted meanwhile.
    pub async fn tell_gone(self: &Rc<Self>, client: ClientId, sessions: &SessionKey) -> Result<(), FsError> {
        let osts = self.oscs().into_iter().filter_map(|o| o.import_if_any());
        let told: Vec<_> = std::iter::once(self.mdc())
            .chain(osts)
            .map(|import| async move { import.tell_gone(client, &sessions.at(import.target())).await })
            .collect();
        let mut all = Ok(());
        for told in rt::sync::join_all(told).await {
            all = all.and(told);
        }
        all
    }

    /// Whether it has left or is leaving.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.closing.get() || self.mdc().state() == ImportState::Closed
    }
}
