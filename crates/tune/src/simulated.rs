//! What may not be measured: settings of the servers under many clients, in the light world of the simulator.
//!
//! A run is one seed; base and candidate of a round have the same one. Says what it assumes, and simulates nothing when the
//! device behind the OSTs is not known.
use std::time::Instant;

use bench::{Failed, Outcome};
use devices::DeviceProfile;
use serde::Serialize;
use sim::experiment::measure;
use sim::scenario::{Params, WorldKind};
use types::format_size;

use crate::bed::mean;
use crate::catalogue::SERVER;
use crate::cluster::Cluster;
use crate::descent::Measurer;
use crate::factor::{Choice, Factor};
use crate::workload::Workload;

/// RPCs of a run, about: its files are as large as that makes them.
const RPCS: u64 = 8192;
/// RPCs of each file, at least: fewer than are in flight would queue nothing.
const FILE_RPCS_MIN: u64 = 16;
/// Most files (clients times processes) and OSTs that are simulated.
const FILES_MAX: u64 = 2048;
const OSTS_MAX: u64 = 32;

/// The device behind the OSTs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// A profile's name, and keys that change it.
    pub profile: String,
    /// As `store.profile_keys` has them.
    pub keys: String,
    /// The elevator before it.
    pub elevator: &'static str,
    /// How it is known.
    pub known: String,
}

impl Device {
    /// As a user says it: a profile, then KEY=VALUE parted by blanks.
    ///
    /// # Errors
    /// There is no such profile or key.
    pub fn declared(text: &str) -> Outcome<Device> {
        let (profile, keys) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        DeviceProfile::parse(profile, keys).map_err(|e| Failed::usage(format!("--device {text}: {e}")))?;
        let known = "declared with --device".into();
        Ok(Device { profile: profile.into(), keys: keys.into(), elevator: "deadline", known })
    }
    /// As the OSTs say it: those with emulated devices do. Else why nothing is known.
    ///
    /// # Errors
    /// Nobody answers.
    pub fn told(cluster: &dyn Cluster) -> Outcome<Result<Device, String>> {
        let all = cluster.params("ost.OSS.ost_io.nrs_by_medium")?;
        let unknown = |why: &str| format!("what the OSTs' stores lie on is not known ({why}): say it with --device");
        let Some(first) = all.first() else { return Ok(Err(unknown("no OST answers"))) };
        if all.iter().any(|p| p.value != first.value) {
            return Ok(Err(unknown("OSTs differ")));
        }
        // 'obrr+: the emulated device 'hdd' seeks'
        let name = first.value.split_once("the emulated device '").and_then(|(_, rest)| rest.split_once('\''));
        let Some((profile, _)) = name.filter(|(name, _)| DeviceProfile::named(name).is_ok()) else {
            let why = first.value.split_once(": ").map_or(first.value.as_str(), |(_, why)| why);
            return Ok(Err(unknown(why.trim())));
        };
        let known = "told by the OSTs, which emulate it".into();
        Ok(Ok(Device { profile: profile.into(), keys: String::new(), elevator: "noop", known }))
    }
}

/// What does not change from run to run.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// Clients like this mount.
    pub clients: u64,
    /// OSTs.
    pub osts: u64,
    /// Stripes of a file.
    pub stripes: u64,
    /// Largest RPC, bytes.
    pub rpc_bytes: u64,
    /// RPCs in flight for each client and OST.
    pub rpcs_in_flight: u64,
    /// The device.
    pub device: Device,
}

impl Setting {
    /// What it stands on, in a sentence.
    #[must_use]
    pub fn text(&self) -> String {
        let d = &self.device;
        let keys = if d.keys.is_empty() { String::new() } else { format!(" {}", d.keys) };
        format!(
            "{} clients like this one, {} OSTs on '{}{keys}' ({}), elevator '{}', {} stripe(s), RPCs of up to {}, {} in flight; \
             assumed: NICs of 12.5 GB/s, 26 us of latency, sequential files of their own",
            self.clients,
            self.osts,
            d.profile,
            d.known,
            d.elevator,
            self.stripes,
            format_size(self.rpc_bytes),
            self.rpcs_in_flight
        )
    }
}

/// The light world as a measurer.
pub struct World<'a> {
    factors: &'a [Factor],
    workloads: &'a [Workload],
    setting: &'a Setting,
    begin: Instant,
    runs: u64,
}

impl<'a> World<'a> {
    /// Of a setting.
    #[must_use]
    pub fn new(factors: &'a [Factor], workloads: &'a [Workload], setting: &'a Setting) -> World<'a> {
        World { factors, workloads, setting, begin: Instant::now(), runs: 0 }
    }

    fn params(&self, w: &Workload, choice: &Choice, seed: u64, operation: &str) -> Result<Params, String> {
        let s = self.setting;
        let osts = s.osts.clamp(1, OSTS_MAX);
        let files = (s.clients * w.processes).clamp(1, FILES_MAX);
        let rpc =
            if w.random { s.rpc_bytes.min(w.transfer_bytes) } else { s.rpc_bytes }.clamp(4096, 64 << 20) / 4096 * 4096;
        let file = (RPCS / files).max(FILE_RPCS_MIN) * rpc;
        let mut params = Params::default();
        let mut set = |key: &str, value: &str| params.set(key, value);
        let numbers = [
            ("seed", seed),
            ("clients", files),
            ("oss_count", osts),
            ("stripe_count", s.stripes.clamp(1, osts)),
            ("transfer_size_bytes", rpc),
            ("file_bytes", file),
            ("client.max_rpcs_in_flight", s.rpcs_in_flight),
            ("net.nic_mb_per_s", 12_500),
        ];
        numbers.iter().try_for_each(|(key, value)| set(key, &value.to_string()))?;
        let words = [
            ("operation", operation),
            ("placement", "round_robin"),
            // Seeds differ in who comes first.
            ("client.start_spread_s", "0.05"),
            ("net.nic_queue", "true"),
            ("alloc.kind", "mballoc_groups"),
            ("elevator.kind", s.device.elevator),
            ("disk.profile", &s.device.profile),
        ];
        words.iter().try_for_each(|(key, value)| set(key, value))?;
        for (key, value) in s.device.keys.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            set(&format!("disk.{key}"), value)?;
        }
        for (f, value) in self.factors.iter().zip(choice) {
            let key = SERVER.iter().find(|(name, ..)| *name == f.name).map(|(.., key)| *key);
            set(key.ok_or_else(|| format!("{} is not simulated", f.name))?, value)?;
        }
        Ok(params)
    }

