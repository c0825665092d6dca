//! Programs that wait for servers that are away: a SIGKILL ends them, whatever call they are in. And what a file handle
//! leads to on a mount that never saw the file.
mod roles;

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use posix::run::{Child, spawn};
use posix::sys::{self, R};
use roles::{RoleProcess, World, can_mount, transports};

/// What the other tests start in processes of its own; without being told a role there is nothing to serve.
#[test]
fn a_role_serves_in_a_process_of_its_own() {
    roles::serve_if_told();
}

const LIMIT: Duration = Duration::from_secs(60);
/// Long enough for what waits for nobody.
const SOON: Duration = Duration::from_secs(5);

/// A cluster of processes over TCP with two mounts.
struct Cluster {
    mds: Option<RoleProcess>,
    oss: Option<RoleProcess>,
    at: Vec<PathBuf>,
    _mounts: RoleProcess,
    _world: World,
}

impl Cluster {
    fn new(transport: &str) -> Cluster {
        let mut world = World::new();
        let mds = RoleProcess::start(&["mds", &world.path("mdt"), "tcp:127.0.0.1:0"]);
        let oss = RoleProcess::start(&["oss", &world.path("oss"), "tcp:127.0.0.1:0", &mds.at, "0,1"]);
        let at: Vec<PathBuf> = (0..2).map(|i| world.point(&format!("mnt{i}"))).collect();
        let mut words = vec!["mount", &mds.at, "2", transport];
        words.extend(at.iter().map(|p| p.to_str().expect("a plain path")));
        let mounts = RoleProcess::start(&words);
        Cluster { mds: Some(mds), oss: Some(oss), at, _mounts: mounts, _world: world }
    }

    /// Runs `call` in a process of its own, which has to wait in the kernel for an answer, and kills it there.
    fn is_killed_in(&self, what: &str, call: impl FnOnce() -> R) {
        if !self.waits_and_is_killed_in(what, call) {
            roles::abort(&self.at);
            panic!("{what}: ends without waiting for an answer");
        }
    }

    /// The same, but `call` may also end without waiting: then the answer is no.
    fn waits_and_is_killed_in(&self, what: &str, call: impl FnOnce() -> R) -> bool {
        let child = spawn(call).expect("a process");
        if !self.waits_for_an_answer(what, &child) {
            return false;
        }
        // SAFETY: our own child, not collected yet.
        unsafe { libc::kill(child.pid, libc::SIGKILL) };
        if !child.ended_within(LIMIT) {
            roles::abort(&self.at);
            panic!("{what}: not even SIGKILL ends it");
        }
        true
    }

    /// Waits until a process waits in the kernel for an answer; no: it ended before.
    fn waits_for_an_answer(&self, what: &str, child: &Child) -> bool {
        let end = Instant::now() + LIMIT;
        let waits_at = || std::fs::read_to_string(format!("/proc/{}/wchan", child.pid)).unwrap_or_default();
        while !waits_at().contains("request_wait_answer") {
            if child.ended_within(Duration::ZERO) {
                return false;
            }
            if Instant::now() > end {
                roles::abort(&self.at);
                panic!("{what}: does not wait for an answer, but at {:?}", waits_at());
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
        true
    }
}

fn rw(p: &Path) -> OwnedFd {
    sys::open(p, libc::O_RDWR, 0).expect("an open while the servers are there")
}

#[test]
fn whoever_waits_for_storage_that_is_away_can_be_killed() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let mut c = Cluster::new(transport);
        let (a, b) = (c.at[0].clone(), c.at[1].clone());
        for name in ["f", "g", "trunc", "cut", "space", "copy"] {
            sys::put(&b.join(name), &[1; 200_000]).expect("a file");
        }
        // Locks are with the other mount, so that everything here has to ask for one.
        let fds: Vec<OwnedFd> = ["f", "g", "cut", "space", "copy"].iter().map(|n| rw(&a.join(n))).collect();
        let synced = sys::open(&a.join("synced"), libc::O_RDWR | libc::O_CREAT, 0o644).expect("a file");
        sys::write_all(&synced, &[2; 100_000]).expect("room in the cache");
        let own = sys::open(&a.join("own"), libc::O_RDWR | libc::O_CREAT, 0o644).expect("a file");
        sys::write_all(&own, &[2; 100_000]).expect("room in the cache");
        sys::fsync(&own).expect("its OST");
        c.oss.take().expect("it runs").kill();
        let [f, g, cut, space, copy] = &fds[..] else { panic!("five files") };
        c.is_killed_in("fsync", || sys::fsync(&synced).map(|_| ()).map_err(String::from));
        c.is_killed_in("write", || sys::pwrite(f, b"x", 0).map(|_| ()).map_err(String::from));
        c.is_killed_in("large write", || sys::pwrite(f, &[1; 1 << 20], 0).map(|_| ()).map_err(String::from));
        c.is_killed_in("read", || sys::pread(g, 100, 0).map(|_| ()).map_err(String::from));
        c.is_killed_in("open(O_TRUNC)", || {
            sys::open(&a.join("trunc"), libc::O_RDWR | libc::O_TRUNC, 0).map(drop).map_err(String::from)
        });
        c.is_killed_in("ftruncate", || sys::ftruncate(cut, 10).map(|_| ()).map_err(String::from));
        // Both have their locks: the write would go into the cache at once if the cut before were over. A cut that is
        // killed before the mount has taken it never was: then both are done again.
        let end = Instant::now() + LIMIT;
        loop {
            c.is_killed_in("ftruncate of its own", || sys::ftruncate(&own, 10).map(|_| ()).map_err(String::from));
            let write = || sys::pwrite(&own, b"x", 20_000).map(|_| ()).map_err(String::from);
            if c.waits_and_is_killed_in("write behind a cut", write) {
                break;
            }
            assert!(Instant::now() < end, "a write behind a cut waits for no answer");
        }
        c.is_killed_in("fallocate", || sys::fallocate(space, 0, 0, 1 << 20).map(|_| ()).map_err(String::from));
        c.is_killed_in("copy_file_range", || sys::copy_range(copy, 0, g, 0, 100).map(|_| ()).map_err(String::from));
        c.is_killed_in("lseek(SEEK_DATA)", || sys::lseek(g, 0, libc::SEEK_DATA).map(|_| ()).map_err(String::from));
        c.is_killed_in("stat of a file that is written", || sys::stat(&a.join("f")).map(|_| ()).map_err(String::from));
        roles::abort(&c.at);
    }
}

