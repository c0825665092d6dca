//! Requests of the kernel: none panics the parser, none makes it allocate.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target, outcome_of};
use formats::memory::Counting;
use fuse::abi::{InHeader, opcode_name};
use fuse::mount::MountOptions;
use fuse::op::{op_struct_len, parse, parse_oneway};
use zerocopy::{FromBytes, IntoBytes};

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A request of every kind with plausible arguments and two names behind them.
fn requests() -> Vec<Vec<u8>> {
    (1..64u32)
        .filter(|op| opcode_name(*op) != "UNKNOWN")
        .map(|opcode| {
            let header = InHeader { opcode, len: 100, unique: 8, nodeid: 1, total_extlen: 0, ..Default::default() };
            let arg = vec![2u8; op_struct_len(opcode, true).unwrap_or(0)];
            [header.as_bytes(), &arg, b"a name\0another\0some data"].concat()
        })
        .collect()
}

#[test]
fn no_request_panics_or_allocates() {
    let target = Target {
        name: "request",
        root: ROOT,
        seeds: requests(),
        words: &[b"\0", b"/\0", &[8, 0, 0, 0, 1, 0, 0, 0], &[16, 0, 0, 0, 32, 0, 0, 0], b"security.selinux\0"],
        mend: None,
        memory: (0, 0),
    };
    target.run(|input| {
        let Ok((header, rest)) = InHeader::read_from_prefix(input) else { return 0 };
        let mut outcome = 0;
        for ext in [true, false] {
            let len = op_struct_len(header.opcode, ext).unwrap_or(0).min(rest.len());
            let (arg, data) = rest.split_at(len);
            let whole = parse(&header, arg, data, ext).is_ok();
            let oneway = parse_oneway(header.opcode, arg, data).is_some_and(|o| o.is_ok());
            outcome = outcome * 4 + u64::from(whole) * 2 + u64::from(oneway);
        }
        outcome << 8 | u64::from(header.opcode & 0xff)
    });
}

#[test]
fn no_mount_option_panics() {
    let words =
        ["ro,nodev,allow_other", "max_read=131072", "fsname=a\\,b", "rootmode=40000,user_id=0", "noatime,,dirsync"];
    let target = Target {
        name: "options",
        root: ROOT,
        seeds: words.iter().map(|w| w.as_bytes().to_vec()).collect(),
        words: &[b",", b"=", b"\\", b"max_read=", b"allow_other"],
        mend: None,
        memory: (16 << 10, 64),
    };
    target.run(|input| match MountOptions::parse(&String::from_utf8_lossy(input)) {
        Ok(_) => 1,
        Err(e) => outcome_of(&e.to_string()),
    });
}
