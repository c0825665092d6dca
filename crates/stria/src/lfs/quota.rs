//! `quota` and `setquota`: what users, groups and projects have and may have. The metadata server keeps limits; a mount of the file
//! system on this host carries questions there.
//!
//! Syntax and columns are those of Lustre's `lfs` (interface facts only).
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};
use types::{format_size, parse_size};
use wire::quota::{EVERYBODY, QuotaKind, QuotaParts, UNLIMITED};

use super::accounts::Account;
use super::getopt::{Absent, Grammar, Parsed};
use crate::control;
use crate::failure::{Failure, Outcome};

const USAGE: &str =
    "usage: quota [-q] [-h] [-v] [-u USER | -g GROUP | -p PROJECT] PATH    (without -u, -g, -p: of who asks)
       quota -U | -G | -P PATH                                        (default limits)
       quota -t -u | -g | -p PATH                                     (times of grace)
       setquota -u USER | -g GROUP | -p PROJECT [-b N] [-B N] [-i N] [-I N] PATH
       setquota -U | -G | -P [-b N] [-B N] [-i N] [-I N] PATH         (default limits)
       setquota -u USER | -g GROUP | -p PROJECT -d PATH               (back to the default)
       setquota -t -u | -g | -p [-b TIME] [-i TIME] PATH
  PATH    a path on a mount of the file system
  USER, GROUP  names or numbers; PROJECT  a number
  -q  without a heading   -h  sizes with suffixes   -v  each target, too
  -b, -B  soft and hard limit of space: a number of KiB, or with a suffix k M G T P E (base 2); 0: none
  -i, -I  soft and hard limit of inodes: a number, or with a suffix; 0: none
  -U, -G, -P  all users, groups or projects that have no limits of their own; 0 with -b, -B, -i, -I: no default
  -d  no limits of its own any more: the default holds
  TIME    seconds, or a number with w, d, h, m, s, or several of them: 1w2d";

const ABSENT: Absent = Absent {
    letters: "aDrR",
    names: &["pool", "all", "delete", "reset"],
    why: "quotas of pools and lists of all quotas are not there: name a user, a group or a project",
};

/// What a metadata server did not do.
const OLD_SERVER: &str =
    "the metadata server is of before there were default quotas: stop it, start a newer one, and set them again";

/// Bytes at most: what a signed number of 64 bits holds.
const BYTES_MAX: u64 = i64::MAX as u64;

/// Whose quota is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Whose {
    kind: QuotaKind,
    id: u32,
}

fn usage(verb: &str, why: &str) -> Failure {
    Failure::usage(format!("{verb}: {why}\n{USAGE}"))
}

/// The kind of a letter.
fn kind_of(letter: char) -> Option<QuotaKind> {
    match letter {
        'u' => Some(QuotaKind::User),
        'g' => Some(QuotaKind::Group),
        'p' => Some(QuotaKind::Project),
        _ => None,
    }
}

/// The kind of the letter of a default.
fn default_kind_of(letter: char) -> Option<QuotaKind> {
    kind_of(letter.to_ascii_lowercase()).filter(|_| letter.is_ascii_uppercase())
}

/// Whom an option names: one, or all that have no limits of their own.
fn named(verb: &str, letter: char, value: Option<&str>) -> Option<Result<Whose, Failure>> {
    let default = default_kind_of(letter).map(|kind| Ok(Whose { kind, id: EVERYBODY }));
    default.or_else(|| kind_of(letter).zip(value).map(|(kind, text)| whose(verb, kind, text)))
}

fn whose(verb: &str, kind: QuotaKind, text: &str) -> Result<Whose, Failure> {
    let found = match kind {
        QuotaKind::User => Account::User.id(text),
        QuotaKind::Group => Account::Group.id(text),
        QuotaKind::Project => text.parse().map_err(|_| "write its number, 1 to 4294967294".into()),
    };
    let id = found.map_err(|why| Failure::usage(format!("{verb}: {} '{text}': {why}", kind.name())))?;
    if id == EVERYBODY {
        let (kind, letter) = (kind.name(), kind.name().as_bytes()[0].to_ascii_uppercase() as char);
        return Err(Failure::usage(format!(
            "{verb}: {kind} '{text}' is nobody: write a number to 4294967294, or -{letter} for the default of all {kind}s"
        )));
    }
    if kind == QuotaKind::Project && id == 0 {
        return Err(Failure::usage(format!(
            "{verb}: project '0' is that of files without a project: write another number"
        )));
    }
    Ok(Whose { kind, id })
}

