//! Files whose sizes clients told lately. Their data may not be with the OSTs yet, and goes with a client that dies: then
//! the sizes are not known any more. In memory only (`docs/internals/sizes.md`).
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use types::{ClientId, Duration, Fid, Instant};
use wire::mdt::LockBits;

use crate::mds::{Caller, Mds};
use crate::record::InodeFlags;
use crate::tx::{Done, Tx};

/// How long a told size is remembered: far above the age at which clients write their pages out.
const REMEMBERED_FOR: Duration = Duration::from_secs(120);
/// Sizes remembered in all; the oldest go first. 32 bytes each.
const REMEMBERED_MAX: usize = 1 << 19;
/// Inodes changed in one transaction.
const TOGETHER_MAX: usize = 64;

/// Told sizes of all clients, oldest first.
#[derive(Default)]
pub(crate) struct RecentSizes(VecDeque<(Instant, ClientId, Fid)>);

impl RecentSizes {
    /// A client's size of a file was taken for the file's, at `now`.
    pub(crate) fn told(&mut self, client: ClientId, fid: Fid, now: Instant) {
        let too_old = |(at, ..): &(Instant, ClientId, Fid)| now.since(*at) > REMEMBERED_FOR;
        while self.0.len() >= REMEMBERED_MAX || self.0.front().is_some_and(too_old) {
            self.0.pop_front();
        }
        self.0.push_back((now, client, fid));
    }
    /// What a client told lately; it is forgotten.
    pub(crate) fn take(&mut self, client: ClientId, now: Instant) -> BTreeSet<Fid> {
        let mut fids = BTreeSet::new();
        self.0.retain(|(at, teller, fid)| {
            let taken = *teller == client;
            if taken && now.since(*at) <= REMEMBERED_FOR {
                fids.insert(*fid);
            }
            !taken
        });
        fids
    }
}

impl Mds {
    /// The sizes that a client told lately are not known any more, for it is gone and may have taken the data along. Goes on
    /// behind the caller: others may have to give up what they believe.
    pub(crate) fn doubt_sizes_of(self: &Rc<Self>, client: ClientId) {
        let fids: Vec<Fid> = self.recent_sizes.borrow_mut().take(client, self.rt.now()).into_iter().collect();
        if fids.is_empty() {
            return;
        }
        let me = self.clone();
        self.rt.spawn(async move {
            let caller = Caller::on_behalf_of(client);
            for together in fids.chunks(TOGETHER_MAX) {
                let finish = |m: &Rc<Mds>, written: Vec<Fid>| {
                    let mut handles = m.handles.borrow_mut();
                    written.into_iter().for_each(|fid| handles.suspect(fid));
                    Ok(())
                };
                if let Err(e) = me.run(caller, |tx| tx.doubt_sizes(together), finish).await {
                    tracing::error!(%client, "sizes that it told cannot be doubted: {e}");
                }
            }
        });
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
        assert_eq!(recent.take(a, at(130)), BTreeSet::from([fid(3)]), "the first one is too old");
        assert_eq!(recent.take(a, at(130)), BTreeSet::new());
        recent.told(a, fid(4), at(200));
        assert_eq!(recent.0.len(), 1, "what is too old is not kept");
        (0..REMEMBERED_MAX as u64 + 5).for_each(|n| recent.told(b, fid(n), at(200)));
        assert_eq!(recent.0.len(), REMEMBERED_MAX);
        assert!(recent.take(a, at(200)).is_empty());
    }
}
