//! Extended attributes: name spaces, rights, limits; ACLs and layouts among them.
use types::FsError;
use types::advise::LEVEL_XATTRS;
use wire::Bytes;
use wire::changelog::ChangeKind;
use wire::mdt::{Cred, LockBits, SetxattrRequest, XattrRequest};

use super::lov::{LOV, STORED_LOV, TRUSTED_LOV};
use crate::acl::Acl;
use crate::keys;
use crate::perm::{ACL_ACCESS, ACL_DEFAULT, MAY_READ, MAY_WRITE, is_privileged, keeps_setgid};
use crate::record::{Inode, InodeFlags, S_ISGID, S_ISVTX};
use crate::tx::{Done, Tx};

/// Longest name in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Longest value in bytes.
const VALUE_BYTES_MAX: usize = 65_536;
/// Names of one inode together, as listxattr shows them.
const LIST_BYTES_MAX: usize = 65_536;
/// Bytes of the names that a list has besides those that are stored.
const LISTED_BYTES: usize = LOV.len() + 1 + ADVICE[0].len() + 1;
/// Names and values of one inode together: what has to be read to list them, and held meanwhile.
const ALL_BYTES_MAX: usize = 4 << 20;
const SCAN_KEYS: usize = 1024;

/// xattrs that show and set the advice that new files of a directory get. That of a file is its objects' business.
const ADVICE: [&[u8]; 2] = [LEVEL_XATTRS[0].to_bytes(), LEVEL_XATTRS[1].to_bytes()];

const CREATE: u32 = 1;
const REPLACE: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
    Acl,
    Lov,
    StoredLov,
    LovPart,
    Advice,
}

fn space_of(name: &[u8]) -> Done<Space> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::Range.into());
    }
    if name == LOV || name == TRUSTED_LOV {
        return Ok(Space::Lov);
    }
    if ADVICE.contains(&name) {
        return Ok(Space::Advice);
    }
    if name == STORED_LOV {
        return Ok(Space::StoredLov);
    }
    if name.starts_with(b"lustre.lov.") {
        return Ok(Space::LovPart);
    }
    if name == ACL_ACCESS || name == ACL_DEFAULT {
        return Ok(Space::Acl);
    }
    for (prefix, space) in
        [(&b"user."[..], Space::User), (b"trusted.", Space::Trusted), (b"security.", Space::Security)]
    {
        if let Some(rest) = name.strip_prefix(prefix) {
            return if rest.is_empty() || rest.contains(&0) { Err(FsError::Invalid.into()) } else { Ok(space) };
        }
    }
    Err(FsError::NotSupported.into())
}

