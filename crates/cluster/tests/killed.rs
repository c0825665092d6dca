//! Programs that wait for servers that are away: a SIGKILL ends them, whatever call they are in, and what they asked for is seen by
//! everybody when it is done. And what descriptors and file handles lead to when others have changed what they were opened by.
mod roles;

use std::ffi::OsString;
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

const LIMIT: Duration = Duration::from_secs(600);
/// Long enough for what waits for nobody.
const SOON: Duration = Duration::from_secs(5);
/// Long enough for what is known on this machine; nothing depends on it but that a test can find what it looks for.
const GLANCE: Duration = Duration::from_millis(500);

/// A cluster of processes over TCP with two mounts.
struct Cluster {
    mds: Option<RoleProcess>,
    oss: Option<RoleProcess>,
    at: Vec<PathBuf>,
    mounts: RoleProcess,
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
        Cluster { mds: Some(mds), oss: Some(oss), at, mounts, _world: world }
    }

    /// The metadata server is away while `work` goes on, and is there again then, as it was.
    fn without_mds(&self, work: impl FnOnce()) {
        let mds = self.mds.as_ref().expect("it runs").pid() as i32;
        // SAFETY: our own child, not collected yet.
        unsafe { libc::kill(mds, libc::SIGSTOP) };
        let state = || std::fs::read_to_string(format!("/proc/{mds}/status")).unwrap_or_default();
        until("the metadata server stands still", || state().contains("State:\tT"));
        work();
        // SAFETY: as above.
        unsafe { libc::kill(mds, libc::SIGCONT) };
    }

    /// Runs `call` in a process of its own for as long as an answer may take that is known on this machine.
    fn glances(&self, call: impl FnOnce() -> R) {
        let child = spawn(call).expect("a process");
        if !child.ended_within(GLANCE) {
            // SAFETY: our own child, not collected yet.
            unsafe { libc::kill(child.pid, libc::SIGKILL) };
            assert!(child.ended_within(LIMIT), "not even SIGKILL ends it");
        }
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

    /// Waits until no thread of the mounts runs: what their kernel has asked for until now they have taken. A request that is killed
    /// before never was.
    fn have_taken_everything(&self) {
        let tasks = format!("/proc/{}/task", self.mounts.pid());
        let sleeps = |task: std::io::Result<std::fs::DirEntry>| {
            // One that has ended takes nothing any more.
            let Ok(task) = task else { return true };
            let state = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
            !state.contains("State:\tR") && !state.contains("State:\tD")
        };
        until("the mounts rest", || std::fs::read_dir(&tasks).expect("a process").all(sleeps));
    }

    /// Waits until a process waits in the kernel for an answer, from mounts that have taken the question; no: it ended before.
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
        self.have_taken_everything();
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
        c.is_killed_in("ftruncate of its own", || sys::ftruncate(&own, 10).map(|_| ()).map_err(String::from));
        // Both have their locks: the write would go into the cache at once if the cut before were over.
        c.is_killed_in("write behind a cut", || sys::pwrite(&own, b"x", 20_000).map(|_| ()).map_err(String::from));
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

/// What a mount shows of an entry.
#[derive(PartialEq, Eq, Debug)]
struct Shown {
    ino: u64,
    mode: u32,
    links: u64,
    bytes: i64,
    modified: (i64, i64),
    content: Option<Vec<u8>>,
}

/// What a mount shows of names in a directory, each and in its listing.
fn shown(dir: &Path, names: &[&str]) -> (Vec<Option<Shown>>, Vec<OsString>) {
    let of = |name: &&str| {
        let at = dir.join(name);
        let s = sys::stat(&at).ok()?;
        let content = if s.st_mode & libc::S_IFMT == libc::S_IFREG { sys::get(&at).ok() } else { None };
        let (ino, mode, links, bytes) = (s.st_ino, s.st_mode, s.st_nlink as u64, s.st_size);
        Some(Shown { ino, mode, links, bytes, modified: (s.st_mtime, s.st_mtime_nsec), content })
    };
    let mut listed: Vec<OsString> =
        std::fs::read_dir(dir).expect("a directory").map(|e| e.expect("an entry").file_name()).collect();
    listed.sort();
    (names.iter().map(of).collect(), listed)
}

/// Waits until `done`.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what}: not so after {LIMIT:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn what_killed_programs_asked_for_is_seen_on_their_own_mount_once_it_is_done() {
    if !can_mount() {
        return;
    }
    const NAMES: [&str; 10] = [".", "made", "new", "gone", "its-other-name", "dir-gone", "moved", "at", "mode", "cut"];
    for transport in transports() {
        let c = Cluster::new(transport);
        let (a, b) = (c.at[0].join("d"), c.at[1].join("d"));
        sys::mkdir(&b, 0o755).expect("a directory");
        sys::mkdir(&a.join("dir-gone"), 0o755).expect("a directory");
        for name in ["gone", "moved", "at", "mode", "cut"] {
            sys::put(&a.join(name), name.as_bytes()).expect("a file");
        }
        sys::link(&a.join("gone"), &a.join("its-other-name")).expect("another name");
        // Both mounts and their kernels know everything: the one whose programs are killed last.
        drop((shown(&b, &NAMES), shown(&a, &NAMES), shown(&a, &NAMES)));
        let (before, listed) = shown(&a, &NAMES);
        assert!(before[1].is_none() && listed.len() == 7, "{listed:?}");
        c.without_mds(|| {
            let text = String::from;
            c.is_killed_in("mkdir", || sys::mkdir(&a.join("made"), 0o755).map(drop).map_err(text));
            let create = || sys::open(&a.join("new"), libc::O_RDWR | libc::O_CREAT, 0o644).map(drop).map_err(text);
            c.is_killed_in("create", create);
            c.is_killed_in("unlink", || sys::unlink(&a.join("gone")).map(drop).map_err(text));
            c.is_killed_in("rmdir", || sys::rmdir(&a.join("dir-gone")).map(drop).map_err(text));
            c.is_killed_in("rename", || sys::rename(&a.join("moved"), &a.join("at")).map(drop).map_err(text));
            c.is_killed_in("chmod", || sys::chmod(&a.join("mode"), 0o600).map(drop).map_err(text));
            c.is_killed_in("truncate", || sys::truncate(&a.join("cut"), 1).map(drop).map_err(text));
            // What is known here is believed for now.
            for name in NAMES {
                c.glances(|| sys::stat(&a.join(name)).map(drop).map_err(text));
            }
        });
        let is = |name: &str| sys::stat(&b.join(name)).ok();
        let done = |name: &str| match name {
            "made" | "new" => is(name).is_some(),
            "gone" | "dir-gone" | "moved" => is(name).is_none(),
            "mode" => is(name).is_some_and(|s| s.st_mode & 0o777 == 0o600),
            "cut" => is(name).is_some_and(|s| s.st_size == 1),
            _ => true,
        };
        for name in NAMES {
            until(&format!("over {transport} what was asked for of {name:?} is done"), || done(name));
        }
        let mut last = String::new();
        let end = Instant::now() + LIMIT;
        loop {
            let (here, there) = (shown(&a, &NAMES), shown(&b, &NAMES));
            if here == there {
                break;
            }
            last.clear();
            std::fmt::Write::write_fmt(&mut last, format_args!("{here:#?}\n{there:#?}")).expect("a string");
            assert!(Instant::now() < end, "over {transport} the mount of the killed shows something else: {last}");
        }
        sys::put(&a.join("gone"), b"written after").expect("a file of that name anew");
        assert_eq!(sys::get(&b.join("gone")).expect("it is there"), b"written after");
        assert_eq!(sys::stat(&a.join("its-other-name")).expect("it stays").st_nlink, 1);
    }
}

