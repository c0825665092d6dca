//! What was found, as tables and as JSON.
use std::fmt::Write as _;

use bench::report::new_table;
use serde_json::{Value, json};
use types::format_size;

use crate::descent::{Course, Finding, ROUNDS, Verdict};
use crate::factor::{Factor, Place};
use crate::judge::{Gain, THRESHOLD};
use crate::run::Found;

/// A setting that is recommended.
#[derive(Clone, Debug)]
pub struct Recommendation {
    /// Which.
    pub factor: Factor,
    /// Its value.
    pub value: String,
    /// What it is expected to give.
    pub gain: Gain,
    /// Numbers of the runs behind it.
    pub runs: Vec<usize>,
    /// It was not measured on the cluster.
    pub is_simulated: bool,
}

fn recommended(factors: &[Factor], course: &Course, is_simulated: bool) -> Vec<Recommendation> {
    let one = |f: &Finding| match &f.verdict {
        Verdict::Recommended { value, gain } => Some(Recommendation {
            factor: factors[f.factor].clone(),
            value: value.clone(),
            gain: *gain,
            runs: f.tested.as_ref().map(|t| t.runs.clone()).unwrap_or_default(),
            is_simulated,
        }),
        _ => None,
    };
    course.findings.iter().filter_map(one).collect()
}

/// A value as people read it.
#[must_use]
pub fn shown(place: Place, value: &str) -> String {
    match (place, value.parse::<u64>()) {
        (Place::StripeCount, _) if value == "-1" => "all OSTs (-1)".into(),
        (Place::StripeSize | Place::Transfer, Ok(bytes)) => format_size(bytes),
        _ => value.into(),
    }
}

/// A word of a command line.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

impl Found {
    /// Everything that is recommended, measured first.
    #[must_use]
    pub fn recommendations(&self) -> Vec<Recommendation> {
        let mut all = recommended(&self.factors, &self.course, false);
        if let Some(s) = &self.simulated {
            // What was measured as well speaks for itself.
            let measured: Vec<&str> = all.iter().map(|r| r.factor.name).collect();
            let more = recommended(&s.factors, &s.course, true);
            let more: Vec<_> = more.into_iter().filter(|r| !measured.contains(&r.factor.name)).collect();
            all.extend(more);
        }
        all
    }

    /// Why a recommendation is not applied.
    #[must_use]
    pub fn why_not(&self, r: &Recommendation) -> Option<String> {
        if r.factor.place.is_the_programs() {
            return Some("the program has to be started with it".into());
        }
        if r.is_simulated && !self.options.servers {
            return Some("it was simulated, and acts on everybody's requests: allow it with --servers".into());
        }
        if r.is_simulated {
            return match self.simulated.as_ref().and_then(|s| s.check.as_ref()?.measured) {
                Some(g) if g.is_loss() => Some(format!("on the cluster it was worse: {}", g.text())),
                Some(_) => None,
                None => Some("it was not measured on the cluster".into()),
            };
        }
        match &self.course.check {
            Some(check) if check.holds() => None,
            _ => Some("all recommendations together were not surely better than today's values".into()),
        }
    }

    /// Commands that set what is recommended, and those that go back.
    #[must_use]
    pub fn commands(&self) -> (Vec<String>, Vec<String>) {
        let (mut there, mut back) = (Vec::new(), Vec::new());
        let (mount, dir) = (self.options.mount.to_string_lossy(), self.options.dir.to_string_lossy());
        let all = self.recommendations();
        if all.iter().any(|r| r.factor.place.is_layout()) {
            let values = |chosen: bool| {
                let one = |place: Place| {
                    let at = self.factors.iter().position(|f| f.place == place)?;
                    let value = if chosen { &self.course.choice[at] } else { &self.factors[at].now };
                    Some(format!(" {} {value}", self.factors[at].key))
                };
                [one(Place::StripeCount), one(Place::StripeSize)].into_iter().flatten().collect::<String>()
            };
            there.push(format!("stria setstripe{} {}", values(true), quoted(&dir)));
            back.push(match self.has_layout {
                true => format!("stria setstripe{} {}", values(false), quoted(&dir)),
                false => format!("stria setstripe -d {}", quoted(&dir)),
            });
        }
        for r in &all {
            let line = |value: &str| {
                let word = quoted(&format!("{}={value}", r.factor.key));
                format!("stria set_param --at {} {word}", quoted(&mount))
            };
            match r.factor.place {
                Place::Mount | Place::Server => {
                    there.push(line(&r.value));
                    back.push(line(&r.factor.now));
                }
                Place::Processes => there.push(format!("# start the program with {} processes", r.value)),
                Place::Transfer => {
                    let size = shown(r.factor.place, &r.value);
                    there.push(format!("# have the program read and write {size} at a time"));
                }
                Place::StripeCount | Place::StripeSize => {}
            }
        }
        (there, back)
    }

