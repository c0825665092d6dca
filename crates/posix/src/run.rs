//! Runs cases, each in a process of its own with a time limit: a hang, a signal or a changed identity stays there.
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::sys::{R, SKIP};

/// One expectation.
#[derive(Clone, Copy)]
pub struct Case {
    /// The call it is about.
    pub group: &'static str,
    /// The claim.
    pub name: &'static str,
    /// Runs it in an empty directory.
    pub run: fn(&Path) -> R,
}

/// What became of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As expected.
    Pass,
    /// Cannot run here, and why.
    Skip(String),
    /// Not as expected.
    Fail(String),
    /// Did not end in time; `true`: not even by SIGKILL.
    Hung(bool),
}

/// A child process that runs part of a case.
pub struct Child {
    /// Its process id.
    pub pid: i32,
    report: std::fs::File,
}

/// Forks; the child runs `f` and reports what it returned.
///
/// # Errors
/// The process table or the descriptor table is full.
pub fn spawn(f: impl FnOnce() -> R) -> Result<Child, String> {
    let mut ends = [0i32; 2];
    // SAFETY: the array has room for both ends.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(format!("pipe: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: the child runs ordinary code; the C library's allocator is usable after a fork.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(format!("fork: {}", std::io::Error::last_os_error()));
    }
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        let text = match result {
            Ok(Ok(())) => "ok".to_string(),
            Ok(Err(e)) => e,
            Err(_) => "panicked".to_string(),
        };
        // SAFETY: the buffer lives through the call; `_exit` runs nothing of the parent's.
        unsafe {
            libc::write(ends[1], text.as_ptr().cast(), text.len());
            libc::_exit(0);
        }
    }
    // SAFETY: both ends are ours alone.
    unsafe {
        libc::close(ends[1]);
        Ok(Child { pid, report: OwnedFd::from_raw_fd(ends[0]).into() })
    }
}

impl Child {
    /// Waits for its end.
    ///
    /// # Errors
    /// What it reported, or that it died.
    pub fn join(mut self) -> R {
        let mut text = String::new();
        let read = self.report.read_to_string(&mut text);
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(self.pid, &mut status, 0) };
        match (read, text.as_str()) {
            (Ok(_), "ok") => Ok(()),
            (Ok(_), "") => Err(format!("the child ended with status {status:#x}")),
            _ => Err(text),
        }
    }
    /// Kills it and waits for its end.
    pub fn kill(self) {
        let mut status = 0;
        // SAFETY: our own child.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, &mut status, 0);
        }
    }
    /// Whether it ends within this time; it is not waited for otherwise.
    pub fn ended_within(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // SAFETY: one descriptor, ours.
            let ready = unsafe {
                use std::os::fd::AsRawFd;
                let mut p = libc::pollfd { fd: self.report.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                libc::poll(&mut p, 1, i32::try_from(left.as_millis()).unwrap_or(i32::MAX))
            };
            if ready > 0 {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }
}

/// Runs `f` in a child as another user, with the directory as its working directory.
///
/// # Errors
/// What it reported. A skip when the caller is not root.
pub fn as_user(dir: &Path, uid: u32, gid: u32, groups: &[u32], f: impl FnOnce(&Path) -> R) -> R {
    as_capable_user(dir, (uid, gid, groups), 0, f)
}

/// The same with these capabilities (a bit each, as numbered in linux/capability.h), which the user does not have by itself.
///
/// # Errors
/// As [`as_user`].
pub fn as_capable_user(
    dir: &Path,
    (uid, gid, groups): (u32, u32, &[u32]),
    capabilities: u32,
    f: impl FnOnce(&Path) -> R,
) -> R {
    if !crate::sys::is_root() {
        return Err(format!("{SKIP}needs root"));
    }
    spawn(|| {
        std::env::set_current_dir(dir).map_err(|e| format!("chdir: {e}"))?;
        // Version 3 of the header; effective, permitted and inheritable ones, low words first.
        let (header, sets) = ([0x2008_0522u32, 0], [capabilities, capabilities, 0, 0, 0, 0]);
        // SAFETY: plain calls; the list and the sets live through them.
        let ok = unsafe {
            libc::prctl(libc::PR_SET_KEEPCAPS, i32::from(capabilities != 0)) == 0
                && libc::setgroups(groups.len(), groups.as_ptr()) == 0
                && libc::setresgid(gid, gid, gid) == 0
                && libc::setresuid(uid, uid, uid) == 0
                && (capabilities == 0 || libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) == 0)
        };
        if !ok {
            return Err(format!("cannot become uid {uid}: {}", std::io::Error::last_os_error()));
        }
        f(Path::new("."))
    })?
    .join()
}

