//! `stria bench` as processes: against a directory and against a mount, and what happens when something goes wrong.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Cluster, can_mount, good, refused, text};

/// Runs it with `--json`; what it found.
fn measured(arguments: &[&str]) -> Value {
    let line: Vec<&str> = ["bench", "--json"].into_iter().chain(arguments.iter().copied()).collect();
    serde_json::from_str(&good(&line)).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Checks totals, series and moments of every phase.
fn check_totals(report: &Value, phases: usize, agents: usize, bytes: u64) {
    let found = report["phases"].as_array().unwrap();
    assert_eq!(found.len(), phases, "{report}");
    for p in found {
        assert_eq!(p["bytes"], bytes);
        let of_agents = p["agents"].as_array().unwrap();
        assert_eq!(of_agents.len(), agents);
        assert_eq!(of_agents.iter().map(|a| a["bytes"].as_u64().unwrap()).sum::<u64>(), bytes);
        let series = p["series"].as_array().unwrap();
        assert_eq!(series.iter().map(|m| m["sum"].as_u64().unwrap()).sum::<u64>(), bytes);
        assert!(of_agents.iter().all(|a| a["begin_ns"].as_i64() >= Some(-p["clock_error_ns"].as_i64().unwrap())));
        assert_eq!(p["wrong"], 0);
    }
}

#[test]
fn agents_move_every_byte_once_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let file = text(&dir.path().join("f")).to_string();
    let line = ["-o", &file, "-b", "256K", "-t", "4K", "-s", "2", "--agents", "3", "-N", "2", "-R", "-e", "-i", "2"];
    for more in [&["-z"][..], &["-C"], &["-F"], &["-F", "-z", "-C", "--on", "env -u NOTHING"]] {
        let report = measured(&[&line[..], more].concat());
        check_totals(&report, 4, 3, 3 << 20);
        assert_eq!(report["summary"]["read"]["count"], 2);
        assert_eq!(names(dir.path()), Vec::<String>::new(), "{more:?}");
    }
}

#[test]
fn wrong_bytes_are_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = text(&dir.path().join("f")).to_string();
    let shape = ["-o", &file, "-b", "64K", "-t", "4K", "--agents", "2", "-F"];
    measured(&[&shape[..], &["-w", "-k", "--seed", "5"]].concat());
    assert_eq!(names(dir.path()), ["f.00000000", "f.00000001"]);
    check_totals(&measured(&[&shape[..], &["-r", "-R", "--seed", "5"]].concat()), 1, 2, 128 << 10);

    let second = fs::File::options().read(true).write(true).open(dir.path().join("f.00000001")).unwrap();
    let mut byte = [0];
    second.read_exact_at(&mut byte, 5000).unwrap();
    second.write_all_at(&[byte[0] ^ 1], 5000).unwrap();
    let check = |seed| refused(&[&["bench"], &shape[..], &["-r", "-R", "--seed", seed]].concat());
    let (code, said) = check("5");
    assert!(code == libc::EIO && said.contains("1 transfer(s)") && said.contains("rank 1, at 5000"), "{code} {said}");
    let (code, said) = check("6");
    assert!(code == libc::EIO && said.contains("32 transfer(s)"), "{code} {said}");
    assert_eq!(names(dir.path()), ["f.00000000", "f.00000001"], "what it did not make stays");
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = text(&dir.path().join("f")).to_string();
    let wrong = |more: &[&str]| refused(&[&["bench", "-o", &file], more].concat());
    for (more, words) in [
        (&["-t", "3"][..], "(-t)"),
        (&["-b", "100K", "-t", "64K"], "(-b)"),
        (&["-s", "0"], "(-s)"),
        (&["-w", "-R"], "-r"),
        (&["--picture", "x.png"], ".svg or .html"),
        (&["--on", " "], "--on"),
        (&["-b", "8E", "-t", "1G", "-s", "9"], "more than a file holds"),
    ] {
        let (code, said) = wrong(more);
        assert!(code == libc::EINVAL && said.contains(words), "{more:?}: {code} {said}");
    }
    let (code, said) = wrong(&["--on", "/no/such/program"]);
    assert!(code == libc::ENOENT && said.contains("/no/such/program"), "{code} {said}");
    let (code, said) = wrong(&["--on", "false"]);
    assert!(code == libc::ECONNRESET && said.contains("exit code 1"), "{code} {said}");
    let (code, said) = wrong(&["--on", "echo Welcome to"]);
    assert!(code == libc::EPROTO && said.contains("'Welcome to"), "{code} {said}");
    assert_eq!(wrong(&["-r"]).0, libc::ENOENT);
    assert_eq!(refused(&["bench"]).0, libc::EINVAL);
    let (code, said) = refused(&["bench", "-o", text(&dir.path().join("none/f"))]);
    assert!(code == libc::ENOENT && said.contains("none"), "{code} {said}");

    fs::write(&file, b"somebody's").unwrap();
    let (code, said) = wrong(&["--agents", "2"]);
    assert!(code == libc::EEXIST && said.contains("-E"), "{code} {said}");
    let (code, said) = wrong(&["-r"]);
    assert!(code == libc::ENODATA && said.contains("smaller than this workload"), "{code} {said}");
    assert_eq!(fs::read(&file).unwrap(), b"somebody's");
}

