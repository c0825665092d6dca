//! Where the time of a request went: how it splits into stages, and what the store was given while the request was queued.
//!
//! What a target keeps is measured on the target's clock, what a client keeps on its own: only lengths of time are compared,
//! never moments. What the client waited for an answer beyond the time that the target had the request is the network's, and
//! that of the tasks at both ends.
use crate::{Flags, Record};
use std::collections::{BTreeMap, HashMap};
use types::{ClientId, ObjectId};

/// Where a request spends time, in the order in which it comes there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// At its client, for one of the slots that the target grants.
    ClientQueue,
    /// Between client and target, there and back.
    Network,
    /// At the target, before it is queued, but for locks: bytes are checked, space is found, a recovery is waited for.
    Before,
    /// For a lock that another client has.
    Lock,
    /// In the scheduler's queue.
    Queue,
    /// With the store; at a metadata target: the operation.
    Store,
    /// Until something is on stable storage.
    Commit,
    /// Until the answer goes out.
    Answer,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; 8] = [
        Stage::ClientQueue,
        Stage::Network,
        Stage::Before,
        Stage::Lock,
        Stage::Queue,
        Stage::Store,
        Stage::Commit,
        Stage::Answer,
    ];
    /// Its name in JSON.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Stage::ClientQueue => "client_queue",
            Stage::Network => "network",
            Stage::Before => "before",
            Stage::Lock => "lock",
            Stage::Queue => "queue",
            Stage::Store => "store",
            Stage::Commit => "commit",
            Stage::Answer => "answer",
        }
    }
    /// Its name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Stage::ClientQueue => "client queue",
            Stage::Network => "network",
            Stage::Before => "before the queue",
            Stage::Lock => "lock",
            Stage::Queue => "NRS queue",
            Stage::Store => "store",
            Stage::Commit => "commit",
            Stage::Answer => "answer",
        }
    }
}

/// The time of a request, or of several, by stage: nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Split([u64; Stage::ALL.len()]);

impl Split {
    /// Of a request of which its target says `record`, and its client, where that is known, `sent`.
    #[must_use]
    pub fn of(record: &Record, sent: Option<&Record>) -> Split {
        let ns = |d: types::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let us = |us: u32| u64::from(us) * 1000;
        let (before, after) = (us(record.before_us), us(record.after_us));
        let mut split = Split::default();
        if record.flags.has(Flags::UNSCHEDULED) {
            let whole = ns(record.response());
            let lock = us(record.locked_us).min(whole);
            let commit = us(record.committed_us).min(whole - lock);
            split.set(Stage::Lock, lock);
            split.set(Stage::Commit, commit);
            split.set(Stage::Store, whole - lock - commit);
            split.set(Stage::Before, before);
            split.set(Stage::Answer, after);
        } else {
            let lock = us(record.locked_us).min(before);
            let commit = us(record.committed_us).min(after);
            split.set(Stage::Lock, lock);
            split.set(Stage::Before, before - lock);
            split.set(Stage::Queue, ns(record.queued()));
            split.set(Stage::Store, ns(record.service()));
            split.set(Stage::Commit, commit);
            split.set(Stage::Answer, after - commit);
        }
        if let Some(sent) = sent {
            split.set(Stage::ClientQueue, ns(sent.queued()));
            split.set(Stage::Network, ns(sent.service()).saturating_sub(ns(record.at_target())));
        }
        split
    }

    fn set(&mut self, stage: Stage, ns: u64) {
        self.0[stage as usize] = ns;
    }
    /// Nanoseconds in a stage.
    #[must_use]
    pub fn ns(&self, stage: Stage) -> u64 {
        self.0[stage as usize]
    }
    /// Nanoseconds in all.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.0.iter().fold(0, |sum, ns| sum.saturating_add(*ns))
    }
    /// The stage that took the most; the first of several.
    #[must_use]
    pub fn longest(&self) -> Stage {
        let least = Stage::ALL.into_iter().max_by_key(|s| (self.ns(*s), std::cmp::Reverse(*s)));
        least.unwrap_or(Stage::Store)
    }
    /// This time and that.
    #[must_use]
    pub fn and(self, other: Split) -> Split {
        let mut sum = self;
        sum.0.iter_mut().zip(other.0).for_each(|(a, b)| *a = a.saturating_add(b));
        sum
    }
}

