//! `ost replace`: a new store for an OST whose own is lost, while everything else goes on.
//!
//! 1. The metadata server names the new store as the OST's, in one commit with the end of all objects that the lost one may have held: the
//!    lost store, should it come back, is refused from then on, and no object number is given out again.
//! 2. The store is made in the OST's place, and knows which objects were lost: they answer EIO.
//! 3. The server that runs opens it: that of `up`, or a unit's, whose target had failed or waits for a store.
//!
//! The metadata store may have been put back from a backup of before a replacement. Then the store that the replacement made is in its place,
//! and nobody has it as the OST's: it is named again, by the same request, and stays as it is.
//!
//! A command that was interrupted is given again. On a stopped cluster the first step is done in the metadata store itself.
use super::running::Running;
use crate::cli::OstReplace;
use crate::config::Config;
use crate::daemon::{ClusterDir, load_in, on_shard};
use crate::failure::{Failure, Outcome};

/// The verb `ost replace`.
///
/// # Errors
/// The store of the OST is there, or in use; a new one cannot be made, or is not served.
pub fn replace(a: &OstReplace) -> Outcome {
    let index = crate::lfs::one_ost(&a.ost).map_err(Failure::usage)?;
    let (mut dir, _lock) = ClusterDir::open_locked(&a.dir)?;
    let config = load_in(Some(&dir), &a.settings)?;
    let known = Running::look(a.mds.as_deref(), &dir, &config)?;
    let (uuid, is_new) = made(&mut dir, &known, index, &config)?;
    let (fsname, at) = (&dir.fsname, dir.path().display());
    let has = if is_new { "has a new store" } else { "has the store that is in its place again" };
    say!("OST {index} of '{fsname}' {has}; what the earlier one held is lost:");
    say!("  'stria ost files {index} --lost' names the files that had objects there");
    if known.up.is_some() {
        known.serve(index)?;
    } else if known.runs() && serves(&dir, index) {
        Running::wait(a.mds.as_deref(), &dir, &config, |now| Some(index).filter(|i| !now.uses(*i, uuid)))?;
    } else if known.runs() {
        let mds = a.mds.as_ref().map(|m| format!(" --mds {m}")).unwrap_or_default();
        say!("it takes files when its server is started again:");
        say!("  with units: 'systemctl restart stria-oss@NAME'");
        say!("  by hand:    stria oss --dir {at} --ost {index}{mds}");
        return Ok(());
    } else {
        say!("it takes files from the next start on");
        return Ok(());
    }
    say!("OST {index} of '{fsname}' takes files");
    Ok(())
}

/// Makes the store and says which, and whether it is new; one that an earlier try made is only written down, one that the metadata server
/// does not know any more only named there.
fn made(dir: &mut ClusterDir, known: &Running, index: u16, config: &Config) -> Result<(u64, bool), Failure> {
    on_shard(frames::FramePool::new(64 << 20), async |rt| {
        if let Some(there) = dir.made_replacement(&rt, index).await
            && known.osts.iter().any(|o| o.index == index && o.uuid == there)
        {
            dir.register(vec![(format!("ost{index}"), there)])?;
            return Ok((there, true));
        }
        if !known.runs() {
            dir.replace_ost(&rt, index, config).await?;
            return Ok((dir.uuid_of(&format!("ost{index}")).unwrap_or_default(), true));
        }
        if let Some(there) = dir.own_store(&rt, index).await
            && known.names_another(index, there)
        {
            // What is in use under that name is refused there.
            known.replace(index, there)?;
            return Ok((there, false));
        }
        dir.may_replace(&rt, index, config).await?;
        let uuid = rt.random().max(1);
        let lost = known.replace(index, uuid)?;
        dir.make_replacement(&rt, index, config, (uuid, lost)).await?;
        Ok((uuid, true))
    })
}

/// Whether a server that runs on this machine has this OST among its own.
pub(super) fn serves(dir: &ClusterDir, index: u16) -> bool {
    let lives = dir.processes().into_iter().filter(|p| p.runs());
    lives
        .filter_map(|p| Some(p.name.strip_prefix("ost")?.to_string()))
        .any(|list| list == "all" || layout::parse_ost_list(&list).is_ok_and(|osts| osts.iter().any(|o| o.0 == index)))
}
