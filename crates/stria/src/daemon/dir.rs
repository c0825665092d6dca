//! A cluster's directory: what belongs to it, and where.
//!
//! `cluster.toml` (identity), `mdt0`, `ost0`.. (stores), `run/` (pids, addresses, logs). Decides whether a directory is
//! ours; the stores decide that again for themselves.
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use cluster::{format_mdt, format_ost};
use rt::{Nid, Rt};
use types::OstIndex;

use crate::config::Config;
use crate::failure::{Failure, Outcome};

/// Format of `cluster.toml`.
const FORMAT: i64 = 1;

/// OSTs of a new cluster when nobody says how many.
pub const NEW_OSTS: u16 = 4;

/// An identified directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDir {
    path: PathBuf,
    /// Cluster id.
    pub cluster: u64,
    /// File system name.
    pub fsname: String,
    /// File with the cluster's secret; empty: none.
    pub key_file: String,
}

impl ClusterDir {
    /// Reads `cluster.toml`.
    ///
    /// # Errors
    /// It is missing, of a newer format, or not a cluster's.
    pub fn open(path: &Path) -> Result<ClusterDir, Failure> {
        let file = path.join("cluster.toml");
        let text = fs::read_to_string(&file).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Failure::with_errno(
                format!(
                    "{} is not a cluster's directory: make one with 'stria mkfs --dir {}'",
                    path.display(),
                    path.display()
                ),
                libc::ENOENT,
            ),
            _ => Failure::io("reading", &file, &e),
        })?;
        let wrong = |why: String| Failure::usage(format!("{}: {why}", file.display()));
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| wrong(e.message().to_string()))?;
        let format =
            table.get("format").and_then(toml::Value::as_integer).ok_or_else(|| wrong("no format is given".into()))?;
        if format > FORMAT {
            return Err(wrong(format!("format {format} is newer than this program's {FORMAT}: use a newer program")));
        }
        let word = |key: &str| table.get(key).and_then(toml::Value::as_str).unwrap_or_default().to_string();
        let id = word("cluster");
        let cluster = u64::from_str_radix(&id, 16).ok().filter(|c| *c != 0);
        let cluster =
            cluster.ok_or_else(|| wrong(format!("cluster = \"{id}\" is not a cluster id: 16 hexadecimal digits")))?;
        Ok(ClusterDir { path: path.into(), cluster, fsname: word("fsname"), key_file: word("key_file") })
    }

    /// Opens the directory, or makes it a new cluster's.
    ///
    /// # Errors
    /// As [`ClusterDir::open`]; it holds something else; it cannot be written.
    pub fn open_or_make(path: &Path, config: &Config, new_id: u64) -> Result<ClusterDir, Failure> {
        if path.join("cluster.toml").exists() {
            let found = ClusterDir::open(path)?;
            return if config.fsname == found.fsname || config.fsname == Config::default().fsname {
                Ok(found)
            } else {
                Err(Failure::usage(format!(
                    "{} holds file system '{}', not '{}': use another directory, or leave cluster.fsname away",
                    path.display(),
                    found.fsname,
                    config.fsname
                )))
            };
        }
        fs::create_dir_all(path).map_err(|e| Failure::io("making", path, &e))?;
        let mut entries = fs::read_dir(path).map_err(|e| Failure::io("reading", path, &e))?;
        if let Some(Ok(other)) = entries.next() {
            return Err(Failure::with_errno(
                format!(
                    "{} is not a cluster's directory and not empty ('{}' is there): use an empty or a new directory",
                    path.display(),
                    other.file_name().to_string_lossy()
                ),
                libc::ENOTEMPTY,
            ));
        }
        let key_file = match config.key_file.as_str() {
            "" => String::new(),
            file => fs::canonicalize(file)
                .map_err(|e| Failure::io("cluster.key_file", Path::new(file), &e))?
                .display()
                .to_string(),
        };
        let made = ClusterDir { path: path.into(), cluster: new_id, fsname: config.fsname.clone(), key_file };
        let text = format!(
            "# A cluster of Stria. Its stores are in this directory; keep this file with them.\nformat = {FORMAT}\ncluster = \"{:016x}\"\nfsname = {}\nkey_file = {}\n",
            made.cluster,
            toml::Value::String(made.fsname.clone()),
            toml::Value::String(made.key_file.clone()),
        );
        write_whole(&path.join("cluster.toml"), &text)?;
        Ok(made)
    }

    /// Formats the stores that are missing. The number of OSTs afterwards.
    ///
    /// # Errors
    /// A store cannot be made; those made before it stay.
    pub async fn make_missing(&self, rt: &Rt, osts: Option<u16>, config: &Config) -> Result<u16, Failure> {
        fs::create_dir_all(self.run()).map_err(|e| Failure::io("making", &self.run(), &e))?;
        let failed = |e: cluster::RoleError| Failure::from(e.0);
        if config.store_kind != "memory" && is_missing(&self.mdt()) {
            // SAFETY: plain system calls without arguments.
            let owner = unsafe { (libc::geteuid(), libc::getegid()) };
            let making = begin_store(&self.mdt())?;
            format_mdt(rt, &making, &self.fsname, self.cluster, owner).await.map_err(failed)?;
            finish_store(&making, &self.mdt())?;
        }
        if matches!(config.store_kind.as_str(), "memory" | "null") {
            return Ok(osts.unwrap_or(NEW_OSTS));
        }
        let have = self.osts_present();
        let osts = osts.unwrap_or(if have == 0 { NEW_OSTS } else { have }).max(have);
        for i in 0..osts {
            let dir = self.ost(i);
            if is_missing(&dir) {
                let ost = OstIndex(i);
                let making = begin_store(&dir)?;
                format_ost(rt, &making, &self.fsname, self.cluster, ost, config.store_capacity_bytes)
                    .await
                    .map_err(failed)?;
                finish_store(&making, &dir)?;
            }
        }
        Ok(osts)
    }

    /// One more than the highest OST directory.
    #[must_use]
    pub fn osts_present(&self) -> u16 {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let index = |e: fs::DirEntry| e.file_name().to_str()?.strip_prefix("ost")?.parse::<u16>().ok();
        entries.filter_map(index).max().map_or(0, |i| i + 1)
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The metadata store.
    #[must_use]
    pub fn mdt(&self) -> PathBuf {
        self.path.join("mdt0")
    }
    /// An OST's store.
    #[must_use]
    pub fn ost(&self, index: u16) -> PathBuf {
        self.path.join(format!("ost{index}"))
    }
    /// Pids, addresses and logs.
    #[must_use]
    pub fn run(&self) -> PathBuf {
        self.path.join("run")
    }
    /// Where process `name` (`mdt0`, `ost0`) was reached last.
    #[must_use]
    pub fn last_nid(&self, name: &str) -> Option<Nid> {
        Nid::parse(fs::read_to_string(self.run().join(format!("{name}.nid"))).ok()?.trim()).ok()
    }
    /// Writes down that process `name` runs as this process, reached at `nid`.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn note_running(&self, name: &str, nid: Option<&Nid>) -> Outcome {
        fs::create_dir_all(self.run()).map_err(|e| Failure::io("making", &self.run(), &e))?;
        if let Some(nid) = nid {
            write_whole(&self.run().join(format!("{name}.nid")), &format!("{nid}\n"))?;
        }
        write_whole(&self.run().join(format!("{name}.pid")), &format!("{}\n", std::process::id()))
    }
    /// Takes the pid file away.
    pub fn note_stopped(&self, name: &str) {
        let file = self.run().join(format!("{name}.pid"));
        if let Err(e) = fs::remove_file(&file) {
            tracing::warn!("{}: {e}", file.display());
        }
    }
    /// Processes that are written down as running: name, pid, whether it lives.
    #[must_use]
    pub fn processes(&self) -> Vec<(String, u32, bool)> {
        let entries = fs::read_dir(self.run()).into_iter().flatten().flatten();
        let mut found: Vec<_> = entries
            .filter_map(|e| {
                let name = e.file_name().to_str()?.strip_suffix(".pid")?.to_string();
                let pid: u32 = fs::read_to_string(e.path()).ok()?.trim().parse().ok()?;
                Some((name, pid, Path::new(&format!("/proc/{pid}")).exists()))
            })
            .collect();
        found.sort();
        found
    }
}

