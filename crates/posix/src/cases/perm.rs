//! Permission checks for another user: by owner, group, supplementary groups and others.
use crate::check::{eq, fails, fails_any, same};
use crate::run::as_user;
use crate::sys::*;

suite! { "perm";
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
