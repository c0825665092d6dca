//! Servers as processes, and making stores.
use std::cell::OnceCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use cluster::{OssNode, OssPlace};
use rt::sync::race;
use rt::{Nid, Rt};
use types::OstIndex;

use super::announce;
use super::dir::ClusterDir;
use super::memory::{self, Roles};
use super::settings::Unopened;
use super::stores::is_free;
use super::{growth, keys, limits, notify, private, settings};
use crate::cli;
use crate::config::Config;
use crate::control::{Event, Events, block_signals};
use crate::failure::{Failure, Outcome};
use crate::metrics::{Endpoint, Servers};
use crate::out::word;

/// Runs `work` on a shard of this thread.
pub(crate) fn on_shard<T>(
    frames: frames::FramePool,
    work: impl AsyncFnOnce(Rt) -> Result<T, Failure>,
) -> Result<T, Failure> {
    on_shard_with(frames, 0, work)
}

fn on_shard_with<T>(
    frames: frames::FramePool,
    movers: usize,
    work: impl AsyncFnOnce(Rt) -> Result<T, Failure>,
) -> Result<T, Failure> {
    rt::real::run_with_movers(frames, movers, |rt| work(rt)).map_err(|e| {
        let why =
            format!("no runtime: {e}; io_uring or epoll is needed (is a container's seccomp profile in the way?)");
        Failure::with_errno(why, e.raw_os_error().unwrap_or(libc::ENOSYS))
    })?
}

/// Runs `work` of a process that serves requests.
pub(super) fn serve<T>(
    config: &Config,
    roles: Roles,
    work: impl AsyncFnOnce(Rt) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if let Some(latency_us) = settings::wake_up_us(config)
        && let Err(e) = rt::real::keep_awake(latency_us)
    {
        tracing::info!("idle CPUs sleep as they like: /dev/cpu_dma_latency: {e}");
    }
    if config.net_profile != "none" {
        rt::real::set_net_profile(&config.net_profile).map_err(|e| Failure::usage(format!("net.profile: {e}")))?;
    }
    let frames = settings::frames(config, roles.clients, roles.osts)?;
    on_shard_with(frames, settings::movers(config, roles.clients), work)
}

/// The verb `mkfs`.
///
/// # Errors
/// The directory cannot be used, or a store cannot be made.
pub fn mkfs(arguments: &cli::Mkfs) -> Outcome {
    let known = ClusterDir::open_if_there(&arguments.dir)?;
    let config = settings::load_in(known.as_ref(), &arguments.settings)?;
    on_shard(frames::FramePool::new(64 << 20), async |rt| {
        let (path, asked) = (&arguments.dir, arguments.osts);
        if let Some(index) = arguments.replace {
            let (mut dir, _lock) = ClusterDir::open_locked(path)?;
            dir.complete(&rt, None, &config).await?;
            let lost = dir.replace_ost(&rt, index, &config).await?;
            let at = dir.ost(index);
            say!(
                "{}: a new store for OST {index}; what its earlier one held (up to {lost} objects) is lost: 'stria fsck' names the files",
                at.display()
            );
            return Ok(());
        }
        let (mut dir, _lock) = ClusterDir::open_or_make_locked(path, &config, rt.random(), asked, known.is_some())?;
        let more = asked.filter(|n| dir.making().is_none() && *n > dir.osts());
        dir.complete(&rt, asked.filter(|_| more.is_none()), &config).await?;
        if let Some(count) = more {
            dir.add_osts(&rt, count, &config).await?;
        }
        let (fsname, cluster, osts) = (&dir.fsname, dir.cluster, dir.osts());
        say!("{}: file system '{fsname}' of cluster {cluster:016x}, {osts} OSTs", dir.path().display());
        Ok(())
    })
}

