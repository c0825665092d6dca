//! mknod(2): FIFOs, sockets, device files.
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};

use crate::check::{eq, fails, fails_any, same, yes};
use crate::run::as_user;
use crate::sys::*;

suite! { "node";
    mknod_makes_a_regular_file(d) {
        mknod(&d.join("a"), S_IFREG | 0o640, 0)?;
        let st = stat(&d.join("a"))?;
        eq("mode", st.st_mode, S_IFREG | 0o640)?;
        put(&d.join("a"), b"x")?;
        same("content", &get(&d.join("a"))?, b"x")?;
    }
    mknod_without_type_makes_a_regular_file(d) {
        mknod(&d.join("a"), 0o600, 0)?;
        eq("mode", stat(&d.join("a"))?.st_mode, S_IFREG | 0o600)?;
    }
    mknod_onto_anything_is_eexist(d) {
        put(&d.join("a"), b"")?;
        fails(EEXIST, mknod(&d.join("a"), S_IFIFO | 0o600, 0))?;
        fails(EEXIST, mknod(d, S_IFREG | 0o600, 0))?;
    }
    mknod_of_a_directory_is_refused(d) {
        fails_any(&[EPERM, EINVAL], mknod(&d.join("p"), S_IFDIR | 0o755, 0))?;
    }
    a_device_without_a_number_is_for_everybody_and_others_are_not(d) {
        chmod(d, 0o777)?;
        as_user(d, 1001, 1001, &[], |d| {
            mknod(&d.join("gone"), S_IFCHR | 0o600, 0)?;
            let st = lstat(&d.join("gone"))?;
            eq("type and number", (st.st_mode & S_IFMT, st.st_rdev), (S_IFCHR, 0))?;
            fails(EPERM, mknod(&d.join("a"), S_IFCHR | 0o600, 1 << 8 | 3))?;
            fails(EPERM, mknod(&d.join("a"), S_IFBLK | 0o600, 0))
        })?;
    }
    a_fifo_carries_bytes(d) {
        mknod(&d.join("p"), S_IFIFO | 0o600, 0)?;
        eq("mode", lstat(&d.join("p"))?.st_mode, S_IFIFO | 0o600)?;
        let p = d.join("p");
        let child = crate::run::spawn(move || put_fifo(&p))?;
        let fd = open(&d.join("p"), O_RDONLY, 0)?;
        same("bytes", &read(&fd, 100)?, b"through")?;
        child.join()?;
    }
    a_fifo_that_was_renamed_is_the_same(d) {
        mknod(&d.join("p"), S_IFIFO | 0o600, 0)?;
        let fd = open(&d.join("p"), O_RDWR | O_NONBLOCK, 0)?;
        rename(&d.join("p"), &d.join("q"))?;
        let other = open(&d.join("q"), O_RDWR | O_NONBLOCK, 0)?;
        write_all(&fd, b"x")?;
        same("byte", &read(&other, 10)?, b"x")?;
    }
    a_fifo_cannot_be_seeked(d) {
        mknod(&d.join("p"), S_IFIFO | 0o600, 0)?;
        let fd = open(&d.join("p"), O_RDWR, 0)?;
        fails(ESPIPE, lseek(&fd, 0, SEEK_SET))?;
        fails(ESPIPE, pread(&fd, 1, 0))?;
    }
    a_socket_accepts_connections(d) {
        // Short names only fit: the path goes through the working directory.
        crate::run::in_child(|| {
            std::env::set_current_dir(d).map_err(|e| e.to_string())?;
            let listener = UnixListener::bind("s").map_err(|e| format!("bind: {e}"))?;
            eq("type", lstat(&d.join("s"))?.st_mode & S_IFMT, S_IFSOCK)?;
            let client = UnixStream::connect("s").map_err(|e| format!("connect: {e}"))?;
            listener.accept().map_err(|e| format!("accept: {e}"))?;
            yes("connected", client.peer_addr().is_ok())?;
            fails(ENXIO, open(&d.join("s"), O_RDWR, 0))?;
            yes("a second bind is refused", UnixListener::bind("s").is_err())
        })?;
    }
    device_numbers_are_kept(d) {
        if !is_root() {
            return Err(format!("{SKIP}needs root"));
        }
        let number = libc::makedev(1, 3);
        for (name, kind) in [("c", S_IFCHR), ("b", S_IFBLK)] {
            for number in [number, libc::makedev(259, 70_000), libc::makedev(4000, 1_000_000)] {
                mknod(&d.join(name), kind | 0o600, number)?;
                let st = lstat(&d.join(name))?;
                eq("mode", st.st_mode, kind | 0o600)?;
                eq("number", st.st_rdev, number)?;
                unlink(&d.join(name))?;
            }
        }
    }
    a_device_file_reaches_its_device(d) {
        if !is_root() {
            return Err(format!("{SKIP}needs root"));
        }
        mknod(&d.join("zero"), S_IFCHR | 0o666, libc::makedev(1, 5))?;
        let fd = match open(&d.join("zero"), O_RDONLY, 0) {
            Err(e) if e.errno == EACCES => return Err(format!("{SKIP}mounted nodev")),
            other => other?,
        };
        same("bytes", &read(&fd, 8)?, &[0; 8])?;
    }
    making_devices_needs_privilege(d) {
        chmod(d, 0o777)?;
        crate::run::as_user(d, 1001, 1001, &[], |d| {
            fails(EPERM, mknod(&d.join("c"), S_IFCHR | 0o600, libc::makedev(1, 3)))?;
            mknod(&d.join("p"), S_IFIFO | 0o600, 0)?;
            Ok(())
        })?;
    }
    opening_a_fifo_waits_for_the_other_side(d) {
        mknod(&d.join("p"), S_IFIFO | 0o600, 0)?;
        let p = d.join("p");
        let child = crate::run::spawn(move || {
            let fd = open(&p, O_RDONLY, 0)?;
            same("bytes", &read(&fd, 10)?, b"late")
        })?;
        let fd = open(&d.join("p"), O_WRONLY, 0)?;
        // SAFETY: the descriptor is open.
        yes("a pipe", unsafe { libc::isatty(fd.as_raw_fd()) } == 0)?;
        write_all(&fd, b"late")?;
        drop(fd);
        child.join()?;
    }
}

fn put_fifo(p: &std::path::Path) -> R {
    let fd = open(p, O_WRONLY, 0)?;
    write_all(&fd, b"through")?;
    Ok(())
}
