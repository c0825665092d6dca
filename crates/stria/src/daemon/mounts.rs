//! Mounted clients of a process: serving them, answering tools, and letting go in order.
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::Sender;

use client::Client;
use cluster::{MountRole, MountSpec};
use fuse::mount::MountError;
use rt::{LocalFuture, Nid, Rt};
use serde_json::json;
use types::{Duration, Instant};

use super::announce;
use super::children::Down;
use super::dir::ClusterDir;
use super::memory::{self, Roles};
use super::records::Records;
use super::servers::serve;
use super::up::refuse_shadowing;
use super::{keys, limits, notify, settings};
use crate::cli;
use crate::config::Config;
use crate::control::{self, Event, Events, Facts, Served, Shard, block_signals};
use crate::failure::{Failure, Outcome};
use crate::metrics::{Endpoint, Servers};
use crate::out::word;

/// How long programs may keep files open in a mount that was detached, before it is ended by force.
pub(super) const LINGER: Duration = Duration::from_secs(5);

/// How long a client may take to leave before a tool that asks is told what it waits for. Once that was told, a signal has it give up what is
/// not written out.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);
/// How long a tool may take to unmount a mount of which it has asked what its end waits for.
const UNMOUNTED_WITHIN: Duration = Duration::from_secs(60);
/// How long an answer may take to be written to a tool.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks whether a client leaves.
const LOOK: Duration = Duration::from_millis(100);

/// How long the daemon of an earlier mount may keep the name of the control socket.
const NAME_WAIT: Duration = Duration::from_secs(10);

struct Mounted {
    role: MountRole,
    shard: Rc<Shard>,
    socket: RefCell<Option<Served>>,
    over: Cell<bool>,
    /// When its client began to leave.
    leaving: Cell<Option<Instant>>,
    /// Somebody was told what its leaving waits for.
    told: Cell<bool>,
    left: Cell<bool>,
    /// What those after it know it by.
    records: Rc<Records>,
}

impl Mounted {
    /// Whether a client has had its time to leave.
    fn leaves_slowly(&self, rt: &Rt) -> bool {
        !self.left.get() && self.leaving.get().is_some_and(|since| rt.now().since(since) >= LEAVES_WITHIN)
    }

    /// What a client that leaves has not written out yet, and for which servers it waits: for somebody who is told that.
    async fn waits_for(&self) -> serde_json::Value {
        let client = &self.role.client;
        let imports = client.osts().all().into_iter().filter_map(|o| o.import_if_any());
        let away = std::iter::once(client.sessions().mdc())
            .chain(imports)
            .filter(|i| i.state() == ptlrpc::ImportState::Connecting && !i.is_out_of_service())
            .map(|i| {
                let why = i.failure().unwrap_or_else(|| "no answer".into());
                format!("{} at {} ({why})", i.target(), i.nid())
            });
        let mut waits: Vec<String> = away.collect();
        let unsettled = client.unsettled().to_string();
        waits.extend(self.shard.recoveries().await.iter().map(crate::status::recovery_line));
        self.told.set(true);
        json!({"unsettled": unsettled, "waits": waits.join(", ")})
    }
}

/// The mounts of this process.
pub struct Mounts {
    rt: Rt,
    events: Rc<Events>,
    all: Vec<Rc<Mounted>>,
    /// Where the metrics of the process are served.
    metrics: Option<SocketAddr>,
    /// The cluster's directory, if it is on this host.
    dir: Option<PathBuf>,
    /// Who serves OSTs that come later, if this process serves OSTs.
    growth: Option<Rc<dyn Growth>>,
}

/// Serves OSTs that come while the process runs, and serves no longer those that leave.
pub trait Growth {
    /// Serves an OST of the cluster's directory.
    fn serve(&self, ost: u16) -> LocalFuture<Outcome>;
    /// Ends that. One that is not served is no failure.
    fn end(&self, ost: u16) -> LocalFuture<Outcome>;
}

/// How long an OST may take to be in the cluster map and to answer.
const JOIN_WAIT: Duration = Duration::from_secs(30);

