//! Every number that a policy can be given, declared once: key, default, range, meaning, parser and printer in one row.
//!
//! Values arrive as text (`set_param`, scenario files, TOML) and are checked here; policies read typed fields.
use crate::{TbfRules, Weights};
use alloc::{format, string::String, string::ToString, vec::Vec};
use core::fmt;
use types::{KIB, MIB, format_size, parse_size};

/// Record-size windows of the bandwidth table: up to 64 KiB, 128 KiB, .. 4 MiB, and larger.
pub const BW_WINDOWS: usize = 8;

/// When a deadline takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeadlineMode {
    /// As paper 001 prints it: a request is served as soon as its deadline has expired.
    #[default]
    Expiry,
    /// A mandatory deadline fires early, by the estimated time that requests in service need to drain.
    Drain,
}

/// Everything a policy can be configured with. One struct for all policies: a policy reads the fields it knows.
#[derive(Clone, PartialEq, Debug)]
pub struct NrsConfig {
    /// Requests served per object (or client) before the next one's turn. 0..=65535; default 0 = the policy's own: 8
    /// for `obrr`, 256 for `obrr+`, `orr` and `trr`, 16 for `crrn`. Larger: fewer seeks, longer waits for others
    /// (quantum x service time x objects); more than clients keep in flight buys nothing.
    pub quantum_requests: u32,
    /// Bytes served per object before the next one's turn. 0..=1 GiB; default 0 = no limit in bytes. A turn serves at
    /// least one request, and what it serves beyond the quantum is taken off the next turn; so below the largest RPC it
    /// is fair in requests only.
    pub quantum_bytes: u64,
    /// `obrr+`: a turn ends where the offset crosses a multiple of this. A power of two, 64 KiB..=1 GiB; default 8 MiB,
    /// the region in which the allocator lays out a large object.
    pub region_bytes: u64,
    /// Dynamic deadline: `e = lambda x sum(s_i / bw_i)`; how much later than a FIFO server with the table's bandwidth a
    /// request may be served. 0.1..=1000, default 1.5. Smaller: more requests are served out of order, with a seek each.
    pub lambda: f64,
    /// Bytes per second that the store reaches with records of each window, smallest window first. 10^3..=10^12, default
    /// 250 MB/s for all: half of what a disk streams. Too high a value makes everything overdue.
    pub bw_bytes_per_s: [u64; BW_WINDOWS],
    /// When deadlines take effect; default as paper 001 prints it. `obrr+` always uses [`DeadlineMode::Drain`].
    pub deadline_mode: DeadlineMode,
    /// `obrr+`: bytes per second of urgent requests that are served at once, before their deadline is near. 0..=1 TiB,
    /// default 10 MB/s; a second's worth is saved up. Each costs about a seek.
    pub urgent_bytes_per_s: u64,
    /// Requests that a head holds at most; more are refused. 1..=2^26, default 2^22.
    pub queue_max: u32,
    /// Rules that give objects a share other than 1, in order; the first that matches counts. Default none.
    pub weights: Weights,
    /// Throttling rules of `tbf`. Default: 10000 requests per second and client.
    pub tbf_rules: TbfRules,
    /// `auto`: the policies that it chooses among, separated by commas. Default `fifo,obrr,obrr+`. Each costs what serving the
    /// samples costs.
    pub auto_candidates: String,
    /// `auto`: the one that it begins with, a candidate or not. Default empty: the first candidate; an OST puts what suits its
    /// store's medium there.
    pub auto_first: String,
    /// `auto`: how much faster another one has to be. 1..=50 %, default 3.
    pub auto_margin_percent: u32,
    /// `auto`: how many windows in a row. 1..=100, default 3.
    pub auto_windows: u32,
    /// `auto`: requests in a window at most. 128..=8192, default 1024; about 400 bytes each.
    pub auto_sample: u32,
}

/// What `auto` chooses among unless it is told.
const CANDIDATES: &str = "fifo,obrr,obrr+";
/// Candidates at most.
const CANDIDATES_MAX: usize = 8;

impl Default for NrsConfig {
    fn default() -> Self {
        NrsConfig {
            quantum_requests: 0,
            quantum_bytes: 0,
            region_bytes: 8 * MIB,
            lambda: 1.5,
            bw_bytes_per_s: [250_000_000; BW_WINDOWS],
            deadline_mode: DeadlineMode::Expiry,
            urgent_bytes_per_s: 10_000_000,
            queue_max: 1 << 22,
            weights: Weights::default(),
            tbf_rules: TbfRules::default(),
            auto_candidates: CANDIDATES.to_string(),
            auto_first: String::new(),
            auto_margin_percent: 3,
            auto_windows: 3,
            auto_sample: 1024,
        }
    }
}

