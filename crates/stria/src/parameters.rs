//! `get_param`, `set_param`, `list_param`: the parameter tree of a mount and its servers.
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use types::glob::Glob;

use crate::control;
use crate::failure::{Failure, Outcome};
use crate::lfs::getopt::{Grammar, Parsed};

const USAGE_GET: &str = "usage: get_param [-n | -N] [-F] [-R] [-H] [-y] [--at PATH] PATTERN... | get_param -P
  -n  values only     -N  names only    -F  '=' behind what can be set, '/' behind branches   -R  what is below, too
  -H  the name before every line of a value          -y  as YAML";
const USAGE_SET: &str = "usage: set_param [-n] [-P] [-t[N]] [--at PATH] PATTERN=VALUE... | set_param -P -d PATTERN... | set_param [-P] -F FILE
  (PATTERN VALUE is fine too)   -P  for good: kept by the metadata server, also for servers and clients to come
  -P -d  forget what was set for good; values stay as they are until a restart
  -F  settings from a file, one a line, or YAML with 'parameter:' and 'value:'       -t  so many at a time (8)";
const USAGE_LIST: &str = "usage: list_param [-F] [-R] [-D] [-r] [-w] [-t] [--at PATH] PATTERN... | list_param -R
  -F  '=' behind what can be set, '/' behind branches   -R  what is below, too
  -D  only branches   -w  only what can be set   -t  only settings: no statistics, no actions";

/// Options of all three verbs.
#[derive(Default, Debug, PartialEq)]
struct Options {
    values_only: bool,
    names_only: bool,
    mark_writable: bool,
    recursive: bool,
    permanent: bool,
    delete: bool,
    headers: bool,
    yaml: bool,
    branches_only: bool,
    writable_only: bool,
    settings_only: bool,
    file: Option<PathBuf>,
    threads: usize,
    at: Option<PathBuf>,
    operands: Vec<String>,
}

const LONG: &[(&str, char)] = &[
    ("no-name", 'n'),
    ("only-name", 'N'),
    ("classify", 'F'),
    ("recursive", 'R'),
    ("permanent", 'P'),
    ("delete", 'd'),
    ("header", 'H'),
    ("yaml", 'y'),
    ("file", 'F'),
    ("thread", 't'),
    ("threads", 't'),
    ("tunable", 't'),
    ("dir-only", 'D'),
    ("readable", 'r'),
    ("writable", 'w'),
    ("links", 'l'),
    ("no-links", 'L'),
    ("at", 'A'),
    ("help", 'h'),
];

/// There are no symbolic links in the tree: `-l` and `-L` change nothing.
const GET: Grammar = Grammar { verb: "get_param", short: "nNFRPHylLA:h", long: LONG, absent: &[] };
const SET: Grammar = Grammar { verb: "set_param", short: "nPdF:t::A:h", long: LONG, absent: &[] };
const LIST: Grammar = Grammar { verb: "list_param", short: "FRDrwtlLA:h", long: LONG, absent: &[] };

/// Settings made at a time by `-t` without a number.
const THREADS: usize = 8;

fn read(grammar: &Grammar, arguments: &[OsString], usage: &str) -> Result<Option<Options>, Failure> {
    let mut arguments = arguments.to_vec();
    // The mount may be named behind everything.
    let at = match arguments.iter().position(|a| a == "--at") {
        Some(i) if i + 1 < arguments.len() => arguments.drain(i..i + 2).nth(1),
        _ => None,
    };
    let (head, tail) = arguments.split_at(options_end(grammar, &arguments));
    let mut parsed = grammar.read(head)?;
    parsed.operands.extend(tail.iter().cloned());
    if parsed.has('h') {
        say!("{usage}\n  patterns have * ? [abc] {{one,two}}; --at says which mount when there are several");
        return Ok(None);
    }
    let set = grammar.verb == SET.verb;
    let o = Options {
        values_only: parsed.has('n'),
        names_only: parsed.has('N'),
        mark_writable: !set && parsed.has('F'),
        recursive: parsed.has('R'),
        permanent: parsed.has('P'),
        delete: parsed.has('d'),
        headers: parsed.has('H'),
        yaml: parsed.has('y'),
        branches_only: parsed.has('D'),
        writable_only: parsed.has('w'),
        settings_only: !set && parsed.has('t'),
        file: if set { parsed.value('F').map(PathBuf::from) } else { None },
        threads: threads(&parsed, set)?,
        at: at.map(PathBuf::from).or_else(|| parsed.value('A').map(PathBuf::from)),
        operands: parsed.operands.iter().map(|o| o.to_string_lossy().into_owned()).collect(),
    };
    if o.delete && !o.permanent {
        return Err(Failure::usage("-d forgets permanent settings: write -P -d"));
    }
    if o.file.is_some() && (o.delete || !o.operands.is_empty()) {
        return Err(Failure::usage("-F takes every setting from the file: leave the others out"));
    }
    let all =
        o.file.is_some() || (o.permanent && grammar.verb == GET.verb) || (o.recursive && grammar.verb == LIST.verb);
    if o.operands.is_empty() && !all {
        return Err(Failure::usage(usage));
    }
    Ok(Some(o))
}

