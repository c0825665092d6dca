//! One run: a cluster is made, programs work on it while things go wrong, then all is calm, and everything is checked.
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use frames::FramePool;
use simworld::{Sim, SimConfig};
use types::{Duration, MIB};

use super::absent::{ABSENT_BYTES, Absent};
use super::check::{check_books, check_stores, rot_and_repair};
use super::class::FaultClass;
use super::config::ClusterConfig;
use super::context::{Context, Counts, Manners};
use super::costs::{Costs, Phase};
use super::crowd::Crowd;
use super::dirs::Dirs;
use super::faults::{FaultConfig, Faults};
use super::filler::Filler;
use super::follower::Followed;
use super::guests::Guests;
use super::hasty::{HASTY_BYTES, Hasty};
use super::keepers::{KEEPER_BYTES, Keeper};
use super::leavers::Leaver;
use super::mover::Mover;
use super::nodes::{Cluster, NodeId};
use super::onlooker::Onlooker;
use super::overlap::{Overlap, WhatElse};
use super::quotas;
use super::rights::Rights;
use super::scarred::{SCARRED_BYTES, Scarred};
use super::shared::{Blocks, Counter, Log, SHARED_BYTES, make};
use super::stranded::{STRANDED_BYTES, Stranded};
use super::tree::{Habit, Tree};
use super::witnesses::{WITNESS_BYTES, Witness};

/// Programs whose operations are dropped amid.
const HASTY: u64 = 2;
/// Virtual time for everything behind the last fault: recovery, evictions, final checks.
const AFTERWARDS: Duration = Duration::from_secs(4 * 3600);

/// Programs and how long they work.
#[derive(Clone, Debug)]
pub struct WorkConfig {
    /// Programs on directories of their own.
    pub trees: usize,
    /// Programs on blocks of one file.
    pub blocks: usize,
    /// Programs that append to one log.
    pub logs: usize,
    /// Programs that raise one counter under a lock.
    pub counters: usize,
    /// Programs that work on one file at the same time, on one client and on others.
    pub overlaps: usize,
    /// Programs with several descriptors of a file of their own, whose fsync says the truth whatever happens.
    pub keepers: usize,
    /// Programs whose writes are synced by another client, before the writer and the OSTs die.
    pub witnesses: usize,
    /// Programs that write to a file once and never come back to it.
    pub leavers: usize,
    /// Clients append in crowds while they stutter.
    pub crowd: bool,
    /// A client is left behind with writes on their way.
    pub strand: bool,
    /// A client dies with the metadata server, which gives it up and dies again.
    pub gaps: bool,
    /// Programs stop to think.
    pub pauses: bool,
    /// Files get other objects while programs work on them.
    pub migrate: bool,
    /// Programs append beside overlapping operations.
    pub appends: bool,
    /// Programs on overlapping ranges look for data and holes, copy, reserve behind the end, set times and drop caches.
    pub seeks: bool,
    /// Programs whose operations are dropped amid.
    pub interrupts: bool,
    /// Stores rot in the end, and are repaired.
    pub fsck: bool,
    /// A quiet client is away when OSTs die.
    pub absent: bool,
    /// A program with a file on media that lose bits for good.
    pub scarred: bool,
    /// A program of several users with owners, modes and ACLs.
    pub rights: bool,
    /// Programs of several users, groups and projects with limits.
    pub quotas: bool,
    /// Programs that follow the changelog.
    pub changelog: bool,
    /// Clients with credentials of their own.
    pub credentials: bool,
    /// Programs on directories, names and xattrs.
    pub dirs: usize,
    /// Programs on directories of their own whose files are made long and cut.
    pub cutters: usize,
    /// How often programs sync, as a share of what they usually do: between syncs servers have much to lose.
    pub syncs: f64,
    /// Share of the writes of programs on trees that go past the client's cache.
    pub direct: f64,
    /// Clients' books of dirty bytes and grants are checked in the end.
    pub books: bool,
    /// Operations of each program at most.
    pub operations: u64,
    /// Virtual seconds with faults.
    pub seconds: f64,
}

impl WorkConfig {
    const fn manners(&self) -> Manners {
        Manners { syncs: self.syncs, interrupts: self.interrupts, direct: self.direct }
    }
    const fn what_else(&self) -> WhatElse {
        WhatElse { appends: self.appends, seeks: self.seeks }
    }
}

