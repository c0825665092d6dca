//! Replies: every shape of answer that the protocol knows, for both transports.
//!
//! On a ring a reply is memory: structures and data are copied into the entry's payload and committed together with the
//! fetch of the next request. On `/dev/fuse` it is one writev(2), so data go from where they are (a cache frame)
//! straight to the kernel. Neither blocks. Each method consumes the reply and returns the proof, [`Replied`].
use crate::abi::*;
use crate::slot::{Slot, Via};
use frames::Bulk;
use std::io::IoSlice;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Slices that one `/dev/fuse` reply may consist of; more are gathered in the slot's payload first.
const IOVECS_MAX: usize = 512;

/// Proof that a request was answered. Only replies make it; a handler returns the one of its own request.
#[must_use = "a handler returns this to say that it answered"]
#[derive(Debug)]
pub struct Replied {
    pub(crate) unique: u64,
}

/// A name's node as LOOKUP and creating operations answer it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Node id, not 0; with `generation` never reused while the mount lives. The kernel counts one lookup.
    pub nodeid: u64,
    /// Distinguishes users of one node id over time. 0 if ids are never reused.
    pub generation: u64,
    /// How long the kernel may believe the name without asking.
    pub entry_ttl: Duration,
    /// How long the kernel may believe the attributes without asking.
    pub attr_ttl: Duration,
    /// The attributes.
    pub attr: Attr,
}

impl From<&Entry> for EntryOut {
    fn from(e: &Entry) -> Self {
        EntryOut {
            nodeid: e.nodeid,
            generation: e.generation,
            entry_valid: e.entry_ttl.as_secs(),
            attr_valid: e.attr_ttl.as_secs(),
            entry_valid_nsec: e.entry_ttl.subsec_nanos(),
            attr_valid_nsec: e.attr_ttl.subsec_nanos(),
            attr: e.attr,
        }
    }
}

/// The answer to one request, being made.
pub struct Reply<'s> {
    slot: &'s mut Slot,
    unique: u64,
    opcode: u32,
}

impl<'s> Reply<'s> {
    pub(crate) fn new(slot: &'s mut Slot, header: &InHeader) -> Self {
        Reply { slot, unique: header.unique, opcode: header.opcode }
    }

    /// Success without data.
    pub fn ok(self) -> Replied {
        self.send(0, &[])
    }

    /// Failure with a positive errno value below 512.
    ///
    /// # Panics
    /// On 0, negative or out-of-range values.
    pub fn err(self, errno: i32) -> Replied {
        assert!((1..512).contains(&errno), "errno {errno} for {}", opcode_name(self.opcode));
        self.send(-errno, &[])
    }

    /// Answer to LOOKUP, MKNOD, MKDIR, SYMLINK, LINK.
    pub fn entry(self, entry: &Entry) -> Replied {
        self.send(0, &[EntryOut::from(entry).as_bytes()])
    }

    /// "There is no such name", which the kernel may believe for `ttl`. Only for LOOKUP.
    pub fn negative_entry(self, ttl: Duration) -> Replied {
        let entry = EntryOut { entry_valid: ttl.as_secs(), entry_valid_nsec: ttl.subsec_nanos(), ..Default::default() };
        self.send(0, &[entry.as_bytes()])
    }

    /// Answer to GETATTR and SETATTR, which the kernel may believe for `ttl`.
    pub fn attr(self, attr: &Attr, ttl: Duration) -> Replied {
        let out = AttrOut { attr_valid: ttl.as_secs(), attr_valid_nsec: ttl.subsec_nanos(), dummy: 0, attr: *attr };
        self.send(0, &[out.as_bytes()])
    }

    /// Answer to STATX.
    pub fn statx(self, stat: &Statx, ttl: Duration) -> Replied {
        let head = (ttl.as_secs(), ttl.subsec_nanos());
        let out = StatxOut { attr_valid: head.0, attr_valid_nsec: head.1, stat: *stat, ..Default::default() };
        self.send(0, &[out.as_bytes()])
    }

    /// Answer to OPEN and OPENDIR; `flags` from [`crate::abi::fopen`].
    pub fn open(self, fh: u64, flags: u32) -> Replied {
        self.send(0, &[OpenOut { fh, open_flags: flags, backing_id: 0 }.as_bytes()])
    }

