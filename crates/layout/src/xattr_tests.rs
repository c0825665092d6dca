//! Golden vectors, round trips and hostile bytes.
use super::*;
use proptest::prelude::*;
use std::string::String;
use std::vec;

const GOLDEN_V1: &str = "d00bd10b 01000000 0500000000000000 0104000002000000 00004000 0200 ffff \
    0104004002000000 02000000 00000000 00000000 00000000 0104008002000000 02000000 00000000 00000000 01000000";
const GOLDEN_V3: &str = "d00bd30b 01000000 0600000000000000 0104000002000000 00001000 0100 ffff \
    666c6173680000000000000000000000 0104004002000000 03000000 00000000 00000000 00000000";

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

fn obj(ost: u16, oid: u32) -> StripeObject {
    StripeObject { ost: OstIndex(ost), object: ObjectId::new(OstIndex(ost), oid) }
}

fn layout(size: u64, pool: Option<&str>, objects: Vec<StripeObject>) -> Layout {
    let pool = pool.map(|p| PoolName::parse(p).unwrap());
    Layout::new(StripeSize::new(size).unwrap(), Pattern::Raid0, pool, objects).unwrap()
}

#[test]
fn golden_v1_is_two_stripes_of_4_mib() {
    let l = layout(4 << 20, None, vec![obj(0, 2), obj(1, 2)]);
    let file = Fid::new(0x2_0000_0401, 5);
    let golden = hex(GOLDEN_V1);
    assert_eq!(golden.len(), 80);
    assert_eq!(encode_layout(&l, file, Form::Read), golden);
    assert_eq!(decode_layout(&golden), Ok((file, l.with_generation(0xFFFF))));
}

#[test]
fn golden_v3_is_one_stripe_in_pool_flash() {
    let l = layout(1 << 20, Some("flash"), vec![obj(0, 3)]);
    let file = Fid::new(0x2_0000_0401, 6);
    let golden = hex(GOLDEN_V3);
    assert_eq!(golden.len(), 72);
    assert_eq!(encode_layout(&l, file, Form::Read), golden);
    assert_eq!(decode_layout(&golden), Ok((file, l.with_generation(0xFFFF))));
}

#[test]
fn the_stored_form_keeps_the_generation_and_the_read_form_hides_it() {
    let l = layout(4 << 20, None, vec![obj(0, 2)]).with_generation(7);
    let mut bytes = encode_layout(&l, Fid::new(0x2_0000_0401, 5), Form::Stored);
    assert_eq!(decode_layout(&bytes).unwrap().1.generation(), 7);
    to_read_form(&mut bytes);
    assert_eq!(bytes, encode_layout(&l, Fid::new(0x2_0000_0401, 5), Form::Read));
}

#[test]
fn a_layout_restored_from_an_archive_becomes_a_request_for_its_shape() {
    let spec = decode_spec(&hex(GOLDEN_V3)).unwrap();
    assert_eq!(spec.stripe_size, Some(StripeSize::new(1 << 20).unwrap()));
    assert_eq!(spec.stripe_count, StripeCount::Exactly(1));
    assert_eq!(spec.index, None);
    assert_eq!(spec.pool, PoolChoice::Named(PoolName::parse("flash").unwrap()));
    assert!(spec.osts().is_empty());
}

#[test]
fn an_explicit_list_goes_through_the_specific_form() {
    let spec = LayoutSpec::from_raw(1 << 20, 3, -1).unwrap();
    let spec = spec.with_osts(vec![OstIndex(5), OstIndex(0), OstIndex(2)]).unwrap();
    let bytes = encode_spec(&spec);
    assert_eq!(u32_at(&bytes, 0), MAGIC_SPECIFIC);
    assert_eq!(bytes.len(), V3_HEADER_BYTES + 3 * OBJECT_BYTES);
    assert_eq!(decode_spec(&bytes).unwrap().osts(), spec.osts());
    assert!(matches!(decode_spec(&bytes[..bytes.len() - 1]), Err(XattrError::Truncated { needed: 120, given: 119 })));
    assert_eq!(decode_layout(&bytes), Err(XattrError::Magic(MAGIC_SPECIFIC)));
}

#[test]
fn released_and_hole_flags_from_users_are_cleared() {
    let mut bytes = hex(GOLDEN_V1);
    bytes[7] = 0xC0;
    assert_eq!(decode_spec(&bytes).unwrap().stripe_count, StripeCount::Exactly(2));
    assert_eq!(decode_layout(&bytes), Err(XattrError::Pattern(0xC000_0001)));
}

