//! Which stores a cluster has, and a store in another one's place: for `stria mkfs`, while the cluster is stopped.
//!
//! The cluster map names the new store, and object ids go on behind those that the lost one may have given out, so that an
//! id of before is never an object of the new store.
use std::rc::Rc;
use std::sync::Arc;

use types::OstIndex;
use wire::connect::RefusedOst;

use crate::config_service::ClusterMap;
use crate::keys;
use crate::kv::{KvBatch, KvError, KvSnapshot, MetaKv};
use crate::record::PrecreateRow;
use crate::start::{get, read_superblock};

/// The stores of a cluster, as its metadata store knows them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stores {
    /// Cluster id.
    pub cluster: u64,
    /// Of the metadata store itself.
    pub uuid: u64,
    /// Of the OSTs that ever registered.
    pub osts: Vec<(OstIndex, u64)>,
    /// OSTs that left the cluster.
    pub removed: Vec<OstIndex>,
}

/// Reads which stores there are.
///
/// # Errors
/// The store failed, is not formatted, or a record is damaged.
pub async fn stores(kv: &Rc<dyn MetaKv>) -> Result<Stores, KvError> {
    let snapshot = kv.snapshot().await?;
    let sb = read_superblock(&*snapshot).await.map_err(|e| damaged("superblock", &e))?;
    let map = map(&*snapshot).await?.unwrap_or_default();
    let removed = map.removed.iter().map(|r| r.ost).collect();
    let osts = map.osts.iter().map(|e| (e.ost, e.uuid)).collect();
    Ok(Stores { cluster: sb.cluster, uuid: sb.uuid, osts, removed })
}

fn damaged(key: &str, why: &dyn std::fmt::Display) -> KvError {
    KvError::Corrupt { key: key.into(), why: why.to_string() }
}

async fn map(snapshot: &dyn KvSnapshot) -> Result<Option<ClusterMap>, KvError> {
    let value = get(snapshot, &keys::plain(keys::CLUSTER_MAP)).await?;
    value.map(|v| wire::decode(&v).map_err(|e| damaged("cluster map", &e))).transpose()
}

/// Highest object id that an OST may have given out so far; 0: none.
///
/// # Errors
/// The store failed, or a record is damaged.
pub async fn last_object(kv: &Rc<dyn MetaKv>, ost: OstIndex) -> Result<u32, KvError> {
    let snapshot = kv.snapshot().await?;
    let Some(value) = get(&*snapshot, &keys::precreate(ost)).await? else { return Ok(0) };
    let row: PrecreateRow = wire::decode(&value).map_err(|e| damaged("allocation state", &e))?;
    Ok(row.ceiling.max(row.last_used))
}

/// Names store `uuid` as OST `ost`, whose objects up to `lost_through` are lost. An OST that never registered is left to
/// do so.
///
/// # Errors
/// The store failed, or a record is damaged; nothing changed then.
pub async fn replace_ost(kv: &Rc<dyn MetaKv>, ost: OstIndex, uuid: u64, lost_through: u32) -> Result<(), KvError> {
    let row = PrecreateRow { last_used: lost_through, ceiling: lost_through, ..PrecreateRow::default() };
    name_store(kv, ost, uuid, lost_through, row).await
}

/// The same in a metadata store that was put back from a copy of before the replacement: what the OST has given out since stays.
///
/// # Errors
/// As [`replace_ost`].
pub async fn replaced_since(kv: &Rc<dyn MetaKv>, ost: OstIndex, uuid: u64, lost_through: u32) -> Result<(), KvError> {
    let known = last_object(kv, ost).await?.max(lost_through);
    let row = PrecreateRow { last_used: known, ceiling: known, newer: true, ..PrecreateRow::default() };
    name_store(kv, ost, uuid, lost_through, row).await
}

/// In a metadata store that was put back from a copy, which lists an OST that was removed since: nobody serves it, and it is not waited for.
/// `why` is told to whoever asks.
///
/// # Errors
/// As [`replace_ost`].
pub async fn removed_since(kv: &Rc<dyn MetaKv>, ost: OstIndex, why: &str) -> Result<(), KvError> {
    let snapshot = kv.snapshot().await?;
    let Some(mut map) = map(&*snapshot).await? else { return Ok(()) };
    drop(snapshot);
    map.refused.retain(|r| r.ost != ost);
    let at = map.refused.partition_point(|r| r.ost < ost);
    map.refused.insert(at, RefusedOst { ost, why: why.into(), boot: 0, mark: 0 });
    map.epoch += 1;
    let mut batch = KvBatch::default();
    batch.changes.insert(keys::plain(keys::CLUSTER_MAP), Some(wire::encode(&map)));
    kv.commit(Arc::new(batch)).await
}

async fn name_store(
    kv: &Rc<dyn MetaKv>,
    ost: OstIndex,
    uuid: u64,
    lost_through: u32,
    row: PrecreateRow,
) -> Result<(), KvError> {
    let snapshot = kv.snapshot().await?;
    let (map_key, row_key) = (keys::plain(keys::CLUSTER_MAP), keys::precreate(ost));
    let mut batch = KvBatch::default();
    if let Some(mut map) = map(&*snapshot).await?
        && let Some(entry) = map.osts.iter_mut().find(|e| e.ost == ost)
    {
        entry.uuid = uuid;
        map.epoch += 1;
        map.lose(ost, 0, lost_through);
        map.forget_openings(ost);
        batch.changes.insert(map_key, Some(wire::encode(&map)));
    }
    if lost_through > 0 {
        batch.changes.insert(row_key, Some(wire::encode(&row)));
    }
    drop(snapshot);
    if batch.changes.is_empty() { Ok(()) } else { kv.commit(Arc::new(batch)).await }
}
