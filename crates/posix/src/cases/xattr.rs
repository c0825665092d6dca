//! Extended attributes: namespaces, sizes, flags.
use libc::{XATTR_CREATE, XATTR_REPLACE};

use crate::check::{eq, fails, fails_any, pattern, same, supported, yes};
use crate::run::as_user;
use crate::sys::*;

fn user_names(p: &std::path::Path) -> Result<Vec<String>, String> {
    Ok(listxattr(p)?.into_iter().filter(|n| n.starts_with("user.")).collect())
}

suite! { "xattr";
    set_get_list_remove(d) {
        put(&d.join("a"), b"")?;
        supported(setxattr(&d.join("a"), "user.one", b"1", 0))?;
        setxattr(&d.join("a"), "user.two", b"22", 0)?;
        same("one", &getxattr(&d.join("a"), "user.one")?, b"1")?;
        eq("names", user_names(&d.join("a"))?, vec!["user.one".to_string(), "user.two".into()])?;
        removexattr(&d.join("a"), "user.one")?;
        eq("names", user_names(&d.join("a"))?, vec!["user.two".to_string()])?;
        fails(ENODATA, getxattr(&d.join("a"), "user.one"))?;
        fails(ENODATA, removexattr(&d.join("a"), "user.one"))?;
    }
    on_directories(d) {
        supported(setxattr(d, "user.x", b"v", 0))?;
        same("value", &getxattr(d, "user.x")?, b"v")?;
        removexattr(d, "user.x")?;
    }
    values_are_bytes_and_may_be_empty(d) {
        put(&d.join("a"), b"")?;
        for v in [&b""[..], b"\0", b"\0\xff\0", &pattern(1, 1000)] {
            supported(setxattr(&d.join("a"), "user.x", v, 0))?;
            same("value", &getxattr(&d.join("a"), "user.x")?, v)?;
        }
    }
    the_name_of_a_space_alone_is_no_name(d) {
        put(&d.join("a"), b"")?;
        supported(setxattr(&d.join("a"), "user.x", b"v", 0))?;
        removexattr(&d.join("a"), "user.x")?;
        fails(EINVAL, setxattr(&d.join("a"), "user.", b"v", 0))?;
        fails(EINVAL, getxattr(&d.join("a"), "user."))?;
    }
    replacing_changes_the_value(d) {
        put(&d.join("a"), b"")?;
        for n in [10usize, 2000, 1, 500] {
            supported(setxattr(&d.join("a"), "user.x", &pattern(n as u64, n), 0))?;
            same("value", &getxattr(&d.join("a"), "user.x")?, &pattern(n as u64, n))?;
        }
    }
    create_and_replace_flags(d) {
        put(&d.join("a"), b"")?;
        fails(ENODATA, supported_flag(setxattr(&d.join("a"), "user.x", b"1", XATTR_REPLACE))?)?;
        setxattr(&d.join("a"), "user.x", b"1", XATTR_CREATE)?;
        fails(EEXIST, setxattr(&d.join("a"), "user.x", b"2", XATTR_CREATE))?;
        setxattr(&d.join("a"), "user.x", b"3", XATTR_REPLACE)?;
        same("value", &getxattr(&d.join("a"), "user.x")?, b"3")?;
        fails(EINVAL, setxattr(&d.join("a"), "user.x", b"4", 0x80))?;
    }
    sizes_are_told_and_short_buffers_refused(d) {
        put(&d.join("a"), b"")?;
        supported(setxattr(&d.join("a"), "user.x", &[1; 300], 0))?;
        eq("size", getxattr_into(&d.join("a"), "user.x", &mut [])?, 300)?;
        fails(ERANGE, getxattr_into(&d.join("a"), "user.x", &mut [0; 299]))?;
        eq("exact", getxattr_into(&d.join("a"), "user.x", &mut [0; 300])?, 300)?;
        let n = listxattr_into(&d.join("a"), &mut [])?;
        yes("list size", n >= 7)?;
        fails(ERANGE, listxattr_into(&d.join("a"), &mut [0; 3]))?;
    }
    a_large_value_works_or_is_refused_whole(d) {
        put(&d.join("a"), b"")?;
        for n in [4000usize, 30_000, 65_536] {
            match setxattr(&d.join("a"), "user.big", &pattern(1, n), 0) {
                Ok(_) => same("value", &getxattr(&d.join("a"), "user.big")?, &pattern(1, n))?,
                Err(e) => yes("ENOSPC, E2BIG or not supported", [libc::ENOSPC, libc::E2BIG, ERANGE, EOPNOTSUPP].contains(&e.errno))?,
            }
        }
        fails_any(&[libc::E2BIG, EOPNOTSUPP], setxattr(&d.join("a"), "user.big", &[0; 65_537], 0))?;
    }
    names_have_255_bytes_at_most(d) {
        put(&d.join("a"), b"")?;
        let long = format!("user.{}", "n".repeat(250));
        supported(setxattr(&d.join("a"), &long, b"v", 0))?;
        same("value", &getxattr(&d.join("a"), &long)?, b"v")?;
        fails_any(&[ERANGE], setxattr(&d.join("a"), &format!("{long}n"), b"v", 0))?;
        fails_any(&[ERANGE, EINVAL], setxattr(&d.join("a"), "", b"v", 0))?;
    }
    an_unknown_namespace_is_refused(d) {
        put(&d.join("a"), b"")?;
        fails(EOPNOTSUPP, setxattr(&d.join("a"), "nowhere.x", b"v", 0))?;
        fails_any(&[EOPNOTSUPP, EINVAL], setxattr(&d.join("a"), "user", b"v", 0))?;
    }
    user_attributes_are_for_files_and_directories_only(d) {
        mknod(&d.join("p"), S_IFIFO | 0o600, 0)?;
        fails(EPERM, setxattr(&d.join("p"), "user.x", b"v", 0))?;
        symlink("p".as_ref(), &d.join("l"))?;
        fails(EPERM, lsetxattr(&d.join("l"), "user.x", b"v", 0))?;
    }
    user_attributes_need_file_permissions(d) {
        put(&d.join("a"), b"")?;
        supported(setxattr(&d.join("a"), "user.x", b"v", 0))?;
        chmod(d, 0o755)?;
        as_user(d, 1001, 1001, &[], |d| {
            same("value", &getxattr(&d.join("a"), "user.x")?, b"v")?;
            fails(EACCES, setxattr(&d.join("a"), "user.x", b"w", 0))?;
            fails(EACCES, removexattr(&d.join("a"), "user.x"))
        })?;
        chmod(&d.join("a"), 0o600)?;
        as_user(d, 1001, 1001, &[], |d| fails(EACCES, getxattr(&d.join("a"), "user.x")))?;
    }
    trusted_attributes_are_for_root(d) {
        if !is_root() { return Err(format!("{SKIP}needs root")); }
        put(&d.join("a"), b"")?;
        chmod(&d.join("a"), 0o666)?;
        supported(setxattr(&d.join("a"), "trusted.x", b"v", 0))?;
        same("value", &getxattr(&d.join("a"), "trusted.x")?, b"v")?;
        chmod(d, 0o755)?;
        as_user(d, 1001, 1001, &[], |d| {
            fails(EPERM, setxattr(&d.join("a"), "trusted.x", b"w", 0))?;
            fails(ENODATA, getxattr(&d.join("a"), "trusted.x"))?;
            yes("not listed", !listxattr(&d.join("a"))?.contains(&"trusted.x".to_string()))
        })?;
    }
    security_attributes_are_kept(d) {
        if !is_root() { return Err(format!("{SKIP}needs root")); }
        put(&d.join("a"), b"")?;
        supported(setxattr(&d.join("a"), "security.test", b"v", 0))?;
        same("value", &getxattr(&d.join("a"), "security.test")?, b"v")?;
        removexattr(&d.join("a"), "security.test")?;
    }
    file_capabilities_go_with_a_write(d) {
        if !is_root() { return Err(format!("{SKIP}needs root")); }
        put(&d.join("a"), b"x")?;
        // Version 2, effective: cap_net_raw.
        let cap = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        supported(setxattr(&d.join("a"), "security.capability", &cap, 0))?;
        same("value", &getxattr(&d.join("a"), "security.capability")?, &cap)?;
        let fd = open(&d.join("a"), O_WRONLY, 0)?;
        write_all(&fd, b"y")?;
        fails(ENODATA, getxattr(&d.join("a"), "security.capability"))?;
    }
    attributes_follow_a_rename_and_are_shared_by_links(d) {
        put(&d.join("a"), b"")?;
        supported(setxattr(&d.join("a"), "user.x", b"v", 0))?;
        link(&d.join("a"), &d.join("b"))?;
        rename(&d.join("a"), &d.join("c"))?;
        same("value", &getxattr(&d.join("b"), "user.x")?, b"v")?;
        same("value", &getxattr(&d.join("c"), "user.x")?, b"v")?;
        put(&d.join("n"), b"")?;
        rename(&d.join("n"), &d.join("c"))?;
        fails(ENODATA, getxattr(&d.join("c"), "user.x"))?;
    }
    setting_moves_ctime(d) {
        put(&d.join("a"), b"")?;
        utimens(&d.join("a"), &[timespec { tv_sec: 5, tv_nsec: 0 }; 2], 0)?;
        let before = stat(&d.join("a"))?;
        supported(setxattr(&d.join("a"), "user.x", b"v", 0))?;
        let after = stat(&d.join("a"))?;
        yes("ctime", (after.st_ctime, after.st_ctime_nsec) >= (before.st_ctime, before.st_ctime_nsec))?;
        eq("mtime", after.st_mtime, 5)?;
    }
    many_attributes(d) {
        put(&d.join("a"), b"")?;
        for i in 0..50 {
            supported(setxattr(&d.join("a"), &format!("user.n{i:03}"), format!("{i}").as_bytes(), 0))?;
        }
        eq("names", user_names(&d.join("a"))?.len(), 50)?;
        same("value", &getxattr(&d.join("a"), "user.n037")?, b"37")?;
    }
    of_nothing_is_enoent(d) {
        fails(ENOENT, setxattr(&d.join("no"), "user.x", b"v", 0))?;
        fails(ENOENT, getxattr(&d.join("no"), "user.x"))?;
        fails(ENOENT, listxattr(&d.join("no")))?;
    }
    through_an_unlinked_descriptor(d) {
        let fd = rw(&d.join("a"))?;
        unlink(&d.join("a"))?;
        supported(fsetxattr(&fd, "user.x", b"v", 0))?;
    }
}

/// Leaves a failure as it is, unless it says that attributes are not supported at all.
fn supported_flag(r: Result<i64, Failed>) -> Result<Result<i64, Failed>, String> {
    match r {
        Err(e) if e.errno == EOPNOTSUPP => Err(format!("{SKIP}no extended attributes")),
        r => Ok(r),
    }
}
