//! Opens that make, empty and end files: what both the names and the bytes of a file have a say in.
use std::rc::Rc;

use rt::sync::{OneSender, oneshot};
use types::{Duration, Fid, FsError};
use wire::Bytes;
use wire::mdt::{Attr, Close, Cred, OpenRequest, SetBits};

use crate::attrs::Change;
use crate::client::Client;
use crate::data::size::FileSize;
use crate::ending::Ending;
use crate::entries::Entry;
use crate::goes_on::{goes_on, goes_on_or};
use crate::inode::{Inode, SizeKeeper, UNSET};
use crate::meta::missed::Missed;
use crate::meta::names::check_name;
use crate::open_file::{O_ACCMODE, O_CREAT, O_EXCL, O_TRUNC, OpenFile};

/// Pause before a size is settled that the metadata server could not take.
const SETTLE_AGAIN: Duration = Duration::from_secs(1);
const O_WRONLY: u32 = 1;

/// An open's flags as it is carried out, and whether it empties a file that it may only read: the metadata server takes an open that
/// empties a file for a writer's, so another one does that, and the reader's has no O_TRUNC.
fn emptied_aside(flags: u32) -> (u32, bool) {
    let aside = flags & O_ACCMODE == 0 && flags & O_TRUNC != 0;
    (if aside { flags & !O_TRUNC } else { flags }, aside)
}

/// What a file is to be when its open creates it.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewFile<'a> {
    /// O_* flags of the open.
    pub flags: u32,
    /// Permission bits, umask not yet applied.
    pub mode: u32,
    /// umask of the caller.
    pub umask: u32,
    /// Layout wished, as `lustre.lov` set bytes; empty: the directory's default.
    pub layout: &'a [u8],
}

impl Client {
    /// Opens an inode.
    ///
    /// Cancel: goes on by itself, and what it opened is closed.
    ///
    /// # Errors
    /// EACCES, EISDIR, ENOENT, EROFS, ETXTBSY as open(2).
    pub async fn open(self: &Rc<Self>, cred: &Cred, fid: Fid, flags: u32) -> Result<Rc<OpenFile>, FsError> {
        if let Some(file) = self.meta.open_untold(cred, fid, flags & !(O_CREAT | O_EXCL)) {
            return Ok(file);
        }
        let (me, cred, closer) = (self.clone(), cred.clone(), self.clone());
        let (flags, aside) = emptied_aside(flags);
        let opened = async move {
            let file = me.meta.open(&cred, fid, flags).await?;
            me.bring_time(&file).await;
            me.cut_opened(&file, aside).await?;
            Ok(file)
        };
        goes_on_or(self.sessions.alone(), opened, move |opened: Result<_, FsError>| {
            opened.iter().for_each(|f| closer.unwanted(f))
        })
        .await
    }
    /// Nobody is there to take an open.
    pub(crate) fn unwanted(self: &Rc<Self>, file: &Rc<OpenFile>) {
        let (me, file) = (self.clone(), file.clone());
        self.rt().spawn(async move { me.release_soon(&file).await });
    }

    /// Creates and opens a name (or with an empty name a nameless file in directory `parent`).
    ///
    /// Cancel: goes on by itself, and what it opened is closed.
    ///
    /// # Errors
    /// As open(2).
    pub async fn create_open(
        self: &Rc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        new: NewFile<'_>,
    ) -> Result<(Entry, Rc<OpenFile>), FsError> {
        if !name.is_empty() {
            check_name(name)?;
        }
        let (flags, aside) = emptied_aside(new.flags);
        let request = OpenRequest {
            cred: cred.clone(),
            parent,
            name: name.into(),
            flags,
            mode: new.mode,
            umask: new.umask,
            layout: Bytes::from(new.layout),
            ..OpenRequest::default()
        };
        let (me, closer) = (self.clone(), self.clone());
        let created = async move { me.create_opened(request, aside).await };
        let undo =
            move |created: Result<(Entry, Rc<OpenFile>), FsError>| created.iter().for_each(|(_, f)| closer.unwanted(f));
        goes_on_or(self.sessions.alone(), created, undo).await
    }

    async fn create_opened(
        self: &Rc<Self>,
        request: OpenRequest,
        aside: bool,
    ) -> Result<(Entry, Rc<OpenFile>), FsError> {
        let (cred, parent, name) = (request.cred.clone(), request.parent, request.name.0.clone());
        let (file, made) = self.meta.open_with(request).await?;
        if made {
            self.inherit_advice(&cred, &file.inode);
        } else {
            self.bring_time(&file).await;
            self.cut_opened(&file, aside).await?;
        }
        if !name.is_empty() {
            self.meta.learn_name(parent, &name, &file.inode);
        }
        let entry = self.named_entry(&file.inode).await;
        if !made && (aside || file.flags() & O_TRUNC != 0) {
            // Who asked for it may have been killed since it was cut, and the kernel know it by another name.
            self.meta.may_be_missed(&file.inode);
        }
        match entry {
            Ok(entry) => Ok((entry, file)),
            Err(e) => {
                self.unwanted(&file);
                Err(e)
            }
        }
    }

    /// A time that was set while nobody had the file open for writing is told to its objects before the first one writes: while it is
    /// open everybody asks them when it was written.
    async fn bring_time(&self, file: &OpenFile) {
        let Some(time) = file.time_untold.take().filter(|_| file.writes() && !types::planted!("set-time-untold"))
        else {
            return;
        };
        if let Err(e) = self.data.renew_time(&file.inode, time).await {
            tracing::debug!(fid = %file.inode.fid, "its modification time is not told to its objects: {e}");
        }
    }

