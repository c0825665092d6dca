//! Swarm testing: everything about a run is drawn from its seed, every class of faults is on with probability one half.
//!
//! What is drawn for one setting does not depend on another, so that a failing seed can be made smaller by leaving
//! settings out ([`Without`]) while the rest stays as it was.
//! Source: Groce et al., "Swarm Testing", ISSTA 2012: runs that leave features out find more than runs with all of them.
use std::collections::BTreeSet;

use simworld::SimConfig;
use types::{Duration, MIB, Rng};

use super::class::FaultClass;
use super::config::ClusterConfig;
use super::context::Manners;
use super::faults::FaultConfig;
use super::guests::GUESTS;
use super::run::{RunConfig, WorkConfig};

/// Kinds of programs, by name on the command line.
pub const PROGRAMS: &[&str] =
    &["trees", "blocks", "logs", "counters", "overlaps", "keepers", "dirs", "cutters", "leavers", "witnesses"];
/// Checks that can be left out, by name on the command line.
pub const CHECKS: &[&str] = &["books"];
/// Settings that can be left at their defaults, by name on the command line.
pub const SETTINGS: &[&str] =
    &["policies", "caches", "stripes", "rpcs", "shuffle", "clients", "commits", "syncs", "bulk", "fast"];

/// OSTs that are added to a cluster that grows, at most.
const SPARE_OSTS: usize = 2;

/// What of a seed is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// Names of classes, programs and settings ([`Without::add`]).
    pub(crate) names: BTreeSet<String>,
    /// Virtual milliseconds with faults instead of those drawn.
    pub millis: Option<u64>,
}

impl Without {
    /// All names that can be left out.
    #[must_use]
    pub fn known() -> Vec<&'static str> {
        let classes = FaultClass::ALL.iter().map(|c| c.name());
        classes.chain([PROGRAMS, SETTINGS, CHECKS].into_iter().flatten().copied()).collect()
    }
    /// Leaves one more out.
    ///
    /// # Errors
    /// A sentence with all names, when it is none of them.
    pub fn add(&mut self, name: &str) -> Result<(), String> {
        let known = Without::known();
        if !known.contains(&name) {
            return Err(format!("--without {name}: write some of {}", known.join(", ")));
        }
        self.names.insert(name.into());
        Ok(())
    }
    /// Whether it is left out.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }
    /// As arguments of `stria sim torture`.
    #[must_use]
    pub fn arguments(&self) -> String {
        let mut text = String::new();
        if !self.names.is_empty() {
            let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
            text += &format!(" --without {}", names.join(","));
        }
        if let Some(millis) = self.millis {
            text += &format!(" --seconds {}", millis as f64 / 1e3);
        }
        text
    }
}

/// What a seed stands for.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// The seed.
    pub seed: u64,
    /// Classes of faults that are on.
    pub classes: BTreeSet<FaultClass>,
    /// The run.
    pub config: RunConfig,
}

/// One of several values.
fn any<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// The first classes are drawn as they always were, the later ones each from a stream of its own: what a seed had before there were
/// these it has without them.
fn classes_of(seed: u64, without: &Without) -> BTreeSet<FaultClass> {
    let mut rng = Rng::named(seed, "swarm classes");
    let (first, later) = FaultClass::ALL.split_at(FaultClass::FIRST.len());
    match rng.below(10) {
        0 => [any(&mut rng, first)].into(),
        1 => FaultClass::ALL.iter().copied().collect(),
        _ => {
            let mut classes: BTreeSet<_> = first.iter().copied().filter(|_| rng.chance(0.5)).collect();
            let is_on = |c: &FaultClass| Rng::named(seed, &format!("swarm class {}", c.name())).chance(0.5);
            classes.extend(later.iter().copied().filter(is_on));
            let mut rng = Rng::named(seed, "swarm later class");
            // Which of these is on alone is drawn as it was before there were others.
            let (until_migrate, newest) = later.split_at(FaultClass::Migrate.index() - first.len() + 1);
            let classes = if rng.chance(0.05) { [any(&mut rng, until_migrate)].into() } else { classes };
            let is_alone = |class: &FaultClass| {
                let drawn = Rng::named(seed, &format!("swarm class {} alone", class.name())).chance(0.01);
                drawn && !without.has(class.name())
            };
            newest.iter().copied().find(is_alone).map_or(classes, |class| [class].into())
        }
    }
}

