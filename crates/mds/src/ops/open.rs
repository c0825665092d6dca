//! Open: by name or FID, with create, truncate, O_TMPFILE; and its replay.
use types::{Fid, FsError, HandleId};
use wire::changelog::ChangeKind;
use wire::mdt::{Cred, LockBits, OpenRequest};

use super::{EntryOut, is_dots};
use crate::keys;
use crate::perm::{MAY_EXEC, MAY_READ, MAY_WRITE, kill_set_ids};
use crate::record::{Inode, InodeFlags, S_IFREG, S_IFSOCK};
use crate::tx::{Done, Tx};

/// Linux open flags that mean something to a server (x86-64 values).
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFlags(pub u32);
impl OpenFlags {
    const ACCMODE: u32 = 3;
    const WRONLY: u32 = 1;
    const RDWR: u32 = 2;
    /// Set by the kernel when a program is executed.
    const EXEC: u32 = 0o40;
    const CREAT: u32 = 0o100;
    const EXCL: u32 = 0o200;
    const TRUNC: u32 = 0o1000;
    const DIRECTORY: u32 = 0o200_000;
    const NOATIME: u32 = 0o1_000_000;
    const PATH: u32 = 0o10_000_000;
    const TMPFILE: u32 = 0o20_200_000;

    fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
    fn writes(self) -> bool {
        !self.has(Self::PATH) && matches!(self.0 & Self::ACCMODE, Self::WRONLY | Self::RDWR)
    }
    fn truncates(self, inode: &Inode) -> bool {
        self.has(Self::TRUNC) && inode.is_file() && !self.has(Self::PATH)
    }
    fn wanted_rights(self) -> u32 {
        if self.has(Self::PATH) {
            return 0;
        }
        let read = if self.has(Self::EXEC) { MAY_EXEC } else { MAY_READ };
        let by_mode = match self.0 & Self::ACCMODE {
            0 => read,
            Self::WRONLY => MAY_WRITE,
            _ => MAY_READ | MAY_WRITE,
        };
        by_mode | if self.has(Self::TRUNC) { MAY_WRITE } else { 0 }
    }
}

/// Whether an open with these flags may write.
pub(crate) fn writes(flags: u32) -> bool {
    OpenFlags(flags).writes()
}

/// Whether an open with these flags may neither read nor write.
pub(crate) fn is_path(flags: u32) -> bool {
    OpenFlags(flags).has(OpenFlags::PATH)
}

/// What an open answers; the handle is made with the answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenOut {
    pub entry: EntryOut,
    pub created: bool,
    pub writes: bool,
    pub uid: u32,
    pub path: bool,
    /// Set in replays.
    pub handle: HandleId,
    /// Set in replays: whether it is told as state, or a transaction.
    pub told: Option<bool>,
    /// The size was wrong before this open already.
    pub suspect: bool,
    pub known_layout: u32,
}

/// Opens that a client may say it has after a restart, where `mds.opens_max` is not more: its default.
const TOLD_OPENS_MAX: usize = 1 << 18;

