//! What users advised about the objects of a target, and what came of it: the advice room with the wishes behind it.
//!
//! The room ([`advice::Advisor`]) knows what has a place in a tier and in which class; here is what was asked for, by whom and
//! since when, so that it can be shown, kept over a restart ([`crate::store::ObjectStore::set_advice`]) and extended when an
//! object grows. No I/O and no clock: `ost/advise.rs` carries the steps out.
//!
//! Requests about a target without advice look at one flag ([`Advised::is_any`]).
//! Source: paper 004. Differs: a wish outlives what became of it, and is placed anew when there is room again.
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use advice::jobs::{Jobs, Piece};
use advice::{
    Advice, AdviceError, Advisor, Config, Hint, OwnerId, Payer, ProjectId, Refusal, Step, Steps, Tier, Tiers, UserId,
};
use types::{Extent, FsError, ObjectId};
use wire::ost::{AdvisedRange, AdvisedReply};

use crate::store::{BLOCK_BYTES, BlockRange};

/// Refusals that are remembered, to be shown.
const REFUSALS_MAX: usize = 256;
/// Wishes about one object at most: they are one record of the store.
const WISHES_MAX: usize = 1024;
/// What an advised object is expected to grow to is placed in steps of at most this.
const GROWTH_BYTES_MAX: u64 = types::MIB;

// No reason of the room's has its number.
const _: () = assert!(AdvisedRange::OUTDONE as usize > Refusal::ALL.len());

/// The level of an advice; `None`: it is about now, not a level.
pub(crate) fn hint_of(advice: wire::ost::Advice) -> Option<Hint> {
    Hint::ALL.get(advice as usize).copied()
}

/// The reclaim class of a level in the page cache.
pub(crate) fn class_of(hint: Hint) -> cache::Advice {
    cache::Advice::ALL[hint as usize]
}

/// Advice that has not been withdrawn, and what came of it.
#[derive(Clone, Debug)]
struct Wish {
    /// What was said, with counters that are filled in on the way. The end may be open.
    told: AdvisedRange,
    hint: Hint,
    /// Where the room was asked up to.
    placed_to: u64,
}

impl Wish {
    fn new(told: AdvisedRange, hint: Hint) -> Wish {
        Wish { placed_to: told.extent.start, told, hint }
    }
    /// What it says of a range, with nothing done for it yet; `None`: nothing.
    fn part(&self, range: Extent) -> Option<Wish> {
        let told = AdvisedRange {
            extent: self.told.extent.intersect(&range)?,
            advice: self.told.advice,
            owner: self.told.owner.clone(),
            since: self.told.since,
            ..AdvisedRange::default()
        };
        Some(Wish::new(told, self.hint))
    }
    /// Whether another one was said by the same user at the same time.
    fn is_as(&self, other: &Wish) -> bool {
        let of = |w: &Wish| (w.hint, w.told.since, w.told.owner.clone());
        of(self) == of(other)
    }
    fn advice(&self, object: ObjectId, extent: Extent) -> Advice {
        let owner = if self.told.owner.job == 0 { u64::from(self.told.owner.uid) } else { self.told.owner.job };
        Advice {
            object,
            extent,
            hint: self.hint,
            wish: advice::Wish::Auto,
            project: ProjectId(self.told.owner.project),
            owner: OwnerId(owner),
            user: UserId(self.told.owner.uid),
        }
    }
}

/// Who gives advice.
#[derive(Clone, Copy)]
pub(crate) struct Adviser {
    /// The user.
    pub uid: u32,
    /// Nobody else's advice stands in the way: root, and the file's owner.
    pub outranks: bool,
}

/// What a target knows of advice.
struct Books {
    advisor: Advisor,
    jobs: Jobs,
    /// Those that count, by object and start; those of one object are disjoint.
    wishes: BTreeMap<(ObjectId, u64), Wish>,
    /// By object, user and start: what users advised of bytes for which others asked for as much or more since. It counts again when those
    /// withdraw that: who may not take another's advice away shall not do so by raising it first. Each byte of these has a wish that counts.
    outdone: BTreeMap<(ObjectId, u32, u64), Wish>,
    refusals: VecDeque<(ObjectId, AdvisedRange)>,
}

/// See the module's head.
pub(crate) struct Advised {
    any: Cell<bool>,
    books: RefCell<Books>,
}

