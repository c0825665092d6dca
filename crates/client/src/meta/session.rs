//! What stands behind the locks and the session of the metadata server: what goes with a lock, what is told again.
use std::rc::Rc;

use ldlm::{InodeBits, LockDesc, LockMode, ResourceId};
use ptlrpc::{CallOptions, Callbacks};
use rt::LocalFuture;
use types::{Extent, FsError};
use wire::Op;
use wire::connect::AuthReply;
use wire::lock as wl;
use wire::mdt::LockBits;

use super::Meta;
use crate::locks::{LockOwner, With};

impl LockOwner for Meta {
    fn revoke(self: Rc<Self>, lock: LockDesc, keep: InodeBits, _keep_mode: Option<LockMode>) -> LocalFuture<()> {
        Box::pin(async move {
            let fid = lock.resource.fid;
            let gone = u64::from(lock.data.as_bits().unwrap_or(InodeBits::ALL).minus(keep).0);
            let Some(inode) = self.known_inode(fid) else {
                // A directory that was never looked up itself: programs have its number from elsewhere.
                if gone & LockBits::UPDATE != 0 {
                    self.forget_missing(fid);
                }
                return;
            };
            if gone & LockBits::OPEN != 0 {
                // Another client may wait for the lock.
                self.tell_opens(fid, CallOptions::urgent(None)).await;
            }
            if gone & LockBits::UPDATE != 0 {
                inode.ours_alone.set(false);
                // Who changes the inode now does so after us.
                self.settle_closes_for_others(fid).await;
            }
            if gone & (LockBits::LOOKUP | LockBits::UPDATE | LockBits::PERM) != 0 {
                inode.outdate();
                inode.front.stop_believing(gone & LockBits::PERM != 0).await;
            }
            let mut names = false;
            if gone & LockBits::LOOKUP != 0 {
                self.forget_names(&inode);
                names = true;
            }
            // Of an inode that is known by its number only nothing says that it is no directory.
            if gone & LockBits::UPDATE != 0 && matches!(inode.attr().mode & 0o170_000, 0 | 0o040_000) {
                inode.forget_children();
                self.forget_missing(fid);
                names = true;
                if inode.front.loses_names() && !types::planted!("listing-kept") {
                    self.common.kernel.drop_listing(fid).await;
                }
            }
            if names && inode.front.is_remembered() && !types::planted!("names-kept") {
                self.common.kernel.cache().drop_names().await;
            }
            if gone & LockBits::LOOKUP != 0 && inode.is_known_outside() {
                inode.unnamed.set(true);
                self.unnamed.borrow_mut().insert(fid);
                self.common.kernel.cache().let_go(&[fid]);
            }
        })
    }
    fn value_block(&self, _resource: ResourceId, _lvb: &wl::Lvb, _with: With) {}
    fn gone(&self, resource: ResourceId) {
        self.inode_may_go(resource.fid);
    }
    fn also_goes(&self, resource: ResourceId, wanted: InodeBits) -> InodeBits {
        if !wanted.overlaps(InodeBits::LOOKUP) {
            return InodeBits::NONE;
        }
        let Some(inode) = self.known_inode(resource.fid) else { return InodeBits::ALL };
        // A kernel that cannot be asked to give an inode up may keep it for good, and its data with it.
        let stays = inode.untold.get() > 0 || inode.is_known_outside() && self.common.kernel.cache().lets_go();
        if stays { InodeBits::NONE } else { InodeBits::ALL }
    }
    fn lost(self: Rc<Self>, lock: LockDesc) {
        let Some(inode) = self.known_inode(lock.resource.fid) else { return self.forget_missing(lock.resource.fid) };
        let kernel = self.common.kernel.cache();
        if types::planted!("lost-names-kept") {
            return;
        }
        self.distrust(&inode);
        if inode.front.loses_names() {
            drop(kernel.drop_pages(inode.fid, Extent::ALL));
        }
        self.rt.clone().spawn(async move {
            kernel.drop_names().await;
            self.tell_opens(inode.fid, CallOptions::default()).await;
        });
    }
}

impl Callbacks for Meta {
    fn on_callback(self: Rc<Self>, op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        let answer = match op {
            Op::LockBlocking => wire::decode(&body)
                .map_err(FsError::from)
                .and_then(|c| self.common.locks.on_blocking(&c))
                .map(|()| Vec::new()),
            Op::LockCompletion => {
                wire::decode(&body).map_err(FsError::from).and_then(|c| self.on_completion(&c)).map(|()| Vec::new())
            }
            Op::Config => wire::decode(&body).map_err(FsError::from).map(|map| {
                self.osts.map_came(map);
                Vec::new()
            }),
            _ => Err(FsError::NotSupported),
        };
        Box::pin(std::future::ready(answer))
    }
    fn on_connected(&self, _session: &AuthReply) {
        self.tell_again();
    }
    fn state_replays(&self) -> Vec<(Op, Vec<u8>)> {
        let mut all = self.open_replays();
        all.extend(self.common.locks.replays());
        all.extend(self.flocks.replays());
        all
    }
    fn on_state_replayed(&self, op: Op, request: &[u8], answer: Result<Vec<u8>, FsError>) {
        match op {
            Op::LockEnqueue => match wire::decode::<wl::EnqueueRequest>(request) {
                Ok(q) if matches!(q.lock.kind, wl::Kind::Posix | wl::Kind::Flock) => {
                    self.flocks.on_replayed(&q, answer.is_err());
                }
                _ => self.common.locks.on_replayed(request, answer),
            },
            _ => {
                if let Err(e) = answer {
                    tracing::warn!(?op, "state replay: {e}");
                    self.open_lost(request);
                }
            }
        }
    }
    fn on_recovered(self: Rc<Self>) {
        self.inodes.borrow().values().for_each(|i| i.forget_transactions());
        self.common.locks.resend_waiting();
        self.settling.needed();
        self.flocks.ask_again();
        self.tell_lost_changes();
    }
    fn on_lost(&self, op: Op, request: &[u8]) {
        self.change_lost(op, request);
    }
    fn on_evicted(&self) {
        tracing::error!("evicted by the metadata server: locks and open handles are lost");
        self.forget_handles();
        self.inodes.borrow().values().for_each(|i| i.forget_transactions());
        self.forget_all_names();
        self.common.locks.on_evicted();
        self.flocks.lost();
        self.tell_lost_changes();
    }
}

impl Meta {
    fn on_completion(self: &Rc<Self>, call: &wl::CompletionCallback) -> Result<(), FsError> {
        match call.lock.kind {
            wl::Kind::Posix | wl::Kind::Flock => {
                self.flocks.completed(call);
                Ok(())
            }
            _ => self.common.locks.on_completion(call),
        }
    }
}
