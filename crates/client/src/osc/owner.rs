//! What stands behind the locks and the session of one OST: flushing, value blocks, losses.
use std::rc::Rc;

use datapath::Moment;
use ldlm::{InodeBits, LockCookie, LockDesc, LockMode, ResourceId};
use ptlrpc::Callbacks;
use rt::LocalFuture;
use types::{Duration, Extent, Fid, FsError, ObjectId, Transno};
use wire::Op;
use wire::connect::AuthReply;
use wire::lock as wl;
use wire::ost as wo;

use super::{Osc, PAGE, Why};
use crate::inode::Object;
use crate::locks::{LockOwner, With};

/// How long the metadata server is asked whether files are still there that lost data; then they count as lost.
const LOOK_WITHIN: Duration = Duration::from_secs(120);

impl LockOwner for Osc {
    fn revoke(self: Rc<Self>, lock: LockDesc, _keep: InodeBits, keep_mode: Option<LockMode>) -> LocalFuture<()> {
        Box::pin(async move {
            let Some(object) = self.object(&lock) else { return };
            tracing::trace!(ost = %self.index, ?lock, "revoke");
            let extent = lock.data.as_extent().unwrap_or(Extent::ALL);
            let inode = object.inode.borrow().upgrade();
            // A read lock covers pages that nobody stores to. What was stored to comes back under the write lock.
            let inode = inode.as_ref().filter(|i| keep_mode.is_none() || i.front.is_mappable());
            let flushed_before = types::planted!("drop-behind-flush");
            if flushed_before {
                self.flush(&object, extent, Why::CalledBack(self.rt.now())).await;
            }
            if let Some(inode) = inode.filter(|_| !types::planted!("kernel-keeps-pages")) {
                inode.front.drop_kernel_pages().await;
            }
            if lock.mode.writes() && !flushed_before && !types::planted!("flush-forgotten") {
                // Every callback promises the same time: who was called back first goes first.
                self.flush(&object, extent, Why::CalledBack(self.rt.now())).await;
            }
            if keep_mode.is_some() {
                return;
            }
            let keeps = types::planted!("stale-pages") && object.unwritten_pages() == 0;
            let lost = if keeps { 0 } else { self.discard_under(&object, &lock) };
            if lost > 0 {
                tracing::error!(object = %object.id, lost, "dirty pages under a revoked lock could not be written");
            }
        })
    }
    fn moment(&self, resource: ResourceId) -> Moment {
        self.object_behind(resource).map(|o| o.moment()).unwrap_or_default()
    }
    fn value_block(&self, resource: ResourceId, lvb: &wl::Lvb, with: With) {
        // Also of an object that was forgotten, or is not known yet: it is as long as the lock vouches for.
        let held = matches!(with, With::Lock { .. }).then(|| self.object_of(ObjectId(resource.fid)));
        let Some(object) = held.or_else(|| self.object_behind(resource)) else { return };
        tracing::trace!(object = %object.id, size = lvb.size, unwritten = object.unwritten_end(), "value block");
        let exact = self.size_is_exact(&object) || self.is_ours_alone(&object);
        let with = match with {
            With::Answer(_) if believes_late_sizes() => With::Answer(object.moment()),
            with => with,
        };
        match with {
            With::Answer(asked) if object.with_pages(|p| p.is_overtaken(asked)) => {
                // It may be older than what came with a lock, or than our own cut.
                return object.mtime.set(object.mtime.get().max(lvb.mtime));
            }
            With::Answer(asked) => object.with_pages(|p| p.on_told(asked, lvb.size, exact)),
            With::Lock { cookie, asked, end } => {
                object.mark_came(cookie, lvb.cut);
                object.with_pages(|p| p.on_lock_came(asked, end, lvb.size, exact));
            }
        }
        if matches!(with, With::Lock { .. }) {
            object.lock_came_with(lvb.blocks);
        }
        // Nothing of ours is on its way: the OST knows of every write, and of a time that was set since.
        let known = if object.unwritten_pages() == 0 { lvb.mtime } else { object.mtime.get().max(lvb.mtime) };
        object.mtime.set(known);
        object.blocks512.set(lvb.blocks);
    }
    fn gone(&self, resource: ResourceId) {
        self.object_may_go(ObjectId(resource.fid));
    }
    fn lost(self: Rc<Self>, lock: LockDesc) {
        self.lost_under(&lock, |fid, pages| self.note_loss(fid, pages));
    }
    fn lost_with_resource(self: Rc<Self>, lock: LockDesc) {
        let is_open = self.object(&lock).is_some_and(|o| o.is_open());
        self.lost_under(&lock, |fid, pages| {
            // Whoever has it open misses them, whatever became of the file.
            if is_open {
                self.note_loss(fid, pages);
            } else {
                self.objectless.borrow_mut().push((fid, pages));
            }
        });
    }
}

