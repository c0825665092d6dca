//! What kernels keep of a cluster that two mounts work on at once: pages under extent locks, listings and attributes
//! under inode-bit locks. No read, through a descriptor or a mapping, gives older bytes than the last write that had
//! ended when it began, and no listing lacks a name or has one too many, however locks come and go. Needs root and
//! `/dev/fuse`.
//!
//! Longer, or again: `STRIA_KERNEL_STEPS=20000 STRIA_KERNEL_SEED=7 cargo test -p stria --test kernel -- --nocapture`.
#![allow(clippy::unwrap_used)]
mod support;

use std::collections::HashSet;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

use support::{Cluster, can_mount, good, text};
use types::Rng;

const PAGE: usize = 4096;
const FILES: usize = 4;
/// Pages of a file: several stripes of 64 KiB.
const PAGES: usize = 96;
const NAMES: usize = 24;
const THREADS_PER_MOUNT: usize = 2;
const THREADS: usize = 2 * THREADS_PER_MOUNT;
/// Without an end of all work by then, something waits for ever.
const LIMIT: Duration = Duration::from_secs(300);

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |t| t.parse().unwrap_or_else(|_| panic!("{variable}={t} is not a number")))
}

/// Something that one thread changes, step by step.
#[derive(Default)]
struct Version {
    begun: AtomicU64,
    ended: AtomicU64,
}

struct Shared {
    pages: Vec<Vec<Version>>,
    /// Names of one directory; an odd version exists.
    names: Vec<Version>,
}

struct Thread {
    id: usize,
    at: PathBuf,
    rng: Rng,
    shared: Arc<Shared>,
    /// Descriptors kept open for reading.
    open: Vec<Option<fs::File>>,
    /// A directory kept open.
    listed: Option<Directory>,
}

/// A file mapped for reading.
struct Mapping {
    start: *mut libc::c_void,
    bytes: usize,
}
impl Mapping {
    fn new(file: &fs::File, bytes: usize) -> Mapping {
        // SAFETY: a new shared mapping at a place that the kernel chooses.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert!(start != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Mapping { start, bytes }
    }
    fn word(&self, index: usize) -> u64 {
        assert!(index * 8 < self.bytes);
        // SAFETY: inside the mapping, aligned, and read as what may change at any time.
        unsafe { self.start.cast::<u64>().add(index).read_volatile() }
    }
}
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, which nobody else has.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

/// An open directory, listed again and again.
struct Directory(*mut libc::DIR);
// SAFETY: moved between threads, used by one at a time.
unsafe impl Send for Directory {}
impl Directory {
    fn open(path: &Path) -> Result<Directory, String> {
        let name = std::ffi::CString::new(text(path)).unwrap();
        // SAFETY: a string that ends with 0.
        let stream = unsafe { libc::opendir(name.as_ptr()) };
        if stream.is_null() {
            return Err(format!("opendir: {}", std::io::Error::last_os_error()));
        }
        Ok(Directory(stream))
    }
    /// Every name, from the first on.
    fn list(&self) -> HashSet<String> {
        let mut names = HashSet::new();
        // SAFETY: an open stream, of which nothing is kept across calls; an entry is valid until the next call.
        unsafe {
            libc::rewinddir(self.0);
            while let Some(entry) = libc::readdir(self.0).as_ref() {
                let name = std::ffi::CStr::from_ptr(entry.d_name.as_ptr());
                names.insert(name.to_str().unwrap().to_string());
            }
        }
        names
    }
}
impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: the stream opened above, once.
        unsafe { libc::closedir(self.0) };
    }
}

fn page_of(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(PAGE / 8)
}

