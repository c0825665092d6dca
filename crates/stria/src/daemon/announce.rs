//! How a daemon tells whoever started it that it is ready, or why it failed: one line on its stdout.
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rt::Rt;

use super::notify;
use super::private::PrivateDir;
use crate::control::{stop_signals_fd, unblock_signals};
use crate::failure::{Failure, Outcome};

/// How long a daemon whose mount is gone may take to end, in milliseconds.
const END_WITHIN: i32 = 20_000;

/// How long a daemon may take to end that nobody is told of, in milliseconds.
const QUIET: i32 = 2_000;

/// Environment variable of daemons whose starter listens.
pub const ANNOUNCE: &str = "STRIA_ANNOUNCE";

/// Whether somebody listens to this process's first line.
#[must_use]
pub fn is_awaited() -> bool {
    std::env::var_os(ANNOUNCE).is_some()
}

/// Says that this daemon is ready: `word` for a starter, `text` for people and a service manager.
pub fn ready(rt: &Rt, word: &str, text: &str) {
    outlives_starter();
    notify::ready(rt, text);
    // Who started this may be gone; that is no reason to stop serving.
    let line = if is_awaited() { format!("ready {word}") } else { text.to_string() };
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A daemon with a session of its own stays when its starter has gone, from the moment on when it is ready.
pub fn outlives_starter() {
    // SAFETY: plain system calls without pointers.
    if unsafe { libc::getsid(0) == libc::getpid() } && is_awaited() {
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
    }
}

/// Tells whoever watches this daemon's stderr, if anybody does.
pub fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "stria: {text}");
}

/// A process that this program started as a daemon.
#[derive(Debug)]
pub struct Daemon {
    /// The process.
    pub child: Child,
    /// What it said when it was ready: its address.
    pub word: String,
}

impl Daemon {
    /// Starts this program with `arguments`, its messages going to `log`, in the network namespace of a file, and waits until
    /// it is ready.
    ///
    /// # Errors
    /// Its own words when it failed.
    pub fn start(
        arguments: &[OsString],
        log: Option<&Path>,
        session: bool,
        netns: Option<&Path>,
    ) -> Result<Daemon, Failure> {
        let attended = session.then(Interrupts::begin).transpose()?;
        Daemon::spawn(arguments, log, session, netns)?.ready(log, attended)
    }

    /// Waits until it is ready; what would end the starter meanwhile ends it.
    fn ready(mut self, log: Option<&Path>, attended: Option<Interrupts>) -> Result<Daemon, Failure> {
        if let Some(interrupts) = attended
            && let Some(signal) = interrupts.until_it_speaks(&self.child)
        {
            return Err(self.interrupted(&interrupts, signal));
        }
        match self.wait_ready() {
            Ok(()) => Ok(self),
            Err(line) => Err(self.why(&line, log)),
        }
    }

    /// Takes a daemon along that is not ready when its starter is to end.
    fn interrupted(mut self, interrupts: &Interrupts, signal: i32) -> Failure {
        let pid = self.child.id() as libc::pid_t;
        let send = |signal| {
            // SAFETY: plain system call; the process is our child and not yet collected.
            unsafe { libc::kill(pid, signal) };
        };
        send(libc::SIGTERM);
        if !super::mounts::ends_within(pid, QUIET) {
            tell(&format!("process {pid} was told to end, and has begun something: a second signal kills it"));
            if matches!(interrupts.until_end_of(pid, -1), Ended::Signal(_)) {
                send(libc::SIGKILL);
            }
        }
        // It has ended, or does now.
        let _ = self.child.wait();
        Failure::with_errno(format!("signal {signal} came before it was ready: it does not go on"), libc::EINTR)
    }

    /// Starts this program as [`Daemon::start`] does, and does not wait.
    ///
    /// # Errors
    /// There is no process.
    pub fn spawn(
        arguments: &[OsString],
        log: Option<&Path>,
        session: bool,
        netns: Option<&Path>,
    ) -> Result<Daemon, Failure> {
        let stderr = match log {
            // Nobody reads a background daemon's messages; holding the starter's stderr open would keep pipes waiting.
            None if session => Stdio::null(),
            None => Stdio::inherit(),
            Some(path) => open_log(path)?.into(),
        };
        Daemon::spawn_to(arguments, stderr, session, netns)
    }