impl Mounts {
    /// None yet.
    #[must_use]
    pub fn new(rt: Rt, events: Rc<Events>, metrics: Option<&Endpoint>, dir: Option<&ClusterDir>) -> Mounts {
        // A relative path means something else to everybody.
        let dir = dir.and_then(|d| std::path::absolute(d.path()).ok());
        Mounts { rt, events, all: Vec::new(), metrics: metrics.map(Endpoint::address), dir, growth: None }
    }

    /// Says who serves OSTs that come later.
    pub fn grow_by(&mut self, growth: Rc<dyn Growth>) {
        self.growth = Some(growth);
    }

    /// Mounts a client.
    ///
    /// # Errors
    /// The mount point cannot be used. The client has left the cluster then.
    pub async fn add(
        &mut self,
        client: Rc<Client>,
        at: &Path,
        spec: &MountSpec,
        roles: &[&str],
        away: &[(u16, String)],
        down: Down,
    ) -> Result<(), Failure> {
        let place = self.all.len();
        let (role, serving) = match cluster::start_mount(client.clone(), at, spec) {
            Ok(started) => started,
            Err(e) => {
                client.leave().await;
                return Err(Failure::from(e.0));
            }
        };
        let records = Records::begin(&self.rt, &client);
        let facts = Facts {
            mount_point: role.mount.path().display().to_string(),
            transport: format!("{:?}", role.session.transport()).to_lowercase(),
            roles: roles.iter().map(ToString::to_string).collect(),
            away: away.to_vec(),
            down,
            metrics: self.metrics,
            dir: self.dir.as_ref().map(|d| d.display().to_string()),
        };
        let socket = match role.mount.connection() {
            Some(connection) => self.socket(connection.number(), place).await,
            None => None,
        };
        let shard = Shard::new(client, facts);
        self.all.push(Rc::new(Mounted {
            role,
            shard,
            socket: RefCell::new(socket),
            over: Cell::new(false),
            leaving: Cell::new(None),
            told: Cell::new(false),
            left: Cell::new(false),
            records,
        }));
        let events = self.events.sender();
        self.rt.spawn(async move {
            let failure = serving.await.err().map(|e| e.0);
            // The event loop may have ended already.
            let _ = events.send(Event::Unmounted { place, failure });
        });
        Ok(())
    }

    /// The control socket of a mount; waits for an earlier daemon to leave its name.
    async fn socket(&self, connection: u32, place: usize) -> Option<Served> {
        let deadline = self.rt.now() + NAME_WAIT;
        loop {
            match control::serve(connection, place, self.events.sender()) {
                Ok(served) => return Some(served),
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && self.rt.now() < deadline => {
                    self.rt.sleep(Duration::from_millis(10)).await;
                }
                Err(e) => {
                    tracing::error!("tools cannot ask this mount: {e}");
                    return None;
                }
            }
        }
    }

    /// Serves until every mount is unmounted, from outside or because a signal came. Clients have left then.
    ///
    /// # Errors
    /// A session that failed.
    pub async fn serve(&self, servers: Servers<'_>) -> Outcome {
        let mut outcome = Ok(());
        let mut signals = 0;
        while self.all.iter().any(|m| !m.left.get()) {
            match self.events.next(&self.rt).await {
                Event::Ask(ask) if ask.request["do"] == "end" => self.end(&ask),
                Event::Ask(ask) if ask.request["do"] == "leave" => self.tell_of_leaving(ask),
                Event::Ask(ask) if matches!(ask.request["do"].as_str(), Some("serve_ost" | "end_ost")) => {
                    self.grow(ask)
                }
                Event::Measure(asked) => {
                    let clients = self.all.iter().filter(|m| !m.over.get()).map(|m| m.role.client.clone());
                    self.rt.spawn(servers.answer(&clients.collect::<Vec<_>>(), asked));
                }
                Event::Ask(ask) => match self.all.get(ask.place).filter(|m| !m.over.get()) {
                    Some(m) => m.shard.take(ask),
                    None => tracing::debug!("asked about a mount that is gone"),
                },
                Event::Signal(signal) => {
                    notify::stopping();
                    signals += 1;
                    let force = signals > 1 || signal != libc::SIGINT;
                    for m in self.all.iter().filter(|m| !m.over.get()) {
                        self.rt.spawn(let_go(self.rt.clone(), m.clone(), force));
                    }
                    for m in self.all.iter().filter(|m| m.told.get() && !m.left.get()) {
                        tracing::error!("{}: what is not written out is given up", m.role.mount.path().display());
                        m.role.client.abandon();
                        m.left.set(true);
                    }
                }
                Event::Left { place } => self.all[place].left.set(true),
                Event::Refused(why) => tracing::error!("{why}"),
                Event::Unmounted { place, failure } => {
                    let m = &self.all[place];
                    m.over.set(true);
                    drop(m.socket.take());
                    m.leaving.set(Some(self.rt.now()));
                    self.rt.spawn(leave(self.rt.clone(), m.clone(), place, self.events.sender()));
                    if let Some(why) = failure {
                        outcome = Err(Failure::from(format!("mount {}: {why}", m.role.mount.path().display())));
                    }
                }
            }
        }
        outcome
    }

