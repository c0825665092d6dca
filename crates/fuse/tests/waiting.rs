//! Requests that wait (for locks, for events) hold up nobody, can be interrupted, and the kernel's caches obey the
//! notifier. Each test runs on each transport.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod support;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{Mounted, transports, wait};

fn everywhere(test: impl Fn(&Mounted)) {
    for choice in transports() {
        let config = fuse::SessionConfig { ring_depth: 4, dev_depth: 4, ..Default::default() };
        let mounted = Mounted::with(choice, 1, config, "noatime");
        test(&mounted);
        for ended in mounted.finish() {
            ended.unwrap();
        }
    }
}

fn fcntl_lock(f: &File, cmd: i32, kind: i32, start: i64, len: i64) -> io::Result<libc::flock> {
    // SAFETY: an all-zero flock is valid; the descriptor is open.
    unsafe {
        let mut lk: libc::flock = std::mem::zeroed();
        (lk.l_type, lk.l_start, lk.l_len) = (kind as i16, start, len);
        if libc::fcntl(f.as_raw_fd(), cmd, &raw mut lk) < 0 { Err(io::Error::last_os_error()) } else { Ok(lk) }
    }
}

fn open(m: &Mounted, name: &str) -> File {
    OpenOptions::new().create(true).truncate(false).read(true).write(true).open(m.path(name)).unwrap()
}

/// A process that takes flock(2) on a file (and exits with it), so that its waiting can be killed.
fn flock_child(m: &Mounted, name: &str, wait: bool) -> Child {
    let mut c = Command::new("flock");
    c.args(if wait { &["-x"][..] } else { &["-n", "-x"][..] }).arg(m.path(name)).arg("true");
    c.spawn().unwrap()
}

fn until(m: &Mounted, what: &str, condition: impl Fn(&support::memfs::State) -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while !condition(&m.state.lock().unwrap()) {
        let waiting = m.state.lock().unwrap().waiting_locks;
        let late = std::time::Instant::now() > deadline;
        assert!(
            !late,
            "never happened: {what} ({:?}, {waiting} locks wait, {:?})",
            m.session.transport(),
            m.session.counters()
        );
        std::thread::yield_now();
    }
}

#[test]
fn open_file_description_locks_conflict_and_getlk_names_the_holder() {
    everywhere(|m| {
        let (a, b) = (open(m, "f"), open(m, "f"));
        fcntl_lock(&a, libc::F_OFD_SETLK, libc::F_WRLCK, 10, 10).unwrap();
        let refused = fcntl_lock(&b, libc::F_OFD_SETLK, libc::F_RDLCK, 15, 1).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
        let found = fcntl_lock(&b, libc::F_OFD_GETLK, libc::F_RDLCK, 0, 100).unwrap();
        assert_eq!((found.l_type as i32, found.l_start, found.l_len), (libc::F_WRLCK, 10, 10));
        fcntl_lock(&b, libc::F_OFD_SETLK, libc::F_WRLCK, 20, 5).unwrap();
        fcntl_lock(&a, libc::F_OFD_SETLK, libc::F_UNLCK, 0, 0).unwrap();
        fcntl_lock(&b, libc::F_OFD_SETLK, libc::F_WRLCK, 10, 5).unwrap();
    });
}

#[test]
fn a_waiting_lock_is_granted_when_the_holder_lets_go() {
    everywhere(|m| {
        let held = open(m, "f");
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(held.as_raw_fd(), libc::LOCK_EX) }, 0);
        assert!(!flock_child(m, "f", false).wait().unwrap().success());
        let mut waiter = flock_child(m, "f", true);
        until(m, "the child waits", |s| s.waiting_locks == 1);
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(held.as_raw_fd(), libc::LOCK_UN) }, 0);
        assert!(waiter.wait().unwrap().success());
    });
}

#[test]
fn a_waiting_lock_is_interrupted_by_a_signal() {
    everywhere(|m| {
        let held = open(m, "f");
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(held.as_raw_fd(), libc::LOCK_EX) }, 0);
        let mut waiter = flock_child(m, "f", true);
        until(m, "the child waits", |s| s.waiting_locks == 1);
        waiter.kill().unwrap();
        assert!(!waiter.wait().unwrap().success());
        until(m, "the file system learned of it", |s| s.waiting_locks == 0);
        assert!(m.session.counters().interrupts.load(Ordering::Relaxed) >= 1);
    });
}

