//! Ends of opens on their way to the metadata server. Those that nobody waits for travel together.
//!
//! Until its end was answered an open counts as open, here and at the server. Nobody notices that it waits a moment:
//! whoever changes the inode next, here or elsewhere, has it sent first.
//!
//! A metadata server without any space may refuse an end (it lets ends in as long as it can: they make nothing larger). The program is
//! told that its file is closed, which it is here; the client owes the end, and sends it again until it is taken. A mount that goes does
//! not wait for that: its session's end closes everything.
use std::rc::Rc;

use ptlrpc::CallOptions;
use rt::sync::{OneReceiver, oneshot};
use types::{Duration, Fid, FsError, Transno};
use wire::Op;
use wire::mdt::{Attr, AttrFlags, CloseReply, CloseRequest, SetBits};

use super::Meta;
use crate::attrs::Change;
use crate::ending::Ending;
use crate::inode::UNSET;

/// Ends that go together at most.
const TOGETHER_MAX: usize = 32;
/// How long an end waits for others.
const PAUSE: Duration = Duration::from_millis(2);
/// Pause before ends that were refused for want of space are sent again.
const OWED_AGAIN: Duration = Duration::from_secs(1);

impl Meta {
    /// An open has ended here, with that to tell; the answer is waited for by whoever listens.
    pub(crate) fn tell_end(self: &Rc<Self>, ending: Ending) {
        self.ends.waiting.borrow_mut().push(ending);
        self.send_closes();
    }
    /// The same for what nobody waits for: it may travel with others.
    pub(crate) fn tell_end_soon(self: &Rc<Self>, ending: Ending) {
        self.ends.waiting.borrow_mut().push(ending);
        if self.ends.waiting.borrow().len() >= TOGETHER_MAX {
            self.send_closes();
        } else if !self.ends.pausing.replace(true) {
            let me = self.clone();
            self.rt.spawn(async move {
                me.rt.sleep(PAUSE).await;
                me.ends.pausing.set(false);
                me.send_closes();
            });
        }
    }

    /// The metadata server knows that no open of the inode that ended here is left.
    pub(crate) async fn settle_closes(self: &Rc<Self>, fid: Fid) {
        let waits = self.ends.waiting.borrow().iter().any(|e| e.file.fid() == fid);
        if waits {
            self.all_closes_told().await;
        }
    }

    /// The same for a lock that another client waits for: the inode's ends go ahead of this client's own requests, and without
    /// company. Another inode's may have to wait for a lock of the one that waits here.
    pub(crate) async fn settle_closes_for_others(self: &Rc<Self>, fid: Fid) {
        let batch: Vec<Ending> = self.ends.waiting.borrow_mut().extract_if(.., |e| e.file.fid() == fid).collect();
        if let Some(answered) = self.send(batch, CallOptions::urgent(None)) {
            answered.await;
        }
    }

    /// Every open that ended here has ended at the metadata server.
    pub(crate) async fn all_closes_told(self: &Rc<Self>) {
        if let Some(answered) = self.send_closes() {
            answered.await;
        }
    }

    /// Sends all that wait. Completes when they are answered, which goes on without a listener.
    pub(crate) fn send_closes(self: &Rc<Self>) -> Option<OneReceiver<()>> {
        self.send(self.ends.waiting.take(), CallOptions::default())
    }

    fn send(self: &Rc<Self>, mut batch: Vec<Ending>, options: CallOptions) -> Option<OneReceiver<()>> {
        if batch.is_empty() {
            return None;
        }
        for ending in &mut batch {
            ending.sent = true;
            if ending.tells_size() {
                ending.file.inode.tells.set_out();
            }
        }
        let (answered, listener) = oneshot();
        let me = self.clone();
        self.rt.spawn(async move {
            me.close_all(batch, options).await;
            answered.send(());
        });
        Some(listener)
    }

    async fn close_all(self: &Rc<Self>, mut batch: Vec<Ending>, options: CallOptions) {
        while !batch.is_empty() {
            let rest = batch.split_off(batch.len().min(TOGETHER_MAX));
            for failed in self.close_together(batch, options).await {
                // What keeps one from its end keeps it from its own only.
                self.close_together(vec![failed], options).await;
            }
            batch = rest;
        }
    }

