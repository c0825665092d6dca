//! Requests about whole objects and the whole target: attributes, sync, space, pre-creation, destruction, seek.
use ptlrpc::Request;
use trace::{Came, Record};
use types::{ClientId, Fid, FsError, ObjectId, Transno, Xid};
use wire::Op;
use wire::ost::{
    AttrReply, ChangedReply, ChangedRequest, DestroyRequest, PrecreateReply, PrecreateRequest, SeekKind, SeekReply,
    SeekRequest, SetattrRequest, StatfsReply, SyncRequest,
};

use super::{Ost, answer, answer_change, answers, attr_body};
use crate::locks::lvb_of;
use crate::store::{BLOCK_BYTES, BlockRange, Owner, OwnerRule, TimeRule, Update};

/// Bytes of an object that are removed at a time.
const REMOVED_BYTES_MAX: u64 = 16 << 30;
/// Pieces at most.
const CUTS_MAX: u64 = 4096;
/// Most objects that one request may make or remove.
const OBJECTS_MAX: u32 = 1 << 17;

impl Ost {
    pub(super) async fn sync(&self, request: Request) {
        let reply = match request.decode::<SyncRequest>() {
            Ok(_) if types::planted!("sync-skipped") => Ok(()),
            Ok(ask) => self.do_sync(&request, &ask).await,
            Err(e) => Err(e),
        };
        self.stats.borrow_mut().syncs += 1;
        answer(request, &reply);
    }

    async fn do_sync(&self, request: &Request, ask: &SyncRequest) -> Result<(), FsError> {
        let mut came = super::came(request);
        let asked = self.rt.now();
        let mut done = asked;
        if ask.everyones {
            let writer = self.locks.written_out(request.client(), ask.object).await;
            done = self.rt.now();
            came = Came { locked: done.since(asked), holder: writer.unwrap_or_default(), ..came };
        }
        let synced = self.store.sync().await;
        let now = self.rt.now();
        let errno = synced.err().map_or(0, |e| e.errno() as u16);
        let (client, object, committed_us) = (request.client(), ask.object, trace::micros(now.since(done)));
        let record = Record::unscheduled(Op::OstSync, &came, now);
        self.dispatch.keep(Record { client, object, committed_us, errno, ..record });
        synced
    }

    /// Space as clients and the metadata server see it: what is granted is not available to others.
    #[must_use]
    pub fn statfs(&self) -> StatfsReply {
        let space = self.store.space();
        let held = self.reserve(&space) + self.grants.borrow().total();
        let available = space.free.saturating_sub(held);
        let (bad, full) = (self.store.failure().is_some(), available < BLOCK_BYTES);
        let closed = self.config.borrow().no_precreate;
        let bits = [(bad, 1), (full, 2), (space.objects_free == 0, 3), (closed, 4)];
        let state = bits.iter().map(|(is, bit)| u32::from(*is) << bit).sum();
        StatfsReply {
            ost: self.identity.ost,
            total: space.total,
            free: space.free,
            available,
            files: space.objects,
            files_free: space.objects_free,
            state,
        }
    }

    pub(super) async fn setattr(&self, request: Request) {
        let reply = match request.decode::<SetattrRequest>() {
            Ok(ask) => self.do_setattr(&request, &ask).await,
            Err(e) => Err(e),
        };
        answer_change(request, &reply);
    }

