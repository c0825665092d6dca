//! Attributes of a path by statx(2): with birth time, and from the kernel's memory alone where that is asked for.
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A time in seconds and nanoseconds.
pub type At = (i64, u32);

/// What is known of a file.
#[derive(Clone, Copy)]
pub struct Stat(libc::statx);

impl Stat {
    /// Of the path itself, not of what a link names. `lazy`: what the kernel knows is good enough.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn of(path: &Path, lazy: bool) -> io::Result<Stat> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)?;
        let sync = if lazy { libc::AT_STATX_DONT_SYNC } else { libc::AT_STATX_SYNC_AS_STAT };
        let (flags, mask) = (libc::AT_SYMLINK_NOFOLLOW | sync, libc::STATX_BASIC_STATS | libc::STATX_BTIME);
        // SAFETY: integers only, for which zeros are values.
        let mut stat: libc::statx = unsafe { std::mem::zeroed() };
        // SAFETY: a NUL-terminated path and a structure that outlive the call.
        match unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, &raw mut stat) } {
            0 => Ok(Stat(stat)),
            _ => Err(io::Error::last_os_error()),
        }
    }
    /// Type bits as in `st_mode`.
    pub fn kind(&self) -> u32 {
        u32::from(self.0.stx_mode) & libc::S_IFMT
    }
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }
    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }
    /// Letter of the type, as in `-type`.
    pub fn letter(&self) -> char {
        match self.kind() {
            libc::S_IFREG => 'f',
            libc::S_IFDIR => 'd',
            libc::S_IFLNK => 'l',
            libc::S_IFBLK => 'b',
            libc::S_IFCHR => 'c',
            libc::S_IFIFO => 'p',
            libc::S_IFSOCK => 's',
            _ => '?',
        }
    }
    /// Permission bits.
    pub fn perm(&self) -> u32 {
        u32::from(self.0.stx_mode) & 0o7777
    }
    /// Type and permissions as `ls -l` shows them.
    pub fn mode_text(&self) -> String {
        let kind = match self.letter() {
            'f' => '-',
            other => other,
        };
        let bits = |shift: u32, special: bool, mark: char| {
            let p = self.perm() >> shift;
            let x = match (p & 1 == 1, special) {
                (true, true) => mark,
                (false, true) => mark.to_ascii_uppercase(),
                (true, false) => 'x',
                (false, false) => '-',
            };
            [if p & 4 == 4 { 'r' } else { '-' }, if p & 2 == 2 { 'w' } else { '-' }, x]
        };
        let special = |bit: u32| self.perm() & bit != 0;
        let all = [bits(6, special(0o4000), 's'), bits(3, special(0o2000), 's'), bits(0, special(0o1000), 't')];
        std::iter::once(kind).chain(all.into_iter().flatten()).collect()
    }
    pub fn ino(&self) -> u64 {
        self.0.stx_ino
    }
    pub fn links(&self) -> u64 {
        u64::from(self.0.stx_nlink)
    }
    pub fn uid(&self) -> u32 {
        self.0.stx_uid
    }
    pub fn gid(&self) -> u32 {
        self.0.stx_gid
    }
    pub fn bytes(&self) -> u64 {
        self.0.stx_size
    }
    /// In units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.stx_blocks
    }
    /// One of its times; the birth time of some file systems is unknown.
    pub fn time(&self, clock: Clock) -> Option<At> {
        let t = match clock {
            Clock::Accessed => self.0.stx_atime,
            Clock::Changed => self.0.stx_ctime,
            Clock::Modified => self.0.stx_mtime,
            Clock::Born if self.0.stx_mask & libc::STATX_BTIME != 0 => self.0.stx_btime,
            Clock::Born => return None,
        };
        Some((t.tv_sec, t.tv_nsec))
    }
}

/// Which time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    Accessed,
    Born,
    Changed,
    Modified,
}

impl Clock {
    /// By its letter in `-newerXY` and `-printf`.
    pub fn of(letter: char) -> Option<Clock> {
        match letter {
            'a' => Some(Clock::Accessed),
            'b' | 'B' => Some(Clock::Born),
            'c' => Some(Clock::Changed),
            'm' => Some(Clock::Modified),
            _ => None,
        }
    }
}