    /// Ends opens with one request. Gives them back when that failed for the company of one of them.
    async fn close_together(self: &Rc<Self>, batch: Vec<Ending>, options: CallOptions) -> Vec<Ending> {
        let sent = self.common.clock.next();
        let closes = batch.iter().map(|e| e.close.clone()).collect();
        let mut request = CloseRequest { closes };
        let answer = self.mdt_call_as(options, Op::MdtClose, &request).await;
        match answer.and_then(|r| Ok((r.header.transno, r.decode::<CloseReply>()?))) {
            Ok((transno, reply)) if reply.closes.len() == batch.len() => {
                self.amend_outdated(transno, &mut request, &reply);
                let change = Change { sent, transno };
                for (ending, closed) in batch.into_iter().zip(reply.closes) {
                    let status = i32::from(closed.status);
                    match if status == 0 { Ok((change, closed.attr)) } else { Err(FsError::from_errno(status)) } {
                        Err(FsError::NoSpace) => self.owe(ending),
                        answer => self.ended(ending, answer),
                    }
                }
                Vec::new()
            }
            Err(FsError::NoSpace) => {
                batch.into_iter().for_each(|ending| self.owe(ending));
                Vec::new()
            }
            Err(e) if batch.len() > 1 && e != FsError::NotConnected => batch,
            answer => {
                let e = answer.err().unwrap_or(FsError::Protocol);
                batch.into_iter().for_each(|ending| self.ended(ending, Err(e)));
                Vec::new()
            }
        }
    }

    /// An end that the metadata server has no space for is told again until it has. What only this client knew of as open has no end
    /// there: then it was a time of access, which goes.
    fn owe(self: &Rc<Self>, mut ending: Ending) {
        if ending.close.handle.0 == 0 {
            return self.ended(ending, Ok((Change::default(), Attr::default())));
        }
        if ending.sent && ending.tells_size() {
            ending.file.inode.tells.answered();
        }
        if let Some(told) = ending.told.take() {
            told.send(Ok(()));
        }
        self.ends.owed.borrow_mut().push(ending.late());
        if self.ends.paying.replace(true) {
            return;
        }
        tracing::warn!("the metadata server has no space for the end of an open: it is told again until it has");
        let (me, rt) = (Rc::downgrade(self), self.rt.clone());
        self.rt.spawn(async move {
            loop {
                rt.sleep(OWED_AGAIN).await;
                let Some(me) = me.upgrade().filter(|me| !me.sessions.is_closing()) else { return };
                let owed = me.ends.owed.take();
                if owed.is_empty() {
                    return me.ends.paying.set(false);
                }
                me.ends.waiting.borrow_mut().extend(owed);
                me.all_closes_told().await;
            }
        });
    }

    /// A replay tells no size for the file's that the answer did not take for it.
    fn amend_outdated(&self, transno: Transno, request: &mut CloseRequest, reply: &CloseReply) {
        let mut amended = false;
        for (close, closed) in request.closes.iter_mut().zip(&reply.closes) {
            if close.valid & SetBits::SIZE != 0 && closed.attr.flags & AttrFlags::SIZE_KNOWN == 0 {
                close.valid |= SetBits::OUTDATED;
                amended = true;
            }
        }
        if amended && transno.0 != 0 {
            self.sessions.mdc().amend_replay(transno, request);
        }
    }

    pub(crate) fn ended(self: &Rc<Self>, ending: Ending, answer: Result<(Change, Attr), FsError>) {
        if ending.sent && ending.tells_size() {
            ending.file.inode.tells.answered();
        }
        if ending.sent && ending.close.valid & (SetBits::DIRTY | SetBits::SIZE) != 0 {
            self.settling.needed();
        }
        let Ending { close, file, told, .. } = ending;
        let inode = &file.inode;
        self.opens.borrow_mut().remove(&file.id());
        inode.closed(&file.stream, file.reads(), file.writes());
        if file.writes() {
            inode.writers.set(inode.writers.get() - 1);
        }
        if file.dirty.get() {
            inode.changed_unseen();
        }
        // Told now; until then it was ours to know.
        if inode.atime.get() == close.atime {
            inode.atime.set(UNSET);
        }
        if let Some((change, attr)) = answer.as_ref().ok().filter(|(_, a)| a.fid == inode.fid) {
            // Once more if another one wrote meanwhile; not if the OSTs could not say.
            let may_help = close.valid & SetBits::SIZE != 0 || !file.settles.get();
            if attr.flags & AttrFlags::UNSETTLED != 0
                && may_help
                && let Some(keeper) = self.common.keeper()
            {
                keeper.settle_size(inode, None);
            }
            inode.take_change(*change, &Attr { flags: attr.flags & !AttrFlags::UNSETTLED, ..attr.clone() });
        }
        if file.dirty.get()
            && answer.as_ref().err() == Some(&FsError::Io)
            && let Some(keeper) = self.common.keeper()
        {
            keeper.settle_size_later(inode);
        }
        let result = answer.map(|_| ());
        match told {
            Some(told) => told.send(result),
            None => {
                if let Err(e) = result {
                    tracing::warn!(file = %inode.fid, "close: {e}");
                }
            }
        }
    }
}
