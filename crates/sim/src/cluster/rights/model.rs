//! What a user may do with an inode: modes and ACLs as POSIX has them.
use std::collections::BTreeMap;

use types::{Fid, FsError, Rng};
use wire::mdt::Cred;

/// A user with groups.
#[derive(Clone, Debug)]
pub struct User {
    pub uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// Groups that exist.
const GROUPS: [u32; 3] = [100, 200, 300];
/// Users besides root.
const USERS: [u32; 3] = [1001, 1002, 1003];

impl User {
    /// Root, and three who share groups with each other.
    pub fn some() -> Vec<User> {
        let user = |uid, gid, groups: &[u32]| User { uid, gid, groups: groups.to_vec() };
        let [a, b, c] = USERS;
        vec![user(0, 0, &[]), user(a, 100, &[200]), user(b, 100, &[]), user(c, 300, &[200])]
    }
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
    pub fn cred(&self) -> Cred {
        Cred { uid: self.uid, gid: self.gid, groups: self.groups[..].into(), ..Cred::default() }
    }
}

/// A group that exists.
pub fn some_group(rng: &mut Rng) -> u32 {
    GROUPS[rng.below(3) as usize]
}
/// Nine bits, those of the owner most often set, and now and then set-user-ID and set-group-ID.
pub fn some_mode(rng: &mut Rng) -> u32 {
    let owner = if rng.chance(0.7) { 0o700 } else { 0 };
    let ids = if rng.chance(0.4) { rng.below(4) as u32 * 0o2000 } else { 0 };
    ids | owner | rng.below(0o1000) as u32
}

/// An ACL: what POSIX calls its entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    owner: u16,
    users: BTreeMap<u32, u16>,
    group: u16,
    groups: BTreeMap<u32, u16>,
    mask: u16,
    other: u16,
}

impl Acl {
    /// One with named entries, and so with a mask.
    pub fn some(rng: &mut Rng) -> Acl {
        let mut perm = || rng.below(8) as u16;
        let (owner, group, mask, other) = (perm() | 6, perm(), perm() | perm(), perm());
        let (named, members) = (perm(), perm());
        let mut users = BTreeMap::from([(USERS[rng.below(3) as usize], named)]);
        if rng.chance(0.3) {
            users.insert(USERS[rng.below(3) as usize], rng.below(8) as u16);
        }
        let groups = if rng.chance(0.5) { BTreeMap::from([(some_group(rng), members)]) } else { BTreeMap::new() };
        Acl { owner, users, group, groups, mask, other }
    }
    /// The value of its xattr: tags, bits and ids behind a version, in the order of the tags.
    pub fn encode(&self) -> Vec<u8> {
        const NOBODY: u32 = u32::MAX;
        let mut entries = vec![(1_u16, self.owner, NOBODY)];
        entries.extend(self.users.iter().map(|(id, perm)| (2, *perm, *id)));
        entries.push((4, self.group, NOBODY));
        entries.extend(self.groups.iter().map(|(id, perm)| (8, *perm, *id)));
        entries.extend([(16, self.mask, NOBODY), (32, self.other, NOBODY)]);
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            value.extend(tag.to_le_bytes().into_iter().chain(perm.to_le_bytes()).chain(id.to_le_bytes()));
        }
        value
    }
    /// What such a value says; `None` for one that is not of this program.
    pub fn decode(value: &[u8]) -> Option<Acl> {
        let mut acl = Acl { owner: 8, users: BTreeMap::new(), group: 8, groups: BTreeMap::new(), mask: 8, other: 8 };
        for e in value.get(4..)?.as_chunks::<8>().0 {
            let perm = u16::from_le_bytes([e[2], e[3]]);
            let id = u32::from_le_bytes([e[4], e[5], e[6], e[7]]);
            match e[0] {
                1 => acl.owner = perm,
                2 => drop(acl.users.insert(id, perm)),
                4 => acl.group = perm,
                8 => drop(acl.groups.insert(id, perm)),
                16 => acl.mask = perm,
                32 => acl.other = perm,
                _ => return None,
            }
        }
        (acl.encode() == value).then_some(acl)
    }
    fn mode(&self) -> u32 {
        u32::from(self.owner) << 6 | u32::from(self.mask) << 3 | u32::from(self.other)
    }
    /// What somebody who is neither root nor the owner may.
    fn permits(&self, by: &User, gid: u32, want: u16) -> bool {
        if let Some(perm) = self.users.get(&by.uid) {
            return perm & self.mask & want == want;
        }
        let own = by.is_in(gid).then_some(self.group);
        let named = self.groups.iter().filter(|(g, _)| by.is_in(**g)).map(|(_, perm)| *perm);
        let of_groups: Vec<u16> = own.into_iter().chain(named).collect();
        if of_groups.is_empty() {
            return self.other & want == want;
        }
        of_groups.iter().any(|perm| perm & self.mask & want == want)
    }
}

