//! Ends of opens on their way to the metadata server. Those that nobody waits for travel together.
//!
//! Until its end was answered an open counts as open, here and at the server. Nobody notices that it waits a moment:
//! whoever changes the inode next, here or elsewhere, has it sent first.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rt::sync::{OneReceiver, OneSender, oneshot};
use types::{Duration, Fid, FsError, Transno};
use wire::Op;
use wire::mdt::{Attr, AttrFlags, Close, CloseReply, CloseRequest, Cred, SetBits};

use crate::attrs::Change;
use crate::client::Client;
use crate::inode::{Inode, SizeKeeper, UNSET};
use crate::open::OpenFile;
use crate::size::FileSize;

/// Ends that go together at most.
const TOGETHER_MAX: usize = 32;
/// Pause before a size is settled that the metadata server could not take.
const SETTLE_AGAIN: Duration = Duration::from_secs(1);
/// How long an end waits for others.
const PAUSE: Duration = Duration::from_millis(2);

struct Ending {
    close: Close,
    file: Rc<OpenFile>,
    told: Option<OneSender<Result<(), FsError>>>,
    /// On its way.
    sent: bool,
}
impl Ending {
    fn tells_size(&self) -> bool {
        self.close.valid & SetBits::SIZE != 0
    }
}

/// Ends that are not sent yet.
#[derive(Default)]
pub(crate) struct Closes {
    waiting: RefCell<Vec<Ending>>,
    /// Somebody sends them after the pause.
    pausing: Cell<bool>,
}

