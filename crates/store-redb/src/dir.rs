//! The directory of a store: one file, and a lock so that two servers never share it.
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use dbcheck::{PageSums, Watched, Whole};
use mds::kv::{Answer, KvError, MetaKv};
use mds::record::Superblock;
use mds::{FormatError, MkfsOptions};
use rt::{BlockingFile, DirLock, LockError, OpenMode, Rt};

use crate::RedbKv;

/// The database's name in its directory.
pub const STORE_FILE: &str = "mdt.redb";

/// Of the database's magic number, with which its file begins.
const MAGIC_BYTES: usize = 9;

/// The error number of a full medium.
const ENOSPC: i32 = 28;
/// What a database has to be able to grow by when it is opened: twice what a first commit takes. Four times of it within the database do
/// as well: which of its pages a commit takes is not known before.
const START_BYTES: u64 = 256 << 10;

/// Why a directory cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// It holds no store.
    Missing(PathBuf),
    /// Its database has no byte: it was cut, or put back by halves.
    Empty(PathBuf),
    /// Another process has it open.
    InUse(PathBuf),
    /// The operating system refused, or there is no space left to commit anything.
    Io(PathBuf, io::Error),
    /// The database is not what was written.
    Damaged(PathBuf, String),
    /// The database cannot be used.
    Store(PathBuf, KvError),
    /// It cannot be formatted.
    Format(PathBuf, FormatError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Missing(p) => {
                write!(f, "{} holds no metadata store: format it with 'stria mkfs' first", p.display())
            }
            OpenError::Empty(p) => write!(
                f,
                "{} is empty (0 bytes), nothing of the metadata store is left in it: put the right file in its place, or move this one's directory away and have 'stria mdt restore' put a backup there",
                p.display()
            ),
            OpenError::InUse(p) => write!(f, "{} is in use by another process: stop it first", p.display()),
            OpenError::Damaged(p, why) => write!(f, "{} is damaged: {why}; run 'stria fsck'", p.display()),
            OpenError::Io(p, e) => write!(f, "{}: {e}", p.display()),
            OpenError::Store(p, e) => write!(f, "{}: {e}", p.display()),
            OpenError::Format(p, e) => write!(f, "{}: {e}", p.display()),
        }
    }
}
impl std::error::Error for OpenError {}

pub(crate) fn lock(rt: &Rt, dir: &Path) -> Result<DirLock, OpenError> {
    rt.lock_dir(dir).map_err(|e| match e {
        LockError::InUse => OpenError::InUse(dir.into()),
        LockError::Io(e) => OpenError::Io(dir.join("lock"), e),
    })
}

/// What is to be made waits for no space: nobody serves yet.
fn open_file(rt: Rt, dir: &Path, cache_bytes: usize, create: bool, sums: PageSums) -> Result<Rc<RedbKv>, OpenError> {
    let lock = lock(&rt, dir)?;
    let path = dir.join(STORE_FILE);
    let file = rt.open_blocking(&path, create).map_err(|e| OpenError::Io(path.clone(), e))?;
    let space = rt.open(&path, OpenMode { create: false, direct: false }).ok();
    let file = Watched::new(file, sums).with(Whole::beside(&rt, &path));
    let kv = RedbKv::build(rt, file, cache_bytes, space, Some(lock), !create);
    let mut kv = kv.map_err(|e| OpenError::Store(path.clone(), e))?;
    kv.path = Some(path.clone());
    // The first commit would wait for space that may never come, before anybody is there to hear of it.
    if kv.room.likely() < START_BYTES && !kv.reusable_now().is_ok_and(|bytes| bytes >= 4 * START_BYTES) {
        return Err(OpenError::Io(path, io::Error::from_raw_os_error(ENOSPC)));
    }
    Ok(Rc::new(kv))
}

/// Opens the store in `dir`, whose database is compared with its checksums first if it has `check_bytes_max` bytes at most, away from
/// the shard.
///
/// # Errors
/// As [`open`].
pub async fn open_checked(
    rt: Rt,
    dir: &Path,
    cache_bytes: usize,
    check_bytes_max: u64,
) -> Result<Rc<RedbKv>, OpenError> {
    let path = dir.join(STORE_FILE);
    if !rt.has_file(&path) {
        return Err(OpenError::Missing(dir.into()));
    }
    refuse_empty(&rt, &path)?;
    let sums = PageSums::default();
    if check_bytes_max > 0 {
        let _lock = lock(&rt, dir)?;
        let (file, of_check) = (rt.open_blocking(&path, false), sums.clone());
        let whole = Whole::known(&rt, &path);
        let compare =
            move || dbcheck::fault_before_opening(file?, check_bytes_max, cache_bytes, &of_check, whole.as_ref());
        let fault = rt.offload(compare).await.map_err(|e| OpenError::Io(path.clone(), e))?;
        fault.map_or(Ok(()), |why| Err(OpenError::Damaged(path, why)))?;
    }
    open_file(rt, dir, cache_bytes, false, sums)
}

