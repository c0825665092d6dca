//! Removing inodes that lost their last name while a client might still open them.
//!
//! When the last such client gives its lock back the inode goes. A full store may refuse even that: then it is said once, and
//! tried again until it succeeds, or the next start finds them. One that is damaged stays, and keeps no other from its removal.
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use types::{Duration, Fid, FsError};

use crate::keys;
use crate::mds::{Caller, Mds};
use crate::record::InodeFlags;
use crate::tx::Tx;

/// Inodes removed in one transaction.
const REMOVED_AT_ONCE_MAX: usize = 64;
/// How long after a refused removal it is tried again: nothing tells when other programs leave space.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Those whose removal was refused.
#[derive(Default)]
pub(crate) struct Refused {
    fids: RefCell<BTreeSet<Fid>>,
}

/// Whether a removal that was refused so may succeed later.
fn is_for_later(e: FsError) -> bool {
    matches!(e, FsError::NoSpace | FsError::Io | FsError::ShuttingDown)
}

impl Mds {
    /// Removes those of these nameless inodes that nobody may open any more, behind the caller.
    pub(crate) fn remove_unkept(self: &Rc<Self>, mut fids: Vec<Fid>) {
        // During recovery opens and locks are still being told; what has no name is looked at when it is over.
        if self.recovering.get() {
            return;
        }
        fids.retain(|f| self.handles.borrow().is_kept(*f) && !self.may_be_opened(*f, None));
        if fids.is_empty() {
            return;
        }
        let me = self.clone();
        self.rt.spawn(async move {
            let (left, error) = me.remove_nameless(fids).await;
            if let Some(e) = error {
                me.remove_later(left, e);
            }
        });
    }

    /// Removes them; gives those that are left, and why. Damaged ones stay, and are not left.
    pub(crate) async fn remove_nameless(self: &Rc<Self>, mut fids: Vec<Fid>) -> (Vec<Fid>, Option<FsError>) {
        while !fids.is_empty() {
            let some = fids.len().min(REMOVED_AT_ONCE_MAX);
            let refused = self.remove_at_once(&fids[..some]).await.err();
            if let Some(e) = refused.filter(|e| is_for_later(*e)) {
                return (fids, Some(e));
            }
            for one in 0..if refused.is_some() { some } else { 0 } {
                let fid = fids[one];
                match self.remove_at_once(&[fid]).await {
                    Ok(()) => {}
                    Err(e) if is_for_later(e) => return (fids.split_off(one), Some(e)),
                    Err(e) => {
                        self.handles.borrow_mut().unkeep(fid);
                        tracing::error!(target = self.target, "nameless inode {fid} stays: {e}: run 'stria fsck'");
                    }
                }
            }
            fids.drain(..some);
        }
        (fids, None)
    }

    async fn remove_at_once(self: &Rc<Self>, fids: &[Fid]) -> Result<(), FsError> {
        let remove = |tx: &mut Tx<'_>| {
            fids.iter().try_for_each(|fid| {
                if tx.find_inode(*fid)?.is_none_or(|i| !i.has(InodeFlags::ORPHAN)) {
                    // A mark of nothing.
                    tx.put(keys::orphan(*fid), None);
                }
                tx.remove_kept(*fid)
            })
        };
        self.run(Caller::own(), remove, |_, ()| Ok(())).await.map(drop)
    }

    /// They stay for now. The first refusal is said, and begins the trying again.
    pub(crate) fn remove_later(self: &Rc<Self>, fids: Vec<Fid>, why: FsError) {
        let first = self.refused.fids.borrow().is_empty();
        self.refused.fids.borrow_mut().extend(fids);
        if !first || self.stopped.get() {
            return;
        }
        tracing::error!(target = self.target, "nameless inodes stay until their removal finds space: {why}");
        let me = Rc::downgrade(self);
        let rt = self.rt.clone();
        self.rt.spawn(async move {
            loop {
                rt.sleep(TRY_AGAIN).await;
                let Some(me) = me.upgrade() else { return };
                // A store that failed takes nothing any more: the next start finds them.
                if me.stopped.get() || me.store.check().is_err() || me.refused_are_gone().await {
                    return;
                }
            }
        });
    }

    async fn refused_are_gone(self: &Rc<Self>) -> bool {
        let all: Vec<Fid> = self.refused.fids.borrow().iter().copied().collect();
        let (left, error) = self.remove_nameless(all.clone()).await;
        let mut refused = self.refused.fids.borrow_mut();
        // They go from the front.
        for gone in &all[..all.len() - left.len()] {
            refused.remove(gone);
        }
        if error.is_none() && refused.is_empty() {
            tracing::info!(target = self.target, "nameless inodes are removed: there is space again");
        }
        refused.is_empty()
    }
}
