//! The roles of a cluster, started inside a running shard over any world: metadata server, object storage server,
//! client. What a role stands on, and where that lives, its caller decides; a store that failed is opened again ([`reopen`]).
mod mds_role;
pub mod reopen;

pub use mds_role::{LookMdt, MdsRole, MdtStore, OpenMdt, start_mds_of, start_mds_on};
pub use reopen::{OstStore, TuneOst};

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use client::{Client, ClientConfig};
use oss::store::{ObjectStore, StoreIdentity};
use oss::{Oss, Ost, OstConfig};
use ptlrpc::{Callbacks, ClusterKey, Import, ImportConfig, Server, ServerConfig};
use rt::sync::Event;
use rt::{LocalFuture, Nid, Rt};
use types::{ClientId, Duration, FsError, ObjectId};
use wire::Op;
use wire::connect::{ConfigReply, OstEntry, RefusedOst, RegisterRequest};

/// Why a role could not start: a sentence for the user.
#[derive(Debug)]
pub struct RoleError(pub String);
impl std::fmt::Display for RoleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for RoleError {}

/// A running object storage server.
pub struct OssRole {
    /// The node.
    pub oss: Rc<Oss>,
    /// Its listener and sessions.
    pub server: Rc<Server>,
    /// Where clients reach it.
    pub nid: Nid,
    /// Why the metadata server will not have one of its targets.
    pub refusal: Rc<Refusal>,
}

/// Why a server is of no use, once that is known.
#[derive(Default)]
pub struct Refusal {
    why: RefCell<Option<String>>,
    told: Event,
}

impl Refusal {
    fn tell(&self, why: String) {
        tracing::error!("{why}");
        *self.why.borrow_mut() = Some(why);
        self.told.notify();
    }
    /// Waits until there is one.
    pub async fn wait(&self) -> String {
        loop {
            let told = self.told.wait();
            if let Some(why) = self.why.borrow().clone() {
                return why;
            }
            told.await;
        }
    }
}

/// Settings that both kinds of server share.
fn server_config(rt: &Rt, key: &ClusterKey, recovery_window: Duration) -> ServerConfig {
    ServerConfig { key: key.clone(), recovery_window, client_timeout: Duration::from_secs(60), boot: rt.random() }
}

/// Starts the targets of the given stores, which nobody can reach yet.
///
/// # Errors
/// [`RoleError`]: a policy name is unknown.
pub fn make_oss(
    rt: &Rt,
    stores: Vec<Rc<dyn ObjectStore>>,
    key: &ClusterKey,
    recovery_window: Duration,
    config: &OstConfig,
) -> Result<Rc<Oss>, RoleError> {
    let oss = empty_oss(rt, key, recovery_window, config)?;
    for store in stores {
        oss.add(store, config.clone()).map_err(RoleError)?;
    }
    Ok(oss)
}

fn empty_oss(rt: &Rt, key: &ClusterKey, recovery_window: Duration, config: &OstConfig) -> Result<Rc<Oss>, RoleError> {
    let server = Server::new(rt.clone(), server_config(rt, key, recovery_window));
    Oss::new(rt.clone(), server, config).map(Rc::new).map_err(RoleError)
}

/// The same with stores that are opened again when they failed and their medium is well again. `tune` sets what can only be set on a
/// target that runs.
///
/// # Errors
/// [`RoleError`]: a policy name is unknown, or what `tune` refuses.
pub fn make_oss_of(
    rt: &Rt,
    stores: Vec<OstStore>,
    key: &ClusterKey,
    recovery_window: Duration,
    config: &OstConfig,
    tune: &TuneOst,
) -> Result<Rc<Oss>, RoleError> {
    let oss = empty_oss(rt, key, recovery_window, config)?;
    reopen::seat(rt, &oss, stores, config, tune)?;
    Ok(oss)
}

