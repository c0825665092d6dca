//! Reading a scenario file: every key is known or refused with its line, every value is checked where it is written.
use super::{Expect, KnownMiss, Plot, Reading, Scenario, Status, Take, Trend, WorldKind, params::Params};
use core::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Why a scenario was refused: file, line and reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {reason}")]
pub struct LoadError {
    /// The file.
    pub file: String,
    /// Line, from 1; 0 when the file could not be read at all.
    pub line: usize,
    /// What is wrong and what would be right.
    pub reason: String,
}

/// Reads and checks the scenario at `path`.
///
/// # Errors
/// [`LoadError`] with the first thing that is wrong.
pub fn load(path: &Path) -> Result<Scenario, LoadError> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| LoadError {
        file: file.clone(),
        line: 0,
        reason: format!("cannot be read: {e}"),
    })?;
    parse(&file, &text)
}

/// Checks the text of a scenario; `file` is only named in errors.
///
/// # Errors
/// [`LoadError`] with the first thing that is wrong.
pub fn parse(file: &str, text: &str) -> Result<Scenario, LoadError> {
    let reader = Reader { file, text };
    let document = DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(0, |s| s.start);
        reader.error(at, e.message())
    })?;
    reader.scenario(document.get_ref())
}

/// How far from its value a known miss may be, when its expectation does not say.
const KNOWN_TOLERANCE_PERCENT: f64 = 5.0;
/// Values that one key of a sweep may have.
const SWEEP_VALUES_MAX: usize = 1000;

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
}

type Value<'i> = Spanned<DeValue<'i>>;