#[test]
fn whoever_opens_a_file_of_which_a_write_waits_for_storage_that_is_away_can_be_killed() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let mut c = Cluster::new(transport);
        let (file, other) = (c.at[0].join("f"), c.at[1].join("f"));
        sys::put(&other, &[1; 200_000]).expect("a file");
        let writer = sys::open(&file, libc::O_WRONLY, 0).expect("an open while the servers are there");
        c.oss.take().expect("it runs").kill();
        // In place, and its lock is with the other mount: it waits. An open that lets the kernel keep pages would wait for it, and no
        // signal would end that.
        let write = spawn(|| sys::pwrite(&writer, b"x", 0).map(|_| ()).map_err(String::from)).expect("a process");
        if !c.waits_for_an_answer("write", &write) {
            roles::abort(&c.at);
            panic!("the write ends without its OST");
        }
        let read = spawn(|| sys::open(&file, libc::O_RDONLY, 0).map(drop).map_err(String::from)).expect("a process");
        // Where it asks for what the OST knows, it is killed like any other.
        if !read.ended_within(SOON) && c.waits_for_an_answer("open", &read) {
            // SAFETY: our own child, not collected yet.
            unsafe { libc::kill(read.pid, libc::SIGKILL) };
            if !read.ended_within(LIMIT) {
                roles::abort(&c.at);
                panic!("open: not even SIGKILL ends it");
            }
        }
        roles::abort(&c.at);
        drop(read.join());
        drop(write.join());
    }
}

#[test]
fn whoever_waits_for_a_metadata_server_that_is_away_can_be_killed() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let mut c = Cluster::new(transport);
        let (a, b) = (c.at[0].clone(), c.at[1].clone());
        sys::mkdir(&b.join("d"), 0o755).expect("a directory");
        sys::mkdir(&b.join("other"), 0o755).expect("a directory");
        sys::stat(&a.join("other")).expect("a directory");
        sys::put(&a.join("f"), b"x").expect("a file");
        let f = rw(&a.join("f"));
        c.mds.take().expect("it runs").kill();
        c.is_killed_in("stat of a new name", || sys::stat(&a.join("d/name")).map(|_| ()).map_err(String::from));
        c.is_killed_in("create", || {
            sys::open(&a.join("new"), libc::O_RDWR | libc::O_CREAT, 0o644).map(drop).map_err(String::from)
        });
        c.is_killed_in("mkdir", || sys::mkdir(&a.join("e"), 0o755).map(|_| ()).map_err(String::from));
        c.is_killed_in("unlink", || sys::unlink(&a.join("f")).map(|_| ()).map_err(String::from));
        c.is_killed_in("fchmod", || sys::fchmod(&f, 0o600).map(|_| ()).map_err(String::from));
        c.is_killed_in("setxattr", || sys::setxattr(&a.join("f"), "user.x", b"y", 0).map(|_| ()).map_err(String::from));
        c.is_killed_in("readdir", || {
            std::fs::read_dir(a.join("other")).map(|d| d.for_each(drop)).map_err(|e| e.to_string())
        });
        c.is_killed_in("flock", || sys::flock(&f, libc::LOCK_EX).map(|_| ()).map_err(String::from));
        roles::abort(&c.at);
    }
}

