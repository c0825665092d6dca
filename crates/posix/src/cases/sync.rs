//! fsync(2) and friends; statfs(2).
use crate::check::{eq, fails, fails_any, pattern, same, yes};
use crate::sys::*;

suite! { "sync";
    fsync_and_fdatasync_succeed_on_files(d) {
        let fd = rw(&d.join("a"))?;
        fsync(&fd)?;
        for i in 0..10u64 {
            write_all(&fd, &pattern(i, 30_000))?;
            fdatasync(&fd)?;
            fsync(&fd)?;
        }
        eq("size", fstat(&fd)?.st_size, 300_000)?;
    }
    fsync_of_a_read_only_descriptor_succeeds(d) {
        put(&d.join("a"), b"abc")?;
        let fd = open(&d.join("a"), O_RDONLY, 0)?;
        fsync(&fd)?;
        fdatasync(&fd)?;
    }
    fsync_of_a_directory_succeeds(d) {
        let fd = open(d, O_RDONLY | O_DIRECTORY, 0)?;
        put(&d.join("a"), b"x")?;
        fsync(&fd)?;
        fdatasync(&fd)?;
    }
    fsync_of_an_unlinked_file_succeeds(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, &pattern(1, 100_000))?;
        unlink(&d.join("a"))?;
        fsync(&fd)?;
        same("content", &pread(&fd, 100_000, 0)?, &pattern(1, 100_000))?;
    }
    fsync_of_a_fifo_is_einval(d) {
        mknod(&d.join("p"), S_IFIFO | 0o600, 0)?;
        let fd = open(&d.join("p"), O_RDWR, 0)?;
        fails_any(&[EINVAL], fsync(&fd))?;
    }
    syncfs_succeeds(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, &pattern(1, 1_000_000))?;
        syncfs(&fd)?;
        same("content", &get(&d.join("a"))?, &pattern(1, 1_000_000))?;
    }
    sync_file_range_succeeds(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, &pattern(1, 100_000))?;
        sync_file_range(&fd, 0, 0, libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER)?;
        same("content", &get(&d.join("a"))?, &pattern(1, 100_000))?;
    }
    synchronised_content_survives_dropping_of_pages(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, &pattern(1, 3_000_000))?;
        fsync(&fd)?;
        fadvise(&fd, 0, 0, libc::POSIX_FADV_DONTNEED)?;
        same("content", &get(&d.join("a"))?, &pattern(1, 3_000_000))?;
    }
    statfs_is_consistent(d) {
        let fs = statfs(d)?;
        yes("block size", fs.f_bsize >= 512 && (fs.f_bsize as u64).is_power_of_two())?;
        yes("some space", fs.f_blocks > 0)?;
        yes("free fits", fs.f_bfree <= fs.f_blocks)?;
        yes("available fits", fs.f_bavail <= fs.f_bfree)?;
        yes("files fit", fs.f_ffree <= fs.f_files)?;
        eq("longest name", fs.f_namelen, 255)?;
    }
    statfs_of_a_file_is_that_of_its_file_system(d) {
        put(&d.join("a"), b"")?;
        let (x, y) = (statfs(d)?, statfs(&d.join("a"))?);
        eq("type", x.f_type, y.f_type)?;
        // Block counts move while others write.
        eq("block size", x.f_bsize, y.f_bsize)?;
        fails(ENOENT, statfs(&d.join("no")))?;
    }
    st_dev_is_one_for_all_files(d) {
        put(&d.join("a"), b"")?;
        mkdir(&d.join("p"), 0o755)?;
        put(&d.join("p/b"), b"")?;
        let dev = stat(d)?.st_dev;
        for p in ["a", "p", "p/b"] {
            eq("device", stat(&d.join(p))?.st_dev, dev)?;
        }
    }
    poll_says_a_file_is_ready(d) {
        use std::os::fd::AsRawFd;
        let fd = rw(&d.join("a"))?;
        let mut p = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        // SAFETY: one descriptor.
        let n = unsafe { libc::poll(&mut p, 1, 1000) };
        eq("ready", (n, p.revents), (1, libc::POLLIN | libc::POLLOUT))?;
    }
    an_unknown_ioctl_is_enotty(d) {
        use std::os::fd::AsRawFd;
        let fd = rw(&d.join("a"))?;
        let mut arg = [0u8; 256];
        // SAFETY: a buffer larger than the number encodes.
        let n = unsafe { libc::ioctl(fd.as_raw_fd(), 0x8004_7ef1, arg.as_mut_ptr()) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        eq("result", n, -1)?;
        yes("ENOTTY, or EINVAL", errno == Some(ENOTTY) || errno == Some(EINVAL))?;
        // SAFETY: no argument is read for a terminal request on a file.
        let n = unsafe { libc::isatty(fd.as_raw_fd()) };
        eq("a terminal", n, 0)?;
    }
}