impl Reader<'_> {
    fn error(&self, at: usize, reason: impl Into<String>) -> LoadError {
        let line = self.text[..at.min(self.text.len())].matches('\n').count() + 1;
        LoadError { file: self.file.to_string(), line, reason: reason.into() }
    }
    fn at<T>(&self, span: Range<usize>, result: Result<T, String>) -> Result<T, LoadError> {
        result.map_err(|reason| self.error(span.start, reason))
    }

    fn scenario(&self, table: &DeTable) -> Result<Scenario, LoadError> {
        let mut s = Scenario::default();
        for (key, value) in table.iter() {
            let at = key.span().start;
            match key.get_ref().as_ref() {
                "id" => s.id = self.string(value)?,
                "title" => s.title = self.string(value)?,
                "source" => s.source = self.string(value)?,
                "description" => s.description = self.string(value)?,
                "test" => s.test = self.string(value)?,
                "results" => s.results = self.string(value)?,
                "reading" => {
                    for r in self.array(value)? {
                        s.readings.push(self.reading(self.table(r)?, r.span())?);
                    }
                }
                "status" => s.status = self.at(value.span(), Status::named(&self.string(value)?))?,
                "world" => s.world = self.at(value.span(), WorldKind::named(&self.string(value)?))?,
                "fidelity" => s.world = self.at(value.span(), super::fidelity(&self.string(value)?))?,
                "seeds" => s.seeds = self.numbers(value)?.into_iter().map(|x| x as u64).collect(),
                "params" => self.flatten("", self.table(value)?, &mut |at, k, v| self.param(&mut s.params, at, k, v))?,
                "smoke" => self.flatten("", self.table(value)?, &mut |at, k, v| self.param(&mut s.smoke, at, k, v))?,
                "sweep" => self.flatten("", self.table(value)?, &mut |at, k, v| {
                    let values = self.sweep_values(k, v)?;
                    for value in &values {
                        self.param(&mut Params::default(), at, k, &ScalarOr::Text(value))?;
                    }
                    s.sweep.push((k.to_string(), values));
                    Ok(())
                })?,
                "expect" => {
                    for e in self.array(value)? {
                        s.expect.push(self.expect(self.table(e)?, e.span())?);
                    }
                }
                "plot" => match value.get_ref() {
                    DeValue::Array(plots) => {
                        for p in plots {
                            s.plots.push(self.plot(self.table(p)?)?);
                        }
                    }
                    _ => s.plots.push(self.plot(self.table(value)?)?),
                },
                other => return Err(self.error(at, format!("unknown key '{other}'; a scenario has id, title, source, status, world, fidelity, description, test, results, reading, seeds, params, sweep, smoke, expect, plot"))),
            }
        }
        for (name, value) in [("id", &s.id), ("title", &s.title), ("source", &s.source)] {
            if value.is_empty() {
                return Err(self.error(0, format!("'{name}' is missing")));
            }
        }
        if s.world == WorldKind::Reference && s.test.is_empty() {
            return Err(self.error(0, "a scenario of world 'reference' names its 'test'"));
        }
        let wanted = s.world == WorldKind::Recorded;
        if [s.results.is_empty(), s.readings.is_empty()].contains(&wanted) {
            return Err(
                self.error(0, "a scenario of world 'recorded', and no other, names its 'results' and has [[reading]]s")
            );
        }
        Ok(s)
    }

    fn expect(&self, table: &DeTable, span: Range<usize>) -> Result<Expect, LoadError> {
        let mut e = Expect::default();
        let (mut percent, mut over, mut trend) = (None, None, None);
        let (mut known, mut known_value, mut known_percent) = (None, None, None);
        for (key, value) in table.iter() {
            match key.get_ref().as_ref() {
                "metric" => e.metric = self.string(value)?,
                "value" => e.value = Some(self.number(value)?),
                "tolerance_percent" => percent = Some(self.number(value)?),
                "min" => e.min = Some(self.number(value)?),
                "max" => e.max = Some(self.number(value)?),
                "at" => e.at = Some(self.number(value)?),
                "note" => e.note = self.string(value)?,
                "known_miss" => known = Some(self.string(value)?),
                "known_value" => known_value = Some(self.number(value)?),
                "known_tolerance_percent" => known_percent = Some(self.number(value)?),
                "over" => over = Some(self.string(value)?),
                "trend" => trend = Some(self.at(value.span(), Trend::named(&self.string(value)?))?),
                "smoke" => e.smoke = self.text_of(value)? == "true",
                "beyond" => e.beyond = self.text_of(value)? == "true",
                "status" => e.status = Some(self.at(value.span(), Status::named(&self.string(value)?))?),
                "when" => self.conditions(value, &mut e.when)?,
                "relative_to" => self.conditions(value, &mut e.relative_to)?,
                other => {
                    let why = format!(
                        "unknown key '{other}'; an expectation has metric, value, tolerance_percent, min, max, at, over, trend, when, relative_to, status, beyond, smoke, known_miss, known_value, known_tolerance_percent, note"
                    );
                    return Err(self.error(key.span().start, why));
                }
            }
        }
        if e.metric.is_empty() {
            return Err(self.error(span.start, "an expectation names its 'metric'"));
        }
        e.over = match (over, trend) {
            (Some(key), Some(trend)) => Some((key, trend)),
            (None, None) => None,
            _ => return Err(self.error(span.start, "a course has both: 'over', a key of the sweep, and its 'trend'")),
        };
        if e.over.is_some() && e.max.is_none() {
            e.max = Some(0.0);
        }
        e.known_miss = match (known, known_value) {
            (Some(why), Some(value)) => {
                Some(KnownMiss { value, why, tolerance_percent: known_percent.unwrap_or(KNOWN_TOLERANCE_PERCENT) })
            }
            (None, None) if known_percent.is_none() => None,
            _ => return Err(self.error(span.start, "a known miss has both: 'known_miss', why, and its 'known_value'")),
        };
        if let (Some(v), Some(p)) = (e.value, percent) {
            e.min = e.min.or(Some(v - v.abs() * p / 100.0));
            e.max = e.max.or(Some(v + v.abs() * p / 100.0));
        }
        if e.min.is_none() && e.max.is_none() {
            return Err(self.error(span.start, "an expectation has a value with tolerance_percent, or a min, or a max"));
        }
        if e.min.zip(e.max).is_some_and(|(a, b)| a > b) {
            return Err(self.error(span.start, "min lies above max"));
        }
        Ok(e)
    }

    fn reading(&self, table: &DeTable, span: Range<usize>) -> Result<Reading, LoadError> {
        let mut r = Reading::default();
        for (key, value) in table.iter() {
            match key.get_ref().as_ref() {
                "name" => r.name = self.string(value)?,
                "field" => r.field = self.string(value)?,
                "rows" => r.rows = self.pairs(value)?,
                "over" => r.over = self.pairs(value)?,
                "same" => r.same = self.array(value)?.iter().map(|v| self.string(v)).collect::<Result<_, _>>()?,
                "take" => r.take = self.at(value.span(), Take::named(&self.string(value)?))?,
                other => {
                    let why = format!("unknown key '{other}'; a reading has name, field, rows, over, same, take");
                    return Err(self.error(key.span().start, why));
                }
            }
        }
        if r.name.is_empty() || r.field.is_empty() {
            return Err(self.error(span.start, "a reading has a 'name' and a 'field'"));
        }
        Ok(r)
    }

    /// Fields of a results file and their values.
    fn pairs(&self, value: &Value) -> Result<Vec<(String, String)>, LoadError> {
        self.table(value)?.iter().map(|(k, v)| Ok((k.get_ref().to_string(), self.text_of(v)?))).collect()
    }

    fn conditions(&self, value: &Value, into: &mut Vec<(String, String)>) -> Result<(), LoadError> {
        self.flatten("", self.table(value)?, &mut |at, k, v| {
            self.param(&mut Params::default(), at, k, v)?;
            into.push((k.to_string(), self.scalar(at, v)?));
            Ok(())
        })
    }

    fn plot(&self, table: &DeTable) -> Result<Plot, LoadError> {
        let mut p = Plot::default();
        for (key, value) in table.iter() {
            match key.get_ref().as_ref() {
                "x" => p.x = self.string(value)?,
                "y" => p.y = self.string(value)?,
                "series" => p.series = self.string(value)?,
                "title" => p.title = self.string(value)?,
                "x_label" => p.x_label = self.string(value)?,
                "y_label" => p.y_label = self.string(value)?,
                "log_x" => p.log_x = self.text_of(value)? == "true",
                "relative_to" => self.conditions(value, &mut p.relative_to)?,
                "paper" => {
                    for (name, points) in self.table(value)?.iter() {
                        let points = self.array(points)?.iter().map(|p| self.place(p)).collect::<Result<_, _>>()?;
                        p.paper.push((name.get_ref().to_string(), points));
                    }
                }
                "curves" => {
                    for c in self.array(value)? {
                        p.curves.push(self.string(c)?);
                    }
                }
                other => {
                    let why = format!(
                        "unknown key '{other}'; a plot has x, y, series, curves, relative_to, paper, title, x_label, y_label, log_x"
                    );
                    return Err(self.error(key.span().start, why));
                }
            }
        }
        Ok(p)
    }

    /// A point of a curve, `[x, y]`.
    fn place(&self, value: &Value) -> Result<(f64, f64), LoadError> {
        match self.numbers(value)?[..] {
            [x, y] => Ok((x, y)),
            _ => Err(self.error(value.span().start, "write a point as [x, y]")),
        }
    }

    /// Calls `each(position, dotted key, value)` for every leaf.
    fn flatten(
        &self,
        prefix: &str,
        table: &DeTable,
        each: &mut dyn FnMut(usize, &str, &ScalarOr<'_, '_>) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        for (key, value) in table.iter() {
            let name =
                if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
            match value.get_ref() {
                DeValue::Table(inner) if !inner.contains_key("from") => self.flatten(&name, inner, each)?,
                _ => each(key.span().start, &name, &ScalarOr::Value(value))?,
            }
        }
        Ok(())
    }

    fn param(&self, params: &mut Params, at: usize, key: &str, value: &ScalarOr<'_, '_>) -> Result<(), LoadError> {
        let text = self.scalar(at, value)?;
        params.set(key, &text).map_err(|why| self.error(at, why))
    }

    fn scalar(&self, _at: usize, value: &ScalarOr<'_, '_>) -> Result<String, LoadError> {
        match value {
            ScalarOr::Text(t) => Ok((*t).to_string()),
            ScalarOr::Value(v) => self.text_of(v),
        }
    }

    /// A sweep's values: a list or a range.
    fn sweep_values(&self, key: &str, value: &ScalarOr<'_, '_>) -> Result<Vec<String>, LoadError> {
        let ScalarOr::Value(value) = value else { return Ok(Vec::new()) };
        if let DeValue::Table(range) = value.get_ref() {
            return self.range(range, value.span());
        }
        let items = self.array(value)?;
        if items.is_empty() {
            return Err(self.error(value.span().start, format!("the sweep of '{key}' has no values")));
        }
        items.iter().map(|v| self.text_of(v)).collect()
    }

    /// `{ from = 1, to = 64, factor = 2 }` or `{ from = 10, to = 100, step = 10 }`, both ends included.
    fn range(&self, table: &DeTable, span: Range<usize>) -> Result<Vec<String>, LoadError> {
        let (mut from, mut to, mut step, mut factor) = (None, None, None, None);
        for (key, value) in table.iter() {
            let slot = match key.get_ref().as_ref() {
                "from" => &mut from,
                "to" => &mut to,
                "step" => &mut step,
                "factor" => &mut factor,
                other => {
                    let why = format!("unknown key '{other}'; a range has from, to, and step or factor");
                    return Err(self.error(key.span().start, why));
                }
            };
            *slot = Some(self.number(value)?);
        }
        let wrong = || self.error(span.start, "a range has from <= to, and a step above 0 or a factor above 1");
        let (Some(from), Some(to)) = (from, to) else { return Err(wrong()) };
        let grows = match (step, factor) {
            (Some(s), None) => s > 0.0,
            (None, Some(f)) => f > 1.0 && from > 0.0,
            _ => false,
        };
        if !grows || from > to {
            return Err(wrong());
        }
        let mut values = Vec::new();
        let mut at = from;
        // The bound keeps a tiny step from filling the memory; rounding must not lose the last value.
        while at <= to * (1.0 + 1e-9) && values.len() < SWEEP_VALUES_MAX {
            values.push(format!("{}", (at * 1e9).round() / 1e9));
            at = step.map_or(at * factor.unwrap_or(2.0), |s| from + s * values.len() as f64);
        }
        Ok(values)
    }

    fn text_of(&self, value: &Value) -> Result<String, LoadError> {
        match value.get_ref() {
            DeValue::String(s) => Ok(s.to_string()),
            DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) => {
                Ok(self.text[value.span()].replace('_', ""))
            }
            _ => Err(self.error(value.span().start, "write a string, a number, or true/false here")),
        }
    }
    fn string(&self, value: &Value) -> Result<String, LoadError> {
        match value.get_ref() {
            DeValue::String(s) => Ok(s.trim().to_string()),
            _ => Err(self.error(value.span().start, "write a string here")),
        }
    }
    fn number(&self, value: &Value) -> Result<f64, LoadError> {
        let bad = || self.error(value.span().start, "write a number here");
        self.text_of(value)?.parse().ok().filter(|x: &f64| x.is_finite()).ok_or_else(bad)
    }
    fn numbers(&self, value: &Value) -> Result<Vec<f64>, LoadError> {
        self.array(value)?.iter().map(|v| self.number(v)).collect()
    }
    fn array<'v, 'i>(&self, value: &'v Value<'i>) -> Result<&'v [Value<'i>], LoadError> {
        match value.get_ref() {
            DeValue::Array(a) => Ok(a),
            _ => Err(self.error(value.span().start, "write a list here")),
        }
    }
    fn table<'v, 'i>(&self, value: &'v Value<'i>) -> Result<&'v DeTable<'i>, LoadError> {
        match value.get_ref() {
            DeValue::Table(t) => Ok(t),
            _ => Err(self.error(value.span().start, "write a table here")),
        }
    }
}

