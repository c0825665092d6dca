//! Work that is not left half done: a future which, dropped once it has begun, goes on as a task of its own.
//!
//! What has been sent to a server cannot be called back, and its answer has to be taken in: caches that rest on own locks hear of own
//! changes by nothing else. While it is waited for it costs a box, and no task.
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use rt::Rt;

/// See the module's head.
pub(crate) struct GoesOn<F: Future<Output: 'static> + 'static, U: FnOnce(F::Output) + 'static> {
    rt: Rt,
    /// `None`: it has ended.
    work: Option<(Pin<Box<F>>, U)>,
    has_begun: bool,
}

/// Work whose outcome nobody needs who does not wait for it.
pub(crate) fn goes_on<F>(rt: &Rt, work: F) -> GoesOn<F, fn(F::Output)>
where
    F: Future<Output: 'static> + 'static,
{
    goes_on_or(rt, work, drop)
}

/// The same; `undo` gets what the work brought when nobody is there to take it.
pub(crate) fn goes_on_or<F, U>(rt: &Rt, work: F, undo: U) -> GoesOn<F, U>
where
    F: Future<Output: 'static> + 'static,
    U: FnOnce(F::Output) + 'static,
{
    GoesOn { rt: rt.clone(), work: Some((Box::pin(work), undo)), has_begun: false }
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
            self.rt.spawn(async move { undo(work.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::task::Waker;

    use super::*;

    #[test]
    fn it_goes_on_when_it_is_dropped_amid_and_never_begins_when_before() {
        for polls in 0..2 {
            let world = simworld::TestWorld::new(1, 1 << 20);
            let (rt, event) = (world.rt(), Rc::new(rt::sync::Event::new()));
            let (ended, undone): (Rc<Cell<u32>>, Rc<Cell<u32>>) = Default::default();
            let (comes, end, undo) = (event.clone(), ended.clone(), undone.clone());
            world.run(async {
                let work = async move {
                    comes.wait().await;
                    end.set(end.get() + 1);
                    7
                };
                let mut work = goes_on_or(&rt, work, move |n| undo.set(n));
                for _ in 0..polls {
                    assert!(Pin::new(&mut work).poll(&mut Context::from_waker(Waker::noop())).is_pending());
                }
                drop(work);
                rt.sleep(types::Duration::from_millis(1)).await;
                event.notify();
                rt.sleep(types::Duration::from_millis(1)).await;
            });
            assert_eq!((ended.get(), undone.get()), (polls, 7 * polls));
        }
    }

    #[test]
    fn who_waits_gets_the_outcome_and_nothing_is_undone() {
        let world = simworld::TestWorld::new(1, 1 << 20);
        let undone = Rc::new(Cell::new(0));
        let (rt, undo) = (world.rt(), undone.clone());
        let got = world.run(async { goes_on_or(&rt, async { 5 }, move |n| undo.set(n)).await });
        assert_eq!((got, undone.get()), (5, 0));
    }
}
