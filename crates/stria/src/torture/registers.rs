//! Programs on all mounts that read and write blocks of one file at the same time; what they saw must be one order of
//! these operations ([`super::history`]), and blocks are never torn.
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use types::Rng;

use super::history::{Event, INITIAL, contradictions};
use super::shared::{Before, Shared};

/// Bytes of a block: what one write replaces as a whole.
const BLOCK_BYTES: usize = 4096;
/// Blocks of the file: few, so that programs meet; more than a stripe's worth, so that they also do not.
const BLOCKS: u64 = 24;
/// Operations of each program in a round.
const OPERATIONS: u64 = 120;

/// Rounds of one group of programs.
pub struct Registers {
    shared: Arc<Shared>,
    /// Its first number among all workers; one for each program.
    worker: usize,
    mounts: Vec<PathBuf>,
    programs: usize,
    stamps: AtomicU64,
    seed: u64,
    rounds: u64,
    judged: u64,
}

/// What one program of a round saw.
struct Seen {
    events: Vec<Event>,
    /// A strike excused a failure, or took away what had been answered.
    excused: bool,
}

impl Registers {
    /// `programs` programs, spread over the mounts.
    #[must_use]
    pub fn new(shared: Arc<Shared>, worker: usize, mounts: &[PathBuf], programs: usize, seed: u64) -> Registers {
        let mounts = mounts.to_vec();
        Registers { shared, worker, mounts, programs, stamps: AtomicU64::new(INITIAL + 1), seed, rounds: 0, judged: 0 }
    }
    /// Rounds played, and how many of them no strike on a client disturbed.
    #[must_use]
    pub fn rounds(&self) -> (u64, u64) {
        (self.rounds, self.judged)
    }

    /// Plays rounds until the run is over.
    pub fn run(&mut self) {
        while !self.shared.is_over() {
            self.round();
        }
    }

    fn round(&mut self) {
        let before: Vec<_> = (0..self.mounts.len()).map(|m| self.shared.before(m)).collect();
        let name = format!("registers{}", self.rounds);
        self.rounds += 1;
        let Some(()) = self.whole(&name, |path| File::create(path)?.set_len(BLOCKS * BLOCK_BYTES as u64)) else {
            return;
        };
        let mut rng = Rng::named(self.seed, &name);
        let me = &*self;
        let seen: Vec<Seen> = std::thread::scope(|scope| {
            let programs: Vec<_> = (0..me.programs)
                .map(|i| {
                    let (rng, name) = (Rng::new(rng.next_u64()), &name);
                    scope.spawn(move || me.program(i, name, rng))
                })
                .collect();
            programs.into_iter().map(|p| p.join().expect("a program does not panic")).collect()
        });
        let disturbed = seen.iter().any(|s| s.excused) || before.iter().any(|b| self.shared.lost_since(b));
        let events: Vec<Event> = seen.into_iter().flat_map(|s| s.events).collect();
        if !disturbed {
            self.judged += 1;
            for e in contradictions(&events) {
                self.shared.violation(format!("{name}: no order of reads and writes explains {e}"));
                self.shared.trace(&format!("{name}: {events:?}"));
            }
        }
        // Nobody works on the file any more: it goes, through the last mount. A crash may have taken it.
        let last = self.mounts.len() - 1;
        self.on(last, 0, &format!("unlink {name}"), |dir| match std::fs::remove_file(dir.join(&name)) {
            Err(e) if disturbed && e.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        });
    }

    /// An operation on the file through the first mount; `None` when it failed.
    fn whole(&self, name: &str, work: impl FnOnce(PathBuf) -> io::Result<()>) -> Option<()> {
        self.on(0, 0, &format!("make {name}"), |dir| work(dir.join(name)))
    }

    fn on<T>(
        &self,
        mount: usize,
        program: usize,
        what: &str,
        work: impl FnOnce(&PathBuf) -> io::Result<T>,
    ) -> Option<T> {
        self.since(&self.shared.before(mount), program, what, work)
    }

    /// As [`Registers::on`], for a handle that was opened when `before` was asked for.
    fn since<T>(
        &self,
        before: &Before,
        program: usize,
        what: &str,
        work: impl FnOnce(&PathBuf) -> io::Result<T>,
    ) -> Option<T> {
        let mount = before.mount();
        self.shared.doing(self.worker + program, format!("{what} on {}", self.mounts[mount].display()));
        let done = work(&self.mounts[mount]);
        self.shared.done(self.worker + program);
        match done {
            Ok(done) => Some(done),
            Err(e) if self.shared.excuses(before, &e) => {
                self.shared.pause();
                None
            }
            Err(e) => {
                self.shared.violation(format!("{what} on {}: {e}", self.mounts[mount].display()));
                None
            }
        }
    }

    fn program(&self, i: usize, name: &str, mut rng: Rng) -> Seen {
        let mount = i % self.mounts.len();
        let mut seen = Seen { events: Vec::new(), excused: false };
        let opened = self.shared.before(mount);
        let open = |dir: &PathBuf| OpenOptions::new().read(true).write(true).open(dir.join(name));
        let Some(file) = self.on(mount, i, &format!("open {name}"), open) else {
            seen.excused = true;
            return seen;
        };
        for _ in 0..OPERATIONS {
            if self.shared.is_over() || self.shared.is_lost(mount) {
                break;
            }
            let block = rng.below(BLOCKS);
            let done = match rng.below(10) {
                0..4 => self.write(&file, (&opened, i), block, &mut seen),
                9 if rng.chance(0.2) => self.since(&opened, i, &format!("fsync {name}"), |_| file.sync_data()),
                _ => self.read(&file, (&opened, i), name, block, &mut seen),
            };
            if done.is_none() {
                seen.excused = true;
                break;
            }
        }
        if self.since(&opened, i, &format!("fsync {name}"), |_| file.sync_all()).is_none() {
            seen.excused = true;
        }
        seen
    }

    fn write(&self, file: &File, (opened, i): (&Before, usize), block: u64, seen: &mut Seen) -> Option<()> {
        let value = self.stamps.fetch_add(1, Ordering::Relaxed);
        let bytes: Vec<u8> = value.to_le_bytes().repeat(BLOCK_BYTES / 8);
        let called_ns = self.shared.now_ns();
        let done = self.since(opened, i, &format!("write block {block}"), |_| {
            file.write_all_at(&bytes, block * BLOCK_BYTES as u64)
        });
        let returned_ns = if done.is_some() { self.shared.now_ns() } else { u64::MAX };
        seen.events.push(Event { block, value, is_write: true, called_ns, returned_ns });
        done
    }

    fn read(&self, file: &File, (opened, i): (&Before, usize), name: &str, block: u64, seen: &mut Seen) -> Option<()> {
        let mut bytes = vec![0; BLOCK_BYTES];
        let called_ns = self.shared.now_ns();
        let at = block * BLOCK_BYTES as u64;
        self.since(opened, i, &format!("read block {block}"), |_| file.read_exact_at(&mut bytes, at))?;
        let returned_ns = self.shared.now_ns();
        let mut words = bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("chunks are 8 bytes")));
        let value = words.next().unwrap_or(INITIAL);
        if let Some(other) = words.find(|w| *w != value) {
            self.shared.violation(format!("{name}: block {block} is torn: {value:x} and {other:x} in one read"));
        }
        seen.events.push(Event { block, value, is_write: false, called_ns, returned_ns });
        Some(())
    }
}
