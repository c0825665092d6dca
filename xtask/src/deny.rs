//! What comes from outside: `deny.toml` against what cargo resolves, with no network and no tool; and `cargo deny` itself
//! where it is installed.
//!
//! The own half reads `cargo metadata` for this machine's platform, without a network unless crates have never been fetched
//! here: licences, sources, bans, versions of one crate beside each other, and that every direct dependency has its reason.
//! `cargo deny` judges the same file, all platforms' crates and the licences' texts; where it is missing, that is said and
//! the own half stands. Advisories need their database, which is fetched: `cargo deny check advisories`, wherever there is a
//! network.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{Findings, judged};

/// The registry that crates may come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
const POLICY: &str = "deny.toml";

/// The own half, and the tool's where it is there.
pub fn deny(root: &Path) -> Findings {
    let mut faults = own(root).unwrap_or_else(|e| vec![e]);
    faults.extend(tool(root));
    judged(faults)
}

fn own(root: &Path) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(root.join(POLICY)).map_err(|e| format!("{POLICY}: {e}"))?;
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let arguments = ["metadata", "--locked", "--format-version", "1", "--filter-platform", &platform];
    let read = |offline: &[&str]| Command::new(env!("CARGO")).current_dir(root).args(arguments).args(offline).output();
    let mut out = read(&["--offline"]).map_err(|e| format!("cargo: {e}"))?;
    if !out.status.success() {
        // On a fresh machine nothing has fetched a crate yet.
        out = read(&[]).map_err(|e| format!("cargo: {e}"))?;
    }
    if !out.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let found: Value = serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages: Vec<Package> = found["packages"].as_array().into_iter().flatten().map(Package::of).collect();
    if packages.is_empty() {
        return Err("cargo metadata: no packages".into());
    }
    judge(&text, &packages)
}

/// The tool's checks that need nothing fetched but crates.
fn tool(root: &Path) -> Vec<String> {
    let quiet = |program: &str, arguments: &[&str]| {
        Command::new(program)
            .current_dir(root)
            .args(arguments)
            .env("CARGO_NET_RETRY", "0")
            .output()
            .is_ok_and(|out| out.status.success())
    };
    if !quiet("cargo-deny", &["--version"]) {
        eprintln!("NOT RUN: cargo deny is not installed: cargo install --locked cargo-deny");
        return Vec::new();
    }
    // It looks at all platforms' crates; most of them are never downloaded for a build.
    if !quiet(env!("CARGO"), &["fetch", "--locked", "--offline"]) && !quiet(env!("CARGO"), &["fetch", "--locked"]) {
        eprintln!("NOT RUN: cargo deny needs the crates of all platforms: cargo fetch --locked, with a network");
        return Vec::new();
    }
    let arguments =
        ["--offline", "--locked", "--log-level", "error", "check", "--hide-inclusion-graph", "-A", "warnings"];
    let arguments = [&arguments[..], &["bans", "licenses", "sources"]].concat();
    eprintln!("+ cargo deny {}", arguments.join(" "));
    match Command::new("cargo-deny").current_dir(root).args(&arguments).status() {
        Ok(s) if s.success() => Vec::new(),
        Ok(s) => vec![format!("cargo deny: {s}; its words are above")],
        Err(e) => vec![format!("cargo deny: {e}")],
    }
}

/// What the checks read of a package.
struct Package {
    name: String,
    version: String,
    licence: String,
    /// `None`: of the workspace.
    source: Option<String>,
    /// Names of what it takes from a registry or elsewhere outside.
    outside: Vec<String>,
}

impl Package {
    fn of(value: &Value) -> Package {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
        let outside = value["dependencies"].as_array().into_iter().flatten().filter(|d| !d["source"].is_null());
        Package {
            name: text(&value["name"]),
            version: text(&value["version"]),
            licence: text(&value["license"]),
            source: value["source"].as_str().map(Into::into),
            outside: outside.map(|d| text(&d["name"])).collect(),
        }
    }
}

