//! The reference page, generated from the registries and the configuration table.
use alloc::format;
use alloc::string::String;
use types::settings::{keys_markdown, policies_markdown};

use crate::config::Config;
use crate::pattern::PATTERNS;
use crate::policy::{POLICIES, POLICY_DEFAULT};

/// Markdown for `docs/reference/readahead.md`.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = String::from("# Readahead room\n\nGenerated from the registry; edit the code, not this page.\n\n");
    let policies = POLICIES.iter().map(|p| (p.name, p.summary));
    out += &policies_markdown("Policies (`readahead.policy`)", POLICY_DEFAULT, policies);
    out += "\n## Patterns of `parallel`, first explanation first\n\n| name | what it recognises |\n|---|---|\n";
    for p in PATTERNS {
        out += &format!("| `{}` | {} |\n", p.name, p.summary);
    }
    out + &keys_markdown(Config::TABLE, Config::KEYS)
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