    /// Answer to CREATE and TMPFILE.
    pub fn create(self, entry: &Entry, fh: u64, flags: u32) -> Replied {
        let open = OpenOut { fh, open_flags: flags, backing_id: 0 };
        self.send(0, &[EntryOut::from(entry).as_bytes(), open.as_bytes()])
    }

    /// Bytes: READ, READLINK.
    pub fn data(self, data: &[u8]) -> Replied {
        self.send(0, &[data])
    }

    /// Bytes from several places, for READ: copied once (ring) or handed to the kernel as they lie (`/dev/fuse`).
    pub fn slices(self, slices: &[IoSlice<'_>]) -> Replied {
        if self.slot.via == Via::Dev && slices.len() <= IOVECS_MAX {
            return self.write_dev(0, slices);
        }
        let mut at = 0;
        let payload = self.slot.payload();
        for slice in slices {
            payload[at..at + slice.len()].copy_from_slice(slice);
            at += slice.len();
        }
        self.filled(at)
    }

    /// The bytes of frames, for READ. Many of them are copied, or handed to the kernel, by a mover, where the shard has any.
    pub fn bulk(self, bulk: Bulk) -> Replied {
        let fits = self.slot.via == Via::Ring || bulk.segments().len() <= IOVECS_MAX;
        if fits && self.slot.shared.may_move() && rt::real::movers_for(bulk.len()).is_some() {
            let len = bulk.len();
            self.slot.leaving = Some(bulk);
            return if self.slot.via == Via::Ring { self.commit(0, len) } else { self.done() };
        }
        rt::real::note_moved(bulk.len());
        let slices: Vec<IoSlice<'_>> = bulk.slices().map(IoSlice::new).collect();
        self.slices(&slices)
    }

    /// The payload area (at least `max_write` bytes, page-aligned), to be filled and then sent with [`Reply::filled`].
    pub fn payload(&mut self) -> &mut [u8] {
        self.slot.payload()
    }

    /// Sends the first `len` bytes of the payload area.
    pub fn filled(self, len: usize) -> Replied {
        match self.slot.via {
            Via::Ring => self.commit(0, len),
            Via::Dev => {
                let shared = self.slot.shared.clone();
                let data = &self.slot.payload()[..len];
                shared.write_reply(self.unique, 0, &[IoSlice::new(data)]);
                self.done()
            }
        }
    }

    /// Answer to WRITE and COPY_FILE_RANGE: bytes taken.
    pub fn write(self, size: u32) -> Replied {
        self.send(0, &[WriteOut { size, padding: 0 }.as_bytes()])
    }

    /// Answer to either form of COPY_FILE_RANGE.
    pub fn copied(self, bytes: u64) -> Replied {
        if self.opcode == opcode::COPY_FILE_RANGE_64 {
            return self.send(0, &[CopyFileRangeOut { bytes_copied: bytes }.as_bytes()]);
        }
        self.write(u32::try_from(bytes).unwrap_or(!4095))
    }

    /// Answer to STATFS.
    pub fn statfs(self, st: &Kstatfs) -> Replied {
        self.send(0, &[st.as_bytes()])
    }

    /// Answer to GETXATTR and LISTXATTR: the length if `size` (the request's) is 0, ERANGE if it is too small.
    pub fn xattr(self, size: u32, value: &[u8]) -> Replied {
        let Ok(len) = u32::try_from(value.len()) else { return self.err(libc::E2BIG) };
        match size {
            0 => self.send(0, &[GetxattrOut { size: len, padding: 0 }.as_bytes()]),
            size if size < len => self.err(libc::ERANGE),
            _ => self.data(value),
        }
    }

    /// Answer to GETLK: the lock in the way, or one of type F_UNLCK.
    pub fn lk(self, lk: &FileLock) -> Replied {
        self.send(0, &[lk.as_bytes()])
    }

    /// Answer to LSEEK.
    pub fn lseek(self, offset: u64) -> Replied {
        self.send(0, &[LseekOut { offset }.as_bytes()])
    }

    /// Answer to IOCTL: the call's result and what is copied to the caller.
    pub fn ioctl(self, result: i32, data: &[u8]) -> Replied {
        self.send(0, &[IoctlOut { result, ..Default::default() }.as_bytes(), data])
    }

    /// Answer to POLL: the events that are ready now.
    pub fn poll(self, revents: u32) -> Replied {
        self.send(0, &[PollOut { revents, padding: 0 }.as_bytes()])
    }

    /// Answer to READDIR and READDIRPLUS: a builder for at most `size` (the request's) bytes of entries.
    pub fn dirents(self, size: u32) -> Dirents<'s> {
        let max = usize::try_from(size).unwrap_or(usize::MAX);
        Dirents { max, len: 0, reply: self }
    }

