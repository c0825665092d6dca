//! Project tasks: `cargo xtask check | ci | test | deny | layers | pages | tidy | smoke | package`. What continuous integration checks, anyone can run.
mod deny;
mod layers;
mod package;
mod pages;
mod programs;
mod source;
mod steps;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str =
    "usage: cargo xtask check    everything that needs no mount: format, clippy, tidy, layers, deny, tests, scenario smoke
       cargo xtask ci       check, the tests that mount, and two minutes of torture
       cargo xtask test     all tests, two programs at a time, or those of what is named (-p stria-oss)
       cargo xtask deny     what comes from outside: licences, sources, bans, reasons (deny.toml)
       cargo xtask layers   crates depend only on lower layers, and ARCHITECTURE.md shows the table (--write puts it there)
       cargo xtask pages    pages that are written from declarations say what these say (--write puts it there)
       cargo xtask tidy     what files must look like
       cargo xtask smoke    every scenario in its small form
       cargo xtask package  a Debian package in target/package";

fn main() -> ExitCode {
    let root = root();
    let task = std::env::args().nth(1).unwrap_or_default();
    let done = match task.as_str() {
        "check" => steps::check(&root),
        "ci" => steps::ci(&root),
        "test" => programs::tests(&root, &std::env::args().skip(2).collect::<Vec<_>>()),
        "deny" => deny::deny(&root),
        "layers" => layers::layers(&root, std::env::args().nth(2).is_some_and(|a| a == "--write")),
        "pages" => pages::pages(&root, std::env::args().nth(2).is_some_and(|a| a == "--write")),
        "tidy" => tidy::tidy(&root),
        "smoke" => steps::smoke(&root),
        "package" => package::package(&root, &std::env::args().skip(2).collect::<Vec<_>>()),
        _ => Err(vec![USAGE.to_string()]),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(faults) => {
            for fault in &faults {
                eprintln!("{fault}");
            }
            eprintln!("xtask {task}: {} fault(s)", faults.len());
            ExitCode::FAILURE
        }
    }
}

/// What a task finds wrong; each line names the place.
type Findings = Result<(), Vec<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace").into()
}

fn judged(faults: Vec<String>) -> Findings {
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}
