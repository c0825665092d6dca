//! One operation's view of the store: reads through, collects changes, names what it needs locked.
//!
//! An operation is a plain function over a [`Tx`]. It either fails, leaving nothing behind, or its changes are applied
//! as one. When a read has to be fetched, or a lock of another client stands in the way, or object pools are empty, it
//! is run again afterwards from its start: between its first read and the application of its changes nothing else runs,
//! so operations are atomic without holding any lock.
use std::collections::BTreeMap;

use rt::LocalFuture;
use smallvec::SmallVec;
use types::{ClientId, Fid, FsError, OstIndex, WallTime};

use crate::basis::Basis;
use crate::dirent::{self, EntryRef};
use crate::keys;
use crate::kv::{Answer, Key, KvError, Pairs, unseal};
use crate::mds::Mds;
use crate::quota::Charges;
use crate::record::{Inode, InodeFlags};
use crate::sharing::Footprint;
use crate::store::Overlay;

/// Why an operation did not go through (yet).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fail {
    /// It fails.
    Fs(FsError),
    /// A read is being fetched; run it again.
    Fetch,
    /// This OST's pool of ready objects is empty; run it again when it is filled.
    Objects(OstIndex),
}

impl From<FsError> for Fail {
    fn from(e: FsError) -> Fail {
        Fail::Fs(e)
    }
}

/// An operation's outcome.
pub type Done<T> = Result<T, Fail>;

/// A key and its value.
pub type Pair = (Key, Vec<u8>);

/// What an operation changes about an inode, in lock bits: others' locks on them must be gone first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Claim {
    /// The inode.
    pub fid: Fid,
    /// [`wire::mdt::LockBits`].
    pub bits: u8,
}

enum Wanted {
    Key(Key, LocalFuture<Result<Option<Vec<u8>>, KvError>>),
    Range(Key, LocalFuture<Result<Pairs, KvError>>),
}

/// Reads that had to be fetched, kept for the next run of the same operation.
#[derive(Default)]
pub struct Fetched {
    generation: u64,
    keys: BTreeMap<Key, Option<Vec<u8>>>,
    ranges: BTreeMap<Key, Pairs>,
    wanted: Option<Wanted>,
}

impl Fetched {
    /// Waits for the read that the last run missed.
    ///
    /// # Errors
    /// As the engine answers.
    pub async fn fetch(&mut self) -> Result<(), KvError> {
        match self.wanted.take() {
            Some(Wanted::Key(k, f)) => {
                let v = f.await?;
                self.keys.insert(k, v);
            }
            Some(Wanted::Range(k, f)) => {
                let v = f.await?;
                self.ranges.insert(k, v);
            }
            None => {}
        }
        Ok(())
    }
}

/// See the module's head.
pub struct Tx<'a> {
    /// The node.
    pub(crate) mds: &'a Mds,
    fetched: &'a mut Fetched,
    /// Whose operation.
    pub client: ClientId,
    /// One time for the whole operation.
    pub now: WallTime,
    /// The transaction it becomes when it changes something.
    pub transno: u64,
    /// The directory that is the client's root.
    pub(crate) root: Fid,
    /// It was answered before a restart.
    pub replay: bool,
    /// The client's credential limits what it may do: what it says was permitted and answered before is not believed.
    pub(crate) limited: bool,
    /// What that credential says; `None`: there is none.
    pub(crate) limits: Option<std::sync::Arc<ptlrpc::Limits>>,
    /// Remember the answer although nothing in the store changes (opens).
    pub remember: bool,
    pub(crate) puts: SmallVec<[(Key, Option<Vec<u8>>); 8]>,
    pub(crate) claims: SmallVec<[Claim; 4]>,
    pub(crate) inode_delta: i64,
    /// It makes an inode.
    pub(crate) made: bool,
    /// Whom it makes more or fewer inodes count for.
    pub(crate) charges: Charges,
    /// Rows of the logs of what OSTs are owed, for those who carry it out.
    pub(crate) owed: crate::owed::Rows,
    /// Inodes that it looked at.
    pub(crate) seen: SmallVec<[Fid; 4]>,
    /// Files that get other objects by it.
    pub(crate) exchanged: SmallVec<[Fid; 2]>,
    /// Records that it writes to the changelog.
    pub(crate) recorded: u64,
    /// What it rests on so far.
    pub(crate) basis: Basis,
    /// Keys that it read and wrote so far.
    pub(crate) footprint: Footprint,
    /// Objects taken from pools; given back when the operation does not go through.
    pub(crate) taken: Vec<layout::StripeObject>,
    /// Objects that this replay has claimed; they count as lost again when it does not go through.
    pub(crate) claimed: Vec<layout::StripeObject>,
}

