//! link(2), symlink(2), unlink(2) and the life of unlinked files.
use std::path::Path;

use crate::check::{eq, fails, fails_any, pattern, same, yes};
use crate::sys::*;

suite! { "link";
    makes_another_name(d) {
        put(&d.join("a"), b"x")?;
        link(&d.join("a"), &d.join("b"))?;
        let (a, b) = (stat(&d.join("a"))?, stat(&d.join("b"))?);
        eq("inode", a.st_ino, b.st_ino)?;
        eq("links", (a.st_nlink, b.st_nlink), (2, 2))?;
        put(&d.join("b"), b"new")?;
        same("content", &get(&d.join("a"))?, b"new")?;
    }
    in_another_directory(d) {
        put(&d.join("a"), b"x")?;
        mkdir(&d.join("p"), 0o755)?;
        link(&d.join("a"), &d.join("p/b"))?;
        unlink(&d.join("a"))?;
        same("content", &get(&d.join("p/b"))?, b"x")?;
        eq("links", stat(&d.join("p/b"))?.st_nlink, 1)?;
    }
    many_names(d) {
        put(&d.join("a"), b"x")?;
        for i in 0..200 {
            link(&d.join("a"), &d.join(format!("l{i}")))?;
        }
        eq("links", stat(&d.join("a"))?.st_nlink, 201)?;
        for i in 0..200 {
            unlink(&d.join(format!("l{i}")))?;
        }
        eq("links", stat(&d.join("a"))?.st_nlink, 1)?;
    }
    onto_an_existing_name_is_eexist(d) {
        put(&d.join("a"), b"x")?;
        put(&d.join("b"), b"y")?;
        fails(EEXIST, link(&d.join("a"), &d.join("b")))?;
        fails(EEXIST, link(&d.join("a"), &d.join("a")))?;
    }
    of_nothing_is_enoent(d) {
        fails(ENOENT, link(&d.join("a"), &d.join("b")))?;
    }
    of_a_directory_is_eperm(d) {
        mkdir(&d.join("p"), 0o755)?;
        fails(EPERM, link(&d.join("p"), &d.join("q")))?;
    }
    through_a_file_is_enotdir(d) {
        put(&d.join("a"), b"x")?;
        fails(ENOTDIR, link(&d.join("a"), &d.join("a/b")))?;
    }
    of_a_link_makes_a_link_unless_told_to_follow(d) {
        put(&d.join("a"), b"x")?;
        symlink(Path::new("a"), &d.join("l"))?;
        linkat(&d.join("l"), &d.join("m"), 0)?;
        eq("type", lstat(&d.join("m"))?.st_mode & S_IFMT, S_IFLNK)?;
        linkat(&d.join("l"), &d.join("n"), AT_SYMLINK_FOLLOW)?;
        eq("type", lstat(&d.join("n"))?.st_mode & S_IFMT, S_IFREG)?;
        eq("links", stat(&d.join("a"))?.st_nlink, 2)?;
    }
    of_a_fifo_works(d) {
        mknod(&d.join("p"), S_IFIFO | 0o600, 0)?;
        link(&d.join("p"), &d.join("q"))?;
        eq("links", lstat(&d.join("q"))?.st_nlink, 2)?;
    }
    changes_ctime_but_not_mtime(d) {
        put(&d.join("a"), b"x")?;
        utimens(&d.join("a"), &[timespec { tv_sec: 1000, tv_nsec: 0 }; 2], 0)?;
        let before = stat(&d.join("a"))?;
        link(&d.join("a"), &d.join("b"))?;
        let after = stat(&d.join("a"))?;
        eq("mtime", after.st_mtime, 1000)?;
        yes("ctime", (after.st_ctime, after.st_ctime_nsec) >= (before.st_ctime, before.st_ctime_nsec))?;
    }
    symlink_stores_its_text(d) {
        for text in ["a", "../x", "/absolute/path", "with spaces and ünïcode", "trailing/"] {
            symlink(Path::new(text), &d.join("l"))?;
            eq("text", readlink(&d.join("l"))?, Path::new(text).to_path_buf())?;
            let st = lstat(&d.join("l"))?;
            eq("size", st.st_size as usize, text.len())?;
            eq("mode", st.st_mode, S_IFLNK | 0o777)?;
            unlink(&d.join("l"))?;
        }
    }
    symlink_of_4095_bytes(d) {
        let text = "x/".repeat(2047) + "y";
        symlink(Path::new(&text), &d.join("l")).map_or_else(
            |e| yes("ENAMETOOLONG", e.errno == ENAMETOOLONG),
            |_| eq("text", readlink(&d.join("l"))?, Path::new(&text).to_path_buf()),
        )?;
        fails(ENAMETOOLONG, symlink(Path::new(&"z".repeat(4096)), &d.join("m")))?;
    }
    symlink_of_nothing_is_enoent(d) {
        fails(ENOENT, symlink(Path::new(""), &d.join("l")))?;
    }
    symlink_onto_an_existing_name_is_eexist(d) {
        put(&d.join("a"), b"")?;
        fails(EEXIST, symlink(Path::new("x"), &d.join("a")))?;
        symlink(Path::new("x"), &d.join("l"))?;
        fails(EEXIST, symlink(Path::new("x"), &d.join("l")))?;
    }
    symlinks_are_followed_on_the_way(d) {
        mkdir(&d.join("p"), 0o755)?;
        put(&d.join("p/a"), b"x")?;
        symlink(Path::new("p"), &d.join("l"))?;
        symlink(Path::new("l/../p/a"), &d.join("m"))?;
        same("content", &get(&d.join("m"))?, b"x")?;
    }
    absolute_symlinks_work(d) {
        put(&d.join("a"), b"x")?;
        symlink(&d.join("a"), &d.join("l"))?;
        same("content", &get(&d.join("l"))?, b"x")?;
    }
    a_symlink_to_itself_is_eloop(d) {
        symlink(Path::new("l"), &d.join("l"))?;
        fails(ELOOP, stat(&d.join("l")))?;
        fails(ELOOP, open(&d.join("l"), O_RDWR | O_CREAT, 0o644))?;
        lstat(&d.join("l"))?;
    }
    forty_symlinks_work_and_forty_one_are_eloop(d) {
        put(&d.join("l0"), b"x")?;
        for i in 1..=41 {
            symlink(Path::new(&format!("l{}", i - 1)), &d.join(format!("l{i}")))?;
        }
        same("content", &get(&d.join("l40"))?, b"x")?;
        fails(ELOOP, stat(&d.join("l41")))?;
    }
    readlink_of_a_file_is_einval(d) {
        put(&d.join("a"), b"")?;
        fails(EINVAL, readlink(&d.join("a")))?;
        fails(EINVAL, readlink(d))?;
        fails(ENOENT, readlink(&d.join("no")))?;
    }
    unlink_removes_a_name(d) {
        put(&d.join("a"), b"")?;
        unlink(&d.join("a"))?;
        fails(ENOENT, lstat(&d.join("a")))?;
        fails(ENOENT, unlink(&d.join("a")))?;
    }
    unlink_of_a_link_leaves_its_target(d) {
        put(&d.join("a"), b"x")?;
        symlink(Path::new("a"), &d.join("l"))?;
        unlink(&d.join("l"))?;
        same("content", &get(&d.join("a"))?, b"x")?;
    }
    unlink_of_a_directory_is_refused(d) {
        mkdir(&d.join("p"), 0o755)?;
        fails_any(&[EISDIR, EPERM], unlink(&d.join("p")))?;
        fails(ENOTDIR, unlink(&d.join("p/../p/x/y")).map_err(|mut e| { if e.errno == ENOENT { e.errno = ENOTDIR } e }))?;
    }
    unlink_through_a_file_is_enotdir(d) {
        put(&d.join("a"), b"")?;
        fails(ENOTDIR, unlink(&d.join("a/b")))?;
        fails(ENOTDIR, unlink(&d.join("a/")))?;
    }
    an_unlinked_open_file_lives_until_closed(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, &pattern(1, 100_000))?;
        let ino = fstat(&fd)?.st_ino;
        unlink(&d.join("a"))?;
        eq("links", fstat(&fd)?.st_nlink, 0)?;
        eq("inode", fstat(&fd)?.st_ino, ino)?;
        same("content", &pread(&fd, 100_000, 0)?, &pattern(1, 100_000))?;
        pwrite(&fd, b"more", 100_000)?;
        eq("size", fstat(&fd)?.st_size, 100_004)?;
        fchmod(&fd, 0o600)?;
        eq("mode", fstat(&fd)?.st_mode & 0o777, 0o600)?;
    }
    a_name_may_be_reused_while_the_old_file_is_open(d) {
        let old = rw(&d.join("a"))?;
        write_all(&old, b"old")?;
        unlink(&d.join("a"))?;
        let new = rw(&d.join("a"))?;
        write_all(&new, b"newer")?;
        same("old", &pread(&old, 10, 0)?, b"old")?;
        same("new", &pread(&new, 10, 0)?, b"newer")?;
        yes("different files", fstat(&old)?.st_ino != fstat(&new)?.st_ino)?;
    }
    an_unlinked_file_reopens_through_proc(d) {
        use std::os::fd::AsRawFd;
        let fd = rw(&d.join("a"))?;
        write_all(&fd, b"content")?;
        unlink(&d.join("a"))?;
        let proc = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let again = open(proc.as_ref(), O_RDONLY, 0)?;
        same("content", &read(&again, 20)?, b"content")?;
    }
    a_file_unlinked_twice_over_keeps_other_names(d) {
        put(&d.join("a"), b"x")?;
        link(&d.join("a"), &d.join("b"))?;
        link(&d.join("a"), &d.join("c"))?;
        unlink(&d.join("a"))?;
        unlink(&d.join("b"))?;
        eq("links", stat(&d.join("c"))?.st_nlink, 1)?;
        same("content", &get(&d.join("c"))?, b"x")?;
    }
    unlink_updates_the_directory_times(d) {
        put(&d.join("a"), b"")?;
        utimens(d, &[timespec { tv_sec: 1000, tv_nsec: 0 }; 2], 0)?;
        unlink(&d.join("a"))?;
        yes("mtime", stat(d)?.st_mtime > 1000)?;
    }
    unlink_in_a_sticky_directory_needs_ownership(d) {
        chmod(d, 0o1777)?;
        put(&d.join("roots"), b"")?;
        crate::run::as_user(d, 1001, 1001, &[], |d| {
            fails_any(&[EPERM, EACCES], unlink(&d.join("roots")))?;
            put(&d.join("mine"), b"")?;
            unlink(&d.join("mine"))?;
            Ok(())
        })?;
    }
    space_of_unlinked_files_comes_back(d) {
        for _ in 0..20 {
            let fd = rw(&d.join("a"))?;
            write_all(&fd, &pattern(1, 1 << 20))?;
            unlink(&d.join("a"))?;
        }
        eq("entries", std::fs::read_dir(d).map_err(|e| e.to_string())?.count(), 0)?;
    }
}
