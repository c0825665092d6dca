//! What the caches of a process may take: sizes that nobody set are as large as the process has memory for, and a process whose caches would
//! not fit is not started.
use types::{MIB, format_size};

use super::{limits, settings};
use crate::config::Config;
use crate::failure::Failure;

/// What a process serves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Roles {
    /// Mounts.
    pub clients: u64,
    /// OSTs.
    pub osts: u64,
    /// Metadata servers.
    pub mdts: u64,
}

/// What every process takes: its program, its runtime, answers to tools.
const BASE_BYTES: u64 = 8 * MIB;
/// What a mount takes beside its frames: buffers of the kernel's requests, inodes, locks.
const CLIENT_BYTES: u64 = 24 * MIB;
/// What a metadata target takes beside its caches: what is changed and not committed yet, what is remembered of closed files.
const MDT_BYTES: u64 = 16 * MIB;
/// What an OST takes beside its caches.
const OST_BYTES: u64 = 3 * MIB;
/// What a lock of a client costs a server, in bytes.
const LOCK_BYTES: u64 = 250;
/// What an object costs an OST that remembers it, in bytes.
const OBJECT_BYTES: u64 = 256;
/// What a block of an object costs an OST that remembers its checksum, in bytes.
const BLOCK_BYTES: u64 = 4;

/// Frames beyond the caches that a process needs in any case: of a mount; of servers; of a mount and the OSTs to which it writes, whose writes
/// keep their frames until they are on stable storage, all in one process.
const FRAMES_OF_CLIENT: u64 = 32 * MIB;
/// See [`FRAMES_OF_CLIENT`].
const FRAMES_OF_SERVER: u64 = 16 * MIB;
/// See [`FRAMES_OF_CLIENT`].
const FRAMES_OF_ALL: u64 = 96 * MIB;

/// The part of the memory that sizes go by. The rest is for the kernel, which counts for the same limit what it keeps for a process, and for
/// whoever else runs there.
const BUDGET: (u64, u64) = (3, 4);

/// Steps between the least sizes and the usual ones.
const STEPS: u64 = 1024;

/// What this process may have, in bytes: `memory.bytes_max`, or what the machine has or its control group allows; half of its address
/// space, where that is limited, for threads and the allocator take more of that than they use. 0: it cannot be told.
pub fn allowed(config: &Config) -> u64 {
    let found = [config.memory_bytes_max, mount::allowed_memory_bytes()].into_iter().filter(|n| *n > 0).min();
    match (found, limits::address_space_bytes()) {
        (None, u64::MAX) => 0,
        (found, space) => found.unwrap_or(u64::MAX).min(if space == u64::MAX { space } else { space / 2 }),
    }
}

/// As [`fitted`], with a sentence for what does not fit.
fn fit_into(config: Config, roles: Roles, memory: u64) -> Result<(Config, Option<String>), Failure> {
    if memory == 0 {
        return Ok((config, None));
    }
    let set = caches_set(&config, roles);
    let caches: u64 = set.iter().map(|(_, bytes)| bytes).sum();
    let shown: Vec<&str> = set.iter().map(|(text, _)| text.as_str()).collect();
    let remedy = "give them less, or allow the process more (memory.max of its control group, MemoryMax=, 'docker run --memory', 'ulimit -v')";
    if caches >= memory {
        let why = format!(
            "{}: caches of {} do not fit into the {} of memory that this process may have: {remedy}",
            shown.join(", "),
            format_size(caches),
            format_size(memory)
        );
        return Err(Failure::with_errno(why, libc::ENOMEM));
    }
    let budget = memory / BUDGET.1 * BUDGET.0;
    let (usual, least) = (need(&at_step(&config, roles, STEPS), roles), need(&at_step(&config, roles, 0), roles));
    let step = if usual <= budget { STEPS } else { budget.saturating_sub(least) * STEPS / (usual - least).max(1) };
    let fitted = at_step(&config, roles, step);
    let needed = need(&fitted, roles).saturating_add(stores(&config, roles));
    let warning = (needed > memory).then(|| {
        let of = if shown.is_empty() { String::new() } else { format!(" ({})", shown.join(", ")) };
        format!(
            "this process may come to need {}{of} and may have {} of memory: it can be killed for want of it, with what programs have not written out; {remedy}",
            format_size(needed),
            format_size(memory)
        )
    });
    Ok((fitted, warning))
}

