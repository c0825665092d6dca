//! Bytes from the network: no message makes a decoder panic or hold more memory than the message justifies.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target, outcome_of};
use formats::memory::Counting;
use types::{ClientId, Xid};
use wire::{BODY_BYTES_MAX, BULK_BYTES_MAX, Body, HEADER_BYTES, Header, Op, crc32c, crc32c_append};

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Mends the checksum of a header with its body behind it.
fn mend(input: &mut [u8]) {
    if let Some((header, body)) = input.split_at_mut_checked(HEADER_BYTES) {
        let crc = crc32c_append(crc32c(&header[..60]), body);
        header[60..].copy_from_slice(&crc.to_le_bytes());
    }
}

#[test]
fn no_envelope_panics_and_none_asks_for_more_than_the_limits() {
    let seeds = Op::ALL.iter().map(|op| {
        let mut h = Header::request(*op, ClientId(1), Xid(2));
        h.body_len = 5;
        [&h.to_bytes(b"hello")[..], b"hello"].concat()
    });
    let target = Target {
        name: "envelope",
        root: ROOT,
        seeds: seeds.collect(),
        words: &[b"STR1", &BODY_BYTES_MAX.to_le_bytes(), &BULK_BYTES_MAX.to_le_bytes()],
        mend: Some(mend),
        memory: (1 << 10, 0),
    };
    target.run(|input| {
        let Some((raw, body)) = input.split_first_chunk::<HEADER_BYTES>() else { return 0 };
        match Header::from_bytes(raw) {
            Ok(h) => {
                assert!(h.body_len <= BODY_BYTES_MAX && h.bulk_len <= BULK_BYTES_MAX);
                let whole = Header::check_body(raw, body).is_ok();
                let _ = h.result();
                1 + (h.op as u64) * 2 + u64::from(whole)
            }
            Err(e) => outcome_of(&format!("{e:?}")[..5]),
        }
    });
}

fn bodies(module: &str, bodies: &[Body]) {
    for body in bodies {
        let target = Target {
            name: &format!("{module}.{}", body.name),
            root: ROOT,
            seeds: vec![(body.example)()],
            words: &[&[1, 0, 0, 0], &[0xff, 0xff, 0xff, 0xff], &[0, 0, 16, 0]],
            mend: None,
            // A list's element takes a byte of the message at least and at most a few hundred in memory; lists double
            // while they grow, and what was understood is written again.
            memory: (4 << 10, 256),
        };
        target.run(|input| match (body.recode)(input) {
            Ok(once) => {
                // What was understood is a fixed point: both ends agree on what it says.
                assert_eq!((body.recode)(&once).as_deref(), Ok(&once[..]), "{}", body.name);
                once.len() as u64
            }
            Err(e) => outcome_of(&format!("{e:?}")[..5]),
        });
    }
}

#[test]
fn no_body_panics_or_takes_much_memory() {
    for (module, all) in wire::MODULES {
        bodies(module, all);
    }
}
