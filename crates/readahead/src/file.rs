//! The mechanism of one open file: it owns what is outstanding and cuts what a policy asks for.
use alloc::boxed::Box;
use smallvec::SmallVec;
use types::registry::UnknownPolicy;
use types::{Extent, PAGE_BYTES};

use crate::GAP_BYTES;
use crate::budget::Budget;
use crate::config::Config;
use crate::issued::{Issued, Standing, Taken};
use crate::policy::{POLICIES, PolicyEntry, ReadaheadPolicy};

const PAGE: u64 = PAGE_BYTES as u64;
/// How far from a read, in lengths of the read, what was prefetched counts as passed by: no pattern tolerates wider gaps.
const PASSED_READS: u64 = 8;
/// A window in epochs: what is not touched while a whole one is read, and at most one epoch more, is given back.
const EPOCHS: u32 = 4;

/// What is known when a read begins; all plain data from the client's other rooms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Size of the file as the client knows it; nothing beyond is prefetched.
    pub file_size: u64,
    /// Bytes in a stripe: no extent crosses a multiple of it. 0 = not striped.
    pub stripe_size: u64,
    /// Largest bulk of one RPC, a multiple of the page size, >= 1 page: no extent crosses a multiple of it.
    pub rpc_bytes: u64,
    /// The bytes that a read lock held now covers; nothing outside is prefetched.
    pub lock: Extent,
}

/// What the program said about a file or a part of it (`posix_fadvise`, `madvise`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hint {
    /// Patterns decide.
    #[default]
    Normal,
    /// The file will be read in order: no confirmation needed, full window at once.
    Sequential,
    /// No order: nothing is prefetched.
    Random,
    /// The extent will be read soon: fetch it, beyond windows and budget, at [`FileReadahead::pump`]'s pace.
    WillNeed,
    /// The extent will not be read: forget what was prefetched of it.
    DontNeed,
}

/// What to fetch now. Reuse one; each call clears it first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Fetch together with the miss, in the reader, and wait for it.
    pub sync: SmallVec<[Extent; 2]>,
    /// Fetch in the background.
    pub asynchronous: SmallVec<[Extent; 4]>,
    /// The reader issues the background part itself, at its own cost, rather than a pool (the `ondemand` baseline).
    pub issued_by_reader: bool,
    /// Bytes that would have been prefetched but for the lock: enqueue a lock for them, without waiting. Told again at every
    /// read until [`Facts::lock`] covers it.
    pub lock_wanted: Option<Extent>,
}

impl Plan {
    fn clear(&mut self) {
        self.sync.clear();
        self.asynchronous.clear();
        self.issued_by_reader = false;
        self.lock_wanted = None;
    }
    /// Whether there is nothing to fetch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sync.is_empty() && self.asynchronous.is_empty()
    }
}

/// Counters of one file, in bytes of whole pages unless said. `(prefetched + missed) / (used + missed)` is the price.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Calls of [`FileReadahead::on_read`].
    pub reads: u64,
    /// Calls of [`FileReadahead::on_miss`].
    pub misses: u64,
    /// Bytes that misses asked for.
    pub missed_bytes: u64,
    /// Bytes asked for ahead; without WILLNEED.
    pub prefetched_bytes: u64,
    /// Bytes read that had been prefetched.
    pub used_bytes: u64,
    /// Bytes that left the cache before use.
    pub wasted_bytes: u64,
    /// Bytes asked for by WILLNEED.
    pub willneed_bytes: u64,
    /// Requests cut or refused by window, waste allowance or budget.
    pub limit_hits: u64,
}

impl Stats {
    /// Adds another file's counters.
    pub fn add(&mut self, other: &Stats) {
        self.reads += other.reads;
        self.misses += other.misses;
        self.missed_bytes += other.missed_bytes;
        self.prefetched_bytes += other.prefetched_bytes;
        self.used_bytes += other.used_bytes;
        self.wasted_bytes += other.wasted_bytes;
        self.willneed_bytes += other.willneed_bytes;
        self.limit_hits += other.limit_hits;
    }
    /// The counters with their names and units.
    #[must_use]
    pub fn counters(&self) -> [(&'static str, u64, &'static str); 8] {
        [
            ("reads", self.reads, "reqs"),
            ("misses", self.misses, "reqs"),
            ("missed_bytes", self.missed_bytes, "bytes"),
            ("prefetched_bytes", self.prefetched_bytes, "bytes"),
            ("used_bytes", self.used_bytes, "bytes"),
            ("wasted_bytes", self.wasted_bytes, "bytes"),
            ("willneed_bytes", self.willneed_bytes, "bytes"),
            ("limit_hits", self.limit_hits, "reqs"),
        ]
    }
}

