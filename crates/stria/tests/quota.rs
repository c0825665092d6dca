//! Quotas by their commands, on a real cluster with programs of another user. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use support::up::Up;
use support::{can_mount, good, refused, stria, text};

/// A user whom nothing belongs to.
const UID: &str = "64321";

/// What a shell of that user says.
fn by_user(line: &str) -> Output {
    by(UID, line)
}

/// What a shell of a user says.
fn by(uid: &str, line: &str) -> Output {
    let who = [format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()];
    Command::new("setpriv").args(who).args(["sh", "-c", line]).output().unwrap()
}

/// Kills the servers of a role, which are processes of their own.
fn kill(up: &Up, role: &str) {
    let mut killed = 0;
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let Ok(pid) = process.file_name().to_string_lossy().parse::<i32>() else { continue };
        if line.split('\0').any(|a| a == role) && line.contains(&up.cluster()) {
            // SAFETY: a plain system call; the process is one of this test's cluster.
            killed += usize::from(unsafe { libc::kill(pid, libc::SIGKILL) } == 0);
        }
    }
    assert!(killed > 0, "no process of the role {role}");
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&[&out.stdout[..], &out.stderr[..]].concat()).into_owned()
}

/// The columns of the line of the mount.
fn columns(arguments: &[&str]) -> Vec<String> {
    let said = good(arguments);
    // A long mount point has a line of its own.
    let line = said.lines().find(|l| l.split_whitespace().count() >= 8 && !l.contains("kbytes"));
    let mut words: Vec<String> =
        line.unwrap_or_else(|| panic!("{said}")).split_whitespace().map(String::from).collect();
    words.drain(..words.len() - 8);
    words
}

fn number(column: &str) -> u64 {
    column.trim_end_matches('*').parse().unwrap()
}

fn has_left(mount: &str) -> bool {
    // Objects go when the removal is on stable storage, behind whoever removed them.
    (0..400).any(|_| number(&columns(&["quota", "-u", UID, mount])[0]) == 0)
}

fn refusals(mount: &str) {
    for (line, why) in [
        (
            &["setquota", "-u", UID, "-b", "2M", "-B", "1M", mount][..],
            "the soft block limit, 2048 KiB, is above the hard one, 1024 KiB",
        ),
        (&["setquota", "-u", "no such user", "-b", "1", mount], "'no such user'"),
        (&["setquota", "-u", UID, "-B", "1Q", mount], "'1Q' is no limit of space"),
        (&["setquota", "-u", UID, "-I", "-3", mount], "'-3' is no limit of inodes"),
        (&["setquota", "-u", UID, "-B", "99999999999999999999", mount], "'99999999999999999999'"),
        (&["setquota", "-u", UID, "-B", "1G", "/tmp"], "not on a Stria mount"),
        (&["setquota", "-U", "-b", "2M", "-B", "1M", mount], "the soft block limit, 2048 KiB, is above the hard one"),
        (&["setquota", "-U", "-d", mount], "name it"),
        (&["setquota", "-u", UID, "-d", "-B", "1M", mount], "leave out"),
        (&["quota", "-u", UID, "/tmp"], "not on a Stria mount"),
    ] {
        let (code, said) = refused(line);
        assert!(code != 0 && said.contains(why), "{line:?}: {code} {said}");
    }
    let (tool, ours) = (env!("CARGO_BIN_EXE_stria"), text(std::path::Path::new(mount)));
    let out = by_user(&format!("{tool} quota -u 0 {ours}"));
    assert!(out.status.code() == Some(libc::EPERM), "{}", said(&out));
    let out = by_user(&format!("{tool} setquota -u {UID} -B 0 {ours}"));
    assert!(out.status.code() == Some(libc::EPERM), "{}", said(&out));
    let out = by_user(&format!("{tool} quota {ours}"));
    assert!(out.status.success() && said(&out).contains(&format!("(uid {UID})")), "{}", said(&out));
}

