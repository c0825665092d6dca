//! Failures that programs see, and the one table that maps them to errno.
use core::fmt;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $errno:literal, $text:literal;)*) => {
        /// A failure with a POSIX meaning. The wire carries its errno value.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[non_exhaustive]
        pub enum FsError { $($(#[$doc])* $name,)* }
        impl FsError {
            /// Linux errno value, 1..=4095.
            #[must_use]
            pub const fn errno(self) -> i32 { match self { $(FsError::$name => $errno,)* } }
            /// The variant of an errno value; values not in the table become [`FsError::Io`].
            #[must_use]
            pub const fn from_errno(errno: i32) -> FsError { match errno { $($errno => FsError::$name,)* _ => FsError::Io } }
            /// All rows of the table.
            pub const ALL: &'static [FsError] = &[$(FsError::$name,)*];
        }
        impl fmt::Display for FsError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(match self { $(FsError::$name => $text,)* }) }
        }
    };
}

errors! {
    /// EPERM: the caller may not do this, whatever the mode bits say.
    NotPermitted = 1, "operation not permitted";
    /// ENOENT.
    NotFound = 2, "no such file or directory";
    /// EINTR: a signal came first.
    Interrupted = 4, "interrupted";
    /// EIO: a store or a server failed; also lost write-back data.
    Io = 5, "input/output error";
    /// ENXIO: SEEK_DATA past the last data, or a FIFO without a reader.
    NoDevice = 6, "no such device or address";
    /// E2BIG: an xattr value or an RPC above its limit.
    TooBig = 7, "argument too large";
    /// EBADF.
    BadHandle = 9, "bad file descriptor";
    /// EAGAIN: a lock is held, or the caller asked not to wait.
    WouldBlock = 11, "resource temporarily unavailable";
    /// ENOMEM.
    NoMemory = 12, "out of memory";
    /// EACCES: mode bits or ACL refuse.
    Access = 13, "permission denied";
    /// EBUSY.
    Busy = 16, "resource busy";
    /// EEXIST.
    Exists = 17, "file exists";
    /// EXDEV.
    CrossDevice = 18, "invalid cross-device link";
    /// ENODEV: no such target.
    NoTarget = 19, "no such device";
    /// ENOTDIR.
    NotDirectory = 20, "not a directory";
    /// EISDIR.
    IsDirectory = 21, "is a directory";
    /// EINVAL.
    Invalid = 22, "invalid argument";
    /// ENFILE: a server table is full.
    TooManyOpen = 23, "too many open files";
    /// ENOTTY: an ioctl that does not exist here.
    NoIoctl = 25, "inappropriate ioctl";
    /// ETXTBSY.
    TextBusy = 26, "text file busy";
    /// EFBIG: an offset beyond what the layout can hold.
    FileTooBig = 27, "file too large";
    /// ENOSPC.
    NoSpace = 28, "no space left on device";
    /// ESPIPE.
    NotSeekable = 29, "illegal seek";
    /// EROFS.
    ReadOnly = 30, "read-only file system";
    /// EMLINK.
    TooManyLinks = 31, "too many links";
    /// ERANGE: the buffer given is too small for the value.
    Range = 34, "result too large for the buffer";
    /// EDEADLK: waiting would close a cycle of lock waiters.
    Deadlock = 35, "resource deadlock avoided";
    /// ENAMETOOLONG.
    NameTooLong = 36, "file name too long";
    /// ENOLCK: a table of programs' locks (fcntl, flock) is full. Of locks between clients and servers no program hears.
    NoLocks = 37, "no locks available";
    /// ENOSYS.
    NotImplemented = 38, "function not implemented";
    /// ENOTEMPTY.
    NotEmpty = 39, "directory not empty";
    /// ELOOP.
    Loop = 40, "too many symbolic links";
    /// ENODATA: no such xattr.
    NoData = 61, "no data available";
    /// EPROTO: a message that the protocol does not allow.
    Protocol = 71, "protocol error";
    /// EBADMSG: stored or received bytes do not match their checksum.
    Corrupt = 74, "bad message";
    /// EOVERFLOW.
    Overflow = 75, "value too large";
    /// EOPNOTSUPP.
    NotSupported = 95, "operation not supported";
    /// ENOBUFS: the target has no room for the request now and has carried out nothing of it. Sessions send it again by
    /// themselves (`ptlrpc::Import`): no program and no write-back ever sees it.
    Overloaded = 105, "no buffer space available";
    /// ENOTCONN: the peer does not know this client (it was evicted, or never connected).
    NotConnected = 107, "not connected";
    /// ESHUTDOWN: the target is being stopped; wait and try again.
    ShuttingDown = 108, "target is shutting down";
    /// ETIMEDOUT.
    TimedOut = 110, "timed out";
    /// EALREADY: the request was carried out, or is being carried out.
    Already = 114, "already in progress";
    /// ESTALE: the object of a handle is gone.
    Stale = 116, "stale file handle";
    /// EDQUOT.
    Quota = 122, "disk quota exceeded";
    /// ECANCELED: cancelled by its owner.
    Cancelled = 125, "cancelled";
    /// EKEYEXPIRED: the credential's time is over. Sessions tell their owner; programs get EIO.
    KeyExpired = 127, "the credential has expired";
    /// EKEYREVOKED: the credential, or the key of all clients, was revoked. As above.
    KeyRevoked = 128, "the credential was revoked";
    /// EKEYREJECTED: the credential is not yet valid by the server's clock, or of a version that the server does not know.
    KeyRejected = 129, "the credential was rejected";
    /// ENOTRECOVERABLE: a replay that rested on what a client had done that did not come back. Sessions tell their owner
    /// of it as a loss; no program sees this value.
    NotRecoverable = 131, "state not recoverable";
}

impl core::error::Error for FsError {}

#[cfg(test)]
mod tests {
    use super::FsError;

    #[test]
    fn every_row_maps_to_its_errno_and_back() {
        for e in FsError::ALL {
            assert_eq!(FsError::from_errno(e.errno()), *e);
        }
        assert_eq!(FsError::from_errno(9999), FsError::Io);
    }
}
