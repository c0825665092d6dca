//! Every parameter a scenario can set, declared once: key, default, range, meaning. `--set`, TOML and sweeps go through
//! here, so all refuse the same values with the same words.
//!
//! `nrs.*` and `cache.*` keys beside the policy's name are the rooms' own tables.
use crate::hw::{AllocKind, ElevatorKind, profile_names};
use std::collections::BTreeMap;
use types::parse_size;

/// What a value must be.
enum Kind {
    /// Whole number.
    Int(u64, u64),
    /// Number.
    Float(f64, f64),
    /// Bytes, with an optional suffix.
    Size(u64, u64),
    /// `true` or `false`.
    Flag,
    /// One of these.
    Choice(fn() -> Vec<String>),
    /// Checked by a function.
    Checked(fn(&str) -> Result<(), String>),
}

struct Row {
    name: &'static str,
    default: &'static str,
    kind: Kind,
    meaning: &'static str,
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_string()).collect()
}

fn nrs_policy(text: &str) -> Result<(), String> {
    nrs::build(text, &nrs::NrsConfig::default()).map(|_| ()).map_err(|e| e.to_string())
}

fn cache_policy(text: &str) -> Result<(), String> {
    cache::build(text, &cache::CacheConfig::new(64)).map(|_| ())
}

/// Parses `OST:FROM_S-TO_S`, comma-separated; empty for none.
pub(crate) fn parse_outages(text: &str) -> Result<Vec<(u32, f64, f64)>, String> {
    let one = |part: &str| -> Option<(u32, f64, f64)> {
        let (ost, span) = part.trim().split_once(':')?;
        let (from, to) = span.split_once('-')?;
        let (from, to): (f64, f64) = (from.parse().ok()?, to.parse().ok()?);
        (from >= 0.0 && to > from && to < 1e9).then_some((ost.parse().ok()?, from, to))
    };
    let parts = text.split(',').filter(|p| !p.trim().is_empty());
    parts
        .map(|p| one(p).ok_or_else(|| format!("'{p}' is not an outage; write OST:FROM-TO in seconds, like 3:10-25")))
        .collect()
}

