//! Clients that are quiet: what they hold is written down, so that a restarted server can go on without the missing ones.
//!
//! A client that asked for nothing for a while, and is not amid a recovery, has nothing to replay; what it may tell again are its locks and its opens.
//! Which inodes those are of goes into its session's record. Before its next request is carried out that is taken back, on
//! stable storage: whoever is on record as quiet is so. After a restart, when all who are back have replayed and all who are
//! missing are quiet, service begins: requests wait for the end of the recovery only where a missing client's lock would be in
//! the way, or its open file. Nobody is evicted any earlier.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rt::sync::Event;
use types::{ClientId, Duration, Fid, FsError, Instant};
use wire::{Bytes, Op};

use crate::keys;
use crate::mds::Mds;
use crate::record::SessionRow;
use crate::tx::Claim;

/// How long a client asked for nothing when it counts as quiet: its next request waits for a commit.
const QUIET_AFTER: Duration = Duration::from_secs(5);
/// Inodes that are written down of one client, 4 bytes each; who holds more is waited for.
const HELD_MAX: usize = 1 << 16;

/// Inodes that a client holds something of, in short: two that look the same make somebody wait.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// With a lock or an open.
    any: Vec<u32>,
    /// Open for writing.
    written: Vec<u32>,
}

fn short(fid: Fid) -> u32 {
    wire::crc32c(&fid.to_key())
}

fn sorted(fids: impl Iterator<Item = Fid>) -> Vec<u32> {
    let all: BTreeSet<u32> = fids.map(short).collect();
    all.into_iter().collect()
}

fn bytes_of(list: &[u32]) -> Bytes {
    Bytes(list.iter().flat_map(|h| h.to_le_bytes()).collect())
}

fn list_of(bytes: &[u8]) -> Vec<u32> {
    let mut list: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    list.sort_unstable();
    list
}

impl Held {
    /// As a session's record has it; `None`: the client is not quiet.
    pub fn of_row(row: &SessionRow) -> Option<Held> {
        row.quiet.then(|| Held { any: list_of(&row.held), written: list_of(&row.written) })
    }
    fn has(&self, fid: Fid) -> bool {
        self.any.binary_search(&short(fid)).is_ok()
    }
    fn writes(&self, fid: Fid) -> bool {
        self.written.binary_search(&short(fid)).is_ok()
    }
}

/// Who is quiet, and who of them is missing after a restart.
#[derive(Default)]
pub(crate) struct Quiet {
    /// On record as such.
    quiet: RefCell<BTreeMap<ClientId, Held>>,
    /// When each of the others asked last.
    asked: RefCell<BTreeMap<ClientId, Instant>>,
    watched: Cell<bool>,
    /// Whom service began without; they may still come back.
    missing: RefCell<BTreeMap<ClientId, Held>>,
    /// The recovery is over.
    over: Event,
    /// Clients that held too much to be written down.
    limit_hits: Cell<u64>,
}

impl Quiet {
    /// As the store has it.
    pub fn new(quiet: BTreeMap<ClientId, Held>) -> Quiet {
        Quiet { quiet: RefCell::new(quiet), ..Quiet::default() }
    }
    /// (clients on record as quiet, clients that held too much for it so far).
    pub fn counters(&self) -> (usize, u64) {
        (self.quiet.borrow().len(), self.limit_hits.get())
    }
}

/// Requests that leave a client with no more than it had, and no transaction.
fn disturbs_nothing(op: Op) -> bool {
    matches!(
        op,
        Op::Ping
            | Op::Config
            | Op::Register
            | Op::Params
            | Op::Jobs
            | Op::MdtStatfs
            | Op::MdtSettled
            | Op::MdtSync
            | Op::LockCancel
            | Op::LockConvert
    )
}

impl Mds {
    /// A client asks for something: it is quiet no more, and the store knows that before the request is carried out.
    pub(crate) async fn disturb(self: &Rc<Self>, client: ClientId, op: Op) -> Result<(), FsError> {
        if disturbs_nothing(op) {
            return Ok(());
        }
        self.quiet.asked.borrow_mut().insert(client, self.rt.now());
        if self.quiet.quiet.borrow().contains_key(&client) {
            let row = self.session_row(client);
            self.store.apply([(keys::session(client), Some(wire::encode(&row)))], 0, 0);
            // Also where that waits for space: nothing is refused for it.
            self.store.committed(self.store.applied()).await?;
            self.quiet.quiet.borrow_mut().remove(&client);
        }
        self.watch_quiet();
        Ok(())
    }

    /// A client is gone.
    pub(crate) fn forget_quiet(&self, client: ClientId) {
        self.quiet.quiet.borrow_mut().remove(&client);
        self.quiet.asked.borrow_mut().remove(&client);
    }

    /// Looks for those who have become quiet, as long as there are others.
    fn watch_quiet(self: &Rc<Self>) {
        if self.quiet.watched.replace(true) {
            return;
        }
        let me = Rc::downgrade(self);
        let rt = self.rt.clone();
        self.rt.spawn(async move {
            loop {
                rt.sleep(QUIET_AFTER).await;
                let Some(me) = me.upgrade() else { return };
                if me.stopped.get() {
                    return;
                }
                me.note_quiet();
                if me.quiet.asked.borrow().is_empty() {
                    me.quiet.watched.set(false);
                    return;
                }
            }
        });
    }

