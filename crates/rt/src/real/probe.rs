//! Whether a medium is well, found out by a small file of its own: no byte of a store is touched.
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The probe's name in a store's directory. One that a process left which died meanwhile is removed by the next probe.
const NAME: &str = "probe";
/// Bytes that are written: more than a sector, and a page of the kernel's.
const BYTES: usize = 64 << 10;

/// Makes a file below `dir`, writes and syncs it, reads it back from the medium, removes it. Blocks.
///
/// # Errors
/// As the medium answers; `InvalidData` when other bytes come back.
pub(super) fn probe(dir: &Path) -> io::Result<()> {
    let path = dir.join(NAME);
    let tried = try_at(&path);
    let removed = fs::remove_file(&path);
    tried?;
    removed?;
    // The removal is on the medium, too: a directory that cannot be changed is not well.
    fs::File::open(dir)?.sync_all()
}

fn try_at(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    let mut salt = [0; 8];
    super::fill_from_system(&mut salt);
    let salt = u64::from_le_bytes(salt);
    let written: Vec<u8> = (0..BYTES as u64 / 8)
        .flat_map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt).to_le_bytes())
        .collect();
    file.write_all_at(&written, 0)?;
    file.sync_all()?;
    // What is read comes from the medium, where the file system can forget what it has in memory.
    // SAFETY: plain system call on a descriptor that `file` keeps open.
    let forgotten = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if forgotten != 0 {
        return Err(io::Error::from_raw_os_error(forgotten));
    }
    let mut read = vec![0; BYTES];
    file.read_exact_at(&mut read, 0)?;
    if read == written {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "other bytes come back than were written"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_leaves_nothing_and_takes_away_what_another_left() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NAME), b"left").unwrap();
        probe(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_written_is_not_well() {
        let dir = tempfile::tempdir().unwrap();
        assert!(probe(&dir.path().join("gone")).is_err());
        fs::create_dir(dir.path().join(NAME)).unwrap();
        assert!(probe(dir.path()).is_err());
    }
}
