//! INIT: which protocol version and which abilities a session uses. Pure: the kernel's offer and our configuration in,
//! the answer out.
//!
//! FUSE_WRITEBACK_CACHE is never negotiated unless the configuration says that this mount is the only writer: with it
//! the kernel ignores remote sizes and times for good.
//!
//! FUSE_ASYNC_READ is never negotiated, so that a kernel's reads of pages are not among the requests whose number it
//! limits: they may wait for locks, and for those the lock may wait for what stands in line behind them
//! (`docs/internals/kernel-locks.md`, "Queues"). So that such a read tells of all pages that are locked for it, a window
//! of read-ahead fits in one request, also when a program doubled it (`posix_fadvise(2)`).
use crate::abi::{init::*, *};
use std::time::Duration;

/// How READDIRPLUS is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReaddirPlus {
    /// Never.
    Off,
    /// Where the kernel expects that attributes will be wanted. Default.
    #[default]
    Auto,
    /// Always.
    Always,
}

/// What a session asks for. The kernel may offer less; see [`Negotiated`].
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Largest WRITE and READ payload in bytes, multiple of 4096, 4096..=16 MiB, default 1 MiB (more gains nothing, and
    /// needs the sysctl `fs.fuse.max_pages_limit`). Every request slot reserves that much address space, and a page.
    pub max_write_bytes: u32,
    /// The mount option `max_read`: the largest READ in bytes, 0 (default) as `max_write_bytes`. Mounting sets it.
    pub max_read_bytes: u32,
    /// Pages of a request at most, the sysctl `fs.fuse.max_pages_limit`, default [`PAGES_LIMIT`]. Mounting sets it.
    pub max_pages_limit: u32,
    /// Kernel read-ahead for page-cache reads in bytes, default 1 MiB; half of the largest READ at most.
    pub max_readahead_bytes: u32,
    /// Asynchronous requests the kernel may have outstanding, 1..=65535, default 65535: writes of pages, for which locks
    /// may wait, ends of opens, and what programs read and write asynchronously past the page cache.
    pub max_background: u16,
    /// Granularity of our timestamps in ns, 1..=10^9, default 1.
    pub time_granularity_ns: u32,
    /// OPEN carries O_TRUNC instead of a separate SETATTR. Default true.
    pub atomic_o_trunc: bool,
    /// Adaptive READDIRPLUS by default.
    pub readdirplus: ReaddirPlus,
    /// fcntl(2) locks reach the file system. Default true.
    pub posix_locks: bool,
    /// flock(2) locks reach the file system. Default true.
    pub flock_locks: bool,
    /// POSIX ACLs are read and written as xattrs. The kernel then also checks permissions itself, as with
    /// `default_permissions`. Default false.
    pub posix_acl: bool,
    /// The kernel may keep symlink targets until invalidated. Default false (only under a lock).
    pub cache_symlinks: bool,
    /// Creating operations carry the initial security context. Default false.
    pub security_ctx: bool,
    /// Creating operations carry the supplementary group that matters. Default true.
    pub create_supp_group: bool,
    /// Shared mmap of files opened with FOPEN_DIRECT_IO. Default true.
    pub direct_io_allow_mmap: bool,
    /// The file system clears setuid, setgid and capabilities on WRITE, truncate and chown. Default true.
    pub handle_killpriv_v2: bool,
    /// This mount is the only writer of all its files: the kernel may write back. Default false; dangerous otherwise.
    pub single_writer: bool,
    /// The kernel aborts the connection when a request takes longer. 0 (default): never. Rounded up to seconds.
    pub request_timeout: Duration,
    /// Requests per CPU that travel on a ring at once, 1..=4096, default 16.
    pub ring_depth: u16,
    /// Ring entries per CPU after growth (blocked requests, such as lock waits, are replaced), default 1024.
    pub ring_depth_max: u16,
    /// Requests in flight per serving thread on `/dev/fuse` before growth, default 16.
    pub dev_depth: u16,
    /// Requests in flight per serving thread on `/dev/fuse` after growth, default 1024.
    pub dev_depth_max: u16,
}

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            max_write_bytes: 1 << 20,
            max_read_bytes: 0,
            max_pages_limit: PAGES_LIMIT,
            max_readahead_bytes: 1 << 20,
            max_background: u16::MAX,
            time_granularity_ns: 1,
            atomic_o_trunc: true,
            readdirplus: ReaddirPlus::Auto,
            posix_locks: true,
            flock_locks: true,
            posix_acl: false,
            cache_symlinks: false,
            security_ctx: false,
            create_supp_group: true,
            direct_io_allow_mmap: true,
            handle_killpriv_v2: true,
            single_writer: false,
            request_timeout: Duration::ZERO,
            ring_depth: 16,
            ring_depth_max: 1024,
            dev_depth: 16,
            dev_depth_max: 1024,
        }
    }
}

