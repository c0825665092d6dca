//! What a program says of memory that files of a mount are mapped into reaches the mount through the preloaded library.
//! Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use support::{can_mount, good};

const MIB: usize = 1 << 20;
/// Names the step that the program below does, and the file it does it to.
const STEP: &str = "STRIA_TEST_STEP";
const FILE: &str = "STRIA_TEST_FILE";
/// errno before a call that must not change it.
const UNTOUCHED: i32 = 77;

fn errno() -> *mut i32 {
    // SAFETY: the calling thread's errno is always there.
    unsafe { libc::__errno_location() }
}

fn map(fd: i32, at: usize, len: usize) -> *mut u8 {
    // SAFETY: a new mapping at a place that the kernel chooses.
    let p = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, libc::off_t::try_from(at).unwrap())
    };
    assert!(p != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    p.cast()
}

/// Advises, successfully, and errno stays.
fn advise(p: *mut u8, len: usize, advice: i32) {
    // SAFETY: as above, and the advice leaves mappings of files as they are.
    unsafe {
        *errno() = UNTOUCHED;
        assert_eq!((libc::madvise(p.cast(), len, advice), *errno()), (0, UNTOUCHED));
    }
}

fn at(p: *mut u8, offset: usize) -> *mut u8 {
    p.wrapping_add(offset)
}

fn touch(p: *mut u8, pages: usize) {
    // SAFETY: the callers mapped that many pages.
    (0..pages).for_each(|i| assert_eq!(unsafe { at(p, i * 4096).read_volatile() }, 7));
}

/// Calls that the kernel refuses, with its errno.
fn refused(fd: i32) {
    let p = map(fd, 0, 2 * MIB);
    // SAFETY: the calls are refused, or about a mapping that nobody uses any more.
    unsafe {
        assert_eq!((libc::madvise(at(p, 1).cast(), MIB, libc::MADV_DONTNEED), *errno()), (-1, libc::EINVAL));
        assert_eq!((libc::madvise(p.cast(), MIB, 1234), *errno()), (-1, libc::EINVAL));
        assert_eq!(libc::munmap(p.cast(), MIB), 0);
        assert_eq!((libc::madvise(p.cast(), MIB, libc::MADV_DONTNEED), *errno()), (-1, libc::ENOMEM));
        assert_eq!((libc::munmap(at(p, 1).cast(), MIB), *errno()), (-1, libc::EINVAL));
        let nowhere = libc::mmap(std::ptr::null_mut(), MIB, libc::PROT_READ, libc::MAP_SHARED, fd, 1);
        assert_eq!((nowhere, *errno()), (libc::MAP_FAILED, libc::EINVAL));
        let nothing = libc::mremap(p.cast(), MIB, 2 * MIB, libc::MREMAP_MAYMOVE);
        assert_eq!((nothing, *errno()), (libc::MAP_FAILED, libc::EFAULT));
    }
}

/// Advice about memory that is no mapping of the mount's file, or is none any more.
fn other_memory(fd: i32) {
    let p = map(fd, 0, 2 * MIB);
    let other = tempfile::tempfile().unwrap();
    other.set_len(MIB as u64).unwrap();
    advise(map(other.as_raw_fd(), 0, MIB), MIB, libc::MADV_DONTNEED);
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: memory of this function's own; the fixed one takes the place of a mapping that nobody uses.
    unsafe {
        let own = libc::mmap(p.cast(), MIB, prot, flags | libc::MAP_FIXED, -1, 0).cast::<u8>();
        assert_eq!(own, p);
        own.write(1);
        advise(own, MIB, libc::MADV_DONTNEED);
        assert_eq!(own.read(), 0, "the kernel did what it does");
    }
}

