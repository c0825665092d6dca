//! Bytes from the kernel never panic the parser, and well-formed requests come out as they went in.
use fuse::abi::{opcode::*, *};
use fuse::op::{Oneway, ParseError, op_struct_len, parse, parse_oneway};
use fuse::{Extensions, Op};
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn header(opcode: u32, total_extlen: u16) -> InHeader {
    InHeader { opcode, total_extlen, ..Default::default() }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        opcode in 0u32..60, ext in 0u16..64, ext_on: bool,
        arg in proptest::collection::vec(any::<u8>(), 0..130),
        data in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..600),
    ) {
        let h = header(opcode, ext);
        let _ = parse(&h, &arg, &data, ext_on);
        let _ = parse_oneway(opcode, &arg, &data);
    }

    #[test]
    fn structures_with_plausible_sizes_never_panic(
        opcode in 1u32..54, words in proptest::collection::vec(0u32..300, 32), ext in 0u16..32,
        data in proptest::collection::vec(prop_oneof![Just(0u8), 1u8..40], 0..400),
    ) {
        let arg: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let h = header(opcode, ext);
        if let Ok(op) = parse(&h, &arg, &data, true) {
            // Whatever is accepted lies inside the data.
            let inside = |s: &[u8]| data.as_ptr_range().start <= s.as_ptr() && s.as_ptr_range().end <= data.as_ptr_range().end;
            match op {
                Op::Write { data, arg } => prop_assert!(inside(data) && data.len() == arg.size as usize),
                Op::Rename { name, newname, .. } => prop_assert!(inside(name) && inside(newname) && !name.is_empty()),
                Op::Setxattr { name, value, .. } => prop_assert!(inside(name) && inside(value)),
                _ => {}
            }
        }
    }

    #[test]
    fn names_come_out_as_they_went_in(name in "[a-zäß .-]{1,200}", other in "[a-z]{1,50}", newdir: u64, flags: u32) {
        let arg = Rename2In { newdir, flags, padding: 0 };
        let data = [name.as_bytes(), &[0], other.as_bytes(), &[0]].concat();
        let op = parse(&header(RENAME2, 0), arg.as_bytes(), &data, true);
        prop_assert_eq!(op, Ok(Op::Rename { newdir, flags, name: name.as_bytes(), newname: other.as_bytes() }));
    }
}

#[test]
fn bad_names_are_refused() {
    let lookup = |data: &[u8]| parse(&header(LOOKUP, 0), &[], data, true).map(drop);
    assert_eq!(lookup(b"ok\0"), Ok(()));
    assert_eq!(lookup(b""), Err(ParseError::BadName(LOOKUP)));
    assert_eq!(lookup(b"\0"), Err(ParseError::BadName(LOOKUP)));
    assert_eq!(lookup(b"open"), Err(ParseError::BadName(LOOKUP)));
    assert_eq!(lookup(b"a/b\0"), Err(ParseError::BadName(LOOKUP)));
    assert_eq!(lookup(&[[b'x'; 1025].as_slice(), &[0]].concat()), Err(ParseError::LongName(LOOKUP)));
    assert_eq!(lookup(&[b'x'; 5000]), Err(ParseError::LongName(LOOKUP)));
    let rename = |data: &[u8]| parse(&header(RENAME2, 0), Rename2In::default().as_bytes(), data, true).map(drop);
    assert_eq!(rename(&[b"a\0".as_slice(), &[b'x'; 1025], &[0]].concat()), Err(ParseError::LongName(RENAME2)));
    let symlink = |data: &[u8]| parse(&header(SYMLINK, 0), &[], data, true).map(drop);
    assert_eq!(symlink(&[b"a\0".as_slice(), &[b'x'; 4097], &[0]].concat()), Err(ParseError::LongName(SYMLINK)));
    assert_eq!(lookup(&[[b'x'; 1024].as_slice(), &[0]].concat()), Ok(()));
}

#[test]
fn data_shorter_than_announced_are_refused() {
    let arg = WriteIn { size: 5, ..Default::default() };
    let write = |data: &[u8]| parse(&header(WRITE, 0), arg.as_bytes(), data, true).map(drop);
    assert_eq!((write(b"12345"), write(b"1234")), (Ok(()), Err(ParseError::Truncated(WRITE))));
    let count = BatchForgetIn { count: u32::MAX, dummy: 0 };
    assert_eq!(parse_oneway(BATCH_FORGET, count.as_bytes(), &[0; 64]), Some(Err(ParseError::Truncated(BATCH_FORGET))));
    assert_eq!(parse(&header(4096, 0), &[], &[], true), Err(ParseError::UnknownOpcode(4096)));
}

#[test]
fn both_forms_of_setxattr_are_understood() {
    let new = SetxattrIn { size: 2, flags: 1, setxattr_flags: 1, padding: 0 };
    let old = SetxattrCompatIn { size: 2, flags: 1 };
    let h = header(SETXATTR, 0);
    let data = b"user.a\0xy";
    let op = |setxattr_flags| Op::Setxattr { flags: 1, setxattr_flags, name: b"user.a", value: b"xy" };
    assert_eq!(parse(&h, new.as_bytes(), data, true), Ok(op(1)));
    assert_eq!(parse(&h, old.as_bytes(), data, false), Ok(op(0)));
    assert_eq!((op_struct_len(SETXATTR, true), op_struct_len(SETXATTR, false)), (Some(16), Some(8)));
}

#[test]
fn security_context_and_group_of_a_create_are_found_behind_its_name() {
    let mut ext = Vec::new();
    let context = [Secctx { size: 3, padding: 0 }.as_bytes(), b"security.selinux\0", b"ctx"].concat();
    let size = (8 + context.len()).next_multiple_of(8);
    ext.extend_from_slice(ExtHeader { size: size as u32, typ: 1 }.as_bytes());
    ext.extend_from_slice(&context);
    ext.resize(size, 0);
    ext.extend_from_slice(ExtHeader { size: 16, typ: EXT_GROUPS }.as_bytes());
    ext.extend_from_slice([1u32, 1234].as_bytes());
    let mut data = b"name\0".to_vec();
    data.extend_from_slice(&ext);
    let h = header(MKDIR, (ext.len() / 8) as u16);
    let expected = Extensions { security: Some((b"security.selinux", b"ctx")), supplementary_group: Some(1234) };
    let arg = MkdirIn { mode: 0o755, umask: 0 };
    assert_eq!(parse(&h, arg.as_bytes(), &data, true), Ok(Op::Mkdir { arg, name: b"name", ext: expected }));
    let too_long = header(MKDIR, 1000);
    assert_eq!(parse(&too_long, arg.as_bytes(), &data, true), Err(ParseError::BadExtension(MKDIR)));
}

#[test]
fn one_way_messages_are_told_from_requests() {
    let forget = ForgetIn { nlookup: 3 };
    assert_eq!(parse_oneway(FORGET, forget.as_bytes(), &[]), Some(Ok(Oneway::Forget { nlookup: 3 })));
    assert_eq!(parse_oneway(INTERRUPT, 8u64.as_bytes(), &[]), Some(Ok(Oneway::Interrupt { unique: 8 })));
    let nodes = [ForgetOne { nodeid: 1, nlookup: 2 }, ForgetOne { nodeid: 3, nlookup: 4 }];
    let arg = BatchForgetIn { count: 2, dummy: 0 };
    assert_eq!(
        parse_oneway(BATCH_FORGET, arg.as_bytes(), nodes.as_bytes()),
        Some(Ok(Oneway::BatchForget { nodes: &nodes }))
    );
    assert_eq!(parse_oneway(READ, &[], &[]), None);
}
