//! Traces from what `darshan-dxt-parser` prints: what a job's processes read and wrote, call by call.
//!
//! Calls are not the requests that servers got: a mount cuts and joins them. Calls of MPI-IO are made of others and count only
//! where there are no others. Source: Darshan's documentation, "Guide to darshan-dxt-parser output".
use super::{ImportError, checked, nanos};
use crate::{Record, Target, Trace};
use nrs::JobId;
use std::collections::BTreeMap;
use types::{ClientId, Fid, Instant, ObjectId};
use wire::Op;

/// What was read of the head and of the file that is being told of.
#[derive(Default)]
struct Seen {
    files: BTreeMap<String, u32>,
    file: Option<u32>,
    host: ClientId,
    job: JobId,
    uid: u32,
    start_s: i64,
}

impl Seen {
    /// A line that begins with `#`.
    fn comment(&mut self, text: &str) -> Result<(), String> {
        let value = |key: &str| text.strip_prefix(key).map(str::trim);
        if let Some(uid) = value("uid:") {
            self.uid = uid.parse().map_err(|_| format!("uid '{uid}' is not a number"))?;
        } else if let Some(job) = value("jobid:") {
            self.job = JobId(types::job_id(job.as_bytes()));
        } else if let Some(start) = value("start_time:") {
            // Whole seconds, or with their fraction.
            let whole = start.split('.').next().unwrap_or_default();
            self.start_s = whole.parse().map_err(|_| format!("start_time '{start}' is not a number of seconds"))?;
        } else if let Some(file) = value("DXT, file_id:") {
            let id = file.split(',').next().unwrap_or_default().trim().to_string();
            let next = self.files.len() as u32 + 1;
            self.file = Some(*self.files.entry(id).or_insert(next));
        } else if let Some(rank) = value("DXT, rank:") {
            let host = rank.split_once("hostname:").map(|(_, host)| host.trim());
            let host =
                host.filter(|h| !h.is_empty()).ok_or_else(|| format!("a rank without its hostname: '{text}'"))?;
            self.host = ClientId(types::job_id(host.as_bytes()));
        }
        Ok(())
    }

