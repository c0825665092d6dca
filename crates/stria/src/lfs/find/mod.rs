//! `find`: files by name, kind, size, age, owner and layout. Options are words with one dash, `!` negates the next test.
mod show;
mod stat;
mod test;
pub(crate) mod time;

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use types::parse_size;

use self::show::{Action, Found};
use self::stat::{Clock, Stat};
use self::test::{Bound, Candidate, Test, age, number, perm, sized};
use super::accounts::Account;
use super::getopt::{COMPOSITE, MIRRORS};
use super::walk::{Failures, is_gone, list};
use crate::failure::{Failure, Outcome};

const USAGE: &str =
    "usage: find PATH... [[!] TEST]... [-maxdepth N] [-lazy] [-threads N] [-print | -print0 | -ls | -printf FORMAT]
  -name GLOB         -type f|d|l|b|c|p|s    -size [+-]N[kMGT]      -blocks [+-]N[kMG]
  -mtime|-ctime|-atime|-btime [+-]N[smhdwy]...    -newer FILE   -newerXY FILE|TIME   X of a b c m, Y also t
  -user NAME|UID     -group NAME|GID        -links [+-]N           -perm [-/]MODE
  -xattr NAME[=VALUE]   -mdt|-m N[,N]       -stripe-count|-c [+-]N   -stripe-size|-S [+-]N[kMG]
  -stripe-index|-i N[,N]   -ost|-O N[,N]    -pool NAME             -layout|-L raid0
  -lazy      sizes and times as the kernel here knows them, without asking the cluster
  -printf    find(1)'s letters, and %LF FID  %Lc stripes  %LS stripe size  %Li first OST  %Lo OSTs  %Lp pool
  a test is negated by '!' before it; +N is more than N, -N less";

/// Most directories that are searched at a time.
const THREADS_MAX: usize = 256;

#[derive(Debug, PartialEq)]
struct Query {
    roots: Vec<PathBuf>,
    tests: Vec<(bool, Test)>,
    depth_max: Option<usize>,
    actions: Vec<Action>,
    lazy: bool,
    threads: usize,
}

/// Runs the verb.
///
/// # Errors
/// What is wrong with the options, or a path that cannot be looked at or a directory that cannot be read (what else is found is printed).
pub fn find(arguments: &[OsString]) -> Outcome {
    if arguments.iter().any(|a| a == "-help" || a == "--help") {
        say!("{USAGE}");
        return Ok(());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let query = parse(arguments, now)?;
    let mut out = std::io::BufWriter::new(std::io::stdout());
    let failures = search(&query, now, &mut out);
    let flushed = out.flush();
    failures.end("find")?;
    match flushed {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::from(format!("find: {e}"))),
        _ => Ok(()),
    }
}

/// What is still to be looked at: depth first without recursion, for paths may be 2,000 directories deep.
struct Open {
    paths: Vec<(PathBuf, usize)>,
    /// Threads that look at something, which may bring more.
    busy: usize,
    failures: Failures,
    /// Nobody reads any more.
    over: bool,
}

/// One root's search.
struct Search<'a, W> {
    query: &'a Query,
    root: &'a Path,
    now: i64,
    open: Mutex<Open>,
    changed: Condvar,
    out: Mutex<&'a mut W>,
}

/// Searches all roots; what could not be looked at.
fn search(query: &Query, now: i64, out: &mut (impl Write + Send)) -> Failures {
    let mut failures = Failures::default();
    for root in &query.roots {
        let open = Open { paths: vec![(root.clone(), 0)], busy: 0, failures, over: false };
        let search =
            Search { query, root, now, open: Mutex::new(open), changed: Condvar::new(), out: Mutex::new(&mut *out) };
        std::thread::scope(|s| {
            for _ in 1..query.threads {
                s.spawn(|| search.work());
            }
            search.work();
        });
        let end = search.open.into_inner().unwrap_or_else(PoisonError::into_inner);
        failures = end.failures;
        if end.over {
            break;
        }
    }
    failures
}

