//! A cluster's directory: what belongs to it, and where.
//!
//! `cluster.toml` (identity, stores, settings that stay), `mdt0`, `ost0`.. (stores), `run/` (pids, addresses, logs).
//! Decides whether a directory is ours; the stores decide that again for themselves (`stores.rs`).
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rt::Nid;

use super::keys;
use super::private::{self, Closed, PrivateDir};
use super::settings::is_inside;
use super::stores::is_free;
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::metrics::Endpoint;
use crate::out::word;

/// Format of `cluster.toml`.
const FORMAT: i64 = 2;

/// Settings of the first start that hold for the cluster's life, unless a later start says otherwise and can have it.
pub const KEPT: [&str; 6] =
    ["store.kind", "store.profile", "store.profile_keys", "store.elevator", "store.capacity_bytes", "store.direct"];

const STORES: &str = "stores";
const REMOVED: &str = "removed";
const LEAVING: &str = "leaving";
const SETTINGS: &str = "settings";
const PUT_BACK: &str = "put_back";

/// OSTs of a new cluster when nobody says how many.
pub const NEW_OSTS: u16 = 4;

/// An identified directory.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterDir {
    path: PathBuf,
    /// Everything that `cluster.toml` says, also what this program does not know.
    table: toml::Table,
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
        let found = ClusterDir::read(path)?;
        found.refuse_exposed()?;
        Ok(found)
    }

    fn read(path: &Path) -> Result<ClusterDir, Failure> {
        let file = path.join("cluster.toml");
        let text = fs::read_to_string(&file).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Failure::with_errno(no_cluster(path), libc::ENOENT),
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
        Ok(ClusterDir { path: path.into(), cluster, fsname: word("fsname"), key_file: word("key_file"), table })
    }

    /// [`ClusterDir::open`] where there may be no cluster yet.
    ///
    /// # Errors
    /// As [`ClusterDir::open`], but for a missing one.
    pub fn open_if_there(path: &Path) -> Result<Option<ClusterDir>, Failure> {
        if path.join("cluster.toml").exists() { ClusterDir::open(path).map(Some) } else { Ok(None) }
    }

    /// Opens the directory, or makes it a new cluster's.
    ///
    /// # Errors
    /// As [`ClusterDir::open`]; it holds something else; it cannot be written.
    pub fn open_or_make(path: &Path, config: &Config, new_id: u64, osts: Option<u16>) -> Result<ClusterDir, Failure> {
        private::check_owner(path)?;
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
        make_dir(path)?;
        let key_file = match config.key_file.as_str() {
            "" => String::new(),
            file => fs::canonicalize(file)
                .map_err(|e| Failure::io("cluster.key_file", Path::new(file), &e))?
                .display()
                .to_string(),
        };
        let (table, fsname) = (toml::Table::new(), config.fsname.clone());
        let mut made = ClusterDir { path: path.into(), table, cluster: new_id, fsname, key_file };
        made.put("cluster", format!("{new_id:016x}"));
        made.put("fsname", made.fsname.clone());
        made.put("key_file", made.key_file.clone());
        made.put("making", i64::from(osts.unwrap_or(NEW_OSTS)));
        made.put(STORES, toml::Table::new());
        made.keep_settings(config)?;
        Ok(made)
    }

    /// [`ClusterDir::open_or_make`], with [`lock_changes`] for as long as what is returned lives. `known`: it was a cluster's when its
    /// settings were read.
    ///
    /// # Errors
    /// As both; another command made it since.
    pub fn open_or_make_locked(
        path: &Path,
        config: &Config,
        new_id: u64,
        osts: Option<u16>,
        known: bool,
    ) -> Result<(ClusterDir, fs::File), Failure> {
        private::check_owner(path)?;
        if !path.join("cluster.toml").exists() {
            make_dir(path)?;
        }
        let lock = lock_changes(path)?;
        if !known && path.join("cluster.toml").exists() {
            let why = format!("another command made {} meanwhile: give this one again", path.display());
            return Err(Failure::with_errno(why, libc::EBUSY));
        }
        Ok((ClusterDir::open_or_make(path, config, new_id, osts)?, lock))
    }

    /// [`ClusterDir::open`] with [`lock_changes`]: what it says stays so for as long as what is returned lives. Nothing is made where no
    /// cluster is.
    ///
    /// # Errors
    /// As both.
    pub fn open_locked(path: &Path) -> Result<(ClusterDir, fs::File), Failure> {
        drop(ClusterDir::open(path)?);
        let lock = lock_changes(path)?;
        Ok((ClusterDir::open(path)?, lock))
    }

    /// [`ClusterDir::open_locked`] that waits while another command changes it, and says so.
    ///
    /// # Errors
    /// As that, but for the other command.
    pub fn open_locked_in_turn(path: &Path) -> Result<(ClusterDir, fs::File), Failure> {
        drop(ClusterDir::open(path)?);
        let (file, at) = open_lock(path)?;
        if let Err(fs::TryLockError::WouldBlock) = file.try_lock() {
            note!("{}: waiting for it", who_changes(path));
        }
        file.lock().map_err(|e| Failure::io("locking", &at, &e))?;
        Ok((ClusterDir::open(path)?, file))
    }

    /// Makes the directories of keys and processes, and the keys, from `secret`; what is there stays.
    ///
    /// # Errors
    /// They cannot be made, or are open to others.
    pub fn make_private(&self, secret: &[u8; 32]) -> Outcome {
        self.run_dir()?;
        if self.key_file.is_empty() { keys::make_missing(&self.path, secret) } else { Ok(()) }
    }

    /// Refuses a directory that others can change, and stores, keys and records of processes that others can enter: what is
    /// stored is its owner's to give.
    fn refuse_exposed(&self) -> Outcome {
        private::check_dir(&self.path, Closed::ToChanges, &self.path)?;
        let stores = self.ost_indices().into_iter().map(|i| self.ost(i)).chain([self.mdt()]);
        // An empty directory holds no store: a disk that is not mounted, for one. Nor does one that a making began in, which closes it last.
        // One on a mount of Stria is refused by whoever opens it.
        let stores = stores.filter(|at| !is_inside(at) && !is_free(at));
        for at in [self.run(), keys::place(&self.path)].into_iter().filter(|at| at.exists()).chain(stores) {
            private::check_dir(&at, Closed::Entirely, &self.path)?;
        }
        Ok(())
    }

    /// Takes over the administrator's key of a cluster that another machine has.
    ///
    /// # Errors
    /// It cannot be read, or written.
    pub fn take_key(&self, file: &Path) -> Outcome {
        self.run_dir()?;
        keys::take(&self.path, file)
    }

    fn put(&mut self, key: &str, value: impl Into<toml::Value>) {
        self.table.insert(key.into(), value.into());
    }

    fn save(&mut self) -> Outcome {
        self.put("format", FORMAT);
        let text = toml::to_string(&self.table).map_err(|e| Failure::from(format!("cluster.toml: {e}")))?;
        let head = "# A cluster of Stria. Its stores are in this directory; keep this file with them.\n";
        write_whole(&self.path.join("cluster.toml"), &format!("{head}{text}"))?;
        sync_dir(&self.path)
    }

    /// Whether the stores are written down; a directory of an earlier format knows none.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.table.contains_key(STORES)
    }
    /// Identity of the store that belongs in place `name` (`mdt0`, `ost3`).
    #[must_use]
    pub fn uuid_of(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.table.get(STORES)?.get(name)?.as_str()?, 16).ok()
    }
    /// Cluster id and uuid of the metadata store.
    #[must_use]
    pub fn mdt_identity(&self) -> Option<(u64, u64)> {
        Some((self.cluster, self.uuid_of("mdt0")?))
    }
    /// Writes stores down as this cluster's.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn register(&mut self, stores: Vec<(String, u64)>) -> Outcome {
        let mut all = self.table.get(STORES).and_then(toml::Value::as_table).cloned().unwrap_or_default();
        all.extend(stores.into_iter().map(|(name, uuid)| (name, format!("{uuid:016x}").into())));
        self.put(STORES, all);
        self.save()
    }
    /// The boot with which a metadata store was put back here last; 0: none was.
    #[must_use]
    pub fn put_back_boot(&self) -> u64 {
        self.table.get(PUT_BACK).and_then(toml::Value::as_integer).and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
    }
    /// A metadata store was put back, and begins behind this boot: the next one, of whatever copy, has to begin far behind it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note_put_back(&mut self, boot: u64) -> Outcome {
        self.put(PUT_BACK, i64::try_from(boot).unwrap_or(i64::MAX));
        self.save()
    }
    /// OSTs that a cluster is being made with, if it is not all made yet.
    #[must_use]
    pub fn making(&self) -> Option<u16> {
        self.table.get("making").and_then(toml::Value::as_integer).and_then(|n| u16::try_from(n).ok())
    }
    /// All stores are made.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn made(&mut self) -> Outcome {
        self.table.remove("making");
        self.save()
    }
    /// Keeps the settings that hold for the cluster's life.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep_settings(&mut self, config: &Config) -> Outcome {
        let default = Config::default();
        let changed = |key: &&&str| **key == "store.kind" || config.get(key) != default.get(key);
        let kept = KEPT.iter().filter(changed);
        let kept: toml::Table = kept.map(|k| ((*k).into(), config.get(k).unwrap_or_default().into())).collect();
        self.put(SETTINGS, kept);
        self.save()
    }
    /// Settings that hold for the cluster's life: keys and values.
    #[must_use]
    pub fn kept_settings(&self) -> Vec<(String, String)> {
        let kept = self.table.get(SETTINGS).and_then(toml::Value::as_table);
        kept.into_iter().flatten().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_string()))).collect()
    }
    /// An OST has left the cluster: its store is none of the cluster's any more, and its index is not used again.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn strike_out(&mut self, index: u16) -> Outcome {
        let name = format!("ost{index}");
        let mut stores = self.table.get(STORES).and_then(toml::Value::as_table).cloned().unwrap_or_default();
        let mut removed = self.table.get(REMOVED).and_then(toml::Value::as_table).cloned().unwrap_or_default();
        let uuid = stores.remove(&name).unwrap_or_else(|| "unknown".into());
        removed.entry(name).or_insert(uuid);
        self.put(STORES, stores);
        self.put(REMOVED, removed);
        self.table.remove(LEAVING);
        self.save()
    }
    /// The OST that a command takes out of the cluster now, or did when it was interrupted.
    #[must_use]
    pub fn leaving(&self) -> Option<u16> {
        self.table.get(LEAVING).and_then(toml::Value::as_integer).and_then(|n| u16::try_from(n).ok())
    }
    /// Writes down that an OST is about to leave, or (`None`) that it stays.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note_leaving(&mut self, index: Option<u16>) -> Outcome {
        match index {
            Some(index) => self.put(LEAVING, i64::from(index)),
            None => drop(self.table.remove(LEAVING)),
        }
        self.save()
    }
    /// Whether this OST has left the cluster.
    #[must_use]
    pub fn is_struck_out(&self, index: u16) -> bool {
        let removed = self.table.get(REMOVED).and_then(toml::Value::as_table);
        removed.is_some_and(|removed| removed.contains_key(&format!("ost{index}")))
    }
    /// One more than the highest index that an OST of the cluster has or had.
    #[must_use]
    pub fn index_end(&self) -> u16 {
        let tables = [STORES, REMOVED].map(|t| self.table.get(t).and_then(toml::Value::as_table));
        match tables[0] {
            Some(_) => {
                let index = |name: &String| name.strip_prefix("ost")?.parse::<u16>().ok();
                let names = tables.into_iter().flatten().flat_map(|t| t.keys());
                names.filter_map(index).max().map_or(0, |i| i.saturating_add(1))
            }
            None => self.osts_present(),
        }
    }
    /// Indices of the OSTs of the cluster.
    #[must_use]
    pub fn ost_indices(&self) -> Vec<u16> {
        (0..self.index_end()).filter(|i| !self.is_struck_out(*i)).collect()
    }
    /// How many OSTs the cluster has.
    #[must_use]
    pub fn osts(&self) -> u16 {
        self.ost_indices().len() as u16
    }
    /// Whether an OST is the cluster's, by its index.
    #[must_use]
    pub fn has_ost(&self, index: u16) -> bool {
        index < self.index_end() && !self.is_struck_out(index)
    }
    /// The indices in words, for messages.
    #[must_use]
    pub fn indices_text(&self) -> String {
        match &self.ost_indices()[..] {
            [] => "none".into(),
            [one] => one.to_string(),
            all @ [first, .., last] if usize::from(last - first) + 1 == all.len() => format!("{first} to {last}"),
            all => all.iter().map(u16::to_string).collect::<Vec<_>>().join(", "),
        }
    }
    /// One more than the highest OST directory.
    #[must_use]
    pub(super) fn osts_present(&self) -> u16 {
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
    fn run_dir(&self) -> Result<PrivateDir, Failure> {
        PrivateDir::open_or_make(&self.run(), &self.path)
    }
    /// Where process `name` (`mdt0`, `ost0`) was reached last.
    #[must_use]
    pub fn last_nid(&self, name: &str) -> Option<Nid> {
        let run = PrivateDir::open(&self.run(), &self.path).ok()?;
        Nid::parse(run.read(&format!("{name}.nid")).ok()?.trim()).ok()
    }
    /// Writes down that process `name` runs as this process, reached at `nid`.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn note_running(&self, name: &str, nid: Option<&Nid>) -> Outcome {
        let run = self.run_dir()?;
        if let Some(nid) = nid {
            run.write_note(&format!("{name}.nid"), &format!("{nid}\n"))?;
        }
        run.write_note(&format!("{name}.pid"), &format!("{}\n", std::process::id()))?;
        let file = self.run().join(format!("{name}.pid"));
        // Held to the end of the process: the number in the file is its own as long as the lock is.
        let held = fs::File::open(&file).map_err(|e| Failure::io("opening", &file, &e))?;
        if let Err(e) = held.lock() {
            tracing::warn!("{}: {e}: 'stria stop' will not find this process", file.display());
        }
        std::mem::forget(held);
        Ok(())
    }
    /// Writes down where process `name` serves its metrics, if it does.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note_metrics(&self, name: &str, endpoint: Option<&Endpoint>) -> Outcome {
        let file = format!("{name}.metrics");
        match endpoint {
            Some(e) => self.run_dir()?.write_whole(&file, &format!("{}\n", e.address())),
            None => {
                // Of an earlier run that did; mostly there is none.
                let _ = fs::remove_file(self.run().join(file));
                Ok(())
            }
        }
    }
    /// Where process `name` serves its metrics.
    #[must_use]
    pub fn metrics_of(&self, name: &str) -> Option<SocketAddr> {
        let run = PrivateDir::open(&self.run(), &self.path).ok()?;
        run.read(&format!("{name}.metrics")).ok()?.trim().parse().ok()
    }
    /// Takes the pid file away.
    pub fn note_stopped(&self, name: &str) {
        let _ = fs::remove_file(self.run().join(format!("{name}.metrics")));
        let file = self.run().join(format!("{name}.pid"));
        if let Err(e) = fs::remove_file(&file) {
            tracing::warn!("{}: {e}", file.display());
        }
    }
}

