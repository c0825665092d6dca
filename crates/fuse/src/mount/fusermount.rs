//! Mounts by users: the setuid helper fusermount3 mounts for us and passes the descriptor over a socket.
use super::{MountError, MountOptions};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where fusermount3 is installed.
pub(crate) fn find_fusermount() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|d| d.join("fusermount3")).find(|p| p.is_file())
}

/// Mounts through fusermount3. The socket must stay open while `auto_unmount` is wanted.
pub(crate) fn mount(at: &Path, options: &MountOptions) -> Result<(OwnedFd, Option<UnixStream>), MountError> {
    let program = find_fusermount().ok_or(MountError::NoFusermount)?;
    let (ours, theirs) = UnixStream::pair().map_err(|e| MountError::io("making a socket pair", at, e))?;
    let raw = theirs.as_raw_fd();
    let mut command = Command::new(program);
    command.arg("-o").arg(options.fusermount_options()).arg("--").arg(at);
    command.env("_FUSE_COMMFD", raw.to_string()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: fcntl is async-signal-safe; it only clears close-on-exec of the child's copy.
    unsafe {
        command.pre_exec(move || match libc::fcntl(raw, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        })
    };
    let mut child = command.spawn().map_err(|e| MountError::io("starting fusermount3 for", at, e))?;
    drop(theirs);
    match receive_fd(&ours) {
        Ok(fd) => {
            if options.auto_unmount {
                // The helper lives as long as the socket; a thread collects it.
                std::thread::spawn(move || child.wait());
                return Ok((fd, Some(ours)));
            }
            child.wait().map_err(|e| MountError::io("waiting for fusermount3 for", at, e))?;
            Ok((fd, None))
        }
        Err(_) => {
            let mut text = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                let _ = stderr.read_to_string(&mut text);
            }
            let _ = child.wait();
            Err(MountError::Fusermount { at: at.into(), said: text.trim().to_owned() })
        }
    }
}

/// Unmounts through fusermount3.
pub(crate) fn unmount(at: &Path, lazy: bool) -> Result<(), MountError> {
    let program = find_fusermount().ok_or(MountError::NoFusermount)?;
    let flags: &[&OsStr] = if lazy { &[OsStr::new("-u"), OsStr::new("-z")] } else { &[OsStr::new("-u")] };
    let out = Command::new(program).args(flags).arg("--").arg(at).output();
    let out = out.map_err(|e| MountError::io("starting fusermount3 for", at, e))?;
    let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    if out.status.success() {
        Ok(())
    } else if said.contains("busy") {
        Err(MountError::StillBusy { at: at.into() })
    } else {
        Err(MountError::Fusermount { at: at.into(), said })
    }
}

/// Receives the descriptor of `/dev/fuse` (SCM_RIGHTS).
fn receive_fd(socket: &UnixStream) -> io::Result<OwnedFd> {
    #[repr(align(8))]
    struct Control([u8; 64]);
    let mut control = Control([0; 64]);
    let mut byte = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: an all-zero msghdr is valid; its pointers are set to live locals below.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.0.as_mut_ptr().cast();
    msg.msg_controllen = control.0.len();
    loop {
        // SAFETY: `msg` points to live buffers with their right lengths.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut msg, libc::MSG_CMSG_CLOEXEC) };
        match n {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n if n > 0 => break,
            _ => {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
    // SAFETY: `msg` was filled by the kernel; the macros stay inside `msg_controllen`.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const msg) };
    if head.is_null() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: not null, so a complete control header; SCM_RIGHTS carries at least one descriptor, now ours.
    unsafe {
        if (*head).cmsg_level != libc::SOL_SOCKET || (*head).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<i32>().read_unaligned()))
    }
}