/// Bytes of an object of `size` bytes that are worth a place: whole blocks, with a little to grow.
fn worth(size: u64) -> u64 {
    let step = (size / 8).next_power_of_two().clamp(BLOCK_BYTES, GROWTH_BYTES_MAX);
    size.checked_next_multiple_of(step).unwrap_or(size)
}

impl Advised {
    pub fn new(policy: &str, config: &Config) -> Result<Advised, String> {
        let advisor = Advisor::new(policy, config.clone()).map_err(|e| e.to_string())?;
        let (jobs, wishes, outdone) = (Jobs::new(config), BTreeMap::new(), BTreeMap::new());
        let books = Books { jobs, advisor, wishes, outdone, refusals: VecDeque::new() };
        Ok(Advised { any: Cell::new(false), books: RefCell::new(books) })
    }

    /// Whether anything is advised.
    pub fn is_any(&self) -> bool {
        self.any.get()
    }
    /// Whether anything is advised about an object.
    pub fn has(&self, object: ObjectId) -> bool {
        self.is_any() && self.books.borrow().of(object).next().is_some()
    }
    fn look(&self) {
        self.any.set(!self.books.borrow().wishes.is_empty());
    }

    /// What every request that brings pages into the cache asks: the classes of a range, in order.
    pub fn classes(&self, object: ObjectId, range: BlockRange) -> Vec<(BlockRange, cache::Advice)> {
        let books = self.books.borrow();
        let (mut out, mut at) = (Vec::with_capacity(1), range.first);
        while at < range.end() {
            let (hint, end) = books.advisor.class_run(object, at * BLOCK_BYTES, Tier::Ram);
            let end = (end / BLOCK_BYTES).clamp(at + 1, range.end());
            out.push((BlockRange::new(at, end), class_of(hint)));
            at = end;
        }
        out
    }
    /// The class of a block in a tier.
    pub fn class(&self, object: ObjectId, offset: u64, tier: Tier) -> Hint {
        self.books.borrow().advisor.class(object, offset, tier)
    }
    /// The highest class of some blocks in a tier.
    pub fn highest(&self, object: ObjectId, range: BlockRange, tier: Tier) -> Hint {
        let books = self.books.borrow();
        let (mut at, mut highest) = (range.first.saturating_mul(BLOCK_BYTES), Hint::None);
        let end = range.end().saturating_mul(BLOCK_BYTES);
        while at < end && highest < Hint::High {
            let (hint, next) = books.advisor.class_run(object, at, tier);
            (highest, at) = (highest.max(hint), next.max(at + 1));
        }
        highest
    }
    /// Bytes that have a place in a tier.
    pub fn held_bytes(&self, tier: Tier) -> u64 {
        self.books.borrow().advisor.held_bytes(tier, Hint::None)
    }
    /// Pages that were read and found in memory or in the fast tier.
    pub fn on_hits(&self, object: ObjectId, offset: u64, pages: u64) {
        let books = &mut *self.books.borrow_mut();
        if let Some(wish) = books.wish_at(object, offset) {
            wish.told.hits += pages;
        }
    }

    /// Whether somebody may change what is advised of a range: not to less than another user asked for, unless they outrank everybody, as
    /// root and the file's owner do. Who withdraws must have advised what counts there, or what another one outdid.
    pub fn may(&self, object: ObjectId, extent: Extent, hint: Hint, by: Adviser) -> Result<(), FsError> {
        let books = self.books.borrow();
        let others = |w: &&Wish| w.told.owner.uid != by.uid && w.told.extent.overlaps(&extent);
        let denied = match hint {
            Hint::None => books.of(object).any(|w| others(&w)) && books.outdone_of(object, by.uid, extent).is_empty(),
            hint => books.of(object).chain(books.all_outdone(object)).filter(others).any(|w| w.hint > hint),
        };
        if denied && !by.outranks { Err(FsError::NotPermitted) } else { Ok(()) }
    }

    /// Takes advice on an object of `size` bytes. What others advised of the range before counts again when it is withdrawn (then
    /// [`Advised::on_grown`] gives it its place), unless who gives it outranks them.
    ///
    /// # Errors
    /// `NoSpace` when nothing of it fits, or too much is remembered, `NotPermitted` when its project may advise nothing;
    /// what was advised before stays.
    pub fn advise(
        &self,
        (object, size): (ObjectId, u64),
        told: AdvisedRange,
        outranks: bool,
        tiers: &Tiers,
        steps: &mut Steps,
    ) -> Result<(), FsError> {
        let done = self.books.borrow_mut().advise((object, size), told, outranks, tiers, steps);
        self.look();
        done
    }