/// What kernel and session agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Minor protocol version in use, 31..=45.
    pub minor: u32,
    /// Everything the kernel offered.
    pub offered: u64,
    /// Abilities in use, bits of [`crate::abi::init`].
    pub flags: u64,
    /// Largest WRITE and READ payload in bytes.
    pub max_write_bytes: u32,
    /// Largest READ of pages in bytes: a longer window of read-ahead comes as several.
    pub max_read_bytes: u32,
    /// Kernel read-ahead in bytes.
    pub max_readahead_bytes: u32,
    /// Asynchronous requests that the kernel may have outstanding.
    pub max_background: u16,
}

impl Negotiated {
    /// Whether an ability is in use.
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag == flag
    }
}

/// Why no session came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    /// The kernel is too old (before 5.4).
    #[error(
        "the kernel speaks FUSE {major}.{minor}; at least {KERNEL_VERSION}.{KERNEL_MINOR_MIN} is needed (Linux 5.4)"
    )]
    TooOld {
        /// Kernel's major version.
        major: u32,
        /// Kernel's minor version.
        minor: u32,
    },
    /// The kernel speaks a newer major version: answer with ours, it will ask again.
    #[error("the kernel speaks FUSE {0}; it was asked to speak {KERNEL_VERSION}")]
    AskAgain(u32),
    /// A configuration value is out of range.
    #[error("max_write is {0} bytes: must be a multiple of 4096 between 4096 and 16777216")]
    BadMaxWrite(u32),
}

/// Answers INIT. `want_ring` says that requests should travel on rings if the kernel can.
///
/// # Errors
/// [`InitError`]; nothing has been sent yet.
pub fn negotiate(arg: &InitIn, config: &SessionConfig, want_ring: bool) -> Result<(InitOut, Negotiated), InitError> {
    if arg.major > KERNEL_VERSION {
        return Err(InitError::AskAgain(arg.major));
    }
    if arg.major < KERNEL_VERSION || arg.minor < KERNEL_MINOR_MIN {
        return Err(InitError::TooOld { major: arg.major, minor: arg.minor });
    }
    let write = config.max_write_bytes;
    if !(4096..=16 << 20).contains(&write) || !write.is_multiple_of(4096) {
        return Err(InitError::BadMaxWrite(write));
    }
    let mut offered = u64::from(arg.flags);
    if offered & INIT_EXT != 0 {
        offered |= u64::from(arg.flags2) << 32;
    }
    let flags = wanted(config, want_ring) & offered;
    let minor = arg.minor.min(KERNEL_MINOR);
    let read = largest_read(config);
    let readahead = config.max_readahead_bytes.min(arg.max_readahead).min(pages_of_half(read));
    let timeout_s = config.request_timeout.as_secs() + u64::from(config.request_timeout.subsec_nanos() > 0);
    let out = InitOut {
        major: KERNEL_VERSION,
        minor,
        max_readahead: readahead,
        flags: (flags & 0xffff_ffff) as u32,
        max_background: config.max_background,
        congestion_threshold: config.max_background - config.max_background / 4,
        max_write: write,
        time_gran: config.time_granularity_ns,
        max_pages: u16::try_from(pages_of_buffer(write)).expect("at most 16 MiB"),
        flags2: (flags >> 32) as u32,
        request_timeout: u16::try_from(timeout_s).unwrap_or(u16::MAX),
        ..Default::default()
    };
    let negotiated = Negotiated {
        minor,
        offered,
        flags,
        max_write_bytes: write,
        max_read_bytes: read,
        max_readahead_bytes: readahead,
        max_background: config.max_background,
    };
    Ok((out, negotiated))
}

