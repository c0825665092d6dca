//! Parameters of world `cluster`: whole clusters of real nodes, their programs and their faults.
use super::keys::{Kind, Row};

const fn share(name: &'static str, default: &'static str, meaning: &'static str) -> Row {
    Row { name, default, kind: Kind::Float(0.0, 1e6), meaning }
}

const fn chance(name: &'static str, default: &'static str, max: f64, meaning: &'static str) -> Row {
    Row { name, default, kind: Kind::Float(0.0, max), meaning }
}

const fn count(name: &'static str, default: &'static str, min: u64, max: u64, meaning: &'static str) -> Row {
    Row { name, default, kind: Kind::Int(min, max), meaning }
}

const fn size(name: &'static str, default: &'static str, meaning: &'static str) -> Row {
    Row { name, default, kind: Kind::Size(1 << 16, 1 << 34), meaning }
}

pub(super) static ROWS: &[Row] = &[
    count("cluster.osts", "2", 1, 64, "World cluster: object storage servers, one target each."),
    size("cluster.stripe_bytes", "64K", "World cluster: stripe size of new files."),
    count("cluster.stripe_count", "2", 1, 64, "World cluster: stripes of new files."),
    size("cluster.client_cache_bytes", "4M", "World cluster: page cache of each client."),
    size("cluster.ost_cache_bytes", "2M", "World cluster: page cache of each OST."),
    share("cluster.recovery_window_s", "30", "World cluster: seconds a restarted server waits for its clients."),
    share("cluster.clock_skew_ms", "50", "World cluster: hosts' clocks differ by up to this many milliseconds."),
    share("cluster.sync_us", "500", "World cluster: microseconds that a disk's sync takes."),
    chance(
        "cluster.shuffle",
        "0.1",
        1.0,
        "World cluster: probability that the next task to run is any that can, instead of the first.",
    ),
    chance("net.corrupt", "0", 0.5, "World cluster: probability that a bit of a message's bulk arrives flipped."),
    share("work.seconds", "60", "World cluster: virtual seconds with programs and faults."),
    count("work.operations", "1000000", 1, 1 << 40, "World cluster: operations of each program at most."),
    count("work.trees", "3", 0, 1000, "World cluster: programs on directories of their own."),
    count("work.blocks", "2", 0, 100, "World cluster: programs on blocks of one shared file."),
    count("work.logs", "2", 0, 1000, "World cluster: programs that append to one log."),
    count("work.counters", "2", 0, 1000, "World cluster: programs that raise one counter under a lock."),
    share("faults.interval_s", "2", "World cluster: seconds between two faults on average; 0: none."),
    share("faults.kill_mds", "2", "World cluster: share of faults that kill the metadata server."),
    share("faults.kill_oss", "3", "World cluster: share that kills an object storage server."),
    share("faults.kill_client", "0", "World cluster: share that kills a client."),
    share("faults.reset", "3", "World cluster: share that resets connections."),
    share("faults.cut", "2", "World cluster: share that cuts the network between two nodes."),
    share("faults.slow_disk", "1", "World cluster: share that makes a server's disk slow."),
    share("faults.disk_error", "0", "World cluster: share that makes a server's disk fail, until it is restarted."),
    chance(
        "faults.power",
        "0.5",
        1.0,
        "World cluster: probability that a kill takes the host's power, with what was not synced.",
    ),
    share("faults.down_max_s", "10", "World cluster: longest outage of a killed node."),
    share("faults.cut_max_s", "8", "World cluster: longest cut."),
];
