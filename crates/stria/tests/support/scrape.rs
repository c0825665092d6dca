//! Scraping a process's metrics, with a strict reader of the text format of Prometheus (0.0.4).
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Labels of a series, in the order of their names.
pub type Labels = BTreeMap<String, String>;

/// What a scrape showed.
#[derive(Debug, Default)]
pub struct Scrape {
    /// Types by metric.
    pub types: BTreeMap<String, String>,
    /// Values by name of the sample and labels.
    pub samples: BTreeMap<(String, Labels), f64>,
}

/// Asks for a path: status and body.
pub fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap_or_else(|e| panic!("{address}: {e}"));
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer}"));
    let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: ")).unwrap();
    assert_eq!(length.parse::<usize>().unwrap(), body.len(), "{head}");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.into())
}

/// Scrapes and reads everything.
pub fn scrape(address: &str) -> Scrape {
    let (status, body) = get(address, "/metrics");
    assert_eq!(status, 200, "{body}");
    Scrape::read(&body).unwrap_or_else(|e| panic!("{e}\n{body}"))
}

fn is_name(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl Scrape {
    /// Reads a text; the error is the line that is wrong.
    pub fn read(text: &str) -> Result<Scrape, String> {
        let mut s = Scrape::default();
        let (mut helped, mut current) = (BTreeSet::new(), String::new());
        if !text.ends_with('\n') {
            return Err("the last line does not end".into());
        }
        for line in text.lines() {
            let wrong = |why: &str| Err(format!("{why}: {line}"));
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').ok_or("HELP without text")?;
                if !is_name(name) || help.is_empty() || !helped.insert(name.to_string()) {
                    return wrong("HELP comes once, with a name and a text");
                }
                if help.replace("\\\\", "").replace("\\n", "").contains('\\') {
                    return wrong("HELP with a backslash that escapes nothing");
                }
                current = name.into();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or("TYPE without type")?;
                if name != current || !["counter", "gauge", "summary", "histogram"].contains(&kind) {
                    return wrong("TYPE follows HELP of its metric");
                }
                if s.types.insert(name.into(), kind.into()).is_some() {
                    return wrong("TYPE comes once");
                }
            } else if line.starts_with('#') || line.is_empty() {
                return wrong("neither HELP nor TYPE nor a sample");
            } else {
                s.sample(line, &current)?;
            }
        }
        s.check_histograms()?;
        Ok(s)
    }

    fn sample(&mut self, line: &str, family: &str) -> Result<(), String> {
        let end = line.find(['{', ' ']).ok_or_else(|| format!("a name alone: {line}"))?;
        let (name, mut rest) = line.split_at(end);
        let kind = self.types.get(family).ok_or_else(|| format!("a sample before its TYPE: {line}"))?;
        let suffixes: &[&str] = match kind.as_str() {
            "summary" => &["_sum", "_count"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        if !suffixes.iter().any(|s| name.strip_suffix(s) == Some(family)) || !is_name(name) {
            return Err(format!("a sample that is not of {family}, a {kind}: {line}"));
        }
        let mut labels = Labels::new();
        if let Some(inner) = rest.strip_prefix('{') {
            rest = read_labels(inner, &mut labels).map_err(|e| format!("{e}: {line}"))?;
        }
        let number = rest.strip_prefix(' ').ok_or_else(|| format!("no blank before the value: {line}"))?;
        let value: f64 = match number {
            "+Inf" => f64::INFINITY,
            "-Inf" => f64::NEG_INFINITY,
            "NaN" => f64::NAN,
            n if n.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b)) => {
                n.parse().map_err(|_| format!("no number: {line}"))?
            }
            _ => return Err(format!("no number: {line}")),
        };
        if kind != "gauge" && !(value >= 0.0 && value.is_finite()) {
            return Err(format!("a {kind} that is below nothing: {line}"));
        }
        if self.samples.insert((name.into(), labels), value).is_some() {
            return Err(format!("a series comes twice: {line}"));
        }
        Ok(())
    }

    /// Buckets grow with their bounds up to all values.
    fn check_histograms(&self) -> Result<(), String> {
        let mut buckets: BTreeMap<(String, Labels), Vec<(f64, f64)>> = BTreeMap::new();
        for ((name, labels), value) in &self.samples {
            let family = name.strip_suffix("_bucket").filter(|f| self.types.get(*f).is_some_and(|t| t == "histogram"));
            let Some(family) = family else { continue };
            let mut rest = labels.clone();
            let le = rest.remove("le").ok_or_else(|| format!("{name}{labels:?}: a bucket without le"))?;
            let le = if le == "+Inf" { f64::INFINITY } else { le.parse().map_err(|_| format!("{name}: le={le}"))? };
            buckets.entry((family.into(), rest)).or_default().push((le, *value));
        }
        for ((family, labels), mut all) in buckets {
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            let count = self.samples.get(&(format!("{family}_count"), labels.clone()));
            let sum = self.samples.get(&(format!("{family}_sum"), labels.clone()));
            let last = all.last().filter(|b| b.0 == f64::INFINITY).map(|b| b.1);
            if !all.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1) {
                return Err(format!("{family}{labels:?}: buckets are not cumulative: {all:?}"));
            }
            if last.is_none() || last != count.copied() || sum.is_none() {
                return Err(format!("{family}{labels:?}: +Inf is {last:?}, the count {count:?}, the sum {sum:?}"));
            }
        }
        Ok(())
    }

    /// The sum over all series of a sample whose labels are these, whatever else they have.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let of = |l: &Labels| labels.iter().all(|(k, v)| l.get(*k).is_some_and(|x| x == v));
        let found: Vec<f64> = self.samples.iter().filter(|((n, l), _)| n == name && of(l)).map(|(_, v)| *v).collect();
        assert!(!found.is_empty(), "there is no {name}{labels:?}");
        found.iter().sum()
    }
    /// Names of samples.
    pub fn names(&self) -> BTreeSet<String> {
        self.samples.keys().map(|(n, _)| n.clone()).collect()
    }
}

/// Reads `name="value",..}`; gives what follows.
fn read_labels<'a>(mut text: &'a str, into: &mut Labels) -> Result<&'a str, String> {
    loop {
        let (name, rest) = text.split_once("=\"").ok_or("a label without value")?;
        if !is_name(name) {
            return Err(format!("a label called '{name}'"));
        }
        let (mut value, mut chars) = (String::new(), rest.char_indices());
        let end = loop {
            match chars.next().ok_or("a value without end")? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().ok_or("a value without end")?.1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => return Err(format!("\\{c} escapes nothing")),
                }),
                (_, c) => value.push(c),
            }
        };
        if into.insert(name.into(), value).is_some() {
            return Err(format!("the label {name} comes twice"));
        }
        text = &rest[end + 1..];
        match text.split_at_checked(1) {
            Some((",", more)) => text = more,
            Some(("}", after)) => return Ok(after),
            _ => return Err("neither ',' nor '}' behind a label".into()),
        }
    }
}
