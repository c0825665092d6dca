//! What the page is told of a moment, as one JSON document: what `status` and a look of `top` answer, with what servers and the
//! mount tell of their schedulers, caches and locks in the same look, and since when who does not answer has not.
use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::{Map, Value, json};
use types::glob::Glob;

use super::switches::SWITCHES;
use crate::control::{Asked, Unanswered};
use crate::status;
use crate::top::rates::{History, Order, UseRates, View};
use crate::top::sample::{Sample, Use};
use crate::top::source::{Source, moment};
use crate::trouble::Trouble;

/// Pages that a look asks for: those of `top`, and those of schedulers, caches, locks and the mount.
const PAGES: &[&str] = &[
    "mdt.*.latency_stats",
    "mdt.*.job_stats",
    "mdt.*.client_stats",
    "mdt.*.recovery_status",
    "mdt.*.num_exports",
    "mdt.*.kbytestotal",
    "mdt.*.kbytesfree",
    "obdfilter.*.latency_stats",
    "obdfilter.*.job_stats",
    "obdfilter.*.client_stats",
    "obdfilter.*.recovery_status",
    "obdfilter.*.num_exports",
    "obdfilter.*.kbytestotal",
    "obdfilter.*.kbytesfree",
    "obdfilter.*.kbytesavail",
    "obdfilter.*.stats",
    "obdfilter.*.cache_stats",
    "obdfilter.*.cache_policy",
    "obdfilter.*.cache_bytes",
    "ost.OSS.ost_io.req_waitqueue",
    "ost.OSS.ost_io.nrs_policies",
    "lod.*.qos_policy",
    "ldlm.namespaces.*.lock_count",
    "ldlm.namespaces.*.stats",
    "ldlm.namespaces.*.grants",
    "ldlm.namespaces.*.waited",
    "ldlm.namespaces.*.callbacks",
    "mdt.*.evictions",
    "llite.*.cache_stats",
    "llite.*.cache_policy",
    "llite.*.used_mb",
    "llite.*.max_cached_mb",
    "llite.*.read_ahead_stats",
    "llite.*.readahead_policy",
];
/// Where clients come from; asked of clusters of few clients only.
const ADDRESSES: &str = "mdt.*.exports.*.uuid";
/// Clients up to which that is asked.
const ADDRESSES_MAX: u64 = 64;
/// Jobs and clients that the page is told, each.
const USES_MAX: usize = 50;

/// Classes of pages in a cache, and what counts the lookups and the hits of each.
const CLASSES: [&str; 3] = ["fine", "coarse", "readahead"];

/// Who looks again and again, and what it knows from before.
#[derive(Default)]
pub struct Observer {
    history: History,
    /// Who does not answer, and since when, in seconds since 1970; the empty name is the mount's daemon.
    since: BTreeMap<String, f64>,
    /// The last answer to `status`.
    status: Value,
    /// The last document of a daemon that answered.
    known: Value,
    clients: u64,
    /// Questions to `status` and for a look whose answers are late: nobody is asked again meanwhile.
    late: [Option<Asked>; 2],
}

impl Observer {
    /// Forgets what would make rates over a time in which nobody watched.
    pub fn forget(&mut self) {
        *self = Observer { late: std::mem::take(&mut self.late), ..Observer::default() };
    }

    /// Looks; takes a second at most, whoever stands still.
    pub fn look(&mut self, source: &Source) -> Value {
        // Both questions are under way at the same time.
        let until = moment();
        let [status, look] = std::mem::take(&mut self.late);
        let status = status.unwrap_or_else(|| source.status());
        let look = look.unwrap_or_else(|| source.look(&self.pages()));
        let (told, seen) = (status.answer(until), look.answer(until));
        let is_late = |answer: &Result<Value, Unanswered>| answer.as_ref().is_err_and(|e| e.late);
        self.late = [Some(status).filter(|_| is_late(&told)), Some(look).filter(|_| is_late(&seen))];
        let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
        let named = |t: Trouble| Trouble { what: format!("{}: {}", source.at.display(), t.what), ..t };
        self.take(time, told.ok(), seen.map_err(|e| named(source.trouble(&e))))
    }

    fn pages(&self) -> String {
        let more = if self.clients <= ADDRESSES_MAX { format!(",{ADDRESSES}") } else { String::new() };
        format!("{{{}{more}}}", PAGES.join(","))
    }

