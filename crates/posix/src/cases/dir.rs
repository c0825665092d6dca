//! mkdir(2), rmdir(2) and reading directories: completeness, cookies, types, change during reading.
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::Path;

use crate::check::{eq, fails, fails_any, yes};
use crate::sys::*;

/// An open directory stream.
struct Stream(*mut libc::DIR);

/// An entry: name, inode, type, and the cookie behind it.
struct Entry {
    name: String,
    ino: u64,
    kind: u8,
    next: i64,
}

impl Stream {
    fn open(p: &Path) -> Result<Stream, String> {
        let path = std::ffi::CString::new(p.to_str().ok_or("a plain path")?).map_err(|e| e.to_string())?;
        // SAFETY: the path lives through the call.
        let dir = unsafe { libc::opendir(path.as_ptr()) };
        if dir.is_null() { Err(format!("opendir: {}", std::io::Error::last_os_error())) } else { Ok(Stream(dir)) }
    }
    fn next(&mut self) -> Option<Entry> {
        // SAFETY: the stream is open; the entry is copied before the next call.
        unsafe {
            let e = libc::readdir(self.0);
            if e.is_null() {
                return None;
            }
            let name = CStr::from_ptr((*e).d_name.as_ptr()).to_string_lossy().into_owned();
            Some(Entry { name, ino: (*e).d_ino, kind: (*e).d_type, next: (*e).d_off })
        }
    }
    fn rewind(&mut self) {
        // SAFETY: the stream is open.
        unsafe { libc::rewinddir(self.0) }
    }
    fn seek(&mut self, to: i64) {
        // SAFETY: the stream is open.
        unsafe { libc::seekdir(self.0, to) }
    }
    fn tell(&mut self) -> i64 {
        // SAFETY: the stream is open.
        unsafe { libc::telldir(self.0) }
    }
    fn rest(&mut self) -> Vec<Entry> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: open until here.
        unsafe { libc::closedir(self.0) };
    }
}

fn list(p: &Path) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = Stream::open(p)?.rest().into_iter().map(|e| e.name).collect();
    names.retain(|n| n != "." && n != "..");
    names.sort();
    Ok(names)
}

fn fill(d: &Path, n: usize) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for i in 0..n {
        let name = format!("f{i:05}");
        open(&d.join(&name), O_WRONLY | O_CREAT | O_EXCL, 0o644)?;
        names.push(name);
    }
    Ok(names)
}

