//! The bytes of every message, compared with golden files; what a message was before is still read.
#![allow(clippy::unwrap_used)]
use formats::golden::Folder;
use types::{ClientId, FsError, Transno, Xid};
use wire::{Flags, HEADER_BYTES, Header, Op, crc32c};

/// The fields of a message part, without its length.
fn fields(part: &[u8]) -> &[u8] {
    let len = u32::from_le_bytes(part[..4].try_into().unwrap()) as usize;
    assert_eq!(len, part.len() - 4, "a body is one part");
    &part[4..]
}

/// Whether bytes are as they were, but that what is in them, or parts in it, grew at its end.
fn grew(old: &[u8], now: &[u8]) -> bool {
    let Some(at) = (0..old.len()).find(|i| now.get(*i) != old.get(*i)) else { return true };
    let part = |bytes: &[u8], from: usize| {
        let len = u32::from_le_bytes(bytes.get(from..from + 4)?.try_into().ok()?) as usize;
        Some((bytes.get(from + 4..)?.get(..len)?.to_vec(), bytes[from + 4 + len..].to_vec()))
    };
    // The first byte that differs is one of a part's length.
    (at.saturating_sub(3)..=at).any(|from| match (part(old, from), part(now, from)) {
        (Some((old, old_rest)), Some((now, rest))) => {
            now.len() > old.len() && grew(&old, &now) && old_rest.len() <= rest.len() && grew(&old_rest, &rest)
        }
        _ => false,
    })
}

#[test]
fn every_body_has_its_golden_bytes_and_reads_them_back() {
    let folder = Folder::of(env!("CARGO_MANIFEST_DIR"));
    for (module, bodies) in wire::MODULES {
        for body in *bodies {
            let name = format!("{module}.{}", body.name);
            let bytes = (body.example)();
            folder.check(&name, &bytes);
            assert_eq!((body.recode)(&bytes).as_deref(), Ok(&bytes[..]), "{name}");
            for old in folder.earlier(&name) {
                let now = (body.recode)(&old).unwrap_or_else(|e| panic!("{name}: old bytes are not read: {e}"));
                assert!(grew(fields(&old), fields(&now)), "{name}: a message only grows at its end");
            }
        }
    }
    headers(&folder);
    folder.finish();
}

fn headers(folder: &Folder) {
    let body = b"body of the message";
    let mut request = Header::request(Op::OstWrite, ClientId(0x0102_0304_0506_0708), Xid(0x1112_1314_1516_1718));
    request.flags = Flags::URGENT.with(Flags::RESENT);
    (request.slot_or_credits, request.patience) = (7, 30_000);
    (request.body_len, request.bulk_len) = (body.len() as u32, 1 << 20);
    let mut with_crc = request;
    with_crc.flags = with_crc.flags.with(Flags::BULK_CRC);
    (with_crc.patience, with_crc.bulk_crc) = (0, 0xdead_beef);
    let mut reply = request.reply(Err(FsError::NoSpace));
    (reply.transno, reply.last_committed) = (Transno(0x2122_2324_2526_2728), Transno(0x3132_3334_3536_3738));
    (reply.slot_or_credits, reply.body_len) = (64, body.len() as u32);
    for (name, header) in [("request", request), ("request_with_bulk_crc", with_crc), ("reply", reply)] {
        let bytes = header.to_bytes(body);
        folder.check(&format!("header.{name}"), &bytes);
        assert_eq!(Header::from_bytes(&bytes), Ok(header));
        assert_eq!(Header::check_body(&bytes, body), Ok(()));
    }
    let mut all = Vec::new();
    for op in Op::ALL {
        all.extend_from_slice(&(*op as u16).to_le_bytes());
        all.extend_from_slice(op.name().as_bytes());
    }
    folder.check("ops", &all);
    for table in folder.earlier("ops") {
        for (number, name) in numbered(&table) {
            let now = Op::from_u16(number).map(Op::name);
            let retired = Op::RETIRED.iter().find(|r| r.0 == number).map(|r| r.1);
            assert_eq!(now.xor(retired), Some(name.as_str()), "number {number}");
        }
    }
}

/// Numbers and names of a table of operations. Numbers are below 256: their second byte ends the name before them.
fn numbered(table: &[u8]) -> Vec<(u16, String)> {
    let starts: Vec<usize> = (0..table.len() - 1).filter(|i| table[i + 1] == 0).collect();
    let ends = starts.iter().skip(1).copied().chain([table.len()]);
    let name = |from: usize, to: usize| String::from_utf8(table[from..to].to_vec()).unwrap();
    starts.iter().zip(ends).map(|(at, end)| (u16::from(table[*at]), name(at + 2, end))).collect()
}

#[test]
fn one_flipped_bit_anywhere_in_header_or_body_is_found() {
    let body = b"some names and numbers";
    let mut header = Header::request(Op::MdtLookup, ClientId(3), Xid(9));
    header.body_len = body.len() as u32;
    let bytes = header.to_bytes(body);
    for bit in 0..HEADER_BYTES * 8 {
        let mut bad = bytes;
        bad[bit / 8] ^= 1 << (bit % 8);
        let seen = Header::from_bytes(&bad).and_then(|_| Header::check_body(&bad, body));
        assert!(seen.is_err(), "bit {bit} of the header");
    }
    for bit in 0..body.len() * 8 {
        let mut bad = body.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Header::check_body(&bytes, &bad).is_err(), "bit {bit} of the body");
    }
    assert_ne!(crc32c(&bytes), 0);
}
