//! Drives a [`Pipeline`] for tasks: each waits its turn, holds a permit while it works, and wakes the next.
//!
//! The dispatchers of one server know each other ([`Heads`]), also those on other shards: who was told what another one took is
//! polled, since its time may have come.
//!
//! What happened to each request is kept in a ring ([`trace::Ring`]): written when its permit is dropped.
mod heads;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use nrs::{IoOp, NrsRequest, Pipeline};
use rt::Rt;
use rt::sync::{Event, OneSender, oneshot};
use trace::{Came, Flags, Record, Ring};
use types::{ClientId, Duration, Extent, FsError, Instant, ObjectId, RequestId};

pub use heads::{HeadNews, Heads, TellShards};

use crate::store::{BLOCK_BYTES, BlockRange};

struct Inner {
    rt: Rt,
    pipeline: RefCell<Pipeline>,
    waiting: RefCell<HashMap<RequestId, OneSender<()>>>,
    /// The wake-up that a timer task already waits for.
    timer: Cell<Option<Instant>>,
    /// The other dispatchers of its server.
    heads: OnceCell<Heads>,
    /// What another one took may have changed when this one goes on.
    told: Cell<bool>,
    /// Nothing is queued or in service any more.
    quiet: Event,
    trace: RefCell<Ring>,
    /// Queued requests that were promoted: when, and by when they are to be complete. Few, and mostly none.
    promoted: RefCell<Vec<(RequestId, Instant, Instant)>>,
}

/// How long the background waits when the queue is full.
const FULL_WAIT: Duration = Duration::from_secs(1);
/// How long a request of the background class waits for a moment without others: a target that is never quiet serves one
/// from time to time all the same.
const BACKGROUND_PATIENCE: Duration = Duration::from_secs(1);

/// A shared pipeline; cheap to clone.
#[derive(Clone)]
pub struct Dispatcher(Rc<Inner>);

/// The right to work with the store; the next request starts when it is dropped.
pub struct Permit {
    owner: Dispatcher,
    id: RequestId,
    /// Requests that had arrived before it.
    number: u64,
    flags: Flags,
    promoted: Option<(Instant, Instant)>,
    stored: Cell<u32>,
    errno: Cell<u16>,
    came: Cell<Came>,
    /// Its record waits for a commit.
    commits: Cell<bool>,
}

/// A request that is through with the store and answered when it is committed.
#[must_use]
pub struct Commits {
    owner: Dispatcher,
    record: Record,
}

impl Drop for Commits {
    fn drop(&mut self) {
        let now = self.owner.0.rt.now();
        self.owner.0.trace.borrow_mut().push(self.record.committed(now));
    }
}

impl Permit {
    /// For the trace: what it waited for before it joined the queue.
    pub fn came(&self, came: Came) {
        self.came.set(came);
    }
    /// Gives the place up; the trace hears of the request when what this gives is dropped: when it is on stable storage.
    pub fn then_commits(self) -> Commits {
        let (owner, now) = (self.owner.clone(), self.owner.0.rt.now());
        let record = self.record(&owner.0.pipeline.borrow(), now);
        self.commits.set(true);
        Commits { owner, record }
    }
    /// For the trace: the store is asked for so many bytes.
    pub fn stores(&self, bytes: u64) {
        self.stored.set(u32::try_from(bytes).unwrap_or(u32::MAX));
    }
    /// For the trace: it came to nothing.
    pub fn failed(&self, e: FsError) {
        self.errno.set(u16::try_from(e.errno()).unwrap_or(u16::MAX));
    }
    #[inline]
    fn record(&self, pipeline: &Pipeline, now: Instant) -> Record {
        let record = Record::of(self.number, pipeline.job(self.id), pipeline.dispatched(self.id), now);
        let (stored, errno) = (self.stored.get(), self.errno.get());
        let record =
            Record { stored, errno, flags: record.flags.with(self.flags), ..record }.which_came(&self.came.get());
        match self.promoted {
            None => record,
            Some((at, serve_by)) => record.promoted(at, serve_by),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let now = self.owner.0.rt.now();
        {
            let (mut pipeline, mut trace) = (self.owner.0.pipeline.borrow_mut(), self.owner.0.trace.borrow_mut());
            if trace.is_on() && !self.commits.get() {
                trace.push(self.record(&pipeline, now));
            }
            pipeline.on_completion(now, self.id);
        }
        self.owner.pump();
        if self.owner.is_quiet() {
            self.owner.0.quiet.notify();
        }
    }
}

impl Dispatcher {
    /// Drives `pipeline`; keeps no trace.
    #[must_use]
    pub fn new(rt: Rt, pipeline: Pipeline) -> Dispatcher {
        Dispatcher(Rc::new(Inner {
            rt,
            pipeline: RefCell::new(pipeline),
            waiting: RefCell::default(),
            timer: Cell::new(None),
            heads: OnceCell::new(),
            told: Cell::new(false),
            quiet: Event::new(),
            trace: RefCell::default(),
            promoted: RefCell::default(),
        }))
    }

