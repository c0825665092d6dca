//! A client's sessions with the servers of its cluster: who the client is, where its sessions come from, how long it waits.
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};

use ptlrpc::{AdaptiveTimeouts, Callbacks, ClusterKey, Import, ImportConfig, ImportState, SessionKey};
use rt::{Nid, Rt};
use types::{ClientId, Duration, FsError};
use wire::Op;
use wire::connect::ConfigReply;

use crate::goes_on::Alone;
use crate::jobs::{Jobs, Told};

/// How long a metadata server may be silent before whoever joins is told that it is waited for.
const QUIET_WAIT: Duration = Duration::from_secs(2);

/// Memory in which a client keeps what became of its requests of late: some 30,000; it is touched as it fills.
const TRACE_BYTES: u64 = 4 << 20;

/// Why a client could not join.
#[derive(Debug)]
pub struct JoinError(pub String);
impl std::fmt::Display for JoinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for JoinError {}

/// Nobody calls back.
struct Nobody;
impl Callbacks for Nobody {
    fn on_callback(self: Rc<Self>, _op: Op, _body: Vec<u8>) -> rt::LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(std::future::ready(Err(FsError::NotSupported)))
    }
}

/// A session that ends with this.
struct Visit(Rc<Import>);
impl Drop for Visit {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// See the module's head.
pub struct Sessions {
    rt: Rt,
    id: ClientId,
    cluster: ClusterKey,
    /// What the identities of sessions come from.
    key: SessionKey,
    mds: Nid,
    mdc: OnceCell<Rc<Import>>,
    imports: RefCell<Vec<Rc<Import>>>,
    timeouts: Cell<AdaptiveTimeouts>,
    closing: Cell<bool>,
    alone: Rc<Alone>,
    jobs: Rc<Jobs>,
    jobs_of_mdt: Rc<Told>,
    /// What became of requests of late.
    trace: Rc<RefCell<trace::Ring>>,
}

impl Sessions {
    /// Those of a client with an id, or (0) with one that is proved to be its own.
    pub(crate) fn new(rt: Rt, id: ClientId, cluster: ClusterKey, mds: Nid, jobs: Rc<Jobs>) -> Rc<Sessions> {
        let key = SessionKey::new(rt.secret_bytes());
        let id = if id.0 == 0 { key.client_id() } else { id };
        Rc::new(Sessions {
            alone: Alone::new(rt.clone()),
            rt,
            id,
            cluster,
            key,
            mds,
            mdc: OnceCell::new(),
            imports: RefCell::default(),
            timeouts: Cell::default(),
            closing: Cell::new(false),
            jobs,
            jobs_of_mdt: Rc::default(),
            trace: Rc::new(RefCell::new(trace::Ring::new(TRACE_BYTES))),
        })
    }

    fn import_config(&self, nid: Nid, target: &str) -> ImportConfig {
        ImportConfig {
            nid,
            target: target.into(),
            client: self.id,
            key: self.cluster.clone(),
            recoverable: true,
            ping_interval: Duration::from_secs(10),
            place: 0,
        }
    }

    /// The end of a session of this client at a target.
    pub(crate) fn import(&self, nid: Nid, target: &str, callbacks: Weak<dyn Callbacks>) -> Rc<Import> {
        let (config, key) = (self.import_config(nid, target), self.key.at(target));
        let import = Import::with_key(self.rt.clone(), config, callbacks, key);
        if self.id == self.key.client_id() {
            import.prove_id(&self.key);
        }
        import.set_timeouts(self.timeouts.get());
        import.trace_into(self.trace.clone(), trace::why::place_of(target));
        self.imports.borrow_mut().push(import.clone());
        import
    }

    /// What is known of the requests of late, for `OstTrace` asked of the client itself.
    ///
    /// # Errors
    /// As [`trace::told::answer`].
    pub fn answer_trace(&self, ask: &wire::ost::TraceRequest) -> Result<wire::ost::TraceReply, FsError> {
        let (now, wall, client) = (self.rt.now().0, self.rt.wall().0, self.id.0);
        let settings = format!("target=client-{client:016x}\nsource=client\nclock_ns={now}\nwall_ns={wall}\n");
        trace::told::answer(&self.trace.borrow(), ask, &settings)
    }