static ROWS: &[Row] = &[
    Row { name: "seed", default: "1", kind: Kind::Int(0, u64::MAX), meaning: "Of every random stream." },
    Row { name: "clients", default: "8000", kind: Kind::Int(1, 4_000_000), meaning: "Clients that do bulk I/O." },
    Row { name: "oss_count", default: "144", kind: Kind::Int(1, 60_000), meaning: "OSS nodes with one OST each." },
    Row {
        name: "transfer_size_bytes",
        default: "1048576",
        kind: Kind::Size(4096, 1 << 26),
        meaning: "Bytes per RPC, also the stripe size.",
    },
    Row {
        name: "file_bytes",
        default: "33554432",
        kind: Kind::Size(4096, 1 << 40),
        meaning: "Bytes that each client moves.",
    },
    Row { name: "stripe_count", default: "1", kind: Kind::Int(1, 2000), meaning: "OSTs per file." },
    Row {
        name: "operation",
        default: "write",
        kind: Kind::Choice(|| strings(&["write", "read"])),
        meaning: "What is measured; read runs first write with the same policy.",
    },
    Row {
        name: "placement",
        default: "block",
        kind: Kind::Choice(|| strings(&["block", "round_robin", "random"])),
        meaning: "OST of a client's first stripe: neighbours together, i mod n, or uniform.",
    },
    Row {
        name: "client.max_rpcs_in_flight",
        default: "8",
        kind: Kind::Int(1, 1024),
        meaning: "RPCs in flight per client and OST.",
    },
    Row {
        name: "client.start_skew_us",
        default: "5",
        kind: Kind::Float(0.0, 1e9),
        meaning: "Client i starts i times this later.",
    },
    Row {
        name: "client.start_spread_s",
        default: "0",
        kind: Kind::Float(0.0, 1e6),
        meaning: "Plus a uniform part of this.",
    },
    Row {
        name: "client.record_mb_per_s",
        default: "1000",
        kind: Kind::Float(0.0, 1e6),
        meaning: "MB/s (10^6) at which an application fills or consumes records; 0: at once. 1000 is what its NIC carries.",
    },
    Row {
        name: "client.resend_after_ms",
        default: "1000",
        kind: Kind::Float(1.0, 1e7),
        meaning: "A client sends again after this long without a reply.",
    },
    Row {
        name: "urgent.clients",
        default: "0",
        kind: Kind::Int(0, 1_000_000),
        meaning: "Clients in a closed loop whose writes carry a mandatory deadline.",
    },
    Row {
        name: "urgent.max_service_s",
        default: "5",
        kind: Kind::Float(0.001, 1e6),
        meaning: "Their maximum service time.",
    },
    Row {
        name: "urgent.think_ms",
        default: "100",
        kind: Kind::Float(0.0, 1e7),
        meaning: "Pause between reply and next request.",
    },
    Row {
        name: "urgent.stagger_s",
        default: "10",
        kind: Kind::Int(1, 1000),
        meaning: "Client i starts after (i mod this) seconds.",
    },
    Row {
        name: "urgent.until_s",
        default: "90",
        kind: Kind::Float(0.0, 1e6),
        meaning: "They send nothing from then on.",
    },
    Row { name: "nrs.policy", default: "fifo", kind: Kind::Checked(nrs_policy), meaning: "NRS policy by name." },
    Row {
        name: "oss.dispatch_window",
        default: "16",
        kind: Kind::Int(1, 100_000),
        meaning: "Requests handed to the store at a time: paper 001's service threads.",
    },
    Row {
        name: "oss.allocation_us_min",
        default: "40",
        kind: Kind::Float(0.0, 1e6),
        meaning: "Least CPU and block allocation time per request.",
    },
    Row {
        name: "oss.allocation_us_max",
        default: "200",
        kind: Kind::Float(0.0, 1e6),
        meaning: "Most; uniform in between.",
    },
    Row {
        name: "oss.credit_target",
        default: "0",
        kind: Kind::Int(0, 10_000_000),
        meaning: "Requests that an OST wants queued in all, granted as credits; 0: credits are constant.",
    },
    Row { name: "net.latency_us", default: "26", kind: Kind::Float(0.0, 1e7), meaning: "One-way message latency." },
    Row {
        name: "net.nic_mb_per_s",
        default: "1000",
        kind: Kind::Float(1.0, 1e6),
        meaning: "MB/s (10^6) of every NIC, each direction.",
    },
    Row {
        name: "net.nic_queue",
        default: "false",
        kind: Kind::Flag,
        meaning: "Transfers through one NIC wait for each other. Off in paper 001's model, whose network is never the bottleneck.",
    },
    Row {
        name: "net.loss",
        default: "0",
        kind: Kind::Float(0.0, 0.5),
        meaning: "Probability that a request or a reply is lost.",
    },
    Row {
        name: "disk.profile",
        default: "paper001",
        kind: Kind::Choice(|| strings(&profile_names())),
        meaning: "The medium.",
    },
    Row {
        name: "elevator.kind",
        default: "paper001",
        kind: Kind::Choice(|| strings(&ElevatorKind::NAMES)),
        meaning: "Block-device elevator.",
    },
    Row {
        name: "elevator.depth",
        default: "128",
        kind: Kind::Int(1, 100_000),
        meaning: "Requests that cscan and deadline sort at once.",
    },
    Row {
        name: "elevator.request_bytes_max",
        default: "4194304",
        kind: Kind::Size(4096, 1 << 30),
        meaning: "Largest disk request.",
    },
    Row {
        name: "elevator.plug_requests",
        default: "8",
        kind: Kind::Int(1, 100_000),
        meaning: "Pending requests that unplug paper001's elevator.",
    },
    Row { name: "elevator.plug_ms", default: "3", kind: Kind::Float(0.0, 1e6), meaning: "Time that unplugs it." },
    Row {
        name: "elevator.expire_ms",
        default: "5000",
        kind: Kind::Float(0.0, 1e7),
        meaning: "Wait after which cscan serves a request out of turn.",
    },
    Row {
        name: "alloc.kind",
        default: "mballoc",
        kind: Kind::Choice(|| strings(&AllocKind::NAMES)),
        meaning: "Block allocator.",
    },
    Row {
        name: "faults.ost_down",
        default: "",
        kind: Kind::Checked(|t| parse_outages(t).map(|_| ())),
        meaning: "Outages OST:FROM-TO in seconds, comma-separated.",
    },
    Row {
        name: "survey.regions",
        default: "1",
        kind: Kind::Int(1, 100_000),
        meaning: "World survey: regions of the disk worked on at once.",
    },
    Row {
        name: "survey.threads",
        default: "1",
        kind: Kind::Int(1, 100_000),
        meaning: "World survey: threads, at least one per region.",
    },
    Row {
        name: "survey.total_bytes",
        default: "8G",
        kind: Kind::Size(1 << 20, 1 << 50),
        meaning: "World survey: bytes in all.",
    },
    Row {
        name: "cache.policy",
        default: "lru",
        kind: Kind::Checked(cache_policy),
        meaning: "World cache: reclaim policy of client and OST caches.",
    },
    Row {
        name: "cache.client_bytes",
        default: "1200000000",
        kind: Kind::Size(1 << 20, 1 << 44),
        meaning: "World cache: the client's cache.",
    },
    Row {
        name: "cache.ost_bytes",
        default: "700000000",
        kind: Kind::Size(1 << 20, 1 << 44),
        meaning: "World cache: each OST's cache.",
    },
    Row {
        name: "cache.ost_count",
        default: "3",
        kind: Kind::Int(1, 1000),
        meaning: "World cache: OSTs, each with a disk of 9 ms and 60 MB/s.",
    },
    Row {
        name: "cache.block_bytes",
        default: "65536",
        kind: Kind::Size(4096, 1 << 20),
        meaning: "World cache: bytes that one page of the model stands for.",
    },
    Row {
        name: "workload.kind",
        default: "mixed",
        kind: Kind::Choice(|| strings(&["mixed", "reuse"])),
        meaning: "World cache: fine and coarse accesses at random, or coarse files read round and round beside fine accesses.",
    },
    Row { name: "workload.files", default: "10", kind: Kind::Int(1, 1_000_000), meaning: "World cache: files." },
    Row {
        name: "workload.file_bytes",
        default: "2G",
        kind: Kind::Size(1 << 16, 1 << 44),
        meaning: "World cache and readahead: bytes of a file.",
    },
    Row {
        name: "workload.hot_bytes",
        default: "16M",
        kind: Kind::Size(1 << 12, 1 << 40),
        meaning: "World cache: bytes of each file that fine accesses go to.",
    },
    Row {
        name: "workload.fine_bytes",
        default: "64K",
        kind: Kind::Size(512, 1 << 30),
        meaning: "World cache: bytes of a fine access.",
    },
    Row {
        name: "workload.coarse_bytes",
        default: "64M",
        kind: Kind::Size(1 << 16, 1 << 32),
        meaning: "World cache: bytes of a coarse access.",
    },
    Row {
        name: "workload.fine_share",
        default: "0.9",
        kind: Kind::Float(0.0, 1.0),
        meaning: "World cache: probability that an access is fine.",
    },
    Row {
        name: "workload.stripe_bytes",
        default: "1M",
        kind: Kind::Size(1 << 16, 1 << 32),
        meaning: "World cache and readahead: stripe size.",
    },
    Row {
        name: "workload.accesses",
        default: "5000",
        kind: Kind::Int(1, 100_000_000),
        meaning: "World cache: accesses measured.",
    },
    Row {
        name: "workload.warmup",
        default: "0",
        kind: Kind::Int(0, 100_000_000),
        meaning: "World cache: accesses before.",
    },
    Row {
        name: "readahead.policy",
        default: "parallel",
        kind: Kind::Choice(|| readahead::POLICIES.iter().map(|p| p.name.to_string()).collect()),
        meaning: "World readahead: policy of every open file.",
    },
    Row {
        name: "reader.count",
        default: "1",
        kind: Kind::Int(1, 10_000),
        meaning: "World readahead: readers, each on its own file.",
    },
    Row {
        name: "reader.pool_threads",
        default: "4",
        kind: Kind::Int(1, 1000),
        meaning: "World readahead: threads that fetch beside the readers.",
    },
    Row {
        name: "reader.order",
        default: "sequential",
        kind: Kind::Choice(|| strings(&["sequential", "stride", "backward", "random"])),
        meaning: "World readahead: order of a reader's calls.",
    },
    Row {
        name: "reader.io_bytes",
        default: "1M",
        kind: Kind::Size(1, 1 << 30),
        meaning: "World readahead: bytes per call.",
    },
    Row {
        name: "reader.skip_bytes",
        default: "1M",
        kind: Kind::Size(0, 1 << 30),
        meaning: "World readahead: bytes skipped between calls of order stride.",
    },
    Row {
        name: "reader.rpc_bytes",
        default: "1M",
        kind: Kind::Size(4096, 1 << 26),
        meaning: "World readahead: largest RPC.",
    },
    Row {
        name: "reader.ost_count",
        default: "4",
        kind: Kind::Int(1, 1000),
        meaning: "World readahead: OSTs that files are striped over.",
    },
    Row {
        name: "reader.ost_slots",
        default: "16",
        kind: Kind::Int(1, 10_000),
        meaning: "World readahead: RPCs that an OST works on at once.",
    },
    Row {
        name: "reader.ost_latency_us",
        default: "30",
        kind: Kind::Float(0.0, 1e7),
        meaning: "World readahead: an OST's time before the first byte; 30 is a null OST, 2000 an emulated disk.",
    },
    Row {
        name: "reader.ost_mb_per_s",
        default: "5000",
        kind: Kind::Float(0.1, 1e6),
        meaning: "World readahead: an OST's rate.",
    },
    Row {
        name: "reader.nic_mb_per_s",
        default: "5000",
        kind: Kind::Float(0.1, 1e6),
        meaning: "World readahead: rate of the client's NIC.",
    },
    Row {
        name: "reader.copy_mb_per_s",
        default: "4000",
        kind: Kind::Float(1.0, 1e6),
        meaning: "World readahead: rate of copying from cache to program, per core.",
    },
    Row {
        name: "reader.receive_mb_per_s",
        default: "2500",
        kind: Kind::Float(1.0, 1e6),
        meaning: "World readahead: rate of receiving bulk, per thread.",
    },
    Row {
        name: "reader.call_us",
        default: "2",
        kind: Kind::Float(0.0, 1e6),
        meaning: "World readahead: fixed cost of a call.",
    },
    Row {
        name: "reader.issue_us",
        default: "15",
        kind: Kind::Float(0.0, 1e6),
        meaning: "World readahead: CPU cost of sending an RPC.",
    },
    Row {
        name: "engine.partition",
        default: "true",
        kind: Kind::Flag,
        meaning: "Run parts that share nothing one after the other; same history, less memory.",
    },
    Row { name: "timeline", default: "false", kind: Kind::Flag, meaning: "Record curves over virtual time." },
];