    /// Works on the trace: what happened to the requests of late.
    pub fn trace<T>(&self, work: impl FnOnce(&mut Ring) -> T) -> T {
        work(&mut self.0.trace.borrow_mut())
    }

    /// Waits until the pipeline dispatches `request`.
    ///
    /// # Errors
    /// `Overloaded` when the head is full, `NotConnected` when the request was cancelled.
    pub async fn admit(&self, request: NrsRequest) -> Result<Permit, FsError> {
        self.admit_as(request, Flags::default()).await
    }

    async fn admit_as(&self, request: NrsRequest, flags: Flags) -> Result<Permit, FsError> {
        let now = self.0.rt.now();
        let request = NrsRequest { arrived: now, ..request };
        let (number, id) = {
            let mut pipeline = self.0.pipeline.borrow_mut();
            (pipeline.counters().arrived, pipeline.on_arrival(now, request, |r| *r))
        };
        let id = id.map_err(|_| FsError::Overloaded)?;
        let (tx, rx) = oneshot();
        self.0.waiting.borrow_mut().insert(id, tx);
        self.pump();
        if rx.await.is_none() {
            self.0.promoted.borrow_mut().retain(|(promoted, ..)| *promoted != id);
            self.note(number, &request, Flags::CANCELLED);
            return Err(FsError::NotConnected);
        }
        let promoted = self.take_promotion(id);
        let (stored, errno, came, commits) = Default::default();
        Ok(Permit { owner: self.clone(), id, number, flags, promoted, stored, errno, came, commits })
    }

    /// Keeps in the trace that a read was answered without a turn.
    pub fn note_past_queue(&self, request: NrsRequest, came: &Came) {
        let (number, now) = (self.0.pipeline.borrow().counters().arrived, self.0.rt.now());
        let record = Record::of(number, &NrsRequest { arrived: now, ..request }, now, now).which_came(came);
        self.0.trace.borrow_mut().push(Record { flags: record.flags.with(Flags::PAST_QUEUE), ..record });
    }

    /// Keeps in the trace a request that needed no turn.
    pub fn keep(&self, record: Record) {
        let mut trace = self.0.trace.borrow_mut();
        let number = trace.total();
        trace.push(Record { number, ..record });
    }

    /// Keeps in the trace a request that the store has never seen.
    fn note(&self, number: u64, request: &NrsRequest, flags: Flags) {
        let now = self.0.rt.now();
        let record = Record::of(number, request, now, now);
        self.0.trace.borrow_mut().push(Record { flags: record.flags.with(flags), ..record });
    }

    fn take_promotion(&self, id: RequestId) -> Option<(Instant, Instant)> {
        let mut promoted = self.0.promoted.borrow_mut();
        if promoted.is_empty() {
            return None;
        }
        let at = promoted.iter().position(|(promoted, ..)| *promoted == id)?;
        let (_, at, serve_by) = promoted.swap_remove(at);
        Some((at, serve_by))
    }

