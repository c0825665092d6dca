//! A client that reads call by call: its files, its page cache, its readahead and its windows of RPCs.
//!
//! Decides what of a call has to be fetched and when the program goes on. The rooms are the product's: pages and claims
//! and the window of RPCs (`datapath`), what is fetched ahead (`readahead`), who leaves the cache (`cache`). Who makes which
//! call is `calling`'s, what OSTs and networks do with an RPC the world's.
use super::calling::{Calling, Course, Wanted};
use super::calls::Calls;
use super::config::LightConfig;
use super::path::{Fetch, FilePath};
use crate::block_cache::Frames;
use cache::{Grain, PageAccess, block_id};
use datapath::{Rank, Ticket, Window};
use readahead::record::Call;
use readahead::{Budget, Facts, Plan};
use std::collections::BTreeMap;
use std::ops::Range;
use types::{Extent, Rng};

/// An RPC of a node.
#[derive(Clone, Copy)]
pub(super) struct Rpc {
    /// The object that it reads.
    pub flow: u32,
    /// Bytes of the object.
    pub extent: Extent,
    /// What the OST is told of the call.
    pub access: PageAccess,
    file: u32,
    fetch: Fetch,
    /// Bytes of the call.
    asked: u64,
    /// A reader receives it itself.
    by_reader: bool,
    ahead: bool,
}

/// RPCs that are to be sent or on their way, by number.
#[derive(Default)]
pub(super) struct Rpcs {
    all: Vec<Rpc>,
    free: Vec<u32>,
}

impl Rpcs {
    pub fn get(&self, rpc: u32) -> &Rpc {
        &self.all[rpc as usize]
    }
    fn add(&mut self, rpc: Rpc) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.all[at as usize] = rpc;
                at
            }
            None => {
                self.all.push(rpc);
                self.all.len() as u32 - 1
            }
        }
    }
    fn take(&mut self, rpc: u32) -> Rpc {
        self.free.push(rpc);
        self.all[rpc as usize]
    }
}

/// What a node works with, and where it leaves what is to be done.
pub(super) struct Hands<'a> {
    pub config: &'a LightConfig,
    pub calling: &'a Calling,
    pub rpcs: &'a mut Rpcs,
    pub calls: &'a mut Calls,
    /// RPCs to be sent, and when.
    pub sends: &'a mut Vec<(u32, u64)>,
}

/// See the module's head.
pub(super) struct Node {
    programs: Vec<Program>,
    files: Vec<FilePath>,
    frames: Option<Frames>,
    budget: Budget,
    plan: Plan,
    /// By OST.
    targets: BTreeMap<u32, Target>,
    /// Its first object, and the OST of each.
    first_flow: u32,
    osts: Vec<u32>,
    /// When each thread of the pool is free.
    pool_free: Vec<u64>,
    left: Vec<u64>,
    keeps: bool,
    stripe_bytes: u64,
}

/// RPCs of a node to one OST.
struct Target {
    window: Window,
    places: u32,
    waiting: BTreeMap<Ticket, u32>,
}

struct Program {
    course: Course,
    call: Option<Going>,
    /// Bytes that the reader has still to receive itself.
    receives: u64,
    bytes: u64,
    made: u64,
}

/// A call under way.
struct Going {
    /// Of the node's files.
    file: u32,
    read: Extent,
    grain: Option<Grain>,
    cursor: u64,
    begun: u64,
    waited: bool,
    /// It goes on when what it waits for has come.
    waiting: bool,
    /// Units that are on their way and that it waits for; disjoint.
    waits: Vec<Range<u64>>,
    /// Units that were fetched for it: it has them, whether they stay in the cache or not.
    own: Vec<Range<u64>>,
    missed: u32,
}

impl Going {
    /// Whether something is missing for the step that comes next: of what was fetched at the beginning its own part, else all.
    fn is_held_up(&self, c: &Calling) -> bool {
        if !c.fetches_whole {
            return !self.waits.is_empty();
        }
        let end = self.read.end.min(self.cursor.saturating_add(c.step_bytes));
        let (first, end) = (self.cursor / c.unit_bytes, end.div_ceil(c.unit_bytes));
        self.waits.iter().any(|run| run.start < end && first < run.end)
    }
}

