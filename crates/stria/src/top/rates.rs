//! What happened between two looks: rates, times and shares, as people and programs are shown them.
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use types::latency::Latency;

use super::sample::{Numbers, Sample, Server, Use};

/// Kinds that are no work of clients: what looks themselves ask, and the part of other kinds that is waiting.
const NO_WORK: [&str; 2] = ["params", "nrs_wait"];

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct KindRates {
    /// Its name.
    pub name: String,
    /// Requests a second.
    pub per_s: f64,
    /// The time that half of them did not exceed.
    pub p50: Option<Duration>,
    /// The time that 99 of 100 did not exceed.
    pub p99: Option<Duration>,
}

impl KindRates {
    fn of(name: &str, times: &Latency, seconds: f64) -> KindRates {
        let per_s = times.count() as f64 / seconds;
        KindRates { name: name.into(), per_s, p50: times.quantile(500), p99: times.quantile(990) }
    }
    fn json(&self) -> Value {
        let us = |d: Option<Duration>| d.map(|d| d.as_micros() as u64);
        json!({"per_s": self.per_s, "p50_us": us(self.p50), "p99_us": us(self.p99)})
    }
}

/// What a server did.
#[derive(Clone, Debug)]
pub struct ServerRates {
    /// As it was looked at.
    pub server: Server,
    /// All requests together; `None`: it did not answer, now or before.
    pub all: Option<KindRates>,
    /// By kind, the most frequent first.
    pub kinds: Vec<KindRates>,
    /// Bytes read and written a second.
    pub bytes_per_s: [f64; 2],
    /// Share of pages that were found in its cache; `None`: none was looked up.
    pub cache_hits: Option<f64>,
}

/// What somebody did, at all servers together.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct UseRates {
    /// Job or client.
    pub name: String,
    /// Requests a second.
    pub per_s: f64,
    /// Bytes read a second.
    pub read_per_s: f64,
    /// Bytes written a second.
    pub write_per_s: f64,
}

impl UseRates {
    fn json(&self) -> Value {
        json!({"name": self.name, "requests_per_s": self.per_s, "read_bytes_per_s": self.read_per_s, "write_bytes_per_s": self.write_per_s})
    }
}

/// By what jobs and clients are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Bytes read and written.
    #[default]
    Bytes,
    /// Bytes read.
    Read,
    /// Bytes written.
    Write,
    /// Requests.
    Requests,
    /// Names.
    Name,
}

impl Order {
    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Order::Bytes => "bytes",
            Order::Read => "read",
            Order::Write => "write",
            Order::Requests => "requests",
            Order::Name => "name",
        }
    }
    /// Sorts, the most first.
    pub fn sort(self, all: &mut [UseRates]) {
        let key = |u: &UseRates| match self {
            Order::Bytes => u.read_per_s + u.write_per_s,
            Order::Read => u.read_per_s,
            Order::Write => u.write_per_s,
            Order::Requests => u.per_s,
            Order::Name => 0.0,
        };
        // Of equals the busier first.
        let busy = |u: &UseRates| u.per_s;
        all.sort_by(|a, b| {
            key(b).total_cmp(&key(a)).then_with(|| match self {
                Order::Name => a.name.cmp(&b.name),
                _ => busy(b).total_cmp(&busy(a)).then_with(|| a.name.cmp(&b.name)),
            })
        });
    }
}

/// What is shown.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The file system's name.
    pub fsname: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// Servers.
    pub servers: Vec<ServerRates>,
    /// Jobs that did something.
    pub jobs: Vec<UseRates>,
    /// Clients that did something.
    pub clients: Vec<UseRates>,
}

/// What servers told when they answered last.
#[derive(Default)]
pub struct History(BTreeMap<String, Numbers>);

