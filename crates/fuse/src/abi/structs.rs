//! Structures of the FUSE kernel interface. Names as in the UAPI header, in camel case.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Declares a wire structure with its size, checked at compile time.
macro_rules! wire {
    ($(#[doc = $doc:literal] $name:ident [$size:literal] { $($field:ident: $ty:ty),* $(,)? })*) => { $(
        #[doc = $doc]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub struct $name { $(pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )* };
}

wire! {
    /// Starts every request.
    InHeader [40] { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 }
    /// Starts every reply and notification.
    OutHeader [16] { len: u32, error: i32, unique: u64 }
    /// Attributes of a node.
    Attr [88] { ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32 }
    /// File system statistics.
    Kstatfs [80] { blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6] }
    /// A byte-range lock; `end` is inclusive, `u64::MAX >> 1` means to the end.
    FileLock [24] { start: u64, end: u64, typ: u32, pid: u32 }
    /// Answer to LOOKUP and to everything that creates a name.
    EntryOut [128] { nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr }
    /// FORGET.
    ForgetIn [8] { nlookup: u64 }
    /// One node of BATCH_FORGET.
    ForgetOne [16] { nodeid: u64, nlookup: u64 }
    /// BATCH_FORGET, followed by `count` ForgetOne.
    BatchForgetIn [8] { count: u32, dummy: u32 }
    /// GETATTR.
    GetattrIn [16] { getattr_flags: u32, dummy: u32, fh: u64 }
    /// Answer to GETATTR and SETATTR.
    AttrOut [104] { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    /// A time in statx form.
    SxTime [16] { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    /// STATX.
    StatxIn [24] { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    /// Attributes in statx form.
    Statx [256] { mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: [u16; 1],
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime,
        mtime: SxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14] }
    /// Answer to STATX.
    StatxOut [288] { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    /// MKNOD, followed by the name.
    MknodIn [16] { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// MKDIR, followed by the name.
    MkdirIn [8] { mode: u32, umask: u32 }
    /// RENAME, followed by both names.
    RenameIn [8] { newdir: u64 }
    /// RENAME2, followed by both names.
    Rename2In [16] { newdir: u64, flags: u32, padding: u32 }
    /// LINK, followed by the name.
    LinkIn [8] { oldnodeid: u64 }
    /// SETATTR.
    SetattrIn [88] { valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32 }
    /// OPEN and OPENDIR.
    OpenIn [8] { flags: u32, open_flags: u32 }
    /// CREATE and TMPFILE, followed by the name.
    CreateIn [16] { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// Answer to OPEN, OPENDIR, and second part of the answer to CREATE.
    OpenOut [16] { fh: u64, open_flags: u32, backing_id: i32 }
    /// RELEASE and RELEASEDIR.
    ReleaseIn [24] { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// FLUSH.
    FlushIn [24] { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// READ, READDIR, READDIRPLUS.
    ReadIn [40] { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    /// WRITE, followed by the data.
    WriteIn [40] { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    /// Answer to WRITE and COPY_FILE_RANGE.
    WriteOut [8] { size: u32, padding: u32 }
    /// FSYNC and FSYNCDIR.
    FsyncIn [16] { fh: u64, fsync_flags: u32, padding: u32 }
    /// SETXATTR with SETXATTR_EXT, followed by name and value.
    SetxattrIn [16] { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    /// SETXATTR without SETXATTR_EXT.
    SetxattrCompatIn [8] { size: u32, flags: u32 }
    /// GETXATTR (followed by the name) and LISTXATTR.
    GetxattrIn [8] { size: u32, padding: u32 }
    /// Answer to GETXATTR and LISTXATTR of size 0.
    GetxattrOut [8] { size: u32, padding: u32 }
    /// GETLK, SETLK, SETLKW.
    LkIn [48] { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    /// ACCESS.
    AccessIn [8] { mask: u32, padding: u32 }
    /// INIT.
    InitIn [64] { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    /// Answer to INIT.
    InitOut [64] { major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32,
        max_stack_depth: u32, request_timeout: u16, unused: [u16; 11] }
    /// INTERRUPT.
    InterruptIn [8] { unique: u64 }
    /// BMAP.
    BmapIn [16] { block: u64, blocksize: u32, padding: u32 }
    /// Answer to BMAP.
    BmapOut [8] { block: u64 }
    /// IOCTL, followed by `in_size` bytes.
    IoctlIn [32] { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    /// Answer to IOCTL, followed by the data.
    IoctlOut [16] { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    /// POLL.
    PollIn [24] { fh: u64, kh: u64, flags: u32, events: u32 }
    /// Answer to POLL.
    PollOut [8] { revents: u32, padding: u32 }
    /// FALLOCATE.
    FallocateIn [32] { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// LSEEK.
    LseekIn [24] { fh: u64, offset: u64, whence: u32, padding: u32 }
    /// Answer to LSEEK.
    LseekOut [8] { offset: u64 }
    /// COPY_FILE_RANGE.
    CopyFileRangeIn [56] { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    /// Answer to COPY_FILE_RANGE_64.
    CopyFileRangeOut [8] { bytes_copied: u64 }
    /// SYNCFS.
    SyncfsIn [8] { padding: u64 }
    /// Head of a directory entry, followed by the name, padded to 8.
    Dirent [24] { ino: u64, off: u64, namelen: u32, typ: u32 }
    /// Head of an extension.
    ExtHeader [8] { size: u32, typ: u32 }
    /// One security context, followed by its name and value.
    Secctx [8] { size: u32, padding: u32 }
    /// Notification: a poll handle became ready.
    NotifyPollOut [8] { kh: u64 }
    /// Notification: drop attributes (`off` < 0) or cached pages.
    NotifyInvalInodeOut [24] { ino: u64, off: i64, len: i64 }
    /// Notification: drop a name, followed by the name and NUL.
    NotifyInvalEntryOut [16] { parent: u64, namelen: u32, flags: u32 }
    /// Notification: a name was deleted, followed by the name and NUL.
    NotifyDeleteOut [24] { parent: u64, child: u64, namelen: u32, padding: u32 }
    /// Notification: put data into the page cache, followed by them.
    NotifyStoreOut [24] { nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// Notification: ask for cached pages.
    NotifyRetrieveOut [32] { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// NOTIFY_REPLY (answer to RETRIEVE), followed by the data.
    NotifyRetrieveIn [40] { dummy1: u64, offset: u64, size: u32, dummy2: u32, dummy3: u64, dummy4: u64 }
    /// Notification: give up unused dentries of these nodes, followed by their ids.
    NotifyPruneOut [16] { count: u32, padding: u32, spare: u64 }
    /// io_uring: the part of the entry header that both sides use.
    UringEntInOut [32] { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    /// io_uring: the command area of the SQE.
    UringCmdReq [24] { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
}

/// io_uring: header of one ring entry. `in_out` holds InHeader or OutHeader, `op_in` the operation's structure.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct UringReqHeader {
    pub in_out: [u8; 128],
    pub op_in: [u8; 128],
    pub ent: UringEntInOut,
}
const _: () = assert!(size_of::<UringReqHeader>() == 288);
const _: () = assert!(core::mem::offset_of!(InitOut, max_stack_depth) == 36);
const _: () = assert!(core::mem::offset_of!(InitOut, request_timeout) == 40);
const _: () = assert!(core::mem::offset_of!(Statx, atime) == 64);
const _: () = assert!(core::mem::offset_of!(UringReqHeader, ent) == 256);
