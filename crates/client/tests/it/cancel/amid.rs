//! Operations whose futures are dropped on the way.
use std::future::{Future, poll_fn};
use std::task::Poll;

/// When a future is dropped that was polled so often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// As soon as it waits.
    Asleep,
    /// When what it waited for has come, in place of the next poll.
    Woken,
}

/// Runs `work`, and drops it after `polls` polls; `None`: it was dropped.
pub async fn dropped_after<T>(polls: u32, when: When, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut polled) = (Some(Box::pin(work)), 0);
    poll_fn(|cx| {
        let running = work.as_mut().expect("it is polled no more once it was dropped");
        if polled == polls && when == When::Woken {
            work = None;
            return Poll::Ready(None);
        }
        if let Poll::Ready(done) = running.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        polled += 1;
        if polled == polls && when == When::Asleep {
            work = None;
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await
}

#[test]
fn a_future_is_dropped_after_as_many_polls_as_that() {
    use std::task::{Context, Waker};
    let run = |polls, when| {
        let mut polled = 0;
        let work = poll_fn(|_| {
            polled += 1;
            if polled == 3 { Poll::Ready(()) } else { Poll::Pending }
        });
        let mut dropped = Box::pin(dropped_after(polls, when, work));
        let end = (0..5).find_map(|_| match dropped.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(end) => Some(end),
            Poll::Pending => None,
        });
        drop(dropped);
        (end, polled)
    };
    assert_eq!(
        [0, 1, 2, 3].map(|polls| run(polls, When::Woken)),
        [(Some(None), 0), (Some(None), 1), (Some(None), 2), (Some(Some(())), 3)]
    );
    assert_eq!(
        [1, 2, 3].map(|polls| run(polls, When::Asleep)),
        [(Some(None), 1), (Some(None), 2), (Some(Some(())), 3)]
    );
}
