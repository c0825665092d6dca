//! `net.security`: mounts whose connections are encrypted, beside others, over deaths of servers, and what is refused.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use support::{Cluster, Daemon, can_mount, good, refused, text};

const TLS: [&str; 2] = ["--set", "net.security=tls"];

fn synced(path: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// How the connections of a mount to its three servers are protected, once all of them stand: an OST joins when its server has said that
/// it is ready, and a server that was started again is connected to a moment later.
fn security(mount: &Path) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let pages = good(&["get_param", "--at", text(mount), "-n", "{mdc,osc}.*.import"]);
        let lines = pages.lines().filter_map(|line| line.trim().strip_prefix("security: "));
        let levels: Vec<String> = lines.map(String::from).collect();
        if levels.len() == 3 {
            return levels;
        }
        assert!(Instant::now() < until, "a server is not connected to: {pages}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_encrypted_mount_and_one_that_is_not_are_coherent_and_servers_may_die_below_both() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::new(2);
    let (plain, encrypted) = (cluster.mount("plain", &[]), cluster.mount("encrypted", &TLS));
    assert_eq!((security(&plain), security(&encrypted)), (vec!["none".into(); 3], vec!["tls".into(); 3]));
    good(&["setstripe", "-c", "2", text(&plain.join("a"))]);
    let bytes: Vec<u8> = (0..9_000_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
    for (from, to) in [(&plain, &encrypted), (&encrypted, &plain)] {
        synced(&from.join("a"), &bytes);
        assert!(fs::read(to.join("a")).unwrap() == bytes);
        fs::write(from.join("a"), b"short").unwrap();
        assert_eq!(fs::read(to.join("a")).unwrap(), b"short");
    }
    assert_eq!((security(&plain), security(&encrypted)), (vec!["none".into(); 3], vec!["tls".into(); 3]));
    let file = encrypted.join("over deaths");
    for round in 0..3_u8 {
        fs::write(&file, [round; 300_000]).unwrap();
        cluster.mds.as_mut().unwrap().kill();
        cluster.oss[0].as_mut().unwrap().kill();
        cluster.start_mds();
        cluster.start_oss(0);
        synced(&encrypted.join(format!("made {round}")), &[round; 8192]);
        assert!(fs::read(plain.join("over deaths")).unwrap() == [round; 300_000]);
    }
    assert_eq!(security(&encrypted), ["tls"; 3]);
    cluster.stop();
}

#[test]
fn levels_are_explained_and_unknown_ones_refused() {
    let said = good(&["config", "explain", "net.security"]);
    assert!(["auto", "tls", "none"].iter().all(|name| said.contains(name)), "{said}");
    let dir = tempfile::tempdir().unwrap();
    let (code, said) = refused(&["mkfs", "--dir", text(&dir.path().join("c")), "--set", "net.security=integrity"]);
    assert!(code == libc::EINVAL && said.contains("integrity") && said.contains("auto"), "{said}");
}

#[test]
fn commands_that_ask_a_metadata_server_need_not_be_told_that_it_encrypts_everything() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&place.path().join(name)).to_string();
    let (dir, new) = (at("c"), at("new machine"));
    good(&["mkfs", "--dir", &dir, "--osts", "1"]);
    let started = |more: &[&str]| Daemon::start(&[&["mds", "--dir", &dir], more].concat(), &place.path().join("log"));
    for (name, level) in [("a", &TLS[..]), ("b", &[]), ("c", &["--set", "net.security=none"])] {
        let mut mds = started(level);
        let said = good(&["credential", "issue", name, "--dir", &dir]);
        assert!(said.contains(&format!("{name}.credential")), "{said}");
        assert!(good(&["credential", "list", "--dir", &dir]).contains(name));
        mds.kill();
    }
    let mds = started(&TLS);
    let (address, key) = (mds.word.trim_start_matches("tcp:"), format!("{dir}/keys/admin.key"));
    good(&["ost", "add", "--dir", &new, "--mds", address, "--key", &key]);
    let plain = ["credential", "list", "--dir", &dir, "--set", "net.security=none"];
    let (code, said) = refused(&plain);
    assert!(code == libc::EACCES && said.contains("leave net.security=none out"), "{code} {said}");
}
