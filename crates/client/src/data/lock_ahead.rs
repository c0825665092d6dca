//! Locks that a program asks for before it needs them, and opens whose locks are no wider than what they do: for programs that write
//! one file together in small interleaved pieces, where wide locks would go to and fro.
//!
//! Source: `lfs ladvise -a lockahead` and `locknoexpand` as published in Lustre's manual. Differs: `locknoexpand` holds for all opens of the
//! file on this client while the open that asked for it lasts; a lock-ahead calls other clients' locks back, as any request does: the lock by
//! which a client has asked for the size of a file that nobody used covers all of it, and would stand in the way of all others.
use std::rc::Rc;

use ldlm::{EnqueueFlags, LockMode, LockPolicyData};
use types::{Extent, FsError};

use super::Data;
use crate::inode::Striping;
use crate::open_file::OpenFile;

const PAGE: u64 = frames::FRAME_BYTES as u64;

/// Lock-aheads under way at once that nobody waits for. Whoever wishes for more than servers give would else fill the client's memory,
/// which all users of a host share.
pub(super) const BEHIND_MAX: usize = 64;

impl Data {
    /// Takes the locks on a range of a file, in whole pages, before they are needed: for writes, or for reads. They are no wider than the
    /// range.
    ///
    /// Cancel: a part may be done: locks that come are cached.
    ///
    /// # Errors
    /// EINVAL for an empty range or a file without objects, EBADF when the open does not read or write so, and what servers answer.
    pub async fn lock_ahead(self: &Rc<Self>, file: &OpenFile, writes: bool, extent: Extent) -> Result<(), FsError> {
        let may = if writes { file.writes() } else { file.reads() };
        if !may {
            return Err(FsError::BadHandle);
        }
        if extent.is_empty() {
            return Err(FsError::Invalid);
        }
        loop {
            let s = self.meta.layout_of(&file.inode).await?.ok_or(FsError::Invalid)?;
            let asked = self.lock_range(&s, writes, extent).await;
            if self.meta.unless_moved(&file.inode, Some(s), asked).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// The same for a program that does not wait, and hears of no error. A wish beyond the 64 that are under way is forgotten: it
    /// promises nothing.
    pub fn lock_ahead_behind(self: &Rc<Self>, file: Rc<OpenFile>, writes: bool, extent: Extent) {
        if !self.lock_aheads.try_acquire(1) {
            return;
        }
        let data = self.clone();
        self.rt.spawn(async move {
            _ = data.lock_ahead(&file, writes, extent).await;
            data.lock_aheads.add(1);
        });
    }

    async fn lock_range(&self, s: &Striping, writes: bool, extent: Extent) -> Result<(), FsError> {
        let mode = if writes { LockMode::Pw } else { LockMode::Pr };
        let ask = |part: layout::StripeExtent| {
            let object = s.objects[usize::from(part.stripe.0)].clone();
            let osc = self.osts.osc(object.ost);
            let data = LockPolicyData::extent(part.object.align_out(PAGE));
            async move {
                let asked = osc.locks.acquire(object.resource(), mode, data, EnqueueFlags::NO_EXPAND).await;
                asked.map(drop).map_err(|e| osc.import().err().unwrap_or(e.error()))
            }
        };
        let all = s.layout.geometry().objects(extent)?.map(ask).collect();
        rt::sync::join_all(all).await.into_iter().collect()
    }
}