#[test]
fn other_forms_are_refused_by_name() {
    let with_magic = |m: u32| {
        let mut b = hex(GOLDEN_V1);
        b[..4].copy_from_slice(&m.to_le_bytes());
        b
    };
    for (magic, what) in
        [(0x0BD6_0BD0, "composite"), (0x0BD7_0BD0, "foreign"), (0x0BD8_0BD0, "self-extending"), (0x0BD2_0BD0, "joined")]
    {
        assert_eq!(decode_spec(&with_magic(magic)), Err(XattrError::Unsupported(what)));
        assert_eq!(decode_layout(&with_magic(magic)), Err(XattrError::Unsupported(what)));
    }
    assert_eq!(decode_spec(&with_magic(0xD00B_D10B)), Err(XattrError::Magic(0xD00B_D10B)));
    assert_eq!(FsError::from(XattrError::Unsupported("foreign")), FsError::NotSupported);
}

#[test]
fn bad_values_keep_their_reason() {
    let with = |at: usize, v: &[u8]| {
        let mut b = hex(GOLDEN_V1);
        b[at..at + v.len()].copy_from_slice(v);
        b
    };
    assert!(matches!(decode_spec(&with(24, &1u32.to_le_bytes())), Err(XattrError::Spec(SpecError::StripeSize(_)))));
    assert_eq!(decode_spec(&with(28, &2001u16.to_le_bytes())), Err(XattrError::Spec(SpecError::StripeCount(2001))));
    assert_eq!(decode_spec(&with(4, &4u32.to_le_bytes())), Err(XattrError::Pattern(4)));
    assert_eq!(decode_layout(&with(52, &65535u32.to_le_bytes())), Err(XattrError::Ost(65535)));
    let too_long = vec![0; XATTR_BYTES_MAX + 1];
    assert!(matches!(decode_spec(&too_long), Err(XattrError::TooLong { given: 65537, allowed: 65536 })));
    assert_eq!(decode_spec(&with(28, &0xFFFFu16.to_le_bytes())).unwrap().stripe_count, StripeCount::All);
}

fn any_spec() -> impl Strategy<Value = LayoutSpec> {
    let pool = prop_oneof![
        Just(PoolChoice::Inherit),
        Just(PoolChoice::Ignore),
        "[a-z0-9_-]{1,10}x".prop_map(|n| PoolChoice::Named(PoolName::parse(&n).unwrap())),
    ];
    let count = prop_oneof![Just(-1i64), Just(0), 1i64..=2000];
    (0u64..=65535, count, -1i64..65535, pool, any::<bool>(), prop::collection::btree_set(0u16..1000, 0..20)).prop_map(
        |(units, count, index, pool, overstripe, osts)| {
            let osts: Vec<OstIndex> = osts.into_iter().map(OstIndex).collect();
            let (count, index) = match osts.first() {
                Some(first) => (osts.len() as i64, i64::from(first.0)),
                None => (count, index),
            };
            let mut spec = LayoutSpec::from_raw(units * 65536, count, index).unwrap();
            spec.pool = pool;
            spec.overstripe = overstripe;
            spec.with_osts(osts).unwrap()
        },
    )
}

proptest! {
    #[test]
    fn every_request_survives_its_bytes(spec in any_spec()) {
        prop_assert_eq!(decode_spec(&encode_spec(&spec)), Ok(spec));
    }

    #[test]
    fn every_layout_survives_its_bytes(
        units in 1u64..=65535, generation: u16, pool in prop::option::of("[a-z]{1,14}x"),
        osts in prop::collection::btree_set(0u16..65535, 1..50), oid: u32, seq: u64,
    ) {
        let objects = osts.into_iter().map(|o| obj(o, oid)).collect();
        let l = layout(units * 65536, pool.as_deref(), objects).with_generation(generation);
        let file = Fid::new(seq, oid);
        prop_assert_eq!(decode_layout(&encode_layout(&l, file, Form::Stored)), Ok((file, l)));
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), magic in 0usize..4) {
        if let (Some(m), Some(at)) = ([MAGIC_V1, MAGIC_V3, MAGIC_SPECIFIC].get(magic), bytes.get_mut(..4)) {
            at.copy_from_slice(&m.to_le_bytes());
        }
        let _ = decode_layout(&bytes);
        let _ = decode_spec(&bytes);
        to_read_form(&mut bytes);
    }

    #[test]
    fn damaged_layouts_never_panic_and_stay_legal(at in 0usize..80, with: u8, cut in 0usize..=80) {
        let mut bytes = hex(GOLDEN_V1);
        bytes[at] = with;
        if let Ok((file, l)) = decode_layout(&bytes[..cut]) {
            prop_assert_eq!(decode_layout(&encode_layout(&l, file, Form::Stored)), Ok((file, l)));
        }
    }
}