#[test]
fn many_more_waiters_than_slots_do_not_keep_the_holder_from_unlocking() {
    everywhere(|m| {
        let held = open(m, "f");
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(held.as_raw_fd(), libc::LOCK_EX) }, 0);
        let mut waiters: Vec<Child> = (0..40).map(|_| flock_child(m, "f", true)).collect();
        until(m, "all children wait", |s| s.waiting_locks == 40);
        assert_eq!(fs::read(m.path("f")).unwrap(), b"");
        fs::write(m.path("g"), b"still served").unwrap();
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(held.as_raw_fd(), libc::LOCK_UN) }, 0);
        for w in &mut waiters {
            assert!(w.wait().unwrap().success());
        }
    });
}

#[test]
fn waiters_have_a_part_of_the_slots_and_the_unlock_finds_one() {
    const WAITERS: usize = 40;
    for choice in transports() {
        let slots = fuse::SessionConfig { ring_depth: 2, dev_depth: 2, ..Default::default() };
        let config = fuse::SessionConfig { ring_depth_max: 8, dev_depth_max: 8, ..slots };
        let m = Mounted::with(choice, 1, config, "");
        let held = open(&m, "f");
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(held.as_raw_fd(), libc::LOCK_EX) }, 0);
        let refused = AtomicUsize::new(0);
        let waits = |file: File| {
            // Every CPU has slots of its own.
            on_first_cpu();
            // SAFETY: an open descriptor; dropped (and so unlocked) afterwards.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
                assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOLCK));
                refused.fetch_add(1, Ordering::Relaxed);
            }
        };
        let settled = std::thread::scope(|scope| {
            let files: Vec<File> = (0..WAITERS).map(|_| open(&m, "f")).collect();
            files.into_iter().for_each(|file| drop(scope.spawn(|| waits(file))));
            let settled = comes(|| m.state.lock().unwrap().waiting_locks + refused.load(Ordering::Relaxed) == WAITERS);
            if settled {
                on_first_cpu();
                fs::write(m.path("g"), b"still served").unwrap();
                drop(held);
            } else {
                // Nobody may hang here.
                m.mount.abort().unwrap();
            }
            settled
        });
        assert!(settled, "all slots wait: {:?}", m.session.counters());
        assert_eq!(refused.load(Ordering::Relaxed), WAITERS - 6);
        assert_eq!(m.session.counters().lasting_limit_hit.load(Ordering::Relaxed), (WAITERS - 6) as u64);
        m.finish().into_iter().for_each(|ended| ended.unwrap());
    }
}

/// Whether something comes true within two minutes.
fn comes(is: impl Fn() -> bool) -> bool {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while !is() && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    is()
}

/// The calling thread runs on one CPU from now on, the same for all that call this.
fn on_first_cpu() {
    // SAFETY: plain structures on the stack, of the said length.
    unsafe {
        let (mut may, mut one): (libc::cpu_set_t, libc::cpu_set_t) = (std::mem::zeroed(), std::mem::zeroed());
        let size = size_of::<libc::cpu_set_t>();
        assert_eq!(libc::sched_getaffinity(0, size, &raw mut may), 0);
        let first = (0..size * 8).find(|cpu| libc::CPU_ISSET(*cpu, &may)).unwrap();
        libc::CPU_SET(first, &mut one);
        assert_eq!(libc::sched_setaffinity(0, size, &raw const one), 0);
    }
}

#[test]
fn a_burst_of_waiters_and_the_unlock_behind_it_are_all_served() {
    for choice in transports() {
        // One slot to start with: the burst queues in the kernel before the crew can grow.
        let config = fuse::SessionConfig { ring_depth: 1, dev_depth: 1, ..Default::default() };
        let m = Mounted::with(choice, 1, config, "");
        let held = open(&m, "f");
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(held.as_raw_fd(), libc::LOCK_EX) }, 0);
        std::thread::scope(|scope| {
            let files: Vec<File> = (0..64).map(|_| open(&m, "f")).collect();
            let start = std::sync::Arc::new(std::sync::Barrier::new(64));
            for file in files {
                let start = start.clone();
                scope.spawn(move || {
                    start.wait();
                    // SAFETY: an open descriptor; dropped (and so unlocked) afterwards.
                    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
                });
            }
            until(&m, "every thread waits", |s| s.waiting_locks == 64);
            drop(held);
        });
        m.finish().into_iter().for_each(|ended| ended.unwrap());
    }
}

