//! What a replayed target is: what its trace says, changed by what is asked for.
use crate::light::{device_from, elevator_from};
use crate::scenario::{PROFILES_OWN, Params};
use devices::{AllocKind, DeviceProfile, ElevatorConfig};
use nrs::NrsConfig;
use trace::Target;

/// Keys that a replay knows, besides those of the scheduler (`nrs.*`) and of a device (`disk.*`).
pub const KEYS: [&str; 14] = [
    "seed",
    "nrs.policy",
    "oss.dispatch_window",
    "oss.allocation_us_min",
    "oss.allocation_us_max",
    "disk.profile",
    "elevator.kind",
    "elevator.depth",
    "elevator.request_bytes_max",
    "elevator.plug_requests",
    "elevator.plug_ms",
    "elevator.expire_ms",
    "alloc.kind",
    "net.nic_mb_per_s",
];

/// What is asked for, `KEY=VALUE` each, later ones over earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Overrides(Vec<(String, String)>);

impl Overrides {
    /// Adds a setting.
    ///
    /// # Errors
    /// A sentence, when a replay has no such key or it does not take the value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        Params::default().set(key, value)?;
        if !is_known(key) {
            return Err(format!("{key} has no effect on a replay, which knows nrs.*, disk.* and {}", KEYS.join(", ")));
        }
        self.0.push((key.to_string(), value.to_string()));
        Ok(())
    }
    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The settings, as they were asked for.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }
    /// These, and then those.
    #[must_use]
    pub fn and(&self, others: &Overrides) -> Overrides {
        Overrides([&self.0[..], &others.0].concat())
    }
}

fn is_known(key: &str) -> bool {
    KEYS.contains(&key) || key.starts_with("nrs.") || key.starts_with("disk.") || key == "net.latency_us"
}

/// A target as it is replayed.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// NRS policy by name.
    pub policy: String,
    /// Its configuration.
    pub nrs: NrsConfig,
    /// Requests handed to the store at a time.
    pub window: u32,
    /// The medium.
    pub disk: DeviceProfile,
    /// The elevator before it.
    pub elevator: ElevatorConfig,
    /// Where bytes lie.
    pub alloc: AllocKind,
    /// Time per request besides the device's, uniform between both.
    pub allocation_ns: (u64, u64),
    /// One-way latency and nanoseconds per byte of the network that bulk passes while a request is in service; `None`: it
    /// was there before, as at servers.
    pub network: Option<(u64, f64)>,
    /// Of every random stream.
    pub seed: u64,
    /// Number of the target, which the streams depend on.
    pub index: u32,
}

impl TargetConfig {
    /// Of a target of a trace, changed by `asked`; `index` counts the targets of the trace.
    ///
    /// # Errors
    /// A sentence: a setting that is refused, a device that is not known.
    pub fn of(target: &Target, asked: &Overrides, index: u32) -> Result<TargetConfig, String> {
        let of_target = |why: String| format!("{}: {why}", target.name());
        let is_simulated = target.setting("source") == Some("light");
        let mut params = Params::default();
        let mut set = |key: &str, value: &str| params.set(key, value);
        if !is_simulated {
            // A server's own time per request is not known; it shows in the error.
            set("oss.allocation_us_min", "0").and(set("oss.allocation_us_max", "0")).map_err(of_target)?;
            set("elevator.kind", "noop").and(set("alloc.kind", "contiguous")).map_err(of_target)?;
        }
        let told = target.settings.iter().filter(|(key, _)| is_known(key));
        for (key, value) in told.map(|(k, v)| (k.as_str(), v.as_str())).chain(asked.iter()) {
            set(key, value).map_err(of_target)?;
            if key == "disk.profile" {
                // Another device has its own keys.
                for (key, ..) in devices::KEYS {
                    set(&format!("disk.{key}"), PROFILES_OWN).map_err(of_target)?;
                }
            }
        }
        let has_device = |key: &str| target.setting(key).is_some() || asked.iter().any(|(k, _)| k == key);
        if !has_device("disk.profile") {
            let names = devices::profile_names().join(", ");
            return Err(of_target(format!(
                "its trace does not say what device it has (store.kind={}): name one with --device ({names}), or fit one: stria sim fit",
                target.setting("store.kind").unwrap_or("?")
            )));
        }
        TargetConfig::from_params(&params, is_simulated, index, target).map_err(of_target)
    }

    fn from_params(params: &Params, simulated: bool, index: u32, target: &Target) -> Result<TargetConfig, String> {
        let mut nrs = NrsConfig::default();
        for (key, value) in params.below("nrs.").filter(|(k, _)| *k != "policy") {
            nrs.set(key, value).map_err(|e| e.to_string())?;
        }
        let us = |key: &str| (params.float(key) * 1e3) as u64;
        let allocation_ns = (us("oss.allocation_us_min"), us("oss.allocation_us_max"));
        if allocation_ns.0 > allocation_ns.1 {
            return Err("oss.allocation_us_min lies above oss.allocation_us_max".to_string());
        }
        let ns_per_byte = 1e9 / (params.float("net.nic_mb_per_s") * 1e6);
        Ok(TargetConfig {
            policy: params.text("nrs.policy").to_string(),
            nrs,
            window: params.int("oss.dispatch_window") as u32,
            disk: device_from(params)?,
            elevator: elevator_from(params)?,
            alloc: AllocKind::named(params.text("alloc.kind"))?,
            allocation_ns,
            network: simulated.then_some((us("net.latency_us"), ns_per_byte)),
            seed: params.int("seed"),
            index: target.number("ost").and_then(|n| u32::try_from(n).ok()).unwrap_or(index),
        })
    }
}
