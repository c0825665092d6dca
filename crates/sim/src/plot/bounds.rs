//! The picture of an experiment that has no curve: every expectation as a band, what the paper has as a dashed line, what
//! was measured as a dot with its 95 % interval.
use super::svg::{STYLE, escape, heading, text};
use crate::cli::{condition, expected, measured};
use crate::experiment::{Estimate, Experiment, Outcome, Verdict};
use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const TOP: f64 = 44.0;
const ROW: f64 = 52.0;
const LEFT: f64 = 24.0;
/// Width of a band's scale; numbers stand to the right of it.
const SCALE: f64 = 520.0;

/// The picture; `None` when nothing that is expected was measured.
#[must_use]
pub fn bounds(e: &Experiment) -> Option<String> {
    let rows: Vec<(&Verdict, Estimate)> = e.verdicts.iter().filter_map(|v| Some((v, v.measured?))).collect();
    if rows.is_empty() {
        return None;
    }
    let height = TOP + rows.len() as f64 * ROW + 12.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" {STYLE}>\n<title>{}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" rx=\"8\" fill=\"#ffffff\"/>\n",
        escape(&e.scenario.title)
    );
    heading(&mut out, LEFT, &e.scenario.title);
    for (i, (verdict, value)) in rows.iter().enumerate() {
        row(&mut out, TOP + i as f64 * ROW, verdict, value);
    }
    out.push_str("</svg>\n");
    Some(out)
}

/// From a value to its place, with room on both sides of everything that is shown.
struct Axis {
    from: f64,
    span: f64,
}

impl Axis {
    fn of(v: &Verdict, m: &Estimate) -> Axis {
        let shown = || {
            let ends = [m.mean - m.half_width, m.mean + m.half_width];
            [v.expect.min, v.expect.max, v.expect.value].into_iter().flatten().chain(ends)
        };
        let (low, high) = (shown().fold(f64::INFINITY, f64::min), shown().fold(f64::NEG_INFINITY, f64::max));
        let margin = if high > low { (high - low) * 0.3 } else { high.abs().max(1.0) * 0.1 };
        Axis { from: low - margin, span: high - low + 2.0 * margin }
    }
    fn x(&self, v: f64) -> f64 {
        LEFT + (v - self.from) / self.span * SCALE
    }
}

fn row(out: &mut String, y: f64, v: &Verdict, m: &Estimate) {
    let axis = Axis::of(v, m);
    let (e, middle) = (&v.expect, y + 28.0);
    let mut name = e.metric.clone();
    for part in [condition(v), e.note.clone()] {
        if !part.is_empty() {
            name = format!("{name}, {part}");
        }
    }
    text(out, LEFT, y + 14.0, "start", 12.0, "#334155", &name);
    let _ = writeln!(out, "<path d=\"M{LEFT} {middle}h{SCALE}\" stroke=\"#e2e8f0\" stroke-width=\"10\"/>");
    let (from, to) = (e.min.map_or(LEFT, |m| axis.x(m)), e.max.map_or(LEFT + SCALE, |m| axis.x(m)));
    let _ = writeln!(out, "<path d=\"M{from:.1} {middle}H{to:.1}\" stroke=\"#a7f3d0\" stroke-width=\"10\"/>");
    if let Some(value) = e.value {
        let x = axis.x(value);
        let _ =
            writeln!(out, "<path d=\"M{x:.1} {:.1}v18\" stroke=\"#475569\" stroke-dasharray=\"4 3\"/>", middle - 9.0);
    }
    let color = if v.outcome == Outcome::Holds { "#047857" } else { "#b91c1c" };
    if m.half_width > 0.0 {
        let (from, to) = (axis.x(m.mean - m.half_width), axis.x(m.mean + m.half_width));
        let _ = writeln!(out, "<path d=\"M{from:.1} {middle}H{to:.1}\" stroke=\"{color}\" stroke-width=\"2\"/>");
    }
    let _ = writeln!(out, "<circle cx=\"{:.1}\" cy=\"{middle}\" r=\"5\" fill=\"{color}\"/>", axis.x(m.mean));
    let right = LEFT + SCALE + 16.0;
    let bold = format!("{color}\" font-weight=\"600");
    text(out, right, middle - 2.0, "start", 13.0, &bold, &format!("{} {}", measured(v), v.outcome.name()));
    text(out, right, middle + 14.0, "start", 11.0, "#64748b", &format!("expected {}", expected(v)));
}