/// Opens or makes a cluster's directory, alone. Stores are made with the directory only. `known` as in [`ClusterDir::open_or_make_locked`].
pub(super) async fn prepare(
    rt: &Rt,
    path: &Path,
    osts: Option<u16>,
    config: &Config,
    known: bool,
) -> Result<ClusterDir, Failure> {
    let (mut dir, _lock) = ClusterDir::open_or_make_locked(path, config, rt.random(), osts, known)?;
    dir.complete(rt, osts, config).await?;
    Ok(dir)
}

/// Where to listen: as told, else where process `name` listened last, else as configured.
fn address(told: Option<&str>, dir: &ClusterDir, name: &str, config: &Config) -> Result<Nid, Failure> {
    let configured = Nid::parse(&config.listen).map_err(Failure::usage)?;
    Ok(match told {
        Some(text) => Nid::parse(text).map_err(|e| Failure::usage(format!("--listen: {e}")))?,
        None => match (&configured, dir.last_nid(name)) {
            (Nid::Tcp(c), Some(Nid::Tcp(last))) if c.port() == 0 && c.ip() == last.ip() => Nid::Tcp(last),
            _ => configured,
        },
    })
}

/// Waits for the end: by a signal, or because the cluster will not have this server.
async fn until_told<'a>(rt: &Rt, events: &Events, servers: impl Fn() -> Servers<'a>) -> Outcome {
    loop {
        match events.next(rt).await {
            Event::Signal(_) => {
                notify::stopping();
                return Ok(());
            }
            Event::Refused(why) => return Err(Failure::with_errno(why, libc::EXDEV)),
            Event::Measure(asked) => rt.spawn(servers().answer(&[], asked)),
            _ => {}
        }
    }
}

/// The verb `mds`.
///
/// # Errors
/// Why the server does not start.
pub fn mds(arguments: &cli::Mds) -> Outcome {
    let dir = ClusterDir::open(&arguments.dir)?;
    private::check_owner(&arguments.dir)?;
    dir.check_mdt()?;
    let config = settings::load_in(Some(&dir), &arguments.settings)?;
    dir.check_engine(&config)?;
    let roles = Roles { mdts: 1, ..Roles::default() };
    let config = memory::fitted(config, roles)?;
    limits::check(roles)?;
    let key = keys::find(&config, Some(&dir))?;
    let nid = address(arguments.listen.as_deref(), &dir, "mdt0", &config)?;
    block_signals();
    let events = Events::default();
    events.watch_signals();
    let metrics = Endpoint::start(&config, events.sender())?;
    serve(&config, roles, async |rt| {
        let told = mds::MdsConfig {
            away: arguments.without_ost.iter().map(|i| OstIndex(*i)).collect(),
            store: dir.mdt_identity(),
            ..settings::mds(&config)?
        };
        let (mdt, window) = (dir.mdt(), settings::window(&config));
        let role = OnceCell::new();
        // One for all of it: whoever waits for an event gets the next one.
        let mut ended = std::pin::pin!(until_told(&rt, &events, || Servers { mds: role.get(), oss: None }));
        let started = if arguments.standby {
            let waiting = cluster::start_standby_mds(&rt, &mdt, &nid, &key, window, told);
            announce::ready(&rt, "standby", &format!("standby of the metadata server of '{}', for {nid}", dir.fsname));
            match race(waiting, ended.as_mut()).await {
                Ok(started) => started,
                Err(ended) => return ended,
            }
        } else {
            cluster::start_mds(&rt, &mdt, &nid, &key, window, told).await
        };
        let started = started.map_err(|e| Failure::from(format!("metadata server at {nid}: {e}")))?;
        let role = role.get_or_init(|| started);
        dir.note_running("mdt0", Some(&role.nid))?;
        dir.note_metrics("mdt0", metrics.as_ref())?;
        let text = format!("metadata server of '{}' at {}", dir.fsname, role.nid);
        if arguments.standby {
            tracing::warn!("{text}: it has taken over");
        } else {
            announce::ready(&rt, &role.nid.to_string(), &text);
        }
        let told = match race(ended, role.replaced()).await {
            Ok(told) => told,
            Err(why) => Err(replaced(&why)),
        };
        let stopped = role.stop().await;
        dir.note_stopped("mdt0");
        told?;
        stopped.map_err(|e| Failure::with_errno(format!("metadata store: {e}"), e.errno()))
    })
}