    /// A tool made the store of an OST, or has taken an OST out of the cluster.
    fn grow(&self, ask: control::Ask) {
        let serves = ask.request["do"] == "serve_ost";
        let ost = ask.request["ost"].as_u64().and_then(|n| u16::try_from(n).ok());
        let client = self.all.get(ask.place).map(|m| m.role.client.clone());
        let (Some(growth), Some(ost), Some(client)) = (self.growth.clone().filter(|_| ask.privileged), ost, client)
        else {
            let why = match ask.privileged {
                false => ("only root and the user who runs the daemon may do this", libc::EPERM),
                true => ("this process serves no OSTs", libc::ENOSYS),
            };
            // The tool may have gone.
            let _ = ask.answer.send(json!({"error": why.0, "errno": why.1}));
            return;
        };
        self.rt.spawn(async move {
            let mut done = if serves { growth.serve(ost).await } else { growth.end(ost).await };
            if serves && done.is_ok() && !client.osts().answers(types::OstIndex(ost), JOIN_WAIT).await {
                let why = format!(
                    "OST {ost} is served, and does not answer within {JOIN_WAIT:?}: 'stria status' and its log say more"
                );
                done = Err(Failure::with_errno(why, libc::ETIMEDOUT));
            }
            let answer = match done {
                Ok(()) => json!({}),
                Err(e) => json!({"error": e.to_string(), "errno": e.code()}),
            };
            let _ = ask.answer.send(answer);
        });
    }

    /// A tool that unmounted this mount wants it to end in other mount namespaces, too.
    fn end(&self, ask: &control::Ask) {
        let mounted = self.all.get(ask.place).filter(|m| !m.over.get());
        let answer = match mounted {
            _ if !ask.privileged => {
                json!({"error": "only root and the user who runs the daemon may do this", "errno": libc::EPERM})
            }
            Some(m) => {
                self.rt.spawn(let_go(self.rt.clone(), m.clone(), true));
                json!({})
            }
            None => json!({}),
        };
        // The tool may have gone.
        let _ = ask.answer.send(answer);
    }

    /// A tool unmounts this mount, and wants to know what its client waits for if that takes long, or what is lost if it is given up.
    fn tell_of_leaving(&self, ask: control::Ask) {
        let Some(m) = self.all.get(ask.place).cloned() else { return };
        let (rt, events) = (self.rt.clone(), self.events.sender());
        self.rt.spawn(async move {
            let until = rt.now() + UNMOUNTED_WITHIN;
            while !m.leaves_slowly(&rt) && !m.left.get() && rt.now() < until {
                rt.sleep(LOOK).await;
            }
            let leaves = m.leaves_slowly(&rt);
            let answer = if leaves { m.waits_for().await } else { json!({}) };
            // The tool may have gone.
            let _ = ask.answer.send(answer);
            // Nobody waits who did not write there.
            if leaves && ask.request["force"] == true && ask.privileged {
                // Nothing says what was given up when the process has ended.
                let until = rt.now() + ANSWERED_WITHIN;
                while !ask.is_answered() && rt.now() < until {
                    rt.sleep(LOOK).await;
                }
                tracing::error!("{}: what is not written out is given up", m.role.mount.path().display());
                m.role.client.abandon();
                // The event loop may have ended already.
                let _ = events.send(Event::Left { place: ask.place });
            }
        });
    }

