//! Bugs planted in what serves a kernel (`types::planted!`), each of which runs of kernels must find: what keeps kernels
//! and daemon from waiting for each other, and what keeps bytes, attributes and names that a kernel believes true.
use types::Duration;
use types::planted::Bug;

use crate::run::{Faults, RunConfig, Work};

const fn bug(name: &'static str, what: &'static str) -> Bug {
    Bug { name, what }
}

/// All of them.
pub const BUGS: &[Bug] = &[
    bug("reads-in-line", "A kernel's reads of pages are among the requests of which so many are under way at most."),
    bug("direct-fills-line", "Reads and writes with O_DIRECT take all places of those requests."),
    bug("slots-limited", "The daemon takes no more requests than its limit while the kernel drops pages."),
    bug("drop-takes-all", "A drop of pages does not leave out those of reads that wait for a lock."),
    bug("more-pages-untold", "A read with more locked pages behind it than it tells of waits for locks as any other."),
    bug("drop-not-begun-anew", "A drop of pages goes on when a read of one of them begins to wait for a lock."),
    bug("read-not-looked-at", "A read of pages is not carried out again when a lock of its range went meanwhile."),
    bug("read-left-in-kernel", "Nor are its pages taken from the kernel behind the answer."),
    bug("change-keeps-pages", "Who changes bytes lets the kernel keep its pages of them that may be stored to."),
    bug("shut-ignored", "A kernel's reads of pages do not wait for a change of their bytes."),
    bug("leases-not-taken", "Pages that may be stored to are read under read locks."),
    bug("cut-waits", "A cut waits for a lock although one that is on its way out would do."),
    bug("stores-under-new-lock", "What was stored to pages is written under a lock that is taken then."),
    bug("stores-answered-early", "The write of a page is answered 1 ms before its bytes are in the client's cache."),
    bug("kernel-keeps-pages", "The kernel keeps its pages when their lock goes."),
    bug(
        "drop-behind-flush",
        "The kernel drops its pages when their lock's bytes have been written out, and not before.",
    ),
    bug("attributes-kept", "The kernel keeps attributes when their lock goes."),
    bug("not-there-yet", "Attributes that a kernel has not taken over yet when their lock goes are believed."),
    bug("names-kept", "The kernel keeps names when their lock goes."),
    bug("lost-pages-kept", "The kernel keeps its pages when its client lost their lock by an eviction."),
    bug("lost-names-kept", "The kernel keeps names and attributes when its client lost their lock by an eviction."),
    bug(
        "short-end-kept",
        "A page that was written back up to an older end of its file stays in the kernel, with zeros behind that end.",
    ),
    bug("cut-keeps-pages", "A kernel keeps its pages behind a cut to the size that it believes in."),
    bug("async-write-keeps-pages", "What a kernel reads while an asynchronous write is on its way it keeps."),
    bug(
        "sought-beside-stores",
        "SEEK_DATA and SEEK_HOLE do not see what programs stored to mappings of the same kernel.",
    ),
    bug("listing-kept", "The kernel keeps a listing when its lock goes."),
];

/// A kind of run: everything else is drawn from the seed.
pub struct Class {
    /// As the test of it is named.
    pub name: &'static str,
    /// The run of a seed.
    pub make: fn(u64) -> RunConfig,
}

const fn class(name: &'static str, make: fn(u64) -> RunConfig) -> Class {
    Class { name, make }
}

fn unmapped(seed: u64, work: Work, kernels: usize) -> RunConfig {
    RunConfig { maps: false, ..RunConfig::draw(seed, work, kernels) }
}
fn one_or_two(seed: u64) -> usize {
    1 + (seed % 2) as usize
}
fn busy(seed: u64) -> RunConfig {
    RunConfig::draw(seed, if seed.is_multiple_of(2) { Work::Churn } else { Work::Cells }, 2)
}

