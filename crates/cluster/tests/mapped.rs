//! Files that are mapped and stored to while everything else happens to them: no request may wait for a kernel's pages
//! that wait for the request (`docs/internals/kernel-locks.md`). A mount that answers no more is aborted, so that a
//! failure is a failure and not a hang.
mod roles;

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use posix::cases::Map;
use posix::check::{eq, same};
use posix::run::spawn;
use posix::sys::{self, R};
use roles::{RoleProcess, World, can_mount, transports};
use types::Rng;

/// What the other tests start in processes of its own; without being told a role there is nothing to serve.
#[test]
fn a_role_serves_in_a_process_of_its_own() {
    roles::serve_if_told();
}

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const LIMIT: Duration = Duration::from_secs(600);

/// A cluster in one process, with mounts that are aborted when something on them does not end.
struct Mounts {
    at: Vec<PathBuf>,
    _up: RoleProcess,
    _world: World,
}

impl Mounts {
    fn new(transport: &str, n: usize) -> Mounts {
        let mut world = World::new();
        let at: Vec<PathBuf> = (0..n).map(|i| world.point(&format!("mnt{i}"))).collect();
        let stores = world.path("stores");
        let mut words = vec!["up", &stores, "4", transport];
        words.extend(at.iter().map(|p| p.to_str().expect("a plain path")));
        let up = RoleProcess::start(&words);
        Mounts { at, _up: up, _world: world }
    }
    fn within(&self, what: &str, f: impl FnOnce() -> R) {
        let child = spawn(f).expect("a process");
        if !child.ended_within(LIMIT) {
            roles::abort(&self.at);
            panic!("{what}: no end within {LIMIT:?}");
        }
        if let Err(e) = child.join() {
            panic!("{what}: {e}");
        }
    }
}

fn shared(fd: &OwnedFd, len: usize) -> Result<Map, String> {
    Map::new(fd, 0, len, RW, libc::MAP_SHARED)
}

#[test]
fn a_truncate_of_a_file_with_dirty_mapped_pages_ends() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let mounts = Mounts::new(transport, 1);
        let dir = mounts.at[0].clone();
        mounts.within(transport, || {
            for (i, size) in [8192, 0, 5000, 65_536, 100_000].into_iter().enumerate() {
                let path = dir.join(format!("f{i}"));
                let fd = sys::open(&path, libc::O_RDWR | libc::O_CREAT, 0o644)?;
                sys::ftruncate(&fd, 65_536)?;
                let map = shared(&fd, 65_536)?;
                (0..16).for_each(|p| map.set(p * 4096 + 5, b"stored"));
                sys::ftruncate(&fd, size as i64)?;
                let got = sys::get(&path)?;
                eq("size", got.len(), size)?;
                for p in (0..16).filter(|p| p * 4096 + 11 <= size) {
                    same(&format!("page {p} of {size} bytes"), &got[p * 4096 + 5..p * 4096 + 11], b"stored")?;
                }
                sys::ftruncate(&fd, 200_000)?;
                let got = sys::get(&path)?;
                eq("behind the cut", got[size..].iter().position(|b| *b != 0), None)?;
            }
            Ok(())
        });
    }
}

const FILE_BYTES: usize = 1 << 20;
const STEPS: u32 = 150;

/// Stores through a mapping as a system call does: behind the end of the file there is no signal.
fn store(map_at: *mut u8, pipe: &(OwnedFd, OwnedFd), byte: u8) {
    // SAFETY: the kernel checks the address of the mapping, which lives through the call; one byte each.
    unsafe {
        libc::write(pipe.1.as_raw_fd(), (&raw const byte).cast(), 1);
        if libc::read(pipe.0.as_raw_fd(), map_at.cast(), 1) != 1 {
            let mut rest = 0u8;
            libc::read(pipe.0.as_raw_fd(), (&raw mut rest).cast(), 1);
        }
    }
}