    async fn do_setattr(&self, request: &Request, ask: &SetattrRequest) -> Result<(Transno, AttrReply), FsError> {
        // What somebody sets who has not heard yet that the file has other objects would be gone with this one.
        self.locks.promises.not_leaving(ask.object).await;
        // Of no block; the end of the session waits for it nevertheless.
        let _gate = self.change(request, ask.object, BlockRange::new(0, 0)).await?;
        let owner = Owner { uid: ask.owner.uid, gid: ask.owner.gid, project: ask.owner.project };
        let time = |bit: u32, t| if ask.valid & bit != 0 { TimeRule::Exactly(t) } else { TimeRule::Keep };
        let update = Update {
            owner: if ask.valid & 1 != 0 { OwnerRule::Is(owner) } else { OwnerRule::Keep },
            mtime: time(2, ask.mtime),
            atime: time(4, ask.atime),
            ctime: self.rt.wall(),
            replay: request.is_replay().then_some(request.header.transno),
            answers: answers(request, attr_body),
            ..Update::default()
        };
        let applied = self.store.update(ask.object, update).await?;
        Ok((applied.transno, AttrReply { lvb: lvb_of(&applied.attr) }))
    }

    pub(super) async fn changed(&self, request: Request) {
        let reply = match request.decode::<ChangedRequest>() {
            Ok(ask) => self.do_changed(&ask).await,
            Err(e) => Err(e),
        };
        answer(request, &reply);
    }

    /// Objects that are not there are not followed: whoever asks for many of them would take the places of those that are being copied.
    async fn do_changed(&self, ask: &ChangedRequest) -> Result<ChangedReply, FsError> {
        self.store.attr(ask.object).await?;
        Ok(self.changes.borrow_mut().ask(ask.object, ask.since))
    }

    pub(super) async fn precreate(&self, request: Request) {
        let reply = match request.decode::<PrecreateRequest>() {
            Ok(ask) => self.do_precreate((request.client(), request.header.xid), &ask).await,
            Err(e) => Err(e),
        };
        answer(request, &reply);
    }

    async fn do_precreate(
        &self,
        (client, xid): (ClientId, Xid),
        ask: &PrecreateRequest,
    ) -> Result<PrecreateReply, FsError> {
        if ask.count > OBJECTS_MAX {
            return Err(FsError::TooBig);
        }
        if ask.seq != ObjectId::seq_of(self.identity.ost) {
            return Err(FsError::Invalid);
        }
        if !self.creators.admits(client, ask.epoch, xid) {
            if self.creators.latest() != Some(client) && self.creators.is_news(client) {
                let (target, epoch) = (self.identity.target(), ask.epoch);
                tracing::warn!(target, %client, epoch, "a metadata server that was replaced asks for objects: refused");
            }
            return Err(FsError::Stale);
        }
        // From here on: what is made meanwhile lies behind, and stays.
        if self.store.last_object(ask.seq) < ask.last_used {
            self.lose_unmade(ask).await?;
        }
        let last = self.store.last_object(ask.seq);
        let mut first = ask.last_used.saturating_add(1);
        if ask.orphans && last > ask.last_used {
            self.destroy_orphans(ask.seq, first, last).await?;
            first = last.saturating_add(1);
        }
        let want = (first - 1).saturating_add(ask.count);
        if want > last {
            self.store.create(ask.seq, want).await?;
        } else if last > ask.last_used && !types::planted!("objects-told-early") {
            // They may be another request's, which waits for this as well, or of a commit that failed.
            self.store.sync().await?;
        }
        Ok(PrecreateReply { last: want.max(last), statfs: self.statfs(), first })
    }

    /// Objects were given out that this store never made, although no answer tells of any before they are on stable storage: it is an
    /// older copy. Files would read as empty if they were made now.
    async fn lose_unmade(&self, ask: &PrecreateRequest) -> Result<(), FsError> {
        let made = self.store.last_object(ask.seq);
        if self.store.openings().is_empty() || types::planted!("older-copy-made-anew") {
            // Nothing outlives its process.
            return Ok(());
        }
        let (target, given) = (self.identity.target(), ask.last_used);
        if ask.lost < given {
            if !self.age_told.replace(true) {
                tracing::error!(
                    target,
                    made,
                    given,
                    "its store is an older copy: it has made fewer objects than were given out. It is of no use as it is"
                );
            }
            return Err(FsError::Stale);
        }
        tracing::warn!(target, made, given, "its store never made objects that were given out: these are lost");
        self.store.lose(ask.seq, given).await
    }

