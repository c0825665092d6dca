//! Message streams: header and body in order, bulk beside them.
use std::io;
use std::rc::Rc;

use frames::Bulk;
use wire::Header;

use crate::{LocalFuture, Nid};

/// Both ends of an open message stream.
pub struct Connection {
    /// For sending; cheap to clone, usable while the source waits.
    pub sink: Rc<dyn Sink>,
    /// For receiving.
    pub source: Box<dyn Source>,
}

/// The sending end. Messages arrive in the order of the calls, or the connection breaks.
pub trait Sink {
    /// Queues a message; returns at once. `header.body_len` and `bulk_len` are filled in here. How much may queue
    /// up is bounded by the RPC slots above. After an error or [`Sink::close`] messages are dropped; the source's
    /// end tells.
    fn send(&self, header: Header, body: Vec<u8>, bulk: Bulk);
    /// Whether bulk travels by reference within this process, so that no checksum is needed for it.
    fn shares_memory(&self) -> bool;
    /// Breaks the connection; the other end sees the end of the stream.
    fn close(&self);
    /// Header and body bytes that wait to be sent: a peer that does not read lets them grow.
    fn backlog_bytes(&self) -> usize {
        0
    }
    /// Whose end is on the other side, for logs.
    fn peer(&self) -> String;
}

/// The receiving end.
pub trait Source {
    /// The next header and body. Bulk that belongs to it must be taken with [`Source::recv_bulk`] before the next
    /// call.
    ///
    /// Errors: `UnexpectedEof` when the peer closed, `InvalidData` (around a [`wire::WireError`]) when bytes are not a
    /// message.
    fn recv(&mut self) -> LocalFuture<io::Result<(Header, Vec<u8>)>>;
    /// Messages with longer bodies are `InvalidData` from now on; at first the limit is [`wire::BODY_BYTES_MAX`].
    /// Peers of the same process are not limited.
    fn limit_body(&mut self, _bytes: u32) {}
    /// The `len` bulk bytes that follow the last header: read into `land` (page-aligned fresh frames with room
    /// for them), or handed over by reference, `land` untouched.
    fn recv_bulk(&mut self, len: usize, land: &dyn Fn(usize) -> LocalFuture<Bulk>) -> LocalFuture<io::Result<Bulk>>;
}

/// Accepts connections.
pub trait Listener {
    /// The next connection.
    fn accept(&self) -> LocalFuture<io::Result<Connection>>;
    /// The address actually bound.
    fn nid(&self) -> Nid;
}
