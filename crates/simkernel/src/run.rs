//! One run: a cluster with kernels on its clients, programs on the kernels, a check of everything, and a report.
use std::rc::Rc;

use frames::FramePool;
use fuse::{Session, SessionConfig};
use mount::{KernelCaching, KernelNames, Squash, StriaFs};
use rt::LocalFuture;
use rt::sync::race;
use sim::cluster::{Cluster, ClusterConfig, Context, Manners, NodeId};
use simworld::{Sim, SimConfig};
use types::{Duration, MIB, Rng};

use crate::conn::{Caller, Delays, call_of, is_dying};
use crate::kernel::{Kernel, KernelConfig};
use crate::{cells, churn, faults, turns};

/// Virtual time for a whole run.
const RUN_MAX: Duration = Duration::from_secs(4 * 3600);

/// What programs do.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// See [`crate::turns`].
    Turns,
    /// See [`crate::cells`].
    Cells,
    /// See [`crate::churn`].
    Churn,
    /// What it says, step by step.
    Script(fn(Rc<World>) -> LocalFuture<Option<()>>),
}

/// What goes wrong besides.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Seconds between two deaths of servers on average; 0: none.
    pub kill_interval_s: f64,
    /// How long a killed server is away at most.
    pub down_max_s: f64,
    /// Seconds between two signals to a program on average; 0: none.
    pub signal_interval_s: f64,
    /// Seconds between two breaks of a link on average, from a client to a server or between servers; 0: none.
    pub part_interval_s: f64,
    /// How long a link is cut at most. Above [`PATIENCE_S`] clients are evicted for it.
    pub parted_max_s: f64,
}

/// Servers evict nobody for being away for so many seconds.
pub const PATIENCE_S: f64 = 10.0;

impl Faults {
    /// Whether clients may be evicted, and lose what they had not written yet.
    #[must_use]
    pub fn evict(&self) -> bool {
        self.part_interval_s > 0.0 && self.parted_max_s > PATIENCE_S
    }
}

/// Everything about a run; [`RunConfig::draw`] makes one of a seed.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// World: network, disks, seed.
    pub world: SimConfig,
    /// Nodes; each client has a kernel.
    pub cluster: ClusterConfig,
    /// How kernels behave.
    pub kernel: KernelConfig,
    /// What the session asks for.
    pub session: SessionConfig,
    /// What kernels may keep.
    pub caching: KernelCaching,
    /// Whether kernels may keep names.
    pub names: KernelNames,
    /// What programs do.
    pub work: Work,
    /// Programs on each kernel.
    pub programs: usize,
    /// Whether programs map files. Without, nothing makes pages dirty.
    pub maps: bool,
    /// Whether some descriptors are opened with O_DIRECT, and some reads and writes asynchronous.
    pub direct: bool,
    /// The mount option `max_read`; 0: none.
    pub max_read_bytes: u32,
    /// Whether programs of the last mount only read what the others' count ([`crate::cells`]).
    pub readers: bool,
    /// Operations of each.
    pub operations: u64,
    /// Longest time of an operation.
    pub hang: Duration,
    /// What goes wrong.
    pub faults: Faults,
}

impl RunConfig {
    /// A run of `kernels` mounts in which everything else is drawn from the seed.
    #[must_use]
    pub fn draw(seed: u64, work: Work, kernels: usize) -> RunConfig {
        let mut rng = Rng::named(seed, "run of kernels");
        let r = &mut rng;
        let mut of = |all: &[u64]| all[r.below(all.len() as u64) as usize];
        let osts = of(&[1, 2, 3]);
        let cluster = ClusterConfig {
            clients: kernels,
            osts: osts as usize,
            client_cache_bytes: of(&[1, 4, 16]) * MIB,
            stripe_count: 1 + of(&[0, 1, 2]).min(osts - 1) as u16,
            ..ClusterConfig::default()
        };
        let world = SimConfig {
            shuffle: of(&[0, 10, 40]) as f64 / 100.0,
            loss: of(&[0, 0, 1]) as f64 / 1000.0,
            latency_max: Duration::from_micros(of(&[80, 80, 2_000])),
            sync_time: Duration::from_micros(500),
            ..SimConfig::new(seed)
        };
        let kernel = KernelConfig {
            seed,
            delays: Delays {
                step_max: Duration::from_micros(of(&[5, 30, 300])),
                stall: of(&[0, 1, 5]) as f64 / 100.0,
                stall_max: Duration::from_millis(of(&[1, 10, 100])),
                loose: of(&[0, 1]) == 1,
            },
            read_around_pages: of(&[0, 3, 16]),
            flush_interval: Duration::from_millis(of(&[50, 500, 5_000])),
            dirty_age_max: Duration::from_millis(of(&[10, 1_000, 30_000])),
            shrink_interval: Duration::from_millis(of(&[20, 500, 20_000])),
            window_factor: 1 + seed % 2,
        };
        let session =
            SessionConfig { max_write_bytes: of(&[8 << 10, 64 << 10, 1 << 20]) as u32, ..SessionConfig::default() };
        let caching = [KernelCaching::Never, KernelCaching::Reopened, KernelCaching::Fitting, KernelCaching::Always];
        let caching = caching[of(&[0, 1, 2, 3]) as usize];
        let programs = of(&[1, 2, 4]) as usize;
        let direct = of(&[0, 1]) == 1;
        let hang = Duration::from_secs(20);
        let faults = Faults::default();
        let (maps, operations) = (true, 60);
        RunConfig {
            world,
            cluster,
            kernel,
            session,
            caching,
            names: KernelNames::Kept,
            work,
            programs,
            maps,
            direct,
            max_read_bytes: 0,
            readers: false,
            operations,
            hang,
            faults,
        }
    }
}

