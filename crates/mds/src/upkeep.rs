//! Work on the store beside service: backups ([`crate::backup`]), and reading all records against their checksums. Both are
//! begun, watched and stopped by parameters (`mdt.*.backup`, `mdt.*.scrub`).
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rt::sync::oneshot;
use types::scrub::{Progress, rate_of};
use types::{Duration, MIB};

use crate::backup;
use crate::keys;
use crate::kv::{Key, KvError, show_key, unseal};
use crate::mds::Mds;
use crate::record::Inode;
use crate::start::{PAGE_KEYS, ready};

/// Bytes of records that are read between two pauses.
const BYTES_PER_STEP: u64 = 256 << 10;

/// How far the reading of all records is.
#[derive(Default)]
pub(crate) struct ScrubState {
    progress: Progress,
    records: u64,
}

impl ScrubState {
    /// Damaged places found.
    pub fn faults(&self) -> u64 {
        self.progress.totals().1
    }
    /// The value of the parameter.
    pub fn text(&self) -> String {
        self.progress.text(&format!("records: {}", self.records))
    }
}

impl Mds {
    /// Begins to write a backup; the parameter says when it is done.
    pub(crate) async fn begin_backup(self: &Rc<Self>, path: &str) -> Result<(), String> {
        if !Path::new(path).is_absolute() {
            return Err(format!("'{path}' is not the path of a new file on the metadata server's host, from / on"));
        }
        if self.backup.borrow().starts_with("running ") {
            return Err("a backup is being written: wait for it".into());
        }
        let (me, path) = (self.clone(), PathBuf::from(path));
        *self.backup.borrow_mut() = format!("running {}: 0 records", path.display());
        let (tell, begun) = oneshot();
        self.rt.spawn(async move {
            let (shown, place_of) = (path.display().to_string(), me.config.place_of);
            let text = match me.rt.offload(move || place_of(&path)).await {
                Err(why) => {
                    let text = format!("failed {shown}: {why}");
                    tell.send(Err(why));
                    text
                }
                Ok(place) => {
                    tell.send(Ok(()));
                    me.back_up(&shown, &place).await
                }
            };
            tracing::info!(target = me.target, "backup: {text}");
            *me.backup.borrow_mut() = text;
        });
        begun.await.unwrap_or(Ok(()))
    }

    /// Writes a backup into a file that is shown by another path; what became of it.
    async fn back_up(self: &Rc<Self>, shown: &str, place: &Path) -> String {
        // What was answered before the backup was asked for is in it.
        let done = match self.store.sync().await {
            Err(e) => Err(e.to_string()),
            Ok(()) => {
                let told = |records| *self.backup.borrow_mut() = format!("running {shown}: {records} records");
                backup::write(&self.rt, self.store.engine(), place, backup::Kind::Backup, told)
                    .await
                    .map_err(|e| e.to_string())
            }
        };
        match done {
            Ok(h) => format!("done {shown}: {} records as of transaction {}", h.records, h.transno),
            Err(e) => format!("failed {shown}: {e}"),
        }
    }

    /// Begins to read all records at so many MiB/s, or stops (0).
    pub(crate) fn set_scrub(self: &Rc<Self>, value: &str) -> Result<(), String> {
        let rate = rate_of(value)?;
        let mut s = self.scrub.borrow_mut();
        if rate == 0 {
            s.progress.stop();
            return Ok(());
        }
        s.records = 0;
        let order = s.progress.begin(rate);
        let me = self.clone();
        self.rt.spawn(async move {
            let done = match me.scrub_pages(order, rate * MIB).await {
                Ok(()) => me.scrub_records(order, rate * MIB).await,
                Err(e) => Err(e),
            };
            let counts = me.scrub.borrow_mut().progress.on_end(order, done.is_ok());
            if let Err(e) = done
                && counts
            {
                tracing::error!(target = me.target, "scrub: {e}");
            }
        });
        Ok(())
    }

    /// Compares the pages of the store's own with their checksums.
    async fn scrub_pages(self: &Rc<Self>, order: u64, bytes_per_s: u64) -> Result<(), KvError> {
        let engine = self.store.engine();
        while self.scrub.borrow().progress.goes_on(order) && !self.stopped.get() {
            let looked = engine.look_at_pages(BYTES_PER_STEP).await?;
            for fault in looked.faults {
                tracing::error!(target = self.target, "scrub: {fault}: 'stria fsck' says more");
                self.scrub.borrow_mut().progress.on_fault(fault);
            }
            self.scrub.borrow_mut().progress.on_bytes(looked.bytes);
            if looked.is_over {
                break;
            }
            self.rt.sleep(Duration::from_nanos(looked.bytes.saturating_mul(1_000_000_000) / bytes_per_s)).await;
        }
        engine.look_at_pages(0).await.map(drop)
    }

    /// Reads every record of the store as it is now. Changes that come meanwhile are not looked at: they were written by
    /// this server.
    async fn scrub_records(self: &Rc<Self>, order: u64, bytes_per_s: u64) -> Result<(), KvError> {
        let snapshot = self.store.engine().snapshot().await?;
        let (mut from, to) = (Key::new(), Key::from_elem(u8::MAX, 64));
        let mut step = 0;
        loop {
            let page = ready(snapshot.range(&from, &to, PAGE_KEYS)).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            from = Key::from_slice(last);
            from.push(0);
            for (key, sealed) in page {
                step += (key.len() + sealed.len()) as u64;
                self.judge(&key, sealed);
                if step >= BYTES_PER_STEP {
                    let pause = Duration::from_nanos(step.saturating_mul(1_000_000_000) / bytes_per_s);
                    step = 0;
                    self.rt.sleep(pause).await;
                }
                if !self.scrub.borrow().progress.goes_on(order) || self.stopped.get() {
                    return Ok(());
                }
            }
        }
    }

    fn judge(&self, key: &[u8], sealed: Vec<u8>) {
        let mut s = self.scrub.borrow_mut();
        s.records += 1;
        s.progress.on_bytes((key.len() + sealed.len()) as u64);
        let whole = match (key.first(), unseal(key, sealed)) {
            (_, Err(_)) => false,
            (Some(&keys::INODE), Ok(v)) => keys::fid_of(key).is_some_and(|fid| Inode::decode(fid, &v).is_some()),
            _ => true,
        };
        if !whole {
            let named = show_key(key);
            tracing::error!(target = self.target, key = named, "scrub: a record is damaged: 'stria fsck' says more");
            s.progress.on_fault(format!("record {named}"));
        }
    }
}
