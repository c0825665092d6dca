//! A connection of an import from its handshake to its end, and the next one.
use std::io;
use std::rc::Rc;

use frames::Bulk;
use rt::Nid;
use types::{Duration, FsError, Xid};
use wire::connect::{AuthReply, AuthRequest, ConnectReply, ConnectRequest};
use wire::{Flags, Header, Op};

use super::{FAILURES_UNTIL_UNREACHABLE, Import, ImportState, NO_SLOT};
use crate::auth::{ClusterKey, PROOF_BYTES, meant};
use crate::credential::{CLIENT_KEY_NAME, Validity};
use crate::incoming::{Answers, Landed};
use crate::stream::{self, Sink, Source};

/// Pause before the first try to connect again; it doubles with every failure.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The same where a target may be at one of several places.
const PAUSE_MAX_OF_SEVERAL: Duration = Duration::from_millis(200);
/// How long a handshake may take; where there are other places, one that does not answer is not waited for so long.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
const HANDSHAKE_MAX_OF_SEVERAL: Duration = Duration::from_secs(3);
/// Pause before the next try of a client whose credential opens nothing: only clocks may change that.
const BARRED_PAUSE: Duration = Duration::from_secs(30);

impl Import {
    pub(super) async fn run(self: Rc<Self>) {
        let (mut pause, mut failures) = (PAUSE_MIN, 0u32);
        while self.state.get() != ImportState::Closed {
            let changed = self.changed.wait();
            if self.inactive.get() {
                changed.await;
                continue;
            }
            drop(changed);
            let sessions = self.connects.get();
            let end = self.session_once().await;
            if self.connects.get() == sessions {
                failures = failures.saturating_add(1);
                self.turn.set(self.turn.get().wrapping_add(1));
            } else {
                // However it ended, it was one: a server that dies now and then is found as soon as it is back each time.
                (failures, pause) = (0, PAUSE_MIN);
            }
            if let Err(e) = end {
                *self.failure.borrow_mut() = Some(e.to_string());
                self.refused.set(e.kind() == io::ErrorKind::PermissionDenied);
                self.changed.notify();
                tracing::debug!(target = self.config.target, nid = %self.nid.borrow(), "connection: {e}");
            }
            if self.state.get() == ImportState::Closed {
                break;
            }
            self.set_state(ImportState::Connecting);
            if failures >= FAILURES_UNTIL_UNREACHABLE
                && let Some(callbacks) = self.callbacks.borrow().upgrade()
            {
                callbacks.on_unreachable();
            }
            let places = self.nid.borrow().places().len();
            self.rt.sleep(if self.barred.get() { BARRED_PAUSE } else { pause }).await;
            pause = (pause * 2).min(if places > 1 { PAUSE_MAX_OF_SEVERAL } else { PAUSE_MAX });
        }
    }

    /// One connection from its handshake to its end.
    async fn session_once(self: &Rc<Self>) -> io::Result<()> {
        let (nid, patience) = self.place();
        let encrypted = self.config.key.encrypts(&nid);
        let connection = if encrypted { self.rt.connect_encrypted(&nid).await } else { self.rt.connect(&nid).await };
        let (sink, mut source) = stream::ends(connection?);
        let hello = self.rt.timeout(patience, self.handshake(&nid, &sink, &mut source)).await;
        let session = match hello {
            Some(Ok(s)) => s,
            Some(Err(e)) => {
                sink.close();
                return Err(e);
            }
            None => {
                sink.close();
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer to the handshake"));
            }
        };
        if self.inactive.get() {
            sink.close();
            return Err(io::Error::other("given up"));
        }
        self.check_store(session.target_uuid, &sink)?;
        self.note_epoch(&session);
        *self.failure.borrow_mut() = None;
        self.barred.set(false);
        self.disowned.set(false);
        if self.forgotten.get() {
            return self.say_goodbye(session.known, &sink, &mut source).await;
        }
        self.note_heard();
        self.connects.set(self.connects.get() + 1);
        *self.sink.borrow_mut() = Some(sink.clone());
        let (me, begin) = (self.clone(), session.clone());
        let sink_of_run = sink.clone();
        self.rt.spawn(async move { me.begin(begin, sink_of_run).await });
        let end = self.receive(&sink, &mut source).await;
        sink.close();
        let mut current = self.sink.borrow_mut();
        if current.as_ref().is_some_and(|s| Rc::ptr_eq(s, &sink)) {
            *current = None;
        }
        drop(current);
        // Requests of the recovery dialogue belong to the connection; ordinary ones are sent again.
        let lost: Vec<Xid> = self
            .pending
            .borrow()
            .iter()
            .filter(|(_, p)| p.header.slot_or_credits == NO_SLOT)
            .map(|(x, _)| *x)
            .collect();
        for xid in lost {
            self.pending.borrow_mut().remove(&xid);
        }
        end
    }

