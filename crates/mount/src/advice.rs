//! What programs say about their reading. A kernel keeps posix_fadvise(2) to itself, so it comes as an ioctl, from
//! programs that know it or from `stria-preload`, a library that is preloaded.
use std::rc::Rc;

use client::{Client, Hint, Missed};
use fuse::abi::{IOCTL_DIR, IoctlIn};
use fuse::{Op, Replied, Request};
use types::Extent;
use types::advise::{
    ADVISE, Advise, BACKGROUND, DONTNEED, LEVEL, LOCK_AHEAD_READ, LOCK_AHEAD_WRITE, LOCK_EXPAND, LOCK_NO_EXPAND,
    WILLREAD,
};
use wire::ost::Advice;

use crate::killed::Caller;
use crate::{StriaFs, errno};

fn hint(said: &Advise) -> Option<Hint> {
    match said.advice {
        libc::POSIX_FADV_NORMAL | libc::POSIX_FADV_NOREUSE => Some(Hint::Normal),
        libc::POSIX_FADV_SEQUENTIAL => Some(Hint::Sequential),
        libc::POSIX_FADV_RANDOM => Some(Hint::Random),
        libc::POSIX_FADV_WILLNEED => Some(Hint::WillNeed),
        libc::POSIX_FADV_DONTNEED => Some(Hint::DontNeed),
        _ => None,
    }
}

/// What the servers are told, and whether the call does not wait.
fn for_servers(said: &Advise) -> Option<(Advice, bool)> {
    let background = said.advice & BACKGROUND != 0;
    match said.advice & !BACKGROUND {
        WILLREAD => Some((Advice::WillRead, background)),
        DONTNEED if !background => Some((Advice::DontNeed, false)),
        level if !background => {
            let level = usize::try_from(level.checked_sub(LEVEL)?).ok()?;
            Advice::LEVELS.get(level).map(|(advice, _)| (*advice, true))
        }
        _ => None,
    }
}

/// What is said about locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OfLocks {
    /// They are taken now, for writes or for reads.
    Ahead { writes: bool, background: bool },
    /// They are no wider than they must be from now on, or may be.
    NoExpand(bool),
}

fn of_locks(said: &Advise) -> Option<OfLocks> {
    let background = said.advice & BACKGROUND != 0;
    match said.advice & !BACKGROUND {
        LOCK_AHEAD_READ => Some(OfLocks::Ahead { writes: false, background }),
        LOCK_AHEAD_WRITE => Some(OfLocks::Ahead { writes: true, background }),
        LOCK_NO_EXPAND if !background => Some(OfLocks::NoExpand(true)),
        LOCK_EXPAND if !background => Some(OfLocks::NoExpand(false)),
        _ => None,
    }
}

fn extent(said: &Advise) -> Extent {
    if said.len == 0 { Extent::from(said.offset) } else { Extent::at(said.offset, said.len) }
}

impl StriaFs {
    pub(crate) async fn advice(self: &Rc<Self>, req: Request<'_>) -> Replied {
        if let Some(arg) = StriaFs::asks_for_offer(&req) {
            return self.offer(req, &arg);
        }
        let Op::Ioctl { arg, data } = req.op() else { return req.err(libc::ENOSYS) };
        let mut caller = Caller::of(&req);
        match self.advised(&mut caller, &arg, data).await {
            Ok(()) => req.into_reply().ioctl(0, &[]),
            Err(errno) => req.err(errno),
        }
    }

    async fn advised(self: &Rc<Self>, caller: &mut Caller, arg: &IoctlIn, data: &[u8]) -> Result<(), i32> {
        if arg.cmd != ADVISE || arg.flags & IOCTL_DIR != 0 {
            return Err(libc::ENOTTY);
        }
        let file = self.client.meta().file(arg.fh).ok_or(libc::EBADF)?;
        let said = Advise::parse(data).ok_or(libc::EINVAL)?;
        match of_locks(&said) {
            Some(OfLocks::NoExpand(on)) => {
                file.set_no_expand(on);
                return Ok(());
            }
            Some(OfLocks::Ahead { writes, background }) => {
                let range = extent(&said);
                if background {
                    self.client.data().lock_ahead_behind(file, writes, range);
                    return Ok(());
                }
                let ask = |c: Rc<Client>| async move { c.data().lock_ahead(&file, writes, range).await };
                return self.ask(caller, ask).await.map_err(errno);
            }
            None => {}
        }
        if let Some(what) = for_servers(&said) {
            if file.flags() & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32 {
                return Err(libc::EBADF);
            }
            let cred = file.cred().clone();
            let range = extent(&said);
            let told = self.carry_out(caller, Missed::default(), |c| async move {
                c.advise_servers(&cred, file.inode(), what, range).await
            });
            return told.await.map_err(errno);
        }
        let hint = hint(&said).ok_or(libc::EINVAL)?;
        let advised = self.ask(caller, |c| async move { c.data().advise(&file, hint, extent(&said)).await });
        advised.await.map_err(errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read_and_nothing_else_is_taken() {
        let said = Advise { offset: 1 << 40, len: 7, advice: libc::POSIX_FADV_WILLNEED };
        assert_eq!(Advise::parse(&said.bytes()), Some(said));
        assert_eq!((hint(&said), extent(&said)), (Some(Hint::WillNeed), Extent::at(1 << 40, 7)));
        let mut bytes = said.bytes();
        bytes[23] = 1;
        assert_eq!(Advise::parse(&bytes), None);
        assert_eq!(Advise::parse(&bytes[..23]), None);
        assert_eq!(hint(&Advise { advice: 99, ..said }), None);
        let told = |advice| for_servers(&Advise { advice, ..said });
        assert_eq!((told(LEVEL + 4), told(LEVEL)), (Some((Advice::High, true)), Some((Advice::None, true))));
        assert_eq!(told(WILLREAD | BACKGROUND), Some((Advice::WillRead, true)));
        assert_eq!(
            (told(WILLREAD), told(DONTNEED)),
            (Some((Advice::WillRead, false)), Some((Advice::DontNeed, false)))
        );
        let locks = |advice| of_locks(&Advise { advice, ..said });
        assert_eq!(locks(LOCK_AHEAD_WRITE), Some(OfLocks::Ahead { writes: true, background: false }));
        assert_eq!(locks(LOCK_AHEAD_READ | BACKGROUND), Some(OfLocks::Ahead { writes: false, background: true }));
        assert_eq!((locks(LOCK_EXPAND), locks(LOCK_EXPAND | BACKGROUND)), (Some(OfLocks::NoExpand(false)), None));
        assert_eq!((locks(WILLREAD), locks(LEVEL + 11)), (None, None));
        for unknown in [
            0,
            3,
            4,
            99,
            LEVEL + 7,
            LEVEL + 11,
            LEVEL - 1,
            -1,
            i32::MIN,
            i32::MAX,
            LEVEL | BACKGROUND,
            DONTNEED | BACKGROUND,
        ] {
            assert_eq!(told(unknown), None, "{unknown}");
        }
        assert_eq!(extent(&Advise { offset: u64::MAX, ..said }), Extent::new(u64::MAX, u64::MAX));
        assert_eq!(extent(&Advise { len: 0, ..said }), Extent::from(1 << 40));
    }
}