impl NrsConfig {
    /// Sets `key` to the value that `text` spells.
    ///
    /// # Errors
    /// [`ConfigError`] names the key, the value and what would be right; the configuration is then unchanged.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), ConfigError> {
        let row = KEYS.iter().find(|k| k.name == key).ok_or_else(|| ConfigError::UnknownKey(key.to_string()))?;
        let text = text.trim();
        (row.set)(self, text).map_err(|why| ConfigError::BadValue { key: row.name, value: text.to_string(), why })
    }
    /// The value of `key` as text that [`NrsConfig::set`] takes back.
    ///
    /// # Errors
    /// [`ConfigError::UnknownKey`].
    pub fn get(&self, key: &str) -> Result<String, ConfigError> {
        let row = KEYS.iter().find(|k| k.name == key).ok_or_else(|| ConfigError::UnknownKey(key.to_string()))?;
        Ok((row.get)(self))
    }
    /// The record-size window of a request of `bytes` bytes, an index into `bw_bytes_per_s`.
    #[must_use]
    pub fn window(bytes: u64) -> usize {
        let above = bytes.saturating_sub(1) / (64 * KIB);
        ((u64::BITS - above.leading_zeros()) as usize).min(BW_WINDOWS - 1)
    }
}

/// Why a policy or a value was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// No key has this name.
    UnknownKey(String),
    /// No policy has this name.
    UnknownPolicy(String),
    /// The value does not parse or lies outside its range.
    BadValue {
        /// The key.
        key: &'static str,
        /// The value as given.
        value: String,
        /// What is wrong with it and what would be right.
        why: String,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::UnknownKey(key) => {
                let names: Vec<&str> = KEYS.iter().map(|k| k.name).collect();
                write!(f, "unknown NRS key '{key}'; the keys are {}", names.join(", "))
            }
            ConfigError::UnknownPolicy(name) => {
                let names: Vec<&str> = crate::registry().iter().map(|e| e.name).collect();
                write!(
                    f,
                    "unknown NRS policy '{name}'; the policies are {}; each but obrr+ and auto may follow 'deadline+'",
                    names.join(", ")
                )
            }
            ConfigError::BadValue { key, value, why } => write!(f, "{key} = '{value}' is refused: {why}"),
        }
    }
}
impl core::error::Error for ConfigError {}

/// One row of the table of keys.
pub struct Key {
    /// Name, as scenario files and `set_param` spell it.
    pub name: &'static str,
    /// Default, as text.
    pub default: &'static str,
    /// What values are accepted.
    pub range: &'static str,
    /// What it does, in a sentence.
    pub meaning: &'static str,
    set: fn(&mut NrsConfig, &str) -> Result<(), String>,
    get: fn(&NrsConfig) -> String,
}

/// All keys, in the order of the reference page.
#[must_use]
pub fn keys() -> &'static [Key] {
    KEYS
}

