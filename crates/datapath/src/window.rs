//! The window of bulk RPCs: so many under way at once, admitted by rank.
//!
//! Some places are left by ordinary RPCs for urgent ones, those that another client waits for: an urgent RPC waits for the
//! next RPC to end at most, however many ordinary ones are queued.
use alloc::collections::BTreeMap;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::Instant;

/// Who is admitted before whom.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rank {
    /// Another one was promised that it is done; the earliest promise goes first, and before all else.
    Urgent(Instant),
    /// Takes turns with ordinary RPCs, however many of those wait, and half of the places that are kept for urgent ones.
    Ahead,
    /// First come, first served.
    Ordinary,
}

/// Names what waits in a window or was admitted to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(u64);

type Key = (Rank, Ticket);

/// The window. A ticket is asked for ([`Window::on_ask`]), admitted ([`Window::next_admitted`]) and ended
/// ([`Window::on_end`]); who stops waiting says [`Window::on_given_up`].
#[derive(Debug, Default)]
pub struct Window {
    /// Places that are free; negative after the window became smaller under load.
    free: isize,
    /// Places that ordinary RPCs leave.
    reserve: isize,
    next: u64,
    /// Whose turn it is between the two lower ranks.
    ordinary_next: bool,
    waiting: BTreeMap<Key, u64>,
    rank_of: HashMap<Ticket, Rank, FxBuildHasher>,
}