impl Callbacks for Osc {
    fn on_callback(self: Rc<Self>, op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        let answer = match op {
            Op::LockBlocking => wire::decode::<wl::BlockingCallback>(&body).map_err(FsError::from).and_then(|c| {
                self.locks.on_blocking(&c)?;
                self.hasten(ldlm::LockCookie(c.cookie));
                Ok(Vec::new())
            }),
            Op::LockCompletion => wire::decode(&body)
                .map_err(FsError::from)
                .and_then(|c| self.locks.on_completion(&c))
                .map(|()| Vec::new()),
            Op::LockGlimpse => match wire::decode(&body) {
                Ok(call) => return Box::pin(async move { Ok(wire::encode(&self.glimpsed(&call).await)) }),
                Err(e) => Err(FsError::from(e)),
            },
            Op::OstAskGrant => match wire::decode::<wo::AskGrantCallback>(&body) {
                Ok(call) => {
                    return Box::pin(async move {
                        self.give_grant_back(call.keep).await;
                        Ok(Vec::new())
                    });
                }
                Err(e) => Err(FsError::from(e)),
            },
            _ => Err(FsError::NotSupported),
        };
        Box::pin(std::future::ready(answer))
    }
    fn on_connected(&self, session: &AuthReply) {
        let mut target = self.target.borrow_mut();
        target.books.on_session(session.boot, session.known, session.grant);
        target.on_rpc_bytes_offered(session.bulk_max.into());
        drop(target);
        // Its store was opened again, and what had not been committed was replayed, or told as lost.
        if self.epoch.replace(session.epoch) != session.epoch && !session.known {
            self.changes_are_over();
        }
        self.changed.notify();
    }
    fn capability(&self, op: Op, body: &[u8]) -> Option<[u8; ptlrpc::CAPABILITY_BYTES]> {
        ptlrpc::object_of(op, body).and_then(|object| self.capabilities.borrow().get(&object).copied())
    }
    fn granted(&self) -> u64 {
        self.target.borrow().books.given_bytes()
    }
    fn on_unreachable(self: Rc<Self>) {
        if let Some(osts) = self.osts.upgrade() {
            osts.look_for_moved_targets();
        }
    }
    fn state_replays(&self) -> Vec<(Op, Vec<u8>)> {
        self.locks.replays()
    }
    fn on_state_replayed(&self, _op: Op, request: &[u8], answer: Result<Vec<u8>, FsError>) {
        self.locks.on_replayed(request, answer);
    }
    fn on_recovered(self: Rc<Self>) {
        self.locks.resend_waiting();
        self.tell_losses();
        // What we know may rest on changes of another client that died before it could tell the restarted server of them.
        self.locks.give_all_back();
    }
    fn on_lost(&self, op: Op, request: &[u8]) {
        let of_write = |r: wo::WriteRequest| (r.object, r.extents.iter().map(Extent::len).sum::<u64>());
        let (what, lost) = match op {
            Op::OstWrite => ("write", wire::decode(request).map(of_write)),
            Op::OstPunch => ("cut", wire::decode(request).map(|r: wo::PunchRequest| (r.object, 0))),
            Op::OstAllocate => ("allocate", wire::decode(request).map(|r: wo::AllocateRequest| (r.object, 0))),
            Op::OstSetattr => ("times", wire::decode(request).map(|r: wo::SetattrRequest| (r.object, 0))),
            _ => return,
        };
        let object = lost.ok().and_then(|(id, bytes)| Some((self.known_object(id)?, bytes)));
        let Some((object, bytes)) = object else { return };
        if let Some(inode) = object.inode.borrow().upgrade() {
            if bytes > 0 {
                self.note_loss(inode.fid, bytes.div_ceil(PAGE));
            } else {
                self.losses.note_change(format!("{what} {}", inode.fid));
            }
            inode.writeback_failed(FsError::Io);
            if op != Op::OstSetattr {
                inode.size_is_doubtful();
            }
        }
    }
    fn on_evicted(&self) {
        if types::planted!("eviction-ignored") {
            return;
        }
        self.locks.on_evicted();
        self.tell_losses();
    }
}