impl Node {
    /// A client with these objects, `osts[i]` being the OST of object `first_flow + i`.
    pub fn new(config: &LightConfig, c: &Calling, client: u32, first_flow: u32, osts: Vec<u32>) -> Node {
        let target = || Target {
            window: Window::new(config.rpcs_in_flight as usize, 0),
            places: config.rpcs_in_flight,
            waiting: BTreeMap::new(),
        };
        let stripe_size = if config.stripe_count > 1 { config.transfer_bytes } else { 0 };
        let rpc_bytes = c.rpc_bytes.max(c.unit_bytes);
        let cuts = [rpc_bytes, if stripe_size > 0 { stripe_size } else { rpc_bytes }];
        let file = |file| {
            let facts = Facts { file_size: c.bytes_of(file), stripe_size, rpc_bytes, lock: Extent::ALL };
            FilePath::new(&c.policy, &c.readahead, facts, c.unit_bytes, cuts).expect("checked with the scenario")
        };
        let program = |program| {
            let number = u64::from(client) * u64::from(c.programs) + u64::from(program);
            let rng = Rng::named(config.seed.wrapping_add(number << 24), "accesses");
            Program { course: Course::new(rng), call: None, receives: 0, bytes: 0, made: 0 }
        };
        Node {
            programs: (0..c.programs).map(program).collect(),
            files: (0..c.files_per_client()).map(file).collect(),
            frames: config.client_cache.as_ref().map(|c| Frames::new(c).expect("checked with the scenario")),
            budget: Budget::new(c.readahead.budget_bytes_max),
            plan: Plan::default(),
            targets: osts.iter().map(|ost| (*ost, target())).collect(),
            first_flow,
            osts,
            pool_free: vec![0; c.cost.pool_threads.max(1) as usize],
            left: Vec::new(),
            keeps: c.keeps,
            stripe_bytes: config.transfer_bytes,
        }
    }

    /// Makes so many accesses of a mix from now on; counts from zero. What the cache holds stays.
    pub fn begin(&mut self, accesses: u32, measured: bool) {
        self.programs.iter_mut().for_each(|p| p.course.begin(accesses, measured));
        if let Some(frames) = &mut self.frames {
            frames.stats = cache::Stats::default();
        }
    }

    /// Look-ups of its cache.
    pub fn cache_stats(&self) -> cache::Stats {
        self.frames.as_ref().map(|f| f.stats).unwrap_or_default()
    }

    /// A program makes its next call, or goes on with a large one. When it goes on, unless it has to wait or is done.
    pub fn step(&mut self, now: u64, p: u32, hands: &mut Hands) -> Option<u64> {
        let c = hands.calling;
        let (mut t, program) = (now, &mut self.programs[p as usize]);
        let tell = match &program.call {
            Some(call) => Call::Progress(Extent::new(call.read.start, call.cursor)),
            None => {
                let Some(Wanted { file, extent, grain }) = program.course.next(c) else {
                    hands.calls.ended(program.bytes, now);
                    return None;
                };
                t += c.cost.call_ns;
                program.call = Some(Going {
                    file: p * c.files_per_program() + file,
                    read: extent,
                    grain,
                    cursor: extent.start,
                    begun: now,
                    waited: false,
                    waiting: false,
                    waits: Vec::new(),
                    own: Vec::new(),
                    missed: 0,
                });
                program.made += 1;
                Call::Read(extent)
            }
        };
        let call = program.call.as_mut()?;
        let (file, read) = (call.file, call.read);
        let step = Extent::new(call.cursor, read.end.min(call.cursor.saturating_add(c.step_bytes)));
        t = self.tell(t, (file, read), tell, hands);
        if c.fetches_whole {
            t = self.pass(t, p, (file, read), step, hands);
        } else {
            t = self.read_step(t, p, (file, read), step, hands);
        }
        let call = self.programs[p as usize].call.as_mut()?;
        call.waiting = call.is_held_up(c);
        call.waited |= call.waiting;
        if call.waiting { None } else { Some(self.hand_over(t, p, hands)) }
    }

