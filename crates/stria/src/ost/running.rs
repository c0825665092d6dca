//! A cluster as those know it who run it on this host, also where nothing of it is mounted here: which OSTs it has, and how that is changed.
use std::time::Instant;

use cluster::ask_mds;
use ptlrpc::ClusterKey;
use rt::{Nid, Rt};
use serde_json::{Value, json};
use types::{Duration, OstIndex};
use wire::Op;
use wire::connect::{ConfigReply, MapChange, MapChangeReply, MapChangeRequest};

use super::Cluster;
use crate::config::Config;
use crate::control;
use crate::daemon::{ClusterDir, find_key, on_shard};
use crate::failure::{Failure, Outcome};

/// How long the metadata server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a server that runs may take to serve a store that was made for it.
const SERVED_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);
/// How often it is looked whether it does.
const LOOK: std::time::Duration = std::time::Duration::from_millis(200);

/// An OST of the cluster map.
pub struct KnownOst {
    pub index: u16,
    /// Its store.
    pub uuid: u64,
    /// Clients use it: it is served, and nobody has deactivated it.
    pub active: bool,
}

/// What is known of the cluster's OSTs outside its directory; nothing where the cluster does not run.
#[derive(Default)]
pub struct Running {
    /// In the cluster map.
    pub osts: Vec<KnownOst>,
    /// Left the cluster.
    pub removed: Vec<u16>,
    /// The daemon that serves all of the directory, if one does.
    pub up: Option<Cluster>,
    /// The metadata server, where it is a process of its own.
    mds: Option<(Nid, ClusterKey)>,
}

