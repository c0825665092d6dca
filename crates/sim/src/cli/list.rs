//! `stria sim list`.
use super::ListArgs;
use crate::scenario::{keys_markdown, load, scenario_dir, scenario_files};
use comfy_table::{Table, presets};

/// Lists scenarios with their claims, or all parameters.
pub(super) fn list(a: &ListArgs) -> Result<bool, String> {
    if a.keys {
        super::print(&keys_markdown());
        return Ok(true);
    }
    let dir = a.dir.clone().unwrap_or_else(scenario_dir);
    let files = scenario_files(&dir);
    if files.is_empty() {
        return Err(format!("no scenarios below {}", dir.display()));
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["id", "area", "source", "points", "title"]);
    for file in files {
        let s = load(&file).map_err(|e| e.to_string())?;
        let area = file.parent().and_then(|p| p.file_name()).unwrap_or_default().to_string_lossy().into_owned();
        table.add_row([s.id.clone(), area, s.source.clone(), s.points().len().to_string(), s.title.clone()]);
    }
    super::print(&format!("{table}\n"));
    Ok(true)
}
