//! Which settings there are on a mount, their values of today, and which others make sense for the workloads.
use bench::{Failed, Outcome};

use crate::cluster::{Cluster, Stripes};
use crate::factor::{Factor, Place};
use crate::workload::Workload;

/// Names of all factors, in the order in which they are searched: layout first, for all else depends on it.
pub const NAMES: [&str; 13] = [
    "stripe_count",
    "stripe_size",
    "rpcs_in_flight",
    "pages_per_rpc",
    "dirty_mb",
    "readahead_mb",
    "readahead_policy",
    "cache_policy",
    "processes",
    "transfer",
    "nrs_policy",
    "nrs_quantum",
    "dispatch_window",
];

/// Parameters of this mount: factor and pattern.
const MOUNT: [(&str, &str); 6] = [
    ("rpcs_in_flight", "osc.*.max_rpcs_in_flight"),
    ("pages_per_rpc", "osc.*.max_pages_per_rpc"),
    ("dirty_mb", "osc.*.max_dirty_mb"),
    ("readahead_mb", "llite.*.max_read_ahead_per_file_mb"),
    ("readahead_policy", "llite.*.readahead_policy"),
    ("cache_policy", "llite.*.cache_policy"),
];
/// Parameters of the servers: factor, pattern, and the simulator's key.
pub const SERVER: [(&str, &str, &str); 3] = [
    ("nrs_policy", "ost.OSS.ost_io.nrs_policies", "nrs.policy"),
    ("nrs_quantum", "ost.OSS.ost_io.nrs_quantum_requests", "nrs.quantum_requests"),
    ("dispatch_window", "ost.OSS.ost_io.dispatch_window", "oss.dispatch_window"),
];

/// The factors of a mount.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// Those that this mount and its programs have.
    pub here: Vec<Factor>,
    /// Those of the servers.
    pub servers: Vec<Factor>,
    /// What is left out, and why.
    pub notes: Vec<String>,
}

/// What is known of the mount.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// OSTs.
    pub osts: u64,
    /// How a new file is striped today.
    pub now: Stripes,
}

fn strings<T: ToString>(all: impl IntoIterator<Item = T>) -> Vec<String> {
    all.into_iter().map(|v| v.to_string()).collect()
}

/// Looks up what there is; `only`: these factors, all when it is empty.
///
/// # Errors
/// A name that there is not, or nobody answers.
pub fn look(cluster: &dyn Cluster, workloads: &[Workload], facts: Facts, only: &[String]) -> Outcome<Catalogue> {
    if let Some(name) = only.iter().find(|o| !NAMES.contains(&o.as_str())) {
        return Err(Failed::usage(format!("--only {name}: there are {}", NAMES.join(", "))));
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|o| o == name);
    let mut c = Catalogue::default();
    let layouts = [("stripe_count", stripe_count(facts)), ("stripe_size", stripe_size(facts))];
    for (name, factor) in layouts.into_iter().filter(|(n, _)| wanted(n)) {
        c.take(name, factor);
    }
    for (name, pattern) in MOUNT.into_iter().filter(|(n, _)| wanted(n)) {
        let factor = match useless(name, workloads) {
            Some(why) => Err(why.to_string()),
            None => parameter(cluster, name, pattern, Place::Mount)?,
        };
        c.take(name, factor);
    }
    for (name, factor) in programs(workloads).into_iter().filter(|(n, _)| wanted(n)) {
        c.take(name, factor);
    }
    for (name, pattern, _) in SERVER.into_iter().filter(|(n, ..)| wanted(n)) {
        match parameter(cluster, name, pattern, Place::Server)? {
            Ok(factor) => c.servers.push(factor),
            Err(why) => c.notes.push(format!("{name}: {why}")),
        }
    }
    Ok(c)
}

impl Catalogue {
    fn take(&mut self, name: &str, factor: Result<Factor, String>) {
        match factor {
            Ok(factor) => self.here.push(factor),
            Err(why) => self.notes.push(format!("{name}: {why}")),
        }
    }
}

fn stripe_count(facts: Facts) -> Result<Factor, String> {
    if facts.osts < 2 {
        return Err("there is one OST".into());
    }
    let is_all = u64::from(facts.now.count) == facts.osts;
    let now = if is_all { "-1".into() } else { facts.now.count.to_string() };
    let counts = std::iter::successors(Some(1u64), |n| n.checked_mul(2)).take_while(|n| *n < facts.osts);
    let all: Vec<String> = counts.map(|n| n.to_string()).chain(["-1".into()]).collect();
    Ok(Factor::new("stripe_count", Place::StripeCount, "-c", now, &all))
}

fn stripe_size(facts: Facts) -> Result<Factor, String> {
    let sizes = strings([256u64 << 10, 1 << 20, 4 << 20, 16 << 20]);
    Ok(Factor::new("stripe_size", Place::StripeSize, "-S", facts.now.size.to_string(), &sizes))
}

