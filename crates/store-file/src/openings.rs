//! The marks of a store's openings, by which the cluster tells the store from an older copy of it.
//!
//! Every opening draws a mark. It is kept once the metadata server is about to be told of it: only such a mark can be the one that was let in
//! last, and a server that fails before it comes so far, however often, displaces none. The first mark of a store is kept at once.
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition};
use types::Transno;
use wire::connect::Opening;

use crate::db::DbResult;

/// Marks of the store's openings: of the first one that is known, and of the last [`OPENINGS_MAX`] of which the metadata server was told.
pub(crate) const OPENINGS: TableDefinition<u64, u64> = TableDefinition::new("openings");
/// Openings whose marks are kept beside the first one.
pub(crate) const OPENINGS_MAX: u64 = 4096;

/// All openings that are known, this one last. The first one stays, so that it shows that those which follow it are not all.
pub(crate) fn known(txn: &redb::WriteTransaction, now: Opening) -> DbResult<Vec<Opening>> {
    let mut table = txn.open_table(OPENINGS)?;
    if table.is_empty()? {
        table.insert(now.boot, now.mark)?;
    }
    let mut all = Vec::new();
    for row in table.range(..now.boot)? {
        let (boot, mark) = row?;
        // Of the others it is not kept what was committed.
        all.push(Opening { boot: boot.value(), mark: mark.value(), committed: Transno::default() });
    }
    all.push(now);
    Ok(all)
}

/// Keeps the mark of an opening; the oldest ones behind the first go.
pub(crate) fn keep(txn: &redb::WriteTransaction, boot: u64, mark: u64) -> DbResult<()> {
    let mut table = txn.open_table(OPENINGS)?;
    table.insert(boot, mark)?;
    let surplus = table.len()?.saturating_sub(OPENINGS_MAX + 1);
    let mut oldest = Vec::new();
    for row in table.iter()?.skip(1).take(surplus as usize) {
        oldest.push(row?.0.value());
    }
    for boot in oldest {
        table.remove(boot)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::db::{Db, DbOp};
    use crate::format::Superblock;
    use oss::store::StoreIdentity;
    use types::OstIndex;

    /// A store that is opened again and again, each time under the number of the opening as its mark.
    struct Opened(Db, Superblock, u64);
    impl Opened {
        fn new() -> Opened {
            let backend = redb::backends::InMemoryBackend::new();
            let db = Db::new(redb::Database::builder().create_with_backend(backend).unwrap());
            let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
            let superblock = Superblock { identity, capacity_bytes: 0, lost_through: 0 };
            db.make(&superblock).unwrap();
            Opened(db, superblock, 0)
        }
        fn open(&mut self) -> Vec<u64> {
            self.2 += 1;
            let all = self.0.start(self.1.clone(), self.2).unwrap().openings;
            assert!(all.iter().all(|o| o.boot == o.mark), "{all:?}");
            all.iter().map(|o| o.mark).collect()
        }
        fn tell(&self) {
            self.0.commit(&[DbOp::Mark(self.2, self.2)], Transno(1), 0).unwrap();
        }
    }

    #[test]
    fn a_mark_that_was_told_stays_through_any_number_of_openings_that_tell_none() {
        let mut store = Opened::new();
        store.open();
        store.open();
        store.tell();
        for _ in 0..OPENINGS_MAX + 2 {
            store.open();
        }
        let now = store.2 + 1;
        assert_eq!(store.open(), [1, 2, now]);
    }

    #[test]
    fn of_marks_that_were_told_the_first_one_and_the_last_ones_stay() {
        let mut store = Opened::new();
        for _ in 0..OPENINGS_MAX + 3 {
            store.open();
            store.tell();
        }
        let all = store.open();
        assert_eq!((all[0], all[1], all.len() as u64), (1, 4, OPENINGS_MAX + 2));
        assert!(all.is_sorted());
    }
}