    /// Objects that no file knows go; their ids are not used again, for whoever still knows one of them must not reach
    /// another file's data with it.
    async fn destroy_orphans(&self, seq: u64, first: u32, last: u32) -> Result<(), FsError> {
        for from in (first..=last).step_by(OBJECTS_MAX as usize) {
            let to = last.min(from.saturating_add(OBJECTS_MAX - 1));
            let orphans: Vec<ObjectId> = (from..=to).map(|oid| ObjectId(Fid::new(seq, oid))).collect();
            self.remove(&orphans, None).await?;
        }
        tracing::info!(target = self.identity.target(), first, last, "orphan objects were removed");
        self.store.sync().await
    }

    pub(super) async fn destroy(&self, request: Request) {
        let reply = match request.decode::<DestroyRequest>() {
            Ok(ask) => self.do_destroy(&request, ask).await,
            Err(e) => Err(e),
        };
        answer_change(request, &reply);
    }

    async fn do_destroy(&self, request: &Request, ask: DestroyRequest) -> Result<(Transno, ()), FsError> {
        if ask.objects.len() > OBJECTS_MAX as usize {
            return Err(FsError::TooBig);
        }
        let replay = request.is_replay().then_some(request.header.transno);
        self.remove(&ask.objects, replay).await.map(|transno| (transno, ()))
    }

    /// Removes objects from the store and from the cache.
    pub(super) async fn remove(&self, objects: &[ObjectId], replay: Option<Transno>) -> Result<Transno, FsError> {
        for object in objects {
            self.shorten(*object).await?;
        }
        let transno = self.store.destroy(objects.to_vec(), replay).await?;
        self.advised_removed(objects);
        objects.iter().for_each(|o| self.changes.borrow_mut().forget(*o));
        let mut cache = self.cache.borrow_mut();
        objects.iter().for_each(|o| cache.drop_object(self.key(*o)));
        self.stats.borrow_mut().destroyed += objects.len() as u64;
        Ok(transno)
    }

    /// Cuts a huge object down piece by piece, so that no store needs its whole map in memory when it goes. When that
    /// ends half way the object is still to be removed, and is asked for again.
    async fn shorten(&self, object: ObjectId) -> Result<(), FsError> {
        let attr = match self.store.attr(object).await {
            Ok(attr) => attr,
            Err(FsError::NotFound) => return Ok(()),
            Err(_) if object.0.oid <= self.store.lost_through() => return Ok(()),
            Err(e) => return Err(e),
        };
        // Of a long object with little in it the map is small.
        let step = REMOVED_BYTES_MAX.max(attr.size / CUTS_MAX);
        let mut size = attr.size;
        while attr.blocks * BLOCK_BYTES > REMOVED_BYTES_MAX && size > step {
            size -= step;
            let update = Update { size: crate::store::SizeRule::Exactly(size), ..Update::default() };
            self.store.update(object, update).await?;
        }
        Ok(())
    }

    pub(super) async fn seek(&self, request: Request) {
        let reply = match request.decode::<SeekRequest>() {
            Ok(ask) => self.do_seek(&ask).await,
            Err(e) => Err(e),
        };
        answer(request, &reply);
    }

    async fn do_seek(&self, ask: &SeekRequest) -> Result<SeekReply, FsError> {
        let attr = self.store.attr(ask.object).await?;
        let data = ask.kind == SeekKind::Data;
        let none = if data { u64::MAX } else { attr.size };
        if ask.offset >= attr.size {
            return Ok(SeekReply { offset: if data { u64::MAX } else { ask.offset }, size: attr.size });
        }
        let found = self.store.seek(ask.object, ask.offset / BLOCK_BYTES, data).await?;
        let offset = found.map_or(none, |b| (b * BLOCK_BYTES).max(ask.offset));
        Ok(SeekReply { offset: if offset >= attr.size { none } else { offset }, size: attr.size })
    }
}
