//! The MDS as a client of its OSTs: objects made ahead, orphans cleaned, objects of removed files destroyed.
//!
//! One task per OST. When a session opens, the OST is told the last object in use and removes what lies behind it; then
//! objects are made ready ahead of creates. Objects of removed files are destroyed only after the removal is on stable
//! storage ([`crate::owed`]).
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use frames::Bulk;
use layout::StripeObject;
use ptlrpc::{CallOptions, Callbacks, Import, ImportConfig, ImportState, SessionKey};
use rt::sync::Event;
use rt::{LocalFuture, Nid};
use types::{Duration, FsError, Instant, ObjectId, OstIndex, Transno};
use wire::Op;
use wire::connect::{AuthReply, OstEntry, RefusedOst};
use wire::ost::{AskCutCallback, AskCutReply, PrecreateReply, PrecreateRequest, StatfsReply};

use crate::aside::Aside;
use crate::keys;
use crate::mds::Mds;
use crate::owed::{Owed, forgotten};
use crate::pools::{Pool, READY_MAX, READY_MIN};
use crate::record::{PrecreateRow, decode_row};
use crate::store::Change;

/// How often free space is asked for.
const STATFS_INTERVAL: Duration = Duration::from_secs(10);
/// How long destroyed objects stay in the log at least before the OST is asked to commit their destruction: by then its
/// own commits have done so.
const FORGET_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a request to an OST failed.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Pause after an OST refused what it is owed.
const PAY_PAUSE: Duration = Duration::from_secs(1);
/// Pause after an OST made no objects: its disk may be full, and what it is owed frees space.
const FILL_PAUSE: Duration = Duration::from_secs(1);
/// How long an OST that is about to be replaced has to say that it is well.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// An OST that answers ESTALE so often in a row refuses this server; once may be an answer to an earlier session.
const REFUSALS: u32 = 4;
/// What is told of it then.
const REFUSED: &str = "it makes no objects for this metadata server, for it has heard of a later start of one, or its store is an older copy: its server's log says which. If no other metadata server runs, start the OST's server anew";

