//! `pool_new`, `pool_add`, `pool_remove`, `pool_destroy`, `pool_list`: names for sets of OSTs. The metadata server keeps them; a mount of the
//! file system on this host carries questions and changes there.
//!
//! Syntax and messages are those of Lustre's `lctl` and `lfs` (interface facts only). Indices within names are hexadecimal, as in the
//! names themselves: `stria-OST[0-f]`; numbers alone are decimal: `0-15`.
use std::ffi::OsString;
use std::path::Path;

use layout::{PoolName, parse_ost_list};
use serde_json::{Value, json};

use super::getopt::Grammar;
use crate::control;
use crate::failure::{Failure, Outcome};

const USAGE: &str = "usage: pool_new FSNAME.POOL
       pool_add FSNAME.POOL OST...       pool_remove (or pool_del) FSNAME.POOL OST...
       pool_destroy FSNAME.POOL          (a pool with OSTs is not destroyed: remove them first)
       pool_list FSNAME | FSNAME.POOL | PATH
  --at PATH  the mount that is meant, where several file systems of one name are mounted
  POOL  1 to 15 letters, digits, '_' and '-'
  OST   FSNAME-OST0000, OST0000, with or without _UUID; FSNAME-OST[0-3,8-f/2], OST[0-3] (hexadecimal, /2 every second one);
        0-3,8 (decimal indices)";
/// OSTs that one command names at most.
const OSTS_MAX: usize = 65_535;

/// A pool, or a change of one, as `lctl` and `lfs` have it.
///
/// # Errors
/// What is wrong with the names, or why the metadata server refuses.
pub fn pool((verb, arguments): (&'static str, &[OsString])) -> Outcome {
    let parsed = Grammar { verb, short: "hA:", long: &[("help", 'h'), ("at", 'A')], absent: &[] }.read(arguments)?;
    if parsed.has('h') {
        say!("{USAGE}");
        return Ok(());
    }
    let words: Vec<String> = parsed.operands.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    let Some((what, osts)) = words.split_first() else {
        return Err(Failure::usage(format!("{verb}: name a pool\n{USAGE}")));
    };
    let at = parsed.value('A').map(Path::new);
    if verb == "pool_list" {
        return if osts.is_empty() {
            list(what, at)
        } else {
            Err(Failure::usage(format!("pool_list: one name at a time\n{USAGE}")))
        };
    }
    let takes_osts = matches!(verb, "pool_add" | "pool_remove");
    if takes_osts == osts.is_empty() {
        let why = if takes_osts { "name the OSTs" } else { "name the pool alone" };
        return Err(Failure::usage(format!("{verb}: {why}\n{USAGE}")));
    }
    let (fsname, pool) = full_name(verb, what)?;
    let connection = super::mount_of(verb, fsname, at)?.0;
    let mut indices = Vec::new();
    for word in osts {
        indices.extend(ost_list(fsname, word).map_err(|why| Failure::usage(format!("{verb}: {why}")))?);
    }
    indices.sort_unstable();
    indices.dedup();
    let change = json!({"do": "change_map", "what": verb, "pool": pool, "osts": indices});
    control::ask(connection, &change).map_err(|e| Failure::with_errno(format!("{verb}: {e}"), i32::from(e.code())))?;
    match verb {
        "pool_new" => say!("Pool {what} created"),
        "pool_destroy" => say!("Pool {what} destroyed"),
        _ => {
            let how = if verb == "pool_add" { "added to" } else { "removed from" };
            indices.iter().for_each(|i| say!("OST {} {how} pool {what}", name_of(fsname, *i)));
        }
    }
    Ok(())
}

fn name_of(fsname: &str, index: u16) -> String {
    format!("{fsname}-OST{index:04x}_UUID")
}

/// File system and pool of `FSNAME.POOL`.
fn full_name<'a>(verb: &str, text: &'a str) -> Result<(&'a str, &'a str), Failure> {
    let Some((fsname, pool)) = text.split_once('.').filter(|(fs, _)| !fs.is_empty()) else {
        return Err(Failure::usage(format!("{verb}: '{text}': write FSNAME.POOL, like stria.flash")));
    };
    PoolName::parse(pool).map_err(|e| {
        let errno = if matches!(e, layout::PoolError::TooLong(_)) { libc::ENAMETOOLONG } else { libc::EINVAL };
        Failure::with_errno(format!("{verb}: '{pool}': {e}"), errno)
    })?;
    Ok((fsname, pool))
}