/// A leaf of a file, or a text that was made of one.
enum ScalarOr<'v, 'i> {
    Value(&'v Value<'i>),
    Text(&'v str),
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "id = \"X\"\ntitle = \"t\"\nsource = \"s\"\n";

    fn refused(tail: &str) -> LoadError {
        parse("x.toml", &format!("{HEAD}{tail}")).expect_err(tail)
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (tail, line, part) in [
            ("[params]\nclients = 0\n", 5, "clients"),
            ("[params]\nclient = 3\n", 5, "unknown key"),
            ("wolrd = 'light'\n", 4, "unknown key 'wolrd'"),
            ("world = 'heavy'\n", 4, "heavy"),
            ("[params.nrs]\npolicy = 'x'\n", 5, "unknown NRS policy"),
            ("[sweep]\nclients = []\n", 5, "no values"),
            ("[sweep]\nclients = { from = 1, to = 8 }\n", 5, "step above 0"),
            ("[sweep]\nclients = { from = 1, to = 8, by = 2 }\n", 5, "unknown key 'by'"),
            ("[sweep]\nclients = { from = 8, to = 1, step = 1 }\n", 5, "from <= to"),
            ("[sweep]\nclients = [1, 0]\n", 5, "clients"),
            ("[[expect]]\nmetric = 'a'\n", 4, "tolerance_percent"),
            ("[[expect]]\nmetric = 'a'\nmin = 2\nmax = 1\n", 4, "above"),
            ("[[expect]]\nmin = 2\n", 4, "metric"),
            ("[[expect]]\nmetric = 'a'\nmin = 2\nknown_miss = 'why'\n", 4, "known_value"),
            ("[[expect]]\nmetric = 'a'\nover = 'clients'\n", 4, "'trend'"),
            ("[[expect]]\nmetric = 'a'\nover = 'clients'\ntrend = 'up'\n", 7, "rises, falls"),
            ("[[reading]]\nname = 'a'\n", 4, "'field'"),
            ("[[reading]]\nname = 'a'\nfield = 'b'\ntake = 'most'\n", 7, "max, min, mean"),
            ("world = 'recorded'\n", 1, "results"),
            ("results = 'a.ndjson'\n", 1, "recorded"),
            ("[params]\nclients = = 2\n", 5, ""),
            ("[plot]\nz = 'a'\n", 5, "unknown key 'z'"),
            ("[plot]\npaper = { queue = [[20]] }\n", 5, "[x, y]"),
            ("[[plot]]\nx = 'a'\n[[plot]]\nrelative_to = { client = 3 }\n", 7, "unknown key"),
        ] {
            let e = refused(tail);
            assert_eq!(e.line, line, "{e}");
            assert!(e.reason.contains(part), "{e}");
        }
        let missing = load(Path::new("/nonexistent/R1.toml")).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent/R1.toml:0: cannot be read"), "{missing}");
    }

    #[test]
    fn a_tolerance_becomes_bounds() {
        let s = parse("x", &format!("{HEAD}[[expect]]\nmetric = 'a'\nvalue = 200\ntolerance_percent = 3\n")).unwrap();
        assert_eq!((s.expect[0].min, s.expect[0].max), (Some(194.0), Some(206.0)));
    }

    #[test]
    fn a_range_includes_both_ends() {
        let values =
            |range: &str| parse("x", &format!("{HEAD}[sweep]\nclients = {range}\n")).unwrap().sweep[0].1.clone();
        assert_eq!(values("{ from = 1, to = 8, factor = 2 }"), ["1", "2", "4", "8"]);
        assert_eq!(values("{ from = 10, to = 30, step = 10 }"), ["10", "20", "30"]);
        let nested = format!("{HEAD}[sweep.net]\nloss = {{ from = 0.1, to = 0.3, step = 0.1 }}\n");
        assert_eq!(parse("x", &nested).unwrap().sweep[0].1, ["0.1", "0.2", "0.3"]);
    }

    #[test]
    fn dotted_and_nested_keys_mean_the_same() {
        let nested = parse("x", &format!("{HEAD}[params.nrs]\npolicy = 'fifo'\n")).unwrap();
        let dotted = parse("x", &format!("{HEAD}[params]\nnrs.policy = 'fifo'\n")).unwrap();
        assert_eq!(nested.params, dotted.params);
    }
}
