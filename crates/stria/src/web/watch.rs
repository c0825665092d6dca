//! One look for all viewers: somebody looks once a second while anybody watches, and everybody gets the latest. Who reads
//! slowly misses looks, and keeps nobody waiting. Sums of the looks of late are kept for those who come later.
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Viewers at a time.
pub const VIEWERS_MAX: usize = 32;
/// Looks of which the sums are kept.
const PAST_MAX: usize = 120;
/// From one look to the next.
const EVERY: Duration = Duration::from_secs(1);

/// One look.
pub struct Look {
    /// What viewers are told.
    pub document: String,
    /// Its sums, which those are told who come later.
    pub sums: Value,
}

/// See the module's head.
#[derive(Default)]
pub struct Watch {
    shared: Mutex<Shared>,
    changed: Condvar,
}

#[derive(Default)]
struct Shared {
    viewers: usize,
    /// Whether nobody watched since the last look began.
    anew: bool,
    /// Looks so far.
    looks: u64,
    latest: Arc<str>,
    /// Sums of the looks of late, while somebody watched without a break; the latest last.
    past: VecDeque<Value>,
}

impl Watch {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place among the viewers, if one is free.
    pub fn viewer(self: &Arc<Self>) -> Option<Viewer> {
        let mut shared = self.shared();
        if shared.viewers >= VIEWERS_MAX {
            return None;
        }
        // What was seen when somebody watched last is old.
        let first = shared.viewers == 0;
        let seen = if first { shared.looks } else { 0 };
        if first {
            shared.anew = true;
            shared.past.clear();
        }
        // The latest comes as a look.
        let past = shared.past.iter().take(shared.past.len().saturating_sub(1)).cloned().collect();
        shared.viewers += 1;
        self.changed.notify_all();
        Some(Viewer { watch: self.clone(), seen, past })
    }

    /// Looks for ever; `look` is told whether nobody watched since its last look.
    pub fn run(&self, mut look: impl FnMut(bool) -> Look) -> ! {
        loop {
            let anew = self.wait_for_viewers();
            let next = Instant::now() + EVERY;
            self.publish(look(anew));
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Waits until somebody watches; whether nobody did meanwhile.
    fn wait_for_viewers(&self) -> bool {
        let mut shared = self.shared();
        while shared.viewers == 0 {
            shared = self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut shared.anew)
    }

    fn publish(&self, look: Look) {
        let mut shared = self.shared();
        shared.looks += 1;
        shared.latest = look.document.into();
        if shared.past.len() >= PAST_MAX {
            shared.past.pop_front();
        }
        shared.past.push_back(look.sums);
        self.changed.notify_all();
    }
}

/// A place among the viewers; free again when dropped.
pub struct Viewer {
    watch: Arc<Watch>,
    seen: u64,
    /// Sums of the looks before the first one that this viewer gets.
    pub past: Vec<Value>,
}

impl Viewer {
    /// The latest look that this viewer has not seen.
    pub fn latest(&mut self) -> Arc<str> {
        let mut shared = self.watch.shared();
        while shared.looks == self.seen {
            shared = self.watch.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        self.seen = shared.looks;
        shared.latest.clone()
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.watch.shared().viewers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(text: &str) -> Look {
        Look { document: text.into(), sums: text.into() }
    }

    #[test]
    fn viewers_are_few_share_looks_and_who_comes_first_gets_nothing_old() {
        let watch = Arc::new(Watch::default());
        watch.publish(look("old"));
        let mut first = watch.viewer().unwrap();
        assert_eq!((watch.wait_for_viewers(), watch.wait_for_viewers()), (true, false), "somebody is there now");
        watch.publish(look("1"));
        assert_eq!(&*first.latest(), "1");
        // Who joins gets what the others have just seen; who slept gets the latest only.
        let mut second = watch.viewer().unwrap();
        assert_eq!(&*second.latest(), "1");
        watch.publish(look("2"));
        watch.publish(look("3"));
        assert_eq!((&*first.latest(), &*second.latest()), ("3", "3"));
        let third = watch.viewer().unwrap();
        assert_eq!((first.past.len(), second.past.len(), &third.past), (0, 0, &vec!["1".into(), "2".into()]));
        (0..2 * PAST_MAX).for_each(|_| watch.publish(look("4")));
        assert_eq!(watch.viewer().unwrap().past.len(), PAST_MAX - 1);
        let rest: Vec<Viewer> = std::iter::from_fn(|| watch.viewer()).collect();
        assert_eq!(rest.len(), VIEWERS_MAX - 3);
        drop(first);
        assert!(watch.viewer().is_some(), "a place is free again");
    }

    #[test]
    fn the_first_look_waits_for_the_first_viewer() {
        let watch = Arc::new(Watch::default());
        let (told, looks) = std::sync::mpsc::channel();
        let looking = watch.clone();
        std::thread::spawn(move || {
            looking.run(|anew| {
                let _ = told.send(anew);
                look(&format!("{anew}"))
            });
        });
        assert!(looks.try_recv().is_err());
        let mut viewer = watch.viewer().unwrap();
        assert_eq!((&*viewer.latest(), looks.recv()), ("true", Ok(true)));
        assert_eq!((&*viewer.latest(), looks.recv()), ("false", Ok(false)));
    }
}
