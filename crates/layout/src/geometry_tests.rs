//! The arithmetic against a byte-by-byte model, and at the edges of 8 EiB.
use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const UNIT: u64 = 65536;

fn geometry(size: u64, count: u16) -> Geometry {
    Geometry::new(StripeSize::new(size).unwrap(), count).unwrap()
}

/// The model: walk the file byte by byte (in steps of `step`), dealing stripes to objects like cards.
fn walk(size: u64, count: u16, len: u64, step: u64) -> Vec<(u16, u64)> {
    let mut filled = vec![0u64; usize::from(count)];
    let (mut at, mut stripe, mut in_stripe) = (Vec::new(), 0usize, 0);
    for _ in 0..len / step {
        at.push((stripe as u16, filled[stripe]));
        filled[stripe] += step;
        in_stripe += step;
        if in_stripe == size {
            in_stripe = 0;
            stripe = (stripe + 1) % usize::from(count);
        }
    }
    at
}

proptest! {
    #[test]
    fn locate_agrees_with_dealing_byte_by_byte(units in 1u64..4, count in 1u16..6, len in 1u64..40) {
        let step = 4096;
        let g = geometry(units * UNIT, count);
        for (i, (stripe, object)) in walk(units * UNIT, count, len * UNIT, step).into_iter().enumerate() {
            let offset = i as u64 * step;
            prop_assert_eq!(g.locate(offset), Ok((StripeIndex(stripe), object)));
            prop_assert_eq!(g.file_offset(StripeIndex(stripe), object), Ok(offset));
        }
    }

    #[test]
    fn pieces_tile_the_extent_and_match_the_model(
        units in 1u64..4, count in 1u16..6, start in 0u64..(20 * UNIT), len in 0u64..(20 * UNIT),
    ) {
        let g = geometry(units * UNIT, count);
        let file = Extent::at(start, len);
        let mut at = start;
        for p in g.pieces(file).unwrap() {
            prop_assert_eq!(p.file.start, at);
            prop_assert!(!p.file.is_empty() && p.file.len() == p.object.len());
            prop_assert!(p.file.end <= g.stripe_end(p.file.start), "a piece never crosses a stripe");
            prop_assert_eq!(g.locate(p.file.start), Ok((p.stripe, p.object.start)));
            prop_assert_eq!(g.locate(p.file.end - 1), Ok((p.stripe, p.object.end - 1)));
            at = p.file.end;
        }
        prop_assert_eq!(at, file.end);
    }

    #[test]
    fn object_extents_are_the_hulls_of_their_pieces(
        units in 1u64..4, count in 1u16..6, start in 0u64..(20 * UNIT), len in 0u64..(20 * UNIT),
    ) {
        let g = geometry(units * UNIT, count);
        let file = Extent::at(start, len);
        let mut model: Vec<StripeExtent> = Vec::new();
        for p in g.pieces(file).unwrap() {
            match model.iter_mut().find(|m| m.stripe == p.stripe) {
                Some(m) => {
                    prop_assert_eq!(m.object.end, p.object.start, "contiguous in the object");
                    m.object.end = p.object.end;
                }
                None => model.push(StripeExtent { stripe: p.stripe, object: p.object }),
            }
        }
        prop_assert_eq!(g.objects(file).unwrap().collect::<Vec<_>>(), model.clone());
        for s in g.stripes() {
            let expected = model.iter().find(|m| m.stripe == s).map(|m| m.object);
            prop_assert_eq!(g.object_extent(s, file), expected);
        }
        // And back: the object extents' file pieces cover the file extent exactly once.
        let mut back: Vec<Extent> = Vec::new();
        for m in &model {
            back.extend(g.file_pieces(m.stripe, m.object).unwrap().map(|p| p.file));
        }
        back.sort();
        let mut at = file.start;
        for e in back {
            prop_assert_eq!(e.start, at);
            at = e.end;
        }
        prop_assert_eq!(at, file.end.max(file.start));
    }

    #[test]
    fn sizes_convert_both_ways(units in 1u64..70, count in 1u16..9, size in 0u64..(1 << 40)) {
        let g = geometry(units * UNIT, count);
        let sizes: Vec<u64> = g.stripes().map(|s| g.object_size(s, size)).collect();
        prop_assert_eq!(sizes.iter().sum::<u64>(), size);
        prop_assert_eq!(g.file_size_of(sizes), Ok(size));
    }

    #[test]
    fn one_object_with_data_decides_the_size_of_a_sparse_file(count in 1u16..9, stripe in 0u16..9, size in 1u64..(1 << 40)) {
        let g = geometry(UNIT, count);
        let stripe = StripeIndex(stripe % count);
        let file_size = g.file_size(stripe, size).unwrap();
        prop_assert_eq!(g.object_size(stripe, file_size), size);
        prop_assert_eq!(g.object_size(stripe, file_size - 1), size - 1);
    }

    #[test]
    fn no_input_overflows(units in 1u64..=65535, count in 1u16..=2000, start: u64, end: u64, stripe: u16) {
        let g = geometry(units * UNIT, count);
        let e = Extent::new(start.min(end), start.max(end));
        let s = StripeIndex(stripe);
        if let Ok((at, object)) = g.locate(start) {
            prop_assert!(object <= start);
            prop_assert_eq!(g.file_offset(at, object), Ok(start));
        }
        let _ = (g.file_offset(s, end), g.object_size(s, end), g.file_size(s, end), g.object_extent(s, e), g.stripe_end(end));
        prop_assert!(g.objects(e).map(Iterator::count).unwrap_or(0) <= usize::from(count));
        prop_assert!(g.pieces(e).map(|p| p.take(5).count()).unwrap_or(0) <= 5);
        prop_assert!(g.file_pieces(s, e).map(|p| p.take(5).count()).unwrap_or(0) <= 5);
        prop_assert!(g.file_size_max(end) <= FILE_SIZE_MAX);
    }
}