/// The configuration with sizes that fit into the memory that this process may have; what does not is told in the log.
///
/// # Errors
/// The caches that somebody set are larger than the memory.
pub fn fitted(config: Config, roles: Roles) -> Result<Config, Failure> {
    let memory = allowed(&config);
    let (config, warning) = fit_into(config, roles, memory)?;
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    Ok(config)
}

/// What memory the processes get that `up` starts, and `up` itself, in bytes; 0: what there is, for there is enough for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Of the process that mounts.
    pub up: u64,
    /// Of the metadata server.
    pub mds: u64,
    /// Of each server of an OST.
    pub oss: u64,
}

impl Shares {
    /// What a process of the metadata server serves.
    pub const MDS: Roles = Roles { clients: 0, osts: 0, mdts: 1 };
    /// What a process of an OST serves.
    pub const OSS: Roles = Roles { clients: 0, osts: 1, mdts: 0 };

    /// To each what it needs in any case, and of the rest the more the more it would take if there were enough.
    pub fn of(config: &Config, up: Roles, osts: u64) -> Shares {
        let memory = u128::from(allowed(config));
        let at = |roles: Roles, step| u128::from(need(&at_step(config, roles, step), roles));
        let sum = |step| at(up, step) + at(Shares::MDS, step) + at(Shares::OSS, step) * u128::from(osts);
        let (usual, least) = (sum(STEPS), sum(0));
        let enough = usual <= memory / u128::from(BUDGET.1) * u128::from(BUDGET.0);
        let share = |roles: Roles| {
            let (most, own) = (at(roles, STEPS), at(roles, 0));
            let share = if memory > least {
                own + (memory - least) * (most - own) / (usual - least).max(1)
            } else {
                memory * own / least
            };
            if enough { 0 } else { u64::try_from(share).unwrap_or(u64::MAX) }
        };
        Shares { up: share(up), mds: share(Shares::MDS), oss: share(Shares::OSS) }
    }
    /// The configuration of a process that gets so much.
    pub fn given(&self, config: &Config, bytes: u64) -> Config {
        let mut config = config.clone();
        if bytes > 0 {
            config.memory_bytes_max = bytes;
        }
        config
    }
    /// What a server gets, by its name.
    pub fn of_server(&self, name: &str) -> Option<u64> {
        let bytes = if name.starts_with("ost") { self.oss } else { self.mds };
        Some(bytes).filter(|bytes| *bytes > 0)
    }
}

/// Sizes that nobody set, so many steps from the least to the usual one.
fn at_step(config: &Config, roles: Roles, step: u64) -> Config {
    let mut c = config.clone();
    let between = |least: u64, usual: u64| {
        if usual <= least { usual } else { least + (usual - least) / STEPS * step }
    };
    for (key, value, least) in [
        ("client.cache_bytes", &mut c.client.cache_bytes, 8 * MIB),
        ("oss.cache_bytes", &mut c.oss.cache_bytes, MIB),
        ("oss.trace_bytes", &mut c.oss.trace_bytes, 64 << 10),
        ("mds.trace_bytes", &mut c.mds.trace_bytes, 64 << 10),
        ("mds.locks_max", &mut c.mds.locks_max, 16_384),
    ] {
        if !config.is_set(key) {
            *value = between(least, *value);
        }
    }
    let frames = match (roles.clients > 0, roles.osts > 0) {
        (true, true) => FRAMES_OF_ALL,
        (true, false) => FRAMES_OF_CLIENT,
        (false, _) => FRAMES_OF_SERVER,
    };
    let s = &mut c.sizes;
    for (value, least) in [
        (&mut s.frames_beyond_bytes, frames),
        (&mut s.mdt_db_bytes, 2 * MIB),
        (&mut s.ost_db_bytes, MIB),
        (&mut s.ost_objects_max, 2048),
        (&mut s.ost_blocks_max, 65_536),
    ] {
        *value = between(least, *value);
    }
    c
}

/// What a process comes to take, in bytes.
fn need(config: &Config, roles: Roles) -> u64 {
    let s = &config.sizes;
    let ost = OST_BYTES
        + s.ost_db_bytes
        + config.oss.trace_bytes
        + s.ost_objects_max * OBJECT_BYTES
        + s.ost_blocks_max * BLOCK_BYTES;
    let mdt = MDT_BYTES
        .saturating_add(s.mdt_db_bytes)
        .saturating_add(config.mds.trace_bytes)
        .saturating_add(config.mds.locks_max.saturating_mul(LOCK_BYTES));
    let caches = settings::frames_bytes(config, roles.clients, roles.osts) - stores(config, roles);
    [ost.saturating_mul(roles.osts), mdt.saturating_mul(roles.mdts), CLIENT_BYTES.saturating_mul(roles.clients)]
        .iter()
        .fold(caches.saturating_add(BASE_BYTES), |sum, n| sum.saturating_add(*n))
}

