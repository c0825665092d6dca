//! What one rank does in a phase: wait for the start, open, transfer, sync, close.
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::failure::{Failed, Outcome};
use crate::message::RankDone;
use crate::os;
use crate::pattern::{Buffer, Pattern};
use crate::plan::{Access, Phase, Workload};
use crate::series::Series;

/// What the ranks of an agent share.
pub struct Shared<'a> {
    /// What to do.
    pub workload: &'a Workload,
    /// The test file.
    pub base: &'a Path,
    /// Read or write.
    pub phase: Phase,
    /// When to begin, ns of this host's clock.
    pub at_ns: u64,
    /// Length of the intervals, ns.
    pub interval_ns: u64,
    /// Compare what is read.
    pub check: bool,
    /// Set when all are to end.
    pub stop: &'a AtomicBool,
    /// Bytes that all of them moved.
    pub moved: &'a AtomicU64,
}

/// A rank at work.
struct Worker<'a> {
    shared: &'a Shared<'a>,
    pattern: Pattern,
    buffer: Buffer,
    done: RankDone,
    series: Series,
}

/// Runs ranks at the same time, each on a thread of its own. When one fails, all end.
#[must_use]
pub fn run(shared: &Shared<'_>, ranks: std::ops::Range<u32>) -> (Vec<RankDone>, Series) {
    let mut all = Series::default();
    let mut done = Vec::new();
    std::thread::scope(|scope| {
        let spawn = |rank| std::thread::Builder::new().spawn_scoped(scope, move || Worker::new(shared, rank).run());
        let threads: Vec<_> = ranks.map(|rank| (rank, spawn(rank))).collect();
        for (rank, thread) in threads {
            let ended = match thread {
                Ok(thread) => thread.join().map_err(|_| "its thread panicked".to_string()),
                Err(e) => Err(format!("starting its thread: {e}")),
            };
            let (one, series) = ended.unwrap_or_else(|why| {
                shared.stop.store(true, Ordering::Relaxed);
                let failed = Some(Failed::new(format!("rank {rank}: {why}"), libc::EAGAIN));
                (RankDone { rank, failed, ..RankDone::default() }, Series::default())
            });
            all.add(&series);
            done.push(one);
        }
    });
    (done, all)
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared<'a>, rank: u32) -> Worker<'a> {
        let part = shared.workload.part(rank, shared.phase);
        let pattern = Pattern::new(shared.workload.seed, shared.workload.file_of(part));
        let buffer = pattern.buffer(shared.workload.transfer_bytes as usize);
        Worker { shared, pattern, buffer, done: RankDone { rank, ..RankDone::default() }, series: Series::default() }
    }

    fn run(mut self) -> (RankDone, Series) {
        os::sleep_until(self.shared.at_ns);
        self.done.begin_ns = os::now_ns();
        if let Err(failed) = self.transfer_all() {
            self.shared.stop.store(true, Ordering::Relaxed);
            self.done.failed = Some(failed.by(&format!("rank {}", self.done.rank)));
        }
        self.done.end_ns = os::now_ns();
        (self.done, self.series)
    }

    fn transfer_all(&mut self) -> Outcome {
        let (workload, phase) = (self.shared.workload, self.shared.phase);
        let part = workload.part(self.done.rank, phase);
        let path = workload.path(self.shared.base, workload.file_of(part));
        let writes = phase == Phase::Write;
        let opened = OpenOptions::new().read(!writes).write(writes).open(&path);
        let file = opened.map_err(|e| Failed::io("opening", &path, &e))?;
        let mut before = os::now_ns();
        for access in workload.accesses(part) {
            if self.shared.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.transfer(&file, access).map_err(|e| failure(&e, phase, &path, access))?;
            let now = os::now_ns();
            self.done.slowest_ns = self.done.slowest_ns.max(now - before);
            before = now;
            self.done.bytes += access.bytes;
            self.series.count(now.saturating_sub(self.shared.at_ns), self.shared.interval_ns, access.bytes);
            self.shared.moved.fetch_add(access.bytes, Ordering::Relaxed);
        }
        if writes && workload.fsync {
            file.sync_all().map_err(|e| Failed::io("syncing", &path, &e))?;
        }
        close(file).map_err(|e| Failed::io("closing", &path, &e))
    }

    fn transfer(&mut self, file: &File, access: Access) -> io::Result<()> {
        let len = access.bytes as usize;
        if self.shared.phase == Phase::Write {
            return file.write_all_at(self.pattern.stamp(&mut self.buffer, access.offset, len), access.offset);
        }
        let piece = &mut self.buffer[..len];
        file.read_exact_at(piece, access.offset)?;
        if self.shared.check
            && let Err(wrong) = self.pattern.check(access.offset, piece)
        {
            self.done.wrong += 1;
            self.done.first_wrong.get_or_insert_with(|| {
                format!("at {}: {:016x} instead of {:016x}", wrong.offset, wrong.found, wrong.expected)
            });
        }
        Ok(())
    }
}

