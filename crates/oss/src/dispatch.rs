//! Drives a [`Pipeline`] for tasks: each waits its turn, holds a permit while it works, and wakes the next.
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use nrs::{NrsRequest, Pipeline};
use rt::Rt;
use rt::sync::{OneSender, oneshot};
use types::{ClientId, FsError, Instant, RequestId};

struct Inner {
    rt: Rt,
    pipeline: RefCell<Pipeline>,
    waiting: RefCell<HashMap<RequestId, OneSender<()>>>,
    /// The wake-up that a timer task already waits for.
    timer: Cell<Option<Instant>>,
}

/// A shared pipeline; cheap to clone.
#[derive(Clone)]
pub struct Dispatcher(Rc<Inner>);

/// The right to work with the store; the next request starts when it is dropped.
pub struct Permit {
    owner: Dispatcher,
    id: RequestId,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let now = self.owner.0.rt.now();
        self.owner.0.pipeline.borrow_mut().on_completion(now, self.id);
        self.owner.pump();
    }
}

impl Dispatcher {
    /// Drives `pipeline`.
    #[must_use]
    pub fn new(rt: Rt, pipeline: Pipeline) -> Dispatcher {
        let inner = Inner { rt, pipeline: RefCell::new(pipeline), waiting: RefCell::default(), timer: Cell::new(None) };
        Dispatcher(Rc::new(inner))
    }

    /// Waits until the pipeline dispatches `request`.
    ///
    /// # Errors
    /// `WouldBlock` when the head is full, `NotConnected` when the request was cancelled.
    pub async fn admit(&self, request: NrsRequest) -> Result<Permit, FsError> {
        let now = self.0.rt.now();
        let id = self.0.pipeline.borrow_mut().on_arrival(now, NrsRequest { arrived: now, ..request }, |r| *r);
        let id = id.map_err(|_| FsError::WouldBlock)?;
        let (tx, rx) = oneshot();
        self.0.waiting.borrow_mut().insert(id, tx);
        self.pump();
        match rx.await {
            Some(()) => Ok(Permit { owner: self.clone(), id }),
            None => Err(FsError::NotConnected),
        }
    }

    /// Drops a client's queued requests.
    pub fn cancel_client(&self, client: ClientId) {
        let ids = self.0.pipeline.borrow_mut().cancel(|r| r.client == client);
        for id in ids {
            self.0.waiting.borrow_mut().remove(&id);
        }
    }

    /// A lock of `client` on `object` is called back: its queued requests should complete by `serve_by`.
    pub fn promote(&self, client: ClientId, object: types::ObjectId, serve_by: Instant) {
        let now = self.0.rt.now();
        let mut pipeline = self.0.pipeline.borrow_mut();
        for id in pipeline.queued_where(|r| r.client == client && r.object == object) {
            pipeline.promote(now, id, serve_by);
        }
    }

    /// Works on the pipeline (switch policy, set values, read counters) and dispatches what that made possible.
    pub fn with<T>(&self, work: impl FnOnce(&mut Pipeline, Instant) -> T) -> T {
        let out = work(&mut self.0.pipeline.borrow_mut(), self.0.rt.now());
        self.pump();
        out
    }

    fn pump(&self) {
        let now = self.0.rt.now();
        loop {
            let Some(id) = self.0.pipeline.borrow_mut().next_dispatch(now) else { break };
            let waiter = self.0.waiting.borrow_mut().remove(&id);
            match waiter {
                Some(w) if !w.is_abandoned() => w.send(()),
                _ => {
                    // Nobody waits any more: its task was dropped.
                    self.0.pipeline.borrow_mut().on_completion(now, id);
                }
            }
        }
        self.watch();
    }

    /// Wakes up when a throttling policy lets something go.
    fn watch(&self) {
        let Some(at) = self.0.pipeline.borrow().wakeup_at() else { return };
        if self.0.timer.get().is_some_and(|t| t <= at) {
            return;
        }
        self.0.timer.set(Some(at));
        let me = self.clone();
        self.0.rt.spawn(async move {
            me.0.rt.sleep_until(at).await;
            if me.0.timer.get() == Some(at) {
                me.0.timer.set(None);
            }
            me.pump();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrs::NrsConfig;
    use simworld::TestWorld;
    use types::Duration;

    fn dispatcher(world: &TestWorld, policy: &str, window: u32) -> Dispatcher {
        Dispatcher::new(world.rt(), Pipeline::new(policy, NrsConfig::default(), window).unwrap())
    }

    #[test]
    fn tasks_pass_a_window_at_a_time_in_policy_order() {
        let world = TestWorld::new(1, 1 << 20);
        let d = dispatcher(&world, "fifo", 2);
        let (rt, log) = (world.rt(), Rc::new(RefCell::new(Vec::new())));
        let (now, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let work = (0..10u64).map(|i| {
            let (d, rt, log, now, most) = (d.clone(), rt.clone(), log.clone(), now.clone(), most.clone());
            async move {
                let _permit = d.admit(NrsRequest { client: ClientId(i), ..NrsRequest::default() }).await.unwrap();
                log.borrow_mut().push(i);
                now.set(now.get() + 1);
                most.set(most.get().max(now.get()));
                rt.sleep(Duration::from_millis(1)).await;
                now.set(now.get() - 1);
            }
        });
        world.run(rt::sync::join_all(work.collect()));
        assert_eq!(*log.borrow(), (0..10).collect::<Vec<_>>());
        assert_eq!(most.get(), 2);
    }

    #[test]
    fn a_cancelled_clients_queued_requests_fail_and_free_their_place() {
        let world = TestWorld::new(1, 1 << 20);
        let d = dispatcher(&world, "fifo", 1);
        let me = d.clone();
        let outcome = world.run(async move {
            let first = me.admit(NrsRequest { client: ClientId(1), ..NrsRequest::default() }).await;
            let second = me.admit(NrsRequest { client: ClientId(2), ..NrsRequest::default() });
            let cancel = async {
                me.cancel_client(ClientId(2));
                Err(FsError::Busy)
            };
            let both: Vec<rt::LocalFuture<Result<Permit, FsError>>> = Vec::new();
            drop(both);
            let mut second = Box::pin(second);
            std::future::poll_fn(|cx| {
                assert!(second.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            let _: Result<(), FsError> = cancel.await;
            let outcome = second.await.map(|_| ());
            drop(first);
            outcome
        });
        assert_eq!(outcome, Err(FsError::NotConnected));
        assert_eq!(d.with(|p, _| (p.queued(), p.in_service())), (0, 0));
    }
}