/// The one path of a command.
fn path_of<'a>(verb: &str, parsed: &'a Parsed) -> Result<&'a Path, Failure> {
    match &parsed.operands[..] {
        [path] => Ok(Path::new(path)),
        [] => Err(usage(verb, "name a path on the file system's mount")),
        [_, other, ..] => Err(usage(verb, &format!("'{}' is one path too many", other.to_string_lossy()))),
    }
}

fn ask(verb: &str, connection: u32, question: &Value) -> Result<Value, Failure> {
    control::ask(connection, question).map_err(|e| Failure::with_errno(format!("{verb}: {e}"), i32::from(e.code())))
}

/// The kind that `-u`, `-g` or `-p` without a value names, for `-t`; it may be one of a group of letters.
fn kind_alone(verb: &str, parsed: &Parsed) -> Result<QuotaKind, Failure> {
    let mut kinds = parsed.options.iter().filter_map(|(letter, _)| kind_of(*letter));
    match (kinds.next(), kinds.next()) {
        (Some(kind), None) => Ok(kind),
        _ => Err(usage(verb, "with -t name one of -u, -g, -p")),
    }
}

/// `quota`.
///
/// # Errors
/// What is wrong with the arguments, or why the metadata server refuses.
pub fn quota(arguments: &[OsString]) -> Outcome {
    let verb = "quota";
    let long = &[
        ("help", 'H'),
        ("verbose", 'v'),
        ("quiet", 'q'),
        ("human-readable", 'h'),
        ("grace", 't'),
        ("default-usr", 'U'),
        ("default-grp", 'G'),
        ("default-prj", 'P'),
    ];
    let of_kinds = arguments.iter().any(is_grace);
    let short = if of_kinds { "qhvtugp" } else { "qhvtu:g:p:UGP" };
    let parsed = Grammar { verb, short, long, absent: &[ABSENT] }.read(arguments)?;
    if parsed.has('H') {
        say!("{USAGE}");
        return Ok(());
    }
    let path = path_of(verb, &parsed)?;
    if parsed.has('t') {
        return show_grace(verb, kind_alone(verb, &parsed)?, path);
    }
    let (connection, mount) = super::connection_at(path)?;
    let mut all = Vec::new();
    for (letter, value) in &parsed.options {
        all.extend(named(verb, *letter, value.as_deref()).transpose()?);
    }
    if all.is_empty() {
        // SAFETY: plain system calls without arguments.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        all = vec![Whose { kind: QuotaKind::User, id: uid }, Whose { kind: QuotaKind::Group, id: gid }];
    }
    let form = Form { human: parsed.has('h'), heading: !parsed.has('q'), targets: parsed.has('v') };
    for of in all {
        let answer = ask(verb, connection, &json!({"do": "quota", "kind": of.kind as u8, "id": of.id}))?;
        say!("{}", form.table(of, &mount, &answer).trim_end());
    }
    Ok(())
}

/// Whether an argument has `-t` among its letters.
fn is_grace(argument: &OsString) -> bool {
    let text = argument.to_string_lossy();
    text == "--grace"
        || text.starts_with('-')
            && !text.starts_with("--")
            && text[1..].chars().all(|c| "tugpqhv".contains(c))
            && text.contains('t')
}

fn show_grace(verb: &str, kind: QuotaKind, path: &Path) -> Outcome {
    let (connection, _) = super::connection_at(path)?;
    // Any id will do: the times are the kind's.
    // SAFETY: plain system call without arguments.
    let own = unsafe { libc::getuid() };
    let answer = ask(verb, connection, &json!({"do": "quota", "kind": kind as u8, "id": own}))?;
    let seconds = |key: &str| time_text(answer[key].as_u64().unwrap_or(0));
    say!("Block grace time: {}; Inode grace time: {}", seconds("block_grace_s"), seconds("inode_grace_s"));
    Ok(())
}

