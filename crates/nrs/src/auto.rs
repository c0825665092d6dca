//! Chooses among other policies by what they would have done with the requests that came: what a sample of them would have got
//! from each on a model of the disk, fitted to what requests took.
//!
//! The queue is that of the policy in use. From time to time a window of requests is kept (`sample`), the disk fitted to what
//! they took ([`devices::fit`]), and the sample served again by each candidate's own pipeline (`shadow`), some steps with
//! each call, so that no call waits. Who wins by a margin for several windows takes over (`verdict`). Where a fit cannot tell what
//! a request costs that continues the one before, because there was none, another candidate serves one short window.
//!
//! What it does not see: what the store's caches would have held under another order, and what lies behind them; a disk whose
//! times do not follow from places is not chosen for.
//!
//! Source: duels of shadow caches (`cache`), here for queues. Differs: a sample is served whole, for order has no hits.
use crate::{
    Counters, NrsConfig, NrsPolicy, NrsRequest, REQUEST_ID_LIMIT,
    head::{Builder, Head},
    sample::{NONE, Window},
    shadow::{Course, Outcome, Shadow},
    verdict::{Judge, Measured, Verdict},
};
use alloc::{
    boxed::Box,
    collections::VecDeque,
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use devices::{Fit, Observation};
use types::{Duration, Instant, RequestId};

/// Steps of a shadow with each request that comes or is complete.
const STEPS: u32 = 8;
/// Arrivals between two windows, in samples, once nothing is about to change; ..
const REST: u64 = 16;
/// .. and where the order makes no difference.
const REST_IDLE: u64 = 48;
/// Windows at the beginning without a pause between.
const WINDOWS_FIRST: u64 = 4;
/// A fit counts until one is better than this share of it, for each window since.
const AGEING: f64 = 0.99;
/// A fit that explains less of the times than this is none.
const R_SQUARED_MIN: f64 = 0.1;
/// Windows that are given to another candidate for the fit's sake.
const PROBES_MAX: u32 = 4;
/// A jump that costs less than this share of a request makes no difference.
const JUMP_SHARE_MIN: f64 = 0.03;
/// Decisions that are remembered.
const TOLD_MAX: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Queued,
    InService,
}

/// A request that is queued or in service.
#[derive(Clone, Copy, Debug)]
struct Slot {
    request: NrsRequest,
    state: State,
    /// The deadline that it was promoted to; [`Instant::MAX`]: none.
    serve_by: Instant,
    /// Its rank among the arrivals.
    rank: u64,
    /// Its number in the sample of the window `window`.
    entry: u32,
    window: u64,
}

/// What is being done beside the queue.
enum Phase {
    /// Nothing, until so many requests have come.
    Rest(u64),
    /// A window is kept.
    Sampling(Box<Window>),
    /// Candidates serve it.
    Trying(Box<Contest>),
}

/// A sample being served by the candidates, one after the other.
struct Contest {
    course: Course,
    window: u32,
    measured: Measured,
    outcomes: Vec<Outcome>,
    shadow: Option<Shadow>,
    /// What is told of it.
    about: String,
}

/// See the module.
pub(crate) struct Auto {
    build: Builder,
    config: NrsConfig,
    inner: Box<dyn NrsPolicy>,
    candidates: Vec<String>,
    /// The candidate that serves: the chosen one, but for a short window now and then.
    running: usize,
    slots: Vec<Slot>,
    in_service: u32,
    arrivals: u64,
    phase: Phase,
    /// Windows begun.
    windows: u64,
    judge: Judge,
    /// What was observed of the disk in the last window of each candidate.
    observed: Vec<Vec<Observation>>,
    fit: Option<Fit>,
    probes: u32,
    judged: u64,
    changed: u64,
    /// Counted by policies that were in use.
    counters: Counters,
    told: VecDeque<String>,
}

impl Auto {
    /// Chooses among the configuration's candidates, each of which `build` builds.
    pub(crate) fn new(config: &NrsConfig, build: Builder) -> Auto {
        let (candidates, first) = candidates(config, &config.auto_first);
        let inner = build(&candidates[first], config).expect("names of candidates are checked when they are set");
        Auto {
            build,
            config: config.clone(),
            inner,
            judge: judge(config, candidates.len(), first),
            observed: vec![Vec::new(); candidates.len()],
            candidates,
            running: first,
            slots: Vec::new(),
            in_service: 0,
            arrivals: 0,
            phase: Phase::Rest(0),
            windows: 0,
            fit: None,
            probes: 0,
            judged: 0,
            changed: 0,
            counters: Counters::default(),
            told: VecDeque::new(),
        }
    }

