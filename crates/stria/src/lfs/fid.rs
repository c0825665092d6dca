//! `path2fid`, `fid2path`, `rmfid`: from names to ids and back.
//!
//! A path's FID is its inode number, which the kernel tells whoever may reach the path. The paths of a FID are the
//! metadata server's to know and lead through directories that the caller may not enter: for root and the user who runs
//! the daemon.
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use types::Fid;

use super::getopt::Grammar;
use crate::control;
use crate::failure::{Failure, Outcome};

const USAGE_FID: &str = "usage: path2fid [--parents] PATH...";
const USAGE_PATH: &str = "usage: fid2path [--link N] FSNAME|MOUNT FID...   (root and the user who runs the daemon)";
const USAGE_REMOVE: &str =
    "usage: rmfid MOUNT FID...   removes every name of the files (root and the user who runs the daemon)";

/// The verb `path2fid`.
///
/// # Errors
/// A path that cannot be reached, or lies on no mount.
pub fn path2fid(arguments: &[OsString]) -> Outcome {
    let long = &[("help", '?'), ("parents", 'p')];
    let parsed = Grammar { verb: "path2fid", short: "?p", long, absent: &[] }.read(arguments)?;
    if parsed.has('?') || parsed.operands.is_empty() {
        return usage(parsed.has('?'), USAGE_FID);
    }
    for path in parsed.operands.iter().map(Path::new) {
        let meta = fs::symlink_metadata(path).map_err(|e| Failure::io("looking at", path, &e))?;
        if !super::xattr::is_ours(&meta) {
            return Err(super::xattr::not_ours(path));
        }
        let fid = Fid::from_ino(meta.ino());
        let shown = if parsed.has('p') { parents(path, fid)? } else { fid.to_string() };
        if parsed.operands.len() == 1 {
            say!("{shown}");
        } else {
            say!("{}: {shown}", path.display());
        }
    }
    Ok(())
}

/// Parent and name of every link of a file: `[FID]/NAME`, separated by tabs.
fn parents(path: &Path, fid: Fid) -> Result<String, Failure> {
    let (connection, _) = super::connection_of(path)?;
    let mut shown = Vec::new();
    for link in paths(connection, &fid.to_string())? {
        let (Some(parent), Some(name)) = (link.parent(), link.file_name()) else { continue };
        let meta = fs::metadata(parent).map_err(|e| Failure::io("looking at", parent, &e))?;
        shown.push(format!("{}/{}", Fid::from_ino(meta.ino()), name.display()));
    }
    Ok(shown.join("\t"))
}

/// Every path of a FID.
fn paths(connection: u32, fid: &str) -> Result<Vec<PathBuf>, Failure> {
    let answer = control::ask(connection, &json!({"do": "fid2path", "fid": fid}))?;
    let at = Path::new(answer["mount_point"].as_str().unwrap_or_default());
    let listed = answer["paths"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(listed.iter().filter_map(|p| p.as_str()).map(|p| at.join(p)).collect())
}

/// A mount by path or by its file system's name.
fn mount_named(text: &std::ffi::OsStr) -> Result<u32, Failure> {
    let path = Path::new(text);
    match super::connection_of(path) {
        Ok((connection, _)) => Ok(connection),
        Err(e) if path.components().count() != 1 => Err(e),
        Err(e) => {
            let named = |c: &u32| {
                let answer = control::ask(*c, &json!({"do": "status"}));
                answer.is_ok_and(|a| a["fsname"].as_str().is_some_and(|n| text == n))
            };
            let found: Vec<_> = super::mounts()?.into_iter().filter(|m| named(&m.minor)).collect();
            match &found[..] {
                [] => Err(e),
                [only] => Ok(only.minor),
                several => {
                    let list = several.iter().map(|m| m.at.display().to_string()).collect::<Vec<_>>().join(", ");
                    let why = format!("several mounts are of '{}' ({list}): say which by its path", path.display());
                    Err(Failure::usage(why))
                }
            }
        }
    }
}

/// The verb `fid2path`.
///
/// # Errors
/// No such mount, no such FID, or the caller may not ask.
pub fn fid2path(arguments: &[OsString]) -> Outcome {
    let long = &[("help", '?'), ("link", 'l')];
    let parsed = Grammar { verb: "fid2path", short: "?l:", long, absent: &[] }.read(arguments)?;
    let Some((mount, fids)) = parsed.operands.split_first().filter(|(_, fids)| !fids.is_empty()) else {
        return usage(parsed.has('?'), USAGE_PATH);
    };
    let number = |t: &str| t.parse().map_err(|_| Failure::usage(format!("fid2path: --link {t}: write a number")));
    let link: Option<usize> = parsed.value('l').map(number).transpose()?;
    let connection = mount_named(mount)?;
    for fid in fids {
        let paths = paths(connection, &fid.to_string_lossy())?;
        if let Some(n) = link.filter(|n| *n >= paths.len()) {
            let why = format!("fid2path: {} has {} link(s): there is no link {n}", fid.display(), paths.len());
            return Err(Failure::with_errno(why, libc::ENOENT));
        }
        for (_, path) in paths.iter().enumerate().filter(|(i, _)| link.is_none_or(|n| *i == n)) {
            say!("{}", path.display());
        }
    }
    Ok(())
}

/// The verb `rmfid`.
///
/// # Errors
/// No such mount, no such FID, a directory, or a name that cannot be removed; the other files are removed all the same.
pub fn rmfid(arguments: &[OsString]) -> Outcome {
    let parsed = Grammar { verb: "rmfid", short: "?", long: &[("help", '?')], absent: &[] }.read(arguments)?;
    let Some((mount, fids)) = parsed.operands.split_first().filter(|(_, fids)| !fids.is_empty()) else {
        return usage(parsed.has('?'), USAGE_REMOVE);
    };
    let connection = mount_named(mount)?;
    let mut failed = Ok(());
    for fid in fids {
        let fid = fid.to_string_lossy();
        if let Err(e) = remove(connection, &fid) {
            let _ = writeln!(std::io::stderr(), "rmfid: {fid}: {e}");
            failed = Err(e);
        }
    }
    failed.map_err(|e| {
        Failure::with_errno(format!("rmfid: not every file was removed; the last: {e}"), i32::from(e.code()))
    })
}

fn remove(connection: u32, fid: &str) -> Outcome {
    let meant = Fid::parse(fid);
    for path in paths(connection, fid)? {
        let meta = match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            meta => meta.map_err(|e| Failure::io("looking at", &path, &e))?,
        };
        if meta.is_dir() {
            let why = format!("{} is a directory: rmdir removes it", path.display());
            return Err(Failure::with_errno(why, libc::EISDIR));
        }
        // The name may be another file's by now.
        if Some(Fid::from_ino(meta.ino())) == meant {
            fs::remove_file(&path).map_err(|e| Failure::io("removing", &path, &e))?;
        }
    }
    Ok(())
}

fn usage(asked: bool, text: &str) -> Outcome {
    if !asked {
        return Err(Failure::usage(text));
    }
    say!("{text}");
    Ok(())
}
