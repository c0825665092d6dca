//! `stria credential`: hosts with credentials of their own, real servers that hold them to it, and the end of a credential while
//! programs write under it.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::{Cluster, can_mount, good, refused, text};

/// Longest time within which a mount has to hear that its credential is over; a hang is none.
const HEARD_WITHIN: Duration = Duration::from_secs(60);

/// A credential of a cluster; its file.
fn issue(cluster: &Cluster, name: &str, more: &[&str]) -> PathBuf {
    let said = good(&[&["credential", "issue", name, "--dir", &cluster.path("c")], more].concat());
    let file = PathBuf::from(said.trim());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    file
}

/// A mount with a key's file.
fn mount_with(cluster: &mut Cluster, name: &str, key: &Path) -> PathBuf {
    cluster.mount(name, &["--set", &format!("cluster.key_file={}", text(key))])
}

/// Why there is no mount with a key's file.
fn not_mounted(cluster: &Cluster, name: &str, key: &Path) -> String {
    let at = cluster.path(name);
    fs::create_dir_all(&at).unwrap();
    let key = format!("cluster.key_file={}", text(key));
    refused(&["mount", "--dir", &cluster.path("c"), &at, "--set", &key]).1
}

fn errno<T>(done: io::Result<T>) -> i32 {
    done.err().map_or(0, |e| e.raw_os_error().unwrap_or(-1))
}

fn credentials(cluster: &Cluster) -> serde_json::Value {
    serde_json::from_str(&good(&["credential", "list", "--json", "--dir", &cluster.path("c")])).unwrap()
}

#[test]
fn a_revoked_credential_ends_while_its_program_writes_and_opens_nothing_after_restarts() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::new(2);
    let all = cluster.mount("all", &[]);
    let file = issue(&cluster, "lab", &[]);
    let lab = mount_with(&mut cluster, "lab", &file);
    fs::write(all.join("kept"), b"kept").unwrap();
    let mut writer = OpenOptions::new().write(true).create(true).truncate(true).open(lab.join("f")).unwrap();
    writer.write_all(&[1; 100_000]).unwrap();
    writer.sync_all().unwrap();

    let said = good(&["credential", "revoke", "lab", "--dir", &cluster.path("c")]);
    assert!(said.contains("lab opens nothing any more"), "{said}");
    let began = Instant::now();
    let failed = loop {
        let done = writer.write_all(&[2; 100_000]).and_then(|()| writer.sync_all());
        if let Err(e) = done {
            break e.raw_os_error().unwrap();
        }
        assert!(began.elapsed() < HEARD_WITHIN, "it goes on writing");
    };
    assert!(matches!(failed, libc::EIO | libc::ESTALE | libc::ENOTCONN), "{failed}");
    assert_ne!(errno(fs::read_dir(&lab).map(|d| d.count())), 0);
    // Others get its locks, and what it had made durable.
    let mut there = Vec::new();
    fs::File::open(all.join("f")).unwrap().read_to_end(&mut there).unwrap();
    assert!(there.len() >= 100_000 && there[..100_000] == [1; 100_000][..]);
    fs::write(all.join("f"), b"another's").unwrap();

    for _ in 0..2 {
        let said = not_mounted(&cluster, "again", &file);
        assert!(said.contains("credential 'lab' was revoked"), "{said}");
        cluster.mds.as_mut().unwrap().kill();
        cluster.oss.iter_mut().for_each(|o| o.as_mut().unwrap().kill());
        cluster.start_mds();
        (0..2).for_each(|i| cluster.start_oss(i));
    }
    assert_eq!(fs::read(all.join("kept")).unwrap(), b"kept");
    let listed = credentials(&cluster);
    assert!(listed["credentials"][1]["revoked"].as_i64().is_some() && listed["credentials"][0]["revoked"].is_null());
    // The mount is gone, whatever was open there.
    drop(writer);
    cluster.stop();
}

#[test]
fn a_credential_that_may_only_read_reads_and_the_key_of_all_clients_can_be_taken_back() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::new(2);
    let all = cluster.mount("all", &[]);
    let bytes = vec![7; 3_000_000];
    fs::write(all.join("f"), &bytes).unwrap();
    let reader = issue(&cluster, "reader", &["--read-only", "--expires", "90d"]);
    let ro = mount_with(&mut cluster, "ro", &reader);
    assert!(fs::read(ro.join("f")).unwrap() == bytes);
    assert_eq!(errno(fs::write(ro.join("g"), b"x")), libc::EROFS);
    assert_eq!(errno(OpenOptions::new().write(true).open(ro.join("f"))), libc::EROFS);
    assert_eq!(errno(fs::remove_file(ro.join("f"))), libc::EROFS);

    let client = PathBuf::from(cluster.path("c")).join("keys/client.key");
    let old = mount_with(&mut cluster, "old", &client);
    assert!(fs::read(old.join("f")).unwrap() == bytes);
    good(&["credential", "revoke", "client.key", "--dir", &cluster.path("c")]);
    let began = Instant::now();
    while fs::metadata(old.join("f")).is_ok() {
        assert!(began.elapsed() < HEARD_WITHIN, "the key of all clients opens the cluster still");
    }
    assert!(not_mounted(&cluster, "again", &client).contains("client.key was revoked"));
    // The administrator's mount and the reader's go on.
    fs::write(all.join("h"), b"h").unwrap();
    assert_eq!(fs::read(ro.join("h")).unwrap(), b"h");
    cluster.stop();
}

