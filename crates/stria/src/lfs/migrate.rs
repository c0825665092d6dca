//! `migrate`: files get other objects, by size, count or place, while programs read and write them. The mount's daemon does it; this finds the
//! files and says what is wished.
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use layout::LayoutSpec;
use mount::migrate::{MIGRATE, Migrate};

use super::getopt::{Absent, COMPOSITE, Grammar, MIRRORS, Parsed};
use super::setstripe::{check_osts, parent_of, read_spec, refused_in};
use super::walk::Failures;
use super::xattr;
use crate::failure::{Failure, Outcome};

const USAGE: &str = "usage: migrate [LAYOUT...] [-b|-n] [-W MB] [-v] FILE...
       migrate [...] [-0] < NAMES      names of files, one a line, when none is given; --files-from FILE reads them there
  LAYOUT     -c, -C, -S, -i, -o, -p, --copy, --yaml as 'setstripe' has them; none: the directory's default
  -b, --block      writers wait while the last changes are copied (default)
  -n, --non-block  a file that somebody changes meanwhile keeps its objects
  -W, --bandwidth MB  copies so many MB (2^20 bytes) a second at most
  -v, --verbose    says each file
  -0, --null       names end with NUL bytes";

const GRAMMAR: Grammar = Grammar {
    verb: "migrate",
    short: "c:C:S:i:o:p:L:y:t:bnDvW:0f:h",
    long: &[
        ("stripe-count", 'c'),
        ("overstripe-count", 'C'),
        ("stripe-size", 'S'),
        ("stripe-index", 'i'),
        ("stripe-offset", 'i'),
        ("ost", 'o'),
        ("ost-list", 'o'),
        ("pool", 'p'),
        ("layout", 'L'),
        ("yaml", 'y'),
        ("copy", 't'),
        ("block", 'b'),
        ("non-block", 'n'),
        ("non-direct", 'D'),
        ("verbose", 'v'),
        ("bandwidth", 'W'),
        ("bandwidth-limit", 'W'),
        ("null", '0'),
        ("files-from", 'f'),
        ("help", 'h'),
    ],
    absent: &[
        Absent {
            letters: "m",
            names: &["mdt-index", "mdt-count", "mdt"],
            why: "there is one metadata target: leave -m out to move a file's objects",
        },
        Absent { letters: "I", names: &["component-id", "comp-id"], why: COMPOSITE.why },
        COMPOSITE,
        Absent { letters: "N", ..MIRRORS },
    ],
};

/// Letters that are no part of a layout.
const OWN: &str = "bnDvW0fh";
/// Bytes of a list of names at most.
const NAMES_BYTES_MAX: u64 = 1 << 30;

/// What is done with each file.
struct Moves {
    spec: LayoutSpec,
    ask: Migrate,
    verbose: bool,
}

/// Runs the verb.
///
/// # Errors
/// What is wrong with the options, or with files that keep their objects; the others are gone on with.
pub fn migrate(arguments: &[OsString]) -> Outcome {
    let parsed = GRAMMAR.read(arguments)?;
    if parsed.has('h') {
        say!("{USAGE}");
        return Ok(());
    }
    let moves = Moves::read(&parsed)?;
    let files = files(&parsed)?;
    let mut failures = Failures::default();
    files.iter().for_each(|path| failures.note(moves.file(Path::new(path))));
    failures.end("migrate")
}

/// Gives one file objects as `spec` says, copying `bytes_per_s` at most (0: as fast as it goes).
///
/// # Errors
/// Why it keeps its objects.
pub fn migrate_file(path: &Path, spec: &LayoutSpec, bytes_per_s: u64) -> Outcome {
    let layout = layout::xattr::encode_spec(spec);
    Moves { spec: LayoutSpec::default(), ask: Migrate { gives_way: false, bytes_per_s, layout }, verbose: false }
        .file(path)
}

/// The files that are named.
fn files(parsed: &Parsed) -> Result<Vec<OsString>, Failure> {
    if !parsed.operands.is_empty() {
        if parsed.has('f') || parsed.has('0') {
            return Err(Failure::usage(
                "migrate: name files, or have them read from a list (-0, --files-from), not both",
            ));
        }
        return Ok(parsed.operands.clone());
    }
    let failed = |path: &str, e: &io::Error| Failure::io("migrate: --files-from", Path::new(path), e);
    let (name, source): (&str, Box<dyn Read>) = match parsed.value('f') {
        None if io::stdin().is_terminal() => {
            return Err(Failure::usage(format!("migrate: name a file\n{USAGE}")));
        }
        None | Some("-") => ("-", Box::new(io::stdin())),
        Some(path) => (path, Box::new(fs::File::open(path).map_err(|e| failed(path, &e))?)),
    };
    let mut bytes = Vec::new();
    source.take(NAMES_BYTES_MAX).read_to_end(&mut bytes).map_err(|e| failed(name, &e))?;
    let end = if parsed.has('0') { 0 } else { b'\n' };
    Ok(bytes.split(|b| *b == end).filter(|n| !n.is_empty()).map(|n| OsStr::from_bytes(n).to_owned()).collect())
}