impl Osc {
    /// A lock is gone, and with it what was not written out under it; `note` is told of which file, and how many pages.
    fn lost_under(&self, lock: &LockDesc, note: impl FnOnce(Fid, u64)) {
        let Some(object) = self.object(lock) else { return };
        let lost = self.discard_under(&object, lock);
        if let Some(inode) = object.inode.borrow().upgrade() {
            if lost > 0 {
                note(inode.fid, lost as u64);
                inode.writeback_failed(FsError::Io);
                inode.size_is_doubtful();
            }
            if !types::planted!("lost-pages-kept") {
                self.kernel_forgets(inode);
            }
        }
        self.changed.notify();
    }
    /// Tells of what was lost with objects that a restarted OST does not have, where their files are still there. An object goes when
    /// the end of its file is on the metadata server's stable storage: of one that is gone nobody misses anything.
    fn look_for_objectless(&self) {
        let lost = self.objectless.take();
        let Some(osts) = self.osts.upgrade().filter(|_| !lost.is_empty()) else { return };
        let me = osts.osc(usize::from(self.index.0));
        self.rt.spawn(async move {
            let until = me.rt.now() + LOOK_WITHIN;
            for (fid, pages) in lost {
                let is_gone = osts.is_gone(fid);
                if me.rt.timeout(until.since(me.rt.now()), is_gone).await != Some(true) {
                    me.note_loss(fid, pages);
                }
            }
            me.tell_losses();
        });
    }
}

impl Osc {
    /// Whether a transaction of the OST is on its stable storage, as far as its answers told; or nobody asks it any more. One that
    /// does not let this client in for a while may do so later, and have lost it.
    pub(crate) fn is_committed(&self, transaction: Transno) -> bool {
        self.import_if_any().is_none_or(|i| i.is_given_up() || transaction <= i.last_committed())
    }
    pub(super) fn note_loss(&self, file: Fid, pages: u64) {
        self.losses.note(file, pages * PAGE);
    }
    pub(super) fn tell_losses(&self) {
        self.look_for_objectless();
        if let Some(text) = self.losses.take_message() {
            tracing::error!(ost = %self.index, "{text}; llite.*.lost_files lists them");
        }
        if let Some(text) = self.losses.take_change_message() {
            tracing::error!(ost = %self.index, "{text}; llite.*.lost_changes lists them");
        }
    }
}

/// Two things here keep late sizes out, and what locks assure a third (`datapath`); each would do: the bug has none.
fn believes_late_sizes() -> bool {
    types::planted!("late-size-believed")
}

impl Osc {
    /// What this client alone can know of an object: its size under a lock over its end, what it has not written out
    /// yet otherwise. What it heard of the size once may be old. While it cuts the object it does not know: that is waited for.
    async fn glimpsed(self: &Rc<Self>, call: &wl::GlimpseCallback) -> wl::GlimpseReply {
        let lock_now = || self.locks.cache().get(ldlm::LockCookie(call.cookie));
        let of_lock = lock_now().and_then(|l| self.object(&l));
        if let Some(object) = of_lock {
            object.not_being_cut().await;
            if call.write_out && object.unwritten_pages() > 0 {
                // Who goes on writing does not keep the other client waiting.
                let _still = object.change(Extent::ALL).await;
                self.flush(&object, Extent::ALL, Why::CalledBack(self.rt.now())).await;
            }
        }
        let lvb = lock_now().and_then(|l| self.object(&l)).map(|o| {
            let (size, blocks) =
                if self.size_is_exact(&o) { (o.size(), o.blocks512.get()) } else { (o.unwritten_end(), 0) };
            let blocks = blocks + o.unwritten_pages() as u64 * (PAGE / 512);
            wl::Lvb { size, blocks, mtime: o.mtime.get(), ..wl::Lvb::default() }
        });
        wl::GlimpseReply { lvb }
    }
    /// Whether a lock over the object's end is held, so that its known size is its size. One that is on its way out counts: until
    /// it is given back nobody else changes the size, and who uses it (an append) goes by what is known here.
    pub(crate) fn size_is_exact(&self, object: &Object) -> bool {
        self.lock_of_end(object).is_some()
    }
    /// The lock by which [`Osc::size_is_exact`]. Names are never used again: as long as it is the same one, nobody else changed the size.
    pub(crate) fn lock_of_end(&self, object: &Object) -> Option<LockCookie> {
        let end = ldlm::LockPolicyData::extent(Extent::from(object.size()));
        let cache = self.locks.cache();
        let lock = cache.peek(object.resource(), LockMode::Cr, &end)?.cookie;
        (cache.is_valid(lock) || !believes_late_sizes()).then_some(lock)
    }
    /// The lock over all of the object, if there is one: while it is the same one, nobody else changed anything.
    pub(crate) fn lock_of_all(&self, object: &Object) -> Option<LockCookie> {
        let all = ldlm::LockPolicyData::extent(Extent::ALL);
        self.locks.cache().peek(object.resource(), LockMode::Cr, &all).map(|l| l.cookie)
    }
    /// Whether nobody else writes the file, so that all of it is known here.
    pub(super) fn is_ours_alone(&self, object: &Object) -> bool {
        object.inode.borrow().upgrade().is_some_and(|i| i.is_ours_alone())
    }
    pub(super) fn object(&self, lock: &LockDesc) -> Option<Rc<Object>> {
        self.object_behind(lock.resource)
    }
    fn object_behind(&self, resource: ResourceId) -> Option<Rc<Object>> {
        self.known_object(ObjectId(resource.fid))
    }
}
