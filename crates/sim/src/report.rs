//! The report: one self-contained HTML page of all experiments, with claim, expectation, measurement, plot and verdict.
//! What misses is marked as such and counted at the top.
use crate::cli::{condition, expected, number};
use crate::experiment::{Experiment, Outcome, peak_memory_mib};
use crate::plot::{escape, pictures};
use std::fmt::Write as _;

const STYLE: &str = "
:root{--ink:#0f172a;--soft:#475569;--line:#e2e8f0;--paper:#fff;--wash:#f8fafc;--good:#047857;--bad:#b91c1c;--mute:#64748b}
@media(prefers-color-scheme:dark){:root{--ink:#e2e8f0;--soft:#94a3b8;--line:#334155;--paper:#0f172a;--wash:#1e293b;--good:#34d399;--bad:#f87171;--mute:#94a3b8}}
*{box-sizing:border-box}body{margin:0;font:16px/1.55 system-ui,-apple-system,'Segoe UI',sans-serif;color:var(--ink);background:var(--paper)}
main{max-width:62rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}h1{font-size:1.9rem;margin:0 0 .4rem}h2{font-size:1.15rem;margin:0 0 .2rem}
.lead{color:var(--soft);max-width:46rem}.meta{color:var(--mute);font-size:.86rem}
article{border:1px solid var(--line);border-radius:10px;padding:1.15rem 1.3rem;margin:1.4rem 0;overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;margin:.7rem 0}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
.holds{color:var(--good);font-weight:600}.misses{color:var(--bad);font-weight:700}.not{color:var(--mute)}
svg{max-width:100%;height:auto;margin:.5rem 0;border:1px solid var(--line);border-radius:8px}
code{font:.88em ui-monospace,monospace;background:var(--wash);padding:.1em .35em;border-radius:4px}
a{color:inherit}.toc td:first-child{font-weight:600}";

/// The page.
#[must_use]
pub fn html(experiments: &[Experiment]) -> String {
    let count = |o: Outcome| experiments.iter().flat_map(|e| &e.verdicts).filter(|v| v.outcome == o).count();
    let (holds, misses, absent) = (count(Outcome::Holds), count(Outcome::Misses), count(Outcome::NotMeasured));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>Stria: experiments</title><style>{STYLE}</style></head><body><main>\n<h1>Experiments</h1>\n<p class=\"lead\">What the papers claim and what Stria's simulator measures, scenario by scenario. One of paper 001's GB/s is 1000 MiB/s. A scenario and a seed repeat byte for byte; the state hash says so.</p>\n<p><span class=\"holds\">{holds} expectations hold</span>, <span class=\"{}\">{misses} miss</span>, <span class=\"not\">{absent} not measured</span>, in {} scenarios.</p>\n",
        if misses > 0 { "misses" } else { "not" },
        experiments.len()
    );
    contents(&mut out, experiments);
    for e in experiments {
        article(&mut out, e);
    }
    let wall: f64 = experiments.iter().flat_map(|e| &e.points).map(|p| p.wall_s).fold(0.0, |a, b| a + b);
    let events: u64 = experiments.iter().flat_map(|e| &e.points).map(|p| p.events).sum();
    let _ = writeln!(
        out,
        "<p class=\"meta\">{:.1} million events in {wall:.1} s on one core, at most {:.0} MiB.</p>\n</main></body></html>",
        events as f64 / 1e6,
        peak_memory_mib()
    );
    out
}

fn overall(e: &Experiment) -> (&'static str, &'static str) {
    if e.verdicts.iter().any(|v| v.outcome == Outcome::Misses) {
        return ("misses", "misses");
    }
    if e.verdicts.iter().any(|v| v.outcome == Outcome::Holds) {
        return ("holds", "holds");
    }
    ("not", if e.scenario.test.is_empty() { "not measured" } else { "test of its room" })
}

fn contents(out: &mut String, experiments: &[Experiment]) {
    out.push_str("<table class=\"toc\"><tr><th>id</th><th>claim</th><th>source</th><th>verdict</th></tr>\n");
    for e in experiments {
        let s = &e.scenario;
        let (class, word) = overall(e);
        let (id, title, source) = (escape(&s.id), escape(&s.title), escape(&s.source));
        let _ = writeln!(
            out,
            "<tr><td><a href=\"#{id}\">{id}</a></td><td>{title}</td><td>{source}</td><td class=\"{class}\">{word}</td></tr>"
        );
    }
    out.push_str("</table>\n");
}

fn article(out: &mut String, e: &Experiment) {
    let s = &e.scenario;
    let (id, title) = (escape(&s.id), escape(&s.title));
    let _ = writeln!(
        out,
        "<article id=\"{id}\"><h2>{id}: {title}</h2><p class=\"meta\">{}, {}</p><p>{}</p>",
        escape(&s.source),
        s.status.name(),
        escape(&s.description)
    );
    if !s.test.is_empty() {
        let _ = writeln!(out, "<p>Shown by a test of its room: <code>{}</code></p>", escape(&s.test));
    }
    for picture in pictures(e) {
        out.push_str(&picture);
    }
    verdicts(out, e);
    if let Some(main) = e.main_point() {
        let changed = main.params.changed().map(|(k, v)| format!("<code>{}={}</code>", escape(k), escape(v)));
        let events: u64 = e.points.iter().map(|p| p.events).sum();
        let wall: f64 = e.points.iter().map(|p| p.wall_s).fold(0.0, |a, b| a + b);
        let _ = writeln!(
            out,
            "<p class=\"meta\">{} points, {events} events, {wall:.2} s, state hash <code>{:016x}</code><br>{}</p>",
            e.points.len(),
            main.hash,
            changed.collect::<Vec<_>>().join(" ")
        );
    }
    out.push_str("</article>\n");
}

fn verdicts(out: &mut String, e: &Experiment) {
    if e.verdicts.is_empty() {
        return;
    }
    out.push_str("<table><tr><th>metric</th><th>where</th><th>expected</th><th>measured</th><th>status</th><th>verdict</th></tr>\n");
    for v in &e.verdicts {
        let class = match v.outcome {
            Outcome::Holds => "holds",
            Outcome::Misses => "misses",
            Outcome::NotMeasured => "not",
        };
        let mut place = condition(v);
        if !v.expect.note.is_empty() {
            place = format!("{place}{}{}", if place.is_empty() { "" } else { "; " }, v.expect.note);
        }
        if !v.expect.known_miss.is_empty() {
            place = format!("{place}; known miss: {}", v.expect.known_miss);
        }
        let status = if v.expect.beyond { "BEYOND" } else { v.expect.status.unwrap_or(e.scenario.status).name() };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{status}</td><td class=\"{class}\">{}</td></tr>",
            escape(&v.expect.metric),
            escape(&place),
            escape(&expected(v)),
            v.measured.map_or("-".to_string(), number),
            v.outcome.name()
        );
    }
    out.push_str("</table>\n");
}