    /// Asks the metadata server for the cluster map, in a session of its own, so that its end is not the end of ours.
    pub(crate) async fn scout(&self, patience: Duration) -> Result<ConfigReply, JoinError> {
        let mds = &self.mds;
        let visitor = ClientId(self.rt.random());
        let visit = ImportConfig { recoverable: false, client: visitor, ..self.import_config(mds.clone(), "*") };
        let scout = Import::new(self.rt.clone(), visit, Weak::<Nobody>::new());
        let _visit = Visit(scout.clone());
        let mut found = scout.ready(patience.min(QUIET_WAIT)).await;
        if found == Err(FsError::TimedOut) && patience > QUIET_WAIT {
            let why = scout.failure().unwrap_or_else(|| "no answer".into());
            tracing::warn!("the metadata server at {mds} does not answer ({why}); trying for {patience:?} in all");
            found = scout.ready(patience.saturating_sub(QUIET_WAIT)).await;
        }
        found.map_err(|e| self.reason(&scout, patience, e))?;
        let map: ConfigReply = scout.ask(Op::Config, &()).await.map_err(|e| self.reason(&scout, patience, e))?;
        scout.close().await;
        Ok(map)
    }
    /// Ends every session without a word.
    pub(crate) fn abandon(&self) {
        self.close();
        let (mdc, imports) = (self.mdc.get(), self.imports.borrow().clone());
        imports.iter().filter(|i| mdc.is_none_or(|m| !Rc::ptr_eq(m, i))).chain(mdc).for_each(|import| import.abandon());
    }
    fn reason(&self, import: &Import, patience: Duration, e: FsError) -> JoinError {
        let why = import.failure().unwrap_or_else(|| e.to_string());
        let remedy = match e {
            FsError::TimedOut => {
                format!("; tried for {patience:?}: start the metadata server, or give the address at which it listens")
            }
            _ => String::new(),
        };
        JoinError(format!("cannot join the cluster at {}: {why}{remedy}", self.mds))
    }
    /// The session with the metadata target; once.
    pub(crate) fn join_mdt(&self, target: &str, callbacks: Weak<dyn Callbacks>) -> Rc<Import> {
        self.mdc.get_or_init(|| self.import(self.mds.clone(), target, callbacks)).clone()
    }
    /// Waits for that session.
    pub(crate) async fn mdt_ready(&self, patience: Duration) -> Result<(), JoinError> {
        let mdc = self.mdc();
        mdc.ready(patience).await.map_err(|e| self.reason(&mdc, patience, e))
    }

