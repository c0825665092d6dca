//! Opens that end without their client: of one that is gone, those that it had ended before a restart, and those that it never heard of.
use std::rc::Rc;

use ptlrpc::ReplyRecord;
use rt::LocalFuture;
use types::{ClientId, FsError, HandleId};
use wire::mdt::{CloseReply, CloseRequest, OpenReply};
use wire::{Flags, Header, Op};

use crate::handles::Open;
use crate::mds::{Caller, Mds};

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
        let untold = self.handles.borrow().untold(client);
        self.end_opens(client, untold);
    }

    /// An end of opens is asked for again whose answer did not arrive. What it did is in the store; since then the server was restarted, and
    /// the client has told the opens again, which it did not know to have ended.
    pub(crate) fn end_again(self: &Rc<Self>, client: ClientId, request: &CloseRequest, reply: &CloseReply) {
        if types::planted!("ended-and-told") {
            return;
        }
        let done = request.closes.iter().zip(&reply.closes).filter(|(_, closed)| closed.status == 0);
        self.end_opens(client, done.map(|(close, _)| close.handle).collect());
    }

    /// An open is asked for again that an earlier boot answered: whether its file is still there. Its client cannot have told an open that it
    /// never heard of, so a file without a name may have gone with the end of the recovery. `None`: there is no such question.
    pub(crate) fn look_for_opened(self: &Rc<Self>, header: &Header, record: &ReplyRecord) -> Option<LocalFuture<bool>> {
        // Whoever replays has heard the answer, and tells what is left of it.
        if header.op != Op::MdtOpen || header.flags.has(Flags::REPLAY) || record.status != 0 {
            return None;
        }
        let (me, client) = (self.clone(), header.client);
        let reply: OpenReply = wire::decode(&record.body).ok()?;
        let is_open = self.handles.borrow().get(client, reply.handle).is_some();
        if is_open || !self.is_of_earlier_start(reply.handle.0) {
            return None;
        }
        let fid = self.fid_of(client, reply.entry.attr.fid);
        Some(Box::pin(async move {
            // The answer follows at once, and opens it: nothing removes it in between.
            let found = |_: &Rc<Mds>, found: bool| Ok(found);
            let looked = me.run(Caller::on_behalf_of(client), |tx| Ok(tx.find_inode(fid)?.is_some()), found).await;
            // A store that cannot be read says nothing of it.
            looked.map_or(true, |answered| answered.reply)
        }))
    }

    fn end_opens(self: &Rc<Self>, client: ClientId, ended: Vec<HandleId>) {
        let mut nameless = Vec::new();
        for handle in ended {
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
