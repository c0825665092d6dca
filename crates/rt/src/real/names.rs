//! Names of files of stores, as the operating system keeps them.
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// See [`crate::Rt::unlink`].
pub fn unlink(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// See [`crate::Rt::replace`]. There is a file called `old` all the time.
pub fn replace(new: &Path, old: &Path, aside: &Path) -> io::Result<()> {
    fs::hard_link(old, aside)?;
    fs::rename(new, old)?;
    let dir = old.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    File::open(dir)?.sync_all()
}