impl History {
    /// What happened since the looks before.
    pub fn view(&mut self, sample: &Sample) -> View {
        let (mut jobs, mut clients) = (BTreeMap::new(), BTreeMap::new());
        let mut servers = Vec::new();
        for server in &sample.servers {
            let before = self.0.get(&server.target);
            let both = server.numbers.as_ref().zip(before);
            servers.push(rates_of(server, both));
            if let Some((now, before)) = both {
                let seconds = seconds_between(now, before);
                add_uses(&mut jobs, (&now.jobs, &before.jobs), seconds);
                add_uses(&mut clients, (&now.uses, &before.uses), seconds);
            }
            if let Some(now) = &server.numbers {
                self.0.insert(server.target.clone(), now.clone());
            }
        }
        let listed = |all: BTreeMap<String, UseRates>| all.into_values().filter(|u| u.per_s > 0.0).collect();
        View {
            fsname: sample.fsname.clone(),
            mount_point: sample.mount_point.clone(),
            servers,
            jobs: listed(jobs),
            clients: listed(clients),
        }
    }
}

/// By the server's clock; at least a little, so that nothing is divided by nothing.
fn seconds_between(now: &Numbers, before: &Numbers) -> f64 {
    now.at.saturating_sub(before.at).as_secs_f64().max(1e-3)
}

