//! Plots: an experiment's points, with the paper's values over them, as SVG that stands alone.
//!
//! Decides what is drawn (from a scenario's `[plot]`, else its expectations); how it looks is in `svg` and `bounds`.
mod bounds;
mod svg;

pub(crate) use svg::escape;
pub use svg::{Chart, Series, Tick};

use crate::experiment::{self, Experiment, Point, same_value};
use crate::scenario::{Expect, Plot};

/// The experiment's pictures as SVG: the charts that its scenario asks for, else its expectations.
#[must_use]
pub fn pictures(e: &Experiment) -> Vec<String> {
    let charts = charts(e);
    if charts.is_empty() {
        return bounds::bounds(e).into_iter().collect();
    }
    charts.iter().map(Chart::svg).collect()
}

/// The charts that a scenario asks for.
#[must_use]
pub fn charts(e: &Experiment) -> Vec<Chart> {
    e.scenario
        .plots
        .iter()
        .filter_map(|p| chart(e, p))
        .filter(|c| c.series.iter().any(|s| !s.points.is_empty()))
        .collect()
}

fn chart(e: &Experiment, plot: &Plot) -> Option<Chart> {
    let title = if plot.title.is_empty() { e.scenario.title.clone() } else { plot.title.clone() };
    let mut chart = Chart {
        title,
        x_label: if plot.x_label.is_empty() { plot.x.clone() } else { plot.x_label.clone() },
        y_label: if plot.y_label.is_empty() { plot.y.clone() } else { plot.y_label.clone() },
        log_x: plot.log_x,
        ..Chart::default()
    };
    if plot.curves.is_empty() {
        sweep_series(e, plot, &mut chart);
    } else {
        let main = e.main_point()?;
        for (color, name) in plot.curves.iter().enumerate() {
            let ours = main.metrics.curve(name).unwrap_or_default().to_vec();
            chart.series.push(Series { name: name.clone(), points: ours, color, ..Series::default() });
            let claimed = |x: &&Expect| &x.metric == name && x.at.is_some() && x.value.is_some();
            let claims = e.scenario.expect.iter().filter(claimed).filter_map(|x| Some((x.at?, x.value?)));
            paper_series(&mut chart, plot, name, claims.collect(), color);
        }
    }
    Some(chart)
}

/// What the source has for a series: what expectations claim, and what the plot says of its figure.
fn paper_series(chart: &mut Chart, plot: &Plot, name: &str, claims: Vec<(f64, f64)>, color: usize) {
    let mut points = claims;
    points.extend(plot.paper.iter().filter(|p| p.0 == name).flat_map(|p| &p.1));
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.dedup();
    if !points.is_empty() {
        let name = format!("{}, paper", if name.is_empty() { "measured" } else { name });
        chart.series.push(Series { name, points, color, paper: true, ..Series::default() });
    }
}

