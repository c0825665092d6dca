//! Settings of a metadata server, and the table of keys that users set them by.
use std::fmt;
use std::path::{Path, PathBuf};

use layout::{AllocConfig, LayoutSpec};
use ldlm::NamespaceConfig;
use ptlrpc::ClusterKey;
use types::params::{bytes, number};
use types::{Duration, GIB, OstIndex};

use crate::osts::Connector;
use crate::store::CommitConfig;

types::keys! {
    /// What users can set of a metadata server.
    struct Keys {
        /// Longest time between an answered change and its commit at the MDS; larger batches cost less and lose more with client
        /// and server together.
        commit_interval_ms: u64 = "mds.commit_interval_ms", number(1, 10_000, "ms"), "100", Process, Restart;
        /// Time without a change after which the commit begins at once.
        commit_idle_ms: u64 = "mds.commit_idle_ms", number(1, 10_000, "ms"), "5", Process, Restart;
        /// Changed keys of the store above which the commit begins at once, and above four times which operations wait; about 300 bytes
        /// of memory each.
        commit_keys_max: u64 = "mds.commit_keys_max", number(64, 1 << 24, "keys"), "65536", Process, Restart;
        /// Locks that clients hold at most in all, about 250 bytes of memory each; beyond it answers come without locks.
        locks_max: u64 = "mds.locks_max", number(1024, 1 << 26, "locks"), "524288", Process, Restart;
        /// Time that a client has to give a lock back before it is evicted.
        lock_callback_timeout_ms: u64 = "mds.lock_callback_timeout_ms", number(1_000, 600_000, "ms"), "30000", Process, Restart;
        /// Files that one client has open at most, about 200 bytes of the MDS each; beyond it open(2) fails with ENFILE. One user, other than root, has three quarters of them.
        opens_max: u64 = "mds.opens_max", number(64, 1 << 26, "opens"), "262144", Process, Restart;
        /// Memory in which the metadata target keeps what happened to the requests of late ('stria trace'), about 140 bytes a request. 0: none.
        trace_bytes: u64 = "mds.trace_bytes", bytes(0, GIB), "4M", Process, Live("mdt.*.trace_bytes");
        /// Time that a create waits when no OST has objects ready.
        object_wait_ms: u64 = "mds.object_wait_ms", number(0, 600_000, "ms"), "30000", Process, Restart;
    }
}

/// Settings of a metadata server.
#[derive(Clone, Debug)]
pub struct MdsConfig {
    /// The address under which clients reach it, as the cluster map tells it.
    pub nid: String,
    /// Shared secret of the cluster, for connections to OSTs.
    pub key: ClusterKey,
    /// When changes are committed.
    pub commit: CommitConfig,
    /// Layout of new files where neither request nor directory says more. Default: 4 MiB stripes, one stripe.
    pub default_layout: LayoutSpec,
    /// OST allocation.
    pub alloc: AllocConfig,
    /// Allocator, by name. Default `auto`.
    pub alloc_policy: String,
    /// Lock tables.
    pub locks: NamespaceConfig,
    /// A database of so many bytes at most is compared with its checksums before it is opened, by whoever opens it; 0: none is.
    /// Default 1 GiB.
    pub check_bytes_max: u64,
    /// Bytes of the own cache of a database in a file, of whoever opens it; one elsewhere has more, in proportion. Default 64 MiB.
    pub db_cache_bytes: usize,
    /// Opens of one client.
    pub opens_max: usize,
    /// OSTs that nobody serves for now: clients are told not to use them, until one of them has a session.
    pub away: Vec<OstIndex>,
    /// The store that it must be: cluster id and uuid. `None`: any.
    pub store: Option<(u64, u64)>,
    /// Memory of the trace of requests, bytes; 0: none is kept.
    pub trace_bytes: u64,
    /// How long a create waits when no OST has objects ready.
    pub object_wait: Duration,
    /// Whether what rests on another client's uncommitted change is answered only when that is committed. Off: as earlier builds,
    /// for tests of what they leave behind.
    pub commit_on_sharing: bool,
    /// Where a file that a parameter names lies, or why it must not be looked at. Runs on a worker. Default: as it is named.
    pub place_of: PlaceOf,
    /// How OSTs are reached; `None`: over sessions to the addresses of the cluster map. For tests.
    pub connector: Option<ConnectorBox>,
}

/// Says where a file lies that may lie on a mount which needs this server, and which no thread of it may wait for therefore.
pub type PlaceOf = fn(&Path) -> Result<PathBuf, String>;

/// A [`Connector`] that prints as a word.
#[derive(Clone)]
pub struct ConnectorBox(pub Connector);
impl fmt::Debug for ConnectorBox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl Default for MdsConfig {
    fn default() -> Self {
        MdsConfig::of(&Keys::default())
    }
}

impl MdsConfig {
    /// As the keys say.
    #[must_use]
    pub fn of(keys: &Keys) -> MdsConfig {
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let commit = CommitConfig {
            interval: Duration::from_millis(keys.commit_interval_ms),
            idle: Duration::from_millis(keys.commit_idle_ms),
            keys_max: count(keys.commit_keys_max),
        };
        let locks = NamespaceConfig {
            locks_max: count(keys.locks_max),
            callback_timeout: Duration::from_millis(keys.lock_callback_timeout_ms),
            ..NamespaceConfig::default()
        };
        MdsConfig {
            nid: String::new(),
            key: ClusterKey::none(),
            commit,
            default_layout: LayoutSpec::default(),
            alloc: AllocConfig::default(),
            alloc_policy: layout::POLICY_DEFAULT.into(),
            locks,
            check_bytes_max: 1 << 30,
            db_cache_bytes: 64 << 20,
            opens_max: count(keys.opens_max),
            away: Vec::new(),
            store: None,
            trace_bytes: keys.trace_bytes,
            object_wait: Duration::from_millis(keys.object_wait_ms),
            commit_on_sharing: true,
            place_of: |path| Ok(path.to_path_buf()),
            connector: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use types::params::Keys as _;

    use super::*;

    #[test]
    fn every_key_takes_its_default_and_refuses_what_is_outside() {
        let mut keys = Keys::default();
        for row in Keys::ROWS {
            assert_eq!(keys.put(row.key, row.default), Ok(true));
            assert!(keys.put(row.key, "99999999999999").is_err(), "{}", row.key);
        }
        assert_eq!(keys, Keys::default());
        assert_eq!(keys.put("mds.commit_interval_ms", "7"), Ok(true));
        assert_eq!(MdsConfig::of(&keys).commit.interval, Duration::from_millis(7));
    }
}
