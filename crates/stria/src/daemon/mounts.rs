//! Mounted clients of a process: serving them, answering tools, and letting go in order.
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use client::Client;
use cluster::{MountRole, MountSpec};
use fuse::mount::MountError;
use rt::{Nid, Rt};
use serde_json::json;
use types::Duration;

use super::announce;
use super::dir::ClusterDir;
use super::servers::serve;
use super::{keys, settings};
use crate::cli;
use crate::config::Config;
use crate::control::{self, Event, Events, Facts, Served, Shard, block_signals};
use crate::failure::{Failure, Outcome};

/// How long programs may keep files open in a mount that was detached, before it is ended by force.
const LINGER: Duration = Duration::from_secs(5);

/// How long the daemon of an earlier mount may keep the name of the control socket.
const NAME_WAIT: Duration = Duration::from_secs(10);

struct Mounted {
    role: MountRole,
    shard: Rc<Shard>,
    socket: RefCell<Option<Served>>,
    over: Cell<bool>,
}

/// The mounts of this process.
pub struct Mounts {
    rt: Rt,
    events: Rc<Events>,
    all: Vec<Rc<Mounted>>,
}

impl Mounts {
    /// None yet.
    #[must_use]
    pub fn new(rt: Rt, events: Rc<Events>) -> Mounts {
        Mounts { rt, events, all: Vec::new() }
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
    ) -> Result<(), Failure> {
        let place = self.all.len();
        let (role, serving) = match cluster::start_mount(client.clone(), at, spec) {
            Ok(started) => started,
            Err(e) => {
                client.leave().await;
                return Err(Failure::from(e.0));
            }
        };
        let facts = Facts {
            mount_point: role.mount.path().display().to_string(),
            transport: format!("{:?}", role.session.transport()).to_lowercase(),
            roles: roles.iter().map(ToString::to_string).collect(),
            away: away.iter().map(|(_, why)| why.clone()).collect(),
        };
        let socket = match role.mount.connection() {
            Some(connection) => self.socket(connection, place).await,
            None => None,
        };
        let shard = Shard::new(client, facts);
        self.all.push(Rc::new(Mounted { role, shard, socket: RefCell::new(socket), over: Cell::new(false) }));
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
    pub async fn serve(&self) -> Outcome {
        let mut outcome = Ok(());
        let mut signals = 0;
        while self.all.iter().any(|m| !m.over.get()) {
            match self.events.next(&self.rt).await {
                Event::Ask(ask) => match self.all.get(ask.place).filter(|m| !m.over.get()) {
                    Some(m) => m.shard.take(ask),
                    None => tracing::debug!("asked about a mount that is gone"),
                },
                Event::Signal(signal) => {
                    signals += 1;
                    let force = signals > 1 || signal != libc::SIGINT;
                    for m in self.all.iter().filter(|m| !m.over.get()) {
                        self.rt.spawn(let_go(self.rt.clone(), m.clone(), force));
                    }
                }
                Event::Refused(why) => tracing::error!("{why}"),
                Event::Unmounted { place, failure } => {
                    let m = &self.all[place];
                    m.over.set(true);
                    drop(m.socket.take());
                    m.role.client.leave().await;
                    if let Some(why) = failure {
                        outcome = Err(Failure::from(format!("mount {}: {why}", m.role.mount.path().display())));
                    }
                }
            }
        }
        outcome
    }

    /// Unmounts what is still mounted: for starts that failed half way.
    pub async fn give_up(&self) {
        for m in self.all.iter().filter(|m| !m.over.get()) {
            let_go(self.rt.clone(), m.clone(), true).await;
        }
        // Every session ends now, and `serve` lets its client leave.
        if let Err(e) = self.serve().await {
            tracing::warn!("{e}");
        }
    }
}

/// Unmounts, away from the shard: the kernel asks it to write everything out meanwhile.
async fn let_go(rt: Rt, m: Rc<Mounted>, force: bool) {
    let at = m.role.mount.path().to_path_buf();
    let shown = at.display().to_string();
    let path = at.clone();
    match rt.offload(move || fuse::mount::unmount(&path, false)).await {
        Ok(()) => return,
        Err(MountError::StillBusy { .. }) if !force => {
            announce::tell(&format!(
                "{shown} is in use (fuser -vm {shown} tells by whom): press Ctrl-C again to detach it anyway"
            ));
            return;
        }
        Err(MountError::StillBusy { .. }) => {}
        Err(e) => announce::tell(&e.to_string()),
    }
    if let Err(e) = rt.offload(move || fuse::mount::unmount(&at, true)).await {
        tracing::warn!("{e}");
    }
    rt.sleep(LINGER).await;
    if m.over.get() {
        return;
    }
    tracing::warn!("{shown} is still in use after {LINGER:?}: programs there get errors now");
    if let Err(e) = m.role.client.sync_all().await {
        tracing::error!("writing out before the end: {e}");
    }
    if let Some(connection) = m.role.mount.connection()
        && let Err(e) = rt.offload(move || fuse::mount::abort(connection)).await
    {
        tracing::error!("ending connection {connection}: {e}");
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
    if arguments.background {
        return announce::in_background(dir.as_ref().map(|d| d.run().join("mount.log")).as_deref());
    }
    let nid = match (&arguments.mds, &dir) {
        (Some(text), _) => Nid::parse(text).map_err(|e| Failure::usage(format!("--mds: {e}")))?,
        (None, Some(dir)) => dir.last_nid("mdt0").ok_or_else(|| {
            let why = format!(
                "{}: no metadata server of it listens: start the cluster with --processes",
                dir.path().display()
            );
            Failure::with_errno(why, libc::ECONNREFUSED)
        })?,
        (None, None) => return Err(Failure::usage("say where the cluster is: --mds ADDRESS or --dir DIR")),
    };
    let fsname = dir.as_ref().map_or("stria", |d| d.fsname.as_str());
    let spec = settings::mount(&config, &arguments.options, fsname)?;
    let at = check(&arguments.mount, &spec)?;
    let key = keys::find(&config, dir.as_ref())?;
    block_signals();
    let events = Rc::new(Events::default());
    events.watch_signals();
    serve(&config, (1, 0), async |rt| {
        let mut client = settings::client(&config, &nid, &key);
        client.noatime |= spec.options.no_atime;
        let client = cluster::join(&rt, client, 0, patience(&config)).await.map_err(|e| Failure::from(e.0))?;
        let mut mounts = Mounts::new(rt, events);
        mounts.add(client, &at, &spec, &["client"], &[]).await?;
        announce::ready(
            &format!("mounted at {}", at.display()),
            &format!("mounted at {}; Ctrl-C unmounts", at.display()),
        );
        mounts.serve().await
    })
}

/// The verb `umount`: unmounts, and waits until the daemon has written everything and is gone.
///
/// # Errors
/// The path is not on a mount, or the mount is in use.
pub fn umount(arguments: &cli::Umount) -> Outcome {
    let busy = |e: MountError| {
        let errno = if matches!(e, MountError::StillBusy { .. }) { libc::EBUSY } else { libc::EIO };
        Failure::with_errno(e.to_string(), errno)
    };
    let found = crate::lfs::connection_of(&arguments.mount);
    let (connection, at) = match found {
        Ok(found) => found,
        // A mount whose daemon is dead cannot be looked at, but it can be detached.
        Err(e) => {
            let full =
                std::path::absolute(&arguments.mount).map_err(|e| Failure::io("looking at", &arguments.mount, &e))?;
            let dead = fuse::mount::mounts().iter().any(|m| m.at == full && m.kind == "fuse.stria");
            return if dead { fuse::mount::unmount(&full, true).map_err(busy) } else { Err(e) };
        }
    };
    refuse_foreign(connection, &at)?;
    let pid_of = |c: u32| control::ask(c, &json!({"do": "status"})).ok().and_then(|a| a["pid"].as_i64());
    let pid = pid_of(connection);
    let others = fuse::mount::mounts().into_iter().filter(|m| m.kind == "fuse.stria" && m.minor != connection);
    let alone = pid.is_some() && others.into_iter().all(|m| pid_of(m.minor) != pid);
    fuse::mount::unmount(&at, arguments.lazy).map_err(busy)?;
    if let (Some(pid), false) = (pid, arguments.lazy)
        && alone
    {
        ends_within(pid as i32, 60_000);
    }
    Ok(())
}

/// Refuses to unmount what another user mounted, unless root does it.
fn refuse_foreign(connection: u32, at: &Path) -> Outcome {
    // SAFETY: plain system call without arguments.
    let own = unsafe { libc::geteuid() };
    let mount = fuse::mount::mounts().into_iter().rev().find(|m| m.minor == connection && m.kind == "fuse.stria");
    match mount.filter(|m| own != 0 && m.user != own) {
        None => Ok(()),
        Some(m) => Err(Failure::with_errno(
            format!("{} was mounted by user {}: that user or root unmounts it, not user {own}", at.display(), m.user),
            libc::EPERM,
        )),
    }
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
