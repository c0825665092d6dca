//! `stria up`: a whole cluster and its mounts, on one thread or as processes.
use std::cell::OnceCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use cluster::{MdsRole, MountSpec, OssNode, OssPlace};
use mds::{MemoryKv, MetaKv};
use ptlrpc::ClusterKey;
use rt::sync::race;
use rt::{Nid, Rt};
use types::OstIndex;

use super::announce;
use super::children::{Children, Down, Host};
use super::dir::{ClusterDir, NEW_OSTS};
use super::memory::{self, Roles, Shares};
use super::mounts::{Growth, LINGER, Mounts, check, patience};
use super::servers::{of_ost, on_shard, prepare, refusal, replaced, serve, start_those_that_open};
use super::stores::Osts;
use super::{growth, keys, limits, private, settings};
use crate::cli;
use crate::config::Config;
use crate::control::{Event, Events, block_signals};
use crate::failure::{Failure, Outcome};
use crate::metrics::{Endpoint, Servers, address_of};

/// The verb `up`.
///
/// # Errors
/// Why the cluster is not up and mounted; nothing of it stays running.
pub fn up(arguments: &cli::Up) -> Outcome {
    private::check_owner(&arguments.dir)?;
    let known = ClusterDir::open_if_there(&arguments.dir)?;
    let config = settings::load_in(known.as_ref(), &arguments.settings)?;
    let spec = settings::mount(&config, &arguments.options, &config.fsname)?;
    let places = arguments.mount.iter().map(|at| check(at, &spec)).collect::<Result<Vec<_>, _>>()?;
    refuse_repeated(&places)?;
    refuse_shadowing(&arguments.dir, known.as_ref(), &places)?;
    let (roles, config, shares) = fitted(arguments, known.as_ref(), config)?;
    // Before a directory is made, and the log of a daemon, which nobody reads.
    limits::check(roles)?;
    if arguments.background {
        let dir = on_shard(frames::FramePool::new(1 << 20), async |rt| {
            let (path, osts) = (&arguments.dir, arguments.osts);
            // The lock is another process's to have from here on.
            ClusterDir::open_or_make_locked(path, &config, rt.random(), osts, known.is_some()).map(|(dir, _)| dir)
        })?;
        return announce::in_background(Some(&dir.run().join("up.log")));
    }
    block_signals();
    let events = Rc::new(Events::default());
    events.watch_signals();
    let metrics = Endpoint::start(&config, events.sender())?;
    let run = Run { arguments, known: known.is_some(), config, roles, shares, spec, places, events, metrics };
    match run.shares {
        Some(shares) => run.in_processes(shares),
        None => run.in_one_process(),
    }
}

/// What this process serves, its configuration with sizes that fit into its memory, and what its servers get of that.
fn fitted(
    arguments: &cli::Up,
    known: Option<&ClusterDir>,
    config: Config,
) -> Result<(Roles, Config, Option<Shares>), Failure> {
    let clients = arguments.mount.len() as u64;
    let osts = u64::from(arguments.osts.or(known.map(ClusterDir::osts)).unwrap_or(NEW_OSTS));
    if !arguments.processes {
        let roles = Roles { clients, osts, mdts: 1 };
        return Ok((roles, memory::fitted(config, roles)?, None));
    }
    let roles = Roles { clients, ..Roles::default() };
    let shares = Shares::of(&config, roles, osts);
    // What they would refuse each by itself is refused before one is started.
    memory::fitted(shares.given(&config, shares.mds), Shares::MDS)?;
    memory::fitted(shares.given(&config, shares.oss), Shares::OSS)?;
    Ok((roles, memory::fitted(shares.given(&config, shares.up), roles)?, Some(shares)))
}

fn refuse_repeated(places: &[PathBuf]) -> Outcome {
    let repeated = places.iter().enumerate().find(|(i, at)| places[..*i].contains(at));
    repeated.map_or(Ok(()), |(_, at)| {
        Err(Failure::usage(format!(
            "mount point {} is given twice: one directory takes one mount, name another for the second",
            at.display()
        )))
    })
}

