//! `stria advice`: what is advised about files, and what came of it on the servers, from the xattr `stria.advice`.
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::cli::Advice;
use crate::failure::{Failure, Outcome};

/// Bytes that an xattr has at most.
const VALUE_BYTES_MAX: usize = 65_536;

/// What a range line says: `LEVEL START-END KEY=VALUE...`.
struct Range {
    level: String,
    start: u64,
    end: Option<u64>,
    numbers: Vec<(String, u64)>,
}

impl Range {
    fn read(line: &str) -> Option<Range> {
        let mut words = line.split(' ');
        let level = words.next()?.into();
        let (start, end) = words.next()?.split_once('-')?;
        let end = if end.is_empty() { None } else { Some(end.parse().ok()?) };
        let number = |w: &str| w.split_once('=').and_then(|(k, v)| Some((k.to_string(), v.parse().ok()?)));
        let numbers = words.map(number).collect::<Option<Vec<_>>>()?;
        Some(Range { level, start: start.parse().ok()?, end, numbers })
    }
    fn number(&self, key: &str) -> u64 {
        self.numbers.iter().find(|(k, _)| k == key).map_or(0, |(_, v)| *v)
    }
    fn tier(&self) -> &'static str {
        match (self.number("ram_placed") > 0, self.number("fast_placed") > 0) {
            (true, true) => "ram+fast",
            (true, false) => "ram",
            (false, true) => "fast",
            (false, false) => "-",
        }
    }
    /// Why bytes have no place, and why they were not fetched.
    fn error(&self) -> String {
        let refusal = match self.number("refusal") {
            0 => None,
            1 => Some("the servers are too hard pressed for this level"),
            2 => Some("no room beside the same and higher levels"),
            4 => Some("another user asked for as much or more: it counts again when that is withdrawn"),
            _ => Some("the budget of the project or of the user is used up"),
        };
        let errno = self.number("errno") as i32;
        let error = (errno != 0).then(|| io::Error::from_raw_os_error(errno).to_string());
        let all: Vec<String> = refusal.map(String::from).into_iter().chain(error).collect();
        all.join("; ")
    }
    fn json(&self) -> Value {
        let mut row = Map::new();
        row.insert("level".into(), json!(self.level));
        row.insert("start".into(), json!(self.start));
        row.insert("end".into(), json!(self.end));
        row.insert("tier".into(), json!(self.tier()));
        row.extend(self.numbers.iter().map(|(k, v)| (k.clone(), json!(v))));
        row.insert("error".into(), json!(self.error()));
        Value::Object(row)
    }
}

/// Runs the verb.
///
/// # Errors
/// A path that cannot be read, or lies elsewhere.
pub fn advice(a: &Advice) -> Outcome {
    for path in &a.path {
        let text = shown(path)?;
        if path.is_dir() {
            match a.json {
                true => say!("{}", json!({"path": path.to_string_lossy(), "new_files": text})),
                false => say!("{}: new files get '{text}'", path.display()),
            }
            continue;
        }
        let ranges = text.lines().map(|l| {
            Range::read(l).ok_or_else(|| {
                Failure::with_errno(
                    format!("{}: the mount says '{l}', which is no range", path.display()),
                    libc::EPROTO,
                )
            })
        });
        let ranges = ranges.collect::<Result<Vec<_>, _>>()?;
        if a.json {
            let rows: Vec<Value> = ranges.iter().map(Range::json).collect();
            say!("{}", json!({"path": path.to_string_lossy(), "ranges": rows}));
        } else {
            crate::out::print(format_args!("{}", table(path, &ranges)));
        }
    }
    Ok(())
}

fn table(path: &Path, ranges: &[Range]) -> String {
    if ranges.is_empty() {
        return format!("{}: nothing is advised\n", path.display());
    }
    let head = ["level", "range", "tier", "placed", "in RAM", "on fast", "hits", "fetched", "uid", "since", "error"];
    let mut rows: Vec<Vec<String>> = vec![head.map(String::from).to_vec()];
    for r in ranges {
        let end = r.end.map_or("EOF".into(), |e| e.to_string());
        let fetched = match r.number("to_fetch") {
            0 => "-".into(),
            all => format!("{}%", u128::from(r.number("fetched")) * 100 / u128::from(all)),
        };
        let placed = r.number("ram_placed") + r.number("fast_placed");
        let since = (r.number("since_ns") / 1_000_000_000) as i64;
        rows.push(vec![
            r.level.clone(),
            format!("[{}, {end})", r.start),
            r.tier().into(),
            placed.to_string(),
            r.number("ram_resident").to_string(),
            r.number("fast_resident").to_string(),
            r.number("hits").to_string(),
            fetched,
            r.number("uid").to_string(),
            crate::lfs::time_text(since),
            r.error(),
        ]);
    }
    let widths: Vec<usize> = (0..head.len()).map(|i| rows.iter().map(|r| r[i].len()).max().unwrap_or(0)).collect();
    let mut out = format!("{}\n", path.display());
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, w)| format!("{cell:w$}")).collect();
        out += &format!("  {}\n", cells.join("  ").trim_end());
    }
    out
}

/// The value of the xattr.
fn shown(path: &Path) -> Result<String, Failure> {
    let c = CString::new(path.as_os_str().as_bytes()).map_err(|e| Failure::io("reading", path, &e.into()))?;
    let mut value = vec![0u8; VALUE_BYTES_MAX];
    // SAFETY: NUL-terminated strings and a buffer of the said length, all outliving the call.
    let n = unsafe {
        libc::getxattr(c.as_ptr(), types::advise::SHOWN_XATTR.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    let Ok(n) = usize::try_from(n) else {
        let e = io::Error::last_os_error();
        return match e.raw_os_error() {
            Some(libc::EOPNOTSUPP) => crate::lfs::connection_of(path).and(Err(Failure::io("advice:", path, &e))),
            _ => Err(Failure::io("advice:", path, &e)),
        };
    };
    value.truncate(n);
    Ok(String::from_utf8_lossy(&value).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_where_bytes_are_and_why_not() {
        let row =
            Range::read("high 5- uid=7 ram_placed=3 fast_placed=0 to_fetch=200 fetched=50 errno=28 refusal=3").unwrap();
        assert_eq!((row.start, row.end, row.tier()), (5, None, "ram"));
        assert!(row.error().starts_with("the budget of the project or of the user is used up; "), "{}", row.error());
        let shown = table(Path::new("/m/f"), &[row]);
        assert!(
            shown.starts_with("/m/f\n  level  range") && shown.contains("[5, EOF)") && shown.contains("25%"),
            "{shown}"
        );
        assert!(Range::read("high 5").is_none() && Range::read("high 5-6 x").is_none());
    }
}
