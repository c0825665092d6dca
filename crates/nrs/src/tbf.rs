//! Token bucket filter: classes of requests are held to rates in requests and in bytes per second.
//!
//! The first rule that matches puts a request into the bucket of its class: one bucket for every value of the fields that
//! the rule's condition names (`jobid={dd.0}`: one for the job; `*`: one per client). A bucket that may not go on is put
//! aside until the instant at which it may; buckets that may go on take turns. When all are aside, `dequeue` answers
//! `None` and `wakeup_at` says until when: nobody polls. A limit is a limit per server, not per OST or core: the heads of a
//! server tell each other what they took; see `shared`.
//!
//! What changes the end of the ring (a request of a class that is not looked at, a class that was served) is taken note of
//! and carried out, as of its time, before it could make a difference; see `later`.
//!
//! Source: Lustre's `tbf`, by its manual. Differs: limits in bytes; see also `rules`.
use crate::{
    Counters, NrsConfig, NrsPolicy, NrsRequest, Share, Taken, TbfRules,
    bucket::{Class, ClassKey, Limits, Place},
    chain::{List, NIL},
    groups::{Groups, Line},
    later::{Later, Note},
    links::Links,
    shared::Times,
    waiting::Waiting,
};
use alloc::vec::Vec;
use types::{Instant, RequestId};

/// How many turns ahead a class is fetched, ..
const FETCH_AHEAD: usize = 4;
/// .. and its first request.
const FETCH_FIRST_AHEAD: usize = 2;

type Classes = Groups<ClassKey, Class, Line>;

/// What is still to be done, as of an instant.
#[derive(Clone, Copy, Debug)]
enum What {
    /// A request of the class that its list does not hold yet.
    Arrival(Instant, u32),
    /// The class was served and is nowhere.
    Served(Instant),
}

/// Token buckets; see the module.
pub(crate) struct Tbf {
    rules: TbfRules,
    /// Of the rules; heads with the same ones share buckets.
    rules_hash: u64,
    limits: Vec<Limits>,
    links: Links,
    classes: Classes,
    /// Empty when nothing is ready.
    later: Later<ClassKey, What>,
    ready: List,
    throttled: Waiting,
    refilling: Waiting,
    throttled_count: u64,
    /// What was served last.
    taken: Option<Taken>,
}

/// Whether `class` is at `place` and waits there until `until`.
fn waits(classes: &Classes, limits: &[Limits], place: Place, until: Instant, class: u32) -> bool {
    classes
        .get_live(class)
        .is_some_and(|state| state.place == place && state.waits_until(&limits[classes.key(class).rule()]) == until)
}

impl Tbf {
    pub(crate) fn new(config: &NrsConfig) -> Tbf {
        let rules = config.tbf_rules.clone();
        Tbf {
            limits: rules.rules().iter().map(Limits::of).collect(),
            rules_hash: rules.hash(),
            rules,
            links: Links::default(),
            classes: Groups::default(),
            later: Later::default(),
            ready: List::default(),
            throttled: Waiting::default(),
            refilling: Waiting::default(),
            throttled_count: 0,
            taken: None,
        }
    }

    fn limits(&self, class: u32) -> Limits {
        self.limits[self.classes.key(class).rule()]
    }

    fn class_of(&self, req: &NrsRequest) -> ClassKey {
        let rule = self.rules.find(req);
        ClassKey::of(rule, self.limits[rule].named, req)
    }

    /// Carries out what was noted.
    fn catch_up(&mut self) {
        let links = &self.links;
        let notes = self.later.take(&self.classes, |class| links.prefetch(class.tail));
        self.carry_out(notes);
    }

    fn carry_out(&mut self, notes: Vec<Note<ClassKey, What>>) {
        for note in &notes {
            match note.what {
                What::Arrival(at, id) => self.link(at, note.guess, note.key, id),
                What::Served(at) => {
                    self.ripen(at);
                    self.place(at, note.guess);
                }
            }
        }
        self.later.done(notes);
    }

    /// Takes note of `what` about the class of `key`, which is `known` or has to be looked up.
    fn later(&mut self, key: ClassKey, known: u32, what: What) {
        let links = &self.links;
        let full = self.later.add(&self.classes, key, known, what, |class| links.prefetch(class.tail));
        if self.ready.is_empty() {
            self.catch_up();
        } else if full {
            let notes = self.later.take_ready();
            self.carry_out(notes);
        }
    }

    /// Fetches what turns that are near will look at.
    fn prefetch_turns(&self) {
        let mut class = self.ready.front();
        for turns in 1..=FETCH_AHEAD {
            let Some(ahead) = class else { return };
            if turns == FETCH_FIRST_AHEAD {
                self.links.prefetch(self.classes.get(ahead).head);
            }
            class = self.classes.next(ahead);
        }
        if let Some(ahead) = class {
            self.classes.prefetch(ahead);
        }
    }