/// Values by key; what is not set has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params {
    set: BTreeMap<String, String>,
}

impl Params {
    /// Sets `key` to the value that `text` spells.
    ///
    /// # Errors
    /// A sentence naming key, value and what would be right. Nothing has changed then.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        let text = text.trim();
        if let Some(row) = ROWS.iter().find(|r| r.name == key) {
            row.kind.check(text).map_err(|why| format!("{key} = '{text}' is refused: {why}"))?;
        } else if let Some(room_key) = key.strip_prefix("nrs.") {
            nrs::NrsConfig::default().set(room_key, text).map_err(|e| e.to_string())?;
        } else if let Some(room_key) = key.strip_prefix("cache.") {
            cache::CacheConfig::new(64).set(room_key, text)?;
        } else if let Some(room_key) = key.strip_prefix("readahead.") {
            readahead::Config::default().set(room_key, text).map_err(|e| e.to_string())?;
        } else {
            return Err(unknown_key(key));
        }
        self.set.insert(key.to_string(), text.to_string());
        Ok(())
    }
    /// The value of `key` as text: what was set, or its default; empty for a room's key that was not set.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        match self.set.get(key) {
            Some(v) => v,
            None => ROWS.iter().find(|r| r.name == key).map_or("", |r| r.default),
        }
    }
    /// What was set, ascending by key.
    pub fn changed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.set.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }
    /// Every key with its value, rooms' keys only where set.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, String> {
        let mut all: BTreeMap<String, String> =
            ROWS.iter().map(|r| (r.name.to_string(), r.default.to_string())).collect();
        all.extend(self.set.clone());
        all
    }
    /// A whole number.
    #[must_use]
    pub fn int(&self, key: &str) -> u64 {
        self.text(key).replace('_', "").parse().unwrap_or(0)
    }
    /// A number.
    #[must_use]
    pub fn float(&self, key: &str) -> f64 {
        self.text(key).parse().unwrap_or(0.0)
    }
    /// Bytes.
    #[must_use]
    pub fn size(&self, key: &str) -> u64 {
        parse_size(self.text(key)).unwrap_or(0)
    }
    /// A flag.
    #[must_use]
    pub fn flag(&self, key: &str) -> bool {
        self.text(key) == "true"
    }
    /// The keys that start with `prefix` and were set, without it.
    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.changed().filter_map(move |(k, v)| k.strip_prefix(prefix).map(|k| (k, v)))
    }
}