    /// The object is `size` bytes long now: open-ended wishes and those beyond its end cover what came.
    pub fn on_grown(&self, object: ObjectId, size: u64, tiers: &Tiers, steps: &mut Steps) {
        let books = &mut *self.books.borrow_mut();
        for key in books.keys(object) {
            books.place(object, key, size, tiers, steps);
        }
    }
    /// The object was cut to `size` bytes. What is beyond gives its place back; the wish stays for bytes that come later.
    pub fn on_cut(&self, object: ObjectId, size: u64) {
        let books = &mut *self.books.borrow_mut();
        let gone = Extent::from(size.next_multiple_of(BLOCK_BYTES));
        books.advisor.on_cut(object, gone);
        books.cancel(object, gone);
        for key in books.keys(object) {
            let wish = books.wishes.get_mut(&(object, key)).expect("its key was just listed");
            wish.placed_to = wish.placed_to.min(gone.start).max(wish.told.extent.start);
        }
    }
    /// Objects are gone, and with them what was advised.
    pub fn on_destroyed(&self, objects: &[ObjectId]) {
        if !self.is_any() {
            return;
        }
        let books = &mut *self.books.borrow_mut();
        for object in objects {
            books.advisor.on_destroyed(*object);
            books.cancel(*object, Extent::ALL);
            books.keys(*object).into_iter().for_each(|key| _ = books.wishes.remove(&(*object, key)));
            books.outdone.retain(|(o, ..), _| o != object);
            books.refusals.retain(|(o, _)| o != object);
        }
        self.any.set(!books.wishes.is_empty());
    }

    /// What the store keeps of an object's advice; empty when there is none.
    pub fn record(&self, object: ObjectId) -> Vec<u8> {
        let books = self.books.borrow();
        let kept = |w: &Wish| AdvisedRange {
            extent: w.told.extent,
            advice: w.told.advice,
            owner: w.told.owner.clone(),
            since: w.told.since,
            ..AdvisedRange::default()
        };
        // Servers that know nothing of what is outdone take each row over those before it.
        let outdone = books.all_outdone(object).map(|w| AdvisedRange { refusal: AdvisedRange::OUTDONE, ..kept(w) });
        let ranges: Vec<AdvisedRange> = outdone.chain(books.of(object).map(kept)).collect();
        if ranges.is_empty() { Vec::new() } else { wire::encode(&AdvisedReply { ranges }) }
    }
    /// Takes a record of the store in. What it says has no place yet: [`Advised::on_grown`] asks for one.
    ///
    /// # Errors
    /// The bytes are no record.
    pub fn recall(&self, object: ObjectId, record: &[u8]) -> Result<(), FsError> {
        let reply: AdvisedReply = wire::decode(record).map_err(|_| FsError::Corrupt)?;
        let books = &mut *self.books.borrow_mut();
        for told in reply.ranges {
            let hint = hint_of(told.advice).filter(|h| *h != Hint::None).ok_or(FsError::Corrupt)?;
            let (extent, uid) = (told.extent, told.owner.uid);
            if told.is_outdone() {
                books.outdone.insert((object, uid, extent.start), Wish::new(told, hint));
            } else {
                books.cut(object, extent);
                books.wishes.insert((object, extent.start), Wish::new(told, hint));
            }
        }
        self.any.set(!books.wishes.is_empty());
        Ok(())
    }

