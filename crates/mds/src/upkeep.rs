//! Work on the store beside service: backups ([`crate::backup`]), and reading all records against their checksums. Both are
//! begun, watched and stopped by parameters (`mdt.*.backup`, `mdt.*.scrub`).
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use types::{Duration, MIB};

use crate::backup;
use crate::keys;
use crate::kv::{Key, KvError, show_key, unseal};
use crate::mds::Mds;
use crate::record::Inode;
use crate::start::{SCAN_KEYS, ready};

/// Damaged records that are named; the rest is counted.
const NAMED_MAX: usize = 100;
/// Highest rate, in MiB per second.
const RATE_MAX: u64 = 100_000;
/// Bytes of records that are read between two pauses.
const BYTES_PER_STEP: u64 = 256 << 10;

/// How far the reading of all records is.
#[derive(Default)]
pub(crate) struct ScrubState {
    status: &'static str,
    /// Grows with every order: a reading whose number is not this one ends.
    order: u64,
    rate_mib: u64,
    records: u64,
    bytes: u64,
    faults: u64,
    named: Vec<String>,
}

impl ScrubState {
    /// The value of the parameter.
    pub fn text(&self) -> String {
        let status = if self.status.is_empty() { "idle" } else { self.status };
        let mut s = format!(
            "status: {status}\nrate_mib_per_s: {}\nrecords: {}\nbytes: {}\nfaults: {}\n",
            self.rate_mib, self.records, self.bytes, self.faults
        );
        for named in &self.named {
            let _ = writeln!(s, "fault: record {named}");
        }
        s
    }
}

/// MiB per second; 0: stop.
fn rate_of(text: &str) -> Result<u64, String> {
    match text {
        "stop" => Ok(0),
        _ => text.parse().ok().filter(|r| *r <= RATE_MAX).ok_or_else(|| {
            format!("'{text}' is no rate: write 1 to {RATE_MAX} (MiB per second), or 0 or stop to end it")
        }),
    }
}

impl Mds {
    /// Begins to write a backup; the parameter says when it is done.
    pub(crate) fn begin_backup(self: &Rc<Self>, path: &str) -> Result<(), String> {
        if !Path::new(path).is_absolute() {
            return Err(format!("'{path}' is not the path of a new file on the metadata server's host, from / on"));
        }
        if self.backup.borrow().starts_with("running ") {
            return Err("a backup is being written: wait for it".into());
        }
        let (me, path) = (self.clone(), PathBuf::from(path));
        *self.backup.borrow_mut() = format!("running {}: 0 records", path.display());
        self.rt.spawn(async move {
            let shown = path.display();
            // What was answered before the backup was asked for is in it.
            let done = match me.store.sync().await {
                Err(e) => Err(e.to_string()),
                Ok(()) => {
                    let told = |records| *me.backup.borrow_mut() = format!("running {shown}: {records} records");
                    backup::write(&me.rt, me.store.engine(), &path, told).await.map_err(|e| e.to_string())
                }
            };
            let text = match done {
                Ok(h) => format!("done {shown}: {} records as of transaction {}", h.records, h.transno),
                Err(e) => format!("failed {shown}: {e}"),
            };
            tracing::info!(target = me.target, "backup: {text}");
            *me.backup.borrow_mut() = text;
        });
        Ok(())
    }

    /// Begins to read all records at so many MiB/s, or stops (0).
    pub(crate) fn set_scrub(self: &Rc<Self>, value: &str) -> Result<(), String> {
        let rate = rate_of(value)?;
        let order = {
            let mut s = self.scrub.borrow_mut();
            let status = if rate > 0 { "running" } else { "stopped" };
            if rate == 0 && s.status != "running" {
                return Ok(());
            }
            let order = s.order + 1;
            match rate {
                0 => (s.status, s.order) = (status, order),
                _ => *s = ScrubState { status, order, rate_mib: rate, ..ScrubState::default() },
            }
            order
        };
        if rate > 0 {
            let me = self.clone();
            self.rt.spawn(async move {
                let done = me.scrub_records(order, rate * MIB).await;
                let mut s = me.scrub.borrow_mut();
                if s.order == order {
                    s.status = if done.is_ok() { "complete" } else { "failed" };
                    if let Err(e) = done {
                        tracing::error!(target = me.target, "scrub: {e}");
                    }
                }
            });
        }
        Ok(())
    }

    /// Reads every record of the store as it is now. Changes that come meanwhile are not looked at: they were written by
    /// this server.
    async fn scrub_records(self: &Rc<Self>, order: u64, bytes_per_s: u64) -> Result<(), KvError> {
        let snapshot = self.store.engine().snapshot().await?;
        let (mut from, to) = (Key::new(), Key::from_elem(u8::MAX, 64));
        let mut step = 0;
        loop {
            let page = ready(snapshot.range(&from, &to, SCAN_KEYS)).await?;
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
                if self.scrub.borrow().order != order || self.stopped.get() {
                    return Ok(());
                }
            }
        }
    }

    fn judge(&self, key: &[u8], sealed: Vec<u8>) {
        let mut s = self.scrub.borrow_mut();
        s.records += 1;
        s.bytes += (key.len() + sealed.len()) as u64;
        let whole = match (key.first(), unseal(key, sealed)) {
            (_, Err(_)) => false,
            (Some(&keys::INODE), Ok(v)) => keys::fid_of(key).is_some_and(|fid| Inode::decode(fid, &v).is_some()),
            _ => true,
        };
        if !whole {
            s.faults += 1;
            let named = show_key(key);
            tracing::error!(target = self.target, key = named, "scrub: a record is damaged: 'stria fsck' says more");
            if s.named.len() < NAMED_MAX {
                s.named.push(named);
            }
        }
    }
}