#[test]
fn a_full_file_system_ends_all_agents_and_their_files_go() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let small = support::SmallDisk::mount(dir.path(), "4m");
    let file = text(&small.at.join("f")).to_string();
    let line = ["bench", "-o", &file, "-b", "8M", "-t", "64K", "-F", "--agents", "2"];
    let (code, said) = refused(&line);
    assert!(code == libc::ENOSPC && said.contains("this workload writes 16M"), "{code} {said}");
    // Agents elsewhere find it out while they write.
    let (code, said) = refused(&[&line[..], &["--on", "env -u NOTHING"]].concat());
    assert!(code == libc::ENOSPC && said.contains("agent ") && said.contains("rank "), "{code} {said}");
    assert_eq!(names(&small.at), Vec::<String>::new());
}

#[test]
fn a_directory_without_permission_is_named() {
    // SAFETY: plain system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("not run: needs root, to give its rights up");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
    let file = text(&dir.path().join("f")).to_string();
    // The program itself may lie where only root comes.
    let program = tempfile::Builder::new().permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755)).tempdir();
    let program = program.unwrap();
    let copy = text(&program.path().join("stria")).to_string();
    // By another process: a program that a child of this one still has open for writing cannot be run (ETXTBSY).
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_stria")).arg(&copy).status().unwrap().success());
    let on = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let (code, said) = refused(&["bench", "-o", &file, "--on", on, "--program", &copy]);
    assert!(code == libc::EACCES && said.contains(&file), "{code} {said}");
}

/// A benchmark that goes on for ever.
struct Endless {
    dir: tempfile::TempDir,
    child: Child,
}