    /// Wishes about an object, those that are outdone, and advice on it that was refused lately; `resident` counts bytes that are in a tier.
    pub fn show(&self, object: ObjectId, resident: impl Fn(Extent, Tier) -> u64) -> Vec<AdvisedRange> {
        let books = self.books.borrow();
        let mut out: Vec<AdvisedRange> = Vec::new();
        for w in books.of(object) {
            let mut row = w.told.clone();
            for (extent, tier, _) in books.advisor.placed_of(object) {
                let Some(common) = extent.intersect(&row.extent) else { continue };
                match tier {
                    Tier::Ram => row.ram_placed += common.len(),
                    Tier::Fast => row.fast_placed += common.len(),
                }
            }
            row.ram_resident = resident(row.extent, Tier::Ram);
            row.fast_resident = resident(row.extent, Tier::Fast);
            row.fetched = row.fetched.min(row.to_fetch);
            out.push(row);
        }
        let outdone = |w: &Wish| AdvisedRange { refusal: AdvisedRange::OUTDONE, ..w.told.clone() };
        out.extend(books.all_outdone(object).map(outdone));
        out.extend(books.refusals.iter().filter(|(o, _)| *o == object).map(|(_, r)| r.clone()));
        out
    }
    /// Objects with advice, and their number of wishes.
    pub fn counts(&self) -> (usize, usize) {
        let books = self.books.borrow();
        let mut objects: Vec<ObjectId> = books.wishes.keys().map(|(o, _)| *o).collect();
        objects.dedup();
        (objects.len(), books.wishes.len())
    }

    /// The next bytes to fetch.
    pub fn next_piece(&self) -> Option<Piece> {
        self.books.borrow_mut().jobs.next_piece()
    }
    /// Whether anything is to be fetched or being fetched.
    pub fn is_fetching(&self) -> bool {
        !self.books.borrow().jobs.is_empty()
    }
    /// Bytes of a piece came; a piece may come in parts.
    pub fn on_fetched(&self, object: ObjectId, extent: Extent) {
        if let Some(wish) = self.books.borrow_mut().wish_at(object, extent.start) {
            wish.told.fetched += extent.len();
        }
    }
    /// A piece is done, or failed.
    pub fn on_piece(&self, piece: &Piece, result: Result<(), FsError>) {
        let books = &mut *self.books.borrow_mut();
        if let (Err(e), Some(wish)) = (result, books.wish_at(piece.object, piece.extent.start)) {
            wish.told.error = e.errno() as u16;
        }
        books.jobs.on_done(piece, result);
        while books.jobs.take_ended().is_some() {}
    }

    /// Works on the room: policy, keys, budgets.
    pub fn with_advisor<T>(&self, work: impl FnOnce(&mut Advisor) -> T) -> T {
        work(&mut self.books.borrow_mut().advisor)
    }
    /// Changes the policy.
    ///
    /// # Errors
    /// A sentence with the policies that exist.
    pub fn switch(&self, policy: &str) -> Result<(), String> {
        let entry = advice::POLICIES.find(policy).map_err(|e| e.to_string())?;
        self.books.borrow_mut().advisor.switch(entry);
        Ok(())
    }
    /// Changes a key of the room, for advice and prefetches from now on.
    ///
    /// # Errors
    /// A sentence with the key's range.
    pub fn set_key(&self, key: &str, text: &str) -> Result<(), String> {
        let books = &mut *self.books.borrow_mut();
        let mut config = books.advisor.config().clone();
        config.set(key, text).map_err(|e| e.to_string())?;
        books.jobs.set_config(&config);
        books.advisor.set_config(config);
        Ok(())
    }
    /// Sets a budget: `WHO RAM FAST` in bytes, or `WHO default`, for a project or `uid:USER`. Whose budgets are 0 may advise
    /// nothing.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_budget(&self, text: &str) -> Result<(), String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let wrong = || {
            format!(
                "'{text}': write WHO RAM FAST, the two in bytes or like 4G, or WHO default; WHO is a project's number or uid:USER"
            )
        };
        let payer = words.first().and_then(|w| payer_of(w)).ok_or_else(wrong)?;
        let bytes = match words[1..] {
            ["default"] => None,
            [ram, fast] => Some([types::parse_size(ram)?, types::parse_size(fast)?]),
            _ => return Err(wrong()),
        };
        self.books.borrow_mut().advisor.set_budget(payer, bytes);
        Ok(())
    }
    /// Projects and users with budgets of their own, as [`Advised::set_budget`] takes them.
    pub fn budgets_text(&self) -> String {
        let books = self.books.borrow();
        let line = |(payer, [ram, fast]): (Payer, [u64; 2])| match payer {
            Payer::Project(p) => format!("{} {ram} {fast}\n", p.0),
            Payer::User(u) => format!("uid:{} {ram} {fast}\n", u.0),
        };
        books.advisor.budgets().map(line).collect()
    }
    /// Gives every place back, to be asked for anew: the tiers or the policy have changed. What had a place is in `steps`: not all of it
    /// finds one again.
    pub fn forget_places(&self, steps: &mut Steps) {
        let books = &mut *self.books.borrow_mut();
        let objects: Vec<ObjectId> = books.wishes.keys().map(|(o, _)| *o).collect();
        for object in objects {
            steps.extend(books.advisor.placed_of(object).map(|(extent, tier, _)| Step::Release(object, extent, tier)));
            books.advisor.on_destroyed(object);
            books.cancel(object, Extent::ALL);
        }
        books.wishes.values_mut().for_each(|w| w.placed_to = w.told.extent.start);
    }
    /// Objects with wishes that have a place to ask for, those advised first before others.
    pub fn unplaced(&self) -> Vec<ObjectId> {
        let books = self.books.borrow();
        let mut out: Vec<_> = books.wishes.iter().map(|((o, _), w)| (w.told.since, *o)).collect();
        out.sort_unstable();
        let mut objects: Vec<ObjectId> = out.into_iter().map(|(_, o)| o).collect();
        let mut seen = std::collections::BTreeSet::new();
        objects.retain(|o| seen.insert(*o));
        objects
    }
}