/// What a run gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What is not as it must be.
    pub complaints: Vec<String>,
    /// System calls, and loads and stores.
    pub operations: u64,
    /// Comparisons.
    pub checks: u64,
    /// Requests of all kernels.
    pub requests: u64,
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// Over every message and every sync.
    pub hash: u64,
}

/// What programs share.
pub struct World {
    /// Cluster, counters, complaints.
    pub context: Rc<Context>,
    /// Kernels, by client.
    pub kernels: Vec<Rc<Kernel>>,
    /// Programs' threads: they are signalled.
    pub callers: Vec<Rc<Caller>>,
    hang: Duration,
}

impl World {
    /// Runs an operation on a kernel; `None` when it hangs, which is complained about.
    pub async fn op<T>(&self, kernel: usize, what: &str, work: impl Future<Output = T>) -> Option<T> {
        let sim = &self.context.cluster.sim;
        let begin = sim.now();
        let done = race(work, sim.sleep(self.hang)).await;
        let took = sim.now().since(begin);
        self.context.count(|c| {
            c.operations += 1;
            c.longest_ns = c.longest_ns.max(took.as_nanos() as u64);
        });
        tracing::debug!(kernel, took_us = took.as_micros() as u64, "{what}");
        match done {
            Ok(done) => Some(done),
            Err(()) => {
                let state = self.kernels[kernel].state().join("; ");
                self.context.complain(format!("kernel {kernel}: {what} hangs: {state}"));
                None
            }
        }
    }
    /// The same; a failure is complained about, too.
    pub async fn must<T>(&self, kernel: usize, what: &str, work: impl Future<Output = Result<T, i32>>) -> Option<T> {
        match self.op(kernel, what, work).await? {
            Ok(done) => Some(done),
            Err(e) => {
                let why = std::io::Error::from_raw_os_error(e);
                self.context.complain(format!("kernel {kernel}: {what}: {why}"));
                None
            }
        }
    }
    /// A kernel.
    #[must_use]
    pub fn kernel(&self, index: usize) -> &Rc<Kernel> {
        &self.kernels[index]
    }
    /// The thread of a program on a kernel.
    #[must_use]
    pub fn caller(&self, kernel: usize, program: usize, programs: usize) -> Rc<Caller> {
        self.callers[kernel * programs + program].clone()
    }
    /// Whether programs should go on no longer.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.context.failed()
    }
}

/// Page frames of all runs of this thread.
fn frames() -> FramePool {
    thread_local! {
        static POOL: FramePool = FramePool::new(512 * MIB);
    }
    POOL.with(|pool| *pool)
}

/// Runs it.
#[must_use]
pub fn run(config: &RunConfig) -> Report {
    let sim = Sim::new(config.world.clone(), frames());
    let cluster = Cluster::new(sim, config.cluster.clone());
    let context = Context::new(cluster, config.world.seed, Manners::default());
    let sim = &context.cluster.sim;
    let requests = sim.run_for(whole(&context, config), RUN_MAX);
    if requests.is_none() {
        context.complain("the run does not come to its end");
    }
    let evictions: u64 = (0..config.cluster.clients).map(|c| context.cluster.evictions(c)).sum();
    if evictions > 0 && config.faults.kill_interval_s == 0.0 && !config.faults.evict() {
        context.complain(format!("{evictions} evictions though nobody was away for long"));
    }
    context.cluster.end();
    let counts = context.counts.get();
    Report {
        complaints: context.complaints(),
        operations: counts.operations,
        checks: counts.checks,
        requests: requests.unwrap_or(0),
        virtual_ns: sim.now().0,
        hash: sim.hash().0,
    }
}