/// close(2) with its answer, which is the last chance to hear of a write that failed.
fn close(file: File) -> io::Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: the descriptor belongs to nobody else any more.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn failure(e: &io::Error, phase: Phase, path: &Path, access: Access) -> Failed {
    let (end, at) = (access.offset + access.bytes, access.offset);
    match e.kind() {
        io::ErrorKind::UnexpectedEof => Failed::new(
            format!("{} ends before {end}: it is smaller than this workload", path.display()),
            libc::ENODATA,
        ),
        _ => {
            let what = if phase == Phase::Write { "writing to" } else { "reading" };
            let said = format!("{what} {} at {at}: {e}", path.display());
            Failed::new(said, e.raw_os_error().unwrap_or(libc::EIO))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Draft;

    fn workload() -> Workload {
        Draft {
            transfer_bytes: 1 << 10,
            block_bytes: 8 << 10,
            segments: 3,
            agents: 1,
            tasks: 4,
            files: 1,
            random: true,
            reorder: false,
            fsync: true,
            seed: 7,
        }
        .checked()
        .unwrap()
    }

    fn done(workload: &Workload, base: &Path, phase: Phase) -> (Vec<RankDone>, Series) {
        let (stop, moved) = (AtomicBool::new(false), AtomicU64::new(0));
        let at_ns = os::now_ns();
        let shared =
            Shared { workload, base, phase, at_ns, interval_ns: 1_000_000, check: true, stop: &stop, moved: &moved };
        run(&shared, 0..workload.ranks())
    }

    #[test]
    fn what_ranks_wrote_is_there_to_the_byte_and_a_changed_byte_is_found() {
        let dir = tempfile::tempdir().unwrap();
        for files in [1, 2, 4] {
            let base = dir.path().join(files.to_string());
            let w = Draft { files, ..workload().into() }.checked().unwrap();
            (0..files).for_each(|f| drop(File::create(w.path(&base, f)).unwrap()));
            let (ranks, series) = done(&w, &base, Phase::Write);
            assert!(ranks.iter().all(|r| r.failed.is_none() && r.bytes == w.rank_bytes()), "{ranks:?}");
            assert_eq!(series.bytes(), w.total_bytes());
            let (ranks, series) = done(&w, &base, Phase::Read);
            assert!(ranks.iter().all(|r| r.failed.is_none() && r.wrong == 0), "{ranks:?}");
            assert_eq!(series.bytes(), w.total_bytes());

            let last = w.path(&base, files - 1);
            let mut bytes = std::fs::read(&last).unwrap();
            assert_eq!(bytes.len() as u64, w.file_bytes());
            bytes[5000] ^= 0x80;
            std::fs::write(&last, bytes).unwrap();
            let (ranks, _) = done(&w, &base, Phase::Read);
            assert_eq!(ranks.iter().map(|r| r.wrong).sum::<u64>(), 1);
            let said: Vec<_> = ranks.iter().filter_map(|r| r.first_wrong.clone()).collect();
            assert!(said.len() == 1 && said[0].starts_with("at 5000: "), "{said:?}");
        }
    }

    #[test]
    fn a_file_that_is_too_short_or_missing_ends_all_ranks() {
        let dir = tempfile::tempdir().unwrap();
        let (w, base) = (workload(), dir.path().join("f"));
        let (ranks, _) = done(&w, &base, Phase::Read);
        assert!(ranks.iter().any(|r| r.failed.as_ref().is_some_and(|f| f.errno == libc::ENOENT)), "{ranks:?}");
        std::fs::write(&base, [0; 100]).unwrap();
        let (ranks, _) = done(&w, &base, Phase::Read);
        let failed = ranks.iter().find_map(|r| r.failed.clone()).unwrap();
        assert!(failed.errno == libc::ENODATA && failed.text.contains("smaller than this workload"), "{failed}");
    }
}
