//! The ioctl by which `lfs migrate` has a file get other objects: of an open file, with the layout that is wished.
use std::cell::Cell;
use std::rc::Rc;

use client::{Begins, Missed};
use fuse::abi::IOCTL_DIR;
use fuse::{Op, Replied, Request};

use crate::killed::Caller;
use crate::{StriaFs, errno};

/// The ioctl's number: `_IOW('S', 0xAE, struct { u32 flags; u32 layout_bytes; u64 bytes_per_s; u8 layout[4080]; })`.
pub const MIGRATE: u32 = 1 << 30 | (Migrate::BYTES as u32) << 16 | (b'S' as u32) << 8 | 0xAE;

const GIVES_WAY: u32 = 1;
const HEAD_BYTES: usize = 16;

/// The ioctl's argument. It is answered when the file has its new objects: EBUSY when somebody else migrates it or changed it (`gives_way`),
/// or servers did not answer in time; EAGAIN when so many calls wait that none is left for others; ENODATA for a file without objects. Nothing has changed then, as with every other failure, save that a
/// metadata server without space (ENOSPC) may still exchange the objects when it has some; no byte is lost either way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Migrate {
    /// Somebody else's change meanwhile ends it.
    pub gives_way: bool,
    /// Bytes a second that are copied at most; 0: as fast as it goes.
    pub bytes_per_s: u64,
    /// `lustre.lov` set bytes, at most [`Migrate::LAYOUT_BYTES_MAX`]; empty: the directory's default.
    pub layout: Vec<u8>,
}

impl Migrate {
    /// Bytes of the argument.
    pub const BYTES: usize = 4096;
    /// Bytes of a layout at most: one that names 168 OSTs.
    pub const LAYOUT_BYTES_MAX: usize = Migrate::BYTES - HEAD_BYTES;

    /// The argument's bytes; `None`: the layout is too long.
    #[must_use]
    pub fn bytes(&self) -> Option<Box<[u8; Migrate::BYTES]>> {
        let mut bytes = Box::new([0; Migrate::BYTES]);
        bytes[..4].copy_from_slice(&u32::from(self.gives_way).to_ne_bytes());
        bytes[4..8].copy_from_slice(&u32::try_from(self.layout.len()).ok()?.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.bytes_per_s.to_ne_bytes());
        bytes.get_mut(HEAD_BYTES..HEAD_BYTES + self.layout.len())?.copy_from_slice(&self.layout);
        Some(bytes)
    }
    /// Reads the argument; `None` when it is not one.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<Migrate> {
        let data: &[u8; Migrate::BYTES] = data.try_into().ok()?;
        let half = |at: usize| u32::from_ne_bytes(data[at..at + 4].try_into().expect("four bytes"));
        let bytes_per_s = u64::from_ne_bytes(data[8..16].try_into().expect("eight bytes"));
        let layout = data[HEAD_BYTES..].get(..usize::try_from(half(4)).ok()?)?.to_vec();
        (half(0) <= GIVES_WAY).then_some(Migrate { gives_way: half(0) == GIVES_WAY, bytes_per_s, layout })
    }
}

impl StriaFs {
    /// Whether a request is [`MIGRATE`].
    pub(crate) fn asks_to_migrate(req: &Request<'_>) -> bool {
        matches!(req.op(), Op::Ioctl { arg, .. } if arg.cmd == MIGRATE)
    }

    pub(crate) async fn migrate(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let Op::Ioctl { arg, data } = req.op() else { return req.err(libc::ENOSYS) };
        if arg.flags & IOCTL_DIR != 0 {
            return req.err(libc::EISDIR);
        }
        let Some(file) = self.client.meta().file(arg.fh) else { return req.err(libc::EBADF) };
        let Some(_lasting) = req.lasting() else { return req.err(libc::EAGAIN) };
        let Some(said) = Migrate::parse(data) else { return req.err(libc::EINVAL) };
        let how = client::Migrate { layout: said.layout, gives_way: said.gives_way, bytes_per_s: said.bytes_per_s };
        let (cred, mut caller) = (self.cred(&req).await, Caller::of(&req));
        let missed = Missed::attributes(file.fid());
        let stopped = Rc::new(Cell::new(false));
        let asked = stopped.clone();
        let done = self
            .carry_out_or(
                &mut caller,
                Begins::InTurn,
                missed,
                |c| async move { c.migrate(&cred, file.inode(), &how, &|| asked.get()).await },
                |_, _| (),
                || stopped.set(true),
            )
            .await;
        match done {
            Ok(_) => req.into_reply().ioctl(0, &[]),
            Err(e) => req.err(errno(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read_and_nothing_else_is_taken() {
        let said = Migrate { gives_way: true, bytes_per_s: 7 << 40, layout: vec![5; 80] };
        let bytes = said.bytes().unwrap();
        assert_eq!(Migrate::parse(&bytes[..]), Some(said.clone()));
        assert_eq!(Migrate::parse(&bytes[1..]), None);
        let mut wrong = bytes.clone();
        wrong[1] = 1;
        assert_eq!(Migrate::parse(&wrong[..]), None, "an unknown flag");
        wrong = bytes;
        wrong[5] = 0xff;
        assert_eq!(Migrate::parse(&wrong[..]), None, "a layout behind the end");
        let full = Migrate { layout: vec![1; Migrate::LAYOUT_BYTES_MAX], ..said.clone() };
        assert_eq!(Migrate::parse(&full.bytes().unwrap()[..]), Some(full));
        assert!(Migrate { layout: vec![1; Migrate::LAYOUT_BYTES_MAX + 1], ..said }.bytes().is_none());
    }
}
