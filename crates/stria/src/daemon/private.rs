//! Directories and files that are one user's alone: made so, and refused when they are not.
//!
//! A daemon writes where its own user, and nobody else, decides what a name means: the directory is opened and looked at
//! first, files are opened relative to it, and links are not followed.
use std::ffi::{CStr, CString};
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::failure::{Failure, Outcome};
use crate::out::word;

/// Rights of others than the owner.
const OTHERS: u32 = 0o077;
/// Rights to change of others than the owner.
const OTHERS_WRITE: u32 = 0o022;
/// Longest key file in bytes.
const KEY_BYTES_MAX: u64 = 64 << 10;

/// A directory whose names are its owner's to make.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
    dir: File,
}

/// How closed a directory has to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// Nobody else may enter.
    Entirely,
    /// Others may look, and change nothing.
    ToChanges,
}

/// The user as whom this process acts.
fn own_uid() -> u32 {
    // SAFETY: plain system call without arguments.
    unsafe { libc::geteuid() }
}

/// Refuses what belongs to somebody else. `mend` is what the remedy is applied to.
fn refuse_foreign(path: &Path, meta: &Metadata, mend: &Path) -> Outcome {
    let (owner, own) = (meta.uid(), own_uid());
    // What a user of its own has is a service's: its units would not start with another owner's files.
    let otherwise = match owner {
        0 => format!("use a directory of your own, or take it over with 'chown -R {own} {}'", word(mend)),
        _ => "or use a directory of your own".to_string(),
    };
    let (path, user, command) = (path.display(), user_of(owner), command());
    Err(Failure::with_errno(
        format!(
            "{path} belongs to user {owner}, this is user {own}: run it as its owner ('sudo -u {user} {command} ...'), {otherwise}"
        ),
        libc::EPERM,
    ))
}

/// A user as sudo(8) takes one: by name, or by number where there is none.
fn user_of(uid: u32) -> String {
    let mut bytes: [libc::c_char; 4096] = [0; 4096];
    let mut found = std::ptr::null_mut();
    // SAFETY: an all-zero record that the call fills; the buffer is as long as said, and outlives the name that lies in it.
    let name = unsafe {
        let mut record: libc::passwd = std::mem::zeroed();
        let failed = libc::getpwuid_r(uid, &raw mut record, bytes.as_mut_ptr(), bytes.len(), &raw mut found);
        (failed == 0 && !found.is_null()).then(|| CStr::from_ptr(record.pw_name).to_string_lossy().into_owned())
    };
    name.unwrap_or_else(|| format!("'#{uid}'"))
}

/// The command that runs, without its options.
fn command() -> String {
    let verbs = std::env::args().skip(1).take_while(|word| word.bytes().all(|b| b.is_ascii_lowercase()));
    std::iter::once("stria".to_string()).chain(verbs.take(2)).collect::<Vec<_>>().join(" ")
}

/// Refuses what belongs to another user than this one or root, and what others have rights to. `mend` is what the remedy
/// is applied to.
fn check(path: &Path, meta: &Metadata, rights: u32, mend: &Path) -> Outcome {
    if meta.uid() != own_uid() && meta.uid() != 0 {
        return refuse_foreign(path, meta, mend);
    }
    if meta.mode() & rights != 0 {
        return Err(Failure::with_errno(
            format!(
                "{} is open to other users (mode {:04o}): close it with 'chmod -R go= {}'",
                path.display(),
                meta.mode() & 0o7777,
                word(mend)
            ),
            libc::EACCES,
        ));
    }
    Ok(())
}

/// Refuses a directory that servers write to and that is another user's, be it root's: they would follow what its owner puts
/// in their way. One that is not there is nobody's.
///
/// # Errors
/// Whose it is, and what to do.
pub fn check_owner(path: &Path) -> Outcome {
    match std::fs::metadata(path) {
        Ok(meta) if meta.uid() != own_uid() => refuse_foreign(path, &meta, path),
        _ => Ok(()),
    }
}

/// Refuses a directory that belongs to somebody else or is not closed; `mend` is what the remedy is applied to.
pub fn check_dir(path: &Path, closed: Closed, mend: &Path) -> Outcome {
    let meta = std::fs::metadata(path).map_err(|e| Failure::io("looking at", path, &e))?;
    let rights = if closed == Closed::Entirely { OTHERS } else { OTHERS_WRITE };
    check(path, &meta, rights, mend)
}

