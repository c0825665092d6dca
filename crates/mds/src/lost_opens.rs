//! Opens that end without their client: of one that is gone, and those that it had ended before a restart.
use std::rc::Rc;

use types::{ClientId, FsError, HandleId};

use crate::handles::Open;
use crate::mds::Mds;

impl Mds {
    /// The open of a client that is gone ends here: nobody tells any more what it wrote.
    pub(crate) fn lose_open(&self, client: ClientId, handle: HandleId) -> Option<Open> {
        let mut handles = self.handles.borrow_mut();
        if let Some(open) = handles.get(client, handle).filter(|o| o.writes) {
            handles.told(open.fid, client);
        }
        let open = handles.close(client, handle)?;
        if open.writes {
            handles.suspect(open.fid);
        }
        Some(open)
    }

    /// The same where the store did not take what follows from it. The client never comes back to it, so it ends all the same; an inode
    /// without a name that it kept goes when there is space.
    pub(crate) fn lose_open_unstored(self: &Rc<Self>, client: ClientId, handle: HandleId, why: FsError) {
        let Some(open) = self.lose_open(client, handle) else { return };
        if self.handles.borrow().opens(open.fid) > 0 {
            return;
        }
        self.handles.borrow_mut().keep(open.fid);
        self.remove_later(vec![open.fid], why);
    }

    /// A client has told everything that it has after a restart. Opens that its transactions made again and that are not among it had
    /// ended before: such an end is not replayed when it changed nothing.
    pub(crate) fn end_untold(self: &Rc<Self>, client: ClientId) {
        let mut nameless = Vec::new();
        let untold = self.handles.borrow().untold(client);
        for handle in untold {
            let mut handles = self.handles.borrow_mut();
            let Some(open) = handles.close(client, handle) else { continue };
            // The end of the recovery looks at all that have no name.
            if handles.opens(open.fid) == 0 && !self.recovering.get() {
                handles.keep(open.fid);
                nameless.push(open.fid);
            }
        }
        self.remove_unkept(nameless);
    }
}
