//! `stria umount`: ends a mount, says for whom its daemon waits, and does not wait longer than whoever asks likes.
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fuse::mount::MountError;
use serde_json::{Value, json};

use super::announce::{self, Ended, Interrupts};
use super::mounts::ends_within;
use crate::cli;
use crate::control::{self, Asked};
use crate::failure::{Failure, Outcome};
use crate::out::word;

/// The verb `umount`: unmounts, and waits until the daemon has written everything and is gone.
///
/// # Errors
/// The path is no mount point, or the mount is in use.
pub fn umount(arguments: &cli::Umount) -> Outcome {
    let busy = |e: MountError| {
        let errno = if matches!(e, MountError::StillBusy { .. }) { libc::EBUSY } else { libc::EIO };
        Failure::with_errno(e.to_string(), errno)
    };
    let (connection, at) = mounted_at(&arguments.mount)?;
    // What its daemon left behind cannot be looked at, but it can be detached.
    if control::daemon_of(connection).is_none() && is_dead(&at) {
        fuse::mount::copies(connection).iter().for_each(tell_of_dead_copy);
        return fuse::mount::unmount(&at, true).map_err(busy);
    }
    refuse_foreign(connection, &at)?;
    let leaving = Leaving::ask(connection, arguments.force);
    // umount(2) sees its own mount namespace only.
    let copies = if arguments.lazy { Vec::new() } else { fuse::mount::copies(connection) };
    if !copies.is_empty() {
        refuse_used(&at, connection)?;
    }
    let pid = control::daemon_of(connection);
    let others = fuse::mount::mounts().into_iter().filter(|m| m.kind == "fuse.stria" && m.minor != connection);
    let alone = pid.is_some() && others.into_iter().all(|m| control::daemon_of(m.minor) != pid);
    let ours = fuse::mount::mounts().into_iter().rev().find(|m| m.minor == connection);
    match fuse::mount::Connection::open(connection).unmount(&at, arguments.lazy) {
        Err(MountError::StillBusy { .. }) => {
            refuse_used(&at, connection)?;
            return Err(busy(MountError::StillBusy { at }));
        }
        Err(e) => return Err(busy(e)),
        Ok(_) => {}
    }
    if let Some(copy) = copies.first() {
        note!(
            "{}: was also mounted in the mount namespace of process {} ({}), unused: it ends there, too",
            at.display(),
            copy.pid,
            copy.name
        );
        // A daemon that does not answer may have ended meanwhile, when the copy went, or because it was killed.
        if let Err(e) = control::ask_of(connection, ours.map_or(0, |m| m.user), &json!({"do": "end"}))
            && pid.is_none_or(|pid| !ends_within(pid, QUIET_MS))
            && !is_dead(&place_of(copy))
        {
            return Err(e);
        }
    }
    match pid {
        Some(_) if arguments.force => leaving.given_up(&at),
        Some(pid) if alone && !arguments.lazy => leaving.wait(&at, pid),
        _ => Ok(()),
    }
}

/// The mount whose mount point is named. A directory on one is not it: who unmounts twice what was mounted there means no other mount.
fn mounted_at(path: &Path) -> Result<(u32, PathBuf), Failure> {
    let (connection, at) = crate::lfs::connection_at(path)?;
    if std::path::absolute(path).is_ok_and(|full| full == at) {
        return Ok((connection, at));
    }
    let real = std::fs::canonicalize(path).map_err(|e| Failure::io("looking at", path, &e))?;
    if fuse::mount::mounts().into_iter().any(|m| m.minor == connection && m.at == real) {
        return Ok((connection, real));
    }
    let why = format!(
        "{}: no mount point, but a file of the mount at {at}; 'stria umount {at}' ends that",
        path.display(),
        at = at.display()
    );
    Err(Failure::with_errno(why, libc::EINVAL))
}

/// Whether nobody serves the mount any more. What the kernel remembers of one says nothing, and one who serves it may wait for servers.
fn is_dead(at: &Path) -> bool {
    let Ok(at) = std::ffi::CString::new(at.as_os_str().as_bytes()) else { return false };
    let (tell, told) = channel();
    std::thread::spawn(move || {
        // SAFETY: a NUL-terminated path, and an all-zero structure that the call fills in.
        let failed = unsafe { libc::statfs(at.as_ptr(), &mut std::mem::zeroed()) } != 0;
        let errno = std::io::Error::last_os_error().raw_os_error();
        // Who asked may have lost patience.
        let _ = tell.send(failed && matches!(errno, Some(libc::ENOTCONN | libc::ECONNABORTED)));
    });
    told.recv_timeout(std::time::Duration::from_millis(ANSWER_MS)).unwrap_or(false)
}

/// Where the file system that is mounted in another mount namespace can be looked at.
fn place_of(copy: &fuse::mount::Copy) -> PathBuf {
    let inside = copy.at.strip_prefix("/").unwrap_or(&copy.at);
    Path::new("/proc").join(copy.pid.to_string()).join("root").join(inside)
}

/// A mount without its daemon that is not in this mount namespace stays.
fn tell_of_dead_copy(copy: &fuse::mount::Copy) {
    note!(
        "it stays, without its daemon, in the mount namespace of process {pid} ({}): 'nsenter -t {pid} -m umount -l {}' takes it away there",
        copy.name,
        word(&copy.at),
        pid = copy.pid
    );
}

