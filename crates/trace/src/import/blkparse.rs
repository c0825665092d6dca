//! Traces from what `blkparse` prints in its default format: what a block device was asked for.
//!
//! Of the events of a request three count: queued (Q), issued to the driver (D), complete (C). Requests that were merged are
//! one, from the first of them on. Source: blkparse(1).
use super::{ImportError, checked, nanos};
use crate::{Record, Trace};
use std::collections::BTreeMap;
use types::{ClientId, Fid, Instant, ObjectId};
use wire::Op;

const SECTOR_BYTES: u64 = 512;

/// Events of one device.
#[derive(Default)]
struct Device {
    /// Queued and not issued yet, by the first sector: when, and by which process.
    queued: BTreeMap<u64, (Instant, ClientId)>,
    /// Issued and not complete yet, by the first sector.
    issued: BTreeMap<u64, Record>,
    records: Vec<Record>,
}

/// What an event is about.
struct Event<'a> {
    device: &'a str,
    at: Instant,
    process: ClientId,
    action: &'a str,
    op: Op,
    sector: u64,
    sectors: u64,
    errno: u16,
}

impl<'a> Event<'a> {
    /// `8,0 3 11 0.009507758 697 C W 223490 + 56 [0]`; `None` for events that are not about reads or writes.
    fn read(line: &'a str) -> Result<Option<Event<'a>>, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [device, cpu, sequence, time, pid, action, rwbs, ref rest @ ..] = words[..] else {
            let n = words.len();
            return Err(format!(
                "{n} words where an event has at least 7: device, CPU, number, time, PID, action, RWBS"
            ));
        };
        let number = |name: &str, text: &str| -> Result<u64, String> {
            text.parse().map_err(|_| format!("{name} '{text}' is not a whole number"))
        };
        let parts = device.split_once(',').ok_or_else(|| format!("device '{device}' is not MAJOR,MINOR"))?;
        for (name, text) in [("major", parts.0), ("minor", parts.1), ("CPU", cpu), ("number", sequence), ("PID", pid)] {
            number(name, text)?;
        }
        let at = Instant(nanos(time)?);
        let op = match (rwbs.contains('R'), rwbs.contains('W'), rwbs.contains('D')) {
            (true, false, false) => Op::OstRead,
            (false, true, false) => Op::OstWrite,
            _ => return Ok(None),
        };
        if !matches!(action, "Q" | "D" | "C") || rest.first().is_none_or(|word| word.starts_with('[')) {
            return Ok(None);
        }
        let [sector, "+", sectors, ref rest @ ..] = rest[..] else {
            return Err(format!("'{}' where SECTOR + SECTORS is due", rest.join(" ")));
        };
        let failed = rest.first().filter(|_| action == "C").map(|e| e.trim_matches(['[', ']']));
        let errno = match failed {
            Some(text) => text.parse::<i64>().map_err(|_| format!("result '{text}' is not a number"))?.unsigned_abs(),
            None => 0,
        };
        Ok(Some(Event {
            device,
            at,
            process: ClientId(number("PID", pid)?),
            action,
            op,
            sector: number("sector", sector)?,
            sectors: number("sectors", sectors)?,
            errno: u16::try_from(errno).unwrap_or(u16::MAX),
        }))
    }
}

impl Device {
    fn take(&mut self, e: &Event<'_>) -> Result<(), String> {
        match e.action {
            "Q" => {
                self.queued.entry(e.sector).or_insert((e.at, e.process));
            }
            "D" => {
                let end = e.sector.saturating_add(e.sectors.max(1));
                let own: Vec<u64> = self.queued.range(e.sector..end).map(|(sector, _)| *sector).collect();
                let own = own.into_iter().filter_map(|sector| self.queued.remove(&sector));
                // It may have been queued before the trace began.
                let (arrived, client) = own.min().unwrap_or((e.at, e.process));
                let (offset, bytes) = (e.sector.checked_mul(SECTOR_BYTES), e.sectors.checked_mul(SECTOR_BYTES));
                let offset = offset.ok_or_else(|| format!("sector {} lies beyond 2^64 bytes", e.sector))?;
                let bytes = bytes.and_then(|b| u32::try_from(b).ok());
                let bytes = bytes.ok_or_else(|| format!("{} sectors are more than 4 GiB", e.sectors))?;
                let (span, stored, object) = (bytes, bytes, ObjectId(Fid::new(1, 1)));
                let record = Record {
                    arrived,
                    dispatched: e.at,
                    client,
                    object,
                    offset,
                    bytes,
                    span,
                    stored,
                    ..Record::default()
                };
                self.issued.insert(e.sector, Record { op: e.op, ..record });
            }
            _ => {
                // One that was issued before the trace began is left out.
                if let Some(record) = self.issued.remove(&e.sector) {
                    self.records.push(checked(Record { finished: e.at, errno: e.errno, ..record })?);
                }
            }
        }
        Ok(())
    }
}

