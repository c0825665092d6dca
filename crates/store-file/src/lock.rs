//! One process per store directory.
use std::path::Path;

use rt::{DirLock, LockError, Rt};

use crate::OpenError;

/// Takes the lock of a store's directory.
///
/// # Errors
/// [`OpenError::InUse`] when another process has it, [`OpenError::Io`] when the file cannot be made.
pub fn lock_dir(rt: &Rt, dir: &Path) -> Result<DirLock, OpenError> {
    rt.lock_dir(dir).map_err(|e| match e {
        LockError::InUse => OpenError::InUse(dir.into()),
        LockError::Io(e) => OpenError::Io(dir.join("lock"), e),
    })
}
