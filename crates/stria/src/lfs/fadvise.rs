//! `fadvise`: how much ranges of files matter to the servers' caches; `ladvise`: fetch or let go now.
//!
//! Files are advised by the ioctl of [`types::advise`], directories by an xattr: what new files in them get.
use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use types::advise::{
    ADVISE, Advise, BACKGROUND, DONTNEED, LEVEL, LEVEL_XATTRS, LOCK_AHEAD_READ, LOCK_AHEAD_WRITE, LOCK_EXPAND,
    LOCK_NO_EXPAND, WILLREAD,
};
use wire::ost::Advice;

use super::getopt::{Grammar, Parsed};
use super::xattr::not_ours;
use crate::failure::{Failure, Outcome};

const USAGE: &str = "usage: fadvise [-a none|cache|low|med|high] [-s START] [-e END | -l LENGTH] [--recursive] FILE|DIR...
  -a LEVEL  how much the bytes matter; without -a: med. cache keeps what was read; low, med and high also fetch it, the less
            readily the harder the servers are pressed; high never leaves because of what nobody advised; none withdraws
  -s START  first byte, 0 without; suffix k M G T      -e END  one past the last     -l LENGTH  bytes
            without -e and -l: all that follows, also what the file grows by
  --recursive, -r  also files and directories below DIR, which is otherwise told what new files in it get";

const LADVISE_USAGE: &str = "usage: ladvise -a willread|dontneed|lockahead|locknoexpand [-b] [-s START] [-e END | -l LENGTH] [-m READ|WRITE] [-u] FILE...
  -a willread  servers fetch the range into their memory      dontneed  servers drop what they cached and nobody advised
  -s START  first byte, 0 without; suffix k M G T      -e END  one past the last     -l LENGTH  bytes
  -a lockahead     this client takes the locks on the range now, and no wider ones
  -m READ|WRITE    for what lockahead takes them
  -a locknoexpand  locks of this descriptor are no wider than what is read or written; for programs, by the ioctl: a command's
                   descriptor ends with the command      -u  they may be wider again
  -b        do not wait for it";

const LEVEL_DEFAULT: &str = "med";

const FADVISE: Grammar = Grammar {
    verb: "fadvise",
    short: "a:s:e:l:rh",
    long: &[("advice", 'a'), ("start", 's'), ("end", 'e'), ("length", 'l'), ("recursive", 'r'), ("help", 'h')],
    absent: &[],
};

const LADVISE: Grammar = Grammar {
    verb: "ladvise",
    short: "a:s:e:l:m:buh",
    long: &[
        ("advice", 'a'),
        ("start", 's'),
        ("end", 'e'),
        ("length", 'l'),
        ("mode", 'm'),
        ("background", 'b'),
        ("unset", 'u'),
        ("help", 'h'),
    ],
    absent: &[],
};

/// Runs the verb `fadvise`.
///
/// # Errors
/// What is wrong with the options, a path, or what the servers refuse; the other paths are advised all the same.
pub fn fadvise(arguments: &[OsString]) -> Outcome {
    let parsed = FADVISE.read(arguments)?;
    if parsed.operands.is_empty() {
        return usage(&parsed, USAGE);
    }
    let word = parsed.value('a').unwrap_or(LEVEL_DEFAULT);
    let level = Advice::LEVELS.iter().position(|(_, name)| *name == word).ok_or_else(|| {
        let names = Advice::LEVELS.map(|(_, name)| name);
        Failure::usage(format!("fadvise: -a {word}: there is no such level: use one of {}", names.join(", ")))
    })?;
    let said = Said {
        verb: "fadvise",
        code: LEVEL + level as i32,
        level: Some(Advice::LEVELS[level].1),
        range: range(&parsed, "fadvise")?,
    };
    each(&parsed, &said, parsed.has('r'))
}

/// Runs the verb `ladvise`.
///
/// # Errors
/// As [`fadvise`].
pub fn ladvise(arguments: &[OsString]) -> Outcome {
    let parsed = LADVISE.read(arguments)?;
    if parsed.operands.is_empty() {
        return usage(&parsed, LADVISE_USAGE);
    }
    let said = Said { verb: "ladvise", code: ladvise_code(&parsed)?, level: None, range: range(&parsed, "ladvise")? };
    each(&parsed, &said, false)
}