    /// Takes a class out of wherever it waits.
    fn displace(&mut self, class: u32) {
        let was = core::mem::replace(&mut self.classes.get_mut(class).place, Place::Served);
        let waiting = match was {
            Place::Served => return,
            Place::Ready => return self.classes.unlink(&mut self.ready, class),
            Place::Throttled => &mut self.throttled,
            Place::Refilling => &mut self.refilling,
        };
        waiting.leave(|until, other| waits(&self.classes, &self.limits, was, until, other));
    }

    /// Puts a class that is nowhere to where it belongs at `now`.
    fn place(&mut self, now: Instant, class: u32) {
        let limits = self.limits(class);
        let state = self.classes.get_mut(class);
        let until = state.waits_until(&limits);
        let (place, waiting) = match state.is_empty() {
            true if until <= now => return self.classes.remove(class),
            true => (Place::Refilling, &mut self.refilling),
            false if until <= now => {
                state.place = Place::Ready;
                return self.classes.push_back(&mut self.ready, class);
            }
            false => (Place::Throttled, &mut self.throttled),
        };
        state.place = place;
        waiting.insert(until, class, |until, other| waits(&self.classes, &self.limits, place, until, other));
    }

    /// Brings classes whose time has come by `now` to where they belong: the end of the ring.
    fn ripen(&mut self, now: Instant) {
        while let Some(class) = self.throttled.ripe(now) {
            self.displace(class);
            self.place(now, class);
        }
        while let Some(class) = self.refilling.ripe(now) {
            self.displace(class);
            self.classes.remove(class);
        }
    }

    /// Puts a request into the list of its class.
    fn link(&mut self, now: Instant, guess: u32, key: ClassKey, id: u32) {
        let (class, fresh) = self.classes.find_guessed(guess, key, || Class::new(Times::default()));
        let state = self.classes.get_mut(class);
        if !state.is_empty() {
            self.links.append(id, class, state.tail);
            state.tail = id;
            return;
        }
        self.links.append(id, class, NIL);
        (state.head, state.tail) = (id, id);
        if state.place == Place::Served && !fresh {
            // It was here in time to be the next one; the note about the service comes later.
            return;
        }
        self.displace(class);
        self.place(now, class);
    }

    /// Changes the bucket of `key`, and puts its class to where it belongs then. Answers the class as it is now.
    fn change(&mut self, now: Instant, key: ClassKey, change: impl FnOnce(&mut Class, &Limits)) -> Share {
        self.catch_up();
        self.ripen(now);
        let (class, _) = self.classes.find_or_insert(key, || Class::new(Times::default()));
        let limits = self.limits(class);
        let was_ready = self.classes.get(class).place == Place::Ready;
        if !was_ready {
            self.displace(class);
        }
        let state = self.classes.get_mut(class);
        change(state, &limits);
        let (waits, times) = (!state.is_empty(), state.times);
        let out = waits && state.ready_at(&limits) > now;
        if was_ready && out {
            self.displace(class);
        }
        if !was_ready || out {
            self.place(now, class);
        }
        Share { waiting: u32::from(waits), out, times }
    }

    /// Adopts new rules: every queued request falls under the rule that matches it now; a bucket whose rule stays keeps
    /// its debt, scaled to the new rate.
    fn adopt(&mut self, now: Instant, rules: &TbfRules) {
        let limits: Vec<Limits> = rules.rules().iter().map(Limits::of).collect();
        let renumbered: Vec<Option<usize>> = self
            .rules
            .rules()
            .iter()
            .map(|old| rules.rules().iter().position(|new| new.name == old.name && new.when == old.when))
            .collect();
        let mut debts = Vec::new();
        let all = |waiting: &Waiting, place| {
            waiting.sorted(|until, class| waits(&self.classes, &self.limits, place, until, class))
        };
        let waiting = [all(&self.throttled, Place::Throttled), all(&self.refilling, Place::Refilling)];
        let waiting = waiting.iter().flatten().map(|(_, class)| *class);
        let ready = core::iter::successors(self.ready.front(), |class| self.classes.next(*class));
        for class in waiting.chain(ready) {
            let key = self.classes.key(class);
            let Some(new) = renumbered[key.rule()] else { continue };
            let (old, state) = (self.limits(class), self.classes.get(class));
            let scaled = |at_ns: u64, from: u64, to: u64| {
                let debt = u128::from(at_ns.saturating_sub(now.0)) * u128::from(from);
                let debt = debt.checked_div(u128::from(to)).unwrap_or(0);
                now.0.saturating_add(u64::try_from(debt).unwrap_or(u64::MAX))
            };
            let requests_ns = match old.request_ns {
                0 => now.0,
                ns => scaled(state.times.requests_ns, limits[new].request_ns, ns),
            };
            let bytes_ns = scaled(state.times.bytes_ns, old.bytes_per_s, limits[new].bytes_per_s);
            debts.push((key.under(new), Times { requests_ns, bytes_ns }));
        }
        (self.rules, self.rules_hash, self.limits) = (rules.clone(), rules.hash(), limits);
        (self.classes, self.ready) = (Groups::default(), List::default());
        (self.throttled, self.refilling) = (Waiting::default(), Waiting::default());
        for (key, times) in debts {
            let (class, _) = self.classes.find_or_insert(key, || Class::new(times));
            self.place(now, class);
        }
        for id in self.links.in_order() {
            let key = self.class_of(&self.links.request(id));
            self.link(now, NIL, key, id.0);
        }
    }
}

