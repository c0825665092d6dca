//! What the daemon of a mount answers to the ioctl by which a program asks for the native path of an open file.
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::ring::{Submission, op};

/// The version of the offer, the rings and what stands in them.
pub const VERSION: u32 = 4;
/// The ioctl's number: `_IOR('S', 0xAE, struct { u32 version; u32 uid; u64 file; u64 token[2]; u64 flags; char path[104]; })`.
pub const OFFER: u32 = 2 << 30 | (Offer::BYTES as u32) << 16 | (b'S' as u32) << 8 | 0xAE;
/// Room for the socket's path; a path that fills it is none of a Unix socket.
const PATH_BYTES: usize = 104;
const PATH_AT: usize = 40;
/// Flag: see [`Offer::paged`].
const PAGED: u64 = 1;

/// The offer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The user whom the daemon runs as.
    pub uid: u32,
    /// The daemon's name of the open file.
    pub file: u64,
    /// Proves the right to it, once: the next ioctl of the same open file brings another.
    pub token: [u64; 2],
    /// The kernel keeps pages of what is read through this open file: what is read again is faster from there.
    pub paged: bool,
    /// The daemon's socket.
    pub socket: PathBuf,
}

impl Offer {
    /// Bytes of the ioctl's argument.
    pub const BYTES: usize = PATH_AT + PATH_BYTES;

    /// The bytes that the ioctl brings; `None`: the socket's path is too long, or no path.
    #[must_use]
    pub fn bytes(&self) -> Option<[u8; Offer::BYTES]> {
        let path = self.socket.as_os_str().as_bytes();
        if path.is_empty() || path.len() >= PATH_BYTES || path.contains(&0) {
            return None;
        }
        let mut bytes = [0; Offer::BYTES];
        bytes[..4].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.uid.to_ne_bytes());
        for (i, word) in
            [self.file, self.token[0], self.token[1], if self.paged { PAGED } else { 0 }].into_iter().enumerate()
        {
            bytes[8 + 8 * i..16 + 8 * i].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[PATH_AT..PATH_AT + path.len()].copy_from_slice(path);
        Some(bytes)
    }

    /// Reads what the ioctl brought.
    ///
    /// # Errors
    /// ENOTSUP: another version, or not an offer at all.
    pub fn parse(bytes: &[u8; Offer::BYTES]) -> io::Result<Offer> {
        let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let path = &bytes[PATH_AT..];
        let end = path.iter().position(|b| *b == 0).unwrap_or(0);
        let socket = Path::new(OsStr::from_bytes(&path[..end]));
        if half(0) != VERSION || !socket.is_absolute() {
            return Err(io::Error::from_raw_os_error(libc::ENOTSUP));
        }
        let (token, paged) = ([word(16), word(24)], word(32) & PAGED != 0);
        Ok(Offer { uid: half(4), file: word(8), token, paged, socket: socket.to_path_buf() })
    }

    /// The request that turns it into a number on a connection.
    #[must_use]
    pub fn binding(&self) -> Submission {
        Submission {
            op: op::BIND,
            file: self.file,
            offset: self.token[0],
            spare: self.token[1],
            ..Submission::default()
        }
    }

    /// Asks the mount that an open file lies on.
    ///
    /// # Errors
    /// ENOTTY: it lies on none of ours, or is no regular file; ENOTSUP: the mount offers no native path, or another version;
    /// EBADF and what else ioctl(2) has.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Offer> {
        let mut bytes = [0u8; Offer::BYTES];
        // SAFETY: the argument has the length that the ioctl's number says, and outlives the call.
        let rc = unsafe { libc::ioctl(file.as_raw_fd(), libc::c_ulong::from(OFFER), bytes.as_mut_ptr()) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        Offer::parse(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_read_as_it_was_written_and_nothing_else_is() {
        let offer = Offer { uid: 7, file: 5, token: [1, u64::MAX], paged: true, socket: "/run/stria/native-1".into() };
        let bytes = offer.bytes().unwrap();
        assert_eq!(Offer::parse(&bytes).unwrap(), offer);
        let mut other = bytes;
        other[0] ^= 1;
        assert_eq!(Offer::parse(&other).unwrap_err().raw_os_error(), Some(libc::ENOTSUP));
        assert!(Offer::parse(&[0; Offer::BYTES]).is_err());
        let mut endless = bytes;
        endless[PATH_AT..].fill(b'/');
        assert!(Offer::parse(&endless).is_err(), "a path without an end");
        let long = Offer { socket: format!("/{}", "x".repeat(PATH_BYTES)).into(), ..offer };
        assert_eq!(long.bytes(), None);
    }

    #[test]
    fn files_of_other_file_systems_have_no_offer() {
        let file = tempfile::tempfile().unwrap();
        let no = Offer::of(std::os::fd::AsFd::as_fd(&file)).unwrap_err();
        assert!(matches!(no.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL | libc::ENOTSUP)), "{no}");
    }
}
