//! The table of all parameters: key, default, range, meaning. One row per parameter, nothing else knows their names.
use devices::{AllocKind, ElevatorKind, profile_names};

/// What a value must be.
pub(super) enum Kind {
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

pub(super) struct Row {
    pub name: &'static str,
    pub default: &'static str,
    pub kind: Kind,
    pub meaning: &'static str,
}

/// Value of `disk.seek_ms` and its like: what the profile says.
pub(crate) const PROFILES_OWN: &str = "profile";

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_string()).collect()
}

/// The value of one of a device's keys, or `profile`: as the profile has it.
fn of_device(key: &str, text: &str) -> Result<(), String> {
    if text == PROFILES_OWN {
        return Ok(());
    }
    // It takes all keys.
    devices::DeviceProfile::named("raid10")?.set(key, text)
}

fn nrs_policy(text: &str) -> Result<(), String> {
    nrs::build(text, &nrs::NrsConfig::default()).map(|_| ()).map_err(|e| e.to_string())
}

fn cache_policy(text: &str) -> Result<(), String> {
    cache::build(text, &cache::CacheConfig::new(64)).map(|_| ())
}

fn cache_policy_of(text: &str) -> Result<(), String> {
    if text.is_empty() { Ok(()) } else { cache_policy(text) }
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

/// All rows.
pub(super) fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().chain(super::cluster_keys::ROWS)
}

