//! The native path on real mounts: what a program writes past the kernel everybody sees, and the other way round; who may
//! not open a file gets nothing; programs and daemons that die; programs that write anything into the rings.
mod roles;

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use native::area::Area;
use native::offer::Offer;
use native::ring::{AREA_BYTES, DATA, ProgramEnd, Submission, op};
use native::{Connection, File, Room, pass};
use posix::check::{eq, pattern, same, yes};
use posix::run::spawn;
use posix::sys::{self, R};
use roles::{RoleProcess, World, can_mount, transports};

/// What the other tests start in processes of its own; without being told a role there is nothing to serve.
#[test]
fn a_role_serves_in_a_process_of_its_own() {
    roles::serve_if_told();
}

const LIMIT: Duration = Duration::from_secs(600);

fn up(transport: &str, n: usize) -> (RoleProcess, Vec<PathBuf>, World) {
    let mut world = World::new();
    let points: Vec<PathBuf> = (0..n).map(|i| world.point(&format!("mnt{i}"))).collect();
    let stores = world.path("stores");
    let mut words = vec!["up", &stores, "2", transport];
    words.extend(points.iter().map(|p| p.to_str().expect("a plain path")));
    let up = RoleProcess::start(&words);
    (up, points, world)
}

/// Runs `f` in a process of its own: this one has threads, and forks, and keeps away from the rings.
fn within(at: &[PathBuf], what: &str, f: impl FnOnce() -> R) {
    let child = spawn(f).expect("a process");
    if !child.ended_within(LIMIT) {
        roles::abort(at);
        panic!("{what}: no end within {LIMIT:?}");
    }
    if let Err(e) = child.join() {
        panic!("{what}: {e}");
    }
}

/// Waits until something holds that others bring about.
fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn native(p: &Path, flags: i32) -> Result<File, String> {
    let file = File::open(p, flags, 0o644).map_err(|e| format!("{}: {e}", p.display()))?;
    if file.is_native() { Ok(file) } else { Err(format!("{}: not native", p.display())) }
}

fn said<T>(result: io::Result<T>) -> Result<T, String> {
    result.map_err(|e| e.to_string())
}

fn errno<T>(result: io::Result<T>) -> i32 {
    result.err().and_then(|e| e.raw_os_error()).unwrap_or(0)
}

fn get(file: &File, len: usize, at: u64) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; len];
    let n = said(file.pread(&mut bytes, at))?;
    bytes.truncate(n);
    Ok(bytes)
}

/// The two see each other's changes of a file: `file` past the kernel, `path` through one.
fn agree(file: &File, path: &Path) -> R {
    let large = pattern(3, 3_000_000);
    eq("a large write", said(file.pwrite(&large, 0))?, large.len())?;
    same("read through the kernel", &sys::get(path)?, &large)?;
    same("read natively", &get(file, large.len() + 9, 0)?, &large)?;
    let reader = sys::open(path, libc::O_RDONLY, 0)?;
    let writer = sys::open(path, libc::O_RDWR, 0)?;
    for round in 0..200u64 {
        let at = round * 4099 % 2_000_000;
        // In the kernel's cache before the change.
        sys::pread(&reader, 100, at as i64)?;
        let mine = pattern(round, 100);
        said(file.pwrite(&mine, at))?;
        same("a native write, through the kernel", &sys::pread(&reader, 100, at as i64)?, &mine)?;
        let theirs = pattern(round + 1, 5000);
        sys::pwrite(&writer, &theirs, at as i64 + 50)?;
        same("the kernel's write, natively", &get(file, 5000, at + 50)?, &theirs)?;
    }
    let end = large.len() as u64 + 10_000;
    said(file.pwrite(b"end", end - 3))?;
    eq("the size that the kernel tells", sys::stat(path)?.st_size as u64, end)?;
    sys::ftruncate(&writer, 1000)?;
    eq("a native read past the end", get(file, 10, 1000)?.len(), 0)?;
    eq("up to the end", get(file, 100, 990)?.len(), 10)?;
    let lent = said(file.pread_with(100, 990, |lent| {
        let mut bytes = vec![0; lent.len()];
        lent.copy_to(0, &mut bytes);
        bytes
    }))?;
    same("lent in place", &lent, &get(file, 100, 990)?)?;
    said(file.sync(false))?;
    Ok(())
}

#[test]
fn what_is_written_past_the_kernel_is_seen_through_it_and_the_other_way_round() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let (_up, at, _world) = up(transport, 2);
        for (name, seen_at) in [("same", &at[0]), ("other", &at[1])] {
            within(&at, transport, || {
                let file = native(&at[0].join(name), libc::O_RDWR | libc::O_CREAT)?;
                agree(&file, &seen_at.join(name))
            });
        }
    }
}

