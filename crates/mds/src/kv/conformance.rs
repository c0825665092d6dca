//! What every engine must do, for the tests of engines: what the contract says of batches and snapshots against a naive model, and a
//! series of batches of which a store that was killed has the first ones, whole.
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use types::Rng;

use super::{Key, KvBatch, KvError, KvSnapshot, MetaKv, unseal};
use crate::start::ready;

/// Keys that each batch of the series adds.
const KEYS: u64 = 10;
/// Bytes of each of their values.
const VALUE_BYTES: usize = 300;

/// The `n`-th batch of a series, from 1: sets a counter to `n` if it was `n - 1`, writes ten keys of its own and removes those of two
/// batches before.
#[must_use]
pub fn batch(n: u64) -> Arc<KvBatch> {
    let mut b = KvBatch::default();
    b.changes.insert(Key::from_slice(b"n"), Some(n.to_le_bytes().to_vec()));
    for i in 0..KEYS {
        b.changes.insert(key(n, i), Some(vec![n as u8; VALUE_BYTES]));
        if n > 2 {
            b.changes.insert(key(n - 2, i), None);
        }
    }
    let before = if n > 1 { Some((n - 1).to_le_bytes().to_vec()) } else { None };
    b.expect.push((Key::from_slice(b"n"), before));
    Arc::new(b)
}

fn key(n: u64, i: u64) -> Key {
    let mut k = Key::from_slice(b"k");
    k.extend_from_slice(&n.to_be_bytes());
    k.extend_from_slice(&i.to_be_bytes());
    k
}

async fn value(s: &dyn KvSnapshot, key: &[u8]) -> Option<Vec<u8>> {
    let sealed = ready(s.get(key)).await.expect("the store can be read");
    sealed.map(|v| unseal(key, v).expect("a value is what was stored"))
}

/// The counter of the series as a snapshot has it.
pub async fn counted_in(s: &dyn KvSnapshot) -> u64 {
    value(s, b"n").await.map_or(0, |v| u64::from_le_bytes(v.try_into().expect("eight bytes")))
}

/// How many batches of the series a store has.
///
/// # Panics
/// It does not have exactly their keys, with their values.
pub async fn count(kv: &dyn MetaKv) -> u64 {
    let s = kv.snapshot().await.expect("a snapshot");
    let n = counted_in(&*s).await;
    let pairs = ready(s.range(b"k", b"l", 1000)).await.expect("the store can be read");
    let have: Vec<(Vec<u8>, u8)> = pairs
        .into_iter()
        .map(|(k, v)| {
            let value = unseal(&k, v).expect("a value is what was stored");
            assert!(value.len() == VALUE_BYTES && value.iter().all(|b| *b == value[0]), "value of {k:?}");
            (k, value[0])
        })
        .collect();
    let batches = n.saturating_sub(1).max(1)..=n;
    let want: Vec<_> = batches.flat_map(|b| (0..KEYS).map(move |i| (key(b, i).to_vec(), b as u8))).collect();
    assert_eq!(have, want, "after batch {n}");
    n
}

/// A batch whose expectation fails changes nothing and latches nothing. On an empty store.
pub async fn failed_expectations_change_nothing(kv: &dyn MetaKv) {
    kv.commit(batch(1)).await.expect("the first batch");
    assert!(matches!(kv.commit(batch(3)).await, Err(KvError::Conflict { .. })));
    assert!(matches!(kv.commit(batch(1)).await, Err(KvError::Conflict { .. })));
    assert_eq!(count(kv).await, 1);
    kv.commit(batch(2)).await.expect("nothing is latched");
    assert_eq!(count(kv).await, 2);
}

