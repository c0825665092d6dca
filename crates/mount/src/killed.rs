//! Callers that are killed while their request waits for a server or a lock.
//!
//! A kernel tells of the first signal of a caller, whatever it is, and then waits for the answer, SIGKILL or not. I/O of regular
//! files does not fail for a mere SIGALRM; so the caller's state is looked at (`/proc/PID/status`, by a worker: see [`crate::cred`]) until it
//! is being killed, and only then is the request answered, with EINTR, which no program sees. What only asked is given up then. A change goes on
//! without its caller: what is half done at servers comes to its end, and what it would have given to the caller is given back
//! ([`Client::carry_out`], which also says how many may); and its kernel, which was told that the call was interrupted, is told to forget what
//! it has changed ([`client::Missed`]).
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use client::{Begins, Client, Missed};
use fuse::{Interrupted, Request};
use rt::Rt;
use rt::sync::race;
use types::{Duration, FsError};

use crate::StriaFs;

/// How often a caller that got a signal is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often a caller of whose signals nothing was heard is looked at: a signal that comes before a request is on its way
/// is not always told, on rings.
const LOOK_UNTOLD_EVERY: Duration = Duration::from_secs(1);

/// Who waits for the answer to a request. One per request: a kernel tells of a signal once.
pub(crate) struct Caller {
    pid: u32,
    signal: Interrupted,
}

impl Caller {
    pub(crate) fn of(req: &Request<'_>) -> Caller {
        Caller { pid: req.pid(), signal: req.interrupted() }
    }
    /// Completes when the caller is being killed; `on_signal` is called at its first signal of any kind.
    /// A caller that cannot be seen (another process name space) counts as being killed once it got a signal: a wait
    /// without an end would be worse than an EINTR.
    async fn killed(&mut self, rt: &Rt, is_dying: IsDying, on_signal: impl FnOnce()) {
        let pid = self.pid;
        let look = async || rt.offload(move || is_dying(pid)).await;
        while race(&mut self.signal, rt.sleep(LOOK_UNTOLD_EVERY)).await.is_err() {
            if look().await == Some(true) {
                break;
            }
        }
        on_signal();
        while look().await == Some(false) {
            rt.sleep(LOOK_EVERY).await;
        }
    }
}

/// Whether a thread is being killed; `None` when it cannot be seen.
pub(crate) type IsDying = fn(u32) -> Option<bool>;

/// [`IsDying`] as the kernel's process table tells.
pub(crate) fn is_dying(pid: u32) -> Option<bool> {
    std::fs::read_to_string(format!("/proc/{pid}/status")).ok().map(|status| kill_pends(&status))
}

fn kill_pends(status: &str) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let pending = |field: &str| {
        let mask = status.lines().find_map(|l| l.strip_prefix(field))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    ["SigPnd:", "ShdPnd:"].into_iter().any(|f| pending(f).is_some_and(|mask| mask & KILL != 0))
}

impl StriaFs {
    /// How it is found out that a caller is being killed; for kernels whose callers are no processes of this machine.
    pub fn judge_callers(&self, is_dying: fn(u32) -> Option<bool>) {
        self.is_dying.set(is_dying);
    }

    /// Asks for something that changes nothing, or of which a part is as good as all. When its caller is killed meanwhile it is given up,
    /// and the answer is EINTR.
    pub(crate) async fn ask<T, F>(&self, caller: &mut Caller, op: impl FnOnce(Rc<Client>) -> F) -> Result<T, FsError>
    where
        F: Future<Output = Result<T, FsError>>,
    {
        self.unless_killed(caller, Box::pin(op(self.client.clone()))).await
    }

    /// Goes on with `asked` unless its caller is killed meanwhile: then the answer is EINTR.
    pub(crate) async fn unless_killed<T>(
        &self,
        caller: &mut Caller,
        asked: impl Future<Output = Result<T, FsError>>,
    ) -> Result<T, FsError> {
        let killed = caller.killed(self.client.rt(), self.is_dying.get(), || ());
        race(asked, killed).await.unwrap_or(Err(FsError::Interrupted))
    }

    /// Carries a change out. When its caller is killed meanwhile it goes on alone, and the answer is EINTR; `missed` is what it changes then
    /// behind the kernel's back.
    pub(crate) async fn carry_out<T: 'static, F>(
        &self,
        caller: &mut Caller,
        missed: Missed,
        op: impl FnOnce(Rc<Client>) -> F,
    ) -> Result<T, FsError>
    where
        F: Future<Output = Result<T, FsError>> + 'static,
    {
        self.carry_out_or(caller, Begins::InTurn, missed, op, |_, _| (), || ()).await
    }

    /// The same; `begins` says when ([`Begins::NowOrNever`] is a cut, of which the kernel hears also when it fails), `undo` gets what the
    /// change brought when nobody is there to take it, and `on_signal` is called at the caller's first signal.
    pub(crate) async fn carry_out_or<T: 'static, F>(
        &self,
        caller: &mut Caller,
        begins: Begins,
        missed: Missed,
        op: impl FnOnce(Rc<Client>) -> F,
        undo: impl FnOnce(Rc<Client>, T) + 'static,
        on_signal: impl FnOnce(),
    ) -> Result<T, FsError>
    where
        F: Future<Output = Result<T, FsError>> + 'static,
    {
        let (rt, goes_alone) = (self.client.rt(), Rc::new(Cell::new(false)));
        let is_alone = goes_alone.clone();
        let change = move |c: Rc<Client>| {
            let work = op(c.clone());
            async move {
                let done = work.await;
                if is_alone.get() {
                    c.meta().kernel_missed(missed).await;
                } else if done.is_err() && begins == Begins::NowOrNever {
                    // It may be cut all the same. Nobody waits for the kernel here, which writes no page back before the answer.
                    c.rt().clone().spawn(async move { c.meta().kernel_missed(missed).await });
                }
                done
            }
        };
        let killed = async {
            caller.killed(rt, self.is_dying.get(), on_signal).await;
            goes_alone.set(true);
        };
        self.client.carry_out(begins, change, undo, killed).await
    }
}

/// What [`StriaFs::judge_callers`] sets.
pub(crate) type Judge = Cell<IsDying>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pending_sigkill_makes_a_caller_a_dying_one() {
        let status = |own: u64, shared: u64| format!("Name:\tx\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n");
        assert!(kill_pends(&status(1 << 8, 0)) && kill_pends(&status(0, 1 << 8 | 1)));
        assert!(!kill_pends(&status(1 << 13, 1 << 16)) && !kill_pends("SigPnd:\tx\n") && !kill_pends(""));
        assert_eq!((is_dying(std::process::id()), is_dying(0)), (Some(false), None));
    }
}
