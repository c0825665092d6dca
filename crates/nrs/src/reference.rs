//! The reference page of the room, rendered from the registry and the table of keys, so that it cannot go stale.
use crate::{DEADLINE_PREFIX, Medium, keys, registry};
use alloc::{format, string::String};

/// The page `docs/reference/nrs.md`: every policy, every key with default, range and meaning.
#[must_use]
pub fn reference_markdown() -> String {
    let mut page = String::from(
        "# Scheduler policies (NRS)\n\n\
         Which queued bulk RPC an OST serves next. Generated from the registry of the `nrs` room.\n\n\
         | policy | order | pays on | may throttle |\n|---|---|---|---|\n",
    );
    for entry in registry() {
        let medium = match entry.facts.medium {
            Medium::Flash => "flash, memory",
            Medium::Rotating => "rotating disks",
            Medium::Any => "any medium",
        };
        let throttles = if entry.facts.throttles { "yes" } else { "no" };
        page.push_str(&format!("| `{}` | {} | {medium} | {throttles} |\n", entry.name, cell(entry.summary)));
    }
    page.push_str(&format!(
        "\nAny of them but `obrr+` may follow `{DEADLINE_PREFIX}`: the two-level deadlines of paper 001 over that order, \
         like `{DEADLINE_PREFIX}obrr`. `obrr+` has its own.\n\n\
         ## Keys\n\n| key | default | range | meaning |\n|---|---|---|---|\n"
    ));
    for key in keys() {
        let default = if key.default.is_empty() { String::from("(none)") } else { format!("`{}`", key.default) };
        page.push_str(&format!("| `{}` | {default} | {} | {} |\n", key.name, cell(key.range), cell(key.meaning)));
    }
    page.push_str(RULES);
    page
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

const RULES: &str = "
## Rules

`start NAME EXPR rate=N [bytes=SIZE] [depth=N] [rank=RULE]`, `change NAME [rate=N] [bytes=SIZE] [depth=N] [rank=RULE]`,
`stop NAME`. An expression is conditions joined by `&` (and) and `,` (or): `uid={500 501}&opcode={ost_write},jobid={dd.0}`.
Fields are `client`, `uid`, `jobid`, `opcode` (`ost_read`, `ost_write`, `ost_punch`, `ost_sync`); values are separated by
spaces, numbers may be ranges like `10-20`, `*` stands for all. The newest rule is tried first; `rank=RULE` puts a rule
right before another. Every value of the fields that an expression names has a bucket of its own (`*`: every client).
The OSTs of one server that run `tbf` with the same rules share these buckets: a rate holds over the server, and OSTs where
requests wait take turns. Set a rule for all of them (`lctl set_param ost.OSS.ost_io.nrs_tbf_rule=..` does); while they
differ, each OST keeps to the rate alone.
`rate` is in requests per second (1..=1000000), `bytes` in bytes per second, `depth` is what an idle bucket saves up
(default 3). The rule `default` comes last and cannot be stopped: 10000 requests per second and client.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_and_every_key_has_one_line_of_the_right_width() {
        let page = reference_markdown();
        let rows = |text: &str| page.lines().filter(|l| l.starts_with(text)).count();
        for entry in registry() {
            assert_eq!(rows(&format!("| `{}` |", entry.name)), 1, "{}", entry.name);
        }
        for key in keys() {
            assert_eq!(rows(&format!("| `{}` |", key.name)), 1, "{}", key.name);
        }
        for line in page.lines().filter(|l| l.starts_with('|')) {
            assert_eq!(line.replace("\\|", "").matches('|').count(), 5, "{line}");
        }
    }
}
