//! Where the fast tier of an OST lives (`store.fast.dir`), and what is wrong with a place.
//!
//! A setting that cannot be right stops the start, and nothing is changed at the place. A device that fails, is full or is
//! gone does not: its OST starts without a tier, and says so.
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use oss::fast::{FastConfig, FastError, FastStore, FastTier};
use oss::store::{DeviceProfile, EmulatedFile, ObjectStore};
use rt::{DirLock, DiskFile, LockError, Rt};

use super::dir::ClusterDir;
use super::settings::{is_inside, refuse_inside};
use crate::config::Config;
use crate::failure::Failure;

/// What the directory of a tier has in it.
const OURS: [&str; 2] = ["slots", "lock"];

/// Puts the fast tier that the configuration names before a store.
///
/// # Errors
/// The setting is wrong, or another process has the place.
pub async fn before(
    rt: &Rt,
    dir: &ClusterDir,
    store: Rc<dyn ObjectStore>,
    config: &Config,
) -> Result<Rc<dyn ObjectStore>, Failure> {
    if config.store_fast_dir.is_empty() {
        return Ok(store);
    }
    let root = Path::new(&config.store_fast_dir);
    let mistake = |why: String| Failure::usage(format!("store.fast.dir = {}: {why}", root.display()));
    let identity = store.identity();
    let fast = FastConfig {
        bytes: config.store_fast_bytes,
        admission: config.store_fast_admission.clone(),
        ..FastConfig::new(config.store_fast_bytes)
    };
    let without = |why: String| {
        let why = format!("store.fast.dir = {}: {why}", root.display());
        Ok(FastStore::new(store.clone(), FastTier::without(rt, &identity, &fast, why)) as Rc<dyn ObjectStore>)
    };
    let (place, lock) = match prepare(rt, root, dir.path(), &identity.target()).await {
        Ok(ready) => ready,
        Err(Trouble::Mistake(why)) => return Err(mistake(why)),
        Err(Trouble::Device(e)) => return without(e.to_string()),
    };
    let profile = match config.store_fast_profile.as_str() {
        "none" => None,
        name => Some(DeviceProfile::named(name).map_err(Failure::usage)?),
    };
    let device = |path: &Path| fs::metadata(path).map(|m| m.dev()).ok();
    if profile.is_none() && device(&place) == device(&dir.ost(identity.ost.0)) {
        tracing::warn!(
            target = identity.target(),
            "store.fast.dir = {} is on the device of the store itself: a tier there makes nothing faster",
            root.display()
        );
    }
    let clock = rt.clone();
    let wrap = move |file: Rc<dyn DiskFile>| match profile {
        Some(profile) => EmulatedFile::new(clock, file, profile) as Rc<dyn DiskFile>,
        None => file,
    };
    match FastTier::open(rt, &place, &identity, &fast, Some(lock), wrap).await {
        Ok(tier) => Ok(FastStore::new(store, tier)),
        Err(FastError::TooSmall(n)) => Err(Failure::usage(format!("store.fast.size = {}", FastError::TooSmall(n)))),
        // The directory is a tier's: nothing is lost with what is there, and nothing of it is touched.
        Err(e @ FastError::Foreign) => {
            without(format!("{}: {e}, or its head is damaged: remove the file", place.display()))
        }
        Err(e) if e.is_mistake() => Err(mistake(e.to_string())),
        Err(e) => without(e.to_string()),
    }
}

enum Trouble {
    /// The setting is wrong: a sentence.
    Mistake(String),
    Device(io::Error),
}
impl From<io::Error> for Trouble {
    fn from(e: io::Error) -> Trouble {
        Trouble::Device(e)
    }
}

/// Refuses a place on a mount of Stria.
fn refuse(place: &Path) -> Result<(), Trouble> {
    match refuse_inside(place) {
        Err(e) if is_inside(place) => Err(Trouble::Mistake(e.to_string())),
        // What else is wrong is found when it is opened.
        _ => Ok(()),
    }
}

/// The directory of a target's tier, which is made when it is missing, locked.
async fn prepare(rt: &Rt, root: &Path, cluster: &Path, target: &str) -> Result<(PathBuf, DirLock), Trouble> {
    let place = place_of(root, cluster, target)?;
    match rt.lock_dir_waiting(&place).await {
        Ok(lock) => Ok((place, lock)),
        Err(LockError::InUse) => Err(Trouble::Mistake(format!("another process has {} open", place.display()))),
        Err(LockError::Io(e)) => Err(e.into()),
    }
}

/// The directory of a target's tier, which is made when it is missing.
fn place_of(root: &Path, cluster: &Path, target: &str) -> Result<PathBuf, Trouble> {
    let mistake = |why: &str| Trouble::Mistake(why.into());
    // A device that is not mounted must not be taken for an empty one: the directory itself is not made.
    refuse(root)?;
    let root = root.canonicalize()?;
    if !root.is_dir() {
        return Err(mistake("it is no directory"));
    }
    if cluster.canonicalize().is_ok_and(|c| root.starts_with(c)) {
        return Err(mistake("it lies in the cluster's own directory: a fast tier belongs on another, faster device"));
    }
    let place = root.join(target);
    refuse(&place)?;
    rt::make_private_dir(&place)?;
    for entry in fs::read_dir(&place)? {
        let name = entry?.file_name();
        if !OURS.iter().any(|ours| name == *ours) {
            let (place, name) = (place.display(), name.display());
            return Err(mistake(&format!(
                "{place} holds '{name}', which is not a fast tier's: name another directory"
            )));
        }
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(root: &Path, cluster: &Path) -> Result<(PathBuf, DirLock), Trouble> {
        rt::real::run(
            frames::FramePool::new(1 << 20),
            |rt| async move { prepare(&rt, root, cluster, "fs-OST0000").await },
        )
        .unwrap()
    }
    fn trouble(root: &Path, cluster: &Path) -> String {
        match prepared(root, cluster) {
            Ok(_) => String::new(),
            Err(Trouble::Mistake(why)) => why,
            Err(Trouble::Device(e)) => format!("device: {e}"),
        }
    }

    #[test]
    fn a_place_is_refused_when_it_is_the_stores_own_holds_others_files_or_is_in_use_and_a_missing_one_is_not_made() {
        let all = tempfile::tempdir().unwrap();
        let (cluster, fast) = (all.path().join("cluster"), all.path().join("fast"));
        fs::create_dir_all(cluster.join("ost0")).unwrap();
        assert!(trouble(&fast, &cluster).starts_with("device: "), "it is not there");
        assert!(!fast.exists());
        fs::create_dir(&fast).unwrap();
        assert!(trouble(&cluster.join("ost0"), &cluster).contains("the cluster's own directory"));
        std::os::unix::fs::symlink(&cluster, all.path().join("link")).unwrap();
        assert!(trouble(&all.path().join("link"), &cluster).contains("the cluster's own directory"));
        let (place, lock) = prepared(&fast, &cluster).ok().unwrap();
        assert_eq!(place, fast.canonicalize().unwrap().join("fs-OST0000"));
        assert!(trouble(&fast, &cluster).contains("another process has"));
        drop(lock);
        fs::write(place.join("slots"), "").unwrap();
        assert_eq!(trouble(&fast, &cluster), "");
        fs::write(place.join("thesis.tex"), "").unwrap();
        assert!(trouble(&fast, &cluster).contains("holds 'thesis.tex'"));
        fs::write(all.path().join("file"), "").unwrap();
        assert!(trouble(&all.path().join("file"), &cluster).contains("no directory"));
    }
}
