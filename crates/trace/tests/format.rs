//! The file format: what is written is read again, golden bytes stay, and what is no trace is refused at its place.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target as Fuzzed, outcome_of};
use formats::golden::Folder;
use formats::memory::Counting;
use nrs::{IoOp, JobId};
use trace::{Flags, RECORD_BYTES, Record, Target, Trace};
use types::{ClientId, Fid, Instant, ObjectId, Rng, Xid};
use wire::Op;

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn record(rng: &mut Rng) -> Record {
    let arrived = rng.below(1 << 40);
    let dispatched = arrived + rng.below(1 << 30);
    Record {
        number: rng.below(1 << 20),
        arrived: Instant(arrived),
        dispatched: Instant(dispatched),
        finished: Instant(dispatched + rng.below(1 << 30)),
        client: ClientId(rng.below(1 << 60)),
        object: ObjectId(Fid::new(0x2_4000_0401, rng.below(100) as u32)),
        offset: rng.below(1 << 40),
        job: JobId(rng.below(1 << 60)),
        span: rng.below(1 << 30) as u32,
        bytes: rng.below(1 << 26) as u32,
        stored: rng.below(1 << 26) as u32,
        uid: rng.below(1 << 16) as u32,
        max_service_us: rng.below(1 << 20) as u32,
        promoted_us: rng.below(1 << 20) as u32,
        op: trace::op_of(IoOp::from_code(rng.below(4) as u8).unwrap()),
        flags: Flags(rng.below(32) as u8),
        errno: rng.below(130) as u16,
        ..Record::default()
    }
}

/// With what version 1 did not have.
fn grown(rng: &mut Rng, base: Record) -> Record {
    let unscheduled = rng.below(2) == 0;
    // Kinds that came after the golden bytes are left out: which one is drawn must not change with their number.
    let is_later = |op: Op| {
        matches!(
            op,
            Op::MdtSwap
                | Op::OstChanged
                | Op::MapChange
                | Op::OstFiles
                | Op::Changelog
                | Op::ChangelogUser
                | Op::Credentials
                | Op::Revoked
        ) || matches!(op, Op::MdtQuota | Op::MdtSetQuota | Op::OstQuota | Op::OstAskQuota | Op::OstOwn)
    };
    let drawn: Vec<Op> = Op::ALL.iter().copied().filter(|op| !is_later(*op)).collect();
    let any = drawn[rng.below(drawn.len() as u64) as usize];
    Record {
        op: if unscheduled { any } else { base.op },
        flags: if unscheduled { base.flags.with(Flags::UNSCHEDULED) } else { base.flags },
        xid: Xid(rng.below(1 << 40)),
        holder: ClientId(rng.below(1 << 60)),
        before_us: rng.below(1 << 32) as u32,
        locked_us: rng.below(1 << 30) as u32,
        after_us: rng.below(1 << 30) as u32,
        committed_us: rng.below(1 << 30) as u32,
        ..base
    }
}

fn trace(targets: usize, records: usize) -> Trace {
    let mut rng = Rng::new(5);
    let target = |i: usize| {
        let text = format!("target=stria-OST{i:04x}\nnrs.policy=obrr\nodd=a=b, \"c\"\n");
        Target { records: (0..records).map(|_| record(&mut rng)).collect(), ..Target::from_text(&text).unwrap() }
    };
    let mut trace = Trace { targets: (0..targets).map(target).collect() };
    let mut rng = Rng::new(7);
    trace.targets.iter_mut().flat_map(|t| &mut t.records).for_each(|r| *r = grown(&mut rng, *r));
    trace
}

/// What version 1 knew of it.
fn without_growth(trace: &Trace) -> Trace {
    let shrunk = |r: &Record| Record {
        xid: Xid(0),
        holder: ClientId(0),
        before_us: 0,
        locked_us: 0,
        after_us: 0,
        committed_us: 0,
        ..*r
    };
    let target = |t: &Target| Target { records: t.records.iter().map(shrunk).collect(), ..t.clone() };
    Trace { targets: trace.targets.iter().map(target).collect() }
}