/// Announces the targets of a server, which clients reach at `nid`, to the metadata server (in the background: it may not
/// be up yet), and each again whose store is opened again, or with which no metadata server deals any more.
#[must_use]
pub fn announce(rt: &Rt, oss: &Rc<Oss>, mds: &Nid, key: &ClusterKey, nid: &Nid) -> Rc<Refusal> {
    let refusal = Rc::new(Refusal::default());
    let (weak, told) = (Rc::downgrade(oss), refusal.clone());
    let (own, mds, key, nid) = (rt.clone(), mds.clone(), key.clone(), nid.clone());
    oss.announce_by(Rc::new(move |ost: &Rc<Ost>| {
        let (one, oss, refusal) = (Announced::new(&own, ost, &mds, &key, &nid), weak.clone(), told.clone());
        own.spawn(async move {
            match one.register().await {
                Ok(None) => one.stay_known(&oss).await,
                Ok(Some(refused)) => one.turn_out(&oss, &refused).await,
                Err(e) => refusal.tell(one.unwanted(e)),
            }
        });
    }));
    refusal
}

/// A target that the metadata server at `mds` is told of: clients reach it at `nid`.
struct Announced {
    rt: Rt,
    identity: StoreIdentity,
    /// It may be taken out meanwhile.
    ost: Weak<Ost>,
    mds: Nid,
    key: ClusterKey,
    nid: Nid,
    /// It was let in.
    is_known: Cell<bool>,
}

impl Announced {
    fn new(rt: &Rt, ost: &Rc<Ost>, mds: &Nid, key: &ClusterKey, nid: &Nid) -> Announced {
        let (rt, identity, ost) = (rt.clone(), ost.store().identity(), Rc::downgrade(ost));
        Announced {
            rt,
            identity,
            ost,
            mds: mds.clone(),
            key: key.clone(),
            nid: nid.clone(),
            is_known: Cell::new(false),
        }
    }

    /// Why the metadata server will not have it, for good.
    fn unwanted(&self, e: FsError) -> String {
        let (target, cluster, mds) = (self.identity.target(), self.identity.cluster, &self.mds);
        match e {
            FsError::Access => format!(
                "{target}: the metadata server at {mds} does not know our cluster key: check cluster.key_file on both sides"
            ),
            FsError::CrossDevice => format!(
                "{target}: its store belongs to cluster {cluster:016x}, the metadata server at {mds} to another: start it with its own metadata server (--mds), or format a new store"
            ),
            FsError::NotFound => format!(
                "{target}: it was removed from the cluster: start the server without it (--ost), or make a new OST ('stria ost add')"
            ),
            e => format!(
                "{target}: the metadata server at {mds} will not have it: {e}; its log tells why: another store has this index or name"
            ),
        }
    }

    /// Serves it no longer, for its store is an older copy. Its server goes on: it may have others, and who puts the right store in the place of
    /// this one need not start it again.
    async fn turn_out(&self, oss: &Weak<Oss>, refused: &RefusedOst) {
        let (Some(oss), Some(ost)) = (oss.upgrade(), self.ost.upgrade()) else { return };
        let target = self.identity.target();
        tracing::error!("{target} is not served: {}", String::from_utf8_lossy(&refused.why));
        oss.take_out(&target);
        if let Err(e) = ost.store().disown(refused.boot).await {
            tracing::warn!(target, "its store cannot be told that it is not let in: {e}");
        }
        // Whoever puts the right one in its place finds the place free.
        let _ = ost.close().await;
        oss.turn_out(&target);
    }

    /// Tells the metadata server, waiting for it as long as it takes. Why the store is an older copy, if that takes it for one.
    async fn register(&self) -> Result<Option<RefusedOst>, FsError> {
        let mut told = None;
        loop {
            match self.register_once().await {
                Err(e) if !is_refusal(e) => {
                    if told.replace(e) != Some(e) {
                        let (target, mds) = (self.identity.target(), &self.mds);
                        tracing::warn!(
                            target,
                            "the metadata server at {mds} cannot take it in now ({e}); it is asked again"
                        );
                    }
                    self.rt.sleep(REGISTER_AGAIN).await;
                }
                done => return done,
            }
        }
    }

    async fn register_once(&self) -> Result<Option<RefusedOst>, FsError> {
        let (identity, mds) = (&self.identity, &self.mds);
        let callbacks: Rc<dyn Callbacks> = Rc::new(Nobody);
        let import = Import::new(self.rt.clone(), visitor(&self.rt, mds, &self.key), Rc::downgrade(&callbacks));
        let mut told = false;
        while let Err(e) = import.ready(REGISTER_WAIT).await {
            if e != FsError::TimedOut {
                import.close().await;
                return Err(e);
            }
            if !std::mem::replace(&mut told, true) {
                let why = import.failure().unwrap_or_else(|| "no answer".into());
                tracing::warn!(
                    target = identity.target(),
                    "the metadata server at {mds} does not answer ({why}); waiting for it"
                );
            }
        }
        let reply = self.ask(&import).await;
        import.close().await;
        let Some((mark, reply)) = reply? else { return Ok(None) };
        Ok(reply.refused.into_iter().find(|r| mark != 0 && r.ost == identity.ost && r.mark == mark))
    }