/// Runs `f` in a child.
///
/// # Errors
/// What it reported.
pub fn in_child(f: impl FnOnce() -> R) -> R {
    spawn(f)?.join()
}

/// Runs one case in a fresh directory below `base`, for at most `limit`.
pub fn run_case(case: &Case, base: &Path, limit: Duration) -> Outcome {
    let dir = base.join(format!("{}.{}", case.group, &case.name[..case.name.len().min(100)]));
    let child = spawn(|| {
        // SAFETY: a group of its own, so that all of it can be ended.
        unsafe { libc::setpgid(0, 0) };
        crate::sys::umask(0o022);
        std::fs::create_dir(&dir).map_err(|e| format!("mkdir of the case's directory: {e}"))?;
        let result = (case.run)(&dir);
        let cleaned = std::fs::remove_dir_all(&dir);
        result?;
        cleaned.map_err(|e| format!("removing the case's directory: {e}"))
    });
    let child = match child {
        Ok(child) => child,
        Err(e) => return Outcome::Fail(e),
    };
    if !child.ended_within(limit) {
        // SAFETY: the group of our own child.
        unsafe { libc::kill(-child.pid, libc::SIGKILL) };
        if !child.ended_within(Duration::from_secs(3)) {
            return Outcome::Hung(true);
        }
        let _ = child.join();
        return Outcome::Hung(false);
    }
    let pid = child.pid;
    let result = child.join();
    // SAFETY: the group of our own child; what is left of it has no purpose any more.
    unsafe { libc::kill(-pid, libc::SIGKILL) };
    match result {
        Ok(()) => Outcome::Pass,
        Err(e) => match e.strip_prefix(SKIP) {
            Some(why) => Outcome::Skip(why.into()),
            None => Outcome::Fail(e),
        },
    }
}

/// What became of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Cases as expected.
    pub passed: usize,
    /// Cases that could not run here.
    pub skipped: usize,
    /// Cases not as expected: name and reason.
    pub failed: Vec<(String, String)>,
}

/// Runs the cases whose `group/name` contains `filter`, reporting a line each.
pub fn run_all(base: &Path, filter: &str, limit: Duration, report: &mut dyn FnMut(&str)) -> Summary {
    let mut summary = Summary::default();
    for case in crate::cases::all() {
        let name = format!("{}/{}", case.group, case.name);
        if !name.contains(filter) {
            continue;
        }
        let begin = Instant::now();
        let outcome = run_case(case, base, limit);
        let took = begin.elapsed();
        let slow =
            if took > Duration::from_secs(1) { format!(" ({:.1} s)", took.as_secs_f64()) } else { String::new() };
        match outcome {
            Outcome::Pass => {
                summary.passed += 1;
                report(&format!("ok    {name}{slow}"));
            }
            Outcome::Skip(why) => {
                summary.skipped += 1;
                report(&format!("skip  {name}: {why}"));
            }
            Outcome::Fail(why) => {
                report(&format!("FAIL  {name}{slow}: {why}"));
                summary.failed.push((name, why));
            }
            Outcome::Hung(stuck) => {
                let why = if stuck { "hangs, and cannot be killed" } else { "hangs" };
                report(&format!("FAIL  {name}: {why}"));
                summary.failed.push((name, why.into()));
            }
        }
    }
    summary
}
