//! OSTs that come and go while `up`, or a server of all OSTs of its directory, runs: their servers begin and end, everything else goes on. Which
//! OSTs those are, whoever asks has written into the cluster's directory; the metadata server decides who belongs to the cluster.
use std::collections::HashMap;
use std::ffi::OsString;
use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use cluster::{OssNode, OssPlace};
use ptlrpc::ClusterKey;
use rt::sync::Semaphore;
use rt::{LocalFuture, Nid, Rt};
use types::Duration;

use super::children::{Children, Host};
use super::dir::ClusterDir;
use super::memory::Shares;
use super::mounts::Growth;
use super::servers::of_ost;
use super::settings::{self, Unopened};
use super::stores::is_free;
use super::up::{own_settings, settings_arguments, start_ost};
use crate::cli;
use crate::config::Config;
use crate::failure::{Failure, Outcome};

/// The directory as it is now, which has the OST.
fn directory(path: &Path, ost: u16) -> Result<ClusterDir, Failure> {
    let dir = ClusterDir::open(path)?;
    if dir.has_ost(ost) {
        return Ok(dir);
    }
    let why = format!("{} has no OST {ost}: it has {} ({})", path.display(), dir.osts(), dir.indices_text());
    Err(Failure::with_errno(why, libc::ENOENT))
}

/// OSTs are served by this process.
pub struct Here {
    rt: Rt,
    path: PathBuf,
    config: Config,
    key: ClusterKey,
    mds: Nid,
    oss: Rc<OssNode>,
    /// Where OSTs that come later are reached; `None`: within this process.
    ip: Option<IpAddr>,
    /// One OST is begun at a time: a tool may ask for one that is just tried.
    turn: Rc<Semaphore>,
}

impl Here {
    /// For a process that serves the OSTs of a directory by `oss`.
    pub fn begin(
        rt: &Rt,
        dir: &ClusterDir,
        config: &Config,
        key: &ClusterKey,
        mds: &Nid,
        oss: &Rc<OssNode>,
    ) -> Rc<Here> {
        let (rt, path, oss) = (rt.clone(), dir.path().to_path_buf(), oss.clone());
        let ip = if let Nid::Tcp(address) = oss.nid() { Some(address.ip()) } else { None };
        let turn = Rc::new(Semaphore::new(1));
        Rc::new(Here { rt, path, config: config.clone(), key: key.clone(), mds: mds.clone(), oss, ip, turn })
    }

    /// Serves OSTs whose stores come into their places, or open at last, as long as the process lives: those in `named`, or all of the
    /// directory. `served` are served already; `left` are not, and it was told why. What the directory says by now is followed at once,
    /// what its places hold is looked at every 10 s. An OST that the cluster does not let in, for its store is an older copy, is tried again
    /// when another store is in its place, or the directory was changed.
    pub async fn watch(self: Rc<Self>, mut served: Vec<u16>, left: Vec<(u16, String)>, mut named: Option<Vec<u16>>) {
        let mut told: HashMap<u16, String> = left.into_iter().collect();
        let mut refused: HashMap<u16, Option<u64>> = HashMap::new();
        let (mut seen, mut tried) = (changed(&self.rt, &self.path).await, self.rt.now());
        loop {
            self.rt.sleep(LOOK_EVERY).await;
            for ost in self.turned_out().await {
                served.retain(|i| *i != ost);
                named.iter_mut().filter(|n| !n.contains(&ost)).for_each(|n| n.push(ost));
                refused.insert(ost, store_in_place(&self.rt, &self.path, ost).await);
            }
            let now = changed(&self.rt, &self.path).await;
            let is_changed = std::mem::replace(&mut seen, now) != now;
            if !is_changed && self.rt.now().since(tried) < TRY_EVERY {
                continue;
            }
            for (ost, store) in std::mem::take(&mut refused) {
                if !is_changed && store_in_place(&self.rt, &self.path, ost).await == store {
                    refused.insert(ost, store);
                }
            }
            let (s, n): (Vec<u16>, _) = (served.iter().chain(refused.keys()).copied().collect(), named.clone());
            let wanted = move |i: &u16| !s.contains(i) && n.as_ref().is_none_or(|n| n.contains(i));
            let Some((dir, new)) = look(&self.rt, &self.path, wanted).await else { continue };
            for ost in served.iter().filter(|ost| !dir.has_ost(**ost)) {
                if let Err(e) = self.end(*ost).await {
                    tracing::error!("{e}");
                }
            }
            served.retain(|ost| dir.has_ost(*ost));
            for ost in new {
                match self.serve(ost).await {
                    Ok(()) => {
                        if told.remove(&ost).is_some() {
                            tracing::warn!("OST {ost} is served now");
                        }
                        served.push(ost);
                    }
                    Err(e) => {
                        let why = of_ost(ost, &e);
                        if told.get(&ost) != Some(&why) {
                            tracing::error!("{}: {why}; it is tried again", self.path.display());
                            told.insert(ost, why);
                        }
                    }
                }
            }
            tried = self.rt.now();
        }
    }

