//! Permits that some may take before others: what waits for a place in a window of requests (the datapath room's
//! [`datapath::Window`], which decides), as futures. The window is the permits' own, or part of what one OST has.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use datapath::{Target, Ticket, Window};

pub use datapath::Rank;

#[derive(Default)]
struct Waiter {
    /// The rank that it was admitted with.
    admitted: Cell<Option<Rank>>,
    waker: RefCell<Option<Waker>>,
}

/// Where the window is. It is borrowed within `step` only.
pub trait HasWindow {
    /// Does something with the window.
    fn with<T>(&self, step: impl FnOnce(&mut Window) -> T) -> T;
}
impl HasWindow for RefCell<Window> {
    fn with<T>(&self, step: impl FnOnce(&mut Window) -> T) -> T {
        step(&mut self.borrow_mut())
    }
}
impl<K> HasWindow for Rc<RefCell<Target<K>>> {
    fn with<T>(&self, step: impl FnOnce(&mut Window) -> T) -> T {
        step(&mut self.borrow_mut().window)
    }
}

/// A counting semaphore whose permits go by rank, and whose size can change. Some permits may be kept from ordinary work.
#[derive(Default)]
pub struct Turns<W: HasWindow = RefCell<Window>> {
    window: W,
    waiting: RefCell<BTreeMap<Ticket, Rc<Waiter>>>,
}

impl Turns {
    /// With `permits`, of which ordinary work leaves the last `reserve`.
    ///
    /// # Panics
    /// When `reserve` is more than `permits`.
    #[must_use]
    pub fn new(permits: usize, reserve: usize) -> Turns {
        let places = permits.checked_sub(reserve).expect("what is kept is part of the whole");
        Turns::of(RefCell::new(Window::new(places, reserve)))
    }
}

impl<W: HasWindow> Turns<W> {
    /// Those of a window that somebody else has as well. Who changes it says [`Turns::settle`].
    pub fn of(window: W) -> Turns<W> {
        Turns { window, waiting: RefCell::default() }
    }
    /// Adds permits (or, negative, takes some away as they come back).
    pub fn add(&self, permits: isize) {
        self.window.with(|w| w.on_resized(permits));
        self.settle();
    }
    /// Changes how many permits ordinary work leaves.
    pub fn set_reserve(&self, reserve: usize) {
        self.window.with(|w| w.set_reserve(reserve));
        self.settle();
    }
    /// Those that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.window.with(|w| w.waiting())
    }
    /// Takes a permit for ordinary work if one is free and nobody waits.
    #[must_use]
    pub fn try_acquire(&self) -> bool {
        self.window.with(Window::on_try)
    }
    /// Takes a permit, waiting for its turn; gives the rank that it had in the end. Give the permit back with [`Turns::add`].
    pub async fn acquire(&self, rank: Rank, tag: u64) -> Rank {
        let ticket = self.window.with(|w| w.on_ask(rank, tag));
        let waiter = Rc::new(Waiter::default());
        self.waiting.borrow_mut().insert(ticket, waiter.clone());
        self.settle();
        let guard = Guard { turns: self, ticket };
        let rank = poll_fn(|cx| match waiter.admitted.get() {
            Some(rank) => Poll::Ready(rank),
            None => {
                *waiter.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await;
        std::mem::forget(guard);
        rank
    }
    /// Everything that waits under `tag` goes by `rank` from now on, unless it goes earlier anyway.
    pub fn promote(&self, tag: u64, rank: Rank) {
        self.window.with(|w| w.on_promoted(tag, rank));
        self.settle();
    }
    /// Wakes those whose turn it is.
    pub fn settle(&self) {
        loop {
            let Some((ticket, rank)) = self.window.with(Window::next_admitted) else { return };
            let waiter = self.waiting.borrow_mut().remove(&ticket).expect("each ticket has who waits for it");
            waiter.admitted.set(Some(rank));
            if let Some(waker) = waiter.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }
}

struct Guard<'a, W: HasWindow> {
    turns: &'a Turns<W>,
    ticket: Ticket,
}
impl<W: HasWindow> Drop for Guard<'_, W> {
    fn drop(&mut self) {
        let waits = self.turns.window.with(|w| w.on_given_up(self.ticket));
        if waits {
            self.turns.waiting.borrow_mut().remove(&self.ticket);
        } else {
            self.turns.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::Context;
    use types::Instant;

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
