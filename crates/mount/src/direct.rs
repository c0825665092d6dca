//! What programs read and write past the page cache. A kernel sends what is asynchronous of that in the background, where it has
//! a certain number of requests under way and keeps all others in line, unheard of. It may wait for locks, and those for a write
//! of a page in that line: so it never has all places. Who finds three quarters of them taken gets EAGAIN
//! (`docs/internals/kernel-locks.md`, "Queues"). A request does not say which kind it is, so all are counted.
use std::cell::Cell;
use std::rc::Rc;

/// See the module's head.
pub(crate) struct Direct {
    limit: usize,
    under_way: Rc<Cell<usize>>,
}

/// A request that is not done yet.
pub(crate) struct UnderWay(Rc<Cell<usize>>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Direct {
    /// For a kernel that has `background` requests in the background under way at most.
    pub(crate) fn new(background: u16) -> Direct {
        let background = usize::from(background);
        Direct { limit: background - background.div_ceil(4), under_way: Rc::default() }
    }
    /// Whether one more may be in the background.
    pub(crate) fn has_room(&self) -> bool {
        self.under_way.get() < self.limit || types::planted!("direct-fills-line")
    }
    /// A request begins.
    pub(crate) fn begin(&self) -> UnderWay {
        self.under_way.set(self.under_way.get() + 1);
        UnderWay(self.under_way.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_places_is_left_and_whoever_ends_leaves_its_own() {
        let direct = Direct::new(5);
        let mut begun: Vec<_> = (0..2).map(|_| direct.begin()).collect();
        assert!(direct.has_room());
        begun.push(direct.begin());
        assert!(!direct.has_room());
        // One that is known not to be in the background.
        let other = direct.begin();
        begun.pop();
        assert!(!direct.has_room());
        drop(other);
        assert!(direct.has_room());
    }
}