    /// The tables.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (w, bytes) in self.options.workloads.iter().zip(self.bytes.iter().map(Some).chain(std::iter::repeat(None)))
        {
            let size = bytes.map_or(String::new(), |b| format!("; {} a run", format_size(*b)));
            let _ = writeln!(out, "workload {}{size}", w.text());
        }
        if let Some(e) = &self.course.ended {
            let _ = writeln!(out, "the search ended early: {e}; what follows was found until then");
        }
        out += &self.recommended_text();
        let measured = (&self.factors[..], &self.course, "measured on this mount");
        let simulated = self.simulated.as_ref().map(|s| (&s.factors[..], &s.course, "simulated"));
        for (factors, course, how) in std::iter::once(measured).chain(simulated) {
            out += &others_text(factors, course, how);
        }
        if let Some(s) = &self.simulated {
            let _ = writeln!(out, "simulated: {}", s.setting.text());
            let _ = writeln!(
                out,
                "intervals of simulated gains are those of the seeds; how far the model is off comes on top"
            );
        }
        out += &self.check_text();
        let (there, back) = self.commands();
        if !there.is_empty() {
            let _ = writeln!(out, "\nto set it (set_param -P keeps parameters for good):");
            there.iter().for_each(|c| out += &format!("  {c}\n"));
            let _ = writeln!(out, "to go back:");
            back.iter().for_each(|c| out += &format!("  {c}\n"));
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        let failed = self.course.runs.iter().enumerate().filter_map(|(i, r)| Some((i, r.failed.as_ref()?)));
        for (i, why) in failed {
            let _ = writeln!(out, "run {i} failed: {why}");
        }
        out
    }

    fn recommended_text(&self) -> String {
        let all = self.recommendations();
        if all.is_empty() {
            let least = THRESHOLD * 100.0;
            return format!(
                "nothing is recommended, for no gain is surely above {least:.0} %: today's settings stay\n"
            );
        }
        let mut table = new_table(&["setting", "now", "recommended", "expected gain %", "95 % interval", "behind it"]);
        for r in &all {
            let p = r.factor.place;
            let how = if r.is_simulated { "simulated pairs" } else { "pairs" };
            table.add_row([
                r.factor.name.to_string(),
                shown(p, &r.factor.now),
                shown(p, &r.value),
                format!("{:+.1}", r.gain.mean * 100.0),
                format!("{:+.1} to {:+.1}", r.gain.low * 100.0, r.gain.high * 100.0),
                format!("{} {how}: runs {}", r.gain.pairs, ranges(&r.runs)),
            ]);
        }
        format!("{table}\n")
    }

    fn check_text(&self) -> String {
        let mut out = String::new();
        if let Some(check) = &self.course.check {
            let runs = ranges(&check.runs);
            let predicted = check.predicted.text();
            let _ = match check.measured {
                Some(m) => writeln!(
                    out,
                    "check, all measured recommendations together against today: predicted {predicted}, measured {} ({} pairs: runs {runs}){}",
                    m.text(),
                    m.pairs,
                    if check.holds() { "" } else { ": not surely better, so keep today's settings" }
                ),
                None => {
                    writeln!(out, "check: predicted {predicted}; there was no time to measure it, so take it with care")
                }
            };
        }
        if let Some(s) = &self.simulated
            && let Some(simulated) = &s.course.check
        {
            let all = simulated.measured.unwrap_or(simulated.predicted).text();
            let measured = match s.check.as_ref() {
                Some(check) => match check.measured {
                    Some(g) => format!(
                        "measured by this mount alone {} ({} pairs: runs {})",
                        g.text(),
                        g.pairs,
                        ranges(&check.runs)
                    ),
                    None => "there was no time to measure it".into(),
                },
                None => "not tried on the cluster (--servers)".into(),
            };
            let _ = writeln!(out, "check, all simulated recommendations together: simulated {all}; {measured}");
        }
        out
    }