static ROWS: &[Row] = &[
    Row { name: "seed", default: "1", kind: Kind::Int(0, u64::MAX), meaning: "Of every random stream." },
    Row { name: "clients", default: "8000", kind: Kind::Int(1, 4_000_000), meaning: "Clients that do bulk I/O." },
    Row { name: "oss_count", default: "144", kind: Kind::Int(1, 60_000), meaning: "OSS nodes." },
    Row {
        name: "osts_per_oss",
        default: "1",
        kind: Kind::Int(1, 64),
        meaning: "OSTs of one OSS; they share its NIC and the buckets of throttling policies.",
    },
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
        kind: Kind::Choice(|| strings(&["write", "read", "mix"])),
        meaning: "What is measured; mix: fine and coarse reads here and there (workload.*). Reads run after a write with the same policy.",
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
        meaning: "RPCs in flight per client and OST; of world cache, too.",
    },
    Row {
        name: "client.readahead",
        default: "false",
        kind: Kind::Flag,
        meaning: "Clients read in calls of reader.io_bytes through the readahead room; false: a window over the records.",
    },
    Row {
        name: "client.cache_bytes",
        default: "0",
        kind: Kind::Size(0, 1 << 44),
        meaning: "Page cache of every client that reads through the readahead room or a mix; 0: none.",
    },
    Row {
        name: "client.cache_policy",
        default: "",
        kind: Kind::Checked(cache_policy_of),
        meaning: "Its reclaim policy; none: cache.policy.",
    },
    Row {
        name: "oss.cache_bytes",
        default: "0",
        kind: Kind::Size(0, 1 << 44),
        meaning: "Cache of every OST before its disk; 0: none.",
    },
    Row {
        name: "oss.cache_policy",
        default: "",
        kind: Kind::Checked(cache_policy_of),
        meaning: "Its reclaim policy; none: cache.policy.",
    },
    Row {
        name: "oss.cache_first",
        default: "false",
        kind: Kind::Flag,
        meaning: "Reads that an OST's cache holds whole are answered before its queue; false: in their turn, as servers do.",
    },
    Row {
        name: "client.direct",
        default: "false",
        kind: Kind::Flag,
        meaning: "Clients with readahead read past their page cache: nothing stays of what they read.",
    },
    Row {
        name: "oss.fast_bytes",
        default: "0",
        kind: Kind::Size(0, 1 << 44),
        meaning: "Fast tier of every OST, before its disk; 0: none.",
    },
    Row {
        name: "oss.fast_profile",
        default: "ssd",
        kind: Kind::Choice(|| strings(&profile_names())),
        meaning: "Its device.",
    },
    Row {
        name: "oss.fast_admission",
        default: advice::admission::ADMISSION_DEFAULT,
        kind: Kind::Choice(|| advice::admission::ADMISSIONS.iter().map(|p| p.name.to_string()).collect()),
        meaning: "What is worth a copy there without advice.",
    },
    Row {
        name: "oss.fast_reclaim",
        default: "lru",
        kind: Kind::Checked(cache_policy),
        meaning: "Which copy leaves first, within its class.",
    },
    Row {
        name: "advice.level",
        default: "none",
        kind: Kind::Choice(|| advice::Hint::ALL.iter().map(|h| h.name().to_string()).collect()),
        meaning: "Before what is measured clients advise their files so, and OSTs fetch what has a place.",
    },
    Row {
        name: "advice.clients",
        default: "4000000",
        kind: Kind::Int(0, 4_000_000),
        meaning: "The first so many clients advise their files.",
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
        kind: Kind::Int(1, 1024),
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
        name: "net.switch_mb_per_s",
        default: "0",
        kind: Kind::Float(0.0, 1e9),
        meaning: "MB/s (10^6) that the switch between all nodes carries, each direction; 0: as much as comes.",
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
        name: "disk.seek_ms",
        default: "profile",
        kind: Kind::Checked(|t| of_device("seek_ms", t)),
        meaning: "A request that does not continue the last one, whatever the distance; profile: as the medium's.",
    },
    Row {
        name: "disk.mb_per_s",
        default: "profile",
        kind: Kind::Checked(|t| of_device("mb_per_s", t)),
        meaning: "MB/s (10^6) at which the medium streams; profile: the medium's own rates.",
    },
    Row {
        name: "disk.request_us",
        default: "profile",
        kind: Kind::Checked(|t| of_device("request_us", t)),
        meaning: "A request that continues the last one, beside its bytes; profile: as the medium's.",
    },
    Row {
        name: "disk.disks",
        default: "profile",
        kind: Kind::Checked(|t| of_device("disks", t)),
        meaning: "Disks of an array (raid5, raid6, raid10), parity and mirrors included; the other keys say what each is.",
    },
    Row {
        name: "disk.chunk_kb",
        default: "profile",
        kind: Kind::Checked(|t| of_device("chunk_kb", t)),
        meaning: "KiB that lie on one disk of an array in a row.",
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
        meaning: "Reclaim policy of client and OST caches.",
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
        meaning: "Worlds cache and light: bytes that one page of the model stands for.",
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
        meaning: "World cache, and operation mix: bytes of each file that fine accesses go to.",
    },
    Row {
        name: "workload.fine_bytes",
        default: "64K",
        kind: Kind::Size(512, 1 << 30),
        meaning: "World cache, and operation mix: bytes of a fine access.",
    },
    Row {
        name: "workload.coarse_bytes",
        default: "64M",
        kind: Kind::Size(1 << 16, 1 << 32),
        meaning: "World cache, and operation mix: bytes of a coarse access.",
    },
    Row {
        name: "workload.fine_share",
        default: "0.9",
        kind: Kind::Float(0.0, 1.0),
        meaning: "World cache, and operation mix: probability that an access is fine.",
    },
    Row {
        name: "workload.coarse_start",
        default: "stripe",
        kind: Kind::Choice(|| strings(&["stripe", "record"])),
        meaning: "World cache, and operation mix: where coarse accesses begin: at any stripe of the file, or at multiples of their own size.",
    },
    Row {
        name: "workload.coarse_apart",
        default: "false",
        kind: Kind::Flag,
        meaning: "World cache, and operation mix: coarse accesses leave the hot range alone.",
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
        meaning: "World cache, and of each client of operation mix: accesses measured.",
    },
    Row {
        name: "workload.warmup",
        default: "0",
        kind: Kind::Int(0, 100_000_000),
        meaning: "World cache, and of each client of operation mix: accesses before.",
    },
    Row {
        name: "readahead.policy",
        default: "parallel",
        kind: Kind::Choice(|| readahead::POLICIES.iter().map(|p| p.name.to_string()).collect()),
        meaning: "Of every open file: worlds readahead and cluster, and light clients with readahead.",
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
        kind: Kind::Choice(|| strings(&["sequential", "stride", "backward", "interleaved", "random"])),
        meaning: "World readahead, and light clients with readahead: order of a reader's calls; interleaved are four sequential streams in turn.",
    },
    Row {
        name: "reader.io_bytes",
        default: "1M",
        kind: Kind::Size(1, 1 << 30),
        meaning: "World readahead, and light clients with readahead: bytes per call.",
    },
    Row {
        name: "reader.skip_bytes",
        default: "1M",
        kind: Kind::Size(0, 1 << 30),
        meaning: "World readahead, and light clients with readahead: bytes skipped between calls of order stride.",
    },
    Row {
        name: "reader.laid_out",
        default: "false",
        kind: Kind::Flag,
        meaning: "Clients with readahead or a mix: their files lie on the OSTs in one piece each, and no cache knows them; false: they write them first.",
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
        name: "create.files_per_client",
        default: "1000",
        kind: Kind::Int(1, 10_000_000),
        meaning: "World create: files that each client creates.",
    },
    Row {
        name: "create.rpcs_in_flight",
        default: "1",
        kind: Kind::Int(1, 1024),
        meaning: "World create: creates in flight per client (modifying RPCs).",
    },
    Row {
        name: "mds.threads",
        default: "16",
        kind: Kind::Int(1, 10_000),
        meaning: "World create: service threads of the MDS.",
    },
    Row {
        name: "mds.operation_us",
        default: "60",
        kind: Kind::Float(0.1, 1e6),
        meaning: "World create: time of a create in its thread, +- an eighth.",
    },
    Row {
        name: "mds.locked_us",
        default: "6",
        kind: Kind::Float(0.0, 1e6),
        meaning: "World create: part of it under the directory's lock.",
    },
    Row {
        name: "mds.commit_us",
        default: "500",
        kind: Kind::Float(0.0, 1e7),
        meaning: "World create: time of a commit to the journal.",
    },
    Row {
        name: "mds.group_max",
        default: "64",
        kind: Kind::Int(1, 1_000_000),
        meaning: "World create: creates per commit.",
    },
    Row {
        name: "mds.uncommitted_max",
        default: "4096",
        kind: Kind::Int(1, 10_000_000),
        meaning: "World create: creates that may wait for their commit.",
    },
    Row {
        name: "mds.reply_before_commit",
        default: "true",
        kind: Kind::Flag,
        meaning: "World create: replies do not wait for the commit; clients replay what was lost.",
    },
    Row {
        name: "engine.partition",
        default: "true",
        kind: Kind::Flag,
        meaning: "Run parts that share nothing one after the other; same history, less memory.",
    },
    Row { name: "timeline", default: "false", kind: Kind::Flag, meaning: "Record curves over virtual time." },
];
