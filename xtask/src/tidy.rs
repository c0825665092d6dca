//! What files must look like: short, headed, free of left-overs and of paths of somebody's machine.
use std::fs;
use std::path::Path;

use crate::{Findings, judged, source};

/// Lines of a Rust file.
const FILE_LINES_MAX: usize = 1000;
/// Lines of code of a function.
const FUNCTION_LINES_MAX: usize = 70;

/// Functions that may be longer: file, name, why.
const LONG_FUNCTIONS: &[(&str, &str, &str)] =
    &[("crates/fuse/tests/support/memfs.rs", "more", "one arm for each request of the kernel")];

/// Words that no source file may hold. Split, so that this file does not.
const LEFT_OVERS: &[&str] =
    &[concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!("), concat!("FIX", "ME")];
/// Folders of a developer's machine.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Where each public async function says what becomes of it when its future is dropped.
const CANCEL_IN: &str = "crates/client/src/";
/// How it says so (`docs/internals/client.md`).
const CANCEL: [&str; 3] = ["Cancel: nothing happened", "Cancel: goes on by itself", "Cancel: a part may be done"];

/// Checks all files.
pub fn tidy(root: &Path) -> Findings {
    let mut faults = Vec::new();
    for file in source::files(root)? {
        // Pictures and the like have nothing to be tidy about.
        let Ok(text) = fs::read_to_string(root.join(&file)) else { continue };
        faults.extend(machine_paths(&file, &text));
        if file.ends_with(".rs") {
            faults.extend(rust(&file, &text));
        }
        if file.starts_with(CANCEL_IN) {
            faults.extend(cancels(&file, &text));
        }
    }
    judged(faults)
}

fn machine_paths(file: &str, text: &str) -> Vec<String> {
    if file == "Cargo.lock" {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for path in MACHINE_PATHS {
            // A component that ends in such a word is no machine's path.
            let alone = |i: usize| !line[..i].ends_with(|c: char| c.is_alphanumeric() || "._-}".contains(c));
            if line.match_indices(path).any(|(i, _)| alone(i)) {
                faults.push(format!("{file}:{}: names {path}, a path of one machine", at + 1));
            }
        }
    }
    faults
}

fn rust(file: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        faults.push(format!("{file}: {lines} lines, {FILE_LINES_MAX} are allowed: what two things is it?"));
    }
    let head = text.lines().find(|l| !l.starts_with("#!"));
    if !head.is_some_and(|l| l.starts_with("//!")) {
        faults.push(format!("{file}: does not begin with //! saying what it decides"));
    }
    for (at, line) in text.lines().enumerate() {
        for word in LEFT_OVERS.iter().filter(|w| line.contains(**w)) {
            faults.push(format!("{file}:{}: {word} is a left-over", at + 1));
        }
    }
    let excused = |name: &str| LONG_FUNCTIONS.iter().any(|(f, n, _)| *f == file && *n == name);
    for f in source::functions(text).iter().filter(|f| f.code_lines > FUNCTION_LINES_MAX && !excused(&f.name)) {
        faults.push(format!(
            "{file}:{}: fn {} has {} lines of code, {FUNCTION_LINES_MAX} are allowed",
            f.line, f.name, f.code_lines
        ));
    }
    faults
}

/// Public async functions that do not say what it means to drop them.
fn cancels(file: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let heads = (0..lines.len()).filter(|at| lines[*at].starts_with("pub async fn "));
    let says = |at: &usize| {
        let above = lines[..*at].iter().rev().take_while(|l| l.starts_with("///") || l.starts_with("#["));
        above.into_iter().any(|l| CANCEL.iter().any(|phrase| l.contains(phrase)))
    };
    let fault = |at: usize| format!("{file}:{}: does not say what dropping it means: one of {CANCEL:?}", at + 1);
    heads.filter(|at| !says(at)).map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_left_overs_and_machine_paths_are_found() {
        assert!(rust("a.rs", "//! Says.\nfn f() {}\n").is_empty());
        assert_eq!(rust("a.rs", "fn f() {}\n").len(), 1);
        assert_eq!(rust("a.rs", &format!("//! x\nfn f() {{ {}) }}\n", LEFT_OVERS[0])).len(), 1);
        assert_eq!(machine_paths("a.md", &format!("see {}x", MACHINE_PATHS[0])).len(), 1);
        assert!(machine_paths("a.md", &format!("see $d{}x", MACHINE_PATHS[0]).replace("$d/", "net/")).is_empty());
        let says = |doc: &str| {
            cancels("a.rs", &format!("    /// Does.\n    /// {doc}\n    #[x]\n    pub async fn f() {{}}\n")).len()
        };
        assert_eq!((says("Cancel: goes on by itself, slowly."), says("Cancel: who knows."), says("")), (0, 1, 1));
        let long = format!("//! x\nfn f() {{\n{}}}\n", "    a();\n".repeat(70));
        assert_eq!(rust("a.rs", &long).len(), 1);
    }
}