/// Refuses mount points that would hide what a cluster is made of behind the file system that is made of it, that lie in what only its
/// servers write, or that lie in each other: whoever serves the outer one would wait for itself. `dir`: the cluster's directory.
pub(super) fn refuse_shadowing(dir: &Path, known: Option<&ClusterDir>, places: &[PathBuf]) -> Outcome {
    let full = resolved(dir)?;
    let mut own = vec![full.join("mdt0"), full.join("run"), keys::place(&full)];
    own.extend(known.iter().flat_map(|c| c.ost_indices().into_iter().map(|i| full.join(format!("ost{i}")))));
    // Each may be a link to another disk.
    let linked = own.iter().map(|at| resolved(at)).collect::<Result<Vec<_>, _>>()?;
    own.extend(linked);
    let hidden = |at: &PathBuf| std::iter::once(&full).chain(&own).find(|of| of.starts_with(at));
    if let Some((at, of)) = places.iter().find_map(|at| Some((at, hidden(at)?))) {
        return Err(Failure::usage(format!(
            "mount point {} would hide the cluster's own directory {}: mount somewhere else",
            at.display(),
            of.display()
        )));
    }
    if let Some((at, of)) = places.iter().find_map(|at| Some((at, own.iter().find(|of| at.starts_with(of))?))) {
        return Err(Failure::usage(format!(
            "mount point {} lies in the cluster's own directory {}: mount somewhere else",
            at.display(),
            of.display()
        )));
    }
    let outer = |at: &PathBuf| places.iter().find(|of| *of != at && at.starts_with(of));
    match places.iter().find_map(|at| Some((at, outer(at)?))) {
        Some((at, of)) => Err(Failure::usage(format!(
            "mount point {} lies in mount point {}: mounts of one process must not lie in each other, mount it by itself ('stria mount')",
            at.display(),
            of.display()
        ))),
        None => Ok(()),
    }
}

/// A path without links; one on a mount of Stria as it is written, for nothing there may be looked at.
fn resolved(path: &Path) -> Result<PathBuf, Failure> {
    let full = std::path::absolute(path).map_err(|e| Failure::io("looking at", path, &e))?;
    Ok(settings::refuse_inside(&full).unwrap_or(full))
}

struct Run<'a> {
    arguments: &'a cli::Up,
    /// What this process serves.
    roles: Roles,
    /// What memory each process gets, where servers have processes of their own.
    shares: Option<Shares>,
    /// The directory was a cluster's when its settings were read.
    known: bool,
    config: Config,
    spec: MountSpec,
    places: Vec<PathBuf>,
    events: Rc<Events>,
    metrics: Option<Endpoint>,
}

