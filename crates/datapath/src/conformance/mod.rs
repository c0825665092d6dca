//! The room's conformance suite: two clients and an OST, with everything that may happen between them.
//!
//! Programs at both clients read, write, punch, cut, extend and flush pages of one object under locks that a server gives and takes back.
//! RPCs are carried out and answered in any order; the OST refuses some ("come again"), damages some, fails some; a client is
//! evicted at times. Checked all along:
//! - what a program reads, or writes into, is the last write or cut of those bytes that was answered to any program, also behind
//!   the end of the object as its client knows it, where it reads zeros; programs write whole pages and parts of them;
//! - under a lock over the object's end its known size is its size; where any lock is held the object reaches as far as is known,
//!   and after a cut here it is known to be no longer until somebody makes it longer;
//! - a flush ends only when everything that was dirty or under way when it began is out, or was told as lost;
//! - a write takes no more pages than an RPC may, and all are under the lock that it names;
//! - no page is dirty, and none is cached, without a lock that covers it;
//! - what has grant is not written together with what has none, and so cannot fail for want of space with it;
//! - no more RPCs are under way than the window has places, which changes, and the last places are urgent ones' only;
//! - an urgent RPC is admitted at once while the places kept for urgent ones are not all taken by such, and otherwise as soon
//!   as one more RPC has ended than urgent ones waited before it;
//! - when an fsync succeeds, everything that was answered to its client before it began is on the OST's stable storage;
//! - in the end nothing waits, every place of the window is free, nothing is dirty or charged, both books of grant say the
//!   same, and the OST has every byte that was not reported as lost.
//!
//! [`FAULTS`] are planted in the room itself ([`types::planted!`]); the suite must find each.
use crate::{Answer, Attempts, Next, PAGE, Rank};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use types::{Extent, Instant, Rng};

mod changes;
mod client;
mod flush;
use client::{Client, Rpc};

/// Parts of a page that programs write by themselves.
const CELLS: usize = 4;
/// What a page holds: of each part the number of the write that it shows; 0: never written, or cut.
type Cells = [u64; CELLS];
/// Bytes of such a part.
const CELL: u64 = PAGE / CELLS as u64;

/// The last write that a page shows.
fn last(cells: &Cells) -> u64 {
    cells.iter().map(|write| write & !changes::CUT).max().unwrap_or(0)
}

/// Pages of the object: more than one block of the map.
const PAGES: u64 = 72;
/// Pages that an RPC takes.
const RPC_PAGES: u64 = 4;
/// Grant of a new session.
const GRANT_PAGES: u64 = 10;
/// Steps with programs, and steps to come to rest afterwards at most.
const STEPS: u64 = 6_000;
const REST_STEPS: u64 = 40_000;

