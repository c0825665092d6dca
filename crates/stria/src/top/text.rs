//! A view as lines of text: for a terminal of any width, and as the output of `--once`.
use std::time::Duration;

use types::format_size;

use super::rates::{KindRates, Order, ServerRates, UseRates, View};

/// Keys, as the help shows them.
pub const HELP: &[&str] = &[
    "b r w o n   sort jobs and clients by bytes, read, written, operations (requests), name",
    "k           show or hide kinds of requests and the scheduler under each server",
    "+ -         look less or more often",
    "space       stand still, and go on",
    "arrows      scroll (page up, page down, home, too)",
    "h ?         this help, and back",
    "q Ctrl-C    end",
    "",
    "P50 and P99: the time that half and 99 of 100 requests since the last look did not exceed,",
    "locks and the scheduler's queue included; at most a quarter too long.",
    "QUEUE: requests that wait for the store + those that it works on.",
];

/// How a view is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    /// By what jobs and clients are sorted.
    pub order: Order,
    /// Whether kinds of requests are shown.
    pub kinds: bool,
    /// Jobs and clients shown at most, each.
    pub uses_max: usize,
}

/// A number with at most four signs.
fn short(n: f64) -> String {
    match n {
        n if n < 9.95 && n.fract() > 0.049 => format!("{n:.1}"),
        n if n < 9999.5 => format!("{n:.0}"),
        n if n < 999_500.0 => format!("{:.0}k", n / 1e3),
        n if n < 999.5e6 => format!("{:.0}M", n / 1e6),
        n => format!("{:.0}G", n / 1e9),
    }
}

fn bytes(per_s: f64) -> String {
    if per_s < 1.0 { "-".into() } else { format_size(per_s as u64) }
}

fn time(d: Option<Duration>) -> String {
    let Some(us) = d.map(|d| d.as_micros() as f64) else { return "-".into() };
    match us {
        us if us < 999.5 => format!("{us:.0}us"),
        us if us < 9950.0 => format!("{:.1}ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0}ms", us / 1e3),
        us => format!("{:.1}s", us / 1e6),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |s| format!("{:.0}%", s * 100.0))
}

/// How a server stands, in a word.
fn state(s: &ServerRates) -> String {
    match (&s.server.numbers, s.server.state.as_str()) {
        (Some(n), _) if n.recovery.is_some() => "recovers".into(),
        (Some(_), "Full") => "serves".into(),
        (Some(_), other) => other.to_lowercase(),
        (None, "Full" | "Replaying") => "SILENT".into(),
        (None, _) => "AWAY".into(),
    }
}

/// Lines of at most `width` characters; those that a narrow terminal cannot hold are cut.
#[must_use]
pub fn lines(view: &View, layout: Layout, width: usize) -> Vec<String> {
    let mut out = vec![format!(
        "{:<10} {:<9} {:>6} {:>7} {:>7} {:>6} {:>6} {:>6} {:>4} {:>5}",
        "SERVER", "STATE", "REQ/S", "READ/S", "WRITE/S", "QUEUE", "P50", "P99", "HIT", "USED"
    )];
    for s in &view.servers {
        out.extend(server(s, layout.kinds));
    }
    for (title, all) in [("JOB", &view.jobs), ("CLIENT", &view.clients)] {
        out.push(String::new());
        out.push(format!("{title:<36} {:>8} {:>9} {:>9}", "REQ/S", "READ/S", "WRITE/S"));
        out.extend(uses(all, layout));
    }
    out.iter().map(|l| cut(l, width)).collect()
}

/// The first `width` characters.
#[must_use]
pub fn cut(line: &str, width: usize) -> String {
    // What servers and jobs are called must not move the cursor.
    line.chars().map(|c| if c.is_control() { '?' } else { c }).take(width).collect()
}