/// What a directory without a description is, and what helps.
fn no_cluster(path: &Path) -> String {
    let at = path.display();
    if path.join("mdt0").is_dir() || path.join("ost0").is_dir() {
        return format!(
            "{at} has stores and no cluster.toml, which says what belongs to them: put it back from a copy, or from another machine of the cluster"
        );
    }
    format!("{at} is not a cluster's directory: make one with 'stria mkfs --dir {}'", word(path))
}

/// The file that [`lock_changes`] locks.
const LOCK: &str = "changes.lock";

/// Keeps everybody else from making the cluster of a directory, and from adding and removing OSTs of it, for as long as what is returned
/// lives. That must not be longer than until a server is started.
///
/// # Errors
/// Somebody does so now; it is open to others.
fn lock_changes(path: &Path) -> Result<fs::File, Failure> {
    let (file, at) = open_lock(path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            Err(Failure::with_errno(format!("{}: wait for it", who_changes(path)), libc::EBUSY))
        }
        Err(fs::TryLockError::Error(e)) => Err(Failure::io("locking", &at, &e)),
    }
}

/// The file that is locked, and its path.
fn open_lock(path: &Path) -> Result<(fs::File, PathBuf), Failure> {
    private::check_dir(path, Closed::ToChanges, path)?;
    let at = path.join(LOCK);
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let file = options.open(&at).map_err(|e| Failure::io("locking", &at, &e))?;
    Ok((file, at))
}