/// Another mount tries again and again to take a lock, while that whose program was killed is asked something each time.
fn stays_locked(what: &str, c: &Cluster, mut take: impl FnMut() -> Option<i32>) {
    for i in 0..100 {
        drop(sys::stat(&c.at[0].join(format!("not-there-{i}"))));
        assert_eq!(take(), Some(libc::EWOULDBLOCK), "{what}: after {i} looks");
    }
}

#[test]
fn a_killed_lock_call_gives_nothing_up_that_others_hold_with_its_program() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let c = Cluster::new(transport);
        let (a, b) = (c.at[0].clone(), c.at[1].clone());
        for name in ["flock", "ofd", "free"] {
            sys::put(&a.join(name), b"content").expect("a file");
        }
        let text = String::from;
        let (whole, other) = (rw(&a.join("flock")), rw(&b.join("flock")));
        sys::flock(&whole, libc::LOCK_EX).expect("nobody has it");
        let lock = |len: i64| libc::flock {
            l_type: libc::F_WRLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: 0,
            l_len: len,
            l_pid: 0,
        };
        let (ranges, others) = (rw(&a.join("ofd")), rw(&b.join("ofd")));
        sys::fcntl_lock(&ranges, libc::F_OFD_SETLK, &mut lock(50)).expect("nobody has it");
        let free = rw(&a.join("free"));
        c.without_mds(|| {
            c.is_killed_in("flock", || sys::flock(&whole, libc::LOCK_EX).map(drop).map_err(text));
            let more = || sys::fcntl_lock(&ranges, libc::F_OFD_SETLKW, &mut lock(100)).map(drop).map_err(text);
            c.is_killed_in("fcntl", more);
            c.is_killed_in("flock of a free file", || sys::flock(&free, libc::LOCK_EX).map(drop).map_err(text));
        });
        let errno = |done: Result<i64, sys::Failed>| done.err().map(|e| e.errno);
        stays_locked("flock", &c, || errno(sys::flock(&other, libc::LOCK_EX | libc::LOCK_NB)));
        stays_locked("fcntl", &c, || errno(sys::fcntl_lock(&others, libc::F_OFD_SETLK, &mut lock(50))));
        let free = rw(&b.join("free"));
        until("the lock that came for the killed one alone is given back", || {
            sys::flock(&free, libc::LOCK_EX | libc::LOCK_NB).is_ok()
        });
        sys::flock(&whole, libc::LOCK_UN).expect("an unlock");
        sys::flock(&other, libc::LOCK_EX | libc::LOCK_NB).expect("it was given up");
    }
}