    /// One JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let o = &self.options;
        let (there, back) = self.commands();
        let one = |r: &Recommendation| {
            json!({
                "setting": r.factor.name, "key": r.factor.key, "now": r.factor.now, "value": r.value, "gain": r.gain,
                "runs": r.runs, "simulated": r.is_simulated, "not_applied": self.why_not(r),
            })
        };
        let runs = self.course.runs.iter().enumerate().map(|(i, run)| {
            let mut run = json!(run);
            run["run"] = json!(i);
            run["did"] = json!(self.details.get(i));
            run
        });
        let simulated = self.simulated.as_ref().map(|s| {
            json!({
                "setting": s.setting, "factors": s.factors, "findings": s.course.findings, "runs": s.course.runs,
                "check": s.course.check, "check_on_cluster": s.check,
            })
        });
        json!({
            "tool": "stria tune", "version": env!("CARGO_PKG_VERSION"), "mount": o.mount, "dir": o.dir,
            "seconds_max": o.limit_s, "threshold": THRESHOLD, "workloads": o.workloads, "run_bytes": self.bytes,
            "recommended": self.recommendations().iter().map(one).collect::<Vec<_>>(),
            "check": self.course.check, "check_holds": self.course.check.as_ref().map(|c| c.holds()),
            "commands": there, "commands_back": back, "factors": self.factors, "findings": self.course.findings,
            "runs": runs.collect::<Vec<_>>(), "simulated": simulated, "notes": self.notes,
            "ended": self.course.ended.as_ref().map(|e| e.text.clone()),
        })
    }
}

/// Factors for which nothing is recommended: what was tried, and why today's value stays.
fn others_text(factors: &[Factor], course: &Course, how: &str) -> String {
    // What is simulated has no candidates here.
    let is_shown = |f: &&Finding| {
        let left = factors[f.factor].place == Place::Server && factors[f.factor].candidates.is_empty();
        !left && !matches!(f.verdict, Verdict::Recommended { .. })
    };
    let rest: Vec<&Finding> = course.findings.iter().filter(is_shown).collect();
    if rest.is_empty() {
        return String::new();
    }
    let title = format!("{how}: stays");
    let mut table = new_table(&[&title, "now", "tried (gain against now)", "why"]);
    for f in rest {
        let factor = &factors[f.factor];
        let tried = f.tried.iter().map(|t| {
            let value = shown(factor.place, &t.value);
            match (&t.given_up, t.gain) {
                (Some(why), _) => format!("{value}: {why}"),
                (None, Some(g)) => format!("{value}: {}", g.text()),
                (None, None) => format!("{value}: too few rounds"),
            }
        });
        let mut tried: Vec<String> = tried.collect();
        if let Some((value, g)) = f.tested.as_ref().and_then(|t| Some((&t.value, t.gain?))) {
            tried.push(format!("{} again: {}", shown(factor.place, value), g.text()));
        }
        let why = match &f.verdict {
            Verdict::NotMeasured { why } => why.clone(),
            _ if f.tried.iter().any(|t| t.gain.is_some_and(|g| g.is_loss())) => "no better value found".into(),
            _ => "no difference found".into(),
        };
        table.add_row([factor.name.to_string(), shown(factor.place, &factor.now), tried.join("\n"), why]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(bench::report::CellAlignment::Left);
    }
    format!("{table}\nintervals at 95 %, of {ROUNDS} rounds\n")
}

/// Numbers as ranges: `3-7,9`.
fn ranges(numbers: &[usize]) -> String {
    let mut all: Vec<(usize, usize)> = Vec::new();
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    for n in sorted {
        match all.last_mut() {
            Some((_, end)) if *end + 1 == n => *end = n,
            _ => all.push((n, n)),
        }
    }
    let one = |(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    all.iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
