//! One client of the suite: what a driver does with the room.
use super::changes::Change;
use super::flush::{Flush, Local};
use super::{CELL, CELLS, Cells, PAGES, RPC_PAGES, Verdict, World, last};
use crate::{
    Answer, ChosenOf, Claimed, Due, Fate, Fsync, Moment, PAGE, Pages, Rank, Target, TargetLimits, Ticket, Unsynced,
    WriteOut,
};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::{Extent, Instant};

/// A lock of a client.
pub(super) struct Lock {
    pub(super) id: u64,
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) write: bool,
    pub(super) leaving: bool,
    /// Loads and changes that use it.
    pub(super) users: u32,
    /// It leaves: what is dirty under it is written out.
    flush: Option<Flush>,
}

impl Lock {
    pub(super) fn new(id: u64, first: u64, end: u64, write: bool) -> Lock {
        Lock { id, first, end, write, leaving: false, users: 0, flush: None }
    }
    pub(super) fn extent(&self) -> Extent {
        Extent::new(self.first * PAGE, self.end * PAGE)
    }
    pub(super) fn covers(&self, page: u64) -> bool {
        (self.first..self.end).contains(&page)
    }
}

/// An RPC.
pub(super) enum Rpc {
    Read {
        claim: Claimed,
        lock: u64,
        urgent: bool,
    },
    Write {
        out: WriteOut,
        values: Vec<Cells>,
        urgent: bool,
    },
    Change(Change),
    /// How long is the object? Asked at this moment of the room.
    Glimpse(Moment),
    /// A lock over pages, asked for at this moment of the room. It was called back before the client heard of it.
    Lock {
        first: u64,
        end: u64,
        write: bool,
        asked: Moment,
        called: bool,
    },
    Sync(u64),
}

/// What waits for a place in the window.
pub(super) enum Job {
    Read {
        claim: Claimed,
        lock: u64,
    },
    /// One write RPC of what is due.
    Write {
        due: Due,
        lock: u64,
    },
}

/// An fsync under way: what it must find on stable storage.
struct Syncing {
    /// The last write of each part of each page by a program here; 0: none, or it was reported as lost.
    wrote: Vec<Cells>,
    /// The last transaction that was answered.
    answered: u64,
    /// What goes first.
    flush: Flush,
    /// By which number the OST was asked.
    asked: Option<u64>,
}

/// An urgent RPC that waits, and how many may end before it must be admitted.
struct Urgent {
    ticket: Ticket,
    since: Instant,
    ends_left: u32,
}

pub(super) struct Client {
    pub(super) number: usize,
    pub(super) pages: Pages<Cells>,
    pub(super) target: Target<()>,
    pub(super) locks: Vec<Lock>,
    /// Places of the window, and those of them that are kept for urgent RPCs.
    places: usize,
    kept: u32,
    pub(super) jobs: HashMap<Ticket, Job, FxBuildHasher>,
    urgent: Vec<Urgent>,
    urgent_under_way: u32,
    under_way: u32,
    /// An RPC went out beyond its window.
    crowded: Option<String>,
    /// Flushes of what has no grant.
    through: Vec<Flush>,
    /// The last write of each page that was told as lost, or dropped with its lock.
    pub(super) lost: Vec<u64>,
    /// Changes that have begun and are not sent yet: what is dirty there goes first.
    pub(super) changes: Vec<(Change, Flush)>,
    pub(super) changes_sent: u32,
    /// A change of the size was sent.
    pub(super) sizing: bool,
    /// How long the last cut here has left the object, and how often it had become longer before.
    pub(super) cut_to: Option<(u64, u64)>,
    unsynced: Unsynced,
    wrote: Vec<Cells>,
    /// As [`Unsynced::answered`] should be.
    answered: u64,
    syncing: Option<Syncing>,
}

