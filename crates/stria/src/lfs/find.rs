//! `find`: files by name, kind, size, age, owner and layout. Options are words with one dash, `!` negates the next test.
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use layout::{Layout, Pattern};
use types::parse_size;

use super::xattr;
use crate::failure::{Failure, Outcome};

const USAGE: &str = "usage: find PATH... [[!] TEST]... [-maxdepth N] [-print | -print0]
  -name GLOB         -type f|d|l|b|c|p|s    -size [+-]N[kMGT]      -mtime|-ctime|-atime [+-]N[smhdw]
  -user NAME|UID     -group NAME|GID        -links [+-]N           -newer FILE
  -stripe-count|-c [+-]N   -stripe-size|-S [+-]N[kMG]   -stripe-index|-i N[,N]   -ost|-O N[,N]   -pool NAME   -layout|-L raid0
  a test is negated by '!' before it; +N is more than N, -N less";

/// More, less, or exactly so much.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Bound {
    Above(u64),
    Below(u64),
    Exactly(u64),
}

impl Bound {
    fn holds(self, value: u64) -> bool {
        match self {
            Bound::Above(n) => value > n,
            Bound::Below(n) => value < n,
            Bound::Exactly(n) => value == n,
        }
    }
    fn parse(text: &str, number: impl Fn(&str) -> Result<u64, String>) -> Result<Bound, String> {
        match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(t), _) => number(t).map(Bound::Above),
            (_, Some(t)) => number(t).map(Bound::Below),
            _ => number(text).map(Bound::Exactly),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Clock {
    Modified,
    Changed,
    Accessed,
}

#[derive(Debug, PartialEq)]
enum Test {
    Name(Vec<u8>),
    Type(u8),
    Size(Bound, u64),
    Age(Clock, Bound, u64),
    Newer(i64),
    User(u32),
    Group(u32),
    Links(Bound),
    StripeCount(Bound),
    StripeSize(Bound),
    StripeIndex(Vec<u16>),
    Ost(Vec<u16>),
    Pool(String),
    Raid0,
}

#[derive(Debug, PartialEq, Default)]
struct Query {
    roots: Vec<PathBuf>,
    tests: Vec<(bool, Test)>,
    depth_max: Option<usize>,
    zero: bool,
}

/// Runs the verb.
///
/// # Errors
/// What is wrong with the options, or a directory that cannot be read (what was found is printed).
pub fn find(arguments: &[OsString]) -> Outcome {
    if arguments.iter().any(|a| a == "-help" || a == "--help") {
        say!("{USAGE}");
        return Ok(());
    }
    let query = parse(arguments)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut failed = None;
    for root in &query.roots {
        walk(root, &query, now, &mut out, &mut failed);
    }
    let flushed = out.flush();
    match (failed, flushed) {
        (Some(f), _) => Err(f),
        (None, Err(e)) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::from(format!("find: {e}"))),
        _ => Ok(()),
    }
}

/// Depth first without recursion: paths may be 2,000 directories deep.
fn walk(root: &Path, query: &Query, now: i64, out: &mut impl Write, failed: &mut Option<Failure>) {
    let mut open = vec![(root.to_path_buf(), 0)];
    while let Some((path, depth)) = open.pop() {
        let meta = match fs::symlink_metadata(&path) {
            Ok(m) => m,
            // Removed meanwhile: not there is not an error, but the root was named.
            Err(e) if depth > 0 && e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => {
                *failed = Some(Failure::io("find:", &path, &e));
                continue;
            }
        };
        match query.tests.iter().try_fold(true, |all, (want, t)| Ok(all && t.holds(&path, &meta, now)? == *want)) {
            Ok(true) => {
                let end: &[u8] = if query.zero { b"\0" } else { b"\n" };
                if out.write_all(path.as_os_str().as_bytes()).and_then(|()| out.write_all(end)).is_err() {
                    return;
                }
            }
            Ok(false) => {}
            Err(f) => *failed = Some(f),
        }
        if meta.is_dir() && query.depth_max.is_none_or(|max| depth < max) {
            match fs::read_dir(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
                Ok(mut entries) => {
                    entries.sort_by_key(|e| std::cmp::Reverse(e.file_name()));
                    open.extend(entries.into_iter().map(|e| (e.path(), depth + 1)));
                }
                Err(e) => *failed = Some(Failure::io("find: reading", &path, &e)),
            }
        }
    }
}