/// An ACL that lets user 1000 do `perm`.
fn acl(perm: u16) -> Vec<u8> {
    let entries = [(1u16, 6, u32::MAX), (2, perm, 1000), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 4, u32::MAX)];
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(u16::to_le_bytes(perm));
        out.extend(u32::to_le_bytes(id));
    }
    out
}

fn acl_of(fd: &OwnedFd) -> Vec<u8> {
    let mut value = vec![0u8; 256];
    // SAFETY: a name that ends with a zero byte, and room as long as it says.
    let n = unsafe {
        let name = c"system.posix_acl_access";
        libc::fgetxattr(fd.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    value.truncate(usize::try_from(n).expect("it has an ACL"));
    value
}

#[test]
fn a_descriptor_shows_the_acl_that_another_mount_set_while_the_file_is_written() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let c = Cluster::new(transport);
        let (a, b) = (c.at[0].join("f"), c.at[1].join("f"));
        sys::put(&a, b"content").expect("a file");
        sys::setxattr(&a, "system.posix_acl_access", &acl(0), 0).expect("an ACL");
        // As long as it is open for writing there, no size of it is believed here.
        let writer = rw(&b);
        sys::pwrite(&writer, b"more", 100).expect("a write");
        let fd = sys::open(&a, libc::O_RDONLY, 0).expect("an open");
        for perm in 1..8 {
            let before = acl(perm - 1);
            assert!(acl_of(&fd) == before && acl_of(&fd) == before, "over {transport}: not the ACL of {}", perm - 1);
            sys::setxattr(&b, "system.posix_acl_access", &acl(perm), 0).expect("another ACL");
            assert_eq!(acl_of(&fd), acl(perm), "over {transport}");
        }
    }
}

/// How many entries a descriptor of a directory lists, from where it is.
fn entries_of(fd: &OwnedFd) -> Result<usize, String> {
    let (mut count, mut buffer) = (0, vec![0u8; 4096]);
    loop {
        // SAFETY: a buffer as long as it says.
        let n = unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) };
        match usize::try_from(n) {
            Ok(0) => return Ok(count),
            Ok(n) => {
                let mut at = 0;
                while at < n {
                    at += usize::from(u16::from_ne_bytes([buffer[at + 16], buffer[at + 17]]));
                    count += 1;
                }
            }
            Err(_) => return Err(format!("getdents64 after {count}: {}", std::io::Error::last_os_error())),
        }
    }
}

#[test]
fn an_open_directory_is_listed_by_whoever_has_it_whatever_becomes_of_its_mode() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let c = Cluster::new(transport);
        let (a, b) = (c.at[0].clone(), c.at[1].clone());
        let files = 3000;
        for dir in ["inherited", "shut", "shut-there"] {
            sys::mkdir(&a.join(dir), 0o755).expect("a directory");
            sys::chown(&a.join(dir), 1000, 1000).expect("another's");
        }
        sys::chmod(&a.join("inherited"), 0o700).expect("its mode");
        for i in 0..files {
            let name = format!("a-rather-long-name-so-that-pages-are-many-{i:0100}");
            for dir in ["inherited", "shut", "shut-there"] {
                sys::mknod(&a.join(dir).join(&name), libc::S_IFREG | 0o644, 0).expect("a file");
            }
        }
        let open = |at: &Path| sys::open(at, libc::O_RDONLY | libc::O_DIRECTORY, 0).map_err(String::from);
        let inherited = open(&a.join("inherited")).expect("root may");
        let done = posix::run::as_user(&a, 1001, 1001, &[], |_| {
            posix::check::eq("what root has opened", entries_of(&inherited), Ok(files + 2))?;
            posix::check::eq("opened by a stranger", open(&a.join("inherited")).is_err(), true)
        });
        done.expect("a descriptor stands for the right to list");
        let done = posix::run::as_user(&a, 1000, 1000, &[], |_| {
            for (name, mount) in [("shut", &a), ("shut-there", &b)] {
                let dir = open(&a.join(name))?;
                sys::chmod(&mount.join(name), 0)?;
                posix::check::eq(name, entries_of(&dir), Ok(files + 2))?;
                posix::check::eq("opened now", open(&a.join(name)).is_err(), true)?;
            }
            Ok(())
        });
        done.expect("a descriptor stands for the right to list");
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