suite! { "dir";
    mkdir_makes_an_empty_directory(d) {
        mkdir(&d.join("p"), 0o755)?;
        let st = stat(&d.join("p"))?;
        eq("type", st.st_mode & S_IFMT, S_IFDIR)?;
        yes("links", st.st_nlink == 2 || st.st_nlink == 1)?;
        eq("entries", list(&d.join("p"))?.len(), 0)?;
    }
    mkdir_counts_in_the_parent(d) {
        let before = stat(d)?.st_nlink;
        for i in 0..10 {
            mkdir(&d.join(format!("p{i}")), 0o755)?;
        }
        let after = stat(d)?.st_nlink;
        yes("ten more, or always one", after == before + 10 || (before == 1 && after == 1))?;
        for i in 0..10 {
            rmdir(&d.join(format!("p{i}")))?;
        }
        eq("links afterwards", stat(d)?.st_nlink, before)?;
    }
    mkdir_onto_anything_is_eexist(d) {
        mkdir(&d.join("p"), 0o755)?;
        put(&d.join("a"), b"")?;
        symlink(Path::new("nowhere"), &d.join("l"))?;
        for name in ["p", "a", "l", ".", "p/.."] {
            fails(EEXIST, mkdir(&d.join(name), 0o755))?;
        }
    }
    mkdir_in_nothing_is_enoent(d) {
        fails(ENOENT, mkdir(&d.join("no/p"), 0o755))?;
        put(&d.join("a"), b"")?;
        fails(ENOTDIR, mkdir(&d.join("a/p"), 0o755))?;
    }
    mkdir_accepts_a_slash_at_the_end(d) {
        mkdir(&d.join("p/"), 0o755)?;
        stat(&d.join("p"))?;
    }
    mkdir_obeys_mode_and_umask(d) {
        umask(0o027);
        mkdir(&d.join("p"), 0o777)?;
        eq("mode", stat(&d.join("p"))?.st_mode & 0o7777, 0o750)?;
        umask(0);
        mkdir(&d.join("q"), 0o1777)?;
        eq("mode", stat(&d.join("q"))?.st_mode & 0o7777, 0o1777)?;
    }
    a_deep_tree_works(d) {
        let mut p = d.to_path_buf();
        for i in 0..100 {
            p.push(format!("d{i}"));
            mkdir(&p, 0o755)?;
        }
        crate::sys::put(&p.join("a"), b"deep")?;
        crate::check::same("content", &get(&p.join("a"))?, b"deep")?;
    }
    rmdir_removes_an_empty_directory(d) {
        mkdir(&d.join("p"), 0o755)?;
        rmdir(&d.join("p"))?;
        fails(ENOENT, stat(&d.join("p")))?;
        fails(ENOENT, rmdir(&d.join("p")))?;
    }
    rmdir_of_a_full_directory_is_refused(d) {
        mkdir(&d.join("p"), 0o755)?;
        put(&d.join("p/a"), b"")?;
        fails_any(&[ENOTEMPTY, EEXIST], rmdir(&d.join("p")))?;
        unlink(&d.join("p/a"))?;
        rmdir(&d.join("p"))?;
    }
    rmdir_of_other_things_is_enotdir(d) {
        put(&d.join("a"), b"")?;
        mkdir(&d.join("p"), 0o755)?;
        symlink(Path::new("p"), &d.join("l"))?;
        fails(ENOTDIR, rmdir(&d.join("a")))?;
        fails(ENOTDIR, rmdir(&d.join("l")))?;
        fails(ENOTDIR, unlinkat(&d.join("a"), libc::AT_REMOVEDIR))?;
    }
    rmdir_of_dot_is_einval_and_of_dotdot_enotempty(d) {
        mkdir(&d.join("p"), 0o755)?;
        fails(EINVAL, rmdir(&d.join("p/.")))?;
        fails_any(&[ENOTEMPTY, EEXIST, EINVAL, EBUSY], rmdir(&d.join("p/..")))?;
    }
    a_removed_directory_that_is_open_is_empty_and_dead(d) {
        mkdir(&d.join("p"), 0o755)?;
        let fd = open(&d.join("p"), O_RDONLY | O_DIRECTORY, 0)?;
        rmdir(&d.join("p"))?;
        fails(ENOENT, openat(&fd, "x".as_ref(), O_CREAT | O_RDWR, 0o644))?;
        yes("no links", fstat(&fd)?.st_nlink <= 1)?;
    }
    a_removed_working_directory_is_dead(d) {
        mkdir(&d.join("p"), 0o755)?;
        crate::run::in_child(|| {
            std::env::set_current_dir(d.join("p")).map_err(|e| e.to_string())?;
            rmdir(&d.join("p"))?;
            fails(ENOENT, open("x".as_ref(), O_CREAT | O_RDWR, 0o644))?;
            fails(ENOENT, mkdir("y".as_ref(), 0o755))?;
            yes("getcwd fails", std::env::current_dir().is_err())
        })?;
    }
    readdir_gives_every_entry_once(d) {
        let names = fill(d, 300)?;
        eq("names", list(d)?, names)?;
    }
    readdir_has_dot_and_dotdot(d) {
        mkdir(&d.join("p"), 0o755)?;
        let all = Stream::open(&d.join("p"))?.rest();
        let find = |n: &str| all.iter().find(|e| e.name == n).map(|e| e.ino);
        eq("inode of .", find("."), Some(stat(&d.join("p"))?.st_ino))?;
        eq("inode of ..", find(".."), Some(stat(d)?.st_ino))?;
        eq("entries", all.len(), 2)?;
    }
    readdir_tells_types_and_inodes(d) {
        put(&d.join("file"), b"")?;
        mkdir(&d.join("dir"), 0o755)?;
        symlink(Path::new("file"), &d.join("link"))?;
        mknod(&d.join("fifo"), S_IFIFO | 0o600, 0)?;
        mknod(&d.join("sock"), S_IFSOCK | 0o600, 0)?;
        let kinds: BTreeMap<&str, u8> =
            [("file", DT_REG), ("dir", DT_DIR), ("link", DT_LNK), ("fifo", DT_FIFO), ("sock", DT_SOCK)].into();
        for e in Stream::open(d)?.rest() {
            if let Some(kind) = kinds.get(e.name.as_str()) {
                yes(&format!("type of {} (unknown is allowed)", e.name), e.kind == *kind || e.kind == DT_UNKNOWN)?;
                eq("inode", e.ino, lstat(&d.join(&e.name))?.st_ino)?;
            }
        }
    }
    readdir_of_ten_thousand_entries(d) {
        let names = fill(d, 10_000)?;
        eq("names", list(d)? == names, true)?;
        let mut s = Stream::open(d)?;
        let first = s.rest().len();
        s.rewind();
        eq("again", (first, s.rest().len()), (10_002, 10_002))?;
    }
    readdir_while_removing_what_was_seen_sees_all(d) {
        let names = fill(d, 2000)?;
        let mut s = Stream::open(d)?;
        let mut seen = Vec::new();
        while let Some(e) = s.next() {
            if e.name != "." && e.name != ".." {
                unlink(&d.join(&e.name))?;
                seen.push(e.name);
            }
        }
        seen.sort();
        eq("all were seen", seen == names, true)?;
        eq("none is left", list(d)?.len(), 0)?;
    }
    readdir_while_others_come_and_go_keeps_the_steady_ones(d) {
        let names = fill(d, 1000)?;
        for i in 0..500 {
            put(&d.join(format!("x{i}")), b"")?;
        }
        let mut s = Stream::open(d)?;
        let (mut seen, mut i) = (Vec::new(), 0);
        while let Some(e) = s.next() {
            if e.name.starts_with('f') {
                seen.push(e.name);
            }
            if i < 500 {
                unlink(&d.join(format!("x{i}")))?;
                put(&d.join(format!("y{i}")), b"")?;
                i += 1;
            }
        }
        let n = seen.len();
        seen.sort();
        seen.dedup();
        eq("none twice", seen.len(), n)?;
        eq("all steady ones", seen == names, true)?;
    }
    rewind_shows_new_entries(d) {
        fill(d, 10)?;
        let mut s = Stream::open(d)?;
        eq("entries", s.rest().len(), 12)?;
        put(&d.join("new"), b"")?;
        s.rewind();
        eq("entries", s.rest().len(), 13)?;
    }
    a_new_stream_shows_new_entries_at_once(d) {
        for i in 1..100 {
            put(&d.join(format!("n{i}")), b"")?;
            eq("entries", list(d)?.len(), i)?;
        }
        for i in 1..100 {
            unlink(&d.join(format!("n{i}")))?;
            eq("entries", list(d)?.len(), 99 - i)?;
        }
    }
    seekdir_returns_to_where_telldir_was(d) {
        fill(d, 1500)?;
        let mut s = Stream::open(d)?;
        let mut spots = Vec::new();
        let mut order = Vec::new();
        loop {
            let at = s.tell();
            let Some(e) = s.next() else { break };
            spots.push(at);
            order.push(e.name);
        }
        for i in [1200usize, 3, 700, 1, 1499, 0, 999] {
            s.seek(spots[i]);
            eq("entry", s.next().map(|e| e.name), Some(order[i].clone()))?;
        }
    }
    cookies_hold_while_entries_go(d) {
        fill(d, 1000)?;
        let mut s = Stream::open(d)?;
        let mut all = Vec::new();
        while let Some(e) = s.next() {
            all.push(e);
        }
        let (middle, after) = (all[500].next, all[501..].iter().map(|e| e.name.clone()).collect::<Vec<_>>());
        for e in all[..500].iter().filter(|e| e.name.starts_with('f')) {
            unlink(&d.join(&e.name))?;
        }
        s.seek(middle);
        let rest: Vec<String> = s.rest().into_iter().map(|e| e.name).collect();
        eq("what comes behind", rest == after, true)?;
    }
    cookies_are_good_for_another_stream(d) {
        fill(d, 300)?;
        let all = Stream::open(d)?.rest();
        let mut s = Stream::open(d)?;
        s.next();
        s.seek(all[150].next);
        let rest: Vec<String> = s.rest().into_iter().map(|e| e.name).collect();
        eq("what comes behind", rest, all[151..].iter().map(|e| e.name.clone()).collect::<Vec<_>>())?;
    }
    long_names_fill_buffers_correctly(d) {
        let mut names: Vec<String> = (0..200usize).map(|i| format!("{i:04}{}", "n".repeat(251 - i))).collect();
        for n in &names {
            put(&d.join(n), b"")?;
        }
        names.sort();
        eq("names", list(d)? == names, true)?;
    }
    readdir_of_an_unreadable_directory_is_eacces(d) {
        mkdir(&d.join("p"), 0o711)?;
        chmod(d, 0o755)?;
        crate::run::as_user(d, 1001, 1001, &[], |d| {
            fails(EACCES, open(&d.join("p"), O_RDONLY | O_DIRECTORY, 0))?;
            fails(ENOENT, stat(&d.join("p/x")))
        })?;
    }
    creation_touches_the_directory(d) {
        for (i, what) in ["file", "dir", "link", "fifo", "hard"].into_iter().enumerate() {
            utimens(d, &[timespec { tv_sec: 1000, tv_nsec: 0 }; 2], 0)?;
            let at = d.join(what);
            match i {
                0 => put(&at, b"")?,
                1 => { mkdir(&at, 0o755)?; }
                2 => { symlink(Path::new("x"), &at)?; }
                3 => { mknod(&at, S_IFIFO | 0o600, 0)?; }
                _ => { link(&d.join("file"), &at)?; }
            }
            let st = stat(d)?;
            yes("mtime", st.st_mtime > 1000)?;
            yes("ctime", st.st_ctime >= st.st_mtime)?;
        }
    }
    many_processes_fill_one_directory(d) {
        let mut children = Vec::new();
        for k in 0..4 {
            let d = d.to_path_buf();
            children.push(crate::run::spawn(move || {
                for i in 0..100 {
                    put(&d.join(format!("k{k}.{i}")), b"")?;
                    if i % 2 == 1 {
                        unlink(&d.join(format!("k{k}.{i}")))?;
                    }
                }
                Ok(())
            })?);
        }
        for child in children {
            child.join()?;
        }
        eq("entries", list(d)?.len(), 200)?;
    }
}
