//! Readahead of a client, changed, advised and recorded while files are open.
use std::rc::Rc;

use layout::StripeIndex;
use readahead::record::Call;
use readahead::{Config, EachFile, Hint, Plan, Recorded};
use types::record::Recordable as _;
use types::{Duration, Extent, FsError};

use crate::client::Client;
use crate::inode::{Inode, Striping};
use crate::open::OpenFile;

/// How long an open file is not read before what was read ahead of it counts as read.
const IDLE_AFTER: Duration = Duration::from_secs(10);

impl Inode {
    /// Tells readahead of every open about bytes of an object that left the cache.
    pub(crate) fn tell_readahead(&self, stripe: u16, object: Extent, call: fn(Extent) -> Call) {
        let (Some(client), Some(s), files) = (self.client(), self.striping(), self.files()) else { return };
        let Ok(pieces) = s.layout.geometry().file_pieces(StripeIndex(stripe), object) else { return };
        for piece in pieces {
            for file in &files {
                client.plan(file, &s, &mut Plan::default(), call(piece.file));
            }
        }
    }
}

/// The same settings with a budget that leaves most of a cache of `cache_bytes` to what was read ahead earlier and is
/// not read yet: several readers, each of them ahead of itself, must not push out each other's pages.
pub(crate) fn within_cache(config: Config, cache_bytes: u64) -> Config {
    let budget_bytes_max = config.budget_bytes_max.min(cache_bytes / 4);
    Config { budget_bytes_max, ..config }
}

impl Client {
    /// What a program says about an open file (posix_fadvise): Normal, Sequential and Random for all that is read through
    /// this open, WillNeed and DontNeed for `extent` now. WillNeed fetches in the background; DontNeed starts to write
    /// what is dirty and drops what is clean.
    ///
    /// # Errors
    /// As reading: the size of the file must be known.
    pub async fn advise(self: &Rc<Self>, file: &Rc<OpenFile>, hint: Hint, extent: Extent) -> Result<(), FsError> {
        let Some(s) = self.layout_of(&file.inode).await? else { return Ok(()) };
        self.plan(file, &s, &mut Plan::default(), Call::Hint(hint, extent));
        match hint {
            Hint::WillNeed => {
                self.file_size(&file.inode).await?;
                let (me, file) = (self.clone(), file.clone());
                self.rt.spawn(async move {
                    if let Err(e) = me.fetch_advised(&file, &s).await {
                        tracing::debug!(file = %file.fid(), "advised readahead: {e}");
                    }
                });
            }
            Hint::DontNeed => self.drop_advised(&file.inode, &s, extent)?,
            Hint::Normal | Hint::Sequential | Hint::Random => {}
        }
        Ok(())
    }