/// How amounts are shown.
struct Form {
    human: bool,
    heading: bool,
    targets: bool,
}

impl Form {
    fn bytes(&self, bytes: u64) -> String {
        if self.human { format_size(bytes) } else { bytes.div_ceil(1024).to_string() }
    }
    fn row(&self, out: &mut String, name: &str, columns: &[String]) {
        // A long name has a line of its own.
        if name.len() > 15 {
            let _ = write!(out, "{name}\n{:15}", "");
        } else {
            let _ = write!(out, "{name:>15}");
        }
        for column in columns {
            let _ = write!(out, " {column:>9}");
        }
        out.push('\n');
    }

    fn table(&self, of: Whose, mount: &Path, answer: &Value) -> String {
        let number = |key: &str| answer[key].as_u64().unwrap_or(0);
        let mut out = String::new();
        if of.id == EVERYBODY {
            self.defaults(&mut out, of.kind, mount, answer);
            return out;
        }
        if self.heading {
            let (word, name) = match of.kind {
                QuotaKind::User => ("usr", format!("{} (uid {})", Account::User.name(of.id), of.id)),
                QuotaKind::Group => ("grp", format!("{} (gid {})", Account::Group.name(of.id), of.id)),
                QuotaKind::Project => ("prj", format!("{0} (pid {0})", of.id)),
            };
            let _ = writeln!(out, "Disk quotas for {word} {name}:");
            let heads = ["kbytes", "bquota", "blimit", "bgrace", "files", "iquota", "ilimit", "igrace"];
            self.row(&mut out, "Filesystem", &heads.map(String::from));
        }
        let osts = answer["osts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let used: u64 = osts.iter().filter_map(|o| o["used"].as_u64()).sum();
        let (soft, hard) = (number("block_soft"), number("block_hard"));
        let (inodes, isoft, ihard) = (number("inodes"), number("inode_soft"), number("inode_hard"));
        let columns = [
            format!("{}{}", self.bytes(used), star(used, soft, hard)),
            self.bytes(soft),
            self.bytes(hard),
            grace(answer, "block_expires_ns"),
            format!("{inodes}{}", star(inodes, isoft, ihard)),
            isoft.to_string(),
            ihard.to_string(),
            grace(answer, "inode_expires_ns"),
        ];
        self.row(&mut out, &mount.display().to_string(), &columns);
        if self.targets {
            self.each_target(&mut out, answer, osts);
        }
        let by_default =
            |part: u32, limits: u64| self.heading && limits > 0 && number("by_default") & u64::from(part) != 0;
        for (part, limits, what) in
            [(QuotaParts::BLOCKS, soft | hard, "block"), (QuotaParts::INODES, isoft | ihard, "file")]
        {
            if by_default(part, limits) {
                let letter = of.kind.name().as_bytes()[0] as char;
                let _ = writeln!(out, "{letter}id {} is using default {what} quota setting", of.id);
            }
        }
        for o in osts.iter().filter(|o| o["away"] == true) {
            let _ =
                writeln!(out, "{} does not answer: what it said last is counted", o["target"].as_str().unwrap_or("?"));
        }
        for o in osts.iter().filter(|o| o["counting"] == true) {
            let name = o["target"].as_str().unwrap_or("?");
            let _ =
                writeln!(out, "{name} does not know yet whose all its objects are: some bytes count for nobody so far");
        }
        out
    }

    /// The limits of all of a kind that have none of their own.
    fn defaults(&self, out: &mut String, kind: QuotaKind, mount: &Path, answer: &Value) {
        let number = |key: &str| answer[key].as_u64().unwrap_or(0);
        if self.heading {
            let word = match kind {
                QuotaKind::User => "usr",
                QuotaKind::Group => "grp",
                QuotaKind::Project => "prj",
            };
            let _ = writeln!(out, "Disk default {word} quota:");
            let heads = ["bquota", "blimit", "bgrace", "iquota", "ilimit", "igrace"];
            self.row(out, "Filesystem", &heads.map(String::from));
        }
        let columns = [
            self.bytes(number("block_soft")),
            self.bytes(number("block_hard")),
            time_text(number("block_grace_s")),
            number("inode_soft").to_string(),
            number("inode_hard").to_string(),
            time_text(number("inode_grace_s")),
        ];
        self.row(out, &mount.display().to_string(), &columns);
    }

    fn each_target(&self, out: &mut String, answer: &Value, osts: &[Value]) {
        let none = || "-".to_string();
        let inodes = answer["inodes"].as_u64().unwrap_or(0).to_string();
        let mdt = answer["mdt"].as_str().unwrap_or("?");
        let row = [none(), none(), none(), none(), inodes, none(), none(), none()];
        self.row(out, &format!("{mdt}_UUID"), &row);
        for o in osts {
            let used = self.bytes(o["used"].as_u64().unwrap_or(0));
            let share = o["share"].as_u64().filter(|s| *s != UNLIMITED).map_or_else(none, |s| self.bytes(s));
            let row = [used, none(), share, none(), none(), none(), none(), none()];
            self.row(out, &format!("{}_UUID", o["target"].as_str().unwrap_or("?")), &row);
        }
    }
}

/// Marks what is above a limit.
fn star(amount: u64, soft: u64, hard: u64) -> &'static str {
    if soft > 0 && amount > soft || hard > 0 && amount >= hard { "*" } else { "" }
}

