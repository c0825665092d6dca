//! `lfs migrate` on a running cluster: programs of two mounts work on the files, servers and the command are killed. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use support::{Cluster, can_mount, good, refused, text};

const BLOCK: usize = 4096;
const BLOCKS: usize = 1500;

fn osts_of(path: &Path) -> Vec<String> {
    let shown = good(&["getstripe", "-y", text(path)]);
    shown.lines().filter_map(|l| l.split_once("l_ost_idx: ")?.1.split_once(',')).map(|(n, _)| n.into()).collect()
}

fn block(number: usize, turn: u64) -> Vec<u8> {
    let mut bytes = vec![turn as u8; BLOCK];
    bytes[..8].copy_from_slice(&(number as u64).to_ne_bytes());
    bytes[8..16].copy_from_slice(&turn.to_ne_bytes());
    bytes
}

#[test]
fn files_are_laid_out_anew_and_lists_of_names_are_read() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(3);
    let (a, b) = (c.mount("a", &[]), c.mount("b", &[]));
    fs::create_dir(a.join("d")).unwrap();
    good(&["setstripe", "-i", "0", text(&a.join("d"))]);
    let data: Vec<u8> = (0..2_500_000u32).map(|i| (i / 3) as u8).collect();
    for name in ["one", "two words"] {
        fs::write(a.join("d").join(name), &data).unwrap();
    }
    let (one, there) = (a.join("d/one"), b.join("d/one"));
    let before = fs::metadata(&one).unwrap();
    let open = fs::File::open(&there).unwrap();
    let mut bytes = vec![0; data.len()];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(good(&["migrate", "-v", "-c", "2", "-S", "64K", "-i", "1", text(&one)]), format!("{}\n", one.display()));
    assert_eq!(osts_of(&there), ["1", "2"]);
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == data && fs::read(&there).unwrap() == data);
    let after = fs::metadata(&one).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((after.ino(), after.len(), after.mtime_nsec()), (before.ino(), before.len(), before.mtime_nsec()));
    // What find says is taken as it comes.
    let listed = good(&["find", text(&a), "--ost", "0", "-type", "f", "-print0"]);
    assert_eq!(listed.matches('\0').count(), 1, "{listed:?}");
    let mut child = Command::new(env!("CARGO_BIN_EXE_stria"))
        .args(["migrate", "-0", "-o", "2"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(listed.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(osts_of(&a.join("d/two words")), ["2"]);
    assert!(good(&["find", text(&b), "--ost", "0", "-type", "f"]).is_empty());
    assert!(fs::read(b.join("d/two words")).unwrap() == data);
    for (line, errno, why) in [
        (vec!["migrate", "-o", "7", text(&one)], libc::EINVAL, "no OST with index 7"),
        (vec!["migrate", "-c", "2", text(&a)], libc::EINVAL, "is not a file"),
        (vec!["migrate", "/etc/passwd"], libc::ENOTTY, "not on a Stria mount"),
        (vec!["migrate", "-c", "2001", text(&one)], libc::EINVAL, "stripe count 2001"),
        (vec!["migrate", text(&a.join("none"))], libc::ENOENT, "none"),
    ] {
        let (code, said) = refused(&line);
        assert!(code == errno && said.contains(why), "{line:?}: {code} {said}");
    }
    drop(open);
    c.stop();
    good(&["fsck", "--dir", &c.path("c")]);
}

/// Writes into blocks that nobody else writes to, and reads them again, until it is over. What was written into each last.
fn write(at: &Path, first: usize, over: &AtomicBool) -> Vec<u64> {
    let file = fs::OpenOptions::new().read(true).write(true).open(at.join("f")).unwrap();
    let mut last = vec![0u64; BLOCKS];
    let mut turn = 1;
    while !over.load(Ordering::Relaxed) {
        let number = (turn as usize * 577 % (BLOCKS / 2)) * 2 + first;
        file.write_all_at(&block(number, turn), (number * BLOCK) as u64).unwrap();
        last[number] = turn;
        let mut found = vec![0; BLOCK];
        let look = (turn as usize * 331 % (BLOCKS / 2)) * 2 + first;
        file.read_exact_at(&mut found, (look * BLOCK) as u64).unwrap();
        assert!(found == block(look, last[look]), "block {look} after {turn}");
        if turn % 200 == 0 {
            file.sync_all().unwrap();
        }
        turn += 1;
    }
    last
}

#[test]
fn no_write_is_lost_beside_migrations_while_servers_and_commands_are_killed() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(3);
    let (a, b) = (c.mount("a", &[]), c.mount("b", &[]));
    let path = a.join("f");
    good(&["setstripe", "-i", "0", text(&path)]);
    let blocks: Vec<u8> = (0..BLOCKS).flat_map(|n| block(n, 0)).collect();
    fs::write(&path, &blocks).unwrap();
    let over = AtomicBool::new(false);
    let lasts = std::thread::scope(|s| {
        let writers = [(&a, 0), (&b, 1)].map(|(at, first)| {
            s.spawn({
                let over = &over;
                move || write(at, first, over)
            })
        });
        for round in 0..9 {
            let wish = format!("{},{}", round % 3, (round + 1) % 3);
            let mut line = vec!["migrate", "-S", "64K", "-o", &wish];
            let slow = ["-W", "2"];
            if round % 4 == 1 {
                line.extend(slow);
            }
            let mut moving =
                Command::new(env!("CARGO_BIN_EXE_stria")).args(&line).arg(&path).stderr(Stdio::null()).spawn().unwrap();
            match round % 4 {
                // Killed while it copies.
                1 => {
                    std::thread::park_timeout(std::time::Duration::from_millis(700));
                    moving.kill().unwrap();
                }
                2 => {
                    std::thread::park_timeout(std::time::Duration::from_millis(30 * round));
                    c.mds.as_mut().unwrap().kill();
                    c.start_mds();
                }
                3 => {
                    std::thread::park_timeout(std::time::Duration::from_millis(30 * round));
                    c.oss[0].as_mut().unwrap().kill();
                    c.start_oss(0);
                }
                _ => {}
            }
            moving.wait().unwrap();
        }
        good(&["migrate", "-c", "1", "-i", "2", text(&path)]);
        over.store(true, Ordering::Relaxed);
        writers.map(|w| w.join().unwrap())
    });
    assert_eq!(osts_of(&path), ["2"]);
    for at in [&a, &b] {
        let bytes = fs::read(at.join("f")).unwrap();
        for (n, found) in bytes.chunks(BLOCK).enumerate() {
            assert!(found == block(n, lasts[n % 2][n]), "block {n}");
        }
    }
    c.stop();
    let said = good(&["fsck", "--dir", &c.path("c")]);
    assert!(!said.contains("orphan"), "{said}");
}
