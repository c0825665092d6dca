//! `setstripe`: the layout of a new file, or the default of a directory.
//!
//! A new file is made as mknod(2) makes it, without a layout, and then given one; it has no other layout in between,
//! for only its first open for writing would give it the default.
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use layout::{LayoutSpec, Pattern, PoolChoice, PoolName, StripeCount, parse_ost_list, parse_stripe_size};
use types::OstIndex;

use super::getopt::{Absent, COMPOSITE, Grammar, MIRRORS, Parsed};
use super::walk::Failures;
use super::xattr;
use crate::failure::{Failure, Outcome};

const USAGE: &str = "usage: setstripe [-c COUNT | -C COUNT] [-S SIZE] [-i INDEX] [-o LIST] [-p POOL] FILE|DIR...
       setstripe --copy FILE | --yaml FILE  FILE|DIR...
       setstripe -d DIR...
  -c COUNT  stripes; -1 all OSTs, 0 the default        -C COUNT  the same, several may share an OST
  -S SIZE   stripe size, a multiple of 64K; suffix K M G; bare numbers below 4096 are KiB
  -i INDEX  OST of the first stripe; -1 any            -o LIST   exactly these OSTs, like 0-2,5; may be repeated
  -p POOL   pool; 'ignore' for none, 'inherit' for the directory's
  --copy    as this file or directory has it: size, count and pattern, on whatever OSTs
  --yaml    as this file says, which 'getstripe -y' wrote ('-': standard input)
  -d        delete a directory's default";

const GRAMMAR: Grammar = Grammar {
    verb: "setstripe",
    short: "c:C:S:i:o:p:L:dy:t:h",
    long: &[
        ("stripe-count", 'c'),
        ("overstripe-count", 'C'),
        ("stripe-size", 'S'),
        ("stripe-index", 'i'),
        ("stripe-offset", 'i'),
        ("ost", 'o'),
        ("ost-list", 'o'),
        ("pool", 'p'),
        ("delete", 'd'),
        ("layout", 'L'),
        ("yaml", 'y'),
        ("copy", 't'),
        ("help", 'h'),
    ],
    absent: &[
        Absent { letters: "I", names: &["component-id", "comp-id"], why: COMPOSITE.why },
        COMPOSITE,
        Absent { letters: "N", ..MIRRORS },
    ],
};

/// Longest template in bytes: a layout of 2000 stripes takes 120,000.
const TEMPLATE_BYTES_MAX: u64 = 1 << 20;

/// Runs the verb.
///
/// # Errors
/// What is wrong with the options, or with a path; the others have their turn.
pub fn setstripe(arguments: &[OsString]) -> Outcome {
    let parsed = GRAMMAR.read(arguments)?;
    if parsed.has('h') {
        say!("{USAGE}");
        return Ok(());
    }
    if parsed.operands.is_empty() {
        return Err(Failure::usage(format!("setstripe: name a file or a directory\n{USAGE}")));
    }
    let spec = read_spec("setstripe", &parsed)?;
    let mut failures = Failures::default();
    parsed.operands.iter().for_each(|path| failures.note(apply(Path::new(path), &spec, parsed.has('d'))));
    failures.end("setstripe")
}

fn integer(verb: &str, option: char, text: &str) -> Result<i64, Failure> {
    text.parse().map_err(|_| Failure::usage(format!("{verb}: -{option} {text}: write a number")))
}