/// What one thread does again and again to a file that others map, cut, write and remove at the same time.
fn hammer(dir: &Path, kind: usize, seed: u64) -> R {
    let mut rng = Rng::named(seed, &format!("kind {kind}"));
    let (file, other) = (dir.join("file"), dir.join(format!("other{kind}-{seed}")));
    let flags = libc::O_RDWR | libc::O_CREAT;
    for step in 0..STEPS {
        let fd = sys::open(&file, flags, 0o644)?;
        let at = rng.below(FILE_BYTES as u64) as i64;
        match kind {
            0 | 1 => {
                let map = shared(&fd, FILE_BYTES)?;
                let pipe = sys::pipe()?;
                (0..40).for_each(|_| store(map.address(rng.below(FILE_BYTES as u64) as usize), &pipe, step as u8));
                if step % 4 == 0 {
                    let _ = map.sync();
                }
            }
            2 => drop(sys::ftruncate(&fd, at)?),
            3 => drop(sys::truncate(&file, FILE_BYTES as i64)),
            4 => drop(sys::fallocate(&fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, at, 100_000)?),
            5 => drop(sys::fallocate(&fd, 0, at, 70_000)?),
            6 => drop(sys::open(&file, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, 0o644)?),
            7 => {
                sys::fsync(&fd)?;
                let _ = sys::unlink(&file);
            }
            8 => {
                sys::put(&other, b"replaces it")?;
                sys::rename(&other, &file)?;
            }
            9 => drop(sys::pwrite(&fd, &[step as u8; 150_000], at)?),
            10 => {
                sys::pread(&fd, 150_000, at)?;
                let read_only = sys::open(&file, libc::O_RDONLY, 0);
                if let Ok(read_only) = read_only {
                    sys::pread(&read_only, 150_000, at)?;
                }
            }
            11 => {
                sys::fchmod(&fd, 0o600 + step % 0o177)?;
                let now = libc::timespec { tv_sec: i64::from(step), tv_nsec: 0 };
                sys::futimens(&fd, &[now, now])?;
            }
            12 => drop(sys::copy_range(&fd, 0, &fd, (FILE_BYTES / 2) as i64, 200_000)?),
            _ => {
                let append = sys::open(&file, libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND, 0o644)?;
                sys::write_all(&append, &[1; 3000])?;
            }
        }
    }
    Ok(())
}

#[test]
fn nothing_that_happens_to_a_mapped_file_waits_for_its_own_pages() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let mounts = Mounts::new(transport, 2);
        let dirs = mounts.at.clone();
        mounts.within(transport, || {
            std::thread::scope(|s| {
                let work: Vec<_> = (0..28)
                    .map(|i| {
                        let dir = &dirs[i % 2];
                        s.spawn(move || hammer(dir, i / 2, i as u64).map_err(|e| format!("kind {}: {e}", i / 2)))
                    })
                    .collect();
                work.into_iter().try_for_each(|w| w.join().map_err(|_| "a thread panicked".to_string())?)
            })
        });
    }
}

const ADVISED_BYTES: usize = 4 << 20;

/// Stores to pages here and there of a mapping that is advised to have huge pages: a kernel locks those of 4 MiB then before it asks for any.
fn store_advised(dir: &Path, own: usize) -> R {
    let fd = sys::open(&dir.join("advised"), libc::O_RDWR, 0)?;
    let map = shared(&fd, ADVISED_BYTES)?;
    for step in 0..200 {
        let advice = if step % 5 == 0 { libc::MADV_DONTNEED } else { libc::MADV_HUGEPAGE };
        // SAFETY: advice to a shared mapping of a file changes no bytes of it.
        let advised = unsafe { libc::madvise(map.address(0).cast(), ADVISED_BYTES, advice) };
        eq("madvise", advised, 0)?;
        map.set(step * 7919 % 1024 * 4096 + own, &[step as u8]);
        if step % 3 == 0 {
            map.sync()?;
        }
    }
    Ok(())
}

#[test]
fn mappings_on_two_mounts_that_are_advised_huge_pages_wait_for_no_pages_of_their_own() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let mounts = Mounts::new(transport, 2);
        let dirs = mounts.at.clone();
        mounts.within(transport, || {
            let fd = sys::open(&dirs[0].join("advised"), libc::O_RDWR | libc::O_CREAT, 0o644)?;
            sys::ftruncate(&fd, ADVISED_BYTES as i64)?;
            std::thread::scope(|s| {
                let work: Vec<_> =
                    dirs.iter().enumerate().map(|(i, dir)| s.spawn(move || store_advised(dir, i))).collect();
                work.into_iter().try_for_each(|w| w.join().map_err(|_| "a thread panicked".to_string())?)
            })?;
            let (one, other) = (sys::get(&dirs[0].join("advised"))?, sys::get(&dirs[1].join("advised"))?);
            same("what both mounts read", &one, &other)?;
            for (i, step) in (0..2).flat_map(|i| (0..200).map(move |step| (i, step))) {
                eq("a store", one[step * 7919 % 1024 * 4096 + i], step as u8)?;
            }
            Ok(())
        });
    }
}
