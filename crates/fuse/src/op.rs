//! Requests, parsed: the typed operation behind a request's bytes.
//!
//! Decides which bytes are a well-formed request and which are not; never panics on any input and never allocates.
//! Names and data are borrowed from the request's buffer. What an operation means is the file system's business.
use crate::abi::{opcode::*, *};
use zerocopy::FromBytes;

/// Longest name accepted, in bytes: more than any file system's. Kernels send longer ones, up to a path's length, and leave
/// the refusal to the file system.
pub const NAME_BYTES_MAX: usize = 1024;

/// Why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The opcode is not one of ours; the answer is ENOSYS.
    #[error("unknown opcode {0}")]
    UnknownOpcode(u32),
    /// The request is shorter than its structures or names say.
    #[error("{} request is truncated", opcode_name(*.0))]
    Truncated(u32),
    /// A name is empty, has no terminator, or contains '/'.
    #[error("{} request has a bad name", opcode_name(*.0))]
    BadName(u32),
    /// A name is longer than [`NAME_BYTES_MAX`], or a symlink's target than a path; the answer is ENAMETOOLONG.
    #[error("{} request has a name of more than {NAME_BYTES_MAX} bytes, or a target of more than {}", opcode_name(*.0), libc::PATH_MAX)]
    LongName(u32),
    /// An extension block is malformed.
    #[error("{} request has a bad extension", opcode_name(*.0))]
    BadExtension(u32),
}

/// Extra information that a create-like request may carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions<'a> {
    /// Initial security context: xattr name and value (only with SECURITY_CTX).
    pub security: Option<(&'a [u8], &'a [u8])>,
    /// The caller's supplementary group that matches the parent's group (only with CREATE_SUPP_GROUP).
    pub supplementary_group: Option<u32>,
}

