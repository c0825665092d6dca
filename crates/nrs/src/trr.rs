//! Target round robin: the OSTs behind one head take turns of up to 256 requests, sorted by object and offset.
//!
//! Pays where several OSTs share one head; with a head per OST it is one round of 256 requests after another. An object
//! names its OST by the sequence of its id.
//!
//! Source: Lustre's `trr`, by its manual. Differs: within a turn one object's requests stay together.
use crate::{
    NrsRequest,
    rounds::{Rounds, Shape, rounds_policy},
};
use types::ObjectId;

/// Requests of a turn, unless configured.
pub(crate) const QUANTUM: u32 = 256;

/// Targets, by object and offset within one.
#[derive(Debug)]
pub(crate) enum ByTarget {}

impl Shape for ByTarget {
    type Taker = u64;
    type Order = (ObjectId, u64);
    const QUANTUM: u32 = QUANTUM;
    fn taker(req: &NrsRequest) -> u64 {
        req.object.0.seq
    }
    fn order(req: &NrsRequest, _seq: u64) -> (ObjectId, u64) {
        (req.object, req.extent.start)
    }
}

/// Target round robin; see the module.
pub(crate) struct Trr(Rounds<ByTarget>);
rounds_policy!(Trr, ByTarget);
