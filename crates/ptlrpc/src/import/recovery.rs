//! What an import tells a server that it finds again: requests without an answer, and after a restart what was lost.
use std::rc::Rc;

use frames::Bulk;
use rt::sync::oneshot;
use types::{FsError, Transno, Xid};
use wire::connect::AuthReply;
use wire::{Decode, Encode, Flags, Header, Op};

use super::{Callbacks, Import, ImportState, NO_SLOT, Pending, Replayable, Reply};
use crate::stream::Sink;

/// Times a replay is offered again whose bulk arrived damaged; nobody writes it out again after that.
const DAMAGED_MAX: u32 = 10;
/// Times a replay is offered again to a server whose store failed, once a second at last: another one may follow it that has a well
/// one, and a change is given up only when it cannot be kept.
const FAILED_MAX: u32 = 60;

impl Import {
    pub(super) async fn begin(self: Rc<Self>, session: AuthReply, sink: Rc<Sink>) {
        let previous = self.boot.get();
        let restarted = previous != 0 && previous != session.boot;
        // Also a server that was restarted before this client heard that it has a session there waits for its word.
        let recovers = previous != session.boot && session.known && session.recovering;
        self.set_credits(session.credits);
        *self.session.borrow_mut() = session.clone();
        let callbacks = self.callbacks.borrow().upgrade();
        let lost = if restarted { self.lost_with_server(&session) } else { Vec::new() };
        // So that the server knows how long we wait, whatever comes first.
        self.send_ping();
        if !session.known {
            self.identity.set(self.next_identity.get());
        }
        // From now on there is a session to lose, and the next one is another.
        if self.next_identity.get() == self.identity.get() {
            let before = self.identities.get();
            self.identities.set(before + 1);
            self.next_identity.set(self.key.identity(before));
        }
        // Each session gets on record by its own answers, or shows that it is when a restarted server knows it.
        let was_on_record = self.on_record.replace(session.known && (restarted || self.on_record.get()));
        if previous != 0 && !session.known {
            self.lose_session_with(restarted, &session, lost, callbacks.as_deref());
        } else if let Some(c) = &callbacks {
            lost.iter().for_each(|r| c.on_lost(r.header.op, &r.body));
        }
        // The very first request of a session has had no answer by which its client knows that the session was noted; the server does.
        if restarted && !session.known && (was_on_record || session.gave_up) {
            self.fail_changes();
        }
        self.parted.set(false);
        if let Some(c) = &callbacks {
            c.on_connected(&session);
        }
        // A server that is not waiting for us has our replays already: only the answer to the last word was lost. What
        // was replayed is not replayed again, for others go on since.
        if recovers {
            self.set_state(ImportState::Replaying);
            if !self.recover(&session, callbacks.clone(), &sink).await {
                return;
            }
        } else {
            self.note_committed(session.last_committed, false);
        }
        if !self.sink.borrow().as_ref().is_some_and(|s| Rc::ptr_eq(s, &sink)) {
            return;
        }
        // Only now: a connection lost during recovery begins it anew.
        self.boot.set(session.boot);
        self.resend();
        self.set_state(ImportState::Full);
        if let Some(c) = callbacks.filter(|_| restarted || recovers) {
            c.on_recovered();
        }
    }

    /// The server does not know this client, and had a session of it before; `lost` was left to it then and is not there any more.
    fn lose_session_with(
        &self,
        restarted: bool,
        session: &AuthReply,
        mut lost: Vec<Replayable>,
        callbacks: Option<&dyn Callbacks>,
    ) {
        // A server that was restarted before it noted us has nothing of ours to lose when we hold nothing of it; nor has one that we had
        // given up: what waits now is of the session that begins.
        let nothing = (restarted || self.parted.get())
            && self.replay.borrow().is_empty()
            && callbacks.is_none_or(|c| c.state_replays().is_empty());
        if restarted {
            // Transactions of others may have taken the numbers of ours since: what was not known to be committed counts as lost.
            lost.extend(std::mem::take(&mut *self.replay.borrow_mut()).into_values());
        } else {
            self.leave_to_server();
        }
        self.note_committed(session.last_committed, true);
        // What was left to it is lost with an earlier session: what waits now is of this one.
        if let Some(c) = callbacks {
            lost.iter().for_each(|r| c.on_lost(r.header.op, &r.body));
        }
        if nothing {
            return;
        }
        self.evictions.set(self.evictions.get() + 1);
        self.fail_pending(FsError::NotConnected);
        if let Some(c) = callbacks {
            c.on_evicted();
        }
    }