impl Books {
    fn of(&self, object: ObjectId) -> impl Iterator<Item = &Wish> {
        self.wishes.range((object, 0)..=(object, u64::MAX)).map(|(_, w)| w)
    }
    fn keys(&self, object: ObjectId) -> Vec<u64> {
        self.of(object).map(|w| w.told.extent.start).collect()
    }
    /// What anybody advised of an object and others outdid.
    fn all_outdone(&self, object: ObjectId) -> impl Iterator<Item = &Wish> {
        self.outdone.range((object, 0, 0)..=(object, u32::MAX, u64::MAX)).map(|(_, w)| w)
    }
    /// Starts of what a user advised of a range and others outdid.
    fn outdone_of(&self, object: ObjectId, uid: u32, extent: Extent) -> Vec<u64> {
        let of_user = self.outdone.range((object, uid, 0)..=(object, uid, u64::MAX));
        of_user.filter(|(_, w)| w.told.extent.overlaps(&extent)).map(|((.., start), _)| *start).collect()
    }
    fn wish_at(&mut self, object: ObjectId, offset: u64) -> Option<&mut Wish> {
        let (_, wish) = self.wishes.range_mut((object, 0)..=(object, offset)).next_back()?;
        (wish.told.extent.contains_offset(offset)).then_some(wish)
    }

    fn advise(
        &mut self,
        (object, size): (ObjectId, u64),
        told: AdvisedRange,
        outranks: bool,
        tiers: &Tiers,
        steps: &mut Steps,
    ) -> Result<(), FsError> {
        let hint = hint_of(told.advice).ok_or(FsError::Invalid)?;
        let (extent, uid) = (told.extent, told.owner.uid);
        self.refusals.retain(|(o, r)| *o != object || !r.extent.overlaps(&extent));
        let wish = Wish::new(told, hint);
        if hint == Hint::None {
            return self.withdraw(object, &wish, outranks, tiers, steps);
        }
        let payers = wish.advice(object, extent).payers();
        if self.advisor.budgets().any(|(payer, bytes)| payers.contains(&payer) && bytes == [0, 0]) {
            return Err(FsError::NotPermitted);
        }
        if self.of(object).count() + self.all_outdone(object).count() >= WISHES_MAX {
            return Err(FsError::NoSpace);
        }
        let first = Extent::new(extent.start, extent.end.min(worth(size)).max(extent.start));
        let mut refusal = 0;
        if !first.is_empty() {
            let new = steps.len();
            if let Err(e) = self.advisor.advise(&wish.advice(object, first), tiers, steps) {
                if let AdviceError::Refused(why) = e {
                    self.refused(object, &wish.told, why);
                }
                return Err(FsError::from(e));
            }
            refusal = refusal_of(&steps[new..]);
        }
        match outranks {
            true => self.forget_outdone(object, None, extent),
            false => self.outdo(object, uid, extent),
        }
        self.cut(object, extent);
        let mut wish = Wish { placed_to: first.end, ..wish };
        wish.told.refusal = refusal;
        self.wishes.insert((object, extent.start), wish);
        self.queue(object, steps);
        Ok(())
    }

