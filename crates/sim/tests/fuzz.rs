//! Scenario files: none panics the reader, and every refusal names its line.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target, outcome_of};
use formats::memory::Counting;
use sim::scenario::parse;
use std::path::Path;

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn no_scenario_panics() {
    let dir = Path::new(ROOT).join("../../sim/scenarios");
    let mut seeds = Vec::new();
    for folder in std::fs::read_dir(&dir).unwrap().flatten() {
        for file in std::fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            seeds.push(std::fs::read(file.path()).unwrap());
        }
    }
    assert!(!seeds.is_empty(), "{}: no scenarios", dir.display());
    seeds.sort();
    let target = Target {
        name: "scenario",
        root: ROOT,
        seeds,
        words: &[
            b"[[expect]]\n",
            b"[params]\n",
            b" = ",
            b"[[[[[[[[[[[[[[[[",
            b"1e308",
            b"nan",
            b"-1",
            b"[sweep]\n",
            b"\"\"\"",
        ],
        mend: None,
        memory: (1 << 20, 4 << 10),
    };
    target.run(|input| match parse("s.toml", &String::from_utf8_lossy(input)) {
        Ok(_) => 1,
        Err(e) => {
            assert!(e.line >= 1 && !e.reason.is_empty());
            outcome_of(&e.reason)
        }
    });
}
