//! The changelog by its commands, on a real cluster whose servers are killed. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use support::up::Up;
use support::{can_mount, good, own_fsname, refused, text};

/// Kind and what follows `p=[...]` of each record.
fn records(mdt: &str, more: &[&str]) -> Vec<(String, String)> {
    let said = good(&[&["changelog", mdt], more].concat());
    said.lines()
        .map(|line| {
            let kind = line.split(' ').nth(1).unwrap().to_string();
            let name = line.split_once(" p=[").and_then(|(_, rest)| rest.split_once("] ")).map_or("", |(_, name)| name);
            (kind, name.to_string())
        })
        .collect()
}

#[test]
fn a_program_follows_what_happens_and_misses_nothing_when_the_metadata_server_is_killed() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    let fsname = own_fsname();
    up.start(&["--osts", "2", "--processes", "--set", &format!("cluster.fsname={fsname}")]);
    let mdt = &format!("{fsname}-MDT0000")[..];
    fs::write(up.at("unseen"), b"x").unwrap();
    assert_eq!(good(&["changelog_register", "-n", mdt]).trim(), "cl1");
    let said = good(&["changelog_register", text(&up.at(""))]);
    assert!(said.contains("Registered changelog userid 'cl2'"), "{said}");

    let mut follower = Command::new(env!("CARGO_BIN_EXE_stria"))
        .args(["changelog", "--follow", mdt])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut followed = BufReader::new(follower.stdout.take().unwrap()).lines();
    fs::create_dir(up.at("d")).unwrap();
    let first = followed.next().unwrap().unwrap();
    assert!(first.starts_with("1 02MKDIR ") && first.ends_with(" d"), "{first}");
    follower.kill().unwrap();
    follower.wait().unwrap();

    fs::write(up.at("d/a\nb"), b"hello").unwrap();
    fs::hard_link(up.at("d/a\nb"), up.at("link")).unwrap();
    // Its restart replays what was not committed.
    let killed = Command::new("pkill").args(["-9", "-f", &format!("mds.*{}", up.cluster())]).status().unwrap();
    assert!(killed.success(), "the metadata server is a process of its own");
    fs::rename(up.at("link"), up.at("d/moved")).unwrap();
    fs::remove_file(up.at("d/a\nb")).unwrap();
    let found = records(mdt, &[]);
    let names: Vec<(&str, &str)> = found.iter().map(|(k, n)| (k.as_str(), n.as_str())).collect();
    let without_closes: Vec<_> = names.iter().filter(|(k, _)| *k != "11CLOSE").collect();
    assert_eq!(without_closes.len(), 5, "{names:?}");
    assert_eq!((without_closes[1].0, without_closes[1].1), ("01CREAT", "a\\012b"));
    assert_eq!(without_closes[2], &("03HLINK", "link"));
    assert!(without_closes[3].0 == "08RENME" && without_closes[3].1.starts_with("moved s=["), "{names:?}");
    assert_eq!(without_closes[4], &("06UNLNK", "a\\012b"));
    assert_eq!(names.len() - without_closes.len(), 1, "the file was written and closed once: {names:?}");

    let last = found.len().to_string();
    good(&["changelog_clear", mdt, "cl1", &last]);
    assert_eq!(records(mdt, &[]).len(), found.len(), "cl2 has seen nothing");
    assert_eq!(records(mdt, &["2", "3"]).len(), 2);
    good(&["changelog_clear", mdt, "cl2", "0"]);
    assert_eq!(records(mdt, &[]), []);
    for (line, errno, why) in [
        (&["changelog_clear", mdt, "cl1", "999"][..], libc::EINVAL, "record 999 is not written yet"),
        (&["changelog_clear", mdt, "cl9", "1"], libc::ENOENT, "cl9 is not registered: cl1, cl2 are"),
        (&["changelog_deregister", mdt, "cl9"], libc::ENOENT, "cl9 is not registered"),
        (&["changelog", "other-MDT0000"], libc::ENODEV, "no file system 'other' is mounted"),
    ] {
        let (code, said) = refused(line);
        assert!(code == errno && said.contains(why), "{line:?}: {code} {said}");
    }
    let users = good(&["get_param", "-n", "--at", text(&up.at("")), "mdd.*.changelog_users"]);
    assert!(users.contains(&format!("current index: {last}")) && users.contains("cl2"), "{users}");
    lctl_is_understood(&up, mdt);
    assert_eq!(records(mdt, &[]), []);
    up.stop();
    let (code, said) = up.fsck();
    assert!(code == 0 && said.ends_with("\n0 fault(s)\n"), "{said}");
}

/// `lctl --device MDT VERB`, in whatever form.
fn lctl_is_understood(up: &Up, mdt: &str) {
    let lctl = up.dir.path().join("lctl");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_stria"), &lctl).unwrap();
    for words in [
        vec!["--device", mdt, "changelog_deregister", "cl1"],
        vec![&format!("--device={mdt}"), "changelog_deregister", "cl2"],
    ] {
        let out = Command::new(&lctl).args(&words).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && said.contains("Deregistered changelog user 'cl"), "{words:?}: {out:?}");
    }
}
