//! What the kernel tells of this process, by the names that every Prometheus client library has.
use types::metric::Snapshot;

use super::{BUILD_INFO, CPU_SECONDS, MAX_FDS, OPEN_FDS, RESIDENT_BYTES, START_SECONDS, THREADS, VIRTUAL_BYTES};

/// Fields of /proc/self/stat, counted from the state on, which follows the name.
const UTIME: usize = 11;
const STIME: usize = 12;
const NUM_THREADS: usize = 17;
const STARTTIME: usize = 19;
const VSIZE: usize = 20;
const RSS: usize = 21;

/// The process now. What cannot be read is left out.
pub fn snapshot() -> Snapshot {
    let mut s = Snapshot::default();
    s.add(&BUILD_INFO, &[env!("CARGO_PKG_VERSION")], 1u64);
    if let Ok(text) = std::fs::read_to_string("/proc/self/stat") {
        stat(&mut s, &text);
    }
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        // One of them is the directory that is being read.
        s.add(&OPEN_FDS, &[], entries.count().saturating_sub(1));
    }
    // SAFETY: an all-zero limit is filled in by the call.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        (libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0).then_some(limit.rlim_cur)
    };
    if let Some(limit) = limit {
        s.add(&MAX_FDS, &[], if limit == libc::RLIM_INFINITY { f64::INFINITY } else { limit as f64 });
    }
    s
}

fn stat(s: &mut Snapshot, text: &str) {
    let Some((_, rest)) = text.rsplit_once(')') else { return };
    let fields: Vec<u64> = rest.split_ascii_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
    let Some(rss) = fields.get(RSS) else { return };
    // SAFETY: plain system calls.
    let (ticks, page) = unsafe { (libc::sysconf(libc::_SC_CLK_TCK), libc::sysconf(libc::_SC_PAGESIZE)) };
    let (ticks, page) = (ticks.max(1) as f64, page.max(0) as f64);
    s.add(&CPU_SECONDS, &[], (fields[UTIME] + fields[STIME]) as f64 / ticks);
    s.add(&THREADS, &[], fields[NUM_THREADS]);
    s.add(&VIRTUAL_BYTES, &[], fields[VSIZE]);
    s.add(&RESIDENT_BYTES, &[], *rss as f64 * page);
    let boot = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot = boot.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    if let Some(boot) = boot {
        s.add(&START_SECONDS, &[], boot + fields[STARTTIME] as f64 / ticks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::metric::Value;

    #[test]
    fn this_process_has_memory_descriptors_and_a_start_in_the_past() {
        let held = vec![1u8; 8 << 20];
        let value = |name: &str| {
            let s = snapshot();
            let found = s.families().find(|f| f.metric.name == name).map(|f| f.series[0].value.clone());
            match found {
                Some(Value::Number(n)) => n,
                other => panic!("{name}: {other:?}"),
            }
        };
        assert!(value("process_resident_memory_bytes") > 1e6 && held[7] == 1);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_open_fds") >= 3.0 && value("process_max_fds") > value("process_open_fds"));
        assert!(value("process_threads") >= 1.0 && value("stria_build_info") == 1.0);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        assert!((1e9..=now + 5.0).contains(&value("process_start_time_seconds")));
    }

    #[test]
    fn a_name_with_brackets_and_blanks_misleads_nobody() {
        let mut s = Snapshot::default();
        let numbers: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        stat(&mut s, &format!("7 (a) b) S {}", numbers.join(" ")));
        let threads = s.families().find(|f| f.metric.name == THREADS.name).unwrap();
        assert_eq!(threads.series[0].value, Value::Number(16.0));
    }
}
