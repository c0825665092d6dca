//! What a transaction rested on: one number of the facts that decide what it does.
//!
//! An answer tells it (`wire::Flags::BASIS`), a replay repeats it. When a client has not come back after a restart, what it
//! had done is missing, and a replay of another client is carried out only where it would find what it found: otherwise it
//! might remove or replace what its program never saw. Facts are values, not versions of whole inodes: names and what they
//! stand for, who owns a directory and who may write to it, link counts. So changes that nothing rests on (times, sizes, other
//! names of the same directory) make nobody's replay fail, and nothing more is stored than before.
//! Source: version-based recovery of Lustre. Differs: values are compared where Lustre compares versions of objects.
use types::Fid;

use crate::keys;
use crate::perm::{ACL_ACCESS, ACL_DEFAULT};
use crate::record::{Inode, InodeFlags};
use crate::tx::{Done, Tx};

/// Facts so far, in the order in which they were noted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Basis(u64);

impl Basis {
    fn note(&mut self, fact: u64) {
        // The finalizer of splitmix64: every bit of the fact reaches every bit of the number.
        let mut x = self.0.rotate_left(5) ^ fact.wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        self.0 = (x ^ x >> 31).max(1);
    }
    /// The number; 0: nothing was noted, it is not compared.
    pub(crate) fn number(self) -> u64 {
        self.0
    }
    /// Whether a replay finds what it found when it was carried out first: `before`. What is not known is not compared.
    pub(crate) fn allows(self, before: u64) -> bool {
        before == 0 || self.0 == 0 || self.0 == before
    }
}

fn of_fid(fid: Fid) -> [u64; 2] {
    [fid.seq, u64::from(fid.oid) << 32 | u64::from(fid.ver)]
}

impl Tx<'_> {
    /// It rests on these facts.
    pub(crate) fn rests_on(&mut self, facts: &[u64]) {
        facts.iter().for_each(|f| self.basis.note(*f));
    }
    /// It rests on the inode's being there.
    pub(crate) fn rests_on_inode(&mut self, fid: Fid) {
        self.rests_on(&of_fid(fid));
    }
    /// It rests on what a name stands for; `None`: on its being free.
    pub(crate) fn rests_on_name(&mut self, dir: Fid, name: &[u8], stands_for: Option<Fid>) {
        let hash = self.mds.hash.of(name);
        self.rests_on_inode(dir);
        self.rests_on(&[hash]);
        self.rests_on_inode(stands_for.unwrap_or_default());
    }
    /// It rests on how many names a file has: without one that is missing it would be gone.
    pub(crate) fn rests_on_names_left(&mut self, inode: &Inode) {
        self.rests_on(&[if inode.is_dir() { 0 } else { inode.nlink.into() }]);
    }
    /// It rests on who owns the inode, who may do what to it, and what new inodes inherit of it.
    ///
    /// # Errors
    /// As [`Tx::read`].
    pub(crate) fn rests_on_rights(&mut self, inode: &Inode) -> Done<()> {
        let inherited = InodeFlags::HAS_ACL | InodeFlags::HAS_DEFAULT_ACL;
        self.rests_on_inode(inode.fid);
        let owner = u64::from(inode.uid) << 32 | u64::from(inode.gid);
        let rest = u64::from(inode.mode) << 32 | u64::from(inode.project);
        self.rests_on(&[owner, rest, u64::from(inode.flags & inherited)]);
        for (flag, name) in [(InodeFlags::HAS_ACL, ACL_ACCESS), (InodeFlags::HAS_DEFAULT_ACL, ACL_DEFAULT)] {
            if inode.has(flag) {
                let acl =
                    self.read(&keys::xattr(inode.fid, name), |v| u64::from(wire::crc32c(v.unwrap_or_default())))?;
                self.rests_on(&[acl]);
            }
        }
        Ok(())
    }
    /// It rests on the file's layout, or on its having none.
    pub(crate) fn rests_on_layout(&mut self, inode: &Inode) {
        self.rests_on_inode(inode.fid);
        self.rests_on(&[u64::from(inode.layout_gen), u64::from(inode.flags & InodeFlags::HAS_LAYOUT)]);
    }
    /// It was carried out already, as far as is known: nothing is to be compared.
    pub(crate) fn rests_on_nothing(&mut self) {
        self.basis = Basis::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(facts: &[u64]) -> Basis {
        let mut basis = Basis::default();
        facts.iter().for_each(|f| basis.note(*f));
        basis
    }

    #[test]
    fn facts_count_with_their_order_and_nothing_is_compared_with_the_unknown() {
        let all = [of(&[1, 2]), of(&[2, 1]), of(&[1]), of(&[2]), of(&[1, 2, 0]), of(&[0])];
        for (i, a) in all.iter().enumerate() {
            for (k, b) in all.iter().enumerate() {
                assert_eq!(a.allows(b.number()), i == k, "{a:?} {b:?}");
            }
            assert!(a.allows(0) && Basis::default().allows(a.number()));
        }
    }
}
