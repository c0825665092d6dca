//! A crate depends only on crates of lower layers; the rooms take nothing from outside that is not `no_std`.
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::{Findings, judged};

/// A row of the table of layers: crates that stand side by side and never know each other.
struct Row {
    layer: u32,
    /// Place within the layer: a crate may know those of its layer that come before it.
    within: u32,
    crates: &'static [&'static str],
    holds: &'static str,
}

const fn row(layer: u32, within: u32, crates: &'static [&'static str], holds: &'static str) -> Row {
    Row { layer, within, crates, holds }
}

/// The one table of layers: the check reads it, and ARCHITECTURE.md shows it word for word (`cargo xtask layers --write`).
const LAYERS: &[Row] = &[
    row(
        0,
        0,
        &["types"],
        "ids, extents, time as numbers, lock modes, errors, seeded randomness, configuration tables, logs of calls and their replay",
    ),
    row(
        0,
        1,
        &["frames"],
        "page frames: one arena per process, reference-counted 4 KiB pages in contiguous runs; bulk data as pieces of them",
    ),
    row(0, 1, &["formats"], "for tests of formats only: golden files, mutated inputs, memory that is accounted for"),
    row(
        0,
        1,
        &["devices"],
        "models of storage devices: the table of profiles, disks, elevators, allocators, fits; the emulated OST, the simulator and what looks ahead in a scheduler have the same ones",
    ),
    row(
        1,
        0,
        &["nrs", "cache", "datapath", "readahead", "layout", "advice", "ldlm"],
        "the rooms: traits, policies, conformance suites, record/replay; `no_std`, no clock, no I/O",
    ),
    row(1, 0, &["wire"], "every message and its bytes (`docs/spec/wire.md`)"),
    row(
        1,
        1,
        &["trace"],
        "what requests did at a target: records in a bounded ring, their file format (`docs/spec/trace.md`), figures of them",
    ),
    row(
        2,
        0,
        &["rt"],
        "the facade to the world: clock, tasks, streams of messages whose heads are opaque to it, disks, frames; the real implementation (compio)",
    ),
    row(
        2,
        1,
        &["simworld"],
        "the facade's second implementation: virtual clock, seeded tasks, a network and disks that fail",
    ),
    row(
        3,
        0,
        &["ptlrpc"],
        "streams that speak the wire protocol, sessions: import and export, slots, resend, replay, reply reconstruction, recovery window, eviction",
    ),
    row(
        3,
        0,
        &["dbcheck"],
        "whether the file of an embedded database is whole, without changing it; what can be read of one that is not",
    ),
    row(
        4,
        0,
        &["mds", "oss", "client"],
        "the nodes: ordinary async Rust over `rt`, `!Send`, one shard = one thread; bytes may be moved by others (`docs/internals/shards.md`)",
    ),
    row(4, 1, &["store-redb", "store-pg", "store-file"], "engines behind the traits that the nodes own"),
    row(4, 1, &["roles"], "starting servers and clients inside a shard of any world"),
    row(
        4,
        2,
        &["fsck"],
        "the stores of a stopped cluster against themselves and each other, and their repair, over any world",
    ),
    row(5, 0, &["fuse"], "the kernel's protocol and its two transports; knows no file system"),
    row(
        5,
        0,
        &["sim"],
        "event engine, models of disks, elevators, allocators, networks; whole clusters in `simworld` under faults; scenarios; reports",
    ),
    row(
        5,
        0,
        &["native"],
        "the native path: rings in shared memory between a program and a mount's daemon, and the program's library",
    ),
    row(5, 0, &["posix"], "the POSIX suite"),
    row(
        5,
        0,
        &["bench"],
        "aggregate bandwidth of many clients, what one layer alone can do; knows files and sockets only",
    ),
    row(
        5,
        1,
        &["tune"],
        "which settings serve a workload best: measured on a mount, simulated where that may not be, judged with error bars",
    ),
    row(5, 1, &["mount"], "FUSE requests answered by the client; the daemon's side of the native path"),
    row(5, 1, &["libstria"], "the native path for programs in C"),
    row(
        5,
        1,
        &["preload"],
        "a library that programs preload: their files' bytes take the native path, their advice reaches the mount",
    ),
    row(5, 2, &["cluster"], "roles over stores in directories, and mounts"),
    row(
        5,
        2,
        &["simkernel"],
        "a model of a FUSE kernel that drives `mount` in whole simulated clusters, with its programs",
    ),
    row(6, 0, &["stria"], "the command line"),
];

/// Where the table is shown.
const PAGE: &str = "ARCHITECTURE.md";
/// Head of the table there; it ends with the first empty line.
const TABLE_HEAD: &str = "| layer | crates | what they hold |\n|---|---|---|\n";

/// The worlds carry bytes and know neither protocol nor policy: they use nothing of layer 1.
const WORLDS: &[&str] = &["rt", "simworld"];

/// What layers 0 and 1 may use from outside.
const ROOM_CRATES: &[&str] = &["hashbrown", "rustc-hash", "smallvec", "slab", "crc-fast", "zerocopy"];

/// Checks all manifests, and the table that the page shows; with `write` the page is given the table instead.
pub fn layers(root: &Path, write: bool) -> Findings {
    let mut faults = page(root, write);
    let mut crates = BTreeMap::new();
    for entry in fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        match fs::read_to_string(entry.path().join("Cargo.toml")) {
            Ok(text) => drop(crates.insert(name, text)),
            Err(e) => faults.push(format!("crates/{name}/Cargo.toml: {e}")),
        }
    }
    for (name, manifest) in &crates {
        faults.extend(judge(name, manifest));
    }
    for name in LAYERS.iter().flat_map(|row| row.crates).filter(|name| !crates.contains_key(**name)) {
        faults.push(format!("xtask/src/layers.rs: there is no crates/{name}"));
    }
    judged(faults)
}

