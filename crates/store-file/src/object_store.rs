//! The store's face to the OST.
use oss::store::{
    Applied, BadBlock, BlockRange, Blocks, Charged, DiskStats, Fenced, FoundMedium, ObjectAttr, ObjectInfo,
    ObjectStore, Promise, ReplyRecord, Space, StoreIdentity, StoreResult, Update,
};
use rt::LocalFuture;
use types::scrub::Looked;
use types::{ClientId, FsError, ObjectId, Origin, Transno, WallTime};
use wire::connect::Opening;

use crate::FileStore;
use crate::file_store::Inner;

impl FileStore {
    /// Work on the store that outlives the call.
    fn with<T: 'static>(&self, work: impl AsyncFnOnce(std::rc::Rc<Inner>) -> T + 'static) -> LocalFuture<T> {
        let inner = self.0.clone();
        Box::pin(async move { work(inner).await })
    }
}

const WHOLE: BlockRange = BlockRange { first: 0, count: u64::MAX };

impl ObjectStore for FileStore {
    fn kind(&self) -> &'static str {
        "file"
    }
    fn medium(&self) -> FoundMedium {
        self.0.config.medium.clone()
    }
    fn identity(&self) -> StoreIdentity {
        self.0.superblock.identity.clone()
    }
    fn boot(&self) -> u64 {
        self.0.boot
    }
    fn openings(&self) -> &[Opening] {
        &self.0.openings
    }
    fn keep_mark(&self) -> LocalFuture<StoreResult<()>> {
        let (s, (tell, told)) = (self.0.clone(), rt::sync::oneshot());
        // A task of the store's own, which ends with it: who waits may be none, and must not keep the store open.
        self.0.rt.spawn(async move {
            let kept = async {
                if let Some(now) = s.openings.last().filter(|_| !s.mark_is_kept.get()) {
                    s.state.borrow_mut().keep_mark(now);
                    s.commit_now().await?;
                    s.mark_is_kept.set(true);
                }
                Ok(())
            };
            let kept: StoreResult<()> = kept.await;
            tell.send(kept);
        });
        Box::pin(async move { told.await.unwrap_or(Err(FsError::Io)) })
    }
    fn disown(&self, boot: u64) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| {
            s.state.borrow_mut().disown(boot);
            s.commit_now().await
        })
    }
    fn lose(&self, seq: u64, to: u32) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| {
            s.check()?;
            s.state.borrow_mut().lose(seq, to);
            s.lost_through.set(s.state.borrow().lost_through);
            s.commit_now().await
        })
    }
    fn attr(&self, object: ObjectId) -> LocalFuture<StoreResult<ObjectAttr>> {
        self.with(async move |s| {
            s.load(object, &[]).await?;
            let attr = s.state.borrow().objects.get(&object).map(|o| o.attr);
            attr.ok_or_else(|| s.no_object(object))
        })
    }
    fn disk(&self) -> Option<&DiskStats> {
        Some(&self.0.disk)
    }
    fn read(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<Blocks>> {
        self.with(async move |s| s.read(object, range).await)
    }
    fn update(&self, object: ObjectId, update: Update) -> LocalFuture<StoreResult<Applied>> {
        self.with(async move |s| s.update(object, update).await)
    }
    fn create(&self, seq: u64, to: u32) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| {
            s.check()?;
            if s.is_stalled() || !s.room.is_full_enough() {
                return Err(FsError::NoSpace);
            }
            s.state.borrow_mut().create(seq, to);
            s.commit_now().await
        })
    }
    fn last_object(&self, seq: u64) -> u32 {
        self.0.state.borrow().sequences.get(&seq).copied().unwrap_or(0)
    }
    fn destroy(&self, objects: Vec<ObjectId>, replay: Option<Transno>) -> LocalFuture<StoreResult<Transno>> {
        self.with(async move |s| {
            s.check()?;
            if s.is_stalled() && replay.is_none() {
                return Err(FsError::NoSpace);
            }
            for id in objects {
                match s.load(id, &[WHOLE]).await {
                    Ok(()) => s.state.borrow_mut().destroy(id),
                    Err(e) if e == s.no_object(id) => {}
                    Err(e) => return Err(e),
                }
            }
            let transno = s.state.borrow_mut().destroyed(replay);
            s.dirty.notify();
            Ok(transno)
        })
    }
    fn seek(&self, object: ObjectId, block: u64, data: bool) -> LocalFuture<StoreResult<Option<u64>>> {
        self.with(async move |s| s.seek(object, block, data).await)
    }
    fn reserved(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<u64>> {
        self.with(async move |s| {
            s.load(object, &[range]).await?;
            let state = s.state.borrow();
            let reserved = state.objects.get(&object).ok_or(FsError::NotFound)?.reserved(range);
            Ok(reserved.iter().map(|(_, run)| run.blocks).sum())
        })
    }
    fn allocated(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<u64>> {
        self.with(async move |s| {
            s.load(object, &[range]).await?;
            let state = s.state.borrow();
            Ok(range.count - state.objects.get(&object).ok_or(FsError::NotFound)?.holes(range))
        })
    }
    fn sync(&self) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| s.commit_now().await)
    }
    fn last_committed(&self) -> Transno {
        self.0.state.borrow().committed
    }
    fn space(&self) -> Space {
        self.0.space()
    }
    fn promised(&self, bytes: u64) {
        self.0.promise(bytes);
    }
    fn lost_through(&self) -> u32 {
        self.0.lost_through.get()
    }
    fn sessions(&self) -> Vec<(ClientId, u64)> {
        self.0.state.borrow().sessions.iter().map(|(c, n)| (*c, *n)).collect()
    }
    fn origin_of(&self, client: ClientId) -> Origin {
        self.0.state.borrow().origins.get(&client).copied().unwrap_or_default()
    }
    fn answers_of(&self, client: ClientId) -> Vec<ReplyRecord> {
        // Asked for once, when the target starts.
        self.0.state.borrow_mut().answers.remove(&client).unwrap_or_default()
    }
    fn session_open(&self, client: ClientId, number: u64, origin: Origin) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| {
            s.state.borrow_mut().session_open(client, number, origin);
            s.commit_now().await
        })
    }
    fn session_close(&self, client: ClientId) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| {
            s.state.borrow_mut().session_close(client);
            s.commit_now().await
        })
    }
    fn look_at_pages(&self, bytes: u64) -> LocalFuture<StoreResult<Looked>> {
        self.with(async move |s| s.look_at_pages(bytes).await)
    }
    fn quiet(&self) -> Vec<(ClientId, Vec<u8>)> {
        // Asked for once, when the target starts.
        std::mem::take(&mut self.0.state.borrow_mut().quiet)
    }
    fn note_quiet(&self, client: ClientId, held: Vec<u8>) -> bool {
        let mut state = self.0.state.borrow_mut();
        let noted = state.sessions.contains_key(&client) && !self.0.is_stalled() && self.0.check().is_ok();
        if noted {
            let row = crate::format::quiet_to_bytes(client, self.0.boot, &held);
            state.set_quiet(client, Some(row));
            self.0.dirty.notify();
        }
        noted
    }
    fn quiet_no_more(&self, client: ClientId) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| {
            s.state.borrow_mut().set_quiet(client, None);
            s.commit_now().await
        })
    }
    fn advice(&self) -> Vec<(ObjectId, Vec<u8>)> {
        // Asked for once, when the target starts.
        std::mem::take(&mut self.0.state.borrow_mut().advice)
    }
    fn set_advice(&self, object: ObjectId, record: Vec<u8>) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| {
            s.load(object, &[]).await?;
            if s.is_stalled() && !record.is_empty() {
                return Err(FsError::NoSpace);
            }
            s.state.borrow_mut().set_advice(object, record);
            s.commit_now().await
        })
    }
    fn promises(&self) -> Vec<(ObjectId, Promise)> {
        // Asked for once, when the target starts.
        std::mem::take(&mut self.0.state.borrow_mut().promises)
    }
    fn set_promise(&self, object: ObjectId, promise: Option<Promise>) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| {
            if let Some(promise) = promise {
                if !promise.is_possible() {
                    return Err(FsError::FileTooBig);
                }
                s.load(object, &[]).await?;
                if s.is_stalled() {
                    return Err(FsError::NoSpace);
                }
            }
            s.state.borrow_mut().set_promise(object, promise);
            s.commit_now().await
        })
    }
    fn revoked(&self) -> Vec<(u64, WallTime)> {
        self.0.state.borrow().revoked.iter().map(|(id, expires)| (*id, *expires)).collect()
    }
    fn revoke(&self, credentials: Vec<(u64, WallTime)>, since: WallTime) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| {
            s.state.borrow_mut().revoke(&credentials, since);
            s.commit_now().await
        })
    }
    fn usage(&self, who: Charged) -> u64 {
        self.0.state.borrow().usages.of(who)
    }
    fn is_owned(&self) -> bool {
        self.0.state.borrow().is_owned
    }
    fn set_owned(&self) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| {
            s.state.borrow_mut().set_owned();
            s.commit_now().await
        })
    }
    fn shares(&self) -> Vec<(Charged, u64)> {
        // Asked for once, when the target starts.
        std::mem::take(&mut self.0.state.borrow_mut().shares)
    }
    fn set_shares(&self, shares: Vec<(Charged, Option<u64>)>) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| {
            shares.into_iter().for_each(|(who, bytes)| s.state.borrow_mut().set_share(who, bytes));
            s.commit_now().await
        })
    }
    fn objects(&self, after: ObjectId, count: usize) -> LocalFuture<StoreResult<Vec<ObjectInfo>>> {
        self.with(async move |s| {
            s.commit_now().await?;
            let db = s.db.clone();
            s.rt.offload(move || crate::db::guarded(|| db.list(after, count))).await.map_err(|e| s.db_failed(e))
        })
    }
    fn verify(&self, object: ObjectId) -> LocalFuture<StoreResult<Vec<BadBlock>>> {
        self.with(async move |s| s.verify(object).await)
    }
    fn fence(&self) -> Option<&dyn Fenced> {
        Some(self)
    }
    fn failure(&self) -> Option<FsError> {
        self.0.failure.get()
    }
    fn failure_text(&self) -> Option<String> {
        self.0.failure_text.borrow().clone()
    }
    fn is_damaged(&self) -> bool {
        self.0.failure.get().is_some() && self.0.sums.found_damage()
    }
    fn close(&self) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| {
            s.closing.set(true);
            s.dirty.notify();
            s.kick.notify();
            loop {
                let done = s.done.wait();
                if s.stopped.get() {
                    return s.failure.get().map_or(Ok(()), Err);
                }
                if s.stalled.get() {
                    // Nobody will wait for the space.
                    s.room.give_up();
                }
                done.await;
            }
        })
    }
}

impl Fenced for FileStore {
    fn still_ours(&self) -> LocalFuture<StoreResult<()>> {
        self.with(async move |s| s.still_ours().await)
    }
    fn is_surely_ours(&self) -> bool {
        self.0.is_surely_ours()
    }
    fn is_replaced(&self) -> bool {
        self.0.fence.replaced.get()
    }
    fn on_replaced(&self, then: Box<dyn Fn()>) {
        *self.0.fence.then.borrow_mut() = Some(then);
    }
}