/// Where the operands begin: values among them may begin with a dash.
fn options_end(grammar: &Grammar, arguments: &[OsString]) -> usize {
    let mut at = 0;
    while let Some(text) = arguments.get(at).map(|a| a.to_string_lossy()) {
        let takes_next = grammar.verb == SET.verb && matches!(&*text, "-F" | "--file");
        at += match text.starts_with('-') && text.len() > 1 {
            true if takes_next => 2,
            true => 1,
            false => return at,
        };
    }
    arguments.len()
}

fn threads(parsed: &Parsed, set: bool) -> Result<usize, Failure> {
    match parsed.value('t') {
        Some(text) => text
            .parse()
            .ok()
            .filter(|n| (1..=256).contains(n))
            .ok_or_else(|| Failure::usage(format!("set_param: -t{text}: write how many at a time, 1 to 256"))),
        None if set && parsed.has('t') => Ok(THREADS),
        None => Ok(1),
    }
}

/// The mount that is meant: by `--at`, else the one we are in, else the only one.
fn connection(at: Option<&Path>) -> Result<u32, Failure> {
    if let Some(path) = at {
        return crate::lfs::connection_of(path).map(|c| c.0);
    }
    if let Ok((here, _)) = crate::lfs::connection_of(Path::new(".")) {
        return Ok(here);
    }
    match &crate::lfs::mounts()?[..] {
        [only] => Ok(only.minor),
        several => {
            let list = several.iter().map(|m| m.at.display().to_string()).collect::<Vec<_>>().join(", ");
            Err(Failure::usage(format!("several mounts are here ({list}): say which with --at PATH")))
        }
    }
}

/// The verb `get_param`.
///
/// # Errors
/// Nothing matches, or nobody answers.
pub fn get(arguments: &[OsString]) -> Outcome {
    let Some(o) = read(&GET, arguments, USAGE_GET)? else { return Ok(()) };
    let connection = connection(o.at.as_deref())?;
    if o.permanent {
        crate::out::print(format_args!("{}", show(&control::ask(connection, &json!({"do": "kept_params"}))?, &o)));
        return Ok(());
    }
    for pattern in &o.operands {
        let answer = control::ask(connection, &json!({"do": "get_param", "pattern": pattern}))?;
        tell_silent(&answer);
        let text = show(&answer, &o);
        if text.is_empty() {
            return Err(Failure::usage(format!("'{pattern}' is a branch: add '.*', or use list_param -R {pattern}")));
        }
        crate::out::print(format_args!("{text}"));
    }
    Ok(())
}