impl Tx<'_> {
    /// One value.
    pub(crate) fn getxattr(&mut self, q: &XattrRequest) -> Done<Vec<u8>> {
        let space = space_of(&q.name)?;
        let inode = self.inode(q.fid)?;
        match space {
            Space::Lov if &q.name[..] == TRUSTED_LOV && !is_privileged(&q.cred) => return Err(FsError::NoData.into()),
            Space::Lov => return self.get_lov(&inode),
            Space::StoredLov => return self.get_stored_lov(&inode),
            Space::LovPart => return Err(FsError::NotSupported.into()),
            Space::Trusted if !is_privileged(&q.cred) => return Err(FsError::NoData.into()),
            Space::Advice => return self.get_advice(q, &inode),
            Space::User => {
                if !inode.is_file() && !inode.is_dir() {
                    return Err(FsError::NoData.into());
                }
                self.may(&q.cred, &inode, MAY_READ)?;
            }
            _ => {}
        }
        self.read(&keys::xattr(q.fid, &q.name), |v| v.map(<[u8]>::to_vec))?.ok_or(FsError::NoData.into())
    }

    /// The names that the caller may see.
    pub(crate) fn listxattr(&mut self, q: &XattrRequest) -> Done<Vec<Bytes>> {
        let inode = self.inode(q.fid)?;
        let mut names = self.xattr_names(&inode)?;
        names.retain(|n| &n[..] != LOV && (!n.starts_with(b"trusted.") || is_privileged(&q.cred)));
        if inode.flags & (InodeFlags::HAS_LAYOUT | InodeFlags::HAS_DIR_LAYOUT) != 0 {
            names.push(Bytes(LOV.to_vec()));
        }
        if inode.is_dir() && inode.advice() != 0 {
            names.push(Bytes(ADVICE[0].to_vec()));
        }
        Ok(names)
    }

    /// The level that new files of a directory get; of a file nothing, to those who may read it.
    fn get_advice(&mut self, q: &XattrRequest, inode: &Inode) -> Done<Vec<u8>> {
        if &q.name[..] == ADVICE[1] && !is_privileged(&q.cred) {
            return Err(FsError::NoData.into());
        }
        self.may(&q.cred, inode, MAY_READ)?;
        let level = wire::ost::Advice::LEVELS.get(usize::from(inode.advice())).filter(|_| inode.is_dir());
        level
            .filter(|(a, _)| *a != wire::ost::Advice::None)
            .map(|(_, name)| name.as_bytes().to_vec())
            .ok_or(FsError::NoData.into())
    }

    /// Gives a directory a level for new files and directories in it.
    fn set_advice(&mut self, q: &SetxattrRequest, inode: &mut Inode) -> Done<()> {
        if &q.name[..] == ADVICE[1] && !is_privileged(&q.cred) {
            return Err(FsError::NotPermitted.into());
        }
        if !inode.is_dir() {
            return Err(FsError::NotSupported.into());
        }
        self.must_own(&q.cred, inode)?;
        check_flags(q, inode.advice() != 0)?;
        let text = q.value.as_deref().unwrap_or(b"none").trim_ascii();
        let level = wire::ost::Advice::LEVELS.iter().position(|(_, name)| name.as_bytes() == text);
        inode.set_advice(level.ok_or(FsError::Invalid)? as u16);
        self.xattrs_changed(inode, LockBits::XATTR | LockBits::UPDATE);
        Ok(())
    }

    fn xattr_names(&mut self, inode: &Inode) -> Done<Vec<Bytes>> {
        Ok(self.xattr_sizes(inode)?.into_iter().map(|(name, _)| name).collect())
    }

    /// Names with the bytes of their values.
    fn xattr_sizes(&mut self, inode: &Inode) -> Done<Vec<(Bytes, usize)>> {
        let mut sizes = Vec::new();
        let (mut from, to) = keys::of_fid(keys::XATTR, inode.fid);
        loop {
            let (pairs, next) = self.range(&from, &to, SCAN_KEYS)?;
            sizes.extend(pairs.iter().map(|(k, v)| (Bytes(k[17..].to_vec()), v.len())));
            match next {
                Some(next) => from = next,
                None => return Ok(sizes),
            }
        }
    }

    /// Whether a name with so many bytes of value may be beside the others.
    fn has_room(&mut self, inode: &Inode, name: &[u8], bytes: usize) -> Done<bool> {
        let others = self.xattr_sizes(inode)?;
        let others = others.iter().filter(|(n, _)| &n[..] != name);
        let (list, all) = others.fold((0, 0), |(list, all), (n, v)| (list + n.len() + 1, all + n.len() + v));
        Ok(list + name.len() + LISTED_BYTES < LIST_BYTES_MAX && all + name.len() + bytes <= ALL_BYTES_MAX)
    }

    /// Sets or removes a value. Answers the layout that a file got by it, as stored.
    pub(crate) fn setxattr(&mut self, q: &SetxattrRequest) -> Done<Vec<u8>> {
        let space = space_of(&q.name)?;
        if q.value.as_ref().is_some_and(|v| v.len() > VALUE_BYTES_MAX) {
            return Err(FsError::TooBig.into());
        }
        let mut inode = self.inode(q.fid)?;
        match space {
            Space::Acl => self.rests_on_rights(&inode)?,
            Space::Lov | Space::StoredLov => self.rests_on_layout(&inode),
            _ => self.rests_on_inode(inode.fid),
        }
        let before = self.puts.len();
        let given = self.set_in(space, q, &mut inode)?;
        if self.puts.len() > before {
            let layout = matches!(space, Space::Lov | Space::StoredLov);
            let kind = if layout { ChangeKind::Layout } else { ChangeKind::Xattr };
            self.record(kind, Some(&q.cred), |r| (r.target, r.name) = (q.fid, q.name.clone()));
        }
        Ok(given)
    }

    fn set_in(&mut self, space: Space, q: &SetxattrRequest, inode: &mut Inode) -> Done<Vec<u8>> {
        match space {
            Space::Lov if &q.name[..] == TRUSTED_LOV && !is_privileged(&q.cred) => Err(FsError::NotPermitted.into()),
            Space::Lov => self.set_lov(q, inode),
            Space::StoredLov => self.set_stored_lov(q, inode),
            Space::LovPart => Err(FsError::NotSupported.into()),
            Space::Advice => self.set_advice(q, inode).map(|()| Vec::new()),
            Space::Acl => self.set_acl(q, inode).map(|()| Vec::new()),
            Space::User | Space::Trusted | Space::Security => {
                let is_gone = q.value.is_none() && q.name[..] == *b"security.capability";
                if is_gone && !is_privileged(&q.cred) {
                    // Whoever writes takes it away. Of programs that ask for it their kernel wants more.
                    self.may(&q.cred, inode, MAY_WRITE)?;
                } else {
                    self.may_set(&q.cred, inode, space, &q.name)?;
                }
                self.set_plain(q, inode).map(|()| Vec::new())
            }
        }
    }

    fn may_set(&mut self, cred: &Cred, inode: &Inode, space: Space, name: &[u8]) -> Done<()> {
        if is_privileged(cred) && space != Space::User {
            return Ok(());
        }
        match space {
            Space::User if !inode.is_file() && !inode.is_dir() => Err(FsError::NotPermitted.into()),
            Space::User => {
                if inode.is_dir() && inode.mode & S_ISVTX != 0 {
                    self.must_own(cred, inode)?;
                }
                self.may(cred, inode, MAY_WRITE)
            }
            // Labels that a client's kernel sets on its own account when it makes a file.
            Space::Security
                if name != b"security.capability" && cred.uid == inode.uid && inode.ctime == inode.btime =>
            {
                Ok(())
            }
            _ if self.is_trusted() => Ok(()),
            _ => Err(FsError::NotPermitted.into()),
        }
    }

    fn set_plain(&mut self, q: &SetxattrRequest, inode: &mut Inode) -> Done<()> {
        let key = keys::xattr(q.fid, &q.name);
        let before = self.read(&key, |v| v.map(<[u8]>::len))?;
        check_flags(q, before.is_some())?;
        let grows = q.value.as_ref().filter(|v| before.is_none_or(|before| v.len() > before));
        if let Some(value) = grows
            && !self.replay
            && !self.has_room(inode, &q.name, value.len())?
        {
            return Err(FsError::NoSpace.into());
        }
        if !self.replay || !types::planted!("xattr-not-replayed") {
            self.put(key, q.value.as_ref().map(|v| v.0.clone()));
        }
        if q.value.is_some() {
            inode.set(InodeFlags::HAS_XATTRS, true);
        } else {
            let own = |n: &Bytes| ![ACL_ACCESS, ACL_DEFAULT, LOV].contains(&&n[..]);
            let more = self.xattr_names(inode)?.iter().any(own);
            inode.set(InodeFlags::HAS_XATTRS, more);
        }
        self.xattrs_changed(inode, LockBits::XATTR | LockBits::UPDATE);
        Ok(())
    }

    fn xattrs_changed(&mut self, inode: &mut Inode, bits: u64) {
        inode.ctime = self.now;
        self.put_inode(inode);
        self.claim(inode.fid, bits);
    }

    fn set_acl(&mut self, q: &SetxattrRequest, inode: &mut Inode) -> Done<()> {
        if inode.is_symlink() {
            return Err(FsError::NotSupported.into());
        }
        self.must_own(&q.cred, inode)?;
        let access = &q.name[..] == ACL_ACCESS;
        let flag = if access { InodeFlags::HAS_ACL } else { InodeFlags::HAS_DEFAULT_ACL };
        let value = q.value.as_deref().filter(|v| !Acl::is_empty_value(v));
        let mut acl = value.map(|v| Acl::parse(v).ok_or(FsError::Invalid)).transpose()?;
        if !access && !inode.is_dir() {
            return if acl.is_some() { Err(FsError::Access.into()) } else { Ok(()) };
        }
        let exists = inode.has(flag);
        if q.value.is_some() {
            check_flags(q, exists)?;
        } else if !exists {
            // An access ACL is always there, as mode bits; removing it twice is no mistake on Linux.
            return Ok(());
        }
        if access && let Some(a) = &acl {
            inode.mode = inode.mode & !0o777 | a.mode_bits();
            if !keeps_setgid(&q.cred, inode.gid) {
                inode.mode &= !S_ISGID;
            }
            acl = acl.filter(|a| !a.is_trivial());
        }
        inode.set(flag, acl.is_some());
        self.put(keys::xattr(inode.fid, &q.name), acl.map(|a| a.encode()));
        self.xattrs_changed(inode, LockBits::XATTR | LockBits::UPDATE | LockBits::PERM | LockBits::LOOKUP);
        Ok(())
    }
}

fn check_flags(q: &SetxattrRequest, exists: bool) -> Done<()> {
    match (&q.value, exists) {
        (Some(_), true) if q.flags & CREATE != 0 => Err(FsError::Exists.into()),
        (Some(_), false) if q.flags & REPLACE != 0 => Err(FsError::NoData.into()),
        (None, false) => Err(FsError::NoData.into()),
        _ => Ok(()),
    }
}
