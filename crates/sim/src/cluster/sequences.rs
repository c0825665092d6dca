//! Short sequences of operations, and a crash at every point of them: bounded exhaustively, where random runs may pass by.
//!
//! A [`Case`] is one or two operations, each with its kind of sync, on a small synced file system; then a server loses
//! its power before its n-th sync, or the client dies after so much time, or everything does. Where the client lives
//! every operation has to succeed and the end is the same as without the crash; where it dies the end has to be a state
//! that a crash may leave ([`model`]). The stores are checked as well.
//! Source: J. Mohan et al., "Finding Crash-Consistency Bugs with Bounded Black-Box Crash Testing", OSDI 2018.
pub mod model;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use client::{Client, NewFile, NewNode, OpenFile};
use simworld::{Sim, SimConfig};
use types::{Duration, Fid, FsError, MIB};
use wire::mdt::{Cred, NodeKind, SetBits, SetattrRequest};

use self::model::{A, B, DIR, DIR_NAMES, File, Id, NAMES, Op, Run, State, Sync, Target, pattern};
use super::check::check_stores;
use super::config::ClusterConfig;
use super::context::{Context, Manners};
use super::costs::{Costs, Phase};
use super::nodes::{Cluster, NodeId};

const O_RDWR: u32 = 2;
const O_CREAT_RDWR: u32 = 0o102;
const O_APPEND_RDWR: u32 = 0o2002;
/// Virtual time within which everything has healed.
const LIMIT: Duration = Duration::from_secs(1800);
/// How long after the last operation a server may still lose its power at a sync: everything is committed by then.
const SETTLED: Duration = Duration::from_secs(3);
/// How often it is looked whether the crash has happened, while the sequence is played and behind its end.
const LOOK: Duration = Duration::from_micros(20);
const LOOK_SETTLING: Duration = Duration::from_millis(1);
/// What sizes are multiples of where files have stripes, of 64 KiB: the first file has bytes
/// on two OSTs, and every operation on bytes changes both.
const STRIPED_UNIT: usize = 16;
/// Points of time between two deaths of a client.
const CLIENT_STEP: Duration = Duration::from_micros(60);

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The client, at the n-th point of time.
    Client,
    /// The OST's host loses its power before its n-th sync.
    Ost,
    /// The metadata server's host loses its power before its n-th sync.
    Mds,
    /// Everything loses its power before the metadata server's n-th sync.
    AllAtMds,
    /// Everything loses its power before the OST's n-th sync.
    AllAtOst,
}

impl Death {
    /// All of them.
    pub const ALL: [Death; 5] = [Death::Client, Death::Ost, Death::Mds, Death::AllAtMds, Death::AllAtOst];

    fn client_dies(self) -> bool {
        matches!(self, Death::Client | Death::AllAtMds | Death::AllAtOst)
    }
}

/// One sequence and its crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Operations and how each is synced.
    pub ops: Vec<(Op, Sync)>,
    /// Who dies.
    pub death: Death,
    /// Where; 0: right after the last operation returned.
    pub point: u64,
    /// Of the world.
    pub seed: u64,
    /// OSTs, and stripes of every file; with more than one the files are long enough to be on all of them.
    pub stripes: u16,
}

impl Case {
    /// The OST that dies: another one with the next seed.
    fn ost(&self) -> NodeId {
        NodeId::Oss((self.seed % u64::from(self.stripes)) as usize)
    }
    fn trigger(&self) -> Option<NodeId> {
        match self.death {
            Death::Client => None,
            Death::Ost | Death::AllAtOst => Some(self.ost()),
            Death::Mds | Death::AllAtMds => Some(NodeId::Mds),
        }
    }
    fn osts(&self) -> impl Iterator<Item = NodeId> {
        (0..usize::from(self.stripes)).map(NodeId::Oss)
    }
    /// What sizes in the sequence are multiples of.
    fn unit(&self) -> usize {
        if self.stripes > 1 { STRIPED_UNIT } else { 1 }
    }
}

/// What a case gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What is not as it must be.
    pub complaints: Vec<String>,
    /// The sequence was long enough for the crash to happen; if not, later points do not happen either.
    pub crashed: bool,
    /// What its phases took.
    pub costs: Costs,
}

/// All sequences of one operation, and of two.
pub fn sequences() -> impl Iterator<Item = Vec<(Op, Sync)>> {
    let one = || Op::ALL.into_iter().flat_map(|op| Sync::ALL.into_iter().map(move |s| (op, s)));
    one().map(|a| vec![a]).chain(one().flat_map(move |a| one().map(move |b| vec![a, b])))
}