/// How much a counter grew; all of it when counting began anew.
fn grown(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn rates_of(server: &Server, both: Option<(&Numbers, &Numbers)>) -> ServerRates {
    let mut rates =
        ServerRates { server: server.clone(), all: None, kinds: Vec::new(), bytes_per_s: [0.0; 2], cache_hits: None };
    let Some((now, before)) = both else { return rates };
    let seconds = seconds_between(now, before);
    let mut all = Latency::default();
    for (name, times) in &now.kinds {
        let new = before.kinds.get(name).map_or_else(|| times.clone(), |b| times.since(b));
        if !NO_WORK.contains(&name.as_str()) {
            all.merge(&new);
        }
        if new.count() > 0 {
            rates.kinds.push(KindRates::of(name, &new, seconds));
        }
    }
    rates.kinds.sort_by(|a, b| b.per_s.total_cmp(&a.per_s).then_with(|| a.name.cmp(&b.name)));
    rates.all = Some(KindRates::of("all", &all, seconds));
    rates.bytes_per_s = [0, 1].map(|i| grown(now.bytes[i], before.bytes[i]) as f64 / seconds);
    rates.cache_hits = now.cache.zip(before.cache).and_then(|(now, before)| {
        let [lookups, hits] = [0, 1].map(|i| grown(now[i], before[i]));
        (lookups > 0).then(|| hits as f64 / lookups as f64)
    });
    rates
}

fn add_uses(
    to: &mut BTreeMap<String, UseRates>,
    (now, before): (&BTreeMap<String, Use>, &BTreeMap<String, Use>),
    seconds: f64,
) {
    for (name, now) in now {
        let before = before.get(name).copied().unwrap_or_default();
        let rate = |now, before| grown(now, before) as f64 / seconds;
        let one = to.entry(name.clone()).or_insert_with(|| UseRates { name: name.clone(), ..UseRates::default() });
        one.per_s += rate(now.requests, before.requests);
        one.read_per_s += rate(now.read_bytes, before.read_bytes);
        one.write_per_s += rate(now.write_bytes, before.write_bytes);
    }
}

impl View {
    /// As a program reads it; `time` in seconds since 1970.
    #[must_use]
    pub fn json(&self, time: f64) -> Value {
        let list = |all: &[UseRates]| all.iter().map(UseRates::json).collect::<Vec<_>>();
        json!({
            "time": time,
            "fsname": self.fsname,
            "mount_point": self.mount_point,
            "servers": self.servers.iter().map(ServerRates::json).collect::<Vec<_>>(),
            "jobs": list(&self.jobs),
            "clients": list(&self.clients),
        })
    }
}

impl ServerRates {
    /// As a program reads it.
    #[must_use]
    pub fn json(&self) -> Value {
        let s = &self.server;
        let mut out = json!({
            "target": s.target,
            "nid": s.nid,
            "state": s.state,
            "failure": s.failure,
            "answers": s.numbers.is_some(),
        });
        let Some(n) = &s.numbers else { return out };
        out["clients"] = json!(n.clients);
        out["queue"] = json!(
            n.queue.map(|[queued, serving]| json!({"queued": queued, "in_service": serving, "policy": n.policy}))
        );
        out["space"] = json!(n.space.map(|[total, free]| json!({"total_bytes": total, "free_bytes": free})));
        out["recovery"] = json!(n.recovery.map(|[left, clients]| json!({"left_s": left, "clients": clients})));
        if let Some(all) = &self.all {
            out["requests"] = all.json();
            out["kinds"] =
                self.kinds.iter().map(|k| (k.name.clone(), k.json())).collect::<serde_json::Map<_, _>>().into();
            out["read_bytes_per_s"] = json!(self.bytes_per_s[0]);
            out["write_bytes_per_s"] = json!(self.bytes_per_s[1]);
            out["cache_hit_ratio"] = json!(self.cache_hits);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::look;
    use super::*;

    fn view() -> View {
        let mut history = History::default();
        let first = history.view(&Sample::read(&look(5, 100)));
        assert!(first.servers.iter().all(|s| s.all.is_none()) && first.jobs.is_empty());
        history.view(&Sample::read(&look(25, 102)))
    }

    #[test]
    fn rates_are_those_of_the_time_between_two_looks_by_the_servers_clock() {
        let v = view();
        let [mdt, ost, silent] = &v.servers[..] else { panic!("{v:?}") };
        let all = mdt.all.as_ref().unwrap();
        assert_eq!(all.per_s, 10.0, "what a look asks is no work");
        assert!(all.p99.unwrap() >= Duration::from_millis(3) && all.p99.unwrap() <= Duration::from_micros(3750));
        let read = ost.kinds.iter().find(|k| k.name == "read").unwrap();
        assert_eq!((read.per_s, read.p50), (10.0, Some(Duration::from_micros(112))));
        assert_eq!(
            (ost.all.as_ref().unwrap().per_s, ost.bytes_per_s, ost.cache_hits),
            (10.0, [40_960.0, 0.0], Some(0.5))
        );
        assert!(silent.all.is_none() && silent.server.numbers.is_none());
        let job = UseRates { name: "dd.0".into(), per_s: 20.0, read_per_s: 40_960.0, write_per_s: 0.0 };
        assert_eq!(v.jobs, [job], "both servers together");
        assert_eq!(v.clients.len(), 1);
        let j = v.json(1.5);
        assert_eq!(
            (&j["servers"][1]["kinds"]["read"]["p50_us"], &j["servers"][2]["answers"]),
            (&json!(112), &json!(false))
        );
        assert_eq!(j["servers"][0]["recovery"], json!({"left_s": 23, "clients": 1}));
        assert_eq!(j["servers"][1]["queue"], json!({"queued": 3, "in_service": 8, "policy": "crr"}));
    }

    #[test]
    fn a_server_that_counts_anew_or_was_silent_between_has_no_absurd_rates() {
        let mut history = History::default();
        history.view(&Sample::read(&look(1000, 100)));
        let mut quiet = look(1000, 101);
        quiet["servers"][1]["answers"] = json!(false);
        assert!(history.view(&Sample::read(&quiet)).servers[1].all.is_none());
        // Restarted meanwhile.
        let v = history.view(&Sample::read(&look(10, 110)));
        assert_eq!(v.servers[1].all.as_ref().unwrap().per_s, 1.0);
    }

    #[test]
    fn jobs_and_clients_are_sorted_by_what_is_asked_for() {
        let of =
            |name: &str, per_s, read_per_s, write_per_s| UseRates { name: name.into(), per_s, read_per_s, write_per_s };
        let mut all = [of("b", 1.0, 5.0, 0.0), of("a", 2.0, 0.0, 9.0), of("c", 3.0, 5.0, 1.0)];
        let mut by = |order: Order| {
            order.sort(&mut all);
            all.iter().map(|u| u.name.clone()).collect::<String>()
        };
        assert_eq!(
            [Order::Bytes, Order::Read, Order::Write, Order::Requests, Order::Name].map(&mut by),
            ["acb", "cba", "acb", "cab", "abc"]
        );
    }
}
