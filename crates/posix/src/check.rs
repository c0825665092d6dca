//! The checks that cases make.
use std::fmt::Debug;
use std::panic::Location;

use crate::sys::{Failed, R, errno_name};

fn here(at: &Location<'_>) -> String {
    format!("{}:{}", at.file().rsplit('/').next().unwrap_or(""), at.line())
}

fn short(v: &impl Debug) -> String {
    let text = format!("{v:?}");
    if text.len() <= 160 {
        text
    } else {
        format!("{}... ({} characters)", text.chars().take(160).collect::<String>(), text.len())
    }
}

/// Two values are equal.
///
/// # Errors
/// They are not.
#[track_caller]
pub fn eq<T: PartialEq<U> + Debug, U: Debug>(what: &str, got: T, want: U) -> R {
    if got == want {
        Ok(())
    } else {
        Err(format!("{}: {what} is {}, not {}", here(Location::caller()), short(&got), short(&want)))
    }
}

/// Two byte strings are equal; the first difference is named.
///
/// # Errors
/// They are not.
#[track_caller]
pub fn same(what: &str, got: &[u8], want: &[u8]) -> R {
    if got == want {
        return Ok(());
    }
    let at = here(Location::caller());
    if got.len() != want.len() {
        return Err(format!("{at}: {what} has {} bytes, not {}", got.len(), want.len()));
    }
    let i = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or(0);
    Err(format!("{at}: {what} has {:#04x} at byte {i} of {}, not {:#04x}", got[i], got.len(), want[i]))
}

/// A condition holds.
///
/// # Errors
/// It does not.
#[track_caller]
pub fn yes(what: &str, holds: bool) -> R {
    if holds { Ok(()) } else { Err(format!("{}: not so: {what}", here(Location::caller()))) }
}

/// A call fails with this errno.
///
/// # Errors
/// It succeeds or fails otherwise.
#[track_caller]
pub fn fails<T>(errno: i32, result: Result<T, Failed>) -> R {
    fails_any(&[errno], result)
}

/// A call fails with one of these errnos.
///
/// # Errors
/// It succeeds or fails otherwise.
#[track_caller]
pub fn fails_any<T>(errnos: &[i32], result: Result<T, Failed>) -> R {
    let want = errnos.iter().map(|e| errno_name(*e)).collect::<Vec<_>>().join(" or ");
    match result {
        Ok(_) => Err(format!("{}: succeeded, where {want} was due", here(Location::caller()))),
        Err(f) if errnos.contains(&f.errno) => Ok(()),
        Err(f) => Err(format!("{}, where {want} was due", String::from(f))),
    }
}

/// A call succeeds, or is not supported by this file system (which ends the case as skipped).
///
/// # Errors
/// The skip, or another failure.
#[track_caller]
pub fn supported<T>(result: Result<T, Failed>) -> Result<T, String> {
    result.map_err(|f| match f.errno {
        libc::EOPNOTSUPP | libc::ENOSYS => format!("{}{}", crate::sys::SKIP, String::from(f)),
        _ => f.into(),
    })
}

/// `n` bytes that tell where they stand: no two 4 KiB pages of one `tag` are equal.
#[must_use]
pub fn pattern(tag: u64, n: usize) -> Vec<u8> {
    let mut rng = types::Rng::new(tag ^ 0x5715_1a57);
    let mut out = Vec::with_capacity(n + 8);
    while out.len() < n {
        out.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    out.truncate(n);
    out
}
