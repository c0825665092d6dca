//! Tests of files: by name, kind, size, age, owner, rights, xattrs and layout.
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use layout::{Layout, Pattern};
use types::parse_size;

use super::stat::{At, Clock, Stat};
use super::time;
use crate::failure::Failure;
use crate::lfs::xattr;

/// More, less, or exactly so much.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bound {
    Above(u64),
    Below(u64),
    Exactly(u64),
}

impl Bound {
    pub fn holds(self, value: u64) -> bool {
        match self {
            Bound::Above(n) => value > n,
            Bound::Below(n) => value < n,
            Bound::Exactly(n) => value == n,
        }
    }
    pub fn parse(text: &str, number: impl Fn(&str) -> Result<u64, String>) -> Result<Bound, String> {
        match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(t), _) => number(t).map(Bound::Above),
            (_, Some(t)) => number(t).map(Bound::Below),
            _ => number(text).map(Bound::Exactly),
        }
    }
}

/// How `-perm` compares: exactly, at least these bits, any of them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Perm {
    Exactly(u32),
    All(u32),
    Any(u32),
}

/// One test.
#[derive(Debug, PartialEq)]
pub enum Test {
    Name(CString),
    Type(char),
    Size(Bound, u64),
    Blocks(Bound, u64),
    Age(Clock, Bound, i64),
    Newer(Clock, At),
    User(u32),
    Group(u32),
    Perm(Perm),
    Links(Bound),
    Xattr(CString, Option<Vec<u8>>),
    Mdt(Vec<u16>),
    StripeCount(Bound),
    StripeSize(Bound),
    StripeIndex(Vec<u16>),
    Ost(Vec<u16>),
    Pool(String),
    Raid0,
}

/// A file under test; its layout is fetched when it is first needed.
pub struct Candidate<'a> {
    pub path: &'a Path,
    pub stat: Stat,
    layout: std::cell::OnceCell<Option<Layout>>,
}

impl Candidate<'_> {
    pub fn new(path: &Path, stat: Stat) -> Candidate<'_> {
        Candidate { path, stat, layout: std::cell::OnceCell::new() }
    }
    /// Its layout; none of what is no plain file, or has no data yet.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn layout(&self) -> Result<Option<&Layout>, Failure> {
        if let Some(known) = self.layout.get() {
            return Ok(known.as_ref());
        }
        let wrong = |e| Failure::with_errno(format!("find: {}: {e}", self.path.display()), libc::EBADMSG);
        let bytes = if self.stat.is_file() { xattr::get_lov(self.path)? } else { None };
        let layout = bytes.map(|b| layout::xattr::decode_layout(&b).map(|(_, l)| l)).transpose().map_err(wrong)?;
        Ok(self.layout.get_or_init(|| layout).as_ref())
    }
}