    /// The document of what was answered at a time.
    fn take(&mut self, time: f64, status: Option<Value>, look: Result<Value, Trouble>) -> Value {
        let look = match look {
            Ok(look) => look,
            Err(trouble) => return self.away(time, &trouble),
        };
        self.since.remove("");
        if let Some(status) = status {
            self.status = status;
        }
        let sample = Sample::read(&look);
        self.clients = sample.servers.iter().filter_map(|s| s.numbers.as_ref()).map(|n| n.clients).max().unwrap_or(0);
        let view = self.history.view(&sample);
        let answers = look["servers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let servers: Vec<Value> =
            view.servers.iter().zip(answers).map(|(rates, answer)| self.server(time, rates.json(), answer)).collect();
        // Of a mount whose first status is late nothing is known yet.
        let wrong = if self.status.is_object() { status::troubles_of(&self.status) } else { Vec::new() };
        let troubles: Vec<Value> = wrong.iter().map(Trouble::json).collect();
        let of_cluster = |key: &str| self.status[key].clone();
        self.known = json!({
            "time": time,
            "as_of": time,
            "sums": sums(&servers),
            "away": null,
            "cluster": {
                "fsname": look["fsname"], "mount_point": look["mount_point"], "client": look["client"],
                "cluster": of_cluster("cluster"), "transport": of_cluster("transport"), "roles": of_cluster("roles"),
                "pid": of_cluster("pid"), "dir": of_cluster("dir"), "metrics": of_cluster("metrics"),
            },
            "troubles": troubles,
            "notes": status::notes(&self.status),
            "servers": servers,
            "mount": mount(&look["own"]),
            "policies": policies(&look),
            "jobs": uses(totals(&sample, |n| &n.jobs), &view.jobs, &Map::new()),
            "clients": clients(&sample, &view, answers),
        });
        self.known.clone()
    }

    /// The document of a moment in which the mount's daemon does not answer: what was known, and why that is old.
    fn away(&mut self, time: f64, trouble: &Trouble) -> Value {
        let since = *self.since.entry(String::new()).or_insert(time);
        let mut known = if self.known.is_object() { self.known.clone() } else { json!({"servers": []}) };
        known["time"] = json!(time);
        known["sums"] = sums(&[]);
        known["away"] = json!({"since": since, "what": trouble.what, "do": trouble.remedy});
        known["troubles"] = json!([trouble.json()]);
        known["notes"] = json!([]);
        known
    }

    /// A server: its rates, with what its pages and the mount's status say of it.
    fn server(&mut self, time: f64, mut s: Value, answer: &Value) -> Value {
        let (params, target) = (&answer["params"], answer["target"].as_str().unwrap_or_default());
        s["role"] = json!(if answer["index"].is_null() { "MDT" } else { "OST" });
        s["since"] = if answer["answers"] == true {
            self.since.remove(target);
            Value::Null
        } else {
            json!(*self.since.entry(target.to_string()).or_insert(time))
        };
        let link = ["security", "in_flight", "rpcs", "resent", "sessions"].map(|k| (k.to_string(), answer[k].clone()));
        s["link"] = Map::from_iter(link).into();
        let osts = self.status["osts"].as_array().map(Vec::as_slice).unwrap_or_default();
        if let Some(known) = std::iter::once(&self.status["mdt"]).chain(osts).find(|t| t["target"] == target) {
            for key in ["active", "closed", "store"] {
                s[key] = known[key].clone();
            }
        }
        if let Some(page) = page(params, "ost.", ".req_waitqueue") {
            s["scheduler"] = numbers(page).into();
        }
        if page(params, "obdfilter.", ".cache_stats").is_some() {
            s["cache"] = cache(params, "obdfilter.");
            s["cache"]["capacity_bytes"] = number(params, "obdfilter.", ".cache_bytes");
        }
        s["locks"] = locks(params);
        let waiting = page(params, "", ".recovery_status").unwrap_or_default().lines();
        s["waiting_for"] = waiting.filter_map(|l| l.strip_prefix("waiting_for: ")).collect();
        s
    }
}

/// What charts show of all servers together: bytes read and written a second, requests a second, requests queued and at the
/// stores; null where nobody told.
fn sums(servers: &[Value]) -> Value {
    const OF: [&str; 5] =
        ["/read_bytes_per_s", "/write_bytes_per_s", "/requests/per_s", "/queue/queued", "/queue/in_service"];
    let sum = |of: &&str| {
        let told: Vec<f64> = servers.iter().filter_map(|s| s.pointer(of)?.as_f64()).collect();
        if told.is_empty() { Value::Null } else { json!(told.iter().sum::<f64>()) }
    };
    OF.iter().map(sum).collect()
}

/// The page whose name begins and ends so.
fn page<'a>(params: &'a Value, begin: &str, end: &str) -> Option<&'a str> {
    let mut all = params.as_object()?.iter();
    all.find(|(name, _)| name.starts_with(begin) && name.ends_with(end)).and_then(|(_, page)| page.as_str())
}

