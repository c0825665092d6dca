//! The FUSE kernel interface as data: structures, opcodes and flag bits, nothing else.
//!
//! Field and constant names follow the public UAPI header (used under its BSD-2-Clause option) so that they can be
//! looked up there; this is why fields carry no sentence of their own. All integers are native-endian, as the header
//! says. Every structure's size is asserted at compile time.
#![allow(missing_docs)]

mod flags;
mod structs;

pub use flags::*;
pub use structs::*;

/// Major version spoken.
pub const KERNEL_VERSION: u32 = 7;
/// Newest minor version spoken (Linux 6.18).
pub const KERNEL_MINOR: u32 = 45;
/// Oldest minor version accepted (Linux 5.4).
pub const KERNEL_MINOR_MIN: u32 = 31;
/// The root directory's node id.
pub const ROOT_ID: u64 = 1;
/// The smallest buffer with which `/dev/fuse` can be read.
pub const MIN_READ_BUFFER: usize = 8192;
/// Bit of `unique` that marks an INTERRUPT request.
pub const INT_REQ_BIT: u64 = 1;

/// Declares opcodes once: constant and name.
macro_rules! opcodes {
    ($($name:ident = $value:literal),* $(,)?) => {
        /// Request kinds.
        pub mod opcode { $(pub const $name: u32 = $value;)* }
        /// The opcode's name, or `"UNKNOWN"`.
        pub fn opcode_name(opcode: u32) -> &'static str {
            match opcode { $($value => stringify!($name),)* _ => "UNKNOWN" }
        }
    };
}

opcodes! {
    LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9, UNLINK = 10,
    RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17, RELEASE = 18, FSYNC = 20,
    SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28,
    RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35, INTERRUPT = 36,
    BMAP = 37, DESTROY = 38, IOCTL = 39, POLL = 40, NOTIFY_REPLY = 41, BATCH_FORGET = 42, FALLOCATE = 43,
    READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SETUPMAPPING = 48, REMOVEMAPPING = 49,
    SYNCFS = 50, TMPFILE = 51, STATX = 52, COPY_FILE_RANGE_64 = 53,
}

/// Codes of messages from the daemon to the kernel (in `OutHeader::error` with `unique` 0).
pub mod notify {
    pub const POLL: i32 = 1;
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const RETRIEVE: i32 = 5;
    pub const DELETE: i32 = 6;
    pub const RESEND: i32 = 7;
    pub const INC_EPOCH: i32 = 8;
    pub const PRUNE: i32 = 9;
}

/// Commands inside `IORING_OP_URING_CMD`.
pub mod uring_cmd {
    pub const REGISTER: u32 = 1;
    pub const COMMIT_AND_FETCH: u32 = 2;
}
