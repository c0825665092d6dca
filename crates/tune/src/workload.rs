//! What the cluster is tuned for: workloads, as a file describes them or as they are without one, and their runs' sizes.
//!
//! A file is TOML: the keys of one workload, or `[[workload]]` tables. Every key is known or refused with its line.
use std::ops::Range;
use std::path::Path;

use bench::Failed;
use bench::plan::{Draft, Workload as Plan};
use serde::Serialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use types::{format_size, parse_size};

/// Most processes of a workload.
pub const PROCESSES_MAX: u64 = 1024;
/// Most workloads of a file.
const WORKLOADS_MAX: usize = 16;
/// Largest workload file, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Keys of a workload.
const KEYS: &str = "name, read_share, transfer, block, processes, files, order, passes, weight";

/// One workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// In tables.
    pub name: String,
    /// Share of the bytes that is read, 0..=1; the rest is written.
    pub read_share: f64,
    /// Bytes of one read or write.
    pub transfer_bytes: u64,
    /// Bytes that a process has in a row; `None`: all of its bytes.
    pub block_bytes: Option<u64>,
    /// Processes at a time.
    pub processes: u64,
    /// All of them in one file, or each in its own.
    pub shared: bool,
    /// Transfers in random order.
    pub random: bool,
    /// How often what is read is read, the first time with cold caches of this mount.
    pub passes: u64,
    /// How much it counts beside others.
    pub weight: f64,
}

impl Default for Workload {
    fn default() -> Workload {
        Workload {
            name: "workload".into(),
            read_share: 0.5,
            transfer_bytes: 1 << 20,
            block_bytes: None,
            processes: 4,
            shared: false,
            random: false,
            passes: 1,
            weight: 1.0,
        }
    }
}

/// Without a file: large files of single processes, and one large file of several.
#[must_use]
pub fn defaults() -> Vec<Workload> {
    let own = Workload { name: "own files".into(), ..Workload::default() };
    vec![own.clone(), Workload { name: "shared file".into(), shared: true, ..own }]
}

impl Workload {
    /// What a run with about `bytes` bytes in all does, with other processes and transfers if they are given.
    ///
    /// # Errors
    /// A sentence: it cannot be.
    pub fn plan(&self, bytes: u64, processes: Option<u64>, transfer: Option<u64>, seed: u64) -> Result<Plan, String> {
        let (tasks, transfer) = (processes.unwrap_or(self.processes), transfer.unwrap_or(self.transfer_bytes));
        let each = (bytes / tasks / transfer).max(1) * transfer;
        // A block is no larger than what there is, and whole transfers.
        let block = (self.block_bytes.unwrap_or(each).min(each) / transfer).max(1) * transfer;
        let tasks = u32::try_from(tasks).map_err(|_| format!("{tasks} processes: {PROCESSES_MAX} are the most"))?;
        Draft {
            transfer_bytes: transfer,
            block_bytes: block,
            segments: each / block,
            agents: 1,
            tasks,
            files: if self.shared { 1 } else { tasks },
            random: self.random,
            reorder: false,
            fsync: true,
            seed,
        }
        .checked()
    }
    /// In a line.
    #[must_use]
    pub fn text(&self) -> String {
        let files = if self.shared { "one shared file" } else { "a file each" };
        let order = if self.random { "random" } else { "sequential" };
        format!(
            "{}: {} processes, {files}, {order} transfers of {}, {:.0} % read",
            self.name,
            self.processes,
            format_size(self.transfer_bytes),
            self.read_share * 100.0
        )
    }
}

/// Reads a workload file.
///
/// # Errors
/// File, line, value and what would be right.
pub fn load(path: &Path) -> Result<Vec<Workload>, Failed> {
    use std::io::Read;
    let file = std::fs::File::open(path).map_err(|e| Failed::io("reading", path, &e))?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| Failed::io("reading", path, &e))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let most = format_size(FILE_BYTES_MAX);
        return Err(Failed::new(format!("{}: it is larger than {most}, so no workload", path.display()), libc::EFBIG));
    }
    parse(&path.display().to_string(), &text).map_err(Failed::usage)
}

