//! What `tbf` keeps of queued requests: lists in the order of arrival, linked through a table by request id.
//!
//! All that is known of a request is one cache line, so that whoever fetched it has it.
use crate::{IoOp, JobId, NrsRequest, REQUEST_ID_LIMIT, chain::NIL, prefetch::prefetch};
use alloc::vec::Vec;
use types::{ClientId, RequestId};

/// In `list` of an id that is not queued, ..
const FREE: u32 = NIL;
/// .. and of one that is in no list yet.
const NOWHERE: u32 = NIL - 1;

/// A request, its neighbours, and what rules are about.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Link {
    /// Whose list it is in.
    list: u32,
    /// The request before it; means nothing in the first one of a list.
    prev: u32,
    /// The request behind it, or [`NIL`].
    next: u32,
    bytes: u32,
    /// Counts arrivals.
    seq: u64,
    client: ClientId,
    job: JobId,
    uid: u32,
    op: IoOp,
}

const EMPTY: Link = Link {
    list: FREE,
    prev: NIL,
    next: NIL,
    bytes: 0,
    seq: 0,
    client: ClientId(0),
    job: JobId(0),
    uid: 0,
    op: IoOp::Read,
};

/// The table; see the module. The ends of a list are its owner's.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: Vec<Link>,
    queued: usize,
    seq: u64,
}

impl Links {
    pub(crate) fn len(&self) -> usize {
        self.queued
    }
    /// Whose list `id` is in, if it is queued.
    pub(crate) fn list(&self, id: RequestId) -> Option<u32> {
        self.links.get(id.0 as usize).map(|link| link.list).filter(|list| *list != FREE)
    }
    /// The request behind `id`, which is in a list, or [`NIL`].
    pub(crate) fn next(&self, id: u32) -> u32 {
        self.links[id as usize].next
    }
    /// Takes a request in, the last to arrive, without a list.
    ///
    /// # Panics
    /// When its id is queued already, or not below the limit.
    pub(crate) fn insert(&mut self, req: &NrsRequest) {
        let id = req.id;
        assert!(id.0 < REQUEST_ID_LIMIT, "request ids are slab keys below {REQUEST_ID_LIMIT}, got {}", id.0);
        let index = id.0 as usize;
        if index >= self.links.len() {
            self.links.resize(index + 1, EMPTY);
        }
        let link = &mut self.links[index];
        assert!(link.list == FREE, "request {id} is queued twice");
        let NrsRequest { bytes, client, job, uid, op, .. } = *req;
        *link = Link { list: NOWHERE, bytes, seq: self.seq, client, job, uid, op, ..EMPTY };
        self.seq += 1;
        self.queued += 1;
    }
    /// Hangs `id` behind `tail`, the last one of `list`; [`NIL`] if that is empty.
    pub(crate) fn append(&mut self, id: u32, list: u32, tail: u32) {
        let link = &mut self.links[id as usize];
        (link.list, link.prev, link.next) = (list, tail, NIL);
        if tail != NIL {
            self.links[tail as usize].next = id;
        }
    }
    /// Takes the first request of a list out; answers the one behind it, or [`NIL`], and its bytes.
    pub(crate) fn remove_first(&mut self, id: u32) -> (u32, u32) {
        self.queued -= 1;
        let link = &mut self.links[id as usize];
        link.list = FREE;
        (link.next, link.bytes)
    }
    /// Takes a request out that is not the first of its list; answers the one before it, and the one behind it or
    /// [`NIL`].
    pub(crate) fn remove_later(&mut self, id: u32) -> (u32, u32) {
        let (next, _) = self.remove_first(id);
        let prev = self.links[id as usize].prev;
        self.links[prev as usize].next = next;
        if next != NIL {
            self.links[next as usize].prev = prev;
        }
        (prev, next)
    }
    /// Fetches what is known of `id` for a use that is near.
    pub(crate) fn prefetch(&self, id: u32) {
        if let Some(link) = self.links.get(id as usize) {
            prefetch(link);
        }
    }
    /// All ids in the order of arrival.
    pub(crate) fn in_order(&self) -> Vec<RequestId> {
        let queued = self.links.iter().zip(0u32..).filter(|(link, _)| link.list != FREE);
        let mut order: Vec<(u64, u32)> = queued.map(|(link, id)| (link.seq, id)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, id)| RequestId(id)).collect()
    }
    /// The request of `id`, which is queued, as rules see it.
    pub(crate) fn request(&self, id: RequestId) -> NrsRequest {
        let Link { bytes, client, job, uid, op, .. } = self.links[id.0 as usize];
        NrsRequest { id, bytes, client, job, uid, op, ..NrsRequest::default() }
    }
}