/// Pages of memory over which a buffer of so many bytes may lie: it need not begin at one. A kernel allows no more than its sysctl
/// `fs.fuse.max_pages_limit` (256), and sends a buffer that lies over more in two requests.
pub(crate) const fn pages_of_buffer(bytes: u32) -> u32 {
    bytes / 4096 + 1
}

/// Bytes of the longest READ of pages that a kernel sends.
fn largest_read(config: &SessionConfig) -> u32 {
    let option = if config.max_read_bytes == 0 { u32::MAX } else { config.max_read_bytes };
    let pages = pages_of_buffer(config.max_write_bytes).min(config.max_pages_limit.max(1));
    // A kernel takes `max_read` in whole pages.
    config.max_write_bytes.min(option / 4096 * 4096).min(pages.saturating_mul(4096)).max(4096)
}

/// Pages of a request at most where a kernel does not say (its own default).
pub const PAGES_LIMIT: u32 = 256;

/// Half of `bytes` in whole pages, one at least.
fn pages_of_half(bytes: u32) -> u32 {
    (bytes / 2 / 4096).max(1) * 4096
}

/// The answer that makes a newer kernel ask again in our version.
pub fn ask_again() -> InitOut {
    InitOut { major: KERNEL_VERSION, minor: KERNEL_MINOR, ..Default::default() }
}