#[test]
fn what_a_kernel_keeps_is_not_older_than_a_native_write() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let (_up, at, _world) = up(transport, 1);
        within(&at, transport, || {
            // Made here and nobody else's: the kernel may believe its size until it is told otherwise.
            let (made, path) = (native(&at[0].join("made"), libc::O_WRONLY | libc::O_CREAT)?, at[0].join("made"));
            for n in 1..50 {
                said(made.pwrite(&[1; 1000], (n - 1) * 1000))?;
                eq("its size", sys::stat(&path)?.st_size as u64, n * 1000)?;
            }
            // Open for reading, and nowhere for reading and writing: the kernel keeps its pages.
            let path = at[0].join("kept");
            sys::put(&path, &[0; 20_000])?;
            let reader = sys::open(&path, libc::O_RDONLY, 0)?;
            let writer = native(&path, libc::O_WRONLY)?;
            for n in 1..50 {
                same("before", &sys::pread(&reader, 20_000, 0)?, &[n - 1; 20_000])?;
                said(writer.pwrite(&[n; 20_000], 0))?;
                same("behind", &sys::pread(&reader, 20_000, 0)?, &[n; 20_000])?;
            }
            Ok(())
        });
    }
}

#[test]
fn stores_to_mappings_and_native_calls_see_each_other() {
    if !can_mount() {
        return;
    }
    let (_up, at, _world) = up(transports()[0], 1);
    within(&at, "mapping", || {
        let path = at[0].join("f");
        sys::put(&path, &[1; 8192])?;
        let file = native(&path, libc::O_RDWR)?;
        let fd = sys::open(&path, libc::O_RDWR, 0)?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping; the result is checked.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), 8192, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if map == libc::MAP_FAILED {
            return Err("mmap".into());
        }
        let map = map.cast::<u8>();
        for round in 0..50u8 {
            // SAFETY: inside the mapping.
            unsafe { map.add(5000).write_volatile(round) };
            eq("a store, natively", get(&file, 1, 5000)?, vec![round])?;
            said(file.pwrite(&[round ^ 0x55], 100))?;
            // SAFETY: inside the mapping.
            eq("a native write, mapped", unsafe { map.add(100).read_volatile() }, round ^ 0x55)?;
            // SAFETY: inside the mapping.
            eq("the store beside it", unsafe { map.add(5000).read_volatile() }, round)?;
        }
        said(file.sync(true))
    });
}

/// A shared mapping of a file, from its beginning.
struct Mapped(*mut u8, usize);
impl Mapped {
    fn of(fd: &impl AsRawFd, len: usize, prot: i32) -> Result<Mapped, String> {
        // SAFETY: a new mapping; the result is checked.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err("mmap".into()) } else { Ok(Mapped(at.cast(), len)) }
    }
    /// What is there: SIGBUS behind the end that the kernel believes in.
    fn get(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: inside the mapping.
        unsafe { self.0.add(at).read_volatile() }
    }
    /// Stores a byte and has it written back.
    fn store(&self, at: usize, byte: u8) -> R {
        assert!(at < self.1);
        // SAFETY: inside the mapping.
        unsafe { self.0.add(at).write_volatile(byte) };
        // SAFETY: the whole mapping.
        eq("msync", unsafe { libc::msync(self.0.cast(), self.1, libc::MS_SYNC) }, 0)
    }
}
impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody has addresses of it.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// A file grows past the kernel while it is mapped, or before it is: `cut` makes it shorter in between, by the hand of this mount or another.
fn grows_under_mappings(path: &Path, cut: impl Fn(i64) -> R) -> R {
    const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
    let file = native(path, libc::O_RDWR | libc::O_CREAT)?;
    said(file.pwrite(&[1; 100], 0))?;
    let map = Mapped::of(&file, 1 << 20, BOTH)?;
    eq("what was written before the mapping", map.get(99), 1)?;
    said(file.pwrite(&[2; 4000], 0))?;
    map.store(3000, 9)?;
    eq("a store behind the end of before", get(&file, 1, 3000)?, vec![9])?;
    // Whole pages, of which none was read; a hole; an end at the beginning of a page.
    for (round, end) in [8192u64, 12_288, 12_289, 100_000, 150_001].into_iter().enumerate() {
        let byte = 10 + round as u8;
        said(file.pwrite(&[byte; 1000], end - 1000))?;
        eq("the last byte, mapped", map.get(end as usize - 1), byte)?;
        map.store(end as usize - 1, byte ^ 0x80)?;
        eq("a store to it", get(&file, 10, end - 1)?, vec![byte ^ 0x80])?;
    }
    for end in [6000u64, 500, 9000] {
        cut(10)?;
        said(file.pwrite(&[7; 100], end - 100))?;
        eq("grown again, mapped", map.get(end as usize - 1), 7)?;
        map.store(end as usize - 1, 8)?;
        eq("a store then", get(&file, 10, end - 1)?, vec![8])?;
        eq("nothing comes back of what was cut", get(&file, 1, end - 101)?, vec![0])?;
    }
    Ok(())
}