    /// Withdraws what a user advised of a range, or, who outranks others, what anybody did. What others had advised there before counts
    /// again, and has no place yet.
    fn withdraw(
        &mut self,
        object: ObjectId,
        wish: &Wish,
        outranks: bool,
        tiers: &Tiers,
        steps: &mut Steps,
    ) -> Result<(), FsError> {
        let (extent, uid) = (wish.told.extent, wish.told.owner.uid);
        let own = |w: &Wish| if w.told.owner.uid == uid { w.told.extent.intersect(&extent) } else { None };
        let mut parts: Vec<Extent> = if outranks { vec![extent] } else { self.of(object).filter_map(own).collect() };
        parts.dedup_by(|next, last| {
            let adjoins = next.start == last.end;
            if adjoins {
                last.end = next.end;
            }
            adjoins
        });
        for part in &parts {
            let all = Extent::new(part.start, part.end.min(u64::MAX - 1));
            self.advisor.advise(&wish.advice(object, all), tiers, steps).map_err(FsError::from)?;
            self.cut(object, *part);
        }
        self.forget_outdone(object, (!outranks).then_some(uid), extent);
        parts.into_iter().for_each(|part| self.revive(object, part));
        Ok(())
    }

    /// Asks for a place for what a wish covers of an object of `size` bytes and has not asked for yet.
    fn place(&mut self, object: ObjectId, key: u64, size: u64, tiers: &Tiers, steps: &mut Steps) {
        let Some(wish) = self.wishes.get_mut(&(object, key)) else { return };
        let end = wish.told.extent.end.min(worth(size));
        if size <= wish.placed_to || end <= wish.placed_to {
            return;
        }
        let (rest, new) = (Extent::new(wish.placed_to, end), steps.len());
        wish.placed_to = end;
        let advice = wish.advice(object, rest);
        wish.told.refusal = match self.advisor.advise(&advice, tiers, steps) {
            Ok(()) => refusal_of(&steps[new..]),
            Err(AdviceError::Refused(why)) => why as u8 + 1,
            Err(_) => Refusal::NoRoom as u8 + 1,
        };
        self.queue(object, &steps[new..]);
    }

    /// Queues what steps say is to be fetched, and counts it.
    fn queue(&mut self, object: ObjectId, steps: &[Step]) {
        for step in steps {
            if let Step::Prefetch(o, extent, tier, hint) = *step {
                debug_assert!(o == object, "only the advised object is fetched");
                Tier::ALL.into_iter().for_each(|t| _ = self.jobs.cancel(o, extent, t));
                self.jobs.push(o, extent, tier, hint);
                if let Some(wish) = self.wish_at(o, extent.start) {
                    wish.told.to_fetch += extent.len();
                }
            }
        }
    }

    /// Cancels what is to be fetched of a range.
    fn cancel(&mut self, object: ObjectId, extent: Extent) {
        for tier in Tier::ALL {
            let cancelled = self.jobs.cancel(object, extent, tier);
            if let Some(wish) = self.wish_at(object, extent.start).filter(|_| cancelled > 0) {
                wish.told.to_fetch = wish.told.to_fetch.saturating_sub(cancelled);
            }
        }
        while self.jobs.take_ended().is_some() {}
    }

    fn refused(&mut self, object: ObjectId, told: &AdvisedRange, why: Refusal) {
        if self.refusals.len() >= REFUSALS_MAX {
            self.refusals.pop_front();
        }
        let error = FsError::NoSpace.errno() as u16;
        self.refusals.push_back((object, AdvisedRange { refusal: why as u8 + 1, error, ..told.clone() }));
    }

