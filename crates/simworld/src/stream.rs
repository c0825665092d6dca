//! The ends of a connection as sessions see them.
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use frames::Bulk;
use rt::sync::Queue;
use rt::{BodyLen, Connection, Head, Listener, LocalFuture, Moved, Nid, Sink, Source};

use crate::net::Lane;

/// The end that sends into `out` and receives from `back`.
pub(crate) fn connection(out: Rc<Lane>, back: Rc<Lane>) -> Connection {
    Connection {
        source: Box::new(InEnd { lane: back.clone(), bulk: Rc::default() }),
        sink: Rc::new(OutEnd { out, back }),
    }
}

struct OutEnd {
    out: Rc<Lane>,
    back: Rc<Lane>,
}
impl Sink for OutEnd {
    fn send(&self, head: Head, body: Vec<u8>, bulk: Bulk) {
        self.out.send(head, body, bulk);
    }
    fn shares_memory(&self) -> bool {
        false
    }
    fn is_open_to_the_way(&self) -> bool {
        // Nobody is there but the faults that a seed draws.
        false
    }
    fn moved(&self) -> Moved {
        let (out, back) = (self.out.progress(), self.back.progress());
        Moved {
            in_bytes: back.bytes,
            out_bytes: out.bytes,
            waiting_bytes: out.waiting_bytes,
            is_amid_bulk: back.is_amid_bulk,
        }
    }
    fn close(&self) {
        self.out.end();
        self.back.inbox.close();
    }
    fn peer(&self) -> String {
        self.out.to.host.name.clone()
    }
}
impl Drop for OutEnd {
    fn drop(&mut self) {
        self.close();
    }
}

struct InEnd {
    lane: Rc<Lane>,
    /// Bulk of the last message.
    bulk: Rc<RefCell<Bulk>>,
}
impl Source for InEnd {
    fn recv(&mut self, _: BodyLen) -> LocalFuture<io::Result<(Head, Vec<u8>)>> {
        let (lane, slot) = (self.lane.clone(), self.bulk.clone());
        Box::pin(async move {
            let end = || io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed the connection");
            let m = lane.inbox.pop().await.ok_or_else(end)?;
            *slot.borrow_mut() = m.bulk;
            Ok((m.head, m.body))
        })
    }
    fn recv_bulk(&mut self, len: usize, land: &dyn Fn(usize) -> LocalFuture<Bulk>) -> LocalFuture<io::Result<Bulk>> {
        let (landing, came) = (land(len), std::mem::take(&mut *self.bulk.borrow_mut()));
        Box::pin(async move {
            let mut bulk = landing.await;
            if came.len() != len {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the bulk was taken already"));
            }
            let mut at = 0;
            for slice in came.slices() {
                bulk.copy_in(at, slice);
                at += slice.len();
            }
            Ok(bulk)
        })
    }
    fn skip_bulk(&mut self, _len: usize) -> LocalFuture<io::Result<()>> {
        drop(std::mem::take(&mut *self.bulk.borrow_mut()));
        Box::pin(std::future::ready(Ok(())))
    }
}

pub(crate) struct Accepting {
    pub nid: Nid,
    pub queue: Rc<Queue<Connection>>,
}
impl Listener for Accepting {
    fn accept(&self) -> LocalFuture<io::Result<Connection>> {
        let queue = self.queue.clone();
        Box::pin(async move { queue.pop().await.ok_or_else(|| io::ErrorKind::BrokenPipe.into()) })
    }
    fn nid(&self) -> Nid {
        self.nid.clone()
    }
}
