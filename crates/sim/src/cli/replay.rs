//! `stria sim record`, `replay` and `fit`: traces written, given to other settings, fitted.
use super::run::selected;
use super::{FitArgs, RecordArgs, ReplayArgs};
use crate::light::{self, LightConfig};
use crate::replay::{self, Comparison, Loop, Overrides, Value};
use crate::scenario::WorldKind;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde_json::json;
use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use trace::Trace;

fn load(file: &Path) -> Result<Trace, String> {
    let bytes = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    // Schedulers and disks are modelled, metadata targets and locks are not.
    trace::read(&bytes).map(Trace::scheduled).map_err(|e| format!("{}: {e}", file.display()))
}

/// Writes what a light world did.
pub(super) fn record(a: &RecordArgs) -> Result<bool, String> {
    let mut s = selected(&a.selection)?;
    if s.world != WorldKind::Light {
        return Err(format!("{} runs in world {}: only world light has OSTs with a trace", s.id, s.world.name()));
    }
    for (key, values) in &s.sweep {
        if let Some(first) = values.first() {
            s.params.set(key, first)?;
        }
    }
    let config = LightConfig { trace: true, ..LightConfig::from_params(&s.params)? };
    let trace = light::run(&config, &mut |_| {}).trace(&config);
    let failed = |e: std::io::Error| format!("{}: {e}", a.output.display());
    let file = fs::File::create(&a.output).map_err(failed)?;
    let mut out = BufWriter::new(file);
    trace.write(&mut out).and_then(|()| out.flush()).map_err(failed)?;
    super::print(&format!("{}: {} requests of {} OSTs\n", a.output.display(), trace.len(), trace.targets.len()));
    Ok(true)
}

/// Replays a trace.
pub(super) fn replay(a: &ReplayArgs) -> Result<bool, String> {
    let trace = load(&a.file)?;
    let mut asked = Overrides::default();
    for set in &a.set {
        match set.strip_prefix('@') {
            Some(file) => read_keys(&mut asked, Path::new(file))?,
            None => set_one(&mut asked, set, "--set")?,
        }
    }
    let mut device = Overrides::default();
    if let Some(name) = &a.device {
        match devices::profile_names().contains(&name.as_str()) {
            true => device.set("disk.profile", name)?,
            false => read_keys(&mut device, Path::new(name)).map_err(|why| {
                let names = devices::profile_names().join(", ");
                format!("--device {name}: neither a profile ({names}) nor a file of keys: {why}")
            })?,
        }
    }
    let is_simulated = !trace.targets.is_empty() && trace.targets.iter().all(|t| t.setting("seed").is_some());
    let seeds = a.seeds.unwrap_or(if is_simulated { 1 } else { 5 });
    let how = if a.open_loop { Loop::Open } else { Loop::Closed };
    let c = replay::compare(&trace, &device, &asked, how, seeds).map_err(|e| format!("{}: {e}", a.file.display()))?;
    let policies: Vec<&str> = trace.targets.iter().filter_map(|t| t.setting("nrs.policy")).collect();
    let policy = policies.first().copied().unwrap_or("?");
    super::print(&if a.json { object(&c, &asked) } else { text(&c, policy, &asked) });
    Ok(true)
}

/// Adds `KEY=VALUE`.
fn set_one(to: &mut Overrides, text: &str, whence: &str) -> Result<(), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{whence} '{text}' is not KEY=VALUE"))?;
    to.set(key.trim(), value.trim()).map_err(|e| format!("{whence}: {e}"))
}

/// Adds the lines of a file; empty ones and those that begin with # say nothing.
fn read_keys(to: &mut Overrides, file: &Path) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let lines = text.lines().map(str::trim).zip(1..).filter(|(l, _)| !l.is_empty() && !l.starts_with('#'));
    for (line, number) in lines {
        set_one(to, line, &format!("{}:{number}", file.display()))?;
    }
    Ok(())
}

