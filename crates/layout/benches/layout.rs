//! Cost of mapping, of choosing OSTs and of reading xattr bytes: one NDJSON line per case.
//!
//! `cargo bench -p stria-layout`
use std::hint::black_box;
use std::time::Instant;
use types::{Extent, Fid, GIB, MIB, ObjectId, OstIndex, Rng};

use layout::{
    AllocConfig, Allocator, Geometry, Layout, LayoutSpec, OstFacts, POLICIES, Pattern, StripeObject, StripeSize, xattr,
};

const ROUNDS: usize = 15;

fn main() {
    let g = Geometry::new(StripeSize::DEFAULT, 12).expect("12 stripes are legal");
    let mut rng = Rng::new(1);
    let offsets: Vec<u64> = (0..1024).map(|_| rng.below(1 << 45)).collect();
    report("locate", 1024, || {
        offsets.iter().for_each(|o| _ = black_box(g.locate(*o)));
    });
    report("piece", 1024, || {
        let pieces = g.pieces(Extent::at(12345, 1024 * 4 * MIB)).expect("within the limit");
        pieces.take(1024).for_each(|p| _ = black_box(p));
    });
    for n in [4u16, 144, 1800] {
        for p in POLICIES {
            allocate(p.name, n);
        }
    }
    let layout = layout_of(2000);
    let bytes = xattr::encode_layout(&layout, Fid::ROOT, xattr::Form::Stored);
    report("decode_2000_stripes", 1, || _ = black_box(xattr::decode_layout(black_box(&bytes))));
    let bytes = xattr::encode_layout(&layout_of(1), Fid::ROOT, xattr::Form::Stored);
    report("decode_1_stripe", 1, || _ = black_box(xattr::decode_layout(black_box(&bytes))));
}

fn layout_of(stripes: u16) -> Layout {
    let object = |i| StripeObject { ost: OstIndex(i), object: ObjectId::new(OstIndex(i), 7) };
    let objects = (0..stripes).map(object).collect();
    Layout::new(StripeSize::DEFAULT, Pattern::Raid0, None, objects).expect("a legal layout")
}

fn allocate(policy: &str, osts: u16) {
    let fact = |i: u16| OstFacts {
        index: OstIndex(i),
        total_bytes: 100 * GIB,
        free_bytes: 80 * GIB + u64::from(i) * MIB,
        active: true,
        in_pool: true,
    };
    let facts: Vec<OstFacts> = (0..osts).map(fact).collect();
    let ask = LayoutSpec::from_raw(0, 4, -1).expect("legal numbers").resolve();
    let mut allocator = Allocator::new(policy, AllocConfig::default()).expect("a name of the registry");
    let mut rng = Rng::new(1);
    report(&format!("allocate_4_of_{osts}_{policy}"), 1, || {
        _ = black_box(allocator.allocate(&facts, &ask, &mut rng));
    });
}

/// ns per item; each round repeats the case for about a millisecond.
fn report(case: &str, items: u64, mut run: impl FnMut()) {
    let mut ns: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (start, mut n) = (Instant::now(), 0);
            while start.elapsed().as_micros() < 2_000 {
                (0..16).for_each(|_| run());
                n += 16 * items;
            }
            start.elapsed().as_nanos() as f64 / n as f64
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    let (min, median, max) = (ns[0], ns[ROUNDS / 2], ns[ROUNDS - 1]);
    println!(
        "{{\"bench\":\"layout\",\"case\":\"{case}\",\"unit\":\"ns\",\"n\":{ROUNDS},\"min\":{min:.1},\"median\":{median:.1},\"max\":{max:.1}}}"
    );
}