fn who_changes(path: &Path) -> String {
    format!("another command makes {} or adds or removes OSTs of it now", path.display())
}

/// Makes the directory of a new cluster, or takes one in which there is nothing but what the making of one begins with.
fn make_dir(path: &Path) -> Outcome {
    rt::make_private_dir(path).map_err(|e| Failure::io("making", path, &e))?;
    private::check_dir(path, Closed::ToChanges, path)?;
    let entries = fs::read_dir(path).map_err(|e| Failure::io("reading", path, &e))?;
    // What was left when the first writing of it ended in the middle is written anew.
    let begun = |name: &std::ffi::OsStr| name == "cluster.new" || name == LOCK;
    match entries.flatten().find(|e| !begun(&e.file_name())) {
        // Another command may be about to make it.
        Some(other) if !path.join("cluster.toml").exists() => Err(Failure::with_errno(
            format!(
                "{} is not a cluster's directory and not empty ('{}' is there): use an empty or a new directory",
                path.display(),
                other.file_name().to_string_lossy()
            ),
            libc::ENOTEMPTY,
        )),
        _ => Ok(()),
    }
}

/// What was renamed into a directory stays there from now on.
///
/// # Errors
/// The file system's answer.
pub fn sync_dir(dir: &Path) -> Outcome {
    fs::File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Failure::io("syncing", dir, &e))
}

