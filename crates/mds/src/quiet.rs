//! Clients that are quiet (`ptlrpc::quiet`): here they hold inodes, by locks and by opens, which go into their session's record.
use std::rc::Rc;

use ptlrpc::HeldSet;
use types::{ClientId, Duration, Fid, FsError};
use wire::{Bytes, Class, Op};

use crate::keys;
use crate::mds::Mds;
use crate::record::SessionRow;
use crate::tx::Claim;

/// How long a client asked for nothing when it counts as quiet: its next request waits for a commit.
const QUIET_AFTER: Duration = Duration::from_secs(5);

/// Inodes that a client holds something of.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// With a lock or an open.
    any: HeldSet,
    /// Open for writing.
    written: HeldSet,
}

impl Held {
    /// As a session's record has it; `None`: the client is not quiet.
    pub fn of_row(row: &SessionRow) -> Option<Held> {
        row.quiet.then(|| Held { any: HeldSet::of_bytes(&row.held), written: HeldSet::of_bytes(&row.written) })
    }
}

impl Mds {
    /// A client asks for something: it is quiet no more, and the store knows that before the request is carried out.
    pub(crate) async fn disturb(self: &Rc<Self>, client: ClientId, op: Op) -> Result<(), FsError> {
        if op.is(Class::CALM) {
            return Ok(());
        }
        self.quiet.note_asked(client, self.rt.now());
        if self.quiet.is_on_record(client) {
            let _leaving = self.quiet.leaves(client);
            let row = self.session_row(client);
            self.store.apply([(keys::session(client), Some(wire::encode(&row)))], 0, 0);
            // Also where that waits for space: nothing is refused for it.
            self.store.committed(self.store.applied()).await?;
            self.quiet.take_off_record(client);
        }
        ptlrpc::watch_quiet(self, &self.rt, QUIET_AFTER, |me| &me.quiet, Mds::note_quiet);
        Ok(())
    }

    /// Writes down what those hold that asked for nothing lately.
    fn note_quiet(self: &Rc<Self>) -> bool {
        if self.stopped.get() {
            return false;
        }
        for client in self.quiet.candidates(self.rt.now(), QUIET_AFTER) {
            let export = self.export(client);
            let under_way = export.as_ref().is_some_and(|e| e.requests_under_way() > 0);
            // Who stands still amid its replays has more of them.
            let tells = self.recovery.borrow().as_ref().is_some_and(|r| r.expects(client));
            let tells = tells && !types::planted!("quiet-amid-replays");
            let waits = self.locks.flocks.borrow().range((client, 0)..=(client, u64::MAX)).next().is_some();
            if under_way || tells || waits || self.store.is_stalled() {
                continue;
            }
            self.quiet.dismiss(client);
            if export.is_none() || !self.remembered.borrow().contains(&client) {
                continue;
            }
            let held = self.held_by(client);
            if held.any.is_too_long() {
                self.quiet.note_limit_hit();
                continue;
            }
            let row = SessionRow {
                quiet: true,
                held: Bytes(held.any.to_bytes()),
                written: Bytes(held.written.to_bytes()),
                ..self.session_row(client)
            };
            // Behind all that it changed, so that with this its changes are on stable storage, too.
            self.store.apply([(keys::session(client), Some(wire::encode(&row)))], 0, 0);
            self.quiet.put_on_record(client, held);
        }
        true
    }

    fn held_by(&self, client: ClientId) -> Held {
        let namespace = self.locks.namespace.borrow();
        let handles = self.handles.borrow();
        let opens: Vec<_> =
            handles.of_client(client).into_iter().filter_map(|handle| handles.get(client, handle)).collect();
        let locks = namespace.locks_of(client).map(|(lock, _)| lock.resource.fid);
        let flocks = namespace.flocks().filter(|f| f.client == client).map(|f| f.fid);
        Held {
            any: HeldSet::new(locks.chain(flocks).chain(opens.iter().map(|o| o.fid))),
            written: HeldSet::new(opens.iter().filter(|o| o.writes).map(|o| o.fid)),
        }
    }

    pub(crate) fn session_row(&self, client: ClientId) -> SessionRow {
        let export = self.export(client);
        let binding = export.as_ref().and_then(|e| e.binding()).map_or(0, ptlrpc::Binding::number);
        SessionRow::new(binding, export.map(|e| e.origin()).unwrap_or_default())
    }

    /// Whether service may begin without a client that is missing.
    pub(crate) fn is_quiet(&self, client: ClientId) -> bool {
        self.store.shares_committed() && self.quiet.is_on_record(client)
    }

    /// Service begins without these, which are quiet; they may come back to what they hold.
    pub(crate) fn begin_without(self: &Rc<Self>, missing: &[ClientId]) {
        self.quiet.begin_without(missing);
        self.end_recovery();
    }
    /// Whether a missing client may have a lock on an inode, or have it open.
    pub(crate) fn is_held_by_missing(&self, fid: Fid) -> bool {
        self.quiet.any_missing(|held| held.any.has(fid))
    }
    /// Whether a missing client may have an inode open for writing.
    pub(crate) fn is_written_by_missing(&self, fid: Fid) -> bool {
        self.quiet.any_missing(|held| held.written.has(fid))
    }
    /// Whether an operation that looked at `seen` and changes `claims` has to wait for missing clients.
    pub(crate) fn waits_for_missing(&self, claims: &[Claim], seen: &[Fid]) -> bool {
        claims.iter().any(|c| self.is_held_by_missing(c.fid)) || seen.iter().any(|f| self.is_written_by_missing(*f))
    }
    /// Waits until fewer are missing.
    pub(crate) async fn fewer_missing(&self) {
        if !self.stopped.get() {
            self.quiet.fewer_missing().await;
        }
    }
}
