//! The table of keys in words: for terminals and as the reference page.
use super::{Config, Effect, ROWS, Row, Scope};

fn scope(row: &Row) -> &'static str {
    match row.scope {
        Scope::Cluster => "cluster",
        Scope::Process => "process",
    }
}
fn effect(row: &Row) -> &'static str {
    match row.effect {
        Effect::Live => "live",
        Effect::Restart => "at restart",
    }
}

/// The keys whose names contain `part`, explained, with their values in `config`.
#[must_use]
pub fn explain(config: &Config, part: &str) -> String {
    let mut out = String::new();
    for row in ROWS.iter().filter(|r| r.key.contains(part)) {
        let value = config.get(row.key).unwrap_or_default();
        let set = if value == row.default { String::new() } else { format!(" (default \"{}\")", row.default) };
        out += &format!("{} = \"{value}\"{set}\n", row.key);
        out += &format!("    {}\n", row.meaning.trim());
        out += &format!("    {}; scope {}; takes effect {}\n\n", row.kind.describe(), scope(row), effect(row));
    }
    out
}

/// The reference page.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\nWritten by `stria config explain --markdown`. Files are TOML, given with `--config FILE`: a section before the dot,\na key behind it. Unknown keys are errors.\n\n| key | default | type and range | scope | takes effect | meaning |\n|---|---|---|---|---|---|\n",
    );
    for row in ROWS {
        out += &format!(
            "| `{}` | `\"{}\"` | {} | {} | {} | {} |\n",
            row.key,
            row.default,
            row.kind.describe(),
            scope(row),
            effect(row),
            row.meaning.trim()
        );
    }
    out
}
