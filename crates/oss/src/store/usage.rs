//! Whose the space of objects is: counts of blocks by user, group and project, as stores keep them.
use std::collections::{BTreeMap, BTreeSet};

use wire::quota::QuotaKind;

use super::{ObjectAttr, Owner};

/// A user, a group or a project that has space.
pub type Charged = (QuotaKind, u32);

impl Owner {
    /// Whom an object with this owner counts for: project 0 is none.
    pub fn charged(&self) -> impl Iterator<Item = Charged> + use<> {
        let all = [(QuotaKind::User, self.uid), (QuotaKind::Group, self.gid), (QuotaKind::Project, self.project)];
        all.into_iter().filter(|(kind, id)| *kind != QuotaKind::Project || *id != 0)
    }
}

/// Blocks of everybody. An object without an owner counts for nobody.
#[derive(Clone, Default, Debug)]
pub struct Usages {
    blocks: BTreeMap<Charged, u64>,
    changed: BTreeSet<Charged>,
}

impl Usages {
    /// Counts of before.
    #[must_use]
    pub fn of_rows(rows: impl IntoIterator<Item = (Charged, u64)>) -> Usages {
        Usages { blocks: rows.into_iter().collect(), changed: BTreeSet::new() }
    }
    /// The counts of these objects.
    #[must_use]
    pub fn of_objects<'a>(objects: impl IntoIterator<Item = &'a ObjectAttr>) -> Usages {
        let mut usages = Usages::default();
        objects.into_iter().for_each(|attr| usages.charge(&ObjectAttr::default(), attr));
        usages
    }
    /// An object changes.
    pub fn charge(&mut self, before: &ObjectAttr, after: &ObjectAttr) {
        if (before.blocks, before.owner) == (after.blocks, after.owner) {
            return;
        }
        let charged = |attr: &ObjectAttr| attr.owner.into_iter().flat_map(|o| o.charged());
        for who in charged(before) {
            let blocks = self.blocks.entry(who).or_default();
            *blocks = blocks.saturating_sub(before.blocks);
            self.changed.insert(who);
        }
        for who in charged(after) {
            *self.blocks.entry(who).or_default() += after.blocks;
            self.changed.insert(who);
        }
    }
    /// Blocks of one.
    #[must_use]
    pub fn of(&self, who: Charged) -> u64 {
        self.blocks.get(&who).copied().unwrap_or(0)
    }
    /// Everybody who has some.
    pub fn iter(&self) -> impl Iterator<Item = (Charged, u64)> + '_ {
        self.blocks.iter().filter(|(_, blocks)| **blocks > 0).map(|(who, blocks)| (*who, *blocks))
    }
    /// Counts that have changed since this was asked before.
    pub fn take_changed(&mut self) -> Vec<(Charged, u64)> {
        let changed: Vec<_> = std::mem::take(&mut self.changed).into_iter().map(|who| (who, self.of(who))).collect();
        self.blocks.retain(|_, blocks| *blocks > 0);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_moves_with_its_owner_and_without_one_counts_for_nobody() {
        let attr = |blocks, owner: Option<(u32, u32, u32)>| ObjectAttr {
            blocks,
            owner: owner.map(|(uid, gid, project)| Owner { uid, gid, project }),
            ..ObjectAttr::default()
        };
        let mut u = Usages::default();
        u.charge(&attr(0, None), &attr(5, None));
        assert_eq!(u.take_changed(), []);
        u.charge(&attr(5, None), &attr(7, Some((1, 2, 0))));
        assert_eq!(u.take_changed(), [((QuotaKind::User, 1), 7), ((QuotaKind::Group, 2), 7)]);
        u.charge(&attr(7, Some((1, 2, 0))), &attr(4, Some((1, 3, 9))));
        let wanted = [((QuotaKind::User, 1), 4), ((QuotaKind::Group, 3), 4), ((QuotaKind::Project, 9), 4)];
        assert_eq!(u.iter().collect::<Vec<_>>(), wanted);
        assert_eq!(u.take_changed().len(), 4, "who has nothing left, too");
        u.charge(&attr(4, Some((1, 3, 9))), &attr(0, None));
        assert_eq!(u.iter().count(), 0);
        assert_eq!(
            Usages::of_objects(&[attr(2, Some((1, 1, 0))), attr(3, Some((1, 2, 0)))]).of((QuotaKind::User, 1)),
            5
        );
    }
}