/// Requests to one OST.
pub trait OstPort {
    /// Sends a request and waits for its answer's body.
    fn call(&self, op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>>;
    /// Whether there is a session now.
    fn is_in_service(&self) -> bool {
        true
    }
    /// What the OST has on stable storage, as it last said; 0: nothing.
    fn last_committed(&self) -> Transno {
        Transno(0)
    }
    /// Ends the session.
    fn close(&self);
}

/// One OST as the MDS deals with it.
pub struct OstLink {
    /// Which.
    pub ost: OstIndex,
    /// Where, as the cluster map has it.
    pub entry: OstEntry,
    port: RefCell<Option<Rc<dyn OstPort>>>,
    /// Mark of the opening of its store, as the last session says; 0: it has none.
    pub(crate) opening: Cell<u64>,
    /// Sessions opened so far; each one begins with orphan clean-up.
    pub(crate) sessions: Cell<u64>,
    pub(crate) kick: Event,
    pub(crate) owed: RefCell<VecDeque<Owed>>,
    /// Asked for in this session, perhaps not yet on the OST's stable storage.
    pub(crate) paid: RefCell<Vec<Owed>>,
    /// What it refuses.
    pub(crate) aside: Aside,
    closed: Cell<bool>,
    /// How often in a row it has refused to deal with this server.
    refusals: Cell<u32>,
}

impl OstLink {
    /// How it is reached; `None`: it cannot be.
    pub(crate) fn port(&self) -> Option<Rc<dyn OstPort>> {
        self.port.borrow().clone()
    }
    /// Nobody deals with it any more.
    pub(crate) fn closed(&self) -> bool {
        self.closed.get()
    }
    /// A session was opened: objects have to be brought in step first.
    pub fn on_session(&self) {
        self.sessions.set(self.sessions.get() + 1);
        self.kick.notify();
    }
    fn is_in_service(&self) -> bool {
        self.port.borrow().as_ref().is_some_and(|p| p.is_in_service())
    }
}

/// All OSTs of the cluster map.
#[derive(Default)]
pub struct Osts {
    links: RefCell<BTreeMap<OstIndex, Rc<OstLink>>>,
    /// Objects of OSTs that are not in the map (yet).
    pub(crate) homeless: RefCell<BTreeMap<OstIndex, VecDeque<Owed>>>,
    connector: Option<Connector>,
}

/// Makes the port of an OST; tests bring their own. It must call [`OstLink::on_session`] for every session.
pub type Connector = Rc<dyn Fn(Rc<OstLink>) -> Rc<dyn OstPort>>;

impl Osts {
    /// None yet; `connector` replaces how they are reached.
    pub(crate) fn new(connector: Option<Connector>) -> Osts {
        Osts { connector, ..Osts::default() }
    }
    /// One of them.
    pub(crate) fn link(&self, ost: OstIndex) -> Option<Rc<OstLink>> {
        self.links.borrow().get(&ost).cloned()
    }
    /// The OSTs.
    #[must_use]
    pub fn all(&self) -> Vec<Rc<OstLink>> {
        self.links.borrow().values().cloned().collect()
    }
    pub(crate) fn stop(&self) {
        for link in self.all() {
            close(&link);
        }
    }
}

fn close(link: &OstLink) {
    link.closed.set(true);
    link.kick.notify();
    if let Some(port) = link.port.borrow_mut().take() {
        port.close();
    }
}

/// The store's row of a pool.
pub(crate) fn precreate_row(pool: &Pool) -> Vec<u8> {
    wire::encode(&pool.row())
}

/// Reads the allocation states.
pub(crate) fn decode_precreate(key: &[u8], value: &[u8]) -> Result<(OstIndex, PrecreateRow), FsError> {
    let ost = key.get(1..3).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
    Ok((OstIndex(ost), decode_row(key, value)?))
}

impl Mds {
    /// Whether an OST is dealt with at its address and with its store.
    pub(crate) fn is_tended(&self, entry: &OstEntry) -> bool {
        let links = self.osts.links.borrow();
        links.get(&entry.ost).is_some_and(|link| link.entry.nid == entry.nid && link.entry.uuid == entry.uuid)
    }
    /// Begins (or, at a new address, begins again) to deal with an OST.
    pub(crate) fn tend_ost(self: &Rc<Self>, entry: &OstEntry) {
        let old = self.osts.links.borrow_mut().remove(&entry.ost);
        let link = Rc::new(OstLink {
            ost: entry.ost,
            entry: entry.clone(),
            port: RefCell::new(None),
            opening: Cell::new(0),
            sessions: Cell::new(0),
            kick: Event::new(),
            owed: RefCell::default(),
            paid: RefCell::default(),
            aside: Aside::default(),
            closed: Cell::new(false),
            refusals: Cell::new(0),
        });
        if let Some(old) = old {
            close(&old);
            old.take_up_aside();
            old.redo_owed();
            link.owed.borrow_mut().extend(old.owed.borrow_mut().drain(..));
        }
        if let Some(waiting) = self.osts.homeless.borrow_mut().remove(&entry.ost) {
            link.owed.borrow_mut().extend(waiting);
        }
        self.osts.links.borrow_mut().insert(entry.ost, link.clone());
        {
            let mut pools = self.pools.borrow_mut();
            if pools.get(entry.ost).is_none() {
                // A store that knows nothing of an OST removes nothing there.
                pools.add(entry.ost, entry.active, &PrecreateRow { newer: true, ..PrecreateRow::default() });
            }
        }
        let (active, closed) = (self.map.is_active(entry.ost), self.map.is_closed(entry.ost));
        self.pools.borrow_mut().update(entry.ost, |p| (p.active, p.closed, p.in_sync) = (active, closed, false));
        let port = match &self.osts.connector {
            Some(c) => Some(c(link.clone())),
            None => self.import_port(&link),
        };
        *link.port.borrow_mut() = port;
        let me = self.clone();
        self.rt.spawn(async move { me.tend(link).await });
    }

    /// An OST has left the cluster: nobody deals with it any more, and what was to be destroyed there is the log's no longer. The
    /// changes of the log.
    pub(crate) fn untend_ost(&self, ost: OstIndex) -> Vec<Change> {
        self.pools.borrow_mut().remove(ost);
        let mut left: Vec<Owed> = Vec::new();
        left.extend(self.osts.homeless.borrow_mut().remove(&ost).unwrap_or_default());
        if let Some(link) = self.osts.links.borrow_mut().remove(&ost) {
            close(&link);
            left.extend(link.paid.take());
            left.extend(link.aside.take());
            left.extend(link.owed.borrow_mut().drain(..));
        }
        let mut changes = forgotten(left);
        changes.extend(self.quotas.forget_ost(ost, self.clock()));
        changes
    }