impl PrivateDir {
    /// Opens a directory that nobody else may enter. A symbolic link is none.
    ///
    /// # Errors
    /// It is missing, no directory, somebody else's, or open to others.
    pub fn open(path: &Path, mend: &Path) -> Result<PrivateDir, Failure> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let dir = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let dir = dir.map_err(|e| match e.raw_os_error() {
            Some(libc::ENOTDIR | libc::ELOOP) => {
                let why =
                    format!("{} is no directory of its own (a link?): remove it, and it is made anew", path.display());
                Failure::with_errno(why, libc::ENOTDIR)
            }
            _ => Failure::io("opening", path, &e),
        })?;
        let meta = dir.metadata().map_err(|e| Failure::io("looking at", path, &e))?;
        check(path, &meta, OTHERS, mend)?;
        Ok(PrivateDir { path: path.into(), dir })
    }

    /// Opens it, and makes it first when it is missing.
    ///
    /// # Errors
    /// As [`PrivateDir::open`]; it cannot be made.
    pub fn open_or_make(path: &Path, mend: &Path) -> Result<PrivateDir, Failure> {
        rt::make_private_dir(path).map_err(|e| Failure::io("making", path, &e))?;
        PrivateDir::open(path, mend)
    }

    fn open_at(&self, name: &str, flags: i32) -> io::Result<File> {
        let c = CString::new(Path::new(name).as_os_str().as_bytes())?;
        // What is no regular file must not keep the opening waiting.
        let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: a descriptor that lives and a NUL-terminated name.
        let fd = unsafe { libc::openat(self.dir.as_raw_fd(), c.as_ptr(), flags, 0o600) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that is nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        let meta = file.metadata()?;
        if !meta.is_file() || (meta.uid() != own_uid() && meta.uid() != 0) {
            return Err(io::Error::other("it is no regular file of this user: remove it"));
        }
        Ok(file)
    }

    fn failed(&self, what: &str, name: &str, e: &io::Error) -> Failure {
        match e.raw_os_error() {
            Some(libc::ELOOP) => {
                let at = self.path.join(name);
                Failure::with_errno(format!("{what} {}: it is a symbolic link: remove it", at.display()), libc::ELOOP)
            }
            _ => Failure::io(what, &self.path.join(name), e),
        }
    }

    /// Opens a file for messages; they are appended.
    ///
    /// # Errors
    /// It is a link, no regular file, or somebody else's.
    pub fn append(&self, name: &str) -> Result<File, Failure> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND;
        self.open_at(name, flags).map_err(|e| self.failed("opening", name, &e))
    }

    /// A file's text.
    ///
    /// # Errors
    /// It is missing, a link, no regular file, or somebody else's.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        self.open_at(name, libc::O_RDONLY)?.take(KEY_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Names of everything in it, in no order.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(&self.path)?.map(|e| Ok(e?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    /// When a file was written last, if it is there.
    #[must_use]
    pub fn modified(&self, name: &str) -> Option<SystemTime> {
        std::fs::symlink_metadata(self.path.join(name)).and_then(|m| m.modified()).ok()
    }

    /// Removes a file; one that is not there is gone already.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, name: &str) -> Outcome {
        match std::fs::remove_file(self.path.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(self.failed("removing", name, &e)),
            _ => Ok(()),
        }
    }

    /// Writes a file so that readers see all of it or the old one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_whole(&self, name: &str, text: &str) -> Outcome {
        let new = self.write_new(name, text)?;
        self.rename(&new, name).map_err(|e| self.failed("writing", name, &e))
    }

    /// [`PrivateDir::write_whole`] of a few bytes that only the present run needs. Where there is no room for a second file, they are
    /// written over those of the run before.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_note(&self, name: &str, text: &str) -> Outcome {
        let whole = self.write_whole(name, text);
        let full = |e: &Failure| matches!(i32::from(e.code()), libc::ENOSPC | libc::EDQUOT);
        match whole {
            Err(e) if full(&e) => self.write_over(name, text).map_err(|_| e),
            whole => whole,
        }
    }

    fn write_over(&self, name: &str, text: &str) -> io::Result<()> {
        let mut file = self.open_at(name, libc::O_WRONLY)?;
        file.write_all(text.as_bytes())?;
        file.set_len(text.len() as u64)
    }

    /// Writes a file unless one of this name is there, which stays as it is then.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_if_missing(&self, name: &str, text: &str) -> Outcome {
        let new = self.write_new(name, text)?;
        let (from, to) = (self.path.join(&new), self.path.join(name));
        let linked = std::fs::hard_link(&from, &to);
        let removed = std::fs::remove_file(&from);
        match linked {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(self.failed("writing", name, &e)),
            _ => removed.map_err(|e| self.failed("removing", &new, &e)),
        }
    }

    /// Writes the text under a name that no other process uses.
    fn write_new(&self, name: &str, text: &str) -> Result<String, Failure> {
        let new = format!("{name}.new-{}", std::process::id());
        let write = || -> io::Result<()> {
            let mut file = self.open_at(&new, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC)?;
            file.set_permissions(Permissions::from_mode(0o600))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(|e| {
            // Half a file is of no use, and one for each try would fill the disk.
            let _ = std::fs::remove_file(self.path.join(&new));
            self.failed("writing", name, &e)
        })?;
        Ok(new)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (CString::new(from)?, CString::new(to)?);
        let fd = self.dir.as_raw_fd();
        // SAFETY: a descriptor that lives and NUL-terminated names.
        let rc = unsafe { libc::renameat(fd, from.as_ptr(), fd, to.as_ptr()) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        self.dir.sync_all()
    }
}

/// Reads a file that holds a secret; `what` names where its path was written.
///
/// # Errors
/// It is missing, no regular file, somebody else's, or others may read it.
pub fn read_secret(what: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    let io = |e: io::Error| Failure::io(what, path, &e);
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if !meta.is_file() {
        return Err(Failure::usage(format!("{what} {} is no regular file", path.display())));
    }
    check(path, &meta, OTHERS, path)?;
    let mut text = Vec::new();
    file.take(KEY_BYTES_MAX).read_to_end(&mut text).map_err(io)?;
    Ok(text)
}

/// Makes a file with a secret that nobody else may read, unless something is at its place.
///
/// # Errors
/// It cannot be written.
pub fn make_secret(what: &str, path: &Path, text: &str) -> Outcome {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = made.and_then(|mut file| {
        // Whatever the process's mask is.
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    match written {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(Failure::io(what, path, &e)),
        _ => Ok(()),
    }
}

/// Writes a file with a secret that nobody else may read, in place of the one that is there.
///
/// # Errors
/// It cannot be written.
pub fn write_secret(path: &Path, text: &str) -> Outcome {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(new);
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).and_then(|mut file| {
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.and_then(|()| std::fs::rename(&new, path)).map_err(|e| {
        // One that is there already is not ours.
        if e.kind() != io::ErrorKind::AlreadyExists {
            let _ = std::fs::remove_file(&new);
        }
        Failure::io("writing", path, &e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn what_is_made_is_its_owners_alone_and_what_is_open_to_others_is_refused_with_the_remedy() {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join("run");
        let dir = PrivateDir::open_or_make(&at, place.path()).unwrap();
        dir.write_whole("a", "1").unwrap();
        dir.write_if_missing("a", "2").unwrap();
        dir.write_if_missing("b", "3").unwrap();
        dir.append("log").unwrap();
        assert_eq!((dir.read("a").unwrap().as_str(), dir.read("b").unwrap().as_str()), ("1", "3"));
        assert_eq!(
            (mode(&at), mode(&at.join("a")), mode(&at.join("b")), mode(&at.join("log"))),
            (0o700, 0o600, 0o600, 0o600)
        );
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), 3, "nothing else stays");
        std::fs::set_permissions(&at, Permissions::from_mode(0o755)).unwrap();
        let said = PrivateDir::open_or_make(&at, place.path()).unwrap_err().to_string();
        let remedy = format!("(mode 0755): close it with 'chmod -R go= {}'", place.path().display());
        assert!(said.contains(&remedy), "{said}");
        std::fs::write(at.join("key"), "0123456789abcdef").unwrap();
        std::fs::set_permissions(at.join("key"), Permissions::from_mode(0o640)).unwrap();
        let said = read_secret("key", &at.join("key")).unwrap_err().to_string();
        assert!(said.contains("key is open to other users (mode 0640)"), "{said}");
    }

    #[test]
    fn links_are_not_followed_and_what_is_no_file_is_not_opened() {
        let place = tempfile::tempdir().unwrap();
        let (at, victim) = (place.path().join("run"), place.path().join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        let dir = PrivateDir::open_or_make(&at, place.path()).unwrap();
        std::os::unix::fs::symlink(&victim, at.join("log")).unwrap();
        let said = dir.append("log").unwrap_err().to_string();
        assert!(said.contains("symbolic link"), "{said}");
        std::fs::create_dir(at.join("dir")).unwrap();
        assert!(dir.append("dir").is_err());
        // A file is put in a link's place, not behind it.
        dir.write_whole("log", "mine").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        std::os::unix::fs::symlink(&at, place.path().join("link")).unwrap();
        let said = PrivateDir::open(&place.path().join("link"), place.path()).unwrap_err().to_string();
        assert!(said.contains("is no directory of its own"), "{said}");
    }
}