    /// Starts this program as a session of its own, its messages going to `stderr`, and waits until it is ready.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_session(arguments: &[OsString], stderr: Stdio) -> Result<Daemon, Failure> {
        Daemon::start_writing(arguments, stderr, None)
    }

    /// The same, its messages going to a log that the user named.
    ///
    /// # Errors
    /// As [`Daemon::start`]; the log cannot be opened, or is somebody else's.
    pub fn start_logging(arguments: &[OsString], log: &Path) -> Result<Daemon, Failure> {
        Daemon::start_writing(arguments, open_named_log(log)?.into(), Some(log))
    }

    fn start_writing(arguments: &[OsString], stderr: Stdio, log: Option<&Path>) -> Result<Daemon, Failure> {
        let attended = Some(Interrupts::begin()?);
        Daemon::spawn_to(arguments, stderr, true, None)?.ready(log, attended)
    }

    fn spawn_to(arguments: &[OsString], stderr: Stdio, session: bool, netns: Option<&Path>) -> Result<Daemon, Failure> {
        let program = std::env::current_exe().map_err(|e| Failure::io("finding", Path::new("/proc/self/exe"), &e))?;
        let mut command = Command::new(&program);
        command.args(arguments).env(ANNOUNCE, "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        // What a service manager wants to hear it wants to hear from this process.
        for name in notify::ENVIRONMENT {
            command.env_remove(name);
        }
        if session {
            // Until it is ready it goes with its starter, whatever ends that; Ctrl-C comes to the starter alone.
            // SAFETY: setsid, close_range, prctl and pthread_sigmask are async-signal-safe.
            unsafe {
                command.pre_exec(|| {
                    unblock_signals();
                    leave_descriptors();
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                    if libc::setsid() < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
                })
            };
        } else {
            // Ctrl-C is for the starter alone; and nobody stays when it is killed.
            command.process_group(0);
            // SAFETY: prctl and close_range are async-signal-safe.
            unsafe {
                command.pre_exec(|| {
                    leave_descriptors();
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                    Ok(())
                })
            };
        }
        if let Some(file) = netns {
            let netns = File::open(file).map_err(|e| Failure::io("opening", file, &e))?;
            // SAFETY: setns is a plain system call on a descriptor that the closure owns.
            unsafe {
                command.pre_exec(move || match libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                })
            };
        }
        let child = command.spawn().map_err(|e| Failure::io("starting", &program, &e))?;
        Ok(Daemon { child, word: String::new() })
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// The line that it said instead, for [`Daemon::why`].
    pub fn wait_ready(&mut self) -> Result<(), String> {
        let mut line = String::new();
        if let Some(out) = self.child.stdout.take() {
            // A line that cannot be read is the empty line below.
            let _ = BufReader::new(out).read_line(&mut line);
        }
        match line.trim_end().strip_prefix("ready ") {
            Some(word) => {
                self.word = word.to_string();
                Ok(())
            }
            None => Err(line),
        }
    }

    /// Why it is not ready, from the line that it said instead; ends it.
    pub fn why(mut self, line: &str, log: Option<&Path>) -> Failure {
        // It has failed; what matters is in the line.
        let _ = self.child.kill();
        let status = self.child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
        let told = line.trim_end().strip_prefix("failed ").and_then(|t| t.split_once(' '));
        match told {
            Some((code, text)) => Failure::with_errno(text, code.parse().unwrap_or(1)),
            None => {
                let log = log.map(|l| format!("; see {}", l.display())).unwrap_or_default();
                Failure::from(format!("it ended before it was ready ({status}){log}"))
            }
        }
    }
}

