//! From a scenario's parameters to a light world's configuration.
use super::calling::{Calling, Cost, Mix, Order};
use super::config::{Credits, Down, LightConfig, Operation, Placement, Urgent};
use super::tiers::Tiering;
use crate::block_cache::{BlockCache, CacheSettings};
use crate::scenario::PROFILES_OWN;
use crate::scenario::{Params, parse_outages};
use devices::{AllocKind, DeviceProfile, ElevatorConfig, ElevatorKind};
use nrs::NrsConfig;

/// Most OSTs of a world.
const OSTS_MAX: u32 = 60_000;

/// Progress of a large read after which readahead is asked again.
pub(super) const STEP_BYTES: u64 = 4 << 20;

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
        let (client_cache, ost_cache) = (cache(params, "client")?, cache(params, "oss")?);
        let calling = calling(params, client_cache.as_ref())?;
        if client_cache.is_some() && calling.is_none() {
            return Err(CACHE_UNUSED.to_string());
        }
        let disk = device_from(params)?;
        let (nic_rate, nic_queue) = nics(params, f64::from(osts_per_oss) * disk.stream_rate_max())?;
        Ok(LightConfig {
            seed: params.int("seed"),
            clients: params.int("clients") as u32,
            ost_count,
            osts_per_oss,
            stripe_count,
            file_bytes: params.size("file_bytes"),
            transfer_bytes: params.size("transfer_size_bytes"),
            operation: match params.text("operation") {
                "write" => Operation::Write,
                _ => Operation::Read,
            },
            rpcs_in_flight: params.int("client.max_rpcs_in_flight") as u32,
            calling,
            block_bytes: if client_cache.is_some() || ost_cache.is_some() {
                params.size("cache.block_bytes")
            } else {
                1
            },
            client_cache,
            cache_first: ost_cache.is_some() && params.flag("oss.cache_first"),
            ost_cache,
            tiering: tiering(params)?,
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
            nrs: scheduler(params, &disk)?,
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

fn scheduler(params: &Params, disk: &DeviceProfile) -> Result<NrsConfig, String> {
    let mut nrs = NrsConfig::default();
    for (key, value) in params.below("nrs.").filter(|(k, _)| *k != "policy") {
        nrs.set(key, value).map_err(|e| e.to_string())?;
    }
    if nrs.auto_first.is_empty() {
        // As an OST does.
        let medium = if disk.seeks() { nrs::Medium::Rotating } else { nrs::Medium::Flash };
        nrs.auto_first = nrs::default_for(medium).to_string();
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

/// How clients' programs read, where they do call by call.
fn calling(params: &Params, client_cache: Option<&CacheSettings>) -> Result<Option<Calling>, String> {
    let is_mix = params.text("operation") == "mix";
    if !is_mix && !params.flag("client.readahead") {
        return Ok(None);
    }
    if params.text("operation") == "write" {
        return Err("client.readahead = true needs operation = read".to_string());
    }
    let (file_bytes, rpc_bytes) = (params.size("file_bytes"), params.size("transfer_size_bytes"));
    let rate = params.float("client.record_mb_per_s") * 1e6;
    let order = if is_mix {
        let mix = mix(params, (file_bytes, "file_bytes"), (rpc_bytes, "transfer_size_bytes"))?;
        if !mix.coarse_bytes.is_multiple_of(rpc_bytes) {
            let coarse = mix.coarse_bytes;
            return Err(format!(
                "workload.coarse_bytes = {coarse} must be a multiple of transfer_size_bytes = {rpc_bytes}"
            ));
        }
        Order::Mix(mix)
    } else {
        order(params)
    };
    let is_direct = params.flag("client.direct");
    if is_direct && client_cache.is_some() {
        return Err(
            "client.direct = true passes the page cache that client.cache_bytes asks for: set one of them".to_string()
        );
    }
    let io_bytes = if is_mix { 0 } else { params.size("reader.io_bytes") };
    let block_bytes = client_cache.map(|c| c.block_bytes);
    let unit_bytes = match order {
        Order::Mix(mix) => block_bytes.unwrap_or(mix.fine_bytes),
        _ if is_direct => io_bytes.next_multiple_of(types::PAGE_BYTES as u64).min(rpc_bytes),
        _ => block_bytes.unwrap_or(rpc_bytes),
    };
    let (policy, readahead) =
        if is_mix { ("none".to_string(), readahead::Config::default()) } else { readahead_of(params)? };
    Ok(Some(Calling {
        programs: 1,
        files: 1,
        file_bytes,
        laid_out: params.flag("reader.laid_out"),
        keeps: !is_mix && !is_direct,
        order,
        io_bytes,
        step_bytes: if is_mix { rpc_bytes } else { STEP_BYTES },
        fetches_whole: is_mix,
        rpc_bytes,
        unit_bytes,
        policy,
        readahead,
        cost: Cost {
            call_ns: 0,
            copy_ns_per_byte: if rate > 0.0 { 1e9 / rate } else { 0.0 },
            issue_ns: 0,
            receive_ns_per_byte: 0.0,
            pool_threads: 1,
        },
    }))
}

/// The readahead that `params` describe: policy and configuration.
pub(super) fn readahead_of(params: &Params) -> Result<(String, readahead::Config), String> {
    let mut config = readahead::Config::default();
    for (key, value) in params.below("readahead.").filter(|(k, _)| *k != "policy") {
        config.set(key, value).map_err(|e| e.to_string())?;
    }
    Ok((params.text("readahead.policy").to_string(), config))
}

/// The order that `reader.order` names.
pub(super) fn order(params: &Params) -> Order {
    match params.text("reader.order") {
        "stride" => Order::Stride(params.size("reader.skip_bytes")),
        "backward" => Order::Backward,
        "interleaved" => Order::Interleaved,
        "random" => Order::Random,
        _ => Order::Sequential,
    }
}

/// The accesses that `workload.*` describes, to files and stripes of these sizes, which are called so.
pub(super) fn mix(params: &Params, file: (u64, &str), stripe: (u64, &str)) -> Result<Mix, String> {
    let (hot_bytes, coarse_bytes) = (params.size("workload.hot_bytes"), params.size("workload.coarse_bytes"));
    let (fine_bytes, (file, file_key), (stripe, stripe_key)) = (params.size("workload.fine_bytes"), file, stripe);
    let coarse_step = if params.text("workload.coarse_start") == "record" { coarse_bytes } else { stripe };
    let apart = params.flag("workload.coarse_apart");
    let coarse_first = if apart { hot_bytes.next_multiple_of(coarse_step) } else { 0 };
    for (key, bytes) in [("workload.hot_bytes", hot_bytes), ("workload.coarse_bytes", coarse_bytes)] {
        if bytes > file {
            return Err(format!("{key} = {bytes} is larger than {file_key} = {file}"));
        }
    }
    if coarse_first + coarse_bytes > file {
        return Err(format!(
            "workload.hot_bytes = {hot_bytes} leaves no room for coarse accesses in {file_key} = {file}: set \
             workload.coarse_apart = false"
        ));
    }
    if fine_bytes >= stripe || fine_bytes > hot_bytes {
        return Err(format!(
            "workload.fine_bytes = {fine_bytes} must be smaller than {stripe_key} = {stripe} and fit workload.hot_bytes"
        ));
    }
    Ok(Mix {
        fine_share: params.float("workload.fine_share"),
        fine_bytes,
        hot_bytes,
        coarse_bytes,
        coarse_step,
        coarse_first,
        accesses: params.int("workload.accesses") as u32,
        warmup: params.int("workload.warmup") as u32,
    })
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

/// Advice and the fast tier of every OST, if there is any.
fn tiering(params: &Params) -> Result<Option<Tiering>, String> {
    let fast_bytes = params.size("oss.fast_bytes");
    let level = advice::Hint::parse(params.text("advice.level")).unwrap_or_default();
    if fast_bytes == 0 && level == advice::Hint::None {
        return Ok(None);
    }
    if params.text("operation") == "write" {
        return Err("oss.fast_bytes and advice.level need operation = read or mix: writes leave no copies".to_string());
    }
    let mut config = advice::Config::default();
    for (key, value) in params.below("advice.").filter(|(k, _)| !["level", "clients"].contains(k)) {
        config.set(key, value).map_err(|e| e.to_string())?;
    }
    let fast = if fast_bytes > 0 { params.text("oss.fast_profile") } else { "ssd" };
    let (admission, reclaim) = if fast_bytes > 0 {
        (params.text("oss.fast_admission"), params.text("oss.fast_reclaim"))
    } else {
        ("advised", "lru")
    };
    let tiering = Tiering {
        fast_bytes,
        fast: DeviceProfile::named(fast)?,
        admission: admission.to_string(),
        reclaim: reclaim.to_string(),
        level,
        advisers: if level == advice::Hint::None { 0 } else { params.int("advice.clients") as u32 },
        advice: config,
    };
    tiering.check()?;
    Ok(Some(tiering))
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
            (&[("workload.hot_bytes", "64M")], "larger than file_bytes"),
            (&[("workload.coarse_bytes", "64M")], "larger than file_bytes"),
            (&[("workload.coarse_bytes", "1536K")], "multiple of transfer_size_bytes"),
            (&[("workload.fine_bytes", "1M")], "smaller than transfer_size_bytes"),
            (&[("oss.cache_bytes", "1G"), ("workload.fine_bytes", "4K")], "must divide workload.fine_bytes = 4096"),
            (&[("oss.cache_bytes", "1G"), ("cache.block_bytes", "192K")], "must divide transfer_size_bytes"),
            (&[("operation", "write"), ("client.readahead", "true")], "operation = read"),
            (&[("net.nic_mb_per_s", "95")], "net.nic_queue = true"),
            (&[("osts_per_oss", "8")], "net.nic_queue = true"),
        ] {
            let why = configured(set).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
}