fn server(s: &ServerRates, kinds: bool) -> Vec<String> {
    let head = format!("{:<10} {:<9}", s.server.short(), state(s));
    let Some(n) = &s.server.numbers else {
        let why = match (s.server.state.as_str(), &s.server.failure) {
            ("Full" | "Replaying", _) => "does not answer".to_string(),
            (_, Some(failure)) => failure.clone(),
            (other, None) => other.to_lowercase(),
        };
        let nid = s.server.nid.trim_start_matches("tcp:");
        return vec![format!("{head} {nid} {why}: 'stria status'")];
    };
    let all = s.all.as_ref();
    let queue = n.queue.map_or("-".into(), |[queued, serving]| format!("{queued}+{serving}"));
    let used = n.space.filter(|[total, _]| *total > 0).map(|[total, free]| 1.0 - free.min(total) as f64 / total as f64);
    let mut out = vec![format!(
        "{head} {:>6} {:>7} {:>7} {:>6} {:>6} {:>6} {:>4} {:>5}",
        all.map_or("-".into(), |a| short(a.per_s)),
        bytes(s.bytes_per_s[0]),
        bytes(s.bytes_per_s[1]),
        queue,
        time(all.and_then(|a| a.p50)),
        time(all.and_then(|a| a.p99)),
        percent(s.cache_hits),
        percent(used)
    )];
    if let Some([left, clients]) = n.recovery {
        out.push(format!("  waits for {clients} client(s), {left} s at most: 'stria abort-recovery' ends that"));
    }
    if kinds {
        let kind = |k: &KindRates| format!("{} {}/s {}..{}", k.name, short(k.per_s), time(k.p50), time(k.p99));
        let policy = n.policy.iter().map(|p| format!("nrs {p}"));
        let parts: Vec<String> = policy.chain(s.kinds.iter().map(kind)).collect();
        if !parts.is_empty() {
            out.push(format!("  {}", parts.join("  ")));
        }
    }
    out
}

fn uses(all: &[UseRates], layout: Layout) -> Vec<String> {
    let mut all = all.to_vec();
    layout.order.sort(&mut all);
    let more = all.len().saturating_sub(layout.uses_max);
    let line = |u: &UseRates| {
        format!("{:<36} {:>8} {:>9} {:>9}", cut(&u.name, 36), short(u.per_s), bytes(u.read_per_s), bytes(u.write_per_s))
    };
    let mut out: Vec<String> = all.iter().take(layout.uses_max).map(line).collect();
    if all.is_empty() {
        out.push("(nobody since the last look)".into());
    }
    if more > 0 {
        out.push(format!("({more} more)"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::rates::History;
    use super::super::sample::Sample;
    use super::super::sample::tests::look;
    use super::*;

    fn view() -> View {
        let mut history = History::default();
        history.view(&Sample::read(&look(5, 100)));
        history.view(&Sample::read(&look(25, 102)))
    }

    #[test]
    fn a_view_is_a_page_of_80_columns() {
        let layout = Layout { kinds: true, uses_max: 9, ..Layout::default() };
        let shown = lines(&view(), layout, 80);
        let expected = "\
SERVER     STATE      REQ/S  READ/S WRITE/S  QUEUE    P50    P99  HIT  USED
MDT0000    recovers      10       -       -      -  3.1ms  3.1ms    -   75%
  waits for 1 client(s), 23 s at most: 'stria abort-recovery' ends that
  open 10/s 3.1ms..3.1ms  params 10/s 112us..112us
OST0000    serves        10     40K       -    3+8  112us  112us  50%   60%
  nrs crr  nrs_wait 10/s 3.1ms..3.1ms  read 10/s 112us..112us
OST0001    SILENT    127.0.0.1:3 does not answer: 'stria status'

JOB                                     REQ/S    READ/S   WRITE/S
dd.0                                       20       40K         -

CLIENT                                  REQ/S    READ/S   WRITE/S
000000000000000a                           20       40K         -";
        assert_eq!(shown.join("\n"), expected);
        assert!(lines(&view(), layout, 7).iter().all(|l| l.chars().count() <= 7));
    }

    #[test]
    fn numbers_take_few_signs_whatever_their_size() {
        assert_eq!(
            [0.0, 0.4, 9.96, 1234.4, 12_345.0, 3.2e6, 7e12].map(short),
            ["0", "0.4", "10", "1234", "12k", "3M", "7000G"]
        );
        let us = |n| time(Some(Duration::from_micros(n)));
        assert_eq!([3, 1500, 15_000, 2_500_000].map(us), ["3us", "1.5ms", "15ms", "2.5s"]);
        assert_eq!((time(None), percent(None), bytes(0.0)), ("-".into(), "-".into(), "-".into()));
    }

    #[test]
    fn names_cannot_move_the_cursor_and_the_rest_is_counted() {
        let mut v = view();
        v.jobs = (0..5).map(|i| UseRates { name: format!("\x1b[2J{i}"), per_s: 1.0, ..UseRates::default() }).collect();
        let shown = lines(&v, Layout { uses_max: 3, ..Layout::default() }, 80).join("\n");
        assert!(!shown.contains('\x1b') && shown.contains("?[2J0") && shown.contains("(2 more)"), "{shown}");
    }
}
