//! A directory of a survey's own: new, below the one that was named, gone at the end with everything in it.
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use types::format_size;

use crate::failure::{Failed, Outcome};
use crate::os;

/// Part of the free space that a survey may take, in percent.
const FREE_PERCENT_MAX: u64 = 90;

/// The directory; removed when dropped.
#[derive(Debug)]
pub struct Place(PathBuf);

impl Place {
    /// Makes one below `parent`, for at most `bytes`, and warns of what will be written.
    ///
    /// # Errors
    /// There is no such directory, or no room in it.
    pub fn make(parent: &Path, bytes: u64, warn: &dyn Fn(&str)) -> Outcome<Place> {
        let parent = fs::canonicalize(parent).map_err(|e| Failed::io("looking at", parent, &e))?;
        let kind = fs::metadata(&parent).map_err(|e| Failed::io("looking at", &parent, &e))?.file_type();
        if kind.is_block_device() || kind.is_char_device() {
            let said = format!(
                "{} is a device: a survey writes files only, into a directory of a file system on it",
                parent.display()
            );
            return Err(Failed::new(said, libc::ENOTBLK));
        }
        if !kind.is_dir() {
            return Err(Failed::new(format!("{} is not a directory", parent.display()), libc::ENOTDIR));
        }
        let free = os::free_bytes(&parent).map_err(|e| Failed::io("looking at", &parent, &e))?;
        if bytes > free / 100 * FREE_PERCENT_MAX {
            let said = format!(
                "{} has {} free, and this survey writes up to {} at a time: say less with --size",
                parent.display(),
                format_size(free),
                format_size(bytes)
            );
            return Err(Failed::new(said, libc::ENOSPC));
        }
        let path = parent.join(format!("stria-survey-{}", std::process::id()));
        let what = if bytes == 0 { "making files".into() } else { format!("writing up to {}", format_size(bytes)) };
        warn(&format!("{what} in {}, which is removed at the end", path.display()));
        fs::create_dir(&path).map_err(|e| Failed::io("making", &path, &e))?;
        Ok(Place(path))
    }
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "stria survey: {} stays: {e}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_new_and_gone_afterwards_and_needs_a_directory_with_room() {
        let dir = tempfile::tempdir().unwrap();
        let said = std::cell::RefCell::new(String::new());
        let warn = |text: &str| said.borrow_mut().push_str(text);
        let place = Place::make(dir.path(), 1 << 20, &warn).unwrap();
        let path = place.path().to_path_buf();
        fs::write(path.join("f"), b"x").unwrap();
        assert!(said.borrow().contains(path.to_str().unwrap()) && said.borrow().contains("1.0M"));
        drop(place);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        let refused = |parent: &Path, bytes| Place::make(parent, bytes, &warn).unwrap_err();
        assert_eq!(refused(dir.path(), u64::MAX).errno, libc::ENOSPC);
        assert!(refused(Path::new("/dev/null"), 1).text.contains("is a device"));
        fs::write(dir.path().join("f"), b"x").unwrap();
        assert_eq!(refused(&dir.path().join("f"), 1).errno, libc::ENOTDIR);
        assert_eq!(refused(&dir.path().join("none"), 1).errno, libc::ENOENT);
    }
}
