//! `ost accept`: the older copy of an OST's store, which the cluster refused, is taken in while everything else goes on.
//!
//! The metadata server keeps that the copy which it refused last is let in when it comes again; objects that were given out and that the copy
//! never made are lost: they answer EIO, and their files are named. Its server tries it again once the directory was changed.
use super::replace::serves;
use super::running::Running;
use crate::cli::OstReplace;
use crate::daemon::{ClusterDir, load_in};
use crate::failure::{Failure, Outcome};
use crate::out::word;

/// The verb `ost accept`.
///
/// # Errors
/// The cluster does not run, or has not refused the OST's store; it is not served.
pub fn accept(a: &OstReplace) -> Outcome {
    let index = crate::lfs::one_ost(&a.ost).map_err(Failure::usage)?;
    let (mut dir, _lock) = ClusterDir::open_locked(&a.dir)?;
    let config = load_in(Some(&dir), &a.settings)?;
    let known = Running::look(a.mds.as_deref(), &dir, &config)?;
    if !known.runs() {
        let why = format!(
            "OST {index}: the cluster does not run: start it as it is; it goes on without this OST, and then takes its store in by this command"
        );
        return Err(Failure::with_errno(why, libc::ENOTCONN));
    }
    known.accept(index)?;
    let (name, fsname, at) = (format!("ost{index}"), dir.fsname.clone(), word(dir.path()));
    say!("OST {index} of '{fsname}' is taken in as it is; what was written there since is lost:");
    say!(
        "  'stria ost files {index} --lost' names the files that had new objects there; others have there what they had"
    );
    let Some(uuid) = dir.uuid_of(&name) else { return Ok(()) };
    // Who serves it looks again.
    dir.register(vec![(name, uuid)])?;
    if known.up.is_some() && known.serve(index).is_ok() {
        say!("OST {index} of '{fsname}' is served");
        return Ok(());
    }
    // Its server may not have let the store go yet that it refused a moment ago: then it tries again.
    if known.up.is_some() || serves(&dir, index) {
        Running::wait(a.mds.as_deref(), &dir, &config, |now| Some(index).filter(|i| !now.uses(*i, uuid)))?;
    } else {
        say!(
            "it is served when its server is started again: 'systemctl restart stria-oss@NAME', or 'stria oss --dir {at} --ost {index}'"
        );
        return Ok(());
    }
    say!("OST {index} of '{fsname}' is served");
    Ok(())
}
