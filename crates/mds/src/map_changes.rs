//! How pools and OSTs come and go while programs run: one change of the cluster map at a time, answered when it is on stable
//! storage, told to every client.
//!
//! A change has a number that whoever asks for it drew. The store keeps the number of the last one: a request that is sent again,
//! because the server died before it answered, is answered as the first time.
use std::rc::Rc;

use types::{FsError, OstIndex};
use wire::connect::{MapChange, MapChangeReply, MapChangeRequest, OstFilesRequest};

use crate::keys;
use crate::mds::Mds;
use crate::ost_pools::MapError;

impl Mds {
    /// Carries a change out. What is refused is told in the reply.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn change_map(self: &Rc<Self>, q: &MapChangeRequest) -> Result<MapChangeReply, FsError> {
        if self.map.was_made(q.id) {
            self.store.sync().await?;
            return Ok(MapChangeReply { epoch: self.map.epoch(), ..MapChangeReply::default() });
        }
        let changed = match q.what {
            MapChange::PoolNew => self.map.pool_new(&q.pool),
            MapChange::PoolAdd => self.map.pool_add(&q.pool, &q.osts),
            MapChange::PoolRemove => self.map.pool_remove(&q.pool, &q.osts),
            MapChange::PoolDestroy => self.map.pool_destroy(&q.pool),
            MapChange::Close | MapChange::Open => self.change_closed(&q.osts, q.what == MapChange::Close),
            MapChange::RemoveOst => self.take_out(&q.osts).await?,
        };
        let refused = |e: MapError| MapChangeReply {
            errno: e.kind().errno() as u16,
            why: e.to_string().as_str().into(),
            epoch: self.map.epoch(),
        };
        if let Err(e) = changed {
            return Ok(refused(e));
        }
        self.map.note_change(q.id);
        self.pools.borrow_mut().set_members(crate::ost_pools::members(&self.map.map().pools));
        let gone = q.osts.iter().filter(|_| q.what == MapChange::RemoveOst).flat_map(|ost| self.untend_ost(*ost));
        let map = (keys::plain(keys::CLUSTER_MAP), Some(wire::encode(&self.map.map())));
        self.store.apply(gone.chain([map]).collect::<Vec<_>>(), 0, 0);
        self.store.sync().await?;
        tracing::info!(what = ?q.what, pool = %String::from_utf8_lossy(&q.pool), osts = ?q.osts, "the cluster map was changed");
        self.pool_filled.notify();
        self.tell_clients();
        Ok(MapChangeReply { epoch: self.map.epoch(), ..MapChangeReply::default() })
    }

    /// No objects are given out of an OST any more, or they are again.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn close_ost(self: &Rc<Self>, ost: OstIndex, closed: bool) -> Result<(), FsError> {
        if self.map.is_closed(ost) != closed {
            self.change_closed(&[ost], closed).map_err(|_| FsError::NotFound)?;
            self.save_map().await?;
            self.tell_map(ost);
        }
        Ok(())
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
    /// before.
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
        let found = self.count_files(ost).await;
        let done = match found {
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