/// Checks the text of a workload file; `file` is only named in errors.
///
/// # Errors
/// As [`load`].
pub fn parse(file: &str, text: &str) -> Result<Vec<Workload>, String> {
    let reader = Reader { file, text };
    let document = DeTable::parse(text).map_err(|e| reader.error(e.span().map_or(0, |s| s.start), e.message()))?;
    let table = document.get_ref();
    let several = table.iter().find(|(key, _)| key.get_ref() == "workload");
    let Some((_, list)) = several else {
        if table.is_empty() {
            return Err(reader.error(0, format!("it describes nothing: write some of {KEYS}")));
        }
        return Ok(vec![reader.workload(table, 0, "workload".into())?]);
    };
    if let Some((other, _)) = table.iter().find(|(key, _)| key.get_ref() != "workload") {
        let why = format!("'{}' stands beside [[workload]]: write it into one of them", other.get_ref());
        return Err(reader.error(other.span().start, why));
    }
    let DeValue::Array(all) = list.get_ref() else {
        return Err(reader.error(list.span().start, "write [[workload]] in two pairs of brackets"));
    };
    if all.is_empty() || all.len() > WORKLOADS_MAX {
        let why = format!("there are {} workloads: 1 to {WORKLOADS_MAX} can be", all.len());
        return Err(reader.error(list.span().start, why));
    }
    let mut found: Vec<Workload> = Vec::new();
    for (i, one) in all.iter().enumerate() {
        let DeValue::Table(table) = one.get_ref() else {
            return Err(reader.error(one.span().start, "write [[workload]] in two pairs of brackets"));
        };
        let w = reader.workload(table, one.span().start, format!("workload {}", i + 1))?;
        if found.iter().any(|f| f.name == w.name) {
            return Err(reader.error(one.span().start, format!("there are two workloads named '{}'", w.name)));
        }
        found.push(w);
    }
    Ok(found)
}

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
}

type Value<'i> = Spanned<DeValue<'i>>;