/// Indices that a word of the command line names.
fn ost_list(fsname: &str, word: &str) -> Result<Vec<u16>, String> {
    let bare = word.strip_suffix("_UUID").unwrap_or(word);
    let rest = match bare.split_once("OST") {
        Some((before, rest)) => match before.strip_suffix('-') {
            Some(fs) if fs == fsname => rest,
            None if before.is_empty() => rest,
            _ => return Err(format!("'{word}' is of another file system than '{fsname}'")),
        },
        None => return parse_ost_list(bare).map(|l| l.iter().map(|o| o.0).collect()).map_err(|_| not_osts(word)),
    };
    let inner = rest.strip_prefix('[').and_then(|r| r.strip_suffix(']'));
    let parts = inner.map_or(vec![rest], |inner| inner.split(',').collect());
    let mut all = Vec::new();
    for part in parts {
        let (range, step) = part.split_once('/').filter(|_| inner.is_some()).unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').filter(|_| inner.is_some()).unwrap_or((range, range));
        let hex = |t: &str| {
            let plain = (1..=4).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_hexdigit());
            u16::from_str_radix(t, 16).ok().filter(|n| plain && *n != u16::MAX).ok_or_else(|| not_osts(word))
        };
        let (first, last, step) = (hex(first)?, hex(last)?, hex(step)?);
        if last < first || step == 0 {
            return Err(not_osts(word));
        }
        all.extend((first..=last).step_by(usize::from(step)));
        if all.len() > OSTS_MAX {
            return Err(not_osts(word));
        }
    }
    Ok(all)
}

fn not_osts(word: &str) -> String {
    format!("'{word}' names no OSTs: write FSNAME-OST0000, OST[0-3] (hexadecimal) or 0-3 (decimal)")
}

fn list(what: &str, at: Option<&Path>) -> Outcome {
    let is_path = what.contains('/') || (!what.contains('.') && Path::new(what).exists());
    if is_path {
        let map = control::ask(super::connection_at(Path::new(what))?.0, &json!({"do": "map"}))?;
        return list_all(&map);
    }
    let Some((fsname, pool)) = what.split_once('.') else {
        return list_all(&super::mount_of("pool_list", what, at)?.1);
    };
    let map = super::mount_of("pool_list", fsname, at)?.1;
    let members = members_of(&map, pool).ok_or_else(|| absent("pool_list", &map, pool, libc::ENOENT))?;
    say!("Pool: {what}");
    members.iter().for_each(|i| say!("{}", name_of(fsname, *i)));
    Ok(())
}

fn list_all(map: &Value) -> Outcome {
    let fsname = map["fsname"].as_str().unwrap_or("?");
    say!("Pools from {fsname}:");
    for name in names(map) {
        say!("{fsname}.{name}");
    }
    Ok(())
}

