//! Both transports carry every operation of a real file system: each test runs on each transport.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use support::{Mounted, transports};

/// Runs on both transports with one and two serving threads; afterwards serving must have ended well.
fn everywhere(test: impl Fn(&Mounted)) {
    for choice in transports() {
        for threads in [1, 2] {
            let mounted = Mounted::new(choice, threads);
            test(&mounted);
            for ended in mounted.finish() {
                ended.unwrap();
            }
        }
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed) >> 3) as u8).collect()
}

#[test]
fn what_is_written_is_read_back_at_any_size_and_offset() {
    everywhere(|m| {
        for name in ["direct", "cached-file"] {
            let mut f = OpenOptions::new().create_new(true).read(true).write(true).open(m.path(name)).unwrap();
            let data = pattern(3_300_001, 5);
            f.write_all(&data).unwrap();
            f.sync_all().unwrap();
            f.seek(SeekFrom::Start(0)).unwrap();
            let mut back = Vec::new();
            f.read_to_end(&mut back).unwrap();
            assert!(back == data, "{name}: whole file");
            for (at, len) in [(0, 1), (4095, 2), (1_048_575, 4098), (3_300_000, 100), (70_001, 2_000_003)] {
                let mut part = vec![0; len];
                let n = f.read_at(&mut part, at as u64).unwrap();
                assert!(part[..n] == data[at..(at + len).min(data.len())], "{name}: {len} bytes at {at}");
            }
            f.write_all_at(b"hole", 5_000_000).unwrap();
            let mut part = [9; 8];
            f.read_exact_at(&mut part, 4_999_996).unwrap();
            assert_eq!(&part, b"\0\0\0\0hole");
            assert_eq!(f.metadata().unwrap().len(), 5_000_004);
        }
    });
}