impl Run<'_> {
    fn in_one_process(self) -> Outcome {
        serve(&self.config, self.roles, async |rt| {
            let dir = prepare(&rt, &self.arguments.dir, self.arguments.osts, &self.config, self.known).await?;
            let dir = Arc::new(dir);
            let mut osts = self.examine(&rt, &dir).await?;
            let key = keys::find(&self.config, Some(&dir))?;
            let started = self.start_servers(&rt, &dir, &mut osts, &key);
            let (mds, oss) = self.events.unless_interrupted(&rt, started).await??;
            let growth = growth::Here::begin(&rt, &dir, &self.config, &key, &mds.nid, &oss);
            let expected = self.expected(&osts);
            let named = expected.iter().map(|(ost, _)| *ost).collect();
            rt.spawn(growth.clone().watch(Vec::new(), expected, Some(named)));
            dir.note_running("up", None)?;
            dir.note_metrics("up", self.metrics.as_ref())?;
            let here = Servers { mds: Some(&mds), oss: Some(&oss) };
            let mut serving =
                pin!(self.serve_mounts(&rt, &dir, &osts, &mds.nid, &key, (here, Down::default(), growth)));
            let outcome = match race(serving.as_mut(), mds.replaced()).await {
                Ok(outcome) => outcome,
                Err(why) => self.end_mounts(&rt, serving).await.and(Err(replaced(&why))),
            };
            // The metadata server first: it is a client of the OSTs, and says goodbye to them.
            let stopped = mds.stop().await;
            let closed = oss.close().await;
            dir.note_stopped("up");
            let store = |what: &str, e: types::FsError| Failure::with_errno(format!("{what}: {e}"), e.errno());
            outcome
                .and(closed.map_err(|e| store("object store", e)))
                .and(stopped.map_err(|e| store("metadata store", e)))
        })
    }

    /// Unmounts everything, as a signal does, and as the signals do that follow where something does not end.
    async fn end_mounts(&self, rt: &Rt, serving: Pin<&mut impl Future<Output = Outcome>>) -> Outcome {
        let again = async {
            while self.events.sender().send(Event::Signal(libc::SIGTERM)).is_ok() {
                rt.sleep(LINGER).await;
            }
        };
        race(serving, again).await.unwrap_or(Ok(()))
    }

    /// Which OSTs are there. Without any there is nothing to start.
    async fn examine(&self, rt: &Rt, dir: &ClusterDir) -> Result<Osts, Failure> {
        let osts = dir.examine(rt, &self.config, &self.arguments.without_ost).await?;
        for (_, why) in &osts.away {
            tracing::error!("{why}; its files answer EIO, new files go to the others");
        }
        if osts.here.is_empty() {
            let whys: Vec<&str> = osts.away.iter().map(|(_, why)| why.as_str()).collect();
            return Err(Failure::with_errno(format!("no OST can be served: {}", whys.join("; ")), libc::ENOENT));
        }
        Ok(osts)
    }

    /// OSTs that are not served and are not left out on purpose: they are tried again and again.
    fn expected(&self, osts: &Osts) -> Vec<(u16, String)> {
        osts.away.iter().filter(|(ost, _)| !self.arguments.without_ost.contains(ost)).cloned().collect()
    }

    async fn start_servers(
        &self,
        rt: &Rt,
        dir: &Arc<ClusterDir>,
        osts: &mut Osts,
        key: &ClusterKey,
    ) -> Result<(MdsRole, Rc<OssNode>), Failure> {
        let (mds_nid, oss_nid) = (Nid::Local("mds".into()), Nid::Local("oss".into()));
        let place = OssPlace { nid: oss_nid, mds: mds_nid.clone(), key: key.clone() };
        let mds = OnceCell::new();
        let here = osts.here.clone();
        // The metadata server is told which stores do not open, and is there before theirs are told of.
        let begin_mds = async |left: &[(u16, String)]| {
            osts.leave(left);
            let begun = self.start_mds(rt, dir, osts.away_indices(), &mds_nid, key).await?;
            drop(mds.set(begun));
            Ok(())
        };
        let (oss, _) = start_those_that_open(rt, dir, &here, (&place, &self.config), is_others, begin_mds).await?;
        Ok((mds.into_inner().expect("it was begun before the server of the OSTs"), oss))
    }

    async fn start_mds(
        &self,
        rt: &Rt,
        dir: &ClusterDir,
        away: Vec<OstIndex>,
        nid: &Nid,
        key: &ClusterKey,
    ) -> Result<MdsRole, Failure> {
        let window = settings::window(&self.config);
        let told = mds::MdsConfig { away, store: dir.mdt_identity(), ..settings::mds(&self.config)? };
        let begun = if self.config.store_kind == "memory" {
            let kv = memory_mdt(rt, dir).await?;
            cluster::start_mds_on(rt, kv, nid, key, window, told).await
        } else {
            cluster::start_mds(rt, &dir.mdt(), nid, key, window, told).await
        };
        Ok(begun?)
    }

    async fn serve_mounts(
        &self,
        rt: &Rt,
        dir: &ClusterDir,
        osts: &Osts,
        mds: &Nid,
        key: &ClusterKey,
        (servers, down, growth): (Servers<'_>, Down, Rc<dyn Growth>),
    ) -> Outcome {
        let mut mounts = Mounts::new(rt.clone(), self.events.clone(), self.metrics.as_ref(), Some(dir));
        mounts.grow_by(growth);
        for at in &self.places {
            if let Err(e) = self.add_mount(rt, &mut mounts, at, osts, mds, key, &down).await {
                mounts.give_up().await;
                return Err(e);
            }
        }
        let list = self.places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" ");
        let mut without: String = osts.away.iter().map(|(_, why)| format!("; {why}")).collect();
        without.extend(mounts.refused().iter().map(|line| format!("; {line}")));
        without.extend(mounts.recoveries().await.iter().map(|line| format!("; {line}")));
        let text = format!(
            "'{}' with {} OSTs in {} is mounted at {list}{without}; Ctrl-C unmounts and stops",
            dir.fsname,
            osts.here.len(),
            dir.path().display()
        );
        announce::ready(rt, &format!("mounted at {list}{without}"), &text);
        mounts.serve(servers).await
    }

    #[expect(clippy::too_many_arguments, reason = "one call site; the arguments are what a mount is made of")]
    async fn add_mount(
        &self,
        rt: &Rt,
        mounts: &mut Mounts,
        at: &Path,
        osts: &Osts,
        mds: &Nid,
        key: &ClusterKey,
        down: &Down,
    ) -> Outcome {
        let roles: &[&str] = if self.arguments.processes { &["client"] } else { &["mds", "oss", "client"] };
        let mut client = settings::client(&self.config, mds, key);
        client.noatime |= self.spec.options.no_atime;
        let joined = cluster::join(rt, client, osts.here.len(), patience(&self.config));
        let client = self.events.unless_interrupted(rt, joined).await?.map_err(|e| Failure::from(e.0))?;
        mounts.add(client, at, &self.spec, roles, &osts.away, down.clone()).await
    }

    fn in_processes(self, shares: Shares) -> Outcome {
        if self.config.store_kind == "memory" {
            return Err(Failure::usage("store.kind = memory lives in one process: leave --processes away"));
        }
        if let Ok(Nid::Tcp(addr)) = Nid::parse(&self.config.listen)
            && addr.port() != 0
        {
            return Err(Failure::usage(format!(
                "net.listen = {addr}: with --processes every server needs a port of its own: write port 0, or start the servers by themselves ('stria mds', 'stria oss --listen')"
            )));
        }
        let (dir, mut osts) = on_shard(frames::FramePool::new(64 << 20), async |rt| {
            let dir = prepare(&rt, &self.arguments.dir, self.arguments.osts, &self.config, self.known).await?;
            let osts = self.examine(&rt, &dir).await?;
            Ok((dir, osts))
        })?;
        let key = keys::find(&self.config, Some(&dir))?;
        let told = settings_arguments(&self.arguments.settings);
        let hosts = |name: &str| Host { netns: None, settings: own_settings(name, &self.config, shares) };
        let expected: Vec<u16> = self.expected(&osts).iter().map(|(ost, _)| *ost).collect();
        let servers = start_those_that_start(&dir, &mut osts, &expected, &told, &hosts)?;
        let mds =
            dir.last_nid("mdt0").ok_or_else(|| Failure::from("the metadata server left no address".to_string()))?;
        dir.note_running("up", None)?;
        dir.note_metrics("up", self.metrics.as_ref())?;
        let (down, servers) = (servers.down(), Arc::new(Mutex::new(servers)));
        let outcome = serve(&self.config, self.roles, async |rt| {
            let growth =
                growth::Processes::begin(&rt, &dir, &self.arguments.settings, (&self.config, shares), &servers);
            self.serve_mounts(&rt, &dir, &osts, &mds, &key, (Servers::default(), down.clone(), growth)).await
        });
        servers.lock().expect("whoever starts or stops a server under it does not panic").stop();
        dir.note_stopped("up");
        outcome
    }
}

