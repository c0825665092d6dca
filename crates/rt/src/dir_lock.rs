//! Directories of stores: their owner's alone, and one process at a time.
use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// The file of a directory whose lock is the directory's.
pub const DIR_LOCK: &str = "lock";
/// How long a directory that is in use is tried again. The kernel takes a killed process's ring apart after the process
/// is gone, and the ring holds its files until then.
pub(crate) const RETRY_WITHIN: Duration = Duration::from_secs(2);
/// Pause between two tries.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Makes a directory (when missing, with its parents) that is its owner's alone, whatever the umask. One that exists stays
/// as it is.
///
/// # Errors
/// As the operating system answers.
pub fn make_private_dir(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => std::fs::set_permissions(dir, Permissions::from_mode(0o700)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(e) => Err(e),
    }
}

/// Holds `lock` in a directory until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct DirLock {
    _file: Option<File>,
}

/// Why a directory is not ours.
#[derive(Debug)]
pub enum LockError {
    /// Another process has it.
    InUse,
    /// The lock file cannot be made or locked.
    Io(io::Error),
}

impl DirLock {
    /// The lock of a directory that no other process can have, in a world where that is certain.
    #[must_use]
    pub const fn needless() -> DirLock {
        DirLock { _file: None }
    }
    /// Takes the lock, or says at once that another process has it.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn try_take(dir: &Path) -> Result<DirLock, LockError> {
        let path = dir.join(DIR_LOCK);
        let file =
            File::options().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(LockError::Io)?;
        match file.try_lock() {
            Ok(()) => Ok(DirLock { _file: Some(file) }),
            Err(TryLockError::WouldBlock) => Err(LockError::InUse),
            Err(TryLockError::Error(e)) => Err(LockError::Io(e)),
        }
    }
    /// Takes the lock; blocks for up to two seconds when another process has it, which is before anything is served.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(dir: &Path) -> Result<DirLock, LockError> {
        let since = Instant::now();
        loop {
            match DirLock::try_take(dir) {
                Err(LockError::InUse) if since.elapsed() < RETRY_WITHIN => std::thread::sleep(RETRY_PAUSE),
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_use_is_refused_and_free_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let held = DirLock::take(dir.path()).unwrap();
        assert!(matches!(DirLock::take(dir.path()), Err(LockError::InUse)));
        drop(held);
        DirLock::take(dir.path()).unwrap();
    }

    #[test]
    fn whoever_waits_for_a_directory_in_use_keeps_nobody_of_its_shard_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let held = DirLock::take(dir.path()).unwrap();
        crate::real::run(frames::FramePool::new(1 << 20), |rt| async move {
            let (own, path) = (rt.clone(), dir.path().to_path_buf());
            let (tell, told) = crate::sync::oneshot();
            rt.spawn(async move { tell.send(own.lock_dir_waiting(&path).await.is_ok()) });
            // This task gives the lock up: had the other one kept the thread, it would not come to that before the wait is over.
            rt.sleep(types::Duration::from_millis(1)).await;
            drop(held);
            assert_eq!(told.await, Some(true));
        })
        .unwrap();
    }

    #[test]
    fn a_lock_that_is_given_up_while_another_waits_is_handed_over() {
        let dir = tempfile::tempdir().unwrap();
        let held = DirLock::take(dir.path()).unwrap();
        let path = dir.path().to_path_buf();
        let (tell, told) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            tell.send(()).unwrap();
            DirLock::take(&path).map(drop)
        });
        told.recv().unwrap();
        drop(held);
        assert!(waiter.join().unwrap().is_ok());
    }
}
