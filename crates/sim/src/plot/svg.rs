//! A small SVG writer for line charts: axes, grid, legend, markers. No dependencies, fixed size, readable on light and
//! dark pages because the chart brings its own background.
use std::fmt::Write as _;

/// One line of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Legend.
    pub name: String,
    /// Points, ascending in x.
    pub points: Vec<(f64, f64)>,
    /// Half the height of the error bar of each point; none: no bars.
    pub bars: Vec<f64>,
    /// Index of its colour; a paper's series has that of ours.
    pub color: usize,
    /// From the paper: dashed, hollow markers.
    pub paper: bool,
}

/// A labelled place on the x axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tick {
    /// Value.
    pub at: f64,
    /// Label.
    pub label: String,
}

/// A line chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// Heading.
    pub title: String,
    /// Axis label.
    pub x_label: String,
    /// Axis label.
    pub y_label: String,
    /// Logarithmic x axis.
    pub log_x: bool,
    /// Ticks of the x axis; none: chosen here.
    pub ticks: Vec<Tick>,
    /// Lines.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 760.0;
/// Without what is below the axis.
const HEIGHT: f64 = 368.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 52.0;
/// Line height of the legend.
const LINE: f64 = 18.0;
/// Width of a letter of 12 points, on the safe side.
const LETTER: f64 = 6.8;
const COLORS: [&str; 8] = ["#2563eb", "#ea580c", "#059669", "#7c3aed", "#db2777", "#0891b2", "#a16207", "#475569"];
pub(super) const STYLE: &str = "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\"";
/// Points above which a line has no markers.
const MARKERS_MAX: usize = 30;

/// Maps values to the drawing area.
struct Scale {
    x: (f64, f64),
    /// 0, or a step below the least value.
    y_min: f64,
    y_max: f64,
    log: bool,
}

impl Scale {
    fn x(&self, v: f64) -> f64 {
        let t = |v: f64| if self.log { v.max(1e-300).log2() } else { v };
        let (a, b) = (t(self.x.0), t(self.x.1));
        let share = if b > a { (t(v) - a) / (b - a) } else { 0.5 };
        LEFT + 14.0 + share * (WIDTH - LEFT - RIGHT - 28.0)
    }
    fn y(&self, v: f64) -> f64 {
        HEIGHT - (v - self.y_min) / (self.y_max - self.y_min) * (HEIGHT - TOP)
    }
}

impl Chart {
    /// The chart as an SVG document.
    #[must_use]
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|s| &s.points);
        let bound = |f: fn(f64, f64) -> f64, start: f64| points().map(|p| p.0).fold(start, f);
        let y_top = points().map(|p| p.1).fold(0.0, f64::max);
        let y_bottom = points().map(|p| p.1).fold(0.0, f64::min);
        let step = nice_step((y_top - y_bottom).max(1e-9) / 5.0);
        let scale = Scale {
            x: (bound(f64::min, f64::INFINITY), bound(f64::max, f64::NEG_INFINITY)),
            y_min: (y_bottom * 1.06 / step).floor() * step,
            y_max: ((y_top * 1.06 / step).ceil() * step).max(if y_bottom < 0.0 { 0.0 } else { step }),
            log: self.log_x,
        };
        let (ticks, legend) = (self.x_ticks(&scale), self.legend_places());
        let slanted = is_crowded(&ticks, &scale);
        let below = if slanted { 46.0 + longest(&ticks) * LETTER * 0.42 } else { 44.0 };
        let height = HEIGHT + below + 4.0 + LINE * legend.last().map_or(0.0, |l| l.1 + 1.0);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\" {STYLE}>\n<title>{}</title>\n<rect width=\"{WIDTH}\" height=\"{height:.0}\" rx=\"8\" fill=\"#ffffff\"/>\n",
            escape(&self.title)
        );
        self.axes(&mut out, &scale, step);
        draw_ticks(&mut out, &ticks, &scale, slanted);
        text(&mut out, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT + below - 6.0, "middle", 13.0, "#334155", &self.x_label);
        for s in &self.series {
            line(&mut out, s, &scale);
        }
        self.legend(&mut out, &legend, HEIGHT + below + 16.0);
        out.push_str("</svg>\n");
        out
    }

    fn axes(&self, out: &mut String, scale: &Scale, step: f64) {
        heading(out, LEFT, &self.title);
        let first = (scale.y_min / step).round() as i64;
        for v in (first..).map(|i| i as f64 * step).take_while(|v| *v <= scale.y_max + step / 2.0) {
            let y = scale.y(v);
            let color = if v == 0.0 { "#64748b" } else { "#e2e8f0" };
            let _ = writeln!(out, "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"{color}\"/>", WIDTH - RIGHT);
            text(out, LEFT - 8.0, y + 4.0, "end", 12.0, "#475569", &label(v, step));
        }
        let middle = (TOP + HEIGHT) / 2.0;
        let _ = writeln!(
            out,
            "<text transform=\"translate(20 {middle:.1}) rotate(-90)\" text-anchor=\"middle\" font-size=\"13\" fill=\"#334155\">{}</text>",
            escape(&self.y_label)
        );
    }

    fn x_ticks(&self, scale: &Scale) -> Vec<Tick> {
        if !self.ticks.is_empty() {
            return self.ticks.clone();
        }
        let (a, b) = scale.x;
        let step = nice_step(((b - a) / 8.0).max(1e-9));
        let first = (a / step).ceil() as i64;
        let last = (b / step).floor() as i64;
        (first..=last).map(|i| Tick { at: i as f64 * step, label: label(i as f64 * step, step) }).collect()
    }

    /// Where each legend entry stands: x, line.
    fn legend_places(&self) -> Vec<(f64, f64)> {
        let (mut x, mut line, mut places) = (LEFT, 0.0, Vec::new());
        for s in self.series.iter().filter(|s| !s.points.is_empty()) {
            let width = 46.0 + LETTER * s.name.chars().count() as f64;
            if x > LEFT && x + width > WIDTH {
                (x, line) = (LEFT, line + 1.0);
            }
            places.push((x, line));
            x += width;
        }
        places
    }

    fn legend(&self, out: &mut String, places: &[(f64, f64)], top: f64) {
        for (s, (x, line)) in self.series.iter().filter(|s| !s.points.is_empty()).zip(places) {
            let color = COLORS[s.color % COLORS.len()];
            let dash = if s.paper { " stroke-dasharray=\"5 4\"" } else { "" };
            let y = top + line * LINE;
            let _ =
                writeln!(out, "<path d=\"M{x:.1} {:.1}h22\" stroke=\"{color}\" stroke-width=\"2.2\"{dash}/>", y - 4.0);
            marker(out, x + 11.0, y - 4.0, color, s.paper);
            text(out, x + 28.0, y, "start", 12.0, "#334155", &s.name);
        }
    }
}