/// Says which servers are left out because they did not answer.
fn tell_silent(answer: &Value) {
    let silent = answer["silent"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for target in silent {
        // Where errors cannot be written, the parameters are still worth something.
        let _ = writeln!(
            std::io::stderr(),
            "stria: {target} does not answer: its parameters are left out ('stria status' says more)"
        );
    }
}

fn show(answer: &Value, o: &Options) -> String {
    let mut out = String::new();
    for p in answer["params"].as_array().map(Vec::as_slice).unwrap_or_default() {
        if p["whole"] != true && !o.recursive {
            continue;
        }
        let (name, value) = (p["name"].as_str().unwrap_or_default(), p["value"].as_str().unwrap_or_default());
        let mark = if o.mark_writable && p["writable"] == true { "=" } else { "" };
        let (lines, value) = (value.trim_end().contains('\n'), value.trim_end());
        out += &match (o.names_only, o.values_only, lines) {
            (true, ..) => format!("{name}{mark}\n"),
            _ if o.yaml => yaml(name, value, o.values_only),
            _ if o.headers && value.is_empty() => format!("{name}=\n"),
            _ if o.headers => value.lines().map(|l| format!("{name}={l}\n")).collect(),
            (_, true, _) => format!("{value}\n"),
            (.., true) => format!("{name}=\n{value}\n"),
            _ => format!("{name}={value}\n"),
        };
    }
    out
}

/// A parameter as YAML: a value that is YAML itself (job_stats) stands as it is, other lines as a literal block.
fn yaml(name: &str, value: &str, without_name: bool) -> String {
    let mapping = value.starts_with(|c: char| c.is_ascii_alphabetic())
        && value.lines().next().is_some_and(|l| l.ends_with(':') || l.contains(": "));
    let nested = value.contains('\n');
    let indented = |by: &str| value.lines().map(|l| format!("{by}{l}\n")).collect::<String>();
    match (without_name, nested) {
        (true, true) if mapping => format!("{value}\n"),
        (true, true) => format!("|\n{}", indented("  ")),
        (true, false) => format!("{}\n", scalar(value)),
        (false, true) if mapping => format!("{name}:\n{}", indented("  ")),
        (false, true) => format!("{name}: |\n{}", indented("  ")),
        (false, false) => format!("{name}: {}\n", scalar(value)),
    }
}

/// A plain scalar, in quotes where it would be read as something else.
fn scalar(value: &str) -> String {
    let plain = !value.is_empty()
        && value.chars().all(|c| c.is_ascii_alphanumeric() || " _-./+".contains(c))
        && value.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/');
    if plain { value.to_string() } else { json!(value).to_string() }
}

/// The verb `list_param`.
///
/// # Errors
/// Nothing matches, or nobody answers.
pub fn list(arguments: &[OsString]) -> Outcome {
    let Some(o) = read(&LIST, arguments, USAGE_LIST)? else { return Ok(()) };
    let connection = connection(o.at.as_deref())?;
    let patterns = if o.operands.is_empty() { vec!["*".to_string()] } else { o.operands.clone() };
    for pattern in &patterns {
        let answer = control::ask(connection, &json!({"do": "get_param", "pattern": pattern}))?;
        tell_silent(&answer);
        for name in names(&answer, pattern, &o) {
            say!("{name}");
        }
    }
    Ok(())
}

/// Parts of names that `-t` leaves out: statistics and actions.
const NO_SETTINGS: [&str; 7] = ["stats", "import", "evict_client", "record", "lost_files", "lost_changes", "force"];

/// Names at the pattern's depth; with `-R` every branch and parameter below, too.
fn names(answer: &Value, pattern: &str, o: &Options) -> BTreeSet<String> {
    let params = answer["params"].as_array().map(Vec::as_slice).unwrap_or_default();
    let glob = Glob::new(pattern);
    let mut found = BTreeSet::new();
    for p in params {
        let Some(name) = p["name"].as_str() else { continue };
        let Some(shown) = glob.matches_prefix(name) else { continue };
        let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
        for end in ends.filter(|end| *end == shown.len() || (o.recursive && *end > shown.len())) {
            let (branch, writable) = (end < name.len(), p["writable"] == true);
            let setting = !branch && !NO_SETTINGS.iter().any(|n| name[..end].contains(n));
            let left_out = (o.branches_only && !branch)
                || (o.writable_only && (branch || !writable))
                || (o.settings_only && !setting);
            if left_out {
                continue;
            }
            let mark = match (o.mark_writable, branch, writable) {
                (true, true, _) => "/",
                (true, false, true) => "=",
                _ => "",
            };
            found.insert(format!("{}{mark}", &name[..end]));
        }
    }
    found
}

/// The verb `set_param`.
///
/// # Errors
/// Nothing matches, a value is refused, or nobody answers.
pub fn set(arguments: &[OsString]) -> Outcome {
    let Some(o) = read(&SET, arguments, USAGE_SET)? else { return Ok(()) };
    if o.delete {
        let connection = connection(o.at.as_deref())?;
        for pattern in o.operands.iter().map(|p| p.split_once('=').map_or(p.as_str(), |(p, _)| p)) {
            control::ask(connection, &json!({"do": "keep_param", "pattern": pattern}))?;
        }
        return Ok(());
    }
    let pairs = match &o.file {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| Failure::io("set_param: reading", path, &e))?;
            from_file(&text).map_err(|e| Failure::usage(format!("set_param: {}: {e}", path.display())))?
        }
        None => assignments(&o.operands)?,
    };
    let connection = connection(o.at.as_deref())?;
    let next = std::sync::Mutex::new(pairs.iter());
    let failed = std::sync::Mutex::new(None);
    // Settings that do not depend on each other go side by side; the first refusal ends all of them.
    let work = || {
        loop {
            let pair = next.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
            let Some((pattern, value)) = pair else { return };
            if let Err(e) = set_one(connection, pattern, value, &o) {
                next.lock().unwrap_or_else(std::sync::PoisonError::into_inner).by_ref().for_each(drop);
                failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(e);
            }
        }
    };
    std::thread::scope(|s| {
        for _ in 1..o.threads.min(pairs.len()) {
            s.spawn(work);
        }
        work();
    });
    failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
}