    /// OSTs that the cluster does not let in, a sentence each, as the first mount hears it.
    pub fn refused(&self) -> Vec<String> {
        self.all.first().map(|m| m.shard.refused_osts()).unwrap_or_default()
    }

    /// What restarted servers wait for, a sentence each, as the first mount hears it.
    pub async fn recoveries(&self) -> Vec<String> {
        let Some(m) = self.all.first() else { return Vec::new() };
        m.shard.recoveries().await.iter().map(crate::status::recovery_line).collect()
    }

    /// Unmounts what is still mounted: for starts that failed half way.
    pub async fn give_up(&self) {
        for m in self.all.iter().filter(|m| !m.over.get()) {
            let_go(self.rt.clone(), m.clone(), true).await;
        }
        // Every session ends now, and `serve` lets its client leave.
        if let Err(e) = self.serve(Servers::default()).await {
            tracing::warn!("{e}");
        }
    }
}

/// Writes everything out and leaves the cluster; says what that waits for when it takes long.
async fn leave(rt: Rt, m: Rc<Mounted>, place: usize, events: Sender<Event>) {
    let watched = m.clone();
    let watch_rt = rt.clone();
    rt.spawn(async move {
        watch_rt.sleep(LINGER).await;
        if !watched.left.get() {
            let waits = watched.waits_for().await;
            if watched.left.get() {
                return;
            }
            let text = |key: &str| waits[key].as_str().unwrap_or_default().to_string();
            let at = watched.role.mount.path().display();
            tracing::warn!(
                "{at} is unmounted; {} that is not written out waits for {}",
                text("unsettled"),
                text("waits")
            );
        }
    });
    if m.role.client.leave().await {
        m.records.over();
    }
    // The event loop may have ended already.
    let _ = events.send(Event::Left { place });
}

/// [`announce::tell`], away from the shard: nobody may read what is said.
fn say_aside(rt: &Rt, text: String) {
    let worker = rt.clone();
    rt.spawn(async move { worker.offload(move || announce::tell(&text)).await });
}

/// Unmounts, away from the shard: the kernel asks it to write everything out meanwhile. What others mounted at the same
/// place since is not touched; what is left of ours in other mount namespaces is ended.
async fn let_go(rt: Rt, m: Rc<Mounted>, force: bool) {
    let at = m.role.mount.path().to_path_buf();
    let shown = at.display().to_string();
    let (path, connection) = (at.clone(), m.role.mount.connection().cloned());
    let number = connection.as_ref().map(|c| c.number());
    let ours = connection.clone();
    let unmount = move |path: &Path, lazy: bool| match &ours {
        Some(connection) => connection.unmount(path, lazy),
        None => fuse::mount::unmount(path, lazy).map(|()| true),
    };
    let once = unmount.clone();
    match rt.offload(move || once(&path, false)).await {
        Ok(there) => {
            // Gone from our namespace, or was before: others may have it still.
            let copies = rt.offload(move || number.map(fuse::mount::copies).unwrap_or_default()).await;
            if m.over.get() || copies.is_empty() && there {
                return;
            }
            if let Some(copy) = copies.first().filter(|_| !force) {
                let there = format!("in the mount namespace of process {} ({})", copy.pid, copy.name);
                say_aside(&rt, format!("{shown} is still mounted {there}: press Ctrl-C again to end it there"));
                return;
            }
        }
        Err(MountError::StillBusy { .. }) if !force => {
            let used = format!("{shown} is in use (fuser -vm {} tells by whom)", word(m.role.mount.path()));
            say_aside(&rt, format!("{used}: press Ctrl-C again to detach it anyway"));
            return;
        }
        Err(MountError::StillBusy { .. }) => {}
        Err(e) => say_aside(&rt, e.to_string()),
    }
    if let Err(e) = rt.offload(move || unmount(&at, true)).await {
        tracing::warn!("{e}");
    }
    // Away from the shard, too: what is looked at may be locked by a process that waits for this very mount.
    let is_unused = |c| fuse::mount::users(c).is_some_and(|users| users.is_empty());
    if !rt.offload(move || number.is_some_and(is_unused)).await {
        rt.sleep(LINGER).await;
    }
    if m.over.get() {
        return;
    }
    tracing::warn!("{shown} is ended: programs that still use it get errors now");
    if let Err(e) = m.role.client.sync_reachable().await {
        tracing::error!("writing out before the end: {e}");
    }
    if let Some(connection) = connection
        && let Err(e) = rt.offload(move || connection.abort()).await
    {
        tracing::error!("{shown}: ending the connection: {e}");
    }
}

