//! A picture of a benchmark: bandwidth of each agent and of all over time, as SVG that needs nothing else, alone or in a page.
use std::fmt::Write;

use crate::report::{PhaseResult, Report};
use crate::series::{Series, aligned};
use crate::stats::mb_per_s;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 34.0;
/// Most points of a curve; more intervals are put together.
const POINTS_MAX: usize = 450;
/// Most agents with a curve of their own; the range of all is drawn behind them.
const CURVES_MAX: usize = 12;
const COLORS: [&str; 6] = ["#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#17becf"];

/// The picture.
#[must_use]
pub fn svg(report: &Report) -> String {
    let height = HEIGHT * report.phases.len().max(1) as f64 + 40.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"20\" font-size=\"11\">{}</text>\n",
        escaped(&report.title())
    );
    for (i, phase) in report.phases.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate(0 {})\">", 30.0 + HEIGHT * i as f64);
        plot(&mut out, phase);
        out += "</g>\n";
    }
    out + "</svg>\n"
}

/// A page with the picture and the tables.
#[must_use]
pub fn html(report: &Report) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>stria bench</title></head>\n<body style=\"font-family: sans-serif; max-width: 60em; margin: auto\">\n<h1>stria bench</h1>\n{}<pre>{}</pre>\n</body></html>\n",
        svg(report),
        escaped(&report.text())
    )
}

fn plot(out: &mut String, phase: &PhaseResult) {
    let series: Vec<&Series> = phase.agents.iter().map(|a| &a.series).collect();
    let moments = aligned(&series);
    let step = moments.len().div_ceil(POINTS_MAX).max(1);
    let ns = phase.interval_ns * step as u64;
    let rates = |of: &dyn Fn(usize) -> u64| -> Vec<f64> {
        let starts = (0..moments.len()).step_by(step);
        starts.map(|i| mb_per_s((i..moments.len().min(i + step)).map(of).sum(), ns)).collect()
    };
    let sum = rates(&|i| moments[i].sum);
    let top = sum.iter().copied().fold(0.0, f64::max).max(1e-9) * 1.05;
    let title = format!("{} {}: {:.1} MB/s", phase.phase.name(), phase.repetition, phase.mb_per_s());
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"24\" font-weight=\"bold\">{title}</text>");
    axes(out, top, sum.len() as f64 * ns as f64 / 1e9);
    for (i, agent) in phase.agents.iter().take(CURVES_MAX).enumerate() {
        let own = rates(&|m| moments[m].agents[i]);
        let label = format!("agent {}: {:.1} MB/s", agent.agent, agent.mb_per_s());
        curve(out, &own, top, COLORS[i % COLORS.len()], 1.0, &label);
    }
    curve(out, &sum, top, "#000000", 2.0, "all agents");
}

fn axes(out: &mut String, top: f64, seconds: f64) {
    let (right, bottom) = (WIDTH - 20.0, HEIGHT - BOTTOM);
    for quarter in 0..=4 {
        let share = f64::from(quarter) / 4.0;
        let (y, x) = (bottom - share * (bottom - TOP), LEFT + share * (right - LEFT));
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.0}</text><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.2} s</text>",
            LEFT - 6.0,
            y + 4.0,
            share * top,
            bottom + 16.0,
            share * seconds
        );
    }
    let _ = writeln!(out, "<text x=\"10\" y=\"{:.1}\">MB/s</text>", TOP - 8.0);
}

/// One step per interval.
fn curve(out: &mut String, rates: &[f64], top: f64, color: &str, width: f64, label: &str) {
    let (right, bottom) = (WIDTH - 20.0, HEIGHT - BOTTOM);
    let per = (right - LEFT) / rates.len().max(1) as f64;
    let mut points = String::new();
    for (i, rate) in rates.iter().enumerate() {
        let (x, y) = (LEFT + per * i as f64, bottom - rate / top * (bottom - TOP));
        let _ = write!(points, "{x:.1},{y:.1} {:.1},{y:.1} ", x + per);
    }
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"><title>{}</title></polyline>",
        points.trim_end(),
        escaped(label)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