fn grace(answer: &Value, key: &str) -> String {
    let (expires, now) = (answer[key].as_i64().unwrap_or(0), answer["now_ns"].as_i64().unwrap_or(0));
    match expires {
        0 => "-".into(),
        at if at <= now => "none".into(),
        at => time_text((at - now).unsigned_abs().div_ceil(1_000_000_000)),
    }
}

const UNITS: [(char, u64); 5] = [('w', 604_800), ('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];

/// Seconds as `1w2d3h`.
fn time_text(mut seconds: u64) -> String {
    let mut text = String::new();
    for (unit, length) in UNITS {
        if seconds >= length {
            let _ = write!(text, "{}{unit}", seconds / length);
            seconds %= length;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

fn parse_time(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is no time of grace: write seconds, or numbers with w, d, h, m, s, like 1w2d");
    let (mut total, mut digits) = (0u64, String::new());
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let (_, length) = UNITS.iter().find(|(unit, _)| *unit == c).ok_or_else(bad)?;
        let number: u64 = digits.parse().map_err(|_| bad())?;
        total = number.checked_mul(*length).and_then(|n| n.checked_add(total)).ok_or_else(bad)?;
        digits.clear();
    }
    if digits.is_empty() {
        return if text.is_empty() { Err(bad()) } else { Ok(total) };
    }
    let most = || format!("'{text}' is too long a time of grace: {} s at most", u32::MAX);
    let rest: u64 = digits.parse().map_err(|_| most())?;
    total.checked_add(rest).filter(|s| *s <= u64::from(u32::MAX)).ok_or_else(most)
}

/// A limit of space: bytes.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let bytes =
        if text.bytes().all(|b| b.is_ascii_digit()) { parse_size(&format!("{text}K")) } else { parse_size(text) };
    let bytes = bytes.map_err(|_| {
        format!("'{text}' is no limit of space: write a number of KiB, or one with a suffix k, M, G, T, P or E, at most 8E; 0: none")
    })?;
    if bytes > BYTES_MAX { Err(format!("'{text}' is too much: a limit of space is below 8E")) } else { Ok(bytes) }
}

/// A limit of inodes.
fn parse_inodes(text: &str) -> Result<u64, String> {
    let bad = || {
        format!(
            "'{text}' is no limit of inodes: write a number from 0 (none) to 4611686018427387904, perhaps with k, M, G or T"
        )
    };
    parse_size(text).map_err(|_| bad()).and_then(|n| if n <= 1 << 62 { Ok(n) } else { Err(bad()) })
}

/// `setquota`.
///
/// # Errors
/// What is wrong with the arguments, or why the metadata server refuses.
pub fn setquota(arguments: &[OsString]) -> Outcome {
    let verb = "setquota";
    let long = &[
        ("help", 'H'),
        ("block-softlimit", 'b'),
        ("block-hardlimit", 'B'),
        ("inode-softlimit", 'i'),
        ("inode-hardlimit", 'I'),
        ("block-grace", 'b'),
        ("inode-grace", 'i'),
        ("grace", 't'),
        ("default-usr", 'U'),
        ("default-grp", 'G'),
        ("default-prj", 'P'),
        ("default", 'd'),
    ];
    let of_kinds = arguments.iter().any(is_grace);
    let short = if of_kinds { "htugpb:i:" } else { "htu:g:p:UGPb:B:i:I:d" };
    let parsed = Grammar { verb, short, long, absent: &[ABSENT] }.read(arguments)?;
    if parsed.has('h') || parsed.has('H') {
        say!("{USAGE}");
        return Ok(());
    }
    let path = path_of(verb, &parsed)?;
    if parsed.has('t') {
        return set_grace(verb, &parsed, path);
    }
    let mut all = Vec::new();
    let mut set = Map::new();
    for (letter, value) in &parsed.options {
        let text = value.as_deref().unwrap_or_default();
        let wrong = |why: String| Failure::usage(format!("{verb}: -{letter}: {why}"));
        match letter {
            'b' => drop(set.insert("block_soft".into(), parse_bytes(text).map_err(wrong)?.into())),
            'B' => drop(set.insert("block_hard".into(), parse_bytes(text).map_err(wrong)?.into())),
            'i' => drop(set.insert("inode_soft".into(), parse_inodes(text).map_err(wrong)?.into())),
            'I' => drop(set.insert("inode_hard".into(), parse_inodes(text).map_err(wrong)?.into())),
            letter => all.extend(named(verb, *letter, Some(text))),
        }
    }
    let of = match all.len() {
        1 => all.remove(0)?,
        _ => return Err(usage(verb, "name one user (-u), group (-g) or project (-p), or one default (-U, -G, -P)")),
    };
    let to_default = parsed.has('d');
    match (to_default, set.is_empty()) {
        (true, _) if of.id == EVERYBODY => {
            return Err(usage(verb, "-d puts one user (-u), group (-g) or project (-p) back to the default: name it"));
        }
        (true, false) => return Err(usage(verb, "with -d the default's limits hold: leave out -b, -B, -i, -I")),
        (false, true) => return Err(usage(verb, "say which limits are to be: -b, -B, -i, -I, or -d: the default's")),
        _ => {}
    }
    let (connection, _) = super::connection_at(path)?;
    let (kind, id) = (of.kind as u8, of.id);
    let question = json!({"do": "set_quota", "kind": kind, "id": id, "set": set, "to_default": to_default});
    ask(verb, connection, &question)?;
    let now = ask(verb, connection, &json!({"do": "quota", "kind": kind, "id": id}))?;
    if (to_default || id == EVERYBODY) && now["by_default"] != json!(QuotaParts::ALL) {
        return Err(Failure::with_errno(format!("{verb}: {OLD_SERVER}"), libc::ENOTSUP));
    }
    tell_if_above(of, &now);
    Ok(())
}

/// Limits below what is there are allowed, and hold from now on; whoever sets them may not have meant that.
fn tell_if_above(of: Whose, now: &Value) {
    let number = |key: &str| now[key].as_u64().unwrap_or(0);
    let osts = now["osts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let used: u64 = osts.iter().filter_map(|o| o["used"].as_u64()).sum();
    let who = format!("{} {}", of.kind.name(), of.id);
    if number("block_hard") > 0 && used > number("block_hard") {
        let (has, limit) = (used.div_ceil(1024), number("block_hard") / 1024);
        eprintln!(
            "stria: setquota: {who} has {has} KiB already, above the limit of {limit} KiB: it cannot write more until it has removed some"
        );
    }
    if number("inode_hard") > 0 && number("inodes") > number("inode_hard") {
        let (has, limit) = (number("inodes"), number("inode_hard"));
        eprintln!(
            "stria: setquota: {who} has {has} inodes already, above the limit of {limit}: it cannot make more until it has removed some"
        );
    }
}

fn set_grace(verb: &str, parsed: &Parsed, path: &Path) -> Outcome {
    let kind = kind_alone(verb, parsed)?;
    let mut set = Map::new();
    for (letter, key) in [('b', "block_grace_s"), ('i', "inode_grace_s")] {
        if let Some(text) = parsed.value(letter) {
            let seconds = parse_time(text).map_err(|why| Failure::usage(format!("{verb}: -{letter}: {why}")))?;
            set.insert(key.into(), seconds.into());
        }
    }
    if set.is_empty() {
        return Err(usage(verb, "say which times are to be: -b, -i"));
    }
    let (connection, _) = super::connection_at(path)?;
    ask(verb, connection, &json!({"do": "set_quota", "kind": kind as u8, "id": 0, "set": set})).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_times_are_read_and_what_is_none_is_named() {
        assert_eq!((parse_bytes("0"), parse_bytes("10"), parse_bytes("6T")), (Ok(0), Ok(10 << 10), Ok(6 << 40)));
        assert_eq!((parse_inodes("0"), parse_inodes("10"), parse_inodes("2k")), (Ok(0), Ok(10), Ok(2048)));
        for text in ["-1", "x", "", "10x", "9E", "16E", "99999999999999999999", "18446744073709551615"] {
            assert!(parse_bytes(text).unwrap_err().contains(&format!("'{text}'")), "{text}");
        }
        for text in ["-5", "many", "", "99999999999999999999"] {
            assert!(parse_inodes(text).unwrap_err().contains(&format!("'{text}'")), "{text}");
        }
        assert_eq!((parse_time("1w2d"), parse_time("90"), parse_time("0")), (Ok(604_800 + 172_800), Ok(90), Ok(0)));
        for text in ["", "-1", "1y", "d", "99999999999999999999w"] {
            assert!(parse_time(text).unwrap_err().contains(&format!("'{text}'")), "{text}");
        }
        assert_eq!((time_text(604_800 + 61), time_text(0)), ("1w1m1s".into(), "0s".into()));
    }

    #[test]
    fn wrong_arguments_are_refused_before_anybody_is_asked() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let set = |w: &[&str]| setquota(&words(w)).unwrap_err().to_string();
        for (given, why) in [
            (&["-u", "0", "-b", "1"][..], "name a path"),
            (&["-u", "0", "/m"], "which limits"),
            (&["-b", "1", "/m"], "name one user"),
            (&["-u", "0", "-g", "0", "-b", "1", "/m"], "name one user"),
            (&["-u", "no such user", "-b", "1", "/m"], "user 'no such user': nobody has this name"),
            (&["-u", "99999999999", "-b", "1", "/m"], "numbers go from 0 to 4294967294"),
            (&["-p", "x", "-b", "1", "/m"], "project 'x': write its number"),
            (&["-p", "0", "-b", "1", "/m"], "without a project"),
            (&["-u", "0", "-b", "-1", "/m"], "'-1' is no limit of space"),
            (&["-u", "0", "-B", "9E", "/m"], "'9E' is too much"),
            (&["-u", "0", "-I", "1z", "/m"], "'1z' is no limit of inodes"),
            (&["-u", "0", "-I", "0.5", "/m"], "'0.5' is no limit of inodes"),
            (&["-u", "0", "-B", "0.0001k", "/m"], "'0.0001k' is no limit of space"),
            (
                &["-u", "4294967295", "-b", "1", "/m"],
                "user '4294967295' is nobody: write a number to 4294967294, or -U",
            ),
            (&["-U", "-u", "0", "-b", "1", "/m"], "name one user"),
            (&["-U", "/m"], "which limits"),
            (&["-U", "-B", "9E", "/m"], "'9E' is too much"),
            (&["-G", "-d", "/m"], "name it"),
            (&["-u", "0", "-d", "-b", "1", "/m"], "leave out -b"),
            (&["-u", "0", "-d", "/"], "not on a Stria mount"),
            (&["--pool", "x", "-u", "0", "-b", "1", "/m"], "quotas of pools"),
            (&["-t", "-b", "1w", "/m"], "one of -u, -g, -p"),
            (&["-t", "-u", "-b", "1y", "/m"], "'1y' is no time"),
            (&["-u", "0", "-b", "1", "/", "/m"], "'/m' is one path too many"),
            (&["-u", "0", "-b", "1", "/"], "not on a Stria mount"),
        ] {
            let said = set(given);
            assert!(said.contains(why), "{given:?}: {said}");
        }
        let said = quota(&words(&["-u", "no such user", "/"])).unwrap_err().to_string();
        assert!(said.contains("not on a Stria mount"), "{said}");
    }

    #[test]
    fn a_table_marks_what_is_above_and_says_who_is_away() {
        let answer = json!({
            "block_soft": 1 << 20, "block_hard": 2 << 20, "inode_soft": 0, "inode_hard": 10, "inodes": 10,
            "block_expires_ns": 61_000_000_000_i64, "inode_expires_ns": 0, "now_ns": 1_000_000_000_i64, "mdt": "fs-MDT0000",
            "osts": [
                {"target": "fs-OST0000", "used": 1 << 20, "share": 1 << 20, "away": false, "counting": false},
                {"target": "fs-OST0001", "used": 4096, "share": u64::MAX, "away": true, "counting": true},
            ],
        });
        let of = Whose { kind: QuotaKind::Project, id: 7 };
        let form = Form { human: false, heading: true, targets: true };
        let table = form.table(of, Path::new("/m"), &answer);
        let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0].join(" "), "Disk quotas for prj 7 (pid 7):");
        assert_eq!(lines[1].join(" "), "Filesystem kbytes bquota blimit bgrace files iquota ilimit igrace");
        assert_eq!(lines[2].join(" "), "/m 1028* 1024 2048 1m 10* 0 10 -");
        assert_eq!(lines[3].join(" "), "fs-MDT0000_UUID - - - - 10 - - -", "{table}");
        assert_eq!(lines[4].join(" "), "fs-OST0000_UUID 1024 - 1024 - - - - -", "{table}");
        assert!(table.contains("fs-OST0001 does not answer") && table.contains("does not know yet"), "{table}");
    }

    #[test]
    fn limits_that_are_the_defaults_are_said_to_be_and_the_default_has_a_table_of_its_own() {
        let mut answer = json!({
            "block_soft": 0, "block_hard": 2 << 20, "inode_soft": 0, "inode_hard": 10, "inodes": 3, "by_default": 2,
            "block_grace_s": 604_800, "inode_grace_s": 60, "osts": [],
        });
        let form = Form { human: false, heading: true, targets: true };
        let said = |form: &Form, id: u32, answer: &Value| {
            form.table(Whose { kind: QuotaKind::Group, id }, Path::new("/m"), answer)
        };
        let table = said(&form, 7, &answer);
        assert!(
            table.contains("gid 7 is using default file quota setting") && !table.contains("block quota"),
            "{table}"
        );
        answer["by_default"] = json!(3);
        let lines: Vec<String> = said(&form, 7, &answer).lines().skip(4).map(String::from).collect();
        let wanted = ["gid 7 is using default block quota setting", "gid 7 is using default file quota setting"];
        assert_eq!(lines, wanted);
        let quiet = Form { heading: false, ..form };
        assert_eq!(said(&quiet, 7, &answer).lines().count(), 2, "the row of the mount and that of the target");
        let table = said(&Form { heading: true, ..quiet }, EVERYBODY, &answer);
        let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0].join(" "), "Disk default grp quota:");
        assert_eq!(lines[1].join(" "), "Filesystem bquota blimit bgrace iquota ilimit igrace");
        assert_eq!(lines[2].join(" "), "/m 0 2048 1w 0 10 1m");
    }
}
