//! One process per store directory.
use std::path::Path;

use rt::{DirLock, LockError, Rt};

use crate::OpenError;

/// Takes the lock of a store's directory; whoever is served by the same shard does not wait for another process that has it.
///
/// # Errors
/// [`OpenError::InUse`] when another process has it, [`OpenError::Io`] when the file cannot be made.
pub async fn lock_dir(rt: &Rt, dir: &Path) -> Result<DirLock, OpenError> {
    rt.lock_dir_waiting(dir).await.map_err(|e| match e {
        LockError::InUse => OpenError::InUse(dir.into()),
        LockError::Io(e) => OpenError::Io(dir.join("lock"), e),
    })
}
