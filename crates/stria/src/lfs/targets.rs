//! `osts`, `mdts`, `check`, `getname`: which targets and mounts there are, and which of them answer.
use std::ffi::OsString;
use std::path::Path;

use serde_json::{Value, json};

use super::getopt::Grammar;
use crate::control;
use crate::failure::{Failure, Outcome};

const USAGE_TARGETS: &str = "usage: osts [PATH] | mdts [PATH]";
const USAGE_CHECK: &str =
    "usage: check mgts|mdts|osts|all [PATH]   ('mds', 'servers' are other names for mdts and all)";
const USAGE_NAME: &str = "usage: getname [-n | -i] [PATH...]   -n  only the file system's name   -i  only the instance";

/// Does something with what the mounts that paths lie on say of themselves; all mounts without a path.
fn each_status(paths: &[OsString], mut act: impl FnMut(&Path, &Value)) -> Outcome {
    super::each_mount(paths, |connection, at| {
        act(at, &control::ask(connection, &json!({"do": "status"}))?);
        Ok(())
    })
}

/// The verb `osts`.
///
/// # Errors
/// No such mount, or nobody answers.
pub fn osts(arguments: &[OsString]) -> Outcome {
    targets("osts", arguments, "OBDS:", |a| a["osts"].as_array().cloned().unwrap_or_default())
}

/// The verb `mdts`.
///
/// # Errors
/// As [`osts`].
pub fn mdts(arguments: &[OsString]) -> Outcome {
    targets("mdts", arguments, "MDTS:", |a| vec![a["mdt"].clone()])
}

fn targets(verb: &'static str, arguments: &[OsString], title: &str, of: impl Fn(&Value) -> Vec<Value>) -> Outcome {
    let grammar = Grammar { verb, short: "?", long: &[("help", '?')], absent: &[] };
    let parsed = grammar.read(arguments)?;
    if parsed.has('?') {
        say!("{USAGE_TARGETS}");
        return Ok(());
    }
    each_status(&parsed.operands, |_, answer| {
        say!("{title}");
        for t in of(answer) {
            let state = if t["active"] == false { "INACTIVE" } else { "ACTIVE" };
            say!("{}: {}_UUID {state}", t["index"].as_u64().unwrap_or(0), t["target"].as_str().unwrap_or("?"));
        }
    })
}

/// The verb `check`: whether servers answer.
///
/// # Errors
/// What to check is not said, or a server does not answer.
pub fn check(arguments: &[OsString]) -> Outcome {
    let grammar = Grammar { verb: "check", short: "?", long: &[("help", '?')], absent: &[] };
    let parsed = grammar.read(arguments)?;
    if parsed.has('?') {
        say!("{USAGE_CHECK}");
        return Ok(());
    }
    let Some((what, paths)) = parsed.operands.split_first() else { return Err(Failure::usage(USAGE_CHECK)) };
    let (mdts, osts) = match &*what.to_string_lossy() {
        "mds" | "mdts" | "mgts" => (true, false),
        "osts" => (false, true),
        "servers" | "all" => (true, true),
        other => {
            return Err(Failure::usage(format!("check: '{other}' is nothing to check\n{USAGE_CHECK}")));
        }
    };
    let mut silent = Vec::new();
    let asked = each_status(paths, |_, answer| {
        let client = answer["client"].as_str().unwrap_or("?");
        let listed = answer["osts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let of_mdt = mdts.then_some(("mdc", &answer["mdt"]));
        for (kind, t) in of_mdt.into_iter().chain(listed.iter().filter(|_| osts).map(|t| ("osc", t))) {
            let name = format!("{}-{kind}-{client}", t["target"].as_str().unwrap_or("?"));
            if t["active"] == false {
                say!("{name}: deactivated.");
            } else if t["state"] == "Full" {
                say!("{name}: active.");
            } else {
                let state = t["state"].as_str().unwrap_or("?").to_lowercase();
                let why = t["failure"].as_str().map(|f| format!(" ({f})")).unwrap_or_default();
                say!("{name}: {state}{why}.");
                silent.push(name);
            }
        }
    });
    if silent.is_empty() {
        return asked;
    }
    if let Err(e) = asked {
        e.report("check");
    }
    Err(Failure::with_errno(
        format!("check: no connection to {}: is the server running ('stria status')?", silent.join(", ")),
        libc::ENOTCONN,
    ))
}

/// The verb `getname`.
///
/// # Errors
/// A path on no mount, or nobody answers.
pub fn getname(arguments: &[OsString]) -> Outcome {
    let long = &[("help", 'h'), ("instance", 'i'), ("fsname", 'n')];
    let parsed = Grammar { verb: "getname", short: "hin", long, absent: &[] }.read(arguments)?;
    if parsed.has('h') {
        say!("{USAGE_NAME}");
        return Ok(());
    }
    each_status(&parsed.operands, |at, answer| {
        let (name, instance) = (answer["fsname"].as_str().unwrap_or("?"), answer["client"].as_str().unwrap_or("?"));
        let shown = match (parsed.has('n'), parsed.has('i')) {
            (true, false) => name.to_string(),
            (false, true) => instance.to_string(),
            _ => format!("{name}-{instance}"),
        };
        if parsed.operands.len() == 1 && (parsed.has('n') || parsed.has('i')) {
            say!("{shown}");
        } else {
            say!("{shown} {}", at.display());
        }
    })
}
