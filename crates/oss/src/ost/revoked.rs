//! Credentials that open nothing any more: what the metadata server tells, kept on stable storage.
//!
//! An OST that does not reach the metadata server goes on with what it was told last, also after a restart. What was revoked since
//! it hears with the metadata server's next session.
use std::collections::BTreeMap;
use std::rc::Rc;

use ptlrpc::Request;
use types::{FsError, WallTime};
use wire::credential::RevokedRequest;

use super::{Ost, answer};

/// Revocations that are known at most: as many as a metadata server keeps credentials, and those that it has forgotten meanwhile.
const REVOKED_MAX: usize = 16_384;
/// How long a revocation is kept after its credential has ended by itself: clocks are apart.
const KEPT_NS: i64 = 86_400_000_000_000;

/// Credentials that were revoked, and when each would have ended.
pub(crate) type Revoked = BTreeMap<u64, WallTime>;

impl Ost {
    /// `Revoked`, from the metadata server.
    pub(super) async fn on_revoked(&self, request: Request) {
        let result = match request.decode() {
            Ok(told) => self.learn_revoked(&told).await,
            Err(e) => Err(e),
        };
        answer(request, &result);
    }

    async fn learn_revoked(&self, told: &RevokedRequest) -> Result<(), FsError> {
        let since = WallTime(self.rt.wall().0.saturating_sub(KEPT_NS));
        {
            let mut revoked = self.revoked.borrow_mut();
            revoked.retain(|_, expires| expires.0 == 0 || *expires >= since);
            revoked.extend(told.revoked.iter().map(|r| (r.id, r.expires)));
            if revoked.len() > REVOKED_MAX {
                tracing::error!(
                    target = self.identity.target(),
                    "{} credentials were revoked: give credentials an end",
                    revoked.len()
                );
            }
        }
        // From here on no session of them opens. Those that there are end before anything is waited for.
        self.end_revoked_sessions().await;
        let told = told.revoked.iter().map(|r| (r.id, r.expires)).collect();
        self.store.revoke(told, since).await
    }

    async fn end_revoked_sessions(&self) {
        if types::planted!("revoked-stay") {
            return;
        }
        let is_over = |id: Option<u64>| id.is_some_and(|id| self.revoked.borrow().contains_key(&id));
        let of_them: Vec<_> =
            self.exports.borrow().values().filter(|e| is_over(e.credential())).map(Rc::clone).collect();
        let Some(evict) = self.config.borrow().evict.clone() else {
            return of_them.iter().for_each(|export| export.disconnect());
        };
        for export in of_them {
            tracing::warn!(target = self.identity.target(), client = %export.client(), "its credential was revoked: evicted");
            evict(export.client()).await;
        }
    }
}