impl<W: Write + Send> Search<'_, W> {
    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at paths until none is left and nobody may bring more.
    fn work(&self) {
        let mut open = self.open();
        loop {
            if open.over || (open.paths.is_empty() && open.busy == 0) {
                self.changed.notify_all();
                return;
            }
            let Some((path, depth)) = open.paths.pop() else {
                open = self.changed.wait(open).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            open.busy += 1;
            drop(open);
            let mut failed = Vec::new();
            let (below, over) = self.look(&path, depth, &mut failed);
            open = self.open();
            open.busy -= 1;
            open.over |= over;
            failed.into_iter().for_each(|f| open.failures.note(Err(f)));
            open.paths.extend(below);
            self.changed.notify_all();
        }
    }

    /// Tests one path and prints it; what is below it, and whether nobody reads any more.
    fn look(&self, path: &Path, depth: usize, failed: &mut Vec<Failure>) -> (Vec<(PathBuf, usize)>, bool) {
        let stat = match Stat::of(path, self.query.lazy) {
            Ok(s) => s,
            // Removed meanwhile: not there is not an error, but the root was named.
            Err(e) if depth > 0 && is_gone(&e) => return (Vec::new(), false),
            Err(e) => {
                failed.push(Failure::io("find:", path, &e));
                return (Vec::new(), false);
            }
        };
        let file = Candidate::new(path, stat);
        match self.passes(&file, depth) {
            Ok(text) if !text.is_empty() => {
                let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
                if out.write_all(&text).is_err() {
                    return (Vec::new(), true);
                }
            }
            Ok(_) => {}
            Err(f) => failed.push(f),
        }
        if !stat.is_dir() || self.query.depth_max.is_some_and(|max| depth >= max) {
            return (Vec::new(), false);
        }
        let mut entries = Vec::new();
        match list(path, &mut entries) {
            Err(e) if depth > 0 && is_gone(&e) => {}
            read => failed.extend(read.map_err(|e| Failure::io("find: reading", path, &e)).err()),
        }
        (entries.into_iter().rev().map(|path| (path, depth + 1)).collect(), false)
    }

    /// What is printed of a file; nothing if a test fails.
    fn passes(&self, file: &Candidate<'_>, depth: usize) -> Result<Vec<u8>, Failure> {
        for (want, test) in &self.query.tests {
            if test.holds(file, self.now)? != *want {
                return Ok(Vec::new());
            }
        }
        let mut text = Vec::new();
        let found = Found { file, root: self.root, depth, now: self.now };
        for action in &self.query.actions {
            action.print(&found, &mut text)?;
        }
        Ok(text)
    }
}

fn parse(arguments: &[OsString], now: i64) -> Result<Query, Failure> {
    let mut query =
        Query { roots: Vec::new(), tests: Vec::new(), depth_max: None, actions: Vec::new(), lazy: false, threads: 1 };
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
            "print" | "P" => query.actions.push(Action::Print),
            "print0" | "0" => query.actions.push(Action::Print0),
            "ls" => query.actions.push(Action::List),
            "lazy" => query.lazy = true,
            _ => {
                let (name, joined) = option.split_once('=').map_or((option, None), |(n, v)| (n, Some(v.into())));
                known(name, &text)?;
                let missing = || Failure::usage(format!("find: '{text}' needs a value"));
                let value: OsString = joined.or_else(|| rest.next().cloned()).ok_or_else(missing)?;
                let wrong = |e: String| Failure::usage(format!("find: -{name} {}: {e}", value.display()));
                query.option(name, &value, want, now).map_err(wrong)?;
                want = true;
            }
        }
    }
    if !want {
        return Err(Failure::usage("find: '!' needs a test behind it"));
    }
    if query.roots.is_empty() {
        return Err(Failure::usage(format!("find: name a directory\n{USAGE}")));
    }
    if query.actions.is_empty() {
        query.actions.push(Action::Print);
    }
    Ok(query)
}

impl Query {
    /// Takes in an option with its value.
    fn option(&mut self, name: &str, value: &OsStr, want: bool, now: i64) -> Result<(), String> {
        let text = value.to_string_lossy();
        match name {
            "maxdepth" | "D" => self.depth_max = Some(number(&text)? as usize),
            "printf" => self.actions.push(Action::Format(show::format(&text)?)),
            "threads" | "thread" => {
                let n = number(&text)?;
                self.threads = usize::try_from(n)
                    .ok()
                    .filter(|n| (1..=THREADS_MAX).contains(n))
                    .ok_or_else(|| format!("write 1 to {THREADS_MAX}"))?;
            }
            name => self.tests.push((want, test(name, value, now)?)),
        }
        Ok(())
    }
}

/// Options that take a value.
const KNOWN: &[&str] = &[
    "maxdepth",
    "D",
    "printf",
    "threads",
    "thread",
    "name",
    "n",
    "type",
    "t",
    "size",
    "s",
    "blocks",
    "b",
    "mtime",
    "M",
    "ctime",
    "C",
    "atime",
    "A",
    "btime",
    "Btime",
    "B",
    "newer",
    "user",
    "uid",
    "u",
    "U",
    "group",
    "gid",
    "g",
    "G",
    "perm",
    "links",
    "xattr",
    "mdt",
    "mdt-index",
    "m",
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
];

