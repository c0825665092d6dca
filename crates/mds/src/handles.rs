//! Open handles: who has what open, and how. In memory only; after a restart clients tell it again.
use std::collections::BTreeSet;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::{ClientId, Fid, HandleId, WallTime};

/// One open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open {
    /// Whose.
    pub client: ClientId,
    /// Of what.
    pub fid: Fid,
    /// Opened for writing.
    pub writes: bool,
    /// By which user of it, as the server knows users.
    pub uid: u32,
    /// Opened with O_PATH: for neither reading nor writing, without a right to either.
    pub path: bool,
}

/// Which clients told that they changed an inode's data, since there are writers.
#[derive(Clone, Copy, Default, Debug)]
enum Tellers {
    #[default]
    None,
    One(ClientId),
    /// Which of their sizes is the latest is not known: each was found before it was sent.
    Several,
}

#[derive(Clone, Default, Debug)]
struct Uses {
    openers: Vec<ClientId>,
    writers: Vec<ClientId>,
    /// Somebody may have written without telling the size.
    suspect: bool,
    tellers: Tellers,
    /// Who last set the modification time since there are writers, and when.
    timed: Option<(ClientId, WallTime)>,
}

/// Counts one less, and forgets who has none.
fn one_less<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize, FxBuildHasher>, of: K) {
    if let Some(count) = counts.get_mut(&of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&of);
        }
    }
}

/// All open handles of a target.
#[derive(Debug)]
pub struct Handles {
    next: u64,
    /// By whose they are as well: what one client tells takes no other's place.
    table: HashMap<(ClientId, HandleId), Open, FxBuildHasher>,
    uses: HashMap<Fid, Uses, FxBuildHasher>,
    by_client: BTreeSet<(ClientId, HandleId)>,
    /// How many each client has; who has none is not in it.
    counts: HashMap<ClientId, usize, FxBuildHasher>,
    /// How many each user of a client has; who has none is not in it.
    of_users: HashMap<(ClientId, u32), usize, FxBuildHasher>,
    /// Opens that were refused because their client had too many.
    refused: u64,
    /// Inodes without a name that stay although nobody has them open, for a client may still open them by id: their
    /// OPEN locks are watched.
    kept: BTreeSet<Fid>,
    /// Opens that a replayed transaction made again and that their client has not told again as what it has.
    untold: BTreeSet<(ClientId, HandleId)>,
}