/// Whoever runs it starts it anew, as systemd does with `Restart=on-failure`.
pub(super) fn replaced(why: &str) -> Failure {
    let text = format!("{why}: this server ends; 'stria mds --standby' waits for its turn");
    Failure::with_errno(text, libc::ESTALE)
}

/// The OSTs that a server is to have: those that are named, or those whose stores are in the directory.
fn targets(arguments: &cli::Oss, dir: &ClusterDir) -> Result<Vec<OstIndex>, Failure> {
    if arguments.ost != "all" {
        return layout::parse_ost_list(&arguments.ost).map_err(|e| Failure::usage(format!("--ost: {e}; or 'all'")));
    }
    let here: Vec<OstIndex> = dir.ost_indices().into_iter().filter(|i| !is_free(&dir.ost(*i))).map(OstIndex).collect();
    if here.is_empty() {
        let why = format!(
            "--ost all: no store of an OST is in {}: 'stria ost add --dir {}' makes one",
            dir.path().display(),
            word(dir.path())
        );
        return Err(Failure::with_errno(why, libc::ENOENT));
    }
    Ok(here)
}

/// Starts the server of these OSTs, without those whose stores do not open, which are told with their reasons. Nobody is told of it before
/// `first` is done, which gets those reasons; it does not begin when no store opens, or one does not that `must_open`.
pub(super) async fn start_those_that_open(
    rt: &Rt,
    dir: &Arc<ClusterDir>,
    list: &[u16],
    (place, config): (&OssPlace, &Config),
    must_open: impl Fn(&Failure) -> bool,
    first: impl AsyncFnOnce(&[(u16, String)]) -> Outcome,
) -> Result<(Rc<OssNode>, Vec<(u16, String)>), Failure> {
    let (left, told) = (Arc::new(Mutex::new(Vec::new())), OnceCell::new());
    let unopened = Unopened::Leave(left.clone());
    let opened = async {
        let left = std::mem::take(&mut *left.lock().expect("nobody panics under it"));
        if let Some(why) = refusal(&left, list.len(), must_open) {
            return Err(why);
        }
        let told = told.get_or_init(|| left.iter().map(|(ost, why)| (*ost, of_ost(*ost, why))).collect::<Vec<_>>());
        for (_, why) in told {
            tracing::error!("{why}; the others are served, and this one as soon as its store opens");
        }
        first(told).await
    };
    let oss = settings::start_oss(rt, dir, list, place, config, unopened, opened).await?;
    Ok((Rc::new(oss), told.into_inner().unwrap_or_default()))
}

/// Why OSTs are not served without those in `left`: no other one is there of `all`, or it is one that `must_open`.
pub(super) fn refusal(left: &[(u16, Failure)], all: usize, must_open: impl Fn(&Failure) -> bool) -> Option<Failure> {
    let told = |(ost, why): &(u16, Failure)| Failure::with_errno(of_ost(*ost, why), i32::from(why.code()));
    if let Some(wanted) = left.iter().find(|(_, why)| must_open(why)) {
        return Some(told(wanted));
    }
    let first = left.first().filter(|_| left.len() == all)?;
    if all == 1 {
        return Some(told(first));
    }
    let whys: Vec<String> = left.iter().map(|(ost, why)| of_ost(*ost, why)).collect();
    Some(Failure::with_errno(format!("no OST can be served: {}", whys.join("; ")), i32::from(first.1.code())))
}

/// Why a store does not open, with its OST in front; a server's name in front of that goes.
pub(super) fn of_ost(ost: u16, why: &Failure) -> String {
    let (name, why) = (format!("OST {ost}: "), why.to_string());
    let why = why.strip_prefix(&format!("ost{ost}: ")).unwrap_or(&why);
    if why.starts_with(&name) { why.into() } else { name + why }
}