#[test]
fn mappings_hear_of_native_writes_that_make_their_file_longer() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let (_up, at, _world) = up(transport, 2);
        within(&at, transport, || {
            for (name, cut_at) in [("here", &at[0]), ("there", &at[1])] {
                let (path, theirs) = (at[0].join(name), cut_at.join(name));
                grows_under_mappings(&path, |size| {
                    let fd = sys::open(&theirs, libc::O_RDWR, 0)?;
                    sys::ftruncate(&fd, size)?;
                    Ok(())
                })?;
            }
            // The writer may not read it, and who maps it may not write.
            let path = at[0].join("apart");
            let writer = native(&path, libc::O_WRONLY | libc::O_CREAT)?;
            said(writer.pwrite(&[3; 5000], 0))?;
            let map = Mapped::of(&sys::open(&path, libc::O_RDONLY, 0)?, 1 << 20, libc::PROT_READ)?;
            eq("written before it was opened", map.get(4999), 3)?;
            for end in (1..20).map(|n| n * 9000u64) {
                said(writer.pwrite(&[4; 1000], end - 1000))?;
                eq("and after", map.get(end as usize - 1), 4)?;
            }
            Ok(())
        });
    }
}

/// What the kernel says at the ends of what can be named.
fn at_the_largest_offsets(reads: &File, writes: &File) -> R {
    for at in [i64::MAX, i64::MAX - 1, i64::MAX - 9, i64::MAX - 10, i64::MAX - 4095] {
        let (mut bytes, fd) = ([0; 10], reads.as_raw_fd());
        // SAFETY: a buffer of this length.
        let n = unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), 10, at) };
        let theirs = usize::try_from(n).map_err(|_| io::Error::last_os_error());
        let tell = |r: &io::Result<usize>| r.as_ref().copied().map_err(|e| e.raw_os_error());
        eq("a read", tell(&reads.pread(&mut bytes, at as u64)), tell(&theirs))?;
        // SAFETY: the same.
        let n = unsafe { libc::pwrite(writes.as_raw_fd(), bytes.as_ptr().cast(), 10, at) };
        let theirs = usize::try_from(n).map_err(|_| io::Error::last_os_error());
        eq("a write", tell(&writes.pwrite(&bytes, at as u64)), tell(&theirs))?;
    }
    Ok(())
}

#[test]
fn calls_answer_as_the_kernels_do() {
    if !can_mount() {
        return;
    }
    let (_up, at, _world) = up(transports()[0], 1);
    within(&at, "calls", || {
        let path = at[0].join("f");
        sys::put(&path, b"0123456789")?;
        let reads = native(&path, libc::O_RDONLY)?;
        eq("writing to what is open for reading", errno(reads.pwrite(b"x", 0)), libc::EBADF)?;
        let writes = native(&path, libc::O_WRONLY)?;
        eq("reading what is open for writing", errno(writes.pread(&mut [0], 0)), libc::EBADF)?;
        eq("a negative offset", errno(reads.pread(&mut [0], u64::MAX)), libc::EINVAL)?;
        let past = sys::stat(&path)?.st_atime - 1000;
        let times = [libc::timespec { tv_sec: past, tv_nsec: 0 }, libc::timespec { tv_sec: past, tv_nsec: 0 }];
        // SAFETY: two times that outlive the call.
        eq("futimens", unsafe { libc::futimens(reads.as_raw_fd(), times.as_ptr()) }, 0)?;
        eq("the access time that was set", sys::stat(&path)?.st_atime, past)?;
        said(reads.pread(&mut [0], 0))?;
        yes("a read moves it", sys::stat(&path)?.st_atime > past)?;
        eq("a read of nothing", said(reads.pread(&mut [], 0))?, 0)?;
        eq("behind the largest offset", errno(writes.pwrite(b"x", i64::MAX as u64)), libc::EINVAL)?;
        at_the_largest_offsets(&reads, &writes)?;
        sys::ftruncate(&sys::open(&path, libc::O_RDWR, 0)?, 10)?;
        let appends = native(&path, libc::O_WRONLY | libc::O_APPEND)?;
        said(appends.pwrite(b"abc", 0))?;
        eq("appended", sys::get(&path)?, b"0123456789abc".to_vec())?;
        for (flags, after) in [(0, b"xyz3456789abc".to_vec()), (libc::O_APPEND, b"xyz3456789abcxyz".to_vec())] {
            // SAFETY: plain system call.
            eq("F_SETFL", unsafe { libc::fcntl(appends.as_raw_fd(), libc::F_SETFL, flags) }, 0)?;
            said(appends.pwrite(b"xyz", 0))?;
            eq("as fcntl(2) says now", sys::get(&path)?, after)?;
        }
        // SAFETY: plain system call.
        eq("F_SETFL", unsafe { libc::fcntl(appends.as_raw_fd(), libc::F_SETFL, 0) }, 0)?;
        eq("begun", said(appends.begin_pwrite(b"012", 0).map_err(|e| e.to_string())?.wait(&mut []))?, 3)?;
        sys::ftruncate(&sys::open(&path, libc::O_RDWR, 0)?, 13)?;
        eq("as it was", sys::get(&path)?, b"0123456789abc".to_vec())?;
        let pending: Vec<_> = (0..13).map(|i| said(reads.begin_pread(1, i))).collect::<Result<_, String>>()?;
        for (i, p) in pending.into_iter().enumerate() {
            let mut byte = [0];
            eq("one byte", said(p.wait(&mut byte))?, 1)?;
            eq("of its place", byte[0], b"0123456789abc"[i])?;
        }
        let dir = File::open(&at[0], libc::O_RDONLY | libc::O_DIRECTORY, 0).map_err(|e| e.to_string())?;
        eq("a directory", dir.is_native(), false)?;
        // This process has no other threads: nobody else gets the number.
        // SAFETY: plain system call.
        eq("close", unsafe { libc::close(dir.as_raw_fd()) }, 0)?;
        eq("closing it again", errno(dir.close()), libc::EBADF)
    });
}