/// Why no workload can tell the values of a parameter apart.
fn useless(name: &str, workloads: &[Workload]) -> Option<&'static str> {
    let any = |is: fn(&Workload) -> bool| workloads.iter().any(is);
    match name {
        "dirty_mb" if !any(|w| w.read_share < 1.0) => Some("nothing is written"),
        "readahead_mb" | "readahead_policy" if !any(|w| w.read_share > 0.0 && !w.random) => {
            Some("nothing is read in sequence")
        }
        "cache_policy" if !any(|w| w.passes > 1) => Some("nothing is read twice (passes = 1)"),
        _ => None,
    }
}

/// A parameter with its candidates, or why it is left out.
fn parameter(
    cluster: &dyn Cluster,
    name: &'static str,
    pattern: &'static str,
    place: Place,
) -> Outcome<Result<Factor, String>> {
    let now = match one_value(cluster, pattern)? {
        Ok(now) => now,
        Err(why) => return Ok(Err(why)),
    };
    let most = |pattern: &str| -> Outcome<u64> {
        let values = cluster.params(pattern)?;
        Ok(values.iter().filter_map(|p| p.value.trim().parse().ok()).min().unwrap_or(u64::MAX))
    };
    let all = match name {
        "rpcs_in_flight" => strings([2, 4, 8, 16, 32, 64]),
        "pages_per_rpc" => {
            // More than an OST takes is refused.
            let most = most("obdfilter.*.brw_size")?.saturating_mul(256);
            strings([64u64, 256, 1024, 4096].into_iter().filter(|n| *n <= most))
        }
        "dirty_mb" => strings([8, 32, 128, 512]),
        "readahead_mb" => {
            let most = most("llite.*.max_read_ahead_mb")?;
            strings([4u64, 16, 64, 256].into_iter().filter(|n| *n <= most))
        }
        "readahead_policy" => strings(readahead::POLICIES.iter().map(|p| p.name)),
        "cache_policy" => strings(cache::registry().iter().map(|p| p.name)),
        // Throttling is no way to be faster.
        "nrs_policy" => strings(nrs::registry().iter().map(|p| p.name).filter(|n| !["tbf", "auto"].contains(n))),
        "nrs_quantum" => strings([0, 4, 8, 16, 32, 64, 256]),
        _ => strings([4, 8, 16, 32, 64, 128]),
    };
    Ok(Ok(Factor::new(name, place, pattern, now, &all)))
}

/// The value that all parameters of a pattern have, or why there is none.
///
/// # Errors
/// Nobody answers.
pub fn one_value(cluster: &dyn Cluster, pattern: &str) -> Outcome<Result<String, String>> {
    let found = cluster.params(pattern)?;
    let Some(first) = found.first() else { return Ok(Err(format!("there is no parameter {pattern}"))) };
    let value = first.value.trim().to_string();
    if let Some(other) = found.iter().find(|p| p.value.trim() != value) {
        let (a, b) = (&first.name, &other.name);
        return Ok(Err(format!("{a} is {value} and {b} is {}: make them equal first", other.value.trim())));
    }
    if !found.iter().all(|p| p.writable) {
        return Ok(Err(format!("{pattern} cannot be set")));
    }
    Ok(Ok(value))
}