/// Readahead of one open file. Give every call the same [`Budget`]; end with [`FileReadahead::close`].
pub struct FileReadahead {
    policy: Box<dyn ReadaheadPolicy>,
    state: State,
}

/// What the mechanism owns: all but the policy, so that a policy can ask while it is being called.
struct State {
    issued: Issued,
    /// Bytes that may still be prefetched before more is used; a token bucket.
    credit: u64,
    credit_max: u64,
    waste_percent: u64,
    window_max: u64,
    hint: Hint,
    willneed: Extent,
    /// Pages of the read in progress.
    reading: Extent,
    /// Bytes of pages read since the last epoch of [`Issued`] began.
    epoch_bytes: u64,
    stats: Stats,
}

impl FileReadahead {
    /// For a file just opened, with the policy of this name.
    ///
    /// # Errors
    /// [`UnknownPolicy`].
    pub fn new(policy: &str, config: &Config) -> Result<FileReadahead, UnknownPolicy> {
        let entry = POLICIES.find(policy)?;
        Ok(FileReadahead::with_entry(entry, config))
    }
    /// With a registry line: what a client keeps so that an open does not search by name.
    #[must_use]
    pub fn with_entry(entry: &PolicyEntry, config: &Config) -> FileReadahead {
        FileReadahead::with_policy((entry.make)(config), config)
    }
    /// With a policy from outside the registry.
    #[must_use]
    pub fn with_policy(policy: Box<dyn ReadaheadPolicy>, config: &Config) -> FileReadahead {
        let state = State {
            issued: Issued::default(),
            credit: config.waste_allowance_bytes,
            credit_max: config.window_bytes_max.max(config.waste_allowance_bytes),
            waste_percent: config.waste_percent_max,
            window_max: config.window_bytes_max,
            hint: Hint::Normal,
            willneed: Extent::EMPTY,
            reading: Extent::EMPTY,
            epoch_bytes: 0,
            stats: Stats::default(),
        };
        FileReadahead { policy, state }
    }
    /// Changes policy and configuration while the file is open; what is outstanding stays so.
    pub fn switch(&mut self, entry: &PolicyEntry, config: &Config) {
        let fresh = FileReadahead::with_entry(entry, config);
        self.policy = fresh.policy;
        self.policy.on_hint(self.state.hint);
        self.state.credit_max = fresh.state.credit_max;
        self.state.credit = self.state.credit.min(fresh.state.credit_max);
        self.state.waste_percent = fresh.state.waste_percent;
        self.state.window_max = fresh.state.window_max;
    }

    /// A read begins; call it before looking into the cache. `plan` holds what to fetch in the background.
    #[inline]
    pub fn on_read(&mut self, read: Extent, facts: &Facts, budget: &mut Budget, plan: &mut Plan) {
        plan.clear();
        self.state.stats.reads += 1;
        let Some(read) = read.intersect(&Extent::new(0, facts.file_size)) else { return };
        let pages = page_extent(read);
        self.state.reading = pages;
        let used = self.state.use_up(pages, budget);
        self.state.leave_behind(pages, budget);
        if self.state.hint != Hint::Random {
            self.policy.on_read(read, &mut Ask { state: &mut self.state, facts, budget, plan, pages, used });
        }
    }

    /// Within a read: all up to `done.end` has been handed to the program, more of `read` is to come. Call it after large
    /// progress (every few MiB) of a large read, so that the background part keeps ahead.
    pub fn on_progress(&mut self, done: Extent, facts: &Facts, budget: &mut Budget, plan: &mut Plan) {
        plan.clear();
        let Some(done) = done.intersect(&Extent::new(0, facts.file_size)) else { return };
        let pages = page_extent(done);
        if self.state.hint != Hint::Random {
            self.policy.on_progress(done, &mut Ask { state: &mut self.state, facts, budget, plan, pages, used: false });
        }
    }