#[test]
fn a_program_of_a_user_is_stopped_at_its_limits_and_the_commands_show_them() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "2", "--processes"]);
    let dir = up.at("d");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let (mount, dir) = (text(&up.at("")).to_string(), text(&dir).to_string());
    let mount = &mount[..];

    good(&["setquota", "-u", UID, "-I", "3", mount]);
    let out = by_user(&format!("cd {dir} && touch a && mkdir b && ln -s x c"));
    assert!(out.status.success(), "{}", said(&out));
    for line in ["touch d", "mkdir d", "ln -s x d", "mkfifo d"] {
        let out = by_user(&format!("cd {dir} && {line}"));
        assert!(!out.status.success() && said(&out).contains("Disk quota exceeded"), "{line}: {}", said(&out));
    }
    assert_eq!(columns(&["quota", "-u", UID, mount])[4..7], ["3*", "0", "3"]);
    fs::write(up.at("d/by root"), b"x").unwrap();
    let warned = stria(&["setquota", "-u", UID, "-I", "1", mount]);
    assert!(
        warned.status.success() && said(&warned).contains("has 3 inodes already, above the limit of 1"),
        "{warned:?}"
    );
    good(&["setquota", "-u", UID, "-I", "0", "-b", "20M", "-B", "40M", mount]);

    let out = by_user(&format!("dd if=/dev/zero of={dir}/big bs=1M count=200"));
    assert!(!out.status.success() && said(&out).contains("Disk quota exceeded"), "{}", said(&out));
    let shown = columns(&["quota", "-u", UID, mount]);
    let kib = number(&shown[0]);
    assert!((36 << 10..=(40 + 2 * 64) << 10).contains(&kib), "{shown:?}");
    assert!(shown[0].ends_with('*') && shown[1..3] == ["20480", "40960"], "{shown:?}");
    assert!(shown[3] == "1w" || shown[3].starts_with("6d23h"), "{shown:?}");
    refusals(mount);
    let each = good(&["quota", "-v", "-u", UID, mount]);
    assert!(each.contains("MDT0000_UUID") && each.contains("OST0000_UUID") && each.contains("OST0001_UUID"), "{each}");

    // The limit outlives the servers.
    let killed = Command::new("pkill").args(["-9", "-f", &format!("(mds|oss).*{}", up.cluster())]).status().unwrap();
    assert!(killed.success(), "the servers are processes of their own");
    let out = by_user(&format!("dd if=/dev/zero of={dir}/more bs=1M count=100"));
    assert!(!out.status.success() && said(&out).contains("Disk quota exceeded"), "{}", said(&out));
    fs::write(up.at("d/by root"), vec![1; 1 << 20]).unwrap();
    let out = by_user(&format!("cd {dir} && rm big more a c && rmdir b"));
    assert!(out.status.success(), "{}", said(&out));
    assert!(has_left(mount), "{:?}", columns(&["quota", "-u", UID, mount]));
    let out = by_user(&format!("dd if=/dev/zero of={dir}/small bs=1M count=8 conv=fsync"));
    assert!(out.status.success(), "{}", said(&out));

    good(&["setquota", "-t", "-g", "-b", "1w2d", "-i", "90", mount]);
    assert_eq!(good(&["quota", "-t", "-g", mount]).trim(), "Block grace time: 1w2d; Inode grace time: 1m30s");
    std::os::unix::fs::chown(up.at("d/small"), Some(12345), Some(12345)).unwrap();
    assert!((0..400).any(|_| number(&columns(&["quota", "-u", "12345", mount])[0]) == 8192));
    assert_eq!(columns(&["quota", "-g", "12345", mount])[4], "1");
    up.stop();
    let (code, said) = up.fsck();
    assert!(code == 0 && said.ends_with("\n0 fault(s)\n"), "{said}");
}

#[test]
fn projects_are_set_by_the_command_inherited_and_limited() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "2", "--processes"]);
    let (mount, dir) = (text(&up.at("")).to_string(), text(&up.at("p")).to_string());
    fs::create_dir_all(up.at("p/sub")).unwrap();
    fs::write(up.at("p/sub/old"), vec![1; 1 << 20]).unwrap();
    fs::set_permissions(up.at("p"), fs::Permissions::from_mode(0o777)).unwrap();
    good(&["project", "-p", "42", "-s", "-r", &dir]);
    assert_eq!(good(&["project", "-d", &dir]).trim(), format!("42 P {dir}"));
    fs::write(up.at("p/new"), b"x").unwrap();
    let listed = good(&["project", "-r", &dir]);
    let wanted = [format!("   42 - {dir}/new"), format!("   42 P {dir}/sub"), format!("   42 - {dir}/sub/old")];
    assert_eq!(listed.lines().collect::<Vec<_>>(), wanted);
    good(&["sync", &mount]);
    let has = || columns(&["quota", "-p", "42", &mount]);
    assert_eq!(has()[4], "4");
    // Objects hear of it behind the command.
    assert!((0..400).any(|_| number(&has()[0]) == 1028), "{:?}", has());
    good(&["setquota", "-p", "42", "-I", "5", &mount]);
    let out = by_user(&format!("cd {dir} && touch one && touch two"));
    assert!(!out.status.success() && said(&out).contains("Disk quota exceeded"), "{}", said(&out));
    good(&["project", "-C", &format!("{dir}/new")]);
    assert_eq!(has()[4], "4");
    assert_eq!(good(&["project", "-c", "-d", &dir]), "");
    let other = format!("{dir}/new - project identifier is not set (inode=0, tree=42)\n");
    assert_eq!(good(&["project", "-c", &dir]), other);
    assert_eq!(good(&["project", "-c", "-r", &dir]), other);
    let bare = good(&["project", "-c", "-r", "-0", "-p", "7", &dir]);
    let names = ["", "/new", "/one", "/sub", "/sub/old"].map(|n| format!("{dir}{n}"));
    let mut found: Vec<&str> = bare.split_terminator('\0').collect();
    found.sort_unstable();
    assert_eq!(found, names);
    up.stop();
    let (code, said) = up.fsck();
    assert!(code == 0 && said.ends_with("\n0 fault(s)\n"), "{said}");
}