impl Kind {
    fn check(&self, text: &str) -> Result<(), String> {
        match self {
            Kind::Int(min, max) => match text.replace('_', "").parse::<u64>() {
                Ok(n) if (*min..=*max).contains(&n) => Ok(()),
                _ => Err(format!("write a whole number from {min} to {max}")),
            },
            Kind::Float(min, max) => match text.parse::<f64>() {
                Ok(x) if (*min..=*max).contains(&x) => Ok(()),
                _ => Err(format!("write a number from {min} to {max}")),
            },
            Kind::Size(min, max) => match parse_size(text)? {
                n if (*min..=*max).contains(&n) => Ok(()),
                _ => Err(format!("write a size from {} to {}", types::format_size(*min), types::format_size(*max))),
            },
            Kind::Flag => match text {
                "true" | "false" => Ok(()),
                _ => Err("write true or false".to_string()),
            },
            Kind::Choice(names) => {
                let names = names();
                if names.iter().any(|n| n == text) { Ok(()) } else { Err(format!("there are: {}", names.join(", "))) }
            }
            Kind::Checked(check) => check(text),
        }
    }
    fn range(&self) -> String {
        match self {
            Kind::Int(min, max) if *max == u64::MAX => format!("{min}.."),
            Kind::Int(min, max) => format!("{min}..={max}"),
            Kind::Float(min, max) => format!("{min}..={max}"),
            Kind::Size(min, max) => format!("{}..={}", types::format_size(*min), types::format_size(*max)),
            Kind::Flag => "true, false".to_string(),
            Kind::Choice(names) => names().join(", "),
            Kind::Checked(_) => "see text".to_string(),
        }
    }
}