/// One operation. `arg` is the kernel's structure; names are without terminator, never empty, never contain NUL.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variant's sentence covers its fields")]
pub enum Op<'a> {
    /// Look a name up in the directory; replies `entry`.
    Lookup { name: &'a [u8] },
    /// Attributes; replies `attr`.
    Getattr { arg: GetattrIn },
    /// Change attributes; replies `attr`.
    Setattr { arg: SetattrIn },
    /// Symlink target; replies `data`.
    Readlink,
    /// Make a symlink; replies `entry`.
    Symlink { name: &'a [u8], target: &'a [u8], ext: Extensions<'a> },
    /// Make a special or regular file; replies `entry`.
    Mknod { arg: MknodIn, name: &'a [u8], ext: Extensions<'a> },
    /// Make a directory; replies `entry`.
    Mkdir { arg: MkdirIn, name: &'a [u8], ext: Extensions<'a> },
    /// Remove a file's name; replies `ok`.
    Unlink { name: &'a [u8] },
    /// Remove a directory; replies `ok`.
    Rmdir { name: &'a [u8] },
    /// Rename (RENAME and RENAME2); `flags` as in renameat2(2); replies `ok`.
    Rename { newdir: u64, flags: u32, name: &'a [u8], newname: &'a [u8] },
    /// Give node `oldnodeid` a new name in this directory; replies `entry`.
    Link { oldnodeid: u64, name: &'a [u8] },
    /// Open; replies `open`.
    Open { arg: OpenIn },
    /// Read; replies `data` or `slices`.
    Read { arg: ReadIn },
    /// Write; `data` is page-aligned in memory; replies `write`.
    Write { arg: WriteIn, data: &'a [u8] },
    /// Statistics; replies `statfs`.
    Statfs,
    /// Last close of an open file; replies `ok`.
    Release { arg: ReleaseIn },
    /// fsync(2) and fdatasync(2); replies `ok`.
    Fsync { arg: FsyncIn },
    /// Set an extended attribute; replies `ok`.
    Setxattr { flags: u32, setxattr_flags: u32, name: &'a [u8], value: &'a [u8] },
    /// Read an extended attribute; replies `xattr`. `size` 0 asks for the length.
    Getxattr { size: u32, name: &'a [u8] },
    /// List extended attributes; replies `xattr`. `size` 0 asks for the length.
    Listxattr { size: u32 },
    /// Remove an extended attribute; replies `ok`.
    Removexattr { name: &'a [u8] },
    /// close(2) of one descriptor; replies `ok`.
    Flush { arg: FlushIn },
    /// Open a directory; replies `open`.
    Opendir { arg: OpenIn },
    /// Directory entries; replies `dirents`.
    Readdir { arg: ReadIn },
    /// Directory entries with attributes; replies `dirents`.
    Readdirplus { arg: ReadIn },
    /// Last close of a directory; replies `ok`.
    Releasedir { arg: ReleaseIn },
    /// fsync(2) of a directory; replies `ok`.
    Fsyncdir { arg: FsyncIn },
    /// Which lock is in the way; replies `lk`.
    Getlk { arg: LkIn },
    /// Take or drop a lock; `wait` for SETLKW; replies `ok`.
    Setlk { arg: LkIn, wait: bool },
    /// access(2); replies `ok`.
    Access { mask: u32 },
    /// Create and open; replies `create`.
    Create { arg: CreateIn, name: &'a [u8], ext: Extensions<'a> },
    /// O_TMPFILE; replies `create`.
    Tmpfile { arg: CreateIn, ext: Extensions<'a> },
    /// Block map (fuseblk only); replies `bmap`.
    Bmap { arg: BmapIn },
    /// The file system is being unmounted (fuseblk only); replies `ok`.
    Destroy,
    /// ioctl(2); replies `ioctl`.
    Ioctl { arg: IoctlIn, data: &'a [u8] },
    /// poll(2); replies `poll`.
    Poll { arg: PollIn },
    /// fallocate(2); replies `ok`.
    Fallocate { arg: FallocateIn },
    /// SEEK_DATA and SEEK_HOLE; replies `lseek`.
    Lseek { arg: LseekIn },
    /// copy_file_range(2); `wide` for the 64-bit form; replies `copied`.
    CopyFileRange { arg: CopyFileRangeIn, wide: bool },
    /// syncfs(2); replies `ok`.
    Syncfs,
    /// statx(2) with fields beyond GETATTR; replies `statx`.
    Statx { arg: StatxIn },
}

/// Messages that have no reply; the session handles them before the file system sees anything.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variant's sentence covers its fields")]
pub enum Oneway<'a> {
    /// One node forgotten.
    Forget { nlookup: u64 },
    /// Several nodes forgotten.
    BatchForget { nodes: &'a [ForgetOne] },
    /// A pending request should give up.
    Interrupt { unique: u64 },
    /// The answer to a retrieve notification.
    NotifyReply,
}

/// Bytes of the operation's structure that precede names and data, or `None` for an opcode that is not ours.
pub fn op_struct_len(op: u32, setxattr_ext: bool) -> Option<usize> {
    Some(match op {
        LOOKUP | READLINK | SYMLINK | UNLINK | RMDIR | STATFS | REMOVEXATTR | DESTROY => 0,
        FORGET => size_of::<ForgetIn>(),
        BATCH_FORGET => size_of::<BatchForgetIn>(),
        GETATTR => size_of::<GetattrIn>(),
        SETATTR => size_of::<SetattrIn>(),
        MKNOD => size_of::<MknodIn>(),
        MKDIR => size_of::<MkdirIn>(),
        RENAME => size_of::<RenameIn>(),
        RENAME2 => size_of::<Rename2In>(),
        LINK => size_of::<LinkIn>(),
        OPEN | OPENDIR => size_of::<OpenIn>(),
        READ | READDIR | READDIRPLUS => size_of::<ReadIn>(),
        WRITE => size_of::<WriteIn>(),
        RELEASE | RELEASEDIR => size_of::<ReleaseIn>(),
        FSYNC | FSYNCDIR => size_of::<FsyncIn>(),
        SETXATTR if setxattr_ext => size_of::<SetxattrIn>(),
        SETXATTR => size_of::<SetxattrCompatIn>(),
        GETXATTR | LISTXATTR => size_of::<GetxattrIn>(),
        FLUSH => size_of::<FlushIn>(),
        INIT => size_of::<InitIn>(),
        GETLK | SETLK | SETLKW => size_of::<LkIn>(),
        ACCESS => size_of::<AccessIn>(),
        CREATE | TMPFILE => size_of::<CreateIn>(),
        INTERRUPT => size_of::<InterruptIn>(),
        BMAP => size_of::<BmapIn>(),
        IOCTL => size_of::<IoctlIn>(),
        POLL => size_of::<PollIn>(),
        NOTIFY_REPLY => size_of::<NotifyRetrieveIn>(),
        FALLOCATE => size_of::<FallocateIn>(),
        LSEEK => size_of::<LseekIn>(),
        COPY_FILE_RANGE | COPY_FILE_RANGE_64 => size_of::<CopyFileRangeIn>(),
        SYNCFS => size_of::<SyncfsIn>(),
        STATX => size_of::<StatxIn>(),
        _ => return None,
    })
}

/// Parses one request that wants a reply. `arg` starts with the operation's structure (longer is accepted), `data`
/// holds what follows it, extensions included. `setxattr_ext` says that SETXATTR_EXT was agreed on.
///
/// # Errors
/// [`ParseError`]; nothing was changed.
pub fn parse<'a>(h: &InHeader, arg: &'a [u8], data: &'a [u8], setxattr_ext: bool) -> Result<Op<'a>, ParseError> {
    let cut = Cut { op: h.opcode, arg, data, ext_bytes: usize::from(h.total_extlen) * 8 };
    match h.opcode {
        LOOKUP | UNLINK | RMDIR | REMOVEXATTR | RENAME | RENAME2 | LINK | SYMLINK | MKNOD | MKDIR | CREATE
        | TMPFILE | SETXATTR | GETXATTR | LISTXATTR => parse_named(&cut, setxattr_ext),
        OPEN | OPENDIR | READ | READDIR | READDIRPLUS | WRITE | RELEASE | RELEASEDIR | FSYNC | FSYNCDIR | FLUSH
        | GETLK | SETLK | SETLKW | IOCTL | POLL | FALLOCATE | LSEEK | COPY_FILE_RANGE | COPY_FILE_RANGE_64 => {
            parse_file(&cut)
        }
        GETATTR => Ok(Op::Getattr { arg: cut.arg()? }),
        SETATTR => Ok(Op::Setattr { arg: cut.arg()? }),
        STATX => Ok(Op::Statx { arg: cut.arg()? }),
        READLINK => Ok(Op::Readlink),
        STATFS => Ok(Op::Statfs),
        DESTROY => Ok(Op::Destroy),
        ACCESS => Ok(Op::Access { mask: cut.arg::<AccessIn>()?.mask }),
        BMAP => Ok(Op::Bmap { arg: cut.arg()? }),
        SYNCFS => Ok(Op::Syncfs),
        other => Err(ParseError::UnknownOpcode(other)),
    }
}

/// Parses a message that has no reply; `None` when `opcode` is a request.
///
/// # Errors
/// [`ParseError`]; nothing was changed.
pub fn parse_oneway<'a>(op: u32, arg: &'a [u8], data: &'a [u8]) -> Option<Result<Oneway<'a>, ParseError>> {
    let cut = Cut { op, arg, data, ext_bytes: 0 };
    Some(match op {
        FORGET => cut.arg::<ForgetIn>().map(|a| Oneway::Forget { nlookup: a.nlookup }),
        INTERRUPT => cut.arg::<InterruptIn>().map(|a| Oneway::Interrupt { unique: a.unique }),
        NOTIFY_REPLY => Ok(Oneway::NotifyReply),
        BATCH_FORGET => cut.arg::<BatchForgetIn>().and_then(|a| {
            let count = usize::try_from(a.count).map_err(|_| ParseError::Truncated(op))?;
            match <[ForgetOne]>::ref_from_prefix_with_elems(data, count) {
                Ok((nodes, _)) => Ok(Oneway::BatchForget { nodes }),
                Err(_) => Err(ParseError::Truncated(op)),
            }
        }),
        _ => return None,
    })
}

/// Operations that carry a name.
fn parse_named<'a>(cut: &Cut<'a>, setxattr_ext: bool) -> Result<Op<'a>, ParseError> {
    Ok(match cut.op {
        LOOKUP => Op::Lookup { name: cut.one_name()? },
        UNLINK => Op::Unlink { name: cut.one_name()? },
        RMDIR => Op::Rmdir { name: cut.one_name()? },
        REMOVEXATTR => Op::Removexattr { name: cut.one_name()? },
        LINK => Op::Link { oldnodeid: cut.arg::<LinkIn>()?.oldnodeid, name: cut.one_name()? },
        RENAME => cut.rename(cut.arg::<RenameIn>()?.newdir, 0)?,
        RENAME2 => {
            let arg = cut.arg::<Rename2In>()?;
            cut.rename(arg.newdir, arg.flags)?
        }
        SYMLINK => {
            let (data, ext) = cut.extensions()?;
            let (name, rest) = cut.name(data)?;
            let (target, _) = cut.text(rest, libc::PATH_MAX as usize)?;
            Op::Symlink { name, target, ext }
        }
        MKNOD => {
            let (name, ext) = cut.name_ext()?;
            Op::Mknod { arg: cut.arg()?, name, ext }
        }
        MKDIR => {
            let (name, ext) = cut.name_ext()?;
            Op::Mkdir { arg: cut.arg()?, name, ext }
        }
        CREATE => {
            let (name, ext) = cut.name_ext()?;
            Op::Create { arg: cut.arg()?, name, ext }
        }
        TMPFILE => Op::Tmpfile { arg: cut.arg()?, ext: cut.extensions()?.1 },
        GETXATTR => Op::Getxattr { size: cut.arg::<GetxattrIn>()?.size, name: cut.one_name()? },
        LISTXATTR => Op::Listxattr { size: cut.arg::<GetxattrIn>()?.size },
        SETXATTR => {
            let arg = if setxattr_ext {
                cut.arg::<SetxattrIn>()?
            } else {
                let old = cut.arg::<SetxattrCompatIn>()?;
                SetxattrIn { size: old.size, flags: old.flags, ..Default::default() }
            };
            let (name, rest) = cut.name(cut.data)?;
            let value = cut.bytes(rest, arg.size)?;
            Op::Setxattr { flags: arg.flags, setxattr_flags: arg.setxattr_flags, name, value }
        }
        other => return Err(ParseError::UnknownOpcode(other)),
    })
}

/// Operations on an open file or directory.
fn parse_file<'a>(cut: &Cut<'a>) -> Result<Op<'a>, ParseError> {
    Ok(match cut.op {
        OPEN => Op::Open { arg: cut.arg()? },
        OPENDIR => Op::Opendir { arg: cut.arg()? },
        READ => Op::Read { arg: cut.arg()? },
        READDIR => Op::Readdir { arg: cut.arg()? },
        READDIRPLUS => Op::Readdirplus { arg: cut.arg()? },
        WRITE => {
            let arg = cut.arg::<WriteIn>()?;
            Op::Write { arg, data: cut.bytes(cut.data, arg.size)? }
        }
        RELEASE => Op::Release { arg: cut.arg()? },
        RELEASEDIR => Op::Releasedir { arg: cut.arg()? },
        FSYNC => Op::Fsync { arg: cut.arg()? },
        FSYNCDIR => Op::Fsyncdir { arg: cut.arg()? },
        FLUSH => Op::Flush { arg: cut.arg()? },
        GETLK => Op::Getlk { arg: cut.arg()? },
        SETLK => Op::Setlk { arg: cut.arg()?, wait: false },
        SETLKW => Op::Setlk { arg: cut.arg()?, wait: true },
        IOCTL => {
            let arg = cut.arg::<IoctlIn>()?;
            Op::Ioctl { arg, data: cut.bytes(cut.data, arg.in_size)? }
        }
        POLL => Op::Poll { arg: cut.arg()? },
        FALLOCATE => Op::Fallocate { arg: cut.arg()? },
        LSEEK => Op::Lseek { arg: cut.arg()? },
        COPY_FILE_RANGE => Op::CopyFileRange { arg: cut.arg()?, wide: false },
        COPY_FILE_RANGE_64 => Op::CopyFileRange { arg: cut.arg()?, wide: true },
        other => return Err(ParseError::UnknownOpcode(other)),
    })
}

/// The pieces of one request while it is parsed.
struct Cut<'a> {
    op: u32,
    arg: &'a [u8],
    data: &'a [u8],
    ext_bytes: usize,
}

impl<'a> Cut<'a> {
    fn arg<T: FromBytes>(&self) -> Result<T, ParseError> {
        T::read_from_prefix(self.arg).map(|(value, _)| value).map_err(|_| ParseError::Truncated(self.op))
    }

    /// A NUL-terminated text of at most `max` bytes, and what follows it.
    fn text(&self, data: &'a [u8], max: usize) -> Result<(&'a [u8], &'a [u8]), ParseError> {
        let window = &data[..data.len().min(max + 1)];
        let unended = if data.len() > max { ParseError::LongName(self.op) } else { ParseError::BadName(self.op) };
        let end = window.iter().position(|&b| b == 0).ok_or(unended)?;
        if end == 0 { Err(ParseError::BadName(self.op)) } else { Ok((&data[..end], &data[end + 1..])) }
    }

    /// A file or attribute name, and what follows it.
    fn name(&self, data: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), ParseError> {
        let (name, rest) = self.text(data, NAME_BYTES_MAX)?;
        let is_attribute = matches!(self.op, SETXATTR | GETXATTR | REMOVEXATTR);
        if !is_attribute && name.contains(&b'/') { Err(ParseError::BadName(self.op)) } else { Ok((name, rest)) }
    }

    fn one_name(&self) -> Result<&'a [u8], ParseError> {
        self.name(self.data).map(|(name, _)| name)
    }

    fn name_ext(&self) -> Result<(&'a [u8], Extensions<'a>), ParseError> {
        let (data, ext) = self.extensions()?;
        Ok((self.name(data)?.0, ext))
    }

    fn bytes(&self, data: &'a [u8], len: u32) -> Result<&'a [u8], ParseError> {
        let len = usize::try_from(len).map_err(|_| ParseError::Truncated(self.op))?;
        data.get(..len).ok_or(ParseError::Truncated(self.op))
    }

    fn rename(&self, newdir: u64, flags: u32) -> Result<Op<'a>, ParseError> {
        let (name, rest) = self.name(self.data)?;
        let (newname, _) = self.name(rest)?;
        Ok(Op::Rename { newdir, flags, name, newname })
    }

    /// Splits the extension block off the end of the data.
    fn extensions(&self) -> Result<(&'a [u8], Extensions<'a>), ParseError> {
        let bad = ParseError::BadExtension(self.op);
        let at = self.data.len().checked_sub(self.ext_bytes).ok_or(bad)?;
        let (data, mut block) = self.data.split_at(at);
        let mut ext = Extensions::default();
        while !block.is_empty() {
            let (head, _) = ExtHeader::read_from_prefix(block).map_err(|_| bad)?;
            let size = usize::try_from(head.size).map_err(|_| bad)?;
            if size < size_of::<ExtHeader>() || size > block.len() {
                return Err(bad);
            }
            let body = &block[size_of::<ExtHeader>()..size];
            if head.typ <= MAX_NR_SECCTX {
                ext.security = if head.typ == 0 { None } else { Some(security(body).ok_or(bad)?) };
            } else if head.typ == EXT_GROUPS {
                ext.supplementary_group = group(body).ok_or(bad)?;
            }
            block = block.get(size.next_multiple_of(8)..).unwrap_or(&[]);
        }
        Ok((data, ext))
    }
}

/// The first security context of a block: xattr name and value.
fn security(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rest) = Secctx::read_from_prefix(body).ok()?;
    let end = rest.iter().position(|&b| b == 0)?;
    let value = rest.get(end + 1..)?.get(..usize::try_from(head.size).ok()?)?;
    Some((&rest[..end], value))
}

/// The first supplementary group of a block, if it lists any.
fn group(body: &[u8]) -> Option<Option<u32>> {
    let (count, rest) = u32::read_from_prefix(body).ok()?;
    if count == 0 { Some(None) } else { u32::read_from_prefix(rest).ok().map(|(gid, _)| Some(gid)) }
}