    fn state(&self, id: RequestId) -> State {
        self.slots.get(id.0 as usize).map_or(State::Free, |slot| slot.state)
    }

    /// The window that is being kept, and the number in it of the request `id`.
    fn sampled(&mut self, id: RequestId) -> Option<(&mut Window, u32)> {
        let (slot, windows) = (self.slots.get(id.0 as usize)?, self.windows);
        let Phase::Sampling(window) = &mut self.phase else { return None };
        Some((window, if slot.window == windows { slot.entry } else { NONE }))
    }

    /// Goes over to the candidate `to`, with everything that is queued.
    fn run(&mut self, now: Instant, to: usize) {
        if to == self.running {
            return;
        }
        let new = (self.build)(&self.candidates[to], &self.config).expect("it was built before");
        let mut old = core::mem::replace(&mut self.inner, new);
        self.running = to;
        self.counters = self.counters.plus(&old.counters());
        let mut ids = Vec::with_capacity(old.queued());
        old.drain(&mut ids);
        for id in ids {
            let slot = &self.slots[id.0 as usize];
            self.inner.enqueue(now, &slot.request);
            if slot.serve_by != Instant::MAX {
                self.inner.promote(now, id, slot.serve_by);
            }
        }
    }

    /// One more step beside the queue.
    fn go_on(&mut self, now: Instant) {
        match &mut self.phase {
            Phase::Rest(until) if self.arrivals < *until => {}
            Phase::Rest(_) => self.begin(now),
            Phase::Sampling(window) if !window.is_full(now, self.running != self.judge.chosen()) => {}
            Phase::Sampling(_) => self.close(now),
            Phase::Trying(contest) => {
                if let Some(outcomes) = contest.advance(&self.candidates, &self.config, self.build) {
                    let (measured, about) = (contest.measured, core::mem::take(&mut contest.about));
                    self.decide(now, &outcomes, measured, &about);
                }
            }
        }
    }

    fn begin(&mut self, now: Instant) {
        self.windows += 1;
        let queued = self.slots.iter().filter(|slot| slot.state == State::Queued);
        let queued = queued.map(|slot| (slot.rank, slot.request));
        let sample = self.config.auto_sample as usize;
        let window = Window::begin(now, self.windows, self.inner.queued(), queued, sample);
        for (entry, id) in window.held() {
            let slot = &mut self.slots[id.0 as usize];
            (slot.entry, slot.window) = (entry, self.windows);
        }
        self.phase = Phase::Sampling(Box::new(window));
    }

    /// A window is over: the disk is fitted, and the candidates begin, if there is something to choose.
    fn close(&mut self, now: Instant) {
        let Phase::Sampling(window) = core::mem::replace(&mut self.phase, Phase::Rest(0)) else { return };
        let measured =
            Measured { running: self.running, bytes_per_s: window.bytes_per_s(now), saturated: window.is_saturated() };
        self.observed[self.running] = window.observations();
        self.run(now, self.judge.chosen());
        let unknown = match self.fitted() {
            Ok(fit) => {
                let kept = self.fit.map(|f| Fit { r_squared: f.r_squared * AGEING, ..f });
                self.fit = Some(kept.filter(|kept| kept.r_squared > fit.r_squared).unwrap_or(fit));
                String::new()
            }
            Err(why) => why,
        };
        let Some(fit) = self.fit else { return self.cannot(now, &unknown) };
        let jump = fit.seek_ms.unwrap_or(0.0) * 1e6;
        let rest = fit.request_us.unwrap_or(0.0) * 1e3 + window.mean_bytes() * 1e3 / fit.mb_per_s;
        let about = format!(
            "{} requests of one object in {}; a jump {:.2} ms, {:.0} MB/s (R2 {:.2}); measured {:.1} MB/s by {}",
            window.len(),
            1u64 << window.shift(),
            jump / 1e6,
            fit.mb_per_s,
            fit.r_squared,
            measured.bytes_per_s / 1e6,
            self.candidates[measured.running]
        );
        let disk = match fit.profile() {
            Ok(_) if jump < JUMP_SHARE_MIN * (jump + rest) => {
                if self.observed.iter().filter(|o| !o.is_empty()).count() < 2 {
                    self.fit = None;
                }
                Err("a jump costs next to nothing: order makes no difference".to_string())
            }
            disk => disk,
        };
        match disk {
            Ok(disk) => {
                let (shift, in_service) = (window.shift(), window.in_service_max());
                let course = Course::new(window.into_entries(), shift, disk);
                let outcomes = Vec::with_capacity(self.candidates.len());
                let contest = Contest { course, window: in_service, measured, outcomes, shadow: None, about };
                self.phase = Phase::Trying(Box::new(contest));
            }
            // What one order alone showed may be that order's doing.
            Err(why) if self.fit.is_none() => self.cannot(now, &format!("{about}: {why}")),
            Err(why) => {
                self.judge.on_nothing();
                self.tell(now, &format!("{about}: {why}"));
                self.rest(REST_IDLE);
            }
        }
    }

