//! How pools and OSTs come and go while programs run: one change of the cluster map at a time, answered when it is on stable
//! storage, told to every client.
//!
//! A change has a number that whoever asks for it drew. The store keeps the number of the last one: a request that is sent again,
//! because the server died before it answered, is answered as the first time.
use std::rc::Rc;

use types::{FsError, OstIndex};
use wire::connect::{ConfigReply, MapChange, MapChangeReply, MapChangeRequest, OstFilesRequest};

use crate::keys;
use crate::kv::Key;
use crate::mds::Mds;
use crate::ost_pools::MapError;
use crate::osts::precreate_row;
use crate::record::PrecreateRow;

/// A row of the store as it is to be.
type Row = (Key, Option<Vec<u8>>);

impl Mds {
    /// Carries a change out. What is refused is told in the reply.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn change_map(self: &Rc<Self>, q: &MapChangeRequest) -> Result<MapChangeReply, FsError> {
        if self.map.was_made(q.id) {
            return self.made_before(q).await;
        }
        let mut rows = Vec::new();
        let changed = match q.what {
            MapChange::PoolNew => self.map.pool_new(&q.pool),
            MapChange::PoolAdd => self.map.pool_add(&q.pool, &q.osts),
            MapChange::PoolRemove => self.map.pool_remove(&q.pool, &q.osts),
            MapChange::PoolDestroy => self.map.pool_destroy(&q.pool),
            MapChange::Close => self.others_take_files(&q.osts).and_then(|()| self.change_closed(&q.osts, true)),
            MapChange::Open => self.change_closed(&q.osts, false),
            MapChange::RemoveOst => self.take_out(&q.osts).await?,
            MapChange::AcceptOlder => self.map.accept_older(&q.osts),
            MapChange::ReplaceOst => {
                for ost in &q.osts {
                    self.look_at_ost(*ost).await;
                }
                self.replace_store(&q.osts, q.uuid).map(|r| rows = r)
            }
        };
        let refused = |e: MapError| MapChangeReply {
            errno: e.kind().errno() as u16,
            why: e.to_string().as_str().into(),
            epoch: self.map.epoch(),
            ..MapChangeReply::default()
        };
        if let Err(e) = changed {
            if self.map.was_made(q.id) {
                // Asked twice at the same time, and the other one was faster.
                return self.made_before(q).await;
            }
            return Ok(refused(e));
        }
        self.map.note_change(q.id);
        self.pools.borrow_mut().set_members(crate::ost_pools::members(&self.map.map().pools));
        rows.extend(q.osts.iter().filter(|_| q.what == MapChange::RemoveOst).flat_map(|ost| self.untend_ost(*ost)));
        self.put_map(rows);
        self.store.sync().await?;
        tracing::info!(what = ?q.what, pool = %String::from_utf8_lossy(&q.pool), osts = ?q.osts, "the cluster map was changed");
        self.pool_filled.notify();
        self.tell_clients();
        Ok(self.changed(q))
    }

    /// The cluster map as it is now goes to the store, together with these rows; it is told when it is on stable storage.
    pub(crate) fn put_map(&self, rows: impl IntoIterator<Item = Row>) {
        let map = (keys::plain(keys::CLUSTER_MAP), Some(wire::encode(&self.map.map())));
        self.store.apply(rows.into_iter().chain([map]), 0, 0);
        self.map.saved(self.store.applied());
    }

    /// What is told of the cluster map now.
    pub(crate) fn told_map(&self) -> ConfigReply {
        self.map.reply(self.store.durable())
    }

    /// The answer to a change that is asked for again. The first one may have met a store that was full: then nobody was told.
    async fn made_before(self: &Rc<Self>, q: &MapChangeRequest) -> Result<MapChangeReply, FsError> {
        self.map_is_kept().await?;
        self.tell_clients();
        Ok(self.changed(q))
    }

    /// The answer to a change that is made.
    fn changed(&self, q: &MapChangeRequest) -> MapChangeReply {
        let replaced = q.osts.first().filter(|_| q.what == MapChange::ReplaceOst);
        let lost_through = replaced.and_then(|ost| Some(self.pools.borrow().get(*ost)?.last_given()));
        MapChangeReply {
            epoch: self.map.epoch(),
            lost_through: lost_through.unwrap_or_default(),
            ..MapChangeReply::default()
        }
    }

    /// A new store, which nobody serves yet, takes the place of the one that an OST has lost. Objects that the lost one may have held are not
    /// given out again, and those that were to be destroyed there are the log's no longer. The changed rows of the store.
    fn replace_store(self: &Rc<Self>, osts: &[OstIndex], uuid: u64) -> Result<Vec<Row>, MapError> {
        let [ost] = *osts else { return Err(MapError::Nothing) };
        match self.map.store_of(ost) {
            None => return Err(MapError::NoOst(ost)),
            Some(has) if has == uuid || uuid == 0 => return Err(MapError::SameStore(ost)),
            Some(_) => {}
        }
        let pool = self.pools.borrow().get(ost).cloned().unwrap_or_default();
        if self.is_in_service(ost) && !pool.has_failed() {
            return Err(MapError::Serves(ost));
        }
        let lost = pool.last_given();
        let entry = self.map.replace_store(ost, uuid, lost)?;
        let mut rows = self.untend_ost(ost);
        // A store that this one, put back from a backup, does not know of any more has objects of its own: they stay, and no number of
        // theirs is given out again.
        let row = PrecreateRow { last_used: lost, ceiling: lost, newer: true, ..PrecreateRow::default() };
        self.pools.borrow_mut().add(ost, self.map.is_active(ost), &row);
        rows.extend(self.pools.borrow().get(ost).map(|p| (keys::precreate(ost), Some(precreate_row(p)))));
        self.tend_ost(&entry);
        Ok(rows)
    }

    /// No objects are given out of an OST any more, or they are again.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn close_ost(self: &Rc<Self>, ost: OstIndex, closed: bool) -> Result<(), FsError> {
        if self.map.is_closed(ost) == closed {
            return self.map_is_kept().await;
        }
        self.change_closed(&[ost], closed).map_err(|_| FsError::NotFound)?;
        self.save_map().await?;
        self.tell_map(ost);
        Ok(())
    }

    /// Refuses to close the last OSTs that take files: whoever empties one looks at the others before, and so may somebody else at the
    /// same time.
    fn others_take_files(&self, osts: &[OstIndex]) -> Result<(), MapError> {
        let takes = |ost: OstIndex| self.map.is_active(ost) && !self.map.is_closed(ost);
        let others = self.map.map().osts.iter().any(|e| !osts.contains(&e.ost) && takes(e.ost));
        match osts.iter().find(|ost| takes(**ost)) {
            Some(last) if !others => Err(MapError::LastOpen(*last)),
            _ => Ok(()),
        }
    }

    fn change_closed(&self, osts: &[OstIndex], closed: bool) -> Result<(), MapError> {
        if let Some(unknown) = osts.iter().find(|o| !self.map.has_ost(**o)) {
            return Err(MapError::NoOst(*unknown));
        }
        for ost in osts {
            self.map.set_closed(*ost, closed);
            self.pools.borrow_mut().update(*ost, |p| p.closed = closed);
        }
        if osts.is_empty() { Err(MapError::Nothing) } else { Ok(()) }
    }

    /// Takes an OST out of the map that no file has objects on. None are given out there from here on; if it stays, that is as
    /// before. Who opens it while files are looked for has it stay: there may be some behind where the look is.
    async fn take_out(self: &Rc<Self>, osts: &[OstIndex]) -> Result<Result<(), MapError>, FsError> {
        let [ost] = *osts else { return Ok(Err(MapError::Nothing)) };
        if let Err(e) = self.map.may_leave(ost) {
            return Ok(Err(e));
        }
        let was_closed = self.map.is_closed(ost);
        // In the map, for its server may come and go meanwhile.
        if let Err(e) = self.change_closed(&osts[..1], true) {
            return Ok(Err(e));
        }
        let look = self.map.begin_leaving(ost);
        let found = match types::planted!("drained-with-files-left") {
            true => Ok((0, String::new())),
            false => self.count_files(ost).await,
        };
        let leaves = self.map.end_leaving(ost, look);
        let done = match found {
            Ok((0, _)) if !leaves => Ok(Err(MapError::Opened(ost))),
            Ok((0, _)) => Ok(self.map.remove_ost(ost)),
            Ok((files, first)) => Ok(Err(MapError::HasFiles { ost, files, first })),
            Err(e) => Err(e),
        };
        if !matches!(done, Ok(Ok(()))) && !was_closed {
            // Somebody may have stored the map meanwhile.
            self.close_ost(ost, false).await?;
        }
        done
    }

    /// How many files have objects on an OST, and the path of the first.
    async fn count_files(self: &Rc<Self>, ost: OstIndex) -> Result<(u64, String), FsError> {
        let (mut count, mut first) = (0, String::new());
        let mut q = OstFilesRequest { ost, ..OstFilesRequest::default() };
        loop {
            let page = self.ost_files(&q).await?;
            if let Some(file) = page.files.first().filter(|_| count == 0) {
                first = crate::ost_files::shown(file);
            }
            count += page.files.len() as u64;
            if page.next.is_zero() {
                return Ok((count, first));
            }
            q.from = page.next;
        }
    }
}
