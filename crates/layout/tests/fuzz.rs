//! Layout bytes from programs and disks, and texts of layouts: none panics or takes more memory than it justifies.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target, outcome_of};
use formats::memory::Counting;
use layout::allocator::POLICIES;
use layout::record::{Recorder, replay};
use layout::xattr::{Form, decode_layout, decode_spec, encode_layout, encode_spec, to_read_form};
use layout::{AllocConfig, Allocator, LayoutSpec, OstFacts, PoolChoice, parse_ost_list, parse_stripe_size};
use types::{OstIndex, Rng};

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The vectors of the format's description: two stripes, a pool, a composite header, a list of targets.
fn vectors() -> Vec<Vec<u8>> {
    let hex = [
        "d00bd10b01000000050000000000000001040000020000000000400002000000\
         010400400200000002000000000000000000000000000000010400800200000002000000000000000000000001000000",
        "d00bd30b0100000006000000000000000104000002000000000010000100ffff666c6173680000000000000000000000\
         010400400200000003000000000000000000000000000000",
        "d00bd60b40000000010000000000010000000000000000000000000000000000",
    ];
    let bytes = |h: &str| (0..h.len() / 2).map(|i| u8::from_str_radix(&h[2 * i..2 * i + 2], 16).unwrap()).collect();
    let mut all: Vec<Vec<u8>> = hex.iter().map(|h| bytes(h)).collect();
    let spec = LayoutSpec::from_raw(1 << 20, 2, -1).unwrap();
    all.push(encode_spec(&spec));
    all.push(encode_spec(&spec.with_osts(vec![OstIndex(1), OstIndex(0)]).unwrap()));
    all
}

#[test]
fn no_stored_layout_panics_and_what_is_read_is_written_the_same() {
    let target = Target {
        name: "lov-layout",
        root: ROOT,
        seeds: vectors(),
        words: &[b"\xd0\x0b\xd1\x0b", b"\xd0\x0b\xd3\x0b", b"\xd0\x0b\xd5\x0b", &[1, 2, 0, 0], &[0xd0, 7]],
        mend: None,
        memory: (1 << 10, 4),
    };
    target.run(|input| match decode_layout(input) {
        Ok((file, layout)) => {
            let again = encode_layout(&layout, file, Form::Stored);
            assert_eq!(decode_layout(&again).unwrap(), (file, layout));
            let mut read = again;
            to_read_form(&mut read);
            read.len() as u64
        }
        Err(e) => outcome_of(&e.to_string()),
    });
}

#[test]
fn no_requested_layout_panics_and_what_is_read_is_written_the_same() {
    let target = Target {
        name: "lov-spec",
        root: ROOT,
        seeds: vectors(),
        words: &[b"\xd0\x0b\xd1\x0b", b"\xd0\x0b\xd3\x0b", b"\xd0\x0b\xd5\x0b", b"ignore\0", &[0xff, 0xff]],
        mend: None,
        memory: (1 << 10, 4),
    };
    target.run(|input| match decode_spec(input) {
        Ok(spec) => {
            assert_eq!(decode_spec(&encode_spec(&spec)), Ok(spec));
            1
        }
        Err(e) => outcome_of(&e.to_string()),
    });
}

#[test]
fn no_text_of_a_layout_panics() {
    let words = ["64k", "4M", "4194304", "0-2,5", "65535", "-1", "0xffff", "T", "P", "E", "4095", "pool.of-15bytes"];
    let target = Target {
        name: "text",
        root: ROOT,
        seeds: words.iter().map(|w| w.as_bytes().to_vec()).collect(),
        words: &[b"k", b"-", b",", b"18446744073709551615", b"0-65535"],
        mend: None,
        // Every number of a range is an index: bounded by the indices that there are.
        memory: (512 << 10, 64),
    };
    target.run(|input| {
        let text = String::from_utf8_lossy(input);
        let size = parse_stripe_size(&text).is_ok();
        let list = parse_ost_list(&text).map_or(0, |l| l.len());
        let pool = PoolChoice::parse(&text).is_ok();
        u64::from(size) << 40 | u64::from(pool) << 41 | list as u64
    });
}

fn recorded(policy: &str) -> Vec<u8> {
    let mut rng = Rng::named(7, policy);
    let mut recorder = Recorder::new(Allocator::new(policy, AllocConfig::default()).unwrap(), 1 << 16);
    for i in 0..20 {
        let fact = |o| OstFacts {
            index: OstIndex(o),
            total_bytes: 1000,
            free_bytes: 10 * u64::from(o) + i,
            active: o != 2,
            in_pool: o % 2 == 0,
        };
        let _ = recorder.allocate(&[0, 1, 2, 3].map(fact), &LayoutSpec::default().resolve(), &mut rng);
    }
    recorder.log().as_bytes().to_vec()
}

#[test]
fn no_log_of_an_allocator_panics() {
    let target = Target {
        name: "replay",
        root: ROOT,
        seeds: POLICIES.iter().map(|p| recorded(p.name)).collect(),
        words: &[b"18446744073709551615", b"65535", b" -> ", b"osts=0,0,1", b"\n", b":ap,", b"count=2000"],
        mend: None,
        memory: (256 << 10, 256),
    };
    target
        .run(|input| outcome_of(&format!("{:?}", replay(&String::from_utf8_lossy(input)).map_err(|e| e.to_string()))));
}
