//! What the metadata target keeps of its requests, and tells: a record for each, with what it waited for and whose lock that was.
//!
//! What a request waits for is noted where it waits, by client and request, and fetched when the request is done: most wait
//! for nothing, and then the table is empty. Who waits for a flock is answered before the wait begins ([`trace::Waits`]).
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use ptlrpc::Request;
use trace::{Came, JobId, Record, Ring, Waits, micros};
use types::{ClientId, Duration, Fid, FsError, HandleId, Instant, ObjectId, Xid};
use wire::lock::EnqueueRequest;
use wire::mdt::Cred;
use wire::ost::TraceRequest;
use wire::{Class, Decode, Op, Reader, WireError};

use crate::mds::{Caller, Mds};
use crate::service::Outcome;

/// What one request waited for.
#[derive(Clone, Copy, Default)]
struct Waited {
    locked: Duration,
    holder: ClientId,
    committed: Duration,
}

/// How long an operation waited for locks, and for whose.
#[derive(Clone, Copy, Default)]
pub(crate) struct LockWait {
    pub took: Duration,
    /// [`ClientId`] 0: nobody's that is known.
    pub holder: ClientId,
}

impl LockWait {
    /// And this one.
    pub fn add(&mut self, took: Duration, holder: Option<ClientId>) {
        self.took += took;
        if self.holder == ClientId(0) {
            self.holder = holder.unwrap_or_default();
        }
    }
}

/// The trace of a metadata target.
pub(crate) struct Traced {
    ring: RefCell<Ring>,
    bytes: Cell<u64>,
    waited: RefCell<BTreeMap<(ClientId, Xid), Waited>>,
    flocks: RefCell<Waits>,
}

impl Traced {
    pub fn new(bytes: u64) -> Traced {
        Traced {
            ring: RefCell::new(Ring::new(bytes)),
            bytes: Cell::new(bytes),
            waited: RefCell::default(),
            flocks: RefCell::default(),
        }
    }

    /// A request waited for locks.
    pub fn locked(&self, caller: Caller, wait: LockWait) {
        self.note(caller, |w| {
            w.locked += wait.took;
            if w.holder == ClientId(0) {
                w.holder = wait.holder;
            }
        });
    }
    /// A request waited for a commit.
    pub fn committed(&self, caller: Caller, took: Duration) {
        self.note(caller, |w| w.committed += took);
    }
    fn note(&self, caller: Caller, add: impl FnOnce(&mut Waited)) {
        if let Some((_, xid)) = caller.slot {
            add(self.waited.borrow_mut().entry((caller.client, xid)).or_default());
        }
    }
    fn take(&self, client: ClientId, xid: Xid) -> Waited {
        let mut waited = self.waited.borrow_mut();
        if waited.is_empty() { Waited::default() } else { waited.remove(&(client, xid)).unwrap_or_default() }
    }

    fn keep(&self, record: Record) {
        let mut ring = self.ring.borrow_mut();
        let number = ring.total();
        ring.push(Record { number, ..record });
    }

    /// A client's request for a flock waits from now on, for `holder`.
    pub fn flock_waits(&self, caller: Caller, q: &EnqueueRequest, holder: Option<ClientId>, at: Instant) {
        let xid = caller.slot.map_or(Xid(0), |(_, xid)| xid);
        let came = Came { xid, at, holder: holder.unwrap_or_default(), ..Came::default() };
        let blank = Record::unscheduled(Op::LockEnqueue, &came, at);
        let record = Record { client: caller.client, object: ObjectId(q.lock.fid), ..blank };
        self.flocks.borrow_mut().begin(q.cookie, record);
    }
    /// It waits no more.
    pub fn flock_ended(&self, client: ClientId, cookie: u64, errno: u16, now: Instant) {
        let ended = self.flocks.borrow_mut().end(client, cookie, errno, now);
        ended.into_iter().for_each(|record| self.keep(record));
    }
    /// What it waited for it will not get.
    pub fn client_gone(&self, client: ClientId, now: Instant) {
        let gone = self.flocks.borrow_mut().withdrawn(client, now, |_| false);
        gone.into_iter().for_each(|record| self.keep(record));
    }
    /// One wait was withdrawn.
    pub fn flock_withdrawn(&self, client: ClientId, cookie: u64, now: Instant) {
        let gone = self.flocks.borrow_mut().withdrawn(client, now, |other| other != cookie);
        gone.into_iter().for_each(|record| self.keep(record));
    }

    /// The parameter `trace`.
    pub fn text(&self) -> String {
        self.ring.borrow().text()
    }
    /// The parameter `trace_bytes`.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }
    /// Sets how much memory it takes.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_bytes(&self, text: &str) -> Result<(), String> {
        self.bytes.set(self.ring.borrow_mut().set_bytes(text)?);
        Ok(())
    }
}

