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
    let who = [format!("--reuid={UID}"), format!("--regid={UID}"), "--clear-groups".into()];
    Command::new("setpriv").args(who).args(["sh", "-c", line]).output().unwrap()
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
    up.stop();
    let (code, said) = up.fsck();
    assert!(code == 0 && said.ends_with("\n0 fault(s)\n"), "{said}");
}
