//! One process per store directory.
use std::path::Path;

use rt::{DirLock, LockError};

use crate::OpenError;

/// Takes the lock of a store's directory.
///
/// # Errors
/// [`OpenError::InUse`] when another process has it, [`OpenError::Io`] when the file cannot be made.
pub fn lock_dir(dir: &Path) -> Result<DirLock, OpenError> {
    DirLock::take(dir).map_err(|e| match e {
        LockError::InUse => OpenError::InUse(dir.into()),
        LockError::Io(e) => OpenError::Io(dir.join("lock"), e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_use_is_refused_and_free_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock_dir(dir.path()).unwrap();
        let refused = lock_dir(dir.path()).unwrap_err();
        assert!(matches!(refused, OpenError::InUse(_)) && refused.to_string().contains("stop it first"));
        drop(held);
        lock_dir(dir.path()).unwrap();
    }

    #[test]
    fn a_lock_that_is_given_up_while_another_waits_is_handed_over() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock_dir(dir.path()).unwrap();
        let path = dir.path().to_path_buf();
        let (tell, told) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            tell.send(()).unwrap();
            lock_dir(&path).map(drop)
        });
        told.recv().unwrap();
        drop(held);
        waiter.join().unwrap().unwrap();
    }
}
