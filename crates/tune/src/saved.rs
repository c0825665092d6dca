//! Old values: of a search that runs, so that an end by SIGKILL can be mended, and of what was applied, to go back.
use std::fs;
use std::path::{Path, PathBuf};

use bench::{Failed, Outcome};
use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;

/// Version of the file.
const FORMAT: u32 = 1;
/// Largest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// What the file says it is.
const KIND: &str = "stria tune: old values";

/// Values of before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    kind: String,
    format: u32,
    /// The mount.
    pub mount: PathBuf,
    /// Parameters with their values: patterns where all that match had the same, else full names.
    pub parameters: Vec<(String, String)>,
    /// Directories with the bytes of their default layouts in hexadecimal; null: they had none.
    pub layouts: Vec<(PathBuf, Option<String>)>,
}

impl Saved {
    /// Of a mount; nothing yet.
    #[must_use]
    pub fn new(mount: &Path) -> Saved {
        Saved { kind: KIND.into(), format: FORMAT, mount: mount.into(), parameters: Vec::new(), layouts: Vec::new() }
    }
    /// Remembers all parameters that match a pattern and can be set.
    ///
    /// # Errors
    /// Nobody answers.
    pub fn remember(&mut self, cluster: &dyn Cluster, pattern: &str) -> Outcome {
        let mut found = cluster.params(pattern)?;
        found.retain(|p| p.writable);
        match found.first() {
            // A pattern is right after the next mount, too: names have the client's number in them.
            Some(first) if found.iter().all(|p| p.value == first.value) => {
                self.parameters.push((pattern.into(), first.value.clone()));
            }
            _ => self.parameters.extend(found.into_iter().map(|p| (p.name, p.value))),
        }
        Ok(())
    }
    /// Remembers the default layout of a directory.
    pub fn remember_layout(&mut self, dir: &Path, bytes: Option<&[u8]>) {
        self.layouts.push((dir.into(), bytes.map(hex)));
    }
    /// Writes it into a new file that its owner alone may change; it is there after a crash, too.
    ///
    /// # Errors
    /// As open(2) and write(2).
    pub fn write_new(&self, path: &Path) -> Outcome {
        use std::io::Write;
        let text = serde_json::to_string_pretty(self).expect("texts and lists are JSON") + "\n";
        let written = fs::OpenOptions::new().write(true).create_new(true).open(path).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.map_err(|e| Failed::io("writing", path, &e))
    }
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is no such file.
    pub fn read(path: &Path) -> Outcome<Saved> {
        use std::io::Read;
        let file = fs::File::open(path).map_err(|e| Failed::io("reading", path, &e))?;
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|e| Failed::io("reading", path, &e))?;
        let no = |why: String| Failed::usage(format!("{}: {why}: give the file that --apply wrote", path.display()));
        let saved: Saved = serde_json::from_str(&text).map_err(|e| no(format!("it holds no old values ({e})")))?;
        if saved.kind != KIND {
            return Err(no(format!("it says that it is '{}'", saved.kind)));
        }
        if saved.format != FORMAT {
            return Err(no(format!("it has format {}, and this program knows {FORMAT}", saved.format)));
        }
        match saved.layouts.iter().find(|(_, h)| h.as_ref().is_some_and(|h| unhex(h).is_none())) {
            Some((dir, _)) => Err(no(format!("the layout of {} is not hexadecimal", dir.display()))),
            None => Ok(saved),
        }
    }
    /// Puts everything back; what could not be, a sentence each. Nothing is left out because something else failed.
    #[must_use]
    pub fn restore(&self, cluster: &dyn Cluster) -> Vec<String> {
        let mut left = Vec::new();
        for (name, value) in &self.parameters {
            if let Err(e) = cluster.set(name, value) {
                left.push(format!("{name} = {value}: {e}"));
            }
        }
        for (dir, bytes) in &self.layouts {
            let bytes = bytes.as_deref().and_then(unhex);
            if let Err(e) = cluster.set_default_layout(dir, bytes.as_deref()) {
                left.push(format!("the default layout of {}: {e}", dir.display()));
            }
        }
        left
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.bytes().all(|b| b.is_ascii_hexdigit()) || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::tests::Pretended;

    #[test]
    fn what_is_written_is_read_back_and_anything_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("old");
        let mut saved = Saved::new(Path::new("/m"));
        saved.parameters.push(("osc.a.max_rpcs_in_flight".into(), "8".into()));
        saved.remember_layout(Path::new("/m/d"), Some(&[0, 255, 16]));
        saved.remember_layout(Path::new("/m/e"), None);
        saved.write_new(&path).unwrap();
        assert_eq!(Saved::read(&path).unwrap(), saved);
        assert_eq!(saved.write_new(&path).unwrap_err().errno, libc::EEXIST, "nothing is overwritten");

        let good = fs::read_to_string(&path).unwrap();
        for (from, to, why) in [
            ("\"format\": 1", "\"format\": 9", "it has format 9"),
            (KIND, "something", "it says that it is 'something'"),
            ("00ff10", "00ff1", "not hexadecimal"),
            ("00ff10", "00ffxx", "not hexadecimal"),
            ("\"mount\"", "\"nount\"", "no old values"),
            ("{", "", "no old values"),
        ] {
            fs::write(&path, good.replacen(from, to, 1)).unwrap();
            let e = Saved::read(&path).unwrap_err();
            assert!(e.text.contains(why) && e.text.contains(path.to_str().unwrap()), "{from}: {e}");
        }
        assert_eq!(Saved::read(&dir.path().join("none")).unwrap_err().errno, libc::ENOENT);
    }

    #[test]
    fn values_are_put_back_by_pattern_where_they_were_equal_and_what_cannot_be_is_told() {
        let with = |a: &str, b: &str| Pretended::with(&[("osc.a.x", a), ("osc.b.x", b)]);
        let mut saved = Saved::new(Path::new("/m"));
        saved.remember(&with("8", "8"), "osc.*.x").unwrap();
        saved.remember(&with("1", "2"), "osc.*.x").unwrap();
        assert_eq!(
            saved.parameters.iter().map(|p| p.0.as_str()).collect::<Vec<_>>(),
            ["osc.*.x", "osc.a.x", "osc.b.x"]
        );
        let cluster = Pretended { refused: Some("8"), ..with("5", "5") };
        let left = saved.restore(&cluster);
        assert!(left.len() == 1 && left[0].starts_with("osc.*.x = 8: "), "{left:?}");
        assert_eq!((cluster.value("osc.a.x"), cluster.value("osc.b.x")), ("1".into(), "2".into()));
    }

    #[test]
    fn hexadecimal_goes_both_ways() {
        assert_eq!(unhex(&hex(&[0, 1, 127, 128, 255])), Some(vec![0, 1, 127, 128, 255]));
        assert!(unhex("é0").is_none() && unhex("+1").is_none() && unhex("123").is_none());
    }
}
