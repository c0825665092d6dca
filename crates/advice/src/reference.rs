//! The reference page, generated from the registry, the tables and the configuration table.
use alloc::format;
use alloc::string::String;
use types::settings::{keys_markdown, policies_markdown};

use crate::admission::{ADMISSION_DEFAULT, ADMISSIONS};
use crate::config::Config;
use crate::table::{Actions, POLICIES, POLICY_DEFAULT};
use crate::{Hint, Pressure, Tier};

/// Markdown for `docs/reference/advice.md`.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = String::from("# Advice room\n\nGenerated from the registry; edit the code, not this page.\n\n");
    out += "Reclaim order: unadvised (`none`), then `cache`, `low`, `med`, `high`.\n\n";
    let policies = POLICIES.iter().map(|p| (p.name, p.summary));
    out += &policies_markdown("Policies (`advice.policy`)", POLICY_DEFAULT, policies);
    for p in POLICIES {
        let policy = (p.make)(&Config::default());
        out += &format!(
            "\n### Table of `{}`\n\n| hint | tier | low | medium | high pressure |\n|---|---|---|---|---|\n",
            p.name
        );
        for hint in Hint::ALL {
            for tier in Tier::ALL {
                let cells = Pressure::ALL.map(|p| word(policy.decide(hint, tier, p)));
                out += &format!("| {} | {} | {} |\n", hint.name(), tier.name(), cells.join(" | "));
            }
        }
    }
    let admissions = ADMISSIONS.iter().map(|p| (p.name, p.summary));
    out += "\nWhat nobody advised is copied to the fast tier by what is inferred from reads:\n\n";
    out += &policies_markdown("Admission to the fast tier (`fast_admission`)", ADMISSION_DEFAULT, admissions);
    out + &keys_markdown(Config::TABLE, Config::KEYS)
}

fn word(a: Actions) -> &'static str {
    match (a.admit, a.prefetch, a.drop) {
        (true, true, _) => "prefetch",
        (true, false, _) => "keep",
        (false, _, true) => "drop",
        (false, _, false) => "nothing",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_cell_and_key_has_its_place() {
        let page = reference_markdown();
        assert!(POLICIES.iter().all(|p| page.contains(&format!("### Table of `{}`", p.name))));
        assert!(page.contains("| high | fast | prefetch | prefetch | prefetch |"));
        assert!(page.contains("| low | ram | prefetch | keep | nothing |"));
        assert!(Config::KEYS.iter().all(|k| page.contains(&format!("`advice.{}`", k.key))));
        assert!(POLICIES.iter().any(|p| p.name == POLICY_DEFAULT));
    }
}
