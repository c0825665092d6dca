//! The ioctls by which programs (chattr -p, lsattr -p, `lfs project`) see and set a file's project: FS_IOC_FSGETXATTR,
//! FS_IOC_FSSETXATTR, and FS_IOC_GETFLAGS before them, which a FUSE kernel passes on since Linux 5.13.
//!
//! What is made in a directory gets the directory's project, always: so directories that have one say that it is inherited.
use std::rc::Rc;

use client::Missed;
use fuse::{Op, Replied, Request};
use wire::mdt::{SetBits, SetattrRequest};

use crate::killed::Caller;
use crate::{StriaFs, convert, errno};

/// Bytes of `struct fsxattr`: flags, extent size, extents, project (u32 each), and what is nothing to us.
const ARGUMENT_BYTES: usize = 28;
/// `FS_IOC_FSGETXATTR`: `_IOR('X', 31, struct fsxattr)`.
pub const GET: u32 = 2 << 30 | (ARGUMENT_BYTES as u32) << 16 | (b'X' as u32) << 8 | 31;
/// `FS_IOC_FSSETXATTR`: `_IOW('X', 32, struct fsxattr)`.
pub const SET: u32 = 1 << 30 | (ARGUMENT_BYTES as u32) << 16 | (b'X' as u32) << 8 | 32;
/// `FS_IOC_GETFLAGS`, which chattr and lsattr ask first: `_IOR('f', 1, long)`.
const FLAGS: u32 = 2 << 30 | 8 << 16 | (b'f' as u32) << 8 | 1;
/// `FS_PROJINHERIT_FL`.
const FLAG_INHERITS: u32 = 0x2000_0000;
/// Where the project stands.
const PROJECT_AT: usize = 12;
/// `FS_XFLAG_PROJINHERIT`.
const INHERITS: u32 = 0x200;
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;

/// The argument: flags and project.
#[must_use]
pub fn argument(flags: u32, project: u32) -> [u8; ARGUMENT_BYTES] {
    let mut bytes = [0; ARGUMENT_BYTES];
    bytes[..4].copy_from_slice(&flags.to_ne_bytes());
    bytes[PROJECT_AT..PROJECT_AT + 4].copy_from_slice(&project.to_ne_bytes());
    bytes
}

/// Flags and project of an argument; `None` when it is none.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<(u32, u32)> {
    let bytes: &[u8; ARGUMENT_BYTES] = bytes.try_into().ok()?;
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    Some((word(0), word(PROJECT_AT)))
}

impl StriaFs {
    /// Whether a request is about projects.
    pub(crate) fn asks_for_project(req: &Request<'_>) -> bool {
        matches!(req.op(), Op::Ioctl { arg, .. } if matches!(arg.cmd, GET | SET | FLAGS))
    }

    pub(crate) async fn project(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let Op::Ioctl { arg, data } = req.op() else { return req.err(libc::ENOSYS) };
        let fid = convert::fid(req.nodeid());
        let (cred, mut caller) = (self.cred(&req).await, Caller::of(&req));
        if arg.cmd != SET {
            let told = self.ask(&mut caller, |c| async move { c.getattr(&cred, fid, None).await });
            return match told.await {
                Ok(e) => {
                    let inherits = e.attr.mode & S_IFMT == S_IFDIR && e.attr.project != 0;
                    let mut answer = argument(if inherits { INHERITS } else { 0 }, e.attr.project).to_vec();
                    if arg.cmd == FLAGS {
                        answer = if inherits { FLAG_INHERITS } else { 0 }.to_ne_bytes().to_vec();
                        answer.resize((arg.out_size as usize).clamp(4, 8), 0);
                    }
                    req.into_reply().ioctl(0, &answer)
                }
                Err(e) => req.err(errno(e)),
            };
        }
        // Other flags say how a local file system lays a file out.
        let Some((flags, project)) = read(data) else { return req.err(libc::EINVAL) };
        if flags & !INHERITS != 0 {
            return req.err(libc::EOPNOTSUPP);
        }
        let inode = self.client.meta().inode(fid);
        let set = SetattrRequest { valid: SetBits::PROJECT, project, ..SetattrRequest::default() };
        let done = self.carry_out(&mut caller, Missed::attributes(fid), |c| async move {
            c.setattr(&cred, &inode, set, None).await
        });
        match done.await {
            Ok(()) => req.into_reply().ioctl(0, &[]),
            Err(e) => req.err(errno(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bytes_are_the_kernels() {
        assert_eq!((GET, SET, FLAGS), (0x801c_581f, 0x401c_5820, 0x8008_6601));
        let bytes = argument(INHERITS, 77);
        assert_eq!((read(&bytes), read(&bytes[1..])), (Some((INHERITS, 77)), None));
    }
}
