//! Scenarios: what to simulate, what to vary, what to expect. One TOML file each, under `sim/scenarios/AREA/ID.toml`.
mod cluster_keys;
mod keys;
mod load;
mod params;

pub(crate) use keys::{PROFILES_OWN, parse_outages};
pub use load::{LoadError, load, parse};
pub use params::{Params, keys_markdown};

use std::path::{Path, PathBuf};

/// Which world a scenario runs in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WorldKind {
    /// Light clients in front of OST pipelines.
    #[default]
    Light,
    /// Threads straight on a disk.
    Survey,
    /// Client and OST caches.
    Cache,
    /// Readers on one client, and the readahead room.
    Readahead,
    /// A create storm on one MDS.
    Create,
    /// Whole clusters of real nodes: full fidelity.
    Cluster,
    /// Nothing runs here: the claim is a test of a room, which the scenario names.
    Reference,
    /// Nothing runs here: readings of a results file are judged.
    Recorded,
}

impl WorldKind {
    /// As scenario files spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            WorldKind::Light => "light",
            WorldKind::Survey => "survey",
            WorldKind::Cache => "cache",
            WorldKind::Readahead => "readahead",
            WorldKind::Create => "create",
            WorldKind::Cluster => "cluster",
            WorldKind::Reference => "reference",
            WorldKind::Recorded => "recorded",
        }
    }
    fn named(name: &str) -> Result<WorldKind, String> {
        match name {
            "light" => Ok(WorldKind::Light),
            "survey" => Ok(WorldKind::Survey),
            "cache" => Ok(WorldKind::Cache),
            "readahead" => Ok(WorldKind::Readahead),
            "create" => Ok(WorldKind::Create),
            "cluster" => Ok(WorldKind::Cluster),
            "reference" => Ok(WorldKind::Reference),
            "recorded" => Ok(WorldKind::Recorded),
            _ => Err(format!(
                "'{name}' is not a world; there are: light, survey, cache, readahead, create, cluster, reference, recorded"
            )),
        }
    }
}

/// The world that a fidelity's name stands for.
fn fidelity(name: &str) -> Result<WorldKind, String> {
    match name {
        "full" => Ok(WorldKind::Cluster),
        "light" => Ok(WorldKind::Light),
        _ => Err(format!("'{name}' is not a fidelity; there are: full (world cluster), light")),
    }
}

/// Where an expected value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Status {
    /// The figure stands in the paper's text.
    #[default]
    Stated,
    /// Read off a figure.
    Fig,
    /// Computed; the paper gives only the direction.
    Derived,
    /// Found by calibration.
    Cal,
    /// Ours, not the paper's.
    Beyond,
}

impl Status {
    fn named(name: &str) -> Result<Status, String> {
        match name {
            "STATED" => Ok(Status::Stated),
            "FIG" => Ok(Status::Fig),
            "DERIVED" => Ok(Status::Derived),
            "CAL" => Ok(Status::Cal),
            "BEYOND" => Ok(Status::Beyond),
            _ => Err(format!("'{name}' is not a status; there are: STATED, FIG, DERIVED, CAL, BEYOND")),
        }
    }
    /// As scenario files spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Status::Stated => "STATED",
            Status::Fig => "FIG",
            Status::Derived => "DERIVED",
            Status::Cal => "CAL",
            Status::Beyond => "BEYOND",
        }
    }
}

/// A value that must come out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expect {
    /// Name of a metric, or of a curve when `at` is given.
    pub metric: String,
    /// What the paper has.
    pub value: Option<f64>,
    /// Least accepted value.
    pub min: Option<f64>,
    /// Greatest accepted value.
    pub max: Option<f64>,
    /// Where on the curve.
    pub at: Option<f64>,
    /// Only at the points with these parameter values.
    pub when: Vec<(String, String)>,
    /// The metric is the change in percent against the point that differs by these values.
    pub relative_to: Vec<(String, String)>,
    /// Overrides the scenario's status.
    pub status: Option<Status>,
    /// A goal of ours, not a claim of the paper.
    pub beyond: bool,
    /// A remark for the report.
    pub note: String,
    /// It is known to miss: still a miss, but `report --strict` passes while the value stays.
    pub known_miss: Option<KnownMiss>,
    /// A course is judged instead of a point: the greatest step against the trend between neighbours along this key, in the
    /// unit of the metric (or of its change), at most 0 unless `max` says otherwise.
    pub over: Option<(String, Trend)>,
    /// Judged in the small form, too, although that changes parameters.
    pub smoke: bool,
}

/// A miss that is understood.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownMiss {
    /// What is measured instead.
    pub value: f64,
    /// How far from it the mean may be.
    pub tolerance_percent: f64,
    /// Why.
    pub why: String,
}

/// Where a course goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trend {
    /// No value lies below the one before.
    Rises,
    /// No value lies above the one before.
    Falls,
}