#[test]
fn the_last_byte_of_8_eib_has_a_place_and_the_next_has_none() {
    for (size, count) in [(UNIT, 1), (UNIT, 2000), (4 << 20, 7), (u64::from(crate::STRIPE_SIZE_BYTES_MAX), 2000)] {
        let g = geometry(size, count);
        let (stripe, object) = g.locate(FILE_SIZE_MAX - 1).unwrap();
        assert_eq!(g.file_offset(stripe, object), Ok(FILE_SIZE_MAX - 1));
        assert_eq!(g.locate(FILE_SIZE_MAX), Err(MapError::BeyondLayout { offset: FILE_SIZE_MAX }));
        let edge = Extent::new(FILE_SIZE_MAX - 5 * size, FILE_SIZE_MAX);
        assert_eq!(g.pieces(edge).unwrap().map(|p| p.file.len()).sum::<u64>(), 5 * size);
        let over = Extent::new(0, FILE_SIZE_MAX + 1);
        assert_eq!(g.pieces(over).unwrap_err(), MapError::BeyondLayout { offset: FILE_SIZE_MAX + 1 });
        assert!(g.objects(over).is_err());
        assert_eq!(g.file_size_max(u64::MAX), FILE_SIZE_MAX);
    }
    assert_eq!(types::FsError::from(MapError::BeyondLayout { offset: 0 }), types::FsError::FileTooBig);
}

#[test]
fn an_open_ended_extent_is_open_ended_in_every_object() {
    let g = geometry(UNIT, 3);
    let objects: Vec<_> = g.objects(Extent::from(UNIT + 10)).unwrap().map(|o| (o.stripe.0, o.object)).collect();
    assert_eq!(objects, [(1, Extent::from(10)), (2, Extent::from(0)), (0, Extent::from(UNIT))]);
}

#[test]
fn an_object_limit_limits_the_file() {
    let g = geometry(UNIT, 3);
    assert_eq!(g.file_size_max(2 * UNIT), 6 * UNIT);
    assert_eq!(g.file_size_max(2 * UNIT + 5), 6 * UNIT + 5);
    assert_eq!(g.object_size(StripeIndex(0), 6 * UNIT + 5), 2 * UNIT + 5);
    assert_eq!(g.file_size(StripeIndex(3), 1), Err(MapError::NoStripe { stripe: StripeIndex(3), count: 3 }));
}
