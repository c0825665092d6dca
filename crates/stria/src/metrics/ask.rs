//! The question of the endpoint's threads and the shard's answer.
use std::rc::Rc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use client::Client;
use rt::LocalFuture;
use types::metric::Snapshot;

use super::{COLLECT_SECONDS, READY};
use crate::control::Event;

/// How long the shard may take to answer before the process is taken for ill.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Least time between two questions, so that scrapes, however many, take a small part of the shard's time.
const PAUSE: Duration = Duration::from_millis(20);

/// A question to the shard.
#[derive(Debug)]
pub struct Measure {
    answer: Sender<Measured>,
}

/// The shard's answer.
#[derive(Debug)]
pub struct Measured {
    /// The values.
    pub snapshot: Snapshot,
    /// Why the process is not ready to serve, a sentence each.
    pub not_ready: Vec<String>,
}

/// The servers that run in this process.
#[derive(Clone, Copy, Default)]
pub struct Servers<'a> {
    /// The metadata target.
    pub mds: Option<&'a cluster::MdsRole>,
    /// The object storage targets.
    pub oss: Option<&'a cluster::OssNode>,
}

impl Servers<'_> {
    /// Answers for these servers and for the clients of the process. What is on this shard is looked at before this returns; the
    /// rest, and the answer, come when what it returns is awaited.
    pub fn answer(&self, clients: &[Rc<Client>], asked: Measure) -> LocalFuture<()> {
        let began = Instant::now();
        let (mut snapshot, mut not_ready) = (Snapshot::default(), Vec::new());
        if let Some(mds) = self.mds {
            mds.mds().into_iter().for_each(|mds| mds.measure(&mut snapshot));
            not_ready.extend(mds.not_ready());
        }
        let osts = self.oss.map(|oss| oss.each(measured));
        for client in clients {
            client.measure(&mut snapshot);
            not_ready.extend(client.sessions().not_ready());
        }
        let took = began.elapsed();
        Box::pin(async move {
            if let Some(osts) = osts {
                for (of_shard, why) in osts.await {
                    snapshot.join(of_shard);
                    not_ready.extend(why);
                }
            }
            snapshot.add(&READY, &[], not_ready.is_empty());
            snapshot.add(&COLLECT_SECONDS, &[], took.as_secs_f64());
            // Who asked may have lost patience.
            let _ = asked.answer.send(Measured { snapshot, not_ready });
        })
    }
}

#[cfg(test)]
impl Servers<'_> {
    /// Answers where there is nobody else to ask.
    pub fn answer_at_once(&self, asked: Measure) {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(self.answer(&[], asked).as_mut().poll(&mut context).is_ready(), "there is nobody else to ask");
    }
}

fn measured(oss: &oss::Oss) -> (Snapshot, Vec<String>) {
    let mut snapshot = Snapshot::default();
    oss.measure(&mut snapshot);
    (snapshot, oss.not_ready())
}

/// What a question came to: nothing when the shard was silent.
type Outcome = Option<Arc<Measured>>;

struct Latest {
    began: Instant,
    ended: Instant,
    outcome: Outcome,
}

/// Asks the shard, one question at a time; who waited for the same moment gets the same answer.
pub struct Asker {
    events: Sender<Event>,
    latest: Mutex<Option<Latest>>,
}

impl Asker {
    /// Asks the shard that empties this queue.
    pub fn new(events: Sender<Event>) -> Asker {
        Asker { events, latest: Mutex::new(None) }
    }

    /// Values that are not older than the question; `None` when the shard does not answer.
    pub fn ask(&self) -> Outcome {
        let asked = Instant::now();
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(l) = &*latest {
            // An answer has to be newer than the question; silence is silence for all that waited.
            let serves = if l.outcome.is_some() { l.began >= asked } else { l.ended >= asked };
            if serves {
                return l.outcome.clone();
            }
            std::thread::sleep(PAUSE.saturating_sub(l.began.elapsed()));
        }
        let began = Instant::now();
        let (answer, answered) = channel();
        let outcome = match self.events.send(Event::Measure(Measure { answer })) {
            Ok(()) => match answered.recv_timeout(ANSWER_WITHIN) {
                Ok(measured) => Some(Arc::new(measured)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
            },
            Err(_) => None,
        };
        *latest = Some(Latest { began, ended: Instant::now(), outcome: outcome.clone() });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_the_same_moment_gets_the_same_answer_and_a_later_one_a_newer() {
        let (sender, events) = channel();
        let asker = Asker::new(sender);
        let shard = std::thread::spawn(move || {
            let mut questions = 0;
            while let Ok(Event::Measure(m)) = events.recv() {
                questions += 1;
                Servers::default().answer_at_once(m);
            }
            questions
        });
        let first = asker.ask().unwrap();
        let second = asker.ask().unwrap();
        assert!(!Arc::ptr_eq(&first, &second), "a later question gets later values");
        assert!(first.not_ready.is_empty());
        std::thread::scope(|s| {
            for _ in 0..50 {
                s.spawn(|| assert!(asker.ask().is_some()));
            }
        });
        drop(asker);
        let questions = shard.join().unwrap();
        assert!((3..=52).contains(&questions), "{questions}");
    }

    #[test]
    fn a_shard_that_is_gone_is_silence() {
        let (sender, events) = channel();
        drop(events);
        assert!(Asker::new(sender).ask().is_none());
    }
}