fn unknown_key(key: &str) -> String {
    let close = |name: &str| {
        let tail = |s: &str| s.rsplit('.').next().unwrap_or(s).to_string();
        tail(name) == tail(key) || name.contains(key) || key.contains(name)
    };
    let similar: Vec<&str> = ROWS.iter().map(|r| r.name).filter(|n| close(n)).collect();
    if similar.is_empty() {
        format!("unknown key '{key}'; `stria sim list --keys` shows all")
    } else {
        format!("unknown key '{key}'; did you mean {}?", similar.join(" or "))
    }
}

/// The keys as a Markdown table, for the reference and for `list --keys`.
#[must_use]
pub fn keys_markdown() -> String {
    let mut out = String::from("| key | default | range | meaning |\n|---|---|---|---|\n");
    for r in ROWS {
        let default = if r.default.is_empty() { "none" } else { r.default };
        out.push_str(&format!("| `{}` | {default} | {} | {} |\n", r.name, r.kind.range(), r.meaning));
    }
    for k in nrs::keys() {
        out.push_str(&format!("| `nrs.{}` | {} | {} | {} |\n", k.name, k.default, k.range, k.meaning));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_in_its_own_range() {
        for row in ROWS {
            Params::default().set(row.name, row.default).unwrap();
        }
    }

    #[test]
    fn a_refusal_names_key_value_and_remedy() {
        for (key, value, part) in [
            ("clients", "0", "1 to 4000000"),
            ("clients", "many", "whole number"),
            ("client", "8", "did you mean"),
            ("nrs.policy", "fastest", "fifo"),
            ("nrs.quantum_requests", "-1", "whole number"),
            ("disk.profile", "tape", "hdd7200"),
            ("net.loss", "0.9", "0 to 0.5"),
            ("transfer_size_bytes", "1X", "not a size"),
            ("faults.ost_down", "3:9", "OST:FROM-TO"),
            ("timeline", "yes", "true or false"),
        ] {
            let mut params = Params::default();
            let why = params.set(key, value).unwrap_err();
            assert!(why.contains(key) && why.contains(part), "{why}");
            assert_eq!(params, Params::default());
        }
    }
}
