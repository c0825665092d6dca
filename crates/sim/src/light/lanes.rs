//! The pending events of a light world: a queue per OSS where OSSs share nothing, one for all where they do.
//!
//! OSSs that share nothing need not be kept in step to the nanosecond: each goes through a window of virtual time before
//! the next one does, so that what is known of it is fetched into the processor's caches once for many events. Events of
//! one OSS come in the order in which one big queue would give them.
use super::world::Event;
use crate::engine::EventQueue;

/// Virtual time that an OSS goes through at once: at some 1,000 events a second and OST, a few dozen events.
const WINDOW_NS: u64 = 50_000_000;

/// The queues; see the module.
pub(super) struct Lanes {
    /// One per OSS, or one for all.
    queues: Vec<EventQueue<Event>>,
    osts_per_oss: u32,
    /// The queue that is being worked on, and until when (exclusive).
    current: usize,
    until: u64,
    popped: u64,
    pending_max: usize,
}

impl Lanes {
    /// No events, for `osses` OSSs that share nothing, or that share something, with `osts_per_oss` OSTs each.
    pub fn new(osses: u32, osts_per_oss: u32, shared: bool) -> Lanes {
        let queues = (0..if shared { 1 } else { osses.max(1) }).map(|_| EventQueue::new()).collect();
        Lanes { queues, osts_per_oss, current: 0, until: 0, popped: 0, pending_max: 0 }
    }
    /// Schedules `event` of `ost` at `time`.
    #[inline]
    pub fn at(&mut self, ost: u32, time: u64, event: Event) {
        let lane = if self.queues.len() == 1 { 0 } else { (ost / self.osts_per_oss) as usize };
        self.queues[lane].at(time, event);
    }
    /// Takes the next event out: the next one of the current OSS, or the first one of the next OSS.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        let event = match &mut self.queues[..] {
            [queue] => queue.pop(),
            queues => loop {
                match queues.get_mut(self.current) {
                    Some(queue) if queue.next_time().is_some_and(|time| time < self.until) => break queue.pop(),
                    Some(_) => self.current += 1,
                    None => {
                        self.current = 0;
                        let first = queues.iter().filter_map(EventQueue::next_time).min()?;
                        self.until = first.saturating_add(WINDOW_NS);
                        let pending = queues.iter().map(EventQueue::pending).sum();
                        self.pending_max = self.pending_max.max(pending);
                    }
                }
            },
        };
        self.popped += u64::from(event.is_some());
        event
    }
    /// The latest time that anything happened at.
    pub fn now(&self) -> u64 {
        self.queues.iter().map(EventQueue::now).max().unwrap_or(0)
    }
    /// Events taken out.
    pub fn popped(&self) -> u64 {
        self.popped
    }
    /// The most events that waited at once, as far as was looked at: whenever a window began.
    pub fn pending_max(&self) -> usize {
        match &self.queues[..] {
            [queue] => queue.pending_max(),
            _ => self.pending_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Rng;

    /// What every OST saw, when each event leads to some more of its own.
    fn histories(shared: bool) -> Vec<Vec<(u64, u32)>> {
        const OSTS: u32 = 5;
        let mut lanes = Lanes::new(OSTS, 1, shared);
        let mut seen = vec![Vec::new(); OSTS as usize];
        let mut rngs: Vec<Rng> = (0..OSTS).map(|ost| Rng::new(u64::from(ost) + 3)).collect();
        for ost in 0..OSTS {
            for slot in 0..20 {
                lanes.at(ost, u64::from(slot % 3) * 1_000, Event::Disk { ost, slot });
            }
        }
        while let Some((now, event)) = lanes.pop() {
            let Event::Disk { ost, slot } = event else { panic!("only disks have events here") };
            let (history, rng) = (&mut seen[ost as usize], &mut rngs[ost as usize]);
            history.push((now, slot));
            for _ in 0..rng.below(4) {
                if history.len() < 3_000 {
                    // At once, within the window, and far beyond it.
                    let delay = [0, rng.below(1_000_000), rng.below(10 * WINDOW_NS)][rng.below(3) as usize];
                    lanes.at(ost, now + delay, Event::Disk { ost, slot: slot + history.len() as u32 });
                }
            }
        }
        assert_eq!(lanes.popped(), seen.iter().map(|history| history.len() as u64).sum::<u64>());
        assert_eq!(Some(lanes.now()), seen.iter().flatten().map(|(now, _)| *now).max());
        seen
    }

    #[test]
    fn every_ost_has_the_history_that_one_big_queue_gives_it() {
        let histories = [histories(false), histories(true)];
        assert!(histories[0].iter().map(Vec::len).sum::<usize>() > 1_000);
        assert_eq!(histories[0], histories[1]);
    }
}
