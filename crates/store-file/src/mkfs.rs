//! Making a store, and judging whether what is in a directory is one.
use std::path::Path;

use oss::store::{BLOCK_BYTES, StoreIdentity};
use rt::{OpenMode, Rt};

use crate::db::Db;
use crate::error::OpenError;
use crate::format::{FORMAT_VERSION, FormatError, Superblock};

/// Smallest store: 16 MiB.
pub const CAPACITY_MIN: u64 = 16 << 20;

/// What a new store is to be.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// Who it belongs to. The file system name has 1..=8 letters, digits, `-` or `_`; the uuid is not 0.
    pub identity: StoreIdentity,
    /// Bytes that it may take; 0: as much as the file system has. At least 16 MiB.
    pub capacity_bytes: u64,
    /// It takes the place of a store that is lost, whose objects had ids up to this one: they are known as lost, and new
    /// ones get higher ids. 0: it replaces none.
    pub lost_through: u32,
}

/// What the store in `dir` says of itself: who it belongs to, and which objects were lost before it was made. The store
/// is not opened.
///
/// # Errors
/// [`OpenError`]: there is none, or none that this program knows.
pub async fn identity(rt: &Rt, dir: &Path) -> Result<(StoreIdentity, u32), OpenError> {
    let path = dir.join("data");
    let data = rt.open(&path, OpenMode { create: false, direct: false }).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => OpenError::Missing(dir.into()),
        _ => OpenError::Io(path.clone(), e),
    })?;
    let block0 = crate::file_store::read_block0(rt, &data).await.map_err(|e| OpenError::Io(path, e))?;
    let superblock = check_superblock(dir, &block0, None)?;
    Ok((superblock.identity, superblock.lost_through))
}

/// Makes a store in `dir`, which exists and holds none.
///
/// # Errors
/// [`OpenError::Exists`], [`OpenError::Invalid`] with the value and what would be right, [`OpenError::Io`].
pub async fn mkfs(rt: &Rt, dir: &Path, options: &MkfsOptions) -> Result<(), OpenError> {
    let name = &options.identity.fsname;
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !(1..=8).contains(&name.len()) || !name.chars().all(legal) {
        return Err(OpenError::Invalid(format!(
            "'{name}' is not a file system name: write 1 to 8 letters, digits, - or _"
        )));
    }
    if options.capacity_bytes != 0 && options.capacity_bytes < CAPACITY_MIN {
        let n = options.capacity_bytes;
        return Err(OpenError::Invalid(format!(
            "a store of {n} bytes is too small: 16M is the least, 0 means all there is"
        )));
    }
    let path = dir.join("data");
    if let Ok(data) = rt.open(&path, OpenMode { create: false, direct: false }) {
        let block0 = crate::file_store::read_block0(rt, &data).await.map_err(|e| OpenError::Io(path.clone(), e))?;
        // Zeros are what an interrupted mkfs leaves: no store yet.
        if block0.iter().any(|b| *b != 0) {
            return Err(OpenError::Exists(dir.into()));
        }
    }
    let superblock = Superblock {
        identity: options.identity.clone(),
        capacity_bytes: options.capacity_bytes / BLOCK_BYTES * BLOCK_BYTES,
        lost_through: options.lost_through,
    };
    make_database(rt, dir, &superblock).await?;
    // The data file comes last: a store without it is none, and is made anew.
    let io = |e| OpenError::Io(path.clone(), e);
    let data = rt.open(&path, OpenMode { create: true, direct: false }).map_err(io)?;
    let mut block = rt.bulk(BLOCK_BYTES as usize).await;
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    let head = superblock.to_bytes();
    bytes[..head.len()].copy_from_slice(&head);
    block.copy_in(0, &bytes);
    data.allocate(0, BLOCK_BYTES).await.map_err(io)?;
    data.write_at(0, block).await.map_err(io)?;
    data.sync().await.map_err(io)
}

async fn make_database(rt: &Rt, dir: &Path, superblock: &Superblock) -> Result<(), OpenError> {
    let path = dir.join("meta.redb");
    let io = |e| OpenError::Io(path.clone(), e);
    let file = rt.open_blocking(&path, true).map_err(io)?;
    file.set_len(0).map_err(io)?;
    let file = rt::RoomyFile::new(file, 0).map_err(io)?;
    // A store that cannot be made is an error at once; there is nothing to wait with.
    file.room().give_up();
    let superblock = superblock.clone();
    let made = rt
        .offload(move || -> Result<(), crate::db::DbError> {
            let db = redb::Database::builder().create_with_backend(crate::backend::FileBackend(file))?;
            Db::new(db).make(&superblock)
        })
        .await;
    made.map_err(|e| io(std::io::Error::other(e.to_string())))
}

/// Reads the superblock in block 0 of a data file.
///
/// # Errors
/// [`OpenError`] by what is wrong with it.
pub(crate) fn check_superblock(dir: &Path, block0: &[u8], cluster: Option<u64>) -> Result<Superblock, OpenError> {
    let superblock = Superblock::from_bytes(block0).map_err(|e| match e {
        FormatError::Version(found) if found > FORMAT_VERSION => {
            OpenError::NewerFormat { dir: dir.into(), found, known: FORMAT_VERSION }
        }
        FormatError::Length(_) | FormatError::Magic(0) => OpenError::Missing(dir.into()),
        e => OpenError::Corrupt(dir.into(), format!("block 0 of the data file: {e}")),
    })?;
    let found = superblock.identity.cluster;
    match cluster {
        Some(wanted) if wanted != found => Err(OpenError::OtherCluster { dir: dir.into(), found, wanted }),
        _ => Ok(superblock),
    }
}
