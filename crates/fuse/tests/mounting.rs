//! Mounting and unmounting: every obstacle is named, everything that ends a mount ends serving, nothing stays behind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod support;

use fuse::mount::{MountError, MountOptions, abort, check_mount_point, mounts, unmount};
use fuse::{SessionConfig, TransportChoice};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use support::{Mounted, can_mount, transports};

fn is_mount(at: &Path) -> bool {
    mounts().iter().any(|m| m.at == at)
}

#[test]
fn obstacles_at_the_mount_point_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let check = |p: &Path| check_mount_point(p, &MountOptions::default());
    assert!(matches!(check(&dir.path().join("no")), Err(MountError::Missing(_))));
    assert!(matches!(check(&dir.path().join("no/where")), Err(MountError::Missing(_))));
    assert!(matches!(check(&file), Err(MountError::NotADirectory(_))));
    assert_eq!(check(dir.path()).unwrap(), dir.path().canonicalize().unwrap());
    match check(Path::new("/proc")) {
        Err(e @ MountError::Busy { .. }) => assert!(e.to_string().contains("proc file system"), "{e}"),
        other => panic!("{other:?}"),
    }
    let over = MountOptions { over_mount: true, ..Default::default() };
    assert!(check_mount_point(Path::new("/proc"), &over).is_ok());
}

#[test]
fn a_mount_over_a_mount_is_refused_and_options_are_in_the_table() {
    for choice in transports() {
        let m = Mounted::with(choice, 1, SessionConfig::default(), "ro,noexec,fsname=scratch,allow_other");
        assert!(matches!(check_mount_point(m.dir.path(), &MountOptions::default()), Err(MountError::Busy { .. })));
        let entry = mounts().into_iter().find(|e| e.at == m.dir.path()).unwrap();
        assert_eq!((entry.kind.as_str(), entry.source.as_str()), ("fuse.stria", "scratch"));
        assert_eq!(entry.minor, m.mount.connection().unwrap().number());
        assert_eq!(fs::write(m.path("f"), b"").unwrap_err().raw_os_error(), Some(libc::EROFS));
        m.finish();
    }
}

#[test]
fn unmounting_by_others_ends_serving_well() {
    for choice in transports() {
        let m = Mounted::new(choice, 2);
        unmount(m.dir.path(), false).unwrap();
        assert!(!m.mount.is_mounted());
        m.finish().into_iter().for_each(|ended| ended.unwrap());
    }
}

#[test]
fn a_mount_in_use_is_busy_and_can_be_detached() {
    for choice in transports() {
        let mut m = Mounted::new(choice, 1);
        let file = fs::File::create(m.path("f")).unwrap();
        let refused = m.mount.unmount(false).unwrap_err();
        assert!(matches!(refused, MountError::StillBusy { .. }), "{refused}");
        m.mount.unmount(true).unwrap();
        assert!(!is_mount(m.dir.path()));
        drop(file);
        m.finish().into_iter().for_each(|ended| ended.unwrap());
    }
}

#[test]
fn aborting_frees_every_caller_and_ends_serving() {
    for choice in transports() {
        let m = Mounted::new(choice, 2);
        fs::write(m.path("f"), b"x").unwrap();
        abort(m.mount.connection().unwrap().number()).unwrap();
        let errno = fs::read_dir(m.dir.path()).map(drop).unwrap_err().raw_os_error();
        assert!(matches!(errno, Some(libc::ENOTCONN | libc::ECONNABORTED)), "{errno:?}");
        m.finish().into_iter().for_each(|ended| ended.unwrap());
    }
}

/// A mount that is gone gave its number back, and the next one gets it.
/// Mounts at once that a test holds whose numbers are not the one it waits for.
const HELD_MAX: usize = 32;