/// The number that such a page is.
fn number(params: &Value, begin: &str, end: &str) -> Value {
    json!(page(params, begin, end).and_then(|page| page.trim().parse::<u64>().ok()))
}

/// The numbers of a page with lines `NAME: NUMBER`, also as `{:#?}` writes them; of equal names the first.
fn numbers(page: &str) -> Map<String, Value> {
    let mut found = Map::new();
    for (name, value) in page.lines().filter_map(|l| l.split_once(':')) {
        if let Ok(value) = value.trim().trim_end_matches(',').parse::<u64>() {
            found.entry(name.trim()).or_insert(json!(value));
        }
    }
    found
}

/// A cache: policy, bytes, and lookups and hits of each class.
fn cache(params: &Value, begin: &str) -> Value {
    let stats = numbers(page(params, begin, ".cache_stats").unwrap_or_default());
    let of = |name: String| stats.get(&name).and_then(Value::as_u64).unwrap_or(0);
    let class = |class: &&str| {
        let lookups = of(format!("{class}_lookups"));
        // Of readahead the pages that were not there are counted.
        let hits = match *class {
            "readahead" => lookups.saturating_sub(of("readahead_pages".into())),
            _ => of(format!("{class}_hits")),
        };
        json!({"class": class, "lookups": lookups, "hits": hits})
    };
    json!({
        "policy": page(params, begin, ".cache_policy").map(str::trim),
        "resident_bytes": stats.get("resident_bytes"),
        "classes": CLASSES.iter().map(class).collect::<Vec<_>>(),
    })
}

/// The locks of a server, whichever way it tells them.
fn locks(params: &Value) -> Value {
    const SPACES: &str = "ldlm.namespaces.";
    let stats = numbers(page(params, SPACES, "_UUID.stats").unwrap_or_default());
    let told = |name: &str, end: &str| stats.get(name).cloned().unwrap_or_else(|| number(params, SPACES, end));
    let evictions = stats.get("evictions").cloned().unwrap_or_else(|| number(params, "mdt.", ".evictions"));
    json!({
        "count": number(params, SPACES, ".lock_count"),
        "granted": told("granted", ".grants"),
        "waited": told("waited", ".waited"),
        "callbacks": told("callbacks", ".callbacks"),
        "evictions": evictions,
    })
}

/// What the mount tells of itself.
fn mount(own: &Value) -> Value {
    let mut cache = cache(own, "llite.");
    let bytes = |end: &str| page(own, "llite.", end).and_then(|p| p.trim().parse::<u64>().ok()).map(|mb| mb << 20);
    cache["resident_bytes"] = json!(bytes(".used_mb"));
    cache["capacity_bytes"] = json!(bytes(".max_cached_mb"));
    let ahead = page(own, "llite.", ".read_ahead_stats").unwrap_or_default().lines();
    let counters = ahead.filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_string(), json!(words.next()?.parse::<u64>().ok()?)))
    });
    let policy = page(own, "llite.", ".readahead_policy").map(str::trim);
    json!({"cache": cache, "readahead": {"policy": policy, "counters": Map::from_iter(counters)}})
}

/// The values that parameters of each switch have now.
fn policies(look: &Value) -> Value {
    let servers = look["servers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let params: Vec<_> =
        servers.iter().map(|s| &s["params"]).chain([&look["own"]]).filter_map(Value::as_object).collect();
    let of = |pattern: &str| -> std::collections::BTreeSet<&str> {
        let glob = Glob::new(pattern);
        let all = params.iter().flat_map(|p| p.iter());
        all.filter(|(name, _)| glob.matches(name)).filter_map(|(_, value)| value.as_str().map(str::trim)).collect()
    };
    SWITCHES.iter().map(|s| (s.id.to_string(), json!(of(s.pattern)))).collect::<Map<_, _>>().into()
}

/// What somebody did at all servers together since these began to count.
fn totals<'a>(
    sample: &'a Sample,
    of: impl Fn(&'a crate::top::sample::Numbers) -> &'a BTreeMap<String, Use>,
) -> BTreeMap<&'a str, Use> {
    let mut all: BTreeMap<&str, Use> = BTreeMap::new();
    for (name, u) in sample.servers.iter().filter_map(|s| s.numbers.as_ref()).flat_map(of) {
        let sum = all.entry(name).or_default();
        sum.requests += u.requests;
        sum.read_bytes += u.read_bytes;
        sum.write_bytes += u.write_bytes;
    }
    all
}

