//! The directory on the mount in which everything is measured: new, locked, gone at the end with everything in it.
//!
//! Its name is fixed, so that two searches in one directory meet, from whatever clients; the lock on a file in it says whether
//! the one that made it still runs. Nothing else on the mount is touched.
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bench::{Failed, Outcome, os};
use types::format_size;

/// Its name.
pub const NAME: &str = ".stria-tune";
/// The file in it that says whose it is.
const OWNER: &str = "owner";
/// Part of the free space that may be taken, in percent.
const FREE_PERCENT_MAX: u64 = 90;
/// Looks for a directory that goes away at that moment.
const TRIES_MAX: u32 = 8;

/// The directory; removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Its lock ends with it.
    _owner: File,
    /// Something was there: an earlier search did not come to its end.
    pub left_behind: bool,
}

impl Scratch {
    /// Makes it in `parent`.
    ///
    /// # Errors
    /// Another search is at work there, or the directory cannot be made.
    pub fn make(parent: &Path) -> Outcome<Scratch> {
        let path = parent.join(NAME);
        for _ in 0..TRIES_MAX {
            let left_behind = match fs::create_dir(&path) {
                Ok(()) => false,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => true,
                Err(e) => return Err(Failed::io("making", &path, &e)),
            };
            if left_behind {
                check_ours(&path)?;
            }
            // It may be gone again by now, with who made it.
            if let Some(owner) = lock(&path)? {
                let scratch = Scratch { path, _owner: owner, left_behind };
                scratch.empty()?;
                return Ok(scratch);
            }
        }
        Err(Failed::new(format!("{} comes and goes: try again", path.display()), libc::EBUSY))
    }
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Removes all files in it but the owner's.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn empty(&self) -> Outcome {
        let failed = |e: &io::Error| Failed::io("emptying", &self.path, e);
        for entry in fs::read_dir(&self.path).map_err(|e| failed(&e))? {
            let entry = entry.map_err(|e| failed(&e))?;
            if entry.file_name() != OWNER {
                fs::remove_file(entry.path()).map_err(|e| failed(&e))?;
            }
        }
        Ok(())
    }
    /// Removes it.
    ///
    /// # Errors
    /// As unlink(2) and rmdir(2); it stays, then.
    pub fn remove(self) -> Outcome {
        self.clear()
    }

    fn clear(&self) -> Outcome {
        if !self.path.exists() {
            return Ok(());
        }
        self.empty()?;
        let failed = |e: io::Error| Failed::io("removing", &self.path, &e);
        fs::remove_file(self.path.join(OWNER)).map_err(failed)?;
        fs::remove_dir(&self.path).map_err(failed)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = self.clear() {
            let _ = writeln!(io::stderr(), "stria tune: {} stays: {e}", self.path.display());
        }
    }
}

/// What has the name but was not made here is left alone.
fn check_ours(path: &Path) -> Outcome {
    let no = |why: &str| Failed::new(format!("{} {why}: move it away", path.display()), libc::EEXIST);
    let meta = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|e| Failed::io("looking at", path, &e))?,
    };
    if !meta.is_dir() {
        return Err(no("is not a directory that this command made"));
    }
    let mut names = fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.file_name());
    let is_ours = |name: &std::ffi::OsString| name == OWNER || name.to_string_lossy().starts_with("run");
    match names.find(|n| !is_ours(n)) {
        Some(name) => Err(no(&format!("holds '{}', which this command did not make", name.display()))),
        None => Ok(()),
    }
}

/// Takes the lock; `None` when the directory went away meanwhile.
fn lock(path: &Path) -> Outcome<Option<File>> {
    let at = path.join(OWNER);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&at);
    let mut file = match opened {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| Failed::io("making", &at, &e))?,
    };
    // SAFETY: plain system call on an open descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::WouldBlock {
            return Err(Failed::io("locking", &at, &e));
        }
        let who = fs::read_to_string(&at).unwrap_or_default();
        let said = format!("another tune is at work in {} ({}): wait for it", path.display(), who.trim());
        return Err(Failed::new(said, libc::EBUSY));
    }
    // Whoever had it may have removed it between our open and our lock.
    let same = match (file.metadata(), fs::symlink_metadata(&at)) {
        (Ok(a), Ok(b)) => a.ino() == b.ino() && a.nlink() > 0,
        _ => false,
    };
    if !same {
        return Ok(None);
    }
    let line = format!("process {} on {}\n", std::process::id(), os::host());
    let written = file.set_len(0).and_then(|()| file.write_all(line.as_bytes()));
    written.map_err(|e| Failed::io("writing", &at, &e))?;
    Ok(Some(file))
}

/// Refuses more bytes than there is space for.
///
/// # Errors
/// ENOSPC, with what is free.
pub fn check_space(dir: &Path, bytes: u64, free: u64) -> Outcome {
    if bytes <= free / 100 * FREE_PERCENT_MAX {
        return Ok(());
    }
    let said = format!(
        "{} has {} free on its fullest OST, and runs write up to {} at a time: say less with --size, or make room",
        dir.display(),
        format_size(free),
        format_size(bytes)
    );
    Err(Failed::new(said, libc::ENOSPC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_new_and_locked_and_gone_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let one = Scratch::make(dir.path()).unwrap();
        assert!(!one.left_behind && one.path().ends_with(NAME));
        fs::write(one.path().join("run-1"), b"x").unwrap();
        let e = Scratch::make(dir.path()).unwrap_err();
        assert!(e.errno == libc::EBUSY && e.text.contains(&format!("process {}", std::process::id())), "{e}");
        assert!(one.path().join("run-1").exists(), "the other one touched nothing");
        one.remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        drop(Scratch::make(dir.path()).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_search_left_is_taken_over_and_what_others_made_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join(NAME);
        fs::create_dir(&at).unwrap();
        fs::write(at.join(OWNER), b"process 1 on x\n").unwrap();
        fs::write(at.join("run-7.00000001"), b"x").unwrap();
        let scratch = Scratch::make(dir.path()).unwrap();
        assert!(scratch.left_behind && !at.join("run-7.00000001").exists());
        drop(scratch);
        fs::create_dir(&at).unwrap();
        fs::write(at.join("thesis"), b"x").unwrap();
        let e = Scratch::make(dir.path()).unwrap_err();
        assert!(e.errno == libc::EEXIST && e.text.contains("thesis"), "{e}");
        assert!(at.join("thesis").exists());
        fs::remove_dir_all(&at).unwrap();
        fs::write(&at, b"x").unwrap();
        assert_eq!(Scratch::make(dir.path()).unwrap_err().errno, libc::EEXIST);
        assert_eq!(Scratch::make(&dir.path().join("none")).unwrap_err().errno, libc::ENOENT);
    }

    #[test]
    fn too_little_space_is_told_with_what_there_is() {
        let dir = Path::new("/m");
        assert!(check_space(dir, 90 << 20, 100 << 20).is_ok());
        let e = check_space(dir, 95 << 20, 100 << 20).unwrap_err();
        assert!(e.errno == libc::ENOSPC && e.text.contains("has 100M free") && e.text.contains("up to 95M"), "{e}");
    }
}