    /// An open with O_TRUNC of a file that was there: it is made empty, by an open of its own (`aside`) or by this one.
    async fn cut_opened(self: &Rc<Self>, file: &Rc<OpenFile>, aside: bool) -> Result<(), FsError> {
        let is_file = file.inode.attr().mode & 0o170_000 == 0o100_000;
        let cut = if aside {
            Box::pin(self.empty(&file.cred, file.fid())).await
        } else if file.flags() & O_TRUNC != 0 && file.writes() && is_file {
            Box::pin(self.truncate(&file.cred, &file.inode, 0, Some(file))).await
        } else {
            Ok(())
        };
        if cut.is_err() {
            // Some of it may be gone all the same.
            self.meta.kernel_missed(Missed::attributes(file.fid())).await;
            let _ = self.release(file).await;
        }
        cut
    }

    /// Makes a file empty, if the caller may write to it.
    async fn empty(self: &Rc<Self>, cred: &Cred, fid: Fid) -> Result<(), FsError> {
        let writer = self.open(cred, fid, O_WRONLY | O_TRUNC).await?;
        self.release(&writer).await
    }

    /// The last close of an open: tells the metadata server size and times if the file was written, and waits for its
    /// answer.
    ///
    /// Cancel: goes on by itself.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn release(self: &Rc<Self>, file: &Rc<OpenFile>) -> Result<(), FsError> {
        let (me, file) = (self.clone(), file.clone());
        goes_on(self.sessions.alone(), async move { me.release_now(&file).await }).await
    }

    async fn release_now(self: &Rc<Self>, file: &Rc<OpenFile>) -> Result<(), FsError> {
        let (tell, told) = oneshot();
        let Some(ending) = self.end(file, Some(tell)).await else {
            return told.try_take().unwrap_or(Ok(()));
        };
        self.meta.tell_end(ending);
        told.await.unwrap_or(Err(FsError::NotConnected))
    }

    /// [`Client::release`] for those who do not wait for the answer; it may travel with others.
    ///
    /// Cancel: goes on by itself.
    pub async fn release_soon(self: &Rc<Self>, file: &Rc<OpenFile>) {
        let (me, file) = (self.clone(), file.clone());
        let released = async move {
            if let Some(ending) = me.end(&file, None).await {
                me.meta.tell_end_soon(ending);
            }
        };
        goes_on(self.sessions.alone(), released).await;
    }

    /// Ends an open here. What there is to tell of it, if anything.
    async fn end(self: &Rc<Self>, file: &Rc<OpenFile>, told: Option<OneSender<Result<(), FsError>>>) -> Option<Ending> {
        // What it brings home counts at the server only as the end of an open that it knows of.
        let lost = self.meta.writer_is_told(file).await.err();
        if file.stream.released.replace(true) {
            return None;
        }
        if file.writes() {
            file.inode.tells.writer_went();
        }
        file.inode.kept_append.give_up_of(file.id());
        let close = self.last_words(file).await;
        self.data.readahead().close(&file.stream);
        if close.handle.0 == 0 {
            self.meta.untold_ended(file);
        }
        let ending = Ending { close, file: file.clone(), told, sent: false };
        if let Some(e) = lost {
            self.meta.ended(ending, Err(e));
            return None;
        }
        if ending.close.handle.0 == 0 && ending.close.valid == 0 {
            self.meta.ended(ending, Ok((Change::default(), Attr::default())));
            return None;
        }
        Some(ending)
    }

    /// The size that the end of an open tells: of the last one here only, and of one at a time, so that the last that the server
    /// hears of is the latest found here.
    async fn last_size(self: &Rc<Self>, inode: &Rc<Inode>) -> Option<FileSize> {
        let tells = &inode.tells;
        let last = tells.last_writer()?;
        tells.all_answered().await;
        let size = self.data.file_size(inode).await.ok()?;
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
}

impl SizeKeeper for Client {
    /// The size of a file that nobody writes any more, or of which bytes were lost, is asked of its OSTs once, by a writer that is
    /// alone with it, so that not everybody has to ask. `doubted`: what the metadata server has for it, when that may be right. If
    /// others write it meanwhile, the last of all does it again.
    fn settle_size(self: Rc<Self>, inode: &Rc<Inode>, doubted: Option<u64>) {
        if inode.tells.settling.replace(true) {
            return;
        }
        let (me, inode) = (self.clone(), inode.clone());
        me.settling.doubt_begins();
        self.sessions.rt().spawn(async move {
            let opened = me.open(&Cred { caps: 3, ..Cred::default() }, inode.fid, O_WRONLY).await;
            // What goes wrong from here on may be missing in what this one tells.
            inode.tells.settling.set(false);
            if let Ok(file) = &opened {
                // An open under a lease: what is wrong with it is told by its end.
                let _ = me.meta.writer_is_told(file).await;
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

    /// [`SizeKeeper::settle_size`] once the metadata server's store may take it: what it has may be wrong, and nobody else knows.
    fn settle_size_later(self: Rc<Self>, inode: &Rc<Inode>) {
        let (me, inode) = (self.clone(), inode.clone());
        me.settling.doubt_begins();
        self.sessions.rt().spawn(async move {
            me.sessions.rt().sleep(SETTLE_AGAIN).await;
            me.settling.doubt_ends();
            if !me.sessions.is_closing() {
                me.clone().settle_size(&inode, None);
            }
        });
    }
}
