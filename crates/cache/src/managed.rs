//! What all policies share: advice levels, refused frames, first use of prefetched pages, and counting.
//!
//! A policy proper is an [`Order`]: where a page enters, what a hit does, which frame is next. [`Managed`] turns it
//! into a [`ReclaimPolicy`].
//!
//! Frames that the mechanism refuses (dirty, pinned) leave the policy's lists for a list of held frames. Every
//! reclaim first asks a bounded number of them again, so that pages which have become clean go before younger ones
//! and a cache full of dirty pages is not walked anew for every victim. A hit takes a held frame back.
//!
//! Advised frames live outside the policy's lists, one least-recently-used list per level, and leave only after every
//! unadvised frame that may leave: [`Advice::Cache`] first, [`Advice::High`] last. Advice of a resident page only
//! rises; releasing it is `remove` and `insert` by the mechanism.
use crate::table::{ADVISED, AHEAD, HELD, NONE, Table};
use crate::{Advice, FrameId, Grain, PageAccess, ReclaimPolicy};
use alloc::vec::Vec;
use core::time::Duration;

/// An order of eviction over the frames of a [`Table`]: what a policy adds to [`Managed`].
pub trait Order: Send {
    /// The registry name.
    fn name(&self) -> &'static str;
    /// The table; its lists 1..=9 are this order's.
    fn table(&self) -> &Table;
    /// The table, to change it.
    fn table_mut(&mut self) -> &mut Table;
    /// See [`ReclaimPolicy::admits`].
    fn admits(&self, access: &PageAccess) -> bool {
        let _ = access;
        true
    }
    /// `frame`, on no list, now holds the page of `access`: put it on one of the lists 1..=9. The flag [`AHEAD`] is
    /// set when nobody has used the page yet.
    fn on_insert(&mut self, frame: FrameId, access: &PageAccess);
    /// `frame`, on one of the order's lists, was used. `first_use`: it was prefetched and this is its first reader.
    fn on_hit(&mut self, frame: FrameId, access: &PageAccess, first_use: bool);
    /// `frame` was held (refused earlier), is now on no list, and was used: put it on a list again.
    fn on_return(&mut self, frame: FrameId, access: &PageAccess);
    /// `frame` is about to be taken off one of the order's lists: removed, evicted, held or advised.
    fn on_unlink(&mut self, frame: FrameId) {
        let _ = frame;
    }
    /// `frame` is evicted, from one of the order's lists or from [`HELD`]; called before [`Order::on_unlink`].
    fn on_evict(&mut self, frame: FrameId) {
        let _ = frame;
    }
    /// The frame on the order's lists that should leave next; `None` only when those lists are empty. It is still
    /// linked; the driver unlinks it before it asks again.
    fn candidate(&mut self) -> Option<FrameId>;
    /// A readahead pass met the cached page; not a use.
    fn on_readahead_hit(&mut self, frame: FrameId, access: &PageAccess) {
        let _ = (frame, access);
    }
    /// A hit of `frame` comes soon, and the frame's entry has been fetched: fetch what else it will need
    /// ([`types::prefetch`]).
    #[inline]
    fn foresee_hit(&self, frame: FrameId) {
        self.table().prefetch_neighbours(frame);
    }
    /// An insertion with `access` comes soon: fetch what it will need. Called twice, the second time when what the first
    /// call fetched has `arrived`.
    #[inline]
    fn foresee_insert(&self, access: &PageAccess, arrived: bool) {
        let _ = (access, arrived);
    }
    /// See [`ReclaimPolicy::on_fetched`].
    fn on_fetched(&mut self, access: &PageAccess, pages: u32, took: Duration) {
        let _ = (access, pages, took);
    }
    /// The grain of the page in a resident `frame`, as far as the order remembers it.
    fn grain(&self, frame: FrameId) -> Grain {
        let _ = frame;
        Grain::Fine
    }
    /// Bytes per frame of capacity beside the table (ghosts, shadows), rounded up.
    fn extra_bytes_per_page(&self) -> u32 {
        0
    }
    /// See [`ReclaimPolicy::counters`].
    fn counters(&self, into: &mut Vec<(&'static str, u64)>) {
        let _ = into;
    }
}

/// A [`ReclaimPolicy`] from an [`Order`].
pub struct Managed<O: Order> {
    order: O,
    inserted: u64,
    evicted: u64,
    refused: u64,
    readahead_inserted: u64,
    readahead_evicted_unused: u64,
}

impl<O: Order> Managed<O> {
    /// Takes over an empty order.
    #[must_use]
    pub fn new(order: O) -> Managed<O> {
        Managed { order, inserted: 0, evicted: 0, refused: 0, readahead_inserted: 0, readahead_evicted_unused: 0 }
    }

