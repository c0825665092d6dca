//! The workload that hurts a policy most: a search over the keys of its world, and the scenario that is left of the find.
//!
//! Decides what is varied for each room, what a loss is (the best of the other policies against this one, by one metric), and
//! what stays when the find is made smaller. The search is a climb with restarts, generation by generation, drawn from one
//! seed; the runs of a generation go on side by side and change nothing by their order.
use crate::experiment::measure;
use crate::scenario::{Params, WorldKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use types::Rng;

/// Candidates that are measured before the next ones are drawn.
const GENERATION: usize = 16;
/// A smaller scenario is kept while it has so much of the loss, as a share of its logarithm.
const KEEP: f64 = 0.9;
/// The least factor by which a find's scenario may differ.
const SLACK_MIN: f64 = 1.01;
/// Seeds that a candidate is measured with, and the find at the end.
const SEEDS: u64 = 1;
const SEEDS_OF_FIND: u64 = 5;

/// A room whose policies a world runs: the key of the policy, what is measured, what is varied.
struct Room {
    key: &'static str,
    world: WorldKind,
    metric: &'static str,
    /// Never varied: keeps a run short.
    fixed: &'static [(&'static str, &'static str)],
    varied: &'static [(&'static str, &'static [&'static str])],
    names: fn() -> Vec<&'static str>,
}

const ROOMS: [Room; 3] = [
    Room {
        key: "nrs.policy",
        world: WorldKind::Light,
        metric: "bandwidth_gb_per_s",
        fixed: &[("oss_count", "1")],
        varied: &[
            ("clients", &["64", "1", "4", "16", "128", "256"]),
            ("transfer_size_bytes", &["1M", "64K", "256K", "4M"]),
            ("file_bytes", &["8M", "1M", "4M", "16M", "32M"]),
            ("operation", &["write", "read"]),
            ("client.max_rpcs_in_flight", &["8", "1", "2", "4", "16", "32"]),
            ("client.start_spread_s", &["0", "0.05", "0.5", "2"]),
            ("oss.dispatch_window", &["16", "1", "4", "64", "256"]),
            ("disk.profile", &["paper001", "hdd", "raid", "ssd", "nvme"]),
            ("elevator.kind", &["paper001", "deadline", "cscan", "noop"]),
            ("alloc.kind", &["mballoc", "mballoc_aligned", "mballoc_groups", "contiguous"]),
            ("net.nic_queue", &["false", "true"]),
            ("net.nic_mb_per_s", &["1000", "12500"]),
        ],
        names: || nrs::registry().iter().map(|p| p.name).collect(),
    },
    Room {
        key: "cache.policy",
        world: WorldKind::Cache,
        metric: "bandwidth_mb_per_s",
        fixed: &[("workload.accesses", "3000")],
        varied: &[
            ("workload.fine_share", &["0.9", "0", "0.1", "0.3", "0.5", "0.7", "0.97", "1"]),
            ("workload.kind", &["mixed", "reuse"]),
            ("workload.files", &["10", "1", "2", "4", "40"]),
            ("workload.file_bytes", &["256M", "64M", "128M", "512M"]),
            ("workload.hot_bytes", &["16M", "1M", "4M", "64M"]),
            ("workload.coarse_bytes", &["16M", "1M", "4M", "64M"]),
            ("workload.fine_bytes", &["64K", "128K", "512K"]),
            ("workload.warmup", &["0", "1000", "10000"]),
            ("cache.client_bytes", &["256M", "16M", "64M", "512M"]),
            ("cache.ost_bytes", &["64M", "8M", "256M"]),
        ],
        names: || cache::registry().iter().map(|p| p.name).collect(),
    },
    Room {
        key: "readahead.policy",
        world: WorldKind::Readahead,
        metric: "bandwidth_gb_per_s",
        fixed: &[],
        varied: &[
            ("reader.order", &["sequential", "stride", "backward", "interleaved", "random"]),
            ("reader.io_bytes", &["64K", "4K", "16K", "256K", "1M", "4M"]),
            ("reader.skip_bytes", &["0", "4K", "64K", "256K", "1M", "6M"]),
            ("reader.count", &["1", "2", "4"]),
            ("reader.ost_latency_us", &["100", "20", "2000", "10000"]),
            ("workload.file_bytes", &["32M", "1M", "8M", "128M"]),
            ("workload.stripe_bytes", &["1M", "64K", "256K", "4M"]),
        ],
        names: || readahead::POLICIES.iter().map(|p| p.name).collect(),
    },
];

