//! What administrators do to a running cluster, by the program: settings for good, ids and paths, evictions, repairs.
//! Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use support::{Cluster, can_mount, good, refused, stria, text};

fn get(at: &Path, pattern: &str) -> String {
    good(&["get_param", "-n", "--at", text(at), pattern])
}

/// Asks a mount's daemon as the tools do, without a process of its own: that would close, and so write out, what this
/// one has open.
fn ask(at: &Path, question: &serde_json::Value) -> serde_json::Value {
    use std::os::unix::fs::MetadataExt;
    let minor = libc::minor(fs::metadata(at).unwrap().dev());
    let mut stream = std::os::unix::net::UnixStream::connect(format!("/run/stria/mount-{minor}")).unwrap();
    stream.write_all(format!("{question}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stream), &mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

/// Processes that are made close, between fork and exec, what this one has open, which writes it out: a test that has
/// unwritten data open makes none, and holds this for writing so that no other does.
static PROCESSES: std::sync::RwLock<()> = std::sync::RwLock::new(());

/// Waits until a parameter has a value: what is told in the background arrives, and servers that were away come back.
fn until(at: &Path, pattern: &str, wanted: &str) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let out = stria(&["get_param", "-n", "--at", text(at), pattern]);
        let is = String::from_utf8_lossy(&out.stdout).into_owned();
        if is == wanted {
            return;
        }
        assert!(std::time::Instant::now() < end, "{pattern} is '{is}', not '{wanted}'");
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
}

#[test]
fn settings_made_for_good_reach_running_and_later_clients_and_servers_until_they_are_removed() {
    if !can_mount() {
        return;
    }
    let _processes = PROCESSES.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut c = Cluster::new(2);
    let (one, two) = (c.mount("one", &[]), c.mount("two", &[]));
    let at = text(&one);
    for setting in ["osc.*.max_rpcs_in_flight=16", "ost.OSS.ost_io.nrs_policies=obrr", "lod.*.qos_full_permille=7"] {
        assert!(good(&["set_param", "-P", "--at", at, setting]).contains(setting.split_once('=').unwrap().1));
    }
    let kept = good(&["get_param", "-P", "--at", at]);
    assert!(kept.contains("osc.*.max_rpcs_in_flight=16\n") && kept.contains("nrs_policies=obrr"), "{kept}");
    until(&two, "osc.*.max_rpcs_in_flight", "16\n16\n");
    let (code, said) = refused(&["set_param", "-P", "--at", at, "osc.*.max_rpcs_in_flight=0"]);
    assert!(code == libc::EINVAL && said.contains("1 to 256 RPCs"), "{said}");
    let (code, said) = refused(&["set_param", "-P", "--at", at, "no.such.thing=1"]);
    assert!(code == libc::ENOENT && said.contains("no.such.thing"), "{said}");
    let (_, said) = refused(&["set_param", "--at", at, "ost.OSS.ost_io.nrs_policies=speedy"]);
    assert!(said.contains("speedy") && said.contains("fifo"), "the server's own words: {said}");
    // Servers and clients that start later.
    c.oss[1].take();
    c.start_oss(1);
    c.mds.take();
    c.start_mds();
    until(&one, "ost.OSS.ost_io.nrs_policies", "obrr\n");
    until(&one, "lod.*.qos_full_permille", "7\n");
    let three = c.mount("three", &[]);
    until(&three, "osc.*.max_rpcs_in_flight", "16\n16\n");
    // And no longer.
    good(&["set_param", "-P", "-d", "--at", at, "osc.*.max_rpcs_in_flight"]);
    assert!(!good(&["get_param", "-P", "--at", at]).contains("max_rpcs"));
    let (code, said) = refused(&["set_param", "-P", "-d", "--at", at, "osc.*.max_rpcs_in_flight"]);
    assert!(code == libc::ENOENT && said.contains("no permanent setting"), "{said}");
    let four = c.mount("four", &[]);
    until(&four, "osc.*.max_rpcs_in_flight", "8\n8\n");
    c.stop();
}

#[test]
fn paths_have_fids_and_fids_have_paths() {
    if !can_mount() {
        return;
    }
    let _processes = PROCESSES.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut c = Cluster::new(1);
    let at = c.mount("m", &[]);
    fs::create_dir(at.join("d")).unwrap();
    fs::write(at.join("d/f"), b"x").unwrap();
    fs::hard_link(at.join("d/f"), at.join("second")).unwrap();
    let fid = good(&["path2fid", text(&at.join("d/f"))]);
    assert!(fid.starts_with("[0x20000") && fid.ends_with(":0x0]\n"), "{fid}");
    assert_eq!(good(&["path2fid", text(&at.join("second"))]), fid);
    let mut paths: Vec<String> = good(&["fid2path", text(&at), fid.trim()]).lines().map(ToString::to_string).collect();
    paths.sort();
    assert_eq!(paths, [text(&at.join("d/f")), text(&at.join("second"))]);
    assert_eq!(good(&["fid2path", text(&at), "[0x200000007:0x1:0x0]"]), format!("{}/\n", at.display()));
    let (code, said) = refused(&["fid2path", text(&at), "[0x200000401:0xffff:0x0]"]);
    assert!(code == libc::ENOENT && said.contains("[0x200000401:0xffff:0x0]"), "{code} {said}");
    let (code, said) = refused(&["fid2path", text(&at), "12"]);
    assert!(code == libc::EINVAL && said.contains("'12' is not a FID"), "{said}");
    let (code, said) = refused(&["path2fid", "/proc/self"]);
    assert!(code == libc::ENOTTY && said.contains("not on a Stria mount"), "{said}");
    // Another user may not look into directories by their ids.
    let line = format!("{} fid2path {} '{}'", env!("CARGO_BIN_EXE_stria"), at.display(), fid.trim());
    let out = Command::new("setpriv").args(["--reuid=65534", "--clear-groups", "sh", "-c", &line]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && (said.contains("only root") || said.contains("denied")), "{said}");
    c.stop();
}

#[test]
fn an_evicted_client_reports_what_it_lost_and_programs_get_the_error_once() {
    if !can_mount() {
        return;
    }
    let _processes = PROCESSES.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut c = Cluster::new(1);
    let at = c.mount("m", &["--set", "client.dirty_age_s=600"]);
    let path = at.join("unwritten");
    let status = ask(&at, &json!({"do": "status"}));
    let client = status["client"].as_str().unwrap();
    let (_, said) = refused(&["set_param", "--at", text(&at), "obdfilter.*.evict_client=77"]);
    assert!(said.contains("'77' is no client here"), "{said}");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(b"on stable storage").unwrap();
    file.sync_all().unwrap();
    assert_eq!(get(&at, "llite.*.lost_files").trim(), "");
    let fid = good(&["path2fid", text(&path)]).trim().to_string();
    file.write_all(&vec![7; 200_000]).unwrap();
    let evicted = ask(&at, &json!({"do": "set_param", "pattern": "obdfilter.*.evict_client", "value": client}));
    assert!(evicted["error"].is_null(), "{evicted}");
    // The next thing that needs the server learns of it.
    let lost = file.sync_all().unwrap_err();
    assert_eq!(lost.raw_os_error(), Some(libc::EIO));
    file.sync_all().unwrap();
    let listed = get(&at, "llite.*.lost_files");
    assert!(listed.starts_with(&format!("{fid} ")), "{listed}");
    let bytes: u64 = listed.trim().rsplit_once(' ').unwrap().1.parse().unwrap();
    assert!((200_000..=300_000).contains(&bytes), "{listed}");
    let log = support::in_log(&c.dir.path().join("m.log"), "unwritten data of 1 files are lost");
    assert!(log.contains("unwritten data of 1 files are lost") && log.contains(&fid), "{log}");
    good(&["set_param", "--at", text(&at), "llite.*.lost_files=clear"]);
    assert_eq!(get(&at, "llite.*.lost_files").trim(), "");
    // It works again, and what was on stable storage still is; the file is as long as what can be read of it.
    let left = fs::read(&path).unwrap();
    assert!(left.starts_with(b"on stable storage"));
    assert_eq!(fs::metadata(&path).unwrap().len(), left.len() as u64);
    assert_eq!(left.len(), b"on stable storage".len(), "what was lost is not in the file");
    fs::write(at.join("after"), b"fine").unwrap();
    drop(file);
    c.stop();
}

#[test]
fn repair_corrects_counts_and_moves_what_nobody_owns_to_lost_and_found() {
    if !can_mount() {
        return;
    }
    let _processes = PROCESSES.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    fs::write(at.join("kept"), vec![1; 300_000]).unwrap();
    c.stop();
    // A copy of the metadata from before the next files: their objects belong to nobody then.
    let (mdt, old) = (c.path("c/mdt0"), c.path("old"));
    assert!(Command::new("cp").args(["-a", &mdt, &old]).status().unwrap().success());
    c.start_mds();
    (0..2).for_each(|i| c.start_oss(i));
    let at = c.mount("m", &[]);
    let contents: Vec<Vec<u8>> = (0..4u8).map(|i| vec![i + 10; 100_000 + usize::from(i)]).collect();
    for (i, content) in contents.iter().enumerate() {
        fs::write(at.join(format!("later{i}")), content).unwrap();
    }
    c.stop();
    fs::remove_dir_all(&mdt).unwrap();
    fs::rename(&old, &mdt).unwrap();
    let dir = c.path("c");
    let found = stria(&["fsck", "--dir", &dir]);
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    // Newer than the metadata that was put back: recovery would take them for creates that were not committed.
    let doomed = |said: &str| {
        let numbers =
            said.split("recovery will remove ").skip(1).filter_map(|t| t.split(' ').next()?.parse::<u64>().ok());
        numbers.sum::<u64>() == 4 && said.ends_with("0 fault(s)\n")
    };
    assert!(found.status.code() == Some(0) && doomed(&said), "{said}");
    assert!(doomed(&good(&["fsck", "--dir", &dir])), "without --repair nothing changes");
    let repaired = stria(&["fsck", "--repair", "--data", "--dir", &dir]);
    let said = String::from_utf8_lossy(&repaired.stdout).into_owned();
    assert!(repaired.status.code() == Some(1), "{said} {}", String::from_utf8_lossy(&repaired.stderr));
    assert!(said.contains("repaired: object ") && said.ends_with("0 fault(s)\n"), "{said}");
    assert!(good(&["fsck", "--data", "--dir", &dir]).ends_with("0 fault(s)\n"));
    // The data are there, under names that tell where they were, also after servers and clients have been there.
    c.start_mds();
    (0..2).for_each(|i| c.start_oss(i));
    let at = c.mount("m", &[]);
    let mut back: Vec<Vec<u8>> =
        fs::read_dir(at.join("lost+found")).unwrap().map(|e| fs::read(e.unwrap().path()).unwrap()).collect();
    back.sort();
    assert!(back == contents, "{} files", back.len());
    assert_eq!(fs::read(at.join("kept")).unwrap(), vec![1; 300_000]);
    fs::write(at.join("new"), vec![9; 200_000]).unwrap();
    fs::remove_file(
        at.join("lost+found").join(fs::read_dir(at.join("lost+found")).unwrap().next().unwrap().unwrap().file_name()),
    )
    .unwrap();
    c.stop();
    assert!(good(&["fsck", "--data", "--dir", &dir]).ends_with("0 fault(s)\n"));
}

#[test]
fn a_mount_without_its_daemon_keeps_commands_from_no_other() {
    if !can_mount() {
        return;
    }
    let _processes = PROCESSES.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut c = Cluster::new(1);
    let (dead, lives) = (c.mount("dead", &[]), c.mount("lives", &[]));
    c.mounts[0].1.kill();
    fs::write(lives.join("f"), [1; 100_000]).unwrap();
    // Mounts of other tests come and go meanwhile.
    let said = |line: &[&str]| {
        let out = stria(line);
        assert!(!out.status.success(), "{line:?}");
        (String::from_utf8_lossy(&out.stdout).into_owned(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    for line in [&["df"][..], &["getname"]] {
        let (shown, told) = said(line);
        assert!(shown.contains(text(&lives)) && told.contains(text(&dead)), "{line:?}: {shown} {told}");
    }
    assert!(said(&["osts"]).0.contains("OST0000_UUID ACTIVE") && said(&["check", "all"]).0.contains(": active."));
    let (_, told) = said(&["sync"]);
    assert!(told.contains(text(&dead)) && !told.contains(text(&lives)), "{told}");
    let dirty = good(&["get_param", "-n", "--at", text(&lives), "osc.*.cur_dirty_bytes"]);
    assert_eq!(dirty.trim(), "0");
    good(&["df", text(&lives)]);
    assert_eq!(refused(&["df", text(&lives.join("nowhere"))]).0, libc::ENOENT);
    c.mounts.iter_mut().for_each(|(_, mount)| mount.kill());
}
