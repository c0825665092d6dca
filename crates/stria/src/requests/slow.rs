//! `stria trace slow`: the slowest requests of a trace, and what the store was given while each of them waited.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use trace::{Flags, Record, Target, Trace};
use types::{ClientId, format_size};

/// Clients named for each request.
const CLIENTS_SHOWN: usize = 3;

/// Requests that went to the store while another one waited.
#[derive(Default)]
struct Given {
    requests: u64,
    bytes: u64,
    /// Of these, such that had arrived later.
    passed: u64,
    /// Of those, such with a deadline.
    urgent: u64,
    /// Of all, such of the same object.
    same_object: u64,
    by_client: BTreeMap<ClientId, (u64, u64)>,
}

impl Given {
    fn add(&mut self, r: &Record, waiting: &Record) {
        let later = (r.arrived, r.number) > (waiting.arrived, waiting.number);
        self.requests += 1;
        self.bytes += u64::from(r.bytes);
        self.passed += u64::from(later);
        self.urgent += u64::from(later && r.flags.has(Flags::URGENT));
        self.same_object += u64::from(r.object == waiting.object);
        let client = self.by_client.entry(r.client).or_default();
        client.0 += u64::from(r.bytes);
        client.1 += 1;
    }
}

/// The `top` slowest requests in text.
pub(super) fn slowest(trace: &Trace, top: usize) -> String {
    let served = |t: &Target| -> Vec<Record> { t.records.iter().filter(|r| r.is_served()).copied().collect() };
    let mut targets: Vec<Vec<Record>> = trace.targets.iter().map(served).collect();
    targets.iter_mut().for_each(|records| records.sort_by_key(|r| r.dispatched));
    let all = targets.iter().zip(&trace.targets).flat_map(|(records, t)| records.iter().map(move |r| (r, records, t)));
    let mut all: Vec<(&Record, &Vec<Record>, &Target)> = all.collect();
    all.sort_by_key(|(r, ..)| std::cmp::Reverse(r.response()));
    let mut out = String::new();
    if all.is_empty() {
        out += "no requests\n";
    }
    for (place, (r, records, target)) in all.into_iter().take(top).enumerate() {
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

fn told(r: &Record, target: &Target) -> String {
    let what = format!("{} of {} at {} of {}", r.op.name(), format_size(r.bytes.into()), r.offset, r.object.0);
    let flags = if r.flags == Flags::default() { String::new() } else { format!(", {}", r.flags) };
    let failed = if r.errno == 0 { String::new() } else { format!(", failed with errno {}", r.errno) };
    format!(
        "{} request {}: {what}, client {:016x}{flags}{failed}\n   {} = {} queued + {} with the store; policy {}\n",
        target.name(),
        r.number,
        r.client.0,
        ms(r.response()),
        ms(r.queued()),
        ms(r.service()),
        target.setting("nrs.policy").unwrap_or("?"),
    )
}

/// What the store was given from its arrival until its dispatch, and what it had besides.
fn why(r: &Record, records: &[Record]) -> String {
    let from = records.partition_point(|other| other.dispatched < r.arrived);
    let to = records.partition_point(|other| other.dispatched <= r.dispatched);
    let mut given = Given::default();
    let others = records[from..to].iter().filter(|o| o.number != r.number && !o.flags.has(Flags::PAST_QUEUE));
    // Those that went together with it came before it if they arrived before.
    let before = others.filter(|o| o.dispatched < r.dispatched || (o.arrived, o.number) < (r.arrived, r.number));
    before.for_each(|o| given.add(o, r));
    let mut out = String::new();
    if r.queued().as_nanos() > 0 {
        let _ = writeln!(
            out,
            "   before it went {} requests ({}): {} had arrived later ({} of them urgent), {} were of its object",
            given.requests,
            format_size(given.bytes),
            given.passed,
            given.urgent,
            given.same_object
        );
    }
    let mut clients: Vec<(u64, u64, ClientId)> = given.by_client.iter().map(|(c, (b, n))| (*b, *n, *c)).collect();
    clients.sort_unstable_by(|a, b| b.cmp(a));
    for (bytes, requests, client) in clients.iter().take(CLIENTS_SHOWN) {
        let own = if *client == r.client { " (its own)" } else { "" };
        let _ = writeln!(out, "      client {:016x}{own}: {requests} requests, {}", client.0, format_size(*bytes));
    }
    if clients.len() > CLIENTS_SHOWN {
        let _ = writeln!(out, "      {} more clients", clients.len() - CLIENTS_SHOWN);
    }
    let beside = records.iter().filter(|o| {
        o.number != r.number
            && o.dispatched <= r.dispatched
            && o.finished > r.dispatched
            && !o.flags.has(Flags::PAST_QUEUE)
    });
    let (n, bytes) = beside.fold((0, 0), |(n, bytes), o| (n + 1, bytes + u64::from(o.bytes)));
    let _ = writeln!(out, "   with the store when it came there: {n} others ({})", format_size(bytes));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Instant;

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