/// The program: each step begins with a file of 8 MiB.
fn program(step: &str, path: &str) {
    let file = fs::File::open(path).unwrap();
    let fd = file.as_raw_fd();
    match step {
        "a part of a mapping at an offset" => advise(at(map(fd, 4 * MIB, 4 * MIB), MIB), MIB, libc::MADV_DONTNEED),
        "posix" => {
            let p = map(fd, 2 * MIB, MIB);
            // SAFETY: nothing is changed by advice of POSIX.
            unsafe {
                *errno() = UNTOUCHED;
                assert_eq!(libc::posix_madvise(p.cast(), MIB, libc::POSIX_MADV_DONTNEED), 0);
                assert_eq!(libc::posix_madvise(at(p, 1).cast(), MIB, libc::POSIX_MADV_RANDOM), libc::EINVAL);
                assert_eq!(libc::posix_madvise(p.cast(), MIB, 1234), libc::EINVAL);
                assert_eq!(*errno(), UNTOUCHED);
            }
        }
        "refused" => refused(fd),
        "other memory" => other_memory(fd),
        "moved" => {
            let p = map(fd, 0, 8 * MIB);
            // SAFETY: a mapping of this function's own.
            let moved = unsafe {
                assert_eq!(libc::munmap(at(p, MIB).cast(), 7 * MIB), 0);
                libc::mremap(p.cast(), MIB, 16 * MIB, libc::MREMAP_MAYMOVE).cast::<u8>()
            };
            advise(at(moved, 3 * MIB), MIB, libc::MADV_DONTNEED);
        }
        "another descriptor" => {
            let again = file.try_clone().unwrap();
            let p = map(fd, 6 * MIB, MIB);
            drop(file);
            advise(p, MIB, libc::MADV_DONTNEED);
            drop(again);
            advise(p, MIB, libc::MADV_DONTNEED);
        }
        "no descriptor" => {
            let p = map(fd, 0, 8 * MIB);
            drop(file);
            // The number is another file's now.
            let _other = tempfile::tempfile().unwrap();
            advise(p, 8 * MIB, libc::MADV_DONTNEED);
        }
        "willneed" => {
            let p = map(fd, 4 * MIB, 4 * MIB);
            advise(at(p, MIB), 2 * MIB, libc::MADV_WILLNEED);
            touch(at(p, MIB), 512);
        }
        "random" | "sequential" => {
            let p = map(fd, 0, 8 * MIB);
            advise(p, 8 * MIB, libc::MADV_RANDOM);
            if step == "sequential" {
                advise(p, 8 * MIB, libc::MADV_SEQUENTIAL);
            }
            touch(p, 512);
        }
        _ => panic!("no such step: {step}"),
    }
}

#[test]
#[ignore = "a program that the test below runs"]
fn program_that_advises() {
    program(&std::env::var(STEP).unwrap(), &std::env::var(FILE).unwrap());
}

/// Runs a step with the library or without.
fn run(step: &str, file: &str, preload: bool) {
    let program = std::env::current_exe().unwrap();
    let library = program.with_file_name("libstria_posix.so");
    assert!(library.exists(), "{} is built along with this test", library.display());
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "program_that_advises", "--nocapture"]).env(STEP, step).env(FILE, file);
    let out = command.env("LD_PRELOAD", if preload { library.as_path() } else { Path::new("") }).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("1 passed"), "{step}: {said}");
}

/// A cluster with a file of 8 MiB, unmounted at the end whatever happened.
struct Mounted {
    dir: tempfile::TempDir,
}

impl Mounted {
    fn new() -> Mounted {
        let new = Mounted { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(new.at("mnt")).unwrap();
        new.up();
        fs::write(new.at("mnt/f"), vec![7; 8 * MIB]).unwrap();
        fs::File::open(new.at("mnt/f")).unwrap().sync_all().unwrap();
        new
    }
    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().into()
    }
    fn up(&self) {
        good(&["up", "--background", "--dir", &self.at("c"), "--mount", &self.at("mnt"), "--osts", "1"]);
    }
    fn down(&self) {
        good(&["umount", &self.at("mnt")]);
    }
    fn get(&self, name: &str) -> String {
        good(&["get_param", "-n", "--at", &self.at("mnt"), &format!("llite.*.{name}")]).trim_end().into()
    }
    fn readahead(&self, counter: &str) -> u64 {
        let stats = self.get("read_ahead_stats");
        let line = stats.lines().find_map(|l| l.strip_prefix(counter)?.strip_prefix(' ')).unwrap();
        line.split(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.at("mnt")]).output();
    }
}

#[test]
fn what_is_not_needed_of_a_mapping_leaves_the_mounts_cache_and_nothing_else_does() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    let file = m.at("mnt/f");
    assert_eq!(m.get("used_mb"), "8");
    // What the mount keeps afterwards, of 8 MiB.
    for (step, kept) in [
        ("a part of a mapping at an offset", "7"),
        ("posix", "7"),
        ("refused", "8"),
        ("other memory", "8"),
        ("moved", "7"),
        ("another descriptor", "7"),
        ("no descriptor", "8"),
    ] {
        run(step, &file, false);
        assert_eq!(m.get("used_mb"), "8", "{step}: a kernel keeps it to itself");
        run(step, &file, true);
        assert_eq!(m.get("used_mb"), kept, "{step}");
        fs::write(&file, vec![7; 8 * MIB]).unwrap();
        fs::File::open(&file).unwrap().sync_all().unwrap();
        assert_eq!(m.get("used_mb"), "8", "{step}");
    }
    m.down();
}

#[test]
fn what_is_said_of_reading_a_mapping_reaches_readahead() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    let file = m.at("mnt/f");
    let counted = |step: &str, preload: bool, counter: &str| {
        // Nothing is cached in a mount that begins.
        m.down();
        m.up();
        run(step, &file, preload);
        m.readahead(counter)
    };
    assert_eq!(counted("willneed", false, "willneed_bytes"), 0);
    assert_eq!(counted("willneed", true, "willneed_bytes"), 2 * MIB as u64);
    assert!(counted("random", false, "prefetched_bytes") > 0, "pages one after the other look like a pattern");
    assert_eq!(counted("random", true, "prefetched_bytes"), 0);
    assert!(counted("sequential", true, "prefetched_bytes") > 0);
    m.down();
}
