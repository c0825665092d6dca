//! `ost add`, `replace`, `accept`, `drain`, `remove`, `files`: a cluster grows, shrinks and is mended while programs run.
//!
//! A store is made here, in the cluster's directory; the daemon of `up` serves it, or the unit of its machine. Which OSTs there are, and whether
//! one may leave, the metadata server decides (`mds/src/map_changes.rs`); a mount of this host carries questions and changes there.
mod accept;
mod add;
mod drain;
mod replace;
mod running;

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::{OfCluster, OstFiles, OstRemove, OstVerb};
use crate::control;
use crate::daemon::ClusterDir;
use crate::failure::{Failure, Outcome};

/// The verbs of `ost`.
///
/// # Errors
/// Why that is not done, and what can be done.
pub fn ost(verb: &OstVerb) -> Outcome {
    match verb {
        OstVerb::Add(a) => add::add(a),
        OstVerb::Replace(a) => replace::replace(a),
        OstVerb::Accept(a) => accept::accept(a),
        OstVerb::Drain(a) => drain::drain(a),
        OstVerb::Remove(a) => remove(a),
        OstVerb::Files(a) => files(a),
    }
}

/// A cluster as a mount of this host knows it.
struct Cluster {
    connection: u32,
    map: Value,
}

impl Cluster {
    /// The one that a command line names.
    ///
    /// # Errors
    /// None, or several could be meant; its mount does not answer.
    fn named(of: &OfCluster) -> Result<Cluster, Failure> {
        let connection = match (&of.mount, &of.dir) {
            (_, Some(dir)) => crate::upkeep::mount_of(&ClusterDir::open(dir)?)?,
            (Some(path), None) => crate::status::mount_above(path)?.0,
            (None, None) => {
                let mounts = crate::lfs::mounts()?;
                let [one] = &mounts[..] else {
                    let all: Vec<String> = mounts.iter().map(|m| m.at.display().to_string()).collect();
                    return Err(Failure::usage(format!("name one of the mounts {}, or --dir", all.join(", "))));
                };
                one.minor
            }
        };
        Cluster::at(connection)
    }
    fn at(connection: u32) -> Result<Cluster, Failure> {
        Ok(Cluster { connection, map: control::ask(connection, &json!({"do": "map"}))? })
    }
    fn list(&self, key: &str) -> Vec<u16> {
        let all = self.map[key].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().filter_map(|o| u16::try_from(o.as_u64()?).ok()).collect()
    }
    fn fsname(&self) -> &str {
        self.map["fsname"].as_str().unwrap_or("?")
    }
    fn mount_point(&self) -> &Path {
        Path::new(self.map["mount_point"].as_str().unwrap_or("/"))
    }
    /// The cluster's directory, if the daemon of the mount has it.
    fn dir(&self) -> Option<PathBuf> {
        self.map["dir"].as_str().map(PathBuf::from)
    }
    fn change(&self, what: &str, ost: u16) -> Outcome {
        let asked = json!({"do": "change_map", "what": what, "osts": [ost]});
        control::ask(self.connection, &asked).map(drop)
    }
    /// The index of an OST that is in the cluster (or, where `removed` may be, has left it).
    fn index(&self, text: &str, removed: bool) -> Result<u16, Failure> {
        let index = crate::lfs::one_ost(text).map_err(Failure::usage)?;
        if self.list("osts").contains(&index) || removed && self.list("removed").contains(&index) {
            return Ok(index);
        }
        let all: Vec<String> = self.list("osts").iter().map(u16::to_string).collect();
        let why = format!("OST {index} is not part of file system '{}': it has {}", self.fsname(), all.join(", "));
        Err(Failure::with_errno(why, libc::ENOENT))
    }
    /// Calls `each` with every file that has objects on an OST; with `lost` only with those that lost some there.
    fn each_file(&self, ost: u16, lost: bool, mut each: impl FnMut(File) -> Outcome) -> Outcome {
        let mut from = Value::Null;
        loop {
            let page =
                control::ask(self.connection, &json!({"do": "ost_files", "ost": ost, "from": from, "lost": lost}))?;
            if lost && page["lost"] != true {
                let text = "the mount's daemon or the metadata server is of an earlier version, which does not keep what was lost";
                return Err(Failure::with_errno(
                    format!("files of OST {ost}: {text}: 'stria fsck' names it"),
                    libc::ENOSYS,
                ));
            }
            for file in page["files"].as_array().map(Vec::as_slice).unwrap_or_default() {
                each(File::read(file))?;
            }
            from = page["next"].clone();
            if from.is_null() {
                return Ok(());
            }
        }
    }
}

