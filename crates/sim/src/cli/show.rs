//! How an experiment is printed: as text for people, as one JSON object for programs.
use crate::experiment::{Effect, Estimate, Experiment, Point, Verdict, peak_memory_mib};
use comfy_table::{Table, presets};
use serde_json::{Map, Value, json};

/// One JSON object: id, seed, parameters, metrics with units, expectations and verdicts, cost, state hash.
pub(super) fn json(e: &Experiment) -> String {
    let s = &e.scenario;
    let mut object = Map::new();
    object.insert("id".into(), json!(s.id));
    object.insert("title".into(), json!(s.title));
    object.insert("source".into(), json!(s.source));
    object.insert("status".into(), json!(s.status.name()));
    if let Some(main) = e.main_point() {
        object.insert("seed".into(), json!(main.params.int("seed")));
        object.insert("seeds".into(), json!(main.samples.iter().map(|s| s.seed).collect::<Vec<_>>()));
        object.extend(point_fields(main));
    }
    if e.points.len() > 1 {
        let points = e.points.iter().map(|p| {
            let mut o = point_fields(p);
            o.insert("at".into(), json!(p.at.iter().cloned().collect::<std::collections::BTreeMap<_, _>>()));
            o.remove("parameters");
            Value::Object(o)
        });
        object.insert("points".into(), Value::Array(points.collect()));
    }
    object.insert("expected".into(), Value::Array(e.verdicts.iter().map(verdict).collect()));
    if !e.readings.is_empty() {
        let effect = |r: &Effect| {
            let measured: Vec<Value> = r.verdicts.iter().map(verdict).collect();
            json!({"reading": r.name, "set": r.keys, "expected": measured})
        };
        object.insert("readings".into(), Value::Array(e.readings.iter().map(effect).collect()));
    }
    object.insert("holds".into(), json!(e.holds()));
    object.insert("events_total".into(), json!(e.events()));
    object.insert("wall_seconds_total".into(), json!(e.wall_s()));
    object.insert("peak_memory_mib".into(), json!(peak_memory_mib()));
    if !s.test.is_empty() {
        object.insert("test".into(), json!(s.test));
    }
    Value::Object(object).to_string()
}

fn point_fields(p: &Point) -> Map<String, Value> {
    let mut o = Map::new();
    o.insert("parameters".into(), json!(p.params.typed()));
    let metrics = p.metrics.values.iter().map(|m| {
        let mut v = json!({"value": m.value, "unit": m.unit});
        if let Some(e) = p.estimate(&m.name).filter(|e| e.seeds > 1) {
            v["half_width_95"] = json!(e.half_width);
            v["min"] = json!(e.least);
            v["max"] = json!(e.greatest);
        }
        (m.name.clone(), v)
    });
    o.insert("metrics".into(), Value::Object(metrics.collect()));
    if !p.metrics.curves.is_empty() {
        o.insert(
            "curves".into(),
            json!(p.metrics.curves.iter().cloned().collect::<std::collections::BTreeMap<_, _>>()),
        );
    }
    o.insert("events".into(), json!(p.events()));
    o.insert("virtual_seconds".into(), json!(p.virtual_s()));
    o.insert("wall_seconds".into(), json!(p.wall_s()));
    o.insert("events_per_wall_second".into(), json!(p.events() as f64 / p.wall_s().max(1e-9)));
    o.insert("state_hash".into(), json!(format!("{:016x}", p.hash())));
    o
}

fn verdict(v: &Verdict) -> Value {
    let e = &v.expect;
    let pairs = |p: &[(String, String)]| json!(p.iter().cloned().collect::<std::collections::BTreeMap<_, _>>());
    json!({
        "metric": e.metric, "at": e.at, "when": pairs(&e.when), "relative_to": pairs(&e.relative_to),
        "value": e.value, "min": e.min, "max": e.max, "beyond": e.beyond, "note": e.note,
        "status": e.status.map(|s| s.name()), "measured": v.measured.map(|m| m.mean),
        "half_width_95": v.measured.map(|m| m.half_width), "seeds": v.measured.map(|m| m.seeds),
        "over": e.over.as_ref().map(|o| &o.0), "trend": e.over.as_ref().map(|o| o.1.name()),
        "known_miss": e.known_miss.as_ref().map(|k| json!({"value": k.value, "tolerance_percent": k.tolerance_percent, "why": k.why})),
        "close": v.is_close(), "verdict": v.outcome.name(),
    })
}

/// What is expected, in words: `nrs.policy=obrr`.
pub(crate) fn condition(v: &Verdict) -> String {
    let join = |p: &[(String, String)]| p.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(", ");
    let mut text = join(&v.expect.when);
    if !v.expect.relative_to.is_empty() {
        text = format!("{text}{}against {}", if text.is_empty() { "" } else { " " }, join(&v.expect.relative_to));
    }
    if let Some((key, trend)) = &v.expect.over {
        text = format!("{text}{}{} over {key}: worst step", if text.is_empty() { "" } else { " " }, trend.name());
    }
    if let Some(x) = v.expect.at {
        text = format!("{text}{}at {x}", if text.is_empty() { "" } else { ", " });
    }
    text
}

/// The expected value and its bounds, in words.
pub(crate) fn expected(v: &Verdict) -> String {
    let e = &v.expect;
    let bounds = match (e.min, e.max) {
        (Some(a), Some(b)) => format!("{}..{}", number(a), number(b)),
        (Some(a), None) => format!(">= {}", number(a)),
        (None, Some(b)) => format!("<= {}", number(b)),
        (None, None) => String::new(),
    };
    match e.value {
        Some(x) => format!("{} ({bounds})", number(x)),
        None => bounds,
    }
}