    /// Looks a step of a call up, and fetches what is not here and what readahead wants along with it.
    fn read_step(&mut self, mut t: u64, p: u32, of: (u32, Extent), step: Extent, hands: &mut Hands) -> u64 {
        let missed = self.count(of, step);
        self.touch(p, of, step);
        if let Some(call) = &mut self.programs[p as usize].call {
            call.missed += missed;
        }
        let Some(wait) = self.files[of.0 as usize].wait(step) else { return t };
        self.wait_for(p, step);
        let mut plan = core::mem::take(&mut self.plan);
        self.files[of.0 as usize].tell(wait, &mut self.budget, &mut plan);
        t = self.fetch(t, of, step, (true, false), hands);
        for extent in &plan.sync {
            self.wait_for(p, *extent);
            t = self.fetch(t, of, *extent, (true, true), hands);
        }
        t = self.fetch_ahead(t, of, &plan, hands);
        self.plan = plan;
        t
    }

    /// Passes over a step of a call of which all was fetched at its beginning, but for what has left since.
    fn pass(&mut self, mut t: u64, p: u32, of: (u32, Extent), step: Extent, hands: &mut Hands) -> u64 {
        let (file, read) = of;
        if step.start == read.start {
            let missed = self.count(of, read);
            self.wait_for(p, read);
            if let Some(call) = &mut self.programs[p as usize].call {
                call.missed = missed;
                call.own = call.waits.clone();
            }
            t = self.fetch(t, of, read, (true, false), hands);
        }
        for unit in self.touch(p, of, step) {
            let unit = Extent::at(unit * hands.calling.unit_bytes, hands.calling.unit_bytes);
            self.wait_for(p, unit);
            t = self.fetch(t, (file, read), unit, (true, false), hands);
        }
        t
    }

    /// An RPC's bulk is in the client's memory and was handled. The program that waited for it, and when it goes on.
    pub fn on_rpc(&mut self, now: u64, id: u32, hands: &mut Hands) -> Option<(u32, u64)> {
        let rpc = hands.rpcs.take(id);
        let ost = self.osts[(rpc.flow - self.first_flow) as usize];
        let target = self.targets.get_mut(&ost).expect("an RPC's OST is one of the client's");
        target.window.on_end();
        self.admit(now, ost, hands);
        let p = rpc.file / hands.calling.files_per_program();
        for unit in rpc.fetch.units() {
            self.keep(p, &rpc, unit);
        }
        let program = &mut self.programs[p as usize];
        program.receives += if rpc.by_reader { rpc.fetch.extent.len() } else { 0 };
        let call = program.call.as_mut().filter(|call| call.file == rpc.file)?;
        remove(&mut call.waits, rpc.fetch.units());
        if !call.waiting || call.is_held_up(hands.calling) {
            return None;
        }
        call.waiting = false;
        Some((p, self.hand_over(now, p, hands)))
    }

    /// The OST of its first object.
    pub fn first_ost(&self) -> u32 {
        self.osts[0]
    }

    /// When bulk that comes at `at` has been handled.
    pub fn received(&mut self, at: u64, rpc: &Rpc, c: &Calling) -> u64 {
        let handling = (rpc.extent.len() as f64 * c.cost.receive_ns_per_byte) as u64;
        if rpc.by_reader || handling == 0 {
            return at;
        }
        let free = self.pool_free.iter_mut().min().expect("a pool has a thread");
        *free = (*free).max(at) + handling;
        *free
    }

    /// An OST lets the client have so many RPCs in flight.
    pub fn on_credits(&mut self, ost: u32, places: u32) {
        let target = self.targets.get_mut(&ost).expect("a reply's OST is one of the client's");
        target.window.on_resized(places as isize - target.places as isize);
        target.places = places;
    }

    fn tell(&mut self, t: u64, of: (u32, Extent), call: Call, hands: &mut Hands) -> u64 {
        let mut plan = core::mem::take(&mut self.plan);
        self.files[of.0 as usize].tell(call, &mut self.budget, &mut plan);
        let t = self.fetch_ahead(t, of, &plan, hands);
        self.plan = plan;
        t
    }

