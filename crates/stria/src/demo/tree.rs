//! Trees of files: which the demonstration copies, copying them, comparing them by checksum.
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use indicatif::ProgressBar;

use super::Stop;
use crate::failure::Failure;

/// A file to copy: where it is, its name in the copy, its size.
pub struct Source {
    /// Where it is.
    pub from: PathBuf,
    /// Name below the copy's root.
    pub name: PathBuf,
    /// Bytes.
    pub bytes: u64,
}

/// The project's own files: what git tracks in the checkout that this program is run in, or was built from.
pub fn own_sources() -> (PathBuf, Vec<Source>) {
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let here = std::env::current_dir().unwrap_or_else(|_| built_from.clone());
    for root in [here, built_from] {
        let listed = Command::new("git").arg("-C").arg(&root).args(["ls-files", "-z", "--full-name", ":/"]).output();
        let top = Command::new("git").arg("-C").arg(&root).args(["rev-parse", "--show-toplevel"]).output();
        let (Ok(listed), Ok(top)) = (listed, top) else { continue };
        if !listed.status.success() || !top.status.success() {
            continue;
        }
        let top = PathBuf::from(String::from_utf8_lossy(&top.stdout).trim());
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        let files = names.split_terminator('\0').filter_map(|n| source(&top, Path::new(n))).collect();
        return (top, files);
    }
    (PathBuf::new(), Vec::new())
}

fn source(root: &Path, name: &Path) -> Option<Source> {
    let from = root.join(name);
    let meta = fs::symlink_metadata(&from).ok().filter(fs::Metadata::is_file)?;
    Some(Source { from, name: name.into(), bytes: meta.len() })
}

/// The crates that cargo downloaded, up to `bytes_max`.
pub fn crates(bytes_max: u64) -> Vec<Source> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|h| Path::new(&h).join(".cargo")));
    let Some(root) = home.map(|h| h.join("registry/src")) else { return Vec::new() };
    let mut found = Vec::new();
    let mut left = bytes_max;
    let mut open = vec![root.clone()];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        let mut entries: Vec<_> = entries.flatten().collect();
        entries.sort_by_key(|e| std::cmp::Reverse(e.file_name()));
        for entry in entries {
            let path = entry.path();
            match entry.file_type() {
                Ok(t) if t.is_dir() => open.push(path),
                Ok(t) if t.is_file() => {
                    let Some(s) = path.strip_prefix(&root).ok().and_then(|n| source(&root, n)) else { continue };
                    if s.bytes > left {
                        return found;
                    }
                    left -= s.bytes;
                    found.push(s);
                }
                _ => {}
            }
        }
    }
    found
}

/// Copies files below `to`, making directories as needed.
pub fn copy(files: &[Source], to: &Path, bar: &ProgressBar, stop: &Stop) -> Result<u64, Failure> {
    let mut bytes = 0;
    let mut made = std::collections::HashSet::new();
    for f in files {
        stop.check()?;
        let target = to.join(&f.name);
        let parent = target.parent().unwrap_or(to);
        if made.insert(parent.to_path_buf()) {
            fs::create_dir_all(parent).map_err(|e| Failure::io("making", parent, &e))?;
        }
        let mut from = File::open(&f.from).map_err(|e| Failure::io("reading", &f.from, &e))?;
        let mut file = File::create(&target).map_err(|e| Failure::io("creating", &target, &e))?;
        // Read and written, not handed to the kernel as a copy: that is what programs do.
        bytes +=
            pump(&mut from, &mut |part| file.write_all(part)).map_err(|e| Failure::io("copying to", &target, &e))?;
        bar.inc(1);
    }
    Ok(bytes)
}

/// Compares copies below `at` with their sources by checksum. Bytes that were read from the copies.
pub fn verify(files: &[Source], at: &Path, bar: &ProgressBar, stop: &Stop) -> Result<u64, Failure> {
    let mut bytes = 0;
    for f in files {
        stop.check()?;
        let copy = at.join(&f.name);
        let (want, _) = checksum(&f.from)?;
        let (found, length) = checksum(&copy)?;
        if want != found {
            return Err(Failure::with_errno(
                format!("{} differs from {}: checksum {found:08x}, not {want:08x}", copy.display(), f.from.display()),
                libc::EBADMSG,
            ));
        }
        bytes += length;
        bar.inc(1);
    }
    Ok(bytes)
}

/// CRC32C and length of a file.
pub fn checksum(path: &Path) -> Result<(u32, u64), Failure> {
    let mut file = File::open(path).map_err(|e| Failure::io("reading", path, &e))?;
    let mut sum = 0;
    let length = pump(&mut file, &mut |part| {
        sum = wire::crc32c_append(sum, part);
        Ok(())
    });
    length.map(|l| (sum, l)).map_err(|e| Failure::io("reading", path, &e))
}

fn pump(from: &mut impl Read, to: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut all = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(all),
            Ok(n) => {
                to(&buffer[..n])?;
                all += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_verified_and_one_wrong_byte_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/b/c"), vec![7; 3 << 20]).unwrap();
        fs::write(from.join("d"), b"").unwrap();
        let files: Vec<_> = ["a/b/c", "d"].iter().map(|n| source(&from, Path::new(n)).unwrap()).collect();
        let bar = ProgressBar::hidden();
        assert_eq!(copy(&files, &to, &bar, &Stop::default()).unwrap(), 3 << 20);
        assert_eq!(verify(&files, &to, &bar, &Stop::default()).unwrap(), 3 << 20);
        let mut bytes = fs::read(to.join("a/b/c")).unwrap();
        bytes[2 << 20] ^= 1;
        fs::write(to.join("a/b/c"), bytes).unwrap();
        let e = verify(&files, &to, &bar, &Stop::default()).unwrap_err().to_string();
        assert!(e.contains("a/b/c differs from"), "{e}");
    }
}