fn settings(asked: &Overrides) -> String {
    asked.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:+.2} %", share * 100.0) } else { "-".to_string() }
}

fn plain(x: f64) -> String {
    match x.abs() {
        a if a >= 1000.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.3}"),
    }
}

fn text(c: &Comparison, policy: &str, asked: &Overrides) -> String {
    let how = if c.how == Loop::Open { "open loop" } else { "closed loop" };
    let mut out = format!("{} requests, {how}, {} seed(s)\n\n", c.requests, c.seeds);
    let mut head = vec!["".to_string(), "measured".into(), format!("{policy}, replayed"), "error".into()];
    if !asked.is_empty() {
        head.extend(["asked, replayed".into(), "change".into(), "expected".into(), "+-".into()]);
    }
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(head);
    for v in &c.values {
        let mut row =
            vec![format!("{} {}", v.name, v.unit), plain(v.measured), with_spread(&v.replayed), percent(v.error())];
        if let (Some(asked), Some(change)) = (v.asked, v.change()) {
            let (value, range) = v.predicted().map_or(("-".into(), "-".into()), |(v, r)| (plain(v), plain(r)));
            row.extend([with_spread(&asked), percent(change), value, range]);
        }
        table.add_row(row);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    out += &format!("{table}\n");
    if !asked.is_empty() {
        out += &format!("\nasked: {}\n", settings(asked));
        out += "expected: what was measured, changed as the replay changed; +-: the replay's error and the spread over seeds\n";
    }
    if c.refused.iter().any(|n| *n > 0) {
        let [was, now] = c.refused;
        out += &format!("requests that found the scheduler full and came again: {was}, and {now} as asked\n");
    }
    out
}

fn with_spread(e: &crate::experiment::Estimate) -> String {
    if e.half_width > 0.0 { format!("{} +- {}", plain(e.mean), plain(e.half_width)) } else { plain(e.mean) }
}

fn object(c: &Comparison, asked: &Overrides) -> String {
    let value = |v: &Value| {
        let (expected, range) = v.predicted().unzip();
        json!({
            "name": v.name, "unit": v.unit, "measured": v.measured, "replayed": v.replayed.mean,
            "replayed_half_width": v.replayed.half_width, "error": v.error(),
            "asked": v.asked.map(|e| e.mean), "asked_half_width": v.asked.map(|e| e.half_width), "change": v.change(),
            "expected": expected, "range": range,
        })
    };
    let values: Vec<_> = c.values.iter().map(value).collect();
    let how = if c.how == Loop::Open { "open" } else { "closed" };
    let told =
        json!({"requests": c.requests, "seeds": c.seeds, "loop": how, "asked": settings(asked), "values": values});
    format!("{told}\n")
}

/// Fits a disk.
pub(super) fn fit(a: &FitArgs) -> Result<bool, String> {
    let trace = load(&a.file)?;
    let f = replay::fit::fit(&trace).map_err(|e| format!("{}: {e}", a.file.display()))?;
    let how = format!(
        "{} disk requests, {} left out; R2 {:.4}; residuals: mean {:.3} ms, 95 % below {:.3} ms",
        f.used, f.left_out, f.r_squared, f.residual_mean_ms, f.residual_p95_ms
    );
    if let Some(path) = &a.out {
        let text = format!("# fitted to {}: {how}\n{}", a.file.display(), f.keys());
        fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    if a.json {
        let told = json!({
            "seek_ms": f.seek_ms, "mb_per_s": f.mb_per_s, "request_us": f.request_us, "used": f.used,
            "left_out": f.left_out, "r_squared": f.r_squared, "residual_mean_ms": f.residual_mean_ms,
            "residual_p95_ms": f.residual_p95_ms,
        });
        super::print(&format!("{told}\n"));
        return Ok(true);
    }
    super::print(&format!("{how}\n{}", f.keys()));
    if f.r_squared < 0.8 {
        super::print("a disk with one head explains little of it: do not trust a replay on this device\n");
    }
    Ok(true)
}