/// Becomes a user without rights.
fn drop_to(uid: u32) -> R {
    // SAFETY: plain system calls in a process of one thread.
    let done = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(uid, uid, uid) == 0
            && libc::setresuid(uid, uid, uid) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error().to_string()) }
}

#[test]
fn another_user_gets_what_it_may_open_and_nothing_else() {
    if !can_mount() {
        return;
    }
    let (_up, at, _world) = up(transports()[0], 1);
    within(&at, "files", || {
        for (name, mode) in [("secret", 0o600), ("shown", 0o644), ("program", 0o6777)] {
            sys::put(&at[0].join(name), b"content")?;
            sys::chmod(&at[0].join(name), mode)?;
        }
        Ok(())
    });
    within(&at, "a stranger", || {
        // A token of root's open file that was taken already is nobody's any more.
        let root = native(&at[0].join("secret"), libc::O_RDWR)?;
        let offer = said(Offer::of(root.as_fd()))?;
        let again = said(Offer::of(root.as_fd()))?;
        drop_to(12_345)?;
        eq("an open", errno(File::open(&at[0].join("secret"), libc::O_RDONLY, 0)), libc::EACCES)?;
        let shown = native(&at[0].join("shown"), libc::O_RDONLY)?;
        eq("what may be read", get(&shown, 100, 0)?, b"content".to_vec())?;
        eq("what may not be written", errno(File::open(&at[0].join("shown"), libc::O_RDWR, 0)), libc::EACCES)?;
        let stream = said(UnixStream::connect(&offer.socket))?;
        let connection = std::sync::Arc::new(said(Connection::begin(stream, offer.uid))?);
        let ask = |s| connection.submit(s, &[], 8, Room::Waited).and_then(|t| t.wait(&mut []));
        let bind = |token| Offer { token, ..offer.clone() }.binding();
        eq("a token that was replaced", errno(ask(bind(offer.token))), libc::EBADF)?;
        eq("a token of nobody's", errno(ask(bind([1, 2]))), libc::EBADF)?;
        for file in [0, 1, 2, 1 << 32, 1 << 32 | 1, u64::MAX] {
            let read = Submission { op: op::READ, file, ..Submission::default() };
            eq("a number that is another connection's", errno(ask(read)), libc::EBADF)?;
        }
        yes("the token itself", ask(bind(again.token)).is_ok())?;
        eq("twice", errno(ask(bind(again.token))), libc::EBADF)?;
        let program = native(&at[0].join("program"), libc::O_WRONLY)?;
        said(program.pwrite(b"x", 0))?;
        eq("set-id bits", sys::stat(&at[0].join("program"))?.st_mode & 0o7777, 0o777)
    });
}

