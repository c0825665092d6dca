//! The table of keys in words: for terminals and as the reference page.
use types::params::{Life, Row, Scope};

use super::{Config, rows};

fn scope(row: &Row) -> &'static str {
    match row.scope {
        Scope::Cluster => "cluster",
        Scope::Process => "process",
    }
}
fn life(row: &Row) -> String {
    match row.life {
        Life::Live(parameter) => format!("live, `{parameter}`"),
        Life::Restart => "at restart".into(),
    }
}

/// The keys whose names contain `part`, explained, with their values in `config`.
#[must_use]
pub fn explain(config: &Config, part: &str) -> String {
    let mut out = String::new();
    for row in rows().filter(|r| r.key.contains(part)) {
        let value = config.get(row.key).unwrap_or_default();
        let set = if value == row.default { String::new() } else { format!(" (default \"{}\")", row.default) };
        out += &format!("{} = \"{value}\"{set}\n", row.key);
        out += &format!("    {}\n", row.meaning.trim());
        out += &format!("    {}; scope {}; takes effect {}\n\n", row.kind.describe(), scope(row), life(row));
    }
    out
}

/// The reference page.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\nWritten by `stria config explain --markdown`. Files are TOML, given with `--config FILE`: a section before the dot,\na key behind it. Unknown keys are errors. What takes effect live does so by the parameter that is named (`stria set_param`), with the same range.\n\n| key | default | type and range | scope | takes effect | meaning |\n|---|---|---|---|---|---|\n",
    );
    for row in rows() {
        out += &format!(
            "| `{}` | `\"{}\"` | {} | {} | {} | {} |\n",
            row.key,
            row.default,
            row.kind.describe(),
            scope(row),
            life(row),
            row.meaning.trim()
        );
    }
    out
}
