//! truncate(2) and ftruncate(2).

use crate::check::{eq, fails, fails_any, pattern, same, yes};
use crate::sys::*;

suite! { "truncate";
    down_cuts(d) {
        let data = pattern(1, 300_000);
        for n in [299_999usize, 200_000, 131_072, 65_537, 65_536, 4097, 4096, 1, 0] {
            put(&d.join("a"), &data)?;
            truncate(&d.join("a"), n as i64)?;
            eq("size", stat(&d.join("a"))?.st_size, n as i64)?;
            same("content", &get(&d.join("a"))?, &data[..n])?;
        }
    }
    up_adds_zeros(d) {
        put(&d.join("a"), b"abc")?;
        truncate(&d.join("a"), 100_000)?;
        let all = get(&d.join("a"))?;
        eq("size", all.len(), 100_000)?;
        same("head", &all[..3], b"abc")?;
        yes("zeros", all[3..].iter().all(|b| *b == 0))?;
    }
    down_and_up_leaves_zeros_not_old_bytes(d) {
        for cut in [1i64, 100, 4096, 5000, 65_536, 70_000] {
            put(&d.join("a"), &pattern(1, 200_000))?;
            truncate(&d.join("a"), cut)?;
            truncate(&d.join("a"), 200_000)?;
            let all = get(&d.join("a"))?;
            eq("size", all.len(), 200_000)?;
            yes("old bytes are gone", all[cut as usize..].iter().all(|b| *b == 0))?;
        }
    }
    down_then_write_past_leaves_zeros_between(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, &pattern(1, 20_000))?;
        ftruncate(&fd, 100)?;
        pwrite(&fd, b"end", 10_000)?;
        let all = get(&d.join("a"))?;
        eq("size", all.len(), 10_003)?;
        same("head", &all[..100], &pattern(1, 20_000)[..100])?;
        yes("zeros", all[100..10_000].iter().all(|b| *b == 0))?;
    }
    after_fsync_and_reopen_the_size_holds(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, &pattern(1, 2_500_000))?;
        fsync(&fd)?;
        ftruncate(&fd, 1_234_567)?;
        drop(fd);
        same("content", &get(&d.join("a"))?, &pattern(1, 2_500_000)[..1_234_567])?;
    }
    keeps_the_position(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, b"0123456789")?;
        ftruncate(&fd, 2)?;
        eq("position", lseek(&fd, 0, SEEK_CUR)?, 10)?;
        write_all(&fd, b"x")?;
        same("content", &get(&d.join("a"))?, b"01\0\0\0\0\0\0\0\0x")?;
    }
    of_a_directory_is_eisdir(d) {
        fails(EISDIR, truncate(d, 0))?;
    }
    of_nothing_is_enoent(d) {
        fails(ENOENT, truncate(&d.join("no"), 0))?;
    }
    to_a_negative_length_is_einval(d) {
        let fd = rw(&d.join("a"))?;
        fails(EINVAL, ftruncate(&fd, -1))?;
        fails(EINVAL, truncate(&d.join("a"), -1))?;
    }
    to_the_largest_length_succeeds_or_is_efbig(d) {
        let fd = rw(&d.join("a"))?;
        match ftruncate(&fd, i64::MAX) {
            Ok(_) => eq("size", fstat(&fd)?.st_size, i64::MAX)?,
            Err(e) => yes("EFBIG or EINVAL", [EFBIG, EINVAL].contains(&e.errno))?,
        }
    }
    to_a_terabyte_takes_no_space(d) {
        let fd = rw(&d.join("a"))?;
        ftruncate(&fd, 1 << 40)?;
        let st = fstat(&fd)?;
        eq("size", st.st_size, 1 << 40)?;
        yes("few blocks", st.st_blocks < 1000)?;
        same("far inside", &pread(&fd, 10, 1 << 39)?, &[0; 10])?;
        same("the end", &pread(&fd, 100, (1 << 40) - 3)?, &[0; 3])?;
    }
    of_a_running_program_is_refused_or_allowed(d) {
        let program = d.join("p");
        std::fs::copy("/bin/sleep", &program).map_err(|e| e.to_string())?;
        chmod(&program, 0o755)?;
        let mut child = match std::process::Command::new(&program).arg("60").spawn() {
            Err(e) if e.raw_os_error() == Some(EACCES) => return Err(format!("{SKIP}mounted noexec")),
            other => other.map_err(|e| e.to_string())?,
        };
        let result = open(&program, O_WRONLY, 0);
        let _ = child.kill();
        let _ = child.wait();
        match result {
            Ok(_) => (),
            Err(e) => eq("errno", e.errno, ETXTBSY)?,
        }
    }
    changes_mtime_and_ctime_when_the_size_changes(d) {
        put(&d.join("a"), b"abc")?;
        let past = [timespec { tv_sec: 1000, tv_nsec: 0 }; 2];
        for n in [10, 2] {
            utimens(&d.join("a"), &past, 0)?;
            truncate(&d.join("a"), n)?;
            let st = stat(&d.join("a"))?;
            yes("mtime moved", st.st_mtime > 1000)?;
        }
    }
    through_a_link_reaches_the_file(d) {
        put(&d.join("a"), b"abcdef")?;
        symlink("a".as_ref(), &d.join("l"))?;
        truncate(&d.join("l"), 3)?;
        same("content", &get(&d.join("a"))?, b"abc")?;
    }
    of_a_fifo_is_einval(d) {
        mknod(&d.join("p"), S_IFIFO | 0o644, 0)?;
        fails(EINVAL, truncate(&d.join("p"), 0))?;
    }
    needs_write_permission(d) {
        put(&d.join("a"), b"abc")?;
        chmod(&d.join("a"), 0o444)?;
        chmod(d, 0o755)?;
        crate::run::as_user(d, 1001, 1001, &[], |d| fails(EACCES, truncate(&d.join("a"), 0)))?;
        same("content", &get(&d.join("a"))?, b"abc")?;
    }
    with_a_writable_descriptor_needs_no_permission_any_more(d) {
        chmod(d, 0o777)?;
        crate::run::as_user(d, 1001, 1001, &[], |d| {
            let fd = rw(&d.join("a"))?;
            write_all(&fd, b"abcdef")?;
            fchmod(&fd, 0o400)?;
            ftruncate(&fd, 3)?;
            same("content", &pread(&fd, 10, 0)?, b"abc")
        })?;
    }
    is_seen_by_a_reader_at_once(d) {
        let (x, y) = (rw(&d.join("a"))?, rw(&d.join("a"))?);
        for i in 0..50i64 {
            ftruncate(&x, i * 1000)?;
            eq("size", fstat(&y)?.st_size, i * 1000)?;
            same("end", &pread(&y, 100, (i * 1000 - 10).max(0))?, &vec![0; 10.min(i as usize * 1000)])?;
        }
    }
    of_an_unlinked_open_file_works(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, &pattern(1, 10_000))?;
        unlink(&d.join("a"))?;
        ftruncate(&fd, 5000)?;
        same("content", &pread(&fd, 10_000, 0)?, &pattern(1, 10_000)[..5000])?;
        fails_any(&[ENOENT], truncate(&d.join("a"), 0))?;
    }
    while_another_writes_never_shows_foreign_bytes(d) {
        let fd = rw(&d.join("a"))?;
        let f = d.join("a");
        let child = crate::run::spawn(move || {
            let fd = rw(&f)?;
            for i in 0..100i64 {
                ftruncate(&fd, (i % 7) * 3000)?;
            }
            Ok(())
        })?;
        for _ in 0..100 {
            pwrite(&fd, &[7; 9000], 6000)?;
            let seen = pread(&fd, 30_000, 0)?;
            yes("zeros and sevens only", seen.iter().all(|b| *b == 0 || *b == 7))?;
            yes("zeros before the data", seen.iter().take(6000).all(|b| *b == 0))?;
        }
        child.join()?;
    }
}
