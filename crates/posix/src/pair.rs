//! Cases on two paths of one file system: what is done through one is seen through the other at once.
use std::path::Path;

use crate::cases::Map;
use crate::check::{eq, fails, pattern, same, yes};
use crate::run::spawn;
use crate::sys::*;

/// A case on two paths.
#[derive(Clone, Copy)]
pub struct PairCase {
    /// The claim.
    pub name: &'static str,
    run: fn(&Path, &Path) -> R,
}

macro_rules! pairs {
    ($($name:ident($a:ident, $b:ident) $body:block)*) => {
        $(fn $name($a: &Path, $b: &Path) -> R { $body; Ok(()) })*
        const CASES: &[PairCase] = &[$(PairCase { name: stringify!($name), run: $name }),*];
    };
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static PairCase> {
    CASES.iter()
}

/// Runs one in a process of its own, for at most `limit`.
///
/// # Errors
/// What was not as expected, or that it did not end.
pub fn run_within(case: &PairCase, a: &Path, b: &Path, limit: std::time::Duration) -> R {
    let child = spawn(|| run(case, a, b))?;
    if child.ended_within(limit) { child.join() } else { Err("hangs".into()) }
}

fn run(case: &PairCase, a: &Path, b: &Path) -> R {
    let (a, b) = (a.join(case.name), b.join(case.name));
    mkdir(&a, 0o755)?;
    (case.run)(&a, &b)?;
    std::fs::remove_dir_all(&b).map_err(|e| format!("removing the case's directory: {e}"))
}

pairs! {
    a_new_file_is_there(a, b) {
        for i in 0..50 {
            let name = format!("f{i}");
            fails(ENOENT, stat(&b.join(&name)))?;
            put(&a.join(&name), name.as_bytes())?;
            same("content", &get(&b.join(&name))?, name.as_bytes())?;
        }
    }
    a_removed_file_is_gone(a, b) {
        for i in 0..50 {
            let name = format!("f{i}");
            put(&a.join(&name), b"x")?;
            stat(&b.join(&name))?;
            unlink(&a.join(&name))?;
            fails(ENOENT, stat(&b.join(&name)))?;
        }
    }
    every_write_is_read(a, b) {
        let (x, y) = (rw(&a.join("f"))?, rw(&b.join("f"))?);
        for i in 0..100u64 {
            let data = pattern(i, 10_000);
            pwrite(&x, &data, 3000)?;
            same("through the other", &pread(&y, 10_000, 3000)?, &data)?;
            let data = pattern(i + 1000, 10_000);
            pwrite(&y, &data, 5000)?;
            same("and back", &pread(&x, 10_000, 5000)?, &data)?;
        }
    }
    sizes_are_seen_at_once(a, b) {
        let (x, y) = (rw(&a.join("f"))?, rw(&b.join("f"))?);
        for i in 1..100i64 {
            write_all(&x, &[7; 1000])?;
            eq("stat", stat(&b.join("f"))?.st_size, i * 1000)?;
            eq("fstat", fstat(&y)?.st_size, i * 1000)?;
            eq("end", lseek(&y, 0, SEEK_END)?, i * 1000)?;
        }
    }
    appends_from_both_never_overlap(a, b) {
        put(&a.join("f"), b"")?;
        let mut children = Vec::new();
        for (k, p) in [a, b, a, b].into_iter().enumerate() {
            let p = p.join("f");
            children.push(spawn(move || {
                let fd = open(&p, O_WRONLY | O_APPEND, 0)?;
                for _ in 0..100 {
                    eq("written", write(&fd, &[b'a' + k as u8; 61])?, 61)?;
                }
                Ok(())
            })?);
        }
        for child in children {
            child.join()?;
        }
        let all = get(&b.join("f"))?;
        eq("size", all.len(), 400 * 61)?;
        for k in 0..4u8 {
            eq("bytes of one", all.iter().filter(|c| **c == b'a' + k).count(), 100 * 61)?;
        }
        for record in all.chunks(61) {
            yes("a record is whole", record.iter().all(|c| *c == record[0]))?;
        }
    }
    appends_of_descriptors_that_fcntl_made_append_never_overlap(a, b) {
        let fds = [rw(&a.join("f"))?, rw(&b.join("f"))?];
        for fd in &fds {
            fcntl(fd, F_SETFL, O_APPEND)?;
        }
        for i in 0..100usize {
            eq("written", write(&fds[i % 2], &[b'a' + (i % 2) as u8; 61])?, 61)?;
        }
        let all = get(&b.join("f"))?;
        eq("size", all.len(), 100 * 61)?;
        for (i, record) in all.chunks(61).enumerate() {
            yes("a record is whole and in its place", record.iter().all(|c| *c == b'a' + (i % 2) as u8))?;
        }
    }
    appends_of_many_pieces_are_whole(a, b) {
        // Longer than what a kernel sends at once, and from a buffer that does not begin with a page.
        const RECORD: usize = (3 << 20) + 12_345;
        const EACH: usize = 6;
        put(&a.join("f"), b"")?;
        let mut children = Vec::new();
        for (k, p) in [a, b, b].into_iter().enumerate() {
            let p = p.join("f");
            children.push(spawn(move || {
                let fd = open(&p, O_WRONLY | O_APPEND, 0)?;
                let record = vec![b'a' + k as u8; RECORD + 13];
                for _ in 0..EACH {
                    eq("written", write(&fd, &record[13..])?, RECORD as i64)?;
                }
                Ok(())
            })?);
        }
        for child in children {
            child.join()?;
        }
        let all = get(&b.join("f"))?;
        eq("size", all.len(), 3 * EACH * RECORD)?;
        for (i, record) in all.chunks(RECORD).enumerate() {
            yes(&format!("record {i} is whole"), record.iter().all(|c| *c == record[0]))?;
        }
    }
    cuts_by_another_do_not_come_between_the_pieces_of_an_append(a, b) {
        const RECORD: usize = (5 << 20) / 2;
        let (p, q) = (a.join("f"), b.join("f"));
        put(&p, b"")?;
        let y = rw(&q)?;
        for round in 0..12 {
            let p = p.clone();
            let child = spawn(move || {
                let fd = open(&p, O_WRONLY | O_APPEND, 0)?;
                for _ in 0..4 {
                    eq("written", write(&fd, &vec![7; RECORD])?, RECORD as i64)?;
                }
                Ok(())
            })?;
            while !child.ended_within(std::time::Duration::from_millis(1)) {
                ftruncate(&y, 0)?;
            }
            child.join()?;
            let all = get(&q)?;
            eq(&format!("what is left over of a record in round {round}"), all.len() % RECORD, 0)?;
            yes("sevens", all.iter().all(|c| *c == 7))?;
            // Nobody changes it any more: what stat says right after an append is what was appended.
            let fd = open(&a.join("f"), O_WRONLY | O_APPEND, 0)?;
            eq("written", write(&fd, &vec![7; RECORD])?, RECORD as i64)?;
            eq("size through the other", stat(&q)?.st_size, (all.len() + RECORD) as i64)?;
            ftruncate(&y, 0)?;
        }
    }
    an_append_is_seen_by_stat_when_it_returned(a, b) {
        put(&a.join("f"), b"")?;
        let (x, y) = (open(&a.join("f"), O_WRONLY | O_APPEND, 0)?, rw(&b.join("f"))?);
        let mut size = 0;
        for i in 0..300usize {
            let len = [10, 5000, 70_000, 1 << 20, (1 << 20) + 1][i % 5];
            eq("written", write(&x, &vec![7; len])?, len as i64)?;
            size += len as i64;
            let seen = if i % 2 == 0 { stat(&b.join("f"))?.st_size } else { fstat(&y)?.st_size };
            eq("size through the other", seen, size)?;
            if i % 3 == 0 {
                ftruncate(&y, 0)?;
                eq("size after the cut", stat(&a.join("f"))?.st_size, 0)?;
                size = 0;
            }
        }
    }
    a_deadlock_over_both_is_refused(a, b) {
        put(&a.join("f"), b"x")?;
        put(&a.join("g"), b"x")?;
        mknod(&a.join("held"), libc::S_IFIFO | 0o600, 0)?;
        let whole = || range(libc::F_WRLCK, 0, 0);
        // Each of two processes holds a file through one mount and waits for the other's through the other mount.
        let mine = rw(&a.join("f"))?;
        fcntl_lock(&mine, libc::F_SETLK, &mut whole())?;
        let (pa, pb) = (a.to_path_buf(), b.to_path_buf());
        let child = spawn(move || {
            let held = rw(&pb.join("g"))?;
            fcntl_lock(&held, libc::F_SETLK, &mut whole())?;
            put(&pa.join("held"), b"x")?;
            let wanted = rw(&pa.join("f"))?;
            match fcntl_lock(&wanted, libc::F_SETLKW, &mut whole()) {
                Ok(_) => Ok(()),
                Err(e) => eq("errno", e.errno, libc::EDEADLK).and(Err("deadlock".into())),
            }
        })?;
        get(&a.join("held"))?;
        let wanted = rw(&b.join("g"))?;
        let refused = match fcntl_lock(&wanted, libc::F_SETLKW, &mut whole()) {
            Ok(_) => false,
            Err(e) => { eq("errno", e.errno, libc::EDEADLK)?; true }
        };
        drop(mine);
        let theirs = child.join();
        yes("one of the two is refused", refused != (theirs == Err("deadlock".into())))?;
    }
    truncate_and_read_agree(a, b) {
        let (x, y) = (rw(&a.join("f"))?, rw(&b.join("f"))?);
        for i in 0..30u64 {
            let data = pattern(i, 100_000);
            pwrite(&x, &data, 0)?;
            same("all", &pread(&y, 200_000, 0)?, &data)?;
            let cut = 1 + (i as usize * 7919) % 99_000;
            ftruncate(&x, cut as i64)?;
            same("cut", &pread(&y, 200_000, 0)?, &data[..cut])?;
            ftruncate(&y, 100_000)?;
            let back = pread(&x, 200_000, 0)?;
            eq("grown", back.len(), 100_000)?;
            yes("zeros", back[cut..].iter().all(|c| *c == 0))?;
        }
    }
    a_reader_during_truncation_sees_old_or_nothing(a, b) {
        put(&a.join("f"), &[7; 300_000])?;
        let p = b.join("f");
        let child = spawn(move || {
            let fd = rw(&p)?;
            for _ in 0..100 {
                let seen = pread(&fd, 300_000, 0)?;
                yes("zeros or sevens", seen.iter().all(|c| *c == 0 || *c == 7))?;
            }
            Ok(())
        })?;
        let fd = rw(&a.join("f"))?;
        for i in 0..50i64 {
            ftruncate(&fd, i * 1000)?;
            pwrite(&fd, &[7; 100_000], 0)?;
        }
        child.join()?;
    }
    a_mapping_shows_remote_writes_after_open(a, b) {
        put(&a.join("f"), &[0; 20_000])?;
        for i in 1..20u8 {
            put(&a.join("f"), &[i; 20_000])?;
            let fd = rw(&b.join("f"))?;
            let map = Map::new(&fd, 0, 20_000, libc::PROT_READ, libc::MAP_SHARED)?;
            same("mapping", &map.get(0, 20_000), &[i; 20_000])?;
        }
    }
    a_standing_mapping_shows_remote_writes(a, b) {
        put(&a.join("f"), &[0; 20_000])?;
        let fd = open(&b.join("f"), O_RDONLY, 0)?;
        let map = Map::new(&fd, 0, 20_000, libc::PROT_READ, libc::MAP_SHARED)?;
        let x = rw(&a.join("f"))?;
        for i in 1..20u8 {
            pwrite(&x, &[i; 20_000], 0)?;
            same("mapping", &map.get(0, 20_000), &[i; 20_000])?;
        }
    }
    stores_through_a_mapping_are_read_after_msync(a, b) {
        put(&a.join("f"), &[0; 20_000])?;
        let (x, y) = (rw(&a.join("f"))?, rw(&b.join("f"))?);
        let map = Map::new(&x, 0, 20_000, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)?;
        for i in 1..20u8 {
            map.set(100, &[i; 15_000]);
            map.sync()?;
            same("read", &pread(&y, 15_000, 100)?, &[i; 15_000])?;
        }
    }
    rename_and_lookup_agree(a, b) {
        put(&a.join("f"), b"content")?;
        for i in 0..50 {
            let (old, new) = if i % 2 == 0 { ("f", "g") } else { ("g", "f") };
            stat(&b.join(old))?;
            rename(&a.join(old), &a.join(new))?;
            fails(ENOENT, stat(&b.join(old)))?;
            same("content", &get(&b.join(new))?, b"content")?;
        }
    }
    replacement_is_never_seen_half(a, b) {
        put(&a.join("t"), b"0000")?;
        let p = a.to_path_buf();
        let child = spawn(move || {
            for i in 0..100 {
                put(&p.join("n"), format!("{i:04}").as_bytes())?;
                rename(&p.join("n"), &p.join("t"))?;
            }
            Ok(())
        })?;
        for _ in 0..200 {
            eq("length", get(&b.join("t"))?.len(), 4)?;
        }
        child.join()?;
        same("last", &get(&b.join("t"))?, b"0099")?;
    }
    a_file_made_by_mknod_is_written_and_read_by_both(a, b) {
        mknod(&a.join("f"), S_IFREG | 0o644, 0)?;
        let reader = open(&b.join("f"), O_RDONLY, 0)?;
        eq("nothing", pread(&reader, 10, 0)?.len(), 0)?;
        eq("size", fstat(&reader)?.st_size, 0)?;
        let writer = rw(&a.join("f"))?;
        write_all(&writer, &pattern(1, 10_000))?;
        same("content", &pread(&reader, 20_000, 0)?, &pattern(1, 10_000))?;
        mknod(&a.join("g"), S_IFREG | 0o644, 0)?;
        truncate(&b.join("g"), 5000)?;
        eq("size of the other", stat(&a.join("g"))?.st_size, 5000)?;
        same("zeros", &get(&a.join("g"))?, &[0; 5000])?;
    }
    a_name_that_is_replaced_always_leads_to_a_file(a, b) {
        put(&a.join("t"), b"0000")?;
        let mut children = Vec::new();
        for (k, p) in [a, b].into_iter().enumerate() {
            let p = p.to_path_buf();
            children.push(spawn(move || {
                for i in 0..150 {
                    let new = p.join(format!("n{k}"));
                    put(&new, format!("{i:04}").as_bytes())?;
                    setxattr(&new, "user.x", b"1", 0)?;
                    rename(&new, &p.join("t"))?;
                }
                Ok(())
            })?);
        }
        setxattr(&a.join("t"), "user.x", b"1", 0)?;
        for i in 0..150 {
            for p in [a, b] {
                let t = p.join("t");
                let fd = open(&t, if i % 2 == 0 { O_RDONLY } else { O_RDWR }, 0)?;
                eq("size", fstat(&fd)?.st_size, 4)?;
                eq("length", pread(&fd, 10, 0)?.len(), 4)?;
                drop(fd);
                eq("size by name", stat(&t)?.st_size, 4)?;
                same("xattr", &getxattr(&t, "user.x")?, b"1")?;
                chmod(&t, 0o644)?;
            }
        }
        for child in children {
            child.join()?;
        }
    }
    a_name_that_comes_and_goes_is_there_or_not(a, b) {
        let p = a.to_path_buf();
        let child = spawn(move || {
            for _ in 0..200 {
                put(&p.join("t"), b"0000")?;
                unlink(&p.join("t"))?;
            }
            Ok(())
        })?;
        for _ in 0..200 {
            for p in [a, b] {
                for seen in [open(&p.join("t"), O_RDONLY, 0).map(drop), stat(&p.join("t")).map(drop)] {
                    yes("there or not", seen.as_ref().map_or_else(|e| e.errno == ENOENT, |()| true))?;
                }
            }
        }
        child.join()?;
    }
    a_removed_file_gives_its_space_back(a, b) {
        let used = || -> Result<u64, String> { statvfs(a).map(|s| s.f_files - s.f_ffree).map_err(String::from) };
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        // A file system that others use as well may need several rounds to show one without theirs.
        let mut back = false;
        while !back {
            let before = used()?;
            let names = || (0..50).map(|i| format!("f{i}"));
            for name in names() {
                put(&a.join(&name), b"x")?;
                stat(&b.join(&name))?;
            }
            for name in names() {
                unlink(&a.join(&name))?;
            }
            // What may still be opened is given back when the other kernel forgot it, a moment later.
            for _ in 0..100 {
                back = used()? <= before;
                if back {
                    break;
                }
                std::thread::park_timeout(std::time::Duration::from_millis(20));
            }
            yes("the inodes come back", back || std::time::Instant::now() < end)?;
        }
    }
    a_moved_directory_takes_its_content_along(a, b) {
        mkdir(&a.join("p"), 0o755)?;
        put(&a.join("p/f"), b"x")?;
        same("before", &get(&b.join("p/f"))?, b"x")?;
        rename(&a.join("p"), &a.join("q"))?;
        fails(ENOENT, stat(&b.join("p/f")))?;
        same("after", &get(&b.join("q/f"))?, b"x")?;
    }
    a_file_unlinked_elsewhere_lives_while_open(a, b) {
        put(&a.join("f"), &pattern(1, 300_000))?;
        let fd = rw(&b.join("f"))?;
        unlink(&a.join("f"))?;
        same("content", &pread(&fd, 300_000, 0)?, &pattern(1, 300_000))?;
        eq("links", fstat(&fd)?.st_nlink, 0)?;
        pwrite(&fd, b"more", 300_000)?;
        fsync(&fd)?;
        same("more", &pread(&fd, 4, 300_000)?, b"more")?;
        put(&a.join("f"), b"new")?;
        same("new", &get(&b.join("f"))?, b"new")?;
    }
    attributes_are_seen_at_once(a, b) {
        put(&a.join("f"), b"x")?;
        for i in 0..40u32 {
            chmod(&a.join("f"), 0o600 + i)?;
            eq("mode", stat(&b.join("f"))?.st_mode & 0o7777, 0o600 + i)?;
            utimens(&a.join("f"), &[timespec { tv_sec: i64::from(i) * 1000, tv_nsec: 77 }; 2], 0)?;
            eq("mtime", stat(&b.join("f"))?.st_mtime, i64::from(i) * 1000)?;
            setxattr(&a.join("f"), "user.x", &i.to_le_bytes(), 0)?;
            same("xattr", &getxattr(&b.join("f"), "user.x")?, &i.to_le_bytes())?;
            link(&a.join("f"), &a.join(format!("l{i}")))?;
            eq("links", u64::from(i) + 2, stat(&b.join("f"))?.st_nlink)?;
        }
    }
    a_write_takes_a_capability_that_the_other_set(a, b) {
        if !is_root() {
            eprintln!("{SKIP}a_write_takes_a_capability_that_the_other_set needs root");
            return Ok(());
        }
        // CAP_CHOWN, permitted and effective, as setcap(8) stores it.
        let mut caps = [0u8; 20];
        (caps[0], caps[3], caps[4]) = (1, 2, 1);
        put(&a.join("f"), b"x")?;
        let (x, y) = (rw(&a.join("f"))?, rw(&b.join("f"))?);
        for round in 0..5u64 {
            for (writer, other, at) in [(&x, &b, "a"), (&y, &a, "b"), (&x, &a, "a"), (&y, &b, "b")] {
                // The writer's kernel finds no capability, and need not look again.
                pwrite(writer, b"first", 0)?;
                setxattr(&other.join("f"), "security.capability", &caps, 0)?;
                pwrite(writer, b"second", 0)?;
                for seen in [&a, &b] {
                    let left = getxattr(&seen.join("f"), "security.capability");
                    fails(ENODATA, left).map_err(|e| format!("round {round}, written through {at}: {e}"))?;
                }
            }
        }
    }
    mtime_moves_when_the_other_writes(a, b) {
        let x = rw(&a.join("f"))?;
        utimens(&b.join("f"), &[timespec { tv_sec: 1000, tv_nsec: 0 }; 2], 0)?;
        eq("mtime", fstat(&x)?.st_mtime, 1000)?;
        write_all(&x, b"x")?;
        yes("mtime moved", stat(&b.join("f"))?.st_mtime > 1000)?;
    }
    readdir_shows_what_the_other_made(a, b) {
        for i in 0..60usize {
            put(&a.join(format!("f{i}")), b"")?;
            eq("entries", std::fs::read_dir(b).map_err(|e| e.to_string())?.count(), i + 1)?;
        }
        for i in 0..60usize {
            unlink(&b.join(format!("f{i}")))?;
            eq("entries", std::fs::read_dir(a).map_err(|e| e.to_string())?.count(), 59 - i)?;
        }
    }
    exclusive_creation_has_one_winner(a, b) {
        for i in 0..50 {
            let mut children = Vec::new();
            for p in [a, b] {
                let (file, won) = (p.join(format!("f{i}")), p.join(format!("won{i}")));
                children.push(spawn(move || match open(&file, O_WRONLY | O_CREAT | O_EXCL, 0o644) {
                    Ok(_) => Ok(mkdir(&won, 0o755).map(|_| ())?),
                    Err(e) => eq("errno", e.errno, EEXIST),
                })?);
            }
            for child in children {
                child.join()?;
            }
            stat(&a.join(format!("won{i}")))?;
        }
    }
    flock_excludes_the_other(a, b) {
        let (x, y) = (rw(&a.join("f"))?, rw(&b.join("f"))?);
        for _ in 0..20 {
            flock(&x, libc::LOCK_EX)?;
            fails(libc::EWOULDBLOCK, flock(&y, libc::LOCK_EX | libc::LOCK_NB))?;
            fails(libc::EWOULDBLOCK, flock(&y, libc::LOCK_SH | libc::LOCK_NB))?;
            flock(&x, libc::LOCK_UN)?;
            flock(&y, libc::LOCK_SH | libc::LOCK_NB)?;
            flock(&x, libc::LOCK_SH | libc::LOCK_NB)?;
            flock(&y, libc::LOCK_UN)?;
            flock(&x, libc::LOCK_UN)?;
        }
    }
    a_counter_under_flock_loses_nothing(a, b) {
        put(&a.join("f"), &0u64.to_le_bytes())?;
        let mut children = Vec::new();
        for p in [a, b, a, b] {
            let p = p.join("f");
            children.push(spawn(move || {
                let fd = rw(&p)?;
                for _ in 0..50 {
                    flock(&fd, libc::LOCK_EX)?;
                    let now = pread(&fd, 8, 0)?;
                    let n = u64::from_le_bytes(now.try_into().map_err(|_| "eight bytes")?);
                    pwrite(&fd, &(n + 1).to_le_bytes(), 0)?;
                    flock(&fd, libc::LOCK_UN)?;
                }
                Ok(())
            })?);
        }
        for child in children {
            child.join()?;
        }
        same("count", &get(&b.join("f"))?, &200u64.to_le_bytes())?;
    }
    a_counter_under_fcntl_locks_loses_nothing(a, b) {
        put(&a.join("f"), &0u64.to_le_bytes())?;
        let mut children = Vec::new();
        for p in [a, b, a, b] {
            let p = p.join("f");
            children.push(spawn(move || {
                let fd = rw(&p)?;
                for _ in 0..50 {
                    fcntl_lock(&fd, libc::F_SETLKW, &mut range(libc::F_WRLCK, 0, 8))?;
                    let now = pread(&fd, 8, 0)?;
                    let n = u64::from_le_bytes(now.try_into().map_err(|_| "eight bytes")?);
                    pwrite(&fd, &(n + 1).to_le_bytes(), 0)?;
                    fcntl_lock(&fd, libc::F_SETLK, &mut range(libc::F_UNLCK, 0, 8))?;
                }
                Ok(())
            })?);
        }
        for child in children {
            child.join()?;
        }
        same("count", &get(&b.join("f"))?, &200u64.to_le_bytes())?;
    }
    a_mapped_store_takes_nothing_from_others(a, b) {
        for i in 0..30 {
            let name = format!("f{i}");
            put(&a.join(&name), &[b'.'; 4096])?;
            let (x, y) = (rw(&a.join(&name))?, rw(&b.join(&name))?);
            let map = Map::new(&x, 0, 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)?;
            if i % 2 == 0 {
                same("before", &map.get(0, 1), b".")?;
            }
            map.set(10, b"x");
            pwrite(&y, b"hello", 2000)?;
            fsync(&y)?;
            map.sync()?;
            for (at, who) in [(a, "here"), (b, "there")] {
                let got = get(&at.join(&name))?;
                same(&format!("{who}: what was written, round {i}"), &got[2000..2005], b"hello")?;
                same(&format!("{who}: what was stored, round {i}"), &got[10..11], b"x")?;
            }
            same("through the mapping", &map.get(2000, 5), b"hello")?;
        }
    }
    a_mapped_store_takes_nothing_from_appends_of_others(a, b) {
        for looks in [true, false] {
            let name = format!("f{looks}");
            put(&a.join(&name), &[b'.'; 100])?;
            let (x, y) = (rw(&a.join(&name))?, rw(&b.join(&name))?);
            let map = Map::new(&x, 0, 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)?;
            for i in 0..30usize {
                let end = 100 + i * 100;
                pwrite(&y, &[b'B'; 100], end as i64)?;
                fsync(&y)?;
                // A kernel that was not asked for the size believes in the one of before, in whose page this is.
                map.set(0, b"x");
                map.sync()?;
                if looks {
                    eq("size here", fstat(&x)?.st_size, end as i64 + 100)?;
                    same("what is mapped", &map.get(end, 100), &[b'B'; 100])?;
                }
                map.set(1, b"x");
                map.sync()?;
                same(&format!("after round {i}"), &get(&b.join(&name))?[100..], &vec![b'B'; end])?;
            }
            same("what was stored", &get(&b.join(&name))?[..3], b"xx.")?;
        }
    }
    a_cut_is_not_undone_by_mapped_pages(a, b) {
        for i in 0..30 {
            let name = format!("f{i}");
            put(&a.join(&name), &[b'.'; 65_536])?;
            let (x, y) = (rw(&a.join(&name))?, rw(&b.join(&name))?);
            let map = Map::new(&x, 0, 65_536, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)?;
            (0..16).for_each(|p| map.set(p * 4096 + 7, b"stored"));
            ftruncate(&y, 5000)?;
            eq("size there", stat(&b.join(&name))?.st_size, 5000)?;
            fsync(&x)?;
            eq("size here", stat(&a.join(&name))?.st_size, 5000)?;
            let got = get(&b.join(&name))?;
            eq("bytes", got.len(), 5000)?;
            same("what was stored in front of the cut", &got[4103..4109], b"stored")?;
            ftruncate(&y, 65_536)?;
            same("behind the cut", &get(&a.join(&name))?[5000..], &[0; 60_536])?;
        }
    }
    an_asynchronous_write_that_fails_takes_nothing_from_others(a, b) {
        let (x, y) = (open(&a.join("f"), O_RDWR | O_CREAT | O_DIRECT, 0o644)?, rw(&b.join("f"))?);
        let theirs = pattern(7, 100_000);
        pwrite(&y, &theirs, 0)?;
        // Here the file was empty when anybody looked: what the kernel undoes then is not its to undo.
        eq("result", aio_write_of_nothing(&x, 8192, 0)?, -i64::from(EFAULT))?;
        for at in [a, b] {
            same("what the other wrote", &get(&at.join("f"))?, &theirs)?;
        }
        ftruncate(&x, 5000)?;
        eq("size", stat(&b.join("f"))?.st_size, 5000)?;
    }
    a_ring_write_that_fails_takes_nothing_from_others(a, b) {
        for flags in [0, O_DIRECT] {
            let name = format!("f{flags}");
            let (x, y) = (open(&a.join(&name), O_RDWR | O_CREAT | flags, 0o644)?, rw(&b.join(&name))?);
            let theirs = pattern(7, 100_000);
            pwrite(&y, &theirs, 0)?;
            let Some(result) = crate::ring::write_of_nothing(&x, 8192, 0)? else {
                eprintln!("{SKIP}a_ring_write_that_fails_takes_nothing_from_others needs io_uring");
                return Ok(());
            };
            eq("result", result, -EFAULT)?;
            for at in [a, b] {
                same("what the other wrote", &get(&at.join(&name))?, &theirs)?;
            }
            ftruncate(&x, 5000)?;
            eq("size", stat(&b.join(&name))?.st_size, 5000)?;
        }
    }
    a_cut_to_the_size_that_its_kernel_believes_takes_bytes_away(a, b) {
        for stores in [true, false] {
            let name = format!("f{stores}");
            put(&a.join(&name), &[b'A'; 100])?;
            let (x, y) = (rw(&a.join(&name))?, rw(&b.join(&name))?);
            let map = Map::new(&x, 0, 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)?;
            same("before", &map.get(0, 1), b"A")?;
            pwrite(&y, &[b'B'; 900], 100)?;
            // The page is read anew, and whole; that the file is longer now nobody tells this kernel.
            same("after the other's write", &map.get(0, 1), b"A")?;
            if stores {
                map.set(1, b"s");
            }
            ftruncate(&x, 100)?;
            eq("written", pwrite(&x, b"z", 8192)?, 1)?;
            same("what is mapped", &map.get(100, 900), &[0; 900])?;
            map.set(10, b"s");
            fsync(&x)?;
            for (at, who) in [(a, "here"), (b, "there")] {
                same(&format!("behind the cut, {who}"), &get(&at.join(&name))?[100..8192], &[0; 8092])?;
            }
            same("what was stored", &pread(&y, 1, 10)?, b"s")?;
        }
    }
    own_stores_are_never_missed(a, b) {
        put(&a.join("f"), &[0; 8192])?;
        let (x, y) = (rw(&a.join("f"))?, rw(&b.join("f"))?);
        let map = Map::new(&x, 0, 8192, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)?;
        for i in 0..300u32 {
            map.set(100, &i.to_le_bytes());
            if i % 3 == 0 {
                same("through the other mount", &pread(&y, 4, 100)?, &i.to_le_bytes())?;
            } else if i % 3 == 1 {
                pwrite(&y, &i.to_le_bytes(), 6000)?;
            }
            same("through the mapping", &map.get(100, 4), &i.to_le_bytes())?;
            same("through the descriptor", &pread(&x, 4, 100)?, &i.to_le_bytes())?;
        }
    }
    a_lock_goes_with_its_process(a, b) {
        put(&a.join("f"), b"")?;
        let p = a.join("f");
        spawn(move || { let fd = rw(&p)?; Ok(fcntl_lock(&fd, libc::F_SETLK, &mut range(libc::F_WRLCK, 0, 0)).map(|_| ())?) })?.join()?;
        let y = rw(&b.join("f"))?;
        fcntl_lock(&y, libc::F_SETLK, &mut range(libc::F_WRLCK, 0, 0))?;
    }
}

/// A lock of a range from the start of the file.
#[must_use]
pub fn range(kind: i32, start: i64, len: i64) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: start, l_len: len, l_pid: 0 }
}