impl Mds {
    /// Keeps what became of a request.
    pub(crate) fn trace(&self, request: &Request, now: Instant, result: &Result<Outcome, FsError>) {
        let (client, op, xid) = (request.client(), request.header.op, request.header.xid);
        let waited = self.traced.take(client, xid);
        if !op.is(Class::TRACED) || !self.traced.ring.borrow().is_on() {
            return;
        }
        let came = Came { xid, at: request.received(), locked: waited.locked, holder: waited.holder };
        let (owner, asked) = subject(op, &request.body).unwrap_or_default();
        let found = result.as_ref().ok().and_then(|o| answered(op, &o.body).ok()).filter(|fid| *fid != Fid::default());
        let blank = Record::unscheduled(op, &came, now);
        let all = op == Op::MdtSync;
        self.traced.keep(Record {
            client,
            object: ObjectId(found.unwrap_or(asked)),
            uid: owner.uid,
            job: JobId(owner.job),
            committed_us: if all { micros(blank.response()) } else { micros(waited.committed) },
            errno: result.as_ref().err().map_or(0, |e| e.errno() as u16),
            ..blank
        });
    }

    /// The answer to `OstTrace`.
    pub(crate) fn tell_trace(&self, body: &[u8]) -> Result<Outcome, FsError> {
        let ask: TraceRequest = wire::decode(body)?;
        let (now, wall) = (self.rt.now().0, self.rt.wall().0);
        let settings = format!("target={}\nsource=mdt\nclock_ns={now}\nwall_ns={wall}\n", self.target);
        let reply = trace::told::answer(&self.traced.ring.borrow(), &ask, &settings)?;
        Ok(Outcome::plain(&reply))
    }
}

/// Who asks, as far as that is known, and about which inode: of a name, its directory.
fn subject(op: Op, body: &[u8]) -> Result<(Cred, Fid), WireError> {
    let mut part = Reader::new(body).part()?;
    let caller = if op.is(Class::CALLER) { Cred::get(&mut part)? } else { Cred::default() };
    match op {
        Op::MdtSettled => return Ok(Default::default()),
        Op::LockEnqueue => part = part.part()?,
        Op::MdtClose => {
            // The first of several.
            u32::get(&mut part)?;
            part = part.part()?;
            HandleId::get(&mut part)?;
        }
        _ => {}
    }
    Ok((caller, Fid::get(&mut part)?))
}

/// The inode that an answer about a name tells.
fn answered(op: Op, body: &[u8]) -> Result<Fid, WireError> {
    let mut part = Reader::new(body).part()?;
    match op {
        Op::MdtLookup | Op::MdtCreate | Op::MdtUnlink | Op::MdtRename | Op::MdtLink => {}
        Op::MdtOpen => part = part.part()?,
        _ => return Ok(Fid::default()),
    }
    Fid::get(&mut part.part()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::lock::LockSpec;
    use wire::mdt::{Attr, Close, CloseRequest, EntryReply, LookupRequest, OpenReply};

    #[test]
    fn requests_tell_whose_they_are_and_about_which_inode() {
        let cred = Cred { uid: 7, job: 9, groups: [1, 2].into(), ..Cred::default() };
        let fid = Fid::new(0x2_0000_0401, 5);
        let body = wire::encode(&LookupRequest { cred: cred.clone(), parent: fid, ..LookupRequest::default() });
        assert_eq!(subject(Op::MdtLookup, &body), Ok((cred, fid)));
        let close = Close { fid, handle: HandleId(4), ..Close::default() };
        let body = wire::encode(&CloseRequest { closes: vec![close, Close::default()] });
        assert_eq!(subject(Op::MdtClose, &body).map(|(_, f)| f), Ok(fid));
        let spec = LockSpec { fid, ..LockSpec::default() };
        let body = wire::encode(&EnqueueRequest { lock: spec, ..EnqueueRequest::default() });
        assert_eq!(subject(Op::LockEnqueue, &body).map(|(_, f)| f), Ok(fid));
        assert!(subject(Op::MdtLookup, &[]).is_err() && subject(Op::MdtClose, &[9; 5]).is_err());
        let entry = EntryReply { attr: Attr { fid, ..Attr::default() }, ..EntryReply::default() };
        assert_eq!(answered(Op::MdtCreate, &wire::encode(&entry)), Ok(fid));
        let open = OpenReply { entry, ..OpenReply::default() };
        assert_eq!(answered(Op::MdtOpen, &wire::encode(&open)), Ok(fid));
        assert_eq!(answered(Op::MdtReaddir, &wire::encode(&open)), Ok(Fid::default()));
    }
}
