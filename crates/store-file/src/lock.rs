//! One process per store directory.
use std::fs::{File, TryLockError};
use std::path::Path;

use crate::OpenError;

/// Holds `lock` in a store's directory until it is dropped or the process ends.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

impl DirLock {
    /// Takes the lock.
    ///
    /// # Errors
    /// [`OpenError::InUse`] when another process has it, [`OpenError::Io`] when the file cannot be made.
    pub fn take(dir: &Path) -> Result<DirLock, OpenError> {
        let path = dir.join("lock");
        let io = |e| OpenError::Io(path.clone(), e);
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => Ok(DirLock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse(dir.into())),
            Err(TryLockError::Error(e)) => Err(OpenError::Io(path, e)),
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
        let refused = DirLock::take(dir.path()).unwrap_err();
        assert!(matches!(refused, OpenError::InUse(_)) && refused.to_string().contains("stop it first"));
        drop(held);
        DirLock::take(dir.path()).unwrap();
    }
}