    /// Part of the read just begun is not in the cache: the reader will fetch `miss`, and should fetch `plan.sync` along
    /// with it. Call it once per missing extent. A page that is in flight is not a miss: see
    /// [`FileReadahead::on_blocked`].
    pub fn on_miss(&mut self, miss: Extent, facts: &Facts, budget: &mut Budget, plan: &mut Plan) {
        plan.clear();
        let Some(miss) = miss.intersect(&Extent::new(0, facts.file_size)) else { return };
        let pages = page_extent(miss);
        self.state.use_up(pages, budget);
        self.state.stats.misses += 1;
        self.state.stats.missed_bytes += pages.len();
        self.state.earn(pages.len());
        let reading = self.state.reading;
        let pages = if reading.overlaps(&pages) { reading.hull(&pages) } else { pages };
        if self.state.hint != Hint::Random {
            self.policy.on_miss(miss, &mut Ask { state: &mut self.state, facts, budget, plan, pages, used: false });
        }
    }

    /// The reader had to wait for a prefetch in flight: the window may grow beyond its unforced maximum.
    pub fn on_blocked(&mut self) {
        self.policy.on_blocked();
    }

    /// Prefetched pages left the cache before they were used.
    pub fn on_reclaimed_unused(&mut self, extent: Extent, budget: &mut Budget) {
        let taken = self.state.forget(extent, budget);
        self.state.stats.wasted_bytes += taken.bytes;
        // What the reader left out says nothing about how far ahead is too far.
        if taken.bytes > taken.passed {
            self.policy.on_wasted(taken.bytes - taken.passed);
        }
    }

    /// The lock on `extent` is gone, and with it what was prefetched under it. Cancel queued prefetches of it; nothing
    /// is asked for there again until [`Facts::lock`] covers it.
    pub fn on_lock_lost(&mut self, extent: Extent, budget: &mut Budget) {
        self.state.forget(extent, budget);
    }

    /// What the program says. Normal, Sequential and Random are for the whole file, the others for `extent`.
    pub fn set_hint(&mut self, hint: Hint, extent: Extent, budget: &mut Budget) {
        match hint {
            Hint::WillNeed => self.state.willneed = extent,
            Hint::DontNeed => {
                self.state.forget(extent, budget);
            }
            Hint::Normal | Hint::Sequential | Hint::Random => {
                self.state.hint = hint;
                self.policy.on_hint(hint);
                if hint == Hint::Random {
                    self.state.abandon(budget);
                }
            }
        }
    }

    /// Carries out WILLNEED, at most one window at a time: call it after [`FileReadahead::set_hint`] and again when what
    /// it returned has arrived, while [`FileReadahead::has_willneed`]. WILLNEED is not speculation: it is not charged to
    /// the budget and not counted as waste, but it obeys locks, stripes and the end of file. Where no lock covers what
    /// comes next it waits: take [`Plan::lock_wanted`] and call again.
    pub fn pump(&mut self, facts: &Facts, budget: &mut Budget, plan: &mut Plan) {
        plan.clear();
        let want = self.state.willneed;
        let Some(pages) = want.intersect(&Extent::new(0, facts.file_size)).map(page_extent) else {
            self.state.willneed = Extent::EMPTY;
            return;
        };
        let mut now =
            Extent::new(pages.start, pages.end.min(pages.start.saturating_add(self.state.window_max.max(PAGE))));
        if !facts.lock.contains(&now) {
            plan.lock_wanted = Some(now);
            now.end = facts.lock.end - facts.lock.end % PAGE;
            if !facts.lock.contains_offset(now.start) || now.end <= now.start {
                return;
            }
        }
        self.state.willneed = if now.end >= pages.end { Extent::EMPTY } else { Extent::new(now.end, want.end) };
        let mut ask = Ask { state: &mut self.state, facts, budget, plan, pages: Extent::EMPTY, used: false };
        ask.admit(now, Kind::WillNeed);
    }
    /// Whether WILLNEED has more to fetch.
    #[must_use]
    pub fn has_willneed(&self) -> bool {
        !self.state.willneed.is_empty()
    }