/// What the ioctl is told.
fn ladvise_code(parsed: &Parsed) -> Result<i32, Failure> {
    let background = if parsed.has('b') { BACKGROUND } else { 0 };
    let (code, mode, unset) = match parsed.value('a') {
        Some("willread") => (WILLREAD | background, false, false),
        Some("dontneed") => (DONTNEED, false, false),
        Some("lockahead") => {
            let code = match parsed.value('m') {
                Some(m) if m.eq_ignore_ascii_case("read") => LOCK_AHEAD_READ,
                Some(m) if m.eq_ignore_ascii_case("write") => LOCK_AHEAD_WRITE,
                Some(m) => return Err(Failure::usage(format!("ladvise: -m {m}: use READ or WRITE"))),
                None => return Err(Failure::usage("ladvise: -a lockahead needs -m READ or -m WRITE")),
            };
            (code | background, true, false)
        }
        Some("locknoexpand" | "noexpand") => (if parsed.has('u') { LOCK_EXPAND } else { LOCK_NO_EXPAND }, false, true),
        Some(word) => {
            let all = "willread, dontneed, lockahead or locknoexpand";
            return Err(Failure::usage(format!("ladvise: -a {word}: there is no such advice: use {all}")));
        }
        None => return Err(Failure::usage("ladvise: please give an advice type: -a willread, or one of the others")),
    };
    match (parsed.has('m') && !mode, parsed.has('u') && !unset) {
        (true, _) => Err(Failure::usage("ladvise: -m is for lockahead only")),
        (_, true) => Err(Failure::usage("ladvise: -u is for locknoexpand only")),
        _ => Ok(code),
    }
}

/// What is said about every path.
struct Said {
    verb: &'static str,
    code: i32,
    level: Option<&'static str>,
    /// Start, and bytes; 0: all that follow.
    range: (u64, u64),
}

fn range(parsed: &Parsed, verb: &str) -> Result<(u64, u64), Failure> {
    let size = |option: char| {
        let text = parsed.value(option);
        let read = text.map(types::parse_size).transpose();
        read.map_err(|e| Failure::usage(format!("{verb}: -{option} {}: {e}", text.unwrap_or_default())))
    };
    let (start, end, length) = (size('s')?.unwrap_or(0), size('e')?, size('l')?);
    if start > i64::MAX as u64 {
        return Err(Failure::usage(format!("{verb}: -s {start}: no file is that long")));
    }
    match (end, length) {
        (Some(_), Some(_)) => Err(Failure::usage(format!("{verb}: -e and -l both say where the range ends: give one"))),
        (Some(end), _) if end <= start => {
            Err(Failure::usage(format!("{verb}: range [{start}, {end}) is invalid: the end must be behind the start")))
        }
        (Some(end), _) => Ok((start, end - start)),
        (_, Some(0)) => Err(Failure::usage(format!("{verb}: -l 0: a length is at least 1"))),
        (_, length) => Ok((start, length.unwrap_or(0))),
    }
}

fn usage(parsed: &Parsed, text: &str) -> Outcome {
    if !parsed.has('h') {
        return Err(Failure::usage(text));
    }
    say!("{text}");
    Ok(())
}

/// Advises every path; says of each why it was not, and fails with the last reason.
fn each(parsed: &Parsed, said: &Said, recursive: bool) -> Outcome {
    let mut failed = Ok(());
    let mut left: Vec<(PathBuf, bool)> = parsed.operands.iter().rev().map(|p| (PathBuf::from(p), true)).collect();
    let several = left.len() > 1 || recursive;
    while let Some((path, named)) = left.pop() {
        let below = said.path(&path, named, recursive);
        match below {
            Ok(below) => left.extend(below.into_iter().rev().map(|p| (p, false))),
            Err(e) if several => {
                let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("{e}\n"));
                failed = Err(e);
            }
            Err(e) => return Err(e),
        }
    }
    failed.map_err(|e| {
        let last = format!("{}: not every path was advised; the last: {e}", said.verb);
        Failure::with_errno(last, i32::from(e.code()))
    })
}