impl Tx<'_> {
    /// See the module's head.
    pub(crate) fn open(&mut self, q: &OpenRequest) -> Done<OpenOut> {
        let flags = OpenFlags(q.flags);
        self.remember = true;
        if self.replay && !self.mds.is_of_earlier_start(q.handle.0) {
            return Err(FsError::Invalid.into());
        }
        let (opens_max, mut handles) = (self.mds.config.opens_max, self.mds.handles.borrow_mut());
        // What was granted before a restart stays granted, also when fewer are since.
        let admitted = if self.replay {
            handles.get(self.client, q.handle).is_some() || handles.admit(self.client, 0, opens_max.max(TOLD_OPENS_MAX))
        } else {
            handles.admit(self.client, q.cred.uid, opens_max)
        };
        drop(handles);
        if !admitted {
            return Err(FsError::TooManyOpen.into());
        }
        let mut out = self.open_inode(q, flags)?;
        (out.entry.bits, out.entry.cookie) = (q.lock_bits, q.lock_cookie);
        (out.writes, out.uid, out.path) = (flags.writes(), q.cred.uid, flags.has(OpenFlags::PATH));
        out.known_layout = q.known_layout;
        if self.replay {
            (out.handle, out.told) = (q.handle, Some(self.transno == 0));
        }
        Ok(out)
    }

    fn open_inode(&mut self, q: &OpenRequest, flags: OpenFlags) -> Done<OpenOut> {
        if self.replay {
            let fid = if q.fid.is_zero() { self.new_fid() } else { q.fid };
            if let Some(inode) = self.find_inode(fid)? {
                // The number of its transaction, which its client tells, may be that of somebody else's file.
                let within = self.is_within(fid)?;
                return if within { self.reopen(q, inode, flags) } else { Err(FsError::Stale.into()) };
            }
            if self.transno == 0 {
                return Err(FsError::Stale.into());
            }
        }
        if flags.has(OpenFlags::TMPFILE) {
            return self.open_tmpfile(q, flags);
        }
        let creates = flags.has(OpenFlags::CREAT);
        if creates && flags.has(OpenFlags::DIRECTORY) {
            return Err(FsError::Invalid.into());
        }
        let Some(fid) = self.target_of_open(q)? else {
            return if creates { self.open_new(q) } else { Err(FsError::NotFound.into()) };
        };
        if creates && flags.has(OpenFlags::EXCL) && !q.name.is_empty() {
            return Err(FsError::Exists.into());
        }
        let inode = if q.name.is_empty() { self.inode(fid)? } else { self.inode_of_store(fid)? };
        if creates && inode.is_dir() {
            return Err(FsError::IsDirectory.into());
        }
        if creates && !q.name.is_empty() && !inode.is_file() {
            // The name came after the kernel had looked, which opens what is not regular by itself, and follows links: it looks again.
            return Err(FsError::Stale.into());
        }
        self.open_existing(q, inode, flags)
    }

    /// The inode that is to be opened, if it exists.
    fn target_of_open(&mut self, q: &OpenRequest) -> Done<Option<Fid>> {
        if q.name.is_empty() {
            return Ok(Some(q.parent));
        }
        if q.name.len() > super::NAME_BYTES_MAX {
            return Err(FsError::NameTooLong.into());
        }
        let dir = self.inode(q.parent)?;
        if !dir.is_dir() {
            return Err(FsError::NotDirectory.into());
        }
        self.may(&q.cred, &dir, MAY_EXEC)?;
        match &q.name[..] {
            b"." => Ok(Some(dir.fid)),
            b".." => Ok(Some(self.parent_of(&dir)?)),
            name => Ok(self.find_entry(dir.fid, name)?.map(|(fid, _, _)| fid)),
        }
    }

    fn open_existing(&mut self, q: &OpenRequest, mut inode: Inode, flags: OpenFlags) -> Done<OpenOut> {
        if inode.is_symlink() && !flags.has(OpenFlags::PATH) {
            return Err(FsError::Loop.into());
        }
        if flags.has(OpenFlags::DIRECTORY) && !inode.is_dir() {
            return Err(FsError::NotDirectory.into());
        }
        if inode.is_dir() && (flags.writes() || flags.has(OpenFlags::TRUNC)) {
            return Err(FsError::IsDirectory.into());
        }
        if inode.kind() == S_IFSOCK && !flags.has(OpenFlags::PATH) {
            return Err(FsError::NoDevice.into());
        }
        self.may_open(&q.cred, &inode, flags)?;
        self.rests_on_inode(inode.fid);
        let suspect = inode.has(InodeFlags::SIZE_UNKNOWN) && self.mds.handles.borrow().writers(inode.fid) == 0;
        let truncates = flags.truncates(&inode);
        if truncates {
            self.truncate(&q.cred, &mut inode);
        }
        let mut time_untold = false;
        if flags.writes() && inode.is_file() {
            let given = self.first_layout(&mut inode, q)?;
            // What was written last changed both times.
            let may_be_set = !truncates && !given && inode.mtime < inode.ctime;
            time_untold = self.begin_writing(&mut inode, truncates || given) && may_be_set;
        } else if truncates {
            self.put_inode(&inode);
            self.claim(inode.fid, LockBits::UPDATE | LockBits::DATA);
        }
        let entry = EntryOut { time_untold, ..self.entry(inode, true)? };
        Ok(OpenOut { entry, suspect, ..OpenOut::default() })
    }

    fn may_open(&mut self, cred: &Cred, inode: &Inode, flags: OpenFlags) -> Done<()> {
        self.may(cred, inode, flags.wanted_rights())?;
        if flags.has(OpenFlags::NOATIME) { self.must_own(cred, inode) } else { Ok(()) }
    }

    /// The file loses what is in it with O_TRUNC; the inode itself is to be stored by the caller.
    fn truncate(&mut self, cred: &Cred, inode: &mut Inode) {
        (inode.size, inode.blocks) = (0, 0);
        (inode.mtime, inode.ctime) = (self.now, self.now);
        if cred.uid != 0 && !cred.keeps_set_ids() {
            kill_set_ids(inode, cred);
        }
        self.record(ChangeKind::Truncate, Some(cred), |r| r.target = inode.fid);
    }

    /// Objects for a file that was made without, for its first writer. Whether it got them now.
    fn first_layout(&mut self, inode: &mut Inode, q: &OpenRequest) -> Done<bool> {
        if inode.has(InodeFlags::HAS_LAYOUT) {
            return Ok(false);
        }
        let dir = if inode.parent.is_zero() { None } else { self.find_inode(inode.parent)? };
        self.give_layout(inode, dir.as_ref(), (&q.layout, &q.proof))?;
        self.claim(inode.fid, LockBits::LAYOUT | LockBits::XATTR);
        Ok(true)
    }

    /// Others' leases on the content go; from the first writer on size and times are not known here. Whether they were until now.
    fn begin_writing(&mut self, inode: &mut Inode, changed: bool) -> bool {
        self.claim(inode.fid, LockBits::DATA);
        let known = !inode.has(InodeFlags::SIZE_UNKNOWN);
        if changed || known {
            inode.set(InodeFlags::SIZE_UNKNOWN, true);
            self.put_inode(inode);
        }
        let handles = self.mds.handles.borrow();
        // Without a writer somebody may know the size although the record does not: from a close that a restart forgot.
        let first = changed || known || handles.writers(inode.fid) == 0;
        // The first writer besides another: that one no longer knows the size by itself.
        let second = handles.others_write(inode.fid, self.client);
        drop(handles);
        if first || second {
            self.claim(inode.fid, LockBits::UPDATE);
        }
        known
    }

    fn open_new(&mut self, q: &OpenRequest) -> Done<OpenOut> {
        if is_dots(&q.name) {
            return Err(FsError::IsDirectory.into());
        }
        let mut dir = self.dir_for_new(&q.cred, q.parent, &q.name)?;
        let mut inode = self.new_inode(&q.cred, &dir, S_IFREG, (q.mode, q.umask), (&q.layout, &q.proof))?;
        self.give_layout(&mut inode, Some(&dir), (&q.layout, &q.proof))?;
        inode.set(InodeFlags::SIZE_UNKNOWN, OpenFlags(q.flags).writes());
        self.enter(&mut dir, &q.name, &mut inode)?;
        let about = (inode.fid, dir.fid, q.name.clone());
        self.record(ChangeKind::Create, Some(&q.cred), |r| (r.target, r.parent, r.name) = about);
        let mut entry = self.entry(inode, true)?;
        entry.parent = Some(dir);
        Ok(OpenOut { entry, created: true, ..OpenOut::default() })
    }

    fn open_tmpfile(&mut self, q: &OpenRequest, flags: OpenFlags) -> Done<OpenOut> {
        if !flags.writes() {
            return Err(FsError::Invalid.into());
        }
        let dir = self.live_dir(q.parent)?;
        self.may_change_dir(&q.cred, &dir)?;
        self.rests_on_rights(&dir)?;
        let mut inode = self.new_inode(&q.cred, &dir, S_IFREG, (q.mode, q.umask), (&q.layout, &q.proof))?;
        self.give_layout(&mut inode, Some(&dir), (&q.layout, &q.proof))?;
        inode.nlink = 0;
        inode.set(InodeFlags::SIZE_UNKNOWN | InodeFlags::ORPHAN, true);
        inode.set(InodeFlags::LINKABLE, !flags.has(OpenFlags::EXCL));
        self.put(keys::orphan(inode.fid), Some(Vec::new()));
        self.put_inode(&inode);
        let entry = self.entry(inode, true)?;
        Ok(OpenOut { entry, created: true, ..OpenOut::default() })
    }

    /// An open that was answered before a restart: its inode is there, only the handle is missing.
    fn reopen(&mut self, q: &OpenRequest, mut inode: Inode, flags: OpenFlags) -> Done<OpenOut> {
        let writes = flags.writes() && inode.is_file();
        let suspect = writes && inode.has(InodeFlags::SIZE_UNKNOWN);
        let is_own = inode.fid == self.new_fid() && (!self.limited || inode.uid == q.cred.uid);
        if is_own {
            self.rests_on_nothing();
        } else {
            self.rests_on_inode(inode.fid);
        }
        // Told as state it is an open that was permitted, whatever rights were left since. Of a client that is held to limits nothing is
        // believed that the file's owner could not give himself.
        let is_believed = self.transno == 0 && (!self.limited || inode.uid == q.cred.uid);
        if !is_own && !is_believed {
            self.may_open(&q.cred, &inode, flags)?;
        }
        let truncates = self.transno != 0 && !is_own && flags.truncates(&inode);
        if truncates {
            self.truncate(&q.cred, &mut inode);
        }
        let given = writes && self.transno != 0 && self.first_layout(&mut inode, q)?;
        let unknown = writes && !inode.has(InodeFlags::SIZE_UNKNOWN);
        if given || unknown {
            inode.set(InodeFlags::SIZE_UNKNOWN, true);
        }
        if given || unknown || truncates {
            self.put_inode(&inode);
        }
        let entry = self.entry(inode, true)?;
        Ok(OpenOut { entry, suspect, ..OpenOut::default() })
    }
}