impl Thread {
    fn file(&self, f: usize) -> PathBuf {
        self.at.join(format!("file{f}"))
    }
    fn name(&self, n: usize) -> PathBuf {
        self.at.join("names").join(format!("name{n}"))
    }
    fn step(&mut self) -> Result<(), String> {
        match self.rng.below(12) {
            0..3 => self.write(),
            3..6 => self.read(),
            6 => self.read_mapped(),
            7 => self.change_name(),
            8..11 => self.list(),
            _ => self.look(),
        }
    }
    /// Writes some of this thread's pages in one file, each as a version of its own.
    fn write(&mut self) -> Result<(), String> {
        let f = self.rng.below(FILES as u64) as usize;
        let file = fs::OpenOptions::new().read(self.rng.below(2) == 0).write(true).open(self.file(f));
        let file = file.map_err(|e| format!("open file{f} for writing: {e}"))?;
        for _ in 0..=self.rng.below(3) {
            let page = self.rng.below((PAGES / THREADS) as u64) as usize * THREADS + self.id;
            let version = &self.shared.pages[f][page];
            let next = version.begun.fetch_add(1, SeqCst) + 1;
            file.write_all_at(&page_of(next), (page * PAGE) as u64).map_err(|e| format!("write file{f}: {e}"))?;
            version.ended.store(next, SeqCst);
        }
        Ok(())
    }
    fn range(&mut self) -> (usize, usize, usize) {
        let first = self.rng.below(PAGES as u64) as usize;
        let longest = if self.rng.below(4) == 0 { PAGES as u64 } else { 4 };
        let end = (first + 1 + self.rng.below(longest) as usize).min(PAGES);
        (self.rng.below(FILES as u64) as usize, first, end)
    }
    fn ended(&self, f: usize, first: usize, end: usize) -> Vec<u64> {
        self.shared.pages[f][first..end].iter().map(|v| v.ended.load(SeqCst)).collect()
    }
    fn judge(&self, how: &str, f: usize, page: usize, got: u64, ended: u64) -> Result<(), String> {
        let begun = self.shared.pages[f][page].begun.load(SeqCst);
        if (ended..=begun).contains(&got) {
            return Ok(());
        }
        Err(format!("{how} of file{f} page {page} gave version {got}, {ended} had been written, {begun} begun"))
    }
    fn read(&mut self) -> Result<(), String> {
        let (f, first, end) = self.range();
        let file = match self.open[f].take().filter(|_| self.rng.below(3) > 0) {
            Some(file) => file,
            None => fs::File::open(self.file(f)).map_err(|e| format!("open file{f}: {e}"))?,
        };
        let ended = self.ended(f, first, end);
        let mut bytes = vec![0; (end - first) * PAGE];
        file.read_exact_at(&mut bytes, (first * PAGE) as u64).map_err(|e| format!("read file{f}: {e}"))?;
        self.open[f] = Some(file);
        for (i, page) in bytes.chunks(PAGE).enumerate() {
            let got = u64::from_le_bytes(page[..8].try_into().unwrap());
            self.judge("a read", f, first + i, got, ended[i])?;
            if page != page_of(got) {
                return Err(format!("a read of file{f} page {} gave parts of several versions", first + i));
            }
        }
        Ok(())
    }
    fn read_mapped(&mut self) -> Result<(), String> {
        let (f, first, end) = self.range();
        let file = fs::File::open(self.file(f)).map_err(|e| format!("open file{f}: {e}"))?;
        let mapping = Mapping::new(&file, PAGES * PAGE);
        let ended = self.ended(f, first, end);
        for page in first..end {
            let word = page * PAGE / 8 + self.rng.below(PAGE as u64 / 8) as usize;
            self.judge("a mapping", f, page, mapping.word(word), ended[page - first])?;
        }
        Ok(())
    }
    /// Makes or removes one of this thread's names.
    fn change_name(&mut self) -> Result<(), String> {
        let n = self.rng.below((NAMES / THREADS) as u64) as usize * THREADS + self.id;
        let path = self.name(n);
        let version = &self.shared.names[n];
        let next = version.begun.fetch_add(1, SeqCst) + 1;
        let done = if next % 2 == 1 { fs::write(&path, b"") } else { fs::remove_file(&path) };
        done.map_err(|e| format!("change of name{n}: {e}"))?;
        version.ended.store(next, SeqCst);
        Ok(())
    }
    /// The versions of names before something is asked of them, and whether each stayed so until afterwards.
    fn names(&self) -> Vec<u64> {
        self.shared.names.iter().map(|v| v.ended.load(SeqCst)).collect()
    }
    fn judge_name(&self, how: &str, n: usize, before: u64, there: bool) -> Result<(), String> {
        let stable = self.shared.names[n].begun.load(SeqCst) == before;
        if stable && there != (before % 2 == 1) {
            return Err(format!("{how} says that name{n} is there: {there}, after {before} changes"));
        }
        Ok(())
    }
    fn list(&mut self) -> Result<(), String> {
        let names = match self.listed.take().filter(|_| self.rng.below(4) > 0) {
            Some(open) => open,
            None => Directory::open(&self.at.join("names"))?,
        };
        let before = self.names();
        let entries = names.list();
        self.listed = Some(names);
        (0..NAMES).try_for_each(|n| self.judge_name("a listing", n, before[n], entries.contains(&format!("name{n}"))))
    }
    fn look(&mut self) -> Result<(), String> {
        let n = self.rng.below(NAMES as u64) as usize;
        let before = self.names();
        let there = match fs::metadata(self.name(n)) {
            Ok(_) => true,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
            Err(e) => return Err(format!("stat of name{n}: {e}")),
        };
        self.judge_name("stat", n, before[n], there)
    }
}

/// A directory with its files, on two OSTs.
fn prepare(at: &Path) {
    fs::create_dir_all(at.join("names")).unwrap();
    good(&["setstripe", "-S", "64K", "-c", "2", text(at)]);
    for f in 0..FILES {
        fs::write(at.join(format!("file{f}")), page_of(0).repeat(PAGES)).unwrap();
    }
}

#[test]
fn what_kernels_keep_is_never_older_than_what_was_written() {
    if !can_mount() {
        return;
    }
    let (seed, steps) = (number("STRIA_KERNEL_SEED", 1), number("STRIA_KERNEL_STEPS", 1000));
    println!("STRIA_KERNEL_SEED={seed} STRIA_KERNEL_STEPS={steps}");
    let mut cluster = Cluster::new(2);
    let mounts = [cluster.mount("a", &[]), cluster.mount("b", &["--set", "client.cache_bytes=8M"])];
    prepare(&mounts[0].join("d"));
    let versions = |n: usize| (0..n).map(|_| Version::default()).collect::<Vec<_>>();
    let shared = Arc::new(Shared { pages: (0..FILES).map(|_| versions(PAGES)).collect(), names: versions(NAMES) });
    let (tx, rx) = channel();
    for id in 0..THREADS {
        let (at, rng) = (mounts[id % 2].join("d"), Rng::named(seed, &format!("thread {id}")));
        let open = (0..FILES).map(|_| None).collect();
        let mut thread = Thread { id, at, rng, shared: shared.clone(), open, listed: None };
        let tx = tx.clone();
        std::thread::spawn(move || {
            let done = (0..steps).try_for_each(|n| thread.step().map_err(|e| format!("thread {id}, step {n}: {e}")));
            drop(thread);
            tx.send(done).unwrap();
        });
    }
    let outcomes: Vec<_> = (0..THREADS).map(|_| rx.recv_timeout(LIMIT).expect("all work ends")).collect();
    let wrong: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (_, daemon) in &cluster.mounts {
        assert!(!daemon.said().contains("evicted"), "{}", daemon.said());
    }
    cluster.stop();
}
