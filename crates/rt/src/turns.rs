//! Permits that some may take before others: for windows of requests, where what somebody else waits for must not queue
//! behind what nobody waits for.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use types::Instant;

/// Who takes a permit before whom.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rank {
    /// Another one was promised that it is done; the earliest promise goes first, and before all else.
    Urgent(Instant),
    /// Takes turns with ordinary work, however much of that waits, and one of the permits that are kept for urgent work.
    Ahead,
    /// First come, first served.
    Ordinary,
}

type Key = (Rank, u64);

struct Waiter {
    /// What a promotion names it by; 0: nothing.
    tag: u64,
    /// Its place, until it has a permit.
    key: Cell<Key>,
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A counting semaphore whose permits go by rank, and whose size can change. Some permits may be kept from ordinary work.
#[derive(Default)]
pub struct Turns {
    free: Cell<isize>,
    reserve: Cell<isize>,
    next: Cell<u64>,
    /// Whose turn it is between the two lower ranks.
    ordinary_next: Cell<bool>,
    waiting: RefCell<BTreeMap<Key, Rc<Waiter>>>,
}

impl Turns {
    /// With `permits`, of which ordinary work leaves the last `reserve`.
    #[must_use]
    pub fn new(permits: usize, reserve: usize) -> Turns {
        Turns { free: Cell::new(permits as isize), reserve: Cell::new(reserve as isize), ..Turns::default() }
    }
    /// Adds permits (or, negative, takes some away as they come back).
    pub fn add(&self, permits: isize) {
        self.free.set(self.free.get() + permits);
        self.settle();
    }
    /// Changes how many permits ordinary work leaves.
    pub fn set_reserve(&self, reserve: usize) {
        self.reserve.set(reserve as isize);
        self.settle();
    }
    /// Those that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }
    /// How many permits a rank leaves to others.
    fn leaves(&self, rank: Rank) -> isize {
        match rank {
            Rank::Urgent(_) => 0,
            Rank::Ahead => self.reserve.get() / 2,
            Rank::Ordinary => self.reserve.get(),
        }
    }
    /// Takes a permit for ordinary work if one is free and nobody waits.
    #[must_use]
    pub fn try_acquire(&self) -> bool {
        let ok = self.waiting.borrow().is_empty() && self.free.get() > self.leaves(Rank::Ordinary);
        if ok {
            self.free.set(self.free.get() - 1);
        }
        ok
    }
    /// Takes a permit, waiting for its turn; gives the rank that it had in the end. Give the permit back with [`Turns::add`].
    pub async fn acquire(&self, rank: Rank, tag: u64) -> Rank {
        let key = (rank, self.next.get());
        self.next.set(key.1 + 1);
        let waiter = Rc::new(Waiter { tag, key: Cell::new(key), granted: Cell::new(false), waker: RefCell::new(None) });
        self.waiting.borrow_mut().insert(key, waiter.clone());
        self.settle();
        let guard = Guard { turns: self, waiter: &waiter };
        poll_fn(|cx| {
            if waiter.granted.get() {
                return Poll::Ready(());
            }
            *waiter.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        std::mem::forget(guard);
        waiter.key.get().0
    }
    /// Everything that waits under `tag` goes by `rank` from now on, unless it goes earlier anyway.
    pub fn promote(&self, tag: u64, rank: Rank) {
        let mut waiting = self.waiting.borrow_mut();
        let found: Vec<Rc<Waiter>> =
            waiting.values().filter(|w| w.tag == tag && w.key.get().0 > rank).cloned().collect();
        for waiter in found {
            waiting.remove(&waiter.key.get());
            let key = (rank, waiter.key.get().1);
            waiter.key.set(key);
            waiting.insert(key, waiter);
        }
        drop(waiting);
        self.settle();
    }
    fn settle(&self) {
        while let Some(key) = self.next_in_turn() {
            let waiter = self.waiting.borrow_mut().remove(&key).expect("it was found just now");
            self.free.set(self.free.get() - 1);
            waiter.granted.set(true);
            if let Some(waker) = waiter.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }
    fn next_in_turn(&self) -> Option<Key> {
        let waiting = self.waiting.borrow();
        let may = |key: &Key| self.free.get() > self.leaves(key.0);
        let first = *waiting.keys().next()?;
        if matches!(first.0, Rank::Urgent(_)) {
            return may(&first).then_some(first);
        }
        let of = |rank| waiting.range((rank, 0)..=(rank, u64::MAX)).next().map(|(k, _)| *k).filter(may);
        let (ahead, ordinary) = (of(Rank::Ahead), of(Rank::Ordinary));
        let chosen = if self.ordinary_next.get() { ordinary.or(ahead) } else { ahead.or(ordinary) }?;
        self.ordinary_next.set(chosen.0 == Rank::Ahead);
        Some(chosen)
    }
}

struct Guard<'a> {
    turns: &'a Turns,
    waiter: &'a Rc<Waiter>,
}
impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.waiter.granted.get() {
            return self.turns.add(1);
        }
        self.turns.waiting.borrow_mut().remove(&self.waiter.key.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::Context;

    type Wait<'a> = Pin<Box<dyn Future<Output = Rank> + 'a>>;

    fn wait(turns: &Turns, rank: Rank, tag: u64) -> Wait<'_> {
        let mut wait: Wait<'_> = Box::pin(turns.acquire(rank, tag));
        assert_eq!(poll(&mut wait), None);
        wait
    }
    fn poll(wait: &mut Wait<'_>) -> Option<Rank> {
        match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(rank) => Some(rank),
            Poll::Pending => None,
        }
    }
    /// Gives permits back one by one; the places (in `waits`) of who got them.
    fn order(turns: &Turns, waits: &mut [Wait<'_>]) -> Vec<usize> {
        let (mut out, mut left): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..waits.len()).collect());
        while !left.is_empty() {
            turns.add(1);
            let Some(i) = left.iter().position(|w| poll(&mut waits[*w]).is_some()) else { return out };
            out.push(left.remove(i));
        }
        out
    }