#[test]
fn a_subtree_is_all_there_is_and_users_are_those_of_the_servers() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::new(1);
    let all = cluster.mount("all", &[]);
    fs::create_dir_all(all.join("projects/a/deep")).unwrap();
    fs::write(all.join("outside"), b"outside").unwrap();
    fs::write(all.join("projects/a/in"), b"inside").unwrap();
    std::os::unix::fs::chown(all.join("projects/a"), Some(100_000), Some(100_000)).unwrap();
    std::os::unix::fs::chown(all.join("projects/a/in"), Some(101_000), Some(7)).unwrap();
    let more = ["--subtree", "/projects/a", "--uid", "0:100000:65536", "--gid", "0:100000:65536"];
    let file = issue(&cluster, "a", &more);
    let sub = mount_with(&mut cluster, "sub", &file);
    let names: Vec<_> = fs::read_dir(&sub).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let inside = fs::metadata(sub.join("in")).unwrap();
    assert_eq!((inside.uid(), inside.gid()), (1000, 65_534), "a group that the client has no id for");
    assert_eq!(fs::metadata(&sub).unwrap().uid(), 0);
    assert_eq!(errno(fs::read(sub.join("../outside"))), libc::ENOENT);
    // Root of the client is user 100000 at the servers: owner of the directory, and no more than that.
    fs::write(sub.join("made"), vec![5; 200_000]).unwrap();
    let made = fs::metadata(all.join("projects/a/made")).unwrap();
    assert_eq!((made.uid(), made.gid(), made.len()), (100_000, 100_000, 200_000));
    assert!(fs::read(sub.join("made")).unwrap() == [5; 200_000]);
    assert_eq!(errno(std::os::unix::fs::chown(sub.join("made"), Some(70_000), None)), libc::EINVAL);
    let fid = good(&["path2fid", text(&all.join("outside"))]);
    let (_, said) = refused(&["fid2path", text(&sub), fid.trim()]);
    assert!(said.contains("operation not permitted"), "with other ids nobody there is asked for names: {said}");
    cluster.stop();
}

#[test]
fn what_cannot_be_issued_taken_back_or_mounted_is_refused_by_what_it_is() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::new(1);
    let all = cluster.mount("all", &[]);
    fs::write(all.join("file"), b"").unwrap();
    let dir = cluster.path("c");
    for (more, says) in [
        (vec!["a b"], "no name of a credential"),
        (vec!["client.key"], "no name of a credential"),
        (vec!["x", "--subtree", ""], "--subtree '' is the whole file system"),
        (vec!["x", "--subtree", "/"], "--subtree '/' is the whole file system"),
        (vec!["x", "--subtree", "/nowhere"], "subtree '/nowhere': there is no such directory"),
        (vec!["x", "--subtree", "file"], "subtree '/file': it is no directory"),
        (vec!["x", "--uid", "0:1000:10,5:3000:10"], "'0:1000:10' and '5:3000:10' overlap"),
        (vec!["x", "--gid", "1:4294967290:9"], "ids up to 4294967294"),
        (vec!["x", "--expires", "2001-01-31"], "that is over"),
        (vec!["x", "--expires", "2027-02-31"], "--expires 2027-02-31: write how long it lives"),
    ] {
        let said = refused(&[&["credential", "issue", "--dir", &dir], &more[..]].concat()).1;
        assert!(said.contains(says), "{more:?}: {said}");
    }
    let file = issue(&cluster, "x", &[]);
    let (code, said) = refused(&["credential", "issue", "x", "--dir", &dir]);
    assert!(code == libc::EEXIST && said.contains("there is a credential 'x' already"), "{code} {said}");
    let admin = Path::new(&dir).join("keys/admin.key");
    let key = fs::read(&admin).unwrap();
    let (code, said) = refused(&["credential", "issue", "z", "--dir", &dir, "-o", text(&admin)]);
    assert!(code == libc::EEXIST && said.contains("admin.key: it is there already"), "{code} {said}");
    assert_eq!(fs::read(&admin).unwrap(), key, "another key stays");
    let nowhere = cluster.path("nowhere/z");
    assert_eq!(refused(&["credential", "issue", "z", "--dir", &dir, "-o", &nowhere]).0, libc::ENOENT);
    // Neither was issued, or this would be a second one.
    let elsewhere = cluster.path("z.credential");
    good(&["credential", "issue", "z", "--dir", &dir, "-o", &elsewhere]);
    let said = refused(&["credential", "issue", "z", "--dir", &dir, "-o", &cluster.path("z2")]).1;
    assert!(said.contains("there is a credential 'z' already") && !Path::new(&cluster.path("z2")).exists(), "{said}");
    let (code, said) = refused(&["credential", "revoke", "y", "--dir", &dir]);
    assert!(code == libc::ENOENT && said.contains("there is no credential 'y'") && said.contains('x'), "{code} {said}");

    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(not_mounted(&cluster, "m", &file).contains("open to other users (mode 0644)"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut other = Cluster::new(1);
    let foreign = issue(&other, "x", &[]);
    let said = not_mounted(&cluster, "m", &foreign);
    assert!(
        said.contains("credential 'x' is of cluster") && said.contains("take the file that was issued there"),
        "{said}"
    );
    other.stop();
    let short = issue(&cluster, "short", &["--expires", "2s"]);
    let began = Instant::now();
    let said = loop {
        let at = cluster.path("m");
        let key = format!("cluster.key_file={}", text(&short));
        let out = support::stria(&["mount", "--background", "--dir", &dir, &at, "--set", &key]);
        if !out.status.success() {
            break String::from_utf8_lossy(&out.stderr).into_owned();
        }
        drop(support::stria(&["umount", "--lazy", &at]));
        assert!(began.elapsed() < HEARD_WITHIN, "it does not expire");
    };
    assert!(said.contains("credential 'short' has expired"), "{said}");
    cluster.stop();
}
