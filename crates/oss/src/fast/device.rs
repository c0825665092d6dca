//! The file of a fast tier: a head that says whose it is, then slots. What the slots hold is known in memory only, so a crash
//! leaves nothing that could be believed wrongly.
//!
//! Head, 4 KiB, little endian: magic `STRIAFST`, version u32, OST u32, cluster u64, store's uuid u64, zeros, crc32c of all
//! before it in the last four bytes. Slots of 64 KiB from offset 64 KiB on.
use std::fmt;
use std::io;
use std::path::Path;
use std::rc::Rc;

use frames::Bulk;
use rt::{DirLock, DiskFile, OpenMode, Rt};
use types::MIB;
use wire::crc32c;

use super::index::UNIT_BYTES;
use crate::store::{BLOCK_BYTES, StoreIdentity};

const MAGIC: &[u8; 8] = b"STRIAFST";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = BLOCK_BYTES as usize;
/// The smallest tier.
pub const FAST_BYTES_MIN: u64 = 16 * MIB;

/// Why there is no fast tier at a place.
#[derive(Debug)]
pub enum FastError {
    /// Below [`FAST_BYTES_MIN`].
    TooSmall(u64),
    /// The file there is not one of Stria's: nothing was changed.
    Foreign,
    /// It is the tier of another store.
    Others(Box<StoreIdentity>),
    /// It is of a newer version.
    Newer(u32),
    /// Its file system has not the space.
    NoSpace(u64),
    /// The device failed.
    Io(io::Error),
}

impl FastError {
    /// Whether it is a setting that is wrong, rather than a device.
    #[must_use]
    pub fn is_mistake(&self) -> bool {
        !matches!(self, FastError::NoSpace(_) | FastError::Io(_))
    }
}

impl fmt::Display for FastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FastError::TooSmall(n) => write!(f, "{n} bytes: a fast tier has at least {} MiB", FAST_BYTES_MIN / MIB),
            FastError::Foreign => f.write_str("its file 'slots' is not a fast tier of Stria: name an empty directory"),
            FastError::Others(who) => {
                let (target, cluster, uuid) = (who.target(), who.cluster, who.uuid);
                write!(f, "it is the fast tier of another store ({target}, cluster {cluster:x}, uuid {uuid:x}): ")?;
                f.write_str("remove it if that store is gone, or name another directory")
            }
            FastError::Newer(v) => write!(f, "it is of version {v}, newer than this program: remove it, or upgrade"),
            FastError::NoSpace(n) => write!(f, "its file system has no {} MiB free for it", n.div_ceil(MIB)),
            FastError::Io(e) => write!(f, "{e}"),
        }
    }
}
impl std::error::Error for FastError {}
impl From<io::Error> for FastError {
    fn from(e: io::Error) -> FastError {
        FastError::Io(e)
    }
}

/// An open one.
pub(super) struct Device {
    file: Rc<dyn DiskFile>,
    pub slots: u32,
    _lock: Option<DirLock>,
}

fn head_of(identity: &StoreIdentity) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..16].copy_from_slice(&u32::from(identity.ost.0).to_le_bytes());
    head[16..24].copy_from_slice(&identity.cluster.to_le_bytes());
    head[24..32].copy_from_slice(&identity.uuid.to_le_bytes());
    let name = identity.fsname.as_bytes();
    head[32..32 + name.len().min(8)].copy_from_slice(&name[..name.len().min(8)]);
    let crc = crc32c(&head[..HEAD_BYTES - 4]);
    head[HEAD_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    head
}

/// Whose tier a head says it is; `None`: the head is damaged, or was never finished.
fn read_head(head: &[u8]) -> Result<Option<StoreIdentity>, FastError> {
    let word = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&head[at..at + len]);
        u64::from_le_bytes(bytes)
    };
    if head.iter().all(|b| *b == 0) {
        return Ok(None);
    }
    if head.len() < HEAD_BYTES || &head[..8] != MAGIC {
        return Err(FastError::Foreign);
    }
    if word(HEAD_BYTES - 4, 4) != u64::from(crc32c(&head[..HEAD_BYTES - 4])) {
        return Ok(None);
    }
    let version = word(8, 4) as u32;
    if version != VERSION {
        return Err(FastError::Newer(version));
    }
    let name = String::from_utf8_lossy(&head[32..40]).trim_end_matches('\0').to_string();
    let ost = types::OstIndex(word(12, 4) as u16);
    Ok(Some(StoreIdentity { cluster: word(16, 8), fsname: name, ost, uuid: word(24, 8) }))
}