/// A fault in the room, for [`types::planted::plant`]: its name, and what is wrong.
pub const FAULTS: &[(&str, &str)] = &[
    ("claim-beside-change", "Pages that a cut changes are loaded meanwhile."),
    ("claim-number-ignored", "An answer fills a page that was claimed anew since it was asked for."),
    ("arrival-always-kept", "An answer is kept although the page was dropped since."),
    ("drop-keeps-claims", "Dropped pages are still waited for, and kept when they come."),
    ("overwrite-keeps-claim", "A page that was written whole takes what was on its way for it."),
    ("write-out-races", "Two versions of a page are under way to the OST at once."),
    ("grant-mixed", "A write takes pages with and without grant along."),
    ("unwritten-kept", "A page whose write failed is still shown."),
    ("come-again-fails", "A request that the OST had no room for counts as failed."),
    ("write-beyond-lock", "A write takes pages along that its lock is not over."),
    ("rpc-too-long", "A write takes more pages than an RPC may."),
    ("rpc-over-offer", "A write takes more pages than the OST said it takes in an RPC."),
    ("due-put-off", "A page that is written to again is no longer due in a flush that began before."),
    ("flush-ends-under-way", "A flush is over when nothing is dirty, though writes are under way."),
    ("object-forgotten", "An object that had no place in the window leaves the order of write-out."),
    ("place-kept", "A write that failed keeps its place in the window."),
    ("grant-lost", "Grant that a write took is lost when the write was not carried out."),
    ("urgent-unreserved", "Ordinary RPCs take the places that are kept for urgent ones."),
    ("urgent-in-line", "Urgent RPCs wait for their turn among all others."),
    ("window-only-grows", "A window that becomes smaller keeps its places."),
    ("promotion-lost", "What waits under a lock that another client wants stays ordinary."),
    ("late-answer-counts-alone", "An answer that was overtaken hides that a later transaction is not committed."),
    ("edge-keeps-claim", "A page within which a cut ended takes what was on its way for it."),
    ("cut-assured", "What was sure of the object's size stays so when the object is cut."),
    ("assured-for-ever", "What was sure of the object's size stays so when the lock goes."),
    ("unwritten-uncounted", "What the OST says of the size counts alone, whatever is dirty behind it."),
    ("cut-overtakes-nothing", "A size that was asked for before a cut is believed after it."),
    ("lock-overtakes-nothing", "A size that was asked for before a lock came is believed under it."),
    ("lock-assures-nothing", "What came with a lock is forgotten for what came with an older one."),
    ("late-lock-believed", "What comes with a lock is believed of all the object, however late it comes."),
    ("part-shown", "A page is read of which only some bytes are known."),
    ("part-written-whole", "A page of which only some bytes are known is written out whole."),
    ("part-with-gap", "Bytes of a page that nobody knows lie between two writes to it."),
    ("part-leaves-claim", "A page that was known in part is filled by what was on its way before it was written out."),
    ("fsync-trusts-answers", "An fsync takes what was answered for what is on stable storage."),
];

/// What a run saw, to show that it is worth something.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Coverage {
    /// Pages compared with the truth when a program used them.
    pub looks: u64,
    /// Writes of parts of pages that were not cached.
    pub parts: u64,
    /// Pages that were known in part and loaded.
    pub parts_filled: u64,
    /// Holes that were answered.
    pub changes: u64,
    /// Looks behind the object's end as a client knows it.
    pub looks_beyond: u64,
    /// Cuts that were carried out and answered.
    pub cuts: u64,
    /// Extensions that were carried out and answered.
    pub extensions: u64,
    /// Locks that were given back to the other client.
    pub revocations: u64,
    /// Answers that were too late for some of their pages.
    pub late: u64,
    /// Answers about the size that a cut or a lock has overtaken.
    pub overtaken: u64,
    /// Locks that came later than others, or than a cut, that were asked for later.
    pub late_locks: u64,
    /// "Come again".
    pub refusals: u64,
    /// Writes that failed for good.
    pub failures: u64,
    /// Evictions.
    pub evictions: u64,
    /// Flushes that ended.
    pub flushes: u64,
    /// Changes of the size of a window.
    pub resizes: u64,
    /// Fsyncs that succeeded because all answered was known to be on stable storage.
    pub fsyncs_known: u64,
    /// Fsyncs that succeeded because the OST answered a sync.
    pub fsyncs_asked: u64,
}

/// The OST, its lock server, and the network.
struct World {
    rng: Rng,
    clock: u64,
    /// What each page holds at the OST, and what it must show.
    ost: Vec<Cells>,
    truth: Vec<Cells>,
    /// Programs are where the object ends.
    at_end: bool,
    /// Bytes that the OST has.
    size: u64,
    /// How often something may have made the object longer.
    longer: u64,
    /// The next write fails.
    fails_next: bool,
    /// The last write of each page that the OST carried out.
    arrived: Vec<u64>,
    versions: u64,
    /// The OST's last transaction, the last that is on stable storage, and the last that changed each part of each page.
    transaction: u64,
    committed: u64,
    changed_by: Vec<Cells>,
    /// The server's book of each client's grant, in bytes.
    granted: [u64; 2],
    flights: Vec<Flight>,
    locks: u64,
    seen: Coverage,
}

/// An RPC under way.
struct Flight {
    client: usize,
    rpc: Rpc,
    tries: Attempts,
    /// Its answer is not there before.
    answered_at: u64,
    /// Carried out, with what it read; or why not. `None`: on its way to the OST.
    answer: Option<(Answer, Vec<u64>)>,
    /// What the answer says besides: its transaction, and the last one that was on stable storage.
    transaction: u64,
    committed: u64,
}