impl Swarm {
    /// Draws everything from `seed`, but for what is left out.
    #[must_use]
    pub fn draw(seed: u64, without: &Without) -> Swarm {
        let mut classes = classes_of(seed, without);
        classes.retain(|c| !without.has(c.name()));
        let on = |class| classes.contains(&class);
        let cluster = cluster_of(seed, without, &on);
        let work = work_of(seed, without, &cluster, &on);
        let config = RunConfig {
            world: world_of(seed, without, &on),
            faults: faults_of(seed, &on, work.cutters > 0),
            work,
            cluster,
        };
        Swarm { seed, classes, config }
    }
}

type On<'a> = &'a dyn Fn(FaultClass) -> bool;

fn world_of(seed: u64, without: &Without, on: On<'_>) -> SimConfig {
    let mut rng = Rng::named(seed, "swarm world");
    let share = |rng: &mut Rng, class, most: f64| {
        let p = most * rng.unit() * rng.unit();
        if on(class) { p } else { 0.0 }
    };
    let loss = share(&mut rng, FaultClass::Loss, 0.05);
    let corrupt = share(&mut rng, FaultClass::Corrupt, 0.05);
    let duplicate = share(&mut rng, FaultClass::Duplicate, 0.1);
    let reorder = share(&mut rng, FaultClass::Reorder, 0.1);
    let shuffle = any(&mut rng, &[0.0, 0.05, 0.3]);
    let latency = any(&mut rng, &[20, 100, 1000]);
    let sync_time = Duration::from_micros(any(&mut rng, &[50, 500, 5000]));
    let slowest = if on(FaultClass::Delay) { Duration::from_millis(20) } else { Duration::from_micros(4 * latency) };
    SimConfig {
        loss,
        corrupt,
        duplicate,
        reorder,
        shuffle: if without.has("shuffle") { 0.0 } else { shuffle },
        latency_min: Duration::from_micros(latency),
        latency_max: slowest,
        sync_time,
        clock_skew_max: if on(FaultClass::Skew) { Duration::from_secs(60) } else { Duration::ZERO },
        clock_drift_ppm_max: if on(FaultClass::Drift) { 10_000 } else { 0 },
        ..SimConfig::new(seed)
    }
}

