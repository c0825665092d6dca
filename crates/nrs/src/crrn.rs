//! Client round robin over NIDs: every client gets a quantum of requests per round, its own in the order of arrival.
//!
//! Fair between clients, blind to objects and offsets. Source: Lustre's `crrn`, by its manual.
use crate::{
    NrsRequest,
    rounds::{Rounds, Shape, rounds_policy},
};
use types::ClientId;

/// Requests of a turn, unless configured.
pub(crate) const QUANTUM: u32 = 16;

/// Clients, first come first served within one.
#[derive(Debug)]
pub(crate) enum ByClient {}

impl Shape for ByClient {
    type Taker = ClientId;
    type Order = u64;
    const QUANTUM: u32 = QUANTUM;
    fn taker(req: &NrsRequest) -> ClientId {
        req.client
    }
    fn order(_req: &NrsRequest, seq: u64) -> u64 {
        seq
    }
}

/// Client round robin; see the module.
pub(crate) struct Crrn(Rounds<ByClient>);
rounds_policy!(Crrn, ByClient);
