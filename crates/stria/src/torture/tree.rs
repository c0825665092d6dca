//! Programs on directories of their own: every file that was synced is there with its bytes, under its name, on every
//! mount, whatever was killed since.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use types::Rng;

use super::shared::Shared;

/// Longest file in bytes.
const FILE_BYTES_MAX: u64 = 600_000;
/// Bytes of one write(2): no divisor of pages or stripes.
const PART_BYTES: usize = 70_001;

/// What is in a file that is on stable storage.
#[derive(Clone, Copy)]
struct Content {
    /// Its bytes follow from it.
    seed: u64,
    len: usize,
    /// From here on they are zeros.
    cut: usize,
}

impl Content {
    fn bytes(&self) -> Vec<u8> {
        let mut out = content(self.seed, self.cut.min(self.len));
        out.resize(self.len, 0);
        out
    }
}

type Known = BTreeMap<String, Content>;

/// One program.
pub struct TreeWorker {
    shared: Arc<Shared>,
    /// Its number among all workers.
    worker: usize,
    mount: usize,
    dirs: Vec<PathBuf>,
    rng: Rng,
    known: Known,
    /// Names whose state a strike left open.
    open: BTreeSet<String>,
    next: u64,
}

/// Bytes that follow from a seed.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    out.truncate(len);
    out
}