    /// Where the next connection goes, and how long its handshake may take.
    fn place(&self) -> (Nid, Duration) {
        let nid = self.nid.borrow();
        let places = nid.places();
        let patience = if places.len() > 1 { HANDSHAKE_MAX_OF_SEVERAL } else { HANDSHAKE_MAX };
        (places[self.turn.get() % places.len()].clone(), patience)
    }

    async fn handshake(&self, nid: &Nid, sink: &Rc<Sink>, source: &mut Source) -> io::Result<AuthReply> {
        let bad = |t: &str| io::Error::new(io::ErrorKind::InvalidData, t.to_string());
        let refused = |t: &str| io::Error::new(io::ErrorKind::PermissionDenied, t.to_string());
        let nonce = self.rt.secret_bytes::<PROOF_BYTES>();
        let target = self.config.target.as_bytes();
        let client = self.config.client;
        let origin = self.rt.origin();
        let ask = ConnectRequest {
            target: target.into(),
            nonce: nonce.to_vec().into(),
            version_min: wire::VERSION,
            version_max: wire::VERSION,
            last_boot: self.boot.get(),
            recoverable: self.config.recoverable,
            role: self.config.key.role(),
            host: origin.host,
            process: origin.process,
            machine: origin.machine,
            boot: origin.boot,
            place: self.config.place,
            store: self.uuid.get(),
            dialled: nid.to_string().as_str().into(),
            credential: self.config.key.limits().map(|l| l.bytes()).unwrap_or_default().into(),
        };
        sink.send(Header::request(Op::Connect, client, Xid(0)), wire::encode(&ask), Bulk::new());
        let (h, body) = source.recv().await?;
        h.result().map_err(|e| self.not_connected(nid, e))?;
        let answer: ConnectReply = wire::decode(&body).map_err(|e| bad(&e.to_string()))?;
        let (nonces, meant) = ([&nonce[..], &answer.nonce[..]], meant(&ask, &answer, sink.binding()));
        let prove = |side: &str| {
            let proof = self.config.key.proof(side, ask.role, nonces, &meant, client);
            proof.expect("a key proves the role that it says it has")
        };
        self.check_cluster(nid, &answer)?;
        if !ClusterKey::matches(&prove("server"), &answer.proof) {
            return Err(refused("the server does not know our cluster key: check cluster.key_file on both sides"));
        }
        if answer.store != 0 {
            self.check_store(answer.store, sink)?;
        }
        let auth = AuthRequest {
            proof: prove("client").to_vec().into(),
            identity: self.identity.get().to_vec().into(),
            granted: self.callbacks.borrow().upgrade().map_or(0, |c| c.granted()),
            next: self.next_identity.get().to_vec().into(),
            epoch: self.epoch_seen(answer.store),
            id_proof: self.id_proof.get().map(|p| p.to_vec()).unwrap_or_default().into(),
        };
        sink.send(Header::request(Op::Auth, client, Xid(0)), wire::encode(&auth), Bulk::new());
        let (h, body) = source.recv().await?;
        match h.result() {
            Ok(()) => wire::decode(&body).map_err(|e| bad(&e.to_string())),
            Err(FsError::Access) => {
                Err(refused("the server refused our cluster key: check cluster.key_file on both sides"))
            }
            Err(e @ (FsError::KeyExpired | FsError::KeyRevoked | FsError::KeyRejected)) => Err(self.barred(e)),
            Err(FsError::Stale) => Err(bad(&format!(
                "{} was replaced by a later server of its target, or may have been",
                self.nid.borrow()
            ))),
            Err(FsError::Overloaded) => Err(bad(&format!(
                "{} has as many sessions of {} as it takes: end mounts with it, or take another one for some",
                self.nid.borrow(),
                self.shown_key()
            ))),
            Err(FsError::Exists) => Err(self.disowned()),
            Err(e) => Err(bad(&e.to_string())),
        }
    }