    /// The order inside, for tests and reports.
    #[must_use]
    pub fn order(&self) -> &O {
        &self.order
    }

    /// Gives the order back.
    #[must_use]
    pub fn into_order(self) -> O {
        self.order
    }

    fn evict(&mut self, frame: FrameId, victims: &mut Vec<FrameId>) {
        let list = self.order.table().list(frame);
        if list <= HELD {
            self.order.on_evict(frame);
        }
        if list < HELD {
            self.order.on_unlink(frame);
        }
        if self.order.table().flag(frame, AHEAD) {
            self.readahead_evicted_unused += 1;
        }
        self.order.table_mut().forget(frame);
        self.evicted += 1;
        victims.push(frame);
    }

    /// Asks the frames of the held list that were not asked in this call, oldest first, up to `limit` in all.
    fn evict_held(&mut self, limit: u32, asked: &mut u32, target: usize, ask: Ask<'_>, victims: &mut Vec<FrameId>) {
        while victims.len() < target && *asked < limit {
            let Some(frame) = self.order.table().tail(HELD) else { return };
            *asked += 1;
            if ask(frame) {
                self.evict(frame, victims);
            } else {
                self.refused += 1;
                self.order.table_mut().move_to_head(HELD, frame);
            }
        }
    }

    fn evict_ordered(&mut self, target: usize, ask: Ask<'_>, victims: &mut Vec<FrameId>) {
        while victims.len() < target {
            let Some(frame) = self.order.candidate() else { return };
            if ask(frame) {
                self.evict(frame, victims);
            } else {
                self.refused += 1;
                self.order.on_unlink(frame);
                self.order.table_mut().move_to_head(HELD, frame);
            }
        }
    }

    fn evict_advised(&mut self, target: usize, ask: Ask<'_>, victims: &mut Vec<FrameId>) {
        for level in &Advice::ALL[1..] {
            let mut at = self.order.table().tail(advised_list(*level));
            while let Some(frame) = at
                && victims.len() < target
            {
                at = self.order.table().towards_head(frame);
                if ask(frame) {
                    self.evict(frame, victims);
                } else {
                    self.refused += 1;
                }
            }
        }
    }

    /// A hit on a frame off the order's lists, or with advice that may move it there.
    #[cold]
    fn touch_aside(&mut self, frame: FrameId, list: u8, access: &PageAccess) {
        let wished = if access.advice == Advice::None { NONE } else { advised_list(access.advice) };
        if list >= ADVISED {
            self.order.table_mut().move_to_head(list.max(wished), frame);
        } else if wished != NONE {
            if list < HELD {
                self.order.on_unlink(frame);
            }
            self.order.table_mut().move_to_head(wished, frame);
        } else {
            self.order.table_mut().unlink(frame);
            self.order.on_return(frame, access);
        }
    }
}

/// Calls in a batch between fetching from memory and using what came: some hundred nanoseconds.
const AHEAD_CALLS: usize = 8;

/// Calls `foresee` for each page twice before `call`, the second time when what the first fetched has arrived.
#[inline]
fn batch<M>(
    me: &mut M,
    pages: &[(FrameId, PageAccess)],
    foresee: impl Fn(&M, FrameId, &PageAccess, bool),
    call: impl Fn(&mut M, FrameId, PageAccess),
) {
    let at = |me: &M, i: usize, arrived| {
        if let Some((frame, access)) = pages.get(i) {
            foresee(me, *frame, access, arrived);
        }
    };
    if pages.len() > 1 {
        (0..2 * AHEAD_CALLS).for_each(|i| at(me, i, false));
        (0..AHEAD_CALLS).for_each(|i| at(me, i, true));
    }
    for (i, &(frame, access)) in pages.iter().enumerate() {
        at(me, i + 2 * AHEAD_CALLS, false);
        at(me, i + AHEAD_CALLS, true);
        call(me, frame, access);
    }
}

type Ask<'a> = &'a mut dyn FnMut(FrameId) -> bool;

fn advised_list(advice: Advice) -> u8 {
    debug_assert!(advice != Advice::None, "unadvised frames are on the order's lists");
    ADVISED + advice as u8 - 1
}

impl<O: Order> ReclaimPolicy for Managed<O> {
    fn name(&self) -> &'static str {
        self.order.name()
    }

