//! Mount options and mounts by users, through the program and the kernel. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use support::{can_mount, good, refused, text};

/// A cluster of processes with a mount for each set of options; unmounted at the end whatever happened.
struct Mounts {
    dir: tempfile::TempDir,
    at: Vec<PathBuf>,
}

impl Mounts {
    fn new(options: &[&str]) -> Mounts {
        let mut m = Mounts { dir: tempfile::tempdir().unwrap(), at: Vec::new() };
        // Other users must get to the mount points.
        fs::set_permissions(m.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let cluster = m.cluster();
        for (i, o) in options.iter().enumerate() {
            let at = m.dir.path().join(format!("mnt{i}"));
            fs::create_dir(&at).unwrap();
            if i == 0 {
                let line = ["up", "--background", "--processes", "--osts", "1", "-o", o];
                good(&[&line[..], &["--dir", &cluster, "--mount", text(&at)]].concat());
            } else {
                good(&["mount", "--background", "--dir", &cluster, "-o", o, text(&at)]);
            }
            m.at.push(at);
        }
        m
    }
    fn cluster(&self) -> String {
        text(&self.dir.path().join("c")).into()
    }
    fn stop(&mut self) {
        while let Some(at) = self.at.pop() {
            good(&["umount", text(&at)]);
        }
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for at in self.at.iter().rev() {
            // A test that failed may have left anything.
            drop(Command::new("umount").arg("-l").arg(at).output());
        }
    }
}

/// Runs a shell command as a user without any right.
fn as_nobody(command: &str) -> (bool, String) {
    let ids = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let out = Command::new("setpriv").args(ids).args(["sh", "-c", command]).output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_mount_does_what_its_options_say() {
    if !can_mount() {
        return;
    }
    let mut m = Mounts::new(&["", "ro", "noatime", "nodev,noexec,nosuid"]);
    let file = |i: usize, name: &str| m.at[i].join(name);
    fs::write(file(0, "f"), b"content").unwrap();
    assert_eq!(fs::read(file(1, "f")).unwrap(), b"content");
    let refusals = [
        fs::write(file(1, "new"), b"x").err(),
        fs::remove_file(file(1, "f")).err(),
        fs::File::options().write(true).open(file(1, "f")).err(),
        fs::set_permissions(file(1, "f"), fs::Permissions::from_mode(0o600)).err(),
    ];
    assert!(refusals.iter().all(|e| e.as_ref().is_some_and(|e| e.kind() == ErrorKind::ReadOnlyFilesystem)));
    // Access times: one that is older than the last change moves with a read, but not through a mount without them.
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(978_307_200);
    fs::File::options()
        .write(true)
        .open(file(0, "f"))
        .unwrap()
        .set_times(fs::FileTimes::new().set_accessed(long_ago))
        .unwrap();
    let accessed = |i: usize| fs::metadata(file(i, "f")).unwrap().accessed().unwrap();
    assert_eq!(fs::read(file(2, "f")).unwrap(), b"content");
    assert_eq!((accessed(0), accessed(2)), (long_ago, long_ago));
    assert_eq!(fs::read(file(0, "f")).unwrap(), b"content");
    assert!(accessed(0) > long_ago);
    // A program that runs through one mount does not through another, and set-id bits are without effect there.
    // By a program of its own: a child that another test forks here would hold the file open for writing (ETXTBSY).
    assert!(Command::new("cp").arg("/bin/true").arg(file(0, "true")).status().unwrap().success());
    assert!(Command::new(file(0, "true")).status().unwrap().success());
    assert_eq!(Command::new(file(3, "true")).status().unwrap_err().kind(), ErrorKind::PermissionDenied);
    let (ok, said) = as_nobody(&format!("cat {}", text(&file(0, "f"))));
    assert!(ok && said == "content", "others may enter what root mounts: {said}");
    m.stop();
}

#[test]
fn squashed_callers_are_who_the_option_says_to_the_servers() {
    if !can_mount() {
        return;
    }
    let mut m = Mounts::new(&["", "squash_all=65534:65533", "squash_root=1000:1001"]);
    fs::set_permissions(&m.at[0], fs::Permissions::from_mode(0o1777)).unwrap();
    let made_by = |i: usize, name: &str| {
        fs::write(m.at[i].join(name), b"x").unwrap();
        let meta = fs::metadata(m.at[0].join(name)).unwrap();
        (meta.uid(), meta.gid())
    };
    assert_eq!(made_by(0, "plain"), (0, 0));
    assert_eq!(made_by(1, "all"), (65534, 65533));
    assert_eq!(made_by(2, "root"), (1000, 1001));
    let (ok, said) = as_nobody(&format!("echo > {}", text(&m.at[2].join("user"))));
    assert!(ok, "{said}");
    assert_eq!(fs::metadata(m.at[0].join("user")).unwrap().uid(), 65534, "only root is another there");
    // Root's rights are gone with its name.
    fs::set_permissions(m.at[0].join("plain"), fs::Permissions::from_mode(0o600)).unwrap();
    for i in [1, 2] {
        assert_eq!(fs::read(m.at[i].join("plain")).unwrap_err().kind(), ErrorKind::PermissionDenied, "mount {i}");
        assert_eq!(fs::remove_file(m.at[i].join("plain")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(fs::read(m.at[0].join("plain")).unwrap(), b"x");
    m.stop();
}

#[test]
fn options_that_cannot_be_are_refused_with_their_remedy() {
    if !can_mount() {
        return;
    }
    let mut m = Mounts::new(&[""]);
    let (at, cluster) = (m.dir.path().join("other"), m.cluster());
    fs::create_dir(&at).unwrap();
    for (options, remedy) in [
        ("bogus", "unknown mount option 'bogus'"),
        ("squash_all=nobody", "UID:GID"),
        ("squash_root", "needs a value"),
        ("ro=1", "takes no value"),
    ] {
        let (_, said) = refused(&["mount", "--dir", &cluster, "-o", options, text(&at)]);
        assert!(said.contains(remedy), "-o {options}: {said}");
    }
    m.stop();
}

/// A world for a user without rights: a mount name space of its own whose `/dev/fuse` everybody may open.
const BY_A_USER: &str = r#"
set -e
S=$1; D=$2
mount -t tmpfs -o mode=755 tmpfs "$D"
mknod -m 666 "$D/fuse" c 10 229
mount --bind "$D/fuse" /dev/fuse
mkdir "$D/u" "$D/mnt"; chown 65534:65534 "$D/u" "$D/mnt"
U="setpriv --reuid=65534 --regid=65534 --clear-groups"
$U "$S" up --background --dir "$D/u/c" --mount "$D/mnt" --osts 2 >&2
$U sh -c "echo content > $D/mnt/f && mkdir $D/mnt/d && mv $D/mnt/f $D/mnt/d/g"
echo "read: $($U cat "$D/mnt/d/g")"
echo "owner: $($U stat -c '%u:%g' "$D/mnt/d/g")"
echo "policy: $($U "$S" get_param -n --at "$D/mnt" 'llite.*.cache_policy')"
cat "$D/mnt/d/g" 2>/dev/null && echo "root: in" || echo "root: out"
echo "options: $(awk -v at="$D/mnt" '$2 == at { print $3, $4 }' /proc/mounts)"
$U "$S" umount "$D/mnt" >&2
echo "mounts: $(grep -c " $D/mnt " /proc/mounts)" || true
if grep -q '^user_allow_other' /etc/fuse.conf 2>/dev/null; then echo "others: allowed here"; exit 0; fi
said=$($U "$S" up --background --dir "$D/u/c" --mount "$D/mnt" -o allow_other 2>&1) && echo "others: in" || echo "others: $said"
"#;

#[test]
fn a_user_without_rights_mounts_and_unmounts_through_fusermount3() {
    if !can_mount() {
        return;
    }
    let there = |program: &str| {
        Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success()
    };
    let missing: Vec<&str> = ["fusermount3", "setpriv", "unshare"].into_iter().filter(|p| !there(p)).collect();
    if !missing.is_empty() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "needs {missing:?}");
        return println!("not run: needs {missing:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let script = ["-m", "sh", "-c", BY_A_USER, "sh", env!("CARGO_BIN_EXE_stria"), text(dir.path())];
    let out = Command::new("unshare").args(script).output().unwrap();
    let (told, log) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{told}{log}");
    for line in ["read: content", "owner: 65534:65534", "policy: lru", "root: out", "mounts: 0"] {
        assert!(told.lines().any(|l| l == line), "'{line}' is missing:\n{told}{log}");
    }
    assert!(told.contains("options: fuse.stria rw,nosuid,nodev") && told.contains("user_id=65534"), "{told}");
    assert!(told.contains("user_allow_other") || told.contains("allowed here"), "{told}");
}
