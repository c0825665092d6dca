//! Programs on all mounts that raise one counter, each time under an exclusive flock: nobody is let in besides another, and
//! what was raised and synced is never lost.
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::shared::{Before, Shared};

/// What all programs that raise the counter know.
#[derive(Default)]
pub struct Highest {
    /// The highest value that was synced.
    synced: AtomicU64,
    /// Times that it was tried to raise it.
    tries: AtomicU64,
    /// Raises under way, and those that were over after their mount had been lost and that nobody has looked for since.
    under_way: Mutex<Vec<Raise>>,
}

/// A raise that has read the counter.
struct Raise {
    worker: usize,
    /// What it writes.
    value: u64,
    before: Before,
    over: bool,
}

impl Highest {
    fn raises(&self) -> MutexGuard<'_, Vec<Raise>> {
        self.under_way.lock().expect("nobody panics with it")
    }
    /// Whether a value that is too low follows from the write of a raise whose mount was lost while it had the lock: a client
    /// that was given up may write what it had read before it hears of that, and others count on from there.
    fn went_back(&self, shared: &Shared, found: u64) -> bool {
        let mut raises = self.raises();
        let late = raises.iter().position(|r| r.value <= found && shared.lost_since(&r.before));
        if let Some(late) = late {
            raises.remove(late);
            self.synced.store(found + 1, Ordering::SeqCst);
        }
        late.is_some()
    }
}

/// One program.
pub struct Counter {
    shared: Arc<Shared>,
    worker: usize,
    mount: usize,
    path: PathBuf,
    highest: Arc<Highest>,
}

impl Counter {
    /// A program that raises `counter` through a mount.
    #[must_use]
    pub fn new(shared: Arc<Shared>, worker: usize, mounts: &[PathBuf], mount: usize, highest: Arc<Highest>) -> Counter {
        Counter { shared, worker, mount, path: mounts[mount].join("counter"), highest }
    }

    /// Counts until the run is over.
    pub fn run(&mut self) {
        while !self.shared.is_over() {
            if self.shared.is_lost(self.mount) {
                self.shared.pause();
                continue;
            }
            let before = self.shared.before(self.mount);
            self.shared.doing(self.worker, format!("raise {}", self.path.display()));
            let done = self.raise();
            self.shared.done(self.worker);
            match done {
                // A client that was given up may read what it knew before it hears of that.
                Ok((found, floor))
                    if found < floor
                        && !self.shared.lost_since(&before)
                        && !self.highest.went_back(&self.shared, found) =>
                {
                    self.shared.violation(format!(
                        "{} held {found} under its lock, {floor} was synced before",
                        self.path.display()
                    ));
                }
                Ok(_) => {}
                Err(e) if self.shared.excuses(&before, &e) => self.shared.pause(),
                Err(e) => self.shared.violation(format!("raise {}: {e}", self.path.display())),
            }
        }
    }

    /// Raises it once: what it was under the lock, and what it had to be at least.
    fn raise(&self) -> io::Result<(u64, u64)> {
        let done = self.raise_under_lock(self.shared.before(self.mount));
        let mut raises = self.highest.raises();
        raises.iter_mut().filter(|r| r.worker == self.worker).for_each(|r| r.over = true);
        raises.retain(|r| r.worker != self.worker || self.shared.lost_since(&r.before));
        done
    }

    fn raise_under_lock(&self, before: Before) -> io::Result<(u64, u64)> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.path)?;
        lock(&file)?;
        let floor = self.highest.synced.load(Ordering::SeqCst);
        self.highest.tries.fetch_add(1, Ordering::SeqCst);
        let mut bytes = [0; 8];
        let found = match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => u64::from_le_bytes(bytes),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => 0,
            Err(e) => return Err(e),
        };
        let mut raises = self.highest.raises();
        if found >= floor {
            // What was written before can have come by now, and was overwritten.
            raises.retain(|r| !r.over);
        }
        raises.push(Raise { worker: self.worker, value: found + 1, before, over: false });
        drop(raises);
        file.write_all_at(&(found + 1).to_le_bytes(), 0)?;
        file.sync_data()?;
        let before = self.highest.synced.fetch_max(found + 1, Ordering::SeqCst);
        // Closing gives the lock back. Until then nobody else may have synced what this one read.
        Ok((found, floor.max(before)))
    }

    /// Whether each mount shows a value that can be. It.
    pub fn final_check(&self, mounts: &[PathBuf]) -> u64 {
        let (least, most) = (self.highest.synced.load(Ordering::SeqCst), self.highest.tries.load(Ordering::SeqCst));
        for path in mounts.iter().map(|m| m.join("counter")) {
            let value = File::open(&path).and_then(|f| {
                let mut bytes = [0; 8];
                f.read_exact_at(&mut bytes, 0)?;
                Ok(u64::from_le_bytes(bytes))
            });
            match value {
                Ok(value) if (least..=most).contains(&value) => {}
                Ok(value) if self.highest.went_back(&self.shared, value) => {}
                Ok(value) => self.shared.violation(format!(
                    "{} holds {value}: {least} was synced, and it was raised {most} times at most",
                    path.display()
                )),
                // Nobody ever came through.
                Err(_) if least == 0 => {}
                Err(e) => self.shared.violation(format!("{}: {e}", path.display())),
            }
        }
        least
    }
}

fn lock(file: &File) -> io::Result<()> {
    loop {
        // SAFETY: plain system call on a descriptor that is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}