    /// What this client proves, for people.
    fn shown_key(&self) -> String {
        self.config.key.limits().map_or_else(|| CLIENT_KEY_NAME.to_string(), |l| format!("credential '{}'", l.name()))
    }

    /// A credential opens its own cluster only. The server's word is not proved yet, and nothing but the message rests on it.
    fn check_cluster(&self, nid: &Nid, answer: &ConnectReply) -> io::Result<()> {
        let Some(limits) = self.config.key.limits().filter(|l| l.said().cluster != answer.cluster) else {
            return Ok(());
        };
        let why = format!(
            "credential '{}' is of cluster {:016x}, the server at {nid} of cluster {:016x}: take the file that was issued there",
            limits.name(),
            limits.said().cluster,
            answer.cluster
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// What we have proved opens nothing there (any more). As after an eviction nothing is left of the session; and as there is none to
    /// come, whoever waits is told, and whoever asks from now on.
    fn barred(&self, why: FsError) -> io::Error {
        let now = self.rt.wall();
        let valid_here = self.config.key.limits().is_some_and(|l| l.validity(now) == Validity::Valid);
        let key = self.shown_key();
        let text = match why {
            FsError::KeyExpired if valid_here => {
                format!(
                    "{key} has expired by the server's clock and not by this host's: their clocks are apart, set them"
                )
            }
            FsError::KeyExpired => {
                format!("{key} has expired: ask the administrator for another ('stria credential issue')")
            }
            FsError::KeyRejected => {
                format!(
                    "{key} is not valid yet by the server's clock: its clock is behind that of the metadata server, set it"
                )
            }
            _ => format!("{key} was revoked: ask the administrator for another ('stria credential issue')"),
        };
        if !self.barred.replace(true) {
            tracing::error!(target = self.config.target, "{text}");
            self.lose_session();
        }
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    }

    /// Another client has our id, and a session with it: ours is over, and whoever waits is told, for that one may stay as long as it
    /// likes.
    fn disowned(&self) -> io::Error {
        let client = self.config.client;
        let text = format!("another client has a session with the id {client} there");
        if !self.disowned.replace(true) {
            tracing::error!(target = self.config.target, "{text}: requests fail until it ends");
            self.lose_session();
        }
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    }

    /// Everything of the session is lost, as after an eviction, and no other one follows for now. The server may still know it, let this
    /// client in later, and have locks and opens of it: it is told goodbye first. What it answered is left to it, and whoever asked for
    /// that is told if it was started again meanwhile.
    fn lose_session(&self) {
        let had = self.boot.get() != 0;
        self.forgotten.set(had);
        self.leave_to_server();
        self.changed.notify();
        if had {
            self.evictions.set(self.evictions.get() + 1);
        }
        self.fail_pending(FsError::Io);
        if let Some(callbacks) = self.callbacks.borrow().upgrade().filter(|_| had) {
            callbacks.on_evicted();
        }
    }

    /// Why a server did not take the first message of a handshake.
    fn not_connected(&self, nid: &Nid, answer: FsError) -> io::Error {
        let refused = |why: String| io::Error::new(io::ErrorKind::PermissionDenied, why);
        match answer {
            FsError::NoTarget => {
                let why = format!("{nid} has no target '{}'", self.config.target);
                io::Error::new(io::ErrorKind::InvalidData, why)
            }
            FsError::Access => {
                refused(format!("the server behind {nid} is not at that address: something passes connections on"))
            }
            FsError::KeyRejected => refused(format!(
                "{nid} does not take {}: it is of another version of the program: update that server, or issue another one",
                self.shown_key()
            )),
            FsError::NotPermitted => {
                refused(format!("{nid} takes encrypted connections only: net.security must be 'auto' or 'tls' here"))
            }
            e => io::Error::new(io::ErrorKind::InvalidData, e.to_string()),
        }
    }

    /// Refuses a server that has another store than the target's: nothing of the target is there.
    fn check_store(&self, found: u64, sink: &Rc<Sink>) -> io::Result<()> {
        let wanted = self.uuid.get();
        let foreign = wanted != 0 && wanted != found;
        if self.foreign.replace(foreign) != foreign {
            self.changed.notify();
        }
        if !foreign {
            return Ok(());
        }
        sink.close();
        let (target, nid) = (&self.config.target, self.nid.borrow().clone());
        let why = format!("{nid} has store {found:016x}, {target} of this cluster is store {wanted:016x}");
        if self.failure.borrow().as_ref() != Some(&why) {
            tracing::error!("{why}: requests to it fail until the right store is back");
        }
        self.fail_pending(FsError::Io);
        if let Some(callbacks) = self.callbacks.borrow().upgrade() {
            callbacks.on_unreachable();
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// The highest epoch that was seen of this store. A server that is older was stopped or cut off while
    /// another took its place, knows nothing of what that one did, and refuses us.
    fn epoch_seen(&self, of_store: u64) -> u64 {
        let (store, epoch) = self.epoch.get();
        if store == of_store { epoch } else { 0 }
    }
    fn note_epoch(&self, session: &AuthReply) {
        let (store, seen) = self.epoch.get();
        let seen = if store == session.target_uuid { seen } else { 0 };
        self.epoch.set((session.target_uuid, seen.max(session.epoch)));
    }

    /// Ends a session of before the target was given up, so that nothing of it is left at the server.
    async fn say_goodbye(&self, known: bool, sink: &Rc<Sink>, source: &mut Source) -> io::Result<()> {
        if known {
            let goodbye = Header::request(Op::Disconnect, self.config.client, Xid(0));
            sink.send(goodbye, Vec::new(), Bulk::new());
            let answer = async {
                loop {
                    let (header, ..) = source.recv().await?;
                    if header.op == Op::Disconnect {
                        return Ok::<(), io::Error>(());
                    }
                }
            };
            self.rt
                .timeout(Duration::from_secs(10), answer)
                .await
                .unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        }
        self.forgotten.set(false);
        self.parted.set(!types::planted!("parted-and-lost"));
        sink.close();
        Ok(())
    }

    async fn receive(self: &Rc<Self>, sink: &Rc<Sink>, source: &mut Source) -> io::Result<()> {
        let mut answers = Answers::new(&self.rt, source);
        loop {
            let (header, body, landed) = answers.next().await?;
            self.note_heard();
            if header.flags.has(Flags::CALLBACK) && !header.flags.has(Flags::REPLY) {
                self.on_callback(sink, header, body);
                continue;
            }
            match landed {
                Landed::Here(bulk, crc) => self.on_reply(header, body, bulk, crc),
                Landed::Skipped => self.on_skipped(&header),
            }
        }
    }

    fn on_callback(self: &Rc<Self>, sink: &Rc<Sink>, header: Header, body: Vec<u8>) {
        let Some(callbacks) = self.callbacks.borrow().upgrade() else {
            sink.send(header.reply(Err(FsError::NotConnected)), Vec::new(), Bulk::new());
            return;
        };
        let sink = sink.clone();
        // It begins before anything is looked at that the server said later.
        let answer = callbacks.on_callback(header.op, body);
        self.rt.spawn(async move {
            let result = answer.await;
            let reply = header.reply(result.as_ref().map(|_| ()).map_err(|e| *e));
            sink.send(reply, result.unwrap_or_default(), Bulk::new());
        });
    }
}
