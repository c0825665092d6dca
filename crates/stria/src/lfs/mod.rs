//! The verbs of `lfs`: they act on paths of a mount through the `lustre.lov` xattr and plain system calls.
//!
//! Syntax, labels and columns are those that existing scripts use (interface facts only).
mod accounts;
mod changelog;
mod df;
mod fadvise;
mod fid;
mod find;
pub(crate) mod getopt;
mod getstripe;
mod migrate;
mod pool;
mod project;
mod quota;
mod setstripe;
mod targets;
mod walk;
mod xattr;

pub use changelog::changelog;
pub use df::df;
pub use fadvise::{fadvise, ladvise};
pub use fid::{fid2path, path2fid, rmfid};
pub use find::find;
pub(crate) use find::time;
pub use getstripe::getstripe;
pub use migrate::{migrate, migrate_file};
pub use pool::pool;
pub use project::project;
pub use quota::{quota, setquota};
pub use setstripe::setstripe;
pub(crate) use setstripe::stripes_of;
pub use targets::{check, getname, mdts, osts};
pub(crate) use xattr::{
    connection_at, connection_of, get_lov as default_layout, get_stored_lov as stored_layout,
    set_lov as set_default_layout,
};

use std::path::Path;

use serde_json::{Value, json};

use crate::control;
use crate::failure::{Failure, Outcome};

/// Whether this user may believe what the daemon of a mount says that `user` made: root's or the user's own. Anybody can make a mount that
/// looks like one of Stria, and answer for it.
pub(crate) fn is_believed(user: u32) -> bool {
    // SAFETY: plain system call without arguments.
    user == 0 || user == unsafe { libc::geteuid() }
}

/// The Stria mounts of this host that are believed ([`is_believed`]); there is at least one. Others are meant by who names a path there.
///
/// # Errors
/// There is none.
pub(crate) fn mounts() -> Result<Vec<fuse::mount::MountEntry>, Failure> {
    let all = fuse::mount::mounts().into_iter().filter(|m| m.kind == "fuse.stria");
    let (ours, others): (Vec<_>, Vec<_>) = all.partition(|m| is_believed(m.user));
    if !ours.is_empty() {
        return Ok(ours);
    }
    let why = match others.first() {
        None => "no Stria file system is mounted here: 'stria up' starts one, 'stria mount' joins one".to_string(),
        Some(m) => format!(
            "no Stria file system is mounted here by root or by you: if {}, which user {} mounted, is meant, name that path",
            m.at.display(),
            m.user
        ),
    };
    Err(Failure::with_errno(why, libc::ENODEV))
}

/// Does something with the mounts that paths lie on, or, without any, with all of this host: FUSE connection and mount point. One of which
/// that fails keeps no other from it.
///
/// # Errors
/// What failed, with the first errno; a path on no mount; there is no mount.
pub(crate) fn each_mount(paths: &[impl AsRef<Path>], mut act: impl FnMut(u32, &Path) -> Outcome) -> Outcome {
    let places = if paths.is_empty() {
        mounts()?.into_iter().map(|m| (m.minor, m.at)).collect()
    } else {
        paths.iter().map(|p| crate::status::mount_of(p.as_ref())).collect::<Result<Vec<_>, _>>()?
    };
    let done = places.iter().map(|(connection, at)| (at, act(*connection, at)));
    let mut failed: Vec<_> = done.filter_map(|(at, done)| Some((at, done.err()?))).collect();
    match &failed[..] {
        [] => Ok(()),
        [_] if places.len() == 1 => Err(failed.remove(0).1),
        [(_, first), ..] => {
            let told: Vec<String> = failed.iter().map(|(at, e)| format!("{}: {e}", at.display())).collect();
            Err(Failure::with_errno(told.join("; "), i32::from(first.code())))
        }
    }
}

/// A mount of a file system on this host: its connection, and what it knows of the cluster map.
fn mount_of(verb: &str, fsname: &str, at: Option<&Path>) -> Result<(u32, Value), Failure> {
    let connections = match at {
        Some(path) => vec![connection_at(path)?.0],
        None => mounts()?.into_iter().map(|m| m.minor).collect(),
    };
    let (mut found, mut others): (Option<(u32, Value)>, Vec<String>) = (None, Vec::new());
    for connection in connections {
        // One that does not answer may be of this file system or not; another one may.
        let Ok(map) = control::ask(connection, &json!({"do": "map"})) else { continue };
        if map["fsname"] != fsname {
            others.extend(map["fsname"].as_str().map(String::from));
            continue;
        }
        if found.as_ref().is_some_and(|(_, first)| first["cluster"] != map["cluster"]) {
            let why =
                format!("{verb}: file systems named '{fsname}' of several clusters are mounted here: say --at PATH");
            return Err(Failure::usage(why));
        }
        found.get_or_insert((connection, map));
    }
    others.sort();
    others.dedup();
    let there =
        if others.is_empty() { "no mount answers".to_string() } else { format!("there is {}", others.join(", ")) };
    let why = || format!("{verb}: no file system '{fsname}' is mounted on this host: {there}");
    found.ok_or_else(|| Failure::with_errno(why(), libc::ENODEV))
}

/// A time for people, in the local time zone.
pub(crate) fn time_text(seconds: i64) -> String {
    find::time::show(seconds, c"%Y-%m-%d %H:%M:%S")
}

/// An OST's index, or its name like `stria-OST000a_UUID`.
///
/// # Errors
/// The text is neither; a sentence.
pub(crate) fn one_ost(text: &str) -> Result<u16, String> {
    target(text, "OST")
        .ok_or_else(|| format!("'{text}' is not an OST: write an index like 2 or a name like stria-OST0002_UUID"))
}

/// The index of a target of a kind.
fn target(text: &str, kind: &str) -> Option<u16> {
    let name = text.trim_end_matches("_UUID");
    match name.strip_prefix(kind).or_else(|| name.rsplit_once(&format!("-{kind}")).map(|(_, hex)| hex)) {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}