impl Moves {
    fn read(parsed: &Parsed) -> Result<Moves, Failure> {
        if parsed.has('b') && parsed.has('n') {
            return Err(Failure::usage("migrate: -b and -n exclude each other"));
        }
        let mib = match parsed.value('W') {
            None => 0,
            Some(text) => text.parse::<u64>().ok().filter(|n| (1..=1 << 30).contains(n)).ok_or_else(|| {
                Failure::usage(format!("migrate: -W {text}: write how many MB are copied in a second, 1 or more"))
            })?,
        };
        let of_layout = parsed.options.iter().filter(|(l, _)| !OWN.contains(*l)).cloned().collect();
        let spec = read_spec("migrate", &Parsed { options: of_layout, operands: Vec::new() })?;
        let layout = if spec.is_empty() { Vec::new() } else { layout::xattr::encode_spec(&spec) };
        let ask = Migrate { gives_way: parsed.has('n'), bytes_per_s: mib << 20, layout };
        if ask.bytes().is_none() {
            let why = format!("migrate: -o names {} OSTs: at most 168 can be named", spec.osts().len());
            return Err(Failure::usage(why));
        }
        Ok(Moves { spec, ask, verbose: parsed.has('v') })
    }

    fn file(&self, path: &Path) -> Outcome {
        let meta = fs::symlink_metadata(path).map_err(|e| Failure::io("migrate: looking at", path, &e))?;
        if !meta.is_file() {
            let why =
                format!("migrate: {} is not a file: 'find DIR -type f' names those of a directory", path.display());
            return Err(Failure::usage(why));
        }
        check_osts("migrate", path, &self.spec)?;
        let file = fs::File::open(path).map_err(|e| Failure::io("migrate: opening", path, &e))?;
        let bytes = self.ask.bytes().expect("it was looked at");
        // SAFETY: the argument has the length that the number of the ioctl says, and outlives the call.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::c_ulong::from(MIGRATE), bytes.as_ptr()) } != 0 {
            let e = io::Error::last_os_error();
            if e.raw_os_error() == Some(libc::ENODATA) {
                // It has no objects yet: it is given its layout.
                return if self.spec.is_empty() { Ok(()) } else { xattr::set_lov(path, Some(&self.ask.layout)) };
            }
            return Err(self.failed(path, &e));
        }
        if self.verbose {
            say!("{}", path.display());
        }
        Ok(())
    }

    fn failed(&self, path: &Path, e: &io::Error) -> Failure {
        let errno = e.raw_os_error().unwrap_or(libc::EIO);
        let why = match errno {
            libc::ENOTTY | libc::ENOSYS | libc::EOPNOTSUPP => return xattr::not_ours(path),
            libc::EBUSY if self.ask.gives_way => {
                "somebody changes it, or migrates it: it keeps its objects; without -n its writers would wait for a moment"
            }
            libc::EBUSY => {
                "somebody else migrates it, or servers did not answer in time: it keeps its objects; try again"
            }
            libc::EACCES | libc::EPERM => "who may write to a file may have it migrated",
            libc::ENOSPC => "there is no room for a copy of it on the OSTs that it may go to: it keeps its objects",
            libc::EINTR => "stopped: it keeps its objects",
            libc::EINVAL => match refused_in("migrate", parent_of(path), &self.spec) {
                Err(known) => return known,
                Ok(()) => "the metadata server refuses the layout that it would get: it keeps its objects",
            },
            _ => return Failure::io("migrate:", path, e),
        };
        Failure::with_errno(format!("migrate: {}: {why}", path.display()), errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Moves, String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let parsed = GRAMMAR.read(&arguments).map_err(|e| e.to_string())?;
        Moves::read(&parsed).map_err(|e| e.to_string())
    }

    #[test]
    fn a_layout_and_how_it_is_copied() {
        let m = read("-c 2 -S 1M -n -W 10 -v f").unwrap();
        assert!(m.ask.gives_way && m.verbose && m.ask.bytes_per_s == 10 << 20);
        assert_eq!(m.spec.stripe_size.unwrap().bytes(), 1 << 20);
        let m = read("f").unwrap();
        assert!(m.ask.layout.is_empty() && !m.ask.gives_way && m.ask.bytes_per_s == 0);
    }

    #[test]
    fn bad_values_name_value_and_remedy() {
        for (line, text) in [
            ("-b -n f", "exclude each other"),
            ("-W 0 f", "-W 0"),
            ("-W fast f", "-W fast"),
            ("-c 2001 f", "migrate: stripe count 2001"),
            ("-m 1 f", "one metadata target"),
            ("-E 1M f", "composite"),
            ("-N2 f", "mirrors"),
            ("-z f", "composite"),
            ("-S 63K f", "migrate: stripe size 64512 is too small"),
        ] {
            let said = read(line).err().unwrap_or_default();
            assert!(said.contains(text), "{line}: {said}");
        }
    }
}
