//! The program's refusals as users meet them: what stderr says, and the exit code.
#![allow(clippy::unwrap_used)]
use std::path::Path;
use std::process::{Command, Output};

fn stria(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stria")).args(arguments).output().unwrap()
}

/// Runs it, and gives exit code and stderr.
fn refusal(arguments: &[&str]) -> (i32, String) {
    let out = stria(arguments);
    assert!(!out.status.success(), "{arguments:?} succeeded: {}", String::from_utf8_lossy(&out.stdout));
    (out.status.code().unwrap(), String::from_utf8_lossy(&out.stderr).into_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn mount_points_that_cannot_be_are_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, file) = (dir.path().join("c"), dir.path().join("file"));
    std::fs::write(&file, b"x").unwrap();
    let up = |at: &Path| refusal(&["up", "--dir", text(&cluster), "--mount", text(at)]);
    let (code, said) = up(&dir.path().join("none"));
    assert!(code == libc::ENOENT && said.contains("does not exist") && said.contains("mkdir -p"), "{code} {said}");
    let (code, said) = up(&file);
    assert!(code == libc::ENOTDIR && said.contains("is not a directory"), "{code} {said}");
    assert!(!cluster.exists(), "nothing was made");
}

#[test]
fn configuration_that_is_wrong_is_refused_with_line_value_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("s.toml");
    let check = |content: &str| {
        std::fs::write(&file, content).unwrap();
        refusal(&["config", "check", text(&file)])
    };
    let (code, said) = check("[client]\nmax_dirty = 64\n");
    assert_eq!(code, libc::EINVAL);
    assert!(
        said.contains("s.toml: line 2: unknown key 'client.max_dirty': did you mean 'client.max_dirty_mb'?"),
        "{said}"
    );
    let (_, said) = check("nrs.policy = \"speedy\"\n");
    assert!(said.contains("nrs.policy = speedy") && said.contains("fifo"), "{said}");
    let (_, said) = refusal(&["mkfs", "--dir", text(&dir.path().join("c")), "--set", "net.listen=0.0.0.0:7988"]);
    assert!(said.contains("cluster.key_file"), "{said}");
    std::fs::write(&file, "client.cache_bytes = \"1G\"\n").unwrap();
    let fine = stria(&["config", "explain", "client.cache_bytes", "--config", text(&file)]);
    assert!(String::from_utf8_lossy(&fine.stdout).starts_with("client.cache_bytes = \"1G\" (default \"256M\")"));
}

#[test]
fn stores_of_others_newer_ones_and_none_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["a", "b"] {
        let made = stria(&["mkfs", "--dir", text(&at(name)), "--osts", "1"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let again = stria(&["mkfs", "--dir", text(&at("a")), "--osts", "2"]);
    assert!(again.status.success() && at("a").join("ost1").is_dir(), "a target is added, the others stay");
    let (code, said) = refusal(&["mkfs", "--dir", text(&at("a")), "--set", "cluster.fsname=other"]);
    assert!(code == libc::EINVAL && said.contains("holds file system 'stria', not 'other'"), "{said}");

    std::fs::remove_dir_all(at("a").join("ost0")).unwrap();
    std::fs::rename(at("b").join("ost0"), at("a").join("ost0")).unwrap();
    let (_, said) = refusal(&["oss", "--dir", text(&at("a")), "--ost", "0", "--mds", "127.0.0.1:1"]);
    assert!(said.contains("belongs to cluster"), "{said}");

    let file = at("b").join("cluster.toml");
    let newer = std::fs::read_to_string(&file).unwrap().replace("format = 1", "format = 9");
    std::fs::write(&file, newer).unwrap();
    let (_, said) = refusal(&["fsck", "--dir", text(&at("b"))]);
    assert!(said.contains("format 9 is newer than this program's 1: use a newer program"), "{said}");
    let (code, said) = refusal(&["mds", "--dir", text(&at("c"))]);
    assert!(code == libc::ENOENT && said.contains("stria mkfs"), "{said}");
}

#[test]
fn a_new_cluster_is_clean_and_a_lost_store_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("c");
    assert!(stria(&["mkfs", "--dir", text(&at), "--osts", "2"]).status.success());
    let clean = stria(&["fsck", "--dir", text(&at), "--data"]);
    let said = String::from_utf8_lossy(&clean.stdout).into_owned();
    assert!(clean.status.success() && said.contains("MDT: 1 inodes") && said.ends_with("0 fault(s)\n"), "{said}");
    std::fs::remove_dir_all(at.join("ost1")).unwrap();
    std::fs::create_dir(at.join("ost1")).unwrap();
    let (_, said) = refusal(&["fsck", "--dir", text(&at)]);
    assert!(said.contains("ost1 holds no object store"), "{said}");
}

#[test]
fn two_daemons_on_one_port_are_refused_by_address() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("c");
    assert!(stria(&["mkfs", "--dir", text(&at), "--osts", "1"]).status.success());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (_, said) = refusal(&["mds", "--dir", text(&at), "--listen", &address]);
    assert!(said.contains(&address) && said.to_lowercase().contains("in use"), "{said}");
}

#[test]
fn borrowed_names_take_their_verbs() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("lfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_stria"), &link).unwrap();
    let run = |arguments: &[&str]| Command::new(&link).args(arguments).output().unwrap();
    let out = run(&["getstripe", text(dir.path())]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(libc::ENOTTY) && said.contains("not on a Stria mount"), "{said}");
    let out = run(&["setstripe", "-S", "63K", text(&dir.path().join("f"))]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(libc::EINVAL) && said.contains("stripe size 64512 is too small"), "{said}");
    let out = run(&["migrate", "x"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("'migrate' is not there yet"));
    let found = run(&["find", text(dir.path()), "-name", "lfs"]);
    assert_eq!(String::from_utf8_lossy(&found.stdout), format!("{}\n", link.display()));
}
