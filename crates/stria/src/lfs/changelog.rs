//! `changelog`, `changelog_clear`, `changelog_register`, `changelog_deregister`: what happened to names and files, record by record, for programs
//! that follow it. The metadata server keeps the records; a mount of the file system on this host carries questions there.
//!
//! Syntax and the form of lines are those of Lustre's `lfs` and `lctl` (interface facts only). Differs: control bytes, blanks at an end and
//! backslashes of names are shown as `\` and three octal digits, so that a line is a record.
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use wire::changelog::ChangeKind;

use super::find::time::show;
use super::getopt::Grammar;
use crate::control;
use crate::failure::{Failure, Outcome};

const USAGE: &str = "usage: changelog [-f|--follow] [--json] MDT [FIRST [LAST]]
       changelog_clear MDT USER LAST            (LAST 0: all that there are)
       changelog_register [-n] [--device] MDT   (-n prints the user only)
       changelog_deregister [--device] MDT USER
  MDT   FSNAME-MDT0000, as 'lfs mdts' has it, or a path on a mount of the file system
  USER  cl1, as 'changelog_register' answers
  FIRST, LAST  numbers of records";
/// How long a reader that follows the log waits before it asks again.
const ASK_AGAIN_AFTER: std::time::Duration = std::time::Duration::from_millis(500);