    pub(crate) fn rt(&self) -> &Rt {
        &self.rt
    }
    /// What goes on alone, for the programs that waited for it were killed.
    #[must_use]
    pub fn alone(&self) -> &Rc<Alone> {
        &self.alone
    }
    /// Identity in the cluster.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.id
    }
    /// The import of the metadata target.
    #[must_use]
    pub fn mdc(&self) -> Rc<Import> {
        self.mdc.get().cloned().expect("set when the client joined")
    }
    /// An answer, or none within that time; `None`: however long it takes.
    pub(crate) async fn in_time<T>(
        &self,
        within: Option<Duration>,
        asked: impl Future<Output = Result<T, FsError>>,
    ) -> Result<T, FsError> {
        let Some(within) = within else { return asked.await };
        self.rt.timeout(within, asked).await.unwrap_or(Err(FsError::TimedOut))
    }
    /// Bounds of adaptive timeouts towards all servers.
    #[must_use]
    pub fn timeouts(&self) -> AdaptiveTimeouts {
        self.timeouts.get()
    }
    /// Sets them.
    ///
    /// # Errors
    /// A sentence: the least is more than the most.
    pub fn set_timeouts(&self, timeouts: AdaptiveTimeouts) -> Result<(), String> {
        if timeouts.min > timeouts.max {
            return Err(format!(
                "at_min would be {} s and at_max {} s: at_min is at most at_max",
                timeouts.min.as_secs(),
                timeouts.max.as_secs()
            ));
        }
        self.timeouts.set(timeouts);
        self.imports.borrow().iter().for_each(|i| i.set_timeouts(timeouts));
        Ok(())
    }
    /// Whether OSTs let this client at no object whose capability it does not show.
    pub(crate) fn shows_capabilities(&self) -> bool {
        self.cluster.shows_capabilities()
    }
    /// Whether users are others at the servers than at this host, as its credential has it: then only the servers know what they may do.
    #[must_use]
    pub fn users_differ(&self) -> bool {
        self.cluster.limits().is_some_and(|l| l.changes_ids())
    }
    /// What this client's sessions come from. Whoever knows it may say one day that this client's process has ended.
    #[must_use]
    pub fn key(&self) -> &SessionKey {
        &self.key
    }
    /// Tells every server of the cluster that the process of `client`, whose sessions come from `sessions`, has ended: its
    /// locks and opens go, and no recovery waits for it. Waits for servers that are away; may be said again. Who finds out, and
    /// how, is its caller's business.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// `NotPermitted` when a server has a session of that id and not of that key, `Busy` when it sees that the process lives, `Io`
    /// when a target is out of service, `NotConnected` when this client leaves or was evicted meanwhile.
    pub async fn tell_gone(&self, client: ClientId, sessions: &SessionKey) -> Result<(), FsError> {
        let imports = self.imports.borrow().clone();
        let told: Vec<_> = imports
            .iter()
            .map(|import| async move { import.tell_gone(client, &sessions.at(import.target())).await })
            .collect();
        rt::sync::join_all(told).await.into_iter().fold(Ok(()), Result::and)
    }
    /// The client leaves: background work ends.
    pub(crate) fn close(&self) {
        self.closing.set(true);
    }
    /// Whether [`Sessions::close`] was called.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }
    /// Whether the client has left or is leaving.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.closing.get() || self.mdc().state() == ImportState::Closed
    }
    /// Why the client is not ready to serve programs, if it is not. An OST that is away fails its own files only.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        let mdc = self.mdc();
        if mdc.state() == ImportState::Full {
            return None;
        }
        let why = mdc.failure().map(|f| format!(" ({f})")).unwrap_or_default();
        Some(format!("{} at {}: {}{why}", mdc.target(), mdc.nid(), format!("{:?}", mdc.state()).to_lowercase()))
    }
    /// Jobs of the programs that use this client.
    #[must_use]
    pub fn jobs(&self) -> &Rc<Jobs> {
        &self.jobs
    }
    /// The number of a job's name; servers will be told the name.
    pub fn job_named(&self, name: &[u8]) -> u64 {
        let job = self.jobs.number(name);
        if job != 0 {
            self.jobs.seen(&self.mdc(), &self.jobs_of_mdt);
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_that_cannot_be_are_refused_and_a_client_that_closes_is_leaving() {
        let world = simworld::TestWorld::new(1, 1 << 20);
        let rt = world.rt();
        world.run(async move {
            let jobs = Jobs::new(rt.clone(), crate::JobRule::default());
            let nid = Nid::parse("127.0.0.1:7988").unwrap();
            let sessions = Sessions::new(rt, ClientId(7), ClusterKey::none(), nid, jobs);
            let (min, max) = (Duration::from_secs(3), Duration::from_secs(9));
            let wrong = AdaptiveTimeouts { min: max, max: min, ..sessions.timeouts() };
            assert!(sessions.set_timeouts(wrong).unwrap_err().contains("at_min would be 9 s and at_max 3 s"));
            assert_ne!(sessions.timeouts().min, max);
            sessions.join_mdt("MDT0000", Weak::<Nobody>::new());
            sessions.set_timeouts(AdaptiveTimeouts { min, max, ..sessions.timeouts() }).unwrap();
            assert_eq!((sessions.timeouts().min, sessions.timeouts().max), (min, max));
            assert!(sessions.not_ready().unwrap().starts_with("MDT0000 at "));
            assert!(!sessions.is_leaving());
            sessions.close();
            assert!(sessions.is_leaving() && sessions.is_closing());
        });
    }
}
