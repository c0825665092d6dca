//! Permission checks for another user: by owner, group, supplementary groups and others.
use crate::check::{eq, fails, fails_any, same};
use crate::run::{as_capable_user, as_user};
use crate::sys::*;

/// Capabilities as bits.
const CHOWN: u32 = 1;
const DAC_OVERRIDE: u32 = 1 << 1;
const DAC_READ_SEARCH: u32 = 1 << 2;
const FOWNER: u32 = 1 << 3;
const FSETID: u32 = 1 << 4;

/// A file of root with set-id bits that others have no rights to, and one below a directory of that kind.
fn what_is_roots(d: &std::path::Path) -> Result<(), String> {
    chmod(d, 0o755)?;
    put(&d.join("a"), b"secret")?;
    chmod(&d.join("a"), 0o6710)?;
    mkdir(&d.join("p"), 0o700)?;
    Ok(put(&d.join("p/b"), b"secret")?)
}

suite! { "perm";
    a_user_with_the_capability_may_read_everything_and_no_more(d) {
        what_is_roots(d)?;
        as_capable_user(d, (1001, 1001, &[]), DAC_READ_SEARCH, |d| {
            same("content", &get(&d.join("a"))?, b"secret")?;
            same("content below", &get(&d.join("p/b"))?, b"secret")?;
            eq("names", std::fs::read_dir(d.join("p")).map_err(|e| e.to_string())?.count(), 1)?;
            fails(EACCES, open(&d.join("a"), O_WRONLY, 0))?;
            fails(EACCES, unlink(&d.join("p/b")))?;
            fails(EPERM, chmod(&d.join("a"), 0o777))?;
            fails(EPERM, chown(&d.join("a"), 1001, 1001))
        })?;
    }
    a_user_with_the_capability_may_change_everything(d) {
        what_is_roots(d)?;
        as_capable_user(d, (1001, 1001, &[]), DAC_OVERRIDE, |d| {
            put(&d.join("p/c"), b"new")?;
            eq("its owner", stat(&d.join("p/c"))?.st_uid, 1001)?;
            unlink(&d.join("p/b"))?;
            rename(&d.join("p/c"), &d.join("c"))?;
            truncate(&d.join("a"), 3)?;
            fails(EPERM, chmod(&d.join("a"), 0o777))?;
            fails(EPERM, chown(&d.join("a"), 1001, 1001))
        })?;
        same("content", &get(&d.join("a"))?, b"sec")?;
    }
    what_a_user_with_capabilities_writes_loses_its_set_id_bits(d) {
        for (more, left) in [(0, 0o710), (FSETID, 0o6710)] {
            what_is_roots(d)?;
            as_capable_user(d, (1001, 1001, &[]), DAC_OVERRIDE | more, |d| {
                let fd = open(&d.join("a"), O_WRONLY, 0)?;
                fallocate(&fd, 0, 0, 100)?;
                Ok(write_all(&fd, b"x")?)
            })?;
            eq("mode", stat(&d.join("a"))?.st_mode & 0o7777, left)?;
            chmod(&d.join("a"), 0o6710)?;
            as_capable_user(d, (1001, 1001, &[]), DAC_OVERRIDE | more, |d| {
                open(&d.join("a"), O_WRONLY | O_TRUNC, 0).map(drop).map_err(String::from)
            })?;
            eq("mode behind O_TRUNC", stat(&d.join("a"))?.st_mode & 0o7777, left)?;
            std::fs::remove_dir_all(d.join("p")).map_err(|e| e.to_string())?;
        }
    }
    a_user_with_the_capability_gives_files_away_and_changes_their_modes(d) {
        what_is_roots(d)?;
        // A change of owner takes set-id bits, for which the capability is not enough.
        chmod(&d.join("a"), 0o600)?;
        as_capable_user(d, (1001, 1001, &[]), CHOWN, |d| {
            chown(&d.join("a"), 1002, 1003)?;
            fails(EPERM, chmod(&d.join("a"), 0o777))?;
            fails(EACCES, open(&d.join("a"), O_RDONLY, 0))
        })?;
        as_capable_user(d, (1001, 1001, &[]), FOWNER, |d| {
            chmod(&d.join("a"), 0o640)?;
            fails(EPERM, chown(&d.join("a"), 1001, 1001))?;
            fails(EACCES, open(&d.join("a"), O_RDONLY, 0))
        })?;
        let s = stat(&d.join("a"))?;
        eq("owner and mode", (s.st_uid, s.st_gid, s.st_mode & 0o7777), (1002, 1003, 0o640))?;
    }
    owner_group_and_others_each_have_their_bits(d) {
        chmod(d, 0o755)?;
        for (bits, uid, gid, groups, readable, writable) in [
            (0o600, 1001, 1, &[][..], true, true), (0o600, 1002, 2002, &[], false, false),
            (0o040, 1002, 2002, &[], true, false), (0o040, 1002, 3, &[2002], true, false), (0o040, 1001, 2002, &[], false, false),
            (0o020, 1002, 1, &[5, 2002], false, true), (0o004, 1002, 1, &[], true, false), (0o004, 1002, 2002, &[], false, false),
            (0o066, 1001, 2002, &[], false, false), (0o606, 1002, 2002, &[], false, false), (0o002, 1003, 9, &[], false, true),
        ] {
            put(&d.join("a"), b"x")?;
            chown(&d.join("a"), 1001, 2002)?;
            chmod(&d.join("a"), bits)?;
            as_user(d, uid, gid, groups, |d| {
                let text = format!("{bits:o} for {uid}:{gid}{groups:?}");
                eq(&format!("reading {text}"), open(&d.join("a"), O_RDONLY, 0).is_ok(), readable)?;
                eq(&format!("writing {text}"), open(&d.join("a"), O_WRONLY, 0).is_ok(), writable)?;
                eq(&format!("access {text}"), access(&d.join("a"), libc::R_OK).is_ok(), readable)
            })?;
            unlink(&d.join("a"))?;
        }
    }
    a_directory_without_x_cannot_be_entered(d) {
        mkdir(&d.join("p"), 0o755)?;
        put(&d.join("p/a"), b"x")?;
        chmod(&d.join("p"), 0o744)?;
        chmod(d, 0o755)?;
        as_user(d, 1001, 1001, &[], |d| {
            fails(EACCES, stat(&d.join("p/a")))?;
            fails(EACCES, open(&d.join("p/a"), O_RDONLY, 0))?;
            eq("names can be read", std::fs::read_dir(d.join("p")).map_err(|e| e.to_string())?.count(), 1)
        })?;
    }
    a_directory_without_w_cannot_be_changed(d) {
        put(&d.join("a"), b"x")?;
        mkdir(&d.join("p"), 0o755)?;
        chmod(d, 0o755)?;
        as_user(d, 1001, 1001, &[], |d| {
            fails(EACCES, open(&d.join("new"), O_CREAT | O_WRONLY, 0o644))?;
            fails(EACCES, mkdir(&d.join("new"), 0o755))?;
            fails(EACCES, symlink("x".as_ref(), &d.join("new")))?;
            fails(EACCES, mknod(&d.join("new"), S_IFIFO | 0o600, 0))?;
            fails(EACCES, unlink(&d.join("a")))?;
            fails(EACCES, rmdir(&d.join("p")))?;
            fails_any(&[EACCES, EPERM], link(&d.join("a"), &d.join("new")))?;
            fails(EACCES, open(d, O_RDWR | O_TMPFILE, 0o600))?;
            fails(EEXIST, mkdir(&d.join("p"), 0o755))
        })?;
    }
    a_change_of_rights_acts_at_once(d) {
        put(&d.join("a"), b"x")?;
        chmod(d, 0o755)?;
        for _ in 0..10 {
            chmod(&d.join("a"), 0o600)?;
            as_user(d, 1001, 1001, &[], |d| fails(EACCES, open(&d.join("a"), O_RDONLY, 0)))?;
            chmod(&d.join("a"), 0o644)?;
            as_user(d, 1001, 1001, &[], |d| same("content", &get(&d.join("a"))?, b"x"))?;
        }
    }
    an_open_descriptor_keeps_its_rights(d) {
        chmod(d, 0o777)?;
        as_user(d, 1001, 1001, &[], |d| {
            let fd = rw(&d.join("a"))?;
            chmod(&d.join("a"), 0)?;
            write_all(&fd, b"x")?;
            same("content", &pread(&fd, 5, 0)?, b"x")?;
            fails(EACCES, open(&d.join("a"), O_RDONLY, 0))
        })?;
    }
    root_may_read_and_write_everything_but_not_run_it(d) {
        if !is_root() { return Err(format!("{SKIP}needs root")); }
        put(&d.join("a"), b"x")?;
        chown(&d.join("a"), 1001, 1001)?;
        chmod(&d.join("a"), 0)?;
        open(&d.join("a"), O_RDWR, 0)?;
        access(&d.join("a"), libc::R_OK | libc::W_OK)?;
        fails(EACCES, access(&d.join("a"), libc::X_OK))?;
    }
    the_sticky_bit_protects_names_of_others(d) {
        chmod(d, 0o1777)?;
        as_user(d, 1001, 1001, &[], |d| { put(&d.join("a"), b"")?; mkdir(&d.join("p"), 0o777)?; Ok(()) })?;
        as_user(d, 1002, 1002, &[], |d| {
            fails_any(&[EPERM, EACCES], unlink(&d.join("a")))?;
            fails_any(&[EPERM, EACCES], rmdir(&d.join("p")))?;
            fails_any(&[EPERM, EACCES], rename(&d.join("a"), &d.join("b")))
        })?;
        as_user(d, 1001, 1001, &[], |d| { unlink(&d.join("a"))?; rmdir(&d.join("p"))?; Ok(()) })?;
    }
    the_owner_of_a_sticky_directory_may_remove_anything(d) {
        chown(d, 1002, 1002)?;
        chmod(d, 0o1777)?;
        put(&d.join("a"), b"")?;
        as_user(d, 1002, 1002, &[], |d| { unlink(&d.join("a"))?; Ok(()) })?;
    }
    access_of_nothing_is_enoent(d) {
        fails(ENOENT, access(&d.join("no"), libc::F_OK))?;
        access(d, libc::F_OK)?;
    }
    o_trunc_needs_write_permission(d) {
        put(&d.join("a"), b"x")?;
        chmod(&d.join("a"), 0o644)?;
        chmod(d, 0o755)?;
        as_user(d, 1001, 1001, &[], |d| fails(EACCES, open(&d.join("a"), O_RDONLY | O_TRUNC, 0)))?;
        same("content", &get(&d.join("a"))?, b"x")?;
    }
}