/// Whether a store does not open because another process has it: that one serves it, and is to be stopped first.
fn is_others(why: &Failure) -> bool {
    i32::from(why.code()) == libc::EBUSY
}

async fn memory_mdt(rt: &Rt, dir: &ClusterDir) -> Result<Rc<dyn MetaKv>, Failure> {
    let kv: Rc<dyn MetaKv> = MemoryKv::new();
    // SAFETY: plain system calls without arguments.
    let (root_uid, root_gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let options = mds::MkfsOptions {
        fsname: dir.fsname.clone(),
        cluster: dir.cluster,
        uuid: rt.random(),
        hash_keys: [rt.random(), rt.random()],
        hash_mask: u64::MAX,
        root_uid,
        root_gid,
        root_mode: 0o755,
        now: rt.wall(),
    };
    mds::mkfs::format(&kv, &options).await.map_err(|e| Failure::from(e.to_string()))?;
    Ok(kv)
}

/// What a server that `up` starts is told beside what `up` was told: where it serves its metrics, and how much memory it may have.
pub(super) fn own_settings(name: &str, config: &Config, shares: Shares) -> Vec<OsString> {
    let metrics = metrics_of(name, config).map(|address| format!("metrics.listen={address}"));
    let memory = shares.of_server(name).map(|bytes| format!("memory.bytes_max={bytes}"));
    metrics.into_iter().chain(memory).flat_map(|set| ["--set".into(), set.into()]).collect()
}

/// Where a server serves its metrics when `up` does at a port of its choice: at one of those that follow.
fn metrics_of(name: &str, config: &Config) -> Option<std::net::SocketAddr> {
    let of_up = address_of(&config.metrics_listen, config.metrics_allow_remote).ok().flatten()?;
    let ost: Option<u16> = name.strip_prefix("ost").and_then(|n| n.parse().ok());
    let port = match of_up.port() {
        0 => 0,
        // Beyond the last port there is a free one, which 'status' shows.
        port => port.checked_add(ost.map_or(1, |i| i.saturating_add(2))).unwrap_or(0),
    };
    Some(std::net::SocketAddr::new(of_up.ip(), port))
}

/// `--config` and `--set` for children.
pub(crate) fn settings_arguments(settings: &cli::Settings) -> Vec<OsString> {
    let file = settings.config.iter().flat_map(|f| {
        let full = std::path::absolute(f).unwrap_or_else(|_| f.clone());
        [OsString::from("--config"), full.into()]
    });
    file.chain(settings.set.iter().flat_map(|s| [OsString::from("--set"), s.into()])).collect()
}

/// Starts the servers of a directory as processes: the metadata server, then one process per OST.
///
/// # Errors
/// Which server does not start, and why; the others are stopped.
pub(crate) fn start_children(
    dir: &ClusterDir,
    osts: &Osts,
    told: &[OsString],
    hosts: &dyn Fn(&str) -> Host,
) -> Result<Children, Failure> {
    let mut children = Children::default();
    start_child(&mut children, dir, "mdt0", mds_role(osts), told, hosts("mdt0"), false)?;
    for i in &osts.here {
        start_ost(&mut children, dir, *i, told, hosts, false)?;
    }
    Ok(children)
}

/// The same, where OSTs that do not start are tried again while the others are served; so are those of `expected`, whose stores are not
/// in their places. `osts` has them as away then.
///
/// # Errors
/// The metadata server does not start, or no OST does; the others are stopped.
fn start_those_that_start(
    dir: &ClusterDir,
    osts: &mut Osts,
    expected: &[u16],
    told: &[OsString],
    hosts: &dyn Fn(&str) -> Host,
) -> Result<Children, Failure> {
    let mut children = Children::default();
    start_child(&mut children, dir, "mdt0", mds_role(osts), told, hosts("mdt0"), false)?;
    let mut left = Vec::new();
    for i in osts.here.clone() {
        if let Err(e) = start_ost(&mut children, dir, i, told, hosts, true) {
            left.push((i, e));
        }
    }
    if let Some(why) = refusal(&left, osts.here.len(), is_others) {
        return Err(why);
    }
    if !left.is_empty() {
        osts.leave(&left.iter().map(|(ost, why)| (*ost, of_ost(*ost, why))).collect::<Vec<_>>());
        // It has to know, also when it dies and is started again.
        children.stop_one("mdt0");
        start_child(&mut children, dir, "mdt0", mds_role(osts), told, hosts("mdt0"), false)?;
        children.stops_first("mdt0");
    }
    for i in expected {
        // Why they do not start is known.
        let _ = start_ost(&mut children, dir, *i, told, hosts, true);
    }
    Ok(children)
}

/// Starts the server of an OST as a process. `persists`: it is tried again when it does not start.
///
/// # Errors
/// Why it does not start.
pub(super) fn start_ost(
    children: &mut Children,
    dir: &ClusterDir,
    index: u16,
    told: &[OsString],
    hosts: &dyn Fn(&str) -> Host,
    persists: bool,
) -> Outcome {
    let name = format!("ost{index}");
    let role = vec!["oss".into(), "--ost".into(), index.to_string().into()];
    start_child(children, dir, &name, role, told, hosts(&name), persists)
}

fn start_child(
    children: &mut Children,
    dir: &ClusterDir,
    name: &str,
    role: Vec<OsString>,
    told: &[OsString],
    host: Host,
    persists: bool,
) -> Outcome {
    forget_taken_port(dir, name);
    let place = [OsString::from("--dir"), dir.path().into()];
    let told = told.iter().cloned().chain(host.settings);
    let arguments: Vec<OsString> = role.into_iter().chain(place).chain(told).collect();
    children.start(name, arguments, dir.run().join(format!("{name}.log")), host.netns, persists).map(drop)
}

fn mds_role(osts: &Osts) -> Vec<OsString> {
    let away = osts.away.iter().flat_map(|(i, _)| ["--without-ost".into(), i.to_string().into()]);
    std::iter::once("mds".into()).chain(away).collect()
}

/// A port that somebody else took since the last run is forgotten: no client of that run is left to miss it. One that
/// the process of that name listens on itself is not.
fn forget_taken_port(dir: &ClusterDir, name: &str) {
    if dir.is_served(name) {
        return;
    }
    if let Some(Nid::Tcp(addr)) = dir.last_nid(name)
        && std::net::TcpListener::bind(addr).is_err()
        && let Err(e) = std::fs::remove_file(dir.run().join(format!("{name}.nid")))
    {
        tracing::warn!("{name}: the address of its last run stays written down: {e}");
    }
}
