//! Messages as they come in, each with its bulk bytes in frames.
use std::io;

use frames::Bulk;
use rt::{LocalFuture, Rt};
use wire::{Crc, Flags, Header};

use crate::stream::Source;

pub(crate) struct Incoming<'a> {
    source: &'a mut Source,
    rt: Rt,
}

impl<'a> Incoming<'a> {
    pub(crate) fn new(rt: &Rt, source: &'a mut Source) -> Incoming<'a> {
        Incoming { source, rt: rt.clone() }
    }
    pub(crate) async fn next(&mut self) -> io::Result<(Header, Vec<u8>, Bulk)> {
        let (header, body, bulk, _) = self.next_digested(false).await?;
        Ok((header, body, bulk))
    }
    /// The same, with the checksum of the bulk where that has one and it was made on the way.
    pub(crate) async fn next_digested(&mut self, wanted: bool) -> io::Result<(Header, Vec<u8>, Bulk, Option<Crc>)> {
        let (header, body) = self.source.recv().await?;
        if header.bulk_len == 0 {
            return Ok((header, body, Bulk::new(), None));
        }
        let land = |len: usize| -> LocalFuture<Bulk> {
            let rt = self.rt.clone();
            Box::pin(async move { rt.bulk(len).await })
        };
        let len = header.bulk_len as usize;
        if wanted && header.flags.has(Flags::BULK_CRC) {
            let (bulk, crc) = self.source.recv_bulk_digested(len, &land).await?;
            return Ok((header, body, bulk, crc));
        }
        Ok((header, body, self.source.recv_bulk(len, &land).await?, None))
    }
}
