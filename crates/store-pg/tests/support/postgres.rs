//! A PostgreSQL server of a test's own: made, started, killed and started again.
#![allow(clippy::unwrap_used, dead_code, reason = "helpers of tests, each of which uses some")]
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;

/// The newest one that the distribution has.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let number = |p: &Path| p.file_name().and_then(|n| n.to_str()?.parse::<u32>().ok()).unwrap_or(0);
    versions
        .map(|v| v.path())
        .filter(|v| v.join("bin/initdb").exists())
        .max_by_key(|v| number(v))
        .map(|v| v.join("bin"))
}

/// The user that it runs as, for it refuses root: (uid, gid).
fn user() -> Option<(u32, u32)> {
    // SAFETY: a plain system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let all = fs::read_to_string("/etc/passwd").unwrap();
    let of = |name: &str| {
        let line = all.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Some(of("postgres").or_else(|| of("nobody")).expect("a user postgres or nobody"))
}

/// Whether there is one to test with. Where everything must be tested a missing one is a failure.
pub fn is_there() -> bool {
    let there = programs().is_some();
    assert!(there || std::env::var_os("CI").is_none(), "PostgreSQL is missing: apt-get install postgresql");
    if !there {
        eprintln!("NOT RUN: PostgreSQL is not installed: apt-get install postgresql");
    }
    there
}

/// A server.
pub struct Postgres {
    bin: PathBuf,
    dir: tempfile::TempDir,
    running: Option<Child>,
    /// `-c` of each.
    options: Vec<String>,
}

impl Postgres {
    /// A new one, which runs.
    pub fn start() -> Postgres {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        if let Some((uid, gid)) = user() {
            chown(dir.path(), Some(uid), Some(gid)).unwrap();
        }
        let mut server = Postgres { bin: programs().expect("is_there"), dir, running: None, options: Vec::new() };
        let made = server
            .command("initdb")
            .args(["-U", "stria", "-A", "trust", "--locale=C", "-E", "UTF8", "--no-sync", "-D"])
            .arg(server.data())
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        server.start_again();
        server
    }
    /// Another one that has, in a directory of its own, what this one had when it was stopped for that; both run then.
    pub fn copy(&mut self) -> Postgres {
        self.kill(libc::SIGINT);
        let dir = tempfile::tempdir().unwrap();
        let copied = Command::new("cp").arg("-a").arg(self.dir.path().join(".")).arg(dir.path()).status().unwrap();
        assert!(copied.success());
        let (bin, options) = (self.bin.clone(), self.options.clone());
        let mut other = Postgres { bin, dir, running: None, options };
        self.start_again();
        other.start_again();
        other
    }
    /// What clients are let in by, in the format of `pg_hba.conf`, and settings: from the next start on.
    pub fn set(&mut self, clients: &str, options: &[String]) {
        fs::write(self.data().join("pg_hba.conf"), clients).unwrap();
        self.options = options.to_vec();
    }
    /// A file in its directory that it alone reads.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some((uid, gid)) = user() {
            chown(&path, Some(uid), Some(gid)).unwrap();
        }
        path
    }
    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.current_dir(self.dir.path()).env("LC_ALL", "C").env_remove("PGPASSFILE");
        if let Some((uid, gid)) = user() {
            command.gid(gid).uid(uid);
        }
        command
    }
    /// Where its socket is.
    pub fn socket_dir(&self) -> &Path {
        self.dir.path()
    }
    /// How a store is named that is in one of its databases.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://stria@/{database}?host={}", self.dir.path().display())
    }

    /// Starts it after it was killed. What is left of the one before may need a moment to end.
    pub fn start_again(&mut self) {
        assert!(self.running.is_none());
        loop {
            let mut child = self
                .command("postgres")
                .arg("-D")
                .arg(self.data())
                .args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=40", "-k"])
                .arg(self.dir.path())
                .args(self.options.iter().flat_map(|option| ["-c", option]))
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let (ready, is_ready) = mpsc::channel();
            let lines = BufReader::new(child.stderr.take().unwrap()).lines();
            std::thread::spawn(move || {
                for line in lines.map_while(Result::ok) {
                    if line.contains("ready to accept connections") {
                        let _ = ready.send(());
                    }
                }
            });
            // The other end is dropped when it ends.
            if is_ready.recv().is_ok() {
                self.running = Some(child);
                return;
            }
            child.wait().unwrap();
        }
    }
    /// Ends it by a signal: SIGKILL (its children end by themselves), SIGQUIT (at once, without a checkpoint).
    pub fn kill(&mut self, signal: i32) {
        let mut child = self.running.take().expect("it runs");
        // SAFETY: a process that was started here and was not waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        child.wait().unwrap();
    }

    /// It stands still, with all its processes, as long as what is returned is there.
    pub fn stand_still(&self) -> Still {
        let main = self.running.as_ref().expect("it runs").id() as i32;
        // SAFETY: processes that were started here, and are not waited for as long as the first one runs.
        let stop = |pid: i32| unsafe { libc::kill(pid, libc::SIGSTOP) };
        stop(main);
        let children = fs::read_to_string(format!("/proc/{main}/task/{main}/children")).unwrap();
        let children: Vec<i32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        children.iter().for_each(|pid| assert_eq!(stop(*pid), 0));
        Still([vec![main], children].concat())
    }

    /// Makes a database.
    pub fn database(&self, name: &str) -> String {
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(name)
    }
    fn psql(&self, database: &str) -> Command {
        let mut psql = self.command("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "stria", "-d", database, "-h"]);
        psql.arg(self.dir.path());
        psql
    }
    /// What statements answer.
    pub fn sql(&self, database: &str, text: &str) -> String {
        let out = self.psql(database).arg("-c").arg(text).output().unwrap();
        assert!(out.status.success(), "{text}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_string()
    }
    /// A session that stays.
    pub fn session(&self, database: &str) -> Session {
        let mut child = self.psql(database).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, lines) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Session { child, stdin: Some(stdin), lines: Box::new(lines) }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.kill(libc::SIGQUIT);
        }
    }
}

/// See [`Postgres::stand_still`].
pub struct Still(Vec<i32>);

impl Drop for Still {
    fn drop(&mut self) {
        for pid in &self.0 {
            // SAFETY: see there.
            unsafe { libc::kill(*pid, libc::SIGCONT) };
        }
    }
}

/// See [`Postgres::session`].
pub struct Session {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Box<dyn BufRead>,
}

impl Session {
    /// Has statements carried out.
    pub fn run(&mut self, text: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{text}; SELECT 'done';").unwrap();
        let mut line = String::new();
        while line.trim() != "done" {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "{text}");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}
