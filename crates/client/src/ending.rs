//! Ends of opens that the metadata server was not told of yet.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rt::sync::OneSender;
use types::FsError;
use wire::mdt::{Close, SetBits};

use crate::open_file::OpenFile;

/// The end of an open.
pub(crate) struct Ending {
    pub(crate) close: Close,
    pub(crate) file: Rc<OpenFile>,
    /// Told what the metadata server answered.
    pub(crate) told: Option<OneSender<Result<(), FsError>>>,
    /// On its way.
    pub(crate) sent: bool,
}
impl Ending {
    /// The same end to be told later, when others may have changed the file: that it may have changed is told, and neither size nor times,
    /// which whoever settles the size asks the OSTs for.
    pub(crate) fn late(self) -> Ending {
        let valid = self.close.valid & (SetBits::DIRTY | SetBits::ATIME);
        let changed = if self.close.valid & SetBits::SIZE != 0 { SetBits::DIRTY } else { 0 };
        Ending { close: Close { valid: valid | changed, ..self.close }, sent: false, told: None, ..self }
    }
    /// Whether it tells the file's size.
    pub(crate) fn tells_size(&self) -> bool {
        self.close.valid & SetBits::SIZE != 0
    }
}

/// Ends that are not sent yet.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) waiting: RefCell<Vec<Ending>>,
    /// Somebody sends them after the pause.
    pub(crate) pausing: Cell<bool>,
    /// Refused for want of space at the metadata server; no more than there are opens.
    pub(crate) owed: RefCell<Vec<Ending>>,
    /// Somebody sends these again.
    pub(crate) paying: Cell<bool>,
}