    fn rate(&self, w: &Workload, choice: &Choice, seed: u64, operation: &str) -> Result<f64, String> {
        let metrics = measure(WorldKind::Light, &self.params(w, choice, seed, operation)?)?;
        let rate = metrics.get("bandwidth_gb_per_s").filter(|r| *r > 0.0);
        rate.ok_or_else(|| "the simulation moved nothing".to_string())
    }
}

impl Measurer for World<'_> {
    fn measure(&mut self, choice: &Choice, round: u64) -> Outcome<f64> {
        self.runs += 1;
        let mut rates = Vec::new();
        for w in self.workloads {
            let share = |operation: &str, share: f64| match share > 0.0 {
                true => self.rate(w, choice, round + 1, operation).map(|rate| share / rate),
                false => Ok(0.0),
            };
            let time = share("read", w.read_share).and_then(|r| Ok(r + share("write", 1.0 - w.read_share)?));
            rates.push((w.weight, 1.0 / time.map_err(Failed::usage)?));
        }
        Ok(mean(rates.into_iter()))
    }
    fn spent_s(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }
    fn run_s(&self) -> f64 {
        self.spent_s() / self.runs.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::tests::Pretended;
    use crate::descent::{Verdict, descend};
    use crate::factor::Place;

    fn setting(profile: &str) -> Setting {
        let device = Device::declared(profile).unwrap();
        Setting { clients: 64, osts: 2, stripes: 1, rpc_bytes: 1 << 20, rpcs_in_flight: 8, device }
    }
    fn policy(now: &str) -> Vec<Factor> {
        let all: Vec<String> = ["fifo", "obrr"].map(String::from).to_vec();
        vec![Factor::new("nrs_policy", Place::Server, "ost.OSS.ost_io.nrs_policies", now.into(), &all)]
    }
    fn workloads() -> Vec<Workload> {
        vec![Workload { read_share: 0.0, processes: 1, ..Workload::default() }]
    }

    #[test]
    fn order_by_object_is_recommended_where_heads_move_and_not_where_they_do_not() {
        let found = |profile: &str, now: &str| {
            let (factors, workloads, setting) = (policy(now), workloads(), setting(profile));
            let course = descend(&factors, &mut World::new(&factors, &workloads, &setting), 1e6);
            assert!(course.runs.iter().all(|r| r.failed.is_none()), "{:?}", course.runs);
            course.findings[0].verdict.clone()
        };
        match found("hdd", "fifo") {
            Verdict::Recommended { value, gain } => assert!(value == "obrr" && gain.low > 0.1, "{gain:?}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(found("nvme", "fifo"), Verdict::NoDifference);
        assert_eq!(found("hdd", "obrr"), Verdict::NoDifference);
    }

    #[test]
    fn a_policy_that_is_not_there_is_a_failed_run() {
        let (factors, workloads, setting) = (policy("fifo"), workloads(), setting("hdd seek_ms=9"));
        let mut world = World::new(&factors, &workloads, &setting);
        assert!(world.measure(&vec!["nonsense".into()], 0).unwrap_err().text.contains("nonsense"));
        assert!(world.measure(&vec!["fifo".into()], 0).unwrap() > 0.0);
        assert!(setting.text().contains("'hdd seek_ms=9' (declared with --device)"), "{}", setting.text());
    }

    #[test]
    fn a_device_is_told_by_emulated_osts_or_declared_or_unknown() {
        let told = |values: &[&str]| {
            let all: Vec<(&str, &str)> = values.iter().map(|v| ("ost.OSS.ost_io.nrs_by_medium", *v)).collect();
            Device::told(&Pretended::with(&all)).unwrap()
        };
        let found = told(&["obrr+: the emulated device 'hdd' seeks"; 2]).unwrap();
        assert_eq!((found.profile.as_str(), found.elevator), ("hdd", "noop"));
        for (values, why) in [
            (
                &["obrr+: the emulated device 'hdd' seeks", "fifo: the emulated device 'ssd' does not seek"][..],
                "OSTs differ",
            ),
            (&["fifo: its file system has no block device of its own"], "no block device of its own"),
            (&["fifo: the emulated device 'unheard-of' seeks"], "unheard-of"),
            (&[], "no OST answers"),
        ] {
            let said = told(values).unwrap_err();
            assert!(said.contains(why) && said.contains("--device"), "{said}");
        }
        for (text, why) in
            [("floppy", "'floppy' is not a device profile"), ("hdd seek_ms=slow", "slow"), ("hdd x", "'x'")]
        {
            let e = Device::declared(text).unwrap_err();
            assert!(e.text.contains(why) && e.text.contains("--device"), "{e}");
        }
    }
}