    /// The session is over, and the server goes on for all that is known: it has carried out what is kept for replay, and makes that
    /// stable.
    pub(super) fn leave_to_server(&self) {
        let kept = std::mem::take(&mut *self.replay.borrow_mut());
        if types::planted!("given-up-and-forgotten") {
            return;
        }
        let without_bulk = kept.into_iter().map(|(transno, r)| (transno, Replayable { bulk: Bulk::new(), ..r }));
        self.left_to_server.borrow_mut().extend(without_bulk);
    }

    /// What was left to a server that was started again since and may not have it any more. Once it serves again, transactions of others
    /// may have taken the numbers of ours: then all counts as lost that was not known to be stable.
    fn lost_with_server(&self, session: &AuthReply) -> Vec<Replayable> {
        let stable = if session.recovering { session.last_committed } else { Transno(0) };
        let left = std::mem::take(&mut *self.left_to_server.borrow_mut());
        left.into_iter().filter(|(transno, _)| *transno > stable).map(|(_, r)| r).collect()
    }

    fn resend(&self) {
        self.fail_once();
        let again: Vec<_> = self
            .pending
            .borrow()
            .values()
            // What was asked outside slots during recovery is answered over this very connection.
            .filter(|p| !p.asleep && p.header.slot_or_credits != NO_SLOT)
            .map(|p| (p.header, p.body.clone(), p.bulk.clone()))
            .collect();
        let (now, patience) = (self.rt.now(), self.patience());
        for p in self.pending.borrow_mut().values_mut() {
            (p.sent, p.deadline) = (now, now + patience);
        }
        for (mut header, body, bulk) in again {
            header.flags = header.flags.with(Flags::RESENT);
            self.resent.set(self.resent.get() + 1);
            self.transmit(header, body, bulk);
        }
    }

    /// Replays transactions in order, then state, then says so. False when the connection was lost meanwhile.
    async fn recover(&self, session: &AuthReply, callbacks: Option<Rc<dyn Callbacks>>, over: &Rc<Sink>) -> bool {
        self.note_committed(session.last_committed, false);
        // The next connection may find that the server has given us up: then this is the recovery of a session that is over.
        let evictions = self.evictions.get();
        let mut after = Transno(0);
        if !self.replay.borrow().is_empty() && types::planted!("replay-dropped") {
            self.replay.borrow_mut().pop_first();
        }
        loop {
            let next = {
                let replay = self.replay.borrow();
                replay
                    .range(Transno(after.0.saturating_add(1))..)
                    .next()
                    .map(|(t, r)| (*t, r.header, r.body.clone(), r.bulk.clone()))
            };
            let Some((transno, mut header, body, bulk)) = next else { break };
            header.flags = header.flags.with(Flags::REPLAY);
            header.transno = transno;
            let (op, request) = (header.op, body.clone());
            match self.dialogue_taken(header, body, bulk, over).await {
                _ if self.evictions.get() != evictions => return false,
                Some(Ok(_)) => {}
                Some(Err(e)) => {
                    tracing::warn!(target = self.config.target, %transno, ?op, "replay was answered: {e}");
                    // It rested on what a client had done that did not come back. It is told as lost, and never done.
                    let lost = self.replay.borrow_mut().remove(&transno);
                    drop(lost);
                    if let Some(c) = &callbacks {
                        c.on_lost(op, &request);
                    }
                }
                None => return false,
            }
            after = transno;
        }
        if let Some(c) = callbacks {
            for (op, body) in c.state_replays() {
                let mut header = Header::request(op, self.config.client, Xid(0));
                header.flags = Flags::REPLAY;
                let told = self.with_capability(&mut header, body.clone());
                match self.dialogue_taken(header, told, Bulk::new(), over).await {
                    _ if self.evictions.get() != evictions => return false,
                    Some(answer) => c.on_state_replayed(op, &body, answer.map(|r| r.body)),
                    None => return false,
                }
            }
        }
        let mut done = Header::request(Op::Ping, self.config.client, Xid(0));
        done.flags = Flags::REPLAY_DONE;
        self.dialogue(done, Vec::new(), Bulk::new()).await.is_some()
    }

