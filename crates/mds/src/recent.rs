//! Files whose sizes clients told before they said that the data are on stable storage. These go with a client that dies: then
//! the sizes are not known any more. Which they were is in memory only; when that is lost the horizon in the store stands for
//! it (`docs/internals/sizes.md`).
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use types::{ClientId, Fid, FsError, Instant};
use wire::mdt::{LockBits, SettledRequest};

use crate::keys;
use crate::mds::{Caller, Mds};
use crate::record::{HorizonRow, InodeFlags};
use crate::service::Outcome;
use crate::store::Change;
use crate::tx::{Done, Tx};

/// Sizes remembered in all; of a client that tells more its oldest go first. 24 bytes each.
const REMEMBERED_MAX: usize = 1 << 19;
/// Inodes changed in one transaction.
const TOGETHER_MAX: usize = 64;

/// Sizes that a client told and whose data may not be on stable storage.
#[derive(Default)]
struct Told {
    /// With the transactions that they were told by, which mostly grow.
    sizes: VecDeque<(u64, Fid)>,
    /// The last transaction of those that went for want of room; 0: of none.
    dropped: u64,
}

/// Told sizes of all clients.
#[derive(Default)]
pub(crate) struct RecentSizes {
    told: BTreeMap<ClientId, Told>,
    count: usize,
    /// Sizes that went for want of room so far.
    limit_hits: u64,
}

impl RecentSizes {
    /// A client's size of a file was taken for the file's by a transaction.
    pub(crate) fn told(&mut self, client: ClientId, fid: Fid, transaction: u64) {
        let told = self.told.entry(client).or_default();
        if self.count >= REMEMBERED_MAX
            && let Some((oldest, _)) = told.sizes.pop_front()
        {
            told.dropped = told.dropped.max(oldest);
            self.count -= 1;
            self.limit_hits += 1;
        }
        told.sizes.push_back((transaction, fid));
        self.count += 1;
    }
    /// (sizes remembered, sizes that went for want of room so far).
    pub(crate) fn counters(&self) -> (usize, u64) {
        (self.count, self.limit_hits)
    }
    /// What a client told up to a transaction is right whatever happens to it.
    pub(crate) fn settled(&mut self, client: ClientId, through: u64) {
        let Some(told) = self.told.get_mut(&client) else { return };
        while told.sizes.front().is_some_and(|(t, _)| *t <= through) {
            told.sizes.pop_front();
            self.count -= 1;
        }
        if told.dropped <= through {
            told.dropped = 0;
        }
        if told.sizes.is_empty() && told.dropped == 0 {
            self.told.remove(&client);
        }
    }
    /// What a client told and did not settle, and whether that is not all; it is forgotten.
    fn take(&mut self, client: ClientId) -> (BTreeSet<Fid>, bool) {
        let told = self.told.remove(&client).unwrap_or_default();
        self.count -= told.sizes.len();
        (told.sizes.into_iter().map(|(_, fid)| fid).collect(), told.dropped > 0)
    }
}

/// Which sizes are doubtful whoever told them, for nobody knows which of them a client that is gone had told.
#[derive(Debug)]
pub(crate) struct Horizon {
    /// Those told before this transaction.
    pub(crate) before: Cell<u64>,
    /// Clients of earlier boots, which may have told sizes then whose data they still have.
    earlier: RefCell<BTreeSet<ClientId>>,
    /// The last transaction of earlier boots in the store.
    earlier_last: u64,
    recovered: Cell<Option<Instant>>,
    /// Clients that are gone whose sizes are being marked.
    doubting: Cell<u32>,
}

impl Horizon {
    /// As the store has it, with the clients of earlier boots.
    pub(crate) fn new(before: u64, earlier: BTreeSet<ClientId>, earlier_last: u64) -> Horizon {
        Horizon {
            before: Cell::new(before),
            earlier: RefCell::new(earlier),
            earlier_last,
            recovered: Cell::new(None),
            doubting: Cell::new(0),
        }
    }
    /// Who is to come back is back.
    pub(crate) fn recovered(&self, now: Instant) {
        self.recovered.set(Some(now));
    }
    /// Whether a client may have taken data along whose sizes it told in an earlier boot; it is forgotten.
    fn takes_earlier(&self, client: ClientId) -> bool {
        self.earlier.borrow_mut().remove(&client)
    }
    fn raise(&self, before: u64) {
        self.before.set(self.before.get().max(before));
    }
    /// Its record as it is to be now.
    pub(crate) fn change(&self) -> Change {
        let row = HorizonRow { before: self.before.get(), doubting: self.doubting.get() > 0 };
        (keys::plain(keys::HORIZON), Some(wire::encode(&row)))
    }
}