fn set_one(connection: u32, pattern: &str, value: &str, o: &Options) -> Outcome {
    let answer = control::ask(connection, &json!({"do": "set_param", "pattern": pattern, "value": value}))?;
    if o.permanent {
        control::ask(connection, &json!({"do": "keep_param", "pattern": pattern, "value": value}))?;
    }
    for name in answer["set"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let name = name.as_str().unwrap_or_default();
        if o.values_only {
            say!("{value}");
        } else {
            say!("{name}={value}");
        }
    }
    Ok(())
}

/// Settings of a file: `PATTERN=VALUE` lines, or records with `parameter:` (or `param:`) and `value:`. `#` begins a
/// comment.
fn from_file(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    let mut named: Option<String> = None;
    for (number, line) in text.lines().enumerate() {
        let at = number + 1;
        let line = line.trim().trim_start_matches("- ").trim();
        if line.is_empty() || line.starts_with('#') || line == "---" {
            continue;
        }
        // Records may stand in braces on one line.
        let inner = line.strip_prefix('{').and_then(|l| l.strip_suffix('}'));
        let fields: Vec<&str> = inner.map_or(vec![line], |l| l.split(", ").collect());
        for field in fields {
            let unquoted = |t: &str| t.trim().trim_matches(['"', '\'']).to_string();
            match field.trim().split_once(':') {
                Some(("parameter" | "param", name)) => named = Some(unquoted(name)),
                Some(("value", value)) => {
                    let name = named.take().ok_or(format!("line {at}: a value without its parameter"))?;
                    pairs.push((name, unquoted(value)));
                }
                _ if inner.is_some() => {}
                _ => match field.split_once('=') {
                    Some((name, value)) => pairs.push((name.trim().into(), value.trim().into())),
                    None if field.contains(':') => {}
                    None => return Err(format!("line {at}: '{field}': write PATTERN=VALUE")),
                },
            }
        }
    }
    match (named, pairs.is_empty()) {
        (Some(name), _) => Err(format!("'{name}' has no value")),
        (None, true) => Err("it holds no setting: write lines like osc.*.max_dirty_mb=64".into()),
        _ => Ok(pairs),
    }
}

