//! Metadata messages.
use std::sync::Arc;

use crate::lock::EnqueueReply;
use crate::shape::bits;
use crate::{Bytes, Class, Decode, Op, Reader, byte_enum, message};
use types::{Fid, HandleId, Transno, WallTime};

bits! {
    /// Bits of [`Attr::flags`]. The three bits from 8 on are the level of advice (`ost.Advice`) that a directory gives to new
    /// files, or that a file was given when it was made.
    AttrFlags: u32 {
        /// `size`, `blocks` and `mtime` are right: nobody has the file open for writing (or it has no objects).
        SIZE_KNOWN = 1,
        /// The file has a layout (objects).
        HAS_LAYOUT = 2,
        /// The inode has xattrs beyond the layout, so a getxattr is worth asking.
        HAS_XATTRS = 4,
        /// The inode has a POSIX ACL.
        HAS_ACL = 8,
        /// No name is left, but somebody has it open, or may still open it by its id.
        ORPHAN = 16,
        /// In the answer to an unlink of the last name: no other client has it open or may open it (by an OPEN lock).
        ALONE = 32,
        /// In the answer to an end of an open: it was the last writer's, and the size is not known for all that.
        UNSETTLED = 64,
        /// In the answer to the first open for writing: the modification time was set, perhaps, since the file was closed. Its objects do
        /// not know, whose times count from now on: who opens it tells them.
        TIME_UNTOLD = 128,
    }
}

impl Cred {
    /// Bit of [`Cred::caps`]: the caller may do what its user may not (CAP_DAC_OVERRIDE and the like).
    pub const ABOVE_PERMISSIONS: u32 = 1;
    /// Bit of [`Cred::caps`]: CAP_FSETID.
    pub const KEEPS_SET_IDS: u32 = 2;

    /// Whether what the caller writes keeps its set-id bits.
    #[must_use]
    pub fn keeps_set_ids(&self) -> bool {
        self.caps & Cred::KEEPS_SET_IDS != 0
    }
}

impl AttrFlags {
    /// Where the level begins (three bits, [`crate::ost::Advice`]) that a directory gives to new files, and that a file was
    /// given when it was made.
    pub const ADVICE_SHIFT: u32 = 8;
    /// The level in these flags.
    #[must_use]
    pub const fn advice(flags: u32) -> u32 {
        flags >> AttrFlags::ADVICE_SHIFT & 7
    }
}

/// Most ends of opens in one request.
pub const CLOSES_MAX: usize = 64;

bits! {
    /// Bits of [`SetattrRequest::valid`] and [`Close::valid`].
    SetBits: u32 {
        /// Mode.
        MODE = 1,
        /// Owner.
        UID = 2,
        /// Group.
        GID = 4,
        /// Size: truncate. The client punches the objects, under its locks, before it sends this.
        SIZE = 8,
        /// Access time.
        ATIME = 16,
        /// Modification time.
        MTIME = 32,
        /// Access time := server's now.
        ATIME_NOW = 64,
        /// Modification time := server's now.
        MTIME_NOW = 128,
        /// Blocks (close only).
        BLOCKS = 256,
        /// Project id.
        PROJECT = 512,
        /// Clear setuid/setgid (a write by someone without the privilege).
        KILL_PRIV = 1024,
        /// Change time (close only).
        CTIME = 2048,
        /// The file was written since it was opened (close only).
        DIRTY = 4096,
        /// The answer did not take the size for the file's: others may have written later (close only, in replays).
        OUTDATED = 8192,
    }
}

bits! {
    /// Inode-lock bits that a request asks for along with its answer; the reply says which were granted.
    LockBits: u64 {
        /// The name: parent, name and FID stay bound; owner and mode stay as they are.
        LOOKUP = 1,
        /// Attributes and, for a directory, its entries.
        UPDATE = 2,
        /// The inode may be opened by its id: it stays as long as this is held, also when its last name goes. Granted
        /// alone when the other wanted bits cannot be had.
        OPEN = 4,
        /// The layout.
        LAYOUT = 8,
        /// Owner, mode, ACL.
        PERM = 16,
        /// Extended attributes.
        XATTR = 32,
        /// File content may stay in the kernel's page cache (lease).
        DATA = 64,
    }
}