    /// [`Import::dialogue`] over this connection, again as long as the server has no room for it, and where the bulk arrived
    /// damaged. The next connection, which may be there after a pause, has a recovery of its own.
    async fn dialogue_taken(
        &self,
        header: Header,
        body: Vec<u8>,
        bulk: Bulk,
        over: &Rc<Sink>,
    ) -> Option<Result<Reply, FsError>> {
        let (mut refusals, mut damaged, mut failed) = (0, 0, 0);
        loop {
            if !self.sink.borrow().as_ref().is_some_and(|s| Rc::ptr_eq(s, over)) {
                return None;
            }
            let answer = self.dialogue(header, body.clone(), bulk.clone()).await?;
            match answer {
                Err(FsError::Overloaded) => {
                    refusals += 1;
                    self.rt.sleep(self.pause_after(refusals, header.flags)).await;
                }
                Err(FsError::Io) if failed < FAILED_MAX => {
                    failed += 1;
                    self.rt.sleep(self.pause_after(failed, header.flags)).await;
                }
                Err(FsError::Corrupt) if !bulk.is_empty() && damaged < DAMAGED_MAX => damaged += 1,
                answer => return Some(answer),
            }
        }
    }

    /// [`Import::ask`] for what servers answer while they wait for clients after a restart; such a request is sent once.
    ///
    /// # Errors
    /// As [`Import::ask`]; `NotConnected` also when the connection was lost during recovery.
    pub async fn ask_in_recovery<Q: Encode, A: Decode>(&self, op: Op, request: &Q) -> Result<A, FsError> {
        if self.state.get() != ImportState::Replaying {
            return self.ask(op, request).await;
        }
        let header = Header::request(op, self.config.client, Xid(0));
        let answer = self.dialogue(header, wire::encode(request), Bulk::new()).await;
        answer.unwrap_or(Err(FsError::NotConnected))?.decode()
    }

    /// One request outside slots; `None` when the connection was lost.
    async fn dialogue(&self, mut header: Header, body: Vec<u8>, bulk: Bulk) -> Option<Result<Reply, FsError>> {
        let (tx, rx) = oneshot();
        if header.xid.0 == 0 {
            header.xid = self.new_xid();
            header.slot_or_credits = NO_SLOT;
        }
        let kept = Header { slot_or_credits: NO_SLOT, ..header };
        self.transmit(header, body, bulk);
        self.pending.borrow_mut().insert(
            header.xid,
            Pending {
                header: kept,
                body: Vec::new(),
                bulk: Bulk::new(),
                keep: false,
                once: false,
                refusals: 0,
                asleep: false,
                began: (self.rt.now(), self.rt.now()),
                sent: self.rt.now(),
                deadline: self.rt.now() + self.patience(),
                waiter: Some(tx),
            },
        );
        rx.await
    }
}

/// What an answer says that its transaction rested on, in the place where a replay tells it.
pub(super) fn basis_of(header: &Header, body: &mut Vec<u8>) -> Transno {
    let at = body.len().checked_sub(8).filter(|_| header.flags.has(Flags::BASIS));
    let bytes = at.and_then(|at| body.split_off(at).try_into().ok());
    Transno(bytes.map_or(0, u64::from_le_bytes))
}