impl Handles {
    /// An empty table; handles are numbered above those of earlier boots.
    #[must_use]
    pub fn new(boot: u64) -> Handles {
        Handles {
            next: boot << 40,
            table: HashMap::default(),
            uses: HashMap::default(),
            by_client: BTreeSet::new(),
            counts: HashMap::default(),
            of_users: HashMap::default(),
            refused: 0,
            kept: BTreeSet::new(),
            untold: BTreeSet::new(),
        }
    }
    /// Opens in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }
    /// Whether nothing is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
    /// A new handle.
    pub fn open(&mut self, open: Open) -> HandleId {
        self.next += 1;
        let handle = HandleId(self.next);
        self.insert(handle, open);
        handle
    }
    /// A handle given out before a restart, again. A repetition changes nothing.
    pub fn reopen(&mut self, handle: HandleId, open: Open) {
        self.next = self.next.max(handle.0);
        if !self.table.contains_key(&(open.client, handle)) {
            self.insert(handle, open);
            // Others may have ended theirs before the restart, later than this one's size was found.
            if open.writes
                && let Some(uses) = self.uses.get_mut(&open.fid)
            {
                uses.tellers = Tellers::Several;
            }
        }
    }
    /// An open was made again, by the replay of its transaction or because its client told it (`told`). What is not told in the end
    /// has ended: an end that changed nothing is not replayed.
    pub fn made_again(&mut self, client: ClientId, handle: HandleId, told: bool) {
        if told {
            self.untold.remove(&(client, handle));
        } else if self.get(client, handle).is_some() {
            self.untold.insert((client, handle));
        }
    }
    /// Opens of a client that replayed transactions made again and that it did not tell.
    #[must_use]
    pub fn untold(&self, client: ClientId) -> Vec<HandleId> {
        self.untold.range((client, HandleId(0))..=(client, HandleId(u64::MAX))).map(|(_, h)| *h).collect()
    }
    fn insert(&mut self, handle: HandleId, open: Open) {
        self.table.insert((open.client, handle), open);
        self.by_client.insert((open.client, handle));
        *self.counts.entry(open.client).or_default() += 1;
        *self.of_users.entry((open.client, open.uid)).or_default() += 1;
        let uses = self.uses.entry(open.fid).or_default();
        uses.openers.push(open.client);
        if open.writes {
            uses.writers.push(open.client);
        }
    }
    /// What a handle of this client stands for.
    #[must_use]
    pub fn get(&self, client: ClientId, handle: HandleId) -> Option<Open> {
        self.table.get(&(client, handle)).copied()
    }
    /// Ends an open.
    pub fn close(&mut self, client: ClientId, handle: HandleId) -> Option<Open> {
        let open = self.get(client, handle)?;
        self.table.remove(&(client, handle));
        self.by_client.remove(&(client, handle));
        self.untold.remove(&(client, handle));
        one_less(&mut self.counts, client);
        one_less(&mut self.of_users, (client, open.uid));
        if let Some(uses) = self.uses.get_mut(&open.fid) {
            let lists = [Some(&mut uses.openers), open.writes.then_some(&mut uses.writers)];
            for list in lists.into_iter().flatten() {
                if let Some(at) = list.iter().position(|c| *c == client) {
                    list.swap_remove(at);
                }
            }
            if uses.writers.is_empty() {
                uses.suspect = false;
                uses.tellers = Tellers::None;
                uses.timed = None;
            }
            if uses.openers.is_empty() {
                self.uses.remove(&open.fid);
            }
        }
        Some(open)
    }
    /// Opens of a client.
    #[must_use]
    pub fn opens_of(&self, client: ClientId) -> usize {
        self.counts.get(&client).copied().unwrap_or(0)
    }
    /// Whether a client that has `max` opens at most may have one more, for a user; users but root have three quarters of them each, so that
    /// one leaves something to others. A refusal is counted, and told when their number has doubled.
    pub fn admit(&mut self, client: ClientId, uid: u32, max: usize) -> bool {
        let opens = self.opens_of(client);
        let of_user = self.of_users.get(&(client, uid)).copied().unwrap_or(0);
        if opens < max && (uid == 0 || of_user < max - max / 4) {
            return true;
        }
        self.refused += 1;
        if self.refused.is_power_of_two() {
            let refused = self.refused;
            tracing::warn!(%client, opens, uid, of_user, refused, "an open is refused (ENFILE): mds.opens_max is {max}");
        }
        false
    }
    /// Opens refused so far.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }
    /// Opens of an inode.
    #[must_use]
    pub fn opens(&self, fid: Fid) -> usize {
        self.uses.get(&fid).map_or(0, |u| u.openers.len())
    }
    /// Whether this client has the inode open.
    #[must_use]
    pub fn has_open(&self, client: ClientId, fid: Fid) -> bool {
        self.uses.get(&fid).is_some_and(|u| u.openers.contains(&client))
    }
    /// Somebody may have written to the inode without telling the size; forgotten with the last writer.
    pub fn suspect(&mut self, fid: Fid) {
        if let Some(uses) = self.uses.get_mut(&fid) {
            uses.suspect = true;
        }
    }
    /// Whether [`Handles::suspect`] was said since there are writers.
    #[must_use]
    pub fn is_suspect(&self, fid: Fid) -> bool {
        self.uses.get(&fid).is_some_and(|u| u.suspect)
    }
    /// A client changed, or may have changed, an inode's data; forgotten with the last writer.
    pub fn told(&mut self, fid: Fid, client: ClientId) {
        if let Some(uses) = self.uses.get_mut(&fid) {
            uses.tellers = match uses.tellers {
                Tellers::None => Tellers::One(client),
                Tellers::One(c) if c == client => Tellers::One(client),
                Tellers::One(_) | Tellers::Several => Tellers::Several,
            };
        }
    }
    /// Whether the size that was told last, with the end of a last writer of this client, is the latest there is. `told`:
    /// that one or an earlier one along with it tells of changed data. A client tells its own sizes in order.
    #[must_use]
    pub fn tells_latest(&self, fid: Fid, client: ClientId, told: bool) -> bool {
        match self.uses.get(&fid).map_or(Tellers::None, |u| u.tellers) {
            Tellers::None => true,
            Tellers::One(c) => c == client || !told || types::planted!("late-size-counts"),
            Tellers::Several => types::planted!("late-size-counts"),
        }
    }
    /// A client set the modification time of an inode, at `now`; forgotten with the last writer.
    pub fn time_set(&mut self, fid: Fid, client: ClientId, now: WallTime) {
        if let Some(uses) = self.uses.get_mut(&fid).filter(|u| !u.writers.is_empty()) {
            uses.timed = Some((client, now));
        }
    }
    /// Whether another client set the modification time after `mtime`, which this client's writing left.
    #[must_use]
    pub fn is_overruled(&self, fid: Fid, client: ClientId, mtime: WallTime) -> bool {
        self.uses.get(&fid).and_then(|u| u.timed).is_some_and(|(setter, at)| setter != client && mtime <= at)
    }
    /// Opens for writing of an inode.
    #[must_use]
    pub fn writers(&self, fid: Fid) -> usize {
        self.uses.get(&fid).map_or(0, |u| u.writers.len())
    }
    /// Whether a client other than this one has the inode open for writing.
    #[must_use]
    pub fn others_write(&self, fid: Fid, client: ClientId) -> bool {
        self.uses.get(&fid).is_some_and(|u| u.writers.iter().any(|w| *w != client))
    }
    /// Whether a client other than this one has the inode open.
    #[must_use]
    pub fn others_open(&self, fid: Fid, client: ClientId) -> bool {
        self.uses.get(&fid).is_some_and(|u| u.openers.iter().any(|o| *o != client))
    }
    /// A nameless inode stays for those who may still open it.
    pub fn keep(&mut self, fid: Fid) {
        self.kept.insert(fid);
    }
    /// A kept inode went, or is not nameless.
    pub fn unkeep(&mut self, fid: Fid) {
        self.kept.remove(&fid);
    }
    /// Whether [`Handles::keep`] was said of it.
    #[must_use]
    pub fn is_kept(&self, fid: Fid) -> bool {
        self.kept.contains(&fid)
    }
    /// Whether no inode is kept.
    #[must_use]
    pub fn keeps_none(&self) -> bool {
        self.kept.is_empty()
    }
    /// All that are kept.
    #[must_use]
    pub fn kept(&self) -> Vec<Fid> {
        self.kept.iter().copied().collect()
    }
    /// Handles of a client.
    #[must_use]
    pub fn of_client(&self, client: ClientId) -> Vec<HandleId> {
        self.by_client.range((client, HandleId(0))..=(client, HandleId(u64::MAX))).map(|(_, h)| *h).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_and_writers_are_counted_per_inode_and_a_foreign_handle_is_unknown() {
        let (a, b, f) = (ClientId(1), ClientId(2), Fid::new(5, 5));
        let mut t = Handles::new(3);
        let h = t.open(Open { client: a, fid: f, writes: true, uid: 7, path: false });
        let g = t.open(Open { client: b, fid: f, writes: false, uid: 7, path: false });
        assert!(h.0 > 3 << 40 && t.opens(f) == 2 && t.writers(f) == 1);
        assert!(t.others_write(f, b) && !t.others_write(f, a));
        assert_eq!(t.close(b, h), None);
        assert!(t.close(a, h).is_some() && t.close(a, h).is_none());
        assert_eq!((t.opens(f), t.writers(f)), (1, 0));
        assert_eq!(t.of_client(b), vec![g]);
        t.reopen(HandleId(9 << 40), Open { client: a, fid: f, writes: true, uid: 7, path: false });
        t.reopen(HandleId(9 << 40), Open { client: a, fid: f, writes: true, uid: 7, path: false });
        assert_eq!(t.opens(f), 2);
        assert!(t.open(Open { client: a, fid: f, writes: false, uid: 7, path: false }).0 > 9 << 40);
    }
}