#[test]
fn a_closed_file_is_closed_to_the_rings() {
    if !can_mount() {
        return;
    }
    let (_up, at, _world) = up(transports()[0], 1);
    within(&at, "closed", || {
        let path = at[0].join("f");
        sys::put(&path, b"content")?;
        let fd = sys::open(&path, libc::O_RDONLY, 0)?;
        let offer = said(Offer::of(fd.as_fd()))?;
        let connection = said(Connection::to(&offer))?;
        let bind = offer.binding();
        let file = said(connection.submit(bind, &[], 0, Room::Waited).and_then(|t| t.wait(&mut [])))? as u64;
        let read = || {
            let s = Submission { op: op::READ, file, ..Submission::default() };
            connection.submit(s, &[], 7, Room::Waited).and_then(|t| t.wait(&mut []))
        };
        eq("while it is open", said(read())?, 7)?;
        drop(fd);
        // The kernel tells of the last close when it gets to it.
        let end = Instant::now() + LIMIT;
        while errno(read()) != libc::EBADF {
            if Instant::now() > end {
                return Err("it is still open".into());
            }
        }
        // Its place is another file's then, its number nobody's.
        let next = sys::open(&path, libc::O_RDONLY, 0)?;
        let bind = said(Offer::of(next.as_fd()))?.binding();
        let other = said(connection.submit(bind, &[], 0, Room::Waited).and_then(|t| t.wait(&mut [])))? as u64;
        eq("its place", other & u64::from(u32::MAX), file & u64::from(u32::MAX))?;
        eq("the number of before", errno(read()), libc::EBADF)
    });
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a living process").count()
}

#[test]
fn a_program_that_is_killed_leaves_nothing() {
    if !can_mount() {
        return;
    }
    let (up, at, _world) = up(transports()[0], 2);
    within(&at, "a file", || Ok(sys::put(&at[0].join("f"), b"x")?));
    let before = descriptors(up.pid());
    for _ in 0..5 {
        let child = spawn(|| {
            let file = native(&at[0].join("f"), libc::O_RDWR)?;
            let mut n = 0u64;
            loop {
                said(file.pwrite(&[7; 70_000], n % 50 * 10_000))?;
                drop(file.begin_pread(100_000, n % 40 * 10_000));
                n += 1;
            }
        })
        .expect("a process");
        until("it writes", || std::fs::metadata(at[1].join("f")).is_ok_and(|m| m.len() > 100_000));
        // SAFETY: our own child, not collected yet.
        unsafe { libc::kill(child.pid, libc::SIGKILL) };
        assert!(child.ended_within(LIMIT));
        until("its connection ends", || descriptors(up.pid()) <= before);
        within(&at, "the other mount has the file", || {
            sys::put(&at[1].join("f"), b"mine")?;
            same("nobody else's", &sys::get(&at[1].join("f"))?, b"mine")
        });
    }
}

#[test]
fn the_end_of_a_daemon_is_an_error_and_the_next_one_serves() {
    if !can_mount() {
        return;
    }
    let (first, at, mut world) = up(transports()[0], 1);
    let stores = world.path("stores");
    let second_point = world.point("second");
    let told = world.dir.path().join("told");
    let child = spawn(|| {
        let file = native(&at[0].join("f"), libc::O_RDWR | libc::O_CREAT)?;
        said(file.pwrite(b"before", 0))?;
        said(file.sync(false))?;
        std::fs::write(&told, b"synced").map_err(|e| e.to_string())?;
        let mut byte = [0];
        let mut ended = 0;
        while ended == 0 {
            ended = errno(file.pread(&mut byte, 0));
        }
        eq("the end of the daemon", ended, libc::ENOTCONN)?;
        eq("and from then on", errno(file.pwrite(b"x", 0)), libc::ENOTCONN)?;
        // The next daemon's mount is there when its own file is.
        let end = Instant::now() + LIMIT;
        let again = loop {
            match native(&second_point.join("f"), libc::O_RDWR) {
                Ok(again) => break again,
                Err(e) if Instant::now() > end => return Err(e),
                Err(_) => std::thread::park_timeout(Duration::from_millis(5)),
            }
        };
        same("what was synced", &get(&again, 100, 0)?, b"before")?;
        said(again.pwrite(b"after", 0)).map(drop)
    })
    .expect("a process");
    until("it wrote", || told.exists());
    first.kill();
    let _second = RoleProcess::start(&["up", &stores, "2", transports()[0], second_point.to_str().expect("plain")]);
    assert!(child.ended_within(LIMIT), "it ends");
    if let Err(e) = child.join() {
        panic!("{e}");
    }
}

/// Random numbers; the seed is the test's.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    /// Numbers at which something may break, and any others.
    fn number(&mut self) -> u64 {
        const EDGES: [u64; 10] =
            [0, 1, 4095, 4096, 1 << 20, (1 << 20) + 1, 4 << 20, i64::MAX as u64, u64::MAX - 4095, u64::MAX];
        match self.next() % 3 {
            0 => EDGES[(self.next() % 10) as usize],
            1 => self.next() % 8192,
            _ => self.next(),
        }
    }
}

