//! Clients that are quiet (`ptlrpc::quiet`): here they hold objects, by locks, and grant.
//!
//! A quiet client's transactions are on stable storage before the record of what it holds is. So after a restart nobody's
//! replay waits for it, and service begins without it: whoever wants a lock on an object that it may have locked waits for the end
//! of the recovery, and the space of its grant is kept.
//!
//! A target that has more to do than it can has no quiet clients: their first request would wait for a commit, and that for the disk.
use std::rc::Rc;

use ptlrpc::{HeldSet, Request};
use types::{ClientId, Duration, FsError, ObjectId};

use super::Ost;

/// How long a client asked for nothing that would make it hold more, or change something, when it counts as quiet: its next such
/// request waits for a commit.
const QUIET_AFTER: Duration = Duration::from_secs(10);

/// How often it is looked who is quiet, and whether the target is busy.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A target with so many requests in its queue is busy.
const BUSY_QUEUE: usize = 32;

/// What a client holds.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// Objects with a lock of its.
    objects: HeldSet,
    /// Bytes that it may send without asking.
    grant: u64,
}

impl Held {
    /// For a store: the grant, 8 bytes little endian, and the objects.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.grant.to_le_bytes().to_vec();
        bytes.extend(self.objects.to_bytes());
        bytes
    }
    /// `None` for bytes that no record has.
    pub fn of_bytes(bytes: &[u8]) -> Option<Held> {
        let (grant, objects) = bytes.split_first_chunk::<8>()?;
        Some(Held { objects: HeldSet::of_bytes(objects), grant: u64::from_le_bytes(*grant) })
    }
    /// Whether it may be locked.
    pub fn has(&self, object: ObjectId) -> bool {
        self.objects.has(object.0)
    }
}

/// Who is quiet, as the store has it.
pub(crate) fn recalled(store: &dyn crate::store::ObjectStore) -> ptlrpc::Quiet<Held> {
    let held = |(client, bytes): (ClientId, Vec<u8>)| Some((client, Held::of_bytes(&bytes)?));
    ptlrpc::Quiet::new(store.quiet().into_iter().filter_map(held).collect())
}

impl Ost {
    /// A client asks for something: it is quiet no more, and the store knows that before the request is carried out.
    ///
    /// # Errors
    /// `Overloaded` while commits wait for space: the client asks again. The failure that latched the store.
    pub(super) async fn disturb(&self, request: &Request) -> Result<(), FsError> {
        let (client, quiet) = (request.client(), &self.locks.quiet);
        // What it tells again after a restart it is on record with.
        let on_record = quiet.is_on_record(client);
        if on_record && request.is_replay() {
            return Ok(());
        }
        quiet.note_asked(client, self.rt.now());
        if on_record && !types::planted!("quiet-and-asking") {
            let _leaving = quiet.leaves(client);
            let noted = self.store.quiet_no_more(client).await;
            noted.map_err(|e| if e == FsError::NoSpace { FsError::Overloaded } else { e })?;
            quiet.take_off_record(client);
        }
        self.watch_quiet();
        Ok(())
    }

    /// A client has a connection: if it asks for nothing it is quiet soon.
    pub(super) fn watch_quiet(&self) {
        let Some(me) = self.me.upgrade() else { return };
        ptlrpc::watch_quiet(&me, &self.rt, LOOK_EVERY, |me| &me.locks.quiet, Ost::note_quiet);
    }

    /// Writes down what those hold that asked for nothing lately.
    fn note_quiet(self: &Rc<Self>) -> bool {
        if self.store.failure().is_some() {
            return false;
        }
        let quiet = &self.locks.quiet;
        if self.dispatch.with(|pipeline, _| pipeline.queued()) >= BUSY_QUEUE {
            self.disturb_all();
            return true;
        }
        for client in quiet.candidates(self.rt.now(), QUIET_AFTER) {
            let export = self.exports.borrow().get(&client).cloned();
            let under_way = export.as_ref().is_some_and(|e| e.requests_under_way() > 0);
            // Who stands still amid its replays has more of them.
            let tells = self.recovery.borrow().as_ref().is_some_and(|r| r.expects(client));
            // Whether its cut is to be carried out must be known.
            if under_way || tells || !self.locks.promises.open_of(client).is_empty() {
                continue;
            }
            quiet.dismiss(client);
            if export.is_none_or(|e| !e.is_recoverable()) {
                continue;
            }
            let objects = self.locks.read(|ns| HeldSet::new(ns.locks_of(client).map(|(lock, _)| lock.resource.fid)));
            let held = Held { objects, grant: self.grants.borrow().of(client) };
            if held.objects.is_too_long() {
                quiet.note_limit_hit();
            } else if self.store.note_quiet(client, held.to_bytes()) {
                quiet.put_on_record(client, held);
            }
        }
        true
    }

    /// Nobody is quiet any more, as soon as the store knows it.
    fn disturb_all(self: &Rc<Self>) {
        for client in self.locks.quiet.on_record().into_iter().filter(|c| !self.locks.quiet.is_leaving(*c)) {
            let me = self.clone();
            self.rt.spawn(async move {
                let _leaving = me.locks.quiet.leaves(client);
                if me.store.quiet_no_more(client).await.is_ok() {
                    me.locks.quiet.take_off_record(client);
                    me.locks.quiet.note_asked(client, me.rt.now());
                }
            });
        }
    }

    /// Service begins without these, which are quiet; they may come back to what they hold.
    pub(super) fn go_on_without(&self, missing: &[ClientId]) {
        let quiet = &self.locks.quiet;
        quiet.begin_without(missing);
        let grants = missing.iter().filter_map(|c| Some((*c, quiet.held_on_record(*c)?.grant)));
        self.grants.borrow_mut().set_aside(grants);
        self.recheck_promises();
    }
}

#[cfg(test)]
mod tests {
    use types::Fid;

    use super::*;

    #[test]
    fn a_record_says_what_was_written_down() {
        let object = |n| ObjectId(Fid::new(0x2_4000_0401, n));
        let held = Held { objects: HeldSet::new([object(1).0, object(7).0].into_iter()), grant: 3 << 20 };
        assert_eq!(Held::of_bytes(&held.to_bytes()), Some(held.clone()));
        assert!(held.has(object(7)) && !held.has(object(2)));
        assert_eq!(Held::of_bytes(&[1, 2, 3]), None);
    }
}