type Verdict = Result<(), String>;

/// Runs one seed.
///
/// # Errors
/// The rule that was broken, and when.
pub fn check(seed: u64) -> Result<Coverage, String> {
    let mut w = World {
        rng: Rng::named(seed, "datapath.conformance"),
        clock: 0,
        ost: vec![[0; CELLS]; PAGES as usize],
        truth: vec![[0; CELLS]; PAGES as usize],
        size: 0,
        longer: 0,
        fails_next: false,
        at_end: seed % 2 == 1,
        arrived: vec![0; PAGES as usize],
        versions: 0,
        transaction: 0,
        committed: 0,
        changed_by: vec![[0; CELLS]; PAGES as usize],
        granted: [GRANT_PAGES * PAGE; 2],
        flights: Vec::new(),
        locks: 0,
        seen: Coverage::default(),
    };
    let mut clients = [0, 1].map(|c| Client::new(c, (1 + w.rng.below(4) as usize, w.rng.below(3) as usize)));
    let at = |w: &World, e: String| format!("seed {seed}, step {}: {e}", w.clock);
    for _ in 0..STEPS {
        w.step(&mut clients).map_err(|e| at(&w, e))?;
    }
    w.rest(&mut clients).map_err(|e| at(&w, e))?;
    Ok(w.seen)
}

impl World {
    fn step(&mut self, clients: &mut [Client; 2]) -> Verdict {
        self.clock += 1;
        let which = self.rng.below(2) as usize;
        match self.rng.below(100) {
            0..45 => self.deliver(clients)?,
            45..60 => clients[which].read(self)?,
            60..80 => clients[which].write(self)?,
            80..87 => clients[which].begin_change(self),
            87..91 => self.ask_lock(which, clients),
            91..94 => clients[which].reclaim(self),
            94..96 => self.send(which, Rpc::Glimpse(clients[which].pages.moment())),
            96 => clients[which].flush_some(self),
            97 => clients[which].fsync(),
            98 if self.rng.chance(0.1) => clients[which].resize(self),
            99 if self.rng.chance(0.3) => self.committed += self.rng.below(self.transaction - self.committed + 1),
            98 if self.rng.chance(0.04) => self.evict(&mut clients[which])?,
            _ => {}
        }
        for c in clients.iter_mut() {
            c.tend(self)?;
        }
        for (client, other) in [(0, 1), (1, 0)] {
            clients[client].size_is_true(self, clients[other].unwritten_end())?;
        }
        Ok(())
    }

    /// Lets everything end and looks at what is left.
    fn rest(&mut self, clients: &mut [Client; 2]) -> Verdict {
        for _ in 0..REST_STEPS {
            self.clock += 1;
            self.deliver(clients)?;
            for c in clients.iter_mut() {
                c.flush_some(self);
                c.tend(self)?;
            }
            if self.flights.is_empty() && clients.iter().all(Client::is_idle) {
                break;
            }
        }
        for (c, granted) in clients.iter_mut().zip(self.granted) {
            c.is_at_rest(granted)?;
        }
        match (0..PAGES as usize).find(|p| self.ost[*p] != self.truth[*p]) {
            Some(p) => Err(format!("page {p} is {:?} at the OST and should be {:?}", self.ost[p], self.truth[p])),
            None => Ok(()),
        }
    }

