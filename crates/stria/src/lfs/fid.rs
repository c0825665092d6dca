//! `path2fid` and `fid2path`: from names to ids and back.
//!
//! A path's FID is its inode number, which the kernel tells whoever may reach the path. The paths of a FID are the
//! metadata server's to know and lead through directories that the caller may not enter: for root and the user who runs
//! the daemon.
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::json;
use types::Fid;

use super::getopt::getopt;
use crate::control;
use crate::failure::{Failure, Outcome};

const USAGE_FID: &str = "usage: path2fid PATH...";
const USAGE_PATH: &str = "usage: fid2path MOUNT FID...   (root and the user who runs the daemon)";

/// The verb `path2fid`.
///
/// # Errors
/// A path that cannot be reached, or lies on no mount.
pub fn path2fid(arguments: &[OsString]) -> Outcome {
    let parsed = getopt("path2fid", arguments, "?", &[("help", '?')])?;
    if parsed.has('?') || parsed.operands.is_empty() {
        return usage(parsed.has('?'), USAGE_FID);
    }
    for path in parsed.operands.iter().map(Path::new) {
        let meta = std::fs::symlink_metadata(path).map_err(|e| Failure::io("looking at", path, &e))?;
        if !super::xattr::is_ours(&meta) {
            return Err(super::xattr::not_ours(path));
        }
        let fid = Fid::from_ino(meta.ino());
        if parsed.operands.len() == 1 {
            say!("{fid}");
        } else {
            say!("{}: {fid}", path.display());
        }
    }
    Ok(())
}

/// The verb `fid2path`.
///
/// # Errors
/// No such mount, no such FID, or the caller may not ask.
pub fn fid2path(arguments: &[OsString]) -> Outcome {
    let parsed = getopt("fid2path", arguments, "?", &[("help", '?')])?;
    let Some((mount, fids)) = parsed.operands.split_first().filter(|(_, fids)| !fids.is_empty()) else {
        return usage(parsed.has('?'), USAGE_PATH);
    };
    let (connection, _) = super::connection_of(Path::new(mount))?;
    for fid in fids {
        let answer = control::ask(connection, &json!({"do": "fid2path", "fid": fid.to_string_lossy()}))?;
        let at = answer["mount_point"].as_str().unwrap_or_default();
        for path in answer["paths"].as_array().map(Vec::as_slice).unwrap_or_default() {
            say!("{at}/{}", path.as_str().unwrap_or_default());
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
