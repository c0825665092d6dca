//! One look for all viewers: somebody looks once a second while anybody watches, and everybody gets the latest. Who reads
//! slowly misses looks, and keeps nobody waiting.
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Viewers at a time.
pub const VIEWERS_MAX: usize = 32;
/// From one look to the next.
const EVERY: Duration = Duration::from_secs(1);

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
        shared.anew |= first;
        shared.viewers += 1;
        self.changed.notify_all();
        Some(Viewer { watch: self.clone(), seen })
    }

    /// Looks for ever; `look` is told whether nobody watched since its last look.
    pub fn run(&self, mut look: impl FnMut(bool) -> String) -> ! {
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

    fn publish(&self, look: String) {
        let mut shared = self.shared();
        shared.looks += 1;
        shared.latest = look.into();
        self.changed.notify_all();
    }
}

/// A place among the viewers; free again when dropped.
pub struct Viewer {
    watch: Arc<Watch>,
    seen: u64,
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

    #[test]
    fn viewers_are_few_share_looks_and_who_comes_first_gets_nothing_old() {
        let watch = Arc::new(Watch::default());
        watch.publish("old".into());
        let mut first = watch.viewer().unwrap();
        assert_eq!((watch.wait_for_viewers(), watch.wait_for_viewers()), (true, false), "somebody is there now");
        watch.publish("1".into());
        assert_eq!(&*first.latest(), "1");
        // Who joins gets what the others have just seen; who slept gets the latest only.
        let mut second = watch.viewer().unwrap();
        assert_eq!(&*second.latest(), "1");
        watch.publish("2".into());
        watch.publish("3".into());
        assert_eq!((&*first.latest(), &*second.latest()), ("3", "3"));
        let rest: Vec<Viewer> = std::iter::from_fn(|| watch.viewer()).collect();
        assert_eq!(rest.len(), VIEWERS_MAX - 2);
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
                format!("{anew}")
            });
        });
        assert!(looks.try_recv().is_err());
        let mut viewer = watch.viewer().unwrap();
        assert_eq!((&*viewer.latest(), looks.recv()), ("true", Ok(true)));
        assert_eq!((&*viewer.latest(), looks.recv()), ("false", Ok(false)));
    }
}