    fn send(self, error: i32, parts: &[&[u8]]) -> Replied {
        if self.slot.via == Via::Dev {
            let slices: [IoSlice<'_>; 2] = [0, 1].map(|i| IoSlice::new(parts.get(i).copied().unwrap_or(&[])));
            return self.write_dev(error, &slices[..parts.len()]);
        }
        let mut at = 0;
        let payload = self.slot.payload();
        for part in parts {
            payload[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.commit(error, at)
    }

    fn write_dev(self, error: i32, slices: &[IoSlice<'_>]) -> Replied {
        self.slot.shared.write_reply(self.unique, error, slices);
        self.done()
    }

    fn commit(self, error: i32, payload_bytes: usize) -> Replied {
        let payload_bytes = u32::try_from(payload_bytes).expect("a payload area is far below 4 GiB");
        let len = size_of::<OutHeader>() as u32 + payload_bytes;
        self.slot.set_ring_reply(OutHeader { len, error, unique: self.unique }, payload_bytes);
        self.done()
    }

    fn done(self) -> Replied {
        self.slot.shared.interrupts.on_done(self.unique);
        Replied { unique: self.unique }
    }
}

/// Builds the answer to READDIR or READDIRPLUS in place.
pub struct Dirents<'s> {
    reply: Reply<'s>,
    max: usize,
    len: usize,
}

impl Dirents<'_> {
    /// Adds an entry for READDIR: inode number, the cookie from which to continue *after* it, type (`DT_*`), name.
    /// False if there is no room: the entry is not added and the reply is complete.
    pub fn push(&mut self, ino: u64, next: u64, kind: u8, name: &[u8]) -> bool {
        self.put(None, ino, next, kind, name)
    }

    /// Adds an entry for READDIRPLUS. A node id of 0 means "name only"; otherwise the kernel counts one lookup, except
    /// for "." and "..".
    pub fn push_plus(&mut self, entry: &Entry, next: u64, kind: u8, name: &[u8]) -> bool {
        self.put(Some(EntryOut::from(entry)), entry.attr.ino, next, kind, name)
    }

    /// Bytes used so far.
    pub fn used_bytes(&self) -> usize {
        self.len
    }

    /// Sends the entries; none means end of directory.
    pub fn finish(self) -> Replied {
        self.reply.filled(self.len)
    }

    /// Gives up the entries and fails instead.
    pub fn err(self, errno: i32) -> Replied {
        self.reply.err(errno)
    }

    fn put(&mut self, entry: Option<EntryOut>, ino: u64, off: u64, kind: u8, name: &[u8]) -> bool {
        let plus = if entry.is_some() { size_of::<EntryOut>() } else { 0 };
        let head = plus + size_of::<Dirent>();
        let size = (head + name.len()).next_multiple_of(8);
        let start = self.len;
        let payload = self.reply.payload();
        if size > self.max.min(payload.len()) - start {
            return false;
        }
        let out = &mut payload[start..start + size];
        if let Some(entry) = entry {
            out[..plus].copy_from_slice(entry.as_bytes());
        }
        let namelen = u32::try_from(name.len()).expect("the entry fits a payload area");
        out[plus..head].copy_from_slice(Dirent { ino, off, namelen, typ: u32::from(kind) }.as_bytes());
        out[head..head + name.len()].copy_from_slice(name);
        out[head + name.len()..].fill(0);
        self.len += size;
        true
    }
}