static KEYS: &[Key] = &[
    Key {
        name: "quantum_requests",
        default: "0",
        range: "0..=65535",
        meaning: "Requests served per object (or client) in a turn; 0 = the policy's own default (obrr 8, obrr+, orr and trr 256, crrn 16).",
        set: |c, t| in_range(t, 0, 65_535).map(|n| c.quantum_requests = n as u32),
        get: |c| c.quantum_requests.to_string(),
    },
    Key {
        name: "quantum_bytes",
        default: "0",
        range: "0..=1G",
        meaning: "Bytes served per object in a turn, at least one request; 0 = no limit in bytes.",
        set: |c, t| size_in(t, 0, 1 << 30).map(|n| c.quantum_bytes = n),
        get: |c| c.quantum_bytes.to_string(),
    },
    Key {
        name: "region_bytes",
        default: "8388608",
        range: "64K..=1G, a power of two",
        meaning: "obrr+: a turn ends where the offset crosses a multiple of this.",
        set: |c, t| {
            let n = size_in(t, 64 * KIB, 1 << 30)?;
            if !n.is_power_of_two() {
                return Err("write a power of two, like 8M".to_string());
            }
            c.region_bytes = n;
            Ok(())
        },
        get: |c| c.region_bytes.to_string(),
    },
    Key {
        name: "lambda",
        default: "1.5",
        range: "0.1..=1000",
        meaning: "Dynamic deadline e = lambda x sum(s_i / bw_i) over everything queued and in service.",
        set: |c, t| match t.parse::<f64>() {
            Ok(x) if (0.1..=1000.0).contains(&x) => {
                c.lambda = x;
                Ok(())
            }
            _ => Err("write a number from 0.1 to 1000, like 1.5".to_string()),
        },
        get: |c| c.lambda.to_string(),
    },
    Key {
        name: "bw_mb_per_s",
        default: "250",
        range: "one number, or eight separated by commas; 0.001..=1000000",
        meaning: "MB/s (10^6) that the store reaches with records up to 64K, 128K, 256K, 512K, 1M, 2M, 4M, and larger.",
        set: set_bandwidth,
        get: get_bandwidth,
    },
    Key {
        name: "deadline_mode",
        default: "expiry",
        range: "expiry, drain",
        meaning: "expiry: service starts when the deadline expires (paper 001); drain: a mandatory deadline fires earlier, by the drain estimate.",
        set: |c, t| {
            c.deadline_mode = match t {
                "expiry" => DeadlineMode::Expiry,
                "drain" => DeadlineMode::Drain,
                _ => return Err("write expiry or drain".to_string()),
            };
            Ok(())
        },
        get: |c| match c.deadline_mode {
            DeadlineMode::Expiry => "expiry".to_string(),
            DeadlineMode::Drain => "drain".to_string(),
        },
    },
    Key {
        name: "urgent_bytes_per_s",
        default: "10000000",
        range: "0..=1T",
        meaning: "obrr+: bytes per second of urgent requests served at once; what exceeds it waits for its deadline.",
        set: |c, t| size_in(t, 0, 1 << 40).map(|n| c.urgent_bytes_per_s = n),
        get: |c| c.urgent_bytes_per_s.to_string(),
    },
    Key {
        name: "queue_max",
        default: "4194304",
        range: "1..=67108864",
        meaning: "Requests that a head holds at most; more are refused, and the client comes again.",
        set: |c, t| in_range(t, 1, 1 << 26).map(|n| c.queue_max = n as u32),
        get: |c| c.queue_max.to_string(),
    },
    Key {
        name: "weights",
        default: "",
        range: "EXPR WEIGHT; .. with weights 1..=1000",
        meaning: "obrr, obrr+: an object's quantum is multiplied by the weight of the first rule that matches its newest request; 1 without a rule.",
        set: |c, t| Weights::parse(t).map(|w| c.weights = w),
        get: |c| c.weights.to_string(),
    },
    Key {
        name: "tbf_rules",
        default: "",
        range: "commands start, change, stop, separated by ';'",
        meaning: "tbf: replaces all rules by what these commands build from the default rule (10000 requests/s per client).",
        set: |c, t| {
            let mut rules = TbfRules::default();
            rules.apply_all(t)?;
            c.tbf_rules = rules;
            Ok(())
        },
        get: |c| c.tbf_rules.to_commands(),
    },
    Key {
        name: "tbf_rule",
        default: "",
        range: "start NAME EXPR rate=N [bytes=SIZE] [depth=N] [rank=RULE] | change NAME .. | stop NAME",
        meaning: "tbf: applies one command to the rules; reads as tbf_rules.",
        set: |c, t| c.tbf_rules.apply_all(t),
        get: |c| c.tbf_rules.to_commands(),
    },
    Key {
        name: "auto_candidates",
        default: CANDIDATES,
        range: "2 to 8 policies that do not throttle, separated by commas",
        meaning: "auto: what it chooses among.",
        set: |c, t| {
            let names: Vec<&str> = t.split(',').map(str::trim).collect();
            names.iter().try_for_each(|name| candidate(name))?;
            let distinct = names.iter().all(|name| names.iter().filter(|n| *n == name).count() == 1);
            if !(2..=CANDIDATES_MAX).contains(&names.len()) || !distinct {
                return Err(format!("write 2 to {CANDIDATES_MAX} different policies, like {CANDIDATES}"));
            }
            c.auto_candidates = names.join(",");
            Ok(())
        },
        get: |c| c.auto_candidates.clone(),
    },
    Key {
        name: "auto_first",
        default: "",
        range: "a policy that does not throttle",
        meaning: "auto: what it begins with when it is built; empty: the first candidate. An OST, and a simulated one, puts what suits its medium in place of an empty one.",
        set: |c, t| {
            if !t.is_empty() {
                candidate(t)?;
            }
            c.auto_first = t.to_string();
            Ok(())
        },
        get: |c| c.auto_first.clone(),
    },
    Key {
        name: "auto_margin_percent",
        default: "3",
        range: "1..=50",
        meaning: "auto: how much faster a candidate has to serve the samples to be chosen.",
        set: |c, t| in_range(t, 1, 50).map(|n| c.auto_margin_percent = n as u32),
        get: |c| c.auto_margin_percent.to_string(),
    },
    Key {
        name: "auto_windows",
        default: "3",
        range: "1..=100",
        meaning: "auto: in how many windows in a row.",
        set: |c, t| in_range(t, 1, 100).map(|n| c.auto_windows = n as u32),
        get: |c| c.auto_windows.to_string(),
    },
    Key {
        name: "auto_sample",
        default: "1024",
        range: "128..=8192",
        meaning: "auto: requests of a window that candidates serve again at most; takes some 400 bytes each.",
        set: |c, t| in_range(t, 128, 8192).map(|n| c.auto_sample = n as u32),
        get: |c| c.auto_sample.to_string(),
    },
];