impl Test {
    fn holds(&self, path: &Path, meta: &Metadata, now: i64) -> Result<bool, Failure> {
        Ok(match self {
            Test::Name(glob) => {
                let name = path.file_name().unwrap_or(path.as_os_str());
                matches_name(glob, name)
            }
            Test::Type(kind) => kind_of(meta) == *kind,
            // Sizes are rounded up to the unit, as in find(1).
            Test::Size(bound, unit) => bound.holds(meta.len().div_ceil(*unit)),
            Test::Age(clock, bound, unit) => {
                let at = match clock {
                    Clock::Modified => meta.mtime(),
                    Clock::Changed => meta.ctime(),
                    Clock::Accessed => meta.atime(),
                };
                bound.holds((now - at).max(0) as u64 / unit)
            }
            Test::Newer(than) => meta.mtime() * 1_000_000_000 + meta.mtime_nsec() > *than,
            Test::User(uid) => meta.uid() == *uid,
            Test::Group(gid) => meta.gid() == *gid,
            Test::Links(bound) => bound.holds(meta.nlink()),
            layout => match layout_of(path, meta)? {
                Some(l) => layout.holds_for(&l),
                None => false,
            },
        })
    }
    fn holds_for(&self, l: &Layout) -> bool {
        match self {
            Test::StripeCount(bound) => bound.holds(u64::from(l.stripe_count())),
            Test::StripeSize(bound) => bound.holds(u64::from(l.stripe_size().bytes())),
            Test::StripeIndex(list) => list.contains(&l.first_ost().0),
            Test::Ost(list) => l.objects().iter().any(|o| list.contains(&o.ost.0)),
            Test::Pool(name) => l.pool().is_some_and(|p| p.as_str() == name),
            Test::Raid0 => matches!(l.pattern(), Pattern::Raid0 | Pattern::Raid0Overstriped),
            _ => false,
        }
    }
}

fn kind_of(meta: &Metadata) -> u8 {
    let t = meta.file_type();
    let kinds = [
        (t.is_file(), b'f'),
        (t.is_dir(), b'd'),
        (t.is_symlink(), b'l'),
        (t.is_block_device(), b'b'),
        (t.is_char_device(), b'c'),
        (t.is_fifo(), b'p'),
        (t.is_socket(), b's'),
    ];
    kinds.iter().find(|(is, _)| *is).map_or(b'?', |(_, k)| *k)
}

fn layout_of(path: &Path, meta: &Metadata) -> Result<Option<Layout>, Failure> {
    if !meta.is_file() {
        return Ok(None);
    }
    let Some(bytes) = xattr::get_lov(path)? else { return Ok(None) };
    let wrong = |e| Failure::with_errno(format!("find: {}: {e}", path.display()), libc::EBADMSG);
    layout::xattr::decode_layout(&bytes).map(|(_, l)| Some(l)).map_err(wrong)
}

/// Matches a name with fnmatch(3)'s rules.
fn matches_name(glob: &[u8], name: &OsStr) -> bool {
    let c = |bytes: &[u8]| std::ffi::CString::new(bytes).ok();
    let (Some(glob), Some(name)) = (c(glob), c(name.as_bytes())) else { return false };
    // SAFETY: NUL-terminated strings that outlive the call.
    unsafe { libc::fnmatch(glob.as_ptr(), name.as_ptr(), 0) == 0 }
}