impl Test {
    /// Whether the file passes, at the time `now`.
    ///
    /// # Errors
    /// Its layout or its xattrs cannot be read.
    pub fn holds(&self, file: &Candidate<'_>, now: i64) -> Result<bool, Failure> {
        let stat = &file.stat;
        Ok(match self {
            Test::Name(glob) => matches_name(glob, file.path.file_name().unwrap_or(file.path.as_os_str())),
            Test::Type(kind) => stat.letter() == *kind,
            // Sizes are rounded up to the unit, as in find(1).
            Test::Size(bound, unit) => bound.holds(stat.bytes().div_ceil(*unit)),
            Test::Blocks(bound, unit) => bound.holds((stat.blocks() * 512).div_ceil(*unit)),
            Test::Age(clock, bound, unit) => stat
                .time(*clock)
                .is_some_and(|(at, _)| bound.holds((now - at).max(0).unsigned_abs() / unit.unsigned_abs())),
            Test::Newer(clock, than) => stat.time(*clock).is_some_and(|at| at > *than),
            Test::User(uid) => stat.uid() == *uid,
            Test::Group(gid) => stat.gid() == *gid,
            Test::Perm(Perm::Exactly(bits)) => stat.perm() == *bits,
            Test::Perm(Perm::All(bits)) => stat.perm() & bits == *bits,
            Test::Perm(Perm::Any(bits)) => *bits == 0 || stat.perm() & bits != 0,
            Test::Links(bound) => bound.holds(stat.links()),
            Test::Xattr(name, value) => has_xattr(file.path, name, value.as_deref())?,
            // There is one metadata target.
            Test::Mdt(list) => list.contains(&0),
            layout => file.layout()?.is_some_and(|l| layout.holds_for(l)),
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

/// Matches a name with fnmatch(3)'s rules.
fn matches_name(glob: &CString, name: &OsStr) -> bool {
    let Ok(name) = CString::new(name.as_bytes()) else { return false };
    // SAFETY: NUL-terminated strings that outlive the call.
    unsafe { libc::fnmatch(glob.as_ptr(), name.as_ptr(), 0) == 0 }
}

/// Whether the path itself has an xattr, with this value if one is said.
fn has_xattr(path: &Path, name: &CString, value: Option<&[u8]>) -> Result<bool, Failure> {
    let failed = |e: &std::io::Error| Failure::io("find: reading xattrs of", path, e);
    let c = CString::new(path.as_os_str().as_bytes()).map_err(|e| failed(&e.into()))?;
    let mut held = vec![0u8; layout::xattr::XATTR_BYTES_MAX];
    // SAFETY: NUL-terminated strings and a buffer of the said length, all outliving the call.
    let n = unsafe { libc::lgetxattr(c.as_ptr(), name.as_ptr(), held.as_mut_ptr().cast(), held.len()) };
    if n >= 0 {
        return Ok(value.is_none_or(|v| v == &held[..n as usize]));
    }
    let e = std::io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::ENODATA | libc::EOPNOTSUPP | libc::ENOENT | libc::EPERM) => Ok(false),
        _ => Err(failed(&e)),
    }
}

pub fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write a number".into())
}

/// `+1M` is more than one MiB, counted in MiB, rounded up; a bare number counts `bare` bytes.
pub fn sized(text: &str, bare: u64) -> Result<(Bound, u64), String> {
    let digits = text.trim_start_matches(['+', '-']);
    let suffix: String = digits.chars().skip_while(char::is_ascii_digit).collect();
    let unit = match suffix.as_str() {
        "" => bare,
        "c" => 1,
        "b" => 512,
        suffix => parse_size(&format!("1{suffix}"))?,
    };
    Ok((Bound::parse(text.strip_suffix(suffix.as_str()).unwrap_or(text), number)?, unit))
}

/// `-2h` is less than two hours ago; days when there is no unit.
pub fn age(clock: Clock, text: &str) -> Result<Test, String> {
    let (seconds, unit) = time::parse_age(text.trim_start_matches(['+', '-']))?;
    let n = (seconds / unit).unsigned_abs();
    let bound = match text.chars().next() {
        Some('+') => Bound::Above(n),
        Some('-') => Bound::Below(n),
        _ => Bound::Exactly(n),
    };
    Ok(Test::Age(clock, bound, unit))
}

/// `644`, `-u+w,g=r`, `/222`: exactly these bits, all of them, any of them.
pub fn perm(text: &str) -> Result<Perm, String> {
    let wrong =
        || "write an octal mode like 644, or one like u+w,g=r; '-' before it: all these bits, '/': any".to_string();
    let bare = text.trim_start_matches(['-', '/']);
    let bits = match u32::from_str_radix(bare, 8) {
        Ok(bits) => bits,
        Err(_) => bare.split(',').try_fold(0, symbolic).ok_or_else(wrong)?,
    };
    if bits > 0o7777 || bare.is_empty() {
        return Err(wrong());
    }
    Ok(match text.chars().next() {
        Some('-') => Perm::All(bits),
        Some('/') => Perm::Any(bits),
        _ => Perm::Exactly(bits),
    })
}

/// One clause of a symbolic mode, like `ug+rw`.
fn symbolic(mode: u32, clause: &str) -> Option<u32> {
    let at = clause.find(['+', '=', '-'])?;
    let (who, operation, rights) = (&clause[..at], clause.as_bytes()[at], &clause[at + 1..]);
    let mut mask = 0;
    for c in who.chars() {
        mask |= match c {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => 0o7777,
            _ => return None,
        };
    }
    let mask = if who.is_empty() { 0o7777 } else { mask };
    let mut bits = 0;
    for c in rights.chars() {
        bits |= match c {
            'r' => 0o444,
            'w' => 0o222,
            'x' => 0o111,
            's' => 0o6000,
            't' => 0o1000,
            _ => return None,
        };
    }
    Some(match operation {
        b'+' => mode | bits & mask,
        b'-' => mode & !(bits & mask),
        _ => mode & !mask | bits & mask,
    })
}
