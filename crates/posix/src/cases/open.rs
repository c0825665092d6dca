//! open(2) and creat(2): flags and errno.

use crate::check::{eq, fails, fails_any, same, supported, yes};
use crate::run::as_user;
use crate::sys::*;

suite! { "open";
    creates_a_missing_file_only_with_o_creat(d) {
        fails(ENOENT, open(&d.join("a"), O_RDWR, 0))?;
        open(&d.join("a"), O_RDWR | O_CREAT, 0o644)?;
        open(&d.join("a"), O_RDWR, 0)?;
    }
    a_new_file_is_empty_regular_and_has_one_link(d) {
        let fd = rw(&d.join("a"))?;
        let st = fstat(&fd)?;
        eq("size", st.st_size, 0)?;
        eq("blocks", st.st_blocks, 0)?;
        eq("type", st.st_mode & S_IFMT, S_IFREG)?;
        eq("links", st.st_nlink, 1)?;
    }
    o_creat_leaves_an_existing_file_as_it_is(d) {
        put(&d.join("a"), b"kept")?;
        chmod(&d.join("a"), 0o600)?;
        open(&d.join("a"), O_RDWR | O_CREAT, 0o777)?;
        same("content", &get(&d.join("a"))?, b"kept")?;
        eq("mode", stat(&d.join("a"))?.st_mode & 0o7777, 0o600)?;
    }
    o_excl_refuses_an_existing_file(d) {
        put(&d.join("a"), b"")?;
        fails(EEXIST, open(&d.join("a"), O_RDWR | O_CREAT | O_EXCL, 0o644))?;
    }
    o_excl_refuses_a_directory(d) {
        mkdir(&d.join("a"), 0o755)?;
        fails(EEXIST, open(&d.join("a"), O_RDWR | O_CREAT | O_EXCL, 0o644))?;
    }
    o_excl_refuses_a_dangling_link(d) {
        symlink("nowhere".as_ref(), &d.join("a"))?;
        fails(EEXIST, open(&d.join("a"), O_RDWR | O_CREAT | O_EXCL, 0o644))?;
    }
    o_creat_follows_a_dangling_link(d) {
        symlink("target".as_ref(), &d.join("a"))?;
        open(&d.join("a"), O_RDWR | O_CREAT, 0o644)?;
        eq("type of the target", lstat(&d.join("target"))?.st_mode & S_IFMT, S_IFREG)?;
    }
    o_excl_has_one_winner_among_many(d) {
        let mut children = Vec::new();
        for i in 0..8u8 {
            let (f, won) = (d.join("a"), d.join(format!("won{i}")));
            children.push(crate::run::spawn(move || {
                match open(&f, O_WRONLY | O_CREAT | O_EXCL, 0o644) {
                    Ok(_) => put(&won, b"")?,
                    Err(e) if e.errno == EEXIST => (),
                    Err(e) => return Err(e.into()),
                }
                Ok(())
            })?);
        }
        for child in children {
            child.join()?;
        }
        let winners = (0..8).filter(|i| d.join(format!("won{i}")).exists()).count();
        eq("winners", winners, 1)?;
    }
    o_trunc_empties(d) {
        put(&d.join("a"), b"content")?;
        let fd = open(&d.join("a"), O_RDWR | O_TRUNC, 0)?;
        eq("size", fstat(&fd)?.st_size, 0)?;
        same("content", &get(&d.join("a"))?, b"")?;
    }
    o_trunc_empties_a_file_that_is_opened_for_reading_only(d) {
        for flags in [O_RDONLY | O_TRUNC, O_RDONLY | O_TRUNC | O_CREAT] {
            put(&d.join("a"), &[b'x'; 5000])?;
            let fd = open(&d.join("a"), flags, 0o644)?;
            eq("size", fstat(&fd)?.st_size, 0)?;
            same("read there", &pread(&fd, 100, 0)?, b"")?;
            same("read elsewhere", &get(&d.join("a"))?, b"")?;
            let end = open(&d.join("a"), O_WRONLY | O_APPEND, 0)?;
            write_all(&end, b"end")?;
            same("appended", &get(&d.join("a"))?, b"end")?;
        }
    }
    o_trunc_empties_nothing_when_the_open_is_refused(d) {
        chmod(d, 0o755)?;
        put(&d.join("a"), b"content")?;
        chmod(&d.join("a"), 0o222)?;
        as_user(d, 1001, 1001, &[], |d| fails(EACCES, open(&d.join("a"), O_RDONLY | O_TRUNC, 0)))?;
        chmod(&d.join("a"), 0o644)?;
        as_user(d, 1001, 1001, &[], |d| fails(EACCES, open(&d.join("a"), O_RDONLY | O_TRUNC, 0)))?;
        same("content", &get(&d.join("a"))?, b"content")?;
    }
    o_trunc_is_seen_by_older_descriptors(d) {
        put(&d.join("a"), b"content")?;
        let old = open(&d.join("a"), O_RDONLY, 0)?;
        same("before", &pread(&old, 100, 0)?, b"content")?;
        open(&d.join("a"), O_WRONLY | O_TRUNC, 0)?;
        same("after", &pread(&old, 100, 0)?, b"")?;
        eq("size", fstat(&old)?.st_size, 0)?;
    }
    o_trunc_with_o_creat_makes_or_empties(d) {
        for _ in 0..2 {
            let fd = open(&d.join("a"), O_RDWR | O_CREAT | O_TRUNC, 0o644)?;
            eq("size", fstat(&fd)?.st_size, 0)?;
            write_all(&fd, b"x")?;
        }
    }
    o_trunc_updates_mtime_and_ctime(d) {
        put(&d.join("a"), b"content")?;
        let past = [timespec { tv_sec: 1000, tv_nsec: 5 }, timespec { tv_sec: 1000, tv_nsec: 5 }];
        utimens(&d.join("a"), &past, 0)?;
        open(&d.join("a"), O_RDWR | O_TRUNC, 0)?;
        yes("mtime moved", stat(&d.join("a"))?.st_mtime > 1000)?;
    }
    creat_is_open_for_writing_only(d) {
        let fd = open(&d.join("a"), O_CREAT | O_WRONLY | O_TRUNC, 0o644)?;
        fails(EBADF, read(&fd, 1))?;
        write_all(&fd, b"x")?;
    }
    a_read_only_descriptor_cannot_write(d) {
        put(&d.join("a"), b"x")?;
        let fd = open(&d.join("a"), O_RDONLY, 0)?;
        fails(EBADF, write(&fd, b"y"))?;
        fails_any(&[EBADF, EINVAL], ftruncate(&fd, 0))?;
    }
    a_file_created_without_permissions_is_usable_by_its_creator(d) {
        let fd = open(&d.join("a"), O_RDWR | O_CREAT, 0)?;
        write_all(&fd, b"x")?;
        same("content", &pread(&fd, 9, 0)?, b"x")?;
        eq("mode", fstat(&fd)?.st_mode & 0o7777, 0)?;
    }
    an_unwritable_new_file_is_usable_by_its_creator_who_is_not_root(d) {
        chmod(d, 0o777)?;
        crate::run::as_user(d, 1001, 1001, &[], |d| {
            let fd = open(&d.join("a"), O_RDWR | O_CREAT | O_EXCL, 0o444)?;
            write_all(&fd, b"x")?;
            fails(EACCES, open(&d.join("a"), O_RDWR, 0))?;
            Ok(())
        })?;
    }
    o_append_writes_at_the_end(d) {
        put(&d.join("a"), b"one")?;
        let fd = open(&d.join("a"), O_RDWR | O_APPEND, 0)?;
        lseek(&fd, 0, SEEK_SET)?;
        write_all(&fd, b"two")?;
        eq("position", lseek(&fd, 0, SEEK_CUR)?, 6)?;
        same("content", &get(&d.join("a"))?, b"onetwo")?;
    }
    o_append_follows_growth_by_others(d) {
        let a = open(&d.join("a"), O_RDWR | O_CREAT | O_APPEND, 0o644)?;
        let b = open(&d.join("a"), O_RDWR | O_APPEND, 0)?;
        for _ in 0..20 {
            write_all(&a, b"aaa")?;
            write_all(&b, b"bb")?;
        }
        same("content", &get(&d.join("a"))?, "aaabb".repeat(20).as_bytes())?;
    }
    o_append_by_many_processes_loses_nothing(d) {
        put(&d.join("a"), b"")?;
        let mut children = Vec::new();
        for i in 0..4u8 {
            let f = d.join("a");
            children.push(crate::run::spawn(move || {
                let fd = open(&f, O_WRONLY | O_APPEND, 0)?;
                for _ in 0..50 {
                    eq("written", write(&fd, &[b'a' + i; 37])?, 37)?;
                }
                Ok(())
            })?);
        }
        for child in children {
            child.join()?;
        }
        let all = get(&d.join("a"))?;
        eq("size", all.len(), 4 * 50 * 37)?;
        for record in all.chunks(37) {
            yes("a record is whole", record.iter().all(|b| *b == record[0]))?;
        }
    }
    o_append_can_be_set_and_cleared_by_fcntl(d) {
        put(&d.join("a"), b"12345")?;
        let fd = open(&d.join("a"), O_RDWR, 0)?;
        fcntl(&fd, F_SETFL, O_APPEND)?;
        write_all(&fd, b"6")?;
        fcntl(&fd, F_SETFL, 0)?;
        lseek(&fd, 0, SEEK_SET)?;
        write_all(&fd, b"x")?;
        same("content", &get(&d.join("a"))?, b"x23456")?;
    }
    o_append_of_the_open_can_be_cleared_by_fcntl(d) {
        put(&d.join("a"), b"12345")?;
        let fd = open(&d.join("a"), O_RDWR | O_APPEND, 0)?;
        write_all(&fd, b"6")?;
        fcntl(&fd, F_SETFL, 0)?;
        eq("written", pwrite(&fd, b"x", 0)?, 1)?;
        same("content", &get(&d.join("a"))?, b"x23456")?;
    }
    o_directory_refuses_a_file(d) {
        put(&d.join("a"), b"")?;
        fails(ENOTDIR, open(&d.join("a"), O_RDONLY | O_DIRECTORY, 0))?;
        open(d, O_RDONLY | O_DIRECTORY, 0)?;
    }
    o_directory_with_o_creat_makes_nothing(d) {
        fails_any(&[EINVAL, ENOENT, ENOTDIR], open(&d.join("a"), O_RDONLY | O_DIRECTORY | O_CREAT, 0o644))?;
        fails(ENOENT, lstat(&d.join("a")))?;
    }
    a_directory_cannot_be_opened_for_writing(d) {
        for flags in [O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC, O_WRONLY | O_CREAT, O_RDWR | O_APPEND] {
            fails(EISDIR, open(d, flags, 0o644))?;
        }
    }
    a_directory_cannot_be_read_as_a_file(d) {
        let fd = open(d, O_RDONLY, 0)?;
        fails(EISDIR, read(&fd, 10))?;
        fails(EISDIR, pread(&fd, 10, 0))?;
    }
    o_nofollow_refuses_a_link(d) {
        put(&d.join("a"), b"x")?;
        symlink("a".as_ref(), &d.join("l"))?;
        fails(ELOOP, open(&d.join("l"), O_RDONLY | O_NOFOLLOW, 0))?;
        open(&d.join("a"), O_RDONLY | O_NOFOLLOW, 0)?;
    }
    o_nofollow_concerns_the_last_component_only(d) {
        mkdir(&d.join("dir"), 0o755)?;
        put(&d.join("dir/a"), b"x")?;
        symlink("dir".as_ref(), &d.join("l"))?;
        open(&d.join("l/a"), O_RDONLY | O_NOFOLLOW, 0)?;
    }
    o_nofollow_with_o_directory_refuses_a_link_to_a_directory(d) {
        mkdir(&d.join("dir"), 0o755)?;
        symlink("dir".as_ref(), &d.join("l"))?;
        fails_any(&[ENOTDIR, ELOOP], open(&d.join("l"), O_RDONLY | O_NOFOLLOW | O_DIRECTORY, 0))?;
    }
    o_path_gives_a_handle_without_io(d) {
        put(&d.join("a"), b"x")?;
        let fd = open(&d.join("a"), O_PATH, 0)?;
        fails(EBADF, read(&fd, 1))?;
        fails(EBADF, ftruncate(&fd, 0))?;
        fails(EBADF, fchmod(&fd, 0o600))?;
        eq("size", fstat(&fd)?.st_size, 1)?;
    }
    o_path_of_a_link_is_the_link(d) {
        symlink("nowhere".as_ref(), &d.join("l"))?;
        let fd = open(&d.join("l"), O_PATH | O_NOFOLLOW, 0)?;
        eq("type", fstat(&fd)?.st_mode & S_IFMT, S_IFLNK)?;
    }
    o_path_of_a_directory_serves_openat(d) {
        put(&d.join("a"), b"x")?;
        let dir = open(d, O_PATH | O_DIRECTORY, 0)?;
        let fd = openat(&dir, "a".as_ref(), O_RDONLY, 0)?;
        same("content", &read(&fd, 9)?, b"x")?;
    }
    openat_works_in_a_directory_that_was_renamed(d) {
        mkdir(&d.join("dir"), 0o755)?;
        let dir = open(&d.join("dir"), O_RDONLY | O_DIRECTORY, 0)?;
        rename(&d.join("dir"), &d.join("moved"))?;
        openat(&dir, "a".as_ref(), O_RDWR | O_CREAT, 0o644)?;
        stat(&d.join("moved/a"))?;
    }
    openat_in_a_removed_directory_finds_nothing(d) {
        mkdir(&d.join("dir"), 0o755)?;
        let dir = open(&d.join("dir"), O_RDONLY | O_DIRECTORY, 0)?;
        rmdir(&d.join("dir"))?;
        fails(ENOENT, openat(&dir, "a".as_ref(), O_RDWR | O_CREAT, 0o644))?;
        fails(ENOENT, openat(&dir, "a".as_ref(), O_RDONLY, 0))?;
    }
    o_tmpfile_has_no_name(d) {
        let fd = supported(open(d, O_RDWR | O_TMPFILE, 0o600))?;
        write_all(&fd, b"content")?;
        eq("links", fstat(&fd)?.st_nlink, 0)?;
        same("content", &pread(&fd, 20, 0)?, b"content")?;
        eq("entries", std::fs::read_dir(d).map_err(|e| e.to_string())?.count(), 0)?;
    }
    o_tmpfile_can_be_given_a_name(d) {
        let fd = supported(open(d, O_RDWR | O_TMPFILE, 0o600))?;
        write_all(&fd, b"content")?;
        use std::os::fd::AsRawFd;
        let proc = format!("/proc/self/fd/{}", fd.as_raw_fd());
        linkat(proc.as_ref(), &d.join("named"), AT_SYMLINK_FOLLOW)?;
        same("content", &get(&d.join("named"))?, b"content")?;
        eq("links", fstat(&fd)?.st_nlink, 1)?;
        drop(fd);
        same("content after close", &get(&d.join("named"))?, b"content")?;
    }
    o_tmpfile_with_o_excl_can_never_be_named(d) {
        let fd = supported(open(d, O_RDWR | O_TMPFILE | O_EXCL, 0o600))?;
        use std::os::fd::AsRawFd;
        let proc = format!("/proc/self/fd/{}", fd.as_raw_fd());
        fails(ENOENT, linkat(proc.as_ref(), &d.join("named"), AT_SYMLINK_FOLLOW))?;
    }
    o_tmpfile_needs_write_access_mode(d) {
        fails(EINVAL, open(d, O_RDONLY | O_TMPFILE, 0o600))?;
    }
    o_tmpfile_on_a_file_is_refused(d) {
        put(&d.join("a"), b"")?;
        fails(ENOTDIR, open(&d.join("a"), O_RDWR | O_TMPFILE, 0o600))?;
    }
    o_sync_and_o_dsync_write_like_others(d) {
        for (name, flag) in [("s", O_SYNC), ("d", O_DSYNC)] {
            let fd = open(&d.join(name), O_RDWR | O_CREAT | flag, 0o644)?;
            let data = crate::check::pattern(1, 70_000);
            write_all(&fd, &data)?;
            pwrite(&fd, b"yy", 5)?;
            let mut want = data;
            want[5..7].copy_from_slice(b"yy");
            same("content", &get(&d.join(name))?, &want)?;
        }
    }
    a_slash_after_a_file_is_refused(d) {
        put(&d.join("a"), b"")?;
        fails(ENOTDIR, open(&d.join("a/"), O_RDONLY, 0))?;
        fails(ENOTDIR, open(&d.join("a/b"), O_RDWR | O_CREAT, 0o644))?;
        fails(EISDIR, open(&d.join("new/"), O_RDWR | O_CREAT, 0o644))?;
    }
    a_missing_directory_on_the_way_is_enoent(d) {
        fails(ENOENT, open(&d.join("no/a"), O_RDWR | O_CREAT, 0o644))?;
    }
    a_fifo_without_reader_refuses_a_writer_that_does_not_wait(d) {
        mknod(&d.join("p"), S_IFIFO | 0o644, 0)?;
        fails(ENXIO, open(&d.join("p"), O_WRONLY | O_NONBLOCK, 0))?;
        open(&d.join("p"), O_RDONLY | O_NONBLOCK, 0)?;
    }
    fcntl_getfl_tells_the_flags(d) {
        let fd = open(&d.join("a"), O_RDWR | O_CREAT | O_APPEND, 0o644)?;
        let flags = fcntl(&fd, F_GETFL, 0)?;
        eq("access mode", flags as i32 & O_ACCMODE, O_RDWR)?;
        yes("O_APPEND", flags as i32 & O_APPEND != 0)?;
    }
    two_opens_have_positions_of_their_own(d) {
        put(&d.join("a"), b"abcdef")?;
        let (x, y) = (open(&d.join("a"), O_RDONLY, 0)?, open(&d.join("a"), O_RDONLY, 0)?);
        same("x", &read(&x, 3)?, b"abc")?;
        same("y", &read(&y, 2)?, b"ab")?;
        same("x", &read(&x, 3)?, b"def")?;
    }
    a_duplicate_shares_the_position(d) {
        put(&d.join("a"), b"abcdef")?;
        let x = open(&d.join("a"), O_RDONLY, 0)?;
        let y = x.try_clone().map_err(|e| e.to_string())?;
        same("x", &read(&x, 3)?, b"abc")?;
        same("y", &read(&y, 2)?, b"de")?;
    }
    a_file_may_be_open_a_thousand_times(d) {
        put(&d.join("a"), b"x")?;
        // SAFETY: plain data; raises the soft limit to the hard one.
        unsafe {
            let mut lim: rlimit = std::mem::zeroed();
            libc::getrlimit(RLIMIT_NOFILE, &mut lim);
            lim.rlim_cur = lim.rlim_max;
            libc::setrlimit(RLIMIT_NOFILE, &lim);
        }
        let mut held = Vec::new();
        for _ in 0..1000 {
            match open(&d.join("a"), O_RDONLY, 0) {
                Ok(fd) => held.push(fd),
                Err(e) if e.errno == EMFILE => break,
                Err(e) => return Err(e.into()),
            }
        }
        for fd in held.iter().step_by(100) {
            same("content", &pread(fd, 5, 0)?, b"x")?;
        }
    }
    o_direct_writes_and_reads_aligned_pages(d) {
        let fd = match open(&d.join("a"), O_RDWR | O_CREAT | O_DIRECT, 0o644) {
            Err(e) if e.errno == EINVAL => return Err(format!("{SKIP}no O_DIRECT here")),
            other => other?,
        };
        let mut raw = vec![0u8; 3 * 65536];
        let skip = raw.as_ptr().align_offset(4096);
        let data = crate::check::pattern(9, 65536);
        raw[skip..skip + 65536].copy_from_slice(&data);
        eq("written", pwrite(&fd, &raw[skip..skip + 65536], 4096)?, 65536)?;
        raw.fill(0);
        eq("read", pread_into(&fd, &mut raw[skip..skip + 65536], 4096)?, 65536)?;
        same("content", &raw[skip..skip + 65536], &data)?;
        eq("read over the end", pread_into(&fd, &mut raw[skip..skip + 65536], 65536)?, 4096)?;
        eq("read at the end", pread_into(&fd, &mut raw[skip..skip + 4096], 65536 + 4096)?, 0)?;
    }
    o_direct_and_buffered_descriptors_agree(d) {
        let direct = match open(&d.join("a"), O_RDWR | O_CREAT | O_DIRECT, 0o644) {
            Err(e) if e.errno == EINVAL => return Err(format!("{SKIP}no O_DIRECT here")),
            other => other?,
        };
        let buffered = rw(&d.join("a"))?;
        let mut raw = vec![0u8; 3 * 8192];
        let skip = raw.as_ptr().align_offset(4096);
        for round in 0..10u64 {
            let data = crate::check::pattern(round, 8192);
            pwrite(&buffered, &data, 0)?;
            eq("read", pread_into(&direct, &mut raw[skip..skip + 8192], 0)?, 8192)?;
            same("written buffered, read direct", &raw[skip..skip + 8192], &data)?;
            let data = crate::check::pattern(round + 1000, 8192);
            raw[skip..skip + 8192].copy_from_slice(&data);
            eq("written", pwrite(&direct, &raw[skip..skip + 8192], 0)?, 8192)?;
            same("written direct, read buffered", &pread(&buffered, 8192, 0)?, &data)?;
        }
    }
    ino_is_stable_over_opens_and_rename(d) {
        put(&d.join("a"), b"x")?;
        let ino = stat(&d.join("a"))?.st_ino;
        rename(&d.join("a"), &d.join("b"))?;
        let fd = open(&d.join("b"), O_RDONLY, 0)?;
        eq("inode", fstat(&fd)?.st_ino, ino)?;
        put(&d.join("a"), b"y")?;
        yes("another file has another number", stat(&d.join("a"))?.st_ino != ino)?;
    }
}
