//! `ost add`: the stores of new OSTs, and their way into a cluster that runs.
use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use cluster::ask_mds;
use rt::{Nid, Rt};
use serde_json::json;
use types::Duration;
use wire::Op;
use wire::connect::ConfigReply;

use super::Cluster;
use crate::cli::OstAdd;
use crate::config::Config;
use crate::control;
use crate::daemon::{ClusterDir, find_key, load_in, on_shard};
use crate::failure::{Failure, Outcome};

/// How long the metadata server may take to say which OSTs there are.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a server of all OSTs of a directory may take to serve one that was added.
const SERVED_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);
/// How often it is looked whether it does.
const LOOK: std::time::Duration = std::time::Duration::from_millis(200);

/// What is known of the cluster's OSTs outside its directory.
struct Known {
    /// In the cluster map.
    there: Vec<u16>,
    /// Left the cluster.
    removed: Vec<u16>,
    /// The daemon that serves the OSTs of the directory, if one does.
    up: Option<Cluster>,
    /// Whether the cluster runs.
    runs: bool,
}

/// The verb `ost add`.
///
/// # Errors
/// Why no OST is added; stores that were made stay, and the next try serves them.
pub fn add(a: &OstAdd) -> Outcome {
    if let Some(key) = &a.key {
        found(a, key)?;
    }
    let mut dir = ClusterDir::open(&a.dir)?;
    let _lock = dir.lock_changes()?;
    // What was written there before the lock was had.
    dir = ClusterDir::open(&a.dir)?;
    let config = load_in(Some(&dir), &a.settings)?;
    if matches!(config.store_kind.as_str(), "memory" | "null") && dir.processes().iter().all(|p| !p.2) {
        return Err(Failure::usage(format!(
            "OSTs of kind {} live with the process that runs them: 'stria up --osts N'",
            config.store_kind
        )));
    }
    let known = look(a, &dir, &config)?;
    let indices = choose(a, &dir, &known)?;
    on_shard(frames::FramePool::new(64 << 20), async |rt| {
        for index in &indices {
            if !dir.has_ost(*index) || dir.uuid_of(&format!("ost{index}")).is_none() {
                refuse_occupied(&rt, &dir, *index).await?;
            }
        }
        dir.make_osts(&rt, &indices, &config).await
    })?;
    let list = indices.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    match &known.up {
        Some(up) => {
            for index in &indices {
                control::ask(up.connection, &json!({"do": "serve_ost", "ost": index}))?;
            }
            say!("OST {list} of '{}' takes files", dir.fsname);
        }
        None if known.runs && serves_all(&dir) => {
            wait_for(a, &dir, &config, &indices)?;
            say!("OST {list} of '{}' takes files", dir.fsname);
        }
        None if known.runs => {
            let (at, mds) = (dir.path().display(), a.mds.as_ref().map(|m| format!(" --mds {m}")).unwrap_or_default());
            say!("the store of OST {list} of '{}' is made; it takes files when it is served:", dir.fsname);
            say!(
                "  with units: STRIA_OSTS=all in /etc/stria/NAME.conf, then 'systemctl restart stria-oss@NAME' (clients wait meanwhile)"
            );
            say!("  by hand:    stria oss --dir {at} --ost {list}{mds}");
        }
        None => say!("the store of OST {list} of '{}' is made; it takes files from the next start on", dir.fsname),
    }
    Ok(())
}

/// Whether a server of all OSTs of the directory runs: it serves what is added.
fn serves_all(dir: &ClusterDir) -> bool {
    dir.processes().iter().any(|(name, _, lives)| name == "ostall" && *lives)
}

/// Waits until the metadata server has these OSTs in its map.
fn wait_for(a: &OstAdd, dir: &ClusterDir, config: &Config, indices: &[u16]) -> Outcome {
    let until = Instant::now() + SERVED_WITHIN;
    loop {
        let known = look(a, dir, config)?;
        let missing: Vec<String> = indices.iter().filter(|i| !known.there.contains(i)).map(u16::to_string).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            let why = format!(
                "OST {} was made and is not served within {} s: the log of the server of {} says why",
                missing.join(", "),
                SERVED_WITHIN.as_secs(),
                dir.path().display()
            );
            return Err(Failure::with_errno(why, libc::ETIMEDOUT));
        }
        std::thread::sleep(LOOK);
    }
}

/// Makes the directory of a machine that has no part of the cluster yet.
fn found(a: &OstAdd, key: &Path) -> Outcome {
    if a.dir.join("cluster.toml").exists() {
        return Ok(());
    }
    let mut config = load_in(None, &a.settings)?;
    config.key_file = key.display().to_string();
    let mds = address(a.mds.as_deref().unwrap_or_default())?;
    let cluster_key = find_key(&config, None)?;
    let map = on_shard(frames::FramePool::new(16 << 20), async |rt| map_of(&rt, &mds, &cluster_key).await)?;
    let fsname = String::from_utf8_lossy(&map.fsname).into_owned();
    (config.key_file, config.fsname) = (String::new(), fsname);
    let mut dir = ClusterDir::open_or_make(&a.dir, &config, map.cluster, Some(0))?;
    dir.take_key(key)?;
    dir.register(map.osts.iter().map(|e| (format!("ost{}", e.ost.0), e.uuid)).collect())?;
    dir.made()
}

