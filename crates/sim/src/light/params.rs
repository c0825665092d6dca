//! From a scenario's parameters to a light world's configuration.
use super::config::{Credits, Down, LightConfig, Mix, Operation, Placement, Urgent};
use super::reader::Reading;
use crate::block_cache::{BlockCache, CacheSettings};
use crate::scenario::PROFILES_OWN;
use crate::scenario::{Params, parse_outages};
use devices::{AllocKind, DeviceProfile, ElevatorConfig, ElevatorKind};
use nrs::NrsConfig;

/// Most OSTs of a world.
const OSTS_MAX: u32 = 60_000;

const CACHE_UNUSED: &str = "client.cache_bytes needs client.readahead = true or operation = mix: other clients read or write every \
                            byte once";

impl LightConfig {
    /// The world that `params` describe.
    ///
    /// # Errors
    /// A sentence, when parameters that are each in range do not go together.
    pub fn from_params(params: &Params) -> Result<LightConfig, String> {
        let ns = |key: &str, unit: f64| (params.float(key) * unit) as u64;
        let allocation_ns = (ns("oss.allocation_us_min", 1e3), ns("oss.allocation_us_max", 1e3));
        if allocation_ns.0 > allocation_ns.1 {
            return Err("oss.allocation_us_min lies above oss.allocation_us_max".to_string());
        }
        let (ost_count, osts_per_oss, stripe_count) = targets(params)?;
        let (mix, reading) = (mix(params, stripe_count)?, reading(params, stripe_count)?);
        let (client_cache, ost_cache) = (cache(params, "client")?, cache(params, "oss")?);
        if client_cache.is_some() && reading.is_none() && mix.is_none() {
            return Err(CACHE_UNUSED.to_string());
        }
        let disk = device_from(params)?;
        let (nic_rate, nic_queue) = nics(params, f64::from(osts_per_oss) * disk.read_rate.max(disk.write_rate))?;
        Ok(LightConfig {
            seed: params.int("seed"),
            clients: params.int("clients") as u32,
            ost_count,
            osts_per_oss,
            stripe_count,
            file_bytes: params.size("file_bytes"),
            transfer_bytes: params.size("transfer_size_bytes"),
            operation: match params.text("operation") {
                "read" => Operation::Read,
                "mix" => Operation::Mix,
                _ => Operation::Write,
            },
            rpcs_in_flight: params.int("client.max_rpcs_in_flight") as u32,
            reading,
            mix,
            block_bytes: if client_cache.is_some() || ost_cache.is_some() {
                params.size("cache.block_bytes")
            } else {
                1
            },
            client_cache,
            cache_first: ost_cache.is_some() && params.flag("oss.cache_first"),
            ost_cache,
            credits: match params.int("oss.credit_target") {
                0 => Credits::Constant,
                n => Credits::Target(n as u32),
            },
            start_skew_ns: ns("client.start_skew_us", 1e3),
            start_spread_ns: ns("client.start_spread_s", 1e9),
            produce_rate: params.float("client.record_mb_per_s") * 1e6,
            placement: match params.text("placement") {
                "round_robin" => Placement::RoundRobin,
                "random" => Placement::Random,
                _ => Placement::Block,
            },
            urgent: urgent(params),
            nrs_policy: params.text("nrs.policy").to_string(),
            nrs: scheduler(params)?,
            dispatch_window: params.int("oss.dispatch_window") as u32,
            allocation_ns,
            latency_ns: ns("net.latency_us", 1e3),
            nic_rate,
            nic_queue,
            switch_rate: params.float("net.switch_mb_per_s") * 1e6,
            loss: params.float("net.loss"),
            resend_ns: ns("client.resend_after_ms", 1e6),
            disk,
            elevator: elevator_from(params)?,
            alloc: AllocKind::named(params.text("alloc.kind"))?,
            down: outages(params.text("faults.ost_down"), ost_count)?,
            timeline: params.flag("timeline"),
            partition: params.flag("engine.partition"),
            trace: false,
        })
    }
}

/// Bytes per second of a NIC, and whether transfers wait for it, which they must where an OSS's disks move more.
fn nics(params: &Params, disks_rate: f64) -> Result<(f64, bool), String> {
    let (rate, queue) = (params.float("net.nic_mb_per_s") * 1e6, params.flag("net.nic_queue"));
    if !queue && rate < disks_rate {
        return Err(format!(
            "net.nic_mb_per_s = {} is less than the {} MB/s of an OSS's disks, and with net.nic_queue = false transfers do \
             not wait for each other: more would pass the NIC than it carries; set net.nic_queue = true",
            rate / 1e6,
            (disks_rate / 1e6).round()
        ));
    }
    Ok((rate, queue))
}