    fn now(&self) -> Instant {
        Instant(self.clock)
    }
    fn version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }
    fn send(&mut self, client: usize, rpc: Rpc) {
        // A few answers are late: much may happen meanwhile.
        let often = match rpc {
            Rpc::Glimpse(_) => 0.8,
            Rpc::Lock { .. } => 0.3,
            _ => 0.15,
        };
        let late = if self.rng.chance(often) { self.rng.below(200) } else { 0 };
        self.flights.push(Flight {
            client,
            rpc,
            tries: Attempts::default(),
            answered_at: self.clock + late,
            answer: None,
            transaction: 0,
            committed: 0,
        });
    }

    /// One RPC, any of them, is carried out, or its answer arrives.
    fn deliver(&mut self, clients: &mut [Client; 2]) -> Verdict {
        if self.flights.is_empty() {
            return Ok(());
        }
        let i = self.rng.below(self.flights.len() as u64) as usize;
        if self.flights[i].answer.is_none() {
            let before = self.transaction;
            let answer = self.carry_out(i, clients);
            let flight = &mut self.flights[i];
            flight.answer = Some(answer);
            let transaction = if self.transaction > before { self.transaction } else { 0 };
            (flight.transaction, flight.committed) = (transaction, self.committed);
            return Ok(());
        }
        if self.flights[i].answered_at > self.clock {
            return Ok(());
        }
        let mut flight = self.flights.swap_remove(i);
        let (answer, values) = flight.answer.take().expect("looked at just now");
        self.seen.refusals += u64::from(answer == Answer::ComeAgain);
        if flight.tries.on_answer(answer) != Next::Over {
            self.flights.push(flight);
            return Ok(());
        }
        let client = &mut clients[flight.client];
        client.told(flight.transaction, flight.committed);
        client.answered(self, flight.rpc, answer, &values)
    }

    fn carry_out(&mut self, i: usize, clients: &mut [Client; 2]) -> (Answer, Vec<u64>) {
        match self.rng.below(20) {
            0..3 => return (Answer::ComeAgain, Vec::new()),
            3 => return (Answer::Damaged, Vec::new()),
            4 if self.rng.chance(0.2) => return (Answer::Failed, Vec::new()),
            _ => {}
        }
        if matches!(self.flights[i].rpc, Rpc::Write { .. }) && core::mem::take(&mut self.fails_next) {
            return (Answer::Failed, Vec::new());
        }
        let flight = &self.flights[i];
        let mut values = Vec::new();
        match &flight.rpc {
            Rpc::Read { claim, .. } => {
                values.extend(self.ost[claim.first as usize..claim.end as usize].iter().flatten());
            }
            Rpc::Write { out, values, .. } => {
                self.transaction += 1;
                for (page, written) in out.pages.iter().zip(values) {
                    let p = *page as usize;
                    let brought = |cell: &usize| {
                        let bytes = Extent::at(page * PAGE + *cell as u64 * CELL, CELL);
                        out.extents.iter().any(|e| e.overlaps(&bytes))
                    };
                    for cell in (0..CELLS).filter(brought) {
                        // What was there before is as stable as it was.
                        if core::mem::replace(&mut self.ost[p][cell], written[cell]) != written[cell] {
                            self.changed_by[p][cell] = self.transaction;
                        }
                    }
                    self.arrived[p] = self.arrived[p].max(last(written));
                }
                let end = out.extents.last().map_or(0, |e| e.end);
                self.size = self.size.max(end);
                self.longer += 1;
                self.granted[flight.client] -= out.granted as u64 * PAGE;
            }
            Rpc::Sync(_) => self.committed = self.transaction,
            Rpc::Change(change) => self.change(*change),
            Rpc::Lock { first, end, write, .. } => {
                let wish = (*first, *end, *write);
                values = self.give_lock(wish, clients);
            }
            // The other one is asked what it has not written out.
            Rpc::Glimpse(_) => values.push(self.size.max(clients[1 - flight.client].unwritten_end())),
        }
        (Answer::Done, values)
    }

    /// What an answered write gives back, so that grants go on.
    fn grant_for(&mut self, client: usize) -> u64 {
        let most = (GRANT_PAGES * PAGE).saturating_sub(self.granted[client]);
        let bytes = self.rng.below(most / PAGE + 1) * PAGE;
        self.granted[client] += bytes;
        bytes
    }

    /// A client wants a lock over some pages.
    fn ask_lock(&mut self, which: usize, clients: &mut [Client; 2]) {
        // Often a few pages beside the border of two blocks, so that much happens to the same ones.
        let (from, among, len) = match self.rng.below(10) {
            // Or where the object ends.
            0..7 if self.at_end => ((self.size / PAGE).saturating_sub(3), 6, 4),
            0..6 => (60, 8, 8),
            _ => (0, PAGES, 24),
        };
        let first = (from + self.rng.below(among)).min(PAGES - 1);
        let to_the_end = self.rng.chance(if self.at_end { 0.25 } else { 0.4 });
        let end = if to_the_end { PAGES } else { (first + 1 + self.rng.below(len)).min(PAGES) };
        let write = self.rng.chance(0.6);
        let asks = self.flights.iter().filter(|f| f.client == which && matches!(f.rpc, Rpc::Lock { .. })).count();
        if clients[which].locks.len() >= 4 {
            let oldest = clients[which].locks[0].id;
            clients[which].call_back(oldest, self.now());
        } else if asks < 3 {
            let asked = clients[which].pages.moment();
            self.send(which, Rpc::Lock { first, end, write, asked, called: false });
        }
    }
    /// The server gives a lock, with the object's size; or calls back what is in its way, be that of the same client, which asks again later.
    fn give_lock(&mut self, (first, end, write): (u64, u64, bool), clients: &mut [Client; 2]) -> Vec<u64> {
        let now = self.now();
        let conflicts = |f: u64, e: u64, w: bool| f < end && first < e && (write || w);
        let mut free = true;
        for client in clients {
            let leaving = client.locks.iter().filter(|l| conflicts(l.first, l.end, l.write)).map(|l| l.id);
            let leaving: Vec<u64> = leaving.collect();
            free &= leaving.is_empty();
            leaving.into_iter().for_each(|id| client.call_back(id, now));
        }
        for flight in self.flights.iter_mut().filter(|f| f.answer.as_ref().is_some_and(|a| !a.1.is_empty())) {
            if let Rpc::Lock { first, end, write, called, .. } = &mut flight.rpc
                && conflicts(*first, *end, *write)
            {
                (*called, free) = (true, false);
            }
        }
        if !free {
            return Vec::new();
        }
        self.locks += 1;
        vec![self.locks, self.size]
    }

    /// The OST evicts a client: its locks are gone, what it has under way is refused, its book begins anew.
    fn evict(&mut self, client: &mut Client) -> Verdict {
        self.seen.evictions += 1;
        for page in 0..PAGES {
            if client.pages.is_unwritten(Extent::at(page * PAGE, PAGE)) {
                self.truth[page as usize] = self.ost[page as usize];
            }
        }
        client.give_up_fsync();
        let first = self.rng.chance(0.5);
        if first {
            client.lose_locks(self);
        }
        // What is sent under locks that are gone is refused as well.
        while let Some(i) = self.flights.iter().position(|f| f.client == client.number) {
            let rpc = self.flights.swap_remove(i).rpc;
            client.answered(self, rpc, Answer::Failed, &[])?;
        }
        if !first {
            client.lose_locks(self);
        }
        self.granted[client.number] = GRANT_PAGES * PAGE;
        client.target.books.on_session(self.clock, false, GRANT_PAGES * PAGE);
        Ok(())
    }
}