/// The layout that options ask for; `verb` is what messages begin with.
pub(super) fn read_spec(verb: &str, parsed: &Parsed) -> Result<LayoutSpec, Failure> {
    for (letter, name) in
        [('d', "-d deletes a default"), ('t', "--copy takes all from a file"), ('y', "--yaml says all")]
    {
        if parsed.has(letter) && parsed.options.iter().any(|(l, _)| *l != letter) {
            return Err(Failure::usage(format!("{verb}: {name} and goes with no other option")));
        }
    }
    if let Some(path) = parsed.value('t') {
        return copied(verb, Path::new(path));
    }
    if let Some(path) = parsed.value('y') {
        let text = template(verb, path)?;
        return from_yaml(&text).map_err(|e| Failure::usage(format!("{verb}: --yaml {path}: {e}")));
    }
    if parsed.has('c') && parsed.has('C') {
        return Err(Failure::usage(format!("{verb}: -c and -C exclude each other")));
    }
    if let Some(l) = parsed.value('L').filter(|l| *l != "raid0") {
        return Err(Failure::with_errno(format!("{verb}: layout '{l}' is not supported: use raid0"), libc::EOPNOTSUPP));
    }
    let wrong = |e: layout::SpecError| Failure::usage(format!("{verb}: {e}"));
    let count_letter = if parsed.has('C') { 'C' } else { 'c' };
    let count = parsed.value(count_letter).map_or(Ok(0), |t| integer(verb, count_letter, t))?;
    let index = parsed.value('i').map_or(Ok(-1), |t| integer(verb, 'i', t))?;
    let mut spec = LayoutSpec::from_raw(0, count, index).map_err(wrong)?;
    if let Some(text) = parsed.value('S') {
        let size = parse_stripe_size(text).map_err(wrong)?;
        spec.stripe_size = Some(size.ok_or_else(|| {
            Failure::usage(format!(
                "{verb}: stripe size {text} is too small: the smallest is 64K (65536 bytes); leave -S out for the default"
            ))
        })?);
    }
    // FSNAME.POOL is the same as POOL: the path says which file system is meant.
    let pool = parsed.value('p').unwrap_or("");
    spec.pool = PoolChoice::parse(pool.split_once('.').map_or(pool, |(_, pool)| pool)).map_err(wrong)?;
    spec.overstripe = parsed.has('C');
    let mut osts = Vec::new();
    for list in parsed.options.iter().filter(|(l, _)| *l == 'o').filter_map(|(_, v)| v.as_deref()) {
        osts.extend(parse_ost_list(list).map_err(wrong)?);
    }
    if osts.is_empty() { Ok(spec) } else { spec.with_osts(osts).map_err(wrong) }
}

/// What a file's layout or a directory's default asks for. A file's objects are its own: the copy's lie anywhere.
fn copied(verb: &str, path: &Path) -> Result<LayoutSpec, Failure> {
    let meta = fs::metadata(path).map_err(|e| Failure::io(&format!("{verb}: --copy"), path, &e))?;
    let unreadable = |e: layout::xattr::XattrError| {
        Failure::with_errno(format!("{verb}: --copy {}: {e}", path.display()), libc::EBADMSG)
    };
    let none = || {
        let why = format!("{verb}: --copy {}: it has no layout: take a file that has data", path.display());
        Failure::with_errno(why, libc::ENODATA)
    };
    match xattr::get_lov(path)? {
        None if meta.is_dir() => Ok(LayoutSpec::default()),
        None => Err(none()),
        Some(bytes) if meta.is_dir() => layout::xattr::decode_spec(&bytes).map_err(unreadable),
        Some(bytes) => {
            let (_, layout) = layout::xattr::decode_layout(&bytes).map_err(unreadable)?;
            let mut spec = LayoutSpec::default();
            spec.stripe_size = Some(layout.stripe_size());
            spec.stripe_count = StripeCount::Exactly(layout.stripe_count());
            spec.overstripe = layout.pattern() == Pattern::Raid0Overstriped;
            spec.pool = layout.pool().map_or(PoolChoice::Inherit, PoolChoice::Named);
            Ok(spec)
        }
    }
}

/// How many stripes a file has, and their bytes.
///
/// # Errors
/// It has no layout, or none that is understood.
pub fn stripes_of(path: &Path) -> Result<(u32, u64), Failure> {
    let bad = |why: String| Failure::with_errno(format!("the layout of {}: {why}", path.display()), libc::EBADMSG);
    let bytes = xattr::get_lov(path)?.ok_or_else(|| bad("it has none".into()))?;
    let (_, layout) = layout::xattr::decode_layout(&bytes).map_err(|e| bad(e.to_string()))?;
    Ok((u32::from(layout.stripe_count()), u64::from(layout.stripe_size().bytes())))
}

