//! Files whose sizes clients told lately. Their data may not be with the OSTs yet, and goes with a client that dies: then
//! the sizes are not known any more. Which they were is in memory only; when that is lost the horizon in the store stands for
//! it (`docs/internals/sizes.md`).
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use types::{ClientId, Duration, Fid, Instant};
use wire::mdt::LockBits;

use crate::keys;
use crate::mds::{Caller, Mds};
use crate::record::{HorizonRow, InodeFlags};
use crate::store::Change;
use crate::tx::{Done, Tx};

/// How long a told size is remembered: far above the age at which clients write their pages out.
const REMEMBERED_FOR: Duration = Duration::from_secs(120);
/// Sizes remembered in all; the oldest go first. 32 bytes each.
const REMEMBERED_MAX: usize = 1 << 19;
/// Inodes changed in one transaction.
const TOGETHER_MAX: usize = 64;

/// Told sizes of all clients, oldest first.
#[derive(Default)]
pub(crate) struct RecentSizes {
    told: VecDeque<(Instant, ClientId, Fid)>,
    /// When one went for want of room last.
    dropped: Option<Instant>,
}

impl RecentSizes {
    /// A client's size of a file was taken for the file's, at `now`.
    pub(crate) fn told(&mut self, client: ClientId, fid: Fid, now: Instant) {
        let too_old = |(at, ..): &(Instant, ClientId, Fid)| now.since(*at) > REMEMBERED_FOR;
        while self.told.front().is_some_and(too_old) {
            self.told.pop_front();
        }
        if self.told.len() >= REMEMBERED_MAX {
            self.told.pop_front();
            self.dropped = Some(now);
        }
        self.told.push_back((now, client, fid));
    }
    /// What a client told lately, and whether that is not all; it is forgotten.
    pub(crate) fn take(&mut self, client: ClientId, now: Instant) -> (BTreeSet<Fid>, bool) {
        let mut fids = BTreeSet::new();
        self.told.retain(|(at, teller, fid)| {
            let taken = *teller == client;
            if taken && now.since(*at) <= REMEMBERED_FOR {
                fids.insert(*fid);
            }
            !taken
        });
        (fids, self.dropped.is_some_and(|at| now.since(at) <= REMEMBERED_FOR))
    }
}

/// Which sizes are doubtful whoever told them, for nobody knows which of them a client that is gone had told.
#[derive(Debug)]
pub(crate) struct Horizon {
    /// Those told before this transaction.
    pub(crate) before: Cell<u64>,
    /// Clients of earlier boots, which may have told sizes then whose data they still have.
    earlier: RefCell<BTreeSet<ClientId>>,
    recovered: Cell<Option<Instant>>,
    /// Clients that are gone whose sizes are being marked.
    doubting: Cell<u32>,
}

impl Horizon {
    /// As the store has it, with the clients of earlier boots.
    pub(crate) fn new(before: u64, earlier: BTreeSet<ClientId>) -> Horizon {
        Horizon {
            before: Cell::new(before),
            earlier: RefCell::new(earlier),
            recovered: Cell::new(None),
            doubting: Cell::new(0),
        }
    }
    /// Who is to come back is back.
    pub(crate) fn recovered(&self, now: Instant) {
        self.recovered.set(Some(now));
    }
    /// Whether a client may have taken data along whose sizes it told in an earlier boot; it is forgotten.
    fn takes_earlier(&self, client: ClientId, now: Instant) -> bool {
        let lately = self.recovered.get().is_none_or(|at| now.since(at) <= REMEMBERED_FOR);
        self.earlier.borrow_mut().remove(&client) && lately
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
    /// A client wrote everything out: what it told is right.
    pub(crate) fn settled(&self, client: ClientId) {
        self.recent_sizes.borrow_mut().take(client, self.rt.now());
        self.horizon.earlier.borrow_mut().remove(&client);
    }
    /// Whether every size of earlier boots is doubtful.
    pub(crate) fn is_all_doubtful(&self) -> bool {
        self.horizon.before.get() >= self.boot << 40
    }

    /// The sizes that a client told lately are not known any more, for it is gone and may have taken the data along. Goes on
    /// behind the caller: others may have to give up what they believe. Whether the horizon's record changes: it goes into
    /// the store together with the end of the client's session, so that a death of this server makes no size right.
    pub(crate) fn doubt_sizes_of(self: &Rc<Self>, client: ClientId) -> bool {
        let now = self.rt.now();
        let (fids, incomplete) = self.recent_sizes.borrow_mut().take(client, now);
        let mut raised = false;
        if self.horizon.takes_earlier(client, now) && !types::planted!("horizon-forgotten") {
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
    fn told_sizes_are_each_clients_own_grow_old_and_are_bounded_in_all() {
        let (a, b, mut recent) = (ClientId(1), ClientId(2), RecentSizes::default());
        let (fid, at) = (|n: u64| Fid::new(n, 1), |s: u64| Instant::ZERO + Duration::from_secs(s));
        recent.told(a, fid(1), at(0));
        recent.told(b, fid(2), at(60));
        recent.told(a, fid(3), at(100));
        recent.told(a, fid(3), at(100));
        assert_eq!(recent.take(a, at(130)).0, BTreeSet::from([fid(3)]), "the first one is too old");
        assert_eq!(recent.take(a, at(130)), (BTreeSet::new(), false));
        recent.told(a, fid(4), at(200));
        assert_eq!(recent.told.len(), 1, "what is too old is not kept");
        (0..REMEMBERED_MAX as u64 + 5).for_each(|n| recent.told(b, fid(n), at(200)));
        assert_eq!(recent.told.len(), REMEMBERED_MAX);
        assert!(recent.take(a, at(200)) == (BTreeSet::new(), true), "it went for want of room");
    }
}