    #[test]
    fn urgent_work_takes_what_is_kept_for_it_and_goes_by_promise() {
        let turns = Turns::new(3, 2);
        assert!(turns.try_acquire() && !turns.try_acquire(), "two are kept");
        let mut ordinary: Vec<_> = (0..3).map(|_| wait(&turns, Rank::Ordinary, 0)).collect();
        let mut at_once: Wait<'_> = Box::pin(turns.acquire(Rank::Urgent(Instant(9)), 0));
        assert_eq!(poll(&mut at_once), Some(Rank::Urgent(Instant(9))));
        let mut second: Wait<'_> = Box::pin(turns.acquire(Rank::Urgent(Instant(9)), 0));
        assert!(poll(&mut second).is_some(), "the last one is for urgent work");
        let late = wait(&turns, Rank::Urgent(Instant(30)), 0);
        let mut waits = [ordinary.remove(0), late, wait(&turns, Rank::Urgent(Instant(20)), 0)];
        turns.add(1);
        assert!(poll(&mut waits[2]).is_some(), "the earlier promise");
        turns.add(1);
        assert!(poll(&mut waits[1]).is_some());
        turns.add(2);
        assert_eq!(poll(&mut waits[0]), None, "the reserve is filled first");
        turns.add(1);
        assert!(poll(&mut waits[0]).is_some());
    }

    #[test]
    fn the_lower_ranks_take_turns_and_what_is_promoted_goes_first() {
        let turns = Turns::new(0, 0);
        let mut waits: Vec<_> = (0..4).map(|i| wait(&turns, Rank::Ordinary, i)).collect();
        waits.extend((0..3).map(|_| wait(&turns, Rank::Ahead, 0)));
        turns.promote(3, Rank::Urgent(Instant(5)));
        turns.promote(3, Rank::Urgent(Instant(7)));
        assert_eq!(order(&turns, &mut waits), [3, 4, 0, 5, 1, 6, 2]);
        assert_eq!(turns.waiting(), 0);
    }

    #[test]
    fn who_stops_waiting_leaves_the_line_and_takes_nothing_along() {
        let turns = Turns::new(0, 0);
        let (gone, mut stays) = (wait(&turns, Rank::Ordinary, 0), wait(&turns, Rank::Ordinary, 0));
        turns.add(1);
        drop(gone);
        assert!(poll(&mut stays).is_some(), "a permit that was given to it goes on");
        drop(wait(&turns, Rank::Ahead, 0));
        assert_eq!(turns.waiting(), 0);
        turns.add(1);
        assert!(turns.try_acquire() && !turns.try_acquire());
    }
}