impl Reader<'_> {
    fn error(&self, at: usize, reason: impl AsRef<str>) -> String {
        let line = self.text[..at.min(self.text.len())].matches('\n').count() + 1;
        format!("{}:{line}: {}", self.file, reason.as_ref())
    }

    fn workload(&self, table: &DeTable, at: usize, name: String) -> Result<Workload, String> {
        let mut w = Workload { name, ..Workload::default() };
        let (mut at_block, mut at_passes) = (at, at);
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "name" => w.name = self.name(value)?,
                "read_share" => w.read_share = self.number(value, "read_share", 0.0..1.0)?,
                "weight" => w.weight = self.number(value, "weight", 0.001..1000.0)?,
                "transfer" => w.transfer_bytes = self.size(value, "transfer", 512, 64 << 20)?,
                "block" => {
                    at_block = value.span().start;
                    w.block_bytes = Some(self.size(value, "block", 512, 1 << 40)?);
                }
                "processes" => w.processes = self.count(value, "processes", PROCESSES_MAX)?,
                "passes" => {
                    at_passes = value.span().start;
                    w.passes = self.count(value, "passes", 100)?;
                }
                "files" => w.shared = self.choice(value, "files", ["per_process", "shared"])?,
                "order" => w.random = self.choice(value, "order", ["sequential", "random"])?,
                other => {
                    let why = format!("unknown key '{other}'; a workload has {KEYS}");
                    return Err(self.error(key.span().start, why));
                }
            }
        }
        if let Some(block) = w.block_bytes.filter(|b| !b.is_multiple_of(w.transfer_bytes)) {
            let (block, transfer) = (format_size(block), format_size(w.transfer_bytes));
            let why = format!("block = {block} is not a multiple of transfer = {transfer}: write whole transfers");
            return Err(self.error(at_block, why));
        }
        if w.passes > 1 && w.read_share == 0.0 {
            return Err(self.error(at_passes, "passes says how often is read, and read_share = 0 reads nothing"));
        }
        Ok(w)
    }

    /// What a value is in the file.
    fn raw(&self, value: &Value<'_>) -> String {
        let Range { start, end } = value.span();
        self.text.get(start..end).unwrap_or("?").to_string()
    }
    fn wrong<T>(&self, value: &Value<'_>, key: &str, right: &str) -> Result<T, String> {
        let raw: String = self.raw(value).chars().take(60).collect();
        Err(self.error(value.span().start, format!("{key} = {raw}: write {right}")))
    }

    fn name(&self, value: &Value<'_>) -> Result<String, String> {
        match value.get_ref() {
            DeValue::String(s) if (1..=60).contains(&s.chars().count()) && !s.chars().any(char::is_control) => {
                Ok(s.to_string())
            }
            _ => self.wrong(value, "name", "a name of 1 to 60 characters, in quotes"),
        }
    }
    fn number(&self, value: &Value<'_>, key: &str, range: Range<f64>) -> Result<f64, String> {
        let text = match value.get_ref() {
            DeValue::Float(f) => f.as_str().to_string(),
            DeValue::Integer(i) if i.radix() == 10 => i.as_str().to_string(),
            _ => String::new(),
        };
        let number: Option<f64> = text.replace('_', "").parse().ok();
        match number.filter(|n| n.is_finite() && (range.start..=range.end).contains(n)) {
            Some(n) => Ok(n),
            None => self.wrong(value, key, &format!("a number from {} to {}", range.start, range.end)),
        }
    }
    fn count(&self, value: &Value<'_>, key: &str, most: u64) -> Result<u64, String> {
        let number = match value.get_ref() {
            DeValue::Integer(i) => u64::from_str_radix(&i.as_str().replace('_', ""), i.radix()).ok(),
            _ => None,
        };
        match number.filter(|n| (1..=most).contains(n)) {
            Some(n) => Ok(n),
            None => self.wrong(value, key, &format!("a whole number from 1 to {most}")),
        }
    }
    fn size(&self, value: &Value<'_>, key: &str, least: u64, most: u64) -> Result<u64, String> {
        let bytes = match value.get_ref() {
            DeValue::Integer(i) => u64::from_str_radix(&i.as_str().replace('_', ""), i.radix()).ok(),
            DeValue::String(s) => parse_size(s).ok(),
            _ => None,
        };
        match bytes.filter(|b| (least..=most).contains(b) && b.is_multiple_of(512)) {
            Some(bytes) => Ok(bytes),
            None => {
                let (least, most) = (format_size(least), format_size(most));
                self.wrong(value, key, &format!("a size from {least} to {most} in steps of 512 bytes, like \"1M\""))
            }
        }
    }
    /// Whether it is the second of two words.
    fn choice(&self, value: &Value<'_>, key: &str, words: [&str; 2]) -> Result<bool, String> {
        let place = match value.get_ref() {
            DeValue::String(s) => words.iter().position(|w| w == s),
            _ => None,
        };
        match place {
            Some(i) => Ok(i == 1),
            None => self.wrong(value, key, &format!("\"{}\" or \"{}\"", words[0], words[1])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_describes_one_workload_or_several() {
        let one = parse("f", "read_share = 0.25\ntransfer = \"4K\"\nblock = 65536\nprocesses = 0x10\nfiles = 'shared'\norder = \"random\"\npasses = 2\n").unwrap();
        let expected = Workload {
            read_share: 0.25,
            transfer_bytes: 4096,
            block_bytes: Some(65536),
            processes: 16,
            shared: true,
            random: true,
            passes: 2,
            ..Workload::default()
        };
        assert_eq!(one, [expected]);
        let two = parse("f", "[[workload]]\nname = \"a\"\nweight = 2\n[[workload]]\nread_share = 1\n").unwrap();
        let shown: Vec<(&str, f64, f64)> = two.iter().map(|w| (w.name.as_str(), w.weight, w.read_share)).collect();
        assert_eq!(shown, [("a", 2.0, 0.5), ("workload 2", 1.0, 1.0)]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_file_line_value_and_remedy() {
        for (text, line, words) in [
            ("", 1, "describes nothing"),
            ("\nprocesses = 0", 2, "processes = 0: write a whole number from 1 to 1024"),
            ("processes = 1.5", 1, "processes = 1.5: write a whole number"),
            ("processes = 99999999999999999999999", 1, "write a whole number"),
            ("transfer = 0", 1, "transfer = 0: write a size from"),
            ("transfer = \"many\"", 1, "transfer = \"many\": write a size"),
            ("transfer = 1000", 1, "steps of 512 bytes"),
            ("transfer = \"1T\"", 1, "transfer = \"1T\""),
            ("read_share = 1.5", 1, "read_share = 1.5: write a number from 0 to 1"),
            ("read_share = nan", 1, "read_share = nan"),
            ("read_share = true", 1, "read_share = true"),
            ("# c\nfiles = \"many\"", 2, "files = \"many\": write \"per_process\" or \"shared\""),
            ("order = 1", 1, "order = 1: write \"sequential\" or \"random\""),
            ("transfer = \"1M\"\nblock = \"1536K\"", 2, "not a multiple of transfer"),
            ("passes = 2\nread_share = 0", 1, "reads nothing"),
            ("name = \"\"", 1, "a name of 1 to 60"),
            ("processes = 4\nprocesss = 4", 2, "unknown key 'processs'; a workload has name,"),
            ("[[workload]]\nsize = 1", 2, "unknown key 'size'"),
            ("processes = 4\n[[workload]]\n", 1, "'processes' stands beside [[workload]]"),
            ("[workload]\nprocesses = 4", 1, "two pairs of brackets"),
            ("workload = []", 1, "there are 0 workloads"),
            ("[[workload]]\nname='a'\n[[workload]]\nname='a'", 3, "two workloads named 'a'"),
            ("processes = ", 1, ""),
        ] {
            let why = parse("w.toml", text).unwrap_err();
            assert!(why.starts_with(&format!("w.toml:{line}: ")) && why.contains(words), "{text:?}: {why}");
        }
    }

    #[test]
    fn a_file_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(&dir.path().join("none")).unwrap_err().errno, libc::ENOENT);
        assert!(load(dir.path()).is_err());
        let path = dir.path().join("f");
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(load(&path).unwrap_err().text.contains(path.to_str().unwrap()));
        std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
        assert_eq!(load(&path).unwrap_err().errno, libc::EFBIG);
    }

    #[test]
    fn a_run_has_about_the_bytes_it_is_given_in_whole_transfers() {
        let w = Workload::default();
        let p = w.plan(10 << 20, None, None, 1).unwrap();
        assert_eq!((p.total_bytes(), p.files, p.block_bytes, p.segments), (8 << 20, 4, 2 << 20, 1));
        assert_eq!(w.plan(1, None, None, 1).unwrap().total_bytes(), 4 << 20);
        let p = w.plan(64 << 20, Some(8), Some(4 << 20), 1).unwrap();
        assert_eq!((p.total_bytes(), p.tasks, p.transfer_bytes), (64 << 20, 8, 4 << 20));
        let blocks = Workload { block_bytes: Some(2 << 20), shared: true, ..Workload::default() };
        let p = blocks.plan(64 << 20, None, None, 1).unwrap();
        assert_eq!((p.block_bytes, p.segments, p.files), (2 << 20, 8, 1));
        assert!(defaults().iter().all(|w| w.plan(32 << 20, None, None, 0).is_ok()));
    }
}