/// One of the verbs above.
///
/// # Errors
/// What is wrong with the arguments, or why the metadata server refuses.
pub fn changelog((verb, arguments): (&'static str, &[OsString])) -> Outcome {
    let long = &[("help", 'h'), ("follow", 'f'), ("json", 'j'), ("device", 'D')];
    let parsed = Grammar { verb, short: "hfjnD:", long, absent: &[] }.read(arguments)?;
    if parsed.has('h') {
        say!("{USAGE}");
        return Ok(());
    }
    let usage = |why: &str| Failure::usage(format!("{verb}: {why}\n{USAGE}"));
    let mut words: Vec<String> = parsed.value('D').map(String::from).into_iter().collect();
    words.extend(parsed.operands.iter().map(|w| w.to_string_lossy().into_owned()));
    let Some((mdt, rest)) = words.split_first() else { return Err(usage("name the metadata target")) };
    if !matches!(
        (verb, rest.len()),
        ("changelog", 0..=2) | ("changelog_clear", 2) | ("changelog_register", 0) | ("changelog_deregister", 1)
    ) {
        return Err(usage("wrong number of arguments"));
    }
    let user = |text: &str| {
        let number = text.strip_prefix("cl").and_then(|n| n.parse::<u32>().ok()).filter(|n| *n > 0);
        number.ok_or_else(|| usage(&format!("'{text}' is no user: write cl1, as 'changelog_register' answers")))
    };
    let record = |text: &str| {
        text.parse::<u64>().map_err(|_| usage(&format!("'{text}' is no number of a record: write 0 or more")))
    };
    let ask = |connection: u32, act: &str, user: u32, index: u64| {
        let asked = json!({"do": "changelog_user", "act": act, "user": user, "index": index});
        control::ask(connection, &asked).map_err(|e| Failure::with_errno(format!("{verb}: {e}"), i32::from(e.code())))
    };
    match verb {
        "changelog" => {
            let first = rest.first().map_or(Ok(0), |t| record(t))?;
            let last = rest.get(1).map_or(Ok(u64::MAX), |t| record(t))?;
            if last < first {
                return Err(usage(&format!("the last record, {last}, lies before the first, {first}")));
            }
            read(verb, mount_of(verb, mdt)?, (first, last), parsed.has('f'), parsed.has('j'))
        }
        "changelog_clear" => {
            let (user, index) = (user(&rest[0])?, record(&rest[1])?);
            ask(mount_of(verb, mdt)?, "clear", user, index).map(drop)
        }
        "changelog_register" => {
            let answer = ask(mount_of(verb, mdt)?, "register", 0, 0)?;
            let user = answer["user"].as_u64().unwrap_or(0);
            if parsed.has('n') {
                say!("cl{user}");
            } else {
                say!("{mdt}: Registered changelog userid 'cl{user}'");
            }
            Ok(())
        }
        _ => {
            let user = user(&rest[0])?;
            ask(mount_of(verb, mdt)?, "deregister", user, 0)?;
            say!("{mdt}: Deregistered changelog user 'cl{user}'");
            Ok(())
        }
    }
}

/// The mount that a metadata target is asked through.
fn mount_of(verb: &str, mdt: &str) -> Result<u32, Failure> {
    if mdt.contains('/') {
        return Ok(super::connection_at(Path::new(mdt))?.0);
    }
    let Some((fsname, index)) = mdt.trim_end_matches("_UUID").rsplit_once("-MDT").filter(|(fs, _)| !fs.is_empty())
    else {
        let why = format!(
            "{verb}: '{mdt}' is no metadata target: write FSNAME-MDT0000 ('lfs mdts' lists them), or a path on the mount"
        );
        return Err(Failure::usage(why));
    };
    if index != "0000" {
        let why = format!("{verb}: file system '{fsname}' has one metadata target, {fsname}-MDT0000, not '{mdt}'");
        return Err(Failure::with_errno(why, libc::ENODEV));
    }
    Ok(super::mount_of(verb, fsname, None)?.0)
}

/// Prints records, and goes on with those that come when `follow`.
fn read(verb: &str, connection: u32, (first, last): (u64, u64), follow: bool, as_json: bool) -> Outcome {
    let (mut from, mut warned) = (first, false);
    loop {
        let page = control::ask(connection, &json!({"do": "changelog", "from": from}))?;
        let records = page["records"].as_array().map(Vec::as_slice).unwrap_or_default();
        if records.is_empty() && page["written"] == false && !warned {
            warned = true;
            eprintln!("stria: {verb}: nothing is written down: nobody is registered ('lctl changelog_register')");
        }
        for record in records {
            let index = record["index"].as_u64().unwrap_or(u64::MAX);
            if index > last {
                return Ok(());
            }
            from = index.saturating_add(1);
            if as_json {
                say!("{}", for_programs(record));
            } else {
                say!("{}", line(record));
            }
        }
        if !records.is_empty() {
            continue;
        }
        if !follow || from > last {
            return Ok(());
        }
        // Records are on the server: there is nothing here that could tell of them.
        std::thread::sleep(ASK_AGAIN_AFTER);
    }
}

/// A record as a line.
fn line(r: &Value) -> String {
    let number = |key: &str| r[key].as_u64().unwrap_or(0);
    let text = |key: &str| r[key].as_str().unwrap_or_default();
    let ns = r["time_ns"].as_i64().unwrap_or(0);
    let (seconds, rest) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    let mut s = format!(
        "{} {:02}{} {}.{rest:09} {} {:#x} t=[{}]",
        number("index"),
        number("kind"),
        text("kind_name"),
        show(seconds, c"%H:%M:%S"),
        show(seconds, c"%Y.%m.%d"),
        number("flags"),
        text("target")
    );
    if let Some(job) = r["job"].as_str() {
        let _ = write!(s, " j={job}");
    }
    if number("uid") != u64::from(u32::MAX) {
        let _ = write!(s, " u={}:{}", number("uid"), number("gid"));
    }
    let _ = write!(s, " client={}", text("client"));
    if r["is_named"] == true {
        let _ = write!(s, " p=[{}] {}", text("parent"), name(&r["name"]));
    } else if number("kind") == ChangeKind::Xattr as u64 {
        let _ = write!(s, " x={}", name(&r["name"]));
    }
    if r["renames"] == true {
        let _ = write!(s, " s=[{}] sp=[{}] {}", text("source"), text("source_parent"), name(&r["source_name"]));
    }
    s
}

fn bytes_of(name: &Value) -> Vec<u8> {
    let bytes = name.as_array().map(Vec::as_slice).unwrap_or_default();
    bytes.iter().filter_map(|b| u8::try_from(b.as_u64()?).ok()).collect()
}

/// A record as an object of JSON: what its kind does not have is left out; a name that is no UTF-8 is a list of its bytes.
fn for_programs(r: &Value) -> Value {
    let mut out = json!({
        "index": r["index"], "kind": r["kind_name"], "flags": r["flags"], "time_ns": r["time_ns"],
        "target": r["target"], "client": r["client"],
    });
    let text = |name: &Value| String::from_utf8(bytes_of(name)).map_or_else(|e| json!(e.into_bytes()), Value::from);
    if r["is_named"] == true {
        (out["parent"], out["name"]) = (r["parent"].clone(), text(&r["name"]));
    } else if r["name"] != json!([]) {
        out["xattr"] = text(&r["name"]);
    }
    if r["renames"] == true {
        (out["source"], out["source_parent"]) = (r["source"].clone(), r["source_parent"].clone());
        out["source_name"] = text(&r["source_name"]);
    }
    if r["uid"] != u32::MAX {
        (out["uid"], out["gid"]) = (r["uid"].clone(), r["gid"].clone());
    }
    if r["job"].is_string() {
        out["job"] = r["job"].clone();
    }
    out
}

/// A name on a line of its own.
fn name(bytes: &Value) -> String {
    let bytes = bytes_of(bytes);
    let mut shown = Vec::with_capacity(bytes.len());
    for (i, b) in bytes.iter().enumerate() {
        let ends = i == 0 || i + 1 == bytes.len();
        if b.is_ascii_control() || *b == b'\\' || *b == b' ' && ends {
            shown.extend_from_slice(format!("\\{b:03o}").as_bytes());
        } else {
            shown.push(*b);
        }
    }
    String::from_utf8_lossy(&shown).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_whatever_its_name_is() {
        let bytes = |t: &str| json!(t.as_bytes());
        let mut r = json!({
            "index": 8, "kind": 8, "kind_name": "RENME", "flags": 1, "time_ns": 1_515_510_921_977_666_834_i64,
            "target": "0x1:0x2:0x0", "parent": "0x3:0x1:0x0", "name": bytes("new\nname"), "source": "0x1:0x9:0x0",
            "source_parent": "0x3:0x2:0x0", "source_name": bytes(" a\\"), "renames": true, "is_named": true,
            "uid": 5, "gid": 6, "job": "mv.5", "client": "00000000000000aa"
        });
        let shown = line(&r);
        assert!(shown.starts_with("8 08RENME ") && shown.contains(".977666834 "), "{shown}");
        let end = "0x1 t=[0x1:0x2:0x0] j=mv.5 u=5:6 client=00000000000000aa p=[0x3:0x1:0x0] new\\012name s=[0x1:0x9:0x0] sp=[0x3:0x2:0x0] \\040a\\134";
        assert!(shown.ends_with(end), "{shown}");
        let object = for_programs(&r);
        assert_eq!(
            (&object["name"], &object["source_name"], &object["uid"]),
            (&json!("new\nname"), &json!(" a\\"), &json!(5))
        );
        let mut odd = r.clone();
        (odd["name"], odd["uid"]) = (json!([0xff, 0x41]), json!(u32::MAX));
        let object = for_programs(&odd);
        assert!(
            object["name"] == json!([0xff, 0x41]) && object.get("uid").is_none() && object.get("renames").is_none(),
            "{object}"
        );
        (r["renames"], r["is_named"], r["job"], r["uid"]) = (json!(false), json!(false), Value::Null, json!(u32::MAX));
        (r["kind"], r["name"]) = (json!(15), bytes("user.a"));
        assert!(line(&r).ends_with("t=[0x1:0x2:0x0] client=00000000000000aa x=user.a"), "{}", line(&r));
    }

    #[test]
    fn wrong_arguments_are_refused_before_anybody_is_asked() {
        let run = |verb: &'static str, words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            changelog((verb, &words)).unwrap_err().to_string()
        };
        for (verb, words, why) in [
            ("changelog", &[][..], "name the metadata target"),
            ("changelog", &["fs-MDT0000", "x"], "'x' is no number"),
            ("changelog", &["fs-MDT0000", "9", "8"], "lies before the first"),
            ("changelog", &["fs-OST0000"], "'fs-OST0000' is no metadata target"),
            ("changelog", &["fs-MDT0001"], "has one metadata target"),
            ("changelog_clear", &["fs-MDT0000", "1", "5"], "'1' is no user"),
            ("changelog_clear", &["fs-MDT0000", "cl1"], "wrong number of arguments"),
            ("changelog_clear", &["fs-MDT0000", "cl1", "-1"], "unknown option"),
            ("changelog_deregister", &["fs-MDT0000", "cl0"], "'cl0' is no user"),
            ("changelog_register", &["fs-MDT0000", "cl0"], "wrong number of arguments"),
        ] {
            let said = run(verb, words);
            assert!(said.contains(why), "{verb} {words:?}: {said}");
        }
    }
}
