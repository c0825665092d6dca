//! What the MDS owes its OSTs: objects of removed files are to be destroyed, and objects of files that got another owner are to be
//! told so.
//!
//! Each is a row of a log, written with the change from which it follows, carried out when that is on stable storage, and forgotten
//! when the OST has it on stable storage: nothing is lost, nothing comes too early, and what an OST hears about one object comes in
//! order. An OST that is away is told when it is back.
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use types::{FsError, ObjectId, OstIndex};
use wire::Op;
use wire::ost::{DestroyRequest, SyncRequest};
use wire::quota::{OwnRequest, Ownership};

use crate::keys;
use crate::kv::{Key, KvError, show_key};
use crate::mds::Mds;
use crate::osts::{OstLink, OstPort, Osts};
use crate::pools::Pool;
use crate::record::{DestroyObject, DestroyRow, Inode, InodeFlags, OwnRow, decode_row};
use crate::store::Change;
use crate::tx::{Done, Tx};

/// Objects in one request.
pub(crate) const BATCH_MAX: usize = 512;

/// What is to become of an object.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum What {
    Destroy(ObjectId),
    Own(Ownership),
}

/// What is owed to an OST.
pub(crate) struct Due {
    pub ost: OstIndex,
    pub what: What,
}

/// Rows of the log and what they hold.
pub(crate) type Rows = Vec<(Key, Vec<Due>)>;

/// A row of the log, shared by its objects.
struct LogRow {
    key: Key,
    left: Cell<usize>,
}

/// One object of a row.
pub(crate) struct Owed {
    /// Not before this many operations are on stable storage.
    after: u64,
    what: What,
    row: Rc<LogRow>,
}

impl Owed {
    /// Which object it is about.
    pub fn object(&self) -> ObjectId {
        match &self.what {
            What::Destroy(object) => *object,
            What::Own(ownership) => ownership.object,
        }
    }
}

/// The objects of a row of the destroy log.
pub(crate) fn destroys(objects: &[DestroyObject]) -> Vec<Due> {
    objects.iter().map(|o| Due { ost: o.ost, what: What::Destroy(o.object) }).collect()
}

fn owns(row: &OwnRow) -> Vec<Due> {
    let OwnRow { objects, uid, gid, project } = row;
    let own = |object| Ownership { object, uid: *uid, gid: *gid, project: *project, unless_owned: false };
    objects.iter().map(|o| Due { ost: o.ost, what: What::Own(own(o.object)) }).collect()
}

/// What is not the log's business any more; rows of which no object is left go.
pub(crate) fn forgotten(done: Vec<Owed>) -> Vec<Change> {
    let mut rows = Vec::new();
    for d in done {
        d.row.left.set(d.row.left.get() - 1);
        if d.row.left.get() == 0 {
            rows.push((d.row.key.clone(), None));
        }
    }
    rows
}

impl OstLink {
    /// What may not have reached the OST's stable storage is done again.
    pub(crate) fn redo_owed(&self) {
        let mut queue = self.owed.borrow_mut();
        for d in self.paid.take().into_iter().rev() {
            queue.push_front(d);
        }
    }
    /// Objects waiting to be destroyed or told.
    #[must_use]
    pub fn owed_waiting(&self) -> usize {
        self.owed.borrow().len()
    }
}

impl Osts {
    /// What follows from the change that was applied as operation `after`.
    pub(crate) fn owe(&self, after: u64, rows: Rows) {
        for (key, due) in rows {
            let row = Rc::new(LogRow { key, left: Cell::new(due.len()) });
            for Due { ost, what } in due {
                let owed = Owed { after, what, row: row.clone() };
                match self.link(ost) {
                    Some(link) => link.owed.borrow_mut().push_back(owed),
                    None => self.homeless.borrow_mut().entry(ost).or_default().push_back(owed),
                }
            }
        }
    }
}

impl Tx<'_> {
    /// Writes objects to the destroy log.
    pub(crate) fn destroy(&mut self, fid: types::Fid, objects: &[layout::StripeObject]) {
        let objects: Vec<_> = objects.iter().map(|o| DestroyObject { ost: o.ost, object: o.object }).collect();
        let key = keys::destroy(fid, self.transno);
        self.owed.push((key.clone(), destroys(&objects)));
        self.put(key, Some(wire::encode(&DestroyRow { objects })));
    }

    /// The objects of a file that got another owner are told.
    ///
    /// # Errors
    /// As [`Tx::read`]; the layout is damaged.
    pub(crate) fn own_objects(&mut self, before: &Inode, after: &Inode) -> Done<()> {
        let same = (before.uid, before.gid, before.project) == (after.uid, after.gid, after.project);
        if same || !after.has(InodeFlags::HAS_LAYOUT) || types::planted!("owner-not-told") {
            return Ok(());
        }
        let layout = self.layout_of(after)?;
        self.own(after, layout.objects());
        Ok(())
    }

    /// Objects are a file's from now on.
    pub(crate) fn own(&mut self, inode: &Inode, objects: &[layout::StripeObject]) {
        let objects: Vec<_> = objects.iter().map(|o| DestroyObject { ost: o.ost, object: o.object }).collect();
        let row = OwnRow { objects, uid: inode.uid, gid: inode.gid, project: inode.project };
        let key = keys::own(inode.fid, self.transno);
        self.owed.push((key.clone(), owns(&row)));
        self.put(key, Some(wire::encode(&row)));
    }
}