/// What is searched for.
#[derive(Clone, Debug)]
pub struct Search {
    /// The policy, by name.
    pub policy: String,
    /// The policies that it is held against; none: all others of its room.
    pub against: Vec<String>,
    /// The metric; empty: the room's bandwidth. Times are better when they are short.
    pub metric: String,
    /// Workloads that are tried.
    pub tries: usize,
    /// Of the draws.
    pub seed: u64,
    /// Runs at the same time; 0: one per core.
    pub jobs: usize,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Find {
    /// The room's key.
    pub key: &'static str,
    /// Its world.
    pub world: WorldKind,
    /// The metric.
    pub metric: String,
    /// The policy that was searched for, and the best of the others there.
    pub policies: [String; 2],
    /// What both measure: means over five seeds.
    pub values: [f64; 2],
    /// How many times better the other one is.
    pub loss: f64,
    /// The keys that make the workload, after shrinking.
    pub keys: Vec<(String, String)>,
    /// Workloads measured, and those that do not exist (keys that do not go together).
    pub tried: (usize, usize),
}

/// What a workload costs the policy.
#[derive(Clone, Debug)]
struct Loss {
    other: String,
    ratio: f64,
}

type Keys = Vec<(String, String)>;

/// Searches.
///
/// # Errors
/// A sentence, when a policy does not exist or no workload could be run.
pub fn search(s: &Search, progress: &mut dyn FnMut(usize, f64)) -> Result<Find, String> {
    let room = room_of(&s.policy)?;
    let others = others(room, s)?;
    let metric = if s.metric.is_empty() { room.metric } else { &s.metric };
    let mut rng = Rng::named(s.seed, "worst");
    let (mut best, mut tried, mut absent): (Option<(Keys, Loss)>, usize, usize) = (None, 0, 0);
    // The climb goes on from here; it begins anew when a generation brought nothing.
    let mut at: Option<(Keys, f64)> = None;
    while tried < s.tries {
        let size = GENERATION.min(s.tries - tried);
        let drawn: Vec<Keys> = (0..size).map(|i| draw(room, at.as_ref().filter(|_| i % 4 > 0), &mut rng)).collect();
        let losses = all(room, &drawn, &s.policy, &others, metric, s.jobs);
        tried += size;
        let mut better = false;
        for (keys, loss) in drawn.into_iter().zip(losses) {
            let Ok(loss) = loss else {
                absent += 1;
                continue;
            };
            if at.as_ref().is_none_or(|(_, ratio)| loss.ratio > *ratio) {
                (at, better) = (Some((keys.clone(), loss.ratio)), true);
            }
            if best.as_ref().is_none_or(|(_, b)| loss.ratio > b.ratio) {
                best = Some((keys, loss));
            }
        }
        if !better {
            at = None;
        }
        progress(tried, best.as_ref().map_or(0.0, |(_, b)| b.ratio));
    }
    let (keys, loss) = best.ok_or("no workload of the search could be run")?;
    let keys = shrink(room, keys, &loss, &s.policy, metric);
    let values = [&s.policy, &loss.other].map(|p| mean(room, &keys, p, metric, SEEDS_OF_FIND));
    let [own, other] = values;
    let values = [own?, other?];
    let ratio = ratio(metric, values[0], values[1]);
    let policies = [s.policy.clone(), loss.other];
    Ok(Find {
        key: room.key,
        world: room.world,
        metric: metric.into(),
        policies,
        values,
        loss: ratio,
        keys,
        tried: (tried, absent),
    })
}

fn room_of(policy: &str) -> Result<&'static Room, String> {
    let all = || ROOMS.iter().flat_map(|r| (r.names)().into_iter().map(|n| format!("{} {n}", r.key)));
    if let Some((key, _)) = policy.split_once('=') {
        return Err(format!("write the name of a policy, not {key}=NAME"));
    }
    let room = ROOMS.iter().find(|r| (r.names)().contains(&policy));
    room.ok_or_else(|| format!("'{policy}' is not a policy; there are: {}", all().collect::<Vec<_>>().join(", ")))
}

fn others(room: &Room, s: &Search) -> Result<Vec<String>, String> {
    let names = (room.names)();
    if let Some(unknown) = s.against.iter().find(|n| !names.contains(&n.as_str())) {
        return Err(format!("'{unknown}' is not a {}; there are: {}", room.key, names.join(", ")));
    }
    let given = !s.against.is_empty();
    let others: Vec<String> = if given { s.against.clone() } else { names.iter().map(|n| n.to_string()).collect() };
    let others: Vec<String> = others.into_iter().filter(|n| *n != s.policy).collect();
    if others.is_empty() { Err(format!("'{}' is held against itself only", s.policy)) } else { Ok(others) }
}

