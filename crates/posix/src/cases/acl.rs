//! POSIX access control lists, through their extended attributes.
use crate::check::{eq, fails, fails_any, same, supported};
use crate::run::as_user;
use crate::sys::*;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const ANY: u32 = u32::MAX;

/// Version 2 of the attribute: tag, permissions and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut v = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        v.extend(tag.to_le_bytes());
        v.extend(perm.to_le_bytes());
        v.extend(id.to_le_bytes());
    }
    v
}

fn mode(p: &std::path::Path) -> Result<u32, String> {
    Ok(lstat(p)?.st_mode & 0o7777)
}

fn one_user(perm: u16, mask: u16) -> Vec<u8> {
    acl(&[(USER_OBJ, 6, ANY), (USER, perm, 1001), (GROUP_OBJ, 4, ANY), (MASK, mask, ANY), (OTHER, 0, ANY)])
}

suite! { "acl";
    what_is_set_is_read(d) {
        put(&d.join("a"), b"")?;
        supported(setxattr(&d.join("a"), ACCESS, &one_user(6, 7), 0))?;
        same("list", &getxattr(&d.join("a"), ACCESS)?, &one_user(6, 7))?;
        eq("the mode shows the mask", mode(&d.join("a"))?, 0o670)?;
    }
    a_minimal_list_is_just_the_mode(d) {
        put(&d.join("a"), b"")?;
        supported(setxattr(&d.join("a"), ACCESS, &acl(&[(USER_OBJ, 7, ANY), (GROUP_OBJ, 5, ANY), (OTHER, 1, ANY)]), 0))?;
        eq("mode", mode(&d.join("a"))?, 0o751)?;
        fails(ENODATA, getxattr(&d.join("a"), ACCESS))?;
    }
    a_named_user_gets_what_the_mask_allows(d) {
        put(&d.join("a"), b"x")?;
        chmod(d, 0o755)?;
        supported(setxattr(&d.join("a"), ACCESS, &one_user(6, 7), 0))?;
        as_user(d, 1001, 1001, &[], |d| { open(&d.join("a"), O_RDWR, 0)?; Ok(()) })?;
        as_user(d, 1002, 1002, &[], |d| fails(EACCES, open(&d.join("a"), O_RDONLY, 0)))?;
        setxattr(&d.join("a"), ACCESS, &one_user(6, 4), 0)?;
        as_user(d, 1001, 1001, &[], |d| { open(&d.join("a"), O_RDONLY, 0)?; fails(EACCES, open(&d.join("a"), O_RDWR, 0)) })?;
    }
    a_named_group_gets_what_the_mask_allows(d) {
        put(&d.join("a"), b"x")?;
        chmod(d, 0o755)?;
        let list = acl(&[(USER_OBJ, 6, ANY), (GROUP_OBJ, 0, ANY), (GROUP, 6, 2002), (MASK, 6, ANY), (OTHER, 0, ANY)]);
        supported(setxattr(&d.join("a"), ACCESS, &list, 0))?;
        as_user(d, 1001, 2002, &[], |d| { open(&d.join("a"), O_RDWR, 0)?; Ok(()) })?;
        as_user(d, 1001, 1001, &[2002], |d| { open(&d.join("a"), O_RDWR, 0)?; Ok(()) })?;
        as_user(d, 1001, 1001, &[], |d| fails(EACCES, open(&d.join("a"), O_RDONLY, 0)))?;
    }
    where_the_mask_gives_nothing_others_have_what_others_get(d) {
        mkdir(&d.join("p"), 0o755)?;
        chmod(d, 0o755)?;
        let list = acl(&[
            (USER_OBJ, 7, ANY), (USER, 6, 1001), (GROUP_OBJ, 7, ANY), (GROUP, 6, 2002), (MASK, 0, ANY), (OTHER, 5, ANY),
        ]);
        supported(setxattr(&d.join("p"), ACCESS, &list, 0))?;
        for (uid, gid, groups) in [(1001, 1001, &[][..]), (1002, 1002, &[2002]), (1003, 1003, &[])] {
            as_user(d, uid, gid, groups, |d| { open(&d.join("p"), O_RDONLY, 0)?; fails(ENOENT, stat(&d.join("p/a"))) })?;
            as_user(d, uid, gid, groups, |d| fails(EACCES, mkdir(&d.join("p/a"), 0o755)))?;
        }
        // The directory's own group is a group still.
        let group = stat(&d.join("p"))?.st_gid;
        as_user(d, 1001, group, &[], |d| fails(EACCES, open(&d.join("p"), O_RDONLY, 0)))?;
    }
    chmod_changes_the_mask(d) {
        put(&d.join("a"), b"")?;
        supported(setxattr(&d.join("a"), ACCESS, &one_user(6, 7), 0))?;
        chmod(&d.join("a"), 0o640)?;
        same("list", &getxattr(&d.join("a"), ACCESS)?, &one_user(6, 4))?;
        eq("mode", mode(&d.join("a"))?, 0o640)?;
    }
    a_default_list_is_inherited(d) {
        mkdir(&d.join("p"), 0o755)?;
        let list = acl(&[(USER_OBJ, 7, ANY), (USER, 7, 1001), (GROUP_OBJ, 5, ANY), (MASK, 7, ANY), (OTHER, 0, ANY)]);
        supported(setxattr(&d.join("p"), DEFAULT, &list, 0))?;
        umask(0o077);
        open(&d.join("p/a"), O_CREAT | O_WRONLY, 0o666)?;
        mkdir(&d.join("p/q"), 0o777)?;
        eq("mode of a file: the list rules, not the umask", mode(&d.join("p/a"))?, 0o660)?;
        let file = acl(&[(USER_OBJ, 6, ANY), (USER, 7, 1001), (GROUP_OBJ, 5, ANY), (MASK, 6, ANY), (OTHER, 0, ANY)]);
        same("list of the file", &getxattr(&d.join("p/a"), ACCESS)?, &file)?;
        same("default of the directory", &getxattr(&d.join("p/q"), DEFAULT)?, &list)?;
        same("list of the directory", &getxattr(&d.join("p/q"), ACCESS)?, &list)?;
        fails(ENODATA, getxattr(&d.join("p/a"), DEFAULT))?;
    }
    a_default_list_does_not_rule_its_directory(d) {
        mkdir(&d.join("p"), 0o700)?;
        supported(setxattr(&d.join("p"), DEFAULT, &one_user(7, 7), 0))?;
        eq("mode", mode(&d.join("p"))?, 0o700)?;
        fails(ENODATA, getxattr(&d.join("p"), ACCESS))?;
        removexattr(&d.join("p"), DEFAULT)?;
        fails(ENODATA, getxattr(&d.join("p"), DEFAULT))?;
    }
    a_default_list_is_for_directories_only(d) {
        put(&d.join("a"), b"")?;
        fails_any(&[EACCES, EPERM, EINVAL, EOPNOTSUPP], setxattr(&d.join("a"), DEFAULT, &one_user(7, 7), 0))?;
    }
    malformed_lists_are_refused(d) {
        put(&d.join("a"), b"")?;
        supported(setxattr(&d.join("a"), ACCESS, &one_user(6, 6), 0))?;
        for bad in [vec![], vec![2, 0], acl(&[(USER_OBJ, 6, ANY)]), acl(&[(USER_OBJ, 6, ANY), (USER, 6, 5), (GROUP_OBJ, 4, ANY), (OTHER, 0, ANY)]),
            acl(&[(USER_OBJ, 99, ANY), (GROUP_OBJ, 4, ANY), (OTHER, 0, ANY)]), acl(&[(77, 6, ANY), (GROUP_OBJ, 4, ANY), (OTHER, 0, ANY)])] {
            if !bad.is_empty() {
                fails_any(&[EINVAL, EOPNOTSUPP], setxattr(&d.join("a"), ACCESS, &bad, 0))?;
            }
        }
        same("unchanged", &getxattr(&d.join("a"), ACCESS)?, &one_user(6, 6))?;
    }
    only_the_owner_may_set_it(d) {
        put(&d.join("a"), b"")?;
        chmod(&d.join("a"), 0o666)?;
        chmod(d, 0o755)?;
        as_user(d, 1001, 1001, &[], |d| fails_any(&[EPERM, EOPNOTSUPP], setxattr(&d.join("a"), ACCESS, &one_user(7, 7), 0)))?;
    }
    removing_leaves_the_mode(d) {
        put(&d.join("a"), b"")?;
        supported(setxattr(&d.join("a"), ACCESS, &one_user(6, 7), 0))?;
        removexattr(&d.join("a"), ACCESS)?;
        fails(ENODATA, getxattr(&d.join("a"), ACCESS))?;
        as_user(d, 1001, 1001, &[], |d| fails(EACCES, open(&d.join("a"), O_RDONLY, 0)))?;
    }
}