impl Mds {
    pub(crate) fn told_settled(&self, client: ClientId, body: &[u8]) -> Result<Outcome, FsError> {
        let q: SettledRequest = wire::decode(body).map_err(FsError::from)?;
        self.settled(client, q.through.0);
        Ok(Outcome::plain(&()))
    }
    /// What a client told with transactions up to this one is on stable storage.
    pub(crate) fn settled(&self, client: ClientId, through: u64) {
        self.recent_sizes.borrow_mut().settled(client, through);
        if through >= self.horizon.earlier_last {
            self.horizon.earlier.borrow_mut().remove(&client);
        }
    }
    /// Whether every size of earlier boots is doubtful.
    pub(crate) fn is_all_doubtful(&self) -> bool {
        self.horizon.before.get() >= self.boot << 40
    }

    /// The sizes that a client told and did not settle are not known any more, for it is gone and may have taken the data along. Goes on
    /// behind the caller: others may have to give up what they believe. Whether the horizon's record changes: it goes into
    /// the store together with the end of the client's session, so that a death of this server makes no size right.
    pub(crate) fn doubt_sizes_of(self: &Rc<Self>, client: ClientId) -> bool {
        let (fids, incomplete) = self.recent_sizes.borrow_mut().take(client);
        let mut raised = false;
        if self.horizon.takes_earlier(client) && !types::planted!("horizon-forgotten") {
            self.horizon.raise(self.boot << 40);
            raised = true;
        }
        if incomplete {
            self.horizon.raise(self.store.last_transno() + 1);
            raised = true;
        }
        // At the end of a recovery that is done once for all.
        if raised && self.horizon.recovered.get().is_some() {
            self.call_everything_back();
        }
        if fids.is_empty() {
            return raised;
        }
        self.horizon.doubting.set(self.horizon.doubting.get() + 1);
        let (me, fids) = (self.clone(), fids.into_iter().collect::<Vec<Fid>>());
        self.rt.spawn(async move {
            let caller = Caller::on_behalf_of(client);
            let mut marked = true;
            for together in fids.chunks(TOGETHER_MAX) {
                let finish = |m: &Rc<Mds>, written: Vec<Fid>| {
                    let mut handles = m.handles.borrow_mut();
                    written.into_iter().for_each(|fid| handles.suspect(fid));
                    Ok(())
                };
                if let Err(e) = me.run(caller, |tx| tx.doubt_sizes(together), finish).await {
                    tracing::error!(%client, "sizes that it told cannot be doubted: {e}");
                    marked = false;
                }
            }
            if marked {
                me.horizon.doubting.set(me.horizon.doubting.get() - 1);
                if me.horizon.doubting.get() == 0 {
                    me.store.apply([me.horizon.change()], 0, 0);
                }
            }
        });
        true
    }
}

impl Tx<'_> {
    /// Answers those that are open for writing: a writer that writes nothing must not make the record's size count.
    fn doubt_sizes(&mut self, fids: &[Fid]) -> Done<Vec<Fid>> {
        let mut written = Vec::new();
        for fid in fids {
            let Some(mut inode) = self.find_inode(*fid)? else { continue };
            if self.mds.handles.borrow().writers(*fid) > 0 {
                written.push(*fid);
                continue;
            }
            if inode.has(InodeFlags::SIZE_UNKNOWN) {
                continue;
            }
            inode.set(InodeFlags::SIZE_UNKNOWN, true);
            self.put_inode(&inode);
            self.claim(*fid, LockBits::UPDATE);
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_sizes_of_one_client_are_taken_once_until_it_settled_them() {
        let mut recent = RecentSizes::default();
        let (a, b, fid) = (ClientId(1), ClientId(2), |n: u64| Fid::new(n, 1));
        for (client, n, transaction) in [(a, 1, 10), (b, 2, 11), (a, 3, 12), (a, 3, 13), (a, 4, 15)] {
            recent.told(client, fid(n), transaction);
        }
        recent.settled(a, 12);
        recent.settled(ClientId(9), 99);
        assert_eq!(recent.take(a), ([3, 4].map(fid).into(), false), "told again after what was settled");
        assert_eq!(recent.take(a), (BTreeSet::new(), false));
        recent.settled(b, 10);
        assert_eq!(recent.take(b), ([2].map(fid).into(), false));
        assert_eq!(recent.count, 0);
    }

    #[test]
    fn who_tells_more_than_is_remembered_is_doubted_in_all_until_it_settled_what_went() {
        let mut recent = RecentSizes::default();
        let (a, b, fid) = (ClientId(1), ClientId(2), Fid::new(7, 1));
        recent.told(b, fid, 1);
        (0..REMEMBERED_MAX as u64 + 9).for_each(|t| recent.told(a, fid, t));
        assert_eq!(recent.counters(), (REMEMBERED_MAX, 10));
        recent.settled(a, 8);
        assert!(recent.told[&a].dropped > 8, "nine went, and one for the other client's");
        recent.settled(a, 9);
        assert!(!recent.take(a).1);
        assert_eq!(recent.take(b), ([fid].into(), false), "others keep theirs");
        (0..REMEMBERED_MAX as u64 + 1).for_each(|t| recent.told(a, fid, t + 1));
        assert_eq!(recent.take(a), ([fid].into(), true));
        assert_eq!(recent.count, 0);
    }
}
