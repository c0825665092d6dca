//! A file gets other objects: it and a nameless file that has the same bytes exchange their layouts, in one change of the store together
//! with the decision that the objects which the file had go. OSTs that were promised that ask for the decision (`cuts.rs`), and give nobody a
//! lock on such an object before they know: who has not heard of the new layout finds no object, and asks. Nobody is answered anything about
//! the file before the exchange is on stable storage (`sharing.rs`).
use std::rc::Rc;

use layout::xattr;
use types::FsError;
use wire::Op;
use wire::changelog::ChangeKind;
use wire::mdt::{BytesReply, CutRequest, LockBits, SwapRequest};

use crate::entering::Enters;
use crate::keys;
use crate::mds::{Caller, Mds};
use crate::perm::MAY_WRITE;
use crate::record::{Inode, InodeFlags};
use crate::service::Outcome;
use crate::tx::{Done, Tx, damaged};

/// What an exchange comes to.
pub(crate) struct Swapped {
    /// The file's layout as it is stored.
    layout: Vec<u8>,
    /// What is to be remembered as decided; `None`: it is already.
    decided: Option<CutRequest>,
}

impl Tx<'_> {
    pub(crate) fn swap(&mut self, q: &SwapRequest) -> Done<Swapped> {
        let before = self.mds.cuts.borrow().decision(self.client, q.number);
        if before == Some(false) {
            return Err(FsError::Stale.into());
        }
        let mut file = self.inode(q.fid)?;
        if before == Some(true) {
            return Ok(Swapped { layout: self.layout_bytes(&file)?, decided: None });
        }
        let mut other = self.inode(q.other)?;
        if !file.is_file() || !other.is_file() || q.fid == q.other || other.nlink != 0 {
            return Err(FsError::Invalid.into());
        }
        self.may(&q.cred, &file, MAY_WRITE)?;
        let is_its = self.mds.handles.borrow().others_open(other.fid, self.client);
        if is_its || !other.has(InodeFlags::HAS_LAYOUT) || !file.has(InodeFlags::HAS_LAYOUT) {
            return Err(FsError::Invalid.into());
        }
        let (ours, theirs) = (self.layout_of(&file)?, self.layout_of(&other)?);
        // What clients see of it. An inode that a repair made may say more.
        if u32::from(ours.generation()) != q.generation {
            return Err(FsError::Stale.into());
        }
        // An OST that is being emptied gets no files, also none that were copied there before that began.
        let closed = |o: &layout::StripeObject| self.mds.pools.borrow().get(o.ost).is_none_or(|p| p.closed);
        if theirs.objects().iter().any(closed) {
            return Err(FsError::Busy.into());
        }
        let generation = file.layout_gen.max(other.layout_gen).wrapping_add(1);
        // They were made for whoever copied the file.
        self.own(&file, theirs.objects());
        let layout = self.relay(&mut file, theirs, generation);
        self.relay(&mut other, ours, generation);
        file.blocks = q.blocks;
        self.put_inode(&file);
        self.put_inode(&other);
        for fid in [file.fid, other.fid] {
            self.claim(fid, LockBits::LAYOUT | LockBits::UPDATE | LockBits::XATTR);
        }
        self.exchanged.extend([file.fid, other.fid]);
        let cut = CutRequest { fid: q.fid, number: q.number, unfinished: q.unfinished };
        let changes = self.mds.cuts.borrow().changes_of(self.client, &cut);
        changes.into_iter().for_each(|(key, value)| self.put(key, value));
        self.record(ChangeKind::Layout, Some(&q.cred), |r| r.target = q.fid);
        Ok(Swapped { layout, decided: Some(cut) })
    }

    pub(crate) fn layout_of(&mut self, inode: &Inode) -> Done<layout::Layout> {
        let bytes = self.layout_bytes(inode)?;
        let decoded = xattr::decode_layout(&bytes).map_err(|_| damaged(&keys::layout(inode.fid), "not a layout"));
        Ok(decoded?.1)
    }

    fn relay(&mut self, inode: &mut Inode, layout: layout::Layout, generation: u32) -> Vec<u8> {
        inode.layout_gen = generation;
        let layout = layout.with_generation(generation as u16);
        let bytes = xattr::encode_layout(&layout, inode.fid, xattr::Form::Stored);
        self.set_layout(inode, bytes.clone());
        bytes
    }
}

impl Mds {
    /// Requests whose answer is a decision that OSTs ask for.
    pub(crate) async fn decide(self: &Rc<Self>, caller: Caller, op: Op, body: &[u8]) -> Result<Outcome, FsError> {
        if op == Op::MdtCut {
            self.decide_cut(caller.client, body).await
        } else {
            self.swap_layouts(caller, body).await
        }
    }

    async fn swap_layouts(self: &Rc<Self>, caller: Caller, body: &[u8]) -> Result<Outcome, FsError> {
        let mut q: SwapRequest = wire::decode(body).map_err(FsError::from)?;
        let limits = self.limits_of(caller);
        if let Some(limits) = &limits {
            q.enter(limits)?;
        }
        let swap = |tx: &mut Tx<'_>| {
            if let Some(limits) = &limits {
                tx.within(limits, &q.names())?;
            }
            tx.swap(&q)
        };
        let finish = |m: &Rc<Mds>, out: Swapped| {
            if let Some(cut) = &out.decided {
                // The same changes as are applied with the exchange, right after this.
                drop(m.cuts.borrow_mut().decide(caller.client, cut));
            }
            Ok(BytesReply { value: out.layout.into() })
        };
        let done = self.run(caller, swap, finish).await?;
        // An OST may be told of the decision when the exchange cannot be lost any more.
        self.store.sync().await?;
        Ok(Outcome::of(done))
    }
}