/// Whether an option is known here, as the user wrote it in `text`.
fn known(name: &str, text: &str) -> Outcome {
    const PROJECTS: &str = "projects are not there: -user and -group tell whose files are whose";
    let newer = name.strip_prefix("newer").is_some_and(|xy| xy.chars().count() == 2);
    if newer || KNOWN.contains(&name) {
        return Ok(());
    }
    let absent = [COMPOSITE, MIRRORS];
    let letter = |l: &str| matches!(l, "E" | "z" | "T" | "H");
    let why = match name {
        "projid" => PROJECTS,
        "N" => MIRRORS.why,
        name if letter(name) => COMPOSITE.why,
        name => match absent.iter().find(|a| a.names.contains(&name)) {
            Some(a) => a.why,
            None => return Err(Failure::usage(format!("find: unknown test '{text}'\n{USAGE}"))),
        },
    };
    Err(Failure::with_errno(format!("find: {text}: {why}"), libc::EOPNOTSUPP))
}

fn test(option: &str, value: &OsStr, now: i64) -> Result<Test, String> {
    let text = &*value.to_string_lossy();
    let c = |v: &[u8]| CString::new(v).map_err(|_| "it holds a NUL byte".to_string());
    Ok(match option {
        "name" | "n" => Test::Name(c(value.as_bytes())?),
        "type" | "t" => match text.chars().next() {
            Some(kind) if text.len() == 1 && "fdlbcps".contains(kind) => Test::Type(kind),
            _ => return Err("write one of f d l b c p s".into()),
        },
        "size" | "s" => sized(text, 1).map(|(bound, unit)| Test::Size(bound, unit))?,
        "blocks" | "b" => sized(text, 1024).map(|(bound, unit)| Test::Blocks(bound, unit))?,
        "mtime" | "M" => age(Clock::Modified, text)?,
        "ctime" | "C" => age(Clock::Changed, text)?,
        "atime" | "A" => age(Clock::Accessed, text)?,
        "btime" | "Btime" | "B" => age(Clock::Born, text)?,
        "user" | "uid" | "u" | "U" => Test::User(Account::User.id(text)?),
        "group" | "gid" | "g" | "G" => Test::Group(Account::Group.id(text)?),
        "links" => Test::Links(Bound::parse(text, number)?),
        "perm" => Test::Perm(perm(text)?),
        "xattr" => match value.as_bytes().iter().position(|b| *b == b'=') {
            Some(at) => Test::Xattr(c(&value.as_bytes()[..at])?, Some(value.as_bytes()[at + 1..].to_vec())),
            None => Test::Xattr(c(value.as_bytes())?, None),
        },
        "mdt" | "mdt-index" | "m" => Test::Mdt(targets(text, "MDT")?),
        "stripe-count" | "c" => Test::StripeCount(Bound::parse(text, number)?),
        "stripe-size" | "S" => Test::StripeSize(Bound::parse(text, parse_size)?),
        "stripe-index" | "i" => Test::StripeIndex(targets(text, "OST")?),
        "ost" | "O" | "obd" => Test::Ost(targets(text, "OST")?),
        "pool" => Test::Pool(text.into()),
        "layout" | "L" if text == "raid0" => Test::Raid0,
        "layout" | "L" => return Err("write raid0: other layouts do not exist here".into()),
        newer => newer_than(newer.strip_prefix("newer").unwrap_or_default(), value, now)?,
    })
}

/// `-newerXY`: X is the file's time, Y the reference's, or `t`: the reference is a time.
fn newer_than(letters: &str, value: &OsStr, now: i64) -> Result<Test, String> {
    let mut letters = letters.chars();
    let (x, y) = (letters.next().unwrap_or('m'), letters.next().unwrap_or('m'));
    let wrong = || format!("-newer{x}{y} does not exist: X is one of a b c m, Y one of a b c m t");
    let clock = Clock::of(x).ok_or_else(wrong)?;
    if y == 't' {
        return Ok(Test::Newer(clock, time::parse(&value.to_string_lossy(), now)?));
    }
    let of = Clock::of(y).ok_or_else(wrong)?;
    let reference = fs::canonicalize(value).and_then(|p| Stat::of(&p, false)).map_err(|e| e.to_string())?;
    let at = reference.time(of).ok_or("its birth time is not known: use another letter")?;
    Ok(Test::Newer(clock, at))
}