/// What stores in memory come to hold.
fn stores(config: &Config, roles: Roles) -> u64 {
    settings::stores_bytes(config, roles.osts)
}

/// Caches that somebody set, each with its key and value, and what they take together.
fn caches_set(config: &Config, roles: Roles) -> Vec<(String, u64)> {
    let keys = [
        ("client.cache_bytes", config.client.cache_bytes.saturating_mul(roles.clients)),
        ("oss.cache_bytes", if roles.osts > 0 { config.oss.cache_bytes } else { 0 }),
    ];
    let set = keys.into_iter().filter(|(key, bytes)| *bytes > 0 && config.is_set(key));
    set.map(|(key, bytes)| (format!("{key} = {}", config.get(key).unwrap_or_default()), bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::GIB;

    const UP: Roles = Roles { clients: 1, osts: 4, mdts: 1 };

    fn fitted(settings: &[(&str, &str)], roles: Roles, memory: u64) -> Result<(Config, Option<String>), String> {
        let mut config = Config::default();
        for (key, value) in settings {
            config.set(key, value).unwrap();
        }
        fit_into(config, roles, memory).map_err(|e| e.to_string())
    }

    #[test]
    fn sizes_that_nobody_set_fit_into_the_memory_and_are_the_usual_ones_where_there_is_enough() {
        let usual = Config::default();
        assert_eq!(fitted(&[], UP, 8 * GIB).unwrap(), (usual.clone(), None));
        assert_eq!(fitted(&[], UP, 0).unwrap(), (usual.clone(), None), "it cannot be told");
        for memory in [256 * MIB, 512 * MIB, GIB] {
            for roles in [UP, Roles { clients: 1, ..Roles::default() }, Roles { osts: 1, ..Roles::default() }] {
                let (config, warning) = fitted(&[], roles, memory).unwrap();
                assert!(need(&config, roles) <= memory, "{roles:?} in {memory}: {}", need(&config, roles));
                assert_eq!(warning, None, "{roles:?} in {memory}");
            }
        }
        let (config, _) = fitted(&[], UP, 512 * MIB).unwrap();
        assert!(config.client.cache_bytes < usual.client.cache_bytes / 2);
        assert!(config.sizes.frames_beyond_bytes < usual.sizes.frames_beyond_bytes / 2);
    }

    #[test]
    fn what_somebody_set_stays_or_is_refused_or_warned_of() {
        let (config, warning) = fitted(&[("client.cache_bytes", "400M")], UP, 512 * MIB).unwrap();
        assert_eq!(config.client.cache_bytes, 400 * MIB);
        let warning = warning.unwrap();
        assert!(warning.contains("client.cache_bytes = 400M") && warning.contains("may have 512M"), "{warning}");
        let set = [("client.cache_bytes", "300M"), ("oss.cache_bytes", "300M")];
        let why = fitted(&set, UP, 512 * MIB).unwrap_err();
        assert!(why.contains("client.cache_bytes = 300M, oss.cache_bytes = 300M") && why.contains("600M"), "{why}");
        assert!(fitted(&set, Roles { osts: 4, ..Roles::default() }, 512 * MIB).is_ok(), "no mount, no cache of one");
    }

    #[test]
    fn processes_that_one_starts_share_its_memory() {
        let mut config = Config::default();
        config.set("memory.bytes_max", "512M").unwrap();
        let mount = Roles { clients: 1, ..Roles::default() };
        let shares = Shares::of(&config, mount, 2);
        assert!(shares.up + shares.mds + 2 * shares.oss <= 512 * MIB, "{shares:?}");
        assert_eq!((shares.of_server("mdt0"), shares.of_server("ost1")), (Some(shares.mds), Some(shares.oss)));
        for (roles, bytes) in [(mount, shares.up), (Shares::MDS, shares.mds), (Shares::OSS, shares.oss)] {
            let own = shares.given(&config, bytes);
            let (fitted, warning) = fit_into(own, roles, bytes).unwrap();
            assert!(need(&fitted, roles) <= bytes && warning.is_none(), "{roles:?} in {bytes}: {warning:?}");
        }
        config.set("memory.bytes_max", "1T").unwrap();
        let memory = allowed(&config);
        if memory > 8 * GIB {
            assert_eq!(Shares::of(&config, mount, 2).of_server("ost1"), None, "there is enough for all");
        }
    }
}
