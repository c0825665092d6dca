//! A create from end to end, as an MDS does it: request, directory default, OSTs, layout, bytes, text.
use layout::{
    AllocConfig, Allocator, FILE_SIZE_MAX, LayoutSpec, OstFacts, StripeIndex, StripeObject, parse_ost_list,
    parse_stripe_size, text, xattr,
};
use types::{Extent, Fid, GIB, MIB, ObjectId, OstIndex, Rng};

fn osts() -> Vec<OstFacts> {
    (0..5)
        .map(|i| OstFacts {
            index: OstIndex(i),
            total_bytes: 100 * GIB,
            free_bytes: 90 * GIB,
            active: true,
            in_pool: true,
        })
        .collect()
}

#[test]
fn a_file_is_created_as_its_directory_says_and_reads_back_the_same() {
    let dir = LayoutSpec::from_raw(MIB, 3, -1).expect("legal");
    // setstripe on the directory, then a create that says nothing: both travel as xattr bytes.
    let dir = xattr::decode_spec(&xattr::encode_spec(&dir)).expect("own bytes");
    let resolved = LayoutSpec::default().or(&dir).resolve();
    let mut allocator = Allocator::new("auto", AllocConfig::default()).expect("a name of the registry");
    let chosen = allocator.allocate(&osts(), &resolved, &mut Rng::new(1)).expect("there is room");
    let objects = chosen.iter().map(|&ost| StripeObject { ost, object: ObjectId::new(ost, 9) }).collect();
    let layout = resolved.layout(objects).expect("distinct OSTs");
    let fid = Fid::new(Fid::MDT_SEQ_FIRST, 1);
    let stored = xattr::encode_layout(&layout, fid, xattr::Form::Stored);
    assert_eq!(xattr::decode_layout(&stored), Ok((fid, layout.clone())));
    assert!(text::file("f", fid, &layout, false).contains("lmm_stripe_count:  3\nlmm_stripe_size:   1048576\n"));

    // 2.5 MiB written: sizes at the objects give the size of the file, and a read finds its pieces.
    let g = layout.geometry();
    let size = 5 * MIB / 2;
    let sizes: Vec<u64> = g.stripes().map(|s| g.object_size(s, size)).collect();
    assert_eq!(sizes, [MIB, MIB, MIB / 2]);
    assert_eq!(g.file_size_of(sizes), Ok(size));
    let pieces: Vec<_> = g.pieces(Extent::new(MIB - 1, MIB + 1)).expect("within the limit").collect();
    assert_eq!((pieces[0].stripe, pieces[1].stripe, pieces.len()), (StripeIndex(0), StripeIndex(1), 2));
    assert!(g.pieces(Extent::new(0, FILE_SIZE_MAX + 1)).is_err());
}

#[test]
fn command_line_values_become_requests() {
    let mut spec = LayoutSpec::from_raw(0, 0, -1).expect("asks for nothing");
    spec.stripe_size = parse_stripe_size("64").expect("KiB");
    spec = spec.with_osts(parse_ost_list("0-2,4").expect("a list")).expect("distinct");
    let resolved = xattr::decode_spec(&xattr::encode_spec(&spec)).expect("own bytes").resolve();
    let mut allocator = Allocator::new("auto", AllocConfig::default()).expect("a name of the registry");
    let chosen = allocator.allocate(&osts(), &resolved, &mut Rng::new(1)).expect("all exist");
    assert_eq!(chosen, [0, 1, 2, 4].map(OstIndex));
    let missing = LayoutSpec::from_raw(0, 1, 9).expect("legal as a number").resolve();
    let refusal = allocator.allocate(&osts(), &missing, &mut Rng::new(1)).expect_err("there is no OST 9");
    assert_eq!(refusal.to_string(), "OST9 does not exist: indices end at 4; use -1 for any OST");
}
