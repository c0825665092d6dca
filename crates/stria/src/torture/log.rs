//! Programs on all mounts that append records to one file: each record that was synced is there once and whole.
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::shared::Shared;

/// Bytes of a record, its newline included: no divisor of a page.
const RECORD_BYTES: usize = 100;
/// Records between two syncs.
const BATCH: u64 = 8;

/// One program that appends.
pub struct Appender {
    shared: Arc<Shared>,
    worker: usize,
    mount: usize,
    path: PathBuf,
    next: u64,
    /// Records that were synced.
    synced: Vec<u64>,
}

fn record(worker: usize, number: u64) -> Vec<u8> {
    let mut out = format!("{worker} {number} ").into_bytes();
    out.resize(RECORD_BYTES - 1, b'a' + (number % 26) as u8);
    out.push(b'\n');
    out
}

impl Appender {
    /// A program that appends to `log` through a mount.
    #[must_use]
    pub fn new(shared: Arc<Shared>, worker: usize, mounts: &[PathBuf], mount: usize) -> Appender {
        Appender { shared, worker, mount, path: mounts[mount].join("log"), next: 0, synced: Vec::new() }
    }

    /// Appends until the run is over.
    pub fn run(&mut self) {
        while !self.shared.is_over() {
            if self.shared.is_lost(self.mount) {
                self.shared.pause();
                continue;
            }
            let batch: Vec<u64> = (self.next..self.next + BATCH).collect();
            self.next += BATCH;
            let before = self.shared.before(self.mount);
            self.shared.doing(self.worker, format!("append to {}", self.path.display()));
            let done = self.append(&batch);
            self.shared.done(self.worker);
            match done {
                Ok(()) => self.synced.extend(batch),
                Err(e) if self.shared.excuses(&before, &e) => self.shared.pause(),
                Err(e) => self.shared.violation(format!("append to {}: {e}", self.path.display())),
            }
        }
    }

    fn append(&self, batch: &[u64]) -> std::io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).open(&self.path)?;
        for number in batch {
            file.write_all(&record(self.worker, *number))?;
        }
        file.sync_all()
    }

    /// Whether `log` below each mount holds what was synced. How many records.
    pub fn final_check(all: &[Appender], shared: &Shared, mounts: &[PathBuf]) -> usize {
        for path in mounts.iter().map(|m| m.join("log")) {
            match std::fs::read(&path) {
                Ok(bytes) => judge(all, &bytes).into_iter().for_each(|e| complain(shared, &path, &e)),
                Err(e) => complain(shared, &path, &e.to_string()),
            }
        }
        all.iter().map(|a| a.synced.len()).sum()
    }
}

fn complain(shared: &Shared, path: &Path, text: &str) {
    shared.violation(format!("{}: {text}", path.display()));
}

/// What is wrong with the bytes of the log. Zeros before a record are where bytes were that nobody synced, and that went with a failed
/// disk after others had appended behind them.
fn judge(all: &[Appender], bytes: &[u8]) -> Vec<String> {
    let mut counts: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for line in bytes.split_inclusive(|b| *b == b'\n') {
        let zeros = line.iter().take_while(|b| **b == 0).count();
        *counts.entry(line[zeros..].to_vec()).or_insert(0) += 1;
    }
    let mut wrong = Vec::new();
    for a in all {
        for number in &a.synced {
            match counts.remove(&record(a.worker, *number)) {
                Some(1) => {}
                Some(n) => wrong.push(format!("record {number} of program {} is there {n} times", a.worker)),
                None => wrong.push(format!("record {number} of program {} was synced and is not there", a.worker)),
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_a_doubled_and_a_torn_record_are_found() {
        let shared = Arc::new(Shared::new(1, 1));
        let mut a = Appender::new(shared, 3, &[PathBuf::from("m")], 0);
        a.synced = vec![0, 1];
        let all = [a];
        let good: Vec<u8> = [record(3, 0), record(9, 0), record(3, 1)].concat();
        assert!(judge(&all, &good).is_empty());
        assert_eq!(judge(&all, &record(3, 1)), ["record 0 of program 3 was synced and is not there"]);
        assert_eq!(judge(&all, &[good.clone(), record(3, 1)].concat()), ["record 1 of program 3 is there 2 times"]);
        let mut torn = good;
        torn[50] = 0;
        assert_eq!(judge(&all, &torn).len(), 1);
    }

    #[test]
    fn a_record_behind_lost_bytes_that_nobody_synced_is_there_and_one_whose_first_byte_is_gone_is_not() {
        let shared = Arc::new(Shared::new(1, 1));
        let mut a = Appender::new(shared, 3, &[PathBuf::from("m")], 0);
        a.synced = vec![1];
        let all = [a];
        let mut bytes = [vec![0; 600], record(3, 1)].concat();
        assert!(judge(&all, &bytes).is_empty());
        bytes[600] = 0;
        assert_eq!(judge(&all, &bytes), ["record 1 of program 3 was synced and is not there"]);
    }
}
