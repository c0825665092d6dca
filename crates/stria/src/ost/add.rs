//! `ost add`: the stores of new OSTs, and their way into a cluster that runs.
use std::fs;
use std::path::Path;

use rt::Rt;

use super::running::{Running, address, map_of};
use crate::cli::OstAdd;
use crate::daemon::{ClusterDir, find_key, is_free, load_in, on_shard, refuse_inside};
use crate::failure::{Failure, Outcome};
use crate::out::word;

/// The verb `ost add`.
///
/// # Errors
/// Why no OST is added; stores that were made stay, and the next try serves them.
pub fn add(a: &OstAdd) -> Outcome {
    if let Some(key) = &a.key {
        found(a, key)?;
    }
    let (mut dir, _lock) = ClusterDir::open_locked(&a.dir)?;
    let config = load_in(Some(&dir), &a.settings)?;
    if matches!(config.store_kind.as_str(), "memory" | "null") && !dir.processes().iter().any(|p| p.runs()) {
        return Err(Failure::usage(format!(
            "OSTs of kind {} live with the process that runs them: 'stria up --osts N'",
            config.store_kind
        )));
    }
    let known = Running::look(a.mds.as_deref(), &dir, &config)?;
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
    if known.up.is_some() {
        for index in &indices {
            known.serve(*index)?;
        }
        say!("OST {list} of '{}' takes files", dir.fsname);
    } else if known.runs() && dir.is_served("ostall") {
        Running::wait(a.mds.as_deref(), &dir, &config, |now| indices.iter().find(|i| !now.has(**i)).copied())?;
        say!("OST {list} of '{}' takes files", dir.fsname);
    } else if known.runs() {
        let (at, mds) = (word(dir.path()), a.mds.as_ref().map(|m| format!(" --mds {m}")).unwrap_or_default());
        say!("the store of OST {list} of '{}' is made; it takes files when it is served:", dir.fsname);
        say!(
            "  with units: STRIA_OSTS=all in /etc/stria/NAME.conf, then 'systemctl restart stria-oss@NAME' (clients wait meanwhile)"
        );
        say!("  by hand:    stria oss --dir {at} --ost {list}{mds}");
    } else {
        say!("the store of OST {list} of '{}' is made; it takes files from the next start on", dir.fsname);
    }
    Ok(())
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
    let (mut dir, _lock) = ClusterDir::open_or_make_locked(&a.dir, &config, map.cluster, Some(0), false)?;
    dir.take_key(key)?;
    dir.register(map.osts.iter().map(|e| (format!("ost{}", e.ost.0), e.uuid)).collect())?;
    dir.made()
}

/// The indices of the OSTs that are to be added: first those whose stores an earlier try made and nobody serves yet.
fn choose(a: &OstAdd, dir: &ClusterDir, known: &Running) -> Result<Vec<u16>, Failure> {
    let begun = |i: &u16| known.runs() && !known.has(*i) && !known.removed.contains(i);
    let begun: Vec<u16> = dir.ost_indices().into_iter().filter(begun).collect();
    let count = usize::from(a.count);
    let Some(first) = a.index else {
        let highest = known.indices().chain(known.removed.iter().copied()).max().map_or(0, |i| i.saturating_add(1));
        let next = dir.index_end().max(highest);
        let all: Vec<u16> = begun.into_iter().chain(next..u16::MAX).take(count).collect();
        return Ok(all);
    };
    let wanted: Vec<u16> = (first..u16::MAX).take(count).collect();
    for i in &wanted {
        let at = dir.path().display();
        let why = if known.removed.contains(i) || dir.is_struck_out(*i) {
            format!("index {i} was that of an OST which was removed, and is not used again: leave --index out")
        } else if known.has(*i) || !known.runs() && dir.has_ost(*i) {
            format!("OST {i} is part of '{}' already: leave --index out for the next one that is free", dir.fsname)
        } else if *i > dir.index_end().saturating_add(a.count).max(known.indices().max().map_or(0, |m| m + a.count)) {
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
    refuse_inside(&at)?;
    if is_free(&at) {
        return Ok(());
    }
    fs::read_dir(&at).map_err(|e| Failure::io("looking at", &at, &e))?;
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