/// Reads what `blkparse` prints; what it counts in the end is passed over. Each device is a target, each process a client;
/// flushes and discards are left out, and what was not complete.
///
/// # Errors
/// The first line that is wrong, and why.
pub fn blkparse(text: &str) -> Result<Trace, ImportError> {
    let mut devices: BTreeMap<String, Device> = BTreeMap::new();
    let mut last = 1;
    for (line, number) in text.lines().map(str::trim).zip(1..) {
        last = number;
        // The summary: nothing but counts follows.
        if line.starts_with("CPU") || line.starts_with("Total") {
            break;
        }
        if line.is_empty() {
            continue;
        }
        let wrong = |what| ImportError { line: number, what };
        if let Some(event) = Event::read(line).map_err(wrong)? {
            let device = devices.entry(event.device.replace(',', ":")).or_default();
            device.take(&event).map_err(wrong)?;
        }
    }
    devices.retain(|_, d| !d.records.is_empty());
    if devices.is_empty() {
        let what = "no read or write is complete in it (an event D and its C)".into();
        return Err(ImportError { line: last, what });
    }
    let targets = devices.into_iter().map(|(name, d)| super::target(&name, "blkparse", &[], d.records)).collect();
    Ok(Trace { targets })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_last_from_the_first_queued_to_the_completion() {
        let text = "
  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]
  8,0    3        3     0.000002197   697  P   N [kjournald]
  8,0    3        4     0.000009705   698  Q   W 223498 + 8 [dd]
  8,0    3        5     0.000009900   698  M   W 223498 + 8 [dd]
  8,0    3        6     0.000010000   697  U   N [kjournald] 2
  8,0    3        7     0.000020000   697  D  WS 223490 + 16 [kjournald]
  8,0    1        8     0.000020500     0  Q FWS [kjournald]
  8,16   1        9     0.000030000   700  D   R 0 + 8 [dd]
  8,0    0       10     0.009507758     0  C  WS 223490 + 16 [0]
  8,16   0       11     0.010000000     0  C   R 0 + 8 [-5]
  8,0    0       12     0.011000000     0  C   R 77 + 8 [0]
CPU0 (8,0):
 Reads Queued:           0,        0KiB  Writes Queued:           2,        8KiB
Total (8,0):
";
        let trace = blkparse(text).expect("what blkparse prints");
        assert_eq!(
            trace.targets.iter().map(|t| (t.name(), t.records.len())).collect::<Vec<_>>(),
            [("8:0", 1), ("8:16", 1)]
        );
        let w = trace.targets[0].records[0];
        assert_eq!((w.arrived.0, w.dispatched.0, w.finished.0), (0, 20_000, 9_507_758));
        assert_eq!((w.offset, w.bytes, w.client.0, w.op), (223_490 * 512, 8192, 697, Op::OstWrite));
        let r = trace.targets[1].records[0];
        assert_eq!((r.arrived, r.errno, r.op), (r.dispatched, 5, Op::OstRead));
    }

    #[test]
    fn what_blkparse_does_not_print_is_refused_at_its_line() {
        let good = "8,0 3 1 0.1 697 D W 8 + 8 [x]\n";
        for (line, why) in [
            ("8,0 3 1", "line 2: 3 words where an event has at least 7"),
            ("sda 3 1 0.1 697 Q W 8 + 8", "line 2: device 'sda' is not MAJOR,MINOR"),
            ("8,0 3 1 soon 697 Q W 8 + 8", "line 2: 'soon' is not a time in seconds"),
            ("8,0 3 1 0.1 dd Q W 8 + 8", "line 2: PID 'dd' is not a whole number"),
            ("8,0 3 1 0.1 697 Q W 8 8 [x]", "line 2: '8 8 [x]' where SECTOR + SECTORS is due"),
            ("8,0 3 1 0.1 697 D W 99999999999999999999 + 8", "line 2: sector '99999999999999999999' is not a whole"),
            ("8,0 3 1 0.1 697 D W 18446744073709551615 + 8", "line 2: sector 18446744073709551615 lies beyond"),
            ("8,0 3 1 0.1 697 D W 8 + 99999999", "line 2: 99999999 sectors are more than 4 GiB"),
            ("8,0 3 1 0.05 0 C W 8 + 8 [0]", "line 2: it was finished before it was dispatched"),
            ("8,0 3 1 0.2 0 C W 8 + 8 [bad]", "line 2: result 'bad' is not a number"),
            ("", "line 1: no read or write is complete in it"),
        ] {
            let refused = blkparse(&format!("{good}{line}\n")).expect_err("no output of blkparse").to_string();
            assert!(
                refused.starts_with(why) || line.is_empty() && refused.contains("no read or write"),
                "{line}: {refused}"
            );
        }
    }
}
