//! The report: one self-contained HTML page. First every claim of the papers: expected, simulated, real, error, verdict; then
//! all experiments, with expectations, measurements, plots and other readings.
//! What misses is marked as such and counted at the top.
use crate::claims::{Claim, Judged, Real};
use crate::cli::{condition, expected, measured};
use crate::experiment::{Experiment, Outcome, Verdict, peak_memory_mib};
use crate::plot::{escape, pictures};
use crate::scenario::repository;
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
.wide{overflow-x:auto;margin:0 0 1.6rem}a{color:inherit}.toc td:first-child{font-weight:600}";

/// Where and when a report was made.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The commit of the source, with `+` when files were changed; empty outside a repository.
    pub commit: String,
    /// Processor and cores.
    pub machine: String,
    /// Coordinated universal time, `2026-01-31 12:00`.
    pub date: String,
}

impl Origin {
    /// This machine, now, and the repository that the scenarios lie in.
    #[must_use]
    pub fn here() -> Origin {
        let git = |arguments: &[&str]| {
            let done = std::process::Command::new("git").args(arguments).current_dir(repository()).output().ok()?;
            let text = String::from_utf8(done.stdout).ok()?;
            done.status.success().then(|| text.trim().to_string())
        };
        let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|s| !s.is_empty());
        let commit =
            git(&["rev-parse", "--short", "HEAD"]).map_or(String::new(), |c| c + if changed { "+" } else { "" });
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name =
            info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':')).map_or("unknown", |n| n.1.trim());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Origin { commit, machine: format!("{cores} cores, {name}"), date: utc(std::time::SystemTime::now()) }
    }
}

/// A moment in universal time, to the minute (civil calendar from days, as in RFC 3339's years).
fn utc(at: std::time::SystemTime) -> String {
    let seconds = at.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, minutes) = (seconds / 86_400, seconds % 86_400 / 60);
    // Days since 0000-03-01, in eras of 400 years.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * m + 2) / 5 + 1, if m < 10 { m + 3 } else { m - 9 });
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minutes / 60, minutes % 60)
}

/// The rows of the first table.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// What is claimed.
    pub claims: Vec<Claim>,
    /// What real processes gave.
    pub real: Vec<Real>,
}

/// The page.
#[must_use]
pub fn html(experiments: &[Experiment], claims: &Claims, origin: &Origin) -> String {
    let count = |o: Outcome| experiments.iter().flat_map(|e| &e.verdicts).filter(|v| v.outcome == o).count();
    let (holds, absent) = (count(Outcome::Holds), count(Outcome::NotMeasured));
    let (misses, known) = (count(Outcome::Misses) + count(Outcome::Moved), count(Outcome::Known));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>Stria: experiments</title><style>{STYLE}</style></head><body><main>\n<h1>Experiments</h1>\n<p class=\"lead\">What the papers claim and what Stria's simulator measures, scenario by scenario. One of paper 001's GB/s is 1000 MiB/s. A measured value is the mean over the seeds with its 95 % interval (Student's t); ~ says that a bound lies within it. A scenario and a seed repeat byte for byte; the state hash says so.</p>\n<p class=\"meta\">Commit {}, {}, {} UTC.</p>\n<p><span class=\"holds\">{holds} expectations hold</span>, <span class=\"{}\">{misses} miss</span>, <span class=\"not\">{known} miss as known, {absent} not measured</span>, in {} scenarios.</p>\n",
        escape(&origin.commit),
        escape(&origin.machine),
        escape(&origin.date),
        if misses > 0 { "misses" } else { "not" },
        experiments.len()
    );
    claimed(&mut out, experiments, claims);
    contents(&mut out, experiments);
    for e in experiments {
        article(&mut out, e);
    }
    let wall = experiments.iter().fold(0.0, |sum, e| sum + e.wall_s());
    let events: u64 = experiments.iter().map(Experiment::events).sum();
    let _ = writeln!(
        out,
        "<p class=\"meta\">{:.1} million events in {wall:.1} CPU seconds, at most {:.0} MiB.</p>\n</main></body></html>",
        events as f64 / 1e6,
        peak_memory_mib()
    );
    out
}

fn overall(e: &Experiment) -> (&'static str, &'static str) {
    let has = |o: Outcome| e.verdicts.iter().any(|v| v.outcome == o);
    if let Some(bad) = [Outcome::Misses, Outcome::Moved].into_iter().find(|o| has(*o)) {
        return ("misses", bad.name());
    }
    if has(Outcome::Known) {
        return ("not", Outcome::Known.name());
    }
    if has(Outcome::Holds) {
        return ("holds", "holds");
    }
    ("not", if e.scenario.test.is_empty() { "not measured" } else { "test of its room" })
}

