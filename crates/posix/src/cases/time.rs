//! Times: utimensat(2), who moves which time, statx(2) with the birth time.
use libc::{UTIME_NOW, UTIME_OMIT};

use crate::check::{eq, fails, supported, yes};
use crate::run::as_user;
use crate::sys::*;

fn t(tv_sec: i64, tv_nsec: i64) -> timespec {
    timespec { tv_sec, tv_nsec }
}

/// The file system's idea of now: the time of a file made just now.
fn now(d: &std::path::Path) -> Result<i64, String> {
    let at = d.join(".now");
    open(&at, O_CREAT | O_WRONLY, 0o600)?;
    let st = stat(&at)?;
    unlink(&at)?;
    Ok(st.st_mtime)
}

suite! { "time";
    utimensat_sets_both_to_the_nanosecond(d) {
        put(&d.join("a"), b"")?;
        for (a, m) in [((1, 2), (3, 4)), ((1_700_000_000, 123_456_789), (1_600_000_000, 999_999_999)), ((0, 0), (0, 1)), ((4_000_000_000, 5), (5_000_000_000, 6))] {
            utimens(&d.join("a"), &[t(a.0, a.1), t(m.0, m.1)], 0)?;
            let st = stat(&d.join("a"))?;
            eq("atime", (st.st_atime, st.st_atime_nsec), a)?;
            eq("mtime", (st.st_mtime, st.st_mtime_nsec), m)?;
        }
    }
    a_change_leaves_no_time_in_the_future(d) {
        const FUTURE: i64 = 4_000_000_000;
        let a = d.join("a");
        for how in ["write", "append", "truncate", "ftruncate", "fallocate", "copy"] {
            put(&a, &[b'x'; 5000])?;
            let fd = rw(&a)?;
            utimens(&a, &[t(FUTURE, 0), t(FUTURE, 0)], 0)?;
            eq(how, fstat(&fd)?.st_mtime, FUTURE)?;
            match how {
                "write" => write_all(&fd, b"y")?,
                "append" => write_all(&open(&a, O_WRONLY | O_APPEND, 0)?, b"y")?,
                "truncate" => drop(truncate(&a, 10)?),
                "ftruncate" => drop(ftruncate(&fd, 6000)?),
                "fallocate" => drop(supported(fallocate(&fd, 0, 0, 9000))?),
                _ => drop(copy_range(&fd, 0, &fd, 8192, 10)?),
            }
            yes(&format!("{how}, open"), fstat(&fd)?.st_mtime < FUTURE)?;
            drop(fd);
            yes(&format!("{how}, closed"), stat(&a)?.st_mtime < FUTURE)?;
        }
    }
    times_before_1970_work(d) {
        put(&d.join("a"), b"")?;
        utimens(&d.join("a"), &[t(-1000, 5), t(-2, 999)], 0)?;
        let st = stat(&d.join("a"))?;
        eq("atime", (st.st_atime, st.st_atime_nsec), (-1000, 5))?;
        eq("mtime", (st.st_mtime, st.st_mtime_nsec), (-2, 999))?;
    }
    omit_leaves_a_time(d) {
        put(&d.join("a"), b"")?;
        utimens(&d.join("a"), &[t(10, 1), t(20, 2)], 0)?;
        utimens(&d.join("a"), &[t(0, UTIME_OMIT), t(30, 3)], 0)?;
        utimens(&d.join("a"), &[t(40, 4), t(0, UTIME_OMIT)], 0)?;
        let st = stat(&d.join("a"))?;
        eq("times", (st.st_atime, st.st_atime_nsec, st.st_mtime, st.st_mtime_nsec), (40, 4, 30, 3))?;
    }
    now_is_now(d) {
        put(&d.join("a"), b"")?;
        utimens(&d.join("a"), &[t(10, 1), t(20, 2)], 0)?;
        let begin = now(d)?;
        utimens(&d.join("a"), &[t(0, UTIME_NOW), t(0, UTIME_NOW)], 0)?;
        let st = stat(&d.join("a"))?;
        yes("atime", st.st_atime >= begin && st.st_atime <= begin + 60)?;
        yes("mtime", st.st_mtime >= begin && st.st_mtime <= begin + 60)?;
    }
    nanoseconds_out_of_range_are_einval(d) {
        put(&d.join("a"), b"")?;
        fails(EINVAL, utimens(&d.join("a"), &[t(0, 1_000_000_000), t(0, 0)], 0))?;
        fails(EINVAL, utimens(&d.join("a"), &[t(0, 0), t(0, -7)], 0))?;
    }
    a_link_has_times_of_its_own(d) {
        put(&d.join("a"), b"")?;
        symlink("a".as_ref(), &d.join("l"))?;
        utimens(&d.join("l"), &[t(10, 1), t(20, 2)], libc::AT_SYMLINK_NOFOLLOW)?;
        eq("link", lstat(&d.join("l"))?.st_mtime, 20)?;
        yes("file", stat(&d.join("a"))?.st_mtime > 20)?;
    }
    setting_times_moves_ctime(d) {
        put(&d.join("a"), b"")?;
        let begin = now(d)?;
        utimens(&d.join("a"), &[t(10, 1), t(20, 2)], 0)?;
        yes("ctime", stat(&d.join("a"))?.st_ctime >= begin)?;
    }
    others_may_set_now_if_they_may_write_but_nothing_else(d) {
        put(&d.join("a"), b"")?;
        chmod(&d.join("a"), 0o666)?;
        put(&d.join("b"), b"")?;
        chmod(d, 0o755)?;
        as_user(d, 1001, 1001, &[], |d| {
            utimens(&d.join("a"), &[t(0, UTIME_NOW), t(0, UTIME_NOW)], 0)?;
            fails(EPERM, utimens(&d.join("a"), &[t(1, 0), t(1, 0)], 0))?;
            fails(EACCES, utimens(&d.join("b"), &[t(0, UTIME_NOW), t(0, UTIME_NOW)], 0))
        })?;
    }
    writing_moves_mtime_and_ctime(d) {
        let fd = rw(&d.join("a"))?;
        futimens(&fd, &[t(10, 0), t(20, 0)])?;
        write_all(&fd, b"x")?;
        let st = fstat(&fd)?;
        yes("mtime", st.st_mtime > 20)?;
        yes("ctime", st.st_ctime > 20)?;
        eq("atime", st.st_atime, 10)?;
    }
    set_times_hold_against_earlier_writes(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, &[1; 100_000])?;
        futimens(&fd, &[t(10, 5), t(20, 6)])?;
        fsync(&fd)?;
        drop(fd);
        let st = stat(&d.join("a"))?;
        eq("mtime", (st.st_mtime, st.st_mtime_nsec), (20, 6))?;
    }
    mtime_never_goes_back_over_writes(d) {
        let fd = rw(&d.join("a"))?;
        let mut last = (0, 0);
        for _ in 0..50 {
            write_all(&fd, b"x")?;
            let st = stat(&d.join("a"))?;
            yes("not before the last", (st.st_mtime, st.st_mtime_nsec) >= last)?;
            last = (st.st_mtime, st.st_mtime_nsec);
        }
        drop(fd);
        let st = stat(&d.join("a"))?;
        yes("close does not turn it back", (st.st_mtime, st.st_mtime_nsec) >= last)?;
    }
    reading_moves_neither_mtime_nor_ctime(d) {
        put(&d.join("a"), b"x")?;
        let before = stat(&d.join("a"))?;
        get(&d.join("a"))?;
        let after = stat(&d.join("a"))?;
        eq("mtime", (after.st_mtime, after.st_mtime_nsec), (before.st_mtime, before.st_mtime_nsec))?;
        eq("ctime", (after.st_ctime, after.st_ctime_nsec), (before.st_ctime, before.st_ctime_nsec))?;
    }
    reading_with_o_noatime_moves_no_time(d) {
        put(&d.join("a"), &[7; 9000])?;
        for size in [100, 9000] {
            utimens(&d.join("a"), &[t(10, 1), t(20, 2)], 0)?;
            let before = stat(&d.join("a"))?;
            let fd = open(&d.join("a"), O_RDONLY | libc::O_NOATIME, 0)?;
            eq("read", pread(&fd, size, 0)?.len(), size)?;
            eq("while open", fstat(&fd)?.st_atime, 10)?;
            drop(fd);
            let after = stat(&d.join("a"))?;
            eq("atime", (after.st_atime, after.st_atime_nsec), (10, 1))?;
            eq("ctime", (after.st_ctime, after.st_ctime_nsec), (before.st_ctime, before.st_ctime_nsec))?;
        }
    }
    statx_agrees_with_stat(d) {
        put(&d.join("a"), &[1; 5000])?;
        let (x, s) = (statx(&d.join("a"))?, stat(&d.join("a"))?);
        eq("size", x.stx_size, s.st_size as u64)?;
        eq("inode", x.stx_ino, s.st_ino)?;
        eq("mode", u32::from(x.stx_mode), s.st_mode)?;
        eq("links", u64::from(x.stx_nlink), s.st_nlink)?;
        eq("mtime", (x.stx_mtime.tv_sec, i64::from(x.stx_mtime.tv_nsec)), (s.st_mtime, s.st_mtime_nsec))?;
    }
    the_birth_time_stays(d) {
        put(&d.join("a"), b"")?;
        let first = statx(&d.join("a"))?;
        if first.stx_mask & libc::STATX_BTIME == 0 { return Err(format!("{SKIP}no birth time here")); }
        put(&d.join("a"), b"changed")?;
        chmod(&d.join("a"), 0o600)?;
        utimens(&d.join("a"), &[t(10, 0), t(20, 0)], 0)?;
        rename(&d.join("a"), &d.join("b"))?;
        let later = statx(&d.join("b"))?;
        eq("birth", (later.stx_btime.tv_sec, later.stx_btime.tv_nsec), (first.stx_btime.tv_sec, first.stx_btime.tv_nsec))?;
        yes("plausible", (first.stx_btime.tv_sec - stat(&d.join("b"))?.st_ctime).abs() < 100)?;
    }
}