/// What all cases of a sequence gave.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Those that went wrong.
    pub wrong: Vec<(Case, Vec<String>)>,
    /// How many there were.
    pub cases: u64,
    /// What their phases took.
    pub costs: Costs,
}

/// Runs a sequence with every death at every point.
#[must_use]
pub fn run_sequence(ops: &[(Op, Sync)], seed: u64, stripes: u16) -> Tally {
    let mut tally = Tally::default();
    for death in Death::ALL {
        for point in 0.. {
            let case = Case { ops: ops.to_vec(), death, point, seed, stripes };
            let verdict = run_case(&case);
            tally.cases += 1;
            tally.costs.add(&verdict.costs);
            if !verdict.complaints.is_empty() {
                tally.wrong.push((case, verdict.complaints));
            }
            if !verdict.crashed {
                break;
            }
        }
    }
    tally
}

/// Runs one case.
#[must_use]
pub fn run_case(case: &Case) -> Verdict {
    let world = SimConfig { sync_time: Duration::from_micros(100), ..SimConfig::new(case.seed) };
    let sim = Sim::new(world, super::run::frames());
    let config = ClusterConfig {
        clients: 2,
        osts: usize::from(case.stripes),
        stripe_count: case.stripes,
        ost_reserve_bytes: 16 * MIB,
        ..ClusterConfig::default()
    };
    let context = Context::new(Cluster::new(sim, config), case.seed, Manners::default());
    let sim = &context.cluster.sim;
    let crashed = sim.run_for(whole(&context, case), LIMIT * 3);
    let crashed = match crashed {
        None => {
            context.complain("the case does not come to its end");
            true
        }
        Some(Err(e)) => {
            context.complain(e);
            true
        }
        Some(Ok(crashed)) => crashed,
    };
    context.cluster.end();
    Verdict { complaints: context.complaints(), crashed, costs: context.enter(Phase::Check) }
}

fn cred() -> Cred {
    Cred::default()
}

/// What the sequence works on.
#[derive(Clone, Copy)]
struct Place {
    dir: Fid,
    /// Inodes A, B and DIR.
    fids: [Fid; 3],
    /// What sizes are multiples of.
    unit: usize,
}

async fn whole(context: &Rc<Context>, case: &Case) -> Result<bool, String> {
    let cluster = &context.cluster;
    cluster.format().await?;
    for id in [NodeId::Mds].into_iter().chain(case.osts()).chain([NodeId::Client(0)]) {
        cluster.start(id).await?;
    }
    let unit = case.unit();
    let place = cluster
        .on(0, async move |c| prepare(c, unit).await)
        .await
        .ok_or("the client died")?
        .map_err(|e| format!("preparing: {e}"))?;
    // Nothing of the preparation is left to commit.
    cluster.sim.sleep(SETTLED).await;
    context.enter(Phase::Work);
    let progress = Rc::new(Progress { run: RefCell::new(Run::new(unit)), ended: Cell::new(false) });
    let crashed = crash(context, case, place, &progress).await?;
    context.enter(Phase::Healing);
    let begin = cluster.sim.now();
    while !case.death.client_dies() && !progress.ended.get() {
        cluster.sim.sleep(Duration::from_millis(10)).await;
        if cluster.sim.now().since(begin) > LIMIT {
            return Err("the sequence does not come to its end after the crash".into());
        }
    }
    context.enter(Phase::Looks);
    cluster.start(NodeId::Client(1)).await?;
    let found = cluster.on(1, async move |c| look(&c, place).await).await.ok_or("the second client died")?;
    let found = found.map_err(|e| format!("looking: {e}"))?;
    let judge = |run: &Run| if case.death.client_dies() { run.check_crashed(&found) } else { run.check_exact(&found) };
    context.expect("the file system afterwards", judge(&progress.run.borrow()));
    finish(context, case).await?;
    Ok(crashed)
}

/// Clients leave, servers stop in order, stores are checked.
async fn finish(context: &Rc<Context>, case: &Case) -> Result<(), String> {
    let cluster = &context.cluster;
    context.enter(Phase::Leaving);
    for i in 0..2 {
        if cluster.lives(i) {
            cluster.stop(NodeId::Client(i)).await?;
        }
    }
    // What removed files leave behind is destroyed in the background; a dead client is evicted first.
    cluster.sim.sleep(Duration::from_secs(180)).await;
    cluster.stop(NodeId::Mds).await?;
    for id in case.osts() {
        cluster.stop(id).await?;
    }
    context.enter(Phase::Check);
    check_stores(context, false).await;
    Ok(())
}

