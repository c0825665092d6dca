//! The reference page, generated from the registries and the configuration table.
use alloc::format;
use alloc::string::String;

use crate::config::Config;
use crate::pattern::PATTERNS;
use crate::policy::{POLICIES, POLICY_DEFAULT};

/// Markdown for `docs/reference/readahead.md`.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = String::from("# Readahead room\n\nGenerated from the registry; edit the code, not this page.\n\n");
    out += "## Policies (`readahead.policy`)\n\n| name | what it does |\n|---|---|\n";
    for p in POLICIES {
        let mark = if p.name == POLICY_DEFAULT { " (default)" } else { "" };
        out += &format!("| `{}`{mark} | {} |\n", p.name, p.summary);
    }
    out += "\n## Patterns of `parallel`, first explanation first\n\n| name | what it recognises |\n|---|---|\n";
    for p in PATTERNS {
        out += &format!("| `{}` | {} |\n", p.name, p.summary);
    }
    out += "\n## Keys\n\nLustre's names count MiB.\n\n";
    out += "| key | Lustre's name | default | range | meaning |\n|---|---|---|---|---|\n";
    for k in Config::KEYS {
        let alias = if k.alias_mb.is_empty() { String::new() } else { format!("`{}`", k.alias_mb) };
        let meaning = k.meaning.trim();
        out += &format!("| `readahead.{}` | {alias} | {} | {}..={} | {meaning} |\n", k.key, k.default, k.min, k.max);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_pattern_and_key_has_its_row() {
        let page = reference_markdown();
        assert!(POLICIES.iter().all(|p| page.contains(&format!("| `{}`", p.name))));
        assert!(PATTERNS.iter().all(|p| page.contains(&format!("| `{}` |", p.name))));
        assert!(Config::KEYS.iter().all(|k| page.contains(&format!("`readahead.{}`", k.key))));
        assert!(POLICIES.iter().any(|p| p.name == POLICY_DEFAULT));
    }
}
