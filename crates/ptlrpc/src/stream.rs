//! Message streams that speak the wire protocol: [`rt`]'s streams of heads, bodies and bulk, read as wire headers.
//!
//! Checksums are made and checked here, where bytes leave memory that nobody else writes; between peers of one process
//! there are none.
use std::io;
use std::rc::Rc;

use frames::Bulk;
use rt::{BodyLen, Connection, HEAD_BYTES, Head, LocalFuture};
use wire::{BODY_BYTES_MAX, Crc, Flags, HEADER_BYTES, Header, WireError};

use crate::door::HANDSHAKE_BODY_BYTES_MAX;

const _: () = assert!(HEAD_BYTES == HEADER_BYTES, "a wire header is what a stream has room for in front of a body");

/// The sending end of a connection.
pub struct Sink {
    to: Rc<dyn rt::Sink>,
    shares_memory: bool,
}

/// The receiving end of a connection.
pub struct Source {
    from: Box<dyn rt::Source>,
    shares_memory: bool,
    body_len: BodyLen,
}

/// The ends of a connection that was made or accepted. Bodies may be as long as the protocol allows.
#[must_use]
pub fn ends(connection: Connection) -> (Rc<Sink>, Source) {
    let shares_memory = connection.sink.shares_memory();
    let sink = Sink { to: connection.sink, shares_memory };
    (Rc::new(sink), Source { from: connection.source, shares_memory, body_len: of_session })
}

fn invalid(e: WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

fn body_len(head: &Head, max: u32) -> io::Result<usize> {
    let header = Header::from_bytes(head).map_err(invalid)?;
    if header.body_len > max {
        Err(invalid(WireError::TooLong(header.body_len.into())))
    } else {
        Ok(header.body_len as usize)
    }
}
fn of_session(head: &Head) -> io::Result<usize> {
    body_len(head, BODY_BYTES_MAX)
}
pub(crate) fn of_handshake(head: &Head) -> io::Result<usize> {
    body_len(head, HANDSHAKE_BODY_BYTES_MAX)
}

/// The checksum of the bulk, and those of the head and the body.
fn seal(head: &mut Head, body: &[u8], bulk: &Bulk) {
    let mut header = Header::from_bytes(head).expect("a head that was made from a header");
    header.bulk_crc = crc_of(bulk);
    *head = header.to_bytes(body);
}

/// The checksum of bulk.
pub(crate) fn crc_of(bulk: &Bulk) -> Crc {
    rt::real::note_moved(bulk.len());
    bulk.slices().fold(0, wire::crc32c_append)
}

impl Sink {
    /// Queues a message; returns at once. `header.body_len` and `bulk_len` are filled in here. After an error or
    /// [`Sink::close`] messages are dropped; the source's end tells.
    pub fn send(&self, mut header: Header, body: Vec<u8>, bulk: Bulk) {
        header.body_len = u32::try_from(body.len()).expect("bodies are below 4 GiB");
        header.bulk_len = u32::try_from(bulk.len()).expect("bulk is at most 64 MiB");
        let head = if self.shares_memory { header.to_bytes_unchecked() } else { header.to_bytes(&body) };
        self.to.send(head, body, bulk);
    }
    /// [`Sink::send`] with a checksum of the bulk, which is made where the bytes are moved; between peers of one process there is none.
    pub fn send_checked(&self, mut header: Header, body: Vec<u8>, bulk: Bulk) {
        if self.shares_memory || bulk.is_empty() {
            return self.send(header, body, bulk);
        }
        header.body_len = u32::try_from(body.len()).expect("bodies are below 4 GiB");
        header.bulk_len = u32::try_from(bulk.len()).expect("bulk is at most 64 MiB");
        header.flags = header.flags.with(Flags::BULK_CRC);
        self.to.send_sealed(header.to_bytes_unchecked(), body, bulk, seal);
    }
    /// Whether bulk travels by reference within this process, so that no checksum is needed for it.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.shares_memory
    }
    /// Breaks the connection; the other end sees the end of the stream.
    pub fn close(&self) {
        self.to.close();
    }
    /// Head and body bytes that wait to be sent: a peer that does not read lets them grow.
    #[must_use]
    pub fn backlog_bytes(&self) -> usize {
        self.to.backlog_bytes()
    }
    /// How far the connection is.
    #[must_use]
    pub fn moved(&self) -> rt::Moved {
        self.to.moved()
    }
    /// Whose end is on the other side, for logs.
    #[must_use]
    pub fn peer(&self) -> String {
        self.to.peer()
    }
    /// What both ends of an encrypted connection have in common ([`rt::Sink::binding`]).
    #[must_use]
    pub fn binding(&self) -> Option<[u8; rt::BINDING_BYTES]> {
        self.to.binding()
    }
    /// Whether who is on the way can read and change what is sent.
    #[must_use]
    pub fn is_open_to_the_way(&self) -> bool {
        self.to.is_open_to_the_way()
    }
}

impl Source {
    /// The next header and body; bulk that belongs to it must be taken with [`Source::recv_bulk`] before the next call.
    ///
    /// # Errors
    /// `UnexpectedEof` when the peer closed, `InvalidData` (around a [`WireError`]) when bytes are not a message.
    pub async fn recv(&mut self) -> io::Result<(Header, Vec<u8>)> {
        let (head, body) = self.from.recv(self.body_len).await?;
        if !self.shares_memory {
            Header::check_body(&head, &body).map_err(invalid)?;
        }
        Ok((Header::from_bytes(&head).map_err(invalid)?, body))
    }
    /// The `len` bulk bytes that follow the last header: read into `land` (page-aligned fresh frames with room for them),
    /// or handed over by reference, `land` untouched.
    ///
    /// # Errors
    /// `UnexpectedEof` when the stream ends inside them.
    pub async fn recv_bulk(&mut self, len: usize, land: &dyn Fn(usize) -> LocalFuture<Bulk>) -> io::Result<Bulk> {
        self.from.recv_bulk(len, land).await
    }
    /// Takes the `len` bulk bytes that follow the last header, and keeps none.
    ///
    /// # Errors
    /// As [`Source::recv_bulk`].
    pub(crate) async fn skip_bulk(&mut self, len: usize) -> io::Result<()> {
        self.from.skip_bulk(len).await
    }
    /// Whether bulk comes by reference within this process.
    pub(crate) fn shares_memory(&self) -> bool {
        self.shares_memory
    }
    /// [`Source::recv_bulk`], with the checksum of the bulk where that was made on the way.
    pub(crate) async fn recv_bulk_digested(
        &mut self,
        len: usize,
        land: &dyn Fn(usize) -> LocalFuture<Bulk>,
    ) -> io::Result<(Bulk, Option<Crc>)> {
        self.from.recv_bulk_digested(len, land, wire::crc32c_append).await
    }
    /// From now on bodies are refused that are longer than a handshake needs, or those that are longer than the protocol allows.
    /// Peers of the same process are not limited.
    pub(crate) fn expect_handshake(&mut self, handshake: bool) {
        self.body_len = if handshake { of_handshake } else { of_session };
    }
}