/// A file that has objects on an OST.
struct File {
    fid: String,
    /// Its first path from the file system's root on; empty: it has no name any more.
    path: PathBuf,
    /// Bytes, as last told.
    size: u64,
    /// Its part on the OST, about.
    there: u64,
}

impl File {
    fn read(value: &Value) -> File {
        let bytes = value["path"].as_array().map(Vec::as_slice).unwrap_or_default();
        let bytes: Vec<u8> = bytes.iter().filter_map(|b| u8::try_from(b.as_u64()?).ok()).collect();
        let number = |key: &str| value[key].as_u64().unwrap_or(0);
        let size = number("size");
        let there = u128::from(size) * u128::from(number("there")) / u128::from(number("stripes").max(1));
        let fid = value["fid"].as_str().unwrap_or("?").to_string();
        File { fid, path: PathBuf::from(OsStr::from_bytes(&bytes)), size, there: there as u64 }
    }
    fn has_name(&self) -> bool {
        !self.path.as_os_str().is_empty()
    }
}

fn files(a: &OstFiles) -> Outcome {
    let cluster = Cluster::named(&a.of)?;
    let ost = cluster.index(&a.ost, true)?;
    let mut out = std::io::BufWriter::new(std::io::stdout());
    let (mut files, mut bytes) = (0u64, 0u64);
    let listed = cluster.each_file(ost, a.lost, |file| {
        (files, bytes) = (files + 1, bytes + file.there);
        let path = cluster.mount_point().join(&file.path);
        let written = match (a.null, file.has_name()) {
            (true, true) => out.write_all(path.as_os_str().as_bytes()).and_then(|()| out.write_all(b"\0")),
            (true, false) => Ok(()),
            (false, true) => {
                let start = format!("{} {:>12} ", file.fid, file.size);
                let name = path.as_os_str().as_bytes();
                out.write_all(start.as_bytes()).and_then(|()| out.write_all(name)).and_then(|()| out.write_all(b"\n"))
            }
            (false, false) => {
                writeln!(out, "{} {:>12} (has no name any more, and goes when it is closed)", file.fid, file.size)
            }
        };
        written.map_err(|e| Failure::from(format!("ost files: {e}")))
    });
    let flushed = out.flush();
    listed?;
    flushed.map_err(|e| Failure::from(format!("ost files: {e}")))?;
    if !a.null {
        let what = if a.lost { "lost" } else { "there" };
        note!("OST {ost}: {files} file(s), about {} of them {what}", types::format_size(bytes));
    }
    Ok(())
}

fn remove(a: &OstRemove) -> Outcome {
    let cluster = Cluster::named(&a.of)?;
    let ost = cluster.index(&a.ost, true)?;
    take_out(&cluster, a.of.dir.as_deref(), ost)
}

/// Takes an OST out of the cluster, and ends its server where that can be reached. A try that was interrupted is gone on with.
fn take_out(cluster: &Cluster, dir: Option<&Path>, ost: u16) -> Outcome {
    let dir = dir.map(Path::to_path_buf).or_else(|| cluster.dir());
    // Whoever has emptied an OST for hours is not turned away because another one leaves now.
    let (mut dir, lock) = dir.as_deref().map(ClusterDir::open_locked_in_turn).transpose()?.unzip();
    let cluster = &Cluster::at(cluster.connection)?;
    if !cluster.list("removed").contains(&ost) {
        if let Some(dir) = &mut dir {
            dir.note_leaving(Some(ost))?;
        }
        if let Err(e) = cluster.change("remove_ost", ost) {
            if let Some(dir) = &mut dir {
                dir.note_leaving(None)?;
            }
            return Err(e);
        }
    }
    let (fsname, mut place) = (cluster.fsname(), String::new());
    if let Some(mut dir) = dir {
        match control::ask(cluster.connection, &json!({"do": "end_ost", "ost": ost})) {
            Err(e) if i32::from(e.code()) != libc::ENOSYS => return Err(e),
            _ => {}
        }
        dir.strike_out(ost)?;
        place = format!("; its store in {} is of no use any more", dir.ost(ost).display());
    }
    drop(lock);
    say!("OST {ost} ({fsname}-OST{ost:04x}) has left '{fsname}'{place}");
    if place.is_empty() {
        say!(
            "end its server on its machine: take {ost} out of STRIA_OSTS, or 'stria ost remove {ost} --dir DIR' there"
        );
    }
    Ok(())
}