/// A workload: anywhere, or a step or two from `at`.
fn draw(room: &Room, at: Option<&(Keys, f64)>, rng: &mut Rng) -> Keys {
    let mut pick = |of: &[&str]| of[rng.below(of.len() as u64) as usize].to_string();
    let Some((keys, _)) = at else {
        return room.varied.iter().map(|(k, values)| (k.to_string(), pick(values))).collect();
    };
    let mut keys = keys.clone();
    for _ in 0..2 {
        let i = rng.below(keys.len() as u64) as usize;
        let of = room.varied[i].1;
        keys[i].1 = of[rng.below(of.len() as u64) as usize].to_string();
    }
    keys
}

/// Losses of workloads, measured side by side.
fn all(
    room: &Room,
    drawn: &[Keys],
    policy: &str,
    others: &[String],
    metric: &str,
    jobs: usize,
) -> Vec<Result<Loss, String>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, jobs) = (AtomicUsize::new(0), if jobs == 0 { cores } else { jobs }.min(drawn.len()));
    let work = || {
        let mut mine = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(keys) = drawn.get(i) else { return mine };
            mine.push((i, loss(room, keys, policy, others, metric)));
        }
    };
    let mut losses: Vec<(usize, Result<Loss, String>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|w| w.join().expect("a worker does not panic")).collect()
    });
    losses.sort_by_key(|(i, _)| *i);
    losses.into_iter().map(|(_, loss)| loss).collect()
}

fn loss(room: &Room, keys: &Keys, policy: &str, others: &[String], metric: &str) -> Result<Loss, String> {
    let own = mean(room, keys, policy, metric, SEEDS)?;
    let mut worst: Option<Loss> = None;
    for other in others {
        let theirs = mean(room, keys, other, metric, SEEDS)?;
        let ratio = ratio(metric, own, theirs);
        if worst.as_ref().is_none_or(|w| ratio > w.ratio) {
            worst = Some(Loss { other: other.clone(), ratio });
        }
    }
    worst.ok_or_else(|| "there is no other policy".to_string())
}

/// How many times better `other` is than `own`.
fn ratio(metric: &str, own: f64, other: f64) -> f64 {
    let is_time = ["response", "makespan", "blocked", "seeks", "queue", "fetched"].iter().any(|m| metric.contains(m));
    let (good, bad) = if is_time { (own, other) } else { (other, own) };
    if bad > 0.0 { good / bad } else { 1.0 }
}

fn mean(room: &Room, keys: &Keys, policy: &str, metric: &str, seeds: u64) -> Result<f64, String> {
    let mut sum = 0.0;
    for seed in 1..=seeds {
        let params = params(room, keys, policy, seed)?;
        let metrics = measure(room.world, &params)?;
        let value = metrics.get(metric);
        sum += value.ok_or_else(|| format!("world {} does not measure '{metric}'", room.world.name()))?;
    }
    Ok(sum / seeds as f64)
}

fn params(room: &Room, keys: &Keys, policy: &str, seed: u64) -> Result<Params, String> {
    let mut params = Params::default();
    for (key, value) in room.fixed {
        params.set(key, value)?;
    }
    for (key, value) in keys {
        params.set(key, value)?;
    }
    params.set(room.key, policy)?;
    params.set("seed", &seed.to_string())?;
    Ok(params)
}

/// Leaves out, or makes plain, what the loss does not need.
fn shrink(room: &Room, mut keys: Keys, found: &Loss, policy: &str, metric: &str) -> Keys {
    let others = [found.other.clone()];
    let least = found.ratio.max(1.0).powf(KEEP);
    let keeps = |keys: &Keys| loss(room, keys, policy, &others, metric).is_ok_and(|l| l.ratio >= least);
    // Without a key its default holds, which is not always the first of the search's values.
    let mut i = 0;
    while i < keys.len() {
        let key = keys.remove(i);
        if !keeps(&keys) {
            keys.insert(i, key);
            i += 1;
        }
    }
    for i in 0..keys.len() {
        let Some((_, values)) = room.varied.iter().find(|(k, _)| *k == keys[i].0) else { continue };
        let was = keys[i].1.clone();
        for plain in values.iter().take_while(|v| **v != was) {
            keys[i].1 = (*plain).to_string();
            if keeps(&keys) {
                break;
            }
            keys[i].1.clone_from(&was);
        }
    }
    keys
}