    fn fetch_ahead(&mut self, mut t: u64, of: (u32, Extent), plan: &Plan, hands: &mut Hands) -> u64 {
        for extent in &plan.asynchronous {
            t = self.fetch(t, of, *extent, (plan.issued_by_reader, true), hands);
        }
        t
    }

    /// Sends RPCs for what of `extent` is absent, for a call. When the reader goes on.
    fn fetch(
        &mut self,
        mut t: u64,
        (file, read): (u32, Extent),
        extent: Extent,
        (by_reader, ahead): (bool, bool),
        hands: &mut Hands,
    ) -> u64 {
        let issue_ns = hands.calling.cost.issue_ns;
        for fetch in self.files[file as usize].claim(extent) {
            let (stripes, stripe_bytes) = (u64::from(hands.config.stripe_count), hands.config.transfer_bytes);
            let at = fetch.extent.start;
            let (stripe, start) = match stripes {
                1 => (0, at),
                _ => {
                    let n = at / stripe_bytes;
                    (n % stripes, n / stripes * stripe_bytes + at % stripe_bytes)
                }
            };
            let flow = self.first_flow + file * hands.config.stripe_count + stripe as u32;
            let access = PageAccess::of_request(0, read.len().max(fetch.extent.len()), stripe_bytes);
            let access = if ahead { access.ahead() } else { access };
            let extent = Extent::at(start, fetch.extent.len());
            let rpc = hands.rpcs.add(Rpc { flow, extent, access, file, fetch, asked: read.len(), by_reader, ahead });
            // A pool thread issues beside the reader, which only queues the work.
            t += if by_reader { issue_ns } else { issue_ns / 10 };
            self.send(if by_reader { t } else { t + issue_ns }, flow, rpc, hands);
            hands.calls.rpcs += 1;
            hands.calls.fetched += fetch.extent.len();
        }
        t
    }

    fn send(&mut self, at: u64, flow: u32, rpc: u32, hands: &mut Hands) {
        let ost = self.osts[(flow - self.first_flow) as usize];
        let target = self.targets.get_mut(&ost).expect("an object's OST is one of the client's");
        if target.window.on_try() {
            hands.sends.push((rpc, at));
        } else {
            // What a program waits for goes before what is asked for ahead.
            let rank = if hands.rpcs.get(rpc).ahead { Rank::Ordinary } else { Rank::Ahead };
            target.waiting.insert(target.window.on_ask(rank, 0), rpc);
        }
    }

    fn admit(&mut self, now: u64, ost: u32, hands: &mut Hands) {
        let target = self.targets.get_mut(&ost).expect("an RPC's OST is one of the client's");
        while let Some((ticket, _)) = target.window.next_admitted() {
            let rpc = target.waiting.remove(&ticket).expect("who is admitted had asked");
            hands.sends.push((rpc, now));
        }
    }

    /// Counts which units of an extent are here for a call; how many are not.
    fn count(&mut self, (file, read): (u32, Extent), extent: Extent) -> u32 {
        let path = &self.files[file as usize];
        let units = path.units_of(extent);
        let all = units.end.saturating_sub(units.start);
        let found = units.filter(|unit| path.is_here(*unit)).count() as u64;
        if let Some(frames) = &mut self.frames {
            frames.stats.count_many(&PageAccess::of_request(0, read.len(), self.stripe_bytes), all, found);
        }
        (all - found) as u32
    }

    /// A call uses the units of a step that were not fetched for it. Those that are not here.
    fn touch(&mut self, p: u32, (file, read): (u32, Extent), step: Extent) -> Vec<u64> {
        let own = self.programs[p as usize].call.as_ref().map_or(&[][..], |call| &call.own);
        let path = &mut self.files[file as usize];
        let access = PageAccess::of_request(0, read.len(), self.stripe_bytes);
        let mut gone = Vec::new();
        for unit in path.units_of(step).filter(|unit| !own.iter().any(|run| run.contains(unit))) {
            match (path.used(unit), &mut self.frames) {
                (Some(Some(frame)), Some(frames)) => {
                    frames.touch(frame, PageAccess { block: block_id(u64::from(file), unit), ..access });
                }
                (Some(_), _) => {}
                (None, _) => gone.push(unit),
            }
        }
        gone
    }

