//! A new file system: superblock, boot count, root directory.
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use types::{Fid, WallTime};

use crate::keys;
use crate::kv::{KvBatch, KvError, MetaKv};
use crate::record::{Counters, FORMAT_VERSION, Inode, S_IFDIR, SUPER_MAGIC, Superblock};
use crate::start::{StartError, read_superblock};

/// Longest file system name: 8 characters, so that target names fit everywhere.
pub const FSNAME_BYTES_MAX: usize = 8;

/// What a new file system is to be.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// Its name: 1 to 8 letters, digits, '-' or '_'.
    pub fsname: String,
    /// Cluster id; not 0.
    pub cluster: u64,
    /// Store id; not 0.
    pub uuid: u64,
    /// Key of the name hash: random.
    pub hash_keys: [u64; 2],
    /// Bits of the name hash that are used. All ones; tests force collisions with fewer.
    pub hash_mask: u64,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// Permissions of the root directory. Default 0755.
    pub root_mode: u32,
    /// Time of birth.
    pub now: WallTime,
}

/// Why a store cannot be formatted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FormatError {
    /// It holds a file system already.
    InUse {
        /// Whose.
        fsname: String,
        /// Of which cluster.
        cluster: u64,
    },
    /// It holds something that cannot be read.
    Foreign(StartError),
    /// Not a name.
    BadName(String),
    /// The store failed.
    Store(KvError),
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatError::InUse { fsname, cluster } => {
                write!(
                    f,
                    "the store holds file system '{fsname}' of cluster {cluster:016x} already: choose another directory, or remove it first"
                )
            }
            FormatError::Foreign(e) => write!(f, "{e}"),
            FormatError::BadName(name) => {
                write!(f, "'{name}' is not a file system name: use 1 to {FSNAME_BYTES_MAX} letters, digits, '-' or '_'")
            }
            FormatError::Store(e) => write!(f, "{e}"),
        }
    }
}
impl std::error::Error for FormatError {}

/// Whether a file system may have this name.
///
/// # Errors
/// `BadName`, which says what names are.
pub fn check_name(name: &str) -> Result<(), FormatError> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    match !name.is_empty() && name.len() <= FSNAME_BYTES_MAX && name.bytes().all(legal) {
        true => Ok(()),
        false => Err(FormatError::BadName(name.into())),
    }
}

/// Writes a new file system into an empty store.
///
/// # Errors
/// The store is not empty, the name is not legal, or the store failed.
pub async fn format(kv: &Rc<dyn MetaKv>, options: &MkfsOptions) -> Result<Superblock, FormatError> {
    let name = &options.fsname;
    check_name(name)?;
    let snapshot = kv.snapshot().await.map_err(FormatError::Store)?;
    match read_superblock(&*snapshot).await {
        Err(StartError::NotFormatted) => {}
        Ok(sb) => {
            return Err(FormatError::InUse {
                fsname: String::from_utf8_lossy(&sb.fsname).into_owned(),
                cluster: sb.cluster,
            });
        }
        Err(e) => return Err(FormatError::Foreign(e)),
    }
    let superblock = Superblock {
        magic: SUPER_MAGIC,
        version: FORMAT_VERSION,
        cluster: options.cluster,
        fsname: name.as_str().into(),
        uuid: options.uuid,
        hash_key0: options.hash_keys[0],
        hash_key1: options.hash_keys[1],
        hash_mask: options.hash_mask,
        made: options.now,
    };
    let root = Inode {
        fid: Fid::ROOT,
        mode: S_IFDIR | (options.root_mode & 0o7777),
        nlink: 2,
        uid: options.root_uid,
        gid: options.root_gid,
        size: 4096,
        blocks: 8,
        atime: options.now,
        mtime: options.now,
        ctime: options.now,
        btime: options.now,
        ..Inode::default()
    };
    let mut batch = KvBatch::default();
    batch.expect.push((keys::plain(keys::SUPERBLOCK), None));
    for (id, inodes) in crate::quota::count([&root].into_iter()) {
        batch.changes.insert(keys::usage(id), crate::quota::count_row(inodes));
    }
    for (key, value) in [
        (keys::plain(keys::SUPERBLOCK), wire::encode(&superblock)),
        (keys::plain(keys::BOOT), 0u64.to_le_bytes().to_vec()),
        (keys::plain(keys::COUNTERS), wire::encode(&Counters { transno: 0, inodes: 1, gap: false, sharing: 0 })),
        (keys::inode(Fid::ROOT), root.encode()),
    ] {
        batch.changes.insert(key, Some(value));
    }
    kv.commit(Arc::new(batch)).await.map_err(FormatError::Store)?;
    Ok(superblock)
}
