//! Jobs: what programs do is counted by the names that clients give them, at every server. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::path::Path;
use std::process::Command;

use support::{Cluster, can_mount, good, refused, text};

fn get(at: &Path, pattern: &str) -> String {
    good(&["get_param", "-n", "--at", text(at), pattern])
}
fn set(at: &Path, setting: &str) {
    good(&["set_param", "--at", text(at), setting]);
}
/// Waits until a parameter shows a text: names follow what they name a moment later.
fn until(at: &Path, pattern: &str, wanted: &str) -> String {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let is = get(at, pattern);
        if is.contains(wanted) {
            return is;
        }
        assert!(std::time::Instant::now() < end, "{pattern} has no '{wanted}': {is}");
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}
/// A program writes a file of `kib` KiB and syncs it.
fn write(at: &Path, name: &str, kib: u32, job: &str) {
    let line = [format!("of={}", text(&at.join(name))), format!("count={kib}")];
    let dd = Command::new("dd").args(["if=/dev/zero", "bs=1k", "conv=fsync"]).args(line).env("MY_JOB", job).output();
    assert!(dd.unwrap().status.success());
}

#[test]
fn jobs_have_names_at_every_server_as_the_rule_says() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let at = c.mount("m", &[]);
    write(&at, "by-name", 100, "");
    let ost = until(&at, "obdfilter.*.job_stats", "- job_id:          dd.0\n");
    let lines: Vec<&str> = ost.split("dd.0\n").nth(1).unwrap().lines().collect();
    assert!(lines[0].starts_with("  snapshot_time:   ") && lines[1].starts_with("  read_bytes:"), "{ost}");
    // A page that was written out while it was filled came twice.
    let sum = lines[2].split("sum: ").nth(1).unwrap().trim().split(',').next().unwrap().parse::<u64>().unwrap();
    assert!(lines[2].starts_with("  write_bytes:") && sum >= 102_400, "{ost}");
    let mdt = until(&at, "mdt.*.job_stats", "- job_id:          dd.0\n");
    let of_dd = mdt.split("dd.0\n").nth(1).unwrap().split("- job_id").next().unwrap();
    assert!(of_dd.contains("  open:            { samples:           1, unit: usecs"), "{mdt}");
    // A variable of the caller's environment; without it, the process's name.
    set(&at, "jobid_var=MY_JOB");
    assert_eq!(get(&at, "jobid_var"), "MY_JOB\n");
    write(&at, "by-variable", 8, "sim 17");
    until(&at, "obdfilter.*.job_stats", "- job_id:          sim_17\n");
    set(&at, "jobid_name=%j:%e");
    write(&at, "by-both", 8, "sim18");
    until(&at, "obdfilter.*.job_stats", "- job_id:          sim18:dd\n");
    until(&at, "mdt.*.job_stats", "- job_id:          sim18:dd\n");
    set(&at, "jobid_var=nodelocal");
    set(&at, "jobid_name=user%u");
    write(&at, "by-user", 8, "sim19");
    until(&at, "obdfilter.*.job_stats", "- job_id:          user0\n");
    // A server that starts again is told the names anew.
    c.oss[0].take();
    c.start_oss(0);
    write(&at, "after", 8, "");
    until(&at, "obdfilter.*.job_stats", "- job_id:          user0\n");
    // Rules of the scheduler know jobs by the same names.
    set(&at, "ost.OSS.ost_io.nrs_policies=tbf");
    set(&at, "ost.OSS.ost_io.nrs_tbf_rule=start held jobid={user0} rate=10000");
    write(&at, "held", 8, "");
    set(&at, "jobid_var=disable");
    for statistics in ["obdfilter.*.job_stats", "mdt.*.job_stats"] {
        set(&at, &format!("{statistics}=clear"));
    }
    write(&at, "nameless", 8, "sim20");
    assert_eq!(get(&at, "obdfilter.*.job_stats"), "job_stats:\n");
    for (setting, why) in [
        ("jobid_var=two words", "environment variable"),
        ("jobid_name=%q", "write a format"),
        ("jobid_name=", "write a format"),
        ("obdfilter.*.job_stats=5", "write 0 or clear"),
    ] {
        let (code, said) = refused(&["set_param", "--at", text(&at), setting]);
        assert!(code == libc::EINVAL && said.contains(why), "{setting}: {said}");
    }
    c.stop();
}

#[test]
fn a_program_that_begins_while_files_of_the_mount_are_open_holds_nobody_up() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let at = c.mount("m", &[]);
    // New programs inherit it and close it within execve(2), while nobody can look at their environment.
    let held = std::fs::File::create(at.join("held")).unwrap();
    set(&at, "jobid_var=MY_JOB");
    let (told, heard) = std::sync::mpsc::channel();
    let begins = std::thread::spawn(move || {
        for _ in 0..10 {
            assert!(Command::new("true").status().unwrap().success());
        }
        told.send(()).unwrap();
    });
    if heard.recv_timeout(std::time::Duration::from_secs(60)).is_err() {
        // Without it nothing ends here.
        c.mounts[0].1.kill();
        panic!("a program that closes a file while it begins waits for the mount, and the mount for it");
    }
    begins.join().unwrap();
    drop(held);
    write(&at, "after", 8, "sim21");
    until(&at, "obdfilter.*.job_stats", "- job_id:          sim21\n");
    c.stop();
}

#[test]
fn runs_of_calls_are_shown_by_process_when_asked_for() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let at = c.mount("m", &["--set", "mount.kernel_cache=never"]);
    assert!(get(&at, "llite.*.offset_stats").starts_with("disabled"));
    set(&at, "llite.*.offset_stats=1");
    write(&at, "f", 8, "");
    let shown = get(&at, "llite.*.offset_stats");
    let row = shown.lines().nth(2).unwrap().split_whitespace().collect::<Vec<_>>();
    assert!(row[0] == "W" && row[2..] == ["0", "8192", "1024", "1024", "0"], "{shown}");
    assert!(row[1].parse::<u32>().unwrap() > 1, "{shown}");
    set(&at, "llite.*.offset_stats=clear");
    assert_eq!(get(&at, "llite.*.offset_stats").lines().count(), 2);
    set(&at, "llite.*.offset_stats=0");
    assert!(get(&at, "llite.*.offset_stats").starts_with("disabled"));
    c.stop();
}
