//! What servers told in one look, as numbers: read from their parameter pages.
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use types::latency::Latency;
use types::uses::Uses;

/// Pages that a look asks for.
pub const PAGES: &str = "{mdt.*,obdfilter.*,ost.OSS.ost_io}.{latency_stats,job_stats,client_stats,recovery_status,\
    num_exports,kbytestotal,kbytesfree,kbytesavail,stats,cache_stats,req_waitqueue,nrs_policies}";

/// What somebody did at a server since counting began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Use {
    /// Requests.
    pub requests: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// The counters of a server, and how it stands.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// When the server looked at its counters, by its own clock.
    pub at: Duration,
    /// Times of requests by kind.
    pub kinds: BTreeMap<String, Latency>,
    /// Bytes that clients read and wrote.
    pub bytes: [u64; 2],
    /// Pages looked up in its cache, and those that were found.
    pub cache: Option<[u64; 2]>,
    /// Requests queued, and in service.
    pub queue: Option<[u64; 2]>,
    /// The scheduler's policy.
    pub policy: Option<String>,
    /// Bytes of its store, and those that are free.
    pub space: Option<[u64; 2]>,
    /// Sessions of clients.
    pub clients: u64,
    /// Seconds for which it waits for clients of before its restart at most, and how many those are; `None`: it serves.
    pub recovery: Option<[u64; 2]>,
    /// By job.
    pub jobs: BTreeMap<String, Use>,
    /// By client.
    pub uses: BTreeMap<String, Use>,
}

/// A server in a look.
#[derive(Clone, Debug)]
pub struct Server {
    /// Name, like `stria-OST0001`.
    pub target: String,
    /// Address.
    pub nid: String,
    /// State of the mount's session with it.
    pub state: String,
    /// The last failure of that.
    pub failure: Option<String>,
    /// `None`: it did not answer in time.
    pub numbers: Option<Numbers>,
}

impl Server {
    /// Its name without the file system's.
    #[must_use]
    pub fn short(&self) -> &str {
        self.target.rsplit_once('-').map_or(&self.target, |(_, short)| short)
    }
}

/// One look.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The file system's name.
    pub fsname: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// The servers, the metadata server first.
    pub servers: Vec<Server>,
}

impl Sample {
    /// Reads the answer of a mount's daemon to `look`.
    #[must_use]
    pub fn read(answer: &Value) -> Sample {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
        let server = |s: &Value| Server {
            target: text(&s["target"]),
            nid: text(&s["nid"]),
            state: text(&s["state"]),
            failure: s["failure"].as_str().map(Into::into),
            numbers: (s["answers"] == true).then(|| Numbers::read(&s["params"])),
        };
        let servers = answer["servers"].as_array().map(Vec::as_slice).unwrap_or_default();
        Sample {
            fsname: text(&answer["fsname"]),
            mount_point: text(&answer["mount_point"]),
            servers: servers.iter().map(server).collect(),
        }
    }
}