fn raw(offer: &Offer) -> Result<(UnixStream, Area, OwnedFd), String> {
    let stream = said(UnixStream::connect(&offer.socket))?;
    let [memory, daemons] = said(pass::be_greeted(&stream))?;
    Ok((stream, said(Area::map(&memory, AREA_BYTES))?, daemons))
}

#[test]
fn a_program_that_writes_anything_into_the_rings_hurts_nobody() {
    if !can_mount() {
        return;
    }
    let (_up, at, _world) = up(transports()[0], 1);
    let (file, other) = (at[0].join("f"), at[0].join("other"));
    within(&at, "files", || {
        sys::put(&file, &[3; 100_000])?;
        Ok(sys::put(&other, &[4; 100_000])?)
    });
    within(&at, "hostile requests", || {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
        for _ in 0..60 {
            let fd = sys::open(&file, libc::O_RDONLY, 0)?;
            let offer = said(Offer::of(fd.as_fd()))?;
            let (_stream, area, daemons) = raw(&offer)?;
            let mut end = ProgramEnd::new(area);
            let bind = offer.binding();
            let _ = end.submit(&bind);
            pass::ring_bell(daemons.as_fd());
            for user in 0..60 {
                let s = Submission {
                    op: dice.next() % 9,
                    // The first place of the connection's numbers, given out once, and others.
                    file: ((dice.next() % 2) << 32) | (dice.next() % 3),
                    offset: dice.number(),
                    data: dice.number(),
                    len: dice.number(),
                    user,
                    spare: dice.number(),
                };
                let _ = end.submit(&s);
            }
            pass::ring_bell(daemons.as_fd());
        }
        Ok(())
    });
    within(&at, "hostile memory", || {
        let mut dice = Dice(0x2545_f491_4f6c_dd1d);
        for _ in 0..60 {
            let fd = sys::open(&file, libc::O_RDONLY, 0)?;
            let (_stream, area, daemons) = raw(&said(Offer::of(fd.as_fd()))?)?;
            for _ in 0..200 {
                let at = (dice.next() as usize % DATA) & !7;
                area.word(at).store(dice.number(), Relaxed);
                if dice.next().is_multiple_of(8) {
                    pass::ring_bell(daemons.as_fd());
                }
            }
        }
        Ok(())
    });
    within(&at, "an honest program beside them", || {
        let other = native(&other, libc::O_RDWR)?;
        same("its file", &get(&other, 100_000, 0)?, &[4; 100_000])?;
        same("the file that was open for reading", &sys::get(&file)?, &[3; 100_000])
    });
}

/// The program's word of sleep in the shared memory: an answer has to wake it.
const PROGRAM_SLEEPS: usize = 320;

/// Leaves nothing undone to make who shares these descriptors wait, and asks to be woken.
fn would_make_wait(offer: &Offer) -> R {
    let (stream, area, bell) = raw(offer)?;
    let mut end = ProgramEnd::new(area);
    for fd in [stream.as_fd(), bell.as_fd()] {
        // SAFETY: plain system call.
        eq("its flags", unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, 0) }, 0)?;
    }
    for round in 0..3000u64 {
        end.area().half(PROGRAM_SLEEPS).store(1, Relaxed);
        let _ = end.submit(&Submission { user: round, ..Submission::default() });
        pass::ring_bell(bell.as_fd());
        let last = Instant::now() + LIMIT / 4;
        while end.reap().is_ok_and(|a| a.is_none()) {
            yes("an answer in time", Instant::now() < last)?;
            end.area().half(PROGRAM_SLEEPS).store(1, Relaxed);
            // Perhaps between the daemon's look at its bell and its taking the count.
            said(pass::hush(bell.as_fd()))?;
            pass::ring_bell(bell.as_fd());
        }
    }
    // A counter that is full, and answers all the same.
    let full = (u64::MAX - 1).to_ne_bytes();
    said(pass::hush(bell.as_fd()))?;
    // SAFETY: eight bytes that outlive the call.
    unsafe { libc::write(bell.as_raw_fd(), full.as_ptr().cast(), 8) };
    Ok(())
}

#[test]
fn a_program_that_changes_the_flags_of_what_it_shares_makes_nobody_wait() {
    if !can_mount() {
        return;
    }
    let (_up, at, _world) = up(transports()[0], 1);
    let file = at[0].join("f");
    within(&at, "the file", || Ok(sys::put(&file, &[3; 1000])?));
    within(&at, "a hostile program", || {
        let fd = sys::open(&file, libc::O_RDONLY, 0)?;
        would_make_wait(&said(Offer::of(fd.as_fd()))?)
    });
    within(&at, "an honest one", || same("its file", &get(&native(&file, libc::O_RDWR)?, 1000, 0)?, &[3; 1000]));
}