/// Refuses mount points that cannot be used, before anything is started.
pub(super) fn check(at: &Path, spec: &MountSpec) -> Result<PathBuf, Failure> {
    fuse::mount::check_mount_point(at, &spec.options).map_err(|e| {
        let errno = match &e {
            MountError::Missing(_) => libc::ENOENT,
            MountError::NotADirectory(_) => libc::ENOTDIR,
            MountError::Busy { .. } => libc::EBUSY,
            _ => libc::EIO,
        };
        Failure::with_errno(e.to_string(), errno)
    })
}

/// How long a client waits for servers that may still wait for clients of their last life.
pub(super) fn patience(config: &Config) -> Duration {
    settings::window(config) + Duration::from_secs(20)
}

/// The verb `mount`.
///
/// # Errors
/// Why the mount did not happen.
pub fn mount(arguments: &cli::Mount) -> Outcome {
    let config = settings::load(&arguments.settings)?;
    let dir = arguments.dir.as_deref().map(ClusterDir::open).transpose()?;
    let roles = Roles { clients: 1, ..Roles::default() };
    let config = memory::fitted(config, roles)?;
    limits::check(roles)?;
    if arguments.background {
        return announce::in_background(dir.as_ref().map(|d| d.run().join("mount.log")).as_deref());
    }
    let fsname = dir.as_ref().map_or("stria", |d| d.fsname.as_str());
    let mut spec = settings::mount(&config, &arguments.options, fsname)?;
    let at = check(&arguments.mount, &spec)?;
    if let Some(dir) = &dir {
        refuse_shadowing(dir.path(), Some(dir), std::slice::from_ref(&at))?;
    }
    let nid = match (&arguments.mds, &dir) {
        (Some(text), _) => Nid::parse(text).map_err(|e| Failure::usage(format!("--mds: {e}")))?,
        (None, Some(dir)) => dir.mds_nid()?.ok_or_else(|| {
            let why = format!(
                "{}: no metadata server of it listens: start the cluster with --processes",
                dir.path().display()
            );
            Failure::with_errno(why, libc::ECONNREFUSED)
        })?,
        (None, None) => return Err(Failure::usage("say where the cluster is: --mds ADDRESS or --dir DIR")),
    };
    let key = keys::find(&config, dir.as_ref())?;
    // Programs hear it from their kernel; the servers refuse changes in any case, times of access, too.
    let reads_only = key.limits().is_some_and(|l| l.is_read_only());
    spec.options.read_only |= reads_only;
    block_signals();
    let events = Rc::new(Events::default());
    events.watch_signals();
    let metrics = Endpoint::start(&config, events.sender())?;
    serve(&config, roles, async |rt| {
        let mut client = settings::client(&config, &nid, &key);
        client.noatime |= spec.options.no_atime || reads_only;
        let joined = cluster::join(&rt, client, 0, patience(&config));
        let client = events.unless_interrupted(&rt, joined).await?.map_err(|e| Failure::from(e.0))?;
        let mut mounts = Mounts::new(rt, events, metrics.as_ref(), dir.as_ref());
        mounts.add(client, &at, &spec, &["client"], &[], Down::default()).await?;
        announce::ready(
            &mounts.rt,
            &format!("mounted at {}", at.display()),
            &format!("mounted at {}; Ctrl-C unmounts", at.display()),
        );
        mounts.serve(Servers::default()).await
    })
}

/// Whether a process ends within so many milliseconds.
pub(super) fn ends_within(pid: i32, milliseconds: i32) -> bool {
    // SAFETY: plain system call; the result is checked.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return true;
    }
    let mut poll = libc::pollfd { fd: fd as i32, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd on the stack; the descriptor is ours and closed here.
    unsafe {
        let n = libc::poll(&raw mut poll, 1, milliseconds);
        libc::close(fd as i32);
        n > 0
    }
}