/// Where a store is made before it gets its name, so that a store that is there is whole. What an earlier try left
/// there (the disk was full, the power went) is removed.
fn begin_store(dir: &Path) -> Result<PathBuf, Failure> {
    let making = dir.with_extension("making");
    match fs::remove_dir_all(&making) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Failure::io("removing", &making, &e)),
        _ => Ok(making),
    }
}

/// Gives a store that was made its name.
fn finish_store(making: &Path, dir: &Path) -> Outcome {
    fs::rename(making, dir).map_err(|e| Failure::io("naming", dir, &e))
}

/// Whether a store directory has to be made. One that exists and holds nothing takes a store, too.
fn is_missing(dir: &Path) -> bool {
    fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

/// Writes a file so that readers see all of it or the old one.
pub fn write_whole(path: &Path, text: &str) -> Outcome {
    let new = path.with_extension("new");
    let write = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&new)?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(|e| Failure::io("writing", path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_its_cluster_and_refuses_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c");
        let mut config = Config::default();
        let made = ClusterDir::open_or_make(&path, &config, 0xabc).unwrap();
        assert_eq!(ClusterDir::open_or_make(&path, &config, 0xdef).unwrap(), made);
        config.fsname = "other".into();
        let e = ClusterDir::open_or_make(&path, &config, 1).unwrap_err().to_string();
        assert!(e.contains("holds file system 'stria', not 'other'"), "{e}");
    }

    #[test]
    fn foreign_and_newer_directories_are_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let error = || ClusterDir::open_or_make(dir.path(), &Config::default(), 1).unwrap_err().to_string();
        assert!(ClusterDir::open(dir.path()).unwrap_err().to_string().contains("stria mkfs"));
        fs::write(dir.path().join("photo.jpg"), b"x").unwrap();
        assert!(error().contains("'photo.jpg' is there"), "{}", error());
        fs::write(dir.path().join("cluster.toml"), "format = 2\ncluster = \"01\"\n").unwrap();
        assert!(error().contains("format 2 is newer than this program's 1"), "{}", error());
        fs::write(dir.path().join("cluster.toml"), "format = 1\ncluster = \"xyz\"\n").unwrap();
        assert!(error().contains("\"xyz\" is not a cluster id"), "{}", error());
        fs::write(dir.path().join("cluster.toml"), "format = ").unwrap();
        assert!(error().contains("cluster.toml"), "{}", error());
    }

    #[test]
    fn ost_directories_are_counted_by_their_highest_index() {
        let dir = tempfile::tempdir().unwrap();
        let c = ClusterDir::open_or_make(&dir.path().join("c"), &Config::default(), 1).unwrap();
        assert_eq!(c.osts_present(), 0);
        for name in ["ost0", "ost3", "ostrich", "mdt0"] {
            fs::create_dir(c.path().join(name)).unwrap();
        }
        assert_eq!(c.osts_present(), 4);
    }
}
