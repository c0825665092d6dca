//! Object round robin as Lustre has it: objects take turns of up to 256 requests, offset-sorted within a turn.
//!
//! What tells it from `obrr`: a request is bound to its object's round when it is enqueued, so a round takes in requests
//! until it is served; there is no position to continue from, reads and writes share one order, and an object is not
//! re-queued at the tail but has its place in every round.
//!
//! Source: Lustre's `orr`, by its manual. Differs: reads and writes are both ordered (Lustre: a parameter, reads only by
//! default); only logical offsets.
use crate::{
    NrsRequest,
    rounds::{Rounds, Shape, rounds_policy},
};
use types::ObjectId;

/// Requests of a turn, unless configured.
pub(crate) const QUANTUM: u32 = 256;

/// Objects, by offset within one.
#[derive(Debug)]
pub(crate) enum ByObject {}

impl Shape for ByObject {
    type Taker = ObjectId;
    type Order = u64;
    const QUANTUM: u32 = QUANTUM;
    fn taker(req: &NrsRequest) -> ObjectId {
        req.object
    }
    fn order(req: &NrsRequest, _seq: u64) -> u64 {
        req.extent.start
    }
}

/// Object round robin; see the module.
pub(crate) struct Orr(Rounds<ByObject>);
rounds_policy!(Orr, ByObject);