fn written(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    trace.write(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_written_is_read_again() {
    for (targets, records) in [(0, 0), (1, 0), (1, 1), (3, 100), (2, trace::BLOCK_RECORDS_MAX * 2 + 1)] {
        let one = trace(targets, records);
        assert_eq!(trace::read(&written(&one)).unwrap(), one);
        assert_eq!(one.len(), targets * records);
    }
}

#[test]
fn golden_bytes_stay() {
    let folder = Folder::of(ROOT);
    let one = trace(2, 2);
    folder.check("trace", &written(&one));
    folder.check("empty", &written(&Trace::default()));
    assert_eq!(trace::read(&folder.earlier("empty")[0]), Ok(Trace::default()));
    let old = trace::read(&folder.earlier("trace")[0]).expect("version 1 is read for ever");
    assert_eq!((old.len(), old.targets[1].setting("odd")), (4, Some("a=b, \"c\"")));
    assert_eq!(old, without_growth(&old));
    let first = &old.targets[0].records[0];
    assert_eq!((first.number, first.arrived, first.finished), {
        let r = &one.targets[0].records[0];
        (r.number, r.arrived, r.finished)
    });
    folder.finish();
}

#[test]
fn every_byte_that_is_changed_and_every_end_that_is_cut_off_is_noticed() {
    let bytes = written(&trace(2, 3));
    for at in 0..bytes.len() {
        for bit in [1, 0x80] {
            let mut other = bytes.clone();
            other[at] ^= bit;
            let error = trace::read(&other).expect_err("a changed byte");
            assert!(error.offset <= at as u64 && !error.what.is_empty(), "byte {at}: {error}");
        }
        let error = trace::read(&bytes[..at]).expect_err("a file that was cut off");
        assert!(error.offset <= at as u64, "{at} bytes: {error}");
    }
    let error = trace::read(&[&bytes[..], b"x"].concat()).unwrap_err();
    assert_eq!((error.offset, error.what.as_str()), (bytes.len() as u64, "1 bytes behind the end"));
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let bytes = written(&trace(1, 3));
    let changed = |at: usize, value: u8| {
        let mut other = bytes.clone();
        other[at] = value;
        trace::mend(&mut other);
        trace::read(&other).expect_err("a byte that is wrong").to_string()
    };
    assert_eq!(changed(0, b's'), "byte 0: this is no trace of Stria: it does not begin with STRTRACE");
    let newer = changed(8, 3);
    assert_eq!(newer, "byte 8: the trace has version 3, this program reads 1 to 2; that is newer: use a newer stria");
    assert!(changed(8, 0).contains("version 0"), "{}", changed(8, 0));
    assert_eq!(changed(8, 1), "byte 10: records of 136 bytes, version 1 has 96");
    assert_eq!(changed(10, 95), "byte 10: records of 95 bytes, version 2 has 136");
    assert_eq!(changed(16, 9), "byte 16: a block of kind 9, which no version has");
    let settings = u32::from_le_bytes(bytes[20..24].try_into().unwrap()) as usize;
    let records = 16 + 12 + settings;
    assert_eq!(changed(records + 2, 1), format!("byte {}: records of target 1, which was not told of", records + 2));
    let second = records + 12 + RECORD_BYTES;
    assert_eq!(changed(second + 128, 77), format!("byte {}: a request: no operation has this code", second + 128));
    let end = bytes.len() - 8;
    assert_eq!(changed(end, 4), format!("byte {end}: 4 records were written, 3 are here"));
}

#[test]
fn no_input_makes_the_reader_panic_or_hold_much_memory() {
    let fuzzed = Fuzzed {
        name: "trace",
        root: ROOT,
        seeds: vec![written(&trace(0, 0)), written(&trace(1, 1)), written(&trace(3, 4))],
        words: &[b"STRTRACE", b"target=", &[0xff; 8], &[1, 0, 0, 0], &[2, 0, 0, 0], &[3, 0, 0, 0, 8, 0, 0, 0]],
        mend: Some(trace::mend),
        memory: (64 << 10, 40),
    };
    fuzzed.run(|input| match trace::read(input) {
        Ok(read) => {
            // Settings that are told twice, and the like, come back as they were.
            assert_eq!(trace::read(&written(&read)).as_ref(), Ok(&read));
            read.targets.len() as u64
        }
        Err(e) => {
            assert!(e.offset <= input.len() as u64);
            let words = e.what.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default();
            outcome_of(words)
        }
    });
}

#[test]
fn exports_have_a_line_or_an_object_for_every_request() {
    let one = trace(2, 3);
    let mut csv = Vec::new();
    trace::export::csv(&one, &mut csv).unwrap();
    let csv = String::from_utf8(csv).unwrap();
    let lines: Vec<Vec<&str>> = csv.lines().map(|l| l.split(',').collect()).collect();
    assert_eq!(lines.len(), 1 + 6);
    assert!(lines.iter().all(|l| l.len() == trace::export::COLUMNS.len()), "{csv}");
    let back = trace::import::csv(&csv).unwrap();
    assert!(
        back.targets.iter().zip(&one.targets).all(|(a, b)| a.records == b.records && a.name() == b.name()),
        "{csv}"
    );
    let r = one.targets[1].records[2];
    assert_eq!((lines[6][0], lines[6][1]), ("stria-OST0001", r.number.to_string().as_str()));
    assert_eq!(lines[6][13], r.finished.0.to_string());
    let mut json = Vec::new();
    trace::export::json(&one, &mut json).unwrap();
    let json = String::from_utf8(json).unwrap();
    assert_eq!(json.matches("\"finished_ns\":").count(), 6);
    assert!(json.contains(r#""odd":"a=b, \"c\"""#), "{json}");
}
