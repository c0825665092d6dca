//! Names and paths: length, bytes, special components.
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::check::{eq, fails, same, yes};
use crate::sys::*;

/// A path below the directory whose whole length is `n` bytes, made of existing directories and a last name.
fn path_of(d: &Path, n: usize) -> Result<PathBuf, String> {
    let mut p = d.as_os_str().as_bytes().to_vec();
    while n.saturating_sub(p.len()) > 202 {
        p.push(b'/');
        p.extend(std::iter::repeat_n(b'd', 100));
        let dir = PathBuf::from(OsStr::from_bytes(&p));
        match mkdir(&dir, 0o755) {
            Err(e) if e.errno != EEXIST => return Err(e.into()),
            _ => {}
        }
    }
    p.push(b'/');
    let left = n - p.len();
    p.extend(std::iter::repeat_n(b'f', left));
    Ok(PathBuf::from(OsStr::from_bytes(&p)))
}

/// Every call that takes a name refuses one of so many bytes.
fn too_long(d: &Path, bytes: usize) -> Result<(), String> {
    let long = d.join("n".repeat(bytes));
    put(&d.join("a"), b"")?;
    fails(ENAMETOOLONG, open(&long, O_RDWR | O_CREAT, 0o644))?;
    fails(ENAMETOOLONG, stat(&long))?;
    fails(ENAMETOOLONG, mkdir(&long, 0o755))?;
    fails(ENAMETOOLONG, rmdir(&long))?;
    fails(ENAMETOOLONG, unlink(&long))?;
    fails(ENAMETOOLONG, rename(&d.join("a"), &long))?;
    fails(ENAMETOOLONG, rename(&long, &d.join("b")))?;
    fails(ENAMETOOLONG, link(&d.join("a"), &long))?;
    fails(ENAMETOOLONG, symlink(Path::new("x"), &long))?;
    fails(ENAMETOOLONG, mknod(&long, S_IFIFO | 0o600, 0))?;
    fails(ENAMETOOLONG, chmod(&long, 0o600))?;
    fails(ENAMETOOLONG, truncate(&long, 0))?;
    fails(ENAMETOOLONG, stat(&long.join("x")))
}

suite! { "name";
    of_255_bytes_works_everywhere(d) {
        let long = d.join("n".repeat(255));
        let other = d.join("m".repeat(255));
        put(&long, b"x")?;
        same("content", &get(&long)?, b"x")?;
        rename(&long, &other)?;
        link(&other, &long)?;
        unlink(&other)?;
        symlink(Path::new("t"), &other)?;
        unlink(&other)?;
        mkdir(&other, 0o755)?;
        let names: Vec<_> = std::fs::read_dir(d).map_err(|e| e.to_string())?.flatten().map(|e| e.file_name().len()).collect();
        eq("lengths", names, vec![255, 255])?;
    }
    of_256_bytes_is_enametoolong_everywhere(d) {
        too_long(d, 256)?;
    }
    of_more_than_1024_bytes_is_enametoolong_everywhere(d) {
        for bytes in [1023, 1024, 1025, 1500, 3000] {
            too_long(d, bytes)?;
        }
    }
    bytes_that_are_no_text_are_kept(d) {
        for bytes in [&b"\xff\xfe"[..], b"\x01\x02", b"a\nb", b" ", b"-", b"\x80", "ünï".as_bytes(), b"...", b"a\\b", b"*"] {
            let p = d.join(OsStr::from_bytes(bytes));
            put(&p, bytes)?;
            same("content", &get(&p)?, bytes)?;
            let found = std::fs::read_dir(d).map_err(|e| e.to_string())?.flatten().any(|e| e.file_name().as_bytes() == bytes);
            yes("listed", found)?;
        }
    }
    case_and_normal_forms_are_different_names(d) {
        for n in ["a", "A", "\u{e4}", "a\u{308}", "\u{c4}"] {
            open(&d.join(n), O_CREAT | O_EXCL | O_WRONLY, 0o644)?;
        }
        eq("entries", std::fs::read_dir(d).map_err(|e| e.to_string())?.count(), 5)?;
    }
    a_path_of_4095_bytes_works(d) {
        let p = path_of(d, 4095)?;
        put(&p, b"x")?;
        same("content", &get(&p)?, b"x")?;
        unlink(&p)?;
    }
    a_path_of_4096_bytes_is_enametoolong(d) {
        let p = path_of(d, 4096)?;
        fails(ENAMETOOLONG, open(&p, O_RDWR | O_CREAT, 0o644))?;
        fails(ENAMETOOLONG, stat(&p))?;
    }
    an_empty_path_is_enoent(d) {
        let _ = d;
        fails(ENOENT, open(Path::new(""), O_RDONLY, 0))?;
        fails(ENOENT, stat(Path::new("")))?;
        fails(ENOENT, mkdir(Path::new(""), 0o755))?;
    }
    slashes_in_a_row_are_one(d) {
        mkdir(&d.join("p"), 0o755)?;
        put(&d.join("p/a"), b"x")?;
        let mut p = d.as_os_str().to_owned();
        p.push("///p////a");
        same("content", &get(Path::new(&p))?, b"x")?;
    }
    dot_and_dotdot_lead_where_they_should(d) {
        mkdir(&d.join("p"), 0o755)?;
        mkdir(&d.join("p/q"), 0o755)?;
        put(&d.join("a"), b"x")?;
        same("content", &get(&d.join("p/./q/../../a"))?, b"x")?;
        eq("inode", stat(&d.join("p/q/../.."))?.st_ino, stat(d)?.st_ino)?;
        fails(ENOENT, stat(&d.join("p/no/..")))?;
        fails(ENOTDIR, stat(&d.join("a/..")))?;
    }
    getcwd_follows_a_rename(d) {
        mkdir(&d.join("p"), 0o755)?;
        crate::run::in_child(|| {
            std::env::set_current_dir(d.join("p")).map_err(|e| e.to_string())?;
            rename(&d.join("p"), &d.join("renamed"))?;
            let cwd = std::env::current_dir().map_err(|e| e.to_string())?;
            eq("last component", cwd.file_name().map(|n| n.to_string_lossy().into_owned()), Some("renamed".into()))
        })?;
    }
    lookups_of_absent_names_see_them_appear(d) {
        for i in 0..50 {
            let p = d.join(format!("n{i}"));
            fails(ENOENT, stat(&p))?;
            put(&p, b"")?;
            stat(&p)?;
            unlink(&p)?;
            fails(ENOENT, stat(&p))?;
        }
    }
    lookups_of_absent_names_see_them_appear_by_another_process(d) {
        for i in 0..10 {
            let p = d.join(format!("n{i}"));
            fails(ENOENT, stat(&p))?;
            crate::run::in_child(|| Ok(put(&p, b"")?))?;
            stat(&p)?;
        }
    }
}