fn cluster_of(seed: u64, without: &Without, on: On<'_>) -> ClusterConfig {
    let defaults = ClusterConfig::default();
    let mut c = ClusterConfig { recovery_window: Duration::from_secs(30), ..defaults };
    let mut rng = Rng::named(seed, "swarm shape");
    let (clients, osts) = (1 + rng.below(4) as usize, any(&mut rng, &[1, 2, 3, 3]));
    c.reopens = on(FaultClass::DiskHeals);
    c.guests = if on(FaultClass::Credentials) { GUESTS } else { 0 };
    c.spare_osts = if on(FaultClass::Growth) { SPARE_OSTS } else { 0 };
    (c.clients, c.osts) = (if without.has("clients") { clients.min(2) } else { clients }, osts);
    let mut rng = Rng::named(seed, "swarm stripes");
    let (count, size) = (any(&mut rng, &[1, 2, 3, 3]), any(&mut rng, &[64 << 10, 64 << 10, 128 << 10, MIB]));
    c.stripe_count = if without.has("stripes") { 1 } else { count.min(osts as u16) };
    c.stripe_bytes = size;
    let mut rng = Rng::named(seed, "swarm caches");
    let caches = (any(&mut rng, &[1, 4, 32]) * MIB, any(&mut rng, &[0, 2, 16]) * MIB);
    let reserve = any(&mut rng, &[1, 8, 256]) * MIB;
    let grant = any(&mut rng, &[64 << 10, MIB, 8 * MIB]);
    if !without.has("caches") {
        (c.client_cache_bytes, c.ost_cache_bytes) = caches;
        (c.ost_reserve_bytes, c.ost_grant_bytes) = (reserve, grant);
    }
    let mut rng = Rng::named(seed, "swarm policies");
    // Without the one that chooses among the others, so that a seed keeps its history.
    let orders: Vec<&nrs::PolicyEntry> = nrs::registry().iter().filter(|e| e.name != "auto").collect();
    let nrs = orders[rng.below(orders.len() as u64) as usize];
    let wrapped = !nrs.facts.own_deadlines && rng.chance(0.3);
    let nrs = if wrapped { format!("deadline+{}", nrs.name) } else { nrs.name.into() };
    let cache = cache::registry()[rng.below(cache::registry().len() as u64) as usize].name;
    let ahead = readahead::POLICIES[rng.below(readahead::POLICIES.len() as u64) as usize].name;
    let alloc = layout::POLICIES[rng.below(layout::POLICIES.len() as u64) as usize].name;
    if !without.has("policies") {
        c.nrs_policy = nrs;
        c.cache_policy = cache.into();
        c.readahead_policy = ahead.into();
        c.alloc_policy = alloc.into();
    }
    let commit = Duration::from_millis(any(&mut Rng::named(seed, "swarm commits"), &[10, 100, 1000, 5000]));
    if !without.has("commits") {
        c.commit_interval = commit;
        c.commits_vary = Rng::named(seed, "swarm commits vary").chance(0.5);
    }
    let mut rng = Rng::named(seed, "swarm rpcs");
    let (flight, pages, window) =
        (any(&mut rng, &[1, 2, 8]), any(&mut rng, &[1, 16, 1024, 16_384]), any(&mut rng, &[1, 4, 16]));
    let age = Duration::from_millis(any(&mut rng, &[200, 1000, 5000, 30_000]));
    if !without.has("rpcs") {
        (c.rpcs_in_flight_max, c.rpc_pages_max, c.dispatch_window, c.dirty_age_max) = (flight, pages, window, age);
    }
    if !without.has("bulk") {
        c.ost_bulk_bytes = any(&mut Rng::named(seed, "swarm bulk"), &[MIB, 4 * MIB, 64 * MIB]);
    }
    let mut rng = Rng::named(seed, "swarm fast");
    let admission = any(&mut rng, &["always", "always", "second_touch"]);
    if rng.chance(0.5) && !without.has("fast") {
        c.fast_admission = Some(admission.into());
    }
    set_by_class(seed, on, &mut c);
    if on(FaultClass::Standby) {
        c.database = Some(Duration::from_millis(any(&mut Rng::named(seed, "swarm database"), &[1, 10, 50])));
    }
    if on(FaultClass::Busy) {
        c.queue_max = Some(1 + Rng::named(seed, "swarm busy").below(4) as u32);
    }
    if on(FaultClass::SmallOsts) {
        c.ost_bytes = (16 + Rng::named(seed, "swarm space").below(25)) * MIB;
        c.ost_reserve_bytes = c.ost_reserve_bytes.min(MIB);
    }
    c
}

/// Settings that classes need, or are.
fn set_by_class(seed: u64, on: On<'_>, c: &mut ClusterConfig) {
    let mut rng = Rng::named(seed, "swarm strand");
    if on(FaultClass::Strand) && rng.chance(0.6) {
        // Many requests of one client wait at once.
        let (window, pages) = (any(&mut rng, &[1, 4, 16]), any(&mut rng, &[1, 4]));
        (c.dispatch_window, c.rpcs_in_flight_max, c.rpc_pages_max) = (window, 8, pages);
        c.dirty_age_max = Duration::from_secs(30);
        // What a client may not keep it writes piece by piece.
        (c.ost_reserve_bytes, c.ost_grant_bytes) = (256 * MIB, 8 * MIB);
    }
    if on(FaultClass::Absent) && Rng::named(seed, "swarm absent").chance(0.7) {
        // What is written while an OST is away stays in the cache, with grant.
        (c.ost_reserve_bytes, c.ost_grant_bytes, c.dirty_age_max) = (256 * MIB, 8 * MIB, Duration::from_secs(30));
    }
    if on(FaultClass::Timing) {
        let mut rng = Rng::named(seed, "swarm timing");
        let seconds = |rng: &mut Rng, of: &[u64]| Duration::from_secs(any(rng, of));
        c.commit_interval = seconds(&mut rng, &[1, 5, 20]);
        c.ost_commit_interval = Some(seconds(&mut rng, &[1, 5, 20]));
        c.recovery_window = seconds(&mut rng, &[15, 30, 60]);
        c.callback_timeout = seconds(&mut rng, &[10, 30, 60]);
        c.glimpse_timeout = seconds(&mut rng, &[1, 7]);
        c.grant_shrink_interval = seconds(&mut rng, &[10, 1200]);
    }
    if on(FaultClass::Quotas) && Rng::named(seed, "swarm quotas").chance(0.7) {
        // Little is dirty when a limit is reached.
        (c.client_cache_bytes, c.ost_grant_bytes) = (2 * MIB, MIB);
    }
    if on(FaultClass::ShortMemory) {
        let rpcs = any(&mut Rng::named(seed, "swarm memory"), &[2, 3, 6]);
        c.frames_beyond_caches = Some(rpcs * c.bulk_max());
    }
    if is_apart(seed, on) {
        // OSTs have data of files of which the metadata store does not know when everything ends.
        c.commit_interval = Duration::from_secs(20);
        (c.ost_commit_interval, c.dirty_age_max) = (Some(Duration::from_millis(10)), Duration::from_millis(200));
    }
}