fn scheduler(params: &Params) -> Result<NrsConfig, String> {
    let mut nrs = NrsConfig::default();
    for (key, value) in params.below("nrs.").filter(|(k, _)| *k != "policy") {
        nrs.set(key, value).map_err(|e| e.to_string())?;
    }
    Ok(nrs)
}

fn urgent(params: &Params) -> Option<Urgent> {
    let ns = |key: &str, unit: f64| (params.float(key) * unit) as u64;
    (params.int("urgent.clients") > 0).then(|| Urgent {
        clients: params.int("urgent.clients") as u32,
        max_service_ns: ns("urgent.max_service_s", 1e9),
        think_ns: ns("urgent.think_ms", 1e6),
        stagger_s: params.int("urgent.stagger_s") as u32,
        until_ns: ns("urgent.until_s", 1e9),
    })
}

fn reading(params: &Params, stripe_count: u32) -> Result<Option<Reading>, String> {
    if !params.flag("client.readahead") {
        return Ok(None);
    }
    if params.text("operation") != "read" || stripe_count != 1 {
        return Err("client.readahead = true needs operation = read and stripe_count = 1".to_string());
    }
    let mut config = readahead::Config::default();
    for (key, value) in params.below("readahead.").filter(|(k, _)| *k != "policy") {
        config.set(key, value).map_err(|e| e.to_string())?;
    }
    let policy = params.text("readahead.policy").to_string();
    Ok(Some(Reading { policy, config, io_bytes: params.size("reader.io_bytes") }))
}

/// The mix of accesses that `operation = mix` asks for.
fn mix(params: &Params, stripe_count: u32) -> Result<Option<Mix>, String> {
    if params.text("operation") != "mix" {
        return Ok(None);
    }
    if stripe_count != 1 {
        return Err(format!("operation = mix needs stripe_count = 1, not {stripe_count}"));
    }
    let mix = Mix {
        fine_share: params.float("workload.fine_share"),
        fine_bytes: params.size("workload.fine_bytes"),
        hot_bytes: params.size("workload.hot_bytes"),
        coarse_bytes: params.size("workload.coarse_bytes"),
        accesses: params.int("workload.accesses") as u32,
        warmup: params.int("workload.warmup") as u32,
    };
    let (file, rpc) = (params.size("file_bytes"), params.size("transfer_size_bytes"));
    for (key, bytes) in [("workload.hot_bytes", mix.hot_bytes), ("workload.coarse_bytes", mix.coarse_bytes)] {
        if bytes > file {
            return Err(format!("{key} = {bytes} is larger than file_bytes = {file}"));
        }
    }
    if mix.fine_bytes >= rpc || mix.fine_bytes > mix.hot_bytes || mix.hot_bytes / mix.fine_bytes >= 1 << 31 {
        let fine = mix.fine_bytes;
        return Err(format!(
            "workload.fine_bytes = {fine} must be smaller than transfer_size_bytes = {rpc} and fit workload.hot_bytes"
        ));
    }
    if !mix.coarse_bytes.is_multiple_of(rpc) {
        let coarse = mix.coarse_bytes;
        return Err(format!("workload.coarse_bytes = {coarse} must be a multiple of transfer_size_bytes = {rpc}"));
    }
    Ok(Some(mix))
}

/// The cache of every `of` (client, oss), when it has a size.
fn cache(params: &Params, of: &str) -> Result<Option<CacheSettings>, String> {
    let bytes = params.size(&format!("{of}.cache_bytes"));
    if bytes == 0 {
        return Ok(None);
    }
    let policy = match params.text(&format!("{of}.cache_policy")) {
        "" => params.text("cache.policy"),
        own => own,
    };
    let settings = CacheSettings::from_params(params, policy, bytes);
    let keys = if params.text("operation") == "mix" {
        &["transfer_size_bytes", "workload.fine_bytes"][..]
    } else {
        &["transfer_size_bytes"]
    };
    for key in keys {
        let (block, bytes) = (settings.block_bytes, params.size(key));
        if !bytes.is_multiple_of(block) {
            return Err(format!("cache.block_bytes = {block} must divide {key} = {bytes}"));
        }
    }
    BlockCache::new(&settings)?;
    Ok(Some(settings))
}

/// The medium that `params` describe: a profile of the table, changed by the keys that say so.
///
/// # Errors
/// A sentence, when there is no such profile.
pub(crate) fn device_from(params: &Params) -> Result<DeviceProfile, String> {
    let mut device = DeviceProfile::named(params.text("disk.profile"))?;
    for (key, ..) in devices::KEYS {
        let full = format!("disk.{key}");
        let value = params.text(&full);
        if value != PROFILES_OWN {
            device.set(key, value)?;
        }
    }
    Ok(device)
}