/// What the programs themselves could do otherwise, where all workloads do it alike.
fn programs(workloads: &[Workload]) -> [(&'static str, Result<Factor, String>); 2] {
    let same = |of: fn(&Workload) -> u64| {
        let first = workloads.first().map(of)?;
        workloads.iter().all(|w| of(w) == first).then_some(first)
    };
    let processes = match same(|w| w.processes) {
        Some(now) => {
            let all = strings([1u64, 2, 4, 8, 16]);
            Ok(Factor::new("processes", Place::Processes, "processes", now.to_string(), &all))
        }
        None => Err("the workloads have different numbers of processes".into()),
    };
    let blocks = workloads.iter().any(|w| w.block_bytes.is_some() || w.random);
    let transfer = match same(|w| w.transfer_bytes) {
        Some(_) if blocks => Err("blocks and random accesses are the program's own".into()),
        Some(now) => {
            let all = strings([64u64 << 10, 256 << 10, 1 << 20, 4 << 20]);
            Ok(Factor::new("transfer", Place::Transfer, "transfer", now.to_string(), &all))
        }
        None => Err("the workloads have different transfers".into()),
    };
    [("processes", processes), ("transfer", transfer)]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cluster::Param;
    use crate::workload::defaults;
    use std::cell::RefCell;
    use std::path::Path;

    /// Parameters in memory; files are plain ones, with layouts remembered.
    #[derive(Default)]
    pub(crate) struct Pretended {
        pub params: RefCell<Vec<Param>>,
        pub refused: Option<&'static str>,
        pub made: RefCell<Vec<(i64, u64)>>,
    }
    impl Pretended {
        pub(crate) fn with(all: &[(&str, &str)]) -> Pretended {
            let param = |(n, v): &(&str, &str)| Param { name: (*n).into(), value: (*v).into(), writable: true };
            Pretended { params: RefCell::new(all.iter().map(param).collect()), ..Pretended::default() }
        }
        pub(crate) fn value(&self, name: &str) -> String {
            self.params.borrow().iter().find(|p| p.name == name).unwrap().value.clone()
        }
    }
    impl Cluster for Pretended {
        fn params(&self, pattern: &str) -> Outcome<Vec<Param>> {
            let glob = types::glob::Glob::new(pattern);
            Ok(self.params.borrow().iter().filter(|p| glob.matches(&p.name)).cloned().collect())
        }
        fn set(&self, name: &str, value: &str) -> Outcome {
            if self.refused == Some(value) {
                return Err(Failed::new(format!("{name} = {value}: refused"), libc::EPERM));
            }
            let glob = types::glob::Glob::new(name);
            self.params.borrow_mut().iter_mut().filter(|p| glob.matches(&p.name)).for_each(|p| p.value = value.into());
            Ok(())
        }
        fn osts(&self) -> Outcome<Vec<u16>> {
            Ok(vec![0, 1, 2, 3])
        }
        fn make(&self, path: &Path, count: i64, size: u64) -> Outcome {
            self.made.borrow_mut().push((count, size));
            std::fs::File::create_new(path).map(drop).map_err(|e| Failed::io("making", path, &e))
        }
        fn stripes(&self, _: &Path) -> Outcome<Stripes> {
            Ok(Stripes { count: 1, size: 4 << 20 })
        }
        fn default_layout(&self, _: &Path) -> Outcome<Option<Vec<u8>>> {
            Ok(None)
        }
        fn set_default_layout(&self, _: &Path, _: Option<&[u8]>) -> Outcome {
            Ok(())
        }
        fn with_stripes(&self, _: Option<&[u8]>, _: Option<i64>, _: Option<u64>) -> Outcome<Vec<u8>> {
            Ok(vec![1])
        }
    }

    fn mount() -> Pretended {
        Pretended::with(&[
            ("osc.a.max_rpcs_in_flight", "8"),
            ("osc.b.max_rpcs_in_flight", "8"),
            ("osc.a.max_pages_per_rpc", "1024"),
            ("osc.a.max_dirty_mb", "64"),
            ("osc.b.max_dirty_mb", "32"),
            ("obdfilter.a.brw_size", "4"),
            ("llite.m.max_read_ahead_mb", "64"),
            ("llite.m.max_read_ahead_per_file_mb", "64"),
            ("ost.OSS.ost_io.nrs_policies", "fifo"),
            ("ost.OSS.ost_io.dispatch_window", "16"),
        ])
    }
    const FACTS: Facts = Facts { osts: 4, now: Stripes { count: 1, size: 4 << 20 } };

    fn names(all: &[Factor]) -> Vec<&str> {
        all.iter().map(|f| f.name).collect()
    }

    #[test]
    fn what_can_be_set_is_found_with_its_values_and_the_rest_is_told() {
        let c = look(&mount(), &defaults(), FACTS, &[]).unwrap();
        assert_eq!(
            names(&c.here),
            ["stripe_count", "stripe_size", "rpcs_in_flight", "pages_per_rpc", "readahead_mb", "processes", "transfer"]
        );
        let of = |name: &str| c.here.iter().find(|f| f.name == name).unwrap();
        assert_eq!(
            (of("stripe_count").now.as_str(), &of("stripe_count").candidates[..]),
            ("1", &strings(["2", "-1"])[..])
        );
        assert_eq!(of("pages_per_rpc").candidates, ["256", "64"], "4 MiB are 1024 pages");
        assert_eq!(of("readahead_mb").candidates, ["16", "4"], "no more than all files together may have");
        assert_eq!(names(&c.servers), ["nrs_policy", "dispatch_window"]);
        assert!(!c.servers[0].candidates.contains(&"tbf".to_string()));
        let notes = c.notes.join("\n");
        for part in [
            "dirty_mb: osc.a.max_dirty_mb is 64 and osc.b.max_dirty_mb is 32",
            "cache_policy: nothing is read twice",
            "nrs_quantum: there is no parameter",
        ] {
            assert!(notes.contains(part), "{notes}");
        }
    }

    #[test]
    fn workloads_decide_what_makes_sense() {
        let w = Workload { read_share: 0.0, random: true, ..Workload::default() };
        let facts = Facts { osts: 1, ..FACTS };
        let c = look(&mount(), &[w.clone(), Workload { processes: 2, ..w }], facts, &[]).unwrap();
        assert_eq!(names(&c.here), ["stripe_size", "rpcs_in_flight", "pages_per_rpc"]);
        let notes = c.notes.join("\n");
        for part in ["one OST", "nothing is read in sequence", "different numbers of processes", "the program's own"] {
            assert!(notes.contains(part), "{notes}");
        }
    }

    #[test]
    fn only_some_are_searched_when_they_are_named() {
        let c = look(&mount(), &defaults(), FACTS, &strings(["stripe_count", "nrs_policy"])).unwrap();
        assert_eq!((names(&c.here), names(&c.servers)), (vec!["stripe_count"], vec!["nrs_policy"]));
        let e = look(&mount(), &defaults(), FACTS, &strings(["stripes"])).unwrap_err();
        assert!(e.text.contains("--only stripes: there are stripe_count, stripe_size"), "{e}");
    }
}
