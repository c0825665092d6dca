//! Messages as they come in, each with its bulk bytes in frames.
use std::cell::Cell;
use std::io;
use std::rc::Rc;

use frames::{Bulk, FRAME_BYTES, FramePool};
use rt::{LocalFuture, Rt};
use types::{Duration, Instant};
use wire::{Class, Crc, Flags, Header};

use crate::early::Place;
use crate::export::Export;
use crate::server::Target;
use crate::stream::{Sink, Source};

/// Frames that what comes to a server leaves to requests in service, which may need some to come to an end: this part of all, and so
/// many bytes at most. What a lock waits for may have three quarters of them.
const SPARE_PART: usize = 8;
/// See [`SPARE_PART`].
const SPARE_MAX: usize = (64 << 20) / FRAME_BYTES;
/// Whoever has waited for so long takes what there is. What stands behind it on its connection is overdue sooner, so that a wait counts on
/// over the next connection.
const WAITS_MAX: Duration = Duration::from_secs(10);
/// Frames for an answer are waited for so long. What comes behind it on its connection waits, too, and may be what gives frames back.
const LANDS_WITHIN: Duration = Duration::from_millis(50);
/// Between two looks for frames.
const LOOKS_EVERY: Duration = Duration::from_millis(1);

/// What became of the bulk of an answer.
pub(crate) enum Landed {
    /// It is here, with its checksum where that has one and it was made on the way.
    Here(Bulk, Option<Crc>),
    /// There were no frames for it: it has to be asked for again.
    Skipped,
}

/// Requests that come over a client's session.
pub(crate) struct Requests<'a> {
    source: &'a mut Source,
    rt: Rt,
    target: Rc<Target>,
    session: Session,
}

/// A client's session, and a connection that it has or had.
type Session = (Rc<Export>, Rc<Sink>);

/// What a server sends.
pub(crate) struct Answers<'a> {
    source: &'a mut Source,
    rt: Rt,
}

/// Frames that a message of `len` bytes leaves.
fn spare_of(pool: FramePool, len: usize, urgent: bool) -> usize {
    let spare = (pool.capacity() / SPARE_PART).min(SPARE_MAX);
    let spare = if urgent { spare / 4 } else { spare };
    spare.min(pool.capacity().saturating_sub(len.div_ceil(FRAME_BYTES)))
}

/// A request that waits for frames. Nothing that comes behind it is read, no ping either: its client hears of it as of one in service,
/// or would give the connection up sooner than the wait ends, and wait anew over the next one.
struct Waits(Rc<Export>, Option<Place>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.answered(self.1);
    }
}

/// Frames for what a client sends, when enough others are free or nothing is in service: it is heard of meanwhile, and hears.
async fn land_at_server(rt: Rt, (header, len): (Header, usize), target: Rc<Target>, (export, sink): Session) -> Bulk {
    let is_long = |since: Option<Instant>| since.is_some_and(|at| rt.now() >= at + WAITS_MAX);
    let need = len.div_ceil(FRAME_BYTES) + spare_of(rt.frames(), len, header.flags.has(Flags::URGENT));
    let mut waits = None;
    loop {
        let may = rt.frames().free() >= need || !target.serves() || is_long(export.waits_since.get());
        if (may || types::planted!("frames-for-all"))
            && let Some(bulk) = Bulk::alloc(rt.frames(), len)
        {
            // What comes over an earlier connection is of no use.
            if export.is_over(&sink) {
                export.waits_since.set(None);
            }
            return bulk;
        }
        rt.frames().count_refusal(need);
        export.waits_since.set(export.waits_since.get().or(Some(rt.now())));
        export.last_heard.set(rt.now());
        if waits.is_none() && !header.flags.has(Flags::REPLY) {
            waits = Some(Waits(export.clone(), export.under_way(&rt, &header)));
        }
        rt.sleep(LOOKS_EVERY).await;
    }
}

impl<'a> Requests<'a> {
    pub(crate) fn new(rt: &Rt, source: &'a mut Source, target: &Rc<Target>, session: Session) -> Requests<'a> {
        Requests { source, rt: rt.clone(), target: target.clone(), session }
    }
    /// The next one.
    pub(crate) async fn next(&mut self) -> io::Result<(Header, Vec<u8>, Bulk)> {
        let (header, body) = self.source.recv().await?;
        let len = header.bulk_len as usize;
        if len == 0 {
            return Ok((header, body, Bulk::new()));
        }
        let land = |len: usize| -> LocalFuture<Bulk> {
            Box::pin(land_at_server(self.rt.clone(), (header, len), self.target.clone(), self.session.clone()))
        };
        Ok((header, body, self.source.recv_bulk(len, &land).await?))
    }
}

impl<'a> Answers<'a> {
    pub(crate) fn new(rt: &Rt, source: &'a mut Source) -> Answers<'a> {
        Answers { source, rt: rt.clone() }
    }
    /// The next one.
    pub(crate) async fn next(&mut self) -> io::Result<(Header, Vec<u8>, Landed)> {
        let (header, body) = self.source.recv().await?;
        let len = header.bulk_len as usize;
        let Some(room) = self.room_for(&header, len).await else {
            self.source.skip_bulk(len).await?;
            return Ok((header, body, Landed::Skipped));
        };
        if len == 0 {
            return Ok((header, body, Landed::Here(room, None)));
        }
        let room = Cell::new(room);
        let land = |_| -> LocalFuture<Bulk> { Box::pin(std::future::ready(room.take())) };
        if header.flags.has(Flags::BULK_CRC) {
            let (bulk, crc) = self.source.recv_bulk_digested(len, &land).await?;
            return Ok((header, body, Landed::Here(bulk, crc)));
        }
        Ok((header, body, Landed::Here(self.source.recv_bulk(len, &land).await?, None)))
    }
    /// Frames for the bulk of an answer, none where it comes by reference. `None`: there were none for [`LANDS_WITHIN`], and the request
    /// can be carried out again.
    async fn room_for(&self, header: &Header, len: usize) -> Option<Bulk> {
        if len == 0 || self.source.shares_memory() {
            return Some(Bulk::new());
        }
        if let Some(bulk) = Bulk::alloc(self.rt.frames(), len) {
            return Some(bulk);
        }
        if header.op.is(Class::CHANGES) || types::planted!("answers-wait-for-frames") {
            return Some(self.rt.bulk(len).await);
        }
        self.rt.timeout(LANDS_WITHIN, self.rt.bulk(len)).await
    }
}
