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
        "\nAny of them but `obrr+` and `auto` may follow `{DEADLINE_PREFIX}`: the two-level deadlines of paper 001 over that \
         order, like `{DEADLINE_PREFIX}obrr`. `obrr+` has its own.\n{AUTO}\n\
         ## Keys\n\n| key | default | range | meaning |\n|---|---|---|---|\n"
    ));
    for key in keys() {
        let default = if key.default.is_empty() { String::from("(none)") } else { format!("`{}`", key.default) };
        page.push_str(&format!("| `{}` | {default} | {} | {} |\n", key.name, cell(key.range), cell(key.meaning)));
    }
    page.push_str(RULES);
    page
}

const AUTO: &str = "
## Auto

`auto` begins with the policy for what an OST's store lies on and goes over to another of its candidates when a model shows that one to
be better. It is not the default: an OST has `by_medium`, which stays with the policy for what its store lies on (`nrs_by_medium` shows
it and how that is known). Where the medium is not known, `auto` begins with `fifo` and needs windows of requests until it knows better:
in the first minutes it stays behind the best fixed policy, by up to a quarter.

- From time to time it keeps a window of the requests that come (`auto_sample` at most, of some of the objects when more are queued)
  and fits a disk to what requests took: what a jump costs, and a byte.
- Each candidate serves the window again: the same pipeline that OSTs have, in front of that disk. A request comes as long after the
  completion that it followed as it did. The run ends when three quarters of the bytes are served.
- A candidate is better when no more requests are late (deadlines of lock callbacks) and it gives `auto_margin_percent` more bytes per
  second; or fewer are late at as many bytes; or requests are answered four margins sooner at as many bytes. It is chosen when it was
  better in `auto_windows` windows in a row.
- What was chosen and is then measured to be slower than what was before, by two margins and with requests waiting in both, is left
  again, and has to win twice as many windows from then on.
- Nothing is chosen when the model gives less than 0.62 or more than 1.6 times what was measured, when times do not follow from places
  (R2 below 0.1), or when a jump costs less than 3 % of a request. As long as there is no fit because all requests jumped, another
  candidate serves a short window, four times at most.

`nrs_decisions` shows the policy in use and the last 16 decisions: time (s of the server's clock), policy, window, fit, what was
measured, what each candidate gave, and why one was chosen or not. `stria_nrs_auto_judged_total` and `stria_nrs_auto_changes_total` count
them. A change takes everything that is queued over, as one by hand does. Setting a key of the scheduler begins a window anew; setting
the candidates, margin or windows begins the count anew; a recording of the scheduler begins with a fresh `auto`. It decides by calls and
the times that they carry alone: a recording replays with the same decisions.
";

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