/// Servers, and a mount whose locks of a file `f` are another's.
struct Apart {
    oss: RoleProcess,
    mounts: RoleProcess,
    at: Vec<PathBuf>,
    _mds: RoleProcess,
    _world: World,
}

impl Apart {
    fn new() -> Apart {
        let mut world = World::new();
        let mds = RoleProcess::start(&["mds", &world.path("mdt"), "tcp:127.0.0.1:0"]);
        let oss = RoleProcess::start(&["oss", &world.path("oss"), "tcp:127.0.0.1:0", &mds.at, "0,1"]);
        let at: Vec<PathBuf> = (0..2).map(|i| world.point(&format!("mnt{i}"))).collect();
        let mut words = vec!["mount", &mds.at, "2", transports()[0]];
        words.extend(at.iter().map(|p| p.to_str().expect("a plain path")));
        let mounts = RoleProcess::start(&words);
        sys::put(&at[1].join("f"), &[1; 200_000]).expect("a file");
        Apart { oss, mounts, at, _mds: mds, _world: world }
    }
}

/// A process that begins something natively and ends, through `fd`; whether it had a connection.
fn begins_and_ends(at: &[PathBuf], fd: &OwnedFd, begins: impl FnOnce(&File) -> R) -> bool {
    const NONE: &str = "no connection";
    let child = spawn(|| {
        let file = File::from(said(fd.try_clone())?);
        if file.is_native() { begins(&file) } else { Err(NONE.into()) }
    })
    .expect("a process");
    if !child.ended_within(LIMIT) {
        roles::abort(at);
        panic!("no end within {LIMIT:?}");
    }
    match child.join() {
        Err(e) if e.contains(NONE) => false,
        ended => ended.map(|()| true).expect("it begins what it can"),
    }
}

#[test]
fn a_connection_keeps_its_place_while_a_write_goes_on_and_reads_end_with_their_program() {
    if !can_mount() {
        return;
    }
    let c = Apart::new();
    let fd = sys::open(&c.at[0].join("f"), libc::O_RDWR, 0).expect("an open while the servers are there");
    c.oss.kill();
    let before = descriptors(c.mounts.pid());
    for _ in 0..40 {
        let reads = |f: &File| (0..9).try_for_each(|i| said(f.begin_pread(4096, i * 4096)).map(drop));
        until("a place", || begins_and_ends(&c.at, &fd, reads));
    }
    until("what reads had ends", || descriptors(c.mounts.pid()) <= before);
    let writes = |f: &File| said(f.begin_pwrite(&[7; 4096], 0)).map(drop);
    let served = (0..40).take_while(|_| begins_and_ends(&c.at, &fd, writes)).count();
    assert_eq!(served, 32, "as many as a user may have");
    roles::abort(&c.at);
}

/// Ends the program's half of a connection, and waits until the daemon has hung up.
fn half_closed(stream: &UnixStream) -> R {
    said(stream.shutdown(std::net::Shutdown::Write))?;
    let mut of = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one entry that outlives the call.
    eq("hung up", unsafe { libc::poll(&raw mut of, 1, LIMIT.as_millis() as i32) }, 1)
}

#[test]
fn connections_that_ended_leave_nothing_with_who_keeps_descriptors_of_them() {
    if !can_mount() {
        return;
    }
    let (_up, at, _world) = up(transports()[0], 1);
    within(&at, "ended connections", || {
        let path = at[0].join("f");
        sys::put(&path, b"x")?;
        let fd = sys::open(&path, libc::O_RDONLY, 0)?;
        let offer = said(Offer::of(fd.as_fd()))?;
        let (stream, area, _bell) = raw(&offer)?;
        area.put(DATA, b"kept");
        half_closed(&stream)?;
        let mut bytes = *b"kept";
        let end = Instant::now() + LIMIT;
        while bytes != [0; 4] {
            area.get(DATA, &mut bytes);
            if Instant::now() > end {
                return Err("the memory is not taken back".into());
            }
        }
        // Greetings that nobody takes have descriptors in flight.
        let mut held = Vec::new();
        let refused = loop {
            let next = said(UnixStream::connect(&offer.socket))?;
            half_closed(&next)?;
            let mut byte = [0];
            // SAFETY: room for a byte, which stays where it is.
            let came = unsafe { libc::recv(next.as_raw_fd(), byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK) };
            if came == 0 || held.len() > 1000 {
                break came == 0;
            }
            held.push(next);
        };
        eq("turned away", refused, true)?;
        held.clear();
        let end = Instant::now() + LIMIT;
        while native(&path, libc::O_RDONLY).is_err() {
            if Instant::now() > end {
                return Err("places do not become free".into());
            }
        }
        Ok(())
    });
}