/// Whether stores of a run with checks amid know of different times: OSTs commit often, and the metadata server seldom.
fn is_apart(seed: u64, on: On<'_>) -> bool {
    on(FaultClass::Fsck) && Rng::named(seed, "swarm fsck stores").chance(0.5)
}

fn work_of(seed: u64, without: &Without, cluster: &ClusterConfig, on: On<'_>) -> WorkConfig {
    let mut rng = Rng::named(seed, "swarm work");
    let mut count = |name: &str, most: u64| {
        let n = if rng.chance(0.25) { 0 } else { rng.below(most + 1) as usize };
        if without.has(name) { 0 } else { n }
    };
    let mut work = WorkConfig {
        trees: count("trees", 3),
        blocks: count("blocks", 3),
        logs: count("logs", 3),
        counters: count("counters", 2),
        overlaps: count("overlaps", 4),
        keepers: count("keepers", cluster.clients as u64),
        dirs: count("dirs", 2),
        cutters: count("cutters", 2),
        leavers: count("leavers", 1),
        witnesses: count("witnesses", 1),
        crowd: on(FaultClass::Crowd),
        strand: on(FaultClass::Strand),
        gaps: on(FaultClass::Gap),
        rights: on(FaultClass::Rights),
        quotas: on(FaultClass::Quotas),
        changelog: on(FaultClass::Changelog),
        credentials: on(FaultClass::Credentials),
        pauses: on(FaultClass::Pauses),
        absent: on(FaultClass::Absent),
        migrate: on(FaultClass::Migrate),
        appends: on(FaultClass::Appends),
        seeks: on(FaultClass::Seeks),
        interrupts: on(FaultClass::Interrupts),
        fsck: on(FaultClass::Fsck),
        scarred: on(FaultClass::RotStays),
        syncs: 1.0,
        direct: Manners::default().direct,
        books: !without.has("books"),
        operations: 1 << 20,
        seconds: 15.0 + 45.0 * Rng::named(seed, "swarm seconds").unit(),
    };
    // Every sync commits what all others did: in some runs nobody does so often, and a server that dies has much to be told.
    if !without.has("syncs") && Rng::named(seed, "swarm syncs").chance(0.4) {
        (work.syncs, work.counters, work.keepers) = (0.02, 0, 0);
    }
    if is_apart(seed, on) {
        (work.syncs, work.counters, work.keepers, work.direct) = (0.02, 0, 0, 0.6);
    }
    if on(FaultClass::Pauses) {
        // Most of the time nothing happens.
        work.seconds *= 4.0;
    }
    if on(FaultClass::Absent) {
        // Who is quiet is so for a while before anything comes of it.
        work.seconds = work.seconds.max(60.0);
    }
    if let Some(millis) = without.millis {
        work.seconds = millis as f64 / 1e3;
    }
    work
}