    /// The program's call goes on when all of `extent` that is not here has come.
    fn wait_for(&mut self, p: u32, extent: Extent) {
        let Some(call) = &mut self.programs[p as usize].call else { return };
        let path = &self.files[call.file as usize];
        for unit in path.units_of(extent) {
            if path.is_here(unit) || call.waits.iter().any(|run| run.contains(&unit)) {
                continue;
            }
            match call.waits.last_mut() {
                Some(run) if run.end == unit => run.end += 1,
                _ => call.waits.push(unit..unit + 1),
            }
        }
    }

    /// The cache takes a unit in. What leaves for it must be fetched again, and is lost to readahead if nobody had read it;
    /// what a call waits for is its own once it came.
    fn keep(&mut self, p: u32, rpc: &Rpc, unit: u64) {
        let path = &mut self.files[rpc.file as usize];
        if !path.arrived(&rpc.fetch, unit) {
            return;
        }
        let call = self.programs[p as usize].call.as_ref().filter(|call| call.file == rpc.file);
        let asked = call.is_some_and(|call| call.waits.iter().any(|run| run.contains(&unit)));
        let ahead = rpc.ahead && !asked;
        let Some(frames) = &mut self.frames else {
            if self.keeps {
                path.keep(unit, None, ahead);
            }
            return;
        };
        let access = PageAccess::of_request(block_id(u64::from(rpc.file), unit), rpc.asked, self.stripe_bytes);
        let access = if ahead { access.ahead() } else { access };
        let owner = u64::from(rpc.file) << 40 | unit;
        if let Some(frame) = frames.insert(owner, access, &mut |owner| self.left.push(owner)) {
            path.keep(unit, Some(frame), ahead);
        }
        for owner in self.left.drain(..) {
            let path = &mut self.files[(owner >> 40) as usize];
            if let Some(unused) = path.left(owner & ((1 << 40) - 1)) {
                path.tell(Call::Reclaimed(unused), &mut self.budget, &mut self.plan);
            }
        }
    }

    /// Everything of the step is here at `t`: it is copied to the program, which goes on then.
    fn hand_over(&mut self, t: u64, p: u32, hands: &mut Hands) -> u64 {
        let c = hands.calling;
        let program = &mut self.programs[p as usize];
        let half = usize::from(program.bytes * 2 > c.file_bytes);
        let call = program.call.as_mut().expect("a step belongs to a call");
        let end = call.read.end.min(call.cursor.saturating_add(c.step_bytes));
        let bytes = end - call.cursor;
        // What the reader fetched for itself, ahead or not, it also receives in its own time.
        let receiving = core::mem::take(&mut program.receives) as f64 * c.cost.receive_ns_per_byte;
        let copied = (bytes as f64 * c.cost.copy_ns_per_byte) as u64;
        let t = t + receiving as u64 + copied;
        call.cursor = end;
        program.bytes += bytes;
        if end == call.read.end {
            if let Some(frames) = self.frames.as_mut().filter(|_| call.missed > 0) {
                let access = PageAccess::of_request(0, call.read.len(), self.stripe_bytes);
                frames.on_fetched(&access, call.missed, t - call.begun);
            }
            // The first tenth of a file is warm-up.
            let skip = if let super::Order::Stride(skip) = c.order { skip } else { 0 };
            let is_warm = program.made * 10 * (c.io_bytes + skip) > c.file_bytes;
            hands.calls.record(call.grain, call.read.len(), (t - call.begun, t), (call.waited, is_warm, half));
            program.call = None;
        }
        t
    }
}

/// Takes `gone` out of disjoint runs.
fn remove(runs: &mut Vec<Range<u64>>, gone: Range<u64>) {
    if runs.iter().all(|run| gone.start <= run.start && run.end <= gone.end) {
        return runs.clear();
    }
    let cut = |run: Range<u64>| [run.start..run.end.min(gone.start), run.start.max(gone.end)..run.end];
    *runs = runs.drain(..).flat_map(cut).filter(|run| !run.is_empty()).collect();
}
