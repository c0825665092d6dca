//! Sorted pairs that are cheap to copy: a snapshot shares with its successors what no commit has changed since.
//!
//! The pairs lie in pieces of some dozen. A copy is one reference; the first change behind it copies the list of pieces, which are
//! references, and each change the piece that it meets. A copied tree would be all pairs for every commit that a snapshot looks at.
use std::rc::Rc;

/// Pairs of a piece; one more, and it is parted.
const PIECE_MAX: usize = 64;

type Row = (Rc<[u8]>, Rc<[u8]>);

/// See the module's head.
#[derive(Clone, Default)]
pub(super) struct Rows {
    /// None is empty.
    pieces: Rc<Vec<Rc<Vec<Row>>>>,
}

impl Rows {
    /// The piece in which `key` is or would be.
    fn piece_of(&self, key: &[u8]) -> usize {
        self.pieces.partition_point(|piece| *piece[0].0 <= *key).saturating_sub(1)
    }
    fn place_in(piece: &[Row], key: &[u8]) -> Result<usize, usize> {
        piece.binary_search_by(|(k, _)| (**k).cmp(key))
    }
    /// The value of a key.
    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let piece = self.pieces.get(self.piece_of(key))?;
        Rows::place_in(piece, key).ok().map(|at| &*piece[at].1)
    }
    /// All pairs from `key` on, in their order.
    pub(super) fn iter_from(&self, key: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
        let first = self.piece_of(key);
        let skipped = self.pieces.get(first).map_or(0, |piece| Rows::place_in(piece, key).unwrap_or_else(|at| at));
        self.pieces[first..].iter().flat_map(|piece| piece.iter()).skip(skipped).map(|(k, v)| (&**k, &**v))
    }
    /// Puts a pair in, or another value in the place of a key's.
    pub(super) fn insert(&mut self, key: &[u8], value: &[u8]) {
        let at = self.piece_of(key);
        let pieces = Rc::make_mut(&mut self.pieces);
        if pieces.is_empty() {
            pieces.push(Rc::default());
        }
        let piece = Rc::make_mut(&mut pieces[at]);
        match Rows::place_in(piece, key) {
            Ok(place) => piece[place].1 = value.into(),
            Err(place) => piece.insert(place, (key.into(), value.into())),
        }
        if piece.len() > PIECE_MAX {
            let behind = piece.split_off(PIECE_MAX / 2);
            pieces.insert(at + 1, Rc::new(behind));
        }
    }
    /// Takes a pair out, if there is one.
    pub(super) fn remove(&mut self, key: &[u8]) {
        let at = self.piece_of(key);
        let Some(Ok(place)) = self.pieces.get(at).map(|piece| Rows::place_in(piece, key)) else { return };
        let pieces = Rc::make_mut(&mut self.pieces);
        let piece = Rc::make_mut(&mut pieces[at]);
        piece.remove(place);
        if piece.is_empty() {
            pieces.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use types::Rng;

    use super::*;

    #[test]
    fn they_are_what_a_map_is_and_copies_hold_still() {
        let (mut rng, mut rows, mut map) = (Rng::new(7), Rows::default(), BTreeMap::new());
        let mut copies = Vec::new();
        for step in 0..6000_u64 {
            let key = rng.below(700).to_be_bytes();
            // Keys come in twice as often as they go, then all but a few go.
            if rng.below(3) > u64::from(step > 4000) {
                rows.insert(&key[6..], &step.to_be_bytes());
                map.insert(key[6..].to_vec(), step.to_be_bytes().to_vec());
            } else {
                rows.remove(&key[6..]);
                map.remove(&key[6..]);
            }
            if step % 500 == 0 {
                copies.push((rows.clone(), map.clone()));
            }
        }
        copies.push((rows, map));
        for (rows, map) in &copies {
            for from in (0..710_u64).step_by(9).map(|n| n.to_be_bytes()[6..].to_vec()) {
                let pairs = rows.iter_from(&from).map(|(k, v)| (k.to_vec(), v.to_vec()));
                assert!(pairs.eq(map.range(from.clone()..).map(|(k, v)| (k.clone(), v.clone()))), "from {from:?}");
                assert_eq!(rows.get(&from), map.get(&from).map(Vec::as_slice));
            }
        }
    }
}
