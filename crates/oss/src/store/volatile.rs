//! What stores without a disk have in common: a table of objects, and books that are committed at once.
use std::collections::BTreeMap;
use std::ops::Bound;

use rt::LocalFuture;
use types::{ClientId, Fid, FsError, ObjectId, Transno};

use super::{ObjectAttr, ObjectInfo, SizeRule, Space, StoreResult, Update};

/// Objects, each a `T`, and what a store knows besides their content.
#[derive(Default)]
pub(super) struct Books<T> {
    pub objects: BTreeMap<ObjectId, T>,
    pub sessions: BTreeMap<ClientId, u64>,
    pub transno: Transno,
    last: BTreeMap<u64, u32>,
}

impl<T: Default> Books<T> {
    pub fn find(&mut self, object: ObjectId) -> StoreResult<&mut T> {
        self.objects.get_mut(&object).ok_or(FsError::NotFound)
    }
    /// Makes the objects of a sequence up to `to`.
    pub fn create(&mut self, seq: u64, to: u32) {
        let last = self.last.entry(seq).or_default();
        for oid in *last + 1..=to {
            self.objects.insert(ObjectId(Fid::new(seq, oid)), T::default());
        }
        *last = to.max(*last);
    }
    pub fn last_object(&self, seq: u64) -> u32 {
        self.last.get(&seq).copied().unwrap_or(0)
    }
    pub fn list(&self, after: ObjectId, count: usize, attr: impl Fn(&T) -> ObjectAttr) -> Vec<ObjectInfo> {
        let behind = self.objects.range((Bound::Excluded(after), Bound::Unbounded)).take(count);
        behind.map(|(id, object)| ObjectInfo { object: *id, attr: attr(object) }).collect()
    }
    pub fn space(&self, total: u64, free: u64) -> Space {
        let objects = self.objects.len() as u64;
        Space { total, free, ready: free, objects, objects_free: u64::from(u32::MAX) - objects }
    }
    /// A change is made, and made again under its number in a replay: the number.
    pub fn commit(&mut self, replay: Option<Transno>) -> Transno {
        let transno = replay.unwrap_or(Transno(self.transno.0.saturating_add(1)));
        self.transno = self.transno.max(transno);
        transno
    }
}

pub(super) fn ready<T: 'static>(value: T) -> LocalFuture<T> {
    Box::pin(std::future::ready(value))
}

/// Applies a size rule.
///
/// # Errors
/// `FileTooBig` above `max`.
pub fn apply_size(attr: &mut ObjectAttr, rule: SizeRule, max: u64) -> StoreResult<()> {
    let size = match rule {
        SizeRule::Keep => attr.size,
        SizeRule::AtLeast(n) => attr.size.max(n),
        SizeRule::Exactly(n) => n,
    };
    if size > max {
        return Err(FsError::FileTooBig);
    }
    attr.size = size;
    Ok(())
}

/// Applies times and owner.
pub fn apply_attr(attr: &mut ObjectAttr, update: &Update) {
    attr.mtime = update.mtime.apply(attr.mtime);
    attr.atime = update.atime.apply(attr.atime);
    attr.ctime = attr.ctime.max(update.ctime);
    attr.owner = update.owner.apply(attr.owner);
}
