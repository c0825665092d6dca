//! The right to append to a file: every write lock of it, and the turn among the programs of this client.
//!
//! A kernel sends a long append in pieces. Between them the right is kept, so that the call is one append for other
//! clients, too: no other's append and no cut comes between its pieces. It is given up when something else is written to
//! the file (the kernel would not send that during the call), when the file is closed, when the next piece does not
//! come in time, and when servers do not take in what was written while another client waits ([`HOLD_MAX`]).
use std::pin::pin;
use std::rc::{Rc, Weak};

use cache::PageAccess;
use frames::FRAME_BYTES;
use ldlm::{EnqueueFlags, LockMode, LockPolicyData};
use types::{Duration, Extent, FsError, Instant};

use super::Data;
use crate::inode::{Inode, Striping};
use crate::kept_append::{AppendRight, AppendTurn, Kept};
use crate::locks::Held;
use crate::open_file::OpenFile;

const PAGE: u64 = FRAME_BYTES as u64;
/// Longest time that locks are kept from others while a server is waited for; far below an OST's patience.
const HOLD_MAX: Duration = Duration::from_secs(5);

impl Data {
    /// The right to append, with what an append needs of the file's last page in the cache. What the last piece of the
    /// same call kept serves, if there is room for `bytes` more in time.
    pub(crate) async fn right_to_append(
        &self,
        s: &Striping,
        file: &OpenFile,
        offset: u64,
        bytes: u64,
    ) -> Result<AppendRight, FsError> {
        let inode = &file.inode;
        let kept = inode.kept_append.take().filter(|k| {
            let whole = k.right.held.len() == s.objects.len() && k.right.held.iter().all(|h| h.handle().0 != 0);
            whole && k.file == file.id() && k.next == offset
        });
        if let Some(Kept { mut right, .. }) = kept {
            // Whoever comes to wait from here on is patient for longer.
            if right.held.iter().all(|h| h.is_wanted_by_nobody()) {
                right.until = self.rt.now() + HOLD_MAX;
            }
            let room = self.room_to_append(s, bytes);
            if self.rt.timeout(right.until.since(self.rt.now()), room).await.is_some() {
                right.held = self.ready_to_append(s, inode, bytes == 0, Some(right.held)).await?;
                return Ok(right);
            }
        }
        let turn = match s.objects.first() {
            Some(first) => Some(AppendTurn::take(first.appending.clone()).await),
            None => None,
        };
        let held = self.ready_to_append(s, inode, bytes == 0, None).await?;
        Ok(AppendRight { held, _turn: turn, until: self.rt.now() + HOLD_MAX })
    }

    /// Waits for room at each OST for its part of an append of `bytes`.
    pub(super) async fn room_to_append(&self, s: &Striping, bytes: u64) {
        for o in &s.objects {
            self.osts.osc(o.ost).dirty_room(bytes / s.objects.len() as u64).await;
        }
    }

    /// Keeps the right for the next piece of the same call, which is to come within `keep` and, as its kernel believes, goes
    /// to `next`.
    pub(crate) fn keep_right(&self, right: AppendRight, file: &OpenFile, next: u64, keep: Duration) {
        let number = file.inode.kept_append.keep(Kept { right, file: file.id(), next });
        let inode: Weak<Inode> = Rc::downgrade(&file.inode);
        let pause = self.rt.sleep(keep);
        self.rt.spawn(async move {
            pause.await;
            if let Some(inode) = inode.upgrade() {
                inode.kept_append.give_up_number(number);
            }
        });
    }

    /// Locks over all objects, in stripe order, with true sizes: write locks for appends.
    ///
    /// An OST evicts a client that keeps a lock from others for too long, and the next lock may have to wait for a client
    /// that is gone, just as long. So nothing is kept for longer than [`HOLD_MAX`]: then the locks are let go, the wait
    /// goes on without them, and all begins anew.
    pub(crate) async fn lock_all(&self, s: &Striping, mode: LockMode) -> Result<Vec<Held>, FsError> {
        let mut held: Vec<Held> = Vec::with_capacity(s.objects.len());
        let mut until = Instant::MAX;
        while held.len() < s.objects.len() {
            let o = &s.objects[held.len()];
            let all = LockPolicyData::extent(Extent::ALL);
            let osc = self.osts.osc(o.ost);
            let mut lock = pin!(osc.locks.acquire(o.resource(), mode, all, EnqueueFlags::NONE));
            if held.is_empty() {
                held.push(lock.await.map_err(|e| e.error())?);
                until = self.rt.now() + HOLD_MAX;
                continue;
            }
            match self.rt.timeout(until.since(self.rt.now()), lock.as_mut()).await {
                Some(got) => held.push(got.map_err(|e| e.error())?),
                None => {
                    held.clear();
                    lock.await.map_err(|e| e.error())?;
                }
            }
        }
        Ok(held)
    }

    /// As [`Data::lock_all`] (or with the locks at hand), with what an append needs of the file's last page in the cache:
    /// with the locks it may wait for no server, which may be away for longer than another one's patience. While the page
    /// is waited for, its own object's lock is kept only; then all begins anew, since others may have written meanwhile.
    async fn ready_to_append(
        &self,
        s: &Striping,
        inode: &Inode,
        is_empty: bool,
        mut at_hand: Option<Vec<Held>>,
    ) -> Result<Vec<Held>, FsError> {
        loop {
            let mut held = match at_hand.take() {
                Some(held) => held,
                None => self.lock_all(s, LockMode::Pw).await?,
            };
            let size = inode.known_size();
            if is_empty || size.is_multiple_of(PAGE) {
                return Ok(held);
            }
            let Some(last) = s.layout.geometry().pieces(Extent::new(size, size + 1))?.next() else { return Ok(held) };
            let (stripe, page) = (usize::from(last.stripe.0), last.object.start / PAGE);
            let object = &s.objects[stripe];
            let (osc, own) = (self.osts.osc(object.ost), held.swap_remove(stripe));
            let access = PageAccess::of_request(0, 1, s.layout.geometry().stripe_size()).written();
            let in_time = {
                let mut load = pin!(osc.load(object, page, page + 1, &own, access));
                let loaded = self.rt.timeout(HOLD_MAX, load.as_mut()).await;
                if loaded.is_none() {
                    held.clear();
                    load.await?;
                }
                loaded
            };
            if let Some(loaded) = in_time {
                loaded?;
                // Where it was.
                held.push(own);
                let last = held.len() - 1;
                held.swap(stripe, last);
                return Ok(held);
            }
        }
    }
}