/// A snapshot holds still while batches are committed. On an empty store.
pub async fn snapshots_hold_still(kv: &dyn MetaKv) {
    let mut snapshots: Vec<Rc<dyn KvSnapshot>> = Vec::new();
    for n in 1..=5 {
        kv.commit(batch(n)).await.expect("a batch");
        snapshots.push(kv.snapshot().await.expect("a snapshot"));
    }
    for (n, s) in (1..).zip(&snapshots) {
        assert_eq!(counted_in(&**s).await, n);
        let pairs = ready(s.range(b"k", b"l", 1000)).await.expect("the store can be read");
        let batches: Vec<u64> = if n == 1 { vec![1] } else { vec![n - 1, n] };
        assert_eq!(pairs.len() as u64, KEYS * batches.len() as u64, "snapshot {n}");
        assert!(value(&**s, &key(n, 0)).await.is_some() && value(&**s, &key(n + 1, 0)).await.is_none());
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn some_key(rng: &mut Rng) -> Vec<u8> {
    let mut key = vec![b"xyz"[rng.below(3) as usize]];
    key.extend((0..rng.below(4)).map(|_| [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize]));
    key
}

async fn compare(s: &dyn KvSnapshot, model: &Model, rng: &mut Rng) {
    for _ in 0..6 {
        let key = some_key(rng);
        assert_eq!(value(s, &key).await.as_ref(), model.get(&key), "key {key:?}");
        let (from, to, limit) = (some_key(rng), some_key(rng), 1 + rng.below(12) as usize);
        let found = ready(s.range(&from, &to, limit)).await.expect("the store can be read");
        let found: Vec<(Vec<u8>, Vec<u8>)> =
            found.into_iter().map(|(k, v)| (k.clone(), unseal(&k, v).expect("a value is what was stored"))).collect();
        let wanted: Vec<(Vec<u8>, Vec<u8>)> = if from < to {
            model.range(from.clone()..to.clone()).take(limit).map(|(k, v)| (k.clone(), v.clone())).collect()
        } else {
            Vec::new()
        };
        assert_eq!(found, wanted, "{from:?}..{to:?}, {limit} at most");
    }
}

/// Random batches, and reads of the newest and of older snapshots, against a model. On an empty store.
pub async fn agrees_with_a_model(kv: &dyn MetaKv, seed: u64, batches: u64) {
    let (mut rng, mut model) = (Rng::new(seed), Model::new());
    let mut snapshots: Vec<(Rc<dyn KvSnapshot>, Model)> = Vec::new();
    for _ in 0..batches {
        let mut batch = KvBatch::default();
        for _ in 0..rng.below(20) {
            let key = some_key(&mut rng);
            let value = (rng.below(3) > 0).then(|| vec![rng.below(256) as u8; rng.below(600) as usize]);
            batch.changes.insert(Key::from_slice(&key), value);
        }
        let expected = some_key(&mut rng);
        batch.expect.push((Key::from_slice(&expected), model.get(&expected).cloned()));
        for (key, value) in &batch.changes {
            match value {
                Some(value) => drop(model.insert(key.to_vec(), value.clone())),
                None => drop(model.remove(&key[..])),
            }
        }
        kv.commit(Arc::new(batch)).await.expect("a batch");
        snapshots.push((kv.snapshot().await.expect("a snapshot"), model.clone()));
        if snapshots.len() > 4 {
            snapshots.remove(rng.below(4) as usize);
        }
        for (snapshot, model) in &snapshots {
            compare(&**snapshot, model, &mut rng).await;
        }
    }
}

/// The longest keys and values, and a batch of many keys. On an empty store.
pub async fn holds_what_its_limits_say(kv: &dyn MetaKv) {
    let limits = kv.limits();
    let (key_bytes, value_bytes) = (limits.key_bytes_max.min(1024), limits.value_bytes_max - super::SEAL_BYTES);
    let mut rng = Rng::new(7);
    let long: Vec<u8> = (0..key_bytes).map(|_| rng.below(256) as u8).collect();
    let large: Vec<u8> = (0..value_bytes).map(|_| rng.below(256) as u8).collect();
    let mut batch = KvBatch::default();
    batch.changes.insert(Key::from_slice(&long), Some(large.clone()));
    let many = limits.batch_ops_max.min(10_000) as u64;
    for n in 1..many {
        batch.changes.insert(key(n, 0), Some(n.to_le_bytes().to_vec()));
    }
    kv.commit(Arc::new(batch)).await.expect("a batch within the limits");
    let s = kv.snapshot().await.expect("a snapshot");
    assert_eq!(value(&*s, &long).await, Some(large));
    assert_eq!(value(&*s, &key(many - 1, 0)).await, Some((many - 1).to_le_bytes().to_vec()));
    let mut removal = KvBatch::default();
    removal.changes.extend((1..many).map(|n| (key(n, 0), None)));
    kv.commit(Arc::new(removal)).await.expect("a batch within the limits");
    let s = kv.snapshot().await.expect("a snapshot");
    assert!(ready(s.range(b"k\0", b"k\x01", 10)).await.expect("the store can be read").is_empty());
}
