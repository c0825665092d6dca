//! POSIX ACLs: the xattr value, who is permitted, how mode bits and ACL follow each other.
//!
//! Source: POSIX 1003.1e draft 17 section 23, with the xattr format and the order of checks of Linux.
use wire::mdt::Cred;

use crate::perm::in_group;

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
/// Entries one ACL has at most; the value then is 8,196 bytes.
pub const ACL_ENTRIES_MAX: usize = 1024;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// An ACL that is legal: entries in order, the three base entries once, a mask when named entries exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Reads an xattr value; `None` when it is not a legal ACL. An empty list of entries is no ACL either.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Acl> {
        let (head, body) = value.split_at_checked(4)?;
        if u32::from_le_bytes(head.try_into().ok()?) != VERSION || body.len() % ENTRY_BYTES != 0 {
            return None;
        }
        if body.len() / ENTRY_BYTES > ACL_ENTRIES_MAX {
            return None;
        }
        let entries = body.chunks_exact(ENTRY_BYTES).map(|c| Entry {
            tag: u16::from_le_bytes([c[0], c[1]]),
            perm: u16::from_le_bytes([c[2], c[3]]),
            id: u32::from_le_bytes([c[4], c[5], c[6], c[7]]),
        });
        let acl = Acl { entries: entries.collect() };
        acl.is_legal().then_some(acl)
    }

    /// Whether the value is a header without entries: what removes an ACL.
    #[must_use]
    pub fn is_empty_value(value: &[u8]) -> bool {
        value.is_empty() || value == VERSION.to_le_bytes()
    }

    fn is_legal(&self) -> bool {
        let mut last: Option<Entry> = None;
        let mut named = false;
        for e in &self.entries {
            if e.perm & !7 != 0 {
                return false;
            }
            let ordered = match (last.map(|l| l.tag), e.tag) {
                (None, tag) => tag == USER_OBJ,
                (Some(l), tag @ (USER | GROUP)) if l == tag => last.is_some_and(|l| l.id < e.id),
                (Some(l), tag) => l < tag,
            };
            if !ordered || ![USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER].contains(&e.tag) {
                return false;
            }
            if matches!(e.tag, USER | GROUP) {
                named = true;
                if e.id == NO_ID {
                    return false;
                }
            }
            last = Some(*e);
        }
        let has = |tag| self.entries.iter().any(|e| e.tag == tag);
        has(USER_OBJ) && has(GROUP_OBJ) && has(OTHER) && (!named || has(MASK))
    }

    /// The same for other ids of users and groups; named entries for which there is none go.
    #[must_use]
    pub fn with_ids(&self, uid: impl Fn(u32) -> Option<u32>, gid: impl Fn(u32) -> Option<u32>) -> Acl {
        let map = |e: &Entry| match e.tag {
            USER => uid(e.id).map(|id| Entry { id, ..*e }),
            GROUP => gid(e.id).map(|id| Entry { id, ..*e }),
            _ => Some(*e),
        };
        let mut entries: Vec<Entry> = self.entries.iter().filter_map(map).collect();
        entries.sort_by_key(|e| (e.tag, if matches!(e.tag, USER | GROUP) { e.id } else { NO_ID }));
        Acl { entries }
    }
    /// How many entries it has.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an ACL always has entries")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The xattr value.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + self.entries.len() * ENTRY_BYTES);
        out.extend_from_slice(&VERSION.to_le_bytes());
        for e in &self.entries {
            out.extend_from_slice(&e.tag.to_le_bytes());
            out.extend_from_slice(&e.perm.to_le_bytes());
            let id = if matches!(e.tag, USER | GROUP) { e.id } else { NO_ID };
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    fn perm_of(&self, tag: u16) -> Option<u16> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }
    fn perm_mut(&mut self, tag: u16) -> Option<&mut u16> {
        self.entries.iter_mut().find(|e| e.tag == tag).map(|e| &mut e.perm)
    }

    /// The nine permission bits that show this ACL: owner, mask (else group), other.
    #[must_use]
    pub fn mode_bits(&self) -> u32 {
        let bits = |tag| u32::from(self.perm_of(tag).unwrap_or(0));
        let group = self.perm_of(MASK).map_or_else(|| bits(GROUP_OBJ), u32::from);
        bits(USER_OBJ) << 6 | group << 3 | bits(OTHER)
    }

    /// Whether it says nothing that the mode bits do not say.
    #[must_use]
    pub fn is_trivial(&self) -> bool {
        self.entries.iter().all(|e| matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// Whether a caller who is not privileged may do all of `want` (4 read, 2 write, 1 execute).
    #[must_use]
    pub fn permits(&self, cred: &Cred, uid: u32, gid: u32, want: u32) -> bool {
        let want = want as u16;
        let mask = self.perm_of(MASK).unwrap_or(7);
        if cred.uid == uid {
            return self.perm_of(USER_OBJ).unwrap_or(0) & want == want;
        }
        if let Some(e) = self.entries.iter().find(|e| e.tag == USER && e.id == cred.uid) {
            return e.perm & mask & want == want;
        }
        let mut in_some_group = false;
        for e in self.entries.iter().filter(|e| matches!(e.tag, GROUP_OBJ | GROUP)) {
            if in_group(cred, if e.tag == GROUP_OBJ { gid } else { e.id }) {
                in_some_group = true;
                if e.perm & want == want {
                    return e.perm & mask & want == want;
                }
            }
        }
        !in_some_group && self.perm_of(OTHER).unwrap_or(0) & want == want
    }

    /// After a chmod: owner, mask (else group) and other become what the mode says.
    pub fn follow_mode(&mut self, mode: u32) {
        let group = if self.perm_of(MASK).is_some() { MASK } else { GROUP_OBJ };
        for (tag, shift) in [(USER_OBJ, 6), (group, 3), (OTHER, 0)] {
            if let Some(perm) = self.perm_mut(tag) {
                *perm = (mode >> shift & 7) as u16;
            }
        }
    }

    /// What a new inode gets from its directory's default ACL: its access ACL and its nine mode bits. The mode asked
    /// for takes rights away; the umask has no say.
    #[must_use]
    pub fn inherit(mut self, mode: u32) -> (Acl, u32) {
        self.restrict(USER_OBJ, mode >> 6);
        let group = if self.perm_of(MASK).is_some() { MASK } else { GROUP_OBJ };
        self.restrict(group, mode >> 3);
        self.restrict(OTHER, mode);
        let bits = self.mode_bits();
        (self, bits)
    }
    fn restrict(&mut self, tag: u16, by: u32) {
        if let Some(perm) = self.perm_mut(tag) {
            *perm &= (by & 7) as u16;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries.iter().map(|(tag, perm, id)| Entry { tag: *tag, perm: *perm, id: *id }).collect();
        Acl { entries }.encode()
    }
    fn cred(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid, groups: groups.into(), caps: 0, job: 0 }
    }
    fn named() -> Acl {
        Acl::parse(&acl(&[(1, 7, 0), (2, 6, 10), (4, 5, 0), (8, 2, 20), (16, 6, 0), (32, 1, 0)])).unwrap()
    }

    #[test]
    fn values_out_of_order_incomplete_or_with_odd_bits_are_refused() {
        assert!(Acl::parse(&acl(&[(1, 7, 0), (4, 5, 0), (32, 0, 0)])).is_some());
        for bad in [
            &[(1, 7, 0), (4, 5, 0)][..],
            &[(4, 5, 0), (1, 7, 0), (32, 0, 0)],
            &[(1, 7, 0), (2, 6, 10), (4, 5, 0), (32, 0, 0)],
            &[(1, 8, 0), (4, 5, 0), (32, 0, 0)],
            &[(1, 7, 0), (2, 6, 10), (2, 6, 10), (4, 5, 0), (16, 7, 0), (32, 0, 0)],
            &[(1, 7, 0), (1, 7, 0), (4, 5, 0), (32, 0, 0)],
        ] {
            assert_eq!(Acl::parse(&acl(bad)), None, "{bad:?}");
        }
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), None);
        assert!(Acl::is_empty_value(&[2, 0, 0, 0]));
    }

    #[test]
    fn the_owner_is_checked_first_then_named_users_then_groups_then_others() {
        let a = named();
        assert!(a.permits(&cred(1, 0, &[]), 1, 100, 7));
        assert!(a.permits(&cred(10, 0, &[]), 1, 100, 6));
        assert!(!a.permits(&cred(10, 100, &[]), 1, 100, 1), "a named user is not also looked up as group member");
        assert!(a.permits(&cred(11, 100, &[]), 1, 100, 4));
        assert!(!a.permits(&cred(11, 100, &[]), 1, 100, 1), "the mask takes execute away");
        assert!(a.permits(&cred(11, 0, &[20]), 1, 100, 2));
        assert!(!a.permits(&cred(11, 0, &[20]), 1, 100, 1), "a group member never falls through to others");
        assert!(a.permits(&cred(12, 0, &[]), 1, 100, 1));
        assert!(!a.permits(&cred(12, 0, &[]), 1, 100, 4));
    }

    #[test]
    fn chmod_sets_the_mask_and_the_mode_shows_it() {
        let mut a = named();
        assert_eq!(a.mode_bits(), 0o761);
        a.follow_mode(0o640);
        assert_eq!(a.mode_bits(), 0o640);
        assert!(a.permits(&cred(10, 0, &[]), 1, 100, 4) && !a.permits(&cred(10, 0, &[]), 1, 100, 2));
    }

    #[test]
    fn a_default_acl_is_cut_by_the_mode_asked_for() {
        let (child, bits) = named().inherit(0o640);
        assert_eq!(bits, 0o640);
        assert!(!child.permits(&cred(10, 0, &[]), 1, 100, 2));
        let plain = Acl::parse(&acl(&[(1, 7, 0), (4, 5, 0), (32, 0, 0)])).unwrap();
        assert!(plain.is_trivial());
        assert_eq!(plain.inherit(0o666).1, 0o640);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_bytes_are_read_without_a_panic_and_what_parses_encodes_to_a_legal_acl(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(a) = Acl::parse(&bytes) {
                prop_assert!(Acl::parse(&a.encode()).is_some());
            }
        }
    }
}