fn rank(urgent: bool, now: Instant) -> Rank {
    if urgent { Rank::Urgent(now) } else { Rank::Ordinary }
}

/// Seeds from `seed` on until the suite finds a planted fault, at most `most`; `None`: it does not.
#[must_use]
pub fn seeds_until_found(fault: &'static str, most: u64) -> Option<u64> {
    types::planted::plant(Some(fault));
    let found = (0..most).position(|seed| check(seed).is_err());
    types::planted::plant(None);
    found.map(|n| n as u64 + 1)
}

/// The room's page: what its suite finds, and how soon.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Datapath room\n\nGenerated from the conformance suite; edit the code, not this page.\n\n\
         One client's path to one OST (`crates/datapath`): page validity, claims of loads, changes past the cache, the object's size, \
         dirty bytes and grant, the window of RPCs, what is written out next and when a flush is over. The suite runs two clients and an OST \
         with reordered answers, refusals, damaged transfers, failures, revocations, holes, cuts, extensions, fsyncs and evictions.\n\n\
         ## Planted faults\n\nSeeds is how many runs from seed 0 on it takes until a fault that is planted in the room is found.\n\n\
         | fault | what is wrong | seeds |\n|---|---|---|\n",
    );
    for (name, what) in FAULTS {
        let seeds = seeds_until_found(name, 1000).map_or("not found".to_string(), |n| n.to_string());
        out.push_str(&format!("| `{name}` | {what} | {seeds} |\n"));
    }
    out
}