/// The number after a word at the beginning of a line.
fn field<T: std::str::FromStr>(page: &str, name: &str) -> Option<T> {
    page.lines().find_map(|l| l.trim_start().strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
}

impl Numbers {
    /// From pages by their names.
    fn read(params: &Value) -> Numbers {
        let mut n = Numbers::default();
        let (mut total, mut free, mut available) = (None, None, None);
        for (name, page) in params.as_object().into_iter().flatten() {
            let page = page.as_str().unwrap_or_default();
            let kib = || page.trim().parse::<u64>().ok().map(|k| k.saturating_mul(1024));
            match name.rsplit('.').next().unwrap_or_default() {
                "latency_stats" => n.read_latencies(page),
                "job_stats" => n.jobs = jobs(page),
                "client_stats" => n.read_uses(page),
                "recovery_status" if page.contains("RECOVERING") => {
                    let waiting = page.lines().filter(|l| l.starts_with("waiting_for:")).count();
                    n.recovery = Some([field(page, "time_remaining").unwrap_or(0), waiting as u64]);
                }
                "num_exports" => n.clients = page.trim().parse().unwrap_or(0),
                "kbytestotal" => total = kib(),
                "kbytesfree" => free = kib(),
                "kbytesavail" => available = kib(),
                "stats" if name.starts_with("obdfilter.") => {
                    n.bytes = ["read_bytes", "write_bytes"].map(|name| sum_of(page, name))
                }
                "cache_stats" => {
                    let sum = |names: [&str; 2]| names.iter().filter_map(|name| field::<u64>(page, name)).sum();
                    n.cache = Some([sum(["fine_lookups", "coarse_lookups"]), sum(["fine_hits", "coarse_hits"])]);
                }
                "req_waitqueue" => n.queue = field(page, "queued").zip(field(page, "in_service")).map(<[u64; 2]>::from),
                "nrs_policies" => n.policy = Some(page.trim().into()),
                _ => {}
            }
        }
        n.space = total.zip(available.or(free)).map(<[u64; 2]>::from);
        n
    }

    fn read_latencies(&mut self, page: &str) {
        for line in page.lines() {
            if let Some((name, latency)) = Latency::parse(line) {
                self.kinds.insert(name.into(), latency);
            } else if let Some(rest) = line.strip_prefix("snapshot_time ") {
                let parts = rest.split_whitespace().next().and_then(|t| t.split_once('.'));
                let time = parts.and_then(|(s, ns)| Some(Duration::new(s.parse().ok()?, ns.parse().ok()?)));
                self.at = time.unwrap_or_default();
            }
        }
    }

    fn read_uses(&mut self, page: &str) {
        for (client, u) in page.lines().filter_map(Uses::parse) {
            let u = Use { requests: u.requests, read_bytes: u.read_bytes, write_bytes: u.write_bytes };
            self.uses.insert(format!("{:016x}", client.0), u);
        }
    }
}

/// The sum in a line `NAME COUNT samples [UNIT] MIN MAX SUM SUMSQ`.
fn sum_of(page: &str, name: &str) -> u64 {
    let line = page.lines().find(|l| l.split_whitespace().next() == Some(name));
    line.and_then(|l| l.split_whitespace().nth(6)?.parse().ok()).unwrap_or(0)
}

/// What jobs did, from `job_stats`.
fn jobs(page: &str) -> BTreeMap<String, Use> {
    let mut all: BTreeMap<String, Use> = BTreeMap::new();
    let mut current: Option<&mut Use> = None;
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("- job_id:") {
            current = Some(all.entry(name.trim().into()).or_default());
            continue;
        }
        let (Some(job), Some((kind, fields))) = (current.as_deref_mut(), line.split_once('{')) else { continue };
        let value = |name: &str| -> u64 {
            let mut pairs = fields.trim_end_matches([' ', '}']).split(',').filter_map(|p| p.split_once(':'));
            pairs.find(|(n, _)| n.trim() == name).and_then(|(_, v)| v.trim().parse().ok()).unwrap_or(0)
        };
        job.requests += value("samples");
        match kind.split(':').next().unwrap_or_default().trim() {
            "read_bytes" => job.read_bytes += value("sum"),
            "write_bytes" => job.write_bytes += value("sum"),
            _ => {}
        }
    }
    all
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// A look at a metadata server and two OSTs, of which the second does not answer; everything was done `times` times.
    pub fn look(times: u64, at_s: u64) -> Value {
        let mut read = Latency::default();
        let mut open = Latency::default();
        for _ in 0..times {
            read.add(Duration::from_micros(100));
            open.add(Duration::from_millis(3));
        }
        let page = |lines: &[(&str, &Latency)]| {
            let mut out = format!("snapshot_time             {at_s}.000000000 secs.nsecs\n");
            lines.iter().for_each(|(name, l)| l.line(&mut out, name));
            out
        };
        let bytes = times * 4096;
        json!({"fsname": "s", "mount_point": "/m", "servers": [
            {"target": "s-MDT0000", "nid": "127.0.0.1:1", "state": "Replaying", "answers": true, "params": {
                "mdt.s-MDT0000.latency_stats": page(&[("open", &open), ("params", &read)]),
                "mdt.s-MDT0000.recovery_status": "status: RECOVERING\nrecovery_duration: 30\ntime_remaining: 23\nwaiting_for: 0a has not come back\n",
                "mdt.s-MDT0000.job_stats": format!("job_stats:\n- job_id:          dd.0\n  snapshot_time:   2\n  open:            {{ samples: {times}, unit: usecs, min:        7, max: 7, sum: 7, sumsq: 49 }}\n"),
                "mdt.s-MDT0000.client_stats": format!("clients: 1\n000000000000000a requests {times} read_bytes 0 write_bytes 0 last 2\n"),
                "mdt.s-MDT0000.kbytestotal": "1000", "mdt.s-MDT0000.kbytesfree": "250", "mdt.s-MDT0000.num_exports": "3"}},
            {"target": "s-OST0000", "nid": "127.0.0.1:2", "state": "Full", "answers": true, "params": {
                "obdfilter.s-OST0000.latency_stats": page(&[("read", &read), ("nrs_wait", &open)]),
                "obdfilter.s-OST0000.stats": format!("read_bytes                {times} samples [bytes] 4096 4096 {bytes} 1\nread 1 samples [usecs] 1 1 1 1\n"),
                "obdfilter.s-OST0000.job_stats": format!("job_stats:\n- job_id:          dd.0\n  snapshot_time:   2\n  read_bytes:      {{ samples: {times}, unit: bytes, min: 1, max: 1, sum: {bytes}, sumsq: 1 }}\n"),
                "obdfilter.s-OST0000.client_stats": format!("clients: 1\n000000000000000a requests {times} read_bytes {bytes} write_bytes 0 last 2\n"),
                "obdfilter.s-OST0000.cache_stats": format!("resident_bytes: 1\nfine_hits: {times}\nfine_lookups: {}\ncoarse_hits: 0\ncoarse_lookups: 0\n", 2 * times),
                "ost.OSS.ost_io.req_waitqueue": "queued: 3\nin_service: 8\nPipelineCounters {\n    arrived: 7,\n}\n",
                "ost.OSS.ost_io.nrs_policies": "crr",
                "obdfilter.s-OST0000.kbytestotal": "1000", "obdfilter.s-OST0000.kbytesfree": "900", "obdfilter.s-OST0000.kbytesavail": "400"}},
            {"target": "s-OST0001", "nid": "127.0.0.1:3", "state": "Full", "failure": null, "answers": false, "params": {}},
        ]})
    }

    #[test]
    fn pages_are_read_as_numbers_and_nonsense_as_nothing() {
        let sample = Sample::read(&look(5, 100));
        let [mdt, ost, silent] = &sample.servers[..] else { panic!("{sample:?}") };
        let m = mdt.numbers.as_ref().unwrap();
        assert_eq!(
            (mdt.short(), m.recovery, m.space, m.clients),
            ("MDT0000", Some([23, 1]), Some([1_024_000, 256_000]), 3)
        );
        assert_eq!(m.jobs["dd.0"], Use { requests: 5, read_bytes: 0, write_bytes: 0 });
        let o = ost.numbers.as_ref().unwrap();
        assert_eq!((o.at.as_secs(), o.bytes, o.cache, o.queue), (100, [20_480, 0], Some([10, 5]), Some([3, 8])));
        assert_eq!((o.policy.as_deref(), o.space), (Some("crr"), Some([1_024_000, 409_600])));
        assert_eq!(o.kinds["read"].count(), 5);
        assert_eq!(o.uses["000000000000000a"], Use { requests: 5, read_bytes: 20_480, write_bytes: 0 });
        assert_eq!(o.jobs["dd.0"], Use { requests: 5, read_bytes: 20_480, write_bytes: 0 });
        assert!(silent.numbers.is_none());
        for answer in [
            json!({}),
            json!({"servers": [{}, 7]}),
            json!({"servers": [{"answers": true, "params": {"a.b.stats": "read_bytes", "a.b.job_stats": "- job_id:\n x: {", "a.req_waitqueue": ""}}]}),
        ] {
            assert!(Sample::read(&answer).servers.iter().all(|s| s.target.is_empty()));
        }
    }
}
