//! Of whom little is left at an OST, or nothing: further writes to their files take no grant. They are written out before they are
//! answered, so that the program that writes hears of it when nothing is left, and no more lies in this client's cache than before.
//!
//! An OST says so with each answer to a write (`oss/src/ost/quota.rs`).
use std::cell::RefCell;

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;
use wire::ost::FileOwner;
use wire::quota::QuotaKind;

use crate::inode::Object;

/// See the module's head.
#[derive(Default)]
pub(crate) struct Tight(RefCell<HashSet<(QuotaKind, u32), FxBuildHasher>>);

/// Whose file an object is of, as far as is known here.
pub(crate) fn owner_of(object: &Object) -> Option<FileOwner> {
    let attr = object.inode.borrow().upgrade()?.attr();
    Some(FileOwner { uid: attr.uid, gid: attr.gid, project: attr.project })
}

fn ids(owner: &FileOwner) -> [(QuotaKind, u32); 3] {
    [(QuotaKind::User, owner.uid), (QuotaKind::Group, owner.gid), (QuotaKind::Project, owner.project)]
}

impl Tight {
    /// Whether writes to this object's file take no grant. Those of root do: it is not limited.
    pub fn is_so(&self, object: &Object) -> bool {
        let tight = self.0.borrow();
        if tight.is_empty() {
            return false;
        }
        let by_root = object.inode.borrow().upgrade().is_some_and(|i| i.io_owner.get().owner().uid == 0);
        !by_root && owner_of(object).is_some_and(|owner| ids(&owner).iter().any(|id| tight.contains(id)))
    }
    /// An answer to a write of somebody's file says of whom little is left (bits: see [`QuotaKind::bit`]).
    pub fn hear(&self, owner: Option<&FileOwner>, bits: u8) {
        let mut tight = self.0.borrow_mut();
        if bits == 0 && tight.is_empty() {
            return;
        }
        for id in owner.map(ids).into_iter().flatten() {
            if bits & id.0.bit() != 0 && !types::planted!("tight-unheard") {
                tight.insert(id);
            } else {
                tight.remove(&id);
            }
        }
    }
}