fn parse(arguments: &[OsString]) -> Result<Query, Failure> {
    let mut query = Query::default();
    let mut want = true;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy();
        let Some(option) = text.strip_prefix('-').filter(|o| !o.is_empty()) else {
            match &*text {
                "!" => want = !want,
                _ => query.roots.push(argument.into()),
            }
            continue;
        };
        let option = option.trim_start_matches('-');
        match option {
            "print" => continue,
            "print0" | "0" => {
                query.zero = true;
                continue;
            }
            _ => {}
        }
        let missing = || Failure::usage(format!("find: '{text}' needs a value"));
        let unknown = || Failure::usage(format!("find: unknown test '{text}'\n{USAGE}"));
        if !KNOWN.contains(&option) {
            return Err(unknown());
        }
        let value = rest.next().ok_or_else(missing)?;
        let wrong = |e: String| Failure::usage(format!("find: {text} {}: {e}", value.display()));
        if matches!(option, "maxdepth" | "D") {
            query.depth_max = Some(number(&value.to_string_lossy()).map_err(wrong)? as usize);
        } else {
            query.tests.push((want, test(option, value).map_err(wrong)?));
        }
        want = true;
    }
    if !want {
        return Err(Failure::usage("find: '!' needs a test behind it"));
    }
    if query.roots.is_empty() {
        return Err(Failure::usage(format!("find: name a directory\n{USAGE}")));
    }
    Ok(query)
}

/// Tests that take a value.
const KNOWN: &[&str] = &[
    "name",
    "n",
    "type",
    "t",
    "size",
    "s",
    "mtime",
    "ctime",
    "atime",
    "newer",
    "user",
    "u",
    "group",
    "g",
    "links",
    "stripe-count",
    "c",
    "stripe-size",
    "S",
    "stripe-index",
    "i",
    "ost",
    "O",
    "obd",
    "pool",
    "layout",
    "L",
    "maxdepth",
    "D",
];

fn test(option: &str, value: &OsStr) -> Result<Test, String> {
    let text = &*value.to_string_lossy();
    Ok(match option {
        "name" | "n" => Test::Name(value.as_bytes().to_vec()),
        "type" | "t" => match text.as_bytes() {
            [kind] if b"fdlbcps".contains(kind) => Test::Type(*kind),
            _ => return Err("write one of f d l b c p s".into()),
        },
        "size" | "s" => size(text)?,
        "mtime" => age(Clock::Modified, text)?,
        "ctime" => age(Clock::Changed, text)?,
        "atime" => age(Clock::Accessed, text)?,
        "newer" => {
            let meta = fs::metadata(value).map_err(|e| e.to_string())?;
            Test::Newer(meta.mtime() * 1_000_000_000 + meta.mtime_nsec())
        }
        "user" | "u" => Test::User(id(text, "passwd")?),
        "group" | "g" => Test::Group(id(text, "group")?),
        "links" => Test::Links(Bound::parse(text, number)?),
        "stripe-count" | "c" => Test::StripeCount(Bound::parse(text, number)?),
        "stripe-size" | "S" => Test::StripeSize(Bound::parse(text, parse_size)?),
        "stripe-index" | "i" => Test::StripeIndex(osts(text)?),
        "ost" | "O" | "obd" => Test::Ost(osts(text)?),
        "pool" => Test::Pool(text.into()),
        _ if text == "raid0" => Test::Raid0,
        _ => return Err("write raid0: other layouts do not exist here".into()),
    })
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write a number".into())
}

/// `+1M` is more than one MiB, counted in MiB, rounded up; a bare number counts bytes.
fn size(text: &str) -> Result<Test, String> {
    let digits = text.trim_start_matches(['+', '-']);
    let unit_text: String = digits.chars().skip_while(char::is_ascii_digit).collect();
    let unit = if unit_text.is_empty() { 1 } else { parse_size(&format!("1{unit_text}"))? };
    let bare = text.strip_suffix(unit_text.as_str()).unwrap_or(text);
    Ok(Test::Size(Bound::parse(bare, number)?, unit))
}

/// `-2h` is less than two hours ago; days when there is no unit.
fn age(clock: Clock, text: &str) -> Result<Test, String> {
    let (bare, unit) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        Some((at, 'd')) => (&text[..at], 86_400),
        Some((at, 'w')) => (&text[..at], 604_800),
        _ => (text, 86_400),
    };
    Ok(Test::Age(clock, Bound::parse(bare, number)?, unit))
}