/// How far the sequence is.
struct Progress {
    run: RefCell<Run>,
    ended: Cell<bool>,
}

/// Plays the sequence and lets the crash happen. Whether it did before everything was settled.
async fn crash(context: &Rc<Context>, case: &Case, place: Place, progress: &Rc<Progress>) -> Result<bool, String> {
    let (cluster, sim) = (&context.cluster, &context.cluster.sim);
    let begun = sim.now();
    if let (Some(trigger), 1..) = (case.trigger(), case.point) {
        cluster.node(trigger).host().lose_power_at_sync(case.point);
    }
    let (own, ops, note) = (context.clone(), case.ops.clone(), progress.clone());
    sim.spawn(async move { play(&own, &ops, place, &note).await });
    let mut settled_at = None;
    let crashed = loop {
        let happened = match (case.trigger(), case.point) {
            (_, 0) => progress.ended.get(),
            (Some(trigger), _) => !cluster.node(trigger).host().runs(),
            (None, point) => sim.now().since(begun) >= CLIENT_STEP * u32::try_from(point).unwrap_or(u32::MAX),
        };
        if happened {
            break true;
        }
        let end = case.trigger().map_or(Duration::ZERO, |_| SETTLED);
        if progress.ended.get() && sim.now().since(*settled_at.get_or_insert(sim.now())) >= end {
            break false;
        }
        if sim.now().since(begun) > LIMIT {
            return Err("the sequence does not come to its end".into());
        }
        // Behind the last operation nothing but commits of what is in the background goes on.
        let step = if progress.ended.get() { LOOK_SETTLING } else { LOOK };
        sim.sleep(step).await;
    };
    let dead: Vec<NodeId> = match case.death {
        Death::Client => vec![NodeId::Client(0)],
        Death::Ost => vec![case.ost()],
        Death::Mds => vec![NodeId::Mds],
        Death::AllAtMds | Death::AllAtOst => [NodeId::Client(0), NodeId::Mds].into_iter().chain(case.osts()).collect(),
    };
    dead.iter().for_each(|id| cluster.kill(*id, true));
    for id in dead.into_iter().filter(|id| !matches!(id, NodeId::Client(_))) {
        cluster.start(id).await?;
    }
    Ok(crashed)
}

async fn play(context: &Rc<Context>, ops: &[(Op, Sync)], place: Place, progress: &Progress) {
    for (i, (op, sync)) in ops.iter().copied().enumerate() {
        let before = progress.run.borrow().last().clone();
        let Some(target) = before.target(op, i) else { continue };
        progress.run.borrow_mut().begin(op, &target, i);
        let own = target.clone();
        match context.cluster.on(0, async move |c| carry_out(&c, place, op, sync, &own, i).await).await {
            Some(Ok(())) => progress.run.borrow_mut().synced(op, sync, &target),
            Some(Err(e)) => context.complain(format!("operation {i} ({op:?}, {sync:?}): {e}")),
            // The client is dead: what was begun may have happened.
            None => break,
        }
    }
    progress.ended.set(true);
}

async fn prepare(c: Rc<Client>, unit: usize) -> Result<Place, FsError> {
    let node = || NewNode { kind: NodeKind::Directory, mode: 0o040_755, ..NewNode::default() };
    let dir = c.create(&cred(), Fid::ROOT, b"d", node()).await?.attr.fid;
    let mut fids = [Fid::ROOT; 3];
    for (name, id) in [("a", A), ("b", B)] {
        let new = NewFile { flags: O_CREAT_RDWR, mode: 0o644, ..NewFile::default() };
        let (entry, file) = c.create_open(&cred(), dir, name.as_bytes(), new).await?;
        c.data().write(&file, 0, &State::initial(unit).files[&id].content).await?;
        c.release(&file).await?;
        fids[id] = entry.attr.fid;
    }
    fids[DIR] = c.create(&cred(), dir, b"s", node()).await?.attr.fid;
    c.sync_all().await?;
    Ok(Place { dir, fids, unit })
}