impl NrsPolicy for Tbf {
    fn enqueue(&mut self, now: Instant, req: &NrsRequest) {
        self.links.insert(req);
        self.later(self.class_of(req), NIL, What::Arrival(now, req.id.0));
    }

    fn dequeue(&mut self, now: Instant) -> Option<RequestId> {
        if self.ready.is_empty() {
            self.ripen(now);
        }
        let Some(class) = self.ready.front() else {
            if self.links.len() > 0 {
                self.throttled_count += 1;
            }
            return None;
        };
        let limits = self.limits(class);
        self.classes.unlink(&mut self.ready, class);
        let state = self.classes.get_mut(class);
        let id = state.head;
        let (next, bytes) = self.links.remove_first(id);
        state.head = next;
        let out_of_turn = state.holds_back();
        state.charge(now, &limits, bytes);
        state.place = Place::Served;
        let (times, key) = (state.times, self.classes.key(class));
        self.taken = Some(Taken { rules: self.rules_hash, key, bytes, out_of_turn, times });
        self.prefetch_turns();
        self.later(key, class, What::Served(now));
        Some(RequestId(id))
    }

    fn taken(&self) -> Option<Taken> {
        self.taken
    }

    fn on_taken(&mut self, now: Instant, taken: &Taken) -> Option<Share> {
        if taken.rules != self.rules_hash || taken.key.rule() >= self.limits.len() {
            return None;
        }
        Some(self.change(now, taken.key, |class, limits| {
            class.charge(now, limits, taken.bytes);
            class.times = class.times.max(taken.times);
            class.on_turn_elsewhere();
        }))
    }

    fn on_shares(&mut self, now: Instant, taken: &Taken, others: &Share) {
        if taken.rules == self.rules_hash && taken.key.rule() < self.limits.len() {
            self.change(now, taken.key, |class, _| {
                class.times = class.times.max(others.times);
                class.on_turn_here(taken.out_of_turn, others);
            });
        }
    }

    fn promote(&mut self, _now: Instant, id: RequestId, _serve_by: Instant) -> bool {
        self.links.list(id).is_some()
    }

    fn cancel(&mut self, id: RequestId) -> bool {
        if self.links.list(id).is_none() {
            return false;
        }
        self.catch_up();
        let class = self.links.list(id).expect("it is queued");
        let (state, next) = (self.classes.get_mut(class), self.links.next(id.0));
        if state.head != id.0 {
            let (prev, next) = self.links.remove_later(id.0);
            if next == NIL {
                state.tail = prev;
            }
            return true;
        }
        if next != NIL {
            state.head = next;
            self.links.remove_first(id.0);
            return true;
        }
        self.displace(class);
        self.links.remove_first(id.0);
        self.classes.get_mut(class).head = NIL;
        // Without a clock here, a class that is full already is found out by the next dequeue.
        self.place(Instant::ZERO, class);
        true
    }

    fn drain(&mut self, into: &mut Vec<RequestId>) {
        let from = into.len();
        into.extend(self.links.in_order());
        for id in &into[from..] {
            self.cancel(*id);
        }
    }

    fn wakeup_at(&self) -> Option<Instant> {
        if self.ready.is_empty() { self.throttled.first().map(|(until, _)| until) } else { None }
    }

    fn queued(&self) -> usize {
        self.links.len()
    }

    fn counters(&self) -> Counters {
        Counters { throttled: self.throttled_count, ..Counters::default() }
    }

    fn reconfigure(&mut self, now: Instant, config: &NrsConfig) {
        if config.tbf_rules != self.rules {
            self.catch_up();
            self.adopt(now, &config.tbf_rules);
        }
    }
}