fn template(verb: &str, path: &str) -> Result<String, Failure> {
    use io::Read;
    let failed = |e: io::Error| Failure::io(&format!("{verb}: --yaml"), Path::new(path), &e);
    let mut text = String::new();
    let source: Box<dyn io::Read> = match path {
        "-" => Box::new(io::stdin()),
        path => Box::new(fs::File::open(path).map_err(failed)?),
    };
    source.take(TEMPLATE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Reads what `getstripe -y` prints of a plain file or a directory. Objects, generation and ids are the old file's.
fn from_yaml(text: &str) -> Result<LayoutSpec, String> {
    let (mut count, mut size, mut pattern, mut index, mut pool) = (0, 0, "raid0".to_string(), -1, String::new());
    let mut known = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.split(" #").next().unwrap_or_default().trim();
        let Some((label, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let wrong = || format!("line {}: '{value}' is no {label}", number + 1);
        match label.trim().trim_start_matches("lmm_") {
            _ if label.starts_with("lcm_") || label.contains("lcme_") => {
                return Err(format!("line {}: '{label}' belongs to a composite layout: {}", number + 1, COMPOSITE.why));
            }
            "stripe_count" => count = value.parse().map_err(|_| wrong())?,
            "stripe_size" => size = value.parse().map_err(|_| wrong())?,
            "pattern" => pattern = value.into(),
            "stripe_offset" => index = value.parse().map_err(|_| wrong())?,
            "pool" => pool = value.into(),
            _ => continue,
        }
        known = true;
    }
    if !known {
        return Err("it holds no layout: write one with 'getstripe -y FILE'".into());
    }
    let mut spec = LayoutSpec::from_raw(size, count, index).map_err(|e| e.to_string())?;
    spec.overstripe = match pattern.as_str() {
        "raid0" => false,
        "raid0,overstriped" => true,
        other => return Err(format!("pattern '{other}' is not supported: use raid0")),
    };
    spec.pool = PoolChoice::parse(&pool).map_err(|e| e.to_string())?;
    Ok(spec)
}

fn apply(path: &Path, spec: &LayoutSpec, delete: bool) -> Outcome {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => {
            check_osts("setstripe", path, spec)?;
            let bytes = layout::xattr::encode_spec(spec);
            xattr::set_lov(path, (!delete && !spec.is_empty()).then_some(&bytes[..]))
        }
        Ok(_) if delete => Err(Failure::with_errno(
            format!("setstripe: {} is not a directory: -d deletes the default of a directory", path.display()),
            libc::ENOTDIR,
        )),
        Ok(_) => Err(Failure::with_errno(
            format!(
                "setstripe: {} exists, and a file keeps the layout it was created with: 'lfs migrate' gives it another one",
                path.display()
            ),
            libc::EEXIST,
        )),
        Err(e) if e.kind() == io::ErrorKind::NotFound && !delete => create(path, spec),
        Err(e) => Err(Failure::io("setstripe: looking at", path, &e)),
    }
}

/// Refuses OSTs and pools that the cluster does not have, when the mount tells which it has.
pub(super) fn check_osts(verb: &str, on_mount: &Path, spec: &LayoutSpec) -> Outcome {
    let named: Vec<OstIndex> = spec.osts().iter().copied().chain(spec.index).collect();
    let pool = if let PoolChoice::Named(name) = &spec.pool { Some(name) } else { None };
    if named.is_empty() && pool.is_none() {
        return Ok(());
    }
    let (connection, _) = xattr::connection_of(on_mount)?;
    if let Some(pool) = pool {
        let members = super::pool::named(verb, connection, pool.as_str(), true)?;
        refuse_others(verb, &named, pool, &members, "")?;
    }
    if named.is_empty() {
        return Ok(());
    }
    let Ok(known) = crate::control::ask_osts(connection) else { return Ok(()) };
    match named.iter().find(|o| !known.contains(&o.0)) {
        Some(missing) => Err(Failure::usage(format!(
            "{verb}: there is no OST with index {}: this file system has {} ('stria df' lists them)",
            missing.0,
            show_list(&known)
        ))),
        None => Ok(()),
    }
}

/// Why the metadata server refuses a layout for a file in a directory: what it leaves open comes from the directory's default. Nothing,
/// if that is not known here.
pub(super) fn refused_in(verb: &str, dir: &Path, spec: &LayoutSpec) -> Outcome {
    if spec.pool != PoolChoice::Inherit {
        return Ok(());
    }
    let Some(pool) = default_pool(dir)? else { return Ok(()) };
    let (connection, _) = xattr::connection_of(dir)?;
    let Some(members) = super::pool::members(connection, pool.as_str())? else { return Ok(()) };
    let named: Vec<OstIndex> = spec.osts().iter().copied().chain(spec.index).collect();
    let of =
        format!("; new files of {} get objects there: name OSTs of the pool, or leave it (-p none)", dir.display());
    refuse_others(verb, &named, &pool, &members, &of)
}

/// Refuses OSTs that are not among the members of a pool, and a pool without any.
fn refuse_others(verb: &str, named: &[OstIndex], pool: &PoolName, members: &[u16], of: &str) -> Outcome {
    if members.is_empty() {
        return Err(Failure::usage(format!("{verb}: pool '{pool}' has no OSTs{of}")));
    }
    match named.iter().find(|o| !members.contains(&o.0)) {
        Some(other) => Err(Failure::usage(format!(
            "{verb}: OST {} is not in pool '{pool}', which has {}{of}",
            other.0,
            show_list(members)
        ))),
        None => Ok(()),
    }
}

/// The pool of new files in a directory.
fn default_pool(dir: &Path) -> Result<Option<PoolName>, Failure> {
    let Some(bytes) = xattr::get_lov(dir)? else { return Ok(None) };
    let spec = layout::xattr::decode_spec(&bytes)
        .map_err(|e| Failure::with_errno(format!("the default layout of {}: {e}", dir.display()), libc::EBADMSG))?;
    Ok(if let PoolChoice::Named(name) = spec.pool { Some(name) } else { None })
}

/// The directory in which a path lies.
pub(super) fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn show_list(osts: &[u16]) -> String {
    match (osts.first(), osts.last()) {
        (Some(a), Some(b)) if usize::from(b - a) + 1 == osts.len() && a != b => format!("{a}-{b}"),
        _ => osts.iter().map(u16::to_string).collect::<Vec<_>>().join(","),
    }
}

fn create(path: &Path, spec: &LayoutSpec) -> Outcome {
    let parent = parent_of(path);
    check_osts("setstripe", parent, spec)?;
    make_node(path).map_err(|e| Failure::io("setstripe: creating", path, &e))?;
    xattr::set_first_lov(path, &layout::xattr::encode_spec(spec)).map_err(|e| {
        // It is ours and empty; whoever opened it meanwhile keeps it.
        let _ = fs::remove_file(path);
        let known = if i32::from(e.code()) == libc::EINVAL { refused_in("setstripe", parent, spec) } else { Ok(()) };
        known.err().unwrap_or(e)
    })
}

/// Makes a file without a layout.
fn make_node(path: &Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a NUL-terminated path that outlives the call.
    match unsafe { libc::mknod(path.as_ptr(), libc::S_IFREG | 0o666, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(arguments: &[&str]) -> Result<LayoutSpec, String> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let parsed = GRAMMAR.read(&arguments).map_err(|e| e.to_string())?;
        read_spec("setstripe", &parsed).map_err(|e| e.to_string())
    }

    #[test]
    fn what_users_type_becomes_a_spec() {
        let s = spec(&["-c", "-1", "-S", "64", "d"]).unwrap();
        assert_eq!((s.stripe_count, s.stripe_size.unwrap().bytes()), (StripeCount::All, 65536));
        let s = spec(&["-c2", "-S4M", "-i", "1", "-p", "flash"]).unwrap();
        assert_eq!((s.stripe_count, s.index), (StripeCount::Exactly(2), Some(OstIndex(1))));
        let s = spec(&["-o", "0-1,3"]).unwrap();
        assert_eq!(s.osts(), [OstIndex(0), OstIndex(1), OstIndex(3)]);
        assert!(spec(&["-C", "8"]).unwrap().overstripe);
        assert!(spec(&["-d"]).unwrap().is_empty());
    }

    #[test]
    fn bad_values_name_value_and_remedy() {
        for (arguments, text) in [
            (&["-S", "0"][..], "stripe size 0 is too small"),
            (&["-S", "63K"], "stripe size 64512 is too small"),
            (&["-S", "4G"], "must be below 4G"),
            (&["-S", "65K"], "not a multiple of 64K"),
            (&["-c", "2001"], "stripe count 2001 is out of range"),
            (&["-c", "two"], "-c two: write a number"),
            (&["-i", "-2"], "stripe index -2"),
            (&["-o", "3-1"], "'3-1' is not an OST list"),
            (&["-p", "a-name-that-is-too-long"], "pool"),
            (&["-d", "-c", "1"], "no other option"),
            (&["--copy", "f", "-c", "1"], "no other option"),
            (&["-E", "1M"], "-E: composite"),
            (&["-N2"], "-N2: mirrors"),
            (&["--comp-add"], "--comp-add: composite"),
            (&["-c", "1", "-C", "2"], "exclude each other"),
            (&["-L", "mdt"], "use raid0"),
        ] {
            let e = spec(arguments).unwrap_err();
            assert!(e.contains(text) && e.starts_with("setstripe: "), "{arguments:?}: {e}");
        }
    }

    #[test]
    fn templates_say_what_getstripe_wrote() {
        let text = "lmm_stripe_count:  2\nlmm_stripe_size:   65536\nlmm_pattern:       raid0,overstriped\n\
            lmm_layout_gen:    3\nlmm_stripe_offset: 1\nlmm_objects:\n- 0: { l_ost_idx: 1, l_fid: [0x240000401:0x2:0x0] }\n\n";
        let s = from_yaml(text).unwrap();
        assert_eq!((s.stripe_count, s.stripe_size.unwrap().bytes()), (StripeCount::Exactly(2), 65536));
        assert!(s.index == Some(OstIndex(1)) && s.overstripe);
        for (text, why) in [
            ("nothing here\n", "no layout"),
            ("lmm_stripe_count: two\n", "line 1: 'two' is no lmm_stripe_count"),
            ("lmm_stripe_size: 100000\n", "multiple of 64K"),
            ("lcm_layout_gen: 3\n", "composite layout"),
            ("lmm_pattern: mdt\n", "use raid0"),
        ] {
            let e = from_yaml(text).unwrap_err();
            assert!(e.contains(why), "{text}: {e}");
        }
    }

    #[test]
    fn outside_a_mount_it_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let e = setstripe(&["-c".into(), "2".into(), dir.path().into()]).unwrap_err();
        assert!(e.to_string().contains("not on a Stria mount"), "{e}");
        assert_eq!(e.code(), libc::ENOTTY as u8);
        let file = dir.path().join("f");
        fs::write(&file, b"x").unwrap();
        assert_eq!(setstripe(&[file.clone().into()]).unwrap_err().code(), libc::EEXIST as u8);
        assert_eq!(setstripe(&["-d".into(), file.into()]).unwrap_err().code(), libc::ENOTDIR as u8);
        assert!(setstripe(&[dir.path().join("new").into()]).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn index_lists_are_short() {
        assert_eq!(show_list(&[0, 1, 2, 3]), "0-3");
        assert_eq!(show_list(&[0, 2]), "0,2");
        assert_eq!(show_list(&[7]), "7");
    }
}