impl TreeWorker {
    /// A program on mount number `mount` of `mounts`, in a directory that it makes.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(
        shared: Arc<Shared>,
        worker: usize,
        mounts: &[PathBuf],
        mount: usize,
        seed: u64,
    ) -> Result<TreeWorker, io::Error> {
        let name = format!("tree{worker}");
        fs::create_dir(mounts[mount].join(&name))?;
        fs::File::open(mounts[mount].join(&name))?.sync_all()?;
        let rng = Rng::named(seed, &name);
        let dirs = mounts.iter().map(|m| m.join(&name)).collect();
        Ok(TreeWorker { shared, worker, mount, dirs, rng, known: Known::new(), open: BTreeSet::new(), next: 0 })
    }

    /// Works until the run is over.
    pub fn run(&mut self) {
        while !self.shared.is_over() {
            if self.shared.is_lost(self.mount) {
                self.shared.pause();
            } else {
                self.step();
            }
        }
    }

    fn step(&mut self) {
        let kind = self.rng.below(13);
        let some = (!self.known.is_empty()).then(|| {
            let at = self.rng.below(self.known.len() as u64) as usize;
            self.known.keys().nth(at).cloned().unwrap_or_default()
        });
        match (kind, some) {
            (0..4, _) | (_, None) => {
                let name = self.fresh();
                self.write(&name);
            }
            (4, Some(name)) => self.write(&name),
            (5, Some(name)) => self.rename(&name),
            (6, Some(name)) => self.unlink(&name),
            (7, Some(name)) => self.check(self.mount, &name),
            (8, Some(name)) => self.resize(&name),
            (9, Some(name)) => self.link(&name),
            (10, Some(name)) => self.orphan(&name),
            (_, Some(name)) => {
                let other = self.rng.below(self.dirs.len() as u64) as usize;
                self.check(other, &name);
            }
        }
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("f{}", self.next)
    }

    /// Carries an operation out. `None` when a strike explains that it failed; what it was about is open then.
    fn attempt<T>(&self, mount: usize, what: &str, work: impl FnOnce(&Path) -> io::Result<T>) -> Option<T> {
        let before = self.shared.before(mount);
        self.shared.doing(self.worker, format!("{what} in {}", self.dirs[mount].display()));
        let done = work(&self.dirs[mount]);
        self.shared.done(self.worker);
        match done {
            Ok(done) => Some(done),
            Err(e) => {
                if self.shared.excuses(&before, &e) {
                    self.shared.pause();
                } else {
                    self.shared.violation(format!("{what} in {}: {e}", self.dirs[mount].display()));
                }
                None
            }
        }
    }

    fn write(&mut self, name: &str) {
        let (seed, len) = (self.rng.next_u64(), self.rng.below(FILE_BYTES_MAX) as usize);
        self.known.remove(name);
        let content = Content { seed, len, cut: len };
        let done = self.attempt(self.mount, &format!("write {name}"), |dir| {
            let mut file = fs::File::create(dir.join(name))?;
            for part in content.bytes().chunks(PART_BYTES) {
                file.write_all(part)?;
            }
            file.sync_all()
        });
        match done {
            Some(()) => {
                self.open.remove(name);
                self.known.insert(name.into(), content);
            }
            None => {
                self.open.insert(name.into());
            }
        }
    }

    /// Cuts a file somewhere, and makes it longer again: the difference is zeros.
    fn resize(&mut self, name: &str) {
        let Some(mut content) = self.known.remove(name) else { return };
        content.cut = content.cut.min(self.rng.below(content.len as u64 + 1) as usize);
        content.len = content.cut + self.rng.below(PART_BYTES as u64) as usize;
        let done =
            self.attempt(self.mount, &format!("cut {name} to {} and back to {}", content.cut, content.len), |dir| {
                let file = fs::OpenOptions::new().write(true).open(dir.join(name))?;
                file.set_len(content.cut as u64)?;
                file.set_len(content.len as u64)?;
                file.sync_all()
            });
        match done {
            Some(()) => drop(self.known.insert(name.into(), content)),
            None => drop(self.open.insert(name.into())),
        }
    }

    /// A second name of a file, for a moment: both are counted.
    fn link(&mut self, name: &str) {
        let second = self.fresh();
        let Some(known) = self.known.remove(name) else { return };
        let done = self.attempt(self.mount, &format!("link {name} to {second} and unlink that"), |dir| {
            let (first, other) = (dir.join(name), dir.join(&second));
            fs::hard_link(&first, &other)?;
            let with = fs::metadata(&first)?.nlink();
            fs::remove_file(&other)?;
            let without = fs::metadata(&first)?.nlink();
            fs::File::open(dir)?.sync_all()?;
            Ok((with, without))
        });
        match done {
            Some((2, 1)) => drop(self.known.insert(name.into(), known)),
            Some(counts) => {
                let at = self.dirs[self.mount].join(name);
                self.shared.violation(format!("{} had {counts:?} links with a second name and without", at.display()));
            }
            None => self.open.extend([name.to_string(), second]),
        }
    }

    /// A file that is open can be read when its last name is gone.
    fn orphan(&mut self, name: &str) {
        let Some(known) = self.known.remove(name) else { return };
        let found = self.attempt(self.mount, &format!("unlink {name} while it is open"), |dir| {
            let mut file = fs::File::open(dir.join(name))?;
            fs::remove_file(dir.join(name))?;
            let mut found = Vec::new();
            file.read_to_end(&mut found)?;
            fs::File::open(dir)?.sync_all()?;
            Ok(found)
        });
        match found {
            Some(found) => self.compare(&self.dirs[self.mount].join(name), &found, &known.bytes()),
            None => drop(self.open.insert(name.into())),
        }
    }

    fn rename(&mut self, name: &str) {
        let to = self.fresh();
        let Some(known) = self.known.remove(name) else { return };
        let done = self.attempt(self.mount, &format!("rename {name} to {to}"), |dir| {
            fs::rename(dir.join(name), dir.join(&to))?;
            fs::File::open(dir)?.sync_all()
        });
        match done {
            Some(()) => {
                self.known.insert(to, known);
            }
            None => self.open.extend([name.to_string(), to]),
        }
    }

    fn unlink(&mut self, name: &str) {
        self.known.remove(name);
        let done = self.attempt(self.mount, &format!("unlink {name}"), |dir| {
            fs::remove_file(dir.join(name))?;
            fs::File::open(dir)?.sync_all()
        });
        if done.is_none() {
            self.open.insert(name.into());
        }
    }

    fn check(&self, mount: usize, name: &str) {
        let wanted = self.known[name];
        let found = self.attempt(mount, &format!("read {name}"), |dir| {
            let mut found = Vec::new();
            fs::File::open(dir.join(name))?.read_to_end(&mut found)?;
            Ok(found)
        });
        if let Some(found) = found {
            self.compare(&self.dirs[mount].join(name), &found, &wanted.bytes());
        }
    }

    fn compare(&self, path: &Path, found: &[u8], wanted: &[u8]) {
        if found != wanted {
            let at = found.iter().zip(wanted).position(|(a, b)| a != b);
            self.shared.violation(format!(
                "{} has {} bytes, {} were synced; the first difference is at {at:?}",
                path.display(),
                found.len(),
                wanted.len()
            ));
        }
    }

    /// Everything that is known, on every mount given, and nothing else. How many files.
    pub fn final_check(&self, mounts: &[PathBuf]) -> usize {
        let below = self.dirs[0].file_name().unwrap_or_default().to_os_string();
        for dir in mounts.iter().map(|m| m.join(&below)) {
            for (name, wanted) in &self.known {
                match fs::read(dir.join(name)) {
                    Ok(found) => self.compare(&dir.join(name), &found, &wanted.bytes()),
                    Err(e) => self.shared.violation(format!("{} was synced: {e}", dir.join(name).display())),
                }
            }
            let entries = match fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(e) => {
                    self.shared.violation(format!("{}: {e}", dir.display()));
                    continue;
                }
            };
            for name in entries.flatten().filter_map(|e| e.file_name().into_string().ok()) {
                if !self.known.contains_key(&name) && !self.open.contains(&name) {
                    self.shared.violation(format!("{} was removed and is there", dir.join(&name).display()));
                }
            }
        }
        self.known.len()
    }
}
