//! rename(2) and renameat2(2).
use std::path::Path;

use crate::check::{eq, fails, fails_any, same, supported, yes};
use crate::sys::*;

fn ctime(path: &Path) -> Result<(i64, i64), String> {
    let st = stat(path)?;
    Ok((st.st_ctime, st.st_ctime_nsec))
}

/// Changes `clock`, a file, until its ctime is later than `than`, as coarse as the times of the file system may be. That ctime.
fn a_later_ctime(clock: &Path, than: (i64, i64)) -> Result<(i64, i64), String> {
    loop {
        chmod(clock, 0o600)?;
        let now = ctime(clock)?;
        if now > than {
            return Ok(now);
        }
    }
}

suite! { "rename";
    moves_a_file(d) {
        put(&d.join("a"), b"x")?;
        rename(&d.join("a"), &d.join("b"))?;
        fails(ENOENT, lstat(&d.join("a")))?;
        same("content", &get(&d.join("b"))?, b"x")?;
    }
    moves_a_file_to_another_directory(d) {
        mkdir(&d.join("p"), 0o755)?;
        mkdir(&d.join("q"), 0o755)?;
        put(&d.join("p/a"), b"x")?;
        rename(&d.join("p/a"), &d.join("q/b"))?;
        fails(ENOENT, lstat(&d.join("p/a")))?;
        same("content", &get(&d.join("q/b"))?, b"x")?;
    }
    replaces_a_file(d) {
        put(&d.join("a"), b"new")?;
        put(&d.join("b"), b"old")?;
        rename(&d.join("a"), &d.join("b"))?;
        same("content", &get(&d.join("b"))?, b"new")?;
        eq("entries", std::fs::read_dir(d).map_err(|e| e.to_string())?.count(), 1)?;
    }
    a_replaced_open_file_keeps_its_data(d) {
        put(&d.join("a"), b"new")?;
        put(&d.join("b"), b"old")?;
        let old = open(&d.join("b"), O_RDWR, 0)?;
        rename(&d.join("a"), &d.join("b"))?;
        same("old", &pread(&old, 10, 0)?, b"old")?;
        eq("links", fstat(&old)?.st_nlink, 0)?;
        same("new", &get(&d.join("b"))?, b"new")?;
    }
    an_open_file_stays_open_over_rename(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, b"1")?;
        rename(&d.join("a"), &d.join("b"))?;
        write_all(&fd, b"2")?;
        same("content", &get(&d.join("b"))?, b"12")?;
    }
    the_target_never_vanishes_for_an_observer(d) {
        put(&d.join("t"), b"0000")?;
        let dir = d.to_path_buf();
        let child = crate::run::spawn(move || {
            for i in 0..100u32 {
                put(&dir.join("n"), format!("{i:04}").as_bytes())?;
                rename(&dir.join("n"), &dir.join("t"))?;
            }
            Ok(())
        })?;
        for _ in 0..200 {
            eq("length of what is seen", get(&d.join("t"))?.len(), 4)?;
        }
        child.join()?;
    }
    to_itself_does_nothing(d) {
        put(&d.join("a"), b"x")?;
        rename(&d.join("a"), &d.join("a"))?;
        same("content", &get(&d.join("a"))?, b"x")?;
    }
    to_another_link_of_the_same_file_does_nothing(d) {
        put(&d.join("a"), b"x")?;
        link(&d.join("a"), &d.join("b"))?;
        rename(&d.join("a"), &d.join("b"))?;
        eq("links", stat(&d.join("a"))?.st_nlink, 2)?;
        stat(&d.join("b"))?;
    }
    of_nothing_is_enoent(d) {
        fails(ENOENT, rename(&d.join("a"), &d.join("b")))?;
        put(&d.join("a"), b"")?;
        fails(ENOENT, rename(&d.join("a"), &d.join("no/b")))?;
    }
    through_a_file_is_enotdir(d) {
        put(&d.join("a"), b"")?;
        put(&d.join("b"), b"")?;
        fails(ENOTDIR, rename(&d.join("a"), &d.join("b/c")))?;
        fails(ENOTDIR, rename(&d.join("a/x"), &d.join("c")))?;
    }
    moves_a_directory_with_its_content(d) {
        mkdir(&d.join("p"), 0o755)?;
        put(&d.join("p/a"), b"x")?;
        mkdir(&d.join("q"), 0o755)?;
        rename(&d.join("p"), &d.join("q/r"))?;
        same("content", &get(&d.join("q/r/a"))?, b"x")?;
        eq("links of the old parent", stat(d)?.st_nlink >= 1, true)?;
    }
    a_moved_directory_has_a_new_parent(d) {
        mkdir(&d.join("p"), 0o755)?;
        mkdir(&d.join("q"), 0o755)?;
        rename(&d.join("p"), &d.join("q/p"))?;
        eq("inode of ..", stat(&d.join("q/p/.."))?.st_ino, stat(&d.join("q"))?.st_ino)?;
    }
    link_counts_of_directories_follow(d) {
        mkdir(&d.join("p"), 0o755)?;
        mkdir(&d.join("q"), 0o755)?;
        mkdir(&d.join("p/s"), 0o755)?;
        let (p, q) = (stat(&d.join("p"))?.st_nlink, stat(&d.join("q"))?.st_nlink);
        rename(&d.join("p/s"), &d.join("q/s"))?;
        let (p2, q2) = (stat(&d.join("p"))?.st_nlink, stat(&d.join("q"))?.st_nlink);
        // A file system may keep directory link counts at 1.
        yes("the counts moved along", (p == 1 && p2 == 1) || (p2 + 1 == p && q + 1 == q2))?;
    }
    a_directory_replaces_an_empty_directory(d) {
        mkdir(&d.join("p"), 0o755)?;
        put(&d.join("p/a"), b"x")?;
        mkdir(&d.join("q"), 0o755)?;
        rename(&d.join("p"), &d.join("q"))?;
        same("content", &get(&d.join("q/a"))?, b"x")?;
        fails(ENOENT, lstat(&d.join("p")))?;
    }
    a_directory_does_not_replace_a_full_one(d) {
        mkdir(&d.join("p"), 0o755)?;
        mkdir(&d.join("q"), 0o755)?;
        put(&d.join("q/a"), b"x")?;
        fails_any(&[ENOTEMPTY, EEXIST], rename(&d.join("p"), &d.join("q")))?;
        stat(&d.join("p"))?;
        stat(&d.join("q/a"))?;
    }
    a_directory_does_not_replace_a_file(d) {
        mkdir(&d.join("p"), 0o755)?;
        put(&d.join("a"), b"x")?;
        fails(ENOTDIR, rename(&d.join("p"), &d.join("a")))?;
    }
    a_file_does_not_replace_a_directory(d) {
        mkdir(&d.join("p"), 0o755)?;
        put(&d.join("a"), b"x")?;
        fails(EISDIR, rename(&d.join("a"), &d.join("p")))?;
    }
    a_directory_does_not_move_below_itself(d) {
        mkdir(&d.join("p"), 0o755)?;
        mkdir(&d.join("p/q"), 0o755)?;
        mkdir(&d.join("p/q/r"), 0o755)?;
        fails(EINVAL, rename(&d.join("p"), &d.join("p/x")))?;
        fails(EINVAL, rename(&d.join("p"), &d.join("p/q/r/x")))?;
        fails(EINVAL, rename(&d.join("p"), &d.join("p/q/r")))?;
        stat(&d.join("p/q/r"))?;
    }
    a_directory_does_not_replace_its_ancestor(d) {
        mkdir(&d.join("p"), 0o755)?;
        mkdir(&d.join("p/q"), 0o755)?;
        fails_any(&[ENOTEMPTY, EEXIST], rename(&d.join("p/q"), &d.join("p")))?;
    }
    dot_and_dotdot_are_refused(d) {
        mkdir(&d.join("p"), 0o755)?;
        fails_any(&[EBUSY, EINVAL], rename(&d.join("p/."), &d.join("q")))?;
        fails_any(&[EBUSY, EINVAL, ENOTEMPTY], rename(&d.join("p/.."), &d.join("q")))?;
    }
    a_link_is_moved_not_followed(d) {
        put(&d.join("a"), b"x")?;
        symlink("a".as_ref(), &d.join("l"))?;
        rename(&d.join("l"), &d.join("m"))?;
        eq("target", readlink(&d.join("m"))?, std::path::PathBuf::from("a"))?;
        stat(&d.join("a"))?;
    }
    a_link_as_target_is_replaced_not_followed(d) {
        put(&d.join("a"), b"a")?;
        put(&d.join("b"), b"b")?;
        symlink("b".as_ref(), &d.join("l"))?;
        rename(&d.join("a"), &d.join("l"))?;
        eq("type", lstat(&d.join("l"))?.st_mode & S_IFMT, S_IFREG)?;
        same("b", &get(&d.join("b"))?, b"b")?;
    }
    special_files_move(d) {
        mknod(&d.join("p"), S_IFIFO | 0o600, 0)?;
        rename(&d.join("p"), &d.join("q"))?;
        eq("type", lstat(&d.join("q"))?.st_mode & S_IFMT, S_IFIFO)?;
    }
    keeps_the_inode_and_mtime_and_changes_ctime(d) {
        put(&d.join("a"), b"x")?;
        let past = [timespec { tv_sec: 1000, tv_nsec: 7 }; 2];
        utimens(&d.join("a"), &past, 0)?;
        let before = stat(&d.join("a"))?;
        rename(&d.join("a"), &d.join("b"))?;
        let after = stat(&d.join("b"))?;
        eq("inode", after.st_ino, before.st_ino)?;
        eq("mtime", (after.st_mtime, after.st_mtime_nsec), (1000, 7))?;
        yes("ctime", (after.st_ctime, after.st_ctime_nsec) >= (before.st_ctime, before.st_ctime_nsec))?;
    }
    every_one_of_several_renames_changes_ctime(d) {
        put(&d.join("a"), b"x")?;
        mkdir(&d.join("p"), 0o755)?;
        put(&d.join("clock"), b"")?;
        for (first, second, third) in [("a", "b", "c"), ("p", "q", "r")] {
            rename(&d.join(first), &d.join(second))?;
            let since = a_later_ctime(&d.join("clock"), ctime(&d.join(second))?)?;
            rename(&d.join(second), &d.join(third))?;
            yes(third, ctime(&d.join(third))? >= since)?;
        }
    }
    an_exchange_of_what_was_renamed_before_changes_both_ctimes(d) {
        put(&d.join("clock"), b"")?;
        for name in ["a", "b"] {
            put(&d.join("x"), b"x")?;
            rename(&d.join("x"), &d.join(name))?;
        }
        let before = ctime(&d.join("a"))?.max(ctime(&d.join("b"))?);
        let since = a_later_ctime(&d.join("clock"), before)?;
        supported(rename2(&d.join("a"), &d.join("b"), RENAME_EXCHANGE))?;
        for name in ["a", "b"] {
            yes(name, ctime(&d.join(name))? >= since)?;
        }
    }
    touches_both_directories(d) {
        mkdir(&d.join("p"), 0o755)?;
        mkdir(&d.join("q"), 0o755)?;
        put(&d.join("p/a"), b"")?;
        let past = [timespec { tv_sec: 1000, tv_nsec: 0 }; 2];
        utimens(&d.join("p"), &past, 0)?;
        utimens(&d.join("q"), &past, 0)?;
        rename(&d.join("p/a"), &d.join("q/a"))?;
        yes("mtime of the source", stat(&d.join("p"))?.st_mtime > 1000)?;
        yes("mtime of the target", stat(&d.join("q"))?.st_mtime > 1000)?;
    }
    noreplace_refuses_an_existing_target(d) {
        put(&d.join("a"), b"a")?;
        put(&d.join("b"), b"b")?;
        fails(EEXIST, rename2(&d.join("a"), &d.join("b"), RENAME_NOREPLACE))?;
        same("b", &get(&d.join("b"))?, b"b")?;
        supported(rename2(&d.join("a"), &d.join("c"), RENAME_NOREPLACE))?;
        same("c", &get(&d.join("c"))?, b"a")?;
    }
    exchange_swaps_two_files(d) {
        put(&d.join("a"), b"a")?;
        put(&d.join("b"), b"b")?;
        supported(rename2(&d.join("a"), &d.join("b"), RENAME_EXCHANGE))?;
        same("a", &get(&d.join("a"))?, b"b")?;
        same("b", &get(&d.join("b"))?, b"a")?;
    }
    exchange_swaps_a_file_and_a_full_directory(d) {
        put(&d.join("a"), b"a")?;
        mkdir(&d.join("p"), 0o755)?;
        mkdir(&d.join("q"), 0o755)?;
        put(&d.join("q/x"), b"x")?;
        rename(&d.join("a"), &d.join("p/a"))?;
        let p = stat(&d.join("p"))?.st_nlink;
        supported(rename2(&d.join("p/a"), &d.join("q"), RENAME_EXCHANGE))?;
        same("file", &get(&d.join("q"))?, b"a")?;
        same("in the directory", &get(&d.join("p/a/x"))?, b"x")?;
        eq("inode of ..", stat(&d.join("p/a/.."))?.st_ino, stat(&d.join("p"))?.st_ino)?;
        let p2 = stat(&d.join("p"))?.st_nlink;
        yes("link count of the parent", (p == 1 && p2 == 1) || p2 == p + 1)?;
    }
    exchange_with_nothing_is_enoent(d) {
        put(&d.join("a"), b"a")?;
        fails(ENOENT, rename2(&d.join("a"), &d.join("b"), RENAME_EXCHANGE))?;
        fails(ENOENT, rename2(&d.join("b"), &d.join("a"), RENAME_EXCHANGE))?;
    }
    exchange_with_an_ancestor_is_refused(d) {
        mkdir(&d.join("p"), 0o755)?;
        mkdir(&d.join("p/q"), 0o755)?;
        fails(EINVAL, rename2(&d.join("p"), &d.join("p/q"), RENAME_EXCHANGE))?;
        fails_any(&[EINVAL, ENOTEMPTY], rename2(&d.join("p/q"), &d.join("p"), RENAME_EXCHANGE))?;
    }
    whiteout_leaves_a_device_without_a_number_in_its_place(d) {
        mkdir(&d.join("p"), 0o755)?;
        put(&d.join("p/a"), b"a")?;
        put(&d.join("b"), b"b")?;
        supported(rename2(&d.join("p/a"), &d.join("b"), RENAME_WHITEOUT))?;
        mkdir(&d.join("q"), 0o755)?;
        rename2(&d.join("q"), &d.join("r"), RENAME_WHITEOUT)?;
        for gone in ["p/a", "q"] {
            let st = lstat(&d.join(gone))?;
            eq("type and number", (st.st_mode & S_IFMT, st.st_rdev, st.st_nlink), (S_IFCHR, 0, 1))?;
        }
        same("b", &get(&d.join("b"))?, b"a")?;
        fails_any(&[ENOTEMPTY, EEXIST], rmdir(&d.join("p")))?;
        fails(EEXIST, rename2(&d.join("b"), &d.join("p/a"), RENAME_WHITEOUT | RENAME_NOREPLACE))?;
        fails(EINVAL, rename2(&d.join("b"), &d.join("p/a"), RENAME_WHITEOUT | RENAME_EXCHANGE))?;
        // It is an inode like others.
        unlink(&d.join("p/a"))?;
        rmdir(&d.join("p"))?;
        rename(&d.join("r"), &d.join("s"))?;
        unlink(&d.join("q"))?;
    }
    exchange_and_noreplace_together_are_refused(d) {
        put(&d.join("a"), b"a")?;
        put(&d.join("b"), b"b")?;
        fails(EINVAL, rename2(&d.join("a"), &d.join("b"), RENAME_EXCHANGE | RENAME_NOREPLACE))?;
    }
    unknown_flags_are_refused(d) {
        put(&d.join("a"), b"a")?;
        fails(EINVAL, rename2(&d.join("a"), &d.join("b"), 1 << 20))?;
    }
    a_slash_after_a_file_is_refused(d) {
        put(&d.join("a"), b"a")?;
        fails(ENOTDIR, rename(&d.join("a/"), &d.join("b")))?;
        fails(ENOTDIR, rename(&d.join("a"), &d.join("b/")))?;
        mkdir(&d.join("p"), 0o755)?;
        rename(&d.join("p/"), &d.join("q/"))?;
        stat(&d.join("q"))?;
    }
    needs_write_permission_in_both_directories(d) {
        mkdir(&d.join("p"), 0o755)?;
        mkdir(&d.join("q"), 0o777)?;
        chmod(&d.join("q"), 0o777)?;
        put(&d.join("p/a"), b"")?;
        put(&d.join("q/b"), b"")?;
        chmod(d, 0o755)?;
        crate::run::as_user(d, 1001, 1001, &[], |d| {
            fails(EACCES, rename(&d.join("p/a"), &d.join("q/a")))?;
            fails(EACCES, rename(&d.join("q/b"), &d.join("p/b")))?;
            rename(&d.join("q/b"), &d.join("q/c"))?;
            Ok(())
        })?;
    }
    of_a_directory_to_a_new_parent_needs_write_permission_on_it(d) {
        chmod(d, 0o777)?;
        mkdir(&d.join("p"), 0o755)?;
        mkdir(&d.join("q"), 0o755)?;
        chown(&d.join("q"), 1001, 1001)?;
        chown(d, 1001, 1001)?;
        crate::run::as_user(d, 1001, 1001, &[], |d| {
            fails(EACCES, rename(&d.join("p"), &d.join("q/p")))?;
            rename(&d.join("p"), &d.join("r"))?;
            Ok(())
        })?;
    }
    the_sticky_bit_protects_the_source_and_the_target(d) {
        chmod(d, 0o1777)?;
        put(&d.join("roots"), b"")?;
        crate::run::as_user(d, 1001, 1001, &[], |d| {
            put(&d.join("mine"), b"")?;
            fails_any(&[EPERM, EACCES], rename(&d.join("roots"), &d.join("x")))?;
            fails_any(&[EPERM, EACCES], rename(&d.join("mine"), &d.join("roots")))?;
            rename(&d.join("mine"), &d.join("mine2"))?;
            Ok(())
        })?;
    }
    opposite_renames_of_directories_do_not_make_a_loop(d) {
        mkdir(&d.join("a"), 0o755)?;
        mkdir(&d.join("b"), 0o755)?;
        for _ in 0..20 {
            let (one, two) = (d.to_path_buf(), d.to_path_buf());
            let x = crate::run::spawn(move || { let _ = rename(&one.join("a"), &one.join("b/a")); Ok(()) })?;
            let y = crate::run::spawn(move || { let _ = rename(&two.join("b"), &two.join("a/b")); Ok(()) })?;
            x.join()?;
            y.join()?;
            let (a, b) = (d.join("a").exists(), d.join("b").exists());
            yes("exactly one moved below the other", a != b)?;
            if a { rename(&d.join("a/b"), &d.join("b"))?; } else { rename(&d.join("b/a"), &d.join("a"))?; }
        }
    }
}