#[test]
fn names_are_made_found_renamed_and_removed() {
    everywhere(|m| {
        fs::create_dir(m.path("d")).unwrap();
        fs::write(m.path("d/a"), b"one").unwrap();
        fs::hard_link(m.path("d/a"), m.path("d/b")).unwrap();
        assert_eq!(fs::metadata(m.path("d/b")).unwrap().nlink(), 2);
        symlink("d/a", m.path("l")).unwrap();
        assert_eq!(fs::read_link(m.path("l")).unwrap().to_str(), Some("d/a"));
        assert_eq!(fs::read(m.path("l")).unwrap(), b"one");
        fs::rename(m.path("d/b"), m.path("c")).unwrap();
        assert!(fs::metadata(m.path("d/b")).unwrap_err().raw_os_error() == Some(libc::ENOENT));
        fs::write(m.path("e"), b"two").unwrap();
        fs::rename(m.path("c"), m.path("e")).unwrap();
        assert_eq!(fs::read(m.path("e")).unwrap(), b"one");
        assert_eq!(fs::remove_dir(m.path("d")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
        assert_eq!(fs::remove_file(m.path("d")).unwrap_err().raw_os_error(), Some(libc::EISDIR));
        assert_eq!(fs::create_dir(m.path("d")).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        fs::remove_file(m.path("d/a")).unwrap();
        fs::remove_dir(m.path("d")).unwrap();
        let long = "n".repeat(255);
        fs::write(m.path(&long), b"").unwrap();
        assert!(m.path(&long).exists());
    });
}

#[test]
fn a_directory_of_thousands_lists_every_name_once() {
    everywhere(|m| {
        fs::create_dir(m.path("many")).unwrap();
        for i in 0..3000 {
            m.state
                .lock()
                .unwrap()
                .make(
                    2,
                    format!("file-{i:05}").as_bytes(),
                    libc::S_IFREG | 0o644,
                    (0, 0),
                    support::files::Body::File(vec![]),
                )
                .unwrap();
        }
        let mut names: Vec<String> =
            fs::read_dir(m.path("many")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, (0..3000).map(|i| format!("file-{i:05}")).collect::<Vec<_>>());
        let typed = fs::read_dir(m.path("many")).unwrap().all(|e| e.unwrap().file_type().unwrap().is_file());
        assert!(typed);
    });
}

#[test]
fn attributes_change_and_statx_tells_the_birth_time() {
    everywhere(|m| {
        fs::write(m.path("f"), b"12345").unwrap();
        fs::set_permissions(m.path("f"), fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::chown(m.path("f"), Some(12), Some(34)).unwrap();
        let f = File::options().write(true).open(m.path("f")).unwrap();
        f.set_len(3).unwrap();
        let meta = fs::metadata(m.path("f")).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.len()), (0o640, 12, 34, 3));
        assert_eq!(meta.created().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs(), 77);
        fs::write(m.path("f"), b"").unwrap();
        assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 0);
    });
}

#[test]
fn extended_attributes_answer_length_value_and_absence() {
    everywhere(|m| {
        fs::write(m.path("f"), b"").unwrap();
        let path = std::ffi::CString::new(m.path("f").to_str().unwrap()).unwrap();
        let big = pattern(60_000, 1);
        let mut buf = vec![0u8; 65536];
        let errno = || std::io::Error::last_os_error().raw_os_error().unwrap();
        // SAFETY: NUL-terminated names and buffers with their lengths.
        unsafe {
            assert_eq!(libc::setxattr(path.as_ptr(), c"user.big".as_ptr(), big.as_ptr().cast(), big.len(), 0), 0);
            assert_eq!(libc::getxattr(path.as_ptr(), c"user.big".as_ptr(), std::ptr::null_mut(), 0), 60_000);
            assert_eq!(libc::getxattr(path.as_ptr(), c"user.big".as_ptr(), buf.as_mut_ptr().cast(), 65536), 60_000);
            assert!(buf[..60_000] == big);
            assert_eq!(libc::getxattr(path.as_ptr(), c"user.big".as_ptr(), buf.as_mut_ptr().cast(), 10), -1);
            assert_eq!(errno(), libc::ERANGE);
            assert_eq!(libc::getxattr(path.as_ptr(), c"user.no".as_ptr(), buf.as_mut_ptr().cast(), 10), -1);
            assert_eq!(errno(), libc::ENODATA);
            let n = libc::listxattr(path.as_ptr(), buf.as_mut_ptr().cast(), 65536);
            assert_eq!(&buf[..n as usize], b"user.big\0");
            assert_eq!(libc::removexattr(path.as_ptr(), c"user.big".as_ptr()), 0);
            assert_eq!(libc::listxattr(path.as_ptr(), std::ptr::null_mut(), 0), 0);
        }
    });
}

#[test]
fn seek_fallocate_copy_statfs_tmpfile_and_ioctl_reach_the_file_system() {
    everywhere(|m| {
        fs::write(m.path("f"), pattern(10_000, 3)).unwrap();
        let f = OpenOptions::new().read(true).write(true).open(m.path("f")).unwrap();
        let g = OpenOptions::new().create_new(true).read(true).write(true).open(m.path("g")).unwrap();
        // SAFETY: open descriptors and live locals.
        unsafe {
            assert_eq!(libc::lseek(f.as_raw_fd(), 5, libc::SEEK_HOLE), 10_000);
            assert_eq!(libc::lseek(f.as_raw_fd(), 10_000, libc::SEEK_DATA), -1);
            assert_eq!(libc::fallocate(f.as_raw_fd(), 0, 0, 20_000), 0);
            let mut from = 100i64;
            let n = libc::copy_file_range(f.as_raw_fd(), &raw mut from, g.as_raw_fd(), std::ptr::null_mut(), 5000, 0);
            assert_eq!(n, 5000);
            let mut st: libc::statvfs = std::mem::zeroed();
            assert_eq!(libc::fstatvfs(f.as_raw_fd(), &raw mut st), 0);
            assert_eq!((st.f_blocks, st.f_bavail, st.f_namemax), (1000, 500, 255));
            let mut word = 0x0102_0304u32;
            // _IOWR('x', 1, u32)
            assert_eq!(libc::ioctl(f.as_raw_fd(), 0xc004_7801, &raw mut word), 0);
            assert_eq!(word, 0x0204_0608);
        }
        assert_eq!(f.metadata().unwrap().len(), 20_000);
        let mut back = Vec::new();
        let mut g = g;
        g.seek(SeekFrom::Start(0)).unwrap();
        g.read_to_end(&mut back).unwrap();
        assert!(back == pattern(10_000, 3)[100..5100]);
        let tmp = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(m.dir.path()).unwrap();
        tmp.write_all_at(b"x", 0).unwrap();
        assert_eq!(tmp.metadata().unwrap().len(), 1);
    });
}

#[test]
fn shared_mappings_of_direct_files_are_written_back() {
    everywhere(|m| {
        fs::write(m.path("f"), vec![1u8; 8192]).unwrap();
        let f = OpenOptions::new().read(true).write(true).open(m.path("f")).unwrap();
        // SAFETY: maps 8 KiB of an 8 KiB file, touched inside, unmapped once.
        unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), 8192, prot, libc::MAP_SHARED, f.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            at.cast::<u8>().add(5000).write(42);
            assert_eq!(libc::msync(at, 8192, libc::MS_SYNC), 0);
            libc::munmap(at, 8192);
        }
        let mut byte = [0];
        f.read_exact_at(&mut byte, 5000).unwrap();
        assert_eq!(byte, [42]);
    });
}

#[test]
fn many_threads_at_once_get_their_own_answers() {
    everywhere(|m| {
        std::thread::scope(|scope| {
            for t in 0..8usize {
                scope.spawn(move || {
                    let path = m.path(&format!("t{t}"));
                    for round in 0..20 {
                        let data = pattern(10_000 + t * 777, t * 100 + round);
                        fs::write(&path, &data).unwrap();
                        assert!(fs::read(&path).unwrap() == data);
                    }
                });
            }
        });
    });
}

#[test]
fn forgotten_nodes_are_reported() {
    everywhere(|m| {
        fs::write(m.path("f"), b"x").unwrap();
        fs::remove_file(m.path("f")).unwrap();
        // An unlinked and closed file is evicted at once; its FORGET is queued before the next request is answered,
        // but read at leisure.
        while m.state.lock().unwrap().forgotten == 0 {
            fs::metadata(m.path("nothing")).unwrap_err();
        }
    });
}