    /// The disk that what was observed describes best.
    fn fitted(&self) -> Result<Fit, String> {
        let all = self.observed.concat();
        // One that takes most of what was observed for something else's doing describes little.
        let sound = |fit: &Fit| fit.seek_ms.is_some() && fit.used >= 2 * fit.left_out;
        let whole = devices::fit(&all).ok().filter(sound);
        let best = match devices::fit_jumps(&all) {
            // What does without a cost for requests is the surer one.
            Ok(plain) if sound(&plain) => {
                whole.filter(|whole| whole.r_squared > plain.r_squared + 0.05).or(Some(plain))
            }
            Ok(_) => whole,
            Err(why) => Some(whole.ok_or(why)?),
        };
        let best = best.ok_or("the store's times do not follow from places")?;
        if best.r_squared < R_SQUARED_MIN {
            return Err(format!("the store's times do not follow from places (R2 {:.2})", best.r_squared));
        }
        Ok(best)
    }

    /// There is no fit yet: another candidate serves a short window, which shows what this one does not.
    fn cannot(&mut self, now: Instant, why: &str) {
        let other = (0..self.candidates.len()).rev().find(|i| *i != self.running);
        let Some(other) = other.filter(|_| self.probes < PROBES_MAX && self.observed.iter().any(|o| !o.is_empty()))
        else {
            self.judge.on_nothing();
            self.tell(now, why);
            return self.rest(REST_IDLE);
        };
        self.probes += 1;
        self.tell(now, &format!("{why}; {} serves some requests, to see", self.candidates[other]));
        self.run(now, other);
        self.begin(now);
    }

    fn decide(&mut self, now: Instant, outcomes: &[Outcome], measured: Measured, about: &str) {
        let Verdict { chosen, why } = self.judge.on_window(&self.candidates, outcomes, measured);
        let each = self.candidates.iter().zip(outcomes);
        let rates: Vec<String> = each.map(|(name, o)| format!("{name} {:.1}", o.bytes_per_s / 1e6)).collect();
        self.tell(now, &format!("{about}; served again: {} MB/s; {why}", rates.join(", ")));
        self.judged += 1;
        self.changed += u64::from(chosen != self.running);
        self.run(now, chosen);
        let at_once = self.judge.is_close() || self.windows < WINDOWS_FIRST;
        self.rest(if at_once { 0 } else { REST });
    }

    /// Nothing beside the queue until so many samples of requests have come, and enough to pay for looking at all that is queued.
    fn rest(&mut self, samples: u64) {
        let pause = samples * u64::from(self.config.auto_sample);
        self.phase = Phase::Rest(self.arrivals + pause.max(self.slots.len() as u64 / 8));
    }

    fn tell(&mut self, now: Instant, what: &str) {
        self.told.truncate(TOLD_MAX - 1);
        let name = &self.candidates[self.judge.chosen()];
        self.told.push_front(format!("{:.3} s, {name}: {what}", now.0 as f64 / 1e9));
    }
}

fn judge(config: &NrsConfig, candidates: usize, chosen: usize) -> Judge {
    Judge::new(candidates, chosen, f64::from(config.auto_margin_percent) / 100.0, config.auto_windows)
}

/// The candidates, `first` among them, and which one that is.
fn candidates(config: &NrsConfig, first: &str) -> (Vec<String>, usize) {
    let mut names: Vec<String> = config.auto_candidates.split(',').map(|name| name.trim().to_string()).collect();
    if first.is_empty() {
        return (names, 0);
    }
    let at = names.iter().position(|name| name == first).unwrap_or_else(|| {
        names.insert(0, first.to_string());
        0
    });
    (names, at)
}

impl Contest {
    /// Some steps more; what all made of it, when it is over.
    fn advance(&mut self, candidates: &[String], config: &NrsConfig, build: Builder) -> Option<Vec<Outcome>> {
        for _ in 0..STEPS {
            let Some(name) = candidates.get(self.outcomes.len()) else { break };
            let (course, window) = (&self.course, self.window);
            let shadow = self.shadow.get_or_insert_with(|| {
                let policy = build(name, config).expect("names of candidates are checked when they are set");
                Shadow::new(course, Head::made(name, policy, config.clone(), build), window)
            });
            if !shadow.step(course) {
                self.outcomes.push(shadow.outcome());
                self.shadow = None;
            }
        }
        (self.outcomes.len() == candidates.len()).then(|| core::mem::take(&mut self.outcomes))
    }
}