impl Window {
    /// A window of `places`, and `urgent` more that only urgent RPCs get.
    #[must_use]
    pub fn new(places: usize, urgent: usize) -> Window {
        Window { free: (places + urgent) as isize, reserve: urgent as isize, ..Window::default() }
    }
    /// The window has `places` more, or fewer as RPCs end.
    pub fn on_resized(&mut self, places: isize) {
        self.free += places;
    }
    /// Changes how many places ordinary RPCs leave.
    pub fn set_reserve(&mut self, urgent: usize) {
        self.reserve = urgent as isize;
    }
    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
    /// Places that are free; negative after the window became smaller under load.
    #[must_use]
    pub fn free(&self) -> isize {
        self.free
    }
    fn leaves(&self, rank: Rank) -> isize {
        match rank {
            Rank::Ordinary if types::planted!("urgent-unreserved") => 0,
            Rank::Urgent(_) => 0,
            Rank::Ahead => self.reserve / 2,
            Rank::Ordinary => self.reserve,
        }
    }
    /// Takes a place for an ordinary RPC at once, if one is free and nobody waits. Give it back with [`Window::on_end`].
    #[must_use]
    pub fn on_try(&mut self) -> bool {
        let ok = self.waiting.is_empty() && self.free > self.leaves(Rank::Ordinary);
        if ok {
            self.free -= 1;
        }
        ok
    }
    /// An RPC wants a place. `tag` is what a promotion names it by; 0: nothing does.
    #[must_use]
    pub fn on_ask(&mut self, rank: Rank, tag: u64) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiting.insert((rank, ticket), tag);
        self.rank_of.insert(ticket, rank);
        ticket
    }
    /// The next RPC that may go, with the rank that it has now. Ask after every input until there is none.
    #[must_use]
    pub fn next_admitted(&mut self) -> Option<(Ticket, Rank)> {
        let (rank, ticket) = self.next_in_turn()?;
        self.waiting.remove(&(rank, ticket));
        self.rank_of.remove(&ticket);
        if !matches!(rank, Rank::Urgent(_)) {
            self.ordinary_next = rank == Rank::Ahead;
        }
        self.free -= 1;
        Some((ticket, rank))
    }
    /// An admitted RPC ended, however it did.
    pub fn on_end(&mut self) {
        self.free += 1;
    }
    /// Who asked does not wait any more. False: it was admitted before, and its place is to be given back.
    #[must_use]
    pub fn on_given_up(&mut self, ticket: Ticket) -> bool {
        let Some(rank) = self.rank_of.remove(&ticket) else { return false };
        self.waiting.remove(&(rank, ticket));
        true
    }
    /// Everything that waits under `tag` goes by `rank` from now on, unless it goes earlier anyway.
    pub fn on_promoted(&mut self, tag: u64, rank: Rank) {
        if types::planted!("promotion-lost") {
            return;
        }
        let found = |(key, t): (&Key, &u64)| (*t == tag && key.0 > rank).then_some(*key);
        let late: alloc::vec::Vec<Key> = self.waiting.iter().filter_map(found).collect();
        for key in late {
            self.waiting.remove(&key);
            self.waiting.insert((rank, key.1), tag);
            self.rank_of.insert(key.1, rank);
        }
    }
    fn next_in_turn(&self) -> Option<Key> {
        let may = |key: &Key| self.free > self.leaves(key.0);
        let first = *self.waiting.keys().next()?;
        if matches!(first.0, Rank::Urgent(_)) && !types::planted!("urgent-in-line") {
            return may(&first).then_some(first);
        }
        let of = |rank| {
            let all = (rank, Ticket(0))..=(rank, Ticket(u64::MAX));
            self.waiting.range(all).next().map(|(k, _)| *k).filter(may)
        };
        let (ahead, ordinary) = (of(Rank::Ahead), of(Rank::Ordinary));
        let lower = if self.ordinary_next { ordinary.or(ahead) } else { ahead.or(ordinary) };
        lower.or_else(|| may(&first).then_some(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn admitted(w: &mut Window) -> Vec<Ticket> {
        core::iter::from_fn(|| w.next_admitted().map(|a| a.0)).collect()
    }

    #[test]
    fn urgent_rpcs_take_what_is_kept_for_them_and_go_by_promise() {
        let mut w = Window::new(1, 2);
        assert!(w.on_try() && !w.on_try(), "two are kept");
        let ordinary = w.on_ask(Rank::Ordinary, 0);
        let (a, b) = (w.on_ask(Rank::Urgent(Instant(9)), 0), w.on_ask(Rank::Urgent(Instant(9)), 0));
        assert_eq!(admitted(&mut w), [a, b]);
        let (late, early) = (w.on_ask(Rank::Urgent(Instant(30)), 0), w.on_ask(Rank::Urgent(Instant(20)), 0));
        assert_eq!(admitted(&mut w), []);
        w.on_end();
        assert_eq!(admitted(&mut w), [early]);
        w.on_end();
        assert_eq!(admitted(&mut w), [late]);
        (0..2).for_each(|_| w.on_end());
        assert_eq!(admitted(&mut w), [], "the reserve is filled first");
        w.on_end();
        assert_eq!(admitted(&mut w), [ordinary]);
    }

    #[test]
    fn the_lower_ranks_take_turns_and_what_is_promoted_goes_first() {
        let mut w = Window::new(0, 0);
        let mut all: Vec<Ticket> = (0..4).map(|tag| w.on_ask(Rank::Ordinary, tag)).collect();
        all.extend((0..3).map(|_| w.on_ask(Rank::Ahead, 0)));
        w.on_promoted(3, Rank::Urgent(Instant(5)));
        w.on_promoted(3, Rank::Urgent(Instant(7)));
        w.on_resized(7);
        assert_eq!(admitted(&mut w), [3, 4, 0, 5, 1, 6, 2].map(|i| all[i]));
        assert_eq!(w.waiting(), 0);
    }

    #[test]
    fn who_stops_waiting_leaves_the_line_and_who_was_admitted_is_told() {
        let mut w = Window::new(0, 0);
        let (gone, stays) = (w.on_ask(Rank::Ordinary, 0), w.on_ask(Rank::Ordinary, 0));
        assert!(w.on_given_up(gone));
        w.on_resized(1);
        assert_eq!(admitted(&mut w), [stays]);
        assert!(!w.on_given_up(stays), "its place is to be given back");
        w.on_end();
        assert!(w.on_try() && !w.on_try());
        w.on_resized(-1);
        w.on_end();
        assert!(!w.on_try(), "the window became smaller");
    }
}
