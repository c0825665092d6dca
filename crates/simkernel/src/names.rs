//! System calls on names, with the locks of directories that Linux holds over the requests.
use std::rc::Rc;

use fuse::abi::{
    CreateIn, Dirent, EntryOut, LinkIn, MkdirIn, OpenIn, OpenOut, ReadIn, ReleaseIn, Rename2In, fopen, opcode,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::conn::{Caller, parse};
use crate::file::File;
use crate::inode::{Inode, Listing};
use crate::kernel::{Dentry, Kernel};

/// An open directory.
pub struct OpenDir {
    inode: Rc<Inode>,
    fh: u64,
    /// The kernel may keep what it is told through it.
    cached: bool,
}

/// Linux takes the attributes that come with what creates a name whatever it was told meanwhile (`create_new_entry` asks with version 0).
const LATE: u64 = u64::MAX;
/// Bytes of entries asked for at a time.
const LISTING_BYTES: u32 = 4096;

/// Adds entries that were told from `at` on to the listing that the kernel keeps, or its end.
fn keep_entries(dir: &Inode, at: u64, next: Option<u64>, names: &[Vec<u8>]) {
    let mut listing = dir.listing.borrow_mut();
    if listing.whole || listing.broken || listing.at != at {
        return;
    }
    match next {
        Some(next) => {
            listing.names.extend_from_slice(names);
            listing.at = next;
        }
        None => listing.whole = true,
    }
}

fn c_name(name: &[u8]) -> Vec<u8> {
    [name, &[0]].concat()
}

impl Kernel {
    fn enter(&self, dir: &Inode, name: &[u8], inode: Option<Rc<Inode>>, valid: (u64, u32), epoch: u64) {
        let dentry = Dentry { inode, valid_until: self.until(valid), epoch };
        self.names.borrow_mut().insert((dir.nodeid, name.to_vec()), dentry);
    }

    /// What a name stands for: as the kernel knows it, or as LOOKUP says. The directory's lock is held.
    async fn find(self: &Rc<Self>, caller: &Caller, dir: &Inode, name: &[u8]) -> Result<Option<Rc<Inode>>, i32> {
        let known = self.names.borrow().get(&(dir.nodeid, name.to_vec())).cloned();
        if let Some(d) = known
            && d.epoch == self.epoch.get()
            && self.rt.now() < d.valid_until
        {
            return Ok(d.inode);
        }
        let (seen, epoch) = (self.version.get(), self.epoch.get());
        let answer = self.conn.request(caller, opcode::LOOKUP, dir.nodeid, &[&c_name(name)]).await;
        let entry: EntryOut = match answer {
            Ok(bytes) => parse(&bytes)?,
            Err(libc::ENOENT) => {
                self.names.borrow_mut().remove(&(dir.nodeid, name.to_vec()));
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let valid = (entry.entry_valid, entry.entry_valid_nsec);
        let inode = if entry.nodeid == 0 { None } else { Some(self.inode_of(&entry, seen).await?) };
        self.enter(dir, name, inode.clone(), valid, epoch);
        Ok(inode)
    }

    /// What a name stands for.
    ///
    /// # Errors
    /// ENOENT; what LOOKUP answers.
    pub async fn lookup(self: &Rc<Self>, caller: &Caller, dir: &Rc<Inode>, name: &[u8]) -> Result<Rc<Inode>, i32> {
        self.conn.pause().await;
        let _guard = dir.lock.shared().await;
        self.find(caller, dir, name).await?.ok_or(libc::ENOENT)
    }

    /// open(2), also with O_CREAT.
    ///
    /// # Errors
    /// ENOENT, EEXIST; what CREATE and OPEN answer.
    pub async fn open(
        self: &Rc<Self>,
        caller: &Caller,
        dir: &Rc<Inode>,
        name: &[u8],
        flags: i32,
    ) -> Result<Rc<File>, i32> {
        let mut again = true;
        loop {
            let inode = if flags & libc::O_CREAT == 0 {
                self.lookup(caller, dir, name).await?
            } else {
                let _guard = dir.lock.exclusive().await;
                match self.find(caller, dir, name).await? {
                    Some(_) if flags & libc::O_EXCL != 0 => return Err(libc::EEXIST),
                    Some(inode) => inode,
                    None => return self.create(caller, dir, name, flags).await,
                }
            };
            match self.open_inode(caller, &inode, flags).await {
                Err(libc::ESTALE) if again => {
                    again = false;
                    self.names.borrow_mut().remove(&(dir.nodeid, name.to_vec()));
                }
                other => return other,
            }
        }
    }

    async fn create(
        self: &Rc<Self>,
        caller: &Caller,
        dir: &Rc<Inode>,
        name: &[u8],
        flags: i32,
    ) -> Result<Rc<File>, i32> {
        let epoch = self.epoch.get();
        let flags = flags as u32 & !(libc::O_NOCTTY as u32);
        let arg = CreateIn { flags, mode: libc::S_IFREG | 0o644, umask: 0o022, open_flags: 0 };
        let answer = self.conn.request(caller, opcode::CREATE, dir.nodeid, &[arg.as_bytes(), &c_name(name)]).await?;
        let (entry, open): (EntryOut, OpenOut) = (parse(&answer)?, parse(&answer[size_of::<EntryOut>()..])?);
        let inode = self.inode_of(&entry, LATE).await?;
        self.enter(dir, name, Some(inode.clone()), (entry.entry_valid, entry.entry_valid_nsec), epoch);
        dir.names_changed();
        Ok(File::new(&inode, &open, flags))
    }

    /// mkdir(2).
    ///
    /// # Errors
    /// EEXIST; what MKDIR answers.
    pub async fn mkdir(self: &Rc<Self>, caller: &Caller, dir: &Rc<Inode>, name: &[u8]) -> Result<Rc<Inode>, i32> {
        self.conn.pause().await;
        let _guard = dir.lock.exclusive().await;
        if self.find(caller, dir, name).await?.is_some() {
            return Err(libc::EEXIST);
        }
        let epoch = self.epoch.get();
        let arg = MkdirIn { mode: 0o755, umask: 0o022 };
        let answer = self.conn.request(caller, opcode::MKDIR, dir.nodeid, &[arg.as_bytes(), &c_name(name)]).await?;
        let entry: EntryOut = parse(&answer)?;
        let inode = self.inode_of(&entry, LATE).await?;
        self.enter(dir, name, Some(inode.clone()), (entry.entry_valid, entry.entry_valid_nsec), epoch);
        dir.names_changed();
        Ok(inode)
    }

    /// link(2) within a directory.
    ///
    /// # Errors
    /// ENOENT, EEXIST; what LINK answers.
    pub async fn link(self: &Rc<Self>, caller: &Caller, dir: &Rc<Inode>, from: &[u8], to: &[u8]) -> Result<(), i32> {
        self.conn.pause().await;
        let source = self.lookup(caller, dir, from).await?;
        let _guard = dir.lock.exclusive().await;
        if self.find(caller, dir, to).await?.is_some() {
            return Err(libc::EEXIST);
        }
        let _source = source.lock.exclusive().await;
        let epoch = self.epoch.get();
        let arg = LinkIn { oldnodeid: source.nodeid };
        let answer = self.conn.request(caller, opcode::LINK, dir.nodeid, &[arg.as_bytes(), &c_name(to)]).await?;
        let entry: EntryOut = parse(&answer)?;
        let inode = self.inode_of(&entry, LATE).await?;
        self.enter(dir, to, Some(inode), (entry.entry_valid, entry.entry_valid_nsec), epoch);
        dir.names_changed();
        Ok(())
    }

    /// unlink(2).
    ///
    /// # Errors
    /// ENOENT; what UNLINK answers.
    pub async fn unlink(self: &Rc<Self>, caller: &Caller, dir: &Rc<Inode>, name: &[u8]) -> Result<(), i32> {
        self.conn.pause().await;
        let _guard = dir.lock.exclusive().await;
        let inode = self.find(caller, dir, name).await?.ok_or(libc::ENOENT)?;
        let _target = inode.lock.exclusive().await;
        let answer = self.conn.request(caller, opcode::UNLINK, dir.nodeid, &[&c_name(name)]).await;
        if matches!(answer, Ok(_) | Err(libc::EINTR | libc::ENOENT)) {
            self.names.borrow_mut().remove(&(dir.nodeid, name.to_vec()));
        }
        answer?;
        inode.version.set(self.next_version());
        inode.expire();
        dir.names_changed();
        Ok(())
    }

    /// rename(2) within a directory.
    ///
    /// # Errors
    /// ENOENT; what RENAME2 answers.
    pub async fn rename(self: &Rc<Self>, caller: &Caller, dir: &Rc<Inode>, from: &[u8], to: &[u8]) -> Result<(), i32> {
        self.conn.pause().await;
        let _guard = dir.lock.exclusive().await;
        let source = self.find(caller, dir, from).await?.ok_or(libc::ENOENT)?;
        let target = self.find(caller, dir, to).await?;
        if target.as_ref().is_some_and(|t| Rc::ptr_eq(t, &source)) {
            return Ok(());
        }
        let mut both: Vec<&Rc<Inode>> = std::iter::once(&source).chain(&target).collect();
        both.sort_by_key(|i| i.nodeid);
        let mut guards = Vec::new();
        for inode in both {
            guards.push(inode.lock.exclusive().await);
        }
        let arg = Rename2In { newdir: dir.nodeid, flags: 0, padding: 0 };
        let parts: [&[u8]; 3] = [arg.as_bytes(), &c_name(from), &c_name(to)];
        let answer = self.conn.request(caller, opcode::RENAME2, dir.nodeid, &parts).await;
        {
            let mut names = self.names.borrow_mut();
            let moved = names.remove(&(dir.nodeid, from.to_vec()));
            names.remove(&(dir.nodeid, to.to_vec()));
            if let (Ok(_), Some(moved)) = (&answer, moved) {
                names.insert((dir.nodeid, to.to_vec()), moved);
            }
        }
        std::iter::once(&source).chain(&target).for_each(|i| i.expire());
        dir.names_changed();
        answer.map(drop)
    }

    /// stat(2): the node and the size.
    ///
    /// # Errors
    /// ENOENT; what LOOKUP and GETATTR answer.
    pub async fn stat(self: &Rc<Self>, caller: &Caller, dir: &Rc<Inode>, name: &[u8]) -> Result<(u64, u64), i32> {
        let inode = self.lookup(caller, dir, name).await?;
        match self.getattr(caller, &inode, None).await {
            Ok(()) => Ok((inode.nodeid, inode.size.get())),
            Err(libc::ESTALE | libc::ENOENT) => {
                // It was replaced meanwhile: once more from the name.
                self.names.borrow_mut().remove(&(dir.nodeid, name.to_vec()));
                let inode = self.lookup(caller, dir, name).await?;
                self.getattr(caller, &inode, None).await?;
                Ok((inode.nodeid, inode.size.get()))
            }
            Err(e) => Err(e),
        }
    }

    /// opendir(3).
    ///
    /// # Errors
    /// What the daemon answers.
    pub async fn open_dir(self: &Rc<Self>, caller: &Caller, dir: &Rc<Inode>) -> Result<OpenDir, i32> {
        self.conn.pause().await;
        let arg = OpenIn { flags: (libc::O_DIRECTORY | libc::O_RDONLY) as u32, open_flags: 0 };
        let answer = self.conn.request(caller, opcode::OPENDIR, dir.nodeid, &[arg.as_bytes()]).await?;
        let open: OpenOut = parse(&answer)?;
        if open.open_flags & fopen::KEEP_CACHE == 0 {
            dir.drop_listing();
        }
        Ok(OpenDir { inode: dir.clone(), fh: open.fh, cached: open.open_flags & fopen::CACHE_DIR != 0 })
    }

    /// closedir(3).
    pub fn close_dir(&self, open: OpenDir) {
        let arg = ReleaseIn { fh: open.fh, ..ReleaseIn::default() };
        self.conn.in_background(opcode::RELEASEDIR, open.inode.nodeid, &[arg.as_bytes()], Box::new(|_| {}));
    }

    /// All names of a directory but "." and ".." through one that is open: rewinddir(3), readdir(3) to the end.
    ///
    /// # Errors
    /// What the daemon answers.
    pub async fn list_again(self: &Rc<Self>, caller: &Caller, open: &OpenDir, plus: bool) -> Result<Vec<Vec<u8>>, i32> {
        let (dir, cached) = (&open.inode, open.cached);
        let kept = if cached { self.kept_listing(dir) } else { None };
        let mut names = Vec::new();
        let mut offset = 0;
        loop {
            if let Some(kept) = kept {
                return Ok(kept);
            }
            self.conn.pause().await;
            let had = names.len();
            let some = self.list_some(caller, dir, open.fh, offset, plus, &mut names).await;
            if let (true, Ok(next)) = (cached, &some) {
                keep_entries(dir, offset, *next, &names[had..]);
            }
            match some {
                Ok(Some(next)) => offset = next,
                Ok(None) => return Ok(names),
                Err(e) => return Err(e),
            }
        }
    }

    /// All names of a directory but "." and "..": opendir, readdir to the end, closedir.
    ///
    /// # Errors
    /// What the daemon answers.
    pub async fn list(self: &Rc<Self>, caller: &Caller, dir: &Rc<Inode>, plus: bool) -> Result<Vec<Vec<u8>>, i32> {
        let open = self.open_dir(caller, dir).await?;
        let names = self.list_again(caller, &open, plus).await;
        self.close_dir(open);
        names
    }

    /// The listing that the kernel keeps, if it is whole and the directory did not change since.
    fn kept_listing(&self, dir: &Inode) -> Option<Vec<Vec<u8>>> {
        let mut listing = dir.listing.borrow_mut();
        if !listing.whole {
            if listing.at == 0 {
                listing.began = dir.names_state();
            }
            return None;
        }
        if listing.began != dir.names_state() {
            *listing = Listing { began: dir.names_state(), ..Listing::default() };
            return None;
        }
        Some(listing.names.clone())
    }

    async fn list_some(
        self: &Rc<Self>,
        caller: &Caller,
        dir: &Rc<Inode>,
        fh: u64,
        offset: u64,
        plus: bool,
        names: &mut Vec<Vec<u8>>,
    ) -> Result<Option<u64>, i32> {
        let _guard = dir.lock.shared().await;
        let seen = self.version.get();
        let arg = ReadIn { fh, offset, size: LISTING_BYTES, ..ReadIn::default() };
        let op = if plus { opcode::READDIRPLUS } else { opcode::READDIR };
        let bytes = self.conn.request(caller, op, dir.nodeid, &[arg.as_bytes()]).await?;
        if bytes.len() > LISTING_BYTES as usize {
            self.conn.fault(format!("{} bytes of entries", bytes.len()));
        }
        let (mut rest, mut next) = (&bytes[..], None);
        while !rest.is_empty() {
            let (entry, tail) = if plus {
                let (entry, tail) = EntryOut::read_from_prefix(rest).map_err(|_| libc::EIO)?;
                (Some(entry), tail)
            } else {
                (None, rest)
            };
            let (head, name) = Dirent::read_from_prefix(tail).map_err(|_| libc::EIO)?;
            let name = name.get(..head.namelen as usize).ok_or(libc::EIO)?;
            next = Some(head.off);
            if name != b"." && name != b".." {
                names.push(name.to_vec());
                if let Some(entry) = entry.filter(|e| e.nodeid != 0) {
                    let inode = self.inode_of(&entry, seen).await?;
                    // Linux takes the epoch of now (`fuse_direntplus_link`), and not, as for LOOKUP, that of the question.
                    let (valid, epoch) = ((entry.entry_valid, entry.entry_valid_nsec), self.epoch.get());
                    self.enter(dir, name, Some(inode), valid, epoch);
                }
            }
            let head_bytes = size_of::<Dirent>() + if plus { size_of::<EntryOut>() } else { 0 };
            rest = rest.get((head_bytes + head.namelen as usize).next_multiple_of(8)..).unwrap_or(&[]);
        }
        Ok(next)
    }
}
