//! chmod(2), chown(2), umask: permission bits and what clears them.
use crate::check::{eq, fails, supported, yes};
use crate::run::as_user;
use crate::sys::*;

fn mode(p: &std::path::Path) -> Result<u32, String> {
    Ok(lstat(p)?.st_mode & 0o7777)
}

/// The mode that the kernel acts by, without asking for anything that a write makes old.
fn cached_mode(p: &std::path::Path) -> Result<u32, String> {
    Ok(u32::from(statx_of(p, libc::STATX_MODE)?.stx_mode) & 0o7777)
}

suite! { "mode";
    chmod_sets_all_twelve_bits(d) {
        put(&d.join("a"), b"")?;
        for bits in [0, 0o777, 0o644, 0o4755, 0o2755, 0o1777, 0o7777, 0o600] {
            chmod(&d.join("a"), bits)?;
            eq("mode", mode(&d.join("a"))?, bits)?;
        }
        mkdir(&d.join("p"), 0o755)?;
        for bits in [0o1777, 0o2770, 0o700, 0o3775] {
            chmod(&d.join("p"), bits)?;
            eq("mode of a directory", mode(&d.join("p"))?, bits)?;
        }
    }
    fchmod_is_the_same(d) {
        let fd = rw(&d.join("a"))?;
        fchmod(&fd, 0o4711)?;
        eq("mode", mode(&d.join("a"))?, 0o4711)?;
    }
    chmod_of_nothing_is_enoent(d) {
        fails(ENOENT, chmod(&d.join("no"), 0o644))?;
        fails(ENOENT, chown(&d.join("no"), 0, 0))?;
    }
    chmod_follows_links(d) {
        put(&d.join("a"), b"")?;
        symlink("a".as_ref(), &d.join("l"))?;
        chmod(&d.join("l"), 0o600)?;
        eq("mode", mode(&d.join("a"))?, 0o600)?;
    }
    chmod_moves_ctime_only(d) {
        put(&d.join("a"), b"")?;
        utimens(&d.join("a"), &[timespec { tv_sec: 1000, tv_nsec: 3 }; 2], 0)?;
        chmod(&d.join("a"), 0o600)?;
        let st = stat(&d.join("a"))?;
        eq("mtime", (st.st_mtime, st.st_mtime_nsec), (1000, 3))?;
        yes("ctime", st.st_ctime > 1000)?;
    }
    umask_takes_bits_from_new_things(d) {
        for mask in [0, 0o022, 0o077, 0o777, 0o027] {
            umask(mask);
            open(&d.join("a"), O_CREAT | O_WRONLY, 0o666)?;
            mkdir(&d.join("p"), 0o777)?;
            mknod(&d.join("n"), S_IFIFO | 0o666, 0)?;
            eq("file", mode(&d.join("a"))?, 0o666 & !mask)?;
            eq("directory", mode(&d.join("p"))?, 0o777 & !mask)?;
            eq("fifo", mode(&d.join("n"))?, 0o666 & !mask)?;
            unlink(&d.join("a"))?;
            unlink(&d.join("n"))?;
            rmdir(&d.join("p"))?;
        }
    }
    new_files_may_be_setuid(d) {
        open(&d.join("a"), O_CREAT | O_WRONLY, 0o4755)?;
        eq("mode", mode(&d.join("a"))?, 0o4755)?;
    }
    chmod_by_another_user_is_eperm(d) {
        put(&d.join("a"), b"")?;
        chmod(&d.join("a"), 0o666)?;
        chmod(d, 0o755)?;
        as_user(d, 1001, 1001, &[], |d| fails(EPERM, chmod(&d.join("a"), 0o600)))?;
        chown(&d.join("a"), 1001, 1001)?;
        as_user(d, 1001, 1001, &[], |d| Ok(chmod(&d.join("a"), 0o600).map(|_| ())?))?;
    }
    chmod_drops_setgid_for_a_group_the_owner_is_not_in(d) {
        put(&d.join("a"), b"")?;
        chown(&d.join("a"), 1001, 2002)?;
        as_user(d, 1001, 1001, &[], |d| { chmod(&d.join("a"), 0o2755)?; Ok(()) })?;
        eq("mode", mode(&d.join("a"))?, 0o755)?;
        as_user(d, 1001, 1001, &[2002], |d| { chmod(&d.join("a"), 0o2755)?; Ok(()) })?;
        eq("mode in the group", mode(&d.join("a"))?, 0o2755)?;
    }
    chown_sets_owner_and_group(d) {
        if !is_root() { return Err(format!("{SKIP}needs root")); }
        put(&d.join("a"), b"")?;
        for (u, g) in [(1001, 2002), (u32::MAX, 7), (5, u32::MAX), (0, 0), (4_000_000_000, 3_999_999_999)] {
            let before = stat(&d.join("a"))?;
            chown(&d.join("a"), u, g)?;
            let st = stat(&d.join("a"))?;
            eq("uid", st.st_uid, if u == u32::MAX { before.st_uid } else { u })?;
            eq("gid", st.st_gid, if g == u32::MAX { before.st_gid } else { g })?;
        }
    }
    lchown_changes_the_link_itself(d) {
        if !is_root() { return Err(format!("{SKIP}needs root")); }
        put(&d.join("a"), b"")?;
        symlink("a".as_ref(), &d.join("l"))?;
        lchown(&d.join("l"), 5, 6)?;
        let st = lstat(&d.join("l"))?;
        eq("link", (st.st_uid, st.st_gid), (5, 6))?;
        eq("file", stat(&d.join("a"))?.st_uid, 0)?;
    }
    chown_by_root_of_an_executable_clears_set_ids(d) {
        if !is_root() { return Err(format!("{SKIP}needs root")); }
        put(&d.join("a"), b"")?;
        chmod(&d.join("a"), 0o6755)?;
        chown(&d.join("a"), 5, 6)?;
        eq("mode", mode(&d.join("a"))?, 0o755)?;
        mkdir(&d.join("p"), 0o755)?;
        chmod(&d.join("p"), 0o6755)?;
        chown(&d.join("p"), 5, 6)?;
        eq("a directory keeps them", mode(&d.join("p"))?, 0o6755)?;
    }
    chown_by_the_owner_is_limited(d) {
        put(&d.join("a"), b"")?;
        chown(&d.join("a"), 1001, 1001)?;
        as_user(d, 1001, 1001, &[2002], |d| {
            fails(EPERM, chown(&d.join("a"), 1002, u32::MAX))?;
            fails(EPERM, chown(&d.join("a"), u32::MAX, 3003))?;
            chmod(&d.join("a"), 0o6755)?;
            chown(&d.join("a"), u32::MAX, 2002)?;
            eq("set ids are cleared", mode(&d.join("a"))?, 0o755)
        })?;
        eq("group", stat(&d.join("a"))?.st_gid, 2002)?;
        as_user(d, 1002, 1002, &[2002], |d| fails(EPERM, chown(&d.join("a"), u32::MAX, 1002)))?;
    }
    chgrp_by_an_owner_outside_the_group_clears_setgid(d) {
        put(&d.join("a"), b"")?;
        for (gid, left) in [(3003, 0o644), (2002, 0o2644)] {
            chown(&d.join("a"), 1001, gid)?;
            chmod(&d.join("a"), 0o2644)?;
            as_user(d, 1001, 1001, &[2002], |d| { chown(&d.join("a"), u32::MAX, 1001)?; Ok(()) })?;
            eq("mode", mode(&d.join("a"))?, left)?;
        }
    }
    changing_space_by_a_user_clears_set_ids(d) {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        for how in [0, libc::FALLOC_FL_KEEP_SIZE, PUNCH, libc::FALLOC_FL_ZERO_RANGE] {
            put(&d.join("a"), &[1; 20_000])?;
            chmod(&d.join("a"), 0o6777)?;
            as_user(d, 1001, 1001, &[], |d| {
                let fd = open(&d.join("a"), O_WRONLY, 0)?;
                supported(fallocate(&fd, how, 4096, 8192))?;
                Ok(())
            })?;
            eq(&format!("mode after {how}, as an execve sees it"), cached_mode(&d.join("a"))?, 0o777)?;
            eq(&format!("mode after {how}"), mode(&d.join("a"))?, 0o777)?;
        }
    }
    changes_by_a_user_take_capabilities(d) {
        if !is_root() { return Err(format!("{SKIP}needs root")); }
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // CAP_CHOWN, permitted and effective, as setcap(8) stores it.
        let mut caps = [0u8; 20];
        (caps[0], caps[3], caps[4]) = (1, 2, 1);
        for how in ["write", "allocate", "punch", "truncate"] {
            put(&d.join("a"), &[1; 20_000])?;
            chmod(&d.join("a"), 0o777)?;
            supported(setxattr(&d.join("a"), "security.capability", &caps, 0))?;
            as_user(d, 1001, 1001, &[], |d| {
                let fd = open(&d.join("a"), O_WRONLY, 0)?;
                match how {
                    "write" => drop(write_all(&fd, b"y")?),
                    "allocate" => drop(supported(fallocate(&fd, 0, 30_000, 8192))?),
                    "punch" => drop(supported(fallocate(&fd, PUNCH, 4096, 8192))?),
                    _ => drop(ftruncate(&fd, 100)?),
                }
                Ok(())
            })?;
            fails(ENODATA, getxattr(&d.join("a"), "security.capability")).map_err(|e| format!("{how}: {e}"))?;
        }
    }
    every_change_takes_capabilities_and_not_only_the_first_after_an_open(d) {
        if !is_root() { return Err(format!("{SKIP}needs root")); }
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let mut caps = [0u8; 20];
        (caps[0], caps[3], caps[4]) = (1, 2, 1);
        put(&d.join("a"), &[1; 20_000])?;
        chmod(&d.join("a"), 0o777)?;
        let fd = open(&d.join("a"), O_WRONLY, 0)?;
        let appending = open(&d.join("a"), O_WRONLY | O_APPEND, 0)?;
        for round in 0..3 {
            for how in ["write", "append", "allocate", "punch", "truncate"] {
                // Bytes change while there is no capability, so that whoever looked for one has found none.
                write_all(&fd, b"x")?;
                supported(setxattr(&d.join("a"), "security.capability", &caps, 0))?;
                as_user(d, 1001, 1001, &[], |_| {
                    match how {
                        "write" => drop(write_all(&fd, b"y")?),
                        "append" => drop(write_all(&appending, b"y")?),
                        "allocate" => drop(supported(fallocate(&fd, 0, 30_000, 8192))?),
                        "punch" => drop(supported(fallocate(&fd, PUNCH, 4096, 8192))?),
                        _ => drop(ftruncate(&fd, 100)?),
                    }
                    Ok(())
                })?;
                let left = getxattr(&d.join("a"), "security.capability");
                fails(ENODATA, left).map_err(|e| format!("{how}, round {round}: {e}"))?;
            }
        }
    }
    writing_by_a_user_clears_set_ids(d) {
        for (bits, left) in [(0o6777, 0o777), (0o4777, 0o777), (0o2777, 0o777)] {
            put(&d.join("a"), b"x")?;
            chmod(&d.join("a"), bits)?;
            as_user(d, 1001, 1001, &[], |d| { let fd = open(&d.join("a"), O_WRONLY, 0)?; write_all(&fd, b"y")?; Ok(()) })?;
            eq("mode as an execve sees it", cached_mode(&d.join("a"))?, left)?;
            eq("mode", mode(&d.join("a"))?, left)?;
        }
    }
    truncating_by_a_user_clears_set_ids(d) {
        put(&d.join("a"), b"xyz")?;
        chmod(&d.join("a"), 0o6777)?;
        as_user(d, 1001, 1001, &[], |d| { truncate(&d.join("a"), 1)?; Ok(()) })?;
        eq("mode", mode(&d.join("a"))?, 0o777)?;
        chmod(&d.join("a"), 0o6777)?;
        as_user(d, 1001, 1001, &[], |d| { open(&d.join("a"), O_WRONLY | O_TRUNC, 0)?; Ok(()) })?;
        eq("mode after O_TRUNC", mode(&d.join("a"))?, 0o777)?;
    }
    who_writes_counts_and_not_who_opened(d) {
        if !is_root() { return Err(format!("{SKIP}needs root")); }
        for (uid, gid, left) in [(1001, 1001, 0o745), (1001, 2002, 0o2745)] {
            put(&d.join("a"), b"x")?;
            chown(&d.join("a"), 1002, 2002)?;
            chmod(&d.join("a"), 0o6745)?;
            let fd = open(&d.join("a"), O_WRONLY, 0)?;
            as_user(d, uid, gid, &[], |_| write_all(&fd, b"y").map_err(Into::into))?;
            eq("mode", mode(&d.join("a"))?, left)?;
        }
    }
    writing_by_root_keeps_set_ids(d) {
        if !is_root() { return Err(format!("{SKIP}needs root")); }
        put(&d.join("a"), b"x")?;
        chmod(&d.join("a"), 0o6777)?;
        let fd = open(&d.join("a"), O_WRONLY, 0)?;
        write_all(&fd, b"y")?;
        eq("mode", mode(&d.join("a"))?, 0o6777)?;
    }
    setgid_directories_hand_on_their_group(d) {
        if !is_root() { return Err(format!("{SKIP}needs root")); }
        mkdir(&d.join("p"), 0o777)?;
        chown(&d.join("p"), 0, 2002)?;
        chmod(&d.join("p"), 0o2777)?;
        as_user(d, 1001, 1001, &[], |d| {
            put(&d.join("p/a"), b"")?;
            mkdir(&d.join("p/q"), 0o755)?;
            symlink("x".as_ref(), &d.join("p/l"))?;
            mknod(&d.join("p/n"), S_IFIFO | 0o600, 0)?;
            Ok(())
        })?;
        for n in ["a", "q", "l", "n"] {
            eq("group", lstat(&d.join("p").join(n))?.st_gid, 2002)?;
        }
        eq("mode of the directory", mode(&d.join("p/q"))?, 0o2755)?;
        eq("mode of the file", mode(&d.join("p/a"))?, 0o644)?;
    }
    a_setgid_executable_is_not_made_for_a_foreign_group(d) {
        mkdir(&d.join("p"), 0o777)?;
        chown(&d.join("p"), 0, 2002)?;
        chmod(&d.join("p"), 0o2777)?;
        as_user(d, 1001, 1001, &[], |d| { open(&d.join("p/a"), O_CREAT | O_WRONLY, 0o2755)?; Ok(()) })?;
        eq("mode", mode(&d.join("p/a"))?, 0o755)?;
    }
    new_things_belong_to_their_maker(d) {
        chmod(d, 0o777)?;
        as_user(d, 1001, 1002, &[], |d| { put(&d.join("a"), b"")?; mkdir(&d.join("p"), 0o755)?; Ok(()) })?;
        for n in ["a", "p"] {
            let st = stat(&d.join(n))?;
            eq("owner", (st.st_uid, st.st_gid), (1001, 1002))?;
        }
    }
}
