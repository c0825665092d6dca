//! A crate depends only on crates of lower layers; the rooms take nothing from outside that is not `no_std`.
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::{Findings, judged};

/// Layer of each crate, and its place within the layer: stores come after the nodes whose traits they implement, the
/// mount after the session that it serves.
const LAYERS: &[(&str, u32, u32)] = &[
    ("types", 0, 0),
    ("frames", 0, 1),
    ("formats", 0, 1),
    ("nrs", 1, 0),
    ("cache", 1, 0),
    ("datapath", 1, 0),
    ("readahead", 1, 0),
    ("layout", 1, 0),
    ("advice", 1, 0),
    ("ldlm", 1, 0),
    ("wire", 1, 0),
    ("rt", 2, 0),
    ("simworld", 2, 1),
    ("ptlrpc", 3, 0),
    ("dbcheck", 3, 0),
    ("mds", 4, 0),
    ("oss", 4, 0),
    ("client", 4, 0),
    ("roles", 4, 1),
    ("store-redb", 4, 1),
    ("store-file", 4, 1),
    ("sim", 5, 0),
    ("fuse", 5, 0),
    ("hints", 5, 0),
    ("mount", 5, 1),
    ("cluster", 5, 2),
    ("simkernel", 5, 2),
    ("posix", 5, 0),
    ("stria", 6, 0),
];

/// The worlds carry bytes and know neither protocol nor policy: they use nothing of layer 1.
const WORLDS: &[&str] = &["rt", "simworld"];

/// What layers 0 and 1 may use from outside.
const ROOM_CRATES: &[&str] = &["hashbrown", "rustc-hash", "smallvec", "slab", "crc-fast", "zerocopy"];

/// Checks all manifests.
pub fn layers(root: &Path) -> Findings {
    let mut faults = Vec::new();
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
    judged(faults)
}

fn place(name: &str) -> Option<(u32, u32)> {
    LAYERS.iter().find(|(n, ..)| *n == name).map(|(_, layer, within)| (*layer, *within))
}

fn judge(name: &str, manifest: &str) -> Vec<String> {
    let Some(own) = place(name) else {
        return vec![format!("crates/{name}: has no layer: add it to xtask/src/layers.rs and ARCHITECTURE.md")];
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
            Some(other) => {
                faults.push(format!("crates/{name} (layer {}) depends on {dependency} (layer {})", own.0, other.0))
            }
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