impl Client {
    /// The last close of an open: tells the metadata server size and times if the file was written, and waits for its
    /// answer.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn release(self: &Rc<Self>, file: &Rc<OpenFile>) -> Result<(), FsError> {
        let (tell, told) = oneshot();
        if !self.end(file, Some(tell)).await {
            return told.try_take().unwrap_or(Ok(()));
        }
        self.send_closes();
        told.await.unwrap_or(Err(FsError::NotConnected))
    }

    /// [`Client::release`] for those who do not wait for the answer; it may travel with others.
    pub async fn release_soon(self: &Rc<Self>, file: &Rc<OpenFile>) {
        if !self.end(file, None).await {
            return;
        }
        if self.closes.waiting.borrow().len() >= TOGETHER_MAX {
            self.send_closes();
        } else if !self.closes.pausing.replace(true) {
            let me = self.clone();
            self.rt.spawn(async move {
                me.rt.sleep(PAUSE).await;
                me.closes.pausing.set(false);
                me.send_closes();
            });
        }
    }

    /// The metadata server knows that no open of the inode that ended here is left.
    pub(crate) async fn settle_closes(self: &Rc<Self>, fid: Fid) {
        let waits = self.closes.waiting.borrow().iter().any(|e| e.file.fid() == fid);
        if waits {
            self.all_closes_told().await;
        }
    }

    /// Every open that ended here has ended at the metadata server.
    pub(crate) async fn all_closes_told(self: &Rc<Self>) {
        if let Some(answered) = self.send_closes() {
            answered.await;
        }
    }

    /// Adds the end of an open to those that wait. Whether there is something to tell of it.
    async fn end(self: &Rc<Self>, file: &Rc<OpenFile>, told: Option<OneSender<Result<(), FsError>>>) -> bool {
        // What it brings home counts at the server only as the end of an open that it knows of.
        let lost = self.writer_is_told(file).await.err();
        if file.stream.released.replace(true) {
            return false;
        }
        if file.writes() {
            file.inode.tells.writer_went();
        }
        file.inode.kept_append.give_up_of(file.id());
        let close = self.last_words(file).await;
        self.ahead.close(&file.stream);
        if close.handle.0 == 0 {
            self.untold_ended(file);
        }
        let ending = Ending { close, file: file.clone(), told, sent: false };
        if let Some(e) = lost {
            self.ended(ending, Err(e));
            return false;
        }
        if ending.close.handle.0 == 0 && ending.close.valid == 0 {
            self.ended(ending, Ok((Change::default(), Attr::default())));
            return false;
        }
        self.closes.waiting.borrow_mut().push(ending);
        true
    }

    /// The size that the end of an open tells: of the last one here only, and of one at a time, so that the last that the server
    /// hears of is the latest found here.
    async fn last_size(self: &Rc<Self>, inode: &Inode) -> Option<FileSize> {
        let tells = &inode.tells;
        let last = tells.last_writer()?;
        tells.all_answered().await;
        let size = self.file_size(inode).await.ok()?;
        tells.all_answered().await;
        (tells.last_writer() == Some(last)).then_some(size)
    }

    /// What the end of an open brings home.
    async fn last_words(self: &Rc<Self>, file: &OpenFile) -> Close {
        let inode = &file.inode;
        let mut close = Close { handle: file.handle.get(), fid: inode.fid, ..Close::default() };
        if file.dirty.get() {
            close.valid |= SetBits::DIRTY;
            let size = self.last_size(inode).await;
            if let Some(size) = size {
                close.valid |= SetBits::SIZE | SetBits::BLOCKS;
                close.size = size.size;
                close.blocks = size.blocks512;
            }
            // Times may have been set since the data were written.
            let newer = size.filter(|s| file.doubted.get() != Some(s.size));
            close.mtime = newer.map_or(UNSET, |s| s.mtime).max(inode.mtime.get());
            if close.mtime != UNSET {
                close.valid |= SetBits::MTIME | SetBits::CTIME;
                close.ctime = close.mtime.max(inode.attr().ctime);
            }
        }
        if inode.atime.get() != UNSET {
            close.valid |= SetBits::ATIME;
            close.atime = inode.atime.get();
        }
        close
    }

    /// Sends all that wait. Completes when they are answered, which goes on without a listener.
    fn send_closes(self: &Rc<Self>) -> Option<OneReceiver<()>> {
        let mut batch = self.closes.waiting.take();
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
            me.close_all(batch).await;
            answered.send(());
        });
        Some(listener)
    }

    async fn close_all(self: &Rc<Self>, batch: Vec<Ending>) {
        let mut batch = batch;
        while !batch.is_empty() {
            let rest = batch.split_off(batch.len().min(TOGETHER_MAX));
            for failed in self.close_together(batch).await {
                // What keeps one from its end keeps it from its own only.
                self.close_together(vec![failed]).await;
            }
            batch = rest;
        }
    }

    /// Ends opens with one request. Gives them back when that failed for the company of one of them.
    async fn close_together(self: &Rc<Self>, batch: Vec<Ending>) -> Vec<Ending> {
        let sent = self.common.clock.next();
        let closes = batch.iter().map(|e| e.close.clone()).collect();
        let mut request = CloseRequest { closes };
        let answer = self.mdt_call(Op::MdtClose, &request).await;
        match answer.and_then(|r| Ok((r.header.transno, r.decode::<CloseReply>()?))) {
            Ok((transno, reply)) if reply.closes.len() == batch.len() => {
                self.amend_outdated(transno, &mut request, &reply);
                let change = Change { sent, transno };
                for (ending, closed) in batch.into_iter().zip(reply.closes) {
                    let status = i32::from(closed.status);
                    let answer = if status == 0 { Ok((change, closed.attr)) } else { Err(FsError::from_errno(status)) };
                    self.ended(ending, answer);
                }
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

    fn ended(self: &Rc<Self>, ending: Ending, answer: Result<(Change, Attr), FsError>) {
        if ending.sent && ending.tells_size() {
            ending.file.inode.tells.answered();
        }
        if ending.sent && ending.close.valid & (SetBits::DIRTY | SetBits::SIZE) != 0 {
            self.settling.needed();
        }
        let Ending { close, file, told, .. } = ending;
        let inode = &file.inode;
        self.opens.borrow_mut().remove(&file.id());
        inode.closed(&file.stream, file.reads_and_writes());
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
            if attr.flags & AttrFlags::UNSETTLED != 0 && may_help {
                self.clone().settle_size(inode, None);
            }
            inode.take_change(*change, &Attr { flags: attr.flags & !AttrFlags::UNSETTLED, ..attr.clone() });
        }
        if file.dirty.get() && answer.as_ref().err() == Some(&FsError::Io) {
            self.clone().settle_size_later(inode);
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

impl SizeKeeper for Client {
    /// The size of a file that nobody writes any more, or of which bytes were lost, is asked of its OSTs once, by a writer that is
    /// alone with it, so that not everybody has to ask. `doubted`: what the metadata server has for it, when that may be right. If
    /// others write it meanwhile, the last of all does it again.
    fn settle_size(self: Rc<Self>, inode: &Rc<Inode>, doubted: Option<u64>) {
        const O_WRONLY: u32 = 1;
        if inode.tells.settling.replace(true) {
            return;
        }
        let (me, inode) = (self.clone(), inode.clone());
        me.settling.doubt_begins();
        self.rt.spawn(async move {
            let opened = me.open(&Cred { caps: 3, ..Cred::default() }, inode.fid, O_WRONLY).await;
            // What goes wrong from here on may be missing in what this one tells.
            inode.tells.settling.set(false);
            if let Ok(file) = &opened {
                // An open under a lease: what is wrong with it is told by its end.
                let _ = me.writer_is_told(file).await;
            }
            me.settling.doubt_ends();
            let file = match opened {
                Ok(file) => file,
                Err(FsError::Io) => return me.clone().settle_size_later(&inode),
                // Gone, or our session is: then its size stays unknown.
                Err(_) => return,
            };
            file.settles.set(true);
            file.doubted.set(doubted);
            file.dirty.set(true);
            me.release_soon(&file).await;
        });
    }

    /// [`Client::settle_size`] once the metadata server's store may take it: what it has may be wrong, and nobody else knows.
    fn settle_size_later(self: Rc<Self>, inode: &Rc<Inode>) {
        let (me, inode) = (self.clone(), inode.clone());
        me.settling.doubt_begins();
        self.rt.spawn(async move {
            me.rt.sleep(SETTLE_AGAIN).await;
            me.settling.doubt_ends();
            if !me.sessions.is_closing() {
                me.clone().settle_size(&inode, None);
            }
        });
    }
}
