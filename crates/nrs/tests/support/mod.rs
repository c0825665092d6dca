//! A small counter for tests: hands out ids, remembers requests, and says in short what was served.
#![allow(dead_code, reason = "every test binary uses its part")]
use nrs::{IoOp, JobId, NrsConfig, NrsPolicy, NrsRequest, build};
use std::collections::HashMap;
use types::{ClientId, Duration, Extent, Instant, MIB, ObjectId, OstIndex, RequestId};

/// A configuration with some values set.
pub fn config(values: &[(&str, &str)]) -> NrsConfig {
    let mut config = NrsConfig::default();
    values.iter().for_each(|(key, value)| config.set(key, value).expect("the value is right"));
    config
}

/// A policy with some values set.
pub fn policy(name: &str, values: &[(&str, &str)]) -> Box<dyn NrsPolicy> {
    build(name, &config(values)).expect("the name is known")
}

/// `bytes` bytes of `object` at `offset`; the object's number is also its client, user and job.
pub fn request(id: u32, object: u32, offset: u64, bytes: u32, op: IoOp, arrived: Instant) -> NrsRequest {
    NrsRequest {
        id: RequestId(id),
        bytes,
        client: ClientId(u64::from(object)),
        object: ObjectId::new(OstIndex(0), object + 1),
        extent: Extent::at(offset, u64::from(bytes)),
        uid: object,
        op,
        job: JobId(u64::from(object)),
        arrived,
        max_service: None,
    }
}

/// A policy, a clock that the test moves, and the requests in it.
pub struct Desk {
    pub policy: Box<dyn NrsPolicy>,
    pub now: Instant,
    pub requests: HashMap<RequestId, (u32, NrsRequest)>,
    next: u32,
}

impl Desk {
    pub fn new(policy: Box<dyn NrsPolicy>) -> Desk {
        Desk { policy, now: Instant::ZERO, requests: HashMap::new(), next: 0 }
    }
    pub fn send(&mut self, object: u32, offset: u64, bytes: u32, op: IoOp) -> RequestId {
        let req = request(self.next, object, offset, bytes, op, self.now);
        self.put(object, req)
    }
    pub fn send_urgent(&mut self, object: u32, offset: u64, bytes: u32, within: Duration) -> RequestId {
        let req = request(self.next, object, offset, bytes, IoOp::Write, self.now);
        self.put(object, NrsRequest { max_service: Some(within), ..req })
    }
    pub fn put(&mut self, object: u32, req: NrsRequest) -> RequestId {
        self.next += 1;
        self.requests.insert(req.id, (object, req));
        self.policy.enqueue(self.now, &req);
        req.id
    }
    /// What is served now: object, offset in MiB, operation.
    pub fn serve(&mut self) -> Option<(u32, u64, IoOp)> {
        let id = self.policy.dequeue(self.now)?;
        let (object, req) = self.requests[&id];
        Some((object, req.extent.start / MIB, req.op))
    }
    pub fn serve_all(&mut self) -> Vec<(u32, u64, IoOp)> {
        std::iter::from_fn(|| self.serve()).collect()
    }
    pub fn object_of(&self, id: RequestId) -> u32 {
        self.requests[&id].0
    }
    pub fn bytes_of(&self, id: RequestId) -> u32 {
        self.requests[&id].1.bytes
    }
}