/// Where the metadata server is that OSTs register with.
fn mds_of(arguments: &cli::Oss, dir: &ClusterDir) -> Result<Nid, Failure> {
    let Some(text) = &arguments.mds else {
        let at = dir.path().display();
        let why = || format!("{at}: its metadata server never ran: start it first, or say --mds ADDRESS");
        return dir.mds_nid()?.ok_or_else(|| Failure::usage(why()));
    };
    Nid::parse(text).map_err(|e| Failure::usage(format!("--mds: {e}")))
}

/// The verb `oss`.
///
/// # Errors
/// Why the server does not start.
pub fn oss(arguments: &cli::Oss) -> Outcome {
    let dir = ClusterDir::open(&arguments.dir)?;
    private::check_owner(&arguments.dir)?;
    let config = settings::load_in(Some(&dir), &arguments.settings)?;
    if config.store_kind == "memory" {
        return Err(Failure::usage(
            "store.kind = memory lives in one process with everything else: use 'stria up' without --processes",
        ));
    }
    let key = keys::find(&config, Some(&dir))?;
    let is_all = arguments.ost == "all";
    let list = targets(arguments, &dir)?;
    let roles = Roles { osts: list.len() as u64, ..Roles::default() };
    let config = memory::fitted(config, roles)?;
    limits::check(roles)?;
    let name = format!("ost{}", arguments.ost);
    let nid = address(arguments.listen.as_deref(), &dir, &name, &config)?;
    let mds = mds_of(arguments, &dir)?;
    block_signals();
    let events = Events::default();
    events.watch_signals();
    let metrics = Endpoint::start(&config, events.sender())?;
    serve(&config, roles, async |rt| {
        if let Some(missing) = list.iter().find(|o| !dir.has_ost(o.0)) {
            let (at, there) = (dir.path().display(), dir.osts());
            let why = format!(
                "{at} has no OST {}: it has {there} ({}); 'stria ost add --dir {}' adds one",
                missing.0,
                dir.indices_text(),
                word(dir.path())
            );
            return Err(Failure::with_errno(why, libc::ENOENT));
        }
        let list: Vec<u16> = list.iter().map(|ost| ost.0).collect();
        let place = OssPlace { nid: nid.clone(), mds, key };
        let dir = Arc::new(dir);
        let (oss, left) =
            start_those_that_open(&rt, &dir, &list, (&place, &config), |_| false, async |_| Ok(())).await?;
        let without: String = left.iter().map(|(_, why)| format!("; {why}")).collect();
        let growth = growth::Here::begin(&rt, &dir, &config, &place.key, &place.mds, &oss);
        let served = list.iter().copied().filter(|i| left.iter().all(|(l, _)| l != i)).collect();
        rt.spawn(growth.clone().watch(served, left, (!is_all).then_some(list)));
        dir.note_running(&name, Some(oss.nid()))?;
        dir.note_metrics(&name, metrics.as_ref())?;
        announce::ready(
            &rt,
            &oss.nid().to_string(),
            &format!("object storage server for {name} at {}{without}", oss.nid()),
        );
        let (refusal, sender) = (oss.refusal(), events.sender());
        rt.spawn(async move {
            // The event loop may have ended already.
            let _ = sender.send(Event::Refused(refusal.await));
        });
        let mut told = until_told(&rt, &events, || Servers { mds: None, oss: Some(&oss) }).await;
        while told.is_err() && is_all && growth.let_go_removed().await {
            told = until_told(&rt, &events, || Servers { mds: None, oss: Some(&oss) }).await;
        }
        let closed = oss.close().await;
        dir.note_stopped(&name);
        told?;
        closed.map_err(|e| Failure::with_errno(format!("object store: {e}"), e.errno()))
    })
}