    /// What the program said of the whole file, and what of WILLNEED is still to be fetched.
    #[must_use]
    pub fn hints(&self) -> (Hint, Extent) {
        (self.state.hint, self.state.willneed)
    }
    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.state.stats
    }
    /// Bytes prefetched, unused, and charged to the budget.
    #[must_use]
    pub fn outstanding_bytes(&self) -> u64 {
        self.state.issued.charged_bytes()
    }
    /// Gives everything back to the budget and ends.
    pub fn close(mut self, budget: &mut Budget) -> Stats {
        self.state.abandon(budget);
        self.state.stats
    }
}

impl State {
    /// The program reads `pages`: what of it was prefetched is used now.
    #[inline]
    fn use_up(&mut self, pages: Extent, budget: &mut Budget) -> bool {
        let have = self.issued.charged_bytes();
        let taken = self.issued.take(pages);
        if taken.bytes > 0 {
            budget.refund(have, taken.charged);
            self.stats.used_bytes += taken.bytes;
            self.earn(taken.bytes);
        }
        taken.bytes > 0
    }
    #[inline]
    fn earn(&mut self, bytes: u64) {
        if self.credit < self.credit_max {
            let earned = bytes.saturating_mul(self.waste_percent) / 100;
            self.credit = self.credit.saturating_add(earned).min(self.credit_max);
        }
    }
    /// Gives back what the reader, now at `pages`, went past, and what no read has touched while a window was read.
    #[inline]
    fn leave_behind(&mut self, pages: Extent, budget: &mut Budget) {
        let have = self.issued.charged_bytes();
        let reach = GAP_BYTES.max(pages.len().saturating_mul(PASSED_READS));
        budget.refund(have, self.issued.pass(pages, reach));
        self.epoch_bytes = self.epoch_bytes.saturating_add(pages.len());
        let epoch = (self.window_max / u64::from(EPOCHS)).max(PAGE);
        if self.epoch_bytes >= epoch {
            let have = self.issued.charged_bytes();
            budget.refund(have, self.issued.next_epoch(EPOCHS));
            self.epoch_bytes = 0;
        }
    }
    /// Forgets `extent`; returns what was outstanding.
    fn forget(&mut self, extent: Extent, budget: &mut Budget) -> Taken {
        let have = self.issued.charged_bytes();
        let taken = self.issued.take(page_extent(extent));
        budget.refund(have, taken.charged);
        taken
    }
    fn abandon(&mut self, budget: &mut Budget) {
        let have = self.issued.charged_bytes();
        budget.refund(have, self.issued.uncharge_all());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sync,
    Asynchronous,
    WillNeed,
}

/// What a policy asks through. Every request is cut to what is allowed and not yet outstanding.
pub struct Ask<'a> {
    state: &'a mut State,
    facts: &'a Facts,
    budget: &'a mut Budget,
    plan: &'a mut Plan,
    /// The pages being read now: never prefetched.
    pages: Extent,
    used: bool,
}

