//! Ends of opens on their way to the metadata server. Those that nobody waits for travel together.
//!
//! Until its end was answered an open counts as open, here and at the server. Nobody notices that it waits a moment:
//! whoever changes the inode next, here or elsewhere, has it sent first.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rt::sync::{OneReceiver, OneSender, oneshot};
use types::{Duration, Fid, FsError};
use wire::Op;
use wire::mdt::{Attr, Close, CloseReply, CloseRequest, SetBits};

use crate::client::Client;
use crate::inode::UNSET;
use crate::open::OpenFile;

/// Ends that go together at most.
const TOGETHER_MAX: usize = 32;
/// How long an end waits for others.
const PAUSE: Duration = Duration::from_millis(2);

struct Ending {
    close: Close,
    file: Rc<OpenFile>,
    told: Option<OneSender<Result<(), FsError>>>,
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
        if file.released.replace(true) {
            return false;
        }
        file.inode.kept_append.give_up_of(file.id());
        let close = self.last_words(file).await;
        {
            let mut ahead = self.ahead.borrow_mut();
            let ended = file.readahead.replace(ahead.open());
            ahead.close(ended);
        }
        if close.handle.0 == 0 {
            self.untold_ended(file);
        }
        let ending = Ending { close, file: file.clone(), told };
        if let Some(e) = lost {
            self.ended(ending, Err(e));
            return false;
        }
        if ending.close.handle.0 == 0 && ending.close.valid == 0 {
            self.ended(ending, Ok(Attr::default()));
            return false;
        }
        self.closes.waiting.borrow_mut().push(ending);
        true
    }

    /// What the end of an open brings home.
    async fn last_words(self: &Rc<Self>, file: &OpenFile) -> Close {
        let inode = &file.inode;
        let mut close = Close { handle: file.handle.get(), fid: inode.fid, ..Close::default() };
        if file.dirty.get() {
            close.valid |= SetBits::DIRTY;
            if let Ok(size) = self.file_size(inode).await {
                close.valid |= SetBits::SIZE | SetBits::BLOCKS;
                close.size = size.size;
                close.blocks = size.blocks512;
                close.mtime = size.mtime.max(inode.mtime.get());
                close.ctime = close.mtime.max(inode.attr().ctime);
                if close.mtime != UNSET {
                    close.valid |= SetBits::MTIME | SetBits::CTIME;
                }
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
        let batch = self.closes.waiting.take();
        if batch.is_empty() {
            return None;
        }
        let (answered, listener) = oneshot();
        let me = self.clone();
        self.rt.spawn(async move {
            me.close_all(batch).await;
            answered.send(());
        });
        Some(listener)
    }

    async fn close_all(&self, batch: Vec<Ending>) {
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
    async fn close_together(&self, batch: Vec<Ending>) -> Vec<Ending> {
        let closes = batch.iter().map(|e| e.close.clone()).collect();
        let answer = self.mdt_call(Op::MdtClose, &CloseRequest { closes }).await;
        match answer.and_then(|r| r.decode::<CloseReply>()) {
            Ok(reply) if reply.closes.len() == batch.len() => {
                for (ending, closed) in batch.into_iter().zip(reply.closes) {
                    let status = i32::from(closed.status);
                    self.ended(ending, if status == 0 { Ok(closed.attr) } else { Err(FsError::from_errno(status)) });
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

    fn ended(&self, ending: Ending, answer: Result<Attr, FsError>) {
        let Ending { close, file, told } = ending;
        let inode = &file.inode;
        self.opens.borrow_mut().remove(&file.id());
        inode.closed(&file);
        if file.writes() {
            inode.writers.set(inode.writers.get() - 1);
        }
        if file.dirty.get() {
            inode.stale.set(true);
        }
        // Told now; until then it was ours to know.
        if inode.atime.get() == close.atime {
            inode.atime.set(UNSET);
        }
        if let Some(attr) = answer.as_ref().ok().filter(|a| a.fid == inode.fid) {
            inode.set_attr(attr);
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