/// Which target a client's record is about, from the target's name: an OST's index, or [`MDT`].
#[must_use]
pub fn place_of(target: &str) -> u32 {
    let index = target.rsplit_once("-OST").and_then(|(_, hex)| u32::from_str_radix(hex.get(..4)?, 16).ok());
    index.unwrap_or(MDT)
}

/// The metadata target among [`place_of`]s.
pub const MDT: u32 = u32::MAX;

/// What clients keep of their requests, to be found by what targets keep of the same ones.
#[derive(Debug, Default)]
pub struct Sent(HashMap<(ClientId, ObjectId, u64), Record>);

impl Sent {
    /// Of records of clients.
    #[must_use]
    pub fn of<'a>(records: impl Iterator<Item = &'a Record>) -> Sent {
        Sent(records.map(|r| ((r.client, r.object, r.xid.0), *r)).collect())
    }
    /// What the client of `record`, which the target `target` kept, says of that request.
    #[must_use]
    pub fn find(&self, target: &str, record: &Record) -> Option<&Record> {
        self.0.get(&(record.client, place(place_of(target)), record.xid.0)).filter(|_| record.xid.0 > 0)
    }
}

/// How a client's record names the target that the request was for.
#[must_use]
pub fn place(of: u32) -> ObjectId {
    ObjectId(types::Fid::new(0, of))
}

/// Some requests, and whose they are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Group {
    /// How many.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    by_client: BTreeMap<ClientId, (u64, u64)>,
}

impl Group {
    fn add(&mut self, r: &Record) {
        self.requests += 1;
        self.bytes += u64::from(r.bytes);
        let client = self.by_client.entry(r.client).or_default();
        client.0 += u64::from(r.bytes);
        client.1 += 1;
    }
    /// Clients with their bytes and requests, those with the most bytes first.
    #[must_use]
    pub fn clients(&self) -> Vec<(ClientId, u64, u64)> {
        let mut all: Vec<(ClientId, u64, u64)> = self.by_client.iter().map(|(c, (b, n))| (*c, *b, *n)).collect();
        all.sort_unstable_by_key(|(client, bytes, requests)| (std::cmp::Reverse((*bytes, *requests)), *client));
        all
    }
}

/// Who stood in the way of a request that waited in a queue.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ahead {
    /// With the store when it arrived.
    pub found: Group,
    /// Handed to the store while it waited.
    pub went: Group,
    /// Of these, such that had arrived later.
    pub passed: u64,
    /// Of those, such with a deadline.
    pub urgent: u64,
    /// Of all that went, such of the same object.
    pub same_object: u64,
    /// With the store when it came there itself: requests and their bytes.
    pub beside: (u64, u64),
}

impl Ahead {
    /// What went to the store while `r` waited; `records` are those of its target, in the order in which they were handed to
    /// the store.
    #[must_use]
    pub fn of(r: &Record, records: &[Record]) -> Ahead {
        let mut ahead = Ahead::default();
        let is_other = |o: &&Record| {
            (o.number, o.arrived) != (r.number, r.arrived)
                && !o.flags.has(Flags::PAST_QUEUE)
                && !o.flags.has(Flags::UNSCHEDULED)
                && o.is_served()
        };
        let from = records.partition_point(|other| other.dispatched < r.arrived);
        let to = records.partition_point(|other| other.dispatched <= r.dispatched);
        // Those that went together with it came before it if they arrived before.
        let before = |o: &&Record| o.dispatched < r.dispatched || (o.arrived, o.number) < (r.arrived, r.number);
        records[from..to].iter().filter(is_other).filter(before).for_each(|o| ahead.add(o, r));
        let found = records[..from].iter().filter(is_other).filter(|o| o.finished > r.arrived);
        found.for_each(|o| ahead.found.add(o));
        let beside = records[..to].iter().filter(is_other).filter(|o| o.finished > r.dispatched);
        ahead.beside = beside.fold((0, 0), |(n, bytes), o| (n + 1, bytes + u64::from(o.bytes)));
        ahead
    }