async fn carry_out(c: &Rc<Client>, p: Place, op: Op, sync: Sync, t: &Target, i: usize) -> Result<(), FsError> {
    let (name, to) = (t.name.as_bytes(), t.to.as_bytes());
    let mut open = None;
    match op {
        Op::Create => {
            let new = NewFile { flags: O_CREAT_RDWR, mode: 0o644, ..NewFile::default() };
            open = Some(c.create_open(&cred(), p.dir, name, new).await?.1);
        }
        Op::Mkdir => {
            let node = NewNode { kind: NodeKind::Directory, mode: 0o040_755, ..NewNode::default() };
            c.create(&cred(), p.dir, name, node).await?;
        }
        Op::Rmdir => c.meta().unlink(&cred(), p.dir, name, true).await?,
        Op::Unlink => c.meta().unlink(&cred(), p.dir, name, false).await?,
        Op::Rename | Op::RenameOver => c.meta().rename(&cred(), (p.dir, name), (p.dir, to), 0).await?,
        Op::Link => {
            let fid = c.lookup(&cred(), p.dir, name).await?.attr.fid;
            c.link(&cred(), fid, p.dir, to).await?;
        }
        _ => {
            let fid = c.lookup(&cred(), p.dir, name).await?.attr.fid;
            let file = c.open(&cred(), fid, if op == Op::Append { O_APPEND_RDWR } else { O_RDWR }).await?;
            of_file(c, &file, op, (i, p.unit)).await?;
            open = Some(file);
        }
    }
    let synced = make_last(c, p, open.as_ref(), sync).await;
    if let Some(file) = &open {
        file.flush_errors()?;
        c.release(file).await?;
    }
    synced
}

async fn of_file(c: &Rc<Client>, file: &Rc<OpenFile>, op: Op, (i, unit): (usize, usize)) -> Result<(), FsError> {
    match op {
        Op::Write => c.data().write(file, 100, &vec![pattern(i); 6000 * unit]).await.map(|_| ()),
        Op::Append => c.data().write(file, 0, &vec![pattern(i); 5000 * unit]).await.map(|_| ()),
        Op::Truncate => {
            let request =
                SetattrRequest { valid: SetBits::SIZE, size: 1234 * unit as u64, ..SetattrRequest::default() };
            c.setattr(&cred(), file.inode(), request, Some(file)).await
        }
        Op::Setxattr => c.setxattr(&cred(), file.fid(), b"user.x", Some(&[pattern(i)]), 0, false).await,
        Op::Fallocate => c.data().fallocate(file, 0, 0, 9000 * unit as u64).await,
        _ => Ok(()),
    }
}

async fn make_last(c: &Rc<Client>, p: Place, file: Option<&Rc<OpenFile>>, sync: Sync) -> Result<(), FsError> {
    match (sync, file) {
        (Sync::Close, _) => Ok(()),
        (Sync::Syncfs, _) => c.sync_all().await,
        (_, Some(file)) => c.data().fsync(file, sync == Sync::Fdatasync).await,
        (_, None) => c.meta().sync_meta(p.dir).await,
    }
}

/// The file system as a client sees it.
async fn look(c: &Rc<Client>, p: Place) -> Result<State, FsError> {
    let mut out = State::default();
    for name in NAMES.into_iter().chain(DIR_NAMES) {
        let attr = match c.lookup(&cred(), p.dir, name.as_bytes()).await {
            Ok(entry) if entry.attr.fid.is_zero() => continue,
            Ok(entry) => entry.attr,
            Err(FsError::NotFound) => continue,
            Err(e) => return Err(e),
        };
        // What operations make is known by the number in its first name, which renames keep apart in the model only:
        // an inode that was not there before is the one that the name's own operation made, or the first one.
        let id = known_id(&p, attr.fid, name);
        out.names.insert(name.to_string(), id);
        if attr.mode & 0o170_000 == 0o100_000 && !out.files.contains_key(&id) {
            out.files.insert(id, read_whole(c, attr.fid).await?);
        }
    }
    Ok(out)
}

fn known_id(p: &Place, fid: Fid, name: &str) -> Id {
    if let Some(id) = p.fids.iter().position(|f| *f == fid) {
        return id;
    }
    let own = name.strip_prefix(['c', 'm']).and_then(|n| n.parse().ok());
    model::made_by(own.unwrap_or(0))
}

async fn read_whole(c: &Rc<Client>, fid: Fid) -> Result<File, FsError> {
    let file = c.open(&cred(), fid, 0).await?;
    let content = c.data().read(&file, 0, 1 << 20).await?.to_vec();
    c.release(&file).await?;
    let xattr = match c.getxattr(&cred(), fid, b"user.x").await {
        Ok(value) => Some(value),
        Err(FsError::NoData) => None,
        Err(e) => return Err(e),
    };
    Ok(File { content, xattr })
}