fn address(text: &str) -> Result<Nid, Failure> {
    Nid::parse(text).map_err(|e| Failure::usage(format!("--mds: {e}")))
}

async fn map_of(rt: &Rt, mds: &Nid, key: &ptlrpc::ClusterKey) -> Result<ConfigReply, Failure> {
    ask_mds(rt, (mds, key), Op::Config, &(), PATIENCE).await.map_err(|e| {
        let why = match e {
            types::FsError::Access => "it has another key: check --key or DIR/keys/admin.key".to_string(),
            types::FsError::TimedOut => "it does not answer: does it run, and is the address right?".to_string(),
            e => e.to_string(),
        };
        Failure::with_errno(format!("the metadata server at {mds}: {why}"), e.errno())
    })
}

/// Which OSTs there are: as a mount of the directory's cluster says, or the metadata server itself, or, where nothing runs, the directory.
fn look(a: &OstAdd, dir: &ClusterDir, config: &Config) -> Result<Known, Failure> {
    let up = dir.processes().iter().any(|(name, _, lives)| name == "up" && *lives);
    if up {
        let cluster = Cluster::at(crate::upkeep::mount_of(dir)?)?;
        let (there, removed) = (cluster.list("osts"), cluster.list("removed"));
        return Ok(Known { there, removed, up: Some(cluster), runs: true });
    }
    let mds = match &a.mds {
        Some(text) => Some(address(text)?),
        None => {
            dir.last_nid("mdt0").filter(|_| dir.processes().iter().any(|(name, _, lives)| name == "mdt0" && *lives))
        }
    };
    let Some(mds) = mds else {
        let whole = dir.uuid_of("mdt0").is_some() && dir.mdt().join(store_redb::STORE_FILE).exists();
        if !whole {
            let why = format!("the metadata server of '{}' is on another machine: say --mds ADDRESS", dir.fsname);
            return Err(Failure::usage(why));
        }
        return Ok(Known { there: Vec::new(), removed: Vec::new(), up: None, runs: false });
    };
    let key = find_key(config, Some(dir))?;
    let map = on_shard(frames::FramePool::new(16 << 20), async |rt| map_of(&rt, &mds, &key).await)?;
    if map.cluster != dir.cluster {
        let why = format!(
            "{} is of cluster {:016x}, the metadata server at {mds} of cluster {:016x}: name its own directory",
            dir.path().display(),
            dir.cluster,
            map.cluster
        );
        return Err(Failure::with_errno(why, libc::EXDEV));
    }
    let there = map.osts.iter().map(|e| e.ost.0).collect();
    Ok(Known { there, removed: map.removed.iter().map(|o| o.0).collect(), up: None, runs: true })
}

/// The indices of the OSTs that are to be added: first those whose stores an earlier try made and nobody serves yet.
fn choose(a: &OstAdd, dir: &ClusterDir, known: &Known) -> Result<Vec<u16>, Failure> {
    let begun = |i: &u16| known.runs && !known.there.contains(i) && !known.removed.contains(i);
    let begun: Vec<u16> = dir.ost_indices().into_iter().filter(begun).collect();
    let count = usize::from(a.count);
    let Some(first) = a.index else {
        let highest = known.there.iter().chain(&known.removed).max().map_or(0, |i| i.saturating_add(1));
        let next = dir.index_end().max(highest);
        let all: Vec<u16> = begun.into_iter().chain(next..u16::MAX).take(count).collect();
        return Ok(all);
    };
    let wanted: Vec<u16> = (first..u16::MAX).take(count).collect();
    for i in &wanted {
        let at = dir.path().display();
        let why = if known.removed.contains(i) || dir.is_struck_out(*i) {
            format!("index {i} was that of an OST which was removed, and is not used again: leave --index out")
        } else if known.there.contains(i) || !known.runs && dir.has_ost(*i) {
            format!("OST {i} is part of '{}' already: leave --index out for the next one that is free", dir.fsname)
        } else if *i > dir.index_end().saturating_add(a.count).max(known.there.iter().max().map_or(0, |m| m + a.count))
        {
            format!("index {i} would leave a gap: {at} has {}; leave --index out", dir.indices_text())
        } else {
            continue;
        };
        return Err(Failure::with_errno(why, libc::EEXIST));
    }
    Ok(wanted)
}

/// Refuses a place in which something lies, saying what.
async fn refuse_occupied(rt: &Rt, dir: &ClusterDir, index: u16) -> Outcome {
    let at = dir.ost(index);
    let mut entries = match fs::read_dir(&at) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Failure::io("looking at", &at, &e)),
        Ok(entries) => entries.filter_map(Result::ok).filter(|e| e.file_name() != "lost+found"),
    };
    if entries.next().is_none() {
        return Ok(());
    }
    let what = match store_file::identity(rt, &at).await {
        Ok((there, _)) if there.cluster == dir.cluster && there.ost.0 == index => return Ok(()),
        Ok((there, _)) if there.cluster == dir.cluster => {
            format!("the store of OST {} of this file system", there.ost.0)
        }
        Ok((there, _)) => {
            format!(
                "the store of OST {} of file system '{}' of cluster {:016x}",
                there.ost.0, there.fsname, there.cluster
            )
        }
        Err(_) => "something that is no store".to_string(),
    };
    let why = format!("{} is not empty, it holds {what}: move that away, or mount an empty disk there", at.display());
    Err(Failure::with_errno(why, libc::ENOTEMPTY))
}
