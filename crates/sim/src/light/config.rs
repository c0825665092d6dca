//! Everything a light world is built from, in plain units. Filled from a scenario's parameters; no defaults here but
//! paper 001's case in [`LightConfig::paper001`].
use super::calling::Calling;
use super::tiers::Tiering;
use crate::block_cache::CacheSettings;
use devices::{AllocKind, DeviceProfile, ElevatorConfig};
use nrs::NrsConfig;
use types::Extent;

/// What the measured phase does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Writes new files.
    Write,
    /// Nothing but what OSTs fetch because of advice.
    Advise,
    /// Reads what the same policy wrote in an unmeasured phase before, or what lies there ([`Calling::laid_out`]).
    Read,
}

/// Which OST a client's first stripe lies on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Neighbouring clients share an OST.
    Block,
    /// Client `i` starts on OST `i mod n`.
    RoundRobin,
    /// Uniform, seeded: what an unbalanced allocator does.
    Random,
}

/// How many RPCs a client may have in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Credits {
    /// Always the client's own limit.
    Constant,
    /// The OST grants so many that about this many requests are queued in all.
    Target(u32),
}

/// Clients whose requests carry a mandatory deadline: each writes, waits for the reply, pauses, and repeats.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Urgent {
    /// How many.
    pub clients: u32,
    /// Maximum service time.
    pub max_service_ns: u64,
    /// Pause between reply and next request.
    pub think_ns: u64,
    /// Client `i` starts after `i mod stagger` seconds.
    pub stagger_s: u32,
    /// Sends nothing from this time on.
    pub until_ns: u64,
}

/// An OST that is away from `from_ns` to `to_ns`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Down {
    /// Which.
    pub ost: u32,
    /// Stops answering, forgets what it had not answered.
    pub from_ns: u64,
    /// Answers again.
    pub to_ns: u64,
}

/// A light world.
#[derive(Clone, PartialEq, Debug)]
pub struct LightConfig {
    /// Of every random stream.
    pub seed: u64,
    /// Clients that do bulk I/O.
    pub clients: u32,
    /// OSTs.
    pub ost_count: u32,
    /// OSTs of one OSS, which share its NIC and the buckets of throttling policies; divides `ost_count`.
    pub osts_per_oss: u32,
    /// OSTs per file.
    pub stripe_count: u32,
    /// Bytes per client.
    pub file_bytes: u64,
    /// Bytes per RPC where programs do not read call by call, also the stripe size.
    pub transfer_bytes: u64,
    /// Write or read.
    pub operation: Operation,
    /// RPCs in flight per client and OST.
    pub rpcs_in_flight: u32,
    /// Programs read call by call; `None`: a window over the records, in order.
    pub calling: Option<Calling>,
    /// The page cache of every client whose programs read call by call; `None`: everything stays that they have read.
    pub client_cache: Option<CacheSettings>,
    /// The cache of every OST.
    pub ost_cache: Option<CacheSettings>,
    /// Advice, and the fast tier of every OST.
    pub tiering: Option<Tiering>,
    /// What an OST's cache holds whole is answered before the queue.
    pub cache_first: bool,
    /// Bytes of a block of the caches.
    pub block_bytes: u64,
    /// Grants.
    pub credits: Credits,
    /// Client `i` starts at `i` times this.
    pub start_skew_ns: u64,
    /// Plus a uniform part of this.
    pub start_spread_ns: u64,
    /// Bytes per second at which an application fills (or consumes) its records; 0: at once.
    pub produce_rate: f64,
    /// Where files lie.
    pub placement: Placement,
    /// Clients with deadlines.
    pub urgent: Option<Urgent>,
    /// NRS policy by name.
    pub nrs_policy: String,
    /// Its configuration.
    pub nrs: NrsConfig,
    /// Requests handed to the store at a time.
    pub dispatch_window: u32,
    /// CPU and allocation per request, uniform between both.
    pub allocation_ns: (u64, u64),
    /// One-way message latency.
    pub latency_ns: u64,
    /// Of every NIC, each direction.
    pub nic_rate: f64,
    /// Transfers through one NIC queue for it. `false`: each takes its own time at full rate, as in the calibrated
    /// model of paper 001, where the network is never the bottleneck.
    pub nic_queue: bool,
    /// Bytes per second that the switch carries in each direction, of all transfers together; 0: as many as come.
    pub switch_rate: f64,
    /// A request or a reply is lost with this probability.
    pub loss: f64,
    /// A client sends again after this long without a reply.
    pub resend_ns: u64,
    /// The medium.
    pub disk: DeviceProfile,
    /// The elevator.
    pub elevator: ElevatorConfig,
    /// The allocator.
    pub alloc: AllocKind,
    /// Outages.
    pub down: Vec<Down>,
    /// Record curves over virtual time.
    pub timeline: bool,
    /// Run what does not interact one after the other.
    pub partition: bool,
    /// Keep what happened to every request ([`trace::Record`]), of the phases before the measured one, too.
    pub trace: bool,
}