impl Find {
    /// The find as a scenario: it holds while the loss stays.
    #[must_use]
    pub fn scenario(&self, id: &str) -> String {
        let room = ROOMS.iter().find(|r| r.key == self.key).expect("a find is of a room");
        let [policy, other] = &self.policies;
        let mut text = format!(
            "id = \"{id}\"\ntitle = \"Where {other} is {:.2} times as good as {policy}\"\nsource = \"stria sim worst {policy}\"\nstatus = \"CAL\"\nworld = \"{}\"\n\
             description = \"The worst workload of {} that a search found, made smaller.\"\nseeds = [1, 2, 3, 4, 5]\n\n[params]\n{} = \"{policy}\"\n",
            self.loss,
            self.world.name(),
            self.tried.0,
            self.key
        );
        let fixed = room.fixed.iter().map(|(k, v)| (k.to_string(), v.to_string()));
        for (key, value) in fixed.chain(self.keys.iter().cloned()) {
            text.push_str(&format!("{key} = \"{value}\"\n"));
        }
        let [own, theirs] = self.values;
        let change = |ratio: f64| (ratio - 1.0) * 100.0;
        // A tenth of the loss by its logarithm: in percent, all great losses of bandwidth lie close to -100.
        let (value, slack) = (own / theirs, self.loss.max(1.0).powf(1.0 - KEEP).max(SLACK_MIN));
        text.push_str(&format!(
            "\n[sweep]\n{key} = [\"{policy}\", \"{other}\"]\n\n[[expect]]\nmetric = \"{}\"\nwhen = {{ {key} = \"{policy}\" }}\n\
             relative_to = {{ {key} = \"{other}\" }}\nvalue = {:.3}\nmin = {:.3}\nmax = {:.3}\nnote = \"percent\"\n",
            self.metric,
            change(value),
            change(value / slack),
            change(value * slack),
            key = self.key
        ));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(policy: &str, against: &[&str], tries: usize) -> Search {
        let against = against.iter().map(|a| a.to_string()).collect();
        Search { policy: policy.into(), against, metric: String::new(), tries, seed: 1, jobs: 2 }
    }

    #[test]
    fn a_policy_that_fetches_nothing_ahead_is_found_to_lose_and_the_scenario_says_so_again() {
        let find = search(&wanted("none", &["parallel"], 32), &mut |_, _| {}).unwrap();
        assert!(find.loss > 3.0 && find.policies == ["none", "parallel"], "{find:?}");
        let s = crate::scenario::parse("worst.toml", &find.scenario("worst")).unwrap();
        let e = crate::experiment::run(s, 2, &mut |_, _, _| {}).unwrap();
        assert!(e.holds() && e.all_measured(), "{:?}", e.verdicts);
        // Every key that is left is needed: without it the loss is gone.
        let room = room_of("none").unwrap();
        for i in 0..find.keys.len() {
            let mut fewer = find.keys.clone();
            fewer.remove(i);
            let others = ["parallel".to_string()];
            let left = loss(room, &fewer, "none", &others, room.metric).map_or(1.0, |l| l.ratio);
            assert!(left < find.loss, "{:?} is not needed: {left}", find.keys[i]);
        }
    }

    #[test]
    fn every_value_that_is_varied_is_one_and_bounds_are_those_of_the_loss() {
        for room in &ROOMS {
            for (key, value) in room.varied.iter().flat_map(|(key, values)| values.iter().map(move |v| (key, v))) {
                Params::default().set(key, value).unwrap();
            }
        }
        let find = |metric: &str, values: [f64; 2]| Find {
            key: "cache.policy",
            world: WorldKind::Cache,
            metric: metric.into(),
            policies: ["lru".into(), "arc".into()],
            values,
            loss: ratio(metric, values[0], values[1]),
            keys: Vec::new(),
            tried: (1, 0),
        };
        let bounds = |find: &Find| {
            let s = crate::scenario::parse("worst.toml", &find.scenario("worst")).unwrap();
            (s.expect[0].min.unwrap(), s.expect[0].value.unwrap(), s.expect[0].max.unwrap())
        };
        // A hundred times: by its logarithm from 63 to 158 times.
        assert_eq!(bounds(&find("bandwidth_mb_per_s", [1.0, 100.0])), (-99.369, -99.0, -98.415));
        assert_eq!(bounds(&find("fine_response_mean_ms", [100.0, 1.0])), (6209.573, 9900.0, 15748.932));
        assert_eq!(bounds(&find("bandwidth_mb_per_s", [100.0, 100.0])), (-0.99, 0.0, 1.0));
    }

    #[test]
    fn the_same_seed_finds_the_same_whatever_runs_side_by_side() {
        let of = |jobs| {
            let s = Search { jobs, ..wanted("miss", &["parallel"], 16) };
            let find = search(&s, &mut |_, _| {}).unwrap();
            (find.keys, find.values)
        };
        assert_eq!(of(1), of(3));
    }

    #[test]
    fn what_is_no_policy_is_refused_with_those_that_are() {
        let why = |policy: &str, against: &[&str]| search(&wanted(policy, against, 1), &mut |_, _| {}).unwrap_err();
        assert!(why("fastest", &[]).contains("nrs.policy fifo") && why("fastest", &[]).contains("cache.policy lru"));
        assert!(why("obrr", &["lru"]).contains("'lru' is not a nrs.policy"));
        assert!(why("obrr", &["obrr"]).contains("against itself"));
    }
}