/// A page of memory that stays away until what is returned is closed: whoever touches it waits, and poll(2) tells of that (of
/// descriptors that do not block; others are always in error).
fn page_that_is_long_in_coming() -> Result<(usize, OwnedFd), String> {
    // `linux/userfaultfd.h`: its version, its requests, and registration of pages that are missing.
    let (api, register) = (0xc018_aa3f, 0xc020_aa00);
    let (mut agreed, protection) = ([0xaa, 0, 0_u64], libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: plain system calls; a mapping of its own that nobody refers to.
    let (fd, page) = unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK);
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        (fd as i32, page as usize)
    };
    if fd < 0 {
        return Err(format!("userfaultfd(2): {}", io::Error::last_os_error()));
    }
    let mut range = [page as u64, 4096, 1, 0];
    // SAFETY: an open descriptor that is nobody else's; structures of the requests' shapes.
    let (fd, done) = unsafe {
        let done = libc::ioctl(fd, api, agreed.as_mut_ptr()) == 0 && libc::ioctl(fd, register, range.as_mut_ptr()) == 0;
        (OwnedFd::from_raw_fd(fd), done)
    };
    if done { Ok((page, fd)) } else { Err(format!("userfaultfd: {}", io::Error::last_os_error())) }
}

#[test]
fn a_program_that_is_slow_to_write_into_the_memory_of_its_connection_makes_no_daemon_wait() {
    if !can_mount() {
        return;
    }
    let (_up, at, _world) = up(transports()[0], 1);
    within(&at, "a write that takes long", || {
        let path = at[0].join("f");
        sys::put(&path, b"x")?;
        let fd = sys::open(&path, libc::O_RDONLY, 0)?;
        let offer = said(Offer::of(fd.as_fd()))?;
        let stream = said(UnixStream::connect(&offer.socket))?;
        let [memory, _bell] = said(pass::be_greeted(&stream))?;
        let area = said(Area::map(&memory, AREA_BYTES))?;
        area.put(DATA, b"kept");
        let (page, comes) = page_that_is_long_in_coming()?;
        let number = memory.as_raw_fd();
        // SAFETY: a page that stays mapped, and an open descriptor until the thread is joined.
        let writer = std::thread::spawn(move || unsafe { libc::write(number, page as *const libc::c_void, 4096) });
        let mut touched = libc::pollfd { fd: comes.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry that outlives the call.
        let polled = unsafe { libc::poll(&raw mut touched, 1, LIMIT.as_millis() as i32) };
        eq("it writes", (polled, touched.revents), (1, libc::POLLIN))?;
        half_closed(&stream)?;
        for _ in 0..10 {
            let other = native(&path, libc::O_RDONLY)?;
            same("natively", &get(&other, 9, 0)?, b"x")?;
            same("through the kernel", &sys::get(&path)?, b"x")?;
        }
        let mut bytes = [0; 4];
        area.get(DATA, &mut bytes);
        same("it still writes", &bytes, b"kept")?;
        drop(comes);
        eq("bytes written", writer.join().map_err(|_| "the writer panicked")?, 4096)?;
        let end = Instant::now() + LIMIT;
        while bytes != [0; 4] {
            area.get(DATA, &mut bytes);
            if Instant::now() > end {
                return Err("the memory is not taken back".into());
            }
        }
        Ok(())
    });
}

#[test]
fn a_user_has_so_many_connections_and_others_theirs() {
    if !can_mount() {
        return;
    }
    let (_up, at, _world) = up(transports()[0], 1);
    within(&at, "connections", || {
        let path = at[0].join("f");
        sys::put(&path, b"x")?;
        let fd = sys::open(&path, libc::O_RDONLY, 0)?;
        let offer = said(Offer::of(fd.as_fd()))?;
        let greeted = || UnixStream::connect(&offer.socket).and_then(|s| pass::be_greeted(&s).map(|g| (s, g)));
        let mut held: Vec<_> = Vec::new();
        let refused = loop {
            match greeted() {
                Ok(one) => held.push(one),
                Err(e) => break e,
            }
            if held.len() > 1000 {
                return Err("no end of connections".into());
            }
        };
        eq("turned away", refused.raw_os_error(), Some(libc::ECONNREFUSED))?;
        let file = File::open(&path, libc::O_RDONLY, 0).map_err(|e| e.to_string())?;
        eq("through the kernel then", (file.is_native(), get(&file, 9, 0)?), (false, b"x".to_vec()))?;
        held.clear();
        let end = Instant::now() + LIMIT;
        while native(&path, libc::O_RDONLY).is_err() {
            if Instant::now() > end {
                return Err("places do not become free".into());
            }
        }
        Ok(())
    });
}
