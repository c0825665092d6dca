//! `stria demo`: a real cluster as processes, two mounts of it, real work, and what that took.
//!
//! Decides what is done and in which order; the cluster is the one that `up --processes` starts. Whatever happens, mounts
//! and processes are gone afterwards, and the directory too.
mod place;
mod report;
mod tree;
mod work;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use types::format_size;

use crate::cli;
use crate::control::{Event, Events, block_signals};
use crate::daemon::{Children, ClusterDir, Daemon, Host, Osts, start_children};
use crate::failure::{Failure, Outcome};
use report::Report;

/// Set when the user wants to stop.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends a step early.
    pub fn check(&self) -> Outcome {
        if self.0.load(Ordering::Relaxed) { Err(Failure::with_errno("stopped", libc::EINTR)) } else { Ok(()) }
    }
}

/// The verb `demo`.
///
/// # Errors
/// What is missing on this machine, or what the cluster did wrong.
pub fn demo(arguments: &cli::Demo) -> Outcome {
    let config = crate::daemon::load(&arguments.settings)?;
    place::check_machine()?;
    let place = place::Place::make(arguments)?;
    note!("A cluster of one MDS and {} OSTs, each a process, in {}", arguments.osts, place.path().display());
    let stop = watch_signals();
    let cluster = Cluster::start(arguments, &config.fsname, &place)?;
    let mut report = Report::new(cluster.mounts[0].connection, cluster.mounts[1].connection);
    let outcome = work::all(&cluster, arguments, &stop, &mut report);
    report.finish();
    note!("{}", report.table());
    for (name, restarts) in cluster.servers.restarts().iter().filter(|(_, n)| *n > 0) {
        note!("{name} was killed and started again {restarts} time(s); programs only noticed a pause");
    }
    drop(cluster);
    outcome?;
    note!("\nKeep such a cluster: stria up --dir DIR --mount MNT");
    Ok(())
}

fn watch_signals() -> Stop {
    block_signals();
    let events = Events::default();
    events.watch_signals();
    let stop = Stop::default();
    let seen = stop.clone();
    std::thread::spawn(move || {
        while let Some(event) = events.wait() {
            if matches!(event, Event::Signal(_)) {
                eprintln!("stopping: unmounting and ending the servers");
                seen.0.store(true, Ordering::Relaxed);
            }
        }
    });
    stop
}

/// One mount of the demonstration.
pub(crate) struct Mounted {
    /// Where.
    pub at: PathBuf,
    /// Its FUSE connection.
    pub connection: u32,
    daemon: Option<Daemon>,
}

/// Servers and mounts; all gone when dropped.
pub(crate) struct Cluster {
    /// Two mounts of the same file system.
    pub mounts: Vec<Mounted>,
    /// The servers.
    pub servers: Children,
}

impl Cluster {
    fn start(arguments: &cli::Demo, fsname: &str, place: &place::Place) -> Result<Cluster, Failure> {
        let told = crate::daemon::settings_arguments(&arguments.settings);
        let dir = place.path().join("cluster");
        let made = crate::daemon::mkfs(&cli::Mkfs {
            dir: dir.clone(),
            osts: Some(arguments.osts),
            replace: None,
            settings: arguments.settings.clone(),
        });
        made?;
        let dir = ClusterDir::open(&dir)?;
        let servers = start_children(&dir, &Osts::all(arguments.osts), &told, &|_| Host::default())?;
        let mut cluster = Cluster { mounts: Vec::new(), servers };
        for name in ["mnt", "mnt2"] {
            let at = place.path().join(name);
            std::fs::create_dir(&at).map_err(|e| Failure::io("making", &at, &e))?;
            let mut line: Vec<OsString> = vec!["mount".into(), "--dir".into(), dir.path().into(), at.clone().into()];
            line.extend(told.iter().cloned());
            let daemon = Daemon::start(&line, Some(&dir.run().join(format!("{name}.log"))), false, None)?;
            let mut mounted = Mounted { at: at.clone(), connection: 0, daemon: Some(daemon) };
            let found = crate::lfs::connection_of(&at);
            mounted.connection = found.as_ref().map_or(0, |f| f.0);
            cluster.mounts.push(mounted);
            found?;
        }
        note!(
            "'{fsname}' is mounted twice, at {} and {}\n",
            cluster.mounts[0].at.display(),
            cluster.mounts[1].at.display()
        );
        Ok(cluster)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for m in self.mounts.drain(..).rev() {
            if let Err(e) = fuse::mount::unmount(&m.at, false)
                && let Err(lazy) = fuse::mount::unmount(&m.at, true)
            {
                eprintln!("{e}; {lazy}");
            }
            if let Some(mut daemon) = m.daemon {
                daemon.end();
            }
        }
        self.servers.stop();
    }
}

/// Bytes and seconds as a rate.
pub(crate) fn rate(bytes: u64, seconds: f64) -> String {
    format!("{}/s", format_size((bytes as f64 / seconds.max(1e-9)) as u64))
}
