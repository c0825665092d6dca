//! A metadata server: its target, which is started again when its store failed and the medium is well again, behind a listener
//! that stays.
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::{Rc, Weak};

use mds::kv::KvError;
use mds::{Mds, MdsConfig, MetaKv};
use ptlrpc::{ClusterKey, Server};
use rt::sync::Event;
use rt::{Group, LocalFuture, Nid, Rt};
use types::{ClientId, Duration, FsError};

use crate::reopen::{Failure, Seat, keep};
use crate::{RoleError, server_config};

/// That another server has taken a store over, and why that is known.
#[derive(Default)]
struct Replaced {
    why: RefCell<Option<String>>,
    said: Event,
}

/// A running metadata server.
pub struct MdsRole {
    target: String,
    current: Rc<RefCell<Option<Rc<Mds>>>>,
    replaced: Rc<Replaced>,
    /// Its listener and sessions.
    pub server: Rc<Server>,
    /// Where clients reach it.
    pub nid: Nid,
}

impl MdsRole {
    /// The node. `None` while its store, which failed, is being opened again.
    #[must_use]
    pub fn mds(&self) -> Option<Rc<Mds>> {
        self.current.borrow().clone()
    }
    /// Why it is not ready to serve, if it is not.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        match (self.mds(), &*self.replaced.why.borrow()) {
            (Some(mds), _) => mds.not_ready(),
            (None, Some(why)) => Some(format!("{}: {why}", self.target)),
            (None, None) => Some(format!("{}: its store failed and is being opened again", self.target)),
        }
    }
    /// Whether another server has taken its store over, as far as it knows.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.replaced.why.borrow().is_some()
    }
    /// Waits until another server has taken its store over; says how that is known. It answers nothing any more then: a server that is
    /// started anew waits for its turn.
    pub async fn replaced(&self) -> String {
        loop {
            if let Some(why) = &*self.replaced.why.borrow() {
                return why.clone();
            }
            self.replaced.said.wait().await;
        }
    }
    /// Stops answering and background work; what is not committed yet is committed first.
    ///
    /// # Errors
    /// `Io` when the store failed; not when another server has taken it over, which has everything that was promised.
    pub async fn stop(&self) -> Result<(), FsError> {
        self.server.stop();
        match self.mds() {
            Some(mds) => mds.stop().await,
            None if self.replaced.why.borrow().is_some() => Ok(()),
            None => Err(FsError::Io),
        }
    }
    /// Stops at once, as a crash does: nothing more is committed.
    pub fn halt(&self) {
        self.server.stop();
        self.mds().into_iter().for_each(|mds| mds.halt());
    }
}

/// Opens a metadata store, with tasks in the group behind the handle that it is given.
pub type OpenMdt = Rc<dyn Fn(Rt) -> LocalFuture<Result<Rc<dyn MetaKv>, RoleError>>>;

/// Looks whether the store can be opened as it is; why not: a sentence.
pub type LookMdt = Rc<dyn Fn(Rt) -> LocalFuture<Result<(), String>>>;

/// The store of a metadata target.
pub enum MdtStore {
    /// It is open, and cannot be opened again.
    Open(Rc<dyn MetaKv>),
    /// It is opened by `open`, now and whenever it failed and its medium is well again.
    Of {
        /// Directories on the device of its file, in which a small file named `probe` may be made.
        dirs: Vec<PathBuf>,
        /// What opens it.
        open: OpenMdt,
    },
    /// The same in a database, whose medium `look` asks for.
    InDatabase {
        /// What looks at it.
        look: LookMdt,
        /// What opens it.
        open: OpenMdt,
    },
}

impl MdtStore {
    /// Opens it, with tasks in the group behind `rt` or in one of its own; what keeps it, unless it stays failed when it fails.
    async fn open(self, rt: &Rt) -> Result<(Rt, Rc<dyn MetaKv>, Option<Kept>), RoleError> {
        let (dirs, look, open) = match self {
            MdtStore::Open(kv) => return Ok((rt.clone(), kv, None)),
            MdtStore::Of { dirs, open } => (dirs, None, open),
            MdtStore::InDatabase { look, open } => (Vec::new(), Some(look), open),
        };
        let (inner, group) = rt.group();
        let kv = open(inner.clone()).await?;
        Ok((inner, kv, Some(Kept { dirs, look, open, group })))
    }
}

/// What a store is opened again by.
struct Kept {
    dirs: Vec<PathBuf>,
    look: Option<LookMdt>,
    open: OpenMdt,
    group: Group,
}

/// What starts a target behind a server.
struct Start {
    server: Weak<Server>,
    current: Rc<RefCell<Option<Rc<Mds>>>>,
    replaced: Rc<Replaced>,
    config: MdsConfig,
}

