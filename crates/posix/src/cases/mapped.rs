//! mmap(2): shared and private mappings beside read and write.
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE};

use crate::check::{eq, pattern, same, yes};
use crate::sys::*;

/// A mapping, undone at its end.
pub struct Map {
    at: *mut u8,
    len: usize,
}

impl Map {
    /// Maps `len` bytes from `off`.
    ///
    /// # Errors
    /// The errno, in words.
    pub fn new(fd: &OwnedFd, off: i64, len: usize, prot: i32, flags: i32) -> Result<Map, String> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd.as_raw_fd(), off) };
        if at == libc::MAP_FAILED {
            return Err(format!("mmap: {}", std::io::Error::last_os_error()));
        }
        Ok(Map { at: at.cast(), len })
    }
    /// Reads bytes through the mapping.
    #[must_use]
    pub fn get(&self, off: usize, len: usize) -> Vec<u8> {
        assert!(off + len <= self.len, "within the mapping");
        // SAFETY: within the mapping; others may change the bytes, which a volatile read of each allows.
        (0..len).map(|i| unsafe { self.at.add(off + i).read_volatile() }).collect()
    }
    /// Writes bytes through the mapping.
    pub fn set(&self, off: usize, data: &[u8]) {
        assert!(off + data.len() <= self.len, "within the mapping");
        for (i, b) in data.iter().enumerate() {
            // SAFETY: within the mapping, which is writable where this is called.
            unsafe { self.at.add(off + i).write_volatile(*b) }
        }
    }
    /// Where a byte is mapped.
    #[must_use]
    pub fn address(&self, off: usize) -> *mut u8 {
        assert!(off < self.len, "within the mapping");
        self.at.wrapping_add(off)
    }
    /// msync(2) of all of it, waiting.
    ///
    /// # Errors
    /// The errno, in words.
    pub fn sync(&self) -> Result<(), String> {
        // SAFETY: the mapping is ours.
        match unsafe { libc::msync(self.at.cast(), self.len, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(format!("msync: {}", std::io::Error::last_os_error())),
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing refers to it any more.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

const RW: i32 = PROT_READ | PROT_WRITE;

fn signal_of(f: impl FnOnce() -> R) -> Result<i32, String> {
    let child = crate::run::spawn(f)?;
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child.pid, &mut status, 0) };
    Ok(if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 })
}