#[test]
fn what_wakes_the_ring_queues_is_not_asked_of_the_file_system() {
    for choice in transports() {
        let config = fuse::SessionConfig { ring_depth: 1, dev_depth: 1, ..Default::default() };
        let m = Mounted::with(choice, 1, config, "");
        let held = open(&m, "f");
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(held.as_raw_fd(), libc::LOCK_EX) }, 0);
        let kicked = std::thread::scope(|scope| {
            let files: Vec<File> = (0..16).map(|_| open(&m, "f")).collect();
            for file in files {
                // SAFETY: an open descriptor; dropped (and so unlocked) afterwards.
                scope.spawn(move || assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0));
            }
            let kicks = || m.session.counters().kicks.load(Ordering::Relaxed) + m.state.lock().unwrap().statfs_asked;
            let kicked = choice == fuse::TransportChoice::Dev || comes(|| kicks() > 0);
            drop(held);
            kicked
        });
        assert!(kicked, "the queues grew: {:?}", m.session.counters());
        assert_eq!(m.state.lock().unwrap().statfs_asked, 0, "{choice:?}");
        // Who asks for it gets it.
        let path = std::ffi::CString::new(m.dir.path().to_str().unwrap()).unwrap();
        // SAFETY: an all-zero structure that the call fills, and a NUL-terminated path.
        let blocks = unsafe {
            let mut told: libc::statfs = std::mem::zeroed();
            assert_eq!(libc::statfs(path.as_ptr(), &raw mut told), 0);
            told.f_blocks
        };
        assert_eq!((blocks, m.state.lock().unwrap().statfs_asked), (1000, 1));
        m.finish().into_iter().for_each(|ended| ended.unwrap());
    }
}

