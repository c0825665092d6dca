//! The reference page, generated from the registry and the configuration table.
use alloc::format;
use alloc::string::String;

use crate::allocator::{POLICIES, POLICY_DEFAULT};
use crate::config::AllocConfig;
use crate::{STRIPE_COUNT_MAX, STRIPE_SIZE_BYTES_DEFAULT, STRIPE_SIZE_BYTES_MAX, STRIPE_SIZE_BYTES_MIN};

/// Markdown for `docs/reference/layout.md`.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = String::from("# Layout room\n\nGenerated from the registry; edit the code, not this page.\n\n");
    out += "## Limits\n\n| what | value |\n|---|---|\n";
    out += &format!(
        "| stripe size | {STRIPE_SIZE_BYTES_MIN} to {STRIPE_SIZE_BYTES_MAX} bytes in multiples of {STRIPE_SIZE_BYTES_MIN}; default {STRIPE_SIZE_BYTES_DEFAULT} |\n"
    );
    out += &format!("| stripe count | 1 to {STRIPE_COUNT_MAX}, -1 = all OSTs, 0 = default (1) |\n");
    out += "| stripe index | an OST index, -1 = any |\n| pool name | 1 to 15 letters, digits, `_`, `-` |\n\n";
    out += "## Allocators (`layout.policy`)\n\n| name | what it does |\n|---|---|\n";
    for p in POLICIES {
        let mark = if p.name == POLICY_DEFAULT { " (default)" } else { "" };
        out += &format!("| `{}`{mark} | {} |\n", p.name, p.summary);
    }
    out += "\n## Keys\n\n| key | default | range | meaning |\n|---|---|---|---|\n";
    for k in AllocConfig::KEYS {
        out += &format!("| `layout.{}` | {} | {}..={} | {} |\n", k.key, k.default, k.min, k.max, k.meaning.trim());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_and_key_has_its_row() {
        let page = reference_markdown();
        assert!(POLICIES.iter().all(|p| page.contains(&format!("| `{}`", p.name))));
        assert!(AllocConfig::KEYS.iter().all(|k| page.contains(&format!("`layout.{}`", k.key))));
        assert!(POLICIES.iter().any(|p| p.name == POLICY_DEFAULT));
    }
}