    fn admits(&self, access: &PageAccess) -> bool {
        access.advice != Advice::None || self.order.admits(access)
    }

    #[inline]
    fn insert(&mut self, frame: FrameId, access: PageAccess) {
        assert!(self.order.table().list(frame) == NONE, "frame {} is resident: remove it first", frame.0);
        self.inserted += 1;
        if access.readahead {
            self.readahead_inserted += 1;
            self.order.table_mut().set_flag(frame, AHEAD, true);
        }
        if access.advice == Advice::None {
            self.order.on_insert(frame, &access);
            debug_assert!(self.order.table().list(frame) != NONE, "an order links what is inserted");
        } else {
            self.order.table_mut().push_head(advised_list(access.advice), frame);
        }
    }

    #[inline]
    fn touch(&mut self, frame: FrameId, access: PageAccess) {
        let list = self.order.table().list(frame);
        assert!(list != NONE, "frame {} is not resident", frame.0);
        if access.readahead {
            if list < HELD {
                self.order.on_readahead_hit(frame, &access);
            }
            return;
        }
        let first_use = self.order.table().flag(frame, AHEAD);
        if first_use {
            self.order.table_mut().set_flag(frame, AHEAD, false);
        }
        if list < HELD && access.advice == Advice::None {
            self.order.on_hit(frame, &access, first_use);
        } else {
            self.touch_aside(frame, list, &access);
        }
    }

    fn insert_batch(&mut self, pages: &[(FrameId, PageAccess)]) {
        let foresee = |me: &Self, frame, access: &PageAccess, arrived: bool| {
            if !arrived {
                me.order.table().prefetch(frame);
            }
            me.order.foresee_insert(access, arrived);
        };
        batch(self, pages, foresee, Self::insert);
    }

    fn touch_batch(&mut self, pages: &[(FrameId, PageAccess)]) {
        let foresee = |me: &Self, frame, _: &PageAccess, arrived: bool| match arrived {
            false => me.order.table().prefetch(frame),
            true => me.order.foresee_hit(frame),
        };
        batch(self, pages, foresee, Self::touch);
    }

    fn remove(&mut self, frame: FrameId) {
        let list = self.order.table().list(frame);
        assert!(list != NONE, "frame {} is not resident", frame.0);
        if list < HELD {
            self.order.on_unlink(frame);
        }
        self.order.table_mut().forget(frame);
    }

    fn reclaim(&mut self, want: u32, can_evict: &mut dyn FnMut(FrameId) -> bool, victims: &mut Vec<FrameId>) {
        let target = victims.len() + want as usize;
        let held = self.order.table().len(HELD);
        let mut asked = 0;
        let few = held.min(want.saturating_mul(2).saturating_add(16));
        self.evict_held(few, &mut asked, target, can_evict, victims);
        self.evict_ordered(target, can_evict, victims);
        self.evict_held(held, &mut asked, target, can_evict, victims);
        self.evict_advised(target, can_evict, victims);
    }

    fn on_fetched(&mut self, access: &PageAccess, pages: u32, took: Duration) {
        self.order.on_fetched(access, pages, took);
    }

    fn remembered(&self, frame: FrameId) -> PageAccess {
        let table = self.order.table();
        let level = table.list(frame).checked_sub(ADVISED).map_or(0, |l| usize::from(l) + 1);
        let advice = Advice::ALL.get(level).copied().unwrap_or_default();
        PageAccess {
            grain: self.order.grain(frame),
            advice,
            readahead: table.flag(frame, AHEAD),
            ..PageAccess::default()
        }
    }

    fn resident(&self) -> u32 {
        self.order.table().resident()
    }

    fn metadata_bytes_per_page(&self) -> u32 {
        Table::BYTES_PER_FRAME + self.order.extra_bytes_per_page()
    }

    fn counters(&self, into: &mut Vec<(&'static str, u64)>) {
        into.extend([
            ("inserted_pages", self.inserted),
            ("evicted_pages", self.evicted),
            ("refused_pages", self.refused),
            ("held_pages", u64::from(self.order.table().len(HELD))),
            ("readahead_inserted_pages", self.readahead_inserted),
            ("readahead_evicted_unused_pages", self.readahead_evicted_unused),
        ]);
        self.order.counters(into);
    }
}