    /// What the metadata server answers, and the mark that it was told. Nothing of one that was taken out meanwhile: it is not of use to anybody.
    async fn ask(&self, import: &Import) -> Result<Option<(u64, ConfigReply)>, FsError> {
        let Some(ost) = self.ost.upgrade() else { return Ok(None) };
        // Once the metadata server knows a mark it is asked for at every opening to come.
        let kept = ost.store().keep_mark();
        drop(ost);
        kept.await?;
        let Some(request) = self.ost.upgrade().map(|ost| self.question(&ost, self.is_known.get())) else {
            return Ok(None);
        };
        let mark = request.openings.last().map_or(0, |o| o.mark);
        let reply = import.ask(Op::Register, &request).await?;
        Ok(Some((mark, reply)))
    }

    /// Tells the metadata server again of a target that was let in, when none has had a session with it for a while: one that was put back from
    /// a copy of before the target came to the cluster does not know it. What it answers then is for the log: the target goes on as it is.
    async fn stay_known(&self, oss: &Weak<Oss>) {
        self.is_known.set(true);
        let (mut alone, mut told) = (0, String::new());
        loop {
            self.rt.sleep(ALONE_LOOK).await;
            let is_over = oss.upgrade().is_none_or(|oss| oss.server().is_stopping());
            let Some(ost) = self.ost.upgrade().filter(|_| !is_over) else { return };
            alone = if ost.has_metadata_server() { 0 } else { alone + 1 };
            drop(ost);
            if alone < ALONE_LOOKS {
                continue;
            }
            alone = 0;
            let why = match self.register().await {
                Ok(None) => String::new(),
                Ok(Some(refused)) => String::from_utf8_lossy(&refused.why).into_owned(),
                Err(e) => self.unwanted(e),
            };
            if !why.is_empty() && told != why {
                tracing::warn!(
                    target = self.identity.target(),
                    "it told the metadata server again that it is there: {why}"
                );
            }
            told = why;
        }
    }

    /// `is_known`: it was let in since it was opened, and may have done much.
    fn question(&self, ost: &Ost, is_known: bool) -> RegisterRequest {
        let identity = &self.identity;
        let entry = OstEntry {
            ost: identity.ost,
            nid: self.nid.to_string().as_str().into(),
            target: identity.target().as_str().into(),
            active: true,
            uuid: identity.uuid,
        };
        let mut openings = ost.store().openings().to_vec();
        if let Some(now) = openings.last_mut().filter(|_| is_known) {
            now.committed = ost.store().last_committed();
        }
        let last_object = ost.store().last_object(ObjectId::seq_of(identity.ost));
        RegisterRequest { entry, cluster: identity.cluster, openings, last_object }
    }
}

/// Starts an object storage server with the given stores behind one listener, and announces each to the metadata server.
///
/// # Errors
/// [`RoleError`]: a policy name is unknown, the address is taken.
pub fn start_oss(
    rt: &Rt,
    stores: Vec<Rc<dyn ObjectStore>>,
    nid: &Nid,
    mds: &Nid,
    key: &ClusterKey,
    recovery_window: Duration,
    config: &OstConfig,
) -> Result<OssRole, RoleError> {
    let oss = make_oss(rt, stores, key, recovery_window, config)?;
    serve_oss(rt, oss, nid, mds, key)
}

/// The same with targets of [`make_oss`].
///
/// # Errors
/// [`RoleError`]: the address is taken.
pub fn serve_oss(rt: &Rt, oss: Rc<Oss>, nid: &Nid, mds: &Nid, key: &ClusterKey) -> Result<OssRole, RoleError> {
    let server = oss.server().clone();
    let bound = server.listen(nid).map_err(|e| RoleError(e.to_string()))?;
    let refusal = announce(rt, &oss, mds, key, &bound);
    Ok(OssRole { oss, server, nid: bound, refusal })
}

