//! How an experiment is printed: as text for people, as one JSON object for programs.
use crate::experiment::{Experiment, Point, Verdict, peak_memory_mib};
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
        object.insert("seeds".into(), json!(s.seeds));
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
    object.insert("holds".into(), json!(e.holds()));
    object.insert("events_total".into(), json!(e.points.iter().map(|p| p.events).sum::<u64>()));
    object.insert("wall_seconds_total".into(), json!(e.points.iter().map(|p| p.wall_s).fold(0.0, |a, b| a + b)));
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
        if let Some((_, low, high)) = p.spread.iter().find(|s| s.0 == m.name) {
            v["min"] = json!(low);
            v["max"] = json!(high);
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
    o.insert("events".into(), json!(p.events));
    o.insert("virtual_seconds".into(), json!(p.virtual_s));
    o.insert("wall_seconds".into(), json!(p.wall_s));
    o.insert("events_per_wall_second".into(), json!(p.events as f64 / p.wall_s.max(1e-9)));
    o.insert("state_hash".into(), json!(format!("{:016x}", p.hash)));
    o
}

fn verdict(v: &Verdict) -> Value {
    let e = &v.expect;
    let pairs = |p: &[(String, String)]| json!(p.iter().cloned().collect::<std::collections::BTreeMap<_, _>>());
    json!({
        "metric": e.metric, "at": e.at, "when": pairs(&e.when), "relative_to": pairs(&e.relative_to),
        "value": e.value, "min": e.min, "max": e.max, "beyond": e.beyond, "note": e.note,
        "status": e.status.map(|s| s.name()), "measured": v.measured, "verdict": v.outcome.name(),
    })
}

/// What is expected, in words: `nrs.policy=obrr`.
pub(crate) fn condition(v: &Verdict) -> String {
    let join = |p: &[(String, String)]| p.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(", ");
    let mut text = join(&v.expect.when);
    if !v.expect.relative_to.is_empty() {
        text = format!("{text}{}against {}", if text.is_empty() { "" } else { " " }, join(&v.expect.relative_to));
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
            table.add_row([m.name.clone(), number(m.value), m.unit.to_string()]);
        }
        out.push_str(&format!("{table}\n"));
    }
    if !e.verdicts.is_empty() {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(["verdict", "metric", "where", "expected", "measured"]);
        for v in &e.verdicts {
            let measured = v.measured.map_or("-".to_string(), number);
            table.add_row([v.outcome.name().to_string(), v.expect.metric.clone(), condition(v), expected(v), measured]);
        }
        out.push_str(&format!("{table}\n"));
    }
    let (events, wall) =
        (e.points.iter().map(|p| p.events).sum::<u64>(), e.points.iter().map(|p| p.wall_s).fold(0.0, |a, b| a + b));
    let hash = e.main_point().map_or(0, |p| p.hash);
    out.push_str(&format!(
        "{events} events in {wall:.2} s ({:.1} M/s), peak {:.0} MiB, state hash {hash:016x}\n",
        events as f64 / wall.max(1e-9) / 1e6,
        peak_memory_mib()
    ));
    out
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
        let measured = metrics.iter().map(|m| p.metrics.get(m).map_or("-".to_string(), number));
        table.add_row(values.chain(measured));
    }
    format!("{table}\n")
}