/// A series per value of the series parameter: ours solid, the paper's dashed.
fn sweep_series(e: &Experiment, plot: &Plot, chart: &mut Chart) {
    let values = |key: &str| e.scenario.sweep.iter().find(|s| s.0 == key).map(|s| s.1.clone()).unwrap_or_default();
    let x_values = values(&plot.x);
    let numeric = x_values.iter().all(|v| number(v).is_some());
    let x_of =
        |text: &str| if numeric { number(text) } else { x_values.iter().position(|v| v == text).map(|i| i as f64) };
    chart.ticks = x_values.iter().filter_map(|v| Some(Tick { at: x_of(v)?, label: v.clone() })).collect();
    chart.log_x &= numeric && x_values.iter().all(|v| number(v).is_some_and(|x| x > 0.0));
    let names = values(&plot.series);
    // Against itself a series is a line at zero.
    let is_base = |name: &String| plot.relative_to.iter().any(|(k, v)| *k == plot.series && same_value(v, name));
    let names: Vec<String> = names.into_iter().filter(|n| !is_base(n)).collect();
    let names = if names.is_empty() { vec![String::new()] } else { names };
    for (color, name) in names.iter().enumerate() {
        let of_series = |p: &&Point| name.is_empty() || p.params.text(&plot.series) == name;
        let place = |p: &Point| {
            Some((x_of(p.params.text(&plot.x))?, experiment::change(&e.points, p, &plot.y, &plot.relative_to)?))
        };
        let mut ours: Vec<_> = e.points.iter().filter(of_series).filter_map(place).collect();
        ours.sort_by(|a, b| a.0.total_cmp(&b.0));
        let bars = ours.iter().map(|(_, e)| e.half_width).collect();
        let ours = ours.iter().map(|(x, e)| (*x, e.mean)).collect();
        let label = if name.is_empty() { "measured".to_string() } else { name.clone() };
        chart.series.push(Series { name: label, points: ours, bars, color, paper: false });
        let claims = e
            .scenario
            .expect
            .iter()
            .filter(|x| x.metric == plot.y && x.relative_to == plot.relative_to)
            .filter(|x| name.is_empty() || x.when.iter().any(|(k, v)| *k == plot.series && v == name))
            .filter_map(|x| Some((x_of(&x.when.iter().find(|(k, _)| *k == plot.x)?.1)?, x.value?)));
        paper_series(chart, plot, name, claims.collect(), color);
    }
    // Bounds of a figure that belong to no series.
    for (name, points) in plot.paper.iter().filter(|p| !names.contains(&p.0)) {
        let color = names.len();
        let name = format!("paper, {name}");
        chart.series.push(Series { name, points: points.clone(), color, paper: true, ..Series::default() });
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().or_else(|| types::parse_size(text).ok().map(|n| n as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::run;
    use crate::scenario::parse;

    #[test]
    fn a_chart_has_ours_and_the_papers_series() {
        let s = parse(
            "x",
            "id='T'\ntitle='a < b'\nsource='s'\n[params]\nclients=4\noss_count=1\nfile_bytes='2M'\n[sweep]\ntransfer_size_bytes=['512K','1M']\n[plot]\nx='transfer_size_bytes'\ny='makespan_s'\nlog_x=true\n[[expect]]\nmetric='makespan_s'\nwhen={transfer_size_bytes='1M'}\nvalue=1\ntolerance_percent=99\n",
        )
        .unwrap();
        let e = run(s, 0, &mut |_, _, _| {}).unwrap();
        let chart = &charts(&e)[0];
        assert_eq!(chart.series.iter().map(|s| (s.points.len(), s.paper)).collect::<Vec<_>>(), [(2, false), (1, true)]);
        let svg = chart.svg();
        assert!(svg.contains("a &lt; b") && svg.contains("512K") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    }

    #[test]
    fn a_change_is_drawn_below_zero_with_the_papers_figure() {
        let s = parse(
            "x",
            "id='T'\ntitle='t'\nsource='s'\n[params]\nclients=4\noss_count=1\nfile_bytes='2M'\n[sweep]\nnrs.policy=['fifo','obrr']\ntransfer_size_bytes=['512K','1M']\n[[plot]]\nx='transfer_size_bytes'\ny='makespan_s'\nseries='nrs.policy'\nrelative_to={nrs.policy='fifo'}\npaper={obrr=[[524288, -40]], least=[[524288, -60], [1048576, -60]]}\n[[plot]]\nx='transfer_size_bytes'\ny='makespan_s'\nseries='nrs.policy'\n",
        )
        .unwrap();
        let charts = charts(&run(s, 0, &mut |_, _, _| {}).unwrap());
        let shape = |c: &Chart| c.series.iter().map(|s| (s.name.clone(), s.points.len())).collect::<Vec<_>>();
        let first = [("obrr", 2), ("obrr, paper", 1), ("paper, least", 2)];
        assert_eq!(shape(&charts[0]), first.map(|(n, k)| (n.to_string(), k)));
        assert_eq!(shape(&charts[1]).len(), 2);
        let svg = charts[0].svg();
        assert!(svg.contains(">-60<") && svg.contains(">0<"), "{svg}");
    }

    #[test]
    fn an_experiment_without_a_plot_shows_its_expectations() {
        let picture = |tail: &str| {
            let head = "id='T'\ntitle='a < b'\nsource='s'\n[params]\nclients=4\noss_count=1\nfile_bytes='2M'\n";
            pictures(&run(parse("x", &format!("{head}{tail}")).unwrap(), 0, &mut |_, _, _| {}).unwrap())
        };
        let expect = "[[expect]]\nmetric='makespan_s'\n";
        let shown = picture(&format!("{expect}min=0\nmax=99\nvalue=1\n{expect}min=1000\n{expect}max=1e-9\n"));
        assert_eq!((shown.len(), shown[0].matches("<circle").count()), (1, 3));
        assert_eq!((shown[0].matches("#b91c1c").count(), shown[0].matches("dasharray").count()), (6, 1));
        assert!(picture("[[expect]]\nmetric='nothing'\nmin=0\n").is_empty());
    }
}