    /// OSTs of this process that the cluster did not let in since this was asked last.
    async fn turned_out(&self) -> Vec<u16> {
        let names = self.oss.each(|oss| oss.take_turned_out()).await.concat();
        let index = |name: &String| u16::from_str_radix(name.rsplit_once("-OST")?.1, 16).ok();
        names.iter().filter_map(index).collect()
    }

    /// The metadata server will not have a target of this process: those that have left the cluster are served no longer, and struck out of
    /// the directory. Whether there was one.
    pub async fn let_go_removed(&self) -> bool {
        let asked = cluster::ask_mds(&self.rt, (&self.mds, &self.key), wire::Op::Config, &(), ASK_WAIT).await;
        let Ok(map): Result<wire::connect::ConfigReply, _> = asked else { return false };
        let mut any = false;
        for ost in map.removed.iter().map(|o| o.0) {
            let Ok(mut dir) = ClusterDir::open(&self.path) else { return any };
            if dir.has_ost(ost) && self.end(ost).await.and_then(|()| dir.strike_out(ost)).is_ok() {
                tracing::warn!(
                    "OST {ost} has left the cluster: its store in {} is of no use any more",
                    dir.ost(ost).display()
                );
                any = true;
            }
        }
        any
    }
}

/// When a directory was changed last. As all that is looked at here it may lie on a file system that does not answer: a worker waits for it,
/// not those whom this thread serves.
async fn changed(rt: &Rt, path: &Path) -> Option<SystemTime> {
    let file = path.join("cluster.toml");
    rt.offload(move || std::fs::metadata(file).and_then(|m| m.modified()).ok()).await
}

/// Which store is in an OST's place: its database's file.
async fn store_in_place(rt: &Rt, path: &Path, ost: u16) -> Option<u64> {
    let file = path.join(format!("ost{ost}")).join("meta.redb");
    rt.offload(move || std::fs::metadata(file).map(|m| m.ino()).ok()).await
}

/// A directory as it is now, and those OSTs among the `wanted` ones whose places hold something.
async fn look(rt: &Rt, path: &Path, wanted: impl Fn(&u16) -> bool + Send + 'static) -> Option<(ClusterDir, Vec<u16>)> {
    let path = path.to_path_buf();
    let look = move || {
        let dir = ClusterDir::open(&path).ok()?;
        let new = dir.ost_indices().into_iter().filter(wanted).filter(|i| !is_free(&dir.ost(*i))).collect();
        Some((dir, new))
    };
    rt.offload(look).await
}

/// How often a server of all OSTs of its directory looks whether there are more.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often OSTs are tried that are not served.
const TRY_EVERY: Duration = Duration::from_secs(10);
/// How long the metadata server may take to say which OSTs have left.
const ASK_WAIT: Duration = Duration::from_secs(10);