fn names(map: &Value) -> Vec<&str> {
    let all = map["pools"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter_map(|p| p["name"].as_str()).collect()
}

/// The OSTs of a pool, if it is there.
pub(super) fn members_of(map: &Value, pool: &str) -> Option<Vec<u16>> {
    let all = map["pools"].as_array()?;
    let found = all.iter().find(|p| p["name"] == pool)?;
    Some(found["osts"].as_array()?.iter().filter_map(|o| u16::try_from(o.as_u64()?).ok()).collect())
}

fn absent(verb: &str, map: &Value, pool: &str, errno: i32) -> Failure {
    let fsname = map["fsname"].as_str().unwrap_or("?");
    let there = names(map);
    let there = if there.is_empty() { "there are none".into() } else { format!("there are {}", there.join(", ")) };
    Failure::with_errno(format!("{verb}: pool '{pool}' does not exist in file system '{fsname}': {there}"), errno)
}

/// The OSTs of a pool that a command is told of as POOL or FSNAME.POOL, on the mount of a connection.
///
/// # Errors
/// There is no such pool; it has no OSTs and the command needs one.
pub(super) fn named(verb: &str, connection: u32, name: &str, needs_one: bool) -> Result<Vec<u16>, Failure> {
    let map = control::ask(connection, &json!({"do": "map"}))?;
    let fsname = map["fsname"].as_str().unwrap_or("?");
    let pool = match name.split_once('.') {
        Some((fs, pool)) if fs == fsname => pool,
        Some((fs, _)) => {
            let why = format!("{verb}: pool '{name}' is of file system '{fs}', the path lies on '{fsname}'");
            return Err(Failure::with_errno(why, libc::EINVAL));
        }
        None => name,
    };
    let members = members_of(&map, pool).ok_or_else(|| absent(verb, &map, pool, libc::EINVAL))?;
    if members.is_empty() && needs_one {
        let why = format!("{verb}: pool '{pool}' has no OSTs: 'lctl pool_add {fsname}.{pool} OST...' gives it some");
        return Err(Failure::with_errno(why, libc::EINVAL));
    }
    Ok(members)
}

/// The OSTs of a pool; `None`: there is no such pool.
pub(super) fn members(connection: u32, pool: &str) -> Result<Option<Vec<u16>>, Failure> {
    Ok(members_of(&control::ask(connection, &json!({"do": "map"}))?, pool))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn osts_are_named_by_index_name_list_and_range() {
        let list = |w| ost_list("fs", w);
        for word in ["fs-OST000a", "fs-OST000a_UUID", "OST000a", "OSTa", "10", "OST[a]"] {
            assert_eq!(list(word), Ok(vec![10]), "{word}");
        }
        assert_eq!(list("fs-OST[0-3,8-f/4]"), Ok(vec![0, 1, 2, 3, 8, 12]));
        assert_eq!(list("OST[0000-0003]_UUID"), Ok(vec![0, 1, 2, 3]));
        assert_eq!(list("0-2,12"), Ok(vec![0, 1, 2, 12]));
        for word in [
            "other-OST0000",
            "OST",
            "OST[",
            "OST[]",
            "OST[3-1]",
            "OST[0-3/0]",
            "OSTffff",
            "OST00000",
            "OST+1",
            "x",
            "-1",
            "",
            "OST0-3",
        ] {
            assert!(list(word).is_err(), "{word}: {:?}", list(word));
        }
    }

    #[test]
    fn names_that_are_none_are_refused_before_anybody_is_asked() {
        let said = |name: &str| full_name("pool_new", name).unwrap_err();
        for (name, text, errno) in [
            ("flash", "write FSNAME.POOL", libc::EINVAL),
            (".flash", "write FSNAME.POOL", libc::EINVAL),
            ("fs.", "is empty", libc::EINVAL),
            ("fs.a/b", "contains '/'", libc::EINVAL),
            ("fs.a.b", "contains '.'", libc::EINVAL),
            ("fs.größe", "use letters", libc::EINVAL),
            ("fs.a234567890123456", "16 characters", libc::ENAMETOOLONG),
            ("fs.none", "reserved", libc::EINVAL),
        ] {
            let e = said(name);
            assert!(e.to_string().contains(text) && i32::from(e.code()) == errno, "{name}: {e} {}", e.code());
        }
        assert_eq!(full_name("pool_new", "fs.a23456789012345").unwrap(), ("fs", "a23456789012345"));
    }
}