impl Start {
    /// Starts it over an open store, with tasks in the group behind `rt`; gives its name.
    async fn start(&self, rt: Rt, kv: Rc<dyn MetaKv>, times: u64) -> Result<String, String> {
        let mds = Mds::start(rt.clone(), self.config.clone(), kv).await.map_err(|e| format!("metadata target: {e}"))?;
        let Some(server) = self.server.upgrade().filter(|server| !server.is_stopping()) else {
            mds.halt();
            return Err("its server ends".into());
        };
        let (weak, target) = (self.server.clone(), ptlrpc::Service::target(&*mds));
        let name = target.clone();
        mds.set_evictor(Rc::new(move |client: ClientId| -> LocalFuture<()> {
            let (weak, target) = (weak.clone(), target.clone());
            Box::pin(async move {
                if let Some(server) = weak.upgrade() {
                    server.evict(&target, client).await;
                }
            })
        }));
        mds.note_reopened(times);
        server.add_in(&rt, mds.clone());
        *self.current.borrow_mut() = Some(mds);
        Ok(name)
    }
}

struct MdtSeat {
    name: String,
    start: Rc<Start>,
    look: Option<LookMdt>,
    open: OpenMdt,
}

impl MdtSeat {
    fn mds(&self) -> Option<Rc<Mds>> {
        self.start.current.borrow().clone()
    }
}

impl Seat for MdtSeat {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn is_over(&self) -> bool {
        self.start.server.upgrade().is_none_or(|server| server.is_stopping())
    }
    fn failure(&self) -> Option<Failure> {
        match self.mds()?.store().failure()? {
            KvError::Conflict { .. } => None,
            KvError::Corrupt { .. } => Some(Failure::Damage),
            KvError::Fenced(why) => Some(Failure::Replaced(why)),
            e => Some(Failure::Medium(e.to_string())),
        }
    }
    fn note_mending(&self, text: &str) {
        self.mds().into_iter().for_each(|mds| mds.note_mending(text));
    }
    fn looks_well(&self, rt: &Rt) -> LocalFuture<Result<(), String>> {
        match &self.look {
            Some(look) => look(rt.clone()),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }
    fn take_out(&self) {
        if let Some(server) = self.start.server.upgrade() {
            server.take_out(&self.name);
        }
        let mds = self.start.current.borrow_mut().take();
        mds.into_iter().for_each(|mds| mds.halt());
    }
    fn note_replaced(&self, why: &str) {
        *self.start.replaced.why.borrow_mut() = Some(why.into());
        self.start.replaced.said.notify();
    }
    fn start(&self, rt: Rt, times: u64) -> LocalFuture<Result<(), String>> {
        let (opened, start) = ((self.open)(rt.clone()), self.start.clone());
        Box::pin(async move {
            let kv = opened.await.map_err(|e| e.to_string())?;
            start.start(rt, kv, times).await.map(drop)
        })
    }
}

/// Starts the metadata server of an open store, listening at `nid`. `key`, `nid` and address in `config` are filled in
/// here. A store that fails stays failed.
///
/// # Errors
/// [`RoleError`]: not formatted, another server has the store, the address is taken.
pub async fn start_mds_on(
    rt: &Rt,
    kv: Rc<dyn MetaKv>,
    nid: &Nid,
    key: &ClusterKey,
    recovery_window: Duration,
    config: MdsConfig,
) -> Result<MdsRole, RoleError> {
    start_mds_of(rt, MdtStore::Open(kv), nid, key, recovery_window, config).await
}

/// The same over a store that is opened here, and opened again when it failed and its medium is well again.
///
/// # Errors
/// [`RoleError`]: it cannot be opened; as [`start_mds_on`].
pub async fn start_mds_of(
    rt: &Rt,
    store: MdtStore,
    nid: &Nid,
    key: &ClusterKey,
    recovery_window: Duration,
    config: MdsConfig,
) -> Result<MdsRole, RoleError> {
    let server = Server::new(rt.clone(), server_config(rt, key, recovery_window));
    let (inner, kv, kept) = store.open(rt).await?;
    // The map that clients get names this address, so a port of the system's choice is bound first.
    let bound = server.listen(nid).map_err(|e| RoleError(e.to_string()))?;
    let config = MdsConfig { nid: bound.to_string(), key: key.clone(), ..config };
    let current = Rc::new(RefCell::new(None));
    let replaced = Rc::<Replaced>::default();
    let start =
        Rc::new(Start { server: Rc::downgrade(&server), current: current.clone(), replaced: replaced.clone(), config });
    let target = start.start(inner, kv, 0).await.map_err(RoleError)?;
    if let Some(Kept { dirs, look, open, group }) = kept {
        let seat = MdtSeat { name: target.clone(), start, look, open };
        rt.spawn(keep(rt.clone(), Rc::new(seat), dirs, group));
    }
    Ok(MdsRole { target, current, replaced, server, nid: bound })
}