/// Opens the database at `path` of the world behind `rt`, whose pages are compared first; for who has no directory to lock.
///
/// # Errors
/// It cannot be read, or is damaged.
pub fn open_at(rt: Rt, path: &Path, cache_bytes: usize) -> Result<Rc<RedbKv>, OpenError> {
    let sums = PageSums::default();
    compare(&rt, path, crate::CHECK_BYTES_DEFAULT, cache_bytes, &sums)?;
    let file = rt.open_blocking(path, false).map_err(|e| OpenError::Io(path.into(), e))?;
    let file = Watched::new(file, sums).with(Whole::beside(&rt, path));
    let kv = RedbKv::build(rt, file, cache_bytes, None, None, true);
    kv.map(Rc::new).map_err(|e| OpenError::Store(path.into(), e))
}

/// Compares a database of at most `check_bytes_max` bytes with its checksums.
fn compare(rt: &Rt, path: &Path, check_bytes_max: u64, cache_bytes: usize, sums: &PageSums) -> Result<(), OpenError> {
    let whole = Whole::known(rt, path);
    let fault = rt
        .open_blocking(path, false)
        .and_then(|file| dbcheck::fault_before_opening(file, check_bytes_max, cache_bytes, sums, whole.as_ref()))
        .map_err(|e| OpenError::Io(path.into(), e))?;
    fault.map_or(Ok(()), |why| Err(OpenError::Damaged(path.into(), why)))
}

/// Opens the store in `dir`, as it is.
///
/// # Errors
/// There is none, it is in use, or it is damaged.
pub fn open(rt: Rt, dir: &Path, cache_bytes: usize) -> Result<Rc<RedbKv>, OpenError> {
    if !rt.has_file(&dir.join(STORE_FILE)) {
        return Err(OpenError::Missing(dir.into()));
    }
    refuse_empty(&rt, &dir.join(STORE_FILE))?;
    open_file(rt, dir, cache_bytes, false, PageSums::default())
}

/// An empty file would become an empty database.
fn refuse_empty(rt: &Rt, path: &Path) -> Result<(), OpenError> {
    let len = rt.open_blocking(path, false).and_then(|file| file.len()).map_err(|e| OpenError::Io(path.into(), e))?;
    if len == 0 { Err(OpenError::Empty(path.into())) } else { Ok(()) }
}

/// Whether nothing was ever stored in the database of `dir`: whoever made a store there was interrupted before its only commit.
///
/// # Errors
/// The directory is in use; the database cannot be read, or is damaged.
pub async fn is_unmade(rt: &Rt, dir: &Path) -> Result<bool, OpenError> {
    let path = dir.join(STORE_FILE);
    if !rt.has_file(&path) {
        return Ok(true);
    }
    let locked = lock(rt, dir)?;
    let file = rt.open_blocking(&path, false);
    let begun = file.and_then(|file| has_no_page(&*file)).map_err(|e| OpenError::Io(path.clone(), e))?;
    drop(locked);
    if begun {
        return Ok(true);
    }
    let (cache, sums) = (crate::CACHE_BYTES_DEFAULT, PageSums::default());
    compare(rt, &path, crate::CHECK_BYTES_DEFAULT, cache, &sums)?;
    let kv = open_file(rt.clone(), dir, cache, true, sums)?;
    let failed = |e| OpenError::Store(path.clone(), e);
    let first = match kv.snapshot().await.map_err(failed)?.range(&[], &[u8::MAX; 8], 1) {
        Answer::Now(first) => first,
        Answer::Later(first) => first.await,
    };
    Ok(first.map_err(failed)?.is_empty())
}

/// Whether a database's file is one whose making did not come to an end: without its magic number, which is written last, and with
/// nothing behind its head.
fn has_no_page(file: &dyn BlockingFile) -> io::Result<bool> {
    const PIECE: u64 = 1 << 16;
    const HEAD: usize = 4096;
    let len = file.len()?;
    for at in (0..len).step_by(PIECE as usize) {
        let mut piece = vec![0; PIECE.min(len - at) as usize];
        file.read(at, &mut piece)?;
        if at == 0 {
            let behind_magic = MAGIC_BYTES.min(piece.len())..HEAD.min(piece.len());
            piece[behind_magic].fill(0);
        }
        if piece.iter().any(|b| *b != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An empty database in `dir`, for a backup that is put back: no store until it has a superblock.
///
/// # Errors
/// The directory is in use, or nothing can be made there.
pub fn open_empty(rt: Rt, dir: &Path) -> Result<Rc<RedbKv>, OpenError> {
    rt::make_private_dir(dir).map_err(|e| OpenError::Io(dir.into(), e))?;
    open_file(rt, dir, crate::CACHE_BYTES_DEFAULT, true, PageSums::default())
}

/// Makes `dir` (when missing) and a new file system in it.
///
/// # Errors
/// The directory holds a store, of any format, or is in use; or the options are not legal.
pub async fn mkfs(rt: Rt, dir: &Path, options: &MkfsOptions) -> Result<Superblock, OpenError> {
    rt::make_private_dir(dir).map_err(|e| OpenError::Io(dir.into(), e))?;
    let kv: Rc<dyn MetaKv> = open_file(rt, dir, crate::CACHE_BYTES_DEFAULT, true, PageSums::default())?;
    mds::mkfs::format(&kv, options).await.map_err(|e| OpenError::Format(dir.into(), e))
}
