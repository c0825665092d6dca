//! What a program advises about an open file, and readahead of files that are not read any more.
use std::rc::Rc;

use ::readahead::record::Call;
use ::readahead::{Hint, Plan};
use types::{Duration, Extent, FsError};

use super::Data;
use crate::inode::{Inode, Object, Striping};
use crate::open_file::OpenFile;
use crate::osc::Why;

/// How long an open file is not read before what was read ahead of it counts as read.
const IDLE_AFTER: Duration = Duration::from_secs(10);

impl Data {
    /// What a program says about an open file (posix_fadvise): Normal, Sequential and Random for all that is read through
    /// this open, WillNeed and DontNeed for `extent` now. WillNeed fetches in the background; DontNeed starts to write
    /// what is dirty and drops what is clean.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// As reading: the size of the file must be known.
    pub async fn advise(self: &Rc<Self>, file: &Rc<OpenFile>, hint: Hint, extent: Extent) -> Result<(), FsError> {
        let Some(s) = self.meta.layout_of(&file.inode).await? else { return Ok(()) };
        self.plan(file, &s, &mut Plan::default(), Call::Hint(hint, extent));
        match hint {
            Hint::WillNeed => {
                self.file_size(&file.inode).await?;
                self.fetch_behind(file);
            }
            Hint::DontNeed => self.drop_advised(&file.inode, &s, extent)?,
            Hint::Normal | Hint::Sequential | Hint::Random => {}
        }
        Ok(())
    }

    /// Fetches what WILLNEED named by a task of its own. An open has one at most: it goes on with the range that was named last. Whoever
    /// advises more than an OST brings would else fill the client's memory, which all users of a host share.
    fn fetch_behind(self: &Rc<Self>, file: &Rc<OpenFile>) {
        if file.stream.fetches.replace(true) {
            return;
        }
        let (me, file) = (self.clone(), file.clone());
        self.rt.spawn(async move {
            if let Err(e) = me.fetch_advised(&file).await {
                tracing::debug!(file = %file.fid(), "advised readahead: {e}");
            }
            file.stream.fetches.set(false);
        });
    }

    /// Fetches what WILLNEED named, a window at a time, under locks that are taken for it.
    async fn fetch_advised(self: &Rc<Self>, file: &Rc<OpenFile>) -> Result<(), FsError> {
        let mut plan = Plan::default();
        while !file.stream.released.get() && file.stream.has_willneed() {
            let Some(s) = file.inode.striping() else { break };
            self.plan(file, &s, &mut plan, Call::Pump);
            for extent in &plan.asynchronous {
                let pieces = s.layout.geometry().pieces(*extent)?;
                let fetch = async |piece: layout::Piece| {
                    let object = &s.objects[usize::from(piece.stripe.0)];
                    let osc = self.osts.osc(object.ost);
                    let (held, _) = self.lock_for_read(&file.inode, &osc, object, piece.object, None, None).await?;
                    self.load_ahead(&osc, object, piece, &held).await
                };
                let work: Vec<_> = pieces.map(fetch).collect();
                for done in rt::sync::join_all(work).await {
                    done?;
                }
            }
        }
        Ok(())
    }

    fn drop_advised(self: &Rc<Self>, inode: &Inode, s: &Striping, extent: Extent) -> Result<(), FsError> {
        let pages = Extent::new(0, inode.known_size()).align_out(types::PAGE_BYTES as u64);
        let Some(known) = extent.intersect(&pages) else { return Ok(()) };
        for part in s.layout.geometry().objects(known)? {
            let object = s.objects[usize::from(part.stripe.0)].clone();
            object.drop_clean(part.object);
            if object.is_unwritten(part.object) {
                self.flush_behind(object, part.object);
            }
        }
        Ok(())
    }

    /// Writes out what DONTNEED named by a task of its own. An object has one at most: what is named meanwhile is written out behind it,
    /// with what lies between.
    fn flush_behind(&self, object: Rc<Object>, extent: Extent) {
        let wanted = object.flush_advised.get();
        object
            .flush_advised
            .set(Some(wanted.filter(|more| !more.is_empty()).map_or(extent, |more| more.hull(&extent))));
        if wanted.is_some() {
            return;
        }
        let osc = self.osts.osc(object.ost);
        self.rt.spawn(async move {
            while let Some(extent) = object.flush_advised.get().filter(|extent| !extent.is_empty()) {
                object.flush_advised.set(Some(Extent::EMPTY));
                osc.flush(&object, extent, Why::Asked).await;
            }
            object.flush_advised.set(None);
        });
    }

    /// Files that are open and not read any more give their part of the budget back, when it becomes short. Their pages
    /// stay, as pages that were read do: they leave when others need the room.
    pub(crate) fn rest_idle_readahead(&self) {
        let idle = |f: &&Rc<OpenFile>| {
            let rests = self.rt.now().since(f.stream.read_at.get()) >= IDLE_AFTER;
            rests && f.stream.outstanding_bytes() > 0
        };
        let files = if self.ahead.is_short() { self.meta.opens() } else { Vec::new() };
        for file in files.iter().filter(idle) {
            if let Some(s) = file.inode.striping() {
                self.plan(file, &s, &mut Plan::default(), Call::LockLost(Extent::ALL));
            }
        }
    }
}
