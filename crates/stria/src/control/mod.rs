//! Talking to a running mount: one line of JSON there, one back, over a Unix socket named after the FUSE connection, in a
//! directory of the mount's owner. Reading is everybody's; changing is for root and the user who runs the daemon.
mod ask;
mod changelog;
mod events;
mod look;
mod map;
mod own;
mod params;
mod place;
mod quota;
mod server;
mod shard;

pub use ask::{Asked, Unanswered, ask, ask_of, ask_osts, begin, daemon_of};
pub use events::{Ask, Event, Events, block_signals, stop_signals_fd, unblock_signals};
pub use place::own_place;
pub use server::{Served, serve};
pub use shard::{Facts, Shard};

/// Longest line in bytes: a request is short, an answer may hold every parameter of a large cluster.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Who is on the other end of a socket.
fn peer_uid(stream: &std::os::unix::net::UnixStream) -> Option<u32> {
    peer(stream).map(|p| p.uid)
}

/// The process at the other end of a connection: of a listener, the one that began to listen.
fn peer(stream: &std::os::unix::net::UnixStream) -> Option<libc::ucred> {
    use std::os::fd::AsRawFd;
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a structure of the said length that outlives the call.
    let rc = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &raw mut len)
    };
    (rc == 0).then_some(cred)
}