/// A signal with a handler that does nothing.
fn alarm_often() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: a handler that does nothing; plain structures on the stack.
    unsafe {
        let handler: extern "C" fn(i32) = nothing;
        libc::signal(libc::SIGALRM, handler as libc::sighandler_t);
        let every = libc::timeval { tv_sec: 0, tv_usec: 300 };
        libc::setitimer(
            libc::ITIMER_REAL,
            &libc::itimerval { it_interval: every, it_value: every },
            std::ptr::null_mut(),
        );
    }
}

#[test]
fn signals_that_kill_nobody_fail_no_call() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let c = Cluster::new(transport);
        let (a, b) = (c.at[0].clone(), c.at[1].clone());
        let child = spawn(|| {
            alarm_often();
            for i in 0..200u32 {
                let (here, there) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
                let data = posix::check::pattern(u64::from(i), 20_000);
                let fd = sys::open(&here.join("f"), libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, 0o644)?;
                sys::pwrite(&fd, &data, 0)?;
                sys::fsync(&fd)?;
                posix::check::same("content", &sys::pread(&rw(&there.join("f")), 20_000, 0)?, &data)?;
            }
            Ok(())
        });
        let child = child.expect("a process");
        if !child.ended_within(LIMIT) {
            roles::abort(&c.at);
            panic!("no end within {LIMIT:?}");
        }
        child.join().expect("no call fails");
    }
}

/// A file handle as name_to_handle_at(2) gives it.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    data: [u8; 128],
}

fn handle_of(p: &Path) -> Handle {
    let mut h = Handle { bytes: 128, kind: 0, data: [0; 128] };
    let path = std::ffi::CString::new(p.to_str().expect("a plain path")).expect("no zero byte");
    let mut mount = 0i32;
    // SAFETY: the structure has as much room as it says; path and number live through the call.
    let rc = unsafe {
        libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, path.as_ptr(), &raw mut h, &raw mut mount, 0)
    };
    assert_eq!(rc, 0, "name_to_handle_at: {}", std::io::Error::last_os_error());
    h
}

fn open_handle(mount: &OwnedFd, h: &mut Handle, flags: i32) -> std::io::Result<std::fs::File> {
    // SAFETY: a handle that the kernel filled in; the descriptor that comes back is ours alone.
    unsafe {
        let fd = libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), std::ptr::from_mut(h), flags);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(<std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd as i32))
    }
}

#[test]
fn a_file_handle_opens_where_nobody_looked_the_file_up() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(transports()[0]);
    let (a, b) = (c.at[0].clone(), c.at[1].clone());
    let child = spawn(|| {
        sys::mkdir(&a.join("d"), 0o755)?;
        sys::mkdir(&a.join("d/e"), 0o755)?;
        sys::put(&a.join("d/e/f"), b"content")?;
        sys::put(&a.join("d/e/gone"), b"content")?;
        let (mut file, mut dir) = (handle_of(&a.join("d/e/f")), handle_of(&a.join("d/e")));
        let mut gone = handle_of(&a.join("d/e/gone"));
        sys::unlink(&a.join("d/e/gone"))?;
        let mount = sys::open(&b, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        let mut content = String::new();
        let mut opened = open_handle(&mount, &mut file, libc::O_RDONLY).map_err(|e| format!("the file: {e}"))?;
        std::io::Read::read_to_string(&mut opened, &mut content).map_err(|e| e.to_string())?;
        posix::check::eq("content", content.as_str(), "content")?;
        let opened = open_handle(&mount, &mut dir, libc::O_RDONLY | libc::O_DIRECTORY);
        let opened = opened.map_err(|e| format!("the directory: {e}"))?;
        let at = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).map_err(|e| e.to_string())?;
        posix::check::eq("its path", at, b.join("d/e"))?;
        let stale = open_handle(&mount, &mut gone, libc::O_RDONLY).map(drop).map_err(|e| e.raw_os_error());
        posix::check::eq("a removed file", stale, Err(Some(libc::ESTALE)))
    });
    let child = child.expect("a process");
    if !child.ended_within(LIMIT) {
        roles::abort(&c.at);
        panic!("no end within {LIMIT:?}");
    }
    child.join().expect("handles lead to their files");
}