/// Indices or names of targets, separated by commas.
fn targets(text: &str, kind: &str) -> Result<Vec<u16>, String> {
    let one = |t: &str| {
        super::target(t, kind).ok_or_else(|| {
            format!("'{t}' is not an {kind}: write indices like 0,2 or names like stria-{kind}0002_UUID")
        })
    };
    text.split(',').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn query(arguments: &[&str]) -> Result<Query, String> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        parse(&arguments, NOW).map_err(|e| e.to_string())
    }

    #[test]
    fn tests_are_read_with_their_signs_and_units() {
        let words =
            "/m -size +1M ! -stripe-count -3 -maxdepth 2 -print0 -ost 0,s-OST000a_UUID --mdt=0 -threads 4 -lazy";
        let q = query(&words.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!(q.tests[0], (true, Test::Size(Bound::Above(1), 1 << 20)));
        assert_eq!(q.tests[1], (false, Test::StripeCount(Bound::Below(3))));
        assert_eq!(q.tests[2], (true, Test::Ost(vec![0, 10])));
        assert_eq!(q.tests[3], (true, Test::Mdt(vec![0])));
        assert!(q.actions == [Action::Print0] && q.depth_max == Some(2) && q.threads == 4 && q.lazy);
        assert_eq!(age(Clock::Modified, "-2h").unwrap(), Test::Age(Clock::Modified, Bound::Below(2), 3600));
        assert_eq!(sized("4096", 1).unwrap(), (Bound::Exactly(4096), 1));
        assert_eq!(query(&["/m", "-newerbt", "@5"]).unwrap().tests[0].1, Test::Newer(Clock::Born, (5, 0)));
        let perms = ["644", "-u+w,g=r", "/222", "u+rws"].map(|p| perm(p).unwrap());
        use test::Perm::{All, Any, Exactly};
        assert_eq!(perms, [Exactly(0o644), All(0o240), Any(0o222), Exactly(0o4600)]);
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
            (&["/m", "-perm", "rw"], "-perm rw: write an octal mode"),
            (&["/m", "-newerxm", "/"], "X is one of a b c m"),
            (&["/m", "-newertm", "/"], "X is one of a b c m"),
            (&["/m", "-newermt", "soon"], "write a time like"),
            (&["/m", "-newer", "/no/such"], "-newer /no/such: No such file"),
            (&["/m", "-threads", "0"], "write 1 to 256"),
            (&["/m", "-printf", "%Q"], "'%Q' prints nothing"),
            (&["/m", "-component-count", "2"], "-component-count: composite"),
            (&["/m", "--mirror-state=ro"], "mirrors and parity are not there"),
            (&["/m", "-projid", "1"], "-projid: projects are not there"),
            (&["/m", "-mtime", "1q"], "-mtime 1q: write a number of days"),
        ] {
            let e = query(arguments).unwrap_err();
            assert!(e.contains(text), "{arguments:?}: {e}");
        }
    }

    #[test]
    fn a_local_tree_is_searched_by_name_kind_size_rights_and_depth() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/big.dat"), vec![0; 5000]).unwrap();
        fs::write(dir.path().join("a/b/small.dat"), b"x").unwrap();
        fs::set_permissions(dir.path().join("a/big.dat"), fs::Permissions::from_mode(0o604)).unwrap();
        let root = dir.path().to_str().unwrap();
        let found = |tests: &[&str]| {
            let mut arguments = vec![root];
            arguments.extend(tests);
            let mut out = Vec::new();
            let failed = search(&query(&arguments).unwrap(), NOW, &mut out);
            failed.end("find").unwrap();
            let text = String::from_utf8(out).unwrap();
            text.split_terminator(['\n', '\0']).map(|l| l.replace(root, "")).collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), ["", "/a", "/a/b", "/a/b/small.dat", "/a/big.dat"]);
        assert_eq!(found(&["-name", "*.dat", "-size", "+4k"]), ["/a/big.dat"]);
        assert_eq!(found(&["!", "-type", "d"]), ["/a/b/small.dat", "/a/big.dat"]);
        assert_eq!(found(&["-type", "d", "-maxdepth", "1", "-print0"]), ["", "/a"]);
        assert_eq!(found(&["-type", "f", "-perm", "/o+r", "!", "-perm", "/g+r"]), ["/a/big.dat"]);
        assert_eq!(found(&["-perm", "604", "-printf", "%P %s %m %M %y %d\\n"]), ["a/big.dat 5000 604 -rw----r-- f 2"]);
        assert_eq!(
            found(&["-name", "big.dat", "-newermt", "@5", "!", "-newermt", "2999-01-01", "-printf", "%f"]),
            ["big.dat"]
        );
        let listed = found(&["-name", "small.dat", "-ls"]);
        let words: Vec<&str> = listed[0].split_whitespace().collect();
        assert!(words.len() == 11 && words[2].starts_with("-rw") && words[6] == "1", "{listed:?}");
        assert_eq!(words[10], "/a/b/small.dat");
        for threads in ["2", "16"] {
            let mut together = found(&["-threads", threads]);
            together.sort();
            assert_eq!(together, ["", "/a", "/a/b", "/a/b/small.dat", "/a/big.dat"]);
        }
    }
}
