//! flock(2), fcntl(2) record locks, open file description locks.
use libc::{
    F_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_RDLCK, F_SETLK, F_SETLKW, F_UNLCK, F_WRLCK, LOCK_EX, LOCK_NB, LOCK_SH,
    LOCK_UN,
};

use crate::check::{eq, fails, fails_any, yes};
use crate::pair::range;
use crate::run::{in_child, spawn};
use crate::sys::*;

const AGAIN: [i32; 2] = [libc::EAGAIN, EACCES];

/// Whether another process could lock the range now.
fn free(p: &std::path::Path, kind: i32, start: i64, len: i64) -> Result<bool, String> {
    let mut got = false;
    let p = p.to_path_buf();
    match in_child(move || {
        let fd = rw(&p)?;
        match fcntl_lock(&fd, F_SETLK, &mut range(kind, start, len)) {
            Ok(_) => Ok(()),
            Err(e) if AGAIN.contains(&e.errno) => Err("taken".into()),
            Err(e) => Err(e.into()),
        }
    }) {
        Ok(()) => got = true,
        Err(e) if e == "taken" => {}
        Err(e) => return Err(e),
    }
    Ok(got)
}

suite! { "lock";
    flock_shared_and_exclusive(d) {
        let (x, y) = (rw(&d.join("a"))?, rw(&d.join("a"))?);
        flock(&x, LOCK_SH)?;
        flock(&y, LOCK_SH | LOCK_NB)?;
        fails(libc::EWOULDBLOCK, flock(&x, LOCK_EX | LOCK_NB))?;
        flock(&y, LOCK_UN)?;
        flock(&x, LOCK_EX | LOCK_NB)?;
        fails(libc::EWOULDBLOCK, flock(&y, LOCK_SH | LOCK_NB))?;
    }
    flock_goes_with_the_last_descriptor(d) {
        let (x, y) = (rw(&d.join("a"))?, rw(&d.join("a"))?);
        let twin = x.try_clone().map_err(|e| e.to_string())?;
        flock(&x, LOCK_EX)?;
        drop(x);
        fails(libc::EWOULDBLOCK, flock(&y, LOCK_EX | LOCK_NB))?;
        drop(twin);
        flock(&y, LOCK_EX)?;
    }
    flock_belongs_to_the_open_file_not_the_process(d) {
        let x = rw(&d.join("a"))?;
        flock(&x, LOCK_EX)?;
        in_child(|| { flock(&x, LOCK_UN)?; Ok(()) })?;
        let y = rw(&d.join("a"))?;
        flock(&y, LOCK_EX | LOCK_NB)?;
    }
    flock_waits_until_it_is_free(d) {
        let x = rw(&d.join("a"))?;
        flock(&x, LOCK_EX)?;
        let p = d.join("a");
        let q = d.join("got");
        let child = spawn(move || { let fd = rw(&p)?; flock(&fd, LOCK_EX)?; put(&q, b"")?; Ok(()) })?;
        for _ in 0..20 {
            fails(ENOENT, stat(&d.join("got")))?;
        }
        flock(&x, LOCK_UN)?;
        child.join()?;
        stat(&d.join("got"))?;
    }
    flock_needs_no_write_access(d) {
        put(&d.join("a"), b"")?;
        let x = open(&d.join("a"), O_RDONLY, 0)?;
        flock(&x, LOCK_EX)?;
        flock(&open(d, O_RDONLY | O_DIRECTORY, 0)?, LOCK_EX)?;
    }
    flock_and_fcntl_do_not_meet(d) {
        let x = rw(&d.join("a"))?;
        flock(&x, LOCK_EX)?;
        yes("free for fcntl", free(&d.join("a"), F_WRLCK, 0, 0)?)?;
    }
    record_locks_exclude_other_processes(d) {
        let x = rw(&d.join("a"))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, 100, 100))?;
        eq("inside", free(&d.join("a"), F_RDLCK, 150, 1)?, false)?;
        eq("first byte", free(&d.join("a"), F_WRLCK, 100, 1)?, false)?;
        eq("last byte", free(&d.join("a"), F_WRLCK, 199, 1)?, false)?;
        eq("before", free(&d.join("a"), F_WRLCK, 0, 100)?, true)?;
        eq("after", free(&d.join("a"), F_WRLCK, 200, 0)?, true)?;
        eq("across", free(&d.join("a"), F_WRLCK, 0, 0)?, false)?;
    }
    record_read_locks_are_shared(d) {
        let x = rw(&d.join("a"))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_RDLCK, 0, 10))?;
        eq("reading", free(&d.join("a"), F_RDLCK, 0, 10)?, true)?;
        eq("writing", free(&d.join("a"), F_WRLCK, 0, 10)?, false)?;
    }
    record_locks_split_and_join(d) {
        let x = rw(&d.join("a"))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, 0, 300))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_UNLCK, 100, 100))?;
        eq("hole", free(&d.join("a"), F_WRLCK, 100, 100)?, true)?;
        eq("left", free(&d.join("a"), F_WRLCK, 99, 1)?, false)?;
        eq("right", free(&d.join("a"), F_WRLCK, 200, 1)?, false)?;
        fcntl_lock(&x, F_SETLK, &mut range(F_RDLCK, 0, 50))?;
        eq("made shared", free(&d.join("a"), F_RDLCK, 0, 50)?, true)?;
        eq("still exclusive", free(&d.join("a"), F_RDLCK, 50, 1)?, false)?;
        fcntl_lock(&x, F_SETLK, &mut range(F_UNLCK, 0, 0))?;
        eq("all free", free(&d.join("a"), F_WRLCK, 0, 0)?, true)?;
    }
    record_locks_of_one_process_do_not_conflict(d) {
        let (x, y) = (rw(&d.join("a"))?, rw(&d.join("a"))?);
        fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, 0, 0))?;
        fcntl_lock(&y, F_SETLK, &mut range(F_WRLCK, 0, 0))?;
    }
    record_locks_go_with_any_close(d) {
        let (x, y) = (rw(&d.join("a"))?, rw(&d.join("a"))?);
        fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, 0, 0))?;
        drop(y);
        eq("free", free(&d.join("a"), F_WRLCK, 0, 0)?, true)?;
    }
    record_locks_are_not_inherited(d) {
        let x = rw(&d.join("a"))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, 0, 0))?;
        in_child(|| fails_any(&AGAIN, fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, 0, 0))))?;
    }
    getlk_names_the_holder(d) {
        let x = rw(&d.join("a"))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, 10, 20))?;
        let me = std::process::id();
        in_child(|| {
            let fd = rw(&d.join("a"))?;
            let mut l = range(F_RDLCK, 0, 100);
            fcntl_lock(&fd, F_GETLK, &mut l)?;
            eq("lock", (i32::from(l.l_type), l.l_start, l.l_len), (F_WRLCK, 10, 20))?;
            eq("holder", l.l_pid as u32, me)?;
            let mut l = range(F_WRLCK, 30, 100);
            fcntl_lock(&fd, F_GETLK, &mut l)?;
            eq("free", i32::from(l.l_type), F_UNLCK)
        })?;
    }
    getlk_names_the_holder_after_it_gave_other_ranges_back(d) {
        let x = rw(&d.join("a"))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, 0, 100))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_RDLCK, 200, 50))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_UNLCK, 40, 20))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_UNLCK, 1000, 0))?;
        let me = std::process::id();
        in_child(|| {
            let fd = rw(&d.join("a"))?;
            for (from, held) in [(0, (F_WRLCK, 0, 40)), (40, (F_WRLCK, 60, 40)), (100, (F_RDLCK, 200, 50))] {
                let mut l = range(F_WRLCK, from, 0);
                fcntl_lock(&fd, F_GETLK, &mut l)?;
                eq("lock", (i32::from(l.l_type), l.l_start, l.l_len), held)?;
                eq("holder", l.l_pid as u32, me)?;
            }
            Ok(())
        })?;
    }
    setlkw_waits_until_it_is_free(d) {
        let x = rw(&d.join("a"))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, 0, 10))?;
        let (p, q) = (d.join("a"), d.join("got"));
        let child = spawn(move || {
            let fd = rw(&p)?;
            fcntl_lock(&fd, F_SETLKW, &mut range(F_WRLCK, 5, 10))?;
            put(&q, b"")?;
            Ok(())
        })?;
        for _ in 0..20 {
            fails(ENOENT, stat(&d.join("got")))?;
        }
        fcntl_lock(&x, F_SETLK, &mut range(F_UNLCK, 0, 10))?;
        child.join()?;
    }
    a_waiting_lock_is_granted_when_the_holder_dies(d) {
        let (p, q) = (d.join("a"), d.join("held"));
        mknod(&q, S_IFIFO | 0o600, 0)?;
        let holder = spawn(move || {
            let fd = rw(&p)?;
            fcntl_lock(&fd, F_SETLK, &mut range(F_WRLCK, 0, 0))?;
            put(&q, b"x")?;
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        })?;
        get(&d.join("held"))?;
        let p = d.join("a");
        let waiter = spawn(move || { let fd = rw(&p)?; fcntl_lock(&fd, F_SETLKW, &mut range(F_WRLCK, 0, 0))?; Ok(()) })?;
        eq("taken", free(&d.join("a"), F_WRLCK, 0, 0)?, false)?;
        holder.kill();
        waiter.join()?;
    }
    a_signal_ends_the_wait(d) {
        let x = rw(&d.join("a"))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, 0, 0))?;
        in_child(|| {
            extern "C" fn nothing(_: i32) {}
            // SAFETY: a handler that does nothing, without restarting calls; the alarm repeats.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = nothing as *const () as usize;
                libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
                let tick = libc::timeval { tv_sec: 0, tv_usec: 100_000 };
                libc::setitimer(libc::ITIMER_REAL, &libc::itimerval { it_interval: tick, it_value: tick }, std::ptr::null_mut());
            }
            let fd = rw(&d.join("a"))?;
            fails(EINTR, fcntl_lock(&fd, F_SETLKW, &mut range(F_WRLCK, 0, 0)))?;
            fails_any(&AGAIN, fcntl_lock(&fd, F_SETLK, &mut range(F_WRLCK, 0, 0)))
        })?;
        fcntl_lock(&x, F_SETLK, &mut range(F_UNLCK, 0, 0))?;
        eq("nobody holds it", free(&d.join("a"), F_WRLCK, 0, 0)?, true)?;
    }
    a_deadlock_is_refused(d) {
        let x = rw(&d.join("a"))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, 0, 1))?;
        mknod(&d.join("held"), S_IFIFO | 0o600, 0)?;
        let (p, q) = (d.join("a"), d.join("held"));
        let child = spawn(move || {
            let fd = rw(&p)?;
            fcntl_lock(&fd, F_SETLK, &mut range(F_WRLCK, 1, 1))?;
            put(&q, b"x")?;
            match fcntl_lock(&fd, F_SETLKW, &mut range(F_WRLCK, 0, 1)) {
                Ok(_) => Ok(()),
                Err(e) => eq("errno", e.errno, libc::EDEADLK).and(Err("deadlock".into())),
            }
        })?;
        get(&d.join("held"))?;
        let mine = fcntl_lock(&x, F_SETLKW, &mut range(F_WRLCK, 1, 1));
        let refused = match &mine {
            Ok(_) => false,
            Err(e) => { eq("errno", e.errno, libc::EDEADLK)?; true }
        };
        drop(x);
        let theirs = child.join();
        yes("one of the two is refused", refused != (theirs == Err("deadlock".into())))?;
    }
    record_locks_need_the_access_mode(d) {
        put(&d.join("a"), b"")?;
        let r = open(&d.join("a"), O_RDONLY, 0)?;
        fails(EBADF, fcntl_lock(&r, F_SETLK, &mut range(F_WRLCK, 0, 0)))?;
        fcntl_lock(&r, F_SETLK, &mut range(F_RDLCK, 0, 0))?;
        let w = open(&d.join("a"), O_WRONLY, 0)?;
        fails(EBADF, fcntl_lock(&w, F_SETLK, &mut range(F_RDLCK, 0, 0)))?;
    }
    record_locks_reach_the_largest_offset(d) {
        let x = rw(&d.join("a"))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, i64::MAX - 1, 1))?;
        eq("taken", free(&d.join("a"), F_WRLCK, i64::MAX - 1, 1)?, false)?;
        eq("free", free(&d.join("a"), F_WRLCK, 0, 1000)?, true)?;
        fails_any(&[EINVAL, EOVERFLOW], fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, -5, 1)))?;
    }
    negative_lengths_lock_what_is_before(d) {
        let x = rw(&d.join("a"))?;
        fcntl_lock(&x, F_SETLK, &mut range(F_WRLCK, 100, -50))?;
        eq("inside", free(&d.join("a"), F_WRLCK, 50, 1)?, false)?;
        eq("the start itself", free(&d.join("a"), F_WRLCK, 100, 1)?, true)?;
    }
    open_file_description_locks_conflict_within_a_process(d) {
        let (x, y) = (rw(&d.join("a"))?, rw(&d.join("a"))?);
        fcntl_lock(&x, F_OFD_SETLK, &mut range(F_WRLCK, 0, 10))?;
        fails_any(&AGAIN, fcntl_lock(&y, F_OFD_SETLK, &mut range(F_WRLCK, 5, 10)))?;
        fails_any(&AGAIN, fcntl_lock(&y, F_SETLK, &mut range(F_WRLCK, 5, 10)))?;
        fcntl_lock(&y, F_OFD_SETLK, &mut range(F_WRLCK, 10, 10))?;
        drop(rw(&d.join("a"))?);
        fails_any(&AGAIN, fcntl_lock(&y, F_OFD_SETLK, &mut range(F_WRLCK, 5, 1)))?;
        drop(x);
        fcntl_lock(&y, F_OFD_SETLKW, &mut range(F_WRLCK, 0, 10))?;
    }
}