fn judge(policy: &str, packages: &[Package]) -> Result<Vec<String>, String> {
    let table: toml::Table = policy.parse().map_err(|e| format!("{POLICY}: {e}"))?;
    let names = |section: &str, key: &str| -> BTreeSet<String> {
        let listed = table.get(section).and_then(|s| s.get(key)).and_then(|l| l.as_array());
        let name = |v: &toml::Value| v.as_str().or_else(|| v.get("name")?.as_str()).map(str::to_string);
        listed.into_iter().flatten().filter_map(name).collect()
    };
    let (allowed, banned, twice) = (names("licenses", "allow"), names("bans", "deny"), names("bans", "skip"));
    let wrappers = wrappers(&table);
    let reasons: BTreeSet<&str> = policy
        .lines()
        .filter_map(|line| line.strip_prefix("#   ")?.split("  ").next())
        .flat_map(|names| names.split(", "))
        .collect();
    let mut faults = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for p in packages {
        let place = format!("{} {}", p.name, p.version);
        versions.entry(&p.name).or_default().insert(&p.version);
        match &p.source {
            Some(source) if source != REGISTRY => faults.push(format!("{place}: comes from {source}")),
            _ => {}
        }
        if !licence_allows(&p.licence, &allowed) {
            faults.push(format!("{place}: its licence '{}' is not allowed", p.licence));
        }
        let wrapped = wrappers.get(&p.name);
        if banned.contains(&p.name) && wrapped.is_none() {
            faults.push(format!("{place}: is banned"));
        }
        let unwrapped = p.outside.iter().filter(|d| wrappers.get(*d).is_some_and(|by| !by.contains(&p.name)));
        if p.source.is_none() {
            faults.extend(
                unwrapped.map(|d| format!("{} depends on {d}, which is banned but for {:?}", p.name, wrappers[d])),
            );
        }
        if p.source.is_none() {
            let unexplained = p.outside.iter().filter(|d| !reasons.contains(d.as_str()));
            faults.extend(unexplained.map(|d| format!("{} depends on {d}: {POLICY} gives no reason for it", p.name)));
        }
    }
    for (name, found) in versions.iter().filter(|(name, found)| found.len() > 1 && !twice.contains(**name)) {
        faults.push(format!("{name}: {} versions beside each other: {found:?}", found.len()));
    }
    Ok(faults)
}

/// Crates that are banned but for those which wrap them.
fn wrappers(table: &toml::Table) -> BTreeMap<String, BTreeSet<String>> {
    let banned = table.get("bans").and_then(|b| b.get("deny")?.as_array()).into_iter().flatten();
    let of = |ban: &toml::Value| {
        let by = ban.get("wrappers")?.as_array()?.iter().filter_map(|w| Some(w.as_str()?.to_string()));
        Some((ban.get("name")?.as_str()?.to_string(), by.collect()))
    };
    banned.filter_map(of).collect()
}

/// Whether an SPDX expression can be met with the allowed licences: AND binds closer than OR, `/` is an old OR.
fn licence_allows(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let met = either(&mut words, allowed);
    met == Some(true) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn either(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> Option<bool> {
    let mut met = both(words, allowed)?;
    while words.next_if_eq(&"OR").is_some() {
        met |= both(words, allowed)?;
    }
    Some(met)
}

fn both(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> Option<bool> {
    let mut met = one(words, allowed)?;
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed)?;
    }
    Some(met)
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> Option<bool> {
    if words.next_if_eq(&"(").is_some() {
        let met = either(words, allowed)?;
        return words.next_if_eq(&")").map(|_| met);
    }
    let licence = words.next()?;
    Some(match words.next_if_eq(&"WITH") {
        Some(_) => allowed.contains(&format!("{licence} WITH {}", words.next()?)),
        None => allowed.contains(licence),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "#   good, other   reasons\n[licenses]\nallow = [\"MIT\", \"Apache-2.0 WITH LLVM-exception\"]\n\
        [bans]\ndeny = [{ name = \"bad\", reason = \"\" }]\nskip = [{ name = \"twin\", reason = \"\" }]\n";

    fn package(name: &str, version: &str, licence: &str, source: Option<&str>, outside: &[&str]) -> Package {
        let outside = outside.iter().map(|s| s.to_string()).collect();
        Package {
            name: name.into(),
            version: version.into(),
            licence: licence.into(),
            source: source.map(Into::into),
            outside,
        }
    }

    #[test]
    fn licences_are_met_as_their_expressions_say() {
        let allowed = ["MIT".to_string(), "Apache-2.0 WITH LLVM-exception".to_string(), "Zlib".to_string()].into();
        for good in
            ["MIT", "MIT/GPL-3.0", "GPL-3.0 OR MIT", "(GPL-3.0 OR MIT) AND Zlib", "Apache-2.0 WITH LLVM-exception"]
        {
            assert!(licence_allows(good, &allowed), "{good}");
        }
        for bad in
            ["", "GPL-3.0", "MIT AND GPL-3.0", "GPL-3.0 OR MIT AND GPL-2.0", "Apache-2.0", "(MIT", "MIT)", "MIT WITH x"]
        {
            assert!(!licence_allows(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn what_the_policy_forbids_is_found() {
        let fine = [
            package("own", "1", "MIT", None, &["good", "other"]),
            package("good", "1", "MIT", Some(REGISTRY), &["what-it-takes-itself"]),
            package("twin", "1", "MIT", Some(REGISTRY), &[]),
            package("twin", "2", "MIT", Some(REGISTRY), &[]),
        ];
        assert_eq!(judge(TEXT, &fine), Ok(Vec::new()));
        let faults = [
            package("own", "1", "MIT", None, &["unexplained"]),
            package("bad", "1", "MIT", Some(REGISTRY), &[]),
            package("shut", "1", "GPL-3.0", Some(REGISTRY), &[]),
            package("far", "1", "MIT", Some("git+https://elsewhere"), &[]),
            package("far", "2", "MIT", Some(REGISTRY), &[]),
        ];
        assert_eq!(judge(TEXT, &faults).map(|f| f.len()), Ok(5));
        assert!(judge("no policy", &fine).is_err());
    }
}