impl LightConfig {
    /// Whether OSSs have something in common: a switch that is narrow, or clients whose NICs or programs make their files'
    /// stripes wait for each other.
    #[must_use]
    pub fn shares_network(&self) -> bool {
        self.switch_rate > 0.0 || (self.nic_queue || self.calling.is_some()) && self.stripe_count > 1
    }
    /// Files of each client.
    #[must_use]
    pub fn files_per_client(&self) -> u32 {
        self.calling.as_ref().map_or(1, Calling::files_per_client)
    }
    /// Bytes of its object that a record is.
    #[inline]
    #[must_use]
    pub fn record(&self, record: u32) -> Extent {
        Extent::at(u64::from(record) * self.transfer_bytes, self.transfer_bytes)
    }
    /// Nanoseconds that a transfer keeps a NIC.
    #[must_use]
    pub fn nic_ns(&self) -> u64 {
        (self.transfer_bytes as f64 * (1e9 / self.nic_rate)) as u64
    }
    /// Nanoseconds that a transfer keeps the switch.
    #[must_use]
    pub fn switch_ns(&self) -> u64 {
        if self.switch_rate > 0.0 { (self.transfer_bytes as f64 * 1e9 / self.switch_rate) as u64 } else { 0 }
    }
    /// Requests of one flow (a client's file on one OST).
    #[must_use]
    pub fn rpcs_per_flow(&self, stripe: u32) -> u32 {
        let total = self.file_bytes.div_ceil(self.transfer_bytes);
        let c = u64::from(self.stripe_count);
        (total / c + u64::from(u64::from(stripe) < total % c)) as u32
    }
}

#[cfg(test)]
impl LightConfig {
    /// Paper 001's common case, scaled to `clients` and `ost_count`.
    #[must_use]
    pub fn paper001(clients: u32, ost_count: u32) -> LightConfig {
        LightConfig {
            seed: 1,
            clients,
            ost_count,
            osts_per_oss: 1,
            stripe_count: 1,
            file_bytes: 32 << 20,
            transfer_bytes: 1 << 20,
            operation: Operation::Write,
            rpcs_in_flight: 8,
            calling: None,
            client_cache: None,
            ost_cache: None,
            tiering: None,
            cache_first: false,
            block_bytes: 64 << 10,
            credits: Credits::Constant,
            start_skew_ns: 5_000,
            start_spread_ns: 0,
            produce_rate: 1e9,
            placement: Placement::Block,
            urgent: None,
            nrs_policy: "fifo".into(),
            nrs: NrsConfig::default(),
            dispatch_window: 16,
            allocation_ns: (40_000, 200_000),
            latency_ns: 26_000,
            nic_rate: 1e9,
            nic_queue: false,
            switch_rate: 0.0,
            loss: 0.0,
            resend_ns: 1_000_000_000,
            disk: DeviceProfile::named("paper001").expect("a profile of the table"),
            elevator: ElevatorConfig::default(),
            alloc: AllocKind::Mballoc,
            down: Vec::new(),
            timeline: false,
            partition: true,
            trace: false,
        }
    }
}