    fn add(&mut self, r: &Record, waiting: &Record) {
        let later = (r.arrived, r.number) > (waiting.arrived, waiting.number);
        self.went.add(r);
        self.passed += u64::from(later);
        self.urgent += u64::from(later && r.flags.has(Flags::URGENT));
        self.same_object += u64::from(r.object == waiting.object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Came;
    use nrs::NrsRequest;
    use types::{Duration, Instant, Xid};
    use wire::Op;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant(ms * MS)
    }
    fn ms(split: &Split) -> [u64; 8] {
        split.0.map(|ns| ns / MS)
    }

    #[test]
    fn a_queued_requests_time_is_split_without_rest() {
        let came = Came { xid: Xid(7), at: at(10), locked: Duration::from_millis(5), holder: ClientId(3) };
        let request = NrsRequest { arrived: at(17), client: ClientId(1), ..NrsRequest::default() };
        let r = Record::of(0, &request, at(40), at(50)).which_came(&came).committed(at(58));
        let split = Split::of(&r, None);
        assert_eq!(ms(&split), [0, 0, 2, 5, 23, 10, 8, 0]);
        assert_eq!((split.total_ns(), split.longest()), (48 * MS, Stage::Queue));
        // The client waited 3 ms for a slot and 60 ms for the answer, 12 of them without the target's doing.
        let mut sent = Record::unscheduled(Op::OstRead, &Came { xid: Xid(7), at: at(900), ..Came::default() }, at(963));
        (sent.dispatched, sent.client, sent.object) = (at(903), ClientId(1), place(4));
        let all = Sent::of([sent].iter());
        assert_eq!(all.find("fs-OST0005", &r), None, "another target's number");
        let split = Split::of(&r, all.find("fs-OST0004", &r));
        assert_eq!(ms(&split), [3, 12, 2, 5, 23, 10, 8, 0]);
        assert_eq!(split.and(split).total_ns(), 126 * MS);
        assert_eq!((place_of("a-OST00ff"), place_of("a-MDT0000")), (255, MDT));
    }

    #[test]
    fn a_request_without_a_scheduler_waits_for_locks_and_commits_within_its_time() {
        let came = Came { xid: Xid(1), at: at(0), locked: Duration::from_millis(30), holder: ClientId(3) };
        let r = Record::unscheduled(Op::MdtUnlink, &came, at(50));
        let r = Record { committed_us: 15_000, ..r };
        let split = Split::of(&r, None);
        assert_eq!((ms(&split), split.longest()), ([0, 0, 0, 30, 0, 5, 15, 0], Stage::Lock));
        // Nonsense stays within the whole.
        let odd = Record { locked_us: u32::MAX, committed_us: u32::MAX, ..r };
        assert_eq!(Split::of(&odd, None).total_ns(), 50 * MS);
        assert_eq!(Split::default().longest(), Stage::ClientQueue);
    }

    #[test]
    fn what_went_before_is_told_apart_by_whose_it_was_and_when_it_came() {
        let record = |number: u64, client: u64, times: [u64; 3]| Record {
            number,
            client: ClientId(client),
            bytes: 4096,
            arrived: at(times[0]),
            dispatched: at(times[1]),
            finished: at(times[2]),
            ..Record::default()
        };
        let urgent = Record { flags: Flags::URGENT, ..record(3, 3, [8, 10, 20]) };
        let lock = Record { flags: Flags::UNSCHEDULED, ..record(0, 7, [3, 3, 90]) };
        let gone = Record { flags: Flags::CANCELLED, ..record(5, 7, [2, 6, 6]) };
        let victim = record(1, 1, [1, 20, 60]);
        let mut all = vec![record(0, 1, [0, 0, 5]), record(2, 2, [2, 5, 10]), urgent, victim, lock, gone];
        all.sort_by_key(|r| r.dispatched);
        let ahead = Ahead::of(&victim, &all);
        assert_eq!((ahead.went.requests, ahead.went.bytes, ahead.passed, ahead.urgent), (2, 8192, 2, 1));
        assert_eq!(ahead.went.clients(), [(ClientId(2), 4096, 1), (ClientId(3), 4096, 1)]);
        assert_eq!(ahead.found.clients(), [(ClientId(1), 4096, 1)], "what the store had when it came");
        assert_eq!(ahead.beside, (0, 0));
        assert_eq!(Ahead::of(&record(9, 9, [4, 4, 9]), &all).beside, (1, 4096));
    }
}
