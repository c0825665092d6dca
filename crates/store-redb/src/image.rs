//! A store that is looked at and not changed: for `stria fsck`.
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use dbcheck::{Mended, Salvaged, Shape, Whole};
use mds::kv::{KvBatch, KvError, KvLimits, KvSnapshot, MetaKv};
use mds::salvaged::{Kept, Revoked};
use redb::{Database, ReadableTable, TableHandle};
use rt::{BlockingFile, DirLock, LocalFuture, RoomyFile, Rt};
use types::WallTime;

use crate::dir::{OpenError, STORE_FILE, lock};
use crate::{Backend, TABLE};

/// Records of a new database that are committed together.
const TOGETHER_MAX: usize = 50_000;

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
    let whole = Whole::known(rt, &dir.join(STORE_FILE));
    let examined = rt.offload(move || dbcheck::examine(file, cache_bytes, whole.as_ref())).await;
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
    let whole = Whole::known(rt, &dir.join(STORE_FILE));
    let done = rt.offload(move || dbcheck::mend(file, cache_bytes, whole.as_ref())).await;
    done.map_err(|e| OpenError::Io(dir.join(STORE_FILE), e))
}

/// A new database that was made of a damaged one.
#[derive(Debug)]
pub struct Rebuilt {
    /// What could be read. Without a record nothing was changed.
    pub saved: Salvaged,
    /// Where the damaged file is.
    pub aside: PathBuf,
    /// What stands for records that may be lost, a sentence each.
    pub instead: Vec<String>,
}

/// Makes a new database of the records that can still be read of the one in `dir`, of which no commit is whole. Where any may be lost
/// the store says so ([`mds::salvaged`]); `revoked`: what OSTs know of credentials.
///
/// # Errors
/// As [`examine`]; or there is no space for the new one.
pub async fn salvage(rt: &Rt, dir: &Path, cache_bytes: usize, revoked: Revoked) -> Result<Rebuilt, OpenError> {
    let (_, _lock) = locked(rt, dir)?;
    let (now, (tell, told)) = (rt.wall(), std::sync::mpsc::channel());
    let make = move |from: &dyn BlockingFile, to: Box<dyn BlockingFile>| {
        let (saved, instead) = copy_records(from, to, cache_bytes, &revoked, now)?;
        let _ = tell.send(instead);
        Ok(saved)
    };
    let made = dbcheck::rebuild(rt, dir, STORE_FILE, make).await;
    let (saved, aside) = made.map_err(|(at, e)| OpenError::Io(at, e))?;
    Ok(Rebuilt { saved, aside, instead: told.try_recv().unwrap_or_default() })
}

fn copy_records(
    from: &dyn BlockingFile,
    to: Box<dyn BlockingFile>,
    cache_bytes: usize,
    revoked: &Revoked,
    now: WallTime,
) -> io::Result<(Salvaged, Vec<String>)> {
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    let file = RoomyFile::new(to, 0)?;
    // Without space this is an error at once; there is nobody who would make some.
    file.room().give_up();
    let db = builder.create_with_backend(Backend(file)).map_err(io::Error::other)?;
    let mut batch: Vec<(Vec<u8>, Vec<u8>, bool)> = Vec::new();
    let commit = |batch: &mut Vec<(Vec<u8>, Vec<u8>, bool)>| -> io::Result<()> {
        let write = db.begin_write().map_err(io::Error::other)?;
        {
            let mut table = write.open_table(TABLE).map_err(io::Error::other)?;
            for (key, value, trusted) in batch.drain(..) {
                if trusted || table.get(&*key).map_err(io::Error::other)?.is_none() {
                    table.insert(&*key, &*value).map_err(io::Error::other)?;
                }
            }
        }
        write.commit().map_err(io::Error::other)
    };
    let (mut saved, mut is_newest) = (Salvaged::default(), true);
    for of in dbcheck::commits(from)? {
        saved = dbcheck::salvage(
            from,
            &of,
            TABLE.name(),
            Shape::default(),
            Some(&mds::kv::is_whole),
            &mut |key, value, trusted| {
                batch.push((key.to_vec(), value.to_vec(), trusted));
                if batch.len() >= TOGETHER_MAX { commit(&mut batch) } else { Ok(()) }
            },
        )?;
        if saved.records > 0 {
            break;
        }
        is_newest = false;
    }
    commit(&mut batch)?;
    if saved.records == 0 || (saved.damaged_pages == 0 && is_newest) {
        return Ok((saved, Vec::new()));
    }
    // What is missing looks like what never was.
    let write = db.begin_write().map_err(io::Error::other)?;
    let instead = {
        let mut table = write.open_table(TABLE).map_err(io::Error::other)?;
        let mut kept = Kept::default();
        let stays = |key: &[u8], _: &[u8]| {
            kept.note(key);
            !mds::salvaged::is_dropped(key)
        };
        table.retain(stays).map_err(io::Error::other)?;
        let (rows, said) = mds::salvaged::instead(kept, revoked, now);
        for (key, value) in rows {
            table.insert(&*key, &*value).map_err(io::Error::other)?;
        }
        said
    };
    write.commit().map_err(io::Error::other)?;
    Ok((saved, instead))
}

fn locked(rt: &Rt, dir: &Path) -> Result<(Box<dyn BlockingFile>, DirLock), OpenError> {
    let path = dir.join(STORE_FILE);
    if !rt.has_file(&path) {
        return Err(OpenError::Missing(dir.into()));
    }
    let lock = lock(rt, dir)?;
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