/// Runs without faults.
pub const CLASSES: &[Class] = &[
    class("calls_on_one_mount", |seed| unmapped(seed, Work::Turns, 1)),
    class("calls_on_two_mounts", |seed| unmapped(seed, Work::Turns, 2)),
    class("counts_by_calls", |seed| unmapped(seed, Work::Cells, one_or_two(seed))),
    class("calls_all_at_once", |seed| unmapped(seed, Work::Churn, one_or_two(seed))),
    class("mappings_on_one_mount", |seed| RunConfig::draw(seed, Work::Turns, 1)),
    class("mappings_on_two_mounts", |seed| RunConfig::draw(seed, Work::Turns, 2 + (seed % 3 / 2) as usize)),
    class("counts_through_mappings", |seed| RunConfig::draw(seed, Work::Cells, one_or_two(seed))),
    class("counts_that_others_read", |seed| RunConfig { readers: true, ..RunConfig::draw(seed, Work::Cells, 2) }),
    class("mappings_all_at_once", |seed| RunConfig::draw(seed, Work::Churn, one_or_two(seed))),
    class("a_short_background", |seed| {
        let mut config = busy(seed);
        config.session.max_background = 1 + (seed % 3) as u16;
        config
    }),
    class("windows_longer_than_a_read", |seed| {
        let mut config = busy(seed);
        config.session.max_write_bytes = 8 << 10;
        config.kernel.read_around_pages = 16;
        config.kernel.window_factor = 16;
        config
    }),
    class("reads_shorter_than_a_window", |seed| {
        let mut config = busy(seed);
        config.session.max_write_bytes = 128 << 10;
        config.max_read_bytes = 8 << 10;
        config.kernel.read_around_pages = 16;
        config.kernel.window_factor = 16;
        config
    }),
    class("loads_beside_asynchronous_writes", crate::beside::config),
    class("few_slots", |seed| {
        let mut config = busy(seed);
        config.session.dev_depth = 2;
        config.session.dev_depth_max = 2 + (seed % 3) as u16;
        config
    }),
    class("late_wake_ups", |seed| {
        let work = [Work::Turns, Work::Cells, Work::Churn][(seed % 3) as usize];
        let mut config = RunConfig { maps: seed.is_multiple_of(2), ..RunConfig::draw(seed, work, 2) };
        config.kernel.delays.step_max = Duration::from_millis(5);
        config
    }),
    class("first_looks_beside_cuts", crate::looks::config),
    class("links_beside_cuts", crate::looks::links),
    class("reads_across_stripes", crate::across::config),
    class("direct_reads_that_cross", crate::cross::config),
    class("signals_hang", |seed| {
        let faults = Faults { signal_interval_s: 0.02, ..Faults::default() };
        RunConfig { faults, ..RunConfig::draw(seed, Work::Churn, one_or_two(seed)) }
    }),
];

fn dying(seed: u64, work: Work) -> RunConfig {
    let faults = Faults { kill_interval_s: 8.0, down_max_s: 5.0, ..Faults::default() };
    let hang = Duration::from_secs(300);
    RunConfig { faults, hang, ..RunConfig::draw(seed, work, 2) }
}

/// Runs in which servers die.
pub const DYING: &[Class] = &[
    class("servers_that_die_take", |seed| dying(seed, Work::Turns)),
    class("servers_that_die_hang", |seed| dying(seed, if seed.is_multiple_of(2) { Work::Churn } else { Work::Cells })),
];

/// Runs in which links break.
pub const PARTED: &[Class] = &[
    class("links_that_break", |seed| {
        let faults = Faults { part_interval_s: 2.0, parted_max_s: 4.0, ..Faults::default() };
        let work = [Work::Turns, Work::Cells, Work::Churn][(seed % 3) as usize];
        RunConfig { faults, hang: Duration::from_secs(120), ..RunConfig::draw(seed, work, 2) }
    }),
    class("clients_that_are_evicted", |seed| {
        let faults = Faults { part_interval_s: 5.0, parted_max_s: 120.0, ..Faults::default() };
        let hang = Duration::from_secs(600);
        RunConfig { faults, hang, operations: 300, ..RunConfig::draw(seed, Work::Churn, 2 + (seed % 2) as usize) }
    }),
];

/// All classes.
pub fn classes() -> impl Iterator<Item = &'static Class> {
    CLASSES.iter().chain(DYING).chain(PARTED)
}

/// The class of a name.
///
/// # Panics
/// There is none.
#[must_use]
pub fn class_of(name: &str) -> &'static Class {
    classes().find(|c| c.name == name).expect("a class of this name")
}
