//! `tune`: what the search needs of a mount, and how it ends.
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use bench::{Failed, os};
use layout::{LayoutSpec, StripeCount};
use serde_json::json;
use tune::bed::Stops;
use tune::run::{Applied, Found, Options};
use tune::saved::Saved;
use tune::{Cluster, Param, Stripes, workload};

use crate::cli::Tune;
use crate::failure::{Failure, Outcome};
use crate::{control, lfs, out};

/// Shortest and longest time of a search, minutes.
const MINUTES: (f64, f64) = (0.05, 24.0 * 60.0);

/// Runs the verb.
///
/// # Errors
/// What cannot be, or went wrong.
pub fn tune(a: &Tune) -> Outcome {
    if let Some(file) = &a.revert {
        return revert(a, file);
    }
    let Some(mount) = &a.mount else {
        return Err(Failure::usage("tune: name the mount, like 'stria tune /mnt' ('stria status' lists them)"));
    };
    if !(MINUTES.0..=MINUTES.1).contains(&a.minutes) {
        let (least, most) = MINUTES;
        return Err(Failure::usage(format!("--minutes {}: write a number from {least} to {most}", a.minutes)));
    }
    let workloads = match &a.workload {
        Some(file) => workload::load(file)?,
        None => workload::defaults(),
    };
    let place = Place::of(mount, a.dir.as_deref())?;
    let (save, cluster) = (saved_to(a)?, Mount(place.connection));
    let options = Options {
        mount: place.mount.clone(),
        dir: place.dir.clone(),
        workloads,
        limit_s: a.minutes * 60.0,
        size: a.size,
        device: a.device.clone(),
        clients: a.clients,
        servers: a.servers,
        only: a.only.clone(),
        journal: journal(&cluster)?,
    };
    // Figures may go to a file or a program: what is told along goes where errors go.
    let warn = |text: &str| eprintln!("stria tune: {text}");
    let stops = stops_on_signals();
    let found = tune::run::tune(options, &cluster, &stops, &warn)?;
    let applied = match &save {
        Some(file) if found.course.ended.is_none() => Some(tune::run::apply(&found, &cluster, file)),
        _ => None,
    };
    show(a.json, &found, applied.as_ref());
    applied.transpose()?;
    match found.course.ended {
        Some(failed) => Err(failed.into()),
        None => Ok(()),
    }
}

fn show(as_json: bool, found: &Found, applied: Option<&bench::Outcome<Applied>>) {
    let applied = applied.and_then(|a| a.as_ref().ok());
    if as_json {
        let mut all = found.json();
        all["applied"] = json!(applied.map(|a| json!({"set": a.set, "left": a.left, "old_values": a.file})));
        return out::print(format_args!("{all}\n"));
    }
    out::print(format_args!("{}", found.text()));
    let Some(applied) = applied else { return };
    for what in &applied.set {
        say!("applied: {what}");
    }
    for why in &applied.left {
        say!("not applied: {why}");
    }
    match &applied.file {
        Some(file) => say!("to go back: stria tune --revert {}", file.display()),
        None => say!("nothing was applied"),
    }
}

/// The file for old values, when something shall be applied; said at once when it cannot be.
fn saved_to(a: &Tune) -> Result<Option<PathBuf>, Failure> {
    if !a.apply {
        return Ok(None);
    }
    let name = || PathBuf::from(format!("stria-tune-{}.json", std::process::id()));
    let file = a.save.clone().unwrap_or_else(name);
    let file = std::path::absolute(&file).map_err(|e| Failure::io("looking at", &file, &e))?;
    if file.exists() {
        let said = format!("--save {}: it exists, and old values of before may be in it", file.display());
        return Err(Failure::with_errno(said, libc::EEXIST));
    }
    match file.parent() {
        Some(parent) if parent.is_dir() => Ok(Some(file)),
        _ => Err(Failure::with_errno(format!("--save {}: there is no such directory", file.display()), libc::ENOENT)),
    }
}

/// The first signal ends the search in order; the second one does not wait for that.
fn stops_on_signals() -> Stops {
    let (stops, mut seen) = (Stops::default(), false);
    let told = stops.clone();
    os::watch_signals(move |signal| {
        if std::mem::replace(&mut seen, true) {
            eprintln!("stria tune: ended at once: the next 'stria tune' on this mount puts back what was changed");
            std::process::exit(128 + signal);
        }
        told.set();
        true
    });
    stops
}

fn revert(a: &Tune, file: &Path) -> Outcome {
    let saved = Saved::read(file)?;
    let place = Place::of(a.mount.as_deref().unwrap_or(&saved.mount), None)?;
    let left = saved.restore(&Mount(place.connection));
    for (name, value) in &saved.parameters {
        if !left.iter().any(|l| l.starts_with(&format!("{name} ="))) {
            say!("{name}={value}");
        }
    }
    for (dir, bytes) in &saved.layouts {
        say!("{}: default layout {}", dir.display(), if bytes.is_some() { "of before" } else { "taken away" });
    }
    if left.is_empty() {
        return Ok(());
    }
    Err(Failure::with_errno(format!("could not be put back: {}", left.join("; ")), libc::EIO))
}

/// Where it is tuned.
struct Place {
    mount: PathBuf,
    dir: PathBuf,
    connection: u32,
}

impl Place {
    fn of(mount: &Path, dir: Option<&Path>) -> Result<Place, Failure> {
        let (connection, at) = lfs::connection_at(mount)?;
        let dir = dir.unwrap_or(&at);
        let full = fs::canonicalize(dir).map_err(|e| Failure::io("looking at", dir, &e))?;
        if !full.is_dir() {
            let said = format!("--dir {}: it is not a directory", dir.display());
            return Err(Failure::with_errno(said, libc::ENOTDIR));
        }
        if lfs::connection_of(&full)?.0 != connection {
            let said = format!("--dir {}: it is not on {}", dir.display(), at.display());
            return Err(Failure::with_errno(said, libc::EXDEV));
        }
        Ok(Place { mount: at, dir: full, connection })
    }
}