    fn import_port(self: &Rc<Self>, link: &Rc<OstLink>) -> Option<Rc<dyn OstPort>> {
        let nid = match Nid::parse(&String::from_utf8_lossy(&link.entry.nid)) {
            Ok(nid) => nid,
            Err(e) => {
                tracing::error!(ost = %link.ost, "the cluster map is wrong: {e}");
                return None;
            }
        };
        let target = String::from_utf8_lossy(&link.entry.target).into_owned();
        // A fresh identity each time: an OST must not take our first requests for repetitions of an earlier life's.
        let sessions = SessionKey::new(self.rt.secret_bytes());
        let (client, of_target) = (sessions.client_id(), sessions.at(&target));
        let key = self.config.key.clone();
        let config = ImportConfig {
            nid,
            target,
            client,
            key,
            recoverable: false,
            ping_interval: Duration::from_secs(5),
            place: 0,
        };
        let events: Rc<LinkEvents> = Rc::new(LinkEvents { link: link.clone(), mds: Rc::downgrade(self) });
        let weak: Weak<LinkEvents> = Rc::downgrade(&events);
        let import = Import::with_key(self.rt.clone(), config, weak, of_target);
        import.prove_id(&sessions);
        import.expect_store(link.entry.uuid);
        Some(Rc::new(ImportPort { import, _events: events }))
    }

    /// An OST that was away answers: clients use it again.
    fn note_back(self: &Rc<Self>, ost: OstIndex) {
        // A copy that was refused while this one was away is of no interest any more.
        let refused = self.map.pardon(ost);
        if self.map.set_away(ost, false) || refused {
            tracing::warn!(%ost, "it is back");
            self.tell_map(ost);
        }
    }

    /// An OST may refuse to deal with this server as one that is not the cluster's (any more). No file can be made there then, and nothing
    /// else would tell why. Clients are served by it as before.
    fn note_refusal(self: &Rc<Self>, link: &OstLink, answer: Result<(), FsError>) {
        let so_far = if answer == Err(FsError::Stale) { link.refusals.get() + 1 } else { 0 };
        link.refusals.set(so_far);
        if so_far < REFUSALS || link.closed() {
            return;
        }
        let why = format!("{REFUSED} (this one is of start {})", self.boot);
        let refused = RefusedOst { ost: link.ost, why: why.as_str().into(), boot: self.boot, mark: 0 };
        if self.map.refuse(refused) {
            tracing::error!(ost = %link.ost, "{why}");
            self.tell_clients();
        }
    }

    /// Wakes the tasks of all OSTs.
    pub(crate) fn kick_osts(&self) {
        for link in self.osts.links.borrow().values() {
            link.kick.notify();
        }
    }
    /// Asks an OST how it is, for a moment: that its server has just died, or its store has failed, is known afterwards.
    pub(crate) async fn look_at_ost(&self, ost: OstIndex) {
        let link = self.osts.links.borrow().get(&ost).cloned();
        let Some(link) = link else { return };
        let port = link.port.borrow().clone();
        if let Some(port) = port.filter(|p| p.is_in_service()) {
            // Whatever it says, or does not.
            let _ = self.rt.timeout(LOOK_WITHIN, self.ask_space(&link, &*port)).await;
        }
    }
    /// Whether an OST has a session with this server.
    pub(crate) fn is_in_service(&self, ost: OstIndex) -> bool {
        self.osts.links.borrow().get(&ost).is_some_and(|l| l.is_in_service())
    }
    /// Whether an OST has a session with this server, with a store that was let in.
    pub(crate) fn is_served_well(&self, ost: OstIndex) -> bool {
        let link = self.osts.link(ost).filter(|l| l.is_in_service());
        link.is_some_and(|l| self.map.is_admitted(ost, l.opening.get()))
    }
    /// Whether this OST says itself, in a session that goes on, that no file can be made there. One that is away may be a
    /// better one when it comes.
    pub(crate) fn takes_no_files(&self, ost: OstIndex) -> bool {
        let refuses = self.pools.borrow().get(ost).is_some_and(|p| p.in_sync && !p.can_serve());
        refuses && self.osts.links.borrow().get(&ost).is_some_and(|l| l.is_in_service())
    }
    /// Whether this OST (one that is not known stands for any) is in use and has no session: its server is dead or on its way up.
    pub(crate) fn is_away(&self, ost: OstIndex) -> bool {
        let pools = self.pools.borrow();
        let used = |o: OstIndex| pools.get(o).is_some_and(|p| p.active);
        let any = pools.get(ost).is_none();
        self.osts.all().iter().any(|l| (any || l.ost == ost) && used(l.ost) && !l.is_in_service())
    }
    /// Wakes those whose pools these objects came from, where little is left.
    pub(crate) fn fill_low_pools(&self, taken: &[StripeObject]) {
        if taken.is_empty() {
            return;
        }
        let pools = self.pools.borrow();
        for o in taken {
            if pools.get(o.ost).is_some_and(Pool::is_low)
                && let Some(link) = self.osts.links.borrow().get(&o.ost)
            {
                link.kick.notify();
            }
        }
    }
    /// Wakes the tasks that may destroy more after each commit.
    pub(crate) async fn watch_commits(self: Rc<Self>) {
        while !self.stopped.get() {
            self.store.commit_ended().await;
            for link in self.osts.all() {
                if link.owed_waiting() > 0 {
                    link.kick.notify();
                }
            }
        }
    }

