//! The xattr that carries layouts, and which mount a path lies on.
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::failure::Failure;

const LOV: &CStr = c"lustre.lov";
/// A file's layout with its generation, which `lustre.lov` does not show.
const STORED_LOV: &CStr = c"lustre.lov.stored";

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)
}

/// The layout bytes of a path; `None` when it has none.
pub fn get_lov(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    get(path, LOV)
}

/// The layout bytes of a file with the generation that it has now.
pub fn get_stored_lov(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    get(path, STORED_LOV)
}

fn get(path: &Path, name: &CStr) -> Result<Option<Vec<u8>>, Failure> {
    let mut value = vec![0u8; layout::xattr::XATTR_BYTES_MAX];
    let c = c_path(path).map_err(|e| Failure::io("reading", path, &e))?;
    // SAFETY: NUL-terminated strings and a buffer of the said length, all outliving the call.
    let n = unsafe { libc::getxattr(c.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    if n >= 0 {
        value.truncate(n as usize);
        return Ok(Some(value));
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::ENODATA) => Ok(None),
        Some(libc::EOPNOTSUPP) => Err(not_ours(path)),
        _ => Err(Failure::io("reading the layout of", path, &e)),
    }
}

/// Gives a directory a default layout, or none when `value` is `None`.
pub fn set_lov(path: &Path, value: Option<&[u8]>) -> Result<(), Failure> {
    set(path, value, 0)
}

/// Gives a file its layout; fails when it has one.
pub fn set_first_lov(path: &Path, value: &[u8]) -> Result<(), Failure> {
    set(path, Some(value), libc::XATTR_CREATE)
}

fn set(path: &Path, value: Option<&[u8]>, flags: libc::c_int) -> Result<(), Failure> {
    let c = c_path(path).map_err(|e| Failure::io("setting", path, &e))?;
    // SAFETY: NUL-terminated strings and a value of the said length, all outliving the call.
    let rc = unsafe {
        match value {
            Some(v) => libc::setxattr(c.as_ptr(), LOV.as_ptr(), v.as_ptr().cast(), v.len(), flags),
            None => libc::removexattr(c.as_ptr(), LOV.as_ptr()),
        }
    };
    if rc == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::ENODATA) if value.is_none() => Ok(()),
        Some(libc::EOPNOTSUPP) => Err(not_ours(path)),
        _ => Err(Failure::io("setting the layout of", path, &e)),
    }
}

pub(super) fn not_ours(path: &Path) -> Failure {
    Failure::with_errno(
        format!("{} is not on a Stria mount: give a path below one ('stria status' lists them)", path.display()),
        libc::ENOTTY,
    )
}

/// The FUSE connection of the Stria mount that a path lies on, and its mount point.
///
/// # Errors
/// The path does not exist or lies elsewhere.
pub fn connection_of(path: &Path) -> Result<(u32, std::path::PathBuf), Failure> {
    let meta = std::fs::metadata(path).map_err(|e| Failure::io("looking at", path, &e))?;
    mount_of(&meta).ok_or_else(|| not_ours(path))
}

/// [`connection_of`] for those who ask about the mount: a mount point is known without asking its file system, which may
/// wait for servers.
///
/// # Errors
/// As [`connection_of`].
pub fn connection_at(path: &Path) -> Result<(u32, std::path::PathBuf), Failure> {
    let full = std::path::absolute(path).map_err(|e| Failure::io("looking at", path, &e))?;
    let mount = fuse::mount::mounts().into_iter().rev().find(|m| m.at == full);
    match mount.filter(|m| m.kind == "fuse.stria") {
        Some(m) => Ok((m.minor, m.at)),
        None => connection_of(path),
    }
}

/// Whether a file lies on a Stria mount.
pub(super) fn is_ours(meta: &std::fs::Metadata) -> bool {
    mount_of(meta).is_some()
}

fn mount_of(meta: &std::fs::Metadata) -> Option<(u32, std::path::PathBuf)> {
    let minor = libc::minor(meta.dev());
    let mount = fuse::mount::mounts().into_iter().rev().find(|m| m.minor == minor && m.kind == "fuse.stria");
    mount.filter(|_| libc::major(meta.dev()) == 0).map(|m| (minor, m.at))
}