/// A row per claim.
fn claimed(out: &mut String, experiments: &[Experiment], of: &Claims) {
    out.push_str("<h2>Claims</h2>\n<div class=\"wide\"><table class=\"toc\"><tr><th>id</th><th>claim</th><th>paper</th><th>expected</th><th>simulated</th><th>error</th><th>real processes</th><th>command</th><th>verdict</th></tr>\n");
    for c in &of.claims {
        let shown: Vec<&Experiment> = experiments.iter().filter(|e| c.simulated.contains(&e.scenario.id)).collect();
        let id = escape(&c.id);
        let link = shown.first().map_or(id.clone(), |e| format!("<a href=\"#{}\">{id}</a>", escape(&e.scenario.id)));
        let judged = c.judged(&of.real);
        let real = judged.iter().map(real_figure).collect::<Vec<_>>().join("<br>");
        let verdicts = || shown.iter().flat_map(|e| &e.verdicts);
        let (class, word) = claims_verdict(&shown, &judged);
        let command = if c.command.is_empty() { String::new() } else { format!("<code>{}</code>", escape(&c.command)) };
        let _ = writeln!(
            out,
            "<tr><td>{link}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{real}</td><td>{command}</td><td class=\"{class}\">{word}</td></tr>",
            escape(&c.claim),
            escape(&c.paper),
            escape(&c.expected),
            simulated(verdicts().collect()),
            escape(&greatest_error(verdicts())),
        );
    }
    out.push_str("</table></div>\n<h2>Scenarios</h2>\n");
}

/// A metric of real processes: what it is, its mean and interval, what is wanted. Its run stands in the title.
fn real_figure(j: &Judged) -> String {
    let class = match j.outcome {
        Some(Outcome::Holds) => "holds",
        Some(Outcome::Misses) => "misses",
        _ => "not",
    };
    let text = if j.text.is_empty() { "not measured" } else { &j.text };
    let bounds = if j.bounds.is_empty() { String::new() } else { format!(" ({})", j.bounds) };
    format!(
        "<span title=\"{}\">{} <span class=\"{class}\">{}</span>{}</span>",
        escape(&j.origin),
        escape(&j.metric.replace('_', " ")),
        escape(text),
        escape(&bounds)
    )
}

/// The worst of a claim's scenarios and of what is wanted of real processes; what only a test shows is called so.
fn claims_verdict(shown: &[&Experiment], judged: &[Judged]) -> (&'static str, &'static str) {
    let rank = |word: &str| match word {
        "misses" | "known miss moved" => 0,
        "misses, known" => 1,
        "not measured" => 2,
        "holds" => 3,
        _ => 4,
    };
    let real = judged.iter().filter_map(|j| match j.outcome? {
        Outcome::Misses => Some(("misses", "misses")),
        Outcome::Holds => Some(("holds", "holds")),
        _ if shown.is_empty() => Some(("not", "not measured")),
        _ => None,
    });
    let worst = shown.iter().map(|e| overall(e)).chain(real).min_by_key(|(_, word)| rank(word));
    worst.unwrap_or(("not", if judged.is_empty() { "not shown" } else { "real only" }))
}

/// The values that answer those of the source, else the first that is judged; the rest are counted.
fn simulated(verdicts: Vec<&Verdict>) -> String {
    const SHOWN: usize = 3;
    let all: Vec<&&Verdict> = verdicts.iter().filter(|v| v.measured.is_some()).collect();
    let valued: Vec<&&&Verdict> = all.iter().filter(|v| v.expect.value.is_some()).collect();
    let first: Vec<String> = match valued.is_empty() {
        true => all.iter().take(1).map(|v| escape(&measured(v))).collect(),
        false => valued.iter().take(SHOWN).map(|v| escape(&measured(v))).collect(),
    };
    let rest = all.len() - first.len();
    let more = if rest > 0 { format!("<br><span class=\"not\">and {rest} more</span>") } else { String::new() };
    first.join("<br>") + &more
}

/// How far from the source's values the measured ones are, at most: in percent of the value, or in points of percent.
fn greatest_error<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> String {
    let (mut percent, mut points): (Option<f64>, Option<f64>) = (None, None);
    for v in verdicts {
        let (Some(value), Some(m)) = (v.expect.value, v.measured) else { continue };
        let off = (m.mean - value).abs();
        if !v.expect.relative_to.is_empty() {
            points = Some(points.unwrap_or(0.0).max(off));
        } else if value != 0.0 {
            percent = Some(percent.unwrap_or(0.0).max(off / value.abs() * 100.0));
        }
    }
    let percent = percent.map(|p| format!("{p:.1} %"));
    let points = points.map(|p| format!("{p:.1} points"));
    percent.into_iter().chain(points).collect::<Vec<_>>().join(", ")
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
    readings(out, e);
    if let Some(main) = e.main_point() {
        let changed = main.params.changed().map(|(k, v)| format!("<code>{}={}</code>", escape(k), escape(v)));
        let _ = writeln!(
            out,
            "<p class=\"meta\">{} points, {} seeds, {} events, {:.2} CPU seconds, state hash <code>{:016x}</code><br>{}</p>",
            e.points.len(),
            main.samples.len(),
            e.events(),
            e.wall_s(),
            main.hash(),
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
            Outcome::Misses | Outcome::Moved => "misses",
            Outcome::Known | Outcome::NotMeasured => "not",
        };
        let mut place = condition(v);
        if !v.expect.note.is_empty() {
            place = format!("{place}{}{}", if place.is_empty() { "" } else { "; " }, v.expect.note);
        }
        if let Some(known) = &v.expect.known_miss {
            place = format!("{place}; known to be {}: {}", known.value, known.why);
        }
        let status = if v.expect.beyond { "BEYOND" } else { v.expect.status.unwrap_or(e.scenario.status).name() };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{status}</td><td class=\"{class}\">{}</td></tr>",
            escape(&v.expect.metric),
            escape(&place),
            escape(&expected(v)),
            escape(&measured(v)),
            v.outcome.name()
        );
    }
    out.push_str("</table>\n");
}