/// A user's program writes more than 40 MiB, and is stopped there.
fn is_stopped(mount: &str, dir: &str, uid: &str, limit_kib: u64) {
    let out = by(uid, &format!("dd if=/dev/zero of={dir}/of{uid} bs=1M count=200"));
    assert!(!out.status.success() && said(&out).contains("Disk quota exceeded"), "{uid}: {}", said(&out));
    let kib = number(&columns(&["quota", "-u", uid, mount])[0]);
    assert!(kib <= limit_kib + (128 << 10), "{uid} has {kib} KiB of {limit_kib}");
}

#[test]
fn the_default_stops_whoever_has_no_limits_of_its_own_over_deaths_of_servers() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "2", "--processes"]);
    let dir = up.at("d");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let (mount, dir) = (text(&up.at("")).to_string(), text(&dir).to_string());
    let mount = &mount[..];
    let out = by_user(&format!("dd if=/dev/zero of={dir}/before bs=1M count=8 conv=fsync"));
    assert!(out.status.success(), "{}", said(&out));

    good(&["setquota", "-U", "-b", "20M", "-B", "40M", "-I", "3", mount]);
    let default = good(&["quota", "--default-usr", mount]);
    assert!(default.starts_with("Disk default usr quota:"), "{default}");
    let row: Vec<&str> = default.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(row[row.len() - 6..], ["20480", "40960", "1w", "0", "3", "1w"], "{default}");
    let tool = env!("CARGO_BIN_EXE_stria");
    let out = by_user(&format!("{tool} quota -U {mount}"));
    assert!(out.status.success() && said(&out).contains("40960"), "everybody may see it: {}", said(&out));
    let out = by_user(&format!("{tool} setquota -U -B 0 {mount}"));
    assert!(out.status.code() == Some(libc::EPERM), "{}", said(&out));

    // Who had something, and who comes now.
    is_stopped(mount, &dir, UID, 40 << 10);
    is_stopped(mount, &dir, "64322", 40 << 10);
    let shown = good(&["quota", "-u", UID, mount]);
    let note = |what: &str| format!("uid {UID} is using default {what} quota setting");
    assert!(shown.contains(&note("block")) && shown.contains(&note("file")) && shown.contains('*'), "{shown}");
    let out = by_user(&format!("cd {dir} && touch a && touch b"));
    assert!(!out.status.success() && said(&out).contains("Disk quota exceeded"), "{}", said(&out));
    fs::write(up.at("d/by root"), vec![1; 50 << 20]).unwrap();

    // Limits of its own, which are none, and the default's again.
    good(&["setquota", "-u", UID, "-b", "0", "-B", "0", mount]);
    let shown = good(&["quota", "-u", UID, mount]);
    assert!(!shown.contains(&note("block")) && shown.contains(&note("file")), "{shown}");
    let out = by_user(&format!("dd if=/dev/zero of={dir}/of{UID} bs=1M count=60 conv=fsync"));
    assert!(out.status.success(), "{}", said(&out));
    good(&["setquota", "-u", UID, "--default", mount]);
    let out = by_user(&format!("dd if=/dev/zero of={dir}/before bs=1M count=100 oflag=append conv=notrunc,fsync"));
    assert!(!out.status.success() && said(&out).contains("Disk quota exceeded"), "{}", said(&out));

    // It outlives the servers.
    kill(&up, "mds");
    kill(&up, "oss");
    is_stopped(mount, &dir, "64323", 40 << 10);
    // A change that is answered is known, whoever died amid it.
    for (role, limit, uid) in [("mds", "10M", "64324"), ("oss", "30M", "64325")] {
        let change = std::thread::spawn({
            let (limit, mount) = (limit.to_string(), mount.to_string());
            move || good(&["setquota", "-U", "-b", "0", "-B", &limit, &mount])
        });
        kill(&up, role);
        change.join().unwrap();
        is_stopped(mount, &dir, uid, limit.trim_end_matches('M').parse::<u64>().unwrap() << 10);
    }
    good(&["setquota", "-U", "-b", "0", "-B", "0", "-I", "0", mount]);
    kill(&up, "oss");
    let out = by("64325", &format!("cd {dir} && touch v w x y && dd if=/dev/zero of=z bs=1M count=60 conv=fsync"));
    assert!(out.status.success(), "{}", said(&out));
    let shown = good(&["quota", "-u", "64325", mount]);
    assert!(!shown.contains("using default"), "{shown}");
    up.stop();
    let (code, said) = up.fsck();
    assert!(code == 0 && said.ends_with("\n0 fault(s)\n"), "{said}");
}