/// Writes a file so that readers see all of it or the old one.
pub fn write_whole(path: &Path, text: &str) -> Outcome {
    let new = path.with_extension("new");
    let write = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(|e| {
        let _ = fs::remove_file(&new);
        Failure::io("writing", path, &e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_its_cluster_and_refuses_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c");
        let mut config = Config::default();
        let made = ClusterDir::open_or_make(&path, &config, 0xabc, None).unwrap();
        assert_eq!(ClusterDir::open_or_make(&path, &config, 0xdef, None).unwrap(), made);
        let (begun, used) = (dir.path().join("begun"), dir.path().join("used"));
        for at in [&begun, &used] {
            rt::make_private_dir(at).unwrap();
            fs::write(at.join("cluster.new"), "half of").unwrap();
        }
        ClusterDir::open_or_make(&begun, &config, 1, None).unwrap();
        fs::write(used.join("a-file"), "").unwrap();
        let e = ClusterDir::open_or_make(&used, &config, 1, None).unwrap_err().to_string();
        assert!(e.contains("not empty ('a-file' is there)") && !begun.join("cluster.new").exists(), "{e}");
        config.fsname = "other".into();
        let e = ClusterDir::open_or_make(&path, &config, 1, None).unwrap_err().to_string();
        assert!(e.contains("holds file system 'stria', not 'other'"), "{e}");
    }

    #[test]
    fn one_command_at_a_time_makes_or_changes_a_cluster_and_one_that_is_not_there_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c");
        let make = |known| ClusterDir::open_or_make_locked(&path, &Config::default(), 1, None, known);
        let said =
            |done: Result<(ClusterDir, fs::File), Failure>| done.map(drop).map_err(|e| (e.code(), e.to_string()));
        let busy = |done, why: &str| {
            let (code, said) = said(done).unwrap_err();
            assert!(i32::from(code) == libc::EBUSY && said.contains(why), "{code} {said}");
        };
        assert!(said(ClusterDir::open_locked(&path)).is_err() && !path.exists());
        let (made, lock) = make(false).unwrap();
        busy(make(false), "wait for it");
        busy(make(true), "wait for it");
        busy(ClusterDir::open_locked(&path), "wait for it");
        drop(lock);
        assert_eq!(ClusterDir::open_locked(&path).unwrap().0, made);
        // Its settings were read when it was no cluster's.
        busy(make(false), "meanwhile");
        assert_eq!(make(true).unwrap().0, made);
    }

    #[test]
    fn foreign_and_newer_directories_are_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let error = || ClusterDir::open_or_make(dir.path(), &Config::default(), 1, None).unwrap_err().to_string();
        assert!(ClusterDir::open(dir.path()).unwrap_err().to_string().contains("stria mkfs"));
        let bare = tempfile::tempdir().unwrap();
        fs::create_dir(bare.path().join("mdt0")).unwrap();
        let said = ClusterDir::open(bare.path()).unwrap_err().to_string();
        assert!(said.contains("no cluster.toml") && !said.contains("mkfs"), "{said}");
        fs::write(dir.path().join("photo.jpg"), b"x").unwrap();
        assert!(error().contains("'photo.jpg' is there"), "{}", error());
        fs::write(dir.path().join("cluster.toml"), "format = 3\ncluster = \"01\"\n").unwrap();
        assert!(error().contains("format 3 is newer than this program's 2"), "{}", error());
        fs::write(dir.path().join("cluster.toml"), "format = 1\ncluster = \"xyz\"\n").unwrap();
        assert!(error().contains("\"xyz\" is not a cluster id"), "{}", error());
        fs::write(dir.path().join("cluster.toml"), "format = ").unwrap();
        assert!(error().contains("cluster.toml"), "{}", error());
    }

    #[test]
    fn stores_are_written_down_and_the_rest_of_the_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c");
        let mut config = Config::default();
        config.set("store.kind", "emulated").unwrap();
        config.set("store.capacity_bytes", "1G").unwrap();
        let mut c = ClusterDir::open_or_make(&path, &config, 1, Some(3)).unwrap();
        assert_eq!((c.making(), c.osts(), c.uuid_of("ost2")), (Some(3), 0, None));
        c.put("unknown", "stays");
        c.register(vec![("ost0".into(), 7), ("ost2".into(), u64::MAX)]).unwrap();
        c.made().unwrap();
        let again = ClusterDir::open(&path).unwrap();
        assert_eq!(again, c);
        assert_eq!((again.making(), again.osts(), again.uuid_of("ost2")), (None, 3, Some(u64::MAX)));
        assert_eq!(again.table["unknown"].as_str(), Some("stays"));
        let kept = [("store.capacity_bytes", "1G"), ("store.kind", "emulated")];
        assert_eq!(again.kept_settings(), kept.map(|(k, v)| (k.to_string(), v.to_string())));
    }

    #[test]
    fn ost_directories_of_an_earlier_format_are_counted_by_their_highest_index() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cluster.toml"), "format = 1\ncluster = \"01\"\nfsname = \"fs\"\n").unwrap();
        let c = ClusterDir::open(dir.path()).unwrap();
        assert_eq!(c.osts(), 0);
        for name in ["ost0", "ost3", "ostrich", "mdt0"] {
            fs::create_dir(c.path().join(name)).unwrap();
        }
        assert!(!c.is_registered() && c.osts() == 4);
    }

    #[test]
    fn directories_that_others_can_change_or_enter_are_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c");
        let open = |mode: u32, what: &str| {
            let at = path.join(what);
            fs::create_dir_all(at.join("something")).unwrap();
            fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
            let opened = ClusterDir::open(&path).map(drop).map_err(|e| e.to_string());
            fs::set_permissions(&at, fs::Permissions::from_mode(0o700)).unwrap();
            opened
        };
        let mut made = ClusterDir::open_or_make(&path, &Config::default(), 1, None).unwrap();
        made.register(vec![("ost3".into(), 1)]).unwrap();
        assert_eq!(open(0o755, ""), Ok(()), "others may see that it is there");
        for (mode, what) in
            [(0o775, ""), (0o757, ""), (0o750, "mdt0"), (0o701, "ost3"), (0o755, "run"), (0o710, "keys")]
        {
            let said = open(mode, what).unwrap_err();
            let remedy = format!("chmod -R go= {}'", path.display());
            assert!(said.ends_with(&remedy), "{what} {mode:o}: {said}");
        }
        assert_eq!(open(0o700, "ost3"), Ok(()));
    }
}