/// What is expected, measured under each other reading of what the source leaves open.
fn readings(out: &mut String, e: &Experiment) {
    if e.readings.is_empty() {
        return;
    }
    out.push_str("<p class=\"meta\">What the source leaves open, read otherwise (three seeds each):</p>\n<table><tr><th>metric</th><th>where</th><th>measured</th>");
    for r in &e.readings {
        let _ = write!(out, "<th title=\"{}\">{}</th>", escape(&r.keys), escape(r.name));
    }
    out.push_str("</tr>\n");
    for (i, v) in e.verdicts.iter().enumerate().filter(|(_, v)| v.measured.is_some()) {
        let (metric, place) = (escape(&v.expect.metric), escape(&condition(v)));
        let _ = write!(out, "<tr><td>{metric}</td><td>{place}</td><td class=\"n\">{}</td>", escape(&measured(v)));
        for r in &e.readings {
            let other = &r.verdicts[i];
            // A bold value is judged otherwise than the scenario's own reading.
            let misses = |v: &Verdict| !matches!(v.outcome, Outcome::Holds);
            let class = if misses(other) && !misses(v) { "n misses" } else { "n" };
            let _ = write!(out, "<td class=\"{class}\">{}</td>", escape(&measured(other)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn a_claim_has_what_is_expected_simulated_and_real_and_how_far_off() {
        let text = "id='R1'\ntitle='t'\nsource='s'\n[params]\nclients=4\noss_count=1\nfile_bytes='2M'\n\
                    [[expect]]\nmetric='requests.bulk'\nvalue=10\ntolerance_percent=50\n";
        let e = crate::experiment::run(crate::scenario::parse("x", text).unwrap(), 0, &mut |_, _, _| {}).unwrap();
        let claim = |id: &str, simulated: &[&str]| Claim {
            id: id.into(),
            claim: "a < b".into(),
            expected: "10".into(),
            simulated: simulated.iter().map(|s| s.to_string()).collect(),
            ..Claim::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.ndjson");
        let row = |metric: &str, value: u32| {
            format!(
                "{{\"metric\":\"{metric}\",\"command\":\"bench/x.sh\",\"samples\":[{value},{value}],\"unit\":\"MB/s\"}}\n"
            )
        };
        std::fs::write(&file, row("R42 write", 112) + &row("R44 write", 90) + &row("R45 write", 90)).unwrap();
        let real = crate::claims::real(&[file]).unwrap();
        let wants = |id: &str| Claim {
            real: vec![crate::claims::Wanted { metric: "write".into(), min: Some(110.0), ..Default::default() }],
            command: "bench/x.sh".into(),
            ..claim(id, &[])
        };
        let rows =
            vec![claim("R1", &["R1"]), wants("R42"), claim("R43", &[]), wants("R44"), claim("R45", &[]), wants("R46")];
        let claims = Claims { claims: rows, real };
        let page = html(&[e], &claims, &Origin::default());
        let row = |id: &str| page.lines().find(|l| l.contains(&format!(">{id}</"))).unwrap().to_string();
        assert!(row("R1").contains("a &lt; b") && row("R1").contains(">8<") && row("R1").contains("20.0 %"), "{page}");
        let good = "title=\"bench/x.sh, ?, commit ?\">write <span class=\"holds\">112 MB/s</span> (&gt;= 110)";
        assert!(
            row("R42").contains(good) && row("R42").contains("<code>bench/x.sh</code></td><td class=\"holds\">holds")
        );
        assert!(
            row("R44").contains("<span class=\"misses\">90 MB/s")
                && row("R44").ends_with("<td class=\"misses\">misses</td></tr>")
        );
        assert!(row("R45").contains("real only") && row("R46").contains("not measured"));
        assert!(row("R43").contains("not shown"));
        assert!(!page.contains("http://") || page.contains("xmlns"), "nothing is fetched from elsewhere");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (1_735_689_599, "2024-12-31 23:59"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), date);
        }
    }
}