/// Jobs or clients, those that do most first: what they do and did, and what else is known of them by their names.
fn uses(totals: BTreeMap<&str, Use>, rates: &[UseRates], known: &Map<String, Value>) -> Value {
    let mut by_rate: Vec<UseRates> = totals
        .keys()
        .map(|name| {
            let idle = || UseRates { name: name.to_string(), ..UseRates::default() };
            rates.iter().find(|r| r.name == *name).cloned().unwrap_or_else(idle)
        })
        .collect();
    Order::default().sort(&mut by_rate);
    let one = |r: &UseRates| {
        let total = totals[r.name.as_str()];
        json!({
            "name": r.name, "known": known.get(&r.name),
            "requests_per_s": r.per_s, "read_bytes_per_s": r.read_per_s, "write_bytes_per_s": r.write_per_s,
            "requests": total.requests, "read_bytes": total.read_bytes, "write_bytes": total.write_bytes,
        })
    };
    let shown: Vec<Value> = by_rate.iter().take(USES_MAX).map(one).collect();
    json!({"shown": shown, "more": by_rate.len() - shown.len()})
}

/// Clients, with where they come from as far as the metadata server was asked.
fn clients(sample: &Sample, view: &View, answers: &[Value]) -> Value {
    let mut places = Map::new();
    for (name, value) in answers.iter().filter_map(|a| a["params"].as_object()).flatten() {
        if let Some((_, id)) = name.strip_suffix(".uuid").and_then(|n| n.rsplit_once(".exports.")) {
            places.insert(id.into(), value.clone());
        }
    }
    uses(totals(sample, |n| &n.uses), &view.clients, &places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample::tests::look;

    /// A look as `top` has it, with the pages that only this asks for.
    fn full(times: u64, at_s: u64) -> Value {
        let mut answer = look(times, at_s);
        answer["client"] = json!("000000000000000a");
        answer["own"] = json!({
            "llite.s-0a.cache_stats": "fine_hits: 3\nfine_lookups: 4\n", "llite.s-0a.cache_policy": "lru",
            "llite.s-0a.used_mb": "2", "llite.s-0a.max_cached_mb": "64", "llite.s-0a.readahead_policy": "linear",
            "llite.s-0a.read_ahead_stats": "reads 7 samples [reqs]\nheld_bytes 4096 samples [bytes]\n",
        });
        let servers = answer["servers"].as_array_mut().unwrap();
        servers[0]["params"]["ldlm.namespaces.mdt-s-MDT0000.lock_count"] = json!("9");
        servers[0]["params"]["ldlm.namespaces.mdt-s-MDT0000.grants"] = json!("30");
        servers[0]["params"]["mdt.s-MDT0000.exports.000000000000000a.uuid"] = json!("127.0.0.1:5");
        servers[0]["params"]["lod.s-MDT0000-mdtlov.qos_policy"] = json!("rr");
        for (i, s) in servers.iter_mut().skip(1).enumerate() {
            s["index"] = json!(i);
        }
        let ost = &mut servers[1]["params"];
        ost["ldlm.namespaces.filter-s-OST0000_UUID.stats"] =
            json!("NamespaceStats {\n    granted: 5,\n    waited: 2,\n}\n");
        ost["obdfilter.s-OST0000.cache_policy"] = json!("sieve\n");
        ost["obdfilter.s-OST0000.cache_bytes"] = json!("1048576");
        answer
    }

    fn status() -> Value {
        json!({"cluster": "ab", "mdt": {"target": "s-MDT0000", "state": "Full", "store": "good"},
            "osts": [{"target": "s-OST0001", "index": 1, "nid": "192.0.2.9:1", "state": "Full", "silent": true, "active": true}],
            "recovery": [], "down": ["ost1 does not start: why"]})
    }

    #[test]
    fn a_document_has_rates_schedulers_caches_locks_uses_and_what_is_wrong() {
        let mut o = Observer::default();
        o.take(100.0, Some(status()), Ok(full(5, 100)));
        let d = o.take(102.0, Some(status()), Ok(full(25, 102)));
        let [mdt, ost, silent] = &d["servers"].as_array().unwrap()[..] else { panic!("{d}") };
        assert_eq!(d["sums"], json!([40_960.0, 0.0, 20.0, 3.0, 8.0]));
        assert_eq!(
            (&mdt["role"], &ost["role"], &ost["read_bytes_per_s"]),
            (&json!("MDT"), &json!("OST"), &json!(40_960.0))
        );
        assert_eq!(
            mdt["locks"],
            json!({"count": 9, "granted": 30, "waited": null, "callbacks": null, "evictions": null})
        );
        assert_eq!((&ost["locks"]["granted"], &ost["locks"]["waited"]), (&json!(5), &json!(2)));
        assert_eq!(ost["scheduler"], json!({"queued": 3, "in_service": 8, "arrived": 7}));
        assert_eq!((&ost["cache"]["policy"], &ost["cache"]["capacity_bytes"]), (&json!("sieve"), &json!(1_048_576)));
        assert_eq!(ost["cache"]["classes"][0], json!({"class": "fine", "lookups": 50, "hits": 25}));
        assert_eq!(mdt["waiting_for"], json!(["0a has not come back"]));
        assert_eq!((&silent["since"], &silent["active"], &ost["since"]), (&json!(100.0), &json!(true), &Value::Null));
        assert_eq!(
            d["policies"],
            json!({"nrs": ["crr"], "ost-cache": ["sieve"], "allocator": ["rr"], "client-cache": ["lru"], "readahead": ["linear"]})
        );
        assert_eq!(d["mount"]["cache"]["capacity_bytes"], json!(64 << 20));
        assert_eq!(d["mount"]["readahead"]["counters"], json!({"reads": 7, "held_bytes": 4096}));
        let job = &d["jobs"]["shown"][0];
        assert_eq!(
            (&job["name"], &job["requests_per_s"], &job["read_bytes"]),
            (&json!("dd.0"), &json!(20.0), &json!(102_400))
        );
        assert_eq!((&d["clients"]["shown"][0]["known"], &d["clients"]["more"]), (&json!("127.0.0.1:5"), &json!(0)));
        let trouble = d["troubles"][0]["what"].as_str().unwrap();
        assert!(trouble.contains("s-OST0001 at 192.0.2.9:1 does not answer"), "{trouble}");
        assert_eq!(d["notes"], json!(["ost1 does not start: why"]));
    }

    #[test]
    fn who_is_away_is_shown_as_away_since_then_and_what_was_known_stays() {
        let mut o = Observer::default();
        let trouble = || Trouble { what: "its daemon does not answer".into(), remedy: "'cure' helps".into() };
        let d = o.take(99.0, None, Err(trouble()));
        assert_eq!((&d["away"]["since"], &d["servers"]), (&json!(99.0), &json!([])));
        let d = o.take(100.0, Some(status()), Ok(full(5, 100)));
        assert!(d["away"].is_null() && d["as_of"] == 100.0);
        o.take(101.0, None, Err(trouble()));
        let d = o.take(102.0, None, Err(trouble()));
        assert_eq!(d["sums"], json!([null, null, null, null, null]));
        assert_eq!((&d["away"]["since"], &d["as_of"], &d["time"]), (&json!(101.0), &json!(100.0), &json!(102.0)));
        assert_eq!((d["servers"].as_array().unwrap().len(), &d["troubles"][0]["do"]), (3, &json!("'cure' helps")));
        let mut back = full(5, 103);
        back["servers"][2]["answers"] = json!(true);
        let d = o.take(103.0, None, Ok(back));
        assert!(d["away"].is_null() && d["servers"][2]["since"].is_null());
        let d = o.take(104.0, None, Ok(full(5, 104)));
        assert_eq!(d["servers"][2]["since"], json!(104.0), "away anew");
    }

    #[test]
    fn the_question_fits_a_pattern_and_asks_for_addresses_of_few_clients_only() {
        let mut o = Observer::default();
        let glob = Glob::new(&o.pages());
        for name in ["mdt.s-MDT0000.exports.0a.uuid", "ost.OSS.ost_io.nrs_policies", "ldlm.namespaces.mdt-s.waited"] {
            assert!(glob.matches(name), "{name}");
        }
        assert!(!glob.matches("obdfilter.s-OST0000.grants"));
        o.clients = ADDRESSES_MAX + 1;
        assert!(!Glob::new(&o.pages()).matches("mdt.s-MDT0000.exports.0a.uuid"));
    }

    #[test]
    fn nonsense_is_read_as_nothing() {
        let mut o = Observer::default();
        for answer in [
            json!({}),
            json!({"servers": [{}, 7]}),
            json!({"servers": [{"answers": true, "params": {"ost.req_waitqueue": 7}}], "own": 3}),
        ] {
            let d = o.take(1.0, Some(json!(7)), Ok(answer));
            assert!(d["servers"].is_array() && d["troubles"].is_array(), "{d}");
        }
    }
}