/// Where old values of a mount are kept while it is measured. The name has the client's number: no other mount, of now or
/// later, takes them for its own.
fn journal(cluster: &Mount) -> Result<PathBuf, Failure> {
    let dir = control::own_place().map_err(|e| Failure::io("making the place of", Path::new("old values"), &e))?;
    let all = cluster.params("llite.*.mount_point")?;
    let name = all.first().and_then(|p| p.name.strip_prefix("llite."));
    let instance = name.and_then(|n| n.strip_suffix(".mount_point"));
    let instance = instance.ok_or_else(|| Failure::with_errno("the mount does not tell its name", libc::EPROTO))?;
    Ok(dir.join(format!("tune-{instance}.json")))
}

/// A mount, by its FUSE connection.
struct Mount(u32);

impl Cluster for Mount {
    fn params(&self, pattern: &str) -> bench::Outcome<Vec<Param>> {
        let answer = match control::ask(self.0, &json!({"do": "get_param", "pattern": pattern})) {
            Err(e) if i32::from(e.code()) == libc::ENOENT => return Ok(Vec::new()),
            other => other.map_err(failed)?,
        };
        let all = answer["params"].as_array().map(Vec::as_slice).unwrap_or_default();
        let text = |p: &serde_json::Value, key: &str| p[key].as_str().unwrap_or_default().to_string();
        let whole = all.iter().filter(|p| p["whole"] == true);
        Ok(whole
            .map(|p| Param { name: text(p, "name"), value: text(p, "value"), writable: p["writable"] == true })
            .collect())
    }
    fn set(&self, name: &str, value: &str) -> bench::Outcome {
        let request = json!({"do": "set_param", "pattern": name, "value": value});
        control::ask(self.0, &request).map(drop).map_err(failed)
    }
    fn osts(&self) -> bench::Outcome<Vec<u16>> {
        control::ask_osts(self.0).map_err(failed)
    }
    fn make(&self, path: &Path, count: i64, size: u64) -> bench::Outcome {
        let mut line: Vec<OsString> = vec!["-c".into(), count.to_string().into()];
        if size > 0 {
            line.extend(["-S".into(), size.to_string().into()]);
        }
        line.push(path.into());
        lfs::setstripe(&line).map_err(failed)
    }
    fn stripes(&self, path: &Path) -> bench::Outcome<Stripes> {
        lfs::stripes_of(path).map(|(count, size)| Stripes { count, size }).map_err(failed)
    }
    fn default_layout(&self, dir: &Path) -> bench::Outcome<Option<Vec<u8>>> {
        lfs::default_layout(dir).map_err(failed)
    }
    fn set_default_layout(&self, dir: &Path, bytes: Option<&[u8]>) -> bench::Outcome {
        lfs::set_default_layout(dir, bytes).map_err(failed)
    }
    fn with_stripes(&self, old: Option<&[u8]>, count: Option<i64>, size: Option<u64>) -> bench::Outcome<Vec<u8>> {
        let wrong = |e: String| Failed::new(format!("the default layout: {e}"), libc::EBADMSG);
        let mut spec = match old {
            Some(bytes) => layout::xattr::decode_spec(bytes).map_err(|e| wrong(e.to_string()))?,
            None => LayoutSpec::default(),
        };
        if !spec.osts().is_empty() {
            let said = "the default layout names its OSTs one by one: set count and size by hand";
            return Err(Failed::new(said, libc::EINVAL));
        }
        let new = LayoutSpec::from_raw(size.unwrap_or(0), count.unwrap_or(0), -1).map_err(|e| wrong(e.to_string()))?;
        if count.is_some() {
            spec.stripe_count = new.stripe_count;
        }
        if size.is_some() {
            spec.stripe_size = new.stripe_size;
        }
        debug_assert!(count != Some(-1) || spec.stripe_count == StripeCount::All);
        Ok(layout::xattr::encode_spec(&spec))
    }
}

fn failed(failure: Failure) -> Failed {
    Failed::new(failure.to_string(), i32::from(failure.code()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_layout_keeps_what_is_not_tuned() {
        let mount = Mount(0);
        let spec = |bytes: &[u8]| layout::xattr::decode_spec(bytes).unwrap();
        let new = spec(&mount.with_stripes(None, Some(-1), None).unwrap());
        assert_eq!((new.stripe_count, new.stripe_size), (StripeCount::All, None));
        let old = layout::xattr::encode_spec(&LayoutSpec::from_raw(1 << 20, 2, 1).unwrap());
        let new = spec(&mount.with_stripes(Some(&old), Some(4), None).unwrap());
        assert_eq!((new.stripe_count, new.stripe_size.map(|s| s.bytes())), (StripeCount::Exactly(4), Some(1 << 20)));
        assert_eq!(new.index, Some(types::OstIndex(1)));
        let new = spec(&mount.with_stripes(Some(&old), None, Some(4 << 20)).unwrap());
        assert_eq!((new.stripe_count, new.stripe_size.map(|s| s.bytes())), (StripeCount::Exactly(2), Some(4 << 20)));
        let listed = LayoutSpec::default().with_osts(vec![types::OstIndex(0)]).unwrap();
        let listed = layout::xattr::encode_spec(&listed);
        assert!(mount.with_stripes(Some(&listed), Some(4), None).unwrap_err().text.contains("one by one"));
        assert!(mount.with_stripes(Some(b"junk"), Some(4), None).is_err());
    }
}