impl Running {
    /// Which OSTs there are: as a mount of the directory's cluster says, or the metadata server itself. `mds`: the address that the user gave.
    ///
    /// # Errors
    /// Nobody who runs can be asked, and the metadata store is not here; the server is another cluster's.
    pub fn look(mds: Option<&str>, dir: &ClusterDir, config: &Config) -> Result<Running, Failure> {
        if dir.is_served("up") {
            let cluster = Cluster::at(crate::upkeep::mount_of(dir)?)?;
            let (osts, removed) = (of_mount(&cluster), cluster.list("removed"));
            return Ok(Running { osts, removed, up: Some(cluster), mds: None });
        }
        let mds = match mds {
            Some(text) => Some(address(text)?),
            None => dir.last_nid("mdt0").filter(|_| dir.is_served("mdt0")),
        };
        let Some(mds) = mds else {
            let has = |file: &str| dir.mdt().join(file).exists();
            let whole = dir.uuid_of("mdt0").is_some() && (has(store_redb::STORE_FILE) || has(store_pg::PLACE_FILE));
            if !whole {
                let why = format!("the metadata server of '{}' is on another machine: say --mds ADDRESS", dir.fsname);
                return Err(Failure::usage(why));
            }
            return Ok(Running::default());
        };
        let key = find_key(config, Some(dir))?;
        let map = on_shard(frames::FramePool::new(16 << 20), async |rt| map_of(&rt, &mds, &key).await)?;
        if map.cluster != dir.cluster {
            let why = format!(
                "{} is of cluster {:016x}, the metadata server at {mds} of cluster {:016x}: name its own directory",
                dir.path().display(),
                dir.cluster,
                map.cluster
            );
            return Err(Failure::with_errno(why, libc::EXDEV));
        }
        let osts = map.osts.iter().map(|e| KnownOst { index: e.ost.0, uuid: e.uuid, active: e.active }).collect();
        Ok(Running { osts, removed: map.removed.iter().map(|o| o.0).collect(), up: None, mds: Some((mds, key)) })
    }
    /// Looks until nothing is `missing` any more.
    ///
    /// # Errors
    /// An OST is missing for [`SERVED_WITHIN`].
    pub fn wait(
        mds: Option<&str>,
        dir: &ClusterDir,
        config: &Config,
        missing: impl Fn(&Running) -> Option<u16>,
    ) -> Outcome {
        let until = Instant::now() + SERVED_WITHIN;
        while let Some(ost) = missing(&Running::look(mds, dir, config)?) {
            if Instant::now() >= until {
                let why = format!(
                    "the store of OST {ost} was made and is not served within {} s: the log of the server of {} says why",
                    SERVED_WITHIN.as_secs(),
                    dir.path().display()
                );
                return Err(Failure::with_errno(why, libc::ETIMEDOUT));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Whether the cluster runs.
    pub fn runs(&self) -> bool {
        self.up.is_some() || self.mds.is_some()
    }
    /// Indices of the OSTs.
    pub fn indices(&self) -> impl Iterator<Item = u16> {
        self.osts.iter().map(|o| o.index)
    }
    /// Whether an OST is in the map.
    pub fn has(&self, index: u16) -> bool {
        self.indices().any(|i| i == index)
    }
    /// Whether clients use an OST, and its store is this one.
    pub fn uses(&self, index: u16, uuid: u64) -> bool {
        self.osts.iter().any(|o| o.index == index && o.uuid == uuid && o.active)
    }
    /// Whether an OST has another store in the map than this one.
    pub fn names_another(&self, index: u16, uuid: u64) -> bool {
        self.osts.iter().any(|o| o.index == index && o.uuid != uuid && o.uuid != 0)
    }
    /// Has the daemon of `up` serve an OST, and waits until its mounts reach it.
    ///
    /// # Errors
    /// Why it is not served.
    pub fn serve(&self, index: u16) -> Outcome {
        let Some(up) = &self.up else { return Ok(()) };
        control::ask(up.connection, &json!({"do": "serve_ost", "ost": index})).map(drop)
    }
    /// Names a store as an OST's, in the place of one that is lost. The highest object that the lost one may have held.
    ///
    /// # Errors
    /// What the metadata server says.
    pub fn replace(&self, index: u16, uuid: u64) -> Result<u32, Failure> {
        self.change(("replace_ost", MapChange::ReplaceOst), index, uuid)
    }
    /// Has the older copy of an OST's store let in that was refused.
    ///
    /// # Errors
    /// What the metadata server says.
    pub fn accept(&self, index: u16) -> Outcome {
        self.change(("accept_older", MapChange::AcceptOlder), index, 0).map(drop)
    }
    fn change(&self, (name, what): (&str, MapChange), index: u16, uuid: u64) -> Result<u32, Failure> {
        if let Some(up) = &self.up {
            let asked = json!({"do": "change_map", "what": name, "osts": [index], "uuid": uuid});
            let answer = control::ask(up.connection, &asked)?;
            return Ok(answer["lost_through"].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX));
        }
        let Some((mds, key)) = &self.mds else { return Err("the cluster does not run".to_string().into()) };
        on_shard(frames::FramePool::new(16 << 20), async |rt| {
            let osts = vec![OstIndex(index)];
            let q = MapChangeRequest { id: rt.random().max(1), what, osts, uuid, ..MapChangeRequest::default() };
            let asked: Result<MapChangeReply, _> = ask_mds(&rt, (mds, key), Op::MapChange, &q, PATIENCE).await;
            let reply = asked.map_err(|e| unasked(mds, e))?;
            if reply.errno != 0 {
                let why = String::from_utf8_lossy(&reply.why).into_owned();
                return Err(Failure::with_errno(why, i32::from(reply.errno)));
            }
            Ok(reply.lost_through)
        })
    }
}

/// The OSTs as a mount tells them.
fn of_mount(cluster: &Cluster) -> Vec<KnownOst> {
    let inactive = cluster.list("inactive");
    let stores = cluster.map["stores"].as_array().map(Vec::as_slice).unwrap_or_default();
    let uuid = |value: &Value| u64::from_str_radix(value.as_str()?, 16).ok();
    let uuids = stores.iter().map(uuid).chain(std::iter::repeat(None));
    let one = |(index, uuid): (u16, Option<u64>)| {
        let active = !inactive.contains(&index);
        KnownOst { index, uuid: uuid.unwrap_or(0), active }
    };
    cluster.list("osts").into_iter().zip(uuids).map(one).collect()
}

/// Reads the address of a metadata server.
///
/// # Errors
/// The text is none.
pub fn address(text: &str) -> Result<Nid, Failure> {
    Nid::parse(text).map_err(|e| Failure::usage(format!("--mds: {e}")))
}

/// Asks a metadata server for the cluster map.
///
/// # Errors
/// It does not answer, or has another key.
pub async fn map_of(rt: &Rt, mds: &Nid, key: &ClusterKey) -> Result<ConfigReply, Failure> {
    ask_mds(rt, (mds, key), Op::Config, &(), PATIENCE).await.map_err(|e| unasked(mds, e))
}

fn unasked(mds: &Nid, e: types::FsError) -> Failure {
    let why = match e {
        types::FsError::Access => {
            format!("it has another key (check --key or DIR/keys/admin.key), or {}", crate::credential::ENCRYPTS)
        }
        types::FsError::NotPermitted => "this takes the administrator's key (DIR/keys/admin.key)".to_string(),
        types::FsError::TimedOut => "it does not answer: does it run, and is the address right?".to_string(),
        e => e.to_string(),
    };
    Failure::with_errno(format!("the metadata server at {mds}: {why}"), e.errno())
}
