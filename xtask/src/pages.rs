//! Pages, and halves of pages, that programs of the workspace write from their declarations. The tests of the crates hold the
//! pages to that; `cargo xtask pages` says all at once what differs, and puts it right.
use std::path::Path;

use crate::steps::command;
use crate::{Findings, judged};

/// A page and what writes it.
struct Page {
    path: &'static str,
    /// What is run: arguments of `cargo run -q`.
    run: &'static [&'static str],
    /// What stands before this in the page is written by hand; empty: nothing is.
    mark: &'static str,
}

const fn page(path: &'static str, run: &'static [&'static str]) -> Page {
    Page { path, run, mark: "" }
}

const PAGES: &[Page] = &[
    Page {
        path: "docs/spec/wire.md",
        run: &["-p", "stria-wire", "--example", "wire_reference"],
        mark: "<!-- What follows is written by",
    },
    page("docs/reference/nrs.md", &["-p", "stria-nrs", "--example", "nrs_reference"]),
    page("docs/reference/cache.md", &["-p", "stria-cache", "--example", "cache_reference"]),
    page("docs/reference/datapath.md", &["-p", "stria-datapath", "--example", "datapath_reference"]),
    page("docs/reference/readahead.md", &["-p", "stria-readahead", "--example", "readahead_reference"]),
    page("docs/reference/layout.md", &["-p", "stria-layout", "--example", "layout_reference"]),
    page("docs/reference/advice.md", &["-p", "stria-advice", "--example", "advice_reference"]),
    page("docs/reference/config.md", &["-p", "stria", "--", "config", "explain", "--markdown"]),
    page("docs/reference/metrics.md", &["-p", "stria", "--", "metrics", "--markdown"]),
];

/// Compares every page with what its program writes, or (`write`) puts that there.
pub fn pages(root: &Path, write: bool) -> Findings {
    judged(PAGES.iter().filter_map(|page| one(root, page, write).err()).collect())
}

fn one(root: &Path, page: &Page, write: bool) -> Result<(), String> {
    let at = |e: &dyn std::fmt::Display| format!("{}: {e}", page.path);
    let output = command(root, &["run", "-q"]).args(page.run).output();
    let output = output.map_err(|e| at(&e))?;
    if !output.status.success() {
        return Err(at(&String::from_utf8_lossy(&output.stderr)));
    }
    let written = String::from_utf8(output.stdout).map_err(|e| at(&e))?;
    let path = root.join(page.path);
    let found = std::fs::read_to_string(&path).map_err(|e| at(&e))?;
    let want = joined(&found, page.mark, &written);
    if found == want {
        return Ok(());
    }
    if write {
        return std::fs::write(&path, want).map_err(|e| at(&e));
    }
    Err(at(&"not what the declarations say: cargo xtask pages --write"))
}

/// The page with its written part made anew.
fn joined(found: &str, mark: &str, written: &str) -> String {
    let by_hand = if mark.is_empty() { 0 } else { found.find(mark).unwrap_or(found.len()) };
    format!("{}{written}", &found[..by_hand])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_by_hand_stays() {
        assert_eq!(joined("old", "", "new"), "new");
        assert_eq!(joined("by hand\n<!-- X -->\nold", "<!-- X", "<!-- X -->\nnew"), "by hand\n<!-- X -->\nnew");
        assert_eq!(joined("by hand\n", "<!-- X", "<!-- X -->\nnew"), "by hand\n<!-- X -->\nnew");
    }
}