impl Growth for Here {
    fn serve(&self, ost: u16) -> LocalFuture<Outcome> {
        let (rt, oss, path, turn) = (self.rt.clone(), self.oss.clone(), self.path.clone(), self.turn.clone());
        let mut config = self.config.clone();
        // An address that no later life of the OST has: clients of this process know the earlier one as closed.
        let local = Nid::Local(format!("oss-{ost}-{:x}", rt.random() as u32));
        let nid = self.ip.map_or(local, |ip| Nid::Tcp(SocketAddr::new(ip, 0)));
        let place = OssPlace { nid, mds: self.mds.clone(), key: self.key.clone() };
        Box::pin(async move {
            let dir = directory(&path, ost)?;
            // A part of what the process has for all OSTs.
            config.oss.cache_bytes /= u64::from(dir.osts().max(1));
            let target = format!("{}-OST{ost:04x}", dir.fsname);
            turn.acquire(1).await;
            let begun = async {
                // Served already, or its keeper opens what lies in its place by now.
                if !oss.each(move |o| o.is_kept(&target)).await.contains(&true) {
                    let (dir, refuse, at_once) = (Arc::new(dir), Unopened::Refuse(|_, e| e), ready(Ok(())));
                    oss.grow(settings::start_oss(&rt, &dir, &[ost], &place, &config, refuse, at_once).await?);
                }
                Ok(())
            };
            let begun = begun.await;
            turn.add(1);
            begun
        })
    }
    fn end(&self, ost: u16) -> LocalFuture<Outcome> {
        let (oss, path) = (self.oss.clone(), self.path.clone());
        Box::pin(async move {
            let target = format!("{}-OST{ost:04x}", ClusterDir::open(&path)?.fsname);
            let ended = oss.take_out(&target).await;
            ended.map_err(|e| Failure::with_errno(format!("OST {ost}: its store: {e}"), e.errno()))
        })
    }
}

/// Each OST has a process of its own.
pub struct Processes {
    rt: Rt,
    path: PathBuf,
    told: Vec<OsString>,
    config: Config,
    shares: Shares,
    children: Arc<Mutex<Children>>,
}

impl Processes {
    /// For a process that starts the servers of a directory as `children`.
    pub fn begin(
        rt: &Rt,
        dir: &ClusterDir,
        told: &cli::Settings,
        (config, shares): (&Config, Shares),
        children: &Arc<Mutex<Children>>,
    ) -> Rc<dyn Growth> {
        let (rt, path, told) = (rt.clone(), dir.path().to_path_buf(), settings_arguments(told));
        Rc::new(Processes { rt, path, told, config: config.clone(), shares, children: children.clone() })
    }
}

impl Growth for Processes {
    fn serve(&self, ost: u16) -> LocalFuture<Outcome> {
        let (rt, children, path) = (self.rt.clone(), self.children.clone(), self.path.clone());
        let (told, config, shares) = (self.told.clone(), self.config.clone(), self.shares);
        Box::pin(async move {
            let dir = directory(&path, ost)?;
            rt.offload(move || {
                let mut children = children.lock().expect("whoever starts or stops a server under it does not panic");
                if children.has(&format!("ost{ost}")) {
                    return Ok(());
                }
                let host = |name: &str| Host { netns: None, settings: own_settings(name, &config, shares) };
                start_ost(&mut children, &dir, ost, &told, &host, false)
            })
            .await
        })
    }
    fn end(&self, ost: u16) -> LocalFuture<Outcome> {
        let (rt, children) = (self.rt.clone(), self.children.clone());
        Box::pin(async move {
            rt.offload(move || {
                children
                    .lock()
                    .expect("whoever starts or stops a server under it does not panic")
                    .stop_one(&format!("ost{ost}"));
            })
            .await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_directory_that_does_not_answer_keeps_nobody_waiting_but_who_looks_at_it() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("cluster.toml");
        let name = CString::new(file.as_os_str().as_bytes()).unwrap();
        // SAFETY: a string that ends with zero. Whoever reads the pipe waits for somebody who writes.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let path = place.path().to_path_buf();
        let found = rt::real::run(frames::FramePool::new(1 << 20), |rt| async move {
            let ((tell, told), own) = (rt::sync::oneshot(), rt.clone());
            rt.spawn(async move { tell.send(look(&own, &path, |_| true).await.is_some()) });
            rt.offload(move || std::fs::write(file, "of no cluster")).await.unwrap();
            told.await
        });
        assert_eq!(found.unwrap(), Some(false));
    }
}
