//! Changes for programs that may be killed while they wait.
//!
//! A change that has begun comes to its end whoever waits for it ([`crate::goes_on`]), however long a server is away, and nobody hangs
//! beyond SIGKILL. Both together leave something behind for each program that is killed. So that this has a limit, a change is held up
//! where it can still be given up for nothing: before its first step. It begins when fewer than so many go on alone.
//!
//! What goes on alone waits for servers, and for locks that a callback brings. So nothing may be held meanwhile that a callback waits for.
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

use rt::sync::race;
use types::FsError;

use crate::client::Client;
use crate::goes_on::goes_on_or;

/// When a change of a program begins while as many go on alone as may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begins {
    /// When one of those has ended.
    InTurn,
    /// Not at all: its program's kernel holds what lock callbacks may wait for.
    NowOrNever,
    /// All the same: it gives something back.
    Always,
}

impl Client {
    /// Carries a change out for a program until that is `killed`. From then on a change that has begun goes on alone, and `undo` gets what it
    /// brings; one that has not never does.
    ///
    /// Cancel: goes on by itself, if it has begun.
    ///
    /// # Errors
    /// EINTR: the program was killed. EAGAIN: [`Begins::NowOrNever`], and as many go on alone as may. Else what the change answers.
    pub async fn carry_out<T: 'static, F>(
        self: &Rc<Self>,
        begins: Begins,
        change: impl FnOnce(Rc<Client>) -> F,
        undo: impl FnOnce(Rc<Client>, T) + 'static,
        killed: impl Future<Output = ()>,
    ) -> Result<T, FsError>
    where
        F: Future<Output = Result<T, FsError>> + 'static,
    {
        let (alone, mut killed) = (self.sessions.alone(), pin!(killed));
        if begins != Begins::Always && !alone.admits() {
            if begins == Begins::NowOrNever {
                return Err(FsError::WouldBlock);
            }
            race(alone.room(), killed.as_mut()).await.map_err(|()| FsError::Interrupted)?;
        }
        let client = self.clone();
        let undo = move |done: Result<T, FsError>| {
            if let Ok(brought) = done {
                undo(client, brought);
            }
        };
        let done = race(goes_on_or(alone, change(self.clone()), undo), killed).await;
        done.unwrap_or(Err(FsError::Interrupted))
    }
}