    /// A user advises a range: what others did counts no longer, and is remembered.
    fn outdo(&mut self, object: ObjectId, uid: u32, extent: Extent) {
        self.forget_outdone(object, Some(uid), extent);
        let others = self.of(object).filter(|w| w.told.owner.uid != uid);
        let parts: Vec<Wish> = others.filter_map(|w| w.part(extent)).collect();
        for part in parts {
            self.outdone.insert((object, part.told.owner.uid, part.told.extent.start), part);
        }
    }
    /// What was outdone on a range, of a user or (`None`) of all, is forgotten.
    fn forget_outdone(&mut self, object: ObjectId, uid: Option<u32>, extent: Extent) {
        let of = |w: &&Wish| uid.is_none_or(|uid| w.told.owner.uid == uid) && w.told.extent.overlaps(&extent);
        let found: Vec<Wish> = self.all_outdone(object).filter(of).cloned().collect();
        for old in found {
            let (whole, uid) = (old.told.extent, old.told.owner.uid);
            self.outdone.remove(&(object, uid, whole.start));
            for rest in [Extent::new(0, extent.start), Extent::from(extent.end)] {
                if let Some(rest) = old.part(rest) {
                    self.outdone.insert((object, uid, rest.told.extent.start), rest);
                }
            }
        }
    }
    /// Nothing counts on a range any more: of each part of it the highest that was outdone does from now on, of several the oldest.
    fn revive(&mut self, object: ObjectId, extent: Extent) {
        let within: Vec<Wish> = self.all_outdone(object).filter_map(|w| w.part(extent)).collect();
        let mut edges: Vec<u64> = within.iter().flat_map(|w| [w.told.extent.start, w.told.extent.end]).collect();
        edges.sort_unstable();
        edges.dedup();
        let mut last: Option<Wish> = None;
        for edge in edges.windows(2) {
            let part = Extent::new(edge[0], edge[1]);
            let there = within.iter().filter(|w| w.told.extent.contains(&part));
            let best = there.max_by_key(|w| (w.hint, Reverse((w.told.since, w.told.owner.uid))));
            let Some(new) = best.and_then(|w| w.part(part)) else { continue };
            self.forget_outdone(object, Some(new.told.owner.uid), part);
            match last.as_mut().filter(|l| l.told.extent.end == part.start && l.is_as(&new)) {
                Some(last) => last.told.extent.end = part.end,
                None => self.count_again(object, last.replace(new)),
            }
        }
        self.count_again(object, last);
    }
    fn count_again(&mut self, object: ObjectId, wish: Option<Wish>) {
        if let Some(wish) = wish {
            self.wishes.insert((object, wish.told.extent.start), wish);
        }
    }

    /// Forgets what was wished for a range; wishes at its edges are cut.
    fn cut(&mut self, object: ObjectId, extent: Extent) {
        for key in self.keys(object) {
            let Some(wish) = self.wishes.get(&(object, key)).filter(|w| w.told.extent.overlaps(&extent)) else {
                continue;
            };
            let old = wish.clone();
            self.wishes.remove(&(object, key));
            let whole = old.told.extent;
            for rest in [(whole.start, extent.start), (extent.end, whole.end)] {
                if rest.0 < rest.1 {
                    let rest = Extent::new(rest.0, rest.1);
                    let placed_to = old.placed_to.clamp(rest.start, rest.end);
                    let told = AdvisedRange { extent: rest, ..old.told.clone() };
                    self.wishes.insert((object, rest.start), Wish { told, placed_to, hint: old.hint });
                }
            }
        }
    }
}

impl Advised {
    /// Prefetches that steps take back: of other objects too, when their bytes gave way.
    pub fn cancel_for(&self, steps: &[Step]) {
        let books = &mut *self.books.borrow_mut();
        for step in steps {
            if let Step::Release(object, extent, tier) | Step::Drop(object, extent, tier) = *step {
                let cancelled = books.jobs.cancel(object, extent, tier);
                let moved = books.advisor.placed_of(object).any(|(e, _, _)| e.overlaps(&extent));
                if let Some(wish) = books.wish_at(object, extent.start) {
                    wish.told.to_fetch = wish.told.to_fetch.saturating_sub(cancelled);
                    if !moved {
                        // It gave way to others.
                        wish.told.refusal = Refusal::NoRoom as u8 + 1;
                    }
                }
            }
        }
        while books.jobs.take_ended().is_some() {}
    }
}

/// Whose budget is meant.
fn payer_of(word: &str) -> Option<Payer> {
    match word.strip_prefix("uid:") {
        Some(uid) => uid.parse().ok().map(|u| Payer::User(UserId(u))),
        None => word.parse().ok().map(|p| Payer::Project(ProjectId(p))),
    }
}

/// Why bytes have no place, by what the room said of them; 0: they have.
fn refusal_of(steps: &[Step]) -> u8 {
    let why = steps.iter().rev().find_map(|s| if let Step::Refused(_, _, why) = s { Some(*why) } else { None });
    why.map_or(0, |why| why as u8 + 1)
}