/// Flags that the configuration asks for.
fn wanted(config: &SessionConfig, want_ring: bool) -> u64 {
    let mut flags = BIG_WRITES
        | MAX_PAGES
        | ASYNC_DIO
        | PARALLEL_DIROPS
        | DONT_MASK
        | HAS_IOCTL_DIR
        | INIT_EXT
        | SETXATTR_EXT
        | HAS_EXPIRE_ONLY
        | EXPLICIT_INVAL_DATA
        | EXPORT_SUPPORT
        | NO_OPENDIR_SUPPORT;
    let options = [
        (config.atomic_o_trunc, ATOMIC_O_TRUNC),
        (config.readdirplus != ReaddirPlus::Off, DO_READDIRPLUS),
        (config.readdirplus == ReaddirPlus::Auto, READDIRPLUS_AUTO),
        (config.posix_locks, POSIX_LOCKS),
        (config.flock_locks, FLOCK_LOCKS),
        (config.posix_acl, POSIX_ACL),
        (config.cache_symlinks, CACHE_SYMLINKS),
        (config.security_ctx, SECURITY_CTX),
        (config.create_supp_group, CREATE_SUPP_GROUP),
        (config.direct_io_allow_mmap, DIRECT_IO_ALLOW_MMAP),
        (config.handle_killpriv_v2, HANDLE_KILLPRIV_V2),
        (config.single_writer, WRITEBACK_CACHE),
        (!config.request_timeout.is_zero(), REQUEST_TIMEOUT),
        (want_ring, OVER_IO_URING),
        (types::planted!("reads-in-line"), ASYNC_READ),
    ];
    for (wished, flag) in options {
        if wished {
            flags |= flag;
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, flags: u64) -> InitIn {
        InitIn {
            major: 7,
            minor,
            max_readahead: 131072,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            ..Default::default()
        }
    }

    #[test]
    fn writeback_cache_is_never_agreed_on_unless_this_mount_is_the_only_writer() {
        let config = SessionConfig::default();
        let (out, n) = negotiate(&offer(45, !0), &config, true).unwrap();
        assert!(!n.has(WRITEBACK_CACHE) && u64::from(out.flags) & WRITEBACK_CACHE == 0);
        let config = SessionConfig { single_writer: true, ..config };
        assert!(negotiate(&offer(45, !0), &config, true).unwrap().1.has(WRITEBACK_CACHE));
    }

    #[test]
    fn only_what_the_kernel_offered_is_agreed_on_and_high_bits_need_init_ext() {
        let (out, n) = negotiate(&offer(31, ASYNC_DIO | OVER_IO_URING), &SessionConfig::default(), true).unwrap();
        assert_eq!((n.flags, out.flags2, n.minor), (ASYNC_DIO, 0, 31));
        let all = ASYNC_DIO | INIT_EXT | OVER_IO_URING;
        let (out, _) = negotiate(&offer(99, all), &SessionConfig::default(), true).unwrap();
        assert_eq!((u64::from(out.flags2) << 32, out.minor), (OVER_IO_URING, KERNEL_MINOR));
        let (out, _) = negotiate(&offer(45, all), &SessionConfig::default(), false).unwrap();
        assert_eq!(out.flags2, 0);
    }

    #[test]
    fn reads_of_pages_are_told_whole_and_never_stand_in_line() {
        let c = SessionConfig::default();
        let (out, n) = negotiate(&InitIn { max_readahead: 8 << 20, ..offer(45, !0) }, &c, true).unwrap();
        assert_eq!((n.flags & ASYNC_READ, out.max_readahead), (0, 512 << 10));
        let (out, _) = negotiate(&offer(45, !0), &SessionConfig { max_write_bytes: 12288, ..c.clone() }, true).unwrap();
        assert_eq!(out.max_readahead, 4096, "whole pages of half of it");
        for (max_read_bytes, max_pages_limit, longest) in [
            (0, 256, 1 << 20),
            (131_072, 256, 131_072),
            (70_000, 256, 69_632),
            (0, 16, 65_536),
            (16 << 20, 999, 1 << 20),
        ] {
            let config = SessionConfig { max_read_bytes, max_pages_limit, ..c.clone() };
            let (out, n) = negotiate(&offer(45, !0), &config, true).unwrap();
            assert_eq!((n.max_read_bytes, out.max_write), (longest, 1 << 20), "max_read={max_read_bytes}");
            assert!(out.max_readahead <= longest, "a READ names all pages that are locked for it");
        }
        let (out, _) = negotiate(&offer(45, !0), &SessionConfig { max_write_bytes: 4096, ..c }, true).unwrap();
        assert_eq!(out.max_readahead, 4096);
    }

    #[test]
    fn a_buffer_that_begins_within_a_page_of_memory_fits_one_request() {
        for (bytes, pages) in [(4096, 2), (1 << 20, 257), (16 << 20, 4097)] {
            let config = SessionConfig { max_write_bytes: bytes, ..SessionConfig::default() };
            let (out, _) = negotiate(&offer(45, !0), &config, true).unwrap();
            assert_eq!((out.max_write, out.max_pages), (bytes, pages));
        }
    }

    #[test]
    fn dax_and_idmap_are_never_agreed_on() {
        let (_, n) = negotiate(&offer(45, !0), &SessionConfig::default(), true).unwrap();
        assert_eq!(n.flags & (HAS_INODE_DAX | ALLOW_IDMAP | PASSTHROUGH | POSIX_ACL), 0);
    }

    #[test]
    fn old_and_newer_kernels_are_told_apart() {
        let c = SessionConfig::default();
        assert_eq!(negotiate(&offer(30, !0), &c, true), Err(InitError::TooOld { major: 7, minor: 30 }));
        assert_eq!(negotiate(&InitIn { major: 8, ..offer(0, 0) }, &c, true), Err(InitError::AskAgain(8)));
        let c = SessionConfig { max_write_bytes: 5000, ..c };
        assert_eq!(negotiate(&offer(45, !0), &c, true), Err(InitError::BadMaxWrite(5000)));
    }

    #[test]
    fn request_timeouts_round_up_to_whole_seconds() {
        let c = SessionConfig { request_timeout: Duration::from_millis(1500), ..Default::default() };
        assert_eq!(negotiate(&offer(45, !0), &c, true).unwrap().0.request_timeout, 2);
    }
}
