//! What programs read and write with O_DIRECT. A kernel sends that in the background, where it has a certain number of
//! requests under way and keeps all others in line, unheard of. It may wait for locks, and those for a write of a page in
//! that line: so it never has all places. Who finds three quarters of them taken gets EAGAIN
//! (`docs/internals/kernel-locks.md`, "Queues").
use std::cell::Cell;
use std::rc::Rc;

const O_DIRECT: u32 = 0o40000;

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
    /// A request through a descriptor with these flags begins. `None`: there are too many; others than O_DIRECT's are not
    /// counted.
    pub(crate) fn begin(&self, flags: u32) -> Option<Option<UnderWay>> {
        if flags & O_DIRECT == 0 || types::planted!("direct-fills-line") {
            return Some(None);
        }
        let now = self.under_way.get();
        (now < self.limit).then(|| {
            self.under_way.set(now + 1);
            Some(UnderWay(self.under_way.clone()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_places_is_left_and_whoever_ends_leaves_its_own() {
        let direct = Direct::new(5);
        let begun: Vec<_> = (0..3).map(|_| direct.begin(O_DIRECT | 2)).collect();
        assert!(begun.iter().all(Option::is_some) && direct.begin(O_DIRECT).is_none());
        assert!(direct.begin(2).is_some_and(|guard| guard.is_none()), "others are not counted");
        drop(begun);
        assert!(direct.begin(O_DIRECT).is_some());
    }
}