/// OST indices, or target names like `stria-OST0001_UUID`.
fn osts(text: &str) -> Result<Vec<u16>, String> {
    let one = |t: &str| {
        let name = t.trim_end_matches("_UUID").rsplit_once("-OST").map(|(_, hex)| hex);
        let index = match name {
            Some(hex) => u16::from_str_radix(hex, 16).ok(),
            None => t.parse().ok(),
        };
        index.ok_or_else(|| format!("'{t}' is not an OST: write indices like 0,2 or names like stria-OST0002_UUID"))
    };
    text.split(',').map(one).collect()
}

fn id(text: &str, file: &str) -> Result<u32, String> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let table = fs::read_to_string(Path::new("/etc").join(file)).unwrap_or_default();
    let found = table.lines().find_map(|l| {
        let mut fields = l.split(':');
        (fields.next() == Some(text)).then(|| fields.nth(1)?.parse().ok())?
    });
    found.ok_or_else(|| "nobody has this name: write a number".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(arguments: &[&str]) -> Result<Query, String> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        parse(&arguments).map_err(|e| e.to_string())
    }

    #[test]
    fn tests_are_read_with_their_signs_and_units() {
        let q = query(&[
            "/m",
            "-size",
            "+1M",
            "!",
            "-stripe-count",
            "-3",
            "-maxdepth",
            "2",
            "-print0",
            "-ost",
            "0,s-OST000a_UUID",
        ])
        .unwrap();
        assert_eq!(q.tests[0], (true, Test::Size(Bound::Above(1), 1 << 20)));
        assert_eq!(q.tests[1], (false, Test::StripeCount(Bound::Below(3))));
        assert_eq!(q.tests[2], (true, Test::Ost(vec![0, 10])));
        assert!(q.zero && q.depth_max == Some(2));
        assert_eq!(age(Clock::Modified, "-2h").unwrap(), Test::Age(Clock::Modified, Bound::Below(2), 3600));
        assert_eq!(size("4096").unwrap(), Test::Size(Bound::Exactly(4096), 1));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (arguments, text) in [
            (&["/m", "-sise", "1"][..], "unknown test '-sise'"),
            (&["/m", "-size"], "'-size' needs a value"),
            (&["-name", "x"], "name a directory"),
            (&["/m", "!"], "'!' needs a test"),
            (&["/m", "-type", "z"], "-type z: write one of"),
            (&["/m", "-stripe-count", "many"], "write a number"),
            (&["/m", "-ost", "x"], "'x' is not an OST"),
            (&["/m", "-user", "no such user"], "write a number"),
        ] {
            let e = query(arguments).unwrap_err();
            assert!(e.contains(text), "{arguments:?}: {e}");
        }
    }

    #[test]
    fn a_local_tree_is_searched_by_name_kind_size_and_depth() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/big.dat"), vec![0; 5000]).unwrap();
        fs::write(dir.path().join("a/b/small.dat"), b"x").unwrap();
        let root = dir.path().to_str().unwrap();
        let found = |tests: &[&str]| {
            let mut arguments = vec![root];
            arguments.extend(tests);
            let (mut out, mut failed) = (Vec::new(), None);
            walk(dir.path(), &query(&arguments).unwrap(), 0, &mut out, &mut failed);
            assert!(failed.is_none(), "{failed:?}");
            let text = String::from_utf8(out).unwrap();
            text.split_terminator(['\n', '\0']).map(|l| l[root.len()..].to_string()).collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), ["", "/a", "/a/b", "/a/b/small.dat", "/a/big.dat"]);
        assert_eq!(found(&["-name", "*.dat", "-size", "+4k"]), ["/a/big.dat"]);
        assert_eq!(found(&["!", "-type", "d"]), ["/a/b/small.dat", "/a/big.dat"]);
        assert_eq!(found(&["-type", "d", "-maxdepth", "1", "-print0"]), ["", "/a"]);
    }
}
