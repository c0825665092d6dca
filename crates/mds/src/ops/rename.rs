//! rename, with NOREPLACE, EXCHANGE and WHITEOUT.
use types::{Fid, FsError};
use wire::changelog::{ChangeKind, ChangeRecord};
use wire::mdt::{LockBits, RenameRequest};

use super::{DEPTH_MAX, EntryOut, NAME_BYTES_MAX, check_name, is_dots};
use crate::perm::{MAY_EXEC, MAY_WRITE};
use crate::record::{Inode, S_IFCHR};
use crate::tx::{Done, Tx};

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
/// A device without a number takes the place of what is moved: for union mounts, whose lower layer may have the name, too.
const WHITEOUT: u32 = 4;

/// A name and what it stands for.
struct Named {
    inode: Inode,
    cookie: u64,
}

impl Tx<'_> {
    /// See the module's head. Answers the moved inode and the new directory.
    pub(crate) fn rename(&mut self, q: &RenameRequest) -> Done<EntryOut> {
        if q.flags & !(NOREPLACE | EXCHANGE | WHITEOUT) != 0 || q.flags & EXCHANGE != 0 && q.flags != EXCHANGE {
            return Err(FsError::Invalid.into());
        }
        if q.from_name.len() > NAME_BYTES_MAX || q.to_name.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong.into());
        }
        if is_dots(&q.from_name) || is_dots(&q.to_name) {
            let refuse = if q.flags & NOREPLACE != 0 { FsError::Exists } else { FsError::Busy };
            return Err(refuse.into());
        }
        check_name(&q.from_name)?;
        check_name(&q.to_name)?;
        let from = self.live_dir(q.from)?;
        let to = if q.to == q.from { from.clone() } else { self.live_dir(q.to)? };
        self.may(&q.cred, &from, MAY_EXEC)?;
        self.may(&q.cred, &to, MAY_EXEC)?;
        let source = self.named(from.fid, &q.from_name)?.ok_or(FsError::NotFound)?;
        let target = self.named(to.fid, &q.to_name)?;
        match &target {
            Some(_) if q.flags & NOREPLACE != 0 => return Err(FsError::Exists.into()),
            None if q.flags & EXCHANGE != 0 => return Err(FsError::NotFound.into()),
            _ => {}
        }
        self.check_subtrees(q, &source.inode, target.as_ref().map(|t| &t.inode))?;
        self.may_remove(&q.cred, &from, &source.inode)?;
        match &target {
            Some(t) => self.may_remove(&q.cred, &to, &t.inode)?,
            None => self.may_change_dir(&q.cred, &to)?,
        }
        if source.inode.is_dir() && q.from != q.to {
            self.may(&q.cred, &source.inode, MAY_WRITE)?;
        }
        self.rests_on_name(from.fid, &q.from_name, Some(source.inode.fid));
        self.rests_on_name(to.fid, &q.to_name, target.as_ref().map(|t| t.inode.fid));
        self.rests_on_rights(&from)?;
        self.rests_on_rights(&to)?;
        if let Some(t) = &target {
            self.rests_on_names_left(&t.inode);
        }
        match target {
            Some(t) if t.inode.fid == source.inode.fid => {
                let mut out = self.entry(source.inode, false)?;
                out.parent = Some(to);
                Ok(out)
            }
            Some(t) if q.flags & EXCHANGE != 0 => self.exchange(q, from, to, source, t),
            target => self.move_over(q, from, to, source, target),
        }
    }

    fn named(&mut self, dir: Fid, name: &[u8]) -> Done<Option<Named>> {
        let Some((fid, cookie, _)) = self.find_entry(dir, name)? else { return Ok(None) };
        Ok(Some(Named { inode: self.inode_of_store(fid)?, cookie }))
    }

    /// A directory must not become its own descendant.
    fn check_subtrees(&mut self, q: &RenameRequest, source: &Inode, target: Option<&Inode>) -> Done<()> {
        if q.from == q.to {
            return Ok(());
        }
        if source.is_dir() && self.is_below(q.to, source.fid)? {
            return Err(FsError::Invalid.into());
        }
        if let Some(t) = target.filter(|t| t.is_dir())
            && self.is_below(q.from, t.fid)?
        {
            let refuse = if q.flags & EXCHANGE != 0 { FsError::Invalid } else { FsError::NotEmpty };
            return Err(refuse.into());
        }
        Ok(())
    }

    /// Whether `dir` is `above` or lies below it.
    fn is_below(&mut self, dir: Fid, above: Fid) -> Done<bool> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Ok(true);
            }
            if at == Fid::ROOT || at.is_zero() {
                return Ok(false);
            }
            at = self.inode_of_store(at)?.parent;
        }
        Err(FsError::Loop.into())
    }

    fn move_over(
        &mut self,
        q: &RenameRequest,
        from: Inode,
        to: Inode,
        source: Named,
        target: Option<Named>,
    ) -> Done<EntryOut> {
        let mut moved = source.inode;
        let moves_dir = moved.is_dir();
        if let Some(t) = &target {
            match (moves_dir, t.inode.is_dir()) {
                (true, false) => return Err(FsError::NotDirectory.into()),
                (false, true) => return Err(FsError::IsDirectory.into()),
                (true, true) if t.inode.entries > 0 => return Err(FsError::NotEmpty.into()),
                _ => {}
            }
        }
        let replaces = target.is_some();
        let cookie = match &target {
            Some(t) => {
                self.rebind_entry(to.fid, t.cookie, moved.fid, moved.dtype())?;
                t.cookie
            }
            None => self.add_entry(to.fid, &q.to_name, moved.fid, moved.dtype())?,
        };
        let stays = q.flags & WHITEOUT != 0;
        if !stays && !types::planted!("rename-half-done") {
            self.remove_entry(from.fid, source.cookie)?;
        }
        self.remove_link(&mut moved, from.fid, source.cookie)?;
        self.add_link(&mut moved, to.fid, cookie);
        moved.ctime = self.now;
        self.put_inode(&moved);
        self.claim(moved.fid, LockBits::LOOKUP | LockBits::UPDATE);
        let gone_dir = target.as_ref().is_some_and(|t| t.inode.is_dir());
        let mut gone = None;
        if let Some(mut t) = target {
            self.lose_name(&mut t.inode, to.fid, t.cookie)?;
            gone = Some(t.inode);
        }
        self.record_rename(q, moved.fid, gone.as_ref());
        let whiteout = if stays { Some(self.leave_whiteout(q, &from, source.cookie)?) } else { None };
        let leaving = (i64::from(stays) - 1, -i32::from(moves_dir));
        let arriving = (i64::from(!replaces), i32::from(moves_dir) - i32::from(gone_dir));
        let to = self.touch_both(from, to, leaving, arriving);
        let mut out = self.entry(moved, false)?;
        (out.parent, out.given) = (Some(to), whiteout);
        Ok(out)
    }

    /// The old name stands for a whiteout from now on.
    fn leave_whiteout(&mut self, q: &RenameRequest, from: &Inode, cookie: u64) -> Done<Fid> {
        let mut gone = self.new_inode(&q.cred, from, S_IFCHR, (0, 0), (&[], &q.proof))?;
        (gone.parent, gone.place) = (from.fid, cookie);
        self.rebind_entry(from.fid, cookie, gone.fid, gone.dtype())?;
        self.put_inode(&gone);
        self.record(ChangeKind::Mknod, Some(&q.cred), |r| {
            (r.target, r.parent, r.name) = (gone.fid, from.fid, q.from_name.clone());
        });
        Ok(gone.fid)
    }

    /// `other`: the inode that had the new name.
    fn record_rename(&mut self, q: &RenameRequest, moved: Fid, other: Option<&Inode>) {
        self.record(ChangeKind::Rename, Some(&q.cred), |r| {
            (r.parent, r.name) = (q.to, q.to_name.clone());
            (r.source, r.source_parent, r.source_name) = (moved, q.from, q.from_name.clone());
            r.target = other.map_or(Fid::ZERO, |g| g.fid);
            r.flags = match other {
                Some(_) if q.flags & EXCHANGE != 0 => ChangeRecord::EXCHANGED,
                Some(g) if g.nlink == 0 => ChangeRecord::LAST_NAME,
                _ => 0,
            };
        });
    }

    /// Stores both directories (perhaps the same) with their changes; answers the new one.
    fn touch_both(&mut self, mut from: Inode, mut to: Inode, leaving: (i64, i32), arriving: (i64, i32)) -> Inode {
        self.claim(from.fid, LockBits::UPDATE);
        self.claim(to.fid, LockBits::UPDATE);
        if from.fid == to.fid {
            self.touch_dir(&mut to, leaving.0 + arriving.0, leaving.1 + arriving.1);
        } else {
            self.touch_dir(&mut from, leaving.0, leaving.1);
            self.touch_dir(&mut to, arriving.0, arriving.1);
        }
        to
    }

    fn exchange(&mut self, q: &RenameRequest, from: Inode, to: Inode, a: Named, b: Named) -> Done<EntryOut> {
        if b.inode.is_dir() && q.from != q.to {
            self.may(&q.cred, &b.inode, MAY_WRITE)?;
        }
        let (mut moved, mut back) = (a.inode, b.inode);
        self.rebind_entry(from.fid, a.cookie, back.fid, back.dtype())?;
        self.rebind_entry(to.fid, b.cookie, moved.fid, moved.dtype())?;
        self.remove_link(&mut moved, from.fid, a.cookie)?;
        self.add_link(&mut moved, to.fid, b.cookie);
        self.remove_link(&mut back, to.fid, b.cookie)?;
        self.add_link(&mut back, from.fid, a.cookie);
        for inode in [&mut moved, &mut back] {
            inode.ctime = self.now;
            self.put_inode(inode);
            self.claim(inode.fid, LockBits::LOOKUP | LockBits::UPDATE);
        }
        self.record_rename(q, moved.fid, Some(&back));
        let subdirs = i32::from(moved.is_dir()) - i32::from(back.is_dir());
        let to = self.touch_both(from, to, (0, -subdirs), (0, subdirs));
        let mut out = self.entry(moved, false)?;
        out.parent = Some(to);
        Ok(out)
    }
}
