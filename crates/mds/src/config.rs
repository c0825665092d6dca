//! Settings of a metadata server, and the one table from which keys, parser and reference page come.
use std::fmt;

use layout::{AllocConfig, LayoutSpec};
use ldlm::NamespaceConfig;
use ptlrpc::ClusterKey;
use types::settings::{ConfigError, KeyDoc, parse};
use types::{Duration, OstIndex};

use crate::osts::Connector;
use crate::store::CommitConfig;

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
    /// Opens of one client. Default 262,144.
    pub opens_max: usize,
    /// OSTs that nobody serves for now: clients are told not to use them, until one of them has a session.
    pub away: Vec<OstIndex>,
    /// The store that it must be: cluster id and uuid. `None`: any.
    pub store: Option<(u64, u64)>,
    /// Memory of the trace of requests, bytes; 0: none is kept. Default 4 MiB.
    pub trace_bytes: u64,
    /// How long a create waits when no OST has objects ready. Default 30 s.
    pub object_wait: Duration,
    /// Whether what rests on another client's uncommitted change is answered only when that is committed. Off: as earlier builds,
    /// for tests of what they leave behind.
    pub commit_on_sharing: bool,
    /// How OSTs are reached; `None`: over sessions to the addresses of the cluster map. For tests.
    pub connector: Option<ConnectorBox>,
}

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
        let mut config = MdsConfig {
            nid: String::new(),
            key: ClusterKey::none(),
            commit: CommitConfig::default(),
            default_layout: LayoutSpec::default(),
            alloc: AllocConfig::default(),
            alloc_policy: layout::POLICY_DEFAULT.into(),
            locks: NamespaceConfig::default(),
            check_bytes_max: 1 << 30,
            opens_max: 0,
            away: Vec::new(),
            store: None,
            trace_bytes: 0,
            object_wait: Duration::ZERO,
            commit_on_sharing: true,
            connector: None,
        };
        for row in MdsConfig::KEYS {
            config.put(row.key, row.default);
        }
        config
    }
}

const fn row(key: &'static str, default: u64, min: u64, max: u64, meaning: &'static str) -> KeyDoc {
    KeyDoc { key, default, min, max, alias_mb: "", meaning }
}

impl MdsConfig {
    /// The table: every key with default, range and meaning. All take effect at the next start.
    pub const KEYS: &'static [KeyDoc] = &[
        row(
            "commit_interval_ms",
            100,
            1,
            10_000,
            "Milliseconds the oldest change waits at most for its commit to begin; larger batches cost less and lose more with client and server together.",
        ),
        row("commit_idle_ms", 5, 1, 10_000, "Milliseconds without a change after which the commit begins at once."),
        row(
            "commit_keys_max",
            65_536,
            64,
            1 << 24,
            "Changed keys above which the commit begins at once, and above four times which operations wait; about 300 bytes of memory each.",
        ),
        row(
            "locks_max",
            1 << 19,
            1024,
            1 << 26,
            "Locks that clients hold at most in all, about 250 bytes of memory each; beyond it answers come without locks.",
        ),
        row(
            "lock_callback_timeout_ms",
            30_000,
            1_000,
            600_000,
            "Milliseconds a client has to give a lock back before it is evicted.",
        ),
        row(
            "opens_max",
            1 << 18,
            64,
            1 << 26,
            "Files that one client has open at most, about 200 bytes of memory each; beyond it open(2) fails with ENFILE.",
        ),
        row(
            "trace_bytes",
            4 << 20,
            0,
            1 << 30,
            "Bytes of memory in which the target keeps what happened to the requests of late ('stria trace'), about 140 a request; 0: none.",
        ),
        row("object_wait_ms", 30_000, 0, 600_000, "Milliseconds a create waits when no OST has objects ready."),
    ];

    /// A key's value.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<u64> {
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        Some(match key {
            "commit_interval_ms" => ms(self.commit.interval),
            "commit_idle_ms" => ms(self.commit.idle),
            "commit_keys_max" => self.commit.keys_max as u64,
            "locks_max" => self.locks.locks_max as u64,
            "lock_callback_timeout_ms" => ms(self.locks.callback_timeout),
            "opens_max" => self.opens_max as u64,
            "trace_bytes" => self.trace_bytes,
            "object_wait_ms" => ms(self.object_wait),
            _ => return None,
        })
    }

    /// Sets a key from text.
    ///
    /// # Errors
    /// [`ConfigError`]; the configuration stays as it was.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), ConfigError> {
        let (key, value) = parse("mds", Self::KEYS, key, text)?;
        self.put(key, value);
        Ok(())
    }

    /// Stores a value that is in its row's range.
    fn put(&mut self, key: &str, value: u64) {
        let (ms, count) = (Duration::from_millis(value), usize::try_from(value).unwrap_or(usize::MAX));
        match key {
            "commit_interval_ms" => self.commit.interval = ms,
            "commit_idle_ms" => self.commit.idle = ms,
            "commit_keys_max" => self.commit.keys_max = count,
            "locks_max" => self.locks.locks_max = count,
            "lock_callback_timeout_ms" => self.locks.callback_timeout = ms,
            "opens_max" => self.opens_max = count,
            "trace_bytes" => self.trace_bytes = value,
            "object_wait_ms" => self.object_wait = ms,
            _ => unreachable!("only keys of the table come here"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_default_takes_its_bounds_and_refuses_what_is_outside() {
        let mut c = MdsConfig::default();
        for k in MdsConfig::KEYS {
            assert_eq!(c.get(k.key), Some(k.default), "{}", k.key);
            for v in [k.min, k.max] {
                c.set(k.key, &v.to_string()).unwrap();
                assert_eq!(c.get(k.key), Some(v));
            }
            let e = c.set(k.key, &(k.max + 1).to_string()).unwrap_err().to_string();
            assert!(e.contains(k.key) && e.contains(&k.max.to_string()), "{e}");
        }
        assert!(
            c.set("commit_ms", "1").unwrap_err().to_string().contains("'mds.commit_ms': known are commit_interval_ms")
        );
    }
}
