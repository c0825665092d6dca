//! A store that is looked at and not changed: for `stria fsck`.
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use dbcheck::Mended;
use mds::kv::{KvBatch, KvError, KvLimits, KvSnapshot, MetaKv};
use redb::Database;
use rt::{BlockingFile, DirLock, LocalFuture, Rt};

use crate::dir::{OpenError, STORE_FILE, lock};

/// A store whose file was compared with its checksums.
pub struct Image {
    /// What is wrong with the file, a sentence each.
    pub faults: Vec<String>,
    /// What is remarkable, and no fault.
    pub notes: Vec<String>,
    /// The store, which takes no commits; `None` when its file is damaged.
    pub kv: Option<Rc<dyn MetaKv>>,
    _lock: DirLock,
}

/// Reads the whole file of the store in `dir`, which nobody has open, and changes nothing.
///
/// # Errors
/// There is none, it is in use, or it cannot be read at all.
pub async fn examine(rt: &Rt, dir: &Path, cache_bytes: usize) -> Result<Image, OpenError> {
    let (file, lock) = locked(rt, dir)?;
    let examined = rt.offload(move || dbcheck::examine(file, cache_bytes)).await;
    let examined = examined.map_err(|e| OpenError::Io(dir.join(STORE_FILE), e))?;
    let kv = examined.database.map(|db| Rc::new(ReadOnly(Arc::new(db))) as Rc<dyn MetaKv>);
    Ok(Image { faults: examined.faults, notes: examined.notes, kv, _lock: lock })
}

/// Makes the newest commit of a damaged file that is whole count.
///
/// # Errors
/// As [`examine`]; or the file cannot be written.
pub async fn mend_database(rt: &Rt, dir: &Path, cache_bytes: usize) -> Result<Mended, OpenError> {
    let (file, _lock) = locked(rt, dir)?;
    let done = rt.offload(move || dbcheck::mend(file, cache_bytes)).await;
    done.map_err(|e| OpenError::Io(dir.join(STORE_FILE), e))
}

fn locked(rt: &Rt, dir: &Path) -> Result<(Box<dyn BlockingFile>, DirLock), OpenError> {
    let path = dir.join(STORE_FILE);
    if !path.exists() {
        return Err(OpenError::Missing(dir.into()));
    }
    let lock = lock(dir)?;
    let file = rt.open_blocking(&path, false).map_err(|e| OpenError::Io(path, e))?;
    Ok((file, lock))
}

struct ReadOnly(Arc<Database>);

impl MetaKv for ReadOnly {
    fn limits(&self) -> KvLimits {
        KvLimits {
            batch_ops_max: 0,
            batch_bytes_max: 0,
            key_bytes_max: 0,
            value_bytes_max: 0,
            snapshot_isolation: true,
        }
    }
    fn snapshot(&self) -> LocalFuture<Result<Rc<dyn KvSnapshot>, KvError>> {
        let snapshot = crate::snapshot_of(&self.0);
        Box::pin(std::future::ready(snapshot))
    }
    fn commit(&self, _batch: Arc<KvBatch>) -> LocalFuture<Result<(), KvError>> {
        Box::pin(std::future::ready(Err(KvError::Latched("it was opened for reading".into()))))
    }
    fn space(&self) -> (u64, u64) {
        (0, 0)
    }
}