fn assignments(operands: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let mut pairs = Vec::new();
    let mut rest = operands.iter();
    while let Some(operand) = rest.next() {
        pairs.push(match operand.split_once('=') {
            Some((p, v)) => (p.to_string(), v.to_string()),
            None => {
                let value =
                    rest.next().ok_or_else(|| Failure::usage(format!("'{operand}' has no value\n{USAGE_SET}")))?;
                (operand.clone(), value.clone())
            }
        });
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options_of(grammar: &Grammar, line: &str) -> Result<Options, String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        read(grammar, &arguments, "usage").map(Option::unwrap).map_err(|e| e.to_string())
    }
    fn options(line: &str) -> Result<Options, String> {
        options_of(&GET, line)
    }
    fn answer() -> Value {
        json!({"params": [
            {"name": "osc.a.stats", "value": "x 1\ny 2\n", "writable": false, "whole": true},
            {"name": "osc.a.max_dirty_mb", "value": "64", "writable": true, "whole": true},
            {"name": "osc.a.deep.er", "value": "1", "writable": false, "whole": false},
        ]})
    }

    #[test]
    fn values_are_printed_as_lctl_does() {
        let text = |line: &str| show(&answer(), &options(line).unwrap());
        assert_eq!(text("osc.*.*"), "osc.a.stats=\nx 1\ny 2\nosc.a.max_dirty_mb=64\n");
        assert_eq!(text("-n osc.*.*"), "x 1\ny 2\n64\n");
        assert_eq!(text("-NF osc.*.*"), "osc.a.stats\nosc.a.max_dirty_mb=\n");
        assert!(text("-R osc.*.*").ends_with("osc.a.deep.er=1\n"));
        assert_eq!(text("-H osc.*.*"), "osc.a.stats=x 1\nosc.a.stats=y 2\nosc.a.max_dirty_mb=64\n");
        assert_eq!(text("--yaml osc.*.*"), "osc.a.stats: |\n  x 1\n  y 2\nosc.a.max_dirty_mb: 64\n");
        assert_eq!(yaml("a", "job_stats:\n- job_id: x", false), "a:\n  job_stats:\n  - job_id: x\n");
        assert_eq!(yaml("a", "off: {x}", false), "a: \"off: {x}\"\n");
    }

    #[test]
    fn listings_stop_at_the_patterns_depth() {
        let text = |line: &str, pattern: &str| {
            names(&answer(), pattern, &options_of(&LIST, line).unwrap()).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(text("osc.*", "osc.*"), ["osc.a"]);
        assert_eq!(text("-F osc.*", "osc.*"), ["osc.a/"]);
        assert_eq!(text("-F osc.*.*", "osc.*.*"), ["osc.a.deep/", "osc.a.max_dirty_mb=", "osc.a.stats"]);
        let all = ["osc", "osc.a", "osc.a.deep", "osc.a.deep.er", "osc.a.max_dirty_mb", "osc.a.stats"];
        assert_eq!(text("-R osc", "osc"), all);
        assert_eq!(text("-R -D osc", "osc"), ["osc", "osc.a", "osc.a.deep"]);
        assert_eq!(text("-R -w osc", "osc"), ["osc.a.max_dirty_mb"]);
        assert_eq!(text("-Rt {osc,mdc}", "{osc,mdc}"), ["osc.a.deep.er", "osc.a.max_dirty_mb"]);
        assert!(options_of(&LIST, "-R").is_ok() && options_of(&LIST, "-F").is_err());
    }

    #[test]
    fn assignments_come_in_both_shapes() {
        let pairs =
            |line: &str| assignments(&line.split(' ').map(String::from).collect::<Vec<_>>()).map_err(|e| e.to_string());
        assert_eq!(pairs("a.b=1 c 2").unwrap(), [("a.b".into(), "1".into()), ("c".into(), "2".into())]);
        assert!(pairs("a.b").unwrap_err().contains("'a.b' has no value"));
        assert!(options("-x a").unwrap_err().contains("unknown option '-x'"));
        assert!(options("-n").unwrap_err().contains("usage"));
        // Values may begin with a dash; the mount may be named behind everything.
        let o = options_of(&SET, "-P a.b -5 --at /m").unwrap();
        assert!(o.permanent && o.operands == ["a.b", "-5"] && o.at == Some("/m".into()), "{o:?}");
        let o = options_of(&SET, "-t a.b=1 c.d=2").unwrap();
        assert!(o.threads == 8 && options_of(&SET, "-t3 a.b=1").unwrap().threads == 3, "{o:?}");
        assert!(options_of(&SET, "-t0 a.b=1").unwrap_err().contains("1 to 256"));
        assert!(options_of(&SET, "-F f a.b=1").unwrap_err().contains("leave the others out"));
    }

    #[test]
    fn settings_are_read_from_files_of_both_kinds() {
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        let plain = from_file("# kept\nosc.*.max_dirty_mb=64\n\nllite.*.x = 1\n").unwrap();
        assert_eq!(plain, [pair("osc.*.max_dirty_mb", "64"), pair("llite.*.x", "1")]);
        let records = "- { index: 2, event: set_param, device: general, parameter: osc.*.a, value: 1024 }\n\
            - parameter: \"osc.*.b\"\n  value: 'fast'\n";
        assert_eq!(from_file(records).unwrap(), [pair("osc.*.a", "1024"), pair("osc.*.b", "fast")]);
        for (text, why) in [
            ("", "no setting"),
            ("osc", "line 1: 'osc': write PATTERN=VALUE"),
            ("value: 1", "without its parameter"),
            ("param: a", "'a' has no value"),
        ] {
            assert!(from_file(text).unwrap_err().contains(why), "{text}");
        }
    }
}
