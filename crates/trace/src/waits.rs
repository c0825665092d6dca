//! Locks that clients wait for: each is a record once the wait is over, however it ends.
//!
//! A client asks for a lock, is told to wait and hears of it later: what happened to the request is known when neither the
//! request nor its task is there any more. Cost: one entry for each lock that is waited for, nothing for others.
use crate::{Flags, Record, micros};
use std::collections::BTreeMap;
use types::{ClientId, Instant};

/// Requests for locks that wait, by client and the client's name for the lock.
#[derive(Debug, Default)]
pub struct Waits(BTreeMap<(ClientId, u64), Record>);

impl Waits {
    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The request that `record` tells of waits from its arrival on; one that is asked again waits on.
    pub fn begin(&mut self, cookie: u64, record: Record) {
        self.0.entry((record.client, cookie)).or_insert(record);
    }

    /// The lock was granted, or refused with `errno`: what is to be kept of the request.
    pub fn end(&mut self, client: ClientId, cookie: u64, errno: u16, now: Instant) -> Option<Record> {
        let record = self.0.remove(&(client, cookie))?;
        Some(Record { errno, ..over(record, now) })
    }

    /// Of a client's requests those that wait no more, as `waits` says: they were withdrawn, or their client is gone.
    pub fn withdrawn(&mut self, client: ClientId, now: Instant, waits: impl Fn(u64) -> bool) -> Vec<Record> {
        let own = self.0.range((client, 0)..=(client, u64::MAX)).map(|((_, cookie), _)| *cookie);
        let gone: Vec<u64> = own.filter(|cookie| !waits(*cookie)).collect();
        let records = gone.into_iter().filter_map(|cookie| self.0.remove(&(client, cookie)));
        records.map(|r| over(Record { flags: r.flags.with(Flags::CANCELLED), ..r }, now)).collect()
    }
}

fn over(record: Record, now: Instant) -> Record {
    let finished = now.max(record.arrived);
    Record { dispatched: record.arrived, finished, locked_us: micros(finished.since(record.arrived)), ..record }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Came;
    use types::Xid;
    use wire::Op;

    #[test]
    fn a_wait_is_a_record_when_it_is_over_and_only_once() {
        let asked = |client: u64, us: u64| {
            let came = Came { xid: Xid(us), at: Instant(us * 1000), ..Came::default() };
            Record { client: ClientId(client), ..Record::unscheduled(Op::LockEnqueue, &came, came.at) }
        };
        let mut waits = Waits::default();
        waits.begin(5, asked(1, 10));
        waits.begin(5, asked(1, 20));
        waits.begin(6, asked(1, 30));
        waits.begin(5, asked(2, 40));
        let end = waits.end(ClientId(1), 5, 0, Instant(50_000)).expect("it waited");
        assert_eq!((end.xid, end.locked_us, end.response().as_micros(), end.errno), (Xid(10), 40, 40, 0));
        assert_eq!(waits.end(ClientId(1), 5, 0, Instant(60_000)), None);
        assert!(waits.withdrawn(ClientId(1), Instant(70_000), |_| true).is_empty());
        let gone = waits.withdrawn(ClientId(1), Instant(70_000), |cookie| cookie != 6);
        assert_eq!((gone.len(), gone[0].locked_us), (1, 40));
        assert!(gone[0].flags.has(Flags::CANCELLED) && !waits.is_empty());
        assert_eq!(waits.end(ClientId(2), 5, 4, Instant(41_000)).map(|r| r.errno), Some(4));
        assert!(waits.is_empty());
    }
}