#[test]
fn a_poller_sleeps_until_the_file_system_wakes_it() {
    everywhere(|m| {
        let f = open(m, "f");
        let mut p = libc::pollfd { fd: f.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        assert_eq!(unsafe { libc::poll(&raw mut p, 1, 0) }, 0);
        let poller = std::thread::spawn({
            let g = f.try_clone().unwrap();
            move || {
                let mut p = libc::pollfd { fd: g.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one live pollfd.
                (unsafe { libc::poll(&raw mut p, 1, 20_000) }, p.revents)
            }
        });
        until(m, "the poller asked to be told", |s| !s.poll_handles.is_empty());
        let mut word = 0u32;
        // _IOWR('x', 7, u32) makes the file ready. SAFETY: a live u32.
        assert_eq!(unsafe { libc::ioctl(f.as_raw_fd(), 0xc004_7807, &raw mut word) }, 0);
        assert_eq!(poller.join().unwrap(), (1, libc::POLLIN));
    });
}

/// The node of a name in the root directory.
fn node(m: &Mounted, name: &str) -> u64 {
    m.state.lock().unwrap().find(1, name.as_bytes()).unwrap()
}

#[test]
fn cached_pages_and_attributes_live_until_they_are_invalidated() {
    everywhere(|m| {
        fs::write(m.path("cached"), vec![b'a'; 8192]).unwrap();
        let f = open(m, "cached");
        let read = |at| {
            let mut b = [0u8; 1];
            f.read_exact_at(&mut b, at).map(|()| b[0])
        };
        assert_eq!((read(0).unwrap(), read(8191).unwrap()), (b'a', b'a'));
        assert_eq!(f.metadata().unwrap().len(), 8192);
        let ino = node(m, "cached");
        m.state.lock().unwrap().write(ino, 0, &[b'b'; 12000]).unwrap();
        assert_eq!((read(0).unwrap(), f.metadata().unwrap().len()), (b'a', 8192), "the kernel's copy is believed");
        wait(m.notifier().inval_inode(ino, 4096, 4096)).unwrap();
        assert_eq!((read(0).unwrap(), read(4096).unwrap()), (b'a', b'b'), "only the range was dropped");
        assert_eq!(f.metadata().unwrap().len(), 12000);
        wait(m.notifier().inval_inode(ino, 0, 0)).unwrap();
        assert_eq!((read(0).unwrap(), read(11_999).unwrap()), (b'b', b'b'));
        m.state.lock().unwrap().resize(ino, 5).unwrap();
        wait(m.notifier().inval_attr(ino)).unwrap();
        assert_eq!(f.metadata().unwrap().len(), 5);
        wait(m.notifier().store(ino, 0, b"STORE")).unwrap();
        assert_eq!(read(4).unwrap(), b'E');
    });
}

#[test]
fn a_mapping_reaches_as_far_as_the_kernel_was_told_and_no_byte_of_it_changes() {
    everywhere(|m| {
        fs::write(m.path("mapped"), b"short").unwrap();
        let (f, ino) = (open(m, "mapped"), node(m, "mapped"));
        // SAFETY: a new mapping; the result is checked.
        let map =
            unsafe { libc::mmap(std::ptr::null_mut(), 12_288, libc::PROT_READ, libc::MAP_SHARED, f.as_raw_fd(), 0) };
        assert_ne!(map, libc::MAP_FAILED);
        // SAFETY: inside the mapping.
        let get = |at: usize| unsafe { map.cast::<u8>().add(at).read_volatile() };
        assert_eq!(get(4), b't');
        for end in [9000usize, 4097, 12_288, 12_288] {
            m.state.lock().unwrap().write(ino, 0, &vec![b'a'; end]).unwrap();
            wait(m.notifier().inval_inode(ino, 0, 0)).unwrap();
            assert!(wait(m.notifier().lengthen(ino, end as u64)).unwrap());
            assert_eq!((get(end - 1), get(0)), (b'a', b'a'), "{end}");
            assert!(wait(m.notifier().lengthen(ino, end as u64)).unwrap());
            assert_eq!(get(end - 1), b'a', "the page that it has");
        }
        assert_eq!(wait(m.notifier().lengthen(ino, 0)).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert!(!wait(m.notifier().lengthen(1 << 40, 5)).unwrap(), "an inode that it does not have");
        // SAFETY: the whole mapping, of which nobody has an address.
        assert_eq!(unsafe { libc::munmap(map, 12_288) }, 0);
    });
}

#[test]
fn cached_names_live_until_they_are_invalidated() {
    everywhere(|m| {
        fs::write(m.path("a"), b"").unwrap();
        fs::write(m.path("b"), b"").unwrap();
        let gone = |name: &str| fs::symlink_metadata(m.path(name)).is_err();
        for (name, how) in [("a", 0), ("b", 1)] {
            let ino = node(m, name);
            m.state.lock().unwrap().unlink(1, name.as_bytes(), false).unwrap();
            assert!(!gone(name), "the kernel still believes {name}");
            let n = m.notifier();
            wait(if how == 0 { n.inval_entry(1, name.as_bytes()) } else { n.delete(1, ino, name.as_bytes()) }).unwrap();
            assert!(gone(name));
        }
        for (name, expire) in [("c", true), ("d", false)] {
            fs::write(m.path(name), b"").unwrap();
            m.state.lock().unwrap().unlink(1, name.as_bytes(), false).unwrap();
            assert!(!gone(name));
            let n = m.notifier();
            let minor = m.session.negotiated().minor;
            let done = wait(if expire { n.expire_entry(1, name.as_bytes()) } else { n.inc_epoch() });
            match done {
                Ok(_) => assert!(gone(name), "{name}"),
                Err(e) => assert!(!expire && minor < 44 && e.raw_os_error() == Some(libc::ENOSYS), "{name}: {e}"),
            }
        }
    });
}

#[test]
fn invalidating_what_is_not_cached_succeeds_and_bad_notifications_fail() {
    everywhere(|m| {
        assert!(!wait(m.notifier().inval_inode(99, 0, 0)).unwrap(), "there is no such inode");
        assert!(!wait(m.notifier().inval_entry(1, b"nothing")).unwrap(), "there is no such name");
        let long = vec![b'x'; 5000];
        assert_eq!(wait(m.notifier().inval_entry(1, &long)).unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    });
}

#[test]
fn pruned_nodes_are_forgotten() {
    everywhere(|m| {
        if m.session.negotiated().minor < 45 {
            assert_eq!(wait(m.notifier().prune(&[2])).unwrap_err().raw_os_error(), Some(libc::ENOSYS));
            return;
        }
        fs::write(m.path("f"), b"").unwrap();
        let ino = node(m, "f");
        assert!(m.state.lock().unwrap().nodes[&ino].lookups > 0);
        wait(m.notifier().prune(&[ino])).unwrap();
        until(m, "the node is forgotten", |s| s.nodes[&ino].lookups == 0);
    });
}

#[test]
fn a_notification_that_waits_in_the_kernel_holds_up_neither_requests_nor_others() {
    everywhere(|m| {
        fs::create_dir(m.path("d")).unwrap();
        fs::write(m.path("d/x"), b"").unwrap();
        let held = open(m, "f");
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(held.as_raw_fd(), libc::LOCK_EX) }, 0);
        let pending: Vec<_> = (0..200).map(|i| m.notifier().inval_entry(1, format!("n{i}").as_bytes())).collect();
        assert_eq!(fs::metadata(m.path("d/x")).unwrap().len(), 0);
        for p in pending {
            wait(p).unwrap();
        }
    });
}