/// An inode's rights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub fid: Fid,
    pub uid: u32,
    pub gid: u32,
    /// Bits below the type's.
    pub mode: u32,
    pub acl: Option<Acl>,
    pub default: Option<Acl>,
}

impl Node {
    /// Whether a user may read (4), write (2), search or run (1): all of `want`.
    pub fn must_permit(&self, by: &User, want: u16) -> Result<(), FsError> {
        let bits = |shift: u32| (self.mode >> shift) as u16 & want == want;
        let may = match &self.acl {
            _ if by.is_root() => true,
            _ if by.uid == self.uid => bits(6),
            // As Linux has it: where the mask gives nothing away, named users and groups are nobody in particular.
            Some(acl) if self.mode & 0o70 != 0 => acl.permits(by, self.gid, want),
            _ if by.is_in(self.gid) => bits(3),
            _ => bits(0),
        };
        if may { Ok(()) } else { Err(FsError::Access) }
    }
    /// Whether a user may take the name of a node out of this directory.
    pub fn must_let_remove(&self, by: &User, node: &Node) -> Result<(), FsError> {
        self.must_permit(by, 3)?;
        let keeps = self.mode & 0o1000 != 0 && !by.is_root() && by.uid != node.uid && by.uid != self.uid;
        if keeps { Err(FsError::NotPermitted) } else { Ok(()) }
    }
    /// chmod(2) by a user: set-group-ID is for members of the group.
    pub fn change_mode(&mut self, by: &User, mode: u32) {
        self.set_mode(mode);
        self.keep_set_group_id(by);
    }
    /// An access ACL that a user gives, as chmod(2).
    pub fn change_acl(&mut self, by: &User, acl: Option<Acl>) {
        let given = acl.is_some();
        self.set_acl(acl);
        if given {
            self.keep_set_group_id(by);
        }
    }
    fn keep_set_group_id(&mut self, by: &User) {
        if !by.is_root() && !by.is_in(self.gid) {
            self.mode &= !0o2000;
        }
    }
    /// A write by somebody else than root, or chown(2) by anybody. Without execution by the group, set-group-ID means something else and
    /// stays for its members.
    pub fn lose_set_ids(&mut self, by: &User) {
        self.mode &= !0o4000;
        if self.mode & 0o10 != 0 {
            self.mode &= !0o2000;
        }
        self.keep_set_group_id(by);
    }
    /// An ACL's owner, mask and others follow the mode.
    fn set_mode(&mut self, mode: u32) {
        self.mode = mode;
        if let Some(acl) = &mut self.acl {
            let bits = |shift: u32| (mode >> shift & 7) as u16;
            (acl.owner, acl.mask, acl.other) = (bits(6), bits(3), bits(0));
        }
    }
    /// The mode shows what the ACL says; without one it stays.
    pub fn set_acl(&mut self, acl: Option<Acl>) {
        if let Some(acl) = &acl {
            self.mode = self.mode & !0o777 | acl.mode();
        }
        self.acl = acl;
    }
    /// A file that a user makes here.
    pub fn child(&self, by: &User, mode: u32, umask: u32, fid: Fid) -> Node {
        let mut child = Node { fid, uid: by.uid, gid: by.gid, mode, acl: None, default: None };
        if self.mode & 0o2000 != 0 {
            child.gid = self.gid;
        }
        if mode & 0o2010 == 0o2010 {
            child.keep_set_group_id(by);
        }
        if let Some(default) = &self.default {
            let mut acl = default.clone();
            acl.owner &= (mode >> 6 & 7) as u16;
            acl.mask &= (mode >> 3 & 7) as u16;
            acl.other &= (mode & 7) as u16;
            child.set_acl(Some(acl));
        } else {
            child.mode &= !umask;
        }
        child
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_comes_first_then_named_users_then_groups_then_others() {
        let [root, a, b, c] = <[User; 4]>::try_from(User::some()).unwrap();
        let mut node = Node { fid: Fid::ROOT, uid: 1001, gid: 100, mode: 0o640, acl: None, default: None };
        assert_eq!([&root, &a, &b, &c].map(|u| node.must_permit(u, 2).is_ok()), [true, true, false, false]);
        assert_eq!([&root, &a, &b, &c].map(|u| node.must_permit(u, 4).is_ok()), [true, true, true, false]);
        let users = BTreeMap::from([(1003, 6)]);
        node.set_acl(Some(Acl { owner: 4, users, group: 7, groups: BTreeMap::new(), mask: 6, other: 1 }));
        assert_eq!(node.mode, 0o461);
        assert_eq!([&a, &b, &c].map(|u| node.must_permit(u, 2).is_ok()), [false, true, true]);
        node.set_mode(0o604);
        assert_eq!([&a, &b, &c].map(|u| node.must_permit(u, 4).is_ok()), [true, false, true], "no mask: no names");
        node.set_mode(0o600);
        assert_eq!([&a, &b, &c].map(|u| node.must_permit(u, 2).is_ok()), [true, false, false]);
        assert_eq!(Acl::decode(&node.acl.as_ref().unwrap().encode()), node.acl);
    }
}