/// What its starter was given by others (a script's lock, a file on another mount) does not stay with a daemon that goes on without it.
fn leave_descriptors() {
    // SAFETY: plain system call; it closes nothing before the program is replaced. Before Linux 5.11 they stay.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

impl Daemon {
    /// Waits for its end, and makes one after a while.
    pub fn end(&mut self) {
        let pid = self.child.id() as libc::pid_t;
        for (signal, patience) in [(0, END_WITHIN), (libc::SIGTERM, END_WITHIN)] {
            if signal != 0 {
                // SAFETY: plain system call; the process is our child and not yet collected.
                unsafe { libc::kill(pid, signal) };
            }
            if super::mounts::ends_within(pid, patience) {
                break;
            }
        }
        // Gone already, in the ordinary case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process has ended.
pub(super) enum Ended {
    /// It has.
    Yes,
    /// A signal came first, for whoever waits.
    Signal(i32),
    /// Not in time.
    NotYet,
}

/// Signals that would end a process: as long as it waits for another one they wait to be read.
pub(super) struct Interrupts {
    fd: OwnedFd,
}

impl Interrupts {
    /// From here on.
    pub(super) fn begin() -> Result<Interrupts, Failure> {
        let failed = |e: std::io::Error| {
            Failure::with_errno(format!("waiting for signals: {e}"), e.raw_os_error().unwrap_or(libc::EIO))
        };
        Ok(Interrupts { fd: stop_signals_fd().map_err(failed)? })
    }
    /// Waits until a daemon says something, or ends. A signal, if one came before.
    fn until_it_speaks(&self, daemon: &Child) -> Option<i32> {
        match self.before(daemon.stdout.as_ref()?.as_raw_fd(), -1) {
            Ended::Signal(signal) => Some(signal),
            Ended::Yes | Ended::NotYet => None,
        }
    }
    /// Waits for the end of a process, so many milliseconds at most (-1: for as long as it takes).
    pub(super) fn until_end_of(&self, pid: i32, milliseconds: i32) -> Ended {
        // SAFETY: plain system call; what it gives is a descriptor of ours, or negative: there is no such process.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
        if fd < 0 {
            return Ended::Yes;
        }
        // SAFETY: as said.
        let process = unsafe { OwnedFd::from_raw_fd(fd) };
        self.before(process.as_raw_fd(), milliseconds)
    }
    fn before(&self, other: i32, milliseconds: i32) -> Ended {
        let polled = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut both = [polled(self.fd.as_raw_fd()), polled(other)];
        // SAFETY: two pollfds on the stack.
        while unsafe { libc::poll(both.as_mut_ptr(), 2, milliseconds) } < 0 {
            if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                return Ended::NotYet;
            }
        }
        if both[0].revents == 0 {
            return if both[1].revents == 0 { Ended::NotYet } else { Ended::Yes };
        }
        // SAFETY: an all-zero record, which the call fills: it is as long as one.
        let told = unsafe {
            let mut told: libc::signalfd_siginfo = std::mem::zeroed();
            libc::read(self.fd.as_raw_fd(), (&raw mut told).cast(), size_of_val(&told));
            told
        };
        Ended::Signal(told.ssi_signo as i32)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        unblock_signals();
    }
}

/// Opens the log of a daemon, in a directory that is this user's alone.
fn open_log(path: &Path) -> Result<File, Failure> {
    let name = path.file_name().and_then(|n| n.to_str());
    match (path.parent(), name) {
        (Some(run), Some(name)) => PrivateDir::open_or_make(run, run)?.append(name),
        _ => Err(Failure::usage(format!("{} is no log file", path.display()))),
    }
}

/// Opens a log that somebody named: in a directory that is there, and may be open to others as `/var/log` is. What somebody else has put
/// there is not written to.
fn open_named_log(path: &Path) -> Result<File, Failure> {
    let failed = |e: std::io::Error| Failure::io("opening the log", path, &e);
    let how = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().append(true).create(true).mode(0o600).custom_flags(how).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    // SAFETY: plain system call without arguments.
    let own = unsafe { libc::geteuid() };
    if !found.is_file() || found.uid() != own || found.nlink() != 1 {
        let why = format!("{}: not a file of user {own} with one name: name another log", path.display());
        return Err(Failure::with_errno(why, libc::EPERM));
    }
    Ok(file)
}

/// Starts this very command again without `--background`, and returns when it is ready.
///
/// # Errors
/// Its own words when it failed.
pub fn in_background(log: Option<&Path>) -> Outcome {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).filter(|a| a != OsStr::new("--background")).collect();
    let daemon = Daemon::start(&arguments, log, true, None)?;
    note!("{} (process {})", daemon.word, daemon.child.id());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_log_may_lie_where_others_read_and_is_never_a_file_that_somebody_else_has_put_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for word in ["one ", "two"] {
            open_named_log(&at("log")).unwrap().write_all(word.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(at("log")).unwrap(), "one two");
        assert_eq!(std::fs::metadata(at("log")).unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink(at("log"), at("link")).unwrap();
        std::fs::write(at("named"), "").unwrap();
        std::fs::hard_link(at("named"), at("twice")).unwrap();
        for refused in ["link", "twice", "nowhere/log"] {
            assert!(open_named_log(&at(refused)).is_err(), "{refused}");
        }
        assert!(!at("nowhere").exists());
        // Whatever the directory is called.
        std::fs::create_dir(at("run")).unwrap();
        std::fs::set_permissions(at("run"), std::fs::Permissions::from_mode(0o755)).unwrap();
        drop(open_named_log(&at("run").join("log")).unwrap());
        assert!(open_log(&at("run").join("up.log")).is_err(), "a cluster's own is its user's alone");
    }
}
