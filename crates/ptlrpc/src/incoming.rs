//! Messages as they come in, each with its bulk bytes in frames.
use std::io;

use frames::Bulk;
use rt::{LocalFuture, Rt};
use wire::Header;

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
        let (header, body) = self.source.recv().await?;
        if header.bulk_len == 0 {
            return Ok((header, body, Bulk::new()));
        }
        let land = |len: usize| -> LocalFuture<Bulk> {
            let rt = self.rt.clone();
            Box::pin(async move { rt.bulk(len).await })
        };
        let bulk = self.source.recv_bulk(header.bulk_len as usize, &land).await?;
        Ok((header, body, bulk))
    }
}
