//! Texts that users write for addresses, sizes, ids and patterns: none panics or takes much memory.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target, outcome_of};
use formats::memory::Counting;
use rt::Nid;
use types::glob::Glob;
use types::{Fid, format_size, parse_size};

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn no_address_size_or_id_panics() {
    let words = [
        "tcp:127.0.0.1:7988",
        "[::1]:7988",
        "local:mds",
        "[0x200000401:0x5:0x0]",
        "1024",
        "4M",
        "18446744073709551615E",
    ];
    let target = Target {
        name: "address",
        root: ROOT,
        seeds: words.iter().map(|w| w.as_bytes().to_vec()).collect(),
        words: &[b"tcp:", b"local:", b"0x", b":", b"[", b"]", b"65536", b"18446744073709551615", b"E"],
        mend: None,
        memory: (4 << 10, 8),
    };
    target.run(|input| {
        let text = String::from_utf8_lossy(input);
        let nid = Nid::parse(&text);
        if let Ok(nid) = &nid {
            assert_eq!(Nid::parse(&nid.to_string()).as_ref(), Ok(nid));
        }
        let fid = Fid::parse(&text);
        if let Some(fid) = fid {
            assert_eq!(Fid::parse(&fid.to_string()), Some(fid));
        }
        let size = parse_size(&text).map(format_size);
        outcome_of(&format!("{:?}{:?}{:?}", nid.is_ok(), fid.is_some(), size.map(|s| s.len()).ok()))
    });
}

#[test]
fn no_pattern_panics_or_explodes() {
    let words =
        ["osc.*.max_rpcs_in_flight", "{llite,osc}.fs-OST000[0-3]*.{stats,import}", "[", "{a,b}{c,d}{e,f}", "a?c.*"];
    let target = Target {
        name: "glob",
        root: ROOT,
        seeds: words.iter().map(|w| w.as_bytes().to_vec()).collect(),
        words: &[b"{,}", b"{a,b}", b"[a-", b"]", b"*", b"?", b"."],
        mend: None,
        // At most 1024 alternatives of at most 4096 bytes, and the list of them.
        memory: (5 << 20, 0),
    };
    target.run(|input| {
        let text = String::from_utf8_lossy(input);
        let glob = Glob::new(&text);
        let names = ["osc.fs-OST0001.stats", "", "a.b.c", "ost.OSS.ost_io.nrs_policies"];
        names
            .iter()
            .fold(0, |n, name| n * 4 + u64::from(glob.matches(name)) + u64::from(glob.matches_prefix(name).is_some()))
    });
}
