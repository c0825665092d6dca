//! The stores of a cluster whose servers are down, as `stria fsck` finds them.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use fsck::{Store, Stores};
use mds::MetaKv;
use rt::Rt;

use super::super::nodes::{CLUSTER_ID, Cluster, FSNAME, MDT_DIR, Node, OST_DIR};

/// Memory for pages of a database that is read.
const CACHE_BYTES: usize = 1 << 20;

/// See the module's head. Each host runs one process for it, until it is dropped.
pub struct Down<'a> {
    cluster: &'a Cluster,
    mdt: Rt,
    osts: BTreeMap<u16, Rt>,
    said: RefCell<Vec<String>>,
}

impl Down<'_> {
    /// The stores of a cluster of which no server runs.
    #[must_use]
    pub fn of(cluster: &Cluster) -> Down<'_> {
        let osts = cluster.ost_indices().into_iter().zip(cluster.osses());
        let osts = osts.map(|(i, oss)| (i as u16, oss.host().boot())).collect();
        Down { cluster, mdt: cluster.mds.host().boot(), osts, said: RefCell::default() }
    }
    /// What was said since it was asked for last.
    #[must_use]
    pub fn said(&self) -> Vec<String> {
        self.said.take()
    }
    fn servers(&self) -> impl Iterator<Item = &Rc<Node>> {
        std::iter::once(&self.cluster.mds).chain(self.cluster.osses())
    }
}

impl Drop for Down<'_> {
    fn drop(&mut self) {
        self.servers().for_each(|node| node.host().kill());
    }
}

impl Stores for Down<'_> {
    fn cluster(&self) -> u64 {
        CLUSTER_ID
    }
    fn fsname(&self) -> &str {
        FSNAME
    }
    fn mdt_uuid(&self) -> Option<u64> {
        self.cluster.mdt_uuid.get()
    }
    fn mdt(&self) -> Store {
        Store { rt: self.mdt.clone(), dir: MDT_DIR.into() }
    }
    async fn mdt_elsewhere(&self) -> Result<Option<Rc<dyn MetaKv>>, String> {
        if !self.cluster.has_database() {
            return Ok(None);
        }
        self.cluster.mdt_store(&self.mdt).await.map(Some)
    }
    fn osts(&self) -> Vec<u16> {
        self.osts.keys().copied().collect()
    }
    fn ost(&self, index: u16) -> Store {
        Store { rt: self.osts[&index].clone(), dir: OST_DIR.into() }
    }
    async fn is_in_place(&self, index: u16) -> Result<(), String> {
        let found = store_file::identity(&self.osts[&index], Path::new(OST_DIR)).await;
        let (found, _) = found.map_err(|e| format!("OST {index}: {e}"))?;
        let is = found.cluster == CLUSTER_ID && found.ost.0 == index;
        if is { Ok(()) } else { Err(format!("OST {index}: its store is OST {}", found.ost.0)) }
    }
    fn cache_bytes(&self) -> usize {
        CACHE_BYTES
    }
    fn say(&self, text: &str) {
        tracing::debug!("fsck: {text}");
        self.said.borrow_mut().push(text.into());
    }
}
