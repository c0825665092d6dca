//! What targets of these tests have in common of which nothing outlives its process: a name, and what they do with a request.
use std::rc::Rc;

use ptlrpc::{Callbacks, Export, Request, Service, SessionRecord};
use rt::LocalFuture;
use types::{ClientId, FsError, Transno};
use wire::Op;

/// What a target does.
pub trait Carries: 'static {
    /// Its name.
    const NAME: &'static str;
    /// Carries a request out and answers it.
    fn carry_out(self: Rc<Self>, request: Request) -> LocalFuture<()>;
    /// Transactions up to here are on stable storage.
    fn committed(&self) -> Transno {
        Transno(0)
    }
}

/// The target.
pub struct Plain<T>(pub Rc<T>);

impl<T: Carries> Service for Plain<T> {
    fn target(&self) -> String {
        T::NAME.into()
    }
    fn cluster(&self) -> u64 {
        7
    }
    fn uuid(&self) -> u64 {
        9
    }
    fn handle(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        self.0.clone().carry_out(request)
    }
    fn last_committed(&self, _: ClientId) -> Transno {
        self.0.committed()
    }
    fn sessions(&self) -> Vec<SessionRecord> {
        Vec::new()
    }
    fn session_opened(self: Rc<Self>, _: Rc<Export>, _: bool) -> LocalFuture<Result<(), FsError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn session_closed(self: Rc<Self>, _: ClientId, _: bool) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// A client that a server asks in vain.
pub struct Silent;

impl Callbacks for Silent {
    fn on_callback(self: Rc<Self>, _: Op, _: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(std::future::ready(Err(FsError::NotSupported)))
    }
}