impl Trend {
    fn named(name: &str) -> Result<Trend, String> {
        match name {
            "rises" => Ok(Trend::Rises),
            "falls" => Ok(Trend::Falls),
            _ => Err(format!("'{name}' is not a trend; there are: rises, falls")),
        }
    }
    /// As scenario files spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Trend::Rises => "rises",
            Trend::Falls => "falls",
        }
    }
}

/// Which of several values a reading keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Take {
    /// The greatest.
    #[default]
    Greatest,
    /// The least.
    Least,
    /// Their mean.
    Mean,
}

impl Take {
    fn named(name: &str) -> Result<Take, String> {
        match name {
            "max" => Ok(Take::Greatest),
            "min" => Ok(Take::Least),
            "mean" => Ok(Take::Mean),
            _ => Err(format!("'{name}' cannot be taken; there are: max, min, mean")),
        }
    }
}

/// A value read from a results file (world `recorded`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The metric that it becomes.
    pub name: String,
    /// Field of a row.
    pub field: String,
    /// The rows: all that have these values.
    pub rows: Vec<(String, String)>,
    /// Divided by the same field of the row that has these values ...
    pub over: Vec<(String, String)>,
    /// ... and the same in these fields.
    pub same: Vec<String>,
    /// Which of the values.
    pub take: Take,
}

/// What to draw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// Parameter on the x axis; empty when curves are drawn.
    pub x: String,
    /// Metric on the y axis.
    pub y: String,
    /// Parameter whose values are the series.
    pub series: String,
    /// Curves over virtual time instead.
    pub curves: Vec<String>,
    /// Drawn is the change in percent against the point that differs by these values.
    pub relative_to: Vec<(String, String)>,
    /// What the source's figure or text has, by the name of a curve or series, beside what expectations claim.
    pub paper: Vec<(String, Vec<(f64, f64)>)>,
    /// Heading.
    pub title: String,
    /// Axis label.
    pub x_label: String,
    /// Axis label.
    pub y_label: String,
    /// Logarithmic x axis.
    pub log_x: bool,
}

/// A scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scenario {
    /// `R3`, or a name.
    pub id: String,
    /// One line.
    pub title: String,
    /// Paper and place in it.
    pub source: String,
    /// Of its expected values.
    pub status: Status,
    /// Where it runs.
    pub world: WorldKind,
    /// What it shows and how.
    pub description: String,
    /// The room's test that shows the claim (world `reference`).
    pub test: String,
    /// The results file, from the root of the repository (world `recorded`).
    pub results: String,
    /// What is read from it.
    pub readings: Vec<Reading>,
    /// Seeds to repeat it with; none: ten from the parameter `seed` on.
    pub seeds: Vec<u64>,
    /// Parameters.
    pub params: Params,
    /// Parameters varied, each with its values; the points are their product.
    pub sweep: Vec<(String, Vec<String>)>,
    /// Parameters of the small form that continuous integration runs.
    pub smoke: Params,
    /// What must come out.
    pub expect: Vec<Expect>,
    /// What to draw.
    pub plots: Vec<Plot>,
}

impl Scenario {
    /// All points of the sweep, in order: the values of the swept keys. One empty point without a sweep.
    #[must_use]
    pub fn points(&self) -> Vec<Vec<(String, String)>> {
        let mut points = vec![Vec::new()];
        for (key, values) in &self.sweep {
            points = points
                .into_iter()
                .flat_map(|p: Vec<(String, String)>| {
                    values.iter().map(move |v| {
                        let mut p = p.clone();
                        p.push((key.clone(), v.clone()));
                        p
                    })
                })
                .collect();
        }
        points
    }
}

/// The root of the repository: the working directory or a parent of it that has `sim/scenarios`, else where the source lay.
#[must_use]
pub fn repository() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    let root = here.ancestors().find(|dir| dir.join("sim/scenarios").is_dir());
    root.map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), Path::to_path_buf)
}

/// The scenario directory, `sim/scenarios` of the [`repository`].
#[must_use]
pub fn scenario_dir() -> PathBuf {
    repository().join("sim/scenarios")
}

/// All scenario files below `dir`, ascending by area, then by number within the id.
#[must_use]
pub fn scenario_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(d) = dirs.pop() {
        for entry in std::fs::read_dir(&d).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "toml") {
                files.push(path);
            }
        }
    }
    let number = |p: &PathBuf| {
        let digits: String = stem(p).chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u64>().unwrap_or(0)
    };
    files.sort_by_key(|p| (p.parent().map(Path::to_path_buf), number(p), stem(p)));
    files
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The file that `name` means: a path, or an id such as `R3` (case does not matter).
///
/// # Errors
/// A sentence with the name and where it was looked for.
pub fn find(name: &str) -> Result<PathBuf, String> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok(path.to_path_buf());
    }
    let dir = scenario_dir();
    let found = scenario_files(&dir).into_iter().find(|p| stem(p).eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("'{name}' is neither a file nor the id of a scenario below {}", dir.display()))
}
