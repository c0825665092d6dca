//! The reference page, generated from the registry and the configuration table.
use alloc::format;
use alloc::string::String;
use types::settings::{keys_markdown, policies_markdown};

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
    let policies = POLICIES.iter().map(|p| (p.name, p.summary));
    out += &policies_markdown("Allocators (`layout.policy`)", POLICY_DEFAULT, policies);
    out + &keys_markdown(AllocConfig::TABLE, AllocConfig::KEYS)
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