/// What is wrong with the page's table; with `write` it is put right.
fn page(root: &Path, write: bool) -> Vec<String> {
    let path = root.join(PAGE);
    let done = fs::read_to_string(&path).map_err(|e| format!("{PAGE}: {e}")).and_then(|text| {
        let right = with_table(&text, &table())?;
        match right == text {
            true => Ok(()),
            false if write => fs::write(&path, right).map_err(|e| format!("{PAGE}: {e}")),
            false => Err(format!(
                "{PAGE}: its table of layers is not that of xtask/src/layers.rs: cargo xtask layers --write"
            )),
        }
    });
    done.err().into_iter().collect()
}

/// The page with the rows of its table replaced.
fn with_table(text: &str, table: &str) -> Result<String, String> {
    let (before, rest) = text.split_once(TABLE_HEAD).ok_or_else(|| format!("{PAGE}: no table of layers"))?;
    let end = rest.find("\n\n").map_or(rest.len(), |at| at + 1);
    Ok(format!("{before}{TABLE_HEAD}{table}{}", &rest[end..]))
}

fn table() -> String {
    let line = |row: &Row| {
        let crates: Vec<String> = row.crates.iter().map(|c| format!("`{c}`")).collect();
        format!("| {} | {} | {} |\n", shown((row.layer, row.within)), crates.join(" "), row.holds)
    };
    LAYERS.iter().map(line).collect()
}

/// A place as the page numbers it: `5`, and `5.1` for what knows crates of its own layer.
fn shown((layer, within): (u32, u32)) -> String {
    if within == 0 { layer.to_string() } else { format!("{layer}.{within}") }
}

fn place(name: &str) -> Option<(u32, u32)> {
    LAYERS.iter().find(|row| row.crates.contains(&name)).map(|row| (row.layer, row.within))
}

fn judge(name: &str, manifest: &str) -> Vec<String> {
    let Some(own) = place(name) else {
        return vec![format!("crates/{name}: has no layer: add it to the table in xtask/src/layers.rs")];
    };
    let mut faults = Vec::new();
    for dependency in dependencies(manifest) {
        match place(&dependency) {
            Some(other) if other.0 == 1 && WORLDS.contains(&name) => {
                faults.push(format!(
                    "crates/{name} depends on {dependency}: a world carries bytes, and knows no protocol"
                ));
            }
            Some(other) if other < own => {}
            Some(other) => faults.push(format!(
                "crates/{name} (layer {}) depends on {dependency} (layer {})",
                shown(own),
                shown(other)
            )),
            None if own.0 <= 1 && !ROOM_CRATES.contains(&dependency.as_str()) => {
                faults.push(format!(
                    "crates/{name} (layer {}) depends on {dependency} from outside: rooms use {ROOM_CRATES:?} only",
                    own.0
                ));
            }
            None => {}
        }
    }
    faults
}

/// Names under `[dependencies]` and its target-specific forms; what tests and builds use is not counted.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut names = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            inside = section == "dependencies" || section.starts_with("target.") && section.ends_with(".dependencies");
            if let Some(name) = section.strip_prefix("dependencies.") {
                names.push(name.to_string());
            }
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            let end = line.find(['.', '=', ' ']).unwrap_or(line.len());
            names.push(line[..end].to_string());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_differs_from_the_table_is_found_and_put_right() {
        let folder = std::env::temp_dir().join(format!("xtask-layers-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let right = format!("before\n\n{TABLE_HEAD}{}\nbehind\n", table());
        let wrong = right.replace("| 5.1 | `mount`", "| 6 | `mount`");
        assert_ne!(right, wrong);
        let put = |text: &str| fs::write(folder.join(PAGE), text).unwrap();
        put(&right);
        assert!(page(&folder, false).is_empty());
        put(&wrong);
        assert_eq!(page(&folder, false).len(), 1);
        assert!(page(&folder, true).is_empty());
        assert_eq!(fs::read_to_string(folder.join(PAGE)).unwrap(), right);
        put("no table");
        assert_eq!(page(&folder, true), ["ARCHITECTURE.md: no table of layers"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn every_crate_has_one_row_and_rows_go_upwards() {
        let names: Vec<&str> = LAYERS.iter().flat_map(|row| row.crates).copied().collect();
        let once: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), once.len());
        assert!(LAYERS.is_sorted_by_key(|row| (row.layer, row.within)));
    }

    #[test]
    fn upward_and_sideways_dependencies_are_found() {
        let manifest = "[package]\nname = \"x\"\n[dependencies]\ntypes.workspace = true\noss = { path = \"..\" }\n[dev-dependencies]\nsim.workspace = true\n";
        assert_eq!(dependencies(manifest), ["types", "oss"]);
        assert_eq!(judge("mds", manifest), ["crates/mds (layer 4) depends on oss (layer 4)"]);
        assert!(judge("store-file", manifest).is_empty());
        let worldly = "[dependencies]\nframes.workspace = true\nwire.workspace = true\nserde = \"1\"\n";
        assert_eq!(judge("rt", worldly), ["crates/rt depends on wire: a world carries bytes, and knows no protocol"]);
        assert_eq!(judge("nrs", "[dependencies]\nserde = \"1\"\n").len(), 1);
        assert_eq!(judge("new", manifest).len(), 1);
    }
}