impl Default for WorkConfig {
    fn default() -> WorkConfig {
        WorkConfig {
            trees: 3,
            blocks: 2,
            logs: 2,
            counters: 2,
            overlaps: 0,
            keepers: 0,
            witnesses: 0,
            crowd: false,
            strand: false,
            gaps: false,
            rights: false,
            pauses: false,
            absent: false,
            migrate: false,
            appends: false,
            seeks: false,
            interrupts: false,
            fsck: false,
            scarred: false,
            quotas: false,
            changelog: false,
            credentials: false,
            leavers: 0,
            dirs: 0,
            cutters: 0,
            syncs: 1.0,
            direct: Manners::default().direct,
            books: false,
            operations: 1 << 20,
            seconds: 60.0,
        }
    }
}

/// Everything about a run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// World: network, disks, seed.
    pub world: SimConfig,
    /// Nodes.
    pub cluster: ClusterConfig,
    /// Programs.
    pub work: WorkConfig,
    /// Faults.
    pub faults: FaultConfig,
}

/// What a run gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// What is not as it must be.
    pub complaints: Vec<String>,
    /// Counters.
    pub counts: Counts,
    /// Evictions of clients that were alive at the end.
    pub evictions: u64,
    /// Tasks polled.
    pub events: u64,
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// Over every message and every sync.
    pub hash: u64,
    /// What its phases took.
    pub costs: Costs,
}

/// Page frames of all runs of this thread.
pub(super) fn frames() -> FramePool {
    thread_local! {
        static POOL: FramePool = FramePool::new(1024 * MIB);
    }
    POOL.with(|pool| *pool)
}

/// Runs it.
#[must_use]
pub fn run(config: &RunConfig) -> RunReport {
    let sim = Sim::new(config.world.clone(), frames());
    let cluster = Cluster::new(sim, config.cluster.clone());
    let context = Context::new(cluster, config.world.seed, config.work.manners());
    to_its_end(context, |context| report(context, config))
}

/// Carries a run out and ends its world, however it goes: programs and faults under way are tasks of the world and hold what holds it, so
/// that it would stay in memory for good.
pub(super) fn to_its_end<T>(context: Rc<Context>, carry_out: impl FnOnce(&Rc<Context>) -> T) -> T {
    let outcome = catch_unwind(AssertUnwindSafe(|| carry_out(&context)));
    let ended = catch_unwind(AssertUnwindSafe(move || {
        context.cluster.end();
        context.cluster.sim.end();
    }));
    // A world in the middle of which something panicked may not end well either: what was first is told.
    let outcome = outcome.unwrap_or_else(|panic| resume_unwind(panic));
    ended.unwrap_or_else(|panic| resume_unwind(panic));
    outcome
}

fn report(context: &Rc<Context>, config: &RunConfig) -> RunReport {
    let limit = Duration::from_nanos((config.work.seconds * 1e9) as u64) + AFTERWARDS;
    let sim = &context.cluster.sim;
    if sim.run_for(whole(context, config), limit).is_none() {
        context.complain("the run does not come to its end");
    }
    let (net, refused, short) = (sim.net_counts(), context.cluster.refused.get(), context.cluster.short_of_memory());
    context.count(|c| {
        use FaultClass::{Busy, Corrupt, Duplicate, Loss, Reorder, ShortMemory, SmallOsts};
        let full = if config.cluster.is_small() { c.full } else { 0 };
        let by_chance =
            [(Loss, net.lost), (Corrupt, net.corrupted), (Duplicate, net.duplicated), (Reorder, net.reordered)];
        for (class, times) in by_chance.into_iter().chain([(SmallOsts, full), (Busy, refused), (ShortMemory, short)]) {
            c.by_class[class.index()] = times;
        }
    });
    let evictions = (0..context.cluster.clients.len()).map(|c| context.cluster.evictions(c)).sum();
    context.cluster.end();
    RunReport {
        complaints: context.complaints(),
        counts: context.counts.get(),
        evictions,
        events: sim.events(),
        virtual_ns: sim.now().0,
        hash: sim.hash().0,
        costs: context.enter(Phase::Check),
    }
}

async fn whole(context: &Rc<Context>, config: &RunConfig) {
    if let Err(e) = begin(context).await {
        return context.complain(format!("the cluster does not start: {e}"));
    }
    if config.work.pauses {
        context.think();
    }
    if let Err(e) = work(context, config).await {
        return context.complain(e);
    }
    if context.failed() {
        return;
    }
    check_evictions(context);
    context.enter(Phase::Leaving);
    if let Err(e) = end(context).await {
        return context.complain(e);
    }
    context.enter(Phase::Check);
    check_stores(context, config.work.quotas).await;
    // A database's pages are its own to look after.
    if config.work.fsck
        && !context.cluster.has_database()
        && !context.failed()
        && let Err(e) = rot_and_repair(context).await
    {
        context.complain(e);
    }
}