suite! { "mmap";
    shared_shows_the_content(d) {
        let data = pattern(1, 100_000);
        put(&d.join("a"), &data)?;
        let fd = open(&d.join("a"), O_RDONLY, 0)?;
        let map = Map::new(&fd, 0, 100_000, PROT_READ, MAP_SHARED)?;
        same("mapping", &map.get(0, 100_000), &data)?;
    }
    private_shows_the_content(d) {
        let data = pattern(1, 100_000);
        put(&d.join("a"), &data)?;
        let fd = open(&d.join("a"), O_RDONLY, 0)?;
        let map = Map::new(&fd, 0, 100_000, PROT_READ, MAP_PRIVATE)?;
        same("mapping", &map.get(0, 100_000), &data)?;
    }
    at_an_offset(d) {
        let data = pattern(1, 300_000);
        put(&d.join("a"), &data)?;
        let fd = rw(&d.join("a"))?;
        let map = Map::new(&fd, 131_072, 65_536, RW, MAP_SHARED)?;
        same("mapping", &map.get(0, 65_536), &data[131_072..196_608])?;
    }
    the_last_page_is_filled_with_zeros(d) {
        put(&d.join("a"), b"abc")?;
        let fd = rw(&d.join("a"))?;
        let map = Map::new(&fd, 0, 4096, PROT_READ, MAP_SHARED)?;
        same("head", &map.get(0, 3), b"abc")?;
        same("rest", &map.get(3, 4093), &[0; 4093])?;
    }
    shared_stores_reach_the_file_by_msync(d) {
        put(&d.join("a"), &[1; 10_000])?;
        let fd = rw(&d.join("a"))?;
        let map = Map::new(&fd, 0, 10_000, RW, MAP_SHARED)?;
        map.set(5000, b"hello");
        map.sync()?;
        same("read", &pread(&fd, 7, 4999)?, b"\x01hello\x01")?;
        same("other descriptor", &get(&d.join("a"))?[5000..5005], b"hello")?;
    }
    shared_stores_reach_the_file_by_munmap_and_close(d) {
        put(&d.join("a"), &[1; 10_000])?;
        let fd = rw(&d.join("a"))?;
        let map = Map::new(&fd, 0, 10_000, RW, MAP_SHARED)?;
        map.set(9000, b"hello");
        drop(map);
        fsync(&fd)?;
        drop(fd);
        same("content", &get(&d.join("a"))?[9000..9005], b"hello")?;
    }
    shared_stores_are_data_for_lseek_at_once(d) {
        let fd = rw(&d.join("a"))?;
        ftruncate(&fd, 1 << 20)?;
        let map = Map::new(&fd, 0, 1 << 20, RW, MAP_SHARED)?;
        map.set(500_000, b"hello");
        let data = lseek(&fd, 0, libc::SEEK_DATA)?;
        yes("data begins in front of what was stored", data <= 500_000)?;
        let hole = lseek(&fd, 500_000, libc::SEEK_HOLE)?;
        yes("a hole begins behind it", hole >= 500_005)?;
    }
    shared_stores_are_seen_by_read_at_once(d) {
        put(&d.join("a"), &[1; 10_000])?;
        let fd = rw(&d.join("a"))?;
        let map = Map::new(&fd, 0, 10_000, RW, MAP_SHARED)?;
        for i in 0..20u8 {
            map.set(4000, &[i; 200]);
            same("read", &pread(&fd, 200, 4000)?, &[i; 200])?;
        }
    }
    writes_are_seen_by_a_shared_mapping_at_once(d) {
        put(&d.join("a"), &[1; 10_000])?;
        let fd = rw(&d.join("a"))?;
        let map = Map::new(&fd, 0, 10_000, RW, MAP_SHARED)?;
        for i in 0..20u8 {
            pwrite(&fd, &[i; 200], 4000)?;
            same("mapping", &map.get(4000, 200), &[i; 200])?;
        }
    }
    writes_by_another_process_are_seen_by_a_shared_mapping(d) {
        put(&d.join("a"), &[1; 10_000])?;
        let fd = rw(&d.join("a"))?;
        let map = Map::new(&fd, 0, 10_000, PROT_READ, MAP_SHARED)?;
        eq("before", map.get(0, 1), vec![1])?;
        crate::run::in_child(|| { pwrite(&rw(&d.join("a"))?, &[2; 10_000], 0)?; Ok(()) })?;
        same("mapping", &map.get(0, 10_000), &[2; 10_000])?;
    }
    private_stores_stay_private(d) {
        put(&d.join("a"), &[1; 10_000])?;
        let fd = rw(&d.join("a"))?;
        let map = Map::new(&fd, 0, 10_000, RW, MAP_PRIVATE)?;
        map.set(0, &[9; 10_000]);
        same("mapping", &map.get(0, 10_000), &[9; 10_000])?;
        same("file", &get(&d.join("a"))?, &[1; 10_000])?;
    }
    two_shared_mappings_are_one(d) {
        put(&d.join("a"), &[1; 10_000])?;
        let (x, y) = (rw(&d.join("a"))?, rw(&d.join("a"))?);
        let (mx, my) = (Map::new(&x, 0, 10_000, RW, MAP_SHARED)?, Map::new(&y, 0, 10_000, RW, MAP_SHARED)?);
        for i in 0..50u8 {
            mx.set(100, &[i; 3]);
            same("other", &my.get(100, 3), &[i; 3])?;
        }
    }
    a_mapping_outlives_its_descriptor(d) {
        put(&d.join("a"), &[1; 10_000])?;
        let fd = rw(&d.join("a"))?;
        let map = Map::new(&fd, 0, 10_000, RW, MAP_SHARED)?;
        drop(fd);
        map.set(77, b"late");
        map.sync()?;
        same("content", &get(&d.join("a"))?[77..81], b"late")?;
    }
    a_mapping_outlives_its_name(d) {
        put(&d.join("a"), &[1; 10_000])?;
        let fd = rw(&d.join("a"))?;
        let map = Map::new(&fd, 0, 10_000, RW, MAP_SHARED)?;
        unlink(&d.join("a"))?;
        map.set(77, b"late");
        map.sync()?;
        same("content", &pread(&fd, 4, 77)?, b"late")?;
    }
    access_past_the_end_is_a_bus_error(d) {
        put(&d.join("a"), &[1; 5000])?;
        let signal = signal_of(|| {
            let fd = rw(&d.join("a"))?;
            let map = Map::new(&fd, 0, 16_384, PROT_READ, MAP_SHARED)?;
            same("within the last page", &map.get(8000, 10), &[0; 10])?;
            let _ = map.get(9000, 1);
            Err("no signal".into())
        })?;
        eq("signal", signal, libc::SIGBUS)?;
    }
    truncation_takes_mapped_pages_away(d) {
        put(&d.join("a"), &[1; 50_000])?;
        let signal = signal_of(|| {
            let fd = rw(&d.join("a"))?;
            let map = Map::new(&fd, 0, 50_000, PROT_READ, MAP_SHARED)?;
            same("before", &map.get(40_000, 10), &[1; 10])?;
            ftruncate(&fd, 100)?;
            same("the cut page", &map.get(100, 1000), &[0; 1000])?;
            let _ = map.get(40_000, 1);
            Err("no signal".into())
        })?;
        eq("signal", signal, libc::SIGBUS)?;
    }
    stores_beyond_the_end_in_the_last_page_are_dropped(d) {
        put(&d.join("a"), b"abc")?;
        let fd = rw(&d.join("a"))?;
        let map = Map::new(&fd, 0, 4096, RW, MAP_SHARED)?;
        map.set(0, b"xyzjunk");
        map.sync()?;
        // What growth shows there later differs between local file systems, with and without write-back.
        same("content", &get(&d.join("a"))?, b"xyz")?;
    }
    a_hole_reads_as_zeros_and_can_be_stored_to(d) {
        let fd = rw(&d.join("a"))?;
        ftruncate(&fd, 1 << 20)?;
        let map = Map::new(&fd, 0, 1 << 20, RW, MAP_SHARED)?;
        same("zeros", &map.get(500_000, 100), &[0; 100])?;
        map.set(500_000, b"stored");
        map.sync()?;
        same("content", &pread(&fd, 6, 500_000)?, b"stored")?;
    }
    a_shared_writable_mapping_needs_a_writable_descriptor(d) {
        put(&d.join("a"), b"abc")?;
        let fd = open(&d.join("a"), O_RDONLY, 0)?;
        yes("refused", Map::new(&fd, 0, 4096, RW, MAP_SHARED).is_err())?;
        Map::new(&fd, 0, 4096, RW, MAP_PRIVATE)?;
    }
    stores_update_mtime(d) {
        put(&d.join("a"), &[1; 5000])?;
        let fd = rw(&d.join("a"))?;
        let map = Map::new(&fd, 0, 5000, RW, MAP_SHARED)?;
        futimens(&fd, &[timespec { tv_sec: 1000, tv_nsec: 0 }; 2])?;
        map.set(0, b"x");
        map.sync()?;
        fsync(&fd)?;
        yes("mtime moved", stat(&d.join("a"))?.st_mtime > 1000)?;
    }
    a_program_can_be_run(d) {
        let program = d.join("p");
        std::fs::copy("/bin/true", &program).map_err(|e| e.to_string())?;
        chmod(&program, 0o755)?;
        let status = std::process::Command::new(&program).status().map_err(|e| e.to_string())?;
        yes("ran", status.success())?;
        chmod(&program, 0o644)?;
        let refused = std::process::Command::new(&program).status();
        eq("errno", refused.err().and_then(|e| e.raw_os_error()), Some(EACCES))?;
    }
    a_script_can_be_run(d) {
        put(&d.join("s"), b"#!/bin/sh\nexit 7\n")?;
        chmod(&d.join("s"), 0o755)?;
        let status = std::process::Command::new(d.join("s")).status().map_err(|e| e.to_string())?;
        eq("exit code", status.code(), Some(7))?;
    }
    a_large_mapping_is_written_whole(d) {
        let fd = rw(&d.join("a"))?;
        let data = pattern(2, 3 << 20);
        ftruncate(&fd, 3 << 20)?;
        let map = Map::new(&fd, 0, 3 << 20, RW, MAP_SHARED)?;
        map.set(0, &data);
        map.sync()?;
        drop(map);
        same("content", &get(&d.join("a"))?, &data)?;
    }
}