impl Said {
    /// Advises a path; answers what is to be advised below it.
    fn path(&self, path: &Path, named: bool, recursive: bool) -> Result<Vec<PathBuf>, Failure> {
        let io = |e: io::Error| Failure::io(&format!("{}: looking at", self.verb), path, &e);
        let meta = match if named { fs::metadata(path) } else { fs::symlink_metadata(path) } {
            // Removed meanwhile.
            Err(e) if !named && e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            meta => meta.map_err(io)?,
        };
        if meta.is_file() {
            return self.file(path, meta.len()).map(|()| Vec::new());
        }
        if !meta.is_dir() {
            let why = format!("{}: {} is neither a file nor a directory", self.verb, path.display());
            return if named { Err(Failure::usage(why)) } else { Ok(Vec::new()) };
        }
        let Some(level) = self.level else {
            return Err(Failure::with_errno(format!("{}: {} is a directory", self.verb, path.display()), libc::EISDIR));
        };
        if self.range != (0, 0) && !recursive {
            let why = format!("fadvise: {} is a directory: ranges are for files", path.display());
            return Err(Failure::with_errno(why, libc::EISDIR));
        }
        if self.range == (0, 0) {
            set_default(path, level)?;
        }
        if !recursive {
            return Ok(Vec::new());
        }
        let mut entries: Vec<PathBuf> =
            fs::read_dir(path).map_err(io)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>().map_err(io)?;
        entries.sort();
        Ok(entries)
    }

    fn file(&self, path: &Path, size: u64) -> Outcome {
        let writes = self.verb == "ladvise" && self.code & !BACKGROUND == LOCK_AHEAD_WRITE;
        let file = fs::File::options()
            .read(true)
            .write(writes)
            .open(path)
            .map_err(|e| Failure::io(&format!("{}: opening", self.verb), path, &e))?;
        let said = Advise { offset: self.range.0, len: self.range.1, advice: self.code }.bytes();
        // SAFETY: the argument has the length that the number of the ioctl says, and outlives the call.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::c_ulong::from(ADVISE), said.as_ptr()) } == 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        let why = match e.raw_os_error() {
            Some(libc::ENOTTY | libc::ENOSYS | libc::EOPNOTSUPP) => return Err(not_ours(path)),
            Some(libc::EINVAL) if self.range.0 > 0 && self.range.0 >= size => {
                format!("the range begins at or behind the end of the file, {size} bytes")
            }
            Some(libc::EINVAL) => "it has no objects yet, for nobody has opened it for writing".into(),
            Some(libc::ENOSPC) => {
                "the servers have no room left for this level, or the budget of the project or of the user is used up: 'stria advice' says which of the \
                 two; -a none gives room back"
                    .into()
            }
            Some(libc::EPERM) => "another user asked for more, or the project or the user may advise nothing".into(),
            _ => return Err(Failure::io(&format!("{}:", self.verb), path, &e)),
        };
        let errno = e.raw_os_error().unwrap_or(libc::EIO);
        Err(Failure::with_errno(format!("{}: {}: {why}", self.verb, path.display()), errno))
    }
}

/// What new files in a directory get.
fn set_default(path: &Path, level: &str) -> Outcome {
    super::xattr::connection_of(path)?;
    let c = CString::new(path.as_os_str().as_bytes()).map_err(|e| Failure::io("fadvise:", path, &e.into()))?;
    // SAFETY: NUL-terminated strings and a value of the said length, all outliving the call.
    let rc = unsafe { libc::setxattr(c.as_ptr(), LEVEL_XATTRS[0].as_ptr(), level.as_ptr().cast(), level.len(), 0) };
    if rc == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    if e.raw_os_error() == Some(libc::EPERM) {
        let why = format!("fadvise: {}: only its owner says what new files get", path.display());
        return Err(Failure::with_errno(why, libc::EPERM));
    }
    Err(Failure::io("fadvise:", path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<(u64, u64), String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let parsed = FADVISE.read(&arguments).map_err(|e| e.to_string())?;
        range(&parsed, "fadvise").map_err(|e| e.to_string())
    }

    #[test]
    fn ranges_have_a_start_and_one_end_behind_it() {
        assert_eq!(read("f"), Ok((0, 0)));
        assert_eq!(read("-s 1M -e 3M f"), Ok((1 << 20, 2 << 20)));
        assert_eq!(read("-s 4k -l 5 f"), Ok((4096, 5)));
        for (line, why) in [
            ("-s 5 -e 5 f", "[5, 5) is invalid"),
            ("-s 5 -e 4 f", "[5, 4) is invalid"),
            ("-e 4 -l 4 f", "-e and -l"),
            ("-l 0 f", "-l 0"),
            ("-s -5 f", "-s -5"),
            ("-s x f", "-s x"),
            ("-s 16E f", "-s"),
        ] {
            let said = read(line).unwrap_err();
            assert!(said.contains(why), "{line}: {said}");
        }
    }
}
