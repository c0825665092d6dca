//! What a program tells a mount about its reading: the argument of an ioctl. A kernel keeps posix_fadvise(2) to itself.
//!
//! The same ioctl tells the servers what a range is worth: [`LEVEL`] and a level (0 none, 1 cache, 2 low, 3 med, 4 high), which
//! is remembered with the file, or [`WILLREAD`] and [`DONTNEED`], which are about now.

/// The ioctl's number: `_IOW('S', 0xAD, struct { u64 offset; u64 len; s32 advice; u32 zero; })`.
pub const ADVISE: u32 = 1 << 30 | (Advise::BYTES as u32) << 16 | (b'S' as u32) << 8 | 0xAD;

/// `advice` of a level: this and the level, 0..=4.
pub const LEVEL: i32 = 0x100;
/// `advice`: the servers fetch the range into their memory; the call waits for that, but with [`BACKGROUND`].
pub const WILLREAD: i32 = LEVEL + 5;
/// `advice`: the servers drop what they have cached of the range and nobody advised.
pub const DONTNEED: i32 = LEVEL + 6;
/// `advice`: take the locks on the range for reads, before they are needed, and no wider than it; waits for that, but with [`BACKGROUND`].
pub const LOCK_AHEAD_READ: i32 = LEVEL + 7;
/// `advice`: the same for writes.
pub const LOCK_AHEAD_WRITE: i32 = LEVEL + 8;
/// `advice`: while this descriptor is open, locks are no wider than what is read or written. The range does not matter.
pub const LOCK_NO_EXPAND: i32 = LEVEL + 9;
/// `advice`: they may be wider again.
pub const LOCK_EXPAND: i32 = LEVEL + 10;
/// Added to [`WILLREAD`] and to lock-aheads: do not wait.
pub const BACKGROUND: i32 = 0x1000;

/// The xattrs that hold a level, for programs that cannot call ioctls; the second one is for privileged ones.
pub const LEVEL_XATTRS: [&core::ffi::CStr; 2] = [c"user.stria.advice", c"trusted.stria.advice"];
/// The xattr that shows all that servers know of a file's advice.
pub const SHOWN_XATTR: &core::ffi::CStr = c"stria.advice";

/// The ioctl's argument, with the meaning that posix_fadvise gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advise {
    /// First byte.
    pub offset: u64,
    /// Bytes; 0: all that follow.
    pub len: u64,
    /// One of POSIX_FADV_*, or what the servers are told.
    pub advice: i32,
}

impl Advise {
    /// Bytes of the argument.
    pub const BYTES: usize = 24;

    /// The argument's bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; Advise::BYTES] {
        let mut bytes = [0; Advise::BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.advice.to_ne_bytes());
        bytes
    }
    /// Reads the argument; `None` when it is not one.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<Advise> {
        let data: &[u8; Advise::BYTES] = data.try_into().ok()?;
        let word = |at: usize| u64::from_ne_bytes(data[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| i32::from_ne_bytes(data[at..at + 4].try_into().expect("four bytes"));
        (half(20) == 0).then(|| Advise { offset: word(0), len: word(8), advice: half(16) })
    }
}
