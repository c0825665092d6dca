//! `stria trace slow`: the slowest requests of a trace, and what the store was given while each of them waited.
use std::fmt::Write as _;

use trace::why::Ahead;
use trace::{Flags, Record, Target, Trace, op_name};
use types::format_size;

/// Clients named for each request.
const CLIENTS_SHOWN: usize = 3;

/// The `top` slowest requests in text.
pub(super) fn slowest(trace: &Trace, top: u32) -> String {
    let served = |t: &Target| -> Vec<Record> { t.records.iter().filter(|r| r.is_served()).copied().collect() };
    let mut targets: Vec<Vec<Record>> = trace.targets.iter().map(served).collect();
    targets.iter_mut().for_each(|records| records.sort_by_key(|r| r.dispatched));
    // What clients say of the same requests is not a second request.
    let told_once = |t: &&Target| t.setting("source") != Some("client");
    let all = targets
        .iter()
        .zip(&trace.targets)
        .filter(|(_, t)| told_once(t))
        .flat_map(|(records, t)| records.iter().map(move |r| (r, records, t)));
    let mut all: Vec<(&Record, &Vec<Record>, &Target)> = all.collect();
    all.sort_by_key(|(r, ..)| std::cmp::Reverse(r.at_target()));
    let mut out = String::new();
    if all.is_empty() {
        out += "no requests\n";
    }
    for (place, (r, records, target)) in all.into_iter().take(top as usize).enumerate() {
        if place > 0 {
            out.push('\n');
        }
        let _ = write!(out, "{}. {}", place + 1, told(r, target));
        out += &why(r, records);
    }
    out
}

fn ms(d: types::Duration) -> String {
    format!("{:.3} ms", d.as_nanos() as f64 / 1e6)
}

/// What it waited for besides: locks, commits.
fn waited(r: &Record) -> String {
    let us = |us: u32| ms(types::Duration::from_micros(us.into()));
    let mut out = String::new();
    if r.locked_us > 0 {
        let whose = if r.holder.0 == 0 { String::new() } else { format!(" of client {:016x}", r.holder.0) };
        let _ = writeln!(out, "   {} for a lock{whose}", us(r.locked_us));
    }
    if r.committed_us > 0 {
        let _ = writeln!(out, "   {} for a commit", us(r.committed_us));
    }
    out
}

fn told(r: &Record, target: &Target) -> String {
    let what = format!("{} of {} at {} of {}", op_name(r.op), format_size(r.bytes.into()), r.offset, r.object.0);
    let flags = if r.flags == Flags::default() { String::new() } else { format!(", {}", r.flags) };
    let failed = if r.errno == 0 { String::new() } else { format!(", failed with errno {}", r.errno) };
    format!(
        "{} request {}: {what}, client {:016x}{flags}{failed}\n   {} = {} queued + {} with the store; policy {}\n{}",
        target.name(),
        r.number,
        r.client.0,
        ms(r.response()),
        ms(r.queued()),
        ms(r.service()),
        target.setting("nrs.policy").unwrap_or("?"),
        waited(r),
    )
}

/// What the store was given from its arrival until its dispatch, and what it had besides.
fn why(r: &Record, records: &[Record]) -> String {
    let given = Ahead::of(r, records);
    let mut out = String::new();
    if r.queued().as_nanos() > 0 {
        let _ = writeln!(
            out,
            "   before it went {} requests ({}): {} had arrived later ({} of them urgent), {} were of its object",
            given.went.requests,
            format_size(given.went.bytes),
            given.passed,
            given.urgent,
            given.same_object
        );
    }
    let clients = given.went.clients();
    for (client, bytes, requests) in clients.iter().take(CLIENTS_SHOWN) {
        let own = if *client == r.client { " (its own)" } else { "" };
        let _ = writeln!(out, "      client {:016x}{own}: {requests} requests, {}", client.0, format_size(*bytes));
    }
    if clients.len() > CLIENTS_SHOWN {
        let _ = writeln!(out, "      {} more clients", clients.len() - CLIENTS_SHOWN);
    }
    let (n, bytes) = given.beside;
    let _ = writeln!(out, "   with the store when it came there: {n} others ({})", format_size(bytes));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ClientId, Instant};

    #[test]
    fn the_slowest_request_tells_who_went_before_it() {
        let record = |number: u64, client: u64, times: [u64; 3]| Record {
            number,
            client: ClientId(client),
            bytes: 4096,
            arrived: Instant(times[0] * 1_000_000),
            dispatched: Instant(times[1] * 1_000_000),
            finished: Instant(times[2] * 1_000_000),
            ..Record::default()
        };
        let urgent = Record { flags: Flags::URGENT, ..record(3, 3, [8, 10, 20]) };
        let mut target = Target::from_text("target=OST7\nnrs.policy=obrr\n").unwrap();
        target.records = vec![record(0, 1, [0, 0, 5]), record(2, 2, [2, 5, 10]), urgent, record(1, 1, [1, 20, 60])];
        let said = slowest(&Trace { targets: vec![target] }, 1);
        assert!(said.starts_with("1. OST7 request 1: ost_read of 4.0K at 0 of "), "{said}");
        assert!(said.contains("59.000 ms = 19.000 ms queued + 40.000 ms with the store; policy obrr"), "{said}");
        assert!(
            said.contains("before it went 2 requests (8.0K): 2 had arrived later (1 of them urgent), 2 were of"),
            "{said}"
        );
        assert!(said.contains("client 0000000000000003: 1 requests, 4.0K"), "{said}");
        assert!(said.contains("with the store when it came there: 0 others (0)"), "{said}");
        assert!(!said.contains("\n2. "));
        assert_eq!(slowest(&Trace::default(), 5), "no requests\n");
    }
}