    async fn tend(self: Rc<Self>, link: Rc<OstLink>) {
        let (mut in_step_with, mut filled_of, mut quotas_of) = (0, 0, 0);
        let (mut asked_space, mut forgot) = (Instant::ZERO, Instant::ZERO);
        let (mut fill_from, mut pay_from) = (Instant::ZERO, Instant::ZERO);
        while !self.stopped.get() && !link.closed.get() {
            let kick = link.kick.wait();
            let session = link.sessions.get();
            let port = link.port.borrow().clone();
            // What may be an older copy is not dealt with before it is let in.
            let admitted = self.map.is_admitted(link.ost, link.opening.get());
            let Some(port) = port.filter(|_| session > 0 && !self.recovering.get() && admitted) else {
                kick.await;
                continue;
            };
            link.try_aside_again(self.rt.now());
            let is_low = self.pools.borrow().get(link.ost).is_some_and(Pool::is_low);
            let step = if in_step_with != session {
                match self.get_in_step(&link, &*port).await {
                    Ok(()) => {
                        (in_step_with, fill_from) = (session, Instant::ZERO);
                        self.note_back(link.ost);
                        self.tell_ost_settings(&*port).await
                    }
                    failed => {
                        self.note_refusal(&link, failed);
                        failed
                    }
                }
            } else if (is_low || filled_of != session) && self.rt.now() >= fill_from {
                let ran_low = filled_of == session;
                filled_of = session;
                let filled = self.fill(&link, &*port, ran_low).await;
                if filled.is_err() {
                    // So long the rest has its turn.
                    fill_from = self.rt.now() + FILL_PAUSE;
                }
                filled
            } else if quotas_of != session {
                let heard = self.hear_quotas(&link, &*port).await;
                quotas_of = if heard.is_ok() { session } else { quotas_of };
                heard
            } else if self.has_quotas_to_tell(link.ost) {
                self.tell_quotas(link.ost, &*port).await
            } else if self.has_owed(&link) && self.rt.now() >= pay_from {
                let paid = self.pay_some(&link, &*port, session).await;
                if paid.is_err() {
                    // So long the rest has its turn.
                    pay_from = self.rt.now() + PAY_PAUSE;
                }
                paid
            } else if !link.paid.borrow().is_empty() && self.rt.now().since(forgot) >= FORGET_INTERVAL {
                forgot = self.rt.now();
                self.forget_paid(&link, &*port, session).await
            } else if self.rt.now().since(asked_space) >= STATFS_INTERVAL {
                asked_space = self.rt.now();
                match self.ask_space(&link, &*port).await {
                    Ok(()) => self.poll_quotas(link.ost, &*port).await,
                    failed => failed,
                }
            } else {
                let is_idle = link.paid.borrow().is_empty() && !self.has_owed(&link) && !is_low;
                let idle = if is_idle { STATFS_INTERVAL } else { FORGET_INTERVAL };
                self.rt.timeout(idle, kick).await;
                continue;
            };
            if let Err(e) = step {
                tracing::debug!(ost = %link.ost, "request failed: {e}");
                self.rt.sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// The first thing in a session: the OST hears what is revoked and removes orphans, and is used from then on. It makes no objects
    /// in that, for which its disk may have no space: all else that is dealt with in a session would have to wait for them.
    async fn get_in_step(self: &Rc<Self>, link: &OstLink, port: &dyn OstPort) -> Result<(), FsError> {
        self.pools.borrow_mut().update(link.ost, |p| p.in_sync = false);
        link.take_up_aside();
        link.redo_owed();
        self.tell_ost_revoked(port).await?;
        if self.pools.borrow().get(link.ost).is_some_and(|p| p.newer) {
            self.keep_newer(link, port).await?;
        }
        if !types::planted!("removed-unconfirmed") {
            // What a server that was replaced does not know of is not to be removed.
            self.confirm_store().await?;
        }
        let Some(reply) = self.ask_objects(link, port, 0, true).await? else { return Ok(()) };
        // The ceiling gets onto stable storage when objects are made, before any is given out.
        self.pools.borrow_mut().update(link.ost, |p| {
            // What lay between is gone for good.
            p.used = p.used.max(reply.first.saturating_sub(1));
            (p.last, p.ceiling) = (p.used, p.ceiling.max(reply.last));
            p.in_sync = true;
            note_space(p, &reply.statfs);
        });
        // Whoever waits for one that says that it takes no files looks for another.
        self.pool_filled.notify();
        Ok(())
    }

    /// Asks for objects behind the last used one; `None`: the OST has left.
    async fn ask_objects(
        &self,
        link: &OstLink,
        port: &dyn OstPort,
        count: u32,
        orphans: bool,
    ) -> Result<Option<PrecreateReply>, FsError> {
        let Some(last_used) = self.pools.borrow().get(link.ost).map(|p| p.used) else { return Ok(None) };
        let seq = ObjectId::seq_of(link.ost);
        // A store that was put back from a backup may have given out fewer than it says.
        let exact = self.pools.borrow().get(link.ost).is_some_and(|p| !p.newer);
        let lost = if exact { self.map.map.borrow().lost_through(link.ost) } else { u32::MAX };
        let request = PrecreateRequest { seq, last_used, count, orphans, epoch: self.boot, lost };
        let body = port.call(Op::OstPrecreate, wire::encode(&request)).await?;
        self.counts(link)?;
        Ok(Some(wire::decode(&body).map_err(FsError::from)?))
    }

    /// Whether what an OST answered just now counts: not before its store was let in. Its registration may be on its way still, with what
    /// the store had when it was opened, and would be taken for an older copy's beside what it has had since.
    fn counts(&self, link: &OstLink) -> Result<(), FsError> {
        let counts = self.map.is_admitted(link.ost, link.opening.get()) || types::planted!("unadmitted-believed");
        if counts { Ok(()) } else { Err(FsError::WouldBlock) }
    }

    /// Brings objects into being, behind the last used one; more next time if `ran_low`.
    async fn fill(self: &Rc<Self>, link: &OstLink, port: &dyn OstPort, ran_low: bool) -> Result<(), FsError> {
        let Some((used, want)) = self.pools.borrow().get(link.ost).map(|p| (p.used, p.want)) else { return Ok(()) };
        let Some(reply) = self.ask_objects(link, port, want, false).await? else { return Ok(()) };
        let row = self.pools.borrow_mut().update(link.ost, |p| {
            // What lay between is gone for good.
            p.used = p.used.max(reply.first.saturating_sub(1));
            p.ceiling = p.ceiling.max(reply.last);
            p.committed = p.committed.max(port.last_committed());
            precreate_row(p)
        });
        // The ceiling is on stable storage before anything below it is given out.
        self.store.apply([(keys::precreate(link.ost), row)], 0, 0);
        self.store.sync().await?;
        self.pools.borrow_mut().update(link.ost, |p| {
            p.last = reply.last.max(p.used);
            p.in_sync = true;
            note_space(p, &reply.statfs);
            if p.ready() == 0 {
                p.state |= 1 << 2;
            }
            let grow = ran_low && want < READY_MAX;
            p.want = if grow { want * 2 } else { p.want.max(READY_MIN) };
        });
        self.pool_filled.notify();
        if reply.last <= used.max(reply.first.saturating_sub(1)) {
            return Err(FsError::NoSpace);
        }
        Ok(())
    }

    /// The OST may have objects that this store does not know, for it was put back from a copy: new ones get ids behind
    /// all that exist, and nothing is removed.
    async fn keep_newer(self: &Rc<Self>, link: &OstLink, port: &dyn OstPort) -> Result<(), FsError> {
        let Some(used) = self.pools.borrow().get(link.ost).map(|p| p.used) else { return Ok(()) };
        let Some(reply) = self.ask_objects(link, port, 0, false).await? else { return Ok(()) };
        if reply.last > used {
            tracing::warn!(ost = %link.ost, used, last = reply.last,
                "it has objects that are newer than this metadata store: they stay, 'stria fsck --repair' finds their data a place");
        }
        let row = self.pools.borrow_mut().update(link.ost, |p| {
            p.used = p.used.max(reply.last);
            (p.last, p.ceiling) = (p.used, p.ceiling.max(p.used));
            p.newer = false;
            precreate_row(p)
        });
        // Only when this is on stable storage may anything behind it be removed.
        self.store.apply([(keys::precreate(link.ost), row)], 0, 0);
        self.store.sync().await
    }

    async fn ask_space(&self, link: &OstLink, port: &dyn OstPort) -> Result<(), FsError> {
        let body = port.call(Op::OstStatfs, Vec::new()).await?;
        self.counts(link)?;
        let reply: StatfsReply = wire::decode(&body).map_err(FsError::from)?;
        let committed = port.last_committed();
        let row = self.pools.borrow_mut().update(link.ost, |p| {
            let is_news = p.committed < committed;
            p.committed = p.committed.max(committed);
            is_news.then(|| precreate_row(p))
        });
        if let Some(row) = row.flatten() {
            // An older copy of its store is known by that.
            self.store.apply([(keys::precreate(link.ost), Some(row))], 0, 0);
        }
        self.pools.borrow_mut().update(link.ost, |p| {
            note_space(p, &reply);
            // Hardly used since last time: keep less ready.
            if p.ready() + 8 >= p.want && p.want > READY_MIN {
                p.want /= 2;
            }
        });
        Ok(())
    }

    /// An OST says that its store failed, is full, or has space again.
    fn told_state(&self, ost: OstIndex, body: &[u8]) -> Result<(), FsError> {
        let reply: StatfsReply = wire::decode(body).map_err(FsError::from)?;
        self.pools.borrow_mut().update(ost, |p| note_space(p, &reply));
        // Whoever waits for objects of that one looks for another.
        self.pool_filled.notify();
        Ok(())
    }
}

fn note_space(p: &mut Pool, s: &StatfsReply) {
    (p.total_bytes, p.free_bytes, p.files_free, p.state) = (s.total, s.available, s.files_free, s.state);
}

struct LinkEvents {
    link: Rc<OstLink>,
    mds: Weak<Mds>,
}
impl Callbacks for LinkEvents {
    fn on_callback(self: Rc<Self>, op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        let mds = self.mds.upgrade();
        if let (Op::OstStatfs, Some(mds)) = (op, &mds) {
            return Box::pin(std::future::ready(mds.told_state(self.link.ost, &body).map(|()| Vec::new())));
        }
        let ost = self.link.ost;
        Box::pin(async move {
            let mds = mds.filter(|_| matches!(op, Op::OstAskCut | Op::OstAskQuota)).ok_or(FsError::NotSupported)?;
            if op == Op::OstAskQuota {
                return mds.ost_asks_quota(ost, &body).await;
            }
            let q: AskCutCallback = wire::decode(&body).map_err(FsError::from)?;
            Ok(wire::encode(&AskCutReply { decided: mds.ask_cut(&q).await? }))
        })
    }
    fn on_connected(&self, session: &AuthReply) {
        self.link.opening.set(session.opening);
        self.link.on_session();
    }
}

struct ImportPort {
    import: Rc<Import>,
    _events: Rc<LinkEvents>,
}
impl OstPort for ImportPort {
    fn call(&self, op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        let import = self.import.clone();
        Box::pin(async move {
            // What a server that was replaced asked for goes nowhere once its session has ended.
            let once = op == Op::OstPrecreate && !types::planted!("precreate-sent-again");
            let options = CallOptions { no_replay: true, once, ..CallOptions::default() };
            import.call(op, body, Bulk::new(), options).await.map(|r| r.body)
        })
    }
    fn is_in_service(&self) -> bool {
        self.import.state() == ImportState::Full
    }
    fn last_committed(&self) -> Transno {
        self.import.last_committed()
    }
    fn close(&self) {
        self.import.abandon();
    }
}