    /// A call: module, rank, what, segment, offset, length, start, end, and on Lustre the OSTs.
    fn call(&self, text: &str) -> Result<(Option<u32>, Record), String> {
        let (text, ost) = match text.split_once('[') {
            Some((call, osts)) => (call, Some(ost_of(osts)?)),
            None => (text, None),
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let [_, rank, what, _, offset, length, start, end] = words[..] else {
            let n = words.len();
            return Err(format!(
                "{n} columns where 8 are due: module, rank, Wt/Rd, segment, offset, length, start, end"
            ));
        };
        let number = |name: &str, text: &str| -> Result<u64, String> {
            text.parse().map_err(|_| format!("{name} '{text}' is not a whole number"))
        };
        number("rank", rank)?;
        let op = match what {
            "read" => Op::OstRead,
            "write" => Op::OstWrite,
            other => return Err(format!("'{other}' is neither read nor write")),
        };
        let file = self.file.ok_or("a call before the file that it is of ('# DXT, file_id: ...')")?;
        let bytes =
            u32::try_from(number("length", length)?).map_err(|_| format!("length {length}: more than 4 GiB"))?;
        let arrived = Instant(nanos(start)?);
        let record = Record {
            arrived,
            dispatched: arrived,
            finished: Instant(nanos(end)?),
            client: self.host,
            object: ObjectId(Fid::new(1, file)),
            offset: number("offset", offset)?,
            span: bytes,
            bytes,
            stored: bytes,
            job: self.job,
            uid: self.uid,
            op,
            ..Record::default()
        };
        Ok((ost, checked(record)?))
    }
}

/// The first OST of `3] [  4]`.
fn ost_of(text: &str) -> Result<u32, String> {
    let first = text.split(']').next().unwrap_or_default().trim();
    first.parse().map_err(|_| format!("'[{text}' does not begin with the index of an OST"))
}

/// Reads what `darshan-dxt-parser` prints. Each host is a client, each file an object; a target is an OST where the calls
/// tell it (the first one of several), else all are of one.
///
/// # Errors
/// The first line that is wrong, and why.
pub fn dxt(text: &str) -> Result<Trace, ImportError> {
    let module = |line: &str| ["X_POSIX", "X_STDIO", "X_MPIIO"].into_iter().find(|m| line.starts_with(m));
    let has_calls = text.lines().any(|l| module(l.trim()).is_some_and(|m| m != "X_MPIIO"));
    let mut seen = Seen::default();
    let mut by_target: BTreeMap<Option<u32>, Vec<Record>> = BTreeMap::new();
    for (line, number) in text.lines().map(str::trim).zip(1..) {
        let wrong = |what| ImportError { line: number, what };
        if line.is_empty() {
            continue;
        }
        if let Some(comment) = line.strip_prefix('#') {
            seen.comment(comment.trim()).map_err(wrong)?;
            continue;
        }
        match module(line) {
            Some("X_MPIIO") if has_calls => {}
            Some(_) => {
                let (ost, record) = seen.call(line).map_err(wrong)?;
                by_target.entry(ost).or_default().push(record);
            }
            None => return Err(wrong("neither a comment nor a call (X_POSIX, X_STDIO, X_MPIIO)".into())),
        }
    }
    if by_target.is_empty() {
        let what = "no call is in it: was the program run with DXT_ENABLE_IO_TRACE set?".into();
        return Err(ImportError { line: text.lines().count().max(1), what });
    }
    let wall_ns = seen.start_s.saturating_mul(1_000_000_000);
    let targets = by_target.into_iter().map(|(ost, records)| {
        let name = ost.map_or("dxt".to_string(), |ost| format!("OST{ost:04x}"));
        super::target(&name, "dxt", &[("clock_ns", 0), ("wall_ns", wall_ns)], records)
    });
    let targets: Vec<Target> = targets.collect();
    Ok(Trace { targets })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# darshan log version: 3.21\n# exe: ./ior\n# uid: 500\n# jobid: 4242\n# start_time: 1490000000\n\n\
        # DXT, file_id: 16457598720760448348, file_name: /scratch/f\n# DXT, rank: 0, hostname: n1\n";

    #[test]
    fn calls_of_hosts_become_requests_of_clients() {
        let text = format!(
            "{HEAD}# Module    Rank  Wt/Rd  Segment  Offset  Length  Start(s)  End(s)\n\
             X_POSIX  0  write  0  0  262144  0.0029  0.0032\n X_POSIX  0  read  0  262144  4096  0.0001  0.0002\n\
             # DXT, file_id: 7, file_name: /scratch/g\n# DXT, rank: 3, hostname: n2\n\
             X_POSIX  3  read  0  0  8  1.5  1.75\n X_MPIIO  3  read  0  0  8  1.0  1.9\n"
        );
        let trace = dxt(&text).expect("what the parser prints");
        assert_eq!((trace.targets.len(), trace.len()), (1, 3), "calls of MPI-IO are made of the others");
        let target = &trace.targets[0];
        assert_eq!((target.name(), target.number("wall_ns")), ("dxt", Some(1_490_000_000_000_000_000)));
        let r = &target.records;
        assert_eq!(r.iter().map(|r| r.finished.0).collect::<Vec<_>>(), [200_000, 3_200_000, 1_750_000_000]);
        assert_eq!((r[1].arrived.0, r[1].bytes, r[1].op, r[1].uid), (2_900_000, 262_144, Op::OstWrite, 500));
        assert_eq!((r[0].number, r[1].number, r[1].job.0), (0, 1, types::job_id(b"4242")));
        assert!(r[0].client == r[1].client && r[1].client != r[2].client && r[1].object != r[2].object);
        let osts = format!("{HEAD}X_POSIX 0 read 0 0 8 0.1 0.2 [  3] [ 11]\nX_POSIX 0 read 0 0 8 0.1 0.2 [ 11]\n");
        let names: Vec<String> = dxt(&osts).unwrap().targets.iter().map(|t| t.name().to_string()).collect();
        assert_eq!(names, ["OST0003", "OST000b"]);
        let only = format!("{HEAD}X_MPIIO 0 read 0 0 8 0.1 0.2\n");
        assert_eq!(dxt(&only).unwrap().len(), 1);
    }

    #[test]
    fn what_the_parser_does_not_print_is_refused_at_its_line() {
        let refused = |line: &str| dxt(&format!("{HEAD}{line}\n")).expect_err("no output of the parser").to_string();
        for (line, why) in [
            ("X_POSIX 0 read 0 0 8 0.1", "line 9: 7 columns where 8 are due: module, rank, Wt/Rd, segment"),
            ("X_POSIX 0 erase 0 0 8 0.1 0.2", "line 9: 'erase' is neither read nor write"),
            ("X_POSIX 0 read 0 -1 8 0.1 0.2", "line 9: offset '-1' is not a whole number"),
            ("X_POSIX 0 read 0 0 8000000000 0.1 0.2", "line 9: length 8000000000: more than 4 GiB"),
            ("X_POSIX 0 read 0 0 8 0.3 0.2", "line 9: it was finished before it was dispatched"),
            ("X_POSIX 0 read 0 0 8 0.1 nan", "line 9: 'nan' is not a time in seconds"),
            ("X_POSIX 0 read 0 0 8 0.1 0.2 [x]", "line 9: '[x]' does not begin with the index of an OST"),
            ("# DXT, rank: 1", "line 9: a rank without its hostname"),
            ("# uid: me", "line 9: uid 'me' is not a number"),
            ("hello", "line 9: neither a comment nor a call"),
            ("", "line 9: no call is in it"),
        ] {
            assert!(refused(line).starts_with(why), "{line}: {}", refused(line));
        }
        let first = dxt("X_POSIX 0 read 0 0 8 0.1 0.2\n").unwrap_err().to_string();
        assert!(first.starts_with("line 1: a call before the file that it is of"), "{first}");
    }
}