impl<'a> Tx<'a> {
    pub(crate) fn new(mds: &'a Mds, fetched: &'a mut Fetched, client: ClientId, transno: u64, replay: bool) -> Tx<'a> {
        let generation = mds.store.generation.get();
        if fetched.generation != generation {
            *fetched = Fetched { generation, ..Fetched::default() };
        }
        Tx {
            mds,
            fetched,
            client,
            now: mds.clock(),
            transno,
            root: Fid::ROOT,
            replay,
            limited: false,
            limits: None,
            remember: false,
            puts: SmallVec::new(),
            claims: SmallVec::new(),
            inode_delta: 0,
            made: false,
            charges: Charges::default(),
            owed: Vec::new(),
            seen: SmallVec::new(),
            exchanged: SmallVec::new(),
            recorded: 0,
            basis: Basis::default(),
            footprint: Footprint::default(),
            taken: Vec::new(),
            claimed: Vec::new(),
        }
    }

    /// It goes through, and its objects are not given back. Those that were taken from pools.
    pub(crate) fn keeps_objects(&mut self) -> Vec<layout::StripeObject> {
        self.claimed.clear();
        std::mem::take(&mut self.taken)
    }

    /// Whether it was permitted before a restart, for all that matters here: no checks of rights, no surprises.
    #[must_use]
    pub(crate) fn is_trusted(&self) -> bool {
        self.replay && !self.limited
    }

    /// Whether it changes the store.
    #[must_use]
    pub fn changes(&self) -> bool {
        !self.puts.is_empty()
    }

    /// This transaction's FID: at most one inode is made per transaction, so the transaction's number names it, and a
    /// replay makes the same one.
    #[must_use]
    pub fn new_fid(&self) -> Fid {
        Fid::new(Fid::MDT_SEQ_FIRST + (self.transno >> 32), self.transno as u32)
    }

    /// Says that `bits` of `fid` change.
    pub fn claim(&mut self, fid: Fid, bits: u64) {
        let bits = bits as u8;
        match self.claims.iter_mut().find(|c| c.fid == fid) {
            Some(c) => c.bits |= bits,
            None => self.claims.push(Claim { fid, bits }),
        }
    }

    /// Sets or removes a key.
    pub fn put(&mut self, key: Key, value: Option<Vec<u8>>) {
        self.footprint.writes(&key);
        self.add_up(key, value);
    }
    /// [`Tx::put`] of a change that may be made before or after those of others.
    pub(crate) fn add_up(&mut self, key: Key, value: Option<Vec<u8>>) {
        match self.puts.iter_mut().find(|(k, _)| *k == key) {
            Some((_, v)) => *v = value,
            None => self.puts.push((key, value)),
        }
    }

    /// Reads a key.
    ///
    /// # Errors
    /// `Fetch` when it has to be waited for; `Io`, `Corrupt`.
    pub fn read<T>(&mut self, key: &Key, f: impl FnOnce(Option<&[u8]>) -> T) -> Done<T> {
        if let Some((_, v)) = self.puts.iter().find(|(k, _)| k == key) {
            return Ok(f(v.as_deref()));
        }
        self.footprint.reads(key);
        let f = match self.mds.store.pending(key, f) {
            Ok(v) => return Ok(v),
            Err(f) => f,
        };
        let sealed = if let Some(v) = self.fetched.keys.get(key) {
            v.clone()
        } else {
            let answer = self.mds.store.snapshot.borrow().get(key);
            match answer {
                Answer::Now(r) => r.map_err(store_failed)?,
                Answer::Later(future) => {
                    self.fetched.wanted = Some(Wanted::Key(key.clone(), future));
                    return Err(Fail::Fetch);
                }
            }
        };
        match sealed {
            None => Ok(f(None)),
            Some(v) => Ok(f(Some(&unseal(key, v).map_err(store_failed)?))),
        }
    }

    /// At most `limit` pairs of `from..to` in order, and the key to go on from (`None`: that was all).
    ///
    /// # Errors
    /// As [`Tx::read`].
    pub fn range(&mut self, from: &Key, to: &Key, limit: usize) -> Done<(Vec<Pair>, Option<Key>)> {
        let pairs = if let Some(v) = self.fetched.ranges.get(from) {
            v.clone()
        } else {
            let answer = self.mds.store.snapshot.borrow().range(from, to, limit);
            match answer {
                Answer::Now(r) => r.map_err(store_failed)?,
                Answer::Later(future) => {
                    self.fetched.wanted = Some(Wanted::Range(from.clone(), future));
                    return Err(Fail::Fetch);
                }
            }
        };
        let bound = if pairs.len() >= limit { pairs.last().map(|(k, _)| k.clone()) } else { None };
        let mut merged: Overlay = BTreeMap::new();
        for (k, v) in pairs {
            let v = unseal(&k, v).map_err(store_failed)?;
            merged.insert(Key::from_slice(&k), Some(v));
        }
        self.mds.store.overlay_range(from, to, bound.as_deref(), &mut merged);
        for (k, v) in
            self.puts.iter().filter(|(k, _)| k >= from && k < to && bound.as_ref().is_none_or(|b| k[..] <= b[..]))
        {
            merged.insert(k.clone(), v.clone());
        }
        let next = bound.map(|b| {
            let mut k = Key::from_vec(b);
            k.push(0);
            k
        });
        Ok((merged.into_iter().filter_map(|(k, v)| Some((k, v?))).collect(), next))
    }

    /// An inode, if it exists.
    ///
    /// # Errors
    /// As [`Tx::read`].
    pub fn find_inode(&mut self, fid: Fid) -> Done<Option<Inode>> {
        let key = keys::inode(fid);
        self.seen.push(fid);
        let found = self.read(&key, |v| v.map(|b| Inode::decode(fid, b)))?;
        match found {
            None => Ok(None),
            Some(Some(mut inode)) => {
                if inode.sized < self.mds.horizon.before.get() && inode.is_file() {
                    inode.set(InodeFlags::SIZE_UNKNOWN, true);
                }
                Ok(Some(inode))
            }
            Some(None) => Err(damaged(&key, "not an inode record")),
        }
    }
    /// An inode that a client named by FID.
    ///
    /// # Errors
    /// `Stale` when it is gone.
    pub fn inode(&mut self, fid: Fid) -> Done<Inode> {
        self.find_inode(fid)?.ok_or(Fail::Fs(FsError::Stale))
    }
    /// An inode that the store itself refers to.
    ///
    /// # Errors
    /// `Corrupt` when it does not exist.
    pub fn inode_of_store(&mut self, fid: Fid) -> Done<Inode> {
        self.find_inode(fid)?.ok_or_else(|| damaged(&keys::inode(fid), "an entry names it, but it does not exist"))
    }
    /// A directory that a client named by FID and that still has a name.
    ///
    /// # Errors
    /// `NotDirectory`; `NotFound` when it was removed.
    pub fn live_dir(&mut self, fid: Fid) -> Done<Inode> {
        let dir = self.inode(fid)?;
        if !dir.is_dir() {
            return Err(FsError::NotDirectory.into());
        }
        if dir.has(InodeFlags::ORPHAN) {
            return Err(FsError::NotFound.into());
        }
        Ok(dir)
    }
    /// Writes an inode.
    pub fn put_inode(&mut self, inode: &Inode) {
        self.put(keys::inode(inode.fid), Some(inode.encode()));
    }
    /// Writes a directory of which names were made or removed: its times, and how many it has.
    pub fn put_counts(&mut self, dir: &Inode) {
        self.add_up(keys::inode(dir.fid), Some(dir.encode()));
    }

    /// The entry of a name: (inode, cookie, DT_* type).
    ///
    /// # Errors
    /// As [`Tx::read`].
    pub fn find_entry(&mut self, dir: Fid, name: &[u8]) -> Done<Option<(Fid, u64, u8)>> {
        let hash = self.mds.hash.of(name);
        let at = |e: EntryRef<'_>| (e.fid, hash << dirent::SLOT_BITS | u64::from(e.slot), e.dtype);
        self.read_bucket(dir, hash, |b| dirent::find(b, name).map(at))
    }
    /// The entry at a cookie: (name, inode).
    ///
    /// # Errors
    /// As [`Tx::read`].
    pub fn entry_at(&mut self, dir: Fid, cookie: u64) -> Done<Option<(Vec<u8>, Fid)>> {
        let slot = (cookie & (dirent::COOKIE_MIN - 1)) as u8;
        let pick = |b: &[u8]| dirent::entries(b).find(|e| e.slot == slot).map(|e| (e.name.to_vec(), e.fid));
        self.read_bucket(dir, dirent::hash_of(cookie), pick)
    }
    fn read_bucket<T>(&mut self, dir: Fid, hash: u64, f: impl FnOnce(&[u8]) -> Option<T>) -> Done<Option<T>> {
        let key = keys::entry(dir, hash);
        let found = self.read(&key, |v| match v {
            None => Ok(None),
            Some(b) if dirent::is_legal(b) => Ok(f(b)),
            Some(_) => Err(()),
        })?;
        found.map_err(|()| damaged(&key, "not a bucket of entries"))
    }
    fn bucket(&mut self, dir: Fid, hash: u64) -> Done<(Key, Vec<u8>)> {
        let found = self.read_bucket(dir, hash, |b| Some(b.to_vec()))?;
        Ok((keys::entry(dir, hash), found.unwrap_or_default()))
    }
    /// Adds a name that is not there; answers its cookie.
    ///
    /// # Errors
    /// `NoSpace` when 128 names with the same hash exist.
    pub fn add_entry(&mut self, dir: Fid, name: &[u8], fid: Fid, dtype: u8) -> Done<u64> {
        let hash = self.mds.hash.of(name);
        let (key, bucket) = self.bucket(dir, hash)?;
        let (bucket, slot) = dirent::with(&bucket, name, fid, dtype).ok_or(FsError::NoSpace)?;
        self.put(key, Some(bucket));
        Ok(hash << dirent::SLOT_BITS | u64::from(slot))
    }
    /// Removes the name at a cookie.
    ///
    /// # Errors
    /// As [`Tx::read`].
    pub fn remove_entry(&mut self, dir: Fid, cookie: u64) -> Done<()> {
        let (key, bucket) = self.bucket(dir, dirent::hash_of(cookie))?;
        let left = dirent::without(&bucket, (cookie & (dirent::COOKIE_MIN - 1)) as u8);
        self.put(key, left);
        Ok(())
    }
    /// Binds the name at a cookie to another inode.
    ///
    /// # Errors
    /// As [`Tx::read`].
    pub fn rebind_entry(&mut self, dir: Fid, cookie: u64, fid: Fid, dtype: u8) -> Done<()> {
        let (key, bucket) = self.bucket(dir, dirent::hash_of(cookie))?;
        let bucket = dirent::rebound(&bucket, (cookie & (dirent::COOKIE_MIN - 1)) as u8, fid, dtype);
        self.put(key, Some(bucket));
        Ok(())
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if !self.taken.is_empty() {
            self.mds.pools.borrow_mut().give_back(&self.taken);
        }
        if !self.claimed.is_empty() {
            self.mds.pools.borrow_mut().not_replayed(&self.claimed);
        }
    }
}

fn store_failed(e: KvError) -> Fail {
    tracing::error!("{e}");
    Fail::Fs(e.into())
}

pub(crate) fn damaged(key: &[u8], why: &str) -> Fail {
    tracing::error!(key = crate::kv::show_key(key), "damaged record: {why}");
    Fail::Fs(FsError::Corrupt)
}