/// Whether a store has taken the place of another one: an OST has one store. What the tier holds of that is nobody's any more, and none of it
/// is believed.
fn is_predecessor(who: &StoreIdentity, now: &StoreIdentity) -> bool {
    (who.cluster, who.ost) == (now.cluster, now.ost)
}

impl Device {
    /// Opens the tier of a store in `dir`, or makes it; it takes `bytes` there.
    pub async fn open(
        rt: &Rt,
        dir: &Path,
        identity: &StoreIdentity,
        bytes: u64,
        lock: Option<DirLock>,
    ) -> Result<Device, FastError> {
        if bytes < FAST_BYTES_MIN {
            return Err(FastError::TooSmall(bytes));
        }
        let file = rt.open(&dir.join("slots"), OpenMode { create: true, direct: true })?;
        let slots = u32::try_from(bytes / UNIT_BYTES - 1).unwrap_or(u32::MAX).min(cache::table::CAPACITY_MAX);
        let device = Device { file, slots, _lock: lock };
        device.make_ours(rt, identity).await?;
        let whole = (u64::from(slots) + 1) * UNIT_BYTES;
        if device.file.len()? > whole {
            device.file.set_len(whole)?;
        }
        match device.file.allocate(0, whole).await {
            Err(e) if e.kind() == io::ErrorKind::StorageFull => return Err(FastError::NoSpace(whole)),
            // Not every file system can; it may fill up later, which switches the tier off.
            Err(e) if e.kind() == io::ErrorKind::Unsupported => {}
            other => other?,
        }
        Ok(device)
    }

    async fn make_ours(&self, rt: &Rt, identity: &StoreIdentity) -> Result<(), FastError> {
        let has = self.file.len()?;
        let whose = if has == 0 {
            None
        } else {
            let (read, bulk) = self.file.read_at(0, rt.bulk(HEAD_BYTES).await).await;
            read_head(&bulk.to_vec()[..read?])?
        };
        match whose {
            Some(who) if who == *identity => Ok(()),
            Some(who) if !is_predecessor(&who, identity) => Err(FastError::Others(Box::new(who))),
            _ => {
                let mut bulk = rt.bulk(HEAD_BYTES).await;
                bulk.copy_in(0, &head_of(identity));
                self.file.write_at(0, bulk).await.map_err(full)?;
                self.file.sync().await.map_err(full)
            }
        }
    }

    fn place(slot: u32, block: u64) -> u64 {
        (u64::from(slot) + 1) * UNIT_BYTES + block * BLOCK_BYTES
    }
    /// Fills `into` from block `block` of a slot on.
    pub async fn read(&self, slot: u32, block: u64, into: Bulk) -> io::Result<Bulk> {
        let (read, bulk) = self.file.read_at(Self::place(slot, block), into).await;
        if read? < bulk.len() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bulk) }
    }
    /// Writes blocks of a slot.
    pub async fn write(&self, slot: u32, block: u64, from: Bulk) -> io::Result<()> {
        self.file.write_at(Self::place(slot, block), from).await
    }
    /// Gives it another device's time.
    pub fn timed(self, wrap: impl FnOnce(Rc<dyn DiskFile>) -> Rc<dyn DiskFile>) -> Device {
        Device { file: wrap(self.file), ..self }
    }
}

/// A device without space is told apart from one that fails.
fn full(e: io::Error) -> FastError {
    if e.kind() == io::ErrorKind::StorageFull { FastError::NoSpace(HEAD_BYTES as u64) } else { FastError::Io(e) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_the_bytes_of_its_specification() {
        let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: types::OstIndex(3), uuid: 9 };
        let head = head_of(&identity);
        let mut golden = [0u8; HEAD_BYTES];
        golden[..8].copy_from_slice(b"STRIAFST");
        (golden[8], golden[12], golden[16], golden[24]) = (1, 3, 7, 9);
        golden[32..37].copy_from_slice(b"stria");
        assert_eq!(head[..HEAD_BYTES - 4], golden[..HEAD_BYTES - 4]);
        assert_eq!(head[HEAD_BYTES - 4..], crc32c(&golden[..HEAD_BYTES - 4]).to_le_bytes());
        assert_eq!(read_head(&head).unwrap(), Some(identity));
        assert_eq!(read_head(&[0; HEAD_BYTES]).unwrap(), None);
        let mut newer = head;
        newer[8] = 2;
        let crc = crc32c(&newer[..HEAD_BYTES - 4]).to_le_bytes();
        newer[HEAD_BYTES - 4..].copy_from_slice(&crc);
        assert!(matches!(read_head(&newer), Err(FastError::Newer(2))));
        assert!(matches!(read_head(b"a thesis"), Err(FastError::Foreign)));
    }
}