async fn whole(context: &Rc<Context>, config: &RunConfig) -> u64 {
    let world = match begin(context, config).await {
        Ok(world) => Rc::new(world),
        Err(e) => {
            context.complain(e);
            return 0;
        }
    };
    let disturbers = faults::begin(&world, &config.faults);
    let mut programs = Vec::new();
    match config.work {
        Work::Turns => turns::work(&world, config).await,
        Work::Cells => cells::work(&world, config).await,
        Work::Churn => programs = churn::work(&world, config).await,
        Work::Script(steps) => drop(steps(world.clone()).await),
    }
    context.ending.set(true);
    rt::sync::join_all(disturbers).await;
    if let Work::Churn = config.work
        && !context.failed()
    {
        churn::calm(&world, programs).await;
    }
    for (i, kernel) in world.kernels.iter().enumerate() {
        for fault in kernel.conn.faults() {
            context.complain(format!("kernel {i}: {fault}"));
        }
    }
    if !context.failed()
        && let Err(e) = end(&world).await
    {
        context.complain(e);
    }
    world.kernels.iter().map(|k| k.conn.requests()).sum()
}

async fn begin(context: &Rc<Context>, config: &RunConfig) -> Result<World, String> {
    let cluster = &context.cluster;
    cluster.format().await?;
    for id in cluster.nodes().map(|n| n.id).collect::<Vec<_>>() {
        cluster.start(id).await?;
    }
    let mut kernels = Vec::new();
    for i in 0..config.cluster.clients {
        kernels.push(mount(context, config, i).await?);
    }
    let callers = (0..config.cluster.clients * config.programs).map(|i| Caller::new(100 + i as u32)).collect();
    Ok(World { context: context.clone(), kernels, callers, hang: config.hang })
}

/// Boots a kernel and lets the client of its machine serve it.
async fn mount(context: &Rc<Context>, config: &RunConfig, index: usize) -> Result<Rc<Kernel>, String> {
    let cluster = &context.cluster;
    let client = cluster.client(index).ok_or("the client does not run")?;
    let machine = cluster.sim.host(&format!("kernel{index}")).boot();
    let seed = config.kernel.seed.rotate_left(8) ^ index as u64;
    let kernel = Kernel::boot(machine, KernelConfig { seed, ..config.kernel.clone() });
    let session = SessionConfig { max_read_bytes: config.max_read_bytes, ..config.session.clone() };
    if session.max_read_bytes > 0 {
        kernel.conn.max_read.set(session.max_read_bytes.into());
    }
    let started = kernel.start();
    let session = Session::start_on(kernel.pipe(), session).map_err(|e| e.to_string())?;
    let fs = StriaFs::new(client.clone(), &session, Squash::default(), config.caching, config.names);
    // Its callers are no processes of this machine.
    fs.judge_callers(|pid| Some(is_dying(pid)));
    fs.tell_calls(call_of);
    fs.tell_rights(|_| mount::Rights::default());
    let (rt, worker) = (client.rt().clone(), session.worker(Vec::new(), true));
    let own = rt.clone();
    rt.spawn(async move {
        if let Err(e) = worker.serve_in(own, fs).await {
            tracing::error!("serving a kernel: {e}");
        }
        drop(session);
    });
    started.await.map_err(|e| format!("kernel {index}: INIT: errno {e}"))?;
    Ok(kernel)
}

/// Clients leave, servers stop, and the stores must be sound.
async fn end(world: &Rc<World>) -> Result<(), String> {
    let cluster = &world.context.cluster;
    for i in 0..world.kernels.len() {
        world.kernels[i].conn.abort();
        cluster.stop(NodeId::Client(i)).await?;
    }
    cluster.sim.sleep(Duration::from_secs(60)).await;
    cluster.stop(NodeId::Mds).await?;
    for i in 0..cluster.ost_indices().len() {
        cluster.stop(NodeId::Oss(i)).await?;
    }
    sim::cluster::check::check_stores(&world.context, false).await;
    Ok(())
}
