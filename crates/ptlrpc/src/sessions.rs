//! How sessions begin and end at a server: the handshake, whose session a connection continues, goodbyes and evictions.
//!
//! A client names two sessions when it connects: the one that it holds, and the one that is to begin if that is over. So an
//! answer that gets lost leaves no doubt: the client comes again with the same two, and the server sees by which of them it
//! knows the session whether the client has heard of it.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use frames::Bulk;
use rt::Nid;
use rt::sync::{Event, OneReceiver, oneshot};
use types::{ClientId, Duration, FsError, Instant, Origin};
use wire::connect::{AuthReply, AuthRequest, ConnectReply, ConnectRequest, GoneRequest, Role};
use wire::{Bytes, Op};

use crate::auth::{Binding, ClusterKey, PROOF_BYTES, SessionKey, id_proved_by, is_here, meant};
use crate::credential::{CLIENT_KEY, CLIENT_KEY_NAME, Limits, Validity};
use crate::export::{Export, Opener, Request};
use crate::seats::Seat;
use crate::server::{Server, Target, make_export};
use crate::stream::{Sink, Source};

/// What a connection says of its client.
struct Whose {
    recoverable: bool,
    /// The session that the client holds.
    held: Binding,
    /// The session that is to begin when that one is over.
    next: Binding,
    origin: Origin,
    /// The client lived after this: it answered a number that was drawn then.
    lived: Instant,
    /// What it has proved.
    opener: Opener,
    /// It has proved that the id is its own.
    owns: bool,
}

/// A connection whose ends have proved what they said.
struct Proved {
    target: Rc<Target>,
    /// As the client called it.
    name: String,
    ask: ConnectRequest,
    /// What the client has.
    key: ClusterKey,
    /// The message that awaits its answer.
    header: wire::Header,
    auth: AuthRequest,
    /// The client lived after this.
    lived: Instant,
}

/// Clients whose sessions are being opened or ended at their service: one at a time for each client, so that what is left
/// of a session never meets the next one.
#[derive(Default)]
pub(crate) struct Changing {
    /// Each with its change's number.
    clients: RefCell<BTreeMap<ClientId, u64>>,
    begun: Cell<u64>,
    done: Event,
}

/// The right to open or end a client's session; given up when dropped.
struct Change(Rc<Target>, ClientId);

impl Change {
    /// `None`: it is being opened or ended.
    fn begin(target: &Rc<Target>, client: ClientId) -> Option<Change> {
        let (mut clients, begun) = (target.changing.clients.borrow_mut(), &target.changing.begun);
        let Entry::Vacant(free) = clients.entry(client) else { return None };
        begun.set(begun.get() + 1);
        free.insert(begun.get());
        Some(Change(target.clone(), client))
    }
}

