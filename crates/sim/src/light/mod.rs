//! The light world: clients that are a workload and an RPC window, in front of full OST pipelines. 100,000 and more. Where it
//! is asked for, clients are nodes whose programs read call by call: through the rooms of the real client's path to data
//! (`datapath`), of its readahead and of its page cache; and OSTs keep a cache before their disks.
//!
//! The worlds `cache` (paper 000) and `readahead` (paper 003) are settings of this one.
//!
//! Three events per write RPC (arrival, submission, disk completion) and a fourth for a read (bulk out); replies and
//! the next send are folded into the completion, since nothing can observe them in between. Flows that share no OST
//! and no client do not influence each other, so they run one after the other, each in a world that fits the processor
//! caches (`engine.partition`); otherwise all OSTs go on together, each a window of virtual time at a time (`lanes`). The
//! history of every OST, and so the state hash, is the same as in one big queue, which is left for OSTs that share their
//! clients' NICs.
mod calling;
mod calls;
mod config;
mod flow;
mod lanes;
mod node;
mod ost;
mod params;
mod path;
mod program;
mod run;
mod service;
mod settings;
mod stats;
mod tiers;
mod world;

pub use calling::{Calling, Cost, Mix, Order};
pub use calls::Calls;
pub use config::{Credits, Down, LightConfig, Operation, Placement, Urgent};
pub(crate) use params::{device_from, elevator_from};
pub use run::{LightOutcome, Progress, run};
pub use stats::Stats;
pub use tiers::{TierStats, Tiering};

pub use settings::{cache_world, readahead_metrics, readahead_world};
