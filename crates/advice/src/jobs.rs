//! Prefetch jobs: one object after the other, in large pieces, in offset order, in the background.
//!
//! Random 4 KiB reads of a cold object cost a seek each; a job turns them into one sequential pass. The highest class goes
//! first, then the oldest; a higher class takes over between two pieces. A job ends done, cancelled, or with the first
//! error. The driver asks [`Jobs::next_piece`] whenever it may issue, and reports with [`Jobs::on_done`].
//! Source: paper 004 (server-side prefetch).
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use types::{Extent, FsError, ObjectId};

use crate::config::Config;
use crate::{Hint, Tier};

/// A job's number; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(pub u64);

/// One piece to be read from the object's store into a tier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// Its job.
    pub job: JobId,
    /// The object.
    pub object: ObjectId,
    /// The bytes: at most `piece_bytes`, within one multiple of it.
    pub extent: Extent,
    /// Where they go.
    pub tier: Tier,
    /// Class of the pages.
    pub hint: Hint,
}

/// How a job ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All bytes were fetched.
    Done,
    /// Some were cancelled; the rest was fetched.
    Cancelled,
    /// A piece failed; nothing after it was tried.
    Failed(FsError),
}

/// A job that ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Which.
    pub job: JobId,
    /// How.
    pub outcome: Outcome,
    /// Bytes fetched.
    pub fetched_bytes: u64,
}

#[derive(Clone, Debug)]
struct Job {
    object: ObjectId,
    tier: Tier,
    hint: Hint,
    /// Not issued yet, in offset order.
    rest: VecDeque<Extent>,
    in_flight: u64,
    fetched_bytes: u64,
    outcome: Outcome,
}

type Key = (Reverse<Hint>, JobId);

/// The queue of one object store.
#[derive(Clone, Debug)]
pub struct Jobs {
    piece_bytes: u64,
    pieces_max: u64,
    /// Highest class first, then oldest.
    jobs: BTreeMap<Key, Job>,
    /// The jobs of each object.
    of_objects: BTreeSet<(ObjectId, Key)>,
    next_id: u64,
    in_flight: u64,
    ended: VecDeque<Ended>,
}