    /// The background class: joins the others when nothing is queued or in service, or after a second without such a moment.
    /// It is to be short: who comes meanwhile waits for it, if the window is 1.
    ///
    /// # Errors
    /// As [`Dispatcher::admit`].
    pub async fn admit_background(&self, request: NrsRequest) -> Result<Permit, FsError> {
        let until = self.0.rt.now() + BACKGROUND_PATIENCE;
        loop {
            let quiet = self.0.quiet.wait();
            let left = until.since(self.0.rt.now());
            if self.is_quiet() || left == Duration::ZERO {
                return self.admit_as(request, Flags::BACKGROUND).await;
            }
            let _ = self.0.rt.timeout(left, quiet).await;
        }
    }

    /// A turn of the background class to read some blocks; waits while the queue is full of others' requests.
    ///
    /// # Errors
    /// As [`Dispatcher::admit`], but `Overloaded`.
    pub async fn background_turn(&self, object: ObjectId, range: BlockRange) -> Result<Permit, FsError> {
        let extent = Extent::new(range.first * BLOCK_BYTES, range.end().saturating_mul(BLOCK_BYTES));
        let bytes = (range.count * BLOCK_BYTES) as u32;
        let request =
            NrsRequest { bytes, client: ldlm::LOCAL, object, extent, op: IoOp::Read, ..NrsRequest::default() };
        loop {
            match self.admit_background(request).await {
                Err(FsError::Overloaded) => self.0.rt.sleep(FULL_WAIT).await,
                Ok(permit) => {
                    permit.stores(range.count * BLOCK_BYTES);
                    return Ok(permit);
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn is_quiet(&self) -> bool {
        let pipeline = self.0.pipeline.borrow();
        pipeline.queued() == 0 && pipeline.in_service() == 0
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
        let queued = pipeline.queued_where(|r| r.client == client && r.object == object);
        for id in &queued {
            let (mut promoted, is_traced) = (self.0.promoted.borrow_mut(), self.0.trace.borrow().is_on());
            let first = !promoted.iter().any(|(before, ..)| before == id);
            if pipeline.promote(now, *id, serve_by) && first && is_traced {
                promoted.push((*id, now, serve_by));
            }
        }
        drop(pipeline);
        if !queued.is_empty() {
            // A policy that throttles wakes up at another time now.
            self.pump();
        }
    }

    /// Works on the pipeline (switch policy, set values, read counters) and dispatches what that made possible.
    pub fn with<T>(&self, work: impl FnOnce(&mut Pipeline, Instant) -> T) -> T {
        let out = work(&mut self.0.pipeline.borrow_mut(), self.0.rt.now());
        self.pump();
        out
    }

    fn pump(&self) {
        let Some(heads) = self.0.heads.get() else { return self.serve() };
        // Clocks are coarse: who could have gone on first does.
        heads.due(self.0.rt.now()).iter().for_each(Dispatcher::serve);
        self.serve();
        heads.serve_told();
    }

    fn serve(&self) {
        let now = self.0.rt.now();
        self.0.told.set(false);
        while let Some(id) = self.next(now) {
            let waiter = self.0.waiting.borrow_mut().remove(&id);
            match waiter {
                Some(w) if !w.is_abandoned() => w.send(()),
                _ => {
                    // Nobody waits any more: its task was dropped.
                    let _ = self.take_promotion(id);
                    self.0.pipeline.borrow_mut().on_completion(now, id);
                }
            }
        }
        self.watch();
    }

    fn next(&self, now: Instant) -> Option<RequestId> {
        let mut pipeline = self.0.pipeline.borrow_mut();
        let id = pipeline.next_dispatch(now)?;
        if let (Some(heads), Some(taken)) = (self.0.heads.get(), pipeline.taken()) {
            heads.share(&self.0, &mut pipeline, now, &taken);
        }
        Some(id)
    }

    /// Wakes up when a throttling policy lets something go.
    fn watch(&self) {
        let Some(at) = self.0.pipeline.borrow().wakeup_at() else { return };
        let at = self.0.heads.get().map_or(at, |heads| heads.after_others(at));
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
    fn the_trace_tells_of_every_request_when_it_came_went_to_the_store_and_was_done() {
        let world = TestWorld::new(1, 1 << 20);
        let d = dispatcher(&world, "fifo", 1);
        d.trace(|t| t.resize(65_536));
        let (rt, began) = (world.rt(), world.rt().now());
        let request = |client: u64| {
            let extent = Extent::at(client << 20, 8192);
            NrsRequest { client: ClientId(client), bytes: 4096, extent, job: nrs::JobId(5), ..NrsRequest::default() }
        };
        let work = (0..4u64).map(|i| {
            let (d, rt) = (d.clone(), rt.clone());
            async move {
                let permit = d.admit(request(i)).await?;
                permit.stores(8192);
                if i == 1 {
                    permit.failed(FsError::Io);
                }
                rt.sleep(Duration::from_millis(2)).await;
                Ok(())
            }
        });
        let (gone, clock, object) = (d.clone(), rt.clone(), ObjectId::default());
        let others: rt::LocalFuture<Result<(), FsError>> = Box::pin(async move {
            clock.sleep(Duration::from_millis(1)).await;
            gone.promote(ClientId(2), object, clock.now() + Duration::from_secs(3));
            gone.cancel_client(ClientId(3));
            gone.note_past_queue(request(9), &Came::default());
            Ok(())
        });
        let mut work: Vec<rt::LocalFuture<Result<(), FsError>>> = work.map(|w| Box::pin(w) as _).collect();
        work.push(others);
        let done = world.run(rt::sync::join_all(work));
        assert_eq!(done, [Ok(()), Ok(()), Ok(()), Err(FsError::NotConnected), Ok(())]);
        let mut records: Vec<Record> = d.trace(|t| t.since(0, 99).1.copied().collect());
        records.sort_by_key(|r| r.client);
        let told = records.iter().map(|r| {
            let ms = |at: Instant| at.since(began).as_millis();
            (r.client.0, r.number, ms(r.arrived), ms(r.dispatched), ms(r.finished), r.flags.to_string(), r.errno)
        });
        let plain = String::new;
        let wanted = [
            (0, 0, 0, 0, 2, plain(), 0),
            (1, 1, 0, 2, 4, plain(), FsError::Io.errno() as u16),
            (2, 2, 0, 4, 6, "urgent+promoted".into(), 0),
            (3, 3, 0, 1, 1, "cancelled".into(), 0),
            (9, 4, 1, 1, 1, "past_queue".into(), 0),
        ];
        assert_eq!(told.collect::<Vec<_>>(), wanted);
        let two = records[2];
        assert_eq!((two.max_service_us, two.promoted_us, two.stored, two.job.0), (3_001_000, 1000, 8192, 5));
        assert_eq!((two.offset, two.span, two.bytes), (2 << 20, 8192, 4096));
        d.trace(|t| t.resize(0));
        world.run(async move { d.admit(request(1)).await.map(drop) }).unwrap();
    }

    #[test]
    fn the_background_class_lets_others_pass_and_is_served_at_last() {
        // Ten requests that end, and clients that never stop asking.
        for rounds in [5u64, 5000] {
            let world = TestWorld::new(1, 1 << 20);
            let d = dispatcher(&world, "fifo", 1);
            let (rt, log) = (world.rt(), Rc::new(RefCell::new(Vec::new())));
            let mut work: Vec<rt::LocalFuture<()>> = Vec::new();
            for client in 0..2 {
                let (d, rt, log) = (d.clone(), rt.clone(), log.clone());
                work.push(Box::pin(async move {
                    for _ in 0..rounds {
                        let request = NrsRequest { client: ClientId(client), ..NrsRequest::default() };
                        let _permit = d.admit(request).await;
                        log.borrow_mut().push(client);
                        rt.sleep(Duration::from_millis(1)).await;
                    }
                }));
            }
            let (asked, told) = (d.clone(), log.clone());
            work.push(Box::pin(async move {
                let _permit = asked.admit_background(NrsRequest { client: ClientId(9), ..NrsRequest::default() }).await;
                told.borrow_mut().push(9);
            }));
            world.run(rt::sync::join_all(work));
            let at = log.borrow().iter().position(|i| *i == 9).unwrap() as u64;
            let wanted = if rounds == 5 { 10..=10 } else { 990..=1010 };
            assert!(wanted.contains(&at), "served behind {at} of {} others", rounds * 2);
        }
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

    /// Dispatchers of one server under `rules`, each with `queued` requests of client 1; how many each dispatched until
    /// `seconds` had passed. `service` is how long a request takes at each.
    fn served_within(rules: &str, service: &[Duration], seconds: u64) -> Vec<usize> {
        served_on(1, rules, service, seconds)
    }

    /// The same on so many shards, whose messages take 20 us.
    fn served_on(shards: usize, rules: &str, service: &[Duration], seconds: u64) -> Vec<usize> {
        let world = TestWorld::new(1, 1 << 20);
        let (rt, all) = (world.rt(), (0..shards).map(|_| Heads::default()).collect::<Rc<[Heads]>>());
        for from in (0..shards).filter(|_| shards > 1) {
            let (rt, others) = (world.rt(), all.clone());
            let tell: TellShards = Box::new(move |news| {
                for at in (0..others.len()).filter(|at| *at != from) {
                    let (rt, shards) = (rt.clone(), others.clone());
                    rt.clone().spawn(async move {
                        rt.sleep(Duration::from_micros(20)).await;
                        let answer = shards[at].on_news(rt.now(), news);
                        rt.sleep(Duration::from_micros(20)).await;
                        if let Some(answer) = answer {
                            assert!(shards[from].on_news(rt.now(), answer).is_none());
                        }
                    });
                }
            });
            all[from].link(shards as u32 - 1, tell);
            all[from].go_behind(from as u32);
        }
        let mut config = NrsConfig::default();
        config.set("tbf_rules", rules).unwrap();
        let log = Rc::new(RefCell::new(vec![0; service.len()]));
        let mut work = Vec::new();
        for (i, took) in service.iter().copied().enumerate() {
            let d = Dispatcher::new(world.rt(), Pipeline::new("tbf", config.clone(), 2).unwrap());
            all[i % shards].add(&d);
            for _ in 0..3000 {
                let (d, rt, log) = (d.clone(), rt.clone(), log.clone());
                work.push(async move {
                    let _permit = d.admit(NrsRequest { client: ClientId(1), ..NrsRequest::default() }).await.unwrap();
                    log.borrow_mut()[i] += 1;
                    rt.sleep(took).await;
                });
            }
        }
        let clock = world.rt();
        world.run(async move {
            let all = rt::sync::join_all(work);
            assert!(rt::sync::race(all, clock.sleep(Duration::from_secs(seconds))).await.is_err(), "some are left");
        });
        log.take()
    }

    #[test]
    fn the_dispatchers_of_a_server_keep_to_one_rate_in_turns() {
        let ms = Duration::from_millis;
        for rules in ["start a client={1} rate=100 depth=1", "start a client={1} rate=100"] {
            let served = served_within(rules, &[ms(1), ms(15), ms(3)], 9);
            let sum: usize = served.iter().sum();
            assert!((899..=903).contains(&sum), "{rules}: {served:?}");
            assert!(served.iter().all(|n| n.abs_diff(300) < 5), "{rules}: {served:?}");
        }
        // On shards of their own: three, and two of which one has two of them.
        for shards in [3, 2] {
            let served = served_on(shards, "start a client={1} rate=100", &[ms(1), ms(15), ms(3)], 9);
            let sum: usize = served.iter().sum();
            assert!((890..=906).contains(&sum), "{shards} shards: {served:?}");
            assert!(served.iter().all(|n| n.abs_diff(300) < 15), "{shards} shards: {served:?}");
        }
        // What would pass if nobody else were there.
        assert!((901..=904).contains(&served_within("start a client={1} rate=100", &[ms(1)], 9)[0]));
    }
}