    /// Writes down what those hold that asked for nothing lately.
    fn note_quiet(self: &Rc<Self>) {
        let now = self.rt.now();
        let idle = |at: &Instant| now.since(*at) >= QUIET_AFTER;
        let candidates: Vec<ClientId> =
            self.quiet.asked.borrow().iter().filter(|(_, at)| idle(at)).map(|(c, _)| *c).collect();
        for client in candidates {
            let export = self.export(client);
            let under_way = export.as_ref().is_some_and(|e| e.requests_under_way() > 0);
            // Who stands still amid its replays has more of them.
            let tells = self.recovery.borrow().as_ref().is_some_and(|r| r.expects(client));
            let tells = tells && !types::planted!("quiet-amid-replays");
            let waits = self.locks.flocks.borrow().range((client, 0)..=(client, u64::MAX)).next().is_some();
            if under_way || tells || waits || self.store.is_stalled() {
                continue;
            }
            self.quiet.asked.borrow_mut().remove(&client);
            if export.is_none() || !self.remembered.borrow().contains(&client) {
                continue;
            }
            let held = self.held_by(client);
            if held.any.len() > HELD_MAX {
                self.quiet.limit_hits.set(self.quiet.limit_hits.get() + 1);
                continue;
            }
            let row = SessionRow {
                quiet: true,
                held: bytes_of(&held.any),
                written: bytes_of(&held.written),
                ..self.session_row(client)
            };
            // Behind all that it changed, so that with this its changes are on stable storage, too.
            self.store.apply([(keys::session(client), Some(wire::encode(&row)))], 0, 0);
            self.quiet.quiet.borrow_mut().insert(client, held);
        }
    }

    fn held_by(&self, client: ClientId) -> Held {
        let namespace = self.locks.namespace.borrow();
        let handles = self.handles.borrow();
        let opens: Vec<_> =
            handles.of_client(client).into_iter().filter_map(|handle| handles.get(client, handle)).collect();
        let locks = namespace.locks_of(client).map(|(lock, _)| lock.resource.fid);
        let flocks = namespace.flocks().filter(|f| f.client == client).map(|f| f.fid);
        Held {
            any: sorted(locks.chain(flocks).chain(opens.iter().map(|o| o.fid))),
            written: sorted(opens.iter().filter(|o| o.writes).map(|o| o.fid)),
        }
    }

    pub(crate) fn session_row(&self, client: ClientId) -> SessionRow {
        let export = self.export(client);
        let binding = export.as_ref().and_then(|e| e.binding()).map_or(0, ptlrpc::Binding::number);
        SessionRow::new(binding, export.map(|e| e.origin()).unwrap_or_default())
    }

    /// Whether service may begin without a client that is missing.
    pub(crate) fn is_quiet(&self, client: ClientId) -> bool {
        self.store.shares_committed() && self.quiet.quiet.borrow().contains_key(&client)
    }

    /// Service begins without these, which are quiet; they may come back to what they hold.
    pub(crate) fn begin_without(self: &Rc<Self>, missing: &[ClientId]) {
        let quiet = self.quiet.quiet.borrow();
        let held = missing.iter().filter_map(|c| Some((*c, quiet.get(c)?.clone())));
        *self.quiet.missing.borrow_mut() = held.collect();
        drop(quiet);
        self.end_recovery();
    }
    /// Everybody is back or evicted.
    pub(crate) fn nobody_is_missing(&self) {
        self.quiet.missing.borrow_mut().clear();
        self.quiet.over.notify();
    }
    /// Whether service began without somebody.
    pub(crate) fn is_somebody_missing(&self) -> bool {
        !self.quiet.missing.borrow().is_empty()
    }
    /// Whether a missing client may have a lock on an inode, or have it open.
    pub(crate) fn is_held_by_missing(&self, fid: Fid) -> bool {
        self.quiet.missing.borrow().values().any(|held| held.has(fid))
    }
    /// Whether a missing client may have an inode open for writing.
    pub(crate) fn is_written_by_missing(&self, fid: Fid) -> bool {
        self.quiet.missing.borrow().values().any(|held| held.writes(fid))
    }
    /// Whether an operation that looked at `seen` and changes `claims` has to wait for missing clients.
    pub(crate) fn waits_for_missing(&self, claims: &[Claim], seen: &[Fid]) -> bool {
        claims.iter().any(|c| self.is_held_by_missing(c.fid)) || seen.iter().any(|f| self.is_written_by_missing(*f))
    }
    /// Waits until nobody is missing.
    pub(crate) async fn recovery_over(&self) {
        let over = self.quiet.over.wait();
        if self.is_somebody_missing() && !self.stopped.get() {
            over.await;
        }
    }
    /// Nobody waits any longer: the server stops.
    pub(crate) fn end_waits(&self) {
        self.quiet.over.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_record_says_is_held_is_what_was_written_down() {
        let fid = |n| Fid::new(7, n);
        let held = Held { any: sorted([fid(3), fid(1), fid(3)].into_iter()), written: sorted([fid(1)].into_iter()) };
        let row = SessionRow {
            quiet: true,
            held: bytes_of(&held.any),
            written: bytes_of(&held.written),
            ..SessionRow::default()
        };
        assert_eq!(Held::of_row(&row), Some(held.clone()));
        assert!(held.has(fid(3)) && held.has(fid(1)) && !held.has(fid(2)));
        assert!(held.writes(fid(1)) && !held.writes(fid(3)));
        assert_eq!(Held::of_row(&SessionRow { quiet: false, ..row }), None);
    }
}