/// Whether `auto` may have a policy among its candidates.
fn candidate(name: &str) -> Result<(), String> {
    let plain = name.strip_prefix(crate::DEADLINE_PREFIX).unwrap_or(name);
    let entry = crate::registry().iter().find(|e| e.name == plain && (plain == name || !e.facts.own_deadlines));
    match entry {
        None => Err(format!("'{name}' is no policy; there are: {}", crate::names().join(", "))),
        Some(e) if e.facts.throttles => Err(format!("'{name}' holds requests back, which no other order makes up for")),
        Some(e) if e.name == "auto" => Err("auto does not choose itself".to_string()),
        Some(_) => Ok(()),
    }
}

fn in_range(text: &str, min: u64, max: u64) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(format!("write a whole number from {min} to {max}")),
    }
}

fn size_in(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let n = parse_size(text)?;
    if !(min..=max).contains(&n) {
        return Err(format!("write a size from {} to {}", format_size(min), format_size(max)));
    }
    Ok(n)
}

fn set_bandwidth(config: &mut NrsConfig, text: &str) -> Result<(), String> {
    let mut table = [0u64; BW_WINDOWS];
    let mut count = 0;
    for part in text.split(',') {
        let mb: f64 = part.trim().parse().map_err(|_| format!("'{}' is not a number", part.trim()))?;
        if !(0.001..=1e6).contains(&mb) {
            return Err(format!("'{}' is outside 0.001..=1000000 MB/s", part.trim()));
        }
        if count < BW_WINDOWS {
            table[count] = (mb * 1e6) as u64;
        }
        count += 1;
    }
    match count {
        1 => table = [table[0]; BW_WINDOWS],
        BW_WINDOWS => {}
        _ => return Err(format!("write one number or {BW_WINDOWS} separated by commas, not {count}")),
    }
    config.bw_bytes_per_s = table;
    Ok(())
}

fn get_bandwidth(config: &NrsConfig) -> String {
    let mb = |b: u64| (b as f64 / 1e6).to_string();
    if config.bw_bytes_per_s.iter().all(|b| *b == config.bw_bytes_per_s[0]) {
        return mb(config.bw_bytes_per_s[0]);
    }
    let parts: Vec<String> = config.bw_bytes_per_s.iter().map(|b| mb(*b)).collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_printed_default_is_the_default() {
        let config = NrsConfig::default();
        for key in keys() {
            assert_eq!(config.get(key.name).unwrap(), key.default, "{}", key.name);
            let mut again = NrsConfig::default();
            again.set(key.name, key.default).unwrap();
            assert_eq!(again, config, "{}", key.name);
        }
    }

    #[test]
    fn a_refused_value_changes_nothing_and_says_why() {
        for (key, value) in [
            ("quantum_requests", "65536"),
            ("quantum_requests", "-1"),
            ("quantum_bytes", "2G"),
            ("region_bytes", "3M"),
            ("region_bytes", "4K"),
            ("lambda", "0"),
            ("lambda", "nan"),
            ("bw_mb_per_s", "1,2"),
            ("bw_mb_per_s", "fast"),
            ("deadline_mode", "soon"),
            ("urgent_bytes_per_s", "x"),
        ] {
            let mut config = NrsConfig::default();
            let error = config.set(key, value).expect_err(value);
            assert_eq!(config, NrsConfig::default());
            let text = std::format!("{error}");
            assert!(text.contains(key) && text.contains(value), "{text}");
        }
        let unknown = NrsConfig::default().set("quantum", "8").unwrap_err();
        assert!(std::format!("{unknown}").contains("quantum_requests"));
    }

    #[test]
    fn windows_are_closed_at_their_upper_end() {
        assert_eq!(NrsConfig::window(1), 0);
        assert_eq!(NrsConfig::window(64 * KIB), 0);
        assert_eq!(NrsConfig::window(64 * KIB + 1), 1);
        assert_eq!(NrsConfig::window(MIB), 4);
        assert_eq!(NrsConfig::window(4 * MIB), 6);
        assert_eq!(NrsConfig::window(4 * MIB + 1), 7);
    }
}
