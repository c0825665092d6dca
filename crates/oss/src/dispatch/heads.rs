//! The dispatchers of one server: what a request takes from buckets that they have in common is told to the others at once on
//! the same shard, by message to those of other shards.
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use nrs::{Pipeline, Share, Taken};
use types::{Duration, Instant};

use super::{Dispatcher, Inner};

/// What dispatchers of one server on different shards tell each other.
#[derive(Clone, Copy, Debug)]
pub enum HeadNews {
    /// One took from buckets that the server has in common.
    Took(Taken),
    /// What those of another shard say to that, for the shard that told it.
    Shares(Taken, Share),
}

/// Tells the other shards of the server; each answers.
pub type TellShards = Box<dyn Fn(HeadNews)>;

/// What was taken last here while other shards have not all answered; beyond it the oldest is forgotten: later times count.
const UNANSWERED_MAX: usize = 64;

/// How much longer each shard waits for a bucket than the one before it. Else heads that wait for the same moment on several
/// shards all take then, before they hear of each other: about the time of a message.
const STAGGER: Duration = Duration::from_micros(50);

/// Something that was taken here, and what others have answered so far.
struct Took {
    owner: Weak<Inner>,
    taken: Taken,
    shares: Share,
    /// Shards that have not answered.
    left: u32,
}

/// The way to the dispatchers on other shards.
struct Link {
    shards: u32,
    tell: TellShards,
    unanswered: RefCell<VecDeque<Took>>,
}

#[derive(Default)]
struct Shard {
    heads: RefCell<Vec<Weak<Inner>>>,
    /// Shards of the server that go first.
    behind: Cell<u32>,
    link: OnceCell<Link>,
}

/// The dispatchers of one server that are on one shard; cheap to clone.
#[derive(Clone, Default)]
pub struct Heads(Rc<Shard>);

impl Heads {
    /// From now on `dispatcher`, which belongs to no server, shares buckets with these.
    ///
    /// # Panics
    /// When it belongs to a server already.
    pub fn add(&self, dispatcher: &Dispatcher) {
        let mut heads = self.0.heads.borrow_mut();
        heads.retain(|head| head.strong_count() > 0);
        heads.push(Rc::downgrade(&dispatcher.0));
        drop(heads);
        assert!(dispatcher.0.heads.set(self.clone()).is_ok(), "a dispatcher belongs to one server");
    }
    /// From now on dispatchers on so many other shards share buckets with these.
    ///
    /// # Panics
    /// When that was said before.
    pub fn link(&self, shards: u32, tell: TellShards) {
        let link = Link { shards, tell, unanswered: RefCell::default() };
        assert!(self.0.link.set(link).is_ok(), "a server is linked once");
    }
    /// So many other shards go first where several wait for the same moment.
    pub fn go_behind(&self, shards: u32) {
        self.0.behind.set(shards);
    }
    /// When to wake up for a bucket that has something at `at`.
    pub(super) fn after_others(&self, at: Instant) -> Instant {
        at + STAGGER * self.0.behind.get()
    }
    pub(super) fn find(&self, mut matches: impl FnMut(&Inner) -> bool) -> Option<Dispatcher> {
        self.0.heads.borrow().iter().filter_map(Weak::upgrade).find(|head| matches(head)).map(Dispatcher)
    }
    /// Those that wait for a time that has come, the earliest first.
    pub(super) fn due(&self, now: Instant) -> Vec<Dispatcher> {
        let heads = self.0.heads.borrow();
        let due = heads.iter().filter_map(Weak::upgrade).filter_map(|head| Some((head.timer.get()?, head)));
        let mut due: Vec<_> = due.filter(|(at, _)| *at <= now).collect();
        due.sort_by_key(|(at, _)| *at);
        due.into_iter().map(|(_, head)| Dispatcher(head)).collect()
    }
    /// Tells all but `owner`, the owner of `pipeline`, what its last request took.
    pub(super) fn share(&self, owner: &Rc<Inner>, pipeline: &mut Pipeline, now: Instant, taken: &Taken) {
        let Some(link) = self.0.link.get() else {
            let heads = self.0.heads.borrow();
            let others = heads.iter().filter_map(Weak::upgrade).filter(|head| !Rc::ptr_eq(head, owner));
            return pipeline.share(now, taken, |tell| {
                others.filter(|head| tell(&mut head.pipeline.borrow_mut())).for_each(|head| head.told.set(true));
            });
        };
        let shares = self.charge(now, taken, Some(owner));
        let took = Took { owner: Rc::downgrade(owner), taken: *taken, shares, left: link.shards };
        let mut unanswered = link.unanswered.borrow_mut();
        if unanswered.len() >= UNANSWERED_MAX {
            unanswered.pop_front();
        }
        unanswered.push_back(took);
        (link.tell)(HeadNews::Took(*taken));
    }
    /// Charges all replicas but the owner's; gives the sum of the answers.
    fn charge(&self, now: Instant, taken: &Taken, owner: Option<&Rc<Inner>>) -> Share {
        let mut sum = Share::default();
        for head in self.0.heads.borrow().iter().filter_map(Weak::upgrade) {
            if owner.is_some_and(|owner| Rc::ptr_eq(owner, &head)) {
                continue;
            }
            if let Some(share) = head.pipeline.borrow_mut().on_taken(now, taken) {
                sum.add(&share);
                head.told.set(true);
            }
        }
        sum
    }
    /// Takes in what another shard tells; the answer is for that shard.
    pub fn on_news(&self, now: Instant, news: HeadNews) -> Option<HeadNews> {
        let answer = match news {
            HeadNews::Took(taken) => Some(HeadNews::Shares(taken, self.charge(now, &taken, None))),
            HeadNews::Shares(taken, shares) => {
                self.on_shares(now, &taken, &shares);
                None
            }
        };
        self.serve_told();
        answer
    }
    /// What another shard says to what one of these took; its owner hears of it when all have.
    fn on_shares(&self, now: Instant, taken: &Taken, shares: &Share) {
        let Some(link) = self.0.link.get() else { return };
        let mut unanswered = link.unanswered.borrow_mut();
        let Some(at) = unanswered.iter().position(|took| took.taken == *taken) else { return };
        let took = &mut unanswered[at];
        took.shares.add(shares);
        took.left = took.left.saturating_sub(1);
        if took.left > 0 {
            return;
        }
        let took = unanswered.remove(at).expect("it was found there");
        drop(unanswered);
        if let Some(owner) = took.owner.upgrade() {
            owner.pipeline.borrow_mut().on_shares(now, taken, &took.shares);
            owner.told.set(true);
        }
    }
    /// Polls those that were told something.
    pub(super) fn serve_told(&self) {
        while let Some(told) = self.find(|head| head.told.get()) {
            told.serve();
        }
    }
}
