//! Files whose sizes clients told lately. Their data may not be with the OSTs yet, and goes with a client that dies: then
//! the sizes are not known any more. In memory only (`docs/internals/sizes.md`).
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::{ClientId, Duration, Fid, Instant};
use wire::mdt::LockBits;

use crate::mds::{Caller, Mds};
use crate::record::InodeFlags;
use crate::tx::{Done, Tx};

/// How long a told size is remembered: far above the age at which clients write their pages out.
const REMEMBERED_FOR: Duration = Duration::from_secs(120);
/// Sizes remembered per client; the oldest go first. 16 bytes and a time each.
const REMEMBERED_MAX: usize = 1 << 16;
/// Inodes changed in one transaction.
const TOGETHER_MAX: usize = 64;

/// Told sizes by client, oldest first.
#[derive(Default)]
pub(crate) struct RecentSizes(HashMap<ClientId, VecDeque<(Instant, Fid)>, FxBuildHasher>);

impl RecentSizes {
    /// A client's size of a file was taken for the file's, at `now`.
    pub(crate) fn told(&mut self, client: ClientId, fid: Fid, now: Instant) {
        let of_client = self.0.entry(client).or_default();
        while of_client.len() >= REMEMBERED_MAX
            || of_client.front().is_some_and(|(at, _)| now.since(*at) > REMEMBERED_FOR)
        {
            of_client.pop_front();
        }
        of_client.push_back((now, fid));
    }
    /// What a client told lately; it is forgotten.
    pub(crate) fn take(&mut self, client: ClientId, now: Instant) -> BTreeSet<Fid> {
        let of_client = self.0.remove(&client).unwrap_or_default();
        of_client.into_iter().filter(|(at, _)| now.since(*at) <= REMEMBERED_FOR).map(|(_, fid)| fid).collect()
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
            let caller = Caller { client, replay: None, basis: 0, slot: None };
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