/// Who asks, where a request says so ([`Class::CALLER`]).
#[must_use]
pub fn caller_of(op: Op, body: &[u8]) -> Option<Cred> {
    let said = op.is(Class::CALLER).then(|| Reader::new(body).part().and_then(|mut part| Cred::get(&mut part)));
    said?.ok()
}

byte_enum! {
    /// What `MdtCreate` makes.
    NodeKind { /// Directory.
        #[default] Directory = 0, /// Symbolic link.
        Symlink = 1, /// Regular file, FIFO, socket or device, by the mode's type bits.
        Node = 2, }
}

message! {
    /// Who asks: identity of the calling process.
    Cred {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Supplementary groups, at most 65,536 (the client sends those that matter).
        groups: Arc<[u32]>,
        /// Bit 0: the caller has CAP_DAC_OVERRIDE and the like (root); bit 1: CAP_FSETID.
        caps: u32,
        /// Number of the job ([`types::job_id`]); 0: none.
        job: u64,
    }
    /// An inode as programs see it.
    Attr {
        /// File id.
        fid: Fid,
        /// Type and permission bits.
        mode: u32,
        /// Links.
        nlink: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Device number of special files (Linux's 64-bit encoding).
        rdev: u64,
        /// Bytes; right when `SIZE_KNOWN`.
        size: u64,
        /// 512-byte blocks.
        blocks: u64,
        /// Access.
        atime: WallTime,
        /// Modification.
        mtime: WallTime,
        /// Change.
        ctime: WallTime,
        /// Birth.
        btime: WallTime,
        /// See [`AttrFlags`].
        flags: u32,
        /// Project id.
        project: u32,
        /// Grows with every change of the layout.
        layout_gen: u32,
    }
    /// What most metadata requests answer.
    EntryReply {
        /// Attributes; fid zero: a negative answer under lock (`MdtLookup` only).
        attr: Attr,
        /// `lustre.lov` bytes when the file has a layout and the caller does not know it yet.
        layout: Bytes,
        /// Lock on the answered inode, when one was asked for and granted.
        lock: Option<EnqueueReply>,
        /// The inode's ACL xattr value (empty: none), so that clients can check permissions.
        acl: Bytes,
        /// Attributes of the parent after the operation (for caches); fid zero: not told.
        parent: Attr,
        /// Lock on the parent directory (PR UPDATE|LOOKUP...), when asked for (negative look-ups, creates).
        parent_lock: Option<EnqueueReply>,
        /// With `layout`, for a client whose root is a subtree: capabilities of the layout's objects, 16 bytes each, in their order.
        capabilities: Bytes,
        /// With an inode that this request made, or a `layout` that it gave the file, for a client of a credential with limits: that it was
        /// so, to be repeated by the replay.
        proof: Bytes,
    }
    /// `MdtLookup`.
    LookupRequest {
        /// Caller.
        cred: Cred,
        /// Directory.
        parent: Fid,
        /// Name, 1..=255 bytes, without '/'. "." and ".." are understood.
        name: Bytes,
        /// Wanted lock bits; 0: none.
        lock_bits: u64,
        /// Client's cookie for that lock.
        lock_cookie: u64,
        /// Cookie for a PR UPDATE lock on the parent (negative entries); 0: not wanted.
        parent_cookie: u64,
    }
    /// `MdtGetattr`.
    GetattrRequest {
        /// Caller.
        cred: Cred,
        /// Inode.
        fid: Fid,
        /// Wanted lock bits; 0: none.
        lock_bits: u64,
        /// Client's cookie for that lock.
        lock_cookie: u64,
        /// Open handle, when asked through one (unlinked files stay visible); 0: none.
        handle: HandleId,
    }
    /// `MdtOpen`.
    OpenRequest {
        /// Caller.
        cred: Cred,
        /// Directory (with a name), else the inode itself.
        parent: Fid,
        /// Name; empty: open `parent` by FID. With O_TMPFILE: empty, and `parent` is the directory.
        name: Bytes,
        /// Linux O_* flags.
        flags: u32,
        /// Mode for create, umask not yet applied.
        mode: u32,
        /// umask.
        umask: u32,
        /// Layout wished, as `lustre.lov` set bytes (`lov_user_md`); empty: the directory's default.
        layout: Bytes,
        /// Wanted lock bits on the opened inode; 0: none.
        lock_bits: u64,
        /// Client's cookie for that lock.
        lock_cookie: u64,
        /// FID to give the file when it is created: from the client's granted sequence; zero: the server chooses.
        fid: Fid,
        /// The layout generation that the client has; the layout is sent when it differs or this is u32::MAX.
        known_layout: u32,
        /// Replay only: the handle that the first answer gave; the open gets it again. A replay also carries the
        /// answered FID in `fid` and, when the open created the file, the answered layout in `layout`.
        handle: HandleId,
        /// Replay only: the answered [`EntryReply::proof`].
        proof: Bytes,
    }
    /// `MdtOpen` reply.
    OpenReply {
        /// The file.
        entry: EntryReply,
        /// Open handle, to be closed.
        handle: HandleId,
        /// The open created it.
        created: bool,
    }
    /// `MdtClose`: several ends of opens, carried out in order, as one transaction.
    CloseRequest {
        /// At most [`CLOSES_MAX`], of opens that differ.
        closes: Vec<Close>,
    }
    /// `MdtClose` reply.
    CloseReply {
        /// In the order of the request.
        closes: Vec<Closed>,
    }
    /// How one open ended.
    Closed {
        /// 0, or EBADF: the client has no such open; or ESTALE: it names a file that is not below the client's root.
        status: u16,
        /// The inode after the close; `fid` zero: it went with its last open.
        attr: Attr,
    }
    /// The end of an open.
    Close {
        /// Open handle; 0: a reader's that only its client knew of, under an OPEN lock. Of it only the access time counts.
        handle: HandleId,
        /// Inode.
        fid: Fid,
        /// Which of the following are set ([`SetBits`]).
        valid: u32,
        /// Size as this client knows it (under lock, or glimpsed).
        size: u64,
        /// Blocks.
        blocks: u64,
        /// Times.
        atime: WallTime,
        /// Times.
        mtime: WallTime,
        /// Times.
        ctime: WallTime,
    }
    /// `MdtCreate`.
    CreateRequest {
        /// Caller.
        cred: Cred,
        /// Directory.
        parent: Fid,
        /// Name.
        name: Bytes,
        /// What.
        kind: NodeKind,
        /// Mode, with type bits for nodes.
        mode: u32,
        /// umask.
        umask: u32,
        /// Device number.
        rdev: u64,
        /// Symlink target.
        target: Bytes,
        /// Layout wished (regular files by mknod); empty: default.
        layout: Bytes,
        /// Wanted lock bits on the new inode; 0: none.
        lock_bits: u64,
        /// Client's cookie for that lock.
        lock_cookie: u64,
        /// FID to give; zero: the server chooses.
        fid: Fid,
        /// Replay only: the answered [`EntryReply::proof`].
        proof: Bytes,
    }
    /// `MdtUnlink`.
    UnlinkRequest {
        /// Caller.
        cred: Cred,
        /// Directory.
        parent: Fid,
        /// Name.
        name: Bytes,
        /// rmdir.
        directory: bool,
    }
    /// `MdtRename`.
    RenameRequest {
        /// Caller.
        cred: Cred,
        /// From directory.
        from: Fid,
        /// From name.
        from_name: Bytes,
        /// To directory.
        to: Fid,
        /// To name.
        to_name: Bytes,
        /// RENAME_NOREPLACE 1, RENAME_EXCHANGE 2, RENAME_WHITEOUT 4.
        flags: u32,
        /// Replay only: the answered [`EntryReply::proof`].
        proof: Bytes,
    }
    /// `MdtLink`.
    LinkRequest {
        /// Caller.
        cred: Cred,
        /// The inode.
        fid: Fid,
        /// Directory.
        parent: Fid,
        /// Name.
        name: Bytes,
    }
    /// `MdtSetattr`.
    SetattrRequest {
        /// Caller.
        cred: Cred,
        /// Inode.
        fid: Fid,
        /// [`SetBits`].
        valid: u32,
        /// Mode bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Project.
        project: u32,
        /// Size.
        size: u64,
        /// Blocks after a truncate, when known.
        blocks: u64,
        /// Times.
        atime: WallTime,
        /// Times.
        mtime: WallTime,
        /// Open handle through which it is asked; 0: none. (ftruncate needs no write permission on the inode.)
        handle: HandleId,
    }
    /// `MdtCut`: all objects of the cut are promised. The answer is empty, and comes when the decision is on stable storage;
    /// ESTALE when an OST was told already that nothing was decided.
    CutRequest {
        /// Inode; remembered with the decision.
        fid: Fid,
        /// The client's number for this cut; numbers grow.
        number: u64,
        /// Cuts of this client with lower numbers are over: every OST has committed its part.
        unfinished: u64,
    }
    /// `MdtSwap`: a file gets the layout of a nameless one that this client has open and that has the same bytes, and that one the
    /// file's. Every object that the file had is promised to go ([`crate::ost::REMOVED`]). The answer is the file's layout as it is
    /// stored, and comes when that is on stable storage; ESTALE when the layout was changed since, or an OST was told already that
    /// nothing was decided.
    SwapRequest {
        /// Caller.
        cred: Cred,
        /// The file.
        fid: Fid,
        /// Its layout's generation.
        generation: u32,
        /// The nameless file.
        other: Fid,
        /// 512-byte blocks of its objects.
        blocks: u64,
        /// The client's number for it, of those for cuts.
        number: u64,
        /// As in [`CutRequest`].
        unfinished: u64,
    }
    /// `MdtReaddir`.
    ReaddirRequest {
        /// Caller.
        cred: Cred,
        /// Directory.
        fid: Fid,
        /// Where to go on: 0 at first, then the cookie of the last entry seen.
        cookie: u64,
        /// Most bytes of entries.
        bytes_max: u32,
        /// With attributes.
        plus: bool,
        /// Cookie for a PR UPDATE|LOOKUP lock on the directory; 0: not wanted.
        lock_cookie: u64,
        /// With `plus`: ask for PR LOOKUP|UPDATE|PERM|OPEN locks on the entries, cookies counting up from here, one an
        /// entry; 0: not wanted.
        entry_cookie: u64,
    }
    /// One directory entry.
    Dirent {
        /// Inode.
        fid: Fid,
        /// Stable position: entries come and go, cookies of others stay.
        cookie: u64,
        /// DT_* type.
        dtype: u8,
        /// Name.
        name: Bytes,
        /// Attributes (`plus`).
        attr: Option<Attr>,
        /// Lock handle granted on the entry (`plus` with `entry_cookie`); 0: none. Its bits are LOOKUP|UPDATE|PERM|OPEN.
        lock: HandleId,
    }
    /// `MdtReaddir` reply.
    ReaddirReply {
        /// Entries.
        entries: Vec<Dirent>,
        /// No entries follow.
        eof: bool,
        /// Lock on the directory.
        lock: Option<EnqueueReply>,
        /// The parent's FID (for "..").
        parent: Fid,
    }
    /// Request about an inode.
    InodeRequest {
        /// Caller.
        cred: Cred,
        /// Inode.
        fid: Fid,
    }
    /// `MdtReadlink`, `MdtGetxattr`, `MdtFid2path` reply.
    BytesReply {
        /// Value.
        value: Bytes,
    }
    /// `MdtGetxattr` and `MdtListxattr` (empty name).
    XattrRequest {
        /// Caller.
        cred: Cred,
        /// Inode.
        fid: Fid,
        /// Name with its prefix.
        name: Bytes,
    }
    /// `MdtListxattr` reply.
    NamesReply {
        /// Names.
        names: Vec<Bytes>,
    }
    /// `MdtSetxattr`.
    SetxattrRequest {
        /// Caller.
        cred: Cred,
        /// Inode.
        fid: Fid,
        /// Name with its prefix.
        name: Bytes,
        /// Value; `None` removes.
        value: Option<Bytes>,
        /// XATTR_CREATE 1, XATTR_REPLACE 2.
        flags: u32,
        /// FUSE_SETXATTR_ACL_KILL_SGID: clear setgid when the ACL change demands it.
        kill_sgid: bool,
        /// Replay only: the answered [`SetxattrReply::proof`].
        proof: Bytes,
    }
    /// `MdtSetxattr` reply.
    SetxattrReply {
        /// The layout that the file got by it, as stored; empty: none.
        layout: Bytes,
        /// As [`EntryReply::proof`].
        proof: Bytes,
    }
    /// `MdtSync`.
    SyncRequest {
        /// Inode; zero: everything.
        fid: Fid,
    }
    /// `MdtSettled`.
    SettledRequest {
        /// Sizes that this client told with transactions up to this one stay right whatever happens to it.
        through: Transno,
    }
    /// `MdtFid2path`.
    Fid2pathRequest {
        /// Inode.
        fid: Fid,
        /// Which of several links, from 0.
        link: u32,
    }
}
