//! A flush of the suite: what it owes when it begins, and that nothing of it is missing when it ends.
use super::client::{Client, Job, Lock};
use super::{Cells, World, last, rank};
use crate::{Due, Flushing, Objects, PAGE, Pages, Ticket};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use types::Extent;

/// The pages of a client and its locks, as a choice looks at them.
pub(super) struct Local<'a> {
    pub(super) pages: &'a mut Pages<Cells>,
    pub(super) locks: &'a [Lock],
}

impl Objects<()> for Local<'_> {
    type Page = Cells;
    type Right = u64;
    fn with_pages<T>(&mut self, (): &(), step: impl FnOnce(&mut Pages<Cells>) -> T) -> Option<T> {
        Some(step(self.pages))
    }
    fn right_to(&mut self, (): &(), page: u64) -> (u64, Extent) {
        let lock = self.locks.iter().find(|l| l.write && l.covers(page));
        lock.map_or((0, Extent::at(page * PAGE, PAGE)), |l| (l.id, l.extent()))
    }
}

/// A flush under way.
pub(super) struct Flush {
    due: Due,
    /// The lock that is kept until it is over; 0: none.
    lock: u64,
    /// The place that it waits for.
    ticket: Option<Ticket>,
    /// Pages that were dirty or under way when it began, and the last write of each.
    owed: Vec<(u64, u64)>,
}

impl Flush {
    /// Of what is unwritten in an extent now, while others go on writing.
    pub(super) fn of_now(pages: &mut Pages<Cells>, extent: Extent) -> Flush {
        let due = pages.due_now(extent);
        Flush::of(pages, due, 0)
    }
    /// Of what is unwritten in an extent when a change under a lock begins.
    pub(super) fn of_change(pages: &mut Pages<Cells>, extent: Extent, lock: u64) -> Flush {
        let due = pages.due_now(extent);
        Flush::of(pages, due, lock)
    }
    /// Of all that a lock covers that leaves.
    pub(super) fn of_lock(pages: &Pages<Cells>, extent: Extent, lock: u64) -> Flush {
        Flush::of(pages, Due::all(extent), lock)
    }
    fn of(pages: &Pages<Cells>, due: Due, lock: u64) -> Flush {
        let unwritten = |p: &u64| {
            let page = Extent::at(p * PAGE, PAGE);
            due.extent().overlaps(&page) && pages.is_unwritten(page)
        };
        let owed = pages.cached().filter(unwritten).map(|p| (p, last(pages.held(p).expect("it is cached")))).collect();
        Flush { due, lock, ticket: None, owed }
    }
}

impl Client {
    /// A flush goes on; whether it is over.
    pub(super) fn go_on(&mut self, w: &mut World, flush: &mut Flush, urgent: bool) -> Result<bool, String> {
        if flush.ticket.is_some_and(|t| self.jobs.contains_key(&t)) {
            return Ok(false);
        }
        match self.pages.flushing(flush.due) {
            Flushing::UnderWay => Ok(false),
            Flushing::Ready => {
                let job = Job::Write { due: flush.due, lock: flush.lock };
                flush.ticket = Some(self.ask(w, rank(urgent, w.now()), flush.lock, job));
                Ok(false)
            }
            Flushing::Over => {
                w.seen.flushes += 1;
                let is_out = |p: u64, write: u64| w.arrived[p as usize] >= write || self.lost[p as usize] >= write;
                match flush.owed.iter().find(|(p, write)| !is_out(*p, *write)) {
                    Some((p, write)) => {
                        Err(format!("a flush ends, and write {write} of page {p} is neither out nor lost"))
                    }
                    None => Ok(true),
                }
            }
        }
    }
}
