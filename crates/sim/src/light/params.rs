//! From a scenario's parameters to a light world's configuration.
use super::config::{Credits, Down, LightConfig, Operation, Placement, Urgent};
use super::reader::Reading;
use crate::hw::{AllocKind, DiskProfile, ElevatorConfig, ElevatorKind};
use crate::scenario::{Params, parse_outages};
use nrs::NrsConfig;

impl LightConfig {
    /// The world that `params` describe.
    ///
    /// # Errors
    /// A sentence, when parameters that are each in range do not go together.
    pub fn from_params(params: &Params) -> Result<LightConfig, String> {
        let mut nrs = NrsConfig::default();
        for (key, value) in params.below("nrs.").filter(|(k, _)| *k != "policy") {
            nrs.set(key, value).map_err(|e| e.to_string())?;
        }
        let ns = |key: &str, unit: f64| (params.float(key) * unit) as u64;
        let allocation_ns = (ns("oss.allocation_us_min", 1e3), ns("oss.allocation_us_max", 1e3));
        if allocation_ns.0 > allocation_ns.1 {
            return Err("oss.allocation_us_min lies above oss.allocation_us_max".to_string());
        }
        let (oss_count, stripe_count) = (params.int("oss_count") as u32, params.int("stripe_count") as u32);
        if stripe_count > oss_count {
            return Err(format!("stripe_count = {stripe_count} needs as many OSTs, but oss_count = {oss_count}"));
        }
        let urgent = (params.int("urgent.clients") > 0).then(|| Urgent {
            clients: params.int("urgent.clients") as u32,
            max_service_ns: ns("urgent.max_service_s", 1e9),
            think_ns: ns("urgent.think_ms", 1e6),
            stagger_s: params.int("urgent.stagger_s") as u32,
            until_ns: ns("urgent.until_s", 1e9),
        });
        Ok(LightConfig {
            seed: params.int("seed"),
            clients: params.int("clients") as u32,
            oss_count,
            stripe_count,
            file_bytes: params.size("file_bytes"),
            transfer_bytes: params.size("transfer_size_bytes"),
            operation: if params.text("operation") == "read" { Operation::Read } else { Operation::Write },
            rpcs_in_flight: params.int("client.max_rpcs_in_flight") as u32,
            reading: reading(params, stripe_count)?,
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
            urgent,
            nrs_policy: params.text("nrs.policy").to_string(),
            nrs,
            dispatch_window: params.int("oss.dispatch_window") as u32,
            allocation_ns,
            latency_ns: ns("net.latency_us", 1e3),
            nic_rate: params.float("net.nic_mb_per_s") * 1e6,
            nic_queue: params.flag("net.nic_queue"),
            switch_rate: params.float("net.switch_mb_per_s") * 1e6,
            loss: params.float("net.loss"),
            resend_ns: ns("client.resend_after_ms", 1e6),
            disk: DiskProfile::named(params.text("disk.profile"))?,
            elevator: elevator_from(params)?,
            alloc: AllocKind::named(params.text("alloc.kind"))?,
            down: outages(params.text("faults.ost_down"), oss_count)?,
            timeline: params.flag("timeline"),
            partition: params.flag("engine.partition"),
        })
    }
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

fn outages(text: &str, oss_count: u32) -> Result<Vec<Down>, String> {
    let mut down = Vec::new();
    for (ost, from, to) in parse_outages(text)? {
        if ost >= oss_count {
            return Err(format!("faults.ost_down names OST {ost}, but oss_count = {oss_count}"));
        }
        down.push(Down { ost, from_ns: (from * 1e9) as u64, to_ns: (to * 1e9) as u64 });
    }
    Ok(down)
}