impl Mds {
    pub(crate) fn has_owed(&self, link: &OstLink) -> bool {
        link.owed.borrow().front().is_some_and(|d| d.after <= self.store.durable())
    }

    /// Carries out the first of what is owed, as far as it is of one kind.
    pub(crate) async fn pay_some(&self, link: &OstLink, port: &dyn OstPort, session: u64) -> Result<(), FsError> {
        let due = self.take_due(link);
        if due.is_empty() {
            return Ok(());
        }
        let (mut doomed, mut owned) = (DestroyRequest::default(), OwnRequest::default());
        for d in &due {
            match &d.what {
                What::Destroy(object) => doomed.objects.push(*object),
                What::Own(ownership) => owned.objects.push(ownership.clone()),
            }
        }
        let n = due.len();
        // Before it is asked: an OST that is found at another address meanwhile is asked there.
        link.paid.borrow_mut().extend(due);
        let answer = match owned.objects.is_empty() {
            true => port.call(Op::OstDestroy, wire::encode(&doomed)).await,
            false => port.call(Op::OstOwn, wire::encode(&owned)).await,
        };
        if link.closed() {
            return answer.map(drop);
        }
        // An OST whose store has failed refuses whatever it is asked.
        let failed = self.pools.borrow().get(link.ost).is_some_and(Pool::has_failed);
        match answer {
            Ok(_) if link.sessions.get() == session => link.aside.on_carried_out(),
            Err(e @ (FsError::Corrupt | FsError::Io)) if link.sessions.get() == session && !failed => {
                let mut paid = link.paid.borrow_mut();
                let first = paid.len().saturating_sub(n);
                let refused = paid.split_off(first);
                drop(paid);
                return if link.refused(refused, e, self.rt.now()) { Ok(()) } else { Err(e) };
            }
            answer => {
                link.redo_owed();
                return answer.map(drop);
            }
        }
        Ok(())
    }

    /// The first of what is owed and may be carried out, as far as it is of one kind.
    fn take_due(&self, link: &OstLink) -> Vec<Owed> {
        let durable = self.store.durable();
        let mut queue = link.owed.borrow_mut();
        while let Some(follows) = queue.pop_front_if(|d| link.aside.has(d.object())) {
            link.aside.put(follows, self.rt.now());
        }
        let destroys = queue.front().is_some_and(|d| matches!(d.what, What::Destroy(_)));
        let ready = |d: &&Owed| {
            let is_next = !link.aside.has(d.object()) && matches!(d.what, What::Destroy(_)) == destroys;
            is_next && d.after <= durable
        };
        let n = queue.iter().take(link.aside.batch_max()).take_while(ready).count();
        queue.drain(..n).collect()
    }

    /// The log forgets what the OST has done, once that is on stable storage there: an answer alone does not outlive a crash of the
    /// OST.
    pub(crate) async fn forget_paid(&self, link: &OstLink, port: &dyn OstPort, session: u64) -> Result<(), FsError> {
        port.call(Op::OstSync, wire::encode(&SyncRequest::default())).await?;
        if link.sessions.get() != session {
            link.redo_owed();
            return Ok(());
        }
        let done = forgotten(link.paid.take());
        if !done.is_empty() {
            self.store.apply(done, 0, 0);
        }
        Ok(())
    }

    /// Takes up the logs as the store has them. Rows that are damaged stay, and what they hold is not done: their objects are lost space until
    /// the store is checked.
    ///
    /// # Errors
    /// The store failed.
    pub(crate) async fn load_owed(&self) -> Result<(), KvError> {
        let destroys_of = |key: &Key, value: &[u8]| decode_row(key, value).map(|r: DestroyRow| destroys(&r.objects));
        self.load_log(keys::DESTROY, destroys_of).await?;
        self.load_log(keys::OWN, |key, value| decode_row(key, value).map(|r: OwnRow| owns(&r))).await
    }

    async fn load_log(&self, log: u8, read: impl Fn(&Key, &[u8]) -> Result<Vec<Due>, FsError>) -> Result<(), KvError> {
        let (mut from, to) = (keys::plain(&[log]), keys::end_of(&[log]));
        loop {
            let damaged = |why: &dyn fmt::Display| {
                tracing::error!(target = self.target, "what OSTs are owed: {why}: it is not done: run 'stria fsck'");
            };
            let (rows, next) = self.store.scan_past(&from, &to, 1024, |e| damaged(&e)).await?;
            for (key, value) in rows {
                let Ok(mut due) = read(&key, &value) else {
                    damaged(&format_args!("record {} cannot be read", show_key(&key)));
                    continue;
                };
                due.retain(|d| !self.map.is_removed(d.ost));
                if due.is_empty() {
                    self.store.apply([(key, None)], 0, 0);
                } else {
                    self.osts.owe(0, vec![(key, due)]);
                }
            }
            let Some(next) = next else { return Ok(()) };
            from = next;
        }
    }
}