    /// Fetches what WILLNEED named, a window at a time, under locks that are taken for it.
    async fn fetch_advised(self: &Rc<Self>, file: &Rc<OpenFile>, s: &Rc<Striping>) -> Result<(), FsError> {
        let mut plan = Plan::default();
        while !file.released.get() && file.readahead.borrow().file().has_willneed() {
            self.plan(file, s, &mut plan, Call::Pump);
            for extent in &plan.asynchronous {
                let pieces = s.layout.geometry().pieces(*extent)?;
                let fetch = async |piece: layout::Piece| {
                    let object = &s.objects[usize::from(piece.stripe.0)];
                    let osc = self.osc(object.ost);
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
                let osc = self.osc(object.ost);
                self.rt.spawn(async move { osc.flush(&object, part.object, crate::osc::Why::Asked).await });
            }
        }
        Ok(())
    }

    /// Files that are open and not read any more give their part of the budget back, when it becomes short. Their pages
    /// stay, as pages that were read do: they leave when others need the room.
    pub(crate) fn rest_idle_readahead(&self) {
        let short = {
            let ahead = self.ahead.borrow();
            ahead.budget().held_bytes() > ahead.budget().limit_bytes() / 2
        };
        let idle = |f: &&Rc<OpenFile>| {
            let rests = self.rt.now().since(f.read_at.get()) >= IDLE_AFTER;
            rests && f.readahead.borrow().file().outstanding_bytes() > 0
        };
        let files: Vec<_> =
            if short { self.opens.borrow().values().filter(idle).cloned().collect() } else { Vec::new() };
        for file in files {
            if let Some(s) = file.inode.striping() {
                self.plan(&file, &s, &mut Plan::default(), Call::LockLost(Extent::ALL));
            }
        }
    }

    /// The readahead policy in use.
    #[must_use]
    pub fn readahead_policy(&self) -> &'static str {
        self.ahead.borrow().policy()
    }
    /// Changes the readahead policy of every file, open or to be opened.
    ///
    /// # Errors
    /// A sentence that names the policies there are.
    pub fn set_readahead_policy(&self, name: &str) -> Result<(), String> {
        let wanted = self.ahead_wanted.borrow().clone();
        self.switch_readahead(name, wanted)
    }
    /// A readahead setting by its key or Lustre's name for it, in bytes or what the key counts.
    #[must_use]
    pub fn readahead_setting(&self, key: &str) -> Option<u64> {
        let row = Config::KEYS.iter().find(|k| k.key == key || !key.is_empty() && k.alias_mb == key)?;
        self.ahead.borrow().config().get(row.key)
    }
    /// Changes a readahead setting (Lustre's names count MiB) of every file, open or to be opened.
    ///
    /// # Errors
    /// A sentence with the key's range.
    pub fn set_readahead(&self, key: &str, value: &str) -> Result<(), String> {
        let mut wanted = self.ahead_wanted.borrow().clone();
        wanted.set(key, value).map_err(|e| e.to_string())?;
        self.switch_readahead(self.readahead_policy(), wanted)
    }
    /// The cache has another size: a budget that was cut to the old one is cut anew.
    pub(crate) fn fit_readahead(&self) {
        let (policy, wanted) = (self.readahead_policy(), self.ahead_wanted.borrow().clone());
        self.switch_readahead(policy, wanted).expect("the policy in use is known");
    }
    fn switch_readahead(&self, policy: &str, wanted: Config) -> Result<(), String> {
        let config = within_cache(wanted.clone(), self.pages.limit_pages() as u64 * frames::FRAME_BYTES as u64);
        let done = self.each_ahead(|files| self.ahead.borrow_mut().switch(policy, config, files));
        done.map_err(|e| e.to_string())?;
        *self.ahead_wanted.borrow_mut() = wanted;
        Ok(())
    }
    /// Counters of readahead, over all files since the client joined.
    #[must_use]
    pub fn readahead_stats(&self) -> readahead::Stats {
        self.each_ahead(|files| self.ahead.borrow().stats(files))
    }

    /// Bytes that all open files have prefetched and not used.
    #[must_use]
    pub fn readahead_held_bytes(&self) -> u64 {
        self.ahead.borrow().budget().held_bytes()
    }

    /// The recording of readahead: `on`, what the last check said, or `off`.
    #[must_use]
    pub fn readahead_record(&self) -> String {
        self.ahead_recorded(|r| r.record_param())
    }
    /// Records readahead: a size of memory starts, `check` ends and replays, `off` drops.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_readahead_record(&self, text: &str) -> Result<(), String> {
        self.ahead_recorded(|r| r.set_record_param(text))
    }

    fn ahead_recorded<T>(&self, work: impl FnOnce(&mut Recorded<'_>) -> T) -> T {
        self.each_ahead(|files| work(&mut Recorded { ahead: &mut self.ahead.borrow_mut(), files }))
    }
    fn each_ahead<T>(&self, work: impl FnOnce(EachFile<'_>) -> T) -> T {
        let opens = self.opens.borrow();
        work(&mut |each| opens.values().for_each(|file| each(&mut file.readahead.borrow_mut())))
    }
}