impl NrsPolicy for Auto {
    fn enqueue(&mut self, now: Instant, req: &NrsRequest) {
        assert!(req.id.0 < REQUEST_ID_LIMIT, "request ids are slab keys below {REQUEST_ID_LIMIT}, got {}", req.id.0);
        let at = req.id.0 as usize;
        if at >= self.slots.len() {
            let free = Slot {
                request: NrsRequest::default(),
                state: State::Free,
                serve_by: Instant::MAX,
                rank: 0,
                entry: NONE,
                window: 0,
            };
            self.slots.resize(at + 1, free);
        }
        self.inner.enqueue(now, req);
        self.in_service -= u32::from(self.slots[at].state == State::InService);
        let entry = match &mut self.phase {
            Phase::Sampling(window) => window.on_arrival(now, req),
            _ => NONE,
        };
        let (rank, window) = (self.arrivals, self.windows);
        self.slots[at] = Slot { request: *req, state: State::Queued, serve_by: Instant::MAX, rank, entry, window };
        self.arrivals += 1;
        self.go_on(now);
    }

    fn dequeue(&mut self, now: Instant) -> Option<RequestId> {
        let id = self.inner.dequeue(now)?;
        self.slots[id.0 as usize].state = State::InService;
        self.in_service += 1;
        Some(id)
    }

    fn promote(&mut self, now: Instant, id: RequestId, serve_by: Instant) -> bool {
        let promoted = self.inner.promote(now, id, serve_by);
        if promoted {
            let slot = &mut self.slots[id.0 as usize];
            slot.serve_by = slot.serve_by.min(serve_by);
            if let Some((window, entry)) = self.sampled(id) {
                window.on_promotion(entry, serve_by);
            }
        }
        promoted
    }

    fn cancel(&mut self, id: RequestId) -> bool {
        let cancelled = self.inner.cancel(id);
        if cancelled {
            if let Some((window, entry)) = self.sampled(id) {
                window.on_cancel(entry);
            }
            self.slots[id.0 as usize].state = State::Free;
        }
        cancelled
    }

    fn drain(&mut self, into: &mut Vec<RequestId>) {
        let from = into.len();
        self.inner.drain(into);
        for id in &into[from..] {
            self.slots[id.0 as usize].state = State::Free;
        }
        self.rest(0);
    }

    fn on_complete(&mut self, now: Instant, id: RequestId, took: Duration) {
        if self.state(id) == State::InService {
            let slot = &mut self.slots[id.0 as usize];
            slot.state = State::Free;
            let (request, load) = (slot.request, (self.inner.queued(), self.in_service));
            if let Some((window, entry)) = self.sampled(id) {
                window.on_completion(now, entry, &request, took, load);
            }
            self.in_service -= 1;
        }
        self.inner.on_complete(now, id, took);
        self.go_on(now);
    }

    fn wakeup_at(&self) -> Option<Instant> {
        self.inner.wakeup_at()
    }
    fn queued(&self) -> usize {
        self.inner.queued()
    }
    fn hasten(&mut self, id: RequestId) -> bool {
        self.inner.hasten(id)
    }
    fn likely_soon(&self) -> Option<RequestId> {
        self.inner.likely_soon()
    }
    fn expiry(&self, id: RequestId) -> Option<Instant> {
        self.inner.expiry(id)
    }
    fn in_use(&self) -> Option<&str> {
        Some(&self.candidates[self.running])
    }
    fn explain(&self) -> String {
        let mut text = format!(
            "in use: {}, of {}; windows: {}, judged: {}, changes: {}\n",
            self.candidates[self.running],
            self.candidates.join(", "),
            self.windows,
            self.judged,
            self.changed
        );
        self.told.iter().for_each(|line| text.extend([line.as_str(), "\n"]));
        text
    }
    fn counters(&self) -> Counters {
        let counted = self.counters.plus(&self.inner.counters());
        Counters { judged: self.judged, chosen: self.changed, ..counted }
    }

    fn reconfigure(&mut self, now: Instant, config: &NrsConfig) {
        let in_use = self.candidates[self.judge.chosen()].clone();
        self.run(now, self.judge.chosen());
        self.inner.reconfigure(now, config);
        let list = |c: &NrsConfig| (c.auto_candidates.clone(), c.auto_margin_percent, c.auto_windows);
        let changed = list(&self.config) != list(config);
        self.config = config.clone();
        if changed {
            let (names, chosen) = candidates(config, &in_use);
            self.observed = vec![Vec::new(); names.len()];
            (self.judge, self.candidates, self.running) = (judge(config, names.len(), chosen), names, chosen);
        }
        // What was begun was begun under other settings.
        self.rest(0);
    }
}
