//! What targets tell of their rings: the answer to `OstTrace`, the parameters `trace` and `trace_bytes`; and what whoever asked
//! makes of the answer.
use crate::record::{RECORD_BYTES, RECORD_BYTES_1};
use crate::{RING_BYTES, Record, Ring, VERSION};
use types::FsError;
use wire::ost::{TraceReply, TraceRequest};

/// Records of one answer: it is a message, with room for its settings.
const ANSWER_RECORDS_MAX: usize = (1 << 20) / RECORD_BYTES;

/// The answer to a question for records; `settings` is what is known of the target.
///
/// # Errors
/// `NotSupported`: the records that are asked for are shorter or longer ones, of another version of the format.
pub fn answer(ring: &Ring, ask: &TraceRequest, settings: &str) -> Result<TraceReply, FsError> {
    if ask.version != VERSION {
        return Err(FsError::NotSupported);
    }
    let from = ask.from.min(ring.total());
    let (lost, records) = ring.since(from, ANSWER_RECORDS_MAX);
    let mut bytes = Vec::new();
    for record in records {
        bytes.reserve(RECORD_BYTES);
        record.put(&mut bytes);
    }
    let (settings, records) = (settings.into(), bytes.into());
    Ok(TraceReply { settings, total: ring.total(), lost, records, version: VERSION })
}

/// The records of an answer: `bytes` of `version`, 0 from a server that knows no other than the first.
///
/// # Errors
/// What is wrong with them.
pub fn records(bytes: &[u8], version: u16) -> Result<Vec<Record>, String> {
    match version {
        0 | 1 => each::<RECORD_BYTES_1>(bytes, Record::get_1),
        VERSION => each::<RECORD_BYTES>(bytes, Record::get),
        newer => Err(format!("its records have version {newer}, this program reads 1 to {VERSION}: use a newer stria")),
    }
}

fn each<const N: usize>(
    bytes: &[u8],
    get: fn(&[u8; N]) -> Result<Record, crate::RecordError>,
) -> Result<Vec<Record>, String> {
    let (records, rest) = bytes.as_chunks::<N>();
    if !rest.is_empty() {
        return Err(format!("{} bytes are not whole records", bytes.len()));
    }
    records.iter().map(|r| get(r).map_err(|e| e.what.to_string())).collect()
}

impl Ring {
    /// The parameter `trace`.
    #[must_use]
    pub fn text(&self) -> String {
        let (held, overwritten) = (self.len(), self.overwritten());
        format!("records: {held}\nrecords_max: {}\noverwritten: {overwritten}\n", self.records_max())
    }

    /// The parameter `trace_bytes`: sets how much memory it takes; answers how much that is.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_bytes(&mut self, text: &str) -> Result<u64, String> {
        let bytes = types::parse_size(text)?;
        if bytes != 0 && !RING_BYTES.contains(&bytes) {
            return Err(format!("{text}: the trace takes 64K to 1G of memory, or 0: none"));
        }
        self.resize(bytes);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_read_again_in_pieces_and_another_version_is_refused() {
        let mut ring = Ring::new(65_536 * 40);
        let total = ANSWER_RECORDS_MAX as u64 + 5;
        (0..total).for_each(|n| ring.push(Record { offset: n, ..Record::default() }));
        let ask = |from: u64| TraceRequest { from, version: VERSION };
        let first = answer(&ring, &ask(0), "target=t\n").unwrap();
        let rest = answer(&ring, &ask(ANSWER_RECORDS_MAX as u64), "").unwrap();
        let longest = answer(&ring, &ask(0), &"x".repeat(60 << 10)).unwrap();
        assert!(wire::encode(&longest).len() <= wire::BODY_BYTES_MAX as usize);
        assert_eq!((first.total, first.lost, first.version), (total, 0, VERSION));
        let told = |reply: &TraceReply| records(&reply.records, reply.version).unwrap();
        assert_eq!((told(&first).len(), told(&rest).len(), told(&rest)[4].offset), (ANSWER_RECORDS_MAX, 5, total - 1));
        assert!(answer(&ring, &ask(u64::MAX), "").unwrap().records.is_empty());
        assert_eq!(answer(&ring, &TraceRequest { from: 0, version: 0 }, ""), Err(FsError::NotSupported));
        assert!(records(&[0; RECORD_BYTES], VERSION + 1).unwrap_err().contains("version 3"));
        assert!(records(&[0; 7], VERSION).unwrap_err().contains("7 bytes"));
        assert_eq!(records(&[0; RECORD_BYTES_1 * 2], 0).map(|r| r.len()), Ok(2));
    }

    #[test]
    fn memory_for_a_trace_is_set_within_its_bounds() {
        let mut ring = Ring::default();
        assert_eq!(ring.set_bytes("64K"), Ok(65_536));
        assert!(ring.set_bytes("1K").unwrap_err().contains("64K to 1G"));
        ring.push(Record::default());
        assert_eq!(ring.text(), "records: 1\nrecords_max: 481\noverwritten: 0\n");
        assert_eq!(ring.set_bytes("0"), Ok(0));
        assert!(!ring.is_on());
    }
}