/// Refuses to unmount what another user mounted, unless root does it.
fn refuse_foreign(connection: u32, at: &Path) -> Outcome {
    // SAFETY: plain system call without arguments.
    let own = unsafe { libc::geteuid() };
    let mount = fuse::mount::mounts().into_iter().rev().find(|m| m.minor == connection && m.kind == "fuse.stria");
    match mount.filter(|m| own != 0 && m.user != own) {
        None => Ok(()),
        Some(m) => Err(Failure::with_errno(
            format!("{} was mounted by user {}: that user or root unmounts it, not user {own}", at.display(), m.user),
            libc::EPERM,
        )),
    }
}

/// How often it is looked again who uses a mount before that is refused, and the pause between.
const LOOKS_AGAIN: u32 = 3;
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Programs that are named when a mount is in use.
const USERS_SHOWN_MAX: usize = 10;

/// Refuses to unmount what programs use, and names them.
fn refuse_used(at: &Path, connection: u32) -> Outcome {
    let mut users = fuse::mount::users(connection);
    // A program that starts another one shares its files with that for a moment.
    for _ in 0..LOOKS_AGAIN {
        if users.as_ref().is_none_or(Vec::is_empty) {
            break;
        }
        std::thread::sleep(LOOK_PAUSE);
        users = fuse::mount::users(connection);
    }
    let Some(users) = users else {
        let why = "by whom cannot be found out, for a process waits for some file system: end it, or unmount lazily";
        return Err(Failure::with_errno(format!("{} may be in use; {why}", at.display()), libc::EBUSY));
    };
    if users.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> =
        users.iter().take(USERS_SHOWN_MAX).map(|u| format!("process {} ({}) {}", u.pid, u.name, u.what)).collect();
    let more = users.len().saturating_sub(USERS_SHOWN_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let why = format!("{} is still in use: {}{more}; end them, or unmount lazily", at.display(), shown.join(", "));
    Err(Failure::with_errno(why, libc::EBUSY))
}

/// A question to a mount's daemon that is asked before it is unmounted, and answered when that takes long.
struct Leaving {
    asked: Option<Asked>,
}

impl Leaving {
    fn ask(connection: u32, force: bool) -> Leaving {
        let mounts = fuse::mount::mounts();
        let mount = mounts.into_iter().rev().find(|m| m.minor == connection && m.kind == "fuse.stria");
        let Some(user) = mount.map(|m| m.user) else { return Leaving { asked: None } };
        let asked = control::begin(connection, user, json!({"do": "leave", "force": force}));
        asked.connected(Instant::now() + Duration::from_millis(ANSWER_MS));
        // Questions are taken in order: when this one is answered, the daemon has the one before. It takes none when it is unmounted.
        let next = control::begin(connection, user, json!({"do": "status", "within_ms": 0}));
        drop(next.answer(Instant::now() + Duration::from_millis(ANSWER_MS)));
        Leaving { asked: Some(asked) }
    }

    fn answer(&self, within_ms: u64) -> Option<Value> {
        self.asked.as_ref()?.answer(Instant::now() + Duration::from_millis(within_ms)).ok()
    }

    /// Waits until the daemon has written everything out and is gone.
    fn wait(&self, at: &Path, pid: i32) -> Outcome {
        if ends_within(pid, QUIET_MS) {
            return Ok(());
        }
        let interrupts = Interrupts::begin()?;
        let told = self.answer(10 * ANSWER_MS);
        let text =
            |key: &str| told.as_ref().and_then(|t| t[key].as_str()).filter(|t| !t.is_empty()).map(str::to_string);
        let has = text("unsettled").unwrap_or_else(|| "what was written there".into());
        let waits = text("waits").map(|w| format!(" and waits for {w}")).unwrap_or_default();
        announce::tell(&format!(
            "{} is unmounted; process {pid} writes out {has}{waits}; it is waited for, {} s at most (Ctrl-C ends the waiting)",
            at.display(),
            END_MS / 1000
        ));
        let goes_on = format!(
            "{} is unmounted, but process {pid} still writes out {has}{waits}: it goes on; 'kill {pid}' makes it give up what is not written out",
            at.display()
        );
        match interrupts.until_end_of(pid, END_MS) {
            Ended::Yes => Ok(()),
            Ended::Signal(_) => Err(Failure::with_errno(goes_on, libc::EINTR)),
            Ended::NotYet => Err(Failure::with_errno(goes_on, libc::ETIMEDOUT)),
        }
    }

    /// What was lost of what programs had written there, after it was given up.
    fn given_up(&self, at: &Path) -> Outcome {
        let told = self.answer(GIVEN_UP_MS).unwrap_or_default();
        match told["unsettled"].as_str() {
            None | Some("") => Ok(()),
            Some(lost) => {
                let for_whom = told["waits"].as_str().filter(|w| !w.is_empty());
                let for_whom = for_whom.map(|w| format!(", which waited for {w}")).unwrap_or_default();
                let why = format!("{} is unmounted, and given up is {lost}{for_whom}", at.display());
                Err(Failure::with_errno(why, libc::EIO))
            }
        }
    }
}

/// How long a daemon may take to say what it knows of its servers, in milliseconds.
const ANSWER_MS: u64 = 1_000;
/// How long an end takes that nobody needs to be told of, in milliseconds.
const QUIET_MS: i32 = 1_500;
/// How long a daemon may take to write everything out, in milliseconds.
const END_MS: i32 = 60_000;
/// How long a daemon may take to give up what is not written out, in milliseconds.
const GIVEN_UP_MS: u64 = 10_000;