async fn begin(context: &Rc<Context>) -> Result<(), String> {
    let cluster = &context.cluster;
    cluster.format().await?;
    for id in cluster.nodes().map(|n| n.id).collect::<Vec<_>>() {
        cluster.start(id).await?;
    }
    Ok(())
}

/// Lets programs work while faults happen; comes back when all have ended and said what they found.
async fn work(context: &Rc<Context>, config: &RunConfig) -> Result<(), String> {
    let (w, sim) = (&config.work, &context.cluster.sim);
    let operations = w.operations;
    context.layouts_stay.set(!w.migrate && !w.fsck && config.cluster.spare_osts == 0);
    let mut tasks: Vec<rt::LocalFuture<()>> = Vec::new();
    // Before anything has a name.
    let followed = if w.changelog { Some(Followed::new(context).await?) } else { None };
    tasks.extend(followed.iter().flat_map(|f| f.programs()));
    for i in 0..w.trees + w.cutters {
        let habit = if i < w.trees { Habit::Everything } else { Habit::Cuts };
        let tree = Tree::new(context.clone(), i, habit).await?;
        tasks.push(Box::pin(tree.run(operations)));
    }
    if w.blocks > 0 {
        let fid = make(context, "blocks", SHARED_BYTES).await?;
        for i in 0..w.blocks as u64 {
            tasks.push(Box::pin(Blocks::new(context.clone(), fid, i, w.blocks as u64).run(operations)));
        }
    }
    tasks.extend(dirs_and_leavers(context, w).await?);
    tasks.extend(who_are_limited(context, w).await?);
    tasks.extend(who_believe_fsync(context, w).await?);
    tasks.extend(who_ask_for_faults(context, w).await?);
    let overlap = match w.overlaps {
        0 => None,
        _ => Some(Overlap::new(context.clone(), make(context, "overlap", 0).await?, w.what_else()).await?),
    };
    for i in 0..w.overlaps {
        let overlap = overlap.iter().cloned();
        tasks.extend(overlap.map(|o| Box::pin(o.run(i, operations)) as rt::LocalFuture<()>));
    }
    if config.cluster.is_small() {
        let filler = Filler::new(context.clone(), make(context, "filler", 0).await?);
        tasks.push(Box::pin(filler.run()));
    }
    let log = Log::new(context.clone(), make(context, "log", 0).await?);
    tasks.extend((0..w.logs as u64).map(|i| Box::pin(log.clone().append(i, operations)) as rt::LocalFuture<()>));
    let counter = Counter::new(context.clone(), make(context, "counter", 8).await?);
    tasks.extend((0..w.counters as u64).map(|i| Box::pin(counter.clone().raise(i, operations)) as rt::LocalFuture<()>));
    tasks.push(Box::pin(until_quiet(context.clone(), Duration::from_nanos((w.seconds * 1e9) as u64))));
    tasks.push(Box::pin(Faults::new(context.clone(), config.faults.clone()).run()));
    context.enter(Phase::Work);
    let mut ends = Vec::new();
    for task in tasks {
        let (tx, rx) = rt::sync::oneshot();
        sim.spawn(async move {
            task.await;
            tx.send(());
        });
        ends.push(rx);
    }
    rt::sync::join_all(ends).await;
    if !context.failed() {
        log.check().await;
        if w.books {
            check_books(context).await;
        }
        counter.check().await;
        if let Some(overlap) = overlap {
            overlap.check().await;
        }
        if let Some(followed) = followed {
            followed.check().await;
        }
    }
    Ok(())
}

/// Programs on directories, and those that leave their files behind.
async fn dirs_and_leavers(context: &Rc<Context>, w: &WorkConfig) -> Result<Vec<rt::LocalFuture<()>>, String> {
    let mut tasks: Vec<rt::LocalFuture<()>> = Vec::new();
    for i in 0..w.dirs {
        let dirs = Dirs::new(context.clone(), i).await?;
        tasks.push(Box::pin(dirs.run(w.operations)));
    }
    for i in 0..w.leavers {
        let leaver = Leaver::new(context.clone(), i).await?;
        tasks.push(Box::pin(leaver.run()));
    }
    Ok(tasks)
}