impl Jobs {
    /// An empty queue.
    #[must_use]
    pub fn new(config: &Config) -> Jobs {
        Jobs {
            piece_bytes: config.piece_bytes,
            pieces_max: config.pieces_in_flight_max,
            jobs: BTreeMap::new(),
            of_objects: BTreeSet::new(),
            next_id: 1,
            in_flight: 0,
            ended: VecDeque::new(),
        }
    }
    /// Changes the configuration, for pieces from now on.
    pub fn set_config(&mut self, config: &Config) {
        (self.piece_bytes, self.pieces_max) = (config.piece_bytes, config.pieces_in_flight_max);
    }
    /// Queues a prefetch (a [`crate::Step::Prefetch`]).
    pub fn push(&mut self, object: ObjectId, extent: Extent, tier: Tier, hint: Hint) -> JobId {
        let id = JobId(self.next_id);
        self.next_id += 1;
        let job = Job {
            object,
            tier,
            hint,
            rest: VecDeque::from([extent]),
            in_flight: 0,
            fetched_bytes: 0,
            outcome: Outcome::Done,
        };
        self.jobs.insert((Reverse(hint), id), job);
        self.of_objects.insert((object, (Reverse(hint), id)));
        self.end_if_over((Reverse(hint), id));
        id
    }
    /// The next piece to issue, `None` while enough are in flight or nothing is queued.
    pub fn next_piece(&mut self) -> Option<Piece> {
        if self.in_flight >= self.pieces_max {
            return None;
        }
        let (key, job) = self.jobs.iter_mut().find(|(_, j)| !j.rest.is_empty())?;
        let rest = job.rest.front_mut()?;
        let end = (rest.start / self.piece_bytes + 1).saturating_mul(self.piece_bytes).min(rest.end);
        let extent = Extent::new(rest.start, end);
        rest.start = end;
        if rest.is_empty() {
            job.rest.pop_front();
        }
        job.in_flight += 1;
        self.in_flight += 1;
        Some(Piece { job: key.1, object: job.object, extent, tier: job.tier, hint: job.hint })
    }
    /// A piece arrived or failed.
    ///
    /// # Panics
    /// When the piece is not in flight.
    pub fn on_done(&mut self, piece: &Piece, result: Result<(), FsError>) {
        let key = (Reverse(piece.hint), piece.job);
        let job = self.jobs.get_mut(&key).expect("a job lives as long as its pieces");
        assert!(job.in_flight > 0, "a piece ended twice");
        job.in_flight -= 1;
        self.in_flight -= 1;
        match result {
            Ok(()) => job.fetched_bytes += piece.extent.len(),
            Err(e) => {
                job.rest.clear();
                if !matches!(job.outcome, Outcome::Failed(_)) {
                    job.outcome = Outcome::Failed(e);
                }
            }
        }
        self.end_if_over(key);
    }
    /// Cancels what is queued of an object's bytes for a tier (a [`crate::Step::Release`] or [`crate::Step::Drop`]). Pieces
    /// in flight arrive; returns the bytes cancelled.
    pub fn cancel(&mut self, object: ObjectId, extent: Extent, tier: Tier) -> u64 {
        let mut cancelled = 0;
        let (first, last) = ((Reverse(Hint::High), JobId(0)), (Reverse(Hint::None), JobId(u64::MAX)));
        let keys: Vec<Key> = self.of_objects.range((object, first)..=(object, last)).map(|(_, key)| *key).collect();
        for key in keys {
            let job = self.jobs.get_mut(&key).expect("the index knows jobs that are there");
            if job.tier != tier {
                continue;
            }
            let mut kept = VecDeque::new();
            for e in job.rest.drain(..) {
                let Some(cut) = e.intersect(&extent) else {
                    kept.push_back(e);
                    continue;
                };
                cancelled += cut.len();
                job.outcome = if job.outcome == Outcome::Done { Outcome::Cancelled } else { job.outcome };
                let sides = [Extent::new(e.start, cut.start), Extent::new(cut.end, e.end)];
                kept.extend(sides.into_iter().filter(|s| !s.is_empty()));
            }
            job.rest = kept;
            self.end_if_over(key);
        }
        cancelled
    }
    /// Jobs that ended since the last call, oldest first.
    pub fn take_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }
    /// Jobs queued or in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.len()
    }
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn end_if_over(&mut self, key: Key) {
        if self.jobs.get(&key).is_some_and(|j| j.in_flight == 0 && j.rest.iter().all(Extent::is_empty)) {
            let job = self.jobs.remove(&key).expect("it was just found");
            self.of_objects.remove(&(job.object, key));
            self.ended.push_back(Ended { job: key.1, outcome: job.outcome, fetched_bytes: job.fetched_bytes });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{MIB, OstIndex};

    fn object(n: u32) -> ObjectId {
        ObjectId::new(OstIndex(0), n)
    }
    fn jobs() -> Jobs {
        Jobs::new(&Config { piece_bytes: 4 * MIB, pieces_in_flight_max: 2, ..Config::default() })
    }
    fn ended(jobs: &mut Jobs) -> Vec<Ended> {
        core::iter::from_fn(|| jobs.take_ended()).collect()
    }

    #[test]
    fn pieces_are_large_sequential_and_limited_in_flight() {
        let mut j = jobs();
        j.push(object(1), Extent::new(MIB, 100 * MIB), Tier::Ram, Hint::Med);
        let (mut at, mut pieces) = (MIB, VecDeque::new());
        loop {
            while let Some(p) = j.next_piece() {
                assert_eq!(p.extent.start, at);
                assert!(p.extent.end.is_multiple_of(4 * MIB) && p.extent.len() <= 4 * MIB);
                at = p.extent.end;
                pieces.push_back(p);
            }
            assert!(pieces.len() <= 2);
            let Some(p) = pieces.pop_front() else { break };
            j.on_done(&p, Ok(()));
        }
        assert_eq!(at, 100 * MIB);
        let end = Ended { job: JobId(1), outcome: Outcome::Done, fetched_bytes: 99 * MIB };
        assert_eq!(ended(&mut j), [end]);
        assert!(j.is_empty());
    }

    #[test]
    fn a_higher_class_takes_over_between_pieces() {
        let mut j = jobs();
        j.push(object(1), Extent::new(0, 8 * MIB), Tier::Ram, Hint::Low);
        let first = j.next_piece().unwrap();
        j.push(object(2), Extent::new(0, 4 * MIB), Tier::Ram, Hint::High);
        assert_eq!((first.object, j.next_piece().unwrap().object), (object(1), object(2)));
        j.on_done(&first, Ok(()));
        assert_eq!(j.next_piece().unwrap().extent, Extent::new(4 * MIB, 8 * MIB));
    }

    #[test]
    fn the_first_error_ends_a_job_and_is_reported_once() {
        let mut j = jobs();
        j.push(object(1), Extent::new(0, 100 * MIB), Tier::Fast, Hint::Med);
        let (a, b) = (j.next_piece().unwrap(), j.next_piece().unwrap());
        j.on_done(&a, Err(FsError::Io));
        assert_eq!(j.next_piece(), None);
        assert!(ended(&mut j).is_empty(), "a piece is still in flight");
        j.on_done(&b, Ok(()));
        let end = Ended { job: a.job, outcome: Outcome::Failed(FsError::Io), fetched_bytes: 4 * MIB };
        assert_eq!(ended(&mut j), [end]);
    }

    #[test]
    fn cancelling_cuts_what_is_queued_and_lets_the_rest_arrive() {
        let mut j = jobs();
        j.push(object(1), Extent::new(0, 16 * MIB), Tier::Ram, Hint::Med);
        let first = j.next_piece().unwrap();
        assert_eq!(j.cancel(object(1), Extent::new(0, 12 * MIB), Tier::Fast), 0, "the other tier's");
        assert_eq!(j.cancel(object(1), Extent::new(0, 12 * MIB), Tier::Ram), 8 * MIB);
        let last = j.next_piece().unwrap();
        assert_eq!(last.extent, Extent::new(12 * MIB, 16 * MIB));
        j.on_done(&first, Ok(()));
        j.on_done(&last, Ok(()));
        let end = Ended { job: first.job, outcome: Outcome::Cancelled, fetched_bytes: 8 * MIB };
        assert_eq!(ended(&mut j), [end]);
        j.push(object(2), Extent::new(0, MIB), Tier::Ram, Hint::Low);
        assert_eq!(j.cancel(object(2), Extent::ALL, Tier::Ram), MIB);
        assert_eq!(ended(&mut j)[0].outcome, Outcome::Cancelled);
    }
}