impl Client {
    pub(super) fn new(number: usize, (places, kept): (usize, usize)) -> Client {
        let (dirty_bytes_max, rpc_pages_max) = (1 << 20, 2 * RPC_PAGES as usize);
        let mut target =
            Target::new(TargetLimits { dirty_bytes_max, rpcs_max: places, urgent_rpcs: kept, rpc_pages_max });
        target.on_rpc_bytes_offered(RPC_PAGES * PAGE);
        target.books.on_session(1, false, super::GRANT_PAGES * PAGE);
        let pages = Pages::default();
        Client {
            number,
            pages,
            target,
            locks: Vec::new(),
            places,
            kept: kept as u32,
            jobs: HashMap::default(),
            urgent: Vec::new(),
            urgent_under_way: 0,
            under_way: 0,
            crowded: None,
            through: Vec::new(),
            lost: vec![0; PAGES as usize],
            changes: Vec::new(),
            changes_sent: 0,
            sizing: false,
            cut_to: None,
            unsynced: Unsynced::default(),
            wrote: vec![[0; CELLS]; PAGES as usize],
            answered: 0,
            syncing: None,
        }
    }
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
            && self.syncing.is_none()
            && self.changes.is_empty()
            && self.through.is_empty()
            && self.under_way + self.changes_sent == 0
            && self.pages.unwritten_pages() == 0
    }
    pub(super) fn lock(&mut self, id: u64) -> Option<&mut Lock> {
        self.locks.iter_mut().find(|l| l.id == id)
    }
    pub(super) fn release(&mut self, id: u64) {
        if let Some(lock) = self.lock(id) {
            lock.users -= 1;
        }
    }
    /// A page under a lock that is held and not on its way out.
    pub(super) fn pick(&self, w: &mut World, write: bool) -> Option<(u64, u64)> {
        let usable: Vec<&Lock> = self.locks.iter().filter(|l| !l.leaving && (l.write || !write)).collect();
        let lock = usable.get(w.rng.below(usable.len().max(1) as u64) as usize)?;
        Some((lock.id, lock.first + w.rng.below(lock.end - lock.first)))
    }
    /// What a page shows, if it is cached; it must be the truth.
    fn look(&self, w: &mut World, page: u64) -> Result<bool, String> {
        let beyond = page * PAGE >= self.pages.size();
        let value = if beyond { Some([0; CELLS]) } else { self.pages.get(page).copied() };
        // Who reads beside a cut may see both.
        let Some(value) = value.filter(|_| !self.pages.is_changing(page, page + 1)) else { return Ok(false) };
        w.seen.looks += 1;
        w.seen.looks_beyond += u64::from(beyond);
        let truth = w.truth[page as usize];
        if value != truth {
            return Err(format!(
                "client {} sees writes {value:?} in page {page}, and should see {truth:?}",
                self.number
            ));
        }
        Ok(true)
    }

    pub(super) fn read(&mut self, w: &mut World) -> Verdict {
        let Some((id, page)) = self.pick(w, false) else { return Ok(()) };
        if self.look(w, page)? {
            let _ = self.pages.on_used(page);
            return Ok(());
        }
        let end = self.lock(id).map_or(page, |l| l.end).min(page + 1 + w.rng.below(8));
        self.load(w, id, page, end);
        Ok(())
    }
    fn load(&mut self, w: &mut World, lock: u64, first: u64, end: u64) {
        let end = end.min(self.pages.size().div_ceil(PAGE));
        for claim in self.pages.on_missing(first.min(end), end, RPC_PAGES) {
            if let Some(lock) = self.lock(lock) {
                lock.users += 1;
            }
            self.ask(w, Rank::Ordinary, lock, Job::Read { claim, lock });
        }
    }
    /// An answer says which transaction it tells of, and what is on stable storage.
    pub(super) fn told(&mut self, transaction: u64, committed: u64) {
        self.unsynced.on_answered(transaction);
        let _ = self.unsynced.on_committed(committed);
        self.answered = self.answered.max(transaction);
    }
    /// A program wants all that was answered on stable storage.
    pub(super) fn fsync(&mut self) {
        if self.syncing.is_none() {
            let flush = Flush::of_now(&mut self.pages, Extent::ALL);
            self.syncing = Some(Syncing { wrote: self.wrote.clone(), answered: self.answered, flush, asked: None });
        }
    }
    /// An fsync under way will answer an error, and what was written before is no promise any more.
    pub(super) fn give_up_fsync(&mut self) {
        self.syncing = None;
        self.wrote.fill([0; CELLS]);
    }
    fn is_flushing(&self) -> bool {
        self.syncing.as_ref().is_some_and(|s| s.asked.is_none())
    }
    fn go_on_with_fsync(&mut self, w: &mut World) -> Verdict {
        if !self.is_flushing() {
            return Ok(());
        }
        let Some(mut syncing) = self.syncing.take() else { return Ok(()) };
        let over = self.go_on(w, &mut syncing.flush, false)?;
        self.syncing = Some(syncing);
        if !over {
            return Ok(());
        }
        match self.unsynced.on_fsync() {
            Fsync::Done => {
                w.seen.fsyncs_known += 1;
                self.synced(w)
            }
            Fsync::Ask => {
                let number = w.version();
                self.syncing.iter_mut().for_each(|s| s.asked = Some(number));
                w.send(self.number, Rpc::Sync(number));
                Ok(())
            }
        }
    }
    /// An fsync succeeds.
    fn synced(&mut self, w: &World) -> Verdict {
        let Some(Syncing { wrote, answered, .. }) = self.syncing.take() else { return Ok(()) };
        if answered > w.committed {
            let committed = w.committed;
            return Err(format!("an fsync succeeds: transaction {answered} was answered, {committed} is committed"));
        }
        let unstable = |&(p, cell): &(usize, usize)| {
            let write = wrote[p][cell];
            let is_last = write != 0 && w.truth[p][cell] == write;
            is_last && (w.ost[p][cell] != write || w.changed_by[p][cell] > w.committed)
        };
        match (0..wrote.len()).flat_map(|p| (0..CELLS).map(move |cell| (p, cell))).find(unstable) {
            Some((p, cell)) => {
                let write = wrote[p][cell];
                Err(format!("an fsync succeeds, and write {write} of page {p} is not on stable storage"))
            }
            None => Ok(()),
        }
    }
    /// A program writes some pages: room for them is asked for once, grant is taken by each.
    pub(super) fn write(&mut self, w: &mut World) -> Verdict {
        let Some((id, mut first)) = self.pick(w, true) else { return Ok(()) };
        if w.rng.chance(0.2) {
            first = self.loading_under(id).unwrap_or(first);
        }
        if !self.target.books.has_room(PAGE) {
            self.flush_some(w);
            return Ok(());
        }
        let end = self.lock(id).map_or(first, |l| l.end).min(first + 1 + w.rng.below(6));
        for page in first..end {
            if self.pages.is_changing(page, page + 1) || !self.write_page(w, id, page)? {
                break;
            }
        }
        loop {
            let mut local = Local { pages: &mut self.pages, locks: &self.locks };
            let Some(chosen) = self.target.next_full(&(), &mut local) else { return Ok(()) };
            self.start_write(w, chosen, false);
        }
    }
    /// A page on its way, under a lock.
    fn loading_under(&self, id: u64) -> Option<u64> {
        let lock = self.locks.iter().find(|l| l.id == id)?;
        (lock.first..lock.end).find(|p| self.pages.is_loading(*p))
    }
    /// Which parts of a page a program writes. They reach to its end where the object does not: then all that was written of it ends
    /// with a page.
    fn cells_to_write(w: &mut World, page: u64) -> core::ops::Range<usize> {
        if w.rng.chance(0.5) {
            return 0..CELLS;
        }
        let first = w.rng.below(CELLS as u64) as usize;
        let is_within = w.size >= (page + 1) * PAGE;
        let cells = 1 + w.rng.below((CELLS - first) as u64) as usize;
        first..if is_within { first + cells } else { CELLS }
    }
    /// False: the page has to be loaded first.
    fn write_page(&mut self, w: &mut World, lock: u64, page: u64) -> Result<bool, String> {
        self.look(w, page)?;
        let cells = Client::cells_to_write(w, page);
        let bytes = (cells.start as u64 * CELL) as u32..(cells.end as u64 * CELL) as u32;
        if !self.pages.takes(page, &bytes) {
            self.load(w, lock, page, page + 1);
            return Ok(false);
        }
        let fresh = self.pages.held(page).is_none();
        if fresh {
            self.pages.on_put(page, [0; CELLS], false);
        }
        let version = w.version();
        w.longer += 1;
        self.pages.held_mut(page).expect("it is cached")[cells.clone()].fill(version);
        w.truth[page as usize][cells.clone()].fill(version);
        self.wrote[page as usize][cells].fill(version);
        let valid = self.pages.size().saturating_sub(page * PAGE).min(PAGE);
        w.seen.parts += u64::from(fresh && bytes != (0..PAGE as u32));
        let was_clean = self.pages.on_written_to(page, bytes, fresh, valid);
        self.pages.on_grown((page + 1) * PAGE);
        if !self.target.on_written(&mut self.pages, page, was_clean) {
            self.through.push(Flush::of_now(&mut self.pages, Extent::at(page * PAGE, PAGE)));
        }
        self.target.on_dirty_object((), &mut self.pages);
        Ok(true)
    }
    pub(super) fn reclaim(&mut self, w: &mut World) {
        let mut page = w.rng.below(PAGES);
        if w.rng.chance(0.5) {
            // One that is here in part while the rest of it is on its way.
            let parts = (0..PAGES).filter(|p| self.pages.part(*p).is_some() && self.pages.is_evictable(*p));
            page = parts.max_by_key(|p| self.pages.is_loading(*p)).unwrap_or(page);
        }
        if self.pages.is_evictable(page) {
            let _ = self.pages.on_reclaimed(page);
        }
    }
    /// Starts a write RPC if there is a place for it.
    pub(super) fn flush_some(&mut self, w: &mut World) {
        let mut round = self.target.begin_round();
        loop {
            let mut local = Local { pages: &mut self.pages, locks: &self.locks };
            let Some(chosen) = self.target.next_oldest(&mut round, &mut local) else { return };
            self.start_write(w, chosen, false);
        }
    }
    pub(super) fn ask(&mut self, w: &mut World, rank: Rank, tag: u64, job: Job) -> Ticket {
        let ticket = self.target.window.on_ask(rank, tag);
        self.jobs.insert(ticket, job);
        if matches!(rank, Rank::Urgent(_)) {
            self.expects(ticket, w.now());
        }
        self.admit(w);
        ticket
    }
    /// From now on the ticket is urgent: so many RPCs may end at most before it is admitted. Those of one moment go in any
    /// order.
    fn expects(&mut self, ticket: Ticket, now: Instant) {
        self.urgent.iter_mut().filter(|u| u.since == now).for_each(|u| u.ends_left += 1);
        let ends_left = self.urgent.len() as u32 + 1 + self.under_way.saturating_sub(self.places as u32 + self.kept);
        self.urgent.push(Urgent { ticket, since: now, ends_left });
    }
    /// Another client wants the lock.
    pub(super) fn call_back(&mut self, id: u64, now: Instant) {
        let Some(lock) = self.lock(id).filter(|l| !l.leaving) else { return };
        lock.leaving = true;
        self.target.window.on_promoted(id, Rank::Urgent(now));
        let of = |job: &Job| matches!(job, Job::Read { lock, .. } | Job::Write { lock, .. } if *lock == id);
        let found = self.jobs.iter().filter(|(t, job)| of(job) && self.urgent.iter().all(|u| u.ticket != **t));
        let mut found: Vec<Ticket> = found.map(|(t, _)| *t).collect();
        found.sort_unstable();
        found.into_iter().for_each(|t| self.expects(t, now));
    }
    /// An administrator changes the number of places.
    pub(super) fn resize(&mut self, w: &mut World) {
        let before = core::mem::replace(&mut self.places, 1 + w.rng.below(4) as usize);
        self.target.on_rpcs_max(self.places);
        w.seen.resizes += 1;
        let fewer = before.saturating_sub(self.places) as u32;
        self.urgent.iter_mut().for_each(|u| u.ends_left += fewer);
    }
    fn admit(&mut self, w: &mut World) {
        while let Some((ticket, rank)) = self.target.window.next_admitted() {
            self.urgent.retain(|u| u.ticket != ticket);
            let urgent = matches!(rank, Rank::Urgent(_));
            match self.jobs.remove(&ticket).expect("each ticket has a job") {
                Job::Read { claim, lock } => self.send(w, Rpc::Read { claim, lock, urgent }, urgent),
                Job::Write { due, .. } => {
                    let mut local = Local { pages: &mut self.pages, locks: &self.locks };
                    let chosen = self.target.on_place(&(), due, &mut local);
                    self.start_write(w, chosen, urgent);
                }
            }
        }
    }
    fn send(&mut self, w: &mut World, rpc: Rpc, urgent: bool) {
        let room = self.places as u32 + if urgent { self.kept } else { 0 };
        if self.under_way >= room {
            self.crowded = Some(format!("client {}: one RPC more is under way than {room}", self.number));
        }
        self.under_way += 1;
        self.urgent_under_way += u32::from(urgent);
        w.send(self.number, rpc);
    }
    /// Sends what was chosen, if anything was.
    fn start_write(&mut self, w: &mut World, chosen: ChosenOf<(), Local<'_>>, urgent: bool) {
        let Some((out, right)) = chosen.write else { return };
        let lock = self.locks.iter().find(|l| l.id == right && l.write);
        let beyond = out.pages.iter().find(|p| !lock.is_some_and(|l| l.covers(**p)));
        if let Some(page) = beyond {
            self.crowded = Some(format!("client {} writes page {page} under a lock that is not over it", self.number));
        }
        if out.pages.len() > RPC_PAGES as usize {
            self.crowded = Some(format!("client {} writes {} pages at once", self.number, out.pages.len()));
        }
        let values = out.pages.iter().map(|p| *self.pages.held(*p).expect("a dirty page is cached")).collect();
        self.send(w, Rpc::Write { out, values, urgent }, urgent);
    }

    /// What a driver's tasks do by themselves: changes and locks that leave go on.
    pub(super) fn tend(&mut self, w: &mut World) -> Verdict {
        self.admit(w);
        self.go_on_with_changes(w)?;
        self.write_through(w)?;
        self.go_on_with_fsync(w)?;
        let leaving: Vec<u64> = self.locks.iter().filter(|l| l.leaving).map(|l| l.id).collect();
        for id in leaving {
            self.give_back(w, id)?;
        }
        let has_places = self.under_way < self.places as u32 + self.kept;
        if !self.urgent.is_empty() && self.urgent_under_way < self.kept && has_places {
            return Err(format!(
                "client {}: an urgent RPC waits for places that are kept for urgent ones",
                self.number
            ));
        }
        self.crowded.take().map_or(Ok(()), Err)?;
        self.pages_have_locks()
    }
    /// Pages that have no grant are written out.
    fn write_through(&mut self, w: &mut World) -> Verdict {
        for mut flush in core::mem::take(&mut self.through) {
            if !self.go_on(w, &mut flush, false)? {
                self.through.push(flush);
            }
        }
        Ok(())
    }
    fn give_back(&mut self, w: &mut World, id: u64) -> Verdict {
        let lock = self.locks.iter_mut().find(|l| l.id == id).expect("it is leaving");
        let (extent, write) = (lock.extent(), lock.write);
        let flush = lock.flush.take();
        let mut flush = flush.unwrap_or_else(|| Flush::of_lock(&self.pages, extent, id));
        let over = !write || self.go_on(w, &mut flush, true)?;
        self.lock(id).expect("it is leaving").flush = Some(flush);
        if !over || self.lock(id).is_some_and(|l| l.users > 0) {
            return Ok(());
        }
        self.locks.retain(|l| l.id != id);
        w.seen.revocations += 1;
        let lost = self.drop_uncovered(extent);
        if lost > 0 { Err(format!("{lost} dirty pages went with a lock that was flushed")) } else { Ok(()) }
    }
    fn drop_uncovered(&mut self, extent: Extent) -> usize {
        self.less_assured();
        let of = |locks: &mut dyn Iterator<Item = &Lock>| locks.map(Lock::extent).collect::<Vec<_>>();
        let writing = of(&mut self.locks.iter().filter(|l| l.write));
        let all = of(&mut self.locks.iter().filter(|l| !l.leaving));
        self.target.discard_uncovered(&mut self.pages, extent, &writing, &all).dropped.dirty
    }
    /// The OST evicted this client.
    pub(super) fn lose_locks(&mut self, w: &World) {
        self.lost.fill(w.versions);
        while let Some(lock) = self.locks.pop() {
            self.drop_uncovered(lock.extent());
        }
        for (Change { first, end, .. }, _) in self.changes.drain(..) {
            self.pages.on_changed(first, end);
        }
    }

    /// An RPC was answered for good.
    pub(super) fn answered(&mut self, w: &mut World, rpc: Rpc, answer: Answer, read: &[u64]) -> Verdict {
        match rpc {
            Rpc::Read { claim, lock, urgent } => {
                for (page, came) in (claim.first..claim.end).zip(read.as_chunks::<CELLS>().0) {
                    if self.pages.on_arrived(claim, page) {
                        let merged = self.merged(w, page, *came);
                        self.pages.on_put(page, merged, false);
                    } else {
                        w.seen.late += 1;
                    }
                }
                self.pages.on_unclaimed(claim);
                self.release(lock);
                self.target.window.on_end();
                self.ended(w, urgent)
            }
            Rpc::Write { out, values, urgent } => {
                if out.granted != 0 && out.granted != out.pages.len() {
                    return Err(format!("{} of {} pages of a write have grant", out.granted, out.pages.len()));
                }
                match self.target.on_write_ended(&mut self.pages, &out, answer, true) {
                    Fate::Written => {
                        self.target.books.on_grant(w.grant_for(self.number));
                        self.stored(out.extents.last().map_or(0, |e| e.end));
                    }
                    Fate::Obsolete | Fate::Refused | Fate::Lost => self.write_failed(w, &out, &values, answer),
                }
                self.ended(w, urgent)
            }
            // An fsync that was given up meanwhile is nobody's any more, and a later one asks for itself.
            Rpc::Sync(number) if self.syncing.as_ref().is_none_or(|s| s.asked != Some(number)) => Ok(()),
            Rpc::Sync(_) if answer == Answer::Done => {
                w.seen.fsyncs_asked += 1;
                self.synced(w)
            }
            Rpc::Sync(_) => {
                self.syncing = None;
                Ok(())
            }
            Rpc::Change(change) => {
                self.change_answered(w, change, answer);
                Ok(())
            }
            Rpc::Glimpse(asked) => {
                if answer == Answer::Done {
                    self.told_size(w, asked, read[0]);
                }
                Ok(())
            }
            Rpc::Lock { first, end, write, asked, called } => {
                if let [id, size] = *read {
                    self.lock_came(w, Lock::new(id, first, end, write), asked, size);
                    if called {
                        self.call_back(id, w.now());
                    }
                }
                Ok(())
            }
        }
    }
    /// A page that came, but for what is known of it here.
    fn merged(&self, w: &mut World, page: u64, mut came: Cells) -> Cells {
        if let Some((known, held)) = self.pages.part(page).zip(self.pages.held(page)) {
            let known = (u64::from(known.start) / CELL) as usize..(u64::from(known.end) / CELL) as usize;
            came[known.clone()].copy_from_slice(&held[known]);
            w.seen.parts_filled += 1;
        }
        came
    }
    fn write_failed(&mut self, w: &mut World, out: &WriteOut, values: &[Cells], answer: Answer) {
        w.seen.failures += 1;
        self.give_up_fsync();
        // "Come again" is no reason to lose anything.
        for (page, value) in out.pages.iter().zip(values).filter(|_| answer != Answer::ComeAgain) {
            self.lost[*page as usize] = self.lost[*page as usize].max(last(value));
            // What the programs are told is lost is what the OST has.
            if !self.pages.is_unwritten(Extent::at(page * PAGE, PAGE)) {
                w.truth[*page as usize] = w.ost[*page as usize];
            }
        }
        let _ = self.pages.on_not_written(&out.pages);
    }
    /// A place of the window is free again.
    fn ended(&mut self, w: &mut World, urgent: bool) -> Verdict {
        self.under_way -= 1;
        self.urgent_under_way -= u32::from(urgent);
        self.admit(w);
        for waiting in &mut self.urgent {
            waiting.ends_left -= 1;
            if waiting.ends_left == 0 {
                return Err(format!("client {}: an urgent RPC waits for more than those before it", self.number));
            }
        }
        Ok(())
    }

    fn pages_have_locks(&self) -> Verdict {
        for page in self.pages.cached() {
            let unwritten = self.pages.is_unwritten(Extent::at(page * PAGE, PAGE));
            if !self.locks.iter().any(|l| l.covers(page) && (l.write || !unwritten)) {
                let what = if unwritten { "dirty" } else { "cached" };
                return Err(format!("client {} has page {page} {what} without a lock", self.number));
            }
        }
        Ok(())
    }
    /// Nothing is under way: nothing may be left of it.
    pub(super) fn is_at_rest(&mut self, granted: u64) -> Verdict {
        let books = &self.target.books;
        let left = (books.dirty_bytes(), books.charged_bytes(), self.target.window.waiting(), self.jobs.len());
        if left != (0, 0, 0, 0) || !self.is_idle() {
            return Err(format!("client {} does not come to rest: dirty, charged, waiting {left:?}", self.number));
        }
        if books.grant_bytes() != granted {
            let grant = books.grant_bytes();
            return Err(format!("client {} has {grant} bytes of grant, its OST wrote {granted} down", self.number));
        }
        let places = (0..=self.places).filter(|_| self.target.window.on_try()).count();
        if places != self.places {
            return Err(format!("client {}: {places} places of {} are free", self.number, self.places));
        }
        let unloaded = (0..PAGES).all(|p| !self.pages.is_loading(p) && !self.pages.is_changing(p, p + 1));
        if unloaded { Ok(()) } else { Err("a claim or a change has no end".to_string()) }
    }
}
