//! The mount whose daemon is asked for looks, and the questions.
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::control::{self, Asked, Unanswered};
use crate::failure::{Failure, Outcome};
use crate::trouble::{self, Trouble};

/// How long a daemon has for its answer, and how long it waits for servers.
const MOMENT: Duration = Duration::from_millis(950);
const SERVERS_MS: u64 = 750;

/// The mount whose daemon is asked.
#[derive(Clone, Debug)]
pub struct Source {
    /// Number of its FUSE connection.
    pub connection: u32,
    user: u32,
    /// Where it is mounted.
    pub at: PathBuf,
}

/// Until when an answer is waited for to a question that is asked now.
#[must_use]
pub fn moment() -> Instant {
    Instant::now() + MOMENT
}

impl Source {
    /// The mount that a path is on, else one of a cluster's directory, else the mount we are in, else the only one.
    ///
    /// # Errors
    /// There is none; there are several.
    pub fn find(mount: Option<&Path>, dir: Option<&Path>) -> Outcome<Source> {
        let connection = match (mount, dir) {
            (Some(path), _) => crate::status::mount_above(path)?.0,
            (None, Some(dir)) => crate::upkeep::mount_of(&crate::daemon::ClusterDir::open(dir)?)?,
            (None, None) => match crate::status::mount_above(Path::new(".")) {
                Ok((here, _)) => here,
                Err(_) => only_mount()?,
            },
        };
        let gone = || Failure::with_errno(format!("mount {connection} is not there any more"), libc::ENOTCONN);
        let mount = fuse::mount::mounts().into_iter().rev().find(|m| m.minor == connection).ok_or_else(gone)?;
        Ok(Source { connection, user: mount.user, at: mount.at })
    }

    /// A mount that is not there, for tests.
    #[cfg(test)]
    pub fn nowhere() -> Source {
        Source { connection: u32::MAX, user: 0, at: "/nowhere".into() }
    }

    /// The same place, with the mount that is there now, if one is.
    #[must_use]
    pub fn renewed(&self) -> Source {
        let mounts = fuse::mount::mounts().into_iter().rev();
        let now = mounts.into_iter().find(|m| m.kind == "fuse.stria" && m.at == self.at);
        now.map_or_else(|| self.clone(), |m| Source { connection: m.minor, user: m.user, at: m.at })
    }

    /// Asks for a look at all servers: pages that match a pattern.
    #[must_use]
    pub fn look(&self, pages: &str) -> Asked {
        self.ask(json!({"do": "look", "pattern": pages, "within_ms": SERVERS_MS}))
    }

    /// Asks for the mount's status.
    #[must_use]
    pub fn status(&self) -> Asked {
        self.ask(json!({"do": "status", "within_ms": SERVERS_MS}))
    }

    fn ask(&self, question: Value) -> Asked {
        control::begin(self.connection, self.user, question)
    }

    /// What is wrong with the daemon that did not answer, and what to do.
    #[must_use]
    pub fn trouble(&self, e: &Unanswered) -> Trouble {
        trouble::of_daemon(&self.at, e.daemon, &e.failure.to_string())
    }

    /// The same as a command fails with it.
    #[must_use]
    pub fn failure(&self, e: &Unanswered) -> Failure {
        let why = format!("{}: {}", self.at.display(), self.trouble(e));
        Failure::with_errno(why, e.failure.code().into())
    }
}

fn only_mount() -> Outcome<u32> {
    match &crate::lfs::mounts()?[..] {
        [only] => Ok(only.minor),
        several => {
            let list = several.iter().map(|m| m.at.display().to_string()).collect::<Vec<_>>().join(", ");
            Err(Failure::usage(format!("several mounts are here ({list}): say which one")))
        }
    }
}