/// Programs and clients that may not do everything.
async fn who_are_limited(context: &Rc<Context>, w: &WorkConfig) -> Result<Vec<rt::LocalFuture<()>>, String> {
    let mut tasks: Vec<rt::LocalFuture<()>> = Vec::new();
    if w.rights {
        tasks.push(Box::pin(Rights::new(context.clone()).await?.run(w.operations)));
    }
    if w.quotas {
        tasks.extend(quotas::programs(context).await?);
    }
    if w.credentials {
        tasks.push(Box::pin(Guests::new(context.clone()).await?.run()));
    }
    Ok(tasks)
}

/// Programs with files of their own that take what fsync answers at its word.
async fn who_believe_fsync(context: &Rc<Context>, w: &WorkConfig) -> Result<Vec<rt::LocalFuture<()>>, String> {
    const KEPT: [&str; 8] = ["kept0", "kept1", "kept2", "kept3", "kept4", "kept5", "kept6", "kept7"];
    const WITNESSED: [&str; 2] = ["witnessed0", "witnessed1"];
    let mut tasks: Vec<rt::LocalFuture<()>> = Vec::new();
    for (i, name) in KEPT.into_iter().enumerate().take(w.keepers) {
        let fid = make(context, name, KEEPER_BYTES).await?;
        tasks.push(Box::pin(Keeper::new(context.clone(), fid, i).run(w.operations)));
    }
    for (i, name) in WITNESSED.into_iter().enumerate().take(w.witnesses) {
        let fid = make(context, name, WITNESS_BYTES).await?;
        tasks.push(Box::pin(Witness::new(context.clone(), fid, i).run(w.operations)));
    }
    Ok(tasks)
}

/// Programs that make a situation together with faults that they ask for.
async fn who_ask_for_faults(context: &Rc<Context>, w: &WorkConfig) -> Result<Vec<rt::LocalFuture<()>>, String> {
    let mut tasks: Vec<rt::LocalFuture<()>> = Vec::new();
    if w.crowd {
        context.stutters.open(true);
        tasks.push(Box::pin(Crowd::new(context.clone(), make(context, "crowd", 0).await?).run()));
    }
    if w.scarred {
        tasks.push(Box::pin(Scarred::new(context.clone(), make(context, "scarred", SCARRED_BYTES).await?).run()));
    }
    if w.strand {
        context.strands.open(true);
        tasks.push(Box::pin(
            Stranded::new(context.clone(), make(context, "stranded", STRANDED_BYTES).await?).run(w.seconds),
        ));
    }
    if w.absent {
        context.absences.open(true);
        tasks.push(Box::pin(Absent::new(context.clone(), make(context, "absent", ABSENT_BYTES).await?).run()));
    }
    if w.migrate {
        tasks.push(Box::pin(Mover::new(context.clone()).run()));
    }
    if w.interrupts {
        let fid = make(context, "hasty", HASTY_BYTES).await?;
        tasks.extend(
            (0..HASTY).map(|id| -> rt::LocalFuture<()> { Box::pin(Hasty::new(context.clone(), fid, id, HASTY).run()) }),
        );
    }
    if w.gaps {
        context.gaps.open(true);
        tasks.push(Box::pin(Onlooker::new(context.clone()).await?.run()));
    }
    Ok(tasks)
}

/// Says that no fault may begin any more: after so much time, or when something is wrong already.
async fn until_quiet(context: Rc<Context>, time: Duration) {
    let sim = &context.cluster.sim;
    let failed = async {
        while !context.failed() {
            sim.sleep(Duration::from_millis(200)).await;
        }
    };
    // Whichever comes first.
    let _ = rt::sync::race(sim.sleep(time), failed).await;
    context.end_begins();
}

/// Who was there all the time was not evicted. A client that has left cannot tell a server that it does not reach.
fn check_evictions(context: &Rc<Context>) {
    for client in (0..context.cluster.clients.len()).filter(|c| !context.may_have_been_away(*c)) {
        let times = context.cluster.evictions(client);
        if times > 0 {
            context.complain(format!("client{client} was evicted {times} times, although it was there all the time"));
        }
    }
}

/// Clients leave, servers stop in order.
async fn end(context: &Rc<Context>) -> Result<(), String> {
    let cluster = &context.cluster;
    for c in 0..cluster.clients.len() {
        cluster.stop(NodeId::Client(c)).await?;
    }
    // What removed files leave behind is destroyed in the background.
    cluster.sim.sleep(Duration::from_secs(60)).await;
    cluster.stop(NodeId::Mds).await?;
    for i in cluster.ost_indices() {
        cluster.stop(NodeId::Oss(i)).await?;
    }
    Ok(())
}
