//! What is kept of an append between the pieces of its call: every write lock of the file, and the turn among the programs
//! of this client. How it comes about and how long it may be kept is said in `data/append.rs`.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rt::sync::Semaphore;
use types::Instant;

use crate::locks::Held;

/// The turn to append to a file, among the programs of this client.
pub(crate) struct AppendTurn(Rc<Semaphore>);
impl AppendTurn {
    /// Waits for a turn; `one`: the file's one place.
    pub(crate) async fn take(one: Rc<Semaphore>) -> AppendTurn {
        one.acquire(1).await;
        AppendTurn(one)
    }
}
impl Drop for AppendTurn {
    fn drop(&mut self) {
        self.0.add(1);
    }
}

/// See the module's head.
pub(crate) struct AppendRight {
    /// Write locks over all objects, in stripe order.
    pub(crate) held: Vec<Held>,
    /// Given up after the locks, so that the next in turn does not ask while they are here.
    pub(crate) _turn: Option<AppendTurn>,
    /// When it is given up if another client waits for it.
    pub(crate) until: Instant,
}

/// What a call that goes on left behind.
pub(crate) struct Kept {
    pub(crate) right: AppendRight,
    /// The open through which the call appends.
    pub(crate) file: u64,
    /// Where its kernel believes the next piece to begin.
    pub(crate) next: u64,
}

/// An inode's place for it.
#[derive(Default)]
pub(crate) struct KeptAppend {
    kept: RefCell<Option<Kept>>,
    /// Rights kept so far.
    number: Cell<u64>,
}

impl KeptAppend {
    /// Keeps what a call left behind, in place of what is kept; gives the number of this one.
    pub(crate) fn keep(&self, kept: Kept) -> u64 {
        self.number.set(self.number.get() + 1);
        drop(self.kept.replace(Some(kept)));
        self.number.get()
    }
    /// What is kept, which is not any more.
    pub(crate) fn take(&self) -> Option<Kept> {
        self.kept.take()
    }
    /// Whether something is kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.borrow().is_some()
    }
    /// The call that left that number behind does not go on.
    pub(crate) fn give_up_number(&self, number: u64) {
        if self.number.get() == number {
            self.give_up();
        }
    }
    /// The call is over.
    pub(crate) fn give_up(&self) {
        drop(self.kept.take());
    }
    /// The same, if it is one through this open.
    pub(crate) fn give_up_of(&self, file: u64) {
        let of_file = self.kept.borrow().as_ref().is_some_and(|k| k.file == file);
        if of_file {
            self.give_up();
        }
    }
}
