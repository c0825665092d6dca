//! A slot: the memory in which one request at a time arrives and its reply is built, for either transport.
//!
//! Layout of the mapping: one page of headers, then the payload, page-aligned.
//! ```text
//! ring:  0 UringReqHeader (288)  512 the two iovecs of REGISTER     4096 payload .. 4096+payload_bytes
//! dev:   a message is read to 4096-80, so that the data of a WRITE (after its 40+40 bytes) start at 4096
//! ```
//! Pages are touched only when used, so that a slot costs address space, not memory, until large I/O passes through it.
use crate::abi::{InHeader, OutHeader, UringReqHeader, WriteIn};
use crate::crew::Group;
use crate::session::Shared;
use frames::Bulk;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Where the payload begins.
pub(crate) const PAYLOAD_AT: usize = 4096;
/// Where a message from `/dev/fuse` begins.
pub(crate) const MESSAGE_AT: usize = PAYLOAD_AT - size_of::<InHeader>() - size_of::<WriteIn>();
const IOVECS_AT: usize = 512;

/// The mapping. Kernel operations in flight, and jobs of movers, keep it alive by holding an `Arc`.
pub(crate) struct SlotBuf {
    base: NonNull<u8>,
    payload_bytes: usize,
}

// SAFETY: plain memory. Who reads or writes it has the slot (between a reply and the next request the kernel, or the mover
// that fills it and commits; their jobs end, or are dropped, before the slot's task goes on).
unsafe impl Send for SlotBuf {}
// SAFETY: as above; nothing in it changes through a shared reference but by whoever has the slot.
unsafe impl Sync for SlotBuf {}

impl SlotBuf {
    /// Maps a slot for payloads of up to `payload_bytes`.
    pub fn new(payload_bytes: usize) -> io::Result<Self> {
        let payload_bytes = payload_bytes.next_multiple_of(4096);
        // SAFETY: an anonymous private mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAYLOAD_AT + payload_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("mmap returned page zero"))?;
        Ok(SlotBuf { base, payload_bytes })
    }

    /// Bytes that a message read from `/dev/fuse` may have.
    pub fn message_bytes_max(&self) -> usize {
        self.payload_bytes + PAYLOAD_AT - MESSAGE_AT
    }

    /// Address of byte `at`.
    pub fn at(&self, at: usize) -> *mut u8 {
        assert!(at <= PAYLOAD_AT + self.payload_bytes, "offset {at} outside the slot");
        // SAFETY: inside the mapping or one past it, checked above.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// Copies a reply's bytes to the beginning of the payload.
    ///
    /// # Safety
    /// The caller has the slot: nobody else reads or writes its payload until this returns.
    pub unsafe fn fill(&self, bulk: &Bulk) {
        assert!(bulk.len() <= self.payload_bytes, "{} bytes for a payload of {}", bulk.len(), self.payload_bytes);
        let mut at = PAYLOAD_AT;
        for s in bulk.slices() {
            // SAFETY: inside the mapping (checked), which no frame overlaps; the payload is the caller's alone.
            unsafe { std::ptr::copy_nonoverlapping(s.as_ptr(), self.at(at), s.len()) };
            at += s.len();
        }
        rt::real::note_moved(bulk.len());
    }

    /// The two iovecs that REGISTER wants, written into the header page (where they stay put).
    pub fn iovecs(&self) -> *const libc::iovec {
        let iovecs = self.at(IOVECS_AT).cast::<[libc::iovec; 2]>();
        let value = [
            libc::iovec { iov_base: self.at(0).cast(), iov_len: size_of::<UringReqHeader>() },
            libc::iovec { iov_base: self.at(PAYLOAD_AT).cast(), iov_len: self.payload_bytes },
        ];
        // SAFETY: inside the header page, aligned (512), not overlapping the header; only the slot's task writes here.
        unsafe { iovecs.write(value) };
        iovecs.cast()
    }
}

impl Drop for SlotBuf {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; nobody holds a reference to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), PAYLOAD_AT + self.payload_bytes) };
    }
}

/// How a slot's reply travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Via {
    /// In the slot's own header and payload, committed by the slot's task.
    Ring,
    /// By writev(2) on `/dev/fuse`, at once.
    Dev,
}

/// Memory and reply path of one request at a time. Between two requests only the kernel uses it.
pub(crate) struct Slot {
    pub buf: Arc<SlotBuf>,
    pub shared: Arc<Shared>,
    pub via: Via,
    /// The slots that serve the same callers.
    pub group: Rc<Group>,
    /// Bytes of the reply that are not in the payload yet, or not written: a mover brings them there. Empty: a mover commits.
    pub leaving: Option<Bulk>,
}

impl Slot {
    pub fn new(shared: Arc<Shared>, via: Via, group: Rc<Group>) -> io::Result<Self> {
        let buf = Arc::new(SlotBuf::new(shared.payload_bytes())?);
        Ok(Slot { buf, shared, via, group, leaving: None })
    }

    /// `len` bytes from `at`, for reading.
    pub fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(len <= PAYLOAD_AT + self.buf.payload_bytes && at <= PAYLOAD_AT + self.buf.payload_bytes - len);
        // SAFETY: inside the mapping (checked); mapped memory is initialised; the slot is in our hands (no operation in
        // flight), and writers need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.buf.at(at), len) }
    }

    /// `len` bytes from `at`, for writing.
    pub fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(len <= PAYLOAD_AT + self.buf.payload_bytes && at <= PAYLOAD_AT + self.buf.payload_bytes - len);
        // SAFETY: as in `bytes`; `&mut self` makes us the only user.
        unsafe { std::slice::from_raw_parts_mut(self.buf.at(at), len) }
    }

    /// The whole payload area.
    pub fn payload(&mut self) -> &mut [u8] {
        let len = self.buf.payload_bytes;
        self.bytes_mut(PAYLOAD_AT, len)
    }

    /// The ring entry's header as the kernel left it.
    pub fn ring_header(&self) -> UringReqHeader {
        let (header, _) = UringReqHeader::read_from_prefix(self.bytes(0, size_of::<UringReqHeader>()))
            .expect("the slice has the header's size");
        header
    }

    /// Writes the reply's head for the commit that follows; the payload is already in place.
    pub fn set_ring_reply(&mut self, out: OutHeader, payload_bytes: u32) {
        let at = std::mem::offset_of!(UringReqHeader, ent);
        let sz = at + std::mem::offset_of!(crate::abi::UringEntInOut, payload_sz);
        self.bytes_mut(0, size_of::<OutHeader>()).copy_from_slice(out.as_bytes());
        self.bytes_mut(sz, 4).copy_from_slice(&payload_bytes.to_ne_bytes());
    }
}