/// How long a metadata server may be silent before that is told.
const REGISTER_WAIT: Duration = Duration::from_secs(5);
/// Pause before one is asked again whose store has failed, or is full.
const REGISTER_AGAIN: Duration = Duration::from_secs(1);
/// How often a target is looked at whether a metadata server deals with it.
const ALONE_LOOK: Duration = Duration::from_secs(5);
/// So many looks in a row that find none, and the metadata server is told again.
const ALONE_LOOKS: u32 = 3;

struct Nobody;
impl Callbacks for Nobody {
    fn on_callback(self: Rc<Self>, _op: Op, _body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(std::future::ready(Err(FsError::NotSupported)))
    }
}

/// Announces a target to the metadata server, waiting for it as long as it takes.
///
/// # Errors
/// What the metadata server answers: another cluster's, the index is another store's.
pub async fn register_ost(rt: &Rt, ost: &Rc<Ost>, mds: &Nid, key: &ClusterKey, nid: &Nid) -> Result<(), FsError> {
    let refused = Announced::new(rt, ost, mds, key, nid).register().await?;
    if refused.is_some() { Err(FsError::Stale) } else { Ok(()) }
}

/// Asks a metadata server something as another server does.
///
/// # Errors
/// What it answers; `TimedOut`: it does not answer within `patience`, with what is known of the reason in the log.
pub async fn ask_mds<Q: wire::Encode, R: wire::Decode>(
    rt: &Rt,
    (mds, key): (&Nid, &ClusterKey),
    op: Op,
    question: &Q,
    patience: Duration,
) -> Result<R, FsError> {
    let callbacks: Rc<dyn Callbacks> = Rc::new(Nobody);
    // A command does not know how the server was started.
    let key = key.clone().for_any_server();
    let import = Import::new(rt.clone(), visitor(rt, mds, &key), Rc::downgrade(&callbacks));
    let answer = match import.ready(patience).await {
        Ok(()) => rt.timeout(patience, import.ask(op, question)).await.unwrap_or(Err(FsError::TimedOut)),
        Err(e) => Err(e),
    };
    import.close().await;
    answer
}

/// A session at a metadata server that nobody waits for.
fn visitor(rt: &Rt, mds: &Nid, key: &ClusterKey) -> ImportConfig {
    ImportConfig {
        nid: mds.clone(),
        target: "*".into(),
        client: ClientId(rt.random()),
        key: key.clone(),
        recoverable: false,
        ping_interval: Duration::from_secs(10),
        place: 0,
    }
}

/// Whether a metadata server has said no for good; any other failure is its own, its store's or the network's, and passes.
const fn is_refusal(e: FsError) -> bool {
    use FsError::{Access, CrossDevice, Exists, Invalid, NotFound, NotPermitted};
    matches!(e, Access | CrossDevice | Exists | Invalid | NotFound | NotPermitted)
}

/// A client that waits for its servers. When nobody waits for it any more, or they do not come, its sessions end.
struct Joining(Option<Rc<Client>>);
impl Drop for Joining {
    fn drop(&mut self) {
        if let Some(client) = &self.0 {
            client.abandon();
        }
    }
}

/// Joins the cluster as a client, waiting until `osts` targets are in the map and connected.
///
/// # Errors
/// [`RoleError`] when that does not happen within `patience`.
pub async fn join(rt: &Rt, config: ClientConfig, osts: usize, patience: Duration) -> Result<Rc<Client>, RoleError> {
    let client = Client::join(rt.clone(), config, patience).await.map_err(|e| RoleError(e.to_string()))?;
    let mut joining = Joining(Some(client.clone()));
    let deadline = rt.now() + patience;
    loop {
        let full = client
            .osts()
            .all()
            .iter()
            .filter(|o| o.import().is_ok_and(|i| i.state() == ptlrpc::ImportState::Full))
            .count();
        // Those that are not let in are not waited for.
        let ready = full + client.osts().map().refused.len();
        if ready >= osts {
            joining.0 = None;
            return Ok(client);
        }
        if rt.now() >= deadline {
            return Err(RoleError(format!("{ready} of {osts} object storage targets answered within {patience:?}")));
        }
        rt.sleep(Duration::from_millis(20)).await;
        match client.osts().refresh_map().await {
            // It was evicted while it waited, and has another session soon.
            Ok(()) | Err(FsError::NotConnected) => {}
            Err(e) => return Err(RoleError(format!("cluster map: {e}"))),
        }
    }
}