/// The elevator that `params` describe.
///
/// # Errors
/// A sentence, when there is no such elevator.
pub(crate) fn elevator_from(params: &Params) -> Result<ElevatorConfig, String> {
    let ns = |key: &str, unit: f64| (params.float(key) * unit) as u64;
    Ok(ElevatorConfig {
        kind: ElevatorKind::named(params.text("elevator.kind"))?,
        depth: params.int("elevator.depth") as u32,
        request_bytes_max: params.size("elevator.request_bytes_max"),
        plug_requests: params.int("elevator.plug_requests") as u32,
        plug_ns: ns("elevator.plug_ms", 1e6),
        expire_ns: ns("elevator.expire_ms", 1e6),
    })
}

/// How many OSTs there are in all, at each OSS and for each file.
fn targets(params: &Params) -> Result<(u32, u32, u32), String> {
    let [oss_count, osts_per_oss, stripe_count] =
        ["oss_count", "osts_per_oss", "stripe_count"].map(|key| params.int(key) as u32);
    let (ost_count, have) =
        (oss_count * osts_per_oss, format!("oss_count = {oss_count} and osts_per_oss = {osts_per_oss}"));
    if ost_count > OSTS_MAX {
        return Err(format!("{have} are more than {OSTS_MAX} OSTs"));
    }
    if stripe_count > ost_count {
        return Err(format!("stripe_count = {stripe_count} needs as many OSTs, but {have}"));
    }
    Ok((ost_count, osts_per_oss, stripe_count))
}

fn outages(text: &str, ost_count: u32) -> Result<Vec<Down>, String> {
    let mut down = Vec::new();
    for (ost, from, to) in parse_outages(text)? {
        if ost >= ost_count {
            return Err(format!("faults.ost_down names OST {ost}, but there are {ost_count} OSTs"));
        }
        down.push(Down { ost, from_ns: (from * 1e9) as u64, to_ns: (to * 1e9) as u64 });
    }
    Ok(down)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(set: &[(&str, &str)]) -> Result<LightConfig, String> {
        let mut params = Params::default();
        let mix = [("operation", "mix"), ("workload.coarse_bytes", "8M"), ("workload.hot_bytes", "1M")];
        mix.iter().chain(set).for_each(|(key, value)| params.set(key, value).unwrap());
        LightConfig::from_params(&params)
    }

    #[test]
    fn caches_are_off_unless_they_have_a_size_and_take_the_policy_of_all_or_their_own() {
        let off = LightConfig::from_params(&Params::default()).unwrap();
        assert!(off.client_cache.is_none() && off.ost_cache.is_none());
        let set = [("client.cache_bytes", "4M"), ("oss.cache_bytes", "1G"), ("cache.policy", "fgf_lru")];
        let on = configured(&[&set[..], &[("oss.cache_policy", "arc"), ("cache.batch_pages", "3")]].concat()).unwrap();
        let policies = [&on.client_cache, &on.ost_cache].map(|c| c.as_ref().map(|c| (c.policy.as_str(), c.bytes)));
        assert_eq!(policies, [Some(("fgf_lru", 4 << 20)), Some(("arc", 1 << 30))]);
        assert_eq!(on.ost_cache.unwrap().keys, [("batch_pages".to_string(), "3".to_string())]);
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_the_remedy() {
        for (set, part) in [
            (&[("operation", "write"), ("client.cache_bytes", "1M")][..], "client.readahead = true or operation = mix"),
            (&[("stripe_count", "2")], "stripe_count = 1"),
            (&[("workload.hot_bytes", "64M")], "larger than file_bytes"),
            (&[("workload.coarse_bytes", "64M")], "larger than file_bytes"),
            (&[("workload.coarse_bytes", "1536K")], "multiple of transfer_size_bytes"),
            (&[("workload.fine_bytes", "1M")], "smaller than transfer_size_bytes"),
            (&[("oss.cache_bytes", "1G"), ("workload.fine_bytes", "4K")], "must divide workload.fine_bytes = 4096"),
            (&[("oss.cache_bytes", "1G"), ("cache.block_bytes", "192K")], "must divide transfer_size_bytes"),
            (&[("client.readahead", "true")], "operation = read"),
            (&[("net.nic_mb_per_s", "95")], "net.nic_queue = true"),
            (&[("osts_per_oss", "8")], "net.nic_queue = true"),
        ] {
            let why = configured(set).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
}