fn longest(ticks: &[Tick]) -> f64 {
    ticks.iter().map(|t| t.label.chars().count()).max().unwrap_or(0) as f64
}

/// Whether neighbouring labels would touch.
fn is_crowded(ticks: &[Tick], scale: &Scale) -> bool {
    let width = |t: &Tick| LETTER * t.label.chars().count() as f64;
    ticks.windows(2).any(|t| (scale.x(t[1].at) - scale.x(t[0].at)).abs() < (width(&t[0]) + width(&t[1])) / 2.0 + 8.0)
}

fn draw_ticks(out: &mut String, ticks: &[Tick], scale: &Scale, slanted: bool) {
    for tick in ticks {
        let x = scale.x(tick.at);
        let _ = writeln!(out, "<path d=\"M{x:.1} {HEIGHT}v5\" stroke=\"#64748b\"/>");
        if slanted {
            let _ = writeln!(
                out,
                "<text transform=\"translate({:.1} {}) rotate(-25)\" text-anchor=\"end\" font-size=\"12\" fill=\"#475569\">{}</text>",
                x + 6.0,
                HEIGHT + 17.0,
                escape(&tick.label)
            );
        } else {
            text(out, x, HEIGHT + 19.0, "middle", 12.0, "#475569", &tick.label);
        }
    }
}

fn line(out: &mut String, s: &Series, scale: &Scale) {
    let color = COLORS[s.color % COLORS.len()];
    let path: Vec<String> = s.points.iter().map(|p| format!("{:.1} {:.1}", scale.x(p.0), scale.y(p.1))).collect();
    if path.len() > 1 {
        let style = if s.paper {
            "stroke-dasharray=\"5 4\" stroke-width=\"1.8\" opacity=\"0.75\""
        } else {
            "stroke-width=\"2.4\""
        };
        let d = path.join("L");
        let _ = writeln!(out, "<path d=\"M{d}\" fill=\"none\" stroke=\"{color}\" stroke-linejoin=\"round\" {style}/>");
    }
    for (p, half) in s.points.iter().zip(&s.bars).filter(|(_, half)| **half > 0.0) {
        let (x, top, bottom) =
            (scale.x(p.0), scale.y((p.1 + half).min(scale.y_max)), scale.y((p.1 - half).max(scale.y_min)));
        let _ = writeln!(
            out,
            "<path d=\"M{:.1} {top:.1}h8m-4 0V{bottom:.1}m-4 0h8\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.2\"/>",
            x - 4.0
        );
    }
    if s.points.len() <= MARKERS_MAX {
        for p in &s.points {
            marker(out, scale.x(p.0), scale.y(p.1), color, s.paper);
        }
    }
}

fn marker(out: &mut String, x: f64, y: f64, color: &str, hollow: bool) {
    let fill = if hollow { "#ffffff" } else { color };
    let _ = writeln!(
        out,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.6\" fill=\"{fill}\" stroke=\"{color}\" stroke-width=\"1.6\"/>"
    );
}

pub(super) fn text(out: &mut String, x: f64, y: f64, anchor: &str, size: f64, color: &str, content: &str) {
    let content = escape(content);
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{color}\">{content}</text>"
    );
}

/// The title, as large as it fits beside `x`.
pub(super) fn heading(out: &mut String, x: f64, title: &str) {
    let size = ((WIDTH - x - RIGHT) / (0.6 * title.chars().count().max(1) as f64)).min(15.0);
    text(out, x, 26.0, "start", (size * 2.0).floor() / 2.0, "#0f172a\" font-weight=\"600", title);
}

/// 1, 2 or 5 times a power of ten, at least `raw`.
fn nice_step(raw: f64) -> f64 {
    let power = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= raw * 0.999).unwrap_or(10.0);
    factor * power
}

fn label(v: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{v:.digits$}")
}

/// For SVG and HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!(nice_step(9.6), 10.0);
        assert_eq!(nice_step(0.013), 0.02);
        assert_eq!(nice_step(3.1), 5.0);
    }

    #[test]
    fn nothing_is_drawn_outside() {
        let points: Vec<(f64, f64)> = (0..50).map(|i| (f64::from(i), f64::from(i * i))).collect();
        let chart = Chart { series: vec![Series { points, ..Series::default() }], ..Chart::default() };
        let svg = chart.svg();
        let path = svg.split("<path d=\"M").find(|p| p.contains("fill=\"none\"")).unwrap();
        for pair in path.split('"').next().unwrap().split('L') {
            let (x, y) = pair.split_once(' ').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT).contains(&y), "{pair}");
        }
    }
}
