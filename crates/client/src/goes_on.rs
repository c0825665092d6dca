//! Work that is not left half done: a future which, dropped once it has begun, goes on as a task of its own.
//!
//! What has been sent to a server cannot be called back, and its answer has to be taken in: caches that rest on own locks hear of own
//! changes by nothing else. While it is waited for it costs a box, and no task.
//!
//! What goes on alone is counted ([`Alone`]): whoever begins changes for programs that are killed looks at it first.
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use rt::Rt;
use rt::sync::Event;

/// What goes on alone in a client, for nobody waits for it any more, and how much of that there may be before no change of a program begins.
pub struct Alone {
    rt: Rt,
    count: Cell<usize>,
    max: Cell<usize>,
    /// Changes that did not begin at once.
    limit_hits: Cell<u64>,
    ended: Event,
}

impl Alone {
    /// Nothing yet; without a limit.
    pub(crate) fn new(rt: Rt) -> Rc<Alone> {
        let (count, max, limit_hits) = (Cell::new(0), Cell::new(usize::MAX), Cell::new(0));
        Rc::new(Alone { rt, count, max, limit_hits, ended: Event::new() })
    }
    /// Operations that go on alone now.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.get()
    }
    /// How many there may be before no change of a program begins.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max.get()
    }
    /// Changes [`Alone::max`], at least 1.
    pub fn set_max(&self, max: usize) {
        self.max.set(max.max(1));
        self.ended.notify();
    }
    /// Changes of programs that found as many as there may be.
    #[must_use]
    pub fn limit_hits(&self) -> u64 {
        self.limit_hits.get()
    }
    fn has_room(&self) -> bool {
        self.count.get() < self.max.get()
    }
    /// Whether a change may begin; if not, that is counted.
    pub(crate) fn admits(&self) -> bool {
        let admits = self.has_room();
        if !admits {
            self.limit_hits.set(self.limit_hits.get() + 1);
        }
        admits
    }
    /// Waits until a change may begin.
    pub(crate) async fn room(&self) {
        loop {
            let ended = self.ended.wait();
            if self.has_room() {
                return;
            }
            ended.await;
        }
    }
    fn begins(self: &Rc<Self>) -> One {
        self.count.set(self.count.get() + 1);
        One(self.clone())
    }
}

/// One operation that goes on alone.
struct One(Rc<Alone>);
impl Drop for One {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        self.0.ended.notify();
    }
}

/// See the module's head.
pub(crate) struct GoesOn<F: Future<Output: 'static> + 'static, U: FnOnce(F::Output) + 'static> {
    alone: Rc<Alone>,
    /// `None`: it has ended.
    work: Option<(Pin<Box<F>>, U)>,
    has_begun: bool,
}

/// Work whose outcome nobody needs who does not wait for it.
pub(crate) fn goes_on<F>(alone: &Rc<Alone>, work: F) -> GoesOn<F, fn(F::Output)>
where
    F: Future<Output: 'static> + 'static,
{
    goes_on_or(alone, work, drop)
}

/// The same; `undo` gets what the work brought when nobody is there to take it.
pub(crate) fn goes_on_or<F, U>(alone: &Rc<Alone>, work: F, undo: U) -> GoesOn<F, U>
where
    F: Future<Output: 'static> + 'static,
    U: FnOnce(F::Output) + 'static,
{
    GoesOn { alone: alone.clone(), work: Some((Box::pin(work), undo)), has_begun: false }
}

// The work is pinned in its box, wherever this is.
impl<F: Future<Output: 'static> + 'static, U: FnOnce(F::Output) + 'static> Unpin for GoesOn<F, U> {}

impl<F: Future<Output: 'static> + 'static, U: FnOnce(F::Output) + 'static> Future for GoesOn<F, U> {
    type Output = F::Output;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let me = self.get_mut();
        me.has_begun = true;
        let (work, _) = me.work.as_mut().expect("it is polled no more once it has ended");
        let done = work.as_mut().poll(cx);
        if done.is_ready() {
            me.work = None;
        }
        done
    }
}

impl<F: Future<Output: 'static> + 'static, U: FnOnce(F::Output) + 'static> Drop for GoesOn<F, U> {
    fn drop(&mut self) {
        let Some((work, undo)) = self.work.take().filter(|_| self.has_begun) else { return };
        if !types::planted!("dropped-half-done") {
            let one = self.alone.begins();
            self.alone.rt.spawn(async move {
                undo(work.await);
                drop(one);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn it_goes_on_when_it_is_dropped_amid_and_never_begins_when_before() {
        for polls in 0..2 {
            let world = simworld::TestWorld::new(1, 1 << 20);
            let (rt, event) = (world.rt(), Rc::new(Event::new()));
            let alone = Alone::new(rt.clone());
            let (ended, undone): (Rc<Cell<u32>>, Rc<Cell<u32>>) = Default::default();
            let (comes, end, undo) = (event.clone(), ended.clone(), undone.clone());
            world.run(async {
                let work = async move {
                    comes.wait().await;
                    end.set(end.get() + 1);
                    7
                };
                let mut work = goes_on_or(&alone, work, move |n| undo.set(n));
                for _ in 0..polls {
                    assert!(Pin::new(&mut work).poll(&mut Context::from_waker(Waker::noop())).is_pending());
                }
                drop(work);
                rt.sleep(types::Duration::from_millis(1)).await;
                assert_eq!(alone.count(), polls as usize);
                event.notify();
                rt.sleep(types::Duration::from_millis(1)).await;
                assert_eq!(alone.count(), 0);
            });
            assert_eq!((ended.get(), undone.get()), (polls, 7 * polls));
        }
    }

    #[test]
    fn who_waits_gets_the_outcome_and_nothing_is_undone() {
        let world = simworld::TestWorld::new(1, 1 << 20);
        let undone = Rc::new(Cell::new(0));
        let (alone, undo) = (Alone::new(world.rt()), undone.clone());
        let got = world.run(async { goes_on_or(&alone, async { 5 }, move |n| undo.set(n)).await });
        assert_eq!((got, undone.get(), alone.count()), (5, 0, 0));
    }
}
