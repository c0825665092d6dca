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
}
