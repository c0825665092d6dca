//! `get_param`, `set_param`, `list_param`: the parameter tree of a mount and its servers.
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use types::glob::Glob;

use crate::control;
use crate::failure::{Failure, Outcome};

const USAGE_GET: &str = "usage: get_param [-n | -N] [-F] [-R] [--at PATH] PATTERN... | get_param -P";
const USAGE_SET: &str = "usage: set_param [-n] [-P] [--at PATH] PATTERN=VALUE... | set_param -P -d PATTERN...
  (PATTERN VALUE is fine too)   -P  for good: kept by the metadata server, also for servers and clients to come
  -P -d  forget what was set for good; values stay as they are until a restart";
const USAGE_LIST: &str = "usage: list_param [-F] [-R] [--at PATH] PATTERN...";

/// Options of all three verbs.
#[derive(Default, Debug, PartialEq)]
struct Options {
    values_only: bool,
    names_only: bool,
    mark_writable: bool,
    recursive: bool,
    permanent: bool,
    delete: bool,
    at: Option<PathBuf>,
    operands: Vec<String>,
}

fn read(arguments: &[OsString], usage: &str) -> Result<Option<Options>, Failure> {
    let mut o = Options::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy().into_owned();
        match text.as_str() {
            "--help" | "-h" => {
                say!("{usage}\n  patterns have * ? [abc] {{one,two}}; --at says which mount when there are several");
                return Ok(None);
            }
            "--at" => {
                let path = rest.next().ok_or_else(|| Failure::usage("--at needs a path on a mount"))?;
                o.at = Some(path.into());
            }
            flags if flags.len() > 1 && flags.starts_with('-') && o.operands.is_empty() => {
                for flag in flags[1..].chars() {
                    match flag {
                        'n' => o.values_only = true,
                        'N' => o.names_only = true,
                        'F' => o.mark_writable = true,
                        'R' => o.recursive = true,
                        'P' => o.permanent = true,
                        'd' => o.delete = true,
                        _ => return Err(Failure::usage(format!("unknown option '-{flag}'\n{usage}"))),
                    }
                }
            }
            _ => o.operands.push(text),
        }
    }
    if o.delete && !o.permanent {
        return Err(Failure::usage("-d forgets permanent settings: write -P -d"));
    }
    if o.operands.is_empty() && !(o.permanent && usage == USAGE_GET) {
        return Err(Failure::usage(usage));
    }
    Ok(Some(o))
}

/// The mount that is meant: by `--at`, else the one we are in, else the only one.
fn connection(at: Option<&Path>) -> Result<u32, Failure> {
    if let Some(path) = at {
        return crate::lfs::connection_of(path).map(|c| c.0);
    }
    if let Ok((here, _)) = crate::lfs::connection_of(Path::new(".")) {
        return Ok(here);
    }
    let mounts: Vec<_> = fuse::mount::mounts().into_iter().filter(|m| m.kind == "fuse.stria").collect();
    match &mounts[..] {
        [] => Err(Failure::with_errno("no Stria file system is mounted here: 'stria up' starts one", libc::ENODEV)),
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
    let Some(o) = read(arguments, USAGE_GET)? else { return Ok(()) };
    let connection = connection(o.at.as_deref())?;
    if o.permanent {
        crate::out::print(format_args!("{}", show(&control::ask(connection, &json!({"do": "kept_params"}))?, &o)));
        return Ok(());
    }
    for pattern in &o.operands {
        let answer = control::ask(connection, &json!({"do": "get_param", "pattern": pattern}))?;
        let text = show(&answer, &o);
        if text.is_empty() {
            return Err(Failure::usage(format!("'{pattern}' is a branch: add '.*', or use list_param -R {pattern}")));
        }
        crate::out::print(format_args!("{text}"));
    }
    Ok(())
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
            (_, true, _) => format!("{value}\n"),
            (.., true) => format!("{name}=\n{value}\n"),
            _ => format!("{name}={value}\n"),
        };
    }
    out
}

/// The verb `list_param`.
///
/// # Errors
/// Nothing matches, or nobody answers.
pub fn list(arguments: &[OsString]) -> Outcome {
    let Some(o) = read(arguments, USAGE_LIST)? else { return Ok(()) };
    let connection = connection(o.at.as_deref())?;
    for pattern in &o.operands {
        let answer = control::ask(connection, &json!({"do": "get_param", "pattern": pattern}))?;
        for name in names(&answer, pattern, &o) {
            say!("{name}");
        }
    }
    Ok(())
}

/// Names at the pattern's depth; every parameter below with `-R`.
fn names(answer: &Value, pattern: &str, o: &Options) -> BTreeSet<String> {
    let params = answer["params"].as_array().map(Vec::as_slice).unwrap_or_default();
    let glob = Glob::new(pattern);
    let one = |p: &Value| {
        let name = p["name"].as_str()?;
        let shown = if o.recursive { name } else { glob.matches_prefix(name)? };
        let mark = match (o.mark_writable, shown.len() < name.len(), p["writable"] == true) {
            (true, true, _) => "/",
            (true, false, true) => "=",
            _ => "",
        };
        Some(format!("{shown}{mark}"))
    };
    params.iter().filter_map(one).collect()
}

/// The verb `set_param`.
///
/// # Errors
/// Nothing matches, a value is refused, or nobody answers.
pub fn set(arguments: &[OsString]) -> Outcome {
    let Some(o) = read(arguments, USAGE_SET)? else { return Ok(()) };
    if o.delete {
        let connection = connection(o.at.as_deref())?;
        for pattern in o.operands.iter().map(|p| p.split_once('=').map_or(p.as_str(), |(p, _)| p)) {
            control::ask(connection, &json!({"do": "keep_param", "pattern": pattern}))?;
        }
        return Ok(());
    }
    let pairs = assignments(&o.operands)?;
    let connection = connection(o.at.as_deref())?;
    for (pattern, value) in pairs {
        let answer = control::ask(connection, &json!({"do": "set_param", "pattern": pattern, "value": value}))?;
        if o.permanent {
            control::ask(connection, &json!({"do": "keep_param", "pattern": pattern, "value": value}))?;
        }
        for name in answer["set"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let name = name.as_str().unwrap_or_default();
            if !o.values_only {
                say!("{name}={value}");
            }
        }
    }
    Ok(())
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

    fn options(line: &str) -> Result<Options, String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        read(&arguments, "usage").map(Option::unwrap).map_err(|e| e.to_string())
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
    }

    #[test]
    fn listings_stop_at_the_patterns_depth() {
        let text = |line: &str, pattern: &str| {
            names(&answer(), pattern, &options(line).unwrap()).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(text("osc.*", "osc.*"), ["osc.a"]);
        assert_eq!(text("-F osc.*", "osc.*"), ["osc.a/"]);
        assert_eq!(text("-F osc.*.*", "osc.*.*"), ["osc.a.deep/", "osc.a.max_dirty_mb=", "osc.a.stats"]);
        assert_eq!(text("-R osc", "osc").len(), 3);
    }

    #[test]
    fn assignments_come_in_both_shapes() {
        let pairs =
            |line: &str| assignments(&line.split(' ').map(String::from).collect::<Vec<_>>()).map_err(|e| e.to_string());
        assert_eq!(pairs("a.b=1 c 2").unwrap(), [("a.b".into(), "1".into()), ("c".into(), "2".into())]);
        assert!(pairs("a.b").unwrap_err().contains("'a.b' has no value"));
        assert!(options("-x a").unwrap_err().contains("unknown option '-x'"));
        assert!(options("-n").unwrap_err().contains("usage"));
    }
}
