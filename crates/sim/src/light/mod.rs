//! The light world: clients that are a workload and an RPC window, in front of full OST pipelines. 100,000 and more. Where it
//! is asked for, programs read call by call through the readahead room and a page cache, and OSTs keep a cache before
//! their disks.
//!
//! Three events per write RPC (arrival, submission, disk completion) and a fourth for a read (bulk out); replies and
//! the next send are folded into the completion, since nothing can observe them in between. Flows that share no OST
//! and no client do not influence each other, so they run one after the other, each in a world that fits the processor
//! caches (`engine.partition`); otherwise all OSTs go on together, each a window of virtual time at a time (`lanes`). The
//! history of every OST, and so the state hash, is the same as in one big queue, which is left for OSTs that share their
//! clients' NICs.
mod config;
mod flow;
mod lanes;
mod mixed;
mod ost;
mod params;
mod program;
mod reader;
mod run;
mod stats;
mod world;

pub use config::{Credits, Down, LightConfig, Mix, Operation, Placement, Urgent};
pub(crate) use params::{device_from, elevator_from};
pub use program::Calls;
pub use reader::{ReadStats, Reading};
pub use run::{LightOutcome, Progress, run};
pub use stats::Stats;