impl Ask<'_> {
    /// The facts of this read.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        self.facts
    }
    /// Whether the read just begun found bytes that were prefetched.
    #[must_use]
    pub fn read_used_prefetched(&self) -> bool {
        self.used
    }
    /// End of the prefetched bytes from `offset` on; `offset` itself when there are none.
    #[must_use]
    #[inline]
    pub fn covered_until(&self, offset: u64) -> u64 {
        self.state.issued.covered_until(offset)
    }
    /// Start of the prefetched bytes up to `offset`; `offset` itself when there are none.
    #[must_use]
    pub fn covered_from(&self, offset: u64) -> u64 {
        self.state.issued.covered_from(offset)
    }
    /// Fetch `extent` along with the miss, and wait. False: stop asking, a limit is reached.
    pub fn sync(&mut self, extent: Extent) -> bool {
        self.admit(extent, Kind::Sync)
    }
    /// Fetch `extent` in the background. False: stop asking, a limit is reached.
    pub fn asynchronous(&mut self, extent: Extent) -> bool {
        self.admit(extent, Kind::Asynchronous)
    }
    /// The background part is to be issued by the reader itself.
    pub fn by_reader(&mut self) {
        self.plan.issued_by_reader = true;
    }
    /// `extent` would be asked for if a lock covered it; the part within the file is told to the client.
    pub fn want_lock(&mut self, extent: Extent) {
        if let Some(e) = extent.intersect(&Extent::new(0, self.facts.file_size)) {
            self.plan.lock_wanted = Some(self.plan.lock_wanted.map_or(e, |w| w.hull(&e)));
        }
    }
    /// The stream ended: what is outstanding no longer counts against window and budget.
    pub fn abandon(&mut self) {
        self.state.abandon(self.budget);
    }

    fn admit(&mut self, extent: Extent, kind: Kind) -> bool {
        let Some(want) = extent.intersect(&Extent::new(0, self.facts.file_size)) else { return true };
        let want = page_extent(want);
        // Never the pages being read: what lies before them, then what lies behind them.
        let reading = if want.overlaps(&self.pages) { self.pages } else { Extent::at(want.end, 0) };
        let before = Extent::new(want.start, reading.start.max(want.start));
        let behind = Extent::new(reading.end.min(want.end), want.end);
        self.admit_pages(before, kind) && self.admit_pages(behind, kind)
    }

    fn admit_pages(&mut self, want: Extent, kind: Kind) -> bool {
        if want.is_empty() {
            return true;
        }
        let (locked, whole) = self.cut_to_lock(want);
        let mut rest = locked;
        while let Some(gap) = self.state.issued.first_gap(rest) {
            if !self.admit_gap(gap, kind) {
                return false;
            }
            rest.start = gap.end;
        }
        whole
    }

    /// The part under the lock, in whole pages, and whether that is all.
    fn cut_to_lock(&mut self, want: Extent) -> (Extent, bool) {
        let lock = self.facts.lock;
        let needed = Extent::new(want.start, want.end.min(self.facts.file_size).max(want.start));
        if lock.contains(&needed) {
            return (want, true);
        }
        self.plan.lock_wanted = Some(self.plan.lock_wanted.map_or(needed, |w| w.hull(&needed)));
        let start = lock.start.max(want.start).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        let end = if lock.end >= needed.end { want.end } else { lock.end - lock.end % PAGE };
        if start < end { (Extent::new(start, end), false) } else { (Extent::EMPTY, false) }
    }

    /// Asks for a gap piece by piece; false when a limit is reached.
    fn admit_gap(&mut self, gap: Extent, kind: Kind) -> bool {
        let mut at = gap.start;
        while at < gap.end {
            let piece = Extent::new(at, self.piece_end(at).min(gap.end));
            let have = self.state.issued.charged_bytes();
            let room = self.room(have, kind);
            let take = if piece.len() <= room {
                piece
            } else if have == 0 && room >= PAGE {
                // Nothing outstanding: better a part of an RPC than nothing.
                Extent::at(piece.start, room - room % PAGE)
            } else {
                self.note_limit();
                return false;
            };
            let charged = kind != Kind::WillNeed;
            let ahead = Standing::Charged { backward: take.end <= self.pages.start };
            if !self.state.issued.insert(take, if charged { ahead } else { Standing::Abandoned }) {
                self.note_limit();
                return false;
            }
            if charged {
                self.budget.charge(have, take.len());
                self.state.credit -= take.len();
                self.state.stats.prefetched_bytes += take.len();
            } else {
                self.state.stats.willneed_bytes += take.len();
            }
            let fetch = Extent::new(take.start, take.end.min(self.facts.file_size));
            match kind {
                Kind::Sync => self.plan.sync.push(fetch),
                _ => self.plan.asynchronous.push(fetch),
            }
            if take != piece {
                self.note_limit();
                return false;
            }
            at = piece.end;
        }
        true
    }

    fn room(&self, have: u64, kind: Kind) -> u64 {
        if kind == Kind::WillNeed {
            return u64::MAX;
        }
        let window = self.state.window_max.saturating_sub(have);
        window.min(self.state.credit).min(self.budget.room(have))
    }

    fn note_limit(&mut self) {
        self.state.stats.limit_hits += 1;
        self.budget.note_refused();
    }

    /// Where one RPC that starts at `at` must end: the next multiple of the RPC size or of the stripe size.
    fn piece_end(&self, at: u64) -> u64 {
        let next = |unit: u64| (at / unit).saturating_add(1).saturating_mul(unit);
        let rpc = next(self.facts.rpc_bytes.max(PAGE));
        if self.facts.stripe_size == 0 { rpc } else { rpc.min(next(self.facts.stripe_size)) }
    }
}

/// `e` in whole pages. The last page of the file is accounted whole; what is asked for is cut at the end of file.
#[inline]
fn page_extent(e: Extent) -> Extent {
    e.align_out(PAGE)
}