fn faults_of(seed: u64, on: On<'_>, cuts: bool) -> FaultConfig {
    let mut rng = Rng::named(seed, "swarm faults");
    let mut share = |class| {
        let share = 0.5 + 3.0 * rng.unit();
        if on(class) { share } else { 0.0 }
    };
    let server = share(FaultClass::KillServer);
    let mut faults = FaultConfig {
        kill_mds: server * 0.5,
        kill_oss: server,
        kill_client: share(FaultClass::KillClient),
        reset: share(FaultClass::Reset),
        cut: share(FaultClass::Cut).max(share(FaultClass::LongCut)).max(share(FaultClass::OneWay)),
        slow_disk: share(FaultClass::SlowDisk).max(share(FaultClass::StalledDisk)),
        disk_error: share(FaultClass::DiskError),
        pause: share(FaultClass::Pause),
        bit_rot: share(FaultClass::BitRot),
        full_disk: if on(FaultClass::FullDisk) { 0.5 + 2.0 * Rng::named(seed, "swarm full disk").unit() } else { 0.0 },
        ..FaultConfig::default()
    };
    if on(FaultClass::DiskHeals) {
        faults.disk_heals = 0.5 + 2.0 * Rng::named(seed, "swarm disk heals").unit();
    }
    if on(FaultClass::Fsck) {
        faults.fsck = 0.3 + Rng::named(seed, "swarm fsck").unit();
    }
    if on(FaultClass::Standby) {
        faults.database = 0.5 + 2.0 * Rng::named(seed, "swarm standby").unit();
    }
    if on(FaultClass::GivenUp) {
        faults.give_up = 0.5 + 2.0 * Rng::named(seed, "swarm given up").unit();
    }
    if on(FaultClass::PageRot) {
        faults.page_rot = 0.5 + 2.0 * Rng::named(seed, "swarm page rot").unit();
    }
    faults.one_way = match (on(FaultClass::OneWay), on(FaultClass::Cut) || on(FaultClass::LongCut)) {
        (true, true) => 0.4,
        (true, false) => 1.0,
        _ => 0.0,
    };
    faults.stalled = match (on(FaultClass::StalledDisk), on(FaultClass::SlowDisk)) {
        (true, true) => 0.3,
        (true, false) => 1.0,
        _ => 0.0,
    };
    faults.cut_max_s = if on(FaultClass::LongCut) { 150.0 } else { 8.0 };
    faults.power = if on(FaultClass::Power) { 0.6 } else { 0.0 };
    faults.dies_too = if on(FaultClass::KillServer) { 0.3 } else { 0.0 };
    faults.again = match on(FaultClass::KillServer) {
        true => any(&mut Rng::named(seed, "swarm again"), &[0.0, 0.3, 0.6]),
        false => 0.0,
    };
    faults.growth = on(FaultClass::Growth);
    faults.crowds = on(FaultClass::Crowd);
    faults.strikes = on(FaultClass::KillClient) && on(FaultClass::Power);
    faults.together = on(FaultClass::Together);
    faults.down_max_s = any(&mut rng, &[2.0, 10.0, 50.0]);
    faults.amid = any(&mut rng, &[0.0, 0.5, 0.9]);
    if cuts {
        // Who dies amid a cut leaves most to others.
        (faults.amid_cuts, faults.kill_client) = (0.6, faults.kill_client * 2.0);
    }
    faults.interval_s = any(&mut rng, &[0.7, 2.0, 5.0]);
    if on(FaultClass::Absent) && Rng::named(seed, "swarm absent faults").chance(0.5) {
        // Little else happens to whoever is to be quiet.
        faults.interval_s = 30.0;
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_is_left_out_changes_no_other() {
        for seed in 0..50 {
            let whole = Swarm::draw(seed, &Without::default());
            let mut without = Without::default();
            without.add("policies").unwrap();
            let less = Swarm::draw(seed, &without);
            assert_eq!((whole.config.cluster.clients, &whole.classes), (less.config.cluster.clients, &less.classes));
            assert_eq!(less.config.cluster.nrs_policy, "fifo");
        }
        assert!(Without::default().add("loos").unwrap_err().contains("loss"));
    }

    #[test]
    fn every_class_is_on_alone_in_some_seeds_and_together_with_each_other_in_many() {
        let drawn: Vec<_> = (0..3000).map(|s| Swarm::draw(s, &Without::default()).classes).collect();
        for a in FaultClass::ALL {
            assert!(drawn.iter().any(|d| d.len() == 1 && d.contains(a)), "{a:?} alone");
            for b in FaultClass::ALL {
                assert!(drawn.iter().filter(|d| d.contains(a) && d.contains(b)).count() > 300, "{a:?} with {b:?}");
            }
        }
    }
}
