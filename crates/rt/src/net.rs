//! Message streams: head and body in order, bulk beside them.
//!
//! A stream moves bytes. What a head says is its protocol's; the one question that a byte stream has to ask of it, how
//! long the body is, comes with the caller ([`BodyLen`]).
use std::io;
use std::rc::Rc;

use frames::Bulk;

use crate::real::Arrival;
use crate::{LocalFuture, Nid};

/// Bytes of a message's head.
pub const HEAD_BYTES: usize = 64;
/// Bytes of a connection's binding.
pub const BINDING_BYTES: usize = 32;
/// What stands in front of every message: its protocol's, opaque here.
pub type Head = [u8; HEAD_BYTES];
/// Bytes of the body behind a head; an error, which ends the stream, when the head is none of the protocol's or the body
/// is longer than the caller takes.
pub type BodyLen = fn(&Head) -> io::Result<usize>;

/// Makes a message's head what it must be for the body and the bulk that follow: checksums. Called where the bytes are.
pub type Seal = fn(&mut Head, &[u8], &Bulk);
/// Goes on with a checksum over more bytes.
pub type Digest = fn(u32, &[u8]) -> u32;

/// How far a connection is: from two of these one sees whether anything moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// Bytes that came from the peer, those of a message of which more is to come among them.
    pub in_bytes: u64,
    /// Bytes that the peer's host has taken.
    pub out_bytes: u64,
    /// Bytes for the peer that its host has not taken.
    pub waiting_bytes: u64,
    /// Bulk is coming of which not all is there: nothing that the peer said since can be heard.
    pub is_amid_bulk: bool,
}

/// Both ends of an open message stream.
pub struct Connection {
    /// For sending; cheap to clone, usable while the source waits.
    pub sink: Rc<dyn Sink>,
    /// For receiving.
    pub source: Box<dyn Source>,
}

/// The sending end. Messages arrive in the order of the calls, or the connection breaks.
pub trait Sink {
    /// Queues a message; returns at once. How much may queue up is bounded by the RPC slots above. After an error or [`Sink::close`] messages are dropped; the source's
    /// end tells.
    fn send(&self, head: Head, body: Vec<u8>, bulk: Bulk);
    /// [`Sink::send`] of a message whose head `seal` makes ready before it goes: here, or by a mover.
    fn send_sealed(&self, mut head: Head, body: Vec<u8>, bulk: Bulk, seal: Seal) {
        seal(&mut head, &body, &bulk);
        self.send(head, body, bulk);
    }
    /// Whether bulk travels by reference within this process, so that no checksum is needed
    /// for it, nor for the head and body.
    fn shares_memory(&self) -> bool;
    /// Breaks the connection; the other end sees the end of the stream.
    fn close(&self);
    /// Head and body bytes that wait to be sent: a peer that does not read lets them grow.
    fn backlog_bytes(&self) -> usize {
        0
    }
    /// How far the connection is. Nothing is known where bytes are handed over and do not move.
    fn moved(&self) -> Moved {
        Moved::default()
    }
    /// Whose end is on the other side, for logs.
    fn peer(&self) -> String;
    /// What both ends of an encrypted connection have in common, and no two connections; `None`: it is not encrypted. At the
    /// end that accepted the connection it is known when the first message is there.
    fn binding(&self) -> Option<[u8; BINDING_BYTES]> {
        None
    }
    /// Whether who is on the way can read and change what is sent.
    fn is_open_to_the_way(&self) -> bool;
}

/// The receiving end.
pub trait Source {
    /// The next head and body. Bulk that belongs to it must be taken with [`Source::recv_bulk`] before the next call.
    /// Where messages are whole as they come, as between peers of one process, `body_len` is not asked.
    ///
    /// Errors: `UnexpectedEof` when the peer closed, and those of `body_len`.
    fn recv(&mut self, body_len: BodyLen) -> LocalFuture<io::Result<(Head, Vec<u8>)>>;
    /// The `len` bulk bytes that follow the last head: read into `land` (page-aligned fresh frames with room
    /// for them), or handed over by reference, `land` untouched.
    fn recv_bulk(&mut self, len: usize, land: &dyn Fn(usize) -> LocalFuture<Bulk>) -> LocalFuture<io::Result<Bulk>>;
    /// Takes the `len` bulk bytes that follow the last head, and keeps none.
    fn skip_bulk(&mut self, len: usize) -> LocalFuture<io::Result<()>>;
    /// [`Source::recv_bulk`] with the checksum of the bytes from 0 on, where a mover made it while it received them.
    fn recv_bulk_digested(
        &mut self,
        len: usize,
        land: &dyn Fn(usize) -> LocalFuture<Bulk>,
        _digest: Digest,
    ) -> LocalFuture<io::Result<(Bulk, Option<u32>)>> {
        let bulk = self.recv_bulk(len, land);
        Box::pin(async move { Ok((bulk.await?, None)) })
    }
}

/// Accepts connections.
pub trait Listener {
    /// The next connection.
    fn accept(&self) -> LocalFuture<io::Result<Connection>>;
    /// The next connection, for whichever shard. A world whose hosts have one shard has none.
    fn accept_parted(&self) -> LocalFuture<io::Result<Arrival>> {
        Box::pin(std::future::ready(Err(io::ErrorKind::Unsupported.into())))
    }
    /// The address actually bound.
    fn nid(&self) -> Nid;
}
