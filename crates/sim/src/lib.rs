//! The simulated world: the same policy objects and the same OST pipeline as on the real servers, in virtual time.
//!
//! Two fidelities. *Light* (here): a client is a workload and an RPC window, an OST is scheduler head, dispatch window,
//! allocator, elevator and disk; a million clients run on one core. *Full*: real nodes over the `rt` facade on the same
//! [`engine`]. Deliberately not here: policies (rooms), the real I/O path (nodes).
//!
//! Code map: [`engine`] (events) · the crate `devices` (disks, elevators, allocators) · [`light`] (100,000
//! clients; the worlds of papers 000 and 003 are settings of it) · `createworld` `survey` · [`scenario`] [`experiment`]
//! [`metrics`] [`recorded`] [`claims`] [`report`] [`plot`] (what to run, what it gave, how it looks) · [`worst`] (the workload that hurts a policy) · [`replay`] (recorded requests under other settings) · [`cluster`] (whole clusters of real nodes
//! under faults) · [`cli`] (`stria sim`).
mod block_cache;
pub mod claims;
pub mod cli;
pub mod cluster;
pub mod createworld;
pub mod engine;
pub mod experiment;
pub mod light;
pub mod metrics;
pub mod plot;
pub mod recorded;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod survey;
pub mod worst;