#[test]
fn what_cleans_up_after_a_mount_leaves_a_later_one_of_the_same_number_alone() {
    for choice in transports() {
        let dir = tempfile::tempdir().unwrap();
        let options = MountOptions::default();
        let (session, mut earlier) =
            fuse::mount::mount(dir.path(), &options, SessionConfig::default(), TransportChoice::Dev).unwrap();
        earlier.supervise(false).unwrap();
        let number = earlier.connection().unwrap().number();
        unmount(dir.path(), false).unwrap();
        drop(session);
        // Other tests may take the number first. One below it that came free meanwhile is given first, and again if it is given back: it is
        // held until the number itself is given.
        let (deadline, mut held) = (Instant::now() + Duration::from_secs(60), Vec::new());
        let mut next = Some(dir);
        let later = loop {
            let dir = next.take().unwrap_or_else(|| tempfile::tempdir().unwrap());
            let m = Mounted::at(dir, choice, 1, SessionConfig::default(), "noatime");
            if m.mount.connection().unwrap().number() == number {
                break m;
            }
            assert!(Instant::now() < deadline, "{number} does not come again");
            held.push(m);
            if held.len() == HELD_MAX {
                held.drain(..).flat_map(Mounted::finish).for_each(|ended| ended.unwrap());
            }
        };
        held.into_iter().flat_map(Mounted::finish).for_each(|ended| ended.unwrap());
        assert!(!earlier.is_mounted() && later.mount.is_mounted());
        assert!(!earlier.connection().unwrap().unmount(earlier.path(), true).unwrap());
        earlier.abort().unwrap();
        // Its supervisor acts.
        drop(earlier);
        fs::write(later.path("f"), b"x").unwrap();
        later.finish().into_iter().for_each(|ended| ended.unwrap());
    }
}

#[test]
fn a_dead_mount_is_told_and_cleaned_when_asked() {
    for choice in transports() {
        let mut m = Mounted::new(choice, 1);
        abort(m.mount.connection().unwrap().number()).unwrap();
        let stale = check_mount_point(m.dir.path(), &MountOptions::default()).unwrap_err();
        assert!(matches!(stale, MountError::Stale(_)) && stale.to_string().contains("umount -l"), "{stale}");
        let clean = MountOptions { clean_stale: true, ..Default::default() };
        check_mount_point(m.dir.path(), &clean).unwrap();
        assert!(!is_mount(m.dir.path()));
        m.mount.unmount(false).unwrap();
        m.finish();
    }
}

#[test]
fn a_refused_session_leaves_no_mount() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = SessionConfig { max_write_bytes: 5000, ..Default::default() };
    let refused = fuse::mount::mount(dir.path(), &MountOptions::default(), config, TransportChoice::Dev).err().unwrap();
    assert!(refused.to_string().contains("max_write is 5000"), "{refused}");
    assert!(!is_mount(dir.path()));
}

#[test]
fn negotiated_values_hold_for_every_transport() {
    for choice in transports() {
        let config = SessionConfig { max_write_bytes: 65536, posix_acl: false, ..Default::default() };
        let m = Mounted::with(choice, 1, config, "");
        let n = m.session.negotiated();
        assert!(!n.has(fuse::abi::init::WRITEBACK_CACHE) && n.has(fuse::abi::init::PARALLEL_DIROPS));
        assert_eq!(n.max_write_bytes, 65536);
        let data: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        fs::write(m.path("f"), &data).unwrap();
        assert!(fs::read(m.path("f")).unwrap() == data);
        m.finish();
    }
}

#[test]
fn a_panicking_handler_ends_serving_with_an_error_and_hangs_nobody() {
    for choice in transports() {
        let m = Mounted::new(choice, 1);
        // The test file system panics on a poisoned state.
        let state = m.state.clone();
        let _ = std::thread::spawn(move || {
            let _guard = state.lock().unwrap();
            panic!("poison");
        })
        .join();
        let (at, connection) = (m.path("f"), m.mount.connection().unwrap().number());
        let caller = std::thread::spawn(move || fs::metadata(at).is_err());
        let ended = {
            let mut m = m;
            let ended = m.join_first();
            abort(connection).unwrap();
            m.mount.unmount(true).unwrap();
            ended
        };
        assert!(matches!(ended, Err(fuse::SessionError::HandlerPanicked)), "{ended:?}");
        assert!(caller.join().unwrap());
    }
}

#[test]
fn the_probe_tells_what_is_there() {
    let probe = fuse::probe::probe();
    let text = probe.to_string();
    assert!(text.contains("/dev/fuse") && text.contains("io_uring"), "{text}");
    if can_mount() {
        assert_eq!(probe.dev, None);
    }
}