impl Changing {
    /// How many they are.
    pub(crate) fn under_way(&self) -> usize {
        self.clients.borrow().len()
    }
    async fn wait(&self, client: ClientId) {
        while self.clients.borrow().contains_key(&client) {
            let done = self.done.wait();
            done.await;
        }
    }
    /// The same, for what is under way now and not for what begins behind it.
    async fn wait_for_present(&self, client: ClientId) {
        let present = self.clients.borrow().get(&client).copied();
        while present.is_some() && self.clients.borrow().get(&client).copied() == present {
            let done = self.done.wait();
            done.await;
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let Change(target, client) = self;
        target.changing.clients.borrow_mut().remove(client);
        target.changing.done.notify();
    }
}

fn origin_of(ask: &ConnectRequest) -> Origin {
    Origin { machine: ask.machine, boot: ask.boot, host: ask.host, process: ask.process }
}

fn opener_of(role: Role, limits: Option<&Arc<Limits>>) -> Opener {
    match role {
        Role::Administrator => Opener::Administrator,
        Role::Client => Opener::Credential(limits.map_or(CLIENT_KEY, |l| l.said().id)),
    }
}

fn bad(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Server {
    pub(crate) async fn handshake(
        &self,
        here: &Nid,
        sink: &Rc<Sink>,
        source: &mut Source,
    ) -> io::Result<(Rc<Target>, Rc<Export>)> {
        let Proved { target, name, ask, key, header, auth, lived } = self.prove(here, sink, source).await?;
        let client = header.client;
        let refuse = |e: FsError, why: String| {
            sink.send(header.reply(Err(e)), Vec::new(), Bulk::new());
            Err(bad(why))
        };
        if let Err(e) = self.may_open(&target, ask.role, key.limits()) {
            return refuse(e, format!("{}: {e}", shown(key.limits())));
        }
        if !auth.id_proof.is_empty() && id_proved_by(&auth.id_proof) != client {
            return refuse(FsError::Exists, format!("the id {client} is another client's"));
        }
        let epoch = target.service.epoch();
        if auth.epoch > epoch && epoch != 0 || target.service.is_replaced() {
            // A client is not believed, its own store is.
            target.service.clone().look_whether_replaced();
            return refuse(
                FsError::Stale,
                format!("the peer has seen {name} in epoch {}, this is epoch {epoch}", auth.epoch),
            );
        }
        if target.service.is_unsure() {
            if let Some(export) = target.exports.borrow().get(&client) {
                export.last_heard.set(self.rt.now());
            }
            return refuse(
                FsError::Stale,
                format!("{name} does not know at present whether its store is another server's"),
            );
        }
        let whose = self.whose(&ask, &auth, lived, key.limits());
        let opened = match self.end_other_boots(&target, client, &whose) {
            Ok(()) => self.open_session(&target, client, whose).await,
            Err(e) => Err(e),
        };
        let (export, known) = match opened {
            Ok(session) => session,
            Err(FsError::Overloaded) => {
                let (who, seats) = (shown(key.limits()), self.seats.borrow().clone());
                return refuse(FsError::Overloaded, format!("{who} has as many sessions as it may have ({seats})"));
            }
            Err(e) => return refuse(e, format!("session refused: {e}")),
        };
        export.role.set(ask.role);
        *export.limits.borrow_mut() = key.limits().cloned();
        export.connected(sink.clone());
        // It may have been revoked while the session was opened: whoever revoked it did not find the session.
        if let Err(e) = self.may_open(&target, ask.role, key.limits()) {
            let refused = refuse(e, format!("{}: {e}", shown(key.limits())));
            evict_whole(&target, client).await;
            return refused;
        }
        watch_expiry(&target, &export);
        target.recovery.note_progress(client);
        export.last_heard.set(self.rt.now());
        export.lived.set(lived);
        let reply = self.session_reply(&target, &export, known.then_some(auth.granted), epoch);
        sink.send(header.reply(Ok(())), wire::encode(&reply), Bulk::new());
        // Behind the answer: the client takes callbacks only over a connection that it knows to be open.
        export.announce();
        if known {
            target.service.session_connected(client);
        } else {
            target.service.session_begun(client);
        }
        Ok((target, export))
    }

    /// What a connection that has proved its limits says of its client.
    fn whose(&self, ask: &ConnectRequest, auth: &AuthRequest, lived: Instant, limits: Option<&Arc<Limits>>) -> Whose {
        Whose {
            recoverable: ask.recoverable,
            held: Binding::of(&auth.identity),
            next: Binding::of(if auth.next.is_empty() { &auth.identity } else { &auth.next }),
            origin: origin_of(ask).remembered_by(self.rt.origin()),
            lived,
            opener: opener_of(ask.role, limits),
            owns: !auth.id_proof.is_empty(),
        }
    }

    /// The first half of a handshake: both ends prove the key of what the client says that it has.
    async fn prove(&self, here: &Nid, sink: &Rc<Sink>, source: &mut Source) -> io::Result<Proved> {
        let (h, body) = source.recv().await?;
        if h.op != Op::Connect || h.bulk_len != 0 || h.client.0 == 0 {
            return Err(bad(format!("expected Connect, got {:?}", h.op)));
        }
        let (ask, name, target) = self.asked_target(here, &body, &h, sink)?;
        let key = self.key_of(&ask).inspect_err(|_| {
            sink.send(h.reply(Err(FsError::KeyRejected)), Vec::new(), Bulk::new());
        })?;
        let (nonce, lived) = (self.rt.secret_bytes::<PROOF_BYTES>(), self.rt.now());
        let mut reply = ConnectReply {
            nonce: nonce.to_vec().into(),
            proof: Bytes::default(),
            cluster: target.service.cluster(),
            store: target.service.uuid(),
        };
        let (nonces, meant) = ([&ask.nonce[..], &nonce[..]], meant(&ask, &reply, sink.binding()));
        let prove = |side: &str| {
            let proof = key.proof(side, ask.role, nonces, &meant, h.client);
            proof.ok_or_else(|| bad("this server has no administrator's key".into()))
        };
        reply.proof = prove("server")?.to_vec().into();
        sink.send(h.reply(Ok(())), wire::encode(&reply), Bulk::new());
        let (header, body) = source.recv().await?;
        let auth: AuthRequest = wire::decode(&body).map_err(|e| bad(e.to_string()))?;
        if header.op != Op::Auth || header.client != h.client || !ClusterKey::matches(&prove("client")?, &auth.proof) {
            sink.send(header.reply(Err(FsError::Access)), Vec::new(), Bulk::new());
            return Err(bad("the peer does not know the cluster key".into()));
        }
        Ok(Proved { target, name, ask, key, header, auth, lived })
    }

    /// The key that a peer is to prove: that of the description which it shows, else the role's.
    fn key_of(&self, ask: &ConnectRequest) -> io::Result<ClusterKey> {
        if ask.credential.is_empty() {
            return Ok(self.config.key.clone());
        }
        if ask.role != Role::Client {
            return Err(bad("a credential is a client's, never an administrator's".into()));
        }
        let limits = Limits::read(&ask.credential).map_err(bad)?;
        self.config.key.credential_of(limits).ok_or_else(|| bad("this server has no administrator's key".into()))
    }

    /// Whether what a peer has proved opens anything now.
    fn may_open(&self, target: &Target, role: Role, limits: Option<&Arc<Limits>>) -> Result<(), FsError> {
        let id = limits.map_or(CLIENT_KEY, |l| l.said().id);
        if role == Role::Client && target.service.is_revoked(id) {
            return Err(FsError::KeyRevoked);
        }
        match limits.map(|l| l.validity(self.rt.wall())) {
            None | Some(Validity::Valid) => Ok(()),
            Some(Validity::Expired) => Err(FsError::KeyExpired),
            Some(Validity::NotYet) => Err(FsError::KeyRejected),
        }
    }

    /// The target that a client asks for at the address that it dialled.
    fn asked_target(
        &self,
        here: &Nid,
        body: &[u8],
        h: &wire::Header,
        sink: &Rc<Sink>,
    ) -> io::Result<(ConnectRequest, String, Rc<Target>)> {
        if sink.is_open_to_the_way() && self.config.key.wants_encrypted(&sink.peer()) {
            sink.send(h.reply(Err(FsError::NotPermitted)), Vec::new(), Bulk::new());
            return Err(bad("it does not encrypt (net.security)".into()));
        }
        let ask: ConnectRequest = wire::decode(body).map_err(|e| bad(e.to_string()))?;
        let name = String::from_utf8_lossy(&ask.target).into_owned();
        let target = if name == "*" {
            self.targets.borrow().values().next().cloned()
        } else {
            self.targets.borrow().get(&name).cloned()
        };
        let Some(target) = target else {
            sink.send(h.reply(Err(FsError::NoTarget)), Vec::new(), Bulk::new());
            return Err(bad(format!("no target '{name}' here")));
        };
        if !ask.dialled.is_empty() && !is_here(here, &ask.dialled) {
            sink.send(h.reply(Err(FsError::Access)), Vec::new(), Bulk::new());
            let dialled = String::from_utf8_lossy(&ask.dialled).into_owned();
            return Err(bad(format!(
                "it dialled {dialled}, this server listens at {here}: something passes connections on"
            )));
        }
        Ok((ask, name, target))
    }

    /// What a client that is let in is told; `granted` is what it holds where its session goes on.
    fn session_reply(&self, target: &Target, export: &Export, granted: Option<u64>, epoch: u64) -> AuthReply {
        let client = export.client();
        AuthReply {
            boot: target.boot,
            known: granted.is_some(),
            recovering: target.recovery.expects(client),
            last_committed: target.service.last_committed(client),
            credits: export.credits.get(),
            bulk_max: target.service.bulk_max(),
            grant: target.service.grant(client, granted.unwrap_or(0)),
            last_xid: export.last_xid.get().0,
            target_uuid: target.service.uuid(),
            epoch,
            gave_up: target.has_evicted(client),
            opening: target.service.opening(),
        }
    }

    /// Sessions of other boots of the client's machine are over, for the machine runs one boot at a time: that of the
    /// client, which lives. A client of a boot that is over itself (its last words were read late) gets no session.
    fn end_other_boots(&self, target: &Rc<Target>, client: ClientId, whose: &Whose) -> Result<(), FsError> {
        let (origin, _) = whose.origin.recalled();
        let is_other = |e: &Export| e.client() != client && e.origin.get().recalled().0.ended_with_its_boot(origin);
        let others: Vec<_> = target.exports.borrow().values().filter(|e| is_other(e)).cloned().collect();
        if others.iter().any(|e| e.lived.get() > whose.lived) {
            return Err(FsError::Stale);
        }
        for client in others.iter().map(|e| e.client()) {
            tracing::info!(target = target.service.target(), %client, "its machine was started again: evicted");
            let target = target.clone();
            target.rt.clone().spawn(async move { evict(&target, client).await });
        }
        Ok(())
    }

    /// Ends the session of a client that only claims its id: whose that is has come.
    async fn oust(&self, target: &Rc<Target>, client: ClientId) {
        tracing::warn!(target = target.service.target(), %client, "another client's id: evicted, for that client has come");
        evict_whole(target, client).await;
    }

    /// The session that a connection continues or begins, and whether the client holds it.
    async fn open_session(
        &self,
        target: &Rc<Target>,
        client: ClientId,
        whose: Whose,
    ) -> Result<(Rc<Export>, bool), FsError> {
        loop {
            target.changing.wait(client).await;
            let existing = target.exports.borrow().get(&client).cloned();
            let Some(export) = existing else {
                let seat = self.seat(target, whose.opener)?;
                let Some(change) = Change::begin(target, client) else { continue };
                let export = begin_session(target, change, &whose, seat).await.unwrap_or(Err(FsError::NotConnected))?;
                if !export.is_ended() {
                    return Ok((export, false));
                }
                continue;
            };
            let bound = export.binding.get();
            let known = bound.is_none_or(|b| b == whose.held);
            // Two that are told the same id at the same time are two: the second finds the first one's session.
            if !known && bound != Some(whose.next) {
                if !whose.owns || export.is_owned.get() {
                    return Err(FsError::Exists);
                }
                self.oust(target, client).await;
                continue;
            }
            let was = export.opener.get();
            if was != whose.opener {
                let seat = self.seat_again(target, was, whose.opener)?;
                export.seat.replace(seat);
            }
            if whose.owns {
                export.is_owned.set(true);
            }
            if known {
                export.binding.set(Some(whose.held));
            } else {
                // It never heard of this session: there is nothing that it could tell again.
                target.recovery.client_missing(client);
            }
            export.opener.set(whose.opener);
            target.service.clone().session_opened(export.clone(), true).await?;
            if !export.is_ended() {
                return Ok((export, known));
            }
        }
    }
}

/// Opens a session at its service. That takes as long as the store does, longer than a handshake may: it goes on when the client's
/// connection is given up meanwhile, and the client's next one finds the session.
fn begin_session(
    target: &Rc<Target>,
    change: Change,
    whose: &Whose,
    seat: Option<Seat>,
) -> OneReceiver<Result<Rc<Export>, FsError>> {
    let client = change.1;
    let export = make_export(&target.rt, target.boot, &target.service, client);
    export.opener.set(whose.opener);
    export.seat.replace(seat);
    export.origin.set(whose.origin);
    export.recoverable.set(whose.recoverable);
    export.binding.set(Some(whose.next));
    export.is_owned.set(whose.owns);
    let (tell, told) = oneshot();
    let target = target.clone();
    target.rt.clone().spawn(async move {
        let opened = target.service.clone().session_opened(export.clone(), false).await;
        if opened.is_ok() {
            // Its client is to come within the time for which one may be silent.
            export.last_heard.set(target.rt.now());
            target.exports.borrow_mut().insert(client, export.clone());
        }
        drop(change);
        tell.send(opened.map(|()| export));
    });
    told
}

/// What a peer has proved, for the log.
fn shown(limits: Option<&Arc<Limits>>) -> String {
    limits.map_or_else(|| CLIENT_KEY_NAME.to_string(), |l| format!("credential '{}'", l.name()))
}

impl Export {
    /// Nanoseconds until the credential of its client ends; `None`: it has none that does.
    fn left_ns(&self) -> Option<u64> {
        self.limits.borrow().as_ref().and_then(|l| l.left_ns(self.rt().wall()))
    }
    /// Whether the time of its client's credential is over.
    pub(crate) fn has_expired(&self) -> bool {
        self.left_ns() == Some(0)
    }
}

/// Longest time for which an expiry is slept: clocks are set, and sleep is counted by another one.
const EXPIRY_LOOK: Duration = Duration::from_secs(60);

/// Ends the session when its credential ends, whether its client asks for anything or not.
fn watch_expiry(target: &Rc<Target>, export: &Rc<Export>) {
    if export.left_ns().is_none() || export.is_timed.replace(true) {
        return;
    }
    let (rt, target, export) = (target.rt.clone(), Rc::downgrade(target), Rc::downgrade(export));
    rt.clone().spawn(async move {
        loop {
            let Some(left) = export.upgrade().filter(|e| !e.is_ended()).map(|e| e.left_ns()) else { return };
            let Some(target) = target.upgrade() else { return };
            match left {
                Some(0) => return end_of_expired(&target, &export).await,
                left => {
                    drop(target);
                    rt.sleep(left.map_or(EXPIRY_LOOK, |ns| Duration::from_nanos(ns).min(EXPIRY_LOOK))).await;
                }
            }
        }
    });
}

async fn end_of_expired(target: &Rc<Target>, export: &Weak<Export>) {
    let Some(export) = export.upgrade().filter(|e| !e.is_ended()) else { return };
    let (name, client) = (target.service.target(), export.client());
    let limits = export.limits();
    tracing::info!(target = name, %client, "{}: its time is over: evicted", shown(limits.as_ref()));
    evict(target, client).await;
}

/// A client says that another one's process has ended: the session of that one ends now, as of one that was evicted.
/// Answered when it has, and as well when there is none: it may be said again.
pub(crate) async fn gone(target: &Rc<Target>, request: Request) {
    let result = end_of_gone(target, &request).await;
    request.reply(result.as_ref().map_err(|e| *e));
}

async fn end_of_gone(target: &Rc<Target>, request: &Request) -> Result<(), FsError> {
    let ask: GoneRequest = request.decode()?;
    let client = ask.client;
    target.changing.wait(client).await;
    let Some(export) = target.exports.borrow().get(&client).cloned() else { return Ok(()) };
    let name = target.service.target();
    if client == request.client() || !export.binding.get().is_some_and(|b| SessionKey::opens(&ask.key, b)) {
        target.disbelieve(request.client(), client, "without its key");
        return Err(FsError::NotPermitted);
    }
    if export.lives_here() {
        target.disbelieve(request.client(), client, "and its process lives");
        return Err(FsError::Busy);
    }
    tracing::info!(target = name, teller = %request.client(), %client, "its process has ended, says a client of its host: evicted");
    evict(target, client).await;
    Ok(())
}

impl Target {
    /// Counted, and told when their number has doubled: nobody fills a log with it.
    fn disbelieve(&self, teller: ClientId, client: ClientId, why: &str) {
        let times = self.disbelieved.get() + 1;
        self.disbelieved.set(times);
        if times.is_power_of_two() {
            let target = self.service.target();
            tracing::warn!(target, %teller, %client, times, "said to have ended, {why}: not believed");
        }
    }
}

pub(crate) async fn evict(target: &Rc<Target>, client: ClientId) {
    if target.exports.borrow().contains_key(&client) {
        target.count_eviction(client);
    }
    close(target, client, true).await;
}

/// [`evict`] from within a handshake: it is not given up with the connection, half of the session ended.
async fn evict_whole(target: &Rc<Target>, client: ClientId) {
    let ((ended, end), of_it) = (oneshot(), target.clone());
    target.rt.spawn(async move {
        evict(&of_it, client).await;
        ended.send(());
    });
    end.await;
}

/// A client is gone: its session ends here and at the service. Nothing of it is left when this ends, also where somebody else had
/// begun to end it: what is done then with its locks must not come before its last change.
pub(crate) async fn close(target: &Rc<Target>, client: ClientId, evicted: bool) {
    let export = target.exports.borrow_mut().remove(&client);
    if target.service.can_be_done_without(client) {
        target.recovery.client_done(client);
    } else {
        target.recovery.client_missing(client);
    }
    let Some(export) = export else { return target.changing.wait_for_present(client).await };
    let _change = Change::begin(target, client);
    export.end(evicted);
    target.service.clone().session_closed(client, evicted).await;
}