impl Endless {
    fn start(more: &[&str]) -> Endless {
        let dir = tempfile::tempdir().unwrap();
        let file = text(&dir.path().join("f")).to_string();
        let line = ["bench", "-o", &file, "-b", "4M", "-t", "64K", "-F", "--agents", "3", "-i", "10000"];
        let child = Command::new(env!("CARGO_BIN_EXE_stria"))
            .args(line)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let endless = Endless { dir, child };
        let last = endless.dir.path().join("f.00000002");
        wait_until("all agents write", || fs::metadata(&last).is_ok_and(|m| m.len() > 0));
        endless
    }
    /// Its agents.
    fn agents(&self) -> Vec<i32> {
        let parent = |pid: i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
        };
        let pids = fs::read_dir("/proc").unwrap().filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
        let mut agents: Vec<i32> = pids.filter(|pid| parent(*pid) == Some(self.child.id())).collect();
        agents.sort_unstable();
        agents
    }
    fn signal(pid: i32, signal: i32) {
        // SAFETY: plain system call on a process of this test.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }
    /// Its exit code, its words and the files that are left.
    fn end(&mut self) -> (i32, String, Vec<String>) {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let code = self.child.wait().unwrap().code().unwrap();
        (code, said, names(self.dir.path()))
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        // Ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_agent_that_is_killed_ends_the_benchmark_and_its_files_go_too() {
    let mut endless = Endless::start(&[]);
    let place = endless.dir.path().join("f.00000002");
    // Between two repetitions there is none.
    let of_the_first_repetition = std::iter::repeat_with(|| fs::File::open(&place)).find_map(Result::ok).unwrap();
    wait_until("the second repetition", || of_the_first_repetition.metadata().unwrap().nlink() == 0);
    Endless::signal(endless.agents()[1], libc::SIGKILL);
    let mut measured = endless.child.stdout.take().unwrap();
    let (code, said, left) = endless.end();
    assert!(code == libc::ECONNRESET && said.contains("was killed by SIGKILL"), "{code} {said}");
    assert_eq!(left, Vec::<String>::new());
    let mut table = String::new();
    measured.read_to_string(&mut table).unwrap();
    assert!(table.contains("write 0") && table.contains("read 0"), "what was measured before counts: {table}");
}

#[test]
fn an_agent_that_stands_still_is_given_up() {
    let mut endless = Endless::start(&["--silence", "15"]);
    Endless::signal(endless.agents()[2], libc::SIGSTOP);
    let (code, said, left) = endless.end();
    assert!(code == libc::ETIMEDOUT && said.contains("says nothing for 15s"), "{code} {said}");
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn an_interrupted_benchmark_removes_its_files_unless_it_is_to_keep_them() {
    for (more, left) in [(&[][..], 0), (&["-k"], 3)] {
        let mut endless = Endless::start(more);
        Endless::signal(endless.child.id() as i32, libc::SIGINT);
        let (code, said, names) = endless.end();
        assert!(code == libc::EINTR && said.contains("ended by SIGINT") && names.len() == left, "{said} {names:?}");
    }
}

#[test]
fn agents_whose_control_point_is_killed_clean_up_and_go() {
    let mut endless = Endless::start(&[]);
    let agents = endless.agents();
    endless.child.kill().unwrap();
    endless.child.wait().unwrap();
    wait_until("the agents are gone", || agents.iter().all(|pid| !Path::new(&format!("/proc/{pid}/fd")).exists()));
    assert_eq!(names(endless.dir.path()), Vec::<String>::new());
}

#[test]
fn agents_on_two_mounts_read_what_the_other_wrote() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::new(2);
    let (one, two) = (cluster.mount("one", &[]), cluster.mount("two", &[]));
    good(&["setstripe", "-c", "-1", "-S", "64K", text(&one)]);
    let file = text(&one.join("f")).to_string();
    let picture = text(&cluster.dir.path().join("p.html")).to_string();
    let line = ["-o", &file, "-b", "1M", "-t", "64K", "-s", "2", "--agents", "2", "-N", "2", "-R", "-C"];
    for more in [&["-z", "--picture", &picture][..], &["-F", "-e"]] {
        check_totals(&measured(&[&line[..], more].concat()), 2, 2, 8 << 20);
        assert_eq!(names(&one), Vec::<String>::new());
    }
    let page = fs::read_to_string(&picture).unwrap();
    assert!(page.contains("<svg") && page.matches("<polyline").count() == 6 && !page.contains("src="), "{page}");
    measured(&[&line[..], &["-r", "-w", "-k"]].concat());
    let through_the_other = text(&two.join("f")).to_string();
    let read = measured(&[&["-o", &through_the_other, "-r"], &line[2..]].concat());
    check_totals(&read, 1, 2, 8 << 20);
    cluster.stop();
}