/// What was measured, with its interval, in words; `~` where a bound lies in the interval.
pub(crate) fn measured(v: &Verdict) -> String {
    v.measured.map_or("-".to_string(), |m| format!("{}{}", interval(&m), if v.is_close() { " ~" } else { "" }))
}

/// `14.8 ± 0.2`; without seeds that differ the mean alone.
pub(crate) fn interval(e: &Estimate) -> String {
    if e.half_width > e.mean.abs() * 1e-9 {
        format!("{} \u{b1} {}", number(e.mean), two_digits(e.half_width))
    } else {
        number(e.mean)
    }
}

/// Two significant digits, no exponent.
fn two_digits(x: f64) -> String {
    let digits = (1 - x.abs().log10().floor() as i32).clamp(0, 9);
    format!("{x:.*}", digits as usize)
}

/// Four significant digits, no exponent.
pub(crate) fn number(x: f64) -> String {
    let digits = if x == 0.0 { 0 } else { (3 - x.abs().log10().floor() as i32).clamp(0, 6) };
    let text = format!("{x:.*}", digits as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

/// A page of text: metrics of the main point, sweep, verdicts, cost.
pub(super) fn text(e: &Experiment) -> String {
    let s = &e.scenario;
    let mut out = format!("{}  {}\n{}, {}\n", s.id, s.title, s.source, s.status.name());
    if !s.test.is_empty() {
        out.push_str(&format!("shown by a test of its room: {}\n", s.test));
    }
    if e.points.len() > 1 {
        let wanted: Vec<String> = wanted_metrics(e);
        out.push_str(&sweep_table(e, &wanted));
    } else if let Some(p) = e.main_point() {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        for m in &p.metrics.values {
            let shown = p.estimate(&m.name).map_or_else(|| number(m.value), |e| interval(&e));
            table.add_row([m.name.clone(), shown, m.unit.to_string()]);
        }
        out.push_str(&format!("{table}\n"));
    }
    if !e.verdicts.is_empty() {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(["verdict", "metric", "where", "expected", "measured"]);
        for v in &e.verdicts {
            let row = [v.outcome.name().to_string(), v.expect.metric.clone(), condition(v), expected(v), measured(v)];
            table.add_row(row);
        }
        out.push_str(&format!("{table}\n"));
    }
    if !e.readings.is_empty() {
        out.push_str(&format!("{}\n", readings_table(e)));
    }
    if let Some(main) = e.main_point().filter(|p| p.events() > 0) {
        out.push_str(&format!(
            "{} seeds, {} events in {:.2} s ({:.1} M/s on a core), peak {:.0} MiB, state hash {:016x}\n",
            main.samples.len(),
            e.events(),
            e.wall_s(),
            e.events() as f64 / e.wall_s().max(1e-9) / 1e6,
            peak_memory_mib(),
            main.hash()
        ));
    }
    out
}

/// A row per expectation: as measured, then under each other reading of what the source leaves open.
fn readings_table(e: &Experiment) -> Table {
    let mut table = Table::new();
    let heads = ["under other readings:".to_string(), "as measured".to_string()];
    table
        .load_preset(presets::NOTHING)
        .set_header(heads.into_iter().chain(e.readings.iter().map(|r| r.keys.replace(' ', "\n"))));
    for (i, v) in e.verdicts.iter().enumerate() {
        let what = format!("{} {}", v.expect.metric, condition(v));
        let others = e.readings.iter().map(|r| measured(&r.verdicts[i]));
        table.add_row([what, measured(v)].into_iter().chain(others));
    }
    table
}

fn wanted_metrics(e: &Experiment) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in e.scenario.expect.iter().map(|x| &x.metric).chain(e.scenario.plots.iter().map(|p| &p.y)) {
        if !name.is_empty() && !names.contains(name) && names.len() < 6 {
            names.push(name.clone());
        }
    }
    if names.is_empty() {
        names.push("bandwidth_gb_per_s".to_string());
    }
    names
}

/// A row per point: swept values, then metrics.
pub(super) fn sweep_table(e: &Experiment, metrics: &[String]) -> String {
    let mut table = Table::new();
    let keys = e.scenario.sweep.iter().map(|(k, _)| k.clone());
    table.load_preset(presets::NOTHING).set_header(keys.chain(metrics.iter().cloned()));
    for p in &e.points {
        let values = p.at.iter().map(|(_, v)| v.clone());
        let measured = metrics.iter().map(|m| p.estimate(m).map_or("-".to_string(), |e| interval(&e)));
        table.add_row(values.chain(measured));
    }
    format!("{table}\n")
}

/// One line per point and metric: scenario, swept values, metric, unit, mean, interval, extremes, seeds.
pub(super) fn csv(experiments: &[Experiment]) -> String {
    let mut out = String::from("scenario,point,metric,unit,mean,half_width_95,least,greatest,seeds\n");
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    for e in experiments {
        for p in &e.points {
            let at = p.at.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ");
            for m in &p.metrics.values {
                let Some(v) = p.estimate(&m.name) else { continue };
                out.push_str(&format!(
                    "{},{},{},{},{},{},{},{},{}\n",
                    quoted(&e.scenario.id),
                    quoted(&at),
                    quoted(&m.name),
                    quoted(m.unit),
                    v.mean,
                    v.half_width,
                    v.least,
                    v.greatest,
                    v.seeds
                ));
            }
        }
    }
    out
}
