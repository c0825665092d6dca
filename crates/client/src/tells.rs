//! The order in which the sizes of a file are told to the metadata server: by its last writer here only, and one at a time.
use std::cell::Cell;

use rt::sync::Event;

/// What has to be known of an inode's writers here to tell its size in order.
#[derive(Default)]
pub(crate) struct SizeTells {
    /// Opens for writing that no program ended yet.
    in_use: Cell<u32>,
    /// Opens for writing so far.
    writers: Cell<u64>,
    /// Ends of opens that tell the size and are on their way.
    under_way: Cell<u32>,
    answered: Event,
    /// An open that is to tell the size is about to be made.
    pub(crate) settling: Cell<bool>,
}

impl SizeTells {
    /// A program opened the file for writing.
    pub(crate) fn writer_came(&self) {
        self.in_use.set(self.in_use.get() + 1);
        self.writers.set(self.writers.get() + 1);
    }
    /// A program ended such an open.
    pub(crate) fn writer_went(&self) {
        self.in_use.set(self.in_use.get() - 1);
    }
    /// Opens for writing that no program ended yet.
    pub(crate) fn writers_in_use(&self) -> u32 {
        self.in_use.get()
    }
    /// Ends of opens that tell the size and are on their way.
    pub(crate) fn under_way(&self) -> u32 {
        self.under_way.get()
    }
    /// Who is the last writer here; it stays so as long as this says the same.
    pub(crate) fn last_writer(&self) -> Option<u64> {
        (self.in_use.get() == 0).then(|| self.writers.get())
    }
    pub(crate) fn set_out(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }
    pub(crate) fn answered(&self) {
        self.under_way.set(self.under_way.get() - 1);
        self.answered.notify();
    }
    /// Waits until none is on its way: a later one could overtake it.
    pub(crate) async fn all_answered(&self) {
        loop {
            let answered = self.answered.wait();
            if self.under_way.get() == 0 {
                return;
            }
            answered.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_writer_tells_the_size_unless_another_came_since() {
        let tells = SizeTells::default();
        tells.writer_came();
        tells.writer_came();
        tells.writer_went();
        assert_eq!(tells.last_writer(), None, "somebody writes still");
        tells.writer_went();
        let last = tells.last_writer();
        assert!(last.is_some());
        tells.writer_came();
        tells.writer_went();
        assert_ne!(tells.last_writer(), last, "it came and went while the size was looked at");
    }

    #[test]
    fn a_size_waits_for_those_that_are_on_their_way() {
        let world = simworld::TestWorld::new(1, 1 << 20);
        let (tells, rt) = (SizeTells::default(), world.rt());
        world.run(async {
            tells.set_out();
            tells.set_out();
            tells.answered();
            let wait = types::Duration::from_secs(1);
            assert!(rt.timeout(wait, tells.all_answered()).await.is_none(), "one is on its way");
            tells.answered();
            tells.all_answered().await;
        });
    }
}
